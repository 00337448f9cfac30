"""Exact releases: exact sums, ideal noise, certified roundings.

In float64, value + noise leaves last bits that tell which value it was (Mironov 2012). Here a
record enters as a multiple of a `quantum`, so that sums are exact whatever their order; the noise
is an ideal real number (`fastfed._sampling`); and their real sum is released, rounded to the
nearest multiple of a grid that depends on the noise alone. That is post-processing of the
mechanism with real numbers, so its account holds as it is. Rounding a record may add to its
sensitivity; the noise pays for it, being larger by the factor `inflation`. Proof: docs/exact.md.
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

#: The grid is this power of two of the noise's standard deviation, or less.
GRID = -14
#: Encloses one entry's standard noise in an interval of width 2^-bits, for as many bits as asked.
Refine = Callable[[int, int], Interval]


def quantum(points: int, bound: float = 1.0) -> float:
    """Unit of fixed-point records: sums of ``points`` entries in [-bound, bound] are exact.

    2^(b - 52) for points of b binary digits, times the least power of two that is >= bound: such a
    sum is below 2^53 units, so float64 holds it.
    """
    part, exponent = math.frexp(bound)
    above = exponent - (part == 0.5)
    return math.ldexp(1.0, integer("points", points, at_least=1).bit_length() - 52 + above)


def quantise(values: np.ndarray, unit: float) -> np.ndarray:
    """Round values to the nearest multiple of ``unit``, a power of two."""
    rounded: np.ndarray = np.rint(values / unit) * unit
    return rounded


def check_fixed(values: np.ndarray, unit: float, who: str) -> None:
    """Refuse sums that are not multiples of ``unit``, as those of floats are not."""
    if not (np.isfinite(values).all() and np.array_equal(values, quantise(values, unit))):
        raise InputError(
            f"{who} must be in fixed point, multiples of 2^{round(math.log2(unit))}: a party whose "
            "noise is the system's needs reports of parties without a seed"
        )


def inflation(
    unit: float, size: int, dimension: int, least: float = 1.0, most: float = 1.0
) -> float:
    """Factor >= 1 on the noise that pays for records rounded to ``unit``.

    size: entries of a record's statistic; dimension: d of its features; least, most: the smaller
    and the larger of the largest norms |x y| and |x x'|. Rounding moves an entry by unit / 2, the
    arithmetic before it by most 2^-52, and scaling features to their bound leaves the norm within
    a factor 1 + d 2^-52 of it. In units of the noise, a neighbour's change grows by
    2 sqrt(size) (unit/2 + most 2^-52) over the least standard deviation at most, and was
    least/sqrt(2) over it at least: the effect of a record of the largest norms in the stream of
    least noise, in every layout.
    """
    moved = 2.0 * math.sqrt(2.0 * size) * (0.5 * unit + most * 2.0**-52) / least
    return 1.0 + moved + dimension * 2.0**-48


def grid_of(std: np.ndarray) -> np.ndarray:
    """Grid for noise of these standard deviations, (s,): powers of two.

    At least 2^-1074, the smallest there is.
    """
    _, exponent = np.frexp(std)
    return np.ldexp(1.0, np.maximum(exponent - 1 + GRID, -1074))


def noisy(
    values: np.ndarray, std: np.ndarray, noise: np.ndarray, error: float, refine: Refine
) -> np.ndarray:
    """Compute values + std Z on the grid, each entry rounded as the real sum is.

    values, std: (s,), std > 0. noise: (s,), within ``error`` of the ideal Z.
    """
    grid = grid_of(std)
    released, doubtful = aggregation.round_noisy(values, noise, std, grid, error)
    for j in doubtful:
        released[j] = _settled(float(values[j]), float(std[j]), float(grid[j]), j, refine)
    return released


def _settled(value: float, std: float, grid: float, entry: int, refine: Refine) -> float:
    """Round one entry by narrower and narrower enclosures of its noise."""
    start, scale = Fraction(value) / Fraction(grid), Fraction(std) / Fraction(grid)
    bits = 64
    while True:
        low, high = refine(entry, bits)
        least, most = (math.floor(start + scale * z + Fraction(1, 2)) for z in (low, high))
        if least == most:
            return float(least * Fraction(grid))
        bits *= 2


def combined(
    terms: Sequence[tuple[Callable[[int, int], Interval], Fraction]],
) -> Refine:
    """Enclose the sum of coefficient times draw, entry by entry."""
    # 2^-bits over as many terms, with room for coefficients above 1.
    extra = 1 + math.ceil(math.log2(1 + sum(abs(c) for _, c in terms)))

    def refine(entry: int, bits: int) -> Interval:
        """Enclose one entry to so many bits."""
        low = high = Fraction(0)
        for interval, c in terms:
            ends = [c * z for z in interval(entry, bits + extra)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    return refine


def add_normals(values: np.ndarray, std: np.ndarray, draws: Normals) -> np.ndarray:
    """Compute values + std Z, Z independent normals, on the grid."""
    return noisy(values, std, draws.values, ERROR, draws.interval)


def add_laplace(values: np.ndarray, scale: np.ndarray, draws: Laplaces) -> np.ndarray:
    """Compute values + scale Z, Z independent Laplace draws, on the grid."""
    return noisy(values, scale, draws.values, ERROR, draws.interval)


# ---- decisions -----------------------------------------------------------------------------------


def least(values: np.ndarray, scale: float, draws: Laplaces) -> int:
    """Find the index of the least of values + scale Z, as for real numbers without ties."""
    about = values + scale * draws.values
    slack = scale * ERROR + (np.abs(about).max() + np.abs(values).max()) * 2.0**-51
    first = int(about.argmin())
    rivals = np.flatnonzero(about <= about[first] + 2.0 * slack).tolist()
    bits = 64
    while len(rivals) > 1:
        found = {}
        for j in rivals:
            low, high = draws.interval(j, bits)
            start = Fraction(float(values[j]))
            found[j] = start + Fraction(scale) * low, start + Fraction(scale) * high
        bar = min(high for _, high in found.values())
        rivals = [j for j in rivals if found[j][0] <= bar]
        bits *= 2
    return int(rivals[0])


def above(
    value: float, scale: float, noise: Laplaces, limit: float, other: float, threshold: Laplaces
) -> bool:
    """Compare value + scale Z > limit + other Z', as for real numbers; one draw of each."""
    lead = value - limit + scale * float(noise.values[0]) - other * float(threshold.values[0])
    size = abs(value) + abs(limit) + 50.0 * (scale + other)
    if abs(lead) > (scale + other) * ERROR + size * 2.0**-50:
        return lead > 0.0
    bits = 64
    while True:
        mine, theirs = noise.interval(0, bits), threshold.interval(0, bits)
        start = Fraction(value) - Fraction(limit)
        low = start + Fraction(scale) * mine[0] - Fraction(other) * theirs[1]
        high = start + Fraction(scale) * mine[1] - Fraction(other) * theirs[0]
        if low > 0 or high <= 0:
            return low > 0
        bits *= 2


def choose(
    costs: np.ndarray, rate: float, counts: np.ndarray, draw: Uniforms, index: int = 0
) -> tuple[int, int]:
    """Choose one of ``counts[i]`` candidates of cost ``costs[i]`` each, by weights exp(-rate cost).

    Inverts the cdf at one uniform, as with real weights of these float64 costs and rate, and a
    uniform of any length.

    Parameters
    ----------
    costs : ndarray (n,)
    counts : ndarray (n,) of int
        >= 0, one > 0 at least.

    Returns
    -------
    tuple of int
        (i, place), place in 0..counts[i] - 1.
    """
    least_cost = costs[counts > 0].min()
    weights = np.exp((least_cost - costs) * rate, where=counts > 0, out=np.zeros(len(costs)))
    ends = np.cumsum(weights * counts)
    total = float(ends[-1])
    target = float(draw.random_u64[index]) * 2.0**-64 * total
    # Relative to the total: an exponent of at most 745 is rounded twice, its function and the sums
    # n times more, and the uniform has other bits.
    slack = total * (len(costs) + 1600) * 2.0**-52
    at = int(np.searchsorted(ends, target, side="right"))
    if at < len(ends) and weights[at] > 0.0:
        inside = (target - (float(ends[at - 1]) if at else 0.0)) / float(weights[at])
        place, edge = math.floor(inside), slack / float(weights[at])
        if edge < inside - place < 1.0 - edge and 0 <= place < counts[at]:
            return at, place
    return _chosen(costs, rate, counts, draw, index)


def _chosen(
    costs: np.ndarray, rate: float, counts: np.ndarray, draw: Uniforms, index: int
) -> tuple[int, int]:
    """Choose with enclosures as narrow as it takes."""
    shown = [i for i, c in enumerate(counts) if c > 0]
    least_cost = min(Fraction(float(costs[i])) for i in shown)
    places = len(str(sum(int(counts[i]) for i in shown)))
    bits = 128
    while True:
        digits = math.ceil(0.30103 * bits) + 12
        # Weights below e^-deepest, 10^-digits together, count as 0: the total is 1 at least. Others
        # would be written out with as many digits as their exponent says.
        deepest, lost = math.ceil(2.31 * (digits + places)), Fraction(1, 10**digits)
        with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
            each = []
            for i in shown:
                x = (least_cost - Fraction(float(costs[i]))) * Fraction(rate)
                weight = Decimal(0)
                if x >= -deepest:
                    weight = (Decimal(x.numerator) / Decimal(x.denominator)).exp()
                each.append(Fraction(weight))
        sizes = [w * int(counts[i]) for w, i in zip(each, shown, strict=True)]
        total = sum(sizes, Fraction(0))
        # The exponent is rounded, and its function: relative to it and to 1.
        error = Fraction(16 + 16 * deepest, 10 ** (digits - 1))
        low, high = draw.interval(index, bits)
        low, high = low * total * (1 - error) - lost, high * total * (1 + error) + lost
        # Below 0 there may be weights that count as 0.
        found = {_place(sizes, each, t) for t in (low, high)} if low >= 0 else set()
        if len(found) == 1:
            k, place = found.pop()
            return shown[k], min(place, int(counts[shown[k]]) - 1)
        bits *= 2


def _place(sizes: list[Fraction], each: list[Fraction], target: Fraction) -> tuple[int, int]:
    """Find the candidate that the cdf reaches at ``target``, the last one beyond its end."""
    for k, size in enumerate(sizes[:-1]):
        if target < size:
            return k, int(target / each[k])
        target -= size
    return len(sizes) - 1, int(target / each[-1]) if each[-1] else 0


def kept(chance: float, cost: float, rate: float, draw: Uniforms, index: int = 0) -> bool:
    """Throw a coin of probability (1 - chance) exp(-rate cost), cost >= 0, as for real numbers.

    True if a uniform of any length is below it; 0 <= chance <= 1.
    """
    if chance == 1.0:
        return False
    about = (1.0 - chance) * math.exp(-rate * cost)
    lead = float(draw.random_u64[index]) * 2.0**-64 - about
    # An exponent x is rounded to x 2^-53, which moves exp(-x) by less than 2^-54; the function, the
    # products and the uniform's other bits add some 2^-53 each.
    if abs(lead) > 2.0**-48:
        return lead < 0.0
    exponent = Fraction(rate) * Fraction(cost)
    bits = 128
    while True:
        digits = math.ceil(0.30103 * bits) + 12
        # As in `_chosen`: what is below 10^-digits counts as 0.
        deepest, lost = math.ceil(2.31 * digits), Fraction(1, 10**digits)
        found = Fraction(0)
        if exponent <= deepest:
            with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
                power = -Decimal(exponent.numerator) / Decimal(exponent.denominator)
                found = (1 - Fraction(chance)) * Fraction(power.exp())
        error = Fraction(16 + 16 * deepest, 10 ** (digits - 1))
        low, high = draw.interval(index, bits)
        if high <= found * (1 - error):
            return True
        if low >= found * (1 + error) + lost:
            return False
        bits *= 2
