"""Parties of plans in phases (`robin`): silos send estimates, and the hub releases a private mean.

Everything else is as in `SiloParty` and `Hub`. The calendar's periods are phases, and a record
enters the phase in which its reward became known. A report is charged to the silo's privacy ledger
and stored before it is sent. For each release, the hub fixes one set of reports that it adds up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.bandits.linucb import Acting, Estimate
from fastfed.deployment.hub import Hub
from fastfed.deployment.model import earlier_model
from fastfed.deployment.party import Covered
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

#: Conditions that the deployment's certificate states in addition to its system's conditions.
PRESENCE_CONDITION = Condition(
    "whether and when a silo reports, is away or leaves does not depend on its records (taken on "
    "trust); the estimate of a silo that does not report counts as 0",
    True,
)
LATE_RECORD_CONDITION = Condition(
    "a record may come late or never, for reasons that depend on the record: the guarantee is for "
    "all data of a silo at once",
    True,
)
#: All conditions that are added to the certificate.
CONDITIONS = LATE_RECORD_CONDITION, PRESENCE_CONDITION


# ---- plans ---------------------------------------------------------------------------------------


def rounds(plan: PhasePlan) -> Plan:
    """Return the `outline` of a plan in phases; raise InputError if it cannot be deployed."""
    return outline(check_phases(plan))


def outline(plan: PhasePlan) -> Plan:
    """Convert a plan in phases to a `Plan`, as the calendar and the parties need it.

    The `Plan` has one release at the end of the initial phases, and one at the end of each later
    phase except the last. Its regularizer and radius are for the initial phases. The noise is not
    in this `Plan` but in `PhasePlan.means`.
    """
    ends = tuple(last_round(phase) for phase in plan.releasing)
    longest = max(b - a for a, b in zip((0, *ends), ends, strict=False))
    return replace(
        plan.local, protocol=PRIVATE_MEAN, batch_size=longest, release_rounds=ends, lazy=True
    )


def check_phases(plan: PhasePlan) -> PhasePlan:
    """Return a plan in phases; raise InputError, with all reasons, if it cannot be deployed."""
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
    reasons = [reason for reason, applies in refused.items() if applies]
    if reasons:
        raise InputError(f"deployments do not run plans in phases with {', '.join(reasons)}")
    return plan


# ---- parties -------------------------------------------------------------------------------------

#: The hub's broadcast is refused if a value needs Laplace noise of more than this number of scales.
#: Honest noise is larger once in 10^17 numbers.
_MAX_NOISE_SCALES = 40.0


class PhaseModel(Acting):
    """Chooses actions by a local UCB policy in the initial phases, and then by the last broadcast.

    In the initial phases, the policy uses only the silo's own records.

    Parameters
    ----------
    plan : Plan
        The policy of the initial phases.
    start : ndarray, shape (d,), optional
        The last model of an earlier plan. In the initial phases, actions are then chosen greedily
        by this model instead of the local policy.
    """

    #: `Model.gram` is V, which these plans do not have: a model is a vector theta.
    gram = None

    def __init__(self, plan: Plan, start: np.ndarray | None = None) -> None:
        super().__init__(plan)
        self.start = start
        if start is not None:
            self._estimate = self._greedy(start)
        self.use_records(np.zeros(plan.statistic_size), 0)

    def use_records(self, sums: np.ndarray, count: int) -> None:
        """Set the sums (s,) and the number of the silo's records, for the local policy."""
        self._sums, self.round, self._stale = sums, count, True

    def _local_estimate(self) -> Estimate:
        """Return the ridge estimate from the silo's own records; cached until the next record."""
        if self._stale:
            regularizer = float(self.plan.regularizer[0])
            self._estimate, _ = Estimate.of_sums(self.plan.dimension, self._sums, regularizer)
            self._stale = False
        return self._estimate

    def select(self, features: np.ndarray) -> tuple[int, np.ndarray]:
        """Choose one of K rows of features (K, d); return its index and its features (d,)."""
        if self.has_model:
            return self._estimate.select(features, 0.0, 0.0)
        return self._local_estimate().select(features, self._radius(), self._second_bonus)

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Choose actions greedily by a model theta (d,) from now on."""
        self._estimate = self._greedy(values)
        self.release, self._stale = release, False

    @property
    def has_model(self) -> bool:
        """True if actions are chosen by a released model, of this plan or of an earlier plan.

        False while the local policy of the initial phases chooses them.
        """
        return self.release > 0 or self.start is not None

    def _greedy(self, values: np.ndarray) -> Estimate:
        """Create an estimate whose theta_hat is ``values`` (d,), and whose bonus is 0."""
        estimate = Estimate(self.plan.dimension, 1.0)
        estimate.w[:], estimate.theta[:] = 0.0, values
        return estimate

    @property
    def theta(self) -> np.ndarray:
        """The estimate theta_hat (d,) by which actions are chosen now."""
        return (self._estimate if self.has_model else self._local_estimate()).theta.copy()


class MeanRange:
    """The largest values that reports (estimates) and broadcasts (models) may have, as `Limits`."""

    def __init__(self, plan: PhasePlan) -> None:
        self._plan = plan

    def report(self, release: int) -> np.ndarray:
        """Return the largest accepted absolute values of a report (d,): infinite.

        No finite report is refused, since a refusal would reveal something about the estimate.
        Large values are clipped when the private mean is computed.
        """
        return np.full(self._plan.dimension, math.inf)

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest absolute values in a model (d,): a clipped mean plus noise."""
        mean = self._plan.means[release - 1]
        # `limit` is for one of the d2 = mean.padded coordinates after the random rotation. Values
        # of a coordinate are clipped to a range of half-width 2 `rotated_radius`, whose middle is
        # at most `rotated_bound` in size. The scale of Laplace noise is its std over sqrt(2).
        limit = mean.rotated_bound + 2.0 * mean.rotated_radius
        limit += _MAX_NOISE_SCALES * mean.noise_stds["mean"] / math.sqrt(2.0)
        # So the norm of the rotated vector is at most limit sqrt(d2). Rotating the vector back
        # keeps the norm, and no entry is larger than the norm.
        return np.full(self._plan.dimension, limit * math.sqrt(mean.padded))


class _Points:
    """Computes what each record adds to the sums of x y and x x^T, without noise.

    It replaces the randomizer of `SiloParty`: only the hub adds noise in plans with phases.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return what a record with features x (d,) and reward y adds to the sums, (s,)."""
        statistic = np.zeros(self._size)
        linalg.accumulate(statistic, x, y)
        return statistic


def of_phases(deployed: DeployedPlan) -> PhasePlan:
    """Return the executed plan, typed as a plan in phases."""
    return cast(PhasePlan, deployed.executed)


def _model_at_start(deployed: DeployedPlan) -> PhaseModel:
    """Create the model by which a silo chooses actions in the initial phases."""
    earlier = earlier_model(deployed)
    return PhaseModel(of_phases(deployed).local, earlier.theta if earlier is not None else None)


class PhaseSilo(SiloParty):
    """Run a silo of a plan in phases, which reports an estimate for each phase, without noise.

    Notes
    -----
    Guarantee: as in the plan's certificate, for all data of the silo, if the hub is trusted. A
    phase without records is reported as well, with an estimate of 0.
    """

    model: PhaseModel  # type: ignore[assignment]
    snapshot_attributes = ("_record_count",)
    #: Number of records before the first release.
    _record_count = 0

    starts = staticmethod(_model_at_start)

    def _limits(self) -> MeanRange:
        return MeanRange(self._phases)

    def _randomizer(self) -> _Points:
        return _Points(self.plan.statistic_size)

    @property
    def _phases(self) -> PhasePlan:
        return of_phases(self.deployed)

    def _fold_record(self, name: str, ended: Any) -> None:
        """Add a record to the sums of its phase and, before the first release, to the local policy.

        ``name`` is the id of the decision, and ``ended`` the stored end of the decision (`Ended`),
        which contains the reward.
        """
        super()._fold_record(name, ended)
        if not self.model.release:
            self._record_count += 1
            self._learn_locally()

    def restore(self, parts: Mapping[str, bytes]) -> Covered:
        """Set the state from the parts of a snapshot; see `SiloRecords.restore`."""
        covered = super().restore(parts)
        self._learn_locally()
        return covered

    def _learn_locally(self) -> None:
        """Give the local policy the sums of all records, added up over the phases so far."""
        self.model.use_records(self._leaf_sums.sum(axis=0), self._record_count)

    def status(self, now: float | None = None) -> dict[str, object]:
        """Return the state as `SiloParty.status` does, but with theta None before the first model.

        Until then, theta is computed from the silo's records without noise, so it is not shown.
        """
        return super().status(now) | ({} if self.model.has_model else {"theta": None})

    def report(self, release: int) -> bytes:
        """Return the bytes of the signed report for a release: the least-squares estimate (d,).

        The estimate is from the records of the phase after which the release is made, or of all
        initial phases for release 1. It is 0 if there is no finite estimate. The same records give
        the same bytes.
        """
        d = self.plan.dimension
        (values,) = linalg.least_squares(self._leaf_sums[release - 1][None], d)
        if not np.isfinite(values).all():
            values = np.zeros(d)
        return self.encrypt_report(release, values)


class PhaseHub(Hub):
    """Run the hub of a plan in phases, which releases a private mean of the silos' estimates.

    Notes
    -----
    Guarantee: as in the plan's certificate, against everybody who reads the models. The mean is
    always over all silos of the plan: a missing silo counts with an estimate of 0.
    """

    def _limits(self) -> MeanRange:
        return MeanRange(self._phases)

    def _make_server(self, noise: NoiseSource | None) -> Averager:
        # Estimates are not sums of records in fixed point, so `Hub` must not check them as such.
        self._checks_records = False
        return Averager(self._phases, self._sealing.source if noise is None else noise)

    @property
    def _phases(self) -> PhasePlan:
        return of_phases(self.deployed)

    def _compute_release(self, release: int, opened_set: Opened) -> np.ndarray:
        """Return the model (d,) of a release: the private mean of the silos' estimates.

        ``opened_set`` is the set of reports that the release is computed from. A silo without a
        report in this set counts with an estimate of 0.
        """
        estimates = np.zeros((self.plan.silos, self.plan.dimension))
        for entry in opened_set.entries:
            envelope = self.wire.read(self.reports[release, entry.silo])
            estimates[entry.silo] = self._decrypt_report(
                envelope, f"report {release} of {envelope.sender}"
            )
        # The draws of sealed noise depend on the estimates that the noise hides, so set them first.
        self._sealing.set_hidden_sums(release, digest(packed(estimates)))
        phase = self._phases.releasing[release - 1]
        local_estimates = [LocalEstimate(phase, theta, i) for i, theta in enumerate(estimates)]
        model: np.ndarray = self._server.combine(local_estimates).values
        return model
