"""The log of a party: its writes, in an SQLite file, and a snapshot of the state they lead to.

A write is a row of a table. Writes are *appended* to the log, and a *sync* makes durable all writes
that were appended before it began. Several syncs may run at a time, and writes may be appended
meanwhile. Reads return durable writes only. A party computes its state by applying all writes in
order, also after a restart. No write is ever changed: repeating a write does nothing, and a
different value under the same key is refused.

Two things keep a restart short and old records off the disk. A *snapshot* is the state that the
first writes lead to, so a restart applies only the writes after it. Records that a snapshot covers
may be *erased*: their writes are deleted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from fastfed._sqlite import copied
from fastfed._validate import InputError

T = TypeVar("T")

LOG_SCHEMA = """
CREATE TABLE IF NOT EXISTS writes (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    chain BLOB NOT NULL, UNIQUE (kind, key));
"""

#: No write has a larger number.
MAX_WRITE_NUMBER = 2**62
#: Columns of `LOG_SCHEMA` as `Chain.writes` reads them.
_COLUMNS = "number, kind, key, value, chain"
SNAPSHOT_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS snapshots (name TEXT PRIMARY KEY, value BLOB NOT NULL);"
)


class Write(NamedTuple):
    """One entry of a party's log. The value of a (kind, key) never changes."""

    kind: str
    key: str
    value: bytes


class Conflict(InputError):
    """Raised for a write whose key exists with a different value; nothing was written."""


class SyncFailed(OSError):
    """Raised after a sync has failed: a restart may lose the writes that it should make durable."""


class Syncing(NamedTuple):
    """A sync to disk that has begun and has not ended."""

    #: Descriptor of the file that is synced.
    file: int
    #: Number of the last write that the sync makes durable.
    number: int


class Position(NamedTuple):
    """A place in a log: the number of its last write, and the hash of all writes up to it."""

    number: int = 0
    chain: bytes = bytes(32)


#: The place before the first write.
ORIGIN = Position()


class Store(Protocol):
    """Interface of a party's log: a store of writes, and of a snapshot of the party's state."""

    def write(self, write: Write) -> bool:
        """Store one write; see `write_all`. Return False if it was stored before."""
        return self.write_all((write,))[0]

    def write_all(self, writes: Sequence[Write]) -> list[bool]:
        """Append writes, and make them durable; see `append`."""
        is_new = self.append(writes)
        self.sync()
        return is_new

    def append(self, writes: Sequence[Write]) -> list[bool]:
        """Append writes, all or none; return for each whether it is new.

        Appended writes are durable, and can be read, after a `sync` that begins later. Only one
        thread at a time may append.

        Raises
        ------
        Conflict
            If a different value is stored under the key of a write.
        """
        ...

    def sync(self) -> None:
        """Make durable all writes that were appended before. Several threads may call this at once.

        Raises
        ------
        OSError
            If the disk has failed, at this or an earlier sync. The store takes no more writes then.
        """
        ...

    def begin_sync(self) -> Syncing | None:
        """Begin a sync. Return it with its file, which the caller must sync; None if there is none.

        After syncing the file, the caller must call `end_sync`. The two calls together replace
        `sync`.

        Raises
        ------
        OSError
            See `sync`.
        """
        ...

    def end_sync(self, syncing: Syncing, failure: OSError | None) -> None:
        """Note that a sync has ended, with the error ``failure`` if it has failed.

        Raises
        ------
        OSError
            See `sync`.
        """
        ...

    @property
    def is_untidy(self) -> bool:
        """True if `tidy` has something to do."""
        ...

    def tidy(self) -> None:
        """Do maintenance that is due; other threads may append and sync meanwhile."""
        ...

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the value stored under a (kind, key); None if there is none."""
        ...

    def writes(
        self, after: Position = ORIGIN, until: int | None = None, except_kinds: Sequence[str] = ()
    ) -> Iterator[Write]:
        """Iterate over writes in order.

        Parameters
        ----------
        after : Position
            The place after which the iteration begins.
        until : int, optional
            Number of the last write of the iteration. By default that of the log's last write.
        except_kinds : sequence of str
            Kinds of writes that are left out. If there are any, the chain of hashes is not checked.
        """
        ...

    def records(self, kind: str, after: int, count: int) -> list[tuple[int, Write]]:
        """List (number, write) of the first ``count`` writes of a kind after number ``after``."""
        ...

    @property
    def position(self) -> Position:
        """The place of the last write."""
        ...

    def snapshot(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot by name; empty if there is none."""
        ...

    def save_snapshot(self, parts: Mapping[str, bytes], erase: Sequence[str] = ()) -> None:
        """Replace the stored values of the given parts of the snapshot, and erase records.

        ``erase`` holds the ids of decisions. Two writes of each of them are deleted: the one that
        stored the decision, and the one that stored the end of the decision (kinds `RECORDS`). The
        last write of the log must not be among them.
        """
        ...

    @property
    def erased(self) -> int:
        """Number of the write up to which writes may have been erased; 0 if none was."""
        ...

    def forget(self) -> None:
        """Remove erased records from all files."""
        ...

    def close(self) -> None:
        """Close the files of this store."""
        ...


#: When SQLite's write-ahead log has this many pages, the next transaction copies them to the
#: database file, while calls wait.
WAL_PAGES = 16_000
#: After this many writes, of one to three pages each, `Store.tidy` copies the pages while calls
#: continue. Not more often: the first transaction after a copy syncs the log's new header, so calls
#: then wait for two syncs.
WRITES_BEFORE_TIDY = 4_000
#: Syncs a file's content and, only if the system has no ``fdatasync``, also the file's times.
_sync_content = getattr(os, "fdatasync", os.fsync)

#: Kinds of writes that hold one person's record.
RECORDS = ("decision", "ended")


def opened(path: str, schema: str, tables: set[str]) -> sqlite3.Connection:
    """Open or create a party's SQLite file: synced at each commit, and for its owner only.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    schema : str
        SQL that creates missing tables.
    tables : set of str
        Tables that an existing file must have.
    """
    if path != ":memory:":
        # SQLite gives its other files the mode of the database file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    # Several threads may use the connection: a `Process` has a lock around each use.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        with damage_named(path):
            check_tables(db, path, tables)
            if path != ":memory:":
                os.chmod(path, 0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA secure_delete = ON")
            db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Convert SQLite's errors to errors that name the file.

    These are the errors of a damaged file, of a full disk, and of a disk that cannot be read or
    written.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        # The lowest byte is the kind of the error, the others are details.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise OSError(errno.ENOSPC, f"{error}: make room on the disk", str(path)) from None
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise InputError(f"{path} is damaged ({error}); restore the newest backup") from None


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a block in a transaction, which holds SQLite's write lock from the beginning.

    The transaction is committed at the end of the block, and undone after an error. The commit is
    synced to disk if the connection has ``synchronous = FULL``, as `opened` sets it. `SqliteStore`
    sets NORMAL, and syncs separately.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite itself ends a transaction whose commit finds no room on the disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def check_tables(db: sqlite3.Connection, path: str, tables: set[str]) -> None:
    """Raise InputError if a file is not empty and lacks one of ``tables``.

    A ledger has the table of a log as well, but is not accepted as a log.
    """
    try:
        table_names = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    except sqlite3.OperationalError:
        raise  # the file is in use, or the disk is full
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path} is no SQLite file, or it is damaged ({error}); restore the newest backup"
        ) from None
    if table_names and (
        not tables <= table_names or ("charges" in table_names) != ("charges" in tables)
    ):
        file_kind = "ledger" if "charges" in tables else "log of a party"
        raise InputError(
            f"{path} is no {file_kind} of fastfed: it has other tables; check the path"
        )


def chained(before: bytes, write: Write) -> bytes:
    """Return the SHA-256 of a write and of ``before``, the hash of all earlier writes."""
    hasher = hashlib.sha256(before)
    for part in (write.kind.encode(), write.key.encode(), write.value):
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()


class Chain:
    """Access to the table of the log: each write is stored with the hash of all writes up to it."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name = db, name

    @property
    def position(self) -> Position:
        """The place of the last write."""
        query = "SELECT number, chain FROM writes ORDER BY number DESC LIMIT 1"
        row = self._db.execute(query).fetchone()
        if row and not isinstance(row[1], bytes):
            raise InputError(f"the log of {self._name} is damaged; restore the newest backup")
        return Position(*row) if row else ORIGIN

    @property
    def head(self) -> bytes:
        """Hash of all writes; zeros before the first."""
        return self.position.chain

    def add(self, write: Write, after: Position | None = None) -> Position | None:
        """Add a write after the last one; return its place, or None if its key exists."""
        last = self.position if after is None else after
        place = Position(last.number + 1, chained(last.chain, write))
        insert = "INSERT OR IGNORE INTO writes (number, kind, key, value, chain) VALUES (?,?,?,?,?)"
        cursor = self._db.execute(insert, (place.number, *write, place.chain))
        return place if cursor.rowcount else None

    def value(self, kind: str, key: str, until: int = MAX_WRITE_NUMBER) -> bytes | None:
        """Return the value of a (kind, key) if it was stored up to number ``until``; else None."""
        row = self._db.execute(
            "SELECT value FROM writes WHERE kind = ? AND key = ? AND number <= ?",
            (kind, key, until),
        ).fetchone()
        return None if row is None else row[0]

    def writes(
        self,
        after: Position = ORIGIN,
        until: int | None = None,
        except_kinds: Sequence[str] = (),
        erased: int = 0,
    ) -> Iterator[Write]:
        """Iterate over writes in order; see `Store.writes`.

        Without ``except_kinds``, raise InputError where the chain of hashes breaks. Up to number
        ``erased``, writes may be missing. The hash of a write after a missing one cannot be
        checked.
        """
        head, last_number = after.chain, after.number
        last = MAX_WRITE_NUMBER if until is None else until
        query = f"SELECT {_COLUMNS} FROM writes WHERE number > ? AND number <= ? ORDER BY number"
        rows: Iterable[Any] = self._db.execute(query, (after.number, last))
        if except_kinds:
            # Read the ranges of kinds between the left-out kinds from the index on (kind, key), so
            # that SQLite reads no row of a left-out kind.
            ranges = pairwise(["", *sorted(except_kinds), "\U0010ffff"])
            query = f"SELECT {_COLUMNS} FROM writes WHERE kind > ? AND kind < ?"
            all_rows = (row for edges in ranges for row in self._db.execute(query, edges))
            rows = sorted(row for row in all_rows if after.number < row[0] <= last)
        try:
            for number, kind, key, value, chain in rows:
                write, is_next = Write(kind, key, value), number == last_number + 1
                is_checked = not except_kinds and (is_next or number > erased)
                if is_checked and not (is_next and chained(head, write) == chain):
                    raise InputError(
                        f"the log of {self._name} is broken at entry {number}; restore the newest "
                        "backup"
                    )
                head, last_number = chain, number
                yield write
        except (sqlite3.DatabaseError, TypeError, AttributeError) as error:
            # One of the last two errors is raised if a value in the file has a different type.
            raise InputError(
                f"the log of {self._name} is damaged after entry {last_number} ({error}); "
                "restore the newest backup"
            ) from None


class SqliteStore(Store):
    """Store writes in an SQLite file, with a chain of SHA-256 hashes that shows changes.

    One process at a time can open a file. Reads use a second connection, so that they do not wait
    for a transaction.

    Parameters
    ----------
    path : str
        The file, or ":memory:".

    Raises
    ------
    InputError
        If a different process uses the file, or it is not the log of a party.

    Notes
    -----
    A transaction of SQLite ends when its pages are written to the write-ahead log, and does not
    sync (``synchronous = NORMAL``). `sync` syncs that file: SQLite does so itself only before it
    copies the pages to the database file, and after it starts the log from its beginning. A
    transaction that is lost in a power cut is lost with all later ones.
    """

    def __init__(self, path: str) -> None:
        #: Descriptor that locks the file for this process; None for a store in memory.
        self._lock: int | None = None
        self._attach(opened(path, LOG_SCHEMA + SNAPSHOT_SCHEMA, {"writes"}), path)
        if path == ":memory:":
            return
        try:
            self._lock = _locked(path)
            # A killed process may have left erased records in SQLite's write-ahead log. Copying
            # the log also makes durable what an earlier process could not sync.
            _, pages, copied_pages = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if copied_pages < pages:
                raise OSError(errno.EBUSY, "a different program reads the file", path)
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            self._reads = sqlite3.connect(
                f"{Path(path).resolve().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
            self._read_chain = Chain(self._reads, path)
            self._copier = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except BaseException:
            self.close()
            raise

    @classmethod
    def read(cls, path: str | Path) -> SqliteStore:
        """Return a copy in memory of a party's log, even while a process uses the file.

        If there is no file, the copy is an empty log.

        Raises
        ------
        InputError
            If it is not the log of a party.
        """
        db = copied(path) if Path(path).exists() else sqlite3.connect(":memory:")
        db.isolation_level = None
        with damage_named(path):
            check_tables(db, str(path), {"writes"})
            db.executescript(LOG_SCHEMA + SNAPSHOT_SCHEMA)
        store = cls.__new__(cls)
        store._lock = None
        store._attach(db, str(path))
        return store

    def _attach(self, db: sqlite3.Connection, path: str) -> None:
        """Set the attributes for an open connection."""
        self._db, self.path = db, path
        #: Id of the process that opened the file. After a fork, the child would share the lock.
        self._process = os.getpid()
        #: Connections for reads, and for `tidy`; `__init__` opens new connections for a file.
        self._reads = self._copier = db
        self._chain = self._read_chain = Chain(db, path)
        with damage_named(path):
            self._position = self._chain.position
        #: Number of the last write that is durable.
        self._durable = self._position.number
        #: Descriptors of the write-ahead log that no sync uses now. No two syncs share a descriptor
        #: at a time, because the system reports a failure only once for each descriptor.
        self._descriptors: list[int] = []
        #: The error of the first sync that has failed.
        self._failure: OSError | None = None
        #: Number of writes since the last `tidy`; a large one counts once more for each 4096 bytes.
        self._untidy_writes = 0
        #: Locks: one thread at a time copies the write-ahead log, and one updates `_durable`.
        self._copy_lock, self._durable_lock = threading.Lock(), threading.Lock()

    @property
    def position(self) -> Position:
        """The place of the last write."""
        return self._position

    @property
    def head(self) -> bytes:
        """Hash of all writes."""
        return self._position.chain

    def close(self) -> None:
        """Close the file."""
        self._reads.close()
        self._copier.close()
        self._db.close()
        # SQLite has no locks on the write-ahead log, so these descriptors may be closed.
        while self._descriptors:
            os.close(self._descriptors.pop())
        # After SQLite: closing a descriptor of the file would drop SQLite's own locks.
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, writes: Sequence[Write]) -> list[bool]:
        """Append writes in one transaction, which is not synced; see `Store.append`."""
        self._check_disk()
        last, is_new = self._position, []
        with transaction(self._db):
            for write in writes:
                place = self._chain.add(write, last)
                is_new.append(place is not None)
                last = last if place is None else place
                if place is None and self._chain.value(write.kind, write.key) != write.value:
                    raise Conflict(
                        f"{write.kind} {write.key} is already stored with different content"
                    )
        self._position = last
        self._untidy_writes += sum(1 + len(write.value) // 4096 for write in writes)
        return is_new

    def sync(self) -> None:
        """Sync the write-ahead log; see `Store.sync`.

        After a failure, a later sync that succeeds proves nothing: the system may have dropped what
        it could not write. So all later calls fail, until a new process has read the file.
        """
        syncing = self.begin_sync()
        if syncing is None:
            return
        try:
            _sync_content(syncing.file)
        except OSError as error:
            self.end_sync(syncing, error)
        except BaseException:
            # After an interrupt, it is not known whether the log is durable.
            with suppress(SyncFailed):
                self.end_sync(syncing, OSError(errno.EINTR, os.strerror(errno.EINTR)))
            raise
        else:
            self.end_sync(syncing, None)

    def begin_sync(self) -> Syncing | None:
        """Begin a sync of the write-ahead log; see `Store.begin_sync`."""
        self._check_disk()
        number = self._position.number
        if self._lock is None:
            # A store in memory has no file to sync.
            self._durable = number
            return None
        if self._descriptors:
            return Syncing(self._descriptors.pop(), number)
        # All descriptors are in use: open a further one. The file of the write-ahead log exists
        # while a connection is open.
        return Syncing(os.open(f"{self.path}-wal", os.O_RDWR), number)

    def end_sync(self, syncing: Syncing, failure: OSError | None) -> None:
        """Note that a sync has ended; see `Store.end_sync`."""
        self._descriptors.append(syncing.file)
        self._failure = self._failure or failure
        self._check_disk()
        with self._durable_lock:
            self._durable = max(self._durable, syncing.number)

    def _check_disk(self) -> None:
        """Raise OSError if a sync has failed, and InputError in a forked process."""
        if os.getpid() != self._process:
            raise InputError(
                f"{self.path} cannot be used in a forked process, which would share it with the "
                "process that opened it: open it after the fork, in one process"
            )
        if self._failure is not None:
            raise SyncFailed(
                self._failure.errno,
                f"a sync to disk failed ({self._failure.strerror}): check the disk, and restart",
                self.path,
            )

    @property
    def is_untidy(self) -> bool:
        """True if `WRITES_BEFORE_TIDY` writes were appended since the last `tidy`."""
        return self._untidy_writes >= WRITES_BEFORE_TIDY

    def tidy(self) -> None:
        """Copy the write-ahead log to the database file, if `is_untidy`; see `Store.tidy`.

        Without this, the next transaction would copy the log once it has `WAL_PAGES` pages, and
        calls would wait meanwhile. With it, such copies are rare and short.
        """
        if not self.is_untidy or not self._copy_lock.acquire(blocking=False):
            return
        try:
            self._untidy_writes = 0
            with suppress(sqlite3.OperationalError):
                # If the disk is full or fails, the next append reports it.
                self._copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            self._copy_lock.release()

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the durable value stored under a (kind, key); None if there is none."""
        return self._read_chain.value(kind, key, self._durable)

    def writes(
        self, after: Position = ORIGIN, until: int | None = None, except_kinds: Sequence[str] = ()
    ) -> Iterator[Write]:
        """Iterate over writes in order; see `Store.writes`.

        Raises
        ------
        InputError
            If the chain of hashes is broken, because a write was changed or removed.
        """
        last = self._durable if until is None else min(until, self._durable)
        return self._read_chain.writes(after, last, except_kinds, self.erased)

    def records(self, kind: str, after: int, count: int) -> list[tuple[int, Write]]:
        """List writes of one kind with their numbers; see `Store.records`."""
        # "+kind" keeps SQLite from using the index on (kind, key): it reads the rows by number.
        rows = self._reads.execute(
            "SELECT number, kind, key, value FROM writes "
            "WHERE number > ? AND number <= ? AND +kind = ? ORDER BY number LIMIT ?",
            (after, self._durable, kind, count),
        )
        return [(number, Write(*write)) for number, *write in rows]

    def snapshot(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot by name; empty if there is none."""
        return dict(self._reads.execute("SELECT name, value FROM snapshots"))

    def save_snapshot(self, parts: Mapping[str, bytes], erase: Sequence[str] = ()) -> None:
        """Store parts of a snapshot, and erase records; see `Store.save_snapshot`.

        This is not synced: if the snapshot is lost, the next one replaces it. SQLite overwrites
        erased records with zeros, but its write-ahead log may hold them until `forget`.
        """
        self._check_disk()
        erased = {"erased": str(self._position.number).encode()} if erase else {}
        with transaction(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?)", [*parts.items(), *erased.items()]
            )
            self._db.executemany(
                "DELETE FROM writes WHERE kind = ? AND key = ?",
                [(kind, key) for key in erase for kind in RECORDS],
            )

    @property
    def erased(self) -> int:
        """Number of the write up to which writes may have been erased; 0 if none was."""
        query = "SELECT value FROM snapshots WHERE name = 'erased'"
        row = self._reads.execute(query).fetchone()
        return 0 if row is None else int(row[0])

    def forget(self) -> None:
        """Empty SQLite's write-ahead log, which may hold erased records.

        Raises
        ------
        OSError
            If a different program reads the file at this moment.
        """
        with self._copy_lock:
            is_busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if is_busy:
            raise OSError(errno.EBUSY, "erased records are still in the log's -wal file", self.path)


def _locked(path: str) -> int:
    """Lock a party's log for this process; return the descriptor that holds the lock.

    Raises
    ------
    InputError
        If it is locked already, by another process or by an object of this process that is open.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{path} is in use by another process, or by an object of this one that is not closed"
        ) from None
    return descriptor


class MemoryStore(Store):
    """Store writes in memory, for tests and demonstrations."""

    erased = 0

    def __init__(self, writes: Sequence[Write] = ()) -> None:
        #: All writes in order; None in place of an erased write.
        self._writes: list[Write | None] = list(writes)
        self._values = {write[:2]: write.value for write in writes}
        self._snapshot = dict[str, bytes]()

    def write(self, write: Write) -> bool:
        """Store one write; see `Store.write`."""
        stored = self._values.get(write[:2])
        if stored is not None:
            if stored != write.value:
                raise Conflict(f"{write.kind} {write.key} is already stored with different content")
            return False
        self._values[write[:2]] = write.value
        self._writes.append(write)
        return True

    def sync(self) -> None:
        """Do nothing: nothing here is durable."""

    def begin_sync(self) -> Syncing | None:
        """Return None: there are no files."""
        return None

    def end_sync(self, syncing: Syncing, failure: OSError | None) -> None:
        """Do nothing: there are no files."""

    @property
    def is_untidy(self) -> bool:
        """False: there are no files."""
        return False

    def tidy(self) -> None:
        """Do nothing: there are no files."""

    def append(self, writes: Sequence[Write]) -> list[bool]:
        """Append writes; see `Store.append`."""
        count = len(self._writes)
        try:
            return [self.write(write) for write in writes]
        except BaseException:
            for write in self._writes[count:]:
                if write is not None:
                    del self._values[write[:2]]
            del self._writes[count:]
            raise

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the value stored under a (kind, key); None if there is none."""
        return self._values.get((kind, key))

    def writes(
        self, after: Position = ORIGIN, until: int | None = None, except_kinds: Sequence[str] = ()
    ) -> Iterator[Write]:
        """Iterate over writes in order; see `Store.writes`."""
        return (
            write
            for write in self._writes[after.number : until]
            if write and write.kind not in except_kinds
        )

    def records(self, kind: str, after: int, count: int) -> list[tuple[int, Write]]:
        """List writes of one kind with their numbers; see `Store.records`."""
        numbered = enumerate(self._writes[after:], after + 1)
        return [(n, w) for n, w in numbered if w and w.kind == kind][:count]

    @property
    def position(self) -> Position:
        """The place of the last write; this store has no chain of hashes."""
        return Position(len(self._writes))

    def snapshot(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot by name; empty if there is none."""
        return dict(self._snapshot)

    def save_snapshot(self, parts: Mapping[str, bytes], erase: Sequence[str] = ()) -> None:
        """Store parts of a snapshot, and erase records; see `Store.save_snapshot`."""
        self._snapshot |= parts
        for place, write in enumerate(self._writes):
            if write is not None and write.kind in RECORDS and write.key in erase:
                self._writes[place] = None
                del self._values[write[:2]]
                # From now on, any write up to the present last one may have been erased.
                self.erased = len(self._writes)

    def forget(self) -> None:
        """Do nothing: there are no files."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class StoredValues(Mapping[str, T]):
    """The values of one kind of write by their keys, read from the store when they are needed.

    Parameters
    ----------
    kind : str
    decode : callable
        Converts the bytes of a value.
    """

    def __init__(self, kind: str, decode: Callable[[bytes], T]) -> None:
        self.store: Store = MemoryStore()
        #: Number of values; the owner of this object sets it.
        self.count = 0
        self._kind, self._decode = kind, decode

    def __getitem__(self, key: str) -> T:
        value = self.store.value(self._kind, key)
        if value is None:
            raise KeyError(key)
        return self._decode(value)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys in order."""
        return (write.key for write in self.store.writes() if write.kind == self._kind)

    def __len__(self) -> int:
        return self.count
