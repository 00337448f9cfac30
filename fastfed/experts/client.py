"""A client of a federation that predicts from experts."""

from __future__ import annotations

import numpy as np

from fastfed._once import Once, once
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, array, integer
from fastfed.experts.messages import ExpertChoice, ExpertReport
from fastfed.experts.plan import ExpertPlan, Gradient, check_expert_plan


class ExpertClient(Once):
    """One client, step by step (gao-2024, Algorithms 1 and 4).

    First hand it the server's ``start()``. Before each round: while ``due`` is true, send
    ``report()`` to the server and hand its answer to ``receive``. Then play ``x``, weights of the
    d experts (all on one of them: ``expert``), and ``observe`` the loss. A bare
    ``ExpertClient(plan)`` draws its noise from the operating system; pass ``fastfed.SeededNoise``
    only to simulate.
    """

    def __init__(self, plan: ExpertPlan, index: int = 0, noise: NoiseSource | None = None) -> None:
        self.plan = check_expert_plan(plan)
        self.index = integer("index", index, at_least=0, at_most=plan.silos - 1)
        self.round = 0
        self.release = -1
        self.clipped_losses = 0
        self._collector = plan.collector(self.index, noise if noise is not None else SystemNoise())
        self._x: np.ndarray | None = None
        self._sent = 0

    @property
    def x(self) -> np.ndarray:
        """What is played, weights (d,) that add up to 1."""
        if self._x is None:
            raise InputError("x needs the server's start(): hand it to receive")
        return self._x

    @property
    def expert(self) -> int | None:
        """The one expert that is played, if it is one."""
        best = int(self.x.argmax())
        return best if self.x[best] == 1.0 else None

    @property
    def due(self) -> bool:
        """Whether a report has to be sent before the next round."""
        if self.round == self.plan.horizon:
            return False
        before = self.plan.exchanges_before(self.round + 1)
        return self._sent == self.release and before > self._sent

    @once
    def report(self) -> ExpertReport:
        """What to send in the next exchange."""
        if not self.due:
            raise InputError(f"client {self.index} has no report due before round {self.round + 1}")
        values = self._collector.values(self._sent + 1, self.x)
        self._sent += 1
        return ExpertReport(self._sent, values, self.index)

    @once
    def receive(self, choice: ExpertChoice) -> None:
        """Take the server's answer."""
        if not isinstance(choice, ExpertChoice):
            raise InputError(f"choice must be an ExpertChoice, got {type(choice).__name__}")
        waits = self.release + 1
        if choice.release != waits or waits > max(self._sent, 0):
            raise InputError(
                f"client {self.index} waits for "
                f"{f'choice {waits}' if waits <= max(self._sent, 0) else 'no choice'}, "
                f"got choice {choice.release}"
            )
        if choice.expert is not None and choice.expert >= self.plan.experts:
            raise InputError(f"expert must be below {self.plan.experts}, got {choice.expert}")
        if choice.weights is not None and choice.weights.shape != (self.plan.experts,):
            raise InputError(
                f"weights must have shape ({self.plan.experts},), got {choice.weights.shape}"
            )
        if (choice.weights is not None) != self.plan.sends_weights(waits):
            wanted = "weights" if self.plan.sends_weights(waits) else "an expert"
            raise InputError(f"choice {waits} must have {wanted}")
        self._x = self.plan.move(self._x, choice)
        self._x.flags.writeable = False
        self.release += 1

    @once
    def observe(self, loss: np.ndarray | Gradient) -> None:
        """Take in the loss of the round: d losses in [0, 1] (clipped here), or, where losses are
        not linear, a function that gives the gradient (d,) at x (d,)."""
        if self.round == self.plan.horizon:
            raise InputError(f"the plan has {self.plan.horizon} rounds, got one more")
        if self._x is None or self.due or self._sent > self.release:
            raise InputError(
                f"client {self.index} must exchange messages before round {self.round + 1}"
            )
        if self.plan.linear:
            given = array("loss", loss, shape=(self.plan.experts,))
            taken = np.clip(given, 0.0, 1.0)
            self.clipped_losses += bool((taken != given).any())
            loss = taken
        elif not callable(loss):
            raise InputError(f"loss must be a gradient function, got {type(loss).__name__}")
        self._collector.observe(self.round + 1, loss)
        self.round += 1
