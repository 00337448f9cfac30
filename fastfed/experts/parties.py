"""Parties of an expert federation: clients, their sums, and the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastfed._kernels import aggregation
from fastfed._once import Once, once
from fastfed._random import NoiseSource, SystemNoise, is_exact
from fastfed._system import account
from fastfed._validate import InputError, array, integer
from fastfed.experts.plan import (
    Collector,
    ExpertChoice,
    ExpertPlan,
    ExpertReport,
    Gradient,
    ProblemSpec,
    check_expert_plan,
)
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, PrivacyEvent, RawData, released
from fastfed.privacy.certificate import Certificate, no_privacy

# ---- Plans whose clients send, every N rounds, what every expert has lost since ------------------


@dataclass(frozen=True, kw_only=True)
class SumsPlan(ExpertPlan):
    """Exchanges before rounds N, 2 N, ..., on losses of the rounds before (gao-2024, Algorithm 4).

    For N = 1 the first is before round 2: before round 1 nothing is known.
    """

    phase_length: int  # N

    @property
    def exchanges(self) -> int:
        return self.exchanges_before(self.horizon)

    def exchanges_before(self, round: int) -> int:
        last = min(round, self.horizon)
        return last // self.phase_length - (self.phase_length == 1)

    def asking_rounds(self, last: int) -> np.ndarray:
        return np.arange(max(self.phase_length, 2), last + 1, self.phase_length)

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        points = self.silos * self.horizon
        return SumCollector(self.experts, exact.quantum(points) if is_exact(noise) else None)


@released.register
def _(plan: SumsPlan) -> tuple[PrivacyEvent, ...] | None:
    # What another package's server makes of the sums is not known here.
    return (RawData(),) if plan.protocol.noise_by == "none" else None


@account.register
def _certificate(plan: SumsPlan, problem: ProblemSpec) -> Certificate:
    """Of sums that are sent as they are."""
    if released(plan) is None:
        raise InputError(f"plan must be one that fastfed accounts for, got {type(plan).__name__}")
    claim = plan.privacy or Claim(source=plan.protocol.source)
    return no_privacy(claim.source, caveats=claim.caveats)


class SumCollector:
    """The losses of one client since its last report; it draws no noise.

    unit: what losses are rounded to multiples of, so that sums are exact; None in simulations.
    """

    def __init__(self, experts: int, unit: float | None = None) -> None:
        self._sum, self._unit = np.zeros(experts), unit

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        assert isinstance(loss, np.ndarray)
        aggregation.add(self._sum, loss if self._unit is None else exact.quantise(loss, self._unit))

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        sent, self._sum = self._sum, np.zeros_like(self._sum)
        return sent


def check_linear(algorithm: str, problem: ProblemSpec) -> None:
    """InputError unless every expert has a loss of its own."""
    if not problem.linear:
        raise InputError(
            f"{algorithm} needs linear losses, one number for each expert; these are not"
        )


def check_phase_length(length: int, problem: ProblemSpec) -> int:
    """N, if a phase ends within the horizon."""
    if length > problem.horizon:
        raise InputError(f"phase_length must be <= horizon ({problem.horizon}), got {length}")
    return length


# ---- A client of a federation that predicts from experts -----------------------------------------


class ExpertClient(Once):
    """One client, step by step (gao-2024, Algorithms 1 and 4).

    First hand it the server's ``start()``. Before each round: while ``due`` is true, send
    ``report()`` to the server and hand its answer to ``receive``. Then play ``x``, weights of the
    d experts (all on one of them: ``expert``), and ``observe`` the loss. A bare
    ``ExpertClient(plan)`` draws its noise from the operating system; pass ``SeededNoise``
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


# ---- The server of a federation that predicts from experts ---------------------------------------


class ExpertServer(Once):
    """Adds up what all clients send and chooses what they play (gao-2024, Algorithms 2 and 5).

    A bare ``ExpertServer(plan)`` draws from the operating system; pass ``SeededNoise`` only
    to simulate.

    Guarantee: that of the system's certificate, for one loss of one client in one round.
    """

    def __init__(self, plan: ExpertPlan, noise: NoiseSource | None = None) -> None:
        self.plan = check_expert_plan(plan)
        self.releases = 0
        self._decider = plan.decider(noise if noise is not None else SystemNoise())
        self._started: ExpertChoice | None = None

    @once
    def start(self) -> ExpertChoice:
        """What all clients play first."""
        if self._started is None:
            self._started = self._decider.start()
        return self._started

    @once
    def combine(self, reports: Sequence[ExpertReport]) -> ExpertChoice:
        """The next choice; InputError unless every client has sent its report of this exchange, and
        then nothing has changed."""
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
        """What has happened so far, such as switches of the expert."""
        return self._decider.events
