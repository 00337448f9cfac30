"""Bounds on the regret of federated prediction from experts, from above and below: gao-2024.

Every regret here is per client: the loss of m clients in T rounds beyond that of the best fixed
expert, divided by m. Orders of the paper are evaluated with natural logarithms and multiplied by
`constant`, the hidden one: `theorem_2_2` to `theorem_2_7`, `corollary_2_3` and `table_1`. The
others are proven with the constants they show; comments and docstrings hold the proofs.

- Fed-DP-OPE-Stoch, in expectation: `phase_suboptimality` of a `PhaseNoise`,
  `stoch_regret`; printed: `theorem_2_2`, `corollary_2_3`.
- Fed-SVT, with a probability: `switching_budget`, `noise_margin`, `threshold`,
  `svt_regret`; their failures from given numbers: `budget_failure`, `early_switch_failure`,
  `late_switch_failure`; printed: `switching_budget_printed`, `noise_margin_printed`, `theorem_2_6`.
- No algorithm does better (`lower_bounds`): `theorem_2_4` without privacy, exact, `hidden_expert`
  with it; printed: `theorem_2_4_private`, `theorem_2_7`.
  Table 1, all printed: `table_1` and `table_1_communication`.

Parameters
----------
The same names mean the same in all functions; bad values raise InputError.

horizon : int
    T >= 1.
clients : int
    m >= 1.
experts : int
    d >= 1.
epsilon, delta : float
    Budget of one loss of one client, epsilon > 0 and delta in (0, 1).
failure_probability : float
    rho in (0, 1).
lipschitz : float
    alpha > 0, for the 1-norm.
smoothness : float
    beta >= 0, for the 1-norm.
constant : float
    Factor > 0 on a printed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastfed._roots import brentq
from fastfed._validate import InputError, choice, integer, number
from fastfed.experts.frank_wolfe import MAX_TREES
from fastfed.experts.lower_bounds import (
    TABLE_1,
    HiddenExpert,
    check_clients,
    check_constant,
    check_epsilon,
    check_experts,
    check_failure,
    check_horizon,
    hidden_expert,
    table_1,
    table_1_communication,
    theorem_2_4,
    theorem_2_4_private,
    theorem_2_7,
)

__all__ = [
    "TABLE_1",
    "HiddenExpert",
    "PhaseNoise",
    "budget_failure",
    "corollary_2_3",
    "early_switch_failure",
    "hidden_expert",
    "late_switch_failure",
    "noise_margin",
    "noise_margin_printed",
    "phase_suboptimality",
    "stoch_regret",
    "svt_regret",
    "switching_budget",
    "switching_budget_printed",
    "table_1",
    "table_1_communication",
    "theorem_2_2",
    "theorem_2_4",
    "theorem_2_4_private",
    "theorem_2_6",
    "theorem_2_7",
    "threshold",
]


# ---- Fed-DP-OPE-Stoch: expected regret, proven and as printed ------------------------------------


class PhaseNoise(NamedTuple):
    """A phase of Fed-DP-OPE-Stoch that updates.

    Attributes
    ----------
    trees : int
        T_1.
    batch : int
        b, losses at a tree's root.
    scales : tuple of float
        One >= 0 for each tree: of Lap(lambda_j) at every client or Lap(mu_j) at the server.
    """

    trees: int
    batch: int
    scales: tuple[float, ...]


# ---- Theorem 2.2 as proven -----------------------------------------------------------------------
#
# L is the expected loss, x* its minimizer, e = grad L(x_k) - v the error of the averaged gradient
# at leaf k, xi the noise in the averaged scores, w = c_n* the vertex of the least noisy score.
# Smoothness and convexity give, as in the paper,
#   L(x_{k+1}) - L(x*) <= (1 - eta)(L(x_k) - L(x*)) + eta <e + v, w - x*> + (beta/2) eta^2 |w-x_k|^2
# with |w - x_k|_1 <= 2 (the paper has 1 in its place: its last term is a quarter of this one).
# By the choice of w, <v, w - x*> <= <xi, x*> - xi_n*. Now e and xi have mean zero, e as a sum of
# martingale differences (fresh samples at each vertex), and x* is fixed, so that in expectation
# <e, w - x*> + <xi, x*> - xi_n* is E(e_n* - xi_n*) <= E max_n (e_n - xi_n): one maximum, where the
# paper has |e|_inf (short of a 2 from Hoelder) and 2 max |xi|. With eta_k = 2/(k + 1) leaf k has
# weight 2k/(K(K + 1)) after K leaves, and the weights sum to 1.


def _squared_errors(tree: int, smoothness: float, spread: float) -> np.ndarray:
    """b m times the sub-Gaussian variance of e at each leaf of tree j, (2^j,).

    Root: b m gradients in an interval of length `spread`, Hoeffding. Right vertex at depth i: b m
    2^-i differences of gradients, each at most h = min(spread, beta |x - x'|_1) from zero. Between
    x' (its parent's) and x lie n = 2^(j-i) updates from leaf k on, so that x = pi x' + (1 - pi) q
    with q in the simplex and pi the product of their 1 - eta: (k-1)k/((k+n-1)(k+n)).
    """
    place = np.arange(2**tree)
    result = np.full(2**tree, spread * spread / 4.0)
    for depth in range(1, tree + 1):
        below = tree - depth
        n = float(2**below)
        k = (place >> (below + 1) << (below + 1)) + (2.0**tree - 1.0)
        kept = (k - 1.0) * k / ((k + n - 1.0) * (k + n))
        half = np.minimum(spread, smoothness * 2.0 * (1.0 - kept))
        result += np.where(place >> below & 1, half * half * 2.0**depth, 0.0)
    return result


def _harmonic(count: float) -> float:
    """1 + 1/2 + ... + 1/count."""
    from scipy.special import digamma

    return float(digamma(count + 1.0)) + float(np.euler_gamma)


def _largest_laplace(d: int) -> float:
    """E of the largest of d independent Lap(1): H_d - sum_{i<=d} 2^-i/i - 2^-d/d."""
    halves = math.fsum(math.ldexp(1.0 / i, -i) for i in range(1, min(d, 1000) + 1))
    return _harmonic(d) - halves - (math.ldexp(1.0 / d, -d) if d < 1000 else 0.0)


def _largest_error(variance: float, draws: int, scale: float, d: int) -> float:
    """Bound on E max_n (e_n - xi_n): e_n sub-Gaussian, xi_n the sum of `draws` Lap(scale).

    min over 0 < u < 1/scale of (ln d + u^2 variance/2 - draws ln(1 - u^2 scale^2))/u, as for any
    d variables; for one draw also the exact maximum of the noise plus that of e. Concave in the
    variance, as a minimum of affine functions.
    """
    if d == 1:
        return 0.0
    log_d = math.log(d)
    plain = math.sqrt(2.0 * log_d * variance)
    if scale == 0.0:
        return plain
    from scipy.optimize import minimize_scalar

    # Relative to 1/scale the minimizer lies below that for Gaussian noise of the same variance.
    unit = variance / scale / scale
    top = min(math.sqrt(2.0 * log_d / (unit + 2.0 * draws)), 1.0 - 1e-9)

    def value(log_u: float) -> float:
        """The bound at u = exp(log_u)."""
        u = math.exp(log_u)
        return (log_d + u * u * unit / 2.0 - draws * math.log1p(-u * u)) / u

    high = math.log(top)
    least = minimize_scalar(value, bounds=(high - 12.0, high), method="bounded")
    found = scale * min(float(least.fun), value(high))
    return min(found, plain + scale * _largest_laplace(d)) if draws == 1 else found


def _phase(phase: PhaseNoise) -> PhaseNoise:
    """The phase, checked."""
    if not isinstance(phase, PhaseNoise):
        raise InputError(f"phases must hold PhaseNoise or None, got {phase!r}")
    trees = integer("trees", phase.trees, at_least=1, at_most=MAX_TREES)
    batch = integer("batch", phase.batch, at_least=1)
    if batch % 2**trees:
        raise InputError(f"batch must be a multiple of 2^trees = {2**trees}, got {batch}")
    if len(phase.scales) != trees:
        raise InputError(f"scales must be one a tree, {trees}, got {len(phase.scales)}")
    return PhaseNoise(trees, batch, tuple(number("scale", s, at_least=0) for s in phase.scales))


def _ranges(alpha: float, spread: float | None, loss_range: float | None) -> tuple[float, float]:
    """Length of the gradients' intervals, and the most that L can exceed its minimum by."""
    most = 2.0 * alpha
    return (
        most if spread is None else number("spread", spread, at_least=0, at_most=most),
        most if loss_range is None else number("loss_range", loss_range, at_least=0, at_most=most),
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
    """Upper bound on E[L(x) - min L] for the x that DP-FW ends a phase with. Proven.

    noise: "local" (each client adds Lap(scale) to each of its d scores, the server averages) or
    "central" (the server adds one Lap(scale) to each average); scale 0 for no privacy. spread: the
    length of an interval that holds a given coordinate of all gradients, at most the default 2
    alpha. loss_range: what L exceeds its minimum by at most, at most the default 2 alpha.

    Holds from any starting point that is independent of the phase's losses: x at the start comes
    from the phases before, and the losses used are those of the last phase, whose decision they did
    not influence. These must be i.i.d. over rounds and independent over clients (whose
    distributions may then differ), and each is used at one vertex only. Smoothness adds less than
    8 beta/(K + 1), K = 2^(T_1 + 1) - 2 the leaves.
    """
    trees, batch, scales = _phase(phase)
    m, d = check_clients(clients), check_experts(experts)
    alpha = number("lipschitz", lipschitz, above=0)
    beta = number("smoothness", smoothness, at_least=0)
    local = choice("noise", noise, ("local", "central")) == "local"
    spread, most = _ranges(alpha, spread, loss_range)
    if d == 1:
        return 0.0
    return min(most, _suboptimality(PhaseNoise(trees, batch, scales), m, d, beta, spread, local))


@lru_cache(maxsize=1024)  # a curve asks for the same phases at each of its rounds
def _suboptimality(
    phase: PhaseNoise, m: int, d: int, beta: float, spread: float, local: bool
) -> float:
    """`phase_suboptimality` of checked arguments."""
    trees, batch, scales = phase
    leaves = 2.0 ** (trees + 1) - 2.0
    total = 8.0 * beta * (leaves + 1.0 - _harmonic(leaves + 1.0)) / (leaves * (leaves + 1.0))
    for tree, scale in enumerate(scales, start=1):
        squares = _squared_errors(tree, beta, spread)
        weights = np.arange(len(squares)) + (2.0**tree - 1.0)
        share = 2.0 * float(weights.sum()) / (leaves * (leaves + 1.0))
        # Concave in the variance, so the mean variance bounds the mean over leaves (Jensen).
        mean = float(np.average(squares, weights=weights)) / batch / m
        draws, part = (m, scale / m) if local else (1, scale)
        total += share * _largest_error(mean, draws, part, d)
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
    """Upper bound on the expected regret of Fed-DP-OPE-Stoch, explicit. Proven.

    phases: one a phase p = 1, 2, ... of the horizon, of 2^(p-1) rounds (the last one cut off); None
    keeps x and with it the bound of the phase before, loss_range at first. The first is None, as it
    has no losses to learn from. A phase needs b (T_1 + T_1 (T_1 + 1)/4) <= 2^(p-2), the losses of
    the last one, each used once. Regret is against the least expected loss, E[sum_t L(x_t)] - T
    min L, as the paper's proof has it; its definition takes the best expert of the losses that
    came, at most sqrt(T ln(d)/(2 m)) more for losses in [0, 1]. Other arguments as in
    `phase_suboptimality`.
    """
    t = check_horizon(horizon)
    check_clients(clients), check_experts(experts)
    number("smoothness", smoothness, at_least=0)
    choice("noise", noise, ("local", "central"))
    _, bound = _ranges(number("lipschitz", lipschitz, above=0), spread, loss_range)
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
            trees, used = phase.trees, phase.batch * phase.trees * (phase.trees + 5)
            if used > 2**p:
                raise InputError(
                    f"phases[{p - 1}] must use at most {2 ** (p - 2)} losses a client, got "
                    f"{used / 4:g} for {trees} trees and batch {phase.batch}"
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
    """Theorem 2.2 (C.5 once more), the printed order of Fed-DP-OPE-Stoch's regret; not a bound.

    (alpha + beta) ln T sqrt(T ln(d)/m) + sqrt(alpha beta T) ln T ln d/(m^(1/4) sqrt(epsilon)). It
    cannot hold for small beta: at beta = 0 epsilon is gone, while `lower_bounds.hidden_expert`,
    whose losses are linear and constant in time, costs any private algorithm about ln(d)/(m
    epsilon). The proof's T_1 = log2(b epsilon beta sqrt(m)/(alpha ln d))/2 must be 1 or more, which
    no phase reaches for T epsilon beta sqrt(m) < 8 (log2(T) - 1)^2 alpha ln d or so; the least tree
    alone adds alpha ln(T)^3 ln(d)/(sqrt(m) epsilon). The noise is short too: see `stoch_regret` for
    what holds.
    """
    t, m, d = (
        check_horizon(horizon),
        check_clients(clients),
        check_experts(experts),
    )
    alpha = number("lipschitz", lipschitz, above=0)
    beta = number("smoothness", smoothness, at_least=0)
    first = (alpha + beta) * math.sqrt(t * math.log(d) / m)
    second = math.sqrt(alpha * beta / check_epsilon(epsilon)) * math.sqrt(t) * math.log(d) / m**0.25
    return check_constant(constant) * math.log(t) * (first + second)


def corollary_2_3(
    horizon: int,
    clients: int,
    experts: int,
    epsilon: float,
    *,
    lipschitz: float,
    constant: float = 1.0,
) -> float:
    """Corollary 2.3, the printed order for beta = O(1/(T epsilon)); not a bound.

    alpha ln T sqrt(T ln(d)/m) + sqrt(alpha) ln T ln d/(m^(1/4) epsilon). For such a beta the
    printed T_1 is below 1 unless sqrt(m) exceeds about 8 log2(T)^2 alpha ln d, so that the
    algorithm never updates; Table 1 prints sqrt(m) epsilon in the second term.
    """
    t, m, d = (
        check_horizon(horizon),
        check_clients(clients),
        check_experts(experts),
    )
    alpha = number("lipschitz", lipschitz, above=0)
    first = alpha * math.sqrt(t * math.log(d) / m)
    second = math.sqrt(alpha) * math.log(d) / m**0.25 / check_epsilon(epsilon)
    return check_constant(constant) * math.log(t) * (first + second)


# ---- Fed-SVT: regret with a probability, proven and as printed -----------------------------------
#
# Its switches (`switching_budget`), the noise of its comparisons (`noise_margin`), its `threshold`,
# and the regret that follows (`svt_regret`).

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
