"""Linear bandit systems: algorithms, their theory, certificates, silos and agents.

To add an algorithm, write a module that defines an ``Algorithm``, and add it to ``ALGORITHMS``.
Other packages register algorithms by an entry point (docs/extending.md).
"""

from __future__ import annotations

from fastfed._system import account
from fastfed.bandits import agents, fedlinucb, feducb, robin, thompson
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import Algorithm, System

ALGORITHMS = {
    a.id: a
    for a in (
        fedlinucb.FEDLINUCB,
        fedlinucb.PRIVATE_FEDLINUCB,
        feducb.FEDUCB,
        feducb.FEDUCB_DECENTRALIZED,
        agents.AGENT_LINUCB,
        agents.AGENT_JDP,
        agents.AGENT_LDP,
        agents.AGENT_AMP,
        agents.AGENT_VEC,
        robin.ALGORITHM,
        thompson.THOMPSON,
        fedlinucb.LOCAL_LINUCB,
        fedlinucb.RANDOM,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "ProblemSpec", "System", "account"]
