"""Rehearse a deployment with past records: their decisions and delayed rewards.

The time span of a file is mapped to the plan's calendar, so a year may pass in a minute. Each row
is one decision, made with the model at its time. Its reward follows after the row's delay. A replay
is not a simulation: it releases data of real people, and the ledger is charged.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastfed._validate import InputError
from fastfed.deployment.data import Case, Source, span
from fastfed.deployment.party import SiloProcess
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.shell import FULL

#: Seconds until an action that the silo refused is tried again.
AGAIN = 0.5


class Times(NamedTuple):
    """Seconds since 1970 when a case is decided, and when its outcome becomes known."""

    came: float
    known: float


def times(plan: DeployedPlan, source: Source, cases: Sequence[Case]) -> list[Times]:
    """Map the times of a source's cases to the plan's calendar.

    Without a column of times, cases are spread evenly, in the order of the table, from the
    calendar's start to the last time whose outcome still enters a leaf. This depends only on the
    number of cases, not on their values.

    Parameters
    ----------
    plan : DeployedPlan
    source : Source
    cases : sequence of Case
        The cases of the source.

    Returns
    -------
    list of Times

    Raises
    ------
    InputError
        If the delay leaves no time for decisions.
    """
    calendar = plan.document.calendar
    start, end = float(calendar.start), float(calendar.closes[-1])
    if source.time is None:
        available = end - start - source.delay
        if available <= 0:
            raise InputError(
                f"delay must be below the {end - start:g} seconds of the plan's calendar, "
                f"got {source.delay:g}"
            )
        moments = [start + available * (i + 0.5) / len(cases) for i in range(len(cases))]
        return [Times(moment, moment + source.delay) for moment in moments]
    begin, until = span(source)
    scale = (end - start) / (until - begin)
    mapped = []
    for case in cases:
        assert case.time is not None
        known_time = case.time + source.delay if case.known is None else case.known
        mapped.append(
            Times(start + (case.time - begin) * scale, start + (known_time - begin) * scale)
        )
    return mapped


def _similar(cases: Sequence[Case]) -> int:
    """Return the number of persons whose texts differ from others only in how they are written."""
    persons = {case.subject for case in cases}
    forms = Counter(map(_rough_form, persons))
    return sum(forms[_rough_form(person)] > 1 for person in persons)


def _rough_form(person: str) -> str:
    """Return the letters and digits of a text in lower case, without leading zeros."""
    return "".join(c for c in person.casefold() if c.isalnum()).lstrip("0")


def survey(plan: DeployedPlan, source: Source, cases: Sequence[Case]) -> dict[str, Any]:
    """Predict what a replay of these cases would do, as plain data without values of records.

    Returns
    -------
    dict
        - ``rows``: the number of cases.
        - ``subjects``: the number of persons; None without `Source.subject`, because then every
          row counts as another person, whoever it is.
        - ``similar_subjects``: persons whose texts differ from those of others only in upper and
          lower case, blanks, signs or leading zeros, and who may be the same.
        - ``learned``: cases whose outcome is known in time. With `Source.action` this is an upper
          bound, because an outcome is used only if the same action is chosen.
        - ``too_late``, ``repeated`` (the subject came before), ``no_outcome``: cases that are not
          learned from.
        - ``dropped``: all cases that are not learned from.
        - ``beyond_cap``: cases beyond the number that the radii are computed for.
        - ``missing``, ``clipped``: the number of such cells by column.
        - ``periods``: the number of decisions in each period of the calendar.
        - ``caps``: the number in each period that the radii are computed for.
    """
    records, calendar = plan.document.schema.records, plan.document.calendar
    assert records is not None
    missing_by_column, clipped_by_column = {}, {}
    for variable in records.variables:
        values = [case.record[variable.name] for case in cases]
        if count := sum(value is None for value in values):
            missing_by_column[variable.name] = count
        if count := sum(map(variable.clipped, values)):
            clipped_by_column[variable.name] = count
    releases = plan.plan.releases
    subjects: set[str] = set()
    periods = [0] * releases
    beyond_cap = too_late = learned = no_outcome = repeated = 0
    for when, case in sorted(zip(times(plan, source, cases), cases, strict=True), key=_when):
        period = calendar.period(when.came)
        if period > releases or case.subject in subjects:
            repeated += case.subject in subjects
            continue
        counted = learned + too_late + no_outcome
        beyond_cap += counted - beyond_cap >= plan.plan.end(period)
        if counted >= plan.plan.most_records(releases):
            continue
        periods[period - 1] += 1
        subjects.add(case.subject)
        delay = when.known - when.came
        if delay > calendar.reward_deadline or calendar.period(when.known) > releases:
            too_late += 1
        elif case.outcome is None and not case.by:
            no_outcome += 1
        else:
            learned += 1
    ends = [0, *(plan.plan.end(k) for k in range(1, releases + 1))]
    return {
        "rows": len(cases),
        "subjects": None if source.subject is None else len({case.subject for case in cases}),
        "similar_subjects": 0 if source.subject is None else _similar(cases),
        "learned": learned,
        "dropped": len(cases) - learned,
        "beyond_cap": beyond_cap,
        "too_late": too_late,
        "repeated": repeated,
        "no_outcome": no_outcome,
        "missing": missing_by_column,
        "clipped": clipped_by_column,
        "periods": periods,
        "caps": [b - a for a, b in pairwise(ends)],
    }


def _when(pair: tuple[Times, Case]) -> float:
    """Return the time of a decision, to sort by."""
    return pair[0].came


class Replay:
    """Replay past records to a silo, each at its time.

    The replay of a silo that was stopped resumes: subjects identify the decisions that are in its
    state already, and events that are overdue happen at once.

    Parameters
    ----------
    silo : SiloProcess
    source : Source
    cases : sequence of Case
        The cases of the source, read for the silo's plan.
    """

    def __init__(self, silo: SiloProcess, source: Source, cases: Sequence[Case]) -> None:
        self._silo, self._cases = silo, list(cases)
        party = silo.party
        self._times = times(party.deployed, source, self._cases)
        #: Heap of (time, row, decision id). The event is the outcome of that decision or, if the id
        #: is empty, a decision to be made.
        self._events: list[tuple[float, int, str]] = []
        decisions_of: dict[bytes, deque[str]] = defaultdict(deque)
        for name, decided in party.decisions.items():
            decisions_of[decided.subject].append(name)
        for row in sorted(range(len(self._cases)), key=lambda i: self._times[i].came):
            decisions = decisions_of[party.digest_of(self._cases[row].subject)]
            if not decisions:
                self._events.append((self._times[row].came, row, ""))
            elif (name := decisions.popleft()) not in party.ended:
                self._events.append((self._times[row].known, row, name))
        heapq.heapify(self._events)

    @property
    def left(self) -> int:
        """Number of remaining decisions and outcomes."""
        return len(self._events)

    @property
    def due(self) -> float:
        """Time of the next event; infinite after the last."""
        return self._events[0][0] if self._events else float("inf")

    def act(self, now: float) -> None:
        """Do all events that are due.

        Raises
        ------
        InputError
            If the silo refuses an event, which is tried again at the next call.
        """
        while self.due <= now:
            _, row, name = self._events[0]
            case = self._cases[row]
            if name:
                # The application may have ended the decision already.
                if name not in self._silo.party.ended:
                    self._end(name, case)
                heapq.heappop(self._events)
            else:
                # Wait for recovery: nothing would be learned from decisions before it.
                self._silo.party.check_recovered()
                decision = self._silo.decide(record=case.record, subject=case.subject)
                heapq.heapreplace(self._events, (self._times[row].known, row, decision.id))

    def _end(self, name: str, case: Case) -> None:
        """Report the outcome if the file has it for the chosen action; else cancel the decision."""
        party = self._silo.party
        action = party.deployed.document.schema.action(party.decisions[name].action)
        outcome = case.by.get(action) if case.by else case.outcome
        if outcome is None or case.taken not in (None, action):
            self._silo.cancel(name)
        else:
            self._silo.outcome(name, outcome)

    def run(self, stop: threading.Event, say: Callable[[str], None] = print) -> None:
        """Run until no events remain or `stop` is set; report each refusal of the silo once."""
        last_problem = ""
        while self.left and not stop.is_set():
            wait = min(max(self.due - self._silo.clock(), 0.0), AGAIN)
            if stop.wait(wait):
                return
            try:
                self.act(self._silo.clock())
                problem = ""
            except (InputError, *FULL) as error:
                problem = str(error)
                stop.wait(AGAIN)
            if problem and problem != last_problem:
                say(f"the replay waits: {problem}")
            last_problem = problem
