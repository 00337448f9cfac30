"""A web page that shows the state of a hub or a silo; nothing can be changed there.

`html_of` writes the page from plain data (`status.facts_of`), and `StatusPage` serves it on this
machine. The page has no scripts and loads nothing: its style sheet is part of the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from fastfed._validate import InputError
from fastfed.deployment.calls import one_line
from fastfed.deployment.hub import Hub
from fastfed.deployment.observe import Answer, LocalServer, metrics_answer, name_list, title_of, utc
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.status import ago, budget_text, due_text, duration, facts_of, silo_text

#: Seconds after which a browser loads the page again.
REFRESH = 30
#: Seconds between two counts of decisions, and the seconds over which their pace is shown.
SAMPLE, WINDOW = 10.0, 300.0

CSS = """
:root {
  color-scheme: light dark;
  --text: #1d2126; --quiet: #5a626c; --page: #fbfaf8; --card: #ffffff; --line: #dcdad4;
  --bar: #24527a; --good: #1b6b34; --good-back: #e3f2e6; --wait: #7a5300; --wait-back: #faf0d7;
  --bad: #a3262a; --bad-back: #fbe7e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e4e3e0; --quiet: #a3a8ae; --page: #17191c; --card: #1f2226; --line: #383c42;
    --bar: #8fbfe8; --good: #8fd6a3; --good-back: #1c3324; --wait: #ecc779; --wait-back: #382d14;
    --bad: #f2a29c; --bad-back: #3d2121;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 68rem; background: var(--page);
  color: var(--text); overflow-wrap: break-word;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1rem; margin: 0 0 0.6rem; }
p { margin: 0.3rem 0; }
.quiet { color: var(--quiet); font-size: 0.875rem; }
.state { border-radius: 10px; padding: 0.8rem 1rem; margin: 1rem 0; }
.state p, .state strong { display: block; overflow-wrap: anywhere; }
.good { color: var(--good); background: var(--good-back); }
.wait { color: var(--wait); background: var(--wait-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.cards {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
}
section, details {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem;
  min-width: 0;
}
section.whole { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: 0.7rem; margin: 0.4rem 0; }
svg rect { fill: var(--line); }
svg rect + rect { fill: var(--bar); }
dl {
  display: grid; grid-template-columns: 1fr auto; gap: 0.25rem 1rem; margin: 0;
  font-variant-numeric: tabular-nums;
}
dt { color: var(--quiet); }
dd { margin: 0; text-align: right; }
table { border-collapse: collapse; width: 100%; font-size: 0.94rem; }
th, td { text-align: left; padding: 0.35rem 0.8rem 0.35rem 0; vertical-align: top; }
thead th { color: var(--quiet); font-weight: 600; font-size: 0.82rem; }
tbody tr { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; overflow-wrap: anywhere; min-width: 5rem; }
details { margin-top: 1rem; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: 0.82rem; line-height: 1.45; margin: 0.8rem 0 0; }
code { font-size: 0.875rem; overflow-wrap: anywhere; }
footer { margin-top: 1.2rem; }
"""
#: The browser may load and send nothing. It accepts the style sheet by its hash.
_STYLE = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
HEADERS = (
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)

# ---- HTML ----------------------------------------------------------------------------------------


def escaped(text: object) -> str:
    """Return a text as one line of HTML, without control characters."""
    return html.escape(one_line(str(text)))


def _bar(share: float, label: str) -> str:
    """Return a bar of which a share in [0, 1] is filled; ``label`` states the share in words."""
    width = 100.0 * min(1.0, max(0.0, share))
    return (
        f'<svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(label)}"><rect width="100" height="4"></rect>'
        f'<rect width="{width:.2f}" height="4"></rect></svg>'
    )


def _list(pairs: Iterable[tuple[str, object]]) -> str:
    """Return an HTML list of names and values."""
    rows = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>\n" for name, value in pairs)
    return f"<dl>\n{rows}</dl>"


def _card(title: str, *parts: str, full_width: bool = False) -> str:
    """Return a section with a title."""
    name = ' class="whole"' if full_width else ""
    return "\n".join((f"<section{name}>", f"<h2>{escaped(title)}</h2>", *parts, "</section>"))


def _state_boxes(facts: Mapping[str, Any]) -> str:
    """Return the boxes at the top: what is wrong, silent silos, and what the party waits for."""
    boxes, now, waits = list[str](), facts["time"], facts["waits"]
    if facts["troubles"]:
        troubles = "".join(f"<p>{escaped(text)}</p>" for text in facts["troubles"])
        boxes.append(f'<div class="state bad"><strong>Something is wrong</strong>{troubles}</div>')
    if facts.get("notes"):
        notes = "".join(f"<p>{escaped(text)}</p>" for text in facts["notes"])
        boxes.append(f'<div class="state wait"><strong>Silent silos</strong>{notes}</div>')
    is_idle = waits["state"] in ("start", "open", "clocks", "over")
    # Texts of `progress.WAITS` begin with "nothing: " if the party waits for nothing.
    text = waits["for"].removeprefix("nothing: ")
    headline = text[0].upper() + text[1:] if text != waits["for"] else f"Waits for {text}"
    lines = [f"<strong>{escaped(headline)}</strong>"]
    if waits["who"]:
        lines.append(f"<p>For: {escaped(name_list(waits['who']))}</p>")
    if waits["since"] is not None:
        lines.append(f"<p>Since: {escaped(ago(waits['since'], now))}</p>")
    if waits["state"] not in ("start", "open", "clocks"):
        lines.append(f"<p>What to do: {escaped(waits['do'])}</p>")
    boxes.append(f'<div class="state {"good" if is_idle else "wait"}">{"".join(lines)}</div>')
    return "\n".join(boxes)


def _releases(facts: Mapping[str, Any]) -> str:
    """Return the card about releases."""
    released, releases, due = facts["released"], facts["releases"], facts["next_close"]
    text = f"{released} of {releases} releases are out"
    next_release = "" if due is None else f"The next {due_text(due, facts['time'])}"
    return _card(
        "Releases",
        f"<p>{escaped(text)}</p>",
        _bar(released / max(1, releases), text),
        f'<p class="quiet">{escaped(next_release)}</p>',
        full_width=facts["kind"] == "hub",
    )


def _silo_cards(facts: Mapping[str, Any]) -> list[str]:
    """Return the cards that only a silo has."""
    budget, numbers = facts["budget"], facts["numbers"]
    spent = [f"<p>{escaped(budget_text(budget))}</p>"]
    if budget is not None:
        spent.append(_bar(budget["spent"] / budget["ceiling"], budget_text(budget)))
        spent.append(f'<p class="quiet">Dataset {escaped(budget["dataset"])}, all its plans</p>')
    pace, decisions = facts.get("per_minute"), int(numbers["decisions"])
    counts = [
        ("Decisions", decisions),
        ("Open, without a reward", int(numbers["open_decisions"])),
        ("Ended by a reward or without", decisions - int(numbers["open_decisions"])),
        ("Decisions a minute", "not known yet" if pace is None else f"{pace:.3g}"),
        ("Records with clipped features", int(numbers["clipped_features"])),
        ("Records with a clipped reward", int(numbers["clipped_rewards"])),
    ]
    reports = [
        ("Reports made", int(numbers["reports_sealed"])),
        ("Releases without a report", int(numbers["releases_without"])),
        ("Reports lost", int(numbers["reports_lost"])),
    ]
    window = f"Decisions a minute: over the last {duration(WINDOW)}, or since the start."
    return [
        _card("Privacy budget", *spent),
        _card("Decisions", _list(counts), f'<p class="quiet">{window}</p>'),
        _card("Reports to the hub", _list(reports)),
    ]


def _hub_cards(facts: Mapping[str, Any]) -> list[str]:
    """Return the card that only a hub has: a table of the silos and the helper."""
    columns, helper = ["Party", "Last report", "Last contact"], facts["helper"]
    rows = [[silo["name"], silo_text(silo), silo["last_contact"]] for silo in facts["silos"]]
    if any(silo["capped"] is not None for silo in facts["silos"]):
        columns.append("Capped")
        rows = [[*row, silo["capped"]] for row, silo in zip(rows, facts["silos"], strict=True)]
    if helper is not None:
        answer = f"sum {helper['answers']}" if helper["answers"] else "none yet"
        rows.append([f"{helper['name']} (helper)", answer, helper["last_contact"]])
    lines = []
    for name, report, contact, *capped in rows:
        seconds = None if contact is None else facts["time"] - contact
        contact_text = (
            "none since start" if seconds is None else f"{duration(seconds, units=1)} ago"
        )
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in (report, contact_text, *capped))
        lines.append(f'<tr><th scope="row">{escaped(name)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{text}</th>' for text in columns)
    body = "\n".join(lines)
    return [
        _card(
            "Silos" if helper is None else "Silos and helper",
            f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>",
            full_width=True,
        )
    ]


def html_of(facts: Mapping[str, Any]) -> str:
    """Return the page of a hub or a silo.

    Parameters
    ----------
    facts : mapping
        See `status.facts_of`; and ``per_minute``, a silo's decisions a minute, or None.

    Returns
    -------
    str
        HTML. Every text from outside, such as a name, is escaped.
    """
    kind = facts["kind"]
    title = title_of(facts["party"], kind, facts["federation"])
    cards = [_releases(facts), *(_silo_cards if kind == "silo" else _hub_cards)(facts)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{REFRESH}">
<title>{escaped(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escaped(facts["party"])}</h1>
<p class="quiet">{kind.capitalize()} of {escaped(facts["federation"])}</p>
{_state_boxes(facts)}
<div class="cards">
{chr(10).join(cards)}
</div>
<details>
<summary>Privacy certificate</summary>
<pre tabindex="0">{html.escape(facts["certificate"])}</pre>
</details>
</main>
<footer>
<p class="quiet">Plan <code>{escaped(facts["plan"])}</code></p>
<p class="quiet">fastfed {escaped(facts["version"])}, {escaped(utc(facts["time"]))}. This page shows
no values of records. It is loaded again every {REFRESH} seconds.</p>
</footer>
</body>
</html>
"""


# ---- the server ----------------------------------------------------------------------------------


class StatusPage(LocalServer):
    """Serve the page of a hub or a silo at `GET /` on the loopback address, and `GET /metrics`.

    Parameters
    ----------
    process : Process
        The process of a hub or a silo.
    port : int
        See `LocalServer`.
    """

    def __init__(self, process: Process, port: int) -> None:
        if not isinstance(process.party, Hub) and not isinstance(process, SiloProcess):
            raise InputError("a status page needs the process of a hub or a silo")
        self._process = process
        #: (monotonic time, number of decisions), of the last `WINDOW` seconds.
        self._counts: deque[tuple[float, int]] = deque(maxlen=round(WINDOW / SAMPLE) + 1)
        self._sample()
        answers = {
            "/": Answer("text/html; charset=utf-8", self._page, HEADERS),
            "/metrics": metrics_answer(process),
        }
        super().__init__(port, answers)

    def _page(self) -> str:
        return html_of(facts_of(self._process) | {"per_minute": self.per_minute()})

    def service_actions(self) -> None:
        """Close connections whose request takes too long, and count decisions now and then."""
        super().service_actions()
        if time.monotonic() >= self._counts[-1][0] + SAMPLE:
            self._sample()

    def _sample(self) -> None:
        self._counts.append((time.monotonic(), self._decisions()))

    def _decisions(self) -> int:
        return len(self._process.party.decisions) if isinstance(self._process, SiloProcess) else 0

    def per_minute(self) -> float | None:
        """Return the decisions a minute since the oldest count; None for `SAMPLE` seconds."""
        oldest_time, oldest_count = self._counts[0]
        seconds = time.monotonic() - oldest_time
        return None if seconds < SAMPLE else 60.0 * (self._decisions() - oldest_count) / seconds
