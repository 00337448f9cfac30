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
from fastfed.deployment.progress import clocks_differ
from fastfed.deployment.seal import Identity
from fastfed.deployment.wire import Body, Refused

if TYPE_CHECKING:
    from fastfed.deployment.silo import SiloParty


class Message(NamedTuple):
    """Bytes for a party."""

    to: str
    data: bytes


class Said(NamedTuple):
    """What a party says: its clock showed ``time`` after the reader's own showed ``after``."""

    name: str
    time: float
    after: float


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
    #: By how many seconds this machine's clock is ahead of the others' (less than 0: behind).
    ahead: float
    #: What the last message said of its sender's clock.
    clock_said: Said | None

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
        #: See `SteadyClock.ahead`; the time that counts is the earlier of the two.
        self.ahead = 0.0
        self.clock_said: Said | None = None
        #: When the question was asked that has no answer yet; None if all have one.
        self.asked: float | None = None

    @cached_property
    def agreement(self) -> bytes:
        """This party's countersignature of the plan, which goes with every `join`."""
        return self.deployed.agreed(self.identity)

    def made(self, release: int, body: Body) -> bytes:
        """A signed message of this party."""
        return self.wire.made(self.identity, self.name, release, body)

    def unanswered(self, now: float) -> bool:
        """True if the hub does not answer, or has not yet although it had the time."""
        return self.asked is not None and now > self.asked + LATE

    def own_time(self, now: float) -> float:
        """What this machine's clock says, where ``now`` is the time that counts."""
        return now + max(self.ahead, 0.0)

    def _says(self, sender: str, time: float, after: float) -> None:
        """Note what a message says of its sender's clock; Refused for what no clock can show."""
        for shown in (time, after):
            if not 0.0 <= shown < LATEST:
                raise Refused(f"the time of {sender} must be in seconds since 1970, got {shown}")
        self.clock_said = Said(sender, time, after) if time else None

    def waits(self, now: float) -> dict[str, Any]:
        """What this party waits for now and since when, see `progress.WAITS`."""
        found, later = self._waits(now), self._waits(now + abs(self.ahead))
        idle = found["state"] == "open" or (found["state"] == "hub" and not self.unanswered(now))
        if not self.ahead or not idle or later["state"] == "open":
            return found
        return found | clocks_differ(later["since"], self._others())

    def _waits(self, now: float) -> dict[str, Any]:
        """What this party waits for if it is now."""
        raise NotImplementedError

    def _others(self) -> list[str]:
        """The parties that this one exchanges messages with."""
        return [self.deployed.document.hub.name]

    def _limits(self) -> Range:
        """What messages of the plan can hold."""
        return Range(self.plan)


# ---- on disk -------------------------------------------------------------------------------------

Clock = Callable[[], float]
#: A wall clock may differ from the time that has passed by so many seconds without being doubted,
#: and is believed all the same once it has differed by one amount for so long.
DOUBTED, BELIEVED = 30.0, 600.0
#: Seconds that an answer may take before a status says that it is waited for.
LATE = 5.0
#: The latest time that a party can say, far beyond every calendar.
LATEST = 2.0**40


def passed() -> float:
    """Seconds that have passed, those of a suspended machine included where the system has them."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SteadyClock:
    """The wall clock, but for jumps that do not last, and never later than the others' clocks.

    Closing a leaf cannot be undone, so one wrong clock must not close any.

    - A reading that is not where the last one and the time since then lead is not believed: the
      clock goes on from the last one. Once the wall clock has been off by the same amount for
      `BELIEVED` seconds, or agrees with the clocks of the others, it is believed again.
    - Other parties say the time in messages that they sign. Where this clock is more than
      `DOUBTED` seconds ahead of theirs (of the median of them), theirs counts: a silo closes a leaf
      when its own clock and the hub's say so, and a hub ends a grace period when its own clock and
      those of half of the silos do. A clock that is behind counts as it is.

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
        #: By party: its time less the monotonic one, at least and at most.
        self._others: dict[str, tuple[float, float]] = {}
        #: By how many seconds the wall clock is off, while it is not what counts; else 0.
        self.off = 0.0
        #: By how many seconds this clock is ahead of the others' (less than 0: behind), where it
        #: is by more than `DOUBTED`; else 0.
        self.ahead = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        with self._turn:
            wall, at = self._wall(), self._monotonic()
            own = self._steady(wall, at)
            self.ahead = self._ahead(own, at)
            self.off = self._jump or self.ahead
            return own - max(self.ahead, 0.0)

    def heard(self, said: Said) -> None:
        """Take in what another party says of its clock.

        It said so after this clock was at ``said.after``, and before now. However long the message
        took, and if an old one is sent again, that bounds what the other clock shows.
        """
        with self._turn:
            at = self._monotonic()
            took = self._last + (at - self._at) - said.after
            if not said.after or took < -1.0:
                # Nothing was heard before, or this clock was set back since then.
                return
            least, most = said.time - at, said.time - at + max(took, 0.0)
            before = self._others.get(said.name, (least, most))
            if before[0] <= most and least <= before[1]:
                least, most = max(least, before[0]), min(most, before[1])
            self._others[said.name] = least, most

    def _ahead(self, reading: float, at: float) -> float:
        """By how many seconds a reading is ahead of the others' clocks, 0 up to `DOUBTED`."""
        found = []
        for least, most in self._others.values():
            ahead, behind = reading - (at + most), reading - (at + least)
            found.append(ahead if ahead > DOUBTED else behind if behind < -DOUBTED else 0.0)
        # Of two, what the clock that is further on says.
        return sorted(found)[(len(found) - 1) // 2] if found else 0.0

    def _steady(self, wall: float, at: float) -> float:
        """This machine's time, without jumps that do not last."""
        expected = self._last + (at - self._at)
        jump = wall - expected
        if abs(jump) > DOUBTED and (not self._others or self._ahead(wall, at)):
            if abs(jump - self._jump) > DOUBTED:
                self._jump, self._since = jump, at
            contradicted = bool(self._others) and not self._ahead(expected, at)
            if contradicted or at - self._since < BELIEVED:
                return expected
        self._last, self._at, self._jump = wall, at, 0.0
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
        found: dict[str, object] = party.status(self.now())
        return found | ({"clock_off": self.clock_off} if self.clock_off else {})

    @property
    def clock_off(self) -> float:
        """By how many seconds this machine's clock is off, while it is not what counts; else 0."""
        return float(getattr(self.clock, "off", 0.0))

    def now(self) -> float:
        """The time that counts; the party learns how far this machine's clock is from it."""
        now = self.clock()
        self.party.ahead = getattr(self.clock, "ahead", 0.0)
        return now

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
            try:
                step = self.party.handle(data, self.now())
            finally:
                # Also of a message that is refused because clocks differ.
                said, self.party.clock_said = self.party.clock_said, None
                if said is not None and isinstance(self.clock, SteadyClock):
                    self.clock.heard(said)
            messages = self.done(step)
            return step, (*messages, *self._ticked()[0])

    def tick(self) -> tuple[Message, ...]:
        """Do what the time asks for."""
        with self._turn:
            sent, last = self._ticked()
            self.problem = last.problem or self._clock_problem()
            # What was made a moment ago is not confirmed yet, and would be sent twice.
            return (*sent, *(message for message in last.messages if message not in sent))

    def _clock_problem(self) -> str:
        if not self.clock_off:
            return ""
        return (
            "this machine's clock is not that of the other parties, or has jumped; the earlier "
            "time counts: set it, see clock_off in the status"
        )

    def _ticked(self) -> tuple[tuple[Message, ...], Step]:
        """Messages of all steps that wrote something, and the last step, which does not."""
        sent: tuple[Message, ...] = ()
        while True:
            step = self.party.tick(self.now())
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
            now = self.now()
            step, decision = self.party.decide(actions, now, subject, record=record, among=among)
            self.done(step)
            return decision

    def reward(self, name: str, reward: float) -> None:
        """The reward of a decision, see `SiloParty.reward`; durable when it returns."""
        with self._turn:
            self.done(self.party.reward(name, reward, self.now()))

    def outcome(self, name: str, value: object) -> None:
        """The outcome of a decision, see `SiloParty.outcome`; durable when it returns."""
        with self._turn:
            self.done(self.party.outcome(name, value, self.now()))

    def losses(self, name: str, losses: object) -> None:
        """What all experts have lost, see `SiloParty.losses`; durable when it returns."""
        with self._turn:
            self.done(self.party.losses(name, losses, self.now()))

    def cancel(self, name: str) -> None:
        """End a decision without a reward; durable when it returns."""
        with self._turn:
            self.done(self.party.cancel(name, self.now()))

    def leave(self) -> None:
        """Leave the federation; the hub hears of it with the next message."""
        with self._turn:
            self.done(self.party.leave())

    def recover(self) -> None:
        """Make up for what was sent but is not in this silo's state, see `SiloParty.recover`."""
        with self._turn:
            self.done(self.party.recover())
