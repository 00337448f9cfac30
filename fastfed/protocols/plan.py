"""Plans: one curve as plain data, with a server, without one, or in phases."""

from __future__ import annotations

import math
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
from fastfed.protocols.messages import Report, frozen, statistic_size
from fastfed.protocols.network import Graph
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol
from fastfed.protocols.score import Score
from fastfed.protocols.trigger import Trigger

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.winsorized import WinsorizedMean

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
    and has gamma = multiplier (lambda + error_bound_k), see fastfed/bandits/radius.py. Arrays have
    an entry for k = 0, 1, ...; the last one stands for all later releases too.
    """

    multiplier: float
    scale: float
    base: float
    offset: np.ndarray
    log_lambda: np.ndarray
    determinant: bool = False
    direct: bool = False
    anchor: float = 1.0
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
    """Bounds the statistics are held to: ||x|| <= feature, reward in [low, high]."""

    feature: float = 1.0
    low: float = 0.0
    high: float = 1.0


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
    batch_size: int  # rounds between synchronisations; 0: never, 1 with a trigger
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

    def with_claim(self, change: Callable[[Claim], Claim]) -> Plan:
        """Plan whose claim, if it has one, is changed."""
        return self if self.privacy is None else replace(self, privacy=change(self.privacy))

    @property
    def bit_levels(self) -> int:
        """Levels of tree nodes that travel as bits."""
        return self.levels if self.protocol.bits else 0

    @property
    def history_numbers(self) -> int:
        """Numbers of noise that a simulation of all silos keeps: of Toeplitz releases."""
        if self.release != "toeplitz":
            return 0
        owners = self.silos if self.protocol.noise_by == "silos" else 1
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
        return self.horizon // self.batch_size if self.batch_size else 0

    @property
    def levels(self) -> int:
        """Nodes a leaf can be part of: bit_length of the releases, where there is a tree."""
        if self.protocol.flat:
            return int(self.protocol.bits and self.releases > 0)
        kept = self.protocol.tree or self.protocol.noise_by != "none"
        return self.releases.bit_length() if kept else 0

    @cached_property
    def coefficients(self) -> np.ndarray:
        """f of the square-root Toeplitz factor, (K,); empty for other releases."""
        return toeplitz.coefficients(self.releases if self.release == "toeplitz" else 0)

    @cached_property
    def statistic_size(self) -> int:
        return statistic_size(self.dimension)

    @property
    def rows_per_round(self) -> int:
        """Rows of V a round adds: every silo's if they share, the silo's own otherwise."""
        return self.silos if self.batch_size else 1

    def entry(self, release: int) -> int:
        """Index into the arrays of regularizer and radius after so many releases."""
        return min(release, len(self.regularizer) - 1)

    def rows(self, release: int, round: int) -> float:
        """Rows that enter the radius in a round: what was released if lazy, else all M t."""
        counted = release * self.batch_size if self.lazy else round
        return float(self.rows_per_round * counted)

    @property
    def user_std(self) -> NoiseStd:
        """Noise of one user's message, where ``noise_std`` is that of a batch of them."""
        return self.noise_std.times(1.0 / math.sqrt(max(1, self.batch_size)))

    @property
    def by_users(self) -> bool:
        """True if users send their own messages, one by one."""
        return self.protocol.senders == "users" and self.individual

    @property
    def sender(self) -> str:
        """Sender of a message, in a word."""
        return "user" if self.by_users else "silo"

    @property
    def senders(self) -> int:
        """Messages of one release: of all silos, or of all users of a batch."""
        return self.silos * self.batch_size if self.by_users else self.silos

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
        each = [1.0 / self.encoding.each(j, self.dimension) for j in range(self.levels)]
        return np.array(each).reshape(self.levels, self.statistic_size)

    def points(self, level: int) -> int:
        """Data points of one silo under a node of this level: B 2^level."""
        return self.batch_size << level

    @cached_property
    def _bits_up_by_level(self) -> list[int]:
        """Bits sent for one node, by level; plain sums count as one level."""
        if self.protocol.senders == "agent":
            return [0] * max(1, self.levels)
        if self.encoding is None:
            users = self.batch_size if self.protocol.senders == "users" else 1
            return [64 * self.statistic_size * self.silos * users] * max(1, self.levels)
        # A bit travels with the label of its entry.
        labelled = 1 + (self.statistic_size - 1).bit_length()
        return [
            self.silos
            * self.points(level)
            * self.statistic_size
            * self.encoding.message_bits(level)
            * labelled
            for level in range(self.levels)
        ]

    def bits_up_of(self, releases: int) -> int:
        """Bits sent after so many releases: float64 entries, or labelled bits."""
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
