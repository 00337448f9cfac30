"""Audits by name: of protocols, of mechanisms and of schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from fastfed._kernels import linalg
from fastfed._random import SeededNoise, check_seed
from fastfed._validate import InputError, integer, nearest, show
from fastfed.bandits.peer import Message, Peer
from fastfed.bandits.silo import Silo
from fastfed.privacy.audit import mechanisms as mechanisms
from fastfed.privacy.audit import secure_sum as of_secure_sum
from fastfed.privacy.audit.bounds import AuditResult, audit, epsilon_lower_bound, judged
from fastfed.privacy.audit.mechanisms import WORST_PAIR
from fastfed.privacy.releases.prefix_sums import touches
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import REPLACE
from fastfed.protocols.schedule import DETERMINANT
from fastfed.protocols.serverless import Network, PeerPlan, Sums
from fastfed.simulation.audit import experts as of_experts
from fastfed.simulation.audit import lifecycle as of_lifecycle
from fastfed.simulation.audit import own_rounds as of_own_rounds
from fastfed.simulation.audit.low_bits import audit_low_bits
from fastfed.simulation.server import Federation
from fastfed.simulation.systems import make_system

# ---- The audit of schedules: whether the rounds of synchronisation give a user away --------------
# Two silos; the first user of one of them has a feature vector of norm 1 or of norm 1/20, everybody
# else the zero vector. The threshold lies between the values that the system's own rule takes in
# the two worlds after the first round, and what the audit looks at is whether the silos synchronise
# then: an event that was fixed before it was counted, so all runs count. No message is read.
# Source: zhou-chowdhury-2024, Example 3.1 and Appendix B.1.


SCHEDULE_AUDITS: dict[str, dict[str, Any]] = {
    "feducb-schedule": {"schedule": "determinant"},
    "feducb-schedule-fixed": {"schedule": "fixed", "batch_size": 1},
    "feducb-schedule-private": {"schedule": "private-determinant"},
}
CLAIM = (1.0, 0.01)
SILOS, HORIZON, SCHEDULE_DIMENSION = 2, 8, 2
#: The victim's features in the two worlds.
VICTIM = (np.array([1.0, 0.0]), np.array([0.05, 0.0]))


def plan_of(keys: dict[str, Any]) -> Plan:
    """The system under audit."""
    epsilon, delta = CLAIM
    sizes: dict[str, Any] = {"silos": SILOS, "horizon": HORIZON, "dimension": SCHEDULE_DIMENSION}
    system = make_system("feducb", **sizes, epsilon=epsilon, delta=delta, **keys)
    return check_plan(system.plan)


def trigger_value(plan: Plan, x: np.ndarray) -> float:
    """Value that the silo's rule compares with D after a first round with these features.

    Without noise: a private rule's value is a draw about this one.
    """
    assert plan.trigger is not None
    quiet = replace(plan, trigger=replace(plan.trigger, kind=DETERMINANT), privacy=None)
    silo = Silo(quiet, 0, SeededNoise(0))
    silo.select(x[None])
    silo.observe(1.0)
    assert silo.trigger is not None
    return silo.trigger.value


def synchronised(plan: Plan, noise: SeededNoise, x: np.ndarray) -> bool:
    """True if the silos synchronise after the first round."""
    silos = [Silo(plan, i, noise) for i in range(SILOS)]
    for i, silo in enumerate(silos):
        silo.select(x[None] if i == 0 else np.zeros((1, SCHEDULE_DIMENSION)))
        silo.observe(1.0)
    return any(silo.due for silo in silos)


def audit_schedule(name: str, trials: int, seed: int) -> AuditResult:
    """Audit one schedule with ``trials`` runs of either world."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    keys = SCHEDULE_AUDITS[name]
    plan = plan_of(keys)
    if plan.trigger is not None:
        values = [trigger_value(plan, x) for x in VICTIM]
        plan = plan_of({**keys, "communication": float(np.mean(values))})
    hits = [
        sum(synchronised(plan, SeededNoise(seed, 2 * run + world), x) for run in range(trials))
        for world, x in enumerate(VICTIM)
    ]
    epsilon, delta = CLAIM
    bound = epsilon_lower_bound(hits[0], hits[1], trials, delta)
    return judged(name, bound, trials, claimed_epsilon=epsilon, delta=delta)


# Audits of whole systems: silos and servers as deployed, run on two neighbouring datasets.
# Every silo plays the same one action in every round, so that the datasets differ in nothing but
# one record: the first user of silo 0, who enters the most tree nodes. What the server may see is
# projected on what the change of that record moves. Systems of experts: `audits_experts`.


Audit = Callable[[int, int], AuditResult]

RELEASES = 7  # kappa = 3, and few enough rounds to run them many times
CLAIM = (1.0, 0.01)
DIMENSION = 2


@dataclass(frozen=True)
class Case:
    """A system under audit; ``layout`` names its worst pair of records."""

    algorithm: str
    keys: dict[str, Any]
    layout: str
    silos: int = 1
    #: Noise bits divided by this, behind the certificate's back.
    fault: int = 1

    def plan(self) -> Any:
        epsilon, delta = CLAIM
        system = make_system(
            self.algorithm,
            silos=self.silos,
            horizon=RELEASES,
            dimension=DIMENSION,
            batch_size=1,
            epsilon=epsilon,
            delta=delta,
            **self.keys,
        )
        plan = system.plan
        if plan.driver == "peers":
            return plan
        if plan.encoding is not None:
            # Bits as their counts, which have the same distribution and do not take minutes.
            plan = replace(plan, individual=False)
        if plan.encoding is None or self.fault == 1:
            return plan
        fewer = tuple(max(1, b // self.fault) for b in plan.encoding.noise_bits)
        # A plan that claimed its budget would be refused.
        encoding = replace(plan.encoding, noise_bits=fewer)
        return replace(plan, encoding=encoding, privacy=None)


OTHER = np.full((1, DIMENSION), np.sqrt(0.5))


def seen(plan: Plan, noise: SeededNoise, first: np.ndarray) -> np.ndarray:
    """Messages that the server sees of each release, one message or the sum of several: (K, s).

    Of users' own messages, whose sum is all that counts, what the server makes of them.
    """
    federation, shown = Federation(plan, noise), []
    for round in range(plan.horizon):
        for i, player in enumerate(federation.players):
            player.select(first[None] if i == round == 0 else OTHER)
            player.observe(1.0)
        before = federation.total
        messages = federation.exchange()
        if plan.protocol.flat:
            shown.append(federation.total - before)
        else:
            shown.append(np.sum([m.values for m in messages], axis=0))
    return np.array(shown)


def heard(plan: PeerPlan, noise: SeededNoise, first: np.ndarray) -> np.ndarray:
    """Reports of silo 0 that its neighbours hear, (K, s)."""
    peers = [Peer(plan, i, noise) for i in range(plan.silos)]
    network: Network[Message] = Network(plan.graph, plan.gamma)
    shown = []
    for round in range(plan.horizon):
        for i, message in network.deliver():
            peers[i].receive(message)
            if i == 1 and message.silo == 0 and isinstance(message, Sums):
                shown.append(message.report.values)
        for i, peer in enumerate(peers):
            peer.select(first[None] if i == round == 0 else OTHER)
            peer.observe(1.0)
            for message in peer.outbox():
                network.broadcast(i, message)
    shown += [m.report.values for i, m in network.deliver() if i == 1 and isinstance(m, Sums)]
    return np.array(shown)


def nodes_of(plan: Plan, shown: np.ndarray) -> np.ndarray:
    """The tree nodes (K, s) behind what was shown: prefix sums are undone."""
    if plan.protocol.analyzer != REPLACE:
        return shown
    before = np.concatenate([np.zeros((1, shown.shape[1])), shown])
    return np.array([before[k] - before[k & (k - 1)] for k in range(1, len(before))])


def statistics(case: Case, trials: int, seed: int, world: int) -> np.ndarray:
    """Log likelihood ratio (trials,), up to a constant and for Gaussian noise, of the touched
    nodes; bits are nearly Gaussian, and a bound from any statistic is a bound."""
    made = case.plan()
    peers = made.driver == "peers"
    plan = made.parts[0].plan if peers else made
    # Without a tree the first record is in the first release only.
    nodes = [0] if plan.protocol.flat else [k - 1 for k in touches(1, plan.releases)]
    pair = [np.array(x) for x in WORST_PAIR[case.layout]]
    change = np.zeros(plan.statistic_size)
    for sign, x in ((-1.0, pair[0]), (1.0, pair[1])):
        point = np.zeros_like(change)
        linalg.accumulate(point, x, 1.0)
        change += sign * point
    if plan.encoding is not None:
        # A node of level j is seen in steps of 1 / g_j, or without a tree in units of the sum, with
        # the noise of its bits.
        levels = range(len(nodes))
        g = np.array([plan.encoding.each(j, DIMENSION) for j in levels])
        points = np.array([plan.silos * plan.points(j) for j in levels])
        variance = 0.1875 * points * np.array(plan.encoding.noise_bits[: len(nodes)])
        direction = g ** (2 if plan.protocol.flat else 1) / variance[:, None] * change
    else:
        std = plan.noise_std
        rows, columns = np.tril_indices(DIMENSION)
        on = np.where(rows == columns, std.diagonal, std.off_diagonal)
        stds = np.concatenate([np.full(DIMENSION, std.bias), on])
        direction = np.tile(change / stds**2, (len(nodes), 1))
    found = np.empty(trials)
    for run in range(trials):
        # The worlds take replicates of their own: even and odd.
        noise = SeededNoise(seed, 2 * run + world)
        shown = heard(made, noise, pair[world]) if peers else seen(made, noise, pair[world])
        found[run] = np.sum(nodes_of(plan, shown)[nodes] * direction)
    return found


def run(case: Case, name: str, trials: int, seed: int) -> AuditResult:
    """Audit one system with ``trials`` runs on each dataset."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    epsilon, delta = CLAIM
    first, second = (statistics(case, trials, check_seed(seed), world) for world in (0, 1))
    return audit(name, first, second, claimed_epsilon=epsilon, delta=delta)


_CASES = {
    "private-fedlinucb": Case(
        "private-fedlinucb", {"protocol": "silo-ldp", "release": "tree"}, "goe2"
    ),
    "vector-sum": Case(
        "private-fedlinucb", {"protocol": "shuffle-vector", "release": "tree"}, "iid", silos=2
    ),
    "fault-quarter-of-the-bits": Case(
        "private-fedlinucb",
        {"protocol": "shuffle-vector", "release": "tree"},
        "iid",
        silos=2,
        fault=4,
    ),
    "linucb-ldp": Case("linucb-ldp", {"radius": "lemma-a2"}, "goe2"),
    "linucb-sdp-amp": Case("linucb-sdp-amp", {"radius": "lemma-a2"}, "goe2"),
    "linucb-sdp-vec": Case("linucb-sdp-vec", {"radius": "lemma-a2"}, "iid"),
    "fault-users-quarter-of-the-bits": Case(
        "linucb-sdp-vec", {"radius": "lemma-a2"}, "iid", fault=4
    ),
    "feducb": Case("feducb", {"schedule": "fixed"}, "goe2"),
    "feducb-decentralized": Case(
        "feducb-decentralized", {"schedule": "fixed", "graph": "complete"}, "goe2", silos=2
    ),
}

#: Name -> audit(trials, seed): mechanisms, systems, schedules, and faults planted in them.
AUDITS: dict[str, Audit] = {
    **mechanisms.AUDITS,
    **{name: partial(run, case, name) for name, case in _CASES.items()},
    **{name: partial(audit_schedule, name) for name in SCHEDULE_AUDITS},
    **of_experts.AUDITS,
    **of_lifecycle.AUDITS,
    **of_secure_sum.AUDITS,
    **of_own_rounds.AUDITS,
    "low-bits": partial(audit_low_bits, "low-bits"),
}
#: What an audit is to catch: planted faults, and the schedule that raw data make.
FAULTY = (
    mechanisms.FAULTY
    | of_experts.FAULTY
    | of_lifecycle.FAULTY
    | of_secure_sum.FAULTY
    | of_own_rounds.FAULTY
    | {
        "fault-quarter-of-the-bits",
        "fault-users-quarter-of-the-bits",
        "feducb-schedule",
    }
)
TRIALS: dict[str, int] = {
    **mechanisms.TRIALS,
    **dict.fromkeys(_CASES, 6000),
    **dict.fromkeys(("feducb-decentralized", *SCHEDULE_AUDITS), 4000),
    **of_experts.TRIALS,
    **of_lifecycle.TRIALS,
    **of_secure_sum.TRIALS,
    **of_own_rounds.TRIALS,
    "low-bits": 300,
}


def run_audit(name: str, trials: int | None = None, seed: int = 1) -> AuditResult:
    """The audit of this name; ``trials`` runs on each dataset (default: enough for a verdict)."""
    if name not in AUDITS:
        raise InputError(
            f"unknown audit {show(name)}{nearest(str(name), AUDITS)} (`fastfed audit list` names "
            "all)"
        )
    return AUDITS[name](TRIALS[name] if trials is None else trials, seed)


# ---- What every audit attacks, its unit and its relation: `fastfed audit list` -------------------


class ListedAudit(msgspec.Struct, frozen=True):
    """One audit. attacks: what is run and looked at. unit, relation: what the two datasets differ
    in. planted: whether it is a fault put there on purpose. must_be_caught: planted faults, and
    what was published and does not keep its claim. trials: runs on each dataset by default."""

    name: str
    attacks: str
    unit: str
    relation: str
    planted: bool
    must_be_caught: bool
    trials: int


_USER = ("user", "replace")
_LOSS = ("loss of one client in one round", "replace")
_NUMBER = ("number", "sensitivity 1")
_VALUE = ("value", "replace")
_VECTOR = ("vector", "replace")

#: Name -> (what it attacks, (unit, relation)).
ABOUT: dict[str, tuple[str, tuple[str, str]]] = {
    "gaussian-tree": ("nodes of the binary tree, exact calibration", _USER),
    "gaussian-tree-theorem": ("the same nodes with the noise of the paper's theorem", _USER),
    "gaussian-tree-published-code": ("the same nodes with the noise of the paper's code", _USER),
    "gaussian-tree-prefix": ("prefix sums of the tree, node noise reused", _USER),
    "honaker": ("prefix sums by Honaker's weighted tree", _USER),
    "toeplitz": ("prefix sums by the square-root Toeplitz factor", _USER),
    "laplace": ("one number with Laplace noise", _NUMBER),
    "exponential": ("a choice by the exponential mechanism, cdf inverted", _NUMBER),
    "exponential-gumbel": ("the same choice by Gumbel noise", _NUMBER),
    "sparse-vector": ("the first query above a noisy threshold", _NUMBER),
    "private-range": ("the interval where most values are", _VALUE),
    "winsorized-mean-1d": ("the winsorized mean of numbers", _VALUE),
    "winsorized-mean": ("the winsorized mean of vectors", _VECTOR),
    "fault-natural-log": ("tree noise for 1 + ln K nodes instead of 1 + log2 K", _USER),
    "fault-kappa-forgotten": ("tree noise for one node a record", _USER),
    "fault-bias-forgotten": ("tree noise for the covariance stream alone", _USER),
    "fault-noise-redrawn": ("prefix sums whose nodes get new noise each time", _USER),
    "fault-bare-threshold": ("sparse vector without noise on the threshold", _NUMBER),
    "fault-winsorized-half-noise": ("the winsorized mean with half of its noise", _VECTOR),
    "fault-float-noise": ("low bits of a statistic plus noise, added as doubles", _USER),
    "noisy-argmin": ("the least of scores with Laplace noise", _NUMBER),
    "sparse-switching": ("times and choices of switches between experts", _LOSS),
    "fault-noisy-argmin-printed": ("noisy argmin with the paper's noise", _NUMBER),
    "fault-sparse-switching-printed-threshold": ("switching by a bare threshold", _LOSS),
    "private-fedlinucb": ("messages of a deployed silo, silo-ldp", _USER),
    "vector-sum": ("sums that the server gets of shuffled bits", _USER),
    "fault-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "linucb-ldp": ("users' messages to an untrusted agent", _USER),
    "linucb-sdp-amp": ("users' messages after the shuffler", _USER),
    "linucb-sdp-vec": ("users' shuffled bits", _USER),
    "fault-users-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "feducb": ("messages of a deployed silo, fixed schedule", _USER),
    "feducb-decentralized": ("messages that peers hear of each other", _USER),
    "feducb-schedule": ("when the raw determinant asks for a synchronisation", _USER),
    "feducb-schedule-fixed": ("when a fixed schedule synchronises", _USER),
    "feducb-schedule-private": ("when the private determinant asks for one", _USER),
    "fed-svt": ("experts that deployed clients play, Fed-SVT", _LOSS),
    "fault-fed-svt-printed-threshold": ("the same with a bare threshold", _LOSS),
    "private-dartboard": ("experts that deployed clients play, private dartboard", _LOSS),
    "fault-private-dartboard-bare-coin": ("the same with a coin of the loss alone", _LOSS),
    "fed-dp-ope-stoch": ("experts that deployed clients play, central noise", _LOSS),
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": ("the same with a quarter of the noise", _LOSS),
    "copies": ("copies and pickles of every object that draws noise", _USER),
    "stateful-score": ("the next user's action, by a score function that writes its state", _USER),
    "fault-restart": ("one node reported anew after each restart of a silo", _USER),
    "fault-stateful-score": ("the next user's action, by a score with memory of its own", _USER),
    "secure-sum": ("all noisy sums of the counted silos, as server and colluders see them", _USER),
    "secure-sum-low-bits": ("the low bits of the first of these sums", _USER),
    "fault-secure-sum-half-noise": ("the same sums with half of the noise", _USER),
    "fault-secure-sum-colluders": ("shares for no colluder, and all silos but one collude", _USER),
    "fault-secure-sum-columns": ("sums whose factor is twice the one that was paid for", _USER),
    "fault-secure-sum-coarse-noise": ("low bits under noise whose last bits are 0", _USER),
    **{name: (attacks, _USER) for name, attacks in of_own_rounds.ABOUT.items()},
    "low-bits": ("low bits of what deployed objects release, five kinds", _USER),
}


def listed() -> list[ListedAudit]:
    """Every audit by name."""
    missing = [name for name in AUDITS if name not in ABOUT]
    if missing:
        raise InputError(f"audits must say what they attack, got nothing of {missing}")
    return [
        ListedAudit(
            name,
            ABOUT[name][0],
            *ABOUT[name][1],
            planted=name.startswith("fault-"),
            must_be_caught=name in FAULTY,
            trials=TRIALS[name],
        )
        for name in AUDITS
    ]
