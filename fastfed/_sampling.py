"""Exact sampling of real random numbers, evaluated to any precision on demand.

A draw is a function of uniforms with infinitely many bits. The first 64 bits of each uniform are
drawn at once and give a float64 within `ERROR` of the draw. If this does not decide a rounding or a
comparison, further bits are drawn and exact arithmetic gives a smaller interval that contains the
draw. So every decision is the one that the real number gives. docs/exact.md has error bounds and
proofs.
Binomial counts of fair coins use integer arithmetic only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from fastfed._kernels import rng

#: Largest error of the float64 value of a standard draw.
ERROR = 2.0**-40
#: If a uniform is within _END 2^-64 of 0 or 1, its first 64 bits do not give error `ERROR`.
_END = 1 << 44
_WORD = 64
#: Guard digits for intermediate roundings.
_GUARD = 12

#: Function that returns a given number of random bytes: os.urandom, unless draws depend on a
#: secret. If it has a method ``further(index, start, count)``, this returns the bytes of a uniform
#: from bit ``start`` >= 64 on, so that they do not depend on the order of queries.
Entropy = Callable[[int], bytes]
Interval = tuple[Fraction, Fraction]


class Uniforms:
    """Uniforms in (0, 1), shape (n,): the first 64 bits of each, and more bits on demand.

    Attributes
    ----------
    random_u64 : ndarray of uint64, shape (n,)
        The first 64 bits, highest bit first.
    """

    def __init__(self, count: int, entropy: Entropy = os.urandom) -> None:
        """Draw the first 64 bits of ``count`` uniforms; more bits are drawn when needed."""
        self.random_u64 = np.frombuffer(entropy(8 * count), dtype=np.uint64)
        # Returns ``size`` more random bytes of uniform ``index``, which has ``start`` bits by now.
        # A seeded source computes them from these numbers; `os.urandom` returns fresh bytes.
        self._draw_more: Callable[[int, int, int], bytes] = getattr(
            entropy, "further", lambda index, start, size: entropy(size)
        )
        #: Index -> (the first n bits as an integer, n), for uniforms with more than 64 bits.
        self._extended: dict[int, tuple[int, int]] = {}

    def prefix(self, index: int, bits: int) -> tuple[int, int]:
        """Return the first n >= bits bits of uniform number ``index`` as an integer a, and n.

        So this uniform is in [a, a + 1] / 2^n. Missing bits are drawn, and bits that were drawn
        never change.
        """
        a, n = self._extended.get(index, (int(self.random_u64[index]), _WORD))
        if n < bits:
            new_bits = -(-(bits - n) // _WORD) * _WORD
            a = a << new_bits | int.from_bytes(self._draw_more(index, n, new_bits // 8), "big")
            n += new_bits
            self._extended[index] = a, n
        return a, n

    def interval(self, index: int, bits: int) -> Interval:
        """Return an interval of width at most 2^-bits that contains the uniform."""
        a, n = self.prefix(index, bits)
        return Fraction(a, 1 << n), Fraction(a + 1, 1 << n)


class Normals:
    """Independent standard normals (n,), by the Box-Muller method from uniforms of any precision.

    Attributes
    ----------
    values : ndarray, shape (n,)
        Approximations, each within `ERROR` of its normal.
    """

    def __init__(self, count: int, entropy: Entropy = os.urandom) -> None:
        """Draw ``count`` normals.

        Let half be ``count`` / 2, rounded up. Normals i and half + i, for i < half, are a
        Box-Muller pair: uniform i gives the radius of both, and uniform half + i the angle.
        """
        self._half = (count + 1) // 2
        self._uniforms = Uniforms(2 * self._half, entropy)
        values, has_inaccurate = rng.ideal_normals(self._uniforms.random_u64)
        self.values: np.ndarray = values[:count]
        if has_inaccurate:
            # A radius from a uniform near 0 or 1 needs more than 64 bits. The sum below is modulo
            # 2^64, so it is small at both ends.
            pairs = np.flatnonzero(
                self._uniforms.random_u64[: self._half] + np.uint64(_END) < 2 * _END
            )
            inaccurate = np.concatenate([pairs, pairs + self._half])
            _refine(self, inaccurate[inaccurate < count])

    def interval(self, index: int, bits: int) -> Interval:
        """Return an interval of width at most 2^-bits that contains the normal."""
        pair, uniform_bits = index % self._half, bits + 8
        while True:
            a, n = self._uniforms.prefix(pair, uniform_bits)
            turn, m = self._uniforms.prefix(self._half + pair, uniform_bits)
            uniform_bits += _WORD
            if a:
                low, high = _normal(a, n, turn, m, index < self._half)
                if (high - low) * (1 << bits) <= 1:
                    return low, high


class Laplaces:
    """Independent standard Laplace draws (n,), with density exp(-|x|) / 2.

    Attributes
    ----------
    values : ndarray, shape (n,)
        Approximations, each within `ERROR` of its draw.
    """

    def __init__(self, count: int, entropy: Entropy = os.urandom) -> None:
        """Draw ``count`` Laplace numbers, each from one uniform.

        The first bit of the uniform is the sign of the number. Its other bits are a uniform u, and
        the absolute value of the number is -ln u.
        """
        self._uniforms = Uniforms(count, entropy)
        self.values, has_inaccurate = rng.ideal_laplace(self._uniforms.random_u64)
        if has_inaccurate:
            # An absolute value from u near 0 or 1 needs more than 64 bits. The shift removes the
            # sign bit. The sum is modulo 2^64, so it is small at both ends.
            inaccurate = (self._uniforms.random_u64 << np.uint64(1)) + np.uint64(_END) < 2 * _END
            _refine(self, np.flatnonzero(inaccurate))

    def interval(self, index: int, bits: int) -> Interval:
        """Return an interval of width at most 2^-bits that contains the draw."""
        uniform_bits = bits + 8
        while True:
            a, n = self._uniforms.prefix(index, uniform_bits)
            uniform_bits += _WORD
            positive, magnitude_bits = a >> (n - 1), a & ((1 << (n - 1)) - 1)
            if magnitude_bits:
                low, high = (max(x, Fraction(0)) for x in _minus_log(magnitude_bits, n - 1))
                if (high - low) * (1 << bits) <= 1:
                    return (low, high) if positive else (-high, -low)


def _refine(draws: Normals | Laplaces, indices: np.ndarray) -> None:
    """Compute ``draws.values`` at these indices again, with more than 64 bits of each uniform."""
    for i in indices.tolist():
        low, high = draws.interval(i, 44)
        draws.values[i] = float((low + high) / 2)


# ---- Enclosures in decimal arithmetic ------------------------------------------------------------


def _digits(bits: int) -> int:
    """Return the number of decimal digits for ``bits`` bits, including guard digits."""
    return math.ceil(0.30103 * bits) + _GUARD


def _context(digits: int) -> Context:
    """Return a decimal context of ``digits`` digits with the widest exponent range."""
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _minus_log(a: int, n: int) -> Interval:
    """Return an interval that contains -ln u for all u in [a, a + 1] / 2^n, a >= 1."""
    digits = _digits(n)
    with localcontext(_context(digits)):
        # Each logarithm is correctly rounded and below n, so the error is far below the slack.
        log_power = n * Decimal(2).ln()  # ln 2^n
        high, low = log_power - Decimal(a).ln(), log_power - Decimal(a + 1).ln()
        slack = Decimal(10) ** (6 - digits) * n
        return Fraction(low - slack), Fraction(high + slack)


def _normal(a: int, n: int, turn: int, m: int, cosine: bool) -> Interval:
    """Return an interval that contains a normal of the Box-Muller method.

    The normal is r cos(2 pi w) if ``cosine``, else r sin(2 pi w), with r = sqrt(-2 ln u). The
    uniform u is in [a, a + 1] / 2^n, and the uniform w in [turn, turn + 1] / 2^m.
    """
    log_low, log_high = _minus_log(a, n)  # bounds of -ln u
    digits = _digits(max(n, m))
    with localcontext(_context(digits)):
        unit = Decimal(10) ** (6 - digits)
        r_low = max(_decimal(2 * log_low).sqrt() - unit, Decimal(0)) if log_low > 0 else Decimal(0)
        r_high = _decimal(2 * log_high).sqrt() + unit if log_high > 0 else unit
        sine = _sine(turn, m, cosine, digits)
        # The derivative of the sine with respect to w is at most 2 pi < 2^3.
        sine_error = unit + Decimal(8) / Decimal(1 << m)
        s_low, s_high = sine - sine_error, sine + sine_error
        z_low = s_low * (r_high if s_low < 0 else r_low)
        z_high = s_high * (r_high if s_high > 0 else r_low)
        slack = unit * (1 + r_high)
        return Fraction(z_low - slack), Fraction(z_high + slack)


def _decimal(x: Fraction) -> Decimal:
    """Return a fraction as a decimal in the current context."""
    return Decimal(x.numerator) / Decimal(x.denominator)


def _sine(turn: int, m: int, cosine: bool, digits: int) -> Decimal:
    """Return sin or cos of 2 pi turn / 2^m with error at most 10^(4 - digits)."""
    # Split the angle into a number of quarter turns and a rest x of at most half a quarter turn.
    quarters = ((turn << 2) + (1 << (m - 1))) >> m
    remainder = (turn << 2) - (quarters << m)  # in units of a quarter turn / 2^m
    x = Decimal(remainder) * _pi(digits) / (2 * Decimal(1 << m))
    quarters += cosine
    # sin(x + quarters pi / 2), by the Taylor series until terms are below the last digit; |x| < 1.
    term, k = (Decimal(1), 0) if quarters & 1 else (x, 1)
    total, square, least = term, x * x, Decimal(10) ** (-digits - 1)
    while abs(term) > least:
        k += 2
        term = -term * square / (k * (k - 1))
        total += term
    return -total if quarters & 2 else total


@lru_cache(maxsize=64)
def _pi(digits: int) -> Decimal:
    """Return pi to this number of digits, as 16 arctan(1/5) - 4 arctan(1/239) (Machin)."""
    scale = 10 ** (digits + 10)

    def arctan(inverse: int) -> int:
        """Return ``scale`` times arctan(1 / inverse), by its power series in integers."""
        term, total, k = scale // inverse, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= inverse * inverse
            k += 2
        return total

    with localcontext(_context(digits + 5)):
        return Decimal(16 * arctan(5) - 4 * arctan(239)) / Decimal(scale)


# ---- Exact binomial sampling from fair coins -----------------------------------------------------
# All comparisons are between integers, so distributions are exact (proof: docs/secure-sum.md).

#: Up to this many coins are drawn bit by bit; for more, the count uses rejection sampling.
TOSSED = 4096


def fair_binomials(trials: Sequence[int], entropy: Entropy = os.urandom) -> list[int]:
    """Draw Bin(n, 1/2) - n/2 for each even n >= 0 in ``trials``, exactly, for n of any size."""
    return [fair_binomial(n, entropy) for n in trials]


def fair_binomial(trials: int, entropy: Entropy = os.urandom) -> int:
    """Draw Bin(n, 1/2) - n/2 exactly, for an even number n of trials."""
    if trials <= TOSSED:
        return _bits(trials, entropy).bit_count() - trials // 2
    return rejected_binomial(trials, entropy)


def quarter_binomial(trials: int, entropy: Entropy = os.urandom) -> int:
    """Draw Bin(n, 1/4) exactly: toss n fair coins, then toss those with heads again."""
    return _heads(_heads(trials, entropy), entropy)


def _heads(trials: int, entropy: Entropy) -> int:
    """Draw Bin(n, 1/2) exactly, for any number n of trials."""
    half = trials // 2
    return half + fair_binomial(2 * half, entropy) + (_bits(1, entropy) if trials % 2 else 0)


def rejected_binomial(trials: int, entropy: Entropy = os.urandom) -> int:
    """Draw k with the distribution of Bin(n, 1/2) - n/2, where n = ``trials`` is even.

    The method is rejection from a discrete Gaussian of variance (n + 1)/4. The centred binomial has
    probabilities P(k) with P(k) / P(0) = exp(-2 k^2 / (n + 1) - R(k)), where R(k) >= 0 is about
    k^4 / (n/2)^3 / 6, see `_excess`. The discrete Gaussian has the factor exp(-2 k^2 / (n + 1)). So
    a draw k of the discrete Gaussian is accepted with probability exp(-R(k)), which is 1 - O(1/n).
    """
    while True:
        k = _discrete_gaussian(trials + 1, entropy)
        if 2 * abs(k) <= trials and _is_accepted(abs(k), trials, entropy):
            return k


def _bits(count: int, entropy: Entropy) -> int:
    """Return ``count`` uniform bits as an integer."""
    size = (count + 7) // 8
    return int.from_bytes(entropy(size), "big") >> (8 * size - count)


def _below(n: int, entropy: Entropy) -> int:
    """Draw a uniform integer in [0, n)."""
    count = (n - 1).bit_length()
    while True:
        candidate = _bits(count, entropy)
        if candidate < n:
            return candidate


def _exp_coin(num: int, den: int, entropy: Entropy) -> bool:
    """Draw True with probability exp(-num / den), for integers num >= 0 and den > 0.

    Source: Canonne, Kamath & Steinke 2020, Algorithm 1.
    """
    # exp(-num / den) is a product of factors 1/e, and of one factor with num <= den.
    while num > den:
        if not _exp_coin(1, 1, entropy):
            return False
        num -= den
    k = 1
    while _below(den * k, entropy) < num:
        k += 1
    return k % 2 == 1


def _discrete_laplace(scale: int, entropy: Entropy) -> int:
    """Draw an integer k with probability proportional to exp(-|k| / scale).

    Source: Canonne, Kamath & Steinke 2020, Algorithm 2.
    """
    # Draw |k| mod scale, then add a geometric number of scales, then draw the sign. Reject -0.
    while True:
        size = _below(scale, entropy)
        if not _exp_coin(size, scale, entropy):
            continue
        while _exp_coin(1, 1, entropy):
            size += scale
        if not _bits(1, entropy):
            return size
        if size:
            return -size


def _discrete_gaussian(quarters: int, entropy: Entropy) -> int:
    """Draw an integer k with probability proportional to exp(-2 k^2 / quarters).

    This is a discrete Gaussian of variance quarters / 4, by rejection from a discrete Laplace
    distribution. Source: Canonne, Kamath & Steinke 2020, Algorithm 3.
    """
    scale = math.isqrt(quarters) // 2 + 1
    den = 8 * quarters * scale * scale
    while True:
        k = _discrete_laplace(scale, entropy)
        distance = 4 * abs(k) * scale - quarters
        if _exp_coin(distance * distance, den, entropy):
            return k


def _is_accepted(k: int, trials: int, entropy: Entropy) -> bool:
    """Draw True with probability exp(-R(k)), for k >= 0 and R(k) of `rejected_binomial`."""
    parts = max(1, math.ceil(_excess(k, trials, 0)[1]))
    for _ in range(parts):
        # Draw uniforms for j = 1, 2, ... until one is >= R / (parts j). This j is odd with
        # probability exp(-R / parts).
        j = 1
        while _uniform_below(k, trials, parts * j, entropy):
            j += 1
        if j % 2 == 0:
            return False
    return True


def _uniform_below(k: int, trials: int, divisor: int, entropy: Entropy) -> bool:
    """Draw True with probability R(k) / divisor <= 1, with as many random bits as needed.

    R(k) is defined in `_excess`.
    """
    prefix, bits, terms = _bits(_WORD, entropy), _WORD, 0
    while True:
        low, high = _excess(k, trials, terms)
        if prefix * divisor >= high * (1 << bits):
            return False
        if (prefix + 1) * divisor <= low * (1 << bits):
            return True
        prefix, bits, terms = prefix << _WORD | _bits(_WORD, entropy), bits + _WORD, terms + 8


def _excess(k: int, trials: int, terms: int) -> Interval:
    """Return an interval that contains R(k) of `rejected_binomial`, for 0 <= k <= n / 2.

    Here n = ``trials``, and R(k) = 2 sum_{i = 1..k} (artanh t_i - t_i) with
    t_i = (2 i - 1) / (n + 1). Since artanh t - t = t^3 / 3 + t^5 / 5 + ..., R(k) is a series over
    the powers p = 3, 5, .... The lower end of the interval is the sum of the first ``terms`` terms.
    Each further term is at most t_k^2 times the term before it, so a geometric series bounds the
    rest.
    """
    denominator = trials + 1
    low = Fraction(0)
    for j in range(1, terms + 1):
        p = 2 * j + 1
        low += Fraction(2 * odd_powers(k, p), p * denominator**p)
    p = 2 * terms + 3
    next_term = Fraction(2 * odd_powers(k, p), p * denominator**p)
    return low, low + next_term / (1 - Fraction(2 * k - 1, denominator) ** 2)


def odd_powers(count: int, power: int) -> int:
    """Compute 1^p + 3^p + ... + (2 count - 1)^p for an odd p, by Bernoulli polynomials."""
    if power == 3:
        return count * count * (2 * count * count - 1)
    total = Fraction(0)
    for j in range(0, power + 1, 2):
        # B_j(1/2) = (2^(1 - j) - 1) B_j, and 0 for odd j.
        half = (Fraction(2, 1 << j) - 1) * _bernoulli(j)
        total += math.comb(power + 1, j) * half * count ** (power + 1 - j)
    result = total * (1 << power) / (power + 1)
    return int(result)


#: Cache of the Bernoulli numbers B_0, B_2, B_4, ...
_EVEN = [Fraction(1)]


def _bernoulli(n: int) -> Fraction:
    """Return the Bernoulli number B_n of an even n."""
    for m in range(2 * len(_EVEN), n + 1, 2):
        total = 1 - Fraction(m + 1, 2)  # contribution of B_0 and B_1
        for j in range(2, m, 2):
            total += math.comb(m + 1, j) * _EVEN[j // 2]
        _EVEN.append(-total / (m + 1))
    return _EVEN[n // 2]
