"""Interfaces that bandit environments and adversaries implement, and the distribution of rewards.

An adversary is a source of losses for prediction with expert advice.
"""

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

#: Largest number of actions. A larger number is a typing error, and would fill the memory.
MAX_ACTIONS = 2**31 - 1

#: Condition of a user-level guarantee that concerns the environment, not the mechanism.
INDEPENDENT = "contexts and rewards of a user do not depend on other users' raw data"
#: Condition on real records. If features were scaled by the maximum of the data, changing one
#: record could change the features of all records.
DECLARED_RANGES_TEXT = "features are scaled by declared ranges, not by ranges of these data"


@dataclass(frozen=True)
class RewardDistribution:
    """Distribution of a reward given its mean.

    Parameters
    ----------
    kind : {"bernoulli", "gaussian", "none"}
        A Bernoulli reward, a Gaussian reward around the mean, or ("none") always the mean.
    std : float
        Standard deviation of Gaussian rewards, in units of the reward.

    Raises
    ------
    InputError
        For an unknown kind, for a negative std, and for a Gaussian with std = 0.
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
        """Return the distribution that the ``reward`` table of a spec describes.

        Parameters
        ----------
        spec : dict or None
            A table such as {kind = "gaussian", std = 0.5}. A Gaussian without ``std`` has 0.5.
        default : str
            The kind if the table has no ``kind``, or if ``spec`` is None.

        Returns
        -------
        RewardDistribution
            The distribution.

        Raises
        ------
        InputError
            If ``spec`` is not such a table.
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
            raise InputError(f'reward.std needs reward.kind = "gaussian", got "{kind}"')
        return cls(kind)

    @property
    def c(self) -> tuple[int, float]:
        """The pair (number of the kind, std) that describes the distribution to compiled code."""
        return REWARD_KINDS[self.kind], self.std


def check_reward(reward: object) -> None:
    """Raise InputError unless ``reward``, a field of an environment, is a RewardDistribution."""
    if not isinstance(reward, RewardDistribution):
        raise InputError(
            'reward must be a RewardDistribution, such as RewardDistribution("gaussian", 0.5), '
            f"got {show(reward)}"
        )


@dataclass(frozen=True)
class EnvironmentSpec:
    """Properties that a bandit environment guarantees; theory and certificates rely on them.

    Parameters
    ----------
    dimension : int
        d, the number of features.
    actions : int
        K, the largest number of actions in any round.
    reward : RewardDistribution
        Distribution of a reward given its mean.
    reward_range : (float, float) or None
        Interval that contains every reward, by construction or by declaration. It is never
        computed from the data. None if rewards are unbounded.
    linear : bool
        True if the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear_by_silo : bool
        True if the expected reward at silo i is <x, theta_i> with ||theta_i|| <= 1 and
        ||x|| <= 1, where theta_i may differ between silos. This is enough for a silo that learns
        from its data only. It matters only where ``linear`` is False, since ``linear`` implies it.
    features_bounded : bool
        True if ||x|| <= 1 holds by construction; False if a user merely declares it.
    multiplicity : int
        Largest number of rounds that one record can appear in: 1 if every round is a new user.
    contexts_made : bool
        True if contexts are computed in each round, so that curves that share them save time.
    notes : tuple of str
        Caveats about the data, for the certificate.
    conditions : tuple of (str, bool)
        Further conditions of a guarantee: pairs of a sentence and whether it holds.
    real_records : bool
        True if records are real data, so that the output of a run reveals something about their
        owners.
    intercept : float or None
        kappa, if the last feature of every action is the constant 1 / sqrt(2 kappa) and the
        other features have norm at most 1 / sqrt 2. Expected linear rewards then lie in
        reward_range for all such features.
    arms : bool
        True if action a is the unit vector e_a in every round, and its expected reward is the same
        number in [0, 1] in all rounds and silos.
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
    arms: bool = False


class Environment(Protocol):
    """Interface of an environment: its properties, and one compiled instance per replicate.

    Environments of bandits produce contexts and rewards. Environments of experts (adversaries)
    produce losses.

    Two methods are optional. ``theta(seed, replicate)`` returns the parameter theta* (d,) of a
    replicate, if rewards are linear. ``memory(silos, horizon, curves)`` returns the bytes that one
    replicate needs when it serves this number of curves.
    """

    kind: str

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data define; None if any number is allowed."""
        ...

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec | LossSpec:
        """Return the properties for M silos and T rounds.

        Raises
        ------
        InputError
            If the environment has not enough data for M silos and T rounds.
        """
        ...

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment | Adversary:
        """Return the compiled environment of one replicate.

        The seed and the replicate determine all its draws.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment.

        A store of results is continued only if the environment returns the same plain data. So two
        environments that return the same must produce equal contexts and rewards.
        """
        ...


def described(environment: Any) -> dict[str, Any]:
    """Return the fields of an environment as plain data, for its `describe` method.

    Parameters
    ----------
    environment : dataclass instance
        An environment whose fields are plain data, with an attribute ``kind``.

    Returns
    -------
    dict
        "kind" and every field by name; nested dataclasses are dicts. An ``intercept`` of 1, the
        default, is left out.
    """
    plain = {"kind": environment.kind, **asdict(environment)}
    # `intercept` was added later. Leaving out its default keeps earlier stores valid.
    if plain.get("intercept") == 1.0:
        del plain["intercept"]
    return plain


# ---- Adversaries ---------------------------------------------------------------------------------
# An adversary is a distribution or a sequence of losses of d experts. It is opened once for each
# replicate.

#: Caveat for losses that are the same at all clients.
COMMON_LOSSES_CAVEAT = (
    "all clients receive the same loss in a round: the person behind it is a user of every client, "
    "and the account covers all clients together"
)

#: Largest number of experts. A larger number is a typing error, and would fill the memory.
MAX_EXPERTS = 2**24

#: float64 represents all integers up to this one, so sums of losses up to it are exact.
MAX_EXACT = 2.0**53


@dataclass(frozen=True)
class LossSpec:
    """Properties that an adversary guarantees: theory relies on them, and clients clip to them.

    A loss is a convex function of weights x of the experts. Gradients are taken at x.

    Parameters
    ----------
    dimension : int
        d, the number of experts.
    lipschitz : float
        alpha, an upper bound of every coordinate of a gradient.
    spread : float
        Every coordinate of every gradient lies in [alpha - spread, alpha].
    smoothness : float
        beta: gradients are beta-Lipschitz from the L1 to the maximum norm.
    loss_range : float
        Upper bound of the difference between a loss and its minimum on the simplex.
    linear : bool
        True if a loss is <l, x> with l in [0, 1]^d.
    iid : bool
        True if losses are drawn independently from one distribution.
    optimal_loss : float or None
        Upper bound of the total loss of the best expert at any client; None without such a bound.
    multiplicity : int
        Largest number of losses, over all clients and rounds, that one record can influence: 1
        if every loss comes from a different record. It is declared or follows from how losses are
        generated. It is never computed from the losses.
    real_records : bool
        True if losses come from real records, so that the output of a run reveals something about
        their owners.
    contexts_made : bool
        True if losses are computed in each round.
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
    """One replicate of an adversary: its losses, and what regret compares them with.

    If neither ``suboptimality`` nor ``optimum`` is given, regret compares with the best expert in
    hindsight.

    Parameters
    ----------
    losses : Losses
        Compiled losses, a function of seed, replicate, silo and round.
    suboptimality : callable, optional
        ``suboptimality(x)`` is the expected loss of x minus the expected loss of the best point,
        per client and round, for losses drawn from one distribution. Regret is then pseudo-regret.
    optimum : ndarray, shape (d,), optional
        The point that regret compares with, for losses given by their gradients.
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
    """Return the number of experts (d) as an int; raise InputError if it is out of range."""
    return integer("experts", experts, at_least=2, at_most=MAX_EXPERTS)


def check_multiplicity(multiplicity: object) -> None:
    """Raise InputError unless multiplicity is a whole number from 1 to 2^53."""
    integer("multiplicity", multiplicity, at_least=1, at_most=2**53)


def check_means(mean: float, gap: float) -> None:
    """Raise InputError unless ``mean`` and ``mean - gap`` are probabilities, with gap >= 0."""
    number("mean", mean, at_least=0.0, at_most=1.0)
    number("gap", gap, at_least=0.0, at_most=1.0)
    if gap > mean:
        raise InputError(f"gap must be at most mean ({mean:g}), got {gap:g}")


def check_exact_sums(silos: int, horizon: int, unit: float) -> None:
    """Raise InputError if sums of losses over all silos and rounds could be rounded.

    Each loss is at most 1 and a whole multiple of ``unit``.
    """
    if silos * horizon > MAX_EXACT * unit:
        raise InputError(
            f"silos times horizon must be at most {MAX_EXACT * unit:.3g} for these losses, "
            f"got {silos * horizon:.3g}"
        )


def chances(means: np.ndarray) -> np.ndarray:
    """Return probabilities (d,) as numerators of fractions with denominator 2^31, in uint32.

    Each probability is rounded to the nearest such fraction.
    """
    return np.rint(np.asarray(means) * loss_kernels.CHANCES).astype(np.uint32)


def best_expert(seed: int, replicate: int, experts: int) -> int:
    """Return a random index in 0..``experts`` - 1, for the best expert of a replicate.

    With a fixed index, a rule that breaks ties by index could favour the best expert.
    """
    return rng.uniform_int(seed, INSTANCE, replicate, 0, 0, experts)
