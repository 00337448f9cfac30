"""Upper bounds on the regret of one private agent, and its batch rules: chowdhury-zhou-2022.

All second terms are d^(3/4) sqrt(sigma T) of `lemma_a_4`, sigma the total noise of a protocol as
far as the paper keeps its logarithms. Bounds and batch rules are printed as orders: they are
evaluated with natural logarithms and multiplied by `constant`. Only growth is proven, except in
`lemma_a_2`, which carries its proof's constants.

The results drop d sqrt(T) ln(T/alpha) of `lemma_a_4`. Where that exceeds the second term of B.1,
C.1, E.3, E.5 or F.1, the first is above T already, up to constants and for all but large epsilon,
so that nothing is lost. Not so in F.3 and E.7, which say from where on.

Parameters
----------
The same names mean the same in all functions; bad values raise InputError.

horizon : int
    T >= 1.
dimension : int
    d >= 1.
batch_size : int
    B in [1, T]; M = T/B, not rounded.
epsilon, delta : float
    Budget of one user, epsilon > 0 and delta in (0, 1); orders are meant for delta <= 1/2. The
    ranges for which a theorem promises privacy are not checked, as its regret does not depend on
    them.
failure_probability : float
    alpha in (0, 1].
constant : float
    Factor > 0 on a printed order.

Notes
-----
||theta*|| <= 1, ||phi|| <= 1 and rewards in [0, 1] are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fastfed._validate import boolean, choice, integer, number
from fastfed.bandits.problem import checked_batch, checked_budget, checked_constant


def _sizes(horizon: int, dimension: int) -> tuple[int, int]:
    """T and d, checked."""
    return integer("horizon", horizon, at_least=1), integer("dimension", dimension, at_least=1)


def _ln(count: float, probability: float) -> float:
    """ln(count/probability), finite for the least probability."""
    return math.log(count) - math.log(probability)


def _log_failure(horizon: int, failure_probability: float) -> float:
    """ln(T/alpha)."""
    return _ln(horizon, number("failure_probability", failure_probability, above=0, at_most=1))


def _cost(noise: float, t: int, d: int) -> float:
    """d^(3/4) sqrt(sigma T)."""
    return math.pow(d, 0.75) * math.sqrt(noise) * math.sqrt(t)


# ---- Appendix A: bounds in terms of the noise ----------------------------------------------------


def lemma_a_2(
    horizon: int, dimension: int, batch_size: int, beta: float, lambda_min: float
) -> float:
    """Lemma A.2, regret of any batched LinUCB, with the constants of its proof.

    d B G/(2 ln 2) + 4 beta sqrt(2 d T G), G = ln(1 + T/(d lambda_min)). beta >= 1 is the largest
    radius of any batch, and every H_m, regularizer plus noise, has eigenvalues >= lambda_min > 0.
    Proven where no round costs more than 1, whenever the eigenvalues are that large and no radius
    fails: with the paper's radii, with probability 1 - 2 alpha by its proof (1 - alpha is stated).
    """
    t, d = _sizes(horizon, dimension)
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
    """Lemma A.4, regret in terms of the injected noise: the template of the other bounds.

    d B ln T + d sqrt(T) ln(T/alpha) + d^(3/4) sqrt(sigma T) ln T ln(T/alpha), sigma = noise_std
    >= 0 the largest standard deviation of an entry of the noise in any prefix; 0 for `linucb`. The
    order is proven for a regularizer large enough, the constant is not given.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    sigma = number("noise_std", noise_std, at_least=0)
    log_failure = _log_failure(t, failure_probability)
    plain = d * b * math.log(t) + d * math.sqrt(t) * log_failure
    return checked_constant(constant) * (plain + _cost(sigma, t, d) * math.log(t) * log_failure)


# ---- Unique users: Theorems 3.2, B.1, C.1 --------------------------------------------------------


def _two_terms(t: int, d: int, b: int, noise: float, alpha: float, constant: float) -> float:
    """d B ln T + d^(3/4) sqrt(sigma T) ln T ln(T/alpha)."""
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
    """Theorem 3.2, regret of `linucb-sdp-amp` as the main text prints it.

    d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(B/delta) / sqrt(epsilon) ln^2(T/alpha). The order is
    proven: from B = 2 on it is `theorem_b_1` with larger logarithms. The constant is not given.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
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
    """Theorem B.1, regret of `linucb-sdp-amp`: noisy messages of a batch through a shuffler.

    d B ln T + d^(3/4) T^(3/4)/B^(1/4) (ln(B/delta) ln(2/delta))^(1/4) / sqrt(epsilon) ln T
    ln(T/alpha). The order is proven for the theorem's noise, the constant is not given. That this
    noise is O(epsilon, delta)-SDP needs more than the printed epsilon <= sqrt(ln(2/delta)/B): Lemma
    B.4 asks for epsilon sqrt(B/ln(2/delta)) <= ln(B/(16 ln(4/delta))) too, so for large batches.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
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
    """Theorem C.1, regret of `linucb-sdp-vec`: every data point as noisy bits through a shuffler.

    d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(d^2/delta) / sqrt(epsilon) ln T ln(T/alpha), for
    epsilon <= 15 and delta < 1/2. The order is proven, the constant is not given. Theorem 3.5 has
    ln^2(T/alpha) for the last two logarithms.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
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
    """Theorem E.3, regret of `linucb-sdp-amp` with users who take part once in every batch at most.

    d B ln T + d^(3/4) T/sqrt(B) (ln(T/delta) ln(M/delta) ln(2/delta))^(1/4) / sqrt(epsilon) ln T
    ln(T/alpha). The order is proven for the noise of Theorem B.1 at the budget of one batch, the
    constant is not given. The paper puts epsilon_m there, but delta for delta_m in one logarithm:
    `printed` has ln(2/delta) for ln(M/delta), as its noise, which is too small.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
    of_batch = _ln(2, delta) if boolean("printed", printed) else _ln(t / b, delta)
    noise = t / b * math.sqrt(_ln(t, delta) * of_batch * _ln(2, delta)) / epsilon
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
    """Theorem E.5, regret of `linucb-sdp-vec` with users who take part once in every batch at most.

    d B ln T + d^(3/4) T/sqrt(B) ln^(3/4)(d^2 M/delta) / sqrt(epsilon) ln T ln(T/alpha), for
    epsilon <= 15 and delta < 1/2. The order is proven, the constant is not given.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
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
    """Proposition E.7, regret of `linucb-jdp` for several participations: the privacy cost alone.

    d^(3/4) sqrt(M0 T) ln^(1/4)(1/delta) / sqrt(epsilon), M0 = rounds_per_user in [1, T] the most
    rounds of one user. The order is proven up to logarithms, and as long as d epsilon^2 <= M0^2
    ln(1/delta): beyond, the d sqrt(T) that it drops leads.
    """
    t, d = _sizes(horizon, dimension)
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
    """Proposition F.1, regret of `linucb-ldp` in batches; epsilon and delta protect each message.

    d B + d^(3/4) T^(3/4) ln^(1/4)(1/delta) / sqrt(epsilon) ln(T/alpha), for epsilon <= 1. The order
    is proven but for ln T beside d B, the constant is not given.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
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
    """Proposition F.3, regret of `linucb-jdp` in batches: a trusted agent with a tree of batches.

    d B + d^(3/4) sqrt(T) ln^(1/4)(1/delta) / sqrt(epsilon) ln(T/alpha), for epsilon <= 1. The order
    is proven up to logarithms of T, and as long as d epsilon^2 <= ln(1/delta): beyond, the
    d sqrt(T) ln(T/alpha) that it drops leads. The constant is not given.
    """
    t, d = _sizes(horizon, dimension)
    b = checked_batch(batch_size, t)
    epsilon, delta = checked_budget(epsilon, delta)
    cost = _cost(math.sqrt(_ln(1, delta)) / epsilon, t, d)
    return checked_constant(constant) * (d * b + cost * _log_failure(t, failure_probability))


# ---- Batch rules ---------------------------------------------------------------------------------

# By rule: the exponent with which the total noise falls in B (as B^-fall), and epsilon times that
# noise at B = 1, from T, d and delta.
_RULES: dict[str, tuple[float, Callable[[int, int, float], float]]] = {
    "B.2": (0.5, lambda t, d, delta: math.sqrt(t * _ln(t, delta) * _ln(2, delta))),
    "B.3": (0.0, lambda t, d, delta: math.sqrt(t * _ln(1, delta))),
    "C.2": (0.5, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "C.3": (0.0, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "E.4": (1.0, lambda t, d, delta: t * math.pow(_ln(t, delta), 1.5)),
    "E.6": (1.0, lambda t, d, delta: t * math.pow(_ln(t * d * d, delta), 1.5)),
}


def _balance(rule: str, horizon: int, dimension: int, epsilon: float, delta: float) -> float:
    """The B at which d B = d^(3/4) sqrt(sigma T)."""
    t, d = _sizes(horizon, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    fall, at_one = _RULES[rule]
    return math.pow(_cost(at_one(t, d, delta) / epsilon, t, d) / d, 2.0 / (2.0 + fall))


def _whole(ideal: float, horizon: int, constant: float) -> int:
    """B rounded up, within 1..T."""
    return max(1, math.ceil(min(checked_constant(constant) * ideal, horizon)))


def batch_size_3_3(horizon: int, *, constant: float = 1.0) -> int:
    """Corollary 3.3 and Remark 3.6: B = T^(3/5) for `linucb-sdp-amp` and `linucb-sdp-vec`.

    Free of the budget; the regret then grows as T^(3/5), up to logarithms.
    """
    t = integer("horizon", horizon, at_least=1)
    return _whole(math.pow(t, 0.6), t, constant)


def batch_size_b_2(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary B.2 for `linucb-sdp-amp`: balances `theorem_b_1`.

    B = d^(-1/5) epsilon^(-2/5) T^(3/5) (ln(T/delta) ln(2/delta))^(1/5). It breaks the theorem's own
    condition on epsilon beyond d^(1/8) T^(-3/8) ln^(1/2)(2/delta) ln^(-1/8)(T/delta), .038 at T =
    20 000, d = 5, delta = .1: there the theorem promises no privacy.
    """
    return _whole(_balance("B.2", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_b_3(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary B.3 for `linucb-sdp-amp` with each message private by itself, as in `linucb-ldp`.

    B = d^(-1/4) T^(3/4) epsilon^(-1/2) ln^(1/4)(1/delta), epsilon and delta those of one message.
    It balances `proposition_f_1`.
    """
    return _whole(_balance("B.3", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_c_2(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary C.2 for `linucb-sdp-vec`: balances `theorem_c_1`.

    B = d^(-1/5) epsilon^(-2/5) T^(3/5) ln^(2/5)(d^2/delta).
    """
    return _whole(_balance("C.2", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_c_3(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary C.3 for `linucb-sdp-vec` with the bits of each user private by themselves.

    B = d^(-1/4) T^(3/4) epsilon^(-1/2) ln^(1/2)(d^2/delta), epsilon and delta those of one user's
    bits. It balances `theorem_c_1` at epsilon/sqrt(B), which is what the batch then has.
    """
    return _whole(_balance("C.3", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_e_4(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary E.4 for `linucb-sdp-amp` with users who take part in every batch: `theorem_e_3`.

    B = d^(-1/6) epsilon^(-1/3) T^(2/3) ln^(1/2)(T/delta). Its logarithms are no less than the
    theorem's, corrected or not, so that the second term stays below d B but for ln T ln(T/alpha).
    The printed condition on epsilon is broken from .45 on at T = 20 000, d = 5, delta = .1, the
    corrected one, of Theorem B.1 at the budget of one batch, from .77 on.
    """
    return _whole(_balance("E.4", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_e_6(
    horizon: int, dimension: int, epsilon: float, delta: float, *, constant: float = 1.0
) -> int:
    """Corollary E.6 for `linucb-sdp-vec` with users who take part in every batch: `theorem_e_5`.

    B = d^(-1/6) epsilon^(-1/3) T^(2/3) ln^(1/2)(T d^2/delta), with larger logarithms than the
    theorem's: the second term stays below d B but for ln T ln(T/alpha).
    """
    return _whole(_balance("E.6", horizon, dimension, epsilon, delta), horizon, constant)


def batch_size_f_2(horizon: int, *, constant: float = 1.0) -> int:
    """Remark F.2 for `linucb-ldp`: B = T^(3/4), the growth of the privacy cost in T alone."""
    t = integer("horizon", horizon, at_least=1)
    return _whole(math.pow(t, 0.75), t, constant)


def batch_size_f_4(horizon: int, *, constant: float = 1.0) -> int:
    """Remark F.4 for `linucb-jdp`: B = sqrt(T), the growth of the privacy cost in T alone."""
    t = integer("horizon", horizon, at_least=1)
    return _whole(math.sqrt(t), t, constant)


def corollary_bound(
    corollary: str,
    horizon: int,
    dimension: int,
    epsilon: float,
    delta: float,
    *,
    constant: float = 1.0,
) -> float:
    """The regret that a corollary prints for its batch rule: "3.3", "B.2", "B.3", ..., "E.6".

    d times the B of the rule before rounding, epsilon and delta as in the rule. The order is proven
    up to logarithms; of T^(3/5) ln^(1/2)(T/delta) / sqrt(epsilon), 3.3, in T alone.
    """
    choice("corollary", corollary, ["3.3", *_RULES])
    t, d = _sizes(horizon, dimension)
    epsilon, delta = checked_budget(epsilon, delta)
    if corollary == "3.3":
        bound = math.pow(t, 0.6) * math.sqrt(_ln(t, delta)) / math.sqrt(epsilon)
    else:
        bound = d * _balance(corollary, t, d, epsilon, delta)
    return checked_constant(constant) * bound
