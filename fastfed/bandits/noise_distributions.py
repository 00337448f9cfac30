"""Distribution of the noise in synchronised sums, and bounds on it that hold with high probability.

`NoiseDistribution` describes the noise of every release. Its methods `operator_norms`,
`vector_norms` and `errors` bound the noise, and confidence radii are computed from these bounds.
Every bound is proven, and nearly tight in the far tail where it is used. The functions below the
class bound tails of Gaussian matrices and vectors. The noise of a vector sum is a sum of random
bits. It is treated as Gaussian noise plus a remainder, which is bounded numerically.

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

from fastfed._cache import cached, cached_early
from fastfed._roots import brentq
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.vector_batches import VectorBatches
from fastfed.protocols.plan import NoiseStd

# ---- The noise of each release -------------------------------------------------------------------

#: Share of the failure probability that is spent on rounding errors of data points. These errors
#: are small, so a larger share would hardly reduce the bounds.
ROUNDING_SHARE = 0.1


@dataclass(frozen=True)
class Remainder:
    """Difference between noise made of bits and Gaussian noise, at each release k = 0..K.

    Every entry of the noise is sigma Z + e + r. Z is standard normal, and independent of the data
    and of the Z of all other entries. e is the coupling error, r the rounding error.

    Parameters
    ----------
    coupling : ndarray, shape (K + 1,)
        Bound on |e|. It holds for all entries and releases together, except with ``probability``.
    rounding : ndarray, shape (K + 1,)
        Sub-Gaussian scale of r. r is a sum of the rounding errors of data points, which are
        martingale differences. Each is sub-Gaussian given the past, with a squared scale that is
        known in advance. The sum of the squared scales is at most ``rounding`` squared.
    probability : float
        The probability that ``coupling`` fails.
    """

    coupling: np.ndarray
    rounding: np.ndarray
    probability: float


@dataclass(frozen=True)
class NoiseDistribution:
    """Distribution of N, the symmetric noise in V, and h, the noise in u, at each release k = 0..K.

    V = lambda I + sum x x' and u = sum x y are the sums of a release. An entry of h at release k
    has standard deviation ``node.bias`` sqrt(``noises`` ``variances[k]``). Entries of N have the
    standard deviations ``node.off_diagonal`` and ``node.diagonal`` with the same factor. The
    entries of h, and of N on and above the diagonal, are independent of each other and of the data.
    Later data may have been chosen given the noise.

    Parameters
    ----------
    node : NoiseStd
        Standard deviations of the noise of one tree node, in units of the sums.
    noises : float, default 1
        Number of independent noise sources whose noise is added up in a release: M if every silo
        adds noise. It is no integer if silos have noise of different sizes.
    variances : ndarray, shape (K + 1,)
        Variance of the noise of one source in each release, in units of one node's variance. For
        the tree, the number of nodes that are added up for release k.
    published_std : float, optional
        s in the published code's regularizer, if it differs from the std of the noise.
    remainder : Remainder, optional
        For noise that is a sum of random bits, its difference from Gaussian noise.
    counted : int, default 0
        Number of releases for which the bounds hold, if it is larger than K. The last entry of
        ``variances`` is then an upper bound for all further releases.
    public_constant : bool, default False
        True if the last feature is a constant set by the code, so that the last diagonal entry of N
        is 0 (docs/centred.md).
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
        """K, the number of releases in ``variances``."""
        return len(self.variances) - 1

    @property
    def none(self) -> bool:
        """True if no release has noise."""
        no_node_noise = self.node.parts == (0.0, 0.0, 0.0) and self.remainder is None
        return self.releases == 0 or no_node_noise

    @property
    def scales(self) -> np.ndarray:
        """Std of the noise in each release, in units of the std of one node, shape (K + 1,)."""
        scales: np.ndarray = np.sqrt(self.noises * self.variances)
        return scales

    @property
    def goe_std(self) -> float:
        """Off-diagonal std of the smallest GOE matrix that dominates N, the noise of one node.

        A GOE matrix (Gaussian orthogonal ensemble) has independent entries, and the std on its
        diagonal is sqrt(2) times the off-diagonal std. It dominates N if none of its entries has a
        smaller std than the entry of N.
        """
        return max(self.node.off_diagonal, self.node.diagonal / math.sqrt(2.0))

    @property
    def exact_goe(self) -> bool:
        """True if N is a GOE matrix: the diagonal std is sqrt(2) times the off-diagonal std."""
        if self.remainder is not None or self.public_constant:
            return False
        o, d = self.node.off_diagonal, self.node.diagonal
        return math.isclose(d, math.sqrt(2.0) * o, rel_tol=1e-12)

    def operator_norms(self, dimension: int, probability: float) -> np.ndarray:
        """Bound the operator norm of N, the noise in V, at each release.

        All bounds hold together with probability 1 - p, where p is ``probability``.

        Parameters
        ----------
        dimension : int
            d, the number of rows of N.
        probability : float
            p, split over releases (see `_split_probability`), and equally over the two ends of the
            spectrum.

        Returns
        -------
        ndarray, shape (K + 1,)
            The bound at each release.

        Raises
        ------
        ValueError
            If the coupling of bits fails with probability p or more.

        Notes
        -----
        If N, at the scale of one node, is a GOE matrix, it is ``goe_std`` times the matrix of
        `largest_eigenvalue`. Otherwise N has less variance in some entries. Let D be independent
        noise with the missing variance, so that N + D is a GOE matrix. D does not lower lambda_max
        with probability at least 1/2, because u'Du is symmetric for the top eigenvector u of N. So
        P(lambda_max(N) > t) <= 2 P(lambda_max(N + D) > t). The code divides p by this factor 2, and
        always by 2 for the two ends of the spectrum.

        If the noise is a sum of bits, it has a `Remainder`: coupling errors e and rounding errors
        r, which are matrices here. They add at most d max |e| + ||r||. The matrix r is a sum of
        terms r_ij A_ij with fixed matrices A_ij and sum A_ij^2 = d I. With ``scale`` the
        sub-Gaussian scale `Remainder.rounding`, E exp(s r_ij A_ij) <= exp(s^2 scale^2 A_ij^2 / 2)
        holds given the past, and its right side is known in advance. So Theorem 3.6 of Tropp 2012
        holds without independence: P(||r|| > t) <= 2 d exp(-t^2 / (2 d scale^2)).
        """
        if self.none:
            return np.zeros(self.releases + 1)
        gaussian, rounding = self._split_probability(probability)
        unit = largest_eigenvalue(dimension, gaussian / (2.0 if self.exact_goe else 4.0))
        bound = unit * self.goe_std * self.scales
        if self.remainder is not None:
            tail = math.log(2.0 * dimension / rounding)
            bound = bound + dimension * self.remainder.coupling
            bound = bound + math.sqrt(2.0 * dimension * tail) * self.remainder.rounding
        return bound

    def vector_norms(self, dimension: int, probability: float) -> np.ndarray:
        """Bound the norm of h, the noise in the bias vector, at each release k = 0..K, (K + 1,).

        All bounds hold together with probability 1 - ``probability``. A bound is a quantile of the
        norm of the Gaussian noise. For noise made of bits, bounds on the norms of the coupling
        errors and of the rounding errors are added (`Remainder`). The rounding errors are bounded
        by Theorem 2.1 of Hsu, Kakade and Zhang 2012.
        """
        if self.none:
            return np.zeros(self.releases + 1)
        gaussian, rounding = self._split_probability(probability)
        bound = norm_quantile(dimension, self.node.bias**2, 0.0, gaussian) * self.scales
        if self.remainder is not None:
            bound = bound + math.sqrt(dimension) * self.remainder.coupling
            bound = (
                bound
                + _subgaussian_norm_quantile(dimension, 1.0, 0.0, rounding)
                * self.remainder.rounding
            )
        return bound

    def errors(
        self, dimension: int, probability: float, tau: float = 1.0, along: float | None = None
    ) -> np.ndarray:
        """Bound ||N theta - h|| at each release, for any fixed theta with ||theta|| <= tau.

        N is the noise in V, and h the noise in the bias vector. All bounds hold together with
        probability 1 - p, where p is ``probability``.

        Parameters
        ----------
        dimension : int
            d, the number of rows of N.
        probability : float
            p, split over releases (see `_split_probability`).
        tau : float, default 1
            Bound on ||theta||. theta must not depend on the noise.
        along : float, optional
            A number such that the largest eigenvalue of the covariance of N theta is at most
            o^2 (tau^2 + along), with o = ``goe_std``. By default along = tau^2, which is always
            valid.
            `fastfed.bandits.problem.centred_norm` computes a smaller value if N has a
            ``public_constant`` and mean rewards are bounded.

        Returns
        -------
        ndarray, shape (K + 1,)
            The bound at each release.

        Notes
        -----
        Let b be the std of the entries of h, and o = ``goe_std``. The covariance of N theta - h is
        at most (b^2 + o^2 ||theta||^2) I + o^2 theta theta', and smaller if entries have less
        noise. By Anderson 1955 a larger covariance gives larger norms, so the covariance with tau
        instead of ||theta|| gives a bound.

        In <x, N theta - h> the rounding error of N_ij has the factor x_i theta_j + x_j theta_i,
        that of N_ii the factor x_i theta_i, and that of h_i the factor -x_i. The sum of the squared
        factors is at most x'((1 + tau^2) I + theta theta')x. The coupling error of an entry of
        N theta is at most sqrt(d) tau times ``coupling``, and that of an entry of h at most
        ``coupling``.
        """
        if self.none:
            return np.zeros(self.releases + 1)
        tau_squared = tau * tau
        h_variance, n_variance = self.node.bias**2, self.goe_std**2  # b^2 and o^2 of the notes
        gaussian, rounding = self._split_probability(probability)
        common = h_variance + n_variance * tau_squared
        extra = n_variance * (tau_squared if along is None else along)
        bound = norm_quantile(dimension, common, extra, gaussian) * self.scales
        if self.remainder is not None:
            coupling_factor = dimension * tau + math.sqrt(dimension)
            bound = bound + coupling_factor * self.remainder.coupling
            rounding_factor = _subgaussian_norm_quantile(
                dimension, 1.0 + tau_squared, tau_squared, rounding
            )
            bound = bound + rounding_factor * self.remainder.rounding
        return bound

    def _split_probability(self, probability: float) -> tuple[float, float]:
        """Return the failure probabilities that one release may spend, as (Gaussian, rounding).

        The first is for the bound on the Gaussian part of the noise, the second for the bound on
        its rounding error.

        Gaussian noise is not rounded, so each release gets an equal share of ``probability``. The
        number of shares is ``counted`` if this is larger than K. For noise made of random bits, the
        probability that the coupling bound fails for some release is ``remainder.probability``. The
        releases get equal shares of the rest, and a part `ROUNDING_SHARE` of each share is for the
        rounding error.
        """
        if self.remainder is None:
            return probability / max(self.releases, self.counted), 0.0
        per_release = (probability - self.remainder.probability) / self.releases
        if per_release <= 0.0:
            raise ValueError("the coupling of bits takes the whole failure probability")
        return (1.0 - ROUNDING_SHARE) * per_release, ROUNDING_SHARE * per_release


def of_views(
    distribution: NoiseDistribution, scales: tuple[float, ...], reports: np.ndarray
) -> NoiseDistribution:
    """Return the distribution of the noise in views, if silos report on separate clocks.

    A view is the sum of the latest reports of all silos.

    Parameters
    ----------
    distribution : NoiseDistribution
        The noise of releases k = 0..K if all silos report together.
    scales : tuple of float
        f_i, the noise of each silo as a multiple of the noise of ``distribution.node``. Empty if
        all are 1.
    reports : ndarray of int, shape (V + 1, M)
        k_i, the number of reports of silo i in each view.

    Returns
    -------
    NoiseDistribution
        The noise of each view: its variance is sum_i f_i^2 ``distribution.variances[k_i]``. The
        bounds that it computes hold for all views together.
    """
    variances = np.zeros(len(reports))
    squares = [f * f for f in scales] or [1.0] * reports.shape[1]
    for view, counts in enumerate(reports.tolist()):
        # Add up the squares of silos with the same number of reports first. If all silos report
        # together, the result is then bit for bit what ``distribution`` gives for release k:
        # ``noises * variances[k]``.
        squares_by_count: dict[int, float] = {}
        for count, square in zip(counts, squares, strict=True):
            squares_by_count[count] = squares_by_count.get(count, 0.0) + square
        variances[view] = sum(
            square * float(distribution.variances[k]) for k, square in squares_by_count.items()
        )
    return replace(distribution, noises=1.0, variances=variances)


def _subgaussian_norm_quantile(
    dimension: int, common_variance: float, extra_variance: float, probability: float
) -> float:
    """Return an upper quantile of the norm of a sub-Gaussian vector X: t with P(||X|| > t) <= p.

    p is ``probability``. The squared sub-Gaussian scale of X is ``common_variance`` +
    ``extra_variance`` in one direction, and ``common_variance`` in the directions orthogonal to it.
    Source: Hsu, Kakade and Zhang 2012, Theorem 2.1.
    """
    tail, top = math.log(1.0 / probability), common_variance + extra_variance
    squares = (dimension - 1.0) * common_variance**2 + top**2
    trace = (dimension - 1.0) * common_variance + top
    return math.sqrt(trace + 2.0 * math.sqrt(squares * tail) + 2.0 * top * tail)


# ---- Tails of Gaussian matrices and vectors ------------------------------------------------------

#: Above this dimension `largest_eigenvalue` uses only its closed-form bound, because computing the
#: table of `_expected_above` takes too long.
MAX_EXACT_DIMENSION = 500
#: Grid step of the table of `_expected_above`, in units of eigenvalues.
EIGENVALUE_STEP = 2e-3


@cache
def _expected_above(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid x >= 0, and the log of the expected number of eigenvalues above each x.

    The eigenvalues are those of a d x d GOE matrix with diagonal variance 1 and off-diagonal
    variance 1/2, where d is ``dimension``. With phi_k the orthonormal Hermite functions, the
    density of the eigenvalues at x is (Mehta 2004, Section 7.2)
        sum_{k<d} phi_k(x)^2 + sqrt(d / 2) phi_{d-1}(x) int sgn(x - y) phi_d(y) dy / 2
        + [d odd] phi_{d-1}(x) / int phi_{d-1}.
    """
    d = dimension
    grid_end = math.sqrt(2.0 * d) + 18.0
    x = np.arange(0.0, grid_end, EIGENVALUE_STEP)
    # In the loop, ``phi`` is phi_k e^-log_scale and ``previous`` is phi_{k-1} e^-log_scale, because
    # phi_0 itself underflows for large x. ``square_sum`` is the sum of phi_0^2 .. phi_k^2.
    log_scale = -0.5 * x * x
    previous, phi = np.zeros_like(x), np.full_like(x, math.pi**-0.25)
    square_sum = np.square(phi * np.exp(log_scale))
    for k in range(1, d):
        # The three-term recurrence from phi_{k-1} to phi_k.
        previous, phi = phi, math.sqrt(2.0 / k) * x * phi - math.sqrt((k - 1.0) / k) * previous
        size = np.maximum(np.abs(phi), 1.0)
        previous, phi, log_scale = previous / size, phi / size, log_scale + np.log(size)
        square_sum = square_sum + np.square(phi * np.exp(log_scale))
    last = phi * np.exp(log_scale)  # phi_{d-1}
    phi_d = math.sqrt(2.0 / d) * x * phi - math.sqrt((d - 1.0) / d) * previous
    phi_d = phi_d * np.exp(log_scale)
    # int sgn(x - y) phi_d(y) dy / 2 = total / 2 - tail(x). Here ``total`` is the integral of phi_d
    # over the whole line, and tail(x) the integral over y > x. If d is even, phi_d is even and
    # total = 2 tail(0). If d is odd, phi_d is odd and total = 0.
    tail = _right_sums(phi_d)
    sign_integral = (tail[0] - tail) if d % 2 == 0 else -tail
    density = square_sum + math.sqrt(d / 2.0) * last * sign_integral
    if d % 2 == 1:
        density = density + last / (2.0 * _right_sums(last)[0])
    expected = _right_sums(np.maximum(density, 0.0))
    return x, np.log(np.maximum(expected, 1e-300))


def _right_sums(values: np.ndarray) -> np.ndarray:
    """Return the integral of a function from each grid point to the end of the grid.

    ``values`` are the function's values at grid points with step `EIGENVALUE_STEP`. The trapezoidal
    rule overestimates the integral of a convex function, so the result is an upper bound in a tail.
    """
    pieces = 0.5 * EIGENVALUE_STEP * (values[1:] + values[:-1])
    return np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]])


def largest_eigenvalue(dimension: int, probability: float) -> float:
    """Return an upper quantile of the largest eigenvalue of a symmetric Gaussian matrix.

    The matrix has independent entries with variance 1 above the diagonal and 2 on the diagonal.

    Parameters
    ----------
    dimension : int
        d, the number of rows.
    probability : float
        p, in (0, 1).

    Returns
    -------
    float
        t with P(lambda_max > t) <= p.

    Notes
    -----
    The result is the smaller of two bounds. The first is the t above which the expected number of
    eigenvalues is p. By Markov's inequality, this number bounds the probability that an eigenvalue
    exceeds t. The second bound is 2 sqrt d + 2 sqrt(ln(1 / p)). It follows from
    E lambda_max <= 2 E ||g|| <= 2 sqrt d for a standard normal vector g, and from the concentration
    of a sqrt 2-Lipschitz function of standard normals. The bound on E lambda_max is the
    Sudakov-Fernique inequality: for the matrix N and unit vectors u, v the increments of u'Nu have
    variance 4 (1 - <u, v>^2), at most the variance of the increments of 2 <g, u>.
    """
    closed_form = 2.0 * (math.sqrt(dimension) + math.sqrt(-math.log(probability)))
    if dimension > MAX_EXACT_DIMENSION or probability < 1e-60:
        return closed_form
    x, log_expected = _expected_above(dimension)
    # Add one grid step, which is far more than the error of the trapezoidal rule.
    index = int(np.searchsorted(-log_expected, -math.log(probability)))
    if index + 1 >= len(x):
        return closed_form
    return min(closed_form, math.sqrt(2.0) * float(x[index] + EIGENVALUE_STEP))


@cache
def _quadrature_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and the weights of Gauss-Legendre quadrature on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


@cached_early
def norm_quantile(dimension: int, common: float, extra: float, probability: float) -> float:
    """Return an upper quantile of ||X|| for X ~ N(0, common I + extra u u') with ||u|| = 1.

    Parameters
    ----------
    dimension : int
        d, the length of X.
    common, extra : float
        The variance >= 0 in every direction, and the additional variance >= 0 in direction u.
    probability : float
        p, in (0, 1).

    Returns
    -------
    float
        t with P(||X|| > t) <= p.

    Notes
    -----
    ||X||^2 = common chi^2_{d-1} + (common + extra) z^2 with a standard normal z. P(||X||^2 > q) is
    one integral over z. The substitution z = z_max sin(s), where z_max^2 = q / (common + extra),
    makes the integrand smooth at the end z = z_max.
    """
    from scipy.special import gammaincc, ndtr, ndtri

    if common == 0.0:  # then ||X|| = sqrt(extra) |z|
        return -math.sqrt(extra) * float(ndtri(0.5 * probability))
    nodes, weights = _quadrature_nodes()
    sine, cosine = np.sin(0.25 * math.pi * (nodes + 1.0)), np.cos(0.25 * math.pi * (nodes + 1.0))
    weights = 0.25 * math.pi * cosine * weights

    def tail(square: float) -> float:
        """Return P(||X||^2 > square)."""
        z_max = math.sqrt(square / (common + extra))
        tail_of_z = 2.0 * float(ndtr(-z_max))
        if dimension == 1:
            return tail_of_z
        density = np.exp(-0.5 * np.square(z_max * sine)) * math.sqrt(2.0 / math.pi)
        chi_square_limit = square * np.square(cosine) / common
        integrand = gammaincc(0.5 * (dimension - 1), 0.5 * chi_square_limit) * density
        return tail_of_z + z_max * float(weights @ integrand)

    high = common * dimension + extra
    while tail(high) > probability:
        high *= 2.0
    low = high
    while tail(low) <= probability:
        low *= 0.5
    # The tail may underflow to 0. Only the sign of the logarithm matters there.
    smallest = math.ulp(0.0)
    root = float(
        brentq(lambda q: math.log(max(tail(q), smallest) / probability), low, high, rtol=1e-12)
    )
    # The factor covers the errors of quadrature and root, which have ten correct digits or more.
    return math.sqrt(root) * (1.0 + 1e-9)


# ---- Noise made of bits --------------------------------------------------------------------------

#: Squared sub-Gaussian scale of a random bit of mean 1/4, minus its mean (Kearns and Saul 1998).
BIT_SCALE_SQUARED = 0.5 / (2.0 * math.log(3.0))
#: Variance of one bit of mean 1/4.
BIT_VARIANCE = 0.1875
#: Largest number of bits for which SciPy's incomplete beta function is accurate enough for
#: `coupling`.
MAX_COUPLED_BITS = 10**12
#: Step of the grid on which `coupling` compares binomial and normal distribution, in standard
#: deviations of the binomial.
COUPLING_STEP = 0.005


def bit_distribution(tree: BinomialTree, probability: float) -> NoiseDistribution:
    """Return the distribution of the noise in each release of a vector-sum tree.

    A release is the sum of at most one node of each level of the tree.

    Parameters
    ----------
    tree : BinomialTree
        The mechanism. For the nodes of each level j it gives the number of users, the number of
        noise bits (``trials``), and the encoding steps per unit g_j, for bias and covariance alike.
    probability : float
        The probability that the bound on the coupling errors may fail for any entry of any release
        (`Remainder.probability`).

    Returns
    -------
    NoiseDistribution
        The distribution at each release of the tree.
    """
    levels = range(tree.depth)
    node_counts = [[k >> j & 1 for j in levels] for k in range(tree.releases + 1)]
    nodes = [Node(tree.users(j), tree.trials(j), (tree.g[j], tree.g[j])) for j in levels]
    distribution = _sum_distribution(
        np.array(node_counts, np.float64), nodes, tree.coordinates, probability
    )
    return replace(distribution, published_std=tree.published_std)


def batch_distribution(
    batches: VectorBatches, releases: int, probability: float
) -> NoiseDistribution:
    """Return the distribution of the noise if release k adds up the vector sums of batches 1 to k.

    There is no tree, and all batches have the same size. ``probability`` is the probability that
    the bound on the coupling errors may fail for any entry of any release
    (`Remainder.probability`).
    """
    node = Node(batches.batch_size, batches.trials, batches.g)
    node_counts = np.arange(releases + 1.0)[:, None]
    return _sum_distribution(node_counts, [node], batches.coordinates, probability)


def batches_distribution(batches: list[VectorBatches], probability: float) -> NoiseDistribution:
    """Return the distribution of the noise if release k adds up the vector sums of batches 1 to k.

    There is no tree, and batches may differ in size. ``probability`` is the probability that the
    bound on the coupling errors may fail for any entry of any release (`Remainder.probability`).
    """
    nodes = [Node(batch.batch_size, batch.trials, batch.g) for batch in batches]
    node_counts = np.tri(len(batches) + 1, len(batches), -1)
    return _sum_distribution(node_counts, nodes, batches[0].coordinates, probability)


@dataclass(frozen=True)
class Node:
    """One vector sum: a sum of data points that are encoded as bits, with noise bits.

    Parameters
    ----------
    users : int
        Number of data points.
    trials : int
        N, the number of noise bits of all data points together, in each entry.
    g : (int, int)
        Encoding steps per unit: a number is rounded to a multiple of 1 / g. The first is for
        entries of x y, the second for entries of x x'.
    """

    users: int
    trials: int
    g: tuple[int, int]


def _sum_distribution(
    node_counts: np.ndarray, nodes: list[Node], coordinates: int, probability: float
) -> NoiseDistribution:
    """Return the distribution of the noise in releases that are sums of independent vector sums.

    Release k adds up ``node_counts[k, j]`` vector sums with the parameters ``nodes[j]``. A vector
    sum has ``coordinates`` entries. ``probability`` is the probability that the bound on the
    coupling errors may fail for any entry of any release.

    The noise of an entry of a node is (Bin(N, 1/4) - N / 4 + rounding) / g, with N and g of `Node`.
    The binomial is coupled to a standard normal Z, of which it is a monotone function. The centred
    binomial Bin(N, 1/4) - N / 4, of standard deviation sigma, differs from sigma Z by at most
    `coupling`. Z is independent of the data, because the bits are independent of the data. The
    rounding error of n points has sub-Gaussian scale sqrt(n) / 2, because each point's error has
    mean 0 given the past and lies in an interval of length 1. The points may depend on earlier
    noise, but the assignment of points to releases and nodes does not.

    In a sum of nodes, Gaussian variances, squared sub-Gaussian scales and coupling errors add up.
    The Gaussian part is computed with the g of bias entries and the g of covariance entries. The
    rounding and coupling errors of all entries are bounded with the smaller of these two g.
    """
    releases = len(node_counts) - 1
    node_counts = node_counts.reshape(releases + 1, len(nodes))
    draws = max(releases * coordinates, 1)
    smallest_g = [min(node.g) for node in nodes]
    rounding = [node.users / (4.0 * g**2) for node, g in zip(nodes, smallest_g, strict=True)]
    if max((node.trials for node in nodes), default=0) > MAX_COUPLED_BITS:
        # Too many bits for `coupling`: treat all of the noise as sub-Gaussian.
        rounding = [
            r + BIT_SCALE_SQUARED * node.trials / g**2
            for node, g, r in zip(nodes, smallest_g, rounding, strict=True)
        ]
        gaussian_stds, coupling_errors, probability = (
            [0.0 for _ in nodes],
            [0.0 for _ in nodes],
            0.0,
        )
    else:
        gaussian_stds = [math.sqrt(BIT_VARIANCE * node.trials) for node in nodes]
        coupling_errors = [
            coupling(node.trials, probability / draws) / g
            for node, g in zip(nodes, smallest_g, strict=True)
        ]
    # Rounding uses 32 random bits, which biases the mean of each point by less than 2^-32.
    coupling_errors = [
        c + node.users * 2.0**-32 / g
        for node, g, c in zip(nodes, smallest_g, coupling_errors, strict=True)
    ]
    bias = [s / node.g[0] for node, s in zip(nodes, gaussian_stds, strict=True)]
    covariance = [s / node.g[1] for node, s in zip(nodes, gaussian_stds, strict=True)]
    # Nodes may have different variances. Express them in units of the largest variance.
    bias_std, covariance_std = max(bias, default=0.0), max(covariance, default=0.0)
    variances = np.zeros(len(nodes))
    if bias_std > 0.0:
        variances = np.square(
            np.maximum(np.array(bias) / bias_std, np.array(covariance) / covariance_std)
        )
    return NoiseDistribution(
        NoiseStd(bias_std, covariance_std, covariance_std),
        1,
        node_counts @ variances,
        None,
        Remainder(
            node_counts @ np.array(coupling_errors),
            np.sqrt(node_counts @ np.array(rounding)),
            probability,
        ),
    )


@cached
def coupling(trials: int, probability: float) -> float:
    """Bound the difference between a centred binomial and a normal that is coupled to it.

    Let X ~ Bin(N, 1/4) be a noise count, with standard deviation sigma. Let Z be a standard normal
    that is a function of X and a uniform number. The difference is X - N/4 - sigma Z.

    Parameters
    ----------
    trials : int
        N, the number of bits.
    probability : float
        The probability with which the bound may fail.

    Returns
    -------
    float
        The bound on the absolute difference, in bits. It is infinite if the grid of the proof does
        not reach far enough.

    Notes
    -----
    Let F be the distribution function of X, and let Z satisfy X = F^-1(Phi(Z)). Let a < b be
    neighbours in a grid of integers, and x(k) = Phi^-1(F(k)). If x(a) < Z <= x(b), X is one of the
    integers a + 1, ..., b, so the difference is between a + 1 - N/4 - sigma x(b) and
    b - N/4 - sigma x(a). The result is the largest absolute value of these limits over the grid. It
    bounds the difference unless Z is outside of the grid or |Z| exceeds ``z_limit``, which happens
    with at most the given probability.

    The incomplete beta function has nine correct digits where it is used. Its error changes the
    result by less than 1e-4 bits. With SciPy before 1.17 this holds only for N up to 10^9 bits. For
    larger N, relative errors of the result between -4e-6 and +3e-3 were observed there.
    """
    from scipy.special import betainc, ndtri

    if trials == 0:
        return 0.0
    sigma, mean = math.sqrt(0.1875 * trials), 0.25 * trials
    z_limit = -float(ndtri(0.5 * probability)) + 1.0
    step = max(1, math.floor(COUPLING_STEP * sigma))
    # The right tail of the binomial is heavier than the normal tail, so the grid goes further.
    first = max(-1, math.floor(mean - (z_limit + 1.0) * sigma))
    last = min(trials, math.ceil(mean + (z_limit + 0.2 * z_limit * z_limit / sigma + 4.0) * sigma))
    k = np.unique(np.append(np.arange(first, last, step), last)).astype(np.float64)
    # P(X <= k) and P(X > k): the smaller one is needed, and the median is within 1 of the mean.
    below, above = np.where(k < 0, 0.0, 1.0), np.where(k < 0, 1.0, 0.0)
    inside, margin = (k >= 0) & (k < trials), 0.1 * sigma + 2.0
    left, right = inside & (k < mean + margin), inside & (k > mean - margin)
    below[left] = betainc(trials - k[left], k[left] + 1.0, 0.75)
    above[right] = betainc(k[right] + 1.0, trials - k[right], 0.25)
    x = np.where(below < 0.5, ndtri(below), -ndtri(above))
    reachable = (x[1:] > -z_limit) & (x[:-1] < z_limit)
    if not (below[0] <= 0.5 * probability and above[-1] <= 0.5 * probability):
        return math.inf
    a, b = k[:-1][reachable], k[1:][reachable]
    left, right = np.maximum(x[:-1][reachable], -z_limit), np.minimum(x[1:][reachable], z_limit)
    low, high = a + 1.0 - mean - sigma * right, b - mean - sigma * left
    return float(np.maximum(np.abs(low), np.abs(high)).max())
