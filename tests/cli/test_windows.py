"""Tables on terminals of 40 to 200 columns: no number is cut, and missing columns are named."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fastfed.cli import cli
from fastfed.reporting.table import HEADINGS

pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

SPEC = """
name = "windows"
horizon = 50
silos = 3
replicates = 3
[environment]
kind = "sphere"
dimension = 3
actions = 5
[[curve]]
label = "a trusted server whose name is long"
algorithm = "private-fedlinucb"
protocol = "central"
epsilon = [1.0, 2.5]
delta = 1e-7
batch_size = 10
[[curve]]
label = "alone"
algorithm = "local-linucb"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run the spec, and return the folder of its results."""
    path = tmp_path_factory.mktemp("windows")
    (path / "windows.toml").write_text(SPEC)
    result = CliRunner().invoke(cli, ["run", str(path / "windows.toml"), "-o", str(path / "out")])
    assert result.exit_code == 0, result.output
    return path / "out"


def printed_lines(columns: int, *words: str, term: str = "xterm") -> str:
    """Return what a command writes to a terminal with this many columns, without styles."""
    import fcntl
    import struct

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "CI")}
    environment |= {"TERM": term, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fastfed", *words]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment):
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux raises this at the end of a terminal
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode()).replace("\r", "")


@pytest.mark.parametrize("term", ["xterm", "dumb"])
@pytest.mark.parametrize("columns", [40, 60, 80, 100, 130, 200])
def test_no_cell_is_cut(folder, columns, term):
    whole = (folder / "table.txt").read_text()
    text = printed_lines(columns, "results", str(folder), term=term)
    head, table, rest = re.sub(" +\n", "\n", text).split("\n\n", 2)
    assert max(map(len, head.splitlines()[2:])) <= columns and "sharing" in head
    assert max(map(len, table.splitlines())) <= columns
    regrets = re.findall(r"[\d.]+ ± [\d.]+", whole.split("\n\n")[2])
    assert len(regrets) == 8
    found = re.findall(r"[\d.]+ ± [\d.]+", table)
    missing = re.search("not shown at this width: (.*)", rest)
    left_out = missing[1].split(", ") if missing else []
    # Group regret is always shown, difference (of private curves) and regret per silo if they fit.
    rows = [regrets[:3], regrets[3:6], [regrets[6], "", regrets[7]]]
    fits = (True, "difference" not in left_out, "per silo" not in left_out)
    assert found == [
        cell for row in rows for cell, fit in zip(row, fits, strict=True) if cell and fit
    ]
    assert set(left_out) < set(HEADINGS[2:])
    headings = " ".join(table.split("─")[0].split())
    assert all((heading in headings) != (heading in left_out) for heading in HEADINGS)
    assert left_out if columns <= 100 else columns < 200 or not left_out
    squeezed = re.sub(r"\s", "", table)
    assert "alone" in squeezed and ("proven" in squeezed) == ("status" not in left_out)
