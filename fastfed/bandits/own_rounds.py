"""Own rounds: some rounds are shared, and others stay in their silo (docs/own-rounds.md).

A shared round's action is chosen from released sums alone, and its (x, y) enters the silo's batch.
An own round's action may use all that its silo holds, and nothing of the round leaves it. Here are
the key ``share`` of a curve, and from it the schedule of releases, the noise where a secret coin
decides who is shared, and the numbers of the plan; then what
a silo keeps to itself.
"""

from __future__ import annotations

import json
import math
import typing
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.linucb import Estimate
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import Config
from fastfed.privacy.accounting.gdp import sampled_mu
from fastfed.privacy.certificate import Condition
from fastfed.privacy.releases.gaussian_release import GaussianRelease
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import REPLACE, Protocol, keeping_own_rounds
from fastfed.protocols.schedule import OwnRounds, Schedule
from fastfed.protocols.score import UCB

#: Rules of own rounds, and protocols that allow secret coins.
RULES = ("gls", "min-of-bounds")
COINS = ("none", "secret")
TOSSABLE = ("silo-ldp", "silo-ldp-prefix", "central")
#: Deviations Delta of a silo's theta from the common one that its rewards choose among.
GRID = (0.08, 0.16, 0.32, 0.64)
#: Factor on the posterior's standard deviation in the score of an own round.
BONUS = 0.5
#: The last release serves all own rounds, but counts for so many times the rounds before it.
LAST = 3
#: Noise is larger by this than what a coin needs, so that rounding never claims too much.
ROUNDING = 1e-9
#: Least scale of rewards' noise in the posterior, which has none without any.
LEAST_SCALE = 1e-3


Noisy = TypeVar("Noisy", bound=GaussianRelease)


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rounds are shared; all others are a silo's own.

    Parameters
    ----------
    until : int
        T_s >= 1, the last round that may be shared, below the horizon. It always ends with a
        release.
    fraction : float, default 1
        p in (0, 1], the share of the rounds up to ``until`` that are shared: round t if floor(t p)
        > floor((t - 1) p), or by the coin.
    rule : {"gls", "min-of-bounds"}
        How own rounds choose: by a posterior from the released sums of all other silos and the
        silo's own raw data; or by the lesser of two upper confidence bounds, of the released sums
        and of the silo's own data.
    coin : {"none", "secret"}
        "secret": a coin of probability ``fraction`` for each user, which nobody outside of the silo
        sees, decides instead; shared users then need less noise. "none": the rule is public.

    Raises
    ------
    InputError
        For a bad value, which it names.
    """

    until: int
    fraction: float = 1.0
    rule: str = "gls"
    coin: str = "none"

    def __post_init__(self) -> None:
        integer("share.until", self.until, at_least=1)
        number("share.fraction", self.fraction, above=0.0, at_most=1.0)
        choice("share.rule", self.rule, RULES)
        choice("share.coin", self.coin, COINS)
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
        """True if a secret coin decides of each user."""
        return self.coin == "secret"


class SharingConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve that may have own rounds: those of `Config` and ``share``.

    Parameters
    ----------
    share : Share, optional
        ``{ until = T_s }``: later rounds are own. By default all rounds are shared.
    """

    share: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is None:
            return
        if self.radius != "direct" or not self.lazy or self.score != UCB:
            raise InputError(
                'share needs radius "direct", lazy = true and score "ucb": shared rounds are '
                f'played from released sums alone, got radius "{self.radius}", lazy = '
                f'{str(self.lazy).lower()}, score "{self.score}"'
            )
        if self.clip is False:
            raise InputError("share needs clip = true, which the privacy of shared rounds rests on")
        if self.share.rule == "min-of-bounds" and self.bonus < 1.0:
            raise InputError(
                'share.rule "min-of-bounds" needs bonus = 1, since it takes the lesser of two '
                f"bounds, got {self.bonus:g}"
            )
        if self.share.tossed:
            self._check_coin()

    def _check_coin(self) -> None:
        """Raise InputError for keys under which a coin is not secret, or has no account."""
        protocol = getattr(self, "protocol", "none")
        if protocol not in TOSSABLE:
            raise InputError(
                f'share.coin "secret" needs protocol {", ".join(TOSSABLE[:-1])} or {TOSSABLE[-1]}, '
                f'whose noise is Gaussian, got "{protocol}"'
            )
        for key, usual, why in (
            ("protects", "user", "public contexts would show who is shared"),
            ("calibration", "exact", "other rules know no coin"),
            ("relation", "replace", "the account is about that"),
            ("returning", 1, "the account is about users of one batch"),
            ("silo_epsilon", None, "all silos have one noise"),
        ):
            if getattr(self, key) != usual:
                wanted = f"no {key}" if usual is None else f"{key} = {json.dumps(usual)}"
                raise InputError(
                    f'share.coin "secret" needs {wanted}: {why}, got {getattr(self, key)!r}'
                )


def shared_batches(config: Config, problem: ProblemSpec) -> Schedule:
    """Rounds of synchronisation: those of the config, or within shared rounds alone.

    Parameters
    ----------
    config : Config
        The curve's keys, of which ``share`` may be none.
    problem : ProblemSpec
        Sizes.

    Returns
    -------
    Schedule
        With ``share`` its last release is after round ``share.until``.

    Raises
    ------
    InputError
        If a batch is longer than what is shared, or ``until`` is not below the horizon.
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
        within = config.batches(replace(problem, horizon=share.until))
    except InputError as error:
        raise InputError(f"{error} (share.until stands for the horizon of releases)") from None
    rounds = tuple(int(n) for n in within.ends) if within.releases else ()
    if rounds[-1:] != (share.until,):
        rounds = (*rounds, share.until)
    return Schedule.at(rounds, problem.horizon)


def share_of(config: Config) -> Share | None:
    """The key ``share``, which configs of other systems do not have."""
    found: Share | None = getattr(config, "share", None)
    return found


def factor_horizon(config: Config, problem: ProblemSpec, schedule: Schedule) -> int:
    """Horizon that the optimal factor is made for: own rounds outgrow the last release."""
    if share_of(config) is None:
        return problem.horizon
    return min(problem.horizon, (1 + LAST) * int(schedule.ends[-1]))


def tossed(mechanism: Noisy, share: Share | None) -> Noisy:
    """The mechanism with the noise that a secret coin needs: less, for the same budget.

    Parameters
    ----------
    mechanism : GaussianRelease
        Calibrated for users who enter for certain.
    share : Share, optional
        The key of the curve.

    Returns
    -------
    GaussianRelease
        The same where no coin is tossed.

    Raises
    ------
    InputError
        If delta is so large that no noise would be needed.

    Notes
    -----
    Guarantee: (epsilon, delta) of the budget for replacing one user, before an observer who does
    not see the coin, `fastfed.privacy.accounting.gdp`.
    """
    if share is None or not share.tossed or mechanism.noise_std == 0.0:
        return mechanism
    budget, certain = mechanism.budget, mechanism.mu()
    zeta = max(0.5, _absent_mu(mechanism) / certain)
    mu = sampled_mu(budget.epsilon, budget.delta, share.fraction, zeta)
    if not mu < math.inf:
        raise InputError(
            f"share.fraction must be above delta ({budget.delta:g}), got {share.fraction:g}"
        )
    return msgspec.structs.replace(
        mechanism,
        noise_std=mechanism.noise_std * (certain / mu) * (1.0 + ROUNDING),
        source=f"{mechanism.source}; secret coins of probability {share.fraction:g}, "
        "docs/own-rounds.md",
    )


def _absent_mu(mechanism: GaussianRelease) -> float:
    """GDP parameter between a record and its absence, every entry having noise."""
    if mechanism.centred is None:
        return mechanism.mu("zero-out")
    bias, _, diagonal = mechanism.stds
    covariance = mechanism.covariance_ratio * bias
    absent = mechanism.centred.absent(mechanism.layout, bias, covariance, diagonal)
    return math.sqrt(mechanism.sensitivity_squared) * absent


def public_failure(config: Config) -> float:
    """Failure probability of the public bound, which shares it with the silos' own ones if any."""
    share = share_of(config)
    alone = share is None or share.rule != "min-of-bounds"
    return config.failure_probability if alone else config.failure_probability / 2.0


def trusting(protocol: Protocol, share: Share | None) -> Protocol:
    """The protocol whose model says that the own silo's users are trusted, where rounds are own."""
    return protocol if share is None else keeping_own_rounds(protocol)


def with_own_rounds(
    plan: Plan,
    theory: Theory,
    config: Config,
    variances: np.ndarray | None = None,
    noises: float = 0.0,
) -> tuple[Plan, Theory]:
    """The plan with the own rounds of ``share``, and a theory that says what is not proven.

    Parameters
    ----------
    plan : Plan
        Of shared rounds.
    theory : Theory
        Of its radius.
    config : Config
        The curve's keys, of which ``share`` may be none.
    variances : ndarray, shape (K + 1,), optional
        Variance of one noise in each release, from none on, in units of one node's. By default 0.
    noises : float, default 0
        Noises that add up in a release.

    Returns
    -------
    plan : Plan
    theory : Theory
    """
    share = share_of(config)
    if share is None:
        return plan, theory
    if len(set(plan.noise_scale)) > 1:
        raise InputError("share needs one epsilon for all silos, got silo_epsilon")
    scale = max(plan.radius.scale, LEAST_SCALE)
    own = OwnRounds(
        share.until,
        scale**2,
        float(plan.dimension),
        *_beliefs(
            plan, scale, np.zeros(plan.releases + 1) if variances is None else variances, noises
        ),
        BONUS * scale,
        share.fraction,
        share.tossed,
    )
    if share.rule == "min-of-bounds":
        union = 2.0 * math.log(2.0 * plan.silos / config.failure_probability)
        radius = plan.radius
        bound = (radius.multiplier, radius.scale, union, radius.tau)
        own = replace(own, spreads=(), ridges=(), bound=bound)
        return replace(plan, own=own), theory
    between = "" if share.fraction == 1.0 else " and some before"
    text = (
        f"every round is shared (here rounds after {share.until}{between} are own, and the "
        f'posterior that rule "{share.rule}" plays by is a model)'
    )
    conditions = (*theory.conditions, Condition(text, False))
    return replace(plan, own=own), replace(theory, conditions=conditions)


def _beliefs(
    plan: Plan, scale: float, variances: np.ndarray, noises: float
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Spreads and, by release, ridges of the beliefs on the grid."""
    std, silos = plan.noise_std, plan.silos
    # A silo takes its own message off where it is part of the sum, and so its own noise.
    others = max(0.0, noises - 1.0) if plan.protocol.analyzer == REPLACE else noises
    tau = plan.radius.tau
    spreads = tuple(delta**2 * (1.0 + 1.0 / max(1, silos - 1)) for delta in GRID)

    def ridges(factor: float) -> tuple[float, ...]:
        # Of every symmetric A the matrix R^2 A + D^2 A^2 + ridge I is positive definite from here
        # on; without noise A is positive semidefinite, and a little more than 0 will do.
        variance = others * factor * (std.bias**2 + (tau * std.off_diagonal) ** 2)
        return tuple(
            max(variance, 1.01 * scale**4 / (4.0 * s)) if variance else 1e-9 for s in spreads
        )

    return spreads, tuple(ridges(float(factor)) for factor in variances)


# ---- What a silo keeps to itself -----------------------------------------------------------------


class Memory(typing.Protocol):
    """Interface of what a silo keeps: raw data of all its rounds, which own rounds choose by."""

    @property
    def theta(self) -> np.ndarray:
        """theta_hat of own rounds, (d,)."""
        ...

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the action of an own round; the radii are the public ones."""
        ...

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> Memory:
        """The memory after the (x, y) of a round, shared or own."""
        ...

    def sends(self, message: np.ndarray) -> None:
        """Remember what the silo itself puts into a release."""
        ...

    def released(self, total: np.ndarray, release: int) -> Memory:
        """The memory after a release."""
        ...


def make_memory(plan: Plan) -> Memory | None:
    """What a silo of this plan keeps to itself; None where every round is shared."""
    if plan.own is None:
        return None
    return OwnBelief(plan.own, plan) if plan.own.bound is None else OwnBound(plan.own, plan)


class OwnBelief:
    """Raw sums of all of a silo's rounds, and its belief in own rounds: rule "gls".

    The belief is of theta at this silo: others' released sums as a prior, which deviates by what
    the silo's own rewards say, and its raw sums (docs/own-rounds.md).

    Parameters
    ----------
    own : OwnRounds
        Of the plan.
    plan : Plan
        For its sizes and protocol.

    Attributes
    ----------
    w, theta : ndarray, shapes (d, d) and (d,)
        Inverse Cholesky factor of V, in units of R^2, and the mean.
    weights : ndarray
        Of the deviations on the grid.
    """

    def __init__(self, own: OwnRounds, plan: Plan) -> None:
        d = plan.dimension
        self.own = own
        self._replaces = plan.protocol.analyzer == REPLACE
        self._releases = plan.releases
        self._release = 0
        #: Raw sums of all rounds, and of shared ones where others come between them.
        self._sums = np.zeros(plan.statistic_size)
        self._shared = np.zeros(plan.statistic_size if own.mixed else 0)
        self._rest = np.zeros(plan.statistic_size)
        self._sent = np.zeros(plan.statistic_size)
        self.w, self.theta = np.zeros((d, d)), np.zeros(d)
        self.weights = np.zeros(len(own.spreads))
        if own.mixed:
            self._believe()

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the largest <x, theta> + bonus ||x||_{V^-1}."""
        return linalg.select(actions, self.w, self.theta, self.own.bonus, 0.0)

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBelief:
        """The memory after the (x, y) of a round, which the belief has learned where it exists."""
        made = self._copy()
        made._sums = self._sums.copy()
        linalg.accumulate(made._sums, x, y)
        if self.own.mixed and not own:
            made._shared = self._shared.copy()
            linalg.accumulate(made._shared, x, y)
        if not (own or self.own.mixed):
            return made
        if round & (round - 1) == 0:
            # Evidence weighs the deviations again.
            made._believe()
        else:
            made.w, made.theta = self.w.copy(), self.theta.copy()
            linalg.observe(made.w, made.theta, x, y)
        return made

    def sends(self, message: np.ndarray) -> None:
        """Remember what the silo itself puts into a release."""
        self._sent = message

    def released(self, total: np.ndarray, release: int) -> OwnBelief:
        """The memory after a release: one that own rounds follow is believed anew, less what the
        silo knows of its own part."""
        if release < self._releases and not self.own.mixed:
            return self
        made = self._copy()
        raw = self._shared if self.own.mixed else self._sums
        made._rest = total - (self._sent if self._replaces else raw)
        made._release = release
        made._believe()
        return made

    def _copy(self) -> OwnBelief:
        """Another memory of the same arrays, of which none is written to."""
        made = object.__new__(OwnBelief)
        made.__dict__.update(self.__dict__)
        return made

    def _believe(self) -> None:
        """Make the belief anew; nothing changes where it cannot be made."""
        w, theta = np.zeros_like(self.w), np.zeros_like(self.theta)
        model = self.own.model(self._release)
        weights = linalg.belief(model, self._rest, self._sums, w, theta)
        if weights is None:
            raise environments.status_error(-2)
        self.w, self.theta, self.weights = w, theta, weights


class OwnBound:
    """LinUCB of all of a silo's rounds, beside the public bound: rule "min-of-bounds".

    V = I + G and V^-1 u of raw sums. An own round's action is that of the largest min of two upper
    bounds, the public one and this: both hold with high probability, and so does the lesser
    (docs/own-rounds.md).

    Parameters
    ----------
    own : OwnRounds
        Of the plan.
    plan : Plan
        For its sizes.

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
        """R sqrt(2 ln(M / alpha) + ln det V) + S, times the multiplier."""
        multiplier, scale, base, offset = self._bound
        log_det, d = linalg.log_det(self.w), len(self.theta)
        return linalg.determinant_radius(multiplier, scale, base, offset, 1.0, 1.0, log_det, d)

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the action whose lesser bound is the largest."""
        return linalg.select_least(
            actions, public.w, public.theta, beta, gamma, self.w, self.theta, self.radius
        )

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBound:
        """The memory after the (x, y) of a round of either kind."""
        made = object.__new__(OwnBound)
        made.__dict__.update(self.__dict__)
        made.w, made.theta = self.w.copy(), self.theta.copy()
        linalg.observe(made.w, made.theta, x, y)
        return made

    def sends(self, message: np.ndarray) -> None:
        """Nothing: the public bound is that of the whole release."""

    def released(self, total: np.ndarray, release: int) -> OwnBound:
        """The same: the public estimate is the silo's own affair."""
        return self
