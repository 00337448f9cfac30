"""The mechanisms by name. `calibrate` computes the noise of a named mechanism for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from fastfed._display import Displayed
from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError, choice, integer, number, show, with_example
from fastfed.privacy.accounting.gdp import mu_of
from fastfed.privacy.accounting.privacy_loss import largest_share
from fastfed.privacy.certificate import rounded_up
from fastfed.privacy.mechanisms.binomial_tree import calibrate_vector_sum
from fastfed.privacy.mechanisms.laplace import Laplace
from fastfed.privacy.mechanisms.local_gaussian import calibrate_local_gaussian
from fastfed.privacy.mechanisms.secure_sum import calibrate_secure_sum
from fastfed.privacy.mechanisms.sparse_vector import NoisyArgmin
from fastfed.privacy.mechanisms.vector_batches import calibrate_vector_batches
from fastfed.privacy.releases.gaussian_release import (
    GaussianRelease,
    calibrate_release,
    calibrate_tree,
)
from fastfed.privacy.releases.prefix_sums import optimal_factor
from fastfed.privacy.sensitivity import Budget, sum_sensitivity


class Calibrated(Displayed, msgspec.Struct, frozen=True):
    """The result of `calibrate`.

    Parameters
    ----------
    mechanism : str
        Name of the mechanism.
    epsilon, delta, relation : float, float, str
        The requested budget.
    releases : int
        Number of releases.
    noise_std : float
        Standard deviation of the noise; see `calibrate` for its meaning.
    mu : float
        GDP parameter of all releases together (sensitivity divided by noise).
    source : str
        The paper that states the noise rule (authors and year), and details.
    """

    mechanism: str
    epsilon: float
    delta: float
    relation: str
    releases: int
    noise_std: float
    mu: float
    source: str


class Size(msgspec.Struct, frozen=True):
    """Sizes that some mechanisms need in addition to the budget and the number of releases.

    Parameters
    ----------
    users : int, optional
        Number of users of one batch, over all silos. For "secure-sum", the number of silos.
    dimension : int, optional
        d, the length of a feature vector.
    sensitivity : float, optional
        The largest change of one release between neighbouring datasets, in the units of the
        release. None for the mechanism's default.
    """

    users: int | None = None
    dimension: int | None = None
    sensitivity: float | None = None


#: The number of records in all secure sums that `calibrate` assumes. It affects only the grid to
#: which records are rounded.
SECURE_POINTS = 10**6


def _result(
    name: str, budget: Budget, releases: int, std: float, mu: float, source: str
) -> Calibrated:
    """Return the `Calibrated` of mechanism ``name`` with this noise std and GDP parameter."""
    return Calibrated(
        name, budget.epsilon, budget.delta, budget.relation, releases, std, mu, source
    )


def _gaussian(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate Gaussian noise on sums of vectors of norm <= 1, with each record in every release.

    If ``size`` has a sensitivity, the noise is for statistics of this L2 sensitivity instead.
    """
    delta = number("delta", budget.delta, above=0, below=1)
    sensitivity = sum_sensitivity(budget.relation) if size.sensitivity is None else size.sensitivity
    total_sensitivity = math.sqrt(releases) * sensitivity
    noise_std = total_sensitivity / mu_of(budget.epsilon, delta)
    statistic = "sums of unit-norm vectors"
    if size.sensitivity is not None:
        statistic = f"statistics of L2 sensitivity {sensitivity:g}"
    source = f"exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of {statistic}"
    return _result(
        "gaussian",
        budget,
        releases,
        noise_std,
        total_sensitivity / noise_std,
        source,
    )


def _gaussian_release(name: str, release: GaussianRelease) -> Calibrated:
    """Return the `Calibrated` of a Gaussian release of the sums of x y and x x^T."""
    source = release.source
    if release.calibration != "exact":
        source += f"; exact epsilon {rounded_up(release.exact())}"
    return _result(name, release.budget, release.releases, release.noise_std, release.mu(), source)


def _tree(name: str, calibration: str) -> Callable[[Budget, int, Size], Calibrated]:
    """Return the function that calibrates the binary tree by the rule ``calibration``.

    ``name`` is the mechanism's name in results.
    """

    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        """Calibrate the noise of the binary tree. ``size`` is not used."""
        return _gaussian_release(name, calibrate_tree(budget, releases, calibration))

    return calibrated


def _release(name: str) -> Callable[[Budget, int, Size], Calibrated]:
    """Return the function that calibrates the release type ``name``, such as "toeplitz"."""

    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        """Calibrate the noise of prefix sums. ``size`` is not used."""
        return _gaussian_release(name, calibrate_release(name, budget, releases))

    return calibrated


def _vector_sum(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate shuffled vector sums of x y and x x^T at every node of the tree of releases."""
    if size.users is None or size.dimension is None:
        raise InputError("vector-sum needs users (of all silos in one batch) and dimension")
    integer("users", size.users, at_least=1)
    tree = calibrate_vector_sum(budget, releases, size.users, size.dimension)
    bits = ", ".join(
        f"g = {g}, b = {b} at level {j}"
        for j, (g, b) in enumerate(zip(tree.g, tree.b, strict=True))
    )
    source = f"{tree.source}; {bits}"
    std = tree.noise_stds["bias"]
    return _result("vector-sum", budget, tree.releases, std, tree.mu(), source)


def _user_noise(name: str, shuffled: bool) -> Callable[[Budget, int, Size], Calibrated]:
    """Return the function that calibrates the Gaussian noise that every user adds to a message.

    ``noise_std`` of the result is that of one message. ``shuffled`` says whether a shuffler mixes
    the messages of a batch.
    """

    def calibrated(budget: Budget, releases: int, size: Size) -> Calibrated:
        """Calibrate the noise of users who take part in up to ``releases`` batches."""
        if shuffled and size.users is None:
            raise InputError(f"{name} needs users (of one batch, whose messages are shuffled)")
        mechanism = calibrate_local_gaussian(
            budget, size.users or 1, returning=releases, shuffled=shuffled
        )
        return _result(
            name, budget, releases, mechanism.noise_std, mechanism.mu(), mechanism.source
        )

    return calibrated


def _vector_batches(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate an agent's vector sums for users who take part in up to ``releases`` batches.

    ``noise_std`` of the result is that of one batch.
    """
    if size.users is None or size.dimension is None:
        raise InputError("vector-batches needs users (of one batch) and dimension")
    batches = calibrate_vector_batches(budget, size.users, size.dimension, returning=releases)
    source = f"{batches.source}; g = {batches.g[0]}, b = {batches.b}"
    return _result("vector-batches", budget, releases, batches.noise_std[0], batches.mu(), source)


def _secure_sum(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate secure sums over ``size.users`` silos, a third of which collude."""
    if size.users is None or size.dimension is None:
        raise InputError("secure-sum needs users (here: the silos) and dimension")
    factor = optimal_factor(tuple(range(1, releases + 1)), releases)
    silos = integer("users", size.users, at_least=1)
    secure_sum = calibrate_secure_sum(
        budget, factor.encoder, silos, silos // 3, size.dimension, points=SECURE_POINTS
    )
    source = f"{secure_sum.source}; {secure_sum.colluders} colluders"
    return _result("secure-sum", budget, releases, secure_sum.stds[0], secure_sum.mu(), source)


def _noisy_argmin(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate choices of the smallest of many noisy scores.

    A record changes each score by at most 1, or ``size.sensitivity``. ``noise_std`` of the result
    is that of one score. Its ``mu`` is sqrt(releases) e, where each choice is (e, 0)-private: by
    the central limit theorem, many choices together resemble a mu-GDP mechanism.
    """
    epsilon_per_choice = largest_share(
        budget.epsilon, budget.delta, "randomized-response", releases
    )
    argmin = NoisyArgmin(2.0 * _sensitivity(size) / epsilon_per_choice)
    source = "argmins of scores plus Laplace noise, each (2 / scale, 0)-private, proven composition"
    std, mu = math.sqrt(2.0) * argmin.scale, math.sqrt(releases) * epsilon_per_choice
    return _result("noisy-argmin", budget, releases, std, mu, source + _describe_sensitivity(size))


def _laplace(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate Laplace noise on statistics of L1 sensitivity 1, or ``size.sensitivity``.

    ``mu`` of the result is computed as in `_noisy_argmin`.
    """
    epsilon_per_release = largest_share(budget.epsilon, budget.delta, "laplace", releases)
    laplace = Laplace(_sensitivity(size), epsilon_per_release)
    source = "Laplace noise of scale sensitivity / epsilon', proven composition of privacy losses"
    mu = math.sqrt(releases) * epsilon_per_release
    return _result(
        "laplace", budget, releases, laplace.noise_std, mu, source + _describe_sensitivity(size)
    )


def _exponential(budget: Budget, releases: int, size: Size) -> Calibrated:
    """Calibrate choices with probability proportional to exp(-eta cost / 2).

    ``noise_std`` of the result is that of Gumbel noise on a cost, because choosing the smallest
    cost plus Gumbel noise gives these probabilities. ``mu`` is computed as in `_noisy_argmin`.
    """
    eta = largest_share(budget.epsilon, budget.delta, "bounded-range", releases)
    source = (
        f"exponential mechanism of eta = {eta:.6g} a choice, bounded range eta, proven composition"
    )
    std = 2.0 * _sensitivity(size) / eta * math.pi / math.sqrt(6.0)
    mu = math.sqrt(releases) * eta
    return _result("exponential", budget, releases, std, mu, source + _describe_sensitivity(size))


def _sensitivity(size: Size) -> float:
    """Return the requested sensitivity of a statistic or score, by default 1."""
    return 1.0 if size.sensitivity is None else size.sensitivity


def _describe_sensitivity(size: Size) -> str:
    """Return the text that `Calibrated.source` adds for a requested sensitivity, or ""."""
    return "" if size.sensitivity is None else f"; sensitivity {size.sensitivity:g}"


Mechanism = Callable[[Budget, int, Size], Calibrated]

BUILTIN: dict[str, Mechanism] = {
    "gaussian": _gaussian,
    "gaussian-tree": _tree("gaussian-tree", "exact"),
    "gaussian-tree-theorem": _tree("gaussian-tree-theorem", "theorem"),
    "gaussian-tree-published-code": _tree("gaussian-tree-published-code", "published-code"),
    "honaker": _release("honaker"),
    "toeplitz": _release("toeplitz"),
    "vector-sum": _vector_sum,
    "noisy-points": _user_noise("noisy-points", False),
    "shuffled-points": _user_noise("shuffled-points", True),
    "vector-batches": _vector_batches,
    "secure-sum": _secure_sum,
    "noisy-argmin": _noisy_argmin,
    "laplace": _laplace,
    "exponential": _exponential,
}

#: Mechanisms that accept a sensitivity. For other mechanisms it follows from the bounds on features
#: and rewards.
SCALED = ("gaussian", "noisy-argmin", "laplace", "exponential")


#: A one-line description of each built-in mechanism.
SUMMARIES = {
    "gaussian": "sums of vectors of norm at most 1, a record in every release",
    "gaussian-tree": "both streams of a linear bandit through the binary tree",
    "gaussian-tree-theorem": "gaussian-tree with the paper's constants (zhou-chowdhury-2024)",
    "gaussian-tree-published-code": "gaussian-tree with the constants of the paper's code",
    "honaker": "both streams through a tree with weighted nodes (Honaker 2015)",
    "toeplitz": "both streams through a square-root Toeplitz factor",
    "vector-sum": "both streams as shuffled bits (needs users and dimension)",
    "noisy-points": "Gaussian noise that every user adds; nobody is trusted",
    "shuffled-points": "noisy-points with a trusted shuffler (needs users)",
    "vector-batches": "one agent's batches as shuffled bits (needs users and dimension)",
    "secure-sum": "masked sums over silos, a third of which collude (needs users: silos)",
    "noisy-argmin": "Laplace noise on scores, of which only the smallest is revealed",
    "laplace": "Laplace noise on every entry of a statistic",
    "exponential": "choices by the exponential mechanism, as Gumbel noise on costs",
}

_NODE = "of each bias entry of one node, in the units of the sums"
_USER_RECORD = "user: one context with its reward"
#: For each built-in mechanism, two texts: the record in which neighbouring datasets differ, and the
#: quantity whose standard deviation is ``noise_std``.
MEANINGS = {
    **dict.fromkeys(
        ("gaussian-tree", "gaussian-tree-theorem", "gaussian-tree-published-code"),
        (_USER_RECORD, _NODE),
    ),
    "gaussian": ("record: one vector of the sum", "of each entry, in the units of the sum"),
    "honaker": (_USER_RECORD, _NODE),
    "toeplitz": (_USER_RECORD, "of each bias entry of one noise vector, in the units of the sums"),
    "vector-sum": (_USER_RECORD, _NODE),
    "noisy-points": (_USER_RECORD, "of each bias entry of one user's message"),
    "shuffled-points": (_USER_RECORD, "of each bias entry of one user's message"),
    "vector-batches": (_USER_RECORD, "of each bias entry of one batch, in the units of its sum"),
    "secure-sum": (_USER_RECORD, "of each bias entry of one release, all shares together"),
    "noisy-argmin": ("record: changes each score by the sensitivity", "of one score"),
    "laplace": ("record: changes the statistic by the sensitivity, in L1", "of each entry"),
    "exponential": (
        "record: changes each cost by the sensitivity",
        "of the Gumbel noise on a cost",
    ),
}


class ListedMechanism(msgspec.Struct, frozen=True):
    """A mechanism as `fastfed calibrate list` prints it.

    Parameters
    ----------
    name, summary : str
        Name, and one line about it.
    unit : str
        The record in which neighbours differ.
    noise_std : str
        The quantity whose standard deviation is noise_std.
    needs : tuple of str
        Arguments that it needs besides budget and releases.
    sensitivity : bool
        True if it accepts a sensitivity.
    default_sensitivity : str or None
        The default sensitivity, if it is one number.
    """

    name: str
    summary: str
    unit: str
    noise_std: str
    needs: tuple[str, ...]
    sensitivity: bool
    default_sensitivity: str | None


#: Arguments that a mechanism needs besides budget and releases.
NEEDS = {
    "vector-sum": ("users", "dimension"),
    "vector-batches": ("users", "dimension"),
    "secure-sum": ("users", "dimension"),
    "shuffled-points": ("users",),
}


def listed() -> list[ListedMechanism]:
    """Return a description of every mechanism that can be calibrated.

    Mechanisms of installed packages are included, unless they cannot be loaded.
    """
    mechanisms = []
    problems = MECHANISMS.problems()
    for name in MECHANISMS:
        if name in problems and name not in BUILTIN:
            continue
        unit, std_meaning = MEANINGS.get(name, ("as its package says", "as its package says"))
        default_sensitivity = None
        if name in SCALED:
            default_sensitivity = "2 under replace, 1 under zero-out" if name == "gaussian" else "1"
        mechanisms.append(
            ListedMechanism(
                name,
                summary(name),
                unit,
                std_meaning,
                NEEDS.get(name, ()),
                name in SCALED,
                default_sensitivity,
            )
        )
    return mechanisms


def summary(name: str) -> str:
    """Return a description of the mechanism ``name`` in one line."""
    return SUMMARIES.get(name) or first_line(MECHANISMS[name])


def check_mechanism(name: str, entry_point: Any) -> Mechanism:
    """Return the entry point of a package's mechanism. Raise an error unless it is a function."""
    if isinstance(entry_point, type) or not callable(entry_point):
        raise must_be("a function (budget, releases, size) -> Calibrated", entry_point)
    mechanism: Mechanism = entry_point
    return mechanism


MECHANISMS: Registry[Mechanism] = Registry(
    "fastfed.mechanisms", "mechanism", BUILTIN, check_mechanism
)


@with_example('fastfed.calibrate("gaussian-tree", fastfed.Budget(1.0, 1e-6), releases=400)')
def calibrate(
    mechanism: str,
    budget: Budget,
    releases: int = 1,
    *,
    users: int | None = None,
    dimension: int | None = None,
    sensitivity: float | None = None,
) -> Calibrated:
    """Calibrate the named mechanism to a budget and a number of releases.

    Parameters
    ----------
    mechanism : str
        A key of MECHANISMS.
    budget : Budget
        The budget.
    releases : int
        Number of releases, >= 1. For "noisy-points", "shuffled-points" and "vector-batches": the
        largest number of batches of one user. For "noisy-argmin", "laplace" and "exponential": the
        number of choices or statistics that one record enters.
    users, dimension : int, optional
        For "vector-sum" and "vector-batches", the number of users of one batch, over all silos, and
        the length d of a feature vector. For "secure-sum", the number of silos, and d. For
        "shuffled-points", the number of users of one batch only.
    sensitivity : float, optional
        > 0, the largest change of one release between neighbours, for the mechanisms in SCALED: in
        L2 norm for "gaussian" (default 2 under replace, 1 under zero-out: sums of vectors of norm
        at most 1), in L1 norm for "laplace", and of each score or cost for the others (default 1).
        The scale of the noise is proportional to it. For other mechanisms it follows from features
        of norm at most 1 and rewards in [0, 1].

    Returns
    -------
    Calibrated
        noise_std is the standard deviation of the noise, in the units of the sums. Depending on the
        mechanism, it is that of each bias entry of one node, noise vector, release, user's message
        ("noisy-points", "shuffled-points") or batch. For "noisy-argmin", "laplace" and
        "exponential" it is that of one score, entry or cost.

    Raises
    ------
    InputError
        For an unknown mechanism, values out of range, missing sizes, a sensitivity that the
        mechanism does not accept, and the units "silo" and "reward" without a sensitivity.

    Examples
    --------
    >>> from fastfed.privacy import Budget, calibrate
    >>> round(calibrate("gaussian-tree", Budget(1.0, 1e-6), 400).noise_std, 2)
    25.35
    """
    if not isinstance(budget, Budget):
        raise InputError(
            f"budget must be a Budget(epsilon, delta), got {show(budget)}: write "
            "fastfed.Budget(1.0, 1e-6)"
        )
    # Do not load installed packages for a built-in name.
    names = tuple(BUILTIN) if mechanism in BUILTIN else tuple(MECHANISMS)
    calibrate_mechanism = MECHANISMS[choice("mechanism", mechanism, names)]
    if sensitivity is not None:
        sensitivity = number("sensitivity", sensitivity, above=0.0, at_least=1e-50, at_most=1e50)
        if mechanism not in SCALED:
            raise InputError(
                f"sensitivity is an option of {', '.join(SCALED)} only; {mechanism} has a fixed "
                f"sensitivity, got {sensitivity:g}"
            )
    elif mechanism in SCALED and budget.unit not in ("user", "item"):
        raise InputError(
            f'unit must be "user" or "item" (one record), got "{budget.unit}": for this unit, set '
            f"sensitivity to the largest change of a release by one {budget.unit}"
        )
    if users is not None:
        users = integer("users", users, at_least=1)
    if dimension is not None:
        dimension = integer("dimension", dimension, at_least=1)
    # A system that never synchronises has no release, and calibrates without this function.
    releases = integer("releases", releases, at_least=1)
    with MECHANISMS.guard(mechanism):
        result = calibrate_mechanism(budget, releases, Size(users, dimension, sensitivity))
    if not isinstance(result, Calibrated):
        raise InputError(f'mechanism "{mechanism}" must return a Calibrated, got {show(result)}')
    return result
