"""Plausible mistakes and the messages that they get, as a table.

    PYTHONPATH=tests python tests/mistakes.py [-o table.md]

Each mistake is made for real in a folder of its own. A message is good if it is one sentence
without a traceback which says the words that the mistake lists (key or argument, value, what to
do), exits with 2 at the command line, and leaves nothing half-written. `test_mistakes.py` asks that
of every one.
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

#: The most that a reader takes in at once.
LONGEST = 420


@dataclass(frozen=True)
class Mistake:
    """A mistake: what it is, how it is made in an empty folder, and what its message has to say."""

    what: str
    make: Callable[[Path], object]
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()  # modules without which it cannot be made
    code: int = 2  # at the command line
    error: type[Exception] = InputError  # TypeError: Python itself refuses the call
    never: tuple[str, ...] = ()  # what an answer must not say


@dataclass(frozen=True)
class Answer:
    """What came of a mistake."""

    message: str
    faults: tuple[str, ...]


class Said(Exception):
    """What the command line printed, with its exit code."""

    def __init__(self, message: str, code: int, printed: str) -> None:
        super().__init__(message)
        self.code, self.printed = code, printed


def command(*args: object) -> None:
    """Run a command; it has to complain."""
    result = CliRunner().invoke(cli, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 0:
        raise Said(result.stderr + result.stdout, 0, result.stdout)
    raise Said(result.stderr.rstrip("\n"), result.exit_code, result.stdout)


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
                message, faults = _said(mistake, folder)
        finally:
            os.chdir(home)
    message = message.replace(f"{folder_name}/", "").replace(folder_name, "FOLDER")
    faults += [f"does not say {word}" for word in mistake.words if word not in message]
    faults += [f"says {word}" for word in mistake.never if word in message]
    if mistake.code == 0:  # an answer: what it says first of what it has to
        lines = [line for line in message.splitlines() if mistake.words[0] in line] or [message]
        message = lines[0].strip()[:LONGEST]
    faults += [f"warns: {w.message}" for w in warned if not issubclass(w.category, ResourceWarning)]
    if "\n" in message:
        faults.append("several lines")
    if len(message) > LONGEST:
        faults.append(f"{len(message)} characters")
    return Answer(message, tuple(faults))


def _said(mistake: Mistake, folder: Path) -> tuple[str, list[str]]:
    """Make a mistake in a folder; return its message and what is wrong with the message."""
    try:
        mistake.make(folder)
    except mistake.error as error:
        return str(error), _left(folder)
    except Said as said:
        faults = [] if mistake.code == 0 else _left(folder)
        if said.code != mistake.code:
            faults.append(f"exit code {said.code}")
        if said.printed and said.code:
            faults.append("prints on standard output")
        if mistake.code and not str(said).startswith("error: "):
            faults.append("does not begin with error:")
        accepted = "(accepted) " if mistake.code and not said.code else ""
        return accepted + str(said).removeprefix("error: "), faults
    except Exception as error:
        return f"{type(error).__name__}: {error}", ["traceback"]
    return "(accepted)", ["nothing is said"]


def _left(folder: Path) -> list[str]:
    """Return files that a mistake has left behind."""
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
    """Yield lines of the table (markdown)."""
    good = sum(not given.faults for _, given in answered)
    yield f"{len(answered)} mistakes, {good} good messages, {len(answered) - good} not.\n"
    yield "| | mistake | message | good |"
    yield "|---|---|---|---|"
    for number, (mistake, given) in enumerate(answered, 1):
        cells = mistake.what, given.message, "; ".join(given.faults) or "yes"
        texts = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
        yield f"| {number} | " + " | ".join(texts) + " |"


def available(mistake: Mistake) -> bool:
    """Return True if the packages that a mistake needs are there."""
    from importlib.util import find_spec

    return all(find_spec(name) for name in mistake.needs)


def main() -> int:
    """Make all mistakes, print the table."""
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
