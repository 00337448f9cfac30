"""Bounds on the group regret of federated LinUCB (zhou-chowdhury-2024).

The paper states orders of growth without constants. In Table 1 and the corollaries it omits
logarithmic factors too. Each function evaluates the expression inside O(.) with natural logarithms
and multiplies it by `constant`. Only the growth with the arguments is proven, not the value.

Parameters
----------
All functions share these parameters. Invalid values raise InputError.

horizon : int
    T >= 1.
silos : int
    M >= 1.
dimension : int
    d >= 1.
batch_size : int
    B in [1, T].
epsilon, delta : float
    Privacy budget of one user, epsilon > 0 and delta in (0, 1).
failure_probability : float
    alpha in (0, 1].
constant : float
    Factor > 0 on an order of growth.

Notes
-----
Rewards in [0, 1], ||theta*|| <= 1 and ||phi|| <= 1 are assumed (Assumption 4.1).
"""

from __future__ import annotations

import math

from fastfed._validate import integer, number
from fastfed.bandits.problem import checked_batch, checked_budget, checked_constant, checked_sizes
from fastfed.privacy.releases.prefix_sums import depth


def _checked_alpha(failure_probability: float) -> float:
    """Check the failure probability alpha, and return it."""
    return number("failure_probability", failure_probability, above=0, at_most=1)


# ---- Table 1: the privacy cost -------------------------------------------------------------------


def privacy_cost_central_jdp(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the privacy cost in Table 1, first row (Shariff & Sheffet 2018).

    The cost is for one agent that serves all users in M T rounds. It is sqrt(M T) d^(3/4)
    ln^(1/4)(1/delta) / sqrt(epsilon). The order is proven, up to logarithms.

    Here T is ``horizon``, M ``silos`` and d ``dimension``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    cost = (
        math.sqrt(m * t) * math.pow(d, 0.75) * math.pow(-math.log(delta), 0.25) / math.sqrt(epsilon)
    )
    return checked_constant(constant) * cost


def privacy_cost_silo_ldp(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the privacy cost of silo-level LDP: zhou-chowdhury-2024, Table 1, second row.

    The cost is ``constant`` sqrt(T) (M d)^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon), by Theorem 5.1.
    This is M^(1/4) times the cost in the first row. T is ``horizon``, M is ``silos`` and d is
    ``dimension``. The paper proves the order up to logarithms, and leaves the constant open.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    cost = (
        math.sqrt(t) * math.pow(m * d, 0.75) * math.pow(-math.log(delta), 0.25) / math.sqrt(epsilon)
    )
    return checked_constant(constant) * cost


def privacy_cost_sdp(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the privacy cost in Table 1, third row (shuffle DP, from Theorems 5.3 and 5.5).

    The cost is sqrt(M T) d^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon), the same cost as in the first
    row. The order is proven, up to logarithms.

    Here T is ``horizon``, M ``silos`` and d ``dimension``.
    """
    return privacy_cost_central_jdp(horizon, silos, dimension, epsilon, delta, constant=constant)


# ---- Theorems 5.1, 5.3, 5.5 ----------------------------------------------------------------------


def non_private_regret(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the first term of Theorems 5.1, 5.3, 5.5 and Lemma C.4, without the privacy cost.

    The term is d M B ln T + d sqrt(M T) ln(M T / alpha), where T is ``horizon``, M ``silos`` and B
    ``batch_size``. The order is proven, the constant is not given.

    Here d is ``dimension`` and alpha ``failure_probability``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    b = checked_batch(batch_size, t)
    alpha = _checked_alpha(failure_probability)
    regret = d * m * b * math.log(t) + d * math.sqrt(m * t) * math.log(m * t / alpha)
    return checked_constant(constant) * regret


def theorem_5_1(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem 5.1 on the group regret under silo-level LDP.

    The bound is non_private_regret + (M d)^(3/4) sqrt(T / epsilon) ln^(1/4)(1/delta) ln^(1/4)(T/(B
    alpha)). The order is proven (the second term up to logarithms), the constant is not given.

    Here T is ``horizon``, M ``silos``, d ``dimension``, B ``batch_size`` and alpha
    ``failure_probability``.
    """
    base = non_private_regret(horizon, silos, dimension, batch_size, failure_probability)
    cost = privacy_cost_silo_ldp(horizon, silos, dimension, epsilon, delta)
    union = math.pow(math.log(horizon / (batch_size * failure_probability)), 0.25)
    return checked_constant(constant) * (base + cost * union)


def _shuffle_cost(t: int, m: int, d: int, epsilon: float, log: float) -> float:
    """Return d^(3/4) sqrt(M T) log^(3/4) / sqrt(epsilon), the privacy cost under shuffle DP.

    T, M and d are checked integers; ``log`` is the logarithm in the theorem.
    """
    return math.pow(d, 0.75) * math.sqrt(m * t) * math.pow(log, 0.75) / math.sqrt(epsilon)


def theorem_5_3(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem 5.3 on the group regret under shuffle DP by amplification.

    The bound is non_private_regret + d^(3/4) sqrt(M T / epsilon) ln^(3/4)(M kappa/delta)
    ln^(1/4)(T/(B alpha)) with kappa = floor(log2(T/B)) + 1. The theorem is stated only for budgets
    up to theorem_5_3_largest_budget, which are tiny. The order is proven, the constant is not
    given.

    Here T is ``horizon``, M ``silos``, d ``dimension``, B ``batch_size`` and alpha
    ``failure_probability``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    base = non_private_regret(t, m, d, batch_size, failure_probability)
    epsilon, delta = checked_budget(epsilon, delta)
    log = math.log(m * depth(t // batch_size) / delta)
    union = math.pow(math.log(t / (batch_size * failure_probability)), 0.25)
    return checked_constant(constant) * (base + _shuffle_cost(t, m, d, epsilon, log) * union)


def theorem_5_3_largest_budget(
    horizon: int, silos: int, batch_size: int, *, c1: float = 1.0, c2: float = 1.0
) -> tuple[float, float]:
    """Return the largest (epsilon, delta) for which Theorem 5.3 is stated.

    epsilon = sqrt(kappa) / (C1 T sqrt(M)) and delta = kappa / (C2 T). The paper does not give the
    constants C1, C2 > 0. The second value may exceed 1, and then does not restrict delta.

    Here T is ``horizon`` and M ``silos``.
    """
    t, m, _ = checked_sizes(horizon, silos, 1)
    kappa = depth(t // checked_batch(batch_size, t))
    c1 = number("c1", c1, above=0)
    c2 = number("c2", c2, above=0)
    return math.sqrt(kappa) / (c1 * t * math.sqrt(m)), kappa / (c2 * t)


def theorem_5_5(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem 5.5 on the group regret under shuffle DP by the vector sum.

    The bound is non_private_regret + d^(3/4) sqrt(M T / epsilon) ln^(3/4)(kappa d^2/delta)
    ln^(1/4)(T/(B alpha)) with kappa = floor(log2(T/B)) + 1, for epsilon up to
    theorem_5_5_largest_epsilon. The order is proven, the constant is not given.

    Here T is ``horizon``, M ``silos``, d ``dimension``, B ``batch_size`` and alpha
    ``failure_probability``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    base = non_private_regret(t, m, d, batch_size, failure_probability)
    epsilon, delta = checked_budget(epsilon, delta)
    log = math.log(depth(t // batch_size) * d**2 / delta)
    union = math.pow(math.log(t / (batch_size * failure_probability)), 0.25)
    return checked_constant(constant) * (base + _shuffle_cost(t, m, d, epsilon, log) * union)


def theorem_5_5_largest_epsilon(horizon: int, batch_size: int, delta: float) -> float:
    """Return the largest epsilon for which Theorem 5.5 is stated: 60 sqrt(2 kappa ln(2/delta))."""
    t = integer("horizon", horizon, at_least=1)
    kappa = depth(t // checked_batch(batch_size, t))
    delta = number("delta", delta, above=0, at_most=1)
    return 60.0 * math.sqrt(2.0 * kappa * math.log(2.0 / delta))


# ---- Appendix C: bounds in terms of the noise ----------------------------------------------------


def lemma_c2_beta(
    horizon: int,
    silos: int,
    dimension: int,
    failure_probability: float,
    lambda_min: float,
    lambda_max: float,
    nu: float,
) -> float:
    """Return the radius beta_T of Lemma C.2 at the end of the horizon, as printed.

    The radius is sqrt(2 ln(2/alpha) + d ln(1 + M T/(d lambda_min))) + sqrt(lambda_max) + nu, with
    ||H_t|| <= lambda_max, ||H_t^-1|| <= 1/lambda_min, ||h_t||_{H_t^-1} <= nu (Assumption C.1). The
    scale of the reward noise is R = 1.

    Here T is ``horizon``, M ``silos``, d ``dimension`` and alpha ``failure_probability``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    alpha = _checked_alpha(failure_probability)
    low = number("lambda_min", lambda_min, above=0)
    high = number("lambda_max", lambda_max, at_least=low)
    nu = number("nu", nu, at_least=0)
    growth = d * math.log1p(m * t / (d * low))
    return math.sqrt(2.0 * math.log(2.0 / alpha) + growth) + math.sqrt(high) + nu


def lemma_c2_regret(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    failure_probability: float,
    lambda_min: float,
    lambda_max: float,
    nu: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Lemma C.2 on the group regret, for any noise with Assumption C.1.

    The bound is beta_T sqrt(d M T ln(1 + M T/(d lambda_min))) + M B d ln(1 + M T/(d lambda_min)),
    with beta_T of lemma_c2_beta. The order is proven, the constant is not given.

    Here T is ``horizon``, M ``silos``, d ``dimension`` and B ``batch_size``.
    """
    beta = lemma_c2_beta(horizon, silos, dimension, failure_probability, lambda_min, lambda_max, nu)
    b = checked_batch(batch_size, horizon)
    log_term = math.log1p(silos * horizon / (dimension * lambda_min))
    good = beta * math.sqrt(dimension * silos * horizon * log_term)
    bad = silos * b * dimension * log_term
    return checked_constant(constant) * (good + bad)


def lemma_c4_regret(
    horizon: int,
    silos: int,
    dimension: int,
    batch_size: int,
    noise_std: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Lemma C.4 on the group regret, as a function of the noise.

    The bound is non_private_regret + sqrt(sigma M T ln(M T)) d^(3/4) ln^(1/4)(T/(B alpha)). Here
    sigma = noise_std >= 0 is the largest standard deviation of an entry of the noise in a
    synchronised prefix sum over all silos. It is sqrt(M kappa) s if each silo has a tree with node
    noise s and at most kappa nodes in a prefix. The order is proven, the constant is not given.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    base = non_private_regret(horizon, silos, dimension, batch_size, failure_probability)
    sigma = number("noise_std", noise_std, at_least=0)
    total = silos * horizon
    union = math.pow(math.log(horizon / (batch_size * failure_probability)), 0.25)
    cost = math.sqrt(sigma * total * math.log(total)) * math.pow(dimension, 0.75) * union
    return checked_constant(constant) * (base + cost)


# ---- Corollaries: the batch rule -----------------------------------------------------------------


def batch_size_corollary_5_2(horizon: int, silos: int) -> int:
    """Return B of Corollaries 5.2 and 5.4: sqrt(T/M), rounded to an integer >= 1.

    Here T is ``horizon`` and M ``silos``.
    """
    t, m, _ = checked_sizes(horizon, silos, 1)
    return max(1, math.floor(math.sqrt(t / m) + 0.5))


def synchronisations_corollary_5_2(horizon: int, silos: int) -> int:
    """Return T // B for B of batch_size_corollary_5_2, about sqrt(M T) synchronisations.

    Here T is ``horizon`` and M ``silos``.
    """
    return integer("horizon", horizon, at_least=1) // batch_size_corollary_5_2(horizon, silos)


def corollary_5_2(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the bound of Corollary 5.2 on the group regret under silo-level LDP, B = sqrt(T/M).

    The bound is d sqrt(M T) + sqrt(T) (M d)^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon). The order is
    proven, up to logarithms.

    Here T is ``horizon``, M ``silos`` and d ``dimension``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    cost = privacy_cost_silo_ldp(t, m, d, epsilon, delta)
    return checked_constant(constant) * (d * math.sqrt(m * t) + cost)


def corollary_5_4(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the bound of Corollary 5.4 on the group regret under shuffle DP by amplification.

    The bound is d sqrt(M T) + d^(3/4) sqrt(M T) ln^(3/4)(M kappa/delta) / sqrt(epsilon), for B =
    sqrt(T/M) and the kappa of synchronisations_corollary_5_2. The order is proven, up to
    logarithms.

    Here T is ``horizon``, M ``silos`` and d ``dimension``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    kappa = depth(synchronisations_corollary_5_2(t, m))
    cost = (
        math.pow(d, 0.75)
        * math.sqrt(m * t)
        * math.pow(math.log(m * kappa / delta), 0.75)
        / math.sqrt(epsilon)
    )
    return checked_constant(constant) * (d * math.sqrt(m * t) + cost)


def single_agent_central(
    horizon: int, silos: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> float:
    """Return the benchmark of Section 5.1: the regret of one trusted agent in M T rounds.

    The bound is d sqrt(M T) + sqrt(M T) d^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon) (Shariff &
    Sheffet 2018). The order is proven, up to logarithms.

    Here T is ``horizon``, M ``silos`` and d ``dimension``.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    cost = privacy_cost_central_jdp(t, m, d, epsilon, delta)
    return checked_constant(constant) * (d * math.sqrt(m * t) + cost)


# ---- Lower bounds: Appendix G.1 ------------------------------------------------------------------


def lower_bound_central_jdp(
    horizon: int, silos: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Return the lower bound under central joint privacy, for one agent that serves M T users.

    The bound is sqrt(M T) + 1 / epsilon, which is the bound sqrt(T) + 1 / epsilon of He et al. 2022
    for T users, with M T instead of T. It also holds for the shuffle model, which implies central
    joint privacy.

    Here T is ``horizon`` and M ``silos``.

    Parameters
    ----------
    horizon, silos, epsilon, constant
        As in the module's docstring.

    Returns
    -------
    float
        Group regret, in units of one reward. Only the growth with the arguments is proven. Privacy
        adds 1 / epsilon here, while the upper bounds have a factor 1 / sqrt(epsilon).

    Raises
    ------
    InputError
        For an invalid value. The message names the parameter.

    Notes
    -----
    Source: zhou-chowdhury-2024, Appendix G.1 (SDP).
    """
    t, m, _ = checked_sizes(horizon, silos, 1)
    epsilon = number("epsilon", epsilon, above=0)
    return checked_constant(constant) * (math.sqrt(m * t) + 1.0 / epsilon)


def lower_bound_silo_ldp(
    horizon: int, silos: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Return the lower bound under silo-level local privacy.

    The bound is sqrt(M T) + sqrt(M) / epsilon, which is `lower_bound_central_jdp` with epsilon /
    sqrt(M). If the sequences of all M T users are shuffled first, an algorithm with silo-level
    epsilon satisfies the shuffle model with roughly epsilon / sqrt(M), and has the same regret.

    Here T is ``horizon`` and M ``silos``.

    Parameters
    ----------
    horizon, silos, epsilon, constant
        As in the module's docstring.

    Returns
    -------
    float
        Group regret, in units of one reward. The paper only sketches the argument ("can potentially
        be established"), so the order is not proven.

    Raises
    ------
    InputError
        For an invalid value. The message names the parameter.

    Notes
    -----
    Source: zhou-chowdhury-2024, Appendix G.1 (silo-level LDP), after Lowy and Razaviyayn 2021.
    """
    t, m, _ = checked_sizes(horizon, silos, 1)
    epsilon = number("epsilon", epsilon, above=0)
    return lower_bound_central_jdp(t, m, epsilon / math.sqrt(m), constant=constant)
