"""Claims about a figure, judged on the results: the tables [[figure.statement]].

A claim orders curves by final regret (``below``), holds two of them equal (``near``), says how
regret grows with a number (``power``), or orders groups of curves by how far they are apart
(``spread``). It holds when every one of its differences lies beyond the limit on the right side,
fails when some difference lies beyond it on the wrong side, and is undecided otherwise. The limit
is Student's quantile, two standard errors where there are many replicates. Differences are paired,
replicate by replicate, since curves of an experiment share their contexts. Compared is regret per
silo where the figure draws it, else group regret.

A claim of a paper is two claims: that the picture comes back, which is the verdict on the
differences, and that the guarantee holds, which is that every curve in it has the privacy that it
claims. The one verdict of both is that of the picture, but "unproven" where the picture comes back
without the guarantee. Nothing is judged in fewer rounds than a figure has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, nearest, number, show
from fastfed.reporting.text import shortfall
from fastfed.results.results import Results

KINDS = ("below", "near", "power", "spread")
#: Keys that go with a kind.
WITH = {"near": ("within",), "power": ("of", "exponent")}
KEYS = ("says", "tag", *KINDS, *(key for keys in WITH.values() for key in keys), "why")
#: In standard errors of many replicates: how far a difference must be from where it says nothing.
BEYOND = 2.0

#: Whose claim it is: a paper's, of a figure played as printed; a paper's, played otherwise or of no
#: printed figure; or nobody's but ours.
PAPER, VARIANT, OURS = "paper", "variant", "ours"
TAGS = (PAPER, VARIANT, OURS)

HOLDS, FAILS, UNDECIDED, UNPROVEN = "holds", "fails", "undecided", "unproven"
#: Verdicts that a spec may expect of a claim, with a reason.
JUDGED = (HOLDS, FAILS, UNDECIDED, UNPROVEN)
NOT_JUDGED = "not judged"
#: Of a guarantee: no curve of the claim asks for privacy.
NOT_CLAIMED = "none claimed"

QUICK = "--quick: few rounds and replicates, a first look that says nothing about the paper"

#: What a difference is a difference of.
REGRET, SPREAD, EXPONENT = "regret", "spread", "exponent"


@dataclass(frozen=True)
class Difference:
    """Difference ``first`` - ``second`` as it is judged; NaN where unknown.

    Of final regret; or of the logarithms of the spread (largest over smallest regret) of two
    groups; or the exponent itself, with ``first`` its name and ``second`` empty.
    """

    first: str
    second: str
    mean: float
    stderr: float
    first_regret: float = math.nan  # means over the replicates that both curves have
    second_regret: float = math.nan
    replicates: int = 0
    of: str = REGRET

    @property
    def reach(self) -> float:
        """Half the length of the interval around ``mean``; NaN for fewer than two replicates."""
        return beyond(self.replicates) * self.stderr

    def to_builtins(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "mean": self.mean,
            "stderr": self.stderr,
            "first_regret": self.first_regret,
            "second_regret": self.second_regret,
            "replicates": self.replicates,
            "of": self.of,
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
    tag: str = OURS
    guarantee: str = NOT_CLAIMED  # HOLDS, FAILS or NOT_CLAIMED
    exponent: tuple[float, float] | None = None  # of a "power": from, to

    @property
    def picture(self) -> str:
        """Verdict on the differences alone; NOT_JUDGED where the run is too short for one."""
        return self.order if self.verdict in JUDGED else self.verdict

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
            "tag": self.tag,
            "verdict": self.verdict,
            "picture": self.picture,
            "guarantee": self.guarantee,
            "order": self.order,
            "why": self.why,
            "expected": list(self.expected),
            "within": self.within,
            "exponent": self.exponent and list(self.exponent),
            "differences": [d.to_builtins() for d in self.differences],
        }


# ---- The tables of a spec ------------------------------------------------------------------------


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
        choice("figure.statement.tag", table.get("tag", OURS), TAGS)
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise InputError(
                f'figure.statement "{says}" must have either below or near, or power or spread'
            )
        _check_company(says, kinds[0], table)
        _check_why(table.get("why", {}))
        if kinds[0] == "spread":
            _check_spread(table["spread"], labels)
        else:
            _check_curves(kinds[0], table[kinds[0]], labels)
        if kinds[0] == "power":
            _check_power(table)


def _check_company(says: str, kind: str, table: dict[str, Any]) -> None:
    for owner, keys in WITH.items():
        there = [key for key in keys if key in table]
        if (kind == owner and len(there) < len(keys)) or (kind != owner and there):
            raise InputError(
                f'figure.statement "{says}": {owner}, {" and ".join(keys)} belong together'
                if len(keys) > 1
                else f'figure.statement "{says}": {owner} and {keys[0]} belong together'
            )
    if "within" in table:
        number("figure.statement.within", table["within"], above=0)


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


def _check_curves(key: str, curves: Any, labels: Sequence[str] | None) -> None:
    wanted = {
        "near": "two labels",
        "below": "two labels or more, the least regret first",
    }.get(key, "two labels or more")
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


def _check_power(table: dict[str, Any]) -> None:
    curves, of, exponent = table["power"], table["of"], table["exponent"]
    if not isinstance(of, list) or len(of) != len(curves):
        raise InputError(f"figure.statement.of must be a number for each curve, got {show(of)}")
    for value in of:
        number("figure.statement.of", value, above=0)
    if len(set(of)) < len(of):
        raise InputError(f"figure.statement.of must be numbers that differ, got {show(of)}")
    if not isinstance(exponent, list) or len(exponent) != 2:
        raise InputError(
            f"figure.statement.exponent must be a list of two numbers, got {show(exponent)}"
        )
    low, high = (number("figure.statement.exponent", value) for value in exponent)
    if low > high:
        raise InputError(f"figure.statement.exponent must be from, to, got {show(exponent)}")


def _check_spread(groups: Any, labels: Sequence[str] | None) -> None:
    if not isinstance(groups, list) or len(groups) < 2:
        raise InputError(
            "figure.statement.spread must be two lists of labels or more, the least spread first, "
            f"got {show(groups)}"
        )
    for curves in groups:
        _check_curves("spread", curves, labels)


def _common(labels: Sequence[str]) -> str:
    """What the labels of a group have in common: "FedUCB, gap = 0.1"."""
    parts = [label.split(", ") for label in labels]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    return ", ".join(shared) or labels[0]


def labels_of(table: dict[str, Any]) -> list[str]:
    """Labels of the curves that a claim is about."""
    if "spread" in table:
        return [label for curves in table["spread"] for label in curves]
    (found,) = (table[kind] for kind in KINDS if kind in table)
    return list(found)


# ---- Verdicts ------------------------------------------------------------------------------------


@cache
def beyond(replicates: int) -> float:
    """Standard errors to either side that a mean of so many replicates is not told apart from.

    Student's quantile at the level of two standard errors of a normal mean: 14 for two replicates,
    4.5 for three, 2.9 for five, 2.1 for 25.
    """
    if replicates < 2:
        return math.nan
    from scipy.special import ndtr, stdtrit

    return float(stdtrit(replicates - 1, ndtr(BEYOND)))


def per_silo(results: Results) -> bool:
    """Return True if each curve's regret is divided by its own silos before it is compared."""
    return results.figure.get("y") == "per-silo"


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge every claim of the figure on the replicates that are finished."""
    return tuple(_judged(table, results) for table in results.figure.get("statement", ()))


def _judged(table: dict[str, Any], results: Results) -> Claim:
    differences, verdicts = _measured(table, results)
    order = _together(verdicts)
    labels = labels_of(table)
    guarantee, missing = _guarantee(results, labels)
    reasons: dict[str, str] = table.get("why", {})
    verdict, why = order, ""
    if short := too_short(results):
        verdict, why = NOT_JUDGED, short
    elif order == HOLDS and missing:
        verdict, why = UNPROVEN, missing
    elif order == UNDECIDED:
        why = _few(differences)
    exponent = table.get("exponent")
    return Claim(
        table["says"],
        verdict,
        differences,
        table.get("within"),
        order,
        reasons.get(verdict, why),
        tuple(reasons),
        table.get("tag", OURS),
        guarantee,
        exponent and (float(exponent[0]), float(exponent[1])),
    )


#: Replicates below which their number is said to be why nothing is decided.
FEW = 10


def _few(differences: Sequence[Difference]) -> str:
    """Reason why so few replicates decide nothing; empty where they are not few."""
    if any(math.isnan(d.stderr) for d in differences):
        return "it takes two replicates of every curve"
    least = min(d.replicates for d in differences)
    if least >= FEW:
        return ""
    return (
        f"of {least} replicates only differences beyond {beyond(least):.2g} standard errors count"
    )


def too_short(results: Results) -> str:
    """Reason why a run says nothing about the claims of its figure; empty where it does."""
    figure = results.figure
    if changed := figure.get("changed"):
        return f"--set {', '.join(changed)}: not the experiment that the claims are about"
    if figure.get("size") == "quick":
        return QUICK
    wanted = figure.get("judged_from", 0)
    if results.horizon < wanted:
        rounds = f"{wanted:,}".replace(",", " ")
        return f"judged from {rounds} rounds on, the figure's own"
    return ""


def _guarantee(results: Results, labels: Sequence[str]) -> tuple[str, str]:
    """Whether curves that claim privacy have it; and the shortfall of the first that has not."""
    there = {curve.label: curve.certificate for curve in results.curves}
    certificates = {label: there[label] for label in labels if label in there}
    claiming = {k: c for k, c in certificates.items() if c.get("claimed") is not None}
    if not claiming:
        return NOT_CLAIMED, ""
    for label, certificate in claiming.items():
        if missing := shortfall(certificate):
            return FAILS, f"{label} {missing}"
    return HOLDS, ""


def _measured(table: dict[str, Any], results: Results) -> tuple[tuple[Difference, ...], list[str]]:
    """The differences behind a claim, and the verdict on each."""
    if "near" in table:
        only = _difference(results, *table["near"])
        return (only,), [_within(only, table["within"] * only.second_regret)]
    if "power" in table:
        slope = _exponent(results, table["power"], table["of"])
        low, high = table["exponent"]
        if slope.mean - slope.reach >= low and slope.mean + slope.reach <= high:
            return (slope,), [HOLDS]
        outside = slope.mean + slope.reach < low or slope.mean - slope.reach > high
        return (slope,), [FAILS if outside else UNDECIDED]
    if "spread" in table:
        pairs = pairwise(table["spread"])
        found = tuple(_spreads(results, first, second) for first, second in pairs)
    else:
        found = tuple(_difference(results, *pair) for pair in pairwise(table["below"]))
    return found, [_below(d) for d in found]


def _together(verdicts: Sequence[str]) -> str:
    if FAILS in verdicts:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNDECIDED


def _shared(results: Results, labels: Sequence[str]) -> list[int]:
    """Replicates that all curves have; none where a curve has not been run yet."""
    finished = {c.label: set(c.replicates) for c in results.curves}
    return sorted(set.intersection(*(finished.get(label, set()) for label in labels)))


def _finals(results: Results, label: str, replicates: Sequence[int]) -> np.ndarray:
    """Final regret of a curve, as it is judged, in each of these replicates."""
    curve = results[label]
    rows = [curve.replicates.index(r) for r in replicates]
    final: np.ndarray = curve.group_regret[rows, -1]
    return final / (curve.silos if per_silo(results) else 1)


def _mean(values: np.ndarray) -> tuple[float, float]:
    spread = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), float(spread)


def _difference(results: Results, first: str, second: str) -> Difference:
    shared = _shared(results, (first, second))
    if not shared:
        return Difference(first, second, math.nan, math.nan)
    a, b = (_finals(results, label, shared) for label in (first, second))
    return Difference(first, second, *_mean(a - b), float(a.mean()), float(b.mean()), len(shared))


def _exponent(results: Results, labels: Sequence[str], of: Sequence[float]) -> Difference:
    """Slope of ln(regret) against ln(of), by least squares in each replicate."""
    shared = _shared(results, labels)
    if not shared:
        return Difference(EXPONENT, "", math.nan, math.nan, of=EXPONENT)
    x = np.log(np.array(of, np.float64))
    x -= x.mean()
    regret = np.array([_finals(results, label, shared) for label in labels])
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = x @ np.log(regret) / (x @ x)
    return Difference(EXPONENT, "", *_mean(slopes), replicates=len(shared), of=EXPONENT)


def _spreads(results: Results, first: Sequence[str], second: Sequence[str]) -> Difference:
    """Difference of the logarithms of two groups' spreads, each largest over smallest regret."""
    names = _common(first), _common(second)
    shared = _shared(results, [*first, *second])
    if not shared:
        return Difference(*names, math.nan, math.nan, of=SPREAD)
    logs = []
    for labels in (first, second):
        regret = np.array([_finals(results, label, shared) for label in labels])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs.append(np.log(regret.max(axis=0) / regret.min(axis=0)))
    a, b = (float(np.exp(each.mean())) for each in logs)
    mean, stderr = _mean(logs[0] - logs[1])
    return Difference(*names, mean, stderr, a, b, len(shared), SPREAD)


def _below(difference: Difference) -> str:
    # NaN compares false: an unknown difference stays undecided.
    if difference.mean + difference.reach < 0.0:
        return HOLDS
    return FAILS if difference.mean - difference.reach > 0.0 else UNDECIDED


def _within(difference: Difference, limit: float) -> str:
    size = abs(difference.mean)
    if size + difference.reach <= limit:
        return HOLDS
    return FAILS if size - difference.reach > limit else UNDECIDED
