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
    DRAWS,
    SIMULATION,
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    rounded_up,
)
from fastfed.privacy.mechanisms.binomial_tree import VectorSumAccount
from fastfed.privacy.sensitivity import RELATIONS, Budget, sum_sensitivity
from fastfed.protocols.plan import Encoding, Plan
from fastfed.protocols.protocol import Bits, Counts, dimension_of

# The randomizer of the vector sum: data points as noisy bits (zhou-chowdhury-2024, Alg. 5-7).


#: Bits that may be held in memory at once when each is made, one byte a bit.
MOST_BITS = 2**29


def encoding_of(plan: Plan) -> Encoding:
    """The plan's encoding; only plans whose data points travel as bits have one."""
    if plan.encoding is None:
        raise InputError(f'protocol "{plan.protocol.id}" needs an encoding')
    return plan.encoding


class BitRandomizer:
    """Encodes every data point anew for each tree node that will hold it (Alg. 5 line 6-7).

    Which nodes those are is known from the round, so a point is encoded as it comes and then
    forgotten. The report counts the silo's ones, for the shuffler to add up over silos:
    ``messages = "aggregate"``.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise
        self.encoding = encoding_of(plan)
        self.release = self.round = 0
        self._drawn = 0, np.zeros(0)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))

    def observe(self, x: np.ndarray, y: float) -> None:
        """Round a data point for all its nodes."""
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
        """Index of the encoding of a node that holds this leaf."""
        return leaf - 1 if self.plan.encoded_by_release else level

    def _encode(self, point: np.ndarray, leaf: int, levels: list[int], words: np.ndarray) -> None:
        for level, drawn in zip(levels, words, strict=True):
            clamped = self.plan.clip is not None
            steps = self.encoding.steps(self._encoding(leaf, level))
            round_statistic(point, steps, clamped, drawn, self._sums[level])

    def report(self) -> Counts | Bits:
        """The ones of the node released now, less their mean without data: exact in float64."""
        release = self.release + 1
        level = self.plan.level(release)
        bits = self.encoding.noise_bits[self.plan.encoding_at(release)]
        trials = self.plan.points_of(release) * bits
        # Kept until the report is made: one that is made again has the same noise.
        if self._drawn[0] != release:
            size = self.plan.statistic_size
            self._drawn = release, self.noise.binomials(self.silo, release, size, trials)
        message = self._drawn[1].copy()
        aggregation.add(message, self._sums[level])
        report = Counts(release, self.plan.dimension, message, self.silo)
        left = self._sums.copy()
        left[level] = 0.0
        # At once, so that what was reported is never kept, and what was not is never lost.
        self._sums, self.release = left, release
        return report


class MessageRandomizer(BitRandomizer):
    """The same, bit by bit: ``messages = "individual"``. Every bit is made and kept until sent."""

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        super().__init__(plan, silo, noise)
        self._bits: list[list[np.ndarray]] = [[] for _ in range(max(1, plan.levels))]

    def _encode(self, point: np.ndarray, leaf: int, levels: list[int], words: np.ndarray) -> None:
        size, b, round = len(point), self.encoding.noise_bits, self.round + 1
        used = [self._encoding(leaf, level) for level in levels]
        # Drawn before any bit is kept: a source that fails leaves everything as it was.
        noises = [
            self.noise.point_binomials(self.silo, round, level, size, b[e])
            for level, e in zip(levels, used, strict=True)
        ]
        for level, e, drawn, noise in zip(levels, used, words, noises, strict=True):
            count = ones_of(point, self.encoding, e, drawn, noise)
            self._bits[level].append(aggregation.encode_bits(count, self.encoding.message_bits(e)))

    def report(self) -> Bits:
        """All bits of the node released now."""
        release = self.release + 1
        level = self.plan.level(release)
        bits = np.concatenate(self._bits[level], axis=1)
        report = Bits(release, self.plan.dimension, bits, self.silo)
        left = self._bits.copy()
        left[level] = []
        self._bits, self.release = left, release
        return report


def round_statistic(
    point: np.ndarray, steps: tuple[int, int], clamped: bool, words: np.ndarray, sums: np.ndarray
) -> None:
    """sums <- sums + (fixed point of a data point, less its g), each stream with its own g."""
    d = dimension_of(len(point))
    for g, part in zip(steps, (slice(0, d), slice(d, None)), strict=True):
        aggregation.round_point(point[part], float(g), clamped, words[part], sums[part])


def ones_of(
    point: np.ndarray, encoding: Encoding, level: int, words: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Count the ones in each entry's message, (s,) int64; ``noise`` is centred."""
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
    """Ones under each label, centred as reports are: (s,) from (s, points (2 g + b))."""
    ones = bits.sum(axis=1, dtype=np.int64).astype(np.float64)
    centred: np.ndarray = ones - points * precision - points * noise_bits / 4.0
    return centred


# ---- One private sum of vectors by shuffled bits: the protocol P_Vec as a part of its own --------


CALIBRATIONS = ("exact", "theorem")
MESSAGES = ("aggregate", "individual")
_SOURCE = "P_Vec (Cheu et al. 2021; zhou-chowdhury-2024, Algorithms 6-7)"


class VectorSum(Once):
    """The sum of one vector from each user, private once the bits of all users are shuffled.

    Each user sends, under each of d labels, 2 g + b bits: the entry in fixed point with g steps per
    ``bound``, rounded at random, and b bits of noise that are one with probability 1/4. Whoever
    reads the shuffled bits learns their number of ones and nothing else. Either epsilon and delta
    or ``noise_bits`` set the noise.

    Parameters
    ----------
    dimension : int
        d >= 1, the length of a vector.
    users : int
        n, from 1 to 2^31.
    epsilon : float, optional
        Of the budget of one sum, > 0.
    delta : float, optional
        Of the budget, in (0, 1); required with ``epsilon``.
    noise_bits : int, optional
        b, from 0 to 2^40, in place of a budget: there is then no certificate.
    precision : int, optional
        g, from 1 to 2^26. Default: max(ceil(2 sqrt(n)), d, 4).
    calibration : {"exact", "theorem"}, default "exact"
        How epsilon and delta set b: the fewest bits proven to give the budget, or b of
        chowdhury-zhou-2022, Theorem C.1.
    relation : {"replace", "zero-out"}, default "replace"
        Neighbours differ in one user's vector, which becomes any other one, or zero.
    bound : float, default 1
        Longer vectors are scaled to this norm; from 1e-100 to 1e100.
    honest_fraction : float, default 1
        In (0, 1]: the share of users whose noise bits are counted on.
    seed : int, optional
        Seed of simulated noise. Default: noise of the operating system.

    Attributes
    ----------
    dimension, users, relation, bound, precision, noise_bits
        As above, filled in.
    honest_users : int
        floor(honest_fraction n).
    budget : Budget or None
        None if ``noise_bits`` set the noise.
    noise : NoiseSource
        Where roundings, noise bits and permutations come from.

    Raises
    ------
    InputError
        For values out of range, unless exactly one of ``epsilon`` and ``noise_bits`` is given, and
        where all users together would send 2^62 bits an entry or more.

    Notes
    -----
    Guarantee: unit user, under ``relation``; replacing or zeroing one user's vector is (epsilon,
    delta)-indistinguishable to whoever sees the shuffled bits of one sum. The shuffler and the
    noise bits of ``honest_users`` users are trusted, whoever reads the shuffled bits is not. The
    result is unbiased, with standard deviation ``noise_std`` in each entry from noise and at most
    bound / 4 from rounding at the default precision.

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
        self.dimension = integer("dimension", dimension, at_least=1)
        self.users = integer("users", users, at_least=1, at_most=2**31)
        self.relation = choice("relation", relation, RELATIONS)
        self.bound = number("bound", bound, at_least=1e-100, at_most=1e100)
        share = number("honest_fraction", honest_fraction, above=0.0, at_most=1.0)
        self.honest_users = math.floor(share * self.users)
        choice("calibration", calibration, CALIBRATIONS)
        if self.honest_users < 1:
            raise InputError(
                f"honest_fraction must leave at least one of {users} users, got {share:g}"
            )
        # The protocol's own rule: rounding then adds at most bound / 4 of standard deviation.
        rule = max(math.isqrt(4 * self.users - 1) + 1, self.dimension, 4)
        self.precision = (
            rule
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
                f"{self.users * self.message_bits:.3g} bits an entry, more than 2^62"
            )
        self.noise: NoiseSource = SystemNoise() if seed is None else SeededNoise(seed)
        self._seeded = seed is not None
        self._sums = 0

    def _calibrated(self, calibration: str, budget: Budget) -> int:
        n, g, d = self.users, self.precision, self.dimension
        if calibration == "theorem":
            log = math.log(4.0 * (d * d + 1)) - math.log(budget.delta)
            bits = math.ceil(24e4 * (g * log / budget.epsilon) ** 2 / n)
            return math.ceil(bits * n / self.honest_users)

        def enough(bits: int) -> bool:
            return self._account(bits).epsilon(budget.delta) <= budget.epsilon

        # Where the noise is nearly Gaussian this is the answer; the exact account decides.
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
        norm = self.precision * sum_sensitivity(self.relation)
        return VectorSumAccount([(self.honest_users * noise_bits, norm)], self.dimension)

    @property
    def message_bits(self) -> int:
        """Bits a user sends under each label, 2 g + b."""
        return 2 * self.precision + self.noise_bits

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in each entry of the sum, in the units of the vectors."""
        return self.bound * math.sqrt(0.1875 * self.users * self.noise_bits) / self.precision

    def exact(self, delta: float | None = None) -> float:
        """Compute an epsilon that is proven for this noise.

        Parameters
        ----------
        delta : float, optional
            Default: the budget's.

        Returns
        -------
        float
            epsilon of one sum under ``relation``; infinite where none is proven.

        Raises
        ------
        InputError
            Without delta, where no budget was given.
        """
        if delta is None:
            if self.budget is None:
                raise InputError("delta must be given: this VectorSum was made from noise_bits")
            delta = self.budget.delta
        found: float = self._account(self.noise_bits).epsilon(delta)
        return found

    def _scaled(self, vectors: object, shape: tuple[int | None, ...]) -> np.ndarray:
        points = np.array(array("vectors", vectors, shape=shape), order="C")
        for point in points:
            linalg.clip_norm(point, self.bound)
        return points / self.bound

    @once
    def randomize(self, x: object, user: int | None = None) -> np.ndarray:
        """Make the bits of one user (zhou-chowdhury-2024, Algorithms 6-7).

        Parameters
        ----------
        x : array_like, shape (d,)
            The user's vector.
        user : int, optional
            0..n-1, which tells users apart where the noise is seeded, and is then required.

        Returns
        -------
        ndarray of uint8, shape (d, 2 g + b)
            Bits, 0 or 1; the row is the label.

        Raises
        ------
        InputError
            For a vector of another shape or not finite, a user out of range or missing, and more
            than 2^29 bits.
        """
        if user is None and self._seeded:
            raise InputError("user must be given where the noise is seeded: each has its own")
        user = integer("user", 0 if user is None else user, at_least=0, at_most=self.users - 1)
        self._check_individual(1)
        (point,) = self._scaled([x], (1, self.dimension))
        d, g, b = self.dimension, self.precision, self.noise_bits
        ones, release = np.zeros(d), self._sums + 1
        aggregation.round_point(point, g, True, self.noise.random_u32(user, release, d), ones)
        noise = self.noise.point_binomials(user, release, 0, d, b)
        count = np.rint(ones + g + noise + b / 4.0).astype(np.int64)
        return aggregation.encode_bits(count, self.message_bits)

    def _check_individual(self, users: int) -> None:
        held = users * self.dimension * self.message_bits
        if held > MOST_BITS:
            raise InputError(
                f"{held:.3g} bits would be held at once, at most {MOST_BITS:.3g} can be; "
                'messages = "aggregate" draws their counts, which have the same distribution'
            )

    @once
    def shuffle(self, bits: object) -> np.ndarray:
        """Permute the bits of all users, under each label by itself.

        Parameters
        ----------
        bits : array_like of uint8, shape (n, d, 2 g + b)
            What `randomize` made for every user.

        Returns
        -------
        ndarray of uint8, shape (d, n (2 g + b))
            For `analyze`.

        Raises
        ------
        InputError
            For another shape or type.
        """
        shape = (self.users, self.dimension, self.message_bits)
        given = np.asarray(bits)
        if given.shape != shape or given.dtype != np.uint8:
            raise InputError(
                f"bits must be uint8 of shape {shape}, got {given.dtype} of shape {given.shape}"
            )
        mixed = given.transpose(1, 0, 2).copy().reshape(self.dimension, -1)
        for label, row in enumerate(mixed):
            self.noise.shuffle_bits(self._sums + 1, label, row)
        return mixed

    @once
    def analyze(self, bits: object) -> np.ndarray:
        """Estimate the sum from shuffled bits; the next sum then has randomness of its own.

        Parameters
        ----------
        bits : array_like of uint8, shape (d, n (2 g + b))
            What `shuffle` returned.

        Returns
        -------
        ndarray, shape (d,)
            An unbiased estimate, in the units of the vectors.

        Raises
        ------
        InputError
            For another shape or type, and bits that are not 0 or 1.

        Notes
        -----
        Source: zhou-chowdhury-2024, Algorithm 7 line 10 and Algorithm 6 line 12.
        """
        shape = (self.dimension, self.users * self.message_bits)
        given = np.asarray(bits)
        if given.shape != shape:
            raise InputError(f"bits must have shape {shape}, got {given.shape}")
        if given.dtype != np.uint8 or (given.size and given.max() > 1):
            raise InputError("bits must be 0 or 1, as uint8")
        centred = counted(given, self.users, self.precision, self.noise_bits)
        # The next sum has randomness of its own.
        self._sums += 1
        return centred * (self.bound / self.precision)

    @once
    def sum(self, vectors: object, messages: str = "aggregate") -> np.ndarray:
        """Compute a private sum; each call has noise of its own.

        Parameters
        ----------
        vectors : array_like, shape (n, d)
            One vector of each user.
        messages : {"aggregate", "individual"}, default "aggregate"
            "individual" makes, shuffles and counts every bit; "aggregate" draws their counts, which
            have the same distribution and cost a million times less.

        Returns
        -------
        ndarray, shape (d,)
            An unbiased estimate, in the units of the vectors.

        Raises
        ------
        InputError
            For another shape, values that are not finite, and with "individual" more than 2^29
            bits.
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
        """Certificate of one sum.

        Raises
        ------
        InputError
            Where ``noise_bits`` set the noise, so that there is no budget.
        """
        if self.budget is None:
            raise InputError("epsilon and delta must be given for a certificate, got noise_bits")
        epsilon, budget = self.exact(), self.budget
        proven = math.isfinite(epsilon)
        shown = rounded_up(epsilon) if proven else "not proven"
        text = (
            f"the exact epsilon of this noise, {shown} at delta {budget.delta:g} under "
            f"{budget.relation}, is at most {budget.epsilon:g}"
        )
        conditions: list[Condition] = [
            Condition("every vector is scaled to norm at most the bound", True),
            Condition(
                f"{self.honest_users} of {self.users} users add their noise bits (taken on trust)",
                True,
            ),
            ClaimCondition(text, epsilon <= budget.epsilon),
        ]
        shared: dict[str, Any] = {"conditions": tuple(conditions), "source": _SOURCE}
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
                *((SIMULATION,) if self._seeded else ()),
                DRAWS,
            ),
            **shared,
        )
