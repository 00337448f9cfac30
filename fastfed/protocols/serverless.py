"""Plans without a server, or in phases: what every silo does, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastfed._validate import InputError, array, integer
from fastfed.privacy.account import Claim, verify
from fastfed.protocols.network import Graph
from fastfed.protocols.plan import Plan, of_kind
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol, Report, frozen

if TYPE_CHECKING:
    from fastfed.privacy.mechanisms.winsorized import WinsorizedMean

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
