"""Write reports: the HTML of report.html, and all other files of a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fastfed.reporting import table as tables
from fastfed.reporting.charts import Charts, charts_of
from fastfed.reporting.figure import Source, read_all
from fastfed.reporting.html import CSS, Html, element, join, table
from fastfed.reporting.plot_files import FORMATS, check_formats, plots_of
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

# ---- report.html: a single file without scripts, which needs no network --------------------------


def page(source: Source, charts: Charts) -> str:
    """Return the HTML of the report of one experiment."""
    return _document(
        source.title,
        element("header", title_block(source, element("h1", source.title))),
        element("main", experiment_section(source, charts, level=2)),
    )


def overview(
    folder: str,
    experiments: Mapping[str, Source],
    rows: Sequence[Row],
    left_out: Sequence[str] = (),
) -> str:
    """Return the HTML of the report of several experiments.

    It begins with a table of all claims, followed by a section for each experiment.

    Parameters
    ----------
    folder : str
        Name of the folder of the experiments.
    experiments : mapping of str to Source
        The source of each experiment, by the name of its folder.
    rows : sequence of Row
        The rows of the table of claims.
    left_out : sequence of str
        A reason for each folder that could not be read.
    """
    count = f"{len(experiments)} experiment{'' if len(experiments) == 1 else 's'}"
    return _document(
        f"{folder}: all experiments",
        element(
            "header",
            element("p", folder, class_="above"),
            element("h1", "All experiments"),
            element("p", f"{count}; {counts(rows)}.", class_="quiet"),
            [element("p", f"Left out: {reason}.", class_="quiet") for reason in left_out],
        ),
        element(
            "main",
            element("h2", "Claims"),
            element("p", VERDICTS, class_="quiet"),
            _claims(rows, experiments),
            [_section(name, source) for name, source in experiments.items()],
        ),
    )


def anchor(name: str) -> str:
    """Return the id of the HTML element of an experiment, from the name of its folder."""
    return "e-" + re.sub(r"[^A-Za-z0-9-]", lambda m: f"_{ord(m[0]):x}", name)


def _section(name: str, source: Source) -> Html:
    """Return the section of one experiment in the report of several experiments.

    ``name`` is the name of the experiment's folder.
    """
    target = anchor(name)
    title = element("h2", source.title, class_="title", id=f"{target}-title")
    return element(
        "section",
        title_block(source, title),
        experiment_section(source, charts_of(source), level=3),
        class_="experiment",
        id=target,
        aria_labelledby=f"{target}-title",
    )


VERDICTS = (
    "Differences are paired, mean ± standard error, and count beyond two standard errors, more "
    "if replicates are few. Unproven: the order of the curves holds, but a curve does not have the "
    "privacy that it claims. Tags: paper is a claim about a printed figure that is simulated as "
    "printed; variant is a claim about a theorem, or about a figure simulated in a different way."
)


def _claims(rows: Sequence[Row], linked: Collection[str]) -> Html:
    """Return the table of claims; names of figures in ``linked`` link to their sections."""
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
        ("experiment", "verdict", "claim", "judged on"),
        cells,
        label="Claims of all experiments",
        class_="wide",
    )


def _document(title: str, *body: Html) -> str:
    """Return a complete HTML document."""
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
            "Written by fastfed from results.sqlite. Verdicts and certificates are computed.",
            class_="quiet",
        ),
    )
    content = [Html(f"{part}\n") for part in (*body, footer)]
    html = element("html", "\n", head, "\n", element("body", "\n", content), "\n", lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


# ---- Writing the report files of an output folder ------------------------------------------------

PAGE = "report.html"


def report(
    folder: str | Path,
    *,
    formats: str | Sequence[str] = FORMATS,
    on_left_out: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the report of an output folder: HTML, plots and tables.

    Nothing is simulated: everything is read from ``results.sqlite``. If the folder has several
    experiments in subfolders, as `fastfed.reproduce` writes them, each subfolder gets a report, and
    ``folder/report.html`` is a report of all experiments.

    Parameters
    ----------
    folder : str or Path
        Output folder.
    formats : str or sequence of str
        Formats of the plot files: "png", "svg", "pdf" or "pgf". PDF and PGF are for papers: one
        column (8 cm) wide, without title. PGF needs LaTeX.
    on_left_out : callable, optional
        Called with the reason for each experiment that cannot be read and is left out.

    Returns
    -------
    list of Path
        The files, in the order in which they were written. Without matplotlib there are no plot
        files.

    Raises
    ------
    InputError
        If the folder holds no results that can be read, or cannot be written.
    """
    formats = [formats] if isinstance(formats, str) else formats
    check_formats(formats)
    sources, left_out = read_all(folder)
    written = [
        path for output, source in sources.items() for path in write_report(source, output, formats)
    ]
    if on_left_out is not None:
        for reason in left_out:
            on_left_out(reason)
    overview_files = _write_overview(Path(folder), sources, left_out)
    return written if overview_files is None else [*written, overview_files[0]]


def write_report(source: Source, folder: str | Path, formats: Collection[str] = ()) -> list[Path]:
    """Write the report of one experiment: tables, certificates, HTML and plots.

    If records are real, only the owner may read the files (mode 0600).

    Parameters
    ----------
    source : Source
        Results and settings.
    folder : str or Path
        The output folder.
    formats : collection of str
        Formats of the plot files.

    Returns
    -------
    list of Path
        The files, report.html last. Without matplotlib, or before the first replicate is finished,
        there are no plot files.

    Raises
    ------
    InputError
        If the folder cannot be written.
    """
    curves, charts = source.results.curves, charts_of(source)
    files = {
        "table.txt": tables.as_text(source).encode(),
        "table.csv": tables.as_csv(source).encode(),
        "certificates.txt": certificates_text(
            ((c.label, c.dated_certificate) for c in curves), source.about_records
        ).encode(),
        PAGE: page(source, charts).encode(),
    }
    private = bool(source.about_records)

    def write(contents: Mapping[str, bytes]) -> list[Path]:
        """Write files into the folder, given their content by name; return their paths."""
        return [_write(Path(folder) / name, data, private) for name, data in contents.items()]

    # Write report.html before the plots, so that it exists even if drawing fails.
    *others, last = write(files)
    return [*others, *write(plots_of(source, charts, Path(folder), formats)), last]


def write_overview(
    folder: str | Path, not_played: Sequence[tables.Row] | None = None
) -> tuple[Path, list[tables.Row]] | None:
    """Write a report of all experiments in the subfolders of a folder, and ``statements.json``.

    Nothing is written if the folder itself holds an experiment: the report of that experiment has
    the same file name.

    Parameters
    ----------
    folder : str or Path
        The folder.
    not_played : sequence of Row, optional
        The claims of figures that were not simulated. By default they are read from an existing
        ``statements.json``.

    Returns
    -------
    (Path, list of Row) or None
        The path of the report, and the rows of its table of claims. None if nothing is written.

    Raises
    ------
    InputError
        If no subfolder can be read. If only some cannot be read, the report names them.
    """
    path = Path(folder)
    return _write_overview(path, *read_all(path), not_played)


def _write_overview(
    path: Path,
    sources: Mapping[Path, Source],
    left_out: Sequence[str],
    not_played: Sequence[tables.Row] | None = None,
) -> tuple[Path, list[tables.Row]] | None:
    """Write the report of all experiments in the folder ``path``, from sources already read.

    ``sources`` are the sources by folder. ``left_out`` are the reasons why other folders could not
    be read. ``not_played`` are the claims of figures that were not simulated, by default those
    in an existing ``statements.json``. The result is that of `write_overview`: the path of the
    report and the rows of its table, or None if nothing is written.
    """
    if path in sources:
        return None
    if not_played is None:
        not_played = tables.stored_left_out(path)
    names = {folder.name for folder in sources}
    rows = [row for folder, source in sources.items() for row in rows_of(folder.name, source)]
    rows = ordered([*rows, *(row for row in not_played if row.figure not in names)])
    private = any(source.about_records for source in sources.values())
    _write(path / tables.FILE, tables.as_json(rows), private)
    text = overview(
        path.resolve().name,
        {folder.name: source for folder, source in sources.items()},
        rows,
        left_out,
    )
    return _write(path / PAGE, text.encode(), private), rows


def _write(path: Path, data: bytes, private: bool) -> Path:
    """Write a file, unless it already has this content; return its path."""
    try:
        unchanged = path.read_bytes() == data
    except OSError:
        unchanged = False
    return path if unchanged else replace_file(path, data, private)
