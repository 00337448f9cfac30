"""Microseconds per select and update: LinUCB in NumPy, numba, fastfed and other libraries.

Both sides of a row get the same stream and play it in turn, block by block, in one process and on
one thread; a figure is the median over blocks, a ratio the median of the blocks' own ratios. The
clock is the process's processor time, so that what else runs on the machine counts for less.

    python examples/backends/benchmark.py [--blocks 7] [--seconds 0.2] [--sizes 10x10 57x120]
    python examples/backends/benchmark.py --all --sizes 10x10 50x100 135x120

`--all`: every player of players.py in one run; river and vowpalwabbit where they are installed.
`--kernels`: single kernels beside NumPy.
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


def measure_all(d: int, k: int, blocks: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Microseconds of every player that is installed, who play the same blocks in turn.

    A block of each takes about ``seconds``: slow players play its first rounds only.
    """
    import players

    stream = players.Stream.of(d, k, 64)
    lengths: dict[str, int] = {}
    for name, make in {**players.ONE_MODEL, **players.MODEL_PER_ARM}.items():
        try:
            player = make(stream)
        except ImportError as error:
            print(f"not installed: {name} ({error.name})")
            continue
        player(0, 2)  # numba compiles
        start, played = time.process_time(), 0
        while played < 62 and (played < 3 or time.process_time() - start < 0.5 * seconds):
            player(2 + played, 3 + played)
            played += 1
        each = max((time.process_time() - start) / played, 1e-7)
        # Whole batches, and no more rounds than fit into memory.
        most = max(players.BATCH, int(2e7 / (d * k)) // blocks // players.BATCH * players.BATCH)
        wanted = int(seconds / each)
        batches = max(1, wanted // players.BATCH) * players.BATCH
        lengths[name] = max(3, min(most, batches if wanted >= players.BATCH else wanted))
    longest = max(lengths.values())
    stream = players.Stream.of(d, k, WARM + blocks * longest)
    everyone = {**players.ONE_MODEL, **players.MODEL_PER_ARM}
    # Lists and texts are made of what a player plays, and of no more.
    made = {n: everyone[n](stream.first(WARM + blocks * lengths[n])) for n in lengths}
    warm = min(WARM, *lengths.values())
    chosen = {name: player(0, warm) for name, player in made.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    at = dict.fromkeys(made, warm)
    for _ in range(blocks):
        for name, player in made.items():
            first, last = at[name], at[name] + lengths[name]
            start = time.process_time()
            found = player(first, last)
            times[name].append((time.process_time() - start) / (last - first) * 1e6)
            chosen[name] += found
            at[name] = last
    reference = chosen["NumPy"]
    beside = {name: "mabwiser" if name in players.MODEL_PER_ARM else "NumPy" for name in times}
    return {
        name: {
            "us": float(np.median(each)),
            "ratio": float(np.median(np.array(times.get(beside[name], each)) / np.array(each))),
            "rounds": len(chosen[name]),
            "same": sum(a == b for a, b in zip(chosen[name], reference, strict=False))
            if name in players.SAME
            else None,
            "compared": min(len(chosen[name]), len(reference)),
        }
        for name, each in times.items()
    }


def print_all(sizes: list[tuple[int, int]], blocks: int, seconds: float) -> None:
    """The tables of all players: microseconds, and in brackets how many times faster they are."""
    import players

    found = {size: measure_all(*size, blocks, seconds) for size in sizes}
    heads = " | ".join(f"{d} x {k}" for d, k in sizes)
    for title, whose, names in (
        ("one model of all actions", "NumPy", players.ONE_MODEL),
        ("a model for every arm", "mabwiser", players.MODEL_PER_ARM),
    ):
        print(f"\nmicroseconds per round, d x K, {title}; in brackets {whose}'s over its own\n")
        print(f"| player | {heads} | same actions |")
        print("|---" * (len(sizes) + 2) + "|")
        for name in names:
            rows = [found[size][name] for size in sizes if name in found[size]]
            if not rows:
                continue
            cells = " | ".join(f"{r['us']:,.1f} ({r['ratio']:.2f})" for r in rows)
            same = [r for r in rows if r["same"] is not None]
            agreed = f"{sum(r['same'] for r in same)} of {sum(r['compared'] for r in same)}"
            print(f"| {name} | {cells} | {agreed if same else ''} |", flush=True)


def measure_kernels(d: int, blocks: int, seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds of an update of d features: NumPy, checked, trusted, and of one row of 64."""
    from fastfed import kernels

    draw = np.random.default_rng(0)
    x, rows = draw.normal(size=d) / np.sqrt(d), draw.normal(size=(64, d)) / np.sqrt(d)
    y, ys = 0.5, draw.uniform(size=64)
    gram, bias, inverse = np.eye(d), np.zeros(d), np.eye(d)
    factor, theta = np.eye(d), np.zeros(d)

    def numpy_rank_one() -> None:
        gram[:] += np.outer(x, x)
        bias[:] += y * x

    def numpy_sherman_morrison() -> None:
        z = inverse @ x
        inverse[:] -= np.outer(z, z / (1.0 + x @ z))

    def numpy_estimate() -> None:
        numpy_sherman_morrison()
        bias[:] += y * x
        theta[:] = inverse @ bias

    update, one = kernels.factor_update, kernels.rank_one_update
    both = kernels.sherman_morrison
    forms: dict[str, list[Callable[[], Any]]] = {
        "rank_one_update": [
            numpy_rank_one,
            lambda: one(gram, bias, x, y),
            lambda: one(gram, bias, x, y, trusted=True),
            lambda: one(gram, bias, rows, ys, trusted=True),
        ],
        "sherman_morrison": [
            numpy_sherman_morrison,
            lambda: both(inverse, x),
            lambda: both(inverse, x, trusted=True),
            lambda: both(inverse, rows, trusted=True),
        ],
        "factor_update": [
            numpy_estimate,
            lambda: update(factor, theta, x, y),
            lambda: update(factor, theta, x, y, trusted=True),
            lambda: update(factor, theta, rows, ys, trusted=True),
        ],
    }
    found = {}
    for name, calls in forms.items():
        times = np.empty((blocks, len(calls)))
        start = time.process_time()
        for _ in range(20):
            calls[0]()
        repeats = max(20, int(seconds / max(1e-7, (time.process_time() - start) / 20)))
        for block in range(blocks):
            for number, call in enumerate(calls):
                count = repeats if number < 3 else max(5, repeats // 64)
                start = time.process_time()
                for _ in range(count):
                    call()
                spent = (time.process_time() - start) / count
                times[block, number] = spent * 1e6 / (64 if number == 3 else 1)
        median = np.median(times, axis=0).tolist()
        found[name] = dict(zip(("numpy", "checked", "trusted", "row"), median, strict=True))
    return found


def print_kernels(dimensions: list[int], blocks: int, seconds: float) -> None:
    """The table of single kernels."""
    print("microseconds per row: NumPy / checked / trusted / one of 64 rows\n")
    print("| kernel | " + " | ".join(f"d = {d}" for d in dimensions) + " |")
    print("|---" * (len(dimensions) + 1) + "|")
    found = {d: measure_kernels(d, blocks, seconds) for d in dimensions}
    for name in found[dimensions[0]]:
        cells = (" / ".join(f"{v:.2f}" for v in found[d][name].values()) for d in dimensions)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def size(text: str) -> tuple[int, int]:
    d, k = text.split("x")
    return int(d), int(k)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block of the slower side")
    parser.add_argument("--sizes", type=size, nargs="+", default=SIZES, metavar="DxK")
    parser.add_argument("--all", action="store_true", help="every player of players.py")
    parser.add_argument("--kernels", action="store_true", help="single kernels beside NumPy")
    chosen = parser.parse_args(arguments)
    given = chosen.blocks, chosen.seconds
    if chosen.kernels:
        print_kernels(list(dict.fromkeys(d for d, _ in chosen.sizes)), *given)
        return
    if chosen.all:
        print_all(chosen.sizes, *given)
        return

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
