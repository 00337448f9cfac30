"""Bounds on the expected regret of Fed-DP-OPE-Stoch: gao-2024, Theorem 2.2, proven and as printed.

`fastfed.experts.bounds` describes the parameters that functions here do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastfed._validate import InputError, choice, integer, number
from fastfed.experts.frank_wolfe import MAX_TREES
from fastfed.experts.lower_bounds import (
    check_clients,
    check_constant,
    check_epsilon,
    check_experts,
    check_horizon,
)


class PhaseNoise(NamedTuple):
    """Batch size and noise of one phase of Fed-DP-OPE-Stoch that updates x.

    Attributes
    ----------
    trees : int
        T_1, the number of trees.
    batch : int
        b, the number of losses at a tree's root.
    scales : tuple of float
        Laplace scale >= 0 for each tree: lambda_j at every client, or mu_j at the server.
    """

    trees: int
    batch: int
    scales: tuple[float, ...]


# ---- Theorem 2.2 as proven -----------------------------------------------------------------------
#
# L is the expected loss, x* its minimizer, v the gradient estimate at leaf k averaged over clients,
# e = grad L(x_k) - v its error, xi the noise in the averaged scores, and w = c_n* the vertex of the
# least noisy score.
# Smoothness and convexity give, as in the paper,
#   L(x_{k+1}) - L(x*) <= (1 - eta)(L(x_k) - L(x*)) + eta <e + v, w - x*> + (beta/2) eta^2 |w-x_k|^2
# with |w - x_k|_1 <= 2 (the paper has 1 in its place: its last term is a quarter of this one).
# By the choice of w, <v, w - x*> <= <xi, x*> - xi_n*. Now e and xi have mean zero, e as a sum of
# martingale differences (fresh samples at each vertex), and x* is fixed, so that in expectation
# <e, w - x*> + <xi, x*> - xi_n* is E(e_n* - xi_n*) <= E max_n (e_n - xi_n): one maximum, where the
# paper has |e|_inf (without the factor 2 of Hoelder's inequality) and 2 max |xi|. With
# eta_k = 2/(k + 1) leaf k has weight 2k/(K(K + 1)) after K leaves, and the weights sum to 1.


def _scaled_variances(tree: int, smoothness: float, spread: float) -> np.ndarray:
    """Return b m times the error's sub-Gaussian variance proxy at each leaf of tree j, (2^j,).

    Here j = ``tree``, b is the batch size (losses of one client at a root), and m the number of
    clients. The error is that of the gradient estimate at the leaf. This estimate is the root's
    average, plus one correction for each right child on the path from the root to the leaf. So the
    variance proxies of these terms add up.

    The root averages b m gradients in an interval of length ``spread`` (Hoeffding). A right child
    at depth i averages b m 2^-i differences of gradients, each at most h = min(spread,
    beta |x - x'|_1) from zero, where beta = ``smoothness``, x is the child's point and x' the
    parent's. From x' to x there are n = 2^(j-i) updates x <- (1 - eta) x + eta w. The first of them
    is update k of the phase. So x = pi x' + (1 - pi) q, where q is in the simplex and
    pi = (k-1)k/((k+n-1)(k+n)) is the product of the updates' factors 1 - eta.
    """
    leaf_number = np.arange(2**tree)
    result = np.full(2**tree, spread * spread / 4.0)
    for depth in range(1, tree + 1):
        levels_below = tree - depth
        n = float(2**levels_below)
        k = (leaf_number >> (levels_below + 1) << (levels_below + 1)) + (2.0**tree - 1.0)
        old_weight = (k - 1.0) * k / ((k + n - 1.0) * (k + n))
        half_width = np.minimum(spread, smoothness * 2.0 * (1.0 - old_weight))
        result += np.where(
            leaf_number >> levels_below & 1, half_width * half_width * 2.0**depth, 0.0
        )
    return result


def _harmonic(count: float) -> float:
    """Return the harmonic number 1 + 1/2 + ... + 1/count."""
    from scipy.special import digamma

    return float(digamma(count + 1.0)) + float(np.euler_gamma)


def _largest_laplace(d: int) -> float:
    """Return the mean of the largest of d iid Lap(1): H_d - sum_{i<=d} 2^-i/i - 2^-d/d."""
    halves = math.fsum(math.ldexp(1.0 / i, -i) for i in range(1, min(d, 1000) + 1))
    return _harmonic(d) - halves - (math.ldexp(1.0 / d, -d) if d < 1000 else 0.0)


def _largest_error(variance: float, draws: int, scale: float, d: int) -> float:
    """Return a bound on E max_n (e_n - xi_n) over n = 1..d: e_n is sub-Gaussian, xi_n is noise.

    e_n has the variance proxy ``variance``, and xi_n is a sum of ``draws`` draws of Lap(scale). The
    bound is the minimum over 0 < u < 1/scale of (ln d + u^2 variance/2 - draws ln(1 - u^2
    scale^2))/u. It holds even if the differences e_n - xi_n of the d experts are dependent. If
    ``draws`` is 1, there is a second bound: the exact expected maximum of the noise, plus the bound
    on the maximum of e. The smaller one of both is used. The result is concave in the variance, as
    a minimum of concave functions.
    """
    if d == 1:
        return 0.0
    log_d = math.log(d)
    bound_without_noise = math.sqrt(2.0 * log_d * variance)
    if scale == 0.0:
        return bound_without_noise
    from scipy.optimize import minimize_scalar

    # From here on u is in units of 1/scale. The best u is below that of Gaussian noise of equal
    # variance. Every u gives a valid bound, so the search need not be exact.
    scaled_variance = variance / scale / scale
    largest_u = min(math.sqrt(2.0 * log_d / (scaled_variance + 2.0 * draws)), 1.0 - 1e-9)

    def scaled_bound(log_u: float) -> float:
        """Return the bound at u = exp(log_u), divided by ``scale``."""
        u = math.exp(log_u)
        return (log_d + u * u * scaled_variance / 2.0 - draws * math.log1p(-u * u)) / u

    high = math.log(largest_u)
    minimum = minimize_scalar(scaled_bound, bounds=(high - 12.0, high), method="bounded")
    bound = scale * min(float(minimum.fun), scaled_bound(high))
    if draws == 1:
        return min(bound, bound_without_noise + scale * _largest_laplace(d))
    return bound


def _checked_phase(phase: PhaseNoise) -> PhaseNoise:
    """Return the phase after checking its numbers of trees and losses, and its noise scales."""
    if not isinstance(phase, PhaseNoise):
        raise InputError(f"phases must hold PhaseNoise or None, got {phase!r}")
    trees = integer("trees", phase.trees, at_least=1, at_most=MAX_TREES)
    batch = integer("batch", phase.batch, at_least=1)
    if batch % 2**trees:
        raise InputError(f"batch must be a multiple of 2^trees = {2**trees}, got {batch}")
    if len(phase.scales) != trees:
        raise InputError(
            f"scales must hold one scale for each of the {trees} trees, got {len(phase.scales)}"
        )
    return PhaseNoise(trees, batch, tuple(number("scale", s, at_least=0) for s in phase.scales))


def _checked_ranges(
    alpha: float, spread: float | None, loss_range: float | None
) -> tuple[float, float]:
    """Return ``spread`` and ``loss_range`` after checking them; each is 2 alpha by default.

    ``spread`` is the length of an interval that holds every coordinate of every gradient, and
    ``loss_range`` the largest value of L(x) - min L, where L is the expected loss.
    """
    widest = 2.0 * alpha
    return (
        widest if spread is None else number("spread", spread, at_least=0, at_most=widest),
        widest
        if loss_range is None
        else number("loss_range", loss_range, at_least=0, at_most=widest),
    )


def phase_suboptimality(
    phase: PhaseNoise,
    clients: int,
    experts: int,
    *,
    lipschitz: float,
    smoothness: float,
    noise: str,
    spread: float | None = None,
    loss_range: float | None = None,
) -> float:
    """Return a proven upper bound on E[L(x) - min L] for the x at the end of a phase of DP-FW.

    DP-FW is the private Frank-Wolfe algorithm of `frank_wolfe`, L the expected loss, and x the
    decision.

    Parameters
    ----------
    phase : PhaseNoise
        Trees, batch size and noise scales; scale 0 means no privacy.
    clients, experts : int
        m and d, the numbers of clients and of experts.
    lipschitz, smoothness : float
        alpha, the Lipschitz constant of losses, and beta, that of their gradients.
    noise : {"local", "central"}
        "local": each client adds Lap(scale) to each of its d scores and the server averages.
        "central": the server adds one Lap(scale) to each average.
    spread : float, optional
        Length of an interval that holds every coordinate of every gradient; at most 2 alpha, the
        default.
    loss_range : float, optional
        Largest value of L(x) - min L; at most 2 alpha, the default.

    Notes
    -----
    The bound holds for any starting point that is independent of the losses that the phase uses.
    The algorithm satisfies this: the starting point comes from earlier phases, and the losses were
    observed in the previous phase, whose decision they did not affect. Losses must be i.i.d. over
    rounds and independent over clients (distributions may differ between clients), and each loss is
    used at one tree vertex only. The curvature of smooth losses adds less than 8 beta/(K + 1) to
    the bound, where T_1 is the number of trees and K = 2^(T_1 + 1) - 2 the number of leaves.
    """
    trees, batch, scales = _checked_phase(phase)
    m, d = check_clients(clients), check_experts(experts)
    alpha = number("lipschitz", lipschitz, above=0)
    beta = number("smoothness", smoothness, at_least=0)
    local = choice("noise", noise, ("local", "central")) == "local"
    spread, widest = _checked_ranges(alpha, spread, loss_range)
    if d == 1:
        return 0.0
    return min(widest, _suboptimality(PhaseNoise(trees, batch, scales), m, d, beta, spread, local))


@lru_cache(maxsize=1024)  # a curve needs the same phases at each of its rounds
def _suboptimality(
    phase: PhaseNoise, m: int, d: int, beta: float, spread: float, local: bool
) -> float:
    """Return `phase_suboptimality` for checked arguments, without the limit ``loss_range``.

    ``local`` is True if each client adds the noise, and False if the server adds it.
    """
    # Leaf k of K = `leaves` has the weight 2 k / (K (K + 1)), see the comment that begins the
    # section "Theorem 2.2 as proven".
    trees, batch, scales = phase
    leaves = 2.0 ** (trees + 1) - 2.0
    # The weighted sum of the terms (beta/2) eta_k |w - x_k|^2 <= 2 beta eta_k.
    total = 8.0 * beta * (leaves + 1.0 - _harmonic(leaves + 1.0)) / (leaves * (leaves + 1.0))
    for tree, scale in enumerate(scales, start=1):
        scaled_variances = _scaled_variances(tree, beta, spread)
        # The numbers k of the tree's leaves.
        numbers = np.arange(len(scaled_variances)) + (2.0**tree - 1.0)
        tree_weight = 2.0 * float(numbers.sum()) / (leaves * (leaves + 1.0))
        # `_largest_error` is concave in the variance. So by Jensen's inequality, its value at the
        # leaves' mean variance is at least its mean over the leaves (both weighted by k).
        mean_variance = float(np.average(scaled_variances, weights=numbers)) / batch / m
        draws, laplace_scale = (m, scale / m) if local else (1, scale)
        total += tree_weight * _largest_error(mean_variance, draws, laplace_scale, d)
    return total


def stoch_regret(
    horizon: int,
    phases: Sequence[PhaseNoise | None],
    clients: int,
    experts: int,
    *,
    lipschitz: float,
    smoothness: float,
    noise: str,
    spread: float | None = None,
    loss_range: float | None = None,
) -> float:
    """Return a proven upper bound on the expected regret of Fed-DP-OPE-Stoch for one client.

    ``phases`` has one entry for each phase p = 1, 2, ... of the horizon. Phase p has 2^(p-1)
    rounds; the horizon may cut off the last phase. An entry of None means that the phase does not
    change the decision x, so the previous phase's bound (at first ``loss_range``) still applies.
    The first entry is None, because no losses are known yet. A phase of T_1 trees with batch size b
    needs b (T_1 + T_1 (T_1 + 1)/4) <= 2^(p-2), because it uses each loss of the previous phase at
    most once. `phase_suboptimality` describes the other arguments.

    Regret is E[sum_t L(x_t)] - T min L, where T = ``horizon``, L is the expected loss, and x_t the
    decision of round t. So it is relative to the least expected loss, as in the paper's proof. The
    paper's definition compares with the best expert in hindsight. With m = ``clients`` and
    d = ``experts``, that regret is larger by at most sqrt(T ln(d)/(2 m)) for losses in [0, 1].
    """
    t = check_horizon(horizon)
    check_clients(clients), check_experts(experts)
    number("smoothness", smoothness, at_least=0)
    choice("noise", noise, ("local", "central"))
    _, bound = _checked_ranges(number("lipschitz", lipschitz, above=0), spread, loss_range)
    if len(phases) != t.bit_length():
        raise InputError(f"phases must be {t.bit_length()} for {t} rounds, got {len(phases)}")
    if phases[0] is not None:
        raise InputError(f"phases must begin with None, got {phases[0]!r}")
    total = 0.0
    for p, phase in enumerate(phases, start=1):
        if phase is not None:
            bound = phase_suboptimality(
                phase,
                clients,
                experts,
                lipschitz=lipschitz,
                smoothness=smoothness,
                noise=noise,
                spread=spread,
                loss_range=loss_range,
            )
            # Compare 4 b (T_1 + T_1 (T_1 + 1)/4), which is an integer, so that nothing is rounded.
            trees = phase.trees
            four_times_used = phase.batch * trees * (trees + 5)
            if four_times_used > 2**p:
                raise InputError(
                    f"phases[{p - 1}] must use at most {2 ** (p - 2)} losses a client, got "
                    f"{four_times_used / 4:g} for {trees} trees and batch {phase.batch}"
                )
        total += (min(2**p, t + 1) - 2 ** (p - 1)) * bound
    return total


# ---- As printed ----------------------------------------------------------------------------------


def theorem_2_2(
    horizon: int,
    clients: int,
    experts: int,
    epsilon: float,
    *,
    lipschitz: float,
    smoothness: float,
    constant: float = 1.0,
) -> float:
    """Return the printed order of Theorem 2.2 (repeated as C.5) for one client; not a valid bound.

    The order is (alpha + beta) ln T sqrt(T ln(d)/m) + sqrt(alpha beta T) ln T ln d/(m^(1/4)
    sqrt(epsilon)), with T = ``horizon``, alpha = ``lipschitz``, beta = ``smoothness``,
    m = ``clients`` and d = ``experts``. `stoch_regret` is the proven bound. There are three
    objections:

    1. The order cannot hold for small beta. At beta = 0 it does not depend on epsilon, but the
       losses of `lower_bounds.hidden_expert`, which are linear and constant in time, cost any
       private algorithm about ln(d)/(m epsilon).
    2. The proof needs a number of trees T_1 of at least 1 in a phase. The paper sets
       T_1 = log2(b epsilon beta sqrt(m)/(alpha ln d))/2, where b is the batch size. This is below 1
       in every phase if T epsilon beta sqrt(m) is below about 8 (log2(T) - 1)^2 alpha ln d. And
       even a phase with T_1 = 1 adds the regret alpha ln(T)^3 ln(d)/(sqrt(m) epsilon).
    3. The printed noise is smaller than the guarantee needs.
    """
    t, m, d = (check_horizon(horizon), check_clients(clients), check_experts(experts))
    alpha = number("lipschitz", lipschitz, above=0)
    beta = number("smoothness", smoothness, at_least=0)
    statistical_term = (alpha + beta) * math.sqrt(t * math.log(d) / m)
    privacy_term = (
        math.sqrt(alpha * beta / check_epsilon(epsilon)) * math.sqrt(t) * math.log(d) / m**0.25
    )
    return check_constant(constant) * math.log(t) * (statistical_term + privacy_term)


def corollary_2_3(
    horizon: int,
    clients: int,
    experts: int,
    epsilon: float,
    *,
    lipschitz: float,
    constant: float = 1.0,
) -> float:
    """Return the printed order of Corollary 2.3 for beta = O(1/(T epsilon)); not a valid bound.

    The order is alpha ln T sqrt(T ln(d)/m) + sqrt(alpha) ln T ln d/(m^(1/4) epsilon), with
    T = ``horizon``, m = ``clients``, d = ``experts`` and alpha = ``lipschitz``. For such a beta,
    the printed number of trees T_1 (see `theorem_2_2`) is below 1 and the algorithm never updates,
    unless sqrt(m) exceeds about 8 log2(T)^2 alpha ln d. In the second term, Table 1 prints
    sqrt(m) epsilon instead of m^(1/4) epsilon.
    """
    t, m, d = (check_horizon(horizon), check_clients(clients), check_experts(experts))
    alpha = number("lipschitz", lipschitz, above=0)
    statistical_term = alpha * math.sqrt(t * math.log(d) / m)
    privacy_term = math.sqrt(alpha) * math.log(d) / m**0.25 / check_epsilon(epsilon)
    return check_constant(constant) * math.log(t) * (statistical_term + privacy_term)
