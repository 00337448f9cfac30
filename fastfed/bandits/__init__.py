"""Linear-bandit systems: policies, theory, and one file for each algorithm.

A new algorithm is one new file with an ``ALGORITHM``, and one line in ``ALGORITHMS``; from another
package it is an entry point (docs/extending.md).
"""

from __future__ import annotations

from fastfed._system import account
from fastfed.bandits import (
    agent_amp,
    agent_jdp,
    agent_ldp,
    agent_linucb,
    agent_vec,
    fedlinucb,
    feducb,
    feducb_decentralized,
    local_linucb,
    private_fedlinucb,
    random_policy,
    robin,
)
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System

ALGORITHMS = {
    a.id: a
    for a in (
        fedlinucb.ALGORITHM,
        private_fedlinucb.ALGORITHM,
        feducb.ALGORITHM,
        feducb_decentralized.ALGORITHM,
        agent_linucb.ALGORITHM,
        agent_jdp.ALGORITHM,
        agent_ldp.ALGORITHM,
        agent_amp.ALGORITHM,
        agent_vec.ALGORITHM,
        robin.ALGORITHM,
        local_linucb.ALGORITHM,
        random_policy.ALGORITHM,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "Setting", "System", "account"]
