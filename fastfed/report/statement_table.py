"""Every statement of several experiments with its verdict, and of those that were not played."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fastfed.report.source import Source
from fastfed.report.statements import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    UNDECIDED,
    UNPROVEN,
    Statement,
    judge,
)
from fastfed.report.table import difference_words

FILE = "statements.json"

NOT_PLAYED = "not played"
#: How many there are of each verdict, in words.
WORDS = {
    HOLDS: "hold",
    FAILS: "fail",
    UNDECIDED: "undecided",
    UNPROVEN: "unproven",
    NOT_JUDGED: NOT_JUDGED,
    NOT_PLAYED: NOT_PLAYED,
}
NOTHING = "nothing is said of it"
NOTHING_COMPARED = "no [[figure.statement]] compares curves"


@dataclass(frozen=True)
class Row:
    """A statement, and what it is about."""

    figure: str  # the name of its folder
    paper: str
    title: str
    size: str  # how large the run is that the verdict rests on
    statement: Statement

    def to_builtins(self) -> dict[str, Any]:
        """Its JSON in ``statements.json``."""
        about = {
            "figure": self.figure,
            "paper": self.paper,
            "title": self.title,
            "judged_on": self.size,
        }
        return {**about, **self.statement.to_builtins()}


def rows_of(name: str, source: Source) -> list[Row]:
    """The statements of an experiment; a row that says so where there are none."""
    statements = judge(source.results)
    if not statements:
        says = str(source.results.figure.get("says", NOTHING))
        statements = (Statement(says, NOT_JUDGED, (), why=NOTHING_COMPARED),)
    paper = str(source.results.figure.get("paper", ""))
    return [Row(name, paper, source.title, source.size, s) for s in statements]


def rows_not_played(name: str, figure: Mapping[str, Any], reason: str) -> list[Row]:
    """The statements of a spec's [figure] that was asked for and left out."""
    says = [s["says"] for s in figure.get("statement", ())] or [figure.get("says", NOTHING)]
    paper, title = str(figure.get("paper", "")), str(figure.get("title", name))
    return [Row(name, paper, title, "", Statement(s, NOT_PLAYED, (), why=reason)) for s in says]


def ordered(rows: Iterable[Row]) -> list[Row]:
    """By paper and figure; those of a figure in their own order."""
    return sorted(rows, key=lambda row: (row.paper, row.figure))


def counts(rows: Sequence[Row]) -> str:
    """In a line: how many hold, fail, ..., and how many are not what their specs expect."""
    found = Counter(row.statement.verdict for row in rows)
    parts = [f"{found[verdict]} {word}" for verdict, word in WORDS.items() if found[verdict]]
    if not parts:
        return "no statements"
    other = sum(row.statement.unexpected for row in rows)
    return f"statements: {', '.join(parts)}" + (f"; {other} not as expected" if other else "")


def lines(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """All rows as text: each line with the depth to which it is indented, 0 to 2."""
    found: list[tuple[int, str]] = []
    paper = figure = None
    for row in rows:
        if row.paper != paper:
            found += [(0, ""), (0, row.paper or "of no paper")]
            paper, figure = row.paper, None
        if row.figure != figure:
            about = f"{row.title} ({row.size})" if row.size else row.title
            found += [(0, ""), (0, f"{row.figure}: {about}")]
            figure = row.figure
        statement = row.statement
        found.append((1, f"{statement.verdict:<10}  {statement.says}"))
        found += [(2, difference_words(d, statement.within)) for d in statement.differences]
        if statement.reason:
            found.append((2, f"why: {statement.reason}"))
    return [*found, (0, ""), (0, counts(rows))]


def as_json(rows: Sequence[Row]) -> bytes:
    """The content of ``statements.json``; what is not finite is null."""
    found = Counter(row.statement.verdict for row in rows)
    value = {
        "counts": {verdict: found[verdict] for verdict in WORDS},
        "unexpected": sum(row.statement.unexpected for row in rows),
        "statements": [row.to_builtins() for row in rows],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def left_out_before(folder: Path) -> list[Row]:
    """The rows of what was not played when ``statements.json`` was last written."""
    try:
        stored = json.loads((folder / FILE).read_bytes())["statements"]
        return [
            Row(
                s["figure"],
                s["paper"],
                s["title"],
                "",
                Statement(s["says"], NOT_PLAYED, (), why=s["why"]),
            )
            for s in stored
            if s["verdict"] == NOT_PLAYED
        ]
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, or no longer ours: then nothing is known of what was left out.
        return []
