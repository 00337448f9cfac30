"""Result folders: what a stored experiment holds, and the files written beside it."""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import InputError, show

# What a store holds, decoded and checked: a file may be damaged, and SQLite does not see it all.
# Whatever is not as a store has it raises one of ``BROKEN``.


#: What comes of decoding what is not what a store holds.
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


def certificate(value: str) -> dict[str, Any]:
    """A certificate as plain data, with all that is read of one."""
    msgspec.json.decode(value, type=_Certificate)
    found: dict[str, Any] = msgspec.json.decode(value)
    return found


def facts(value: str, checkpoints: int) -> dict[str, Any]:
    """A curve's facts; JSON has no infinity, so an infinite bound is stored as null."""
    found: dict[str, Any] = msgspec.json.decode(value)
    for name in ("silos", "dimension"):
        if whole(found[name]) < 1:
            raise ValueError(f"{name} {show(found[name])}")
    for note in found.get("about_records", ()):
        text(note)
    for name, values in found.get("bounds", {}).items():
        values[:] = [math.inf if v is None else float(v) for v in values]
        if len(values) != checkpoints:
            raise ValueError(f"bound {name} has {len(values)} of {checkpoints} checkpoints")
    return found


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Everything under ``meta``, if what is read of it everywhere has its type."""
    identity, rounds = meta["identity"], meta["rounds"]
    text(identity["name"])
    for number in (identity["horizon"], identity["silos"], *rounds):
        if whole(number) < 1:
            raise ValueError(f"horizon, silos and checkpoints are {show(number)}")
    for curve in identity["curves"]:
        text(curve["label"])
    if not (rounds and isinstance(meta["figure"], dict)):
        raise ValueError("checkpoints or figure are missing")
    return meta


def counted(blobs: list[Any], kind: str, checkpoints: int) -> np.ndarray:
    """(R, checkpoints): a column of cells, one of each replicate."""
    rows = [np.frombuffer(blob, kind) for blob in blobs]
    for row in rows:
        if len(row) != checkpoints or not np.isfinite(row).all():
            raise ValueError(f"a cell has no {checkpoints} finite numbers")
    return np.array(rows)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is {show(value)}")
    return value


def whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"a whole number is {show(value)}")
    return value


def finite(value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"a number is {show(value)}")
    return float(value)


# ---- Files of an output folder: whole or not there, and one writer at a time ---------------------


try:
    import fcntl
except ImportError:  # Windows: SQLite still keeps its file whole, but nobody is refused
    fcntl = None  # type: ignore[assignment]

#: Errors of a disk that takes no more; they are nobody's input.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LockHeld(Exception):
    """Another process holds a lock."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner  # "1234 on host", or nothing where it is not known


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, which is there only as long as it is held.

    The system lets go of it when the process ends, even by kill -9; a file that is left over then
    stops nobody. Raises LockHeld where another process holds it (``wait``: waits for it), OSError
    where it cannot be made or the file system has no locks.
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
        # Whoever held it may have removed the file between opening and locking.
        if _same(descriptor, path):
            break
        os.close(descriptor)
    with suppress(OSError):  # a full disk; the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def replace_file(path: Path, data: bytes) -> Path:
    """Write a file under another name first, so that no reader ever meets half of it."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with exclusive(fresh, wait=True):
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
    except OSError as error:
        raise write_error(path, error) from None
    return path


def write_error(path: Path, error: OSError) -> Exception:
    """What to raise where a path cannot be written: InputError, or the error of a full disk."""
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"cannot write to {path}: {error.strerror or error}")
