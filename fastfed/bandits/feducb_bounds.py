"""Constants of FedUCB, and bounds on its synchronisations and group regret (dubey-pentland-2020).

Some statements of the paper contradict each other or their proofs. The docstring of each function
says which version it computes. The paper prints Theorems 1 and 2 as orders. They are evaluated with
natural logarithms and multiplied by `constant`. All other bounds have the constants of their
proofs, with the free constant nu of the proofs set to e. Logarithms are natural unless log2 is
written.

Parameters
----------
All functions share these parameters. Invalid values raise InputError.

horizon : int
    T >= 1.
silos : int
    M >= 1.
dimension : int
    d >= 1.
epsilon, delta : float
    Privacy budget of one user, epsilon > 0 and delta in (0, 1).
failure_probability : float
    alpha in (0, 1].
feature_bound : float
    L > 0 with ||x|| <= L. Rewards have |y| <= 1.
releases : int
    n >= 1, the number of releases of one tree: the number of batches if the schedule is fixed,
    else T.
gamma : int
    The time to live of messages in Algorithm 3, in hops, which is also the number of estimators.
    Each estimator has a tree of n = ceil(T / gamma) releases. It is 1 for Algorithm 1.
rho_min, rho_max : float
    Bounds 0 < rho_min <= rho_max on the eigenvalues of a silo's regularizer H. Without privacy
    rho_max = rho_min.
threshold : float
    D > 0 of the trigger. In Algorithm 3, D before it is divided by 1 + L^2.
kappa : float
    Bound >= 0 on the noise in the bias vector, 0 without privacy.
reward_scale : float
    sigma > 0: rewards are sigma-sub-Gaussian.
parameter_bound : float
    S > 0 with ||theta*|| <= S.
constant : float
    Factor > 0 on an order of growth, which has no constant in the paper.

Notes
-----
G is the logarithm that `log_growth` returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fastfed._validate import InputError, choice, integer, number, show
from fastfed.bandits.problem import checked_sizes
from fastfed.privacy.releases.gaussian_release import privatizer_levels
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes

THRESHOLDS = ("log-T", "M1.5")


def _releases(releases: int) -> int:
    """Check n and return it."""
    return integer("releases", releases, at_least=1)


def _squared_norm(feature_bound: float) -> float:
    """Return L^2 + 1, the largest possible ||[x; y]||^2."""
    length = number("feature_bound", feature_bound, above=0)
    return length * length + 1.0


def _log_union(
    events: int, silos: int, releases: int, gamma: int, failure_probability: float
) -> float:
    """Return ln(events n M gamma / alpha), for a union bound over all releases of all trees.

    There are ``events`` events for each release, n releases, M silos and gamma trees at each silo.
    """
    count = (
        events
        * integer("silos", silos, at_least=1)
        * _releases(releases)
        * integer("gamma", gamma, at_least=1)
    )
    alpha = number("failure_probability", failure_probability, above=0, at_most=1)
    return math.log(count) - math.log(alpha)


# ---- Noise of a prefix (Section 4.3) -------------------------------------------------------------


def noise_bound(
    dimension: int,
    silos: int,
    epsilon: float,
    delta: float,
    releases: int,
    failure_probability: float,
    *,
    feature_bound: float = 1.0,
    gamma: int = 1,
) -> float:
    """Return Lambda of Section 4.3 as printed, a bound on the noise's operator norm.

    Lambda = sqrt(32) m (L^2 + 1) ln(4/delta) (4 sqrt(d) + 2 ln(2 n M gamma/alpha)) / epsilon. Each
    prefix sum (not each node) is shifted by 2 Lambda I, so rho_min = Lambda and rho_max = 3 Lambda
    (Proposition 4). Proven for the noise of `gaussian_release.node_noise_std`, because Lambda is
    never below `noise_bound_from_std` of this noise.
    """
    d = integer("dimension", dimension, at_least=1)
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    m = privatizer_levels(releases)
    tail = 4.0 * math.sqrt(d) + 2.0 * _log_union(2, silos, releases, gamma, failure_probability)
    log_delta = math.log(4.0) - math.log(delta)
    return math.sqrt(32.0) * m * _squared_norm(feature_bound) * log_delta * tail / epsilon


def bias_bound(
    dimension: int,
    silos: int,
    epsilon: float,
    releases: int,
    failure_probability: float,
    *,
    feature_bound: float = 1.0,
    gamma: int = 1,
) -> float:
    """Return kappa of Proposition 4 as printed, an unproven bound on ||h|| in the norm of H^-1.

    kappa = sqrt(m (L^2 + 1) (sqrt(d) + 2 ln(2 n M gamma/alpha)) / (sqrt(2) epsilon)), with the
    outer root over the whole quotient. Unproven, because delta is missing. For the noise of
    `gaussian_release.node_noise_std` and a small delta it is below `bias_bound_from_std`: for
    delta < 6e-4 with n = 1e5, M = 100, d = 10, epsilon = 1 and alpha = 0.01, and for delta < 2e-2
    with n = 7 and M = 10.
    """
    d = integer("dimension", dimension, at_least=1)
    epsilon = number("epsilon", epsilon, above=0)
    m = privatizer_levels(releases)
    tail = math.sqrt(d) + 2.0 * _log_union(2, silos, releases, gamma, failure_probability)
    return math.sqrt(m * _squared_norm(feature_bound) * tail / (math.sqrt(2.0) * epsilon))


def noise_bound_from_std(
    dimension: int,
    silos: int,
    noise_std: float,
    releases: int,
    failure_probability: float,
    *,
    gamma: int = 1,
) -> float:
    """Return Lambda for Gaussian noise of any std, which is not in the paper.

    Lambda = s sqrt(p) (2 sqrt(d) + 2 sqrt(ln(8 n M gamma/alpha))). Here s = ``noise_std`` >= 0 is
    the off-diagonal std of one tree node in layout goe2, and p is the largest number of nodes in a
    prefix (`max_prefix_nodes`). Proven: with probability 1 - alpha/4 the operator norm is at most
    Lambda in all releases. The largest eigenvalue has mean at most 2 s sqrt(p d), and is a
    Lipschitz function of the Gaussian entries with constant sqrt(2 p) s. The union bound counts the
    largest and the smallest eigenvalue.
    """
    d = integer("dimension", dimension, at_least=1)
    spread = number("noise_std", noise_std, at_least=0) * math.sqrt(
        max_prefix_nodes(_releases(releases))
    )
    log_union = _log_union(8, silos, releases, gamma, failure_probability)
    return 2.0 * spread * (math.sqrt(d) + math.sqrt(log_union))


def bias_bound_from_std(
    dimension: int,
    silos: int,
    noise_std: float,
    rho_min: float,
    releases: int,
    failure_probability: float,
    *,
    gamma: int = 1,
) -> float:
    """Return kappa for Gaussian noise of any std, which is not in the paper.

    kappa = s sqrt(p) (sqrt(d) + sqrt(2 ln(4 n M gamma/alpha))) / sqrt(rho_min), with s =
    ``noise_std`` and p as in `noise_bound_from_std`. Proven if H >= rho_min I: with probability
    1 - alpha/4 the norm of h that is weighted by H^-1 is at most kappa in all releases. The two
    bounds together use alpha/2, and alpha/2 remains for the rewards.
    """
    d = integer("dimension", dimension, at_least=1)
    spread = number("noise_std", noise_std, at_least=0) * math.sqrt(
        max_prefix_nodes(_releases(releases))
    )
    low = number("rho_min", rho_min, above=0)
    log_union = _log_union(4, silos, releases, gamma, failure_probability)
    return spread * (math.sqrt(d) + math.sqrt(2.0 * log_union)) / math.sqrt(low)


# ---- Thresholds of the trigger -------------------------------------------------------------------


def log_growth(
    horizon: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
    gamma: int = 1,
) -> float:
    """Return G = ln(rho_max/rho_min + T L^2/(gamma d rho_min)), the logarithm in all bounds.

    Proven for gamma = 1: ln det V - d ln(M rho_min) <= d G if every H <= rho_max I.
    """
    t = integer("horizon", horizon, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    low = number("rho_min", rho_min, above=0)
    high = number("rho_max", rho_max, at_least=low)
    length = number("feature_bound", feature_bound, above=0)
    trace_share = t * length * length / (integer("gamma", gamma, at_least=1) * d)
    return math.log1p(((high - low) + trace_share) / low)


def threshold(
    communication: str,
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Return D of the determinant trigger, Algorithm 1, line 12.

    ``communication`` selects a rule of the paper:

    - "log-T", for O(M log T) communication: D = 2 T d / (G + 1), printed below Theorem 1.
    - "M1.5", for O(M^1.5 d^3) communication: D = T ln(M T) / (d M). Remark 1 prints no threshold
      and refers to Wang et al. 2020, who use this one. It is 0 for M = T = 1.

    For O(M T) communication silos synchronise after every round, without a threshold.
    """
    choice("communication", communication, THRESHOLDS)
    t = integer("horizon", horizon, at_least=1)
    m = integer("silos", silos, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    if communication == "M1.5":
        return t * math.log(m * t) / (d * m)
    return 2.0 * t * d / (growth + 1.0)


def decentralised_threshold(
    horizon: int,
    dimension: int,
    gamma: int,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Return D of Algorithm 3: 2 (T/gamma) d / (G + 1), where G depends on gamma.

    The paper prints no threshold for Algorithm 3 ("identical"). This is its rule "log-T" for the
    T/gamma rounds of one estimator. The division by 1 + L^2 in line 6 is not included.
    """
    t = integer("horizon", horizon, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    estimators = integer("gamma", gamma, at_least=1)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=estimators)
    return 2.0 * t * d / (estimators * (growth + 1.0))


# ---- Argument checks and common terms of the bounds ----------------------------------------------


def _threshold(threshold: float) -> float:
    """Check D and return it."""
    return number("threshold", threshold, above=0)


def _log_failure(failure_probability: float) -> float:
    """Return ln(2/alpha)."""
    alpha = number("failure_probability", failure_probability, above=0, at_most=1)
    return math.log(2.0) - math.log(alpha)


def _scale(reward_scale: float) -> float:
    """Check sigma and return it."""
    return number("reward_scale", reward_scale, above=0)


def _offset(silos: int, rho_max: float, kappa: float, parameter_bound: float) -> float:
    """Return S sqrt(M rho_max) + kappa sqrt(M), the terms of the radius for H and the noise."""
    norm = number("parameter_bound", parameter_bound, above=0)
    bias = number("kappa", kappa, at_least=0)
    return math.sqrt(silos) * (norm * math.sqrt(rho_max) + bias)


def _periods(horizon: int, clique: int, threshold: float, growth: float, gamma: int) -> float:
    """Return the sum of the terms for good and bad periods of one clique and one estimator.

    ``clique`` is the number of silos of the clique, and ``growth`` = d G.
    """
    good = math.sqrt(2.0 * clique * horizon / gamma * growth)
    return good + clique * math.sqrt(_threshold(threshold)) * (growth + 1.0)


# ---- Synchronisations: Proposition 1 -------------------------------------------------------------


def proposition_1_main_text(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Return the bound of Proposition 1 as printed in the main text: 2 sqrt(d T/D) G + 4.

    It is a misprint of the bound in the appendix, and wrong for small G.
    """
    t, _, d = checked_sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    return 2.0 * math.sqrt(d * t / _threshold(threshold)) * growth + 4.0


def proposition_1_appendix(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Return the bound of Proposition 1 as printed in the appendix: 2 sqrt(d T G/D) + 4.

    The appendix calls it Proposition 5. It is proven without privacy, but not by the paper's proof,
    which needs d G <= 2 D. A proof: a period of length t_k raises ln det S by at least D/t_k, so by
    the Cauchy-Schwarz inequality there are at most sqrt(d T G/D) periods. It is unproven with
    privacy, because the term M (rho_max - rho_min) I alone may fire the trigger.
    """
    t, _, d = checked_sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    return 2.0 * math.sqrt(d * t * growth / _threshold(threshold)) + 4.0


def proposition_1_derived(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Return equation (6) in the proof of Proposition 1: 2 sqrt(d T G/D) + d G/D + 2.

    Proven without privacy, as `proposition_1_appendix`.
    """
    t, _, d = checked_sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    ratio = d * growth / _threshold(threshold)
    return 2.0 * math.sqrt(t * ratio) + ratio + 2.0


def batch_size_proposition_1(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> int:
    """Return the batch size B = ceil(T / ceil(n)) of a fixed schedule, in [1, T].

    n is the bound of Proposition 1 (appendix) for the threshold D. So silos synchronise about as
    often as the paper bounds for the determinant schedule, but in rounds that do not depend on
    data. This rule is not in the paper. rho_min and rho_max are those of `noise_bound` for T
    releases. The noise can then be calibrated for T // B releases.
    """
    t, _, d = checked_sizes(horizon, 1, dimension)
    max_synchronisations = proposition_1_appendix(
        t, d, threshold, rho_min, rho_max, feature_bound=feature_bound
    )
    return -(-t // math.ceil(max_synchronisations))


# ---- Radius --------------------------------------------------------------------------------------


def beta_bar(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    gamma: int = 1,
) -> float:
    """Return a bound on the radius of all rounds (proof of Proposition 6, at t = T).

    beta_bar = sigma sqrt(2 ln(2/alpha) + d G) + S sqrt(M rho_max) + kappa sqrt(M). Proven for
    gamma = 1: if rho_min and rho_max bound the eigenvalues, every beta of Proposition 2 is at most
    beta_bar. Here beta has ln det V - d ln(M rho_min) as in the proof of Proposition 2, which
    prints d ln det V. beta itself is proven for one silo and a fixed schedule. Pass
    failure_probability / M to cover all silos. The determinant schedule needs a filtration that no
    proof has given (zhou-chowdhury-2024, footnote 5). For gamma > 1 the bound covers rounds after
    the first synchronisation of a clique.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=gamma)
    width = _scale(reward_scale) * math.sqrt(2.0 * _log_failure(failure_probability) + growth)
    return width + _offset(m, rho_max, kappa, parameter_bound)


# ---- Regret with a server: Theorem 1 -------------------------------------------------------------


def theorem_1(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Return the order of the group regret in Theorem 1 as printed, for threshold "log-T".

    sigma sqrt(M T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)). The proof does
    not give this order. Compared with `theorem_1_explicit`, the factor sqrt(d) of G and the factor
    sqrt(G) of the other terms are missing, and the last two terms are multiplied by sigma. To
    compare with a simulated curve, use `theorem_1_two_terms`.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    inside = growth + math.sqrt(_log_failure(failure_probability))
    inside += _offset(m, rho_max, kappa, parameter_bound)
    scale = _scale(reward_scale) * math.sqrt(m * t * d)
    return number("constant", constant, above=0) * scale * inside


def theorem_1_two_terms(
    horizon: int,
    silos: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """Return the bound in the proof of Theorem 1 for any threshold D.

    2 e beta_bar (sqrt(2 M T d G) + M sqrt(D) (d G + 1)), for L^2 <= M rho_min. The order is proven
    under the conditions of `beta_bar`. The constant ignores the round in which the trigger fires.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
    )
    return 2.0 * math.e * bar * _periods(t, m, threshold, growth, 1)


def theorem_1_explicit(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """Return the last line of Theorem 1's proof with constants: 4 e beta_bar sqrt(2 M T d (G + 1)).

    Unproven. With D = 2 T d / (G + 1), the second term of `theorem_1_two_terms` is larger than the
    first by a factor of about sqrt(M) d, and this line drops the factor.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
    )
    return 4.0 * math.e * bar * math.sqrt(2.0 * m * t * d * (growth + 1.0))


# ---- Regret without a server: Theorem 2 ----------------------------------------------------------


def theorem_2(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    cliques: int,
    gamma: int,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Return the order of the group regret of Algorithm 3 in Theorem 2.

    sigma sqrt(M cliques gamma T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)).
    ``cliques`` in [1, M] is the number of cliques that cover the gamma-th power of the graph. T d
    is inside the root as in the proof, unlike in the printed theorem. The order is unproven, and
    has the same missing factors as `theorem_1`.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    hops = integer("gamma", gamma, at_least=1)
    cover = integer("cliques", cliques, at_least=1, at_most=m)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=hops)
    inside = growth + math.sqrt(_log_failure(failure_probability))
    inside += _offset(m, rho_max, kappa, parameter_bound)
    scale = _scale(reward_scale) * math.sqrt(m * cover * hops * t * d)
    return number("constant", constant, above=0) * scale * inside


def theorem_2_two_terms(
    horizon: int,
    clique_sizes: Iterable[int],
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    gamma: int,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """Return the bound in the proof of Theorem 2 for any threshold D.

    2 e beta_bar gamma sum_C (sqrt(2 |C| (T/gamma) d G) + |C| sqrt(D) (d G + 1)), where G and
    beta_bar depend on gamma. ``clique_sizes`` are the sizes |C| of a partition of the silos. The
    last G of the proof lacks gamma, which is a misprint. The bound is unproven: the paper only
    sketches why the factor 1 + L^2 accounts for the round between request and broadcast.
    """
    try:
        sizes = list(clique_sizes)
    except TypeError:
        raise InputError(
            f"clique_sizes must be a list of integers, got {show(clique_sizes)}"
        ) from None
    if not sizes:
        raise InputError(f"clique_sizes must hold at least one clique, got {show(sizes)}")
    sizes = [integer(f"clique_sizes[{i}]", size, at_least=1) for i, size in enumerate(sizes)]
    t, m, d = checked_sizes(horizon, sum(sizes), dimension)
    hops = integer("gamma", gamma, at_least=1)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=hops)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
        gamma=hops,
    )
    total = sum(_periods(t, size, threshold, growth, hops) for size in sizes)
    return 2.0 * math.e * bar * hops * total
