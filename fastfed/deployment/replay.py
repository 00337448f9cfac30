"""Rehearsing with past records: their decisions and delayed rewards, on the plan's calendar.

A file's own span of time is mapped to the calendar, so that a year may pass in a minute. Each row
is one decision, made with the model of its moment; what its outcome is worth comes after the row's
own delay. A replay is no simulation: what is released is charged, and is of real people.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastfed._validate import InputError
from fastfed.deployment.data import Case, Source, span
from fastfed.deployment.party import SiloProcess
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.shell import FULL

#: Seconds until what a silo refused is tried again.
AGAIN = 0.5


class Times(NamedTuple):
    """When a case comes, and when its outcome becomes known: seconds since 1970."""

    came: float
    known: float


def times(plan: DeployedPlan, source: Source, cases: Sequence[Case]) -> list[Times]:
    """When the cases of a source come by the plan's calendar.

    Without a column of times they come one after the other, evenly between the calendar's start
    and the last moment whose outcome still enters a leaf, in the order of the table. This depends
    on their number alone, never on what is in them.

    Parameters
    ----------
    plan : DeployedPlan
    source : Source
    cases : sequence of Case
        Of the source.

    Raises
    ------
    InputError
        Where the delay leaves no time for decisions.
    """
    calendar = plan.document.calendar
    start, end = float(calendar.start), float(calendar.closes[-1])
    if source.time is None:
        room = end - start - source.delay
        if room <= 0:
            raise InputError(
                f"delay must be below the {end - start:g} seconds of the plan's calendar, "
                f"got {source.delay:g}"
            )
        moments = [start + room * (i + 0.5) / len(cases) for i in range(len(cases))]
        return [Times(moment, moment + source.delay) for moment in moments]
    begin, until = span(source)
    scale = (end - start) / (until - begin)
    made = []
    for case in cases:
        assert case.time is not None
        known = case.time + source.delay if case.known is None else case.known
        made.append(Times(start + (case.time - begin) * scale, start + (known - begin) * scale))
    return made


def survey(plan: DeployedPlan, source: Source, cases: Sequence[Case]) -> dict[str, Any]:
    """What a replay of these cases would do, as plain data without values of records.

    Returns
    -------
    dict
        ``rows``, and of these ``learned``, whose outcome comes in time (of a source with `action`:
        at most); ``too_late``, ``repeated`` (a subject that came before) and ``no_outcome``, why
        others are not; ``beyond_cap``, how many come after as many as the radii count on;
        ``missing`` and ``clipped`` cells by column; ``periods``, the decisions of each period of
        the calendar, and ``caps``, how many of each the radii count on.
    """
    records, calendar = plan.document.schema.records, plan.document.calendar
    assert records is not None
    missing, clipped = {}, {}
    for each in records.variables:
        values = [case.record[each.name] for case in cases]
        if count := sum(value is None for value in values):
            missing[each.name] = count
        if count := sum(map(each.clipped, values)):
            clipped[each.name] = count
    releases = plan.plan.releases
    subjects: set[str] = set()
    periods = [0] * releases
    beyond = late = learned = empty = repeated = 0
    for when, case in sorted(zip(times(plan, source, cases), cases, strict=True), key=_when):
        period = calendar.period(when.came)
        if period > releases or case.subject in subjects:
            repeated += case.subject in subjects
            continue
        counted = learned + late + empty
        beyond += counted - beyond >= plan.plan.end(period)
        if counted >= plan.plan.most_records(releases):
            continue
        periods[period - 1] += 1
        subjects.add(case.subject)
        waits = when.known - when.came
        if waits > calendar.reward_deadline or calendar.period(when.known) > releases:
            late += 1
        elif case.outcome is None and not case.by:
            empty += 1
        else:
            learned += 1
    ends = [0, *(plan.plan.end(k) for k in range(1, releases + 1))]
    return {
        "rows": len(cases),
        "learned": learned,
        "beyond_cap": beyond,
        "too_late": late,
        "repeated": repeated,
        "no_outcome": empty,
        "missing": missing,
        "clipped": clipped,
        "periods": periods,
        "caps": [b - a for a, b in pairwise(ends)],
    }


def _when(pair: tuple[Times, Case]) -> float:
    return pair[0].came


class Replay:
    """Plays past records to a silo, each at its time.

    A silo that was stopped goes on where it was: the decisions that its state holds are known by
    their subjects, and what should have come in the meantime comes at once.

    Parameters
    ----------
    silo : SiloProcess
    source : Source
    cases : sequence of Case
        Of the source, read for the silo's plan.

    """

    def __init__(self, silo: SiloProcess, source: Source, cases: Sequence[Case]) -> None:
        self._silo, self._cases = silo, list(cases)
        party = silo.party
        self._times = times(party.deployed, source, self._cases)
        #: (when, row, the decision whose outcome it is: none for a decision that is to be made)
        self._events: list[tuple[float, int, str]] = []
        made: dict[bytes, deque[str]] = defaultdict(deque)
        for name, decided in party.decisions.items():
            made[decided.subject].append(name)
        for row in sorted(range(len(self._cases)), key=lambda i: self._times[i].came):
            known = made[party.digest_of(self._cases[row].subject)]
            if not known:
                self._events.append((self._times[row].came, row, ""))
            elif (name := known.popleft()) not in party.ended:
                self._events.append((self._times[row].known, row, name))
        heapq.heapify(self._events)

    @property
    def left(self) -> int:
        """Decisions and outcomes that are still to come."""
        return len(self._events)

    @property
    def due(self) -> float:
        """When the next of them comes; infinite after the last."""
        return self._events[0][0] if self._events else float("inf")

    def act(self, now: float) -> None:
        """Do all that is due.

        Raises
        ------
        InputError
            Where the silo refuses, which is tried again at the next call.
        """
        while self.due <= now:
            _, row, name = self._events[0]
            case = self._cases[row]
            if name:
                # The application may have ended it itself.
                if name not in self._silo.party.ended:
                    self._end(name, case)
                heapq.heappop(self._events)
            else:
                # A replay waits: a decision would be made, and nothing learned from it.
                self._silo.party.check_recovered()
                made = self._silo.decide(record=case.record, subject=case.subject)
                heapq.heapreplace(self._events, (self._times[row].known, row, made.id))

    def _end(self, name: str, case: Case) -> None:
        """The outcome of a decision, if the file has one of the action that was chosen."""
        party = self._silo.party
        action = party.deployed.document.schema.action(party.decisions[name].action)
        outcome = case.by.get(action) if case.by else case.outcome
        if outcome is None or case.taken not in (None, action):
            self._silo.cancel(name)
        else:
            self._silo.outcome(name, outcome)

    def run(self, stop: threading.Event, say: Callable[[str], None] = print) -> None:
        """Act until all is done, or `stop` is set; what the silo refuses is said once."""
        last = ""
        while self.left and not stop.is_set():
            wait = min(max(self.due - self._silo.clock(), 0.0), AGAIN)
            if stop.wait(wait):
                return
            try:
                self.act(self._silo.clock())
                trouble = ""
            except (InputError, *FULL) as error:
                trouble = str(error)
                stop.wait(AGAIN)
            if trouble and trouble != last:
                say(f"the replay waits: {trouble}")
            last = trouble
