"""Federations without a server, or in phases: graph, messages along its edges, and plans."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from fastfed._kernels import linalg, rng
from fastfed._random import INSTANCE, check_seed
from fastfed._validate import InputError, array, choice, integer, number, show
from fastfed.privacy.account import Claim, verify
from fastfed.protocols.plan import Plan, of_kind
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol, Report, frozen

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.winsorized import WinsorizedMean

# ---- Who is linked with whom in a federation without a server: a connected, undirected graph -----


GRAPHS = ("complete", "star", "ring", "line", "random")

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Graph:
    """A connected, undirected graph of M silos, numbered from 0; equal graphs hash alike.

    Parameters
    ----------
    silos : int
        M >= 1.
    edges : iterable of (int, int)
        In any order and direction; kept as sorted pairs (i, j) with i < j, each once.

    Raises
    ------
    InputError
        For silos out of range, an edge from a silo to itself, and a silo that no path reaches.
    """

    silos: int
    edges: Edges

    def __post_init__(self) -> None:
        silos = integer("silos", self.silos, at_least=1)
        object.__setattr__(self, "silos", silos)
        object.__setattr__(self, "edges", _checked_edges(self.edges, silos))
        if (silo := _unreached(self.edges, silos)) is not None:
            raise InputError(f"graph must be connected, got no path between silos 0 and {silo}")

    @classmethod
    def named(cls, name: str, silos: int, seed: int = 0, probability: float | None = None) -> Graph:
        """Make one of GRAPHS; silo 0 is the centre of a star, rings and lines follow the numbers.

        "random" gives every pair of silos a uniform number of its own, a function of ``seed``, and
        links the pairs whose number is below ``probability``; to these come the edges of the
        minimum spanning tree of the numbers. Where the former connect all silos this is the graph
        of Erdos and Renyi, elsewhere that graph with the fewest edges that connect it.

        Parameters
        ----------
        name : {"complete", "star", "ring", "line", "random"}
        silos : int
        seed : int, default 0
            Of "random", in [0, 2^63).
        probability : float, optional
            Of "random" alone, in [0, 1]; by default min(1, 2 ln M / M).

        Raises
        ------
        InputError
            For another name, values out of range, and a probability of another graph.
        """
        choice("graph", name, GRAPHS)
        silos, seed = integer("silos", silos, at_least=1), check_seed(seed)
        if name == "random":
            if probability is None:
                probability = min(1.0, 2.0 * linalg.log(silos) / silos)
            probability = number("probability", probability, at_least=0.0, at_most=1.0)
            return cls(silos, _random_edges(silos, seed, probability))
        if probability is not None:
            raise InputError(
                f'probability is for the graph "random", got {show(probability)} for "{name}"'
            )
        line = [(i, i + 1) for i in range(silos - 1)]
        if name == "complete":
            return cls(silos, tuple((i, j) for i in range(silos) for j in range(i + 1, silos)))
        if name == "star":
            return cls(silos, tuple((0, i) for i in range(1, silos)))
        # Two silos have one edge, not two: their ring is a line.
        return cls(silos, tuple(line + [(0, silos - 1)] * (name == "ring" and silos > 2)))

    @classmethod
    def from_edges(cls, edges: Iterable[Iterable[int]], silos: int) -> Graph:
        """Make the graph of pairs of silos; raises InputError as the class does."""
        return cls(silos, edges)  # type: ignore[arg-type]

    @classmethod
    def from_networkx(cls, graph: Any) -> Graph:
        """Convert an undirected networkx graph with the nodes 0..M-1, in any order.

        Parallel edges count once; what else edges and nodes carry is left out. Raises InputError
        for a directed graph, other nodes, and as the class does.
        """
        directed = getattr(graph, "is_directed", None)
        if callable(directed) and directed():
            raise InputError("graph must be undirected, got a directed one")
        nodes = list(graph.nodes)
        # Equal to their numbers is not enough: True and 1.0 are no silos.
        if not nodes or sorted(
            node for node in nodes if type(node) is int or isinstance(node, np.integer)
        ) != list(range(len(nodes))):
            raise InputError(f"nodes of a graph must be the silos 0..M-1, got {show(nodes)}")
        # Edges of multigraphs have a key behind their ends.
        return cls.from_edges([tuple(edge)[:2] for edge in graph.edges], len(nodes))

    @classmethod
    def of(cls, value: Any, silos: int, seed: int = 0) -> Graph:
        """Make the graph that a spec means: one of GRAPHS, pairs, a networkx graph, or a Graph.

        Raises InputError unless it is a connected graph of ``silos`` silos.
        """
        if isinstance(value, str):
            return cls.named(value, silos, seed)
        if isinstance(value, Graph):
            graph = value
        elif hasattr(value, "nodes") and hasattr(value, "edges"):
            graph = cls.from_networkx(value)
        else:
            graph = cls.from_edges(value, silos)
        if graph.silos != integer("silos", silos, at_least=1):
            raise InputError(f"graph must have {silos} silos, got {graph.silos}")
        return graph

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """The silos that each silo is linked with, ascending."""
        linked: list[list[int]] = [[] for _ in range(self.silos)]
        for i, j in self.edges:
            linked[i].append(j)
            linked[j].append(i)
        return tuple(tuple(sorted(silos)) for silos in linked)

    @cached_property
    def distances(self) -> np.ndarray:
        """Hops between all silos, (M, M) int64, read-only."""
        hops = np.array([self._hops_from(i) for i in range(self.silos)], dtype=np.int64)
        hops.flags.writeable = False
        return hops

    @cached_property
    def diameter(self) -> int:
        """The most hops between two silos; 0 for a single one."""
        return int(self.distances.max())

    def cliques(self, gamma: int) -> tuple[tuple[int, ...], ...]:
        """Partition the silos into cliques of the gamma-th power: few, not the fewest.

        Two silos are partners if at most ``gamma`` hops lie between them, on any path. Each clique
        starts from the silo with the fewest partners among those in no clique yet, and takes in,
        one by one, the silo that leaves the most further silos to choose from; ties go to fewer
        partners, then to the lower number. From gamma = diameter on it is one clique. Each is
        ascending, and they are sorted by their first silo. Raises InputError for gamma < 1.
        """
        near = self.distances <= integer("gamma", gamma, at_least=1)
        free = np.ones(self.silos, dtype=bool)
        partners = near.sum(axis=1)
        found = []
        while free.any():
            first = int(np.where(free, partners, self.silos + 1).argmin())
            clique = _grown(near, partners, first, free)
            found.append(tuple(sorted(clique)))
            free[clique] = False
            partners -= near[:, clique].sum(axis=1)
        return tuple(sorted(found))

    def checked_cliques(
        self, cliques: Sequence[Iterable[int]], gamma: int
    ) -> tuple[tuple[int, ...], ...]:
        """Check a user's own cover, and sort it as ``cliques`` sorts.

        Raises InputError unless every silo is in exactly one clique, and any two of a clique are
        at most ``gamma`` hops apart.
        """
        gamma = integer("gamma", gamma, at_least=1)
        last = self.silos - 1
        try:
            found = [
                sorted(integer("a silo of cliques", i, at_least=0, at_most=last) for i in clique)
                for clique in cliques
            ]
        except TypeError:
            raise InputError(f"cliques must be lists of silos, got {show(cliques)}") from None
        if [] in found:
            raise InputError(f"cliques must not be empty, got {show(cliques)}")
        held = np.bincount([i for clique in found for i in clique], minlength=self.silos)
        if (held != 1).any():
            silo = int((held != 1).argmax())
            raise InputError(
                f"cliques must hold every silo exactly once, got silo {silo} {held[silo]} times"
            )
        for clique in found:
            hops = self.distances[np.ix_(clique, clique)]
            if hops.max() > gamma:
                i, j = np.argwhere(hops > gamma)[0]
                raise InputError(
                    f"silos of a clique must be at most {gamma} hops apart, "
                    f"got {hops[i, j]} between silos {clique[i]} and {clique[j]}"
                )
        return tuple(sorted(tuple(clique) for clique in found))

    def edges_crossed(self, silo: int, hops: int, ttl: int) -> int:
        """Count the crossings of edges once a silo's broadcast was handed on ``hops`` times.

        The broadcast itself is the first time, and ``ttl``, the time to live, the last: what is
        sent at the end of round t has by the end of round T been handed on
        min(ttl, T - t + 1) times. Each time, every silo that just heard of it sends it to all its
        neighbours, also to those it has it from. Raises InputError for values out of range.
        """
        silo = integer("silo", silo, at_least=0, at_most=self.silos - 1)
        hops = min(integer("hops", hops, at_least=0), integer("ttl", ttl, at_least=1))
        return int(self._crossed[silo, min(hops, self.diameter + 1)])

    @cached_property
    def _crossed(self) -> np.ndarray:
        """Neighbours of all silos less than h hops away, (M, diameter + 2), h = 0 first."""
        degrees = np.array([len(linked) for linked in self.neighbours], dtype=np.int64)
        table = np.zeros((self.silos, self.diameter + 2), dtype=np.int64)
        for i, hops in enumerate(self.distances):
            np.add.at(table[i], hops + 1, degrees)
        return table.cumsum(axis=1)

    def _hops_from(self, silo: int) -> list[int]:
        """Hops from a silo to every silo by breadth-first search, -1 where there is no path."""
        hops = [-1] * self.silos
        hops[silo] = 0
        reached = [silo]
        for i in reached:  # grows as we go
            if len(reached) == self.silos:
                break
            for j in self.neighbours[i]:
                if hops[j] < 0:
                    hops[j] = hops[i] + 1
                    reached.append(j)
        return hops


def _unreached(edges: Edges, silos: int) -> int | None:
    """The first silo that no path reaches from silo 0, in memory of the edges alone."""
    linked: dict[int, list[int]] = {}
    for i, j in edges:
        linked.setdefault(i, []).append(j)
        linked.setdefault(j, []).append(i)
    reached, waiting = {0}, [0]
    for i in waiting:  # grows as we go
        new = [j for j in linked.get(i, ()) if j not in reached]
        reached.update(new)
        waiting += new
    return next((i for i in range(silos) if i not in reached), None)


def _checked_edges(edges: Any, silos: int) -> Edges:
    checked = set()
    try:
        listed = list(edges)
    except TypeError:
        raise InputError(f"edges must be a list of pairs of silos, got {show(edges)}") from None
    for edge in listed:
        try:
            ends = [integer("a silo of edges", k, at_least=0, at_most=silos - 1) for k in edge]
        except TypeError:
            raise InputError(f"edges must be pairs of silos, got {show(edge)}") from None
        if len(ends) != 2:
            raise InputError(f"edges must be pairs of silos, got {show(edge)}")
        if ends[0] == ends[1]:
            raise InputError(f"edges must join two different silos, got {show(edge)}")
        checked.add((min(ends), max(ends)))
    return tuple(sorted(checked))


def _random_edges(silos: int, seed: int, probability: float) -> Edges:
    # Row i has the pairs (i, j < i). Other instances are drawn from silo 0 or in later rounds.
    rows = [rng.random_u32(seed, INSTANCE, 0, i, 0, i) for i in range(1, silos)]
    drawn = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
    ends = np.column_stack(np.tril_indices(silos, -1))
    kept = drawn < probability * 2.0**32
    # Kruskal's minimum spanning tree.
    root = list(range(silos))

    def root_of(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    joined = 1
    for edge in drawn.argsort(kind="stable"):
        if joined == silos:
            break
        i, j = (root_of(int(end)) for end in ends[edge])
        if i != j:
            root[i] = j
            joined += 1
            kept[edge] = True
    return tuple((i, j) for i, j in ends[kept].tolist())


def _grown(near: np.ndarray, partners: np.ndarray, first: int, free: np.ndarray) -> list[int]:
    """A clique of free silos that holds ``first``, see ``Graph.cliques``."""
    clique = [first]
    others = free & near[first]
    others[first] = False
    silos = np.flatnonzero(others)
    among = near[np.ix_(silos, silos)]
    left = among.sum(axis=1)
    fits = np.ones(len(silos), dtype=bool)
    while fits.any():
        # Most left first, then fewest partners: partners are at most M.
        best = np.where(fits, left * (len(near) + 1) - partners[silos], 0).argmax()
        clique.append(int(silos[best]))
        gone = fits & ~among[best]
        gone[best] = True
        left -= among[:, gone].sum(axis=1)
        fits &= ~gone
    return clique


# ---- Messages between silos without a server: from neighbour to neighbour, one hop a round -------


class Sized(typing.Protocol):
    """Whatever can travel: it says how many bytes it has on a wire."""

    @property
    def nbytes(self) -> int: ...


M = TypeVar("M", bound=Sized)


@dataclass(eq=False)
class _Flight(Generic[M]):
    """One broadcast under way."""

    message: M
    nbytes: int
    hops_left: int
    heard: set[int]  # silos, the sender among them
    arriving: list[int] = field(default_factory=list)  # silos, once for each copy


class Network(Generic[M]):
    """Floods messages over a graph (dubey-pentland-2020, Algorithm 3, lines 10-24).

    What a silo broadcasts in round t, or at its end, is with a silo h hops away at the start of
    round t + h, for h up to ``time_to_live``. Every silo hands each message on once, to all its
    neighbours, at the end of the round in which it arrives, and drops later copies; the sender
    does not hear itself. Each broadcast is a message of its own, whatever object it carries.
    Nothing is remembered of a message that nobody can still hear of.
    """

    def __init__(self, graph: Graph, time_to_live: int) -> None:
        if not isinstance(graph, Graph):
            raise InputError(f"graph must be a Graph, got {type(graph).__name__}")
        self.graph = graph
        self.time_to_live = integer("time_to_live", time_to_live, at_least=1)
        #: Bytes over all edges so far, those of the coming hand-on included.
        self.bytes_sent = 0
        self._flights: list[_Flight[M]] = []

    def broadcast(self, silo: int, message: M) -> None:
        """Send a silo's message to its neighbours, which hear of it in the next round."""
        silo = integer("silo", silo, at_least=0, at_most=self.graph.silos - 1)
        if not hasattr(message, "nbytes"):
            raise InputError(f"message must have nbytes, got {type(message).__name__}")
        nbytes = integer("nbytes", message.nbytes, at_least=0)
        self._hand_on(_Flight(message, nbytes, self.time_to_live, {silo}), [silo])

    def deliver(self) -> list[tuple[int, M]]:
        """Deliver messages at the start of the next round; call it once a round.

        Pairs (silo, message), older broadcasts first. The hand-on at the end of that round is
        settled at once: it cannot be stopped any more, and ``bytes_sent`` counts it.
        """
        flights, self._flights = self._flights, []
        delivered = []
        for flight in flights:
            hearing = [i for i in dict.fromkeys(flight.arriving) if i not in flight.heard]
            flight.heard.update(hearing)
            delivered += [(i, flight.message) for i in hearing]
            if flight.hops_left:
                self._hand_on(flight, hearing)
        return delivered

    def _hand_on(self, flight: _Flight[M], silos: list[int]) -> None:
        flight.arriving = [j for i in silos for j in self.graph.neighbours[i]]
        flight.hops_left -= 1
        self.bytes_sent += flight.nbytes * len(flight.arriving)
        if len(flight.heard) < self.graph.silos:
            self._flights.append(flight)


# ---- Plans: what every silo does, and what silos tell each other ---------------------------------

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
        hops = np.minimum(np.arange(self.gamma + 1), self.graph.diameter + 1)
        return self.graph._crossed[:, hops]

    @cached_property
    def clique_crossings(self) -> dict[tuple[int, ...], np.ndarray]:
        """By clique: edges crossed by a message of each member after 0, ... gamma hops."""
        cliques = {part.clique for part in self.parts}
        return {clique: self.crossings[list(clique)].sum(axis=0) for clique in cliques}

    def rounds(self, estimator: int) -> np.ndarray:
        """The rounds of an estimator, ascending."""
        return np.arange(estimator or self.gamma, self.horizon + 1, self.gamma)

    def uses(self, estimator: int, round: int) -> int:
        """Number of uses of an estimator by the end of a round."""
        first = estimator or self.gamma
        return (round - first) // self.gamma + 1 if round >= first else 0


def check_parts(plan: PeerPlan) -> None:
    """Refuse parts that are not those of the plan: a user takes part in one of them.

    For each estimator the cliques hold every silo once, each part is of its silos and rounds, and
    all claim one budget. Raises InputError.
    """
    members: dict[int, list[int]] = {}
    for part in plan.parts:
        members.setdefault(part.estimator, []).extend(part.clique)
        own = (part.plan.silos, part.plan.horizon, part.plan.dimension)
        wanted = len(part.clique), plan.uses(part.estimator, plan.horizon), plan.dimension
        if own != wanted:
            raise InputError(
                f"the part of silos {show(part.clique)} and estimator {part.estimator} must be of "
                f"{wanted[0]} silos, {wanted[1]} rounds and dimension {wanted[2]}, got {own}"
            )
    everybody = list(range(plan.silos))
    estimators = len(members) == plan.gamma and max(members, default=0) < plan.gamma
    if not estimators or any(sorted(found) != everybody for found in members.values()):
        raise InputError(
            f"parts must hold each of {plan.silos} silos once for each of {plan.gamma} estimators"
        )
    claims = {part.plan.privacy and part.plan.privacy.budget for part in plan.parts}
    if len(claims) > 1:
        raise InputError(f"all parts must claim one budget, got {show(claims)}")


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
    """Message of one silo at the end of a phase: its least-squares estimate, without noise.

    Parameters
    ----------
    phase : int
        The phase that ends, from 1.
    values : array_like, shape (d,)
        The estimate, in rewards per unit of a feature; kept as a read-only float64 copy.
    silo : int
        Number of the silo, from 0.

    Raises
    ------
    InputError
        For values that are no numbers, and a silo that is no integer.
    """

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
    """Message of the server at the end of a phase: the model of the next one.

    Parameters
    ----------
    phase : int
        The phase that plays it.
    values : array_like, shape (d,)
        The mean of all estimates, with the server's noise if the plan is private.
    """

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

    @property
    def releases(self) -> int:
        """Models that are made."""
        return len(self.releasing)

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


def check_means(plan: PhasePlan) -> None:
    """Refuse private means that are not those of the plan's phases: alike, but for the radius.

    Raises InputError.
    """
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
        if mean.at(plan.means[0].radius) != plan.means[0]:
            raise InputError("private means must be alike but for their radius, got others")


def check_phase_plan(plan: object) -> PhasePlan:
    """The plan if it is one of phases, and gives what it says that it gives."""
    plan = of_kind(plan, PhasePlan)
    check_means(plan)
    verify(plan)
    return plan
