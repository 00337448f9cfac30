"""Environments: the interfaces of bandit environments and adversaries, and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from fastfed._kernels import losses as loss_kernels
from fastfed._kernels import native
from fastfed._random import INSTANCE
from fastfed._validate import InputError, choice, integer, number

# What every adversary is: a law or a sequence of losses of d experts, opened per replicate.


#: Where all clients meet one and the same loss.
COMMON = (
    "all clients meet the same loss in a round: who stands behind it is a user at every client, "
    "and the account is of all of these together"
)

#: Beyond this a number of experts is a typing error, and would fill the memory.
MOST_EXPERTS = 2**24

#: float64 counts sums of losses exactly up to here.
COUNTED = 2.0**53


@dataclass(frozen=True)
class LossSpec:
    """What an adversary guarantees; theory rests on it, and clients clip to it in code."""

    dimension: int  # d experts
    #: alpha: no coordinate of a gradient is larger.
    lipschitz: float = 1.0
    #: Every coordinate of every gradient lies in [alpha - spread, alpha].
    spread: float = 1.0
    #: beta: gradients are beta-Lipschitz from the L1 to the maximum norm.
    smoothness: float = 0.0
    #: What a loss exceeds its least value on the simplex by at most.
    loss_range: float = 1.0
    #: Whether a loss is <l, x> with l in [0, 1]^d.
    linear: bool = True
    #: Whether losses are drawn independently from one law.
    iid: bool = False
    #: The most that the best expert loses at any client, if that is guaranteed.
    optimal_loss: float | None = None
    #: How many losses, of any clients in any rounds, one record can be behind: 1 where every loss
    #: is another's. Declared, or by how losses are made; never found by comparing them.
    multiplicity: int = 1
    #: Whether losses are those of real records, whose owners what a run prints is about.
    real_records: bool = False
    #: Whether losses are computed each round.
    contexts_made: bool = True
    #: What a reader of the certificate should know about the losses.
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=2, at_most=MOST_EXPERTS)
        alpha = number("lipschitz", self.lipschitz, above=0.0)
        number("spread", self.spread, above=0.0, at_most=2.0 * alpha)
        number("smoothness", self.smoothness, at_least=0.0)
        integer("multiplicity", self.multiplicity, at_least=1)
        number("loss_range", self.loss_range, above=0.0, at_most=2.0 * alpha)
        if self.linear and (alpha, self.spread, self.smoothness) != (1.0, 1.0, 0.0):
            raise InputError(
                "lipschitz, spread and smoothness must be 1, 1 and 0 for linear losses, which are "
                f"in [0, 1]; got {alpha:g}, {self.spread:g} and {self.smoothness:g}"
            )


@dataclass(frozen=True)
class Adversary:
    """One replicate: keyed losses, and what regret is measured against.

    ``suboptimality(x)``: expected loss of x less that of the best point, per client and round,
    where losses are drawn from one law: regret is then pseudo-regret. ``optimum`` (d,): the point
    that losses given as gradients are compared with. With neither, regret is against the best
    expert in hindsight.
    """

    losses: loss_kernels.Losses
    suboptimality: Callable[[np.ndarray], float] | None = None
    optimum: np.ndarray | None = None

    @property
    def seed(self) -> int:
        return self.losses.seed

    @property
    def replicate(self) -> int:
        return self.losses.replicate


def check_multiplicity(multiplicity: object) -> None:
    """InputError unless it says how often one record can be used."""
    integer("multiplicity", multiplicity, at_least=1, at_most=2**53)


def check_experts(experts: object) -> int:
    """d."""
    return integer("experts", experts, at_least=2, at_most=MOST_EXPERTS)


def check_exact_sums(silos: int, horizon: int, unit: float) -> None:
    """InputError where sums over all silos and rounds would not be exact."""
    if silos * horizon > COUNTED * unit:
        raise InputError(
            f"silos times horizon must be at most {COUNTED * unit:.3g} for these losses, "
            f"got {silos * horizon:.3g}"
        )


def chances(means: np.ndarray) -> np.ndarray:
    """Means in [0, 1] as whole multiples of 2^-31."""
    return np.rint(np.asarray(means) * loss_kernels.CHANCES).astype(np.uint32)


def best_expert(seed: int, replicate: int, experts: int) -> int:
    """Which expert is the best one: another in every replicate, so that no tie-break favours it."""
    from fastfed._kernels import native as kernels

    return kernels.below(seed, INSTANCE, replicate, 0, 0, experts)


def check_means(mean: float, gap: float) -> None:
    """That all others have ``mean`` and the best ``mean - gap``, both chances."""
    number("mean", mean, at_least=0.0, at_most=1.0)
    number("gap", gap, at_least=0.0, at_most=1.0)
    if gap > mean:
        raise InputError(f"gap must be at most mean ({mean:g}), got {gap:g}")


# ---- What every environment is: a law of actions and rewards, opened once per replicate ----------


#: Reward laws; the same numbers stand in src/ff_environment.h.
REWARD_KINDS = {"none": 0, "bernoulli": 1, "gaussian": 2}

#: Beyond these a number is a typing error, and would fill the memory.
MAX_DIMENSION = 2**15
MAX_ACTIONS = 2**31 - 1


@dataclass(frozen=True)
class RewardDistribution:
    """y given its mean: ``bernoulli``, ``gaussian`` of ``std``, or the mean itself (``none``)."""

    kind: str = "bernoulli"
    std: float = 0.0

    def __post_init__(self) -> None:
        choice("reward.kind", self.kind, list(REWARD_KINDS))
        if self.kind == "gaussian":
            number("reward.std", self.std, above=0.0)

    @classmethod
    def from_spec(cls, spec: Any, default: str = "bernoulli") -> RewardDistribution:
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
        kind = choice("reward.kind", spec.get("kind", default), list(REWARD_KINDS))
        if kind == "gaussian":
            return cls(kind, spec.get("std", 0.5))
        if "std" in spec:
            raise InputError(f'reward.std goes with kind = "gaussian", not with "{kind}"')
        return cls(kind)

    @property
    def c(self) -> tuple[int, float]:
        """As the compiled side reads it."""
        return REWARD_KINDS[self.kind], self.std


#: What a guarantee for one user asks of the world around the mechanism.
INDEPENDENT = "contexts and rewards of a user do not depend on other users' raw data"
#: Of real records: a maximum over all of them lets one record move the features of every other.
SCALED = "features are scaled by declared ranges, not by ranges of these data"


@dataclass(frozen=True)
class EnvironmentSpec:
    """What an environment guarantees; theory and certificates rest on it."""

    dimension: int
    actions: int  # the most of any round
    reward: RewardDistribution
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

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec | LossSpec:
        """What holds for that many silos and rounds; InputError when it cannot serve them."""
        ...

    def open(self, seed: int, replicate: int, silos: int) -> native.Environment | Adversary:
        """The compiled environment of one replicate: keyed, the same however it is played."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data that identifies it: equal descriptions play equal rounds."""
        ...
