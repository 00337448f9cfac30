"""LinUCB whose users send their data as noisy bits, and a shuffler mixes those of a batch.

chowdhury-zhou-2022, P_Vec: Algorithms 5-7 (after Cheu et al. 2021), Theorems C.1 and E.5.
Deviations: those of fastfed/bandits/agent.py, and
- messages have 2 g + b bits, with g and b integers rounded to the private side; a matrix is sent
  once, i <= j, and mirrored;
- the published code cuts b off, but not in the mean that it takes off: a bias that is not ours;
- ``messages = "aggregate"`` draws the number of ones, which is all that shuffled bits tell;
  "individual" makes, shuffles and counts every bit.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice, number
from fastfed.bandits.agent import MESSAGES, PrivateAgentKeys, check_agent, free_ratio, private
from fastfed.bandits.agent_noise import vector_noise
from fastfed.bandits.agent_published import PublishedCode, of_vector
from fastfed.bandits.linucb_bounds import batch_size_c_2, batch_size_e_6
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.protocols.protocol import AGENT_PROTOCOLS


class VectorKeys(PrivateAgentKeys, frozen=True, kw_only=True):
    """Keys of a linucb-sdp-vec curve."""

    batch_size: int | str | None = None
    messages: str = "aggregate"
    covariance_ratio: float | None = None
    #: b times this, of the published code; the share of users whose noise bits are counted on.
    vector_scale: float = 1.0
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("messages", self.messages, MESSAGES)
        number("vector_scale", self.vector_scale, above=0.0)
        number("honest_fraction", self.honest_fraction, above=0.0, at_most=1.0)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)
        if self.vector_scale != 1.0 and self.calibration != "published-code":
            raise InputError(
                'vector_scale belongs to calibration "published-code", got '
                f'{self.vector_scale:g} with "{self.calibration}"'
            )

    @property
    def ratio(self) -> float:
        """Noise of the covariance stream over that of the bias stream."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        return free_ratio(self)


def build(keys: VectorKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb-sdp-vec", setting)
    epsilon, delta = keys.budget.epsilon, keys.budget.delta
    d, horizon = setting.dimension, setting.horizon
    rule = batch_size_c_2 if keys.returning == 1 else batch_size_e_6
    batch_size = keys.batch(setting, lambda: rule(horizon, d, epsilon, delta))
    noise = vector_noise(
        keys,
        setting,
        batch_size,
        vector_scale=keys.vector_scale,
        honest_fraction=keys.honest_fraction,
        ratio=keys.ratio,
    )
    return private(
        "linucb-sdp-vec",
        keys,
        setting,
        AGENT_PROTOCOLS["user-shuffle-vector"],
        batch_size,
        PublishedCode(of_vector(epsilon, delta, batch_size, horizon, d)),
        noise,
        individual=keys.messages == "individual",
    )


ALGORITHM = Algorithm(
    id="linucb-sdp-vec",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' data as noisy bits through a shuffler",
    keys=VectorKeys,
    build=build,
    deployed=(("messages", "individual"),),
)
