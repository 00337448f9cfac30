"""The common part of all linear systems: the System, its registry entry, and a curve's Config."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import msgspec

from fastfed import _system
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.bandits.problem import CentredNorm, ProblemSpec, centred_norm
from fastfed.bandits.radius import RADII, REGULARIZERS, Theory
from fastfed.privacy.account import Claim
from fastfed.privacy.certificate import Condition
from fastfed.privacy.sensitivity import FEATURE_BOUND, constant_of
from fastfed.protocols.plan import Clip
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import SCORES, UCB

#: Value of ``batch_size`` for batches that grow; rounds of the first, and how fast they do, by
#: default.
GROWING, BATCH_FIRST, BATCH_RATIO = "growing", 3, 1.2


@dataclass(frozen=True, kw_only=True, repr=False)
class System(_system.System):
    """A linear system: its plan has a server, peers or phases.

    Parameters
    ----------
    algorithm, plan, certificate, bounds_at
        As in `fastfed._system.System`.
    theory : Theory
        Regularizer and confidence radius, and what their proof rests on.
    """

    theory: Theory


class Algorithm(_system.Algorithm):
    """A registry entry: a linear system of a paper, which chooses among actions with features.

    Parameters
    ----------
    id : str
        The name that a spec's ``algorithm`` key uses.
    paper : str
        The id of the paper, or "none".
    summary : str
        One line for listings.
    config : type of msgspec.Struct
        The keys of a curve with their types and defaults; its ``__post_init__`` checks values.
    build : callable
        From an instance of ``config`` and a ProblemSpec to a System.
    deployed : tuple of (str, value), optional
        Keys that a deployment sets unless told otherwise, where a simulation has a shortcut.
    """

    def make_checked(self, config: Any, problem: ProblemSpec) -> System:
        """Build the system for a config that `check` returned.

        Parameters
        ----------
        config : msgspec.Struct
            What `check` returned.
        problem : ProblemSpec
            Sizes, and guarantees about the data.

        Returns
        -------
        System
            With another score than "ucb", its theory says that this is no upper confidence bound.

        Raises
        ------
        InputError
            Where ``build`` refuses, or returns no System, and for an unknown score.
        """
        system: System = super().make_checked(config, problem)
        score = getattr(config, "score", UCB)
        chosen = getattr(system.plan, "score", None)
        if score == UCB and chosen is not None:  # an algorithm's own
            score = getattr(chosen.function, "__name__", "its own")
        return system if score == UCB else scored(system, score, problem)

    def settled(self, config: Any, problem: ProblemSpec) -> Any:
        """Return the config with the defaults that depend on the problem's sizes filled in."""
        return config.settled(problem) if isinstance(config, Config) else config


def scored(system: System, score: str, problem: ProblemSpec) -> System:
    """The system with a theory that says its score is no upper confidence bound."""
    text = f'the action is the one of the largest upper confidence bound (here: score "{score}")'
    theory = replace(system.theory, conditions=(*system.theory.conditions, Condition(text, False)))
    # Privacy is that of the releases, whatever chooses from them and stores nothing else.
    plan = with_caveats(system.plan, system.theory.caveats, theory.caveats)
    certificate = _system.account(plan, problem)
    return replace(system, plan=plan, theory=theory, certificate=certificate)


def with_caveats(plan: Any, old: tuple[str, ...], new: tuple[str, ...]) -> Any:
    """The plan with new caveats in the place of old ones."""

    def changed(claim: Claim) -> Claim:
        """The claim with the new caveats after those that stay."""
        kept = tuple(c for c in claim.caveats if c not in old)
        return msgspec.structs.replace(claim, caveats=(*kept, *new))

    return plan.with_claim(changed)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a curve of any linear system; an algorithm adds its own in a subclass.

    Parameters
    ----------
    batch_size : int, "theorem" or "growing", default "growing"
        B, rounds of each silo between two synchronisations; "growing": batches of ``batch_first``
        rounds at first, each ``batch_ratio`` times as long as the one before.
    batch_first : int, default 3
        Rounds of the first batch that grows.
    batch_ratio : float, default 1.2
        Growth of batches, at least 1.
    release_rounds : tuple of int, optional
        The rounds after which silos synchronise, in place of ``batch_size``.
    lazy : bool, default True
        True if the policy changes at synchronisations only.
    radius : str, default "direct"
        The confidence radius, one of ``radii``.
    radius_multiplier : float, default 1
        Factor > 0 on the radius; from 1 on a proven radius stays proven.
    failure_probability : float, default 0.01
        alpha, the probability that a confidence set may fail.
    regularizer : str or float, optional
        lambda, one of ``regularizers`` or a number > 0; by default that of the radius.
    clip : bool, optional
        True to clip features to norm 1 and rewards to [0, 1]. By default true, except with the
        constants of published code.
    score : str, default "ucb"
        The score whose maximiser is the action.
    reward_centre : float, optional
        r0: statistics are of the reward less r0, which needs less noise (docs/centred.md). Only
        where the environment has an ``intercept``, a constant last feature.
    base_rates : (float, float), optional
        Declared interval of the mean reward at features 0 beside the intercept; by default nothing
        is declared.
    bonus : float, default 1
        m in [0, 1]: factor on both bonuses of the direct radius, in every batch in which the ledger
        allows it: less exploration, and still a bound.
    tie_bonus : float, default 1
        m' in [0, 1]. No mean reward exceeds the range of rewards, so upper confidence bounds beyond
        its end are equal to it: they tie, and the action with the largest <x, theta_hat> + m' times
        its bonus is played of them. 1 plays the largest bound, as if there were no end.
    ledger : float, default 1
        kappa > 0: the regret that smaller bonuses may add, in units of the bound without them.

    Raises
    ------
    InputError
        For a bad value, which it names.
    """

    batch_size: int | str | None = None
    batch_first: int | None = None
    batch_ratio: float | None = None
    release_rounds: tuple[int, ...] | None = None
    lazy: bool = True
    radius: str = "direct"
    radius_multiplier: float = 1.0
    failure_probability: float = 0.01
    regularizer: str | float | None = None
    clip: bool | None = None
    score: str = UCB
    reward_centre: float | None = None
    base_rates: tuple[float, float] | None = None
    bonus: float = 1.0
    tie_bonus: float = 1.0
    ledger: float = 1.0
    #: Values that ``radius`` and ``regularizer`` may have.
    radii: ClassVar[tuple[str, ...]] = RADII
    regularizers: ClassVar[tuple[str, ...]] = REGULARIZERS

    def __post_init__(self) -> None:
        self._check_batches()
        self._check_centre()
        self._check_bonus()
        self._check_ties()
        SCORES.choose(self.score)
        choice("radius", self.radius, self.radii)
        number("radius_multiplier", self.radius_multiplier, above=0.0)
        number("failure_probability", self.failure_probability, at_least=1e-30, below=1.0)
        if isinstance(self.regularizer, str):
            choice("regularizer", self.regularizer, self.regularizers)
        elif self.regularizer is not None:
            number("regularizer", self.regularizer, above=0.0)

    def settled(self, problem: ProblemSpec) -> Self:
        """Fill in the defaults that depend on the problem's sizes: none here.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes, and guarantees about the data.

        Returns
        -------
        Config
        """
        return self

    @property
    def regularizer_rule(self) -> str | float:
        """The rule for lambda, or its value: ``regularizer`` with its default filled in."""
        if self.regularizer is not None:
            return self.regularizer
        return "published-code" if self.radius == "published-code" else "from-noise"

    def _check_centre(self) -> None:
        """Raise InputError for a centre that no proof is about."""
        if self.reward_centre is None:
            if self.base_rates is not None:
                raise InputError("base_rates belongs to reward_centre")
            return
        number("reward_centre", self.reward_centre, above=0.0, below=1.0)
        if self.radius != "direct":
            raise InputError(f'reward_centre needs radius "direct", got "{self.radius}"')
        if self.clip is False:
            raise InputError("reward_centre needs clip = true: its proof is about clipped records")

    def _check_bonus(self) -> None:
        """Raise InputError for a smaller bonus that no proof is about."""
        number("bonus", self.bonus, at_least=0.0, at_most=1.0)
        number("ledger", self.ledger, above=0.0)
        if self.bonus == 1.0:
            if self.ledger != 1.0:
                raise InputError("ledger belongs to a bonus below 1")
            return
        if self.radius != "direct" or not self.lazy or self.score != UCB:
            raise InputError(
                'bonus below 1 needs radius "direct", lazy = true and score "ucb", which its proof '
                "is about"
            )

    def _check_ties(self) -> None:
        """Raise InputError for bounds that nothing says are above all mean rewards."""
        number("tie_bonus", self.tie_bonus, at_least=0.0, at_most=1.0)
        if self.tie_bonus < 1.0 and self.score != UCB:
            raise InputError(f'tie_bonus below 1 needs score "ucb", got "{self.score}"')

    def reward_limit(self, problem: ProblemSpec, clip: Clip | None) -> float:
        """The largest mean reward, less the centre of rewards: bounds that reach it tie.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes, and guarantees about the data.
        clip : Clip or None
            Bounds of records: where nothing is known of rewards, they are clipped to these.

        Returns
        -------
        float

        Raises
        ------
        InputError
            If ties matter and rewards have no known range.
        """
        if problem.reward_range is not None:
            high = problem.reward_range[1]
        elif clip is not None:
            high = clip.high
        elif self.tie_bonus < 1.0:
            raise InputError(
                "tie_bonus below 1 needs rewards in a known range, or clip = true: an upper "
                "confidence bound is compared with its end"
            )
        else:
            high = 1.0
        return high - (self.reward_centre or 0.0)

    def clipping(self, problem: ProblemSpec, clip: Clip | None = None) -> Clip | None:
        """Bounds of records, with the constant and the centre where there are any.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes, and guarantees about the data.
        clip : Clip, optional
            The bounds without a centre.

        Returns
        -------
        Clip or None

        Raises
        ------
        InputError
            If the problem has no constant feature, or the centre lies outside of its rewards.
        """
        if self.reward_centre is None:
            return clip
        if problem.intercept is None:
            raise InputError(
                "reward_centre needs an environment with an intercept, a constant last feature "
                "that the code writes"
            )
        constant = constant_of(problem.intercept)
        return Clip(feature=FEATURE_BOUND, constant=constant, centre=self.reward_centre)

    def centred_norm(self, problem: ProblemSpec) -> CentredNorm | None:
        """Bounds on theta* - theta0 for a problem with a constant feature; else None."""
        if problem.intercept is None or (self.reward_centre is None and problem.intercept == 1.0):
            return None
        if self.reward_centre is None:
            # Statistics of the reward itself, whose theta* is longer than 1.
            return CentredNorm(math.sqrt(2.0 * problem.intercept), 2.0 * problem.intercept)
        return centred_norm(problem.intercept, self.reward_centre, self.base_rates)

    def _check_batches(self) -> None:
        """Raise InputError for keys of batches that do not go together."""
        for key, least in (("batch_first", 1), ("batch_ratio", 1.0)):
            value = getattr(self, key)
            if value is None:
                continue
            if not self.grows:
                raise InputError(f'{key} belongs to batch_size "{GROWING}", got {value}')
            check: Any = integer if key == "batch_first" else number
            check(key, value, at_least=least)
        if self.release_rounds is not None:
            # An agent's default is 1, and stands beside release_rounds unsaid.
            if self.batch_size not in (None, type(self).batch_size_default()):
                raise InputError("give either batch_size or release_rounds, not both")
            for round in self.release_rounds:
                integer("release_rounds", round, at_least=1)

    @property
    def grows(self) -> bool:
        """True if batches grow, as they do where no others are asked for."""
        return self.batch_size == GROWING or (
            self.batch_size is None and self.release_rounds is None
        )

    @classmethod
    def batch_size_default(cls) -> int | str | None:
        """Value of ``batch_size`` where a curve does not name one."""
        found: Any = next(f for f in msgspec.structs.fields(cls) if f.name == "batch_size").default
        return None if found is msgspec.NODEFAULT else found

    def batches(self, problem: ProblemSpec, theorem: Callable[[], int] | None = None) -> Schedule:
        """Rounds of synchronisation: as given, or by a theorem's rule for "theorem".

        Parameters
        ----------
        problem : ProblemSpec
            Sizes.
        theorem : callable, optional
            Returns B for "theorem"; by default Corollary 5.2 of zhou-chowdhury-2024.

        Returns
        -------
        Schedule

        Raises
        ------
        InputError
            If ``batch_size`` is below 1 or above the horizon.
        """
        horizon = problem.horizon
        if self.release_rounds is not None:
            if not self.release_rounds:
                raise InputError("release_rounds must hold one round at least, got none")
            return Schedule.at(self.release_rounds, horizon)
        if self.grows:
            first = self.batch_first or min(BATCH_FIRST, horizon)
            if first > horizon:
                raise InputError(f"batch_first must be <= horizon ({horizon}), got {first}")
            return Schedule.growing(horizon, first, self.batch_ratio or BATCH_RATIO)
        if isinstance(self.batch_size, str):
            choice("batch_size", self.batch_size, ["theorem", GROWING])
            if theorem is not None:
                return Schedule(horizon, theorem())
            return Schedule(horizon, batch_size_corollary_5_2(horizon, problem.silos))
        b = integer("batch_size", self.batch_size, at_least=1)
        if b > horizon:
            raise InputError(f"batch_size must be <= horizon ({horizon}), got {b}")
        return Schedule(horizon, b)

    def rounds_per_batch(self, problem: ProblemSpec) -> int:
        """B of equal batches: what algorithms of other packages ask for."""
        schedule = self.batches(problem)
        if schedule.rounds:
            raise InputError(
                "batch_size must be an integer for this algorithm: it has equal batches"
            )
        return schedule.batch_size

    def bounds(self, published: bool) -> Clip | None:
        """Bounds that features and rewards are clipped to, or None for no clipping.

        Parameters
        ----------
        published : bool
            True where the curve has the constants of published code, which does not clip.
        """
        clips = self.clip if self.clip is not None else not published
        return Clip() if clips else None


#: What a simulation draws the Gaussian noise of: each silo's release, or the sum over silos.
NOISE_DRAWS = ("silo", "sum")

#: Value of ``returning`` for a user who takes part in every batch.
EVERY_BATCH = "every-batch"


def check_returning(returning: int | str) -> None:
    """Raise InputError unless ``returning`` is a number of batches >= 1 or "every-batch"."""
    if isinstance(returning, str):
        if returning != EVERY_BATCH:
            raise InputError(
                f'returning must be an integer >= 1 or "{EVERY_BATCH}", got "{returning}"'
            )
    else:
        integer("returning", returning, at_least=1)


def batches_of_user(returning: int | str, batches: int) -> int:
    """Participations of one user: the most batches out of ``batches``, at most once in each."""
    most = max(batches, 1)
    return most if isinstance(returning, str) else min(returning, most)
