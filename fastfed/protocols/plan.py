"""Plans with a server: one curve as plain data; those without one are in ``serverless``."""

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
from fastfed.privacy.releases.buffered import packed
from fastfed.privacy.releases.prefix_sums import Factor, toeplitz_coefficients
from fastfed.protocols.protocol import Protocol, drawn_once, statistic_size
from fastfed.protocols.schedule import OwnRounds, Schedule, Trigger
from fastfed.protocols.score import Score

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.secure_sum import SecureSum

#: Releases whose noise reappears in later prefixes, so that it is kept.
KEEPING = ("toeplitz", "factorised")

# ---- Plans: everything a driver needs to run one curve, as plain data ----------------------------


@dataclass(frozen=True)
class NoiseStd:
    """Standard deviations of one node's noise, by entry of a statistic.

    Parameters
    ----------
    bias : float, default 0
        Of each entry of the sum of x y, in the units of x y.
    off_diagonal, diagonal : float, default 0
        Of each entry of the symmetric sum of x x', in the units of x x'.
    """

    bias: float = 0.0
    off_diagonal: float = 0.0
    diagonal: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        """The three numbers: bias, off_diagonal, diagonal."""
        return self.bias, self.off_diagonal, self.diagonal

    def times(self, factor: float) -> NoiseStd:
        """Return the same noise, ``factor`` times as strong."""
        return NoiseStd(*(factor * part for part in self.parts))


class OwnArrays:
    """Base of plain data whose arrays are its own: immutable copies, also after pickling.

    A certificate is about the numbers that are executed, so nobody may change them later.
    """

    def __post_init__(self) -> None:
        """Copy the arrays."""
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, each.name, frozen(value))

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the fields, and nothing that was computed from them."""
        for each in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, each.name, state[each.name])
        self.__post_init__()


@dataclass(frozen=True)
class Radius(OwnArrays):
    """Confidence radii: of the score <x, theta_hat> + beta ||x||_{V^-1} + gamma ||V^-1 x||.

    beta_t = multiplier (offset_k + scale sqrt(base + d ln(1 + rows_t / (d lambda_k)))), gamma = 0,
    where k counts the releases so far, and rows_t the rows of V by round t. With ``determinant``
    the logarithm is ln det V - d ln anchor. The direct radius, which is one of these, lowers lambda
    and has gamma = multiplier (tau lambda + error_bound_k), see fastfed/bandits/radius.py. Arrays
    have an entry for k = 0, 1, ...; the last one stands for all later releases too.
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
        """beta at one entry of the arrays, with ``rows`` rows in V."""
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
        """beta at one entry where V has this determinant."""
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
    """Bounds the statistics are held to: ||x|| <= feature, reward in [low, high].

    Where ``constant`` > 0 it is the last feature, written by the code, and ``feature`` bounds the
    others. Statistics are of the reward less ``centre``.
    """

    feature: float = 1.0
    low: float = 0.0
    high: float = 1.0
    constant: float = 0.0
    centre: float = 0.0

    def apply(self, x: np.ndarray, y: float) -> tuple[float, bool, bool]:
        """Hold x (d,) to the bounds in place: the centred reward, and what was clipped."""
        outside = linalg.clip_norm(x[:-1] if self.constant else x, self.feature)
        if self.constant:
            x[-1] = self.constant
        beyond = not self.low <= y <= self.high
        return min(max(y, self.low), self.high) - self.centre, outside, beyond

    @property
    def kappa(self) -> float:
        """kappa of a constant 1 / sqrt(2 kappa); 0 where no feature is constant."""
        return 0.5 / self.constant**2 if self.constant else 0.0

    @property
    def centred(self) -> tuple[float, float]:
        """Interval of the centred reward."""
        return self.low - self.centre, self.high - self.centre


@dataclass(frozen=True)
class Encoding:
    """Fixed-point bits of the vector sum, by level of the tree node (Algorithms 6-7)."""

    precision: tuple[int, ...]  # g: steps per unit
    noise_bits: tuple[int, ...]  # b: bits of noise a data point adds to each entry
    covariance_precision: tuple[int, ...] = ()  # g of x x', where it is another than that of x y

    def steps(self, level: int) -> tuple[int, int]:
        """g of the bias entries and of the covariance entries."""
        g = self.precision[level]
        return g, self.covariance_precision[level] if self.covariance_precision else g

    def each(self, level: int, dimension: int) -> np.ndarray:
        """g of every entry of a statistic, (s,)."""
        bias, covariance = self.steps(level)
        sizes = dimension, statistic_size(dimension) - dimension
        return np.repeat([float(bias), float(covariance)], sizes)

    def message_bits(self, level: int) -> int:
        """Bits of one data point and entry, 2 g + b: entries in [-1, 1] take 0..2 g ones.

        The paper's text says g + b, which an entry above 0 overflows. All entries have the length
        of the longest.
        """
        return 2 * max(self.steps(level)) + self.noise_bits[level]


@dataclass(frozen=True)
class Plan(OwnArrays):
    """One curve as data: policy, schedule, protocol, noise, regularizer, radius.

    The step driver interprets it; the compiled driver executes it across synchronisations.
    """

    #: Which driver runs it, what it is in a sentence, and which parties take it.
    driver: ClassVar[str] = "server"
    example: ClassVar[str] = "a Plan, such as system.plan"
    parties: ClassVar[str] = "it is for Silo(plan, index), Shuffler(plan) and Server(plan)"

    silos: int
    horizon: int
    dimension: int
    batch_size: int  # rounds between synchronisations, at most; 0: never, 1 with a trigger
    lazy: bool
    protocol: Protocol
    noise_std: NoiseStd
    regularizer: np.ndarray  # lambda after k = 0, 1, ... releases; the last for all later ones
    radius: Radius
    clip: Clip | None
    release: str = "tree"  # how the noise of prefixes is made, see protocols/release.py
    encoding: Encoding | None = None  # where data points travel as bits
    silo_noise: tuple[float, ...] = ()  # by silo, in units of noise_std; empty: all alike
    individual: bool = False  # really make and permute every message of a data point, not its sum
    policy: str = "ucb"  # or "random": a uniformly random action
    score: Score | None = None  # what "ucb" plays the largest of, where that is no confidence bound
    trigger: Trigger | None = None  # when to synchronise, where the data decide
    privacy: Claim | None = None  # what is declared of it; None: nothing
    release_rounds: tuple[int, ...] = ()  # where batches differ: the rounds after which they end
    factor: Factor | None = None  # of release "factorised"
    bonus: float = 1.0  # m, the factor on both bonuses where the ledger allows it
    tie_bonus: float = 1.0  # factor on the bonuses between scores that reach ..
    reward_limit: float = 1.0  # .. the largest mean reward (less its centre), and so tie
    allowance: tuple[float, ...] = ()  # of the ledger by release, see bandits/radius.py
    own: OwnRounds | None = None  # rounds of which nothing is sent; None: all are shared
    secure: SecureSum | None = None  # what silos and server execute where sums are under masks
    drawn_once: bool = False  # a simulation draws the noise of all silos' sum, see `simulated`
    room: int = 1  # a silo's sums are exact for `room` records in each of its rounds

    def with_claim(self, change: Callable[[Claim], Claim]) -> Plan:
        """Plan whose claim, if it has one, is changed."""
        return self if self.privacy is None else replace(self, privacy=change(self.privacy))

    @property
    def bit_levels(self) -> int:
        """Levels of tree nodes that travel as bits."""
        return self.levels if self.protocol.bits else 0

    @property
    def history_numbers(self) -> int:
        """Numbers of noise that a simulation of all silos keeps: of factorised releases."""
        if self.release not in KEEPING:
            return 0
        by_silo = self.protocol.noise_by == "silos" and not self.protocol.masked
        owners = self.silos if by_silo and not self.drawn_once else 1
        return owners * self.releases * self.statistic_size

    @property
    def simulated(self) -> Plan:
        """What drivers of simulations execute: this plan, unless it is to be ``drawn_once``.

        Then it is the plan whose server adds the noise of all silos' sum. A sum of independent
        Gaussian noises is one Gaussian noise, releases are linear in them, and nothing in a
        simulation reads what one silo sends: all that it reads has the same distribution. Messages
        of single silos have no noise there, so it claims nothing, and it is for drivers alone.

        Raises
        ------
        InputError
            Where silos add no Gaussian noise to their sums, or use their own in own rounds.
        """
        if not self.drawn_once:
            return self
        protocol = drawn_once(self.protocol)
        if self.own is not None:
            raise InputError("drawn_once needs a plan without own rounds: a silo knows its noise")
        factor = math.sqrt(math.fsum(scale * scale for scale in self.noise_scale))
        std = self.noise_std.times(factor)
        return replace(self, protocol=protocol, noise_std=std, silo_noise=(), privacy=None)

    @property
    def noise_scale(self) -> tuple[float, ...]:
        """Noise of each silo in units of ``noise_std``, (M,)."""
        return self.silo_noise or (1.0,) * self.silos

    @property
    def releases(self) -> int:
        """Synchronisations in T rounds, the most of them where a trigger decides.

        A short last batch is never sent (zhou-chowdhury-2024, Alg. 1 line 9).
        """
        if self.release_rounds:
            return len(self.release_rounds)
        return self.horizon // self.batch_size if self.batch_size else 0

    def end(self, release: int) -> int:
        """Round after which a release is due in fixed rounds; 0 before the first."""
        if self.release_rounds and release:
            return self.release_rounds[release - 1]
        return release * self.batch_size

    @property
    def ends(self) -> np.ndarray:
        """Rounds after which releases are due in fixed rounds, (K,)."""
        return Schedule(self.horizon, self.batch_size, self.release_rounds).ends

    def due(self, round: int) -> int:
        """Releases that are due by the end of a round, in fixed rounds."""
        if self.release_rounds:
            return bisect_right(self.release_rounds, round)
        return round // self.batch_size if self.batch_size else 0

    def batch_of(self, release: int) -> int:
        """Rounds of the batch that a release, from 1, ends."""
        return self.end(release) - self.end(release - 1)

    @cached_property
    def release_scale(self) -> np.ndarray:
        """Noise of each release's batch in units of ``noise_std``, (K,), where users add it.

        ``noise_std`` is that of ``batch_size`` users, and every user adds as much. Empty where all
        batches are alike.
        """
        if self.protocol.noise_by != "users" or not self.release_rounds:
            return np.zeros(0)
        lengths = np.diff(self.release_rounds, prepend=0)
        return frozen(np.sqrt(lengths / float(self.batch_size)))

    @property
    def encoded_by_release(self) -> bool:
        """True if each release has an encoding of its own: batches that differ, without a tree."""
        return self.protocol.flat and self.encoding is not None and bool(self.release_rounds)

    @property
    def levels(self) -> int:
        """Nodes a leaf can be part of: bit_length of the releases, where there is a tree."""
        if self.protocol.flat:
            return int(self.protocol.bits and self.releases > 0)
        kept = self.protocol.tree or self.protocol.noise_by != "none"
        return self.releases.bit_length() if kept else 0

    @cached_property
    def coefficients(self) -> np.ndarray:
        """f of the square-root Toeplitz factor, (K,), rows of a factor, or numbers of buffers; else
        empty."""
        if self.release == "factorised":
            if self.factor is None or len(self.factor) != self.releases:
                raise InputError(f'release "factorised" needs a factor of {self.releases} releases')
            return self.factor.matrix
        if self.release == "buffered":
            return frozen(packed(self.releases))
        return frozen(toeplitz_coefficients(self.releases if self.release == "toeplitz" else 0))

    @property
    def buffers(self) -> int:
        """How many vectors of noise one party keeps, of release "buffered"."""
        return len(self.coefficients) // 2 if self.release == "buffered" else 0

    @cached_property
    def statistic_size(self) -> int:
        return statistic_size(self.dimension)

    @property
    def share_until(self) -> int:
        """The last round that may be shared; 0 where every round is."""
        return self.own.until if self.own is not None else 0

    @property
    def rows_per_round(self) -> int:
        """Rows of V a round adds: every silo's if they share, the silo's own otherwise."""
        return self.silos if self.batch_size else 1

    def entry(self, release: int) -> int:
        """Index into the arrays of regularizer and radius after so many releases."""
        return min(release, len(self.regularizer) - 1)

    def rows(self, release: int, round: int) -> float:
        """Rows that enter the radius in a round: what was released if lazy, else all M t."""
        counted = self.end(release) if self.lazy else round
        return float(self.rows_per_round * counted)

    @property
    def user_std(self) -> NoiseStd:
        """Noise of one user's message, where ``noise_std`` is that of a batch of them."""
        return self.noise_std.times(1.0 / math.sqrt(max(1, self.batch_size)))

    def most_records(self, release: int) -> int:
        """Records of one silo by a release, at most: sums of more are not exact."""
        return self.end(release) * self.room

    @property
    def public_constant(self) -> bool:
        """True if the last entry of a statistic is a public number, which gets no noise.

        Where a secret coin decides who is shared it counts them, and is not public.
        """
        constant = self.clip is not None and self.clip.constant > 0.0
        tossed = self.own is not None and self.own.secret
        return constant and not self.protocol.bits and not tossed

    @property
    def by_users(self) -> bool:
        """True if users send their own messages, one by one."""
        return self.protocol.senders == "users" and self.individual

    @property
    def sender(self) -> str:
        """Sender of a message, in a word."""
        return "user" if self.by_users else "silo"

    def senders(self, release: int) -> int:
        """Messages of one release: of all silos, or of all users of its batch."""
        return self.silos * self.batch_of(release) if self.by_users else self.silos

    def level(self, release: int) -> int:
        """Level of the tree node that a release completes; without a tree all are leaves."""
        return 0 if self.protocol.flat else aggregation.node_level(release)

    @cached_property
    def units(self) -> np.ndarray:
        """Value of a 1 in a summed message, by level and entry: 1 / g for bits, (levels, s).

        Empty where messages are statistics.
        """
        if self.encoding is None:
            return np.zeros((0, self.statistic_size))
        count = len(self.encoding.precision) if self.encoded_by_release else self.levels
        each = [1.0 / self.encoding.each(j, self.dimension) for j in range(count)]
        return frozen(np.array(each).reshape(count, self.statistic_size))

    def points(self, level: int) -> int:
        """Data points of one silo under a node of this level, at most: B 2^level."""
        return self.batch_size << level

    def encoding_at(self, release: int) -> int:
        """Index into the encoding of what a release completes: its level, or its own."""
        return release - 1 if self.encoded_by_release else self.level(release)

    def points_of(self, release: int) -> int:
        """Data points of one silo in what a release completes, with bits."""
        if self.release_rounds:
            return self.batch_of(release)
        return self.points(self.level(release))

    @cached_property
    def _bits_up_by_level(self) -> list[int]:
        """Bits sent for one node, by level; plain sums count as one level."""
        if self.protocol.senders == "agent":
            return [0] * max(1, self.levels)
        if self.encoding is None:
            users = self.batch_size if self.protocol.senders == "users" else 1
            return [64 * self.statistic_size * self.silos * users] * max(1, self.levels)
        return [self._labelled(self.points(level), level) for level in range(self.levels)]

    def _labelled(self, points: int, encoding: int) -> int:
        """Bits of so many data points of every silo: each travels with the label of its entry."""
        assert self.encoding is not None
        label = 1 + (self.statistic_size - 1).bit_length()
        bits = self.encoding.message_bits(encoding)
        return self.silos * points * self.statistic_size * bits * label

    def bits_up_of(self, releases: int) -> int:
        """Bits sent after so many releases: float64 entries, or labelled bits."""
        if self.release_rounds and self.protocol.senders != "agent":
            if self.encoding is not None:
                ends = range(1, releases + 1)
                return sum(self._labelled(self.points_of(k), self.encoding_at(k)) for k in ends)
            if self.protocol.senders == "users":
                return self.end(releases) * 64 * self.statistic_size * self.silos
        if self.encoding is None or self.protocol.flat:
            return releases * self._bits_up_by_level[0] if releases else 0
        # Level j is released at odd multiples of 2^j.
        return sum(
            ((releases >> level) + 1) // 2 * bits
            for level, bits in enumerate(self._bits_up_by_level)
        )

    def bits_down_of(self, releases: int) -> int:
        """Bits the server has sent to all silos after so many: the statistics as float64.

        Users are told an action, which is no part of the protocol.
        """
        if self.protocol.senders != "silos":
            return 0
        return releases * 64 * self.statistic_size * self.silos


class AnyPlan(TypingProtocol):
    """A plan of any kind: it names its driver and its parties."""

    driver: ClassVar[str]
    example: ClassVar[str]
    parties: ClassVar[str]


P = TypeVar("P", bound=AnyPlan)


def of_kind(plan: object, kind: type[P]) -> P:
    """The plan, if it is of this kind; InputError says what it is otherwise.

    A system is the likely mistake, or a plan of another kind, which names its own parties.
    """
    if isinstance(plan, kind):
        return plan
    hint = getattr(type(plan), "parties", None)
    raise InputError(
        f"plan must be {kind.example}, got {type(plan).__name__}{f': {hint}' if hint else ''}"
    )


def check_plan(plan: object) -> Plan:
    """The plan if it is a Plan and its noise is the one that its certificate is about.

    Raises
    ------
    InputError
        For anything else, with the parties that take it where it is a plan of another kind.
    """
    found = of_kind(plan, Plan)
    verify(found)
    return found
