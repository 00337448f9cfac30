"""Programs with noisy releases that a competent user writes with numba, tuned for speed.

`agent` is one agent with fixed actions and a release in every round (`linucb-jdp`, `linucb-ldp`).
`feducb` is a federation on the sphere with a determinant trigger. The shortcuts are those of
`numba_opponents.py`. Sources are written for any d, and unrolled by `unrolled`:

- ``@ij p_ij = v_ij`` becomes a statement for each pair i >= j, and ``@i ...`` one for each i < d.
  ``#i`` is the number i, and ``#e`` counts the statements. ``p_ij`` and ``p_ji`` are one variable.
- ``<+ j: h_j * x_j>`` becomes a sum over j < d, and ``<+ j..i: ...>`` one over j <= i. ``<, ...>``
  becomes a list.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy_releases
from numba_opponents import choose, fast, len_padded, mix, normals

from fastfed.protocols.plan import Plan

#: Rounds whose noise is drawn together.
BLOCK = 500
#: Coefficients of sin(pi t / 2) / t and of cos(pi t / 2), |t| <= 1, as polynomials in t^2.
NODES = np.cos(np.pi * (np.arange(64) + 0.5) / 64)
SINE = np.polyfit(NODES**2, np.sin(0.5 * np.pi * NODES) / NODES, 3).astype(np.float32)
COSINE = np.polyfit(NODES**2, np.cos(0.5 * np.pi * NODES), 4).astype(np.float32)


@fast(inline="always")
def key(score, k):
    """Return an integer that sorts like a score, with the action k < 128 in its last bits.

    LLVM vectorises the maximum of integers, but not that of floats. Scores that agree in 17 bits
    are equal.
    """
    bits = np.float32(score).view(np.int32)
    bits ^= (bits >> np.int32(31)) & np.int32(0x7FFFFFFF)
    return np.int32((bits & np.int32(-128)) | np.int32(127 - k))


def unrolled(text: str, d: int, **values: Any) -> Callable[..., Any]:
    """Compile a source; ``{name}`` is a value, or a list of statements on a separate line."""

    def named(text: str, at: dict[str, int]) -> str:
        """Replace the indices whose values are known."""
        for letter, number in at.items():
            text = text.replace(f"#{letter}", str(number))
        digits = "".join(at) or "-"
        return re.sub(
            rf"\b([a-z])_([{digits}]+)\b",
            lambda found: (
                found[1] + "_" + "_".join(sorted((str(at[c]) for c in found[2]), key=int))
            ),
            text,
        )

    def statement(text: str, at: dict[str, int]) -> str:
        """Write out the sums and lists of a statement."""

        def terms(found: re.Match[str]) -> str:
            mark, letter, last, term = found.groups()
            stop = at[last] + 1 if last else d
            return f" {mark} ".join(named(term, {**at, letter: n}) for n in range(stop))

        return named(re.sub(r"<([+,]) (\w)(?:\.\.(\w))?: ([^<>]*)>", terms, text), at)

    lines: list[str] = []
    for line in text.splitlines():
        indent, value = line[: len(line) - len(line.lstrip())], values.get(line.strip()[1:-1])
        lines += [indent + each for each in value] if isinstance(value, list) else [line]
    source = []
    for line in lines:
        body = line.lstrip()
        indent = line[: len(line) - len(body)]
        loop, _, body = body.partition(" ") if body.startswith("@") else ("", "", body)
        indices: list[dict[str, int]] = [{"i": i} for i in range(d)] if loop else [{}]
        if loop == "@ij":
            pairs = zip(*np.tril_indices(d), strict=True)
            indices = [{"i": i, "j": j, "e": e} for e, (i, j) in enumerate(pairs)]
        source += [indent + statement(body.format(d=d, **values), at) for at in indices]
    names = {"np": np, "math": math, "mix": mix, "choose": choose, "key": key}
    exec("\n".join(source), names)
    return fast(next(reversed(names.values())))


# ---- One agent, with a release in every round ----------------------------------------------------


#: The noise w_0 z + sum of w_i s_i of prefixes, with s_i <- t_i s_i + z; here d counts buffers.
PREFIXES = """
def prefixes(z, std, weights, decays, buffers, noise):
    @i w_i = weights[#i + 1]
    @i t_i = decays[#i]
    for t in range(len(noise)):
        for e in range({size}):
            drawn = std[e] * z[t * {size} + e]
            @i s_i = t_i * buffers[#i, e] + drawn
            @i buffers[#i, e] = s_i
            noise[t, e] = weights[0] * drawn + (<+ i: w_i * s_i>)
"""
make_prefixes = functools.cache(functools.partial(unrolled, PREFIXES))

#: The rounds of a block. ``p`` is the inverse of V; the sieve is computed only if it may matter.
ROUNDS = """
def rounds(first, noise, fulls, floors, errors, widths, numbers, x, features, truth, sums):
    base, scale, anchor, tau, rank, limit, seed = numbers
    regret, best = 0.0, truth.max()
    mean, width, score = np.empty({n}), np.empty({n}), np.empty({n})
    @i u_i = sums[#i]
    @ij g_ij = sums[{d} + #e]
    for t in range(first, first + len(noise)):
        full, floor, unit = fulls[t], floors[t], 1.0 / floors[t]
        @i b_i = u_i + noise[t - first, #i]
        @ij v_ij = g_ij + noise[t - first, {d} + #e]
        # How many of the multiples of full / 8 leave an eigenvalue of V below the floor?
        fails = 0.0
        for step in range(8):
            shift = (0.125 * full * step - floor) * unit
            @ij m_ij = v_ij * unit
            @i m_ii += shift
            {minors}
            fails += 0.0 if min(<, i: m_ii>) > 0.0 else 1.0
        ridge = 0.125 * full * fails
        while True:
            det, least = 1.0, 1.0
            @ij p_ij = v_ij
            @i p_ii += ridge
            {sweep}
            @ij p_ij = -p_ij
            if least > 0.0:
                break
            ridge *= 2.0
        growth = 1.0
        if ridge < full:
            {largest}
            growth = 1.0 + (full - ridge) * min(unit, largest)
        log_det = math.log(max(1.0, det * (growth / anchor) ** {d}))
        beta = scale * math.sqrt(growth * (base + log_det))
        gamma = tau * ridge + errors[t]
        @i h_i = <+ j: p_ij * b_j>
        @i f_i = np.float32(h_i)
        @ij q_ij = np.float32(p_ij)
        one, two, top = np.float32(rank * beta), np.float32(rank * gamma), np.int32(-(2**31) + 1)
        for k in range({padded}):
            @i x_i = features[#i * {padded} + k]
            @i y_i = <+ j: q_ij * x_j>
            bonus = one * np.sqrt(<+ i: x_i * y_i>) + two * np.sqrt(<+ i: y_i * y_i>)
            top = max(top, key(<+ i: f_i * x_i> + bonus, k))
        a = 127 - (top & np.int32(127))
        @i c_i = x[a, #i]
        if rank < 1.0:
            @i w_i = <+ j: p_ij * c_j>
            bonus = beta * math.sqrt(<+ i: c_i * w_i>) + gamma * math.sqrt(<+ i: w_i * w_i>)
            if <+ i: h_i * c_i> + bonus < limit:
                {largest}
                wide = math.sqrt(growth) * (beta + gamma * math.sqrt(largest))
                slack = max(1.0, widths[t] / wide) if ridge <= full else 1.0
                for k in range({n}):
                    @i x_i = x[k, #i]
                    @i w_i = <+ j: p_ij * x_j>
                    mean[k] = <+ i: h_i * x_i>
                    width[k] = beta * math.sqrt(<+ i: x_i * w_i>)
                    width[k] += gamma * math.sqrt(<+ i: w_i * w_i>)
                a = choose(mean, width, score, rank, 2.0 * slack - 1.0, limit)
                @i c_i = x[a, #i]
        coin = mix(np.uint32(t) ^ np.uint32(seed)) * 2.0**-32 < truth[a]
        regret += best - truth[a]
        if coin:
            @i u_i += c_i
        @ij g_ij += c_i * c_j
    @i sums[#i] = u_i
    @ij sums[{d} + #e] = g_ij
    return regret
"""

#: A bound on the largest eigenvalue of V^-1: the trace of its eighth power, to the power 1/8.
LARGEST = [
    "@ij s_ij = <+ k: p_ik * p_kj>",
    "@ij r_ij = <+ k: s_ik * s_kj>",
    "@i n_i = <+ j: r_ij * r_ij>",
    "largest = math.sqrt(math.sqrt(math.sqrt(<+ i: n_i>)))",
]


def symmetric(name: str, i: int, j: int) -> str:
    """Return the name of an entry of a symmetric matrix."""
    return f"{name}_{min(i, j)}_{max(i, j)}"


@functools.cache
def make_rounds(d: int, n: int) -> Callable[..., float]:
    """Compile `ROUNDS` for n <= 128 actions and d <= 6 features."""
    p, m = functools.partial(symmetric, "p"), functools.partial(symmetric, "m")
    pairs, minors, sweep = [(i, j) for i in range(d) for j in range(i + 1)], [], []
    for k in range(d):
        others = [j for j in range(d) if j != k]
        # Elimination without division: only signs matter.
        minors += [
            f"{m(i, j)} = {m(k, k)} * {m(i, j)} - {m(i, k)} * {m(j, k)}" for i, j in pairs if j > k
        ]
        sweep += [f"least = min(least, {p(k, k)}); det *= {p(k, k)}; q = 1.0 / {p(k, k)}"]
        sweep += [f"r{j} = {p(j, k)} * q" for j in others]
        sweep += [f"{p(i, j)} -= {p(i, k)} * r{j}" for i, j in pairs if k not in (i, j)]
        sweep += [f"{p(j, k)} = r{j}" for j in others] + [f"{p(k, k)} = -q"]
    lists = {"minors": minors, "sweep": sweep, "largest": LARGEST}
    return unrolled(ROUNDS, d, n=n, padded=len_padded(n), **lists)


def agent(plan: Plan, rows: np.ndarray, means: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Run one agent with K fixed actions (K, d), and a release with noise in every round."""
    (n, d), size, radius, rounds = rows.shape, plan.statistic_size, plan.radius, plan.horizon
    assert plan.batch_size == 1 and radius.direct and radius.determinant and plan.ranking > 0.0
    loop, prefixes = make_rounds(d, n), make_prefixes(max(1, plan.buffers), size=size)
    widths = np.array(plan.widths or [0.0] * (rounds + 1))
    start = time.process_time()
    repeated = rows[np.arange(len_padded(n)) % n].astype(np.float32)
    x, features, sums = rows.astype(np.float64), repeated.T.ravel(), np.zeros(size)
    # Without buffers users add the noise: it is a random walk.
    packed = plan.coefficients if plan.buffers else np.array([0.0, 1.0, 1.0])
    packed = packed.astype(np.float32)
    weights, decays = np.append(packed[0], packed[2::2]), packed[1::2].copy()
    bias, off_diagonal, diagonal = plan.noise_std.parts
    square = np.where(np.eye(d), diagonal, off_diagonal)[np.tril_indices(d)]
    std = np.append(np.full(d, bias), square).astype(np.float32)
    # Without a floor lambda is full.
    floors, scale = np.where(radius.floor > 0.0, radius.floor, 1e30), radius.multiplier
    errors, numbers = scale * radius.error_bound, (
        radius.base, scale * radius.scale, radius.anchor, scale * radius.tau, plan.ranking,
        plan.reward_limit, int(mix(seed + 1)),
    )  # fmt: skip
    buffers, noise = np.zeros((len(decays), size), np.float32), np.zeros((BLOCK, size), np.float32)
    z, bits = np.empty((2, BLOCK * size // 2), np.float32), np.empty(BLOCK * size // 2, np.uint32)
    arrays = plan.regularizer, floors, errors, widths, numbers, x, features, means, sums
    counter, regret = int(mix(seed + 77)), loop(0, noise[:1], *arrays)
    for first in range(1, rounds, BLOCK):
        normals(np.uint32(counter), z, bits)
        counter, block = (counter + z.size) % 2**32, noise[: min(BLOCK, rounds - first)]
        prefixes(z.reshape(-1), std, weights, decays, buffers, block)
        regret += loop(first, block, *arrays)
    return regret, 1e6 * (time.process_time() - start) / rounds


# ---- Silos that synchronise when a determinant has grown -----------------------------------------

#: Agent-rounds under one model. The squared radii of pairs of coordinates of a uniform point on a
#: sphere are the gaps between sorted uniform numbers. z is x, scaled such that its last entry is
#: the length of the others. Before the first release V is a multiple of I and theta is 0, so all
#: bounds are equal, and no score is computed.
SPHERE = """
def sphere(state, learned, theta, truth, inverse, chosen, rewards):
    half, one, two, regret = np.float32(0.70710678), np.float32(1.0), np.float32(2.0), 0.0
    unit, z, a = np.float32(2.0**-31), np.empty({d} * {padded}, np.float32), 0
    @i h_i = theta[#i]
    @i g_i = truth[#i]
    @ij p_ij = inverse[#i, #j]
    for r in range(len(chosen)):
        for i in range({words} * {padded}):
            w = state[i]
            w = np.uint32(w ^ np.uint32(w << np.uint32(13)))
            w = np.uint32(w ^ (w >> np.uint32(17)))
            state[i] = w ^ np.uint32(w << np.uint32(5))
        most, top = np.int32(0), np.int32(-(2**31) + 1)
        for k in range({padded}):
            {points}
            @i z[#i * {padded} + k] = z_i
            expected = half / z_{m} * (<+ i: g_i * z_i>)
            most = max(most, np.float32(expected).view(np.int32))
        if learned:
            for k in range({padded}):
                @i z_i = z[#i * {padded} + k]
                @i y_i = <+ j..i: p_ij * z_j>
                score = <+ i: h_i * z_i> + np.sqrt(<+ i: y_i * y_i>)
                top = max(top, key(score / z_{m}, k))
            a = 127 - (top & np.int32(127))
        @i z_i = z[#i * {padded} + a]
        @i chosen[r, #i] = half / z_{m} * z_i
        expected = half / z_{m} * (<+ i: g_i * z_i>)
        regret += np.int32(most).view(np.float32) - expected
        coin = mix(state[0] ^ np.uint32(r)) * 2.0**-32 < expected
        rewards[r] = one if coin else np.float32(0.0)
    return regret
"""


def horner(coefficients: np.ndarray) -> str:
    """Return the source of a polynomial in q."""
    text = f"np.float32({float(coefficients[0])!r})"
    for value in coefficients[1:]:
        text = f"({text} * q + np.float32({float(value)!r}))"
    return text


@functools.cache
def make_sphere(d: int, n: int) -> Callable[..., float]:
    """Compile `SPHERE` for n <= 128 actions and d features, the last of which is 1/sqrt 2."""
    m, padded = d - 1, len_padded(n)
    pairs = -(-m // 2)
    points = [f"o0, o{pairs} = np.float32(0.0), one"]
    for j in range(1, pairs):
        word = f"state[{(j - 1) * padded} + k]"
        points += [f"o{j} = np.float32(np.int32({word} >> np.uint32(1))) * unit"]
        sort = [f"o{i}, o{i + 1} = min(o{i}, o{i + 1}), max(o{i}, o{i + 1})" for i in range(1, j)]
        points += reversed(sort)
    for j in range(pairs):
        points += [
            f"rho = np.sqrt(o{j + 1} - o{j})",
            f"t = np.float32(np.int32(state[{(pairs - 1 + j) * padded} + k])) * unit",
            "q = t * t",
            f"s = t * {horner(SINE)}",
            f"z_{2 * j} = rho - two * rho * s * s",
            f"z_{2 * j + 1} = two * rho * s * {horner(COSINE)}",
        ]
    length = " + ".join(f"z_{j} * z_{j}" for j in range(m))
    points += [f"z_{m} = np.sqrt({length})"]
    return unrolled(SPHERE, d, m=m, padded=padded, words=2 * pairs - 1, points=points)


def feducb(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> Any:
    """Run lazy silos on the sphere with a determinant trigger; truth (d,) is theta*."""
    d, true = plan.dimension, truth.astype(np.float32)
    loop, draw = make_sphere(d, actions), np.random.default_rng([seed, 1])
    # Lanes beyond the last action repeat the first ones.
    lanes = np.arange(len_padded(actions)) % actions
    state = draw.integers(1, 2**32, (2 * d, actions), np.uint32)[:, lanes].ravel()

    def play(model: numpy_releases.Shared, rows: np.ndarray, rewards: np.ndarray) -> float:
        learned, theta, inverse = model
        return loop(state, learned, theta, true, inverse, rows, rewards)

    return numpy_releases.federation(plan, play, seed)
