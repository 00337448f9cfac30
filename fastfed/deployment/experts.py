"""Plans of experts: decisions are experts, and what comes back are all losses.

A release of `fed-dp-ope-stoch` is a phase that learns: the silos send a mean loss of each of its
trees, and the hub answers with the weights after all of its steps. Losses are linear, so that a
tree has one mean whatever x is, and the hub alone adds noise, to each leaf its own. A release of
`fed-svt` is an exchange of what every expert has lost since the one before.

All else is `SiloParty` and `Hub`. A decision is one round of its silo. For `fed-dp-ope-stoch` the
n-th one of a period that is learned from has place n among the losses of that period's phase,
whatever its loss is and whenever it comes. For `fed-svt` a loss enters the sum of its own
decision's period, or none, so that a replaced one moves all queries from its own exchange on alike,
as the account of sparse switching counts on; the hub keeps an expert or switches.
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
from fastfed.deployment.ledger import Write
from fastfed.deployment.model import earlier_model
from fastfed.deployment.party import Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.schema import private_array
from fastfed.deployment.seal import digest
from fastfed.deployment.silo import Decided, Decision, Ended, SiloParty
from fastfed.deployment.wire import Opened, Refused, packed
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import CENTRAL_SCORES, SPARSE_SWITCHING, Decider, check_expert_plan
from fastfed.privacy import exact
from fastfed.privacy.account import released
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, NoiseStd, Plan, Radius

#: Plans of experts that are deployed.
Experts = FrankWolfePlan | SparseVectorPlan

#: What a deployment of experts takes on trust beside what its system does.
OWN = Condition(
    "a loss enters the place of its own decision, in that decision's period, or none: what is "
    "missing counts as a loss of 0, so a loss that comes late, or never, for reasons that are in "
    "it is one that was replaced",
    True,
)
PRESENT = Condition(
    "whether decisions are made, and whether a silo reports, does not depend on losses (taken on "
    "trust); a silo that is missing counts with losses of 0",
    True,
)
#: Both, for the certificate.
CONDITIONS = OWN, PRESENT


# ---- plans ---------------------------------------------------------------------------------------


def rounds(plan: Experts) -> Plan:
    """The rounds of a plan that is deployed; InputError for any other."""
    return outline(check_experts(plan))


def outline(plan: Experts) -> Plan:
    """The rounds of a plan of experts as fixed rounds: a release ends what its phase learns from.

    Its dimension is the number of experts, and it has no numbers of a linear bandit.
    """
    ends = tuple(int(round) - 1 for round in plan.asking_rounds(plan.horizon))
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
    """The weights (d,) before the first phase: those of all experts are the same."""
    return np.full(plan.experts, 1.0 / plan.experts)


def chosen_start(plan: SparseVectorPlan, digest: bytes) -> np.ndarray:
    """The weights (d,) before the first exchange: all of one expert, whom nobody chose."""
    made = np.zeros(plan.experts)
    made[first_expert(digest, plan.experts)] = 1.0
    return made


def first_expert(digest: bytes, experts: int) -> int:
    """The expert that everybody plays at first: a public function of the plan's SHA-256."""
    return int.from_bytes(digest[:8], "big") * experts >> 64


def tree_numbers(plan: FrankWolfePlan) -> int:
    """Numbers of a message: d for each of the trees of a phase, where it has most."""
    return plan.experts * max(phase.trees for phase in plan.phases)


def check_experts(plan: Experts) -> Experts:
    """Refuse a plan of experts that the parties of this package do not run, or not privately."""
    check_expert_plan(plan)
    claim = plan.privacy
    refused = {
        'other noise than "central"': plan.protocol not in (CENTRAL_SCORES, SPARSE_SWITCHING),
        "losses that are not linear": not plan.linear,
        "no exchange of losses": not plan.exchanges,
        "no budget": claim is None or claim.budget is None,
    }
    if claim is not None and claim.budget is not None and plan.exchanges:
        event = (released(plan) or (None,))[0]
        refused |= {
            "several losses of one record": claim.max_participations != 1,
            "delta = 0, of which a ledger can make no Gaussian mechanism": not claim.budget.delta,
            "a release without noise": not isinstance(event, Scores),
        }
    wrong = [what for what, found in refused.items() if found]
    if wrong:
        raise InputError(f"deployments do not run plans of experts with {', '.join(wrong)}")
    return plan


# ---- parties -------------------------------------------------------------------------------------

#: What a mean loss, or a weight, may be above 1 by.
_SLACK = 2.0**-20


class Lost(Ended, frozen=True, array_like=True):
    """How a decision ended: also the losses (d,) of all experts, in [0, 1]."""

    losses: bytes = b""


class Weights:
    """The weights of the experts after the last release.

    Parameters
    ----------
    first : ndarray, shape (d,)
        Those before it.
    start : ndarray, shape (d,), optional
        The last ones of an earlier plan, which are played before it instead.
    """

    #: No V.
    gram = None

    def __init__(self, first: np.ndarray, start: np.ndarray | None = None) -> None:
        self._experts, self.release = len(first), 0
        self.start = start
        self.theta = first if start is None else start

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Play the weights of a broadcast from now on; Refused for what are no weights."""
        weights = values[: self._experts]
        rest = values[self._experts :]
        if (weights < 0.0).any() or abs(weights.sum() - 1.0) > 1e-9 or rest.any():
            raise Refused(f"broadcast {release} must hold weights of {self._experts} experts")
        self.theta, self.release = weights.copy(), release

    def drawn(self, uniform: float) -> int:
        """The expert at a uniform number in [0, 1)."""
        ends = np.cumsum(self.theta)
        return int(np.searchsorted(ends, uniform * ends[-1], side="right"))


class LossRange:
    """What mean losses and weights can be."""

    def __init__(self, size: int) -> None:
        self._size = size

    def report(self, release: int) -> np.ndarray:
        """Of a silo's means."""
        return np.full(self._size, 1.0 + _SLACK)

    def broadcast(self, release: int) -> np.ndarray:
        """Of weights."""
        return np.full(self._size, 1.0 + _SLACK)


def of_experts(deployed: DeployedPlan) -> Experts:
    """The numbers of a plan of experts."""
    return cast(Experts, deployed.executed)


def of_trees(deployed: DeployedPlan) -> FrankWolfePlan:
    """The numbers of a plan of `fed-dp-ope-stoch`."""
    return cast(FrankWolfePlan, deployed.executed)


def earlier_weights(deployed: DeployedPlan) -> np.ndarray | None:
    """The weights (d,) at the end of the plan that this one continues; None if no start."""
    before = earlier_model(deployed)
    found: np.ndarray | None = None if before is None else before.theta
    return found


def _even(deployed: DeployedPlan) -> Weights:
    return Weights(even_start(of_trees(deployed)), earlier_weights(deployed))


class ExpertSilo(SiloParty):
    """A silo of a plan of experts: `SiloParty` whose reports are mean losses, without noise.

    Notes
    -----
    Guarantee: that of the plan's certificate, for one loss, if the hub is trusted: a loss has one
    place, or none, and what is missing is a loss of 0.
    """

    model: Weights  # type: ignore[assignment]
    starts = staticmethod(_even)

    def __init__(self, deployed: DeployedPlan, *given: Any, **more: Any) -> None:
        #: By period: decisions that are learned from; by decision: its period and place in it.
        self._taken: dict[int, int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        super().__init__(deployed, *given, **more)

    def _limits(self) -> LossRange:  # type: ignore[override]
        return LossRange(self.wire.size)

    def _randomizer(self) -> None:  # type: ignore[override]
        return None

    # ---- the application -------------------------------------------------------------------------

    def decide(
        self,
        actions: object,
        now: float,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> tuple[Step, Decision]:
        """Choose an expert for one person by the current weights; see `SiloParty.decide`.

        Raises
        ------
        InputError
            For actions or a record.
        """
        if not (actions is None and record is None and among is None):
            raise InputError("a plan of experts offers its experts: decide takes subject alone")
        uniform = (int.from_bytes(self._entropy(8), "big") >> 11) * 2.0**-53
        chosen = self.model.drawn(uniform)
        who = b"" if subject is None else self.digest_of(subject)
        learns = self._admits(now) and who not in self._subjects and not self.lost
        chance = float(self.model.theta[chosen])
        kept = Decided(chosen, chance, self.model.release, learns, float(now), b"", b"", who)
        name = self._entropy(8).hex()
        column = self.deployed.document.schema.columns[chosen].name
        decision = Decision(name, chosen, chance, kept.model, learns, column)
        return Step((Write("decision", name, wire.encoded(kept)),)), decision

    def _admits(self, now: float) -> bool:
        """True if the phase of this period has a place left."""
        calendar = self.deployed.document.calendar
        period = calendar.period(now)
        if now < calendar.start or period > self.plan.releases or self.left or period <= self.done:
            return False
        return self._taken.get(period, 0) < self._room(period)

    def _room(self, period: int) -> int:
        """Decisions of a period that are learned from, at most."""
        return len(of_trees(self.deployed).phases[period - 1].samples)

    def losses(self, name: str, losses: object, now: float) -> Step:
        """What all experts have lost in one decision, in the units of the plan's columns.

        It enters the place of its decision, if that decision's period has not closed, or none. The
        same losses again change nothing.

        Raises
        ------
        InputError
            For other than one finite number an expert, and if the decision has ended with others.
        """
        self.check_recovered()
        decided = self._decided(name)
        columns = self.deployed.document.schema.columns
        given = private_array("losses", losses, (len(columns),))
        low, high = (np.array([getattr(c, end) for c in columns]) for end in ("low", "high"))
        coded = packed((np.clip(given, low, high) - low) / (high - low))
        known = self.ended.get(name)
        if known is not None:
            if isinstance(known, Lost) and known.losses == coded and known.why != "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already")
        calendar = self.deployed.document.calendar
        own, _ = self._places.get(name, (0, 0))
        if not own:
            why = "unused"
        elif now > decided.time + calendar.reward_deadline or self._leaf(now) != own:
            why = "late"
        else:
            why = ""
        ended = Lost(0 if why else own, None, float(now), why, coded)
        return Step((Write("ended", name, wire.encoded(ended)),))

    def reward(self, name: str, reward: float, now: float) -> Step:
        """Raise InputError: losses of all experts come back."""
        raise InputError("a plan of experts learns what all experts have lost: call losses")

    def outcome(self, name: str, value: object, now: float) -> Step:
        """Raise InputError: losses of all experts come back."""
        return self.reward(name, 0.0, now)

    # ---- state and reports -----------------------------------------------------------------------

    def fold(self, write: Write) -> None:
        """Take in a write that is durable."""
        if write.kind == "ended":
            self.ended[write.key] = msgspec.msgpack.decode(write.value, type=Lost)
            return
        super().fold(write)
        decided = self.decisions.get(write.key) if write.kind == "decision" else None
        if decided is not None and decided.learns:
            period = self.deployed.document.calendar.period(decided.time)
            self._places[write.key] = period, self._taken.get(period, 0)
            self._taken[period] = self._taken.get(period, 0) + 1

    def report(self, release: int) -> bytes:
        """The mean losses of each tree of a phase: the same bytes for the same losses."""
        plan = of_trees(self.deployed)
        phase = plan.phases[release - 1]
        unit = plan.unit(phase) if is_exact(self._noise) else None
        found: dict[int, np.ndarray] = {}
        for name, (period, place) in self._places.items():
            ended = self.ended.get(name)
            if period == release and isinstance(ended, Lost) and ended.leaf == release:
                found[place] = np.frombuffer(ended.losses, dtype="<f8").astype(np.float64)
        order = self._noise.sample(self.index, phase.number, len(phase.samples))
        values = np.zeros((self.wire.size // plan.experts, plan.experts))
        for leaf in phase.leaves:
            if leaf.depth == 0:
                for place in order[leaf.start : leaf.stop].tolist():
                    if place in found:
                        loss = np.clip(found[place], plan.bounds.low, plan.bounds.high)
                        taken = loss if unit is None else exact.quantise(loss, unit)
                        aggregation.add(values[leaf.tree - 1], taken)
                values[leaf.tree - 1] /= leaf.stop - leaf.start
        return self.reported(release, values.ravel())


class ExpertHub(Hub):
    """The hub of a plan of experts: `Hub` that takes all steps of a phase at once.

    Notes
    -----
    Guarantee: that of the plan's certificate for whoever reads its weights, which are made of the
    experts that the leaves choose.
    """

    def _limits(self) -> LossRange:  # type: ignore[override]
        return LossRange(self.wire.size)

    def _serving(self, noise: NoiseSource | None) -> Decider:  # type: ignore[override]
        # Checked here in its own unit, and not as sums of records.
        self._exact, self._units = False, noise is None
        plan = of_trees(self.deployed)
        made = plan.decider(self._sealing.source if noise is None else noise)
        self._x = plan.move(None, made.start())
        return made

    def _checked(self, found: wire.Envelope, who: str) -> np.ndarray:
        """The means of a report; Refused where no losses have them."""
        values = super()._checked(found, who)
        plan = of_trees(self.deployed)
        phase = plan.phases[found.release - 1]
        unit, used = plan.unit(phase) / phase.batch, phase.trees * plan.experts
        if (values < 0.0).any() or values[used:].any():
            raise Refused(f"{who} must be mean losses in [0, 1]")
        if self._units and not np.array_equal(values, exact.quantise(values, unit)):
            raise Refused(f"{who} must be in fixed point, as means of losses are")
        return values

    def _combined(self, release: int, opened: Opened) -> np.ndarray:
        """The weights (d,) after a phase, padded; a silo that is not in the set has losses of 0."""
        plan, size = of_trees(self.deployed), self.wire.size
        phase = plan.phases[release - 1]
        means = np.zeros((plan.silos, size // plan.experts, plan.experts))
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            row = self._checked(found, f"report {release} of {found.sender}")
            means[entry.silo] = row.reshape(means.shape[1:])
        hidden, x, server = digest(packed(means)), self._x, self._server
        for number, leaf in enumerate(phase.leaves, phase.offset + 1):
            total = np.zeros(plan.experts)
            for row in means[:, leaf.tree - 1]:
                total += row
            self._sealing.hides(number, hidden)
            choice = server.decide(total)  # type: ignore[union-attr]
            x = plan.move(x, choice)
        self._x = x
        made = np.zeros(size)
        made[: plan.experts] = x
        return made


def of_switches(deployed: DeployedPlan) -> SparseVectorPlan:
    """The numbers of a plan of `fed-svt`."""
    return cast(SparseVectorPlan, deployed.executed)


def _chosen(deployed: DeployedPlan) -> Weights:
    return Weights(chosen_start(of_switches(deployed), deployed.digest), earlier_weights(deployed))


def _begins(deployed: DeployedPlan) -> int:
    """The expert before the first exchange, which hub and silos agree on."""
    return int(np.argmax(_chosen(deployed).theta))


class SumRange(LossRange):
    """What sums of losses, and weights, can be."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.dimension)
        self._plan = plan

    def report(self, release: int) -> np.ndarray:
        """Of a silo's sums: it has as many places as the exchange has rounds."""
        return float(self._plan.batch_of(release)) * super().broadcast(release)


class SparseSilo(ExpertSilo):
    """A silo of `fed-svt`: `SiloParty` whose reports are sums of losses, without noise.

    Notes
    -----
    Guarantee: that of the plan's certificate, for one loss, if the hub is trusted.
    """

    starts = staticmethod(_chosen)

    def _limits(self) -> SumRange:  # type: ignore[override]
        return SumRange(self.plan)

    def _room(self, period: int) -> int:
        return self.plan.batch_of(period)

    def report(self, release: int) -> bytes:
        """The sums of the losses of one exchange: the same bytes for the same losses."""
        plan = of_experts(self.deployed)
        unit = exact.quantum(plan.silos * plan.horizon) if is_exact(self._noise) else None
        total = np.zeros(plan.experts)
        for name, (period, _) in self._places.items():
            ended = self.ended.get(name)
            if period == release and isinstance(ended, Lost) and ended.leaf == release:
                loss = np.frombuffer(ended.losses, dtype="<f8").astype(np.float64)
                aggregation.add(total, loss if unit is None else exact.quantise(loss, unit))
        return self.reported(release, total)


class SparseHub(ExpertHub):
    """The hub of `fed-svt`: `Hub` that keeps the expert of all, or switches it.

    Its noise is a function of all sums so far; that of the first threshold of none.

    Notes
    -----
    Guarantee: that of the plan's certificate for whoever reads which expert is played.
    """

    def _limits(self) -> SumRange:  # type: ignore[override]
        return SumRange(self.plan)

    def _serving(self, noise: NoiseSource | None) -> SparseVector:  # type: ignore[override]
        self._exact, self._units = False, noise is None
        plan = of_switches(self.deployed)
        self._history = digest(b"")
        self._sealing.hides(1, self._history)
        made = plan.decider(self._sealing.source if noise is None else noise)
        assert isinstance(made, SparseVector)
        # Of an earlier plan it is one that was released: later releases are private for any.
        made.begin(_begins(self.deployed))
        return made

    def _checked(self, found: wire.Envelope, who: str) -> np.ndarray:
        """The sums of a report; Refused where no losses have them."""
        values = Hub._checked(self, found, who)
        unit = exact.quantum(self.plan.silos * self.plan.horizon)
        off = self._units and not np.array_equal(values, exact.quantise(values, unit))
        if off or (values < 0.0).any():
            raise Refused(f"{who} must be sums of losses in [0, 1], in fixed point")
        return values

    def _combined(self, release: int, opened: Opened) -> np.ndarray:
        """The expert (d,) of all after an exchange; a silo that is not in the set has lost 0."""
        sums = np.zeros((self.plan.silos, self.plan.dimension))
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            sums[entry.silo] = self._checked(found, f"report {release} of {found.sender}")
        total = np.zeros(self.plan.dimension)
        for row in sums:
            total += row
        server = self._server
        assert isinstance(server, SparseVector)
        self._history = digest(self._history + packed(total))
        # Of the query and the choice, and of the threshold after a switch.
        self._sealing.hides(release, self._history)
        self._sealing.hides(server.switches + 2, self._history)
        made = np.zeros(self.plan.dimension)
        made[server.decide(total).expert] = 1.0
        return made
