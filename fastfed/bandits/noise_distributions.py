"""Distribution of the noise in synchronised sums, and bounds on it that hold with high probability.

`NoiseDistribution` describes the noise of every release, its three methods bound it, and confidence
radii are made of these bounds. Every function here gives an upper bound that is proven and, in the
far tail where it is used, nearly attained. Below it: tails of Gaussian matrices and vectors, and
noise made of bits as a Gaussian and a remainder that is bounded by computation.

References
----------
Anderson 1955; Hsu, Kakade and Zhang 2012, Theorem 2.1; Kearns and Saul 1998; Mehta 2004, Section
7.2; Tropp 2012, Theorem 3.6. Titles are in docs/radius.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from fastfed._roots import brentq
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.vector_batches import VectorBatches
from fastfed.protocols.plan import NoiseStd

# ---- The noise of each release -------------------------------------------------------------------

#: Share of the failure probability for rounding, which is small and gains little from more.
ROUNDING = 0.1


@dataclass(frozen=True)
class Remainder:
    """Distance of noise made of bits from Gaussian noise, at release k = 0..K.

    Every entry of the noise is sigma Z + e + r, with Z standard normal, independent over entries
    and of the data.

    Parameters
    ----------
    coupling : ndarray, shape (K + 1,)
        Bound on |e|, for all entries and releases together, except for an event of
        ``probability``.
    rounding : ndarray, shape (K + 1,)
        r is a sum of martingale differences over points and entries, each sub-Gaussian given the
        past, with squared scales that are known in advance and add up to ``rounding`` squared at
        most.
    probability : float
        The probability that ``coupling`` fails.
    """

    coupling: np.ndarray
    rounding: np.ndarray
    probability: float


@dataclass(frozen=True)
class NoiseDistribution:
    """Distribution of N, the symmetric noise in V, and h, the noise in u, at release k = 0..K.

    Entry z of h has standard deviation ``node.bias`` sqrt(``noises`` ``variances[k]``), and so on.
    Entries of h and of N on and above the diagonal are independent of each other and of the data,
    also where later data were chosen in view of them.

    Parameters
    ----------
    node : NoiseStd
        Standard deviations of one node's noise, in units of the sums.
    noises : float, default 1
        Independent noises that add up in a release: M where every silo adds its own.
    variances : ndarray, shape (K + 1,)
        Variance of a release, in units of one node's: for the tree, nodes of prefix k.
    published_std : float, optional
        s in the published code's regularizer, where that is not the noise's own.
    remainder : Remainder, optional
        For noise made of bits: its distance from the Gaussian noise described here.
    counted : int, default 0
        Releases that the bounds hold for, where that is more than ``variances`` lists; its last
        entry is then the largest of all.
    public_constant : bool, default False
        True if the last feature is a constant of the code, so that the last diagonal entry of N is
        0 (docs/centred.md).
    """

    node: NoiseStd = field(default_factory=NoiseStd)
    noises: float = 1.0
    variances: np.ndarray = field(default_factory=lambda: np.zeros(1))
    published_std: float | None = None
    remainder: Remainder | None = None
    counted: int = 0
    public_constant: bool = False

    @property
    def releases(self) -> int:
        """K, the number of releases listed."""
        return len(self.variances) - 1

    @property
    def none(self) -> bool:
        """True if there is no noise at all."""
        silent = self.node.parts == (0.0, 0.0, 0.0) and self.remainder is None
        return self.releases == 0 or silent

    @property
    def scales(self) -> np.ndarray:
        """Factor from the std of one node to that of a release, shape (K + 1,)."""
        scales: np.ndarray = np.sqrt(self.noises * self.variances)
        return scales

    @property
    def goe_std(self) -> float:
        """Off-diagonal std of the least GOE matrix with no entry below those of one node's N."""
        return max(self.node.off_diagonal, self.node.diagonal / math.sqrt(2.0))

    @property
    def exact_goe(self) -> bool:
        """True if N is a GOE matrix, and not merely dominated by one."""
        if self.remainder is not None or self.public_constant:
            return False
        o, d = self.node.off_diagonal, self.node.diagonal
        return math.isclose(d, math.sqrt(2.0) * o, rel_tol=1e-12)

    def operator_norms(self, dimension: int, probability: float) -> np.ndarray:
        """Bounds on ||N|| at each release, which hold together with probability 1 - p.

        Parameters
        ----------
        dimension : int
            d, rows of N.
        probability : float
            p, shared equally by releases and sides.

        Returns
        -------
        ndarray, shape (K + 1,)

        Raises
        ------
        ValueError
            If the coupling of bits alone fails with probability p or more.

        Notes
        -----
        With g = ``goe_std``, N is g times the matrix of `largest_eigenvalue`. Where N has less
        variance somewhere, adding the difference D, independent of N, raises lambda_max with
        probability at least 1/2 (with u the top eigenvector of N, u'Du is symmetric), so
        P(lambda_max(N) > t) <= 2 P(lambda_max(N + D) > t): the factor is paid whenever N is not
        exactly such a matrix. The remainder of bits adds at most d max |e|, and ||r||, a sum of
        r A_ij with A_ij fixed and sum A_ij^2 = d I. Given the past E exp(s r A) <=
        exp(s^2 scale^2 A^2 / 2), a matrix known in advance, so Tropp 2012 (Theorem 3.6) needs no
        independence: P(||r|| > t) <= 2 d exp(-t^2 / (2 d scale^2)).
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
        """Bounds on ||h|| at each release, as `operator_norms`; roundings by Hsu et al. 2012."""
        if self.none:
            return np.zeros(self.releases + 1)
        gaussian, rounding = self._shares(probability)
        bound = norm_quantile(dimension, self.node.bias**2, 0.0, gaussian) * self.scales
        if self.remainder is not None:
            bound = bound + math.sqrt(dimension) * self.remainder.coupling
            bound = bound + _rounded(dimension, 1.0, 0.0, rounding) * self.remainder.rounding
        return bound

    def errors(
        self, dimension: int, probability: float, tau: float = 1.0, along: float | None = None
    ) -> np.ndarray:
        """Bounds on ||N theta - h|| at each release, as `operator_norms`.

        Parameters
        ----------
        dimension : int
            d, rows of N.
        probability : float
            p, shared equally by releases.
        tau : float, default 1
            Bound on ||theta||, theta being one vector that does not depend on the noise.
        along : float, optional
            Bound on what is left of the largest eigenvalue of the covariance of N theta, in units
            of o^2, after tau^2 is taken off. By default tau^2, which needs nothing else; less
            where N has a ``public_constant`` and theta a bounded reward
            (`fastfed.bandits.problem.centred_norm`).

        Returns
        -------
        ndarray, shape (K + 1,)

        Notes
        -----
        The covariance of N theta - h is (b^2 + o^2 ||theta||^2) I + o^2 theta theta' at most (b the
        std of bias entries, o = ``goe_std``), less where entries have less noise. A smaller
        covariance has smaller norms (Anderson 1955), and so has the one with tau for ||theta||.
        <x, N theta - h> takes the rounding of N_ij with x_i theta_j + x_j theta_i, of N_ii with
        x_i theta_i and of h_i with -x_i: squares that add up to x'((1 + tau^2) I + theta theta')x
        at most. Entries of N theta hold at most sqrt(d) tau times the coupling, those of h one.
        """
        if self.none:
            return np.zeros(self.releases + 1)
        square = tau * tau
        b, o = self.node.bias**2, self.goe_std**2
        gaussian, rounding = self._shares(probability)
        extra = o * (square if along is None else along)
        bound = norm_quantile(dimension, b + o * square, extra, gaussian) * self.scales
        if self.remainder is not None:
            apart = dimension * tau + math.sqrt(dimension)
            bound = bound + apart * self.remainder.coupling
            rounded = _rounded(dimension, 1.0 + square, square, rounding)
            bound = bound + rounded * self.remainder.rounding
        return bound

    def _shares(self, probability: float) -> tuple[float, float]:
        """Failure probabilities of the Gaussian part and of the rounding, at one release each."""
        if self.remainder is None:
            return probability / max(self.releases, self.counted), 0.0
        # The coupling has its own share, and fails in all bounds at once.
        left = (probability - self.remainder.probability) / self.releases
        if left <= 0.0:
            raise ValueError("the coupling of bits takes the whole failure probability")
        return (1.0 - ROUNDING) * left, ROUNDING * left


def _rounded(dimension: int, common: float, extra: float, probability: float) -> float:
    """Norm quantile for sub-Gaussian X, else as `norm_quantile` (Hsu, Kakade and Zhang 2012)."""
    tail, top = math.log(1.0 / probability), common + extra
    squares = (dimension - 1.0) * common**2 + top**2
    trace = (dimension - 1.0) * common + top
    return math.sqrt(trace + 2.0 * math.sqrt(squares * tail) + 2.0 * top * tail)


# ---- Tails of Gaussian matrices and vectors ------------------------------------------------------

#: Above this dimension the closed bound is used alone: the table costs more than it gains.
MAX_EXACT_DIMENSION = 500
#: Grid step of the table of eigenvalues.
STEP = 2e-3


@cache
def _expected_above(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Grid x >= 0, and ln of the expected number of eigenvalues above each x.

    For the GOE with diagonal variance 1 and off-diagonal variance 1/2 the density of eigenvalues
    at x is, with phi_k the orthonormal Hermite functions (Mehta 2004, Section 7.2),
        sum_{k<d} phi_k(x)^2 + sqrt(d / 2) phi_{d-1}(x) int sgn(x - y) phi_d(y) dy / 2
        + [d odd] phi_{d-1}(x) / int phi_{d-1}.
    """
    d = dimension
    reach = math.sqrt(2.0 * d) + 18.0
    x = np.arange(0.0, reach, STEP)
    # phi_k e^-scale by the recurrence: phi_0 itself underflows where phi_{d-1} still matters.
    scale = -0.5 * x * x
    before, phi = np.zeros_like(x), np.full_like(x, math.pi**-0.25)
    squares = np.square(phi * np.exp(scale))
    for k in range(1, d):
        before, phi = phi, math.sqrt(2.0 / k) * x * phi - math.sqrt((k - 1.0) / k) * before
        size = np.maximum(np.abs(phi), 1.0)
        before, phi, scale = before / size, phi / size, scale + np.log(size)
        squares = squares + np.square(phi * np.exp(scale))
    last = phi * np.exp(scale)  # phi_{d-1}
    above = math.sqrt(2.0 / d) * x * phi - math.sqrt((d - 1.0) / d) * before  # phi_d
    above = above * np.exp(scale)
    # Odd functions integrate to 0; of even ones the half line counts twice.
    tail = _right_sums(above)
    signed = (tail[0] - tail) if d % 2 == 0 else -tail
    # int sgn(x - y) f(y) dy / 2 = (total / 2) - tail(x), total = 2 tail(0) when f is even.
    density = squares + math.sqrt(d / 2.0) * last * signed
    if d % 2 == 1:
        density = density + last / (2.0 * _right_sums(last)[0])
    expected = _right_sums(np.maximum(density, 0.0))
    return x, np.log(np.maximum(expected, 1e-300))


def _right_sums(values: np.ndarray) -> np.ndarray:
    """Integral from every grid point to the end; trapezoids lie above a convex tail."""
    pieces = 0.5 * STEP * (values[1:] + values[:-1])
    return np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]])


def largest_eigenvalue(dimension: int, probability: float) -> float:
    """Upper quantile of the largest eigenvalue of a Gaussian symmetric matrix (a scaled GOE).

    Parameters
    ----------
    dimension : int
        d, rows of the matrix: off-diagonal variance 1, diagonal variance 2.
    probability : float
        p, in (0, 1).

    Returns
    -------
    float
        t with P(lambda_max > t) <= p.

    Notes
    -----
    The smaller of two bounds: the expected number of eigenvalues above t, which is at least the
    probability that there is one; and 2 sqrt d + 2 sqrt(ln(1 / p)), from E lambda_max <=
    2 E ||g|| <= 2 sqrt d (Sudakov-Fernique: for unit u, v the increments of u'Nu have variance
    4 (1 - <u, v>^2), at most those of 2 <g, u>) and the concentration of a sqrt 2-Lipschitz
    function of standard normals.
    """
    closed = 2.0 * (math.sqrt(dimension) + math.sqrt(-math.log(probability)))
    if dimension > MAX_EXACT_DIMENSION or probability < 1e-60:
        return closed
    x, log_expected = _expected_above(dimension)
    # One grid step to the safe side is worth far more than the error of the trapezoids.
    where = int(np.searchsorted(-log_expected, -math.log(probability)))
    if where + 1 >= len(x):
        return closed
    return min(closed, math.sqrt(2.0) * float(x[where] + STEP))


@cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def norm_quantile(dimension: int, common: float, extra: float, probability: float) -> float:
    """Upper quantile of a Gaussian norm, X ~ N(0, common I + extra u u') with ||u|| = 1.

    Parameters
    ----------
    dimension : int
        d, the length of X.
    common, extra : float
        Variances >= 0: in every direction, and further along u.
    probability : float
        p, in (0, 1).

    Returns
    -------
    float
        t with P(||X|| > t) <= p.

    Notes
    -----
    ||X||^2 = common chi^2_{d-1} + (common + extra) z^2: one integral over z, with z = a sin(s) so
    that the integrand is smooth at its end, where the chi-square has no mass left.
    """
    from scipy.special import gammaincc, ndtr, ndtri

    if common == 0.0:
        return -math.sqrt(extra) * float(ndtri(0.5 * probability))
    nodes, weights = _nodes()
    sine, cosine = np.sin(0.25 * math.pi * (nodes + 1.0)), np.cos(0.25 * math.pi * (nodes + 1.0))
    weights = 0.25 * math.pi * cosine * weights

    def tail(square: float) -> float:
        """P(||X||^2 > square)."""
        last = math.sqrt(square / (common + extra))
        outside = 2.0 * float(ndtr(-last))
        if dimension == 1:
            return outside
        density = np.exp(-0.5 * np.square(last * sine)) * math.sqrt(2.0 / math.pi)
        rest = square * np.square(cosine) / common
        inside = gammaincc(0.5 * (dimension - 1), 0.5 * rest) * density
        return outside + last * float(weights @ inside)

    high = common * dimension + extra
    while tail(high) > probability:
        high *= 2.0
    low = high
    while tail(low) <= probability:
        low *= 0.5
    # Far out the tail of many dimensions is no positive float64 any more: there its sign is enough.
    least = math.ulp(0.0)
    root = float(
        brentq(lambda q: math.log(max(tail(q), least) / probability), low, high, rtol=1e-12)
    )
    # Quadrature and root are good to ten digits and more.
    return math.sqrt(root) * (1.0 + 1e-9)


# ---- Noise made of bits --------------------------------------------------------------------------

#: Sub-Gaussian scale of one centred bit of mean 1/4, squared (Kearns and Saul 1998).
BIT_SCALE_SQUARED = 0.5 / (2.0 * math.log(3.0))
#: Variance of one bit of mean 1/4.
BIT_VARIANCE = 0.1875
#: Beyond this many bits the incomplete beta function loses its last digits.
MAX_COUPLED_BITS = 10**12
#: Spacing of the grid on which the two distributions are compared, in standard deviations.
SPACING = 0.005


def bit_distribution(tree: BinomialTree, probability: float) -> NoiseDistribution:
    """Distribution of the noise of a vector-sum tree at each release.

    Parameters
    ----------
    tree : BinomialTree
        The mechanism: users, trials and g of every level.
    probability : float
        The probability that the coupling to normals may fail.

    Returns
    -------
    NoiseDistribution
        A prefix adds up its nodes, at most one of each level.
    """
    levels = range(tree.depth)
    held = [[k >> j & 1 for j in levels] for k in range(tree.releases + 1)]
    nodes = [Node(tree.users(j), tree.trials(j), (tree.g[j], tree.g[j])) for j in levels]
    distribution = _sum_distribution(
        np.array(held, np.float64), nodes, tree.coordinates, probability
    )
    return replace(distribution, published_std=tree.published_std)


def batch_distribution(
    batches: VectorBatches, releases: int, probability: float
) -> NoiseDistribution:
    """Distribution of the noise of vector sums of single batches, which are added up."""
    node = Node(batches.batch_size, batches.trials, batches.g)
    held = np.arange(releases + 1.0)[:, None]
    return _sum_distribution(held, [node], batches.coordinates, probability)


def batches_distribution(batches: list[VectorBatches], probability: float) -> NoiseDistribution:
    """Distribution of the noise of vector sums of batches that differ, which are added up."""
    nodes = [Node(batch.batch_size, batch.trials, batch.g) for batch in batches]
    held = np.tri(len(batches) + 1, len(batches), -1)
    return _sum_distribution(held, nodes, batches[0].coordinates, probability)


@dataclass(frozen=True)
class Node:
    """One vector sum.

    Parameters
    ----------
    users : int
        Data points of an entry.
    trials : int
        N, noise bits of an entry.
    g : (int, int)
        Bits that encode one unit, in the bias and in the covariance stream.
    """

    users: int
    trials: int
    g: tuple[int, int]


def _sum_distribution(
    held: np.ndarray, nodes: list[Node], coordinates: int, probability: float
) -> NoiseDistribution:
    """Distribution of sums of nodes, ``held[k, j]`` of the j-th kind in release k.

    A node's entry is (Bin(N, 1/4) - N / 4 + rounding) / g. The binomial is a monotone function of
    a standard normal Z, and differs from sigma Z by at most `coupling`; Z is independent of the
    data, as the bits are. The roundings of n points, each on an interval of length 1 and centred
    given the past, have sub-Gaussian scale sqrt(n) / 2: the points may depend on earlier noise, but
    which of them are in a release, and in which node, does not. Gaussian variances and squared
    scales add up, and so do the largest differences. Where the streams differ in g, the smaller one
    bounds both, except for the Gaussian part.
    """
    releases = len(held) - 1
    held = held.reshape(releases + 1, len(nodes))
    draws = max(releases * coordinates, 1)
    coarse = [min(node.g) for node in nodes]
    rounding = [node.users / (4.0 * g**2) for node, g in zip(nodes, coarse, strict=True)]
    if max((node.trials for node in nodes), default=0) > MAX_COUPLED_BITS:
        # Too many bits to compare: the noise as a whole is taken as sub-Gaussian.
        rounding = [
            r + BIT_SCALE_SQUARED * node.trials / g**2
            for node, g, r in zip(nodes, coarse, rounding, strict=True)
        ]
        spread, apart, probability = [0.0 for _ in nodes], [0.0 for _ in nodes], 0.0
    else:
        spread = [math.sqrt(BIT_VARIANCE * node.trials) for node in nodes]
        apart = [
            coupling(node.trials, probability / draws) / g
            for node, g in zip(nodes, coarse, strict=True)
        ]
    # Rounding compares with a number of 32 bits, which moves its mean by less than one of them.
    apart = [c + node.users * 2.0**-32 / g for node, g, c in zip(nodes, coarse, apart, strict=True)]
    bias = [s / node.g[0] for node, s in zip(nodes, spread, strict=True)]
    covariance = [s / node.g[1] for node, s in zip(nodes, spread, strict=True)]
    # Nodes differ by how their bits are rounded up; variances are in units of the largest.
    std, other = max(bias, default=0.0), max(covariance, default=0.0)
    variances = np.zeros(len(nodes))
    if std > 0.0:
        variances = np.square(np.maximum(np.array(bias) / std, np.array(covariance) / other))
    return NoiseDistribution(
        NoiseStd(std, other, other),
        1,
        held @ variances,
        None,
        Remainder(held @ np.array(apart), np.sqrt(held @ np.array(rounding)), probability),
    )


def coupling(trials: int, probability: float) -> float:
    """Largest |X - N/4 - sigma Z|, X ~ Bin(N, 1/4), except for an event of some probability.

    Parameters
    ----------
    trials : int
        N, the number of bits.
    probability : float
        The probability of the exception.

    Returns
    -------
    float
        The largest difference, in bits; infinite if the grid does not reach far enough.

    Notes
    -----
    X = F^-1(Phi(Z)) for a standard normal Z (and X and a uniform number make such a Z). Between
    two points a < b of a grid, with x(k) = Phi^-1(F(k)) and x(a) < Z <= x(b), X is in a + 1..b, so
    the difference lies between a + 1 - N/4 - sigma x(b) and b - N/4 - sigma x(a). Z beyond the
    grid or beyond its reach has at most this probability; the incomplete beta function is good to
    nine digits where it is used, so its error is less than 1e-4 of a bit. SciPy before 1.17 has
    that up to 10^9 bits; of more the difference was seen 4e-6 of it too small, and 0.3 % too large.
    """
    from scipy.special import betainc, ndtri

    if trials == 0:
        return 0.0
    sigma, mean = math.sqrt(0.1875 * trials), 0.25 * trials
    reach = -float(ndtri(0.5 * probability)) + 1.0
    step = max(1, math.floor(SPACING * sigma))
    # The right tail of a binomial is heavier than its Gaussian's: reach further there.
    first = max(-1, math.floor(mean - (reach + 1.0) * sigma))
    last = min(trials, math.ceil(mean + (reach + 0.2 * reach * reach / sigma + 4.0) * sigma))
    k = np.unique(np.append(np.arange(first, last, step), last)).astype(np.float64)
    inside = (k >= 0) & (k < trials)
    below, above = np.where(k < 0, 0.0, 1.0), np.where(k < 0, 1.0, 0.0)
    below[inside] = betainc(trials - k[inside], k[inside] + 1.0, 0.75)
    above[inside] = betainc(k[inside] + 1.0, trials - k[inside], 0.25)
    x = np.where(below < 0.5, ndtri(below), -ndtri(above))
    kept = (x[1:] > -reach) & (x[:-1] < reach)
    if not (below[0] <= 0.5 * probability and above[-1] <= 0.5 * probability):
        return math.inf
    a, b = k[:-1][kept], k[1:][kept]
    left, right = np.maximum(x[:-1][kept], -reach), np.minimum(x[1:][kept], reach)
    low, high = a + 1.0 - mean - sigma * right, b - mean - sigma * left
    return float(np.maximum(np.abs(low), np.abs(high)).max())
