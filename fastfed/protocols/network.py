"""Messages between silos without a server: from neighbour to neighbour, one hop a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fastfed._validate import InputError, integer
from fastfed.protocols.graph import Graph


class Sized(Protocol):
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
        """Who hears of what at the start of the next round; call it once a round.

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
