"""Upper bounds on the regret of one private agent, and its batch rules (chowdhury-zhou-2022).

The privacy cost in every bound is the term d^(3/4) sqrt(sigma T) of `lemma_a_4`, where sigma is the
total noise of a protocol with the logarithms that the paper keeps. The paper prints bounds and
batch rules as orders of growth. They are evaluated with natural logarithms and multiplied by the
``constant`` of their `BoundSetting`. Only the growth is proven, except in `lemma_a_2`, which has
the constants of its proof.

The paper's theorems and propositions drop the term d sqrt(T) ln(T/alpha) of `lemma_a_4`. In B.1,
C.1, E.3, E.5 and F.1 this makes no difference: wherever the dropped term exceeds the second term of
the bound, the first term is already above T (up to constants, and except for large epsilon). In F.3
and E.7 it makes a difference, and the docstrings state for which arguments.

In all formulas T is ``horizon``, d ``dimension``, B ``batch_size``, M = T/B (not rounded) and alpha
``failure_probability``; there is one agent. (epsilon, delta) is the privacy budget of one user. The
orders are meant for delta <= 1/2. The ranges for which a theorem guarantees privacy are not
checked, because the regret does not depend on them. ||theta*|| <= 1, ||phi|| <= 1 and rewards in
[0, 1] are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fastfed._validate import boolean, choice, integer, number
from fastfed.bandits.problem import BoundSetting


def _ln(count: float, probability: float) -> float:
    """Return ln(count/probability), without overflow for tiny probabilities."""
    return math.log(count) - math.log(probability)


def _log_failure(setting: BoundSetting) -> float:
    """Return ln(T/alpha), the logarithm of a union over T rounds with failure probability alpha."""
    return _ln(setting.horizon, setting.value("failure_probability"))


def _cost(setting: BoundSetting, noise: float) -> float:
    """Return d^(3/4) sqrt(sigma T), the privacy cost of noise with standard deviation sigma."""
    return math.pow(setting.dimension, 0.75) * math.sqrt(noise) * math.sqrt(setting.horizon)


# ---- Appendix A: bounds in terms of the noise ----------------------------------------------------


def lemma_a_2(setting: BoundSetting, beta: float, lambda_min: float) -> float:
    """Return the bound of Lemma A.2 on the regret of any batched LinUCB, with explicit constants.

    The bound is d B G/(2 ln 2) + 4 beta sqrt(2 d T G), G = ln(1 + T/(d lambda_min)). ``beta`` >= 1
    is the largest confidence radius of any batch. H_m is the regularizer plus noise in batch m. The
    bound is proven under three conditions: the regret of a round is at most 1, every H_m has
    eigenvalues of at least ``lambda_min`` > 0, and no confidence set fails. With the paper's radii,
    the last two conditions hold together with probability 1 - alpha according to the lemma, but the
    proof shows only 1 - 2 alpha. The ``constant`` of ``setting`` is not used.
    """
    t, d = setting.horizon, setting.dimension
    radius = number("beta", beta, at_least=1)
    growth = math.log1p(t / (d * number("lambda_min", lambda_min, above=0)))
    bad_rounds = d * setting.batch_size * growth / (2.0 * math.log(2.0))
    return bad_rounds + 4.0 * radius * math.sqrt(2.0 * d * t * growth)


def lemma_a_4(setting: BoundSetting, noise_std: float) -> float:
    """Return the bound of Lemma A.4 on the regret of one agent, as a function of the noise.

    The bound is d B ln T + d sqrt(T) ln(T/alpha) + d^(3/4) sqrt(sigma T) ln T ln(T/alpha). Here
    sigma = ``noise_std`` >= 0 is the largest standard deviation of an entry of the noise in any
    prefix sum (0 for `linucb`). The paper proves the order if the regularizer is large enough. It
    does not give the constant. All other bounds of this module follow from this lemma.
    """
    t, d = setting.horizon, setting.dimension
    sigma = number("noise_std", noise_std, at_least=0)
    plain = d * setting.batch_size * math.log(t) + d * math.sqrt(t) * _log_failure(setting)
    cost = _cost(setting, sigma) * math.log(t) * _log_failure(setting)
    return setting.constant * (plain + cost)


# ---- Unique users: Theorems 3.2, B.1, C.1 --------------------------------------------------------


def _two_terms(setting: BoundSetting, scaled_noise: float) -> float:
    """Return d B ln T + d^(3/4) sqrt(sigma T) ln T ln(T/alpha), the form of most bounds here.

    sigma is the standard deviation of the total noise, and ``scaled_noise`` is epsilon sigma. The
    result is multiplied by the ``constant`` of ``setting``.
    """
    cost = _cost(setting, scaled_noise / setting.value("epsilon")) * _log_failure(setting)
    plain = setting.dimension * setting.batch_size
    return setting.constant * (plain + cost) * math.log(setting.horizon)


def theorem_3_2(setting: BoundSetting) -> float:
    """Return the bound of Theorem 3.2 on the regret of `linucb-sdp-amp`.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(B/delta) ln^2(T/alpha) / sqrt(epsilon).
    This is the theorem of the paper's main text. Its order is proven, because for B >= 2 the bound
    is that of Theorem B.1 (`theorem_b_1`) with larger logarithms. The constant is not given.
    """
    t, b = setting.horizon, setting.batch_size
    noise = math.sqrt(t / b) * _ln(b, setting.value("delta")) / setting.value("epsilon")
    cost = _cost(setting, noise) * _log_failure(setting) ** 2
    return setting.constant * (setting.dimension * b * math.log(t) + cost)


def theorem_b_1(setting: BoundSetting) -> float:
    """Return the bound of Theorem B.1 on the regret of `linucb-sdp-amp`.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) (ln(B/delta) ln(2/delta))^(1/4) ln T ln(T/alpha)
    / sqrt(epsilon). The paper proves the order for the theorem's noise, and gives no constant. The
    printed condition epsilon <= sqrt(ln(2/delta)/B) does not suffice for the privacy of this noise
    (shuffle DP with O(epsilon) and delta). Lemma B.4 (amplification by shuffling) also needs
    epsilon sqrt(B/ln(2/delta)) <= ln(B/(16 ln(4/delta))). No batch of B <= 16 ln(4/delta) users
    meets this condition.
    """
    t, b, delta = setting.horizon, setting.batch_size, setting.value("delta")
    return _two_terms(setting, math.sqrt(t / b * _ln(b, delta) * _ln(2, delta)))


def theorem_c_1(setting: BoundSetting) -> float:
    """Return the bound of Theorem C.1 on the regret of `linucb-sdp-vec`.

    The bound is d B ln T + d^(3/4) T^(3/4)/B^(1/4) ln^(1/2)(d^2/delta) ln T ln(T/alpha)
    / sqrt(epsilon), for epsilon <= 15 and delta < 1/2. The paper proves the order, and gives no
    constant. Theorem 3.5, in the main text, has ln^2(T/alpha) instead of ln T ln(T/alpha).
    """
    t, b = setting.horizon, setting.batch_size
    return _two_terms(setting, math.sqrt(t / b) * _ln(setting.dimension**2, setting.value("delta")))


# ---- Several participations: Theorems E.3 and E.5, Proposition E.7 -------------------------------


def theorem_e_3(setting: BoundSetting, *, printed: bool = False) -> float:
    """Return the bound of Theorem E.3 on the regret of `linucb-sdp-amp` with returning users.

    A user takes part at most once in every batch. The bound is d B ln T + d^(3/4) T/sqrt(B)
    (ln(T/delta) ln(M/delta) ln(2/delta))^(1/4) ln T ln(T/alpha) / sqrt(epsilon), with M = T/B. The
    order is proven for the noise of Theorem B.1 with the budget of one batch, (epsilon_m, delta_m).
    The constant is not given. In one of the logarithms in the noise formula, the paper writes delta
    instead of delta_m, so the paper's noise is too small for the budget. ``printed`` = True
    computes the paper's bound for this smaller noise, with ln(2/delta) instead of ln(M/delta).
    """
    t, delta = setting.horizon, setting.value("delta")
    batches = t / setting.batch_size
    log_batch_delta = _ln(2 if boolean("printed", printed) else batches, delta)
    return _two_terms(setting, batches * math.sqrt(_ln(t, delta) * log_batch_delta * _ln(2, delta)))


def theorem_e_5(setting: BoundSetting) -> float:
    """Return the bound of Theorem E.5 on the regret of `linucb-sdp-vec` with returning users.

    A user takes part at most once in every batch. The bound is
    d B ln T + d^(3/4) T/sqrt(B) ln^(3/4)(d^2 M/delta) ln T ln(T/alpha) / sqrt(epsilon), with
    M = T/B, for epsilon <= 15 and delta < 1/2. The paper proves the order, and gives no constant.
    """
    batches = setting.horizon / setting.batch_size
    log = _ln(setting.dimension**2 * batches, setting.value("delta"))
    return _two_terms(setting, batches * math.pow(log, 1.5))


def proposition_e_7(setting: BoundSetting, rounds_per_user: int) -> float:
    """Return the privacy cost in Proposition E.7, for `linucb-jdp` with returning users.

    The cost is d^(3/4) sqrt(M0 T) ln^(1/4)(1/delta) / sqrt(epsilon), where M0 = rounds_per_user in
    [1, T] is the largest number of rounds in which one user takes part. The order is proven up to
    logarithms if d epsilon^2 <= M0^2 ln(1/delta). Otherwise the term d sqrt(T), which the paper
    drops, is larger than this cost.
    """
    rounds = integer("rounds_per_user", rounds_per_user, at_least=1, at_most=setting.horizon)
    return setting.constant * rounds**0.5 * _central_cost(setting)


# ---- Local and central: Propositions F.1 and F.3 -------------------------------------------------


def _central_cost(setting: BoundSetting) -> float:
    """Return the regret that privacy costs with a trusted agent, without logarithms of T.

    This cost is d^(3/4) sqrt(sigma T) = d^(3/4) sqrt(T) ln^(1/4)(1/delta) / sqrt(epsilon), for
    noise of standard deviation sigma = sqrt(ln(1/delta)) / epsilon.
    """
    sigma = math.sqrt(_ln(1, setting.value("delta"))) / setting.value("epsilon")
    return _cost(setting, sigma)


def proposition_f_1(setting: BoundSetting) -> float:
    """Return the bound of Proposition F.1 on the regret of `linucb-ldp` with batches of B users.

    The bound is d B + d^(3/4) T^(3/4) ln^(1/4)(1/delta) ln(T/alpha) / sqrt(epsilon), for
    epsilon <= 1. epsilon and delta are the budget of each message. The order is proven, except that
    the term d B lacks a factor ln T. The constant is not given.
    """
    cost = math.pow(setting.horizon, 0.25) * _central_cost(setting) * _log_failure(setting)
    return setting.constant * (setting.dimension * setting.batch_size + cost)


def proposition_f_3(setting: BoundSetting) -> float:
    """Return the bound of Proposition F.3 on the regret of `linucb-jdp` with batches of B users.

    The bound is d B + d^(3/4) sqrt(T) ln^(1/4)(1/delta) ln(T/alpha) / sqrt(epsilon), for
    epsilon <= 1 and a trusted agent with a tree over batches. The paper gives no constant. It
    proves the order up to logarithms of T if d epsilon^2 <= ln(1/delta). Otherwise the term
    d sqrt(T) ln(T/alpha), which the paper drops, is larger than the bound's second term.
    """
    cost = _central_cost(setting) * _log_failure(setting)
    return setting.constant * (setting.dimension * setting.batch_size + cost)


# ---- Batch rules ---------------------------------------------------------------------------------

# For each rule that balances the two terms of a regret bound: the exponent a with which the total
# noise is proportional to B^-a, and a function of T, d and delta that returns epsilon times the
# total noise at B = 1.
_BALANCED: dict[str, tuple[float, Callable[[int, int, float], float]]] = {
    "B.2": (0.5, lambda t, d, delta: math.sqrt(t * _ln(t, delta) * _ln(2, delta))),
    "B.3": (0.0, lambda t, d, delta: math.sqrt(t * _ln(1, delta))),
    "C.2": (0.5, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "C.3": (0.0, lambda t, d, delta: math.sqrt(t) * _ln(d * d, delta)),
    "E.4": (1.0, lambda t, d, delta: t * math.pow(_ln(t, delta), 1.5)),
    "E.6": (1.0, lambda t, d, delta: t * math.pow(_ln(t * d * d, delta), 1.5)),
}
# For each rule that depends on T only: the exponent of T.
_POWERS = {"3.3": 0.6, "F.2": 0.75, "F.4": 0.5}


def _balanced_batch_size(rule: str, setting: BoundSetting) -> float:
    """Return the batch size B, a real number, at which the two terms of a regret bound are equal.

    The terms are d B and d^(3/4) sqrt(sigma T), where sigma is the standard deviation of the total
    noise. ``rule`` is a key of `_BALANCED`, whose entry says how sigma depends on B.
    """
    d, delta = setting.dimension, setting.value("delta")
    a, scaled_noise = _BALANCED[rule]
    sigma_at_one = scaled_noise(setting.horizon, d, delta) / setting.value("epsilon")
    # sigma = sigma_at_one B^-a. So the terms are equal if B^(1 + a/2) is the value at B = 1 of the
    # second term divided by the first.
    return math.pow(_cost(setting, sigma_at_one) / d, 2.0 / (2.0 + a))


def batch_size(rule: str, setting: BoundSetting) -> int:
    """Return the batch size B of one of the paper's rules, rounded up to an integer in 1..T.

    Parameters
    ----------
    rule : str
        The number of a corollary or remark.

        ===== ============================================ ======================================
        rule  B                                            for
        ===== ============================================ ======================================
        3.3   T^(3/5)                                      `linucb-sdp-amp`, `linucb-sdp-vec`
        B.2   d^(-1/5) epsilon^(-2/5) T^(3/5)              `linucb-sdp-amp`; balances `theorem_b_1`
              (ln(T/delta) ln(2/delta))^(1/5)
        B.3   d^(-1/4) epsilon^(-1/2) T^(3/4)              `linucb-sdp-amp` with locally private
              ln^(1/4)(1/delta)                            messages; balances `proposition_f_1`
        C.2   d^(-1/5) epsilon^(-2/5) T^(3/5)              `linucb-sdp-vec`; balances `theorem_c_1`
              ln^(2/5)(d^2/delta)
        C.3   d^(-1/4) epsilon^(-1/2) T^(3/4)              `linucb-sdp-vec` with locally private
              ln^(1/2)(d^2/delta)                          bits; balances `theorem_c_1` at
                                                           epsilon/sqrt(B)
        E.4   d^(-1/6) epsilon^(-1/3) T^(2/3)              `linucb-sdp-amp`, users in every batch
              ln^(1/2)(T/delta)
        E.6   d^(-1/6) epsilon^(-1/3) T^(2/3)              `linucb-sdp-vec`, users in every batch
              ln^(1/2)(T d^2/delta)
        F.2   T^(3/4)                                      `linucb-ldp`
        F.4   sqrt(T)                                      `linucb-jdp`
        ===== ============================================ ======================================
    setting : BoundSetting
        Sizes and budget. Its ``batch_size`` and ``failure_probability`` are not used, and B is
        multiplied by its ``constant``. For B.3 and C.3 epsilon and delta are the local budget of
        one message, or of the bits of one user.

    Notes
    -----
    Up to logarithms, the regret with B of rule 3.3 grows with T as T^(3/5), both terms of
    `proposition_f_1` with B of F.2 as T^(3/4), and both terms of `proposition_f_3` with B of F.4 as
    sqrt(T). With B of E.4 the second term of `theorem_e_3` (for both values of ``printed``) is at
    most d B, up to the factor ln T ln(T/alpha). The same holds for E.6 and `theorem_e_5`.

    B of rule B.2 violates the condition of Theorem B.1 on epsilon if epsilon > d^(1/8) T^(-3/8)
    ln^(1/2)(2/delta) ln^(-1/8)(T/delta), for example epsilon > 0.038 with T = 20 000, d = 5,
    delta = 0.1. The theorem then guarantees no privacy. With these T, d and delta, B of E.4
    violates the printed condition of Theorem E.3 for epsilon >= 0.45. It violates the corrected
    condition, that of Theorem B.1 with the budget of one batch, for epsilon >= 0.77.
    """
    if choice("rule", rule, [*_POWERS, *_BALANCED]) in _POWERS:
        unrounded = math.pow(setting.horizon, _POWERS[rule])
    else:
        unrounded = _balanced_batch_size(rule, setting)
    return max(1, math.ceil(min(setting.constant * unrounded, setting.horizon)))


def corollary_bound(corollary: str, setting: BoundSetting) -> float:
    """Return the regret bound that a corollary of the paper states for its batch size B.

    ``corollary`` is "3.3", "B.2", "B.3", "C.2", "C.3", "E.4" or "E.6". For "3.3" the bound is
    T^(3/5) ln^(1/2)(T/delta) / sqrt(epsilon), and only its growth with T is proven. For the others
    the bound is d B with B before rounding, and this order is proven up to logarithms. `batch_size`
    defines B, and what epsilon and delta mean for each corollary.
    """
    choice("corollary", corollary, ["3.3", *_BALANCED])
    if corollary == "3.3":
        log = _ln(setting.horizon, setting.value("delta"))
        bound = math.pow(setting.horizon, 0.6) * math.sqrt(log)
        bound /= math.sqrt(setting.value("epsilon"))
    else:
        bound = setting.dimension * _balanced_batch_size(corollary, setting)
    return setting.constant * bound
