"""Federations without a server (graph, network, plan), and the plan of a federation in phases."""

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

# ---- The graph of a federation without a server --------------------------------------------------


GRAPHS = ("complete", "star", "ring", "line", "random")

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Graph:
    """A connected, undirected graph of M silos with indices 0..M-1.

    Parameters
    ----------
    silos : int
        M >= 1, the number of silos.
    edges : iterable of (int, int)
        Pairs of silos in any order and direction. Stored as sorted pairs (i, j) with i < j, without
        duplicates, so equal graphs compare and hash equal.

    Raises
    ------
    InputError
        If a silo is out of range, an edge joins a silo to itself, or the graph is not connected.
    """

    silos: int
    edges: Edges

    def __post_init__(self) -> None:
        """Check the edges and that the graph is connected; sort the edges."""
        silos = integer("silos", self.silos, at_least=1)
        object.__setattr__(self, "silos", silos)
        object.__setattr__(self, "edges", _checked_edges(self.edges, silos))
        if (silo := _unreached(self.edges, silos)) is not None:
            raise InputError(f"graph must be connected, got no path between silos 0 and {silo}")

    @classmethod
    def named(cls, name: str, silos: int, seed: int = 0, probability: float | None = None) -> Graph:
        """Return the graph of a name in GRAPHS.

        Silo 0 is the centre of a star; rings and lines follow the order of the indices. "random" is
        an Erdos-Renyi graph plus the fewest edges that make the graph connected. Each pair of silos
        has an independent uniform number, computed from ``seed``. The edges are the pairs whose
        number is below ``probability``, and the pairs of the minimum spanning tree, whose numbers
        have the least sum.

        Parameters
        ----------
        name : {"complete", "star", "ring", "line", "random"}
            Name of the graph.
        silos : int
            M, the number of silos.
        seed : int, default 0
            Seed of "random", in [0, 2^63).
        probability : float, optional
            Edge probability of "random", in [0, 1]. Default: min(1, 2 ln M / M).

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        InputError
            If the name is unknown, a value is out of range, or ``probability`` is given for a graph
            other than "random".
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
                f'probability is for the graph "random" only, got {show(probability)} for "{name}"'
            )
        line = [(i, i + 1) for i in range(silos - 1)]
        if name == "complete":
            return cls(silos, tuple((i, j) for i in range(silos) for j in range(i + 1, silos)))
        if name == "star":
            return cls(silos, tuple((0, i) for i in range(1, silos)))
        # A ring of two silos has one edge, not two.
        return cls(silos, tuple(line + [(0, silos - 1)] * (name == "ring" and silos > 2)))

    @classmethod
    def from_edges(cls, edges: Iterable[Iterable[int]], silos: int) -> Graph:
        """Return the graph with these edges (pairs of silos); raise InputError as `Graph` does."""
        return cls(silos, edges)  # type: ignore[arg-type]

    @classmethod
    def from_networkx(cls, graph: Any) -> Graph:
        """Return the Graph of an undirected networkx graph with the nodes 0..M-1, in any order.

        Parallel edges are merged; attributes of nodes and edges are ignored. Raises InputError for
        a directed graph or other nodes, and as `Graph` does.
        """
        directed = getattr(graph, "is_directed", None)
        if callable(directed) and directed():
            raise InputError("graph must be undirected, got a directed one")
        nodes = list(graph.nodes)
        # Check types too: True and 1.0 equal 1, but are not indices of silos.
        if not nodes or sorted(
            node for node in nodes if type(node) is int or isinstance(node, np.integer)
        ) != list(range(len(nodes))):
            raise InputError(f"nodes of a graph must be the silos 0..M-1, got {show(nodes)}")
        # An edge of a multigraph has a key after its two silos.
        return cls.from_edges([tuple(edge)[:2] for edge in graph.edges], len(nodes))

    @classmethod
    def of(cls, value: Any, silos: int, seed: int = 0) -> Graph:
        """Return the Graph that a value of the key ``graph`` of a curve describes.

        ``value`` is a name in GRAPHS, a list of pairs, a networkx graph or a Graph. ``seed`` is the
        seed of the graph "random". Raises InputError unless the result is a connected graph of
        ``silos`` silos.
        """
        if isinstance(value, str):
            return cls.named(value, silos, seed)
        if isinstance(value, Graph):
            graph = value
        elif hasattr(value, "nodes") and hasattr(value, "edges"):
            graph = cls.from_networkx(value)
        else:
            try:
                graph = cls.from_edges(value, silos)
            except InputError as error:
                raise InputError(f"graph: {error}") from None
        if graph.silos != integer("silos", silos, at_least=1):
            raise InputError(f"graph must have {silos} silos, got {graph.silos}")
        return graph

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the neighbours of each silo, a tuple in ascending order for each silo."""
        linked: list[list[int]] = [[] for _ in range(self.silos)]
        for i, j in self.edges:
            linked[i].append(j)
            linked[j].append(i)
        return tuple(tuple(sorted(silos)) for silos in linked)

    @cached_property
    def distances(self) -> np.ndarray:
        """Return the number of hops between each pair of silos, (M, M) int64, read-only."""
        hops = np.array([self._hops_from(i) for i in range(self.silos)], dtype=np.int64)
        hops.flags.writeable = False
        return hops

    @cached_property
    def diameter(self) -> int:
        """Return the largest number of hops between two silos; 0 for a single silo."""
        return int(self.distances.max())

    def cliques(self, gamma: int) -> tuple[tuple[int, ...], ...]:
        """Return a greedy partition of the silos into few cliques of the graph's gamma-th power.

        Two silos are partners if they are at most ``gamma`` hops apart; in a clique any two silos
        are partners. Each clique starts from the unassigned silo with the fewest unassigned
        partners. Then the clique repeatedly adds the silo that leaves the most candidates for
        further additions; ties go to the silo with fewer partners, then to the lower index. For
        gamma >= diameter there is one clique. A partition into fewer cliques may exist. The silos
        of a clique are ascending; cliques are sorted by their first silo. Raises InputError for
        gamma < 1.
        """
        near = self.distances <= integer("gamma", gamma, at_least=1)
        unassigned = np.ones(self.silos, dtype=bool)
        partner_counts = near.sum(axis=1)
        cliques = []
        while unassigned.any():
            first_silo = int(np.where(unassigned, partner_counts, self.silos + 1).argmin())
            clique = _maximal_clique(near, partner_counts, first_silo, unassigned)
            cliques.append(tuple(sorted(clique)))
            unassigned[clique] = False
            partner_counts -= near[:, clique].sum(axis=1)
        return tuple(sorted(cliques))

    def checked_cliques(
        self, cliques: Sequence[Iterable[int]], gamma: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return a partition into cliques that the user supplies, sorted as by `cliques`.

        Raises InputError unless every silo is in exactly one clique, and any two silos of a clique
        are at most ``gamma`` hops apart.
        """
        gamma = integer("gamma", gamma, at_least=1)
        # The input comes from users: check the types, then the partition, then the distances.
        last_silo = self.silos - 1
        try:
            sorted_cliques = [
                sorted(
                    integer("a silo of cliques", i, at_least=0, at_most=last_silo) for i in clique
                )
                for clique in cliques
            ]
        except TypeError:
            raise InputError(f"cliques must be lists of silos, got {show(cliques)}") from None
        if [] in sorted_cliques:
            raise InputError(f"cliques must not be empty, got {show(cliques)}")
        clique_counts = np.bincount(
            [i for clique in sorted_cliques for i in clique], minlength=self.silos
        )
        if (clique_counts != 1).any():
            silo = int((clique_counts != 1).argmax())
            raise InputError(
                f"cliques must hold every silo exactly once, got silo {silo} "
                f"{clique_counts[silo]} times"
            )
        for clique in sorted_cliques:
            hops = self.distances[np.ix_(clique, clique)]
            if hops.max() > gamma:
                i, j = np.argwhere(hops > gamma)[0]
                raise InputError(
                    f"silos of a clique must be at most {gamma} hops apart, "
                    f"got {hops[i, j]} between silos {clique[i]} and {clique[j]}"
                )
        return tuple(sorted(tuple(clique) for clique in sorted_cliques))

    def edges_crossed(self, silo: int, hops: int, ttl: int) -> int:
        """Return how often a silo's broadcast crosses an edge while it is forwarded ``hops`` times.

        The broadcast itself is the first forwarding. In each forwarding, every silo that has just
        received the message sends the message to all its neighbours, including the neighbours that
        it came from. A message is forwarded at most ``ttl`` (time to live) times. A message that is
        broadcast at the end of round t has been forwarded min(ttl, T - t + 1) times by the end of
        round T. Raises InputError for values out of range.
        """
        silo = integer("silo", silo, at_least=0, at_most=self.silos - 1)
        hops = min(integer("hops", hops, at_least=0), integer("ttl", ttl, at_least=1))
        return int(self._crossed[silo, min(hops, self.diameter + 1)])

    @cached_property
    def _crossed(self) -> np.ndarray:
        """Return how many edges each silo's broadcast crosses in h hops, (M, diameter + 2).

        Entry (i, h) is the sum of the degrees of all silos that are less than h hops from silo i.
        """
        degrees = np.array([len(linked) for linked in self.neighbours], dtype=np.int64)
        table = np.zeros((self.silos, self.diameter + 2), dtype=np.int64)
        for i, hops in enumerate(self.distances):
            np.add.at(table[i], hops + 1, degrees)
        return table.cumsum(axis=1)

    def _hops_from(self, silo: int) -> list[int]:
        """Return the number of hops from a silo to every silo, -1 if there is no path."""
        hops = [-1] * self.silos
        hops[silo] = 0
        reached = [silo]
        for i in reached:  # the loop also visits the silos that it appends
            if len(reached) == self.silos:
                break
            for j in self.neighbours[i]:
                if hops[j] < 0:
                    hops[j] = hops[i] + 1
                    reached.append(j)
        return hops


def _unreached(edges: Edges, silos: int) -> int | None:
    """Return the lowest silo that cannot be reached from silo 0, or None if all can.

    Memory use is proportional to the number of edges, so that a wrong, huge ``silos`` cannot
    exhaust the memory.
    """
    linked: dict[int, list[int]] = {}
    for i, j in edges:
        linked.setdefault(i, []).append(j)
        linked.setdefault(j, []).append(i)
    reached, waiting = {0}, [0]
    for i in waiting:  # the loop also visits the silos that it appends
        new_silos = [j for j in linked.get(i, ()) if j not in reached]
        reached.update(new_silos)
        waiting += new_silos
    return next((i for i in range(silos) if i not in reached), None)


def _checked_edges(edges: Any, silos: int) -> Edges:
    """Return a list of edges as sorted pairs (i, j) with i < j; raise InputError if invalid."""
    checked = set()
    try:
        edge_list = list(edges)
    except TypeError:
        raise InputError(f"edges must be a list of pairs of silos, got {show(edges)}") from None
    for edge in edge_list:
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
    """Return the edges of the graph "random", see `Graph.named`."""
    # The draws of silo i are the random numbers of the pairs (i, j) with j < i, as integers below
    # 2^32. Their key has silo i >= 1 and index 0. The keys of all other draws with purpose INSTANCE
    # differ from it: they have silo 0 or an index above 0.
    numbers_by_silo = [rng.random_u32(seed, INSTANCE, 0, i, 0, i) for i in range(1, silos)]
    pair_numbers = np.concatenate(numbers_by_silo) if numbers_by_silo else np.zeros(0, np.uint32)
    ends = np.column_stack(np.tril_indices(silos, -1))
    is_edge = pair_numbers < probability * 2.0**32
    # Kruskal's minimum spanning tree.
    parent = list(range(silos))

    def root_of(i: int) -> int:
        """Return the representative of silo i's connected component."""
        while parent[i] != i:
            parent[i] = parent[parent[i]]  # shortens the path for later calls
            i = parent[i]
        return i

    tree_silos = 1
    for edge in pair_numbers.argsort(kind="stable"):
        if tree_silos == silos:
            break
        i, j = (root_of(int(end)) for end in ends[edge])
        if i != j:
            parent[i] = j
            tree_silos += 1
            is_edge[edge] = True
    return tuple((i, j) for i, j in ends[is_edge].tolist())


def _maximal_clique(
    near: np.ndarray, partner_counts: np.ndarray, first: int, free: np.ndarray
) -> list[int]:
    """Return a clique of unassigned silos that contains ``first``, grown as in `Graph.cliques`.

    ``near`` (M, M) is true for pairs of silos that may be in one clique. ``partner_counts`` (M,) is
    the number of unassigned silos near each silo. ``free`` (M,) is true for unassigned silos.
    """
    clique = [first]
    candidates = free & near[first]
    candidates[first] = False
    silos = np.flatnonzero(candidates)
    near_candidates = near[np.ix_(silos, silos)]
    remaining_partners = near_candidates.sum(axis=1)
    fits = np.ones(len(silos), dtype=bool)
    while fits.any():
        # Choose the silo that leaves the most candidates; in a tie, the one with the fewest
        # partners. One number encodes both criteria, because a silo has at most M partners.
        best = np.where(
            fits, remaining_partners * (len(near) + 1) - partner_counts[silos], 0
        ).argmax()
        clique.append(int(silos[best]))
        excluded = fits & ~near_candidates[best]
        excluded[best] = True
        remaining_partners -= near_candidates[:, excluded].sum(axis=1)
        fits &= ~excluded
    return clique


# ---- Messages between silos without a server: one hop per round ----------------------------------


class Sized(typing.Protocol):
    """A message: any object with its size in bytes."""

    @property
    def nbytes(self) -> int: ...


M = TypeVar("M", bound=Sized)


@dataclass(eq=False)
class _Flight(Generic[M]):
    """One broadcast that is still being forwarded."""

    message: M
    nbytes: int
    hops_left: int
    reached: set[int]  # silos that have the message, including the sender
    arriving: list[int] = field(default_factory=list)  # receivers in the next round, one per copy


class Network(Generic[M]):
    """Floods messages over a graph (dubey-pentland-2020, Algorithm 3, lines 10-24).

    A message that is broadcast in round t reaches a silo h hops away at the start of round t + h,
    for h up to ``time_to_live``. Every silo forwards each message once, to all its neighbours, at
    the end of the round in which the message arrives, and ignores later copies. The sender does not
    receive its own broadcast. Two broadcasts of the same object are two messages. A message is
    deleted as soon as no further silo can receive it.

    Parameters
    ----------
    graph : Graph
        The graph of the silos.
    time_to_live : int
        Largest number of hops of a message, >= 1.

    Attributes
    ----------
    bytes_sent : int
        Bytes sent over all edges so far, including messages whose forwarding is scheduled.
    """

    def __init__(self, graph: Graph, time_to_live: int) -> None:
        """Start without messages."""
        if not isinstance(graph, Graph):
            raise InputError(f"graph must be a Graph, got {type(graph).__name__}")
        self.graph = graph
        self.time_to_live = integer("time_to_live", time_to_live, at_least=1)
        self.bytes_sent = 0
        self._flights: list[_Flight[M]] = []

    def broadcast(self, silo: int, message: M) -> None:
        """Send a silo's message to its neighbours, which receive it in the next round."""
        silo = integer("silo", silo, at_least=0, at_most=self.graph.silos - 1)
        if not hasattr(message, "nbytes"):
            raise InputError(f"message must have nbytes, got {type(message).__name__}")
        nbytes = integer("nbytes", message.nbytes, at_least=0)
        self._forward(_Flight(message, nbytes, self.time_to_live, {silo}), [silo])

    def deliver(self) -> list[tuple[int, M]]:
        """Start the next round, and return the messages that arrive. Call it once per round.

        The result is a list of pairs (receiving silo, message), older broadcasts first. The
        receivers of a message with hops left forward it at the end of the round that starts here.
        This call already schedules the forwarding, so ``bytes_sent`` includes it.
        """
        flights, self._flights = self._flights, []
        delivered = []
        for flight in flights:
            receivers = [i for i in dict.fromkeys(flight.arriving) if i not in flight.reached]
            flight.reached.update(receivers)
            delivered += [(i, flight.message) for i in receivers]
            if flight.hops_left:
                self._forward(flight, receivers)
        return delivered

    def _forward(self, flight: _Flight[M], silos: list[int]) -> None:
        """Send the message of a broadcast from each of ``silos`` to all its neighbours."""
        flight.arriving = [j for i in silos for j in self.graph.neighbours[i]]
        flight.hops_left -= 1
        self.bytes_sent += flight.nbytes * len(flight.arriving)
        if len(flight.reached) < self.graph.silos:
            self._flights.append(flight)


# ---- Plans without a server, and the messages between silos --------------------------------------

# dubey-pentland-2020, Algorithm 3. There are gamma estimators, and round t uses estimator t mod
# gamma. The silos of a clique (of the graph's gamma-th power) share each estimator. An estimator is
# used again after gamma rounds; by then each member's messages have reached the whole clique.


@dataclass(frozen=True)
class Request:
    """Message: a silo's trigger fired; its clique must report after the estimator's next round."""

    silo: int
    estimator: int
    round: int

    @property
    def nbytes(self) -> int:
        """Return the size of the three integers in bytes."""
        return 24


@dataclass(frozen=True)
class Sums:
    """Message: a silo's report of one estimator's data, for the silo's clique."""

    silo: int
    estimator: int
    report: Report

    @property
    def nbytes(self) -> int:
        """Return the size of the report in bytes."""
        return self.report.nbytes


@dataclass(frozen=True)
class Part:
    """One estimator of one clique: a separate federation, which runs in every gamma-th round."""

    clique: tuple[int, ...]
    estimator: int
    plan: Plan  # for len(clique) silos, with this estimator's rounds as horizon


@dataclass(frozen=True)
class PeerPlan:
    """Plan of one decentralised curve, as plain data: the graph, and the plan of every part."""

    driver: ClassVar[str] = "peers"
    example: ClassVar[str] = "a PeerPlan, such as system.plan of feducb-decentralized"
    parties: ClassVar[str] = "it has no server, each silo is a Peer(plan, index)"

    graph: Graph
    gamma: int
    horizon: int
    dimension: int
    parts: tuple[Part, ...]

    def with_claim(self, change: Callable[[Claim], Claim]) -> PeerPlan:
        """Return the plan with ``change`` applied to the claim of every part."""
        parts = (replace(p, plan=p.plan.with_claim(change)) for p in self.parts)
        return replace(self, parts=tuple(parts))

    @property
    def silos(self) -> int:
        """Return M, the number of silos."""
        return self.graph.silos

    @property
    def protocol(self) -> Protocol:
        """Return the protocol, which all parts share."""
        return self.parts[0].plan.protocol

    @property
    def privacy(self) -> Claim | None:
        """Return the claim of the part with the largest epsilon; None if a part has no claim."""
        claims = [part.plan.privacy for part in self.parts if part.plan.privacy is not None]
        if len(claims) < len(self.parts):
            return None
        return max(claims, key=lambda claim: claim.exact[:1], default=None)

    @cached_property
    def of_silo(self) -> tuple[tuple[Part, ...], ...]:
        """Return the parts of each silo, in the order of estimators."""
        parts_by_silo: list[dict[int, Part]] = [{} for _ in range(self.silos)]
        for part in self.parts:
            for silo in part.clique:
                parts_by_silo[silo][part.estimator] = part
        return tuple(
            tuple(silo_parts[g] for g in range(self.gamma)) for silo_parts in parts_by_silo
        )

    @cached_property
    def crossings(self) -> np.ndarray:
        """Return how many edges each silo's message crosses in 0..gamma hops, (M, gamma + 1)."""
        hops = np.minimum(np.arange(self.gamma + 1), self.graph.diameter + 1)
        return self.graph._crossed[:, hops]

    @cached_property
    def clique_crossings(self) -> dict[tuple[int, ...], np.ndarray]:
        """Return, for each clique, `crossings` summed over the clique's silos, (gamma + 1,).

        If every silo of the clique broadcasts one message, entry h of the clique's array is how
        often these messages together have crossed an edge after h hops, for h = 0..gamma.
        """
        cliques = {part.clique for part in self.parts}
        return {clique: self.crossings[list(clique)].sum(axis=0) for clique in cliques}

    def rounds(self, estimator: int) -> np.ndarray:
        """Return the rounds t that use an estimator, those with t mod gamma = estimator."""
        # Rounds are counted from 1, so estimator 0 is first used in round gamma.
        return np.arange(estimator or self.gamma, self.horizon + 1, self.gamma)

    def uses(self, estimator: int, round: int) -> int:
        """Return how many of the rounds 1..``round`` use estimator number ``estimator``."""
        first_round = estimator or self.gamma  # see `rounds`
        return (round - first_round) // self.gamma + 1 if round >= first_round else 0


def check_parts(plan: PeerPlan) -> None:
    """Raise InputError unless each user belongs to one `Part`, and all parts claim one budget.

    A part is one estimator of one clique. For each estimator, the cliques must contain every silo
    once. The plan of each part must have that part's number of silos, number of rounds and
    dimension.
    """
    members: dict[int, list[int]] = {}
    for part in plan.parts:
        members.setdefault(part.estimator, []).extend(part.clique)
        part_sizes = (part.plan.silos, part.plan.horizon, part.plan.dimension)
        expected_sizes = len(part.clique), plan.uses(part.estimator, plan.horizon), plan.dimension
        if part_sizes != expected_sizes:
            raise InputError(
                f"the part of silos {show(part.clique)} and estimator {part.estimator} must be of "
                f"{expected_sizes[0]} silos, {expected_sizes[1]} rounds and dimension "
                f"{expected_sizes[2]}, got {part_sizes}"
            )
    all_silos = list(range(plan.silos))
    complete = len(members) == plan.gamma and max(members, default=0) < plan.gamma
    if not complete or any(sorted(clique_silos) != all_silos for clique_silos in members.values()):
        raise InputError(
            f"parts must hold each of {plan.silos} silos once for each of {plan.gamma} estimators"
        )
    claims = {part.plan.privacy and part.plan.privacy.budget for part in plan.parts}
    if len(claims) > 1:
        raise InputError(f"all parts must claim one budget, got {show(claims)}")


# ---- Federations in phases of doubling length ----------------------------------------------------

# huang-2023, Algorithm 1: phase p = 1, 2, ... has 2^p rounds. In the first U phases each client
# (here: silo) learns from its local data only. At the end of phase U and of each later phase it
# sends a local estimate; in the next phase it chooses actions greedily by the server's private mean
# of all estimates.


#: The two protocols of the server: a private mean of the estimates, or a plain mean.
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
        Number of the phase that ends, from 1.
    values : array_like, shape (d,)
        The estimate, in rewards per unit of a feature; stored as a read-only float64 copy.
    silo : int
        Index of the silo, from 0.

    Raises
    ------
    InputError
        If ``values`` is not numeric or ``silo`` is not an integer.
    """

    phase: int
    values: np.ndarray
    silo: int

    def __post_init__(self) -> None:
        """Check the silo, and store a read-only copy of ``values``."""
        object.__setattr__(self, "silo", integer("silo", self.silo))
        values = array("values", self.values, finite=False)
        object.__setattr__(self, "values", frozen(values))

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of ``values``, 8 d."""
        return self.values.nbytes


@dataclass(frozen=True)
class Model:
    """Message of the server at the end of a phase: the model for the next phase.

    Parameters
    ----------
    phase : int
        The phase that uses the model.
    values : array_like, shape (d,)
        The mean of all estimates, with the server's noise if the plan is private.
    """

    phase: int
    values: np.ndarray

    def __post_init__(self) -> None:
        """Store a read-only copy of ``values``."""
        object.__setattr__(self, "values", frozen(self.values))


@dataclass(frozen=True)
class PhasePlan:
    """Plan of one curve of a federation in phases, as plain data."""

    driver: ClassVar[str] = "phases"
    example: ClassVar[str] = "a PhasePlan, such as system.plan of robin"
    parties: ClassVar[str] = "it is in phases, for Client(plan, index) and Averager(plan)"

    local: Plan  # plan of a silo in the initial phases
    initial: int  # U, the number of initial phases
    protocol: Protocol  # PRIVATE_MEAN or PLAIN_MEAN
    means: tuple[WinsorizedMean, ...] = ()  # private means after phases U, U + 1, ...
    privacy: Claim | None = None  # the declared privacy guarantee; None: no claim

    def with_claim(self, change: Callable[[Claim], Claim]) -> PhasePlan:
        """Return the plan with ``change`` applied to its claim, if it has a claim."""
        return self if self.privacy is None else replace(self, privacy=change(self.privacy))

    @property
    def silos(self) -> int:
        """Return M, the number of silos."""
        return self.local.silos

    @property
    def horizon(self) -> int:
        """Return T, the number of rounds."""
        return self.local.horizon

    @property
    def dimension(self) -> int:
        """Return d, the number of features."""
        return self.local.dimension

    @property
    def phases(self) -> int:
        """Return P, the number of phases in T rounds, including an incomplete last phase."""
        return phases_of(self.horizon)

    @property
    def initial_rounds(self) -> int:
        """Return the number of rounds in which silos use their local data only."""
        return min(last_round(self.initial), self.horizon)

    @cached_property
    def releasing(self) -> tuple[int, ...]:
        """Return the phases after which a model is released: all phases from U to P - 1."""
        return tuple(range(self.initial, self.phases))

    @property
    def releases(self) -> int:
        """Return the number of models that are released."""
        return len(self.releasing)

    def phase_of(self, round: int) -> int:
        """Return the phase of a round (counted from 1)."""
        return (round + 1).bit_length() - 1

    def bits(self, releases: int) -> int:
        """Return how many bits all silos have sent (or received) after ``releases`` releases."""
        return 64 * self.dimension * self.silos * releases


def last_round(phase: int) -> int:
    """Return the last round of phase p, 2 + 4 + ... + 2^p, if phase p has 2^p rounds."""
    return (2 << phase) - 2


def phases_of(horizon: int) -> int:
    """Return the number of phases in ``horizon`` rounds, including an incomplete last phase."""
    return (horizon + 1).bit_length() - 1


def check_means(plan: PhasePlan) -> None:
    """Raise InputError unless the plan has the private means (averages) that its protocol needs.

    A private protocol needs one `WinsorizedMean` for each release; a plain protocol needs none.
    All of these are equal except for ``radius``, the radius of a ball that is expected to contain
    the silos' estimates.
    """
    mean_count = len(plan.releasing) if plan.protocol.noise_by == "server" else 0
    if len(plan.means) != mean_count:
        raise InputError(
            f'a plan of protocol "{plan.protocol.id}" must have {mean_count} private means, '
            f"got {len(plan.means)}"
        )
    for mean in plan.means:
        if (mean.silos, mean.dimension) != (plan.silos, plan.dimension):
            raise InputError(
                f"private means must be of {plan.silos} silos and dimension {plan.dimension}, "
                f"got {mean.silos} and {mean.dimension}"
            )
        if mean.at(plan.means[0].radius) != plan.means[0]:
            raise InputError("private means must be equal except for their radius")


def check_phase_plan(plan: object) -> PhasePlan:
    """Return the plan if it is a PhasePlan whose noise gives the guarantee that it claims.

    Raises InputError otherwise. The noise is that of the private means (`check_means`).
    """
    plan = of_kind(plan, PhasePlan)
    check_means(plan)
    verify(plan)
    return plan
