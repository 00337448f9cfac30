"""Private federated prediction from experts: plans, parties, and one file for each algorithm.

A new algorithm is one new file with an ``ALGORITHM``, and one line in ``ALGORITHMS``.
"""

from __future__ import annotations

from fastfed._system import account
from fastfed.experts import baselines, fed_dp_ope_stoch, fed_svt
from fastfed.experts.plan import Algorithm, Setting, System

ALGORITHMS = {
    a.id: a
    for a in (
        fed_dp_ope_stoch.ALGORITHM,
        fed_svt.ALGORITHM,
        baselines.LEADER,
        baselines.HEDGE,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "Setting", "System", "account"]
