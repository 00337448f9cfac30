"""What results say: whether sharing pays against the baseline, and what a reader should know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastfed.privacy.certificate import LARGE_DELTA
from fastfed.reporting.text import plus_minus, shortfall
from fastfed.results.paired import ALONE, Difference, baseline_differences, difference
from fastfed.results.results import CurveResult, Results

#: Largest number of curves that the sentence names.
NAMED = 8
#: Number of curves that a note names if it is about more than ``NAMED``.
FEW = 3
#: Above this epsilon a guarantee changes odds by a factor of more than 22 000.
LARGE_EPSILON = 10.0
#: The algorithm that plays uniformly random actions.
CHANCE = "random"
#: Verbs for a difference below, above and not distinguishable from zero, by whether the baseline
#: are silos that share nothing.
VERBS = {
    True: ("sharing", "pays for", "does not pay for", "is undecided for"),
    False: ("regret", "is lower for", "is higher for", "is undecided for"),
}


def sharing_sentence(results: Results) -> str:
    """Return a sentence about which curves end below their baseline; "" without a baseline.

    A difference counts if it is beyond two standard errors, more if replicates are few.
    """
    found = [each for each in baseline_differences(results) if each is not None]
    alone = all(results[each.second].algorithm == ALONE for each in found)
    if alone:
        # Curves that send nothing, such as random actions, share nothing.
        found = [each for each in found if results[each.first].bytes_sent > 0]
    if not found:
        return ""
    baselines = {each.second: each.second_regret for each in found}
    named = " or ".join(f"{label} ({value:.4g})" for label, value in baselines.items())
    if len(baselines) > 2:
        named = "the baseline of the same size"
    subject, *verbs = VERBS[alone]
    of_all = f" of {len(found)} curves" if len(found) > NAMED else ""
    clauses: list[str] = []
    for verb, sign in zip(verbs, (-1, 1, 0), strict=True):
        if group := [each for each in found if each.sign == sign]:
            clauses.append(f"{'it' if clauses else subject} {verb} {_names(group, of_all)}")
    text = f"Against {named}, {'; '.join(clauses)}"
    few = max(each.replicates for each in found) < 2
    return f"{text} (one replicate has no standard error)." if few else f"{text}."


def _names(group: Sequence[Difference], of_all: str) -> str:
    """Return the curves of a group with their differences, or how many there are."""
    ordered = sorted(group, key=lambda each: each.mean)
    if of_all:
        return f"{len(group)}{of_all} (from {signed(ordered[0])} to {signed(ordered[-1])})"
    names = [f"{each.first} ({signed(each)})" for each in ordered]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def signed(difference: Difference) -> str:
    """Format a difference and its standard error, with its sign: -1870 ± 31."""
    sign = "+" if difference.mean > 0.0 else ""
    return sign + plus_minus(difference.mean, difference.stderr)


def difference_cells(results: Results) -> list[str]:
    """Return the difference of every curve to its baseline as text; "-" without a baseline.

    Return an empty list if no curve has a baseline.
    """
    found = baseline_differences(results)
    if not any(found):
        return []
    return ["-" if each is None else signed(each) for each in found]


def notes_on_curves(results: Results) -> list[str]:
    """Return notes on curves that lack their privacy, protect hardly anybody, or learn nothing."""
    reasons: dict[str, list[str]] = {}
    for curve in results.curves:
        if reason := shortfall(curve.certificate):
            reasons.setdefault(reason, []).append(curve.label)
    notes = [f"{_listed(labels)}: {reason}" for reason, labels in reasons.items()]
    exact = ((curve.label, curve.certificate["exact"] or {}) for curve in results.curves)
    if loose := [name for name, pair in exact if pair.get("epsilon", 0.0) > LARGE_EPSILON]:
        notes.append(
            f"an epsilon above {LARGE_EPSILON:g} protects hardly anybody: {_listed(loose)}"
        )
    large: dict[str, list[str]] = {}
    for curve in results.curves:
        for caveat in curve.certificate["caveats"]:
            if LARGE_DELTA in caveat:
                large.setdefault(caveat, []).append(curve.label)
    notes += [f"{_listed(labels)}: {caveat}" for caveat, labels in large.items()]
    random = [curve for curve in results.curves if curve.algorithm == CHANCE]
    estimated = False
    useless: list[str] = []
    for curve in results.curves:
        if curve.algorithm == CHANCE:
            continue
        found = [
            difference(curve, chance)
            for chance in random
            if (curve.silos, curve.dimension) == (chance.silos, chance.dimension)
        ]
        if not found and (unpaired := _difference_to_random(curve)) is not None:
            estimated, found = True, [unpaired]
        if any(_not_below(each) for each in found):
            useless.append(curve.label)
    if useless:
        how = " (whose regret is estimated from a few rounds)" if estimated else ""
        notes.append(f"not shown to be better than random actions{how}: {_listed(useless)}")
    notes += dict.fromkeys(text for curve in results.curves for text in curve.cautions)
    return notes


def _difference_to_random(curve: CurveResult) -> Difference | None:
    """Return the difference of a curve to the estimated regret of random actions, if it is known.

    The estimate counts all rounds, so it says nothing about silos that skip some by their clocks.
    It is zero if all actions are equally good.
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


def _not_below(found: Difference) -> bool:
    """Return True unless a difference is negative; a single replicate has no margin."""
    return found.mean >= 0.0 if found.replicates < 2 else found.sign >= 0


def _listed(labels: Sequence[str]) -> str:
    """Return labels as a list; of more than ``NAMED`` only the first few are named."""
    named = labels if len(labels) <= NAMED else labels[:FEW]
    # Labels of sweeps have commas inside.
    separator = "; " if any("," in label for label in named) else ", "
    more = f" and {len(labels) - FEW} more" if len(labels) > NAMED else ""
    return separator.join(named) + more
