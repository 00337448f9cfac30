"""Audits of local rounds: what outsiders see of a federation in which only some rounds are shared.

A local round is not shared: its data stay in the silo. Outsiders must see nothing about users of
local rounds, whatever else they know. So two runs with equal noise, coins and other users are
compared bit by bit. Users of shared rounds are protected by noise, and by the secret coin if one
decides which rounds are shared. For users of shared rounds, the audit tests the silo's messages.
Source: docs/own-rounds.md, Privacy and The coin.
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
from fastfed.privacy.audit.bounds import (
    AuditResult,
    audit,
    epsilon_lower_bound,
    judged,
    largest_bound,
)
from fastfed.privacy.audit.mechanisms import WORST_PAIR
from fastfed.protocols.plan import Plan
from fastfed.protocols.release import spread
from fastfed.protocols.server import Server
from fastfed.simulation.systems import make_system

Audit = Callable[[int, int], AuditResult]

EPSILON, DELTA = 1.0, 0.01
DIMENSION = 2


def _plan(**keys: Any) -> Plan:
    """Return the plan of the audited federation, private-fedlinucb with these further keys."""
    sizes: dict[str, Any] = {"dimension": DIMENSION, "epsilon": EPSILON, "delta": DELTA}
    plan: Plan = make_system("private-fedlinucb", protocol="silo-ldp", **sizes, **keys).plan
    return plan


# ---- Users of local rounds -----------------------------------------------------------------------

SILOS, HORIZON, ACTIONS = 2, 14, 4
#: About half of the first rounds are shared, by secret coins; both runs of a pair have equal coins.
HALF = {"until": 10, "fraction": 0.5, "coin": "secret"}


class Leaking(Silo):
    """A planted fault: the data of local rounds also enter the batch."""

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Learn features x (d,) and reward y; add those of local rounds to the batch too."""
        if self.plays_own:
            self._randomizer.observe(x, y)
        super()._learn(x, y)


class Peeking(Silo):
    """A planted fault: actions of shared rounds also depend on raw data of local rounds."""

    def _best(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """Choose an action by raw data of local rounds, wrongly also in shared rounds.

        Return the action and its features (d,).
        """
        assert self._own is not None
        return self._own.select(actions, self._estimate, 0.0, 0.0)


@dataclass
class Users:
    """Contexts (T, M, K, d) and rewards (T, M, K) of all users."""

    contexts: np.ndarray
    rewards: np.ndarray

    @classmethod
    def drawn(cls, draw: np.random.Generator) -> Users:
        """Return random users, with unit feature vectors and rewards in [0, 1]."""
        x = draw.normal(size=(HORIZON, SILOS, ACTIONS, DIMENSION))
        return cls(x / np.linalg.norm(x, axis=-1, keepdims=True), draw.random(x.shape[:-1]))

    def replaced(self, round: int, other: Users) -> Users:
        """Return these users, but with the first of ``other`` as silo 0's user in ``round``."""
        # Round t is row t - 1.
        x, y = self.contexts.copy(), self.rewards.copy()
        x[round - 1, 0], y[round - 1, 0] = other.contexts[0, 0], other.rewards[0, 0]
        return Users(x, y)


def outsider_view(kind: type[Silo], plan: Plan, noise: SeededNoise, users: Users) -> bytes:
    """Run a federation, and return all that is visible outside silo 0, as bytes.

    Visible are the messages of all silos, the releases and the actions of the other silos.
    ``kind`` is the class of the silos.
    """
    silos, server = [kind(plan, i, noise) for i in range(SILOS)], Server(plan, noise)
    view: list[bytes] = []
    for round in range(HORIZON):
        for i, silo in enumerate(silos):
            action = silo.select(users.contexts[round, i])
            silo.observe(users.rewards[round, i, action])
            view += [bytes([action])] if i else []
        if silos[0].due:
            reports: list[Any] = [silo.report() for silo in silos]
            broadcast = server.combine(reports)
            for silo in silos:
                silo.receive(broadcast)
            view += [report.values.tobytes() for report in reports]
            view.append(broadcast.values.tobytes())
    return b"".join(view)


def random_local_round(plan: Plan, noise: SeededNoise, generator: np.random.Generator) -> int:
    """Return a random local round of silo 0, if possible one of the rounds that may be shared.

    If all those rounds are shared, return the first round after them.
    """
    local_plan = plan.own
    assert local_plan is not None
    local_rounds = [
        t for t in range(1, local_plan.until) if not local_plan.shares(t, noise.participation(0, t))
    ]
    return int(generator.choice(local_rounds or [local_plan.until + 1]))


def audit_own_rounds(name: str, kind: type[Silo], trials: int, seed: int) -> AuditResult:
    """Audit whether replacing a user of a local round changes what outsiders see.

    The claim is epsilon = 0, even towards an outsider who knows all noise, all coins and all other
    users. So one changed bit refutes it. ``kind`` is the class of silos: `Silo`, or a planted
    fault.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan(silos=SILOS, horizon=HORIZON, batch_size=2, share=HALF)
    changed = 0
    for trial in range(trials):
        noise, draw = SeededNoise(seed, trial), np.random.default_rng([seed, trial])
        users, replacements = Users.drawn(draw), Users.drawn(draw)
        round = random_local_round(plan, noise, draw)
        views = [
            outsider_view(kind, plan, noise, u)
            for u in (users, users.replaced(round, replacements))
        ]
        changed += views[0] != views[1]
    bound = epsilon_lower_bound(changed, 0, trials, 0.0)
    detectable_epsilon = largest_bound(trials, 0.0)
    return judged(
        name, bound, trials, claimed_epsilon=0.0, delta=0.0, largest_bound=detectable_epsilon
    )


# ---- Users of shared rounds ----------------------------------------------------------------------

#: Number of rounds that may be shared, with batches of one: half of them by rule, or 10 % by coins.
UNTIL = 4
RULE = {"until": UNTIL, "fraction": 0.5}
COIN = {"until": UNTIL, "fraction": 0.1, "coin": "secret"}


def messages_of_silo(
    plan: Plan, noise: SeededNoise, victim: int, x: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Run a silo; return its messages (K, s), and whether the round ``victim`` was shared.

    The user of that round has features x and reward 1. All other users have zero features, which is
    the worst case of the account: it does not matter whether their rounds are shared.
    """
    silo, server = Silo(plan, 0, noise), Server(plan, noise)
    messages, shared = [], False
    for round in range(1, UNTIL + 1):
        if round == victim:
            shared = not silo.plays_own
        silo.select(x[None] if round == victim else np.zeros((1, DIMENSION)))
        silo.observe(1.0)
        if silo.due:
            report: Any = silo.report()
            messages.append(report.values)
            silo.receive(server.combine([report]))
    return np.array(messages), shared


def log_ratios_of_runs(
    plan: Plan, trials: int, seed: int, world: int, coin_is_public: bool
) -> np.ndarray:
    """Return the log likelihood ratio of the two worlds in each run, (trials,).

    The runs are in ``world`` 0 or 1, which differ in the features of one user. The ratio is
    computed from the silo's messages, and with ``coin_is_public`` also from the coin.
    """
    local_plan = plan.own
    assert local_plan is not None and plan.factor is not None
    victim = 1 if local_plan.secret else int(np.flatnonzero(local_plan.rule)[0]) + 1
    # Messages are B (C leaves + z), where B C is the matrix A of prefix sums, leaves are the sums
    # of the batches, and z is independent noise. So B^-1 times the messages has independent noise.
    count = plan.releases
    column = np.linalg.solve(plan.factor.matrix, np.tril(np.ones((count, count))))[:, victim - 1]
    precision = 1.0 / spread(plan.noise_std, DIMENSION) ** 2
    records = np.zeros((2, plan.statistic_size))
    pair = [np.array(x) for x in WORST_PAIR["goe2"]]
    for record, x in zip(records, pair, strict=True):
        linalg.accumulate(record, x, 1.0)
    half_square = 0.5 * column @ column * (records**2 @ precision)
    log_ratios = np.empty(trials)
    for run in range(trials):
        # World 0 uses even replicates and world 1 odd ones, so that their noise is independent.
        noise = SeededNoise(seed, 2 * run + world)
        messages, shared = messages_of_silo(plan, noise, victim, pair[world])
        projection = column @ np.linalg.solve(plan.factor.matrix, messages)
        # For the record of each world: the log likelihood ratio of the messages with the record to
        # the messages without it.
        ratios = records @ (projection * precision) - half_square
        # The probability, for an observer, that the user's round was shared.
        coin = float(shared) if coin_is_public else local_plan.coin
        log_ratios[run] = np.diff(np.logaddexp(_log(1.0 - coin), _log(coin) + ratios))[0]
    return log_ratios


def _log(probability: float) -> float:
    """Return ln p; for p = 0 the lowest float64."""
    return float(np.log(probability)) if probability else float(np.finfo(np.float64).min)


def audit_shared_rounds(
    name: str, share: dict[str, Any], coin_is_public: bool, trials: int, seed: int
) -> AuditResult:
    """Audit the messages of a silo if a user of a shared round is replaced.

    ``share`` is the value of the key that decides which rounds are shared: by a rule or by coins.
    ``coin_is_public`` plants a fault: the audit then sees the coin, which the account assumes to be
    secret.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan(silos=1, horizon=UNTIL + 2, batch_size=1, share=share)
    assert plan.privacy is not None
    statistics_0, statistics_1 = (
        log_ratios_of_runs(plan, trials, seed, world, coin_is_public) for world in (0, 1)
    )
    return audit(name, statistics_0, statistics_1, claimed_epsilon=EPSILON, delta=DELTA)


#: Function audit(trials, seed) of each audit, by name.
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
#: Runs on each data set, enough for a nearly certain verdict within seconds.
TRIALS: dict[str, int] = {
    "own-rounds": 300,
    "own-rounds-shared": 6000,
    "own-rounds-coin": 6000,
    "fault-own-rounds-in-leaf": 100,
    "fault-own-rounds-peek": 100,
    "fault-own-rounds-public-coin": 3000,
}
#: What each audit attacks.
ABOUT: dict[str, str] = {
    "own-rounds": "everything that outsiders see, bit by bit, about users of local rounds",
    "own-rounds-shared": "messages of a deployed silo, half of its rounds local by a public rule",
    "own-rounds-coin": "the same with secret coins that decide which users are shared",
    "fault-own-rounds-in-leaf": "what outsiders see if data of local rounds enter the batch",
    "fault-own-rounds-peek": "the same if actions of shared rounds depend on local raw data",
    "fault-own-rounds-public-coin": "the messages together with coins that should be secret",
}
