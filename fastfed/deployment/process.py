"""The process that runs a party: it makes the party's writes durable, many in one sync.

A sync takes milliseconds on many disks, so the writes of several calls share one sync (group
commit), and a few syncs run at a time. A *batch* of calls is appended to the log, and its sync
begins at once, even if the sync of an earlier batch still runs. The party's lock is not held during
a sync. A call returns after a sync that began when its writes were in the log. The party's state
changes only then, and in the order of the log, so a call that fails has changed nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

from fastfed._validate import InputError
from fastfed.deployment.calls import FULL_DISK_ERRORS, failure
from fastfed.deployment.ledger import Charge, Ledger
from fastfed.deployment.model import Decision
from fastfed.deployment.party import UNCOVERED, Clock, Covered, Message, Party, SteadyClock, Step
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import Conflict, Position, Store, Write, chained

T = TypeVar("T")
#: Maximum number of syncs of calls at a time.
MAX_SYNCS = 6
#: Number of writes between two snapshots: a restart applies at most about this many.
WRITES_PER_SNAPSHOT = 10_000
#: Maximum number of records that are erased while calls wait.
MAX_ERASED_AT_ONCE = 500
#: Seconds between two calls of `SiloProcess.erase`.
ERASE_SECONDS = 60.0


class Call(Generic[T]):
    """One call of a silo's application, from its computation until its writes are durable.

    Parameters
    ----------
    work : callable
        Computes the step of the call, and what the call returns, from the party's state. It changes
        no state, so it may be repeated.
    """

    def __init__(self, work: Callable[[], tuple[Step, T]]) -> None:
        self.work = work
        self.writes: tuple[Write, ...] = ()
        #: (kind, key) of the call's writes, and `Step.touches`: no two calls in flight share one.
        self.keys: set[tuple[str, str]] = set()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_done = False

    @classmethod
    def failed(cls, error: Exception) -> Call[Any]:
        """Return a call that is done, and has failed."""

        def work() -> tuple[Step, Any]:
            raise error

        call = cls(work)
        call.error, call.is_done = error, True
        return call

    def returned(self) -> T:
        """Return the result of a call that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Batch(NamedTuple):
    """Calls whose writes are appended to the log, to be made durable by one sync."""

    calls: list[Call[Any]]
    #: For each call: for each of its writes, True if the log did not have the write before.
    is_new: list[list[bool]]
    #: The place of the last write in the log.
    position: Position


def restored(party: Party, store: Store) -> Covered:
    """Set a new party to the state in the store's snapshot; return what the snapshot covers.

    Raises
    ------
    InputError
        If the log has changed since the snapshot.
    """
    party.attach(store)
    covered = party.restore(parts) if (parts := store.snapshot()) else UNCOVERED
    if covered.position.number < store.erased:
        raise InputError("records were erased, and the snapshot is damaged: restore a backup")
    if covered == UNCOVERED:
        return covered
    # The snapshot already holds the effect of writes whose kind is in `Party.summarised`. Writes of
    # other kinds are read from the log, and applied.
    others_hash, (last, chain) = bytes(32), covered.position
    for write in store.writes(until=last, except_kinds=party.summarised):
        party.fold(write)
        others_hash = chained(others_hash, write)
    end = store.position
    log_differs = end.number < last or (end.number == last and end.chain != chain)
    if others_hash != covered.others or log_differs:
        raise InputError("the log differs from its snapshot; restore the newest backup")
    return covered


class Process:
    """Run one party, and store its writes; several threads may use it.

    Parameters
    ----------
    party : Party
        A new party. All writes in the store are applied to it.
    store : Store
        The stored writes of this party under this plan.
    ledger : Ledger, optional
        The ledger in which charges are recorded; for silos only.
    clock : callable, optional
        Returns seconds since 1970. By default a `SteadyClock`.

    Raises
    ------
    InputError
        If the store belongs to a different plan or party, or its log is broken.
    """

    def __init__(
        self, party: Party, store: Store, ledger: Ledger | None = None, clock: Clock | None = None
    ) -> None:
        self.party, self.store, self.ledger = party, store, ledger
        self.clock: Clock = SteadyClock() if clock is None else clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: Computed calls whose writes will be appended by the next sync.
        self._waiting: list[Call[Any]] = []
        #: Calls that wait for calls in flight or for `_claimed`, and are then submitted again.
        self._blocked: list[Call[Any]] = []
        #: The `Call.keys` of all calls that are computed and not durable yet.
        self._in_flight: set[tuple[str, str]] = set()
        #: Appended batches that are not durable yet, in the order of the log.
        self._batches: deque[Batch] = deque()
        #: Number of syncs that run, and a moving average of the seconds that a sync takes.
        self._syncs, self.pace = 0, 1.0
        #: Number of threads in `_claimed`.
        self._claims = 0
        self._is_closed = False
        #: Called with the calls that are done. Some blocked calls may have been submitted again
        #: before, and then need another `sync`.
        self.on_done: Callable[[list[Call[Any]]], None] = lambda calls: None
        #: What the last tick could not do, such as charge more than the ceiling; empty if nothing.
        self.problem = ""
        digest: bytes = party.deployed.digest  # type: ignore[attr-defined]
        try:
            store.write(Write("plan", "", digest + party.name.encode()))
        except Conflict:
            raise InputError(
                f"{getattr(store, 'path', 'the state')} is of another plan or party, or is "
                "damaged: restore the newest backup of this folder"
            ) from None
        #: The place in the log up to which all writes are applied to the party's state.
        self._end = store.position
        self._covered = restored(party, store)
        #: The value of `Covered.others` for a snapshot that is saved now.
        self._others_hash = self._covered.others
        for write in store.writes(after=self._covered.position):
            self._fold(write)
        self._store(party.upgrade())

    def _fold(self, write: Write) -> None:
        """Apply a durable write to the party's state, and update `_others_hash`."""
        if write.kind not in self.party.summarised:
            self._others_hash = chained(self._others_hash, write)
        self.party.fold(write)

    def _store(self, writes: Sequence[Write]) -> None:
        """Make writes durable and apply them, while no call is in flight."""
        self._fold_new(writes, self.store.write_all(writes))
        self._end = self.store.position

    def _fold_new(self, writes: Sequence[Write], is_new: Sequence[bool]) -> None:
        """Apply the durable writes that the log did not have before."""
        for write, is_new_write in zip(writes, is_new, strict=False):
            if is_new_write:
                self._fold(write)

    def turn(self) -> threading.RLock:
        """Return the lock that must be held to read the party of a running process."""
        return self._lock

    def close(self) -> None:
        """Save a snapshot, and close the files of this process."""
        with self._claimed():
            self._save_snapshot()
            self._is_closed = True
            for files in (self.store, self.ledger):
                if files is not None:
                    files.close()

    def status(self) -> dict[str, object]:
        """Return the party's status, with ``clock_off`` while this machine's clock is wrong."""
        party: Any = self.party
        status: dict[str, object] = party.status(self.now())
        return status | ({"clock_off": self.clock_off} if self.clock_off else {})

    @property
    def clock_off(self) -> float:
        """Error of this machine's clock in seconds, while it has jumped or differs from others."""
        return float(getattr(self.clock, "off", 0.0))

    def now(self) -> float:
        """Return the corrected time, and set the party's `ahead` to the clock's error."""
        now = self.clock()
        self.party.ahead = getattr(self.clock, "ahead", 0.0)
        return now

    # ---- calls that share a sync -----------------------------------------------------------------

    def submit(self, call: Call[Any]) -> None:
        """Compute a call; its writes are stored by the next `sync`.

        If a call in flight has a write of the same key (such as the reward of the same decision),
        this call is computed again after the call in flight is done.
        """
        with self._lock:
            if self._claims:
                self._blocked.append(call)
                return
            try:
                if self._is_closed:
                    raise OSError(errno.ESHUTDOWN, f"{self.party.name} is stopping")
                step, call.result = call.work()
                call.writes = step.writes  # type: ignore[assignment]
                call.keys = {*(write[:2] for write in call.writes), *step.touches}
            except Exception as error:
                call.error, call.writes = error, ()
            if not call.writes:
                call.is_done = True
                return
            if not self._in_flight.isdisjoint(call.keys):
                self._blocked.append(call)
                return
            self._in_flight |= call.keys
            self.party.in_flight = len(self._in_flight)
            self._waiting.append(call)

    @property
    def waiting(self) -> int:
        """Number of submitted calls that wait for a `sync`."""
        return len(self._waiting)

    @property
    def has_waiting(self) -> bool:
        """True if submitted calls wait for a `sync`, and a sync may begin."""
        return bool(self._waiting) and self._syncs < MAX_SYNCS

    def sync(self) -> bool:
        """Store the writes of all submitted calls; return False if there is nothing to do now.

        There is nothing to do if no call waits, or if `MAX_SYNCS` other threads are storing writes.
        """
        batch = self.begin_sync()
        if batch is not None:
            self.end_sync(batch)
        return batch is not None

    def begin_sync(self) -> Batch | None:
        """Append the writes of all submitted calls to the log; return the calls as a batch.

        The caller must then call `end_sync`, or sync the store and call `finish_sync`. The result
        is None if no call waits, or too many syncs run; see `sync`.
        """
        with self._lock:
            if not self.has_waiting:
                return None
            calls, self._waiting = self._waiting, []
            is_new: list[list[bool]] = [[] for _ in calls]
            try:
                appended = iter(self.store.append([w for call in calls for w in call.writes]))
                is_new = [[next(appended) for _ in call.writes] for call in calls]
            except Conflict:
                # Append call by call: only calls that contradict the log fail.
                for place, call in enumerate(calls):
                    try:
                        is_new[place] = self.store.append(call.writes)
                    except Exception as error:
                        call.error = error
            except BaseException as error:
                for call in calls:
                    call.error = error
            batch = Batch(calls, is_new, self.store.position)
            self._batches.append(batch)
            self._syncs += 1
            return batch

    def end_sync(self, batch: Batch) -> None:
        """Make an appended batch durable, and finish its calls and those of earlier batches."""
        failed, start = None, time.perf_counter()
        try:
            self.store.sync()
        except BaseException as error:
            failed = error
        self.finish_sync(batch, failed, time.perf_counter() - start)
        self.store.tidy()

    def finish_sync(self, batch: Batch, failed: BaseException | None, seconds: float) -> None:
        """Finish the calls of a batch whose sync has ended, and those of earlier batches.

        ``failed`` is the error of a sync that has failed, and ``seconds`` the time that it took.
        A failed sync fails the calls of all batches that are not durable yet, because a later sync
        could succeed although the disk lacks a part of the log.
        """
        with self._lock:
            self._syncs -= 1
            self.pace += 0.2 * (seconds - self.pace)
            done_calls: list[Call[Any]] = []
            # A sync covers all batches before its own. A later sync may have finished this batch.
            while batch in self._batches or (failed is not None and self._batches):
                done_calls += self._finish_batch(self._batches.popleft(), failed)
            self.party.in_flight = len(self._in_flight)
            self._save_snapshot(WRITES_PER_SNAPSHOT)
            done_calls += self._resubmit()
        self.on_done(done_calls)

    def _finish_batch(self, batch: Batch, failed: BaseException | None) -> list[Call[Any]]:
        """Apply the writes of a batch that is durable, or has failed; return its calls."""
        for call, is_new in zip(batch.calls, batch.is_new, strict=True):
            call.error = failed if call.error is None else call.error
            if call.error is None:
                try:
                    self._fold_new(call.writes, is_new)
                except Exception as error:
                    call.error = error
            self._in_flight -= call.keys
            call.is_done = True
        if failed is None:
            self._end = batch.position
        return batch.calls

    def call(self, work: Callable[[], tuple[Step, T]]) -> T:
        """Compute a call, and return its result when its writes are durable."""
        call = Call(work)
        self.submit(call)
        self.finish(call)
        return call.returned()

    def finish(self, call: Call[Any]) -> None:
        """Wait until a submitted call is done; meanwhile, sync the writes of all threads."""
        while not call.is_done:
            if not self.sync():
                with self._changed:
                    if not call.is_done and not self.has_waiting:
                        self._changed.wait()

    def _resubmit(self) -> list[Call[Any]]:
        """Submit the blocked calls again; return those that are done at once.

        The caller must hold the lock.
        """
        blocked, self._blocked = self._blocked, []
        for call in blocked:
            self.submit(call)
        self._changed.notify_all()
        return [call for call in blocked if call.is_done]

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Wait until no call is in flight, then hold the lock during the `with` block.

        Calls that arrive meanwhile are blocked, and submitted again after the block.
        """
        done_calls: list[Call[Any]] = []
        try:
            with self._lock:
                self._claims += 1
                try:
                    while self._in_flight or self._syncs:
                        if not self.sync():
                            self._changed.wait()
                    yield
                finally:
                    self._claims -= 1
                    done_calls = self._resubmit()
        finally:
            # This must run even if the block has failed: calls that were blocked have been
            # submitted again, and may need another sync, as `on_done` tells.
            self.on_done(done_calls)

    # ---- steps while no call is in flight --------------------------------------------------------

    def make_durable(self, step: Step) -> tuple[Message, ...]:
        """Store the writes of a step; return its messages, which may then be sent."""
        for write in step.writes:
            if isinstance(write, Charge):
                assert self.ledger is not None
                self.ledger.charge(write)
            else:
                self._store((write,))
        return step.messages

    def handle(self, data: bytes) -> tuple[Step, tuple[Message, ...]]:
        """Process a message. If it is refused, no state changes.

        Returns
        -------
        step : Step
            The party's step for this message.
        messages : tuple of Message
            The messages to send: the messages of the step, and of the due steps that it made
            possible. Messages that repeat earlier messages wait for the next `tick`; otherwise two
            parties would answer each other for ever.
        """
        with self._claimed():
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
        """Do everything that is due now; return the messages to send.

        Raises
        ------
        OSError
            If the disk is full, or has failed: see `Store.sync`.
        """
        with self._claimed():
            self.store.sync()
            new_messages, last_step = self._run_due_steps()
            self.problem = last_step.problem or self._clock_problem()
            # The last step repeats all unconfirmed messages, which includes the new ones.
            repeated = (message for message in last_step.messages if message not in new_messages)
            return (*new_messages, *repeated)

    def _clock_problem(self) -> str:
        """Return a warning that this machine's clock is wrong; empty if it seems right."""
        if not self.clock_off:
            return ""
        return (
            "this machine's clock differs from the other parties' clocks, or has jumped; the "
            "earlier time counts: set it, see clock_off in the status"
        )

    def _run_due_steps(self) -> tuple[tuple[Message, ...], Step]:
        """Run the party's due steps, and store their writes, until a step has no writes.

        Return the messages of the steps that had writes, and the last step.
        """
        messages: tuple[Message, ...] = ()
        while True:
            step = self.party.tick(self.now())
            if not step.writes:
                return messages, step
            messages += self.make_durable(step)

    def _save_snapshot(self, min_writes: int = 1) -> None:
        """Save the party's state, if ``min_writes`` or more writes follow the last snapshot.

        If the disk is full, the next call tries again. If the process restarts before that, it must
        apply all writes since the last snapshot.
        """
        if self._end.number >= self._covered.position.number + min_writes:
            with suppress(*FULL_DISK_ERRORS):
                self._store_snapshot()

    def _store_snapshot(self, erase: Sequence[str] = ()) -> None:
        """Save the party's state, and erase the records of the decisions with ids ``erase``."""
        covers = Covered(self._end, self._others_hash)
        if parts := self.party.snapshot(covers):
            self.store.save_snapshot(parts, erase)
            self.party.snapshot_saved()
            self._covered = covers


class SiloProcess(Process):
    """Run a silo, and serve the calls of its application."""

    party: SiloParty

    def decide(
        self,
        actions: object = None,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
        id: str | None = None,
    ) -> Decision:
        """Choose an action for one person, and store the decision; see `SiloParty.decide`."""
        return self.call(
            lambda: self.party.decide(
                actions, self.now(), subject, record=record, among=among, id=id
            )
        )

    def reward(self, name: str, reward: float) -> None:
        """Store the reward of a decision; see `SiloParty.reward`."""
        self.call(lambda: (self.party.reward(name, reward, self.now()), None))

    def outcome(self, name: str, value: object) -> None:
        """Store the outcome of a decision; see `SiloParty.outcome`."""
        self.call(lambda: (self.party.outcome(name, value, self.now()), None))

    def losses(self, name: str, losses: object) -> None:
        """Store the losses of all experts at a decision; see `ExpertSilo.losses`."""
        self.call(lambda: (self.party.losses(name, losses, self.now()), None))

    def bit(self, name: str, bit: int) -> None:
        """Store the bit that a user's device has sent for a decision; see `SiloParty.bit`."""
        self.call(lambda: (self.party.bit(name, bit, self.now()), None))

    def cancel(self, name: str) -> None:
        """End a decision without a reward; see `SiloParty.cancel`."""
        self.call(lambda: (self.party.cancel(name, self.now()), None))

    def erase(self, keep: float) -> int:
        """Erase records that are older than ``keep`` seconds; return how many were erased.

        A record is erased when its decision ended at least ``keep`` seconds ago, and the sums of
        its leaf are released or it is in no leaf. A leaf is a period of the calendar. Decisions
        whose reward is overdue by ``keep`` seconds are ended first.

        Raises
        ------
        OSError
            If the disk is full. The next call tries again.
        """
        count = 0
        while erased := self._erase_some(keep):
            count += erased
        if count:
            # Wait until no sync runs: its commit would fail while the log is emptied.
            with self._claimed():
                self.store.forget()
        return count

    def _erase_some(self, keep: float) -> int:
        """Erase up to `MAX_ERASED_AT_ONCE` records as `erase` does; return how many were erased.

        Calls wait while this runs, so it must be short.
        """
        with self._claimed():
            before, erased_up_to = self.now() - keep, dict(self.party.erased_up_to)
            try:
                self._store(self.party.expire(before, MAX_ERASED_AT_ONCE))
                if ids := self.party.erasable(before, MAX_ERASED_AT_ONCE):
                    self._store_snapshot(ids)
            except BaseException:
                # `expire` and `erasable` have advanced these numbers, but nothing was erased.
                self.party.erased_up_to = erased_up_to
                raise
            return len(ids)

    def keep_erasing(self, keep: float, say: Callable[[str], None]) -> None:
        """Call `erase` every `ERASE_SECONDS`, for ever; ``say`` receives each new problem."""
        last_problem, pause = "", threading.Event()
        while True:
            try:
                self.erase(keep)
                problem = ""
            except (InputError, *FULL_DISK_ERRORS) as error:
                problem = f"no records are erased: {failure(error)[1]}"
            if problem and problem != last_problem:
                say(problem)
            last_problem = problem
            pause.wait(ERASE_SECONDS)

    def leave(self) -> None:
        """Leave the federation; the hub learns this from the silo's next message."""
        with self._claimed():
            self.make_durable(self.party.leave())

    def recover(self) -> None:
        """Recover from lost reports; see `SiloParty.recover`."""
        with self._claimed():
            self.make_durable(self.party.recover())


def settle(processes: Mapping[str, Process]) -> None:
    """Run all parties on one machine, and carry their messages, until no party stores a write.

    Parameters
    ----------
    processes : dict of str to Process
        Name of a party -> its process.

    Raises
    ------
    InputError
        If messages contradict each other, or a party cannot do what is due.
    """
    idle_rounds, before = 0, [process.store.position for process in processes.values()]
    # After a start, parties first prove to each other that they run. These rounds of messages store
    # nothing, so one round without a stored write is not the end.
    while idle_rounds < 3:
        messages = [message for process in processes.values() for message in process.tick()]
        while messages:
            message = messages.pop(0)
            step, answers = processes[message.to].handle(message.data)
            if step.problem:
                raise InputError(step.problem)
            messages += answers
        after = [process.store.position for process in processes.values()]
        idle_rounds, before = (idle_rounds + 1 if after == before else 0), after
    if problem := next((p.problem for p in processes.values() if p.problem), ""):
        raise InputError(problem)
