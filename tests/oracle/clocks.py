"""Silos on their own clocks (docs/clocks.md), in plain NumPy: an event loop and a forced replay.

Nothing is incremental: before each choice a view is summed from the data points that it contains
and from the noise of the latest reports. Ticks and reports count from 1, silos from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .zhou_chowdhury_2024 import (
    Direct,
    Noise,
    chosen_regularizer,
    clipped,
    direct_bonuses,
    scores,
)


@dataclass
class Clocks:
    """Public clocks: rates and intervals of sleep of silos, the ends of batches, and the rule."""

    silos: int
    horizon: int
    ends: Sequence[int]
    rates: Sequence[float] = ()
    asleep: Sequence[Sequence[int]] = ()
    by: str = "users"
    wait: bool = False

    def sleeps(self, silo: int, tick: int) -> bool:
        """Return whether a silo is asleep in a tick."""
        for name, first, *last in self.asleep:
            if name == silo and first <= tick and (not last or tick <= last[0]):
                return True
        return False

    def serves(self, silo: int, tick: int) -> bool:
        """Return whether a silo serves a user in a tick."""
        rate = self.rates[silo] if silo < len(self.rates) else 1.0
        grown = math.floor(tick * rate + 1e-9) > math.floor((tick - 1) * rate + 1e-9)
        return grown and not self.sleeps(silo, tick)

    def exchanges(self) -> list[tuple[int, list[int]]]:
        """Return the tick of each exchange, and the silos that report in it."""
        served = [0] * self.silos
        together = 0  # users of the slowest silo at the last common exchange
        events = []
        for t in range(1, self.horizon + 1):
            serving = [self.serves(i, t) for i in range(self.silos)]
            served = [n + new for n, new in zip(served, serving, strict=True)]
            awake = [i for i in range(self.silos) if not self.sleeps(i, t)]
            if self.wait:
                next_ends = [e for e in self.ends if e > together]
                senders = []
                if next_ends and len(awake) == self.silos and min(served) >= next_ends[0]:
                    senders, together = awake, min(served)
            elif self.by == "ticks":
                senders = awake if t in self.ends else []
            else:
                senders = [i for i in awake if serving[i] and served[i] in self.ends]
            if senders:
                events.append((t, senders))
        return events


@dataclass
class Replay:
    """The result of repeating recorded actions; gaps are as in `zhou_chowdhury_2024.Replay`."""

    worst_gap: float
    group_regret: np.ndarray  # (T,), cumulative over ticks, summed over silos
    views: list[tuple[np.ndarray, np.ndarray]]  # (W, U) after each exchange
    rows: list[int]  # data points in views 0, 1, 2, ...
    reports: list[list[int]]  # reports of each silo in views 0, 1, 2, ...
    regularizers: list[float]  # lambda of views 0, 1, 2, ...
    nearest_floor: float


def replay(
    clocks: Clocks,
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    noise: Callable[[int, int], Noise],
    direct: Direct,
    clip: tuple[float, float, float] | None,
) -> Replay:
    """Replay actions and rewards (M, T) on these clocks.

    - `contexts(t, i)` and `means(t, i)` are as in `zhou_chowdhury_2024.replay`.
    - `noise(i, k)` returns the noise (U, W) in silo i's k-th report.
    - `direct` is indexed by views.
    """
    m, horizon = clocks.silos, clocks.horizon
    events = clocks.exchanges()
    d = contexts(1, 0).shape[1]
    points: list[list[tuple[int, np.ndarray, float]]] = [[] for _ in range(m)]
    reported_until, report_counts = [0] * m, [0] * m  # ticks; numbers
    view_of = [0] * m
    views = [(np.zeros((d, d)), np.zeros(d))]
    rows, reports = [0], [list(report_counts)]
    lam, nearest = chosen_regularizer(direct, 0, views[0][0])
    regularizers, worst_gap, regret = [lam], 0.0, np.zeros(horizon)
    for t in range(1, horizon + 1):
        for i in range(m):
            if not clocks.serves(i, t):
                continue
            phi, mu = contexts(t, i), means(t, i)
            v = view_of[i]
            total, bias = views[v]
            covariance = regularizers[v] * np.eye(d) + total
            beta, gamma = direct_bonuses(direct, v, regularizers[v], covariance)
            values, size = scores(phi, covariance, bias, beta, gamma)
            action = int(actions[i, t - 1])
            worst_gap = max(worst_gap, float(values.max() - values[action]) / size)
            regret[t - 1] += mu.max() - mu[action]
            x, y = clipped(phi[action], float(rewards[i, t - 1]), clip)
            points[i].append((t, x, y))
        for number, (tick, senders) in enumerate(events, start=1):
            if tick != t:
                continue
            for i in senders:
                reported_until[i], view_of[i] = t, number
                report_counts[i] += 1
            total, bias, count = np.zeros((d, d)), np.zeros(d), 0
            for i in range(m):
                if not report_counts[i]:
                    continue
                for tick_of_point, x, y in points[i]:
                    if tick_of_point <= reported_until[i]:
                        total, bias = total + np.outer(x, x), bias + x * y
                        count += 1
                noise_bias, noise_covariance = noise(i, report_counts[i])
                total, bias = total + noise_covariance, bias + noise_bias
            views.append((total, bias))
            rows.append(count)
            reports.append(list(report_counts))
            lam, distance = chosen_regularizer(direct, number, total)
            regularizers.append(lam)
            nearest = min(nearest, distance)
    return Replay(worst_gap, regret.cumsum(), views[1:], rows, reports, regularizers, nearest)
