"""FedUCB's constants: bounds on the privatizer's noise, and the trigger: dubey-pentland-2020.

Where the paper contradicts itself or its proofs, each function says how it is read. Logarithms are
natural unless log2 is written.

Arguments throughout: horizon T >= 1, silos M >= 1, dimension d >= 1, epsilon > 0, delta in (0, 1),
failure_probability alpha in (0, 1], feature_bound L > 0 with ||x|| <= L, and |y| <= 1. `releases`
n >= 1 is how often one tree reports: the number of batches if the schedule is fixed, T if it is
not. gamma >= 1 is Algorithm 3's time to live, and so the number of estimators, each with a tree of
n = ceil(T / gamma) releases; 1 is Algorithm 1. 0 < rho_min <= rho_max bound the eigenvalues of a
silo's regularizer H. Bad values raise InputError.
"""

from __future__ import annotations

import math

from fastfed._validate import choice, integer, number
from fastfed.privacy.privatizer import privatizer_levels
from fastfed.privacy.tree import max_prefix_nodes

THRESHOLDS = ("log-T", "M1.5")


def _releases(releases: int) -> int:
    return integer("releases", releases, at_least=1)


def _squared_norm(feature_bound: float) -> float:
    """L^2 + 1, the most that ||[x; y]||^2 can be."""
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


# -- Section 4.3: bounds on the noise of a prefix --------------------------------------------------


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
    """Lambda of Section 4.3 as printed, above the noise's operator norm in every release.

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
    """kappa of Proposition 4 as printed, meant to lie above ||h|| in H^-1 in every release.

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


# -- The trigger -----------------------------------------------------------------------------------


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
