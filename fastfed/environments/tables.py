"""Tables of records as text: CSV files of any dialect, one file or one per silo, and data frames.

A CSV file is in UTF-8, with or without a byte order mark. Cells are separated by commas if its
header has one, else by semicolons, tabs or bars, whichever the header has most of; where they are
not separated by commas a column of numbers such as 1,5 has decimal commas. Frames (pandas, polars,
Arrow and others) are read by narwhals.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, nearest, show

#: Cells that mean a missing value.
MISSING = frozenset({"", "?", "NA", "nan", "NaN", "NAN"})
#: A number as cells have it; also with a decimal comma.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_WITH_COMMA = re.compile(r"[+-]?([0-9]+,?[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
#: Other separators than commas, and what they are called.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
#: Endings of files that are tables.
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
#: The column of a table made of several files or frames: which of them a record is of.
SILO = "silo"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Parameters
    ----------
    path : str
        Its file, or what it is called in messages.
    names : list of str
        Names of columns; "" for those without one.
    cells : list of list of str
        Cells of each record.
    where : list of str
        File and line of each record, for messages.
    notes : tuple of str
        How it was read, where not as usual.
    """

    path: str
    names: list[str]
    cells: list[list[str]]
    where: list[str]
    notes: tuple[str, ...] = ()

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each column that has a name."""
        return {name: i for i, name in enumerate(self.names) if name}

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        at = self.positions[name]
        return [row[at] for row in self.cells]

    def complete(self, role: str, name: str) -> list[str]:
        """Return the cells of a column; InputError if one is missing."""
        cells = self.column(name)
        for cell, where in zip(cells, self.where, strict=True):
            if cell in MISSING:
                raise InputError(
                    f"{where}: {role} {show(name)} must be given for every record, got {show(cell)}"
                )
        return cells

    def check_name(self, key: str, name: object) -> None:
        """Raise InputError unless name is a column."""
        if not isinstance(name, str) or name not in self.positions:
            named = list(self.positions)
            hint = nearest(str(name), named) or "; it has " + ", ".join(named[:20])
            if named and all(NUMBER.fullmatch(one) or one in MISSING for one in named[:2]):
                hint += ": the first line must be a header"
            raise InputError(f"{key} must be a column of {self.path}, got {show(name)}{hint}")

    def numbers(self, name: str) -> bool:
        """Return True if a column holds numbers alone, and some.

        Raises
        ------
        InputError
            If but for infinite ones it does.
        """
        cells = self.column(name)
        odd = [at for at, c in enumerate(cells) if c not in MISSING and not NUMBER.fullmatch(c)]
        if not odd:
            return any(cell not in MISSING for cell in cells)
        if all(_INFINITE.fullmatch(cells[at]) for at in odd):
            self.refuse_infinite(name, odd[0])
        return False

    def refuse_infinite(self, name: str, row: int) -> None:
        """Raise InputError for a number that is not finite."""
        raise InputError(
            f"{self.where[row]}: column {show(name)} must be finite, "
            f"got {show(self.column(name)[row])}: correct the cell, or leave it empty if the value "
            "is missing"
        )

    def mixed(self, name: str) -> str:
        """Return where a column that is mostly numbers has a text; "" for other columns."""
        cells = self.column(name)
        odd = [at for at, c in enumerate(cells) if c not in MISSING and not NUMBER.fullmatch(c)]
        return f"{self.where[odd[0]]} {show(cells[odd[0]])}" if 2 * len(odd) < len(cells) else ""


# ---- Reading -------------------------------------------------------------------------------------


def is_table(data: object) -> bool:
    """Return True if `read_table` takes it: files, a folder, frames; it may still be refused."""
    if isinstance(data, (str, Path)):
        return os.path.exists(data)
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(one, (str, Path)) for one in data)
    return isinstance(data, Mapping) or _is_frame(data)


def read_table(data: Any) -> Table:
    """Read a table.

    Parameters
    ----------
    data : path, list of paths, frame or mapping
        A CSV file (.csv or .tsv, also .gz); a folder, a list of files, or a mapping of names to
        frames or files, one for each silo, to which a column "silo" with their names is added; or
        a frame that narwhals knows, such as one of pandas, polars or Arrow.

    Returns
    -------
    Table
        Its cells, stripped; blank lines are skipped.

    Raises
    ------
    InputError
        For files that cannot be read or are no tables, and frames without narwhals.
    """
    if isinstance(data, Mapping):
        named = {str(name): read_table(one) for name, one in data.items()}
        return _one_of(named, "the tables of data")
    if isinstance(data, (list, tuple)):
        return _one_of(_by_stem([Path(one) for one in data]), "the files of data")
    if not isinstance(data, (str, Path)):
        return _of_frame(data)
    path = Path(data)
    if not os.path.isdir(path):
        return _of_file(path)
    files = sorted(p for p in path.iterdir() if p.name.lower().endswith(ENDINGS))
    if not files:
        raise InputError(f"{path} must hold a table for each silo ({', '.join(ENDINGS)}), has none")
    return _one_of(_by_stem(files), str(path))


def digest_of(data: Any) -> str:
    """Return the SHA-256 of what a table is made of: its file's bytes, or names and cells."""
    if isinstance(data, (str, Path)) and os.path.isfile(data):
        return hashlib.sha256(Path(data).read_bytes()).hexdigest()
    table = read_table(data)
    return hashlib.sha256(repr((table.names, table.cells)).encode()).hexdigest()


def _by_stem(files: Sequence[Path]) -> dict[str, Table]:
    """Return the tables of files, by their names without endings."""
    found: dict[str, Table] = {}
    for file in files:
        name = file.name.split(".")[0]
        if name in found:
            raise InputError(f"files must differ in their names without endings, got {name} twice")
        found[name] = _of_file(file)
    return found


def _one_of(parts: Mapping[str, Table], path: str) -> Table:
    """Return one table of those of all silos, with a column of their names."""
    if not parts:
        raise InputError("data must hold a table for each silo, got none")
    first = next(iter(parts.values()))
    for name, part in parts.items():
        if set(part.names) != set(first.names):
            odd = sorted(set(part.names) ^ set(first.names))
            raise InputError(
                f"tables must have the same columns, got {show(odd[0])} in one of {first.path} "
                f"and {part.path} alone"
            )
        if SILO in part.positions:
            raise InputError(
                f'{part.path}: a column "{SILO}" is added with the names of the tables: '
                "rename the one that is there"
            )
        if not name:
            raise InputError("tables of silos must have names, got an empty one")
    order = {name: [p.names.index(n) for n in first.names] for name, p in parts.items()}
    return Table(
        path,
        [*first.names, SILO],
        [
            [*(row[i] for i in order[name]), name]
            for name, part in parts.items()
            for row in part.cells
        ],
        [where for part in parts.values() for where in part.where],
        tuple(dict.fromkeys(note for part in parts.values() for note in part.notes)),
    )


# ---- CSV files -----------------------------------------------------------------------------------


def _of_file(path: Path) -> Table:
    if not os.path.isfile(path):
        raise InputError(f"{path} must be a table ({', '.join(ENDINGS)}), there is no such file")
    text = _text(path)
    used = _separator(text)
    rows = list(_rows(path, text, used))
    if len(rows) < 2:
        found = "a header alone" if rows else "an empty file"
        raise InputError(f"{path} must hold a header and at least one record, got {found}")
    (line, names), records = rows[0], rows[1:]
    _check_names(f"{path}:{line}", names)
    for line, row in records:
        if len(row) != len(names):
            raise InputError(
                f"{path}:{line}: expected {len(names)} cells as in the header, got {len(row)}: "
                + _remedy(used, row)
            )
    table = Table(
        str(path), names, [row for _, row in records], [f"{path}:{n}" for n, _ in records]
    )
    if used == ",":
        return table
    note = f"{path.name} is read with {_SEPARATORS[used]} between cells"
    for name in table.positions:
        _refuse_both_marks(table, name)
    commas = [name for name in table.positions if _decimal_commas(table.column(name))]
    if commas:
        note += f" and decimal commas in {', '.join(commas[:10])}{', ...' if commas[10:] else ''}"
        at = {table.positions[name] for name in commas}
        cells = [
            [c.replace(",", ".") if i in at else c for i, c in enumerate(row)]
            for row in table.cells
        ]
        table = replace(table, cells=cells)
    return replace(table, notes=(note,))


def _remedy(separator: str, row: list[str]) -> str:
    """What to do about a record with more or fewer cells than the header."""
    if len(row) == 1:
        other = max([",", *_SEPARATORS], key=row[0].count)
        if other in row[0]:
            named = {",": "commas", **_SEPARATORS}
            return f"the header has {named[separator]} between cells, this line {named[other]}"
    semicolons = " (decimal commas need semicolons between cells)" if separator == "," else ""
    return f"put a cell that holds the separator in double quotes{semicolons}"


def _check_names(where: str, names: Sequence[str]) -> None:
    twice = [name for name, many in Counter(names).items() if name and many > 1]
    if twice:
        raise InputError(f"{where}: column names must differ, got {show(twice[0])} twice")


def _refuse_both_marks(table: Table, name: str) -> None:
    """Raise InputError for a column of numbers with decimal commas and decimal points."""
    cells = table.column(name)
    with_comma = [at for at, c in enumerate(cells) if "," in c and _WITH_COMMA.fullmatch(c)]
    others = [c for c in cells if c not in MISSING and "," not in c]
    points = sum("." in c for c in others)
    if with_comma and points and all(NUMBER.fullmatch(c) for c in others):
        at = with_comma[0]
        raise InputError(
            f"{table.where[at]}: column {show(name)} must have decimal points or decimal commas, "
            f"got {show(cells[at])} among {points} with points"
        )


def _decimal_commas(cells: list[str]) -> bool:
    present = [cell for cell in cells if cell not in MISSING]
    return any("," in c for c in present) and all(_WITH_COMMA.fullmatch(c) for c in present)


#: How files begin that are no text, and what to do with them.
_BINARY = {
    b"PK\x03\x04": "an Excel file or another archive: save the table as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the table as CSV (UTF-8)",
    b"PAR1": "a Parquet file: read it as a frame, such as pandas.read_parquet makes, in Python",
    b"\xff\xfe": "text in UTF-16: save it in UTF-8",
    b"\xfe\xff": "text in UTF-16: save it in UTF-8",
}


def _text(path: Path) -> str:
    """Return the text of a file."""
    try:
        data = path.read_bytes()
        for start, kind in _BINARY.items():
            if data.startswith(start):
                raise InputError(f"{path} must be CSV in UTF-8, got {kind}")
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} must be UTF-8 text, got byte {byte:#04x}: save it in UTF-8"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} must be a whole gzip file, got damage: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _separator(text: str) -> str:
    """Return what is between the cells of a file, by its header without what is in quotes."""
    lines = (line for line in io.StringIO(text, newline=None) if line.strip(' \t\n,;|"'))
    header = "".join(next(lines, "").split('"')[::2])
    if "," in header:
        return ","
    most = max(_SEPARATORS, key=header.count)
    return most if most in header else ","


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, stripped cells) of every record that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if any("\0" in cell for cell in row):
                raise InputError(f"{path}:{reader.line_num}: must be text, got a NUL byte")
            if any(cell.strip() for cell in row):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise InputError(
            f"{path}:{reader.line_num}: must be CSV, got damage: {error} (is a quotation mark "
            "left open?)"
        ) from None


#: What to do with tables that are not in memory.
_IN_MEMORY = {
    "LazyFrame": ": collect() it first",
    "RecordBatchReader": ": read_all() it first",
    "Series": ": a column alone is no frame, to_frame() makes it one",
}

# ---- Frames --------------------------------------------------------------------------------------


def _is_frame(data: object) -> bool:
    """Return True for what has columns by name, as all frames have; narwhals decides later."""
    # Of the class: to ask a polars LazyFrame for its columns warns, and may take long.
    names = "__dataframe__", "__arrow_c_stream__", "columns"
    return any(hasattr(type(data), name) for name in names) or hasattr(data, "columns")


def _of_frame(frame: Any) -> Table:
    """Return the cells of a frame as text: numbers in full, missing values empty."""
    try:
        import narwhals
    except ImportError:
        raise InputError(
            "data frames need narwhals, which is not installed: pip install fastfed[data]"
        ) from None
    try:
        known = narwhals.from_native(frame, eager_only=True)
        odd = [name for name in known.columns if not isinstance(name, (str, int))]
    except TypeError:
        kind = f"{type(frame).__module__}.{type(frame).__name__}"
        raise InputError(
            f"data must be a table in memory, such as one of pandas, polars or Arrow, got {kind}"
            f"{_IN_MEMORY.get(type(frame).__name__, '')}"
        ) from None
    except ValueError as error:  # names that are not unique, by narwhals' own check
        raise InputError(
            f"data must have columns of different names: {' '.join(str(error).split())}"
        ) from None
    if odd:
        raise InputError(
            f"data must have columns of one level, with a text as name, got {show(odd[0])}: make "
            "the names flat"
        )
    names = [str(name).strip() for name in known.columns]
    _check_names("data", names)
    if not len(known):
        raise InputError("data must hold at least one record, got a table without rows")
    columns = []
    for name in known.columns:
        if known[name].dtype.is_nested():
            kind = str(known[name].dtype).split("(")[0].lower()
            raise InputError(
                f"data: column {show(name)} must hold numbers or texts, got a {kind} in each cell: "
                "make a column of each part, or leave it out"
            )
        absent = known[name].is_null().to_list()
        values = known[name].to_list()
        columns.append(["" if gone else _cell(v) for v, gone in zip(values, absent, strict=True)])
    return Table(
        "the table",
        names,
        [list(row) for row in zip(*columns, strict=True)],
        [f"the table's row {row}" for row in range(len(known))],
    )


def _cell(value: Any) -> str:
    """Return a value as text, numbers in full; "" for NaN."""
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        whole = math.isfinite(value) and value == int(value) and abs(value) < 2**53
        return str(int(value)) if whole else repr(value)
    return str(value).strip()
