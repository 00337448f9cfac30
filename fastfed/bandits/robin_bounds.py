"""Constants of ROBIN, and bounds on the regret of ROBIN and of all user-level private algorithms.

The paper is huang-2023. Its users are the clients, which are the silos here. Regret is the sum over
all silos and rounds of the best mean reward minus the mean reward of the chosen action. Bounds that
the paper prints as orders of growth are evaluated with natural logarithms and multiplied by
`constant`. Propositions C.3 and D.1 and Theorem C.6 have the constants of their proofs.
||theta*|| <= 1, ||x|| <= 1 and reward noise N(0, 1) are assumed.

In all formulas T is ``horizon``, M ``silos``, d ``dimension`` and beta ``failure_probability`` < 1
of a `BoundSetting`. (epsilon, delta) is the privacy budget of all data of one silo. ``diversity``
is lambda_0 > 0 of Assumption 3.1, at most 1/d because ||x|| <= 1. ``margin`` is C_0 > 0 of
Assumption 3.2, about the smallest gap. The paper prints "for all a", but its proofs use "there is
an a". `fastfed.environments.instances` estimates lambda_0 and C_0.

The lower bounds 4.2 to 5.5 are stated for epsilon < ln 2. All except 5.5 are stated for a delta of
the order of 1/(M sqrt T), up to logarithms. For epsilon >= ln 2 these bounds are at most 2.1 times
the order without privacy, which is C_0 d ln T with a margin and sqrt(d M T) without one; bounds 5.3
and 5.5 fall below it. The last term of 4.2 is an exception: it may be larger, but its proof does
not need epsilon < ln 2. Lower bounds with a margin are orders of growth with T, for fixed other
arguments. The instances in their proofs have even d and C_0 >= 1.38 sqrt d.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastfed._validate import boolean, integer, number
from fastfed.bandits.problem import BoundSetting, ProblemSpec
from fastfed.protocols.serverless import last_round, phases_of

# ---- Constants of the algorithm ------------------------------------------------------------------

#: Largest number of phases, which exceeds the number of phases of any horizon.
MAX_PHASES = 200


def concentration(problem: ProblemSpec, lambda_0: float, beta: float) -> float:
    """Return c_1 of Theorem 3.3: 4 sqrt(2 d ln(16 d (M + 1) P / beta)) / lambda_0.

    P is the number of phases, ``lambda_0`` the diversity constant of the environment, and ``beta``
    the failure probability. After a phase of n rounds the distance of a silo's estimate from theta*
    is at most c_1 / sqrt n.
    """
    d, m, phases = problem.dimension, problem.silos, phases_of(problem.horizon)
    return 4.0 * math.sqrt(2.0 * d * math.log(16.0 * d * (m + 1) * phases / beta)) / lambda_0


def initial_phases(problem: ProblemSpec, lambda_0: float, margin: float, beta: float) -> int:
    """Return U of Proposition C.3, the number of phases in which clients run local LinUCB.

    U is the smallest number that satisfies two conditions:
    2^U >= 64 ln(2 d M P/beta) / lambda_0^2 and
    2^U >= 144 d U^2 (C_0 + lambda_0)^2 ln(2 d M P/beta) ln 2 / lambda_0^4.
    P is the number of all phases, and C_0 is ``margin``.
    """
    d, m, phases = problem.dimension, problem.silos, phases_of(problem.horizon)
    log = math.log(2.0 * d * m * phases / beta)
    # Base-2 logarithms of the two right sides, because 2^U may overflow. The factor U^2 of the
    # second is added in the loop.
    log2_first = math.log2(64.0 * log) - 2.0 * math.log2(lambda_0)
    log2_second = math.log2(144.0 * d * log * math.log(2.0))
    log2_second += 2.0 * math.log2(margin + lambda_0) - 4.0 * math.log2(lambda_0)
    for u in range(1, MAX_PHASES):
        if u >= log2_first and u >= log2_second + 2.0 * math.log2(u):
            return u
    return MAX_PHASES


def sharing_pays(problem: ProblemSpec, epsilon: float) -> bool:
    """Return True if sharing reduces regret by Remark 4.6: epsilon >= sqrt(d) ln^1.5(T) / M.

    The remark states the condition only up to a constant, which is taken as 1.
    """
    log_horizon = max(math.log(problem.horizon), 0.0)
    return epsilon >= math.sqrt(problem.dimension) * log_horizon**1.5 / problem.silos


class Estimation(NamedTuple):
    """The constants of Proposition C.3, and the number of silos that it needs.

    Attributes
    ----------
    phases : int
        P, the number of phases that start within T rounds.
    initial_phases : int
        U, the number of phases before the first shared model.
    epsilon_0, delta_0 : float
        Budget of one release.
    c_1, c_2 : float
        Constants in the errors of silos' estimates (c_1) and of shared models (c_2).
    silos_needed : float
        The smallest M for which the proposition holds.
    """

    phases: int
    initial_phases: int
    epsilon_0: float
    delta_0: float
    c_1: float
    c_2: float
    silos_needed: float


def _failure(setting: BoundSetting) -> float:
    """Return the failure probability beta of a setting. Raise InputError unless 0 < beta < 1."""
    return number("failure_probability", setting.value("failure_probability"), above=0, below=1)


def _checked_margin(margin: float) -> float:
    """Return the margin constant C_0. Raise InputError unless C_0 > 0."""
    return number("margin", margin, above=0)


def _order_without_privacy(setting: BoundSetting, margin: float | None) -> float:
    """Return the order of one silo's regret without privacy: C_0 d ln T, or sqrt(d T).

    sqrt(d T) is for instances without the margin condition (``margin`` is None). The order is
    multiplied by the ``constant`` of ``setting``.
    """
    if margin is None:
        return setting.constant * math.sqrt(setting.dimension * setting.horizon)
    order = _checked_margin(margin) * setting.dimension * math.log(setting.horizon)
    return setting.constant * order


# ---- Upper bounds: Theorems 3.3 and C.6 ----------------------------------------------------------


def theorem_3_3(setting: BoundSetting, diversity: float, margin: float) -> float:
    """Return the upper bound of Theorem 3.3 on the regret of `robin`, with probability 1 - beta.

    The bound is
    max(1, d ln T ln(1/delta) ln^3(1/beta)/(M epsilon^2)) C_0 d ln(1/beta) ln T/lambda_0^2.
    Here C_0 is ``margin``, lambda_0 ``diversity`` and beta the failure probability. The bound is an
    order up to logarithms, for beta and delta below 1/e and
    epsilon >= sqrt(d) ln^1.5(T)/M. (The theorem prints this condition with the root over all of
    d ln^1.5 T. Remark 4.6 prints it correctly.)

    The proof does not give this bound, for two reasons. First, it divides the budget over P phases
    as epsilon_0 = epsilon/sqrt(P) for one release, instead of epsilon/sqrt(6 P ln(2/delta)). So it
    misses the factor ln(2/delta), which comes in addition to ln(1/delta) above. Second, it drops
    the regret of the initial rounds, which is linear in M, so only the growth with T is proven.
    `theorem_c_6` has both terms.
    The min(M, .) in the paper's Table 1 is for the variant of Remark 4.6.
    """
    t, m, d = setting.sizes
    epsilon = setting.value("epsilon")
    log_failure = -math.log(_failure(setting))
    lambda_0 = number("diversity", diversity, above=0)
    private = -d * math.log(t) * math.log(setting.value("delta")) * log_failure**3 / m
    private = private / epsilon / epsilon
    plain = _order_without_privacy(setting, _checked_margin(margin)) * log_failure
    return max(1.0, private) * (plain / lambda_0 / lambda_0)


def theorem_c_6(
    setting: BoundSetting, initial_phases: int, margin: float, c_2: float, *, printed: bool = False
) -> float:
    """Return the upper bound in the proof of Theorem C.6 on the regret of `robin`, with constants.

    The bound is 8 C_0 c_2^2 (P - U) + 2 M n. Here n = min(2^(U+1) - 2, T) is the number of initial
    rounds, U = initial_phases in 1..200, and c_2 > 0 is the constant of `proposition_c_3`. The
    bound is proven if the models of all greedy phases satisfy the error bound of that proposition.
    ``printed`` = True computes the bound as in the paper's proof, 8 C_0 c_2^2 P + M 2^U. The
    paper's proof counts only the last initial phase, and a regret of 1 per round, although 2 is
    possible.
    """
    t, m, _ = setting.sizes
    u = integer("initial_phases", initial_phases, at_least=1, at_most=MAX_PHASES)
    error = number("c_2", c_2, above=0)
    regret_per_phase = 8.0 * _checked_margin(margin) * error * error
    if boolean("printed", printed):
        return regret_per_phase * phases_of(t) + math.ldexp(m, u)
    greedy_phases = max(phases_of(t) - u, 0)
    return regret_per_phase * greedy_phases + 2.0 * m * min(last_round(u), t)


# ---- Errors of estimates: Proposition C.3 --------------------------------------------------------


def proposition_c_3(setting: BoundSetting, diversity: float, margin: float) -> Estimation:
    """Return the constants of Proposition C.3 on the error of the models of `robin`.

    Here C_0 is ``margin`` and lambda_0 ``diversity``, and c_1 is the result of `concentration`. Let
    theta^(p) be the model after phase p of P, and U the number of initial phases. The
    proposition states that ||theta^(p) - theta*|| <= c_2/sqrt(M 2^(p-1)) holds for all p > U with
    probability 1 - beta. (The paper prints 2^p, its proof uses 2^(p-1).) With the printed budgets
    epsilon_0 = epsilon/sqrt(6 P ln(2/delta)) and delta_0 = delta/(2 P) of one release,

    c_2 = c_1 (80 ln(16 d P/beta) sqrt(6 d ln(16 d M P/beta) ln(1/delta_0))/(sqrt(M) epsilon_0) + 1)

    (The proof of Claim C.5 has twice this c_2. In the proof of Theorem C.6, two of the square roots
    in c_2 are missing.)
    The proposition needs M >= silos_needed, which is the larger of 32 C_0^2 c_2^2/(lambda_0^2 2^U)
    and

    8 sqrt(6 d ln(1/delta_0))/epsilon_0 ln(4 d^2 P 2^(P/2)/(10 beta c_1 sqrt(ln(16 d M P/beta)))).

    c_2 and the logarithm depend on M, and are computed with M = ``silos``. d is the dimension
    before it is padded to a power of two. The proposition is unproven as printed, for three
    reasons. First, U is smaller than Lemma C.2 needs, by 4 to 6 phases for arms on a sphere.
    Second, the logarithm in c_1 lacks a factor 2. (A sharper bound on the covariance would reduce
    c_1 by more than this factor adds.) Third, in phase U, rewards and chosen features are not
    independent.
    """
    t, m, d = setting.sizes
    epsilon, delta = setting.value("epsilon"), setting.value("delta")
    lambda_0, c_0 = number("diversity", diversity, above=0), _checked_margin(margin)
    beta = _failure(setting)
    problem = ProblemSpec(silos=m, horizon=t, dimension=d)
    p, u = phases_of(t), initial_phases(problem, lambda_0, c_0, beta)
    epsilon_ratio = math.sqrt(6.0 * p * (math.log(2.0) - math.log(delta)))  # epsilon over epsilon_0
    log_delta = math.log(2 * p) - math.log(delta)  # ln(1/delta_0)
    log_all = math.log(16 * d * m * p) - math.log(beta)
    c_1 = concentration(problem, lambda_0, beta)
    noise = 80.0 * (math.log(16 * d * p) - math.log(beta))
    noise *= math.sqrt(6.0 * d * log_all * log_delta) / math.sqrt(m) * epsilon_ratio / epsilon
    c_2 = c_1 * (noise + 1.0)
    inside = math.log(0.4 * d * d * p) + p / 2 * math.log(2.0) - math.log(beta)
    inside -= math.log(c_1) + math.log(log_all) / 2
    range_works = 8.0 * math.sqrt(6.0 * d * log_delta) * epsilon_ratio / epsilon * inside
    greedy_works = 32.0 * math.ldexp(c_0 * c_2 / lambda_0, -u) * (c_0 * c_2 / lambda_0)
    silos_needed = max(range_works, greedy_works)
    return Estimation(p, u, epsilon / epsilon_ratio, delta / (2 * p), c_1, c_2, silos_needed)


# ---- Lower bounds, trusted server: Theorems 4.2 and 4.5 ------------------------------------------


def theorem_4_2(setting: BoundSetting, margin: float, *, printed: bool = False) -> float:
    """Return the lower bound of Theorem 4.2 on the regret of almost-memoryless algorithms.

    Such algorithms have a trusted server, and a silo uses its own data only in the first u rounds.
    `robin` is one of them. The bound is
    max(1, 1/(M epsilon^2)) C_0 d ln T + e^(-M epsilon) M T/C_0, with C_0 = ``margin``. The paper
    prints C_0 instead of 1/C_0 in the last term (``printed`` = True). In the paper's proof this
    factor is the radius r of the instance, which is of the order of 1/C_0, and no gap exceeds r.

    The order of the first term is proven under two conditions. First, the proof has
    ln(1 + (epsilon M)^2 T/(C_0^2 d)) instead of ln T, so the two logarithms must be of the same
    order. (For epsilon near 0 the printed term would exceed the largest possible regret.) Second, u
    must be at most T^c with c < 1, because the sum over the rounds after u gives ln(T/u). The
    paper's definition allows any u = o(T). The proof replaces e^epsilon - 1 by epsilon, which
    changes the bound by a factor of at most 1.45^2.

    The last term also needs delta to be at most a fraction of e^(-M epsilon)/(4 M). The proof needs
    delta of the order of 1/(d M^2 T), while the theorem states 1/(M sqrt T).
    """
    t, m, _ = setting.sizes
    epsilon = setting.value("epsilon")
    plain = _order_without_privacy(setting, _checked_margin(margin))
    last_term = math.exp(-m * epsilon) * m * t
    last_term *= margin if boolean("printed", printed) else 1.0 / margin
    return max(plain, plain / m / epsilon / epsilon) + setting.constant * last_term


def theorem_4_5(setting: BoundSetting, margin: float | None) -> float:
    """Return the lower bound of Theorem 4.5 on any algorithm with a trusted server.

    The bound is min(M, max(1, 1/(M epsilon^2))) C_0 d ln T. ``margin`` = None is for instances
    without the margin condition and T >= d^2: the bound is then
    min(M, max(sqrt M, 1/epsilon)) sqrt(d T). The orders are proven, the constants are not given.
    The proof replaces e^epsilon - 1 by epsilon, which changes the bound by a factor of at most
    1.45^2.
    """
    m, epsilon = setting.silos, setting.value("epsilon")
    plain = _order_without_privacy(setting, margin)
    if margin is None:
        return min(m, max(math.sqrt(m), 1.0 / epsilon)) * plain
    return min(m * plain, max(plain, plain / m / epsilon / epsilon))


# ---- Lower bounds, local privacy of every silo: Theorem 5.3 and Corollary 5.5 --------------------


def theorem_5_3(setting: BoundSetting, margin: float | None) -> float:
    """Return the lower bound of Theorem 5.3, under non-interactive (epsilon, delta)-local privacy.

    The bound is min(M, 1/epsilon) C_0 d ln T. ``margin`` = None is for instances without the margin
    condition: the bound is then min(M, sqrt(M/epsilon)) sqrt(d T). The integral in the paper's
    proof gives these orders, but the paper evaluates this integral with errors in constants and
    roots.
    """
    m, epsilon = setting.silos, setting.value("epsilon")
    factor = math.sqrt(m / epsilon) if margin is None else 1.0 / epsilon
    return min(m, factor) * _order_without_privacy(setting, margin)


def corollary_5_5(setting: BoundSetting, margin: float | None) -> float:
    """Return the lower bound of Corollary 5.5, under pure epsilon-local privacy of each silo.

    The bound is min(M, 1/epsilon^2) C_0 d ln T. ``margin`` = None is for instances without the
    margin condition: the bound is then min(M, sqrt(M)/epsilon) sqrt(d T). It is `theorem_4_5` with
    epsilon/sqrt(M) instead of epsilon.
    """
    m, epsilon = setting.silos, setting.value("epsilon")
    factor = math.sqrt(m) / epsilon if margin is None else 1.0 / epsilon / epsilon
    return min(m, factor) * _order_without_privacy(setting, margin)


# ---- Lower bound without diversity: Proposition D.1 ----------------------------------------------


def proposition_d_1(setting: BoundSetting, *, printed: bool = False) -> float:
    """Return the lower bound of Proposition D.1 on memoryless algorithms without diversity.

    In the instance, one coordinate of the features occurs at one silo only, and the gap between two
    actions is 1. The regret of this silo is at least T (1 - delta)/(1 + e^epsilon). The factor of T
    is the smallest mean error of a test between two histories of the silo, and randomised response
    attains it. The bound is proven for every budget. If an algorithm uses its own data in the first
    u rounds, T - u replaces T.

    ``printed`` = True computes the paper's bound T (0.9 e^-epsilon - 10 delta). Its factor of T is
    a misquotation of (0.9 e^(-10 epsilon) - 10 delta)/2. For small delta the printed bound exceeds
    the attainable regret if epsilon < ln 9, and the regret T/2 of a fair coin if epsilon < ln 1.8.

    The paper's instance has a theta* of norm sqrt 2, which is not allowed here, and features of
    norm 1/2. Divide theta* by sqrt 2 and double the features: the gap becomes sqrt 2, which is
    larger than 1, so the bound still holds.
    """
    t, delta = setting.horizon, setting.value("delta")
    decay = math.exp(-setting.value("epsilon"))
    if boolean("printed", printed):
        return t * (0.9 * decay - 10.0 * delta)
    return t * (1.0 - delta) * decay / (1.0 + decay)


# ---- Bound curves --------------------------------------------------------------------------------


def lower_bound_curves(
    config: Any, problem: ProblemSpec, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Return lower bounds on regret at each of ``rounds``, as lists by name.

    Constants that the paper does not give are taken as 1. If the margin constant is known, the
    result has Theorem 4.5 (with a trusted server) and Theorem 5.3 (without one). It always has
    Proposition D.1, which is for one silo in instances without diversity.
    """
    settings = [
        BoundSetting(
            horizon=int(t),
            silos=problem.silos,
            dimension=problem.dimension,
            epsilon=config.epsilon,
            delta=config.delta,
        )
        for t in rounds
    ]
    one_silo_bound = [proposition_d_1(setting) for setting in settings]
    if config.margin is None:
        return {"proposition-d-1": one_silo_bound}
    return {
        "theorem-4-5": [theorem_4_5(setting, config.margin) for setting in settings],
        "theorem-5-3": [theorem_5_3(setting, config.margin) for setting in settings],
        "proposition-d-1": one_silo_bound,
    }
