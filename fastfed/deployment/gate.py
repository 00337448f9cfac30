"""Limits of the hub on whoever connects: how many, and how long until a request is answered.

uvicorn counts and times requests only. Here a connection counts from the moment it is accepted,
also while its TLS handshake is unfinished.
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

    context: TLS of the hub, if it ends TLS itself.
    """

    #: Seconds from accepting a connection, or from its last answer, to the end of the next answer.
    seconds = WHOLE

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.most = files_for(3, 256)
        #: How many connections may be accepted before the first of them is counted.
        self.backlog = max(1, self.most // 8)
        self.open: dict[Guarded, None] = {}
        self.protocol = partial(Guarded, self)

    def admit(self, connection: Guarded) -> None:
        """Count a connection; if there are too many, drop the oldest that is not answered now."""
        if len(self.open) >= self.most:
            idle = (each for each in self.open if not each.answering)
            next(idle, next(iter(self.open))).drop()
        self.open[connection] = None


class Guarded(H11Protocol):
    """One connection of a hub, with a deadline; dropped when it is late or in the way."""

    def __init__(self, gate: Gate, **keys: Any) -> None:
        super().__init__(**keys)
        self._gate = gate
        #: What arrives before uvicorn has its transport.
        self._early = b""
        self._ready = False

    @property
    def answering(self) -> bool:
        """True while a complete request is answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Count the connection, start its deadline, and begin TLS."""
        self._outer = transport
        self._gate.admit(self)
        self.connections.add(self)
        self._deadline = self.loop.call_later(self._gate.seconds, self.drop)
        if self._gate.context is None:
            self._begin(transport)
            return
        transport.pause_reading()
        self._handshake = self.loop.create_task(self._secure(transport, self._gate.context))

    async def _secure(self, transport: Any, context: ssl.SSLContext) -> None:
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
        self._ready = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass data on, once uvicorn has its transport."""
        if self._ready:
            super().data_received(data)
        else:
            self._early += data

    def handle_events(self) -> None:
        """Do what has arrived; a connection that breaks the protocol is dropped."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # A bad request while another one is being answered.
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
        """End the connection at once."""
        self._forget()
        self._outer.abort()

    def _forget(self) -> None:
        self._deadline.cancel()
        self._gate.open.pop(self, None)
        self.connections.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        if self._ready:
            super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, unless a complete request is being answered."""
        if self.answering:
            super().shutdown()
        else:
            self.drop()


class Seldom(logging.Filter):
    """Passes each message at most once a minute, and failed system calls without a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is logged."""
        text, now = str(record.msg).split("\n", 1)[0], time.monotonic()
        if now - self._last.get(text, -60.0) < 60.0:
            return False
        if len(self._last) > 100:
            self._last.clear()
        self._last[text] = now
        if record.exc_info and isinstance(record.exc_info[1], OSError):
            record.msg, record.exc_info = f"{text} ({record.exc_info[1].strerror})", None
        return True


_SELDOM = Seldom()


def quiet() -> None:
    """Log seldom what whoever connects can cause."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_SELDOM)
