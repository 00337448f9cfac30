"""The law of the noise in what is synchronised, and what it stays below with high probability."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fastfed.bandits.goe import largest_eigenvalue, norm_quantile
from fastfed.protocols.plan import NoiseStd

#: Share of the failure probability that rounding takes; it is small, and pays little for less.
ROUNDING = 0.1


@dataclass(frozen=True)
class Remainder:
    """How far noise made of bits is from its Gaussian, at release k = 0..K.

    Every entry of the noise is sigma Z + e + r. Z: standard normal, independent over entries and
    of the data. |e| <= ``coupling``, for all entries and releases together but for an event of
    ``probability``. r: rounding, a sum of martingale differences over points and entries, each
    sub-Gaussian given what came before, with squared scales that are known in advance and add up
    to ``rounding`` squared at most.
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
    tree). Entries of h and of N on and above the diagonal are independent of each other and of the
    data, also where later data were chosen in view of them.
    """

    node: NoiseStd = field(default_factory=NoiseStd)
    noises: float = 1.0
    variances: np.ndarray = field(default_factory=lambda: np.zeros(1))
    #: s in the published code's regularizer, where that is not the noise's own.
    published_std: float | None = None
    remainder: Remainder | None = None
    #: How many releases the bounds hold for, where that is more than ``variances`` lists: its last
    #: entry is then the most that any of the others has.
    counted: int = 0

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
    def goe_std(self) -> float:
        """Off-diagonal std of the least GOE matrix that has no entry below N's, for one node."""
        return max(self.node.off_diagonal, self.node.diagonal / math.sqrt(2.0))

    @property
    def exact_goe(self) -> bool:
        """Whether N is a GOE matrix and not merely below one."""
        o, d = self.node.off_diagonal, self.node.diagonal
        return self.remainder is None and math.isclose(d, math.sqrt(2.0) * o, rel_tol=1e-12)

    def operator_norms(self, dimension: int, probability: float) -> np.ndarray:
        """Bounds on ||N|| at each release, (K + 1,), which all hold together with 1 - probability.

        Each release and side gets an equal share. With g = ``goe_std``, N is g times the matrix of
        ``largest_eigenvalue``; where it has less variance somewhere, adding what it lacks, D,
        independent of N, raises lambda_max with probability at least 1/2 (with u N's top
        eigenvector, u'Du is symmetric), so P(lambda_max(N) > t) <= 2 P(lambda_max(N + D) > t):
        the factor is paid whenever N is not exactly such a matrix. The remainder of bits adds at
        most d max |e|, and ||r||, a sum of r A_ij with A_ij fixed and sum A_ij^2 = d I. Given the
        past E exp(s r A) <= exp(s^2 scale^2 A^2 / 2), a matrix known in advance, so Tropp 2012
        (Theorem 3.6) needs no independence: P(||r|| > t) <= 2 d exp(-t^2 / (2 d scale^2)).
        """
        if self.none:
            return np.zeros(self.releases + 1)
        gaussian, rounding = self._shares(probability)
        unit = largest_eigenvalue(dimension, gaussian / (2.0 if self.exact_goe else 4.0))
        bound = unit * self.goe_std * self.scales
        if self.remainder is not None:
            tail = math.log(2.0 * dimension / rounding)
            bound = bound + dimension * self.remainder.coupling
            bound = bound + math.sqrt(2.0 * dimension * tail) * self.remainder.rounding
        return bound

    def vector_norms(self, dimension: int, probability: float) -> np.ndarray:
        """The same for ||h||; roundings by Hsu, Kakade and Zhang 2012, Theorem 2.1."""
        if self.none:
            return np.zeros(self.releases + 1)
        gaussian, rounding = self._shares(probability)
        bound = norm_quantile(dimension, self.node.bias**2, 0.0, gaussian) * self.scales
        if self.remainder is not None:
            bound = bound + math.sqrt(dimension) * self.remainder.coupling
            bound = bound + _rounded(dimension, 1.0, 0.0, rounding) * self.remainder.rounding
        return bound

    def errors(self, dimension: int, probability: float) -> np.ndarray:
        """The same for ||N theta - h|| with one ||theta|| <= 1 that does not depend on the noise.

        Its covariance is (b^2 + o^2 ||theta||^2) I + o^2 theta theta' at most (b the std of bias
        entries, o = ``goe_std``; a smaller covariance has smaller norms, by Anderson 1955).
        <x, N theta - h> takes the rounding of N_ij with x_i theta_j + x_j theta_i, of N_ii with
        x_i theta_i and of h_i with -x_i: squares that add up to x'(2 I + theta theta')x at most.
        """
        if self.none:
            return np.zeros(self.releases + 1)
        b, o = self.node.bias**2, self.goe_std**2
        gaussian, rounding = self._shares(probability)
        bound = norm_quantile(dimension, b + o, o, gaussian) * self.scales
        if self.remainder is not None:
            bound = bound + (dimension + math.sqrt(dimension)) * self.remainder.coupling
            bound = bound + _rounded(dimension, 2.0, 1.0, rounding) * self.remainder.rounding
        return bound

    def _shares(self, probability: float) -> tuple[float, float]:
        """Failure probability of the Gaussian part and of the rounding, at one release each."""
        if self.remainder is None:
            return probability / max(self.releases, self.counted), 0.0
        # The coupling has its own, and fails in all bounds at once.
        left = (probability - self.remainder.probability) / self.releases
        if left <= 0.0:
            raise ValueError("the coupling of bits takes the whole failure probability")
        return (1.0 - ROUNDING) * left, ROUNDING * left


def _rounded(dimension: int, common: float, extra: float, probability: float) -> float:
    """As ``norm_quantile``, for X sub-Gaussian with this covariance (Hsu, Kakade, Zhang 2012)."""
    tail, top = math.log(1.0 / probability), common + extra
    squares = (dimension - 1.0) * common**2 + top**2
    trace = (dimension - 1.0) * common + top
    return math.sqrt(trace + 2.0 * math.sqrt(squares * tail) + 2.0 * top * tail)
