"""LinUCB as users write it: NumPy, numba, fastfed in five forms, and four libraries.

A player takes rounds first..last of a `Stream` and returns the actions that it chose. Those of one
model play the same policy, UCB with a radius of 1, but for `LinUCB`, whose radius is the proven
one, and VW, whose learner is another one. mabwiser and river have a model for every arm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RADIUS = 1.0
#: Users that a batch serves under one model.
BATCH = 64


@dataclass(frozen=True)
class Stream:
    """K actions with d features in each round, and their rewards."""

    offers: np.ndarray  # (rounds, K, d)
    rewards: np.ndarray  # (rounds, K)

    @classmethod
    def of(cls, d: int, k: int, rounds: int) -> Stream:
        draw = np.random.default_rng(0)
        theta = draw.normal(size=d) / np.sqrt(d)
        offers = draw.normal(size=(rounds, k, d)) / np.sqrt(d)
        return cls(offers, offers @ theta + 0.1 * draw.normal(size=(rounds, k)))

    def first(self, rounds: int) -> Stream:
        """The first rounds."""
        return Stream(self.offers[:rounds], self.rewards[:rounds])

    @property
    def size(self) -> tuple[int, int]:
        """d, K."""
        return self.offers.shape[2], self.offers.shape[1]


Player = Callable[[int, int], list[Any]]

# ---- one model of all actions --------------------------------------------------------------------


def numpy(stream: Stream) -> Player:
    """V^{-1} by Sherman-Morrison; no loop, no copy that could be left out."""
    d, _ = stream.size
    inverse, u, theta = np.eye(d), np.zeros(d), np.zeros(d)

    def play(first: int, last: int) -> list[Any]:
        nonlocal u, theta
        made = []
        for t in range(first, last):
            x = stream.offers[t]
            width = np.sqrt(np.einsum("kd,kd->k", x @ inverse, x))
            a = int((x @ theta + RADIUS * width).argmax())
            row = x[a]
            z = inverse @ row
            inverse[:] -= np.outer(z, z / (1.0 + row @ z))
            u += stream.rewards[t, a] * row
            theta = inverse @ u
            made.append(a)
        return made

    return play


def numba_lines(stream: Stream) -> Player:
    """The same lines under ``numba.njit``, the loop over rounds inside."""
    import numba

    @numba.njit
    def rounds(offers: Any, rewards: Any, inverse: Any, u: Any, chosen: Any) -> None:
        for t in range(len(offers)):
            x, theta = offers[t], inverse @ u
            a = np.argmax(x @ theta + RADIUS * np.sqrt(((x @ inverse) * x).sum(axis=1)))
            z = inverse @ x[a]
            inverse -= np.outer(z, z / (1.0 + x[a] @ z))
            u += rewards[t, a] * x[a]
            chosen[t] = a

    d, _ = stream.size
    return _compiled(stream, rounds, np.eye(d), np.zeros(d))


def _compiled(stream: Stream, rounds: Any, *state: np.ndarray) -> Player:
    def play(first: int, last: int) -> list[Any]:
        chosen = np.empty(last - first, np.int64)
        rounds(stream.offers[first:last], stream.rewards[first:last], *state, chosen)
        return chosen.tolist()  # type: ignore[no-any-return]

    return play


def kernels(stream: Stream, *, trusted: bool = False) -> Player:
    """`fastfed.kernels`, a call to choose and a call to learn."""
    from fastfed.kernels import factor_update, inverse_factor, ucb_argmax

    d, _ = stream.size
    factor, theta = inverse_factor(np.eye(d)), np.zeros(d)

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            x = stream.offers[t]
            a = ucb_argmax(x, factor, theta, RADIUS, trusted=trusted)
            factor_update(factor, theta, x[a], stream.rewards[t, a], trusted=trusted)
            made.append(a)
        return made

    return play


def trusted_kernels(stream: Stream) -> Player:
    return kernels(stream, trusted=True)


def batched_kernels(stream: Stream) -> Player:
    """`BATCH` users choose under one model, then all of them are learned."""
    from fastfed.kernels import factor_update, inverse_factor, ucb_argmax

    d, _ = stream.size
    factor, theta = inverse_factor(np.eye(d)), np.zeros(d)

    def play(first: int, last: int) -> list[Any]:
        made = []
        for start in range(first, last, BATCH):
            x = stream.offers[start : min(start + BATCH, last)]
            a, users = ucb_argmax(x, factor, theta, RADIUS, trusted=True), np.arange(len(x))
            rewards = stream.rewards[start : start + len(x)]
            factor_update(factor, theta, x[users, a], rewards[users, a], trusted=True)
            made += a.tolist()
        return made

    return play


def kernels_in_njit(stream: Stream) -> Player:
    """`fastfed.kernels` inside ``numba.njit``, the loop over rounds inside."""
    import numba

    from fastfed.kernels import factor_update, ucb_argmax
    from fastfed.kernels.numba import register

    register()  # an installed fastfed does without

    @numba.njit
    def rounds(offers: Any, rewards: Any, factor: Any, theta: Any, chosen: Any) -> None:
        for t in range(len(offers)):
            a = ucb_argmax(offers[t], factor, theta, RADIUS, trusted=True)
            factor_update(factor, theta, offers[t, a], rewards[t, a], trusted=True)
            chosen[t] = a

    d, _ = stream.size
    return _compiled(stream, rounds, np.eye(d), np.zeros(d))


def linucb(stream: Stream) -> Player:
    """`fastfed.LinUCB`."""
    import fastfed

    agent = fastfed.LinUCB(stream.size[0])

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            a = agent.select(stream.offers[t])
            agent.observe(stream.rewards[t, a])
            made.append(a)
        return made

    return play


def batched_linucb(stream: Stream) -> Player:
    """`fastfed.LinUCB`, `BATCH` users under one model."""
    import fastfed

    agent = fastfed.LinUCB(stream.size[0])

    def play(first: int, last: int) -> list[Any]:
        made = []
        for start in range(first, last, BATCH):
            a = agent.select_many(stream.offers[start : min(start + BATCH, last)])
            agent.observe_many(stream.rewards[start : start + len(a)][np.arange(len(a)), a])
            made += a.tolist()
        return made

    return play


def coba(stream: Stream) -> Player:
    """coba's LinUCBLearner, whose features are lists; they are made before the clock runs."""
    import coba

    learner = coba.LinUCBLearner(RADIUS, ["a"])
    lists = stream.offers.tolist()

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            action, probability = learner.predict(None, lists[t])
            a = lists[t].index(action)
            learner.learn(None, action, float(stream.rewards[t, a]), probability)
            made.append(a)
        return made

    return play


def vowpal_wabbit(stream: Stream) -> Player:
    """VW's --cb_explore_adf on text, which is made before the clock runs but for the label."""
    from vowpalwabbit import Workspace

    learner = Workspace("--cb_explore_adf --epsilon 0.05 --quiet")
    text = [
        ["| " + " ".join(f"{j}:{v:.6g}" for j, v in enumerate(row)) for row in offer]
        for offer in stream.offers
    ]

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            chances = learner.predict(text[t])
            a = max(range(len(chances)), key=chances.__getitem__)
            rows = text[t].copy()
            rows[a] = f"0:{-stream.rewards[t, a]:.6g}:{chances[a]:.6g} {rows[a]}"
            learner.learn(rows)
            made.append(a)
        return made

    return play


# ---- a model of every arm: one context of d features for K arms ----------------------------------


def mabwiser(stream: Stream) -> Player:
    """mabwiser's LinUCB; the context is the first action's features."""
    from mabwiser.mab import MAB, LearningPolicy

    k = stream.size[1]
    bandit = MAB(list(range(k)), LearningPolicy.LinUCB(RADIUS, 1.0))
    return _arms(stream, bandit)


def mabwiser_on_fastfed(stream: Stream) -> Player:
    """The class of mabwiser_linucb.py."""
    from mabwiser_linucb import LinUCB

    return _arms(stream, LinUCB(list(range(stream.size[1])), RADIUS, 1.0))


def _arms(stream: Stream, bandit: Any) -> Player:
    d, k = stream.size
    draw = np.random.default_rng(1)
    arms = [arm for arm in range(k) for _ in range(2)]
    contexts = draw.normal(size=(len(arms), d)) / np.sqrt(d)
    bandit.fit(arms, draw.uniform(size=len(arms)).tolist(), contexts)

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            context = stream.offers[t, :1]
            arm = bandit.predict(context)
            bandit.partial_fit([arm], [float(stream.rewards[t, arm])], context)
            made.append(arm)
        return made

    return play


def river(stream: Stream) -> Player:
    """river's LinUCBDisjoint, whose contexts are dictionaries, made before the clock runs."""
    from river import bandit

    _, k = stream.size
    learner, arms = bandit.LinUCBDisjoint(alpha=RADIUS, seed=1), list(range(k))
    contexts = [dict(enumerate(offer[0].tolist())) for offer in stream.offers]

    def play(first: int, last: int) -> list[Any]:
        made = []
        for t in range(first, last):
            arm = learner.pull(arms, context=contexts[t])
            learner.update(arm, contexts[t], float(stream.rewards[t, arm]))
            made.append(arm)
        return made

    return play


ONE_MODEL: dict[str, Callable[[Stream], Player]] = {
    "NumPy": numpy,
    "the same under numba.njit": numba_lines,
    "`kernels`": kernels,
    "`kernels`, trusted": trusted_kernels,
    f"`kernels`, {BATCH} users at once": batched_kernels,
    "`kernels` inside numba.njit": kernels_in_njit,
    "`LinUCB`": linucb,
    f"`LinUCB`, {BATCH} users at once": batched_linucb,
    "coba": coba,
    "VW": vowpal_wabbit,
}
#: These choose the same actions.
SAME = ("NumPy", "the same under numba.njit", "`kernels`", "`kernels`, trusted",
        "`kernels` inside numba.njit", "coba")  # fmt: skip
MODEL_PER_ARM: dict[str, Callable[[Stream], Player]] = {
    "mabwiser": mabwiser,
    "the same class on fastfed": mabwiser_on_fastfed,
    "river": river,
}
