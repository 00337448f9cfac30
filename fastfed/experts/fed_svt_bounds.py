"""High-probability bounds on the regret of Fed-SVT: gao-2024, Theorem 2.6, proven and as printed.

The file bounds the number of switches (`switching_budget`) and the noise of comparisons
(`noise_margin`), computes the `threshold`, and derives the regret (`svt_regret`).
`fastfed.experts.bounds` describes the parameters.
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
# decision n, M_n(x) = max(S_n(x), m L*), phi_n = sum_x e^(-eta M_n(x)/2). Some expert has S <= m L*
# until the end, so phi never falls below phi_0/d. Expert x is drawn at decision n with probability
# e^(-eta M_n(x)/2)/phi_n (the uniform start is n = 0). A stretch is the time from one switch to the
# next. Suppose that no switch is early: the expert of each stretch loses at least L - W = m L* +
# gap/eta in it, so that M grew by at least gap/eta since the draw. Let Y = ln(phi_n/phi_N), where N
# is the first decision at which M has grown by gap/eta. By the paper's step, for a >= 0,
# 1{a >= gap/eta} <= (1 - e^(-eta a/2))/(1 - e^(-gap/2)),
#   P(Y <= y | all before the draw) <= (1 - e^-y)/(1 - e^(-gap/2)).
# So given the past, Y is stochastically at least X, where X is Exp(1) conditioned on X <= gap/2.
# The Y of kappa + 1 switches sum to at most ln d. Hence P(more than kappa switches) <= P(some
# switch is early) + P(X_1 + ... + X_{kappa+1} <= ln d) with independent X. Lemma D.2 uses the same
# step once for each halving of phi, with 2/3 in place of 1/(2(1 - e^-2)) = .58 and three switches
# per halving.

_GRID_CELLS = 512  # grid cells of the distribution of X


def _checked_gap(gap: float) -> float:
    """Return ``gap`` after checking it. gap is eta (L - W - m L*), see the comment above."""
    return number("gap", gap, at_least=1, at_most=32)


def _grid_distribution(d: int, gap: float) -> tuple[np.ndarray, int]:
    """Return the distribution of X on a grid, and the number of grid points <= ln d.

    X is Exp(1) conditioned on X <= gap/2, and rounded down to the grid.
    """
    width = gap / 2.0 / _GRID_CELLS
    distribution = (
        np.exp(-width * np.arange(_GRID_CELLS)) * math.expm1(-width) / math.expm1(-gap / 2.0)
    )
    return distribution, int(math.log(d) / width * (1.0 + 1e-12)) + 1


def budget_failure(experts: int, switches: int, *, gap: float = 4.0) -> float:
    """Return a proven bound on the probability that Fed-SVT needs more than ``switches`` switches.

    The bound is P(X_1 + ... + X_{kappa+1} <= ln d) for independent X, where X is Exp(1) conditioned
    on X <= gap/2 and rounded down by at most gap/1024. It holds for losses fixed in advance under
    two conditions: none of the first kappa + 1 switches is early (add `early_switch_failure`), and
    L - W >= m L* + gap/eta. gap is in [1, 32]; the paper uses 4. The computation takes
    O(kappa ln(d) 2^19/gap) operations.

    Here d is ``experts`` and kappa ``switches``. L is the `threshold`, W the `noise_margin`, m L*
    a bound on the best expert's loss summed over the m clients, and eta the learning rate.
    """
    d, kappa = check_experts(experts), integer("switches", switches, at_least=0)
    if d == 1:
        return 0.0
    distribution, points = _grid_distribution(d, _checked_gap(gap))
    sums = distribution[:points]
    for _ in range(kappa):
        sums = np.convolve(sums, distribution)[:points]
        if not sums.any():
            break
    return min(1.0, float(sums.sum()))


def switching_budget(experts: int, failure_probability: float, *, gap: float = 4.0) -> int:
    """Return the number of switches that suffices with probability 1 - rho, by `budget_failure`.

    It is the least kappa with budget_failure(d, kappa) <= rho, slightly above 1.46 ln d. The
    conditions of `budget_failure` apply, also to ``gap``. For every d and rho this kappa is below
    `switching_budget_printed`.

    Here d is ``experts`` and rho ``failure_probability``.
    """
    d, rho = check_experts(experts), check_failure(failure_probability)
    if d == 1:
        return 0
    distribution, points = _grid_distribution(d, _checked_gap(gap))
    sums, kappa = distribution[:points], 0
    while sums.sum() > rho:
        sums, kappa = np.convolve(sums, distribution)[:points], kappa + 1
    return kappa


def switching_budget_printed(experts: int, failure_probability: float) -> int:
    """Return the paper's kappa: 3 ceil(log2 d) + 24 ln(1/rho), rounded up.

    The paper's proof applies Lemma D.3 with k = 4 ln(1/rho), but the lemma needs k >= ceil(log2 d).
    This kappa is sufficient nevertheless. The sum phi of the weights (see the comment above) halves
    at most s = ceil(log2 d) times. That takes s - 1 switches plus s geometric numbers of switches,
    each of mean 1.37, and Chernoff's bound at 1/24 gives a failure probability below rho.

    Here d is ``experts`` and rho ``failure_probability``.
    """
    d, rho = check_experts(experts), check_failure(failure_probability)
    return math.ceil(3 * (d - 1).bit_length() - 24.0 * math.log(rho))


# ---- The noise -----------------------------------------------------------------------------------
#
# The query q_t is the sum of all clients' losses of the expert x since the last switch. Decision t
# keeps x iff q_t + gamma_t <= L + r. Each gamma_t ~ Lap(b) is fresh, and r ~ Lap(a) is drawn after
# each switch. Given the start of a stretch, its expert x and all queries q_t are fixed, and the q_t
# are nondecreasing. A switch is early if q <= L - W. The k decisions with q <= L - W come first in
# a stretch, and all k of them are made unless a switch is early. So
#   P(no early switch in the stretch) >= E F(W + r)^k, where F is the cdf of gamma.
# The k of all stretches sum to at most n, the number of decisions. E F^k is log-convex in k, so
# equal k are the worst case: P(early) <= 1 - (E F(W + r)^(n/(kappa+1)))^(kappa+1). A switch is late
# if x is kept with q > L + W'. Then x was kept at the first such decision of its stretch, which is
# determined when the stretch begins: P(late) <= 1 - (1 - P(r - gamma > W'))^(kappa+1).


def _checked_scales(threshold_scale: float, query_scale: float) -> tuple[float, float]:
    """Return the two Laplace scales after checking them."""
    return (
        number("threshold_scale", threshold_scale, at_least=0),
        number("query_scale", query_scale, at_least=0),
    )


def _laplace_difference_tail(w: float, a: float, b: float) -> float:
    """Return P(Lap(a) - Lap(b) > w) for w >= 0; the formula is stable for a close to b."""
    low, high = min(a, b), max(a, b)
    if high == 0.0:
        return 0.0
    tail = math.exp(-w / high) / 2.0
    if low == 0.0:
        return tail
    z = w / high * (high - low) / low
    ratio = -math.expm1(-z) / z if z > 0.0 else 1.0
    return tail * (1.0 + low / (low + high) * (w / high) * ratio)


def _largest_draw_above(w: float, k: float, a: float, b: float) -> float:
    """Return P(r + w < the largest of k draws of Lap(b)), where r ~ Lap(a) and w > 0.

    k >= 1 may be any real number. The largest draw is then a number with the distribution function
    F^k, where F is the distribution function of Lap(b).
    """
    if b == 0.0:  # r < -w
        return math.exp(-w / a) / 2.0

    def largest_exceeds(level: np.ndarray) -> np.ndarray:
        """Return the probability that the largest draw exceeds ``level``, elementwise."""
        log_below = np.log1p(-0.5 * np.exp(-np.maximum(level, 0.0) / b))
        result: np.ndarray = -np.expm1(k * log_below)
        return result

    if a == 0.0:
        return float(largest_exceeds(np.array(w)))
    # With probability e^(-w/a)/2, r < -w. Then w + r = -a y with y ~ Exp(1), and the largest draw
    # exceeds w + r with probability 1 - (e^(-a y/b)/2)^k. Its mean over y has a closed form.
    part_below = math.exp(-w / a) / 2.0 * (1.0 - 0.5**k / (1.0 + a * k / b))
    # For r > -w: Gauss-Legendre quadrature over r. The integrand has kinks at r = 0 and -w, and a
    # bend where w + r is about the size of the largest draw, b ln(k/2). Panels double in width with
    # the distance from these points.
    kinks = np.array([-w, min(0.0, b * math.log(max(k / 2.0, 1.0)) - w), 0.0])
    high = 45.0 * a
    start = min(a, b, w) / 2.0
    steps = start * 2.0 ** np.arange(max(1, math.ceil(math.log2((w + high) / start)) + 1))
    edges = np.concatenate([kinks, *(kinks + s for s in steps), *(kinks - s for s in steps)])
    edges = np.unique(np.append(edges[(edges > -w) & (edges < high)], [-w, high]))
    u, weights = np.polynomial.legendre.leggauss(20)
    half_widths = np.diff(edges)[:, None] / 2.0
    r = edges[:-1, None] + half_widths * (1.0 + u)
    # For each node r: quadrature weight, times the density of Lap(a) at r, times the conditional
    # probability given r.
    node_weights = half_widths * weights
    weighted_values = node_weights * np.exp(-np.abs(r) / a) / (2.0 * a) * largest_exceeds(w + r)
    return min(1.0, part_below + float(weighted_values.sum()))


def _stretch_count(decisions: int, switches: int) -> tuple[int, int]:
    """Return n = ``decisions`` and the largest number of stretches, after checking the arguments.

    A stretch is the time from one switch to the next, so there are at most min(n, kappa + 1)
    stretches, where kappa is ``switches``.
    """
    n = integer("decisions", decisions, at_least=0)
    return n, min(n, integer("switches", switches, at_least=0) + 1)


def _probability_of_any(count: int, probability: float) -> float:
    """Return 1 - (1 - p)^count, the probability that one of ``count`` independent events occurs."""
    return 1.0 if probability >= 1.0 else -math.expm1(count * math.log1p(-probability))


def _least_margin(failure: Callable[[float], float], rho: float, scale: float) -> float:
    """Return the least margin w >= 0 with ``failure(w)`` <= rho.

    ``failure`` is a decreasing function. ``scale`` is the unit of the first search steps.
    """
    low, high = 0.0, scale
    while failure(high) > rho:
        low, high = high, 2.0 * high
    log_rho = math.log(rho)

    def excess(w: float) -> float:
        """Return ln(failure(w) / rho)."""
        return math.log(max(failure(w), 1e-320)) - log_rho

    if low == 0.0:
        low = 1e-9 * high
        if excess(low) <= 0.0:
            return low
    if excess(high) >= 0.0:
        return high
    root = float(brentq(excess, low, high, xtol=1e-12 * high, rtol=1e-14))
    return root * (1.0 + 1e-9)  # slightly above the root, where the probability is below rho


def early_switch_failure(
    margin: float, decisions: int, switches: int, threshold_scale: float, query_scale: float
) -> float:
    """Return a proven bound on the probability that one of the first kappa + 1 switches is early.

    A switch is early if it comes at a query q <= L - W. The query is the sum of all clients' losses
    of the current expert since the last switch, and L is the `threshold`. The bound is
    1 - (E F(W + r)^(n/K))^K, where K = min(n, kappa + 1), r ~ Lap(threshold_scale), and F is the
    cdf of Lap(query_scale). If n/K is an integer, some losses attain the bound: in each stretch
    (from one switch to the next), q stays at L - W for n/K decisions, and then jumps. Losses must
    be nonnegative, so that queries are nondecreasing.

    Here W >= 0 is ``margin``, n >= 0 is ``decisions``, the total number of decisions (in Fed-SVT
    floor(T/N), for T rounds in phases of length N), and kappa is ``switches``.
    """
    w = number("margin", margin, at_least=0)
    n, count = _stretch_count(decisions, switches)
    a, b = _checked_scales(threshold_scale, query_scale)
    if n == 0 or a == b == 0.0:
        return 0.0
    return _probability_of_any(
        count, _largest_draw_above(max(w, 1e-12 * max(a, b)), n / count, a, b)
    )


def noise_margin(
    decisions: int,
    switches: int,
    threshold_scale: float,
    query_scale: float,
    failure_probability: float,
) -> float:
    """Return the margin W below the threshold at which early switches have probability <= rho.

    It is the least W >= 0 with early_switch_failure(W, ...) <= rho, in units of the loss summed
    over clients. The other arguments are as for `early_switch_failure`.

    Here rho is ``failure_probability``.
    """
    n, _ = _stretch_count(decisions, switches)
    a, b = _checked_scales(threshold_scale, query_scale)
    rho = check_failure(failure_probability)
    if n == 0 or a == b == 0.0:
        return 0.0
    return _least_margin(lambda w: early_switch_failure(w, n, switches, a, b), rho, a + b)


def noise_margin_printed(
    horizon: int, phase_length: int, epsilon: float, failure_probability: float
) -> float:
    """Return the paper's noise margin W, which is 8 ln(2 T^2/(N^2 rho))/epsilon.

    With the paper's noise scales 4/epsilon and 8/epsilon, the probability of an early switch (see
    `early_switch_failure`) is then below rho N/(3 T).

    Here T is ``horizon``, N is ``phase_length``, from 1 to T, and rho is ``failure_probability``.
    """
    t = check_horizon(horizon)
    n = integer("phase_length", phase_length, at_least=1, at_most=t)
    rho = check_failure(failure_probability)
    return 8.0 * (math.log(2.0) + 2.0 * math.log(t / n) - math.log(rho)) / check_epsilon(epsilon)


def late_switch_failure(
    margin: float, switches: int, threshold_scale: float, query_scale: float
) -> float:
    """Return a proven bound on the probability that an expert is ever kept at q > L + W'.

    The query q is the sum of all clients' losses of the current expert since the last switch, and L
    is the `threshold`. The bound is 1 - (1 - p)^(kappa + 1) with p = P(Lap(a) - Lap(b) > W'). It
    holds for up to kappa + 1 stretches (times from one switch to the next), whatever the number of
    decisions in them.

    Here W' >= 0 is ``margin``, kappa ``switches``, a ``threshold_scale`` and b ``query_scale``.
    """
    w = number("margin", margin, at_least=0)
    kappa = integer("switches", switches, at_least=0)
    return _probability_of_any(
        kappa + 1, _laplace_difference_tail(w, *_checked_scales(threshold_scale, query_scale))
    )


def threshold(
    clients: int, optimal_loss: float, eta: float, noise_margin: float, *, gap: float = 4.0
) -> float:
    """Return Fed-SVT's threshold L = m L* + W + gap/eta, in units of the loss summed over clients.

    Here m is ``clients`` and W ``noise_margin``. The best expert's loss, summed over clients, is at
    most m L*, where L* = ``optimal_loss`` >= 0. The exponential mechanism draws expert x with a
    weight e^(-eta s(x)/2), where s(x) is the larger of m L* and the cumulative loss of x, summed
    over clients, and eta > 0. The paper has gap = 4.
    """
    m, best = check_clients(clients), number("optimal_loss", optimal_loss, at_least=0)
    margin = number("noise_margin", noise_margin, at_least=0)
    return m * best + margin + _checked_gap(gap) / number("eta", eta, above=0)


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
    """Return a proven upper bound on one client's total loss, hence regret, under Fed-SVT.

    The bound is min(T, (kappa + 1)(L + W' + m N)/m), where W' is the least number with
    late_switch_failure(W', ...) <= rho. A stretch, which is the time from one switch to the next,
    costs at most L + W' up to its last decision to keep the expert, and m N after it. The bound
    holds with probability at least 1 - rho - P(more than kappa switches needed). So if W
    (`noise_margin`), kappa (`switching_budget`) and this bound are each computed at rho/3, and L by
    the function `threshold`, the bound holds with probability at least 1 - rho. Losses must be in
    [0, 1] and fixed in advance. The algorithm must be the corrected one: the query q (all clients'
    losses of the expert since the last switch) plus noise gamma is compared with the noisy
    threshold, and every expert is scored by its own losses.

    Here T is ``horizon``, m ``clients``, N ``phase_length``, L ``threshold``, kappa ``switches``
    and rho ``failure_probability``.
    """
    t, m = check_horizon(horizon), check_clients(clients)
    n = integer("phase_length", phase_length, at_least=1)
    level = number("threshold", threshold, at_least=0)
    kappa = integer("switches", switches, at_least=0)
    a, b = _checked_scales(threshold_scale, query_scale)
    rho = check_failure(failure_probability)
    late_margin = 0.0
    if a > 0.0 or b > 0.0:
        late_margin = _least_margin(lambda w: late_switch_failure(w, kappa, a, b), rho, a + b)
    return min(float(t), (kappa + 1) * ((level + late_margin) / m + n))


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
    """Return the printed order of Fed-SVT's regret in Theorem 2.6 (repeated as D.1).

    The order is (A + ln(T^2/(N^2 rho)) ln(d/rho))/(m epsilon) + (N + L*) ln(d/rho). Here A is
    ln(d)^2 under pure privacy (``delta`` None), and ln(d)^1.5 ln(1/delta)^0.5 with a delta. The
    paper states the order with probability 1 - rho, and proves it with probability 1 - O(rho). The
    factor ln(d/rho) stands for kappa + 1, where kappa is the number of switches; the printed kappa
    is up to 24 times larger. With a delta, A should contain ln(d/rho), because no other term covers
    ln(1/rho)^1.5 ln(1/delta)^0.5. For a budget with delta, the printed learning rate eta is too
    large.

    T is ``horizon``, m ``clients``, d ``experts``, N ``phase_length``, L* ``optimal_loss`` and rho
    ``failure_probability``.
    """
    t, m, d = (check_horizon(horizon), check_clients(clients), check_experts(experts))
    n = integer("phase_length", phase_length, at_least=1, at_most=t)
    log_rho = -math.log(check_failure(failure_probability))
    best = number("optimal_loss", optimal_loss, at_least=0)
    log_d = math.log(d)
    choices_term = log_d**2
    if delta is not None:
        choices_term = log_d**1.5 * math.sqrt(-math.log(number("delta", delta, above=0, below=1)))
    noise_terms = choices_term + (2.0 * math.log(t / n) + log_rho) * (log_d + log_rho)
    return check_constant(constant) * (
        noise_terms / m / check_epsilon(epsilon) + (n + best) * (log_d + log_rho)
    )
