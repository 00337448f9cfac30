"""Constants of FedUCB and bounds on its synchronisations and group regret: dubey-pentland-2020.

Noise of a prefix and thresholds of the trigger come first. Where the paper contradicts itself or
its proofs, each function says how it is read. Theorems 1 and 2 are printed as orders: they are
evaluated with natural logarithms and multiplied by `constant`. The other bounds carry their proofs'
constants, with the proofs' free nu = e. Logarithms are natural unless log2 is written.

Parameters
----------
The same names mean the same in all functions; bad values raise InputError.

horizon : int
    T >= 1.
silos : int
    M >= 1.
dimension : int
    d >= 1.
epsilon, delta : float
    Budget of one user, epsilon > 0 and delta in (0, 1).
failure_probability : float
    alpha in (0, 1].
feature_bound : float
    L > 0 with ||x|| <= L; rewards have |y| <= 1.
releases : int
    n >= 1, the reports of one tree: the number of batches if the schedule is fixed, else T.
gamma : int
    Algorithm 3's time to live, and so the number of estimators, each with a tree of
    n = ceil(T / gamma) releases; 1 for Algorithm 1.
rho_min, rho_max : float
    Bounds 0 < rho_min <= rho_max on the eigenvalues of a silo's regularizer H.
threshold : float
    D > 0 of the trigger (Algorithm 3's before it is divided by 1 + L^2).
kappa : float
    Bound >= 0 on the bias noise, 0 without privacy; not private also means rho_max = rho_min.
reward_scale : float
    sigma > 0: rewards are sigma-sub-Gaussian.
parameter_bound : float
    S > 0 with ||theta*|| <= S.
constant : float
    Factor > 0 on a printed order.

Notes
-----
G is `log_growth`.
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
    """n, checked."""
    return integer("releases", releases, at_least=1)


def _squared_norm(feature_bound: float) -> float:
    """L^2 + 1, the largest possible ||[x; y]||^2."""
    length = number("feature_bound", feature_bound, above=0)
    return length * length + 1.0


def _log_union(
    events: int, silos: int, releases: int, gamma: int, failure_probability: float
) -> float:
    """ln(events n M gamma / alpha), for the releases of all trees of all silos."""
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
    """Lambda of Section 4.3 as printed: above the noise's operator norm in each release.

    sqrt(32) m (L^2 + 1) ln(4/delta) (4 sqrt(d) + 2 ln(2 n M gamma/alpha)) / epsilon. With the shift
    2 Lambda I, once per prefix and not per node, rho_min = Lambda and rho_max = 3 Lambda
    (Proposition 4). Proven for the noise of `privacy.privatizer.node_noise_std`: never below
    `noise_bound_from_std`.
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
    """kappa of Proposition 4 as printed, meant as a bound on ||h|| in H^-1 in every release.

    sqrt(m (L^2 + 1) (sqrt(d) + 2 ln(2 n M gamma/alpha)) / (sqrt(2) epsilon)), the root over all.
    Unproven: delta is missing. At the noise of `privacy.privatizer.node_noise_std` it falls below
    `bias_bound_from_std` where delta is small: under 6e-4 for n = 1e5, M = 100, d = 10, epsilon 1
    and alpha .01, under 2e-2 for n = 7 and M = 10.
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
    """Lambda for any node noise (ours): s sqrt(p) (2 sqrt(d) + 2 sqrt(ln(8 n M gamma/alpha))).

    noise_std = s >= 0 is a node's std off the diagonal in layout goe2, p the most nodes in a prefix
    (`max_prefix_nodes`). Proven: above the operator norm in all releases with probability
    1 - alpha/4. The largest eigenvalue has mean at most 2 s sqrt(p d) and is sqrt(2 p) s-Lipschitz
    in the Gaussian entries; both signs are counted.
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
    """kappa for any node noise (ours): s sqrt(p) (sqrt(d) + sqrt(2 ln(4 n M gamma/alpha)))
    / sqrt(rho_min).

    Proven where H >= rho_min I: above ||h|| in H^-1 in all releases with probability 1 - alpha/4;
    noise_std = s and p as in `noise_bound_from_std`. The two bounds leave alpha/2 to the rewards.
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
    """G = ln(rho_max/rho_min + T L^2/(gamma d rho_min)), the logarithm in every bound.

    Proven at gamma = 1: ln det V - d ln(M rho_min) <= d G wherever all H <= rho_max I.
    """
    t = integer("horizon", horizon, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    low = number("rho_min", rho_min, above=0)
    high = number("rho_max", rho_max, at_least=low)
    length = number("feature_bound", feature_bound, above=0)
    grown = t * length * length / (integer("gamma", gamma, at_least=1) * d)
    return math.log1p(((high - low) + grown) / low)


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
    """D of the determinant trigger, Algorithm 1, line 12.

    "log-T", for O(M log T) communication: 2 T d / (G + 1), printed below Theorem 1. "M1.5", for
    O(M^1.5 d^3): T ln(M T) / (d M), which is Wang et al. 2020's; Remark 1 refers to them and prints
    none. At M = T = 1 that is 0. O(M T) has no threshold: synchronise after every round.
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
    """D of Algorithm 3: 2 (T/gamma) d / (G + 1), with gamma in G, as each estimator lives T/gamma.

    The paper gives none ("identical"), this is its "log-T" for one estimator. Algorithm 3 divides
    by 1 + L^2 in its line 6, not here.
    """
    t = integer("horizon", horizon, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    estimators = integer("gamma", gamma, at_least=1)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=estimators)
    return 2.0 * t * d / (estimators * (growth + 1.0))


# ---- Argument checks of the bounds, and terms that they share ------------------------------------


def _threshold(threshold: float) -> float:
    """D, checked."""
    return number("threshold", threshold, above=0)


def _log_failure(failure_probability: float) -> float:
    """ln(2/alpha)."""
    alpha = number("failure_probability", failure_probability, above=0, at_most=1)
    return math.log(2.0) - math.log(alpha)


def _scale(reward_scale: float) -> float:
    """sigma, checked."""
    return number("reward_scale", reward_scale, above=0)


def _offset(silos: int, rho_max: float, kappa: float, parameter_bound: float) -> float:
    """S sqrt(M rho_max) + kappa sqrt(M): the radius' terms for regularizers and noise."""
    norm = number("parameter_bound", parameter_bound, above=0)
    bias = number("kappa", kappa, at_least=0)
    return math.sqrt(silos) * (norm * math.sqrt(rho_max) + bias)


def _periods(horizon: int, clique: int, threshold: float, growth: float, gamma: int) -> float:
    """Good and bad periods of one clique and estimator; growth = d G."""
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
    """Proposition 1 as the main text prints it: 2 sqrt(d T/D) G + 4.

    A misprint of the appendix: for small G it is no bound.
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
    """Proposition 1 as the appendix prints it (Proposition 5): 2 sqrt(d T G/D) + 4.

    Proven without privacy, though not by the proof given, which needs d G <= 2 D: a period of
    length t_k raises ln det S by at least D/t_k, and by Cauchy-Schwarz there are no more than
    sqrt(d T G/D) of them. With privacy unproven: the trigger's own M (rho_max - rho_min) I fires.
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
    """Equation (6) in the proof of Proposition 1: 2 sqrt(d T G/D) + d G/D + 2.

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
    """B = ceil(T / ceil(n)) of a fixed schedule, n of Proposition 1 (appendix) at the threshold D.

    Ours: as rarely as the determinant schedule is said to synchronise, on dates that depend on no
    data. B is in [1, T]. With rho_min and rho_max of `noise_bound` at T releases, T // B is the
    number of releases for which the noise may be calibrated anew.
    """
    t, _, d = checked_sizes(horizon, 1, dimension)
    most = proposition_1_appendix(t, d, threshold, rho_min, rho_max, feature_bound=feature_bound)
    return -(-t // math.ceil(most))


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
    """The largest radius of any round (proof of Proposition 6, at t = T).

    sigma sqrt(2 ln(2/alpha) + d G) + S sqrt(M rho_max) + kappa sqrt(M). Proven at gamma = 1: while
    rho_min and rho_max hold, no beta of Proposition 2 is larger, with ln det V - d ln(M rho_min) as
    its proof has it (the statement prints d ln det V). beta itself is proven for one silo (pass
    failure_probability / M to cover all) and a fixed schedule; the determinant's needs a filtration
    that no proof has given (zhou-chowdhury-2024, footnote 5). gamma > 1 covers rounds after a
    clique's first synchronisation.
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
    """Theorem 1, group regret at the threshold "log-T", as printed.

    sigma sqrt(M T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)). The order is not
    what the proof gives: from `theorem_1_explicit` it drops sqrt(d) beside G and sqrt(G) beside the
    other terms, and it multiplies the last two by sigma. Beside a curve draw `theorem_1_two_terms`.
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
    """Theorem 1's proof for any threshold D, before it chooses one.

    2 e beta_bar (sqrt(2 M T d G) + M sqrt(D) (d G + 1)), for L^2 <= M rho_min. The order is proven
    as far as `beta_bar`; the constant leaves out the round that triggers.
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
    """The last line of Theorem 1's proof before its O: 4 e beta_bar sqrt(2 M T d (G + 1)).

    Unproven: at its own D = 2 T d / (G + 1) the second of the two terms is larger than the first
    by about sqrt(M) d, which is dropped here.
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
    """Theorem 2, group regret of Algorithm 3, as printed but for its root.

    sigma sqrt(M cliques gamma T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)),
    where `cliques` in [1, M] cover the graph's gamma-th power; T d is read inside the root, as the
    proof has it. The order is unproven, for what is missing in `theorem_1`.
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
    """Theorem 2's proof for any threshold D: the sum over cliques C and gamma estimators.

    2 e beta_bar gamma sum_C (sqrt(2 |C| (T/gamma) d G) + |C| sqrt(D) (d G + 1)), gamma in G and
    beta_bar, clique_sizes the |C| of a partition of the silos. The proof's last G lacks gamma: a
    misprint. Unproven: that 1 + L^2 pays for the round between request and broadcast is only
    sketched.
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
