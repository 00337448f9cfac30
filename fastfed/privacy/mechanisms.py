"""The mechanisms by name: what `calibrate` can answer, one noise for one budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from fastfed._face import Shown
from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError, choice, integer, number, show
from fastfed.privacy.binomial import calibrate_vector_sum
from fastfed.privacy.budget import Budget
from fastfed.privacy.calibration import calibrate_tree
from fastfed.privacy.certificate import rounded_up
from fastfed.privacy.continual import calibrate_release
from fastfed.privacy.gaussian import mu_of
from fastfed.privacy.noisy_argmin import NoisyArgmin
from fastfed.privacy.noisy_points import calibrate_points
from fastfed.privacy.sensitivity import sum_sensitivity
from fastfed.privacy.shares import largest_share
from fastfed.privacy.two_streams import GaussianRelease
from fastfed.privacy.vector_batches import calibrate_vector_batches


class Calibrated(Shown, msgspec.Struct, frozen=True):
    """The answer of a calibration: the budget, the noise, and the ratio mu it amounts to."""

    mechanism: str
    epsilon: float
    delta: float
    relation: str
    releases: int
    noise_std: float
    mu: float
    source: str


class Size(msgspec.Struct, frozen=True):
    """What some mechanisms need to know beside budget and releases.

    users: of one leaf, silos times batch size. dimension: d.
    """

    users: int | None = None
    dimension: int | None = None


#: The source of no noise.
NOTHING = "nothing is released"


def _answer(
    name: str, budget: Budget, releases: int, std: float, mu: float, source: str
) -> Calibrated:
    return Calibrated(
        name, budget.epsilon, budget.delta, budget.relation, releases, std, mu, source
    )


def _gaussian(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Sums of vectors of norm at most 1, a record entering each of the releases."""
    releases = integer("releases", releases, at_least=0)
    delta = number("delta", budget.delta, above=0, below=1)
    moved = math.sqrt(releases) * sum_sensitivity(budget.relation)
    s = moved / mu_of(budget.epsilon, delta)
    source = "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of sums of unit-norm vectors"
    return _answer("gaussian", budget, releases, s, moved / s if releases else 0.0, source)


def _two_streams(name: str, made: GaussianRelease) -> Calibrated:
    source = made.source
    if made.calibration != "exact":
        source += f"; exact epsilon {rounded_up(made.exact())}"
    return _answer(name, made.budget, made.releases, made.noise_std, made.mu(), source)


def _tree(name: str, calibration: str) -> Callable[[Budget, int, Size], Calibrated]:
    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        return _two_streams(name, calibrate_tree(budget, releases, calibration))

    return calibrated


def _release(name: str) -> Callable[[Budget, int, Size], Calibrated]:
    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        return _two_streams(name, calibrate_release(name, budget, releases))

    return calibrated


def _vector_sum(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Both streams through the vector sum by shuffling, at every node of the tree."""
    if size.users is None or size.dimension is None:
        raise InputError("vector-sum needs users (of all silos in one batch) and dimension")
    integer("users", size.users, at_least=1)
    tree = calibrate_vector_sum(budget, releases, size.users, size.dimension)
    bits = ", ".join(
        f"g = {g}, b = {b} at level {j}"
        for j, (g, b) in enumerate(zip(tree.g, tree.b, strict=True))
    )
    source = f"{tree.source}; {bits or 'nothing is released'}"
    std = tree.noise_stds["bias"]
    return _answer("vector-sum", budget, tree.releases, std, tree.mu(), source)


def _points(name: str, shuffled: bool) -> Callable[[Budget, int, Size], Calibrated]:
    """Every user's own Gaussian noise, for a user of so many batches; noise_std of one message."""

    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        if shuffled and size.users is None:
            raise InputError(f"{name} needs users (of one batch, whose messages are shuffled)")
        if integer("releases", releases, at_least=0) == 0:
            return _answer(name, budget, 0, 0.0, 0.0, NOTHING)
        made = calibrate_points(budget, size.users or 1, returning=releases, shuffled=shuffled)
        return _answer(name, budget, releases, made.noise_std, made.mu(), made.source)

    return calibrated


def _vector_batches(budget: Budget, releases: int, size: Size) -> Calibrated:
    """One agent's vector sums, for a user of so many batches; noise_std of one batch."""
    if size.users is None or size.dimension is None:
        raise InputError("vector-batches needs users (of one batch) and dimension")
    if integer("releases", releases, at_least=0) == 0:
        return _answer("vector-batches", budget, 0, 0.0, 0.0, NOTHING)
    made = calibrate_vector_batches(budget, size.users, size.dimension, returning=releases)
    source = f"{made.source}; g = {made.g[0]}, b = {made.b}"
    return _answer("vector-batches", budget, releases, made.noise_std[0], made.mu(), source)


def _noisy_argmin(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Choices of the least of many scores, each changed by at most 1; noise_std of one score.

    mu is that of the Gaussian mechanism which many such choices, taken for (e, 0)-private each, are
    like: sqrt(releases) e.
    """
    if integer("releases", releases, at_least=0) == 0:
        return _answer("noisy-argmin", budget, 0, 0.0, 0.0, NOTHING)
    each = largest_share(budget.epsilon, budget.delta, "randomized-response", releases)
    made = NoisyArgmin(2.0 / each)
    source = "argmins of scores plus Laplace noise, each (2 / scale, 0)-private, proven composition"
    std, mu = math.sqrt(2.0) * made.scale, math.sqrt(releases) * each
    return _answer("noisy-argmin", budget, releases, std, mu, source)


Mechanism = Callable[[Budget, int, Size], Calibrated]

BUILTIN: dict[str, Mechanism] = {
    "gaussian": _gaussian,
    "gaussian-tree": _tree("gaussian-tree", "exact"),
    "gaussian-tree-theorem": _tree("gaussian-tree-theorem", "theorem"),
    "gaussian-tree-published-code": _tree("gaussian-tree-published-code", "published-code"),
    "honaker": _release("honaker"),
    "toeplitz": _release("toeplitz"),
    "vector-sum": _vector_sum,
    "noisy-points": _points("noisy-points", False),
    "shuffled-points": _points("shuffled-points", True),
    "vector-batches": _vector_batches,
    "noisy-argmin": _noisy_argmin,
}


#: What each is, in a line.
SUMMARIES = {
    "gaussian": "sums of vectors of norm at most 1, a record in every release",
    "gaussian-tree": "both streams of a linear bandit through the binary tree",
    "gaussian-tree-theorem": "the same with the paper's constants (zhou-chowdhury-2024)",
    "gaussian-tree-published-code": "the same with the constants of the paper's code",
    "honaker": "the same streams, nodes of the tree weighted (Honaker 2015)",
    "toeplitz": "the same streams by a square-root Toeplitz factor",
    "vector-sum": "the same streams as shuffled bits (needs users and dimension)",
    "noisy-points": "every user's own Gaussian noise, nobody trusted",
    "shuffled-points": "the same through a shuffler (needs users)",
    "vector-batches": "one agent's batches as shuffled bits (needs users and dimension)",
    "noisy-argmin": "Laplace noise on scores of which only the least is told",
}


def summary(name: str) -> str:
    """What a mechanism is, in a line."""
    return SUMMARIES.get(name) or first_line(MECHANISMS[name])


def check_mechanism(name: str, found: Any) -> Mechanism:
    """What an entry point names, if it can be called."""
    if isinstance(found, type) or not callable(found):
        raise must_be("a function (budget, releases, size) -> Calibrated", found)
    mechanism: Mechanism = found
    return mechanism


MECHANISMS: Registry[Mechanism] = Registry(
    "fastfed.mechanisms", "mechanism", BUILTIN, check_mechanism
)


def calibrate(
    mechanism: str,
    budget: Budget,
    releases: int = 1,
    *,
    users: int | None = None,
    dimension: int | None = None,
) -> Calibrated:
    """Noise of the named mechanism (a key of MECHANISMS) for a budget and number of releases.

    users, dimension: for "vector-sum" and "vector-batches", the users of one leaf or batch and d;
    users also for "shuffled-points". noise_std is that of each bias entry of one node, noise
    vector, user's message ("noisy-points", "shuffled-points") or batch, in the units of the sums.
    For these last three, ``releases`` are the batches that one user may take part in. For
    "noisy-argmin" noise_std is that of one score of sensitivity 1, and ``releases`` are the choices
    that one record enters. (The exponential mechanism has no noise to state: it takes
    eta = epsilon, see `fastfed.privacy.shares.largest_share` for several choices.)
    """
    # A name of our own needs no look at what is installed.
    known = tuple(BUILTIN) if mechanism in BUILTIN else tuple(MECHANISMS)
    made = MECHANISMS[choice("mechanism", mechanism, known)]
    with MECHANISMS.guard(mechanism):
        found = made(budget, releases, Size(users, dimension))
    if not isinstance(found, Calibrated):
        raise InputError(f'mechanism "{mechanism}" must return a Calibrated, got {show(found)}')
    return found
