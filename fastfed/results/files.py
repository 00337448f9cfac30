"""Helpers for files of a result folder: checked decoding, lock files, and atomic writes."""

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
# A file may be damaged in ways that SQLite does not notice. So every value is checked when it is
# read.

#: Errors that decoding a damaged value may raise.
BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


# The four classes below describe the JSON of a stored certificate, for the check of its types.


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
    """Return a stored certificate as plain data, after checking the types of all fields."""
    msgspec.json.decode(value, type=_Certificate)
    certificate: dict[str, Any] = msgspec.json.decode(value)
    return certificate


def decode_facts(value: str, checkpoints: int) -> dict[str, Any]:
    """Return the stored facts of a curve: silos, dimension, bounds and notes.

    JSON has no infinity. A bound that is stored as null is infinite.
    """
    facts: dict[str, Any] = msgspec.json.decode(value)
    for name in ("silos", "dimension"):
        if check_whole(facts[name]) < 1:
            raise ValueError(f"{name} {show(facts[name])}")
    for note in facts.get("about_records", ()):
        check_text(note)
    for name, values in facts.get("bounds", {}).items():
        values[:] = [math.inf if v is None else float(v) for v in values]
        if len(values) != checkpoints:
            raise ValueError(f"bound {name} has {len(values)} of {checkpoints} checkpoints")
    return facts


def check_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the table ``meta``, after checking the types that readers rely on."""
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
    """Return one column of a curve, shape (R, checkpoints), from the blobs of R replicates."""
    rows = [np.frombuffer(blob, kind) for blob in blobs]
    for row in rows:
        if len(row) != checkpoints or not np.isfinite(row).all():
            raise ValueError(f"a replicate must have {checkpoints} finite numbers")
    return np.array(rows)


def check_text(value: Any) -> str:
    """Return ``value`` if it is text on one line, since certificates and tables print it."""
    if not isinstance(value, str) or not is_line(value):
        raise ValueError(f"expected text, got {show(value)}")
    return value


def check_whole(value: Any) -> int:
    """Return ``value`` if it is an integer."""
    if not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {show(value)}")
    return value


def check_finite(value: Any) -> float:
    """Return ``value`` as a float if it is a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {show(value)}")
    return float(value)


# ---- Locks and atomic writes ---------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows. A second writer is not refused; SQLite still protects its file
    fcntl = None  # type: ignore[assignment]

#: Errors of a full or failing disk, which no other input would avoid.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LockHeld(Exception):
    """Raised if another process holds a lock."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner  # such as "1234 on host"; empty if it is not known


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file, which exists only while it is held.

    The system releases the lock when the process ends, even after kill -9. A lock file that such a
    process left behind blocks no other process.

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
    descriptor = _lock(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_same_file(descriptor, path):
                path.unlink()
        os.close(descriptor)


def _lock(path: Path, flags: int) -> int:
    """Lock a file, write the name of this process into it, and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, flags)
        except BlockingIOError:
            owner = os.pread(descriptor, 300, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockHeld(owner) from None
        except BaseException:
            os.close(descriptor)
            raise
        # The previous holder may have removed the file after it was opened here.
        if _is_same_file(descriptor, path):
            break
        os.close(descriptor)
    with suppress(OSError):  # a full disk prevents writing the name, but the lock still works
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def holders(path: Path) -> list[str]:
    """Return the names of the processes that hold locks of a file.

    Return an empty list on systems without /proc/locks, which only Linux has.
    """
    names = {}
    with suppress(OSError):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if device in fields and "->" not in fields:
                number = fields[fields.index(device) - 1]
                names[number] = _program(number)
    return [f"process {number}{name}" for number, name in names.items()]


def _program(number: str) -> str:
    """Return the name of the program of a process in brackets, or "" if it is not known."""
    try:
        return f" ({Path(f'/proc/{number}/comm').read_text().strip()})"
    except OSError:
        return ""


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return True if the open file is still the file at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def opener(private: bool) -> Callable[[str, int], int]:
    """Return an ``opener`` for `open`. If ``private``, new files get the mode 0600."""

    def open_file(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600 if private else 0o666)

    return open_file


def replace_file(path: Path, data: bytes, private: bool = False) -> Path:
    """Write a file atomically: under a temporary name, which is then renamed.

    Parameters
    ----------
    path : Path
        The file.
    data : bytes
        Its content.
    private : bool
        True if only the owner may read the file (mode 0600).

    Returns
    -------
    Path
        ``path``.

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
                if private and hasattr(os, "fchmod"):  # the lock created the file as readable
                    os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
    except OSError as error:
        raise write_error(path, error) from None
    return path


def write_error(path: Path, error: OSError) -> Exception:
    """Return the exception to raise after a failed write.

    This is an OSError for a full or failing disk, and an InputError for any other reason.
    """
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"cannot write to {path}: {error.strerror or error}")
