"""Passes whose workers died: played again, then alone, and named when they always do that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field

from fastfed.simulation.engines.base import EngineError, Played
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.passes import Pass

#: Workers that a pass may lose while others play beside it: those may be why (memory).
MOST_TRIES = 3

#: When so many passes have died and none was played, it is not the passes.
HOPELESS = 8


@dataclass(frozen=True)
class Suspect:
    """A pass that has lost too many workers."""

    work: Pass
    end: str  # how the last of them ended


@dataclass
class Left:
    """What a round did not play."""

    suspects: list[Suspect] = field(default_factory=list)
    untried: list[Pass] = field(default_factory=list)


#: (passes, whether one at a time): yields what is played, returns what is not.
Round = Callable[[list[Pass], bool], Generator[Played, None, Left]]


def play_rounds(experiment: Experiment, passes: list[Pass], play_round: Round) -> Iterator[Played]:
    """All passes together; then those that lost their workers alone, curve by curve.

    EngineError names the ones that die even so, after everything else has been played.
    """
    left = yield from play_round(passes, False)
    waiting = deque([*_singles(s.work for s in left.suspects), *left.untried])
    dead: list[Suspect] = []
    lived = not left.untried
    while waiting and (lived or len(dead) < HOPELESS):
        died = (yield from play_round([waiting.popleft()], True)).suspects
        dead += died
        lived = lived or not died
    if dead:
        raise EngineError(_sentence(experiment, dead, len(waiting)))


def _singles(passes: Iterable[Pass]) -> Iterator[Pass]:
    """Curve by curve: one of those that are played together may be what ends all of them."""
    for work in passes:
        for position in work.positions:
            yield Pass(work.replicate, (position,))


def _sentence(experiment: Experiment, dead: list[Suspect], untried: int) -> str:
    cells = [
        f'curve "{experiment.curves[position].label}", replicate {suspect.work.replicate}'
        for suspect in dead
        for position in suspect.work.positions
    ]
    shown = "; ".join(cells[:3]) + (f"; and {len(cells) - 3} more" if len(cells) > 3 else "")
    rest = f"{untried} more passes were not tried" if untried else "all others are played"
    return f"{shown}: every worker that played it ended ({dead[-1].end}), alone too; {rest}"
