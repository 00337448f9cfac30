"""report.html: one page that needs nothing beside itself, no scripts and no network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fastfed.report.certificate_section import mark
from fastfed.report.experiment_section import Drawn, experiment_section, size, title_block
from fastfed.report.html import Html, element, join, table
from fastfed.report.statements import FAILS, HOLDS, UNDECIDED, judge
from fastfed.report.style import CSS


def page(drawn: Drawn) -> str:
    """The page of one experiment."""
    source = drawn.source
    return _document(
        source.title,
        element("header", title_block(source, element("h1", source.title))),
        element("main", experiment_section(drawn, 2)),
    )


def overview(folder: str, experiments: Sequence[Drawn], left_out: Sequence[str] = ()) -> str:
    """The page over several experiments: every statement first, then one section each.

    ``left_out`` says which folders could not be read, and why.
    """
    return _document(
        f"{folder}: all experiments",
        element(
            "header",
            element("p", folder, class_="above"),
            element("h1", "All experiments"),
            element("p", _counts(experiments), class_="quiet"),
            [element("p", f"Left out: {reason}.", class_="quiet") for reason in left_out],
        ),
        element(
            "main",
            element("h2", "Statements"),
            _statements(experiments),
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


def _counts(experiments: Sequence[Drawn]) -> str:
    verdicts = Counter(s.verdict for d in experiments for s in judge(d.source.results))
    many = f"{len(experiments)} experiment{'' if len(experiments) == 1 else 's'}"
    if not verdicts:
        return f"{many}, no statements."
    parts = [f"{verdicts[v]} {word}" for v, word in WORDS.items() if verdicts[v]]
    return f"{many}; statements: {', '.join(parts)}."


WORDS = {HOLDS: "hold", FAILS: "fail", UNDECIDED: "undecided"}


def _statements(experiments: Sequence[Drawn]) -> Html:
    rows: list[list[str]] = []
    for drawn in experiments:
        link = element("a", drawn.name, href=f"#{anchor(drawn.name)}")
        title = join(link, element("div", drawn.source.title, class_="quiet"))
        statements = judge(drawn.source.results)
        judged_on = element("span", size(drawn.source), class_="keep")
        for statement in statements:
            rows.append([title, mark(statement.verdict), statement.says, judged_on])
        if not statements:
            rows.append([title, "-", "nothing is said of it", judged_on])
    return table(
        ("experiment", "verdict", "statement", "judged on"),
        rows,
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
