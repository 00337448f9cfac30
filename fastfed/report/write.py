"""Writing the report files of an output folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fastfed.report import statement_table, table
from fastfed.report.canvas import KINDS
from fastfed.report.canvas import PAGE as IN_PAGE
from fastfed.report.certificates import certificates_text
from fastfed.report.communication import draw_communication, sends
from fastfed.report.experiment_section import Drawn
from fastfed.report.figure import draw
from fastfed.report.page import overview, page
from fastfed.report.source import Source, read_all
from fastfed.report.statement_table import ordered, rows_of
from fastfed.results.files import replace_file

PAGE = "report.html"


def write_report(
    source: Source, folder: str | Path, pictures: Mapping[str, bytes] | None = None
) -> list[Path]:
    """Write the tables, the certificates, the pictures and the page of an experiment.

    Returns what was written, the page last: without matplotlib, or before the first replicate,
    no pictures. ``pictures`` are those of ``draw_all`` where they are drawn already. Raises
    InputError where the folder cannot be written.
    """
    curves = source.results.curves
    pictures = draw_all(source) if pictures is None else pictures
    alone = {name: data for name, data in pictures.items() if not name.endswith(IN_PAGE)}
    files = {
        "table.txt": table.as_text(source).encode(),
        "table.csv": table.as_csv(source).encode(),
        "certificates.txt": certificates_text(
            ((c.label, c.dated_certificate) for c in curves), source.about_records
        ).encode(),
        **alone,
        PAGE: page(as_drawn("report", source, pictures)).encode(),
    }
    return [replace_file(Path(folder) / name, data) for name, data in files.items()]


def write_overview(
    folder: str | Path,
    not_played: Sequence[statement_table.Row] | None = None,
    drawn: Mapping[str, Drawn] | None = None,
) -> tuple[Path, list[statement_table.Row]] | None:
    """Write one page over all experiments in the subfolders of ``folder``, and their statements.

    Returns the page and the rows of the statement table, which ``statements.json`` holds, too.
    ``not_played`` are rows of what was left out; None keeps those of the file as it is. ``drawn``
    are experiments by their folder's name whose pictures need not be drawn again.
    None, and nothing is written, where the folder holds an experiment of its own: the page there
    is that experiment's. A subfolder that cannot be read is named in the page; when all are,
    InputError says so.
    """
    path = Path(folder)
    sources, left_out = read_all(path)
    if path in sources:
        return None
    if not_played is None:
        not_played = statement_table.left_out_before(path)
    names = {each.name for each in sources}
    rows = [row for each, source in sources.items() for row in rows_of(each.name, source)]
    rows = ordered([*rows, *(row for row in not_played if row.figure not in names)])
    known = drawn or {}
    experiments = [
        known.get(each.name) or as_drawn(each.name, source, draw_all(source, (IN_PAGE,)))
        for each, source in sources.items()
    ]
    replace_file(path / statement_table.FILE, statement_table.as_json(rows))
    text = overview(path.resolve().name, experiments, rows, left_out)
    return replace_file(path / PAGE, text.encode()), rows


def draw_all(source: Source, kinds: Collection[str] = KINDS) -> dict[str, bytes]:
    """Every picture by its name and kind; none without matplotlib or before the first replicate."""
    if not source.results.curves or not has_matplotlib():
        return {}
    pictures = {f"figure.{kind}": data for kind, data in draw(source, kinds).items()}
    if sends(source):
        drawn = draw_communication(source, kinds)
        pictures.update({f"communication.{kind}": data for kind, data in drawn.items()})
    return pictures


def as_drawn(name: str, source: Source, pictures: Mapping[str, bytes]) -> Drawn:
    """An experiment with those of its pictures that a page shows."""
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
