"""Rehearse a deployment with past records, as if the persons came now.

The time span of a table is mapped to the plan's calendar, so a year of records may be replayed in a
minute. Each row is one decision, made with the silo's model at that time. Its reward follows after
the delay that the row states. A replay is not a simulation: it releases data of real people, and
the ledger is charged.
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
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.process import SiloProcess
from fastfed.deployment.shell import FULL_DISK_ERRORS
from fastfed.privacy.mechanisms.user_bit import bit_to_send

#: Seconds until a decision or outcome that the silo refused is tried again.
RETRY_SECONDS = 0.5


class Times(NamedTuple):
    """The times of a case, in seconds since 1970.

    Parameters
    ----------
    came : float
        When the person comes: the decision is made then.
    known : float
        When the outcome becomes known.
    """

    came: float
    known: float


def times(
    plan: DeployedPlan, source: Source, cases: Sequence[Case], silo: int | None = None
) -> list[Times]:
    """Return the times of a source's cases, mapped to the plan's calendar.

    Without a column of times, cases are spread evenly in the order of the table. They begin at the
    calendar's start, and end early enough that each outcome, which follows after ``source.delay``,
    still enters a period. These times depend on the number of cases only, not on their values.

    Parameters
    ----------
    plan : DeployedPlan
    source : Source
    cases : sequence of Case
        The cases of the source.
    silo : int, optional
        Index of the silo. Needed if the plan has clocks, because silos then close their periods at
        different times.

    Raises
    ------
    InputError
        If the delay leaves no time for decisions.
    """
    calendar = plan.document.calendar
    start, end = float(calendar.start), float(calendar.closes[-1])
    if source.time is None and silo is not None:
        end = float(plan.calendar_of(silo).closes[-1])
    if source.time is None:
        available = end - start - source.delay
        if available <= 0:
            raise InputError(
                f"delay must be below the {end - start:g} seconds of the plan's calendar, "
                f"got {source.delay:g}"
            )
        moments = [start + available * (i + 0.5) / len(cases) for i in range(len(cases))]
        return [Times(moment, moment + source.delay) for moment in moments]
    # Map [begin, until) of the table linearly to the plan's calendar.
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


def _similar_subjects(cases: Sequence[Case]) -> int:
    """Count the persons whose identifying text is nearly equal to a different person's text."""
    persons = {case.subject for case in cases}
    count_by_form = Counter(map(_rough_form, persons))
    return sum(count_by_form[_rough_form(person)] > 1 for person in persons)


def _rough_form(person: str) -> str:
    """Return only the letters and digits of a text, in lower case and without leading zeros."""
    return "".join(c for c in person.casefold() if c.isalnum()).lstrip("0")


def survey(
    plan: DeployedPlan, source: Source, cases: Sequence[Case], silo: int | None = None
) -> dict[str, Any]:
    """Count what a replay of these cases would do, without revealing values of records.

    ``silo`` is the index of the silo. It is needed if the plan has clocks, because silos then close
    their periods at different times.

    Returns
    -------
    dict
        - ``rows``: the number of cases.
        - ``subjects``: the number of persons. None without `Source.subject`, because every row then
          counts as a different person.
        - ``similar_subjects``: the number of persons who may be the same person as another one,
          because their texts differ only in upper and lower case, spaces, punctuation or leading
          zeros.
        - ``learned``: the number of cases whose outcome is known in time. With `Source.action` it
          is an upper bound, because an outcome is used only if the model chooses the same action.
        - ``too_late``, ``repeated``, ``no_outcome``: the numbers of cases that are not learned from
          for these reasons. A case is repeated if its person already has as many earlier cases as
          the plan may learn from one person.
        - ``dropped``: the number of all cases that are not learned from.
        - ``beyond_cap``: the number of cases in excess of ``caps``.
        - ``missing``, ``clipped``: column -> number of missing or clipped cells.
        - ``periods``: the number of decisions in each period of the calendar.
        - ``caps``: the number of decisions in each period for which the plan's confidence radii are
          valid.
    """
    if silo is None and plan.clocks is not None:
        raise InputError(
            "the silos of this plan close their periods on their own clocks: name the silo (--silo)"
        )
    calendar = plan.calendar_of(silo or 0)
    releases = len(calendar.closes)
    claim, decisions_of = plan.plan.privacy, Counter[str]()
    most_per_person = 1 if claim is None else claim.max_participations
    periods = [0] * releases
    beyond_cap = too_late = learned = no_outcome = repeated = 0
    # Go through the cases in the order of time, with the same rules as the silo.
    for event_time, case in sorted(
        zip(times(plan, source, cases, silo), cases, strict=True), key=_decision_time
    ):
        period = calendar.period(event_time.came)
        is_repeated = decisions_of[case.subject] >= most_per_person
        if period > releases or is_repeated:
            repeated += is_repeated
            continue
        # Radii are valid for at most `end(period)` people up to this period: count further people.
        # The silo still learns from them, up to `most_records` people.
        people = learned + too_late + no_outcome
        beyond_cap += people - beyond_cap >= plan.plan.end(period)
        if people >= plan.plan.most_records(releases):
            continue
        periods[period - 1] += 1
        decisions_of[case.subject] += 1
        delay = event_time.known - event_time.came
        if delay > calendar.reward_deadline or calendar.period(event_time.known) > releases:
            too_late += 1
        elif case.outcome is None and not case.outcome_by_action:
            no_outcome += 1
        else:
            learned += 1
    ends = [0, *(plan.plan.end(k) for k in range(1, releases + 1))]
    missing, clipped = _cells_by_column(plan, cases)
    return {
        "rows": len(cases),
        "subjects": None if source.subject is None else len({case.subject for case in cases}),
        "similar_subjects": 0 if source.subject is None else _similar_subjects(cases),
        "learned": learned,
        "dropped": len(cases) - learned,
        "beyond_cap": beyond_cap,
        "too_late": too_late,
        "repeated": repeated,
        "no_outcome": no_outcome,
        "missing": missing,
        "clipped": clipped,
        "periods": periods,
        "caps": [b - a for a, b in pairwise(ends)],
    }


def _cells_by_column(
    plan: DeployedPlan, cases: Sequence[Case]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return two dicts, column -> number of missing cells and column -> number of clipped cells.

    Columns without such cells are left out.
    """
    records = plan.document.schema.records
    assert records is not None
    missing, clipped = {}, {}
    for variable in records.variables:
        values = [case.record[variable.name] for case in cases]
        if count := sum(value is None for value in values):
            missing[variable.name] = count
        if count := sum(map(variable.is_outside, values)):
            clipped[variable.name] = count
    return missing, clipped


def _decision_time(pair: tuple[Times, Case]) -> float:
    """Return the time of a decision, as a sort key."""
    return pair[0].came


class Replay:
    """Replay past records to a silo, each at its time.

    A replay that was stopped can be resumed. Decisions that the silo has already made are
    recognized by their subjects, and overdue events happen at once.

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
        self._times = times(party.deployed, source, self._cases, party.index)
        #: Heap of events (time, row, decision id). An event is the outcome of this decision or, if
        #: the id is empty, the decision of this row.
        self._events: list[tuple[float, int, str]] = []
        # Digest of a subject -> ids of the decisions that the silo has already made for the person.
        ids_by_subject: dict[bytes, deque[str]] = defaultdict(deque)
        for name, decided in party.decisions.items():
            ids_by_subject[decided.subject].append(name)
        # A person's decisions belong to the person's first rows, in the order of time.
        for row in sorted(range(len(self._cases)), key=lambda i: self._times[i].came):
            made_ids = ids_by_subject[party.digest_of(self._cases[row].subject)]
            if not made_ids:
                self._events.append((self._times[row].came, row, ""))
            elif (name := made_ids.popleft()) not in party.ended:
                self._events.append((self._times[row].known, row, name))
        heapq.heapify(self._events)

    @property
    def remaining(self) -> int:
        """Number of remaining decisions and outcomes."""
        return len(self._events)

    @property
    def due(self) -> float:
        """Time of the next event; infinite after the last."""
        return self._events[0][0] if self._events else float("inf")

    def act(self, now: float) -> None:
        """Pass all due events to the silo.

        Raises
        ------
        InputError
            If the silo refuses an event. The next call tries the event again.
        """
        while self.due <= now:
            _, row, decision_id = self._events[0]
            case = self._cases[row]
            if decision_id:
                # The event is the outcome of this decision, unless the silo's application has ended
                # the decision.
                if decision_id not in self._silo.party.ended:
                    self._end(decision_id, case)
                heapq.heappop(self._events)
            else:
                # The event is a new decision. A silo that must be recovered would not learn from
                # this decision, so try later.
                self._silo.party.check_recovered()
                decision = self._silo.decide(record=case.record, subject=case.subject)
                heapq.heapreplace(self._events, (self._times[row].known, row, decision.id))

    def _end(self, decision_id: str, case: Case) -> None:
        """Pass the outcome of a decision to the silo, or cancel the decision.

        ``case`` is the row of the decision. The decision is cancelled if this row does not have the
        outcome of the action that the silo chose.
        """
        party = self._silo.party
        action = party.deployed.document.schema.action(party.decisions[decision_id].action)
        by_action = case.outcome_by_action
        outcome = by_action.get(action) if by_action else case.outcome
        if outcome is None or case.taken not in (None, action):
            self._silo.cancel(decision_id)
        elif flips := party.plan.flips:
            # In a rehearsal this process is also the user's device.
            index = party.decisions[decision_id].action
            reward = party.deployed.document.schema.reward(outcome, index)
            self._silo.bit(decision_id, bit_to_send(reward, flips))
        else:
            self._silo.outcome(decision_id, outcome)

    def run(self, stop: threading.Event, say: Callable[[str], None] = print) -> None:
        """Replay until no events remain or ``stop`` is set.

        ``say`` is called once with the text of each problem, and not again while it persists.
        """
        last_problem = ""
        while self.remaining and not stop.is_set():
            wait = min(max(self.due - self._silo.clock(), 0.0), RETRY_SECONDS)
            if stop.wait(wait):
                return
            try:
                self.act(self._silo.clock())
                problem = ""
            except (InputError, *FULL_DISK_ERRORS) as error:
                problem = str(error)
                stop.wait(RETRY_SECONDS)
            if problem and problem != last_problem:
                say(f"the replay waits: {problem}")
            last_problem = problem
