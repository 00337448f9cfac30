"""The network around processes: the hub listens, silos and helper dial out.

One POST carries one message, and its answer the messages for the sender. Whatever is lost is asked
for again, since a party's `tick` says again what was not answered. A silo's own application talks
to it through a Unix socket in the silo's folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from fastfed._validate import InputError, check_plain, is_line, nearest, parsed, show
from fastfed.deployment.calls import (
    FULL,
    LocalHandler,
    SocketServer,
    call,
    call_socket,
    failure,
    one_line,
)
from fastfed.deployment.hub import Hub
from fastfed.deployment.model import model_of
from fastfed.deployment.observe import (
    REACHED,
    UNREACHABLE,
    JsonHandler,
    JsonLog,
    hub_numbers,
    masked,
    prometheus,
)
from fastfed.deployment.party import Process, SiloProcess

PATH = "/v1/messages"
#: Seconds between two ticks, and that a hub has to finish its answers once it is stopped.
EVERY, FINISH = 5.0, 2
#: The most bytes of an application's request, and of a silo's answer to it.
REQUEST, ANSWER = 1 << 24, 1 << 28

# ---- the hub -------------------------------------------------------------------------------------

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class HubApp:
    """The hub as an ASGI application: POST /v1/messages, GET /status, GET /metrics.

    Answers 200 with the messages for the sender, 400 for a message that is refused, 409 for one
    that contradicts an earlier one, 413 for one that is too large, 503 where the disk is full, 500
    for an error of the program, which the log names.
    """

    def __init__(self, process: Process, log: JsonLog | None = None) -> None:
        self.process, self._log = process, log

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            status, kind, body = await self._answer(scope, receive)
        except asyncio.CancelledError:
            status, kind, body = 503, b"text/plain; charset=utf-8", b"the hub is stopping"
        except Exception as error:
            status, text = failure(error)
            kind, body = b"text/plain; charset=utf-8", text.encode()
            if status == 500:
                logging.getLogger("uvicorn.error").error(text)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> tuple[int, bytes, bytes]:
        text = b"text/plain; charset=utf-8"
        where = scope["method"], scope["path"]
        if where == ("GET", "/status"):
            return 200, b"application/json", json.dumps(self.status()).encode()
        if where == ("GET", "/metrics"):
            return 200, text, self.metrics().encode()
        if where != ("POST", PATH):
            return 404, text, b"not found"
        data, more = b"", True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                return 400, text, b"the request was cut off"
            data += event.get("body", b"")
            more = event.get("more_body", False)
            if len(data) > self._hub.wire.largest:
                return 413, text, b"the message is too large"
        try:
            made = await asyncio.to_thread(self.answer, data)
        except (InputError, *FULL) as error:
            # Where the disk is full the sender asks again.
            status, said = failure(error)
            made = status, text, (said if status == 400 else f"nothing was kept: {said}").encode()
        if self._log is not None:
            if made[0] != 200:
                self._log.event("message", status=made[0], text=masked(made[2].decode()))
            self._log.look(self.process)
        return made

    @property
    def _hub(self) -> Hub:
        party = self.process.party
        assert isinstance(party, Hub)
        return party

    def answer(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Status, type and body of the answer to one message; what it leads to is durable."""
        step, messages = self.process.handle(data)
        if step.problem:
            return 409, b"text/plain; charset=utf-8", step.problem.encode()
        sender = self._hub.wire.read(data).sender
        mine = [message.data for message in messages if message.to == sender]
        return 200, b"application/msgpack", msgspec.msgpack.encode(mine)

    def status(self) -> dict[str, Any]:
        """What the hub has and waits for."""
        return self.process.status()

    def metrics(self) -> str:
        """Numbers for Prometheus, none of them of a record."""
        numbers = hub_numbers(self._hub, self.process.now())
        return prometheus("hub", numbers | {"clock_off_seconds": self.process.clock_off})


def local(host: str) -> bool:
    """True for an address of this machine alone."""
    return host in ("localhost", "127.0.0.1", "::1")


@contextmanager
def _pem(*files: str | None) -> Iterator[None]:
    """Name the files that are no certificates and keys, or no pair."""
    try:
        yield
    except OSError as error:
        named = " and ".join(file for file in files if file is not None)
        raise InputError(
            f"{named} must be PEM files of a certificate and the key that belongs to it: {error}"
        ) from None


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """TLS for whoever calls a hub.

    Parameters
    ----------
    ca : str, optional
        File with the authority that the hub's certificate must be of; else the system's.
    cert, key : str, optional
        The own certificate and its key.

    Raises
    ------
    InputError
        For files that are no such things.
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
    log: JsonLog | None = None,
) -> Any:
    """How uvicorn is to run the hub; see `serve`."""
    if not isinstance(process.party, Hub):
        raise InputError(f"{process.party.name} is not the hub of its plan")
    if cert is None and not local(host):
        raise InputError(f"host {host} needs a certificate and its key: cert, key")
    if cert is None and client_ca is not None:
        raise InputError("client_ca needs a certificate of the hub and its key: cert, key")
    try:
        import uvicorn
    except ImportError as error:
        raise InputError("the hub needs uvicorn: pip install 'fastfed[deploy]'") from error
    reqs = ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED
    more: dict[str, Any] = {}
    if log is not None:
        logging.getLogger("uvicorn").handlers = [JsonHandler(log)]
        more["log_config"] = None
    from fastfed.deployment.gate import Gate, quiet

    gate = Gate()
    config = uvicorn.Config(
        HubApp(process, log), host=host, port=port, log_level="warning",
        http=cast(Any, gate.protocol), loop="asyncio", ws="none", lifespan="off",
        ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=client_ca, ssl_cert_reqs=reqs,
        access_log=False, backlog=gate.backlog,
        timeout_graceful_shutdown=FINISH, **more,
    )  # fmt: skip
    with _pem(cert, key, client_ca):
        config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        # The gate begins TLS, so that it counts connections whose handshake is unfinished.
        gate.context, config.ssl = config.ssl, None
    quiet()
    return config


def serve(
    process: Process,
    host: str,
    port: int,
    cert: str | None = None,
    key: str | None = None,
    client_ca: str | None = None,
    log: JsonLog | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run the hub until `stop` is set, or without one until a signal comes.

    Without a certificate it listens on this machine alone, where a proxy may end TLS.

    Parameters
    ----------
    process : Process
    host, port : str and int
    cert, key : str, optional
        The hub's certificate and its key.
    client_ca : str, optional
        File with the certificate authority that whoever connects must have a certificate of:
        mutual TLS. No other authority counts, not even those of the system.
    log : JsonLog, optional
    stop : threading.Event, optional

    Raises
    ------
    InputError
        For another address without a certificate, for a client_ca without one, and without the
        extra.
    """
    config = listening(process, host, port, cert, key, client_ca, log)
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for listener in (each for server in self.servers for each in server.sockets):
                # Few are accepted at a time, but as many as the system allows may wait for that.
                with listener.dup() as queue:
                    queue.listen()

        async def on_tick(self, counter: int) -> bool:
            return (stop is not None and stop.is_set()) or await super().on_tick(counter)

    Server(config).run()


# ---- silos and helper ----------------------------------------------------------------------------


def address_of(hub: str) -> SplitResult:
    """Split a hub's address; InputError if it is not a valid one."""
    try:
        parts = urlsplit(hub)
        known = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or parts.scheme not in ("https", "http") or " " in hub or not is_line(hub):
        raise InputError(f"hub must be an address, https://..., got {show(hub)}")
    return parts


class Dialer:
    """Carries a party's messages to the hub, and the hub's answers back.

    Parameters
    ----------
    process : Process
        A silo's or the helper's.
    hub : str
        The hub's address: https://..., or http:// on this machine.
    ca : str, optional
        File with the certificate authority that the hub's certificate must be of.
    cert, key : str, optional
        The party's own certificate, where the hub asks for one.

    Raises
    ------
    InputError
        For http:// to another machine.
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
        self._context = None
        if parts.scheme == "https":
            self._context = client_context(ca, cert, key)

    def round(self) -> str:
        """Tick once and carry everything; returns what went wrong, empty if nothing did."""
        messages = list(self.process.tick())
        trouble = self.process.problem
        while messages:
            message = messages.pop(0)
            try:
                answers = self._post(message.data)
            except Exception as error:
                trouble = failure(error)[1]
                continue
            for data in answers:
                try:
                    step, more = self.process.handle(data)
                    trouble = step.problem or trouble
                    messages += more
                except Exception as error:
                    trouble = failure(error)[1]
        return trouble

    def _post(self, data: bytes) -> list[bytes]:
        """The hub's answers to one message; InputError with what it said otherwise."""
        party: Any = self.process.party
        if party.asked is None:
            party.asked = self.process.now()
        try:
            status, body = call(self.url, self._largest, data, self._context)
        except OSError as error:
            party.asked = 0.0
            raise InputError(f"{UNREACHABLE} ({error})") from None
        # Another status is that of a proxy, or of a hub that cannot keep anything.
        party.asked = None if status in (200, 400, 409, 413) else 0.0
        if status != 200:
            said = one_line(body.decode(errors="replace"))
            raise InputError(f"the hub answered {status}: {said}")
        try:
            return msgspec.msgpack.decode(body, type=list[bytes])
        except msgspec.DecodeError:
            raise InputError("the hub's answer is no list of messages") from None

    @property
    def _largest(self) -> int:
        """Bytes of an answer, at most: all broadcasts, and a receipt."""
        party: Any = self.process.party
        return int(party.wire.largest) * (party.plan.releases + 2)

    def run(
        self,
        stop: threading.Event,
        every: float = EVERY,
        say: Callable[[str], None] = print,
        look: Callable[[Process], None] | None = None,
    ) -> None:
        """Carry messages until `stop` is set; `look` is called after each round."""
        last = ""
        while not stop.is_set():
            try:
                trouble = self.round()
            except Exception as error:
                # Where the disk is full nothing was sealed, and the next round tries again.
                trouble = failure(error)[1]
            if trouble and trouble != last:
                say(trouble)
            elif last.startswith(UNREACHABLE) and not trouble:
                say(REACHED)
            last = trouble
            if look is not None:
                look(self.process)
            stop.wait(every)


# ---- a silo's own application --------------------------------------------------------------------


#: The keys that a request to each path may have; where "id" is one, it must be there.
KEYS = {
    "/decide": ("actions", "subject", "record", "among"),
    "/reward": ("id", "reward"),
    "/outcome": ("id", "outcome"),
    "/losses": ("id", "losses"),
    "/cancel": ("id",),
    **dict.fromkeys(("/status", "/recover", "/leave", "/export", "/broadcast"), ()),
}


def answers(silo: SiloProcess, path: str, given: dict[str, Any]) -> dict[str, Any]:
    """What /decide, /reward, /outcome and the other paths answer; the docs list them all."""
    keys = KEYS.get(path)
    if keys is None:
        raise InputError(f"there is no {path[:40]}")
    # A misspelled subject would be nobody, and a person counted twice.
    for key in given:
        if key not in keys:
            takes = f"takes {', '.join(keys)}" if keys else "takes no keys"
            near = nearest(key, keys) if keys else ""
            raise InputError(f'unknown key "{key[:40]}"{near}: {path} {takes}')
    if "id" in keys and not isinstance(given.get("id"), str):
        raise InputError(f"{path} needs id, the text that decide answered")
    if path == "/decide":
        made = silo.decide(
            given.get("actions"),
            given.get("subject"),
            record=given.get("record"),
            among=given.get("among"),
        )
        found: dict[str, Any] = {
            "id": made.id,
            "action": made.action,
            "propensity": made.propensity,
            "model": made.model,
            "learns": made.learns,
        }
        return found | ({"name": made.name} if made.name else {})
    if path == "/export":
        return model_of(silo.party)
    if path == "/broadcast":
        last = silo.party.broadcasts.get(silo.party.model.release, b"")
        return {"release": silo.party.model.release, "broadcast": last.hex()}
    if path == "/reward":
        silo.reward(given["id"], given.get("reward"))  # type: ignore[arg-type]
    elif path == "/outcome":
        silo.outcome(given["id"], given.get("outcome"))
    elif path == "/losses":
        silo.losses(given["id"], given.get("losses"))
    elif path == "/cancel":
        silo.cancel(given["id"])
    elif path == "/recover":
        silo.recover()
    elif path == "/leave":
        silo.leave()
    return silo.status()


class Application(SocketServer):
    """Serves a silo's application through a Unix socket that its owner alone can use.

    Parameters
    ----------
    silo : SiloProcess
    path : str or Path
        The socket; one that was left behind is replaced.
    """

    def __init__(self, silo: SiloProcess, path: str | Path) -> None:
        super().__init__(path, _handler(silo), 0o600)


def _object(body: bytes) -> dict[str, Any]:
    """What a request says."""
    try:
        given = parsed(json.loads, body or b"{}")
    except InputError as error:
        raise InputError(
            f'a request must be a JSON object, such as {{"id": "..."}} ({error})'
        ) from None
    if not isinstance(given, dict):
        raise InputError("a request must be a JSON object")
    check_plain("a request", given, keys=False)
    return given


def _handler(silo: SiloProcess) -> type[LocalHandler]:
    class Handler(LocalHandler):
        """Answers POST with JSON."""

        def do_POST(self) -> None:
            try:
                status, made = 200, answers(silo, self.path, _object(self.read(REQUEST)))
            except Exception as error:
                status, text = failure(error)
                made = {"error": f"nothing was kept: {text}" if status == 503 else text}
            self.reply(status, json.dumps(made).encode())

    return Handler


class SiloClient:
    """What an application in Python calls.

    Parameters
    ----------
    path : str or Path
        The silo's socket.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    def call(self, what: str, **given: Any) -> dict[str, Any]:
        """POST to one of the paths of `answers`.

        Raises
        ------
        InputError
            With what the silo said, if it refused, and for values that are not plain data.
        OSError
            If the silo cannot be reached.
        """
        try:
            body = json.dumps(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"give numbers, text and lists: {error}; array.tolist() makes lists"
            ) from None
        try:
            status, found = call_socket(self._path, "/" + what, body.encode(), ANSWER)
        except ConnectionError as error:
            raise OSError(f"the silo stopped before it answered ({error})") from None
        except OSError as error:
            why = f"no silo answers at {self._path}: is `fastfed silo` running there?"
            raise OSError(error.errno, f"{why} ({error.strerror or error})") from None
        made: dict[str, Any] = parsed(json.loads, found)
        if status != 200:
            raise InputError(made.get("error", "the silo refused"))
        return made
