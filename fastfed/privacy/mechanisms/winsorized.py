"""Private means of vectors, one of which may be replaced by anything: the winsorized mean.

Vectors are rotated at random, and each coordinate gets the winsorized mean of numbers
(`fastfed.privacy.mechanisms.laplace`): when the vectors lie close together, the noise is for
a range of a few radii instead of the whole space. Source: huang-2023, Algorithm 4, after Levy et
al. 2021. Corrections: the inverse rotation is D H^T / sqrt(d), D last; dimensions are padded to a
power of two.
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
from fastfed._validate import InputError, array, choice, integer, number, show
from fastfed.privacy.accounting.gdp import advanced
from fastfed.privacy.accounting.privacy_loss import Part, composed_epsilon
from fastfed.privacy.certificate import (
    REALS,
    SAMPLER,
    SIMULATION,
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
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
    """Least power of two that is at least d."""
    return 1 << (integer("dimension", dimension, at_least=1) - 1).bit_length()


def hadamard(values: np.ndarray) -> np.ndarray:
    """Apply the Hadamard matrix H to each vector along the last axis, of length a power of two.

    H is symmetric with entries -+1 and H H = n. Additions are in the order h = 1, 2, 4, ...: at
    each, pairs h apart become their sum and their difference.
    """
    out = np.array(values, dtype=np.float64, order="C")
    n, h = out.shape[-1], 1
    while h < n:
        pairs = out.reshape(*out.shape[:-1], n // (2 * h), 2, h)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        added, less = first + second, first - second
        pairs[..., 0, :], pairs[..., 1, :] = added, less
        h *= 2
    return out


class WinsorizedMean(msgspec.Struct, frozen=True, kw_only=True):
    """The winsorized mean of vectors, one of each silo, in rotated coordinates, several times.

    Parameters
    ----------
    dimension, padded : int
        d, and d2, the least power of two >= d.
    silos : int
        M, one vector each.
    radius : float
        r, of a ball that is expected to hold all vectors; a guess costs accuracy, never privacy,
        but it must not depend on the vectors (see `at` for another one in every release).
    bound : float
        B; the rotated coordinates are sought in [-B sqrt(d2), B sqrt(d2)], where they are if all
        coordinates are in [-B, B]. For vectors of L2 norm <= R, R / sqrt(d2) suffices.
    concentration_failure : float
        beta, the probability that the rotation may fail to spread the vectors.
    epsilon_coordinate : float
        epsilon', of one coordinate of one release, half of it for the range and half for the noise.
    releases : int
        How often a mean is released.
    calibration : {"exact", "printed"}
        The rule that chose epsilon'.
    budget : Budget
        The budget that was asked for.
    source : str
        Author-year of the rule.
    remark : str
        A remark on the rule, beyond its account.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one silo's vectors become any others, in all releases, the means are together
    (exact(), budget.delta)-private, also when later vectors are chosen in view of earlier means.
    Each coordinate of each release is an exponential mechanism of range epsilon'/2 and a Laplace
    mechanism of epsilon'/2, composed in `fastfed.privacy.accounting.privacy_loss`.
    Source: huang-2023, Algorithm 4; Levy et al. 2021.
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
        """Check every field."""
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
        """B sqrt(d2), where a rotated coordinate is sought."""
        return self.bound * math.sqrt(self.padded)

    @property
    def rotated_radius(self) -> float:
        """r' = 10 r sqrt(ln(d2 M / beta) / d2), at most B sqrt(d2)."""
        d2 = self.padded
        log = math.log(d2) + math.log(self.silos) - math.log(self.concentration_failure)
        return min(10.0 * self.radius * math.sqrt(log / d2), self.rotated_bound)

    @property
    def bins(self) -> int:
        """Number of midpoints that private_range chooses from."""
        return bin_count(self.rotated_radius, self.rotated_bound)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviation of the Laplace noise in each coordinate of a mean, by stream.

        sqrt(2) 8 r' / (M epsilon'), the same before and after the rotation back.
        """
        scale = laplace_scale(self.silos, self.epsilon_coordinate, self.rotated_radius)
        return {"mean": math.sqrt(2.0) * scale}

    @property
    def feasible(self) -> bool:
        """True if the private range can work: one bin, or M epsilon' / 8 > ln(10 bins).

        Otherwise it often misses the vectors by far, whatever their number of dimensions. With one
        bin there is nothing to choose, and the noise is for all vectors within the bound.
        """
        known = self.silos * self.epsilon_coordinate / 8.0 > math.log(10.0 * self.bins)
        return known or self.bins == 1

    def at(self, radius: float) -> WinsorizedMean:
        """Return the same mechanism for another radius, which changes nothing of its privacy."""
        return msgspec.structs.replace(self, radius=radius)

    def parts(self) -> list[Part]:
        """List the mechanisms of all releases, for composed_epsilon."""
        half, count = self.epsilon_coordinate / 2.0, self.releases * self.padded
        return [("bounded-range", half, count), ("laplace", half, count)]

    def exact(self, delta: float | None = None) -> float:
        """Epsilon proven for all releases together at delta (default: the budget's)."""
        return composed_epsilon(self.parts(), self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """The claim, computed, and the assumptions that are taken on trust."""
        budget = self.budget
        found = self.exact()
        notes = f"computed; {self.remark}" if self.remark else "computed"
        times = "once" if self.releases == 1 else f"{self.releases} times"
        return [
            Condition(f"a mean is released at most {times}", True),
            Condition("everyone gives one vector to each mean; their number is public", True),
            Condition("radius, bound and signs do not depend on the vectors", True),
            ClaimCondition(
                f"the proven epsilon of these means, {rounded_up(found)} at delta "
                f"{budget.delta:g} under replacement, is at most {budget.epsilon:g} ({notes})",
                found <= budget.epsilon,
            ),
        ]

    def apply(
        self, vectors: object, signs: object, range_uniforms: object, laplace_uniforms: object
    ) -> np.ndarray:
        """Compute the private mean (d,) of vectors (M, d), one release, at given uniforms.

        signs: (d2,) of -+1, drawn at random and independent of the vectors; they may be public.
        range_uniforms, laplace_uniforms: (d2,) in (0, 1), secret and never used again. A vector
        that is not finite counts as zero. Raises InputError for other shapes and values.
        """
        x = array("vectors", vectors, shape=(self.silos, self.dimension), finite=False)
        d2 = self.padded
        flips = array("signs", signs, shape=(d2,))
        if not (np.abs(flips) == 1.0).all():
            raise InputError("signs must be -1 or 1 each")
        uniforms = []
        for name, given in (
            ("range_uniforms", range_uniforms),
            ("laplace_uniforms", laplace_uniforms),
        ):
            u = array(name, given, shape=(d2,))
            if not ((u > 0.0) & (u < 1.0)).all():
                raise InputError(f"{name} must be > 0 and < 1, got {u.min()} to {u.max()}")
            uniforms.append(u)

        rotated = self._rotated(x, flips)
        radius, bound = self.rotated_radius, self.rotated_bound
        means = [
            seeded_mean(column, self.epsilon_coordinate, radius, bound, float(u), float(noise))
            for column, u, noise in zip(rotated, *uniforms, strict=True)
        ]
        return self._back(np.array(means), flips)

    def release(
        self, vectors: object, signs: object, ranges: Uniforms, noises: Laplaces
    ) -> np.ndarray:
        """Release a mean exactly from ideal draws (d2,): the certificate is of this."""
        x = array("vectors", vectors, shape=(self.silos, self.dimension), finite=False)
        flips = array("signs", signs, shape=(self.padded,))
        each, radius, bound = self.epsilon_coordinate, self.rotated_radius, self.rotated_bound
        means = exact_means(self._rotated(x, flips), each, radius, bound, ranges, noises)
        return self._back(means, flips)

    def _rotated(self, x: np.ndarray, flips: np.ndarray) -> np.ndarray:
        """Coordinates (d2, M) of the rotated vectors."""
        d2 = self.padded
        rows = np.zeros((self.silos, d2))
        rows[:, : self.dimension] = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
        # Sums of huge numbers may overflow; what is not finite then counts as 0 as well.
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = finite(hadamard(rows * flips) / math.sqrt(d2))
        return np.ascontiguousarray(rotated.T)

    def _back(self, means: np.ndarray, flips: np.ndarray) -> np.ndarray:
        """Rotate means back."""
        back: np.ndarray = hadamard(means) / math.sqrt(self.padded) * flips
        return back[: self.dimension]


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
    """Calibrate the winsorized mean, released `releases` times, to a budget.

    Parameters
    ----------
    budget : Budget
        The unit is whoever gives the vectors: "user" or "silo". The guarantee is for replacement,
        which covers "zero-out".
    silos, dimension, radius, bound, concentration_failure
        As in `WinsorizedMean`; epsilon' depends on dimension only.
    releases : int
        >= 0.
    calibration : {"exact", "printed"}
        "exact": the largest epsilon' whose proven composition over releases x d2 coordinates gives
        the budget. "printed": eps0 = epsilon / sqrt(6 P ln(2/delta)), delta0 = delta / (2 P) for
        each of P = phases and epsilon' = eps0 / sqrt(6 d2 ln(1/delta0)) for a coordinate
        (huang-2023, Algorithms 1 and 4), mostly far below what the budget allows.
    phases : int, optional
        P, default releases.

    Returns
    -------
    WinsorizedMean

    Raises
    ------
    InputError
        For another unit, for phases < releases or other than releases when calibration is "exact",
        and for delta = 0 when it is "printed".
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("unit", budget.unit, ("user", "silo"))
    releases = integer("releases", releases, at_least=0)
    # No release costs nothing; the rules are then those of one, so that there is an epsilon'.
    rounds = max(releases, 1)
    phases = rounds if phases is None else integer("phases", phases, at_least=rounds)
    d2 = padded_dimension(dimension)
    remark = ""
    if calibration == "exact":
        each = _largest(budget, rounds * d2)
    else:
        delta = number("delta", budget.delta, above=0, below=1)
        eps0 = budget.epsilon / math.sqrt(6.0 * phases * (math.log(2.0) - math.log(delta)))
        log0 = math.log(2.0 * phases) - math.log(delta)
        each = eps0 / math.sqrt(6.0 * d2 * log0)
        remark = _printed_remark(budget, eps0, phases)
    return WinsorizedMean(
        dimension=dimension,
        padded=d2,
        silos=silos,
        radius=radius,
        bound=bound,
        concentration_failure=concentration_failure,
        epsilon_coordinate=each,
        releases=releases,
        calibration=calibration,
        budget=budget,
        source=_SOURCE[calibration],
        remark=remark,
    )


def printed_composition(budget: Budget, eps0: float, phases: int) -> float:
    """Epsilon of P phases of eps0 by the composition that huang-2023 quotes (Lemma G.1).

    eps0 sqrt(2 P ln(2/delta)) + P eps0 (exp(eps0) - 1), which may be above the budget: its
    Corollary G.2 needs exp(eps0) - 1 < eps0, which is false, and a small enough epsilon.
    """
    half = number("delta", budget.delta, above=0, below=1) / 2.0
    if eps0 > 300.0:
        return math.inf
    return advanced(Guarantee(eps0, half / phases), phases, half).epsilon


def _printed_remark(budget: Budget, eps0: float, phases: int) -> str:
    """Compare the printed composition with the budget."""
    total = printed_composition(budget, eps0, phases)
    if total > 1e6:
        return "the printed composition says nothing of an epsilon this large"
    within = "within" if total <= budget.epsilon else "not within"
    plural = "phase" if phases == 1 else "phases"
    return (
        f"the printed composition of {phases} {plural} gives {rounded_up(total)}, {within} the "
        "budget"
    )


def _largest(budget: Budget, coordinates: int) -> float:
    """Largest epsilon' for which that many coordinates are within the budget."""

    def excess(each: float) -> float:
        """Epsilon of all coordinates, less the budget."""
        parts: list[Part] = [
            (kind, each / 2.0, coordinates) for kind in ("bounded-range", "laplace")
        ]
        return composed_epsilon(parts, budget.delta) - budget.epsilon

    low = budget.epsilon / coordinates
    if budget.delta > 0.0:
        high = 2.0 * low
        while excess(high) <= 0.0:
            low, high = high, 2.0 * high
        low = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-7)) if excess(low) < 0.0 else low
    # From a root to a value whose account is on the right side.
    while excess(low) > 0.0:
        low *= 1.0 - 1e-7
    return low


# ---- the public function -------------------------------------------------------------------------


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
    """Private mean of vectors, one of each user, and its certificate.

    Accurate when the users agree: noise is for the ball of radius `radius` that is expected to
    hold all vectors, wherever in the ball of radius `bound` it lies, and not for the latter. It
    takes enough users to find that ball: with fewer the mean may be far off, and a caveat of the
    certificate says so.

    Parameters
    ----------
    vectors : array_like (n, d)
        One row of each user. They are scaled to L2 norm <= bound; one that is not finite counts as
        zero.
    epsilon : float
        > 0.
    delta : float
        In [0, 1), 0 not for "printed".
    radius, bound : float
        > 0, in the units of the vectors, chosen without looking at them.
    concentration_failure : float
        In (0, 1), the probability that the mean may be off although the users agree; smaller means
        a little more noise.
    seed : int, optional
        For simulations: whoever knows it can remove the noise. By default randomness comes from the
        operating system.
    calibration : {"exact", "printed"}
        See `calibrate_winsorized`.

    Returns
    -------
    mean : ndarray (d,)
    certificate : Certificate

    Raises
    ------
    InputError
        For values out of range and for other shapes, but never because of the vectors' values.

    Notes
    -----
    Guarantee: (epsilon, delta), unit "user" (one row replaced by any other), relation "replace",
    towards those who see the mean and trust who computes it. n is public.
    Source: huang-2023, Algorithm 4; Levy et al. 2021.

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
    ball = number("bound", bound, above=0)
    key = None if seed is None else check_seed(seed)
    mechanism = calibrate_winsorized(
        Budget(epsilon, delta),
        silos=n,
        dimension=d,
        radius=radius,
        bound=ball / math.sqrt(d2),  # a rotation keeps vectors within their ball
        releases=1,
        concentration_failure=concentration_failure,
        calibration=calibration,
    )
    rows = _clipped(x, ball)
    signs = np.where(_uniforms(d2, key, 0) < 0.5, -1.0, 1.0)
    if key is None:
        mean = mechanism.release(rows, signs, Uniforms(d2), Laplaces(d2))
    else:
        mean = mechanism.apply(rows, signs, *(_uniforms(d2, key, i) for i in (1, 2)))
    return mean, _certificate(mechanism, seeded=key is not None)


def _certificate(mechanism: WinsorizedMean, seeded: bool) -> Certificate:
    """Certificate of one mean."""
    budget = mechanism.budget
    caveats = [REALS if seeded else SAMPLER]
    if not mechanism.feasible:
        caveats.append(
            f"accuracy: {mechanism.silos} users are too few for this budget and radius, so the "
            "mean may be far off"
        )
    if seeded:
        caveats.append(SIMULATION)
    return Certificate(
        unit="user",
        relation="replace",
        model="central: who computes the mean is trusted, who reads it is not",
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


def _clipped(x: np.ndarray, bound: float) -> np.ndarray:
    """Rows scaled to norm <= bound, zeros for those that are not finite."""
    rows = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
    # Norms of scaled rows: squares of huge numbers would overflow.
    most = np.abs(rows).max(axis=1, keepdims=True)
    unit = rows / np.where(most > 0.0, most, 1.0)
    length = np.linalg.norm(unit, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        above = most * length > bound
    shrunk = unit * (bound / np.where(length > 0.0, length, 1.0))
    result: np.ndarray = np.where(above, shrunk, rows)
    return result


def _uniforms(count: int, seed: int | None = None, part: int = 0) -> np.ndarray:
    """Uniforms (count,) in (0, 1) of 52 bits, from the operating system or a seeded key."""
    if seed is None:
        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    else:
        bits = rng.random_u32(seed, BIAS_NOISE, 0, 0, part, 2 * count).view(np.uint64)
    # Odd multiples of 2^-53: neither 0 nor 1.
    result: np.ndarray = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return result
