"""The search for the factor of prefix sums with the least weighted noise.

A factorisation of prefix sums is A = B C, where A is the lower triangular matrix of ones. The
encoder C is lower triangular with columns of norm at most 1, and prefix sum k has noise of variance
||B_k||^2, the squared norm of row k of B (`prefix_sums`). For weights w > 0, this module computes
the Gram matrix X = C'C of the C that minimises
    sum_k w_k ||B_k||^2 = tr(W X^-1),   B = A C^-1, W = A' diag(w) A, diag X <= 1.
This is convex in X. For multipliers v > 0 of the diagonal with X^-1 W X^-1 = diag(v),
    X = v^(-1/2) (v^(1/2) W v^(1/2))^(1/2) v^(-1/2),
and the iteration v <- v diag(X) converges to such v. Any v gives a lower bound of the minimum,
2 tr(diag(v) X) - sum(v), which is the stopping rule. Whatever the iteration returns is a
factorisation, and privacy is accounted for from its actual numbers.

Time. An eigenvalue decomposition in each step would take O(K^3) for K releases. But L = W^-1 is
tridiagonal, and
    X = v^(-1/2) (v^(-1/2) L v^(-1/2))^(-1/2) v^(-1/2) = sum_p a_p (L + s_p diag(v))^-1
for a quadrature x^(-1/2) = sum_p a_p / (x + s_p) with about 100 poles s_p > 0, which is exact in
float64. So diag(X) takes O(K) for each pole, and the whole X, needed once, takes O(K^2).

Precision. L is the Laplacian of a path: 1 / w_k is the conductance between leaves k and k + 1, and
between the last leaf and the ground. s v_k is a further conductance between leaf k and the ground.
The inverse consists of sums, products and quotients of positive conductances, so every entry has a
small relative error, however different the weights are.
"""

from __future__ import annotations

import math

import numpy as np

#: The iteration stops at this relative distance from the minimum, or after this number of steps.
GAP, STEPS = 1e-5, 2000
#: Parameters of `inverse_root_poles`: the distance of two poles in the logarithm of their roots,
#: the extension of the interval in which this distance is constant, and the distance from the
#: interval beyond which poles are left out.
SPACING, EXTENSION, REACH = 0.22, 2.0, 40.0


def inverse_root_poles(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return poles s (q,) and weights a (q,) of a sum of fractions that approximates x^(-1/2).

    For x in [low, high], sum_p a_p / (x + s_p) is x^(-1/2) up to a few roundings. x^(-1/2) is
    2 / pi times the integral of e^u / (x + e^(2 u)) over all u, and the trapezoid rule for this
    integral converges exponentially. The tails of the integrand decrease slowly. So the code
    substitutes u by a function of ``points`` that grows exponentially outside [first, last].
    """
    first, last = 0.5 * math.log(low) - EXTENSION, 0.5 * math.log(high) + EXTENSION
    margin = math.log(2.0 * REACH)
    steps = np.arange(
        math.floor((first - margin) / SPACING), math.ceil((last + margin) / SPACING) + 1
    )
    points = SPACING * steps
    left, right = np.exp(first - points), np.exp(points - last)
    u, slope = points + right - left, 1.0 + right + left
    is_near = (u > first - REACH) & (u < last + REACH)
    u, slope = u[is_near], slope[is_near]
    return np.exp(2.0 * u), 2.0 / math.pi * SPACING * slope * np.exp(u)


def _conductances(between: np.ndarray, grounded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the conductances of each leaf to the ground, through earlier and through later leaves.

    For each pole s, `optimal_gram` inverts L + s diag(v) (see the top of this module). This matrix
    is the Laplacian of an electrical network: a chain of leaves with a resistor between neighbours,
    and a resistor from each leaf to the ground.

    Parameters
    ----------
    between : ndarray (K,)
        Conductances between neighbours, the last one between the last leaf and the ground.
    grounded : ndarray (K, q)
        Conductance s v_k of each leaf to the ground, for each pole.

    Returns
    -------
    earlier : ndarray (K, q)
        Conductance of the leaf to the ground through its resistor and earlier leaves.
    later : ndarray (K, q)
        Conductance of the leaf to the ground through later leaves.
    """
    size = len(between)
    earlier, later = np.empty_like(grounded), np.empty_like(grounded)
    earlier[0], later[-1] = grounded[0], between[-1]
    for k in range(1, size):
        c, through = between[k - 1], earlier[k - 1]
        earlier[k] = grounded[k] + c * through / (c + through)
        c, through = between[-k - 1], later[-k] + grounded[-k]
        later[-k - 1] = c * through / (c + through)
    return earlier, later


def optimal_gram(weights: np.ndarray) -> np.ndarray:
    """Return the lower triangle of the Gram matrix X = C'C, (K, K), for weights (K,) > 0.

    C is the encoder with the least weighted noise, and the letters are those of the top of this
    module. After division of X by its largest diagonal entry, the weighted noise tr(W X^-1) is at
    most 1 + ``GAP`` times the minimum, unless the iteration stops after ``STEPS`` steps.
    """
    weights = weights / weights.sum()
    between = 1.0 / weights
    laplacian_diagonal = between + np.append(0.0, between[:-1])
    # Start with X = I, for which v = diag(W).
    prefix_weights = weights[::-1].cumsum()[::-1]
    v = prefix_weights.copy()
    for _ in range(STEPS):
        # The eigenvalues of v^(-1/2) L v^(-1/2) are at most twice its largest diagonal entry, and
        # at least the inverse of the trace of its inverse.
        high = 2.0 * float((laplacian_diagonal / v).max())
        poles, shares = inverse_root_poles(1.0 / float(v @ prefix_weights), high)
        earlier, later = _conductances(between, v[:, None] * poles)
        diagonal = (1.0 / (earlier + later)) @ shares
        trace = float(v @ diagonal)
        lower_bound = 2.0 * trace - float(v.sum())
        # `trace` is tr(W X^-1). X / max diag X is feasible, and its weighted noise is max diag X
        # times `trace`.
        if float(diagonal.max()) * trace - lower_bound <= GAP * lower_bound:
            break
        v *= diagonal
    # Entry (j, i < j) of an inverse is its entry (j, j) times the ratios of voltages from i to j.
    ratios = between[:-1, None] / (between[:-1, None] + earlier[:-1])
    weighted = shares / (earlier + later)
    gram = np.zeros((len(v), len(v)))
    products = np.ones_like(earlier)
    for j in range(len(v)):
        if j:
            products[:j] *= ratios[j - 1]
        gram[j, : j + 1] = products[: j + 1] @ weighted[j]
    return gram
