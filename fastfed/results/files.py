"""Files of a result folder: decoding what a store holds, lock files, and writing whole files."""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import InputError, check_plain, is_line, show

# ---- Decoding ------------------------------------------------------------------------------------
# A file may be damaged in ways that SQLite does not see, so every value is checked when it is read.

#: Errors that decoding a damaged value raises.
BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


class _Condition(msgspec.Struct):
    text: str
    holds: bool


class _Guarantee(msgspec.Struct):
    epsilon: float | None  # JSON has no infinity
    delta: float | None


class _Side(msgspec.Struct, kw_only=True):
    unit: str
    relation: str
    model: str
    claimed: _Guarantee | None
    exact: _Guarantee | None
    status: str
    source: str
    noise_std: dict[str, float | None]
    conditions: list[_Condition]
    caveats: list[str]


class _Certificate(_Side, kw_only=True):
    also: list[_Side] = []


def decode_certificate(value: str) -> dict[str, Any]:
    """Return a stored certificate as plain data, after a check of every field that is read."""
    msgspec.json.decode(value, type=_Certificate)
    found: dict[str, Any] = msgspec.json.decode(value)
    return found


def decode_facts(value: str, checkpoints: int) -> dict[str, Any]:
    """Return a curve's stored facts: silos, dimension, bounds and notes.

    JSON has no infinity, so an infinite bound is stored as null.
    """
    found: dict[str, Any] = msgspec.json.decode(value)
    for name in ("silos", "dimension"):
        if check_whole(found[name]) < 1:
            raise ValueError(f"{name} {show(found[name])}")
    for note in found.get("about_records", ()):
        check_text(note)
    for name, values in found.get("bounds", {}).items():
        values[:] = [math.inf if v is None else float(v) for v in values]
        if len(values) != checkpoints:
            raise ValueError(f"bound {name} has {len(values)} of {checkpoints} checkpoints")
    return found


def check_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the table ``meta``, after a check of the types that readers rely on."""
    identity, rounds = meta["identity"], meta["rounds"]
    check_text(identity["name"])
    for number in (identity["horizon"], identity["silos"], *rounds):
        if check_whole(number) < 1:
            raise ValueError(f"horizon, silos and checkpoints are {show(number)}")
    for curve in identity["curves"]:
        check_text(curve["label"])
    if not (rounds and isinstance(meta["figure"], dict)):
        raise ValueError("checkpoints or figure are missing")
    check_plain("figure", meta["figure"])
    return meta


def decode_replicates(blobs: list[Any], kind: str, checkpoints: int) -> np.ndarray:
    """Return one column of a curve, (R, checkpoints), from a blob of each replicate."""
    rows = [np.frombuffer(blob, kind) for blob in blobs]
    for row in rows:
        if len(row) != checkpoints or not np.isfinite(row).all():
            raise ValueError(f"a replicate has no {checkpoints} finite numbers")
    return np.array(rows)


def check_text(value: Any) -> str:
    """Return value if it is a text on one line: certificates and tables have it in theirs."""
    if not isinstance(value, str) or not is_line(value):
        raise ValueError(f"a text is {show(value)}")
    return value


def check_whole(value: Any) -> int:
    """Return value if it is an integer."""
    if not isinstance(value, int):
        raise ValueError(f"a whole number is {show(value)}")
    return value


def check_finite(value: Any) -> float:
    """Return value as a float if it is a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"a number is {show(value)}")
    return float(value)


# ---- Locks and whole files -----------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows: SQLite keeps its file whole, but a second writer is not refused
    fcntl = None  # type: ignore[assignment]

#: Errors of a full or failing disk, which no input can mend.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LockHeld(Exception):
    """Raised where another process holds a lock."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner  # "1234 on host", or empty where it is not known


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file, which exists only while it is held.

    The system releases the lock when the process ends, even after kill -9; a file left over then
    blocks nobody.

    Parameters
    ----------
    path : Path
        The lock file.
    wait : bool
        Wait for another process instead of raising LockHeld.

    Raises
    ------
    LockHeld
        If another process holds the lock.
    OSError
        If the file cannot be created, or the file system has no locks.
    """
    if fcntl is None:
        yield
        return
    descriptor = _locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        with suppress(OSError):
            if _same(descriptor, path):
                path.unlink()
        os.close(descriptor)


def _locked(path: Path, how: int) -> int:
    """Return a descriptor of the locked file, which then names this process."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            owner = os.pread(descriptor, 300, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockHeld(owner) from None
        except BaseException:
            os.close(descriptor)
            raise
        # The former holder may have removed the file between opening and locking.
        if _same(descriptor, path):
            break
        os.close(descriptor)
    with suppress(OSError):  # on a full disk the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def holders(path: Path) -> list[str]:
    """Name the processes that hold locks of a file; none where the system does not tell (Linux)."""
    found = {}
    with suppress(OSError):
        wanted = path.stat()
        device = f"{os.major(wanted.st_dev):02x}:{os.minor(wanted.st_dev):02x}:{wanted.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if device in fields and "->" not in fields:
                number = fields[fields.index(device) - 1]
                found[number] = _program(number)
    return [f"process {number}{name}" for number, name in found.items()]


def _program(number: str) -> str:
    """Return the name of a process in brackets, empty if it is not known."""
    try:
        return f" ({Path(f'/proc/{number}/comm').read_text().strip()})"
    except OSError:
        return ""


def _same(descriptor: int, path: Path) -> bool:
    """Return True if the descriptor is of the file that is at path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def opener(private: bool) -> Callable[[str, int], int]:
    """Return an opener for `open`: a file that is created is then for its owner alone (0600)."""

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600 if private else 0o666)

    return opened


def replace_file(path: Path, data: bytes, private: bool = False) -> Path:
    """Write a file under another name and rename it, so that no reader ever sees half of it.

    ``private``: only its owner may read it (mode 0600).

    Raises
    ------
    InputError
        If the path cannot be written.
    OSError
        If the disk is full or fails.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        with exclusive(fresh, wait=True):
            with open(fresh, "wb", opener=opener(private)) as file:
                if private and hasattr(os, "fchmod"):  # the lock has made the file already
                    os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
    except OSError as error:
        raise write_error(path, error) from None
    return path


def write_error(path: Path, error: OSError) -> Exception:
    """Return the exception to raise for a failed write: InputError, or OSError of a full disk."""
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"cannot write to {path}: {error.strerror or error}")
