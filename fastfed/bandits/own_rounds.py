"""Local rounds, whose data never leave the silo (docs/own-rounds.md, key ``share``).

In a shared round the action is chosen from released sums only, and its features and reward (x, y)
are added to the silo's batch. In a local round the action may depend on all data of the silo, and
nothing of the round leaves the silo. The code also calls local rounds "own" rounds.

The first part of this module has the key ``share`` of a curve, and computes the schedule of
releases, the noise with secret coins, and the local rounds of the plan. The second part has the
state that a silo stores for its local rounds (`Memory`).
"""

from __future__ import annotations

import math
import typing
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.delays import DelayConfig
from fastfed.bandits.linucb import Estimate
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import Config, check_required
from fastfed.privacy.accounting.gdp import sampled_mu
from fastfed.privacy.certificate import Condition
from fastfed.privacy.releases.gaussian_release import GaussianRelease
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import REPLACE, Protocol, keeping_own_rounds
from fastfed.protocols.schedule import OwnRounds, Schedule
from fastfed.protocols.score import UCB

#: Rules for the actions of local rounds, values of ``coin``, and protocols that allow secret coins.
RULES = ("gls", "min-of-bounds")
COIN_VALUES = ("none", "secret")
COIN_PROTOCOLS = ("silo-ldp", "silo-ldp-prefix", "central")
#: Rule "gls": candidates for the standard deviation of a silo's theta around the theta of the other
#: silos. The posterior weights them by how well they explain the silo's rewards.
PRIOR_STDS = (0.08, 0.16, 0.32, 0.64)
#: Factor on the posterior standard deviation in the score of a local round.
BONUS_FACTOR = 0.5
#: The last release is used in all rounds after it. When the factor of release type "factorised" is
#: optimised, these rounds count as at most this number times the rounds before the last release.
MAX_LAST_WEIGHT = 3
#: Relative increase of the noise with secret coins, so that rounding errors never weaken privacy.
ROUNDING_MARGIN = 1e-9
#: Smallest scale R of the reward noise that the posterior assumes. It is undefined for R = 0.
MIN_REWARD_SCALE = 1e-3


Noisy = TypeVar("Noisy", bound=GaussianRelease)


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key ``share``: which rounds are shared. All other rounds are local.

    Parameters
    ----------
    until : int
        T_s >= 1, the last round that may be shared. It is below the horizon, and there is always a
        release after it.
    fraction : float, default 1
        p in (0, 1], the share of the rounds up to ``until`` that are shared. Without coins round t
        is shared if floor(t p) > floor((t - 1) p).
    rule : {"gls", "min-of-bounds"}
        How actions are chosen in local rounds. "gls" uses a posterior of theta, computed from the
        released sums of the other silos and the raw data of this silo. "min-of-bounds" uses the
        smaller of two upper confidence bounds, one from the released sums and one from the raw data
        of this silo.
    coin : {"none", "secret"}
        With "secret" a coin decides for each user whether the round is shared, with probability
        ``fraction``. Nobody outside of the silo sees the coin, so less noise is needed. With "none"
        the public rule of ``fraction`` decides.

    Raises
    ------
    InputError
        For an invalid value. The message names the key.
    """

    until: int
    fraction: float = 1.0
    rule: str = "gls"
    coin: str = "none"

    def __post_init__(self) -> None:
        integer("share.until", self.until, at_least=1)
        number("share.fraction", self.fraction, above=0.0, at_most=1.0)
        choice("share.rule", self.rule, RULES)
        choice("share.coin", self.coin, COIN_VALUES)
        if self.coin == "secret" and self.fraction == 1.0:
            raise InputError(
                'share.coin "secret" needs share.fraction below 1, its probability: at 1 every '
                "user is shared for certain"
            )
        if self.coin == "none" and self.until * self.fraction + 1e-9 < 1.0:
            raise InputError(
                "share.until times share.fraction must be at least 1, or no round is shared, got "
                f"{self.until} times {self.fraction:g}"
            )

    @property
    def tossed(self) -> bool:
        """True if a secret coin decides for each user whether the round is shared."""
        return self.coin == "secret"


class SharingConfig(DelayConfig, frozen=True, kw_only=True):
    """Keys of a curve that may have local rounds: the keys of `DelayConfig` and ``share``.

    Parameters
    ----------
    share : Share, optional
        For example ``{ until = T_s }``: all later rounds are local. By default all rounds are
        shared.
    """

    share: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is None:
            return
        if self.delay is not None:
            raise InputError("share needs a curve without delay: no proof covers both")
        if self.radius != "direct" or not self.lazy or self.score != UCB:
            raise InputError(
                'share needs radius "direct", lazy = true and score "ucb": actions of shared '
                f'rounds depend on released sums only, got radius "{self.radius}", lazy = '
                f'{str(self.lazy).lower()}, score "{self.score}"'
            )
        if self.clip is False:
            raise InputError("share needs clip = true: the privacy of shared rounds depends on it")
        if self.share.tossed:
            self._check_coin()

    def _check_coin(self) -> None:
        """Raise InputError for keys with which coins would not be secret, or have no proof."""
        protocol = getattr(self, "protocol", "none")
        if protocol not in COIN_PROTOCOLS:
            raise InputError(
                f'share.coin "secret" needs protocol {", ".join(COIN_PROTOCOLS[:-1])} or '
                f'{COIN_PROTOCOLS[-1]}, whose noise is Gaussian, got "{protocol}"'
            )
        check_required(
            'share.coin "secret"',
            self,
            ("protects", "user", "public contexts would show which rounds are shared"),
            ("calibration", "exact", "other calibrations ignore the coin"),
            ("relation", "replace", "the proof is for this relation"),
            ("returning", 1, "the proof is for users of one batch"),
            ("silo_epsilon", None, "all silos have the same noise"),
        )


def shared_batches(config: Config, problem: ProblemSpec) -> Schedule:
    """Return the schedule of a curve, with all releases up to the last shared round.

    Parameters
    ----------
    config : Config
        Keys of the curve (one system in an experiment), with or without ``share``.
    problem : ProblemSpec
        Sizes: silos M, rounds T, dimension d.

    Returns
    -------
    Schedule
        With ``share`` the last release is after round ``share.until``.

    Raises
    ------
    InputError
        If ``batch_size``, ``batch_first`` or an entry of ``release_rounds`` is above
        ``share.until``, or ``share.until`` is not below the horizon.
    """
    share = share_of(config)
    if share is None:
        return config.batches(problem)
    if share.until >= problem.horizon:
        raise InputError(
            f"share.until must be below horizon ({problem.horizon}), got {share.until}: without "
            "share all rounds are shared"
        )
    try:
        shared_schedule = config.batches(replace(problem, horizon=share.until))
    except InputError as error:
        raise InputError(f"{error} (here the horizon is share.until)") from None
    rounds = tuple(int(n) for n in shared_schedule.ends) if shared_schedule.releases else ()
    if rounds[-1:] != (share.until,):
        rounds = (*rounds, share.until)
    return Schedule.at(rounds, problem.horizon)


def share_of(config: Config) -> Share | None:
    """Return the key ``share``, or None for configs without this key."""
    share: Share | None = getattr(config, "share", None)
    return share


def factor_horizon(config: Config, problem: ProblemSpec, schedule: Schedule) -> int:
    """Return the horizon for which the factor of release type "factorised" is optimised.

    It is the horizon of the problem. With local rounds it is at most (1 + `MAX_LAST_WEIGHT`) times
    the round of the last release, so that the many rounds after this release do not dominate.
    """
    if share_of(config) is None:
        return problem.horizon
    return min(problem.horizon, (1 + MAX_LAST_WEIGHT) * int(schedule.ends[-1]))


def with_coin_noise(mechanism: Noisy, share: Share | None) -> Noisy:
    """Return the mechanism with less noise if secret coins decide which users are shared.

    Secret coins select a random sample of the users for the releases. This amplifies privacy, so
    less noise satisfies the same budget.

    Parameters
    ----------
    mechanism : GaussianRelease
        The mechanism calibrated without coins.
    share : Share, optional
        The curve's key ``share``.

    Returns
    -------
    GaussianRelease
        The mechanism with the smaller noise. Without secret coins, ``mechanism`` unchanged.

    Raises
    ------
    InputError
        If delta is so large that no noise would be needed.

    Notes
    -----
    Guarantee: releases are (epsilon, delta)-private with the budget of ``mechanism`` if one user is
    replaced, towards observers who do not see the coins. The formula is `sampled_mu` of
    `fastfed.privacy.accounting.gdp`.
    """
    if share is None or not share.tossed or mechanism.noise_std == 0.0:
        return mechanism
    budget, mu_without_coin = mechanism.budget, mechanism.mu()
    # Sensitivity to the removal of a user, relative to the sensitivity to a replacement. It is at
    # least 1/2, because a replacement is a removal and an addition.
    zeta = max(0.5, _mu_of_absence(mechanism) / mu_without_coin)
    mu = sampled_mu(budget.epsilon, budget.delta, share.fraction, zeta)
    if not mu < math.inf:
        raise InputError(
            f"share.fraction must be above delta ({budget.delta:g}), got {share.fraction:g}"
        )
    return msgspec.structs.replace(
        mechanism,
        noise_std=mechanism.noise_std * (mu_without_coin / mu) * (1.0 + ROUNDING_MARGIN),
        source=f"{mechanism.source}; secret coins of probability {share.fraction:g}, "
        "docs/own-rounds.md",
    )


def _mu_of_absence(mechanism: GaussianRelease) -> float:
    """Return the GDP parameter mu of all releases if one record is removed, not replaced.

    Centred records have a public constant feature, so one entry of the sum of x x^T counts users. A
    removal changes this count. So the entry has noise, as all other entries have
    (`account.GaussianSums.absent_mu`).
    """
    if mechanism.centred is None:
        return mechanism.mu("zero-out")
    bias, _, diagonal = mechanism.stds
    covariance = mechanism.covariance_ratio * bias
    mu_per_node = mechanism.centred.absent(mechanism.layout, bias, covariance, diagonal)
    return math.sqrt(mechanism.sensitivity_squared) * mu_per_node


def public_failure(config: Config) -> float:
    """Return the failure probability of the confidence bound that is computed from released sums.

    It is alpha, the key ``failure_probability``, if this is the only bound. With rule
    "min-of-bounds", and with a sieve, local rounds use a second bound, from the silo's raw data.
    Each of the two bounds then gets half of alpha.
    """
    share = share_of(config)
    single_bound = share is None or (share.rule != "min-of-bounds" and not config.ranking[1])
    return config.failure_probability if single_bound else config.failure_probability / 2.0


def with_trusted_silos(protocol: Protocol, share: Share | None) -> Protocol:
    """Return the protocol for a curve with local rounds: its privacy model is changed.

    The model then says that users of one silo trust each other, as local rounds need. Without local
    rounds (``share`` = None), return ``protocol`` unchanged.
    """
    return protocol if share is None else keeping_own_rounds(protocol)


def with_own_rounds(
    plan: Plan,
    theory: Theory,
    config: Config,
    variances: np.ndarray | None = None,
    noises: float = 0.0,
) -> tuple[Plan, Theory]:
    """Add local rounds to a plan, as the curve's key ``share`` states.

    In a local round a silo chooses from its raw data, and nothing of the round is released.

    Parameters
    ----------
    plan : Plan
        The plan of the shared rounds.
    theory : Theory
        The theory of the plan's radius.
    config : Config
        Keys of the curve (one system in an experiment), with or without ``share``.
    variances : ndarray, shape (K + 1,), optional
        Variance of the noise of one source in each release k = 0..K, in units of one tree node's
        variance. The default is 0: no noise.
    noises : float, default 0
        Number of independent noise sources (silos) whose noise is added up in a release.

    Returns
    -------
    plan : Plan
        The plan with local rounds, or ``plan`` unchanged if the curve has no key ``share``.
    theory : Theory
        The given theory. For rule "gls" without a sieve a condition is added that fails: "gls"
        chooses by a posterior, which is a model, so no regret bound is proven.

    Raises
    ------
    InputError
        If silos have different budgets.
    """
    share = share_of(config)
    if share is None:
        return plan, theory
    if len(set(plan.noise_scale)) > 1:
        raise InputError("share needs one epsilon for all silos, got silo_epsilon")
    scale = max(plan.radius.scale, MIN_REWARD_SCALE)
    own = OwnRounds(
        share.until,
        scale**2,
        float(plan.dimension),
        *_posterior_parameters(
            plan, scale, np.zeros(plan.releases + 1) if variances is None else variances, noises
        ),
        BONUS_FACTOR * scale,
        share.fraction,
        share.tossed,
    )
    union = 2.0 * math.log(2.0 * plan.silos / config.failure_probability)
    multiplier, reward_scale, tau = plan.radius.multiplier, plan.radius.scale, plan.radius.tau
    bound = (multiplier, reward_scale, union, tau)
    if share.rule == "min-of-bounds":
        own = replace(own, spreads=(), ridges=(), bound=bound)
        return replace(plan, own=own), theory
    if plan.sieve_growth > 0.0:
        # `width` is the largest radius of the silo's LinUCB model. For V = I + sum x x', det V is
        # at most (1 + T / d)^d after T rows.
        growth = plan.dimension * math.log1p(plan.horizon / plan.dimension)
        width = multiplier * (reward_scale * math.sqrt(union + growth) + tau)
        own = replace(own, bound=bound, sieve_width=plan.sieve_growth * width)
        return replace(plan, own=own), theory
    earlier_rounds_text = "" if share.fraction == 1.0 else " and some before"
    text = (
        f"every round is shared (here rounds after {share.until}{earlier_rounds_text} are own, and "
        f'the posterior that rule "{share.rule}" plays by is a model)'
    )
    conditions = (*theory.conditions, Condition(text, False))
    return replace(plan, own=own), replace(theory, conditions=conditions)


def _posterior_parameters(
    plan: Plan, scale: float, variances: np.ndarray, noises: float
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Return the parameters of the posterior in local rounds, for rule "gls".

    The first member of the tuple holds the candidate variances of a silo's theta around the theta
    of the other silos. The second holds, for each release, one ridge term for each candidate (both
    are fields of `OwnRounds`: ``spreads`` and ``ridges``). ``scale`` is R, the scale of the reward
    noise. ``variances`` and ``noises`` are as in `with_own_rounds`.
    """
    std, silos = plan.noise_std, plan.silos
    # If each message is a whole prefix sum, a silo subtracts its last message from the release, and
    # with it the noise of this message.
    other_noises = max(0.0, noises - 1.0) if plan.protocol.analyzer == REPLACE else noises
    theta_bound = plan.radius.tau  # on ||theta_i||, or on ||theta_i - theta0|| if centred
    # The mean theta of the M - 1 other silos has a variance too, 1/(M - 1) of that of one silo.
    prior_variances = tuple(s**2 * (1.0 + 1.0 / max(1, silos - 1)) for s in PRIOR_STDS)

    def ridges(node_multiple: float) -> tuple[float, ...]:
        """Return the ridge term of one release for each prior variance.

        ``node_multiple`` is the variance of the noise of one silo in this release, in units of the
        variance of one tree node.
        """
        # Let A be the noisy sum of x x' of the other silos, D^2 the prior variance, and R = scale.
        # If the ridge exceeds R^4 / (4 D^2), R^2 A + D^2 A^2 + ridge I is positive definite for
        # every symmetric A. Without noise A is positive semidefinite, and any small ridge suffices.
        variance_per_node = std.bias**2 + (theta_bound * std.off_diagonal) ** 2
        variance = other_noises * node_multiple * variance_per_node
        return tuple(
            max(variance, 1.01 * scale**4 / (4.0 * prior_variance)) if variance else 1e-9
            for prior_variance in prior_variances
        )

    return prior_variances, tuple(ridges(float(multiple)) for multiple in variances)


# ---- State of local rounds -----------------------------------------------------------------------


class Memory(typing.Protocol):
    """Interface of the state that a silo stores for its local rounds.

    It holds sums of raw data that never leave the silo. `after` and `released` do not change the
    object. They return a new object if the state changes.
    """

    @property
    def theta(self) -> np.ndarray:
        """The estimate of theta that local rounds use, shape (d,)."""
        ...

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Return the index and the features (d,) of the action of a local round.

        ``public`` is the estimate from released sums, with the radii ``beta`` and ``gamma``.
        """
        ...

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> Memory:
        """Return the memory after a round with features ``x`` (d,) and reward ``y``.

        ``own`` is true for local rounds.
        """
        ...

    def sends(self, message: np.ndarray) -> None:
        """Store the message that the silo sends for the next release."""
        ...

    def released(self, total: np.ndarray, release: int) -> Memory:
        """Return the memory after the release with number ``release`` and the sums ``total``."""
        ...


def make_memory(plan: Plan) -> Memory | None:
    """Return a silo's initial state for local rounds, or None if all rounds are shared."""
    if plan.own is None:
        return None
    return OwnBelief(plan.own, plan) if plan.own.posterior else OwnBound(plan.own, plan)


class OwnBelief:
    """The memory of rule "gls": raw sums of all rounds of a silo, and the posterior of its theta.

    The released sums of the other silos give a prior of the silo's theta, and the silo's raw sums
    are the data (docs/own-rounds.md). The standard deviation of theta around the prior mean is
    unknown. The posterior averages over a grid of candidates, weighted by how well each explains
    the silo's rewards.

    Parameters
    ----------
    own : OwnRounds
        The local rounds of the plan.
    plan : Plan
        The plan, for its sizes and protocol.

    Attributes
    ----------
    w, theta : ndarray, shapes (d, d) and (d,)
        Inverse Cholesky factor of V, in units of R^2, and the posterior mean.
    weights : ndarray
        Posterior weights of the candidates for the standard deviation.
    """

    def __init__(self, own: OwnRounds, plan: Plan) -> None:
        d = plan.dimension
        self.own = own
        self._replaces = plan.protocol.analyzer == REPLACE
        self._releases = plan.releases
        self._release = 0
        # Raw sums of all rounds, and raw sums of shared rounds. The sums of shared rounds are
        # needed only if local rounds come between shared rounds.
        self._sums = np.zeros(plan.statistic_size)
        self._shared = np.zeros(plan.statistic_size if own.mixed else 0)
        # Released sums without this silo's part, and this silo's last message.
        self._others_sums = np.zeros(plan.statistic_size)
        self._sent = np.zeros(plan.statistic_size)
        self.w, self.theta = np.zeros((d, d)), np.zeros(d)
        self.weights = np.zeros(len(own.spreads))
        # The LinUCB model that decides which actions pass the sieve, and the largest mean reward.
        self._local = OwnBound(own, plan) if own.sieve_width else None
        self._limit = plan.reward_limit
        if own.mixed:
            self._update_posterior()

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Return index and features of the action with the largest <x, theta> + bonus ||x||_{V^-1}.

        theta and V are the mean and the precision of the posterior. With a sieve, the silo's LinUCB
        model first decides which actions pass. The arguments ``public``, ``beta`` and ``gamma`` are
        not used.
        """
        bonus, local = self.own.bonus, self._local
        if local is None:
            return linalg.select(actions, self.w, self.theta, bonus, 0.0)
        local_radius = local.radius
        # Raw sums need no second bonus (gamma = 0) and no inflation (1); the norm of V^-1 is then
        # not needed (0). So the slack is the width divided by the radius.
        slack = linalg.slack(self.own.sieve_width, local_radius, 0.0, 1.0, 0.0)
        return linalg.select_passing(
            actions,
            self.w,
            self.theta,
            bonus,
            local.w,
            local.theta,
            local_radius,
            self._limit,
            slack,
        )

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBelief:
        """Return a new memory that includes the features x and the reward y of a round.

        The data point enters the raw sums. It enters the posterior only if the round is local
        (``own``), or if local rounds come between shared rounds. Otherwise the posterior is not
        needed before the last release, after which it is recomputed from the raw sums.
        """
        memory = self._copy()
        if self._local is not None:
            memory._local = self._local.after(x, y, round, own)
        memory._sums = self._sums.copy()
        linalg.accumulate(memory._sums, x, y)
        if self.own.mixed and not own:
            memory._shared = self._shared.copy()
            linalg.accumulate(memory._shared, x, y)
        if not (own or self.own.mixed):
            return memory
        if round & (round - 1) == 0:
            # In rounds 1, 2, 4, 8, ... also recompute ``weights``, of the candidate deviations.
            memory._update_posterior()
        else:
            memory.w, memory.theta = self.w.copy(), self.theta.copy()
            linalg.observe(memory.w, memory.theta, x, y)
        return memory

    def sends(self, message: np.ndarray) -> None:
        """Store the message that the silo sends for the next release."""
        self._sent = message

    def released(self, total: np.ndarray, release: int) -> OwnBelief:
        """Return a new memory after a release with the sums ``total`` (s,).

        The posterior is recomputed if local rounds may follow before the next release. Its prior
        comes from the sums of the other silos, so this silo's part is subtracted from ``total``.
        If each message is a whole prefix sum, this part is the silo's last message. Otherwise the
        silo's raw sums of shared rounds are subtracted.
        """
        if release < self._releases and not self.own.mixed:
            return self
        memory = self._copy()
        raw_sums = self._shared if self.own.mixed else self._sums
        memory._others_sums = total - (self._sent if self._replaces else raw_sums)
        memory._release = release
        memory._update_posterior()
        return memory

    def _copy(self) -> OwnBelief:
        """Return a shallow copy. The arrays are shared and must not be written to."""
        memory = object.__new__(OwnBelief)
        memory.__dict__.update(self.__dict__)
        return memory

    def _update_posterior(self) -> None:
        """Recompute the posterior. If this fails, raise and change nothing."""
        w, theta = np.zeros_like(self.w), np.zeros_like(self.theta)
        model = self.own.model(self._release)
        weights = linalg.belief(model, self._others_sums, self._sums, w, theta)
        if weights is None:
            raise environments.status_error(-2)
        self.w, self.theta, self.weights = w, theta, weights


class OwnBound:
    """The memory of rule "min-of-bounds": a LinUCB model of all rounds of a silo.

    V = I + sum x x' and V^-1 sum x y are computed from raw data. Each action has two upper
    confidence bounds, one from released sums and one from this model. Both hold with high
    probability, and so does the smaller bound. A local round chooses the action whose smaller bound
    is the largest (docs/own-rounds.md).

    Parameters
    ----------
    own : OwnRounds
        The local rounds of the plan.
    plan : Plan
        The plan, for its sizes.

    Attributes
    ----------
    w, theta : ndarray, shapes (d, d) and (d,)
        Inverse Cholesky factor of V, and V^-1 u.
    """

    def __init__(self, own: OwnRounds, plan: Plan) -> None:
        assert own.bound is not None
        self.own, self._bound = own, own.bound
        self.w, self.theta = np.eye(plan.dimension), np.zeros(plan.dimension)

    @property
    def radius(self) -> float:
        """The confidence radius m (R sqrt(b + ln det V) + S) of this model.

        ``own.bound`` holds (m, R, b, S): the radius multiplier, the scale of the reward noise,
        2 ln(2 M / alpha) for M silos and failure probability alpha, and the bound on ||theta*||.
        """
        multiplier, scale, base, offset = self._bound
        log_det, d = linalg.log_det(self.w), len(self.theta)
        return linalg.determinant_radius(multiplier, scale, base, offset, 1.0, 1.0, log_det, d)

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Return index and features of the action with the largest upper confidence bound.

        The bound of an action is the smaller of two: one by the estimate ``public`` from released
        sums with the radii ``beta`` and ``gamma``, and one by the model of the silo's raw data.
        """
        return linalg.select_max_min(
            actions, public.w, public.theta, beta, gamma, self.w, self.theta, self.radius
        )

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBound:
        """Return a new memory with the features x and the reward y of a shared or local round."""
        memory = object.__new__(OwnBound)
        memory.__dict__.update(self.__dict__)
        memory.w, memory.theta = self.w.copy(), self.theta.copy()
        linalg.observe(memory.w, memory.theta, x, y)
        return memory

    def sends(self, message: np.ndarray) -> None:
        """Do nothing: this rule does not subtract the silo's message from a release."""

    def released(self, total: np.ndarray, release: int) -> OwnBound:
        """Return the memory unchanged: the silo stores the estimate from released sums."""
        return self
