"""What results say: whether sharing pays against the baseline, and what a reader should know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastfed.privacy.certificate import LARGE_DELTA
from fastfed.reporting.text import plus_minus, shortfall
from fastfed.results.paired import LOCAL_SYSTEM, Difference, baseline_differences, difference
from fastfed.results.results import CurveResult, Results

#: Largest number of curves that are all named in the sentence or in a note.
NAMED = 8
#: With more curves than ``NAMED``, the sentence names the curves of a group if it has at most this
#: number of curves, and a note names this number of curves.
FEW = 3
#: Above this epsilon a guarantee lets odds change by a factor of more than 22 000.
LARGE_EPSILON = 10.0
#: Below this epsilon a guarantee is stronger than almost all in use. It may be a typing error.
SMALL_EPSILON = 0.01
#: The algorithm that plays uniformly random actions.
CHANCE = "random"
#: The subject of a clause, and its verbs for a difference below, above and not distinguishable from
#: zero. The key is True if the baseline is a system whose silos share nothing.
VERBS = {
    True: ("sharing", "pays for", "does not pay for", "is undecided for"),
    False: ("regret", "is lower for", "is higher for", "is undecided for"),
}


def sharing_sentence(results: Results) -> str:
    """Return a sentence that compares curves' final regret with their baseline; "" without one.

    A difference counts if it is larger than two standard errors. With few replicates it must be
    larger than more standard errors, see `beyond`.
    """
    differences = [pair for pair in baseline_differences(results) if pair is not None]
    is_local_baseline = all(results[pair.second].algorithm == LOCAL_SYSTEM for pair in differences)
    if is_local_baseline:
        # Curves that send nothing, such as random actions, share nothing.
        differences = [pair for pair in differences if results[pair.first].bytes_sent > 0]
    if not differences:
        return ""
    baselines = {pair.second: pair.second_regret for pair in differences}
    baseline_text = " or ".join(f"{label} ({value:.4g})" for label, value in baselines.items())
    if len(baselines) > 2:
        baseline_text = "the baseline of the same size"
    subject, *verbs = VERBS[is_local_baseline]
    of_all = f" of {len(differences)} curves" if len(differences) > NAMED else ""
    clauses: list[str] = []
    for verb, sign in zip(verbs, (-1, 1, 0), strict=True):
        if group := [pair for pair in differences if pair.sign == sign]:
            clauses.append(f"{'it' if clauses else subject} {verb} {_group_text(group, of_all)}")
    text = f"Against {baseline_text}, {'; '.join(clauses)}"
    single = max(pair.replicates for pair in differences) < 2
    return f"{text} (one replicate has no standard error)." if single else f"{text}."


def _group_text(group: Sequence[Difference], of_all: str) -> str:
    """Return a text with the curves of a group and their differences to the baseline.

    If all groups together have too many curves to name each, ``of_all`` is a text such as " of 20
    curves"; otherwise it is empty. With ``of_all``, a group of more than ``FEW`` curves is not
    named: its text is the number of its curves, then ``of_all``, then the range of differences.
    """
    ordered = sorted(group, key=lambda pair: pair.mean)
    if of_all and len(group) > FEW:
        return (
            f"{len(group)}{of_all} (from {signed_text(ordered[0])} to {signed_text(ordered[-1])})"
        )
    names = [f"{pair.first} ({signed_text(pair)})" for pair in ordered]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def signed_text(difference: Difference) -> str:
    """Format a difference and its standard error, with its sign: -1870 ± 31."""
    sign = "+" if difference.mean > 0.0 else ""
    return sign + plus_minus(difference.mean, difference.stderr)


def difference_cells(results: Results) -> list[str]:
    """Return the difference of every curve to its baseline as text; "-" without a baseline.

    Return an empty list if no curve has a baseline.
    """
    differences = baseline_differences(results)
    if not any(differences):
        return []
    return ["-" if pair is None else signed_text(pair) for pair in differences]


def notes_on_curves(results: Results) -> list[str]:
    """Return notes that readers of the results need, each about the curves that it names.

    Notes are about curves without the privacy that they claim, curves with a large or tiny epsilon
    or a large delta, curves not shown to be better than random actions, and unusual environments.
    """
    reasons: dict[str, list[str]] = {}
    large_deltas: dict[str, list[str]] = {}
    for curve in results.curves:
        if reason := shortfall(curve.certificate):
            reasons.setdefault(reason, []).append(curve.label)
        for caveat in curve.certificate["caveats"]:
            if LARGE_DELTA in caveat:
                large_deltas.setdefault(caveat, []).append(curve.label)
    notes = [f"{_listed(labels)}: {reason}" for reason, labels in reasons.items()]
    exact = [(curve.label, curve.certificate["exact"] or {}) for curve in results.curves]
    if loose := [name for name, pair in exact if pair.get("epsilon", 0.0) > LARGE_EPSILON]:
        notes.append(
            f"an epsilon above {LARGE_EPSILON:g} protects hardly anybody: {_listed(loose)}"
        )
    if tight := [name for name, pair in exact if 0.0 < pair.get("epsilon", 0.0) < SMALL_EPSILON]:
        notes.append(
            f"an epsilon below {SMALL_EPSILON:g} is far below the usual 0.1 to 10, and needs much "
            f"noise: {_listed(tight)}"
        )
    notes += [f"{_listed(labels)}: {caveat}" for caveat, labels in large_deltas.items()]
    useless, estimated = _not_better_than_random(results)
    if useless:
        estimate_note = " (whose regret is estimated from a few rounds)" if estimated else ""
        notes.append(
            f"not shown to be better than random actions{estimate_note}: {_listed(useless)}"
        )
    cautious: dict[str, list[str]] = {}
    for curve in results.curves:
        for text in curve.cautions:
            cautious.setdefault(text, []).append(curve.label)
    for text, labels in cautious.items():
        concerns_all = len(labels) == len(results.curves)
        notes.append(text if concerns_all else f"{_listed(labels)}: {text}")
    return notes


def _not_better_than_random(results: Results) -> tuple[list[str], bool]:
    """Return labels of curves not shown to be better than random actions, and a bool.

    Each curve is compared with the curve of random actions of the same size. If there is no such
    curve, it is compared with an estimate of the regret of random actions. The bool is True if this
    happened for any curve.
    """
    random = [curve for curve in results.curves if curve.algorithm == CHANCE]
    estimated = False
    useless: list[str] = []
    for curve in results.curves:
        if curve.algorithm == CHANCE:
            continue
        to_random = [
            difference(curve, chance)
            for chance in random
            if (curve.silos, curve.dimension) == (chance.silos, chance.dimension)
        ]
        if not to_random and (unpaired := _difference_to_random(curve)) is not None:
            estimated, to_random = True, [unpaired]
        if any(_is_not_below_zero(pair) for pair in to_random):
            useless.append(curve.label)
    return useless, estimated


def _difference_to_random(curve: CurveResult) -> Difference | None:
    """Return the final regret of a curve minus the estimated regret of random actions.

    Return None if the estimate is unknown, or is 0 because all actions are equally good. Also
    return None if silos skip rounds by their clocks, since the estimate counts all rounds.
    """
    if curve.random_regret is None or "clock" in curve.parameters or not curve.random_regret[0]:
        return None
    end, (mean, stderr) = curve.final(), curve.random_regret
    return Difference(
        curve.label,
        CHANCE,
        end["mean"] - mean,
        math.hypot(end["stderr"], stderr),
        end["mean"],
        mean,
        len(curve.replicates),
    )


def _is_not_below_zero(difference: Difference) -> bool:
    """Return True unless a difference is negative beyond its margin of error.

    A single replicate has no margin: then only the sign counts.
    """
    return difference.mean >= 0.0 if difference.replicates < 2 else difference.sign >= 0


def _listed(labels: Sequence[str]) -> str:
    """Return a text that lists labels.

    If there are more than ``NAMED``, it names the first ``FEW`` and counts the others.
    """
    named = labels if len(labels) <= NAMED else labels[:FEW]
    # Labels of sweeps have commas inside.
    separator = "; " if any("," in label for label in named) else ", "
    others_text = f" and {len(labels) - FEW} more" if len(labels) > NAMED else ""
    return separator.join(named) + others_text
