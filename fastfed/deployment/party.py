"""What silo, hub and helper have in common: steps, and the range of what may be true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from fastfed._kernels import aggregation
from fastfed.deployment._crypto import Identity
from fastfed.deployment.counts import count_std
from fastfed.deployment.ledger import Charge
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.store import Write
from fastfed.deployment.wire import Body, Refused
from fastfed.protocols.account import bounds
from fastfed.protocols.plan import Plan
from fastfed.protocols.release import prefix_noise, spread

#: Standard deviations of noise beyond which a value is refused: once in 10^15 numbers.
SIGMAS = 8.0


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


# ---- what may be true ----------------------------------------------------------------------------


class Range:
    """The largest values that a message of a plan can hold, but once in 10^15 numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        feature, reward = bounds(plan)
        d, s = plan.dimension, plan.statistic_size
        self._record = np.full(s, feature * feature)
        self._record[:d] = feature * reward
        self._std = spread(plan.noise_std.times(max(plan.noise_scale)), d)

    def report(self, release: int) -> np.ndarray:
        """Of a silo's report (s,): it has made at most ``end(release)`` records by then."""
        return self._record * self._plan.end(release) + self._noise(release)

    def broadcast(self, release: int) -> np.ndarray:
        """Of a broadcast (s,): the sum of as many of these, or more noise, as there are silos."""
        if self._plan.protocol.bits:
            # Each record is off by one level at most in each entry.
            level = self._plan.units.max(axis=0, initial=0.0)
            records = self._plan.silos * self._plan.end(release) * (self._record + level)
            return records + SIGMAS * count_std(self._plan, release)
        return self._plan.silos * self.report(release)

    def _noise(self, release: int) -> np.ndarray:
        """Of the noise of a prefix, or of the node of a tree, which has less."""
        made = prefix_noise(self._plan)
        if made is None:
            squares = float(max(1, self._plan.levels))
        else:
            squares = float(sum(c * c for c in made.terms(release).values()))
        return SIGMAS * math.sqrt(squares) * self._std


def check_range(values: np.ndarray, limit: np.ndarray, who: str) -> None:
    """Refuse values that no records and noise can have led to."""
    beyond = np.abs(values) > limit
    if beyond.any():
        at = int(np.argmax(beyond))
        raise Refused(f"{who} has entry {at} beyond what {limit[at]:.4g} allows: {values[at]:.4g}")


def sum_of(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of statistics in their order, as servers add them up."""
    total = np.array(rows[0])
    for row in rows[1:]:
        aggregation.add(total, row)
    return total
