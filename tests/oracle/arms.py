"""UCB and Thompson sampling on K arms, in plain NumPy; imports nothing of ours.

Lai and Robbins (1985), the upper confidence bound; Abbasi-Yadkori, Pal and Szepesvari (2011), the
self-normalised bound, here in dimension 1 for each arm; Thompson (1933) with a uniform prior;
Marsaglia and Tsang (2000), gamma variables. The recorded actions are repeated (*forced replay*).
Nothing is incremental: counts and sums are added up again whenever an arm is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log, pi, sqrt

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def uniform(key: int, i: int) -> float:
    """Return draw i of a key by splitmix64 (Steele, Lea and Flood 2014), in (0, 1]."""
    z = (key + (i + 1) * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return ((z >> 11) + 0.5) * 2.0**-53


def normal(key: int, i: int) -> float:
    """Return standard normal i of a key (Box and Muller 1958)."""
    return sqrt(-2.0 * log(uniform(key, 2 * i))) * cos(2.0 * pi * uniform(key, 2 * i + 1))


def gamma(key: int, first: int, shape: float) -> float:
    """Return a gamma variable from the attempts of a key from number ``first`` on."""
    d = shape - 1.0 / 3.0
    c = 1.0 / sqrt(9.0 * d)
    while True:
        z, u = normal(key, 2 * first), uniform(key, 4 * first + 2)
        first += 1
        v = (1.0 + c * z) ** 3
        if v > 0.0 and log(u) < 0.5 * z * z + d - d * v + d * log(v):
            return d * v


def thompson(key: int, wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return a draw from Beta(1 + wins, 1 + losses) for each arm (K,)."""
    draws = []
    for a, (w, n) in enumerate(zip(wins, losses, strict=True)):
        g = gamma(key, 512 * a, 1.0 + w)
        h = gamma(key, 512 * a + 256, 1.0 + n)
        draws.append(g / (g + h))
    return np.array(draws)


@dataclass
class Bounds:
    """Constants from which the confidence bounds of a silo follow.

    Parameters
    ----------
    n, e : ndarray, shape (releases + 1,)
        Bounds on the noise of a count, and on the noise of a count times a mean minus that of a
        sum.
    failure : float
        The probability with which the bound on rewards of one arm may fail.
    private : bool
        True if releases have noise. lambda may then be lowered.
    scale : float
        Sub-Gaussian scale of what is added to sums.
    anchor : float
        c of docs/radius.md.
    """

    n: np.ndarray
    e: np.ndarray
    failure: float
    private: bool
    scale: float
    anchor: float

    def at(
        self, release: int, counts: np.ndarray, sums: np.ndarray, released: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the estimate and the bonus of each arm (K,).

        ``counts`` and ``sums`` are what the silo knows, ``released`` the counts of the release.
        """
        full = self.n[release] + self.anchor
        lowest = full if self.private and release else 0.0
        # The smallest lambda = full j / 8 that keeps every entry of V above `lowest`.
        lam = full
        if lowest > 0.0:
            lam = next(
                (full * j / 8.0 for j in range(8) if (released + full * j / 8.0 > lowest).all()),
                full,
            )
        v = counts + lam
        assert (v > 0.0).all()
        inverse = float((1.0 / (released + lam)).max())
        f = 1.0 + (full - lam) * min(inverse, 1.0 / lowest) if lam < full else 1.0
        width = f * (2.0 * log(1.0 / self.failure) + log(v.max()) + log(f / self.anchor))
        beta = self.scale * sqrt(width)
        return sums / v, beta / np.sqrt(v) + (lam + self.e[release]) / v


def sieved(
    means: np.ndarray,
    bonus: np.ndarray,
    slack: float,
    ranking: float,
    limit: float,
    key: int | None = None,
) -> np.ndarray:
    """Return the number that ranks each arm (K,); -inf for arms that fail the sieve.

    With ``key``, the ranking bonus of each arm is multiplied by a standard normal draw.
    """
    passes = means + (2.0 * slack - 1.0) * bonus >= min(limit, float((means + bonus).max()))
    draws = np.array([1.0 if key is None else normal(key, a) for a in range(len(means))])
    return np.where(passes, means + ranking * bonus * draws, -np.inf)


def largest_mu(bias_std: float, count_std: float, grid: int = 5) -> float:
    """Return the largest distance between the sums of two records (arm, reward), by enumeration.

    The distance is in units of the noise: rewards in [0, 1], any two of three arms.
    """
    largest = 0.0
    for a in range(3):
        for b in range(3):
            for y in np.linspace(0.0, 1.0, grid):
                for z in np.linspace(0.0, 1.0, grid):
                    counts = np.eye(3)[a] - np.eye(3)[b]
                    sums = np.eye(3)[a] * y - np.eye(3)[b] * z
                    square = (counts**2).sum() / count_std**2 + (sums**2).sum() / bias_std**2
                    largest = max(largest, sqrt(square))
    return largest
