"""Parties of plans with experts: a decision chooses one expert and learns the losses of all.

In `fed-dp-ope-stoch`, a release is the end of a phase. The losses of a phase are split into binary
*trees* (experts/frank_wolfe.py). Silos send the mean losses of each tree. The hub then computes all
Frank-Wolfe steps of the phase, and releases the experts' weights x. The loss of x is linear in x,
so its gradient, a tree's mean losses, does not depend on x. Only the hub adds noise, which is
independent for each leaf (step) of a tree.

In `fed-svt`, a release is an exchange. Silos send the sums of the losses since the previous
exchange, and the hub keeps the expert or switches to a different one.

Everything else is as in `SiloParty` and `Hub`. A decision is one round of its silo. In
`fed-dp-ope-stoch`, only decisions that the silo learns from have a place among the losses of their
phase. The n-th such decision has place n, whatever its losses are and whenever they arrive. In
`fed-svt`, a loss enters the sum of the period of its decision, or no sum. So if a loss is replaced,
all later queries change by the same amount, as the account of sparse switching requires.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource, is_exact
from fastfed._validate import InputError
from fastfed.deployment import wire
from fastfed.deployment.charges import Scores
from fastfed.deployment.hub import Hub
from fastfed.deployment.model import earlier_model
from fastfed.deployment.party import Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.schema import private_array
from fastfed.deployment.seal import digest
from fastfed.deployment.silo import Decided, Decision, Ended, SiloParty
from fastfed.deployment.silo_records import EXPIRED_REASON
from fastfed.deployment.store import Write
from fastfed.deployment.wire import Opened, Refused, packed
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import CENTRAL_SCORES, SPARSE_SWITCHING, Decider, check_expert_plan
from fastfed.privacy import exact
from fastfed.privacy.account import released
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, NoiseStd, Plan, Radius

#: Types of plans with experts that can be deployed.
Experts = FrankWolfePlan | SparseVectorPlan

#: Conditions that the deployment's certificate states in addition to its system's conditions.
OWN_PERIOD_CONDITION = Condition(
    "a loss enters the place of its decision in that decision's period, or no place: a missing "
    "loss counts as 0, so a loss that comes late or never, for reasons that depend on the loss, is "
    "covered as a replaced loss",
    True,
)
PRESENCE_CONDITION = Condition(
    "whether decisions are made, and whether a silo reports, does not depend on losses (taken on "
    "trust); a silo that does not report counts with losses of 0",
    True,
)
#: All conditions that are added to the certificate.
CONDITIONS = OWN_PERIOD_CONDITION, PRESENCE_CONDITION


# ---- plans ---------------------------------------------------------------------------------------


def rounds(plan: Experts) -> Plan:
    """Return the schedule of a plan with experts; raise InputError if it cannot be deployed."""
    return outline(check_experts(plan))


def outline(plan: Experts) -> Plan:
    """Return a `Plan` with the schedule of a plan with experts, for the calendar and the parties.

    Its dimension is the number of experts. Its noise, regularizer and radius are placeholders.
    """
    # An exchange is made at the start of a round, so it has the losses up to the previous round.
    ends = tuple(int(asking_round) - 1 for asking_round in plan.asking_rounds(plan.horizon))
    return Plan(
        silos=plan.silos,
        horizon=plan.horizon,
        dimension=plan.experts,
        batch_size=max(b - a for a, b in zip((0, *ends), ends, strict=False)),
        lazy=True,
        protocol=plan.protocol,
        noise_std=NoiseStd(),
        regularizer=np.ones(1),
        radius=Radius(1.0, 0.0, 0.0, np.zeros(1), np.zeros(1)),
        clip=Clip(),
        release_rounds=ends,
    )


def even_start(plan: FrankWolfePlan) -> np.ndarray:
    """Return the experts' weights (d,) before the first phase: all equal."""
    return np.full(plan.experts, 1.0 / plan.experts)


def chosen_start(plan: SparseVectorPlan, digest: bytes) -> np.ndarray:
    """Return the weights (d,) before the first exchange: 1 for `first_expert`, 0 for others."""
    weights = np.zeros(plan.experts)
    weights[first_expert(digest, plan.experts)] = 1.0
    return weights


def first_expert(digest: bytes, experts: int) -> int:
    """Return the expert that all silos choose first, computed from the SHA-256 of the plan file."""
    return int.from_bytes(digest[:8], "big") * experts >> 64


def tree_numbers(plan: FrankWolfePlan) -> int:
    """Return the length of a report: d numbers for each tree, for the phase with most trees."""
    return plan.experts * max(phase.trees for phase in plan.phases)


def check_experts(plan: Experts) -> Experts:
    """Return a plan with experts; raise InputError, with all reasons, if it cannot be deployed."""
    check_expert_plan(plan)
    claim = plan.privacy
    refused = {
        'other noise than "central"': plan.protocol not in (CENTRAL_SCORES, SPARSE_SWITCHING),
        "losses that are not linear": not plan.linear,
        "no exchange of losses": not plan.exchanges,
        # A silo scales losses to [0, 1], and adds them up without clipping to the plan's bounds.
        "losses beyond [0, 1]": (
            isinstance(plan, FrankWolfePlan) and plan.bounds[:2] != (0.0, 1.0)
        ),
        "no budget": claim is None or claim.budget is None,
    }
    if claim is not None and claim.budget is not None and plan.exchanges:
        event = (released(plan) or (None,))[0]
        refused |= {
            "several losses of one record": claim.max_participations != 1,
            "delta = 0, at which the Gaussian mechanisms of a ledger have no epsilon": (
                not claim.budget.delta
            ),
            "a release without noise": not isinstance(event, Scores),
        }
    reasons = [reason for reason, applies in refused.items() if applies]
    if reasons:
        raise InputError(f"deployments do not run plans of experts with {', '.join(reasons)}")
    return plan


# ---- parties -------------------------------------------------------------------------------------

#: By how much a mean loss or a weight may exceed 1, because of rounding.
_SLACK = 2.0**-20


class PlacedDecision(Decided, frozen=True, array_like=True):
    """A stored decision, with its place among the losses of its period.

    Parameters
    ----------
    place : int, optional
        The number of the loss in its period, from 0; -1 if the silo does not learn from the
        decision. None in logs of earlier versions of fastfed, which did not store places.
    """

    place: int | None = None


class EndedWithLosses(Ended, frozen=True, array_like=True):
    """The stored end of a decision; ``losses`` are the encoded losses (d,) of all experts."""

    losses: bytes = b""


class Weights:
    """The model of a silo with experts: the experts' weights after the last release.

    Parameters
    ----------
    first : ndarray, shape (d,)
        The weights before the first release.
    start : ndarray, shape (d,), optional
        The last weights of the plan that is continued, used instead of ``first``.
    """

    #: `Model.gram` is V, which these plans do not have.
    gram = None

    def __init__(self, first: np.ndarray, start: np.ndarray | None = None) -> None:
        self._experts, self.release = len(first), 0
        self.start = start
        self.theta = first if start is None else start

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Use the weights of a broadcast from now on.

        Raises
        ------
        Refused
            If the values are not d nonnegative numbers with sum 1, followed by zeros.
        """
        weights = values[: self._experts]
        padding = values[self._experts :]
        if (weights < 0.0).any() or abs(weights.sum() - 1.0) > 1e-9 or padding.any():
            raise Refused(f"broadcast {release} must hold weights of {self._experts} experts")
        self.theta, self.release = weights.copy(), release

    def drawn(self, uniform: float) -> int:
        """Return the index of a random expert, drawn with probabilities equal to the weights.

        ``uniform`` is a uniform random number in [0, 1).
        """
        cumulative = np.cumsum(self.theta)
        return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


class LossRange:
    """The largest mean losses in a report and weights in a broadcast, as `Limits`: 1.

    A little more is accepted because of rounding errors.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def report(self, release: int) -> np.ndarray:
        """Return the largest values that a silo's report may have, one for each of its numbers."""
        return np.full(self._size, 1.0 + _SLACK)

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest values that a broadcast may have, one for each of its numbers."""
        return np.full(self._size, 1.0 + _SLACK)


def of_trees(deployed: DeployedPlan) -> FrankWolfePlan:
    """Return the executed plan, typed as a plan of `fed-dp-ope-stoch`."""
    return cast(FrankWolfePlan, deployed.executed)


def earlier_weights(deployed: DeployedPlan) -> np.ndarray | None:
    """Return the last weights (d,) of the plan that is continued; None if there is no start."""
    earlier = earlier_model(deployed)
    weights: np.ndarray | None = None if earlier is None else earlier.theta
    return weights


def _even_weights(deployed: DeployedPlan) -> Weights:
    """Create the weights before the first release of `fed-dp-ope-stoch`."""
    return Weights(even_start(of_trees(deployed)), earlier_weights(deployed))


class ExpertSilo(SiloParty):
    """Run a silo of `fed-dp-ope-stoch`, which reports mean losses without noise.

    Notes
    -----
    Guarantee: as in the plan's certificate, for one loss, if the hub is trusted. A loss enters at
    most one place of one phase. A missing loss counts as 0.
    """

    model: Weights  # type: ignore[assignment]
    starts = staticmethod(_even_weights)
    snapshot_attributes = ("_learning_by_period", "_old_places")

    def __init__(self, deployed: DeployedPlan, *arguments: Any, **options: Any) -> None:
        # State saved in the store: survives a restart.
        #: Period -> number of its decisions so far that may be learned from.
        self._learning_by_period: dict[int, int] = {}
        #: Decision id -> place (number of its loss in the period), for decisions that have not
        #: ended and that an earlier version of fastfed stored without a place.
        self._old_places: dict[str, int] = {}
        # State of this process: empty after a restart.
        #: A period, and the tree (of losses) to which each place of this period belongs: the last
        #: result that `_tree` computed.
        self._tree_cache = 0, np.zeros(0, dtype=np.int8)
        super().__init__(deployed, *arguments, **options)

    def _limits(self) -> LossRange:
        return LossRange(self.wire.size)

    def _randomizer(self) -> None:
        return None

    @property
    def _statistic_size(self) -> int:
        return self.wire.size

    @staticmethod
    def _decode_decision(value: bytes) -> PlacedDecision:
        return msgspec.msgpack.decode(value, type=PlacedDecision)

    @staticmethod
    def _decode_end(value: bytes) -> EndedWithLosses:
        return msgspec.msgpack.decode(value, type=EndedWithLosses)

    # ---- calls of the application ----------------------------------------------------------------

    def decide(
        self,
        actions: object,
        now: float,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
        id: str | None = None,
    ) -> tuple[Step, Decision]:
        """Draw an expert for one person by the current weights; see `SiloParty.decide`.

        Returns
        -------
        step : Step
            The entries that store the decision.
        decision : Decision
            The expert's index and name, its propensity, and the id that `losses` takes.

        Raises
        ------
        InputError
            If actions, a record or ``among`` are given.
        """
        if not (actions is None and record is None and among is None):
            raise InputError("a plan of experts offers its experts: decide takes subject alone")
        subject_digest = b"" if subject is None else self.digest_of(subject)
        if id is not None and (earlier := self._repeated(id, b"", subject_digest)) is not None:
            return Step(), earlier
        # The first 53 of 64 random bits give a uniform number in [0, 1).
        uniform = (int.from_bytes(self._entropy(8), "big") >> 11) * 2.0**-53
        expert = self.model.drawn(uniform)
        earlier_count = 0 if subject is None else self._earlier_decisions(subject_digest, subject)
        learns = self._may_be_learned(now) and earlier_count < self.returning and not self.lost
        propensity, release = float(self.model.theta[expert]), self.model.release
        period = self.deployed.document.calendar.period(now)
        place = self._learning_by_period.get(period, 0) if learns else -1
        stored = PlacedDecision(
            expert, propensity, release, learns, float(now), b"", b"", subject_digest, place
        )
        # The place is the number of the loss in its period, from 0. It is taken only when the
        # decision is stored, so decisions that are learned from must be stored one after the other.
        # For this their steps share an entry of `Step.touches`.
        return self._decided(stored, id, earlier_count, (("place", ""),) if learns else ())

    def _action_name(self, action: int) -> str:
        """Return the name of the expert with index ``action``."""
        return self.deployed.document.schema.columns[action].name

    def _may_be_learned(self, now: float) -> bool:
        """Return True if the silo may learn from a decision made now.

        The current period must be open and must have a free place for one more loss.
        """
        calendar = self.deployed.document.calendar
        period = calendar.period(now)
        if (
            now < calendar.start
            or period > self.plan.releases
            or self.leave_reason
            or period <= self.closed_leaves
        ):
            return False
        return self._learning_by_period.get(period, 0) < self._room(period)

    def _room(self, period: int) -> int:
        """Return the number of places of a period: decisions that the silo may learn from."""
        return len(of_trees(self.deployed).phases[period - 1].samples)

    def losses(self, name: str, losses: object, now: float) -> Step:
        """Record the losses of all experts at one decision.

        The losses enter the decision's place among the losses of its period (its number there),
        unless this period is over or the reward deadline has passed. Recording the same losses
        again changes nothing. Nothing changes either if the decision has expired, that is, if its
        losses were overdue when its record was to be erased.

        Parameters
        ----------
        name : str
            The id of the decision.
        losses : list of float, length d
            The loss of each expert, in the units of the plan's columns; clipped to their ranges.
        now : float
            Seconds since 1970.

        Raises
        ------
        InputError
            If there is not one finite number for each expert, or the decision was cancelled or has
            different losses.
        """
        self.check_recovered()
        decided = self._decision(name)
        columns = self.deployed.document.schema.columns
        losses_given = private_array("losses", losses, (len(columns),))
        low, high = (np.array([getattr(c, end) for c in columns]) for end in ("low", "high"))
        scaled = packed((np.clip(losses_given, low, high) - low) / (high - low))
        previous = self._end(name)
        if previous is not None:
            is_repeated = previous.losses == scaled and previous.why != "cancelled"
            if is_repeated or previous.why == EXPIRED_REASON:
                return Step()
            raise InputError(f"decision {name} has ended already")
        calendar = self.deployed.document.calendar
        period = calendar.period(decided.time)
        if not decided.learns:
            reason = "unused"
        elif now > decided.time + calendar.reward_deadline or self._open_leaf(now) != period:
            reason = "late"
        else:
            reason = ""
        ended = EndedWithLosses(0 if reason else period, None, float(now), reason, scaled)
        return Step((Write("ended", name, wire.encoded(ended)),))

    def reward(self, name: str, reward: float, now: float) -> Step:
        """Raise InputError: a plan with experts needs the losses of all experts."""
        raise InputError("a plan of experts learns the losses of all experts: call losses")

    def outcome(self, name: str, value: object, now: float) -> Step:
        """Raise InputError: a plan with experts needs the losses of all experts."""
        return self.reward(name, 0.0, now)

    # ---- state and reports -----------------------------------------------------------------------

    def _fold_record_write(self, write: Write) -> None:
        """Update this object by a stored entry about a decision, its end, or a person."""
        super()._fold_record_write(write)
        if write.kind == "ended":
            self._old_places.pop(write.key, None)
        elif write.kind == "decision" and (decided := self._open[write.key]).learns:
            period = self.deployed.document.calendar.period(decided.time)
            place = self._learning_by_period.get(period, 0)
            self._learning_by_period[period] = place + 1
            # The place of a decision is its index among the decisions of its period that learn.
            # Earlier versions of fastfed did not store it, so count it here.
            if decided.place is None:
                self._old_places[write.key] = place

    def _fold_record(self, name: str, ended: Any) -> None:
        """Add the losses of a decision to the sums of a tree of the phase, see `_tree`.

        ``name`` is the id of the decision. ``ended`` is how it ended (`EndedWithLosses`), with the
        losses. With the noise of a deployment, losses are rounded to fixed point, so that their
        sums are exact in any order.
        """
        place = self._decision(name).place
        tree = self._tree(ended.leaf, self._old_places[name] if place is None else place)
        if tree:
            loss = np.frombuffer(ended.losses, dtype="<f8").astype(np.float64)
            unit = self._unit(ended.leaf) if is_exact(self._noise) else None
            tree_sums = self._leaf_sums[ended.leaf - 1].reshape(-1, len(loss))[tree - 1]
            aggregation.add(tree_sums, loss if unit is None else exact.quantise(loss, unit))

    def _tree(self, period: int, place: int) -> int:
        """Return the tree (from 1) in whose mean the loss at a place is counted; 0 for none.

        A random order of the places, independent of the losses, assigns places to trees.

        Parameters
        ----------
        period : int
            The period (phase) of the decision, from 1.
        place : int
            The place of a decision among the losses of the period, from 0.
        """
        if self._tree_cache[0] != period:
            phase = of_trees(self.deployed).phases[period - 1]
            order = self._noise.sample(self.index, phase.number, len(phase.samples))
            trees = np.zeros(len(order), dtype=np.int8)
            # Losses are linear, so one gradient serves all leaves of a tree. It is the mean of the
            # losses of the tree's first leaf, which has depth 0.
            for leaf in phase.leaves:
                if leaf.depth == 0:
                    trees[order[leaf.start : leaf.stop]] = leaf.tree
            self._tree_cache = period, trees
        return int(self._tree_cache[1][place])

    def _unit(self, period: int) -> float:
        """Return the fixed-point unit (a power of two) to which a period's losses are rounded."""
        plan = of_trees(self.deployed)
        return plan.unit(plan.phases[period - 1])

    def report(self, release: int) -> bytes:
        """Return the bytes of the signed report of a phase: the d mean losses of each of its trees.

        The same losses give the same bytes.
        """
        phase = of_trees(self.deployed).phases[release - 1]
        # A phase has one row of `_leaf_sums`, which holds the sums of losses of its trees.
        return self.encrypt_report(release, self._leaf_sums[release - 1] / phase.batch)


class ExpertHub(Hub):
    """Run the hub of `fed-dp-ope-stoch`, which does all steps of a phase at the phase's end.

    Notes
    -----
    Guarantee: as in the plan's certificate, against everybody who reads the weights. The weights
    depend on losses only through the experts that are chosen, with noise, at the leaves.
    """

    def _limits(self) -> LossRange:
        """Return the largest mean losses and weights that messages may have."""
        return LossRange(self.wire.size)

    def _make_server(self, noise: NoiseSource | None) -> Decider:
        """Create the object that chooses experts with noise; set the weights at the start."""
        # `Hub` must not check reports as sums of records: `_decrypt_report` checks the losses.
        self._checks_records, self._check_units = False, noise is None
        plan = of_trees(self.deployed)
        decider = plan.decider(self._sealing.source if noise is None else noise)
        # The experts' weights (d,) after the last step.
        self._x = plan.move(None, decider.start())
        return decider

    def _decrypt_report(self, envelope: wire.Envelope, label: str) -> np.ndarray:
        """Decrypt the mean losses of a report; raise Refused if no losses can have these means."""
        values = super()._decrypt_report(envelope, label)
        plan = of_trees(self.deployed)
        phase = plan.phases[envelope.release - 1]
        unit, count = plan.unit(phase) / phase.batch, phase.trees * plan.experts
        # The call of `super` has refused means above 1. If a phase has fewer trees than others, its
        # report ends with zeros.
        if (values < 0.0).any() or values[count:].any():
            raise Refused(f"{label} must be mean losses in [0, 1]")
        if self._check_units and not np.array_equal(values, exact.quantise(values, unit)):
            raise Refused(f"{label} must be in fixed point, as means of losses are")
        return values

    def _compute_release(self, release: int, opened_set: Opened) -> np.ndarray:
        """Return the weights of the d experts after a phase.

        The losses of the phase form trees. Each leaf of a tree is one Frank-Wolfe step: it chooses
        an expert from the sum of the silos' mean losses of this tree plus noise, and moves the
        weights towards this expert. A silo without a report counts with losses of 0.

        Returns
        -------
        ndarray, shape (s,)
            The weights (d,), then zeros up to s, the size of a message.
        """
        plan, size = of_trees(self.deployed), self.wire.size
        phase = plan.phases[release - 1]
        means = np.zeros((plan.silos, size // plan.experts, plan.experts))
        for entry in opened_set.entries:
            envelope = self.wire.read(self.reports[release, entry.silo])
            values = self._decrypt_report(envelope, f"report {release} of {envelope.sender}")
            means[entry.silo] = values.reshape(means.shape[1:])
        hidden_digest, x, server = digest(packed(means)), self._x, self._server
        for number, leaf in enumerate(phase.leaves, phase.offset + 1):
            total = np.zeros(plan.experts)
            # Add up the silos' losses in a fixed order, so that rounding errors are the same.
            for mean_losses in means[:, leaf.tree - 1]:
                total += mean_losses
            # The sealed noise of this leaf is computed from all mean losses of the phase.
            self._sealing.set_hidden_sums(number, hidden_digest)
            choice = server.decide(total)
            x = plan.move(x, choice)
        self._x = x
        weights = np.zeros(size)
        weights[: plan.experts] = x
        return weights


def of_switches(deployed: DeployedPlan) -> SparseVectorPlan:
    """Return the executed plan, typed as a plan of `fed-svt`."""
    return cast(SparseVectorPlan, deployed.executed)


def _first_weights(deployed: DeployedPlan) -> Weights:
    """Create the weights before the first release of `fed-svt`."""
    return Weights(chosen_start(of_switches(deployed), deployed.digest), earlier_weights(deployed))


def _expert_at_start(deployed: DeployedPlan) -> int:
    """Return the expert that all silos choose before the first exchange."""
    return int(np.argmax(_first_weights(deployed).theta))


class SumRange(LossRange):
    """The largest sums of losses in a report and weights in a broadcast, as `Limits`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.dimension)
        self._plan = plan

    def report(self, release: int) -> np.ndarray:
        """Return the largest possible sums (d,) of a report: a loss of 1 in each of its rounds."""
        return float(self._plan.batch_of(release)) * super().broadcast(release)


class SparseSilo(ExpertSilo):
    """Run a silo of `fed-svt`, which reports sums of losses without noise.

    Notes
    -----
    Guarantee: as in the plan's certificate, for one loss, if the hub is trusted.
    """

    starts = staticmethod(_first_weights)

    def _limits(self) -> SumRange:
        return SumRange(self.plan)

    def _room(self, period: int) -> int:
        """Return how many decisions of a period the silo may learn from: one for each round."""
        return self.plan.batch_of(period)

    def _tree(self, period: int, place: int) -> int:
        """Return 1, as if there were one tree: `fed-svt` adds up all losses of a period."""
        return 1

    def _unit(self, period: int) -> float:
        """Return the fixed-point unit to which losses are rounded, so that sums are exact."""
        return exact.quantum(self.plan.silos * self.plan.horizon)

    def report(self, release: int) -> bytes:
        """Return the bytes of the signed report of exchange number ``release``, from 1.

        The report holds, encrypted, each expert's sum of losses since the previous exchange. The
        same losses give the same bytes.
        """
        return self.encrypt_report(release, self._leaf_sums[release - 1])


class SparseHub(ExpertHub):
    """Run the hub of `fed-svt`, which keeps or switches the expert that all silos choose.

    The hub's noise is sealed: it is computed from the hub's secret and all sums so far. The noise
    of the first threshold is computed from the secret only, before there are sums.

    Notes
    -----
    Guarantee: as in the plan's certificate, against everybody who sees which experts are chosen.
    """

    def _limits(self) -> SumRange:
        return SumRange(self.plan)

    def _make_server(self, noise: NoiseSource | None) -> SparseVector:
        """Create the object that decides, with noise, when to switch to which expert.

        It starts with the expert that all silos choose before the first exchange.
        """
        self._checks_records, self._check_units = False, noise is None
        plan = of_switches(self.deployed)
        # A digest of all sums so far, from which noise is computed: no sums yet. The decider draws
        # the first threshold's noise, which has number 1, as soon as it is created.
        self._history = digest(b"")
        self._sealing.set_hidden_sums(1, self._history)
        decider = plan.decider(self._sealing.source if noise is None else noise)
        assert isinstance(decider, SparseVector)
        # The guarantee holds for any first expert. If this plan continues an earlier plan, the
        # first expert is the last one of the earlier plan, which was released already.
        decider.begin(_expert_at_start(self.deployed))
        return decider

    def _decrypt_report(self, envelope: wire.Envelope, label: str) -> np.ndarray:
        """Decrypt the sums of a report; raise Refused if no losses can have these sums."""
        values = Hub._decrypt_report(self, envelope, label)
        unit = exact.quantum(self.plan.silos * self.plan.horizon)
        not_fixed_point = self._check_units and not np.array_equal(
            values, exact.quantise(values, unit)
        )
        if not_fixed_point or (values < 0.0).any():
            raise Refused(f"{label} must be sums of losses in [0, 1], in fixed point")
        return values

    def _compute_release(self, release: int, opened_set: Opened) -> np.ndarray:
        """Return the weights (d,) after an exchange: 1 for the expert that is chosen, else 0.

        A silo without a report counts with losses of 0.
        """
        sums = np.zeros((self.plan.silos, self.plan.dimension))
        for entry in opened_set.entries:
            envelope = self.wire.read(self.reports[release, entry.silo])
            sums[entry.silo] = self._decrypt_report(
                envelope, f"report {release} of {envelope.sender}"
            )
        total = np.zeros(self.plan.dimension)
        for silo_sums in sums:
            total += silo_sums
        server = self._server
        assert isinstance(server, SparseVector)
        self._history = digest(self._history + packed(total))
        # The noise of a query or choice has the number of its exchange. The noise of the threshold
        # that is drawn if this exchange switches has the number `switches` + 2, where `switches`
        # counts earlier switches. Compute all of it from the sums so far.
        self._sealing.set_hidden_sums(release, self._history)
        self._sealing.set_hidden_sums(server.switches + 2, self._history)
        weights = np.zeros(self.plan.dimension)
        weights[server.decide(total).expert] = 1.0
        return weights
