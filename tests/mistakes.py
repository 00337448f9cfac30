"""Plausible mistakes and the messages that they get, as a table.

    PYTHONPATH=tests python tests/mistakes.py [-o table.md]

Each mistake is really made, in a separate folder. A message is good if it is one sentence without a
traceback, contains the words that the mistake lists (key or argument, value, what to do), exits
with 2 at the command line, and leaves nothing half-written. `test_mistakes.py` checks each one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli

#: The largest number of characters that a reader understands at once.
LONGEST = 420


@dataclass(frozen=True)
class Mistake:
    """A mistake: what it is, how to make it in an empty folder, and the words of its message."""

    what: str
    make: Callable[[Path], object]
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()  # modules that making the mistake needs
    code: int = 2  # at the command line
    error: type[Exception] = InputError  # TypeError: Python itself refuses the call
    never: tuple[str, ...] = ()  # words that a message must not contain


@dataclass(frozen=True)
class Answer:
    """The message that a mistake gets, and the faults of this message."""

    message: str
    faults: tuple[str, ...]


class Printed(Exception):
    """Raised with what the command line printed, and its exit code."""

    def __init__(self, message: str, code: int, printed: str) -> None:
        super().__init__(message)
        self.code, self.printed = code, printed


def command(*args: object) -> None:
    """Run a command, and raise what it printed."""
    result = CliRunner().invoke(cli, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 0:
        raise Printed(result.stderr + result.stdout, 0, result.stdout)
    raise Printed(result.stderr.rstrip("\n"), result.exit_code, result.stdout)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def answer(mistake: Mistake) -> Answer:
    """Make a mistake, and judge its message."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        os.chdir(folder)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                message, faults = _message_and_faults(mistake, folder)
        finally:
            os.chdir(home)
    message = message.replace(f"{folder_name}/", "").replace(folder_name, "FOLDER")
    faults += [f"does not say {word}" for word in mistake.words if word not in message]
    faults += [f"says {word}" for word in mistake.never if word in message]
    if mistake.code == 0:  # not an error: judge the first line that has the first word
        lines = [line for line in message.splitlines() if mistake.words[0] in line] or [message]
        message = lines[0].strip()[:LONGEST]
    faults += [f"warns: {w.message}" for w in warned if not issubclass(w.category, ResourceWarning)]
    if "\n" in message:
        faults.append("several lines")
    if len(message) > LONGEST:
        faults.append(f"{len(message)} characters")
    return Answer(message, tuple(faults))


def _message_and_faults(mistake: Mistake, folder: Path) -> tuple[str, list[str]]:
    """Make a mistake in a folder; return its message and the faults of the message."""
    try:
        mistake.make(folder)
    except mistake.error as error:
        return str(error), _leftover_faults(folder)
    except Printed as printed:
        faults = [] if mistake.code == 0 else _leftover_faults(folder)
        if printed.code != mistake.code:
            faults.append(f"exit code {printed.code}")
        if printed.printed and printed.code:
            faults.append("prints on standard output")
        if mistake.code and not str(printed).startswith("error: "):
            faults.append("does not begin with error:")
        accepted = "(accepted) " if mistake.code and not printed.code else ""
        return accepted + str(printed).removeprefix("error: "), faults
    except Exception as error:
        return f"{type(error).__name__}: {error}", ["traceback"]
    return "(accepted)", ["nothing is said"]


def _leftover_faults(folder: Path) -> list[str]:
    """Return a fault for each file that a mistake has left behind."""
    leftover = [
        p for p in folder.rglob("*") if p.name in ("out", "out.toml", "plan") or "~" in p.name
    ]
    return [f"leaves {p.relative_to(folder)}" for p in leftover]


def every() -> list[Mistake]:
    """Return the users' mistakes of all modules; those at the command line come first."""
    import mistakes_answered
    import mistakes_deployed
    import mistakes_parts
    import mistakes_python
    import mistakes_readers
    import mistakes_specs
    import mistakes_tables

    modules = (
        *(mistakes_specs, mistakes_tables, mistakes_python, mistakes_parts, mistakes_deployed),
        *(mistakes_answered, mistakes_readers),
    )
    return [mistake for module in modules for mistake in module.MISTAKES]


def table(answered: Sequence[tuple[Mistake, Answer]]) -> Iterator[str]:
    """Yield lines of the Markdown table of mistakes and their answers."""
    good = sum(not given.faults for _, given in answered)
    yield f"{len(answered)} mistakes, {good} good messages, {len(answered) - good} not.\n"
    yield "| | mistake | message | good |"
    yield "|---|---|---|---|"
    for number, (mistake, given) in enumerate(answered, 1):
        cells = mistake.what, given.message, "; ".join(given.faults) or "yes"
        texts = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
        yield f"| {number} | " + " | ".join(texts) + " |"


def available(mistake: Mistake) -> bool:
    """Return True if the packages that a mistake needs are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) for name in mistake.needs)


def main() -> int:
    """Make all mistakes, and print the table; return 1 if a message has a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="file of the table; else it is printed")
    arguments = parser.parse_args()
    answered = [(mistake, answer(mistake)) for mistake in every() if available(mistake)]
    text = "\n".join(table(answered)) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text)
        print(text.splitlines()[0])
    return int(any(a.faults for _, a in answered))


if __name__ == "__main__":
    import mistakes  # the module that the others import

    sys.exit(mistakes.main())
