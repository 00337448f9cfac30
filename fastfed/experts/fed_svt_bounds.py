"""Bounds on the regret of Fed-SVT with a probability: gao-2024, Theorem 2.6, proven and as printed.

Its switches (`switching_budget`), the noise of its comparisons (`noise_margin`), its `threshold`,
and the regret that follows (`svt_regret`). Parameters as in `fastfed.experts.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fastfed._roots import brentq
from fastfed._validate import integer, number
from fastfed.experts.lower_bounds import (
    check_clients,
    check_constant,
    check_epsilon,
    check_experts,
    check_failure,
    check_horizon,
)

# ---- The number of switches ----------------------------------------------------------------------
#
# Losses are fixed in advance and at least 0. Let S_n(x) be the sum of all clients' losses before
# decision n, M_n(x) = max(S_n(x), m L*), phi_n = sum_x e^(-eta M_n(x)/2). As some expert has S <= m
# L* to the end, phi never falls below phi_0/d. An expert drawn at decision n is drawn with
# probability e^(-eta M_n(x)/2)/phi_n (the uniform start is n = 0). Suppose that no switch is early:
# each one ends a stretch of losses >= L - W = m L* + gap/eta, so that M grew by gap/eta since the
# draw. Let Y = ln(phi_n/phi_N), N the first decision where M grew by so much. By the paper's step
# 1{a >= gap/eta} <= (1 - e^(-eta a/2))/(1 - e^(-gap/2)),
#   P(Y <= y | all before the draw) <= (1 - e^-y)/(1 - e^(-gap/2)),
# i.e. Y is, given the past, stochastically at least X, Exp(1) conditioned on X <= gap/2. The Y of
# kappa + 1 switches sum to at most ln d. Hence P(more than kappa switches) <= P(some switch is
# early) + P(X_1 + ... + X_{kappa+1} <= ln d) with independent X. Lemma D.2 uses the same step once
# a halving of phi, with 2/3 for 1/(2(1 - e^-2)) = .58 and three switches a halving granted.

_CELLS = 512  # grid cells of the distribution of X


def _gap(gap: float) -> float:
    """The gap, checked."""
    return number("gap", gap, at_least=1, at_most=32)


def _steps(d: int, gap: float) -> tuple[np.ndarray, int]:
    """Distribution of X rounded down to a grid, and the number of its points <= ln d."""
    width = gap / 2.0 / _CELLS
    distribution = np.exp(-width * np.arange(_CELLS)) * math.expm1(-width) / math.expm1(-gap / 2.0)
    return distribution, int(math.log(d) / width * (1.0 + 1e-12)) + 1


def budget_failure(experts: int, switches: int, *, gap: float = 4.0) -> float:
    """Bound on the probability that Fed-SVT wants more than this many switches. Proven.

    P(X_1 + ... + X_{kappa+1} <= ln d) of independent X, Exp(1) given X <= gap/2, each rounded down
    by at most gap/1024. Holds for losses fixed in advance if none of the first kappa + 1 switches
    is early (add `early_switch_failure`) and L - W >= m L* + gap/eta; gap in [1, 32], the paper's
    is 4. O(kappa ln(d) 2^19/gap).
    """
    d, kappa = check_experts(experts), integer("switches", switches, at_least=0)
    if d == 1:
        return 0.0
    distribution, points = _steps(d, _gap(gap))
    sums = distribution[:points]
    for _ in range(kappa):
        sums = np.convolve(sums, distribution)[:points]
        if not sums.any():
            break
    return min(1.0, float(sums.sum()))


def switching_budget(experts: int, failure_probability: float, *, gap: float = 4.0) -> int:
    """Least kappa with budget_failure(d, kappa) <= rho: about 1.46 ln d switches, and a few.

    Proven under the same conditions; below `switching_budget_printed` for every d and rho.
    """
    d, rho = check_experts(experts), check_failure(failure_probability)
    if d == 1:
        return 0
    distribution, points = _steps(d, _gap(gap))
    sums, kappa = distribution[:points], 0
    while sums.sum() > rho:
        sums, kappa = np.convolve(sums, distribution)[:points], kappa + 1
    return kappa


def switching_budget_printed(experts: int, failure_probability: float) -> int:
    """The paper's kappa: 3 ceil(log2 d) + 24 ln(1/rho), rounded up.

    Its proof applies Lemma D.3 with k = 4 ln(1/rho), which that lemma allows from ceil(log2 d) on
    only. It is enough all the same: s = ceil(log2 d) halvings take s - 1 switches plus s geometric
    numbers of mean 1.37, and Chernoff's bound at 1/24 leaves less than rho.
    """
    d, rho = check_experts(experts), check_failure(failure_probability)
    return math.ceil(3 * (d - 1).bit_length() - 24.0 * math.log(rho))


# ---- The noise -----------------------------------------------------------------------------------
#
# Decision t keeps x iff q_t + gamma_t <= L + r, gamma_t ~ Lap(b) fresh, r ~ Lap(a) fresh after each
# switch. Given the start of a stretch, x and all its q_t are fixed, and they do not fall.
# Early: a switch with q <= L - W. The decisions with q <= L - W come first in a stretch; unless
# there is an early switch, all k of them are made. So P(none in the stretch) >= E F(W + r)^k, F the
# cdf of gamma, and the k of all stretches sum to at most n. E F^k is log-convex in k, so that equal
# shares are the worst case: P(early) <= 1 - (E F(W + r)^(n/(kappa+1)))^(kappa+1).
# Late: x is kept with q > L + W'. Then it was kept at the first such decision of its stretch, one
# that is known when the stretch begins: P(late) <= 1 - (1 - P(r - gamma > W'))^(kappa+1).


def _scales(threshold_scale: float, query_scale: float) -> tuple[float, float]:
    """Both Laplace scales, checked."""
    return (
        number("threshold_scale", threshold_scale, at_least=0),
        number("query_scale", query_scale, at_least=0),
    )


def _tail(w: float, a: float, b: float) -> float:
    """P(Lap(a) - Lap(b) > w), w >= 0: symmetric in a and b, and exact also for a = b."""
    low, high = min(a, b), max(a, b)
    if high == 0.0:
        return 0.0
    tail = math.exp(-w / high) / 2.0
    if low == 0.0:
        return tail
    z = w / high * (high - low) / low
    ratio = -math.expm1(-z) / z if z > 0.0 else 1.0
    return tail * (1.0 + low / (low + high) * (w / high) * ratio)


def _some_above(w: float, k: float, a: float, b: float) -> float:
    """P(r + w < the largest of k draws of Lap(b)), r ~ Lap(a), w > 0; k >= 1 need not be whole."""
    if b == 0.0:  # r < -w
        return math.exp(-w / a) / 2.0

    def some(level: np.ndarray) -> np.ndarray:
        """P(the largest draw exceeds ``level``)."""
        below = np.log1p(-0.5 * np.exp(-np.maximum(level, 0.0) / b))
        result: np.ndarray = -np.expm1(k * below)
        return result

    if a == 0.0:
        return float(some(np.array(w)))
    # Below -w: E(1 - (e^(-a y/b)/2)^k) for y ~ Exp(1), in closed form.
    under = math.exp(-w / a) / 2.0 * (1.0 - 0.5**k / (1.0 + a * k / b))
    # Above: Gauss-Legendre on panels that double in width with the distance from 0, -w and where
    # the largest draw lies; away from these the integrand falls exponentially.
    kinks = np.array([-w, min(0.0, b * math.log(max(k / 2.0, 1.0)) - w), 0.0])
    high = 45.0 * a
    start = min(a, b, w) / 2.0
    steps = start * 2.0 ** np.arange(max(1, math.ceil(math.log2((w + high) / start)) + 1))
    edges = np.concatenate([kinks, *(kinks + s for s in steps), *(kinks - s for s in steps)])
    edges = np.unique(np.append(edges[(edges > -w) & (edges < high)], [-w, high]))
    u, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2.0
    r = edges[:-1, None] + half * (1.0 + u)
    over = half * weights * np.exp(-np.abs(r) / a) / (2.0 * a) * some(w + r)
    return min(1.0, under + float(over.sum()))


def _stretches(decisions: int, switches: int) -> tuple[int, int]:
    """Decisions n, checked, and the number of stretches, min(n, kappa + 1)."""
    n = integer("decisions", decisions, at_least=0)
    return n, min(n, integer("switches", switches, at_least=0) + 1)


def _any_of(count: int, probability: float) -> float:
    """1 - (1 - p)^count."""
    return 1.0 if probability >= 1.0 else -math.expm1(count * math.log1p(-probability))


def _least(failure: Callable[[float], float], rho: float, scale: float) -> float:
    """The least margin >= 0 at which a falling probability is rho."""
    low, high = 0.0, scale
    while failure(high) > rho:
        low, high = high, 2.0 * high
    floor = math.log(rho)

    def excess(w: float) -> float:
        """ln of the failure probability over rho."""
        return math.log(max(failure(w), 1e-320)) - floor

    if low == 0.0:
        low = 1e-9 * high
        if excess(low) <= 0.0:
            return low
    if excess(high) >= 0.0:
        return high
    found = float(brentq(excess, low, high, xtol=1e-12 * high, rtol=1e-14))
    return found * (1.0 + 1e-9)  # on the safe side of the root


def early_switch_failure(
    margin: float, decisions: int, switches: int, threshold_scale: float, query_scale: float
) -> float:
    """Bound on the probability that any of the first kappa + 1 switches comes at q < L - W. Proven.

    1 - (E F(W + r)^(n/K))^K, K = min(n, kappa + 1): r ~ Lap(threshold_scale), F the cdf of
    Lap(query_scale). margin W >= 0; decisions n >= 0 in all (floor(T/N)). Attained by losses that
    stay at L - W for n/K decisions and then jump, if that is whole. Losses must be at least 0, so
    that queries do not fall.
    """
    w = number("margin", margin, at_least=0)
    n, count = _stretches(decisions, switches)
    a, b = _scales(threshold_scale, query_scale)
    if n == 0 or a == b == 0.0:
        return 0.0
    return _any_of(count, _some_above(max(w, 1e-12 * max(a, b)), n / count, a, b))


def noise_margin(
    decisions: int,
    switches: int,
    threshold_scale: float,
    query_scale: float,
    failure_probability: float,
) -> float:
    """The least W >= 0 with early_switch_failure(W, ...) <= rho, in units of loss. Proven."""
    n, _ = _stretches(decisions, switches)
    a, b = _scales(threshold_scale, query_scale)
    rho = check_failure(failure_probability)
    if n == 0 or a == b == 0.0:
        return 0.0
    return _least(lambda w: early_switch_failure(w, n, switches, a, b), rho, a + b)


def noise_margin_printed(
    horizon: int, phase_length: int, epsilon: float, failure_probability: float
) -> float:
    """The paper's W: 8 ln(2 T^2/(N^2 rho))/epsilon, phase_length N in 1..T.

    For its scales 4/epsilon and 8/epsilon early switches then have probability below rho N/(3 T).
    """
    t = check_horizon(horizon)
    n = integer("phase_length", phase_length, at_least=1, at_most=t)
    rho = check_failure(failure_probability)
    return 8.0 * (math.log(2.0) + 2.0 * math.log(t / n) - math.log(rho)) / check_epsilon(epsilon)


def late_switch_failure(
    margin: float, switches: int, threshold_scale: float, query_scale: float
) -> float:
    """Bound on the probability that an expert is ever kept at q > L + W'. Proven.

    1 - (1 - p)^(kappa + 1), p = P(Lap(a) - Lap(b) > W'), over kappa + 1 stretches and however many
    decisions; margin W' >= 0.
    """
    w = number("margin", margin, at_least=0)
    kappa = integer("switches", switches, at_least=0)
    return _any_of(kappa + 1, _tail(w, *_scales(threshold_scale, query_scale)))


def threshold(
    clients: int, optimal_loss: float, eta: float, noise_margin: float, *, gap: float = 4.0
) -> float:
    """L = m L* + W + gap/eta, in units of the sum of all clients' losses.

    optimal_loss L* >= 0 a client: the best expert's sum over clients is at most m L*. eta > 0: the
    exponential mechanism draws with weight e^(-eta s(x)/2). The paper has gap = 4.
    """
    m, best = check_clients(clients), number("optimal_loss", optimal_loss, at_least=0)
    margin = number("noise_margin", noise_margin, at_least=0)
    return m * best + margin + _gap(gap) / number("eta", eta, above=0)


def svt_regret(
    horizon: int,
    clients: int,
    *,
    phase_length: int,
    threshold: float,
    switches: int,
    threshold_scale: float,
    query_scale: float,
    failure_probability: float,
) -> float:
    """Upper bound on the regret, and on the whole loss, of Fed-SVT a client, explicit. Proven.

    min(T, (kappa + 1)(L + W' + m N)/m), W' the least with late_switch_failure(W', ...) <= rho: a
    stretch costs at most L + W' up to its last decision to keep, and m N after it. Holds with
    probability at least 1 - rho - P(more than kappa switches wanted). So with L of `threshold`,
    W of `noise_margin` and kappa of `switching_budget`, each at rho/3 like this one, it holds with
    probability at least 1 - rho, against losses in [0, 1] fixed in advance, for the algorithm as
    its proof has it: q + gamma against the noisy threshold, all experts scored by their own sums.
    """
    t, m = check_horizon(horizon), check_clients(clients)
    n = integer("phase_length", phase_length, at_least=1)
    level = number("threshold", threshold, at_least=0)
    kappa = integer("switches", switches, at_least=0)
    a, b = _scales(threshold_scale, query_scale)
    rho = check_failure(failure_probability)
    late = 0.0
    if a > 0.0 or b > 0.0:
        late = _least(lambda w: late_switch_failure(w, kappa, a, b), rho, a + b)
    return min(float(t), (kappa + 1) * ((level + late) / m + n))


def theorem_2_6(
    horizon: int,
    clients: int,
    experts: int,
    epsilon: float,
    *,
    phase_length: int,
    failure_probability: float,
    optimal_loss: float = 0.0,
    delta: float | None = None,
    constant: float = 1.0,
) -> float:
    """Theorem 2.6 (D.1 once more), the printed order of Fed-SVT's regret.

    (A + ln(T^2/(N^2 rho)) ln(d/rho))/(m epsilon) + (N + L*) ln(d/rho), with A = ln(d)^2 under pure
    privacy and ln(d)^1.5 ln(1/delta)^0.5 with a delta. With probability 1 - rho as stated, 1 -
    O(rho) as proven. ln(d/rho) stands for kappa + 1, which as printed is up to 24 times as much.
    The second A should have ln(d/rho): ln(1/rho)^1.5 ln(1/delta)^0.5 is nowhere else; and its eta
    is too large for (epsilon, delta).
    """
    t, m, d = (
        check_horizon(horizon),
        check_clients(clients),
        check_experts(experts),
    )
    n = integer("phase_length", phase_length, at_least=1, at_most=t)
    log_rho = -math.log(check_failure(failure_probability))
    best = number("optimal_loss", optimal_loss, at_least=0)
    log_d = math.log(d)
    draws = log_d**2
    if delta is not None:
        draws = log_d**1.5 * math.sqrt(-math.log(number("delta", delta, above=0, below=1)))
    noise = draws + (2.0 * math.log(t / n) + log_rho) * (log_d + log_rho)
    return check_constant(constant) * (
        noise / m / check_epsilon(epsilon) + (n + best) * (log_d + log_rho)
    )
