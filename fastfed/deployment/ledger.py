"""The ledger of a silo's privacy budgets.

The ledger records, for each dataset of the silo, a ceiling (epsilon, delta) and all charges: the
privacy costs of releases, over all plans. A release is charged before its report is made. The cost
of a release is a squared GDP parameter mu^2, because squared parameters add up over releases and
plans. Binomial noise has the guarantee of a Gaussian mechanism except with a small failure
probability: both mu^2 and this probability are charged. All charges are for the relation *replace*.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fastfed._sqlite import copied
from fastfed._validate import InputError, number
from fastfed.deployment.store import (
    LOG_SCHEMA,
    Chain,
    Write,
    check_tables,
    damage_named,
    opened,
    transaction,
)
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.certificate import rounded_up

#: Sums of charges are multiplied by this factor, which covers rounding errors.
_ROUND_UP = 1.0 + 1e-12
#: Kinds of entries in a ledger's chain, in addition to "ceiling" and "charge".
_IDENTITY, _SECOND = "ledger", "second ledger"

#: In the table of charges, ``told`` is `Charge.failure`.
SCHEMA = f"""{LOG_SCHEMA}
CREATE TABLE IF NOT EXISTS ceilings (
    dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL, mu2 REAL NOT NULL,
    told REAL NOT NULL, report BLOB NOT NULL, pure REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (dataset, plan, release));
"""
#: Adds the column that ledgers of earlier versions lack.
_ADD_PURE_COLUMN = "ALTER TABLE charges ADD COLUMN pure REAL NOT NULL DEFAULT 0"
TABLES = {"ceilings", "charges"}


class Charge(NamedTuple):
    """The privacy cost of one release of one plan to the users of one dataset.

    The release is mu-GDP except with a failure probability. It may also satisfy pure epsilon-DP.

    Parameters
    ----------
    dataset : str
    plan : bytes
        SHA-256 of the plan file.
    release : int
        Number of the release, from 1. Negative for a second charge of the whole plan, after records
        were lost.
    mu2 : float
        mu^2, the squared GDP parameter.
    failure : float
        Failure probability of the mu-GDP guarantee, which is added to delta.
    report : bytes
        SHA-256 of the silo's report; empty if there is none.
    pure : float
        The epsilon of pure DP (delta = 0); 0 if there is no such guarantee.
    """

    dataset: str
    plan: bytes
    release: int
    mu2: float
    failure: float = 0.0
    report: bytes = b""
    pure: float = 0.0


class OverBudget(InputError):
    """Raised for a charge that exceeds the ceiling; nothing is written then."""


class Ledger:
    """The ceilings and charges of one silo's datasets, in an SQLite file.

    Entries form a chain of hashes, which begins with random bytes, the ledger's identity. The
    identity shows whether a file is the expected ledger. The hash of the last entry is the head.
    The last head that a silo has noted shows whether the file is an older copy of the ledger.

    Parameters
    ----------
    path : str
        The file, or ":memory:".

    Raises
    ------
    InputError
        If the file is not a ledger, or was changed by a different program.
    """

    def __init__(self, path: str) -> None:
        db = opened(path, SCHEMA, TABLES)
        with damage_named(path):
            self._attach(db, path)
        with damage_named(path), transaction(self._db):
            if self._chain.value(_IDENTITY, "") is None:
                self._start_chain()
            self._check()

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Return a ledger that is read into memory, without opening its file for writing.

        Raises
        ------
        InputError
            If the file is not a ledger.
        """
        ledger, db = cls.__new__(cls), copied(path)
        check_tables(db, str(path), TABLES)
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise InputError(f"{path} is no ledger of fastfed: it is empty")
        with damage_named(path):
            # A ledger of an earlier version has no chain and no identity.
            db.executescript(LOG_SCHEMA)
            ledger._attach(db, str(path))
            if ledger._chain.position.number:
                ledger._check()
        db.execute("PRAGMA query_only = ON")
        return ledger

    def _attach(self, db: sqlite3.Connection, path: str) -> None:
        """Set the attributes for an open connection; add the column that earlier versions lack."""
        self._db, self.path, self._chain = db, path, Chain(db, path)
        #: Dataset -> (number of the last row that was read, the charges up to this row).
        self._read_charges: dict[str, tuple[int, list[Charge]]] = {}
        if "pure" not in {row[1] for row in db.execute("PRAGMA table_info(charges)")}:
            db.execute(_ADD_PURE_COLUMN)

    def _start_chain(self) -> None:
        """Start the chain: add a new identity and all ceilings and charges of an older ledger."""
        self._chain.add(Write(_IDENTITY, "", os.urandom(16)))
        for row in self._db.execute("SELECT * FROM ceilings ORDER BY dataset").fetchall():
            self._append("ceiling", row)
        for row in self._db.execute("SELECT * FROM charges ORDER BY rowid").fetchall():
            self._append("charge", row)

    def _append(self, kind: str, values: Sequence[Any]) -> None:
        """Add an entry to the chain; the caller must have started a transaction."""
        last_number = self._db.execute("SELECT max(number) FROM writes").fetchone()[0]
        self._chain.add(Write(kind, str(last_number), msgspec.msgpack.encode(values)))

    def _check(self) -> None:
        """Raise InputError if the tables differ from the ceilings and charges in the chain."""
        ceilings, charges = {}, []
        for kind, _, value in self._chain.writes():
            if kind == "ceiling":
                dataset, *epsilon_and_delta = msgspec.msgpack.decode(value)
                ceilings[dataset] = tuple(epsilon_and_delta)
            elif kind == "charge":
                charges.append(
                    msgspec.msgpack.decode(
                        value, type=tuple[str, bytes, int, float, float, bytes, float]
                    )
                )
        stored = {row[0]: row[1:] for row in self._db.execute("SELECT * FROM ceilings")}
        if ceilings != stored or Counter(charges) != Counter(
            self._db.execute("SELECT * FROM charges")
        ):
            raise InputError(
                f"the ledger {self.path} was changed by something else than fastfed; restore the "
                "newest backup"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def identity(self) -> bytes:
        """Random bytes that identify this ledger.

        Empty for a ledger of an earlier version that has not been opened for writing since.
        """
        return self._chain.value(_IDENTITY, "") or b""

    @property
    def head(self) -> bytes:
        """Hash of all entries, which changes with every entry."""
        return self._chain.head

    def had_head(self, head: bytes) -> bool:
        """Return True if ``head`` is the head of the chain, or was its head earlier."""
        query = "SELECT count(*) FROM writes WHERE chain = ?"
        return bool(self._db.execute(query, (head,)).fetchone()[0])

    def add_second(self, dataset: str, plan: bytes) -> None:
        """Record that the plan before ``plan`` was charged to a different ledger or dataset."""
        with transaction(self._db):
            if (dataset, plan) not in self.second_ledgers():
                self._append(_SECOND, (dataset, plan))

    def second_ledgers(self) -> list[tuple[str, bytes]]:
        """Return the pair (dataset, plan) of each plan that `add_second` has recorded."""
        writes = self._chain.writes()
        return [
            msgspec.msgpack.decode(w.value, type=tuple[str, bytes])
            for w in writes
            if w.kind == _SECOND
        ]

    def set_ceiling(self, dataset: str, epsilon: float, delta: float) -> None:
        """Set the ceiling (epsilon, delta) of a dataset, and record it in the chain.

        Raises
        ------
        InputError
            If a value is out of range, or if more than this epsilon has already been spent.
        """
        epsilon = number("epsilon", epsilon, above=0)
        delta = number("delta", delta, above=0, below=1)
        with transaction(self._db):
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
        """Return the ceiling (epsilon, delta) of a dataset; None if it is not set.

        A dataset without a ceiling cannot be charged.
        """
        row = self._db.execute(
            "SELECT epsilon, delta FROM ceilings WHERE dataset = ?", (dataset,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def charges(self, dataset: str) -> list[Charge]:
        """Return all charges on a dataset, ordered by plan and release."""
        return sorted(self._charges(dataset), key=lambda charge: (charge.plan, charge.release))

    def _charges(self, dataset: str) -> list[Charge]:
        """Return all charges on a dataset in the order in which they were recorded.

        Charges are never removed, so each call reads only rows that were added since the last call.
        """
        last_row, charges = self._read_charges.get(dataset, (0, []))
        query = "SELECT rowid, * FROM charges WHERE rowid > ? AND dataset = ? ORDER BY rowid"
        added = self._db.execute(query, (last_row, dataset)).fetchall()
        charges = charges + [Charge(*row[1:]) for row in added]
        # Rows of an uncommitted transaction may still disappear, so do not cache them.
        if added and not self._db.in_transaction:
            self._read_charges[dataset] = added[-1][0], charges
        return charges

    def charged(self, dataset: str, plan: bytes, release: int) -> Charge | None:
        """Return the recorded charge of one release; None if there is none."""
        row = self._db.execute(
            "SELECT * FROM charges WHERE dataset = ? AND plan = ? AND release = ?",
            (dataset, plan, release),
        ).fetchone()
        return None if row is None else Charge(*row)

    def datasets(self) -> list[str]:
        """Return all datasets with a ceiling or a charge."""
        query = "SELECT dataset FROM ceilings UNION SELECT dataset FROM charges ORDER BY 1"
        return [row[0] for row in self._db.execute(query)]

    def epsilon(
        self, dataset: str, delta: float | None = None, more: Charge | None = None
    ) -> float:
        """Return the epsilon that all charges on a dataset have spent.

        Parameters
        ----------
        dataset : str
        delta : float, optional
            The delta at which epsilon is computed. Default: the ceiling's delta.
        more : Charge, optional
            A further charge. It is counted unless the ledger already has a charge for the same
            release of the same plan.
        """
        if delta is None:
            ceiling = self.ceiling(dataset)
            if ceiling is None:
                raise InputError(f'no ceiling is set for dataset "{dataset}"')
            delta = ceiling[1]
        charges = self._charges(dataset)
        if more is not None and self.charged(dataset, more.plan, more.release) is None:
            charges = [*charges, more]
        return epsilon_of_charges(charges, delta)

    def allows(self, charge: Charge) -> bool:
        """Return True if the dataset's spent epsilon with this charge is within its ceiling.

        A charge that is already recorded is not counted twice.
        """
        ceiling = self.ceiling(charge.dataset)
        if ceiling is None:
            return False
        # A charge that exactly reaches the ceiling must be allowed, despite rounding errors.
        return self.epsilon(charge.dataset, more=charge) <= ceiling[0] * (1.0 + 1e-9)

    def _over_budget_text(self, charge: Charge) -> str:
        """Return the error text for a charge above the ceiling, with the epsilon that is needed."""
        release, dataset = charge.release, charge.dataset
        spending = f"release {release}"
        if release < 0:
            spending = f"the whole plan once more, since records of release {-release} were lost,"
        text = (
            f'{spending} would spend more than the ceiling of dataset "{dataset}"; nothing was sent'
        )
        if (ceiling := self.ceiling(dataset)) is None:
            return text
        needed_epsilon = rounded_up(self.epsilon(dataset, more=charge))
        options = f"--epsilon {needed_epsilon} or more at --delta {ceiling[1]:g}"
        return f"{text}: join the same plan with {options}, or leave"

    def charge(self, charge: Charge) -> None:
        """Record a charge. Recording the same charge again changes nothing.

        Raises
        ------
        OverBudget
            If the charge exceeds the ceiling.
        InputError
            If the release was charged for a different report.
        """
        with transaction(self._db):
            recorded = self.charged(charge.dataset, charge.plan, charge.release)
            if recorded is not None and recorded != charge:
                raise InputError(f"release {charge.release} was charged for another report")
            if recorded is None and not self.allows(charge):
                raise OverBudget(self._over_budget_text(charge))
            if recorded is None:
                self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charge)
                self._append("charge", charge)


def epsilon_of_charges(charges: Iterable[Charge], delta: float) -> float:
    """Return the epsilon of a composition of charges at delta.

    The result is the smaller of two bounds. The first composes all charges by their ``mu2``. The
    second adds up the pure epsilons of the charges that have one, and composes only the other
    charges by ``mu2``.
    """
    all_charges = list(charges)
    not_pure = [c for c in all_charges if not c.pure]
    epsilon_by_mu2 = _epsilon_by_mu2(all_charges, delta)
    if len(not_pure) == len(all_charges):
        return epsilon_by_mu2
    pure = math.fsum(c.pure for c in all_charges) * _ROUND_UP
    return min(epsilon_by_mu2, pure + _epsilon_by_mu2(not_pure, delta))


def _epsilon_by_mu2(charges: list[Charge], delta: float) -> float:
    """Return the epsilon of a composition of charges at delta, by the sum of their ``mu2``.

    The result is infinite if delta does not exceed the sum of the failure probabilities.
    """
    if not any(c.mu2 for c in charges):
        return 0.0
    mu2 = math.fsum(c.mu2 for c in charges) * _ROUND_UP
    delta_remaining = delta - math.fsum(c.failure for c in charges) * _ROUND_UP
    return _cached_epsilon(math.sqrt(mu2), delta_remaining) if delta_remaining > 0.0 else math.inf


#: Epsilon of a mu-GDP mechanism at delta. Cached: a silo at its ceiling needs it at every tick.
_cached_epsilon = lru_cache(maxsize=256)(gaussian_epsilon)


def spent_lines(ledger: Ledger) -> list[dict[str, Any]]:
    """Return, for each dataset, its ceiling and the epsilon spent on it, as plain data."""
    lines, second_ledgers = [], ledger.second_ledgers()
    for dataset in ledger.datasets():
        ceiling = ledger.ceiling(dataset)
        line: dict[str, Any] = {"dataset": dataset, "charges": len(ledger.charges(dataset))}
        if ceiling is not None:
            line |= {
                "ceiling_epsilon": ceiling[0],
                "delta": ceiling[1],
                "spent_epsilon": ledger.epsilon(dataset),
            }
        if ledger.identity:
            line["ledger"] = ledger.identity.hex()
        if plans := [plan.hex() for name, plan in second_ledgers if name == dataset]:
            line["second_ledger_of_plans"] = plans
        lines.append(line)
    return lines
