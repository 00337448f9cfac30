"""The problem that a linear bandit system is built for; a public centre; checks of arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastfed._validate import InputError, array, integer, number, show
from fastfed.privacy.certificate import Condition
from fastfed.privacy.sensitivity import FEATURE_BOUND, constant_of


@dataclass(frozen=True)
class ProblemSpec:
    """Sizes and guarantees that a system may use before the first round: no data.

    Parameters
    ----------
    silos : int
        M, the number of silos.
    horizon : int
        T, rounds at each silo.
    dimension : int
        d, the length of a feature vector.
    reward_scale : float, default 0.5
        R, the sub-Gaussian scale of the reward noise.
    noise_free : bool, default False
        True if rewards are their own mean, as on pools read from files.
    reward_range : (float, float) or None, default (0, 1)
        An interval that holds every reward, or None.
    linear : bool, default True
        True if the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear_by_silo : bool, default False
        True if it is so at each silo with a theta* of its own, which is all that a silo alone
        needs; ``linear`` implies it.
    features_bounded : bool, default True
        True if ||x|| <= 1 before any clipping.
    intercept : float, optional
        kappa, where the last feature is the constant 1 / sqrt(2 kappa) in every action, and the
        others have a norm of at most 1 / sqrt 2.
    multiplicity : int, default 1
        The most times that one record can be served.
    notes : tuple of str
        Caveats about the data for readers of the certificate.
    conditions : tuple of Condition
        Further conditions of every guarantee, and whether they hold.
    room : int, default 1
        A silo may learn from ``room * horizon`` records. Radii count on ``horizon`` of them.
    """

    silos: int
    horizon: int
    dimension: int
    reward_scale: float = 0.5
    noise_free: bool = False
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    linear: bool = True
    features_bounded: bool = True
    intercept: float | None = None
    multiplicity: int = 1
    notes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    linear_by_silo: bool = False
    room: int = 1


# ---- How far theta* can be from the public theta0 of centred rewards -----------------------------
#
# Rows are x = (z, c) with a constant c that the code writes, and theta0 = (0, r0 / c), so that
# <x, theta0> = r0 for every allowed x. Statistics of y - r0 then estimate theta* - theta0. Proofs
# are in docs/centred.md, the statistics' privacy is in `fastfed.privacy.sensitivity`.


@dataclass(frozen=True)
class CentredNorm:
    """Bounds on Delta = theta* - theta0, as the direct radius uses them.

    Parameters
    ----------
    tau : float
        Bound on ||Delta||; gamma = lambda tau + E.
    along : float
        Where N has off-diagonal standard deviations of at most o, diagonal ones of at most
        sqrt(2) o and no noise in its last diagonal entry, the covariance of N Delta is at most
        o^2 (tau^2 I + along v v') for some unit vector v, see `NoiseDistribution.errors`.
    """

    tau: float
    along: float


def centred_norm(
    kappa: float = 1.0,
    centre: float = 0.5,
    base_rates: tuple[float, float] | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    feature_bound: float = FEATURE_BOUND,
) -> CentredNorm:
    """Largest ||theta* - theta0|| that the range of mean rewards allows, exactly.

    Parameters
    ----------
    kappa : float
        >= 1: the constant feature is c = 1 / sqrt(2 kappa).
    centre : float
        r0, inside reward_range.
    base_rates : (float, float), optional
        low <= high inside reward_range: a declared interval that holds the mean reward at z = 0.
        By default reward_range, which declares nothing; (r0, r0) declares the base rate.
    reward_range : (float, float), default (0, 1)
        low < high: an interval that holds the mean reward <x, theta*> of every x = (z, c) with
        ||z|| <= feature_bound, whether it occurs or not.
    feature_bound : float
        Largest ||z||_2, in (0, 1].

    Returns
    -------
    CentredNorm
        Both numbers are attained (``along`` except where tau and it belong to different theta*).
        With rewards in [0, 1] and feature_bound = 1 / sqrt 2, tau = sqrt(2 kappa) max(r0, 1 - r0)
        where nothing is declared, and along = 0 from kappa = 2 on; sqrt(2) min(r0, 1 - r0) and its
        square where the base rate is r0.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Let p be the mean reward at z = 0 and g half the range of means over the ball of z. Delta is
    (a, e) with ||a|| = g / feature_bound and e = (p - r0) / c, and means stay inside exactly where
    g <= min(p - low, high - p). ||Delta||^2 and the top eigenvalue of the covariance of N Delta are
    convex in Delta and increase in g, so their largest values over this triangle, cut to the
    declared p, are at its upper corners.
    """
    kappa = number("kappa", kappa, at_least=1)
    low, high = _interval("reward_range", reward_range)
    if not low < high:
        raise InputError(f"reward_range must have low < high, got {show(reward_range)}")
    centre = number("centre", centre, above=low, below=high)
    declared = (low, high) if base_rates is None else _interval("base_rates", base_rates)
    if not low <= declared[0] <= declared[1] <= high:
        raise InputError(
            f"base_rates must be inside reward_range ({low:g}, {high:g}), got {show(base_rates)}"
        )
    feature_bound = number("feature_bound", feature_bound, above=0, at_most=1)
    middle = low + 0.5 * (high - low)
    corners = {*declared, min(max(middle, declared[0]), declared[1])}
    squares, tops = [], []
    for p in corners:
        a = (min(p - low, high - p) / feature_bound) ** 2
        e = ((p - centre) / constant_of(kappa)) ** 2
        squares.append(a + e)
        tops.append(_top(a, e))
    tau = max(squares)
    return CentredNorm(math.sqrt(tau), max(max(tops) - tau, 0.0))


def _top(a: float, e: float) -> float:
    """Top eigenvalue of the covariance of N (a, e), o = 1, from ||a||^2 and e^2.

    N Delta has variance 2 ||a||^2 + e^2 along a, ||a||^2 in the last entry and ||a||^2 + e^2
    elsewhere; the first two have the covariance ||a|| e.
    """
    return 0.5 * (3.0 * a + e + math.sqrt((a + e) ** 2 + 4.0 * a * e))


def _interval(name: str, value: object) -> tuple[float, float]:
    """Check an interval: two finite numbers, the first no larger than the second."""
    low, high = array(name, value, shape=(2,)).tolist()
    if low > high:
        raise InputError(f"{name} must be (low, high) with low <= high, got {show(value)}")
    return low, high


# ---- Argument checks that the papers' bounds share -----------------------------------------------


def checked_sizes(horizon: int, silos: int, dimension: int) -> tuple[int, int, int]:
    """T, M and d, checked."""
    return (
        integer("horizon", horizon, at_least=1),
        integer("silos", silos, at_least=1),
        integer("dimension", dimension, at_least=1),
    )


def checked_batch(batch_size: int, horizon: int) -> int:
    """B, checked."""
    return integer("batch_size", batch_size, at_least=1, at_most=horizon)


def checked_budget(epsilon: float, delta: float) -> tuple[float, float]:
    """epsilon and delta, checked."""
    return number("epsilon", epsilon, above=0), number("delta", delta, above=0, below=1)


def checked_constant(constant: float) -> float:
    """The hidden constant, checked."""
    return number("constant", constant, above=0)
