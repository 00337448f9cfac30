"""Lower bounds and Table 1 of gao-2024, and argument checks shared by all bounds of the paper.

`theorem_2_4` (without privacy) and `hidden_expert` (with privacy) are proven, with constants. The
other functions return printed orders. `fastfed.experts.bounds` describes the parameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastfed._validate import choice, integer, number
from fastfed.experts.plan import ExpertPlan, ProblemSpec

# ---- Argument checks -----------------------------------------------------------------------------


def check_horizon(t: int) -> int:
    """Return T after checking it."""
    return integer("horizon", t, at_least=1)


def check_clients(m: int) -> int:
    """Return m after checking it."""
    return integer("clients", m, at_least=1)


def check_experts(d: int) -> int:
    """Return d after checking it."""
    return integer("experts", d, at_least=1, at_most=2**53)


def check_epsilon(value: float) -> float:
    """Return epsilon after checking it."""
    return number("epsilon", value, above=0)


def check_failure(rho: float) -> float:
    """Return rho after checking it."""
    return number("failure_probability", rho, above=0, below=1)


def check_constant(value: float) -> float:
    """Return the hidden constant after checking it."""
    return number("constant", value, above=0)


# ---- Theorems 2.4 and 2.7 ------------------------------------------------------------------------


class HiddenExpert(NamedTuple):
    """The adversary of `hidden_expert`: all experts but one lose 1 in the first ``rounds`` rounds.

    ``regret`` is the lower bound on the regret of one client against this adversary.
    """

    rounds: int
    regret: float


def theorem_2_4(horizon: int, experts: int) -> float:
    """Return the exact lower bound that Theorem 2.4 prints as sqrt(T ln(d)/2), without privacy.

    The bound is T/2 - E min of d independent Bin(T, 1/2). It is the expected regret of every
    algorithm when the losses are fair coins that are the same at all clients, for any m. Hence for
    every algorithm some fixed losses cause at least this regret. The relative accuracy is about
    1e-9. Here T is ``horizon``, at most 2^40, and d is ``experts``.
    """
    t = integer("horizon", horizon, at_least=1, at_most=2**40)
    d = check_experts(experts)
    from scipy.special import betainc

    # By symmetry, T/2 - E min = E max - T/2 = sum_k P(max > k) - T/2, for k >= 0. Only compute the
    # terms for k within ``reach`` of T/2: smaller k have P(max > k) = 1, and larger k have
    # P(max > k) = 0, up to 1e-16.
    half_rounds = t // 2
    reach = min(
        half_rounds + 1, math.ceil(math.sqrt(t) * (math.sqrt(20.0 + math.log(d) / 2.0) + 1.0))
    )
    k = np.arange(half_rounds - reach, min(half_rounds + reach, t) + 1)
    chunk = 2**20  # values of k that are computed together
    total = 0.0
    for i in range(0, len(k), chunk):
        # P(Bin(t, 1/2) > k) for 0 <= k <= t; betainc has no zero second argument.
        counts = np.clip(k[i : i + chunk], 0, t)
        tail_probability = np.where(
            counts < t, betainc(counts + 1.0, np.maximum(t - counts, 1.0), 0.5), 0.0
        )
        tail_probability = np.where(k[i : i + chunk] < 0, 1.0, tail_probability)
        total += float(
            np.sum(-np.expm1(d * np.log1p(-np.minimum(tail_probability, 1.0 - 2.0**-53))))
        )
    return total - (t / 2.0 - float(k[0]))


def theorem_2_4_private(
    horizon: int, experts: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Return the printed order min(ln(d)/epsilon, T) of Theorem 2.4; no bound for several clients.

    Here T is ``horizon``, d ``experts`` and m the number of clients. The printed order is not
    proven for m > 1, and cannot hold for large m. A counterexample is Hedge on the sums of all
    clients' losses, which draws one expert in each round with budget epsilon/T. It is epsilon-DP
    and has regret sqrt(T ln(d)/2) if m >= sqrt(32 T ln d)/epsilon. The proof gives all clients the
    same losses and treats one round as one record. But a round is m records, so group privacy
    replaces epsilon by m epsilon. `hidden_expert` is the proven bound.
    """
    t, d = check_horizon(horizon), check_experts(experts)
    return check_constant(constant) * min(math.log(d) / check_epsilon(epsilon), t)


def theorem_2_7(clients: int, experts: int, epsilon: float, *, constant: float = 1.0) -> float:
    """Return Theorem 2.7's order ln(d)/(m epsilon) of a lower bound in the realizable case.

    It is stated for epsilon <= 1 and delta <= epsilon/d, and also needs T above the returned value.
    `hidden_expert` is a proven bound with constants.

    Here m is ``clients`` and d ``experts``.
    """
    m, d = check_clients(clients), check_experts(experts)
    return check_constant(constant) * math.log(d) / m / check_epsilon(epsilon)


def hidden_expert(
    horizon: int, clients: int, experts: int, epsilon: float, *, delta: float = 0.0
) -> HiddenExpert:
    """Return a proven lower bound on one client's regret, for any (epsilon, delta)-DP algorithm.

    Here T is ``horizon``, m ``clients`` and d ``experts``. delta is in [0, 1).

    The bound holds in the realizable case too. The adversary draws an expert j uniformly before the
    first round. In the first `rounds` rounds, all experts but j lose 1 at every client. All other
    losses are 0. The expected regret is at least the sum over rounds t = 1, ..., `rounds` of

    max(1 - q/d - c (q - 1), (1 - 1/d - c (q - 1))/q),

    where q = e^(epsilon k), k = m (t - 1) is the number of records before round t, and
    c = delta/(e^epsilon - 1). `rounds` maximises this sum. For delta = 0, `rounds` is T, and the
    regret is at least .36 min(ln(d)/(m epsilon), T), and for large T at least
    (ln(d - 1) - 1 + 3/d)/(m epsilon). The losses are linear and constant over the `rounds` rounds,
    so that the bound also applies to algorithms for stochastic losses.
    """
    # Let x_it be the expert that client i chooses in round t, P_j the distribution for the losses
    # of the adversary with expert j, and P_D the distribution for losses D in which expert j loses
    # 1 too. x_it depends only on rounds before t, in which the two losses differ in m (t - 1)
    # records. So group privacy gives, for p = P_j(x_it = j) and p_0 = P_D(x_it = j):
    # p <= q p_0 + c (q - 1) and 1 - p_0 <= q (1 - p) + c (q - 1). The p_0 of all j sum to at most
    # 1, and the lesser of the two bounds on p is concave in p_0. So the mean of p over j is at most
    # the bound at p_0 = 1/d. Sum 1 - p over rounds and average over clients.
    t, m, d = check_horizon(horizon), check_clients(clients), check_experts(experts)
    group_epsilon = m * check_epsilon(epsilon)  # of all records of one round
    c = number("delta", delta, at_least=0, below=1)
    c = c / math.expm1(epsilon) if epsilon < 700 else 0.0
    if d == 1:
        return HiddenExpert(t, 0.0)
    # Of the two terms in the maximum, the first is the larger for q up to a/(1/d + c), and the
    # second is positive for q up to a/c.
    a = 1.0 - 1.0 / d + c
    n1 = min(t, math.floor(math.log(max(a / (1.0 / d + c), 1.0)) / group_epsilon) + 1)
    n2 = t
    if c > 0.0:
        n2 = min(t, math.ceil(max(math.log(a) - math.log(c), 0.0) / group_epsilon))
    n1 = min(n1, n2)
    # Sum the first term over the first n1 rounds, and the second over rounds n1 + 1 to n2. `powers`
    # is the sum of q over the former rounds, and `tail` the sum of 1/q over the latter.
    powers = math.expm1(n1 * group_epsilon) / math.expm1(group_epsilon) if n1 > 1 else float(n1)
    total = (1.0 + c) * n1 - (1.0 / d + c) * powers
    tail = math.exp(-n1 * group_epsilon) * math.expm1(-(n2 - n1) * group_epsilon)
    tail /= math.expm1(-group_epsilon)
    return HiddenExpert(n2, max(0.0, total + a * tail - c * (n2 - n1)))


# ---- Bound curves --------------------------------------------------------------------------------


def lower_bound_curves(
    plan: ExpertPlan,
    problem: ProblemSpec,
    rounds: np.ndarray,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> dict[str, list[float]]:
    """Return lower bounds on expected group regret at rounds (C,), for worst-case losses.

    Group regret is the sum of the regret of all clients. "theorem-2-4" is for losses that are fair
    coins, the same at all clients. It bounds the regret against the best expert in hindsight. (On
    these coins, the expected regret against a fixed expert is 0.) It is left out if the problem
    guarantees i.i.d. losses. "hidden-expert" is the price of privacy if all experts but one lose in
    every round. It is left out without privacy.

    Parameters
    ----------
    plan : ExpertPlan
        The curve's plan.
    problem : ProblemSpec
        Sizes, and guarantees about the losses.
    rounds : ndarray, shape (C,)
        Rounds at which bounds are computed.
    epsilon : float, optional
        The epsilon of the privacy budget. None for no privacy.
    delta : float, default 0
        The delta of the privacy budget.

    Returns
    -------
    dict of str to list of float
        Bounds by name, each of length C.
    """
    m, d = plan.silos, plan.experts
    curves = {}
    if not problem.iid:
        curves["theorem-2-4"] = [m * theorem_2_4(int(t), d) for t in rounds]
    if epsilon is not None:
        curves["hidden-expert"] = [
            m * hidden_expert(int(t), m, d, epsilon, delta=delta).regret for t in rounds
        ]
    return curves


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
    """Return the printed order of regret in one row of Table 1 (a name in `TABLE_1`).

    Here T is ``horizon`` and m ``clients``. Rows for one client ignore `clients`.

    The table omits five quantities: the smoothness beta, the phase length N, the bound L* on the
    best expert's loss, delta and the failure probability rho. But ln(1/delta) and N are factors in
    the theorems. The Fed-SVT row of the table holds only if N + L* is at most ln(T)/(m epsilon). As
    N is at least 1, this is impossible if m epsilon > ln T. The row of `fed-dp-ope-stoch` has
    sqrt(m) epsilon where Corollary 2.3 has m^(1/4) epsilon.
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
    """Return Table 1's order of the count of numbers sent: m d ln T or m^2 d T epsilon.

    The order m^2 d T epsilon is m d T/N for N = 1/(m epsilon), which is a valid phase length only
    for m epsilon <= 1.

    Here T is ``horizon``, m ``clients`` and d ``experts``.
    """
    rows = ("fed-dp-ope-stoch", "fed-svt", "fed-svt-approximate")
    name = choice("row", row, rows)
    t, m, d = check_horizon(horizon), check_clients(clients), check_experts(experts)
    epsilon = check_epsilon(epsilon)
    value = m * d * math.log(t) if name == rows[0] else m * m * d * t * epsilon
    return check_constant(constant) * value
