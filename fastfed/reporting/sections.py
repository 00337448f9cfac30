"""Sections of the HTML report: certificates, claims, plots, results and the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from fastfed.privacy.certificate import WIDTH, as_text
from fastfed.reporting import table as text_table
from fastfed.reporting.charts import Y_LABELS, Chart, Charts
from fastfed.reporting.claims import OURS, PAPER, VARIANT, Claim
from fastfed.reporting.figure import (
    Source,
    amount,
    bounds_above_plot,
    missing_bounds,
    synchronisation_bounds,
    y_axis,
)
from fastfed.reporting.html import Html, definitions, details, element, join, key, table
from fastfed.reporting.panels import Panel, number_text, split_label
from fastfed.reporting.sharing import notes_on_curves, sharing_sentence
from fastfed.reporting.svg import chart_svg, names_fit
from fastfed.reporting.sweep import SCRIPT, heat_maps, is_sweep, swept_keys
from fastfed.reporting.text import pair_text, privacy_text, spaced, span, spec_text
from fastfed.results.paired import per_silo
from fastfed.results.results import CurveResult

# ---- Certificates as text ------------------------------------------------------------------------


def certificates_text(
    certificates: Iterable[tuple[str, dict[str, Any]]], about_records: Sequence[str] = ()
) -> str:
    """Return the text of certificates.txt.

    Parameters
    ----------
    certificates : iterable of (str, dict)
        The label of each curve, and its stored certificate.
    about_records : sequence of str
        Notes on what no certificate covers. The text begins with them.

    Returns
    -------
    str
        The text.
    """
    blocks = [f"{label}\n{'=' * len(label)}\n{as_text(stored)}" for label, stored in certificates]
    if about_records:
        blocks.insert(0, "\n".join(fill(note, WIDTH) for note in about_records) + "\n")
    return "\n".join(blocks)


# ---- Certificates: a table to compare them, and each in full, which can be unfolded --------------

HEADINGS = ("curve", "claimed", "exact", "status", "unit", "relation", "conditions")
MARKS = {True: "✓ holds", False: "✗ fails", None: "–"}


def mark(word: str) -> Html:
    """Return a status or verdict as a coloured word."""
    return element("span", word, class_=f"mark {word.replace(' ', '-')}")


def certificate_section(curves: Sequence[CurveResult], names: Sequence[Html], level: int) -> Html:
    """Return the section of certificates: a table that compares them, then each one in full.

    ``names`` are the labels of the curves as HTML elements; ``level`` is the level of headings.
    """
    conditions = _conditions(curves)
    side_by_side = table(
        HEADINGS,
        [_summary(curve.certificate, name) for curve, name in zip(curves, names, strict=True)],
        label="Certificates side by side",
    )
    parts: list[Html] = [
        element(
            "p",
            "Privacy as (epsilon, delta). Claimed is the guarantee that was requested. Exact is "
            "the guarantee of the noise that was added. Without a proof there is no number.",
            class_="quiet",
        ),
        details(f"Certificates of {len(curves)} curves side by side", side_by_side)
        if is_sweep(curves)
        else side_by_side,
    ]
    if conditions:
        with_conditions = [c for c in curves if c.certificate["conditions"]]
        parts.append(
            details(
                "Conditions side by side",
                table(
                    ["condition", MARKS[True], MARKS[False]],
                    [_condition_row(text, with_conditions) for text in conditions],
                    label="Conditions",
                    class_="wide conditions",
                ),
            )
        )
    groups = _by_certificate(curves)
    for members in groups[:MAX_CERTIFICATES]:
        certificate = curves[members[0]].certificate
        full_table = full_certificate(certificate, level)
        shown = [join(names[i], " ") for i in members[:MAX_NAMES]]
        others_text = f"and {len(members) - MAX_NAMES} more " if len(members) > MAX_NAMES else ""
        parts.append(details(join(shown, others_text, _hint(certificate)), *full_table))
    if (left_out := len(groups) - MAX_CERTIFICATES) > 0:
        text = f"{spaced(left_out)} more certificates are in certificates.txt."
        parts.append(element("p", text, class_="quiet"))
    return join(parts)


#: Largest number of certificates in full, and of curves that are named for a shared certificate.
MAX_CERTIFICATES, MAX_NAMES = 40, 6


def _by_certificate(curves: Sequence[CurveResult]) -> list[list[int]]:
    """Group curves with equal certificates; return the positions of the curves of each group."""
    groups: dict[str, list[int]] = {}
    for i, curve in enumerate(curves):
        groups.setdefault(repr(curve.certificate), []).append(i)
    return list(groups.values())


def _condition_row(text: str, curves: Sequence[CurveResult]) -> list[str | Html]:
    """Return the cells of a condition's row: its text, and the curves for which it holds and fails.

    ``curves`` are all curves that have conditions.
    """
    labels_by_holds: dict[bool, list[str]] = {True: [], False: []}
    for curve in curves:
        for condition in curve.certificate["conditions"]:
            if condition["text"] == text:
                labels_by_holds[bool(condition["holds"])].append(curve.label)
    cells: list[str | Html] = [text]
    for holds, labels in labels_by_holds.items():
        names = "; ".join(labels[:MAX_NAMES])
        if len(labels) == len(curves):
            names = "all that have conditions"
        elif len(labels) > MAX_NAMES:
            names += f"; and {len(labels) - MAX_NAMES} more"
        cells.append(
            element("span", names, class_="holding" if holds else "failing") if names else "–"
        )
    return cells


def _summary(certificate: dict[str, Any], name: Html) -> list[str]:
    """Return the cells of a certificate's row, in the columns of `HEADINGS`.

    ``name`` is the label of its curve.
    """
    text = privacy_text(certificate)
    return [
        name,
        text.claimed,
        text.exact,
        mark(text.status),
        certificate["unit"],
        certificate["relation"],
        _count(certificate["conditions"]),
    ]


def _count(conditions: Sequence[dict[str, Any]]) -> str:
    """Return a text with the number of conditions that hold, such as "3 of 4 hold"."""
    if not conditions:
        return "-"
    held_count = sum(c["holds"] for c in conditions)
    return (
        "all hold" if held_count == len(conditions) else f"{held_count} of {len(conditions)} hold"
    )


def _hint(certificate: dict[str, Any]) -> Html:
    """Return a short text of a certificate's guarantee, which follows the label of its curve."""
    return element("span", f" {privacy_text(certificate).short}", class_="quiet")


def _conditions(curves: Sequence[CurveResult]) -> list[str]:
    """Return the distinct conditions of all curves, in order."""
    texts = (c["text"] for curve in curves for c in curve.certificate["conditions"])
    return list(dict.fromkeys(texts))


def _condition_cell(text: str, certificate: dict[str, Any]) -> Html:
    """Return the mark that says if a condition, given by its text, holds in a certificate."""
    holds = {c["text"]: bool(c["holds"]) for c in certificate["conditions"]}.get(text)
    kind = {True: "mark holds", False: "mark fails", None: "quiet"}[holds]
    return element("span", MARKS[holds], class_=kind)


def full_certificate(certificate: dict[str, Any], level: int) -> list[Html]:
    """Return all fields of a certificate; side guarantees have headings of ``level``."""
    parts = [_fields(certificate)]
    for side in certificate.get("also", ()):
        parts += [element(f"h{level}", f"Also, per {side['unit']}"), _fields(side)]
    return parts


def _fields(certificate: dict[str, Any]) -> Html:
    """Return all fields of a certificate or a side guarantee."""
    stds = [f"{name} {std:.6g}" for name, std in certificate["noise_std"].items()]
    conditions = [
        join(_condition_cell(c["text"], certificate), f" {c['text']}")
        for c in certificate["conditions"]
    ]
    return definitions(
        [
            ("status", mark(certificate["status"])),
            ("unit", certificate["unit"]),
            ("relation", certificate["relation"]),
            ("model", certificate["model"]),
            ("claimed", pair_text(certificate["claimed"])),
            ("exact", pair_text(certificate["exact"])),
            ("noise std", stds),
            ("conditions", conditions),
            ("caveats", certificate["caveats"]),
            ("source", certificate["source"]),
        ]
    )


# ---- An experiment: claims, plots, table, certificates, time, spec -------------------------------


def experiment_section(source: Source, charts: Charts, level: int) -> Html:
    """Return the body of an experiment, without its title, with headings of ``level``."""
    heading = f"h{level}"
    results = source.results
    curves = results.curves
    if not curves:
        return element("p", "No replicate has run to its end yet.")
    names = legend_labels(curves, charts.styles)
    parts: list[Html] = []
    if sentence := sharing_sentence(results):
        parts.append(element("p", sentence, class_="answer"))
    parts += [element("p", _as_sentence(note), role="note") for note in notes_on_curves(results)]
    if source.claims:
        parts += [element(heading, "Claims"), _claims(source)]
    parts.append(element(heading, "Regret"))
    if is_sweep(curves):
        parts.append(heat_maps(source, Y_LABELS[y_axis(source)]))
    parts.append(_plots(source, charts))
    parts += [element(heading, "Results"), results_table(source, names)]
    if is_sweep(curves):
        parts.append(element("script", Html(SCRIPT)))
    parts += [element(heading, "Privacy"), certificate_section(curves, names, level + 1)]
    parts += [element(heading, "Run"), _run(source)]
    return join(parts)


def _as_sentence(note: str) -> str:
    """Return a note with a capital letter and a full stop."""
    return f"{note[0].upper()}{note[1:]}."


def title_block(source: Source, title: Html) -> Html:
    """Return the element ``title`` with the paper above it, and the setting and notes below it."""
    paper = source.results.figure.get("paper")
    above = " · ".join(t for t in (paper, source.results.experiment) if t)
    return join(
        element("p", above, class_="above"),
        title,
        element("p", f"{source.setting}, {source.replicates}", class_="quiet"),
        [element("p", note, class_="quiet") for note in source.notes],
        [element("p", note, class_="uncovered", role="note") for note in source.about_records],
    )


def _claims(source: Source) -> Html:
    """Return the list of the figure's claims with their verdicts, and how they are judged."""
    items = [
        element(
            "li",
            element("div", mark(claim.verdict)),
            element("div", claim.says, " ", tag(claim), differences(claim)),
        )
        for claim in source.claims
    ]
    regret = "regret per silo" if per_silo(source.results) else "regret"
    verdict_text = (
        f"Judged on final {regret} over {source.size}: paired differences, mean ± standard error, "
        "count beyond two standard errors, more if replicates are few."
    )
    return join(
        element("ul", items, class_="statements"), element("p", verdict_text, class_="quiet")
    )


#: What the tag of a claim means.
TAGS = {
    PAPER: "a printed figure, simulated as printed",
    VARIANT: "a theorem of a paper, or a figure simulated differently than printed",
    OURS: "from no paper",
}


def tag(claim: Claim) -> Html:
    """Return the tag of a claim, which says where it comes from."""
    return element("span", claim.tag, class_="tag", title=TAGS[claim.tag])


def differences(claim: Claim) -> Html:
    """Return the differences on which a claim is judged, and the reason of its verdict."""
    verdicts = text_table.two_verdicts(claim)
    texts = [f"{verdicts[0].upper()}{verdicts[1:]}."] if verdicts else []
    texts += text_table.difference_texts(claim)
    if claim.reason:
        texts.append(f"Why: {claim.reason}")
    return element("ul", [element("li", text) for text in texts], class_="pairs")


def _plots(source: Source, charts: Charts) -> Html:
    """Return all plots of an experiment with their captions."""
    what = Y_LABELS[y_axis(source)].capitalize()
    band = "" if source.replicates == "1 replicate" else "; bands are two standard errors"
    caption = f"{what} against rounds. Lines are means{band}."
    if any(line.bound for chart in charts.regret for line in chart.lines):
        caption += " Thin dashed lines in grey are bounds."
    if any(panel.others for panel in charts.panels):
        count = spaced(len(source.results.curves))
        caption += f" Of {count} curves those of least regret, and in grey the range of all."
    notes = [*bounds_above_plot(source), *missing_bounds(source)]
    caption += "".join(f" {_as_sentence(note)}" for note in notes)
    blocks = [
        (_cards(charts.regret, f"{what} against rounds", charts.panels), caption),
        (_cards(charts.difference, f"{what} minus that of the baseline, against rounds", ()),
         f"{what} minus that of the baseline, replicate by replicate: below zero is better{band}."),
        (_cards(charts.final, f"{what} at the last round", ()),
         f"{what} at the last round, with two standard errors."),
        (_cards(charts.sent, f"{what} against bytes sent", charts.panels),
         f"{what} against bytes sent so far, up and down, on a logarithmic axis. A dot is the last "
         "round. The legend says what one replicate sends on average."),
    ]  # fmt: skip
    # Several panels share a caption below them. Plots of a single panel are side by side.
    several = [
        join(
            element("div", [element("figure", card) for card in cards], class_="pictures"),
            element("p", text, class_="caption"),
        )
        for cards, text in blocks
        if len(cards) > 1
    ]
    single = [
        element("figure", cards[0], element("figcaption", text))
        for cards, text in blocks
        if len(cards) == 1
    ]
    beside = [element("div", single, class_="pictures")] if single else []
    parts = [*several[:1], *beside, *several[1:]]
    if not charts.sent:
        parts.append(element("p", "No curve sends anything.", class_="quiet"))
    return join(parts)


def _cards(charts: Sequence[Chart], what: str, shown: Sequence[Panel]) -> list[Html]:
    """Return each chart as an element with its legend.

    ``what`` describes the charts for screen readers. ``shown`` are their panels, whose titles and
    curves are added to the description; it may be empty.
    """
    cards = []
    for number, chart in enumerate(charts):
        label = what
        if shown:
            panel = shown[number]
            title = f" ({panel.title})" if panel.title else ""
            bounds = [f"bound {line.text}" for line in chart.lines if line.bound]
            label = f"{what}{title}: {', '.join([*(c.label for c in panel.curves), *bounds])}"
        cards.append(element("div", chart_svg(chart, label), legend(chart), class_="card"))
    return cards


def legend(chart: Chart) -> Html:
    """Return the legend of a chart; empty if names are beside the ends of lines."""
    if names_fit(chart) or not chart.lines:
        return Html("")
    return element(
        "ul",
        [element("li", key(line.style), element("span", line.text)) for line in chart.lines],
        class_="legend",
    )


def legend_labels(curves: Sequence[CurveResult], styles: Sequence[dict[str, Any]]) -> list[Html]:
    """Return the label of every curve, after a sample of its line."""
    return [
        element("span", key(style), curve.label)
        for curve, style in zip(curves, styles, strict=True)
    ]


def results_table(source: Source, names: Sequence[Html]) -> Html:
    """Return the table of results, with one row per curve, and the remarks below it."""
    cells = text_table.table_rows(source)
    # The section "Run" has the speed.
    columns = [i for i in text_table.used_columns(cells) if 0 < i < text_table.SPEED]
    rows: list[list[str]] = [
        [name, *(row[i] for i in columns)] for name, row in zip(names, cells, strict=True)
    ]
    headings = [text_table.HEADINGS[i] for i in (0, *columns)]
    numbers = [place for place, i in enumerate((0, *columns)) if i in text_table.RIGHT]
    curves = source.results.curves
    class_ = None
    if is_sweep(curves):
        # Labels of sweeps repeat every key, so keys become columns. The best curves come first.
        keys, class_ = swept_keys(curves), "sweep"
        for row, curve in zip(rows, curves, strict=True):
            base, pairs = split_label(curve.label)
            row[:1] = [base, *(number_text(pairs.get(name, "-")) for name in keys)]
        headings[1:1] = keys
        numbers = [*range(1, len(keys) + 1), *(place + len(keys) for place in numbers)]
        final_regrets = [float(curve.mean[-1]) for curve in curves]
        rows = [rows[i] for i in sorted(range(len(rows)), key=final_regrets.__getitem__)]
    remarks = text_table.remarks(source, speed=False, notes=False)
    for label, count, theorem, bound in synchronisation_bounds(source.results):
        theorem_text = f" ({theorem})" if theorem else ""
        remarks.append(
            f"{label}: synchronisations {text_table.times(count)}, at most{theorem_text} "
            f"{amount(bound)}"
        )
    return join(
        table(headings, rows, label="Results", numbers=numbers, class_=class_),
        [element("p", f"{line}.", class_="quiet") for line in remarks],
    )


def _run(source: Source) -> Html:
    """Return times, speed, seed, versions and spec of the run."""
    effort = source.effort
    wall = sum(run.seconds for run in effort.runs)
    threads = _distinct(str(run.threads) for run in effort.runs)
    took = f"{span(wall)} on {threads} thread{'' if threads == '1' else 's'}"
    if len(effort.runs) > 1:
        took += f", in {len(effort.runs)} runs"
    replicates = sorted({r for c in source.results.curves for r in c.replicates})
    facts = [
        ("time", took),
        ("thread time", span(effort.thread_seconds)),
        ("simulated", f"{spaced(effort.agent_rounds)} agent-rounds"),
        (
            "speed",
            f"{text_table.rate(_per_second(effort.agent_rounds, wall))} agent-rounds per second",
        ),
        ("seed", f"{source.identity['seed']}, replicates {_ranges(replicates)}"),
        ("fastfed", _distinct(run.fastfed for run in effort.runs)),
        ("Python", _distinct(run.python for run in effort.runs)),
        ("NumPy", _distinct(run.numpy for run in effort.runs)),
        ("platform", _distinct(run.platform for run in effort.runs)),
    ]
    n_replicates = max(len(c.replicates) for c in source.results.curves)
    text = spec_text(source.identity, n_replicates, source.results.figure)
    return join(
        definitions(facts),
        details("Spec, every key with its value", element("pre", element("code", text))),
    )


def _distinct(values: Iterable[str]) -> str:
    """Return the distinct values in order, separated by commas; "-" if there are none."""
    return ", ".join(dict.fromkeys(values)) or "-"


def _per_second(count: float, seconds: float) -> float | None:
    """Return count / seconds; None if no time was measured."""
    return count / seconds if seconds > 0 else None


def _ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers as "0 to 24" if they are consecutive, and as a list otherwise."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
