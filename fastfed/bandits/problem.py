"""Three things that systems and bounds take as input.

`ProblemSpec` describes the problem of a linear bandit system, `centred_norm` bounds theta* for
centred rewards, and `BoundSetting` holds the arguments of regret bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from fastfed._validate import InputError, array, integer, number, show
from fastfed.privacy.certificate import Condition
from fastfed.privacy.sensitivity import FEATURE_BOUND, constant_of


@dataclass(frozen=True)
class ProblemSpec:
    """Sizes of a problem, and guarantees about its data that are known before the first round.

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
        True if each reward equals its mean, as in pools that are read from files.
    reward_range : (float, float) or None, default (0, 1)
        An interval that contains every reward, or None if unknown.
    linear : bool, default True
        True if the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear_by_silo : bool, default False
        True if the expected reward has this form at each silo, where theta* may differ between
        silos. This suffices for silos that never synchronise, and follows from ``linear``.
    features_bounded : bool, default True
        True if ||x|| <= 1 before any clipping.
    intercept : float, optional
        kappa >= 1, if the last feature of every action is the constant 1 / sqrt(2 kappa) and the
        vector of the other features has norm at most 1 / sqrt 2. None without a constant feature.
    multiplicity : int, default 1
        The largest number of times that one record can be served.
    notes : tuple of str
        Caveats about the data, for the certificate.
    conditions : tuple of Condition
        Further conditions of every guarantee, and whether they hold.
    arms : bool, default False
        True if action a is the unit vector e_a in every round, so that V is diagonal, and its
        expected reward is one number in [0, 1].
    room : int, default 1
        A silo may learn from up to ``room * horizon`` records. Confidence radii assume ``horizon``
        records.
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
    arms: bool = False
    room: int = 1


# ---- Centred rewards: bounds on ||theta* - theta0|| ----------------------------------------------
#
# Feature vectors are x = (z, c) with a constant feature c that is set by the code. r0 is a public
# reward, the centre. The public vector theta0 = (0, r0 / c) has <x, theta0> = r0 for every x, so
# sums computed from y - r0 instead of y estimate theta* - theta0. The proofs are in
# docs/centred.md, the privacy of these sums in `fastfed.privacy.sensitivity`.


@dataclass(frozen=True)
class CentredNorm:
    """Bounds on Delta = theta* - theta0 for the direct confidence radius.

    Parameters
    ----------
    tau : float
        Bound on ||Delta||. In the direct radius gamma = lambda tau + E, where E bounds the error
        from noise.
    along : float
        A bound on N Delta, where N is the noise matrix in V: its covariance is at most
        o^2 (tau^2 I + along v v') for some unit vector v, see `NoiseDistribution.errors`. N has
        standard deviations of at most o off the diagonal and of at most sqrt(2) o on the diagonal,
        and no noise in the last diagonal entry.
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
    """Return bounds on theta* - theta0 that follow from the range of mean rewards.

    Parameters
    ----------
    kappa : float
        kappa >= 1. The constant feature is c = 1 / sqrt(2 kappa).
    centre : float
        r0, inside ``reward_range``.
    base_rates : (float, float), optional
        A declared interval inside ``reward_range`` that contains the mean reward at z = 0. The
        default is ``reward_range``, which adds no information.
    reward_range : (float, float), default (0, 1)
        An interval (low, high) that contains the mean reward <x, theta*> of every x = (z, c) with
        ||z|| <= ``feature_bound``, including x that never occur.
    feature_bound : float
        Largest ||z||_2, in (0, 1].

    Returns
    -------
    CentredNorm
        Some theta* attains the bound ``tau``, so ``tau`` cannot be smaller. ``along`` cannot be
        smaller if the same theta* has the largest covariance of N Delta.

        With rewards in [0, 1], feature_bound = 1 / sqrt 2 and no declared interval, tau =
        sqrt(2 kappa) max(r0, 1 - r0), and along = 0 for kappa >= 2. If the mean reward at z = 0 is
        declared to be r0, tau = sqrt(2) min(r0, 1 - r0) and along = tau^2.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    Let p be the mean reward at z = 0, and g half the range of mean rewards over the ball of z. Then
    Delta = (a, e) with ||a|| = g / feature_bound and e = (p - r0) / c. All mean rewards are in
    the range if and only if g <= min(p - low, high - p). These (p, g) form a triangle, which the
    declared interval of p cuts off. ||Delta||^2 and the top eigenvalue of the covariance of N Delta
    are convex in Delta and increase with g. So their maxima are at the upper corners of this
    region.
    """
    kappa = number("kappa", kappa, at_least=1)
    low, high = _interval("reward_range", reward_range)
    if not low < high:
        raise InputError(f"reward_range must have low < high, got {show(reward_range)}")
    centre = number("centre", centre, above=low, below=high)
    base_interval = (low, high) if base_rates is None else _interval("base_rates", base_rates)
    if not low <= base_interval[0] <= base_interval[1] <= high:
        raise InputError(
            f"base_rates must be inside reward_range ({low:g}, {high:g}), got {show(base_rates)}"
        )
    feature_bound = number("feature_bound", feature_bound, above=0, at_most=1)
    middle = low + 0.5 * (high - low)
    corners = {*base_interval, min(max(middle, base_interval[0]), base_interval[1])}
    squared_norms, top_eigenvalues = [], []
    for p in corners:
        a_squared = (min(p - low, high - p) / feature_bound) ** 2
        e_squared = ((p - centre) / constant_of(kappa)) ** 2
        squared_norms.append(a_squared + e_squared)
        top_eigenvalues.append(_top_eigenvalue(a_squared, e_squared))
    tau_squared = max(squared_norms)
    return CentredNorm(math.sqrt(tau_squared), max(max(top_eigenvalues) - tau_squared, 0.0))


def _top_eigenvalue(a_squared: float, e_squared: float) -> float:
    """Return the largest eigenvalue of the covariance of N Delta, for a vector Delta = (a, e).

    The arguments are ||a||^2 and e^2, where e is the last entry of Delta. N is a symmetric noise
    matrix with variance 1 off the diagonal, 2 on the diagonal and 0 in the last diagonal entry.
    N Delta has variance 2 ||a||^2 + e^2 in the direction of a, ||a||^2 in the last entry, and
    ||a||^2 + e^2 in all other directions. The covariance between the component in the direction of
    a and the last entry is ||a|| e.
    """
    return 0.5 * (
        3.0 * a_squared
        + e_squared
        + math.sqrt((a_squared + e_squared) ** 2 + 4.0 * a_squared * e_squared)
    )


def _interval(name: str, value: object) -> tuple[float, float]:
    """Return ``value`` as an interval (low, high), after a check that low <= high are finite.

    ``name`` is the name of the argument in the error message.
    """
    low, high = array(name, value, shape=(2,)).tolist()
    if low > high:
        raise InputError(f"{name} must be (low, high) with low <= high, got {show(value)}")
    return low, high


# ---- Arguments of the regret bounds --------------------------------------------------------------


class BoundSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the regret bounds of `bounds`, `linucb_bounds` and `robin_bounds`.

    Parameters
    ----------
    horizon : int
        T >= 1, the number of rounds of each silo.
    silos : int, default 1
        M >= 1, the number of silos.
    dimension : int, default 1
        d >= 1, the length of a feature vector.
    batch_size : int, default 1
        B in [1, T], the number of rounds in a batch.
    epsilon, delta : float, optional
        Privacy budget, epsilon > 0 and delta in (0, 1). Bounds without privacy do not need it.
    failure_probability : float, optional
        In (0, 1]. The papers write alpha, and huang-2023 beta. Some bounds do not need it.
    constant : float, default 1
        Factor > 0 on bounds that the paper states only as orders of growth.

    Raises
    ------
    InputError
        If a value is out of its range. A bound raises InputError if it needs a value that is not
        given.
    """

    horizon: int
    silos: int = 1
    dimension: int = 1
    batch_size: int = 1
    epsilon: float | None = None
    delta: float | None = None
    failure_probability: float | None = None
    constant: float = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("horizon", "silos", "dimension"):
            integer(name, getattr(self, name), at_least=1)
        integer("batch_size", self.batch_size, at_least=1, at_most=self.horizon)
        if self.epsilon is not None:
            number("epsilon", self.epsilon, above=0)
        if self.delta is not None:
            number("delta", self.delta, above=0, below=1)
        if self.failure_probability is not None:
            number("failure_probability", self.failure_probability, above=0, at_most=1)
        number("constant", self.constant, above=0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return T, M and d."""
        return self.horizon, self.silos, self.dimension

    def value(self, name: str) -> float:
        """Return the optional argument ``name`` as a float. Raise InputError if it is not given."""
        value = getattr(self, name)
        if value is None:
            raise InputError(f"this bound needs {name}")
        return float(value)
