"""What every environment is: a law of actions and rewards, opened once per replicate."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fastfed._kernels import environments
from fastfed._validate import InputError, choice, number
from fastfed.environments.losses import Adversary, LossFacts

#: Reward laws; the same numbers stand in src/ff_environment.h.
REWARD_LAWS = {"none": 0, "bernoulli": 1, "gaussian": 2}

#: Beyond these a number is a typing error, and would fill the memory.
MAX_DIMENSION = 2**15
MAX_ACTIONS = 2**31 - 1


@dataclass(frozen=True)
class RewardLaw:
    """y given its mean: ``bernoulli``, ``gaussian`` of ``std``, or the mean itself (``none``)."""

    kind: str = "bernoulli"
    std: float = 0.0

    def __post_init__(self) -> None:
        choice("reward.kind", self.kind, list(REWARD_LAWS))
        if self.kind == "gaussian":
            number("reward.std", self.std, above=0.0)

    @classmethod
    def from_spec(cls, spec: Any, default: str = "bernoulli") -> RewardLaw:
        """From the spec's ``reward`` table, such as {kind = "gaussian", std = 0.5}."""
        if spec is None:
            return cls(default)
        if not isinstance(spec, dict):
            raise InputError(
                f'reward must be a table such as {{ kind = "bernoulli" }}, got {spec!r}'
            )
        unknown = sorted(set(spec) - {"kind", "std"})
        if unknown:
            raise InputError(f'unknown key "{unknown[0]}" in reward; it takes kind and std')
        kind = choice("reward.kind", spec.get("kind", default), list(REWARD_LAWS))
        if kind == "gaussian":
            return cls(kind, spec.get("std", 0.5))
        if "std" in spec:
            raise InputError(f'reward.std goes with kind = "gaussian", not with "{kind}"')
        return cls(kind)

    @property
    def c(self) -> tuple[int, float]:
        """As the compiled side reads it."""
        return REWARD_LAWS[self.kind], self.std


#: What a guarantee for one user asks of the world around the mechanism.
INDEPENDENT = "contexts and rewards of a user do not depend on other users' raw data"
#: Of real records: a maximum over all of them lets one record move the features of every other.
SCALED = "features are scaled by declared ranges, not by ranges of these data"


@dataclass(frozen=True)
class Facts:
    """What an environment guarantees; theory and certificates rest on it."""

    dimension: int
    actions: int  # the most of any round
    reward: RewardLaw
    #: Interval that every reward lies in, by how it is made or by declaration, never read from
    #: data; None when there is none.
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    #: Whether the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear: bool = True
    #: Whether ||x|| <= 1 is the environment's own doing, not its user's word.
    features_bounded: bool = True
    #: How often one record can be served: 1 when every round is a new user.
    multiplicity: int = 1
    #: Whether contexts are computed each round, so that curves gain by sharing them.
    contexts_made: bool = True
    #: What a reader of the certificate should know about the data.
    notes: tuple[str, ...] = field(default=())
    #: What a guarantee rests on beside these bounds: sentences, and whether each holds.
    conditions: tuple[tuple[str, bool], ...] = field(default=())
    #: Whether records are real ones, whose owners what a run prints is about.
    real_records: bool = False


def described(environment: Any) -> dict[str, Any]:
    """Kind and every field of an environment that is a dataclass of plain data."""
    return {"kind": environment.kind, **asdict(environment)}


class Environment(Protocol):
    """An environment: facts, and one compiled instance per replicate.

    Those of bandits hand out contexts and rewards, those of experts (an adversary) losses.
    """

    kind: str

    def natural_silos(self) -> int | None:
        """The number of silos the data themselves say; None when any number will do."""
        ...

    def facts(self, silos: int, horizon: int) -> Facts | LossFacts:
        """What holds for that many silos and rounds; InputError when it cannot serve them."""
        ...

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment | Adversary:
        """The compiled environment of one replicate: keyed, the same however it is played."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data that identifies it: equal descriptions play equal rounds."""
        ...
