"""The winsorized mean of vectors, which is private if one vector is replaced by any vector.

Vectors are rotated at random. Then each coordinate is released as a private winsorized mean of
numbers (`fastfed.privacy.mechanisms.laplace`). If the vectors are in a small ball, the noise is
proportional to a few radii of this ball, instead of to the size of the whole space. Source:
huang-2023, Algorithm 4, after Levy et al. 2021. Two corrections to the paper: the inverse rotation
is D H^T / sqrt(d), with D applied last, and dimensions are padded to a power of two.
"""

from __future__ import annotations

import math
import os

import msgspec
import numpy as np

from fastfed._kernels import rng
from fastfed._random import BIAS_NOISE, check_seed
from fastfed._roots import brentq
from fastfed._sampling import Laplaces, Uniforms
from fastfed._validate import InputError, array, choice, integer, number, show, with_example
from fastfed.privacy.accounting.gdp import advanced
from fastfed.privacy.accounting.privacy_loss import Part, composed_epsilon
from fastfed.privacy.certificate import (
    EXACT_NOISE_CAVEAT,
    REALS_CAVEAT,
    SIMULATION_CAVEAT,
    Certificate,
    Condition,
    Guarantee,
    epsilon_claim,
    rounded_up,
)
from fastfed.privacy.mechanisms.laplace import (
    bin_count,
    exact_means,
    finite,
    laplace_scale,
    seeded_mean,
)
from fastfed.privacy.sensitivity import Budget

CALIBRATIONS = ("exact", "printed")

_SOURCE = {
    "exact": "huang-2023, Algorithms 2 to 4, with the largest epsilon' whose proven composition "
    "(bounded-range and Laplace privacy losses) gives the budget",
    "printed": "huang-2023, Algorithms 1 and 4: two levels of advanced composition",
}
# ---- rotated vectors -----------------------------------------------------------------------------


def padded_dimension(dimension: int) -> int:
    """Return the smallest power of two that is at least ``dimension``."""
    return 1 << (integer("dimension", dimension, at_least=1) - 1).bit_length()


def hadamard(values: np.ndarray) -> np.ndarray:
    """Return each vector along the last axis multiplied by the Hadamard matrix H.

    The length n must be a power of two. H is symmetric, has the entries -1 and 1, and H H is n
    times the identity. For h = 1, 2, 4, ..., each pair of entries at distance h is replaced by its
    sum and its difference. This fixes the order of additions, and thus all bits of the result.
    """
    product = np.array(values, dtype=np.float64, order="C")
    n, h = product.shape[-1], 1
    while h < n:
        pairs = product.reshape(*product.shape[:-1], n // (2 * h), 2, h)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        total, difference = first + second, first - second
        pairs[..., 0, :], pairs[..., 1, :] = total, difference
        h *= 2
    return product


class WinsorizedMean(msgspec.Struct, frozen=True, kw_only=True):
    """The private winsorized mean of one vector per silo, which is released several times.

    Parameters
    ----------
    dimension, padded : int
        d, and d2, the smallest power of two >= d.
    silos : int
        M, the number of silos; each has one vector.
    radius : float
        r, the radius of a ball that is expected to contain all vectors. A wrong guess costs
        accuracy but no privacy. It must not depend on the vectors. (`at` changes it for one
        release.)
    bound : float
        B. The means of rotated coordinates are searched in [-B sqrt(d2), B sqrt(d2)]. This interval
        contains all rotated coordinates if all coordinates are in [-B, B]. For vectors of L2 norm
        <= R, B = R / sqrt(d2) is enough.
    concentration_failure : float
        beta, the probability with which the rotation may fail to spread a vector evenly over the
        coordinates.
    epsilon_coordinate : float
        epsilon', the budget of one coordinate of one release: half for the choice of the range, and
        half for the noise.
    releases : int
        Number of released means.
    calibration : {"exact", "printed"}
        The rule that chose epsilon'.
    budget : Budget
        The requested budget.
    source : str
        Authors and year of the paper that states the noise rule.
    remark : str
        A remark on the rule, for the certificate.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one silo's vectors are replaced in all releases, all means together are
    (exact(), budget.delta)-private, even if later vectors depend on earlier means. Each coordinate
    of each release is an exponential mechanism with eta = epsilon'/2 and a Laplace mechanism of
    epsilon'/2, composed in `fastfed.privacy.accounting.privacy_loss`. Source: huang-2023, Algorithm
    4; Levy et al. 2021.
    """

    dimension: int
    padded: int
    silos: int
    radius: float
    bound: float
    concentration_failure: float
    epsilon_coordinate: float
    releases: int
    calibration: str
    budget: Budget
    source: str
    remark: str = ""

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        d2 = padded_dimension(self.dimension)
        if self.padded != d2:
            raise InputError(
                f"padded must be {d2} for dimension {self.dimension}, got {show(self.padded)}"
            )
        integer("silos", self.silos, at_least=1)
        number("radius", self.radius, above=0)
        number("bound", self.bound, above=0)
        number("concentration_failure", self.concentration_failure, above=0, below=1)
        number("epsilon_coordinate", self.epsilon_coordinate, above=0)
        integer("releases", self.releases, at_least=0)
        choice("calibration", self.calibration, CALIBRATIONS)

    @property
    def rotated_bound(self) -> float:
        """Return B sqrt(d2), the bound on a rotated coordinate."""
        return self.bound * math.sqrt(self.padded)

    @property
    def rotated_radius(self) -> float:
        """Return r', the radius of an interval that is expected to contain a rotated coordinate.

        The interval is expected to contain this coordinate of all vectors. r' is
        10 r sqrt(ln(d2 M / beta) / d2), but at most `rotated_bound`. Here r is ``radius``, d2 is
        ``padded``, M is ``silos``, and beta is ``concentration_failure``.
        """
        d2 = self.padded
        log = math.log(d2) + math.log(self.silos) - math.log(self.concentration_failure)
        return min(10.0 * self.radius * math.sqrt(log / d2), self.rotated_bound)

    @property
    def bins(self) -> int:
        """Return the number of intervals among which `private_range` chooses for a coordinate."""
        return bin_count(self.rotated_radius, self.rotated_bound)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return {"mean": the std of the Laplace noise in each coordinate of a mean}.

        The std is sqrt(2) 8 r' / (M epsilon'), where r' is `rotated_radius`, M is ``silos``, and
        epsilon' is ``epsilon_coordinate``. The inverse rotation does not change this std.
        """
        scale = laplace_scale(self.silos, self.epsilon_coordinate, self.rotated_radius)
        return {"mean": math.sqrt(2.0) * scale}

    @property
    def feasible(self) -> bool:
        """Return True if the privately chosen range of a coordinate contains the vectors reliably.

        With too few silos, the chosen range is often far from the vectors. With a single bin there
        is nothing to choose: the range is [-rotated_bound, rotated_bound], and the noise is
        proportional to it.
        """
        enough_silos = self.silos * self.epsilon_coordinate / 8.0 > math.log(10.0 * self.bins)
        return enough_silos or self.bins == 1

    def at(self, radius: float) -> WinsorizedMean:
        """Return the mechanism with a different ``radius``. Its privacy is the same."""
        return msgspec.structs.replace(self, radius=radius)

    def parts(self) -> list[Part]:
        """Return the mechanisms of all releases as (kind, epsilon, count), for `composed_epsilon`.

        Half of epsilon' is for the choice of a coordinate's range, and half for its noise.
        """
        half_epsilon, count = self.epsilon_coordinate / 2.0, self.releases * self.padded
        return [("bounded-range", half_epsilon, count), ("laplace", half_epsilon, count)]

    def exact(self, delta: float | None = None) -> float:
        """Compute the proven epsilon of all releases, at delta (default: the budget's)."""
        return composed_epsilon(self.parts(), self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        note = f"computed; {self.remark}" if self.remark else "computed"
        times = "once" if self.releases == 1 else f"{self.releases} times"
        return [
            Condition(f"a mean is released at most {times}", True),
            Condition("everyone gives one vector to each mean; their number is public", True),
            Condition("radius, bound and signs do not depend on the vectors", True),
            epsilon_claim(self.budget, self.exact(), "these means", "replacement", note=note),
        ]

    def apply(
        self, vectors: object, signs: object, range_uniforms: object, laplace_uniforms: object
    ) -> np.ndarray:
        """Return the private mean (d,) of vectors (M, d), computed from given uniforms.

        A vector that is not finite counts as zero. d2 is ``padded``. ``signs`` (d2,) are -1 or 1,
        drawn at random and independent of the vectors; they may be public. ``range_uniforms`` and
        ``laplace_uniforms`` (d2,) are in (0, 1). They must be secret, and must not be used again.

        Raises
        ------
        InputError
            For wrong shapes and values.
        """
        x = array("vectors", vectors, shape=(self.silos, self.dimension), finite=False)
        d2 = self.padded
        sign_array = array("signs", signs, shape=(d2,))
        if not (np.abs(sign_array) == 1.0).all():
            raise InputError("signs must be -1 or 1 each")
        uniforms = []
        for name, uniforms_argument in (
            ("range_uniforms", range_uniforms),
            ("laplace_uniforms", laplace_uniforms),
        ):
            u = array(name, uniforms_argument, shape=(d2,))
            if not ((u > 0.0) & (u < 1.0)).all():
                raise InputError(f"{name} must be > 0 and < 1, got {u.min()} to {u.max()}")
            uniforms.append(u)

        rotated = self._rotate(x, sign_array)
        radius, bound = self.rotated_radius, self.rotated_bound
        means = [
            seeded_mean(sample, self.epsilon_coordinate, radius, bound, float(u), float(noise))
            for sample, u, noise in zip(rotated, *uniforms, strict=True)
        ]
        return self._rotate_back(np.array(means), sign_array)

    def release(
        self, vectors: object, signs: object, ranges: Uniforms, noises: Laplaces
    ) -> np.ndarray:
        """Return the private mean (d,) of vectors (M, d), computed by exact sampling.

        ``signs`` (d2,) are as in `apply`, where d2 is ``padded``. ``ranges`` and ``noises`` are
        exact draws (d2,) for the choices of ranges and for the Laplace noise. The guarantee holds
        exactly for this release.
        """
        x = array("vectors", vectors, shape=(self.silos, self.dimension), finite=False)
        sign_array = array("signs", signs, shape=(self.padded,))
        epsilon_prime, radius, bound = (
            self.epsilon_coordinate,
            self.rotated_radius,
            self.rotated_bound,
        )
        means = exact_means(
            self._rotate(x, sign_array), epsilon_prime, radius, bound, ranges, noises
        )
        return self._rotate_back(means, sign_array)

    def _rotate(self, x: np.ndarray, sign_array: np.ndarray) -> np.ndarray:
        """Return the rotated vectors H D x / sqrt(d2), shape (d2, M), after padding to length d2.

        x has shape (M, d), and D is the diagonal matrix of the signs. A vector that is not finite
        counts as zero.
        """
        d2 = self.padded
        rows = np.zeros((self.silos, d2))
        rows[:, : self.dimension] = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
        # Sums of huge numbers may overflow; the values that are then not finite count as 0.
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = finite(hadamard(rows * sign_array) / math.sqrt(d2))
        return np.ascontiguousarray(rotated.T)

    def _rotate_back(self, means: np.ndarray, sign_array: np.ndarray) -> np.ndarray:
        """Return the first d coordinates of means (d2,) after the inverse rotation."""
        rotated_back: np.ndarray = hadamard(means) / math.sqrt(self.padded) * sign_array
        return rotated_back[: self.dimension]


def calibrate_winsorized(
    budget: Budget,
    *,
    silos: int,
    dimension: int,
    radius: float,
    bound: float,
    releases: int,
    concentration_failure: float,
    calibration: str = "exact",
    phases: int | None = None,
) -> WinsorizedMean:
    """Calibrate the winsorized mean, released ``releases`` times, to a budget.

    Parameters
    ----------
    budget : Budget
        The unit is the party with one vector: "user" or "silo". The account is for the replacement
        of a vector by any other. So it also covers the relation "zero-out".
    silos, dimension, radius, bound, concentration_failure
        See `WinsorizedMean`. Of these, only the dimension affects epsilon', the budget of one
        coordinate.
    releases : int
        Number of releases, >= 0.
    calibration : {"exact", "printed"}
        "exact": the largest epsilon' whose proven composition over releases x d2 coordinates meets
        the budget, where d2 is the smallest power of two >= dimension. "printed":
        eps0 = epsilon / sqrt(6 P ln(2/delta)) and delta0 = delta / (2 P) for each of P = phases,
        and epsilon' = eps0 / sqrt(6 d2 ln(1/delta0)) for each coordinate (huang-2023, Algorithms 1
        and 4). "printed" mostly uses far less than the budget.
    phases : int, optional
        P; default: releases.

    Returns
    -------
    WinsorizedMean
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a different unit, for phases < releases, and for delta = 0 with calibration "printed".
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("unit", budget.unit, ("user", "silo"))
    releases = integer("releases", releases, at_least=0)
    # Without releases epsilon is 0. Use the rules for one release, so that epsilon' is defined.
    counted_releases = max(releases, 1)
    phases = (
        counted_releases if phases is None else integer("phases", phases, at_least=counted_releases)
    )
    d2 = padded_dimension(dimension)
    remark = ""
    if calibration == "exact":
        epsilon_coordinate = _largest_epsilon_coordinate(budget, counted_releases * d2)
    else:
        delta = number("delta", budget.delta, above=0, below=1)
        eps0 = budget.epsilon / math.sqrt(6.0 * phases * (math.log(2.0) - math.log(delta)))
        log_inverse_delta0 = math.log(2.0 * phases) - math.log(delta)
        epsilon_coordinate = eps0 / math.sqrt(6.0 * d2 * log_inverse_delta0)
        remark = _printed_remark(budget, eps0, phases)
    return WinsorizedMean(
        dimension=dimension,
        padded=d2,
        silos=silos,
        radius=radius,
        bound=bound,
        concentration_failure=concentration_failure,
        epsilon_coordinate=epsilon_coordinate,
        releases=releases,
        calibration=calibration,
        budget=budget,
        source=_SOURCE[calibration],
        remark=remark,
    )


def printed_composition(budget: Budget, eps0: float, phases: int) -> float:
    """Return the epsilon of P = ``phases`` phases of epsilon eps0 each, by the rule of huang-2023.

    It is eps0 sqrt(2 P ln(2/delta)) + P eps0 (exp(eps0) - 1), by Lemma G.1 of the paper, with half
    of the budget's delta for the composition. It may exceed the budget, because Corollary G.2 of
    the paper needs a small enough epsilon, and its proof uses exp(eps0) - 1 < eps0, which is false.
    """
    half_delta = number("delta", budget.delta, above=0, below=1) / 2.0
    if eps0 > 300.0:
        return math.inf
    return advanced(Guarantee(eps0, half_delta / phases), phases, half_delta).epsilon


def _printed_remark(budget: Budget, eps0: float, phases: int) -> str:
    """Return a text that states whether the composition printed in the paper meets the budget."""
    total = printed_composition(budget, eps0, phases)
    if total > 1e6:
        return "the printed composition says nothing of an epsilon this large"
    comparison = "within" if total <= budget.epsilon else "not within"
    plural = "phase" if phases == 1 else "phases"
    return (
        f"the printed composition of {phases} {plural} gives {rounded_up(total)}, {comparison} the "
        "budget"
    )


def _largest_epsilon_coordinate(budget: Budget, coordinates: int) -> float:
    """Return the largest epsilon' of a coordinate such that all coordinates meet the budget.

    ``coordinates`` is the number of coordinates in all releases together.
    """

    def excess(epsilon_coordinate: float) -> float:
        """Return the epsilon of all coordinates minus the budget's epsilon."""
        parts: list[Part] = [
            (kind, epsilon_coordinate / 2.0, coordinates) for kind in ("bounded-range", "laplace")
        ]
        return composed_epsilon(parts, budget.delta) - budget.epsilon

    # By basic composition, this value is within the budget: search for a larger one from there.
    low = budget.epsilon / coordinates
    if budget.delta > 0.0:
        high = 2.0 * low
        while excess(high) <= 0.0:
            low, high = high, 2.0 * high
        low = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-7)) if excess(low) < 0.0 else low
    # Move from the root to a value whose proven epsilon is at most the budget's.
    while excess(low) > 0.0:
        low *= 1.0 - 1e-7
    return low


# ---- the public function -------------------------------------------------------------------------


@with_example("winsorized_mean(vectors, epsilon=1.0, delta=1e-6, radius=0.1)")
def winsorized_mean(
    vectors: object,
    *,
    epsilon: float,
    delta: float,
    radius: float,
    bound: float = 1.0,
    concentration_failure: float = 0.01,
    seed: int | None = None,
    calibration: str = "exact",
) -> tuple[np.ndarray, Certificate]:
    """Return a private mean of vectors, one of each user, and its certificate.

    The mean is accurate if all vectors are in a ball of radius ``radius``, anywhere inside the ball
    of radius ``bound``: the noise is proportional to ``radius``. With too few users, the small ball
    cannot be found, and the mean may be far off. The certificate then has a caveat.

    Parameters
    ----------
    vectors : array_like (n, d)
        One row per user. Rows are clipped to L2 norm <= bound; rows that are not finite count as
        zero.
    epsilon : float
        > 0.
    delta : float
        In [0, 1); > 0 for "printed".
    radius, bound : float
        > 0, in the units of the vectors, chosen without looking at them.
    concentration_failure : float
        In (0, 1), the probability that the mean may be far off although all vectors are in the
        small ball. Smaller values add slightly more noise.
    seed : int, optional
        For simulations: whoever knows the seed can remove the noise. By default random bits come
        from the operating system.
    calibration : {"exact", "printed"}
        The rule for the noise: the least noise that meets the budget, or that of the paper. See
        `calibrate_winsorized`.

    Returns
    -------
    mean : ndarray (d,)
        The private mean, in the units of the vectors.
    certificate : Certificate
        The certificate of this mean.

    Raises
    ------
    InputError
        For values out of range and for wrong shapes, but never because of the vectors' values.

    Notes
    -----
    Guarantee: (epsilon, delta), unit "user" (one row replaced by any other), relation "replace",
    for observers of the mean; whoever computes it is trusted. n is public. Source: huang-2023,
    Algorithm 4; Levy et al. 2021.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(1).normal([0.3, -0.2, 0.1], 0.01, size=(5000, 3))
    >>> mean, certificate = winsorized_mean(x, epsilon=1.0, delta=1e-6, radius=0.06, seed=1)
    >>> bool(np.linalg.norm(mean - [0.3, -0.2, 0.1]) < 0.02)
    True
    """
    x = array("vectors", vectors, shape=(None, None), finite=False)
    if 0 in x.shape:
        raise InputError(f"vectors must be at least one row and one column, got shape {x.shape}")
    n, d = x.shape
    d2 = padded_dimension(d)
    vector_bound = number("bound", bound, above=0)
    key = None if seed is None else check_seed(seed)
    mechanism = calibrate_winsorized(
        Budget(epsilon, delta),
        silos=n,
        dimension=d,
        radius=radius,
        bound=vector_bound / math.sqrt(d2),  # a rotation keeps vectors within their ball
        releases=1,
        concentration_failure=concentration_failure,
        calibration=calibration,
    )
    rows = _clip_rows(x, vector_bound)
    signs = np.where(_uniforms(d2, key, 0) < 0.5, -1.0, 1.0)
    if key is None:
        mean = mechanism.release(rows, signs, Uniforms(d2), Laplaces(d2))
    else:
        mean = mechanism.apply(rows, signs, *(_uniforms(d2, key, i) for i in (1, 2)))
    return mean, _certificate(mechanism, seeded=key is not None)


def _certificate(mechanism: WinsorizedMean, seeded: bool) -> Certificate:
    """Return the certificate of one mean. ``seeded`` is true if its random bits are from a seed."""
    budget = mechanism.budget
    caveats = [REALS_CAVEAT if seeded else EXACT_NOISE_CAVEAT]
    if not mechanism.feasible:
        caveats.append(
            f"accuracy: {mechanism.silos} users are too few for this budget and radius, so the "
            "mean may be far off"
        )
    if seeded:
        caveats.append(SIMULATION_CAVEAT)
    return Certificate(
        unit="user",
        relation="replace",
        model="central: whoever computes the mean is trusted, its readers are not",
        claimed=Guarantee(budget.epsilon, budget.delta),
        exact=Guarantee(mechanism.exact(), budget.delta),
        status="proven",
        noise_std=mechanism.noise_stds,
        conditions=(
            Condition("every user gives one row only (taken on trust)", True),
            *mechanism.conditions(),
        ),
        caveats=tuple(caveats),
        source=mechanism.source,
    )


def _clip_rows(x: np.ndarray, bound: float) -> np.ndarray:
    """Return the rows of x clipped to norm <= ``bound``. Rows that are not finite become zero."""
    rows = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
    # Divide by the largest entry first, since squares of huge numbers would overflow.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest > 0.0, largest, 1.0)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        is_long = largest * norms > bound
    on_ball = scaled * (bound / np.where(norms > 0.0, norms, 1.0))
    result: np.ndarray = np.where(is_long, on_ball, rows)
    return result


def _uniforms(count: int, seed: int | None = None, part: int = 0) -> np.ndarray:
    """Return uniforms (count,) in (0, 1) with 52 bits, from the operating system or from a seed.

    Draws of one seed with different ``part`` are independent.
    """
    if seed is None:
        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    else:
        bits = rng.random_u32(seed, BIAS_NOISE, 0, 0, part, 2 * count).view(np.uint64)
    # Odd multiples of 2^-53: neither 0 nor 1.
    result: np.ndarray = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return result
