"""Tables inside of Excel and SQLite files, for simulations and for silos."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import Any, NamedTuple

from fastfed._containers import DAMAGED_ZIP
from fastfed._sqlite import MAGIC, copied
from fastfed._validate import InputError, nearest, show

_ZIP = b"PK\x03\x04"


class Sheet(NamedTuple):
    """A table inside of a file.

    Parameters
    ----------
    names : list of str
        Names of the columns; "" for a column of a sheet without a name.
    rows : list of (str, sequence)
        File and row for messages, and the cells.
    note : str
        A sentence for the certificate, if the file has other tables; else "".
    """

    names: list[str]
    rows: list[tuple[str, Sequence[Any]]]
    note: str = ""


def kind_of(data: bytes) -> str | None:
    """Return "excel" or "sqlite" for the bytes of such a file, None for others."""
    if data.startswith(MAGIC):
        return "sqlite"
    if not data.startswith(_ZIP):
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return "excel" if "xl/workbook.xml" in archive.namelist() else None
    except DAMAGED_ZIP:
        return None


def read_sheet(
    data: bytes, path: Path, name: str, sheet: str | None = None, table: str | None = None
) -> Sheet | None:
    """Read the table of an Excel or SQLite file.

    Parameters
    ----------
    data : bytes
        Content of the file, unpacked.
    path : Path
        The file. An SQLite file is read together with its write-ahead log.
    name : str
        What error messages call the file.
    sheet : str, optional
        The sheet of an Excel file; by default the first one.
    table : str, optional
        The table of an SQLite file, which may be left out if there is only one.

    Returns
    -------
    Sheet or None
        None for other kinds of files.

    Raises
    ------
    InputError
        If the file is damaged, the sheet or table does not exist, or a package is missing. The
        message does not quote cells.
    """
    kind = kind_of(data)
    for key, value, wanted, what in (
        ("sheet", sheet, "excel", "an Excel file"),
        ("table", table, "sqlite", "an SQLite file"),
    ):
        if value is not None and kind != wanted:
            raise InputError(f"{key} is only for {what}: leave it out for {name}")
    if kind == "excel":
        return _excel(data, name, sheet)
    return _sqlite(data, path, name, table) if kind == "sqlite" else None


# ---- Excel ---------------------------------------------------------------------------------------


def _excel(data: bytes, name: str, sheet: str | None) -> Sheet:
    """Return a sheet of an Excel file, by default the first one; ``data`` are the file's bytes.

    The first row with a value has the names of the columns. ``name`` is what error messages call
    the file.
    """
    try:
        import openpyxl  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            f"{name} is an Excel file, for which openpyxl is not installed: "
            "pip install 'fastfed[excel]', or save the table as CSV (UTF-8)"
        ) from None
    try:
        titles, rows = _cells(openpyxl, data, name, sheet, formulas=False)
        if any(cell is None for _, cells in rows for cell in cells):
            # A formula has no value if the program that wrote the file did not compute it.
            for number, cells in _cells(openpyxl, data, name, sheet, formulas=True)[1]:
                computed = dict(rows).get(number, ())
                for column, cell in enumerate(cells):
                    is_formula = isinstance(cell, str) and cell.startswith("=")
                    if is_formula and (column >= len(computed) or computed[column] is None):
                        raise InputError(
                            f"{name}, row {number}: a formula has no value: open the file in a "
                            "spreadsheet program and save it, or save the table as CSV (UTF-8)"
                        )
    except InputError:
        raise
    except Exception as error:  # openpyxl raises many kinds of errors for a damaged file
        raise InputError(
            f"{name} must be a whole Excel file, got damage ({type(error).__name__}): copy it "
            "again, or save the table as CSV (UTF-8)"
        ) from None
    chosen = titles[0] if sheet is None else sheet
    if not rows:
        raise InputError(f"{name}: sheet {show(chosen)} must hold a table, it is empty")
    width = max(i + 1 for _, cells in rows for i, cell in enumerate(cells) if cell is not None)
    padded = [(row, [*cells, *[None] * (width - len(cells))][:width]) for row, cells in rows]
    names = ["" if cell is None else str(cell) for cell in padded[0][1]]
    has_several_sheets = len(titles) > 1
    return Sheet(
        names,
        [(f"{name}, row {row}", cells) for row, cells in padded[1:]],
        f"{name}: sheet {show(chosen)} of {len(titles)} is read" if has_several_sheets else "",
    )


def _cells(
    openpyxl: Any, data: bytes, name: str, sheet: str | None, formulas: bool
) -> tuple[list[str], list[tuple[int, list[Any]]]]:
    """Return the names of all sheets, and the rows of one sheet as (row number, cells).

    Rows without a value are left out. With ``formulas``, cells with a formula have its text instead
    of its value.
    """
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=not formulas)
    with closing(book):
        titles = [worksheet.title for worksheet in book.worksheets]
        if not titles:
            raise InputError(f"{name} must hold a sheet with a table, got none")
        if sheet is not None and sheet not in titles:
            raise InputError(
                f"sheet must be one of {name}, got {show(sheet)}"
                + (nearest(sheet, titles) or f": it has {', '.join(titles[:20])}")
            )
        chosen = book[titles[0] if sheet is None else sheet]
        chosen.reset_dimensions()  # some programs write wrong ones
        rows = [
            (number, [_plain(cell, book.epoch) for cell in row])
            for number, row in enumerate(chosen.iter_rows(values_only=True), 1)
        ]
    return titles, [(n, cells) for n, cells in rows if any(cell is not None for cell in cells)]


def _plain(cell: Any, epoch: datetime) -> Any:
    """Return the value of a cell as the Excel file stores it.

    A date is a number of days since ``epoch``, and a blank text is None.
    """
    if isinstance(cell, datetime | date | time_of_day | timedelta):
        from openpyxl.utils.datetime import to_excel  # type: ignore[import-untyped]

        days = float(to_excel(cell, epoch))
        return int(days) if days.is_integer() else days
    if isinstance(cell, str) and not cell.strip():
        return None
    return cell


# ---- SQLite --------------------------------------------------------------------------------------


def _sqlite(data: bytes, path: Path, name: str, table: str | None) -> Sheet:
    """Read a table of the SQLite file at ``path``; by default its only table.

    ``data`` are the unpacked bytes of the file. They are used only if the file at ``path`` is
    compressed. ``name`` is what error messages call the file.
    """
    try:
        with open(path, "rb") as file:
            on_disk = file.read(len(MAGIC)) == MAGIC
        with closing(copied(path) if on_disk else _unpacked(data)) as database:
            # SQLite may read a truncated file as one with fewer rows.
            if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError
            query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
            all_tables = [row[0] for row in database.execute(query)]
            tables = [
                table_name
                for table_name in all_tables
                if not table_name.lower().startswith("sqlite_")
            ]
            if table is None and len(tables) != 1:
                content = f"{len(tables)}: {', '.join(tables[:20])}" if tables else "none"
                advice = ": name one as table" if tables else ""
                raise InputError(f"{name} must hold exactly one table, got {content}{advice}")
            if table is not None and table not in tables:
                raise InputError(
                    f"table must be one of {name}, got {show(table)}"
                    + (nearest(table, tables) or f": it has {', '.join(tables[:20])}")
                )
            chosen = tables[0] if table is None else table
            quoted = chosen.replace('"', '""')
            cursor = database.execute(f'SELECT * FROM "{quoted}"')
            names = [column[0] for column in cursor.description]
            rows = [(f"{name}, row {i}", row) for i, row in enumerate(cursor, 1)]
    except (sqlite3.Error, UnicodeError) as error:
        # The message of an error may quote a cell, such as text that is not UTF-8.
        raise InputError(
            f"{name} must be a whole SQLite file with text in UTF-8, got damage "
            f"({getattr(error, 'sqlite_errorname', type(error).__name__)}): copy it again, "
            "or write its text in UTF-8"
        ) from None
    for where, row in rows:
        if any(isinstance(cell, bytes) for cell in row):
            index = next(i for i, cell in enumerate(row) if isinstance(cell, bytes))
            raise InputError(f"{where}: column {show(names[index])} must hold no bytes (BLOB)")
    note = f"{name}: table {show(chosen)} of {len(tables)} is read" if len(tables) > 1 else ""
    return Sheet(names, rows, note)


def _unpacked(data: bytes) -> sqlite3.Connection:
    """Return a connection to a database in memory with the bytes of an SQLite file."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    # Bytes 18 and 19 of the header switch WAL mode off: an unpacked file has no log.
    database.deserialize(data[:18] + b"\1\1" + data[20:])
    return database
