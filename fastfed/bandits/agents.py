"""Single-agent LinUCB without privacy, and with joint, local and shuffle privacy.

The module has one section for each system of chowdhury-zhou-2022. The common code and the common
deviations from the paper are in `fastfed.bandits.agent`. The systems and their further deviations
from the paper are:

- ``linucb`` (Algorithm 1 with exact sums). With B = 1 the estimate changes by rank-one steps, and
  the radius counts the current round too (t instead of t - 1).
- ``linucb-jdp`` (Appendix F, Proposition F.3, after Shariff and Sheffet 2018). Release types other
  than the tree are allowed. The published code uses no tree and protects little
  (`fastfed.privacy.mechanisms.joint_dp`). The noise that it draws in the first round, before any
  data, is left out.
- ``linucb-ldp`` (Proposition F.1, after Zheng et al. 2020, or the vector sum with local budgets,
  Corollary C.3). ``messages = "aggregate"`` draws the sum of the noise of a batch, which has the
  same distribution. "individual" draws the message of each user.
- ``linucb-sdp-amp`` (P_Amp: Algorithms 2-4, Theorems 3.2, B.1 and E.3). The exact epsilon is the
  smaller of the epsilons of Lemma B.4 and of local privacy, which needs no shuffler. The theorems
  leave out the lemma's condition on the batch size B. If a user takes part in several batches, the
  noise of Theorem E.3 is corrected, because the printed noise lacks a logarithm. ``messages`` has
  the same values as for ``linucb-ldp``, and "individual" also shuffles the messages.
- ``linucb-sdp-vec`` (P_Vec: Algorithms 5-7, after Cheu et al. 2021, Theorems C.1 and E.5). Each
  entry of a message has 2 g + b bits: up to 2 g encode the value, and b are noise. g and b are
  integers, rounded such that privacy never decreases. Of a symmetric matrix only the entries i <= j
  are sent. The published code truncates b to an integer, but subtracts the mean of the noise for
  the b before truncation, which biases its sums. This bias is not reproduced.
  ``messages = "aggregate"`` draws the number of ones, because shuffled bits reveal nothing else.
  "individual" draws and shuffles every bit.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Self

import msgspec

from fastfed._validate import InputError, choice, number
from fastfed.bandits.agent import (
    MESSAGES,
    WITHOUT_PRIVACY,
    AgentConfig,
    GaussianConfig,
    PrivateAgentConfig,
    PublishedCode,
    bits_ratio,
    check_agent,
    gaussian_noise,
    joint_gamma,
    plan_and_theory,
    private_system,
    user_gamma,
    vector_gamma,
    vector_noise,
)
from fastfed.bandits.assemble import (
    Noise,
    check_saturation,
    usual_release,
    with_release,
    with_saturation,
)
from fastfed.bandits.certify import certify
from fastfed.bandits.linucb_bounds import batch_size
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import BoundSetting, ProblemSpec
from fastfed.bandits.system import Algorithm, System
from fastfed.privacy.mechanisms.joint_dp import NestedNoise, calibrate_joint_dp
from fastfed.privacy.releases.gaussian_release import RELEASES
from fastfed.privacy.releases.prefix_sums import optimal_factor
from fastfed.protocols.account import centred_of
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import AGENT_PROTOCOLS, released_as
from fastfed.protocols.schedule import Schedule


def _schedule(config: AgentConfig, problem: ProblemSpec, rule: str) -> Schedule:
    """Return the schedule of a single agent: the rounds after which it makes a release.

    ``rule`` names the theorem of chowdhury-zhou-2022 that chooses the batch size B if the curve
    sets ``batch_size = "theorem"``, such as "F.4" (see `linucb_bounds.batch_size`).
    """
    setting = BoundSetting(horizon=problem.horizon, dimension=problem.dimension)
    if isinstance(config, PrivateAgentConfig):
        epsilon, delta = config.budget.epsilon, config.budget.delta
        setting = msgspec.structs.replace(setting, epsilon=epsilon, delta=delta)
    return config.batches(problem, lambda: batch_size(rule, setting))


# ---- linucb --------------------------------------------------------------------------------------


def build_linucb(config: AgentConfig, problem: ProblemSpec) -> System:
    """Build the system of one linucb curve of an experiment: its plan and certificate."""
    check_agent("linucb", problem)
    schedule = _schedule(config, problem, "F.4")
    plan, theory = plan_and_theory(
        config, problem, AGENT_PROTOCOLS["agent"], schedule, WITHOUT_PRIVACY
    )
    plan, certificate = certify(plan, problem, theory, None, "chowdhury-zhou-2022, Algorithm 1")
    return System("linucb", plan, certificate, theory=theory)


AGENT_LINUCB = Algorithm(
    id="linucb",
    paper="chowdhury-zhou-2022",
    summary="one agent, every round or in batches, not private",
    config=AgentConfig,
    build=build_linucb,
)


# ---- linucb-jdp ----------------------------------------------------------------------------------


class JointConfig(GaussianConfig, frozen=True, kw_only=True):
    """Keys of a linucb-jdp curve.

    Parameters
    ----------
    release : {"tree", "honaker", "toeplitz", "buffered", "factorised"}, optional
        The release type: how noise is added to all prefix sums. The default is the type with the
        smallest expected loss at the problem's sizes (`fastfed.bandits.assemble.usual_release`).
    saturation : float, optional
        n0 in rounds, only for release "factorised": when the factorisation is optimised, noise in
        prefix sums of fewer than n0 rounds counts less (docs/releases.md). The default follows from
        the noise of a single release if there is a ``sieve``, and is 0 otherwise.
    """

    release: str | None = None
    saturation: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_saturation(self)
        if self.release is not None:
            choice("release", self.release, RELEASES)

    def settled(self, problem: ProblemSpec) -> Self:
        """Return the config with the defaults that depend on the problem filled in.

        These are ``release``, ``saturation`` and those of the base class. The default of
        ``release`` is "factorised" if ``saturation`` is above 0. Otherwise it is the type with the
        smallest expected loss, see `usual_release`.
        """
        settled = with_saturation(
            super().settled(problem), problem, lambda c, s: _joint_noise(c, problem, s)
        )
        release = settled.release
        if release is None:
            release = "factorised" if self.saturation else _joint_release(settled, problem)
        return with_release(settled, release)


@lru_cache(maxsize=256)
def _joint_release(config: JointConfig, problem: ProblemSpec) -> str:
    """Return the release type with the smallest expected loss for a linucb-jdp curve."""
    schedule = _schedule(config, problem, "F.4")
    noise_of = partial(_joint_noise, problem=problem, schedule=schedule)
    return usual_release(config, "agent-central", problem, schedule, noise_of)


def _joint_noise(config: JointConfig, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the noise of a linucb-jdp agent, for the release type in ``config.release``.

    ``schedule`` gives the rounds after which the agent makes a release.
    """
    assert config.release is not None
    factor = None
    if config.release == "factorised":
        release_rounds = tuple(int(n) for n in schedule.ends)
        factor = optimal_factor(release_rounds, problem.horizon, config.saturation or 0.0)
    centred = centred_of(config.clipping(problem))
    mechanism = calibrate_joint_dp(
        config.budget,
        schedule.releases,
        problem.horizon,
        release=config.release,
        calibration=config.calibration,
        layout=config.layout,
        covariance_ratio=config.ratio,
        returning=config.participations(schedule.releases),
        factor=factor,
        centred=centred,
    )
    std = NoiseStd(*mechanism.stds)
    distribution = NoiseDistribution(
        std, 1, mechanism.variance_factors, public_constant=centred is not None
    )
    return Noise(mechanism, distribution, std, factor=factor)


def build_jdp(config: JointConfig, problem: ProblemSpec) -> System:
    """Build the system of one linucb-jdp curve of an experiment: its plan and certificate."""
    check_agent("linucb-jdp", problem)
    if problem.horizon == 1 and config.calibration == "published-code":
        raise InputError('calibration "published-code" needs a horizon of at least 2: ln 1 = 0')
    schedule = _schedule(config, problem, "F.4")
    noise = _joint_noise(config, problem, schedule)
    assert config.release is not None
    # The noise of the published code uses no tree. Its release type is "nested", which only
    # `calibration` can select: it is not a value of the key `release`.
    release = "nested" if isinstance(noise.mechanism, NestedNoise) else config.release
    gamma = joint_gamma(config.budget, problem)
    return private_system(
        "linucb-jdp",
        config,
        problem,
        released_as(AGENT_PROTOCOLS["agent-central"], release),
        schedule,
        PublishedCode(gamma),
        noise,
        release=release,
    )


AGENT_JDP = Algorithm(
    id="linucb-jdp",
    paper="chowdhury-zhou-2022",
    summary="one trusted agent adds noise to its sums: joint privacy",
    config=JointConfig,
    build=build_jdp,
)


# ---- linucb-ldp ----------------------------------------------------------------------------------

MECHANISMS = ("gaussian", "vector-sum")


class LocalConfig(GaussianConfig, frozen=True, kw_only=True):
    """Keys of a linucb-ldp curve.

    Parameters
    ----------
    mechanism : {"gaussian", "vector-sum"}
        Users add Gaussian noise, or send their data as bits with noise bits.
    messages : {"aggregate", "individual"}
        A simulation draws the sum of the noise of a batch at once, or every user's message.
    """

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
                'layout must be "iid" for mechanism "vector-sum": each entry i <= j has separate '
                f'bits, got "{self.layout}"'
            )

    @property
    def ratio(self) -> float:
        """The key ``covariance_ratio``, or its default, which depends on ``mechanism``."""
        if not self.bits or self.covariance_ratio is not None:
            return super().ratio
        return bits_ratio(self)

    @property
    def bits(self) -> bool:
        """True if users send their data as bits with noise bits, False for Gaussian noise."""
        return self.mechanism == "vector-sum"


def build_ldp(config: LocalConfig, problem: ProblemSpec) -> System:
    """Build the system of one linucb-ldp curve of an experiment: its plan and certificate."""
    check_agent("linucb-ldp", problem)
    schedule = _schedule(config, problem, "C.3" if config.bits else "F.2")
    if config.bits:
        noise = vector_noise(config, problem, schedule, local=True, ratio=config.ratio)
    else:
        noise = gaussian_noise(config, problem, schedule, shuffled=False)
    return private_system(
        "linucb-ldp",
        config,
        problem,
        AGENT_PROTOCOLS["user-ldp-vector" if config.bits else "user-ldp"],
        schedule,
        PublishedCode(user_gamma(config.budget, 1, problem)),
        noise,
        individual=config.messages == "individual",
    )


AGENT_LDP = Algorithm(
    id="linucb-ldp",
    paper="chowdhury-zhou-2022",
    summary="one agent whose users add noise to their own data: local privacy",
    config=LocalConfig,
    build=build_ldp,
    deployed=(("messages", "individual"),),
)


# ---- linucb-sdp-amp ------------------------------------------------------------------------------


class AmplifiedConfig(GaussianConfig, frozen=True, kw_only=True):
    """Keys of a linucb-sdp-amp curve.

    Parameters
    ----------
    batch_size : int or "theorem"
        B, the number of users of one batch. Required.
    messages : {"aggregate", "individual"}
        A simulation draws the sum of the noise of a batch at once, or every user's message.
    """

    batch_size: int | str | None = None
    messages: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("messages", self.messages, MESSAGES)


def build_amp(config: AmplifiedConfig, problem: ProblemSpec) -> System:
    """Build the system of one linucb-sdp-amp curve of an experiment: its plan and certificate."""
    check_agent("linucb-sdp-amp", problem)
    schedule = _schedule(config, problem, "B.2" if config.returning == 1 else "E.4")
    return private_system(
        "linucb-sdp-amp",
        config,
        problem,
        AGENT_PROTOCOLS["user-shuffle-amplified"],
        schedule,
        PublishedCode(user_gamma(config.budget, schedule.batch_size, problem)),
        gaussian_noise(config, problem, schedule, shuffled=True),
        individual=config.messages == "individual",
    )


AGENT_AMP = Algorithm(
    id="linucb-sdp-amp",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' noisy data through a shuffler",
    config=AmplifiedConfig,
    build=build_amp,
    deployed=(("messages", "individual"),),
)


# ---- linucb-sdp-vec ------------------------------------------------------------------------------


class VectorConfig(PrivateAgentConfig, frozen=True, kw_only=True):
    """Keys of a linucb-sdp-vec curve.

    Parameters
    ----------
    batch_size : int or "theorem"
        B, the number of users of one batch. Required.
    messages : {"aggregate", "individual"}
        How a simulation draws the bits of a batch: "aggregate" draws the number of ones in each
        entry, "individual" draws every bit.
    covariance_ratio : float, optional
        The std of the noise in the sum of x x' divided by the std of the noise in the sum of x y.
        The default depends on radius and calibration, see `bits_ratio`.
    vector_scale : float, default 1
        Factor on b, the number of noise bits in each entry of a message. Only for calibration
        "published-code".
    honest_fraction : float, default 1
        The share of users whose noise bits count in the privacy proof.
    """

    batch_size: int | str | None = None
    messages: str = "aggregate"
    covariance_ratio: float | None = None
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
        """The key ``covariance_ratio``, or its default."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        return bits_ratio(self)


def build_vec(config: VectorConfig, problem: ProblemSpec) -> System:
    """Build the system of one linucb-sdp-vec curve of an experiment: its plan and certificate."""
    check_agent("linucb-sdp-vec", problem)
    schedule = _schedule(config, problem, "C.2" if config.returning == 1 else "E.6")
    noise = vector_noise(
        config,
        problem,
        schedule,
        vector_scale=config.vector_scale,
        honest_fraction=config.honest_fraction,
        ratio=config.ratio,
    )
    return private_system(
        "linucb-sdp-vec",
        config,
        problem,
        AGENT_PROTOCOLS["user-shuffle-vector"],
        schedule,
        PublishedCode(vector_gamma(config.budget, schedule.batch_size, problem)),
        noise,
        individual=config.messages == "individual",
    )


AGENT_VEC = Algorithm(
    id="linucb-sdp-vec",
    paper="chowdhury-zhou-2022",
    summary="one agent, users' data as noisy bits through a shuffler",
    config=VectorConfig,
    build=build_vec,
    deployed=(("messages", "individual"),),
)
