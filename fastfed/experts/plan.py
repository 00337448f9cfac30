"""A curve of experts as plain data, and what client, server and drivers ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np

from fastfed._random import CHOICE, NoiseSource
from fastfed._validate import InputError
from fastfed.experts.messages import ExpertChoice
from fastfed.privacy.account import Claim, verify
from fastfed.protocols.protocol import ADD, NOISY_ADD, SEND_BATCH, SEND_NOISY_SUM, Protocol

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
    if not isinstance(plan, ExpertPlan):
        raise InputError(
            "plan must be one of experts, such as system.plan of fed-svt, "
            f"got {type(plan).__name__}"
        )
    verify(plan)
    return plan


def start_expert(experts: int, noise: NoiseSource) -> int:
    """A uniformly random expert before the first round."""
    return int(noise.uniform(CHOICE, 0) * experts)
