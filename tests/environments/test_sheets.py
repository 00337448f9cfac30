"""ZIP archives, Excel and SQLite files give the records of the CSV file with the same cells."""

from __future__ import annotations

import csv
import gzip
import io
import sqlite3
import sys
import zipfile
from contextlib import closing
from datetime import date, datetime
from pathlib import Path

import pytest
import records

from fastfed._validate import InputError
from fastfed.deployment.data import cases, source_of
from fastfed.environments import Classification
from fastfed.environments.tables import digest_of, read_table

TEXT = "age,pain,sex,num\n30,1,m,0\n45.5,none,f,1\n,2,f,1\n60,1,m,0\n"
ROWS = [[30, "1", "m", 0], [45.5, "none", "f", 1], [None, "2", "f", 1], [60, "1", "m", 0]]
SCHEMA = records.schema({**records.AGE, "fill": 50}, records.PAIN, records.SEX)
HEADER = ["age", "pain", "sex", "num"]


def zipped(path, **members):
    """Write a ZIP archive with these members, and return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def database(path, tables=("visits",), wal=False):
    """Write an SQLite file with these tables, and return its path."""
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        for name in (each.replace('"', '""') for each in tables):
            connection.execute(
                f'CREATE TABLE "{name}" (age REAL, pain TEXT, sex TEXT, num INTEGER)'
            )
            connection.executemany(f'INSERT INTO "{name}" VALUES (?, ?, ?, ?)', ROWS)
        connection.commit()
    return path


def workbook(path, *sheets, **cells):
    """Write an Excel file with these sheets and cells, and return its path."""
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets or [("Sheet1", [HEADER, *ROWS])]:
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    for place, value in cells.items():
        book.worksheets[0][place] = value
    book.save(path)
    return path


def oracle(text=TEXT):
    """Return the names and cells that the csv module reads."""
    names, *rows = csv.reader(io.StringIO(text))
    return names, rows


MAKERS = {
    "zip": lambda p: zipped(p / "t.zip", **{"t.csv": TEXT}),
    "zip with a folder and notes": lambda p: zipped(
        p / "t.zip", **{"d/t.csv": TEXT, "readme.txt": "x", "__MACOSX/d/._t.csv": "x"}
    ),
    "zip of one file of another name": lambda p: zipped(p / "t.zip", **{"table": TEXT}),
    "zip of gzip": lambda p: zipped(p / "t.zip", **{"t.csv.gz": gzip.compress(TEXT.encode())}),
    "zip of sqlite": lambda p: zipped(
        p / "t.zip", **{"t.db": database(p / "inner.db", wal=True).read_bytes()}
    ),
    "sqlite": lambda p: database(p / "t.sqlite"),
    "sqlite without an ending": lambda p: database(p / "t"),
    "excel": lambda p: workbook(p / "t.xlsx"),
    "excel without an ending": lambda p: workbook(p / "t.xlsx").rename(p / "t"),
    "excel with empty rows": lambda p: workbook(
        p / "t.xlsx", ("a", [[], [None] * 4, HEADER, *ROWS[:2], [" "], *ROWS[2:]])
    ),
    "zip of excel": lambda p: zipped(
        p / "t.zip", **{"t.xlsx": workbook(p / "i.xlsx").read_bytes()}
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_simulation_and_a_silo_read_the_same_records(tmp_path, kind):
    path = MAKERS[kind](tmp_path)
    table = read_table(path)
    assert (table.names, table.cells) == oracle()
    environment = Classification(data=str(path), label="num", coding="blocks")
    plain = tmp_path / "plain.csv"
    plain.write_text(TEXT)
    wanted = Classification(data=str(plain), label="num", coding="blocks").pool(2)
    assert (environment.pool(2).values == wanted.values).all()
    records = cases(source_of({"file": path.name}, tmp_path), SCHEMA)
    by_csv = cases(source_of({"file": "plain.csv"}, tmp_path), SCHEMA)
    assert len(records) == len(by_csv) == 4
    for case, other in zip(records, by_csv, strict=True):
        context = SCHEMA.records.context
        assert list(context(case.record)) == list(context(other.record))
        assert str(case.outcome) == str(other.outcome)


def test_dates_of_excel_stay_numbers(tmp_path):
    day = date(2024, 2, 29)
    rows = [["day", "moment", "y"], [day, datetime(2024, 2, 29, 12), 1], [day, day, 0]]
    table = read_table(workbook(tmp_path / "t.xlsx", ("a", rows)))
    serial = (day - date(1899, 12, 30)).days
    assert table.cells == [[f"{serial}", f"{serial}.5", "1"], [f"{serial}", f"{serial}", "0"]]


def test_a_sheet_and_a_table_are_chosen_by_name(tmp_path):
    book = workbook(tmp_path / "t.xlsx", ("old", [["x"], [1]]), ("new", [HEADER, *ROWS]))
    first = read_table(book)
    assert first.names == ["x"] and "sheet 'old' of 2 is read" in first.notes[0]
    assert (read_table(book, sheet="new").names, read_table(book, sheet="new").cells) == oracle()
    with pytest.raises(InputError, match=r"sheet must be one of .*t.xlsx, got 'neu'; did you mean"):
        read_table(book, sheet="neu")
    spec = Classification(data=str(book), label="num", sheet="new")
    assert spec.pool(2).queries == 4 and spec.describe()["sheet"] == "new"


def test_one_of_several_sqlite_tables_must_be_named(tmp_path):
    path = database(tmp_path / "t.db", ("visits", 'odd "name'))
    with pytest.raises(InputError, match=r"exactly one table, got 2: visits, odd .name: name one"):
        read_table(path)
    table = read_table(path, table='odd "name')
    assert table.cells == oracle()[1] and "of 2 is read" in table.notes[0]
    with pytest.raises(InputError, match=r"table must be one of .*, got 'visit'; did you mean"):
        read_table(path, table="visit")
    source = source_of({"file": "t.db", "table": "visits"}, tmp_path)
    assert len(cases(source, SCHEMA)) == 4


def test_rows_in_the_write_ahead_log_are_read_and_change_the_digest(tmp_path):
    path = database(tmp_path / "t.db", wal=True)
    before = digest_of(str(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO visits VALUES (50, '2', 'm', 1)")
        connection.commit()
        assert (tmp_path / "t.db-wal").stat().st_size > 0
        assert len(read_table(path).cells) == 5
        assert digest_of(str(path)) != before


def test_a_folder_of_excel_files_has_a_silo_for_each(tmp_path):
    for name in ("north", "south"):
        workbook(tmp_path / f"{name}.xlsx")
    (tmp_path / "~$north.xlsx").write_bytes(b"lock")
    assert read_table(tmp_path).column("silo") == ["north"] * 4 + ["south"] * 4


def damaged(path, share=0.6):
    """Cut a file to a share of its length, and return its path."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


MISTAKES = {
    "two tables": (
        lambda p: zipped(p / "t.zip", **{"a.csv": TEXT, "b.csv": TEXT}),
        r"t.zip must hold exactly one table, got 2 \(a.csv, b.csv\): unpack it",
    ),
    "no table among files": (
        lambda p: zipped(p / "t.zip", **{"a.doc": "x", "b.doc": "y"}),
        r"t.zip must hold exactly one table, got 0 \(a.doc, b.doc\)",
    ),
    "nothing": (lambda p: zipped(p / "t.zip"), "must"),
    "a zip in a zip": (
        lambda p: zipped(p / "t.zip", a=zipped(p / "i.zip", **{"t.csv": TEXT}).read_bytes()),
        "got a ZIP archive: unpack it",
    ),
    "half a zip": (lambda p: damaged(MAKERS["zip"](p)), "must be a whole ZIP archive"),
    "half a workbook": (lambda p: damaged(workbook(p / "t.xlsx")), "must be a whole Excel file"),
    "half a database": (lambda p: damaged(database(p / "t.db")), "must be a whole SQLite file"),
    "no table": (lambda p: database(p / "t.db", ()), r"(exactly one table|empty|SQLite)"),
    "an empty sheet": (lambda p: workbook(p / "t.xlsx", ("a", [])), "sheet 'a' must hold a table"),
    "only a header": (lambda p: workbook(p / "t.xlsx", ("a", [HEADER])), "got only a header"),
    "two columns of a name": (
        lambda p: workbook(p / "t.xlsx", ("a", [["x", "x"], [1, 2]])),
        "column names must differ",
    ),
    "a formula without a value": (
        lambda p: workbook(p / "t.xlsx", A2="=1+1"),
        "row 2: a formula has no value: open the file",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes(tmp_path, kind):
    make, message = MISTAKES[kind]
    path = make(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_bytes_and_broken_text_of_a_database_are_never_quoted(tmp_path):
    for value in ("x'ff00'", "CAST(x'6869ff' AS TEXT)"):
        path = tmp_path / "t.db"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t (a, y)")
            connection.execute(f"INSERT INTO t VALUES ({value}, 1)")
            connection.commit()
        with pytest.raises(InputError, match=r"no bytes|text in UTF-8") as caught:
            read_table(path)
        assert "hi" not in str(caught.value).replace("which", "")


def test_keys_are_only_for_files_of_their_kind(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TEXT)
    with pytest.raises(
        InputError, match=r"sheet is only for an Excel file: leave it out for .*t.csv"
    ):
        read_table(path, sheet="a")
    with pytest.raises(InputError, match="table is only for an SQLite file"):
        Classification(data=str(path), label="num", table="a").pool(2)
    with pytest.raises(InputError, match='sheet must be left out with data "digits"'):
        Classification(data="digits", sheet="a")
    with pytest.raises(InputError, match="table is only for file"):
        source_of({"database": "x.db", "query": "SELECT 1", "table": "a"})


def test_without_openpyxl_the_message_says_what_to_install(tmp_path, monkeypatch):
    # Enough of a workbook to be recognised.
    path = zipped(tmp_path / "t", **{"[Content_Types].xml": "<a/>", "xl/workbook.xml": "<a/>"})
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match="an Excel file, for which openpyxl is not installed"):
        read_table(path)
    with pytest.raises(InputError, match=r"t is an Excel file, .*fastfed\[excel\]"):
        cases(source_of({"file": str(Path(path))}), SCHEMA)
