"""Systems of experts: their problem, registry entries, messages and plans.

An `ExpertPlan` is plain data; it makes the client's collector and the server's decider, which
parties (`fastfed.experts.parties`) and drivers run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from typing import Protocol as Interface

import numpy as np

from fastfed import _system
from fastfed._kernels import aggregation
from fastfed._random import CHOICE, NoiseSource, is_exact
from fastfed._system import System, account
from fastfed._validate import InputError, array, integer, show
from fastfed.privacy import exact
from fastfed.privacy.account import (
    Claim,
    OneLoss,
    PrivacyEvent,
    RawData,
    check_budget,
    per_record,
    released,
    verify,
)
from fastfed.privacy.certificate import Certificate, Condition, no_privacy
from fastfed.protocols.plan import of_kind
from fastfed.protocols.protocol import ADD, NOISY_ADD, SEND_BATCH, SEND_NOISY_SUM, Protocol, frozen

__all__ = ["Algorithm", "System"]

# ---- Problem and registry entry ------------------------------------------------------------------


@dataclass(frozen=True)
class ProblemSpec:
    """Sizes and guarantees that a system may use before the first round: no losses.

    Parameters
    ----------
    silos : int
        m, the number of clients.
    horizon : int
        T, rounds.
    experts : int
        d, the number of experts.
    lipschitz : float, default 1
        alpha: no coordinate of a gradient is larger (Lipschitz in the L1 norm).
    spread : float, default 1
        Length of an interval that holds every coordinate of every gradient, at most 2 alpha.
    smoothness : float, default 0
        beta: gradients are beta-Lipschitz from the L1 to the maximum norm; 0 for linear losses.
    loss_range : float, default 1
        The most that a loss exceeds its least value on the simplex by.
    linear : bool, default True
        True if a loss is <l, x> with l in [0, 1]^d.
    iid : bool, default False
        True if losses are drawn independently from one distribution.
    optimal_loss : float, optional
        L*: the best expert loses at most so much at any client, if that is guaranteed.
    multiplicity : int, default 1
        The most losses, of any clients in any rounds, that one record can be behind.
    notes : tuple of str
        Caveats about the losses for readers of the certificate.
    """

    silos: int
    horizon: int
    experts: int
    lipschitz: float = 1.0
    spread: float = 1.0
    smoothness: float = 0.0
    loss_range: float = 1.0
    linear: bool = True
    iid: bool = False
    optimal_loss: float | None = None
    multiplicity: int = 1
    notes: tuple[str, ...] = ()


class Algorithm(_system.Algorithm):
    """A system of a paper that predicts from experts: it gets losses, and no contexts."""


# ---- Messages ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertReport:
    """One client's message to the server in one exchange.

    Parameters
    ----------
    release : int
        The number of the exchange, from 1.
    values : ndarray, shape (d,)
        A number for each expert.
    silo : int
        The client's number.
    """

    release: int
    values: np.ndarray
    silo: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "silo", integer("silo", self.silo, at_least=0))
        object.__setattr__(self, "release", integer("release", self.release, at_least=1))
        object.__setattr__(self, "values", frozen(array("values", self.values, ndim=1)))

    @property
    def bits(self) -> int:
        """Bits on a wire: float64."""
        return 64 * len(self.values)


@dataclass(frozen=True)
class ExpertChoice:
    """The server's message to all clients: an expert, or weights of all of them.

    Parameters
    ----------
    release : int
        The number of the exchange; 0 comes before the first round.
    expert : int or None
        The chosen expert.
    weights : ndarray, shape (d,), optional
        Weights >= 0 that add up to 1, in place of an expert.
    """

    release: int
    expert: int | None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "release", integer("release", self.release, at_least=0))
        if (self.expert is None) == (self.weights is None):
            raise InputError("a choice has either an expert or weights")
        if self.expert is not None:
            object.__setattr__(self, "expert", integer("expert", self.expert, at_least=0))
            return
        weights = array("weights", self.weights, ndim=1)
        if not (weights >= 0.0).all() or abs(weights.sum() - 1.0) > 1e-9:
            raise InputError(f"weights must be >= 0 and add up to 1, got sum {weights.sum():g}")
        object.__setattr__(self, "weights", frozen(weights))


# ---- Plans ---------------------------------------------------------------------------------------

#: A loss that is not linear, as its gradient (d,) at x (d,).
Gradient = Callable[[np.ndarray], np.ndarray]

NO_PRIVACY = Protocol(
    "sums",
    "clients send what every expert has lost, no privacy",
    "none",
    SEND_BATCH,
    ADD,
    "none",
    "full information (Cesa-Bianchi and Lugosi 2006)",
)
SPARSE_SWITCHING = Protocol(
    "sparse-switching",
    "a trusted server changes the expert of all seldom, and by chance",
    "central: the server is trusted; whoever sees the experts that are played is not",
    SEND_BATCH,
    ADD,
    "server",
    "gao-2024, Algorithms 4 and 5",
)
LOCAL_SCORES = Protocol(
    "noisy-scores",
    "each client adds noise to the scores that it sends",
    "whoever sees the experts that are played is not trusted",
    SEND_NOISY_SUM,
    ADD,
    "silos",
    "gao-2024, Algorithms 1-3",
)
CENTRAL_SCORES = Protocol(
    "scores",
    "a trusted server adds noise to the mean of all clients' scores",
    "central: the server is trusted; whoever sees the experts that are played is not",
    SEND_BATCH,
    NOISY_ADD,
    "server",
    "gao-2024, Algorithms 1-3 with central noise",
)
PLAIN_SCORES = Protocol(
    "plain-scores",
    "clients send their scores, no privacy",
    "none",
    SEND_BATCH,
    ADD,
    "none",
    "gao-2024, Algorithms 1-3 without noise",
)


class Collector(Interface):
    """State of one client: its losses since the last exchange."""

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Add the loss of a round."""
        ...

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """Values (d,) to send in one exchange, noise included; x (d,) is the current decision."""
        ...


class Decider(Interface):
    """State of the server: it chooses the next decision."""

    def start(self) -> ExpertChoice:
        """The first choice."""
        ...

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """The next choice, from all clients' values added up in order, shape (d,)."""
        ...

    @property
    def events(self) -> dict[str, int]:
        """Counts of events for the results, by name."""
        ...


class Stretches(NamedTuple):
    """Stretches of rounds between which decisions may change, for all decisions at once.

    Attributes
    ----------
    sums : ndarray of int64, shape (n, d)
        What every expert loses at all clients in each stretch, in whole units.
    unit : float
        The unit.
    asks : ndarray of uint8, shape (n,)
        1 where one exchange comes before the stretch.
    lost : ndarray of int64, shape (d,)
        What every expert had lost before the first, in units; a decider of many makes it what was
        lost before the last.
    """

    sums: np.ndarray
    unit: float
    asks: np.ndarray
    lost: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ExpertPlan(ABC):
    """Plan of one curve of experts: all clients play the same x, a point of the simplex.

    Parameters
    ----------
    silos : int
        m, clients.
    horizon : int
        T, rounds.
    experts : int
        d.
    protocol : Protocol
        The messages, and whom clients trust.
    linear : bool, default True
        True if losses are vectors in [0, 1]^d.
    privacy : Claim, optional
        The claim of the plan; None claims nothing.
    """

    driver: ClassVar[str] = "experts"
    example: ClassVar[str] = "one of experts, such as system.plan of fed-svt"
    parties: ClassVar[str] = "it is for ExpertClient(plan, index) and ExpertServer(plan)"
    #: What clients send: sums of their losses, or "scores" of experts, from gradients.
    sends: ClassVar[str] = "sums"

    silos: int
    horizon: int
    experts: int
    protocol: Protocol
    linear: bool = True
    privacy: Claim | None = None

    @property
    @abstractmethod
    def exchanges(self) -> int:
        """The number of exchanges of messages."""

    @abstractmethod
    def exchanges_before(self, round: int) -> int:
        """Exchanges that must have been completed before a round."""

    @abstractmethod
    def asking_rounds(self, last: int) -> np.ndarray:
        """The rounds up to ``last`` before which messages are exchanged, ascending."""

    @abstractmethod
    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Make the state of a client."""

    @abstractmethod
    def decider(self, noise: NoiseSource) -> Decider:
        """Make the state of the server."""

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """The decision (d,) after a choice, where x was the last one."""
        if choice.weights is not None:
            return choice.weights
        if x is not None and x[choice.expert] == 1.0:
            return x
        moved = np.zeros(self.experts)
        moved[choice.expert] = 1.0
        return moved

    def memory(self) -> int:
        """Bytes that all clients store between exchanges; by default those of one sum."""
        return 8 * self.experts

    def gradient_memory(self) -> int:
        """Bytes of gradients that a simulation of all clients keeps at once."""
        return 0

    def sends_weights(self, release: int) -> bool:
        """True if the server answers an exchange with weights, and not with one expert."""
        return False

    def bits_up(self, exchanges: int) -> float:
        """Bits that all clients have sent in so many exchanges: d float64 each time."""
        return 64.0 * self.experts * self.silos * exchanges

    def bits_down(self, exchanges: int) -> float:
        """Bits sent to all clients by then: an expert each time, and one at the start."""
        return 64.0 * self.silos * (exchanges + 1)


def check_expert_plan(plan: object) -> ExpertPlan:
    """Return the plan if it is one of experts, and its numbers give what it was sealed with."""
    found = of_kind(plan, ExpertPlan)  # type: ignore[type-abstract]
    verify(found)
    return found


def start_expert(experts: int, noise: NoiseSource) -> int:
    """A uniformly random expert before the first round."""
    return int(noise.uniform(CHOICE, 0) * experts)


def choices_of(plan: ExpertPlan, noise: OneLoss, protocol: Protocol) -> tuple[PrivacyEvent, ...]:
    """Everything released of a plan whose server chooses one expert by this mechanism.

    Raises InputError for another protocol than the mechanism's, for losses that are not linear,
    and for another budget than the claimed one.
    """
    check_protocol(plan, protocol)
    check_budget(noise, plan.privacy)
    if not plan.linear:
        raise InputError(f'protocol "{protocol.id}" needs linear losses, got linear = False')
    return (per_record(noise, plan.privacy or Claim(source="none")),)


def check_protocol(plan: ExpertPlan, *known: Protocol) -> None:
    """Refuse a plan whose protocol is none of these, in every field."""
    if plan.protocol not in known:
        names = " or ".join(f'"{protocol.id}"' for protocol in known)
        raise InputError(
            f"protocol of a {type(plan).__name__} must be {names} as it is registered, got "
            f"{show(plan.protocol)}"
        )


# ---- Text that certificates of experts share -----------------------------------------------------

#: The unit of protection, and what is protected of it.
USER = "a user is one loss function of one client in one round"
PROTECTS_CHOICES = f"{USER}; what is protected is what is played"
PROTECTS_MESSAGES = f"{USER}; what is protected is what the client sends"
#: Neighbours of a guarantee for one of many losses that one record is behind.
ONE_LOSS = "neighbours differ in one loss of one client in one round"
#: Caveat of a trusted server.
RAW_MESSAGES = "clients send the server raw numbers: it is trusted, and nobody else may see them"
BUDGET_EXCEEDED = "the claimed budget is not met; the exact value is what holds"


def budget_exceeded(uses: int) -> str:
    """Caveat of an exact value above the claim, where one record is behind ``uses`` losses."""
    if uses == 1:
        return BUDGET_EXCEEDED
    return (
        f"one record can be behind {uses} losses, and the noise is for one: the exact value is of "
        "all of these replaced together"
    )


def multiplicity_condition(uses: int, multiplicity: int) -> Condition:
    """Condition that the account covers all losses that one record can be behind."""
    times = "two losses" if uses == 1 else f"more than {uses} losses"
    text = f"no record is behind {times} (by how losses are made, or declared)"
    return Condition(text, multiplicity <= uses)


# ---- Plans whose clients send sums of losses -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SumsPlan(ExpertPlan):
    """Plan with exchanges before rounds N, 2 N, ..., of earlier losses (gao-2024, Algorithm 4).

    For N = 1 the first exchange is before round 2: before round 1 nothing is known.

    Parameters
    ----------
    phase_length : int
        N.
    """

    phase_length: int

    @property
    def exchanges(self) -> int:
        """The number of exchanges."""
        return self.exchanges_before(self.horizon)

    def exchanges_before(self, round: int) -> int:
        """Exchanges that must have been completed before a round."""
        last = min(round, self.horizon)
        return last // self.phase_length - (self.phase_length == 1)

    def asking_rounds(self, last: int) -> np.ndarray:
        """The rounds up to ``last`` before which messages are exchanged, ascending."""
        return np.arange(max(self.phase_length, 2), last + 1, self.phase_length)

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Make the state of a client."""
        points = self.silos * self.horizon
        return SumCollector(self.experts, exact.quantum(points) if is_exact(noise) else None)


@released.register
def _(plan: SumsPlan) -> tuple[PrivacyEvent, ...] | None:
    """Everything released: raw sums, if no noise is added."""
    # The release of another package's server is not known here.
    return (RawData(),) if plan.protocol.noise_by == "none" else None


@account.register
def _certificate(plan: SumsPlan, problem: ProblemSpec) -> Certificate:
    """The certificate of sums that are sent as they are."""
    if released(plan) is None:
        raise InputError(f"plan must be one that fastfed accounts for, got {type(plan).__name__}")
    claim = plan.privacy or Claim(source=plan.protocol.source)
    return no_privacy(claim.source, caveats=claim.caveats)


class SumCollector:
    """State of one client: the sum of its losses since the last report, without noise.

    ``unit``: losses are rounded to its multiples, so that sums are exact; None in simulations.
    """

    def __init__(self, experts: int, unit: float | None = None) -> None:
        self._sum, self._unit = np.zeros(experts), unit

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Add the losses (d,) of a round."""
        assert isinstance(loss, np.ndarray)
        aggregation.add(self._sum, loss if self._unit is None else exact.quantise(loss, self._unit))

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """The sum (d,), which is then reset."""
        sent, self._sum = self._sum, np.zeros_like(self._sum)
        return sent


def check_linear(algorithm: str, problem: ProblemSpec) -> None:
    """Raise InputError unless every expert has a loss of its own."""
    if not problem.linear:
        raise InputError(
            f"{algorithm} needs linear losses, one number for each expert; these are not"
        )


def check_phase_length(length: int, problem: ProblemSpec) -> int:
    """Return N; InputError if no phase ends within the horizon."""
    if length > problem.horizon:
        raise InputError(f"phase_length must be <= horizon ({problem.horizon}), got {length}")
    return length
