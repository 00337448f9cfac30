"""Read tables of records as text: from CSV files, one file or one per silo, and from data frames.

A CSV file is in UTF-8, with or without a byte order mark. Cells are separated by commas,
semicolons, tabs or bars, whichever the header has most of outside of quotes. If these are not
commas, a number such as 1,5 has a decimal comma. pyarrow reads Parquet and Feather files. Narwhals
reads frames (pandas, polars, Arrow and others).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import is_normalized, normalize

from fastfed._cells import MISSING, NEW_MARKERS, NUMBER, code, is_missing
from fastfed._containers import (
    COMPRESSED,
    DamagedCsv,
    arrow_table,
    columnar,
    csv_rows,
    delimiter_of,
    file_content,
    is_utf_16,
    other_kind,
)
from fastfed._sheets import Sheet, kind_of, read_sheet
from fastfed._validate import InputError, nearest, show

#: A number in a cell with a decimal comma.
_WITH_COMMA = re.compile(r"[+-]?([0-9]+,?[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
#: Separators other than commas, and their names in messages.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
#: Endings of the files in a folder that are read as tables.
ENDINGS = (
    ".csv",
    ".tsv",
    *(table + ending for table in (".csv", ".tsv") for ending in COMPRESSED),
    ".parquet",
    ".feather",
    ".arrow",
)
#: Endings of files that may be documents beside the tables: read if a folder has no other tables.
_FURTHER_ENDINGS = (".zip", ".xlsx", ".sqlite")
#: Kinds of tables in messages.
_KINDS = ".csv, .tsv, .parquet, .feather, .xlsx, .sqlite"
#: Keys that name a part of a file, and what the part is.
FILE_PARTS = {"sheet": "sheet", "table": "table"}
#: Name of the column that is added to a table of several files or frames: the name of the file or
#: frame of each record.
SILO = "silo"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Parameters
    ----------
    path : str
        The file of the table, or what messages call the table.
    names : list of str
        Names of columns; "" for a column without a name.
    cells : list of list of str
        Cells of each record.
    where : list of str
        File and line of each record, for messages.
    notes : tuple of str
        Sentences for the certificate, if the table has an unusual separator or decimal commas.
    partial : dict of str to str
        For a table of several files or frames. For each column that only some of them have, it
        names one file or frame without this column.
    """

    path: str
    names: list[str]
    cells: list[list[str]]
    where: list[str]
    notes: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each column that has a name."""
        return {name: i for i, name in enumerate(self.names) if name}

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        position = self.positions[code(name)]
        return [row[position] for row in self.cells]

    def complete(self, role: str, name: str) -> list[str]:
        """Return the cells of a column; raise InputError if a cell is missing.

        ``role`` is what the column ``name`` is used for, such as "label", for error messages.
        """
        cells = self.column(name)
        for cell, where in zip(cells, self.where, strict=True):
            if cell in MISSING:
                raise InputError(
                    f"{where}: {role} {show(name)} must be given for every record, got {show(cell)}"
                    + (", which means missing" if cell else "")
                    + ": correct it, or leave such records out by where"
                )
        return cells

    def check_name(self, key: str, name: object) -> None:
        """Raise InputError unless ``name``, the value of the option ``key``, is a column."""
        if not isinstance(name, str) or code(name) not in self.positions:
            columns = list(self.positions)
            if isinstance(name, str) and code(name) in self.partial:
                raise InputError(
                    f"{key} must be a column of every table of {self.path}, got {show(name)}, "
                    f"which {self.partial[code(name)]} does not have"
                )
            hint = nearest(str(name), columns)
            if not hint:
                hint = "; it has " + ", ".join(columns[:20])
                if any(map(NUMBER.fullmatch, columns)):
                    hint += ": the first line must be a header"
            raise InputError(f"{key} must be a column of {self.path}, got {show(name)}{hint}")

    def is_numeric(self, name: str) -> bool:
        """Return True if a column holds only numbers and missing cells, and at least one number.

        Raises
        ------
        InputError
            If all cells are numbers or missing, but some are infinite.
        """
        cells = self.column(name)
        other_rows = [
            row for row, c in enumerate(cells) if c not in MISSING and not NUMBER.fullmatch(c)
        ]
        if not other_rows:
            return any(cell not in MISSING for cell in cells)
        if all(_INFINITE.fullmatch(cells[row]) for row in other_rows):
            self.refuse_infinite(name, other_rows[0])
        return False

    def refuse_infinite(self, name: str, row: int) -> None:
        """Raise InputError that names the cell in this column and row, which is not finite."""
        raise InputError(
            f"{self.where[row]}: column {show(name)} must be finite, "
            f"got {show(self.column(name)[row])}: correct the cell, or leave it empty if the value "
            "is missing"
        )

    def mixed(self, name: str) -> str:
        """Return where a column of mostly numbers first has a cell that is no number.

        The result is a text "file:line 'cell'". It is empty if such cells are half of all cells or
        more. Missing cells are not such cells. The column must have at least one such cell.
        """
        cells = self.column(name)
        text_rows = [
            row for row, c in enumerate(cells) if c not in MISSING and not NUMBER.fullmatch(c)
        ]
        return (
            f"{self.where[text_rows[0]]} {show(cells[text_rows[0]])}"
            if 2 * len(text_rows) < len(cells)
            else ""
        )


# ---- Reading -------------------------------------------------------------------------------------


def is_table(data: object) -> bool:
    """Return True if ``data`` is of a kind that `read_table` reads: files, a folder, or frames.

    `read_table` may still refuse the content.
    """
    if isinstance(data, (str, Path)):
        return os.path.exists(data)
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(path, (str, Path)) for path in data)
    return isinstance(data, Mapping) or _is_frame(data)


def has_several_tables(data: object) -> bool:
    """Return True for a folder, a list or a mapping: a table for each silo."""
    return isinstance(data, (list, tuple, Mapping)) or (
        isinstance(data, (str, Path)) and os.path.isdir(data)
    )


def read_table(
    data: Any, shared: bool = False, sheet: str | None = None, table: str | None = None
) -> Table:
    """Read a table.

    Parameters
    ----------
    data : path, list of paths, frame or mapping
        One file: CSV (.csv or .tsv), also compressed by gzip, bzip2, xz or zstd; Parquet, Feather,
        Excel (.xlsx) or SQLite; or a ZIP archive of one such file. Or one frame that narwhals
        supports, such as one of pandas, polars or Arrow. Or one table for each silo: a folder of
        files, a list of files, or a mapping of names to frames or files. A column "silo" with the
        names of the tables is then added.
    shared : bool
        True to keep the columns that all tables of silos have. By default all tables must have the
        same columns.
    sheet, table : str, optional
        The sheet of Excel files, by default the first one, and the table of SQLite files, which may
        be left out if there is only one.

    Returns
    -------
    Table
        The cells without surrounding blanks. Lines without any value are skipped.

    Raises
    ------
    InputError
        For files that cannot be read or are no tables, and for frames if narwhals is missing.
    """
    parts = sheet, table
    if isinstance(data, Mapping):
        check_mapping(data)
        tables = {str(name): read_table(part, False, *parts) for name, part in data.items()}
        return _combine(tables, "the tables of data", shared)
    if isinstance(data, (list, tuple)):
        files = [Path(part) for part in data]
        return _combine(_by_stem(files, *parts), "the files of data", shared)
    if not isinstance(data, (str, Path)):
        for key, value in (("sheet", sheet), ("table", table)):
            if value is not None:
                raise InputError(f"{key} is only for files, got {show(value)} for a data frame")
        return _read_frame(data)
    path = Path(data)
    if not os.path.isdir(path):
        return _read_file(path, *parts)
    visible = [p for p in sorted(path.iterdir()) if not p.name.startswith((".", "~$"))]
    for endings in (ENDINGS, _FURTHER_ENDINGS):
        if files := [p for p in visible if p.name.lower().endswith(endings)]:
            return _combine(_by_stem(files, *parts), str(path), shared)
    raise InputError(f"{path} must hold a table for each silo ({_KINDS}), has none")


def check_mapping(data: Mapping[Any, Any]) -> None:
    """Raise InputError unless all values of a mapping are tables, not columns."""
    for name, part in data.items():
        if not isinstance(part, (str, Path)) and not _is_frame(part):
            raise InputError(
                f"data must be a data frame, or a mapping of silos to tables, got a mapping of "
                f"{show(name)} to {show(part)}: make a frame of columns, such as "
                "pandas.DataFrame(data)"
            )


def digest_of(data: Any, sheet: str | None = None, table: str | None = None) -> str:
    """Return the SHA-256 of the bytes of a file, or of the names and cells of any other table.

    For an SQLite file, names and cells are hashed, since its write-ahead log may have rows that the
    file lacks. If earlier versions of fastfed read the bytes of a file in a different way, a fixed
    text is hashed after the bytes, so that the digest differs from theirs.
    """
    if isinstance(data, (str, Path)) and os.path.isfile(data):
        content = file_content(Path(data), str(data))
        if kind_of(content) != "sqlite":
            digest = hashlib.sha256(Path(data).read_bytes())
            if _read_differently(content):
                digest.update(b"\0missing values and texts as in the second reader")
            return digest.hexdigest()
    read = read_table(data, True, sheet, table)
    # A cell such as "N/A", which means missing but was a value in earlier versions, counts as "".
    cells = [["" if c in NEW_MARKERS else code(c) for c in row] for row in read.cells]
    return hashlib.sha256(repr((read.names, cells)).encode()).hexdigest()


#: A cell that earlier versions read as a value, between the ends of a cell in any CSV file.
_NEW_MARKER = re.compile(
    rb'(?:^|[,;\t|"\r\n])[ ]*(?:'
    + b"|".join(re.escape(marker.encode()) for marker in sorted(NEW_MARKERS))
    + rb')[ ]*(?:$|[,;\t|"\r\n])'
)


def _read_differently(data: bytes) -> bool:
    """Return True if earlier versions of fastfed read the bytes of this table differently."""
    if _NEW_MARKER.search(data):
        return True
    return not (data.isascii() or is_normalized("NFC", data.decode("utf-8", "replace")))


def _stem(name: str) -> str:
    """Return the name of a file without its endings."""
    tables = (".csv", ".tsv", ".txt", ".parquet", ".feather", ".arrow", ".xlsx", ".sqlite", ".db")
    for endings in ((".zip", *COMPRESSED), tables):
        ending = next((e for e in endings if name.lower().endswith(e)), "")
        name = name[: len(name) - len(ending)]
    return name


def _by_stem(
    files: Sequence[Path], sheet: str | None = None, table: str | None = None
) -> dict[str, Table]:
    """Read files; return the tables, keyed by file names without endings."""
    tables: dict[str, Table] = {}
    for file in files:
        name = code(_stem(file.name))
        if name in tables:
            raise InputError(f"files must differ in their names without endings, got {name} twice")
        tables[name] = _read_file(file, sheet, table)
    return tables


def _combine(parts: Mapping[str, Table], path: str, shared: bool) -> Table:
    """Return one table of the rows of several tables, one for each silo.

    A further column "silo" holds the name of each row's table.

    ``parts`` maps the names of silos to tables, and ``path`` is the name of the result in messages.
    With ``shared`` the result has the columns that all tables have. Otherwise all tables must have
    the same columns.
    """
    if not parts:
        raise InputError("data must hold a table for each silo, got none")
    first = next(iter(parts.values()))
    names = [n for n in first.names if all(n in part.names for part in parts.values())]
    all_names = {n for part in parts.values() for n in part.positions}
    for name, part in parts.items():
        if not shared and set(part.names) != set(first.names):
            differing = sorted(set(part.names) ^ set(first.names))
            raise InputError(
                f"tables must have the same columns, got {show(differing[0])} in only one of "
                f"{first.path} and {part.path}: name the columns that all have in columns"
            )
        if SILO in part.positions:
            raise InputError(
                f'{part.path}: a column "{SILO}" with the names of the tables is added: '
                "rename the column of this name"
            )
        if not name:
            raise InputError("tables of silos must have names, got an empty one")
    order = {name: [p.names.index(n) for n in names] for name, p in parts.items()}
    return Table(
        path,
        [*names, SILO],
        [
            [*(row[i] for i in order[name]), name]
            for name, part in parts.items()
            for row in part.cells
        ],
        [where for part in parts.values() for where in part.where],
        tuple(dict.fromkeys(note for part in parts.values() for note in part.notes)),
        {n: p.path for p in parts.values() for n in all_names if n not in p.positions},
    )


# ---- CSV files -----------------------------------------------------------------------------------


def _read_file(path: Path, sheet: str | None = None, table: str | None = None) -> Table:
    """Read a table from a file: CSV, Parquet, Feather, Excel or SQLite."""
    if not os.path.isfile(path):
        raise InputError(f"{path} must be a table ({_KINDS}), there is no such file")
    data = file_content(path, str(path))
    content = read_sheet(data, path, str(path), sheet, table)
    if content is not None:
        return _sheet_table(path, content)
    kind = columnar(data)
    if kind is not None:
        frame = _read_frame(arrow_table(data, kind, str(path)))
        where = [f"{path}, row {row}" for row in range(1, len(frame.cells) + 1)]
        return replace(frame, path=str(path), where=where)
    return _csv_table(path, data)


def _sheet_table(path: Path, content: Sheet) -> Table:
    """Return the content of an Excel or SQLite file as a table of text."""
    names = [code(name) for name in content.names]
    _check_names(str(path), names)
    rows = [(where, [_cell_text(cell) for cell in cells]) for where, cells in content.rows]
    rows = [(where, cells) for where, cells in rows if any(cells)]
    if not rows:
        raise InputError(f"{path} must hold a header and at least one record, got only a header")
    notes = (content.note,) if content.note else ()
    return Table(str(path), names, [row for _, row in rows], [where for where, _ in rows], notes)


def _csv_table(path: Path, data: bytes) -> Table:
    """Return the table in the bytes of a CSV file; ``path`` names the file in messages."""
    text = _decoded_text(path, data)
    separator = delimiter_of(text)
    rows = list(_numbered_rows(path, text, separator))
    if len(rows) < 2:
        content = "only a header" if rows else "an empty file"
        raise InputError(f"{path} must hold a header and at least one record, got {content}")
    (line, names), records = rows[0], rows[1:]
    _check_names(f"{path}:{line}", names)
    for line, row in records:
        if len(row) != len(names):
            raise InputError(
                f"{path}:{line}: expected {len(names)} cells as in the header, got {len(row)}: "
                + _advice_on_cell_count(separator, row)
            )
    table = Table(
        str(path), names, [row for _, row in records], [f"{path}:{n}" for n, _ in records]
    )
    if separator == ",":
        return table
    note = f"{path.name} is read with {_SEPARATORS[separator]} between cells"
    for name in table.positions:
        _refuse_mixed_decimals(table, name)
    commas = [name for name in table.positions if _decimal_commas(table.column(name))]
    if commas:
        note += f" and decimal commas in {', '.join(commas[:10])}{', ...' if commas[10:] else ''}"
        positions = {table.positions[name] for name in commas}
        cells = [
            [c.replace(",", ".") if i in positions else c for i, c in enumerate(row)]
            for row in table.cells
        ]
        table = replace(table, cells=cells)
    return replace(table, notes=(note,))


def _advice_on_cell_count(separator: str, row: list[str]) -> str:
    """Return advice on a record that has more or fewer cells than the header."""
    if len(row) == 1:
        row_separator = max([",", *_SEPARATORS], key=row[0].count)
        if row_separator in row[0]:
            names = {",": "commas", **_SEPARATORS}
            return (
                f"the header has {names[separator]} between cells, this line {names[row_separator]}"
            )
    semicolons = " (decimal commas need semicolons between cells)" if separator == "," else ""
    return f"put a cell that holds the separator in double quotes{semicolons}"


def _check_names(where: str, names: Sequence[str]) -> None:
    """Raise InputError if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        raise InputError(f"{where}: column names must differ, got {show(repeated[0])} twice")


def _refuse_mixed_decimals(table: Table, name: str) -> None:
    """Raise InputError for a column of numbers that has decimal commas and decimal points."""
    cells = table.column(name)
    with_comma = [row for row, c in enumerate(cells) if "," in c and _WITH_COMMA.fullmatch(c)]
    cells_without_comma = [c for c in cells if c not in MISSING and "," not in c]
    points = sum("." in c for c in cells_without_comma)
    if with_comma and points and all(NUMBER.fullmatch(c) for c in cells_without_comma):
        row = with_comma[0]
        raise InputError(
            f"{table.where[row]}: column {show(name)} must have decimal points or decimal commas, "
            f"got {show(cells[row])} among {points} with points"
        )


def _decimal_commas(cells: list[str]) -> bool:
    """Return True if all present cells are numbers with decimal commas, and some have a comma."""
    present = [cell for cell in cells if cell not in MISSING]
    return any("," in c for c in present) and all(_WITH_COMMA.fullmatch(c) for c in present)


def _decoded_text(path: Path, data: bytes) -> str:
    """Return the text of a decompressed CSV file."""
    kind = other_kind(data, path.name)
    if is_utf_16(data):
        kind = "text in UTF-16: save it in UTF-8"
    if kind is not None:
        raise InputError(f"{path} must be CSV in UTF-8, got {kind}")
    try:
        text = data.decode("utf-8-sig")
        return text if text.isascii() else normalize("NFC", text)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} must be UTF-8 text, got byte {byte:#04x}: save it in UTF-8"
        ) from None


def _numbered_rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the stripped cells of every record that is not blank."""
    try:
        for line, row in csv_rows(text, separator):
            if any("\0" in cell for cell in row):
                raise InputError(f"{path}:{line}: must be text, got a NUL byte")
            yield line, row
    except DamagedCsv as error:
        raise InputError(
            f"{path}:{error.line}: must be CSV, got damage: {error} (is a closing quotation mark "
            "missing?)"
        ) from None


#: What to do with objects that are not tables in memory, by the name of their class.
_ADVICE_BY_CLASS = {
    "LazyFrame": ": collect() it first",
    "RecordBatchReader": ": read_all() it first",
    "Series": ": a single column is no frame, to_frame() makes it a frame",
}

# ---- Frames --------------------------------------------------------------------------------------


def _is_frame(data: object) -> bool:
    """Return True if an object has named columns, as all frames have.

    narwhals later checks whether the object is a frame.
    """
    # Look at the class first: reading `columns` of a polars LazyFrame warns and may take long.
    names = "__dataframe__", "__arrow_c_stream__", "columns"
    return any(hasattr(type(data), name) for name in names) or hasattr(data, "columns")


def _read_frame(frame: Any) -> Table:
    """Return a frame as a table of text: numbers with all digits, "" for missing values."""
    try:
        import narwhals
    except ImportError:
        raise InputError(
            "data frames need narwhals, which is not installed: pip install fastfed[data]"
        ) from None
    try:
        wrapped = narwhals.from_native(frame, eager_only=True)
        invalid = [name for name in wrapped.columns if not isinstance(name, (str, int))]
    except TypeError:
        kind = f"{type(frame).__module__}.{type(frame).__name__}"
        raise InputError(
            f"data must be a table in memory, such as one of pandas, polars or Arrow, got {kind}"
            f"{_ADVICE_BY_CLASS.get(type(frame).__name__, '')}"
        ) from None
    except ValueError as error:  # narwhals found names that are not unique
        raise InputError(
            f"data must have columns of different names: {' '.join(str(error).split())}"
        ) from None
    if invalid:
        raise InputError(
            f"data must have columns of one level, with a text as name, got {show(invalid[0])}: "
            "make the names flat"
        )
    names = [code(str(name)) for name in wrapped.columns]
    _check_names("data", names)
    if not len(wrapped):
        raise InputError("data must hold at least one record, got a table without rows")
    columns = []
    for name in wrapped.columns:
        if wrapped[name].dtype.is_nested():
            kind = str(wrapped[name].dtype).split("(")[0].lower()
            raise InputError(
                f"data: column {show(name)} must hold numbers or texts, got a {kind} in each cell: "
                "make a column of each part, or leave it out"
            )
        absent = wrapped[name].is_null().to_list()
        columns.append(_cell_texts(wrapped[name].to_list(), absent))
    return Table(
        "the table",
        names,
        [list(row) for row in zip(*columns, strict=True)],
        [f"the table's row {row}" for row in range(len(wrapped))],
    )


def _cell_texts(values: list[Any], absent: list[bool]) -> list[str]:
    """Return the cells of a column as text; equal values of one type are converted once."""
    text_by_value: dict[tuple[type, Any], str] = {}
    texts = []
    for value, missing in zip(values, absent, strict=True):
        if missing:
            texts.append("")
            continue
        key = type(value), value
        try:
            text = text_by_value.get(key)
        except TypeError:  # a value that has no hash
            text, key = None, (type(value), id(value))
        if text is None:
            text = text_by_value[key] = _cell_text(value)
        texts.append(text)
    return texts


def _cell_text(value: Any) -> str:
    """Return the value of a cell as text: numbers with all digits, and "" for NaN."""
    if is_missing(value, (str(value),)):
        return ""
    # Truth values become the words "True" and "False", as in CSV files and in earlier versions.
    return str(value) if isinstance(value, bool) else code(value)
