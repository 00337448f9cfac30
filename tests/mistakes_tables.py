"""Mistakes in tables of records: CSV dialects, columns, frames, arrays."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mistakes import Mistake, command

#: Twelve patients of two hospitals.
ROWS = [
    f"{40 + i},{5 + i / 2},{'north' if i < 6 else 'south'},{'ill' if i % 3 else 'well'}"
    for i in range(12)
]
HEADER = "age,dose,site,state"
GOOD = "\n".join([HEADER, *ROWS]) + "\n"
SPEC = """
name = "patients"
horizon = 4

[environment]
kind = "classification"
data = "{data}"
label = "state"
silo = "site"
{more}

[[curve]]
algorithm = "local-linucb"
"""
Make = Callable[[Path], None]


def table(
    content: str | bytes | None,
    *,
    name: str = "patients.csv",
    more: str = "",
    old: str = "",
    new: str = "",
) -> Make:
    """Return a function that runs a spec over a file with this content; None: without the file."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        if content is not None:
            raw = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(raw)
        text = SPEC.format(data=name, more=more)
        assert old in text
        (folder / "s.toml").write_text(text.replace(old, new, 1))
        command("run", folder / "s.toml", "-o", folder / "out")

    return make


def files(**contents: str) -> Make:
    """Return a function that runs a spec over a folder with a file for each silo."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        (folder / "data").mkdir()
        for name, content in contents.items():
            (folder / "data" / f"{name}.csv").write_text(content)
        text = SPEC.format(data="data", more="").replace('silo = "site"', 'silo = "silo"')
        (folder / "s.toml").write_text(text)
        command("run", folder / "s.toml", "-o", folder / "out")

    return make


def simulate(data: Any, **keys: Any) -> None:
    """Simulate over this data frame."""
    import fastfed

    columns = {"label": "state", "silo": "site", **keys}
    environment = fastfed.environments.Classification(data=data, **columns)
    fastfed.simulate(environment, "local-linucb", horizon=4)


def columns() -> dict[str, list[Any]]:
    """Return the columns of the table by name."""
    cells = [row.split(",") for row in ROWS]
    return {
        "age": [float(c[0]) for c in cells],
        "dose": [float(c[1]) for c in cells],
        "site": [c[2] for c in cells],
        "state": [c[3] for c in cells],
    }


def pandas(change: Callable[[Any], Any]) -> Make:
    """Return a function that simulates over a changed pandas frame."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import pandas as pd

        simulate(change(pd.DataFrame(columns())))

    return make


def polars(change: Callable[[Any], Any]) -> Make:
    """Return a function that simulates over a changed polars frame."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import polars as pl

        simulate(change(pl.DataFrame(columns())))

    return make


def arrow(change: Callable[[Any, Any], Any]) -> Make:
    """Return a function that simulates over a changed Arrow table."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import pyarrow as pa

        simulate(change(pa, pa.table(columns())))

    return make


def with_two_levels(frame: Any) -> Any:
    """Return the frame with two levels of column names."""
    import pandas as pd

    frame.columns = pd.MultiIndex.from_product([["a"], frame.columns])
    return frame


def arrays(features: Any, classes: Any, silo: Any = None, **keys: Any) -> Make:
    """Return a function that simulates over these arrays."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        world = fastfed.environments.Classification.from_arrays(features, classes, silo, **keys)
        fastfed.simulate(world, "local-linucb", silos=2, horizon=3)

    return make


def run_replay(**parts: Any) -> Make:
    """Return a function that runs a replay of these arrays."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        np.savez(folder / "log.npz", **parts)
        (folder / "s.toml").write_text(
            'name = "log"\nhorizon = 3\n[environment]\nkind = "replay"\npath = "log.npz"\n'
            'reward_range = [0.0, 1.0]\n[[curve]]\nalgorithm = "local-linucb"\n'
        )
        command("run", folder / "s.toml", "-o", folder / "out")

    return make


COMMAS = GOOD.replace(".5,", ",5,").replace(".0,", ",0,")
WIDE = "\n".join(
    [
        HEADER,
        *(f"{40 + i},text {i},{r.split(',')[2]},{r.split(',')[3]}" for i, r in enumerate(ROWS * 6)),
    ]
)
FILES = [
    Mistake(
        "a page in place of a table",
        table("<!DOCTYPE html>\n<html><body>Not found</body></html>\n"),
        ("patients.csv", "HTML", "CSV"),
    ),
    Mistake("JSON as a table", table('[{"age": 1}]'), ("patients.csv", "JSON", "CSV")),
    Mistake(
        "decimal commas between commas",
        table(COMMAS),
        ("patients.csv:2", "4 cells", "got 5", "decimal", "semicolons"),
    ),
    Mistake(
        "semicolons in the header alone",
        table(GOOD.replace(HEADER, HEADER.replace(",", ";"))),
        ("patients.csv:2", "semicolons"),
    ),
    Mistake(
        "a decimal comma in one cell of a semicolon file",
        table(GOOD.replace(",", ";").replace("5.5;", "5,5;")),
        ("patients.csv", "dose", "decimal"),
    ),
    Mistake(
        "a cell too many",
        table(GOOD.replace("41,5.5,", "41,5.5,x,")),
        ("patients.csv:3", "4 cells", "got 5", "quotes"),
    ),
    Mistake(
        "an inf cell",
        table(GOOD.replace("41,5.5", "41,inf")),
        ("patients.csv:3", "dose", "inf", "empty"),
    ),
    Mistake(
        "a filter that no record fits",
        table(GOOD, more='where = { site = ["west"] }'),
        ("patients.csv", "where", "12 records", "where.site", "west"),
    ),
    Mistake(
        "bins of a label that is a text",
        table(GOOD, more="bins = [1, 2]"),
        ("patients.csv:2", "label 'state'", "numbers", "bins"),
    ),
    Mistake(
        "a sentinel that is no text",
        table(GOOD, more="missing = [-9]"),
        ("missing", "list of texts", "-9"),
    ),
    Mistake(
        "a text among numbers, in a declared column",
        table(GOOD.replace("41,5.5", "41,low"), more="ranges = { dose = [0, 20] }"),
        ("patients.csv:3", "dose", "'low'", "number"),
    ),
    Mistake("a column of 72 texts", table(WIDE), ("dose", "72", "50")),
    Mistake("a file that is not there", table(None), ("patients.csv", "no such file")),
    Mistake("an empty file", table(""), ("patients.csv", "empty")),
    Mistake("a header alone", table(HEADER + "\n"), ("patients.csv", "header", "record")),
    Mistake(
        "UTF-16, as Excel saves text",
        table(GOOD.encode("utf-16")),
        ("patients.csv", "UTF-16", "UTF-8"),
    ),
    Mistake(
        "Latin-1",
        table(GOOD.replace("well", "gesünd").encode("latin-1")),
        ("patients.csv", "UTF-8", "0xfc"),
    ),
    Mistake(
        "an Excel file",
        table(b"PK\x03\x04" + bytes(60), name="patients.xlsx"),
        ("patients.xlsx", "Excel", "CSV"),
    ),
    Mistake(
        "a Parquet file",
        table(b"PAR1" + bytes(60), name="patients.parquet"),
        # Without pyarrow the file is not opened, and the message says what to install.
        ("patients.parquet", "Parquet"),
    ),
    Mistake(
        "half a .gz",
        table(gzip.compress(GOOD.encode(), mtime=0)[:60], name="patients.csv.gz"),
        ("patients.csv.gz", "gzip"),
    ),
    Mistake("an open quote", table(GOOD.replace("41,", '"41,')), ("patients.csv", "quot")),
    Mistake(
        "the same column twice",
        table(GOOD.replace("age,dose", "age,age")),
        ("patients.csv:1", "'age'", "twice"),
    ),
    Mistake("no header", table("\n".join(ROWS) + "\n"), ("label", "'state'", "header")),
    Mistake(
        "a label that is no column",
        table(GOOD, old='label = "state"', new='label = "State"'),
        ("label", "'State'", 'mean "state"'),
    ),
    Mistake("no label", table(GOOD, old='label = "state"\n', new=""), ("label", "column", "state")),
    Mistake(
        "one arm: a label with one value",
        table(GOOD.replace("well", "ill")),
        ("label", "state", "2 classes", "ill"),
    ),
    Mistake(
        "a row number as label",
        table(
            "\n".join([HEADER + ",n", *(f"{r},{i}" for i, r in enumerate(ROWS))]),
            old='"state"',
            new='"n"',
        ),
        ("label", "'n'", "12"),
    ),
    Mistake(
        "records without label",
        table(GOOD.replace("41,5.5,north,ill", "41,5.5,north,")),
        ("patients.csv:3", "label", "state"),
    ),
    Mistake(
        "another number of silos than hospitals",
        table(GOOD, old="horizon = 4", new="horizon = 4\nsilos = 3"),
        ("silos", "2", "data", "got 3"),
    ),
    Mistake(
        "more rounds than the smallest silo has rows",
        table(GOOD, old="horizon = 4", new="horizon = 40"),
        ("horizon", "40", "6"),
    ),
    Mistake(
        "a range turned round",
        table(GOOD, more="ranges = { age = [80, 20] }"),
        ("ranges.age", "80", "20"),
    ),
    Mistake(
        "a range of no column",
        table(GOOD, more="ranges = { aeg = [20, 80] }"),
        ("ranges", "'aeg'", 'mean "age"'),
    ),
    Mistake("norm = -1", table(GOOD, more="norm = -1"), ("norm", "> 0", "-1")),
    Mistake("a folder without tables", files(), ("data", ".csv")),
    Mistake(
        "files with other columns",
        files(north=GOOD, south=GOOD.replace("dose", "Dose")),
        ("columns", "Dose", "south.csv"),
    ),
    Mistake(
        "no rows in one silo's file",
        files(north=GOOD, south=HEADER + "\n"),
        ("south.csv", "record"),
    ),
    Mistake(
        "a table without its header",
        table("0,s,23,well\n1,n,30,ill\n", old='"state"', new='"diagnosis"'),
        ("label", "'diagnosis'", "0, s, 23, well", "first line must be a header"),
    ),
    Mistake(
        "more rounds than one silo has records",
        table(GOOD + "50,6,west,ill\n"),
        ("horizon", "<= 1", "smallest silo", "'west'", "got 4"),
    ),
    Mistake(
        "half of a compressed file",
        table(
            gzip.compress(GOOD.encode())[:40],
            name="patients.csv.gz",
        ),
        ("patients.csv.gz", "gzip", "copy it again"),
    ),
    Mistake(
        "a column that one of several files lacks",
        lambda f: (
            (f / "data").mkdir(),
            (f / "data" / "a.csv").write_text("age,lab,state\n1,2,ill\n3,4,well\n"),
            (f / "data" / "b.csv").write_text("age,state\n1,ill\n3,well\n"),
            (f / "s.toml").write_text(
                SPEC.format(data="data", more='columns = ["age", "lab"]').replace("site", "silo")
            ),
            command("run", f / "s.toml", "-o", f / "out"),
        ),
        ("columns", "every table", "'lab'", "b.csv"),
    ),
]
FRAMES = [
    Mistake(
        "a pandas frame with two levels of columns",
        pandas(with_two_levels),
        ("columns", "one level", "flat"),
        ("pandas",),
    ),
    Mistake(
        "a pandas frame without rows",
        pandas(lambda f: f[:0]),
        ("at least one record",),
        ("pandas",),
    ),
    Mistake(
        "a pandas frame with the same column twice",
        pandas(lambda f: f[["age", "age", "site", "state"]]),
        ("'age'", "2 times"),
        ("pandas",),
    ),
    Mistake(
        "a pandas frame with an infinite cell",
        pandas(lambda f: f.assign(dose=[float("inf"), *f["dose"][1:]])),
        ("dose", "row 0", "inf"),
        ("pandas",),
    ),
    Mistake(
        "a pandas column in place of a frame",
        pandas(lambda f: f["age"]),
        ("data", "frame"),
        ("pandas",),
    ),
    Mistake(
        "a polars LazyFrame", polars(lambda f: f.lazy()), ("LazyFrame", "collect()"), ("polars",)
    ),
    Mistake(
        "a polars column of lists",
        polars(lambda f: f.with_columns(codes=[[1, 2]] * 12)),
        ("codes", "list"),
        ("polars",),
    ),
    Mistake(
        "a polars frame without the silo",
        polars(lambda f: f.drop("site")),
        ("silo", "'site'", "state"),
        ("polars",),
    ),
    Mistake(
        "an Arrow column of structs",
        arrow(lambda pa, t: t.append_column("codes", pa.array([{"a": 1}] * 12))),
        ("codes", "struct"),
        ("pyarrow",),
    ),
    Mistake(
        "an Arrow batch reader",
        arrow(lambda pa, t: t.to_reader()),
        ("data", "RecordBatchReader", "read_all()"),
        ("pyarrow",),
    ),
    Mistake(
        "a NumPy array in place of a frame",
        lambda f: simulate(np.zeros((5, 4))),
        ("data", "array", "from_arrays"),
    ),
]
ARRAYS = [
    Mistake(
        "arrays with a NaN",
        arrays([[1.0], [np.nan], [1.0]], [0, 1, 0]),
        ("features", "finite", "(1, 0)"),
    ),
    Mistake(
        "one class too few", arrays([[1.0], [2.0], [1.0]], [0, 1]), ("classes", "(3,)", "(2,)")
    ),
    Mistake(
        "classes from 1 as floats",
        arrays([[1.0], [2.0], [1.0]], [0.5, 1, 2]),
        ("classes", "integers", "0.5"),
    ),
    Mistake(
        "a vector in place of rows",
        arrays([1.0, 2.0, 1.0], [0, 1, 0]),
        ("features", "2 axes", "(3,)"),
    ),
    Mistake(
        "a replay without rewards",
        run_replay(contexts=np.zeros((2, 3, 4, 2))),
        ("log.npz", "rewards"),
    ),
    Mistake(
        "a replay with three axes",
        run_replay(contexts=np.zeros((3, 4, 2)), rewards=np.zeros((3, 4))),
        ("contexts", "(M, T, K, d)"),
    ),
    Mistake(
        "a replay with a reward beyond its range",
        run_replay(contexts=np.zeros((2, 3, 4, 2)), rewards=np.full((2, 3, 4), 2.0)),
        ("reward_range", "[0, 1]", "2"),
    ),
    Mistake(
        "a replay with more rounds of a silo than there are",
        run_replay(
            contexts=np.zeros((2, 3, 4, 2)), rewards=np.zeros((2, 3, 4)), rounds=np.array([3, 5])
        ),
        ("rounds", "1 to 3", "5", "silo 1"),
    ),
    Mistake(
        "a replay with a round that offers nothing",
        run_replay(
            contexts=np.zeros((2, 3, 4, 2)),
            rewards=np.zeros((2, 3, 4)),
            mask=np.arange(24).reshape(2, 3, 4) > 3,
        ),
        ("mask", "round 1", "silo 0"),
    ),
]
MISTAKES = FILES + FRAMES + ARRAYS
