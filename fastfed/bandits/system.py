"""The common part of all linear systems: the System, its registry entry, and a curve's Config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from fastfed import _system
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import RADII, REGULARIZERS, Theory
from fastfed.privacy.account import Claim
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip
from fastfed.protocols.score import SCORES, UCB


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
    """A linear system of a paper: it chooses among actions with features."""

    def make_checked(self, config: Any, problem: ProblemSpec) -> System:
        """Build the system for a config that `check` returned."""
        score = getattr(config, "score", UCB)
        system: System = super().make_checked(config, problem)
        return system if score == UCB else scored(system, score, problem)


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
    batch_size : int or "theorem", optional
        B, rounds of each silo between two synchronisations.
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

    Raises
    ------
    InputError
        For a bad value, which it names.
    """

    batch_size: int | str | None = None
    lazy: bool = True
    radius: str = "direct"
    radius_multiplier: float = 1.0
    failure_probability: float = 0.01
    regularizer: str | float | None = None
    clip: bool | None = None
    score: str = UCB
    #: Values that ``radius`` and ``regularizer`` may have.
    radii: ClassVar[tuple[str, ...]] = RADII
    regularizers: ClassVar[tuple[str, ...]] = REGULARIZERS

    def __post_init__(self) -> None:
        SCORES.choose(self.score)
        choice("radius", self.radius, self.radii)
        number("radius_multiplier", self.radius_multiplier, above=0.0)
        number("failure_probability", self.failure_probability, at_least=1e-30, below=1.0)
        if isinstance(self.regularizer, str):
            choice("regularizer", self.regularizer, self.regularizers)
        elif self.regularizer is not None:
            number("regularizer", self.regularizer, above=0.0)

    @property
    def regularizer_rule(self) -> str | float:
        """The rule for lambda, or its value: ``regularizer`` with its default filled in."""
        if self.regularizer is not None:
            return self.regularizer
        return "published-code" if self.radius == "published-code" else "from-noise"

    def rounds_per_batch(self, problem: ProblemSpec) -> int:
        """B: as given, or by Corollary 5.2 of zhou-chowdhury-2024 for "theorem".

        Raises
        ------
        InputError
            If ``batch_size`` is missing, below 1 or above the horizon.
        """
        if self.batch_size is None:
            raise InputError('batch_size is required: an integer >= 1, or "theorem"')
        if isinstance(self.batch_size, str):
            choice("batch_size", self.batch_size, ["theorem"])
            return batch_size_corollary_5_2(problem.horizon, problem.silos)
        b = integer("batch_size", self.batch_size, at_least=1)
        if b > problem.horizon:
            raise InputError(f"batch_size must be <= horizon ({problem.horizon}), got {b}")
        return b

    def bounds(self, published: bool) -> Clip | None:
        """Bounds that features and rewards are clipped to, or None for no clipping.

        Parameters
        ----------
        published : bool
            True where the curve has the constants of published code, which does not clip.
        """
        clips = self.clip if self.clip is not None else not published
        return Clip() if clips else None


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


__getattr__ = _system.renamed(__name__, {"Keys": Config})
