"""LinUCB of a single agent without privacy: the curve its private kin aim at.

chowdhury-zhou-2022, Algorithm 1 with exact sums, in batches or every round. Deviations: those of
fastfed/bandits/agent.py; every round, the estimate changes by rank-one steps alone, and the radius
counts the running round, too (t for t - 1).
"""

from __future__ import annotations

from fastfed.bandits.agent import AgentKeys, check_agent, planned
from fastfed.bandits.agent_published import NOT_PRIVATE
from fastfed.bandits.certify import certify
from fastfed.bandits.linucb_bounds import batch_size_f_4
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.protocols.protocol import AGENT_PROTOCOLS


def build(keys: AgentKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb", setting)
    batch_size = keys.batch(setting, lambda: batch_size_f_4(setting.horizon))
    plan, theory, _ = planned(keys, setting, AGENT_PROTOCOLS["agent"], batch_size, NOT_PRIVATE)
    plan, certificate = certify(plan, setting, theory, None, "chowdhury-zhou-2022, Algorithm 1")
    return System("linucb", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="linucb",
    paper="chowdhury-zhou-2022",
    summary="one agent, every round or in batches, not private",
    keys=AgentKeys,
    build=build,
)
