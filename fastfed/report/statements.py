"""What a paper says of a figure, judged on the results: the tables [[figure.statement]].

A statement holds when every one of its differences lies beyond two standard errors on the right
side, fails when some difference lies beyond them on the wrong side, and is undecided otherwise.
Differences are paired, replicate by replicate, for curves of an experiment share their contexts.
Where the figure draws regret per silo, that is what is compared, else group regret.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fastfed._validate import InputError, nearest, number, show
from fastfed.results.results import Results

KEYS = ("says", "below", "near", "within")
#: In standard errors: how far a difference must be from where it says nothing.
BEYOND = 2.0

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"


@dataclass(frozen=True)
class Difference:
    """``first`` - ``second`` in final regret, as it is judged; NaN where it is not known."""

    first: str
    second: str
    mean: float
    stderr: float

    def to_builtins(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "mean": self.mean,
            "stderr": self.stderr,
        }


@dataclass(frozen=True)
class Statement:
    """A statement with its verdict."""

    says: str
    verdict: str  # "holds", "fails" or "undecided"
    differences: tuple[Difference, ...]
    within: float | None = None  # of a "near": fraction of the second curve's regret

    def to_builtins(self) -> dict[str, Any]:
        """Its JSON in ``fastfed results``."""
        return {
            "says": self.says,
            "verdict": self.verdict,
            "differences": [d.to_builtins() for d in self.differences],
        }


def check_statements(value: Any, labels: Sequence[str] | None = None) -> None:
    """InputError unless ``value`` is what [[figure.statement]] may hold.

    Its curves must be among ``labels`` (None: not known yet).
    """
    if not isinstance(value, list):
        raise InputError(
            f"figure.statement must be a list of tables: write [[figure.statement]], "
            f"got {show(value)}"
        )
    for table in value:
        if not isinstance(table, dict):
            raise InputError(f"figure.statement must hold tables, got {show(table)}")
        for key in table:
            if key not in KEYS:
                raise InputError(f'unknown key "{key}" in figure.statement{nearest(key, KEYS)}')
        says = table.get("says")
        if not isinstance(says, str) or not says.strip():
            raise InputError(f"figure.statement.says must be a sentence, got {show(says)}")
        if ("below" in table) == ("near" in table):
            raise InputError(f'figure.statement "{says}" must have either below or near')
        if ("near" in table) != ("within" in table):
            raise InputError(f'figure.statement "{says}": near and within belong together')
        if "within" in table:
            number("figure.statement.within", table["within"], above=0)
        _check_curves("below" if "below" in table else "near", table, labels)


def _check_curves(key: str, table: dict[str, Any], labels: Sequence[str] | None) -> None:
    curves = table[key]
    wanted = "two labels" if key == "near" else "two labels or more, the least regret first"
    if (
        not isinstance(curves, list)
        or not all(isinstance(label, str) for label in curves)
        or len(set(curves)) < len(curves)
        or (len(curves) != 2 if key == "near" else len(curves) < 2)
    ):
        raise InputError(f"figure.statement.{key} must be {wanted}, got {show(curves)}")
    if labels is None:
        return
    for label in curves:
        if label not in labels:
            raise InputError(
                f'unknown curve "{label}" in figure.statement.{key}{nearest(label, labels)}'
            )


def per_silo(results: Results) -> bool:
    """Whether each curve's regret is divided by its own silos before it is compared."""
    return results.figure.get("y") == "per-silo"


def judge(results: Results) -> tuple[Statement, ...]:
    """Every statement of the figure with its verdict, from the replicates that are played."""
    return tuple(_judged(table, results) for table in results.figure.get("statement", ()))


def _judged(table: dict[str, Any], results: Results) -> Statement:
    near = "near" in table
    pairs = [tuple(table["near"])] if near else list(pairwise(table["below"]))
    differences = tuple(_difference(results, first, second) for first, second in pairs)
    if near:
        (only,) = differences
        verdicts = [_near(only, table["within"] * _final(results, only))]
    else:
        verdicts = [_below(d) for d in differences]
    return Statement(table["says"], _together(verdicts), differences, table.get("within"))


def _together(verdicts: Sequence[str]) -> str:
    if FAILS in verdicts:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNDECIDED


def _shared(results: Results, first: str, second: str) -> list[int]:
    """Replicates that both curves have; none where a curve is not played yet."""
    played = {c.label: set(c.replicates) for c in results.curves}
    return sorted(played.get(first, set()) & played.get(second, set()))


def _difference(results: Results, first: str, second: str) -> Difference:
    if not _shared(results, first, second):
        return Difference(first, second, math.nan, math.nan)
    mean, stderr = results.paired_difference(first, second, per_silo=per_silo(results))
    return Difference(first, second, mean, stderr)


def _final(results: Results, difference: Difference) -> float:
    """Final regret of the second curve, as it is judged, over the difference's replicates."""
    shared = _shared(results, difference.first, difference.second)
    if not shared:
        return math.nan
    curve = results[difference.second]
    rows = [curve.replicates.index(r) for r in shared]
    return float(curve.group_regret[rows, -1].mean()) / (curve.silos if per_silo(results) else 1)


def _below(difference: Difference) -> str:
    # NaN compares false, so what is not known stays undecided.
    if difference.mean + BEYOND * difference.stderr < 0.0:
        return HOLDS
    return FAILS if difference.mean - BEYOND * difference.stderr > 0.0 else UNDECIDED


def _near(difference: Difference, limit: float) -> str:
    size, spread = abs(difference.mean), BEYOND * difference.stderr
    if size + spread <= limit:
        return HOLDS
    return FAILS if size - spread > limit else UNDECIDED
