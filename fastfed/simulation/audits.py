"""Audits of whole systems: silos and servers as deployed, run on two neighbouring datasets.

Every silo plays the same one action in every round, so that the datasets differ in nothing but one
record: the first user of silo 0, who enters the most tree nodes. What the server may see is
projected on what the change of that record moves. Systems of experts: `audits_experts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import SeededNoise, check_seed
from fastfed._validate import choice, integer
from fastfed.bandits.peer import Message, Peer
from fastfed.bandits.silo import Silo
from fastfed.privacy import audits as mechanisms
from fastfed.privacy.audit import AuditResult, audit
from fastfed.privacy.audits import WORST_PAIR
from fastfed.privacy.tree import touches
from fastfed.protocols.network import Network
from fastfed.protocols.peers import PeerPlan, Sums
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import REPLACE
from fastfed.protocols.server import Server
from fastfed.protocols.shuffler import Shuffler
from fastfed.simulation import audits_experts as of_experts
from fastfed.simulation import audits_lifecycle as of_lifecycle
from fastfed.simulation.low_bits import audit_low_bits
from fastfed.simulation.schedule_audit import SCHEDULE_AUDITS, audit_schedule
from fastfed.simulation.step import Users
from fastfed.simulation.systems import make_system

Audit = Callable[[int, int], AuditResult]

RELEASES = 7  # kappa = 3, and few enough rounds to play them many times
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

    def plan(self) -> Plan | PeerPlan:
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
        assert not isinstance(plan, PhasePlan)
        if isinstance(plan, Plan) and plan.encoding is not None:
            # Bits as their counts, which have the same law and do not take minutes.
            plan = replace(plan, individual=False)
        if isinstance(plan, PeerPlan) or plan.encoding is None or self.fault == 1:
            return plan
        fewer = tuple(max(1, b // self.fault) for b in plan.encoding.noise_bits)
        # A plan that claimed its budget would be refused.
        encoding = replace(plan.encoding, noise_bits=fewer)
        return replace(plan, encoding=encoding, privacy=None)


OTHER = np.full((1, DIMENSION), np.sqrt(0.5))


def seen(plan: Plan, noise: SeededNoise, first: np.ndarray) -> np.ndarray:
    """What the server sees of each release, one message or the sum of several: (K, s).

    Of users' own messages, whose sum is all that counts, what the server makes of them.
    """
    silos, server = [Silo(plan, i, noise) for i in range(plan.silos)], Server(plan, noise)
    shuffler, users, shown = Shuffler(plan, noise), Users(plan, noise), []
    before = np.zeros(plan.statistic_size)
    for round in range(plan.horizon):
        for i, silo in enumerate(silos):
            x = first[None] if i == round == 0 else OTHER
            silo.select(x)
            if silo.acts_only:
                users.send(round + 1, x[0], 1.0)
                silo.served()
            else:
                silo.observe(1.0)
        reports = users.messages() or [silo.report() for silo in silos]
        passed = shuffler.shuffle(reports) if plan.protocol.shuffled else reports
        broadcast = server.combine(passed)
        for silo in silos:
            silo.receive(broadcast)
        if plan.protocol.flat:
            shown.append(broadcast.values - before)
            before = broadcast.values
        else:
            shown.append(np.sum([m.values for m in passed], axis=0))  # type: ignore[union-attr]
    return np.array(shown)


def heard(plan: PeerPlan, noise: SeededNoise, first: np.ndarray) -> np.ndarray:
    """What the neighbours of silo 0 hear of each of its reports, (K, s)."""
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
    plan = made.parts[0].plan if isinstance(made, PeerPlan) else made
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
        if isinstance(made, PeerPlan):
            shown = heard(made, noise, pair[world])
        else:
            shown = seen(made, noise, pair[world])
        found[run] = np.sum(nodes_of(plan, shown)[nodes] * direction)
    return found


def run(case: Case, name: str, trials: int, seed: int) -> AuditResult:
    """Audit one system with ``trials`` runs on each dataset."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    epsilon, delta = CLAIM
    first, second = (statistics(case, trials, check_seed(seed), world) for world in (0, 1))
    return audit(name, first, second, claimed_epsilon=epsilon, delta=delta)


_CASES = {
    "private-fedlinucb": Case("private-fedlinucb", {"protocol": "silo-ldp"}, "goe2"),
    "vector-sum": Case("private-fedlinucb", {"protocol": "shuffle-vector"}, "iid", silos=2),
    "fault-quarter-of-the-bits": Case(
        "private-fedlinucb", {"protocol": "shuffle-vector"}, "iid", silos=2, fault=4
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
    "low-bits": partial(audit_low_bits, "low-bits"),
}
#: What an audit is to catch: planted faults, and the schedule that raw data make.
FAULTY = (
    mechanisms.FAULTY
    | of_experts.FAULTY
    | of_lifecycle.FAULTY
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
    "low-bits": 300,
}


def run_audit(name: str, trials: int | None = None, seed: int = 1) -> AuditResult:
    """The audit of this name; ``trials`` runs on each dataset (default: enough for a verdict)."""
    choice("audit", name, tuple(AUDITS))
    return AUDITS[name](TRIALS[name] if trials is None else trials, seed)
