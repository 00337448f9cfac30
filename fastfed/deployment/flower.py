"""The network of a deployment on Flower, instead of HTTP between silos and hub.

The hub runs in Flower's ServerApp. Each silo runs in a separate process, next to a Flower node
whose ClientApp is its *courier*: it only carries messages. In Flower, the server sends requests to
its nodes, while silos send requests to their hub. So the ServerApp polls all nodes. The ClientApp
passes the hub's messages to its party through a Unix socket, and answers with the party's messages.
Envelopes (signed messages) are sent unchanged, as bytes in a ConfigRecord. Nothing is pickled, and
Flower's arrays, strategies and rounds are not used.

A Flower App names both apps in its pyproject.toml:

    [tool.flwr.app.components]
    serverapp = "fastfed.deployment.flower:server_app"
    clientapp = "fastfed.deployment.flower:client_app"

A party cannot run in the ClientApp, since Flower may start a process for each message. Only one
process may use the party's state, and after each start a silo needs an answer of the hub before it
seals a report. A courier needs access to the party's socket, but neither to its folder nor to its
secret. It can read, withhold or repeat envelopes, as any network can, but not change them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fastfed._validate import InputError, show
from fastfed.deployment.calls import LocalHandler, SocketServer, call_socket, failure, one_line

if TYPE_CHECKING:
    from fastfed.deployment.process import Process

# Flower looks for these names before it loads the module. `__getattr__` creates them.
__all__ = ["client_app", "server_app"]  # noqa: F822

#: In a Flower message: the name of the record in its content, the record's key, and the type.
RECORD, KEY, TYPE = "fastfed", "envelopes", "query"
#: The table of a project file that configures a run.
CONFIG = "[tool.flwr.app.config]"
#: Seconds between two polls of a node, seconds until a silent node is polled again, and seconds
#: between two checks for answers.
POLL_SECONDS, SILENT_POLL_SECONDS, CHECK_SECONDS = 60.0, 120.0, 0.2

# ---- mail for nodes ------------------------------------------------------------------------------


class Mail:
    """Exchange messages between the hub and Flower's nodes.

    It is not known in advance which party a node serves. The hub's messages to a party go to every
    node whose last delivered message was signed by this party. A node that replays messages of
    another party therefore gets copies of the hub's answers, but cannot withhold them from that
    party. All messages except receipts are urgent: they are sent without waiting for the next poll.

    Parameters
    ----------
    process : Process
        The hub's process.
    every, patience : float
        Seconds between two polls of a node, and seconds until a silent node is polled again.
    say : callable
        Called with a line about each refused message, with its numbers masked.

    Raises
    ------
    InputError
        If the process is not the hub's.
    """

    def __init__(
        self,
        process: Any,
        every: float = POLL_SECONDS,
        patience: float = SILENT_POLL_SECONDS,
        say: Callable[[str], None] = print,
    ) -> None:
        from fastfed.deployment.hub import Hub

        if not isinstance(process.party, Hub):
            raise InputError(f"{process.party.name} is not the hub of its plan")
        self.process, self._every, self._patience, self._say = process, every, patience, say
        #: Flower's number of a node -> its messages and state.
        self._nodes: dict[int, Node] = {}

    def outgoing(self, nodes: Iterable[int], now: float) -> dict[int, list[bytes]]:
        """Return the messages to send now: a list for each node; an empty list polls the node.

        The result has no entry for a node that has not answered yet (for at most ``patience``
        seconds), or for which there is no new urgent message and no poll is due.

        Parameters
        ----------
        nodes : iterable of int
            Flower's numbers of the nodes that are connected.
        now : float
            Monotonic time in seconds.
        """
        self._nodes = {i: self._nodes.get(i, Node()) for i in sorted(set(nodes))}
        envelopes_by_node: dict[int, list[bytes]] = {}
        for number, node in self._nodes.items():
            # In the outbox, the value of an urgent message is True.
            urgent = any(node.outbox[data] and data not in node.last_sent for data in node.outbox)
            if now >= node.busy_until and (urgent or now >= node.last_poll + self._every):
                envelopes_by_node[number] = list(node.outbox)
                node.last_sent, node.outbox = set(node.outbox), {}
                node.last_poll, node.busy_until = now, now + self._patience
        return envelopes_by_node

    def incoming(self, number: int, envelopes: Iterable[bytes]) -> None:
        """Pass the messages in a node's answer to the hub, and queue the hub's messages."""
        from fastfed.deployment.observe import mask_numbers

        node = self._nodes.setdefault(number, Node())
        node.busy_until = -inf
        wire = self.process.party.wire
        for data in envelopes:
            try:
                step, messages = self.process.handle(data)
            except Exception as error:
                # If the disk is full, nothing was stored, and the party repeats the message.
                self._say(f"node {number}: {mask_numbers(failure(error)[1])}")
                continue
            if step.problem:
                self._say(f"node {number}: {mask_numbers(step.problem)}")
                continue
            node.name = wire.read(data).sender
            for message in messages:
                urgent = wire.read(message.data).kind != "receipt"
                for recipient in self._nodes.values():
                    if recipient.name == message.to:
                        recipient.outbox[message.data] = urgent

    def failed(self, number: int, reason: str) -> None:
        """Record that a node could not answer; it is polled again after the usual interval."""
        self._nodes.setdefault(number, Node()).busy_until = -inf
        self._say(f"node {number}: {reason}")


@dataclass
class Node:
    """One of Flower's nodes: the party that the node serves, and the messages to the node.

    Parameters
    ----------
    name : str
        Name of the party whose message the node has delivered last; empty before the first.
    outbox : dict of bytes to bool
        Message to send -> True if it is urgent.
    last_sent : set of bytes
        The messages that were sent last.
    last_poll : float
        Time when the node was last polled.
    busy_until : float
        Until this time the node is not polled again, unless it answers.
    """

    name: str = ""
    outbox: dict[bytes, bool] = field(default_factory=dict)
    last_sent: set[bytes] = field(default_factory=set)
    last_poll: float = -inf
    busy_until: float = -inf


# ---- functions that Flower calls -----------------------------------------------------------------


def _flwr() -> Any:
    """Import and return Flower's public module; raise InputError if it is not installed."""
    try:
        import flwr.app
    except ImportError as error:
        raise InputError(
            "a federation on Flower needs flwr: pip install 'fastfed[flower]'"
        ) from error
    return flwr.app


def pack_envelopes(envelopes: Iterable[bytes]) -> Any:
    """Pack envelopes (as bytes) into the content of a Flower message."""
    flwr = _flwr()
    return flwr.RecordDict({RECORD: flwr.ConfigRecord({KEY: list(envelopes)})})


def unpack_envelopes(content: Mapping[str, Any]) -> list[bytes]:
    """Unpack the envelopes from the content of a Flower message.

    Raises
    ------
    InputError
        If the content has a different form.
    """
    record = content.get(RECORD)
    envelopes = record.get(KEY) if isinstance(record, Mapping) else None
    if not isinstance(envelopes, list) or not all(isinstance(data, bytes) for data in envelopes):
        raise InputError(f"a message must hold envelopes as bytes under {RECORD}, {KEY}")
    return envelopes


def path_of(config: Mapping[str, Any], key: str, where: str) -> str:
    """Return a path from a configuration; raise InputError if it is missing.

    ``where`` names the configuration in the error.
    """
    path = config.get(key)
    if not isinstance(path, str) or not path:
        raise InputError(f"{key} of {where} must be a path, got {show(path)}")
    return path


def seconds_of(config: Mapping[str, Any], key: str, where: str, default: float) -> float:
    """Return a number of seconds from a configuration, or the default; see `path_of`.

    Raises
    ------
    InputError
        If it is not a finite number above 0.
    """
    seconds = config.get(key, default)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise InputError(f"{key} of {where} must be a number of seconds > 0, got {show(seconds)}")
    return float(seconds)


def answer_message(message: Any, context: Any) -> Any:
    """Pass a Flower message to the party behind the node's socket; return the party's answer.

    This is the function of the ClientApp.

    Parameters
    ----------
    message : flwr.app.Message
    context : flwr.app.Context
        The key ``courier`` of its node_config is the path of the socket.
    """
    flwr, path = _flwr(), path_of(context.node_config, "courier", "--node-config")
    try:
        answers = carry(path, unpack_envelopes(message.content))
    except Exception as error:
        # The details stay in the log of this node.
        print(failure(error)[1], file=sys.stderr)
        return flwr.Message(flwr.Error(0, "its party did not answer"), reply_to=message)
    return flwr.Message(pack_envelopes(answers), reply_to=message)


def serve(grid: Any, mail: Mail, stop: threading.Event, poll: float = CHECK_SECONDS) -> None:
    """Exchange the hub's messages with all nodes of a grid until `stop` is set.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    mail : Mail
    stop : threading.Event
    poll : float
        Seconds between two checks for answers.
    """
    flwr = _flwr()
    node_of_message: dict[str, int] = {}
    while not stop.is_set():
        envelopes_by_node = mail.outgoing(grid.get_node_ids(), time.monotonic())
        if envelopes_by_node:
            # A message that is not fetched within its ttl is sent again unchanged.
            messages = [
                flwr.Message(pack_envelopes(envelopes), node, TYPE, ttl=SILENT_POLL_SECONDS)
                for node, envelopes in envelopes_by_node.items()
            ]
            ids = grid.push_messages(messages)
            node_of_message |= {
                message_id: node
                for message_id, node in zip(ids, envelopes_by_node, strict=False)
                if message_id
            }
        for reply in grid.pull_messages(list(node_of_message)) if node_of_message else ():
            node = node_of_message.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                mail.failed(node, reply.error.reason)
                continue
            try:
                mail.incoming(node, unpack_envelopes(reply.content))
            except Exception as error:
                mail.failed(node, failure(error)[1])
        stop.wait(poll)


def main(grid: Any, context: Any) -> None:
    """Run the hub whose folder the run's configuration names, until the run is stopped.

    This is the function of the ServerApp.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    context : flwr.app.Context
        Its run_config has the key ``folder``, and may have ``every``.

    Raises
    ------
    InputError
        If ``folder`` is not the folder of a hub, or ``every`` is not a number of seconds above 0.
    """
    folder = Path(path_of(context.run_config, "folder", CONFIG))
    every = seconds_of(context.run_config, "every", CONFIG, POLL_SECONDS)
    serve(grid, Mail(_open_hub(folder), every), threading.Event(), min(CHECK_SECONDS, every))


def _open_hub(folder: Path) -> Any:
    """Open the folder of a hub; wait if the ServerApp of an earlier run has not ended yet."""
    from fastfed.deployment import folder as folders

    deadline = time.monotonic() + SILENT_POLL_SECONDS
    while True:
        try:
            return folders.opened(folder)
        except InputError as error:
            if "in use" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def __getattr__(name: str) -> Any:
    """Create `client_app` or `server_app` when Flower imports it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _flwr()
    if name == "client_app":
        from flwr.clientapp import ClientApp

        app: Any = ClientApp()
        app.query()(answer_message)
        return app
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
    return app


# ---- couriers ------------------------------------------------------------------------------------

#: The only path that requests on the socket may have.
PATH = "/carry"
#: Maximum number of bytes of one request or answer.
MAX_MESSAGE_BYTES = 1 << 28


def decoded_envelopes(data: bytes) -> list[bytes]:
    """Decode a list of messages that a courier carries; raise InputError if it is not one."""
    try:
        return msgspec.msgpack.decode(data, type=list[bytes])
    except msgspec.DecodeError:
        raise InputError("the courier's data are not a list of messages") from None


def pass_to_party(
    process: Process, envelopes: Sequence[bytes], say: Callable[[str], None] = print
) -> list[bytes]:
    """Pass the hub's messages to a party, and return the party's messages.

    This is one `Dialer.round`, except that the hub's answers arrive with the next poll.

    Parameters
    ----------
    process : Process
        The process of a silo or of the helper.
    envelopes : sequence of bytes
        Envelopes of the hub. An envelope that the party refuses changes nothing.
    say : callable
        Called with the last error, if there is one.

    Returns
    -------
    list of bytes
        Envelopes for the hub, each once. The party has stored everything that they state.
    """
    answers: list[bytes] = []
    problem = ""
    for data in envelopes:
        try:
            step, messages = process.handle(data)
        except Exception as error:
            problem = failure(error)[1]
            continue
        problem = step.problem or problem
        answers += [message.data for message in messages]
    answers += [message.data for message in process.tick()]
    problem = process.problem or problem
    if problem:
        say(problem)
    return list(dict.fromkeys(answers))


class Courier(SocketServer):
    """Server for couriers, on a Unix socket that its owner and group can use.

    Parameters
    ----------
    process : Process
        The process of a silo or of the helper.
    path : str or Path
        The socket, preferably outside the party's folder, since the permissions of its directory
        decide who may use it. A socket that an earlier process has left there is replaced.
    say : callable
        Called with each new error.

    Raises
    ------
    InputError
        If there is a file at the path, or its directory does not exist.
    """

    def __init__(
        self, process: Process, path: str | Path, say: Callable[[str], None] = print
    ) -> None:
        target = Path(path)
        if target.exists() and not target.is_socket():
            raise InputError(f"courier must be the path of a socket, got the file {target}")
        if not target.parent.is_dir():
            raise InputError(f"courier must be in a directory that exists, got {target}")
        super().__init__(target, _handler(process, _say_changes(say)), 0o660)


def _say_changes(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls ``say`` unless the text is the same as in the last call."""
    last = [""]

    def say_if_new(text: str) -> None:
        if text != last[0]:
            last[0] = text
            say(text)

    return say_if_new


def _handler(process: Process, say: Callable[[str], None]) -> type[LocalHandler]:
    """Create the class that handles the requests of couriers."""

    class Handler(LocalHandler):
        """Answers POST /carry with the party's messages."""

        def do_POST(self) -> None:
            status, body = self._answer()
            self.reply(status, body, "application/msgpack")

        def _answer(self) -> tuple[int, bytes]:
            """Return the HTTP status and the body of the answer."""
            try:
                request = self.read(MAX_MESSAGE_BYTES)
            except InputError as error:
                return 413, str(error).encode()
            if self.path != PATH:
                return 404, f"a courier can send requests to {PATH} only".encode()
            try:
                return 200, msgspec.msgpack.encode(
                    pass_to_party(process, decoded_envelopes(request), say)
                )
            except Exception as error:
                # If the disk is full, nothing was stored or sent, and the next poll tries again.
                status, text = failure(error)
                say(text)
                return status, (text if status == 400 else "nothing was stored").encode()

    return Handler


def carry(path: str | Path, envelopes: Sequence[bytes]) -> list[bytes]:
    """Pass messages to the party behind a socket; return the party's messages.

    It is the client of `Courier`.

    Parameters
    ----------
    path : str or Path
        The party's socket.
    envelopes : sequence of bytes
        Envelopes; an empty sequence is a poll, see `pass_to_party`.

    Raises
    ------
    InputError
        If the party cannot be reached, or refuses the request.
    """
    try:
        status, body = call_socket(
            path, PATH, msgspec.msgpack.encode(list(envelopes)), MAX_MESSAGE_BYTES
        )
    except OSError as error:
        raise InputError(f"the party behind {path} cannot be reached ({error})") from None
    if status != 200:
        text = one_line(body.decode(errors="replace"))
        raise InputError(f"the party answered {status}: {text}")
    return decoded_envelopes(body)
