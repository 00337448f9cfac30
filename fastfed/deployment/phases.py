"""Plans in phases (`robin`): a silo sends its estimate, the hub a private mean.

All else is `SiloParty` and `Hub`: the calendar closes a phase, a record enters the one phase in
which its reward became known, reports are charged and sealed, sets are opened once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.bandits.linucb import Acting, Estimate
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Write
from fastfed.deployment.model import earlier_model
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import digest
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.wire import Opened, packed
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Plan
from fastfed.protocols.server import Averager
from fastfed.protocols.serverless import (
    PRIVATE_MEAN,
    LocalEstimate,
    PhasePlan,
    check_phase_plan,
    last_round,
)

#: What a deployment of a plan in phases takes on trust beside what its system does.
ATTENDED = Condition(
    "whether and when a silo reports, is away or leaves does not depend on its records (taken on "
    "trust); the estimate of a silo that is missing counts as 0",
    True,
)
LATE = Condition(
    "a record may come late, or never, for reasons that are in it: all that a silo holds is "
    "protected at once",
    True,
)
#: Both, for the certificate.
CONDITIONS = LATE, ATTENDED


# ---- plans ---------------------------------------------------------------------------------------


def rounds(plan: PhasePlan) -> Plan:
    """The rounds of a plan that is deployed; InputError for any other."""
    return outline(check_phases(plan))


def outline(plan: PhasePlan) -> Plan:
    """The rounds of a plan in phases as fixed rounds: a release ends a phase, the first one U.

    Its numbers are those of the initial phases, and it has no noise: `PhasePlan.means` has.
    """
    ends = tuple(last_round(phase) for phase in plan.releasing)
    longest = max(b - a for a, b in zip((0, *ends), ends, strict=False))
    return replace(
        plan.local, protocol=PRIVATE_MEAN, batch_size=longest, release_rounds=ends, lazy=True
    )


def check_phases(plan: PhasePlan) -> PhasePlan:
    """Refuse a plan in phases that the parties of this package do not run."""
    check_phase_plan(plan)
    local = plan.local
    refused = {
        "plain means": plan.protocol != PRIVATE_MEAN,
        "no phase whose estimates are sent": not plan.releasing,
        "no clipping": local.clip is None,
        "a public intercept": local.clip is not None and local.clip.constant > 0.0,
        "a score function": local.score is not None,
        "another policy than ucb": local.policy != "ucb",
        "a trigger, own rounds or batches": local.trigger is not None
        or local.own is not None
        or local.releases > 0,
        "means of different epsilon": len({m.epsilon_coordinate for m in plan.means}) > 1,
    }
    wrong = [what for what, found in refused.items() if found]
    if wrong:
        raise InputError(f"deployments do not run plans in phases with {', '.join(wrong)}")
    return plan


# ---- parties -------------------------------------------------------------------------------------

#: Scales of Laplace noise beyond which a model is refused: once in 10^17 numbers.
_SCALES = 40.0


class PhaseModel(Acting):
    """Acts on the silo's own records in the initial phases, and then on the last model alone.

    Parameters
    ----------
    plan : Plan
        How the initial phases are played.
    start : ndarray, shape (d,), optional
        The last model of an earlier plan, which is played in the initial phases instead.
    """

    #: No V: a model is a vector.
    gram = None

    def __init__(self, plan: Plan, start: np.ndarray | None = None) -> None:
        super().__init__(plan)
        self.start = start
        if start is not None:
            self._estimate = self._greedy(start)
        self.learned(np.zeros(plan.statistic_size), 0)

    def learned(self, sums: np.ndarray, records: int) -> None:
        """The sums (s,) of all own records so far; they choose until the first model comes."""
        self._sums, self.round, self._stale = sums, records, True

    def _own(self) -> Estimate:
        """The ridge estimate of the own records."""
        if self._stale:
            regularizer = float(self.plan.regularizer[0])
            self._estimate, _ = Estimate.of_sums(self.plan.dimension, self._sums, regularizer)
            self._stale = False
        return self._estimate

    def select(self, features: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features of the action to play, of (K, d)."""
        if self.has_model:
            return self._estimate.select(features, 0.0, 0.0)
        return self._own().select(features, self._radius(), self._second_bonus)

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Act greedily on a model (d,) from now on."""
        self._estimate = self._greedy(values)
        self.release, self._stale = release, False

    @property
    def has_model(self) -> bool:
        """True once a model is played, of this plan or of an earlier one."""
        return self.release > 0 or self.start is not None

    def _greedy(self, values: np.ndarray) -> Estimate:
        """An estimate that is sure of a model (d,)."""
        made = Estimate(self.plan.dimension, 1.0)
        made.w[:], made.theta[:] = 0.0, values
        return made

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, (d,)."""
        return (self._estimate if self.has_model else self._own()).theta.copy()


class MeanRange:
    """What estimates and models can be: any finite numbers, and what the hub's noise allows."""

    def __init__(self, plan: PhasePlan) -> None:
        self._plan = plan

    def report(self, release: int) -> np.ndarray:
        """Of an estimate (d,). A check of its size would tell of it; the mean cuts it."""
        return np.full(self._plan.dimension, math.inf)

    def broadcast(self, release: int) -> np.ndarray:
        """Of a model (d,): of a mean within its range, with noise."""
        mean = self._plan.means[release - 1]
        most = mean.rotated_bound + 2.0 * mean.rotated_radius
        most += _SCALES * mean.noise_stds["mean"] / math.sqrt(2.0)
        return np.full(self._plan.dimension, most * math.sqrt(mean.padded))


class _Points:
    """Statistics of records, without noise."""

    def __init__(self, size: int) -> None:
        self._size = size

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a record, (s,)."""
        made = np.zeros(self._size)
        linalg.accumulate(made, x, y)
        return made


def of_phases(deployed: DeployedPlan) -> PhasePlan:
    """The numbers of a plan in phases."""
    return cast(PhasePlan, deployed.executed)


def _starting(deployed: DeployedPlan) -> PhaseModel:
    """What a silo acts on in the initial phases."""
    before = earlier_model(deployed)
    return PhaseModel(of_phases(deployed).local, before.theta if before is not None else None)


class PhaseSilo(SiloParty):
    """A silo of a plan in phases: `SiloParty` that sends an estimate of each phase, without noise.

    Notes
    -----
    Guarantee: that of the plan's certificate, for everything that the silo holds, if the hub is
    trusted. Every phase has a report, also one without records, whose estimate is 0.
    """

    model: PhaseModel  # type: ignore[assignment]

    starts = staticmethod(_starting)

    def _limits(self) -> MeanRange:  # type: ignore[override]
        return MeanRange(self._phases)

    def _randomizer(self) -> _Points:  # type: ignore[override]
        return _Points(self.plan.statistic_size)

    @property
    def _phases(self) -> PhasePlan:
        return of_phases(self.deployed)

    def fold(self, write: Write) -> None:
        """Take in a write that is durable."""
        super().fold(write)
        if write.kind == "ended" and not self.model.release and self.ended[write.key].leaf:
            self.model.learned(self._leaf_sums.sum(axis=0), self.model.round + 1)

    def status(self, now: float | None = None) -> dict[str, object]:
        """As `SiloParty.status`; before the first model comes there is no theta but that of the
        silo's own records, which is not shown."""
        return super().status(now) | ({} if self.model.has_model else {"theta": None})

    def report(self, release: int) -> bytes:
        """The estimate of a phase: the same bytes for the same records."""
        d = self.plan.dimension
        (values,) = linalg.least_squares(self._leaf_sums[release - 1][None], d)
        if not np.isfinite(values).all():
            values = np.zeros(d)
        return self.reported(release, values)


class PhaseHub(Hub):
    """The hub of a plan in phases: `Hub` that makes private means of estimates.

    Notes
    -----
    Guarantee: that of the plan's certificate for whoever reads its models. The mean is of all
    silos of the plan, so its noise is that of the certificate whoever is missing.
    """

    def _limits(self) -> MeanRange:  # type: ignore[override]
        return MeanRange(self._phases)

    def _serving(self, noise: NoiseSource | None) -> Averager:  # type: ignore[override]
        # Estimates are no sums of records in fixed point.
        self._exact = False
        return Averager(self._phases, self._sealing.source if noise is None else noise)

    @property
    def _phases(self) -> PhasePlan:
        return of_phases(self.deployed)

    def _combined(self, release: int, opened: Opened) -> np.ndarray:
        """The model (d,) of a set; a silo that is not in it counts with an estimate of 0."""
        estimates = np.zeros((self.plan.silos, self.plan.dimension))
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            estimates[entry.silo] = self._checked(found, f"report {release} of {found.sender}")
        self._sealing.hides(release, digest(packed(estimates)))
        phase = self._phases.releasing[release - 1]
        sent = [LocalEstimate(phase, row, i) for i, row in enumerate(estimates)]
        server: Any = self._server
        model: np.ndarray = server.combine(sent).values
        return model
