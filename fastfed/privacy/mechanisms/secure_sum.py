"""Secure sums: prefix sums over silos, of which a server sees one noisy integer sum a release.

Silo i keeps the leaf sums gamma_j (s,) of its records in fixed point. At release k it adds up
C~_k1 gamma_1 + ... + C~_kk gamma_k, C~ a lower triangular matrix on a grid, and its share of the
noise, Bin(n, 1/2) - n/2 in every entry: integers on one grid. Masks that cancel in the sum over all
silos hide each silo's own integers (`fastfed.protocols.secure_sum`). Shares of m silos add up to
Bin(m n, 1/2) - m n/2 exactly, so the account counts the coins of the silos that are trusted, and
nobody needs to be trusted with the sum itself. Prefix sums are A C~^-1 times the sums, A the lower
triangular matrix of ones: post-processing. Proof of all of it: docs/secure-sum.md.
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
from fastfed.privacy.mechanisms.binomial_tree import smallest_bits
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.sensitivity import (
    LAYOUTS,
    Budget,
    Centred,
    check_gaussian_budget,
    joint_sensitivity,
    named_delta,
    named_relation,
    stds_of_layout,
)

__all__ = ["SecureSum", "calibrate_secure_sum", "integer_factor"]

#: Grid of the factor, 2^-14, and the finest and coarsest one of a record's entries.
FACTOR_BITS, FINEST, COARSEST = 14, 22, 12
#: Sums must fit into so many bits, sign and noise included, beside a spare one of a word of 64.
MOST_BITS = 63
#: Standard deviations of noise that are counted in: 2 exp(-40^2 / 2) is less than 10^-347.
_REACH = 40
_SOURCE = (
    "a lower triangular factor of the prefix sums (Denisov et al. 2022, Theorem 2.1) with binomial "
    "noise, added up under masks (Bonawitz et al. 2017), proven account (docs/secure-sum.md)"
)

Factor = tuple[tuple[int, ...], ...]
#: Of bias, off-diagonal and diagonal entries.
Coins = tuple[int, int, int]


class _Account(NamedTuple):
    """What the account of noise on a secure sum needs to know, beside the noise.

    column: the longest column of the factor, with what roundings of records add to it. reach: the
    most that one user moves an integer. coordinates: how many may move. norms: the largest |x y|
    and |x x^T|. step: size of 1 in the integers, in the units of the sums. centred: bounds of
    records with a constant feature, whose last entry has no noise.
    """

    relation: str
    column: float
    reach: int
    coordinates: int
    dimension: int
    norms: tuple[float, float]
    step: float
    centred: Centred | None = None

    def mu(self, bias: float, off: float, on: float) -> float:
        """GDP parameter of Gaussian noise of these stds, in the units of the sums."""
        if min(bias, off, on) <= 0.0:
            return math.inf
        first, second = self.norms
        # With D the change, sum_{i<j} D_ij^2 / off^2 + sum_i D_ii^2 / on^2 is at most what noise
        # of either layout gives that is nowhere larger.
        layouts = ("goe2", min(off, on / math.sqrt(2.0))), ("iid", min(off, on))
        if self.centred is not None:
            return self.column * min(
                self.centred.joint(self.relation, layout, bias, std) for layout, std in layouts
            )
        return self.column * min(
            joint_sensitivity(self.relation, layout, self.dimension, bias / first, std / second)
            for layout, std in layouts
        )

    def proven_mu(self, coins: Coins, told: float) -> float:
        """GDP parameter of these coins but for an event of probability `told`."""
        tail = tail_of(told, self.coordinates)
        bias, off, on = (std_of_coins(n, self.reach, tail) * self.step for n in coins)
        return self.mu(bias, off, on)

    def epsilon(self, coins: Coins, delta: float) -> float:
        """Epsilon proven for these coins at delta; infinite where none is."""
        best = math.inf
        for share in TAIL_SHARES if delta > 0.0 else ():
            mu = self.proven_mu(coins, delta * share)
            if math.isfinite(mu):
                rest = delta * (1.0 - share) / (1.0 - delta * share)
                best = min(best, gaussian_epsilon(mu, rest))
        return best

    def delta(self, coins: Coins, epsilon: float) -> float:
        """Delta in [0, 1] proven for these coins at epsilon."""
        best = 1.0
        for told in np.geomspace(1e-60, 0.5, 240).tolist():
            mu = self.proven_mu(coins, told)
            if math.isfinite(mu):
                best = min(best, told + (1.0 - told) * gaussian_delta(epsilon, mu))
        return best


class SecureSum(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over silos of x y and of x x^T in batches, times a factor, plus binomial noise.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for. Its delta and relation are the account's.
    factor : tuple of tuple of int
        The rows of C~, row k of the k entries on and left of the diagonal, times 2^factor_bits; no
        entry of the diagonal is 0. As many rows as releases, K >= 1.
    trials : tuple of int
        n, the fair coins behind one silo's share of the noise, of bias, off-diagonal and diagonal
        entries; even.
    silos, colluders : int
        M, and t < M of them whose noise is not counted: those that share what they know with the
        server or with each other, those that add no noise, and the one that looks at the release.
    dimension : int
        d; a sum has s = d + d (d + 1)/2 entries.
    points : int
        The most records in all sums together: M T.
    unit : float
        The grid of a record's entries, a power of two.
    factor_bits : int
        The factor is given in units of 2^-factor_bits.
    feature_bound, reward_bound : float
        L and Y with ||x||_2 <= L and |y| <= Y.
    max_participations : int
        M0, the most batches of one user, once in each, at whichever silo.
    remark : str
        For the text of `conditions`.
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code (docs/centred.md): the last
        entry of a sum is a public count, and carries no noise.

    Raises
    ------
    InputError
        For numbers that no account is about, and where a sum may need more than 63 bits.

    Notes
    -----
    Guarantee: for one user with at most M0 records (x, y), in as many leaves, everything that the
    server and t silos other than the user's learn from all releases together is (exact(),
    budget.delta)-private under the budget's relation, if they follow the protocol, and (fallback(),
    budget.delta)-private if the server and all other silos put together what they know. Proven in
    docs/secure-sum.md, for masks that cannot be told from random ones.
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
        """Refuse numbers that no account is about."""
        # Plans are plain data that anyone may change, so their numbers are looked at once more.
        if not self.factor or any(len(row) != k for k, row in enumerate(self.factor, start=1)):
            raise InputError("factor must have rows of 1, 2, 3, ... entries, one row a release")
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
        integer("factor_bits", self.factor_bits, at_least=0, at_most=MOST_BITS)
        number("feature_bound", self.feature_bound, above=0, at_most=1e100)
        number("reward_bound", self.reward_bound, above=0, at_most=1e100)
        if math.frexp(number("unit", self.unit, at_least=1e-100))[0] != 0.5:
            raise InputError(f"unit must be a power of two, got {self.unit}")
        if self.centred is not None and not self.centred.low <= 0.0 <= self.centred.high:
            raise InputError(f"centred rewards must lie about 0, got {self.centred}")
        if self.bits > MOST_BITS:
            raise InputError(
                f"unit and factor_bits must leave {MOST_BITS} bits for the sum of {self.points} "
                f"records, got {self.bits} bits"
            )

    # ---- sizes -----------------------------------------------------------------------------------

    @property
    def releases(self) -> int:
        """K."""
        return len(self.factor)

    @property
    def size(self) -> int:
        """s = d + d (d + 1)/2, the length of a sum."""
        return self.dimension + self.dimension * (self.dimension + 1) // 2

    @property
    def nbytes(self) -> int:
        """Bytes of one silo's message: a word of 64 bits for each entry."""
        return 8 * self.size

    @property
    def honest(self) -> int:
        """M - t, the silos whose noise is counted."""
        return self.silos - self.colluders

    @property
    def step(self) -> float:
        """Size of 1 in the released integers, in the units of the sums."""
        return math.ldexp(self.unit, -self.factor_bits)

    @property
    def _norms(self) -> tuple[float, float]:
        """The largest |x y| and |x x^T|."""
        return self.feature_bound * self.reward_bound, self.feature_bound**2

    @property
    def _least(self) -> float:
        """l such that one record's change is at least l / (sqrt(2) the least noise)."""
        if self.centred is None:
            return min(self._norms)
        # Theorem 4 of docs/centred.md: D >= f m / s_bias, and D >= f^2 / (sqrt(2) s_covariance).
        bound, most = self.centred.feature_bound, max(-self.centred.low, self.centred.high)
        return min(bound * most, bound * bound)

    @property
    def _largest(self) -> int:
        """The largest entry of the factor, in size."""
        return max(max(map(abs, row)) for row in self.factor)

    @property
    def _entry(self) -> int:
        """Bound on the size of one record's entry, in units."""
        return _entry_bound(max(self._norms), self.unit)

    @property
    def bits(self) -> int:
        """Bits that hold every sum of messages with its sign, for noise of up to 40 stds."""
        return needed_bits(self._largest, self.points, self._entry, self._coins(self.silos))

    # ---- noise -----------------------------------------------------------------------------------

    def _stds(self, silos: int) -> tuple[float, float, float]:
        """Standard deviations of so many silos' shares, in the units of the sums."""
        bias, off, on = (math.sqrt(silos * n) / 2.0 * self.step for n in self.trials)
        return bias, off, on

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of the noise of bias, off-diagonal and diagonal entries of one
        release, all M shares together, in the units of the sums."""
        return self._stds(self.silos)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one release's noise, as a certificate lists them."""
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, self.stds, strict=True))

    @property
    def prefix_weights(self) -> np.ndarray:
        """B~ = A C~^-1 (K, K), lower triangular: prefix k is row k times the releases."""
        return _prefix_weights(self.factor) * 2.0**self.factor_bits

    @property
    def variance_factors(self) -> np.ndarray:
        """Variance of the noise in prefix k = 0..K, in units of one release's, (K + 1,)."""
        squares = (self.prefix_weights**2).sum(axis=1)
        return np.concatenate([np.zeros(1), squares])

    # ---- account ---------------------------------------------------------------------------------

    @property
    def squares(self) -> int:
        """Squared sensitivity of all releases to one user, per unit of one record's, times
        4^factor_bits: the longest column's, or a bound on it for users of several batches."""
        return _squares(self.factor, min(self.max_participations, self.releases))

    @property
    def reach(self) -> int:
        """The most that one user can move one released integer."""
        return self._largest * 2 * self._entry * min(self.max_participations, self.releases)

    def _account(self, relation: str | None = None) -> _Account:
        """The account of any noise on these sums."""
        return _Account(
            relation=named_relation(relation, self.budget),
            # Roundings of records to the grid come in beside the column.
            column=math.ldexp(math.sqrt(self.squares), -self.factor_bits)
            * exact.inflation(self.unit, self.size, self.dimension, self._least, max(self._norms)),
            reach=self.reach,
            coordinates=self.releases * self.size,
            dimension=self.dimension,
            norms=self._norms,
            step=self.step,
            centred=self.centred,
        )

    def _coins(self, silos: int) -> Coins:
        """Coins of so many silos' shares, of bias, off-diagonal and diagonal entries."""
        bias, off, on = (silos * n for n in self.trials)
        return bias, off, on

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of Gaussian noise of the counted shares' variance, for orientation.

        exact() is the proof.
        """
        return self._account(relation).mu(*self._stds(self.honest))

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Epsilon proven against the server and t silos, at delta (default: the budget's).

        Infinite where none is proven.
        """
        at = named_delta(delta, self.budget)
        return self._account(relation).epsilon(self._coins(self.honest), at)

    def fallback(self, delta: float | None = None, relation: str | None = None) -> float:
        """Epsilon proven if the server and all other silos collude, at delta (default: the
        budget's): only the own silo's share of the noise hides its users then."""
        return self._account(relation).epsilon(self.trials, named_delta(delta, self.budget))

    def delta(self, epsilon: float, relation: str | None = None) -> float:
        """Delta in [0, 1] proven against the server and t silos, at epsilon >= 0."""
        epsilon = number("epsilon", epsilon, at_least=0)
        return self._account(relation).delta(self._coins(self.honest), epsilon)

    # ---- certificate -----------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """Source of the mechanism and its account."""
        return _SOURCE

    def conditions(self) -> list[Condition]:
        """The claim, computed, and what is taken on trust."""
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, self.exact(), "proven", note)
        return [*self._trust(), *participation_conditions(self.max_participations), claim]

    def _trust(self) -> list[Condition]:
        """Conditions that are taken on trust."""
        texts = [
            f"at least {self.honest} of the {self.silos} silos, the user's own among them and "
            "whoever looks at the release not, add their share of the noise and tell nobody, and "
            "all parties follow the protocol (taken on trust)"
        ]
        if self.honest > 1:
            texts.append(
                "the masks' keys are known to the two silos of each alone, and masks made of them "
                "are taken for random (SHAKE-256)"
            )
        if self.silos > 1:
            texts.append(
                "a release is the sum of all silos' messages, made once: where one is missing, "
                "nothing is released (drop-outs are not recovered)"
            )
        return [Condition(text, True) for text in texts]

    def sides(self) -> list[Side]:
        """List the guarantee of the same noise if all others collude; none where none is proven."""
        epsilon = self.fallback()
        if not math.isfinite(epsilon):
            return []
        model = "silo-level local: the server and all other silos put together what they know"
        own = Condition(
            "each silo that the user visits adds its share of the noise and tells nobody "
            "(taken on trust)",
            True,
        )
        trust = (own, *participation_conditions(self.max_participations))
        return [Side(model, "docs/secure-sum.md", epsilon, trust)]

    # ---- integers --------------------------------------------------------------------------------

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Write sums (..., s) in units, rounded to the nearest, modulo 2^64: uint64."""
        rounded: np.ndarray = np.rint(values / self.unit)
        return rounded.astype(np.int64).view(np.uint64)

    def row(self, leaves: np.ndarray) -> np.ndarray:
        """Add up the first k leaves (k, s), uint64, with row k of the factor, modulo 2^64."""
        weights = np.array(self.factor[len(leaves) - 1], dtype=np.int64).view(np.uint64)
        result: np.ndarray = (weights[:, None] * leaves).sum(axis=0, dtype=np.uint64)
        return result

    def value(self, total: np.ndarray) -> np.ndarray:
        """Read a sum of messages (..., s), uint64, as float64 in the units of the sums."""
        result: np.ndarray = total.view(np.int64) * self.step
        return result

    def entry_trials(self, silos: int = 1) -> list[int]:
        """List the coins behind so many silos' shares, entry by entry (s)."""
        found = [silos * n for n in entries(self.dimension, self.trials)]
        return found if self.centred is None else [*found[:-1], 0]


def integer_factor(factor: object, factor_bits: int = FACTOR_BITS) -> Factor:
    """Round a factor C (K, K) to multiples of 2^-factor_bits, given in these units, by rows.

    Raises InputError for a matrix that is not lower triangular, or has a 0 on its diagonal.
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
def _squares(factor: Factor, participations: int) -> int:
    """Bound the sum of <C_j, C_l> over all pairs of so many chosen columns, signs left out."""
    largest = max(max(map(abs, row)) for row in factor)
    # Integers of any size where 64 bits may be too few.
    dtype = np.int64 if len(factor) * largest**2 * participations**2 < 2**62 else object
    full = np.zeros((len(factor), len(factor)), dtype=dtype)
    for k, row in enumerate(factor):
        full[k, : k + 1] = row
    lengths = (full * full).sum(axis=0)
    if participations == 1:
        return int(lengths.max())
    products = abs(full.T @ full)
    np.fill_diagonal(products, 0)
    # Each chosen column meets itself and at most so many others.
    others = np.sort(products, axis=1)[:, ::-1][:, : participations - 1].sum(axis=1)
    return int(np.sort(lengths + others)[::-1][:participations].sum())


@lru_cache(maxsize=16)
def _prefix_weights(factor: Factor) -> np.ndarray:
    """Solve B C = A, A of ones, for integers C: columns from the right, in a fixed order."""
    size = len(factor)
    c = np.zeros((size, size))
    for k, row in enumerate(factor):
        c[k, : k + 1] = row
    b = np.zeros((size, size))
    for j in range(size - 1, -1, -1):
        rest = np.where(np.arange(size) >= j, 1.0, 0.0)
        for i in range(size - 1, j, -1):
            rest -= b[:, i] * c[i, j]
        b[:, j] = rest / c[j, j]
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
    """Calibrate secure sums to a budget: the least noise for which it is proven.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    factor : array_like (K, K)
        C, lower triangular, without a 0 on its diagonal; of any scale, which the noise follows.
    silos, colluders, dimension, points, feature_bound, reward_bound, max_participations, centred
        As in `SecureSum`.
    layout : {"iid", "goe1", "goe2"}
        Of the noise of the covariance stream.
    covariance_ratio : float
        r > 0: the layout's parameter is r times the bias stream's noise, each in units of its
        stream's largest norm.
    factor_bits : int
        C is rounded to multiples of 2^-factor_bits; what its columns gain is paid for.
    unit : float, optional
        Grid of a record's entries, a power of two. Default: 2^-22 of the bound on an entry, or the
        least coarser one, down to 2^-12, with which every sum fits into 63 bits.

    Returns
    -------
    SecureSum

    Raises
    ------
    InputError
        For values out of range, delta = 0, the unit "silo", and where sums do not fit.
    """
    rows = integer_factor(factor, factor_bits)
    silos = integer("silos", silos, at_least=1)
    colluders = integer("colluders", colluders, at_least=0, at_most=silos - 1)
    dimension = integer("dimension", dimension, at_least=1)
    points = integer("points", points, at_least=1)
    returning = integer("max_participations", max_participations, at_least=1)
    check_gaussian_budget(budget)
    ratio = number("covariance_ratio", covariance_ratio, above=0)
    off, on = stds_of_layout(choice("layout", layout, LAYOUTS), ratio)
    length = number("feature_bound", feature_bound, above=0)
    norms = length * number("reward_bound", reward_bound, above=0), length * length
    shape = norms[0], norms[1] * off, norms[1] * on
    # What Gaussian noise would need, and a little more.
    column = math.ldexp(math.sqrt(_squares(rows, min(returning, len(rows)))), -factor_bits)
    scaled = _Account(budget.relation, 1.01 * column, 0, 1, dimension, norms, 1.0, centred)
    likely = scaled.mu(*shape)
    likely /= gaussian_mu(budget.epsilon, budget.delta)
    if unit is None:
        every = likely * max(shape) * math.sqrt(silos / (silos - colluders))
        unit = _finest_unit(rows, factor_bits, points, norms, every)
    made = SecureSum(
        budget=budget,
        factor=rows,
        trials=(0, 0, 0),
        silos=silos,
        colluders=colluders,
        dimension=dimension,
        points=points,
        unit=number("unit", unit, above=0),
        factor_bits=factor_bits,
        feature_bound=length,
        reward_bound=reward_bound,
        max_participations=returning,
        centred=centred,
    )
    account, honest = made._account(), made.honest
    delta = budget.delta
    # For each share of delta that is told: it, and the ratio left to the rest.
    parts = [
        (told, gaussian_mu(budget.epsilon, (delta - told) / (1.0 - told)))
        for told in (delta * share for share in TAIL_SHARES)
    ]

    def excess(pairs: int) -> float:
        """Least ratio of the account and the budget over the shares."""
        bias, other, diagonal = (honest * n for n in _shares(pairs, shape))
        coins = bias, other, diagonal
        return min(account.proven_mu(coins, told) / mu for told, mu in parts)

    pairs = smallest_bits(2.0 * (likely * shape[0] / made.step) ** 2 / honest, 1.0, excess)
    return msgspec.structs.replace(made, trials=_shares(pairs, shape))


def _shares(pairs: int, shape: tuple[float, float, float]) -> Coins:
    """Coins of one silo's share: so many pairs for a bias entry, others in proportion."""
    bias, off, on = (2 * math.ceil(pairs * (std / shape[0]) ** 2) for std in shape)
    return bias, off, on


def _entry_bound(largest: float, unit: float) -> int:
    """Bound on the size of one record's entry, rounded, in units."""
    return math.ceil(largest / unit) + 1


def needed_bits(largest: int, points: int, entry: int, coins: Coins) -> int:
    """Bits that hold a sum of messages with its sign, for noise of up to 40 stds; and ten more than
    a sum of records needs, which float64 then adds up without rounding.

    largest: of the factor's entries, in size. points: records. entry: the largest of one's entries,
    in units. coins: of the noise of all silos together.
    """
    noise = _REACH * (math.isqrt(max(coins)) + 1) // 2
    return max(
        (largest * points * entry + noise).bit_length() + 1, (points * entry).bit_length() + 11
    )


def _finest_unit(
    factor: Factor, factor_bits: int, points: int, norms: tuple[float, float], std: float
) -> float:
    """Find the finest grid of records with which sums and noise of this std fit, or the coarsest
    that is tried."""
    largest = max(max(map(abs, row)) for row in factor)
    top = math.ceil(math.log2(max(norms)))
    for bits in range(FINEST, COARSEST, -1):
        unit = math.ldexp(1.0, top - bits)
        coins = math.ceil(4.0 * (std / math.ldexp(unit, -factor_bits)) ** 2)
        entry = _entry_bound(max(norms), unit)
        if needed_bits(largest, points, entry, (coins, coins, coins)) <= MOST_BITS:
            return unit
    return math.ldexp(1.0, top - COARSEST)
