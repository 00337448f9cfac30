"""Where what was parsed is kept: folders of arrays that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # another number, and nothing old is found again


def cache_folder() -> Path:
    """Where parsed files are kept: $FASTFED_CACHE, or fastfed/ in the user's cache folder."""
    chosen = os.environ.get("FASTFED_CACHE")
    if chosen:
        return Path(chosen)
    home = Path("~").expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "fastfed"


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` at the end, so that no reader sees half of it.

    Whatever is raised inside, or kills the process, leaves no ``folder``; what a killed process
    leaves behind goes with the next one that writes here. Raises OSError when the folder cannot be
    written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(folder.parent)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        with _held(temporary):
            yield temporary
            if folder.exists() and load_meta(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
            # Another process may have been first; its folder holds the same.
            with contextlib.suppress(FileExistsError):
                _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write meta.json."""
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def load_meta(folder: Path) -> dict[str, Any] | None:
    """meta.json of a cache folder, or None when it is absent, damaged or of another format."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def load_array(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read-only memory map of one array of a cache folder, or None unless it has that shape."""
    try:
        values = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return np.asarray(values) if values.shape == shape else None


def _rename(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        if folder.exists():
            raise FileExistsError(folder) from None
        raise


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Mark a temporary folder as in use, by a lock that ends with the process."""
    lock = None
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            lock = os.open(temporary, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _sweep(parent: Path, age: float = 60.0) -> None:
    """Remove what killed processes left half-written: what nobody holds, and is a minute old."""
    for part in parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age and not _in_use(part):
                shutil.rmtree(part, ignore_errors=True)


def _in_use(part: Path) -> bool:
    """Whether a process holds a temporary folder; one of the last day, where there are no locks."""
    if fcntl is None:
        return time.time() - part.stat().st_mtime < 86_400.0
    lock = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return time.time() - part.stat().st_mtime < 86_400.0
    finally:
        os.close(lock)
    return False
