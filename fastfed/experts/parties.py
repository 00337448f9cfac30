"""The clients and the server of a federation of experts, run step by step.

Deployments and the message-by-message simulation driver run these parties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, array, once, silo_index
from fastfed.experts.plan import (
    ExpertChoice,
    ExpertPlan,
    ExpertReport,
    Gradient,
    check_expert_plan,
)

# ---- Client --------------------------------------------------------------------------------------


class ExpertClient(Once):
    """One client of a federation of experts, step by step (gao-2024, Algorithms 1 and 4).

    First pass the server's ``start()`` to ``receive``. Before each round, while ``due`` is true,
    send ``report()`` to the server and pass the answer to ``receive``. Then use the decision ``x``
    (weights of the d experts; ``expert`` if all weight is on one expert) and pass the loss to
    ``observe``.

    Parameters
    ----------
    plan : ExpertPlan
        The curve's plan, such as ``system.plan``.
    index : int, optional
        The client's number, 0..m - 1. It is required if m > 1.
    noise : NoiseSource, optional
        Default: the operating system's generator. Pass ``SeededNoise`` in simulations only.

    Attributes
    ----------
    round : int
        Rounds completed.
    release : int
        The number of the last choice received; -1 before the first.
    clipped_losses : int
        The number of rounds so far with losses outside [0, 1], which were clipped.

    Raises
    ------
    InputError
        If the epsilon recomputed from the plan differs from the sealed epsilon.
    """

    def __init__(
        self, plan: ExpertPlan, index: int | None = None, noise: NoiseSource | None = None
    ) -> None:
        self.plan = check_expert_plan(plan)
        self.index = silo_index(index, plan.silos)
        self.round = 0
        self.release = -1
        self.clipped_losses = 0
        self._collector = plan.collector(self.index, noise if noise is not None else SystemNoise())
        self._x: np.ndarray | None = None
        self._sent = 0

    @property
    def x(self) -> np.ndarray:
        """The current decision: weights (d,) that add up to 1."""
        if self._x is None:
            raise InputError("x needs the server's start(): hand it to receive")
        return self._x

    @property
    def expert(self) -> int | None:
        """The expert of weight 1, or None if no expert has weight 1."""
        heaviest = int(self.x.argmax())
        return heaviest if self.x[heaviest] == 1.0 else None

    @property
    def due(self) -> bool:
        """True if a report must be sent before the next round."""
        if self.round == self.plan.horizon:
            return False
        exchanges_needed = self.plan.exchanges_before(self.round + 1)
        return self._sent == self.release and exchanges_needed > self._sent

    @once
    def report(self) -> ExpertReport:
        """Return the message of the next exchange. Raise InputError if no message is due."""
        if not self.due:
            raise InputError(f"client {self.index} has no report due before round {self.round + 1}")
        values = self._collector.values(self._sent + 1, self.x)
        self._sent += 1
        return ExpertReport(self._sent, values, self.index)

    @once
    def receive(self, choice: ExpertChoice) -> None:
        """Update the decision ``x`` (the weights of the experts) by a choice of the server.

        Parameters
        ----------
        choice : ExpertChoice
            The server's answer to the last report. At the beginning, the server's ``start()``.

        Raises
        ------
        InputError
            If the choice is not the next one in order, or does not fit the plan.
        """
        if not isinstance(choice, ExpertChoice):
            raise InputError(f"choice must be an ExpertChoice, got {type(choice).__name__}")
        expected = self.release + 1
        if choice.release != expected or expected > max(self._sent, 0):
            raise InputError(
                f"client {self.index} waits for "
                f"{f'choice {expected}' if expected <= max(self._sent, 0) else 'no choice'}, "
                f"got choice {choice.release}"
            )
        if choice.expert is not None and choice.expert >= self.plan.experts:
            raise InputError(f"expert must be below {self.plan.experts}, got {choice.expert}")
        if choice.weights is not None and choice.weights.shape != (self.plan.experts,):
            raise InputError(
                f"weights must have shape ({self.plan.experts},), got {choice.weights.shape}"
            )
        if (choice.weights is not None) != self.plan.sends_weights(expected):
            expected_content = "weights" if self.plan.sends_weights(expected) else "an expert"
            raise InputError(f"choice {expected} must have {expected_content}")
        self._x = self.plan.move(self._x, choice)
        self._x.flags.writeable = False
        self.release += 1

    @once
    def observe(self, loss: np.ndarray | Gradient) -> None:
        """Complete the current round with its loss, which later reports use.

        Parameters
        ----------
        loss : array_like, shape (d,), or callable
            The losses of the d experts, which are clipped to [0, 1]. For nonlinear losses, a
            function that returns the gradient (d,) at given weights (d,).

        Raises
        ------
        InputError
            If a message is still due, or the plan has ended.
        """
        if self.round == self.plan.horizon:
            raise InputError(f"the plan has {self.plan.horizon} rounds, got one more")
        if self._x is None or self.due or self._sent > self.release:
            raise InputError(
                f"client {self.index} must exchange messages before round {self.round + 1}"
            )
        if self.plan.linear:
            raw_loss = array("loss", loss, shape=(self.plan.experts,))
            loss_clipped = np.clip(raw_loss, 0.0, 1.0)
            self.clipped_losses += bool((loss_clipped != raw_loss).any())
            loss = loss_clipped
        elif not callable(loss):
            raise InputError(f"loss must be a gradient function, got {type(loss).__name__}")
        self._collector.observe(self.round + 1, loss)
        self.round += 1


# ---- Server --------------------------------------------------------------------------------------


class ExpertServer(Once):
    """Server of a federation of experts, step by step (gao-2024, Algorithms 2 and 5).

    The server adds up the messages of all clients and chooses their next decision.

    Parameters
    ----------
    plan : ExpertPlan
        The curve's plan, such as ``system.plan``.
    noise : NoiseSource, optional
        Default: the operating system's generator. Pass ``SeededNoise`` in simulations only.

    Notes
    -----
    The system's certificate states the guarantee, for one loss of one client in one round.
    """

    def __init__(self, plan: ExpertPlan, noise: NoiseSource | None = None) -> None:
        self.plan = check_expert_plan(plan)
        self.releases = 0
        self._decider = plan.decider(noise if noise is not None else SystemNoise())
        self._started: ExpertChoice | None = None

    @once
    def start(self) -> ExpertChoice:
        """Return the choice before the first round, for all clients."""
        if self._started is None:
            self._started = self._decider.start()
        return self._started

    @once
    def combine(self, reports: Sequence[ExpertReport]) -> ExpertChoice:
        """Return the next choice, given one report of each client.

        Parameters
        ----------
        reports : sequence of ExpertReport
            One report of each client, all of the current exchange.

        Raises
        ------
        InputError
            If a report is missing, repeated, or of a different exchange or shape; before
            ``start()``; and after the plan's last exchange. The state does not change.
        """
        plan = self.plan
        if self._started is None:
            raise InputError("combine needs start() before it")
        if self.releases == plan.exchanges:
            raise InputError(f"the plan has {self.releases} exchanges, got reports of one more")
        if not isinstance(reports, Sequence) or not all(
            isinstance(r, ExpertReport) for r in reports
        ):
            raise InputError("reports must be a list of ExpertReport")
        ordered = sorted(reports, key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(plan.silos)):
            raise InputError(
                f"reports must hold one of each of the {plan.silos} clients, "
                f"got clients {[r.silo for r in ordered]}"
            )
        total = np.zeros(plan.experts)
        for report in ordered:
            if report.release != self.releases + 1:
                raise InputError(
                    f"report of client {report.silo} must be number {self.releases + 1}, "
                    f"got number {report.release}"
                )
            if report.values.shape != (plan.experts,):
                raise InputError(
                    f"report of client {report.silo} must have shape ({plan.experts},), "
                    f"got {report.values.shape}"
                )
            total += report.values
        choice = self._decider.decide(total)
        self.releases += 1
        return choice

    @property
    def events(self) -> dict[str, int]:
        """Counts of events so far, such as switches of the expert."""
        return self._decider.events
