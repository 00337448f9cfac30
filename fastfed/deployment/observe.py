"""Metrics and logs for operators: Prometheus text, and lines of plain text or JSON.

Neither contains values of records. A silo's metrics contain counts of records (such as open or
clipped ones), which nobody outside the silo may see. They are served on the silo's machine only.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import HTTPServer
from typing import IO, Any, NamedTuple, cast

from fastfed._validate import InputError, integer
from fastfed.deployment.calls import Bounded, LocalHandler, failure, one_line
from fastfed.deployment.hub import Hub
from fastfed.deployment.process import Process, SiloProcess

Clock = Callable[[], float]


def kind_of(process: Process) -> str:
    """Return the kind of party that a process runs: "silo", "hub" or "helper"."""
    if isinstance(process, SiloProcess):
        return "silo"
    return "hub" if isinstance(process.party, Hub) else "helper"


# ---- metrics -------------------------------------------------------------------------------------


def hub_numbers(hub: Hub, now: float) -> dict[str, float]:
    """Return the metrics of a hub by name; ``now`` is in seconds since 1970."""
    status: dict[str, Any] = hub.status()
    closes = status["next_close"]
    is_due = closes is not None and now >= closes
    return {
        "releases_total": status["releases"],
        "released": status["released"],
        "silos_waited_for": len(status["waiting_for"]) if is_due else 0,
        "silent_silos": len(hub.silent(now)),
        "waiting_seconds": waiting_seconds(hub.waits(now), now),
        "alarms": len(status["alarms"]),
        "ended": int(bool(status["ended"])),
        "capped_reports": sum(len(releases) for releases in status.get("capped", {}).values()),
    }


def waiting_seconds(waits: dict[str, Any], now: float) -> float:
    """Return how many seconds a party has waited for something that is due; 0 if nothing is due."""
    return 0.0 if waits["since"] is None else max(0.0, now - waits["since"])


def silo_numbers(silo: SiloProcess) -> dict[str, float]:
    """Return the metrics of a silo by name."""
    party, ledger, dataset, now = silo.party, silo.party.ledger, silo.party.dataset, silo.now()
    ceiling = ledger.ceiling(dataset)
    numbers: dict[str, float] = {
        "releases_total": party.deployed.exchanges,
        "released": party.released,
        "releases_waited_for": max(0, party.closed_leaves - party.released_leaves),
        "waiting_seconds": waiting_seconds(party.waits(now), now),
        "clock_off_seconds": silo.clock_off,
        "reports_sealed": len(party.sealed),
        "releases_without": len(party.unreported),
        "reports_lost": len(party.lost),
        "decisions": len(party.decisions),
        "open_decisions": len(party.decisions) - len(party.ended),
        "clipped_features": party.clipped_features,
        "clipped_rewards": party.clipped_rewards,
        "stopped": int(bool(party.stopped)),
        "problem": int(bool(silo.problem)),
    }
    if ceiling is not None:
        spent = ledger.epsilon(dataset)
        numbers |= {
            "epsilon_ceiling": ceiling[0],
            "epsilon_spent": spent,
            "epsilon_left": max(0.0, ceiling[0] - spent),
        }
    return numbers


#: Metric -> its HELP line in the text.
HELP = {
    "releases_total": "Releases of the plan.",
    "released": "The last release: made by the hub, or acted on by the silo.",
    "silos_waited_for": "Silos whose report of a period that is over has not arrived.",
    "silent_silos": "Silos whose report is long overdue, in plans with clocks.",
    "waiting_seconds": "Seconds that the party has waited for what is due; /status names it.",
    "clock_off_seconds": "Error of the machine's clock if it jumped or differs from others.",
    "alarms": "Contradictions between messages, and silos that do not fit the others.",
    "ended": "1 if the plan has ended.",
    "capped_reports": "Reports that were scaled down to the allowed influence of one silo.",
    "releases_waited_for": "Periods that the silo has closed and the hub has not released.",
    "reports_sealed": "Reports that the silo has made.",
    "releases_without": "Releases closed without a report of this silo.",
    "reports_lost": "Reports that the hub has and this silo's state lacks; run recover.",
    "decisions": "Decisions so far.",
    "open_decisions": "Decisions without a reward.",
    "clipped_features": "Records whose features were clipped to the norm.",
    "clipped_rewards": "Records whose reward was clipped to its range.",
    "stopped": "1 if the silo sends nothing any more.",
    "problem": "1 if the last round could not do what was due, such as charge the ledger.",
    "epsilon_ceiling": "Ceiling of the dataset's epsilon, at the ceiling's delta.",
    "epsilon_spent": "Epsilon spent on the dataset by all plans, at the ceiling's delta.",
    "epsilon_left": "Ceiling minus spent epsilon; a guide only, since epsilons do not add up.",
}


def prometheus(kind: str, numbers: dict[str, float]) -> str:
    """Format metrics as Prometheus text; ``kind`` is "hub" or "silo"."""
    lines = []
    for name, value in numbers.items():
        metric = f"fastfed_{kind}_{name}"
        lines += [
            f"# HELP {metric} {HELP[name]}",
            f"# TYPE {metric} gauge",
            f"{metric} {value:.12g}",
        ]
    return "\n".join(lines) + "\n"


def metrics_text(process: Process) -> str:
    """Return the metrics of a hub or a silo as Prometheus text."""
    if isinstance(process, SiloProcess):
        return prometheus("silo", silo_numbers(process))
    numbers = hub_numbers(cast(Hub, process.party), process.now())
    return prometheus("hub", numbers | {"clock_off_seconds": process.clock_off})


# ---- servers on this machine ---------------------------------------------------------------------


class Answer(NamedTuple):
    """What a `LocalServer` answers at a path."""

    content_type: str
    #: Returns the text; the server holds no lock when it calls this.
    text: Callable[[], str]
    #: Further headers.
    headers: tuple[tuple[str, str], ...] = ()


class LocalServer(Bounded, HTTPServer):
    """Answer GET requests on the loopback address; nothing can be changed by a request.

    Parameters
    ----------
    port : int
        0 for a free port that the system chooses; the attribute ``server_port`` has its number.
    answers : mapping of str to Answer
        Path -> the answer.

    Raises
    ------
    InputError
        If the port is in use, or may not be used.
    """

    def __init__(self, port: int, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        port = integer("port", port, at_least=0, at_most=65535)
        try:
            super().__init__(("127.0.0.1", port), LocalGet)
        except OSError as error:
            raise InputError(
                f"port {port} of this machine cannot be used ({error.strerror}): choose another"
            ) from None

    def start(self) -> None:
        """Serve in a new thread until `shutdown` is called."""
        threading.Thread(target=self.serve_forever, daemon=True).start()


class LocalGet(LocalHandler):
    """Answer a request to a `LocalServer`."""

    server: LocalServer

    def do_GET(self) -> None:
        """Answer GET."""
        # Refuse requests for other host names. By such a name, a web page in a local browser could
        # reach this server (DNS rebinding).
        host = (self.headers.get("host") or "").rsplit(":", 1)[0]
        answer = self.server.answers.get(self.path)
        if answer is None or host not in ("127.0.0.1", "localhost"):
            self.send_error(404)
            return
        # The request is complete, so its connection must not be closed for being slow.
        self.server.complete(self.connection)
        self.reply(200, answer.text().encode(), answer.content_type, answer.headers)

    def refuse(self) -> None:
        """Answer a method that could change something, or that no browser needs."""
        self.reply(405, b"send GET requests\n", "text/plain", [("allow", "GET")])

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse


def metrics_answer(process: Process) -> Answer:
    """Return the answer to GET /metrics."""

    def text() -> str:
        with process.turn():
            return metrics_text(process)

    return Answer("text/plain; version=0.0.4; charset=utf-8", text)


class Metrics(LocalServer):
    """Serve a silo's metrics at `GET /metrics` on the loopback address.

    Parameters
    ----------
    silo : SiloProcess
    port : int
        See `LocalServer`.
    """

    def __init__(self, silo: SiloProcess, port: int) -> None:
        if not isinstance(silo, SiloProcess):
            raise InputError("Metrics serves the metrics of a silo: silo must be a SiloProcess")
        super().__init__(port, {"/metrics": metrics_answer(silo)})


# ---- logs ----------------------------------------------------------------------------------------

#: Messages of a `Dialer` when the hub stops answering, and when it answers again.
UNREACHABLE, REACHED = "the hub cannot be reached", "the hub is reached again"
#: First words of a message, and the name of its event in the log.
EVENTS = (
    (UNREACHABLE, "unreachable"),
    (REACHED, "reached"),
    ("the hub answered 409", "conflict"),
    ("the hub answered", "refused"),
    ("database or disk is full", "disk_full"),
    ("[Errno 28]", "disk_full"),
    ("program error", "program_error"),
)
_NUMBER = re.compile(r"[-+]?\d[\w.+-]*|\bnan\b|\binf\b", re.IGNORECASE)


def mask_numbers(text: str) -> str:
    """Replace all numbers in a message by #, since they may be values of a report."""
    return _NUMBER.sub("#", text)


class Log:
    """Write one line for each event of a party: `JsonLog` or `PlainLog`.

    Parameters
    ----------
    stream : file
        Open for writing text.
    party : str
        Name of the party.
    clock : callable, default time.time
        Returns seconds since 1970.
    """

    def __init__(self, stream: IO[str], party: str, clock: Clock = time.time) -> None:
        self._stream, self._party, self._clock = stream, party, clock
        self._write_lock, self._look_lock = threading.Lock(), threading.Lock()
        self._last_state, self._last_error = dict[str, Any](), ""

    def event(self, event: str, **fields: Any) -> None:
        """Write an event. Fields may hold names and public numbers only."""
        raise NotImplementedError

    def __call__(self, text: str) -> None:
        """Write a message about the network."""
        raise NotImplementedError

    def _write(self, line: str) -> None:
        # A log that nobody can read any more must not stop the party.
        with self._write_lock, suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    def start(self, process: Process, **addresses: str) -> None:
        """Write which party of which plan has started, and the addresses at which it listens."""
        party: Any = process.party
        with process.turn():
            state = self._state(process)
        self.event(
            "started",
            title=title_of(party.name, kind_of(process), party.deployed.document.name),
            plan=party.deployed.digest.hex(),
            released=state.get("released", state.get("opened")),
            releases=party.deployed.exchanges,
        )
        for name, address in addresses.items():
            self.event(name, address=address)

    def _state(self, process: Process) -> dict[str, Any]:
        """Return the parts of a party's state whose changes are events."""
        party: Any = process.party
        now = process.now()
        state: dict[str, Any] = {"stopped": bool(getattr(party, "stopped", ""))}
        state["clock_off"] = bool(process.clock_off)
        state["waits"] = self._wait(party.waits(now), now)
        if isinstance(process, SiloProcess):
            state |= {"sealed": max(party.sealed, default=0), "released": party.released}
            state["lost"] = len(party.lost)
        elif isinstance(party, Hub):
            state |= {"released": len(party.broadcasts), "alarms": len(party.alarms)}
            state["stopped"] = bool(party.ended)
            state["silent"] = ", ".join(party.silent(now))
        else:
            state |= {"opened": len(party.answers), "alarms": len(party.alarms)}
        return state

    def _wait(self, waits: dict[str, Any], now: float) -> str:
        """Return what the party waits for as text; empty if nothing is due."""
        return "" if waits["since"] is None else " ".join((waits["state"], *waits["who"]))

    def look(self, process: Process) -> None:
        """Write an event for each part of the party's state that changed since the last call.

        Such parts are releases, sealed reports, alarms, and what the party waits for.
        """
        with self._look_lock:
            try:
                with process.turn():
                    state = self._state(process)
            except Exception as error:
                # The party must continue even if its state cannot be shown.
                text = failure(error)[1]
                if text != self._last_error:
                    self(text)
                self._last_error = text
                return
            for name, value in state.items():
                # An entry that the last state does not have counts as False, 0 or "".
                if value != self._last_state.get(name, type(value)()):
                    self.event(name, value=value)
            self._last_state = state

    def watch(self, process: Process, every: float, stop: threading.Event) -> None:
        """Call `look` every ``every`` seconds until ``stop`` is set."""
        while not stop.wait(every):
            self.look(process)


class JsonLog(Log):
    """Write one line of JSON for each event: time, party, event, and further fields."""

    def event(self, event: str, **fields: Any) -> None:
        """Write one line."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        self._write(json.dumps({"time": now, "party": self._party, "event": event, **fields}))

    def __call__(self, text: str) -> None:
        """Write a message about the network, with its numbers masked."""
        events = (event for start, event in EVENTS if text.startswith(start))
        self.event(next(events, "problem"), text=mask_numbers(text))


#: Event -> its sentence in a `PlainLog`, which writes nothing for other events.
SENTENCES = {
    "started": "{title}; plan {plan}, release {released} of {releases}",
    "listening": "listening on {address}",
    "hub": "the hub is {address}",
    "courier": "the socket of couriers is {address}",
    "socket": "the socket of the application is {address}",
    "page": "the status page is {address}",
    "sealed": "the report of release {value} is sealed",
    "released": "release {value} is out",
    "opened": "the shares of release {value} are added up",
    "waits": "waiting for {value}",
    "alarms": "alarms: {value}; the status has their texts",
    "silent": "reports are long overdue, and nobody waits for them: {value}",
    "stopped": "nothing is sent any more; the status says why",
    "clock_off": "this machine's clock differs from the other parties' clocks, or has jumped",
}
#: A `PlainLog` writes that the party waits when the wait has lasted SETTLED seconds, at most once
#: every PAUSE seconds. It names at most MAX_NAMES of the parties that are waited for.
SETTLED, MAX_NAMES, PAUSE = 30.0, 5, 60.0


def utc(seconds: float) -> str:
    """Format seconds since 1970 as text, such as 2026-03-01 08:00 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def title_of(party: str, kind: str, federation: str) -> str:
    """Return who a party is as text: ``north, silo of "Wound care"``."""
    return f'{kind if party == kind else f"{party}, {kind}"} of "{federation}"'


def name_list(names: Sequence[str]) -> str:
    """Return names as text: at most `MAX_NAMES`, and the number of the others."""
    hidden_count = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


class PlainLog(Log):
    """Write one short sentence for each event."""

    #: Before these times, no further line about a wait or a full disk is written.
    _next_wait = _next_full = 0.0

    def event(self, event: str, **fields: Any) -> None:
        """Write the sentence of an event, if it has one.

        Nothing is written if the field ``value`` is false: something, such as a wait, has ended.
        """
        sentence = SENTENCES.get(event)
        if event == "message" and fields["status"] == 503 and self._clock() >= self._next_full:
            # The disk is full, so every party repeats its message every few seconds. Write one line
            # every PAUSE seconds.
            self._next_full = self._clock() + PAUSE
            sentence = "{text}"
        if sentence is not None and fields.get("value", True):
            self._write(one_line(sentence.format(**fields)))

    def __call__(self, text: str) -> None:
        """Write a message about the network."""
        self._write(text)

    def start(self, process: Process, **addresses: str) -> None:
        """Write the first lines; the first call to `look` does not repeat what they state."""
        super().start(process, **addresses)
        with process.turn():
            state = self._state(process)
        self._last_state = {
            name: state[name] for name in ("sealed", "released", "opened") if name in state
        }

    def _wait(self, waits: dict[str, Any], now: float) -> str:
        """Return a sentence: what the party waits for, since when, for whom, and what to do.

        It is empty if the wait is shorter than `SETTLED`. If the last sentence about a wait was
        written less than `PAUSE` seconds ago, it is returned again, so that nothing is written.
        """
        wait_start, last = waits["since"], self._last_state.get("waits", "")
        if wait_start is None or now - wait_start < SETTLED:
            return ""
        if last and self._clock() < self._next_wait:
            return str(last)
        parties_text = f": {name_list(waits['who'])}" if waits["who"] else ""
        text = f"{waits['for']}{parties_text}, since {utc(wait_start)}; what to do: {waits['do']}"
        if text != last:
            self._next_wait = self._clock() + PAUSE
        return text


class JsonHandler(logging.Handler):
    """Pass the records of Python's logging to a `JsonLog`, without numbers and tracebacks."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log record; of an exception, write only its type."""
        fields = (
            {}
            if not record.exc_info or not record.exc_info[0]
            else {"exception": record.exc_info[0].__name__}
        )
        self._log.event(
            "server", level=record.levelname, text=mask_numbers(str(record.msg)), **fields
        )
