"""The hub's limits on connections: their number, and the time until a request is answered.

The web server uvicorn limits only requests. This module limits connections, from the moment when
they are accepted, so also during their TLS handshake.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastfed.deployment.calls import REQUEST_SECONDS, failure, files_for

if TYPE_CHECKING:
    import ssl


class Gate:
    """The set of a hub's open connections, which has a maximum size.

    ``context`` is the hub's TLS context; None if a proxy terminates TLS.
    """

    #: Seconds within which a connection must get an answer, counted from its start or last answer.
    seconds = REQUEST_SECONDS

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        #: Maximum number of open connections.
        self.max_connections = files_for(3, 256)
        #: Number of connections that may be accepted before the first of them is counted.
        self.backlog = max(1, self.max_connections // 8)
        #: The open connections, oldest first; a dict is used as an ordered set.
        self.open: dict[Guarded, None] = {}
        #: Creates a connection of this gate; asyncio calls it for each new connection.
        self.protocol = partial(Guarded, self)

    def admit(self, connection: Guarded) -> None:
        """Add a new connection; if there are too many, first drop the oldest idle connection.

        A connection is idle if no request of it is being answered. If no connection is idle, drop
        the oldest one.
        """
        if len(self.open) >= self.max_connections:
            idle_connections = (candidate for candidate in self.open if not candidate.answering)
            next(idle_connections, next(iter(self.open))).drop()
        self.open[connection] = None


class Guarded(H11Protocol):
    """One connection to the hub, dropped after its deadline or to make room for a new one."""

    def __init__(self, gate: Gate, **keys: Any) -> None:
        super().__init__(**keys)
        self._gate = gate
        #: Data that arrive before `_begin` is called.
        self._early = b""
        #: True once uvicorn handles the connection, after the TLS handshake.
        self._ready = False

    @property
    def answering(self) -> bool:
        """True while a request that has arrived completely is being answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Count the connection, start its deadline, and start the TLS handshake if there is TLS."""
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
        """Do the TLS handshake, then let uvicorn handle the connection; drop it on failure."""
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
        """Let uvicorn handle the connection from now on."""
        self._ready = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass data to uvicorn; store them if `_begin` has not been called yet."""
        if self._ready:
            super().data_received(data)
        else:
            self._early += data

    def handle_events(self) -> None:
        """Process the requests that have arrived; drop a connection that violates HTTP."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # An invalid request arrived while an earlier request is being answered.
            self.drop()
        except Exception as error:
            self.logger.error(failure(error)[1])
            self.drop()

    def on_response_complete(self) -> None:
        """Restart the deadline, for the next request."""
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
        """Stop counting the connection, which was closed."""
        self._forget()
        if self._ready:
            super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, unless a complete request is being answered."""
        if self.answering:
            super().shutdown()
        else:
            self.drop()


class OncePerMinute(logging.Filter):
    """Filter that passes each log message at most once a minute.

    Failed system calls are logged without their traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record must be logged."""
        text, now = str(record.msg).split("\n", 1)[0], time.monotonic()
        if now - self._last_logged.get(text, -60.0) < 60.0:
            return False
        if len(self._last_logged) > 100:
            self._last_logged.clear()
        self._last_logged[text] = now
        if record.exc_info and isinstance(record.exc_info[1], OSError):
            record.msg, record.exc_info = f"{text} ({record.exc_info[1].strerror})", None
        return True


_ONCE_PER_MINUTE = OncePerMinute()


def limit_logging() -> None:
    """Limit the logging of messages that any client can cause, such as failed handshakes."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_ONCE_PER_MINUTE)
