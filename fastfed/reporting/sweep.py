"""Sweeps of many curves in a report: heat maps over swept keys, and a table to sort and search.

The table is complete without the script, which only adds a search field and sorting.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastfed.reporting.figure import Source, regret
from fastfed.reporting.html import Html, element, join
from fastfed.reporting.panels import MAX_DRAWN, SYMBOLS, number_text, sort_key, split_label
from fastfed.results.paired import baseline_differences
from fastfed.results.results import CurveResult

#: A cell of least regret has this share of the accent colour, in percent; text stays readable.
MAX_COLOUR = 45

SCRIPT = r"""
for (const box of document.querySelectorAll(".sweep:not([data-ready])")) {
  box.dataset.ready = "yes";
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const field = document.createElement("input"), count = document.createElement("span");
  field.type = "search";
  field.placeholder = "search, such as: epsilon = 1 or proven";
  field.setAttribute("aria-label", "Search the rows of the table");
  count.className = "quiet";
  count.setAttribute("role", "status");
  const bar = document.createElement("p");
  bar.className = "search";
  bar.append(field, " ", count);
  box.before(bar);
  const names = [...box.querySelectorAll("thead th")].map(head => head.textContent);
  const texts = rows.map(row => [...row.cells].map((cell, i) =>
    cell.textContent + " " + names[i] + " = " + cell.textContent + ";").join(" ").toLowerCase());
  field.addEventListener("input", () => {
    const word = field.value.trim().toLowerCase();
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = /=\s*\S*\d$/.test(word)
        ? !texts[i].includes(word + ";") : !texts[i].includes(word);
      shown += !row.hidden;
    });
    count.textContent = word ? shown + " of " + rows.length + " curves" : "";
  });
  const units = {B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};
  const value = text => {
    const found = /^\(?([+-]?[\d ]*\.?\d+(?:e[+-]?\d+)?)(?:.* ([kMGT]?B)$)?/.exec(text.trim());
    return found ? Number(found[1].replaceAll(" ", "")) * (units[found[2]] || 1) : NaN;
  };
  [...box.querySelectorAll("thead th")].forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      box.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = rows.map(row => [row, row.cells[i].textContent]);
      keyed.sort(([, a], [, b]) => {
        const x = value(a), y = value(b);
        if (isNaN(x) && isNaN(y)) return (up ? 1 : -1) * a.localeCompare(b);
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
        return (up ? 1 : -1) * (x - y);
      });
      body.append(...keyed.map(([row]) => row));
    });
  });
}
"""


def is_sweep(curves: Sequence[CurveResult]) -> bool:
    """Return True if there are too many curves to draw a line for each."""
    return len(curves) > MAX_DRAWN


def swept_keys(curves: Sequence[CurveResult]) -> list[str]:
    """Return the keys that sweeps have added to labels, the key with the most values first."""
    values: dict[str, set[str]] = {}
    for curve in curves:
        for key, value in split_label(curve.label)[1].items():
            values.setdefault(key, set()).add(value)
    return sorted(values, key=lambda key: -len(values[key]))


def heat_maps(source: Source, what: str) -> Html:
    """Return a heat map for each sweep: final regret over the sweep's two keys with most values.

    A cell has the least regret over all other swept keys. ``what`` is the name of the regret.
    """
    by_table: dict[str, list[CurveResult]] = {}
    for curve in source.results.curves:
        base, pairs = split_label(curve.label)
        if pairs:
            by_table.setdefault(base, []).append(curve)
    differences = zip(source.results.curves, baseline_differences(source.results), strict=True)
    # Labels of the curves with less regret than the baseline, beyond the margin.
    better = {curve.label for curve, pair in differences if pair is not None and pair.sign < 0}
    maps = [_heat_map(source, base, curves, better, what) for base, curves in by_table.items()]
    return join(maps)


def _heat_map(
    source: Source, base: str, curves: Sequence[CurveResult], better: set[str], what: str
) -> Html:
    """Return the heat map of the curves of one sweep, whose label in the spec is ``base``.

    ``better`` has the labels of the curves that are better than the baseline: their regret is
    written bold. ``what`` is the name of the regret.
    """
    keys = swept_keys(curves)
    row_key, column_key = keys[0], keys[1] if len(keys) > 1 else None
    best: dict[tuple[str, str], tuple[float, CurveResult]] = {}
    for curve in curves:
        pairs = split_label(curve.label)[1]
        place = pairs.get(row_key, "-"), pairs.get(column_key, "-") if column_key else ""
        value = float(regret(source, curve)[0][-1])
        if place not in best or value < best[place][0]:
            best[place] = value, curve
    rows = sorted({row for row, _ in best}, key=sort_key)
    columns = sorted({column for _, column in best}, key=sort_key)
    ordered = sorted(value for value, _ in best.values())

    def cell(row: str, column: str) -> Html:
        """Return one cell: a regret, bold if it is better than the baseline.

        The colour is stronger for less regret.
        """
        if (row, column) not in best:
            return element("td", "–")
        value, curve = best[row, column]
        # 0 for the least regret, 1 for the largest.
        relative_rank = ordered.index(value) / max(1, len(ordered) - 1)
        text = f"{value:.4g}"
        return element(
            "td",
            element("strong", text) if curve.label in better else text,
            style=f"--share: {round(MAX_COLOUR * (1.0 - relative_rank))}%",
            title=curve.label,
        )

    corner = " \\ ".join(SYMBOLS.get(key, key) for key in keys[:2])
    names = [number_text(column) for column in columns] if column_key else [what]
    head = element("tr", [element("th", name, scope="col") for name in (corner, *names)])
    body = [
        element(
            "tr",
            element("th", number_text(row), scope="row"),
            [cell(row, column) for column in columns],
        )
        for row in rows
    ]
    least_over_text = f" Each cell is the least over {' and '.join(keys[2:])}." if keys[2:] else ""
    bold = " Bold: less regret than the baseline, beyond the margin." if better else ""
    colour = "the stronger the colour, the less (by rank)"
    caption = f"{base}: {what} at the last round; {colour}.{least_over_text}{bold}"
    box = element(
        "div",
        element("table", element("thead", head), element("tbody", body)),
        class_="scroll heat",
        role="region",
        aria_label=f"{what} of {base} over {' and '.join(keys[:2])}",
        tabindex="0",
    )
    return join(box, element("p", caption, class_="caption"))
