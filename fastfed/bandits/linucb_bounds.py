"""Upper bounds on the regret of one private agent, and its batch rules (chowdhury-zhou-2022).

The privacy cost in every bound is the term d^(3/4) sqrt(sigma T) of `lemma_a_4`, where sigma is the
total noise of a protocol with the logarithms that the paper keeps. The paper prints bounds and
batch rules as orders of growth. They are evaluated with natural logarithms and multiplied by
`constant`. Only the growth is proven, except in `lemma_a_2`, which has the constants of its proof.

The paper's results drop the term d sqrt(T) ln(T/alpha) of `lemma_a_4`. If this term exceeds the
second term of B.1, C.1, E.3, E.5 or F.1, the first term of the bound is already above T, up to
constants and except for large epsilon, so dropping it makes no difference. In F.3 and E.7 it makes
a difference, and the docstrings state for which arguments.

Parameters
----------
All functions share these parameters. Invalid values raise InputError.

horizon : int
    T >= 1.
dimension : int
    d >= 1.
batch_size : int
    B in [1, T]. M = T/B is not rounded.
epsilon, delta : float
    Privacy budget of one user, epsilon > 0 and delta in (0, 1). The orders are meant for
    delta <= 1/2. The ranges for which a theorem guarantees privacy are not checked, because the
    regret does not depend on them.
failure_probability : float
    alpha in (0, 1].
constant : float
    Factor > 0 on an order of growth.

Notes
-----
||theta*|| <= 1, ||phi|| <= 1 and rewards in [0, 1] are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fastfed._validate import boolean, choice, integer, number
from fastfed.bandits.problem import checked_batch, checked_budget, checked_constant


def _checked_sizes(horizon: int, dimension: int) -> tuple[int, int]:
    """Check the horizon T and the dimension d, and return them."""
    return integer("horizon", horizon, at_least=1), integer("dimension", dimension, at_least=1)


def _checked_arguments(
    horizon: int, dimension: int, batch_size: int, epsilon: float, delta: float
) -> tuple[int, int, int, float, float]:
    """Check the arguments, and return T, d, B, epsilon and delta."""
    t, d = _checked_sizes(horizon, dimension)
    return t, d, checked_batch(batch_size, t), *checked_budget(epsilon, delta)


def _ln(count: float, probability: float) -> float:
    """Return ln(count/probability), without overflow for tiny probabilities."""
    return math.log(count) - math.log(probability)


def _log_failure(horizon: int, failure_probability: float) -> float:
    """Return ln(T/alpha) for the horizon T and the failure probability alpha."""
    return _ln(horizon, number("failure_probability", failure_probability, above=0, at_most=1))


def _cost(noise: float, t: int, d: int) -> float:
    """Return d^(3/4) sqrt(sigma T), the privacy cost of noise with standard deviation sigma."""
    return math.pow(d, 0.75) * math.sqrt(noise) * math.sqrt(t)


# ---- Appendix A: bounds in terms of the noise ----------------------------------------------------


def lemma_a_2(
    horizon: int, dimension: int, batch_size: int, beta: float, lambda_min: float
) -> float:
    """Return the bound of Lemma A.2 on the regret of any batched LinUCB, with explicit constants.

    The bound is d B G/(2 ln 2) + 4 beta sqrt(2 d T G), G = ln(1 + T/(d lambda_min)). beta >= 1 is
    the largest radius of any batch. Every H_m, the regularizer plus noise, must have eigenvalues >=
    lambda_min > 0. The bound is proven if the regret of a round is at most 1, on the event that the
    eigenvalues are that large and no confidence set fails. With the paper's radii the proof gives
    this event probability 1 - 2 alpha. The lemma states 1 - alpha.

    Here T is ``horizon``, d ``dimension`` and B ``batch_size``.
    """
    t, d = _checked_sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    radius = number("beta", beta, at_least=1)
    growth = math.log1p(t / (d * number("lambda_min", lambda_min, above=0)))
    bad = d * b * growth / (2.0 * math.log(2.0))
    return bad + 4.0 * radius * math.sqrt(2.0 * d * t * growth)


def lemma_a_4(
    horizon: int,
    dimension: int,
    batch_size: int,
    noise_std: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the regret bound of Lemma A.4 of Chowdhury and Zhou (2022), which depends on noise.

    The bound is d B ln T + d sqrt(T) ln(T/alpha) + d^(3/4) sqrt(sigma T) ln T ln(T/alpha). Here
    alpha is ``failure_probability``, and sigma = ``noise_std`` >= 0 is the largest standard
    deviation of an entry of the noise in any prefix sum (0 for `linucb`). The paper proves the
    order if the regularizer is large enough. It does not give the constant, ``constant`` here. All
    other bounds of this module follow from this lemma.

    Here T is ``horizon``, d ``dimension`` and B ``batch_size``.
    """
    t, d = _checked_sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    sigma = number("noise_std", noise_std, at_least=0)
    log_failure = _log_failure(t, failure_probability)
    plain = d * b * math.log(t) + d * math.sqrt(t) * log_failure
    return checked_constant(constant) * (plain + _cost(sigma, t, d) * math.log(t) * log_failure)


# ---- Unique users: Theorems 3.2, B.1, C.1 --------------------------------------------------------


def _two_terms(t: int, d: int, b: int, noise: float, alpha: float, constant: float) -> float:
    """Return d B ln T + d^(3/4) sqrt(sigma T) ln T ln(T/alpha), times ``constant``.

    T, d and B are checked integers, sigma is ``noise``, and alpha the failure probability.
    """
    cost = _cost(noise, t, d) * _log_failure(t, alpha)
    return checked_constant(constant) * (d * b + cost) * math.log(t)


def theorem_3_2(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem 3.2 on the regret of `linucb-sdp-amp`, from the main text.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(B/delta) / sqrt(epsilon) ln^2(T/alpha).
    The order is proven, because for B >= 2 it is `theorem_b_1` with larger logarithms. The constant
    is not given.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    noise = math.sqrt(t / b) * _ln(b, delta) / epsilon
    cost = _cost(noise, t, d) * _log_failure(t, failure_probability) ** 2
    return checked_constant(constant) * (d * b * math.log(t) + cost)


def theorem_b_1(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem B.1 on the regret of `linucb-sdp-amp`.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) (ln(B/delta) ln(2/delta))^(1/4) / sqrt(epsilon)
    ln T ln(T/alpha). The paper proves the order for the theorem's noise, and gives no constant. For
    this noise to be O(epsilon, delta)-SDP, the printed condition epsilon <= sqrt(ln(2/delta)/B)
    does not suffice. Lemma B.4 also needs epsilon sqrt(B/ln(2/delta)) <= ln(B/(16 ln(4/delta))),
    and so large batches.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    noise = math.sqrt(t / b * _ln(b, delta) * _ln(2, delta)) / epsilon
    return _two_terms(t, d, b, noise, failure_probability, constant)


def theorem_c_1(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem C.1 on the regret of `linucb-sdp-vec`.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(d^2/delta) / sqrt(epsilon) ln T
    ln(T/alpha), for epsilon <= 15 and delta < 1/2. The paper proves the order, and gives no
    constant. Theorem 3.5 has ln^2(T/alpha) instead of the last two logarithms.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    noise = math.sqrt(t / b) * _ln(d * d, delta) / epsilon
    return _two_terms(t, d, b, noise, failure_probability, constant)


# ---- Several participations: Theorems E.3 and E.5, Proposition E.7 -------------------------------


def theorem_e_3(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    printed: bool = False,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem E.3 on the regret of `linucb-sdp-amp` with returning users.

    A user takes part at most once in every batch. The bound is d B ln T + d^(3/4) T/sqrt(B)
    (ln(T/delta) ln(M/delta) ln(2/delta))^(1/4) / sqrt(epsilon) ln T ln(T/alpha), with M = T/B. The
    order is proven for the noise of Theorem B.1 with the budget of one batch, (epsilon_m, delta_m).
    The constant is not given. In one logarithm the paper has delta instead of delta_m, so its noise
    is too small. ``printed`` = True computes the paper's bound for that noise, with ln(2/delta)
    instead of ln(M/delta).

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    log_batch_delta = _ln(2, delta) if boolean("printed", printed) else _ln(t / b, delta)
    noise = t / b * math.sqrt(_ln(t, delta) * log_batch_delta * _ln(2, delta)) / epsilon
    return _two_terms(t, d, b, noise, failure_probability, constant)


def theorem_e_5(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Theorem E.5 on the regret of `linucb-sdp-vec` with returning users.

    A user takes part at most once in every batch. The bound is
    d B ln T + d^(3/4) T/sqrt(B) ln^(3/4)(d^2 M/delta) / sqrt(epsilon) ln T ln(T/alpha), with
    M = T/B, for epsilon <= 15 and delta < 1/2. The paper proves the order, and gives no constant.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    noise = t / b * math.pow(_ln(d * d * (t / b), delta), 1.5) / epsilon
    return _two_terms(t, d, b, noise, failure_probability, constant)


def proposition_e_7(
    horizon: int,
    dimension: int,
    epsilon: float,
    delta: float,
    rounds_per_user: int,
    *,
    constant: float = 1.0,
) -> float:
    """Return the privacy cost in Proposition E.7, for `linucb-jdp` with returning users.

    d^(3/4) sqrt(M0 T) ln^(1/4)(1/delta) / sqrt(epsilon), where M0 = rounds_per_user in [1, T] is
    the largest number of rounds of one user. The order is proven up to logarithms if d epsilon^2 <=
    M0^2 ln(1/delta). Otherwise the dropped term d sqrt(T) is larger.

    Here T is ``horizon`` and d ``dimension``.
    """
    t, d = _checked_sizes(horizon, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    rounds = integer("rounds_per_user", rounds_per_user, at_least=1, at_most=t)
    return checked_constant(constant) * _cost(rounds * math.sqrt(_ln(1, delta)) / epsilon, t, d)


# ---- Local and central: Propositions F.1 and F.3 -------------------------------------------------


def proposition_f_1(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Proposition F.1 on the regret of `linucb-ldp` in batches.

    The bound is d B + d^(3/4) T^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon) ln(T/alpha), for epsilon <=
    1. epsilon and delta are the budget of each message. The order is proven except for a missing
    factor ln T of d B. The constant is not given.

    Here T is ``horizon``, d ``dimension``, B ``batch_size`` and alpha ``failure_probability``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    cost = _cost(math.sqrt(t * _ln(1, delta)) / epsilon, t, d)
    return checked_constant(constant) * (d * b + cost * _log_failure(t, failure_probability))


def proposition_f_3(
    horizon: int,
    dimension: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the bound of Proposition F.3 on the regret of `linucb-jdp` in batches.

    The bound is d B + d^(3/4) sqrt(T) ln^(1/4)(1/delta) / sqrt(epsilon) ln(T/alpha), with alpha =
    ``failure_probability``, for epsilon <= 1 and a trusted agent with a tree over batches. The
    paper proves the order up to logarithms of T if d epsilon^2 <= ln(1/delta). Otherwise the term
    d sqrt(T) ln(T/alpha), which the paper drops, is larger. It does not give the constant.

    Here T is ``horizon``, d ``dimension`` and B ``batch_size``.
    """
    t, d, b, epsilon, delta = _checked_arguments(horizon, dimension, batch_size, epsilon, delta)
    cost = _cost(math.sqrt(_ln(1, delta)) / epsilon, t, d)
    return checked_constant(constant) * (d * b + cost * _log_failure(t, failure_probability))


# ---- Batch rules ---------------------------------------------------------------------------------

# For each rule: the exponent a of the total noise as a function of B, B^-a, and a function of T, d
# and delta that returns epsilon times this noise at B = 1.
_RULES: dict[str, tuple[float, Callable[[int, int, float], float]]] = {
    "B.2": (0.5, lambda t, d, delta: math.sqrt(t * _ln(t, delta) * _ln(2, delta))),
    "B.3": (0.0, lambda t, d, delta: math.sqrt(t * _ln(1, delta))),
    "C.2": (0.5, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "C.3": (0.0, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "E.4": (1.0, lambda t, d, delta: t * math.pow(_ln(t, delta), 1.5)),
    "E.6": (1.0, lambda t, d, delta: t * math.pow(_ln(t * d * d, delta), 1.5)),
}


def _balanced_batch_size(
    rule: str, horizon: int, dimension: int, epsilon: float, delta: float
) -> float:
    """Return the real number B that balances the two terms of a regret bound.

    B solves d B = d^(3/4) sqrt(sigma T). The total noise sigma depends on B by the ``rule``, a key
    of `_RULES`.
    """
    t, d = _checked_sizes(horizon, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    noise_exponent, noise_at_one = _RULES[rule]
    # sigma = noise_at_one B^-a / epsilon, so B^(1 + a/2) is the ratio of both terms at B = 1.
    return math.pow(
        _cost(noise_at_one(t, d, delta) / epsilon, t, d) / d, 2.0 / (2.0 + noise_exponent)
    )


def _rounded_batch_size(ideal: float, horizon: int, constant: float) -> int:
    """Return ``constant`` times the real batch size ``ideal``, rounded up to an integer in 1..T."""
    return max(1, math.ceil(min(checked_constant(constant) * ideal, horizon)))


def batch_size_3_3(horizon: int, *, constant: float = 1.0) -> int:
    """Return B = T^(3/5) of Corollary 3.3 and Remark 3.6 (`linucb-sdp-amp`, `linucb-sdp-vec`).

    B does not depend on the budget. The regret then grows as T^(3/5), up to logarithms.

    Here T is ``horizon``.
    """
    t = integer("horizon", horizon, at_least=1)
    return _rounded_batch_size(math.pow(t, 0.6), t, constant)


def batch_size_b_2(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary B.2 for `linucb-sdp-amp`, which balances the terms of `theorem_b_1`.

    B = d^(-1/5) epsilon^(-2/5) T^(3/5) (ln(T/delta) ln(2/delta))^(1/5). This B violates the
    theorem's condition on epsilon if epsilon > d^(1/8) T^(-3/8) ln^(1/2)(2/delta)
    ln^(-1/8)(T/delta), for example epsilon > 0.038 with T = 20 000, d = 5, delta = 0.1. The theorem
    then guarantees no privacy.

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("B.2", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_b_3(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary B.3 for `linucb-sdp-amp` if each message is locally private.

    B = d^(-1/4) T^(3/4) epsilon^(-1/2) ln^(1/4)(1/delta), where epsilon and delta are the local
    budget of one message. It balances the terms of `proposition_f_1`.

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("B.3", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_c_2(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary C.2 for `linucb-sdp-vec`, which balances the terms of `theorem_c_1`.

    B = d^(-1/5) epsilon^(-2/5) T^(3/5) ln^(2/5)(d^2/delta).

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("C.2", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_c_3(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary C.3 for `linucb-sdp-vec` if the bits of each user are locally private.

    B = d^(-1/4) T^(3/4) epsilon^(-1/2) ln^(1/2)(d^2/delta), where epsilon and delta are the local
    budget of one user's bits. It balances the terms of `theorem_c_1` at epsilon/sqrt(B), the
    epsilon of the shuffled batch.

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("C.3", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_e_4(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary E.4 for `linucb-sdp-amp` if users may take part in every batch.

    B = d^(-1/6) epsilon^(-1/3) T^(2/3) ln^(1/2)(T/delta). It makes the second term of
    `theorem_e_3`, printed or corrected, at most d B, up to the factor ln T ln(T/alpha).

    With T = 20 000, d = 5, delta = 0.1, this B violates the printed condition for epsilon >= 0.45.
    It violates the corrected condition, of Theorem B.1 with the budget of one batch, for
    epsilon >= 0.77.

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("E.4", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_e_6(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Return B of Corollary E.6 for `linucb-sdp-vec` if users may take part in every batch.

    B = d^(-1/6) epsilon^(-1/3) T^(2/3) ln^(1/2)(T d^2/delta). It makes the second term of
    `theorem_e_5` at most d B, up to the factor ln T ln(T/alpha).

    Here T is ``horizon`` and d ``dimension``.
    """
    return _rounded_batch_size(
        _balanced_batch_size("E.6", horizon, dimension, epsilon, delta), horizon, constant
    )


def batch_size_f_2(horizon: int, *, constant: float = 1.0) -> int:
    """Return B = T^(3/4) of Remark F.2 for `linucb-ldp`.

    The privacy cost grows with T in the same way.

    Here T is ``horizon``.
    """
    t = integer("horizon", horizon, at_least=1)
    return _rounded_batch_size(math.pow(t, 0.75), t, constant)


def batch_size_f_4(horizon: int, *, constant: float = 1.0) -> int:
    """Return B = sqrt(T) of Remark F.4 for `linucb-jdp`.

    The privacy cost grows with T in the same way.

    Here T is ``horizon``.
    """
    t = integer("horizon", horizon, at_least=1)
    return _rounded_batch_size(math.sqrt(t), t, constant)


def corollary_bound(
    corollary: str,
    horizon: int,
    dimension: int,
    epsilon: float,
    delta: float,
    *,
    constant: float = 1.0,
) -> float:
    """Return the regret that a corollary ("3.3", "B.2", "B.3", ..., "E.6") prints for its B.

    The regret is d B with the B of the corollary's rule before rounding. epsilon and delta are as
    in the rule. The order is proven up to logarithms. For "3.3" the regret is T^(3/5)
    ln^(1/2)(T/delta) / sqrt(epsilon), of which only the growth with T is proven.

    Here T is ``horizon`` and d ``dimension``.
    """
    choice("corollary", corollary, ["3.3", *_RULES])
    t, d = _checked_sizes(horizon, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    if corollary == "3.3":
        bound = math.pow(t, 0.6) * math.sqrt(_ln(t, delta)) / math.sqrt(epsilon)
    else:
        bound = d * _balanced_batch_size(corollary, t, d, epsilon, delta)
    return checked_constant(constant) * bound
