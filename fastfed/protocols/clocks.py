"""Public clocks of silos: in which ticks a silo serves a user, and when it closes a batch.

A tick is a round of a simulation, or a moment in a deployment's calendar. An exchange is a tick in
which at least one silo reports. A view is the sum of all silos' latest reports after an exchange
(docs/clocks.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np

from fastfed.protocols.schedule import Schedule, by_rate

#: Values of ``by``: batches count the users of a silo, or ticks.
USERS, TICKS = "users", "ticks"
RULES = (USERS, TICKS)


@dataclass(frozen=True)
class Clocks:
    """The clocks of all silos. They do not depend on data.

    Parameters
    ----------
    silos : int
        M, the number of silos.
    horizon : int
        T, the number of ticks.
    ends : tuple of int
        The ends of the batches of each silo: a batch ends when the silo has served this number of
        users, or in this tick, see ``by``.
    rates : tuple of float
        Users per tick of silo 0, 1, ..., each in (0, 1]. Further silos have rate 1.
    asleep : tuple of (int, int, int)
        Intervals (silo, first tick, last tick) in which a silo serves nobody and sends nothing.
    by : {"users", "ticks"}
        The unit of ``ends``: users that the silo has served, or ticks.
    wait : bool
        True if all silos close their batches together, once each has served enough users.
    """

    silos: int
    horizon: int
    ends: tuple[int, ...]
    rates: tuple[float, ...] = ()
    asleep: tuple[tuple[int, ...], ...] = ()
    by: str = USERS
    wait: bool = False

    @property
    def valid(self) -> bool:
        """True if all fields are in range."""
        return (
            self.by in RULES
            and not (self.wait and self.by == TICKS)
            and len(self.rates) <= self.silos
            and all(0.0 < rate <= 1.0 for rate in self.rates)
            and all(len(i) == 3 and i[0] < self.silos and 1 <= i[1] <= i[2] for i in self.asleep)
            and all(a < b for a, b in pairwise((0, *self.ends)))
        )

    def __reduce__(self) -> tuple[type[Clocks], tuple[object, ...]]:
        """Pickle only the fields, and no array that was computed from them."""
        return Clocks, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def memory(self) -> int:
        """The size in bytes of all cached arrays that have an entry for each silo and tick."""
        return 7 * self.silos * self.horizon

    @cached_property
    def sleeps(self) -> np.ndarray:
        """Return 1 where a silo is asleep in a tick, else 0, (M, T) uint8."""
        sleeps = np.zeros((self.silos, self.horizon), np.uint8)
        for silo, first, last in self.asleep:
            sleeps[silo, first - 1 : last] = 1
        return sleeps

    @cached_property
    def serves(self) -> np.ndarray:
        """Return 1 where a silo serves a user in a tick, else 0, (M, T) uint8."""
        serves = 1 - self.sleeps
        for silo, rate in enumerate(self.rates):
            serves[silo] &= by_rate(rate, self.horizon)
        return serves

    @cached_property
    def _served(self) -> np.ndarray:
        """Return the number of users that each silo has served by the end of each tick, (M, T)."""
        return self.serves.cumsum(axis=1, dtype=np.int32)

    @cached_property
    def _reports(self) -> np.ndarray:
        """Return 1 where a silo reports at the end of a tick, else 0, (M, T) uint8."""
        ends = np.array([n for n in self.ends if n <= self.horizon], np.int64)
        at_end = np.zeros(self.horizon + 1, np.uint8)
        at_end[ends] = 1
        if self.wait:
            reports = np.zeros((self.silos, self.horizon), np.uint8)
            reports[:, self._common_ticks(ends) - 1] = 1
            return reports
        if self.by == TICKS:
            return at_end[1:] & (1 - self.sleeps)
        return at_end[self._served] & self.serves

    def _common_ticks(self, ends: np.ndarray) -> np.ndarray:
        """Return the ticks in which all silos close a batch, if they wait for each other.

        Let s be the fewest users that a silo had served when the last batch was closed (0 at the
        start), and n the least entry of ``ends`` above s. The next batch is closed in the first
        tick in which no silo is asleep and each silo has served at least n users.
        """
        least_served = self._served.min(axis=0)
        all_awake = np.flatnonzero(~self.sleeps.any(axis=0))
        least_served_awake, common_ticks, served = least_served[all_awake], [], 0
        while (k := int(np.searchsorted(ends, served, side="right"))) < len(ends):
            first = int(np.searchsorted(least_served_awake, ends[k]))
            if first == len(all_awake):
                break
            common_ticks.append(int(all_awake[first]) + 1)
            served = int(least_served_awake[first])
        return np.array(common_ticks, np.int64)

    @cached_property
    def ticks(self) -> np.ndarray:
        """Return the ticks of the exchanges, in which a silo reports, increasing, (V,) int64."""
        return np.flatnonzero(self._reports.any(axis=0)) + 1

    @cached_property
    def sends(self) -> np.ndarray:
        """Return 1 where silo i reports in exchange v, else 0, (V, M) uint8."""
        return np.ascontiguousarray(self._reports[:, self.ticks - 1].T)

    @cached_property
    def reports(self) -> np.ndarray:
        """Return the number of reports that each silo has made after v exchanges, (V + 1, M) int64.

        v is 0..V.
        """
        first = np.zeros((1, self.silos), np.int64)
        return np.concatenate([first, self.sends.cumsum(axis=0, dtype=np.int64)])

    @property
    def reports_of_silos(self) -> tuple[int, ...]:
        """Return the total number of reports of each silo, a tuple of length M."""
        return tuple(int(k) for k in self.reports[-1])

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the number of data points of all silos in each view, (V + 1,) int64.

        Entry v = 0..V belongs to the view after v exchanges. The view before the first is empty.
        """
        # A silo's data points are in the view once one of its reports contains them.
        served = self._served[:, self.ticks - 1].T
        latest = np.maximum.accumulate(np.where(self.sends, served, 0), axis=0)
        return np.concatenate([np.zeros(1, np.int64), latest.sum(axis=1, dtype=np.int64)])

    def schedule(self, schedule: Schedule) -> Schedule:
        """Return a schedule with K releases, where K is the largest number of reports of a silo.

        Its batches end in the ticks of the first K exchanges. If ``by`` is "users" and silos do not
        wait, they end at the first K entries of ``ends`` instead.

        Parameters
        ----------
        schedule : Schedule
            The schedule without clocks. Its batches end at the entries of ``ends``.

        Returns
        -------
        Schedule
            ``schedule`` itself if the K ends are all entries of ``ends``.
        """
        max_reports = max(self.reports_of_silos)
        if self.by == TICKS or self.wait:
            ends = tuple(int(n) for n in self.ticks[:max_reports])
        else:
            ends = self.ends[:max_reports]
        if ends == self.ends:
            return schedule
        return Schedule.at(ends, self.horizon) if ends else Schedule(self.horizon, self.horizon + 1)
