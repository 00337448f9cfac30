"""Drivers: how plans of one kind are run, what a run leaves behind, and what it takes in memory.

Every kind of plan names its driver (``plan.driver``), and every driver stands in a file of its own:
`server`, `peers`, `phases` and `experts`. Each runs a plan twice over, fast and message by message,
with equal bits.

Memory is estimated as a list of terms, each with a name, its bytes, and what they are made of, from
the shapes that a driver allocates. Only what is written to counts: zeros that nobody touches take
no memory, nor do pages of a mapped file, which the system takes back when it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._memory import available, format_size
from fastfed._validate import InputError
from fastfed.protocols.plan import Plan
from fastfed.simulation.snapshots import Snapshot

#: Called with the number of rounds that were run since the last call; may raise to stop.
Progress = Callable[[int], None]

# ---- What a run leaves behind --------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One curve, one replicate."""

    group_regret: np.ndarray  # (checkpoints,): cumulative, summed over silos
    # Counted as they happen, those at the end of the checkpoint's round included.
    synchronisations: np.ndarray  # (checkpoints,) int64: by each checkpoint
    bits_up: np.ndarray  # (checkpoints,) float64: sent by all silos by then
    bits_down: np.ndarray  # (checkpoints,) float64: sent to all silos by then
    total: np.ndarray  # (s,): what all know at the end, such as the synchronised statistics
    #: How often what a reader of the results should hear of has happened, by name.
    events: dict[str, int]
    actions: np.ndarray | None = None  # (M, T) int32, when recorded
    rewards: np.ndarray | None = None  # (M, T), before clipping, when recorded


def linear_events(indefinite: int, clipped_features: int, clipped_rewards: int) -> dict[str, int]:
    """The events of a bandit: noisy V that had to be shifted, clipped features and rewards."""
    return {
        "indefinite": indefinite,
        "clipped_features": clipped_features,
        "clipped_rewards": clipped_rewards,
    }


def sent(plan: Plan, synchronised: np.ndarray) -> dict[str, np.ndarray]:
    """Synchronisations and bits sent by each checkpoint, as an Outcome keeps them."""
    return {
        "synchronisations": synchronised,
        "bits_up": np.array([plan.bits_up_of(int(k)) for k in synchronised], np.float64),
        "bits_down": np.array([plan.bits_down_of(int(k)) for k in synchronised], np.float64),
    }


#: How checkpoints are spaced.
EVEN, LOG = "even", "log"
SPACINGS = (EVEN, LOG)


def checkpoint_rounds(horizon: int, count: int, spacing: str = EVEN) -> np.ndarray:
    """About ``count`` rounds, the last one always among them, (C,) int64.

    Evenly spaced, or with "log" from round 1 on by a factor: fewer than ``count``, since the first
    of them are whole rounds.
    """
    count = min(count, horizon)
    if spacing == LOG:
        powers = np.arange(count, dtype=np.float64) / max(1, count - 1)
        return np.unique(np.rint(float(horizon) ** powers).astype(np.int64))
    # Whole-number ceilings: floating ones can land on a round past the last.
    return -(-np.arange(1, count + 1, dtype=np.int64) * horizon // count)


# ---- What a run takes in memory ------------------------------------------------------------------

#: Bytes of a Python object with a few fields, and of a number in a list.
OBJECT, NUMBER = 200, 40

#: Bytes by release of a plan's arrays while they are made.
RELEASE = 80


@dataclass(frozen=True)
class Term:
    """One part of an estimate."""

    name: str
    bytes: int
    of: str = ""  # such as "1 000 silos x d = 57"
    less: str = ""  # what makes it smaller, such as "silos"

    def times(self, factor: float, of: str = "") -> Term:
        """So many of it at once."""
        if factor == 1:
            return self
        return Term(self.name, int(self.bytes * factor), f"{self.of}{of}", self.less)


def total(terms: Iterable[Term]) -> int:
    """Bytes of all terms."""
    return sum(term.bytes for term in terms)


def merged(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Terms of one name as one, that of the largest, the largest first."""
    by_name: dict[str, list[Term]] = {}
    for term in terms:
        by_name.setdefault(term.name, []).append(term)
    found = []
    for name, alike in by_name.items():
        first = max(alike, key=lambda term: term.bytes)
        found.append(Term(name, total(alike), first.of, first.less))
    return tuple(sorted(found, key=lambda term: -term.bytes))


def spaced(number: int) -> str:
    """10 000 for 10000."""
    return f"{number:,}".replace(",", " ")


def sentence(terms: Iterable[Term]) -> str:
    """Sentence that says how much memory a run needs, and for what."""
    found = merged(terms)
    needed = total(found)
    parts = [
        f"{term.name} {format_size(term.bytes)}{f': {term.of}' if term.of else ''}"
        for term in found
        if term.bytes >= 0.1 * needed
    ][:3]
    return f"this run needs about {format_size(needed)} ({'; '.join(parts)})"


def check_before(horizon: int, checkpoints: int, batches: Iterable[int]) -> None:
    """InputError where the arrays by checkpoint and by release would not fit into memory.

    ``batches``: rounds between two releases, of each curve that has a fixed number of them.
    """
    count = min(checkpoints, horizon)
    releases = sum(horizon // batch for batch in batches if batch >= 1)
    terms = (
        Term("rounds of checkpoints", 24 * count, spaced(count), "checkpoints"),
        Term("what holds after each release", RELEASE * releases, spaced(releases), "releases"),
    )
    most = available()
    if most is not None and total(terms) > most:
        raise InputError(f"{sentence(terms)}, and {format_size(most)} are available")


def that_fit(terms: list[Term], wanted: int) -> int:
    """Number of batches of runs with these terms, up to ``wanted``, that fit; InputError if
    none."""
    most, needed = available(), total(terms)
    if most is None or wanted * needed <= most:
        return wanted
    if needed > most:
        raise InputError(f"{sentence(terms)}, and {format_size(most)} are available")
    return max(1, most // needed)


def silo_term(name: str, size: int, plan: Plan, less: str = "silos") -> Term:
    return Term(name, size, f"{spaced(plan.silos)} silos x d = {plan.dimension}", less)


def outcome_term(checkpoints: int, size: int) -> Term:
    """Memory of an outcome, and of the lists that it is made of."""
    made = (4 * 8 + 2 * NUMBER) * checkpoints + 8 * size
    return Term("counts at checkpoints", made, spaced(checkpoints), "checkpoints")


def array_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


# ---- The loop of the step drivers ----------------------------------------------------------------


def run_rounds(
    environment: Any,
    players: Sequence[Any],
    record: Record,
    rounds: int,
    end_round: Callable[[int], int],
    progress: Progress | None,
) -> None:
    """Run rounds 1 to ``rounds``, one silo after the other, and record all actions and rewards.

    Parameters
    ----------
    players : sequence
        One for each silo, with ``select(actions)`` and ``observe(reward)``.
    end_round : callable
        ``end_round(round)`` exchanges the messages that are due after the round, and returns the
        number of releases so far.
    """
    for round in range(1, rounds + 1):
        for i, player in enumerate(players):
            features, means = environment.round(i, round)
            action = player.select(features)
            reward = environment.reward(i, round, means[action])
            player.observe(reward)
            record.note(i, round, action, reward, means)
        record.close(round, end_round(round))
        if progress is not None:
            progress(1)


class Record:
    """Actions, rewards and regret of every silo and round, for an Outcome."""

    def __init__(self, silos: int, horizon: int, checkpoints: np.ndarray) -> None:
        self.checkpoints = checkpoints
        self.actions = np.zeros((silos, horizon), np.int32)
        self.rewards = np.zeros((silos, horizon))
        self.releases = np.zeros(len(checkpoints), np.int64)
        self._regret = np.zeros(silos)
        self._curves = np.zeros((silos, len(checkpoints)))

    def note(self, silo: int, round: int, action: int, reward: float, means: np.ndarray) -> None:
        """One round of one silo, with the expected rewards (K,) of its actions."""
        self.actions[silo, round - 1], self.rewards[silo, round - 1] = action, reward
        self._regret[silo] += means.max() - means[action]

    def close(self, round: int, releases: int) -> None:
        """End a round, by which there were so many releases."""
        at = self.checkpoints == round
        self._curves[:, at] = self._regret[:, None]
        self.releases[at] = releases

    def group_regret(self) -> np.ndarray:
        """Regret of all silos at the checkpoints, (C,), added up in the silos' order."""
        group = np.zeros(len(self.checkpoints))
        for row in self._curves:
            group += row
        return group


# ---- The interface -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """Functions that run plans of one kind.

    Parameters
    ----------
    run_one : callable
        ``run_one(environment, plan, checkpoints, *, threads, record, last, progress)`` runs rounds
        1..last (None: all) of one plan as fast as can be; ``record`` keeps actions and rewards,
        where there are any.
    run_steps : callable
        ``run_steps(environment, plan, checkpoints, *, last, progress)`` runs the same by the
        parties themselves, message by message, with the same bits.
    memory : callable
        ``memory(plan, checkpoints, *, steps, record)``: terms of one curve of one replicate, its
        state and what it leaves behind; ``steps``: by the step driver.
    run_together : callable, optional
        As ``run_one``, with a sequence of plans in place of one: over contexts made once.
    together : callable, optional
        Whether a plan may be run together with others; by default none may.
    snapshots : bool
        Whether both take ``snapshot``, a `snapshots.Snapshot` to go on from and to write.
    """

    run_one: Callable[..., Outcome]
    run_steps: Callable[..., Outcome]
    memory: Callable[..., list[Term]]
    run_together: Callable[..., list[Outcome]] | None = None
    together: Callable[[Any], bool] = lambda plan: False
    snapshots: bool = False

    def run(
        self,
        environment: Any,
        plans: Sequence[Any],
        checkpoints: np.ndarray,
        *,
        threads: int = 1,
        record: bool = False,
        last: int | None = None,
        progress: Progress | None = None,
        snapshot: Snapshot | None = None,
    ) -> list[Outcome]:
        """Run rounds 1..last (all by default) of plans that run together, or of one."""
        common: dict[str, Any] = {
            "threads": threads, "record": record, "last": last, "progress": progress,
        }  # fmt: skip
        if self.snapshots:
            common["snapshot"] = snapshot
        if self.run_together is not None and self.together(plans[0]):
            return self.run_together(environment, plans, checkpoints, **common)
        return [self.run_one(environment, plan, checkpoints, **common) for plan in plans]
