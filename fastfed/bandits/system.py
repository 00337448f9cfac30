"""Linear bandit systems: `System`, its registry entry `Algorithm`, and `Config`.

A `Config` holds the keys of one curve, which is one system in an experiment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import msgspec

from fastfed import _system
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.arms import check_arms, with_draws
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.bandits.problem import CentredNorm, ProblemSpec, centred_norm
from fastfed.bandits.radius import RADII, REGULARIZERS, Theory
from fastfed.privacy.account import Claim
from fastfed.privacy.certificate import Condition
from fastfed.privacy.sensitivity import FEATURE_BOUND, constant_of
from fastfed.protocols.plan import Clip
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import SCORES, UCB

#: The value of ``batch_size`` with which batches grow, and the defaults for growing batches: the
#: first batch has 3 rounds, and each batch is 1.2 times as long as the previous batch.
GROWING, BATCH_FIRST, BATCH_RATIO = "growing", 3, 1.2
#: Default m' of the sieve, the factor on the bonus. With a smaller m', regret is larger where
#: contexts are not diverse (docs/radius.md).
SIEVE = 0.3


@dataclass(frozen=True, kw_only=True, repr=False)
class System(_system.System):
    """A linear bandit system, whose plan is for a server, for peers or for phases.

    Parameters
    ----------
    algorithm, plan, certificate, bounds_at
        See `fastfed._system.System`.
    theory : Theory
        Regularizer and confidence radius, and the conditions of their proof.
    """

    theory: Theory


class Algorithm(_system.Algorithm):
    """A registry entry for a linear bandit algorithm, which chooses among actions with features.

    Parameters
    ----------
    id : str
        The name that a spec's ``algorithm`` key uses.
    paper : str
        The id of the paper, or "none".
    summary : str
        One line for listings.
    config : type of msgspec.Struct
        The keys of a curve with their types and defaults. Its ``__post_init__`` checks the values.
    build : callable
        ``build(config, problem)`` returns the System of an instance of ``config`` and a
        ProblemSpec.
    deployed : tuple of (str, value), optional
        Default keys of a deployment, where they differ from the defaults of a simulation.
    """

    def make_checked(self, config: Any, problem: ProblemSpec) -> System:
        """Build the system of a checked config; with some scores its regret bound is unproven.

        Parameters
        ----------
        config : msgspec.Struct
            The checked keys, as returned by `check`.
        problem : ProblemSpec
            Sizes (silos M, rounds T, dimension d), and guarantees about the data.

        Returns
        -------
        System
            The system that ``build`` returns, with two exceptions. If a score other than "ucb"
            chooses actions without a sieve, no regret bound is proven. The theory then gets a
            condition that fails: that the chosen action has the largest upper confidence bound. If
            actions are arms, random draws rank the arms that pass the sieve
            (`fastfed.bandits.arms.with_draws`).

        Raises
        ------
        InputError
            If ``build`` refuses the config or does not return a System, or if the score is unknown.
        """
        system: System = super().make_checked(config, problem)
        is_arms = getattr(system.plan, "arms", False)
        if is_arms and (system_with_draws := with_draws(system, problem)) is not system:
            return system_with_draws
        score = getattr(config, "score", UCB)
        plan_score = getattr(system.plan, "score", None)
        # The algorithm may have put a score function into the plan without the key `score`.
        if score == UCB and plan_score is not None:
            score = getattr(plan_score.function, "__name__", "its own")
            if getattr(config, "sieve", None) is None:
                # The config sets no sieve. The default sieve is for the score "ucb", so remove the
                # sieve, and rank actions with the full bonus (factor m' = 1).
                plan = replace(system.plan, ranking=1.0, sieve_growth=0.0, widths=())
                system = replace(system, plan=plan)
        # With a sieve the regret bound holds for any score that chooses among the passing actions.
        sieved = getattr(system.plan, "sieve_growth", 0.0) > 0.0
        return system if score == UCB or sieved else with_unproven_score(system, score, problem)

    def settled(self, config: Any, problem: ProblemSpec) -> Any:
        """Return the config with the defaults that depend on the problem's sizes filled in.

        Raise InputError for keys that arms without contexts do not allow.
        """
        if getattr(problem, "arms", False):
            check_arms(self.id, config)
        return config.settled(problem) if isinstance(config, Config) else config


def with_unproven_score(system: System, score: str, problem: ProblemSpec) -> System:
    """Return the system with its regret bound marked as unproven, because of its score function.

    Its theory gets a condition that fails, and plan and certificate get the caveat. ``score`` is
    the name of the score function, which is no upper confidence bound.
    """
    text = f'the chosen action has the largest upper confidence bound (here: score "{score}")'
    theory = replace(system.theory, conditions=(*system.theory.conditions, Condition(text, False)))
    # The privacy guarantee is about the releases: it holds for any score computed from them.
    plan = with_caveats(system.plan, system.theory.caveats, theory.caveats)
    certificate = _system.account(plan, problem)
    return replace(system, plan=plan, theory=theory, certificate=certificate)


def with_caveats(plan: Any, old_caveats: tuple[str, ...], new_caveats: tuple[str, ...]) -> Any:
    """Return the plan with ``old_caveats`` in its privacy claim replaced by ``new_caveats``."""

    def with_new_caveats(claim: Claim) -> Claim:
        """Return the claim with ``old_caveats`` removed and ``new_caveats`` appended."""
        unchanged = tuple(c for c in claim.caveats if c not in old_caveats)
        return msgspec.structs.replace(claim, caveats=(*unchanged, *new_caveats))

    return plan.with_claim(with_new_caveats)


def check_required(what: str, config: Config, *needs: tuple[str, object, str]) -> None:
    """Raise InputError unless the keys of a curve have the values that one of its keys needs.

    Parameters
    ----------
    what : str
        The key that needs values of other keys, such as "delay", for the message.
    config : Config
        Keys of the curve (one system of an experiment).
    *needs : (str, object, str)
        A needed key, the value that it must have (None: the key must be missing), and the reason.
    """
    for key, required, reason in needs:
        if (value := getattr(config, key)) != required:
            text = f"no {key}" if required is None else f"{key} = {json.dumps(required)}"
            raise InputError(f"{what} needs {text}: {reason}, got {value!r}")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that the curves of all linear systems share. Algorithms add keys in subclasses.

    Parameters
    ----------
    batch_size : int, "theorem" or "growing", default "growing"
        B, the rounds of each silo between two synchronisations. With "growing" the first batch has
        ``batch_first`` rounds, and each batch is ``batch_ratio`` times as long as the batch before
        it.
    batch_first : int, default 3
        Rounds of the first growing batch.
    batch_ratio : float, default 1.2
        Growth factor of batches, at least 1.
    release_rounds : tuple of int, optional
        The rounds after which silos synchronise. They replace ``batch_size``.
    lazy : bool, default True
        True if the policy changes at synchronisations only. If false, each silo also learns from
        its current batch at once.
    radius : str, default "direct"
        The rule for the confidence radius, one of ``radii``.
    radius_multiplier : float, default 1
        Factor > 0 on the radius. A proven radius stays proven for factors >= 1.
    failure_probability : float, default 0.01
        alpha, the probability with which the confidence sets may fail.
    regularizer : str or float, optional
        lambda: a rule in ``regularizers`` or a number > 0. The default depends on ``radius``.
    clip : bool, optional
        True to clip features to norm 1 and rewards to [0, 1]. The default is true, except with the
        constants of published code.
    score : str, default "ucb"
        The score that the chosen action maximises.
    reward_centre : float, optional
        r0: sums are computed from the reward minus r0, which needs less noise (docs/centred.md).
        The environment must have an ``intercept``, a constant last feature.
    base_rates : (float, float), optional
        An interval that is declared to contain the mean reward of an action whose features are all
        0 except the intercept. By default no interval is assumed.
    sieve : float, optional
        m' in [0, 1]. A sieve passes all actions that may be chosen without changing the proven
        regret bound (docs/radius.md). Of these, the action with the largest <x, theta_hat> + m'
        bonus is chosen. With m' = 1 there is no sieve, and the action with the largest upper
        confidence bound is chosen. The default is 0.3. It is 1 where no sieve is proven, and where
        ``bonus`` or ``tie_bonus`` is given. A ``score`` of another package chooses among the
        actions that pass, and its bonuses are multiplied by m'. With such a score the default is 1.
    bonus : float, default 1
        m in [0, 1], used like m' of ``sieve``. More actions pass than with ``sieve``, and the
        regret bound is 1 + ``ledger`` times as large.
    tie_bonus : float, default 1
        m' in [0, 1], used like m' of ``sieve``. Only the actions pass whose upper confidence bounds
        reach the largest possible mean reward. If there are none, the action with the largest bound
        is chosen.
    ledger : float, default 1
        kappa > 0: the regret that a ``bonus`` below 1 may add, as a multiple of the regret bound.

    Raises
    ------
    InputError
        For an invalid value. The message names the key.
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
    sieve: float | None = None
    bonus: float | None = None
    tie_bonus: float | None = None
    ledger: float = 1.0
    #: True if silos never synchronise.
    alone: ClassVar[bool] = False
    #: Allowed values of ``radius``, and allowed names for ``regularizer``.
    radii: ClassVar[tuple[str, ...]] = RADII
    regularizers: ClassVar[tuple[str, ...]] = REGULARIZERS

    def __post_init__(self) -> None:
        self._check_batches()
        self._check_centre()
        self._check_ranking()
        SCORES.choose(self.score)
        choice("radius", self.radius, self.radii)
        number("radius_multiplier", self.radius_multiplier, above=0.0)
        number("failure_probability", self.failure_probability, at_least=1e-30, below=1.0)
        if isinstance(self.regularizer, str):
            choice("regularizer", self.regularizer, self.regularizers)
        elif self.regularizer is not None:
            number("regularizer", self.regularizer, above=0.0)

    def settled(self, problem: ProblemSpec) -> Self:
        """Return the config with the defaults of the sieve keys filled in.

        They depend on the problem. Subclasses also fill in other keys, such as ``release``.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes (silos M, rounds T, dimension d), and guarantees about the data.
        """
        sieve = self.sieve
        if sieve is None:
            # By default a sieve is used wherever its regret bound is proven for these keys.
            in_range = problem.reward_range is not None or self.clips
            unset = self.bonus is None and self.tie_bonus is None
            proven = self.sieve_proven and self.radius_multiplier >= 1.0
            sieve = SIEVE if in_range and unset and proven and self.score == UCB else 1.0
        bonus, tie_bonus = (1.0 if m is None else m for m in (self.bonus, self.tie_bonus))
        return msgspec.structs.replace(self, sieve=sieve, bonus=bonus, tie_bonus=tie_bonus)

    @property
    def clips(self) -> bool:
        """True if features and rewards are clipped to known bounds."""
        return self.bounds(published=False) is not None

    @property
    def sieve_proven(self) -> bool:
        """True if with these keys a sieve provably does not change the regret bound.

        The proof assumes linear rewards.
        """
        return self.radius == "direct" and (self.lazy or self.alone)

    @property
    def ranking(self) -> tuple[float, float]:
        """The tuple (m', factor) of the plan's ``ranking`` and ``sieve_growth``.

        m' multiplies the bonus in the ranking of the actions that pass the sieve. The factor
        multiplies the slack of the sieve, and with a larger slack more actions pass. A factor of 0
        means that no sieve is used, except that ``tie_bonus`` ranks the actions whose upper
        confidence bounds tie. The slack is then 1 (`fastfed.protocols.plan.Plan`).
        """
        if self.bonus not in (None, 1.0):
            return self.bonus, 1.0 + self.ledger
        if self.sieve not in (None, 1.0):
            return self.sieve, 1.0
        return 1.0 if self.tie_bonus is None else self.tie_bonus, 0.0

    @property
    def regularizer_rule(self) -> str | float:
        """The name of the rule that chooses lambda, or the number lambda.

        This is the key ``regularizer``, or its default if the key is not set.
        """
        if self.regularizer is not None:
            return self.regularizer
        return "published-code" if self.radius == "published-code" else "from-noise"

    def with_batches(self, first: int, ratio: float) -> Self:
        """Return the config with new defaults of ``batch_first`` and ``batch_ratio``.

        If the curve sets one of these keys, the config is returned unchanged.
        """
        if self.batch_first is not None or self.batch_ratio is not None:
            return self
        return msgspec.structs.replace(self, batch_first=first, batch_ratio=ratio)

    def _check_centre(self) -> None:
        """Raise InputError for a ``reward_centre`` that no proof covers."""
        if self.reward_centre is None:
            if self.base_rates is not None:
                raise InputError("base_rates needs reward_centre")
            return
        number("reward_centre", self.reward_centre, above=0.0, below=1.0)
        if self.radius != "direct":
            raise InputError(f'reward_centre needs radius "direct", got "{self.radius}"')
        if self.clip is False:
            raise InputError("reward_centre needs clip = true: its proof is for clipped records")

    def _check_ranking(self) -> None:
        """Check the keys ``sieve``, ``bonus``, ``tie_bonus`` and ``ledger``, which rank actions.

        Raise InputError if a value is out of range, if keys exclude each other, or if no proof
        covers the ranking.
        """
        number("ledger", self.ledger, above=0.0)
        given_keys = []
        for key in ("sieve", "bonus", "tie_bonus"):
            factor = getattr(self, key)
            if factor is not None and number(key, factor, at_least=0.0, at_most=1.0) < 1.0:
                given_keys.append(key)
        if "sieve" in given_keys and len(given_keys) > 1:
            raise InputError(
                f"give either sieve or {given_keys[1]}: each sets the ranking of actions"
            )
        if self.ledger != 1.0 and "bonus" not in given_keys:
            raise InputError("ledger needs a bonus below 1")
        for key in ("bonus", "tie_bonus"):
            if key in given_keys and self.score != UCB:
                raise InputError(
                    f'{key} below 1 needs score "ucb", got "{self.score}": use sieve, among whose '
                    "actions any score chooses"
                )
        for key in given_keys:
            if key != "tie_bonus" and not self.sieve_proven:
                raise InputError(f"{key} below 1 needs {self.sieve_needs}: no proof covers others")

    @property
    def sieve_needs(self) -> str:
        """The keys that a sieve needs, as text for error messages."""
        return 'radius "direct" and lazy = true'

    def reward_limit(self, problem: ProblemSpec, clip: Clip | None) -> float:
        """Return the largest possible mean reward minus ``reward_centre``.

        The ranking replaces an upper confidence bound above this limit by the limit. So all actions
        whose bounds reach the limit tie. If the largest reward is unknown and the ranking does not
        need it, the largest reward is taken as 1.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes (silos M, rounds T, dimension d), and guarantees about the data.
        clip : Clip or None
            Clipping bounds of records, used if the problem does not declare a range of rewards.

        Raises
        ------
        InputError
            If the ranking needs the range of rewards, and it is unknown.
        """
        if problem.reward_range is not None:
            high = problem.reward_range[1]
        elif clip is not None:
            high = clip.high
        elif self.ranking[0] < 1.0:
            key = next(k for k in ("bonus", "sieve", "tie_bonus") if getattr(self, k) != 1.0)
            raise InputError(
                f"{key} below 1 needs rewards in a known range, or clip = true: upper confidence "
                "bounds are cut at the end of the range"
            )
        else:
            high = 1.0
        return high - (self.reward_centre or 0.0)

    def clipping(self, problem: ProblemSpec, clip: Clip | None = None) -> Clip | None:
        """Return the clipping bounds of records.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes (silos M, rounds T, dimension d), and guarantees about the data.
        clip : Clip, optional
            The clipping bounds to use if the curve has no ``reward_centre``.

        Returns
        -------
        Clip or None
            With a ``reward_centre``, a `Clip` that contains it and the problem's constant feature.
            Otherwise ``clip``.

        Raises
        ------
        InputError
            If ``reward_centre`` is set and the problem has no constant feature.
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
        """Return bounds on theta* - theta0, or None if ||theta*|| <= 1 is the only bound.

        Without ``reward_centre``, theta0 is 0. Otherwise it is the public vector with
        <x, theta0> = ``reward_centre`` for every x. This vector exists because every x has the
        constant feature 1 / sqrt(2 kappa), where kappa is ``problem.intercept`` (docs/centred.md).
        """
        if problem.intercept is None or (self.reward_centre is None and problem.intercept == 1.0):
            return None
        if self.reward_centre is None:
            # Rewards are not centred, so theta0 = 0. For kappa > 1 the norm of theta* may exceed 1.
            return CentredNorm(
                tau=math.sqrt(2.0 * problem.intercept), along=2.0 * problem.intercept
            )
        return centred_norm(problem.intercept, self.reward_centre, self.base_rates)

    def _check_batches(self) -> None:
        """Raise InputError for batch keys that contradict each other or are out of range."""
        for key, lower_limit in (("batch_first", 1), ("batch_ratio", 1.0)):
            value = getattr(self, key)
            if value is None:
                continue
            if not self.grows:
                raise InputError(f'{key} belongs to batch_size "{GROWING}", got {value}')
            check: Any = integer if key == "batch_first" else number
            check(key, value, at_least=lower_limit)
        if self.release_rounds is not None:
            # A batch_size at its default (1 for agents) does not count as given.
            if self.batch_size not in (None, type(self).batch_size_default()):
                raise InputError("give either batch_size or release_rounds, not both")
            for round in self.release_rounds:
                integer("release_rounds", round, at_least=1)

    @property
    def grows(self) -> bool:
        """True if each batch is longer than the previous batch, which is the default."""
        return self.batch_size == GROWING or (
            self.batch_size is None and self.release_rounds is None
        )

    @classmethod
    def batch_size_default(cls) -> int | str | None:
        """Return the default of ``batch_size``, or None if the key has no default."""
        default: Any = next(
            f for f in msgspec.structs.fields(cls) if f.name == "batch_size"
        ).default
        return None if default is msgspec.NODEFAULT else default

    def batches(self, problem: ProblemSpec, theorem: Callable[[], int] | None = None) -> Schedule:
        """Return the schedule of synchronisations that the batch keys give.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes.
        theorem : callable, optional
            ``theorem()`` returns B, the rounds of a batch, for ``batch_size`` = "theorem". By
            default, B is that of Corollary 5.2 of zhou-chowdhury-2024.

        Raises
        ------
        InputError
            If ``release_rounds`` is empty, or ``batch_size`` or ``batch_first`` is above the
            horizon.
        """
        horizon = problem.horizon
        if self.release_rounds is not None:
            if not self.release_rounds:
                raise InputError("release_rounds must hold at least one round, got none")
            return Schedule.at(self.release_rounds, horizon)
        if self.grows:
            first = self.batch_first or min(BATCH_FIRST, horizon)
            if first > horizon:
                raise InputError(f"batch_first must be <= horizon ({horizon}), got {first}")
            return Schedule.growing(horizon, first, self.batch_ratio or BATCH_RATIO)
        if isinstance(self.batch_size, str):
            choice("batch_size", self.batch_size, ["theorem", GROWING], "an integer or ")
            if theorem is not None:
                return Schedule(horizon, theorem())
            return Schedule(horizon, batch_size_corollary_5_2(horizon, problem.silos))
        b = integer("batch_size", self.batch_size, at_least=1)
        if b > horizon:
            raise InputError(f"batch_size must be <= horizon ({horizon}), got {b}")
        return Schedule(horizon, b)

    def rounds_per_batch(self, problem: ProblemSpec) -> int:
        """Return B, the rounds of a batch, for algorithms that need batches of equal length.

        Algorithms of other packages may call it.

        Parameters
        ----------
        problem : ProblemSpec
            Sizes.

        Raises
        ------
        InputError
            If the curve's batches differ in length.
        """
        schedule = self.batches(problem)
        if schedule.rounds:
            raise InputError(
                "batch_size must be an integer for this algorithm: it has equal batches"
            )
        return schedule.batch_size

    def bounds(self, published: bool) -> Clip | None:
        """Return the bounds that features and rewards are clipped to, or None for no clipping.

        Parameters
        ----------
        published : bool
            True if the curve uses the constants of published code, which does not clip.
        """
        clips = self.clip if self.clip is not None else not published
        return Clip() if clips else None


#: Values of ``protects``: a user's contexts and rewards are private, or only the rewards.
PROTECTS = ("user", "reward")
#: Values of ``noise_draws``: a simulation draws Gaussian noise for each silo, or for their sum.
NOISE_DRAWS = ("silo", "sum")

#: Value of ``returning`` if a user may take part in every batch.
EVERY_BATCH = "every-batch"


def check_returning(returning: int | str) -> None:
    """Raise InputError unless ``returning`` is an integer >= 1 (batches) or "every-batch"."""
    if isinstance(returning, str):
        if returning != EVERY_BATCH:
            raise InputError(
                f'returning must be an integer >= 1 or "{EVERY_BATCH}", got "{returning}"'
            )
    else:
        integer("returning", returning, at_least=1)


def batches_of_user(returning: int | str, batches: int) -> int:
    """Return the largest number of batches in which one user takes part, out of ``batches``.

    ``returning`` is the key of the curve: a number of batches, or "every-batch".
    """
    batch_count = max(batches, 1)
    return batch_count if isinstance(returning, str) else min(returning, batch_count)
