"""Private federated prediction from experts: algorithms, bounds, plans and step-by-step parties.

A new algorithm is a file with an ``Algorithm`` and a line in ``ALGORITHMS``; from another package
it is an entry point (docs/extending.md).
"""

from __future__ import annotations

from fastfed._system import account
from fastfed.experts import baselines, fed_dp_ope_stoch, fed_svt, limited_updates, private_dartboard
from fastfed.experts.plan import Algorithm, ProblemSpec, System

ALGORITHMS = {
    a.id: a
    for a in (
        fed_dp_ope_stoch.ALGORITHM,
        fed_svt.ALGORITHM,
        private_dartboard.ALGORITHM,
        limited_updates.ALGORITHM,
        baselines.LEADER,
        baselines.HEDGE,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "ProblemSpec", "System", "account"]
