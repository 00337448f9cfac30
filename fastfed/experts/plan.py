"""Building blocks of expert systems: problem sizes, registry entries, messages and plans.

An `ExpertPlan` is plain data. It creates the client's state (`Collector`) and the server's state
(`Decider`), which the parties (`fastfed.experts.parties`) and the simulation drivers run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from typing import Protocol as Interface

import msgspec
import numpy as np

from fastfed import _system
from fastfed._kernels import aggregation
from fastfed._random import CHOICE, NoiseSource, is_exact
from fastfed._system import System, account
from fastfed._validate import InputError, array, integer, number, show
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
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import of_kind
from fastfed.protocols.protocol import ADD, NOISY_ADD, SEND_BATCH, SEND_NOISY_SUM, Protocol, frozen

__all__ = ["Algorithm", "System"]

# ---- Problem and registry entry ------------------------------------------------------------------


@dataclass(frozen=True)
class ProblemSpec:
    """Sizes and guarantees that a system knows before the first round. It contains no losses.

    Parameters
    ----------
    silos : int
        m, the number of clients.
    horizon : int
        T, the number of rounds.
    experts : int
        d, the number of experts.
    lipschitz : float, default 1
        alpha, the largest absolute value of a gradient coordinate (the L1 Lipschitz constant).
    spread : float, default 1
        Length of an interval that holds every coordinate of every gradient, at most 2 alpha.
    smoothness : float, default 0
        beta: gradients are beta-Lipschitz from the L1 to the maximum norm; 0 for linear losses.
    loss_range : float, default 1
        The largest difference between two values of a loss on the simplex.
    linear : bool, default True
        True if a loss is <l, x> with l in [0, 1]^d.
    iid : bool, default False
        True if losses are drawn independently from one distribution.
    optimal_loss : float, optional
        L*, an upper bound on the best expert's loss at any client; None if there is no guarantee.
    multiplicity : int, default 1
        The largest number of losses, over all clients and rounds, that one record can affect.
    notes : tuple of str
        Caveats about the losses, shown in the certificate.
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
    """Registry entry of a paper's system that predicts from experts: losses but no contexts."""


# ---- Messages ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertReport:
    """One client's message to the server in one exchange.

    Parameters
    ----------
    release : int
        The number of the exchange, from 1.
    values : ndarray, shape (d,)
        One number for each expert.
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
        """Size of the message in bits: 64 for each value."""
        return 64 * len(self.values)


@dataclass(frozen=True)
class ExpertChoice:
    """The server's message to all clients: one expert, or weights over all experts.

    Parameters
    ----------
    release : int
        The number of the exchange; 0 for the choice before the first round.
    expert : int or None
        The chosen expert; None if the message has weights.
    weights : ndarray, shape (d,), optional
        Nonnegative weights that add up to 1; None if the message has an expert.
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

#: A nonlinear loss, given by the function from a point x (d,) to the gradient (d,).
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
    """State of one client: the losses since the last exchange."""

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Add the loss of a round."""
        ...

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """Return the values (d,) to send in an exchange, noise included.

        ``release`` is the number of the exchange, from 1, and ``x`` (d,) the current decision.
        """
        ...


class Decider(Interface):
    """A server, with its state: it chooses the next decision from the clients' sums."""

    def start(self) -> ExpertChoice:
        """Return the choice before the first round."""
        ...

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Return the next choice from the sum (d,) of all clients' values (in client order)."""
        ...

    @property
    def events(self) -> dict[str, int]:
        """Return counts of events by name, for the results."""
        ...


class Stretches(NamedTuple):
    """Losses of n stretches of rounds; the decision is constant within a stretch.

    A server's ``decide_many`` makes all n decisions from it in one call.

    Attributes
    ----------
    sums : ndarray of int64, shape (n, d)
        Loss of each expert in each stretch, summed over clients, in multiples of ``unit``.
    unit : float
        The unit of ``sums`` and ``lost``.
    asks : ndarray of uint8, shape (n,)
        1 if an exchange comes before the stretch.
    lost : ndarray of int64, shape (d,)
        Cumulative loss of each expert before the first stretch, in multiples of ``unit``.
        ``decide_many`` updates it in place to the cumulative loss before the last stretch.
    """

    sums: np.ndarray
    unit: float
    asks: np.ndarray
    lost: np.ndarray


class CompiledRule(NamedTuple):
    """A server's rule for choosing experts, with the numbers by which compiled code applies it.

    Attributes
    ----------
    name : {"leader", "hedge", "sparse"}
        Name of the rule. The other attributes are for "sparse" or "hedge" only.
    spent : bool
        "sparse": True if no switch remains, so that no query is compared with the threshold.
    before : float
        "sparse": cumulative loss of the current expert when it was chosen.
    limit : float
        "sparse": the threshold with its noise.
    query_scale : float
        "sparse": scale of the Laplace noise of a query.
    table : ndarray, shape (n,)
        "hedge": unnormalised weights of experts that have lost 0, ..., n - 1 units more than the
        best expert.
    alone : int
        "hedge": if all others have lost this many units more than the best expert, its weight is 1.
    """

    name: str
    spent: bool = True
    before: float = 0.0
    limit: float = 0.0
    query_scale: float = 0.0
    table: np.ndarray = np.zeros(0)
    alone: int = 0


class Rounds(Interface):
    """Rounds whose losses are coin flips, with an exchange before each round except the first.

    A server's ``decide_rounds`` uses this object to run many rounds, with decisions and regret, in
    one call.

    Attributes
    ----------
    done : int
        The last round that was run.
    lost, latest : ndarray of int64, shape (d,)
        Loss of each expert, added up over all clients: in all rounds, and in the last round.
    """

    done: int
    lost: np.ndarray
    latest: np.ndarray

    def run(
        self, rule: CompiledRule, expert: int, release: int, *, last: int, asks: bool = True
    ) -> tuple[int, int, int]:
        """Run rounds up to ``last``, or up to a decision that compiled code cannot make.

        ``expert`` is the current expert, and ``release`` the number of exchanges so far. ``asks``
        is True if the exchange before the next round is still to take place, and False if it has
        taken place. Return the last expert, the number of exchanges, and how often the expert has
        changed under the rule "leader" (the expert with the least cumulative loss).
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertPlan(ABC):
    """Plan of one curve of experts, in which all clients choose the same x in the simplex.

    Parameters
    ----------
    silos : int
        m, the number of clients.
    horizon : int
        T, the number of rounds.
    experts : int
        d, the number of experts.
    protocol : Protocol
        The messages, and the trust model.
    linear : bool, default True
        True if losses are vectors in [0, 1]^d.
    privacy : Claim, optional
        The privacy claim of the plan; None for no claim.
    """

    driver: ClassVar[str] = "experts"
    example: ClassVar[str] = "one of experts, such as system.plan of fed-svt"
    parties: ClassVar[str] = "it is for ExpertClient(plan, index) and ExpertServer(plan)"
    #: What clients send: "sums" of their losses, or "scores" of experts computed from gradients.
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
        """Total number of exchanges of messages."""

    @abstractmethod
    def exchanges_before(self, round: int) -> int:
        """Return the number of exchanges that must be completed before a round."""

    @abstractmethod
    def asking_rounds(self, last: int) -> np.ndarray:
        """Return the rounds up to ``last`` that begin with an exchange, ascending."""

    @abstractmethod
    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Return the initial state of client ``index``."""

    @abstractmethod
    def decider(self, noise: NoiseSource) -> Decider:
        """Return a server in its initial state, which draws from ``noise``."""

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """Return the decision (d,) that follows decision x (d,) after the server's choice."""
        if choice.weights is not None:
            return choice.weights
        if x is not None and x[choice.expert] == 1.0:
            return x
        x_next = np.zeros(self.experts)
        x_next[choice.expert] = 1.0
        return x_next

    def memory(self) -> int:
        """Return the bytes that the clients store between exchanges; by default one sum (d,)."""
        return 8 * self.experts

    def gradient_memory(self) -> int:
        """Return the bytes of gradients that a simulation of all clients holds at a time."""
        return 0

    def sends_weights(self, release: int) -> bool:
        """Return True if the server answers exchange ``release`` with weights, not an expert."""
        return False

    def bits_up(self, exchanges: np.ndarray) -> np.ndarray:
        """Return the bits that all clients send in k exchanges, for each k in ``exchanges``."""
        return 64.0 * self.experts * self.silos * exchanges

    def bits_down(self, exchanges: np.ndarray) -> np.ndarray:
        """Return the bits sent to all clients in k exchanges, for each k in ``exchanges``.

        One expert is sent at the start and one in each exchange.
        """
        return 64.0 * self.silos * (exchanges + 1)


def check_expert_plan(plan: object) -> ExpertPlan:
    """Return the plan if it is an ExpertPlan whose recomputed privacy equals the sealed values."""
    expert_plan = of_kind(plan, ExpertPlan)  # type: ignore[type-abstract]
    verify(expert_plan)
    return expert_plan


def start_expert(experts: int, noise: NoiseSource) -> int:
    """Draw the uniformly random expert of the first round."""
    return int(noise.uniform(CHOICE, 0) * experts)


def choices_of(plan: ExpertPlan, noise: OneLoss, protocol: Protocol) -> tuple[PrivacyEvent, ...]:
    """Return the privacy events of a plan whose server chooses all clients' expert by a mechanism.

    ``noise`` is the event for the replacement of one loss under the server's mechanism. It is
    extended to all losses of one record. Raises InputError if the plan's protocol is not
    ``protocol``, if the plan's losses are not linear, or if the mechanism's budget differs from the
    claimed budget.
    """
    check_protocol(plan, protocol)
    check_budget(noise, plan.privacy)
    if not plan.linear:
        raise InputError(f'protocol "{protocol.id}" needs linear losses, got linear = False')
    return (per_record(noise, plan.privacy or Claim(source="none")),)


def check_protocol(plan: ExpertPlan, *supported: Protocol) -> None:
    """Raise InputError unless the plan's protocol equals one of ``supported`` in every field."""
    if plan.protocol not in supported:
        names = " or ".join(f'"{protocol.id}"' for protocol in supported)
        raise InputError(
            f"protocol of a {type(plan).__name__} must be {names} as it is registered, got "
            f"{show(plan.protocol)}"
        )


# ---- Text that certificates of experts share -----------------------------------------------------

#: Who is protected, and the outputs that the guarantee is about.
USER = "a user is one loss function of one client in one round"
PROTECTS_CHOICES = f"{USER}; what is protected is what is played"
PROTECTS_MESSAGES = f"{USER}; what is protected is what the client sends"
#: Neighbour relation of a guarantee for one loss, where a record can affect several losses.
ONE_LOSS = "neighbours differ in one loss of one client in one round"
#: Caveat for protocols with a trusted server.
RAW_MESSAGES = "clients send the server raw numbers: it is trusted, and nobody else may see them"
BUDGET_EXCEEDED = "the claimed budget is not met; the exact value is what holds"


def budget_exceeded(uses: int) -> str:
    """Return the caveat for an exact epsilon above the claimed one.

    ``uses`` is the number of losses of one record that the account covers.
    """
    if uses == 1:
        return BUDGET_EXCEEDED
    return (
        f"one record can be behind {uses} losses, and the noise is for one: the exact value is of "
        "all of these replaced together"
    )


def multiplicity_condition(uses: int, multiplicity: int) -> Condition:
    """Return the certificate's condition that the account covers all losses of one record.

    The account covers ``uses`` losses, and a record affects at most ``multiplicity`` losses.
    """
    times = "two losses" if uses == 1 else f"more than {uses} losses"
    text = f"no record is behind {times} (by how losses are made, or declared)"
    return Condition(text, multiplicity <= uses)


# ---- Plans whose clients send sums of losses -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SumsPlan(ExpertPlan):
    """Plan whose clients send sums of losses before rounds N, 2 N, ... (gao-2024, Algorithm 4).

    For N = 1 the first exchange is before round 2, because no losses are known before round 1.

    Parameters
    ----------
    phase_length : int
        N, the number of rounds between two exchanges.
    """

    phase_length: int

    @property
    def exchanges(self) -> int:
        """Return the total number of exchanges."""
        return self.exchanges_before(self.horizon)

    def exchanges_before(self, round: int) -> int:
        """Return the number of exchanges that must be completed before a round."""
        last = min(round, self.horizon)
        return last // self.phase_length - (self.phase_length == 1)

    def asking_rounds(self, last: int) -> np.ndarray:
        """Return the rounds up to ``last`` that begin with an exchange, ascending."""
        return np.arange(max(self.phase_length, 2), last + 1, self.phase_length)

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Return the initial state of client ``index``."""
        points = self.silos * self.horizon
        return SumCollector(self.experts, exact.quantum(points) if is_exact(noise) else None)


@released.register
def _(plan: SumsPlan) -> tuple[PrivacyEvent, ...] | None:
    """Return the released events: raw sums if the protocol has no noise, else None (unknown)."""
    # A plan from another package that adds noise must register its own events.
    return (RawData(),) if plan.protocol.noise_by == "none" else None


@account.register
def _certificate(plan: SumsPlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate of a plan that sends sums without noise."""
    if released(plan) is None:
        raise InputError(f"plan must be one that fastfed accounts for, got {type(plan).__name__}")
    claim = plan.privacy or Claim(source=plan.protocol.source)
    return no_privacy(claim.source, caveats=claim.caveats)


class SumCollector:
    """State of one client: the noiseless sum of its losses since the last report.

    If ``unit`` is given, losses are rounded to its multiples so that sums are exact. It is None for
    inexact noise sources, as in simulations.
    """

    def __init__(self, experts: int, unit: float | None = None) -> None:
        self._sum, self._unit = np.zeros(experts), unit

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Add the losses (d,) of a round to the sum."""
        assert isinstance(loss, np.ndarray)
        aggregation.add(self._sum, loss if self._unit is None else exact.quantise(loss, self._unit))

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """Return the sum (d,) and reset it to zero."""
        total, self._sum = self._sum, np.zeros_like(self._sum)
        return total


def check_linear(algorithm: str, problem: ProblemSpec) -> None:
    """Raise InputError unless losses are linear (one loss for each expert)."""
    if not problem.linear:
        raise InputError(
            f"{algorithm} needs linear losses, one number for each expert; these are not"
        )


class BudgetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a curve with a privacy budget. Algorithms add keys in subclasses.

    Parameters
    ----------
    epsilon : float
        Privacy budget for one record, in [1e-9, 1e6].
    delta : float, default 0
        Privacy budget for one record, in [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, at_least=1e-9, at_most=1e6)
        number("delta", self.delta, at_least=0.0, below=1.0)

    @property
    def budget(self) -> Budget:
        """The (epsilon, delta) of one record, which is replaced."""
        return Budget(self.epsilon, self.delta, "replace", "user")


def check_phase_length(length: int, problem: ProblemSpec) -> int:
    """Return N. Raise InputError unless N is from 1 to the horizon."""
    integer("phase_length", length, at_least=1)
    if length > problem.horizon:
        raise InputError(f"phase_length must be <= horizon ({problem.horizon}), got {length}")
    return length
