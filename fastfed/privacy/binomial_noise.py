"""Binomial noise on an integer sum: its exact privacy loss, and its probit scale.

The noise is X ~ Bin(trials, 1/4), what is released is X plus an integer that depends on the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastfed._validate import InputError, integer, number

#: Probability of a one in the noise bits (zhou-chowdhury-2024, Appendix F.2, p).
ONES = 0.25
#: Most trials for which every probability is computed; above, closed bounds take over.
TABLE_TRIALS = 2**24
# exp underflows from here on: probabilities that far below the largest one count as zero.
_LOG_SMALLEST = 745.0
# A step of the probit scale is a difference of two values with about 13 correct digits, and at
# TABLE_TRIALS a step is 6e-4; seven digits are left with a wide margin.
_ROUNDING = 1e-7


def masses(trials: int, p: float = ONES) -> tuple[int, np.ndarray, np.ndarray]:
    """(first, mass, log_ratio): P(X = first + i) = mass[i] wherever it does not underflow.

    log_ratio[i] = ln(P(X = first + i) / P(X = mode)). Built outwards from the mode by the ratio of
    neighbours, so that no factorial is formed, and normalised by its sum.
    """
    mode = min(int((trials + 1) * p), trials)
    reach = math.ceil(39.0 * math.sqrt(trials * p * (1.0 - p)) + 800.0)
    first, last = max(mode - reach, 0), min(mode + reach, trials)
    up = np.arange(mode + 1, last + 1, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    odds = p / (1.0 - p)
    above = np.cumsum(np.log((trials - up + 1.0) * odds / up))
    below = np.cumsum(np.log(down / ((trials - down + 1.0) * odds)))
    log_ratio = np.concatenate([below[::-1], [0.0], above])
    keep = log_ratio > -_LOG_SMALLEST
    first += int(np.argmax(keep))
    log_ratio = log_ratio[keep]
    mass = np.exp(log_ratio)
    return first, mass / mass.sum(), log_ratio


def _upwards(trials: int, shift: int, epsilon: float, p: float) -> float:
    """sum_k (P(X + shift = k) - e^epsilon P(X = k))_+, every term positive."""
    _, mass, log_ratio = masses(trials, p)
    # mass[i] is P(X + shift = k) of some k, and P(X = k) is mass[i + shift], or zero.
    loss = np.full(mass.size, np.inf)
    if shift < mass.size:
        loss[: mass.size - shift] = log_ratio[: mass.size - shift] - log_ratio[shift:]
    over = loss > epsilon
    return float(np.sum(mass[over] * -np.expm1(epsilon - loss[over])))


def shifted_binomial_delta(trials: int, shift: int, epsilon: float, p: float = ONES) -> float:
    """delta at epsilon between X ~ Bin(trials, p) and X + shift, the larger of both directions.

    trials >= 0, shift an integer of either sign, epsilon >= 0, 0 < p < 1. What one world can
    release and the other cannot (the supports are finite) counts in delta. Exact, by summing the
    hockey-stick divergence, up to trials = 2^24; above (then p must be 1/4) the proven upper bound
    of `fastfed.privacy.binomial_account`.
    """
    trials = integer("trials", trials, at_least=0)
    shift = abs(integer("shift", shift))
    epsilon = number("epsilon", epsilon, at_least=0)
    p = number("p", p, above=0, below=1)
    if shift == 0:
        return 0.0
    if shift > trials:
        return 1.0
    if trials > TABLE_TRIALS:
        from fastfed.privacy.binomial_account import VectorSumAccount

        if p != ONES:
            raise InputError(f"p must be 0.25 when trials > {TABLE_TRIALS}, got {p:g}")
        return VectorSumAccount([(trials, shift)], 1, integers=True).delta(epsilon)
    # X - shift against X is trials - X + shift against trials - X, which is Bin(trials, 1 - p).
    return min(1.0, max(_upwards(trials, shift, epsilon, q) for q in (p, 1.0 - p)))


def pld_delta(
    nodes: Sequence[tuple[int, Sequence[int]]],
    epsilon: float,
    interval: float = 1e-4,
    upper: bool = True,
) -> float:
    """delta at epsilon of one concrete vector sum, by numerical composition; needs dp-accounting.

    nodes: for each node its trials and the integer change of every coordinate. interval: width to
    which privacy losses are rounded, up for an upper bound and down for a lower one (upper false);
    either is accurate to about 1e-14. The larger of both directions.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    epsilon = number("epsilon", epsilon, at_least=0)
    counts = Counter(
        (integer("trials", trials, at_least=1), integer("shift", shift))
        for trials, shifts in nodes
        for shift in shifts
        if shift
    )
    total = None
    for (trials, shift), count in counts.items():
        first, mass, _ = masses(trials)
        # Probabilities that underflow to zero are left out; they are below 1e-300 in all.
        logs = {first + int(i): math.log(mass[i]) for i in np.flatnonzero(mass)}
        part = pld.from_two_probability_mass_functions(
            logs,
            {k + shift: value for k, value in logs.items()},
            pessimistic_estimate=upper,
            value_discretization_interval=interval,
            symmetric=False,
        )
        part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    return 0.0 if total is None else float(total.get_delta_for_epsilon(epsilon))


@dataclass(frozen=True)
class Steps:
    """Bounds on the probit scale of binomial noise inside a window that loses mass `tail`.

    mean: largest difference of neighbouring probits. slope: largest slope of the interpolated
    scale. bend: how far that scale strays from the straight interpolation of its probits.
    All three infinite where no window exists.
    """

    mean: float
    slope: float
    bend: float


_NOWHERE = Steps(math.inf, math.inf, math.inf)


class Probits:
    """Phi^-1(P(X <= k)) of X ~ Bin(trials, 1/4), as bounds on its steps.

    Up to TABLE_TRIALS from all probabilities, above from closed bounds; see
    `fastfed.privacy.binomial_account` for what they are needed for.
    """

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self._table = 0 < trials <= TABLE_TRIALS
        if self._table:
            self._tabulate()

    def _tabulate(self) -> None:
        from scipy.special import ndtri

        first, mass, _ = masses(self.trials)
        below = np.cumsum(mass)
        above = np.concatenate([np.cumsum(mass[:0:-1])[::-1], [0.0]])
        # Where a tail is below 1e-290 neither side is accurate, and no window is ever that wide.
        keep = (below > 1e-290) & (above > 1e-290)
        self._first = first + int(np.argmax(keep))
        self._below, self._above, mass = below[keep], above[keep], mass[keep]
        probit = np.where(
            self._below < self._above,
            ndtri(np.minimum(self._below, 0.5)),
            -ndtri(np.minimum(self._above, 0.5)),
        )
        far = np.maximum(np.abs(probit[1:]), np.abs(probit[:-1]))
        self._mean = np.diff(probit)
        with np.errstate(over="ignore"):
            self._slope = mass[1:] * math.sqrt(2.0 * math.pi) * np.exp(far * far / 2.0)
        centre = (probit[1:] > 0.0) & (probit[:-1] < 0.0)
        self._bend = self._slope**2 * far / 8.0 * np.where(centre, 2.0, 1.0)

    def steps(self, tail: float, largest: int) -> Steps:
        """Bounds for shifts up to `largest`, outside a window whose each end keeps mass <= tail."""
        if self._table:
            return self._steps_from_table(tail, largest)
        return self._steps_in_closed_form(tail, largest)

    def _steps_from_table(self, tail: float, largest: int) -> Steps:
        # tail >= F(a + largest) and tail >= 1 - F(b - largest), with a, b as far in as possible.
        a = int(np.searchsorted(self._below, tail, side="right")) - 1 - largest
        b = int(np.searchsorted(-self._above, -tail, side="left")) + largest
        if a < 0 or b >= self._below.size or b <= a:
            return _NOWHERE
        up = 1.0 + _ROUNDING
        return Steps(
            float(self._mean[a:b].max()) * up,
            float(self._slope[a:b].max()) * up,
            float(self._bend[a:b].max()) * up,
        )

    def _steps_in_closed_form(self, tail: float, largest: int) -> Steps:
        from scipy.special import ndtri

        # With h(k) = sgn(k/n - p) sqrt(2 n H(k/n)), H the relative entropy of (k/n, p):
        #   (Z) h(k) <= Phi^-1 P(X <= k) <= h(k + 1)    (Zubkov & Serov 2013, Theorem 1)
        #   (S) P(X = k) <= exp(-n H(k/n)) / sqrt(2 pi k (n - k) / n)    (Stirling's bounds)
        # and for the log-concave normal density phi the integral over an interval is at least
        # length x logarithmic mean >= length x geometric mean of phi at its two ends. So
        #   mean step  P(X = k) / mean phi <= exp((|x|^2 + |x'|^2)/4 - n H(k/n)) sqrt(n/(k (n-k)))
        # with x, x' the probits of k - 1 and k, and for the slope the larger of both in place of
        # the mean. (Z) and H' then leave, to the left of the mean (k + 1 <= n p, k > a),
        #   e^{n H((k-1)/n) - n H(k/n)} <= p (n - a) / (q a),
        # to the right (k - 1 >= n p, k <= b) the same with (k + 1), and for the two or three k in
        # between |x|^2 <= 2 n H <= 2 (2^2) / (n p q). On the left k (n - k) >= a (n - a).
        n, p, q = float(self.trials), ONES, 1.0 - ONES
        if not 0.0 < tail < 0.5 or self.trials < TABLE_TRIALS:
            return _NOWHERE
        s, z = math.sqrt(n * p * q), -float(ndtri(tail))
        # By (Z) and H'' = 1/(t (1 - t)): P(X <= n p - u) <= tail from u = z s + 1 on, and
        # P(X > n p + u) <= tail from u = z s + z^2 on.
        a = n * p - z * s - largest - 2.0
        b = n * p + z * s + z * z + largest + 2.0
        if a <= 1.0 or b >= n / 2.0:
            return _NOWHERE
        left, right = p * (n - a) / (q * a), q * (b + 1.0) / (p * (n - b - 1.0))
        thin = math.sqrt(n / (a * (n - a)))
        middle = math.exp(4.0 / s**2) * math.sqrt(n / ((n * p - 1.0) * (n * q - 1.0)))
        # sqrt((k + 1)/(n - k - 1) n/(k (n - k))), largest at k = b but for the factor (k + 1)/k.
        wide = math.sqrt(q / p * n * (1.0 + 1.0 / (n * p))) / (n - b - 1.0)
        slope = max(left * thin, right / s, middle)
        far = max((n * p - a) * thin, (b + 1.0 - n * p) / s, 4.0 * math.sqrt(2.0) / s)
        up = 1.0 + _ROUNDING
        return Steps(
            max(math.sqrt(left) * thin, wide, middle) * up,
            slope * up,
            slope * slope * far / 8.0 * up,
        )
