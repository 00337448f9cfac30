"""The optimal factorisation of prefix sums over leaves of any lengths: less noise than Toeplitz.

With gamma the (K, s) leaves and A the lower triangular matrix of ones, A = B C for lower triangular
B and C. Released is A gamma + B z = B (C gamma + z), z of independent N(0, noise_std^2) rows, so
leaf j costs as much as one Gaussian mechanism of sensitivity ||C_j||, the norm of C's j-th column,
and prefix k has variance ||B_k||^2 noise_std^2, B_k the k-th row.

Later leaves may depend on what was released: C is lower triangular, so row k of C gamma + z is a
Gaussian mechanism of leaves 1..k, and these compose adaptively (Denisov et al. 2022, Theorem 2.1).

Of all C with columns of norm at most 1, `optimal_factor` takes the one with the least
    sum_k weight_k ||B_k||^2 = tr(W X^-1),   X = C'C, W = A' diag(weight) A, diag X <= 1,
which is convex in X. Where multipliers v > 0 of the diagonal satisfy X^-1 W X^-1 = diag(v),
    X = v^(-1/2) (v^(1/2) W v^(1/2))^(1/2) v^(-1/2),
and v <- v diag(X) leads there; any v bounds the least value from below by 2 tr((v^(1/2) W
v^(1/2))^(1/2)) - sum(v), so the iteration knows when it is done. Whatever it returns is a
factorisation, and the account is of its own numbers.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import solve_triangular

from fastfed._validate import InputError, array, integer

#: The most releases of a factorised plan: its matrix has that many squared numbers.
MOST_RELEASES = 1024
#: Relative distance from the least value at which the iteration stops, and its most steps.
GAP, STEPS = 1e-5, 2000
#: Entries of B are multiples of this: machines that round otherwise then agree on them.
GRID = 2.0**-24
#: Relative error of a computed sensitivity that is paid for, and the most that may be.
SLACK = 1e-9


class Factor:
    """Lower triangular B (K, K) of a factorised release, hashable by its content.

    Parameters
    ----------
    matrix : array_like, shape (K, K)
        Lower triangular, with positive diagonal.

    Raises
    ------
    InputError
        For another shape, an entry above the diagonal, a diagonal that is not positive, or a matrix
        so ill-conditioned that no sensitivity can be computed.
    """

    def __init__(self, matrix: object) -> None:
        checked = np.array(array("factor", matrix, ndim=2), dtype=np.float64)
        if checked.shape[0] != checked.shape[1]:
            raise InputError(f"factor must be a square matrix, got shape {checked.shape}")
        if np.triu(checked, 1).any() or not (np.diag(checked) > 0.0).all():
            raise InputError("factor must be lower triangular with a positive diagonal")
        checked.flags.writeable = False
        self.matrix = checked

    def __len__(self) -> int:
        """K, the number of releases."""
        return len(self.matrix)

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Factor) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        """Hash of the content, computed once."""
        return self._hash

    def __repr__(self) -> str:
        """Show the size."""
        return f"Factor({len(self)} releases)"

    @cached_property
    def _hash(self) -> int:
        return hash(self.matrix.tobytes())

    @cached_property
    def encoder(self) -> np.ndarray:
        """C = B^-1 A, (K, K), lower triangular: row k says how the leaves enter what is released.

        Computed in float64; no column is off by more than a tenth of ``SLACK`` of the largest norm.

        Raises
        ------
        InputError
            If it cannot be computed so precisely.
        """
        size = len(self)
        if not size:
            return np.zeros((0, 0))
        ones = np.tri(size)
        made = np.tril(solve_triangular(self.matrix, ones, lower=True, check_finite=False))
        inverse = solve_triangular(self.matrix, np.eye(size), lower=True, check_finite=False)
        # B (C + E) = A makes E = B^-1 (A - B C). A residual is computed with an error of its own
        # size, at most K + 2 roundings of the sum of absolute products; B^-1 is needed roughly.
        left = np.abs(ones - self.matrix @ made)
        left += (size + 2) * 2.0**-53 * (np.abs(self.matrix) @ np.abs(made))
        error = np.abs(inverse) @ left
        norms = np.sqrt((made**2).sum(axis=0))
        if not np.sqrt((error**2).sum(axis=0).max()) <= 0.1 * SLACK * norms.max():
            raise InputError("factor is too ill-conditioned for an account of its sensitivity")
        return made

    @cached_property
    def _products(self) -> np.ndarray:
        """Absolute inner products of the columns of C, each row in decreasing order, (K, K)."""
        found = np.abs(self.encoder.T @ self.encoder)
        found.sort(axis=1)
        return found[:, ::-1]

    def squared_sensitivity(self, returning: int = 1) -> float:
        """Squared sensitivity of the release to one user, per unit of one record's.

        The largest ||C_j||^2 for a user of one leaf. A user of the leaves S moves it by at most
        sum_{i, j in S} |C_i' C_j|, which is at most |S| times the largest sum of |S| entries of a
        row of |C'C|.
        """
        if not len(self):
            return 0.0
        most = min(returning, len(self))
        largest = float((self.encoder**2).sum(axis=0).max())
        if most == 1:
            return largest * (1.0 + 2.0 * SLACK)
        # An inner product is off by 0.3 SLACK times the largest at most, and so are all of them.
        row = float(self._products[:, :most].sum(axis=1).max())
        return most * (row + most * SLACK * largest)

    @cached_property
    def variances(self) -> np.ndarray:
        """Variances ||B_k||^2 of the noise in prefix k = 1..K, in units of noise_std^2, (K,)."""
        found: np.ndarray = (self.matrix**2).sum(axis=1)
        return found


def optimal_factor(release_rounds: tuple[int, ...], horizon: int) -> Factor:
    """Factor whose noise costs a linear bandit least, for releases after these rounds.

    A prefix of n rounds serves the rounds until the next release with an error of its noise over n,
    so prefix k has weight (rounds that it serves) / n_k^2.

    Parameters
    ----------
    release_rounds : tuple of int, length K
        n_1 < ... < n_K, the rounds after which there is a release, at most `MOST_RELEASES`.
    horizon : int
        T >= n_K.

    Returns
    -------
    Factor
        B, its entries multiples of ``GRID``, with columns of C of norm 1 but for rounding.

    Raises
    ------
    InputError
        For too many releases, or rounds that do not increase.
    """
    horizon = integer("horizon", horizon, at_least=1)
    if len(release_rounds) > MOST_RELEASES:
        raise InputError(
            f'release "factorised" is for at most {MOST_RELEASES} releases, got '
            f'{len(release_rounds)}: batch_size = "growing" has fewer'
        )
    ends = np.array(release_rounds, dtype=np.int64)
    if len(ends) and not (ends[0] >= 1 and (np.diff(ends) > 0).all() and ends[-1] <= horizon):
        raise InputError("release_rounds must increase from 1 to the horizon at most")
    return _optimal(tuple(int(n) for n in ends), horizon)


@lru_cache(maxsize=64)
def _optimal(ends: tuple[int, ...], horizon: int) -> Factor:
    """Compute `optimal_factor` for arguments that were checked before."""
    if not ends:
        return Factor(np.zeros((0, 0)))
    rounds = np.array(ends, dtype=np.float64)
    served = np.maximum(np.append(rounds[1:], horizon) - rounds, 1.0)
    return factor_for(served / rounds**2)


def factor_for(weights: np.ndarray) -> Factor:
    """Factor with the least sum_k weights_k ||B_k||^2, for weights (K,) > 0."""
    size = len(weights)
    weights = weights / weights.sum()
    ones = np.tri(size)
    # W = root root'. Of v^(1/2) root the singular values are wanted: as roots of eigenvalues of its
    # square, which lie far apart where weights do, the small ones would be lost to rounding.
    root = ones.T * np.sqrt(weights)
    # A good start: X = I has v = diag(W).
    v = (root**2).sum(axis=1)
    for _ in range(STEPS):
        scale = np.sqrt(v)
        vectors, values, _ = np.linalg.svd(scale[:, None] * root)
        diagonal = (vectors**2 @ values) / v
        # X / max diag X is feasible, and costs max diag X times tr(W X^-1) = sum of ``values``.
        lower = 2.0 * values.sum() - v.sum()
        if diagonal.max() * values.sum() - lower <= GAP * lower:
            break
        v *= diagonal
    # X = Y'Y = C'C with C lower triangular: a QR decomposition from the last column on.
    y = np.sqrt(values)[:, None] * vectors.T / scale
    _, r = np.linalg.qr(y[:, ::-1])
    c = r[::-1, ::-1]
    c = np.tril(c * np.where(np.diag(c) < 0.0, -1.0, 1.0)[:, None])
    c /= np.sqrt((c**2).sum(axis=0).max())
    b = solve_triangular(c.T, ones.T, lower=False).T
    rounded = np.tril(np.round(b / GRID) * GRID)
    return Factor(rounded)
