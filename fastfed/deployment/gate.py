"""The hub's limits on connections: their number, and the time until a request is answered.

uvicorn counts and times only requests. This module counts connections from the moment they are
accepted, also during their TLS handshake.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastfed.deployment.calls import WHOLE, failure, files_for

if TYPE_CHECKING:
    import ssl


class Gate:
    """The open connections of a hub, oldest first.

    ``context`` is the hub's TLS context; None if a proxy terminates TLS.
    """

    #: Deadline in seconds, from accepting a connection or its last answer to its next answer.
    seconds = WHOLE

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.most = files_for(3, 256)
        #: Number of connections that may be accepted before the first of them is counted.
        self.backlog = max(1, self.most // 8)
        self.open: dict[Guarded, None] = {}
        self.protocol = partial(Guarded, self)

    def admit(self, connection: Guarded) -> None:
        """Count a connection; if there are too many, drop the oldest that is not being answered."""
        if len(self.open) >= self.most:
            idle = (
                connection_waiting
                for connection_waiting in self.open
                if not connection_waiting.answering
            )
            next(idle, next(iter(self.open))).drop()
        self.open[connection] = None


class Guarded(H11Protocol):
    """One connection to the hub. It is dropped after its deadline, or to make room for new ones."""

    def __init__(self, gate: Gate, **keys: Any) -> None:
        super().__init__(**keys)
        self._gate = gate
        #: Data that arrive before uvicorn has the transport.
        self._early = b""
        self._ready = False

    @property
    def answering(self) -> bool:
        """True while a complete request is answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Count the connection, start its deadline, and begin TLS."""
        self._tcp_transport = transport
        self._gate.admit(self)
        self.connections.add(self)
        self._deadline = self.loop.call_later(self._gate.seconds, self.drop)
        if self._gate.context is None:
            self._begin(transport)
            return
        transport.pause_reading()
        self._handshake = self.loop.create_task(self._secure(transport, self._gate.context))

    async def _secure(self, transport: Any, context: ssl.SSLContext) -> None:
        """Do the TLS handshake, then pass the connection to uvicorn."""
        try:
            secured = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=self._gate.seconds
            )
        except OSError:
            secured = None
        if secured is None:
            self.drop()
            return
        self._begin(secured)
        if self._early:
            self.data_received(self._early)

    def _begin(self, transport: Any) -> None:
        """Pass the connection to uvicorn."""
        self._ready = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass data to uvicorn, or store them until it has the transport."""
        if self._ready:
            super().data_received(data)
        else:
            self._early += data

    def handle_events(self) -> None:
        """Process requests that have arrived; drop a connection that breaks the protocol."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # A bad request arrived while an earlier one is being answered.
            self.drop()
        except Exception as error:
            self.logger.error(failure(error)[1])
            self.drop()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        self._deadline.cancel()
        self._deadline = self.loop.call_later(self._gate.seconds, self.drop)
        super().on_response_complete()

    def drop(self) -> None:
        """Close the connection at once."""
        self._forget()
        self._tcp_transport.abort()

    def _forget(self) -> None:
        """Cancel the deadline and stop counting the connection."""
        self._deadline.cancel()
        self._gate.open.pop(self, None)
        self.connections.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting a connection that was closed."""
        self._forget()
        if self._ready:
            super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, unless a complete request is being answered."""
        if self.answering:
            super().shutdown()
        else:
            self.drop()


class Seldom(logging.Filter):
    """Log each message at most once a minute, and failed system calls without a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be logged."""
        text, now = str(record.msg).split("\n", 1)[0], time.monotonic()
        if now - self._last_logged.get(text, -60.0) < 60.0:
            return False
        if len(self._last_logged) > 100:
            self._last_logged.clear()
        self._last_logged[text] = now
        if record.exc_info and isinstance(record.exc_info[1], OSError):
            record.msg, record.exc_info = f"{text} ({record.exc_info[1].strerror})", None
        return True


_SELDOM = Seldom()


def quiet() -> None:
    """Limit how often messages are logged that any client can cause."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_SELDOM)
