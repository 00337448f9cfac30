"""A socket for couriers: whoever has it can bring a party messages and take its answers, no more.

A transport that starts a process for each message cannot hold a party: its state belongs to one
process, and after each start a silo asks the hub before it seals. So the party stays a process of
its own, and the transport's code a courier, which needs neither the party's folder nor its secret:
envelopes are signed, and a courier can read, keep back or repeat them, as any network can.
"""

from __future__ import annotations

import http.client
import os
import socket
import sqlite3
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING

import msgspec

from fastfed._validate import InputError

if TYPE_CHECKING:
    from fastfed.deployment.process import Process

#: The only path of the socket.
PATH = "/carry"
#: The most bytes that are carried at once, and seconds until a courier gives up.
LARGEST, PATIENCE = 1 << 28, 60.0


def taken(data: bytes) -> list[bytes]:
    """Messages as they are carried; InputError for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=list[bytes])
    except msgspec.DecodeError:
        raise InputError("what was carried is no list of messages") from None


def carried(
    process: Process, letters: Sequence[bytes], say: Callable[[str], None] = print
) -> list[bytes]:
    """Give a party messages of the hub, and ask it what it has to say.

    As `Dialer.round` does, but that the hub's answers come with the next question.

    Parameters
    ----------
    process : Process
        A silo's or the helper's.
    letters : sequence of bytes
        Envelopes of the hub; one that is refused changes nothing.
    say : callable
        Takes a line about what is refused, and about what the party cannot do.

    Returns
    -------
    list of bytes
        Envelopes for the hub; what they say is durable.
    """
    answers: list[bytes] = []
    trouble = ""
    for data in letters:
        try:
            step, messages = process.handle(data)
        except InputError as error:
            trouble = str(error)
            continue
        trouble = step.problem or trouble
        answers += [message.data for message in messages]
    answers += [message.data for message in process.tick()]
    trouble = process.problem or trouble
    if trouble:
        say(trouble)
    return list(dict.fromkeys(answers))


class Courier(ThreadingMixIn, UnixStreamServer):
    """Serves couriers through a Unix socket that owner and group can use.

    Parameters
    ----------
    process : Process
        A silo's or the helper's.
    path : str or Path
        The socket, best outside of the party's folder: its directory says who may use it. One that
        was left behind is replaced.
    say : callable
        Takes a line about what went wrong.

    Raises
    ------
    InputError
        If there is a file at the path, or no directory.
    """

    daemon_threads = True

    def __init__(
        self, process: Process, path: str | Path, say: Callable[[str], None] = print
    ) -> None:
        target = Path(path)
        if target.exists() and not target.is_socket():
            raise InputError(f"courier must be the path of a socket, got the file {target}")
        if not target.parent.is_dir():
            raise InputError(f"courier must be in a directory that exists, got {target}")
        target.unlink(missing_ok=True)
        before = os.umask(0o117)
        try:
            super().__init__(str(target), _handler(process, _once(say)))
        finally:
            os.umask(before)


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says a line when it differs from the last one."""
    last = [""]

    def said(text: str) -> None:
        if text != last[0]:
            last[0] = text
            say(text)

    return said


def _handler(process: Process, say: Callable[[str], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers POST /carry with messages."""

        def do_POST(self) -> None:
            status, body = self._answer()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, bytes]:
            length = int(self.headers.get("content-length") or 0)
            if not 0 <= length <= LARGEST:
                return 413, b"too much is carried at once"
            given = self.rfile.read(length)
            if self.path != PATH:
                return 404, f"a courier can ask for {PATH} alone".encode()
            try:
                made = carried(process, taken(given), say)
            except InputError as error:
                say(str(error))
                return 400, str(error).encode()
            except (OSError, sqlite3.OperationalError) as error:
                # A disk that is full: nothing was sealed, and the next question tries again.
                say(str(error))
                return 503, b"nothing was kept"
            return 200, msgspec.msgpack.encode(made)

        def address_string(self) -> str:
            return "courier"

        def log_message(self, format: str, *values: object) -> None:
            """Nothing is logged but what `say` was told."""

    return Handler


def carry(path: str | Path, letters: Sequence[bytes]) -> list[bytes]:
    """Bring messages to the party behind a socket; returns its answers.

    Parameters
    ----------
    path : str or Path
        Its socket.
    letters : sequence of bytes
        Envelopes; none is a question, see `carried`.

    Raises
    ------
    InputError
        If the party cannot be reached, or refuses.
    """
    connection = http.client.HTTPConnection("party", timeout=PATIENCE)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(PATIENCE)
    try:
        connection.sock.connect(str(path))
        connection.request("POST", PATH, msgspec.msgpack.encode(list(letters)))
        found = connection.getresponse()
        body = found.read()
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"the party behind {path} cannot be reached ({error})") from None
    finally:
        connection.close()
    if found.status != 200:
        raise InputError(f"the party answered {found.status}: {body[:1000].decode()}")
    return taken(body)
