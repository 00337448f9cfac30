"""Bounds on the regret of federated prediction from experts, from above and below: gao-2024.

Every regret here is per client: the loss of m clients in T rounds beyond that of the best fixed
expert, divided by m. Orders of the paper are evaluated with natural logarithms and multiplied by
`constant`, the hidden one: `theorem_2_2` to `theorem_2_7`, `corollary_2_3` and `table_1`. The
others are proven with the constants they show; comments and docstrings hold the proofs.

- Fed-DP-OPE-Stoch, in expectation: `phase_suboptimality` of a `PhaseNoise`,
  `stoch_regret`; printed: `theorem_2_2`, `corollary_2_3`.
- Fed-SVT, with a probability: `switching_budget`, `noise_margin`, `threshold`,
  `svt_regret`; their failures from given numbers: `budget_failure`, `early_switch_failure`,
  `late_switch_failure`; printed: `switching_budget_printed`, `noise_margin_printed`, `theorem_2_6`.
- No algorithm does better (`lower_bounds`): `theorem_2_4` without privacy, exact, `hidden_expert`
  with it; printed: `theorem_2_4_private`, `theorem_2_7`.
  Table 1, all printed: `table_1` and `table_1_communication`.

Parameters
----------
The same names mean the same in all functions; bad values raise InputError.

horizon : int
    T >= 1.
clients : int
    m >= 1.
experts : int
    d >= 1.
epsilon, delta : float
    Budget of one loss of one client, epsilon > 0 and delta in (0, 1).
failure_probability : float
    rho in (0, 1).
lipschitz : float
    alpha > 0, for the 1-norm.
smoothness : float
    beta >= 0, for the 1-norm.
constant : float
    Factor > 0 on a printed order.
"""

from __future__ import annotations

from fastfed.experts.fed_dp_ope_stoch_bounds import (
    PhaseNoise,
    corollary_2_3,
    phase_suboptimality,
    stoch_regret,
    theorem_2_2,
)
from fastfed.experts.fed_svt_bounds import (
    budget_failure,
    early_switch_failure,
    late_switch_failure,
    noise_margin,
    noise_margin_printed,
    svt_regret,
    switching_budget,
    switching_budget_printed,
    theorem_2_6,
    threshold,
)
from fastfed.experts.lower_bounds import (
    TABLE_1,
    HiddenExpert,
    hidden_expert,
    table_1,
    table_1_communication,
    theorem_2_4,
    theorem_2_4_private,
    theorem_2_7,
)

__all__ = [
    "TABLE_1",
    "HiddenExpert",
    "PhaseNoise",
    "budget_failure",
    "corollary_2_3",
    "early_switch_failure",
    "hidden_expert",
    "late_switch_failure",
    "noise_margin",
    "noise_margin_printed",
    "phase_suboptimality",
    "stoch_regret",
    "svt_regret",
    "switching_budget",
    "switching_budget_printed",
    "table_1",
    "table_1_communication",
    "theorem_2_2",
    "theorem_2_4",
    "theorem_2_4_private",
    "theorem_2_6",
    "theorem_2_7",
    "threshold",
]
