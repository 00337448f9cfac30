"""Accounting of fair coins: integers plus Bin(n, 1/2), by Gaussian noise of a little less.

The lemma, proven in docs/secure-sum.md. Let n be even, S ~ Bin(n, 1/2), V >= t >= 0 integers and
0 < tail < 1/2. With

    y = sqrt(n ln(1 / tail) / 2),    a <= n/2 - y - V an integer, a >= 1 and a <= n/2 - 2,

telling S from S + t, in either direction, is at least as hard as telling N(0, 1) from
N(t / (a / sqrt(n)), 1) where with probability ``tail`` all is told. So S hides a shift as Gaussian
noise of standard deviation

    a / sqrt(n) = sqrt(n)/2 - sqrt(ln(1 / tail) / 2) - V / sqrt(n),    rounded down,

does: some units less than its own standard deviation sqrt(n)/2, whatever n is.
"""

from __future__ import annotations

import math

from fastfed._validate import integer, number

# Far above the rounding of the few float64 operations behind a result, and far below what matters.
_ROUNDING = 1e-12


def effective_std(trials: int, reach: int, tail: float) -> float:
    """Compute the standard deviation of the Gaussian noise that Bin(trials, 1/2) is as good as.

    Parameters
    ----------
    trials : int
        n >= 0, even.
    reach : int
        V >= 0, the largest shift.
    tail : float
        In (0, 1/2): the probability with which all is told.

    Returns
    -------
    float
        In units of the integers; 0 where nothing is proven.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The lemma at the top of this module.
    """
    trials = integer("trials", trials, at_least=0)
    reach = integer("reach", reach, at_least=0)
    tail = number("tail", tail, above=0, below=0.5)
    if trials % 2:
        trials -= 1  # one coin less hides no more
    return std_of_coins(trials, reach, tail)


def std_of_coins(trials: int, reach: int, tail: float) -> float:
    """Compute `effective_std` for arguments that were checked before."""
    # y^2 <= n ln(1/tail) / 2, in integers: n may be far above 2^53.
    nats = math.ceil(-math.log(tail) * (1.0 + _ROUNDING) * 2**20)
    y = math.isqrt(trials * nats >> 21) + 1
    least = min(trials // 2 - y - reach, trials // 2 - 2)
    if least < 1:
        return 0.0
    return least / math.sqrt(trials) * (1.0 - _ROUNDING)
