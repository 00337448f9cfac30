"""What all drivers share: outcomes, checkpoints, memory estimates, the step loop, the interface.

A driver runs plans of one kind in two ways: fast, and message by message (the step driver). Both
ways give the same results, bit for bit. Each kind of plan names its driver (``plan.driver``). Each
driver is in its own file: `server`, `peers`, `phases`, `experts` and `policies`.

Memory is estimated from the shapes of the arrays that a driver allocates, as a list of `Term`
values. Only memory that is written to counts: zero pages that nothing touches take no memory, and
the operating system can reclaim the pages of a mapped file.
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

#: Called with the number of rounds run since the last call. It may raise an exception to end the
#: run.
Progress = Callable[[int], None]

# ---- The result of a run -------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of one curve in one replicate."""

    group_regret: np.ndarray  # (checkpoints,): cumulative, summed over silos
    # Counts up to each checkpoint, including events at the end of its round.
    synchronisations: np.ndarray  # (checkpoints,) int64
    bits_up: np.ndarray  # (checkpoints,) float64: sent by all silos
    bits_down: np.ndarray  # (checkpoints,) float64: sent to all silos
    total: np.ndarray  # (s,): what all silos know at the end, such as the synchronised statistics
    #: Counts of events that a report mentions, such as clipped rewards, by name.
    events: dict[str, int]
    actions: np.ndarray | None = None  # (M, T) int32, when recorded
    rewards: np.ndarray | None = None  # (M, T), before clipping, when recorded


def linear_events(indefinite: int, clipped_features: int, clipped_rewards: int) -> dict[str, int]:
    """Return the event counts of a bandit's Outcome, by name.

    ``indefinite`` is the number of noisy matrices V that needed a shift to be positive definite.
    """
    return {
        "indefinite": indefinite,
        "clipped_features": clipped_features,
        "clipped_rewards": clipped_rewards,
    }


def message_fields(plan: Plan, synchronised: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fields of an Outcome that count messages.

    ``synchronised`` (C,) is the number of synchronisations up to each checkpoint.
    """
    return {
        "synchronisations": synchronised,
        "bits_up": np.array([plan.bits_up_of(int(k)) for k in synchronised], np.float64),
        "bits_down": np.array([plan.bits_down_of(int(k)) for k in synchronised], np.float64),
    }


#: How checkpoints are spaced.
EVEN, LOG = "even", "log"
SPACINGS = (EVEN, LOG)


def checkpoint_rounds(horizon: int, count: int, spacing: str = EVEN) -> np.ndarray:
    """Return at most ``count`` rounds at which results are recorded, ascending, (C,) int64.

    The rounds include the last round of the horizon. With ``spacing`` "even" the rounds are spaced
    evenly, with "log" geometrically from round 1. If geometric rounds are equal after rounding,
    they are returned once.
    """
    count = min(count, horizon)
    if spacing == LOG:
        powers = np.arange(count, dtype=np.float64) / max(1, count - 1)
        return np.unique(np.rint(float(horizon) ** powers).astype(np.int64))
    # Ceilings in integer arithmetic: in floating point a ceiling could exceed the horizon.
    return -(-np.arange(1, count + 1, dtype=np.int64) * horizon // count)


# ---- Estimates of memory -------------------------------------------------------------------------

#: Bytes of a Python object with a few fields, and of a number in a list.
OBJECT, NUMBER = 200, 40

#: Bytes for each release that a plan's arrays take while the plan is built.
BYTES_PER_RELEASE = 80


@dataclass(frozen=True)
class Term:
    """One part of a memory estimate."""

    name: str
    bytes: int
    of: str = ""  # what the bytes consist of, such as "1 000 silos x d = 57"
    less: str = ""  # what to reduce so that less memory is needed, such as "silos"

    def times(self, factor: float, of: str = "") -> Term:
        """Return this term times ``factor``; the text ``of`` is appended to its description."""
        if factor == 1:
            return self
        return Term(self.name, int(self.bytes * factor), f"{self.of}{of}", self.less)


def bytes_of(terms: Iterable[Term]) -> int:
    """Return the sum of the terms' bytes."""
    return sum(term.bytes for term in terms)


def merged_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Return the sums of terms with equal names, sorted by size, the largest first.

    Each sum has the description of its largest term.
    """
    by_name: dict[str, list[Term]] = {}
    for term in terms:
        by_name.setdefault(term.name, []).append(term)
    sums = []
    for name, same_name in by_name.items():
        largest_term = max(same_name, key=lambda term: term.bytes)
        sums.append(Term(name, bytes_of(same_name), largest_term.of, largest_term.less))
    return tuple(sorted(sums, key=lambda term: -term.bytes))


def spaced(number: int) -> str:
    """Return an integer as text with spaces between groups of digits: 10 000 for 10000."""
    return f"{number:,}".replace(",", " ")


def memory_sentence(terms: Iterable[Term]) -> str:
    """Return a sentence that states how much memory a run needs, and for what the most."""
    sums = merged_terms(terms)
    needed_bytes = bytes_of(sums)
    parts = [
        f"{term.name} {format_size(term.bytes)}{f': {term.of}' if term.of else ''}"
        for term in sums
        if term.bytes >= 0.1 * needed_bytes
    ][:3]
    return f"this run needs about {format_size(needed_bytes)} ({'; '.join(parts)})"


def check_array_memory(horizon: int, checkpoints: int, batches: Iterable[int]) -> None:
    """Raise InputError if the arrays by checkpoint and by release would not fit into memory.

    ``batches`` are the batch sizes of all curves with a fixed batch size.
    """
    count = min(checkpoints, horizon)
    releases = sum(horizon // batch for batch in batches if batch >= 1)
    terms = (
        Term("rounds of checkpoints", 24 * count, spaced(count), "checkpoints"),
        Term("arrays by release", BYTES_PER_RELEASE * releases, spaced(releases), "releases"),
    )
    available_bytes = available()
    if available_bytes is not None and bytes_of(terms) > available_bytes:
        raise InputError(
            f"{memory_sentence(terms)}, and {format_size(available_bytes)} are available"
        )


def batches_that_fit(terms: list[Term], requested: int) -> int:
    """Return how many batches of runs fit into memory together, at most ``requested``.

    ``terms`` are the memory terms of one batch. Raises InputError if not even one batch fits.
    """
    available_bytes, needed_bytes = available(), bytes_of(terms)
    if available_bytes is None or requested * needed_bytes <= available_bytes:
        return requested
    if needed_bytes > available_bytes:
        raise InputError(
            f"{memory_sentence(terms)}, and {format_size(available_bytes)} are available"
        )
    return max(1, available_bytes // needed_bytes)


def silo_term(name: str, size: int, plan: Plan, less: str = "silos") -> Term:
    """Return a memory term of ``size`` bytes, described by the number of silos and d.

    ``less`` says what to reduce so that less memory is needed.
    """
    return Term(name, size, f"{spaced(plan.silos)} silos x d = {plan.dimension}", less)


def outcome_term(checkpoints: int, size: int) -> Term:
    """Return the memory term of one Outcome, with the lists from which its arrays are built.

    ``checkpoints`` is the number of checkpoints, and ``size`` the length of ``Outcome.total``.
    """
    outcome_bytes = (4 * 8 + 2 * NUMBER) * checkpoints + 8 * size
    return Term("counts at checkpoints", outcome_bytes, spaced(checkpoints), "checkpoints")


def array_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Return the number of bytes of an array."""
    return math.prod(shape) * np.dtype(dtype).itemsize


# ---- The loop of the step drivers ----------------------------------------------------------------


def run_rounds(
    environment: Any,
    players: Sequence[Any],
    record: Record,
    rounds: int,
    end_round: Callable[[int], int],
    progress: Progress | None,
    serves: np.ndarray | None = None,
) -> None:
    """Run rounds 1 to ``rounds``, silo by silo, and record all actions and rewards.

    Parameters
    ----------
    players : sequence
        One object for each silo that chooses its actions, with ``select(actions)`` and
        ``observe(reward)``.
    record : Record
        Receives actions, rewards and regret.
    end_round : callable
        ``end_round(round)`` exchanges the messages that are due after the round, and returns the
        number of releases so far.
    progress : callable or None
        ``progress(1)`` is called after each round.
    serves : ndarray, shape (M, T), optional
        0 where a silo has no user in a round; then ``idle()`` of its player is called. Default:
        each silo has a user in every round.
    """
    for round in range(1, rounds + 1):
        for i, player in enumerate(players):
            if serves is not None and not serves[i, round - 1]:
                player.idle()
                continue
            features, means = environment.round(i, round)
            action = player.select(features)
            reward = environment.reward(i, round, means[action])
            player.observe(reward)
            record.note(i, round, action, reward, means)
        record.close(round, end_round(round))
        if progress is not None:
            progress(1)


class Record:
    """Recorder of actions, rewards and regret of every silo and round, for an Outcome."""

    def __init__(self, silos: int, horizon: int, checkpoints: np.ndarray) -> None:
        self.checkpoints = checkpoints
        self.actions = np.zeros((silos, horizon), np.int32)
        self.rewards = np.zeros((silos, horizon))
        self.releases = np.zeros(len(checkpoints), np.int64)
        self._regret = np.zeros(silos)
        self._curves = np.zeros((silos, len(checkpoints)))

    def note(self, silo: int, round: int, action: int, reward: float, means: np.ndarray) -> None:
        """Record one round of one silo; ``means`` (K,) are the expected rewards of its actions."""
        self.actions[silo, round - 1], self.rewards[silo, round - 1] = action, reward
        self._regret[silo] += means.max() - means[action]

    def close(self, round: int, releases: int) -> None:
        """End a round; ``releases`` is the number of releases up to its end."""
        at_checkpoint = self.checkpoints == round
        self._curves[:, at_checkpoint] = self._regret[:, None]
        self.releases[at_checkpoint] = releases

    def group_regret(self) -> np.ndarray:
        """Return the regret (C,) at each checkpoint, summed over silos.

        Silos are added in the order of their indices, so that rounding is reproducible.
        """
        group = np.zeros(len(self.checkpoints))
        for silo_regret in self._curves:
            group += silo_regret
        return group


# ---- The interface -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """The functions that run plans of one kind.

    Parameters
    ----------
    run_one : callable
        ``run_one(environment, plan, checkpoints, *, threads, record, last, progress)`` runs rounds
        1..last (None: all) of one plan by the fast driver. With ``record`` the outcome contains
        actions and rewards, if the plan has them.
    run_steps : callable
        ``run_steps(environment, plan, checkpoints, *, last, progress)`` runs the same rounds with
        the classes of a deployment, message by message. The outcome is the same, bit for bit.
    memory : callable
        ``memory(plan, checkpoints, *, steps, record)`` returns the memory terms of one curve in one
        replicate: its state and its outcome. ``steps`` selects the step driver.
    run_together : callable, optional
        Like ``run_one``, with a sequence of plans instead of one plan. The plans share contexts,
        which are made once.
    together : callable, optional
        ``together(plan)`` returns True if the plan can be run together with others. Default: always
        False.
    snapshots : bool
        True if ``run_one`` and ``run_together`` accept ``snapshot``, a `snapshots.Snapshot` from
        which they resume a run and into which they write its state.
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
        """Run rounds 1..last (default: all) of the plans: together if possible, else one by one."""
        options: dict[str, Any] = {
            "threads": threads, "record": record, "last": last, "progress": progress,
        }  # fmt: skip
        if self.snapshots:
            options["snapshot"] = snapshot
        if self.run_together is not None and self.together(plans[0]):
            return self.run_together(environment, plans, checkpoints, **options)
        return [self.run_one(environment, plan, checkpoints, **options) for plan in plans]
