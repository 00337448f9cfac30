"""Common code of single-agent systems: keys, the noise of a batch, constants of published code.

The algorithm is chowdhury-zhou-2022, Algorithm 1: the policy changes only at the end of a batch,
and depends only on released statistics. This implementation deviates from the paper:

- Each release k has a regularizer lambda_k. The paper has one lambda for all releases.
- The default is fastfed's direct radius, which is proven and smaller than the paper's. "lemma-a2"
  uses the constants of the lemma's proof. "lemma-a4" is that lemma as printed, without some
  constants of its proof.
- Features and rewards are clipped to the bounds that the proofs assume.
- The exact accounting treats the noise in bias and covariance as one Gaussian mechanism. The paper
  gives each half of the budget.
- An incomplete last batch is used locally and never sent.
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
#: Rules for lambda that are allowed with each radius.
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
        """The rule for lambda, or lambda itself: ``regularizer`` or its default."""
        if self.regularizer is None and self.radius == "lemma-a4":
            return "lemma-a4"
        return super().regularizer_rule


class PrivateAgentConfig(AgentConfig, frozen=True, kw_only=True):
    """Keys of a private curve with a single agent.

    Parameters
    ----------
    epsilon : float
        Epsilon > 0 of one user. Required.
    delta : float
        Delta of one user, in (0, 1). Required.
    calibration : {"exact", "theorem", "published-code"}
        The rule for the noise: "exact" adds the least noise that satisfies the budget, the others
        add the noise of a theorem or of published code.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data are replaced by any other data (bounded DP), or by
        zeros, which is a weaker guarantee.
    returning : int or "every-batch", default 1
        The largest number of batches in which one user takes part, at most once in each.
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
        """The (epsilon, delta) of one user, with the relation."""
        assert self.epsilon is not None and self.delta is not None
        return Budget(self.epsilon, self.delta, self.relation)

    def participations(self, batches: int) -> int:
        """Return the number of batches, out of ``batches``, in which one user may take part."""
        return batches_of_user(self.returning, batches)


class GaussianConfig(PrivateAgentConfig, frozen=True, kw_only=True):
    """Keys of a curve whose noise may be Gaussian.

    Parameters
    ----------
    layout : str, optional
        Variances of the symmetric covariance noise. The default depends on the calibration.
    covariance_ratio : float, optional
        Std of the covariance noise divided by the std of the bias noise. The default is `ratio`.
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
        """Std of the covariance noise divided by the std of the bias noise."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        can_choose = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and can_choose else 1.0


def bits_ratio(config: PrivateAgentConfig) -> float:
    """Return the default std of covariance noise divided by that of bias noise, for noise bits."""
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
    """Make the plan and the theory of one curve.

    ``published`` has the constants for radius "published-code". Without noise and with B = 1 the
    plan never synchronises: the agent updates its estimate in every round by a rank-one step.
    """
    clip = config.bounds(published=False)
    local_updates = noise is None and schedule.every_round
    rounds = Schedule(problem.horizon, 0) if local_updates else schedule
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
    """Build the private system of one agent from its calibrated noise.

    ``published`` has the constants for radius "published-code". If ``individual`` is true, each
    user's message is simulated. ``release`` is the release type.
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
    """Calibrate Gaussian noise that every user adds. A release sums the noise of all users so far.

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
    std = NoiseStd(*mechanism.stds).times(math.sqrt(schedule.batch_size))
    variances = np.concatenate([[0.0], schedule.ends / schedule.batch_size])
    constant_is_public = centred_of(config.clipping(problem)) is not None
    distribution = NoiseDistribution(std, 1, variances, public_constant=constant_is_public)
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
    """Calibrate the noise bits that every user sends.

    Parameters
    ----------
    config : PrivateAgentConfig
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    schedule : Schedule
        The batches of users.
    local : bool, default False
        True for local privacy: the noise bits of each user suffice without a shuffler.
    vector_scale : float, default 1
        Factor on b, for published code.
    honest_fraction : float, default 1
        The share of users whose noise bits count in the privacy proof.
    ratio : float, default 1
        Std of the covariance noise divided by the std of the bias noise.
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

#: Constants of the published code: bound on squared feature norms, sub-Gaussian scale of rewards.
SQUARED_NORM, REWARD_SCALE = 2.0, 0.5


@dataclass(frozen=True)
class PublishedCode:
    """Gamma and lambda of the experiment code of chowdhury-zhou-2022, for features of norm 1.

    In the published code features (u, 1) have norm sqrt 2. Here they are divided by sqrt 2. Gram
    matrix, lambda and covariance noise are then half as large, and the bias sum is divided by
    sqrt 2. Scores, widths and actions are equal.

    Parameters
    ----------
    gamma : float
        Gamma of the published code.
    ridge : float, optional
        lambda for features of norm 1. The default is Gamma, which is 2 Gamma in the code's units.
    """

    gamma: float
    ridge: float | None = None

    @property
    def regularizer(self) -> float:
        """lambda for features of norm 1."""
        return self.gamma if self.ridge is None else self.ridge

    def width(self, horizon: int, dimension: int) -> float:
        """Return beta = sqrt(Gamma d) + R sqrt(d ln((1 + T L^2 / Gamma) T)), for all rounds."""
        log_term = math.log1p(horizon * SQUARED_NORM / self.gamma) + math.log(horizon)
        return math.sqrt(self.gamma * dimension) + REWARD_SCALE * math.sqrt(dimension * log_term)


#: Constants of "linucb": Gamma = 1 in the width, and a ridge of 1e-4.
WITHOUT_PRIVACY = PublishedCode(1.0, 0.5e-4)


def user_gamma(budget: Budget, users: int, problem: ProblemSpec) -> float:
    """Return Gamma of the published code if each user adds noise: s sqrt(T d).

    s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt B), where B is ``users``: the size of a shuffled
    batch, or 1 for local privacy.
    """
    log = math.log(2.5 * users) - math.log(budget.delta)
    std = math.sqrt(log / users) / budget.epsilon
    return std * math.sqrt(problem.horizon * problem.dimension)


def joint_gamma(budget: Budget, problem: ProblemSpec) -> float:
    """Return Gamma of the published code for a trusted agent: s sqrt(d ln T), for T >= 2.

    s = sqrt(ln T) ln(2.5/delta) / epsilon.
    """
    log = math.log(max(problem.horizon, 2))
    std = math.sqrt(log) * math.log(2.5 / budget.delta) / budget.epsilon
    return std * math.sqrt(problem.dimension * log)


def vector_gamma(budget: Budget, users: int, problem: ProblemSpec) -> float:
    """Return Gamma of the published code for the vector sum.

    It is ln(d/delta) / (4 epsilon sqrt B) sqrt(T d), where B is ``users``, the size of a batch.
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
    """Return the theory of the published code's regularizer and radius, which are not proven.

    ``code`` holds the constants of that code. The noise is used for one condition only: whether the
    regularizer exceeds the operator norm of the noise.
    """
    d, regularizer = problem.dimension, config.regularizer
    ridge = code.regularizer if isinstance(regularizer, (str, type(None))) else regularizer
    largest_norm = 0.0
    if noise is not None:
        largest_norm = float(
            noise.distribution.operator_norms(d, config.failure_probability / 4.0).max()
        )
    lam = np.array([ridge])
    # The published width does not depend on V. An infinite log_lambda makes the term ln(1 + 0).
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
