"""Pictures that were drawn before of the same curves, and are not drawn again.

``.pictures`` in an output folder holds digests: of what all pictures were made from, and of each
file. A picture is taken from its file only where both are right; a file that somebody changed or
removed is drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fastfed
from fastfed._validate import InputError
from fastfed.reporting.figure import Source
from fastfed.results.files import replace_file

FILE = ".pictures"
#: Fields that say how long something took, or when it was made: no picture shows them.
TIMES = ("agent_rounds_per_second", "made")


class _Kept(msgspec.Struct):
    made_from: str
    kinds: list[str]
    digests: dict[str, str]  # by file name


def pictures(
    source: Source,
    folder: Path,
    kinds: Collection[str],
    draw: Callable[[Collection[str]], dict[str, bytes]],
) -> dict[str, bytes]:
    """Every picture of ``kinds`` by name: as its file has it, or as ``draw`` draws its kind."""
    made_from = made_from_digest(source)
    before = _read(folder / FILE, made_from)
    found = {name: _data(folder / name, digest) for name, digest in before.digests.items()}
    damaged = {_kind(name) for name, data in found.items() if data is None}
    wanted = [kind for kind in kinds if kind not in before.kinds or kind in damaged]
    whole = {
        name: data
        for name, data in found.items()
        if data is not None and _kind(name) in kinds and _kind(name) not in wanted
    }
    if not wanted:
        return whole
    drawn = draw(wanted)
    if not drawn:
        return whole
    others = {name: d for name, d in before.digests.items() if _kind(name) not in wanted}
    fresh = {name: hashlib.sha256(data).hexdigest() for name, data in drawn.items()}
    digests = dict(sorted({**others, **fresh}.items()))
    kept = _Kept(made_from, sorted({*before.kinds, *wanted}), digests)
    # Where it cannot be written, the report itself will say so.
    with suppress(InputError, OSError):
        replace_file(
            folder / FILE, msgspec.msgpack.encode(kept), private=bool(source.about_records)
        )
    return {**whole, **drawn}


def current(source: Source, folder: Path) -> set[str]:
    """Names of the picture files in a folder that show these results."""
    before = _read(folder / FILE, made_from_digest(source))
    return {name for name, d in before.digests.items() if _data(folder / name, d) is not None}


def made_from_digest(source: Source) -> str:
    """SHA-256 of all that pictures are made from: results, the code that draws, its libraries."""
    parts = (
        *(fastfed.__version__, _code(), _matplotlib(), np.__version__),
        *(source.title, source.setting, source.replicates, source.notes),
        *(source.batch_sizes, source.radius_multipliers, source.identity),
        {
            name: value
            for name, value in vars(source.results).items()
            if name not in ("curves", *TIMES)
        },
        [
            {name: value for name, value in vars(curve).items() if name not in TIMES}
            for curve in source.results.curves
        ],
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts, enc_hook=_plain)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return [data.dtype.str, list(data.shape), hashlib.sha256(data.tobytes()).digest()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return dict(value)
    raise TypeError(f"a picture cannot depend on a {type(value).__name__}")


@cache
def _code() -> str:
    """SHA-256 of the code that draws, for a version that is being worked on stays the same."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _matplotlib() -> str:
    """Its version, without importing it."""
    try:
        return version("matplotlib")
    except PackageNotFoundError:
        return ""


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _read(path: Path, made_from: str) -> _Kept:
    """What was drawn from the same; nothing where nothing was, or the file is damaged."""
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
    except (OSError, ValueError, RecursionError):
        return _Kept(made_from, [], {})
    return found if found.made_from == made_from else _Kept(made_from, [], {})


def _data(path: Path, digest: str) -> bytes | None:
    """A picture as it was drawn; None where it is not there, or another."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None
