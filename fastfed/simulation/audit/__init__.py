"""All privacy audits by name, and the audits of linear bandits and of synchronisation schedules.

An audit runs a system many times on two neighbouring data sets ("worlds") and computes from the
results a lower bound on epsilon. A bound above the claimed epsilon refutes the claim.
"""

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
from fastfed.privacy.audit.bounds import (
    AuditResult,
    audit,
    epsilon_lower_bound,
    judged,
    largest_bound,
)
from fastfed.privacy.audit.mechanisms import WORST_PAIR
from fastfed.privacy.releases.prefix_sums import touches
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import REPLACE
from fastfed.protocols.schedule import DETERMINANT
from fastfed.protocols.serverless import Network, PeerPlan, Sums
from fastfed.simulation.audit import bits as of_bits
from fastfed.simulation.audit import experts as of_experts
from fastfed.simulation.audit import lifecycle as of_lifecycle
from fastfed.simulation.audit import own_rounds as of_own_rounds
from fastfed.simulation.audit.low_bits import audit_low_bits
from fastfed.simulation.server import Federation
from fastfed.simulation.systems import make_system

# ---- The audit of schedules: do the rounds of synchronisation reveal a user? ---------------------
# There are two silos. The first user of silo 0 has a feature vector of norm 1 or of norm 1/20; all
# other users have zero vectors. The threshold of the trigger is set between the values that the
# trigger has in the two worlds after the first round. The statistic is whether the silos
# synchronise after that round. It was fixed in advance, so all runs count. No message is read.
# Source: zhou-chowdhury-2024, Example 3.1 and Appendix B.1.


SCHEDULE_AUDITS: dict[str, dict[str, Any]] = {
    "feducb-schedule": {"schedule": "determinant"},
    "feducb-schedule-fixed": {"schedule": "fixed", "batch_size": 1},
    "feducb-schedule-private": {"schedule": "private-determinant"},
}
CLAIM = (1.0, 0.01)  # epsilon and delta
SILOS, HORIZON, SCHEDULE_DIMENSION = 2, 8, 2
#: Features of the first user of silo 0 in the two worlds.
VICTIM = (np.array([1.0, 0.0]), np.array([0.05, 0.0]))


def plan_of(keys: dict[str, Any]) -> Plan:
    """Return the plan of the system whose schedule is audited: feducb with these further keys."""
    epsilon, delta = CLAIM
    sizes: dict[str, Any] = {"silos": SILOS, "horizon": HORIZON, "dimension": SCHEDULE_DIMENSION}
    system = make_system("feducb", **sizes, epsilon=epsilon, delta=delta, **keys)
    return check_plan(system.plan)


def trigger_value(plan: Plan, x: np.ndarray) -> float:
    """Return the trigger's value, without noise, after a first round with features x (d,).

    The trigger starts a synchronisation if this value exceeds its threshold D. A private trigger
    adds noise to the value.
    """
    assert plan.trigger is not None
    noise_free = replace(plan, trigger=replace(plan.trigger, kind=DETERMINANT), privacy=None)
    silo = Silo(noise_free, 0, SeededNoise(0))
    silo.select(x[None])
    silo.observe(1.0)
    assert silo.trigger is not None
    return silo.trigger.value


def synchronises_after_first_round(plan: Plan, noise: SeededNoise, x: np.ndarray) -> bool:
    """Run the first round, and return whether the silos synchronise after it.

    The user of silo 0 has features x (d,), and the user of silo 1 a zero vector.
    """
    silos = [Silo(plan, i, noise) for i in range(SILOS)]
    for i, silo in enumerate(silos):
        silo.select(x[None] if i == 0 else np.zeros((1, SCHEDULE_DIMENSION)))
        silo.observe(1.0)
    return any(silo.due for silo in silos)


def audit_schedule(name: str, trials: int, seed: int) -> AuditResult:
    """Audit one schedule of `SCHEDULE_AUDITS`, with ``trials`` runs in each of two worlds."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    keys = SCHEDULE_AUDITS[name]
    plan = plan_of(keys)
    if plan.trigger is not None:
        values = [trigger_value(plan, x) for x in VICTIM]
        plan = plan_of({**keys, "communication": float(np.mean(values))})
    hits = [
        sum(
            synchronises_after_first_round(plan, SeededNoise(seed, 2 * run + world), x)
            for run in range(trials)
        )
        for world, x in enumerate(VICTIM)
    ]
    epsilon, delta = CLAIM
    bound = epsilon_lower_bound(hits[0], hits[1], trials, delta)
    detectable_epsilon = largest_bound(trials, delta)
    return judged(
        name, bound, trials, claimed_epsilon=epsilon, delta=delta, largest_bound=detectable_epsilon
    )


# ---- Audits of linear bandits: silos and servers as deployed, on two neighbouring data sets ------
# Every user is offered a single action, so that the data sets differ in one record only: the record
# of the first user of silo 0, which enters the most tree nodes. Messages to the server are
# projected on the direction in which that record moves them. The audits of systems with experts are
# in `audit/experts.py`.


Audit = Callable[[int, int], AuditResult]

RELEASES = 7  # the tree has kappa = 3 levels, and few enough rounds to run them many times
CLAIM = (1.0, 0.01)  # epsilon and delta
DIMENSION = 2


@dataclass(frozen=True)
class Case:
    """A system to audit: an algorithm with its keys and its number of silos.

    ``layout`` names how the noise's standard deviation depends on the entry of the statistic.
    `WORST_PAIR` maps it to the two records that differ most relative to this noise.
    """

    algorithm: str
    keys: dict[str, Any]
    layout: str
    silos: int = 1
    #: Planted fault: the noise bits are divided by this number, unknown to the certificate.
    fault: int = 1

    def plan(self) -> Any:
        """Return the plan to run, with the planted fault."""
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
            # Send counts instead of bits: they have the same distribution and take less time.
            plan = replace(plan, individual=False)
        if plan.encoding is None or self.fault == 1:
            return plan
        fewer_bits = tuple(max(1, b // self.fault) for b in plan.encoding.noise_bits)
        # Drop the claim, because a faulty plan that claims its budget would be refused.
        encoding = replace(plan.encoding, noise_bits=fewer_bits)
        return replace(plan, encoding=encoding, privacy=None)


#: Features (1, d) of all users but the first user of silo 0.
OTHER = np.full((1, DIMENSION), np.sqrt(0.5))


def released_sums(plan: Plan, noise: SeededNoise, x_first_user: np.ndarray) -> np.ndarray:
    """Run a federation, and return the sum of all silos' messages in each release, (K, s).

    K is the number of releases, and s the length of a statistic. ``x_first_user`` (d,) are the
    features of the first user of silo 0. In protocols without a tree (``flat``), messages may have
    no values. The sum of a release is then computed as the increase of the server's total.
    """
    federation, release_sums = Federation(plan, noise), []
    for round in range(plan.horizon):
        for i, player in enumerate(federation.players):
            player.select(x_first_user[None] if i == round == 0 else OTHER)
            player.observe(1.0)
        previous_total = federation.total
        messages = federation.exchange()
        if plan.protocol.flat:
            release_sums.append(federation.total - previous_total)
        else:
            release_sums.append(np.sum([m.values for m in messages], axis=0))
    return np.array(release_sums)


def received_reports(plan: PeerPlan, noise: SeededNoise, x_first_user: np.ndarray) -> np.ndarray:
    """Run a decentralised federation; return the reports of silo 0 that silo 1 receives, (K, s).

    K is the number of releases, and s the length of a statistic. ``x_first_user`` (d,) are the
    features of the first user of silo 0.
    """
    peers = [Peer(plan, i, noise) for i in range(plan.silos)]
    network: Network[Message] = Network(plan.graph, plan.gamma)
    reports = []
    for round in range(plan.horizon):
        for i, message in network.deliver():
            peers[i].receive(message)
            if i == 1 and message.silo == 0 and isinstance(message, Sums):
                reports.append(message.report.values)
        for i, peer in enumerate(peers):
            peer.select(x_first_user[None] if i == round == 0 else OTHER)
            peer.observe(1.0)
            for message in peer.outbox():
                network.broadcast(i, message)
    reports += [m.report.values for i, m in network.deliver() if i == 1 and isinstance(m, Sums)]
    return np.array(reports)


def nodes_of(plan: Plan, views: np.ndarray) -> np.ndarray:
    """Return the noisy tree nodes (K, s) that the messages ``views`` (K, s) contain.

    If the server replaces each message of a silo by the next one, messages are prefix sums. These
    are converted to nodes.
    """
    if plan.protocol.analyzer != REPLACE:
        return views
    # Node k is prefix k minus the prefix without the lowest 1 bit of k.
    padded = np.concatenate([np.zeros((1, views.shape[1])), views])
    return np.array([padded[k] - padded[k & (k - 1)] for k in range(1, len(padded))])


def log_ratios_of_runs(case: Case, trials: int, seed: int, world: int) -> np.ndarray:
    """Run a case ``trials`` times in world 0 or 1; return the statistic of each run, (trials,).

    The statistic is the Gaussian log likelihood ratio, up to a constant, of the tree nodes that
    contain the changed record. Noise from bits is only nearly Gaussian, but every statistic gives a
    valid bound.
    """
    audited_plan = case.plan()
    peers = audited_plan.driver == "peers"
    plan = audited_plan.parts[0].plan if peers else audited_plan
    # Without a tree the first record is in the first release only.
    nodes = [0] if plan.protocol.flat else [k - 1 for k in touches(1, plan.releases)]
    record_pair = [np.array(x) for x in WORST_PAIR[case.layout]]
    change = np.zeros(plan.statistic_size)
    for sign, x in ((-1.0, record_pair[0]), (1.0, record_pair[1])):
        point = np.zeros_like(change)
        linalg.accumulate(point, x, 1.0)
        change += sign * point
    if plan.encoding is not None:
        # A node of level j is a count in steps of 1 / g_j; without a tree the sum is in the units
        # of the records. Each noise bit is 1 with probability 1/4, so its variance is 3/16.
        levels = range(len(nodes))
        g = np.array([plan.encoding.each(j, DIMENSION) for j in levels])
        points = np.array([plan.silos * plan.points(j) for j in levels])
        variance = 0.1875 * points * np.array(plan.encoding.noise_bits[: len(nodes)])
        direction = g ** (2 if plan.protocol.flat else 1) / variance[:, None] * change
    else:
        std = plan.noise_std
        rows, columns = np.tril_indices(DIMENSION)
        covariance_std = np.where(rows == columns, std.diagonal, std.off_diagonal)
        stds = np.concatenate([np.full(DIMENSION, std.bias), covariance_std])
        direction = np.tile(change / stds**2, (len(nodes), 1))
    ratios = np.empty(trials)
    for run in range(trials):
        # World 0 uses even replicates and world 1 odd ones, so that their noise is independent.
        noise = SeededNoise(seed, 2 * run + world)
        views = (
            received_reports(audited_plan, noise, record_pair[world])
            if peers
            else released_sums(audited_plan, noise, record_pair[world])
        )
        ratios[run] = np.sum(nodes_of(plan, views)[nodes] * direction)
    return ratios


def run(case: Case, name: str, trials: int, seed: int) -> AuditResult:
    """Audit the system of a case, with ``trials`` runs on each of two data sets."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    epsilon, delta = CLAIM
    ratios_0, ratios_1 = (
        log_ratios_of_runs(case, trials, check_seed(seed), world) for world in (0, 1)
    )
    return audit(name, ratios_0, ratios_1, claimed_epsilon=epsilon, delta=delta)


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

#: Function audit(trials, seed) of each audit, by name. Names that start with "fault-" are planted
#: faults.
AUDITS: dict[str, Audit] = {
    **mechanisms.AUDITS,
    **{name: partial(run, case, name) for name, case in _CASES.items()},
    **{name: partial(audit_schedule, name) for name in SCHEDULE_AUDITS},
    **of_experts.AUDITS,
    **of_lifecycle.AUDITS,
    **of_secure_sum.AUDITS,
    **of_own_rounds.AUDITS,
    **of_bits.AUDITS,
    "low-bits": partial(audit_low_bits, "low-bits"),
}
#: Audits that must refute a claim: planted faults, and the schedule that depends on raw data.
FAULTY = (
    mechanisms.FAULTY
    | of_experts.FAULTY
    | of_lifecycle.FAULTY
    | of_secure_sum.FAULTY
    | of_own_rounds.FAULTY
    | of_bits.FAULTY
    | {"fault-quarter-of-the-bits", "fault-users-quarter-of-the-bits", "feducb-schedule"}
)
TRIALS: dict[str, int] = {
    **mechanisms.TRIALS,
    **dict.fromkeys(_CASES, 6000),
    **dict.fromkeys(("feducb-decentralized", *SCHEDULE_AUDITS), 4000),
    **of_experts.TRIALS,
    **of_lifecycle.TRIALS,
    **of_secure_sum.TRIALS,
    **of_own_rounds.TRIALS,
    **of_bits.TRIALS,
    "low-bits": 300,
}


def run_audit(name: str, trials: int | None = None, seed: int = 1) -> AuditResult:
    """Run the audit of this name.

    Parameters
    ----------
    name : str
        Name of the audit, as listed by `fastfed audit list`.
    trials : int, optional
        Number of runs on each data set. Default: enough for a verdict.
    seed : int, default 1
        Seed of simulated noise.

    Returns
    -------
    AuditResult
        The lower bound on epsilon, and the verdict.

    Raises
    ------
    InputError
        If the name is unknown or a value is out of range.
    """
    if name not in AUDITS:
        raise InputError(
            f"unknown audit {show(name)}{nearest(str(name), AUDITS)} (`fastfed audit list` names "
            "all)"
        )
    return AUDITS[name](TRIALS[name] if trials is None else trials, seed)


# ---- The list of audits: `fastfed audit list` ----------------------------------------------------


class ListedAudit(msgspec.Struct, frozen=True):
    """One audit in the list.

    ``attacks`` describes the outputs that it tests; ``unit`` and ``relation`` how the two data sets
    differ. ``planted`` marks a fault that was built in on purpose. ``must_be_caught`` marks planted
    faults, and published methods that do not keep their claim. ``trials`` is the default number of
    runs on each data set.
    """

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

#: For each audit by name: (what it attacks, (unit, relation)).
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
    "fault-kappa-forgotten": ("tree noise as if a record were in one node only", _USER),
    "fault-bias-forgotten": ("tree noise for the covariance stream only", _USER),
    "fault-noise-redrawn": ("prefix sums whose nodes get new noise each time", _USER),
    "fault-bare-threshold": ("sparse vector without noise on the threshold", _NUMBER),
    "fault-winsorized-half-noise": ("the winsorized mean with half of its noise", _VECTOR),
    "fault-float-noise": ("low bits of a statistic plus noise, added as doubles", _USER),
    "noisy-argmin": ("the index of the smallest score with Laplace noise", _NUMBER),
    "sparse-switching": ("times and choices of switches between experts", _LOSS),
    "fault-noisy-argmin-printed": ("noisy argmin with the paper's noise", _NUMBER),
    "fault-sparse-switching-printed-threshold": ("switching by a bare threshold", _LOSS),
    "private-fedlinucb": ("messages of a deployed silo, silo-ldp", _USER),
    "vector-sum": ("sums of shuffled bits that the server gets", _USER),
    "fault-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "linucb-ldp": ("users' messages to an untrusted agent", _USER),
    "linucb-sdp-amp": ("users' messages after the shuffler", _USER),
    "linucb-sdp-vec": ("users' shuffled bits", _USER),
    "fault-users-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "feducb": ("messages of a deployed silo, fixed schedule", _USER),
    "feducb-decentralized": ("messages that peers receive from each other", _USER),
    "feducb-schedule": ("the rounds in which the raw determinant synchronises", _USER),
    "feducb-schedule-fixed": ("the rounds in which a fixed schedule synchronises", _USER),
    "feducb-schedule-private": ("the rounds in which the private determinant synchronises", _USER),
    "fed-svt": ("experts that deployed clients choose, Fed-SVT", _LOSS),
    "fault-fed-svt-printed-threshold": ("the same with a threshold without noise", _LOSS),
    "private-dartboard": ("experts that deployed clients choose, private dartboard", _LOSS),
    "fault-private-dartboard-bare-coin": (
        "the same with a coin that depends on the loss only",
        _LOSS,
    ),
    "fed-dp-ope-stoch": ("experts that deployed clients choose, central noise", _LOSS),
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": ("the same with a quarter of the noise", _LOSS),
    "copies": ("copies and pickles of every object that draws noise", _USER),
    "stateful-score": ("the next user's action, by a score function that writes its state", _USER),
    "fault-restart": ("one node, sent again with new noise after each restart of a silo", _USER),
    "fault-stateful-score": ("the next user's action, by a score with hidden memory", _USER),
    "secure-sum": ("all noisy sums of the honest silos, as server and colluders see them", _USER),
    "secure-sum-low-bits": ("the low bits of the first of these sums", _USER),
    "fault-secure-sum-half-noise": ("the same sums with half of the noise", _USER),
    "fault-secure-sum-colluders": (
        "noise for no colluders, but all silos except one collude",
        _USER,
    ),
    "fault-secure-sum-columns": ("sums whose factor is twice the accounted factor", _USER),
    "fault-secure-sum-coarse-noise": ("low bits under noise whose last bits are 0", _USER),
    **{name: (attacks, _USER) for name, attacks in of_own_rounds.ABOUT.items()},
    **of_bits.ABOUT,
    "low-bits": ("low bits of the releases of five kinds of deployed objects", _USER),
}


def listed() -> list[ListedAudit]:
    """List every audit, in the order of `AUDITS`."""
    missing = [name for name in AUDITS if name not in ABOUT]
    if missing:
        raise InputError(f"audits must have an entry in ABOUT, got none for {missing}")
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
