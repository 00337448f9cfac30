"""Ctrl-C reaches every process of a terminal: workers leave it to the one that owns the results."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Processes and threads started within never hear SIGINT; it waits for this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting it, as the first process of a program does, would let SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
