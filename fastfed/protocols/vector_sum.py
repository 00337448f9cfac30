"""Vector sums by shuffled bits (zhou-chowdhury-2024, Algorithms 5-7)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource, SeededNoise, SystemNoise
from fastfed._validate import InputError, Once, array, choice, integer, number, once
from fastfed.privacy.accounting.gdp import mu_of
from fastfed.privacy.certificate import (
    NOISE_BITS_CAVEAT,
    SIMULATION_CAVEAT,
    Certificate,
    Condition,
    Guarantee,
    noise_claim,
)
from fastfed.privacy.mechanisms.binomial_tree import VectorSumAccount
from fastfed.privacy.sensitivity import RELATIONS, Budget, sum_sensitivity
from fastfed.protocols.plan import Encoding, Plan
from fastfed.protocols.protocol import Bits, Counts, dimension_of

# ---- Randomizers of silos that send data points as noisy bits (zhou-chowdhury-2024, Alg. 5-7) ----


#: Largest number of bits that may be in memory at once, one byte per bit.
MAX_BITS = 2**29


def encoding_of(plan: Plan) -> Encoding:
    """Return the plan's encoding; raise InputError if its data points are not sent as bits."""
    if plan.encoding is None:
        raise InputError(f'protocol "{plan.protocol.id}" needs an encoding')
    return plan.encoding


class BitRandomizer:
    """Randomizer that sends the number of ones among a silo's bits (``messages = "aggregate"``).

    Each data point is encoded separately for each tree node that will contain the point (Algorithm
    5, lines 6-7). The round determines these nodes, so a point is encoded at once and not stored.
    The shuffler adds up the counts of all silos.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        """Start without data points."""
        self.plan, self.silo, self.noise = plan, silo, noise
        self.encoding = encoding_of(plan)
        self.release = self.round = 0
        self._drawn = 0, np.zeros(0)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))

    def observe(self, x: np.ndarray, y: float) -> None:
        """Encode a data point, features x (d,) and reward y, for each node that will contain it.

        Data points of the incomplete last batch are in no node.
        """
        plan, round, size = self.plan, self.round + 1, self.plan.statistic_size
        leaf = plan.due(self.round) + 1
        if plan.protocol.flat:
            levels = [0] if leaf <= plan.releases else []
        else:
            levels = aggregation.touched_levels(leaf, plan.releases)
        words = self.noise.random_u32(self.silo, round, len(levels) * size).reshape(-1, size)
        point = np.zeros(size)
        linalg.accumulate(point, x, y)
        self._encode(point, leaf, levels, words)
        self.round = round

    def _encoding(self, leaf: int, level: int) -> int:
        """Return the index into the encoding for the node of ``level`` that contains ``leaf``."""
        return leaf - 1 if self.plan.encoded_by_release else level

    def _encode(self, point: np.ndarray, leaf: int, levels: list[int], words: np.ndarray) -> None:
        """Add a data point's statistic (s,), rounded at random, to the sum of each tree node.

        ``levels`` are the levels of the nodes that will contain the point. ``words``
        (len(levels), s) are random 32-bit integers, which decide the rounding.
        """
        for level, level_words in zip(levels, words, strict=True):
            clamped = self.plan.clip is not None
            steps = self.encoding.steps(self._encoding(leaf, level))
            round_statistic(point, steps, clamped, level_words, self._sums[level])

    def report(self) -> Counts | Bits:
        """Return the centred number of ones among the bits of the released node, for each entry.

        Centred: minus the mean of that number for data points of zero. The result is exact in
        float64.
        """
        release = self.release + 1
        level = self.plan.level(release)
        bits = self.encoding.noise_bits[self.plan.encoding_at(release)]
        trials = self.plan.points_of(release) * bits
        # Cache the draw, so that a second try after a failure uses the same noise.
        if self._drawn[0] != release:
            size = self.plan.statistic_size
            self._drawn = release, self.noise.binomials(self.silo, release, size, trials)
        message = self._drawn[1].copy()
        aggregation.add(message, self._sums[level])
        report = Counts(release, self.plan.dimension, message, self.silo)
        remaining_sums = self._sums.copy()
        remaining_sums[level] = 0.0
        # In one assignment: a failure must neither lose unreported data nor keep reported data.
        self._sums, self.release = remaining_sums, release
        return report


class MessageRandomizer(BitRandomizer):
    """Randomizer that makes and sends every bit (``messages = "individual"``).

    It stores all bits of each node until the node is released.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        """Start without data points."""
        super().__init__(plan, silo, noise)
        self._bits: list[list[np.ndarray]] = [[] for _ in range(max(1, plan.levels))]

    def _encode(self, point: np.ndarray, leaf: int, levels: list[int], words: np.ndarray) -> None:
        """Make the bits of a data point's statistic (s,) for each tree node, and store them.

        The arguments are as for `BitRandomizer._encode`.
        """
        size, b, round = len(point), self.encoding.noise_bits, self.round + 1
        encodings = [self._encoding(leaf, level) for level in levels]
        # Draw all noise before storing any bits: if the noise source fails, the state is unchanged.
        noises = [
            self.noise.point_binomials(self.silo, round, level, size, b[e])
            for level, e in zip(levels, encodings, strict=True)
        ]
        for level, e, level_words, noise in zip(levels, encodings, words, noises, strict=True):
            ones = ones_of(point, self.encoding, e, level_words, noise)
            self._bits[level].append(aggregation.encode_bits(ones, self.encoding.message_bits(e)))

    def report(self) -> Bits:
        """Return all bits of the released node."""
        release = self.release + 1
        level = self.plan.level(release)
        bits = np.concatenate(self._bits[level], axis=1)
        report = Bits(release, self.plan.dimension, bits, self.silo)
        remaining_bits = self._bits.copy()
        remaining_bits[level] = []
        self._bits, self.release = remaining_bits, release
        return report


def round_statistic(
    point: np.ndarray, steps: tuple[int, int], clamped: bool, words: np.ndarray, sums: np.ndarray
) -> None:
    """Add a data point's statistic (s,), rounded at random to fixed point, to ``sums`` in place.

    ``steps`` are the numbers of encoding steps per unit of a bias entry and of a covariance entry.
    ``words`` (s,) are random 32-bit integers, which decide the rounding. The added values are
    centred: they lack the offset that makes a number of ones nonnegative. With ``clamped``, entries
    are clipped to [-1, 1] first.
    """
    d = dimension_of(len(point))
    for g, part in zip(steps, (slice(0, d), slice(d, None)), strict=True):
        aggregation.round_point(point[part], float(g), clamped, words[part], sums[part])


def ones_of(
    point: np.ndarray, encoding: Encoding, level: int, words: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return the number of ones in the message of each entry of a statistic, (s,) int64.

    ``point`` (s,) is the statistic of a data point, and ``words`` (s,) are random 32-bit integers
    for the rounding. ``level`` is the index into the tuples of the encoding (a level of the tree,
    or a release minus 1). ``noise`` (s,) is the number of ones among the noise bits, minus its
    mean.
    """
    ones = np.zeros(len(point))
    round_statistic(point, encoding.steps(level), True, words, ones)
    g = encoding.each(level, dimension_of(len(point)))
    count: np.ndarray = np.rint(ones + g + noise + encoding.noise_bits[level] / 4.0).astype(
        np.int64
    )
    return count


def counted(
    bits: np.ndarray, points: int, precision: int | np.ndarray, noise_bits: int
) -> np.ndarray:
    """Return the centred number of ones in each row of bits, (s,).

    Centred: minus the mean of that number for data points of zero. ``bits`` (s, points (2 g + b))
    has a row for each entry of the statistic, where g is ``precision`` and b is ``noise_bits``.
    """
    ones_counts = bits.sum(axis=1, dtype=np.int64).astype(np.float64)
    centred: np.ndarray = ones_counts - points * precision - points * noise_bits / 4.0
    return centred


# ---- One private sum of vectors by shuffled bits: the protocol P_Vec, usable without a bandit ----


CALIBRATIONS = ("exact", "theorem")
MESSAGES = ("aggregate", "individual")
_SOURCE = "P_Vec (Cheu et al. 2021; zhou-chowdhury-2024, Algorithms 6-7)"


class VectorSum(Once):
    """A private sum of one vector from each of n users, computed from shuffled bits.

    For each of the d entries, a user sends 2 g + b bits: the entry in fixed point with g steps per
    ``bound``, rounded at random, and b noise bits that are 1 with probability 1/4. The shuffled
    bits reveal only the number of ones in each entry. The noise is set either by epsilon and delta
    or by ``noise_bits``.

    Parameters
    ----------
    dimension : int
        d >= 1, the length of a vector.
    users : int
        n, the number of users, from 1 to 2^31.
    epsilon : float, optional
        Epsilon of one sum, > 0.
    delta : float, optional
        Delta of one sum, in (0, 1); required with ``epsilon``.
    noise_bits : int, optional
        b, from 0 to 2^40, in place of epsilon and delta. There is no certificate then.
    precision : int, optional
        g, from 1 to 2^26. Default: max(ceil(2 sqrt(n)), d, 4).
    calibration : {"exact", "theorem"}, default "exact"
        How b is computed from epsilon and delta. "exact": the fewest noise bits for which the exact
        account proves the budget. "theorem": b of chowdhury-zhou-2022, Theorem C.1.
    relation : {"replace", "zero-out"}, default "replace"
        Neighbouring data sets differ in one user's vector, which is replaced by any vector, or by
        zero.
    bound : float, default 1
        Largest norm of a vector, from 1e-100 to 1e100. Longer vectors are scaled to this norm.
    honest_fraction : float, default 1
        Fraction of users, in (0, 1], whose noise bits the guarantee relies on.
    seed : int, optional
        Seed of simulated noise. Default: noise from the operating system's generator.

    Attributes
    ----------
    dimension, users, relation, bound, precision, noise_bits
        The parameters, with defaults filled in.
    honest_users : int
        floor(honest_fraction n).
    budget : Budget or None
        The budget; None if ``noise_bits`` was given.
    noise : NoiseSource
        Source of roundings, noise bits and permutations.

    Raises
    ------
    InputError
        If a value is out of range, if not exactly one of ``epsilon`` and ``noise_bits`` is given,
        or if all users together would send 2^62 or more bits per entry.

    Notes
    -----
    Guarantee: unit user, under ``relation``. To anyone who sees the shuffled bits of one sum, two
    neighbouring data sets are (epsilon, delta)-indistinguishable. The shuffler and the noise bits
    of ``honest_users`` users are trusted; the recipient of the shuffled bits is not. The result is
    unbiased. Each entry has standard deviation ``noise_std`` from noise and, at the default
    precision, at most bound / 4 from rounding.

    Source: Cheu et al. 2021; zhou-chowdhury-2024, Algorithms 6-7.

    Examples
    --------
    >>> protocol = VectorSum(dimension=3, users=1000, epsilon=1.0, delta=1e-6)
    >>> protocol.sum(np.tile([0.6, 0.0, 0.8], (1000, 1))).shape
    (3,)
    """

    def __init__(
        self,
        dimension: int,
        users: int,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_bits: int | None = None,
        precision: int | None = None,
        calibration: str = "exact",
        relation: str = "replace",
        bound: float = 1.0,
        honest_fraction: float = 1.0,
        seed: int | None = None,
    ) -> None:
        """Check the arguments and calibrate the noise bits."""
        self.dimension = integer("dimension", dimension, at_least=1)
        self.users = integer("users", users, at_least=1, at_most=2**31)
        self.relation = choice("relation", relation, RELATIONS)
        self.bound = number("bound", bound, at_least=1e-100, at_most=1e100)
        fraction = number("honest_fraction", honest_fraction, above=0.0, at_most=1.0)
        self.honest_users = math.floor(fraction * self.users)
        choice("calibration", calibration, CALIBRATIONS)
        if self.honest_users < 1:
            raise InputError(
                f"honest_fraction must leave at least one of {users} users, got {fraction:g}"
            )
        # The paper's choice of g. With it, rounding adds a standard deviation of at most bound / 4.
        default_precision = max(math.isqrt(4 * self.users - 1) + 1, self.dimension, 4)
        self.precision = (
            default_precision
            if precision is None
            else integer("precision", precision, at_least=1, at_most=2**26)
        )
        self.budget: Budget | None = None
        if (epsilon is None) == (noise_bits is None):
            raise InputError(
                "exactly one of epsilon (with delta) and noise_bits must be given, got "
                f"epsilon {epsilon}, noise_bits {noise_bits}"
            )
        if noise_bits is not None:
            self.noise_bits = integer("noise_bits", noise_bits, at_least=0, at_most=2**40)
        else:
            if delta is None:
                raise InputError("delta must be given with epsilon, got None")
            number("delta", delta, above=0.0, below=1.0)
            self.budget = Budget(number("epsilon", epsilon, above=0.0), delta, relation)
            self.noise_bits = self._calibrated(calibration, self.budget)
        if self.users * self.message_bits >= 2**62:
            raise InputError(
                f"epsilon or delta is too small: {self.users} users would send "
                f"{self.users * self.message_bits:.3g} bits per entry, 2^62 or more"
            )
        self.noise: NoiseSource = SystemNoise() if seed is None else SeededNoise(seed)
        self._seeded = seed is not None
        self._sums = 0

    def _calibrated(self, calibration: str, budget: Budget) -> int:
        """Return the number of noise bits per user and entry that the calibration rule gives."""
        n, g, d = self.users, self.precision, self.dimension
        if calibration == "theorem":
            log = math.log(4.0 * (d * d + 1)) - math.log(budget.delta)
            bits = math.ceil(24e4 * (g * log / budget.epsilon) ** 2 / n)
            # The theorem needs the noise of n users: let `honest_users` users add as much.
            return math.ceil(bits * n / self.honest_users)

        def enough(bits: int) -> bool:
            """Return True if this number of noise bits is proven to meet the budget."""
            return self._account(bits).epsilon(budget.delta) <= budget.epsilon

        # Start from the Gaussian approximation; then bracket and bisect with the exact account.
        ratio = g * sum_sensitivity(budget.relation) / mu_of(budget.epsilon, budget.delta)
        high = math.ceil(ratio * ratio / 0.1875 / self.honest_users)
        while not enough(high):
            high = high + 1 + high // 16
        low = high - 1 - high // 16
        while low > 0 and enough(low):
            low //= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def _account(self, noise_bits: int) -> VectorSumAccount:
        """Return the exact account of one sum with ``noise_bits`` noise bits per user and entry."""
        norm = self.precision * sum_sensitivity(self.relation)
        return VectorSumAccount([(self.honest_users * noise_bits, norm)], self.dimension)

    @property
    def message_bits(self) -> int:
        """Return the number of bits that a user sends for each entry, 2 g + b."""
        return 2 * self.precision + self.noise_bits

    @property
    def noise_std(self) -> float:
        """Return the std of the noise in each entry of the sum, in the units of the vectors."""
        # A noise bit is 1 with probability 1/4, so its variance is 3/16.
        return self.bound * math.sqrt(0.1875 * self.users * self.noise_bits) / self.precision

    def exact(self, delta: float | None = None) -> float:
        """Return the epsilon of one sum that the exact account proves for this noise.

        Parameters
        ----------
        delta : float, optional
            Default: the delta of the budget.

        Returns
        -------
        float
            epsilon of one sum under ``relation``; infinite if no epsilon is proven.

        Raises
        ------
        InputError
            If ``delta`` is missing and no budget was given.
        """
        if delta is None:
            if self.budget is None:
                raise InputError("delta must be given: this VectorSum was made from noise_bits")
            delta = self.budget.delta
        epsilon: float = self._account(self.noise_bits).epsilon(delta)
        return epsilon

    def _scaled(self, vectors: object, shape: tuple[int | None, ...]) -> np.ndarray:
        """Return the vectors, clipped to norm ``bound`` and divided by ``bound``."""
        points = np.array(array("vectors", vectors, shape=shape), order="C")
        for point in points:
            linalg.clip_norm(point, self.bound)
        return points / self.bound

    @once
    def randomize(self, x: object, user: int | None = None) -> np.ndarray:
        """Return the bits of one user (zhou-chowdhury-2024, Algorithms 6-7).

        Parameters
        ----------
        x : array_like, shape (d,)
            The user's vector.
        user : int, optional
            Index of the user, 0..n-1. Required if the noise is seeded, because users must get
            different noise.

        Returns
        -------
        ndarray of uint8, shape (d, 2 g + b)
            Bits, 0 or 1, where g is ``precision`` and b is ``noise_bits``. Row i encodes entry i;
            the row index is the label of its bits.

        Raises
        ------
        InputError
            If ``x`` has a wrong shape or is not finite, ``user`` is out of range or missing, or
            there would be more than 2^29 bits.
        """
        if user is None and self._seeded:
            raise InputError("user must be given if the noise is seeded: it differs between users")
        user = integer("user", 0 if user is None else user, at_least=0, at_most=self.users - 1)
        self._check_individual(1)
        vector = array("x", x, shape=(self.dimension,))
        (point,) = self._scaled([vector], (1, self.dimension))
        d, g, b = self.dimension, self.precision, self.noise_bits
        ones, release = np.zeros(d), self._sums + 1
        aggregation.round_point(point, g, True, self.noise.random_u32(user, release, d), ones)
        noise = self.noise.point_binomials(user, release, 0, d, b)
        message_ones = np.rint(ones + g + noise + b / 4.0).astype(np.int64)
        return aggregation.encode_bits(message_ones, self.message_bits)

    def _check_individual(self, users: int) -> None:
        """Raise InputError if the bits of this number of users do not fit into memory."""
        bits = users * self.dimension * self.message_bits
        if bits > MAX_BITS:
            raise InputError(
                f'messages = "individual" would store {bits:.3g} bits at once, more than the limit '
                f'of {MAX_BITS:.3g}; "aggregate" draws the number of ones, which has the same '
                "distribution"
            )

    @once
    def shuffle(self, bits: object) -> np.ndarray:
        """Return the bits of all users, permuted separately within each label.

        The label of a bit is the index 0..d-1 of the vector's entry that it encodes.

        Parameters
        ----------
        bits : array_like of uint8, shape (n, d, 2 g + b)
            The results of `randomize` for all users. Here 2 g + b is `message_bits`.

        Returns
        -------
        ndarray of uint8, shape (d, n (2 g + b))
            Permuted bits, for `analyze`.

        Raises
        ------
        InputError
            If ``bits`` has a wrong shape or type.
        """
        shape = (self.users, self.dimension, self.message_bits)
        user_bits = np.asarray(bits)
        if user_bits.shape != shape or user_bits.dtype != np.uint8:
            raise InputError(
                f"bits must be uint8 of shape {shape}, got {user_bits.dtype} of shape "
                f"{user_bits.shape}"
            )
        shuffled_bits = user_bits.transpose(1, 0, 2).copy().reshape(self.dimension, -1)
        for label, row in enumerate(shuffled_bits):
            self.noise.shuffle_bits(self._sums + 1, label, row)
        return shuffled_bits

    @once
    def analyze(self, bits: object) -> np.ndarray:
        """Return an estimate of the sum from shuffled bits. The next sum gets new seeded noise.

        Parameters
        ----------
        bits : array_like of uint8, shape (d, n (2 g + b))
            The result of `shuffle`. Here 2 g + b is `message_bits`.

        Returns
        -------
        ndarray, shape (d,)
            An unbiased estimate, in the units of the vectors.

        Raises
        ------
        InputError
            If ``bits`` has a wrong shape or type, or entries other than 0 and 1.

        Notes
        -----
        Source: zhou-chowdhury-2024, Algorithm 7 line 10 and Algorithm 6 line 12.
        """
        shape = (self.dimension, self.users * self.message_bits)
        shuffled_bits = np.asarray(bits)
        if shuffled_bits.shape != shape:
            raise InputError(f"bits must have shape {shape}, got {shuffled_bits.shape}")
        if shuffled_bits.dtype != np.uint8 or (shuffled_bits.size and shuffled_bits.max() > 1):
            raise InputError("bits must be 0 or 1, as uint8")
        centred = counted(shuffled_bits, self.users, self.precision, self.noise_bits)
        # The number of sums is part of the noise key, so the next sum gets independent noise.
        self._sums += 1
        return centred * (self.bound / self.precision)

    @once
    def sum(self, vectors: object, messages: str = "aggregate") -> np.ndarray:
        """Return a private sum. Each call draws independent noise.

        Parameters
        ----------
        vectors : array_like, shape (n, d)
            One vector of each user.
        messages : {"aggregate", "individual"}, default "aggregate"
            "individual" makes, shuffles and counts every bit. "aggregate" draws the number of ones
            directly; the result has the same distribution, and the cost is up to a million times
            lower.

        Returns
        -------
        ndarray, shape (d,)
            An unbiased estimate, in the units of the vectors.

        Raises
        ------
        InputError
            If ``vectors`` has a wrong shape or is not finite, or "individual" would store more than
            2^29 bits.
        """
        choice("messages", messages, MESSAGES)
        points = self._scaled(vectors, (self.users, self.dimension))
        n, d = self.users, self.dimension
        if messages == "individual":
            self._check_individual(n)
            bits = [self.randomize(p * self.bound, i) for i, p in enumerate(points)]
            return self.analyze(self.shuffle(np.array(bits)))
        release = self._sums + 1
        words = self.noise.random_u32(0, release, n * d).reshape(n, d)
        counts = self.noise.binomials(0, release, d, n * self.noise_bits)
        aggregation.round_points(points, self.precision, True, words, counts)
        self._sums = release
        return counts * (self.bound / self.precision)

    @property
    def certificate(self) -> Certificate:
        """Return the certificate of one sum.

        Raises
        ------
        InputError
            If ``noise_bits`` was given instead of a budget.
        """
        if self.budget is None:
            raise InputError("epsilon and delta must be given for a certificate, got noise_bits")
        epsilon, budget = self.exact(), self.budget
        proven = math.isfinite(epsilon)
        unproven = (
            f"the exact epsilon of this noise, not proven at delta {budget.delta:g} under "
            f"{budget.relation}, is at most {budget.epsilon:g}"
        )
        conditions: list[Condition] = [
            Condition("every vector is scaled to norm at most the bound", True),
            Condition(
                f"{self.honest_users} of {self.users} users add their noise bits (taken on trust)",
                True,
            ),
            noise_claim(budget, epsilon, unproven=unproven),
        ]
        common_fields: dict[str, Any] = {"conditions": tuple(conditions), "source": _SOURCE}
        return Certificate(
            unit="user",
            relation=self.relation,
            model="shuffle: the shuffler is trusted, who reads the shuffled bits is not",
            claimed=Guarantee(budget.epsilon, budget.delta),
            exact=Guarantee(epsilon, budget.delta) if proven else None,
            status="proven" if proven else "unproven",
            noise_std={"sum": self.noise_std},
            caveats=(
                "one sum: a user who takes part in several is covered by composition only",
                *((SIMULATION_CAVEAT,) if self._seeded else ()),
                NOISE_BITS_CAVEAT,
            ),
            **common_fields,
        )
