"""The network on Flower: the hub in a ServerApp, and at every silo a ClientApp that is a courier.

Flower's server asks and its nodes answer, while silos ask their hub. So the ServerApp asks every
node again and again; the node's ClientApp brings the hub's messages to its party through a socket,
and answers with the party's. Envelopes go as they are, as bytes in a ConfigRecord; nothing is
pickled, and Flower's arrays, strategies and rounds are not used.

A Flower App names the two in its pyproject.toml:

    [tool.flwr.app.components]
    serverapp = "fastfed.deployment.flower:server_app"
    clientapp = "fastfed.deployment.flower:client_app"

A transport that starts a process for each message cannot hold a party: its state belongs to one
process, and after each start a silo asks the hub before it seals. So the party stays a process of
its own, and the transport's code a courier. Whoever has its socket can bring the party messages and
take its answers, no more; it needs neither the party's folder nor its secret: envelopes are signed,
and a courier can read, keep back or repeat them, as any network can.
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
    from fastfed.deployment.party import Process

# Named for Flower, which looks here before it loads the module; both are made when asked for.
__all__ = ["client_app", "server_app"]  # noqa: F822

#: Of a message's content the record, its key, and the type of all messages.
RECORD, KEY, TYPE = "fastfed", "envelopes", "query"
#: Where a run is configured.
CONFIG = "[tool.flwr.app.config]"
#: Seconds between two questions to a node, until a node is asked again that did not answer, and
#: between two looks for answers.
EVERY, PATIENCE, POLL = 60.0, 120.0, 0.2

# ---- which message goes to which node ------------------------------------------------------------


class Mail:
    """The hub's mail at nodes whose names it does not know.

    A node is what it says: the hub's answers go where the party's signed message came from. A node
    that repeats what another has said gets copies, and takes nothing away. What cannot wait for the
    next question is sent at once, and once: all but receipts.

    Parameters
    ----------
    process : Process
        The hub's.
    every, patience : float
        Seconds between two questions to a node, and until one that is silent is asked again.
    say : callable
        Takes a line about each message that is refused, with its numbers masked.

    Raises
    ------
    InputError
        If the process is another party's.
    """

    def __init__(
        self,
        process: Any,
        every: float = EVERY,
        patience: float = PATIENCE,
        say: Callable[[str], None] = print,
    ) -> None:
        from fastfed.deployment.hub import Hub

        if not isinstance(process.party, Hub):
            raise InputError(f"{process.party.name} is not the hub of its plan")
        self.process, self._every, self._patience, self._say = process, every, patience, say
        self._nodes: dict[int, Node] = {}

    def outgoing(self, nodes: Iterable[int], now: float) -> dict[int, list[bytes]]:
        """What to send to which of the nodes that are there; nothing is a question, too."""
        present = set(nodes)
        self._nodes = {i: self._nodes.get(i, Node()) for i in sorted(present)}
        found: dict[int, list[bytes]] = {}
        for number, node in self._nodes.items():
            urgent = any(node.box[data] and data not in node.brought for data in node.box)
            if now >= node.silent and (urgent or now >= node.asked + self._every):
                found[number] = list(node.box)
                node.brought, node.box = set(node.box), {}
                node.asked, node.silent = now, now + self._patience
        return found

    def incoming(self, number: int, letters: Iterable[bytes]) -> None:
        """Give the hub what a node has answered; what it leads to is durable."""
        from fastfed.deployment.observe import masked

        node = self._nodes.setdefault(number, Node())
        node.silent = -inf
        wire = self.process.party.wire
        for data in letters:
            try:
                step, messages = self.process.handle(data)
            except Exception as error:
                # A full disk, too: nothing was kept, and it is said again.
                self._say(f"node {number}: {masked(failure(error)[1])}")
                continue
            if step.problem:
                self._say(f"node {number}: {masked(step.problem)}")
                continue
            node.name = wire.read(data).sender
            for message in messages:
                urgent = wire.read(message.data).kind != "receipt"
                for other in self._nodes.values():
                    if other.name == message.to:
                        other.box[message.data] = urgent

    def failed(self, number: int, reason: str) -> None:
        """Note that a node could not answer; it is asked again when its time comes."""
        self._nodes.setdefault(number, Node()).silent = -inf
        self._say(f"node {number}: {reason}")


@dataclass
class Node:
    """One of Flower's nodes: the party it speaks for, and its mail.

    box says of each message whether it cannot wait. asked, silent: when it was asked, and until
    when nothing more is sent unless it answers.
    """

    name: str = ""
    box: dict[bytes, bool] = field(default_factory=dict)
    brought: set[bytes] = field(default_factory=set)
    asked: float = -inf
    silent: float = -inf


# ---- what Flower calls ---------------------------------------------------------------------------


def _flwr() -> Any:
    """Flower's public names; InputError without the extra."""
    try:
        import flwr.app
    except ImportError as error:
        raise InputError(
            "a federation on Flower needs flwr: pip install 'fastfed[flower]'"
        ) from error
    return flwr.app


def packed(letters: Iterable[bytes]) -> Any:
    """Envelopes as the content of a message."""
    flwr = _flwr()
    return flwr.RecordDict({RECORD: flwr.ConfigRecord({KEY: list(letters)})})


def unpacked(content: Mapping[str, Any]) -> list[bytes]:
    """The envelopes of a message's content.

    Raises
    ------
    InputError
        If it has anything else.
    """
    record = content.get(RECORD)
    found = record.get(KEY) if isinstance(record, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(data, bytes) for data in found):
        raise InputError(f"a message must hold envelopes as bytes under {RECORD}, {KEY}")
    return found


def path_of(config: Mapping[str, Any], key: str, where: str) -> str:
    """A path that a configuration must have; InputError otherwise."""
    found = config.get(key)
    if not isinstance(found, str) or not found:
        raise InputError(f"{key} of {where} must be a path, got {show(found)}")
    return found


def seconds_of(config: Mapping[str, Any], key: str, where: str, default: float) -> float:
    """Seconds that a configuration may have; InputError unless they are a number > 0."""
    found = config.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < inf:
        raise InputError(f"{key} of {where} must be a number of seconds > 0, got {show(found)}")
    return float(found)


def answer(message: Any, context: Any) -> Any:
    """A node's answer: what the party behind its socket says to what was brought.

    Parameters
    ----------
    message : flwr.app.Message
    context : flwr.app.Context
        Its node_config has the path of the socket: courier.

    Returns
    -------
    flwr.app.Message
    """
    flwr, path = _flwr(), path_of(context.node_config, "courier", "--node-config")
    try:
        made = carry(path, unpacked(message.content))
    except Exception as error:
        # The whole sentence is for this node's log alone.
        print(failure(error)[1], file=sys.stderr)
        return flwr.Message(flwr.Error(0, "its party did not answer"), reply_to=message)
    return flwr.Message(packed(made), reply_to=message)


def serve(grid: Any, mail: Mail, stop: threading.Event, poll: float = POLL) -> None:
    """Carry the hub's mail over a grid until `stop` is set.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    mail : Mail
    stop : threading.Event
    poll : float
        Seconds between two looks for answers.
    """
    flwr = _flwr()
    waiting: dict[str, int] = {}
    while not stop.is_set():
        sends = mail.outgoing(grid.get_node_ids(), time.monotonic())
        if sends:
            # What is not fetched in time is asked for again, and the same.
            made = [
                flwr.Message(packed(letters), node, TYPE, ttl=PATIENCE)
                for node, letters in sends.items()
            ]
            ids = grid.push_messages(made)
            waiting |= {found: node for found, node in zip(ids, sends, strict=False) if found}
        for reply in grid.pull_messages(list(waiting)) if waiting else ():
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                mail.failed(node, reply.error.reason)
                continue
            try:
                mail.incoming(node, unpacked(reply.content))
            except Exception as error:
                mail.failed(node, failure(error)[1])
        stop.wait(poll)


def main(grid: Any, context: Any) -> None:
    """Run the hub of the folder that the run's configuration names, until the run is stopped.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    context : flwr.app.Context
        Its run_config has folder, and may have every.

    Raises
    ------
    InputError
        If it is not the folder of a hub.
    """
    folder = Path(path_of(context.run_config, "folder", CONFIG))
    every = seconds_of(context.run_config, "every", CONFIG, EVERY)
    serve(grid, Mail(_opened(folder), every), threading.Event(), min(POLL, every))


def _opened(folder: Path) -> Any:
    """The hub of a folder; waits for a ServerApp of an earlier run that has not ended yet."""
    from fastfed.deployment import folder as folders

    until = time.monotonic() + PATIENCE
    while True:
        try:
            return folders.opened(folder)
        except InputError as error:
            if "in use" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(1.0)


def __getattr__(name: str) -> Any:
    """The two Apps, made when Flower asks for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _flwr()
    if name == "client_app":
        from flwr.clientapp import ClientApp

        made: Any = ClientApp()
        made.query()(answer)
        return made
    from flwr.serverapp import ServerApp

    made = ServerApp()
    made.main()(main)
    return made


# ---- couriers ------------------------------------------------------------------------------------

#: The only path of the socket.
PATH = "/carry"
#: The most bytes that are carried at once.
LARGEST = 1 << 28


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
        except Exception as error:
            trouble = failure(error)[1]
            continue
        trouble = step.problem or trouble
        answers += [message.data for message in messages]
    answers += [message.data for message in process.tick()]
    trouble = process.problem or trouble
    if trouble:
        say(trouble)
    return list(dict.fromkeys(answers))


class Courier(SocketServer):
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

    def __init__(
        self, process: Process, path: str | Path, say: Callable[[str], None] = print
    ) -> None:
        target = Path(path)
        if target.exists() and not target.is_socket():
            raise InputError(f"courier must be the path of a socket, got the file {target}")
        if not target.parent.is_dir():
            raise InputError(f"courier must be in a directory that exists, got {target}")
        super().__init__(target, _handler(process, _once(say)), 0o660)


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says a line when it differs from the last one."""
    last = [""]

    def said(text: str) -> None:
        if text != last[0]:
            last[0] = text
            say(text)

    return said


def _handler(process: Process, say: Callable[[str], None]) -> type[LocalHandler]:
    class Handler(LocalHandler):
        """Answers POST /carry with messages."""

        def do_POST(self) -> None:
            status, body = self._answer()
            self.reply(status, body, "application/msgpack")

        def _answer(self) -> tuple[int, bytes]:
            try:
                given = self.read(LARGEST)
            except InputError as error:
                return 413, str(error).encode()
            if self.path != PATH:
                return 404, f"a courier can ask for {PATH} alone".encode()
            try:
                return 200, msgspec.msgpack.encode(carried(process, taken(given), say))
            except Exception as error:
                # Where the disk is full nothing was sealed, and the next question tries again.
                status, text = failure(error)
                say(text)
                return status, (text if status == 400 else "nothing was kept").encode()

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
    try:
        status, body = call_socket(path, PATH, msgspec.msgpack.encode(list(letters)), LARGEST)
    except OSError as error:
        raise InputError(f"the party behind {path} cannot be reached ({error})") from None
    if status != 200:
        said = one_line(body.decode(errors="replace"))
        raise InputError(f"the party answered {status}: {said}")
    return taken(body)
