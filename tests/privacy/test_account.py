"""The certificate is a function of the plan: planted faults are refused, and accounted as they are.

Every private system is put together, then its plan is changed behind the back of its claim. All
parties, drivers and the system itself must refuse that plan; accounted anew it must say the larger
epsilon that its noise truly gives.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle import dvijotham_2024

import fastfed
from fastfed import _system
from fastfed._system import UNVERIFIED, System, account
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.environments import Sphere, StochasticLosses
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.limited_updates import LimitedPlan
from fastfed.experts.plan import ExpertPlan
from fastfed.experts.plan import ProblemSpec as LossSetting
from fastfed.experts.private_dartboard import DartboardPlan
from fastfed.privacy.account import Claim, accounted, event_epsilon, sealed, verify
from fastfed.privacy.certificate import ClaimCondition
from fastfed.privacy.releases.buffered import buffers
from fastfed.privacy.releases.gaussian_release import RELEASES as RELEASE_KINDS
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import user_sensitivity
from fastfed.protocols.account import centred_of
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import ADD, AGENT_PROTOCOLS, PROTOCOLS, REPLACE, under_masks
from fastfed.protocols.schedule import DETERMINANT, Trigger
from fastfed.protocols.secure_sum import simulated_keys
from fastfed.protocols.serverless import PeerPlan, PhasePlan
from fastfed.simulation import compiled, experts, peers, phases, server
from fastfed.simulation.dispatch import run_steps
from fastfed.simulation.systems import ALGORITHMS

EPSILON, DELTA = 1.0, 1e-3
#: Seven releases make three levels of a tree; one more makes four.
RELEASES, BATCH = 7, 5


@dataclass(frozen=True)
class Case:
    """One private system, small; ``releases`` and ``batch`` are those of its plan."""

    algorithm: str
    keys: dict[str, Any] = field(default_factory=dict)
    silos: int = 3
    horizon: int = RELEASES * BATCH
    intercept: float | None = None

    @property
    def setting(self) -> Any:
        if self.algorithm.startswith(("fed-", "private-dart", "limited")):
            return LossSetting(silos=self.silos, horizon=self.horizon, experts=5)
        sizes = {"silos": self.silos, "horizon": self.horizon, "dimension": 3}
        return ProblemSpec(**sizes, intercept=self.intercept)

    def make(self, **changes: Any) -> Any:
        keys = {"epsilon": EPSILON, "delta": DELTA, **self.keys, **changes}
        for key in ("epsilon", "delta"):
            if f"silo_{key}" in keys:
                del keys[key]
        return ALGORITHMS.choose(self.algorithm).make(keys, self.setting)


def _private(protocol: str, **keys: Any) -> Case:
    usual = {} if protocol == "secure-sum" else {"release": "tree"}
    return Case("private-fedlinucb", {"protocol": protocol, "batch_size": BATCH, **usual, **keys})


def _agent(algorithm: str, batch_size: int = BATCH, **keys: Any) -> Case:
    horizon = RELEASES * batch_size
    return Case(algorithm, {"batch_size": batch_size, **keys}, silos=1, horizon=horizon)


def _feducb(algorithm: str, schedule: str, **keys: Any) -> Case:
    batch = {"batch_size": BATCH} if schedule == "fixed" else {}
    horizon = RELEASES * BATCH if schedule == "fixed" else RELEASES
    return Case(algorithm, {"schedule": schedule, **batch, **keys}, horizon=horizon)


#: Batches of 3, 4, 6, 9, 14, ... rounds.
GROWING: dict[str, Any] = {"batch_size": "growing", "batch_first": 3, "batch_ratio": 1.5}


def _growing(algorithm: str, horizon: int = 60, **keys: Any) -> Case:
    silos = 1 if algorithm.startswith("linucb") else 3
    return Case(algorithm, {**GROWING, **keys}, silos=silos, horizon=horizon)


def _centred(algorithm: str, **keys: Any) -> Case:
    """Rewards centred at 1/2, with a public constant of kappa = 3."""
    silos = 1 if algorithm.startswith("linucb") else 3
    keys = {"batch_size": BATCH, "reward_centre": 0.5, **keys}
    return Case(algorithm, keys, silos=silos, intercept=3.0)


_FACTORISED = {"release": "factorised"}
CASES = {
    "silo-ldp": _private("silo-ldp"),
    "silo-ldp eager": _private("silo-ldp", lazy=False),
    "silo-ldp iid": _private("silo-ldp", layout="iid"),
    "silo-ldp zero-out": _private("silo-ldp", relation="zero-out"),
    "silo-ldp published": _private("silo-ldp", calibration="published-code", clip=True),
    "silo-ldp prefix": _private("silo-ldp-prefix"),
    "silo-ldp toeplitz": _private("silo-ldp", release="toeplitz"),
    "silo-ldp buffered": _private("silo-ldp", release="buffered"),
    "silo-ldp honaker": _private("silo-ldp", release="honaker"),
    "silo-ldp by silo": Case(
        "private-fedlinucb", {"silo_epsilon": (0.5, 1.0, 0.5), "batch_size": BATCH}
    ),
    "central": _private("central"),
    "central toeplitz": _private("central", release="toeplitz"),
    "central buffered": _private("central", release="buffered"),
    "central honaker": _private("central", release="honaker"),
    "shuffle-amplified": _private("shuffle-amplified"),
    # So many silos that the lemma needs less noise than local privacy.
    "shuffle-amplified by the lemma": Case(
        "private-fedlinucb",
        {"protocol": "shuffle-amplified", "batch_size": 1, "epsilon": 0.3},
        silos=10**6,
        horizon=1,
    ),
    "shuffle-vector": _private("shuffle-vector", epsilon=5.0),
    "secure-sum": _private("secure-sum"),
    "linucb-jdp": _agent("linucb-jdp", release="tree"),
    "linucb-jdp toeplitz": _agent("linucb-jdp", release="toeplitz"),
    "linucb-jdp honaker": _agent("linucb-jdp", release="honaker"),
    "linucb-ldp": _agent("linucb-ldp"),
    "linucb-ldp vector": _agent("linucb-ldp", mechanism="vector-sum"),
    "linucb-ldp by users": _agent("linucb-ldp", messages="individual"),
    "linucb-sdp-amp": _agent("linucb-sdp-amp", 2000, epsilon=0.5),
    "linucb-sdp-vec": _agent("linucb-sdp-vec"),
    "linucb-sdp-vec by users": _agent(
        "linucb-sdp-vec", epsilon=8.0, messages="individual", honest_fraction=0.8
    ),
    "feducb fixed": _feducb("feducb", "fixed"),
    "feducb by silo": _feducb(
        "feducb", "fixed", silo_epsilon=(0.5, 1.0, 0.5), silo_delta=(1e-4, 1e-3, 1e-4)
    ),
    "feducb private-determinant": _feducb("feducb", "private-determinant"),
    "feducb-decentralized fixed": Case(
        "feducb-decentralized",
        {"schedule": "fixed", "batch_size": BATCH, "graph": "line"},
        horizon=2 * RELEASES * BATCH,
    ),
    "feducb-decentralized private": Case(
        "feducb-decentralized",
        {"schedule": "private-determinant", "graph": "line"},
        horizon=2 * RELEASES,
    ),
    "silo-ldp factorised": _private("silo-ldp", **_FACTORISED),
    "central factorised": _private("central", **_FACTORISED),
    "linucb-jdp factorised": _agent("linucb-jdp", **_FACTORISED),
    "silo-ldp growing": _growing("private-fedlinucb", protocol="silo-ldp"),
    "silo-ldp growing factorised": _growing("private-fedlinucb", **_FACTORISED),
    "silo-ldp growing toeplitz": _growing("private-fedlinucb", release="toeplitz"),
    "silo-ldp-prefix growing": _growing("private-fedlinucb", protocol="silo-ldp-prefix"),
    "central growing factorised": _growing("private-fedlinucb", protocol="central", **_FACTORISED),
    "shuffle-amplified growing": _growing("private-fedlinucb", protocol="shuffle-amplified"),
    "shuffle-vector flat": _private("shuffle-vector", epsilon=5.0, release="flat"),
    "shuffle-vector flat growing": _growing(
        "private-fedlinucb", 22, protocol="shuffle-vector", epsilon=5.0, release="flat"
    ),
    "linucb-jdp growing": _growing("linucb-jdp", **_FACTORISED),
    "linucb-ldp growing": _growing("linucb-ldp"),
    "linucb-ldp vector growing": _growing("linucb-ldp", 22, mechanism="vector-sum"),
    "linucb-sdp-amp growing": _growing(
        "linucb-sdp-amp", 6000, epsilon=0.5, batch_first=1000, batch_ratio=1.5
    ),
    "linucb-sdp-vec growing": _growing("linucb-sdp-vec", 22),
    "feducb fixed growing": _growing("feducb", schedule="fixed"),
    "feducb-decentralized fixed growing": _growing(
        "feducb-decentralized", 120, schedule="fixed", graph="line"
    ),
    "silo-ldp centred": _centred("private-fedlinucb"),
    "silo-ldp centred zero-out": _centred("private-fedlinucb", relation="zero-out"),
    "central centred factorised": _centred("private-fedlinucb", protocol="central", **_FACTORISED),
    "shuffle-vector centred": _centred(
        "private-fedlinucb", protocol="shuffle-vector", epsilon=5.0, release="flat"
    ),
    "linucb-jdp centred": _centred("linucb-jdp"),
    "linucb-sdp-vec centred": _centred("linucb-sdp-vec"),
    "robin": Case("robin", {"diversity": 0.2, "initial_phases": 2}, silos=30, horizon=62),
    "fed-svt": Case("fed-svt", {"optimal_loss": 2.0}, horizon=100),
    "fed-svt pure": Case("fed-svt", {"optimal_loss": 2.0, "delta": 0.0}, horizon=100),
    "private-dartboard": Case("private-dartboard", {}, horizon=100),
    "private-dartboard pure": Case("private-dartboard", {"delta": 0.0}, horizon=100),
    "limited-updates": Case("limited-updates", {}, horizon=100),
    "limited-updates pure": Case("limited-updates", {"delta": 0.0}, horizon=100),
    "fed-dp-ope-stoch local": Case(
        "fed-dp-ope-stoch", {"batch": "largest", "epsilon": 2.0}, horizon=300
    ),
    "fed-dp-ope-stoch messages": Case(
        "fed-dp-ope-stoch",
        {"batch": "largest", "epsilon": 2.0, "protect": "messages"},
        horizon=300,
    ),
    "fed-dp-ope-stoch central": Case(
        "fed-dp-ope-stoch", {"batch": "largest", "epsilon": 2.0, "noise": "central"}, horizon=300
    ),
}
BITS = tuple(
    name
    for name in CASES
    if name.startswith(("shuffle-vector", "linucb-sdp-vec", "linucb-ldp vector"))
)
FLAT = tuple(
    name
    for name in CASES
    if name.startswith(("linucb-ldp", "linucb-sdp"))
    or "flat" in name
    or name == "shuffle-vector centred"
)
FACTORISED = tuple(name for name in CASES if CASES[name].keys.get("release") == "factorised")
CENTRED = tuple(name for name in CASES if "reward_centre" in CASES[name].keys)
#: Where batches differ, and each has bits of its own.
UNEQUAL = tuple(name for name in BITS if "growing" in name)
EXPERTS = tuple(n for n in CASES if n.startswith(("fed-", "private-dart", "limited")))


# ---- faults --------------------------------------------------------------------------------------


def everywhere(plan: Any, change: Callable[[Plan], Plan]) -> Any:
    """A change of a linear plan, in every part of one that has parts."""
    if isinstance(plan, PeerPlan):
        parts = tuple(replace(part, plan=change(part.plan)) for part in plan.parts)
        return replace(plan, parts=parts)
    return change(plan)


def weaker(plan: Plan, factor: float) -> Plan:
    """The noise of a plan times a factor below 1."""
    if plan.encoding is not None:
        fewer = tuple(max(1, math.floor(b * factor**2)) for b in plan.encoding.noise_bits)
        return replace(plan, encoding=replace(plan.encoding, noise_bits=fewer))
    if plan.secure is not None:
        return with_shares(plan, tuple(2 * round(factor**2 * n / 2) for n in plan.secure.trials))
    return replace(plan, noise_std=plan.noise_std.times(factor))


def with_secure(plan: Plan, **changes: Any) -> Plan:
    """A plan with another secure sum, and its noise and factor."""
    secure = msgspec.structs.replace(plan.secure, **changes)
    factor = Factor(secure.prefix_weights)
    return replace(plan, secure=secure, noise_std=NoiseStd(*secure.stds), factor=factor)


def with_shares(plan: Plan, trials: tuple[int, ...]) -> Plan:
    """A plan whose silos add shares of so many coins."""
    return with_secure(plan, trials=trials)


def half_the_noise(case: Case, plan: Any) -> Any:
    if isinstance(plan, PhasePlan):
        louder = tuple(
            msgspec.structs.replace(m, epsilon_coordinate=2.0 * m.epsilon_coordinate)
            for m in plan.means
        )
        return replace(plan, means=louder)
    if isinstance(plan, SparseVectorPlan):
        noise, half = plan.noise, 0.5
        less = msgspec.structs.replace(
            noise,
            threshold_scale=half * noise.threshold_scale,
            query_scale=half * noise.query_scale,
            eta=noise.eta / half,
        )
        return replace(plan, noise=less)
    if isinstance(plan, DartboardPlan):
        return replace(plan, noise=msgspec.structs.replace(plan.noise, rate=2.0 * plan.noise.rate))
    if isinstance(plan, LimitedPlan):
        return replace(plan, noise=msgspec.structs.replace(plan.noise, eta=2.0 * plan.noise.eta))
    if isinstance(plan, FrankWolfePlan):
        less_phases = (replace(p, scales=tuple(0.5 * s for s in p.scales)) for p in plan.phases)
        return replace(plan, phases=tuple(less_phases))
    return everywhere(plan, lambda p: weaker(p, 0.5))


def one_release_short(case: Case, plan: Any) -> Any:
    """A plan of one release, or level, more than the account counted."""
    if isinstance(plan, PhasePlan):
        longer = replace(plan.local, horizon=2 * plan.horizon + 2)
        return replace(plan, local=longer, means=(*plan.means, plan.means[-1]))
    if isinstance(plan, (SparseVectorPlan, DartboardPlan)):
        noise = msgspec.structs.replace(plan.noise, switches=plan.noise.switches + 1)
        return replace(plan, noise=noise)
    if isinstance(plan, FrankWolfePlan):
        # A last tree more, with the noise of the one before.
        *others, last = plan.phases
        return replace(
            plan, phases=(*others, replace(last, scales=(*last.scales, last.scales[-1])))
        )

    def longer_by_one(p: Plan) -> Plan:
        made = replace(p, horizon=p.horizon + p.batch_size)
        if p.release_rounds:
            # As many as its tree has another level for.
            count = (1 << p.releases.bit_length()) if p.factor is None else p.releases + 1
            last = p.release_rounds[-1]
            more = tuple(last + 1 + i for i in range(count - p.releases))
            made = replace(p, horizon=max(more), release_rounds=(*p.release_rounds, *more))
        if p.factor is not None:
            # Its own noise is a little less than the others'.
            b = np.zeros((p.releases + 1, p.releases + 1))
            b[:-1, :-1] = p.factor.matrix
            b[-1, :-1], b[-1, -1] = b[-2, :-1], 0.9 * b[-2, -2]
            made = replace(made, factor=Factor(b))
        if p.encoding is None:
            return made
        e = p.encoding
        deeper = replace(
            e,
            precision=(*e.precision, e.precision[-1]),
            noise_bits=(*e.noise_bits, e.noise_bits[-1]),
        )
        return replace(made, encoding=deeper)

    return everywhere(plan, longer_by_one)


def bias_alone(case: Case, plan: Any) -> Any:
    """Noise that would do, were the covariance stream not released too."""

    def change(p: Plan) -> Plan:
        relation = p.privacy.budget.relation
        if p.encoding is not None:
            bias, covariance = p.encoding.steps(0)
            both = user_sensitivity(relation, "iid", bias_std=1 / bias, cov_std=1 / covariance)
            alone = user_sensitivity(relation, "iid", bias_std=1 / bias, cov_std=math.inf)
        else:
            bias, off, on = p.noise_std.parts
            layout = "iid" if off == on else "goe2"
            both = user_sensitivity(relation, layout, bias_std=bias, cov_std=off)
            alone = user_sensitivity(relation, layout, bias_std=bias, cov_std=math.inf)
            if (centred := centred_of(p.clip)) is not None:
                both = centred.joint(relation, layout, bias, off)
                alone = centred.joint(relation, layout, bias, math.inf)
        return weaker(p, alone / both)

    return everywhere(plan, change)


def without_noise(stream: str) -> Callable[[Case, Any], Any]:
    """One stream sent as it is."""

    def fault(case: Case, plan: Any) -> Any:
        def change(p: Plan) -> Plan:
            bias, off, on = p.noise_std.parts
            parts = (0.0, off, on) if stream == "bias" else (bias, 0.0, 0.0)
            if p.secure is not None:
                trials = p.secure.trials
                return with_shares(p, (0, *trials[1:]) if stream == "bias" else (trials[0], 0, 0))
            return replace(p, noise_std=NoiseStd(*parts))

        return everywhere(plan, change)

    return fault


def schedule_forgotten(case: Case, plan: Any) -> Any:
    """The sums have the whole budget, as if the schedule read nothing."""
    return everywhere(plan, lambda p: weaker(p, math.sqrt(0.5)))


def quiet_schedule(case: Case, plan: Any) -> Any:
    """The schedule reads sums with next to no noise."""

    def change(p: Plan) -> Plan:
        less = tuple(0.1 * std for std in p.trigger.std)
        return replace(p, trigger=replace(p.trigger, std=less))

    return everywhere(plan, change)


def raw_schedule(case: Case, plan: Any) -> Any:
    """The schedule's private sums have no noise at all."""
    return everywhere(plan, lambda p: replace(p, trigger=replace(p.trigger, std=(0.0, 0.0))))


def query_forgotten(case: Case, plan: Any) -> Any:
    noise = msgspec.structs.replace(plan.noise, query_scale=1e-3 * plan.noise.query_scale)
    return replace(plan, noise=noise)


def threshold_forgotten(case: Case, plan: Any) -> Any:
    noise = msgspec.structs.replace(plan.noise, threshold_scale=1e-3 * plan.noise.threshold_scale)
    return replace(plan, noise=noise)


def tree_forgotten(case: Case, plan: Any) -> Any:
    """One tree's scores without noise."""
    *others, last = plan.phases
    return replace(plan, phases=(*others, replace(last, scales=(*last.scales[:-1], 0.0))))


def doubled_sensitivity(case: Case, plan: Any) -> Any:
    """Records may be twice as large as the account takes them for."""
    if isinstance(plan, FrankWolfePlan):
        low, high, smoothness = plan.bounds
        wide = plan.bounds._replace(low=low - (high - low))
        assert wide.spread == pytest.approx(2.0 * plan.bounds.spread) and smoothness >= 0.0
        return replace(plan, bounds=wide)
    return everywhere(plan, lambda p: replace(p, clip=Clip(feature=2.0)))


def doubled_rewards(case: Case, plan: Any) -> Any:
    return everywhere(plan, lambda p: replace(p, clip=Clip(low=-2.0, high=2.0)))


def participation_counted_once(case: Case, plan: Any) -> Any:
    """The claim is about users of four batches, noise and epsilon are those of one."""

    def change(p: Plan) -> Plan:
        return replace(p, privacy=msgspec.structs.replace(p.privacy, max_participations=4))

    return everywhere(plan, change)


def one_silo_less(case: Case, plan: Any) -> Any:
    """One silo adds a third of its noise; the weakest budget alone does not show it."""
    first, *others = plan.silo_noise
    return replace(plan, silo_noise=(first / 1.5, *others))


def not_the_users_own(case: Case, plan: Any) -> Any:
    """More users are counted on than the noise was made for."""
    claim = msgspec.structs.replace(plan.privacy, honest_fraction=0.4)
    return replace(plan, privacy=claim)


def colluders_forgotten(case: Case, plan: Any) -> Any:
    """All silos but the user's own share what they know, one was counted."""
    protocol = under_masks(plan.protocol, plan.silos, plan.silos - 1)
    return replace(with_secure(plan, colluders=plan.silos - 1), protocol=protocol)


def longer_columns(case: Case, plan: Any) -> Any:
    """Batches enter the releases twice as large, under the same noise."""
    return with_secure(plan, factor=tuple(tuple(2 * c for c in row) for row in plan.secure.factor))


def another_relation(case: Case, plan: Any) -> Any:
    """Noise for zero-out neighbours, claimed for replacement."""

    def change(p: Plan) -> Plan:
        budget = msgspec.structs.replace(p.privacy.budget, relation="replace")
        return replace(p, privacy=msgspec.structs.replace(p.privacy, budget=budget))

    return everywhere(plan, change)


def factor_times(power: float) -> Callable[[Case, Any], Any]:
    """Another factor with the same noise, B D for a diagonal D of this power."""

    def fault(case: Case, plan: Any) -> Any:
        k = len(plan.factor)
        scale = np.linspace(1.0, 0.5, k) ** power
        return replace(plan, factor=Factor(plan.factor.matrix * scale))

    return fault


def identity_for_factor(case: Case, plan: Any) -> Any:
    """The noise that does for the optimal factor, with prefixes that have it for themselves."""
    return replace(plan, factor=Factor(np.eye(plan.releases)))


def other_centre(case: Case, plan: Any) -> Any:
    """Rewards are released less another number: they reach farther to one side."""
    return replace(plan, clip=replace(plan.clip, centre=0.1))


def no_constant(case: Case, plan: Any) -> Any:
    """The last feature is the user's own."""
    return replace(plan, clip=replace(plan.clip, constant=0.0, feature=1.0))


def larger_constant(case: Case, plan: Any) -> Any:
    return replace(plan, clip=replace(plan.clip, constant=1.5 * plan.clip.constant))


def wider_features(case: Case, plan: Any) -> Any:
    """Beside the constant features may be half as long again."""
    return replace(plan, clip=replace(plan.clip, feature=1.5 * plan.clip.feature))


def shorter_batch(case: Case, plan: Any) -> Any:
    """The first batch mixes fewer users than its noise was made for."""
    first, *rest = plan.release_rounds
    return replace(plan, release_rounds=(first - 1, *rest))


def less_chance(case: Case, plan: Any) -> Any:
    """Coins that tell more of what the expert lost."""
    return replace(plan, noise=msgspec.structs.replace(plan.noise, chance=0.5 * plan.noise.chance))


Fault = Callable[[Case, Any], Any]
_LINEAR = tuple(n for n in CASES if n not in (*EXPERTS, "robin"))
_GAUSSIAN = tuple(n for n in _LINEAR if n not in BITS)
_SCHEDULED = ("feducb private-determinant", "feducb-decentralized private")
#: Which faults make sense where. A user of one batch does not see how many others there are, so
#: for flat releases one more is none; the lemma's case has a single release of its own.
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "half the noise": (half_the_noise, tuple(CASES)),
    "one release short": (
        # A factor is of so many releases: `test_parts_of_a_secure_sum_belong_together`.
        # Fresh choices cost what one does.
        one_release_short,
        tuple(n for n in CASES if n not in (*FLAT, "secure-sum") and not n.startswith("limited")),
    ),
    "bias accounted alone": (
        bias_alone,
        # Where the bias stream alone costs as much as both, nothing is forgotten.
        tuple(n for n in _LINEAR if n not in _SCHEDULED
              and not n.startswith(("shuffle-amplified", "feducb"))),
    ),
    "bias without noise": (without_noise("bias"), _GAUSSIAN),
    "covariance without noise": (without_noise("covariance"), _GAUSSIAN),
    "schedule forgotten": (schedule_forgotten, _SCHEDULED),
    "schedule with less noise": (quiet_schedule, _SCHEDULED),
    "schedule without noise": (raw_schedule, _SCHEDULED),
    "p smaller": (less_chance, ("private-dartboard", "private-dartboard pure")),
    "query's noise forgotten": (query_forgotten, ("fed-svt", "fed-svt pure")),
    "threshold's noise forgotten": (threshold_forgotten, ("fed-svt", "fed-svt pure")),
    "a tree without noise": (
        tree_forgotten, tuple(n for n in CASES if n.startswith("fed-dp-ope")),
    ),
    "sensitivity doubled": (
        doubled_sensitivity, (*_LINEAR, *(n for n in CASES if n.startswith("fed-dp-ope"))),
    ),
    "rewards doubled": (doubled_rewards, _LINEAR),
    # Where unequal batches have bits of their own no account is proven: see below.
    "participation counted once": (
        participation_counted_once, tuple(n for n in _LINEAR if n not in UNEQUAL),
    ),
    "factor with less noise late": (factor_times(1.0), FACTORISED),
    "factor of prefixes alone": (identity_for_factor, FACTORISED),
    "centre changed": (other_centre, CENTRED),
    "constant forgotten": (no_constant, CENTRED),
    "constant larger": (larger_constant, CENTRED),
    "features beside the constant wider": (wider_features, CENTRED),
    # Towards local privacy only the user's own bits count.
    "a batch shorter than its noise": (
        shorter_batch, tuple(n for n in UNEQUAL if not n.startswith("linucb-ldp")),
    ),
    "a silo with less noise": (one_silo_less, ("silo-ldp by silo", "feducb by silo")),
    "users counted on": (not_the_users_own, ("shuffle-vector", "linucb-sdp-vec")),
    "colluders forgotten": (colluders_forgotten, ("secure-sum",)),
    "longer columns": (longer_columns, ("secure-sum",)),
    "another relation": (another_relation, ("silo-ldp zero-out",)),
}  # fmt: skip
PLANTED = [(fault, name) for fault, (_, names) in FAULTS.items() for name in names]


# ---- who refuses ---------------------------------------------------------------------------------


def parties(plan: Any) -> dict[str, Callable[[], Any]]:
    """Everybody who is handed the plan, by name."""
    if isinstance(plan, PeerPlan):
        return {"Peer": lambda: fastfed.parties.Peer(plan, 0)}
    if isinstance(plan, PhasePlan):
        return {
            "Client": lambda: fastfed.parties.Client(plan, 0),
            "Averager": lambda: fastfed.parties.Averager(plan),
        }
    if isinstance(plan, ExpertPlan):
        return {
            "ExpertClient": lambda: fastfed.parties.ExpertClient(plan, 0),
            "ExpertServer": lambda: fastfed.parties.ExpertServer(plan),
        }
    keys = simulated_keys(1, 0, plan.silos) if plan.secure is not None else None
    found: dict[str, Callable[[], Any]] = {
        "Silo": lambda: fastfed.parties.Silo(plan, 0, keys=keys),
        "Server": lambda: fastfed.parties.Server(plan),
        "Shuffler": lambda: fastfed.parties.Shuffler(plan),
    }
    if plan.by_users:
        found["User"] = lambda: fastfed.parties.User(plan, 1)
    return found


def drivers(plan: Any) -> dict[str, Callable[[], Any]]:
    """Both drivers, put to a small world of the plan's sizes."""
    marks = np.array([plan.horizon])
    if isinstance(plan, ExpertPlan):
        losses = StochasticLosses(experts=plan.experts).open(0, 0, plan.silos)
        return {
            "sums": lambda: experts.run(losses, plan, marks),
            "steps": lambda: run_steps(losses, plan, marks),
        }
    world = Sphere(dimension=plan.dimension, actions=2).open(0, 0, plan.silos)
    if isinstance(plan, PeerPlan):
        return {
            "compiled": lambda: peers.run(world, plan, marks),
            "steps": lambda: peers.run_steps(world, plan, marks),
        }
    if isinstance(plan, PhasePlan):
        return {
            "compiled": lambda: phases.run(world, plan, marks),
            "steps": lambda: phases.run_steps(world, plan, marks),
        }
    return {
        "compiled": lambda: compiled.run(world, [plan], marks),
        "steps": lambda: server.run_one(world, plan, marks),
    }


REFUSED = (
    r"its certificate says|must have one value for each of the|"
    # A part of more rounds than its plan has for it.
    r"the part of silos .* must be of \d+ silos, \d+ rounds"
)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_as_it_was_made_is_taken(name: str) -> None:
    system = CASES[name].make()
    plan = system.plan
    for make in parties(plan).values():
        make()
    # Long, or of many silos.
    if name != "shuffle-amplified by the lemma" and not name.startswith("linucb-sdp-amp"):
        for play in drivers(plan).values():
            play()
    assert account(plan, CASES[name].setting) == system.certificate
    assert system.certificate.conditions[-1].holds or "published" in name
    # What travels is enough: nothing is kept beside the plan.
    event_epsilon.cache_clear()
    sent = pickle.loads(pickle.dumps(plan))
    verify(sent)
    assert account(sent, CASES[name].setting) == system.certificate


def test_every_private_protocol_has_its_faults() -> None:
    """A new protocol, release, schedule or system needs a case of its own."""
    systems = [case.make() for case in CASES.values()]
    linear = [s.plan for s in systems if isinstance(s.plan, Plan)]
    private = {p.id for p in (*PROTOCOLS.values(), *AGENT_PROTOCOLS.values())} - {"none", "agent"}
    assert {p.protocol.id for p in linear} == private
    assert {p.release for p in linear} == set(RELEASE_KINDS)
    for noise_by in ("silos", "server"):
        assert {p.release for p in linear if p.protocol.noise_by == noise_by} == set(RELEASE_KINDS)
    claiming = {
        name
        for name, entry in ALGORITHMS.builtin.items()
        if "epsilon" in entry.config.__struct_fields__
    }
    assert {s.algorithm for s in systems} == claiming
    planted = {name for _, name in PLANTED}
    assert planted == set(CASES)


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_a_planted_fault_is_refused(fault: str, name: str) -> None:
    system = CASES[name].make()
    plan = FAULTS[fault][0](CASES[name], system.plan)
    for make in parties(plan).values():
        with pytest.raises(InputError, match=REFUSED):
            make()
    for play in drivers(plan).values():
        with pytest.raises(InputError, match=REFUSED):
            play()
    with pytest.raises(InputError, match=REFUSED):
        replace(system, plan=plan)


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_a_planted_fault_is_accounted_as_it_is(fault: str, name: str) -> None:
    """Made anew, the certificate of a faulty plan says the larger epsilon that it has."""
    case = CASES[name]
    system = case.make()
    plan = FAULTS[fault][0](case, system.plan)
    before = system.plan.privacy.exact
    if isinstance(plan, PeerPlan):
        parts = tuple(replace(part, plan=sealed(part.plan)) for part in plan.parts)
        plan = replace(plan, parts=parts)
    else:
        plan = sealed(plan)
    after = plan.privacy.exact
    assert len(before) == len(after)
    assert all(new >= old * (1.0 - 1e-9) for old, new in zip(before, after, strict=True))
    assert any(new > old * 1.001 for old, new in zip(before, after, strict=True))
    if not math.isfinite(after[0]):
        found = account(plan, case.setting)
        assert found.exact is None and found.status in ("unproven", "none")
        assert all(side.exact is None for side in found.also)
        return
    found = account(plan, case.setting)
    stated = found.exact or found.also[0].exact
    assert stated.epsilon == after[0]
    if "published" not in name and after[0] > before[0] * 1.001:
        missed = [c for c in found.conditions if not c.holds and type(c) is ClaimCondition]
        assert len(missed) == 1 and f"at most {found.claimed.epsilon:g}" in missed[0].text


# ---- what is not noise ---------------------------------------------------------------------------


def _eager(plan: Plan) -> Plan:
    return replace(plan, lazy=False)


def _unclipped(plan: Plan) -> Plan:
    return replace(plan, clip=None)


def _by_raw_data(plan: Plan) -> Plan:
    return replace(plan, batch_size=1, trigger=Trigger(DETERMINANT, 1.0))


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change)
     for name in ("silo-ldp", "central", "shuffle-amplified", "secure-sum", "linucb-jdp")
     for change in (_eager, _unclipped)]
    + [("every round", _by_raw_data), ("every round", _eager)],
)  # fmt: skip
def test_what_else_a_certificate_rests_on_cannot_be_changed(
    name: str, change: Callable[[Plan], Plan]
) -> None:
    """The noise is the same, and so is epsilon; its assumption is another, or is not kept."""
    case = Case("private-fedlinucb", {"batch_size": 1}, horizon=RELEASES)
    case = CASES.get(name, case)
    system = case.make()
    plan = change(system.plan)
    assert accounted(plan) == system.plan.privacy.exact
    if name == "every round" and change is _eager:
        # With B = 1 nothing raw is ever left over.
        fastfed.parties.Silo(plan)
        return
    for make in parties(plan).values():
        with pytest.raises(InputError, match="its certificate says"):
            make()
    for play in drivers(plan).values():
        with pytest.raises(InputError, match="its certificate says"):
            play()
    with pytest.raises(InputError, match="its certificate says"):
        replace(system, plan=plan)
    unknown = replace(case.setting, features_bounded=False, reward_range=None)
    assert account(sealed(plan), unknown).status in ("unproven", "none")


@pytest.mark.parametrize(
    ("name", "change"),
    {
        "noise_std": lambda p: replace(p, noise_std=p.noise_std.times(1.1)),
        "factor": lambda p: replace(p, factor=Factor(2.0 * p.factor.matrix)),
        "release": lambda p: replace(p, release="tree", factor=None),
        "silos": lambda p: replace(p, silos=p.silos + 1),
        "dimension": lambda p: replace(p, dimension=p.dimension + 1),
        "number of releases": lambda p: replace(p, horizon=p.horizon + p.batch_size),
        "number of records": lambda p: replace(p, batch_size=6, horizon=42),
        "constant feature": lambda p: replace(p, clip=replace(p.clip, constant=0.5)),
        "protocol": lambda p: replace(p, protocol=replace(p.protocol, analyzer=ADD)),
        "silo_noise": lambda p: replace(p, silo_noise=(1.0, 2.0, 2.0)),
        "no secure sum": lambda p: replace(p, protocol=PROTOCOLS["central"]),
        "a secure sum": lambda p: replace(p, secure=None),
        "trials": lambda p: replace(
            p, secure=msgspec.structs.replace(p.secure, trials=(2, 2, 2))
        ),
    }.items(),
)  # fmt: skip
def test_parts_of_a_secure_sum_belong_together(name: str, change: Callable[[Plan], Plan]) -> None:
    """What parties send and what simulations play: neither can be changed alone."""
    system = CASES["secure-sum"].make()
    plan, keys = change(system.plan), simulated_keys(1, 0, 3)
    said = "noise_std" if name == "trials" else name
    for refuse in (
        lambda: fastfed.parties.Silo(plan, 0, keys=keys),
        lambda: fastfed.parties.Server(plan),
        lambda: sealed(plan),
        *drivers(plan).values(),
        lambda: replace(system, plan=plan),
    ):
        with pytest.raises(InputError, match=f"{said}.* must be|must have {said}"):
            refuse()


# ---- claims and systems --------------------------------------------------------------------------


def test_a_certificate_that_says_another_epsilon_is_refused() -> None:
    system = CASES["silo-ldp"].make()
    better = msgspec.structs.replace(
        system.certificate, exact=msgspec.structs.replace(system.certificate.exact, epsilon=0.5)
    )
    with pytest.raises(InputError, match=r"epsilon 1, its certificate says 0\.5"):
        replace(system, certificate=better)
    other = msgspec.structs.replace(
        system.certificate, claimed=msgspec.structs.replace(system.certificate.claimed, epsilon=2.0)
    )
    with pytest.raises(InputError, match="the plan claims"):
        replace(system, certificate=other)
    weaker_relation = msgspec.structs.replace(system.certificate, relation="zero-out")
    with pytest.raises(InputError, match='the plan claims relation "replace"'):
        replace(system, certificate=weaker_relation)


def test_a_pair_that_nobody_accounts_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for a tree: a new randomizer needs an account of its own, registered or not."""
    plan = CASES["silo-ldp"].make().plan
    protocol = replace(plan.protocol, analyzer=REPLACE)
    monkeypatch.setitem(PROTOCOLS, "silo-ldp", protocol)
    with pytest.raises(InputError, match='protocol "silo-ldp" has no privacy account'):
        account(replace(plan, protocol=protocol), CASES["silo-ldp"].setting)


def test_the_claim_of_one_part_is_not_that_of_another() -> None:
    """The parts of a decentralised plan are verified one by one: a fault may be in one alone."""
    system = CASES["feducb-decentralized fixed"].make()
    for at, part in enumerate(system.plan.parts):
        faulty = replace(part, plan=weaker(part.plan, 0.9))
        parts = (*system.plan.parts[:at], faulty, *system.plan.parts[at + 1 :])
        with pytest.raises(InputError, match=REFUSED):
            replace(system, plan=replace(system.plan, parts=parts))
        with pytest.raises(InputError, match=REFUSED):
            peers.run(
                Sphere(dimension=3, actions=2).open(0, 0, 3),
                replace(system.plan, parts=parts),
                np.array([system.plan.horizon]),
            )


@pytest.mark.parametrize("name", UNEQUAL)
def test_users_of_several_unequal_batches_have_no_account(name: str) -> None:
    """Who claims them behind the back of a plan is refused, and gets no new certificate."""
    plan = participation_counted_once(CASES[name], CASES[name].make().plan)
    for make in (*parties(plan).values(), *drivers(plan).values(), lambda: sealed(plan)):
        with pytest.raises(InputError, match="no account is proven for users of several such"):
            make()


@pytest.mark.parametrize("name", FACTORISED)
@pytest.mark.parametrize("wrong", ["none", "short", "tree"])
def test_a_factor_of_another_release_is_refused(name: str, wrong: str) -> None:
    plan = CASES[name].make().plan
    if wrong == "none":
        plan = replace(plan, factor=None)
    elif wrong == "short":
        plan = replace(plan, factor=Factor(plan.factor.matrix[:-1, :-1]))
    else:
        plan = replace(plan, release="toeplitz")
    for make in (*parties(plan).values(), *drivers(plan).values(), lambda: sealed(plan)):
        with pytest.raises(InputError, match=r"factor (belongs to|must be of)"):
            make()


@pytest.mark.parametrize("rounds", [(5, 5), (5, 4), (0, 5), (5, 10**6)])
def test_rounds_that_no_schedule_has_are_refused(rounds: tuple[int, ...]) -> None:
    for name in ("silo-ldp growing", "central growing factorised", "linucb-ldp growing"):
        plan = CASES[name].make().plan
        faulty = replace(plan, release_rounds=(*rounds, *plan.release_rounds[2:]))
        for make in (*parties(faulty).values(), *drivers(faulty).values()):
            with pytest.raises(InputError, match="release_rounds must increase"):
                make()


def test_noise_within_a_claim_is_no_longer_the_plan_that_was_certified() -> None:
    """More noise is more private, and yet another plan: its certificate has other numbers."""
    plan = CASES["central"].make().plan
    with pytest.raises(InputError, match=r"gives epsilon 0\.4"):
        fastfed.parties.Server(replace(plan, noise_std=plan.noise_std.times(2.0)))


@pytest.mark.parametrize("algorithm", ["local-linucb", "random"])
def test_what_sends_nothing_cannot_be_made_to_send(algorithm: str) -> None:
    system = ALGORITHMS.choose(algorithm).make({}, ProblemSpec(silos=3, horizon=40, dimension=3))
    assert (system.certificate.status, system.certificate.exact.epsilon) == ("proven", 0.0)
    assert accounted(system.plan) == (0.0,)
    sends = replace(system.plan, batch_size=5, policy="ucb")
    with pytest.raises(InputError, match="gives epsilon infinity, its certificate says 0"):
        fastfed.parties.Silo(sends)
    with pytest.raises(InputError, match="gives epsilon infinity"):
        replace(system, plan=sends)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_plan_without_a_release_releases_nothing(lazy: bool) -> None:
    """A horizon that ends no batch: epsilon 0, proven, also where play is eager."""
    setting = ProblemSpec(silos=3, horizon=35, dimension=3)
    system = _private("silo-ldp", lazy=lazy).make()
    plan = sealed(replace(system.plan, horizon=4))
    assert plan.releases == 0 and plan.privacy.exact == (0.0,)
    found = account(plan, replace(setting, horizon=4))
    assert (found.status, found.exact.epsilon, found.claimed.epsilon) == ("proven", 0.0, 1.0)
    assert found.noise_std == {}
    fastfed.parties.Silo(plan)


def test_users_of_several_batches_are_in_claim_and_account() -> None:
    """What `returning` says reaches the claim, whatever the system."""
    for name in _LINEAR:
        if "returning" not in ALGORITHMS.choose(CASES[name].algorithm).config.__struct_fields__:
            continue
        if "published" in name or "by silo" in name or CASES[name].horizon == 1:
            continue
        if "decentralized" in name:
            continue
        if name in UNEQUAL:
            with pytest.raises(InputError, match=r"returning must be 1 \w+ batches"):
                CASES[name].make(returning=3)
            continue
        # Of feducb it is the silos that meet a user, of all others the user's batches.
        field, said = "max_participations", "a user takes part in at most 3 batches"
        if CASES[name].algorithm == "feducb":
            field, said = "silos_met", "at most 3 silos meet one user"
        system = CASES[name].make(returning=3)
        assert getattr(system.plan.privacy, field) == 3
        texts = [c.text for c in system.certificate.conditions]
        assert any(text.startswith(said) for text in texts)
        claim = msgspec.structs.replace(system.plan.privacy, **{field: 1})
        once = replace(system.plan, privacy=claim)
        assert accounted(once)[0] < accounted(system.plan)[0]


# ---- plans of other packages ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Foreign(ExpertPlan):
    """A kind of plan that fastfed knows nothing of."""

    @property
    def exchanges(self) -> int:
        return 0

    def exchanges_before(self, round: int) -> int:
        return 0

    def asking_rounds(self, last: int) -> np.ndarray:
        return np.zeros(0, np.int64)

    def collector(self, index: int, noise: Any) -> Any:
        return None

    def decider(self, noise: Any) -> Any:
        return None


def test_what_fastfed_cannot_account_for_is_its_packages_word() -> None:
    known = CASES["fed-svt"].make()
    plan = Foreign(silos=3, horizon=9, experts=5, protocol=known.plan.protocol)
    system = System("foreign", plan, known.certificate)
    found = system.certificate
    assert found.status == "conditional" and found.exact == known.certificate.exact
    assert [c for c in found.conditions if not c.holds] == [UNVERIFIED]
    fastfed.parties.ExpertClient(plan)
    with pytest.raises(InputError, match="must be of a kind that fastfed accounts for"):
        account(plan, CASES["fed-svt"].setting)
    with pytest.raises(InputError, match="no account is registered for plans of type"):
        sealed(replace(plan, privacy=Claim(source="mine")))


def test_a_plan_without_a_claim_proves_nothing() -> None:
    system = CASES["silo-ldp"].make()
    unsaid = replace(system, plan=replace(system.plan, privacy=None))
    assert unsaid.certificate.status == "conditional"
    assert UNVERIFIED in unsaid.certificate.conditions
    fastfed.parties.Silo(unsaid.plan)


def test_an_account_can_be_registered() -> None:
    """A package says what its plans release, and its certificate is proven."""

    @dataclass(frozen=True, kw_only=True)
    class Registered(Foreign):
        scale: float

    known = CASES["fed-svt"].make()
    fastfed.privacy.account.released.register(Registered, lambda plan: (known.plan.noise,))
    plan = sealed(
        Registered(
            silos=3, horizon=9, experts=5, protocol=known.plan.protocol, scale=1.0,
            privacy=known.plan.privacy,
        )
    )  # fmt: skip
    assert System("registered", plan, known.certificate).certificate.status == "proven"
    false = msgspec.structs.replace(plan.privacy, exact=(0.5,))
    with pytest.raises(InputError, match=r"its certificate says 0\.5"):
        fastfed.parties.ExpertServer(replace(plan, privacy=false))


# ---- random plans --------------------------------------------------------------------------------

QUICK, MANY = 60, 500


def drawn(seed: int) -> tuple[str, dict[str, Any], Any]:
    """A random system: algorithm, keys and problem."""
    r = random.Random(seed)
    horizon, batch = r.randint(20, 60), r.randint(3, 9)
    keys: dict[str, Any] = {
        "epsilon": math.exp(r.uniform(math.log(0.05), math.log(20.0))),
        "delta": 10.0 ** r.uniform(-9.0, -1.5),
        "relation": r.choice(["replace", "zero-out"]),
    }
    algorithm = r.choice(
        ["private-fedlinucb"] * 5
        + ["linucb-jdp", "linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec"]
        + ["feducb", "feducb-decentralized", "robin", "fed-svt", "fed-dp-ope-stoch"]
    )
    release = r.choice(["tree", "toeplitz", "honaker", "factorised", "buffered"])
    unequal = {"batch_size": "growing", "batch_first": batch, "batch_ratio": r.choice([1.0, 1.3])}
    batches: dict[str, Any] = unequal if r.random() < 0.4 else {"batch_size": batch}
    silos = r.choice([1, 3, 8])
    if algorithm == "private-fedlinucb":
        keys |= {**batches, "returning": r.choice([1, 1, 2, 4]), "lazy": r.random() < 0.8}
        protocol = r.choice(
            ["silo-ldp", "silo-ldp-prefix", "central", "shuffle-amplified", "shuffle-vector"]
        )
        keys["protocol"] = protocol
        if protocol in ("silo-ldp", "central"):
            keys["release"] = release
        if protocol == "shuffle-vector" and (batches is unequal or r.random() < 0.5):
            keys["release"] = "flat"
        if protocol == "silo-ldp" and r.random() < 0.3:
            del keys["epsilon"]
            keys["returning"] = 1
            keys["silo_epsilon"] = tuple(r.choice([0.5, 2.0, 7.0]) for _ in range(silos))
        if protocol not in ("shuffle-amplified", "shuffle-vector") and r.random() < 0.5:
            keys |= {"layout": r.choice(["iid", "goe1", "goe2"]),
                     "covariance_ratio": r.choice([0.3, 0.7, 1.0, 2.0])}  # fmt: skip
        return (
            algorithm,
            keys,
            ProblemSpec(silos=silos, horizon=horizon, dimension=r.choice([2, 5])),
        )
    if algorithm.startswith("linucb"):
        keys |= {**batches, "returning": r.choice([1, 1, 3])}
        if algorithm == "linucb-jdp":
            keys["release"] = release
        if algorithm in ("linucb-jdp", "linucb-ldp"):
            keys["layout"] = r.choice(["iid", "goe1", "goe2"])
        return algorithm, keys, ProblemSpec(silos=1, horizon=horizon, dimension=r.choice([2, 4]))
    if algorithm.startswith("feducb"):
        keys["schedule"] = r.choice(["fixed", "private-determinant"])
        if keys["schedule"] == "fixed":
            keys |= batches
            if algorithm == "feducb" and r.random() < 0.4:
                del keys["epsilon"], keys["delta"]
                keys["silo_epsilon"] = tuple(r.choice([0.5, 2.0, 7.0]) for _ in range(silos))
                keys["silo_delta"] = tuple(r.choice([1e-6, 1e-3]) for _ in range(silos))
        if algorithm == "feducb-decentralized":
            keys["graph"] = r.choice(["line", "star", "complete"])
        return algorithm, keys, ProblemSpec(silos=silos, horizon=horizon, dimension=3)
    del keys["relation"]
    if algorithm == "robin":
        keys |= {"diversity": 0.2, "initial_phases": r.randint(1, 4)}
        return algorithm, keys, ProblemSpec(silos=20, horizon=horizon, dimension=r.choice([2, 5]))
    if r.random() < 0.4:
        keys["delta"] = 0.0
    if algorithm == "fed-svt":
        keys |= {"optimal_loss": 2.0, "switches": r.choice(["proven", 3])}
    else:
        keys |= {"batch": "largest", "noise": r.choice(["local", "central"])}
        keys["epsilon"] *= 20.0
    return algorithm, keys, LossSetting(silos=silos, horizon=10 * horizon, experts=5)


def brute_squares(plan: Plan, participations: int) -> float:
    """Squared sensitivity of all releases to the worst set of batches of one user, from scratch."""
    k = plan.releases
    batches = range(1, k + 1)
    if plan.release == "honaker":
        return honaker_squares(k, participations)
    if plan.release == "factorised":
        # B C = A, exactly: entries of B are binary fractions.
        rows = exact_encoder(plan.factor.matrix)
    elif plan.release == "buffered":
        t, w, direct = buffers(k)
        rows = dvijotham_2024.encoder(
            dvijotham_2024.decoder(np.array(t), np.array(w), direct, k)
        ).tolist()
    elif plan.release == "toeplitz":
        f = [1.0]
        for i in range(1, k):
            f.append(f[-1] * (2 * i - 1) / (2 * i))
        rows = [[f[i - j] if i >= j else 0.0 for j in range(k)] for i in range(k)]
    else:
        # Each row says which batches a released node adds up.
        rows = []
        for end in batches:
            low = end & -end
            rows.append([1.0 if end - low < b <= end else 0.0 for b in batches])
    matrix = np.array(rows)
    count = min(participations, k)
    return max(
        float((matrix[:, list(chosen)].sum(axis=1) ** 2).sum())
        for chosen in combinations(range(k), count)
    )


def exact_encoder(matrix: np.ndarray) -> list[list[float]]:
    """C with B C = A, A the lower triangle of ones, by forward substitution in fractions."""
    b = [[Fraction(float(v)) for v in row] for row in matrix]
    c: list[list[Fraction]] = []
    for i, row in enumerate(b):
        above = [
            Fraction(int(j <= i)) - sum((row[m] * c[m][j] for m in range(i)), Fraction(0))
            for j in range(len(b))
        ]
        c.append([v / row[i] for v in above])
    return [[float(v) for v in row] for row in c]


def honaker_squares(k: int, participations: int) -> float:
    """The same where only prefixes are seen, each the sum of estimates of blocks (Honaker 2015).

    A Gaussian mechanism of covariance S, the noises' of all prefixes: squares are a' S^-1 a.
    """

    def estimate(end: int, level: int) -> dict[tuple[int, int], float]:
        """Weights of the noises of the nodes under a block."""
        if level == 0:
            return {(end, 0): 1.0}
        own = 2.0**level / (2.0 ** (level + 1) - 1.0)
        parts = estimate(end - 2 ** (level - 1), level - 1) | estimate(end, level - 1)
        return {(end, level): own} | {node: (1.0 - own) * w for node, w in parts.items()}

    nodes = [(end, j) for end in range(1, k + 1) for j in range((end & -end).bit_length())]
    weights = np.zeros((k, len(nodes)))
    for last in range(1, k + 1):
        end = last
        while end:
            for node, w in estimate(end, (end & -end).bit_length() - 1).items():
                weights[last - 1, nodes.index(node)] += w
            end &= end - 1
    whitened = np.linalg.solve(np.linalg.cholesky(weights @ weights.T), np.tril(np.ones((k, k))))
    return max(
        float((whitened[:, list(chosen)].sum(axis=1) ** 2).sum())
        for chosen in combinations(range(k), min(participations, k))
    )


def brute_joint(std: tuple[float, float, float], relation: str) -> float:
    """Ratio of one record in one release: the worst of a fine grid of unit vectors."""
    bias, off, on = std

    def point(angle: np.ndarray) -> np.ndarray:
        x, y = np.cos(angle), np.sin(angle)
        return np.stack([x / bias, y / bias, x * x / on, x * y / off, y * y / on])

    angles = np.linspace(0.0, 2.0 * np.pi, 361)
    ours = point(angles)
    if relation == "zero-out":
        return float(np.sqrt((ours**2).sum(axis=0)).max())
    turned = [point(angles + t) for t in np.linspace(0.0, np.pi, 181)]
    start = max(float(((ours - other) ** 2).sum(axis=0).max()) for other in turned)
    # Refined about the best pair.
    at = max(range(181), key=lambda i: float(((ours - turned[i]) ** 2).sum(axis=0).max()))
    first = int(((ours - turned[at]) ** 2).sum(axis=0).argmax())
    a, t, width = angles[first], np.linspace(0.0, np.pi, 181)[at], 0.05
    for _ in range(8):
        grid = np.linspace(-width, width, 13)
        found = [
            (
                float(((point(np.array([a + u])) - point(np.array([a + u + t + v]))) ** 2).sum()),
                u,
                v,
            )
            for u in grid
            for v in grid
        ]
        best, u, v = max(found)
        a, t, width, start = a + u, t + v, width / 3.0, max(start, best)
    return math.sqrt(start)


def independent_epsilon(plan: Plan, std: NoiseStd) -> float:
    """By brute force and dp_accounting, for Gaussian noise of one kind."""
    from dp_accounting.pld import privacy_loss_mechanism

    claim = plan.privacy
    joint = brute_joint(std.parts, claim.budget.relation)
    if plan.protocol.senders == "users":
        squares = float(claim.max_participations)
    else:
        squares = brute_squares(plan, claim.max_participations)
    mu = math.sqrt(squares) * joint
    if plan.trigger is not None:
        nodes = plan.horizon.bit_length()
        off, on = plan.trigger.std
        change = brute_joint((math.inf, off, on), claim.budget.relation)
        mu = math.hypot(mu, math.sqrt(nodes) * change)
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(1.0, sensitivity=mu)
    low, high = 0.0, 1.0
    while loss.get_delta_for_epsilon(high) > claim.budget.delta:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        if loss.get_delta_for_epsilon(middle) > claim.budget.delta:
            low = middle
        else:
            high = middle
    return high


def gaussian_std(plan: Any) -> NoiseStd | None:
    """Of the noise that one account is about; None where it is not Gaussian alone."""
    if not isinstance(plan, Plan) or plan.protocol.bits or plan.protocol.shuffled:
        return None
    if plan.protocol.senders == "users":
        return plan.user_std
    return plan.noise_std.times(min(plan.noise_scale))


def check_random(seed: int) -> bool:
    """Whether the drawn system exists; then its certificate is the account of its plan."""
    algorithm, keys, setting = drawn(seed)
    try:
        system = ALGORITHMS.choose(algorithm).make(keys, setting)
    except InputError:
        return False
    plan, stated = system.plan, system.certificate
    event_epsilon.cache_clear()
    assert account(plan, setting) == stated, (seed, algorithm, keys)
    verify(plan)
    exact = stated.exact or stated.also[0].exact
    assert exact.epsilon == accounted(plan)[0]
    one = (
        max(plan.parts, key=lambda p: p.plan.releases).plan
        if algorithm == "feducb-decentralized"
        else plan
    )
    std = gaussian_std(one)
    if std is not None:
        found = independent_epsilon(one, std)
        if one.release in ("honaker", "factorised") and one.privacy.max_participations > 1:
            # A proven bound, not the value: never below it, and little above.
            most = 1.1 if one.release == "honaker" else 1.2
            assert found * (1.0 - 1e-6) <= exact.epsilon <= most * found + 1e-9, (seed, keys)
        else:
            assert exact.epsilon == pytest.approx(found, rel=1e-6, abs=1e-9), (seed, keys)
    return True


@pytest.mark.parametrize("tens", range(QUICK // 10))
def test_random_plans_are_what_their_certificates_say(tens: int) -> None:
    made = sum(check_random(seed) for seed in range(10 * tens, 10 * tens + 10))
    assert made >= 7


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(QUICK // 10, QUICK // 10 + MANY // 10))
def test_many_random_plans_are_what_their_certificates_say(tens: int) -> None:
    made = sum(check_random(seed) for seed in range(10 * tens, 10 * tens + 10))
    assert made >= 6


def test_parties_verify_one_plan_once() -> None:
    """Thousands of silos share one plan: its account is computed once."""
    plan = CASES["shuffle-amplified by the lemma"].make().plan
    event_epsilon.cache_clear()
    for index in range(20):
        fastfed.parties.Silo(plan, index)
    assert event_epsilon.cache_info().misses == 1 and event_epsilon.cache_info().hits >= 19
    assert _system.account is account
