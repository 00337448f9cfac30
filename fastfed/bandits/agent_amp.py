"""LinUCB whose users add noise to their own data, and a shuffler mixes those of a batch.

chowdhury-zhou-2022, P_Amp: Algorithms 2-4, Theorems 3.2, B.1 and E.3. Deviations: those of
fastfed/bandits/agent.py, and
- exact privacy is the better of Lemma B.4, whose condition on B the theorems leave out, and of
  local privacy, which needs no shuffler;
- for users who return Theorem E.3 is mended: its printed noise lacks a logarithm;
- ``messages = "aggregate"`` draws the sum of a batch's noises, which has the same law;
  "individual" makes, shuffles and adds up the users' own messages.
"""

from __future__ import annotations

from fastfed._validate import choice
from fastfed.bandits.agent import MESSAGES, GaussianKeys, check_agent, private
from fastfed.bandits.agent_noise import gaussian_noise
from fastfed.bandits.agent_published import PublishedCode, of_users
from fastfed.bandits.linucb_bounds import batch_size_b_2, batch_size_e_4
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.protocols.protocol import AGENT_PROTOCOLS


class AmplifiedKeys(GaussianKeys, frozen=True, kw_only=True):
    """Keys of a linucb-sdp-amp curve."""

    batch_size: int | str | None = None
    messages: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("messages", self.messages, MESSAGES)


def build(keys: AmplifiedKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb-sdp-amp", setting)
    epsilon, delta = keys.budget.epsilon, keys.budget.delta
    d, horizon = setting.dimension, setting.horizon
    rule = batch_size_b_2 if keys.returning == 1 else batch_size_e_4
    batch_size = keys.batch(setting, lambda: rule(horizon, d, epsilon, delta))
    return private(
        "linucb-sdp-amp",
        keys,
        setting,
        AGENT_PROTOCOLS["user-shuffle-amplified"],
        batch_size,
        PublishedCode(of_users(epsilon, delta, batch_size, horizon, d)),
        gaussian_noise(keys, setting, batch_size, shuffled=True),
        individual=keys.messages == "individual",
    )


ALGORITHM = Algorithm(
    id="linucb-sdp-amp",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' noisy data through a shuffler",
    keys=AmplifiedKeys,
    build=build,
    deployed=(("messages", "individual"),),
)
