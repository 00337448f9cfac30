"""Lower bounds and Table 1 of gao-2024, and the argument checks that all its bounds share.

`theorem_2_4` without privacy and `hidden_expert` with it are proven, with constants; the others are
printed orders. Parameters as in `fastfed.experts.bounds`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastfed._validate import choice, integer, number
from fastfed.experts.plan import ExpertPlan, ProblemSpec

# ---- Argument checks -----------------------------------------------------------------------------


def check_horizon(t: int) -> int:
    """T, checked."""
    return integer("horizon", t, at_least=1)


def check_clients(m: int) -> int:
    """m, checked."""
    return integer("clients", m, at_least=1)


def check_experts(d: int) -> int:
    """d, checked."""
    return integer("experts", d, at_least=1, at_most=2**53)


def check_epsilon(value: float) -> float:
    """epsilon, checked."""
    return number("epsilon", value, above=0)


def check_failure(rho: float) -> float:
    """rho, checked."""
    return number("failure_probability", rho, above=0, below=1)


def check_constant(value: float) -> float:
    """The hidden constant, checked."""
    return number("constant", value, above=0)


# ---- Theorems 2.4 and 2.7 ------------------------------------------------------------------------


class HiddenExpert(NamedTuple):
    """The adversary of `hidden_expert`: for so many rounds it charges all experts but one."""

    rounds: int
    regret: float


def theorem_2_4(horizon: int, experts: int) -> float:
    """Theorem 2.4 without privacy, lower bound on any algorithm: sqrt(T ln(d)/2), but exact.

    T/2 - E min of d independent Bin(T, 1/2): the regret of every algorithm, in expectation, to fair
    coins, equal at all clients, whatever m is. Some fixed losses then cost it as much. Relative
    accuracy about 1e-9; horizon at most 2^40.
    """
    t = integer("horizon", horizon, at_least=1, at_most=2**40)
    d = check_experts(experts)
    from scipy.special import betainc

    # The largest is as far above T/2 as the least is below: sum P(max > k) - T/2, where P(max > k)
    # differs from 1 or 0 by less than 1e-16 only within this many standard deviations.
    half = t // 2
    reach = min(half + 1, math.ceil(math.sqrt(t) * (math.sqrt(20.0 + math.log(d) / 2.0) + 1.0)))
    k = np.arange(half - reach, min(half + reach, t) + 1)
    step = 2**20
    total = 0.0
    for i in range(0, len(k), step):
        # P(Bin(t, 1/2) > k) for 0 <= k <= t; betainc has no zero second argument.
        at = np.clip(k[i : i + step], 0, t)
        above = np.where(at < t, betainc(at + 1.0, np.maximum(t - at, 1.0), 0.5), 0.0)
        above = np.where(k[i : i + step] < 0, 1.0, above)
        total += float(np.sum(-np.expm1(d * np.log1p(-np.minimum(above, 1.0 - 2.0**-53)))))
    return total - (t / 2.0 - float(k[0]))


def theorem_2_4_private(
    horizon: int, experts: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Theorem 2.4 with privacy, the printed order min(ln(d)/epsilon, T); not a bound for m > 1.

    It cannot hold for large m: Hedge on all clients' sums, one fresh draw a round at epsilon/T
    each, is epsilon-DP and has regret sqrt(T ln(d)/2) once m >= sqrt(32 T ln d)/epsilon. The proof
    gives all clients the same losses and then treats one round as one record; it is m of them, so
    that group privacy leaves m epsilon for epsilon: `hidden_expert` is what is proven.
    """
    t, d = check_horizon(horizon), check_experts(experts)
    return check_constant(constant) * min(math.log(d) / check_epsilon(epsilon), t)


def theorem_2_7(clients: int, experts: int, epsilon: float, *, constant: float = 1.0) -> float:
    """Theorem 2.7, the printed order ln(d)/(m epsilon) of a lower bound in the realizable case.

    For epsilon <= 1 and delta <= epsilon/d. It needs T above it too. `hidden_expert` has a proof
    and constants.
    """
    m, d = check_clients(clients), check_experts(experts)
    return check_constant(constant) * math.log(d) / m / check_epsilon(epsilon)


def hidden_expert(
    horizon: int, clients: int, experts: int, epsilon: float, *, delta: float = 0.0
) -> HiddenExpert:
    """Lower bound on any (epsilon, delta)-DP algorithm, realizable or not, explicit. Proven.

    The adversary draws an expert j uniformly beforehand. For the first `rounds` rounds all experts
    but j cost 1 at every client and j costs 0; afterwards, and for j always, losses are 0. With
    k = m (t - 1), q = e^(epsilon k) and c = delta/(e^epsilon - 1), expected regret is at least the
    sum over its rounds of

    max(1 - q/d - c (q - 1), (1 - 1/d - c (q - 1))/q),

    and `rounds` is the best choice: T for delta = 0. Then it is at least .36 min(ln(d)/(m
    epsilon), T), and (ln(d - 1) - 1 + 3/d)/(m epsilon) for long T. The losses are constant in time
    and linear, so that it bounds algorithms for stochastic losses as well. delta in [0, 1).
    """
    # Let D be the same losses without j, all experts at 1. x_t depends on rounds before t only, in
    # which D differs in m (t - 1) records, so that by group privacy, for p = P_j(x_it = j) and p_0
    # = P_D(x_it = j): p <= q p_0 + c (q - 1) and 1 - p_0 <= q (1 - p) + c (q - 1). The p_0 of all
    # j sum to at most 1, and the lesser of the two bounds on p is concave in p_0: the mean p is at
    # most the bound at p_0 = 1/d. Summed over rounds and averaged over clients that is the regret.
    t, m, d = check_horizon(horizon), check_clients(clients), check_experts(experts)
    x = m * check_epsilon(epsilon)
    c = number("delta", delta, at_least=0, below=1)
    c = c / math.expm1(epsilon) if epsilon < 700 else 0.0
    if d == 1:
        return HiddenExpert(t, 0.0)
    # With y = q the first is the larger one up to y = A/(1/d + c), and the second > 0 to A/c.
    a = 1.0 - 1.0 / d + c
    n1 = min(t, math.floor(math.log(max(a / (1.0 / d + c), 1.0)) / x) + 1)
    n2 = t
    if c > 0.0:
        n2 = min(t, math.ceil(max(math.log(a) - math.log(c), 0.0) / x))
    n1 = min(n1, n2)
    powers = math.expm1(n1 * x) / math.expm1(x) if n1 > 1 else float(n1)  # sum of q^i, i < n1
    total = (1.0 + c) * n1 - (1.0 / d + c) * powers
    tail = math.exp(-n1 * x) * math.expm1(-(n2 - n1) * x) / math.expm1(-x)
    return HiddenExpert(n2, max(0.0, total + a * tail - c * (n2 - n1)))


# ---- Bound curves --------------------------------------------------------------------------------


def lower_bound_curves(
    plan: ExpertPlan,
    problem: ProblemSpec,
    rounds: np.ndarray,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> dict[str, list[float]]:
    """Lower bounds of expected group regret at rounds (C,), each for the worst of its adversaries.

    "theorem-2-4": fair coins, the same at all clients; of regret in hindsight, for in expectation
    no coin is better than another. "hidden-expert": the price of privacy where all experts but one
    lose in every round.

    Parameters
    ----------
    plan : ExpertPlan
        The curve's plan.
    problem : ProblemSpec
        Sizes, and guarantees about the losses.
    rounds : ndarray, shape (C,)
        Rounds.
    epsilon : float, optional
        None for no privacy.
    delta : float, default 0
        Likewise.

    Returns
    -------
    dict of str to list of float
        Bounds by name, each of length C.
    """
    m, d = plan.silos, plan.experts
    found = {}
    if not problem.iid:
        found["theorem-2-4"] = [m * theorem_2_4(int(t), d) for t in rounds]
    if epsilon is not None:
        found["hidden-expert"] = [
            m * hidden_expert(int(t), m, d, epsilon, delta=delta).regret for t in rounds
        ]
    return found


# ---- Table 1: regret and communication of known systems ------------------------------------------

#: Rows of Table 1, from top to bottom.
TABLE_1 = (
    "limited-updates",
    "fed-dp-ope-stoch",
    "sparse-vector",
    "fed-svt",
    "sparse-vector-approximate",
    "fed-svt-approximate",
    "realizable-lower",
    "private-sd",
    "private-sd-approximate",
    "oblivious-lower",
)


def table_1(
    row: str, horizon: int, clients: int, experts: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Regret in a row of Table 1, the printed order; rows in TABLE_1, from top to bottom.

    Rows of one client ignore `clients`. The table drops beta, N, L*, delta and rho, though
    ln(1/delta) and N are factors of what it abbreviates: Fed-SVT's holds for N + L* up to
    ln(T)/(m epsilon), which is below the least N, 1, from m epsilon = ln T on. `fed-dp-ope-stoch`
    has sqrt(m) epsilon where Corollary 2.3 has m^(1/4) epsilon.
    """
    name = choice("row", row, TABLE_1)
    t, m, d = check_horizon(horizon), check_clients(clients), check_experts(experts)
    epsilon = check_epsilon(epsilon)
    log_t, log_d = math.log(t), math.log(d)
    pure, approximate = log_t * log_d + log_d**2, log_t * log_d + log_d**1.5
    value = {
        "limited-updates": math.sqrt(t * log_d) + log_d * log_t / epsilon,
        "fed-dp-ope-stoch": math.sqrt(t * log_d / m) + log_d * log_t / math.sqrt(m) / epsilon,
        "sparse-vector": pure / epsilon,
        "fed-svt": pure / m / epsilon,
        "sparse-vector-approximate": approximate / epsilon,
        "fed-svt-approximate": approximate / m / epsilon,
        "realizable-lower": log_d / m / epsilon,
        "private-sd": math.sqrt(t) * log_d / epsilon,
        "private-sd-approximate": math.sqrt(t * log_d) + t ** (1.0 / 3.0) * log_d / epsilon,
        "oblivious-lower": min(log_d / epsilon, float(t)),
    }[name]
    return check_constant(constant) * value


def table_1_communication(
    row: str, horizon: int, clients: int, experts: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Numbers sent in all according to Table 1, the printed order: m d ln T or m^2 d T epsilon.

    The latter is m d T/N for N = 1/(m epsilon), which is a phase for m epsilon <= 1 only.
    """
    rows = ("fed-dp-ope-stoch", "fed-svt", "fed-svt-approximate")
    name = choice("row", row, rows)
    t, m, d = check_horizon(horizon), check_clients(clients), check_experts(experts)
    epsilon = check_epsilon(epsilon)
    value = m * d * math.log(t) if name == rows[0] else m * m * d * t * epsilon
    return check_constant(constant) * value
