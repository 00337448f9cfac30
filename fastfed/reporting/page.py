"""The report page: its HTML, and all files of a report."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from fastfed._validate import InputError, choice
from fastfed.reporting import kept
from fastfed.reporting import table as tables
from fastfed.reporting.figure import Source, read_all
from fastfed.reporting.html import CSS, Html, element, join, table
from fastfed.reporting.pictures import draw, draw_final, draw_sent
from fastfed.reporting.plotting import KINDS, PAPER, TEX
from fastfed.reporting.sections import (
    certificates_text,
    differences,
    experiment_section,
    mark,
    tag,
    title_block,
)
from fastfed.reporting.table import Row, counts, ordered, rows_of
from fastfed.results.files import replace_file

# ---- report.html: one page that needs nothing beside itself, no scripts and no network -----------


def page(source: Source) -> str:
    """Build the page of one experiment."""
    return _document(
        source.title,
        element("header", title_block(source, element("h1", source.title))),
        element("main", experiment_section(source, 2)),
    )


def overview(
    folder: str,
    experiments: Mapping[str, Source],
    rows: Sequence[Row],
    left_out: Sequence[str] = (),
) -> str:
    """Build the page over several experiments by name: all claims first, then one section each.

    ``left_out``: reasons for folders that could not be read.
    """
    many = f"{len(experiments)} experiment{'' if len(experiments) == 1 else 's'}"
    return _document(
        f"{folder}: all experiments",
        element(
            "header",
            element("p", folder, class_="above"),
            element("h1", "All experiments"),
            element("p", f"{many}; {counts(rows)}.", class_="quiet"),
            [element("p", f"Left out: {reason}.", class_="quiet") for reason in left_out],
        ),
        element(
            "main",
            element("h2", "Statements"),
            element("p", VERDICTS, class_="quiet"),
            _claims(rows, experiments),
            [_section(name, source) for name, source in experiments.items()],
        ),
    )


def anchor(name: str) -> str:
    """Turn a folder's name into an id."""
    return "e-" + re.sub(r"[^A-Za-z0-9-]", lambda m: f"_{ord(m[0]):x}", name)


def _section(name: str, source: Source) -> Html:
    target = anchor(name)
    title = element("h2", source.title, class_="title", id=f"{target}-title")
    return element(
        "section",
        title_block(source, title),
        experiment_section(source, 3),
        class_="experiment",
        id=target,
        aria_labelledby=f"{target}-title",
    )


VERDICTS = (
    "Differences are paired, mean ± standard error, and count beyond two standard errors, more "
    "where replicates are few. Unproven: the order holds, but a curve in it has not the privacy "
    "that it claims. A paper's claim is about a printed figure, played as printed; a variant's "
    "about another way to play it, or a theorem."
)


def _claims(rows: Sequence[Row], linked: Collection[str]) -> Html:
    cells: list[list[str]] = []
    for row in rows:
        name: Html | str = row.figure
        if row.figure in linked:
            name = element("a", row.figure, href=f"#{anchor(row.figure)}")
        about = " · ".join(text for text in (row.title, row.paper) if text)
        cells.append(
            [
                join(name, element("div", about, class_="quiet")),
                mark(row.statement.verdict),
                join(row.statement.says, " ", tag(row.statement), differences(row.statement)),
                element("span", row.size or "-", class_="keep"),
            ]
        )
    return table(
        ("experiment", "verdict", "statement", "judged on"),
        cells,
        label="Statements of all experiments",
        class_="wide",
    )


def _document(title: str, *body: Html) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        "\n",
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        "\n",
        element("meta", name="color-scheme", content="light dark"),
        "\n",
        element("link", rel="icon", href="data:,"),
        "\n",
        element("title", title),
        "\n",
        element("style", Html(CSS)),
    )
    footer = element(
        "footer",
        element(
            "p",
            "Made by fastfed from results.sqlite. Verdicts and certificates are computed.",
            class_="quiet",
        ),
    )
    content = [Html(f"{part}\n") for part in (*body, footer)]
    html = element("html", "\n", head, "\n", element("body", "\n", content), "\n", lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


# ---- Writing the report files of an output folder ------------------------------------------------

PAGE = "report.html"
#: Picture files, their kinds unless others are asked for, and all kinds.
NAMES = ("figure", "final", "communication")
FORMATS = KINDS
ALL_FORMATS = (*KINDS, *PAPER)


def report(
    folder: str | Path,
    *,
    formats: str | Sequence[str] = FORMATS,
    on_left_out: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write page, pictures and tables of an output folder again.

    Nothing is simulated: everything comes from ``results.sqlite``. Where the folder holds several
    experiments in folders of their own, as `fastfed.reproduce` leaves them, each gets its report,
    and ``folder/report.html`` is one page over all of them.

    Parameters
    ----------
    folder : str or Path
        Output folder.
    formats : str or sequence of str
        "png", "svg", "pdf" or "pgf", of the picture files. PDF and PGF are for papers: one
        column (8 cm) wide, without title; PGF needs a LaTeX that is installed.
    on_left_out : callable, optional
        Called with the reason for each experiment that cannot be read and is left out.

    Returns
    -------
    list of Path
        The files, in the order in which they were written. Without matplotlib there are no
        pictures among them.

    Raises
    ------
    InputError
        Where the folder holds no results that can be read, or cannot be written.
    """
    formats = [formats] if isinstance(formats, str) else formats
    check_formats(formats)
    sources, left_out = read_all(folder)
    written = [
        path for each, source in sources.items() for path in write_report(source, each, formats)
    ]
    if on_left_out is not None:
        for reason in left_out:
            on_left_out(reason)
    found = write_overview(folder)
    return written if found is None else [*written, found[0]]


def write_report(source: Source, folder: str | Path, formats: Collection[str] = ()) -> list[Path]:
    """Write the tables, the certificates, the page and pictures of an experiment.

    Returns what was written, the page last: without matplotlib, or before the first replicate,
    no pictures. Those of real records are for their owner alone (mode 0600). Raises InputError
    where the folder cannot be written.
    """
    curves = source.results.curves
    files = {
        "table.txt": tables.as_text(source).encode(),
        "table.csv": tables.as_csv(source).encode(),
        "certificates.txt": certificates_text(
            ((c.label, c.dated_certificate) for c in curves), source.about_records
        ).encode(),
        PAGE: page(source).encode(),
    }
    private = bool(source.about_records)

    def write(of: Mapping[str, bytes]) -> list[Path]:
        return [_write(Path(folder) / name, data, private) for name, data in of.items()]

    *others, last = write(files)
    # The page is there whatever becomes of the pictures.
    return [*others, *write(pictures_of(source, folder, formats)), last]


def check_formats(formats: Collection[str]) -> None:
    """Raise InputError, before hours of work, where a format is unknown or needs LaTeX in vain."""
    for each in formats:
        choice("formats", each, ALL_FORMATS)
    if TEX in formats and shutil.which("xelatex") is None:
        raise InputError(f"format {TEX} needs LaTeX: install TeX Live with xelatex, or take pdf")


def formats_in(folder: str | Path) -> list[str]:
    """Formats in which a folder has pictures, and which a run draws again."""
    again = (kind for kind in ALL_FORMATS if kind != TEX)
    return [k for k in again if any((Path(folder) / f"{name}.{k}").exists() for name in NAMES)]


def out_of_date(source: Source, folder: str | Path) -> list[str]:
    """Names of picture files in a folder that are not of these results."""
    files = (f"{name}.{kind}" for name in NAMES for kind in ALL_FORMATS)
    there = [name for name in files if (Path(folder) / name).exists()]
    current = kept.current(source, Path(folder)) if there else set()
    return [name for name in there if name not in current]


def write_overview(
    folder: str | Path, not_played: Sequence[tables.Row] | None = None
) -> tuple[Path, list[tables.Row]] | None:
    """Write one page over all experiments in the subfolders of ``folder``, and their claims.

    Returns the page and the rows of its table of claims, which ``statements.json`` holds, too.
    ``not_played``: rows of figures that were left out; None keeps those of the file.
    None, and nothing is written, where the folder holds an experiment of its own: the page there
    is that experiment's. A subfolder that cannot be read is named in the page; when all are,
    InputError says so.
    """
    path = Path(folder)
    sources, left_out = read_all(path)
    if path in sources:
        return None
    if not_played is None:
        not_played = tables.stored_left_out(path)
    names = {each.name for each in sources}
    rows = [row for each, source in sources.items() for row in rows_of(each.name, source)]
    rows = ordered([*rows, *(row for row in not_played if row.figure not in names)])
    private = any(source.about_records for source in sources.values())
    _write(path / tables.FILE, tables.as_json(rows), private)
    text = overview(
        path.resolve().name, {each.name: source for each, source in sources.items()}, rows, left_out
    )
    return _write(path / PAGE, text.encode(), private), rows


def _write(path: Path, data: bytes, private: bool) -> Path:
    """Write a file; one that holds the same already is left alone."""
    try:
        same = path.read_bytes() == data
    except OSError:
        same = False
    return path if same else replace_file(path, data, private)


def pictures_of(source: Source, folder: str | Path, kinds: Collection[str]) -> dict[str, bytes]:
    """Pictures of an experiment as `draw_all` draws them; those in its folder where nothing that
    they show has changed.
    """
    if not kinds or not source.results.curves:
        return {}
    return kept.pictures(source, Path(folder), kinds, lambda of: draw_all(source, of))


def draw_all(source: Source, kinds: Collection[str] = KINDS) -> dict[str, bytes]:
    """Draw every picture, by name and kind; none without matplotlib or before any replicate."""
    if not source.results.curves or not has_matplotlib():
        return {}
    drawn = zip(NAMES, (of(source, kinds) for of in (draw, draw_final, draw_sent)), strict=True)
    return {f"{name}.{kind}": data for name, of in drawn for kind, data in of.items()}


def has_pictures(written: Iterable[Path]) -> bool:
    """Return True if there are picture files among those that were written."""
    return any(path.suffix[1:] in ALL_FORMATS for path in written)


def has_matplotlib() -> bool:
    """Import matplotlib; return False where it is not there, or does not load."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
