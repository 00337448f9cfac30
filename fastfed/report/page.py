"""report.html: one page that needs nothing beside itself, no scripts and no network."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastfed.report.certificate_section import mark
from fastfed.report.experiment_section import Drawn, differences, experiment_section, title_block
from fastfed.report.html import Html, element, join, table
from fastfed.report.statement_table import Row, counts
from fastfed.report.style import CSS


def page(drawn: Drawn) -> str:
    """The page of one experiment."""
    source = drawn.source
    return _document(
        source.title,
        element("header", title_block(source, element("h1", source.title))),
        element("main", experiment_section(drawn, 2)),
    )


def overview(
    folder: str, experiments: Sequence[Drawn], rows: Sequence[Row], left_out: Sequence[str] = ()
) -> str:
    """The page over several experiments: every statement first, then one section each.

    ``left_out`` says which folders could not be read, and why.
    """
    many = f"{len(experiments)} experiment{'' if len(experiments) == 1 else 's'}"
    played = {drawn.name for drawn in experiments}
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
            _statements(rows, played),
            [_section(drawn) for drawn in experiments],
        ),
    )


def anchor(name: str) -> str:
    """A folder's name as an id."""
    return "e-" + re.sub(r"[^A-Za-z0-9-]", lambda m: f"_{ord(m[0]):x}", name)


def _section(drawn: Drawn) -> Html:
    name = anchor(drawn.name)
    title = element("h2", drawn.source.title, class_="title", id=f"{name}-title")
    return element(
        "section",
        title_block(drawn.source, title),
        experiment_section(drawn, 3),
        class_="experiment",
        id=name,
        aria_labelledby=f"{name}-title",
    )


VERDICTS = (
    "Differences are paired, mean ± standard error, and count beyond two standard errors. "
    "Unproven: the order holds, but a curve in it has not the privacy that it claims."
)


def _statements(rows: Sequence[Row], played: set[str]) -> Html:
    cells: list[list[str]] = []
    for row in rows:
        name: Html | str = row.figure
        if row.figure in played:
            name = element("a", row.figure, href=f"#{anchor(row.figure)}")
        about = " · ".join(text for text in (row.title, row.paper) if text)
        cells.append(
            [
                join(name, element("div", about, class_="quiet")),
                mark(row.statement.verdict),
                join(row.statement.says, differences(row.statement)),
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
