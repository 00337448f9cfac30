"""Writing the report files of an output folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fastfed.report import table
from fastfed.report.canvas import KINDS
from fastfed.report.canvas import PAGE as IN_PAGE
from fastfed.report.certificates import certificates_text
from fastfed.report.communication import draw_communication, sends
from fastfed.report.experiment_section import Drawn
from fastfed.report.figure import draw
from fastfed.report.page import overview, page
from fastfed.report.source import Source, read_all
from fastfed.results.files import replace_file

PAGE = "report.html"


def write_report(source: Source, folder: str | Path) -> list[Path]:
    """Write the tables, the certificates, the pictures and the page of an experiment.

    Returns what was written, the page last: without matplotlib, or before the first replicate,
    no pictures. Raises InputError where the folder cannot be written.
    """
    curves = source.results.curves
    pictures = draw_all(source)
    alone = {name: data for name, data in pictures.items() if not name.endswith(IN_PAGE)}
    files = {
        "table.txt": table.as_text(source).encode(),
        "table.csv": table.as_csv(source).encode(),
        "certificates.txt": certificates_text((c.label, c.certificate) for c in curves).encode(),
        **alone,
        PAGE: page(_drawn("report", source, pictures)).encode(),
    }
    return [replace_file(Path(folder) / name, data) for name, data in files.items()]


def write_overview(folder: str | Path) -> Path | None:
    """Write one page over all experiments in the subfolders of ``folder``.

    None, and nothing is written, where the folder holds an experiment of its own: the page there
    is that experiment's. A subfolder that cannot be read is named in the page; when all are,
    InputError says so.
    """
    path = Path(folder)
    sources, left_out = read_all(path)
    if path in sources:
        return None
    experiments = [_drawn(each.name, s, draw_all(s, (IN_PAGE,))) for each, s in sources.items()]
    return replace_file(path / PAGE, overview(path.resolve().name, experiments, left_out).encode())


def draw_all(source: Source, kinds: Collection[str] = KINDS) -> dict[str, bytes]:
    """Every picture by its name and kind; none without matplotlib or before the first replicate."""
    if not source.results.curves or not has_matplotlib():
        return {}
    pictures = {f"figure.{kind}": data for kind, data in draw(source, kinds).items()}
    if sends(source):
        drawn = draw_communication(source, kinds)
        pictures.update({f"communication.{kind}": data for kind, data in drawn.items()})
    return pictures


def _drawn(name: str, source: Source, pictures: dict[str, bytes]) -> Drawn:
    return Drawn(
        name, source, *(pictures.get(f"{what}.{IN_PAGE}") for what in ("figure", "communication"))
    )


def has_matplotlib() -> bool:
    """Whether figures can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
