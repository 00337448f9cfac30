"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from fastfed._validate import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that whoever reads it finds the old content or the new one, whole.

    Raises
    ------
    InputError
        If it cannot be written; the old file stays.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(fresh, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if os.name == "posix":  # the name, too, has to reach the disk
        with suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
