"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from fastfed._validate import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the complete old or the complete new content.

    Raises
    ------
    InputError
        If the file cannot be written. The old file does not change.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if os.name == "posix":  # the directory entry must reach the disk too
        with suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
