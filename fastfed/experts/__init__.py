"""Private federated prediction from experts: plans, parties, and one file for each algorithm.

A new algorithm is one new file with an ``ALGORITHM``, and one line in ``ALGORITHMS``.
"""

from __future__ import annotations

from fastfed._system import account
from fastfed.experts import fed_dp_ope_stoch, fed_svt, hedge, leader
from fastfed.experts.setting import Setting
from fastfed.experts.system import Algorithm, System

ALGORITHMS = {
    a.id: a
    for a in (
        fed_dp_ope_stoch.ALGORITHM,
        fed_svt.ALGORITHM,
        leader.ALGORITHM,
        hedge.ALGORITHM,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "Setting", "System", "account"]
