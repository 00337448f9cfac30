"""Progress and snapshots of a curve with experts.

Noise and losses are functions of the seed and their number, and so are not part of the state.
Between two exchanges, the state of a curve is the current decision, the sums of server and clients,
and the regret so far. Within a phase of trees (experts/frank_wolfe.py), the state also contains the
gradients on the path to the current leaf.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from fastfed.experts.plan import ExpertPlan
from fastfed.simulation.driver import Progress
from fastfed.simulation.snapshots import Snapshot, fields_of, into_fields, report_progress

#: Seconds between two reports of progress if stretches are run one by one.
REPORT_SECONDS = 0.25


class Course:
    """The state of one curve that is being run.

    Parameters
    ----------
    plan : ExpertPlan
        The curve's plan.
    parts : dict
        Objects that exchanges change, by name. The class of each object lists the changing
        attributes in ``KEPT``. If one class has no ``KEPT``, for example in a different package,
        there are no snapshots. The object "decider" makes the first decision by ``start()``.
    walks : experts.Scores, optional
        The clients, if they visit the leaves of trees in order.
    snapshot : Snapshot, optional
        Snapshot from which the curve resumes, and into which its state is written.
    progress : callable, optional
        Called with the rounds since the last call. It may raise an exception to stop.

    Attributes
    ----------
    x : ndarray, shape (d,)
        The current decision.
    made : int
        Number of completed exchanges.
    lost : ndarray of int64, shape (d,)
        Cumulative loss of every expert, in multiples of the losses' unit. It is zero if decisions
        are not made in blocks of rounds.
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
        self.plan = plan
        self.x = plan.move(None, parts["decider"].start())
        self.made = 0
        self.lost = np.zeros(plan.experts, np.int64)
        self._parts, self._walks = {"course": self, **parts}, walks
        self._snapshot, self._progress = snapshot, progress
        self._reported_round, self._report_time = 0, time.monotonic()

    def begin(self, until: int) -> int:
        """Resume from the snapshot, and return its round.

        Return 0 and start from the beginning in three cases: there is no snapshot, the snapshot is
        later than round ``until``, or its arrays do not have this state's names and shapes.
        """
        stored = self._snapshot.kept() if self._snapshot is not None else None
        if stored is None or stored.round > until:
            return 0
        arrays = stored.arrays
        phase = int(arrays["phase"]) if "phase" in arrays else 0
        if phase and self._walks is not None:
            # Begin the phase first: this creates the walk whose attributes are restored below.
            self._walks.begin(phase)
        fresh = self._state()
        if fresh is None or fresh.keys() != arrays.keys():
            return 0
        if any(array.shape != arrays[name].shape for name, array in fresh.items()):
            return 0
        into_fields(self._objects(), arrays)
        self.reached(stored.round)
        return stored.round

    def reached(self, round: int) -> None:
        """Report the progress since the last call, and write a snapshot if one is due.

        ``round`` is the last completed round.
        """
        new_rounds, self._reported_round = round - self._reported_round, round

        def write_snapshot(snapshot: Snapshot) -> None:
            """Write the current state; do nothing if `_state` returns None."""
            state = self._state()
            if state is not None:
                snapshot.keep(round, state)

        self._report_time = time.monotonic()
        report_progress(self._snapshot, write_snapshot, new_rounds, self._progress)

    def passed(self, round: int) -> None:
        """Call `reached` unless its last call is less than ``REPORT_SECONDS`` ago."""
        if time.monotonic() - self._report_time >= REPORT_SECONDS:
            self.reached(round)

    def _objects(self) -> dict[str, Any]:
        """Return name -> object, for the objects whose attributes a snapshot contains."""
        walk = self._walks.walking if self._walks is not None else None
        return self._parts if walk is None else {**self._parts, "walk": walk}

    def _state(self) -> dict[str, np.ndarray] | None:
        """Return the arrays of a snapshot by name; None if no snapshot can be written.

        No snapshot can be written if the class of an object does not define ``KEPT``, the list of
        attributes that exchanges change.
        """
        objects = self._objects()
        arrays = fields_of(objects)
        if arrays is not None and "walk" in objects:
            arrays["phase"] = np.asarray(objects["walk"].phase.number)
        return arrays
