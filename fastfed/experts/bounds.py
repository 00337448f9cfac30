"""Upper and lower bounds on the regret of federated prediction from experts (gao-2024).

Every regret here is per client: the loss of m clients in T rounds minus the loss of the best fixed
expert, divided by m. `theorem_2_2` to `theorem_2_7`, `corollary_2_3` and `table_1` evaluate orders
of the paper, with natural logarithms and with `constant` for the hidden constant. The other
functions return proven bounds with explicit constants; comments and docstrings contain the proofs.

- Fed-DP-OPE-Stoch, in expectation: `phase_suboptimality` of a `PhaseNoise`,
  `stoch_regret`; printed: `theorem_2_2`, `corollary_2_3`.
- Fed-SVT, with high probability: `switching_budget`, `noise_margin`, `threshold`,
  `svt_regret`; failure probabilities: `budget_failure`, `early_switch_failure`,
  `late_switch_failure`; printed: `switching_budget_printed`, `noise_margin_printed`, `theorem_2_6`.
- Lower bounds for all algorithms: `theorem_2_4` without privacy (exact), `hidden_expert` with
  privacy; printed: `theorem_2_4_private`, `theorem_2_7`.
  Table 1, all printed: `table_1` and `table_1_communication`.

Parameters
----------
Parameters have the same meaning in all functions. Invalid values raise InputError.

horizon : int
    T >= 1, the number of rounds.
clients : int
    m >= 1, the number of clients.
experts : int
    d >= 1, the number of experts.
epsilon, delta : float
    Privacy budget for one loss of one client, epsilon > 0 and delta in (0, 1).
failure_probability : float
    rho in (0, 1), the probability that the bound fails.
lipschitz : float
    alpha > 0, the Lipschitz constant in the 1-norm.
smoothness : float
    beta >= 0, the smoothness in the 1-norm.
constant : float
    Factor > 0 that multiplies a printed order.
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
