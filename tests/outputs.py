"""Output folders without their timing fields: what must be equal, byte for byte."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from contextlib import closing
from pathlib import Path

#: EnvironmentSpec of a run's section in the page that say how long it took.
TIMES = re.compile(r"<dt>(time|thread time|speed)</dt>\s*<dd>[^<]*</dd>")


def final_files(folder: Path) -> dict[str, object]:
    """Every file of an output folder by its name, timing fields taken out; nothing else is."""
    return {path.name: untimed(path) for path in sorted(folder.iterdir())}


def untimed(path: Path) -> object:
    if path.name == "results.sqlite":
        return content(path)
    if path.name == "table.csv":
        rows = list(csv.reader(io.StringIO(path.read_text())))
        assert rows[0][-1] == "agent_rounds_per_second"
        return [row[:-1] for row in rows]
    if path.name == "table.txt":
        # The last column, whose width is that of the largest speed.
        head, found, rest = path.read_text().partition("agent-rounds/s\n")
        assert found
        table, _, rest = rest.partition("\n\n")
        rule, *rows = table.splitlines()
        return head, rule.rstrip("-"), [re.sub(r"\s+\S+( [kMG])?$", "", r) for r in rows], rest
    if path.name == "report.html":
        text, found = TIMES.subn("", path.read_text())
        assert found == 3
        return text
    return path.read_bytes()


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that a store says of what was played; the order of its rows is part of it."""
    with closing(sqlite3.connect(path)) as db:
        found = {t: list(db.execute(f"SELECT * FROM {t}")) for t in ("meta", "curves", "cells")}
        for table in ("timings", "cells"):
            found[f"{table} by key"] = list(db.execute(f"SELECT position, replicate FROM {table}"))
    return found
