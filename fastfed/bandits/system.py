"""What linear systems have in common: their entries of the registry, and keys of their curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from fastfed import _system
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.bandits.radius import RADII, REGULARIZERS, Theory
from fastfed.bandits.setting import ProblemSpec
from fastfed.privacy.account import Claim
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip
from fastfed.protocols.score import SCORES, UCB


@dataclass(frozen=True, kw_only=True, repr=False)
class System(_system.System):
    """A linear system: its plan is one of a server, of peers or of phases."""

    theory: Theory


class Algorithm(_system.Algorithm):
    """A linear system of a paper: it chooses among actions with features."""

    def make_checked(self, config: Any, setting: ProblemSpec) -> System:
        """Build the system for a config that `check` returned."""
        score = getattr(config, "score", UCB)
        system: System = super().make_checked(config, setting)
        return system if score == UCB else scored(system, score, setting)


def scored(system: System, score: str, setting: ProblemSpec) -> System:
    """The system, saying what follows from a score that is no upper confidence bound."""
    what = f'the action is the one of the largest upper confidence bound (here: score "{score}")'
    theory = replace(system.theory, conditions=(*system.theory.conditions, Condition(what, False)))
    # Privacy is that of what was released, whatever chooses from it and keeps nothing else.
    plan = with_caveats(system.plan, system.theory.caveats, theory.caveats)
    certificate = _system.account(plan, setting)
    return replace(system, plan=plan, theory=theory, certificate=certificate)


def with_caveats(plan: Any, old: tuple[str, ...], new: tuple[str, ...]) -> Any:
    """The plan with other caveats beside its privacy, in the place of old ones."""

    def changed(claim: Claim) -> Claim:
        # Any one of the old stands where the new ones are to stand.
        kept = tuple(c for c in claim.caveats if c not in old)
        return msgspec.structs.replace(claim, caveats=(*kept, *new))

    return plan.with_claim(changed)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a curve of any linear system may say. An algorithm adds its own keys."""

    batch_size: int | str | None = None
    lazy: bool = True
    radius: str = "direct"
    radius_multiplier: float = 1.0
    failure_probability: float = 0.01
    regularizer: str | float | None = None  # None: the radius' own
    clip: bool | None = None  # None: true, but for the published code's runs
    score: str = UCB  # what the action played has the largest of
    #: What ``radius`` and ``regularizer`` may be.
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
        if self.regularizer is not None:
            return self.regularizer
        return "published-code" if self.radius == "published-code" else "from-noise"

    def rounds_per_batch(self, setting: ProblemSpec) -> int:
        """B: as given, or the rule of Corollary 5.2 for "theorem"."""
        if self.batch_size is None:
            raise InputError('batch_size is required: an integer >= 1, or "theorem"')
        if isinstance(self.batch_size, str):
            choice("batch_size", self.batch_size, ["theorem"])
            return batch_size_corollary_5_2(setting.horizon, setting.silos)
        b = integer("batch_size", self.batch_size, at_least=1)
        if b > setting.horizon:
            raise InputError(f"batch_size must be <= horizon ({setting.horizon}), got {b}")
        return b

    def bounds(self, published: bool) -> Clip | None:
        """Where features and rewards are clipped, if they are."""
        clips = self.clip if self.clip is not None else not published
        return Clip() if clips else None


#: Of a user who takes part in every batch.
EVERY_BATCH = "every-batch"


def check_returning(returning: int | str) -> None:
    """InputError unless it says in how many batches a user may take part."""
    if isinstance(returning, str):
        if returning != EVERY_BATCH:
            raise InputError(
                f'returning must be an integer >= 1 or "{EVERY_BATCH}", got "{returning}"'
            )
    else:
        integer("returning", returning, at_least=1)


def batches_of_user(returning: int | str, batches: int) -> int:
    """In how many of so many batches one user may take part, once in each."""
    most = max(batches, 1)
    return most if isinstance(returning, str) else min(returning, most)
