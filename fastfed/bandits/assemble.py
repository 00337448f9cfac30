"""From a curve's Config to its plan: noise, confidence radius, and the plan made of both.

The way of one epsilon: `make_noise` calibrates the protocol's mechanism for the budget
(``tree_for`` and its kin in `fastfed.privacy`) and describes what its noise adds up to;
`assemble` derives regularizer and radius from that (`radius.make_theory`) and puts all numbers
into a `Plan`. `certify.certify` then seals the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from typing import Protocol as TypingProtocol

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import (
    NoiseDistribution,
    batch_distribution,
    batches_distribution,
    bit_distribution,
)
from fastfed.bandits.own_rounds import factor_horizon, public_failure, share_of, tossed
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, allowance, make_theory
from fastfed.bandits.system import Config, batches_of_user
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.amplification import calibrate_shuffled_tree
from fastfed.privacy.mechanisms.binomial_tree import calibrate_vector_sum
from fastfed.privacy.mechanisms.reward_release import calibrate_rewards
from fastfed.privacy.mechanisms.secure_sum import SecureSum, calibrate_secure_sum
from fastfed.privacy.mechanisms.vector_batches import (
    UnequalBatches,
    VectorBatches,
    calibrate_vector_batches,
)
from fastfed.privacy.releases.gaussian_release import (
    GaussianRelease,
    release_for,
    tree_for,
)
from fastfed.privacy.releases.prefix_sums import (
    MOST_RELEASES,
    Factor,
    optimal_factor,
    toeplitz_factor,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.account import bounds_of, centred_of, tree_batch
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan
from fastfed.protocols.protocol import FLAT, PROTOCOLS, Protocol, statistic_size
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import score_named

#: Protocols whose noise may be shared between prefixes.
RELEASABLE = ("silo-ldp", "central")
#: Share of the failure probability that the coupling of bits to normals may take.
COUPLING_SHARE = 0.01
#: Limits of the default release: the most releases whose factor is optimised (the time grows with
#: their cube, half a second here) and whose noises are kept (time and memory grow with their
#: square), and the most numbers of noise that one replicate may then keep.
MOST_OPTIMISED, MOST_KEPT, MOST_KEPT_NUMBERS = 400, 1024, 2**24
#: Weight of noise against data in `expected_loss`, measured (docs/releases.md).
NOISE_WEIGHT = 8.0

# ---- Noise ---------------------------------------------------------------------------------------


class Mechanism(TypingProtocol):
    """Declarations of a mechanism about a plan; the account is of the plan's own numbers."""

    @property
    def budget(self) -> Budget:
        """The (epsilon, delta) that was asked for, its relation and unit."""
        ...

    @property
    def source(self) -> str:
        """Author-year and equation of the rule that chose the noise."""
        ...

    def conditions(self) -> list[Condition]:
        """Conditions of the guarantee, and whether they hold."""
        ...


@dataclass(frozen=True)
class Noise:
    """The privacy noise of a curve: its mechanism, and the numbers for drivers and theory.

    Parameters
    ----------
    mechanism : Mechanism
        The calibrated mechanism, which declares budget and conditions.
    distribution : NoiseDistribution
        The noise in the synchronised sums, for confidence radii.
    std : NoiseStd, optional
        Standard deviations of the Gaussian noise that one node gets, in units of the sums.
    encoding : Encoding, optional
        Parameters of the noise bits, where data travel as bits.
    silo_noise : tuple of float, optional
        Where silos have budgets of their own: each one's noise, in units of ``std``.
    silo_epsilon : tuple of float, optional
        Each silo's own epsilon.
    silo_delta : tuple of float, optional
        Each silo's own delta, where these differ.
    factor : Factor, optional
        Of release "factorised".
    secure : SecureSum, optional
        What silos and server execute where sums are under masks.
    """

    mechanism: Mechanism
    distribution: NoiseDistribution
    std: NoiseStd = field(default_factory=NoiseStd)
    encoding: Encoding | None = None
    silo_noise: tuple[float, ...] = ()
    silo_epsilon: tuple[float, ...] = ()
    silo_delta: tuple[float, ...] = ()
    factor: Factor | None = None
    secure: SecureSum | None = None


#: From a curve's keys, with a release, to its noise.
NoiseOf = Callable[[Any], Noise]


def make_noise(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the noise of a private-fedlinucb curve for its protocol.

    Parameters
    ----------
    config : PrivateConfig
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    schedule : Schedule
        The rounds after which there is a release.

    Returns
    -------
    Noise

    Raises
    ------
    InputError
        If the protocol has no such release, or no such calibration.
    """
    if config.silo_epsilon is not None:
        return _noise_by_silo(config, problem, schedule)
    budget = Budget(config.epsilon, config.delta, config.relation)
    releases = schedule.releases
    participations = batches_of_user(config.returning, releases)
    centred = centred_of(config.clipping(problem))
    mechanism: GaussianRelease
    factor = None
    if config.release == FLAT:
        return _flat_noise(config, problem, schedule, participations)
    if PROTOCOLS[config.protocol].masked:
        return _secure_noise(config, problem, schedule, participations)
    if config.release == "factorised":
        served = factor_horizon(config, problem, schedule)
        factor = optimal_factor(tuple(int(n) for n in schedule.ends), served)
    if config.protects == "reward":
        return _reward_noise(config, problem, schedule, participations, factor)
    if config.release != "tree":
        if config.protocol not in RELEASABLE:
            raise InputError(
                f'release "{config.release}" needs protocol '
                f"{' or '.join(RELEASABLE)}: elsewhere a node's noise belongs to the node, got "
                f'"{config.protocol}"'
            )
        mechanism = release_for(
            config.release,
            budget,
            releases,
            config.calibration,
            config.layout,
            config.ratio,
            returning=participations,
            factor=factor,
            centred=centred,
        )
    elif config.protocol == "shuffle-vector":
        if schedule.rounds:
            raise InputError(
                f'batches that differ need release "{FLAT}" with protocol "shuffle-vector": its '
                f'tree has equal batches, got release "{config.release}"'
            )
        bits = calibrate_vector_sum(
            budget,
            releases,
            problem.silos * schedule.batch_size,
            problem.dimension,
            config.calibration,
            config.vector_scale,
            config.honest_fraction,
            returning=participations,
        )
        distribution = bit_distribution(bits, COUPLING_SHARE * config.failure_probability)
        return Noise(bits, distribution, encoding=Encoding(bits.g, bits.b))
    elif config.protocol == "shuffle-amplified":
        mechanism = calibrate_shuffled_tree(
            budget,
            releases,
            problem.silos,
            tree_batch(schedule.ends),
            problem.horizon,
            config.calibration,
            config.layout,
            returning=participations,
        )
    else:
        mechanism = tree_for(
            budget,
            releases,
            config.calibration,
            config.layout,
            config.ratio,
            returning=participations,
            centred=centred,
        )
    share = share_of(config)
    mechanism = tossed(mechanism, share)
    std = NoiseStd(*mechanism.stds)
    noises = problem.silos if PROTOCOLS[config.protocol].noise_by == "silos" else 1
    # With secret coins the constant's entry counts users, and has noise as all others.
    public = centred is not None and not (share is not None and share.tossed)
    distribution = NoiseDistribution(
        std, noises, mechanism.variance_factors, public_constant=public
    )
    return Noise(mechanism, distribution, std, factor=factor)


# ---- The default release -------------------------------------------------------------------------


def usual_release(
    config: Any, protocol: str, problem: ProblemSpec, schedule: Schedule, noise_of: NoiseOf
) -> str:
    """Choose the release of a curve that names none: the one that is expected to lose least.

    All releases give the same guarantee; docs/releases.md has the rule and what it was measured on.

    Parameters
    ----------
    config : Config
        The curve's keys, with calibration, covariance_ratio and failure_probability.
    protocol : str
        Who adds the noise: a protocol of private-fedlinucb, or "agent-central".
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    schedule : Schedule
        The rounds after which there is a release.
    noise_of : callable
        ``noise_of(config)``: the calibrated noise of the config with a release.

    Returns
    -------
    str
    """
    found = _admitted(config, protocol, problem, schedule)
    if len(found) == 1:
        return found[0]

    def lost(release: str) -> float:
        """Expected loss of one release."""
        noise = noise_of(msgspec.structs.replace(config, release=release))
        alpha = config.failure_probability
        return expected_loss(noise.distribution, problem, schedule, alpha)

    return min(found, key=lost)


def _admitted(
    config: Any, protocol: str, problem: ProblemSpec, schedule: Schedule
) -> tuple[str, ...]:
    """Releases of which the default is the best, for one protocol, calibration and schedule."""
    if config.calibration != "exact":
        return ("tree",)
    if protocol == "shuffle-vector":
        flat = bool(schedule.rounds) or config.covariance_ratio is not None
        return (FLAT,) if flat else (FLAT, "tree")
    if share_of(config) is not None:
        return ("factorised",) if protocol in (*RELEASABLE, "secure-sum") else ("tree",)
    releases = schedule.releases
    if protocol == "secure-sum":
        return ("toeplitz",) if releases > MOST_OPTIMISED else ("factorised", "toeplitz")
    if protocol not in (*RELEASABLE, "agent-central"):
        return ("tree",)
    owners = problem.silos if protocol == "silo-ldp" else 1
    kept = owners * releases * statistic_size(problem.dimension)
    if releases > MOST_KEPT or kept > MOST_KEPT_NUMBERS:
        return ("buffered",)
    return ("toeplitz",) if releases > MOST_OPTIMISED else ("factorised", "toeplitz")


def expected_loss(
    distribution: NoiseDistribution,
    problem: ProblemSpec,
    schedule: Schedule,
    failure_probability: float,
) -> float:
    """Rounds of one silo that noise is expected to waste, from the first release on.

    In the rounds that release k serves, a share w^2 / (1 + w^2) is lost, with w = ``NOISE_WEIGHT``
    E_k / n_k, where E_k is the bound on the error of the noise and n_k the number of rows in the
    release: nothing is learned where noise outweighs data, and regret falls with the square of the
    width of confidence sets where data outweigh noise. A heuristic, which no guarantee rests on.

    Parameters
    ----------
    distribution : NoiseDistribution
        The noise of every release.
    problem : ProblemSpec
        Sizes.
    schedule : Schedule
        The rounds after which there is a release.
    failure_probability : float
        alpha of the confidence radius.

    Returns
    -------
    float
    """
    ends = schedule.ends.astype(np.float64)
    served = np.append(ends[1:], problem.horizon) - ends
    errors = distribution.errors(problem.dimension, failure_probability / 4.0)[1:]
    width = NOISE_WEIGHT * errors / (problem.silos * ends)
    return float(served @ (1.0 - 1.0 / (1.0 + width * width)))


def _secure_noise(
    config: Any, problem: ProblemSpec, schedule: Schedule, participations: int
) -> Noise:
    """Noise of silos' shares on sums under masks (docs/secure-sum.md)."""
    colluders = problem.silos // 3 if config.colluders is None else config.colluders
    if colluders >= problem.silos:
        raise InputError(
            f"colluders must be below the number of silos ({problem.silos}), got {colluders}"
        )
    clip = config.clipping(problem, config.bounds(published=False))
    centred, (feature, reward) = centred_of(clip), bounds_of(clip)
    mechanism = calibrate_secure_sum(
        Budget(config.epsilon, config.delta, config.relation),
        secure_encoder(config.release, schedule, factor_horizon(config, problem, schedule)),
        problem.silos,
        colluders,
        problem.dimension,
        points=problem.silos * problem.horizon * problem.room,
        layout=config.layout or "goe2",
        # Of the two noises, where the mechanism asks for that of them over their largest norms.
        covariance_ratio=config.ratio * reward / feature,
        feature_bound=feature,
        reward_bound=reward,
        max_participations=participations,
        centred=centred,
    )
    std = NoiseStd(*mechanism.stds)
    distribution = NoiseDistribution(
        std, 1, mechanism.variance_factors, public_constant=centred is not None
    )
    factor = Factor(mechanism.prefix_weights)
    return Noise(mechanism, distribution, std, factor=factor, secure=mechanism)


def secure_encoder(release: str, schedule: Schedule, horizon: int) -> np.ndarray:
    """C (K, K) of a release: what a secure sum adds up of the batches so far.

    Parameters
    ----------
    release : {"factorised", "toeplitz", "tree"}
        The continual release: an optimal factor, the square-root Toeplitz one, or the nodes of the
        binary tree, one completed by each batch.
    schedule : Schedule
        The batches.
    horizon : int
        T.

    Returns
    -------
    ndarray, shape (K, K)
        Lower triangular.

    Raises
    ------
    InputError
        For another release, or too many batches.
    """
    count = schedule.releases
    if count > MOST_RELEASES:
        raise InputError(
            f'protocol "secure-sum" is for at most {MOST_RELEASES} releases, got {count}: '
            'batch_size = "growing" has fewer'
        )
    if release == "factorised":
        return optimal_factor(tuple(int(n) for n in schedule.ends), horizon).encoder
    if release == "toeplitz":
        return toeplitz_factor(count)
    if release == "tree":
        ends, leaves = np.arange(1, count + 1)[:, None], np.arange(1, count + 1)
        return ((leaves <= ends) & (leaves > ends - (ends & -ends))).astype(np.float64)
    raise InputError(
        'release must be "factorised", "toeplitz" or "tree" with protocol "secure-sum", got '
        f'"{release}": its estimates are no sums that silos could send'
    )


def _reward_noise(
    config: Any,
    problem: ProblemSpec,
    schedule: Schedule,
    participations: int,
    factor: Factor | None,
) -> Noise:
    """Noise of sums of x y alone, where contexts are public."""
    clip = config.clipping(problem, Clip())
    feature, _ = bounds_of(clip)
    budget = Budget(config.epsilon, config.delta, config.relation, unit="reward")
    mechanism = calibrate_rewards(
        budget,
        schedule.releases,
        config.release,
        returning=participations,
        factor=factor,
        feature_bound=feature,
        reward_range=clip.centred,
    )
    std = NoiseStd(*mechanism.stds)
    noises = problem.silos if PROTOCOLS[config.protocol].noise_by == "silos" else 1
    distribution = NoiseDistribution(std, noises, mechanism.variance_factors)
    return Noise(mechanism, distribution, std, factor=factor)


def _flat_noise(
    config: Any, problem: ProblemSpec, schedule: Schedule, participations: int
) -> Noise:
    """Noise of sums that are shuffled batch by batch, each once: no tree (docs/releases.md)."""
    if config.protocol != "shuffle-vector":
        raise InputError(
            f'release "{FLAT}" needs protocol "shuffle-vector", got "{config.protocol}"'
        )
    if schedule.rounds and participations > 1:
        raise InputError(
            "returning must be 1 where batches of a vector sum differ in size: their costs have "
            f"no common account, got {config.returning}"
        )
    return flat_bits(
        schedule,
        partial(
            calibrate_vector_batches,
            Budget(config.epsilon, config.delta, config.relation),
            dimension=problem.dimension,
            returning=participations,
            calibration=config.calibration,
            vector_scale=config.vector_scale,
            honest_fraction=config.honest_fraction,
            covariance_ratio=config.ratio,
            centred=centred_of(config.clipping(problem)),
        ),
        users=problem.silos,
        failure_probability=config.failure_probability,
    )


def flat_bits(
    schedule: Schedule,
    calibrate: Callable[..., VectorBatches],
    *,
    users: int,
    failure_probability: float,
) -> Noise:
    """Noise bits of sums of single batches, which the server adds up.

    Parameters
    ----------
    schedule : Schedule
        The batches.
    calibrate : callable
        ``calibrate(batch_size=n)``: noise for a batch of n data points.
    users : int
        Data points of a round.
    failure_probability : float
        alpha of the radius, of which the coupling of bits to normals takes a share.

    Returns
    -------
    Noise
    """
    lengths = schedule.lengths if schedule.rounds else (schedule.batch_size,)
    made = {n: calibrate(batch_size=users * n) for n in dict.fromkeys(lengths)}
    batches = [made[n] for n in lengths]
    share = COUPLING_SHARE * failure_probability
    if schedule.rounds:
        mechanism: Mechanism = UnequalBatches(tuple(batches))
        distribution = batches_distribution(batches, share)
    else:
        mechanism = batches[0]
        distribution = batch_distribution(batches[0], schedule.releases, share)
    g = [batch.g for batch in batches]
    encoding = Encoding(tuple(a for a, _ in g), tuple(b.b for b in batches), tuple(c for _, c in g))
    return Noise(mechanism, distribution, encoding=encoding)


def _noise_by_silo(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Noise of each silo's own strength (zhou-chowdhury-2024, Definition 2.1)."""
    budgets = config.silo_epsilon
    if config.returning != 1:
        raise InputError(
            "returning must be 1 with silo_epsilon: a user of several silos has no budget of "
            f"their own, got {config.returning}"
        )
    if len(budgets) != problem.silos:
        raise InputError(
            f"silo_epsilon must hold one number for each of {problem.silos} silos, "
            f"got {len(budgets)}"
        )
    each = {
        epsilon: make_noise(
            msgspec.structs.replace(config, epsilon=epsilon, silo_epsilon=None),
            problem,
            schedule,
        )
        for epsilon in dict.fromkeys(budgets)
    }
    weakest = each[max(budgets)]
    scales = tuple(each[e].std.bias / weakest.std.bias for e in budgets)
    return replace(
        weakest,
        distribution=replace(weakest.distribution, noises=sum(f * f for f in scales)),
        silo_noise=scales,
        silo_epsilon=tuple(float(epsilon) for epsilon in budgets),
    )


# ---- Plan ----------------------------------------------------------------------------------------


def assemble(
    config: Config,
    problem: ProblemSpec,
    protocol: Protocol,
    schedule: Schedule | int,
    clip: Clip | None,
    noise: Noise | None = None,
    individual: bool = False,
    release: str = "tree",
    *,
    only_released: bool | None = None,
    ordered: bool = True,
) -> tuple[Plan, Theory]:
    """Make the plan of one curve, and the theory behind its radius.

    Parameters
    ----------
    config : Config
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    protocol : Protocol
        The randomizer, the server and whom they trust.
    schedule : Schedule or int
        The rounds of synchronisation, or B of equal batches; 0 never synchronises.
    clip : Clip or None
        Bounds that features and rewards are clipped to.
    noise : Noise, optional
        None adds no noise.
    individual : bool, default False
        True to draw each user's message, False to draw the noise of their sum.
    release : str, default "tree"
        The continual release that noises prefix sums.
    only_released : bool, optional
        True if actions depend on synchronised statistics alone; by default `released_only`.
    ordered : bool, default True
        True if the rounds of synchronisation are known in advance.

    Returns
    -------
    plan : Plan
        Plain data that drivers and parties execute, without a claim yet: `certify.certify` adds it.
    theory : Theory
        Regularizer and radius, and what their proof rests on.
    """
    if isinstance(schedule, int):
        schedule = Schedule(problem.horizon, schedule)
    no_noise = NoiseDistribution(variances=np.zeros(schedule.releases + 1))
    if only_released is None:
        only_released = released_only(config, schedule)
    clip = config.clipping(problem, clip)
    theory = make_theory(
        # A silo that never synchronises is its own federation of one.
        problem if schedule.batch_size else replace(problem, silos=1),
        noise.distribution if noise else no_noise,
        radius=config.radius,
        radius_multiplier=config.radius_multiplier,
        regularizer=config.regularizer_rule,
        failure_probability=public_failure(config),
        clip=clip,
        released_only=only_released,
        union=problem.silos,
        ordered=ordered,
        centred=config.centred_norm(problem),
    )
    plan = make_plan(config, problem, protocol, schedule, clip, theory, noise)
    if config.bonus < 1.0:
        most = allowance(plan, theory, config.ledger)
        plan = replace(plan, bonus=config.bonus, allowance=tuple(most.tolist()))
    return replace(plan, individual=individual, release=release), theory


def released_only(config: Config, schedule: Schedule) -> bool:
    """True if actions depend on synchronised statistics alone.

    After every round the local batch is empty whenever an action is chosen, lazy or not.
    """
    return schedule.every_round or (config.lazy and schedule.batch_size > 0)


def make_plan(
    config: Config,
    problem: ProblemSpec,
    protocol: Protocol,
    schedule: Schedule | int,
    clip: Clip | None,
    theory: Theory,
    noise: Noise | None,
) -> Plan:
    """Put the numbers of a theory and its noise into a plan; parameters as in `assemble`."""
    if isinstance(schedule, int):
        schedule = Schedule(problem.horizon, schedule)
    return Plan(
        silos=problem.silos,
        horizon=problem.horizon,
        dimension=problem.dimension,
        batch_size=schedule.batch_size,
        release_rounds=schedule.rounds,
        # Alone there is nothing to wait for: a silo uses all its own data.
        lazy=config.lazy and schedule.batch_size > 0,
        protocol=protocol,
        noise_std=noise.std if noise else NoiseStd(),
        regularizer=theory.regularizer,
        radius=theory.radius,
        clip=clip,
        encoding=noise.encoding if noise else None,
        silo_noise=noise.silo_noise if noise else (),
        factor=noise.factor if noise else None,
        secure=noise.secure if noise else None,
        score=score_named(config.score),
        tie_bonus=config.tie_bonus,
        reward_limit=config.reward_limit(problem, clip),
        room=problem.room,
    )
