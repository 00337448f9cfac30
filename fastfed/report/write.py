"""Writing the report files of an output folder."""

from __future__ import annotations

import os
from pathlib import Path

from fastfed._validate import InputError
from fastfed.report import table
from fastfed.report.certificates import certificates_text
from fastfed.report.figure import draw
from fastfed.report.source import Source


def write_report(source: Source, folder: str | Path) -> list[Path]:
    """Write table.txt, table.csv, certificates.txt, figure.png and figure.svg into a folder.

    Returns what was written: without matplotlib, or before the first replicate, no figure.
    Raises InputError where the folder cannot be written.
    """
    curves = source.results.curves
    files = {
        "table.txt": table.as_text(source).encode(),
        "table.csv": table.as_csv(source).encode(),
        "certificates.txt": certificates_text((c.label, c.certificate) for c in curves).encode(),
    }
    if curves and has_matplotlib():
        files.update({f"figure.{kind}": data for kind, data in draw(source).items()})
    written = []
    for name, data in files.items():
        path = Path(folder) / name
        fresh = path.with_name(f".{name}.new")
        try:
            # Under another name first, so that no reader meets half a file.
            fresh.write_bytes(data)
            os.replace(fresh, path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None
        written.append(path)
    return written


def has_matplotlib() -> bool:
    """Whether figures can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
