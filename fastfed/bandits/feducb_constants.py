"""Constants of FedUCB (dubey-pentland-2020): bounds on its noise, its radius and its trigger.

Where the paper contradicts itself or its proofs, each function says how it is read. Logarithms are
natural unless log2 is written.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, reward_conditions
from fastfed.privacy.certificate import Condition
from fastfed.privacy.releases.gaussian_release import Privatizer, privatizer_levels
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes
from fastfed.protocols.plan import Clip, Radius
from fastfed.protocols.trigger import DETERMINANT, PRIVATE_DETERMINANT, Trigger

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


# ---- Regularizer, radius and trigger of a curve --------------------------------------------------

#: lambda of a silo without privacy, where the spec does not say.
PLAIN_RHO = 1.0


@dataclass(frozen=True)
class Federation:
    """The silos that share one estimator, and the whole that they are a part of.

    With a server: all silos in all rounds, ``whole`` None. Without one: a clique in a gamma-th of
    the rounds; failures are added up over all silos, all estimators and all ``cliques``.

    Parameters
    ----------
    problem : ProblemSpec
        Silos and rounds of this estimator.
    whole : ProblemSpec, optional
        All silos and rounds.
    gamma : int, default 1
        Estimators.
    cliques : int, default 1
        Cliques of the whole.
    """

    problem: ProblemSpec
    whole: ProblemSpec | None = None
    gamma: int = 1
    cliques: int = 1

    @property
    def all(self) -> ProblemSpec:
        """The whole, which is this part where there is a server."""
        return self.whole or self.problem


@dataclass(frozen=True)
class Constants:
    """Bounds on one silo's regularizer H and bias noise h.

    Parameters
    ----------
    rho_min, rho_max : float
        rho_min I <= H <= rho_max I.
    kappa : float
        Bound on ||h|| in H^-1.
    bounded, biased : bool
        True if the first and the second are proven at the actual noise, for all releases of all
        silos together, with probability 1 - alpha / 4 each.
    """

    rho_min: float
    rho_max: float
    kappa: float
    bounded: bool = True
    biased: bool = True

    @property
    def shift(self) -> float:
        """Multiple of I that is added to a silo's prefix sum."""
        return (self.rho_min + self.rho_max) / 2.0


def constants(config: Any, federation: Federation, noise: Privatizer | None) -> Constants:
    """rho_min, rho_max and kappa: as printed for "theorem", from the noise for "exact".

    A given rho_min stands for Lambda, so rho_max is three times that.
    """
    if noise is None:
        rho = PLAIN_RHO if config.rho_min is None else config.rho_min
        return Constants(rho, rho, 0.0)
    d, alpha = federation.problem.dimension, config.failure_probability
    n, gamma, silos = max(1, noise.releases), federation.gamma, federation.all.silos
    proven = noise_bound_from_std(d, silos, noise.noise_std, n, alpha, gamma=gamma)
    budget = noise.budget
    if config.rho_min is not None:
        rho = config.rho_min
    elif noise.calibration == "theorem":
        rho = noise_bound(d, silos, budget.epsilon, budget.delta, n, alpha, gamma=gamma)
    else:
        rho = proven
    least = bias_bound_from_std(d, silos, noise.noise_std, rho, n, alpha, gamma=gamma)
    kappa = least
    if noise.calibration == "theorem":
        kappa = bias_bound(d, silos, budget.epsilon, n, alpha, gamma=gamma)
    return Constants(rho, 3.0 * rho, kappa, bounded=rho >= proven, biased=kappa >= least)


def proposition_2(
    config: Any,
    federation: Federation,
    found: Constants,
    clip: Clip | None,
    released_only: bool,
) -> Theory:
    """Theory of Proposition 2, with its proof's constants.

    beta = R sqrt(2 ln(2/alpha) + ln det V - d ln(M rho_min)) + sqrt(M rho_max) + kappa sqrt(M).
    M counts the silos that share the estimator. ln det V stands without the factor d it is printed
    with, as its proof has it. The bound holds for one silo's order of events; where every silo has
    an order of its own (without lazy updates), "exact" takes it once for each: ln(2 M / alpha).
    Without a server every clique has an order of its own in every estimator.
    """
    problem, alpha = federation.problem, config.failure_probability
    m = problem.silos
    orders = federation.gamma * (federation.cliques if released_only else federation.all.silos)
    counted = config.calibration == "exact"
    base = 2.0 * math.log(2.0 * (orders if counted else 1) / alpha)
    low, high = m * found.rho_min, m * found.rho_max
    lam = np.array([low, m * found.shift])
    offset = math.sqrt(high) + found.kappa * math.sqrt(m)
    ordered = config.schedule == "fixed" or released_only or federation.all.silos == 1
    conditions = (
        *reward_conditions(problem, clip),
        Condition("every silo's regularizer lies between rho_min and rho_max", found.bounded),
        Condition("kappa exceeds the bias noise in every release", found.biased),
        Condition(
            "one order of events serves all silos, or the bound is taken for each",
            (orders == 1 or counted) and ordered,
        ),
        Condition(
            "the radius is that of Proposition 2 at least "
            f"(multiplier {config.radius_multiplier:g})",
            config.radius_multiplier >= 1.0,
        ),
    )
    return Theory(
        regularizer=lam,
        lambda_min=np.full(2, low),
        lambda_max=np.full(2, high),
        nu=np.full(2, found.kappa * math.sqrt(m)),
        radius=Radius(
            config.radius_multiplier,
            problem.reward_scale,
            base,
            np.full(2, offset),
            np.full(2, low),
            determinant=True,
            anchor=low,
        ),
        conditions=conditions,
    )


def threshold_of(config: Any, federation: Federation, found: Constants) -> float:
    """D: a number as given, or by the rule that ``communication`` names."""
    problem, low, high = federation.problem, found.rho_min, found.rho_max
    if not isinstance(config.communication, str):
        return float(config.communication)
    if federation.whole is None:
        sizes = problem.horizon, problem.silos, problem.dimension
        return threshold(config.communication, *sizes, low, high)
    if config.communication != "log-T":
        raise InputError(
            'communication must be "log-T", "MT" or a number without a server, got '
            f'"{config.communication}"'
        )
    sizes = federation.whole.horizon, problem.dimension, federation.gamma
    # Algorithm 3 divides by 1 + L^2 (line 6).
    return decentralised_threshold(*sizes, low, high) / 2.0


def trigger(
    config: Any, federation: Federation, found: Constants, noise: Privatizer | None
) -> Trigger | None:
    """The trigger of the schedule; None where the rounds of synchronisation are fixed."""
    if config.schedule == "fixed":
        return None
    bar = threshold_of(config, federation, found)
    # Without a server all silos have heard by the estimator's next round, and report after it.
    delay = 0 if federation.whole is None else 1
    if config.schedule == "determinant":
        extra = federation.problem.silos * (found.rho_max - found.rho_min)
        return Trigger(DETERMINANT, bar, extra, delay=delay)
    assert noise is not None
    std = noise.schedule_std, math.sqrt(2.0) * noise.schedule_std
    return Trigger(PRIVATE_DETERMINANT, bar, std=std, delay=delay)
