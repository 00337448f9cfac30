"""`python -m fastfed`."""

from fastfed.cli import main

if __name__ == "__main__":
    main()
