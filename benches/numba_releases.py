"""Programs that a competent user writes with numba for private releases, tuned for speed.

`agent` is one agent with fixed actions and a noisy release in every round (`linucb-jdp`,
`linucb-ldp`). The shortcuts are those of `numba_opponents.py`. Loops over d are unrolled in
generated source, where ``v32`` is the entry (3, 2) of a symmetric matrix, and ``b1`` an entry of a
vector.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba_opponents import choose, fast, len_padded, mix, normals

from fastfed.protocols.plan import Plan

#: Rounds whose noise is drawn together.
BLOCK = 256



@fast(inline="always")
def key(score, k):
    """Return an integer that sorts like a score, with the action k < 128 in its last bits.

    LLVM vectorises the maximum of integers, but not that of floats. Scores that agree in 17 bits
    are equal.
    """
    bits = np.float32(score).view(np.int32)
    bits ^= (bits >> np.int32(31)) & np.int32(0x7FFFFFFF)
    return np.int32((bits & np.int32(-128)) | np.int32(127 - k))


#: Source of the noise of prefix sums: w_0 z + sum of w_i s_i with s_i <- t_i s_i + z.
NOISE = """
def prefixes(z, std, weights, decays, buffers, noise):
    {loads}
    for t in range(len(noise)):
        for e in range({size}):
            drawn = std[e] * z[t * {size} + e]
            {steps}
            noise[t, e] = {total}
"""

#: Source of the scores mean + rank (beta sqrt(x' P x) + gamma sqrt(x' P^2 x)) of all actions.
SCORES = """
def scores(features, beta, gamma, {theta}, {inverse}):
    top = np.int32(-(2**31) + 1)
    for k in range({padded}):
        {reads}
        {products}
        top = max(top, key({mean} + beta * np.sqrt({width}) + gamma * np.sqrt({second}), k))
    return 127 - (top & np.int32(127))
"""

#: Source of the rounds of a block. P is the inverse of V, and S its square.
ROUNDS = """
def rounds(first, noise, plan, numbers, x, features, truth, sums):
    fulls, floors, errors, widths = plan
    base, scale, anchor, tau, rank, limit, seed = numbers
    regret, best, n = 0.0, truth.max(), len(truth)
    {sums}
    for t in range(first, first + len(noise)):
        i = t - first
        full, floor = fulls[t], floors[t]
        {released}
        # The number of multiples of full / 8 that leave an eigenvalue below the floor.
        fails, unit = 0.0, 1.0 / floor
        for step in range(8):
            shift = (0.125 * full * step - floor) * unit
            {minors}
            fails += 0.0 if min({pivots}) > 0.0 else 1.0
        ridge = 0.125 * full * fails
        while True:
            det = 1.0
            {diagonal}
            {sweep}
            if least > 0.0:
                break
            ridge *= 2.0
        growth, largest = 1.0, 0.0
        if ridge < full:
            {largest}
            growth = 1.0 + (full - ridge) * min(unit, largest)
        log_det = math.log(det) + {d} * math.log(growth / anchor)
        beta = scale * math.sqrt(growth * (base + max(0.0, log_det)))
        gamma = tau * ridge + errors[t]
        {theta}
        one, two = np.float32(rank * beta), np.float32(rank * gamma)
        a = scores(features, one, two, {theta_cast}, {p_cast})
        if rank < 1.0:
            {chosen}
            if upper < limit:
                {largest}
                slack = 1.0
                if ridge <= full:
                    bound = beta + gamma * math.sqrt(largest)
                    slack = max(1.0, widths[t] / (math.sqrt(growth) * bound))
                many = 2.0 * slack - 1.0
                a = sieve(x, ({theta_names}), ({inverse}), beta, gamma, rank, many, limit)
        coin = mix(np.uint32(t) ^ np.uint32(seed)) * 2.0**-32 < truth[a]
        regret += best - truth[a]
        {observe}
    {store}
    return regret
"""


@fast
def sieve(x, theta, inverse, beta, gamma, rank, many, limit):
    """Return the chosen action; the inverse of V is the list of its lower triangle."""
    n, d = x.shape
    mean, bonus, score = np.empty(n), np.empty(n), np.empty(n)
    for k in range(n):
        total = width = second = 0.0
        for i in range(d):
            product = 0.0
            for j in range(d):
                high, low = max(i, j), min(i, j)
                product += inverse[high * (high + 1) // 2 + low] * x[k, j]
            total += x[k, i] * theta[i]
            width += x[k, i] * product
            second += product * product
        mean[k], bonus[k] = total, beta * math.sqrt(width) + gamma * math.sqrt(second)
    return choose(mean, bonus, score, rank, many, limit)


def lower(d: int) -> list[tuple[int, int]]:
    """Return the entries of a lower triangle."""
    return [(i, j) for i in range(d) for j in range(i + 1)]


def entry(name: str, i: int, j: int) -> str:
    """Return the name of an entry of a symmetric matrix."""
    return f"{name}{max(i, j)}{min(i, j)}"


def squared(new: str, old: str, d: int) -> list[str]:
    """Return statements that square a symmetric matrix."""
    return [
        f"{new}{i}{j} = "
        + " + ".join(f"{entry(old, i, m)} * {entry(old, m, j)}" for m in range(d))
        for i, j in lower(d)
    ]


def power(d: int) -> list[str]:
    """Return statements that bound the largest eigenvalue of P by tr(P^8)^(1/8)."""
    norm = " + ".join(f"{1 + (i > j)} * f{i}{j} * f{i}{j}" for i, j in lower(d))
    return [*squared("s", "p", d), *squared("f", "s", d), f"largest = math.sqrt(math.sqrt(math.sqrt({norm})))"]


def compiled(text: str, name: str, indents: dict[str, list[str]], **values: Any) -> Any:
    """Return the compiled function ``name`` of a source with lists of statements filled in."""
    lines = []
    for line in text.splitlines():
        slot = line.strip()[1:-1]
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + statement for statement in indents.get(slot) or [line.strip().format(**values)]]
    scorer = values.get("scorer")
    names: dict[str, Any] = {
        "np": np, "math": math, "mix": mix, "sieve": sieve, "scores": scorer,
        "key": key,
    }  # fmt: skip
    exec("\n".join(lines), names)
    return fast(names[name])


@cache
def make_scores(d: int, n: int) -> Callable[..., Any]:
    """Compile `SCORES` for n actions and d features."""
    whole, pairs, padded = range(d), lower(d), len_padded(n)
    return compiled(
        SCORES, "scores",
        {
            "reads": [f"x{j} = features[{j * padded} + k]" for j in whole],
            "products": [
                f"y{i} = " + " + ".join(f"{entry('p', i, j)} * x{j}" for j in whole) for i in whole
            ],
        },
        theta=", ".join(f"b{j}" for j in whole),
        inverse=", ".join(f"p{i}{j}" for i, j in pairs),
        padded=padded,
        mean=" + ".join(f"b{j} * x{j}" for j in whole),
        width=" + ".join(f"y{j} * x{j}" for j in whole),
        second=" + ".join(f"y{j} * y{j}" for j in whole),
    )  # fmt: skip


@cache
def make_prefixes(size: int, buffers: int) -> Callable[..., None]:
    """Compile `NOISE` for statistics of ``size`` entries."""
    return compiled(
        NOISE, "prefixes",
        {
            "loads": [f"w{i} = weights[{i}]" for i in range(buffers + 1)]
            + [f"t{i} = decays[{i - 1}]" for i in range(1, buffers + 1)],
            "steps": [
                f"s{i} = t{i} * buffers[{i - 1}, e] + drawn; buffers[{i - 1}, e] = s{i}"
                for i in range(1, buffers + 1)
            ],
        },
        size=size,
        total=" + ".join(["w0 * drawn", *(f"w{i} * s{i}" for i in range(1, buffers + 1))]),
    )  # fmt: skip


@cache
def make_rounds(d: int, n: int) -> Callable[..., float]:
    """Compile `ROUNDS` for n actions and d features, at most 6."""
    whole, pairs, minors, sweep = range(d), lower(d), [], ["least = 1.0"]
    for i, j in pairs:
        minors.append(f"m{i}{j} = v{i}{j} * unit" + (" + shift" if i == j else ""))
    for k in whole:
        minors += [
            f"m{i}{j} = m{k}{k} * m{i}{j} - m{i}{k} * m{j}{k}" for i, j in pairs if j > k
        ]
        others = [j for j in whole if j != k]
        sweep += [f"least = min(least, p{k}{k}); det *= p{k}{k}; q = 1.0 / p{k}{k}"]
        sweep += [f"r{j} = {entry('p', j, k)} * q" for j in others]
        sweep += [
            f"p{i}{j} -= {entry('p', i, k)} * r{j}" for i, j in pairs if k not in (i, j)
        ]
        sweep += [f"{entry('p', j, k)} = r{j}" for j in others] + [f"p{k}{k} = -q"]
    sweep += [f"p{i}{j} = -p{i}{j}" for i, j in pairs]
    released = [f"b{j} = u{j} + noise[i, {j}]" for j in whole]
    released += [f"v{i}{j} = g{i}{j} + noise[i, {d + e}]" for e, (i, j) in enumerate(pairs)]
    observe = [f"x{j} = x[a, {j}]" for j in whole] + ["if coin:"]
    observe += [f"    u{j} += x{j}" for j in whole]
    observe += [f"g{i}{j} += x{i} * x{j}" for i, j in pairs]
    chosen = [f"x{j} = x[a, {j}]" for j in whole]
    chosen += [
        f"y{i} = " + " + ".join(f"{entry('p', i, j)} * x{j}" for j in whole) for i in whole
    ]
    width, second = (" + ".join(f"y{j} * {v}{j}" for j in whole) for v in "xy")
    mean = " + ".join(f"h{j} * x{j}" for j in whole)
    chosen += [f"upper = {mean} + beta * math.sqrt({width}) + gamma * math.sqrt({second})"]
    names = [f"u{j}" for j in whole] + [f"g{i}{j}" for i, j in pairs]
    return compiled(
        ROUNDS, "rounds",
        {
            "sums": [f"{name} = sums[{e}]" for e, name in enumerate(names)],
            "store": [f"sums[{e}] = {name}" for e, name in enumerate(names)],
            "released": released,
            "minors": minors,
            "diagonal": [f"p{i}{j} = v{i}{j}" + (" + ridge" if i == j else "") for i, j in pairs],
            "sweep": sweep,
            "largest": power(d),
            "theta": [
                f"h{i} = " + " + ".join(f"{entry('p', i, j)} * b{j}" for j in whole) for i in whole
            ],
            "observe": observe,
            "chosen": chosen,
        },
        d=d, scorer=make_scores(d, n), padded=len_padded(n),
        pivots=", ".join(f"m{j}{j}" for j in whole),
        theta_cast=", ".join(f"np.float32(h{j})" for j in whole),
        p_cast=", ".join(f"np.float32(p{i}{j})" for i, j in pairs),
        theta_names=", ".join(f"h{j}" for j in whole),
        inverse=", ".join(f"p{i}{j}" for i, j in pairs),
    )  # fmt: skip


def agent(plan: Plan, rows: np.ndarray, means: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Run one agent with K fixed actions (K, d), and a release with noise in every round."""
    n, d = rows.shape
    size, radius, rounds = plan.statistic_size, plan.radius, plan.horizon
    assert plan.batch_size == 1 and radius.direct and radius.determinant
    loop, prefixes = make_rounds(d, n), make_prefixes(size, max(1, plan.buffers))
    start = time.process_time()
    pairs = lower(d)
    x = np.ascontiguousarray(rows, np.float64)
    features = np.empty((d, len_padded(n)), np.float32)
    features[:, :n], features[:, n:] = x.T, x[:1].T
    # Without buffers users add the noise: it is a random walk.
    packed = plan.coefficients if plan.buffers else np.array([0.0, 1.0, 1.0])
    packed = packed.astype(np.float32)
    weights, decays = np.append(packed[0], packed[2::2]), packed[1::2].copy()
    std = np.array([plan.noise_std.bias] * d + [
        plan.noise_std.diagonal if i == j else plan.noise_std.off_diagonal for i, j in pairs
    ], np.float32)
    floors = radius.floor.copy()
    floors[floors <= 0.0] = 1e30  # lambda is then full
    multiplier = radius.multiplier
    arrays = (
        plan.regularizer, floors, multiplier * radius.error_bound,
        np.asarray(plan.widths or np.zeros(rounds + 1)),
    )
    numbers = (
        radius.base, multiplier * radius.scale, radius.anchor, multiplier * radius.tau, plan.ranking,
        plan.reward_limit, int(mix(seed + 1)),
    )
    sums = np.zeros(size)
    buffers = np.zeros((len(decays), size), np.float32)
    z, bits = np.empty((2, BLOCK * size // 2), np.float32), np.empty(BLOCK * size // 2, np.uint32)
    noise, counter, regret = np.zeros((BLOCK, size), np.float32), int(mix(seed + 77)), 0.0
    regret += loop(0, noise[:1], arrays, numbers, x, features.reshape(-1), means, sums)
    for first in range(1, rounds, BLOCK):
        normals(np.uint32(counter), z, bits)
        counter = (counter + 2 * len(bits)) % 2**32
        block = noise[: min(BLOCK, rounds - first)]
        prefixes(z.reshape(-1), std, weights, decays, buffers, block)
        regret += loop(first, block, arrays, numbers, x, features.reshape(-1), means, sums)
    return regret, 1e6 * (time.process_time() - start) / rounds


# ---- Silos that synchronise when a determinant has grown ----------------------------------------

#: sin(pi t / 2) / t and cos(pi t / 2) for |t| <= 1: coefficients of 1, t^2, t^4, ...
_NODES = np.cos(np.pi * (np.arange(64) + 0.5) / 64)
SINE, COSINE = (
    np.polyfit(_NODES**2, values, degree)[::-1].tolist()
    for values, degree in (
        (np.sin(0.5 * np.pi * _NODES) / _NODES, 3), (np.cos(0.5 * np.pi * _NODES), 4)
    )
)  # fmt: skip

#: Source of agent-rounds under one model. The squared radii of pairs of coordinates of a uniform
#: point on a sphere are the gaps between sorted uniform numbers.
SPHERE = """
def sphere(state, learned, theta, truth, inverse, chosen, rewards):
    c, one, two, regret = np.float32(0.70710678), np.float32(1.0), np.float32(2.0), 0.0
    unit, lowest = np.float32(2.0**-31), np.int32(-(2**31) + 1)
    z, lengths = np.empty({m} * {padded}, np.float32), np.empty({padded}, np.float32)
    {loads}
    for r in range(len(chosen)):
        for i in range({words} * {padded}):
            w = state[i]
            w = np.uint32(w ^ np.uint32(w << np.uint32(13)))
            w = np.uint32(w ^ (w >> np.uint32(17)))
            state[i] = w ^ np.uint32(w << np.uint32(5))
        most, a = np.int32(0), 0
        for k in range({padded}):
            {points}
            scale = c / np.sqrt({length})
            lengths[k] = scale
            {stored}
            expected = scale * ({expected}) + g{m} * c
            most = max(most, np.float32(expected).view(np.int32))
        if learned:
            top = lowest
            for k in range({padded}):
                scale = lengths[k]
                {loaded}
                {products}
                top = max(top, key(scale * ({mean}) + h{m} * c + np.sqrt({width}), k))
            a = 127 - (top & np.int32(127))
        {store}
        chosen[r, {m}] = c
        expected = {played} + g{m} * c
        regret += np.int32(most).view(np.float32) - expected
        coin = mix(state[0] ^ np.uint32(r)) * 2.0**-32 < expected
        rewards[r] = one if coin else np.float32(0.0)
    return regret
"""


def horner(coefficients: list[float], variable: str) -> str:
    """Return the source of a polynomial."""
    terms = [f"np.float32({value!r})" for value in coefficients]
    text = terms.pop()
    while terms:
        text = f"({terms.pop()} + {variable} * {text})"
    return text


@cache
def make_sphere(d: int, n: int) -> Callable[..., float]:
    """Compile `SPHERE` for n <= 128 actions and d features, the last of which is 1/sqrt 2."""
    m, padded = d - 1, len_padded(n)
    pairs = -(-m // 2)
    points = [
        f"o{j} = np.float32(np.int32(state[{(j - 1) * padded} + k] >> np.uint32(1))) * unit"
        for j in range(1, pairs)
    ]
    for j in range(2, pairs):  # insertion sort
        points += [f"o{i}, o{i + 1} = min(o{i}, o{i + 1}), max(o{i}, o{i + 1})" for i in range(j - 1, 0, -1)]
    for j in range(pairs):
        upper, under = "one" if j == pairs - 1 else f"o{j + 1}", "" if j == 0 else f" - o{j}"
        word = pairs - 1 + j
        points += [
            f"rho = np.sqrt({upper}{under})",
            f"t = np.float32(np.int32(state[{word * padded} + k])) * unit",
            "q = t * t",
            f"s = t * {horner(SINE, 'q')}",
            f"z{2 * j} = rho - two * rho * s * s",
        ]
        if 2 * j + 1 < m:
            points += [f"z{2 * j + 1} = two * rho * s * {horner(COSINE, 'q')}"]
    whole = range(m)
    loads = [f"h{j} = theta[{j}]; g{j} = truth[{j}]" for j in range(d)]
    loads += [f"p{i}{j} = inverse[{i}, {j}]" for i, j in lower(d)]
    products = [
        f"y{i} = scale * (" + " + ".join(f"p{i}{j} * z{j}" for j in range(min(i + 1, m))) + ")"
        for i in range(d)
    ] + [f"y{m} += p{m}{m} * c"]
    return compiled(
        SPHERE, "sphere",
        {
            "loads": loads,
            "points": points,
            "stored": [f"z[{j * padded} + k] = z{j}" for j in whole],
            "loaded": [f"z{j} = z[{j * padded} + k]" for j in whole],
            "products": products,
            "store": [f"chosen[r, {j}] = lengths[a] * z[{j * padded} + a]" for j in whole],
        },
        m=m, padded=padded, words=2 * pairs - 1,
        length=" + ".join(f"z{j} * z{j}" for j in whole),
        expected=" + ".join(f"g{j} * z{j}" for j in whole),
        played=" + ".join(f"g{j} * chosen[r, {j}]" for j in whole),
        mean=" + ".join(f"h{j} * z{j}" for j in whole),
        width=" + ".join(f"y{j} * y{j}" for j in range(d)),
    )  # fmt: skip


def feducb(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> Any:
    """Run lazy silos on the sphere with a determinant trigger; truth (d,) is theta*."""
    d, silos, radius, trigger = plan.dimension, plan.silos, plan.radius, plan.trigger
    assert trigger is not None and plan.lazy and plan.ranking == 1.0 and not radius.direct
    loop = make_sphere(d, actions)
    start, draw, true = time.process_time(), np.random.default_rng(seed), truth.astype(np.float32)
    # Lanes beyond the last action repeat the first ones.
    lanes = np.arange(len_padded(actions)) % actions
    state = draw.integers(1, 2**32, (2 * d, actions), np.uint32)[:, lanes].ravel()
    shape, std = (plan.horizon, silos, d), plan.noise_std.times(math.sqrt(silos))
    x, y = np.empty(shape, np.float32), np.empty(shape[:2], np.float32)
    total, bias, noise, bias_noise = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), np.zeros(d)
    nodes: list[tuple[int, np.ndarray, np.ndarray]] = []
    t, last, releases, regret = 0, 0, 0, 0.0
    while True:
        k = plan.entry(releases)
        v = total + noise + plan.regularizer[k] * np.eye(d)
        values = np.linalg.eigvalsh(v)
        log_det, grown = np.log(values).sum(), values + trigger.extra
        growth = np.log(grown).sum() - log_det
        beta = radius.of(k, 1.0, float(log_det), d)
        theta = np.linalg.solve(v, bias + bias_noise).astype(np.float32)
        inverse = (beta * np.linalg.inv(np.linalg.cholesky(v))).astype(np.float32)
        fired = False
        while not fired and t < plan.horizon:
            # A row adds at most 1 / grown[0] to the growth, so no silo asks before ``until``.
            most = growth + np.arange(1, plan.horizon - t + 1) / grown[0]
            may_ask = most * np.arange(t - last + 1, plan.horizon - last + 1) >= trigger.threshold
            until = t + 1 + int(may_ask.argmax()) if may_ask.any() else plan.horizon
            rows, rewards = x[t:until].reshape(-1, d), y[t:until].reshape(-1)
            regret += loop(state, releases > 0, theta, true, inverse, rows, rewards)
            t = until
            if may_ask.any():
                batch = x[last:t].transpose(1, 0, 2).astype(np.float64)
                grams = batch.transpose(0, 2, 1) @ batch
                log_dets = np.linalg.slogdet(v + grams + trigger.extra * np.eye(d))[1]
                growth = log_dets.max() - log_det
                fired = growth * (t - last) >= trigger.threshold
        if not fired:
            return regret, 1e6 * (time.process_time() - start) / (silos * plan.horizon)
        total += grams.sum(axis=0)
        bias += y[last:t].reshape(-1) @ x[last:t].reshape(-1, d)
        last, releases = t, releases + 1
        # The noise of a prefix is that of its tree nodes, drawn once for all silos.
        level = (releases & -releases).bit_length()
        off = np.tril(draw.normal(0.0, std.off_diagonal, (d, d)), -1)
        node = off + off.T + np.diag(draw.normal(0.0, std.diagonal, d))
        nodes = [old for old in nodes if old[0] > level]
        nodes.append((level, node, draw.normal(0.0, std.bias, d)))
        noise, bias_noise = (np.sum([each[i] for each in nodes], axis=0) for i in (1, 2))
