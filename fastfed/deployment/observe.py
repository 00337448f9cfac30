"""Metrics and logs for operators: Prometheus text, and JSON lines.

Neither contains values of records. A silo's metrics contain counts of records (such as open or
clipped ones), which nobody outside the silo may see. They are served on the silo's machine only.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from http.server import HTTPServer
from typing import IO, Any

from fastfed._validate import InputError, integer
from fastfed.deployment.calls import Bounded, LocalHandler
from fastfed.deployment.hub import Hub
from fastfed.deployment.process import Process, SiloProcess

Clock = Callable[[], float]


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
        "releases_total": party.plan.releases,
        "released": party.model.release,
        "releases_waited_for": max(0, party.closed_leaves - party.model.release),
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
    "waiting_seconds": "Seconds that the party has waited for what is due; /status names it.",
    "clock_off_seconds": "Error of the machine's clock while the clock is ignored; else 0.",
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


class Metrics(Bounded, HTTPServer):
    """Serve a silo's metrics at `GET /metrics` on the loopback address.

    Parameters
    ----------
    silo : SiloProcess
    port : int
        0 for a free port that the system chooses; the attribute ``server_port`` has its number.
    """

    def __init__(self, silo: SiloProcess, port: int) -> None:
        if not isinstance(silo, SiloProcess):
            raise InputError("metrics are those of a silo")
        super().__init__(
            ("127.0.0.1", integer("port", port, at_least=0, at_most=65535)), _handler_for(silo)
        )

    def start(self) -> None:
        """Serve in a new thread until `shutdown` is called."""
        threading.Thread(target=self.serve_forever, daemon=True).start()


def _handler_for(silo: SiloProcess) -> type[LocalHandler]:
    """Create the class that handles requests for a silo's metrics."""

    class Handler(LocalHandler):
        """Answer GET /metrics."""

        def do_GET(self) -> None:
            # Refuse other host names: a web page in a local browser could use one (DNS rebinding).
            host = (self.headers.get("host") or "").rsplit(":", 1)[0]
            if self.path != "/metrics" or host not in ("127.0.0.1", "localhost"):
                self.send_error(404)
                return
            self.server.complete(self.connection)
            with silo.turn():
                body = prometheus("silo", silo_numbers(silo)).encode()
            self.reply(200, body, "text/plain; version=0.0.4; charset=utf-8")

    return Handler


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


def masked(text: str) -> str:
    """Replace all numbers in a message by #, since they may be values of a report."""
    return _NUMBER.sub("#", text)


class JsonLog:
    """Write one line of JSON for each event: time, party, event, and further fields.

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
        self._lock, self._last_state = threading.Lock(), dict[str, Any]()

    def event(self, event: str, **fields: Any) -> None:
        """Write one line. Fields may hold names and public numbers only."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        line = {"time": now, "party": self._party, "event": event, **fields}
        with self._lock:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()

    def __call__(self, text: str) -> None:
        """Write a message about the network, with its numbers masked."""
        events = (event for start, event in EVENTS if text.startswith(start))
        self.event(next(events, "problem"), text=masked(text))

    def look(self, process: Process) -> None:
        """Write an event for each part of the party's state that changed since the last call.

        Such parts are releases, sealed reports, alarms, and what the party waits for.
        """
        party: Any = process.party
        waits = party.waits(process.now())
        state: dict[str, Any] = {"stopped": bool(getattr(party, "stopped", ""))}
        state["clock_off"] = bool(process.clock_off)
        state["waits"] = "" if waits["since"] is None else " ".join((waits["state"], *waits["who"]))
        if isinstance(process, SiloProcess):
            state |= {"sealed": max(party.sealed, default=0), "released": party.model.release}
            state["lost"] = len(party.lost)
        elif isinstance(party, Hub):
            state |= {"released": len(party.broadcasts), "alarms": len(party.alarms)}
            state["stopped"] = bool(party.ended)
        else:
            state["opened"] = len(party.answers)
        for name, value in state.items():
            if value != self._last_state.get(name, type(value)()):
                self.event(name, value=value)
        self._last_state = state


class JsonHandler(logging.Handler):
    """Pass the records of Python's logging to a `JsonLog`, without numbers and tracebacks."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log record; of an exception only its type."""
        fields = (
            {}
            if not record.exc_info or not record.exc_info[0]
            else {"exception": record.exc_info[0].__name__}
        )
        self._log.event("server", level=record.levelname, text=masked(str(record.msg)), **fields)
