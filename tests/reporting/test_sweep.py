"""The report on a sweep of many curves: heat maps, and a table that can be sorted and searched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import fastfed
from fastfed.reporting.panels import MAX_DRAWN, split_label
from fastfed.reporting.sweep import SCRIPT, swept_keys

EPSILON, BATCH, DELTA = [0.5, 1.0, 10.0, 2.0, 4.0, 8.0], [4, 5, 8, 10], [1e-5, 1e-4, 1e-6]
PRIVATE = {"algorithm": "private-fedlinucb", "protocol": "central"}
SPEC = {
    "name": "sweep",
    "horizon": 40,
    "silos": 3,
    "replicates": 3,
    "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
    "curve": [
        {"label": "server", "epsilon": EPSILON, "batch_size": BATCH, "delta": DELTA, **PRIVATE},
        {"label": "alone", "algorithm": "local-linucb"},
    ],
}


class Tables(HTMLParser):
    """Read the tables of a page, keyed by the class of their box, and the colours of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.colours: list[int] = []
        self.scripts = 0
        self._box: str | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "div" and (attributes.get("class") or "").startswith("scroll"):
            self._box = attributes["class"].removeprefix("scroll").strip()
            self.tables.setdefault(self._box, [])
        elif tag == "tr":
            self.tables[self._box].append([])
        elif tag in ("th", "td"):
            self.tables[self._box][-1].append("")
            if "--share" in (attributes.get("style") or ""):
                self.colours.append(int(re.search(r"\d+", attributes["style"]).group()))
        elif tag == "script":
            assert not attributes.get("src")
            self.scripts += 1

    def handle_endtag(self, tag):
        if tag == "table":
            self._box = None

    def handle_data(self, data):
        if self._box is not None and self.tables[self._box] and self.tables[self._box][-1]:
            self.tables[self._box][-1][-1] += data


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Run the sweep, and return (results, text of its report)."""
    folder = tmp_path_factory.mktemp("sweep")
    experiment = fastfed.simulation.experiment.experiment_from_spec(SPEC)
    results = fastfed.run(experiment, folder)
    fastfed.report(folder, formats=["svg"])
    return results, (folder / "report.html").read_text()


def test_a_heat_map_has_the_least_regret_over_the_other_keys(sweep):
    results, text = sweep
    assert len(results) > MAX_DRAWN and swept_keys(results.curves)[:2] == ["epsilon", "batch_size"]
    head, *rows = Tables(text).tables["heat"]
    # The keys of a sweep are sorted as numbers, not as texts or in the order of the spec.
    assert head == ["ε \\ B", *map(str, sorted(BATCH))]
    assert [row[0] for row in rows] == [f"{epsilon:g}" for epsilon in sorted(EPSILON)]
    for row, epsilon in zip(rows, sorted(EPSILON), strict=True):
        for cell, batch in zip(row[1:], sorted(BATCH), strict=True):
            chosen = results.select(label=[c.label for c in results], epsilon=epsilon)
            ends = [c.final()["mean"] for c in chosen if c.parameters["batch_size"] == batch]
            assert len(ends) == len(DELTA) and cell == f"{min(ends):.4g}"
    assert "Each cell is the least over delta." in text


def test_the_colour_is_stronger_for_less_regret(sweep):
    page = Tables(sweep[1])
    values = [float(cell) for row in page.tables["heat"][1:] for cell in row[1:]]
    assert len(page.colours) == len(values)
    order = np.argsort(values)
    colours = np.array(page.colours)[order]
    assert (np.diff(colours) <= 0).all() and colours[0] > 40 and colours[-1] == 0


def test_the_table_has_a_column_for_each_key_and_the_best_curve_first(sweep):
    results, text = sweep
    head, *rows = Tables(text).tables["sweep"]
    assert head[:5] == ["curve", "epsilon", "batch_size", "delta", "group regret"]
    assert len(rows) == len(results)
    ordered = sorted(results.curves, key=lambda curve: curve.final()["mean"])
    for row, curve in zip(rows, ordered, strict=True):
        base, pairs = split_label(curve.label)
        assert row[0] == base and ("alone" in base) == (row[1] == "-")
        if pairs:
            assert [float(value) for value in row[1:4]] == [
                float(pairs[key]) for key in ("epsilon", "batch_size", "delta")
            ]


def test_the_script_is_inline_and_only_on_pages_of_sweeps(sweep, tmp_path):
    page = Tables(sweep[1])
    assert page.scripts == 1 and SCRIPT in sweep[1]
    assert not re.search(r"https?:|import|fetch|innerHTML|eval", SCRIPT)
    few = {**SPEC, "curve": SPEC["curve"][1:]}
    fastfed.run(fastfed.simulation.experiment.experiment_from_spec(few), tmp_path)
    fastfed.report(tmp_path, formats=["svg"])
    page = Tables((tmp_path / "report.html").read_text())
    assert page.scripts == 0 and "heat" not in page.tables and "sweep" not in page.tables
