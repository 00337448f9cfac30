"""Expert systems: the problem, registry entries, messages, and the plan that drivers execute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from typing import Protocol as Interface

import numpy as np

from fastfed import _system
from fastfed._random import CHOICE, NoiseSource
from fastfed._system import System
from fastfed._validate import InputError, array, integer
from fastfed.privacy.account import Claim, verify
from fastfed.protocols.messages import frozen
from fastfed.protocols.plan import of_kind
from fastfed.protocols.protocol import ADD, NOISY_ADD, SEND_BATCH, SEND_NOISY_SUM, Protocol

__all__ = ["Algorithm", "System"]

# ---- The problem that experts' systems are put to: sizes, and what the adversary guarantees ------


@dataclass(frozen=True)
class ProblemSpec:
    """What a system may know before the first round; no losses, only guarantees about them."""

    silos: int  # m clients
    horizon: int  # T
    experts: int  # d
    #: alpha: no coordinate of a gradient is larger (Lipschitz in the L1 norm).
    lipschitz: float = 1.0
    #: Length of the interval that every coordinate of every gradient lies in, at most 2 alpha.
    spread: float = 1.0
    #: beta: gradients are beta-Lipschitz from the L1 to the maximum norm; 0 of linear losses.
    smoothness: float = 0.0
    #: What a loss exceeds its least value on the simplex by at most.
    loss_range: float = 1.0
    #: Whether a loss is <l, x> with l in [0, 1]^d.
    linear: bool = True
    #: Whether losses are drawn independently from one law.
    iid: bool = False
    #: L*: the best expert loses at most so much at any client, if that is guaranteed.
    optimal_loss: float | None = None
    #: How many losses, of any clients in any rounds, one record can be behind.
    multiplicity: int = 1
    #: What a reader of the certificate should know about the losses.
    notes: tuple[str, ...] = ()


# ---- What the systems of experts have in common: their entries of the registry -------------------


class Algorithm(_system.Algorithm):
    """A system of a paper that predicts from experts: it meets losses, no contexts."""


# ---- What travels between clients and server of a federation that predicts from experts ----------


@dataclass(frozen=True)
class ExpertReport:
    """What one client sends in one exchange, a number for each expert, (d,)."""

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
    """What the server sends to all clients: an expert, or weights of all of them, (d,).

    Release 0 comes before the first round.
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


# ---- A curve of experts as plain data, and what client, server and drivers ask of it -------------


#: A loss that is no vector: its gradient (d,) at x (d,).
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
    """What one client keeps of its losses."""

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Take in the loss of a round."""
        ...

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """What to send in one exchange, (d,), noise included, while x is played."""
        ...


class Decider(Interface):
    """What the server does."""

    def start(self) -> ExpertChoice:
        """What is played first."""
        ...

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """The next choice, from all clients' values added up in order, (d,)."""
        ...

    @property
    def events(self) -> dict[str, int]:
        """What a reader of the results should hear of, counted."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertPlan(ABC):
    """One curve of experts: all clients play the same x, a point of the simplex."""

    driver: ClassVar[str] = "experts"
    example: ClassVar[str] = "one of experts, such as system.plan of fed-svt"
    parties: ClassVar[str] = "it is for ExpertClient(plan, index) and ExpertServer(plan)"
    #: What clients send: sums of their losses, or "scores" of experts, from gradients.
    sends: ClassVar[str] = "sums"

    silos: int  # m
    horizon: int  # T
    experts: int  # d
    protocol: Protocol
    linear: bool = True  # whether losses are vectors in [0, 1]^d
    privacy: Claim | None = None  # what is declared of it; None: nothing

    @property
    @abstractmethod
    def exchanges(self) -> int:
        """How often clients and server exchange messages."""

    @abstractmethod
    def exchanges_before(self, round: int) -> int:
        """Exchanges that must have been made before a round is played."""

    @abstractmethod
    def asking_rounds(self, last: int) -> np.ndarray:
        """The rounds up to ``last`` before which messages are exchanged, ascending."""

    @abstractmethod
    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """What a client keeps."""

    @abstractmethod
    def decider(self, noise: NoiseSource) -> Decider:
        """What the server does."""

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """What is played after a choice, (d,), where x was played before."""
        if choice.weights is not None:
            return choice.weights
        if x is not None and x[choice.expert] == 1.0:
            return x
        moved = np.zeros(self.experts)
        moved[choice.expert] = 1.0
        return moved

    def memory(self) -> int:
        """Bytes that all clients keep between exchanges; by default what one sum takes."""
        return 8 * self.experts

    def gradient_memory(self) -> int:
        """Bytes of gradients that a simulation of all clients keeps at once."""
        return 0

    def sends_weights(self, release: int) -> bool:
        """Whether the server answers an exchange with weights, and not with one expert."""
        return False

    def bits_up(self, exchanges: int) -> float:
        """Bits that all clients have sent in so many exchanges: d float64 each time."""
        return 64.0 * self.experts * self.silos * exchanges

    def bits_down(self, exchanges: int) -> float:
        """Bits sent to all clients by then: an expert each time, and one at the start."""
        return 64.0 * self.silos * (exchanges + 1)


def check_expert_plan(plan: object) -> ExpertPlan:
    """The plan if it is one of experts, and gives what it says that it gives."""
    found = of_kind(plan, ExpertPlan)  # type: ignore[type-abstract]
    verify(found)
    return found


def start_expert(experts: int, noise: NoiseSource) -> int:
    """A uniformly random expert before the first round."""
    return int(noise.uniform(CHOICE, 0) * experts)
