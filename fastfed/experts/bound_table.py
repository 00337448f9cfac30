"""Table 1 of gao-2024: regret and communication of what is known, as printed orders.

Arguments as in `fastfed.experts.bounds`.
"""

from __future__ import annotations

import math

from fastfed._validate import choice
from fastfed.experts import bound_checks as check

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
    t, m, d = check.horizon(horizon), check.clients(clients), check.experts(experts)
    epsilon = check.epsilon(epsilon)
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
    return check.constant(constant) * value


def table_1_communication(
    row: str, horizon: int, clients: int, experts: int, epsilon: float, *, constant: float = 1.0
) -> float:
    """Numbers sent in all according to Table 1, the printed order: m d ln T or m^2 d T epsilon.

    The latter is m d T/N for N = 1/(m epsilon), which is a phase for m epsilon <= 1 only.
    """
    rows = ("fed-dp-ope-stoch", "fed-svt", "fed-svt-approximate")
    name = choice("row", row, rows)
    t, m, d = check.horizon(horizon), check.clients(clients), check.experts(experts)
    epsilon = check.epsilon(epsilon)
    value = m * d * math.log(t) if name == rows[0] else m * m * d * t * epsilon
    return check.constant(constant) * value
