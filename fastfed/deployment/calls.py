"""HTTP calls with a deadline, and local servers that no client can block.

A call has one deadline for the whole exchange: name lookup, connection, TLS, headers and body. The
timeout of a socket is not enough, because it limits each read only: an answer that arrives byte by
byte would never end.
"""

from __future__ import annotations

import base64
import http.client
import os
import socket
import sqlite3
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from socketserver import BaseServer, ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from fastfed._validate import InputError

if TYPE_CHECKING:
    import ssl

if find_spec("httptools") is None:
    # Imported by the server and the client of a silo's application.
    raise InputError("deployments need the package httptools: pip install 'fastfed[deploy]'")

#: Time limits in seconds: of a single read or write, and of a whole call.
PATIENCE, REQUEST_SECONDS = 30.0, 120.0
#: Maximum number of bytes of the body of a request to a silo.
MAX_REQUEST = 1 << 24
#: Maximum number of bytes in the path of a Unix socket.
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103
#: Exceptions that a full disk raises.
FULL_DISK_ERRORS = (OSError, sqlite3.OperationalError)


def failure(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and a one-line text for an exception that a message caused.

    The status is 400 for refused input, 503 for a full disk, and 500 for a program error. The text
    of a program error has only its type and place, because its message may hold values of records.
    """
    if isinstance(error, InputError):
        return 400, str(error)
    if isinstance(error, FULL_DISK_ERRORS):
        return 503, str(error)
    frames = traceback.extract_tb(error.__traceback__) or [None]
    place = f" in {Path(frames[-1].filename).name}, {frames[-1].name}" if frames[-1] else ""
    return 500, f"program error, please report it: {type(error).__name__}{place}"


def one_line(text: str, longest: int = 1000) -> str:
    """Return a text from another machine as one line that is safe to print.

    Control characters become "?", and text after ``longest`` characters is cut off.
    """
    return "".join(c if c.isprintable() else "?" for c in text[:longest].strip())


def files_for(share: int, at_most: int) -> int:
    """Return the maximum number of connections of a server.

    It is 1 / ``share`` of the number of files that this process may open, but at most ``at_most``.
    """
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return at_most if limit == resource.RLIM_INFINITY else max(1, min(at_most, limit // share))


# ---- calls ---------------------------------------------------------------------------------------


class ReusedConnection:
    """An open connection that later calls to the same address use again."""

    def __init__(self) -> None:
        #: None before the first call, while a call uses the connection, and after its end.
        self.connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class _PendingCall:
    """A call in progress, with its connection; `cut` ends it from a different thread."""

    connection: http.client.HTTPConnection | None = None
    abandoned = False

    def cut(self) -> None:
        """Abandon the call: shut the connection down, which ends every wait for it."""
        self.abandoned = True
        sock = self.connection.sock if self.connection is not None else None
        if sock is not None:
            with suppress(OSError):
                # The plain socket's method: a TLS socket's own method is not safe in a second
                # thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _run_until_deadline(work: Callable[[_PendingCall], tuple[int, bytes]]) -> tuple[int, bytes]:
    """Run a call in a thread, and return its status and body; abandon it at the deadline.

    A thread is needed because a name lookup has no timeout.
    """
    pending = _PendingCall()
    answer: Future[tuple[int, bytes]] = Future()

    def run() -> None:
        try:
            answer.set_result(work(pending))
        except OSError as error:
            # Before ValueError: some errors are both.
            answer.set_exception(error)
        except (http.client.HTTPException, ValueError) as error:
            answer.set_exception(OSError(f"no valid HTTP answer: {type(error).__name__}"))
        except BaseException as error:
            answer.set_exception(error)
        finally:
            if pending.connection is not None:
                pending.connection.close()

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(REQUEST_SECONDS)
    except TimeoutError:
        if answer.done():
            raise
        pending.cut()
        raise TimeoutError(f"no complete answer within {REQUEST_SECONDS:g} s") from None


def _exchange(
    pending: _PendingCall, method: str, path: str, data: bytes | None, at_most: int
) -> tuple[int, bytes]:
    """Send a request over an open connection; return the status and the body of the answer."""
    connection = pending.connection
    assert connection is not None
    if pending.abandoned:
        raise TimeoutError("the call was abandoned")
    headers = {} if data is None else {"content-type": "application/msgpack"}
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    return answer.status, answer.read(at_most + 1)


def _try_reused(
    reused: ReusedConnection,
    pending: _PendingCall,
    method: str,
    path: str,
    data: bytes | None,
    at_most: int,
) -> tuple[int, bytes] | None:
    """Exchange over the reused connection; return None if there is none, or if it has ended.

    The connection may end before the answer has arrived, and the other side may have received the
    message. This is no error: the caller repeats the call over a new connection, and parties
    tolerate repeated messages.
    """
    pending.connection, reused.connection = reused.connection, None
    if pending.connection is None:
        return None
    try:
        return _exchange(pending, method, path, data, at_most)
    except (OSError, http.client.HTTPException):
        if pending.abandoned:
            raise
        pending.connection.close()
        return None


def call(
    url: str,
    at_most: int,
    data: bytes | None = None,
    context: ssl.SSLContext | None = None,
    reused: ReusedConnection | None = None,
) -> tuple[int, bytes]:
    """Send a GET request or, with data, a POST request; return the answer.

    Parameters
    ----------
    url : str
        An address with http:// or https://.
    at_most : int
        Maximum number of bytes of the answer's body.
    data : bytes, optional
        The body of a POST request. By default a GET request is sent.
    context : ssl.SSLContext, optional
        TLS settings, for https://.
    reused : ReusedConnection, optional
        The connection of earlier calls to this address, which is used if it is still open, and is
        left open for later calls. By default, the call opens a connection and closes it.

    Returns
    -------
    tuple of (int, bytes)
        Status and body.

    Raises
    ------
    InputError
        For a redirect, which is never followed, and if the body is too long.
    OSError
        If there is no complete HTTP answer before the deadline.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if context is not None else 80)

    method = "GET" if data is None else "POST"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def work(pending: _PendingCall) -> tuple[int, bytes]:
        """Exchange over the reused connection or, if there is none, over a new one."""
        answer = _try_reused(reused, pending, method, path, data, at_most) if reused else None
        answer = open_and_exchange(pending) if answer is None else answer
        connection = pending.connection
        if reused is not None and connection is not None and connection.sock is not None:
            # The answer was read completely, and the other side did not ask to close.
            reused.connection, pending.connection = connection, None
        return answer

    def open_and_exchange(pending: _PendingCall) -> tuple[int, bytes]:
        """Open a connection, store it in ``pending``, and exchange over it."""
        # `pending.cut` shuts down `connection.sock`. So the TLS handshake is done only after its
        # socket is stored there: a handshake that hangs can be cut too.
        proxy = _proxy(host, port) if context is not None else None
        address = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        pending.connection = connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        if proxy is not None:
            connection.set_tunnel(host, port, _credentials(proxy))
        connection.connect()
        if context is not None:
            connection.sock = context.wrap_socket(
                connection.sock, server_hostname=host, do_handshake_on_connect=False
            )
            connection.sock.do_handshake()
        return _exchange(pending, method, path, data, at_most)

    status, body = _run_until_deadline(work)
    if 300 <= status < 400:
        raise InputError(
            f"{host} answered {status}, a redirect to another address, which is never followed: "
            "give the hub's own address"
        )
    return status, _bounded(body, at_most)


def call_socket(path: str | Path, url_path: str, data: bytes, at_most: int) -> tuple[int, bytes]:
    """Send a POST request to a server on a Unix socket; return status and body, as `call` does.

    ``path`` is the path of the socket, and ``url_path`` the path in the request.
    """

    def work(pending: _PendingCall) -> tuple[int, bytes]:
        """Connect to the socket, and exchange over the connection."""
        pending.connection = connection = http.client.HTTPConnection("local", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(PATIENCE)
        while True:
            try:
                connection.sock.connect(str(path))
                break
            except BlockingIOError:
                # The server's queue is full.
                if pending.abandoned:
                    raise
                time.sleep(0.02)
        return _exchange(pending, "POST", url_path, data, at_most)

    status, body = _run_until_deadline(work)
    return status, _bounded(body, at_most)


def _bounded(body: bytes, at_most: int) -> bytes:
    """Return a body; raise InputError if it is too long."""
    if len(body) > at_most:
        raise InputError(f"the answer is longer than {at_most} bytes")
    return body


def _proxy(host: str, port: int) -> SplitResult | None:
    """Return the proxy of the environment variable HTTPS_PROXY; None if NO_PROXY lists the host."""
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    return urlsplit(proxy if "://" in proxy else f"//{proxy}")


def _credentials(proxy: SplitResult) -> dict[str, str]:
    """Return the header with the user name and password of a proxy's address; empty if none."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"proxy-authorization": f"Basic {base64.b64encode(pair).decode()}"}


# ---- servers on this machine ---------------------------------------------------------------------


class Bounded(ThreadingMixIn, BaseServer):
    """A server that limits the number of connections, and the time until a request has arrived.

    If there are too many connections, the oldest connection with an incomplete request is closed.
    """

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._max_connections = files_for(8, 64)
        #: Socket -> monotonic time when it was opened; None once its request has arrived
        #: completely.
        self._connections: dict[Any, float | None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a new thread; at the limit, close an older one or this one."""
        with self._lock:
            if len(self._connections) >= self._max_connections:
                oldest = next(
                    (s for s, begun in self._connections.items() if begun is not None), None
                )
                if oldest is None:
                    return super().shutdown_request(request)
                self._cut(oldest)
            self._connections[request] = time.monotonic()
        return super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections whose request takes too long to arrive."""
        deadline = time.monotonic() - REQUEST_SECONDS
        with self._lock:
            for request, begun in list(self._connections.items()):
                if begun is not None and begun < deadline:
                    self._cut(request)

    def _cut(self, request: Any) -> None:
        """Close a connection with an incomplete request."""
        del self._connections[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def complete(self, request: Any) -> None:
        """Record that a request is complete, so its connection is not closed for being slow."""
        with self._lock:
            if request in self._connections:
                self._connections[request] = None

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and stop counting it."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print one line for a program error; print nothing if the client has gone."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, OSError):
            print(failure(error)[1], file=sys.stderr)


class SocketServer(Bounded, UnixStreamServer):
    """A server on a Unix socket, with the limits of `Bounded`.

    Parameters
    ----------
    path : str or Path
        The socket. A socket that an earlier process left behind is replaced.
    handler : type
        The class that handles requests.
    mode : int
        Permissions of the socket.

    Raises
    ------
    InputError
        If the path is too long for a socket on this system.
    """

    request_queue_size = 128

    def __init__(self, path: str | Path, handler: type[LocalHandler], mode: int) -> None:
        check_path(path)
        Path(path).unlink(missing_ok=True)
        old_umask = os.umask(0o777 & ~mode)
        try:
            super().__init__(str(path), handler)
        finally:
            os.umask(old_umask)


def check_path(path: str | Path) -> None:
    """Raise InputError if a path is too long for a Unix socket on this system."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise InputError(
            f"the path of the socket {path} has {length} bytes, and the system allows "
            f"{MAX_PATH_BYTES}: use a folder with a shorter path, or start in the folder and name "
            "it by a relative path"
        )


class LocalHandler(BaseHTTPRequestHandler):
    """Base class of request handlers: reads requests within limits, and logs nothing."""

    timeout = PATIENCE
    server: Bounded

    def read(self, at_most: int) -> bytes:
        """Read the body of a request; raise InputError if it is too long or incomplete."""
        text = self.headers.get("content-length") or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= at_most):
            raise InputError(f"a request must be at most {at_most} bytes long")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise InputError("the request was cut off")
        self.server.complete(self.connection)
        return body

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send an answer; ``headers`` are further headers."""
        self.send_response(status)
        self.send_header("content-type", content_type)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Return a fixed name of the client: Unix sockets have no addresses."""
        return "client"

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: requests hold personal data."""
