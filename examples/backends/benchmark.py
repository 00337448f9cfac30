"""Microseconds per select and update: coba's and mabwiser's LinUCB beside the same on fastfed.

Both sides of a row get the same stream and play it in turn, block by block, in one process and on
one thread; a figure is the median over blocks, a ratio the median of the blocks' own ratios. The
clock is the process's processor time, so that what else runs on the machine counts for less.

    python examples/backends/benchmark.py [--blocks 7] [--seconds 0.2] [--sizes 10x10 57x120]
"""

from __future__ import annotations

import argparse
import os

# Before NumPy is loaded: at these sizes threads of BLAS only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = [(10, 10), (10, 120), (57, 10), (57, 120), (135, 10), (135, 120)]
WARM = 50  # rounds before the clock runs


def coba_stream(d: int, k: int, rounds: int) -> list[tuple[list[list[float]], np.ndarray]]:
    """Offers of K actions with d dense features, as lists, which is what coba hands over."""
    draw = np.random.default_rng(0)
    theta = draw.normal(size=d) / np.sqrt(d)
    offers = draw.normal(size=(rounds, k, d)) / np.sqrt(d)
    return [(x.tolist(), x @ theta + 0.1 * draw.normal(size=k)) for x in offers]


def play_coba(learner: Any) -> Callable[[Any], Any]:
    def step(round: tuple[list[list[float]], np.ndarray]) -> Any:
        actions, rewards = round
        action, probability = learner.predict(None, actions)
        reward = float(rewards[actions.index(action)])
        learner.learn(None, action, reward, probability)
        return action

    return step


def without_arithmetic(k: int) -> tuple[Callable[[Any], Any], ...]:
    """What is paid around the arithmetic: coba's features, ours, and coba's draw of the action."""
    from coba.encodings import InteractionsEncoder
    from coba.random import CobaRandom
    from coba_linucb import Features

    encoder, random = InteractionsEncoder(["a"]), CobaRandom(1)
    chances = [1.0] + [0.0] * (k - 1)
    rows = Features(["a"], None).rows

    def theirs(round: Any) -> Any:
        np.array([encoder.encode(x=[], a=action) for action in round[0]])
        return np.array(encoder.encode(x=[], a=round[0][0]))

    def ours(round: Any) -> Any:
        rows(None, round[0])
        return rows(None, round[0][:1])

    return theirs, ours, lambda round: random.choicew(round[0], chances)


def mabwiser_stream(d: int, k: int, rounds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """One context of d features per round, and the reward of each of K arms."""
    draw = np.random.default_rng(0)
    theta = draw.normal(size=(k, d)) / np.sqrt(d)
    contexts = draw.normal(size=(rounds, 1, d)) / np.sqrt(d)
    return [(x, theta @ x[0] + 0.1 * draw.normal(size=k)) for x in contexts]


def play_mabwiser(bandit: Any, arms: list[int], predict_only: bool) -> Callable[[Any], Any]:
    def step(round: tuple[np.ndarray, np.ndarray]) -> Any:
        context, rewards = round
        arm = bandit.predict(context)
        if not predict_only:
            bandit.partial_fit([arm], [float(rewards[arm])], context)
        return arm

    return step


def blocks_of(
    players: list[Callable[[Any], Any]], stream: list[Any], blocks: int
) -> tuple[np.ndarray, list[list[Any]]]:
    """Microseconds (blocks, players) per round of the stream, and what each player chose."""
    chosen: list[list[Any]] = [[] for _ in players]
    for round in stream[:WARM]:
        for mine, player in zip(chosen, players, strict=True):
            mine.append(player(round))
    times = np.empty((blocks, len(players)))
    length = (len(stream) - WARM) // blocks
    for block in range(blocks):
        rounds = stream[WARM + block * length :][:length]
        for number, player in enumerate(players):
            start = time.process_time()
            made = [player(round) for round in rounds]
            times[block, number] = (time.process_time() - start) / length * 1e6
            chosen[number] += made
    return times, chosen


def rounds_for(players: list[Callable[[Any], Any]], stream: list[Any], seconds: float) -> int:
    """How many rounds of the slowest player take so long."""
    slowest = 0.0
    for player in players:
        player(stream[0])
        start = time.process_time()
        for round in stream[:5]:
            player(round)
        slowest = max(slowest, (time.process_time() - start) / 5)
    return max(10, min(2000, int(seconds / slowest)))


def measure_coba(d: int, k: int, blocks: int, seconds: float) -> dict[str, Any]:
    """One row of the first table."""
    import coba
    from coba_linucb import LinUCBLearner

    def players() -> list[Callable[[Any], Any]]:
        pair = coba.LinUCBLearner(1.0, ["a"]), LinUCBLearner(1.0, ["a"])
        return [*(play_coba(learner) for learner in pair), *without_arithmetic(k)]

    length = rounds_for(players(), coba_stream(d, k, 5), seconds)
    times, chosen = blocks_of(players(), coba_stream(d, k, WARM + blocks * length), blocks)
    median = np.median(times, axis=0)
    return {
        "d": d,
        "K": k,
        "theirs": median[0],
        "ours": median[1],
        "ratio": float(np.median(times[:, 0] / times[:, 1])),
        "their_features": median[2],
        "our_features": median[3],
        "draw": median[4],
        "same": sum(a == b for a, b in zip(*chosen[:2], strict=True)),
        "rounds": len(chosen[0]),
    }


def measure_mabwiser(
    d: int, k: int, blocks: int, seconds: float, predict_only: bool = False
) -> dict[str, Any]:
    """One row of the second table."""
    from mabwiser.mab import MAB, LearningPolicy
    from mabwiser_linucb import LinUCB

    def players() -> list[Callable[[Any], Any]]:
        arms = list(range(k))
        pair = [MAB(arms, LearningPolicy.LinUCB(1.0, 1.0)), LinUCB(arms, 1.0, 1.0)]
        # Every arm has seen something, so that none is at its start.
        draw = np.random.default_rng(1)
        first = [arm for arm in arms for _ in range(2)]
        contexts = draw.normal(size=(len(first), d)) / np.sqrt(d)
        rewards = draw.uniform(size=len(first)).tolist()
        for bandit in pair:
            bandit.fit(first, rewards, contexts)
        return [play_mabwiser(bandit, arms, predict_only) for bandit in pair]

    length = rounds_for(players(), mabwiser_stream(d, k, 5), seconds)
    times, chosen = blocks_of(players(), mabwiser_stream(d, k, WARM + blocks * length), blocks)
    median = np.median(times, axis=0)
    return {
        "d": d,
        "K": k,
        "theirs": median[0],
        "ours": median[1],
        "ratio": float(np.median(times[:, 0] / times[:, 1])),
        "same": sum(a == b for a, b in zip(*chosen[:2], strict=True)),
        "rounds": len(chosen[0]),
    }


def size(text: str) -> tuple[int, int]:
    d, k = text.split("x")
    return int(d), int(k)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block of the slower side")
    parser.add_argument("--sizes", type=size, nargs="+", default=SIZES, metavar="DxK")
    chosen = parser.parse_args(arguments)
    given = chosen.blocks, chosen.seconds

    print("coba, microseconds per predict + learn; in brackets what features alone take\n")
    print("| d | K | coba | fastfed | ratio | coba's draw, in both | same actions |")
    print("|---|---|---|---|---|---|---|")
    for d, k in chosen.sizes:
        r = measure_coba(d, k, *given)
        print(
            f"| {d} | {k} | {r['theirs']:,.0f} ({r['their_features']:,.0f}) "
            f"| {r['ours']:,.0f} ({r['our_features']:,.0f}) | {r['ratio']:.1f} "
            f"| {r['draw']:,.0f} | {r['same']} of {r['rounds']} |",
            flush=True,
        )
    for title, predict_only in (("predict + partial_fit", False), ("predict", True)):
        print(f"\nmabwiser, microseconds per {title} of one context\n")
        print("| d | arms | mabwiser | fastfed | ratio | same arms |")
        print("|---|---|---|---|---|---|")
        for d, k in chosen.sizes:
            r = measure_mabwiser(d, k, *given, predict_only=predict_only)
            print(
                f"| {d} | {k} | {r['theirs']:,.0f} | {r['ours']:,.0f} | {r['ratio']:.1f} "
                f"| {r['same']} of {r['rounds']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
