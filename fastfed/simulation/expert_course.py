"""How far a curve of experts has come: what its snapshots keep, and who hears of it.

Noise and losses are functions of their keys. So between two exchanges a curve is the decision in
use, what server and clients have added up, and the regret so far; inside a phase of trees, also the
gradients on the path to the current leaf.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from fastfed.experts.plan import ExpertPlan
from fastfed.simulation.driver import Progress
from fastfed.simulation.snapshots import Snapshot, fields_of, into_fields, tell

#: Seconds between two words on how far a curve has come, where single stretches are played.
SECONDS_HEARD = 0.25


class Course:
    """One curve under way.

    Parameters
    ----------
    plan : ExpertPlan
        Its plan.
    parts : dict
        What its exchanges change, by name: objects whose classes name it as ``KEPT``. With a
        "decider", whose ``start()`` is the first decision. One of a class without such names of its
        own, such as another package's, has no snapshots.
    walks : object, optional
        Clients that walk through trees: `experts.Scores`.
    snapshot : Snapshot, optional
        Where the curve goes on from, and what it is kept in.
    progress : callable, optional
        Hears of rounds; may raise to stop.

    Attributes
    ----------
    x : ndarray, shape (d,)
        The decision in use.
    made : int
        Exchanges completed.
    lost : ndarray of int64, shape (d,)
        What every expert has lost, in whole units, where the decisions of a block are made at once.
    """

    KEPT: ClassVar = ("x", "made", "lost")

    def __init__(
        self,
        plan: ExpertPlan,
        parts: dict[str, Any],
        walks: Any = None,
        snapshot: Snapshot | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.x = plan.move(None, parts["decider"].start())
        self.made = 0
        self.lost = np.zeros(plan.experts, np.int64)
        self._parts, self._walks = {"course": self, **parts}, walks
        self._snapshot, self._progress = snapshot, progress
        self._told, self._heard = 0, time.monotonic()

    def begin(self, until: int) -> int:
        """Go on from the snapshot, if there is one that fits: the rounds played by then."""
        kept = self._snapshot.kept() if self._snapshot is not None else None
        if kept is None or kept.round > until:
            return 0
        arrays = kept.arrays
        phase = int(arrays["phase"]) if "phase" in arrays else 0
        if phase and self._walks is not None:
            self._walks.begin(phase)
        found = self._state()
        if found is None or found.keys() != arrays.keys():
            return 0
        if any(array.shape != arrays[name].shape for name, array in found.items()):
            return 0
        into_fields(self._objects(), arrays)
        self.reached(kept.round)
        return kept.round

    def reached(self, round: int) -> None:
        """The rounds up to this one have been played: tell of them, and keep them now and then."""
        rounds, self._told = round - self._told, round

        def keep(snapshot: Snapshot) -> None:
            state = self._state()
            if state is not None:
                snapshot.keep(round, state)

        self._heard = time.monotonic()
        tell(self._snapshot, keep, rounds, self._progress)

    def passed(self, round: int) -> None:
        """As `reached`, where that comes so often that most of it is not heard of."""
        if time.monotonic() - self._heard >= SECONDS_HEARD:
            self.reached(round)

    def _objects(self) -> dict[str, Any]:
        walk = self._walks.walking if self._walks is not None else None
        return self._parts if walk is None else {**self._parts, "walk": walk}

    def _state(self) -> dict[str, np.ndarray] | None:
        objects = self._objects()
        found = fields_of(objects)
        if found is not None and "walk" in objects:
            found["phase"] = np.asarray(objects["walk"].phase.number)
        return found
