"""Progress of a run on standard error: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastfed.cli.output import say

#: Seconds between two lines off a terminal.
EVERY = 5.0

Heard = Callable[[int], None]


def duration(seconds: float) -> str:
    """Seconds as a person says them: 2 min 5 s."""
    whole = max(1, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def progress(total: int) -> Iterator[Heard]:
    """What hears agent-rounds as they are played, from any thread, and shows them."""
    if sys.stderr.isatty():
        with _bar(total) as heard:
            yield heard
    else:
        yield Lines(total)


class Lines:
    """Off a terminal: at most one line every few seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.clock = total, clock
        self.done = 0
        self.start = self.last = clock()
        self.lock = threading.Lock()

    def __call__(self, agent_rounds: int) -> None:
        with self.lock:
            self.done += agent_rounds
            now = self.clock()
            if now - self.last < EVERY:
                return
            self.last = now
            speed = self.done / (now - self.start)
            left = (self.total - self.done) / speed if speed else 0.0
            line = f"{100 * self.done // self.total} %, {speed:.3g} agent-rounds/s"
            say(f"{line}, {duration(left)} left" if left else line)


@contextmanager
def _bar(total: int) -> Iterator[Heard]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.finished_speed or task.speed or 0.0:.3g} agent-rounds/s")

    left = (TimeRemainingColumn(), TextColumn("left"))
    columns = (TaskProgressColumn(), BarColumn(), Speed(), *left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda agent_rounds: shown.advance(task, agent_rounds)
