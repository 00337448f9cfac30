"""The network of a deployment: the hub listens, and silos and the helper connect to it.

One POST request carries one message; the response carries the hub's messages to the sender. Lost
messages are repeated, because a party's `tick` returns every message that was not answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from fastfed._validate import InputError, is_line, show
from fastfed.deployment.calls import (
    FULL_DISK_ERRORS,
    REQUEST_SECONDS,
    ReusedConnection,
    call,
    failure,
    one_line,
)
from fastfed.deployment.hub import Hub
from fastfed.deployment.observe import (
    REACHED,
    UNREACHABLE,
    JsonHandler,
    JsonLog,
    Log,
    mask_numbers,
    metrics_text,
)
from fastfed.deployment.process import Process
from fastfed.deployment.store import SyncFailed

PATH = "/v1/messages"
#: Seconds between two ticks of a party, and seconds that a hub has to finish its answers when it is
#: stopped.
TICK_SECONDS, FINISH_SECONDS = 5.0, 2

# ---- the hub -------------------------------------------------------------------------------------

#: Content type of texts in answers.
_TEXT = b"text/plain; charset=utf-8"
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class HubApp:
    """Serve the hub as an ASGI application: POST /v1/messages, GET /status, GET /metrics.

    The HTTP status of the answer to a message is 200 (with the hub's messages to the sender), 400
    if the message is refused, 409 if it contradicts an earlier message, 413 if it is too large, 503
    if the disk is full, and 500 for a program error, which is written to the log.
    """

    def __init__(self, process: Process, log: Log | None = None) -> None:
        self.process, self._log = process, log

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            status, content_type, body = await self._answer(scope, receive)
        except asyncio.CancelledError:
            status, content_type, body = 503, _TEXT, b"the hub is stopping"
        except Exception as error:
            status, text = failure(error)
            content_type, body = _TEXT, text.encode()
            if status == 500:
                logging.getLogger("uvicorn.error").error(text)
        headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> tuple[int, bytes, bytes]:
        """Return status, content type and body of the answer to a request."""
        request = scope["method"], scope["path"]
        if request == ("GET", "/status"):
            return 200, b"application/json", json.dumps(self.status()).encode()
        if request == ("GET", "/metrics"):
            return 200, _TEXT, self.metrics().encode()
        if request != ("POST", PATH):
            return 404, _TEXT, b"not found"
        data, more_body = b"", True
        while more_body:
            event = await receive()
            if event["type"] != "http.request":
                return 400, _TEXT, b"the request was cut off"
            data += event.get("body", b"")
            more_body = event.get("more_body", False)
            if len(data) > self._hub.wire.largest:
                return 413, _TEXT, b"the message is too large"
        return await asyncio.to_thread(self._answer_logged, data)

    def _answer_logged(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Answer a message as `answer` does; log a refusal, and events of the hub's state.

        Return status, content type and body of the answer.
        """
        try:
            answer = self.answer(data)
        except (InputError, *FULL_DISK_ERRORS) as error:
            # After 503 (the disk is full), the sender repeats the message.
            status, problem = failure(error)
            problem = problem if status == 400 else f"nothing was stored: {problem}"
            answer = status, _TEXT, problem.encode()
        if self._log is not None:
            if answer[0] != 200:
                self._log.event("message", status=answer[0], text=mask_numbers(answer[2].decode()))
            self._log.look(self.process)
        return answer

    @property
    def _hub(self) -> Hub:
        party = self.process.party
        assert isinstance(party, Hub)
        return party

    def answer(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Process and store a message; return status, content type and body of the answer."""
        step, messages = self.process.handle(data)
        if step.problem:
            return 409, _TEXT, step.problem.encode()
        sender = self._hub.wire.read(data).sender
        answers = [message.data for message in messages if message.to == sender]
        return 200, b"application/msgpack", msgspec.msgpack.encode(answers)

    def status(self) -> dict[str, Any]:
        """Return the hub's status; see `Hub.status`."""
        return self.process.status()

    def metrics(self) -> str:
        """Return the hub's metrics as Prometheus text; none depends on a single record."""
        return metrics_text(self.process)


def local(host: str) -> bool:
    """Return True if a host is a loopback address."""
    return host in ("localhost", "127.0.0.1", "::1")


@contextmanager
def _pem(*files: str | None) -> Iterator[None]:
    """Replace an OSError in a block that loads certificates by an error that names the files."""
    try:
        yield
    except OSError as error:
        names = " and ".join(file for file in files if file is not None)
        raise InputError(
            f"{names} must be PEM files of a certificate and the key that belongs to it: {error}"
        ) from None


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Create the TLS context of a client of the hub.

    Parameters
    ----------
    ca : str, optional
        File of the certificate authority that must have issued the hub's certificate. By default
        the authorities of the system.
    cert, key : str, optional
        Files of the client's certificate and key.

    Raises
    ------
    InputError
        If a file is not a certificate or key in PEM format.
    """
    with _pem(ca, cert, key):
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if cert is not None:
            context.load_cert_chain(cert, key)
    return context


def listening(
    process: Process,
    host: str,
    port: int,
    cert: str | None = None,
    key: str | None = None,
    client_ca: str | None = None,
    log: Log | None = None,
) -> Any:
    """Create the configuration of the web server uvicorn for a hub; see `serve`."""
    if not isinstance(process.party, Hub):
        raise InputError(
            f"{process.party.name} is not the hub of its plan: `fastfed serve` takes the hub's "
            "folder; silos run by `fastfed silo`, the helper by `fastfed helper`"
        )
    if cert is None and not local(host):
        raise InputError(
            f"host {host} needs TLS: give the hub's certificate and its key by --cert and --key"
        )
    if cert is None and client_ca is not None:
        raise InputError("client_ca needs a certificate of the hub and its key: cert, key")
    try:
        import uvicorn
    except ImportError as error:
        raise InputError("the hub needs uvicorn: pip install 'fastfed[deploy]'") from error
    cert_reqs = ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED
    log_options: dict[str, Any] = {}
    if isinstance(log, JsonLog):
        logging.getLogger("uvicorn").handlers = [JsonHandler(log)]
        log_options["log_config"] = None
    from fastfed.deployment.gate import Gate, limit_logging

    gate = Gate()
    config = uvicorn.Config(
        HubApp(process, log), host=host, port=port, log_level="warning", http=cast(Any,
        gate.protocol), loop="asyncio", ws="none", lifespan="off", ssl_certfile=cert,
        ssl_keyfile=key, ssl_ca_certs=client_ca, ssl_cert_reqs=cert_reqs, access_log=False,
        backlog=gate.backlog, timeout_graceful_shutdown=FINISH_SECONDS,
        timeout_keep_alive=int(REQUEST_SECONDS), **log_options,
    )  # fmt: skip
    with _pem(cert, key, client_ca):
        config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        # The gate does the TLS handshake, so that it counts connections during the handshake.
        gate.context, config.ssl = config.ssl, None
    limit_logging()
    return config


def check_free(host: str, port: int) -> None:
    """Raise InputError unless a server may listen on this port of the host."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise InputError(
            f"the hub cannot listen on port {port} of {host} ({error.strerror}): choose a "
            "different host or port, or stop the program that uses this port"
        ) from None


def serve(
    process: Process,
    host: str,
    port: int,
    cert: str | None = None,
    key: str | None = None,
    client_ca: str | None = None,
    log: Log | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run the hub until `stop` is set or, without `stop`, until a signal arrives.

    Without a certificate, it listens on a loopback address only, where a proxy can terminate TLS.

    Parameters
    ----------
    process : Process
        The process of the hub.
    host, port : str and int
    cert, key : str, optional
        Files of the hub's certificate and key.
    client_ca : str, optional
        File of a certificate authority. If given, clients must have a certificate of this authority
        (mutual TLS). No other authority is accepted, not even the authorities of the system.
    log : Log, optional
    stop : threading.Event, optional

    Raises
    ------
    InputError
        If ``host`` is not a loopback address or ``client_ca`` is given, and there is no
        certificate; if the extra ``deploy`` is not installed; or if the port cannot be used.
    """
    config = listening(process, host, port, cert, key, client_ca, log)
    check_free(host, port)
    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn's server, which also ends when `stop` is set."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for listener in (
                open_socket for server in self.servers for open_socket in server.sockets
            ):
                # uvicorn's backlog limits how many connections are accepted at a time. The queue of
                # waiting connections can still be as long as the system allows.
                with listener.dup() as queue:
                    queue.listen()
            if log is not None and self.started:
                scheme, name = (
                    "http" if cert is None else "https",
                    f"[{host}]" if ":" in host else host,
                )
                log.event("listening", address=f"{scheme}://{name}:{port}")

        async def on_tick(self, counter: int) -> bool:
            return (stop is not None and stop.is_set()) or await super().on_tick(counter)

    Server(config).run()


# ---- silos and helper ----------------------------------------------------------------------------


def address_of(hub: str) -> SplitResult:
    """Split the address (URL) of a hub into its parts; raise InputError if it is not valid."""
    try:
        parts = urlsplit(hub)
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in ("https", "http") or " " in hub or not is_line(hub):
        raise InputError(f"hub must be an address, https://..., got {show(hub)}")
    return parts


class Dialer:
    """The connection of a silo or helper to the hub, for its messages and the hub's answers.

    Parameters
    ----------
    process : Process
        The process of a silo or of the helper.
    hub : str
        The hub's address: https://..., or http:// on this machine.
    ca : str, optional
        File of the certificate authority that must have issued the hub's certificate.
    cert, key : str, optional
        Files of the party's certificate and key, if the hub requires one.

    Raises
    ------
    InputError
        If the address is http:// on a different machine.
    """

    def __init__(
        self,
        process: Process,
        hub: str,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        parts = address_of(hub)
        if parts.scheme != "https" and not (parts.scheme == "http" and local(parts.hostname or "")):
            raise InputError(f"hub must be https://..., or http:// on this machine, got {hub}")
        self.process, self.url = process, hub.rstrip("/") + PATH
        self._context, self._reused = None, ReusedConnection()
        if parts.scheme == "https":
            self._context = client_context(ca, cert, key)

    def round(self) -> str:
        """Tick the party once, send its messages, and process the hub's answers.

        Return the last error as text; empty if there was none.
        """
        messages, party = list(self.process.tick()), self.process.party
        problem = self.process.problem
        while messages:
            message = messages.pop(0)
            try:
                answers = self._post(message.data)
            except Exception as error:
                problem = failure(error)[1]
                continue
            for data in answers:
                try:
                    step, replies = self.process.handle(data)
                    party.unanswered_since = None
                    problem = step.problem or problem
                    messages += replies
                except Exception as error:
                    problem = failure(error)[1]
        return problem

    def _post(self, data: bytes) -> list[bytes]:
        """Send one message; return the messages in the hub's answer.

        Raises
        ------
        InputError
            If the hub cannot be reached or refuses the message.
        """
        party = self.process.party
        if party.unanswered_since is None:
            party.unanswered_since = self.process.now()
        try:
            status, body = call(self.url, self._largest, data, self._context, self._reused)
        except OSError as error:
            # The value 0 marks a call that failed.
            party.unanswered_since = 0.0
            raise InputError(f"{UNREACHABLE} ({error})") from None
        if status >= 500:
            # This status comes from a proxy, or from a hub that cannot write to its disk. The call
            # counts as failed.
            party.unanswered_since = 0.0
        if status != 200:
            text = one_line(body.decode(errors="replace"))
            raise InputError(f"the hub answered {status}: {text}")
        try:
            answers = msgspec.msgpack.decode(body, type=list[bytes])
        except msgspec.DecodeError:
            raise InputError("the hub's answer is not a list of messages") from None
        if not answers:
            party.unanswered_since = None
        return answers

    @property
    def _largest(self) -> int:
        """Maximum number of bytes of an answer, which may hold all broadcasts and a receipt."""
        party: Any = self.process.party
        return int(party.wire.largest) * (party.deployed.exchanges + 2)

    def run(
        self,
        stop: threading.Event,
        every: float = TICK_SECONDS,
        say: Callable[[str], None] = print,
        look: Callable[[Process], None] | None = None,
    ) -> None:
        """Run a round every ``every`` seconds until `stop` is set.

        ``say`` is called with each new problem, and ``look`` with the process after each round.

        Raises
        ------
        SyncFailed
            If a sync to disk has failed. The party must be started again.
        """
        last_problem = ""
        while not stop.is_set():
            try:
                problem = self.round()
            except SyncFailed:
                raise
            except Exception as error:
                # If the disk is full, nothing was stored or sent, and the next round tries again.
                problem = failure(error)[1]
            if problem and problem != last_problem:
                say(problem)
            elif last_problem.startswith(UNREACHABLE) and not problem:
                say(REACHED)
            last_problem = problem
            if look is not None:
                look(self.process)
            stop.wait(every)
