"""Federations without a server: what every silo does, as plain data, and what they tell each other.

dubey-pentland-2020, Algorithm 3. Rounds are dealt out to gamma estimators, t mod gamma; the silos
of a clique of the graph's gamma-th power share each of them. By the time an estimator is used
again, gamma rounds later, whatever a member sent has reached every other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from fastfed.privacy.account import Claim
from fastfed.protocols.messages import Report
from fastfed.protocols.network import Graph
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Protocol


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
