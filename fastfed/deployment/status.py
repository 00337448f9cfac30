"""What a person wants to know about a party, as plain data and as text.

`facts_of` collects these facts from a running process, and `facts_in` from the folder of a party,
whether the party runs or not. They contain no values of records. A silo's facts contain counts of
records, which stay at the silo.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastfed import __version__
from fastfed._validate import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment.calls import one_line
from fastfed.deployment.client import Client
from fastfed.deployment.clocked import ClockedHub, ClockedSilo
from fastfed.deployment.hub import Hub
from fastfed.deployment.observe import (
    hub_numbers,
    kind_of,
    mask_numbers,
    name_list,
    silo_numbers,
    title_of,
    utc,
)
from fastfed.deployment.process import Process, SiloProcess

#: Width of the text, and of its first column.
WIDTH, LABEL = 80, 11
#: How to start each kind of party.
START_COMMANDS = {
    "hub": "fastfed serve {folder}",
    "silo": "fastfed silo {folder} --hub https://...",
    "helper": "fastfed helper {folder} --hub https://...",
}


def duration(seconds: float, units: int = 2) -> str:
    """Format a number of seconds by its largest ``units`` units, such as "3 h 12 min"."""
    remaining, parts = round(max(0.0, seconds)), []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if remaining >= size:
            parts.append(f"{remaining // size} {unit}")
            remaining %= size
        elif parts:
            break
    return " ".join(parts[:units]) or "0 s"


def ago(time: float, now: float) -> str:
    """Format a time with its distance from now: ``... (in 2 h)`` or ``... (3 min ago)``."""
    distance = duration(abs(time - now))
    return f"{utc(time)} ({f'in {distance}' if time > now else f'{distance} ago'})"


def due_text(time: float, now: float) -> str:
    """Return a text such as ``is due 2026-03-01 08:00 UTC (in 2 h)``; "was due" for the past."""
    return f"{'is' if time > now else 'was'} due {ago(time, now)}"


# ---- as plain data -------------------------------------------------------------------------------


def facts_of(process: Process, now: float | None = None) -> dict[str, Any]:
    """Collect the facts about a party that its status page and `text_of` show.

    Parameters
    ----------
    process : Process
        The process of a hub, a silo or a helper.
    now : float, optional
        The time, in seconds since 1970. By default the time of the process's clock.

    Returns
    -------
    dict
        Plain data. Every party has ``kind``, ``party``, ``federation``, ``plan`` (its digest),
        ``version``, ``certificate``; ``time``, ``released``, ``releases``, ``next_close`` (seconds
        since 1970, or None), ``waits`` (see `progress.waiting`), ``troubles`` (texts). A silo also
        has ``numbers`` (its metrics by name) and ``budget``. A hub also has ``numbers`` (its
        metrics by name), ``silos``, ``helper`` and ``notes`` (texts about silos that have been
        silent for long).
    """
    party: Any = process.party
    deployed, certificate = party.deployed, str(party.deployed.certificate)
    with process.turn():
        now = process.now() if now is None else now
        if isinstance(process, SiloProcess):
            released, own_facts = party.released, _silo_facts(process)
        elif isinstance(party, Hub):
            released, own_facts = len(party.broadcasts), _hub_facts(party, now)
        else:
            released, own_facts = len(party.answers), {}
        troubles = _troubles(process)
        waits = party.waits(now)
    closes, closed = deployed.document.calendar.closes, released
    if isinstance(party, ClockedSilo):
        # This silo's periods end at its own closes, which do not depend on its views.
        closes, closed = party.calendar.closes, party.closed_leaves
    return {
        "kind": kind_of(process),
        "party": party.name,
        "federation": deployed.document.name,
        "plan": deployed.digest.hex(),
        "version": __version__,
        "time": now,
        "released": released,
        "releases": deployed.exchanges,
        "next_close": None if closed >= len(closes) else float(closes[closed]),
        "waits": waits,
        "troubles": troubles,
        **own_facts,
        "certificate": certificate,
    }


def _silo_facts(silo: SiloProcess) -> dict[str, Any]:
    """Return the facts that only a silo has: its metrics, and its budget if a ceiling is set."""
    ledger, dataset = silo.party.ledger, silo.party.dataset
    ceiling = ledger.ceiling(dataset)
    budget = None
    if ceiling is not None:
        budget = {
            "dataset": dataset,
            "spent": ledger.epsilon(dataset),
            "ceiling": ceiling[0],
            "delta": ceiling[1],
        }
    return {"numbers": silo_numbers(silo), "budget": budget}


def _hub_facts(hub: Hub, now: float) -> dict[str, Any]:
    """Return the facts that only a hub has: its metrics, and facts about silos and the helper.

    Each entry of ``silos`` has ``capped``, the number of the silo's reports that were scaled down
    (None without a cap). If silos have separate clocks, it also has ``of``, the number of reports
    that the silo's calendar plans, and ``ended``, the time at which the period of its last report
    ended.
    """
    status: dict[str, Any] = hub.status()
    reports, helper = hub.last_reports(), hub.deployed.document.helper
    silos = [
        {
            "name": name,
            "joined": name in hub.joined,
            "left": name in status["left"],
            "last_report": reports[name],
            "last_contact": hub.contacts.get(name),
            "capped": len(status["capped"].get(name, ())) if "capped" in status else None,
        }
        for name in hub.deployed.silos
    ]
    helper_facts = {
        "name": helper.name,
        "answers": len(hub.answers),
        "last_contact": hub.contacts.get(helper.name),
    } if helper is not None else None  # fmt: skip
    notes: list[str] = []
    if isinstance(hub, ClockedHub):
        for silo, (_, count, ended) in zip(silos, hub.reports_by_silo().values(), strict=True):
            silo |= {"of": count, "ended": ended}
        notes = [
            f"{name} is silent: its next report was due {ago(due, now)}; no silo waits for it"
            for name, due in hub.silent(now).items()
        ]
    numbers = hub_numbers(hub, now)
    return {"numbers": numbers, "silos": silos, "helper": helper_facts, "notes": notes}


def _troubles(process: Process) -> list[str]:
    """Return texts about what is wrong: alarms, an early end, and problems of the last round.

    Numbers in the reason for an early end are masked, since it may quote an entry of a sum.
    """
    party: Any = process.party
    texts = [*party.alarms]
    reason = getattr(party, "ended", "") if isinstance(party, Hub) else ""
    reason = reason or getattr(party, "stopped", "")
    if reason and reason not in texts:
        texts.append(mask_numbers(reason))
    if process.problem:
        texts.append(process.problem)
    elif process.clock_off:
        texts.append("this machine's clock differs from the other parties' clocks, or has jumped")
    return texts


# ---- of a folder ---------------------------------------------------------------------------------


def facts_in(folder: str | Path) -> dict[str, Any]:
    """Collect the facts about the party of a folder, from a copy of its files.

    No file is created, locked or changed. A running silo is also asked what it waits for.

    Returns
    -------
    dict
        The facts of `facts_of`, and ``folder``, ``runs`` (True, False, or None if it is not known)
        and ``started`` (False if the party has never run). ``waits`` is None for a party that must
        be started.

    Raises
    ------
    InputError
        If the folder has no plan, or the state is damaged. A ledger that is damaged or missing is
        no error but an entry of ``troubles``.
    """
    target = Path(folder)
    if not target.is_dir():
        raise InputError(f"there is no folder {target}")
    process, ledger_problem = folders.read_party(target), ""
    if isinstance(process, SiloProcess):
        try:
            dataset, process.party.ledger = folders.read_ledger(target)
            process.party.dataset = dataset
        except InputError as error:
            ledger_problem = str(error)
    elif isinstance(process.party, Hub):
        process.party.assume_presence()
    facts = facts_of(process)
    live_status = _live_status(target) if facts["kind"] == "silo" else None
    runs = folders.in_use(target) if live_status is None else True
    if facts["kind"] == "silo":
        # For a silo, None (not known) becomes False: if it ran, it would have answered the request
        # for its live status.
        runs = bool(runs)
    facts["waits"] = (live_status or facts)["waits"]
    is_over = facts["kind"] != "silo" and facts["waits"]["state"] in ("over", "ended", "alarm")
    if runs is False and not is_over:
        # This includes a silo after the last release: its application may still need decisions.
        facts["waits"] = None
    if live_status is not None and live_status["stopped"] and not facts["troubles"]:
        facts["troubles"].append(mask_numbers(live_status["stopped"]))
    if ledger_problem:
        facts["troubles"].append(ledger_problem)
        facts["budget"] = {"problem": ledger_problem}
    started = (target / folders.STATE).exists()
    return {"folder": str(folder), "runs": runs, "started": started} | facts


def _live_status(folder: Path) -> dict[str, Any] | None:
    """Return the status that the running silo of a folder answers; None if it does not run."""
    try:
        status: dict[str, Any] = Client(folder / folders.SOCKET, wait=0).call("status")
    except OSError:
        return None
    return status


# ---- as text -------------------------------------------------------------------------------------


def budget_text(budget: Mapping[str, Any] | None) -> str:
    """Return a phrase about a silo's budget: the epsilon that is spent, and the ceiling."""
    if budget is None:
        return "no ceiling is set"
    if "problem" in budget:
        return "not known"
    return (
        f"epsilon {budget['spent']:.4g} spent of {budget['ceiling']:g}, at delta "
        f"{budget['delta']:g}"
    )


def wait_text(waits: Mapping[str, Any], now: float) -> str:
    """Return a phrase about what a party waits for, for whom, and since when."""
    parties_text = f": {name_list(waits['who'])}" if waits["who"] else ""
    since_text = "" if waits["since"] is None else f", since {ago(waits['since'], now)}"
    return f"{waits['for']}{parties_text}{since_text}"


def text_of(facts: Mapping[str, Any]) -> str:
    """Return the facts of `facts_in` as plain text, in lines of at most `WIDTH` characters.

    Only a line with a longer word, such as a path, is longer, because words are never cut.
    """
    now, kind = facts["time"], facts["kind"]
    rows = [
        ("party", title_of(facts["party"], kind, facts["federation"])),
        ("plan", facts["plan"]),
        ("runs", {True: "yes", False: "no", None: "not known on this system"}[facts["runs"]]),
    ]
    if not facts["started"]:
        rows[-1] = ("runs", "no, it has never been started")
    next_close = facts["next_close"]
    due = "" if next_close is None else f"; the next {due_text(next_close, now)}"
    rows.append(("releases", f"{facts['released']} of {facts['releases']}{due}"))
    if kind == "silo":
        numbers = facts["numbers"]
        rows += [
            ("budget", budget_text(facts["budget"])),
            ("decisions", f"{numbers['decisions']}, of which {numbers['open_decisions']} are open"),
        ]
    if kind == "hub":
        for silo in facts["silos"]:
            rows.append(("report", f"{silo['name']}: {silo_text(silo)}"))
        rows += [("note", note) for note in facts["notes"]]
    rows += [("trouble", trouble) for trouble in facts["troubles"]]
    if facts["waits"] is None:
        start = f"start it: {START_COMMANDS[kind].format(folder=facts['folder'])}"
        if kind == "silo" and facts["released"] == facts["releases"]:
            start = f"all releases are out; for decisions with the last model, {start}"
        rows.append(("to do", start))
    else:
        rows += [("waits for", wait_text(facts["waits"], now)), ("to do", facts["waits"]["do"])]
    lines = []
    for label, text in rows:
        lines += textwrap.wrap(
            one_line(text),
            WIDTH,
            initial_indent=label.ljust(LABEL),
            subsequent_indent=" " * LABEL,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def silo_text(silo: Mapping[str, Any]) -> str:
    """Return a phrase about the last report of a silo that the hub has."""
    if silo["left"]:
        return "has left"
    if not silo["joined"]:
        return "has not joined"
    if not silo["last_report"]:
        return "none yet"
    if "of" not in silo:
        return f"release {silo['last_report']}"
    return f"{silo['last_report']} of {silo['of']}, of {utc(silo['ended'])}"
