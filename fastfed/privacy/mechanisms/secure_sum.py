"""Secure sums: at each release, the server sees only one noisy sum over all silos.

Silo i stores, in fixed point, the sums gamma_j (s,) of its records in each batch j. At release k it
computes C~_k1 gamma_1 + ... + C~_kk gamma_k, where C~ is a lower triangular matrix of numbers on a
grid. Then it adds its share of the noise, Bin(n, 1/2) - n/2 in every entry. All results are integer
multiples of one unit. Masks that cancel in the sum over silos hide each silo's integers
(`fastfed.protocols.secure_sum`). The noise shares of m silos add up to Bin(m n, 1/2) - m n/2, so
the account counts the fair coins of the trusted silos. Nobody has to be trusted with a sum without
noise. Prefix sums are A C~^-1 times the releases, where A is the lower triangular matrix of ones,
so they are post-processing. Proofs: docs/secure-sum.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from fastfed._random import entries
from fastfed._validate import InputError, array, choice, integer, number
from fastfed.privacy import exact
from fastfed.privacy.accounting.binomial import TAIL_SHARES, std_of_coins, tail_of
from fastfed.privacy.accounting.gdp import gaussian_delta, gaussian_epsilon, gaussian_mu
from fastfed.privacy.certificate import Condition, Side, noise_claim
from fastfed.privacy.mechanisms.binomial_tree import coordinates_of, smallest_bits
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.sensitivity import (
    LAYOUTS,
    STREAMS,
    Budget,
    Centred,
    check_gaussian_budget,
    joint_sensitivity,
    named_delta,
    named_relation,
    stds_of_layout,
)

__all__ = ["SecureSum", "calibrate_secure_sum", "integer_factor"]

#: The factor is rounded to multiples of 2^-FACTOR_BITS. A record's entries are rounded to a grid
#: between 2^-FINEST and 2^-COARSEST of their bound.
FACTOR_BITS, FINEST, COARSEST = 14, 22, 12
#: Number of bits into which a sum with its sign and noise must fit; a 64-bit word has one bit more.
MAX_BITS = 63
#: The absolute noise is assumed to be below this number of standard deviations. The probability of
#: larger noise is at most 2 exp(-40^2 / 2) < 10^-347.
_NOISE_STDS = 40
_SOURCE = (
    "a lower triangular factor of the prefix sums (Denisov et al. 2022, Theorem 2.1) with binomial "
    "noise, added up under masks (Bonawitz et al. 2017), proven account (docs/secure-sum.md)"
)

Factor = tuple[tuple[int, ...], ...]
#: Numbers of fair coins in the noise of an entry of x y, and of entries of x x^T off and on the
#: diagonal.
Coins = tuple[int, int, int]


class _Account(NamedTuple):
    """The numbers, except those of the noise, that the privacy account of secure sums needs.

    Parameters
    ----------
    relation : str
        The neighbouring relation.
    column : float
        The largest norm of a column of the factor C~, increased to cover the rounding of records.
        For users of several batches, the largest norm of a sum of this number of columns.
    reach : int
        The largest change of one released integer by one user.
    coordinates : int
        The number of released integers that may change.
    dimension : int
        d.
    norms : (float, float)
        Bounds on |x y| and |x x^T|.
    step : float
        The value of the integer 1, in the units of the sums.
    centred : Centred, optional
        Bounds of records with a constant feature, whose last entry has no noise.
    """

    relation: str
    column: float
    reach: int
    coordinates: int
    dimension: int
    norms: tuple[float, float]
    step: float
    centred: Centred | None = None

    def mu(self, bias_std: float, off_diagonal_std: float, diagonal_std: float) -> float:
        """Return the GDP parameter mu for Gaussian noise of these stds, in units of the sums."""
        if min(bias_std, off_diagonal_std, diagonal_std) <= 0.0:
            return math.inf
        bias_bound, covariance_bound = self.norms
        # The joint sensitivity is known only if the noise of x x^T has one of these two layouts. In
        # each layout, take the largest noise that does not exceed the given noise in any entry.
        # Less noise means a larger mu, so each layout gives an upper bound of mu.
        layouts = (
            ("goe2", min(off_diagonal_std, diagonal_std / math.sqrt(2.0))),
            ("iid", min(off_diagonal_std, diagonal_std)),
        )
        if self.centred is not None:
            return self.column * min(
                self.centred.joint(self.relation, layout, bias_std, std) for layout, std in layouts
            )
        return self.column * min(
            joint_sensitivity(
                self.relation, layout, self.dimension, bias_std / bias_bound, std / covariance_bound
            )
            for layout, std in layouts
        )

    def proven_mu(self, coins: Coins, tail_probability: float) -> float:
        """Return a GDP parameter mu that is proven for binomial noise of ``coins`` fair coins.

        It holds unless the noise of some entry is in its tails. The tails of all entries together
        have ``tail_probability``.
        """
        tail = tail_of(tail_probability, self.coordinates)
        # Stds of Gaussian noise that is at most as private as the binomial noise.
        bias_std, off_diagonal_std, diagonal_std = (
            std_of_coins(n, self.reach, tail) * self.step for n in coins
        )
        return self.mu(bias_std, off_diagonal_std, diagonal_std)

    def epsilon(self, coins: Coins, delta: float) -> float:
        """Return the proven epsilon at ``delta`` of noise from these numbers of fair coins.

        The result is infinite if no finite epsilon is proven.
        """
        smallest_epsilon = math.inf
        # A share of delta covers the tails of the noise, the remaining delta its body.
        for share in TAIL_SHARES if delta > 0.0 else ():
            mu = self.proven_mu(coins, delta * share)
            if math.isfinite(mu):
                remaining_delta = delta * (1.0 - share) / (1.0 - delta * share)
                smallest_epsilon = min(smallest_epsilon, gaussian_epsilon(mu, remaining_delta))
        return smallest_epsilon

    def delta(self, coins: Coins, epsilon: float) -> float:
        """Return the proven delta, in [0, 1], of noise from these numbers of coins at epsilon."""
        smallest_delta = 1.0
        # Every tail probability gives a valid delta; take the smallest one on a grid.
        for tail_probability in np.geomspace(1e-60, 0.5, 240).tolist():
            mu = self.proven_mu(coins, tail_probability)
            if math.isfinite(mu):
                smallest_delta = min(
                    smallest_delta,
                    tail_probability + (1.0 - tail_probability) * gaussian_delta(epsilon, mu),
                )
        return smallest_delta


class SecureSum(msgspec.Struct, frozen=True, kw_only=True):
    """Secure sums over silos of x y and x x^T in batches, with a matrix factor and binomial noise.

    Parameters
    ----------
    budget : Budget
        The requested budget. The account uses its delta and its relation.
    factor : tuple of tuple of int
        The rows of C~ up to the diagonal (row k has k entries), times 2^factor_bits. There is one
        row per release, K >= 1. No diagonal entry is 0.
    trials : tuple of int
        n, the number of fair coins in one silo's share of the noise, for an entry of x y, and for
        entries of x x^T off and on the diagonal. Each n is even.
    silos, colluders : int
        M, and the number t < M of silos whose noise is not counted. These are the silos that share
        what they know with the server or with each other, silos that add no noise, and the silo of
        an observer.
    dimension : int
        d; a sum has s = d + d (d + 1)/2 entries.
    points : int
        The largest number of records in all sums together, M T.
    unit : float
        The grid of a record's entries, a power of two.
    factor_bits : int
        The factor is in units of 2^-factor_bits.
    feature_bound, reward_bound : float
        L and Y with ||x||_2 <= L and |y| <= Y.
    max_participations : int
        M0, the largest number of batches of one user, once in each batch, at any silos.
    remark : str
        A remark for the text of `conditions`.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes (docs/centred.md).
        The last entry of a sum is then a public count without noise.

    Raises
    ------
    InputError
        For numbers without a proven account, and if a sum may need more than 63 bits.

    Notes
    -----
    Guarantee: consider one user with at most M0 records (x, y), in different leaves. If all follow
    the protocol, everything that the server and t silos other than the user's learn from all
    releases is (exact(), budget.delta)-private under the budget's relation. If the server and all
    other silos share what they know, it is (fallback(), budget.delta)-private. Proven in
    docs/secure-sum.md, for masks that cannot be distinguished from random ones.
    """

    budget: Budget
    factor: Factor
    trials: Coins
    silos: int
    colluders: int
    dimension: int
    points: int
    unit: float
    factor_bits: int = FACTOR_BITS
    feature_bound: float = 1.0
    reward_bound: float = 1.0
    max_participations: int = 1
    remark: str = ""
    centred: Centred | None = None

    def __post_init__(self) -> None:
        """Raise InputError for numbers for which no account is proven."""
        # A plan is plain data that anybody can change, so check its numbers here, too.
        if not self.factor or any(len(row) != k for k, row in enumerate(self.factor, start=1)):
            raise InputError("factor must have rows of 1, 2, 3, ... entries, one row per release")
        if any(type(v) is not int for row in self.factor for v in row):
            raise InputError("factor must hold integers, in units of 2^-factor_bits")
        if not all(row[-1] for row in self.factor):
            raise InputError("factor must have no 0 on its diagonal, got one")
        if len(self.trials) != 3:
            raise InputError(f"trials must be 3 numbers of coins, got {len(self.trials)}")
        for n in self.trials:
            if integer("trials", n, at_least=0) % 2:
                raise InputError(f"trials must be even, got {n}")
        integer("silos", self.silos, at_least=1)
        integer("colluders", self.colluders, at_least=0, at_most=self.silos - 1)
        for name in ("dimension", "points", "max_participations"):
            integer(name, getattr(self, name), at_least=1)
        integer("factor_bits", self.factor_bits, at_least=0, at_most=MAX_BITS)
        number("feature_bound", self.feature_bound, above=0, at_most=1e100)
        number("reward_bound", self.reward_bound, above=0, at_most=1e100)
        if math.frexp(number("unit", self.unit, at_least=1e-100))[0] != 0.5:
            raise InputError(f"unit must be a power of two, got {self.unit}")
        if self.centred is not None and not self.centred.low <= 0.0 <= self.centred.high:
            raise InputError(f"the range of centred rewards must contain 0, got {self.centred}")
        if self.bits > MAX_BITS:
            raise InputError(
                f"unit and factor_bits must leave {MAX_BITS} bits for the sum of {self.points} "
                f"records, got {self.bits} bits"
            )

    # ---- sizes -----------------------------------------------------------------------------------

    @property
    def releases(self) -> int:
        """Return K, the number of releases."""
        return len(self.factor)

    @property
    def size(self) -> int:
        """Return s = d + d (d + 1)/2, the number of entries of a sum."""
        return coordinates_of(self.dimension)

    @property
    def nbytes(self) -> int:
        """Return the size of one silo's message in bytes: a 64-bit word for each entry."""
        return 8 * self.size

    @property
    def honest(self) -> int:
        """Return M - t, the number of silos that are not colluders. Only their noise counts."""
        return self.silos - self.colluders

    @property
    def step(self) -> float:
        """Return the value of the integer 1 in a release, in the units of the sums."""
        return math.ldexp(self.unit, -self.factor_bits)

    @property
    def _norms(self) -> tuple[float, float]:
        """Return the bounds on |x y| and |x x^T|."""
        return self.feature_bound * self.reward_bound, self.feature_bound**2

    @property
    def _smallest_norm(self) -> float:
        """Return a number l for a lower bound on the sensitivity, which `exact.inflation` needs.

        The sensitivity in units of the noise is at least l / (sqrt(2) smallest noise std).
        """
        if self.centred is None:
            return min(self._norms)
        # Let f bound the norm of features without the constant, m the absolute centred rewards, and
        # s_bias and s_covariance be the noise stds. Theorem 4 of docs/centred.md gives
        # D >= f m / s_bias and D >= f^2 / (sqrt(2) s_covariance) for the sensitivity D over noise.
        bound, largest_reward = (
            self.centred.feature_bound,
            max(-self.centred.low, self.centred.high),
        )
        return min(bound * largest_reward, bound * bound)

    @property
    def _largest_factor_entry(self) -> int:
        """Return the largest absolute entry of the integer factor."""
        return max(max(map(abs, row)) for row in self.factor)

    @property
    def _entry_bound_in_units(self) -> int:
        """Return a bound on the absolute entries of one record, in units."""
        return _entry_bound(max(self._norms), self.unit)

    @property
    def bits(self) -> int:
        """Return a number of bits that every sum of messages fits into, with sign and noise."""
        return needed_bits(
            self._largest_factor_entry,
            self.points,
            self._entry_bound_in_units,
            self._coins(self.silos),
        )

    # ---- noise -----------------------------------------------------------------------------------

    def _stds(self, silos: int) -> tuple[float, float, float]:
        """Return the std of the total noise of ``silos`` silos, in the units of the sums.

        The three numbers are for entries of x y, and for entries of x x^T off and on the diagonal.
        """
        # n fair coins have the variance n / 4.
        bias, off_diagonal, diagonal = (math.sqrt(silos * n) / 2.0 * self.step for n in self.trials)
        return bias, off_diagonal, diagonal

    @property
    def stds(self) -> tuple[float, float, float]:
        """Return the noise std of one release, with all M shares, in the units of the sums.

        The three numbers are for entries of x y, and for entries of x x^T off and on the diagonal.
        """
        return self._stds(self.silos)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the standard deviations of one release, as the certificate lists them."""
        return dict(zip(STREAMS, self.stds, strict=True))

    @property
    def prefix_weights(self) -> np.ndarray:
        """Return the matrix B~ = A C~^-1, lower triangular (K, K).

        Prefix sum k is the sum of the releases weighted by row k.
        """
        return _prefix_weights(self.factor) * 2.0**self.factor_bits

    @property
    def variance_factors(self) -> np.ndarray:
        """Return the noise variances of prefix sums k = 0..K, (K + 1,).

        The unit is the noise variance of one release.
        """
        squares = (self.prefix_weights**2).sum(axis=1)
        return np.concatenate([np.zeros(1), squares])

    # ---- account ---------------------------------------------------------------------------------

    @property
    def squares(self) -> int:
        """Return the squared sensitivity of the factor to one user, times 4^factor_bits.

        For a user of one batch it is the largest squared norm of a column. For users of several
        batches it is an upper bound.
        """
        return _squared_sensitivity(self.factor, min(self.max_participations, self.releases))

    @property
    def reach(self) -> int:
        """Return the largest change of one released integer by one user."""
        # Each batch of the user changes its sum by at most twice the bound on an entry.
        return (
            self._largest_factor_entry
            * 2
            * self._entry_bound_in_units
            * min(self.max_participations, self.releases)
        )

    def _account(self, relation: str | None = None) -> _Account:
        """Return the numbers, except those of the noise, that the account of these sums needs."""
        return _Account(
            relation=named_relation(relation, self.budget),
            # Rounding records to the grid increases the sensitivity by this factor.
            column=math.ldexp(math.sqrt(self.squares), -self.factor_bits)
            * exact.inflation(
                self.unit, self.size, self.dimension, self._smallest_norm, max(self._norms)
            ),
            reach=self.reach,
            coordinates=self.releases * self.size,
            dimension=self.dimension,
            norms=self._norms,
            step=self.step,
            centred=self.centred,
        )

    def _coins(self, silos: int) -> Coins:
        """Return the numbers of fair coins of ``silos`` silos, for the three kinds of entries."""
        bias, off_diagonal, diagonal = (silos * n for n in self.trials)
        return bias, off_diagonal, diagonal

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of Gaussian noise with the variance of the counted shares.

        It is only an approximation for the binomial noise. `exact` returns the proven epsilon.
        """
        return self._account(relation).mu(*self._stds(self.honest))

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon towards the server and t colluding silos, at ``delta``.

        The default is the budget's delta. The result is infinite if no finite epsilon is proven.
        """
        target_delta = named_delta(delta, self.budget)
        return self._account(relation).epsilon(self._coins(self.honest), target_delta)

    def fallback(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon if the server and all silos other than the user's collude.

        Only the noise share of the user's silo counts then. The default of ``delta`` is the
        budget's.
        """
        return self._account(relation).epsilon(self.trials, named_delta(delta, self.budget))

    def delta(self, epsilon: float, relation: str | None = None) -> float:
        """Return the proven delta in [0, 1] towards the server and t silos, at epsilon >= 0."""
        epsilon = number("epsilon", epsilon, at_least=0)
        return self._account(relation).delta(self._coins(self.honest), epsilon)

    # ---- certificate -----------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """Return the source of the mechanism and its account."""
        return _SOURCE

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, self.exact(), "proven", note)
        return [
            *self._trust_conditions(),
            *participation_conditions(self.max_participations),
            claim,
        ]

    def _trust_conditions(self) -> list[Condition]:
        """Return the assumptions about silos, keys and drop-outs."""
        texts = [
            f"at least {self.honest} of the {self.silos} silos add their share of the noise and "
            "keep it secret; the user's silo is one of them, whoever sees the release is not; all "
            "parties follow the protocol (taken on trust)"
        ]
        if self.honest > 1:
            texts.append(
                "the masks' keys are known only to the two silos of each mask, and masks derived "
                "from them are assumed to be random (SHAKE-256)"
            )
        if self.silos > 1:
            texts.append(
                "a release is the sum of all silos' messages, computed once: if a message is "
                "missing, nothing is released (drop-outs are not recovered)"
            )
        return [Condition(text, True) for text in texts]

    def sides(self) -> list[Side]:
        """Return the guarantee that holds if the server and all other silos collude.

        The list is empty if no finite epsilon is proven.
        """
        epsilon = self.fallback()
        if not math.isfinite(epsilon):
            return []
        model = "silo-level local: the server and all other silos share what they know"
        own_share = Condition(
            "each silo that the user visits adds its share of the noise and keeps it secret "
            "(taken on trust)",
            True,
        )
        trust = (own_share, *participation_conditions(self.max_participations))
        return [Side(model, "docs/secure-sum.md", epsilon, trust)]

    # ---- integers of messages --------------------------------------------------------------------

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return sums (..., s) as uint64 integers: the nearest multiples of `unit`, modulo 2^64."""
        rounded: np.ndarray = np.rint(values / self.unit)
        return rounded.astype(np.int64).view(np.uint64)

    def row(self, leaves: np.ndarray) -> np.ndarray:
        """Return a silo's message at release k without noise: row k of the factor times ``leaves``.

        ``leaves`` are the silo's encoded sums of its first k batches, uint64, (k, s). The result
        (s,) is modulo 2^64.
        """
        weights = np.array(self.factor[len(leaves) - 1], dtype=np.int64).view(np.uint64)
        result: np.ndarray = (weights[:, None] * leaves).sum(axis=0, dtype=np.uint64)
        return result

    def value(self, total: np.ndarray) -> np.ndarray:
        """Return a sum of messages, uint64 (..., s), as float64 in the units of the sums."""
        result: np.ndarray = total.view(np.int64) * self.step
        return result

    def entry_trials(self, silos: int = 1) -> list[int]:
        """Return the number of fair coins of ``silos`` silos for each of the s entries of a sum."""
        trials_by_entry = [silos * n for n in entries(self.dimension, self.trials)]
        # Centred records: the last entry is a public count, without noise.
        return trials_by_entry if self.centred is None else [*trials_by_entry[:-1], 0]


def integer_factor(factor: object, factor_bits: int = FACTOR_BITS) -> Factor:
    """Return the rows of a factor C (K, K), rounded to multiples of 2^-factor_bits, as integers.

    Row k has the k entries up to the diagonal, in units of 2^-factor_bits.

    Raises
    ------
    InputError
        If the matrix is not lower triangular, or has a 0 on its diagonal.
    """
    c = array("factor", factor, ndim=2)
    factor_bits = integer("factor_bits", factor_bits, at_least=0, at_most=30)
    if not len(c) or c.shape[0] != c.shape[1] or np.triu(c, 1).any():
        raise InputError(f"factor must be lower triangular and not empty, got shape {c.shape}")
    rounded = np.rint(c * 2.0**factor_bits)
    if np.abs(rounded).max() >= 2.0**31 or not rounded.diagonal().all():
        raise InputError(
            f"factor must have entries below 2^31 and none that is 0 on its diagonal, in units of "
            f"2^-{factor_bits}"
        )
    return tuple(tuple(int(v) for v in row[: k + 1]) for k, row in enumerate(rounded))


@lru_cache(maxsize=16)
def _squared_sensitivity(factor: Factor, participations: int) -> int:
    """Return a bound on the squared norm of any signed sum of ``participations`` columns of C.

    C is the factor. The squared norm is at most the sum of |<C_j, C_l>| over all ordered pairs of
    the chosen columns, and the result bounds this sum. For one column it is the exact maximum.
    """
    largest_entry = max(max(map(abs, row)) for row in factor)
    # If 64 bits may be too few, use Python's integers.
    dtype = np.int64 if len(factor) * largest_entry**2 * participations**2 < 2**62 else object
    matrix = np.zeros((len(factor), len(factor)), dtype=dtype)
    for k, row in enumerate(factor):
        matrix[k, : k + 1] = row
    squared_norms = (matrix * matrix).sum(axis=0)
    if participations == 1:
        return int(squared_norms.max())
    products = abs(matrix.T @ matrix)
    np.fill_diagonal(products, 0)
    # For each chosen column: its squared norm, and its products with the other chosen columns.
    other_products = np.sort(products, axis=1)[:, ::-1][:, : participations - 1].sum(axis=1)
    return int(np.sort(squared_norms + other_products)[::-1][:participations].sum())


@lru_cache(maxsize=16)
def _prefix_weights(factor: Factor) -> np.ndarray:
    """Return the matrix B with B C = A, where A is the lower triangular matrix of ones.

    C is the integer factor.
    """
    size = len(factor)
    c = np.zeros((size, size))
    for k, row in enumerate(factor):
        c[k, : k + 1] = row
    b = np.tri(size)
    # Back substitution, column by column from the right.
    for j in range(size - 1, -1, -1):
        b[:, j] /= c[j, j]
        b[j:, :j] -= b[j:, j, None] * c[j, :j]
    b.flags.writeable = False
    return b


def calibrate_secure_sum(
    budget: Budget,
    factor: object,
    silos: int,
    colluders: int,
    dimension: int,
    *,
    points: int,
    layout: str = "goe2",
    covariance_ratio: float = 1.0,
    feature_bound: float = 1.0,
    reward_bound: float = 1.0,
    max_participations: int = 1,
    factor_bits: int = FACTOR_BITS,
    unit: float | None = None,
    centred: Centred | None = None,
) -> SecureSum:
    """Calibrate secure sums to a budget: the least noise with a proven account.

    Parameters
    ----------
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    factor : array_like (K, K)
        C, lower triangular, without a 0 on its diagonal. Its scale does not matter.
    silos, colluders, dimension, points, feature_bound, reward_bound, max_participations, centred
        See `SecureSum`.
    layout : {"iid", "goe1", "goe2"}
        Layout of the noise in the sum of x x^T.
    covariance_ratio : float
        r > 0: the layout's parameter, divided by the bound on |x x^T|, is r times the std of the
        noise in the sum of x y, divided by the bound on |x y|.
    factor_bits : int
        C is rounded to multiples of 2^-factor_bits. The account uses the rounded C.
    unit : float, optional
        Grid of a record's entries, a power of two. Default: 2^-22 of the bound on an entry, or the
        finest coarser grid, down to 2^-12, with which every sum fits into 63 bits.

    Returns
    -------
    SecureSum
        The calibrated mechanism.

    Raises
    ------
    InputError
        For values out of range, delta = 0, the unit "silo", and sums that do not fit.
    """
    rows = integer_factor(factor, factor_bits)
    silos = integer("silos", silos, at_least=1)
    colluders = integer("colluders", colluders, at_least=0, at_most=silos - 1)
    dimension = integer("dimension", dimension, at_least=1)
    points = integer("points", points, at_least=1)
    participations = integer("max_participations", max_participations, at_least=1)
    check_gaussian_budget(budget)
    ratio = number("covariance_ratio", covariance_ratio, above=0)
    off, on = stds_of_layout(choice("layout", layout, LAYOUTS), ratio)
    feature_norm = number("feature_bound", feature_bound, above=0)
    norms = (
        feature_norm * number("reward_bound", reward_bound, above=0),
        feature_norm * feature_norm,
    )
    relative_stds = norms[0], norms[1] * off, norms[1] * on
    # `relative_stds` are the stds of the noise up to a factor. First guess of this factor: that of
    # a Gaussian mechanism, plus 1 %.
    column = math.ldexp(
        math.sqrt(_squared_sensitivity(rows, min(participations, len(rows)))), -factor_bits
    )
    guess = _Account(budget.relation, 1.01 * column, 0, 1, dimension, norms, 1.0, centred)
    guessed_factor = guess.mu(*relative_stds)
    guessed_factor /= gaussian_mu(budget.epsilon, budget.delta)
    if unit is None:
        total_std = guessed_factor * max(relative_stds) * math.sqrt(silos / (silos - colluders))
        unit = _finest_unit(rows, factor_bits, points, norms, total_std)
    noiseless = SecureSum(
        budget=budget,
        factor=rows,
        trials=(0, 0, 0),
        silos=silos,
        colluders=colluders,
        dimension=dimension,
        points=points,
        unit=number("unit", unit, above=0),
        factor_bits=factor_bits,
        feature_bound=feature_norm,
        reward_bound=reward_bound,
        max_participations=participations,
        centred=centred,
    )
    account, honest = noiseless._account(), noiseless.honest
    delta = budget.delta
    # For each tail probability: the largest mu with which the remaining delta meets the budget.
    tail_and_mu = [
        (
            tail_probability,
            gaussian_mu(budget.epsilon, (delta - tail_probability) / (1.0 - tail_probability)),
        )
        for tail_probability in (delta * share for share in TAIL_SHARES)
    ]

    def relative_mu(pairs: int) -> float:
        """Return the proven mu divided by the allowed mu, for the best tail probability.

        A result of at most 1 means that the noise meets the budget. ``pairs`` is the argument of
        `_coins_per_share`.
        """
        bias, off_diagonal, diagonal = (honest * n for n in _coins_per_share(pairs, relative_stds))
        coins = bias, off_diagonal, diagonal
        return min(
            account.proven_mu(coins, tail_probability) / mu for tail_probability, mu in tail_and_mu
        )

    pairs = smallest_bits(
        2.0 * (guessed_factor * relative_stds[0] / noiseless.step) ** 2 / honest,
        1.0,
        relative_mu,
    )
    return msgspec.structs.replace(noiseless, trials=_coins_per_share(pairs, relative_stds))


def _coins_per_share(pairs: int, relative_stds: tuple[float, float, float]) -> Coins:
    """Return the numbers of fair coins in one silo's share of the noise.

    The noise of a bias entry has 2 ``pairs`` coins. ``relative_stds`` are the standard deviations
    of bias, off-diagonal and diagonal entries, up to a common factor.
    """
    bias, off_diagonal, diagonal = (
        2 * math.ceil(pairs * (std / relative_stds[0]) ** 2) for std in relative_stds
    )
    return bias, off_diagonal, diagonal


def _entry_bound(largest: float, unit: float) -> int:
    """Return a bound on the absolute entries of one record after rounding, in units of the grid.

    ``largest`` bounds the absolute entries before rounding.
    """
    return math.ceil(largest / unit) + 1


def needed_bits(largest: int, points: int, entry: int, coins: Coins) -> int:
    """Return a number of bits that a sum of messages fits into, with its sign and noise.

    The result is at least 11 more than the number of bits of a sum of records. If it is at most 63,
    a sum of records therefore fits into the 53 bits of a float64, which adds records exactly.

    Parameters
    ----------
    largest : int
        The factor's largest absolute entry.
    points : int
        Number of records.
    entry : int
        Bound on a record's absolute entries, in units of the grid.
    coins : tuple of int
        Numbers of fair coins of all silos together.
    """
    noise_bound = _NOISE_STDS * (math.isqrt(max(coins)) + 1) // 2
    return max(
        (largest * points * entry + noise_bound).bit_length() + 1,
        (points * entry).bit_length() + 11,
    )


def _finest_unit(
    factor: Factor, factor_bits: int, points: int, norms: tuple[float, float], std: float
) -> float:
    """Return the unit of the finest grid for records with which sums and noise fit into 63 bits.

    ``norms`` bound |x y| and |x x^T|, and ``std`` is the std of the noise of all silos together, in
    the units of the sums. If no grid fits, return the unit of the coarsest grid.
    """
    largest = max(max(map(abs, row)) for row in factor)
    top_exponent = math.ceil(math.log2(max(norms)))
    for bits in range(FINEST, COARSEST, -1):
        unit = math.ldexp(1.0, top_exponent - bits)
        coins = math.ceil(4.0 * (std / math.ldexp(unit, -factor_bits)) ** 2)
        entry = _entry_bound(max(norms), unit)
        if needed_bits(largest, points, entry, (coins, coins, coins)) <= MAX_BITS:
            return unit
    return math.ldexp(1.0, top_exponent - COARSEST)
