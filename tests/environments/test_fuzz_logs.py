"""Damaged logs and containers: read, or refused in one sentence."""

from __future__ import annotations

import io
import random
import sqlite3
import zipfile
from contextlib import closing

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.environments import Log

LINES = b"1:-1:0.5 'tag |a b:2 c | d\n2:0:0.25 | d:1e-3\n3:-0.5:1 |x:2 q\n"
BLOCKS = (
    b"shared | s:1 a\n| b\n0:-1:0.5 |n c:2\n\nshared | s:2\n0:0:0.5 | b\n| c\n\n| b\n1:0:0.4 | c\n"
)
TABLE = b"action,reward,propensity,x\na,1,0.5,3\nb,0,0.25,\nc,yes,1,4\n"
ROWS = [("a", 1, 0.5, 3), ("b", 0, 0.25, None), ("c", 1, 1.0, 4)]
ODD = (
    *(b"|", b":", b"\n", b"\n\n", b" ", b"shared", b"nan", b"-", b"1e999", b"\0", b"\xff", b"'"),
    *(b"0", b"9" * 30, b",", b'"', b"\r", b"\x85", b"\xc2\xa0", b"inf", b"\t"),
)


def archive():
    """Return a ZIP archive with the table, as bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zip_file:
        zip_file.writestr("t.csv", TABLE)
    return file.getvalue()


def database():
    """Return an SQLite database with the table, as bytes."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE log (action, reward, propensity, x)")
        db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", ROWS)
        db.commit()
        return db.serialize()


def workbook():
    """Return an Excel file with the table, as bytes."""
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    book, file = openpyxl.Workbook(), io.BytesIO()
    for row in [("action", "reward", "propensity", "x"), *ROWS]:
        book.active.append(row)
    book.save(file)
    return file.getvalue()


def damaged(rng, data):
    """Return the data after up to four random changes, each at a random place."""
    changed = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        at, kind = rng.randrange(len(changed) + 1), rng.randrange(4)
        if kind == 0:
            changed[at:at] = rng.choice(ODD)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 6)]
        elif kind == 2 and changed:
            changed[at % len(changed)] = rng.randrange(256)
        else:
            changed[at : at + 1] = rng.choice(ODD)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("form", "make"),
    [
        ("vw", lambda: LINES),
        ("vw", lambda: BLOCKS),
        ("table", lambda: TABLE),
        ("table", archive),
        ("table", database),
        ("table", workbook),
    ],
    ids=["lines", "blocks", "csv", "zip", "sqlite", "excel"],
)
def test_damage_is_refused_in_one_sentence(tmp_path, form, make):
    rng, data, path = random.Random(7), make(), tmp_path / "log"
    read = refused = 0
    for _ in range(300):
        path.write_bytes(damaged(rng, data))
        try:
            rounds = Log(data=str(path), format=form, reward_range=[-10, 10], dimension=4).rounds(1)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
            continue
        read += 1
        rows = np.array([rounds.features(i) for i in range(len(rounds.z))])
        assert (np.linalg.norm(rows, axis=1) <= 1.0).all()
        chances = rounds.probabilities(range(len(rows)), 0, np.ones(4), 1)
        assert set(chances.tolist()) <= {0.0, 1.0}
    assert read > 20 and refused > 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # zipfile looks at the last character of a member's name; here the name is empty.
        (b"\x05\x00\x00\x00t.csv", b"\x00\x00\x00\x00t.csv"),
        (b"PK\x01\x02", b"PK\x01\x03"),
    ],
)
def test_archives_found_by_fuzzing(tmp_path, old, new):
    path = tmp_path / "log"
    path.write_bytes(archive().replace(old, new))
    with pytest.raises(InputError, match="must"):
        Log(data=str(path)).rounds(1)


def test_a_database_with_a_column_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(database().replace(b"propensity", b"pro\xffensity"))
    with pytest.raises(InputError, match="text in UTF-8"):
        Log(data=str(path)).rounds(1)
