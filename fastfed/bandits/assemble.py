"""Compute a curve's plan from its Config: the privacy noise, then the confidence radius.

A curve is one system with its keys in an experiment. `make_noise` calibrates the mechanism of the
protocol for the (epsilon, delta) of the curve (``release_for`` and similar functions in
`fastfed.privacy`), and describes the distribution of the noise in the synchronised sums. `assemble`
computes the regularizer and the radius from this distribution (`radius.make_theory`) and puts all
numbers into a `Plan`. `certify.certify` then adds the privacy claim and the certificate.

A release is the noisy sums that silos receive at one synchronisation. The release *type* (the key
``release``: "tree", "factorised", ...) is the mechanism that adds noise to all prefix sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from typing import Protocol as TypingProtocol

import msgspec
import numpy as np

from fastfed._validate import InputError, number
from fastfed.bandits.noise_distributions import (
    NoiseDistribution,
    batch_distribution,
    batches_distribution,
    bit_distribution,
    of_views,
)
from fastfed.bandits.own_rounds import factor_horizon, public_failure, share_of, with_coin_noise
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, make_theory, sieve_widths
from fastfed.bandits.system import Config, batches_of_user
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.amplification import calibrate_shuffled_tree
from fastfed.privacy.mechanisms.binomial_tree import calibrate_vector_sum
from fastfed.privacy.mechanisms.bit_counts import calibrate_counts
from fastfed.privacy.mechanisms.reward_release import calibrate_rewards
from fastfed.privacy.mechanisms.secure_sum import SecureSum, calibrate_secure_sum
from fastfed.privacy.mechanisms.user_bit import UserBits, bit_scale, calibrate_bits
from fastfed.privacy.mechanisms.vector_batches import (
    UnequalBatches,
    VectorBatches,
    calibrate_vector_batches,
)
from fastfed.privacy.releases.gaussian_release import GaussianRelease, release_for
from fastfed.privacy.releases.prefix_sums import Factor, optimal_factor, toeplitz_factor
from fastfed.privacy.sensitivity import DIAGONAL, Budget
from fastfed.protocols.account import USER_BIT, bounds_of, centred_of, tree_batch
from fastfed.protocols.clocks import Clocks
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan
from fastfed.protocols.protocol import FLAT, PROTOCOLS, Protocol, statistic_size
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import score_named

#: Protocols that allow release types in which several prefix sums share noise, such as "toeplitz".
RELEASABLE = ("silo-ldp", "central")
#: Share of the failure probability that is spent on approximating the noise bits by normals.
COUPLING_SHARE = 0.01
#: Largest number of releases of secure sums. Their factor, a matrix with one row and one column for
#: each release, is stored as Python integers.
MAX_MASKED_RELEASES = 1024
#: Limits in the choice of the default release type. A change of these limits would change the
#: results of specs without the key `release`, and so make stored results of such specs invalid.
#: MAX_OPTIMISED: largest number of releases for which a factor is optimised. MAX_KEPT: largest
#: number of releases whose noise vectors are all stored (time and memory are quadratic).
#: MAX_KEPT_NUMBERS: largest number of stored noise values in one replicate.
MAX_OPTIMISED, MAX_KEPT, MAX_KEPT_NUMBERS = 400, 1024, 2**24
#: Weight of noise against data in `expected_loss`, measured (docs/releases.md).
NOISE_WEIGHT = 8.0

# ---- Noise ---------------------------------------------------------------------------------------


class Mechanism(TypingProtocol):
    """Interface of a calibrated mechanism: its budget, source and conditions.

    The certificate's exact epsilon does not come from the mechanism. It is computed from the
    numbers in the plan.
    """

    @property
    def budget(self) -> Budget:
        """The requested (epsilon, delta), its relation and its unit."""
        ...

    @property
    def source(self) -> str:
        """Author-year and equation of the rule that chose the noise."""
        ...

    def conditions(self) -> list[Condition]:
        """Return the conditions of the guarantee, and whether they hold."""
        ...


@dataclass(frozen=True)
class Noise:
    """The privacy noise of a curve: its mechanism, its distribution and its numbers in the plan.

    Parameters
    ----------
    mechanism : Mechanism
        The calibrated mechanism, which states the budget and the conditions.
    distribution : NoiseDistribution
        The distribution of the noise in the synchronised sums, for confidence radii.
    std : NoiseStd, optional
        Standard deviations of the Gaussian noise of one tree node, in units of the sums of x y and
        x x'.
    encoding : Encoding, optional
        Parameters of the vector sum, if users send their data as bits with noise bits.
    silo_noise : tuple of float, optional
        If silos have different budgets: the noise of each silo, as a multiple of ``std``.
    silo_epsilon : tuple of float, optional
        The epsilon of each silo.
    silo_delta : tuple of float, optional
        The delta of each silo, if the deltas differ.
    factor : Factor, optional
        The factorisation of the prefix sums, for release type "factorised".
    secure : SecureSum, optional
        The mechanism that silos and server execute, if sums are masked.
    flips : int, default 0
        2^53 times the probability that a user's bit is flipped, if users send bits of rewards.
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
    flips: int = 0


#: A function from a config, whose key ``release`` is set, to its calibrated noise.
NoiseOf = Callable[[Any], Noise]


def make_noise(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the noise of a private-fedlinucb curve for its budget, protocol and release type.

    Parameters
    ----------
    config : PrivateConfig
        The keys that a spec sets for the curve. A curve is one system in an experiment.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    schedule : Schedule
        The rounds after which there is a release.

    Raises
    ------
    InputError
        If the protocol does not support the release type or the calibration.
    """
    if config.silo_epsilon is not None:
        return _noise_by_silo(config, problem, schedule)
    budget = Budget(config.epsilon, config.delta, config.relation)
    releases = schedule.releases
    participations = batches_of_user(config.returning, releases)
    centred = centred_of(config.clipping(problem))
    mechanism: GaussianRelease
    factor = None
    if config.protocol == USER_BIT:
        noise_of = count_noise if config.shuffled else bit_noise
        return noise_of(config, problem, schedule)
    if config.release == FLAT:
        return _flat_noise(config, problem, schedule, participations)
    if PROTOCOLS[config.protocol].masked:
        return _secure_noise(config, problem, schedule, participations)
    if config.release == "factorised":
        last_round = factor_horizon(config, problem, schedule)
        release_rounds = tuple(int(n) for n in schedule.ends)
        factor = optimal_factor(release_rounds, last_round, config.saturation or 0.0)
    if config.protects == "reward":
        return _reward_noise(config, problem, schedule, participations, factor)
    if config.release != "tree" and config.protocol not in RELEASABLE:
        raise InputError(
            f'release "{config.release}" needs protocol '
            f"{' or '.join(RELEASABLE)}: in other protocols every message has its own noise, "
            f'got "{config.protocol}"'
        )
    if config.protocol == "shuffle-vector":
        if schedule.rounds:
            raise InputError(
                f'batches of different lengths need release "{FLAT}" with protocol '
                f'"shuffle-vector": its tree needs equal batches, got release "{config.release}"'
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
        mechanism = release_for(
            config.release,
            budget,
            releases,
            config.calibration,
            DIAGONAL if problem.arms else config.layout,
            (config.covariance_ratio or 1.0) if problem.arms else config.ratio,
            returning=participations,
            factor=factor,
            centred=centred,
        )
    # The rule that divides rounds into shared and local ones; None if all rounds are shared.
    share = share_of(config)
    mechanism = with_coin_noise(mechanism, share)
    std = NoiseStd(*mechanism.stds)
    noises_per_release = problem.silos if PROTOCOLS[config.protocol].noise_by == "silos" else 1
    # The sum of the squared constant feature counts users. This count is public, so it needs no
    # noise. With secret coins it is not public: it would reveal how many users the coins selected.
    constant_is_public = centred is not None and not (share is not None and share.tossed)
    distribution = NoiseDistribution(
        std, noises_per_release, mechanism.variance_factors, public_constant=constant_is_public
    )
    return Noise(mechanism, distribution, std, factor=factor)


# ---- The default release type --------------------------------------------------------------------


def usual_release(
    config: Any, protocol: str, problem: ProblemSpec, schedule: Schedule, noise_of: NoiseOf
) -> str:
    """Return the default release type of a curve: the type with the smallest `expected_loss`.

    All release types are calibrated to the same privacy guarantee. The rule and its measurements
    are in docs/releases.md.

    Parameters
    ----------
    config : Config
        The keys that a spec sets for the curve. They must include ``calibration``,
        ``covariance_ratio`` and ``failure_probability``.
    protocol : str
        The protocol, which says who adds the noise: a protocol of private-fedlinucb, or
        "agent-central".
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    schedule : Schedule
        The rounds after which there is a release.
    noise_of : callable
        ``noise_of(config)`` returns the calibrated noise of a config whose release type is set.

    Returns
    -------
    str
        The release type.
    """
    candidates = _candidate_releases(config, protocol, problem, schedule)
    if len(candidates) == 1:
        return candidates[0]

    def release_loss(release: str) -> float:
        """Return the expected loss, in rounds, of the curve with this release type."""
        noise = noise_of(with_release(config, release))
        alpha = config.failure_probability
        return expected_loss(noise.distribution, problem, schedule, alpha)

    return min(candidates, key=release_loss)


def check_saturation(config: Any) -> None:
    """Raise InputError for a ``saturation`` below 0, or above 0 without release "factorised"."""
    if config.saturation is None:
        return
    number("saturation", config.saturation, at_least=0.0)
    if config.saturation > 0.0 and config.release not in (None, "factorised"):
        raise InputError(f'saturation needs release "factorised", got "{config.release}"')


#: A prefix sum is useful once its number of rows is about this number times d times the standard
#: deviation of its noise.
SATURATION = 10.0


def useful_rounds(noise: Noise, problem: ProblemSpec) -> float:
    """Return n0, the number of rounds after which the sum of a single release is useful.

    A prefix sum is useful once it has more than about `SATURATION` d s rows, where s is the
    standard deviation of its noise. Before that, theta_hat is mostly noise, and because the regret
    of a round is bounded, somewhat less noise would not reduce the regret.

    Parameters
    ----------
    noise : Noise
        The calibrated noise of a curve with a single release, after the last round. It does not
        depend on the schedule of the curve, so n0 is known before the schedule is chosen.
    problem : ProblemSpec
        Its silos M (a prefix sum has M rows for each round) and its dimension d.
    """
    node, scales = noise.distribution.node, noise.distribution.scales
    std = math.hypot(node.bias, node.off_diagonal) * float(scales[-1])
    return SATURATION * problem.dimension * std / problem.silos


def with_saturation(
    config: Any, problem: ProblemSpec, noise_of: Callable[[Any, Schedule], Noise]
) -> Any:
    """Return the config with its ``saturation`` n0 filled in, if it is None.

    n0 is a number of rounds: when the factor of release type "factorised" is optimised, noise in
    prefix sums of fewer than n0 rounds counts less (docs/releases.md).

    Parameters
    ----------
    config : PrivateConfig or JointConfig
        The keys that a spec sets for the curve. Keys of the sieve without a value must already
        have their defaults.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    noise_of : callable
        ``noise_of(config, schedule)`` returns the calibrated noise.

    Returns
    -------
    PrivateConfig or JointConfig
        n0 is the result of `useful_rounds`. It is 0 if the curve has no sieve, if the calibration
        is not "exact", if ``release`` is set to a type other than "factorised", or if users take
        part in several batches.
    """
    if config.saturation is not None:
        return config
    has_sieve = config.ranking[1] > 0.0
    may_saturate = has_sieve and config.calibration == "exact" and config.returning == 1
    if not may_saturate or config.release not in ("factorised", None):
        return msgspec.structs.replace(config, saturation=0.0)
    single_release = msgspec.structs.replace(config, release="factorised", saturation=0.0)
    noise = noise_of(single_release, Schedule.at((problem.horizon,), problem.horizon))
    return msgspec.structs.replace(config, saturation=float(round(useful_rounds(noise, problem))))


def with_release(config: Any, release: str) -> Any:
    """Return the config with this release type.

    ``saturation`` is set to 0 unless the type is "factorised", the only type that uses it.
    """
    saturation = config.saturation if release == "factorised" else 0.0
    return msgspec.structs.replace(config, release=release, saturation=saturation)


def _candidate_releases(
    config: Any, protocol: str, problem: ProblemSpec, schedule: Schedule
) -> tuple[str, ...]:
    """Return the release types among which `usual_release` chooses the default of a curve.

    They depend on the keys, the protocol, and the number of noise values that a type would store.
    """
    if config.calibration != "exact":
        return ("tree",)
    if protocol == "shuffle-vector":
        flat = bool(schedule.rounds) or config.covariance_ratio is not None
        return (FLAT,) if flat else (FLAT, "tree")
    if share_of(config) is not None:
        return ("factorised",) if protocol in (*RELEASABLE, "secure-sum") else ("tree",)
    releases = schedule.releases
    if protocol == "secure-sum":
        return ("toeplitz",) if releases > MAX_OPTIMISED else ("factorised", "toeplitz")
    if protocol not in (*RELEASABLE, "agent-central"):
        return ("tree",)
    # "buffered" stores the noise of a few releases only.
    noise_sources = problem.silos if protocol == "silo-ldp" else 1
    stored_numbers = noise_sources * releases * statistic_size(problem.dimension)
    if releases > MAX_KEPT or stored_numbers > MAX_KEPT_NUMBERS:
        return ("buffered",)
    return ("toeplitz",) if releases > MAX_OPTIMISED else ("factorised", "toeplitz")


def expected_loss(
    distribution: NoiseDistribution,
    problem: ProblemSpec,
    schedule: Schedule,
    failure_probability: float,
) -> float:
    """Estimate how many rounds of one silo are wasted because of noise, after the first release.

    While the policy uses release k, the share w^2 / (1 + w^2) of the rounds counts as wasted. Here
    w = ``NOISE_WEIGHT`` E_k / n_k, E_k bounds the norm of the noise, and n_k is the number of rows
    in the release. The share is near 1 if noise outweighs data, because nothing is learned then. It
    is near w^2 if data outweigh noise, because regret then falls with the square of the width of
    confidence sets. This is a heuristic, and no guarantee depends on it.

    Parameters
    ----------
    distribution : NoiseDistribution
        The noise of every release.
    problem : ProblemSpec
        Sizes: silos M, rounds T, dimension d.
    schedule : Schedule
        The rounds after which there is a release.
    failure_probability : float
        alpha of the confidence radius.

    Returns
    -------
    float
        The number of wasted rounds, between 0 and T.
    """
    errors = distribution.errors(problem.dimension, failure_probability / 4.0)[1:]
    return wasted_rounds(errors, schedule.ends, problem.silos, problem.horizon)


def wasted_rounds(errors: np.ndarray, ends: np.ndarray, silos: int, horizon: int) -> float:
    """Return the number of rounds of one silo that noise wastes, by the formula of `expected_loss`.

    ``errors`` (K,) bounds the norm of the noise in each release, and ``ends`` (K,) are the rounds
    after which releases are made.
    """
    ends = ends.astype(np.float64)
    rounds_per_release = np.append(ends[1:], horizon) - ends
    noise_per_row = NOISE_WEIGHT * errors / (silos * ends)  # w of `expected_loss`
    return float(rounds_per_release @ (1.0 - 1.0 / (1.0 + noise_per_row * noise_per_row)))


def _secure_noise(
    config: Any, problem: ProblemSpec, schedule: Schedule, participations: int
) -> Noise:
    """Calibrate the noise that silos add before their sums are masked (docs/secure-sum.md).

    ``participations`` is the number of batches in which one user takes part.
    """
    colluders = problem.silos // 3 if config.colluders is None else config.colluders
    if colluders >= problem.silos:
        raise InputError(
            f"colluders must be below the number of silos ({problem.silos}), got {colluders}"
        )
    clip = config.clipping(problem, config.bounds(published=False))
    centred, (feature, reward) = centred_of(clip), bounds_of(clip)
    mechanism = calibrate_secure_sum(
        Budget(config.epsilon, config.delta, config.relation),
        secure_encoder(
            config.release,
            schedule,
            factor_horizon(config, problem, schedule),
            config.saturation or 0.0,
        ),
        problem.silos,
        colluders,
        problem.dimension,
        points=problem.silos * problem.horizon * problem.room,
        layout=config.layout or "goe2",
        # `config.ratio` is the std of the noise in the sum of x x', divided by the std of the noise
        # in the sum of x y. The mechanism expects this ratio after each std is divided by the
        # largest norm of its statistic.
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


def secure_encoder(
    release: str, schedule: Schedule, horizon: int, saturation: float = 0.0
) -> np.ndarray:
    """Return the encoder C of the prefix sums: row k weights the batches in the k-th secure sum.

    Parameters
    ----------
    release : {"factorised", "toeplitz", "tree"}
        The release type. "factorised" is an optimised factor, "toeplitz" the square-root Toeplitz
        factor. For "tree", row k is the node of the binary tree that batch k completes.
    schedule : Schedule
        The batches.
    horizon : int
        T, the last round. "factorised" is optimised for the rounds up to T.
    saturation : float, default 0
        n0 of `optimal_factor`, in rounds: noise in prefix sums of fewer rounds counts less.

    Returns
    -------
    ndarray, shape (K, K)
        C for K releases, lower triangular.

    Raises
    ------
    InputError
        If the release type has no encoder, or there are too many releases.
    """
    count = schedule.releases
    if count > MAX_MASKED_RELEASES:
        raise InputError(
            f'protocol "secure-sum" is for at most {MAX_MASKED_RELEASES} releases, got {count}: '
            'use batch_size = "growing" for fewer'
        )
    if release == "factorised":
        release_rounds = tuple(int(n) for n in schedule.ends)
        return optimal_factor(release_rounds, horizon, saturation).encoder
    if release == "toeplitz":
        return toeplitz_factor(count)
    if release == "tree":
        # Batch k completes the node that sums the last (k & -k) batches, the lowest set bit of k.
        rows, batches = np.arange(1, count + 1)[:, None], np.arange(1, count + 1)
        return ((batches <= rows) & (batches > rows - (rows & -rows))).astype(np.float64)
    raise InputError(
        'release must be "factorised", "toeplitz" or "tree" with protocol "secure-sum", got '
        f'"{release}": its estimates are not sums of silo messages'
    )


def _reward_noise(
    config: Any,
    problem: ProblemSpec,
    schedule: Schedule,
    participations: int,
    factor: Factor | None,
) -> Noise:
    """Calibrate noise for a curve whose rewards are private and whose contexts are public.

    Only the sums of reward times features get noise. ``participations`` is the largest number of
    batches in which one user takes part. ``factor`` is the factorisation for release type
    "factorised".
    """
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
    noises_per_release = problem.silos if PROTOCOLS[config.protocol].noise_by == "silos" else 1
    distribution = NoiseDistribution(std, noises_per_release, mechanism.variance_factors)
    return Noise(mechanism, distribution, std, factor=factor)


def bit_noise(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the probability with which each user flips the bit that encodes their reward.

    This is the randomised response of protocol "user-bit". Sums of bits get no further noise.
    """
    # Users of an incomplete last batch also send bits.
    batches = schedule.releases + (int(schedule.ends[-1:].sum()) < problem.horizon)
    mechanism = calibrate_bits(
        Budget(config.epsilon, config.delta, config.relation, unit="reward"),
        batches_of_user(config.returning, batches),
    )
    return _noise_of_flips(mechanism, schedule)


def count_noise(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the probability with which each user flips their bit, if a shuffler counts ones.

    The shuffler forwards only the number of ones in each batch, and nothing of an incomplete last
    batch. The flips are calibrated for the smallest batch, which hides each user the least.
    """
    fewest_rounds = (
        int(np.diff(schedule.ends, prepend=0).min()) if schedule.releases else problem.horizon
    )
    budget = Budget(config.epsilon, config.delta, config.relation, unit="reward")
    return _noise_of_flips(calibrate_counts(budget, problem.silos * fewest_rounds), schedule)


def _noise_of_flips(mechanism: UserBits, schedule: Schedule) -> Noise:
    """Return the `Noise` of a curve whose users flip bits, where no noise is added to sums."""
    distribution = NoiseDistribution(variances=np.zeros(schedule.releases + 1))
    return Noise(mechanism, distribution, flips=mechanism.flips)


def _flat_noise(
    config: Any, problem: ProblemSpec, schedule: Schedule, participations: int
) -> Noise:
    """Calibrate the noise bits of release type "flat", where each batch is shuffled once.

    There is no tree of batches (docs/releases.md). ``participations`` is the largest number of
    batches in which one user takes part.
    """
    if config.protocol != "shuffle-vector":
        raise InputError(
            f'release "{FLAT}" needs protocol "shuffle-vector", got "{config.protocol}"'
        )
    # `rounds` is empty if all batches have the same size.
    if schedule.rounds and participations > 1:
        raise InputError(
            "returning must be 1 if batches of a vector sum differ in size: fastfed cannot account "
            f"for a user of several such batches, got {config.returning}"
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
    """Return the noise of a vector sum without a tree: each batch has separate noise bits.

    The server adds up the noisy sums of the batches.

    Parameters
    ----------
    schedule : Schedule
        The batches.
    calibrate : callable
        ``calibrate(batch_size=n)`` returns the mechanism of a batch of n data points.
    users : int
        The number of users in one round, over all silos. Each sends one data point.
    failure_probability : float
        alpha, the probability with which the confidence radius may fail. The share `COUPLING_SHARE`
        of alpha is spent on approximating the noise bits by normals.
    """
    lengths = schedule.lengths if schedule.rounds else (schedule.batch_size,)
    mechanism_by_length = {n: calibrate(batch_size=users * n) for n in dict.fromkeys(lengths)}
    batches = [mechanism_by_length[n] for n in lengths]
    coupling_probability = COUPLING_SHARE * failure_probability
    # `schedule.rounds` is empty if all batches have the same size.
    if schedule.rounds:
        mechanism: Mechanism = UnequalBatches(tuple(batches))
        distribution = batches_distribution(batches, coupling_probability)
    else:
        mechanism = batches[0]
        distribution = batch_distribution(batches[0], schedule.releases, coupling_probability)
    encoding = Encoding(
        tuple(batch.g[0] for batch in batches),
        tuple(batch.b for batch in batches),
        tuple(batch.g[1] for batch in batches),
    )
    return Noise(mechanism, distribution, encoding=encoding)


def _noise_by_silo(config: Any, problem: ProblemSpec, schedule: Schedule) -> Noise:
    """Calibrate the noise of silos with different epsilons (zhou-chowdhury-2024, Definition 2.1).

    The result has the noise of the silo with the largest epsilon, which is the least noise, and the
    noise of each silo as a multiple of it.
    """
    epsilons = config.silo_epsilon
    if config.returning != 1:
        raise InputError(
            "returning must be 1 with silo_epsilon: a user of several silos would have several "
            f"budgets, got {config.returning}"
        )
    if len(epsilons) != problem.silos:
        raise InputError(
            f"silo_epsilon must hold one number for each of {problem.silos} silos, "
            f"got {len(epsilons)}"
        )
    noise_by_epsilon = {
        epsilon: make_noise(
            msgspec.structs.replace(config, epsilon=epsilon, silo_epsilon=None), problem, schedule
        )
        for epsilon in dict.fromkeys(epsilons)
    }
    least_noise = noise_by_epsilon[max(epsilons)]
    # Without a release every std is 0; 1 then stands for it, and all multiples are 1.
    least_std = least_noise.std.bias or 1.0
    multiples = tuple((noise_by_epsilon[e].std.bias or 1.0) / least_std for e in epsilons)
    return replace(
        least_noise,
        distribution=replace(least_noise.distribution, noises=sum(f * f for f in multiples)),
        silo_noise=multiples,
        silo_epsilon=tuple(float(epsilon) for epsilon in epsilons),
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
    clocks: Clocks | None = None,
) -> tuple[Plan, Theory]:
    """Return the plan of one curve, and the theory that proves the plan's confidence radius.

    Parameters
    ----------
    config : Config
        The keys that a spec sets for the curve. A curve is one system in an experiment.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    protocol : Protocol
        The protocol: randomizer, server, and which parties are trusted.
    schedule : Schedule or int
        The rounds of synchronisation, or the size B of equal batches. With B = 0 silos never
        synchronise.
    clip : Clip or None
        Bounds that features and rewards are clipped to; None for no clipping.
    noise : Noise, optional
        The privacy noise. None adds no noise.
    individual : bool, default False
        True to simulate the message of each user, False to draw the noise of the sum of messages.
    release : str, default "tree"
        The release type.
    only_released : bool, optional
        True if actions depend on synchronised statistics only. The default is the result of
        `released_only`.
    ordered : bool, default True
        True if the rounds of synchronisation are known in advance.
    clocks : Clocks, optional
        The silos' own clocks. Silos then estimate from a view, the sum of all silos' latest
        reports, which may end at different times. The radius holds for each view.

    Returns
    -------
    plan : Plan
        Plain data that drivers and parties execute. The privacy claim is missing and is added by
        `certify.certify`.
    theory : Theory
        Regularizer and radius, and the conditions of their proof.
    """
    if isinstance(schedule, int):
        schedule = Schedule(problem.horizon, schedule)
    no_noise = NoiseDistribution(variances=np.zeros(schedule.releases + 1))
    distribution = noise.distribution if noise else no_noise
    if clocks is not None:
        distribution = of_views(distribution, noise.silo_noise if noise else (), clocks.reports)
    if only_released is None:
        only_released = released_only(config, schedule)
    clip = config.clipping(problem, clip)
    # The proof treats a silo that never synchronises as a federation with one silo.
    proof_problem = problem if schedule.batch_size else replace(problem, silos=1)
    if noise and noise.flips:
        # The server learns from bits instead of rewards. The sub-Gaussian scale of a bit covers the
        # noise of the reward and of the flip.
        assert clip is not None
        scale = bit_scale(noise.flips, clip.low, clip.high)
        proof_problem = replace(proof_problem, reward_scale=scale, noise_free=False)
    theory = make_theory(
        config,
        proof_problem,
        distribution,
        failure_probability=public_failure(config),
        clip=clip,
        released_only=only_released,
        union=problem.silos,
        ordered=ordered,
    )
    plan = make_plan(config, problem, protocol, schedule, clip, theory, noise)
    if growth := config.ranking[1]:
        plan = replace(plan, sieve_growth=growth, widths=sieve_widths(plan, theory))
    return replace(plan, individual=individual, release=release), theory


def released_only(config: Config, schedule: Schedule) -> bool:
    """Return True if actions depend on synchronised statistics only.

    This holds for lazy updates. It also holds if silos synchronise after every round, because the
    local batch is then empty whenever an action is chosen.
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
    """Return a plan with the regularizer and radius of ``theory`` and the given noise.

    ``theory`` is the result of `make_theory`. The other parameters are those of `assemble`.
    """
    if isinstance(schedule, int):
        schedule = Schedule(problem.horizon, schedule)
    return Plan(
        silos=problem.silos,
        horizon=problem.horizon,
        dimension=problem.dimension,
        batch_size=schedule.batch_size,
        release_rounds=schedule.rounds,
        # A silo that never synchronises updates its policy after every round.
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
        ranking=config.ranking[0],
        reward_limit=config.reward_limit(problem, clip),
        room=problem.room,
        arms=problem.arms,
        flips=noise.flips if noise else 0,
    )
