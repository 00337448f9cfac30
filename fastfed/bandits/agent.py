"""Common code of single-agent systems: keys, the noise of a batch, constants of published code.

The algorithm is chowdhury-zhou-2022, Algorithm 1: the policy changes only at the end of a batch,
and depends only on released statistics. This implementation deviates from the paper:

- Each release k has a regularizer lambda_k. The paper has one lambda for all releases.
- The default is fastfed's direct radius, which is proven and smaller than the paper's. "lemma-a2"
  uses the constants of the lemma's proof. "lemma-a4" is that lemma as printed, without some
  constants of its proof.
- Features and rewards are clipped to the bounds that the proofs assume.
- The exact accounting treats the noise in the bias sum and the covariance sum as one Gaussian
  mechanism. The paper gives each of the two sums half of the budget.
- The agent learns from an incomplete last batch, but never releases it.
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
#: For each rule for the radius, the rules for the regularizer lambda that may be combined with it.
REGULARIZERS_BY_RADIUS = {
    "direct": ("from-noise",),
    "lemma-a2": ("from-noise", "lemma-a4"),
    "lemma-a4": ("lemma-a4", "from-noise"),
    "published-code": ("published-code",),
}


class AgentConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve with a single agent: the keys of `Config`, with other allowed values.

    Parameters
    ----------
    batch_size : int, "theorem" or "growing", default 1
        B, the number of users of one batch.
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
        if (
            isinstance(self.regularizer, str)
            and self.regularizer not in REGULARIZERS_BY_RADIUS[self.radius]
        ):
            allowed_rules = " or ".join(f'"{rule}"' for rule in REGULARIZERS_BY_RADIUS[self.radius])
            raise InputError(
                f'regularizer must be {allowed_rules} or a number with radius "{self.radius}", '
                f'got "{self.regularizer}"'
            )

    @property
    def regularizer_rule(self) -> str | float:
        """The name of the rule that chooses lambda, or the number lambda.

        This is the key ``regularizer``. If the key is not set, it is "lemma-a4" for the radius
        "lemma-a4", and else the default of `Config`.
        """
        if self.regularizer is None and self.radius == "lemma-a4":
            return "lemma-a4"
        return super().regularizer_rule


class PrivateAgentConfig(AgentConfig, frozen=True, kw_only=True):
    """Keys of a private curve with a single agent.

    Parameters
    ----------
    epsilon : float
        Epsilon > 0 of the guarantee for each user. Required.
    delta : float
        Delta of the guarantee for each user, in (0, 1). Required.
    calibration : {"exact", "theorem", "published-code"}
        The rule for the noise: "exact" adds the least noise that satisfies the budget, the others
        add the noise of a theorem or of published code.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data are replaced by any other data (bounded DP), or by
        zeros, which is a weaker guarantee.
    returning : int or "every-batch", default 1
        The largest number of batches in which one user takes part. A user takes part in a batch at
        most once.
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
        """The requested (epsilon, delta) for each user, with the relation."""
        assert self.epsilon is not None and self.delta is not None
        return Budget(self.epsilon, self.delta, self.relation)

    def participations(self, batches: int) -> int:
        """Return the largest number of batches in which one user takes part.

        ``batches`` is the number of batches of the curve.
        """
        return batches_of_user(self.returning, batches)


class GaussianConfig(PrivateAgentConfig, frozen=True, kw_only=True):
    """Keys of a private curve with a single agent whose noise may be Gaussian.

    Parameters
    ----------
    layout : {"iid", "goe1", "goe2"}, optional
        The variances on and off the diagonal of the symmetric noise matrix that is added to the sum
        of x x' (`fastfed.privacy.sensitivity.layout_stds`). The default depends on the calibration.
    covariance_ratio : float, optional
        The std of the noise in the sum of x x' divided by the std of the noise in the sum of x y.
        The default depends on radius, calibration and layout, see the property `ratio`.
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
        """The key ``covariance_ratio``, or its default."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        # The other calibrations and layouts fix the ratio that their formulas assume.
        can_choose = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and can_choose else 1.0


def bits_ratio(config: PrivateAgentConfig) -> float:
    """Return the default ``covariance_ratio`` of a curve whose users send noise bits.

    The ratio is the std of the noise in the sum of x x' divided by the std in the sum of x y.
    """
    return DIRECT_RATIO if config.radius == "direct" and config.calibration == "exact" else 1.0


def check_agent(algorithm: str, problem: ProblemSpec) -> None:
    """Raise InputError unless the problem has exactly one silo, the agent."""
    if problem.silos != 1:
        raise InputError(
            f"silos must be 1 for {algorithm}, where one agent serves all users, got "
            f"{problem.silos}: use fedlinucb or private-fedlinucb for silos that share data, "
            "local-linucb for separate silos"
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
    """Return the plan of a single-agent curve, without a privacy claim, and its theory.

    The theory holds the regularizer and the radius, and the conditions of their proof.

    Parameters
    ----------
    config : AgentConfig
        Keys of the curve.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    protocol : Protocol
        The protocol: which party adds the noise, and which parties are trusted.
    schedule : Schedule
        The batches of users. Without noise and with B = 1 the plan never synchronises: the agent
        updates its estimate after every round by a rank-one step.
    published : PublishedCode
        Constants of the published code, used only for radius "published-code".
    noise : Noise, optional
        The calibrated noise. None adds no noise.
    individual : bool, default False
        True to simulate the message of each user, False to draw the noise of the sum of messages.
    release : str, default "tree"
        The release type.
    """
    clip = config.bounds(published=False)
    local_updates = noise is None and schedule.every_round
    sync_schedule = Schedule(problem.horizon, 0) if local_updates else schedule
    if config.radius == "published-code":
        theory = published_theory(published, config, problem, noise, clip)
        plan = make_plan(config, problem, protocol, sync_schedule, clip, theory, noise)
        return replace(plan, individual=individual, release=release), theory
    return assemble(config, problem, protocol, sync_schedule, clip, noise, individual, release)


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
    """Build the system of a private single agent: its plan, certificate and theory.

    ``algorithm`` is the id of the algorithm, and ``noise`` the calibrated noise. The other
    parameters are those of `plan_and_theory`.
    """
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


# ---- Noise that users add to their own messages --------------------------------------------------


def gaussian_noise(
    config: GaussianConfig, problem: ProblemSpec, schedule: Schedule, *, shuffled: bool
) -> Noise:
    """Calibrate the Gaussian noise that every user adds to their own message.

    A release is the sum of all messages up to its round, so it contains the noise of all users up
    to this round.

    Parameters
    ----------
    config : GaussianConfig
        Keys of the curve (one system of an experiment).
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    schedule : Schedule
        The batches of users.
    shuffled : bool
        True if a shuffler mixes the messages of a batch.
    """
    releases = schedule.releases
    mechanism = calibrate_local_gaussian(
        config.budget,
        # The smallest batch has the weakest privacy amplification.
        min(schedule.lengths) if schedule.rounds else schedule.batch_size,
        returning=config.participations(releases),
        shuffled=shuffled,
        calibration=config.calibration,
        layout=config.layout,
        covariance_ratio=config.ratio
        if config.calibration == "exact"
        else config.covariance_ratio or 1,
    )
    batch_std = NoiseStd(*mechanism.stds).times(math.sqrt(schedule.batch_size))
    # Noise variance before the first release (0) and in each release, in units of batch_std^2.
    variances = np.concatenate([[0.0], schedule.ends / schedule.batch_size])
    constant_is_public = centred_of(config.clipping(problem)) is not None
    distribution = NoiseDistribution(batch_std, 1, variances, public_constant=constant_is_public)
    return Noise(mechanism, distribution, batch_std)


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
    """Calibrate the number of noise bits that every user adds to their message.

    A message encodes the user's x y and x x' as bits, and the vector sum adds up all messages.

    Parameters
    ----------
    config : PrivateAgentConfig
        Keys of the curve (one system of an experiment).
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    schedule : Schedule
        The batches of users.
    local : bool, default False
        True for local privacy: each user sends enough noise bits to be protected without a
        shuffler.
    vector_scale : float, default 1
        Factor on b, the number of noise bits in each entry of a message. Only calibration
        "published-code" uses a factor other than 1.
    honest_fraction : float, default 1
        The share of users whose noise bits count in the privacy proof.
    ratio : float, default 1
        The std of the noise in the sum of x x' divided by the std of the noise in the sum of x y.
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


# ---- Regularizer and radius of the published experiment code -------------------------------------

#: Constants of the published code: the bound L^2 on squared feature norms, and the sub-Gaussian
#: scale R of rewards.
SQUARED_NORM, REWARD_SCALE = 2.0, 0.5


@dataclass(frozen=True)
class PublishedCode:
    """Gamma and lambda of the experiment code of chowdhury-zhou-2022, for features of norm 1.

    In the published code, features (u, 1) have norm sqrt 2. Here they are divided by sqrt 2. Gram
    matrix, lambda and covariance noise are then half as large as in the published code, and the
    bias sum is divided by sqrt 2. Scores, widths and actions are the same as in the published code.

    Parameters
    ----------
    gamma : float
        Gamma, the constant in the published code's confidence width (see `width`). For private
        curves it grows with the noise.
    ridge : float, optional
        lambda for features of norm 1. The default is Gamma, that is, lambda = 2 Gamma for the
        features of norm sqrt 2 in the published code.
    """

    gamma: float
    ridge: float | None = None

    @property
    def regularizer(self) -> float:
        """The regularizer lambda for features of norm 1."""
        return self.gamma if self.ridge is None else self.ridge

    def width(self, horizon: int, dimension: int) -> float:
        """Return the confidence radius beta of the published code, the same in all rounds.

        beta = sqrt(Gamma d) + R sqrt(d ln((1 + T L^2 / Gamma) T)) with L^2 = 2 and R = 1/2. T is
        ``horizon`` and d is ``dimension``.
        """
        log_term = math.log1p(horizon * SQUARED_NORM / self.gamma) + math.log(horizon)
        return math.sqrt(self.gamma * dimension) + REWARD_SCALE * math.sqrt(dimension * log_term)


#: Constants of "linucb", which has no privacy: Gamma = 1, and lambda = 1e-4 in the published code,
#: which is half of this for features of norm 1.
WITHOUT_PRIVACY = PublishedCode(1.0, 0.5e-4)


def user_gamma(budget: Budget, users: int, problem: ProblemSpec) -> float:
    """Return Gamma = s sqrt(T d), a constant of `PublishedCode`, if each user adds noise.

    s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt B), where B is ``users``: the number of users in a
    shuffled batch, or 1 for local privacy. T and d are the horizon and dimension of ``problem``.
    """
    log = math.log(2.5 * users) - math.log(budget.delta)
    std = math.sqrt(log / users) / budget.epsilon
    return std * math.sqrt(problem.horizon * problem.dimension)


def joint_gamma(budget: Budget, problem: ProblemSpec) -> float:
    """Return Gamma = s sqrt(d ln T), a constant of `PublishedCode`, for a trusted agent.

    s = sqrt(ln T) ln(2.5/delta) / epsilon. T and d are the horizon and dimension of ``problem``;
    for T = 1 the function uses T = 2, because ln 1 = 0.
    """
    log = math.log(max(problem.horizon, 2))
    std = math.sqrt(log) * math.log(2.5 / budget.delta) / budget.epsilon
    return std * math.sqrt(problem.dimension * log)


def vector_gamma(budget: Budget, users: int, problem: ProblemSpec) -> float:
    """Return Gamma = s sqrt(T d), a constant of `PublishedCode`, for the vector sum.

    s = ln(d/delta) / (4 epsilon sqrt B), where B is ``users``, the number of users in a batch. T
    and d are the horizon and dimension of ``problem``.
    """
    log = math.log(problem.dimension) - math.log(budget.delta)
    std = log / (4.0 * budget.epsilon * math.sqrt(users))
    return std * math.sqrt(problem.horizon * problem.dimension)


def published_theory(
    code: PublishedCode,
    config: Config,
    problem: ProblemSpec,
    noise: Noise | None,
    clip: Clip | None,
) -> Theory:
    """Return the published code's regularizer and radius, marked as not proven.

    ``code`` holds the constants of the published code. If ``config.regularizer`` is a number, this
    number is lambda instead of the published one. ``noise`` is used for one condition only: whether
    the regularizer exceeds the operator norm of the noise. ``clip`` holds the clipping bounds,
    which the conditions report.
    """
    d, regularizer = problem.dimension, config.regularizer
    ridge = code.regularizer if isinstance(regularizer, (str, type(None))) else regularizer
    largest_norm = 0.0
    if noise is not None:
        largest_norm = float(
            noise.distribution.operator_norms(d, config.failure_probability / 4.0).max()
        )
    lam = np.array([ridge])
    # `Radius` computes offset + scale sqrt(base + d ln(1 + rows / (d lambda))), where rows is the
    # number of feature vectors in V. The published width is the same for every number of rows. So
    # set lambda in this formula to infinity, which makes the logarithm 0.
    offset = math.sqrt(code.gamma * d)
    base = ((code.width(problem.horizon, d) - offset) / REWARD_SCALE) ** 2
    radius = Radius(
        config.radius_multiplier,
        REWARD_SCALE,
        base,
        np.array([offset]),
        np.array([math.inf]),
    )
    return Theory(
        regularizer=lam,
        lambda_min=lam,
        lambda_max=lam + largest_norm,
        nu=np.zeros(1),
        radius=radius,
        conditions=(
            *reward_conditions(problem, clip),
            Condition(
                "the regularizer exceeds the noise's operator norm with high probability",
                ridge > largest_norm,
            ),
            Condition("the radius is a proven one (that of the experiment code is not)", False),
        ),
    )
