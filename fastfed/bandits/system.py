"""A system ready to play: a plan for the drivers, and the certificate of what it guarantees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from fastfed._validate import InputError, choice, integer, nearest, number
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.bandits.setting import Setting
from fastfed.bandits.theory import RADII, REGULARIZERS, Theory
from fastfed.privacy.certificate import SIMULATION, Certificate
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Clip, Plan


@dataclass(frozen=True)
class System:
    """One curve of an experiment: what it plays, why it may, what it promises."""

    algorithm: str
    plan: Plan | PeerPlan | PhasePlan
    theory: Theory
    certificate: Certificate
    bounds_at: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    @property
    def deployed_certificate(self) -> Certificate:
        """The certificate where Silo and Server draw their noise from the operating system."""
        kept = tuple(c for c in self.certificate.caveats if c != SIMULATION)
        return msgspec.structs.replace(self.certificate, caveats=kept)


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What a curve of any linear system may say. An algorithm adds its own keys."""

    batch_size: int | str | None = None
    lazy: bool = True
    radius: str = "direct"
    radius_multiplier: float = 1.0
    failure_probability: float = 0.01
    regularizer: str | float | None = None  # None: the radius' own
    clip: bool | None = None  # None: true, but for the published code's runs
    #: What ``radius`` and ``regularizer`` may be.
    radii: ClassVar[tuple[str, ...]] = RADII
    regularizers: ClassVar[tuple[str, ...]] = REGULARIZERS

    def __post_init__(self) -> None:
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

    def rounds_per_batch(self, setting: Setting) -> int:
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


@dataclass(frozen=True)
class Algorithm:
    """An entry of the registry: one system of a paper."""

    id: str
    paper: str
    summary: str
    keys: type[Keys]
    build: Callable[[Any, Setting], System]
    #: Keys that a deployment takes unless it says otherwise, where the simulation has a shortcut.
    deployed: tuple[tuple[str, Any], ...] = ()

    def make(self, keys: dict[str, Any], setting: Setting) -> System:
        """The system for the keys of one curve; InputError names a bad key."""
        known = self.keys.__struct_fields__
        for key in keys:
            if key not in known:
                raise InputError(f'unknown key "{key}" for {self.id}{nearest(key, known)}')
        try:
            checked = msgspec.convert(keys, self.keys)
        except msgspec.ValidationError as error:
            # A check of ours keeps its own sentence; msgspec's type errors name the key.
            cause = error.__cause__
            if isinstance(cause, InputError):
                raise cause from None
            raise InputError(_type_error(error)) from None
        return self.build(checked, setting)


def _type_error(error: msgspec.ValidationError) -> str:
    """msgspec's words, with the key in front: `epsilon must be float, got str`."""
    text = str(error)
    what, _, where = text.partition(" - at `$.")
    key = where.rstrip("`")
    what = what.replace("Expected `", "must be ").replace("`", "").replace(" | null", "")
    return f"{key} {what}" if key else text
