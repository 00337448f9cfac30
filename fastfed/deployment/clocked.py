"""Hub and silos of a plan with the key ``clock``: silos report at different times.

The clocks (docs/clocks.md) define *moments* 1, 2, ..., V, the closes of the plan's calendar. At
each moment, one or more silos close a leaf (the sums of the records since the silo's last report).
Each silo numbers its leaves and reports 1, 2, ... At moment v there is *exchange* v: the hub
collects the reports that have arrived, and broadcasts *view* v, the sum of the latest reports of
all silos.

Nobody waits for a silo that is late. The hub collects the reports of one moment until all have
arrived, until the grace period is over, or until a silo has reported at a later moment. A late
report is added up in the next exchange. An exchange may be empty.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import Any, cast

import numpy as np

from fastfed._random import NoiseSource
from fastfed.deployment import wire
from fastfed.deployment.guard import Alarm, Fit, sum_of
from fastfed.deployment.hub import BrokenLog, Hub
from fastfed.deployment.model import adopt_broadcast
from fastfed.deployment.party import Step
from fastfed.deployment.plans import Calendar, DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.seal import digest
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import Write
from fastfed.deployment.wire import Broadcast, Opened, Refused, View, entry_of
from fastfed.protocols.plan import ClockedPlan


def clocks_of(deployed: DeployedPlan) -> Any:
    """Return the clocks of the silos of a plan with the key ``clock``: who reports when."""
    return cast(ClockedPlan, deployed.plan).clocks


class ClockedSilo(SiloParty):
    """Run a silo that reports on its own clock.

    It stores all views. As in a simulation, it chooses actions by the last view that contains a new
    report of this silo.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # ---- State saved in the store: survives a restart.
        #: Entry v: number of this silo's report in view v; 0 if the view has none. View 0 is empty.
        self._own_numbers = [0]
        #: For each silo, the number of its report in the last view.
        self._numbers: tuple[int, ...] = (0,) * self.plan.silos

    @property
    def released(self) -> int:
        """Number of views that this silo has."""
        return len(self._own_numbers) - 1

    def _last_leaf_in(self, release: int) -> int:
        return self._own_numbers[release]

    @property
    def released_leaves(self) -> int:
        """Number of leaves 1, 2, ... that are in the last view, or will never be in a view."""
        leaf = self._own_numbers[-1]
        while leaf + 1 in self.unreported:
            leaf += 1
        return self.leaves if self.released == self.deployed.exchanges else leaf

    def _use_broadcast(self, model: Any, values: np.ndarray, release: int, body: Broadcast) -> None:
        """Let a model use the values (s,) of a view, if it contains a new report of this silo."""
        if any(entry.silo == self.index for entry in body.entries):
            adopt_broadcast(model, values, release, body)

    def fold(self, write: Write) -> None:
        """Apply a durable write to the state."""
        super().fold(write)
        if write.kind == "broadcast":
            self._numbers = self._checked_numbers(
                self.wire.body(self.wire.read(write.value), Broadcast)
            )
            self._own_numbers.append(self._numbers[self.index])

    def _checked_numbers(self, body: Broadcast) -> tuple[int, ...]:
        """Return the numbers of the silos' reports in a view; raise Refused if one is missing."""
        numbers = cast(View, body).numbers
        if len(numbers) != self.plan.silos:
            raise Refused(f"a view must state {self.plan.silos} numbers, got {len(numbers)}")
        return numbers

    def _report_number_in(self, release: int, body: Broadcast, silo: int) -> int:
        return self._checked_numbers(body)[silo]

    def _report_problem(self, release: int, body: Broadcast) -> str:
        """Return an alarm text if a report number in view ``release`` is wrong; else "".

        If the view has a new report of a silo, the report's number must be larger than the number
        of this silo's report in the view before. Otherwise both numbers must be equal. In both
        cases the number must not exceed the planned one: the number if no report is late.
        """
        changed = {entry.silo for entry in body.entries}
        planned = clocks_of(self.deployed).reports[release].tolist()
        numbers = zip(self._numbers, self._checked_numbers(body), planned, strict=True)
        for silo, (previous, number, planned_number) in enumerate(numbers):
            follows = number > previous if silo in changed else number == previous
            if not follows or number > planned_number:
                return f"view {release} has report {number} of silo {self.deployed.silos[silo]}"
        return ""

    def _largest_values(self, release: int, body: Broadcast) -> np.ndarray:
        """Return the largest absolute values of a view (s,): sums of the limits of its reports."""
        limits = [self._range.report(k) for k in self._checked_numbers(body) if k]
        return np.sum(limits, axis=0) if limits else np.zeros(self.plan.statistic_size)

    def _close_leaf(self, release: int) -> Step:
        """Charge and seal a report, unless there is no further exchange to send it in."""
        if self.released == self.deployed.exchanges:
            return Step((Write("without", str(release), b"closed after the last exchange"),))
        return super()._close_leaf(release)

    def _is_too_late(self, release: int) -> bool:
        """Return False: a late report is added up in a later exchange."""
        return False

    def _last_before(self, release: int) -> int:
        return self.released

    def _last_closed(self, kind: str, now: float) -> int:
        """Return the largest number that a message may have: of a leaf in a receipt, or of a view.

        A message with a larger number is refused: the moment of this number is not over.
        """
        last_leaf = super()._last_closed(kind, now)
        if kind == "receipt":
            return last_leaf
        # Other messages have the number of a view, that is, of a moment. If this silo has sealed a
        # leaf, the moment at which the leaf closed is over, even if the clock was set back since.
        closes = self.deployed.document.calendar.closes
        moment = bisect_left(closes, self.calendar.closes[last_leaf - 1]) + 1 if last_leaf else 0
        return max(self.deployed.document.calendar.closed(now), moment)

    def status(self, now: float | None = None) -> dict[str, object]:
        """Return the state as `SiloParty.status` does, and numbers of views and reports.

        ``views``: the number of views that this silo has received. ``reports``: the number of this
        silo's report in the last view, and how many reports it makes in the whole plan.
        """
        reports = [self._own_numbers[-1], self.leaves]
        return super().status(now) | {"views": self.released, "reports": reports}


class ClockedHub(Hub):
    """Run the hub of silos that report on their own clocks.

    Notes
    -----
    Guarantee: as in the plan's certificate. Each silo adds the noise to its reports, and a view is
    post-processing of reports.
    """

    def __init__(
        self, deployed: DeployedPlan, secret: bytes, *, noise: NoiseSource | None = None
    ) -> None:
        super().__init__(deployed, secret, noise=noise)
        # ---- State recomputed from the log.
        #: (silo, digest of a report) -> number of the report. A silo numbers its reports from 1.
        self._number_of: dict[tuple[int, bytes], int] = {}
        #: For each silo, the number of its last report that the hub has; 0 for none.
        self._last_numbers = [0] * self.plan.silos
        #: Entry v: for each silo, the number of its report in view v; 0 for none. View 0 is empty.
        self._numbers: list[tuple[int, ...]] = [(0,) * self.plan.silos]
        #: Silo -> number and values (s,) of its report in the last view, before the values are
        #: scaled down to the plan's cap.
        self._view_reports: dict[int, tuple[int, np.ndarray]] = {}

    @cached_property
    def _calendars(self) -> list[Calendar]:
        """The calendar of each silo."""
        return [self.deployed.calendar_of(i) for i in range(self.plan.silos)]

    # ---- numbers of reports ----------------------------------------------------------------------

    def _report_count(self, silo: int) -> int:
        return len(self._calendars[silo].closes)

    def _may_have_seen(self, body: wire.Seen, release: int) -> bool:
        return 0 <= body.last <= self.deployed.exchanges

    def _last_report_in(self, release: int, silo: int) -> int:
        return self._numbers[release][silo]

    def _report_number(self, release: int, entry: wire.Entry) -> int:
        return self._number_of.get((entry.silo, entry.digest), 0)

    def _due(self, view: int) -> list[int]:
        """Return the silos that close a leaf at the moment of a view, without those that left."""
        sends = clocks_of(self.deployed).sends[view - 1].tolist()
        return [i for i, due in enumerate(sends) if due and i not in self.left_silos]

    def _planned_number(self, view: int, silo: int) -> int:
        """Return the number of a silo's report in a view if no report is late."""
        return int(clocks_of(self.deployed).reports[view, silo])

    def _missing(self, release: int) -> list[int]:
        """Return the silos whose report is due at moment ``release`` but is missing.

        A report without the silo's `Seen` message counts as missing. Signatures of `Seen` messages
        are checked when the hub opens the set, and not at each message.
        """
        keys = ((self._planned_number(release, i), i) for i in self._due(release))
        return [key[1] for key in keys if key not in self.reports or key not in self.seen]

    # ---- exchanges -------------------------------------------------------------------------------

    def _open_next_set(self, release: int, now: float) -> Step:
        """Open the set of exchange ``release``: fix the new reports that enter the view.

        These are the newest report of each silo, up to the exchange's moment. A silo whose newest
        report is in an earlier set adds none.
        """
        if not self._silos_could_join(now):
            return Step()
        if len(self.left_silos) == self.plan.silos:
            return Step((Write("ended", "", b"all silos have left"),))
        if not self._is_collected(release, now):
            return Step()
        entries = []
        for silo, previous in enumerate(self._numbers[release - 1]):
            # Numbers up to `upper` may enter. A silo that has left adds no further report.
            upper = previous if silo in self.left_silos else self._planned_number(release, silo)
            newest = next((k for k in range(upper, previous, -1) if self._has_reported(k, silo)), 0)
            if newest:
                entries.append(entry_of(silo, self.reports[newest, silo]))
        return Step((Write("set", str(release), self.signed(release, Opened(tuple(entries)))),))

    def _is_collected(self, view: int, now: float) -> bool:
        """Return True once the hub waits for no further report that is due at a view's moment."""
        calendar = self.deployed.document.calendar
        if now < calendar.closes[view - 1]:
            return False
        if now >= calendar.closes[view - 1] + calendar.grace or not self._missing(view):
            return True
        # Do not wait for a late silo once any silo has reported at a later moment.
        later_moments = range(view + 1, calendar.closed(now) + 1)
        return any(
            (self._planned_number(moment, i), i) in self.reports
            for moment in later_moments
            for i in self._due(moment)
        )

    def _compute_release(self, release: int, opened_set: Opened) -> np.ndarray:
        """Return the values (s,) of view ``release``: the sum of every silo's latest report.

        If the plan has a cap, each report is first scaled down to the cap. Reports are added in the
        order of silos, so that rounding errors are always the same.
        """
        capped = [
            self._cap_report(values, number, silo)
            for silo, (number, values) in self._reports_in(release).items()
        ]
        return sum_of(capped) if capped else np.zeros(self.plan.statistic_size)

    def _reports_in(self, view: int) -> dict[int, tuple[int, np.ndarray]]:
        """Return numbers and values (s,) of a view's reports, by silo, before capping; cached."""
        reports = {}
        for silo, number in enumerate(self._numbers[view]):
            if not number:
                continue
            report = self._view_reports.get(silo)
            if report is None or report[0] != number:
                envelope = self.wire.read(self.reports[number, silo])
                report = number, self._decrypt_report(envelope, f"report {number}")
            reports[silo] = report
        self._view_reports = reports
        return reports

    def _body(self, release: int, body: Broadcast) -> Broadcast:
        return View(body.values, body.entries, body.before, body.helper, self._numbers[release])

    def _computed_fits(self, detector: Alarm, release: int) -> list[Fit]:
        return list(detector.fits_of_view(release, self._reports_in(release)))

    # ---- state -----------------------------------------------------------------------------------

    def fold(self, write: Write) -> None:
        """Apply an entry of the log to the state; see `Hub.fold`.

        An entry of the kind "set" lists the reports that enter the next view. Each report in it
        must be newer than the report of the same silo in the last view.
        """
        super().fold(write)
        if write.kind == "report":
            number, _, silo = write.key.partition("/")
            self._number_of[int(silo), digest(write.value)] = int(number)
            self._last_numbers[int(silo)] = max(self._last_numbers[int(silo)], int(number))
        elif write.kind == "set":
            numbers = list(self._numbers[-1])
            for entry in self.sets[int(write.key)].entries:
                new_number = self._report_number(int(write.key), entry)
                if new_number <= numbers[entry.silo]:
                    raise BrokenLog(
                        f"the set of exchange {write.key} has report {new_number} of silo "
                        f"{entry.silo}, which is not newer than report {numbers[entry.silo]} in "
                        "the last view"
                    )
                numbers[entry.silo] = new_number
            self._numbers.append(tuple(numbers))

    def _waits(self, now: float) -> dict[str, Any]:
        """Return what the hub waits for at time ``now``, as a row of `progress.WAITS`."""
        waits = super()._waits(now)
        release = len(self.broadcasts) + 1
        # In the state "open" no report is due. In the states "reports" and "too-few" the hub may
        # have stopped waiting for late reports. In both cases it waits for the next moment.
        if waits["state"] == "open" or (
            waits["state"] in ("reports", "too-few") and self._is_collected(release, now)
        ):
            return waiting("hub", "clocks", release, None)
        return waits

    def status(self, now: float | None = None) -> dict[str, object]:
        """Return the state as `Hub.status` does, and each silo's last report.

        Returns
        -------
        dict
            ``waiting_for`` is empty: no silo waits for another. ``reports``: silo -> number of its
            last report, number of its reports in the plan, and when the period of the last report
            ended (None before the first). With ``now``, ``silent``: silo -> when its next report
            was due, for the silos that `silent` returns.
        """
        changed_entries: dict[str, object] = {"waiting_for": [], "reports": self.reports_by_silo()}
        if now is not None:
            changed_entries["silent"] = self.silent(now)
        return super().status(now) | changed_entries

    def last_reports(self) -> dict[str, int]:
        """Return the number of each silo's last report that the hub has; 0 if it has none."""
        return dict(zip(self.deployed.silos, self._last_numbers, strict=True))

    def reports_by_silo(self) -> dict[str, tuple[int, int, float | None]]:
        """Return the entry ``reports`` of `status`."""
        last_reports = self.last_reports()
        return {
            name: (k, len(calendar.closes), float(calendar.closes[k - 1]) if k else None)
            for (name, k), calendar in zip(last_reports.items(), self._calendars, strict=True)
        }

    def silent(self, now: float) -> dict[str, float]:
        """Return the silos that have been silent for long, and when their next reports were due.

        The next report of such a silo is late by more than the grace period, and by more than the
        length of the silo's period in which the report's records were collected.

        Returns
        -------
        dict of str to float
            Silo -> seconds since 1970.
        """
        silent, grace = {}, self.deployed.document.calendar.grace
        reports_and_calendars = zip(self.last_reports().items(), self._calendars, strict=True)
        for silo, ((name, k), calendar) in enumerate(reports_and_calendars):
            # Report k is the last one that the hub has. Report k + 1 is about the records from
            # times[k] to times[k + 1].
            times = (calendar.start, *calendar.closes)
            if k == len(calendar.closes) or silo in self.left_silos:
                continue
            if now > times[k + 1] + max(grace, times[k + 1] - times[k]):
                silent[name] = float(times[k + 1])
        return silent
