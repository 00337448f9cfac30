"""Plans of federations with a server.

A plan is plain data: all numbers and settings that drivers and parties execute for one curve (one
system in an experiment). Plans without a server, and in phases, are in ``serverless``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar
from typing import Protocol as TypingProtocol

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._validate import InputError, frozen
from fastfed.privacy.account import Claim, verify
from fastfed.privacy.mechanisms.user_bit import bit_values
from fastfed.privacy.releases.buffered import packed
from fastfed.privacy.releases.prefix_sums import Factor, toeplitz_coefficients
from fastfed.protocols.clocks import Clocks
from fastfed.protocols.protocol import Protocol, drawn_once, statistic_size
from fastfed.protocols.schedule import OwnRounds, Schedule, Trigger
from fastfed.protocols.score import Score

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.secure_sum import SecureSum

#: Release types for which every noise draw is stored, because later prefix sums use it again.
KEEPING = ("toeplitz", "factorised")

# ---- Plans: everything a driver needs to run one curve, as plain data ----------------------------


@dataclass(frozen=True)
class NoiseStd:
    """Standard deviations of the noise that one tree node (or batch) adds to a statistic.

    Parameters
    ----------
    bias : float, default 0
        Standard deviation in each entry of the sum of x y, in the units of x y.
    off_diagonal, diagonal : float, default 0
        Standard deviation in each entry of the symmetric sum of x x', off and on its diagonal, in
        the units of x x'.
    """

    bias: float = 0.0
    off_diagonal: float = 0.0
    diagonal: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        """Return the tuple (bias, off_diagonal, diagonal)."""
        return self.bias, self.off_diagonal, self.diagonal

    def times(self, factor: float) -> NoiseStd:
        """Return these standard deviations multiplied by ``factor``."""
        return NoiseStd(*(factor * std for std in self.parts))


class OwnArrays:
    """Base of dataclasses that hold read-only copies of their arrays, also after pickling.

    A certificate describes the numbers that are executed, so no caller may change them later.
    """

    def __post_init__(self) -> None:
        """Replace each array by a read-only copy."""
        for each_field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each_field.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, each_field.name, frozen(value))

    def __setstate__(self, state: dict[str, object]) -> None:
        """Unpickle the fields, but not the cached properties that were computed from them."""
        for each_field in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, each_field.name, state[each_field.name])
        self.__post_init__()


@dataclass(frozen=True)
class Radius(OwnArrays):
    """Radii beta and gamma of the score <x, theta_hat> + beta ||x||_{V^-1} + gamma ||V^-1 x||.

    beta_t = multiplier (offset_k + scale sqrt(base + d ln(1 + rows_t / (d lambda_k)))) and
    gamma = 0, where k is the number of releases so far and rows_t the number of feature vectors in
    V by round t. If ``determinant`` is true, ln det V - d ln anchor replaces d ln(...). The direct
    radius (``direct``) uses a smaller lambda and gamma = multiplier (tau lambda + error_bound_k),
    see fastfed/bandits/radius.py. ``log_lambda`` holds ln lambda_k, and ``floor`` the least
    eigenvalue that V must have. Arrays have one entry for each k = 0, 1, ...; the last entry also
    applies to all later releases.
    """

    multiplier: float
    scale: float
    base: float
    offset: np.ndarray
    log_lambda: np.ndarray
    determinant: bool = False
    direct: bool = False
    anchor: float = 1.0
    tau: float = 1.0
    error_bound: np.ndarray = field(default_factory=lambda: np.zeros(0))
    floor: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def at(self, entry: int, rows: float, dimension: int) -> float:
        """Return beta, the factor of ||x||_{V^-1} in scores, without the rule ``determinant``.

        ``rows`` is the number of feature vectors in V, ``entry`` the index into the arrays of this
        radius (`Plan.entry`), and ``dimension`` is d.
        """
        return linalg.radius_at(
            self.multiplier,
            self.scale,
            self.base,
            self.offset[entry],
            self.log_lambda[entry],
            rows,
            dimension,
        )

    def of(self, entry: int, inflation: float, log_det: float, dimension: int) -> float:
        """Return beta, the factor of ||x||_{V^-1} in scores, by the rule ``determinant``.

        ``log_det`` is ln det V, ``entry`` the index into the arrays of this radius (`Plan.entry`),
        and ``dimension`` is d. If the direct radius has lowered lambda, let A be V with the lambda
        before; otherwise let A be V. ``inflation`` is a number f >= 1 with A <= f V.
        """
        return linalg.determinant_radius(
            self.multiplier,
            self.scale,
            self.base,
            self.offset[entry],
            self.anchor,
            inflation,
            log_det,
            dimension,
        )


@dataclass(frozen=True)
class Clip:
    """Clipping bounds of records: ||x|| <= feature, reward in [low, high].

    If ``constant`` > 0, the code sets the last feature to ``constant``, and ``feature`` bounds the
    norm of the other features. ``centre`` is subtracted from every clipped reward.
    """

    feature: float = 1.0
    low: float = 0.0
    high: float = 1.0
    constant: float = 0.0
    centre: float = 0.0

    def apply(self, x: np.ndarray, y: float) -> tuple[float, bool, bool]:
        """Clip x (d,) in place, and return the clipped, centred reward and two flags.

        The flags say whether the features and whether the reward were clipped.
        """
        x_clipped = linalg.clip_norm(x[:-1] if self.constant else x, self.feature)
        if self.constant:
            x[-1] = self.constant
        y_clipped = not self.low <= y <= self.high
        return min(max(y, self.low), self.high) - self.centre, x_clipped, y_clipped

    @property
    def kappa(self) -> float:
        """kappa, for a constant feature 1 / sqrt(2 kappa). It is 0 without a constant feature."""
        return 0.5 / self.constant**2 if self.constant else 0.0

    @property
    def centred(self) -> tuple[float, float]:
        """The interval (low, high) of the clipped reward after the centre is subtracted."""
        return self.low - self.centre, self.high - self.centre


@dataclass(frozen=True)
class Encoding:
    """Fixed-point encoding of the vector sum (zhou-chowdhury-2024, Algorithms 6-7).

    Each tuple has one entry for each level of the tree, or for each release
    (`Plan.encoded_by_release`).
    """

    precision: tuple[int, ...]  # g: steps per unit
    noise_bits: tuple[int, ...]  # b: noise bits that a data point adds to each entry
    covariance_precision: tuple[int, ...] = ()  # g of x x'; empty: the g of x y

    def steps(self, level: int) -> tuple[int, int]:
        """Return g for the entries of x y, and g for the entries of x x'.

        g is the number of encoding steps between two values whose difference is 1. ``level`` is the
        index into the tuples of this encoding.
        """
        g = self.precision[level]
        return g, self.covariance_precision[level] if self.covariance_precision else g

    def each(self, level: int, dimension: int) -> np.ndarray:
        """Return g for every entry of a statistic, (s,), where g is as in `steps`.

        ``level`` is the index into the tuples of this encoding, and ``dimension`` is d. A statistic
        is the sum of x y, followed by the lower triangle of the sum of x x'.
        """
        bias_steps, covariance_steps = self.steps(level)
        sizes = dimension, statistic_size(dimension) - dimension
        return np.repeat([float(bias_steps), float(covariance_steps)], sizes)

    def message_bits(self, level: int) -> int:
        """Return 2 g + b, the number of bits that encode one entry of one data point.

        g is the larger of the two `steps`, and b the number of noise bits. An entry in [-1, 1] is
        encoded by 0 to 2 g ones. The text of zhou-chowdhury-2024 says g + b bits, which is too few
        for entries above 0.
        """
        return 2 * max(self.steps(level)) + self.noise_bits[level]


@dataclass(frozen=True)
class Plan(OwnArrays):
    """One curve as plain data: policy, schedule, protocol, noise, regularizer and radius.

    Simulation drivers and deployed parties execute the same plan.
    """

    #: The driver that runs this kind of plan, and two texts for error messages: an example of such
    #: a plan, and the parties that accept it.
    driver: ClassVar[str] = "server"
    example: ClassVar[str] = "a Plan, such as system.plan"
    parties: ClassVar[str] = "it is for Silo(plan, index), Shuffler(plan) and Server(plan)"

    silos: int
    horizon: int
    dimension: int
    batch_size: int  # most rounds between two synchronisations; 0: never; 1 with a trigger
    lazy: bool
    protocol: Protocol
    noise_std: NoiseStd
    regularizer: np.ndarray  # lambda after k = 0, 1, ... releases; later ones use the last entry
    radius: Radius
    clip: Clip | None
    release: str = "tree"  # how prefix sums get their noise, see protocols/release.py
    encoding: Encoding | None = None  # set if data points are sent as bits
    silo_noise: tuple[float, ...] = ()  # noise of each silo in units of noise_std; empty: all 1
    individual: bool = False  # make every message of a data point, instead of drawing their sum
    policy: str = "ucb"  # or "random": a uniformly random action
    score: Score | None = None  # score that "ucb" maximises; None: the confidence bound
    trigger: Trigger | None = None  # data-dependent rule for synchronising; None: fixed rounds
    privacy: Claim | None = None  # the declared privacy guarantee; None: no claim
    release_rounds: tuple[int, ...] = ()  # last round of each batch, if batch lengths differ
    factor: Factor | None = None  # the factor of release "factorised"
    ranking: float = 1.0  # m': factor on beta and gamma in the ranking; 1: the largest bound wins
    reward_limit: float = 1.0  # the largest possible mean reward (minus its centre)
    sieve_growth: float = 0.0  # factor on the slack of the sieve; 0: its slack is 1
    widths: tuple[float, ...] = ()  # C of docs/radius.md for each release, times the multiplier
    own: OwnRounds | None = None  # local rounds, of which nothing is sent; None: all are shared
    secure: SecureSum | None = None  # the secure sum that silos and server execute, if masked
    drawn_once: bool = False  # draw the noise of the sum over silos once, see `simulated`
    room: int = 1  # fixed-point sums of a silo hold up to `room` records for each of its rounds
    arms: bool = False  # every feature vector is a unit vector, so V is diagonal
    flips: int = 0  # users send bits of rewards, flipped with chance flips / 2^53; 0: no such bits

    @property
    def coordinates(self) -> int:
        """The dimension of a confidence set: d, or 1 for arms, each of which has one set."""
        return 1 if self.arms else self.dimension

    def with_claim(self, change: Callable[[Claim], Claim]) -> Plan:
        """Return the plan with ``change`` applied to its claim, if it has a claim."""
        return self if self.privacy is None else replace(self, privacy=change(self.privacy))

    @property
    def bit_values(self) -> tuple[float, float]:
        """The estimate of a reward if the user's bit is 0, and the estimate if it is 1.

        They are unbiased estimates of the clipped reward, from which silos learn. Both are 0 if
        users send no bits of rewards.
        """
        if not self.flips or self.clip is None:
            return 0.0, 0.0
        return bit_values(self.flips, self.clip.low, self.clip.high)

    @property
    def counts_ones(self) -> bool:
        """True if a shuffler forwards only the numbers of ones among the bits of users."""
        return self.flips > 0 and self.protocol.shuffled

    @property
    def sent_values(self) -> tuple[float, float]:
        """The numbers that a user's bit adds to the sums that a silo sends: for a 0, and for a 1.

        They are 0 and 1 if a shuffler counts ones. The silo then sends integers, which do not
        depend on the order of users, and the server converts them to sums of `bit_values`.
        Otherwise they are `bit_values`.
        """
        return (0.0, 1.0) if self.counts_ones else self.bit_values

    @property
    def forwards_total(self) -> bool:
        """True if a shuffler of this plan forwards one message for each batch: the total."""
        return self.protocol.bits or self.counts_ones

    @property
    def bit_levels(self) -> int:
        """The number of tree levels if nodes are sent as bits, else 0."""
        return self.levels if self.protocol.bits else 0

    @property
    def slack_by_round(self) -> bool:
        """True if the slack of the sieve is computed in every round.

        The sieve discards actions by their confidence bounds. Its slack changes in every round if
        silos never synchronise, and otherwise only with releases.
        """
        return self.sieve_growth > 0.0 and not self.batch_size

    @property
    def history_numbers(self) -> int:
        """The number of noise values that a simulation stores for all silos together.

        It is 0 for release types that are not in `KEEPING`.
        """
        if self.release not in KEEPING:
            return 0
        noise_by_silo = self.protocol.noise_by == "silos" and not self.protocol.masked
        noise_sources = self.silos if noise_by_silo and not self.drawn_once else 1
        return noise_sources * self.releases * self.statistic_size

    @property
    def simulated(self) -> Plan:
        """The plan that simulation drivers execute: this plan, unless ``drawn_once`` is true.

        If ``drawn_once`` is true, the server of the simulated plan adds the noise of all silos at
        once. The simulation has the same distribution: a sum of independent Gaussian noises is
        Gaussian, releases are linear in the noise, and no part of a simulation reads the message of
        a single silo. In the simulated plan these messages have no noise, so it claims no privacy
        and must not be deployed.

        Raises
        ------
        InputError
            If silos add no Gaussian noise to their sums. Also if the plan has local rounds: in
            these each silo uses its own noise, which the noise of the sum does not determine.
        """
        if not self.drawn_once:
            return self
        protocol = drawn_once(self.protocol)
        if self.own is not None:
            raise InputError(
                "drawn_once needs a plan without local rounds: there a silo uses its own noise"
            )
        factor = math.sqrt(math.fsum(scale * scale for scale in self.noise_scale))
        std = self.noise_std.times(factor)
        return replace(self, protocol=protocol, noise_std=std, silo_noise=(), privacy=None)

    @property
    def noise_scale(self) -> tuple[float, ...]:
        """The noise of each silo in units of ``noise_std``, a tuple of length M."""
        return self.silo_noise or (1.0,) * self.silos

    @property
    def releases(self) -> int:
        """The number of synchronisations in T rounds. With a trigger, the largest possible number.

        An incomplete last batch is never sent (zhou-chowdhury-2024, Alg. 1 line 9).
        """
        if self.release_rounds:
            return len(self.release_rounds)
        return self.horizon // self.batch_size if self.batch_size else 0

    def end(self, release: int) -> int:
        """Return the last round of the batch of a release (counted from 1); 0 for release 0."""
        if self.release_rounds and release:
            return self.release_rounds[release - 1]
        return release * self.batch_size

    @property
    def ends(self) -> np.ndarray:
        """The last round of each batch that is released, (K,)."""
        return Schedule(self.horizon, self.batch_size, self.release_rounds).ends

    def due(self, round: int) -> int:
        """Return the number of releases by the end of ``round``, if their rounds are fixed."""
        if self.release_rounds:
            return bisect_right(self.release_rounds, round)
        return round // self.batch_size if self.batch_size else 0

    def batch_of(self, release: int) -> int:
        """Return the number of rounds in the batch of a release (counted from 1)."""
        return self.end(release) - self.end(release - 1)

    @cached_property
    def release_scale(self) -> np.ndarray:
        """The std of the noise of each batch in units of ``noise_std``, (K,), if users add noise.

        All users add equal noise, and ``noise_std`` is the noise of ``batch_size`` users. The array
        is empty if silos or the server add the noise, or if all batches have equal lengths.
        """
        if self.protocol.noise_by != "users" or not self.release_rounds:
            return np.zeros(0)
        lengths = np.diff(self.release_rounds, prepend=0)
        return frozen(np.sqrt(lengths / float(self.batch_size)))

    @property
    def encoded_by_release(self) -> bool:
        """True if ``encoding`` has an entry for each release, False if for each tree level.

        It is True for data points sent as bits in batches of different lengths, without a tree.
        """
        return self.protocol.flat and self.encoding is not None and bool(self.release_rounds)

    @property
    def levels(self) -> int:
        """The number of tree levels, which is the largest number of nodes that contain one leaf.

        Without a tree it is 1 if batches are sent as bits, else 0.
        """
        if self.protocol.flat:
            return int(self.protocol.bits and self.releases > 0)
        has_tree = self.protocol.tree or self.protocol.noise_by != "none"
        return self.releases.bit_length() if has_tree else 0

    @cached_property
    def coefficients(self) -> np.ndarray:
        """The coefficients that the kernels need for the plan's release type.

        For "toeplitz" they are f_0, ..., f_{K-1} of the square-root factor
        (`toeplitz_coefficients`), for "factorised" the matrix of the factor, and for "buffered" the
        packed parameters of the buffers. For other types the array is empty.
        """
        if self.release == "factorised":
            if self.factor is None or len(self.factor) != self.releases:
                raise InputError(f'release "factorised" needs a factor of {self.releases} releases')
            return self.factor.matrix
        if self.release == "buffered":
            return frozen(packed(self.releases))
        return frozen(toeplitz_coefficients(self.releases if self.release == "toeplitz" else 0))

    @property
    def buffers(self) -> int:
        """The number of noise vectors that a party stores for release "buffered", else 0."""
        return len(self.coefficients) // 2 if self.release == "buffered" else 0

    @cached_property
    def statistic_size(self) -> int:
        """s = d + d (d + 1) / 2, the number of entries of a statistic.

        A statistic is the sum of x y, followed by the lower triangle of the sum of x x'.
        """
        return statistic_size(self.dimension)

    @property
    def sent_size(self) -> int:
        """The number of entries of a message: s, or for arms 2 d (d sums and d counts)."""
        return 2 * self.dimension if self.arms else self.statistic_size

    @property
    def share_until(self) -> int:
        """The last round that may be shared, or 0 if the plan has no local rounds."""
        return self.own.until if self.own is not None else 0

    @property
    def rows_per_round(self) -> int:
        """The number of feature vectors that a round adds to V: M if silos synchronise, else 1."""
        return self.silos if self.batch_size else 1

    def entry(self, release: int) -> int:
        """Return the index into the arrays of regularizer and radius after ``release`` releases.

        The last entry of the arrays also applies to all later releases.
        """
        return min(release, len(self.regularizer) - 1)

    def rows(self, release: int, round: int) -> float:
        """Return the number of feature vectors that the radius of ``round`` counts in V.

        V is the matrix of `Radius`. A lazy plan counts only the rounds up to the last release,
        whose number is ``release``. Other plans count all rounds.
        """
        counted = self.end(release) if self.lazy else round
        return float(self.rows_per_round * counted)

    @property
    def user_std(self) -> NoiseStd:
        """The noise of one user's message. The sum over ``batch_size`` users has ``noise_std``."""
        return self.noise_std.times(1.0 / math.sqrt(max(1, self.batch_size)))

    def most_records(self, release: int) -> int:
        """Return the number of a silo's records up to a release that fixed-point sums can hold."""
        return self.end(release) * self.room

    @property
    def public_constant(self) -> bool:
        """True if the last entry of a statistic is public, so that it gets no noise.

        The entry is the square of a constant feature, summed over rounds, and so a multiple of the
        number of rounds. If a secret coin decides which rounds are shared, the number of shared
        rounds is not public.
        """
        has_constant = self.clip is not None and self.clip.constant > 0.0
        secret_coin = self.own is not None and self.own.secret
        return has_constant and not self.protocol.bits and not secret_coin

    @property
    def by_users(self) -> bool:
        """True if each user makes a message, False if the silo or agent makes one for all users."""
        return self.protocol.senders == "users" and self.individual

    @property
    def sender(self) -> str:
        """The sender of a message, for error messages: "user" or "silo"."""
        return "user" if self.by_users else "silo"

    def senders(self, release: int) -> int:
        """Return the number of messages in a release: one per silo, or per user of its batch."""
        return self.silos * self.batch_of(release) if self.by_users else self.silos

    def level(self, release: int) -> int:
        """Return the level of the tree node that a release completes; 0 without a tree."""
        return 0 if self.protocol.flat else aggregation.node_level(release)

    @cached_property
    def units(self) -> np.ndarray:
        """The value of one bit in each entry of a statistic: 1 / (encoding steps per unit).

        The shape is (levels, s), or (K, s) if `encoded_by_release`. Without bits it is (0, s).
        """
        if self.encoding is None:
            return np.zeros((0, self.statistic_size))
        count = len(self.encoding.precision) if self.encoded_by_release else self.levels
        unit_rows = [1.0 / self.encoding.each(j, self.dimension) for j in range(count)]
        return frozen(np.array(unit_rows).reshape(count, self.statistic_size))

    def points(self, level: int) -> int:
        """Return the number of a silo's data points under a tree node of this level: B 2^level."""
        return self.batch_size << level

    def encoding_at(self, release: int) -> int:
        """Return the index into the encoding for the node or batch that a release completes."""
        return release - 1 if self.encoded_by_release else self.level(release)

    def points_of(self, release: int) -> int:
        """Return the number of a silo's data points in the node or batch of a release.

        It is for protocols whose data points are sent as bits.
        """
        if self.release_rounds:
            return self.batch_of(release)
        return self.points(self.level(release))

    @cached_property
    def _bits_up_by_level(self) -> list[int]:
        """The number of bits that all senders together send for one tree node of each level.

        Without a tree the list has one entry, for a batch.
        """
        if self.protocol.senders == "agent":
            return [0] * max(1, self.levels)
        if self.encoding is None:
            users = self.batch_size if self.protocol.senders == "users" else 1
            return [64 * self.sent_size * self.silos * users] * max(1, self.levels)
        return [self._labelled_bits(self.points(level), level) for level in range(self.levels)]

    def _labelled_bits(self, points: int, index: int) -> int:
        """Return the number of bits sent for ``points`` data points of every silo.

        ``index`` is the index into the tuples of the plan's encoding. A shuffler permutes single
        bits, so each bit is sent with a label that names its entry of the statistic.
        """
        assert self.encoding is not None
        bits_per_labelled_bit = 1 + (self.statistic_size - 1).bit_length()
        message_bits = self.encoding.message_bits(index)
        return self.silos * points * self.statistic_size * message_bits * bits_per_labelled_bit

    def bits_up_of(self, releases: int) -> int:
        """Return the number of bits that silos or users have sent after ``releases`` releases.

        An entry of a statistic counts as 64 bits. If data points are sent as bits, each bit is
        counted together with its label.
        """
        if self.release_rounds and self.protocol.senders != "agent":
            if self.encoding is not None:
                return sum(
                    self._labelled_bits(self.points_of(k), self.encoding_at(k))
                    for k in range(1, releases + 1)
                )
            if self.protocol.senders == "users":
                return self.end(releases) * 64 * self.sent_size * self.silos
        if self.encoding is None or self.protocol.flat:
            return releases * self._bits_up_by_level[0] if releases else 0
        # A node of level j is released at each odd multiple of 2^j.
        return sum(
            ((releases >> level) + 1) // 2 * bits
            for level, bits in enumerate(self._bits_up_by_level)
        )

    def bits_down_of(self, releases: int) -> int:
        """Return the number of bits sent by the server to all silos after ``releases`` releases.

        Each release is one float64 statistic for every silo. If users are the senders the result is
        0: the action that a user receives is not part of the protocol.
        """
        if self.protocol.senders != "silos":
            return 0
        return releases * 64 * self.sent_size * self.silos


@dataclass(frozen=True)
class DelayedPlan(Plan):
    """A plan for simulations in which rewards arrive late (docs/delays.md).

    A deployment has real delays instead, and refuses this kind of plan.

    Parameters
    ----------
    arrivals : ndarray, shape (n,)
        arrivals[k] is 2^53 times the probability that a reward arrives at most k rounds after its
        action, rounded to an integer. Rewards that take n rounds or more never arrive.
    """

    arrivals: np.ndarray = field(default_factory=lambda: np.full(1, 2.0**53))

    @classmethod
    def of(cls, plan: Plan, arrivals: np.ndarray) -> DelayedPlan:
        """Return ``plan`` as a `DelayedPlan` with these arrivals."""
        values = {field.name: getattr(plan, field.name) for field in fields(Plan)}
        return cls(**values, arrivals=arrivals)

    def delay(self, bits: int) -> int | None:
        """Return the delay in rounds that 64 uniform bits give; None if the reward never arrives.

        The delay is 0 if the reward is known before the next round.
        """
        # The highest 53 bits are a number to compare with `arrivals`, which are in units of 2^-53.
        delay = int(np.searchsorted(self.arrivals, float(bits >> 11), side="right"))
        return delay if delay < len(self.arrivals) else None


@dataclass(frozen=True)
class ClockedPlan(Plan):
    """A plan in which silos report on separate clocks (docs/clocks.md).

    Rounds of a run are ticks. ``releases`` is K, the largest number of reports of one silo, and the
    batches of the plan are those of a silo with K reports. A view is the sum of all silos' latest
    reports. Arrays that `Plan` indexes by release have one entry for each view v = 0..V.

    Parameters
    ----------
    clocks : Clocks
        The clocks of all silos.
    """

    clocks: Clocks = field(default_factory=lambda: Clocks(1, 1, ()))

    @classmethod
    def of(cls, plan: Plan, clocks: Clocks) -> ClockedPlan:
        """Return ``plan`` as a `ClockedPlan` with these clocks."""
        values = {field.name: getattr(plan, field.name) for field in fields(Plan)}
        return cls(**values, clocks=clocks)

    def bits_up_of(self, releases: int) -> int:
        """Return the number of bits that silos have sent in the first ``releases`` exchanges."""
        return 64 * self.statistic_size * int(self.clocks.reports[releases].sum())

    def bits_down_of(self, releases: int) -> int:
        """Return the number of bits that silos have received: one view for each report."""
        return self.bits_up_of(releases)


class AnyPlan(TypingProtocol):
    """Any kind of plan; see the fields of the same names in `Plan`."""

    driver: ClassVar[str]
    example: ClassVar[str]
    parties: ClassVar[str]


P = TypeVar("P", bound=AnyPlan)


def of_kind(plan: object, kind: type[P]) -> P:
    """Return the plan if it is an instance of ``kind``; raise InputError otherwise.

    Callers often pass a system or a different kind of plan. For a different kind of plan, the
    message names the parties that accept it.
    """
    if isinstance(plan, kind):
        return plan
    hint = getattr(type(plan), "parties", None)
    raise InputError(
        f"plan must be {kind.example}, got {type(plan).__name__}{f': {hint}' if hint else ''}"
    )


def check_plan(plan: object) -> Plan:
    """Return the plan if it is a Plan whose noise gives the guarantee that it claims.

    Parameters
    ----------
    plan : object
        The value to check.

    Returns
    -------
    Plan
        The same object.

    Raises
    ------
    InputError
        If ``plan`` is not a Plan, or its numbers do not give the epsilon of its claim.
    """
    checked = of_kind(plan, Plan)
    verify(checked)
    return checked
