"""What every engine is, and how it is told that a pass cannot be played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fastfed.simulation.experiment import Experiment
from fastfed.simulation.outcome import Outcome
from fastfed.simulation.passes import Pass

#: Hears agent-rounds as they are played; fewer than none where a pass has to begin again.
Progress = Callable[[int], None]

#: The usual reason why workers of a script do not start: they run the script again.
GUARD = 'in a script, what plays belongs under `if __name__ == "__main__":`'


class EngineError(RuntimeError):
    """The workers, not the experiment, are why it cannot be finished: one sentence."""


@dataclass(frozen=True)
class Played:
    """A pass that was played to its end."""

    work: Pass
    outcomes: list[Outcome]  # one for each of its curves
    seconds: float
    threads: int


class Engine(Protocol):
    """Plays passes; which engine, and in what order they end, changes no bit of the outcomes."""

    @property
    def threads(self) -> int:
        """What plays at once; 0 while a cluster has no workers yet."""
        ...

    def play(
        self, experiment: Experiment, passes: list[Pass], progress: Progress | None = None
    ) -> Iterator[Played]:
        """Every pass as it ends. What an environment raises is raised here too.

        Where workers can die, a pass that ends every worker which plays it is named by an
        EngineError after all others have been played.
        """
        ...


class Tally:
    """How far each pass has come, so that one which begins again is not counted twice."""

    def __init__(self, experiment: Experiment, progress: Progress | None) -> None:
        self._experiment, self._progress = experiment, progress
        self._seen: dict[Pass, int] = {}
        self._ended: set[Pass] = set()
        # Workers of a cluster are heard in another thread than the one that plays.
        self._lock = threading.Lock()

    def heard(self, work: Pass, agent_rounds: int) -> None:
        """So much of a pass has been played in all."""
        with self._lock:
            more = 0 if work in self._ended else agent_rounds - self._seen.get(work, 0)
            self._seen[work] = agent_rounds
        if more and self._progress is not None:
            self._progress(more)

    def ended(self, work: Pass) -> None:
        """All of it has been played."""
        self.heard(work, self._experiment.agent_rounds(work.positions))
        self._ended.add(work)
