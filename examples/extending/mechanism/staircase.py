"""A mechanism from another package: staircase noise on sums of numbers, composed exactly.

Far less noise than Gaussian for a few releases of one number, and pure privacy with delta = 0.

For one number of sensitivity s, no noise that is epsilon-private has less variance or a smaller
mean absolute value than a staircase's (Geng and Viswanath 2012): a density that is constant on
[0, g s) and, e^-epsilon times as high, on [g s, s), that is e^-epsilon times the same on every
further step of s, and symmetric. Here g = 1 / (1 + e^(epsilon / 2)), which makes the mean absolute
value the least.

Accounting, exact for any number of adaptive releases: between the noise and the noise moved by s,
the privacy loss is -epsilon, 0 or epsilon, with probabilities e^-epsilon p, 1 - (1 + e^-epsilon) p
and p; moved by less it is the same with a smaller p, since the density falls to both sides, so
moving by s dominates. Losses of releases add up: their law is a power of this one.
"""

from __future__ import annotations

import math

import numpy as np

from fastfed.plugins import Budget, Calibrated, Size, sum_sensitivity


def shape(epsilon: float) -> tuple[float, float, float]:
    """b = e^-epsilon, g, and h: the mean height of a step whose upper part has height 1."""
    b, g = math.exp(-epsilon), 1.0 / (1.0 + math.exp(epsilon / 2.0))
    return b, g, g + b * (1.0 - g)


def delta_of(each: float, releases: int, epsilon: float) -> float:
    """The least delta for which so many releases, each ``each``-private, are (epsilon, delta)."""
    b, g, h = shape(each)
    p = (g + (0.5 - g) * b) / h
    law = np.array([1.0])
    for bit in bin(releases)[2:]:  # the law of the sum, by repeated squaring
        law = np.convolve(law, law)
        if bit == "1":
            law = np.convolve(law, [b * p, 1.0 - (1.0 + b) * p, p])
    excess = epsilon - each * np.arange(-releases, releases + 1)
    return float(np.sum(law * np.maximum(0.0, -np.expm1(np.minimum(excess, 0.0)))))


def largest_share(budget: Budget, releases: int) -> float:
    """The epsilon each release may have: the largest for which delta_of keeps to the budget."""
    low = budget.epsilon / releases
    high = 2.0 * low
    while delta_of(high, releases, budget.epsilon) <= budget.delta:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * low:
        middle = 0.5 * (low + high)
        kept = delta_of(middle, releases, budget.epsilon) <= budget.delta
        low, high = (middle, high) if kept else (low, middle)
    return low


def noise_std(epsilon: float) -> float:
    """Standard deviation of the noise for sensitivity 1: the second moment, step by step."""
    b, g, h = shape(epsilon)
    rest = -math.expm1(-epsilon)
    ones, steps, squares = 1.0 / rest, b / rest**2, b * (1.0 + b) / rest**3
    first, second = g**2 + b * (1.0 - g**2), (g**3 + b * (1.0 - g**3)) / 3.0
    return math.sqrt(rest / h * (squares * h + steps * first + ones * second))


def draw(epsilon: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Noise for sensitivity 1 (count,), to simulate: sign, step, and where on it (Algorithm 1)."""
    _, g, h = shape(epsilon)
    step = generator.geometric(-math.expm1(-epsilon), count) - 1.0
    lower, u = generator.random(count) >= g / h, generator.random(count)
    return generator.choice([-1.0, 1.0], count) * (step + np.where(lower, g + (1.0 - g) * u, g * u))


def staircase(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Staircase noise on sums of numbers in [-1, 1], a record in every release."""
    moved, std, mu = sum_sensitivity(budget.relation), 0.0, 0.0
    if releases:
        std = moved * noise_std(largest_share(budget, releases))
        mu = math.sqrt(releases) * moved / std
    return Calibrated(
        "staircase",
        budget.epsilon,
        budget.delta,
        budget.relation,
        releases,
        std,
        mu,
        "Geng and Viswanath 2012, composed exactly",
    )
