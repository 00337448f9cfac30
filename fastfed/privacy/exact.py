"""Exact releases: sums of fixed-point records with exactly sampled noise, correctly rounded.

In float64, the last bits of value + noise reveal information about the value (Mironov 2012). A
release here avoids this in three steps:

1. Records are multiples of a `quantum`, so their sums are exact in any order.
2. The noise is an ideal real number (`fastfed._sampling`), known to as many bits as needed.
3. The real sum of both is rounded to a grid that depends on the noise scale only.

Step 3 is post-processing of the mechanism on real numbers, so that mechanism's account holds.
Rounding a record in step 1 may increase its sensitivity; the noise is larger by the factor
`inflation` to cover this. Proof: docs/exact.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

from fastfed._kernels import aggregation
from fastfed._sampling import ERROR, Interval, Laplaces, Normals, Uniforms
from fastfed._validate import InputError, integer

#: The grid to which a release is rounded is a power of two, at most 2^GRID times the standard
#: deviation of its noise.
GRID = -14
#: A function of (entry, bits) that returns an interval of width 2^-bits. The interval contains the
#: real-valued noise of this entry before it is multiplied by its standard deviation.
Refine = Callable[[int, int], Interval]


def quantum(points: int, bound: float = 1.0) -> float:
    """Return the unit of fixed-point records, with which sums of ``points`` records are exact.

    A record's entries are multiples of the unit in [-bound, bound]. The unit is 2^(b - 52) times
    the smallest power of two >= bound, where b is the number of binary digits of ``points``. A sum
    of ``points`` entries is then below 2^53 units, so float64 holds it exactly.
    """
    mantissa, exponent = math.frexp(bound)
    # 2^bound_exponent is the smallest power of two >= bound.
    bound_exponent = exponent - (mantissa == 0.5)
    digits = integer("points", points, at_least=1).bit_length()
    return math.ldexp(1.0, digits - 52 + bound_exponent)


def quantise(values: np.ndarray, unit: float) -> np.ndarray:
    """Return values rounded to the nearest multiple of ``unit``, which must be a power of two."""
    rounded: np.ndarray = np.rint(values / unit) * unit
    return rounded


def check_fixed(values: np.ndarray, unit: float, label: str) -> None:
    """Raise InputError unless ``values`` are multiples of ``unit``.

    Sums of records that were not rounded to fixed point are refused. ``label`` names the sums in
    the message.
    """
    if not (np.isfinite(values).all() and np.array_equal(values, quantise(values, unit))):
        raise InputError(
            f"{label} must be in fixed point, multiples of 2^{round(math.log2(unit))}: with noise "
            "from the operating system, the parties that report must be created without a seed too"
        )


def inflation(
    unit: float, size: int, dimension: int, least: float = 1.0, most: float = 1.0
) -> float:
    """Return the factor >= 1 by which noise must grow to cover records rounded to ``unit``.

    Parameters
    ----------
    unit : float
        Unit to which records are rounded.
    size : int
        Number of entries of a record's statistic.
    dimension : int
        d, the number of features of a record.
    least, most : float
        The smaller and the larger of the bounds on the norms of x y and of x x'. These are the two
        parts of the statistic of a record with features x and reward y.

    Notes
    -----
    Rounding changes an entry by at most unit / 2, and the arithmetic before rounding by at most
    ``most`` 2^-52. Clipping features leaves their norm within a factor 1 + d 2^-52 of the bound.
    Let s be the smallest noise standard deviation of any entry. The sensitivity of a record's
    statistic, in units of the noise, grows by at most 2 sqrt(size) (unit/2 + most 2^-52) / s.
    Before rounding, the sensitivity is at least ``least`` / (sqrt(2) s) in every layout of the
    noise matrix. To see this, take the part (x y or x x') that has the entry with noise s, and
    consider a record whose norm in this part is the largest.
    """
    relative_growth = 2.0 * math.sqrt(2.0 * size) * (0.5 * unit + most * 2.0**-52) / least
    return 1.0 + relative_growth + dimension * 2.0**-48


def grid_of(std: np.ndarray) -> np.ndarray:
    """Return the grid step, a power of two, to which each entry of a release is rounded, (s,).

    ``std`` (s,) holds the noise standard deviations of the entries. The step is at least 2^-1074,
    the smallest float64.
    """
    _, exponent = np.frexp(std)
    return np.ldexp(1.0, np.maximum(exponent - 1 + GRID, -1074))


def noisy(
    values: np.ndarray, std: np.ndarray, noise: np.ndarray, error: float, refine: Refine
) -> np.ndarray:
    """Return values + std Z (s,), rounded to the grid as if computed with real numbers.

    ``noise`` approximates the real noise Z within ``error``. Where this error leaves the rounding
    undecided, ``refine`` provides more bits of Z.
    """
    grid = grid_of(std)
    released, uncertain_entries = aggregation.round_noisy(values, noise, std, grid, error)
    for j in uncertain_entries:
        released[j] = _round_exactly(float(values[j]), float(std[j]), float(grid[j]), j, refine)
    return released


def _round_exactly(value: float, std: float, grid: float, entry: int, refine: Refine) -> float:
    """Return value + std Z, correctly rounded to the grid, where Z is the noise of this entry.

    ``refine`` computes more bits of Z, and their number is doubled until the result is certain.
    """
    value_in_grid, std_in_grid = Fraction(value) / Fraction(grid), Fraction(std) / Fraction(grid)
    bits = 64
    while True:
        low, high = refine(entry, bits)
        rounded_low, rounded_high = (
            math.floor(value_in_grid + std_in_grid * z + Fraction(1, 2)) for z in (low, high)
        )
        if rounded_low == rounded_high:
            return float(rounded_low * Fraction(grid))
        bits *= 2


def combined(terms: Sequence[tuple[Callable[[int, int], Interval], Fraction]]) -> Refine:
    """Return the `Refine` function of a linear combination of random draws.

    ``terms`` are pairs (the `Refine` function of a draw, the coefficient of the draw).
    """
    # Additional bits of each draw, so that the errors of all terms add up to at most 2^-bits.
    extra_bits = 1 + math.ceil(math.log2(1 + sum(abs(c) for _, c in terms)))

    def refine(entry: int, bits: int) -> Interval:
        """Return an interval of width 2^-bits that contains the combination for this entry."""
        low = high = Fraction(0)
        for interval, c in terms:
            ends = [c * z for z in interval(entry, bits + extra_bits)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    return refine


def add_normals(values: np.ndarray, std: np.ndarray, draws: Normals) -> np.ndarray:
    """Return values + std Z (s,) with independent standard normals Z, correctly rounded.

    The result is rounded to the grid that `grid_of` returns for ``std``.
    """
    return noisy(values, std, draws.values, ERROR, draws.interval)


def add_laplace(values: np.ndarray, scale: np.ndarray, draws: Laplaces) -> np.ndarray:
    """Return values + scale Z (s,) with independent standard Laplace draws Z, correctly rounded.

    The result is rounded to the grid that `grid_of` returns for ``scale``.
    """
    return noisy(values, scale, draws.values, ERROR, draws.interval)


# ---- random decisions ----------------------------------------------------------------------------
# Each decision equals that of exact real arithmetic. It is made in float64 if its margin exceeds
# the rounding error. Otherwise more and more bits of the draws are computed until it is certain.


def least(values: np.ndarray, scale: float, draws: Laplaces) -> int:
    """Return the index of the smallest entry of values + scale Z, compared as real numbers.

    Z (d,) are the Laplace draws.
    """
    approximate = values + scale * draws.values
    slack = scale * ERROR + (np.abs(approximate).max() + np.abs(values).max()) * 2.0**-51
    approximate_argmin = int(approximate.argmin())
    candidates = np.flatnonzero(
        approximate <= approximate[approximate_argmin] + 2.0 * slack
    ).tolist()
    bits = 64
    # Compute more bits of the noise of the remaining candidates, until only one can be smallest.
    while len(candidates) > 1:
        bounds = {}
        for j in candidates:
            low, high = draws.interval(j, bits)
            value = Fraction(float(values[j]))
            bounds[j] = value + Fraction(scale) * low, value + Fraction(scale) * high
        smallest_high = min(high for _, high in bounds.values())
        candidates = [j for j in candidates if bounds[j][0] <= smallest_high]
        bits *= 2
    return int(candidates[0])


def above(
    value: float, scale: float, noise: Laplaces, limit: float, offset: float, threshold: Laplaces
) -> bool:
    """Return True if value + scale Z > limit + offset Z', compared as real numbers.

    The standard Laplace draws Z and Z' are the first draws of ``noise`` and of ``threshold``. So
    ``offset`` is the scale of the noise that is added to ``limit``.
    """
    margin = value - limit + scale * float(noise.values[0]) - offset * float(threshold.values[0])
    # The error of margin has two parts: the errors of the two draws, at most ERROR each, and the
    # rounding of the terms, relative to their sizes. A draw from 64 bits is below 50.
    error_scale = abs(value) + abs(limit) + 50.0 * (scale + offset)
    if abs(margin) > (scale + offset) * ERROR + error_scale * 2.0**-50:
        return margin > 0.0
    bits = 64
    while True:
        noise_bounds, threshold_bounds = noise.interval(0, bits), threshold.interval(0, bits)
        exact_margin = Fraction(value) - Fraction(limit)
        low = (
            exact_margin
            + Fraction(scale) * noise_bounds[0]
            - Fraction(offset) * threshold_bounds[1]
        )
        high = (
            exact_margin
            + Fraction(scale) * noise_bounds[1]
            - Fraction(offset) * threshold_bounds[0]
        )
        if low > 0 or high <= 0:
            return low > 0
        bits *= 2


def choose(
    costs: np.ndarray, rate: float, counts: np.ndarray, draw: Uniforms, index: int = 0
) -> tuple[int, int]:
    """Sample a candidate with probability proportional to exp(-rate cost).

    There are ``counts[i]`` candidates of cost ``costs[i]``. The candidate is found by inverting the
    cumulative distribution function at one uniform draw. The result is that of real arithmetic on
    the given float64 costs and rate.

    Parameters
    ----------
    costs : ndarray (n,)
        Cost of the candidates of each group.
    rate : float
        Factor of the costs, >= 0.
    counts : ndarray (n,) of int
        Number of candidates in each group, >= 0 and not all 0.
    draw : Uniforms
        Source of uniform draws, each with as many bits as needed.
    index : int
        Index of the draw to use.

    Returns
    -------
    tuple of int
        (i, place): the group, and the candidate's place in 0..counts[i] - 1.
    """
    least_cost = costs[counts > 0].min()
    weights = np.exp((least_cost - costs) * rate, where=counts > 0, out=np.zeros(len(costs)))
    ends = np.cumsum(weights * counts)
    total = float(ends[-1])
    target = float(draw.random_u64[index]) * 2.0**-64 * total
    # A bound on the rounding errors of ``target`` and ``ends``. Where exp is not 0, exponents lie
    # in [-745, 0], and their two roundings change exp by a relative 2 * 745 * 2^-53. The rest of
    # 1600 covers exp, products, and the uniform's 64 bits; the cumulative sums add n roundings.
    slack = total * (len(costs) + 1600) * 2.0**-52
    chosen = int(np.searchsorted(ends, target, side="right"))
    if chosen < len(ends) and weights[chosen] > 0.0:
        position = (target - (float(ends[chosen - 1]) if chosen else 0.0)) / float(weights[chosen])
        place, edge = math.floor(position), slack / float(weights[chosen])
        if edge < position - place < 1.0 - edge and 0 <= place < counts[chosen]:
            return chosen, place
    return _choose_exactly(costs, rate, counts, draw, index)


def _choose_exactly(
    costs: np.ndarray, rate: float, counts: np.ndarray, draw: Uniforms, index: int
) -> tuple[int, int]:
    """Return the result of `choose`, computed with rational numbers.

    The number of bits is doubled until the result is certain.
    """
    available = [i for i, c in enumerate(counts) if c > 0]
    least_cost = min(Fraction(float(costs[i])) for i in available)
    # Number of decimal digits of the number of candidates.
    count_digits = len(str(sum(int(counts[i]) for i in available)))
    bits = 128
    while True:
        digits = math.ceil(0.30103 * bits) + 12  # log10(2) is below 0.30103; 12 guard digits
        # Weights below e^-deepest count as 0: as Fractions they would have as many digits as their
        # decimal exponents. All of them together weigh at most 10^-digits (ln 10 is below 2.31),
        # and the total weight is at least 1.
        deepest, lost_mass = math.ceil(2.31 * (digits + count_digits)), Fraction(1, 10**digits)
        with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
            weights = []
            for i in available:
                x = (least_cost - Fraction(float(costs[i]))) * Fraction(rate)
                weight = Decimal(0)
                if x >= -deepest:
                    weight = (Decimal(x.numerator) / Decimal(x.denominator)).exp()
                weights.append(Fraction(weight))
        group_weights = [w * int(counts[i]) for w, i in zip(weights, available, strict=True)]
        total = sum(group_weights, Fraction(0))
        # The exponent and its exponential are rounded: errors relative to the exponent and to 1.
        error = Fraction(16 + 16 * deepest, 10 ** (digits - 1))
        low, high = draw.interval(index, bits)
        low, high = low * total * (1 - error) - lost_mass, high * total * (1 + error) + lost_mass
        # A target below 0 could fall into a weight that counts as 0.
        targets = (low, high) if low >= 0 else ()
        positions = {_find_position(group_weights, weights, target) for target in targets}
        if len(positions) == 1:
            k, place = positions.pop()
            return available[k], min(place, int(counts[available[k]]) - 1)
        bits *= 2


def _find_position(
    group_weights: list[Fraction], candidate_weights: list[Fraction], target: Fraction
) -> tuple[int, int]:
    """Return (group, place in the group) of the candidate whose cumulative weight reaches a target.

    Group k has the total weight ``group_weights[k]``, and each of its candidates has the weight
    ``candidate_weights[k]``. A target beyond the end belongs to the last group.
    """
    for k, group_weight in enumerate(group_weights[:-1]):
        if target < group_weight:
            return k, int(target / candidate_weights[k])
        target -= group_weight
    last_weight = candidate_weights[-1]
    return len(group_weights) - 1, int(target / last_weight) if last_weight else 0


def kept(drop_chance: float, cost: float, rate: float, draw: Uniforms, index: int = 0) -> bool:
    """Return True with probability (1 - drop_chance) exp(-rate cost), computed exactly.

    The result is True if the uniform draw with this ``index`` is below the probability, compared as
    real numbers. The arguments satisfy 0 <= drop_chance <= 1 and cost >= 0.
    """
    if drop_chance == 1.0:
        return False
    probability = (1.0 - drop_chance) * math.exp(-rate * cost)
    # The uniform draw minus the probability, in float64.
    margin = float(draw.random_u64[index]) * 2.0**-64 - probability
    # Rounding the exponent x by x 2^-53 changes exp(-x) by less than 2^-54. exp, the products and
    # the unused bits of the uniform add about 2^-53 each.
    if abs(margin) > 2.0**-48:
        return margin < 0.0
    exponent = Fraction(rate) * Fraction(cost)
    bits = 128
    while True:
        digits = math.ceil(0.30103 * bits) + 12  # as in `_choose_exactly`
        # If the exponent is above ``deepest``, the probability is below 10^-digits and counts as 0.
        deepest, lost_probability = math.ceil(2.31 * digits), Fraction(1, 10**digits)
        approximate_probability = Fraction(0)
        if exponent <= deepest:
            with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
                power = -Decimal(exponent.numerator) / Decimal(exponent.denominator)
                approximate_probability = (1 - Fraction(drop_chance)) * Fraction(power.exp())
        error = Fraction(16 + 16 * deepest, 10 ** (digits - 1))
        low, high = draw.interval(index, bits)
        if high <= approximate_probability * (1 - error):
            return True
        if low >= approximate_probability * (1 + error) + lost_probability:
            return False
        bits *= 2
