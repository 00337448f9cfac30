"""Tests that both readers of tables recover known records from many spellings of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import random
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from fastfed.deployment.data import source_of, surveyed
from fastfed.deployment.declared import schema_of
from fastfed.environments.coding import from_table
from fastfed.environments.selection import declared_columns
from fastfed.environments.tables import read_table

CODES = ["900000000000000001", "900000000000000002", "17", "m\u00fcd", "A-"]
SCHEMA = schema_of(
    {
        "columns": [
            {"name": "age", "kind": "number", "low": 0, "high": 100, "fill": 50},
            {"name": "dx", "kind": "category", "codes": CODES, "missing_flag": True},
            {"name": "smokes", "kind": "flag", "fill": "no"},
        ],
        "actions": {"names": ["A", "B"]},
        "reward": {"column": "result", "correct": {"0": "A", "1": "B"}},
    }
)
RANGES = {"age": [0, 100], "dx": CODES, "smokes": ["true", "false"]}
MARKERS = ["NULL", "N/A", "NA", "None", "null", "#N/A", "<NA>", "NaN", "", "-", "?"]
TRUE, FALSE = ["True", "true", "YES", "y", "T"], ["False", "no", "N", "f", "FALSE"]


def padded(rng: random.Random, text: str) -> str:
    """Return a text with random blanks around it."""
    return rng.choice(["", "", " ", "\u00a0"]) + text + rng.choice(["", "", " "])


def number(rng: random.Random, value: float, mark: str) -> str:
    """Return a random spelling of a number, with this decimal mark."""
    text = rng.choice([str(value), f"{value:.3f}", f"{value:e}", f"+{value}", f"0{value}"])
    return padded(rng, text.replace(".", mark))


def word(rng: random.Random, text: str) -> str:
    """Return a random spelling of a text."""
    if text.isdigit() and rng.random() < 0.3:
        text += rng.choice([".0", ".", ".00"])
    return padded(rng, unicodedata.normalize(rng.choice(["NFC", "NFD"]), text))


def spelled_table(rng: random.Random) -> tuple[list[dict[str, Any]], bytes, dict[str, Any]]:
    """Return records, a table with these records, and the declaration of the table's source."""
    delimiter = rng.choice(",;\t|")
    mark = "," if delimiter == ";" and rng.random() < 0.5 else "."
    names = {name: name for name in ("age", "dx", "smokes", "result", "who")}
    if rng.random() < 0.5:
        names["age"] = rng.choice(["age, at visit, in years, of all", "a;g;e;s;s", 'the "age"'])
    order = list(names)
    rng.shuffle(order)
    truth, lines = [], [[names[name] for name in order]]
    for _ in range(rng.randint(4, 12)):
        record = {
            "age": None if rng.random() < 0.2 else rng.randrange(800) / 8,
            "dx": None if rng.random() < 0.2 else rng.choice(CODES),
            "smokes": None if rng.random() < 0.2 else rng.random() < 0.5,
            "result": rng.choice("01"),
            "who": rng.choice(["7", "18", "caf\u00e9", "p1", "900000000000000001"]),
        }
        truth.append(record)
        cells = {
            "age": number(rng, record["age"], mark) if record["age"] is not None else None,
            "dx": word(rng, record["dx"]) if record["dx"] is not None else None,
            "smokes": padded(rng, rng.choice(TRUE if record["smokes"] else FALSE))
            if record["smokes"] is not None
            else None,
            "result": word(rng, record["result"]),
            "who": word(rng, record["who"]),
        }
        lines.append(
            [rng.choice(MARKERS) if cells[name] is None else cells[name] for name in order]
        )
        if rng.random() < 0.1:
            lines.append(rng.choice([[], [""] * len(order), [" "] * len(order)]))
    file = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    ending = rng.choice(["\n", "\r\n"])
    csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=ending).writerows(lines)
    data = (rng.choice(["", "\ufeff"]) + file.getvalue()).encode()
    data = rng.choice([bytes, bytes, gzip.compress, bz2.compress, lzma.compress])(data)
    return truth, data, {"decimal": mark, "columns": {"age": names["age"]}, "subject": "who"}


def check(seed: int) -> None:
    """Write random records in a random spelling, and check that both readers recover them."""
    rng = random.Random(seed)
    truth, data, source = spelled_table(rng)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / rng.choice(["t.csv", "table", "t.txt"])
        path.write_bytes(data)
        cases, problems = surveyed(source_of({"file": path.name, **source}, name), SCHEMA)
        table = read_table(path)
    assert not problems, (seed, problems[0])
    assert len(cases) == len(table.cells) == len(truth), seed
    for case, record in zip(cases, truth, strict=True):
        flag = -1.0 if not record["smokes"] else 1.0
        age = 50.0 if record["age"] is None else record["age"]
        expected = [
            2 * age / 100 - 1,
            *(float(code == record["dx"]) for code in CODES),
            float(record["dx"] is None),
            flag,
        ]
        assert SCHEMA.records.context(case.record) == pytest.approx(expected), seed
        assert case.subject == record["who"], seed
    age_name = source["columns"]["age"]
    ranges = {(age_name if k == "age" else k): v for k, v in RANGES.items()}
    columns = [age_name, "dx", "smokes"]
    labels = {record["result"] for record in truth}
    if len(labels) < 2:
        return
    known = declared_columns(table, ranges)
    features, classes, owner, _ = from_table(table, "result", "who", columns, known)
    people = list(dict.fromkeys(record["who"] for record in truth))
    for row, record in enumerate(truth):
        expected = [
            0.0 if record["age"] is None else record["age"] / 100,
            float(record["age"] is None),
            *(float(code == record["dx"]) for code in CODES),
            float(record["dx"] is None),
            float(record["smokes"] is True),
            float(record["smokes"] is False),
            float(record["smokes"] is None),
        ]
        assert features[row].tolist() == pytest.approx(expected), seed
        assert classes[row] == int(record["result"]), seed
        assert people[owner[row]] == record["who"], seed


def test_records_are_read_however_they_are_written():
    for seed in range(300):
        check(seed)


@pytest.mark.slow
def test_many_records_are_read_however_they_are_written():
    for seed in range(300, 100_000):
        check(seed)
