"""Plans: one curve as plain data, with a server, without one, or in phases."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar
from typing import Protocol as TypingProtocol

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._validate import InputError, array, integer
from fastfed.privacy.account import Claim, verify
from fastfed.privacy.releases import toeplitz
from fastfed.privacy.releases.factorised import Factor
from fastfed.protocols.network import Graph
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol, Report, frozen, statistic_size
from fastfed.protocols.score import Score
from fastfed.protocols.trigger import Trigger

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.secure_sum import SecureSum
    from fastfed.privacy.mechanisms.winsorized import WinsorizedMean

#: Releases whose noise reappears in later prefixes, so that it is kept.
KEEPING = ("toeplitz", "factorised")

# ---- Plans: everything a driver needs to run one curve, as plain data ----------------------------


@dataclass(frozen=True)
class NoiseStd:
    """Standard deviations of one node's noise, in the units of the statistics."""

    bias: float = 0.0
    off_diagonal: float = 0.0
    diagonal: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        return self.bias, self.off_diagonal, self.diagonal

    def times(self, factor: float) -> NoiseStd:
        """The same noise, so many times as strong."""
        return NoiseStd(*(factor * part for part in self.parts))


@dataclass(frozen=True)
class Radius:
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
class Schedule:
    """Fixed rounds of synchronisation: after every ``batch_size`` rounds, or after ``rounds``.

    Parameters
    ----------
    horizon : int
        T.
    batch_size : int
        Rounds of a batch, of the longest one where they differ; 0 never synchronises.
    rounds : tuple of int
        Where batches differ: the rounds after which they end, increasing.
    """

    horizon: int
    batch_size: int
    rounds: tuple[int, ...] = ()

    @staticmethod
    def at(rounds: tuple[int, ...], horizon: int) -> Schedule:
        """Schedule of batches that end after these rounds."""
        check_rounds(rounds, horizon)
        longest = max(b - a for a, b in zip((0, *rounds), rounds, strict=False))
        return Schedule(horizon, longest, rounds)

    @staticmethod
    def of(plan: Plan) -> Schedule:
        """Schedule of a plan in fixed rounds."""
        return Schedule(plan.horizon, plan.batch_size, plan.release_rounds)

    @staticmethod
    def growing(horizon: int, first: int, ratio: float) -> Schedule:
        """Batches of ``first`` rounds, then each ``ratio`` times as long as the one before.

        Lengths are rounded to whole rounds. The last batch ends at the horizon at the latest; what
        would be cut off is never sent.
        """
        rounds, end, length = [], 0, float(first)
        while (end := end + round(length)) <= horizon:
            rounds.append(end)
            length = max(length * ratio, length)
        return Schedule.at(tuple(rounds), horizon) if rounds else Schedule(horizon, horizon + 1)

    @property
    def ends(self) -> np.ndarray:
        """Rounds after which silos synchronise, (K,) int64."""
        if self.rounds:
            return np.array(self.rounds, np.int64)
        return np.arange(1, self.releases + 1, dtype=np.int64) * self.batch_size

    @property
    def releases(self) -> int:
        """K, the number of synchronisations; a short last batch is never sent."""
        if self.rounds:
            return len(self.rounds)
        return self.horizon // self.batch_size if self.batch_size else 0

    @property
    def every_round(self) -> bool:
        """True if silos synchronise after every round, also the last ones."""
        return self.releases == self.horizon

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rounds of each batch, (K,)."""
        return tuple(int(n) for n in np.diff(self.ends, prepend=0))


def check_rounds(rounds: tuple[int, ...], horizon: int) -> None:
    """Raise InputError unless rounds increase from 1 to the horizon at most."""
    if any(b <= a for a, b in zip((0, *rounds), rounds, strict=False)) or rounds[-1:] > (horizon,):
        raise InputError(
            f"release_rounds must increase from 1 to the horizon ({horizon}) at most, "
            f"got {str(rounds)[:60]}"
        )


@dataclass(frozen=True)
class OwnRounds:
    """Rounds of which nothing leaves a silo, after and between shared ones (docs/own-rounds.md).

    Parameters
    ----------
    until : int
        The last round that may be shared, after which there is the last release.
    scale2 : float
        R^2, the variance of rewards' noise in a silo's posterior.
    prior : float
        The precision that others' sums have at least.
    spreads : tuple of float
        Delta^2 (1 + 1/(M - 1)) for each deviation Delta of a silo on the grid.
    ridges : tuple of tuple of float
        By release, from none on: variance of the released noise for each of the deviations, so
        large that the covariance is definite.
    bonus : float
        Factor on ||x||_{V^-1} in the score.
    fraction : float, default 1
        p, the share of the rounds up to ``until`` that are shared.
    secret : bool, default False
        True where a coin of probability p decides of each user, and nobody outside of the silo
        learns how it fell; else round t is shared if floor(t p) > floor((t - 1) p).
    bound : tuple of float, optional
        Of rule "min-of-bounds": (m, R, b, S) of the silo's own radius m (R sqrt(b + ln det V) + S).
        None for a posterior; the numbers of that are then not used.
    """

    until: int
    scale2: float
    prior: float
    spreads: tuple[float, ...]
    ridges: tuple[tuple[float, ...], ...]
    bonus: float
    fraction: float = 1.0
    secret: bool = False
    bound: tuple[float, float, float, float] | None = None

    @property
    def mixed(self) -> bool:
        """True if own rounds come between shared ones, not only after them."""
        return self.fraction < 1.0

    @property
    def coin(self) -> float:
        """Probability with which a secret coin lets a user enter; 1 where there is none."""
        return self.fraction if self.secret else 1.0

    @cached_property
    def rule(self) -> np.ndarray:
        """1 for each round up to ``until`` that is shared for certain, (until,) uint8."""
        # A sum of p's would drift: 0.1 * 30 is 3.0000000000000004.
        whole = np.floor(np.arange(self.until + 1) * self.fraction + 1e-9)
        return (whole[1:] > whole[:-1]).astype(np.uint8)

    @property
    def threshold(self) -> int:
        """A coin's 64 bits are below it with probability p, rounded down."""
        return int(self.fraction * 2.0**64)

    def shares(self, round: int, bits: int = 0) -> bool:
        """True if a round up to ``until`` is shared; bits: 64 uniform ones, of a secret coin."""
        return bits < self.threshold if self.secret else bool(self.rule[round - 1])

    def model(self, release: int) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
        """Numbers of the posterior after so many releases, as the kernels take them."""
        return self.scale2, self.prior, self.spreads, self.ridges[release]


@dataclass(frozen=True)
class Plan:
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
        owners = self.silos if by_silo else 1
        return owners * self.releases * self.statistic_size

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
        scale: np.ndarray = np.sqrt(lengths / float(self.batch_size))
        return scale

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
        """f of the square-root Toeplitz factor, (K,), or rows of a factor; else empty."""
        if self.release == "factorised":
            if self.factor is None or len(self.factor) != self.releases:
                raise InputError(f'release "factorised" needs a factor of {self.releases} releases')
            return self.factor.matrix
        return toeplitz.coefficients(self.releases if self.release == "toeplitz" else 0)

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
        return np.array(each).reshape(count, self.statistic_size)

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


# Federations without a server: what every silo does, as plain data, and what they tell each other.
# dubey-pentland-2020, Algorithm 3. Rounds are dealt out to gamma estimators, t mod gamma; the silos
# of a clique of the graph's gamma-th power share each of them. By the time an estimator is used
# again, gamma rounds later, whatever a member sent has reached every other one.


@dataclass(frozen=True)
class Request:
    """A silo's trigger fired in a round: its clique is to report after the estimator's next one."""

    silo: int
    estimator: int
    round: int

    @property
    def nbytes(self) -> int:
        """Bytes on a wire: three integers."""
        return 24


@dataclass(frozen=True)
class Sums:
    """A silo's report on one estimator, on its way to the clique."""

    silo: int
    estimator: int
    report: Report

    @property
    def nbytes(self) -> int:
        """Bytes on a wire: those of the report."""
        return self.report.nbytes


@dataclass(frozen=True)
class Part:
    """One estimator of one clique: a federation of its own, in every gamma-th round."""

    clique: tuple[int, ...]
    estimator: int
    plan: Plan  # of len(clique) silos and of this estimator's rounds


@dataclass(frozen=True)
class PeerPlan:
    """One decentralised curve as data: who can hear whom, and the plan of every part."""

    driver: ClassVar[str] = "peers"
    example: ClassVar[str] = "a PeerPlan, such as system.plan of feducb-decentralized"
    parties: ClassVar[str] = "it has no server, each silo is a Peer(plan, index)"

    graph: Graph
    gamma: int
    horizon: int
    dimension: int
    parts: tuple[Part, ...]

    def with_claim(self, change: Callable[[Claim], Claim]) -> PeerPlan:
        """Plan in which the claim of every part is changed."""
        parts = (replace(p, plan=p.plan.with_claim(change)) for p in self.parts)
        return replace(self, parts=tuple(parts))

    @property
    def silos(self) -> int:
        return self.graph.silos

    @property
    def protocol(self) -> Protocol:
        return self.parts[0].plan.protocol

    @property
    def privacy(self) -> Claim | None:
        """Claim of the part that costs most; each is sealed with its own account."""
        claims = [part.plan.privacy for part in self.parts]
        known = [claim for claim in claims if claim is not None]
        if len(known) < len(claims):
            return None
        return max(known, key=lambda claim: claim.exact[:1], default=None)

    @cached_property
    def of_silo(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each silo, by estimator."""
        found: list[dict[int, Part]] = [{} for _ in range(self.silos)]
        for part in self.parts:
            for silo in part.clique:
                found[silo][part.estimator] = part
        return tuple(tuple(own[g] for g in range(self.gamma)) for own in found)

    @cached_property
    def crossings(self) -> np.ndarray:
        """Edges crossed by a silo's message after 0, 1, ... gamma hops, (M, gamma + 1)."""
        hops = range(self.gamma + 1)
        return np.array(
            [[self.graph.edges_crossed(i, h, self.gamma) for h in hops] for i in range(self.silos)]
        )

    def rounds(self, estimator: int) -> np.ndarray:
        """The rounds of an estimator, ascending."""
        return np.arange(estimator or self.gamma, self.horizon + 1, self.gamma)

    def uses(self, estimator: int, round: int) -> int:
        """Number of uses of an estimator by the end of a round."""
        first = estimator or self.gamma
        return (round - first) // self.gamma + 1 if round >= first else 0


# Federations in phases of doubling length: every silo alone at first, then all with one model.
# huang-2023, Algorithm 1: phase p = 1, 2, ... has 2^p rounds. In the first U of them each client
# (here: silo) learns for itself; from the end of phase U on it sends a local estimate at the end of
# each phase and plays the next one greedily on the server's private mean of all estimates.


#: The server's part, with a private mean and with a plain one.
PRIVATE_MEAN = Protocol(
    "private-mean",
    "a trusted server adds noise to the mean of local estimates",
    "central: the server is trusted, other clients are not",
    SEND_BATCH,
    ADD,
    "server",
    "huang-2023, Algorithms 1-4",
)
PLAIN_MEAN = Protocol(
    "plain-mean",
    "the mean of local estimates, no privacy",
    "none",
    SEND_BATCH,
    ADD,
    "none",
    "huang-2023, Algorithm 1 with a plain mean",
)


@dataclass(frozen=True)
class LocalEstimate:
    """Message of one silo at the end of a phase: its least-squares estimate, (d,)."""

    phase: int
    values: np.ndarray
    silo: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "silo", integer("silo", self.silo))
        values = array("values", self.values, finite=False)
        object.__setattr__(self, "values", frozen(values))

    @property
    def nbytes(self) -> int:
        """Bytes on a wire: float64."""
        return self.values.nbytes


@dataclass(frozen=True)
class Model:
    """Message of the server at the end of a phase: the model of the next one, (d,)."""

    phase: int
    values: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen(self.values))


@dataclass(frozen=True)
class PhasePlan:
    """One curve in phases, as plain data."""

    driver: ClassVar[str] = "phases"
    example: ClassVar[str] = "a PhasePlan, such as system.plan of robin"
    parties: ClassVar[str] = "it is in phases, for Client(plan, index) and Averager(plan)"

    local: Plan  # how a silo plays the initial phases
    initial: int  # U
    protocol: Protocol  # PRIVATE_MEAN or PLAIN_MEAN
    means: tuple[WinsorizedMean, ...] = ()  # private ones, of phases U, U + 1, ... that end
    privacy: Claim | None = None  # what is declared of it; None: nothing

    def with_claim(self, change: Callable[[Claim], Claim]) -> PhasePlan:
        """Plan whose claim, if it has one, is changed."""
        return self if self.privacy is None else replace(self, privacy=change(self.privacy))

    @property
    def silos(self) -> int:
        return self.local.silos

    @property
    def horizon(self) -> int:
        return self.local.horizon

    @property
    def dimension(self) -> int:
        return self.local.dimension

    @property
    def phases(self) -> int:
        """P: phases that T rounds begin; the last one may be cut short."""
        return phases_of(self.horizon)

    @property
    def initial_rounds(self) -> int:
        """Rounds that every silo plays alone."""
        return min(last_round(self.initial), self.horizon)

    @cached_property
    def releasing(self) -> tuple[int, ...]:
        """Phases at whose end a model is made: those from U on that another one follows."""
        return tuple(range(self.initial, self.phases))

    def phase_of(self, round: int) -> int:
        """The phase that a round from 1 on belongs to."""
        return (round + 1).bit_length() - 1

    def bits(self, releases: int) -> int:
        """Bits that all silos have sent, or were sent, after so many releases."""
        return 64 * self.dimension * self.silos * releases


def last_round(phase: int) -> int:
    """The last round of a phase: 2 + 4 + ... + 2^p."""
    return (2 << phase) - 2


def phases_of(horizon: int) -> int:
    """Phases that so many rounds begin."""
    return (horizon + 1).bit_length() - 1


def check_phase_plan(plan: object) -> PhasePlan:
    """The plan if it is one of phases, and gives what it says that it gives."""
    plan = of_kind(plan, PhasePlan)
    wanted = len(plan.releasing) if plan.protocol.noise_by == "server" else 0
    if len(plan.means) != wanted:
        raise InputError(
            f'a plan of protocol "{plan.protocol.id}" must have {wanted} private means, '
            f"got {len(plan.means)}"
        )
    for mean in plan.means:
        if (mean.silos, mean.dimension) != (plan.silos, plan.dimension):
            raise InputError(
                f"private means must be of {plan.silos} silos and dimension {plan.dimension}, "
                f"got {mean.silos} and {mean.dimension}"
            )
    verify(plan)
    return plan
