"""Panels of a figure: their curves, and the styles and names of the curves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import experiments
from fastfed._validate import InputError
from fastfed.environments import Sphere
from fastfed.reporting.charts import charts_of, legend_texts
from fastfed.reporting.figure import Source, in_memory
from fastfed.reporting.html import VARIABLES
from fastfed.reporting.panels import (
    COLOURS,
    MAX_CURVES,
    NOT_PRIVATE_COLOUR,
    check_grammar,
    panels,
    split_label,
    symbols,
)
from fastfed.reporting.plot_files import KINDS, draw
from fastfed.reporting.svg import chart_svg
from fastfed.results.results import CurveResult, Results
from fastfed.simulation.experiment import expand, make_experiment

PLOTS = ("regret", "final", "sent")
PRIVATE = {
    "claimed": {"epsilon": 1.0, "delta": 1e-5}, "exact": {"epsilon": 1.0, "delta": 1e-5},
    "status": "proven", "also": [],
}  # fmt: skip
SENDS_NOTHING = ("local-linucb", "random")
OPEN = {"claimed": None, "exact": None, "status": "none", "also": []}


def curve(label: str, last: float = 10.0, *, private: bool = True, silos: int = 2) -> CurveResult:
    """Return a curve that ends at a regret of `last` (and 1.1 times that)."""
    rounds = np.arange(1, 6)
    regret = np.outer([1.0, 1.1], last * rounds / 5.0)
    return CurveResult(
        label=label,
        algorithm="a",
        protocol="p",
        silos=silos,
        dimension=3,
        horizon=5,
        rounds=rounds,
        group_regret=regret,
        replicates=(0, 1),
        synchronisation_counts=np.zeros((2, 5), np.int64),
        bits_up_counts=np.zeros((2, 5)),
        bits_down_counts=np.zeros((2, 5)),
        certificate=PRIVATE if private else OPEN,
        events={},
    )


def source(*curves: CurveResult, **figure: Any) -> Source:
    """Return curves as the source of a report."""
    return in_memory(Results("x", 5, 2, curves, figure))


def draw_plot(
    report_source: Source, kinds: Sequence[str] = KINDS, plot: str = "regret"
) -> dict[str, bytes]:
    """Draw only the plot ``plot``, a field of `Charts`; return the content of its files by kind."""
    charts = charts_of(report_source)
    only = {name: getattr(charts, name) if name == plot else [] for name in PLOTS}
    files = draw(report_source, replace(charts, **only), kinds)
    assert len({name.partition(".")[0] for name in files}) <= 1
    return {name.partition(".")[2]: data for name, data in files.items()}


def shown_panels(report_source: Source) -> list[tuple[str, list[str]]]:
    """Return (title, names of the curves) of every panel."""
    return [(panel.title, list(panel.names)) for panel in panels(report_source)]


GRID = [
    curve(f"ROBIN, silos = {m}, epsilon = {e}", silos=m) for m in (50, 200, 800) for e in (1.0, 4.0)
]
MEANS = [curve(f"plain mean, silos = {m}", private=False, silos=m) for m in (50, 200, 800)]


def test_labels_are_split_into_name_and_swept_keys() -> None:
    assert split_label("LDP, B = 20, epsilon = 1.0") == ("LDP", {"B": "20", "epsilon": "1.0"})
    assert split_label("one, two") == ("one, two", {})
    assert symbols("LDP, epsilon = 1.0, delta = 1e-05") == "LDP, ε = 1, δ = 1e-5"
    assert symbols("exact, graph = ring, rho_min = 100000.0") == (
        "exact, graph = ring, ρ_min = 100 000"
    )


def test_few_curves_are_one_panel() -> None:
    assert shown_panels(source(*GRID)) == [
        ("", [f"M = {m}, ε = {e}" for m in (50, 200, 800) for e in (1, 4)])
    ]


def test_more_curves_are_divided_by_the_key_with_the_fewest_panels() -> None:
    figure = source(*GRID, *MEANS)
    assert len(figure.results.curves) == MAX_CURVES + 1
    # Epsilon gives two panels; the three means, which have no epsilon, are in both.
    assert [title for title, _ in shown_panels(figure)] == ["ε = 1", "ε = 4"]
    assert shown_panels(figure)[0][1] == [
        *(f"ROBIN, M = {m}" for m in (50, 200, 800)),
        *(f"plain mean, M = {m}" for m in (50, 200, 800)),
    ]
    figure_keys = source(*GRID, *MEANS, facet="silos")
    assert shown_panels(figure_keys) == [
        (f"M = {m}", ["ROBIN, ε = 1", "ROBIN, ε = 4", "plain mean"]) for m in (50, 200, 800)
    ]
    # Curves that differ only by panel have one style; curves within a panel differ.
    for panel in panels(figure_keys):
        assert panel.styles == panels(figure_keys)[0].styles
        assert len({str(style) for style in panel.styles}) == 3
        assert panel.styles[2]["color"] == NOT_PRIVATE_COLOUR


def test_a_facet_that_no_curve_has_leaves_one_panel() -> None:
    two = source(curve("a"), curve("b"), facet="label")
    assert shown_panels(two) == [("", ["a", "b"])]


def test_curves_without_a_sweep_are_drawn_in_chunks() -> None:
    many = source(*(curve(f"curve number {i}") for i in range(20)))
    assert [title for title, _ in shown_panels(many)] == ["curves 1 to 6", "curves 7 to 13",
                                                   "curves 14 to 20"]  # fmt: skip
    nine = source(*(curve(f"curve number {i}") for i in range(9)))
    assert [len(labels) for _, labels in shown_panels(nine)] == [4, 5]


def test_of_very_many_curves_the_best_are_drawn_over_the_range_of_all() -> None:
    many = source(*(curve(f"c{i}", 1000.0 - i) for i in range(100)))
    (panel,) = panels(many)
    assert list(panel.names) == [f"c{i}" for i in range(93, 100)] and len(panel.others) == 100
    svg = draw_plot(many, ["svg"])["svg"]
    assert b"all 100 curves, from the least to the largest mean" in svg
    assert draw_plot(many, ["svg"], "final") == {}


def test_colour_and_dash_follow_their_keys() -> None:
    styles = charts_of(source(*GRID, colour="silos", dash="epsilon")).styles
    assert [s["color"] for s in styles] == [c for c in COLOURS[:3] for _ in range(2)]
    assert len({str(s["linestyle"]) for s in styles[::2]}) == 1
    assert str(styles[0]["linestyle"]) != str(styles[1]["linestyle"])
    # Without a key for dashes, dashes distinguish the curves of one colour.
    styles = charts_of(source(*GRID, colour="epsilon")).styles
    assert len({str(s) for s in styles}) == 6 and len({s["color"] for s in styles}) == 2


def test_a_key_that_no_curve_has_is_refused() -> None:
    tables = [{"label": "LDP, epsilon = 1.0", "batch_size": 5}]
    check_grammar({"colour": ["epsilon", "batch_size"], "facet": "label"}, tables)
    with pytest.raises(InputError, match=r'dash must be a key of curves, got "batchsize"; did you'):
        check_grammar({"dash": "batchsize"}, tables)


@pytest.mark.parametrize("name", experiments.figure_ids())
def test_every_figure_of_the_package_has_few_curves_in_an_axes(name: str) -> None:
    """Check also that within each axes all curves have different styles and names."""
    spec = experiments.figure(name).spec
    figure_curves = [
        curve(c["label"], private="epsilon" in c or c["algorithm"] in SENDS_NOTHING,
              silos=c.get("silos", 2))
        for table in spec["curve"] for c in expand(table)
    ]  # fmt: skip
    for panel in panels(source(*figure_curves, **spec["figure"])):
        assert len(panel.curves) <= MAX_CURVES and not panel.others
        assert len({str(style) for style in panel.styles}) == len(panel.styles)
        assert len(set(panel.names)) == len(panel.names)


def test_curves_that_look_alike_share_a_legend_entry() -> None:
    texts = legend_texts(panels(source(*GRID, *MEANS, facet="silos")))
    assert texts["ROBIN, M = 50, ε = 4:  (1, 1e-05)"] == "ROBIN, ε = 4:  (1, 1e-05)"
    assert len(set(texts.values())) == 3


def test_the_legend_names_the_privacy_of_each_panel() -> None:
    proven = [curve(f"central, epsilon = {e}.0") for e in (1, 2)]
    unproven = [
        replace(c, label=c.label.replace("central", "open"),
                certificate={**PRIVATE, "status": "unproven", "exact": None})
        for c in proven
    ]  # fmt: skip
    texts = legend_texts(panels(source(*proven, *unproven, facet="label")))
    assert texts["central, ε = 1:  (1, 1e-05)"] == (
        "ε = 1:  central (1, 1e-05) | open claimed (1, 1e-05), unproven"
    )


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    """Include lines that all end at the same point."""
    from matplotlib.text import Text

    from fastfed.reporting import plotting

    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        original = plotting._spread_ends
        patch.setattr(plotting, "_spread_ends", lambda a, w: original(a, w) or seen.append((a, w)))
        draw_plot(source(*(curve(f"curve {i}") for i in range(6))), ["pdf"])
    ((axes, written),) = seen
    figure = axes.figure
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(note) for note, _ in written), key=lambda box: box.y0)
    for below, above in pairwise(boxes):
        assert above.y0 >= below.y1 - 1.5
    assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_pdfs_are_one_column_wide_with_embedded_fonts() -> None:
    figure = source(curve("LDP, epsilon = 1.0"), curve("open", 5.0, private=False))
    first = draw_plot(figure, ["pdf"])
    assert set(first) == {"pdf"} and first == draw_plot(figure, ["pdf"])
    pdf = first["pdf"]
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # TrueType
    width = float(pdf.split(b"/MediaBox [ 0 0 ")[1].split()[0])
    assert width == pytest.approx(3.15 * 72.0)


def test_logarithmic_axes_are_deterministic_and_differ_from_linear_ones() -> None:
    svg = draw_plot(source(curve("a", 1000.0), curve("b", 1.0), log="xy"), ["svg"])["svg"]
    assert svg == draw_plot(source(curve("a", 1000.0), curve("b", 1.0), log="xy"), ["svg"])["svg"]
    assert svg != draw_plot(source(curve("a", 1000.0), curve("b", 1.0)), ["svg"])["svg"]


def test_charts_in_a_page_have_the_colours_of_the_page() -> None:
    figure = source(curve("LDP, epsilon = 1.0"), curve("open", 5.0, private=False))
    (chart,) = charts_of(figure).regret
    text = str(chart_svg(chart, "label"))
    assert "var(--c1)" in text and "var(--text)" in text and "var(--grid)" in text
    assert not any(colour in text for colour in VARIABLES)
    assert "font-family" not in text and "ε\u00a0=\u00a01" in text


def test_final_regret_is_drawn_as_dots_from_six_curves_on() -> None:
    six = [curve(f"c, epsilon = {i}.0", 10.0 * 3**i) for i in range(1, 7)]
    assert draw_plot(source(*six[:5]), ["svg"], "final") == {}
    svg = draw_plot(source(*six), ["svg"], "final")["svg"].decode()
    assert all(f"c, ε\u00a0=\u00a0{i}<" in svg for i in range(1, 7))
    one = [replace(c, group_regret=c.group_regret[:1], replicates=(0,)) for c in six]
    assert draw_plot(source(*one), ["svg"], "final")["svg"]


HOSTILE = "a & b_c #1, 50 % {x} \\frac ~^ $x$, epsilon = 1.0"


def test_without_latex_pgf_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"^format pgf needs LaTeX \(.*\): install TeX Live"):
        draw_plot(source(curve("a"), curve("b")), ["pgf"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xelatex") is None, reason="needs xelatex")
def test_pgf_is_input_to_latex_whatever_labels_are(tmp_path: Path) -> None:
    six = [curve(f"{HOSTILE}, rho_min = {i}.0") for i in range(6)]
    pictures = {
        **draw_plot(source(*six), ["pgf"]),
        "final": draw_plot(source(*six), ["pgf"], "final")["pgf"],
    }
    for name, content in pictures.items():
        (tmp_path / f"{name}.pgf").write_bytes(content)
    (tmp_path / "paper.tex").write_text(
        r"\documentclass[twocolumn]{article}\usepackage{fontspec}\usepackage{pgf}"
        r"\def\mathdefault#1{#1}\begin{document}\noindent\input{regret.pgf}"
        "\n\n" + r"\noindent\input{final.pgf}\end{document}"
    )
    result = subprocess.run(
        ["xelatex", "-interaction=batchmode", "paper.tex"], cwd=tmp_path, capture_output=True
    )
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert result.returncode == 0, log[-2000:]
    assert "Missing character" not in log and "Overfull" not in log


@pytest.mark.slow
def test_a_sweep_of_a_thousand_curves_has_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    results = fastfed.run(
        make_experiment(
            name="sweep",
            environment=Sphere(dimension=3, actions=5),
            curves=[
                {
                    "label": "LDP", "algorithm": "private-fedlinucb", "batch_size": [5, 10],
                    "epsilon": [0.1 * i for i in range(1, 21)],
                    "delta": [10.0**-i for i in range(3, 28)],
                }
            ],
            horizon=20,
            silos=2,
            replicates=2,
        ),
        tmp_path,
    )  # fmt: skip
    assert len(results.curves) == 1000
    fastfed.report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 5e6
    assert (
        page.count('<th scope="row">') > 2000
    )  # a row of results and a row of privacy for each curve
    assert "more certificates are in certificates.txt" in page
    assert (tmp_path / "certificates.txt").read_text().count("\n====") == 1000
