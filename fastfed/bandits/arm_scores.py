"""Compiled scores that draw a random value for each arm. They need a diagonal V."""

from __future__ import annotations

import math

import numba
import numpy as np

from fastfed.counter_rng import normal, uniform
from fastfed.protocols.score import score_signature

#: Attempts reserved for one gamma variable. An attempt fails with probability below 0.05.
_ATTEMPTS = np.uint64(256)


@numba.njit
def gamma_draw(key, first, shape):  # type: ignore[no-untyped-def]
    """Return a gamma variable of a shape >= 1 and scale 1 (Marsaglia and Tsang 2000).

    ``first`` is the number of the first attempt. Attempt i uses draws 4 i to 4 i + 2 of the key.
    """
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    attempt = np.uint64(first)
    while True:
        z = normal(key, np.uint64(2) * attempt)
        u = uniform(key, np.uint64(4) * attempt + np.uint64(2))
        attempt += np.uint64(1)
        v = 1.0 + c * z
        if v > 0.0:
            v = v * v * v
            if math.log(u) < 0.5 * z * z + d - d * v + d * math.log(v):
                return d * v


@numba.cfunc(score_signature())
def beta_draws(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores):  # type: ignore[no-untyped-def]
    """Set the score of each arm to a draw from the posterior of its mean: Thompson sampling.

    With a regularizer of 1, an arm with n rewards of sum s has the entry 1 + n of V and the
    estimate s / (1 + n). The posterior under a uniform prior is Beta(1 + s, 1 + n - s).
    """
    roots, estimates = numba.carray(w, (dimension,)), numba.carray(theta, (dimension,))
    out = numba.carray(scores, (actions,))
    for a in range(actions):
        v = 1.0 / (roots[a] * roots[a])
        wins = max(estimates[a] * v, 0.0)
        losses = max(v - 1.0 - wins, 0.0)
        first = np.uint64(2 * a) * _ATTEMPTS
        g = gamma_draw(key, first, 1.0 + wins)
        h = gamma_draw(key, first + _ATTEMPTS, 1.0 + losses)
        out[a] = g / (g + h)
    return actions


@numba.cfunc(score_signature())
def normal_draws(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores):  # type: ignore[no-untyped-def]
    """Set the score of each arm to a normal draw with the estimate as mean and the bonus as std.

    With a sieve, ``beta`` and ``gamma`` are already multiplied by m'.
    """
    roots, estimates = numba.carray(w, (dimension,)), numba.carray(theta, (dimension,))
    out = numba.carray(scores, (actions,))
    for a in range(actions):
        root = roots[a]
        out[a] = estimates[a] + (beta * root + gamma * root * root) * normal(key, a)
    return actions
