"""Interfaces of bandit environments and adversaries, and the distribution of rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from fastfed._kernels import environments, rng
from fastfed._kernels import losses as loss_kernels
from fastfed._random import INSTANCE
from fastfed._validate import InputError, choice, integer, number, show

# ---- Bandit environments -------------------------------------------------------------------------

#: Kinds of reward distributions; the same numbers are in src/ff_environment.h.
REWARD_KINDS = {"none": 0, "bernoulli": 1, "gaussian": 2}

#: Beyond this a number is a typing error, and would fill the memory, as beyond MAX_DIMENSION.
MAX_ACTIONS = 2**31 - 1

#: Condition of a user-level guarantee on the environment, which is outside the mechanism.
INDEPENDENT = "contexts and rewards of a user do not depend on other users' raw data"
#: Condition on real records: with a maximum over all of them, one record moves all features.
SCALED = "features are scaled by declared ranges, not by ranges of these data"


@dataclass(frozen=True)
class RewardDistribution:
    """Distribution of a reward given its mean.

    Parameters
    ----------
    kind : {"bernoulli", "gaussian", "none"}
        Bernoulli, Gaussian around the mean, or the mean itself.
    std : float
        Standard deviation of Gaussian rewards, in units of the reward.

    Raises
    ------
    InputError
        For another kind, or a Gaussian without std > 0.
    """

    kind: str = "bernoulli"
    std: float = 0.0

    def __post_init__(self) -> None:
        choice("reward.kind", self.kind, list(REWARD_KINDS))
        if self.kind == "gaussian":
            number("reward.std", self.std, above=0.0)
        else:
            number("reward.std", self.std, at_least=0.0)

    @classmethod
    def from_spec(cls, spec: Any, default: str = "bernoulli") -> RewardDistribution:
        """Make the distribution of a spec's ``reward`` table.

        Parameters
        ----------
        spec : dict or None
            A table such as {kind = "gaussian", std = 0.5}; std is 0.5 by default.
        default : str
            Kind if the table names none.

        Raises
        ------
        InputError
            For anything but such a table.
        """
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
        """Kind and std as the C code takes them."""
        return REWARD_KINDS[self.kind], self.std


def check_reward(reward: object) -> None:
    """Raise InputError unless the field ``reward`` of an environment is a distribution."""
    if not isinstance(reward, RewardDistribution):
        raise InputError(
            'reward must be a RewardDistribution, such as RewardDistribution("gaussian", 0.5), '
            f"got {show(reward)}"
        )


@dataclass(frozen=True)
class EnvironmentSpec:
    """Promises of a bandit environment, on which theory and certificates rest.

    Parameters
    ----------
    dimension : int
        d, the number of features.
    actions : int
        K, the most actions of any round.
    reward : RewardDistribution
        Distribution of a reward given its mean.
    reward_range : (float, float) or None
        Interval that contains every reward, by construction or by declaration, never read from
        data; None where there is none.
    linear : bool
        The expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear_by_silo : bool
        At silo i it is <x, theta_i>, ||theta_i|| <= 1 and ||x|| <= 1, also where silos have no
        theta* in common: enough for a silo that learns alone. ``linear`` implies it, so it says
        something where ``linear`` is False.
    features_bounded : bool
        ||x|| <= 1 holds by construction, not by the word of a user.
    multiplicity : int
        Rounds that one record can be served in: 1 if every round is a new user.
    contexts_made : bool
        Contexts are computed each round, so that curves save time by sharing them.
    notes : tuple of str
        Caveats about the data, for the certificate.
    conditions : tuple of (str, bool)
        Further conditions of a guarantee: sentences, and True for each that holds.
    real_records : bool
        Records are real, so that output of a run is about their owners.
    intercept : float or None
        kappa, where the last feature of every action is the constant 1 / sqrt(2 kappa) and the
        others have a norm of at most 1 / sqrt 2; for linear rewards their mean then lies in
        reward_range for all such features.
    """

    dimension: int
    actions: int
    reward: RewardDistribution
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    linear: bool = True
    features_bounded: bool = True
    multiplicity: int = 1
    contexts_made: bool = True
    notes: tuple[str, ...] = field(default=())
    conditions: tuple[tuple[str, bool], ...] = field(default=())
    real_records: bool = False
    intercept: float | None = None
    linear_by_silo: bool = False


class Environment(Protocol):
    """Interface of an environment: its promises, and one compiled instance per replicate.

    Environments of bandits produce contexts and rewards, those of experts (adversaries) losses.
    """

    kind: str

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data name; None if any number will do."""
        ...

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec | LossSpec:
        """Return the promises for M silos and T rounds; InputError if it cannot serve them."""
        ...

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment | Adversary:
        """Return the compiled environment of one replicate, a function of seed and replicate."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment, for the identity of stored results."""
        ...


def described(environment: Any) -> dict[str, Any]:
    """Describe an environment that is a dataclass of plain data, for its `describe` method.

    Parameters
    ----------
    environment : dataclass instance
        With a ``kind``.

    Returns
    -------
    dict
        "kind" and every field by name; nested dataclasses are dicts. An ``intercept`` of 1 is left
        out, which says nothing.
    """
    plain = {"kind": environment.kind, **asdict(environment)}
    # A key that came later and says nothing is left out: stores of earlier versions stay valid.
    if plain.get("intercept") == 1.0:
        del plain["intercept"]
    return plain


# ---- Adversaries ---------------------------------------------------------------------------------
# An adversary is a distribution, or a sequence, of losses of d experts, opened once per replicate.

#: Caveat where all clients meet the same loss.
COMMON = (
    "all clients meet the same loss in a round: who stands behind it is a user at every client, "
    "and the account is of all of these together"
)

#: Beyond this a number of experts is a typing error, and would fill the memory.
MAX_EXPERTS = 2**24

#: float64 holds sums of losses exactly up to here.
COUNTED = 2.0**53


@dataclass(frozen=True)
class LossSpec:
    """Promises of an adversary: theory rests on them, and clients clip to them.

    Parameters
    ----------
    dimension : int
        d, the number of experts.
    lipschitz : float
        alpha: no coordinate of a gradient is larger.
    spread : float
        Every coordinate of every gradient lies in [alpha - spread, alpha].
    smoothness : float
        beta: gradients are beta-Lipschitz from the L1 to the maximum norm.
    loss_range : float
        Upper bound of a loss minus its least value on the simplex.
    linear : bool
        A loss is <l, x> with l in [0, 1]^d.
    iid : bool
        Losses are drawn independently from one distribution.
    optimal_loss : float or None
        The most that the best expert loses at any client, if that is guaranteed.
    multiplicity : int
        Losses, of any clients in any rounds, that one record can be behind: 1 if every loss is of
        another record. Declared, or known by how losses are made; never found by comparing them.
    real_records : bool
        Losses are of real records, so that output of a run is about their owners.
    contexts_made : bool
        Losses are computed each round.
    notes : tuple of str
        Caveats about the losses, for the certificate.

    Raises
    ------
    InputError
        For values out of range.
    """

    dimension: int
    lipschitz: float = 1.0
    spread: float = 1.0
    smoothness: float = 0.0
    loss_range: float = 1.0
    linear: bool = True
    iid: bool = False
    optimal_loss: float | None = None
    multiplicity: int = 1
    real_records: bool = False
    contexts_made: bool = True
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=2, at_most=MAX_EXPERTS)
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
    """One replicate of an adversary: its losses, and the comparator of regret.

    With neither ``suboptimality`` nor ``optimum``, regret is against the best expert in hindsight.

    Parameters
    ----------
    losses : Losses
        Compiled losses, a function of seed, replicate, silo and round.
    suboptimality : callable, optional
        ``suboptimality(x)`` is the expected loss of x minus that of the best point, per client and
        round, where losses are drawn from one distribution; regret is then pseudo-regret.
    optimum : ndarray, shape (d,), optional
        The point that losses given as gradients are compared with.
    """

    losses: loss_kernels.Losses
    suboptimality: Callable[[np.ndarray], float] | None = None
    optimum: np.ndarray | None = None

    @property
    def seed(self) -> int:
        """Seed of the losses."""
        return self.losses.seed

    @property
    def replicate(self) -> int:
        """Number of the replicate."""
        return self.losses.replicate


def check_experts(experts: object) -> int:
    """Return the number of experts (d); InputError if it is out of range."""
    return integer("experts", experts, at_least=2, at_most=MAX_EXPERTS)


def check_multiplicity(multiplicity: object) -> None:
    """Raise InputError unless multiplicity is a number of uses of one record."""
    integer("multiplicity", multiplicity, at_least=1, at_most=2**53)


def check_means(mean: float, gap: float) -> None:
    """Raise InputError unless ``mean`` and ``mean - gap`` are probabilities, with gap >= 0."""
    number("mean", mean, at_least=0.0, at_most=1.0)
    number("gap", gap, at_least=0.0, at_most=1.0)
    if gap > mean:
        raise InputError(f"gap must be at most mean ({mean:g}), got {gap:g}")


def check_exact_sums(silos: int, horizon: int, unit: float) -> None:
    """Raise InputError if sums of multiples of unit over all silos and rounds would be rounded."""
    if silos * horizon > COUNTED * unit:
        raise InputError(
            f"silos times horizon must be at most {COUNTED * unit:.3g} for these losses, "
            f"got {silos * horizon:.3g}"
        )


def chances(means: np.ndarray) -> np.ndarray:
    """Return probabilities in [0, 1] as whole multiples of 2^-31."""
    return np.rint(np.asarray(means) * loss_kernels.CHANCES).astype(np.uint32)


def best_expert(seed: int, replicate: int, experts: int) -> int:
    """Draw the best expert of a replicate, so that no rule for ties favours it."""
    return rng.uniform_int(seed, INSTANCE, replicate, 0, 0, experts)
