"""Ctrl-C and SIGTERM end a run, even while a user's function does not return.

Python handles signals between two Python instructions of the main thread. A function that never
returns (compiled code, or code that catches every exception) blocks this. So a native thread
watches for signals, and ends the process after a grace period if Python has not reacted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Signals that end a program: Ctrl-C, the service manager's stop, and a closed terminal.
ENDING_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

#: Milliseconds within which Python must react to a signal before the process is ended.
GRACE_MILLISECONDS = 2000

#: The message if the watching thread ends the process.
INTERRUPTED_TEXT = "interrupted: a function that did not stop was ended with its process"

_pipe: int | None = None


class Terminated(KeyboardInterrupt):
    """Raised if a signal other than Ctrl-C has requested the end of this program."""

    def __init__(self, number: int) -> None:
        """Store the number of the signal."""
        super().__init__(number)
        self.number = number


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of an interrupted command, as in shells: 130 after Ctrl-C."""
    return 128 + (error.number if isinstance(error, Terminated) else int(signal.SIGINT))


def announce_end() -> None:
    """Inform the watching thread that Python has received a signal and the program is ending."""
    from fastfed._kernels import _native

    if _pipe is not None:
        with suppress(OSError):
            os.write(_pipe, bytes([_native.HEARD]))


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for Ctrl-C, and Terminated for a different signal."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(number)


@contextmanager
def stoppable(note: str = "") -> Iterator[None]:
    """Make ending signals end the block: they raise KeyboardInterrupt in the main thread.

    If Python has not reacted within `GRACE_MILLISECONDS`, the native thread ends the process
    instead, with the message `INTERRUPTED_TEXT` followed by ``note``. Signals that the process
    ignored before stay ignored. Outside the main thread, and inside another such block, this
    context does nothing.
    """
    global _pipe
    if threading.current_thread() is not threading.main_thread() or _pipe is not None:
        yield
        return
    from fastfed._kernels import _native

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    # Python writes the number of each signal to the pipe, and the native thread reads it.
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    sentence = f"{INTERRUPTED_TEXT}{note}\n".encode()
    watch = threading.Thread(
        target=_native.watch_signals, args=(reads, GRACE_MILLISECONDS, sentence), daemon=True
    )
    watch.start()
    old_descriptor = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
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
        signal.set_wakeup_fd(old_descriptor)
        _pipe = None
        # A zero ends the thread.
        os.write(writes, b"\0")
        watch.join()
        os.close(reads)
        os.close(writes)


@contextmanager
def noted() -> Iterator[list[int]]:
    """Make ending signals append their number to the list, instead of raising.

    If a signal raises an exception while the main thread is inside a lock of `threading`, the lock
    can end up released twice. A main thread that only waits can avoid this: it uses this context,
    and looks at the list from time to time. Only signals for which `stoppable` has installed its
    handler are appended.
    """
    arrived: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    handled = [n for n in ENDING_SIGNALS if in_main_thread and signal.getsignal(n) is _raise]
    for number in handled:
        signal.signal(number, lambda received, frame: arrived.append(received))
    try:
        yield arrived
    finally:
        for number in handled:
            signal.signal(number, _raise)


def end_with(pipe: int) -> None:
    """Start a thread that ends this process as soon as its owner closes the pipe."""
    from fastfed._kernels import _native

    threading.Thread(target=_native.watch_owner, args=(pipe,), daemon=True).start()
