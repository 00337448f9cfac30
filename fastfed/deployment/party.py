"""What silo, hub and helper have in common: steps, and a process that runs a party on disk.

The writes of a step are durable, in order, before a message leaves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastfed.deployment.guard import Range
from fastfed.deployment.ledger import Charge, Ledger, Store, Write
from fastfed.deployment.model import Decision
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import Identity
from fastfed.deployment.wire import Body

if TYPE_CHECKING:
    from fastfed.deployment.silo import SiloParty


class Message(NamedTuple):
    """Bytes for a party."""

    to: str
    data: bytes


class Step(NamedTuple):
    """What a party wants done: writes, one after the other, each durable, and then messages.

    problem: what was wrong with the message, where the party keeps a note of it.
    """

    writes: tuple[Write | Charge, ...] = ()
    messages: tuple[Message, ...] = ()
    problem: str = ""


class Party(Protocol):
    """Interface of a party: a pure state machine, whose state is the fold of its writes.

    Neither method changes what the party would do next, except by what `fold` is then told, and by
    what it has heard since it was started, which it asks for again after a restart.
    """

    name: str

    def handle(self, data: bytes, now: float) -> Step:
        """What a message leads to; Refused for one that is not accepted."""
        ...

    def tick(self, now: float) -> Step:
        """What the time leads to; asked again until it writes nothing."""
        ...

    def fold(self, write: Write) -> None:
        """Take in a write that is durable."""
        ...


class Speaker:
    """A party's name, keys and mail."""

    def __init__(self, deployed: DeployedPlan, name: str, seed: bytes) -> None:
        self.deployed, self.name = deployed, name
        self.plan, self.wire = deployed.plan, deployed.wire
        self.identity: Identity = deployed.identity(name, seed)

    @cached_property
    def agreement(self) -> bytes:
        """This party's countersignature of the plan, which goes with every `join`."""
        return self.deployed.agreed(self.identity)

    def made(self, release: int, body: Body) -> bytes:
        """A signed message of this party."""
        return self.wire.made(self.identity, self.name, release, body)

    def _limits(self) -> Range:
        """What messages of the plan can hold."""
        return Range(self.plan)


# ---- on disk -------------------------------------------------------------------------------------

Clock = Callable[[], float]
#: A wall clock may differ from the time that has passed by so many seconds without being doubted,
#: and is believed all the same once it has differed by one amount for so long.
DOUBTED, BELIEVED = 30.0, 600.0


def passed() -> float:
    """Seconds that have passed, those of a suspended machine included where the system has them."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SteadyClock:
    """The wall clock, but for jumps that do not last.

    Closing a leaf cannot be undone, so one wrong reading of a clock must not close any. A reading
    that is not where the last one and the time since then lead is not believed: the clock goes on
    from the last one. Once the wall clock has been off by the same amount for `BELIEVED` seconds
    it is believed again.

    Parameters
    ----------
    wall, monotonic : callable
        Seconds since 1970, and seconds since any point that only ever increase.
    """

    def __init__(self, wall: Clock = time.time, monotonic: Clock = passed) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._turn = threading.Lock()
        self._last, self._at = wall(), monotonic()
        self._jump, self._since = 0.0, self._at
        #: By how many seconds the wall clock is off, while it is not believed; else 0.
        self.off = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        with self._turn:
            wall, at = self._wall(), self._monotonic()
            expected = self._last + (at - self._at)
            jump = wall - expected
            if abs(jump) > DOUBTED:
                if abs(jump - self._jump) > DOUBTED:
                    self._jump, self._since = jump, at
                if at - self._since < BELIEVED:
                    self.off = jump
                    return expected
            self._last, self._at, self._jump, self.off = wall, at, 0.0, 0.0
            return wall


class Process:
    """Runs one party on a store; safe to call from several threads.

    Parameters
    ----------
    party : Party
        A new one; it is told all that the store holds.
    store : Store
        Its writes, of this plan only.
    ledger : Ledger, optional
        Where charges go; of silos only.
    clock : callable, optional
        Seconds since 1970; by default a `SteadyClock`.

    Raises
    ------
    InputError
        If the store is another plan's or party's, or its log is broken.
    """

    def __init__(
        self,
        party: Party,
        store: Store,
        ledger: Ledger | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.party, self.store, self.ledger = party, store, ledger
        self.clock: Clock = SteadyClock() if clock is None else clock
        self._turn = threading.RLock()
        #: What the last tick could not do, such as spend more than a ceiling; empty if nothing.
        self.problem = ""
        digest: bytes = party.deployed.digest  # type: ignore[attr-defined]
        store.write(Write("plan", "", digest + party.name.encode()))
        for write in store.writes():
            party.fold(write)

    def turn(self) -> threading.RLock:
        """The lock of this process, for whoever reads its party while it works."""
        return self._turn

    def close(self) -> None:
        """Close the files of this process."""
        for files in (self.store, self.ledger):
            if files is not None:
                files.close()

    def status(self) -> dict[str, object]:
        """The party's status now; ``clock_off`` while the wall clock is not believed."""
        party: Any = self.party
        found: dict[str, object] = party.status(self.clock())
        off = getattr(self.clock, "off", 0.0)
        return found | ({"clock_off": off} if off else {})

    def done(self, step: Step) -> tuple[Message, ...]:
        """Make a step's writes durable; returns the messages that may leave now."""
        for write in step.writes:
            if isinstance(write, Charge):
                assert self.ledger is not None
                self.ledger.charge(write)
            elif self.store.write(write):
                self.party.fold(write)
        return step.messages

    def handle(self, data: bytes) -> tuple[Step, tuple[Message, ...]]:
        """Take in a message; Refused leaves everything as it was.

        Returns the step, and its messages with those of what it made possible. Messages that only
        ask again wait for the next `tick`, so that two parties do not talk for ever.
        """
        with self._turn:
            step = self.party.handle(data, self.clock())
            messages = self.done(step)
            return step, (*messages, *self._ticked()[0])

    def tick(self) -> tuple[Message, ...]:
        """Do what the time asks for."""
        with self._turn:
            sent, last = self._ticked()
            self.problem = last.problem
            # What was made a moment ago is not confirmed yet, and would be sent twice.
            return (*sent, *(message for message in last.messages if message not in sent))

    def _ticked(self) -> tuple[tuple[Message, ...], Step]:
        """Messages of all steps that wrote something, and the last step, which does not."""
        sent: tuple[Message, ...] = ()
        while True:
            step = self.party.tick(self.clock())
            if not step.writes:
                return sent, step
            sent += self.done(step)


class SiloProcess(Process):
    """A silo on disk, for its own application."""

    party: SiloParty

    def decide(
        self,
        actions: object = None,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> Decision:
        """Choose for one person, see `SiloParty.decide`; durable when it returns."""
        with self._turn:
            now = self.clock()
            step, decision = self.party.decide(actions, now, subject, record=record, among=among)
            self.done(step)
            return decision

    def reward(self, name: str, reward: float) -> None:
        """The reward of a decision, see `SiloParty.reward`; durable when it returns."""
        with self._turn:
            self.done(self.party.reward(name, reward, self.clock()))

    def outcome(self, name: str, value: object) -> None:
        """The outcome of a decision, see `SiloParty.outcome`; durable when it returns."""
        with self._turn:
            self.done(self.party.outcome(name, value, self.clock()))

    def losses(self, name: str, losses: object) -> None:
        """What all experts have lost, see `SiloParty.losses`; durable when it returns."""
        with self._turn:
            self.done(self.party.losses(name, losses, self.clock()))

    def cancel(self, name: str) -> None:
        """End a decision without a reward; durable when it returns."""
        with self._turn:
            self.done(self.party.cancel(name, self.clock()))

    def leave(self) -> None:
        """Leave the federation; the hub hears of it with the next message."""
        with self._turn:
            self.done(self.party.leave())

    def recover(self) -> None:
        """Make up for what was sent but is not in this silo's state, see `SiloParty.recover`."""
        with self._turn:
            self.done(self.party.recover())
