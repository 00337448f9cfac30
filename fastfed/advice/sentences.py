"""Sentences of an answer: whether to share, by which system, at what price, and from where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastfed.advice.answer import Regret, Verdict
from fastfed.advice.systems import LESS
from fastfed.reporting.table import plus_minus

if TYPE_CHECKING:
    from fastfed.advice.successive_halving import Size


def scaling_text(size: Size, silos: int, horizon: int, falling: bool) -> str:
    """Say how the last stage was simulated; ``falling``: with a pace that falls."""
    if size.rounds < horizon:
        pace = "extended at their last pace: rather too much regret than too little"
        if falling:
            pace = (
                "extended: one model at its last pace, silos that learn for themselves at a pace "
                "that goes on falling; approximate, more seconds simulate more"
            )
        first = f"the first {size.rounds} of {horizon} rounds of all {silos} silos"
        return f"simulated are {first}, {pace}"
    if size.silos < silos:
        return (
            f"simulated are {size.silos} silos that stand for all {silos}, noise and radius "
            "scaled: approximate; more seconds play all"
        )
    return f"simulated are all {silos} silos over all {horizon} rounds"


def unequal_text(held: Sequence[int], horizon: int) -> str:
    """Say that silos hold unequal numbers of records, and what that means for the figures."""
    return (
        f"silos hold from {min(held)} to {max(held)} records, and each is simulated for {horizon} "
        "rounds: a silo with more of them gains less by sharing than the figures say, and the "
        "largest may do better alone"
    )


def figure(regret: Regret) -> str:
    """Format a regret with its standard error."""
    return plus_minus(regret.mean, regret.stderr)


def verdict_text(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    *,
    budget: tuple[float, float],
    looked: bool,
    differ: bool,
    fallback: float | None,
) -> str:
    """Say whether to share under a trust model, by which system, and at what price.

    ``regrets`` are those of the last stage, by name; ``differ``: silos may differ, so that one
    model for all may lose by itself; ``fallback``: epsilon of a secure sum if all others collude.
    """
    if verdict.helps:
        text = _shared(verdict, regrets, differ)
    else:
        text = _apart(verdict, regrets, budget, looked, differ)
    if fallback is not None:
        text += f"; if all other silos collude, its epsilon is {fallback:.3g}"
    return text + "."


def _alone(verdict: Verdict, regrets: Mapping[str, Regret]) -> str:
    """The regret of each silo alone, and how it explores."""
    less = "" if verdict.alone == "alone" else " (which explores less)"
    return f"{figure(regrets[verdict.alone])}{less}"


def _shared(verdict: Verdict, regrets: Mapping[str, Regret], differ: bool) -> str:
    """Say by which system to share, and what privacy costs."""
    best, open_ = regrets[verdict.best], regrets["no privacy"]
    less = regrets.get(LESS)
    text = f"share by {verdict.best}"
    if verdict.alone != LESS and less is not None and less.mean < best.mean + 2.0 * best.stderr:
        text += (
            " if regret must have a proven bound; if not, keep apart and explore less "
            f"({figure(less)})"
        )
    text += f": regret {figure(best)} per silo, alone {_alone(verdict, regrets)}; "
    if differ:
        text += f"one model for all, without privacy, would leave {figure(open_)}"
    else:
        price = best.mean - open_.mean
        text += f"privacy costs {price:.3g} of it, sharing without would leave {figure(open_)}"
    if verdict.level:
        text += f"; no worse within error: {', '.join(verdict.level)}"
    return text


def _apart(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    budget: tuple[float, float],
    looked: bool,
    differ: bool,
) -> str:
    """Say that sharing does not pay, and from where it would."""
    best, alone = regrets[verdict.best], regrets[verdict.alone]
    open_, chance = regrets["no privacy"], regrets["random"]
    mean, stderr = verdict.against_alone
    much = "no less than" if mean > 2.0 * stderr else "not clearly less than"
    why = "privacy is too costly for sharing to help"
    if differ and open_.mean >= alone.mean:
        why = "silos differ and privacy costs too much for sharing to help"
    text = (
        f"do not share under this trust model at ({budget[0]:g}, {budget[1]:g}): {why}; "
        f"{verdict.best}, the best, has regret {figure(best)} per silo, {much} each silo alone "
        f"with {_alone(verdict, regrets)}"
    )
    if best.mean > chance.mean - 2.0 * (chance.stderr + best.stderr):
        text += f", and no less than chance with {figure(chance)}"
    if open_.mean >= alone.mean:
        what = "one model for all" if differ else "sharing"
        text += f"; nor would {what} without privacy help ({figure(open_)})"
    if not looked:
        return text
    ways = []
    if verdict.pays_from_epsilon is not None:
        ways.append(f"epsilon {verdict.pays_from_epsilon:.2g}")
    if verdict.pays_from_silos is not None:
        ways.append(f"{float(verdict.pays_from_silos):.2g} silos".replace("e+0", "e"))
    if not ways:
        return text + "; neither more silos nor a larger epsilon was found to change that"
    return f"{text}; it would pay from about {' or '.join(ways)}, all else equal"
