"""What silo, hub and helper share: steps, clocks, and the process that runs a party on disk.

All writes of a step are durable, in order, before its first message is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastfed.deployment.guard import Limits, Range
from fastfed.deployment.ledger import Charge, Ledger, Store, Write
from fastfed.deployment.model import Decision
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import clocks_differ
from fastfed.deployment.seal import Identity
from fastfed.deployment.wire import Body, Refused

if TYPE_CHECKING:
    from fastfed.deployment.silo import SiloParty


class Message(NamedTuple):
    """A signed message and the name of the party that it is for."""

    to: str
    data: bytes


class ClockReading(NamedTuple):
    """A sender's clock reading: its clock showed ``time`` after the reader's showed ``after``."""

    name: str
    time: float
    after: float


class Step(NamedTuple):
    """What a party's process does next: make the writes durable in order, then send the messages.

    ``problem`` says what was wrong, for the log and the status; empty if nothing was.
    """

    writes: tuple[Write | Charge, ...] = ()
    messages: tuple[Message, ...] = ()
    problem: str = ""


class Party(Protocol):
    """Interface of a party: a state machine whose durable state is the fold of its writes.

    `handle` and `tick` do not change the durable state; only `fold` does. They may change the state
    of this process, which a party requests again after a restart.
    """

    name: str
    #: Seconds by which this machine's clock is ahead of the others' (negative: behind).
    ahead: float
    #: The clock reading of the last message's sender, if it had one.
    clock_reading: ClockReading | None
    #: See `Speaker.unanswered_since`.
    unanswered_since: float | None

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message; Refused if it is not accepted."""
        ...

    def tick(self, now: float) -> Step:
        """Do what is due at a time. Called again until it returns no writes."""
        ...

    def fold(self, write: Write) -> None:
        """Apply a durable write to the state."""
        ...


class Speaker:
    """Base of the parties: name, keys, signed messages and clock."""

    def __init__(self, deployed: DeployedPlan, name: str, seed: bytes) -> None:
        self.deployed, self.name = deployed, name
        self.plan, self.wire = deployed.plan, deployed.wire
        self.identity: Identity = deployed.identity(name, seed)
        #: See `SteadyClock.ahead`. Of this machine's time and the others', the earlier counts.
        self.ahead = 0.0
        self.clock_reading: ClockReading | None = None
        #: Start of the first call to the hub that no answer was accepted for; 0 if the last call
        #: failed, None if one was accepted since.
        self.unanswered_since: float | None = None

    @cached_property
    def agreement(self) -> bytes:
        """Countersignature of the plan by this party, sent with every `Join`."""
        return self.deployed.agreed(self.identity)

    def signed(self, release: int, body: Body) -> bytes:
        """Encode and sign a message of this party."""
        return self.wire.signed(self.identity, self.name, release, body)

    def unanswered(self, now: float) -> bool:
        """Return True if the last call failed, or has waited for more than `LATE` seconds."""
        return self.unanswered_since is not None and now > self.unanswered_since + LATE

    def own_time(self, now: float) -> float:
        """Convert ``now``, the time that counts, to the time of this machine's clock."""
        return now + max(self.ahead, 0.0)

    def _store_clock_reading(self, sender: str, time: float, after: float) -> None:
        """Store the clock reading of a message; Refused for a time that no clock can show."""
        for seconds in (time, after):
            if not 0.0 <= seconds < LATEST:
                raise Refused(f"the time of {sender} must be in seconds since 1970, got {seconds}")
        self.clock_reading = ClockReading(sender, time, after) if time else None

    def waits(self, now: float) -> dict[str, Any]:
        """Report what this party waits for and since when, as a row of `progress.WAITS`.

        If the clocks differ and only this machine's clock says that something is due, the party
        waits for the clocks.
        """
        waits_now, waits_later = self._waits(now), self._waits(now + abs(self.ahead))
        idle = waits_now["state"] == "open" or (
            waits_now["state"] == "hub" and not self.unanswered(now)
        )
        if not self.ahead or not idle or waits_later["state"] == "open":
            return waits_now
        return waits_now | clocks_differ(waits_later["since"], self._others())

    def _waits(self, now: float) -> dict[str, Any]:
        """Report what this party waits for if the time is ``now``."""
        raise NotImplementedError

    def _others(self) -> list[str]:
        """Return the names of the parties that this one exchanges messages with."""
        return [self.deployed.document.hub.name]

    def _limits(self) -> Limits:
        """Return the ranges that values in this plan's messages can have."""
        return Range(self.plan)


# ---- on disk -------------------------------------------------------------------------------------

Clock = Callable[[], float]
#: A jump of the wall clock by more than DOUBTED seconds is ignored at first. It is believed once it
#: has stayed the same for BELIEVED seconds.
DOUBTED, BELIEVED = 30.0, 600.0
#: Seconds that an answer may take before the status says that the party waits for it.
LATE = 5.0
#: Times in messages must be below this one, which is far beyond every calendar.
LATEST = 2.0**40


def monotonic_seconds() -> float:
    """Return monotonic seconds, including time when the machine was suspended where possible."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SteadyClock:
    """A wall clock that ignores short-lived jumps and is never later than the others' clocks.

    Closing a leaf cannot be undone, so a single wrong clock must not close one.

    - A jump is a reading that differs from the last reading plus the monotonic time since. It is
      ignored: the clock continues from the last reading. The wall clock is believed again once the
      jump has stayed the same for `BELIEVED` seconds, or once it agrees with the other clocks.
    - Other parties put their time into messages that they sign. If this clock is certainly more
      than `DOUBTED` seconds ahead of the median of their clocks, their time counts. So a silo
      closes a leaf when both its clock and the hub's may say that the period is over. A hub ends a
      grace period when its clock and the clocks of half of the silos may say so. A clock that is
      behind is not corrected.

    Parameters
    ----------
    wall : callable
        Returns seconds since 1970.
    monotonic : callable
        Returns seconds since any fixed point; never decreases.
    """

    def __init__(self, wall: Clock = time.time, monotonic: Clock = monotonic_seconds) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._last_reading, self._read_at = wall(), monotonic()
        self._jump, self._jump_since = 0.0, self._read_at
        #: Party -> lower and upper bound of its time minus this machine's monotonic time, and the
        #: monotonic time of the message that it had read.
        self._others: dict[str, tuple[float, float, float]] = {}
        #: Seconds by which the wall clock is off while it is ignored; else 0.
        self.off = 0.0
        #: Seconds by which this clock is ahead of the others' (negative: behind) if that is more
        #: than `DOUBTED`; else 0.
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return seconds since 1970."""
        with self._lock:
            wall, at = self._wall(), self._monotonic()
            reading = self._steady(wall, at)
            self.ahead = self._ahead(reading, at)
            self.off = self._jump or self.ahead
            return reading - max(self.ahead, 0.0)

    def add_reading(self, said: ClockReading) -> None:
        """Update the bounds on another party's clock.

        The other clock was read after this one showed ``said.after`` and before now. That gives two
        bounds on the other clock, which are as far apart as the message and its answer took. A
        message that answers an earlier question than the last one was delayed or sent again, and
        changes nothing.
        """
        with self._lock:
            at = self._monotonic()
            elapsed = self._last_reading + (at - self._read_at) - said.after
            if not said.after or elapsed < -1.0:
                # The sender has read no message of this party, or this clock was set back since.
                return
            elapsed = max(elapsed, 0.0)
            asked_at = at - elapsed
            if said.name in self._others and asked_at < self._others[said.name][2] - 1.0:
                return
            self._others[said.name] = said.time - at, said.time - at + elapsed, asked_at

    def _ahead(self, reading: float, at: float) -> float:
        """Return the seconds by which a reading is ahead of the others' median clock.

        Differences up to `DOUBTED` seconds count as 0. Of two other clocks, the one that differs
        less counts.
        """
        differences = [0.0] if not self._others else []
        for least, most, _ in self._others.values():
            ahead, behind = reading - (at + most), reading - (at + least)
            differences.append(ahead if ahead > DOUBTED else behind if behind < -DOUBTED else 0.0)
        differences.sort()
        lower, upper = differences[(len(differences) - 1) // 2], differences[len(differences) // 2]
        return max(lower, 0.0) or min(upper, 0.0)

    def _agrees(self, reading: float, at: float) -> bool:
        """Return True if the others' median clock certainly shows this, up to `DOUBTED` seconds."""
        bounds = [
            (reading - at - least, reading - at - most) for least, most, _ in self._others.values()
        ]
        errors = sorted(max(map(abs, pair)) for pair in bounds)
        return bool(errors) and errors[len(errors) // 2] <= DOUBTED

    def _steady(self, wall: float, at: float) -> float:
        """Return this machine's time without short-lived jumps."""
        expected = self._last_reading + (at - self._read_at)
        jump = wall - expected
        if abs(jump) > DOUBTED and not self._agrees(wall, at):
            if abs(jump - self._jump) > DOUBTED:
                self._jump, self._jump_since = jump, at
            if at - self._jump_since < BELIEVED:
                return expected
        self._last_reading, self._read_at, self._jump = wall, at, 0.0
        return wall


class Process:
    """Run one party on a store; safe to call from several threads.

    Parameters
    ----------
    party : Party
        A new party, to which all writes in the store are applied.
    store : Store
        The writes of this party under this plan.
    ledger : Ledger, optional
        The ledger that is charged; for silos only.
    clock : callable, optional
        Returns seconds since 1970. By default a `SteadyClock`.

    Raises
    ------
    InputError
        If the store belongs to a different plan or party, or its log is broken.
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
        self._lock = threading.RLock()
        #: What the last tick could not do, such as charge above a ceiling; empty if it did all.
        self.problem = ""
        digest: bytes = party.deployed.digest  # type: ignore[attr-defined]
        store.write(Write("plan", "", digest + party.name.encode()))
        for write in store.writes():
            party.fold(write)

    def turn(self) -> threading.RLock:
        """Return the lock to hold while reading the party of a running process."""
        return self._lock

    def close(self) -> None:
        """Close the files of this process."""
        for files in (self.store, self.ledger):
            if files is not None:
                files.close()

    def status(self) -> dict[str, object]:
        """Return the party's status, with ``clock_off`` in seconds while the clock is ignored."""
        party: Any = self.party
        status: dict[str, object] = party.status(self.now())
        return status | ({"clock_off": self.clock_off} if self.clock_off else {})

    @property
    def clock_off(self) -> float:
        """Seconds by which this machine's clock is off while it is ignored; else 0."""
        return float(getattr(self.clock, "off", 0.0))

    def now(self) -> float:
        """Return the time that counts, and tell the party how far ahead this machine's clock is."""
        now = self.clock()
        self.party.ahead = getattr(self.clock, "ahead", 0.0)
        return now

    def make_durable(self, step: Step) -> tuple[Message, ...]:
        """Make the writes of a step durable; return its messages, which may then be sent."""
        for write in step.writes:
            if isinstance(write, Charge):
                assert self.ledger is not None
                self.ledger.charge(write)
            elif self.store.write(write):
                self.party.fold(write)
        return step.messages

    def handle(self, data: bytes) -> tuple[Step, tuple[Message, ...]]:
        """Process a message. If it is Refused, no state changes.

        Returns the step, and the messages to send: the messages of the step and of the steps that
        became possible by it. Messages that only repeat a question wait for the next `tick`, so
        that two parties do not answer each other for ever.
        """
        with self._lock:
            try:
                step = self.party.handle(data, self.now())
            finally:
                # Use the clock reading even if the message is refused because clocks differ.
                clock_reading, self.party.clock_reading = self.party.clock_reading, None
                if clock_reading is not None and isinstance(self.clock, SteadyClock):
                    self.clock.add_reading(clock_reading)
            messages = self.make_durable(step)
            return step, (*messages, *self._run_due_steps()[0])

    def tick(self) -> tuple[Message, ...]:
        """Do everything that is due now; return the messages to send."""
        with self._lock:
            sent, last = self._run_due_steps()
            self.problem = last.problem or self._clock_problem()
            # The last step repeats unconfirmed messages, so messages made just now are in both.
            return (*sent, *(message for message in last.messages if message not in sent))

    def _clock_problem(self) -> str:
        """Return a text that this machine's clock is ignored; empty if it is not."""
        if not self.clock_off:
            return ""
        return (
            "this machine's clock is not that of the other parties, or has jumped; the earlier "
            "time counts: set it, see clock_off in the status"
        )

    def _run_due_steps(self) -> tuple[tuple[Message, ...], Step]:
        """Run steps until one writes nothing; return the earlier steps' messages and that step."""
        messages: tuple[Message, ...] = ()
        while True:
            step = self.party.tick(self.now())
            if not step.writes:
                return messages, step
            messages += self.make_durable(step)


class SiloProcess(Process):
    """Run a silo on disk and serve its local application."""

    party: SiloParty

    def decide(
        self,
        actions: object = None,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> Decision:
        """Choose an action for one person, see `SiloParty.decide`; durable on return."""
        with self._lock:
            now = self.now()
            step, decision = self.party.decide(actions, now, subject, record=record, among=among)
            self.make_durable(step)
            return decision

    def reward(self, name: str, reward: float) -> None:
        """Record the reward of a decision, see `SiloParty.reward`; durable on return."""
        with self._lock:
            self.make_durable(self.party.reward(name, reward, self.now()))

    def outcome(self, name: str, value: object) -> None:
        """Record the outcome of a decision, see `SiloParty.outcome`; durable on return."""
        with self._lock:
            self.make_durable(self.party.outcome(name, value, self.now()))

    def losses(self, name: str, losses: object) -> None:
        """Record the losses of all experts, see `ExpertSilo.losses`; durable on return."""
        with self._lock:
            self.make_durable(self.party.losses(name, losses, self.now()))

    def cancel(self, name: str) -> None:
        """End a decision without a reward; durable on return."""
        with self._lock:
            self.make_durable(self.party.cancel(name, self.now()))

    def leave(self) -> None:
        """Leave the federation; the next message tells the hub."""
        with self._lock:
            self.make_durable(self.party.leave())

    def recover(self) -> None:
        """Recover from reports that this silo's state has lost, see `SiloParty.recover`."""
        with self._lock:
            self.make_durable(self.party.recover())
