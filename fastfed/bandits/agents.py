"""Single-agent LinUCB without privacy and under joint, local, shuffled and vector-sum privacy.

One section for each system of chowdhury-zhou-2022; `agent` holds what they share.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice, number
from fastfed.bandits.agent import (
    MESSAGES,
    NOT_PRIVATE,
    AgentConfig,
    GaussianConfig,
    PrivateAgentConfig,
    PublishedCode,
    check_agent,
    free_ratio,
    gaussian_noise,
    of_agent,
    of_users,
    of_vector,
    planned,
    private,
    vector_noise,
)
from fastfed.bandits.assemble import Noise
from fastfed.bandits.certify import certify
from fastfed.bandits.linucb_bounds import (
    batch_size_b_2,
    batch_size_c_2,
    batch_size_c_3,
    batch_size_e_4,
    batch_size_e_6,
    batch_size_f_2,
    batch_size_f_4,
)
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.setting import ProblemSpec
from fastfed.bandits.system import Algorithm, System
from fastfed.privacy.mechanisms.joint_dp import NestedNoise, calibrate_joint_dp
from fastfed.privacy.releases.gaussian_release import RELEASES
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import AGENT_PROTOCOLS, released_as

# ---- LinUCB of a single agent without privacy: the curve its private kin aim at ------------------
# chowdhury-zhou-2022, Algorithm 1 with exact sums, in batches or every round. Deviations: those of
# fastfed/bandits/agent.py; every round, the estimate changes by rank-one steps alone, and the
# radius counts the running round, too (t for t - 1).


def build_linucb(keys: AgentConfig, setting: ProblemSpec) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb", setting)
    batch_size = keys.batch(setting, lambda: batch_size_f_4(setting.horizon))
    plan, theory, _ = planned(keys, setting, AGENT_PROTOCOLS["agent"], batch_size, NOT_PRIVATE)
    plan, certificate = certify(plan, setting, theory, None, "chowdhury-zhou-2022, Algorithm 1")
    return System("linucb", plan, certificate, theory=theory)


AGENT_LINUCB = Algorithm(
    id="linucb",
    paper="chowdhury-zhou-2022",
    summary="one agent, every round or in batches, not private",
    keys=AgentConfig,
    build=build_linucb,
)


# ---- LinUCB of a trusted agent: joint differential privacy, every round or in batches ------------
# chowdhury-zhou-2022, Appendix F (Proposition F.3), after Shariff and Sheffet 2018. Deviations:
# those of fastfed/bandits/agent.py; the noise may be a Toeplitz or Honaker release instead of the
# tree; the published code's is no tree at all and hides little (see `joint_dp`),
# and what it adds before any data, in the first round alone, is left out.


class JointConfig(GaussianConfig, frozen=True, kw_only=True):
    """Config of a linucb-jdp curve."""

    release: str = "tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("release", self.release, RELEASES)


def build_jdp(keys: JointConfig, setting: ProblemSpec) -> System:
    """Plan and certificate of one curve."""
    check_agent("linucb-jdp", setting)
    batch_size = keys.batch(setting, lambda: batch_size_f_4(setting.horizon))
    if setting.horizon == 1 and keys.calibration == "published-code":
        raise InputError('calibration "published-code" needs a horizon of 2 at least: ln 1 = 0')
    releases = setting.horizon // batch_size
    mechanism = calibrate_joint_dp(
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
    noise = Noise(mechanism, NoiseDistribution(std, 1, mechanism.variance_factors), std)
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


AGENT_JDP = Algorithm(
    id="linucb-jdp",
    paper="chowdhury-zhou-2022",
    summary="one trusted agent adds noise to its sums: joint privacy",
    keys=JointConfig,
    build=build_jdp,
)


# ---- LinUCB under local privacy: every user adds noise to their own data point -------------------
# chowdhury-zhou-2022, Proposition F.1 (after Zheng et al. 2020), every round or in batches, or the
# vector sum at local budgets (Corollary C.3). Deviations: those of fastfed/bandits/agent.py, and
# ``messages = "aggregate"`` draws the sum of a batch's noises, which has the same law; "individual"
# makes and adds up the users' own messages.


MECHANISMS = ("gaussian", "vector-sum")


class LocalConfig(GaussianConfig, frozen=True, kw_only=True):
    """Config of a linucb-ldp curve."""

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


def build_ldp(keys: LocalConfig, setting: ProblemSpec) -> System:
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


AGENT_LDP = Algorithm(
    id="linucb-ldp",
    paper="chowdhury-zhou-2022",
    summary="one agent whose users add noise to their own data: local privacy",
    keys=LocalConfig,
    build=build_ldp,
    deployed=(("messages", "individual"),),
)


# ---- LinUCB whose users add noise to their own data, and a shuffler mixes those of a batch -------
# chowdhury-zhou-2022, P_Amp: Algorithms 2-4, Theorems 3.2, B.1 and E.3. Deviations: those of
# fastfed/bandits/agent.py, and
# - exact privacy is the better of Lemma B.4, whose condition on B the theorems leave out, and of
#   local privacy, which needs no shuffler;
# - for users who return Theorem E.3 is mended: its printed noise lacks a logarithm;
# - ``messages = "aggregate"`` draws the sum of a batch's noises, which has the same law;
#   "individual" makes, shuffles and adds up the users' own messages.


class AmplifiedConfig(GaussianConfig, frozen=True, kw_only=True):
    """Config of a linucb-sdp-amp curve."""

    batch_size: int | str | None = None
    messages: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("messages", self.messages, MESSAGES)


def build_amp(keys: AmplifiedConfig, setting: ProblemSpec) -> System:
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


AGENT_AMP = Algorithm(
    id="linucb-sdp-amp",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' noisy data through a shuffler",
    keys=AmplifiedConfig,
    build=build_amp,
    deployed=(("messages", "individual"),),
)


# ---- LinUCB whose users send their data as noisy bits, and a shuffler mixes those of a batch -----
# chowdhury-zhou-2022, P_Vec: Algorithms 5-7 (after Cheu et al. 2021), Theorems C.1 and E.5.
# Deviations: those of fastfed/bandits/agent.py, and
# - messages have 2 g + b bits, with g and b integers rounded to the private side; a matrix is sent
#   once, i <= j, and mirrored;
# - the published code cuts b off, but not in the mean that it takes off: a bias that is not ours;
# - ``messages = "aggregate"`` draws the number of ones, which is all that shuffled bits tell;
#   "individual" makes, shuffles and counts every bit.


class VectorConfig(PrivateAgentConfig, frozen=True, kw_only=True):
    """Config of a linucb-sdp-vec curve."""

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


def build_vec(keys: VectorConfig, setting: ProblemSpec) -> System:
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


AGENT_VEC = Algorithm(
    id="linucb-sdp-vec",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' data as noisy bits through a shuffler",
    keys=VectorConfig,
    build=build_vec,
    deployed=(("messages", "individual"),),
)
