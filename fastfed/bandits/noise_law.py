"""The law of the noise in what is synchronised, and what it stays below with high probability."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fastfed.bandits.goe import largest_eigenvalue, norm_quantile
from fastfed.protocols.plan import NoiseStd


@dataclass(frozen=True)
class Remainder:
    """How far noise made of bits is from its Gaussian, at release k = 0..K.

    Every entry of the noise is sigma Z + e + r: Z standard normal, independent over entries,
    |e| <= ``coupling``, and r the rounding, sub-Gaussian of scale ``rounding`` given what came
    before. The first fails for no entry at any release with probability at least
    1 - ``probability``.
    """

    coupling: np.ndarray
    rounding: np.ndarray
    probability: float


@dataclass(frozen=True)
class NoiseLaw:
    """N, the symmetric noise in V, and h, the noise in u, at each release k = 0..K.

    Entry z of h has standard deviation ``node.bias`` sqrt(``noises`` ``variances[k]``), and so on:
    ``node`` is one node's noise, ``noises`` how many independent ones add up in it (M when every
    silo adds its own), ``variances`` what the release makes of it (nodes of the prefix k, for the
    tree). Entries of N on and above the diagonal are independent, and those on the diagonal have
    at most twice the variance of those off it.
    """

    node: NoiseStd = field(default_factory=NoiseStd)
    noises: int = 1
    variances: np.ndarray = field(default_factory=lambda: np.zeros(1))
    #: s in the published code's regularizer, where that is not the noise's own.
    published_std: float | None = None
    remainder: Remainder | None = None

    @property
    def releases(self) -> int:
        return len(self.variances) - 1

    @property
    def none(self) -> bool:
        silent = self.node.parts == (0.0, 0.0, 0.0) and self.remainder is None
        return self.releases == 0 or silent

    @property
    def scales(self) -> np.ndarray:
        """Factor from one node's std to the std of what is synchronised, (K + 1,)."""
        scales: np.ndarray = np.sqrt(self.noises * self.variances)
        return scales

    @property
    def exact_goe(self) -> bool:
        """Whether N is a GOE matrix and not merely below one."""
        o, d = self.node.off_diagonal, self.node.diagonal
        return self.remainder is None and math.isclose(d, math.sqrt(2.0) * o, rel_tol=1e-12)

    def operator_norms(self, dimension: int, probability: float) -> np.ndarray:
        """Bounds on ||N|| at each release, (K + 1,), which all hold together with 1 - probability.

        Each release and side gets an equal share. With g the off-diagonal std, N is g times the
        matrix of ``largest_eigenvalue``; where the diagonal has less variance than 2 g^2, adding
        what it lacks, D, raises lambda_max with probability at least 1/2 (u'Du is symmetric), so
        P(lambda_max(N) > t) <= 2 P(lambda_max(N + D) > t). The remainder of bits adds at most
        d max |e|, and ||r||: r = sum r_ij A_ij with sum A_ij^2 = d I, so by Tropp 2012 (Theorem
        3.6) P(||r|| > t) <= 2 d exp(-t^2 / (2 d scale^2)).
        """
        if self.none:
            return np.zeros(self.releases + 1)
        share = self._share(probability) / 2.0
        unit = largest_eigenvalue(dimension, share if self.exact_goe else share / 2.0)
        bound = unit * self.node.off_diagonal * self.scales
        if self.remainder is not None:
            tail = math.log(2.0 * dimension / self._share(probability))
            bound = bound + dimension * self.remainder.coupling
            bound = bound + math.sqrt(2.0 * dimension * tail) * self.remainder.rounding
        return bound

    def vector_norms(self, dimension: int, probability: float) -> np.ndarray:
        """The same for ||h||; roundings by Hsu, Kakade and Zhang 2012, Theorem 2.1."""
        if self.none:
            return np.zeros(self.releases + 1)
        unit = norm_quantile(dimension, 1.0, 0.0, self._share(probability))
        bound = unit * self.node.bias * self.scales
        if self.remainder is not None:
            bound = bound + math.sqrt(dimension) * self.remainder.coupling
            bound = bound + self._rounded(dimension, probability) * self.remainder.rounding
        return bound

    def errors(self, dimension: int, probability: float) -> np.ndarray:
        """The same for ||N theta - h|| with any ||theta|| <= 1.

        Its covariance is (b^2 + o^2 ||theta||^2) I + o^2 theta theta' at most (b, o the stds of
        bias and off-diagonal entries; a smaller covariance has smaller norms, by Anderson 1955).
        """
        if self.none:
            return np.zeros(self.releases + 1)
        b, o = self.node.bias**2, self.node.off_diagonal**2
        unit = norm_quantile(dimension, b + o, o, self._share(probability))
        bound = unit * self.scales
        if self.remainder is not None:
            tail = math.log(2.0 * dimension / self._share(probability))
            matrix = math.sqrt(2.0 * dimension * tail)
            bound = bound + (dimension + math.sqrt(dimension)) * self.remainder.coupling
            bound = bound + (matrix + self._rounded(dimension, probability)) * (
                self.remainder.rounding
            )
        return bound

    def _share(self, probability: float) -> float:
        """Failure probability of one event at one release."""
        if self.remainder is None:
            return probability / self.releases
        # The Gaussian part, the rounding of N and that of h; the coupling has its own.
        return max(probability - self.remainder.probability, 0.0) / (3.0 * self.releases)

    def _rounded(self, dimension: int, probability: float) -> float:
        """Norm of a rounding vector, in units of its scale."""
        tail = math.log(1.0 / self._share(probability))
        return math.sqrt(dimension + 2.0 * math.sqrt(dimension * tail) + 2.0 * tail)
