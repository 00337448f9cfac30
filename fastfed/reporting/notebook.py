"""Display results, certificates, audits and calibrations in notebooks and in terminals (rich).

The package registers this module as the renderer of `fastfed._display`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfed._system import System
from fastfed.privacy.audit.bounds import AuditResult
from fastfed.privacy.certificate import SideCertificate, as_text
from fastfed.privacy.mechanisms.catalogue import Calibrated
from fastfed.reporting import table as text_table
from fastfed.reporting.axes import plot
from fastfed.reporting.figure import Source, in_memory
from fastfed.reporting.html import Html, details, element, join
from fastfed.reporting.panels import curve_styles, panels
from fastfed.reporting.sections import full_certificate, legend_labels, mark, results_table
from fastfed.reporting.sharing import notes_on_curves, sharing_sentence
from fastfed.reporting.text import (
    audit_sentences,
    calibration_sentences,
    certificate_sentences,
    number_with_noun,
)
from fastfed.results.results import CurveResult, Results

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["as_html", "as_rich", "as_text", "plot"]

#: Style of tables, marks and lists, for elements with class "fastfed"; suits light and dark themes.
CSS = """
.fastfed table { font-size: 0.9em; }
.fastfed th, .fastfed td { text-align: left; }
.fastfed .number { text-align: right; }
.fastfed .quiet { opacity: 0.75; font-size: 0.9em; margin: 0.3em 0; }
.fastfed p { margin: 0.3em 0; }
.fastfed svg.key { margin-right: 0.6em; }
.fastfed .mark { padding: 0 0.5em; border: 1px solid; border-radius: 1em; font-weight: 600; }
.fastfed dl { display: grid; grid-template-columns: 8em minmax(0, 1fr); margin: 0.3em 0; }
.fastfed dt { grid-column: 1; font-weight: 400; opacity: 0.75; }
.fastfed dd { grid-column: 2; margin: 0; }
"""


@dataclass(frozen=True)
class Summary:
    """What a notebook shows of a value: title, verdict, sentences, and details to unfold."""

    title: str
    verdict: str
    sentences: Sequence[str]
    full: Sequence[Html] = ()


def as_html(value: Any) -> Html:
    """Return HTML that shows a value in a notebook; texts of the user are escaped."""
    if isinstance(value, Results):
        body = _results(value)
    elif isinstance(value, CurveResult):
        body = join(
            _table(_as_results(value)), _summary_html(_summarise_certificate(value.certificate))
        )
    else:
        body = _summary_html(_summarise(value))
    return element("div", element("style", Html(CSS)), body, class_="fastfed")


def as_rich(value: Any) -> RenderableType:
    """Return a renderable of rich that shows a value in a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    if isinstance(value, Results):
        return Group(_ruled(in_memory(value)), *map(Text, notes_on_curves(value)))
    if isinstance(value, CurveResult):
        return Group(_ruled(in_memory(_as_results(value))), as_rich(value.certificate))
    summary = _summarise(value)
    title = Text.assemble((summary.title, "bold"), f"  {summary.verdict}")
    return Group(title, *(Padding(Text(s), (0, 0, 0, 2)) for s in summary.sentences))


def _as_results(curve: CurveResult) -> Results:
    """Return results with one curve."""
    return Results(curve.label, curve.horizon, curve.silos, (curve,), {})


def _results(results: Results) -> Html:
    """Return the title and the table of results as HTML."""
    title = element("p", element("strong", in_memory(results).title))
    if not results.curves:
        return join(title, element("p", "No replicate has run to its end yet."))
    return join(title, _table(results))


def _table(results: Results) -> Html:
    """Return the setting, the notes and the table of results as HTML."""
    source = in_memory(results)
    setting = element("p", f"{source.setting}, {source.replicates}", class_="quiet")
    notes = [
        element("p", note, role="note")
        for note in (*source.about_records, *notes_on_curves(results))
    ]
    sharing = element("p", sentence) if (sentence := sharing_sentence(results)) else ""
    styles = curve_styles(results.curves, panels(source))
    # `legend_labels` puts a sample of the curve's line before each label.
    labels = legend_labels(results.curves, styles)
    return join(setting, notes, sharing, results_table(source, labels))


def _summary_html(summary: Summary) -> Html:
    """Return a summary as HTML."""
    verdict = (" ", mark(summary.verdict)) if summary.verdict else ()
    head = element("p", element("strong", summary.title), verdict)
    items = element("ul", [element("li", sentence) for sentence in summary.sentences])
    return join(head, items, details("In full", *summary.full) if summary.full else "")


def _ruled(source: Source) -> RenderableType:
    """Return the table of results for a terminal, without the columns after the status."""
    from fastfed.reporting.text import ruled

    rows = text_table.table_rows(source)
    columns = [i for i in text_table.used_columns(rows) if i <= text_table.STATUS]
    return ruled(
        [text_table.HEADINGS[i] for i in columns],
        [[row[i] for i in columns] for row in rows],
        [place for place, i in enumerate(columns) if i in text_table.RIGHT],
        source.title,
        f"{source.setting}, {source.replicates}",
    )


def _summarise(value: Any) -> Summary:
    """Return the summary of an audit, a calibration, a system or a certificate."""
    if isinstance(value, AuditResult):
        return Summary(f"Audit of {value.name}", value.verdict, audit_sentences(value))
    if isinstance(value, Calibrated):
        return Summary(f"Calibration of {value.mechanism}", "", calibration_sentences(value))
    if isinstance(value, System):
        plan = value.plan
        problem = (
            f"{value.algorithm}, {plan.protocol.id}: M = {number_with_noun(plan.silos, 'silo')}, "
            f"T = {number_with_noun(plan.horizon, 'round')}. This certificate is for a deployment, "
            "whose parties draw their noise from the operating system."
        )
        summary = _summarise_certificate(value.deployed_certificate.to_builtins())
        return Summary(summary.title, summary.verdict, [problem, *summary.sentences], summary.full)
    if isinstance(value, SideCertificate):
        return _summarise_certificate(value.to_builtins())
    return _summarise_certificate(value)


def _summarise_certificate(stored: dict[str, Any]) -> Summary:
    """Return the summary of a stored certificate."""
    return Summary(
        "Privacy certificate",
        stored["status"],
        certificate_sentences(stored),
        full_certificate(stored, 5),
    )
