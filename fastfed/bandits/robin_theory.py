"""Constants of ROBIN: its phases, the radius its estimates concentrate in, when sharing can work.

huang-2023, Theorem 3.3, Proposition C.3 and Remark 4.6. lambda_0 and C_0 are the diversity and
margin constants of the environment (Assumptions 3.1, 3.2, which `fastfed.environments.diversity`
estimates), beta the failure probability. Natural logarithms, log2 where written.
"""

from __future__ import annotations

import math

from fastfed.bandits.setting import Setting
from fastfed.protocols.phases import phases_of

#: Beyond this many phases no horizon is left to play.
MOST_PHASES = 200


def concentration(setting: Setting, lambda_0: float, beta: float) -> float:
    """c_1 = 4 sqrt(2 d ln(16 d (M + 1) P / beta)) / lambda_0: estimates of a phase of n rounds lie
    within c_1 / sqrt n of theta* (Theorem 3.3)."""
    d, m, phases = setting.dimension, setting.silos, phases_of(setting.horizon)
    return 4.0 * math.sqrt(2.0 * d * math.log(16.0 * d * (m + 1) * phases / beta)) / lambda_0


def initial_phases(setting: Setting, lambda_0: float, margin: float, beta: float) -> int:
    """U of Proposition C.3: the least U with both of its conditions, the second one implicit in U.

    2^U >= 64 ln(2 d M P/beta) / lambda_0^2 and
    2^U >= 144 d U^2 (C_0 + lambda_0)^2 ln(2 d M P/beta) ln 2 / lambda_0^4.
    """
    d, m, phases = setting.dimension, setting.silos, phases_of(setting.horizon)
    log = math.log(2.0 * d * m * phases / beta)
    first = math.log2(64.0 * log) - 2.0 * math.log2(lambda_0)
    second = math.log2(144.0 * d * log * math.log(2.0))
    second += 2.0 * math.log2(margin + lambda_0) - 4.0 * math.log2(lambda_0)
    for u in range(1, MOST_PHASES):
        if u >= first and u >= second + 2.0 * math.log2(u):
            return u
    return MOST_PHASES


def sharing_pays(setting: Setting, epsilon: float) -> bool:
    """Whether epsilon >= sqrt(d) ln^1.5(T) / M: Remark 4.6, its hidden constant taken as 1."""
    rounds = max(math.log(setting.horizon), 0.0)
    return epsilon >= math.sqrt(setting.dimension) * rounds**1.5 / setting.silos
