"""LinUCB under local privacy: every user adds noise to their own data point.

chowdhury-zhou-2022, Proposition F.1 (after Zheng et al. 2020), every round or in batches, or the
vector sum at local budgets (Corollary C.3). Deviations: those of fastfed/bandits/agent.py, and
``messages = "aggregate"`` draws the sum of a batch's noises, which has the same law; "individual"
makes and adds up the users' own messages.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice
from fastfed.bandits.agent import MESSAGES, GaussianKeys, check_agent, free_ratio, private
from fastfed.bandits.agent_noise import gaussian_noise, vector_noise
from fastfed.bandits.agent_published import PublishedCode, of_users
from fastfed.bandits.linucb_bounds import batch_size_c_3, batch_size_f_2
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.protocols.protocol import AGENT_PROTOCOLS

MECHANISMS = ("gaussian", "vector-sum")


class LocalKeys(GaussianKeys, frozen=True, kw_only=True):
    """Keys of a linucb-ldp curve."""

    mechanism: str = "gaussian"
    messages: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("mechanism", self.mechanism, MECHANISMS)
        choice("messages", self.messages, MESSAGES)
        if self.mechanism == "gaussian":
            return
        if "published-code" in (self.calibration, self.radius):
            raise InputError('mechanism "vector-sum" has no published code for linucb-ldp')
        if self.layout not in (None, "iid"):
            raise InputError(
                'layout must be "iid" for mechanism "vector-sum": each entry i <= j has bits of '
                f'its own, got "{self.layout}"'
            )

    @property
    def ratio(self) -> float:
        if not self.bits or self.covariance_ratio is not None:
            return super().ratio
        return free_ratio(self)

    @property
    def bits(self) -> bool:
        """Whether data points travel as bits."""
        return self.mechanism == "vector-sum"


def build(keys: LocalKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb-ldp", setting)
    epsilon, delta = keys.budget.epsilon, keys.budget.delta
    d, horizon = setting.dimension, setting.horizon

    def rule() -> int:
        if keys.bits:
            return batch_size_c_3(horizon, d, epsilon, delta)
        return batch_size_f_2(horizon)

    batch_size = keys.batch(setting, rule)
    if keys.bits:
        noise = vector_noise(keys, setting, batch_size, local=True, ratio=keys.ratio)
    else:
        noise = gaussian_noise(keys, setting, batch_size, shuffled=False)
    return private(
        "linucb-ldp",
        keys,
        setting,
        AGENT_PROTOCOLS["user-ldp-vector" if keys.bits else "user-ldp"],
        batch_size,
        PublishedCode(of_users(epsilon, delta, 1, horizon, d)),
        noise,
        individual=keys.messages == "individual",
    )


ALGORITHM = Algorithm(
    id="linucb-ldp",
    paper="chowdhury-zhou-2022",
    summary="one agent whose users add noise to their own data: local privacy",
    keys=LocalKeys,
    build=build,
    deployed=(("messages", "individual"),),
)
