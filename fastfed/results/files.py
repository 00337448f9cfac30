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
# SQLite does not notice every kind of damage, so every value is checked when it is read.

#: Errors that decoding a damaged value may raise.
BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


# The four classes below describe the JSON of a stored certificate. msgspec checks the types of its
# fields.


class _Condition(msgspec.Struct):
    text: str
    holds: bool


class _Guarantee(msgspec.Struct):
    epsilon: float | None  # None for infinity, which JSON does not have
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
    """Decode a stored certificate to plain data, and check the types of all its fields."""
    msgspec.json.decode(value, type=_Certificate)
    certificate: dict[str, Any] = msgspec.json.decode(value)
    return certificate


def decode_facts(value: str, checkpoints: int) -> dict[str, Any]:
    """Decode and check the stored facts of a curve: silos, dimension, bounds, notes and others.

    JSON has no infinity, so a bound that is stored as null is infinite.

    Parameters
    ----------
    value : str
        The facts, as JSON.
    checkpoints : int
        Number of values that each bound must have.
    """
    facts: dict[str, Any] = msgspec.json.decode(value)
    for name in ("silos", "dimension"):
        if check_whole(facts[name]) < 1:
            raise ValueError(f"{name} {show(facts[name])}")
    for note in (*facts.get("about_records", ()), *facts.get("cautions", ())):
        check_text(note)
    if "random_regret" in facts:
        mean, stderr = map(check_finite, facts["random_regret"])
        facts["random_regret"] = mean, stderr
    for name, values in facts.get("bounds", {}).items():
        values[:] = [math.inf if v is None else float(v) for v in values]
        if len(values) != checkpoints:
            raise ValueError(f"bound {name} has {len(values)} of {checkpoints} checkpoints")
    return facts


def check_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded table ``meta``; raise ValueError if a type that readers need is wrong."""
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
    """Decode one quantity of a curve, such as regret: an array (R, checkpoints).

    Parameters
    ----------
    blobs : list of bytes
        The values of each replicate.
    kind : str
        NumPy type of the values, such as "<f8".
    checkpoints : int
        Number of values that each replicate must have.
    """
    rows = [np.frombuffer(blob, kind) for blob in blobs]
    for row in rows:
        if len(row) != checkpoints or not np.isfinite(row).all():
            raise ValueError(f"a replicate must have {checkpoints} finite numbers")
    return np.array(rows)


def check_text(value: Any) -> str:
    """Return ``value`` if it is text on one line; raise ValueError if not."""
    if not isinstance(value, str) or not is_line(value):
        raise ValueError(f"expected text, got {show(value)}")
    return value


def check_whole(value: Any) -> int:
    """Return ``value`` if it is an integer; raise ValueError if not."""
    if not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {show(value)}")
    return value


def check_finite(value: Any) -> float:
    """Return ``value`` as a float if it is a finite number; raise ValueError if not."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {show(value)}")
    return float(value)


# ---- Locks and atomic writes ---------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows. A second writer is not refused; SQLite still protects its file
    fcntl = None  # type: ignore[assignment]

#: Error numbers of a full or failing disk. They are not the user's mistakes, so not InputErrors.
DISK_ERROR_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LockHeld(Exception):
    """Raised if another process holds a lock."""

    def __init__(self, owner: str) -> None:
        """Store the owner of the lock."""
        super().__init__(owner)
        self.owner = owner  # such as "1234 on host"; empty if it is not known


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file during a `with` block; the file exists only while the lock is held.

    The system releases the lock when the process ends, even after kill -9. The file that then
    remains does not block other processes.

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
        # Between open and lock, the previous holder may have removed the file: then try again.
        if _is_same_file(descriptor, path):
            break
        os.close(descriptor)
    with suppress(OSError):  # a full disk prevents writing the name, but the lock still works
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def holders(path: Path) -> list[str]:
    """Return a text such as "process 12 (python)" for each process that holds a lock of a file.

    Return an empty list on systems other than Linux, which have no /proc/locks.
    """
    names = {}
    with suppress(OSError):
        status = path.stat()
        # A line has the process id, then device and inode; "->" marks a process that waits.
        file_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if file_id in fields and "->" not in fields:
                process_id = fields[fields.index(file_id) - 1]
                names[process_id] = _program(process_id)
    return [f"process {process_id}{name}" for process_id, name in names.items()]


def _program(process_id: str) -> str:
    """Return the name of a process's program as " (name)"; "" if it is not known."""
    try:
        return f" ({Path(f'/proc/{process_id}/comm').read_text().strip()})"
    except OSError:
        return ""


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return True if an open file is still the file at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def opener(private: bool) -> Callable[[str, int], int]:
    """Return an argument ``opener`` for `open`; if ``private``, new files get the mode 0600."""

    def open_file(path: str, flags: int) -> int:
        """Open a file, and give it the mode 0600 or 0666 if it is new."""
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
    temporary = path.with_name(f".{path.name}.new")
    try:
        with exclusive(temporary, wait=True):
            with open(temporary, "wb", opener=opener(private)) as file:
                if private and hasattr(os, "fchmod"):  # the lock has created a readable file
                    os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise write_error(path, error) from None
    return path


def write_error(path: Path, error: OSError) -> Exception:
    """Return the exception to raise after a failed write.

    It is an OSError for a full or failing disk, and an InputError for any other cause.
    """
    if error.errno in DISK_ERROR_NUMBERS:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"cannot write to {path}: {error.strerror or error}")
