"""What a party keeps: its writes, and of a silo the budget of its datasets.

Writes are insert-only tables in an SQLite file, each durable before the next. A party's state is a
fold of its writes, in order, so a restart is the same fold again. Nothing is ever changed: a write
that is there already does nothing, and another one under its key is refused.

The budget of a dataset is what was spent on it, over all plans, under a ceiling. A release is
charged before it is sealed. Charges are squared GDP parameters, which add up over releases and over
plans; a plan whose noise is binomial is charged those of a Gaussian mechanism that it is but for an
event of some probability, and that probability. All are under *replace*.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from fastfed._validate import InputError, number
from fastfed.deployment.reading import copied
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.certificate import rounded_up

# ---- writes --------------------------------------------------------------------------------------

LOG = """
CREATE TABLE IF NOT EXISTS writes (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    chain BLOB NOT NULL, UNIQUE (kind, key));
"""


class Write(NamedTuple):
    """One fact: of a kind, under a key that has one value for ever."""

    kind: str
    key: str
    value: bytes


class Conflict(InputError):
    """Another value under a key that has one; nothing was written."""


class Store(Protocol):
    """Interface of what keeps writes."""

    def write(self, write: Write) -> bool:
        """Keep a write durably; False if it was there. Raises Conflict for another value."""
        ...

    def writes(self) -> Iterator[Write]:
        """All writes, in order."""
        ...

    def close(self) -> None:
        """Close its files."""
        ...


def opened(path: str, schema: str, tables: set[str], alone: bool = False) -> sqlite3.Connection:
    """An SQLite file of one party: its own, durable, and readable by nobody else.

    tables: what a file that is there must have. alone: no other process may open it while this one
    has it.
    """
    if path != ":memory:":
        # SQLite makes its files with the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    # Threads take turns by the lock of whoever owns the connection.
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=0.5 if alone else 30.0
    )
    if alone:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
    try:
        with damage_named(path):
            check_tables(db, path, tables)
            if path != ":memory:":
                os.chmod(path, 0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Turn SQLite's errors of a damaged file, and of a full disk, into sentences that name it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise OSError(errno.ENOSPC, f"{error}: make room on the disk", str(path)) from None
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise InputError(f"{path} is damaged ({error}); restore the newest backup") from None


def check_tables(db: sqlite3.Connection, path: str, tables: set[str]) -> None:
    """Refuse a file with tables of something else than a party's log, or ledger."""
    try:
        found = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    except sqlite3.OperationalError:
        raise  # in use, or a full disk
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path} is no SQLite file, or it is damaged ({error}); restore the newest backup"
        ) from None
    if found and (not tables <= found or ("charges" in found) != ("charges" in tables)):
        what = "ledger" if "charges" in tables else "log of a party"
        raise InputError(f"{path} is no {what} of fastfed: it has other tables; check the path")


def chained(before: bytes, write: Write) -> bytes:
    """Hash of a write and of all before it."""
    made = hashlib.sha256(before)
    for part in (write.kind.encode(), write.key.encode(), write.value):
        made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()


class _Chain:
    """Writes in the table of `LOG`, each with the hash of all before it."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name = db, name

    @property
    def head(self) -> bytes:
        """Hash of all writes; zeros before the first."""
        row = self._db.execute("SELECT chain FROM writes ORDER BY number DESC LIMIT 1").fetchone()
        return row[0] if row else bytes(32)

    def add(self, write: Write) -> None:
        """Add a write under a new key."""
        # One statement is one transaction, which SQLite syncs before it returns.
        self._db.execute(
            "INSERT INTO writes (kind, key, value, chain) VALUES (?, ?, ?, ?)",
            (*write, chained(self.head, write)),
        )

    def value(self, kind: str, key: str) -> bytes | None:
        """What was written under a key."""
        row = self._db.execute(
            "SELECT value FROM writes WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return None if row is None else row[0]

    def writes(self) -> Iterator[Write]:
        """All writes, in order; InputError where the chain of hashes is broken."""
        head, entry = bytes(32), 0
        rows = self._db.execute("SELECT kind, key, value, chain FROM writes ORDER BY number")
        try:
            for entry, (kind, key, value, chain) in enumerate(rows, 1):
                head = chained(head, write := Write(kind, key, value))
                if head != chain:
                    raise InputError(f"the log of {self._name} is broken at entry {entry}")
                yield write
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"the log of {self._name} is damaged after entry {entry} ({error})"
            ) from None


class SqliteStore:
    """Writes in an SQLite file (WAL, synchronous = FULL, mode 0600), chained by SHA-256.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        try:
            self._db = opened(path, LOG, {"writes"}, alone=True)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                raise
            raise InputError(f"{path} is in use by another process") from None
        self.path, self._chain = path, _Chain(self._db, path)

    @property
    def head(self) -> bytes:
        """Hash of all writes."""
        return self._chain.head

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, write: Write) -> bool:
        """Keep a write durably; False if it was there. Raises Conflict for another value."""
        known = self._chain.value(write.kind, write.key)
        if known is not None:
            if known != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        self._chain.add(write)
        return True

    def writes(self) -> Iterator[Write]:
        """All writes, in order.

        Raises
        ------
        InputError
            If the chain of hashes is broken: something was changed or taken out.
        """
        return self._chain.writes()


def read_writes(path: str | Path) -> list[Write]:
    """All writes of a party's file, which is neither opened nor changed; none if there is no file.

    Raises
    ------
    InputError
        If it is no such file, or its chain of hashes is broken.
    """
    if not Path(path).exists():
        return []
    with closing(copied(path)) as db:
        check_tables(db, str(path), {"writes"})
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return []
        return list(_Chain(db, str(path)).writes())


class MemoryStore:
    """Writes in memory, for tests and demonstrations."""

    def __init__(self, writes: list[Write] | None = None) -> None:
        self._writes = list(writes or [])
        self._values = {write[:2]: write.value for write in self._writes}

    def write(self, write: Write) -> bool:
        """Keep a write; False if it was there. Raises Conflict for another value."""
        known = self._values.get(write[:2])
        if known is not None:
            if known != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        self._values[write[:2]] = write.value
        self._writes.append(write)
        return True

    def writes(self) -> Iterator[Write]:
        """All writes, in order."""
        return iter(list(self._writes))

    def close(self) -> None:
        """No file is open."""


# ---- the budget ----------------------------------------------------------------------------------

#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12
#: Entries of a ledger's chain, beside ceilings and charges.
_IDENTITY, _SECOND = "ledger", "second ledger"

SCHEMA = f"""{LOG}
CREATE TABLE IF NOT EXISTS ceilings (
    dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL, mu2 REAL NOT NULL,
    told REAL NOT NULL, report BLOB NOT NULL, pure REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (dataset, plan, release));
"""
#: What a ledger that was made before there were pure charges is given.
_LATER = "ALTER TABLE charges ADD COLUMN pure REAL NOT NULL DEFAULT 0"
TABLES = {"ceilings", "charges"}


class Charge(NamedTuple):
    """What one release of one plan costs the users of one dataset.

    release: from 1; below, what a silo pays once more after records were lost. mu2: squared
    GDP parameter. told: probability of an event but for which that holds. pure: an epsilon that
    holds as well, with delta = 0; 0 for none.
    """

    dataset: str
    plan: bytes
    release: int
    mu2: float
    told: float = 0.0
    report: bytes = b""
    pure: float = 0.0


class OverBudget(InputError):
    """A charge that the ceiling does not allow; nothing was written."""


class Ledger:
    """Charges on the datasets of one silo, in an SQLite file of their own.

    Every entry is chained by its hash, and the first entry is a random identity. Whoever knows the
    identity and an earlier head can tell whether a file is this ledger, and whether it is older.

    Parameters
    ----------
    path : str
        The file, or ":memory:".

    Raises
    ------
    InputError
        If the file is something else, or was changed by something else.
    """

    def __init__(self, path: str) -> None:
        db = opened(path, SCHEMA, TABLES)
        with damage_named(path):
            self._attach(db, path)
        with damage_named(path), self._transaction():
            if self._chain.value(_IDENTITY, "") is None:
                self._start_chain()
            self._check()

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read a ledger into memory; the file is neither opened for writing nor changed.

        Raises
        ------
        InputError
            If the file is no ledger.
        """
        ledger, db = cls.__new__(cls), copied(path)
        check_tables(db, str(path), TABLES)
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise InputError(f"{path} is no ledger of fastfed: it is empty")
        with damage_named(path):
            # One of an earlier version has no chain, and no identity.
            db.executescript(LOG)
            ledger._attach(db, str(path))
            if ledger.identity:
                ledger._check()
        db.execute("PRAGMA query_only = ON")
        return ledger

    def _attach(self, db: sqlite3.Connection, path: str) -> None:
        self._db, self.path, self._chain = db, path, _Chain(db, path)
        if "pure" not in {row[1] for row in db.execute("PRAGMA table_info(charges)")}:
            db.execute(_LATER)

    def _start_chain(self) -> None:
        """Start the chain; copy into it what a ledger of an earlier version holds."""
        self._chain.add(Write(_IDENTITY, "", os.urandom(16)))
        for row in self._db.execute("SELECT * FROM ceilings ORDER BY dataset").fetchall():
            self._append("ceiling", row)
        for row in self._db.execute("SELECT * FROM charges ORDER BY rowid").fetchall():
            self._append("charge", row)

    def _append(self, kind: str, values: Sequence[Any]) -> None:
        """Add an entry to the chain, inside of a transaction."""
        count = self._db.execute("SELECT max(number) FROM writes").fetchone()[0]
        self._chain.add(Write(kind, str(count), msgspec.msgpack.encode(values)))

    def _check(self) -> None:
        """Refuse a file whose ceilings or charges are not those of its chain."""
        ceilings, charges = {}, []
        for kind, _, value in self._chain.writes():
            if kind == "ceiling":
                dataset, *ends = msgspec.msgpack.decode(value)
                ceilings[dataset] = tuple(ends)
            elif kind == "charge":
                charges.append(
                    msgspec.msgpack.decode(
                        value, type=tuple[str, bytes, int, float, float, bytes, float]
                    )
                )
        tables = {row[0]: row[1:] for row in self._db.execute("SELECT * FROM ceilings")}
        if ceilings != tables or sorted(charges) != sorted(
            self._db.execute("SELECT * FROM charges")
        ):
            raise InputError(
                f"the ledger {self.path} was changed by something else than fastfed; restore the "
                "newest backup"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the write lock throughout, since another silo may charge the same ledger."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def identity(self) -> bytes:
        """Random bytes that only this ledger has; empty for a ledger of an earlier version until it
        is opened for writing."""
        return self._chain.value(_IDENTITY, "") or b""

    @property
    def head(self) -> bytes:
        """Hash of everything that was ever written."""
        return self._chain.head

    def had_head(self, head: bytes) -> bool:
        """Whether this is or was the head of the chain."""
        query = "SELECT count(*) FROM writes WHERE chain = ?"
        return bool(self._db.execute(query, (head,)).fetchone()[0])

    def add_second(self, dataset: str, plan: bytes) -> None:
        """Record that the earlier plan's charges are not here: this is a second ledger."""
        with self._transaction():
            if (dataset, plan) not in self.second_ledgers():
                self._append(_SECOND, (dataset, plan))

    def second_ledgers(self) -> list[tuple[str, bytes]]:
        """(dataset, plan) of each plan whose records were declared to be of another ledger."""
        writes = self._chain.writes()
        return [
            msgspec.msgpack.decode(w.value, type=tuple[str, bytes])
            for w in writes
            if w.kind == _SECOND
        ]

    def set_ceiling(self, dataset: str, epsilon: float, delta: float) -> None:
        """Write down the most that may be spent on a dataset; it may be raised, never forgotten.

        Raises
        ------
        InputError
            For values out of range, and for a ceiling below what was spent.
        """
        epsilon = number("epsilon", epsilon, above=0)
        delta = number("delta", delta, above=0, below=1)
        with self._transaction():
            spent = self.epsilon(dataset, delta)
            if spent > epsilon:
                raise InputError(
                    f"epsilon must be at least {spent:.4g}, what was spent, got {epsilon}"
                )
            if self.ceiling(dataset) != (epsilon, delta):
                row = (dataset, epsilon, delta)
                self._db.execute("INSERT OR REPLACE INTO ceilings VALUES (?, ?, ?)", row)
                self._append("ceiling", row)

    def ceiling(self, dataset: str) -> tuple[float, float] | None:
        """(epsilon, delta) of a dataset; None where none was set, and nothing may be spent."""
        row = self._db.execute(
            "SELECT epsilon, delta FROM ceilings WHERE dataset = ?", (dataset,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def charges(self, dataset: str) -> list[Charge]:
        """All charges on a dataset, in the order of plans and releases."""
        rows = self._db.execute(
            "SELECT * FROM charges WHERE dataset = ? ORDER BY plan, release", (dataset,)
        )
        return [Charge(*row) for row in rows]

    def charged(self, dataset: str, plan: bytes, release: int) -> Charge | None:
        """The charge of one release; None where there is none."""
        row = self._db.execute(
            "SELECT * FROM charges WHERE dataset = ? AND plan = ? AND release = ?",
            (dataset, plan, release),
        ).fetchone()
        return None if row is None else Charge(*row)

    def datasets(self) -> list[str]:
        """All datasets with a ceiling or a charge."""
        query = "SELECT dataset FROM ceilings UNION SELECT dataset FROM charges ORDER BY 1"
        return [row[0] for row in self._db.execute(query)]

    def epsilon(
        self, dataset: str, delta: float | None = None, more: Charge | None = None
    ) -> float:
        """Epsilon spent on a dataset, at delta (default: the ceiling's), with one charge more."""
        if delta is None:
            ceiling = self.ceiling(dataset)
            if ceiling is None:
                raise InputError(f'no ceiling is set for dataset "{dataset}"')
            delta = ceiling[1]
        found = {(c.plan, c.release): c for c in self.charges(dataset)}
        if more is not None:
            found.setdefault((more.plan, more.release), more)
        return together(found.values(), delta)

    def allows(self, charge: Charge) -> bool:
        """True if a charge is there already, or stays under the ceiling."""
        ceiling = self.ceiling(charge.dataset)
        if ceiling is None:
            return False
        return self.epsilon(charge.dataset, more=charge) <= ceiling[0] * (1.0 + 1e-9)

    def _over(self, charge: Charge) -> str:
        """Why a charge does not fit, and how large a ceiling would have to be."""
        release, dataset = charge.release, charge.dataset
        what = f"release {release}"
        if release < 0:
            what = f"the whole plan once more, since records of release {-release} were lost,"
        text = f'{what} would spend more than the ceiling of dataset "{dataset}"; nothing was sent'
        if (ceiling := self.ceiling(dataset)) is None:
            return text
        needed = rounded_up(self.epsilon(dataset, more=charge))
        room = f"--epsilon {needed} or more at --delta {ceiling[1]:g}"
        return f"{text}: join the same plan with {room}, or leave"

    def charge(self, charge: Charge) -> None:
        """Write a charge, durably; one that is there already changes nothing.

        Raises
        ------
        OverBudget
            If it does not stay under the ceiling.
        InputError
            If the same release was charged for another report.
        """
        with self._transaction():
            kept = self.charged(charge.dataset, charge.plan, charge.release)
            if kept is not None and kept != charge:
                raise InputError(f"release {charge.release} was charged for another report")
            if kept is None and not self.allows(charge):
                raise OverBudget(self._over(charge))
            if kept is None:
                self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charge)
                self._append("charge", charge)


def together(charges: Iterable[Charge], delta: float) -> float:
    """Epsilon of charges at delta: squares added up, or those of pure ones as epsilons."""
    found = list(charges)
    rest = [c for c in found if not c.pure]
    whole = _gaussian(found, delta)
    if len(rest) == len(found):
        return whole
    pure = math.fsum(c.pure for c in found) * _UP
    return min(whole, pure + _gaussian(rest, delta))


def _gaussian(charges: list[Charge], delta: float) -> float:
    """Epsilon of squares at delta, infinite where it is spent on events."""
    if not any(c.mu2 for c in charges):
        return 0.0
    mu2 = math.fsum(c.mu2 for c in charges) * _UP
    rest = delta - math.fsum(c.told for c in charges) * _UP
    return _epsilon(math.sqrt(mu2), rest) if rest > 0.0 else math.inf


#: A silo at its ceiling asks for the same number at every tick.
_epsilon = lru_cache(maxsize=256)(gaussian_epsilon)


def spent_lines(ledger: Ledger) -> list[dict[str, Any]]:
    """What is spent on each dataset, and what is left, as plain data."""
    rows, seconds = [], ledger.second_ledgers()
    for dataset in ledger.datasets():
        ceiling = ledger.ceiling(dataset)
        found: dict[str, Any] = {"dataset": dataset, "charges": len(ledger.charges(dataset))}
        if ceiling is not None:
            found |= {
                "ceiling_epsilon": ceiling[0],
                "delta": ceiling[1],
                "spent_epsilon": ledger.epsilon(dataset),
            }
        if ledger.identity:
            found["ledger"] = ledger.identity.hex()
        if plans := [plan.hex() for name, plan in seconds if name == dataset]:
            found["second_ledger_of_plans"] = plans
        rows.append(found)
    return rows
