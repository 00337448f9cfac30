"""LinUCB of a trusted agent: joint differential privacy, every round or in batches.

chowdhury-zhou-2022, Appendix F (Proposition F.3), after Shariff and Sheffet 2018. Deviations: those
of fastfed/bandits/agent.py; the noise may be a Toeplitz or Honaker release instead of the tree; the
published code's is no tree at all and hides little (fastfed/privacy/joint.py), and what it adds
before any data, in the first round alone, is left out.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice
from fastfed.bandits.agent import GaussianKeys, check_agent, private
from fastfed.bandits.agent_published import PublishedCode, of_agent
from fastfed.bandits.linucb_bounds import batch_size_f_4
from fastfed.bandits.noise import Noise
from fastfed.bandits.noise_law import NoiseLaw
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.privacy.joint import NestedNoise, calibrate_joint
from fastfed.privacy.two_streams import RELEASES
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import AGENT_PROTOCOLS, released_as


class JointKeys(GaussianKeys, frozen=True, kw_only=True):
    """Keys of a linucb-jdp curve."""

    release: str = "tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("release", self.release, RELEASES)


def build(keys: JointKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb-jdp", setting)
    batch_size = keys.batch(setting, lambda: batch_size_f_4(setting.horizon))
    if setting.horizon == 1 and keys.calibration == "published-code":
        raise InputError('calibration "published-code" needs a horizon of 2 at least: ln 1 = 0')
    releases = setting.horizon // batch_size
    mechanism = calibrate_joint(
        keys.budget,
        releases,
        setting.horizon,
        release=keys.release,
        calibration=keys.calibration,
        layout=keys.layout,
        covariance_ratio=keys.ratio,
        returning=keys.returns(releases),
    )
    std = NoiseStd(*mechanism.stds)
    noise = Noise(mechanism, NoiseLaw(std, 1, mechanism.variance_factors), std)
    release = "nested" if isinstance(mechanism, NestedNoise) else keys.release
    budget = keys.budget
    gamma = of_agent(budget.epsilon, budget.delta, max(setting.horizon, 2), setting.dimension)
    return private(
        "linucb-jdp",
        keys,
        setting,
        released_as(AGENT_PROTOCOLS["agent-central"], release),
        batch_size,
        PublishedCode(gamma),
        noise,
        release=release,
    )


ALGORITHM = Algorithm(
    id="linucb-jdp",
    paper="chowdhury-zhou-2022",
    summary="one trusted agent adds noise to its sums: joint privacy",
    keys=JointKeys,
    build=build,
)
