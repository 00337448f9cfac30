"""Plot files of a report: draw them with matplotlib, or reuse earlier files of the same results.

The file ``.pictures`` in an output folder holds a digest of everything that plots depend on, and a
digest of each plot file. A plot file is reused only if both digests are right. A file that was
changed or removed is drawn again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fastfed
from fastfed._validate import InputError, choice
from fastfed.reporting.charts import Charts
from fastfed.reporting.figure import Source, bounds_above_plot
from fastfed.reporting.plotting import KINDS, LEGEND, LEGEND_SENT, PAPER, TEX, render
from fastfed.results.files import replace_file

#: Names of plot files, their formats by default, and all formats.
NAMES = ("figure", "final", "communication")
FORMATS = KINDS
ALL_FORMATS = (*KINDS, *PAPER)
FILE = ".pictures"
#: Fields with durations and dates, which no plot shows.
TIMES = ("agent_rounds_per_second", "made")


def check_formats(formats: Collection[str]) -> None:
    """Raise InputError if a format is unknown, or needs LaTeX and LaTeX is missing.

    Callers check this before a long simulation.
    """
    for name in formats:
        choice("formats", name, ALL_FORMATS)
    if TEX in formats and shutil.which("xelatex") is None:
        raise InputError(f"format {TEX} needs LaTeX: install TeX Live with xelatex, or use pdf")


def formats_in(folder: str | Path) -> list[str]:
    """Return the formats of the plot files in a folder. PGF is left out, as it is not redrawn."""
    formats = (kind for kind in ALL_FORMATS if kind != TEX)
    return [k for k in formats if any((Path(folder) / f"{name}.{k}").exists() for name in NAMES)]


def has_plots(written: Iterable[Path]) -> bool:
    """Return True if there are plot files among these files."""
    return any(path.suffix[1:] in ALL_FORMATS for path in written)


def has_matplotlib() -> bool:
    """Return True if matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


# ---- Drawing -------------------------------------------------------------------------------------


def draw(source: Source, charts: Charts, kinds: Collection[str] = KINDS) -> dict[str, bytes]:
    """Draw all charts; return the content of each plot file by name.

    Return an empty dict without matplotlib.
    """
    if not has_matplotlib():
        return {}
    small = small_print(source)
    plots = (
        (charts.regret, [*small, *bounds_above_plot(source)], LEGEND),
        (charts.final, small, None),
        (charts.sent, [*small, "a dot is the last round"], LEGEND_SENT),
    )
    return {
        f"{name}.{kind}": data
        for name, (shown, notes, legend) in zip(NAMES, plots, strict=True)
        if shown
        for kind, data in render(source.title, shown, notes, legend, kinds).items()
    }


def small_print(source: Source) -> list[str]:
    """Return the lines below the title: problem size, replicates, bands and notes."""
    band = "" if source.replicates == "1 replicate" else ", band: ± 2 standard errors"
    return [source.setting, f"{source.replicates}{band}", *source.notes]


# ---- Reusing files -------------------------------------------------------------------------------


class _Record(msgspec.Struct):
    """Content of the file ``.pictures``."""

    made_from: str  # digest of everything that plots depend on
    kinds: list[str]  # kinds of plot files (png, svg, ...) that were drawn
    digests: dict[str, str]  # by file name


def plots_of(
    source: Source, charts: Charts, folder: Path, kinds: Collection[str]
) -> dict[str, bytes]:
    """Return the content of every plot file of these kinds by name, drawn or read from ``folder``.

    Files in the folder are reused if nothing that they show has changed.
    """
    if not kinds or not charts.regret:
        return {}
    made_from = made_from_digest(source)
    stored = _read(folder / FILE, made_from)
    contents = {name: _data(folder / name, digest) for name, digest in stored.digests.items()}
    damaged = {_kind(name) for name, data in contents.items() if data is None}
    to_draw = [kind for kind in kinds if kind not in stored.kinds or kind in damaged]
    reused = {
        name: data
        for name, data in contents.items()
        if data is not None and _kind(name) in kinds and _kind(name) not in to_draw
    }
    if not to_draw:
        return reused
    new_files = draw(source, charts, to_draw)
    if not new_files:
        return reused
    other_digests = {name: d for name, d in stored.digests.items() if _kind(name) not in to_draw}
    new_digests = {name: hashlib.sha256(data).hexdigest() for name, data in new_files.items()}
    digests = dict(sorted({**other_digests, **new_digests}.items()))
    record = _Record(made_from, sorted({*stored.kinds, *to_draw}), digests)
    # If the folder cannot be written, writing the report raises the error.
    with suppress(InputError, OSError):
        replace_file(
            folder / FILE, msgspec.msgpack.encode(record), private=bool(source.about_records)
        )
    return {**reused, **new_files}


def out_of_date(source: Source, folder: Path) -> list[str]:
    """Return the names of plot files in a folder that do not show these results."""
    files = (f"{name}.{kind}" for name in NAMES for kind in ALL_FORMATS)
    existing = [name for name in files if (folder / name).exists()]
    digests = _read(folder / FILE, made_from_digest(source)).digests if existing else {}
    return [
        name
        for name in existing
        if name not in digests or _data(folder / name, digests[name]) is None
    ]


def made_from_digest(source: Source) -> str:
    """Return the SHA-256 of everything that plots depend on: results, code and libraries."""
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
    """Return plain data instead of a value that msgpack cannot encode, for `made_from_digest`.

    An array is replaced by a digest of its content, which is enough to notice a change.
    """
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return [data.dtype.str, list(data.shape), hashlib.sha256(data.tobytes()).digest()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return dict(value)
    raise TypeError(f"a plot cannot depend on a {type(value).__name__}")


@cache
def _code() -> str:
    """Return the SHA-256 of the code of fastfed.reporting.

    During development it changes without a new version number.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _matplotlib() -> str:
    """Return the version of matplotlib without importing it; "" if it is missing."""
    try:
        return version("matplotlib")
    except PackageNotFoundError:
        return ""


def _kind(name: str) -> str:
    """Return the ending of a file's name, such as "png"."""
    return name.rpartition(".")[2]


def _read(path: Path, made_from: str) -> _Record:
    """Return the content of the file ``.pictures``, or an empty record.

    The record is empty if the file is missing or damaged, or if the file's ``made_from`` (the
    digest of everything that plots depend on) is not the argument ``made_from``.
    """
    try:
        stored = msgspec.msgpack.decode(path.read_bytes(), type=_Record)
    except (OSError, ValueError, RecursionError):
        return _Record(made_from, [], {})
    return stored if stored.made_from == made_from else _Record(made_from, [], {})


def _data(path: Path, digest: str) -> bytes | None:
    """Return the content of a plot file; None if it is missing or its digest differs."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None
