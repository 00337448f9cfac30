"""Files of an output folder: whole or not there, and one writer at a time."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastfed._validate import InputError

try:
    import fcntl
except ImportError:  # Windows: SQLite still keeps its file whole, but nobody is refused
    fcntl = None  # type: ignore[assignment]

#: Errors of a disk that takes no more; they are nobody's input.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Taken(Exception):
    """Another process holds a lock."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner  # "1234 on host", or nothing where it is not known


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, which is there only as long as it is held.

    The system lets go of it when the process ends, even by kill -9; a file that is left over then
    stops nobody. Raises Taken where another process holds it (``wait``: waits for it), OSError
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
            raise Taken(owner) from None
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
        raise refusal(path, error) from None
    return path


def refusal(path: Path, error: OSError) -> Exception:
    """What to raise where a path cannot be written: InputError, or the error of a full disk."""
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"cannot write to {path}: {error.strerror or error}")
