"""The server of a silo's application: HTTP with JSON on a Unix socket in the silo's folder.

One thread reads requests, computes them, appends their writes to the log and sends answers. A few
other threads sync the log to disk, without Python's lock (`SyncThreads`). While all sync threads
are busy, arriving requests are computed, and the next sync stores them together (`Process.sync`).
An answer is sent when the writes of its request are durable (on disk). Connections stay open, and a
request may hold many decisions or rewards.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httptools
import msgspec

from fastfed._validate import InputError, check_plain, nearest, parsed
from fastfed.deployment import calls
from fastfed.deployment.calls import MAX_REQUEST, check_path, failure, files_for
from fastfed.deployment.model import Decision, model_of
from fastfed.deployment.process import MAX_SYNCS, Batch, Call, SiloProcess
from fastfed.deployment.store import SyncFailed, Syncing
from fastfed.deployment.syncs import SyncThreads

#: Maximum number of bytes of a request's head.
MAX_HEAD_BYTES = 1 << 16
#: Maximum number of decisions or rewards in one request.
MAX_ITEMS = 10_000
#: Answer to bytes that are no request.
BAD_REQUEST_TEXT = f"send an HTTP request whose body has at most {MAX_REQUEST} bytes"
#: Path of a request -> the keys that its JSON object may have. If "id" is one of them, it is
#: required, except for a decision.
KEYS_BY_PATH = {
    "/decide": ("actions", "subject", "record", "among", "id"),
    "/reward": ("id", "reward"),
    "/outcome": ("id", "outcome"),
    "/losses": ("id", "losses"),
    "/bit": ("id", "bit"),
    "/cancel": ("id",),
    "/decide_many": ("decisions",),
    "/reward_many": ("rewards",),
    **dict.fromkeys(("/status", "/recover", "/leave", "/export", "/broadcast"), ()),
}
#: Paths whose requests store something about one decision.
DECISION_PATHS = ("/decide", "/reward", "/outcome", "/losses", "/bit", "/cancel")
#: Path of a request with many items -> the single path: that of a request with one such item.
SINGLE_PATHS = {"/decide_many": "/decide", "/reward_many": "/reward"}

# ---- the calls of a request, and its answer ------------------------------------------------------


def _checked(path: str, request: object) -> dict[str, Any]:
    """Return the JSON object of a request; raise InputError for an unknown path or a wrong key."""
    keys = KEYS_BY_PATH.get(path)
    if keys is None:
        hint = nearest(path, KEYS_BY_PATH) or f"; there are {', '.join(KEYS_BY_PATH)}"
        raise InputError(f"there is no {path[:40]}{hint}")
    if not isinstance(request, dict):
        raise InputError("a request must be a JSON object")
    # Refuse unknown keys: if a misspelled "subject" were ignored, the silo could learn twice
    # from a person.
    for key in request:
        if key not in keys:
            takes = f"takes {', '.join(keys)}" if keys else "takes no keys"
            hint = nearest(key, keys) if keys else ""
            raise InputError(f'unknown key "{key[:40]}"{hint}: {path} {takes}')
    if "id" in keys and path != "/decide" and not isinstance(request.get("id"), str):
        raise InputError(f"{path} needs id, the text that decide answered")
    if path in DECISION_PATHS[1:] and (missing := [key for key in keys if key not in request]):
        raise InputError(f"{path} needs {missing[0]}")
    return request


def _call_of(silo: SiloProcess, path: str, body: object) -> Call[Any]:
    """Return the call of a method of the silo's party that answers a request.

    ``path`` is one of `DECISION_PATHS`, and ``body`` the request's parsed JSON.
    """
    party, now = silo.party, silo.now
    keys = _checked(path, body)
    if path == "/decide":
        other_keys = {key: keys[key] for key in keys if key != "actions"}
        return Call(lambda: party.decide(keys.get("actions"), now(), **other_keys))
    name = keys["id"]
    if path == "/reward":
        return Call(lambda: (party.reward(name, keys["reward"], now()), None))
    if path == "/outcome":
        return Call(lambda: (party.outcome(name, keys["outcome"], now()), None))
    if path == "/losses":
        return Call(lambda: (party.losses(name, keys["losses"], now()), None))
    if path == "/bit":
        return Call(lambda: (party.bit(name, keys["bit"], now()), None))
    return Call(lambda: (party.cancel(name, now()), None))


def calls_of(silo: SiloProcess, path: str, body: object) -> list[Call[Any]]:
    """Return the calls of a request: one for each decision or reward in it.

    There is none if requests with this path store nothing about decisions, such as "/status".
    If a request has many items and one of them is wrong, its call is done and has failed.

    Raises
    ------
    InputError
        If the path or a key of the request is unknown, or a request with a single item is wrong.
    """
    if path in DECISION_PATHS:
        return [_call_of(silo, path, body)]
    if path not in SINGLE_PATHS:
        return []
    request = _checked(path, body)
    (key,) = KEYS_BY_PATH[path]
    items = request.get(key)
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise InputError(
            f"{path} needs {key}, a list of at most {MAX_ITEMS} objects as {SINGLE_PATHS[path]} has"
        )
    item_calls = []
    for item in items:
        try:
            item_calls.append(_call_of(silo, SINGLE_PATHS[path], item))
        except InputError as error:
            item_calls.append(Call.failed(error))
    return item_calls


def _decision(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data, for the answer to a request."""
    plain = {
        "id": decision.id,
        "action": decision.action,
        "propensity": decision.propensity,
        "model": decision.model,
        "learns": decision.learns,
    }
    return plain | ({"name": decision.name} if decision.name else {})


def answer_of(status: Callable[[], Any], path: str, done_calls: Sequence[Call[Any]]) -> Any:
    """Return the answer to a request whose calls are done.

    If the path is for many items, an item whose call has failed is ``{"error": text}``. If it is
    for one decision, the error of its call is raised. ``status`` returns the silo's status, as
    plain data or encoded.
    """
    if path in SINGLE_PATHS:
        items = []
        for call in done_calls:
            if call.error is not None:
                items.append({"error": _text(call.error)})
            else:
                items.append({} if call.result is None else _decision(call.result))
        return {KEYS_BY_PATH[path][0]: items}
    result = done_calls[0].returned()
    return status() if result is None else _decision(result)


def _text(error: BaseException) -> str:
    """Return the text of an error for the answer to a request."""
    status, text = failure(error)  # type: ignore[arg-type]
    # After a failed sync, a restart may find that the writes are stored.
    nothing_stored = status == 503 and not isinstance(error, SyncFailed)
    return f"nothing was stored: {text}" if nothing_stored else text


def answers(silo: SiloProcess, path: str, given: dict[str, Any]) -> dict[str, Any]:
    """Answer a request of a silo's application.

    Parameters
    ----------
    silo : SiloProcess
    path : str
        One of `KEYS_BY_PATH`, such as "/decide".
    given : dict
        The keys of the request's JSON object, with their values.

    Returns
    -------
    dict
        The decision, or the list of decisions; the exported model; the last broadcast; or, for all
        other paths, the silo's status. An item of a list that failed is ``{"error": text}``.

    Raises
    ------
    InputError
        If the path or a key is unknown, or the silo refuses.
    """
    if request_calls := calls_of(silo, path, given):
        for call in request_calls:
            if not call.is_done:
                silo.submit(call)
        for call in request_calls:
            silo.finish(call)
        return answer_of(silo.status, path, request_calls)
    _checked(path, given)
    if path in SINGLE_PATHS:
        return answer_of(silo.status, path, [])
    if path == "/export":
        with silo.turn():
            return model_of(silo.party)
    if path == "/broadcast":
        with silo.turn():
            last = silo.party.broadcasts.get(silo.party.released, b"")
            return {"release": silo.party.released, "broadcast": last.hex()}
    if path == "/recover":
        silo.recover()
    elif path == "/leave":
        silo.leave()
    return silo.status()


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in the body of a request; an empty body is an empty object."""
    try:
        # The fast parser refuses more than Python's parser, such as NaN. If it refuses the body,
        # parse it with Python's parser: its error, or that of a check below, says what is wrong.
        request = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            request = parsed(json.loads, body)
        except InputError as error:
            raise InputError(
                f'a request must be a JSON object, such as {{"id": "..."}} ({error})'
            ) from None
    if not isinstance(request, dict):
        raise InputError("a request must be a JSON object")
    check_plain("a request", request, keys=False)
    return request


# ---- the server ----------------------------------------------------------------------------------


class _Request:
    """A request that is being answered; ``keep`` is True if its connection stays open."""

    def __init__(self, connection: _Connection, path: str, keep: bool) -> None:
        self.connection, self.path, self.keep = connection, path, keep
        self.calls: list[Call[Any]] = []
        #: Number of calls that are not done.
        self.missing = 0


class _Connection(asyncio.Protocol):
    """One connection of an application: reads requests, and answers them in their order."""

    transport: asyncio.Transport

    def __init__(self, application: Application) -> None:
        self._application = application
        self._parser = httptools.HttpRequestParser(self)
        #: Complete requests that are not answered yet, as (method, path, body, keep).
        self._arrived: deque[tuple[bytes, str, bytes, bool]] = deque()
        #: The request that is being read: its path, the parts of its body, and the numbers of bytes
        #: of its body and of its head.
        self._path, self._body, self._size, self._head = b"", list[bytes](), 0, 0
        #: True if the client waits for "100 Continue" before it sends the body.
        self._expects = False
        #: True while a request is being answered.
        self.busy = False
        #: Monotonic time since when the connection waits for a complete request.
        self.idle_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the application's connections."""
        self.transport = transport  # type: ignore[assignment]
        self._application.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the application's connections."""
        self._application.connections.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse data that is not HTTP, or a request that is too long."""
        try:
            self._parser.feed_data(data)
        except InputError as error:
            self._refuse(400, str(error))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(400, str(cause) if isinstance(cause, InputError) else BAD_REQUEST_TEXT)
        except httptools.HttpParserError:
            self._refuse(400, BAD_REQUEST_TEXT)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Start a request."""
        self._path, self._body, self._size, self._head = b"", [], 0, 0
        self._expects = False

    def on_url(self, url: bytes) -> None:
        """Add a part of the path."""
        self._path += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the header's bytes; refuse a body that is too long before it arrives."""
        self._count(len(name) + len(value))
        self._expects |= name.lower() == b"expect"
        if name.lower() == b"content-length" and (len(value) > 19 or int(value) > MAX_REQUEST):
            raise InputError(f"a request must be at most {MAX_REQUEST} bytes long")

    def on_headers_complete(self) -> None:
        """Request the body, if the client waits for that."""
        if self._expects:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count(self, size: int) -> None:
        """Count bytes of the head; raise InputError if the head is too long."""
        self._head += size
        if self._head > MAX_HEAD_BYTES:
            raise InputError(f"the head of a request must be at most {MAX_HEAD_BYTES} bytes long")

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._body.append(body)
        self._size += len(body)
        if self._size > MAX_REQUEST:
            raise InputError(f"a request must be at most {MAX_REQUEST} bytes long")

    def on_message_complete(self) -> None:
        """Answer the request, or queue it behind the one that is being answered."""
        method, keep = self._parser.get_method(), self._parser.should_keep_alive()
        path = self._path.decode("ascii", "replace")
        self._arrived.append((method, path, b"".join(self._body), keep))
        if self.busy:
            self.transport.pause_reading()
        else:
            self._next()

    def _next(self) -> None:
        """Answer the next request that has arrived, if there is one."""
        if not self._arrived or self.busy:
            return
        method, path, body, keep = self._arrived.popleft()
        self.busy = True
        request = _Request(self, path, keep)
        if method != b"POST":
            self.reply(request, 405, {"error": "send POST requests"})
        else:
            self._application.begin(request, body)

    def reply(self, request: _Request, status: int, answer: Any) -> None:
        """Send an answer (plain data, or encoded JSON), and begin the next request."""
        body, end = msgspec.json.encode(answer), b"" if request.keep else b"connection: close\r\n"
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"
        self.busy, self.idle_since = False, time.monotonic()
        if self.transport.is_closing():
            return
        self.transport.write(head % (status, STATUS_TEXTS[status], len(body), end) + body)
        if not request.keep:
            self.transport.close()
            return
        self.transport.resume_reading()
        if self._arrived:
            self._application.soon(self._next)

    def _refuse(self, status: int, text: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        self._arrived.clear()
        self.reply(_Request(self, "", False), status, {"error": text})


STATUS_TEXTS = {
    200: b"OK",
    400: b"Bad Request",
    405: b"Method Not Allowed",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


class Application:
    """Server for a silo's application, on a Unix socket that only the socket's owner can use.

    Parameters
    ----------
    silo : SiloProcess
    path : str or Path
        The socket. A socket that an earlier process has left there is replaced.

    Raises
    ------
    InputError
        If the path is too long for a socket on this system.
    """

    #: If syncs take less than this many seconds, the thread that answers runs them: to hand a sync
    #: over to a different thread would take longer.
    fast = 0.0005
    #: Minimum number of waiting calls for a slow sync to begin at once; see `_plan_sync`.
    few = 5

    def __init__(self, silo: SiloProcess, path: str | Path) -> None:
        check_path(path)
        Path(path).unlink(missing_ok=True)
        self._silo = silo
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old_umask = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(old_umask)
        self._socket.listen(128)
        #: The open connections, oldest first; a dict is used as an ordered set.
        self.connections: dict[_Connection, None] = {}
        self._max_connections = files_for(4, 256)
        #: ``id`` of a call that is not done -> the request of the call.
        self._requests: dict[int, _Request] = {}
        #: True if the event loop will call `_planned`.
        self._is_planned = False
        #: Descriptor of a file that one of `_sync_threads` syncs -> the batch, and the sync.
        self._running_syncs: dict[int, tuple[Batch, Syncing]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Orders the start of `serve_forever` and a request to stop.
        self._starting = threading.Lock()
        #: `_stop`: `serve_forever` must end. `_ended`: `serve_forever` does not run.
        self._stop, self._ended = threading.Event(), threading.Event()
        self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.server_close()

    # ---- start and end -----------------------------------------------------------------------

    def serve_forever(self) -> None:
        """Answer requests until `shutdown` or `server_close`, which may have been called before."""
        with self._starting:
            if self._stop.is_set():
                return
            self._ended.clear()
        try:
            asyncio.run(self._serve())
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        """Answer requests until `shutdown`; see `serve_forever`."""
        loop = self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._silo.on_done = self._done
        self._blocking = ThreadPoolExecutor(2)
        self._sync_threads = SyncThreads(MAX_SYNCS)
        loop.add_reader(self._sync_threads.fileno(), self._finish_syncs)
        server = await loop.create_unix_server(lambda: _Connection(self), sock=self._socket)
        try:
            while not self._stop.is_set():
                await asyncio.sleep(0.1)
                self._cut_idle()
        finally:
            self._silo.on_done = lambda done: None
            server.close()
            for connection in list(self.connections):
                connection.transport.close()
            # Closing the silo's process waits until the running syncs are finished. Only this event
            # loop notices that they have ended, so it must run until then.
            while self._running_syncs:
                await asyncio.sleep(0.001)
            loop.remove_reader(self._sync_threads.fileno())
            self._sync_threads.close()
            self._blocking.shutdown(wait=False)

    def soon(self, function: Callable[[], None]) -> None:
        """Let the event loop call a function after everything that is ready now.

        Call this method only in the thread that answers requests.
        """
        assert self._loop is not None
        self._loop.call_soon(function)

    def _from_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a function in the thread that answers, from a different thread."""
        assert self._loop is not None
        with suppress(RuntimeError):
            # The loop may have ended: its connections are closed.
            self._loop.call_soon_threadsafe(function, *arguments)

    def shutdown(self) -> None:
        """End `serve_forever`, and wait for its end."""
        with self._starting:
            self._stop.set()
        self._ended.wait()

    def server_close(self) -> None:
        """End `serve_forever` within a second, and close the socket."""
        with self._starting:
            self._stop.set()
        # Poll the event `_ended`: a signal may not interrupt `_ended.wait` (see `until_signal`).
        deadline = time.monotonic() + 1.0
        while not self._ended.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._ended.is_set():
            self._socket.close()

    # ---- connections -------------------------------------------------------------------------

    def admit(self, connection: _Connection) -> None:
        """Add a new connection; if there are too many, close the longest idle connection."""
        if len(self.connections) >= self._max_connections:
            idle = [candidate for candidate in self.connections if not candidate.busy]
            if not idle:
                connection.transport.abort()
                return
            longest_idle = min(idle, key=lambda candidate: candidate.idle_since)
            self.connections.pop(longest_idle)
            longest_idle.transport.abort()
        self.connections[connection] = None

    def _cut_idle(self) -> None:
        """Close connections that have waited too long for a complete request."""
        deadline = time.monotonic() - calls.REQUEST_SECONDS
        for connection in list(self.connections):
            if not connection.busy and connection.idle_since < deadline:
                connection.transport.abort()

    # ---- requests ----------------------------------------------------------------------------

    def begin(self, request: _Request, body: bytes) -> None:
        """Start the calls of a request, which is answered when their writes are durable."""
        try:
            keys = _object(body)
            request.calls = calls_of(self._silo, request.path, keys)
        except Exception as error:
            self._fail(request, error)
            return
        if not request.calls:
            # Answer it in a different thread: it may have to wait for the party's lock, such as a
            # status request while a report is computed.
            task = self._blocking.submit(answers, self._silo, request.path, keys)
            task.add_done_callback(lambda task: self._from_thread(self._finish_task, request, task))
            return
        request.missing = len(request.calls)
        for call in request.calls:
            self._requests[id(call)] = request
            if not call.is_done:
                self._silo.submit(call)
        self._deliver([call for call in request.calls if call.is_done])
        if self._running_syncs:
            # Send the answers of syncs that have ended now. Otherwise they would wait until the
            # event loop has computed all requests that have arrived.
            self._finish_syncs()

    def _finish_task(self, request: _Request, task: Any) -> None:
        """Answer a request that a different thread has computed."""
        try:
            request.connection.reply(request, 200, task.result())
        except Exception as error:
            self._fail(request, error)

    def _fail(self, request: _Request, error: Exception) -> None:
        """Answer a request that has failed."""
        request.connection.reply(request, failure(error)[0], {"error": _text(error)})

    def _deliver(self, done_calls: Sequence[Call[Any]]) -> None:
        """Answer the requests whose last calls are among ``done_calls``; plan the next sync."""
        encoded: list[Any] = []

        def status() -> Any:
            # Encoded once: all answers that are sent now have the same status.
            if not encoded:
                encoded.append(msgspec.Raw(msgspec.json.encode(self._silo.status())))
            return encoded[0]

        for call in done_calls:
            request = self._requests.pop(id(call), None)
            if request is None:
                continue
            request.missing -= 1
            if not request.missing:
                try:
                    answer = answer_of(status, request.path, request.calls)
                except Exception as error:
                    self._fail(request, error)
                else:
                    request.connection.reply(request, 200, answer)
        if self._silo.has_waiting:
            self._plan_sync()

    def _done(self, done_calls: list[Call[Any]]) -> None:
        """Call `_deliver` in the thread that answers; any thread of the process may call this."""
        if threading.get_ident() == self._thread:
            self._deliver(done_calls)
        else:
            self._from_thread(self._deliver, done_calls)

    def _plan_sync(self) -> None:
        """Plan a sync to disk of the computed calls.

        The sync begins after all requests that have arrived are computed, so that they share it. It
        begins now instead if at least `few` calls wait and syncs are slow: their mean time `pace`
        is at least `fast` seconds. Without this exception, clients whose calls share a sync would
        send their next calls at the same time, and would share every later sync while the other
        threads that sync are idle.
        """
        if self._silo.pace >= self.fast and self._silo.waiting >= self.few:
            self._sync()
        elif not self._is_planned:
            assert self._loop is not None
            self._is_planned = True
            self._loop.call_later(0.0, self._planned)

    def _planned(self) -> None:
        """Run the planned sync."""
        self._is_planned = False
        self._sync()

    def _sync(self) -> None:
        """Store the computed calls; if syncs are slow, sync in a different thread."""
        silo = self._silo
        if silo.pace < self.fast:
            silo.sync()
            return
        batch = silo.begin_sync()
        if batch is None:
            return
        try:
            syncing = silo.store.begin_sync()
        except OSError as error:
            silo.finish_sync(batch, error, silo.pace)
            return
        if syncing is None:
            silo.finish_sync(batch, None, 0.0)
            return
        self._running_syncs[syncing.file] = batch, syncing
        self._sync_threads.begin(syncing.file)

    def _finish_syncs(self) -> None:
        """Finish the calls whose syncs have ended."""
        silo = self._silo
        for file, error, seconds in self._sync_threads.ended():
            batch, syncing = self._running_syncs.pop(file)
            disk_error = OSError(error, os.strerror(error)) if error else None
            # The store also fails if an earlier sync has failed.
            store_error: OSError | None = None
            try:
                silo.store.end_sync(syncing, disk_error)
            except OSError as raised:
                store_error = raised
            silo.finish_sync(batch, store_error, seconds)
        if silo.store.is_untidy:
            self._blocking.submit(silo.store.tidy)
