"""Clients of a silo for applications in Python: one for threads, one for asyncio.

Every call may be repeated. The client chooses the id of a decision, and a silo answers the same
decision for the same id. A reward that is repeated changes nothing. So if a silo is restarted, or a
connection is cut, before an answer arrives, the client connects and sends the request again.
"""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httptools
import msgspec
import numpy as np

from fastfed._validate import InputError, number, parsed
from fastfed.deployment import calls
from fastfed.deployment.calls import MAX_REQUEST
from fastfed.deployment.model import Decision, id_of

#: Seconds that a client waits for a silo that does not answer, and between two attempts.
WAIT, PAUSE = 10.0, 0.05
#: Maximum number of bytes of an answer.
MAX_ANSWER_BYTES = 1 << 28


class _Answer:
    """Collect the parts of one HTTP answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self.is_complete = False

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        """Note that the answer is complete."""
        self.is_complete = True

    def feed(self, data: bytes) -> None:
        """Add data of the connection; raise InputError if they are no answer."""
        if not data:
            raise ConnectionResetError("the silo closed the connection before it answered")
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise InputError(f"no valid HTTP answer: {type(error).__name__}") from None
        if self._size > MAX_ANSWER_BYTES:
            raise InputError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")

    def keeps_connection(self) -> bool:
        """Return True if the connection stays open, and its silo is not about to stop."""
        return self.parser.should_keep_alive() and self.parser.get_status_code() != 503

    def value(self) -> dict[str, Any]:
        """Decode the answer's JSON object.

        Raises
        ------
        InputError
            If the silo refused the request.
        OSError
            If the silo could not store anything: its disk is full, or it is stopping.
        """
        answer: dict[str, Any] = parsed(msgspec.json.decode, b"".join(self._parts))
        status, text = self.parser.get_status_code(), answer.get("error", "the silo refused")
        if status == 503:
            raise BlockingIOError(errno.EAGAIN, text)
        if status != 200:
            raise InputError(text)
        return answer


def _request(path: str, keys: Mapping[str, Any]) -> bytes:
    """Return a request to /``path`` as bytes; raise InputError if a value is not plain data."""
    try:
        body = json.dumps(keys, default=_list).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"give numbers, text and lists: {error}") from None
    if len(body) > MAX_REQUEST:
        raise InputError(f"a request must be at most {MAX_REQUEST} bytes long, got {len(body)}")
    head = f"POST /{path} HTTP/1.1\r\nhost: silo\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _list(value: Any) -> Any:
    """Return an array or a number of NumPy as plain data, for JSON; raise TypeError for others."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _offers(offers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests of many decisions; raise InputError unless ``offers`` are mappings."""
    if isinstance(offers, Mapping | str) or not isinstance(offers, Iterable):
        raise InputError('give a list of arguments of decide, such as [{"actions": rows}, ...]')
    items = list(offers)
    if not all(isinstance(item, Mapping) for item in items):
        raise InputError('each decision must be given as a dict, such as {"actions": rows}')
    return [_offer(item) for item in items]


def _rewards(rewards: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the requests of many rewards; raise InputError unless ``rewards`` is a mapping."""
    if not isinstance(rewards, Mapping):
        raise InputError("give the rewards as a dict, such as {decision.id: 1.0}")
    return [{"id": name, "reward": reward} for name, reward in rewards.items()]


def _socket_of(path: str | Path) -> str:
    """Return a socket's path as text; raise InputError for a folder."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder: give its socket, {Path(path) / 'silo.sock'}")
    if "://" in str(path):
        raise InputError(f"path must be the socket of a silo, FOLDER/silo.sock, got {path}")
    return str(path)


def _offer(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of a decision, with a new id by default and without keys that are None."""
    request = {key: value for key, value in keys.items() if value is not None}
    return {"id": secrets.token_hex(8), **request}


def _decided(answer: Mapping[str, Any]) -> Decision:
    """Return the decision in an answer; ``name`` is empty for plans without a catalogue."""
    return Decision(**{"name": "", **answer})


def _all_decided(answers: Sequence[Mapping[str, Any]]) -> list[Decision | InputError]:
    """Return the decision in each answer, or an error for a decision that the silo refused."""
    return [
        InputError(answer["error"]) if "error" in answer else _decided(answer) for answer in answers
    ]


def _refused(ids: Iterable[str], answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the rewards that were refused: id -> why."""
    pairs = zip(ids, answers, strict=True)
    return {name: answer["error"] for name, answer in pairs if "error" in answer}


def _is_final(error: OSError, was_connected: bool, is_new: bool, deadline: float) -> bool:
    """Return True if a failed call must not be tried again.

    This is so if the silo has not answered in time, if there is no socket and the client has never
    reached the silo, or if a new connection has failed after the deadline. An old connection may
    have ended long ago, so after its failure a new connection is tried even after the deadline.

    Parameters
    ----------
    error : OSError
        The error of the last attempt.
    was_connected : bool
        True if the client has been connected to the silo before.
    is_new : bool
        True if the last attempt opened a connection.
    deadline : float
        Monotonic time after which the failure of a new connection is final.
    """
    if isinstance(error, TimeoutError) or (
        isinstance(error, FileNotFoundError) and not was_connected
    ):
        return True
    return is_new and time.monotonic() >= deadline


def _unreachable(path: str, error: OSError) -> OSError:
    """Return the error of a client whose silo has not answered."""
    if isinstance(error, BlockingIOError):
        return OSError(errno.EAGAIN, f"the silo at {path}: {error.strerror}")
    if isinstance(error, ConnectionResetError):
        return OSError(f"the silo at {path} stopped before it answered ({error})")
    reason = error.strerror or error
    return OSError(
        error.errno or 0, f"no silo answers at {path}: is `fastfed silo` running there? ({reason})"
    )


class Client:
    """Use a silo from Python; several threads may share one client.

    Parameters
    ----------
    path : str or Path
        The silo's socket, ``silo.sock`` in its folder.
    wait : float
        Seconds to wait for a silo that is not there, such as one that restarts; 0 to try once.

    Examples
    --------
    >>> silo = Client("north/silo.sock")                                     # doctest: +SKIP
    >>> decision = silo.decide([[0.2, 0.1], [0.5, 0.3]], subject="user 17")  # doctest: +SKIP
    >>> silo.reward(decision.id, 1.0)                                        # doctest: +SKIP
    """

    def __init__(self, path: str | Path, wait: float = WAIT) -> None:
        self._path, self._wait = _socket_of(path), number("wait", wait, at_least=0)
        self._lock, self._idle = threading.Lock(), list[socket.socket]()
        self._was_connected = False

    # ---- decisions and rewards -------------------------------------------------------------------

    def decide(
        self,
        actions: Any = None,
        subject: str | int | None = None,
        *,
        record: Mapping[str, Any] | None = None,
        among: Sequence[str] | None = None,
    ) -> Decision:
        """Choose an action for one person; the decision is durable when this returns.

        Parameters
        ----------
        actions : array_like, shape (K, columns), optional
            The feature rows of the offered actions, in the units of the plan's columns.
        subject : str or int, optional
            Who the person is. The plan learns from each person once, or up to ``returning`` times
            if users send bits.
        record : mapping, optional
            The person's record, if the plan has columns of records.
        among : sequence of str, optional
            With a record: names of the actions that may be chosen. By default all.

        Raises
        ------
        InputError
            If the silo refuses.
        OSError
            If the silo does not answer in time.
        """
        return _decided(
            self.call(
                "decide",
                **_offer(
                    {"actions": actions, "subject": subject, "record": record, "among": among}
                ),
            )
        )

    def decide_many(self, offers: Iterable[Mapping[str, Any]]) -> list[Decision | InputError]:
        """Choose actions for many people with one sync to disk.

        Parameters
        ----------
        offers : iterable of mapping
            The arguments of `decide` by name, for each person. At most 10 000.

        Returns
        -------
        list
            A decision for each person, or the error if the silo refused this one.
        """
        items = _offers(offers)
        return _all_decided(self.call("decide_many", decisions=items)["decisions"])

    def reward(self, id: str | Decision, reward: float) -> None:
        """Store the reward of a decision, given by its id or as the `Decision`.

        A late reward is stored but not learned from. A reward outside [0, 1] is clipped.
        """
        self.call("reward", id=id_of(id), reward=reward)

    def reward_many(self, rewards: Mapping[str, float]) -> dict[str, str]:
        """Store the rewards of many decisions, id -> reward, with one sync to disk.

        Returns
        -------
        dict
            For each reward that the silo refused: id -> why.
        """
        items = _rewards(rewards)
        return _refused(rewards, self.call("reward_many", rewards=items)["rewards"])

    def outcome(self, id: str | Decision, outcome: Any) -> None:
        """Store the outcome of a decision, from which the plan computes the reward."""
        self.call("outcome", id=id_of(id), outcome=outcome)

    def losses(self, id: str | Decision, losses: Any) -> None:
        """Store the losses of all experts at a decision, for a plan with experts."""
        self.call("losses", id=id_of(id), losses=losses)

    def bit(self, id: str | Decision, bit: int) -> None:
        """Store the bit that the user's device has sent for a decision, in a plan of bits."""
        self.call("bit", id=id_of(id), bit=bit)

    def cancel(self, id: str | Decision) -> None:
        """End a decision that will never have a reward."""
        self.call("cancel", id=id_of(id))

    def status(self) -> dict[str, Any]:
        """Return the silo's status."""
        return self.call("status")

    # ---- requests --------------------------------------------------------------------------------

    def call(self, what: str, **given: Any) -> dict[str, Any]:
        """Send a request to the silo, and return its answer; see `application.answers`.

        Parameters
        ----------
        what : str
            A path without its slash, such as "decide".
        **given
            The keys of the request.

        Raises
        ------
        InputError
            If the silo refuses (with its message), or a value is not plain data.
        OSError
            If the silo does not answer in time.
        """
        request, deadline = _request(what, given), time.monotonic() + self._wait
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            is_new = connection is None
            try:
                return self._exchange(connection, request)
            except OSError as error:
                if _is_final(error, self._was_connected, is_new, deadline):
                    raise _unreachable(self._path, error) from None
            if is_new:
                # An idle connection may have ended long ago, so a failed one says nothing about the
                # silo: try a new connection at once, and pause only after a new one has failed.
                time.sleep(PAUSE)

    def _exchange(self, connection: socket.socket | None, request: bytes) -> dict[str, Any]:
        """Send a request over an idle connection or, for None, a new one; return the answer."""
        answer, deadline = _Answer(), time.monotonic() + calls.REQUEST_SECONDS
        connection = self._connected() if connection is None else connection
        try:
            connection.sendall(request)
            while not answer.is_complete:
                connection.settimeout(max(1e-3, deadline - time.monotonic()))
                answer.feed(connection.recv(1 << 16))
        except TimeoutError:
            connection.close()
            raise TimeoutError(f"no complete answer within {calls.REQUEST_SECONDS:g} s") from None
        except BaseException:
            connection.close()
            raise
        if answer.keeps_connection():
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return answer.value()

    def _connected(self) -> socket.socket:
        """Open a connection to the silo."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(calls.PATIENCE)
        try:
            connection.connect(self._path)
            self._was_connected = True
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle_connections, self._idle = self._idle, []
        for connection in idle_connections:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """Use a silo from asyncio; many tasks may share one client.

    Parameters
    ----------
    path : str or Path
        The silo's socket, ``silo.sock`` in its folder.
    wait : float
        Seconds to wait for a silo that is not there, such as one that restarts; 0 to try once.

    Notes
    -----
    It has the methods of `Client`, as coroutines.
    """

    def __init__(self, path: str | Path, wait: float = WAIT) -> None:
        self._path, self._wait = _socket_of(path), number("wait", wait, at_least=0)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._was_connected = False

    async def decide(
        self,
        actions: Any = None,
        subject: str | int | None = None,
        *,
        record: Mapping[str, Any] | None = None,
        among: Sequence[str] | None = None,
    ) -> Decision:
        """Choose an action for one person; see `Client.decide`."""
        return _decided(
            await self.call(
                "decide",
                **_offer(
                    {"actions": actions, "subject": subject, "record": record, "among": among}
                ),
            )
        )

    async def decide_many(self, offers: Iterable[Mapping[str, Any]]) -> list[Decision | InputError]:
        """Choose actions for many people; see `Client.decide_many`."""
        items = _offers(offers)
        return _all_decided((await self.call("decide_many", decisions=items))["decisions"])

    async def reward(self, id: str | Decision, reward: float) -> None:
        """Store the reward of a decision; see `Client.reward`."""
        await self.call("reward", id=id_of(id), reward=reward)

    async def reward_many(self, rewards: Mapping[str, float]) -> dict[str, str]:
        """Store the rewards of many decisions; see `Client.reward_many`."""
        items = _rewards(rewards)
        return _refused(rewards, (await self.call("reward_many", rewards=items))["rewards"])

    async def outcome(self, id: str | Decision, outcome: Any) -> None:
        """Store the outcome of a decision; see `Client.outcome`."""
        await self.call("outcome", id=id_of(id), outcome=outcome)

    async def losses(self, id: str | Decision, losses: Any) -> None:
        """Store the losses of all experts at a decision; see `Client.losses`."""
        await self.call("losses", id=id_of(id), losses=losses)

    async def bit(self, id: str | Decision, bit: int) -> None:
        """Store the bit of a decision; see `Client.bit`."""
        await self.call("bit", id=id_of(id), bit=bit)

    async def cancel(self, id: str | Decision) -> None:
        """End a decision that will never have a reward."""
        await self.call("cancel", id=id_of(id))

    async def status(self) -> dict[str, Any]:
        """Return the silo's status."""
        return await self.call("status")

    async def call(self, what: str, **given: Any) -> dict[str, Any]:
        """Send a request to the silo, and return its answer; see `Client.call`."""
        request, deadline = _request(what, given), time.monotonic() + self._wait
        while True:
            connection = self._idle.pop() if self._idle else None
            try:
                return await asyncio.wait_for(
                    self._exchange(connection, request), calls.REQUEST_SECONDS
                )
            except OSError as error:
                if _is_final(error, self._was_connected, connection is None, deadline):
                    raise _unreachable(self._path, error) from None
            if connection is None:
                await asyncio.sleep(PAUSE)

    async def _exchange(
        self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None, request: bytes
    ) -> dict[str, Any]:
        """Send a request over an idle connection or, for None, a new one; return the answer."""
        answer = _Answer()
        if connection is None:
            connection = await asyncio.open_unix_connection(self._path)
            self._was_connected = True
        reader, writer = connection
        try:
            writer.write(request)
            while not answer.is_complete:
                answer.feed(await reader.read(1 << 16))
        except BaseException:
            writer.close()
            raise
        if answer.keeps_connection():
            self._idle.append(connection)
        else:
            writer.close()
        return answer.value()

    async def close(self) -> None:
        """Close the connections."""
        idle_connections, self._idle = self._idle, []
        for _, writer in idle_connections:
            writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
