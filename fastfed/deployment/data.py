"""A silo's own table: a CSV or Parquet file or a query, read as records of its plan.

The silo keeps a `Source`, which no other party sees: where its table is, what its columns and codes
are called there, and when its patients came. `cases` reads it, and refuses rows that do not fit the
plan's schema before anything is decided.
"""

from __future__ import annotations

import csv
import gzip
import re
import sqlite3
import time
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import msgspec

from fastfed._validate import (
    InputError,
    check_plain,
    is_line,
    nearest,
    number,
    parsed,
    show,
)
from fastfed.deployment.schema import Records, Schema, as_number, is_missing, matched

#: Delimiters that the header of a CSV file is searched for.
DELIMITERS = ",;\t|"
_WHOLE = re.compile(r"(?<=\d),0+\s*$", re.ASCII)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a silo's table is, and how it is read. Names on the left are the plan's.

    Parameters
    ----------
    file : str, optional
        A CSV file (.csv, .tsv, .txt, each also .gz) or a Parquet file (.parquet).
    database, query : str, optional
        An SQLite file, opened for reading only, and what to select there: the query can do nothing
        else, for ten minutes at most. In Python a query can
        be asked of any other database, by its connection.
    delimiter : str, optional
        Of a CSV file; found in its header by default.
    decimal : {".", ","}
        Decimal mark of a CSV file.
    encoding : str
        Of a CSV file; a byte order mark is skipped.
    missing : list of str
        More texts that mean a missing value here, such as "-9".
    columns : dict of str to str
        What a column of the plan is called here, where not the same.
    codes : dict of str to dict
        Of a column: what a code here is called in the plan.
    factors : dict of str to float
        Numbers here are multiplied by it, to be in the plan's unit.
    fixed : dict
        Values of columns that are the same for all rows, such as the silo's name.
    absent : list of str
        Columns of the plan that this silo does not have: always missing.
    subject : str, optional
        The column that says who it is; without it every row is another person.
    action : str, optional
        The column of the action that was taken. An outcome counts only where it is chosen again.
    outcomes : dict of str to str
        Of each action: the column of the outcome that it would have had.
    time, known : str, optional
        Columns of when a patient came, and when the outcome became known: dates or seconds.
    time_format : str, optional
        Of dates that are not ISO 8601, as in ``strptime``.
    delay : float
        Seconds until an outcome is known, without `known`; where there is no `time`, of the plan's
        calendar.
    begin, until : date or float, optional
        What `time` lies between, which becomes the plan's calendar; declared, not read from rows.
    """

    file: str | None = None
    database: str | None = None
    query: str | None = None
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
    """One row: a record, and what became of it.

    where: file and line, for messages; subject: who; time: seconds, None without a column of times;
    known: seconds at which the outcome is known, None for time plus `Source.delay`; outcome: None
    if it is missing; taken: the action that it was the outcome of, None if it is that of all; by:
    outcomes of each action, where the table has them.
    """

    where: str
    record: dict[str, Any]
    subject: str
    time: float | None
    known: float | None
    outcome: Any
    taken: str | None
    by: dict[str, Any]


def load_source(path: str | Path) -> Source:
    """Read a source from a TOML file; paths in it are relative to its folder.

    Raises
    ------
    InputError
        If it is no TOML, or says what a source does not know.
    """
    at = Path(path)
    try:
        table = parsed(tomllib.loads, at.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{at} cannot be read as TOML ({error})") from None
    return source_of(table, at.parent)


def source_of(table: Mapping[str, Any], folder: str | Path = ".") -> Source:
    """A source of a table, with paths relative to a folder; see `load_source`."""
    check_plain("source", dict(table))
    for key in table:
        if key not in Source.__struct_fields__:
            known = Source.__struct_fields__
            raise InputError(f"unknown key {show(key)} in a source{nearest(key, known)}")
    try:
        made = msgspec.convert(dict(table), Source)
    except msgspec.ValidationError as error:
        raise InputError(f"the source cannot be read ({error})") from None
    if (made.file is None) == (made.query is None):
        raise InputError("a source needs either file, or query and its database")
    if made.database is not None and made.query is None:
        raise InputError("a source needs database and query together")
    if made.decimal not in (".", ","):
        raise InputError(f'decimal must be "." or ",", got {show(made.decimal)}')
    if made.delimiter is not None and len(made.delimiter) != 1:
        raise InputError(f"delimiter must be one character, got {show(made.delimiter)}")
    number("delay", made.delay, at_least=0)
    if (made.time is None) != (made.begin is None) or (made.begin is None) != (made.until is None):
        raise InputError("a source needs time, begin and until together, or none of them")
    if made.time is not None:
        span(made)
    if made.known is not None and made.time is None:
        raise InputError("known needs time: what else is the delay counted from?")
    places = {
        key: str(Path(folder) / value)
        for key in ("file", "database")
        if (value := getattr(made, key)) is not None
    }
    return msgspec.structs.replace(made, **places)


# ---- tables --------------------------------------------------------------------------------------

#: Names of columns, and rows as (where, cells).
_Table = tuple[list[str], Iterator[tuple[str, Sequence[Any]]]]


def _table(source: Source) -> _Table:
    """The table of a source."""
    if source.query is not None:
        return _select(source)
    assert source.file is not None
    path = Path(source.file)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    return _parquet(path) if path.suffix == ".parquet" else _csv(path, source)


def _from_connection(source: Source, connection: Any) -> _Table:
    """Query a caller's connection; of a driver's error, which may quote a row, show the type."""
    try:
        return queried(connection, str(source.query))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the connection does not answer the query ({type(error).__name__})"
        ) from None


#: Time limit of a query, in seconds.
LONGEST_QUERY = 600.0
#: Operations that a query may use; SQLite asks about each when it compiles the query.
_READS = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)


class _Undecodable:
    """Replaces a cell that is not text in UTF-8."""


def _select(source: Source) -> _Table:
    """Run the query of an SQLite file, which may only read, and for a limited time."""
    if source.database is None:
        raise InputError("the source's query needs a database, or in Python a connection")
    path = Path(source.database)
    if not path.is_file():
        raise InputError(f"there is no database {path}")
    query, until = str(source.query), time.monotonic() + LONGEST_QUERY
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as base:
        base.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
        )
        base.set_progress_handler(lambda: int(time.monotonic() > until), 100_000)
        base.text_factory = _text
        try:
            # What is wrong with the query itself, before it sees a row.
            base.execute(f"EXPLAIN {query}").close()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            if "not authorized" in str(error) or "prohibited" in str(error):
                raise InputError(
                    f"the query of {path.name} may only read: it must be a SELECT"
                ) from None
            raise InputError(f"{path.name} does not answer the query ({error})") from None
        try:
            return queried(base, query)
        except sqlite3.Error as error:
            # The sentence of an error in a row may quote the row.
            why = getattr(error, "sqlite_errorname", type(error).__name__)
            if why == "SQLITE_INTERRUPT":
                why = f"it took more than {LONGEST_QUERY:g} seconds"
            raise InputError(f"{path.name} does not answer the query ({why})") from None


def _text(data: bytes) -> Any:
    """Decode a text cell."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _Undecodable()


def queried(connection: Any, query: str) -> _Table:
    """What a query of a DB-API 2 connection selects."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        if cursor.description is None:
            raise InputError("the query selects nothing: it must be a SELECT")
        names = [str(column[0]) for column in cursor.description]
        rows = [(f"row {i} of the query", row) for i, row in enumerate(cursor.fetchall(), 1)]
    return names, iter(rows)


def _parquet(path: Path) -> _Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            f"{path.name} needs pyarrow, which is not installed: pip install 'fastfed[export]'"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise InputError(
            f"{path.name} is no Parquet file, or it is damaged ({type(error).__name__})"
        ) from None
    columns = []
    for place, column in enumerate(table.columns, 1):
        try:
            columns.append(column.to_pylist())
        except (ValueError, OverflowError, ArrowException):
            raise InputError(
                f"column {place} of {path.name} has a time that is out of range, or text that is "
                "not UTF-8"
            ) from None
    cells = zip(*columns, strict=True)
    return list(table.column_names), (
        (f"{path.name}, row {i}", row) for i, row in enumerate(cells, 1)
    )


def _csv(path: Path, source: Source) -> _Table:
    """A CSV file, read whole: its lines stand in messages."""
    encoding = "utf-8-sig" if source.encoding.lower() in ("utf-8", "utf8") else source.encoding
    opener, lines = gzip.open if path.suffix == ".gz" else open, list[tuple[int, list[str]]]()
    try:
        with opener(path, "rt", encoding=encoding, newline="") as file:
            header = file.readline()
            file.seek(0)
            delimiter = source.delimiter or max(DELIMITERS, key=header.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            lines.extend((reader.line_num, row) for row in reader if row)
    except UnicodeError:
        raise InputError(
            f"{path.name} is not text in {source.encoding}: set encoding in the source"
        ) from None
    except LookupError:
        raise InputError(f"encoding must be one that Python knows, got {source.encoding}") from None
    except (OSError, EOFError, csv.Error, zlib.error) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(
            f"{path.name} cannot be read as a CSV file ({why}), after line {len(lines)}"
        ) from None
    if not lines:
        raise InputError(f"{path.name} is empty; its first line must name the columns")
    names = [name.strip() for name in lines[0][1]]
    for line, row in lines[1:]:
        if len(row) != len(names):
            raise InputError(
                f"{path.name}, line {line}: {len(row)} cells, but the header has {len(names)} "
                f"columns at delimiter {delimiter!r}; set delimiter if it is another"
            )
    return names, ((f"{path.name}, line {line}", row) for line, row in lines[1:])


# ---- records -------------------------------------------------------------------------------------


def cases(source: Source, schema: Schema, connection: Any = None) -> list[Case]:
    """All rows of a source, none of which its plan refuses.

    Parameters
    ----------
    source : Source
    schema : Schema
        The plan's, of records.
    connection : DB-API 2 connection, optional
        What `Source.query` is asked of, in place of an SQLite file.

    Returns
    -------
    list of Case

    Raises
    ------
    InputError
        For columns that are not there, and for rows with values that the plan refuses: the first
        is named with file, line, column and range, and how many there are. Nothing of them is left
        out in silence.
    """
    found, problems = surveyed(source, schema, connection)
    if problems:
        more = len(problems) - 1
        raise InputError(problems[0] + (f" (and {more} more rows do not fit)" if more else ""))
    return found


def surveyed(
    source: Source, schema: Schema, connection: Any = None
) -> tuple[list[Case], list[str]]:
    """The rows that fit, and a sentence about each that does not; see `cases`."""
    if schema.records is None:
        raise InputError("this plan has no columns of records, so tables cannot be read for it")
    records = schema.records
    if connection is not None and source.query is None:
        raise InputError("a connection needs the source's query")
    names, rows = _table(source) if connection is None else _from_connection(source, connection)
    reader = _Reader(source, records, names)
    found, problems = [], []
    for row, (where, cells) in enumerate(rows, 1):
        try:
            case = reader.case(where, row, cells)
            records.context(case.record)
            reader.check_outcomes(case)
            found.append(case)
        except InputError as error:
            problems.append(f"{where}: {error}")
    if not found and not problems:
        raise InputError("the table has no rows")
    return found, problems


class _Reader:
    """Makes cases of the rows of one table."""

    def __init__(self, source: Source, records: Records, names: list[str]) -> None:
        self._source, self._records = source, records
        self._twice = {name for name, count in Counter(names).items() if count > 1}
        self._at = {name: i for i, name in enumerate(names) if name and name not in self._twice}
        self._width = len(names)
        declared = [each.name for each in records.variables]
        self._own = own = dict.fromkeys([*declared, records.outcome.column])
        for key in ("columns", "codes", "factors", "fixed", "absent"):
            for name in getattr(source, key):
                if name not in own:
                    raise InputError(
                        f"{key} of the source has {show(name)}, which is no column of the plan"
                        f"{nearest(name, own)}"
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
        numbers = {each.name for each in records.variables if each.kind == "number"}
        outcome = records.outcome
        self._numbers = numbers | (set() if outcome.codes or outcome.correct else {outcome.column})
        for name in source.factors:
            if name not in self._numbers:
                raise InputError(f"factors of the source has {show(name)}, which is no number")
        self._missing = frozenset(text.strip() for text in source.missing)
        extra = (source.subject, source.action, source.time, source.known)
        self._extra_names = [name for name in extra if name is not None]
        # Of every column of the plan its place, or None; refused before the first row.
        self._places = {name: self._place(name) for name in declared}
        self._extra = {name: self._found(name) for name in self._extra_names}
        self._by = {action: self._found(name) for action, name in source.outcomes.items()}
        self._outcome = None if self._by else self._place(outcome.column)

    def _place(self, name: str) -> int | None:
        if name in self._source.fixed or name in self._source.absent:
            return None
        return self._found(self._source.columns.get(name, name), name)

    def _found(self, column: str, name: str = "") -> int:
        if column in self._twice:
            raise InputError(f'the table has two columns "{column}"; leave one out')
        if column not in self._at:
            rename = f"; name it under columns, or list {show(name)} under absent" if name else ""
            raise InputError(f'the table has no column "{column}"{self._other_columns()}{rename}')
        return self._at[column]

    def _other_columns(self) -> str:
        """Describe columns that neither plan nor source names, by place.

        In a file without a header, the names are the values of a person.
        """
        source = self._source
        known = {source.columns.get(name, name) for name in self._own} | set(
            source.outcomes.values()
        )
        known |= set(self._extra_names)
        places = [i + 1 for name, i in self._at.items() if name not in known]
        if len(places) == self._width:
            return f": none of its {self._width} column names is one of the plan's"
        some = ", ".join(map(str, places[:10])) + (", ..." if len(places) > 10 else "")
        return f"; of its {self._width} columns these have other names: {some}" if places else ""

    def case(self, where: str, row: int, cells: Sequence[Any]) -> Case:
        """The case of a row."""
        source, outcome = self._source, self._records.outcome.column
        record = {
            name: source.fixed.get(name) if at is None else self._value(name, cells[at])
            for name, at in self._places.items()
        }

        def cell(column: str | None) -> Any:
            return None if column is None else self._known(column, cells[self._extra[column]])

        subject = cell(source.subject)
        if source.subject is not None and subject is None:
            raise InputError(f'column "{source.subject}" must say who it is, got nothing')
        taken = None
        if source.action is not None:
            at = matched(cell(source.action), self._records.actions.names)
            if at is None:
                raise InputError(
                    f'column "{source.action}" must be an action of the plan, got something else'
                )
            taken = self._records.actions.names[at]
        known = self._moment(source.known, cell(source.known))
        came, by = source.fixed.get(outcome), {}
        if source.known is not None and known is None:
            came = None  # it never became known
        elif self._by:
            by = {action: self._value(outcome, cells[at]) for action, at in self._by.items()}
        elif self._outcome is not None:
            came = self._value(outcome, cells[self._outcome])
        who = f"row {row}" if subject is None else normalize("NFC", str(subject))
        if not is_line(who):
            raise InputError(
                f'column "{source.subject}" must be of printable characters on one line'
            )
        time = self._moment(source.time, cell(source.time))
        return Case(where, record, who, time, known, came, taken, by)

    def check_outcomes(self, case: Case) -> None:
        """Refuse outcomes that the plan cannot read, and cases out of time."""
        action = self._records.actions.names[0]
        for value in (case.outcome, *case.by.values()):
            if value is not None:
                self._records.outcome.reward(value, action)
        if case.time is not None:
            begin, until = span(self._source)
            if not begin <= case.time < until:
                raise InputError(f'column "{self._source.time}" must be from begin to until')
            if case.known is not None and case.known < case.time:
                raise InputError(
                    f'column "{self._source.known}" must not be before "{self._source.time}"'
                )

    def _known(self, column: str, cell: Any) -> Any:
        """A cell of a column, or None if it is missing."""
        if isinstance(cell, _Undecodable):
            raise InputError(f'column "{column}" must be text in UTF-8, got something else')
        text = cell.strip() if isinstance(cell, str) else str(cell)
        return None if is_missing(cell) or text in self._missing else cell

    def _value(self, name: str, cell: Any) -> Any:
        """A cell in the plan's codes and units."""
        found = self._known(name, cell)
        if found is None:
            return None
        codes = self._source.codes.get(name)
        if name not in self._numbers and self._source.decimal == "," and isinstance(found, str):
            # A code that a spreadsheet made a number of: "4,0".
            found = _WHOLE.sub("", found)
        if codes is not None:
            at = matched(found, list(codes))
            return found if at is None else list(codes.values())[at]
        if name not in self._numbers:
            return found
        if isinstance(found, str):
            if self._source.decimal == "," and "." in found:
                raise InputError(
                    f'column "{name}" has a point, but decimal is ","; leave out separators of '
                    "thousands"
                )
            if self._source.decimal == "." and "," in found:
                raise InputError(
                    f'column "{name}" has a comma; if the file has decimal commas, set '
                    'decimal = "," in the source'
                )
            found = found.replace(",", ".")
        factor = self._source.factors.get(name)
        if factor is None:
            return found
        try:
            return float(found) * factor
        except (TypeError, ValueError, OverflowError):
            return found

    def _moment(self, column: str | None, cell: Any) -> float | None:
        if column is None or (cell is None and column == self._source.known):
            return None
        made = _seconds(cell, self._source.time_format)
        if made is None:
            raise InputError(
                f'column "{column}" must be a date, YYYY-MM-DD, or seconds; set time_format if it '
                "is written in another way"
            )
        return made


def _seconds(value: Any, pattern: str | None = None) -> float | None:
    """Seconds of a date or number (UTC where no zone is said), or None."""
    if isinstance(value, str):
        try:
            text = value.strip()
            value = datetime.strptime(text, pattern) if pattern else datetime.fromisoformat(text)
        except ValueError:
            value = as_number(text)
    try:
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return as_number(value)


def span(source: Source) -> tuple[float, float]:
    """Seconds that `Source.time` lies between.

    Raises
    ------
    InputError
        If they are not one after the other.
    """
    begin, until = _seconds(source.begin), _seconds(source.until)
    if begin is None or until is None or begin >= until:
        raise InputError(
            f"begin must be before until, got {show(source.begin)} and {show(source.until)}"
        )
    return begin, until
