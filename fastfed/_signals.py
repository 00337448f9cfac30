"""Ctrl-C and SIGTERM end a run, whatever a function of the user's is doing.

Python hears a signal between two of its own instructions, in the main thread. A function that never
comes back (compiled, or one that swallows every exception) keeps that moment away. So a thread that
needs no Python watches beside it, and ends the process a little later if nobody has.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Signals that end a program: of a terminal, of a service manager, of a terminal that is closed.
ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

#: Milliseconds that a program has to say that it has heard a signal, before it is ended.
GRACE = 2000

#: What is said where nobody else does.
SENTENCE = "interrupted: a function that did not stop was ended with its process"

_pipe: int | None = None


class Terminated(KeyboardInterrupt):
    """Another signal than Ctrl-C told this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(error: BaseException | None) -> int:
    """Exit code of an interrupted command, as shells have it: 130 after Ctrl-C."""
    return 128 + (error.number if isinstance(error, Terminated) else int(signal.SIGINT))


def heard() -> None:
    """A signal has been heard, and the program is about to end by itself."""
    from fastfed._kernels import _native

    if _pipe is not None:
        with suppress(OSError):
            os.write(_pipe, bytes([_native.HEARD]))


def _raise(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(number)


@contextmanager
def stoppable(kept: str = "") -> Iterator[None]:
    """Signals that end a program raise KeyboardInterrupt within, or end it in two seconds.

    ``kept``: what to add to `SENTENCE`. Signals that are ignored stay so. In another thread than
    the main one it does nothing.
    """
    global _pipe
    if threading.current_thread() is not threading.main_thread() or _pipe is not None:
        yield
        return
    from fastfed._kernels import _native

    before = {number: signal.getsignal(number) for number in ENDING}
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    sentence = f"{SENTENCE}{kept}\n".encode()
    watch = threading.Thread(
        target=_native.watch_signals, args=(reads, GRACE, sentence), daemon=True
    )
    watch.start()
    old = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    _pipe = writes
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _raise:
                signal.signal(number, handler)
        signal.set_wakeup_fd(old)
        _pipe = None
        os.write(writes, b"\0")
        watch.join()
        os.close(reads)
        os.close(writes)


def end_with(pipe: int) -> None:
    """End this process, whatever it is doing, once its owner's end of a pipe is closed."""
    from fastfed._kernels import _native

    threading.Thread(target=_native.watch_owner, args=(pipe,), daemon=True).start()
