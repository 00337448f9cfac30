"""A party on disk: the writes of a step are durable, in order, before a message leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fastfed.deployment.ledger import Charge, Ledger
from fastfed.deployment.party import Message, Party, Step
from fastfed.deployment.silo import Decision, SiloParty
from fastfed.deployment.store import Store, Write

Clock = Callable[[], float]


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
    clock : callable, default time.time
        Seconds since 1970. Only deadlines use it.

    Raises
    ------
    InputError
        If the store is another plan's or party's, or its log is broken.
    """

    def __init__(
        self, party: Party, store: Store, ledger: Ledger | None = None, clock: Clock = time.time
    ) -> None:
        self.party, self.store, self.ledger, self.clock = party, store, ledger, clock
        self._turn = threading.RLock()
        digest: bytes = party.deployed.digest  # type: ignore[attr-defined]
        store.write(Write("plan", "", digest + party.name.encode()))
        for write in store.writes():
            party.fold(write)

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
        """Take in a message; Refused leaves everything as it was."""
        with self._turn:
            step = self.party.handle(data, self.clock())
            return step, (*self.done(step), *self.tick())

    def tick(self) -> tuple[Message, ...]:
        """Do what the time asks for."""
        sent: tuple[Message, ...] = ()
        with self._turn:
            while True:
                step = self.party.tick(self.clock())
                sent += self.done(step)
                if not step.writes:
                    return sent


class SiloProcess(Process):
    """A silo on disk, for its own application."""

    party: SiloParty

    def decide(self, actions: object, subject: str | None = None) -> Decision:
        """Choose for one person, see `SiloParty.decide`; durable when it returns."""
        with self._turn:
            step, decision = self.party.decide(actions, self.clock(), subject)
            self.done(step)
            return decision

    def reward(self, name: str, reward: float) -> None:
        """The reward of a decision, see `SiloParty.reward`; durable when it returns."""
        with self._turn:
            self.done(self.party.reward(name, reward, self.clock()))

    def cancel(self, name: str) -> None:
        """End a decision without a reward; durable when it returns."""
        with self._turn:
            self.done(self.party.cancel(name, self.clock()))

    def leave(self) -> tuple[Message, ...]:
        """Leave the federation; returns the message to the hub."""
        with self._turn:
            return self.done(self.party.leave())

    def recover(self) -> None:
        """Make up for what was sent but is not in this silo's state, see `SiloParty.recover`."""
        with self._turn:
            self.done(self.party.recover())
