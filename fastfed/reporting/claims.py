"""Claims of a paper about a figure, judged on the results: the tables [[figure.statement]].

The order of its curves holds when every one of its differences lies beyond two standard errors on
the right side, fails when some difference lies beyond them on the wrong side, and is undecided
otherwise. Differences are paired, replicate by replicate, since curves of an
experiment share their contexts. Compared is regret per silo where the figure draws it, else group
regret.

The verdict is that of the order, with two exceptions: an order that holds between curves of which
one lacks the privacy that it claims is "unproven", and a first look (--quick) is "not judged".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fastfed._validate import InputError, nearest, number, show
from fastfed.reporting.text import shortfall
from fastfed.results.results import Results

KEYS = ("says", "below", "near", "within", "why")
#: In standard errors: how far a difference must be from where it says nothing.
BEYOND = 2.0

HOLDS, FAILS, UNDECIDED, UNPROVEN = "holds", "fails", "undecided", "unproven"
#: Verdicts that a spec may expect of a claim, with a reason.
JUDGED = (HOLDS, FAILS, UNDECIDED, UNPROVEN)
NOT_JUDGED = "not judged"

QUICK = "--quick: few rounds and replicates, a first look that says nothing about the paper"


@dataclass(frozen=True)
class Difference:
    """Difference ``first`` - ``second`` in final regret, as it is judged; NaN where unknown."""

    first: str
    second: str
    mean: float
    stderr: float
    first_regret: float = math.nan  # means over the replicates that both curves have
    second_regret: float = math.nan

    def to_builtins(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "mean": self.mean,
            "stderr": self.stderr,
            "first_regret": self.first_regret,
            "second_regret": self.second_regret,
        }


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict."""

    says: str
    verdict: str  # one of JUDGED, or NOT_JUDGED
    differences: tuple[Difference, ...]
    within: float | None = None  # of a "near": fraction of the second curve's regret
    order: str = ""  # "holds", "fails" or "undecided": of the curves' regret alone
    why: str = ""  # a sentence; empty where the differences say all
    expected: tuple[str, ...] = ()  # verdicts that the figure's spec has a reason for

    @property
    def unexpected(self) -> bool:
        """True if the verdict is one that the spec has no reason for."""
        return bool(self.expected) and self.verdict in JUDGED and self.verdict not in self.expected

    @property
    def reason(self) -> str:
        """Reason for the verdict; empty where the differences say all."""
        if not self.unexpected:
            return self.why
        expected = f"not as expected ({' or '.join(self.expected)})"
        return f"{expected}; {self.why}" if self.why else expected

    def to_builtins(self) -> dict[str, Any]:
        """Plain data, as in the JSON of ``fastfed results``."""
        return {
            "says": self.says,
            "verdict": self.verdict,
            "order": self.order,
            "why": self.why,
            "expected": list(self.expected),
            "within": self.within,
            "differences": [d.to_builtins() for d in self.differences],
        }


def check_claims(value: Any, labels: Sequence[str] | None = None) -> None:
    """Raise InputError unless ``value`` is what [[figure.statement]] may hold.

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
        _check_why(table.get("why", {}))
        _check_curves("below" if "below" in table else "near", table, labels)


def _check_why(value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f"figure.statement.why must be a table of verdicts, got {show(value)}")
    for verdict, reason in value.items():
        if verdict not in JUDGED:
            raise InputError(
                f'unknown verdict "{verdict}" in figure.statement.why{nearest(verdict, JUDGED)}'
            )
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(
                f"figure.statement.why.{verdict} must be a sentence, got {show(reason)}"
            )


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
    """Return True if each curve's regret is divided by its own silos before it is compared."""
    return results.figure.get("y") == "per-silo"


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge every claim of the figure on the replicates that are finished."""
    return tuple(_judged(table, results) for table in results.figure.get("statement", ()))


def _judged(table: dict[str, Any], results: Results) -> Claim:
    near = "near" in table
    pairs = [tuple(table["near"])] if near else list(pairwise(table["below"]))
    differences = tuple(_difference(results, first, second) for first, second in pairs)
    if near:
        (only,) = differences
        verdicts = [_near(only, table["within"] * only.second_regret)]
    else:
        verdicts = [_below(d) for d in differences]
    order = _together(verdicts)
    reasons: dict[str, str] = table.get("why", {})
    verdict, why = order, ""
    if results.figure.get("size") == "quick":
        verdict, why = NOT_JUDGED, QUICK
    elif order == HOLDS and (missing := _shortfall(results, table["near" if near else "below"])):
        verdict, why = UNPROVEN, missing
    elif order == UNDECIDED and any(math.isnan(d.stderr) for d in differences):
        why = "it takes two replicates of every curve"
    return Claim(
        table["says"],
        verdict,
        differences,
        table.get("within"),
        order,
        reasons.get(verdict, why),
        tuple(reasons),
    )


def _shortfall(results: Results, labels: Sequence[str]) -> str:
    """Shortfall of the first of these curves that lacks privacy it claims; empty if none does."""
    for label in labels:
        if missing := shortfall(results[label].certificate):
            return f"{label} {missing}"
    return ""


def _together(verdicts: Sequence[str]) -> str:
    if FAILS in verdicts:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNDECIDED


def _shared(results: Results, first: str, second: str) -> list[int]:
    """Replicates that both curves have; none where a curve has not been run yet."""
    finished = {c.label: set(c.replicates) for c in results.curves}
    return sorted(finished.get(first, set()) & finished.get(second, set()))


def _difference(results: Results, first: str, second: str) -> Difference:
    shared = _shared(results, first, second)
    if not shared:
        return Difference(first, second, math.nan, math.nan)
    mean, stderr = results.paired_difference(first, second, per_silo=per_silo(results))
    regrets = (_final(results, label, shared) for label in (first, second))
    return Difference(first, second, mean, stderr, *regrets)


def _final(results: Results, label: str, replicates: Sequence[int]) -> float:
    """Final regret of a curve, as it is judged, over these replicates."""
    curve = results[label]
    rows = [curve.replicates.index(r) for r in replicates]
    return float(curve.group_regret[rows, -1].mean()) / (curve.silos if per_silo(results) else 1)


def _below(difference: Difference) -> str:
    # NaN compares false: an unknown difference stays undecided.
    if difference.mean + BEYOND * difference.stderr < 0.0:
        return HOLDS
    return FAILS if difference.mean - BEYOND * difference.stderr > 0.0 else UNDECIDED


def _near(difference: Difference, limit: float) -> str:
    size, spread = abs(difference.mean), BEYOND * difference.stderr
    if size + spread <= limit:
        return HOLDS
    return FAILS if size - spread > limit else UNDECIDED
