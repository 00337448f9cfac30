"""A silo of a federation in phases: LinUCB alone at first, then greedy on the server's model."""

from __future__ import annotations

import numpy as np

from fastfed._kernels import linalg
from fastfed._once import once
from fastfed._validate import InputError
from fastfed.bandits.silo import Silo
from fastfed.protocols.messages import Bits, Broadcast, Report
from fastfed.protocols.phases import LocalEstimate, Model, PhasePlan, check_phase_plan, last_round


class Client(Silo):
    """One client of ROBIN, step by step (huang-2023, Algorithm 1).

    Each round: ``select(actions)``, play the action, ``observe(reward)``. When ``due`` is true,
    send ``estimate()`` to the server (``fastfed.Averager``) and hand its model to ``adopt``. A
    client draws no noise: the server is trusted, other clients are not.
    """

    def __init__(self, plan: PhasePlan, index: int = 0) -> None:
        self.phases = check_phase_plan(plan)
        self._statistic = np.zeros(plan.local.statistic_size)
        self._sent = 0
        super().__init__(plan.local, index)

    @property
    def due(self) -> bool:
        """Whether an estimate has to be sent before the next round."""
        return self._wanted() > self._sent

    @property
    def reported(self) -> bool:
        """Whether an estimate is out whose model has not come back."""
        return self._sent > self.release

    @property
    def greedy(self) -> bool:
        """Whether the server's model is played, and nothing of the client's own."""
        return self.release > 0

    def _wanted(self) -> int:
        """Models that must have come before the next round."""
        ended = self.phases.phase_of(self.round + 1) - 1
        return max(0, min(ended - self.phases.initial + 1, len(self.phases.releasing)))

    def select(self, actions: object) -> int:
        """Index of the action to play for the next user; ``actions`` is (K, d)."""
        if self.due or self.reported:
            raise InputError(
                f"silo {self.index} must send its estimate and adopt the model of phase "
                f"{self.phases.releasing[self.release] + 1} before round {self.round + 1}"
            )
        return super().select(actions)

    def _radius(self) -> float:
        return 0.0 if self.greedy else super()._radius()

    def _learn(self, x: np.ndarray, y: float) -> None:
        linalg.accumulate(self._statistic, x, y)
        if not self.greedy:
            self._estimate.observe(x, y)

    @once
    def estimate(self) -> LocalEstimate:
        """The least-squares estimate of what was seen since the last one; that is then forgotten.

        Of the initial phases all rounds count, V being set to 0 in greedy phases only.
        """
        if not self.due:
            raise InputError(f"silo {self.index} has no estimate due after round {self.round}")
        phase = self.phases.releasing[self._sent]
        (values,) = linalg.least_squares(self._statistic[None], self.plan.dimension)
        self._statistic = np.zeros(self.plan.statistic_size)
        self._sent += 1
        return LocalEstimate(phase, values, self.index)

    @once
    def adopt(self, model: Model) -> None:
        """Play the next phase with the server's model."""
        if not isinstance(model, Model):
            raise InputError(f"model must be a Model, got {type(model).__name__}")
        waits = self.phases.releasing[self.release] + 1 if self.reported else None
        if model.phase != waits:
            raise InputError(
                f"silo {self.index} waits for "
                f"{f'the model of phase {waits}' if waits else 'no model'}, "
                f"got that of phase {model.phase}"
            )
        if model.values.shape != (self.plan.dimension,) or not np.isfinite(model.values).all():
            raise InputError(f"model must hold {self.plan.dimension} finite numbers")
        self.release += 1
        self._estimate.w[:] = 0.0
        self._estimate.theta[:] = model.values
        self._second_bonus = 0.0

    def report(self) -> Report | Bits:
        raise InputError("a client in phases sends estimates: use estimate()")

    def receive(self, broadcast: Broadcast) -> None:
        raise InputError("a client in phases takes models: use adopt(model)")


def rounds_between(plan: PhasePlan) -> list[tuple[int, int, int]]:
    """The greedy phases: (phase whose estimates made the model, first round, last round)."""
    return [
        (phase, last_round(phase) + 1, min(last_round(phase + 1), plan.horizon))
        for phase in plan.releasing
    ]
