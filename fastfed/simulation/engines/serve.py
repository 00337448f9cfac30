"""What a worker process does: it plays the passes that come through its pipe, until that closes."""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from fastfed.simulation.engines.sending import unpack
from fastfed.simulation.passes import Interrupted, play_pass

#: Kinds of messages to the owner.
HELLO, HEARD, ENDED, FAILED, EXHAUSTED = "hello", "heard", "ended", "failed", "exhausted"

#: Seconds between two words on how far a pass has come.
EVERY = 0.5


def serve(connection: Connection, threads: int) -> None:
    """Play with that many threads. The first message that comes is the packed experiment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send((HELLO, None))
        packed, experiment = connection.recv(), None
        while True:
            work = connection.recv()
            try:
                experiment = experiment or unpack(packed)
                start = time.perf_counter()
                outcomes = play_pass(experiment, work, threads, _heard(connection))
                connection.send((ENDED, (outcomes, time.perf_counter() - start)))
            except Interrupted:
                return
            except MemoryError:
                connection.send((EXHAUSTED, "out of memory"))
            except Exception as error:
                connection.send((FAILED, portable(error)))
    except (EOFError, OSError):
        return  # the owner has gone, and with it whoever wanted this


def _heard(connection: Connection) -> Callable[[int], None]:
    """Tells the owner now and then how far a pass has come; Interrupted where there is none."""
    spoken, played = time.perf_counter(), 0

    def heard(agent_rounds: int) -> None:
        nonlocal spoken, played
        played += agent_rounds
        if (now := time.perf_counter()) - spoken >= EVERY:
            spoken = now
            try:
                connection.send((HEARD, played))
            except OSError:
                raise Interrupted from None

    return heard


def portable(error: Exception) -> Exception:
    """An error that can be sent, its traceback in a note; another of its words if it cannot."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = error.__notes__
        return other
    return error
