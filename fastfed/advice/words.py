"""The sentences of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfed.advice.result import Regret, Verdict
from fastfed.report.table import plus_minus

if TYPE_CHECKING:
    from fastfed.advice.contest import Size


def scaling_words(size: Size, silos: int, horizon: int) -> str:
    """How the last stage was simulated."""
    if size.rounds < horizon:
        return (
            f"simulated are the first {size.rounds} of {horizon} rounds of all {silos} silos, "
            "extended at their last pace: rather too much regret than too little"
        )
    if size.silos < silos:
        return (
            f"simulated are {size.silos} silos that stand for all {silos}, noise and radius "
            "scaled: approximate; more seconds play all"
        )
    return f"simulated are all {silos} silos over all {horizon} rounds"


def verdict_words(
    verdict: Verdict, best: Regret, alone: Regret, open_: Regret, chance: Regret, *, looked: bool
) -> str:
    """Whether to share under this trust, how, and at what price."""
    ours, theirs = figure(best), figure(alone)
    mean, stderr = verdict.against_alone
    if verdict.helps:
        price = best.mean - open_.mean
        text = (
            f"share by {verdict.best}: regret {ours} per silo, alone {theirs}; "
            f"privacy costs {price:.3g} of it, sharing without would leave {figure(open_)}"
        )
        if verdict.level:
            text += f"; no worse within error: {', '.join(verdict.level)}"
        return text + "."
    much = "no less than" if mean > 2.0 * stderr else "not clearly less than"
    text = (
        f"privacy is too costly for sharing to help: {verdict.best}, the best, has regret {ours} "
        f"per silo, {much} each silo alone with {theirs}"
    )
    if best.mean > chance.mean - 2.0 * (chance.stderr + best.stderr):
        text += f", and no less than chance with {figure(chance)}"
    if open_.mean >= alone.mean:
        text += f"; nor would sharing without privacy help ({figure(open_)})"
    if not looked:
        return text + "."
    ways = []
    if verdict.pays_from_epsilon is not None:
        ways.append(f"epsilon {verdict.pays_from_epsilon:.2g}")
    if verdict.pays_from_silos is not None:
        ways.append(f"{float(verdict.pays_from_silos):.2g} silos".replace("e+0", "e"))
    if not ways:
        return text + "; neither more silos nor a larger epsilon was found to change that."
    return f"{text}; it would pay from about {' or '.join(ways)}, all else equal."


def figure(regret: Regret) -> str:
    """A regret with its error."""
    return plus_minus(regret.mean, regret.stderr)
