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

import hashlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from fastfed._validate import InputError, number
from fastfed.privacy.accounting.gdp import gaussian_epsilon

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


def opened(path: str, schema: str, alone: bool = False) -> sqlite3.Connection:
    """An SQLite file of one party: its own, durable, and readable by nobody else.

    alone: no other process may open it while this one has it.
    """
    if path != ":memory:":
        # SQLite makes its files with the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
    # Threads take turns by the lock of whoever owns the connection.
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=0.5 if alone else 30.0
    )
    if alone:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(schema)
    return db


def chained(before: bytes, write: Write) -> bytes:
    """Hash of a write and of all before it."""
    made = hashlib.sha256(before)
    for part in (write.kind.encode(), write.key.encode(), write.value):
        made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()


class SqliteStore:
    """Writes in an SQLite file (WAL, synchronous = FULL, mode 0600), chained by SHA-256.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        try:
            self._db = opened(path, LOG, alone=True)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                raise
            raise InputError(f"{path} is in use by another process") from None
        self.path = path
        row = self._db.execute("SELECT chain FROM writes ORDER BY number DESC LIMIT 1").fetchone()
        self.head: bytes = row[0] if row else bytes(32)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, write: Write) -> bool:
        """Keep a write durably; False if it was there. Raises Conflict for another value."""
        row = self._db.execute(
            "SELECT value FROM writes WHERE kind = ? AND key = ?", (write.kind, write.key)
        ).fetchone()
        if row is not None:
            if row[0] != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        head = chained(self.head, write)
        # One statement is one transaction, which SQLite syncs before it returns.
        self._db.execute(
            "INSERT INTO writes (kind, key, value, chain) VALUES (?, ?, ?, ?)", (*write, head)
        )
        self.head = head
        return True

    def writes(self) -> Iterator[Write]:
        """All writes, in order.

        Raises
        ------
        InputError
            If the chain of hashes is broken: something was changed or taken out.
        """
        head, number = bytes(32), 0
        for number, kind, key, value, chain in self._db.execute(
            "SELECT number, kind, key, value, chain FROM writes ORDER BY number"
        ):
            head = chained(head, write := Write(kind, key, value))
            if head != chain:
                raise InputError(f"the log of {self.path} is broken at entry {number}")
            yield write


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


# ---- the budget ----------------------------------------------------------------------------------

#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12

SCHEMA = """
CREATE TABLE IF NOT EXISTS ceilings (
    dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL, mu2 REAL NOT NULL,
    told REAL NOT NULL, report BLOB NOT NULL, pure REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (dataset, plan, release));
"""
#: What a ledger that was made before there were pure charges is given.
_LATER = "ALTER TABLE charges ADD COLUMN pure REAL NOT NULL DEFAULT 0"


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

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        self._db = opened(path, SCHEMA)
        if "pure" not in {row[1] for row in self._db.execute("PRAGMA table_info(charges)")}:
            self._db.execute(_LATER)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def set_ceiling(self, dataset: str, epsilon: float, delta: float) -> None:
        """Write down the most that may be spent on a dataset; it may be raised, never forgotten.

        Raises
        ------
        InputError
            For values out of range, and for a ceiling below what was spent.
        """
        epsilon = number("epsilon", epsilon, above=0)
        delta = number("delta", delta, above=0, below=1)
        spent = self.epsilon(dataset, delta)
        if spent > epsilon:
            raise InputError(f"epsilon must be at least {spent:.4g}, what was spent, got {epsilon}")
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO ceilings VALUES (?, ?, ?)", (dataset, epsilon, delta)
            )

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

    def charge(self, charge: Charge) -> None:
        """Write a charge, durably; one that is there already changes nothing.

        Raises
        ------
        OverBudget
            If it does not stay under the ceiling.
        InputError
            If the same release was charged for another report.
        """
        # The write lock first: another plan's silo may charge the same dataset.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            kept = self._db.execute(
                "SELECT mu2, told, report, pure FROM charges "
                "WHERE dataset = ? AND plan = ? AND release = ?",
                charge[:3],
            ).fetchone()
            if kept is not None and kept != charge[3:]:
                raise InputError(f"release {charge.release} was charged for another report")
            if kept is None and not self.allows(charge):
                raise OverBudget(
                    f"release {charge.release} would spend more than the ceiling of dataset "
                    f'"{charge.dataset}"; nothing was sent'
                )
            if kept is None:
                self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charge)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


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
    rows = []
    for dataset in ledger.datasets():
        ceiling = ledger.ceiling(dataset)
        found: dict[str, Any] = {"dataset": dataset, "charges": len(ledger.charges(dataset))}
        if ceiling is not None:
            found |= {
                "ceiling_epsilon": ceiling[0],
                "delta": ceiling[1],
                "spent_epsilon": ledger.epsilon(dataset),
            }
        rows.append(found)
    return rows
