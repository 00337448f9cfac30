"""Bounds on the group regret of federated LinUCB (zhou-chowdhury-2024).

The paper states orders of growth without constants. In Table 1 and the corollaries it also omits
logarithmic factors. Each function evaluates the expression inside O(.) with natural logarithms
and multiplies it by the ``constant`` of its `BoundSetting`. Only the growth with the arguments is
proven, not the value. In all formulas T is ``horizon`` (rounds of each silo), M ``silos``, d
``dimension``, B ``batch_size``, alpha ``failure_probability``, and epsilon and delta are the budget
of one user.

Rewards in [0, 1], ||theta*|| <= 1 and ||phi|| <= 1 are assumed (Assumption 4.1).
"""

from __future__ import annotations

import math

import msgspec

from fastfed._validate import integer, number
from fastfed.bandits.problem import BoundSetting
from fastfed.privacy.releases.prefix_sums import depth

# ---- Table 1: the privacy cost -------------------------------------------------------------------


def privacy_cost_central_jdp(setting: BoundSetting) -> float:
    """Return the privacy cost in Table 1, first row (Shariff & Sheffet 2018).

    The privacy cost is the term that privacy adds to the bound on group regret. The first row is
    for one agent that serves all users in M T rounds. Its cost is sqrt(M T) d^(3/4)
    ln^(1/4)(1/delta) / sqrt(epsilon). The third row of the table (shuffle DP, from Theorems 5.3 and
    5.5) has the same cost. The order is proven, up to logarithms.
    """
    t, m, d = setting.sizes
    log = -math.log(setting.value("delta"))
    cost = math.sqrt(m * t) * math.pow(d, 0.75) * math.pow(log, 0.25)
    return setting.constant * (cost / math.sqrt(setting.value("epsilon")))


def privacy_cost_silo_ldp(setting: BoundSetting) -> float:
    """Return the privacy cost in Table 1, second row (silo-level LDP, Theorem 5.1).

    The privacy cost is the term that privacy adds to the bound on group regret. It is sqrt(T)
    (M d)^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon), which is M^(1/4) times the cost of one central
    agent (`privacy_cost_central_jdp`). The order is proven, up to logarithms.
    """
    return math.pow(setting.silos, 0.25) * privacy_cost_central_jdp(setting)


# ---- Theorems 5.1, 5.3, 5.5 ----------------------------------------------------------------------


def non_private_regret(setting: BoundSetting) -> float:
    """Return the first term of Theorems 5.1, 5.3, 5.5 and Lemma C.4, without the privacy cost.

    The term is d M B ln T + d sqrt(M T) ln(M T / alpha). The order is proven, the constant is not
    given.
    """
    t, m, d = setting.sizes
    regret = d * m * setting.batch_size * math.log(t)
    regret += d * math.sqrt(m * t) * math.log(m * t / setting.value("failure_probability"))
    return setting.constant * regret


def _union(setting: BoundSetting) -> float:
    """Return ln^(1/4)(T/(B alpha)), the factor of a privacy cost for the union over T/B batches."""
    batches_per_alpha = setting.horizon / (
        setting.batch_size * setting.value("failure_probability")
    )
    return math.pow(math.log(batches_per_alpha), 0.25)


def theorem_5_1(setting: BoundSetting) -> float:
    """Return the bound of Theorem 5.1 on the group regret under silo-level LDP.

    The bound is non_private_regret + (M d)^(3/4) sqrt(T / epsilon) ln^(1/4)(1/delta) ln^(1/4)(T/(B
    alpha)), with the letters of `BoundSetting`. The order is proven (the second term up to
    logarithms), the constant is not given.
    """
    return non_private_regret(setting) + privacy_cost_silo_ldp(setting) * _union(setting)


def _shuffle_cost(setting: BoundSetting, log: float) -> float:
    """Return d^(3/4) sqrt(M T) log^(3/4) / sqrt(epsilon), the privacy cost under shuffle DP.

    ``log`` is the logarithm that the protocol's theorem states, such as ln(M kappa/delta).
    """
    t, m, d = setting.sizes
    cost = math.pow(d, 0.75) * math.sqrt(m * t) * math.pow(log, 0.75)
    return setting.constant * (cost / math.sqrt(setting.value("epsilon")))


def _levels(setting: BoundSetting) -> int:
    """Return kappa = floor(log2(T/B)) + 1, the number of levels of the tree over batches."""
    return depth(setting.horizon // setting.batch_size)


def theorem_5_3(setting: BoundSetting) -> float:
    """Return the bound of Theorem 5.3 on the group regret under shuffle DP by amplification.

    The bound is non_private_regret + d^(3/4) sqrt(M T / epsilon) ln^(3/4)(M kappa/delta)
    ln^(1/4)(T/(B alpha)) with kappa = floor(log2(T/B)) + 1. The theorem is stated only for budgets
    up to theorem_5_3_largest_budget, which are tiny. The order is proven, the constant is not
    given.
    """
    log = math.log(setting.silos * _levels(setting) / setting.value("delta"))
    return non_private_regret(setting) + _shuffle_cost(setting, log) * _union(setting)


def theorem_5_3_largest_budget(
    setting: BoundSetting, *, c1: float = 1.0, c2: float = 1.0
) -> tuple[float, float]:
    """Return the largest (epsilon, delta) for which Theorem 5.3 is stated.

    epsilon = sqrt(kappa) / (C1 T sqrt(M)) and delta = kappa / (C2 T), with kappa =
    floor(log2(T/B)) + 1. The paper does not give the constants C1 and C2 > 0, which are ``c1`` and
    ``c2`` here. If the returned delta exceeds 1, the theorem does not restrict delta.
    """
    t, m, _ = setting.sizes
    kappa = _levels(setting)
    epsilon = math.sqrt(kappa) / (number("c1", c1, above=0) * t * math.sqrt(m))
    return epsilon, kappa / (number("c2", c2, above=0) * t)


def theorem_5_5(setting: BoundSetting) -> float:
    """Return the bound of Theorem 5.5 on the group regret under shuffle DP by the vector sum.

    The vector sum is the protocol in which users send bits, of which only sums are visible. The
    bound is non_private_regret + d^(3/4) sqrt(M T / epsilon) ln^(3/4)(kappa d^2/delta)
    ln^(1/4)(T/(B alpha)) with kappa = floor(log2(T/B)) + 1 and the letters of `BoundSetting`, for
    epsilon up to theorem_5_5_largest_epsilon. The order is proven, the constant is not given.
    """
    log = math.log(_levels(setting) * setting.dimension**2 / setting.value("delta"))
    return non_private_regret(setting) + _shuffle_cost(setting, log) * _union(setting)


def theorem_5_5_largest_epsilon(setting: BoundSetting) -> float:
    """Return the largest epsilon for which Theorem 5.5 is stated: 60 sqrt(2 kappa ln(2/delta)).

    kappa = floor(log2(T/B)) + 1 is the number of levels of the tree over batches.
    """
    return 60.0 * math.sqrt(2.0 * _levels(setting) * math.log(2.0 / setting.value("delta")))


# ---- Appendix C: bounds in terms of the noise ----------------------------------------------------


def _log_growth(setting: BoundSetting, lambda_min: float) -> float:
    """Return ln(1 + M T/(d lambda_min)), an upper bound on the growth of ln det V, divided by d."""
    t, m, d = setting.sizes
    return math.log1p(m * t / (d * number("lambda_min", lambda_min, above=0)))


def lemma_c2_beta(setting: BoundSetting, lambda_min: float, lambda_max: float, nu: float) -> float:
    """Return the radius beta_T of Lemma C.2 at the end of the horizon, as printed.

    The radius is sqrt(2 ln(2/alpha) + d ln(1 + M T/(d lambda_min))) + sqrt(lambda_max) + nu. H_t is
    the regularizer plus the noise in the Gram matrix, and h_t the noise in the bias sum. They
    satisfy ||H_t|| <= lambda_max, ||H_t^-1|| <= 1/lambda_min and ||h_t||_{H_t^-1} <= nu (Assumption
    C.1). The sub-Gaussian scale of the reward noise is R = 1. ``constant`` is not used.
    """
    growth = setting.dimension * _log_growth(setting, lambda_min)
    log_failure = math.log(2.0 / setting.value("failure_probability"))
    high = number("lambda_max", lambda_max, at_least=lambda_min)
    return math.sqrt(2.0 * log_failure + growth) + math.sqrt(high) + number("nu", nu, at_least=0)


def lemma_c2_regret(
    setting: BoundSetting, lambda_min: float, lambda_max: float, nu: float
) -> float:
    """Return the bound of Lemma C.2 on the group regret, for any noise with Assumption C.1.

    The bound is beta_T sqrt(d M T ln(1 + M T/(d lambda_min))) + M B d ln(1 + M T/(d lambda_min)).
    beta_T, Assumption C.1 and its bounds ``lambda_min``, ``lambda_max`` and ``nu`` are those of
    `lemma_c2_beta`. The order is proven, the constant is not given.
    """
    t, m, d = setting.sizes
    growth = _log_growth(setting, lambda_min)
    main_term = lemma_c2_beta(setting, lambda_min, lambda_max, nu) * math.sqrt(d * m * t * growth)
    return setting.constant * (main_term + m * setting.batch_size * d * growth)


def lemma_c4_regret(setting: BoundSetting, noise_std: float) -> float:
    """Return the bound of Lemma C.4 on the group regret, as a function of the noise.

    The bound is non_private_regret + sqrt(sigma M T ln(M T)) d^(3/4) ln^(1/4)(T/(B alpha)). Here
    sigma = noise_std >= 0 is the largest standard deviation of an entry of the noise in a
    synchronised prefix sum over all silos. If each silo has a tree whose nodes have noise of
    standard deviation s, and a prefix sum adds at most kappa nodes, sigma is sqrt(M kappa) s. The
    order is proven, the constant is not given.
    """
    t, m, d = setting.sizes
    sigma = number("noise_std", noise_std, at_least=0)
    cost = math.sqrt(sigma * m * t * math.log(m * t)) * math.pow(d, 0.75) * _union(setting)
    return non_private_regret(setting) + setting.constant * cost


# ---- Corollaries: the batch rule -----------------------------------------------------------------


def batch_size_corollary_5_2(horizon: int, silos: int) -> int:
    """Return B of Corollaries 5.2 and 5.4: sqrt(T/M), rounded to an integer >= 1."""
    t = integer("horizon", horizon, at_least=1)
    return max(1, math.floor(math.sqrt(t / integer("silos", silos, at_least=1)) + 0.5))


def synchronisations_corollary_5_2(horizon: int, silos: int) -> int:
    """Return T // B, the number of synchronisations with B of `batch_size_corollary_5_2`.

    It is about sqrt(M T).
    """
    return integer("horizon", horizon, at_least=1) // batch_size_corollary_5_2(horizon, silos)


def _order_without_privacy(setting: BoundSetting) -> float:
    """Return d sqrt(M T), the regret without privacy, which is the first term of every corollary.

    It is multiplied by the ``constant`` of ``setting``.
    """
    t, m, d = setting.sizes
    return setting.constant * (d * math.sqrt(m * t))


def corollary_5_2(setting: BoundSetting) -> float:
    """Return the bound of Corollary 5.2 on the group regret under silo-level LDP, B = sqrt(T/M).

    The bound is d sqrt(M T) + sqrt(T) (M d)^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon). The order is
    proven, up to logarithms.
    """
    return _order_without_privacy(setting) + privacy_cost_silo_ldp(setting)


def corollary_5_4(setting: BoundSetting) -> float:
    """Return the bound of Corollary 5.4 on the group regret under shuffle DP by amplification.

    The bound is d sqrt(M T) + d^(3/4) sqrt(M T) ln^(3/4)(M kappa/delta) / sqrt(epsilon), for B =
    sqrt(T/M). kappa is the number of levels of a tree over `synchronisations_corollary_5_2`
    batches. The order is proven, up to logarithms.
    """
    t, m, _ = setting.sizes
    kappa = depth(synchronisations_corollary_5_2(t, m))
    log = math.log(m * kappa / setting.value("delta"))
    return _order_without_privacy(setting) + _shuffle_cost(setting, log)


def single_agent_central(setting: BoundSetting) -> float:
    """Return the benchmark of Section 5.1: the regret of one trusted agent in M T rounds.

    The bound is d sqrt(M T) + sqrt(M T) d^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon) (Shariff &
    Sheffet 2018). The order is proven, up to logarithms.
    """
    return _order_without_privacy(setting) + privacy_cost_central_jdp(setting)


# ---- Lower bounds: Appendix G.1 ------------------------------------------------------------------


def lower_bound_central_jdp(setting: BoundSetting) -> float:
    """Return the lower bound on regret under central joint privacy, for one agent and M T users.

    The bound is sqrt(M T) + 1 / epsilon, which is the bound sqrt(T) + 1 / epsilon of He et al. 2022
    for T users, with M T instead of T. It also holds for the shuffle model, which implies central
    joint privacy. Only the growth with the arguments is proven. Privacy adds 1 / epsilon to this
    lower bound, while the privacy cost in the upper bounds is proportional to 1 / sqrt(epsilon).
    """
    t, m, _ = setting.sizes
    return setting.constant * (math.sqrt(m * t) + 1.0 / setting.value("epsilon"))


def lower_bound_silo_ldp(setting: BoundSetting) -> float:
    """Return the lower bound on group regret under silo-level local privacy, which is not proven.

    The bound is sqrt(M T) + sqrt(M) / epsilon, which is `lower_bound_central_jdp` with epsilon /
    sqrt(M) instead of epsilon. The reason for this replacement: if the sequences of all M T users
    are shuffled first, an algorithm with silo-level epsilon satisfies the shuffle model with
    roughly epsilon / sqrt(M), and has the same regret (after Lowy and Razaviyayn 2021). The paper
    only sketches the argument ("can potentially be established").
    """
    epsilon = setting.value("epsilon") / math.sqrt(setting.silos)
    return lower_bound_central_jdp(msgspec.structs.replace(setting, epsilon=epsilon))
