"""Read output folders without their timing fields, to compare two runs byte for byte."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from contextlib import closing
from pathlib import Path

#: Entries of the "run" section of report.html that say how long the run took.
TIMES = re.compile(r"<dt>(time|thread time|speed)</dt>\s*<dd>[^<]*</dd>")


def final_files(folder: Path) -> dict[str, object]:
    """Return the content of each file of an output folder, by name, without timing fields."""
    return {path.name: untimed(path) for path in sorted(folder.iterdir())}


def untimed(path: Path) -> object:
    """Return the content of one output file without its timing fields."""
    if path.name == "results.sqlite":
        return content(path)
    if path.name == "table.csv":
        rows = list(csv.reader(io.StringIO(path.read_text())))
        assert rows[0][-1] == "agent_rounds_per_second"
        return [row[:-1] for row in rows]
    if path.name == "table.txt":
        # The last column holds speeds; its width depends on the largest speed.
        heading, removed, rest = path.read_text().partition("agent-rounds/s\n")
        assert removed
        table, _, rest = rest.partition("\n\n")
        rule, *rows = table.splitlines()
        return heading, rule.rstrip("-"), [re.sub(r"\s+\S+( [kMG])?$", "", r) for r in rows], rest
    if path.name == "report.html":
        text, removed = TIMES.subn("", path.read_text())
        assert removed == 3
        return text
    return path.read_bytes()


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the tables of a store without its times, with rows in their stored order."""
    with closing(sqlite3.connect(path)) as db:
        rows_by_table = {
            table_name: list(db.execute(f"SELECT * FROM {table_name}"))
            for table_name in ("meta", "curves", "cells")
        }
        for table in ("timings", "cells"):
            rows_by_table[f"{table} by key"] = list(
                db.execute(f"SELECT position, replicate FROM {table}")
            )
    return rows_by_table
