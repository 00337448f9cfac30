"""Oracle for centred statistics with a public intercept, computed from their definition.

A record is (z, y) with row x = (z, c), c = 1 / sqrt(2 kappa), and adds x (y - r0) and x x^T to the
sums. Every noisy entry is written out and divided by the standard deviation of its noise; the entry
(c, c) has no noise. Nothing here uses a closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize


@dataclass(frozen=True)
class Release:
    """The released entries and their noise: standard deviations entry by entry."""

    kappa: float = 1.0
    rewards: tuple[float, float] = (-0.5, 0.5)  # centred
    feature_bound: float = math.sqrt(0.5)
    bias: float = 1.0
    constant_bias: float = 1.0
    off_diagonal: float = 1.0
    diagonal: float = math.sqrt(2.0)
    cross: float = 1.0

    @property
    def constant(self) -> float:
        """The constant feature c."""
        return 1.0 / math.sqrt(2.0 * self.kappa)


def entries(release: Release, z: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return all noisy entries of records (n, k), (n,), in units of their noise: (n, entries)."""
    k, c = z.shape[1], release.constant
    rows, columns = np.triu_indices(k)
    stds = np.where(rows == columns, release.diagonal, release.off_diagonal)
    return np.column_stack(
        [
            z * r[:, None] / release.bias,
            c * r / release.constant_bias,
            z[:, rows] * z[:, columns] / stds,
            c * z / release.cross,
        ]
    )


def moved(release: Release, z: np.ndarray, r: np.ndarray, z2: np.ndarray, r2: np.ndarray):
    """Return the distance between two records, (n,): the GDP mu of one release on them."""
    return np.linalg.norm(entries(release, z, r) - entries(release, z2, r2), axis=1)


def random_records(release: Release, count: int, k: int, rng: np.random.Generator):
    """Return allowed records: half anywhere in the ball and the range, half at their ends."""
    z = rng.normal(size=(count, k))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    size, r = rng.uniform(size=count) ** (1.0 / k), rng.uniform(*release.rewards, size=count)
    is_extreme = rng.uniform(size=count) < 0.5
    size = np.where(is_extreme, 1.0, size)
    r = np.where(is_extreme, np.array(release.rewards)[rng.integers(0, 2, count)], r)
    return z * (release.feature_bound * size)[:, None], r


def largest_of_random(release: Release, count: int, k: int, rng: np.random.Generator):
    """Return the largest distance of random pairs, and of random records from no record."""
    replaced = removed = 0.0
    while count > 0:
        n = min(count, 250_000)
        records, other_records = (
            random_records(release, n, k, rng),
            random_records(release, n, k, rng),
        )
        replaced = max(replaced, float(moved(release, *records, *other_records).max()))
        removed = max(removed, float(np.linalg.norm(entries(release, *records), axis=1).max()))
        count -= n
    return replaced, removed


def largest_found(
    release: Release, k: int, rng: np.random.Generator, starts: int, replace: bool = True
) -> float:
    """Return the largest distance that a local search finds from many random starts.

    Records are free vectors: a feature vector is projected to its ball, a reward to its range.
    """
    low, high = release.rewards

    def record(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a record that satisfies the bounds, from free parameters."""
        size = float(np.linalg.norm(parameters[:k]))
        z = parameters[:k] * (release.feature_bound / max(size, 1.0))
        return z[None], np.array([low + (high - low) * 0.5 * (1.0 + math.sin(parameters[k]))])

    def loss(parameters: np.ndarray) -> float:
        """Return minus the distance of two records, or of one record from none."""
        first_record = record(parameters[: k + 1])
        if not replace:
            return -float(np.linalg.norm(entries(release, *first_record)))
        return -float(moved(release, *first_record, *record(parameters[k + 1 :]))[0])

    largest = 0.0
    for _ in range(starts):
        # Start from the best of 40 points. The search cannot leave points outside of the ball, or
        # at the ends of the range, where the loss is flat.
        tried = rng.normal(size=(40, 2 * (k + 1)))
        tried[:, [k, -1]] = rng.uniform(-math.pi, math.pi, (40, 2))
        start = min(tried, key=loss)
        largest = max(largest, -float(minimize(loss, start, method="L-BFGS-B").fun))
    return largest


# ---- theta* - theta0, and the noise of its error -------------------------------------------------


def random_deltas(
    kappa: float,
    centre: float,
    base_rates: tuple[float, float],
    k: int,
    count: int,
    rng: np.random.Generator,
    feature_bound: float = math.sqrt(0.5),
) -> np.ndarray:
    """Return theta* - theta0 (n, k + 1) of random theta* with means in [0, 1] on the ball of z."""
    p = rng.uniform(*base_rates, size=count)
    p = np.where(rng.uniform(size=count) < 0.1, rng.choice([*base_rates, 0.5], count), p)
    p = np.clip(p, *base_rates)
    a = rng.normal(size=(count, k))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    # The least and the largest mean over the ball are p -+ ||a|| feature_bound.
    steepest = np.minimum(p, 1.0 - p) / feature_bound
    a *= (steepest * np.where(rng.uniform(size=count) < 0.5, 1.0, rng.uniform(size=count)))[:, None]
    c = 1.0 / math.sqrt(2.0 * kappa)
    theta = np.column_stack([a, p / c])
    theta0 = np.append(np.zeros(k), centre / c)
    return theta - theta0


def error_covariance(delta: np.ndarray, release: Release) -> np.ndarray:
    """Return the covariance of N delta - h, the sum over independent entries of the noise."""
    d = len(delta)
    total = np.zeros((d, d))
    for i in range(d):
        for j in range(i + 1):
            if i == j == d - 1:
                continue  # public
            std = release.cross if i == d - 1 else release.off_diagonal
            std = release.diagonal if i == j else std
            coefficients = np.zeros(d)
            coefficients[i] = delta[j]
            coefficients[j] = delta[i]
            total += std**2 * np.outer(coefficients, coefficients)
    stds = np.append(np.full(d - 1, release.bias), release.constant_bias)
    return total + np.diag(stds**2)


def draw_noise(
    d: int, release: Release, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw N (n, d, d) and h (n, d) of one leaf."""
    lower = np.tril(rng.normal(size=(count, d, d)), -1) * release.off_diagonal
    lower[:, -1] *= release.cross / release.off_diagonal
    n = lower + lower.transpose(0, 2, 1)
    diagonal = np.arange(d - 1)
    n[:, diagonal, diagonal] = rng.normal(size=(count, d - 1)) * release.diagonal
    stds = np.append(np.full(d - 1, release.bias), release.constant_bias)
    return n, rng.normal(size=(count, d)) * stds


def draw_errors(
    delta: np.ndarray, release: Release, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw norms of N delta - h, and of N, (n,), from whole matrices."""
    n, h = draw_noise(len(delta), release, count, rng)
    return np.linalg.norm(n @ delta - h, axis=1), np.abs(np.linalg.eigvalsh(n)).max(axis=1)


def play(
    release: Release,
    delta: np.ndarray,
    centre: float,
    n: np.ndarray,
    error: np.ndarray,
    tau: float,
    alpha: float,
    batches: int,
    length: int,
    rng: np.random.Generator,
) -> tuple[bool, bool, bool, float]:
    """Run one lazy silo on noisy prefix sums, with the direct radius of docs/centred.md.

    Parameters
    ----------
    n, error : ndarray, shape (batches + 1,)
        n_k and E_k; the noise of a leaf is that of ``release``, a prefix is a sum of leaves.

    Returns
    -------
    tuple
        True if N >= -n I failed at a release; True if ||N Delta - h|| <= E failed; True if an
        action or the direction of the error violated the inequality; and the largest ratio of
        ||lambda Delta + N Delta - h|| to gamma.
    """
    d, c = len(delta), release.constant
    reward_scale, anchor = 0.5, max(1.0, 0.1 * float(n.max()))
    gram, u, noise, h = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), np.zeros(d)
    noise_too_low = error_too_large = broken = False
    largest_ratio = 0.0
    for k in range(batches + 1):
        noise_too_low = noise_too_low or bool(np.linalg.eigvalsh(noise)[0] < -n[k])
        error_too_large = error_too_large or bool(np.linalg.norm(noise @ delta - h) > error[k])
        full = floor = n[k] + anchor
        released, smallest = gram + noise, np.linalg.eigvalsh(gram + noise)[0]
        steps = [full * i / 8.0 for i in range(8) if k and smallest + full * i / 8.0 >= floor]
        lam = min(steps, default=full)
        v = released + lam * np.eye(d)
        values = np.linalg.eigvalsh(v)
        if values[0] <= 0.0:
            break  # event 1 has failed
        # The eighth root of the trace of V^-8 bounds 1 / (the least eigenvalue).
        inverse_bound = min(1.0 / floor, float((values**-8.0).sum()) ** 0.125)
        f = 1.0 if lam >= full else 1.0 + (full - lam) * inverse_bound
        inverse = np.linalg.inv(v)
        estimate = inverse @ (u + h)
        grown = float(np.linalg.slogdet(v)[1]) + d * math.log(f / anchor)
        beta = reward_scale * math.sqrt(f * (2.0 * math.log(2.0 / alpha) + grown))
        gamma = lam * tau + error[k]

        def width(x: np.ndarray, inverse=inverse, beta=beta, gamma=gamma) -> np.ndarray:
            """Return the bonus of each row of x."""
            norms = np.sqrt(np.einsum("ni,ij,nj->n", x, inverse, x))
            return beta * norms + gamma * np.linalg.norm(x @ inverse, axis=1)

        # Test actions, the error, and V error: it maximises <x, error> / ||x||_{V^-1}.
        error_vector = delta - estimate
        z, _ = random_records(release, length * 5, d - 1, rng)
        x = np.column_stack([z, np.full(len(z), c)])
        directions = np.vstack([x, error_vector, v @ error_vector])
        broken = broken or bool(
            (np.abs(directions @ error_vector) > width(directions) * (1.0 + 1e-9)).any()
        )
        bias = lam * delta + noise @ delta - h
        largest_ratio = max(largest_ratio, float(np.linalg.norm(bias)) / gamma)
        offered = x.reshape(length, 5, d)
        chosen = np.argmax((x @ estimate + width(x)).reshape(length, 5), axis=1)
        rows = offered[np.arange(length), chosen]
        y = rng.uniform(size=length) < rows @ delta + centre
        gram, u = gram + rows.T @ rows, u + rows.T @ (y - centre)
        leaf, leaf_h = draw_noise(d, release, 1, rng)
        noise, h = noise + leaf[0], h + leaf_h[0]
    return noise_too_low, error_too_large, broken, largest_ratio
