"""Judge claims about a figure on its results: the tables [[figure.statement]] of a spec.

A claim has one of four kinds. ``below`` orders curves by final regret, ``near`` says that two
curves have about equal regret, ``power`` says how regret grows with a number, and ``spread`` orders
groups of curves by how much regret differs within the group. A claim is judged on differences, such
as the regret of one curve minus the regret of the next. The claim holds if every difference is on
the right side of zero (or within its bounds) by more than a margin. It fails if a difference is on
the wrong side by more than this margin. Otherwise it is undecided. The margin is two standard
errors, or more if there are few replicates (Student's quantile). Differences are paired, replicate
by replicate, since curves of an experiment share their contexts. Regret is regret per silo if the
figure draws regret per silo, and group regret otherwise.

A claim of a paper consists of two claims: that the plot is reproduced, which is judged on the
differences, and that the guarantee holds, which means that every curve of the claim has the
privacy that it claims. The verdict on the claim is the verdict on the plot, except that it is
"unproven" if the plot is reproduced and the guarantee does not hold. A run with fewer rounds than
the figure is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, nearest, nearest_label, number, show
from fastfed.reporting.text import shortfall, spaced
from fastfed.results.paired import Difference, beyond, difference, mean_and_error, per_silo, regrets
from fastfed.results.results import Results

KINDS = ("below", "near", "power", "spread")
#: Keys that a kind requires, and that no other kind allows.
REQUIRED_KEYS = {"near": ("within",), "power": ("of", "exponent")}
KEYS = ("says", "tag", *KINDS, *(key for keys in REQUIRED_KEYS.values() for key in keys), "why")

#: Tags, which say where a claim comes from. PAPER: a printed figure of a paper, simulated as
#: printed. VARIANT: a theorem of a paper, or a figure simulated in a different way. OURS: no paper.
PAPER, VARIANT, OURS = "paper", "variant", "ours"
TAGS = (PAPER, VARIANT, OURS)

HOLDS, FAILS, UNDECIDED, UNPROVEN = "holds", "fails", "undecided", "unproven"
#: Verdicts that a spec may expect of a claim, with a reason.
JUDGED = (HOLDS, FAILS, UNDECIDED, UNPROVEN)
NOT_JUDGED = "not judged"
#: Verdict on the guarantee if no curve of the claim claims privacy.
NOT_CLAIMED = "none claimed"

QUICK = "--quick: few rounds and replicates, a first look that says nothing about the paper"

#: Values of ``Difference.of``: the quantity that is compared.
REGRET, SPREAD, EXPONENT = "regret", "spread", "exponent"


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict."""

    says: str
    verdict: str  # one of JUDGED, or NOT_JUDGED
    differences: tuple[Difference, ...]
    within: float | None = None  # for "near": allowed fraction of the second curve's regret
    order: str = ""  # HOLDS, FAILS or UNDECIDED: verdict on the differences
    why: str = ""  # reason for the verdict; empty if the differences explain it
    expected: tuple[str, ...] = ()  # verdicts for which the spec gives a reason
    tag: str = OURS
    guarantee: str = NOT_CLAIMED  # HOLDS, FAILS or NOT_CLAIMED
    exponent: tuple[float, float] | None = None  # for "power": least and largest exponent

    @property
    def picture(self) -> str:
        """Return what a plot of the curves shows: the verdict on the differences alone.

        Unlike ``verdict``, it does not depend on the guarantee. It is NOT_JUDGED if the claim is
        not judged.
        """
        return self.order if self.verdict in JUDGED else self.verdict

    @property
    def unexpected(self) -> bool:
        """Return True if the spec expects verdicts, and this verdict is not one of them."""
        return bool(self.expected) and self.verdict in JUDGED and self.verdict not in self.expected

    @property
    def reason(self) -> str:
        """Return the reason for the verdict; empty if the differences explain it."""
        if not self.unexpected:
            return self.why
        expected = f"not as expected ({' or '.join(self.expected)})"
        return f"{expected}; {self.why}" if self.why else expected

    def to_builtins(self) -> dict[str, Any]:
        """Return the claim as plain data, as in the JSON of ``fastfed results``."""
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
    """Check the tables [[figure.statement]] of a spec.

    Parameters
    ----------
    value : Any
        The list of tables.
    labels : sequence of str, optional
        Labels of the curves, which claims may name; None if they are not known yet.

    Raises
    ------
    InputError
        For unknown keys and curves, and invalid values.
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
        claim_text = table.get("says")
        if not isinstance(claim_text, str) or not claim_text.strip():
            raise InputError(f"figure.statement.says must be a sentence, got {show(claim_text)}")
        choice("figure.statement.tag", table.get("tag", OURS), TAGS)
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise InputError(
                f'figure.statement "{claim_text}" must have one of below, near, power and spread'
            )
        _check_required_keys(claim_text, kinds[0], table)
        _check_why(table.get("why", {}))
        if kinds[0] == "spread":
            _check_spread(table["spread"], labels)
        else:
            _check_curves(kinds[0], table[kinds[0]], labels)
        if kinds[0] == "power":
            _check_power(table)


def _check_required_keys(says: str, kind: str, table: dict[str, Any]) -> None:
    """Raise InputError unless a claim has the keys of its kind, and no keys of other kinds."""
    for owner, keys in REQUIRED_KEYS.items():
        present = [key for key in keys if key in table]
        if (kind == owner and len(present) < len(keys)) or (kind != owner and present):
            raise InputError(
                f'figure.statement "{says}": {owner}, {" and ".join(keys)} belong together'
                if len(keys) > 1
                else f'figure.statement "{says}": {owner} and {keys[0]} belong together'
            )
    if "within" in table:
        number("figure.statement.within", table["within"], above=0)


def _check_why(value: Any) -> None:
    """Raise InputError unless ``value`` maps verdicts to sentences."""
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
    """Raise InputError unless ``curves`` is a list of labels that is valid for a kind of claim.

    ``key`` is the kind. ``labels`` are the labels of all curves, None if not known yet.
    """
    expected = {"near": "two labels", "below": "two labels or more, the least regret first"}.get(
        key, "two labels or more"
    )
    if (
        not isinstance(curves, list)
        or not all(isinstance(label, str) for label in curves)
        or len(set(curves)) < len(curves)
        or (len(curves) != 2 if key == "near" else len(curves) < 2)
    ):
        raise InputError(f"figure.statement.{key} must be {expected}, got {show(curves)}")
    if labels is None:
        return
    for label in curves:
        if label not in labels:
            raise InputError(
                f'unknown curve "{label}" in figure.statement.{key}{nearest_label(label, labels)}'
            )


def _check_power(table: dict[str, Any]) -> None:
    """Raise InputError unless ``of`` and ``exponent`` of a "power" claim are valid."""
    curves, of, exponent = table["power"], table["of"], table["exponent"]
    if not isinstance(of, list) or len(of) != len(curves):
        raise InputError(f"figure.statement.of must be a number for each curve, got {show(of)}")
    for value in of:
        number("figure.statement.of", value, above=0)
    if len(set(of)) < len(of):
        raise InputError(f"figure.statement.of must be distinct numbers, got {show(of)}")
    if not isinstance(exponent, list) or len(exponent) != 2:
        raise InputError(
            f"figure.statement.exponent must be a list of two numbers, got {show(exponent)}"
        )
    low, high = (number("figure.statement.exponent", value) for value in exponent)
    if low > high:
        raise InputError(f"figure.statement.exponent must be from, to, got {show(exponent)}")


def _check_spread(groups: Any, labels: Sequence[str] | None) -> None:
    """Raise InputError unless ``groups`` is a list of two or more lists of labels."""
    if not isinstance(groups, list) or len(groups) < 2:
        raise InputError(
            "figure.statement.spread must be two lists of labels or more, the least spread first, "
            f"got {show(groups)}"
        )
    for curves in groups:
        _check_curves("spread", curves, labels)


def _common(labels: Sequence[str]) -> str:
    """Return the parts that all labels have in common, such as "FedUCB, gap = 0.1"."""
    parts = [label.split(", ") for label in labels]
    shared = [part for part in parts[0] if all(part in other_parts for other_parts in parts)]
    return ", ".join(shared) or labels[0]


def labels_of(table: dict[str, Any]) -> list[str]:
    """Return the labels of the curves that a claim is about."""
    if "spread" in table:
        return [label for curves in table["spread"] for label in curves]
    (labels,) = (table[kind] for kind in KINDS if kind in table)
    return list(labels)


# ---- Verdicts ------------------------------------------------------------------------------------


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge every claim of a figure.

    Parameters
    ----------
    results : Results
        Results with a figure; replicates that are not finished are ignored.

    Returns
    -------
    tuple of Claim
        The claims with their verdicts, in the order of the spec.
    """
    return tuple(_judge_one(table, results) for table in results.figure.get("statement", ()))


def _judge_one(table: dict[str, Any], results: Results) -> Claim:
    """Return the claim of one table [[figure.statement]] with its verdict."""
    differences, verdicts = _differences(table, results)
    order = _combined(verdicts)
    labels = labels_of(table)
    guarantee, missing = _guarantee(results, labels)
    reasons: dict[str, str] = table.get("why", {})
    verdict, reason = order, ""
    if shortage := too_short(results):
        verdict, reason = NOT_JUDGED, shortage
    elif order == HOLDS and missing:
        verdict, reason = UNPROVEN, missing
    elif order == UNDECIDED:
        reason = _too_few_replicates(differences)
    exponent = table.get("exponent")
    return Claim(
        table["says"],
        verdict,
        differences,
        table.get("within"),
        order,
        reasons.get(verdict, reason),
        tuple(reasons),
        table.get("tag", OURS),
        guarantee,
        exponent and (float(exponent[0]), float(exponent[1])),
    )


#: Below this number of replicates, their number is given as the reason why a claim is undecided.
FEW_REPLICATES = 10


def _too_few_replicates(differences: Sequence[Difference]) -> str:
    """Return a sentence if a claim may be undecided because there are few replicates, else ""."""
    if any(math.isnan(d.stderr) for d in differences):
        return "every curve needs at least two replicates"
    least = min(d.replicates for d in differences)
    if least >= FEW_REPLICATES:
        return ""
    return (
        f"with {least} replicates only differences beyond {beyond(least):.2g} standard errors count"
    )


def too_short(results: Results) -> str:
    """Return the reason why claims are not judged on these results; "" if they are judged."""
    figure = results.figure
    if changed := figure.get("changed"):
        return f"--set {', '.join(changed)}: not the experiment that the claims are about"
    if figure.get("size") == "quick":
        return QUICK
    least_rounds = figure.get("judged_from", 0)
    if results.horizon < least_rounds:
        return f"judged only with at least {spaced(least_rounds)} rounds, as in the figure"
    return ""


def _guarantee(results: Results, labels: Sequence[str]) -> tuple[str, str]:
    """Return the verdict on the guarantee of these curves: HOLDS, FAILS or NOT_CLAIMED.

    Also return a clause about the first curve without the privacy that it claims; empty if none.
    """
    finished = {curve.label: curve.certificate for curve in results.curves}
    certificates = {label: finished[label] for label in labels if label in finished}
    claiming = {k: c for k, c in certificates.items() if c.get("claimed") is not None}
    if not claiming:
        return NOT_CLAIMED, ""
    for label, certificate in claiming.items():
        if missing := shortfall(certificate):
            return FAILS, f"{label} {missing}"
    return HOLDS, ""


def _differences(
    table: dict[str, Any], results: Results
) -> tuple[tuple[Difference, ...], list[str]]:
    """Return the differences on which a claim is judged, and the verdict on each."""
    if "near" in table:
        single = _difference(results, *table["near"])
        return (single,), [_within(single, table["within"] * single.second_regret)]
    if "power" in table:
        slope = _exponent(results, table["power"], table["of"])
        low, high = table["exponent"]
        if slope.mean - slope.reach >= low and slope.mean + slope.reach <= high:
            return (slope,), [HOLDS]
        is_outside = slope.mean + slope.reach < low or slope.mean - slope.reach > high
        return (slope,), [FAILS if is_outside else UNDECIDED]
    if "spread" in table:
        pairs = pairwise(table["spread"])
        differences = tuple(_spreads(results, first, second) for first, second in pairs)
    else:
        differences = tuple(_difference(results, *pair) for pair in pairwise(table["below"]))
    return differences, [_below(d) for d in differences]


def _combined(verdicts: Sequence[str]) -> str:
    """Return FAILS if any verdict is FAILS, HOLDS if all are HOLDS, and UNDECIDED otherwise."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNDECIDED


def _shared(results: Results, labels: Sequence[str]) -> list[int]:
    """Return the replicates that all these curves have finished."""
    finished = {c.label: set(c.replicates) for c in results.curves}
    return sorted(set.intersection(*(finished.get(label, set()) for label in labels)))


def _finals(results: Results, label: str, replicates: Sequence[int]) -> np.ndarray:
    """Return the final regret of a curve in each of these replicates, per silo if `per_silo`."""
    return regrets(results[label], replicates, per_silo(results))[:, -1]


def _difference(results: Results, first: str, second: str) -> Difference:
    """Return the paired difference of the final regrets of two curves, given by label.

    It is NaN if a curve has no finished replicate.
    """
    finished = {curve.label: curve for curve in results.curves}
    if first not in finished or second not in finished:
        return Difference(first, second, math.nan, math.nan)
    return difference(finished[first], finished[second], per_silo(results))


def _exponent(results: Results, labels: Sequence[str], sizes: Sequence[float]) -> Difference:
    """Return the exponent with which the final regret of curves grows with their ``sizes``.

    ``sizes`` has one number for each curve in ``labels``. The exponent is the slope of ln(regret)
    against ln(size), fitted by least squares in each replicate. The result is its mean over
    replicates, with the standard error, as a `Difference`.
    """
    shared = _shared(results, labels)
    if not shared:
        return Difference(EXPONENT, "", math.nan, math.nan, of=EXPONENT)
    x = np.log(np.array(sizes, np.float64))
    x -= x.mean()
    regret = np.array([_finals(results, label, shared) for label in labels])
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = x @ np.log(regret) / (x @ x)
    return Difference(EXPONENT, "", *mean_and_error(slopes), replicates=len(shared), of=EXPONENT)


def _spreads(results: Results, first: Sequence[str], second: Sequence[str]) -> Difference:
    """Return the difference between the spreads of two groups of curves, given by labels.

    The spread of a group is ln(largest / smallest final regret of its curves) in a replicate. The
    difference is computed in each replicate, then averaged.
    """
    names = _common(first), _common(second)
    shared = _shared(results, [*first, *second])
    if not shared:
        return Difference(*names, math.nan, math.nan, of=SPREAD)
    log_spreads = []  # of each group, one value per replicate
    for labels in (first, second):
        regret = np.array([_finals(results, label, shared) for label in labels])
        with np.errstate(divide="ignore", invalid="ignore"):
            log_spreads.append(np.log(regret.max(axis=0) / regret.min(axis=0)))
    a, b = (float(np.exp(values.mean())) for values in log_spreads)
    mean, stderr = mean_and_error(log_spreads[0] - log_spreads[1])
    return Difference(*names, mean, stderr, a, b, len(shared), SPREAD)


def _below(difference: Difference) -> str:
    """Return the verdict on the claim that the difference is negative."""
    # Comparisons with NaN are false, so an unknown difference is undecided.
    if difference.mean + difference.reach < 0.0:
        return HOLDS
    return FAILS if difference.mean - difference.reach > 0.0 else UNDECIDED


def _within(difference: Difference, limit: float) -> str:
    """Return the verdict on the claim that the difference is at most ``limit`` in size."""
    size = abs(difference.mean)
    if size + difference.reach <= limit:
        return HOLDS
    return FAILS if size - difference.reach > limit else UNDECIDED
