"""What silo, hub and helper have in common: steps, messages and clocks.

A *party* is a silo, the hub or the helper. A party's logic is a state machine without input and
output: it returns a `Step`, which holds writes (entries to store) and messages. A `Process`
(process.py) makes all writes of a step durable, in order, before it sends the first message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from fastfed.deployment.guard import Limits, Range
from fastfed.deployment.ledger import Charge
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import clocks_differ
from fastfed.deployment.seal import Identity
from fastfed.deployment.store import ORIGIN, Position, Store, Write
from fastfed.deployment.wire import Body, Refused


class Message(NamedTuple):
    """A signed message, and the name of the party that it is addressed to."""

    to: str
    data: bytes


class ClockReading(NamedTuple):
    """What a message states about its sender's clock.

    When the sender, ``name``, made the message, its clock showed ``time``. Before that, the sender
    had received a message from the party that now receives the reading. ``after`` is the time in
    that message, so it is a time of the receiver's clock; 0 if there was no such message.
    """

    name: str
    time: float
    after: float


class Step(NamedTuple):
    """What a party's process must do: first store the writes in order, then send the messages.

    ``problem`` describes an error for the log and the status; it is empty without an error. Each
    entry of ``touches`` is a kind and a key. Steps that have such an entry, or the kind and key of
    a write, in common are made durable one after the other.
    """

    writes: tuple[Write | Charge, ...] = ()
    messages: tuple[Message, ...] = ()
    problem: str = ""
    touches: tuple[tuple[str, str], ...] = ()


class Party(Protocol):
    """Interface of a party: a state machine whose stored state is computed from its writes.

    Only `fold` changes the stored state. `handle` and `tick` return the writes for `fold`. They may
    also change state that is in memory only; after a restart, messages of other parties restore
    that state.
    """

    name: str
    #: Seconds by which this machine's clock is ahead of other parties' clocks (negative: behind).
    ahead: float
    #: The clock reading in the last message that was handled, if it had one.
    clock_reading: ClockReading | None
    #: See `Speaker.unanswered_since`.
    unanswered_since: float | None

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message; raise Refused if it is not accepted."""
        ...

    def tick(self, now: float) -> Step:
        """Return the step that is due at time ``now``. Called again until a step has no writes."""
        ...

    def fold(self, write: Write) -> None:
        """Apply a stored write to the state."""
        ...

    #: Kinds of writes whose effect on the state is in a snapshot.
    summarised: ClassVar[tuple[str, ...]]
    #: Number of writes of calls that are computed but not durable yet.
    in_flight: int

    def attach(self, store: Store) -> None:
        """Set the store from which the party reads values of earlier writes."""
        ...

    def upgrade(self) -> tuple[Write, ...]:
        """Return writes that a log of an earlier version lacks."""
        ...

    def snapshot(self, covers: Covered) -> dict[str, bytes]:
        """Return the parts of a snapshot that have changed since the last call; empty if none."""
        ...

    def snapshot_saved(self) -> None:
        """Note that the parts of the last call to `snapshot` are stored."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> Covered:
        """Set the state from the parts of a snapshot.

        Return what the snapshot covers, or `UNCOVERED` if it is not valid.
        """
        ...


class Covered(NamedTuple):
    """What a snapshot covers: the log up to ``position``.

    ``others`` is the hash of the writes up to that position whose kinds are not in
    `Party.summarised`.
    """

    position: Position = ORIGIN
    others: bytes = bytes(32)


UNCOVERED = Covered()


class Speaker:
    """Base class of the parties. It has their plan, name, keys, signed messages and clock."""

    summarised: ClassVar[tuple[str, ...]] = ()
    in_flight = 0

    def __init__(self, deployed: DeployedPlan, name: str, seed: bytes) -> None:
        self.deployed, self.name = deployed, name
        self.plan, self.wire = deployed.plan, deployed.wire
        self.identity: Identity = deployed.identity(name, seed)
        #: See `SteadyClock.ahead`. If clocks differ, the party uses the earlier time.
        self.ahead = 0.0
        self.clock_reading: ClockReading | None = None
        #: Time of the first call to the hub since the last accepted answer. 0 if the last call
        #: failed; None if there was no call since the last accepted answer.
        self.unanswered_since: float | None = None

    def attach(self, store: Store) -> None:
        """Set the store from which the party reads values of earlier writes."""

    def upgrade(self) -> tuple[Write, ...]:
        """Return writes that a log of an earlier version lacks: none."""
        return ()

    def snapshot(self, covers: Covered) -> dict[str, bytes]:
        """Return no snapshot: this party's state is computed from its log."""
        return {}

    def snapshot_saved(self) -> None:
        """Do nothing: this party has no snapshot."""

    def restore(self, parts: Mapping[str, bytes]) -> Covered:
        """Restore nothing: this party has no snapshot."""
        return UNCOVERED

    @cached_property
    def agreement(self) -> bytes:
        """This party's signature of the plan, which it sends with every `Join`."""
        return self.deployed.countersignature(self.identity)

    def signed(self, release: int, body: Body) -> bytes:
        """Encode and sign a message of this party."""
        return self.wire.signed(self.identity, self.name, release, body)

    def unanswered(self, now: float) -> bool:
        """Return True if the hub has not answered for `LATE_SECONDS`, or the last call failed."""
        return self.unanswered_since is not None and now > self.unanswered_since + LATE_SECONDS

    def own_time(self, now: float) -> float:
        """Return the time of this machine's clock at the corrected time ``now``."""
        return now + max(self.ahead, 0.0)

    def _store_clock_reading(self, sender: str, time: float, after: float) -> None:
        """Store the clock reading of a message; raise Refused for an impossible time."""
        for seconds in (time, after):
            if not 0.0 <= seconds < MAX_CLOCK_TIME:
                raise Refused(f"the time of {sender} must be in seconds since 1970, got {seconds}")
        self.clock_reading = ClockReading(sender, time, after) if time else None

    def waits(self, now: float) -> dict[str, Any]:
        """Return what this party waits for and since when, as a row of `progress.WAITS`.

        If clocks differ, ``now`` is the earlier time. If something is due by the later time only,
        the party waits for the clocks to agree.
        """
        # Clocks differ by |ahead| seconds, so this is the later time.
        waits_now, waits_later = self._waits(now), self._waits(now + abs(self.ahead))
        # In these states of ``waits_now`` or ``waits_later``, nothing is due.
        not_due = ("start", "open", "clocks")
        is_idle = waits_now["state"] in not_due or (
            waits_now["state"] == "hub" and not self.unanswered(now)
        )
        if not self.ahead or not is_idle or waits_later["state"] in not_due:
            return waits_now
        return waits_now | clocks_differ(waits_later["since"], self._others())

    def _waits(self, now: float) -> dict[str, Any]:
        """Return what this party waits for at time ``now``, as a row of `progress.WAITS`."""
        raise NotImplementedError

    def _others(self) -> list[str]:
        """Return the names of the parties with whose clocks this party's clock is compared."""
        return [self.deployed.document.hub.name]

    def _limits(self) -> Limits:
        """Return the largest values that messages of this plan may have."""
        return Range(self.plan)


# ---- on disk -------------------------------------------------------------------------------------

Clock = Callable[[], float]
#: A jump of the wall clock by more than DOUBTED seconds is ignored at first. The jump is accepted
#: after it has stayed the same for BELIEVED seconds.
DOUBTED, BELIEVED = 30.0, 600.0
#: Seconds after which the status says that the party waits for an answer.
LATE_SECONDS = 5.0
#: Upper limit of clock times in messages, in seconds since 1970; no calendar comes near it.
MAX_CLOCK_TIME = 2.0**40


def monotonic_seconds() -> float:
    """Return monotonic seconds, which also count while the machine sleeps if the system can."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SteadyClock:
    """A wall clock that ignores short-lived jumps, and is never later than other parties' clocks.

    A silo closes the sums of a period when the period is over, which cannot be undone. So one wrong
    clock must not be enough to close the sums.

    - A jump is the difference between the wall clock and the expected time, which is the last
      reading plus the monotonic time since then. A jump of more than `DOUBTED` seconds is ignored:
      the clock shows the expected time. The wall clock is accepted again when the jump has stayed
      the same for `BELIEVED` seconds, or when the wall clock agrees with the other parties' clocks.
    - Other parties put their clock times into signed messages. If this clock is certainly more than
      `DOUBTED` seconds ahead of the median of their clocks, the median is used instead. So a silo
      closes a period only if the period may be over both by its own clock and by the hub's clock. A
      hub ends a grace period only if the period may be over both by the hub's clock and by half of
      the silos' clocks. A clock that is behind is not corrected.

    Parameters
    ----------
    wall : callable
        Returns seconds since 1970.
    monotonic : callable
        Returns seconds since some fixed time; the result never decreases.
    """

    def __init__(self, wall: Clock = time.time, monotonic: Clock = monotonic_seconds) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._last_reading, self._read_at = wall(), monotonic()
        #: The ignored jump in seconds, and the monotonic time when it was first seen.
        self._jump, self._jump_since = 0.0, self._read_at
        #: Party -> (lower bound, upper bound, monotonic time). The bounds are for the difference
        #: between the party's clock and this machine's monotonic time. The time is when this
        #: machine sent the message that the party had read.
        self._others: dict[str, tuple[float, float, float]] = {}
        #: Error of the wall clock in seconds while it is ignored; else 0.
        self.off = 0.0
        #: Seconds by which this clock is ahead of the other parties' clocks (negative: behind), if
        #: the difference is more than `DOUBTED`; else 0.
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return the corrected time in seconds since 1970."""
        with self._lock:
            wall, monotonic = self._wall(), self._monotonic()
            reading = self._steady(wall, monotonic)
            self.ahead = self._ahead(reading, monotonic)
            self.off = self._jump or self.ahead
            return reading - max(self.ahead, 0.0)

    def add_reading(self, reading: ClockReading) -> None:
        """Update the bounds on another party's clock from a reading in its message.

        The other party read its clock after this clock showed ``reading.after``, and before now. So
        the reading gives a lower and an upper bound on the other clock minus this machine's
        monotonic time. The bounds differ by the round-trip time. A reading is ignored if it answers
        an older message than the last stored reading of that party does, because then it was
        delayed or replayed. Comparisons of times tolerate an error of one second.
        """
        with self._lock:
            now = self._monotonic()
            elapsed = self._last_reading + (now - self._read_at) - reading.after
            if not reading.after or elapsed < -1.0:
                # The sender has read no message of this party, or this clock was set back.
                return
            elapsed = max(elapsed, 0.0)
            sent_at = now - elapsed
            if reading.name in self._others and sent_at < self._others[reading.name][2] - 1.0:
                return
            lower = reading.time - now
            self._others[reading.name] = lower, lower + elapsed, sent_at

    def _ahead(self, reading: float, monotonic: float) -> float:
        """Return the seconds by which a reading is ahead of the other parties' median clock.

        ``monotonic`` is the monotonic time of the reading. Differences up to `DOUBTED` seconds
        count as 0. If the number of clocks is even, the result is for the middle clock that differs
        less, or 0 if one of the two middle clocks is ahead and the other behind.
        """
        differences = [0.0] if not self._others else []
        for low, high, _ in self._others.values():
            # The other clock now shows a time between monotonic + low and monotonic + high.
            least_ahead, most_ahead = reading - (monotonic + high), reading - (monotonic + low)
            if least_ahead > DOUBTED:
                differences.append(least_ahead)
            else:
                differences.append(most_ahead if most_ahead < -DOUBTED else 0.0)
        differences.sort()
        # The two middle differences; if the number is odd, they are the same one. Return the one
        # nearer to 0, or 0 if their signs differ.
        lower, upper = differences[(len(differences) - 1) // 2], differences[len(differences) // 2]
        return max(lower, 0.0) or min(upper, 0.0)

    def _agrees(self, reading: float, monotonic: float) -> bool:
        """Return True if a reading certainly differs by at most `DOUBTED` s from most clocks."""
        largest_errors = sorted(
            max(abs(reading - monotonic - low), abs(reading - monotonic - high))
            for low, high, _ in self._others.values()
        )
        return bool(largest_errors) and largest_errors[len(largest_errors) // 2] <= DOUBTED

    def _steady(self, wall: float, monotonic: float) -> float:
        """Return the wall clock without short-lived jumps; ``monotonic`` is the monotonic time."""
        expected = self._last_reading + (monotonic - self._read_at)
        jump = wall - expected
        if abs(jump) > DOUBTED and not self._agrees(wall, monotonic):
            # A jump is new if it differs from the last one. It is ignored for BELIEVED seconds.
            if abs(jump - self._jump) > DOUBTED:
                self._jump, self._jump_since = jump, monotonic
            if monotonic - self._jump_since < BELIEVED:
                return expected
        self._last_reading, self._read_at, self._jump = wall, monotonic, 0.0
        return wall
