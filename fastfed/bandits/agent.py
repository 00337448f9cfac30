"""Common part of single-agent systems: Config, the noise of a batch, the published code's ridge.

chowdhury-zhou-2022, Algorithm 1: the policy changes at the end of a batch only, and depends on what
the protocol has released. Deviations from the paper, and why:

- V and theta_hat change with lambda_k, a regularizer for each release; the paper has one for all.
- The radius is our direct one by default, proven and smaller; "lemma-a2" has the constants of its
  proof, "lemma-a4" is the lemma as printed, which drops some.
- Features and rewards are clipped in code to what the proofs bound.
- Both streams are one Gaussian release in exact accounting; the paper halves the budget between
  them.
- A batch that T cuts short is used locally and never sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from fastfed._validate import InputError, choice, number
from fastfed.bandits.assemble import Noise, assemble, flat_bits, make_plan
from fastfed.bandits.certify import certify
from fastfed.bandits.fedlinucb import DIRECT_RATIO, check_bits
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import REGULARIZERS, Theory, reward_conditions
from fastfed.bandits.system import Config, System, batches_of_user, check_returning
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.local_gaussian import calibrate_local_gaussian
from fastfed.privacy.mechanisms.vector_batches import calibrate_vector_batches
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS, Budget
from fastfed.protocols.account import centred_of
from fastfed.protocols.plan import Clip, NoiseStd, Plan, Radius
from fastfed.protocols.protocol import Protocol
from fastfed.protocols.schedule import Schedule

# ---- Config --------------------------------------------------------------------------------------

MESSAGES = ("aggregate", "individual")
#: Rules for lambda that each radius admits.
FITTING = {
    "direct": ("from-noise",),
    "lemma-a2": ("from-noise", "lemma-a4"),
    "lemma-a4": ("lemma-a4", "from-noise"),
    "published-code": ("published-code",),
}


class AgentConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve with a single agent: those of `Config`, in other ranges.

    Parameters
    ----------
    batch_size : int, "theorem" or "growing", default 1
        B, users of one batch.
    """

    batch_size: int | str | None = 1

    radii: ClassVar[tuple[str, ...]] = ("direct", "lemma-a2", "lemma-a4", "published-code")
    regularizers: ClassVar[tuple[str, ...]] = (*REGULARIZERS, "lemma-a4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lazy:
            raise InputError(
                "lazy must be true for a single agent, whose policy does not change within a "
                "batch, got false"
            )
        if isinstance(self.regularizer, str) and self.regularizer not in FITTING[self.radius]:
            known = " or ".join(f'"{rule}"' for rule in FITTING[self.radius])
            raise InputError(
                f'regularizer must be {known} or a number with radius "{self.radius}", '
                f'got "{self.regularizer}"'
            )

    @property
    def regularizer_rule(self) -> str | float:
        """The rule for lambda, or its value: ``regularizer`` with its default filled in."""
        if self.regularizer is None and self.radius == "lemma-a4":
            return "lemma-a4"
        return super().regularizer_rule


class PrivateAgentConfig(AgentConfig, frozen=True, kw_only=True):
    """Keys of a private curve with a single agent.

    Parameters
    ----------
    epsilon : float
        Budget of one user, > 0; required.
    delta : float
        Budget of one user, in (0, 1); required.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chooses the noise: the least that gives the budget, or a paper's.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data replaced (bounded DP), or set to zero, its weaker
        cousin.
    returning : int or "every-batch", default 1
        Participations: the most batches of one user, at most once in each.
    """

    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    returning: int | str = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("relation", self.relation, RELATIONS)
        check_returning(self.returning)

    @property
    def budget(self) -> Budget:
        """(epsilon, delta) under the relation."""
        assert self.epsilon is not None and self.delta is not None
        return Budget(self.epsilon, self.delta, self.relation)

    def participations(self, batches: int) -> int:
        """Participations of one user, out of ``batches``."""
        return batches_of_user(self.returning, batches)


class GaussianConfig(PrivateAgentConfig, frozen=True, kw_only=True):
    """Keys of a curve whose noise may be Gaussian.

    Parameters
    ----------
    layout : str, optional
        Variances of the symmetric covariance noise; by default the calibration's own.
    covariance_ratio : float, optional
        Noise of the covariance stream over that of the bias stream; by default `ratio`.
    """

    layout: str | None = None
    covariance_ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)

    @property
    def ratio(self) -> float:
        """Noise of the covariance stream over that of the bias stream."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        free = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and free else 1.0


def bits_ratio(config: PrivateAgentConfig) -> float:
    """Noise of the covariance stream over that of the bias stream, where data travel as bits."""
    return DIRECT_RATIO if config.radius == "direct" and config.calibration == "exact" else 1.0


def check_agent(algorithm: str, problem: ProblemSpec) -> None:
    """Raise InputError unless the problem has one silo, which is the agent."""
    if problem.silos != 1:
        raise InputError(
            f"silos must be 1 for {algorithm}, where one agent serves all users, got "
            f"{problem.silos}: silos that share have fedlinucb and private-fedlinucb, silos "
            "alone local-linucb"
        )


def plan_and_theory(
    config: AgentConfig,
    problem: ProblemSpec,
    protocol: Protocol,
    schedule: Schedule,
    published: PublishedCode,
    noise: Noise | None = None,
    *,
    individual: bool = False,
    release: str = "tree",
) -> tuple[Plan, Theory]:
    """Plan and theory of one curve; ``published`` is used where the radius asks for it.

    Every round (B = 1) without noise the agent's estimate changes by rank-one steps.
    """
    clip = config.bounds(published=False)
    alone = noise is None and schedule.every_round
    rounds = Schedule(problem.horizon, 0) if alone else schedule
    if config.radius == "published-code":
        theory = published_theory(published, config, problem, noise, clip)
        plan = make_plan(config, problem, protocol, rounds, clip, theory, noise)
        return replace(plan, individual=individual, release=release), theory
    return assemble(config, problem, protocol, rounds, clip, noise, individual, release)


def private_system(
    algorithm: str,
    config: PrivateAgentConfig,
    problem: ProblemSpec,
    protocol: Protocol,
    schedule: Schedule,
    published: PublishedCode,
    noise: Noise,
    *,
    individual: bool = False,
    release: str = "tree",
) -> System:
    """The private system of one agent, from its noise."""
    plan, theory = plan_and_theory(
        config,
        problem,
        protocol,
        schedule,
        published,
        noise,
        individual=individual,
        release=release,
    )
    check_bits(plan)
    source = f"{protocol.source}; {noise.mechanism.source}"
    plan, certificate = certify(plan, problem, theory, noise, source)
    return System(algorithm, plan, certificate, theory=theory)


# ---- Noise of a batch whose users send for themselves --------------------------------------------


def gaussian_noise(
    config: GaussianConfig, problem: ProblemSpec, schedule: Schedule, *, shuffled: bool
) -> Noise:
    """Gaussian noise of every user: in a release it adds up over all users so far.

    Parameters
    ----------
    config : GaussianConfig
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    schedule : Schedule
        The batches of users.
    shuffled : bool
        True if a shuffler mixes the messages of a batch.

    Returns
    -------
    Noise
    """
    releases = schedule.releases
    mechanism = calibrate_local_gaussian(
        config.budget,
        # The fewer users a shuffler mixes, the less it hides.
        min(schedule.lengths) if schedule.rounds else schedule.batch_size,
        returning=config.participations(releases),
        shuffled=shuffled,
        calibration=config.calibration,
        layout=config.layout,
        covariance_ratio=config.ratio
        if config.calibration == "exact"
        else config.covariance_ratio or 1,
    )
    std = NoiseStd(*mechanism.stds).times(math.sqrt(schedule.batch_size))
    users = np.concatenate([[0.0], schedule.ends / schedule.batch_size])
    public = centred_of(config.clipping(problem)) is not None
    distribution = NoiseDistribution(std, 1, users, public_constant=public)
    return Noise(mechanism, distribution, std)


def vector_noise(
    config: PrivateAgentConfig,
    problem: ProblemSpec,
    schedule: Schedule,
    *,
    local: bool = False,
    vector_scale: float = 1.0,
    honest_fraction: float = 1.0,
    ratio: float = 1.0,
) -> Noise:
    """Noise bits of every user.

    Parameters
    ----------
    config : PrivateAgentConfig
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    schedule : Schedule
        The batches of users.
    local : bool, default False
        True if the bits of each user protect that user without a shuffler.
    vector_scale : float, default 1
        Factor on b, for published code.
    honest_fraction : float, default 1
        The share of users whose noise bits are counted on.
    ratio : float, default 1
        Noise of the covariance stream over that of the bias stream.

    Returns
    -------
    Noise
    """
    return flat_bits(
        schedule,
        partial(
            calibrate_vector_batches,
            config.budget,
            dimension=problem.dimension,
            returning=config.participations(schedule.releases),
            local=local,
            calibration=config.calibration,
            vector_scale=vector_scale,
            honest_fraction=honest_fraction,
            covariance_ratio=ratio,
            centred=centred_of(config.clipping(problem)),
        ),
        users=1,
        failure_probability=config.failure_probability,
    )


# ---- Ridge and width of the published experiment code --------------------------------------------

#: The code's bound on squared feature norms, and its sub-Gaussian scale of rewards.
SQUARED_NORM, REWARD_SCALE = 2.0, 0.5


@dataclass(frozen=True)
class PublishedCode:
    """Gamma and ridge of the experiment code of chowdhury-zhou-2022, in features of norm 1.

    The code's features are (u, 1), of norm sqrt 2. Half its Gram matrix, with half its ridge and
    half its covariance noise, and its bias sum over sqrt 2 are the same bandit in unit features:
    scores, widths and actions are equal. Gamma and the width are the code's own.

    Parameters
    ----------
    gamma : float
        Gamma.
    ridge : float, optional
        lambda, where it is not the code's 2 Gamma (Gamma in unit features).
    """

    gamma: float
    ridge: float | None = None

    @property
    def regularizer(self) -> float:
        """lambda in unit features."""
        return self.gamma if self.ridge is None else self.ridge

    def width(self, horizon: int, dimension: int) -> float:
        """beta = sqrt(Gamma d) + R sqrt(d ln((1 + T L^2 / Gamma) T)), the same in every round."""
        grown = math.log1p(horizon * SQUARED_NORM / self.gamma) + math.log(horizon)
        return math.sqrt(self.gamma * dimension) + REWARD_SCALE * math.sqrt(dimension * grown)


#: Constants of "linucb": Gamma = 1 in the width, and a ridge of 1e-4.
NOT_PRIVATE = PublishedCode(1.0, 0.5e-4)


def user_gamma(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma where each user adds noise: s sqrt(T d), s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt B).

    ``users`` B is 1 for local privacy.
    """
    std = math.sqrt((math.log(2.5 * users) - math.log(delta)) / users) / epsilon
    return std * math.sqrt(horizon * dimension)


def joint_gamma(epsilon: float, delta: float, horizon: int, dimension: int) -> float:
    """Gamma of a trusted agent: s sqrt(d ln T), s = sqrt(ln T) ln(2.5/delta) / epsilon."""
    log = math.log(horizon)
    return math.sqrt(log) * math.log(2.5 / delta) / epsilon * math.sqrt(dimension * log)


def vector_gamma(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma of the vector sum: ln(d/delta) / (4 epsilon sqrt B) sqrt(T d)."""
    log = math.log(dimension) - math.log(delta)
    return log / (4.0 * epsilon * math.sqrt(users)) * math.sqrt(horizon * dimension)


def published_theory(
    code: PublishedCode,
    config: Config,
    problem: ProblemSpec,
    noise: Noise | None,
    clip: Clip | None,
) -> Theory:
    """Ridge and width of the published code, and their conditions: nothing is proven."""
    d, regularizer = problem.dimension, config.regularizer
    ridge = code.regularizer if isinstance(regularizer, (str, type(None))) else regularizer
    largest = 0.0
    if noise is not None:
        largest = float(
            noise.distribution.operator_norms(d, config.failure_probability / 4.0).max()
        )
    lam = np.array([ridge])
    # Rows of V play no part: the logarithm's argument is 1.
    width = code.width(problem.horizon, d) - math.sqrt(code.gamma * d)
    base = (width / REWARD_SCALE) ** 2
    radius = Radius(
        config.radius_multiplier,
        REWARD_SCALE,
        base,
        np.array([math.sqrt(code.gamma * d)]),
        np.array([math.inf]),
    )
    return Theory(
        regularizer=lam,
        lambda_min=lam,
        lambda_max=lam + largest,
        nu=np.zeros(1),
        radius=radius,
        conditions=(
            *reward_conditions(problem, clip),
            Condition(
                "the regularizer exceeds the noise's operator norm with high probability",
                ridge > largest,
            ),
            Condition("the radius is a proven one (that of the experiment code is not)", False),
        ),
    )
