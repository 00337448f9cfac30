"""Audits of own rounds: what outsiders see of a federation that shares some rounds alone.

Of users of own rounds outsiders must see nothing, whatever else they know: two runs on the same
noise, coins and other users are compared bit by bit. Users of shared rounds are protected by noise,
and where a secret coin decides who is shared by that too; of them the silo's messages are looked
at. Source: docs/own-rounds.md, Privacy and The coin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.bandits.silo import Silo
from fastfed.privacy.audit.bounds import AuditResult, audit, epsilon_lower_bound, judged
from fastfed.privacy.audit.mechanisms import WORST_PAIR
from fastfed.protocols.plan import Plan
from fastfed.protocols.release import spread
from fastfed.protocols.server import Server
from fastfed.simulation.systems import make_system

Audit = Callable[[int, int], AuditResult]

EPSILON, DELTA = 1.0, 0.01
DIMENSION = 2


def _plan(**keys: Any) -> Plan:
    """A federation under audit."""
    sizes: dict[str, Any] = {"dimension": DIMENSION, "epsilon": EPSILON, "delta": DELTA}
    plan: Plan = make_system("private-fedlinucb", protocol="silo-ldp", **sizes, **keys).plan
    return plan


# ---- Users of own rounds -------------------------------------------------------------------------

SILOS, HORIZON, ACTIONS = 2, 14, 4
#: Half of the first rounds are shared, by secret coins that both runs of a pair have in common.
HALF = {"until": 10, "fraction": 0.5, "coin": "secret"}


class Leaking(Silo):
    """A planted fault: users of own rounds enter the batch too."""

    def _learn(self, x: np.ndarray, y: float) -> None:
        if self.plays_own:
            self._randomizer.observe(x, y)
        super()._learn(x, y)


class Peeking(Silo):
    """A planted fault: shared rounds are chosen by raw data of own rounds as well."""

    def _best(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        assert self._own is not None
        return self._own.select(actions, self._estimate, 0.0, 0.0)


@dataclass
class Users:
    """Contexts (T, M, K, d) and rewards (T, M, K) of all users."""

    contexts: np.ndarray
    rewards: np.ndarray

    @classmethod
    def drawn(cls, draw: np.random.Generator) -> Users:
        """Users at random: unit vectors and rewards in [0, 1]."""
        x = draw.normal(size=(HORIZON, SILOS, ACTIONS, DIMENSION))
        return cls(x / np.linalg.norm(x, axis=-1, keepdims=True), draw.random(x.shape[:-1]))

    def replaced(self, round: int, other: Users) -> Users:
        """All users but that of one round of silo 0, who is another."""
        x, y = self.contexts.copy(), self.rewards.copy()
        x[round - 1, 0], y[round - 1, 0] = other.contexts[0, 0], other.rewards[0, 0]
        return Users(x, y)


def seen(kind: type[Silo], plan: Plan, noise: SeededNoise, users: Users) -> bytes:
    """Everything that outsiders of silo 0 see: messages, releases, and what other silos do."""
    silos, server = [kind(plan, i, noise) for i in range(SILOS)], Server(plan, noise)
    shown: list[bytes] = []
    for round in range(HORIZON):
        for i, silo in enumerate(silos):
            a = silo.select(users.contexts[round, i])
            silo.observe(users.rewards[round, i, a])
            shown += [bytes([a])] if i else []
        if silos[0].due:
            reports: list[Any] = [silo.report() for silo in silos]
            broadcast = server.combine(reports)
            for silo in silos:
                silo.receive(broadcast)
            shown += [report.values.tobytes() for report in reports]
            shown.append(broadcast.values.tobytes())
    return b"".join(shown)


def own_round(plan: Plan, noise: SeededNoise, draw: np.random.Generator) -> int:
    """An own round of silo 0, some round after which there is still a release if there is one."""
    own = plan.own
    assert own is not None
    found = [t for t in range(1, own.until) if not own.shares(t, noise.participation(0, t))]
    return int(draw.choice(found or [own.until + 1]))


def audit_own_rounds(name: str, kind: type[Silo], trials: int, seed: int) -> AuditResult:
    """Replace a user of an own round; the statistic is whether an outsider's view changes a bit.

    The outsider is given all noise, all coins and all other users: epsilon is 0 towards whoever
    knows them too, and the claim is refuted by any change.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan(silos=SILOS, horizon=HORIZON, batch_size=2, share=HALF)
    changed = 0
    for trial in range(trials):
        noise, draw = SeededNoise(seed, trial), np.random.default_rng([seed, trial])
        users, other = Users.drawn(draw), Users.drawn(draw)
        round = own_round(plan, noise, draw)
        views = [seen(kind, plan, noise, u) for u in (users, users.replaced(round, other))]
        changed += views[0] != views[1]
    bound = epsilon_lower_bound(changed, 0, trials, 0.0)
    return judged(name, bound, trials, claimed_epsilon=0.0, delta=0.0)


# ---- Users of shared rounds ----------------------------------------------------------------------

#: Rounds that may be shared, one a batch: half of them by rule, or a tenth by coins.
UNTIL = 4
RULE = {"until": UNTIL, "fraction": 0.5}
COIN = {"until": UNTIL, "fraction": 0.1, "coin": "secret"}


def reports(plan: Plan, noise: SeededNoise, victim: int, x: np.ndarray) -> tuple[np.ndarray, bool]:
    """Messages (K, s) of a silo, and whether the user of round ``victim`` was shared.

    That user has features x and reward 1, all others have none: whether they are shared changes
    nothing, and what is left is the least protection that the account speaks of.
    """
    silo, server = Silo(plan, 0, noise), Server(plan, noise)
    shown, entered = [], False
    for round in range(1, UNTIL + 1):
        if round == victim:
            entered = not silo.plays_own
        silo.select(x[None] if round == victim else np.zeros((1, DIMENSION)))
        silo.observe(1.0)
        if silo.due:
            report: Any = silo.report()
            shown.append(report.values)
            silo.receive(server.combine([report]))
    return np.array(shown), entered


def statistics(plan: Plan, trials: int, seed: int, world: int, shown: bool) -> np.ndarray:
    """Log likelihood ratio (trials,) of the two worlds: of messages, and of the coin if shown."""
    own = plan.own
    assert own is not None and plan.factor is not None
    victim = 1 if own.secret else int(np.flatnonzero(own.rule)[0]) + 1
    # Messages are B (C leaves + z) with B C = A, so that B^-1 of them has independent noise.
    count = plan.releases
    column = np.linalg.solve(plan.factor.matrix, np.tril(np.ones((count, count))))[:, victim - 1]
    precision = 1.0 / spread(plan.noise_std, DIMENSION) ** 2
    records = np.zeros((2, plan.statistic_size))
    pair = [np.array(x) for x in WORST_PAIR["goe2"]]
    for record, x in zip(records, pair, strict=True):
        linalg.accumulate(record, x, 1.0)
    half = 0.5 * column @ column * (records**2 @ precision)
    found = np.empty(trials)
    for run in range(trials):
        # The worlds take replicates of their own: even and odd.
        noise = SeededNoise(seed, 2 * run + world)
        messages, entered = reports(plan, noise, victim, pair[world])
        along = column @ np.linalg.solve(plan.factor.matrix, messages)
        ratios = records @ (along * precision) - half  # of present to absent
        coin = float(entered) if shown else own.coin
        found[run] = np.diff(np.logaddexp(_log(1.0 - coin), _log(coin) + ratios))[0]
    return found


def _log(probability: float) -> float:
    """ln p, of 0 the lowest number."""
    return float(np.log(probability)) if probability else float(np.finfo(np.float64).min)


def audit_shared_rounds(
    name: str, share: dict[str, Any], shown: bool, trials: int, seed: int
) -> AuditResult:
    """Replace a user of a shared round, or of one that a coin may share.

    shown: the planted fault that the coin is made public, while its secrecy is paid for.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan(silos=1, horizon=UNTIL + 2, batch_size=1, share=share)
    assert plan.privacy is not None
    first, second = (statistics(plan, trials, seed, world, shown) for world in (0, 1))
    return audit(name, first, second, claimed_epsilon=EPSILON, delta=DELTA)


#: Name -> audit(trials, seed).
AUDITS: dict[str, Audit] = {
    "own-rounds": partial(audit_own_rounds, "own-rounds", Silo),
    "own-rounds-shared": partial(audit_shared_rounds, "own-rounds-shared", RULE, False),
    "own-rounds-coin": partial(audit_shared_rounds, "own-rounds-coin", COIN, False),
    "fault-own-rounds-in-leaf": partial(audit_own_rounds, "fault-own-rounds-in-leaf", Leaking),
    "fault-own-rounds-peek": partial(audit_own_rounds, "fault-own-rounds-peek", Peeking),
    "fault-own-rounds-public-coin": partial(
        audit_shared_rounds, "fault-own-rounds-public-coin", COIN, True
    ),
}
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each dataset that make every verdict all but certain, within seconds.
TRIALS: dict[str, int] = {
    "own-rounds": 300,
    "own-rounds-shared": 6000,
    "own-rounds-coin": 6000,
    "fault-own-rounds-in-leaf": 100,
    "fault-own-rounds-peek": 100,
    "fault-own-rounds-public-coin": 3000,
}
#: What each attacks.
ABOUT: dict[str, str] = {
    "own-rounds": "all that outsiders see, bit by bit, of users of own rounds",
    "own-rounds-shared": "messages of a deployed silo, half of its rounds own by a public rule",
    "own-rounds-coin": "the same where secret coins decide who is shared",
    "fault-own-rounds-in-leaf": "what outsiders see where users of own rounds enter the batch",
    "fault-own-rounds-peek": "the same where shared rounds are chosen by a silo's raw data",
    "fault-own-rounds-public-coin": "the messages beside coins that were to be secret",
}
