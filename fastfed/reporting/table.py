"""Tables of results as text and CSV, and tables of claims of several figures as text and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fastfed.reporting.claims import (
    EXPONENT,
    FAILS,
    HOLDS,
    NOT_CLAIMED,
    NOT_JUDGED,
    OURS,
    PAPER,
    REGRET,
    TAGS,
    UNDECIDED,
    UNPROVEN,
    Claim,
)
from fastfed.reporting.figure import Source
from fastfed.reporting.sharing import difference_cells, notes_on_curves, sharing_sentence
from fastfed.reporting.text import fixed, magnitude, plus_minus, privacy_text
from fastfed.results.paired import Difference, baseline_differences, per_silo
from fastfed.results.results import Columns, CurveResult, columns

# ---- Results: one row per curve ------------------------------------------------------------------

HEADINGS = (
    "curve",
    "group regret",
    "difference",
    "per silo",
    "claimed",
    "exact",
    "status",
    "synchronised",
    "sent",
    "agent-rounds/s",
)
#: The column that is left out if no curve has a baseline, and the columns of status and speed.
DIFFERENCE, STATUS, SPEED = (HEADINGS.index(h) for h in ("difference", "status", "agent-rounds/s"))
#: Columns of numbers, which are aligned to the right.
RIGHT = (1, 2, 3, 7, 8, 9)

#: The columns by importance: on a narrow terminal the last ones are left out.
BY_IMPORTANCE = (0, 1, 5, 6, 2, 3, 4, 8, 7, 9)
#: Length of the shortest lines of a wrapped label, and of the gap between columns, in characters.
SHORTEST_LABEL, GAP = 12, 3

#: Units of bytes, the largest first.
SIZES = ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

EVENTS = {
    "indefinite": "V was not positive definite and was shifted until it was",
    "clipped_features": "features clipped to norm 1",
    "clipped_rewards": "rewards clipped to [0, 1]",
    "switches": "switches of the expert",
    "switches_spent": "replicates whose budget of switches was spent",
}


def table_rows(source: Source) -> list[tuple[str, ...]]:
    """Return the row of every curve, with the columns of HEADINGS."""
    rows: list[tuple[str, ...]] = []
    curves = source.results.curves
    differences = difference_cells(source.results) or [""] * len(curves)
    for curve, difference in zip(curves, differences, strict=True):
        privacy = privacy_text(curve.certificate)
        rows.append(
            (
                curve.label,
                _regret(curve, divisor=1),
                difference,
                _regret(curve, divisor=curve.silos),
                privacy.claimed,
                privacy.exact,
                privacy.status,
                times(curve.synchronisations),
                sent(curve.bytes_sent),
                rate(curve.agent_rounds_per_second),
            )
        )
    return rows


def used_columns(rows: Iterable[tuple[str, ...]]) -> list[int]:
    """Return the indices of the columns of `HEADINGS` that a table has.

    The difference to a baseline is left out if no curve has a baseline.
    """
    has_baseline = any(row[DIFFERENCE] for row in rows)
    return [i for i in range(len(HEADINGS)) if i != DIFFERENCE or has_baseline]


def fitting_columns(rows: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Return the indices of the columns that fit into ``width`` characters, ascending.

    The most important columns are chosen (`BY_IMPORTANCE`), always including curve and group
    regret. Labels may be wrapped, other cells may not.
    """
    used_indices = used_columns(rows)
    needed_widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    # A label that may take a third of the width of the table is rarely wrapped.
    needed_widths[0] = min(needed_widths[0], max(SHORTEST_LABEL, width // 3))
    chosen = [0, 1]
    if needed_widths[0] + needed_widths[1] + 2 * GAP > width:
        needed_widths[0] = SHORTEST_LABEL
    chosen_width = sum(needed_widths[i] + GAP for i in chosen)
    for i in BY_IMPORTANCE[2:]:
        if i in used_indices and chosen_width + needed_widths[i] + GAP <= width:
            chosen.append(i)
            chosen_width += needed_widths[i] + GAP
    return sorted(chosen)


def remarks(source: Source, *, speed: bool = True, notes: bool = True) -> list[str]:
    """Return the lines below the table: how to read it, notes, and events that occurred.

    A report shows the notes above its table, so it leaves them out here.
    """
    lines = [
        "group regret at the last round, summed over silos: mean ± standard error; "
        "privacy as (epsilon, delta); synchronisations and bytes sent up and down in one "
        "replicate, on average" + ("; speed of one thread" if speed else "")
    ]
    if any(baseline_differences(source.results)):
        per = " per silo" if per_silo(source.results) else ""
        lines.append(
            f"difference: regret{per} minus that of the baseline, paired by replicate; a negative "
            "difference is less regret"
        )
    if notes:
        lines += notes_on_curves(source.results)
    counts = {len(curve.replicates) for curve in source.results.curves}
    for curve in source.results.curves:
        if len(counts) > 1:
            lines.append(f"{curve.label}: {len(curve.replicates)} replicates so far")
        lines += [
            f"{curve.label}: {text}, {count} times in all replicates"
            for event, text in EVENTS.items()
            if (count := curve.events.get(event, 0))
        ]
    if not source.results.curves:
        lines = ["no replicate has run to its end yet"]
    return lines


def as_text(source: Source) -> str:
    """Return the table as text, with title and problem size above it, and remarks and claims below.

    This is the file ``table.txt``.
    """
    all_rows = table_rows(source)
    columns = used_columns(all_rows)
    rows = [[row[i] for i in columns] for row in (HEADINGS, *all_rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [source.title, f"{source.setting}, {source.replicates}", ""]
    if sentence := sharing_sentence(source.results):
        lines += [sentence, ""]
    if source.about_records:
        lines += [*source.about_records, ""]
    heading_line = len(lines)
    for row in rows:
        cells = [
            cell.rjust(width) if i in RIGHT else cell.ljust(width)
            for i, cell, width in zip(columns, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(heading_line + 1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *remarks(source), *claim_lines(source)]) + "\n"


def claim_lines(source: Source) -> list[str]:
    """Return lines with the claims of the figure and their verdicts; none without claims."""
    if not source.claims:
        return []
    what = " in regret per silo" if per_silo(source.results) else ""
    heading = (
        f"claims, judged on paired differences{what} beyond two standard errors, more if "
        f"replicates are few ({source.size})"
    )
    lines = ["", heading]
    for claim in source.claims:
        lines.append(f"{claim.verdict:<10} {claim.says}")
        lines += [f"{'':10} {text}" for text in claim_details(claim)]
    return lines


#: Text of the verdict on the plot and of the verdict on the guarantee.
PLOT_VERDICTS = {
    HOLDS: "the plot is reproduced",
    FAILS: "the plot is not reproduced",
    UNDECIDED: "whether the plot is reproduced is undecided",
}
GUARANTEE_VERDICTS = {
    HOLDS: "the guarantee holds",
    FAILS: "the guarantee does not hold",
    NOT_CLAIMED: "no privacy is claimed",
}


def two_verdicts(claim: Claim) -> str:
    """Return the verdicts on plot and guarantee as text, for a claim about a printed figure.

    Return "" for other claims and for claims that are not judged.
    """
    if claim.tag != PAPER or claim.picture not in PLOT_VERDICTS:
        return ""
    return f"{PLOT_VERDICTS[claim.picture]}, {GUARANTEE_VERDICTS[claim.guarantee]}"


def claim_details(claim: Claim) -> list[str]:
    """Return the texts below a claim: both verdicts, the differences, and the reason."""
    reason = f"why: {claim.reason}" if claim.reason else ""
    texts = [two_verdicts(claim), *difference_texts(claim), reason]
    return [text for text in texts if text]


def difference_texts(claim: Claim) -> list[str]:
    """Return a text for each difference on which a claim is judged."""
    return [difference_text(d, claim.within, claim.exponent) for d in claim.differences]


def difference_text(
    difference: Difference, within: float | None = None, exponent: tuple[float, float] | None = None
) -> str:
    """Return the text of a difference: names, mean, standard error and limit.

    ``difference.of`` is one of three quantities: the final regret, the spread of a group of curves
    (ln of the largest by the smallest final regret), or the exponent with which regret grows.
    ``within`` and ``exponent`` are the limits of claims of kind "near" and "power".
    """
    is_finite = math.isfinite(difference.mean)
    measured = plus_minus(difference.mean, difference.stderr) if is_finite else "not run yet"
    if difference.of == EXPONENT:
        limit = f"wanted: {exponent[0]:g} to {exponent[1]:g}" if exponent else ""
        return ", ".join(text for text in (f"exponent: {measured}", limit) if text)
    names = f"{difference.first} - {difference.second}"
    if not is_finite:
        return f"{names}: {measured}"
    if difference.of != REGRET:
        ratios = f"{difference.first_regret:.3g} x against {difference.second_regret:.3g} x"
        return f"{names}: ln(largest / smallest regret) {measured} ({ratios})"
    text = f"{names}: {measured}"
    text += f" ({plus_minus(difference.first_regret, None)}"
    text += f" against {plus_minus(difference.second_regret, None)})"
    if within is not None:
        text += f", wanted: within {100.0 * within:g} % of {difference.second}"
    return text


#: Spreadsheets take a cell that begins with one of these characters for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(source: Source) -> str:
    """Return the table as CSV, one row per curve, with all digits of every number.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    results = source.results
    if not results.curves:
        return ""
    return _as_csv(columns(results.curves, "summary") | results.difference_columns())


def curves_csv(source: Source) -> str:
    """Return the curves as CSV, one row per curve and checkpoint, with all digits."""
    return _as_csv(columns(source.results.curves, "curves"))


def _as_csv(table: Columns) -> str:
    """Return columns as the text of a CSV file. Values that are not known are empty cells."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    lists = [c if isinstance(c, list) else c.tolist() for c in table.values()]
    for row in zip(*lists, strict=True):
        # Only NaN is not equal to itself.
        writer.writerow([_no_formula(None if value != value else value) for value in row])
    return file.getvalue()


def _no_formula(value: object) -> object:
    """Return a cell's value; an apostrophe precedes text that spreadsheets take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _regret(curve: CurveResult, divisor: int) -> str:
    """Format the final group regret of a curve, divided by ``divisor``."""
    final = curve.final(divisor)
    return plus_minus(final["mean"], final["stderr"] if len(curve.replicates) > 1 else None)


def rate(per_second: float | None) -> str:
    """Format agent-rounds per second to three digits: 12.3 M."""
    if per_second is None:
        return "-"
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= size:
            return f"{per_second / size:#.3g}".rstrip(".") + letter
    return f"{per_second:.3g}"


def times(count: float) -> str:
    """Format a mean count: as a whole number if all replicates agree, else like 12.4 or 0.043."""
    return str(count) if isinstance(count, int) else fixed(count, max(1, 1 - magnitude(count)))


def sent(count: float) -> str:
    """Format a number of bytes with two or three digits and a decimal unit: 2.6 GB."""
    for size, unit in SIZES:
        # From 999.5 kB on write 1 MB, not 1000 kB.
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"
    return f"{count:.0f} B" if count else "nothing"


# ---- Claims of several figures, including figures that were left out -----------------------------

FILE = "statements.json"

NOT_PLAYED = "not played"
#: The word for each verdict in a count, such as "3 hold".
WORDS = {
    HOLDS: "hold",
    FAILS: "fail",
    UNDECIDED: "undecided",
    UNPROVEN: "unproven",
    NOT_JUDGED: NOT_JUDGED,
    NOT_PLAYED: NOT_PLAYED,
}
NOTHING = "there is no claim about it"
NOTHING_COMPARED = "no [[figure.statement]] compares curves"


@dataclass(frozen=True)
class Row:
    """A claim, and the figure that it is about."""

    figure: str  # the name of its folder
    paper: str
    title: str
    size: str  # numbers of replicates and rounds on which the claim is judged
    statement: Claim

    def to_builtins(self) -> dict[str, Any]:
        """Return the row as plain data, as in ``statements.json``."""
        about = {
            "figure": self.figure,
            "paper": self.paper,
            "title": self.title,
            "judged_on": self.size,
        }
        return {**about, **self.statement.to_builtins()}


def rows_of(name: str, source: Source) -> list[Row]:
    """Return the rows with the claims of an experiment; without claims, one row that says so."""
    figure = source.results.figure
    no_claim = Claim(str(figure.get("says", NOTHING)), NOT_JUDGED, (), why=NOTHING_COMPARED)
    paper = str(figure.get("paper", ""))
    return [Row(name, paper, source.title, source.size, c) for c in source.claims or (no_claim,)]


def rows_left_out(name: str, figure: Mapping[str, Any], reason: str) -> list[Row]:
    """Return one row for each claim of a figure that was not simulated; each states the reason."""
    claims = [(s["says"], s.get("tag", OURS)) for s in figure.get("statement", ())]
    paper, title = str(figure.get("paper", "")), str(figure.get("title", name))
    return [
        Row(name, paper, title, "", Claim(claim_text, NOT_PLAYED, (), why=reason, tag=tag))
        for claim_text, tag in claims or [(str(figure.get("says", NOTHING)), OURS)]
    ]


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Return rows sorted by paper and figure; claims of one figure keep their order."""
    return sorted(rows, key=lambda row: (row.paper, row.figure))


def counts(rows: Sequence[Row]) -> str:
    """Return a line with the counts of verdicts, unexpected verdicts and reproduced plots."""
    by_verdict = Counter(row.statement.verdict for row in rows)
    parts = [
        f"{by_verdict[verdict]} {word}" for verdict, word in WORDS.items() if by_verdict[verdict]
    ]
    if not parts:
        return "no claims"
    unexpected = sum(row.statement.unexpected for row in rows)
    text = f"claims: {', '.join(parts)}" + (f"; {unexpected} not as expected" if unexpected else "")
    printed = [row.statement for row in rows if row.statement.tag == PAPER]
    judged = [claim for claim in printed if claim.picture in PLOT_VERDICTS]
    if judged:
        reproduced = sum(claim.picture == HOLDS for claim in judged)
        private = sum(claim.picture == HOLDS and claim.guarantee == HOLDS for claim in judged)
        text += (
            f"; of {len(judged)} judged claims about printed figures, the plot is reproduced in "
            f"{reproduced}, and the guarantee holds in {private} of these"
        )
    return text


def table_lines(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Return all rows as lines of text, each with the depth of its indent, 0 to 2."""
    lines: list[tuple[int, str]] = []
    paper = figure = None
    for row in rows:
        if row.paper != paper:
            lines += [(0, ""), (0, row.paper or "of no paper")]
            paper, figure = row.paper, None
        if row.figure != figure:
            about = f"{row.title} ({row.size})" if row.size else row.title
            lines += [(0, ""), (0, f"{row.figure}: {about}")]
            figure = row.figure
        claim = row.statement
        lines.append((1, f"{claim.verdict:<10}  {claim.says}"))
        lines += [(2, text) for text in claim_details(claim)]
    return [*lines, (0, ""), (0, counts(rows))]


def as_json(rows: Sequence[Row]) -> bytes:
    """Return the content of ``statements.json``; numbers that are not finite are null."""
    by_verdict = Counter(row.statement.verdict for row in rows)
    value = {
        "counts": {verdict: by_verdict[verdict] for verdict in WORDS},
        "by_tag": {tag: _counted(row for row in rows if row.statement.tag == tag) for tag in TAGS},
        "printed_figures": _printed(rows),
        "unexpected": sum(row.statement.unexpected for row in rows),
        "statements": [row.to_builtins() for row in rows],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _counted(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of rows with each verdict."""
    by_verdict = Counter(row.statement.verdict for row in rows)
    return {verdict: by_verdict[verdict] for verdict in WORDS}


def _printed(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Return the counts of verdicts on claims about printed figures, for ``statements.json``.

    They are counts of the verdict on the plot, and of the verdict on the guarantee where the plot
    is reproduced.
    """
    claims = [row.statement for row in rows if row.statement.tag == PAPER]
    pictures = Counter(claim.picture for claim in claims)
    guarantees = Counter(claim.guarantee for claim in claims if claim.picture == HOLDS)
    verdicts = (HOLDS, FAILS, UNDECIDED, NOT_JUDGED, NOT_PLAYED)
    return {
        "picture": {verdict: pictures[verdict] for verdict in verdicts},
        "guarantee_where_the_picture_holds": {g: guarantees[g] for g in GUARANTEE_VERDICTS},
    }


def stored_left_out(folder: Path) -> list[Row]:
    """Return the rows in a folder's ``statements.json`` about figures that were not simulated.

    Return an empty list if the file is missing or damaged.
    """
    try:
        stored = json.loads((folder / FILE).read_bytes())["statements"]
        return [
            Row(
                s["figure"],
                s["paper"],
                s["title"],
                "",
                Claim(s["says"], NOT_PLAYED, (), why=s["why"], tag=s.get("tag", OURS)),
            )
            for s in stored
            if s["verdict"] == NOT_PLAYED
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
