"""Constants of ROBIN, and bounds on its regret and that of any user-level private one: huang-2023.

Regret is the sum over all silos (the paper's clients) and rounds of best mean minus own mean.
Bounds that are printed as orders are evaluated with natural logarithms and multiplied by
`constant`, the hidden one; Corollary B.5, Propositions C.3 and D.1 and Theorem C.6 carry their
proofs' constants. ||theta*|| <= 1, ||x|| <= 1 and noise N(0, 1) are assumed.

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
    Budget of everything that one silo holds, epsilon > 0 and delta in (0, 1).
diversity : float
    lambda_0 > 0 (Assumption 3.1; at most 1/d, as ||x|| <= 1).
margin : float
    C_0 > 0 (Assumption 3.2, of the smallest gap: the paper prints "for all a", its proofs use
    "there is an a"). `fastfed.environments.instances` estimates both.
failure_probability : float
    beta in (0, 1).
constant : float
    Factor > 0 on a printed order.

Notes
-----
The lower bounds 4.2 to 5.5 are stated for epsilon < ln 2, and except for 5.5 for a delta of the
order of 1/(M sqrt T) up to logarithms. Beyond ln 2 they are at most 2.1 times what holds without
privacy, C_0 d ln T or sqrt(d M T) (the last term of 4.2 apart, whose proof needs no ln 2); 5.3
and 5.5 then fall below that. Those with a margin are orders in T, for the other sizes fixed:
their instances have even d and C_0 >= 1.38 sqrt d.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastfed._validate import boolean, integer, number
from fastfed.bandits.problem import ProblemSpec, checked_constant, checked_sizes
from fastfed.protocols.serverless import last_round, phases_of

# ---- Constants of the algorithm ------------------------------------------------------------------

#: Most phases considered: no horizon is longer.
MAX_PHASES = 200


def concentration(problem: ProblemSpec, lambda_0: float, beta: float) -> float:
    """c_1 of Theorem 3.3: 4 sqrt(2 d ln(16 d (M + 1) P / beta)) / lambda_0.

    Estimates of a phase of n rounds lie within c_1 / sqrt n of theta*.
    """
    d, m, phases = problem.dimension, problem.silos, phases_of(problem.horizon)
    return 4.0 * math.sqrt(2.0 * d * math.log(16.0 * d * (m + 1) * phases / beta)) / lambda_0


def initial_phases(problem: ProblemSpec, lambda_0: float, margin: float, beta: float) -> int:
    """U of Proposition C.3: the least U with both of its conditions, the second one implicit in U.

    2^U >= 64 ln(2 d M P/beta) / lambda_0^2 and
    2^U >= 144 d U^2 (C_0 + lambda_0)^2 ln(2 d M P/beta) ln 2 / lambda_0^4.
    """
    d, m, phases = problem.dimension, problem.silos, phases_of(problem.horizon)
    log = math.log(2.0 * d * m * phases / beta)
    first = math.log2(64.0 * log) - 2.0 * math.log2(lambda_0)
    second = math.log2(144.0 * d * log * math.log(2.0))
    second += 2.0 * math.log2(margin + lambda_0) - 4.0 * math.log2(lambda_0)
    for u in range(1, MAX_PHASES):
        if u >= first and u >= second + 2.0 * math.log2(u):
            return u
    return MAX_PHASES


def sharing_pays(problem: ProblemSpec, epsilon: float) -> bool:
    """True if epsilon >= sqrt(d) ln^1.5(T) / M: Remark 4.6, its hidden constant taken as 1."""
    rounds = max(math.log(problem.horizon), 0.0)
    return epsilon >= math.sqrt(problem.dimension) * rounds**1.5 / problem.silos


class Deviation(NamedTuple):
    """A distance, exceeded with at most some probability (no bound from 1 on)."""

    distance: float
    probability: float


class Estimation(NamedTuple):
    """Numbers that Proposition C.3 sets and requires.

    Attributes
    ----------
    phases : int
        P, phases that start within T rounds.
    initial_phases : int
        U.
    epsilon_0, delta_0 : float
        Budget of one release.
    c_1, c_2 : float
        Constants of the estimates' errors.
    silos_needed : float
        The least M.
    """

    phases: int
    initial_phases: int
    epsilon_0: float
    delta_0: float
    c_1: float
    c_2: float
    silos_needed: float


def _epsilon(epsilon: float) -> float:
    """epsilon, checked."""
    return number("epsilon", epsilon, above=0)


def _delta(delta: float) -> float:
    """delta, checked."""
    return number("delta", delta, above=0, below=1)


def _margin(margin: float) -> float:
    """C_0, checked."""
    return number("margin", margin, above=0)


def _diversity(diversity: float) -> float:
    """lambda_0, checked."""
    return number("diversity", diversity, above=0)


def _failure(failure_probability: float) -> float:
    """beta, checked."""
    return number("failure_probability", failure_probability, above=0, below=1)


def _with_margin(t: int, d: int, margin: float) -> float:
    """C_0 d ln T: the order without privacy."""
    return _margin(margin) * d * math.log(t)


# ---- Upper bounds: Theorems 3.3 and C.6 ----------------------------------------------------------


def theorem_3_3(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diversity: float,
    margin: float,
    failure_probability: float,
    *,
    constant: float = 1.0,
) -> float:
    """Theorem 3.3 (C.6 once more), upper bound on the regret of `robin` with probability 1 - beta.

    max(1, d ln T ln(1/delta) ln^3(1/beta)/(M epsilon^2)) C_0 d ln(1/beta) ln T/lambda_0^2, a soft
    order: for epsilon >= sqrt(d) ln^1.5(T)/M (the theorem prints the root over all of d ln^1.5 T,
    Remark 4.6 has it right) and for beta and delta below 1/e. Not what the proof gives: it puts
    epsilon/sqrt(P) for the epsilon_0 of one release and so loses a second ln(2/delta), and it drops
    the initial rounds, linear in M, so that it is an order in T alone. `theorem_c_6` has both. The
    min(M, .) of Table 1 belongs to the variant of Remark 4.6.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon = _epsilon(epsilon)
    log_failure = -math.log(_failure(failure_probability))
    spread = _diversity(diversity)
    private = -d * math.log(t) * math.log(_delta(delta)) * log_failure**3 / m / epsilon / epsilon
    plain = _with_margin(t, d, margin) * log_failure / spread / spread
    return checked_constant(constant) * max(1.0, private) * plain


def theorem_c_6(
    horizon: int,
    silos: int,
    initial_phases: int,
    margin: float,
    c_2: float,
    *,
    printed: bool = False,
) -> float:
    """Theorem C.6 before it turns into an order: upper bound on the regret of `robin`, explicit.

    8 C_0 c_2^2 (P - U) + 2 M n, n = 2^(U+1) - 2 or T the initial rounds, U = initial_phases in
    1..200, c_2 > 0 the one of `proposition_c_3`. Proven wherever the models of all greedy phases
    are as good as that says. `printed` is the proof's 8 C_0 c_2^2 P + M 2^U: it counts phase U
    alone for the initial ones, at a regret of 1 a round where 2 is possible.
    """
    t, m, _ = checked_sizes(horizon, silos, 1)
    first = integer("initial_phases", initial_phases, at_least=1, at_most=MAX_PHASES)
    error = number("c_2", c_2, above=0)
    phase = 8.0 * _margin(margin) * error * error
    if boolean("printed", printed):
        return phase * phases_of(t) + math.ldexp(m, first)
    return phase * max(phases_of(t) - first, 0) + 2.0 * m * min(last_round(first), t)


# ---- Errors of estimates: Corollary B.5 and Proposition C.3 --------------------------------------


def corollary_b_5(
    radius: float,
    silos: int,
    dimension: int,
    epsilon: float,
    delta: float,
    failure_probability: float,
    *,
    bound: float = 1.0,
) -> Deviation:
    """Corollary B.5, Euclidean error of the private winsorized mean around the plain mean.

    Distance 80 r ln(d/beta) sqrt(6 d ln(d M/beta) ln(1/delta))/(M epsilon), probability 3 beta +
    d^2 B/(10 r sqrt(ln(d M/beta))) exp(-M epsilon/(8 sqrt(6 d ln(1/delta)))): the second term is
    the chance that some coordinate's range misses. The M points lie within radius r > 0 of a common
    one with probability 1 - beta, their coordinates within bound B > 0; d is the dimension after
    padding to a power of two, epsilon and delta those of this one release. Proven, given Levy et
    al. (2021, Theorem 2). The paper never says what B is for estimates that nothing bounds; 1 is
    what Proposition C.3 puts.
    """
    _, m, d = checked_sizes(1, silos, dimension)
    r = number("radius", radius, above=0)
    edge = number("bound", bound, above=0)
    epsilon = _epsilon(epsilon)
    beta = _failure(failure_probability)
    coordinates = math.sqrt(-6.0 * d * math.log(_delta(delta)))  # epsilon over epsilon'
    spread = math.sqrt(math.log(d * m) - math.log(beta))
    distance = 80.0 * r * (math.log(d) - math.log(beta)) * coordinates * spread / m / epsilon
    missed = d * d * edge / (10.0 * r * spread) * math.exp(-m * epsilon / (8.0 * coordinates))
    return Deviation(distance, 3.0 * beta + missed)


def proposition_c_3(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diversity: float,
    margin: float,
    failure_probability: float,
) -> Estimation:
    """Proposition C.3, the error of the models of `robin`, and the silos needed for it.

    ||theta^(p) - theta*|| <= c_2/sqrt(M 2^(p-1)) for all p > U with probability 1 - beta (the paper
    prints 2^p beside theta^(p), its proof uses 2^(p-1)), where with the printed budgets epsilon_0 =
    epsilon/sqrt(6 P ln(2/delta)) and delta_0 = delta/(2 P)

    c_2 = c_1 (80 ln(16 d P/beta) sqrt(6 d ln(16 d M P/beta) ln(1/delta_0))/(sqrt(M) epsilon_0) + 1)

    (twice that in the proof of Claim C.5, with two roots less in that of Theorem C.6), provided
    that M >= silos_needed, the larger of 32 C_0^2 c_2^2/(lambda_0^2 2^U) and

    8 sqrt(6 d ln(1/delta_0))/epsilon_0 ln(4 d^2 P 2^(P/2)/(10 beta c_1 sqrt(ln(16 d M P/beta)))).

    c_2 and the logarithm hold M themselves: the one given. d is not padded here. Unproven as
    printed: U is short of what Lemma C.2 asks for, by 4 to 6 phases for arms on a sphere; c_1 lacks
    a 2 in its logarithm, which a sharper covariance would more than make up for; and in phase U
    rewards and chosen features are not independent.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon, delta = _epsilon(epsilon), _delta(delta)
    spread, c_0 = _diversity(diversity), _margin(margin)
    beta = _failure(failure_probability)
    problem = ProblemSpec(silos=m, horizon=t, dimension=d)
    p, u = phases_of(t), initial_phases(problem, spread, c_0, beta)
    releases = math.sqrt(6.0 * p * (math.log(2.0) - math.log(delta)))  # epsilon over epsilon_0
    log_delta = math.log(2 * p) - math.log(delta)  # ln(1/delta_0)
    log_all = math.log(16 * d * m * p) - math.log(beta)
    c_1 = concentration(problem, spread, beta)
    noise = 80.0 * (math.log(16 * d * p) - math.log(beta))
    noise *= math.sqrt(6.0 * d * log_all * log_delta) / math.sqrt(m) * releases / epsilon
    c_2 = c_1 * (noise + 1.0)
    inside = math.log(0.4 * d * d * p) + p / 2 * math.log(2.0) - math.log(beta)
    inside -= math.log(c_1) + math.log(log_all) / 2
    range_works = 8.0 * math.sqrt(6.0 * d * log_delta) * releases / epsilon * inside
    greedy_works = 32.0 * math.ldexp(c_0 * c_2 / spread, -u) * (c_0 * c_2 / spread)
    needed = max(range_works, greedy_works)
    return Estimation(p, u, epsilon / releases, delta / (2 * p), c_1, c_2, needed)


# ---- Lower bounds, trusted server: Theorems 4.2 and 4.5 ------------------------------------------


def theorem_4_2(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    margin: float,
    *,
    printed: bool = False,
    constant: float = 1.0,
) -> float:
    """Theorem 4.2, lower bound on almost-memoryless algorithms (`robin`) with a trusted server.

    max(1, 1/(M epsilon^2)) C_0 d ln T + e^(-M epsilon) M T/C_0. The paper multiplies the last term
    by C_0, as `printed`; its proof has the radius r of the instance there, of the order of 1/C_0,
    and no gap exceeds r. The order of the first term is proven while ln T is that of ln(1 +
    (epsilon M)^2 T/(C_0^2 d)), which the proof has in its place (as epsilon falls to 0 the term
    exceeds all that can be lost), and if memory ends within T^c rounds, c < 1: the sum over later
    ones gives ln(T/u), while the definition allows any u = o(T). That the proof puts epsilon for
    e^epsilon - 1 costs at most 1.45^2. The last term needs delta below e^(-M epsilon)/(4 M) too, by
    a factor: the proof asks for 1/(d M^2 T), the theorem for 1/(M sqrt T) only.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon = _epsilon(epsilon)
    plain = _with_margin(t, d, margin)
    alone = math.exp(-m * epsilon) * m * t
    alone *= margin if boolean("printed", printed) else 1.0 / margin
    return checked_constant(constant) * (max(plain, plain / m / epsilon / epsilon) + alone)


def theorem_4_5(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    margin: float | None,
    *,
    constant: float = 1.0,
) -> float:
    """Theorem 4.5, lower bound on any algorithm with a trusted server.

    min(M, max(1, 1/(M epsilon^2))) C_0 d ln T; without the margin condition (None), for T >= d^2,
    min(M, max(sqrt M, 1/epsilon)) sqrt(d T). The orders are proven, the constants are not given:
    epsilon in place of e^epsilon - 1 costs at most 1.45^2.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon = _epsilon(epsilon)
    if margin is None:
        return (
            checked_constant(constant) * min(m, max(math.sqrt(m), 1.0 / epsilon)) * math.sqrt(d * t)
        )
    plain = _with_margin(t, d, margin)
    return checked_constant(constant) * min(m * plain, max(plain, plain / m / epsilon / epsilon))


# ---- Lower bounds, every silo private by itself: Theorem 5.3 and Corollary 5.5 -------------------


def theorem_5_3(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    margin: float | None,
    *,
    constant: float = 1.0,
) -> float:
    """Theorem 5.3, lower bound under non-interactive (epsilon, delta)-local privacy of each silo.

    min(M, 1/epsilon) C_0 d ln T; without the margin condition (None) min(M, sqrt(M/epsilon))
    sqrt(d T). The proof loses constants and roots when it solves its integral; the integral itself
    gives these orders.
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon = _epsilon(epsilon)
    if margin is None:
        return checked_constant(constant) * min(m, math.sqrt(m / epsilon)) * math.sqrt(d * t)
    return checked_constant(constant) * min(m, 1.0 / epsilon) * _with_margin(t, d, margin)


def corollary_5_5(
    horizon: int,
    silos: int,
    dimension: int,
    epsilon: float,
    margin: float | None,
    *,
    constant: float = 1.0,
) -> float:
    """Corollary 5.5, lower bound under pure epsilon-local privacy of each silo.

    min(M, 1/epsilon^2) C_0 d ln T; without the margin condition (None) min(M, sqrt(M)/epsilon)
    sqrt(d T): `theorem_4_5` at epsilon/sqrt(M).
    """
    t, m, d = checked_sizes(horizon, silos, dimension)
    epsilon = _epsilon(epsilon)
    if margin is None:
        return checked_constant(constant) * min(m, math.sqrt(m) / epsilon) * math.sqrt(d * t)
    return checked_constant(constant) * min(m, 1.0 / epsilon / epsilon) * _with_margin(t, d, margin)


# ---- Lower bound without diversity: Proposition D.1 ----------------------------------------------


def proposition_d_1(horizon: int, epsilon: float, delta: float, *, printed: bool = False) -> float:
    """Proposition D.1, lower bound on memoryless algorithms where only one silo sees a coordinate.

    T (1 - delta)/(1 + e^epsilon), of that silo alone, at gap 1: the least mean error of telling two
    histories of one silo apart, attained by randomised response. Proven for every budget, and T - u
    for T where memory ends after u rounds. `printed` is the paper's T (0.9 e^-epsilon - 10 delta),
    which misquotes (0.9 e^(-10 epsilon) - 10 delta)/2: for small delta it exceeds what is attained
    below epsilon = ln 9, and the T/2 of a fair coin below ln 1.8. Its theta* has norm sqrt 2; for
    theta*/sqrt 2 and features of norm 1 in place of 1/2 the gap is sqrt 2, so nothing is lost.
    """
    t = integer("horizon", horizon, at_least=1)
    epsilon, delta = _epsilon(epsilon), _delta(delta)
    decay = math.exp(-epsilon)
    if boolean("printed", printed):
        return t * (0.9 * decay - 10.0 * delta)
    return t * (1.0 - delta) * decay / (1.0 + decay)


# ---- Bound curves --------------------------------------------------------------------------------


def lower_bound_curves(
    config: Any, problem: ProblemSpec, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Lower bounds with the curve's epsilon, by round, hidden constants taken as 1.

    Theorem 4.5 for a trusted server, Theorem 5.3 for none, if the margin constant is known; and
    Proposition D.1 for the one silo whose context no other shares, without diversity.
    """
    sizes = problem.silos, problem.dimension, config.epsilon, config.margin
    alone = [proposition_d_1(int(t), config.epsilon, config.delta) for t in rounds]
    if config.margin is None:
        return {"proposition-d-1": alone}
    return {
        "theorem-4-5": [theorem_4_5(int(t), *sizes) for t in rounds],
        "theorem-5-3": [theorem_5_3(int(t), *sizes) for t in rounds],
        "proposition-d-1": alone,
    }
