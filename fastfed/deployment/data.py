"""Read a silo's table (a CSV or Parquet file, or a database query) as records of its plan.

A `Source`, a TOML file of the silo, describes the table: where it is, how its columns and codes are
named, and which columns have times. `cases` reads all rows, and refuses the table if a row does not
fit the plan's schema.
"""

from __future__ import annotations

import codecs
import re
import sqlite3
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fastfed._cells import check_time_format, is_missing, matched, other_unit, plain_name, seconds
from fastfed._containers import (
    DamagedCsv,
    arrow_table,
    columnar,
    csv_rows,
    delimiter_of,
    file_content,
    is_utf_16,
    other_kind,
)
from fastfed._sheets import read_sheet
from fastfed._system import type_error
from fastfed._validate import InputError, check_plain, is_line, nearest, number, parsed, show
from fastfed.deployment.schema import Records, Schema

#: The decimals of a whole number that is written with a decimal comma, such as ",0" in "4,0".
_ZERO_DECIMALS = re.compile(r"(?<=\d),0+\s*$", re.ASCII)

#: The key of `Source.codes` for the column of actions.
ACTION = "action"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a silo's table is, and how its columns and codes map to the plan's.

    Keys of the dicts are names in the plan, unless noted otherwise.

    Parameters
    ----------
    file : str, optional
        A CSV file (which may be compressed by gzip, bzip2, xz or zstd), a Parquet, Feather, Excel
        (.xlsx) or SQLite file, or a ZIP archive of one such file. The format is detected from the
        file's content. If the name ends in .parquet, .gz, .bz2, .xz or .zst, the content must have
        that format.
    database, query : str, optional
        An SQLite file, which is opened for reading only, and a SELECT query, which may take ten
        minutes. In Python, `cases` can send the query to any other database connection.
    sheet, table : str, optional
        The sheet of an Excel file, by default the first one; the table of an SQLite file, which may
        be left out if there is only one.
    delimiter : str, optional
        Delimiter of a CSV file. By default it is detected from the header.
    decimal : {".", ","}
        Decimal mark of a CSV file.
    encoding : str
        Encoding of a CSV file. A byte order mark is skipped.
    missing : list of str
        Additional texts that mean a missing value in this table, such as "-9".
    columns : dict of str to str
        Column of the plan -> its name in this table, if it differs.
    codes : dict of str to dict
        Column of the plan -> {code in this table: code in the plan}. The key "action" is for the
        column ``action``: {name in this table: name of the plan's action}.
    factors : dict of str to float
        Column of the plan -> factor that converts its numbers to the plan's unit.
    fixed : dict
        Column of the plan -> its value, if it is the same for all rows, such as the silo's name.
    absent : list of str
        Columns of the plan that this table does not have; their values are missing.
    subject : str, optional
        The column that identifies the person. Without it, every row is a different person.
    action : str, optional
        The column of the action that was taken. An outcome is used only if the plan chooses the
        same action.
    outcomes : dict of str to str
        Action -> column of the outcome that this action would have had.
    time, known : str, optional
        Columns of the time when a person came, and when the outcome became known: dates or seconds.
    time_format : str, optional
        Format of dates that are not ISO 8601, as in ``strptime``.
    delay : float
        Seconds until an outcome is known, if there is no column ``known``. Without a column
        ``time``, these are seconds of the plan's calendar.
    begin, until : date or float, optional
        All times t in the table have begin <= t < until. A replay maps this span to the plan's
        calendar. It is declared here, because a span computed from the data would reveal something
        about them.
    """

    file: str | None = None
    database: str | None = None
    query: str | None = None
    sheet: str | None = None
    table: str | None = None
    delimiter: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    missing: list[str] = []
    columns: dict[str, str] = {}
    codes: dict[str, dict[str, str]] = {}
    factors: dict[str, float] = {}
    fixed: dict[str, str | float | bool] = {}
    absent: list[str] = []
    subject: str | None = None
    action: str | None = None
    outcomes: dict[str, str] = {}
    time: str | None = None
    known: str | None = None
    time_format: str | None = None
    delay: float = 0.0
    begin: Any = None
    until: Any = None


class Case(NamedTuple):
    """One row of a table: a record and its outcome.

    Parameters
    ----------
    where : str
        File and line, for messages.
    record : dict
        Column of the plan -> value.
    subject : str
        Identifies the person.
    time : float or None
        Seconds since 1970; None without a column of times.
    known : float or None
        When the outcome became known; None for ``time`` plus `Source.delay`.
    outcome
        The value in the column of outcomes; None if it is missing.
    taken : str or None
        The action that was taken and had this outcome; None if the outcome holds for all actions.
    outcome_by_action : dict
        Action -> outcome, if the table has one column of outcomes for each action; else empty.
    """

    where: str
    record: dict[str, Any]
    subject: str
    time: float | None
    known: float | None
    outcome: Any
    taken: str | None
    outcome_by_action: dict[str, Any]


def load_source(path: str | Path) -> Source:
    """Read a source from a TOML file, in which paths are relative to the file's folder.

    Raises
    ------
    InputError
        If it is not TOML, or has an unknown key or a value that is not valid.
    """
    file = Path(path)
    try:
        table = parsed(tomllib.loads, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{file} cannot be read as TOML ({error})") from None
    try:
        return source_of(table, file.parent)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def source_of(table: Mapping[str, Any], folder: str | Path = ".") -> Source:
    """Create a source from a parsed TOML table, and check it; paths are relative to ``folder``."""
    check_plain("source", dict(table))
    for key in table:
        if key not in Source.__struct_fields__:
            known_keys = Source.__struct_fields__
            raise InputError(f"unknown key {show(key)} in a source{nearest(key, known_keys)}")
    try:
        source = msgspec.convert(dict(table), Source)
    except msgspec.ValidationError as error:
        raise InputError(type_error(error, dict(table), Source)) from None
    if (source.file is None) == (source.query is None):
        given_text = "neither" if source.file is None else "both"
        raise InputError(f"a source needs either file, or database and query, got {given_text}")
    if source.database is not None and source.query is None:
        raise InputError("a source needs either file, or database and query, got file and database")
    for key in ("sheet", "table"):
        if getattr(source, key) is not None and source.file is None:
            raise InputError(f"{key} is only for file: a query names its table")
    if source.decimal not in (".", ","):
        raise InputError(f'decimal must be "." or ",", got {show(source.decimal)}')
    if source.delimiter is not None and len(source.delimiter) != 1:
        raise InputError(f"delimiter must be one character, got {show(source.delimiter)}")
    number("delay", source.delay, at_least=0)
    for name, factor in source.factors.items():
        if number(f"factors.{name}", factor) == 0.0:
            raise InputError(
                f"factors.{name} must not be 0, which turns all values into 0: use fixed"
            )
    if (source.time is None) != (source.begin is None) or (source.begin is None) != (
        source.until is None
    ):
        raise InputError("a source needs time, begin and until together, or none of them")
    if source.time_format is not None:
        check_time_format(source.time_format)
    if source.time is not None:
        span(source)
    if source.known is not None and source.time is None:
        raise InputError("known needs time: what else is the delay counted from?")
    paths = {
        key: str(Path(folder) / value)
        for key in ("file", "database")
        if (value := getattr(source, key)) is not None
    }
    return msgspec.structs.replace(source, **paths)


# ---- tables --------------------------------------------------------------------------------------

#: Names of the columns, and an iterator over rows as (where, cells).
_Table = tuple[list[str], Iterator[tuple[str, Sequence[Any]]]]


def _table(source: Source) -> _Table:
    """Open the table of a source; return its column names and an iterator over its rows."""
    if source.query is not None:
        return _select(source)
    assert source.file is not None
    path = Path(source.file)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    data = file_content(path, path.name)
    sheet = read_sheet(data, path, path.name, source.sheet, source.table)
    if sheet is not None:
        return sheet.names, iter(sheet.rows)
    kind = "parquet" if path.suffix == ".parquet" else columnar(data)
    return _csv(path, data, source) if kind is None else _columnar(path, data, kind)


def _from_connection(source: Source, connection: Any) -> _Table:
    """Send a source's query to a given connection; return the column names and the rows.

    If the connection raises an error, the message names only the type of the error, since the
    error's text may quote a row.
    """
    try:
        return queried(connection, str(source.query))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the connection does not answer the query ({type(error).__name__})"
        ) from None


#: Time limit of a query, in seconds.
QUERY_SECONDS = 600.0
#: Operations that a query may use. SQLite asks about each operation when it compiles a query.
_READ_OPERATIONS = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)


class _Undecodable:
    """Stands for a text cell that is not valid UTF-8, until a message can name its column."""


def _select(source: Source) -> _Table:
    """Run a source's query on its SQLite file; it may only read, and has a time limit."""
    if source.database is None:
        raise InputError("the source's query needs a database, or in Python a connection")
    path = Path(source.database)
    if not path.is_file():
        raise InputError(f"there is no database {path}")
    query, deadline = str(source.query), time.monotonic() + QUERY_SECONDS
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
        database.set_authorizer(
            lambda action, *_: (
                sqlite3.SQLITE_OK if action in _READ_OPERATIONS else sqlite3.SQLITE_DENY
            )
        )
        # SQLite calls this after every 100 000 instructions; 1 interrupts the query.
        database.set_progress_handler(lambda: int(time.monotonic() > deadline), 100_000)
        database.text_factory = _text
        try:
            # Compile the query first: errors found before it reads a row may be shown in full.
            database.execute(f"EXPLAIN {query}").close()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            if "not authorized" in str(error) or "prohibited" in str(error):
                raise InputError(
                    f"the query of {path.name} may only read: it must be a SELECT"
                ) from None
            raise InputError(f"{path.name} does not answer the query ({error})") from None
        try:
            return queried(database, query)
        except sqlite3.Error as error:
            # Show only the name of an error that occurs later: its message may quote a row.
            problem = getattr(error, "sqlite_errorname", type(error).__name__)
            if problem == "SQLITE_INTERRUPT":
                problem = f"it took more than {QUERY_SECONDS:g} seconds"
            raise InputError(f"{path.name} does not answer the query ({problem})") from None


def _text(data: bytes) -> Any:
    """Decode a text cell of SQLite, or return an `_Undecodable`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _Undecodable()


def queried(connection: Any, query: str) -> _Table:
    """Run a query on a DB-API 2 connection; return its column names and its rows."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        if cursor.description is None:
            raise InputError("the query selects nothing: it must be a SELECT")
        names = [str(column[0]) for column in cursor.description]
        rows = [(f"row {i} of the query", row) for i, row in enumerate(cursor.fetchall(), 1)]
    return names, iter(rows)


def _columnar(path: Path, data: bytes, kind: str) -> _Table:
    """Read a Parquet or Feather file, given its content and format."""
    table = arrow_table(data, kind, path.name)
    import pyarrow

    columns = []
    for place, column in enumerate(table.columns, 1):
        try:
            columns.append(column.to_pylist())
        except (ValueError, OverflowError, pyarrow.ArrowException):
            raise InputError(
                f"column {place} of {path.name} has a time that is out of range, or text that is "
                "not UTF-8"
            ) from None
    cells = zip(*columns, strict=True)
    return list(table.column_names), (
        (f"{path.name}, row {i}", row) for i, row in enumerate(cells, 1)
    )


def _csv(path: Path, data: bytes, source: Source) -> _Table:
    """Read a CSV file, given its content; each row has its line number, for messages."""
    kind = other_kind(data, path.name)
    if kind is not None:
        raise InputError(f"{path.name} must be a CSV file, got {kind}")
    try:
        is_utf_8 = codecs.lookup(source.encoding).name == "utf-8"
        if is_utf_8 and is_utf_16(data):
            raise InputError(
                f'{path.name} is text in UTF-16: set encoding = "utf-16" in the source'
            )
        text = data.decode("utf-8-sig" if is_utf_8 else source.encoding)
    except UnicodeError:
        raise InputError(
            f"{path.name} is not text in {source.encoding}: set encoding in the source"
        ) from None
    except LookupError:
        raise InputError(f"encoding must be one that Python knows, got {source.encoding}") from None
    # Read all lines before the first is used, so that a damaged file is refused as a whole.
    delimiter = source.delimiter or delimiter_of(text)
    lines: list[tuple[int, list[str]]] = []
    try:
        lines.extend(csv_rows(text, delimiter))
    except DamagedCsv:
        raise InputError(
            f"{path.name} cannot be read as a CSV file (Error), after line {len(lines)}"
        ) from None
    if not lines:
        raise InputError(f"{path.name} is empty; its first line must name the columns")
    names = lines[0][1]
    for line, row in lines[1:]:
        if len(row) != len(names):
            raise InputError(
                f"{path.name}, line {line}: {len(row)} cells, but the header has {len(names)} "
                f"columns at delimiter {delimiter!r}; set delimiter if it is another"
            )
    return names, ((f"{path.name}, line {line}", row) for line, row in lines[1:])


# ---- records -------------------------------------------------------------------------------------


def cases(source: Source, schema: Schema, connection: Any = None) -> list[Case]:
    """Read all rows of a source as cases.

    Parameters
    ----------
    source : Source
    schema : Schema
        The plan's schema, with columns of records.
    connection : DB-API 2 connection, optional
        The database for `Source.query`, instead of an SQLite file.

    Raises
    ------
    InputError
        If columns are missing, or if any row does not fit the plan. The message names file, line,
        column and range of the first such row, and the number of further such rows. No row is
        skipped silently.
    """
    rows, problems = surveyed(source, schema, connection)
    if problems:
        other_problems = len(problems) - 1
        raise InputError(
            problems[0]
            + (f" (and {other_problems} more rows do not fit)" if other_problems else "")
        )
    return rows


def surveyed(
    source: Source, schema: Schema, connection: Any = None
) -> tuple[list[Case], list[str]]:
    """Read all rows of a source, and return a message about each row that does not fit the plan.

    The parameters are those of `cases`.

    Returns
    -------
    list of Case
        The rows that fit the plan.
    list of str
        A message about each row that does not fit.
    """
    if schema.records is None:
        raise InputError(
            "this plan has no columns of records, so tables cannot be read for it: its spec needs "
            "[[columns]], [actions] and [reward] (docs/records.md)"
        )
    records = schema.records
    if connection is not None and source.query is None:
        raise InputError("a connection needs the source's query")
    names, rows = _table(source) if connection is None else _from_connection(source, connection)
    reader = _Reader(source, records, names)
    fitting, problems = [], []
    for row, (where, cells) in enumerate(rows, 1):
        try:
            case = reader.case(where, row, cells)
            records.context(case.record)
            reader.check_outcomes(case)
            fitting.append(case)
        except InputError as error:
            problems.append(f"{where}: {error}")
    if not fitting and not problems:
        raise InputError("the table has no rows")
    return fitting, problems


class _Reader:
    """Convert the rows of one table to cases.

    Parameters
    ----------
    source : Source
    records : Records
        The columns of the plan.
    names : list of str
        Names of the table's columns, in order.
    """

    def __init__(self, source: Source, records: Records, names: list[str]) -> None:
        self._source, self._records = source, records
        declared = [variable.name for variable in records.variables]
        outcome = records.outcome
        #: Columns of the plan, in order, as the keys of a dict.
        self._plan_columns = dict.fromkeys([*declared, outcome.column])
        #: Columns of the plan whose values are numbers.
        self._numbers = {v.name for v in records.variables if v.kind == "number"}
        if not (outcome.codes or outcome.correct):
            self._numbers.add(outcome.column)
        _check_names(source, records, self._plan_columns, self._numbers)
        #: Names that two or more columns of the table have.
        self._duplicates = {name for name, count in Counter(names).items() if count > 1}
        #: Column of the table -> its index.
        self._index = {
            name: i for i, name in enumerate(names) if name and name not in self._duplicates
        }
        self._width = len(names)
        #: Column of the plan -> its declared codes. These are values, even if a code looks like a
        #: missing value, such as "NA".
        self._declared = {
            **{variable.name: variable.codes for variable in records.variables},
            records.outcome.column: [
                code for code, _ in records.outcome.codes or records.outcome.correct
            ],
        }
        for name, codes in source.codes.items():
            self._declared[name] = [*codes, *self._declared.get(name, ())]
        #: Name of an action in this table -> its name in the plan. Empty if the plan has a column
        #: "action": the key "action" of `Source.codes` is then for this column.
        self._action_codes = {} if ACTION in self._plan_columns else source.codes.get(ACTION, {})
        self._missing = frozenset(text.strip() for text in source.missing)
        #: Columns of the table that are no columns of the plan: person, action and times.
        extra = (source.subject, source.action, source.time, source.known)
        self._extra_names = [name for name in extra if name is not None]
        # Look columns up now, so that a missing column is reported before the first row is read.
        # The index of a column of the plan is None if the column is fixed or absent.
        self._plan_index = {name: self._plan_index_of(name) for name in declared}
        self._extra_index = {name: self._index_of(name) for name in self._extra_names}
        self._outcome_index = {
            action: self._index_of(name) for action, name in source.outcomes.items()
        }
        self._single_outcome_index = (
            None if self._outcome_index else self._plan_index_of(outcome.column)
        )

    def _plan_index_of(self, name: str) -> int | None:
        """Return the index in the table of a column of the plan; None if it is fixed or absent."""
        if name in self._source.fixed or name in self._source.absent:
            return None
        return self._index_of(self._source.columns.get(name, name), name)

    def _index_of(self, column: str, name: str = "") -> int:
        """Return the index of a column of the table; raise InputError if there is none.

        ``name`` is the column's name in the plan, if the plan has the column.
        """
        if column in self._duplicates:
            raise InputError(f'the table has two columns "{column}"; leave one out')
        if column not in self._index:
            advice = ""
            if name and name == self._records.outcome.column:
                # Without outcomes no reward is known, so `absent` is no way out.
                advice = (
                    "; rewards come from it: in the table's source (a TOML file) write columns = "
                    f'{{ "{name}" = "its name in the table" }}, or outcomes with a column for each '
                    "action"
                )
            elif name:
                advice = f"; name it under columns, or list {show(name)} under absent"
            raise InputError(f'the table has no column "{column}"{self._other_columns()}{advice}')
        return self._index[column]

    def _other_columns(self) -> str:
        """Return a text with the positions of columns that neither the plan nor the source names.

        If no column is known, the text says so. It is empty if all columns are known. It does not
        show names of columns: in a file without a header, these are the values of a person.
        """
        source = self._source
        known_names = {source.columns.get(name, name) for name in self._plan_columns} | set(
            source.outcomes.values()
        )
        known_names |= set(self._extra_names)
        places = [i + 1 for name, i in self._index.items() if name not in known_names]
        if len(places) == self._width:
            return f": none of its {self._width} column names is one of the plan's"
        first_positions = ", ".join(map(str, places[:10])) + (", ..." if len(places) > 10 else "")
        return (
            f"; of its {self._width} columns these have other names: {first_positions}"
            if places
            else ""
        )

    def case(self, where: str, row: int, cells: Sequence[Any]) -> Case:
        """Convert a row of the table to a case.

        Parameters
        ----------
        where : str
            File and line, for messages.
        row : int
            Number of the row. It identifies the person if there is no column ``subject``.
        cells : sequence
            The row's cells.
        """
        source, outcome = self._source, self._records.outcome.column
        record = {
            name: source.fixed.get(name) if index is None else self._value(name, cells[index])
            for name, index in self._plan_index.items()
        }

        def cell(column: str | None, codes: Collection[str] = ()) -> Any:
            """Return the row's cell in an optional column; None if it or the column is missing."""
            if column is None:
                return None
            return self._cell_or_none(column, cells[self._extra_index[column]], codes)

        subject = cell(source.subject)
        if source.subject is not None and subject is None:
            raise InputError(f'column "{source.subject}" must say who it is, got nothing')
        action_taken = None
        if source.action is not None:
            names, codes = self._records.actions.names, self._action_codes
            taken = cell(source.action, [*codes, *names])
            code_index = matched(taken, list(codes))
            if code_index is not None:
                taken = list(codes.values())[code_index]
            action_index = matched(taken, names)
            if action_index is None:
                raise InputError(
                    f'column "{source.action}" must be an action of the plan, got something else'
                )
            action_taken = names[action_index]
        outcome_time = self._moment(source.known, cell(source.known))
        outcome_value, outcome_by_action = source.fixed.get(outcome), {}
        if source.known is not None and outcome_time is None:
            outcome_value = None  # it never became known
        elif self._outcome_index:
            outcome_by_action = {
                action: self._value(outcome, cells[index])
                for action, index in self._outcome_index.items()
            }
        elif self._single_outcome_index is not None:
            outcome_value = self._value(outcome, cells[self._single_outcome_index])
        person = (
            f"row {row}" if subject is None else plain_name(f'column "{source.subject}"', subject)
        )
        if not is_line(person):
            raise InputError(
                f'column "{source.subject}" must be of printable characters on one line'
            )
        time = self._moment(source.time, cell(source.time))
        return Case(
            where,
            record,
            person,
            time,
            outcome_time,
            outcome_value,
            action_taken,
            outcome_by_action,
        )

    def check_outcomes(self, case: Case) -> None:
        """Raise InputError if an outcome does not fit the plan, or a time is outside the span."""
        # Whether an outcome is valid does not depend on the action.
        action = self._records.actions.names[0]
        for value in (case.outcome, *case.outcome_by_action.values()):
            if value is not None:
                self._records.outcome.reward(value, action)
        if case.time is not None:
            begin, until = span(self._source)
            if not begin <= case.time < until:
                raise InputError(
                    f'column "{self._source.time}" must be from begin to until'
                    + other_unit(case.time, begin, until)
                )
            if case.known is not None and case.known < case.time:
                raise InputError(
                    f'column "{self._source.known}" must not be before "{self._source.time}"'
                )

    def _cell_or_none(self, column: str, cell: Any, codes: Collection[str] = ()) -> Any:
        """Return a cell; None if it means a missing value.

        A cell that is one of ``codes`` is a value, even if it looks like "NA".
        """
        if isinstance(cell, _Undecodable):
            raise InputError(f'column "{column}" must be text in UTF-8, got something else')
        text = cell.strip() if isinstance(cell, str) else str(cell)
        return None if is_missing(cell, codes) or text in self._missing else cell

    def _value(self, name: str, cell: Any) -> Any:
        """Convert a cell of the plan's column ``name`` to the plan's codes and units.

        Return None if the value is missing. A value that is no number, or has a code that is not
        known, is returned unchanged; the plan's schema then refuses it. Raise InputError for a
        number with a decimal point or comma other than the source's.
        """
        value = self._cell_or_none(name, cell, self._declared.get(name, ()))
        if value is None:
            return None
        codes = self._source.codes.get(name)
        if name not in self._numbers and self._source.decimal == "," and isinstance(value, str):
            # A spreadsheet may have turned the code 4 into the number "4,0".
            value = _ZERO_DECIMALS.sub("", value)
        if codes is not None:
            index = matched(value, list(codes))
            return value if index is None else list(codes.values())[index]
        if name not in self._numbers:
            return value
        if isinstance(value, str):
            if self._source.decimal == "," and "." in value:
                raise InputError(
                    f'column "{name}" has a point, but decimal is ","; leave out separators of '
                    "thousands"
                )
            if self._source.decimal == "." and "," in value:
                raise InputError(
                    f'column "{name}" has a comma; if the file has decimal commas, set '
                    'decimal = "," in the source'
                )
            value = value.replace(",", ".")
        factor = self._source.factors.get(name)
        if factor is None:
            return value
        try:
            return float(value) * factor
        except (TypeError, ValueError, OverflowError):
            return value

    def _moment(self, column: str | None, cell: Any) -> float | None:
        """Return a cell with a time as seconds since 1970; None without column or value."""
        if column is None or (cell is None and column == self._source.known):
            return None
        moment = seconds(cell, self._source.time_format)
        if moment is None:
            raise InputError(
                f'column "{column}" must be a date, YYYY-MM-DD, or seconds; set time_format if it '
                "is written in another way"
            )
        return moment


def _check_names(
    source: Source, records: Records, plan_columns: Collection[str], numbers: Collection[str]
) -> None:
    """Raise InputError if a source names a column or an action that the plan does not have.

    Parameters
    ----------
    source : Source
    records : Records
        The columns of the plan.
    plan_columns : collection of str
        Names of the plan's columns, with the column of outcomes.
    numbers : collection of str
        Names of those columns whose values are numbers.
    """
    for key in ("columns", "codes", "factors", "fixed", "absent"):
        for name in getattr(source, key):
            if (key, name) == ("codes", ACTION) and source.action is not None:
                continue
            if name not in plan_columns:
                raise InputError(
                    f"{key} of the source has {show(name)}, which is no column of the plan"
                    f"{nearest(name, plan_columns)}"
                )
    for name in source.outcomes:
        if name not in records.actions.names:
            raise InputError(f"outcomes of the source has {show(name)}, which is no action")
    if source.outcomes and set(source.outcomes) != set(records.actions.names):
        raise InputError("outcomes of the source must name a column for every action")
    if source.action is None and not source.outcomes and not records.outcome.correct:
        raise InputError(
            "the source must name the column of the action taken (action), or one outcome for "
            "each action (outcomes): the plan's reward is that of one action alone"
        )
    for name in source.factors:
        if name not in numbers:
            raise InputError(f"factors of the source has {show(name)}, which is no number")


def span(source: Source) -> tuple[float, float]:
    """Return the declared span of times, (begin, until) in seconds since 1970.

    Raises
    ------
    InputError
        If ``begin`` is not before ``until``.
    """
    begin, until = seconds(source.begin), seconds(source.until)
    if begin is None or until is None or begin >= until:
        raise InputError(
            f"begin must be before until, got {show(source.begin)} and {show(source.until)}"
        )
    return begin, until
