"""report.html: its content, its HTML (valid and safe), and how a browser shows it."""

from __future__ import annotations

import html as escaping
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fastfed
from fastfed.cli import cli
from fastfed.environments import Sphere
from fastfed.reporting.figure import Source, read_source
from fastfed.reporting.html import element, join
from fastfed.reporting.page import anchor, write_overview, write_report
from fastfed.reporting.plot_files import FORMATS
from fastfed.reporting.text import as_toml, span
from fastfed.results.store import Effort
from fastfed.simulation.experiment import Experiment, make_experiment

NASTY = """<script>alert("1")</script> & 'so on' $x ]]> é"""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)  # fmt: skip
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")

VOID = {"meta", "link", "hr", "br", "img"}
HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5}


def an_experiment(name: str = "small", **figure: Any) -> Experiment:
    """Return a small experiment whose texts hold characters that HTML must escape."""
    # The claims are about the order of curves, which would be closer with less exploration.
    common_keys = {"sieve": 1.0, "batch_size": 10}
    private = {"algorithm": "private-fedlinucb", "delta": 1e-5, **common_keys}
    return make_experiment(
        name=name,
        environment=Sphere(dimension=3, actions=5),
        curves=[
            {"label": NASTY, "algorithm": "fedlinucb", **common_keys, "batch_size": 20},
            {"label": "lazy", "epsilon": [0.5, 1.5], **private},
            {"label": "eager", "epsilon": 1.0, "lazy": False, **private},
            {"label": "alone", "algorithm": "local-linucb"},
        ],
        horizon=60,
        silos=4,
        replicates=3,
        checkpoints=6,
        figure={
            "title": NASTY,
            "paper": "a-paper-2024",
            "note": NASTY,
            "statement": [
                {"says": f"Order: {NASTY}", "below": [NASTY, "lazy, epsilon = 0.5"]},
                {"says": "Far apart.", "near": ["lazy, epsilon = 0.5", NASTY], "within": 1e-6},
            ],
            **figure,
        },
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two experiments, with a page for each and one page for both."""
    out = tmp_path_factory.mktemp("pages") / "out"
    for name in ("first", "second & last"):
        fastfed.run(an_experiment(name), out / name)
        write_report(read_source(out / name), out / name)
    written = write_overview(out)
    assert written is not None and written[0] == out / "report.html"
    return out


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no plots in tests that do not look at them: drawing takes most of a report's time."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def source(folder: Path) -> Source:
    """Return the results of the first run as the source of a report."""
    return read_source(folder / "first")


class Page(HTMLParser):
    """Parse a page into tags and texts; fail on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len(dict(attributes)) == len(attributes), f"an attribute twice in {tag}"
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every tag of this name."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self) -> str:
        """Return the text of the page."""
        return " ".join(" ".join(t for tag, t in self.texts if tag != "style").split())


@pytest.fixture(params=["first/report.html", "report.html"])
def page(folder: Path, request: pytest.FixtureRequest) -> Page:
    """Return a parsed page: first of one experiment, then of all experiments."""
    return Page((folder / request.param).read_text())


def test_headings_are_in_order(page: Page) -> None:
    levels = [HEADINGS[tag] for tag, _ in page.tags if tag in HEADINGS]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(now <= before + 1 for before, now in pairwise(levels))


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"] for a in page.all("a")]
    targets += [f"#{a['aria-labelledby']}" for _, a in page.tags if "aria-labelledby" in a]
    assert targets or not page.all("section")
    assert all(t and t[0] == "#" and t[1:] in ids for t in targets)
    for _, attributes in page.tags:
        for value in attributes.values():
            assert all(name in ids for name in re.findall(r"url\(#([^)]*)\)", value or ""))


def test_nothing_is_fetched_and_nothing_runs(page: Page) -> None:
    assert not page.all("script") and not page.all("img") and not page.all("iframe")
    for tag, attributes in page.tags:
        assert not any(key.startswith("on") for key in attributes), tag
        for key in ("src", "href", "action"):
            value = attributes.get(key) or ""
            assert value.startswith(("#", "data:,")) or key not in attributes
    style = "".join(text for tag, text in page.texts if tag == "style")
    assert "url(" not in style and "@import" not in style
    assert len(page.all("style")) == 1


def charts(page: Page) -> list[dict[str, str | None]]:
    """Return the attributes of all charts of a page."""
    return [a for a in page.all("svg") if a.get("role") == "img"]


def test_pictures_and_tables_are_named(page: Page) -> None:
    pictures = charts(page)
    # Regret, its difference from the curve without sharing, and regret against bytes.
    assert len(pictures) % 3 == 0 and pictures
    for picture in pictures:
        assert picture["role"] == "img" and "against" in (picture["aria-label"] or "")
        assert "viewbox" in picture and "width" not in picture
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))
    boxes = [a for a in page.all("div") if "scroll" in (a.get("class") or "")]
    assert len(boxes) == len(page.all("table"))
    assert all(a["aria-label"] and a["tabindex"] == "0" for a in boxes)


def test_texts_are_escaped(folder: Path, page: Page) -> None:
    assert " ".join(NASTY.split()) in page.words
    for path in (folder / "first" / "report.html", folder / "report.html"):
        assert "<script" not in path.read_text()
    assert element("p", "<&", title='"<') == '<p title="&quot;&lt;">&lt;&amp;</p>'
    assert join("<", element("b", ["<", element("i", "x")])) == "&lt;<b>&lt;<i>x</i></b>"


def test_the_page_has_the_contents_of_the_results(source: Source, folder: Path) -> None:
    words = Page((folder / "first" / "report.html").read_text()).words
    assert "holds Order:" in words and "fails Far apart." in words
    for curve in source.results.curves:
        certificate = curve.certificate
        assert certificate["source"] in words and certificate["model"] in words
        for condition in certificate["conditions"]:
            mark = "✓ holds" if condition["holds"] else "✗ fails"
            assert f"{mark} {condition['text']}" in words
        assert all(text in words for text in certificate["caveats"])
        for side in certificate["also"]:
            assert f"Also, per {side['unit']}" in words and side["source"] in words
    assert "seed 0, replicates 0 to 2" in words
    assert f"NumPy {source.effort.runs[0].numpy}" in words
    assert 'kind = "sphere"' in words and "# regularizer: the default" in words


def test_bounds_are_in_the_page(source: Source, tmp_path: Path) -> None:
    first, *others = source.results.curves
    bounds = {
        "near": first.mean.tolist(),
        "far": [1e6] * 6,
        "synchronisations-proposition-1": [2.0, 3.0, 4.0, 5.0, 6.0, 41.25],
    }
    line = [
        {"label": NASTY, "curve": NASTY, "bound": "near"},
        {"label": "Theorem 2", "curve": NASTY, "bound": "far"},
        {"label": "Theorem 3", "curve": NASTY, "bound": "absent"},
    ]
    results = replace(
        source.results,
        curves=(replace(first, bounds=bounds), *others),
        figure={**source.results.figure, "y": "per-silo", "line": line},
    )
    write_report(replace(source, results=results), tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    page = Page(text)
    nasty = " ".join(NASTY.split())
    for words in (
        "Regret per silo against rounds. Lines are means; bands are two standard errors. "
        "Thin dashed lines in grey are bounds.",
        "Judged on final regret per silo over 3 replicates",
        "Above the plot: Theorem 2 = 250 000 at the last round.",
        f'Not drawn: Theorem 3, since there is no bound "absent" of curve "{nasty}" in the store.',
        f"{nasty}: synchronisations 3, at most (Proposition 1) 41.25.",
    ):
        assert words in page.words
    (picture, *_) = charts(page)
    assert (picture["aria-label"] or "").endswith(f", bound {NASTY}")

    write_report(source, tmp_path)
    plain = Page((tmp_path / "report.html").read_text()).words
    for words in ("Thin dashed", "bove the plot", "ot drawn", ": synchronisations"):
        assert words not in plain


def test_spec_lists_every_key(source: Source, folder: Path) -> None:
    text = (folder / "first" / "report.html").read_text()
    spec = escaping.unescape(text[text.index("<code>") : text.index("</code>")])
    for table in (source.identity["environment"], *source.identity["curves"]):
        for key, value in table.items():
            line = f"# {key}: the default" if value is None else f"{key} = {as_toml(value)}"
            assert line in spec


@pytest.mark.slow
def test_the_same_results_give_the_same_page(folder: Path, tmp_path: Path) -> None:
    """Run again in another folder with another number of threads; only the times may differ."""
    fastfed.run(an_experiment("first"), tmp_path / "again", threads=1)
    pages = []
    for path in (folder / "first", tmp_path / "again"):
        source = read_source(path)
        fixed = replace(source, effort=Effort(1.0, 5, source.effort.runs[:0]))
        curves = tuple(replace(c, agent_rounds_per_second=1.0) for c in source.results.curves)
        write_report(replace(fixed, results=replace(source.results, curves=curves)), tmp_path)
        pages.append((tmp_path / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_overview_has_the_statements_first(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    words = Page(text).words
    assert words.startswith("out: all experiments")
    assert "2 experiments; claims: 2 hold, 2 fail." in words
    assert text.index("Claims of all experiments") < text.index('class="experiment"')
    for name in ("first", "second & last"):
        assert text.count(f'href="#{anchor(name)}"') == 2  # one in each row of the table
    assert "3 replicates, 60 rounds" in words
    assert len({anchor(n) for n in ("a b", "a_b", "a-b", "a&b")}) == 4


@pytest.mark.usefixtures("no_pictures")
def test_overview_names_what_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (out / "broken").mkdir()
    (out / "broken" / "results.sqlite").write_text("no database")
    result = CliRunner().invoke(cli, ["report", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out / "report.html")
    assert str(out / "first" / "report.html") in result.stdout
    assert "left out:" in result.stderr and "damaged" in result.stderr
    assert "Left out:" in Page((out / "report.html").read_text()).words


def test_a_folder_with_an_experiment_keeps_its_own_page(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder / "first", out)
    shutil.copytree(folder / "first", out / "below")
    before = (out / "report.html").read_bytes()
    assert write_overview(out) is None
    assert (out / "report.html").read_bytes() == before


def test_without_matplotlib_the_page_has_its_pictures(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = {p.name for p in write_report(source, tmp_path, FORMATS)}
    assert written == {"table.txt", "table.csv", "certificates.txt", "report.html"}
    assert len(charts(Page((tmp_path / "report.html").read_text()))) == 3


def test_the_page_before_the_first_replicate(source: Source, tmp_path: Path) -> None:
    write_report(replace(source, results=replace(source.results, curves=())), tmp_path)
    assert "No replicate has run" in Page((tmp_path / "report.html").read_text()).words


@pytest.mark.usefixtures("no_pictures")
def test_runs_that_simulated_something_are_stored_with_their_time(tmp_path: Path) -> None:
    first = make_experiment(
        name="grown",
        environment=Sphere(dimension=3, actions=5),
        curves=[{"algorithm": "fedlinucb", "batch_size": 5}],
        horizon=20,
        silos=3,
    )
    for replicates, threads in ((1, 1), (1, 2), (3, 2)):
        fastfed.run(first.with_options(replicates), tmp_path, threads=threads)
    effort = read_source(tmp_path).effort
    # The second call had nothing left to simulate.
    assert [r.threads for r in effort.runs] == [1, 2]
    assert effort.agent_rounds == 3 * 3 * 20
    assert all(r.seconds > 0 for r in effort.runs) and effort.thread_seconds > 0
    assert {r.python for r in effort.runs} == {".".join(map(str, sys.version_info[:3]))}
    write_report(read_source(tmp_path), tmp_path)
    words = Page((tmp_path / "report.html").read_text()).words
    assert "on 1, 2 threads, in 2 runs" in words and "180 agent-rounds" in words


def test_span() -> None:
    spans = [(0.0421, "0.042 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
             (125.0, "2 min 5 s"), (7500.0, "2 h 5 min")]  # fmt: skip
    assert [span(s) for s, _ in spans] == [text for _, text in spans]


def browse(tmp_path: Path, *arguments: str) -> str:
    """Run a browser without a window, and return what it prints."""
    assert BROWSER is not None
    result = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            f"--user-data-dir={tmp_path / 'browser'}", *arguments,
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return result.stdout


def widths(tmp_path: Path, pages: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return (width of the window, width of the content) of each (page, width of its window).

    Scripts in copies of the pages measure the widths, all in one start of the browser.
    """
    frames = ""
    for number, (page, width) in enumerate(pages):
        actual = f"parent.document.body.dataset.found{number}"
        measure = f"{actual}=innerWidth+' '+document.documentElement.scrollWidth"
        copy = page.replace("</body>", f"<script>{measure}</script></body>")
        # Each copy is in a frame, because a window is never narrower than 500 pixels.
        frames += f'<iframe width="{width}" height="900" style="border:0" '
        frames += f'srcdoc="{escaping.escape(copy)}"></iframe>'
    frame = tmp_path / "frame.html"
    frame.write_text(f"<!DOCTYPE html><body>{frames}</body>")
    shown = browse(tmp_path, "--window-size=1400,1000", "--dump-dom", frame.as_uri())
    body = shown[shown.index("<body") :].partition("<iframe")[0]
    actual = {int(n): (int(w), int(c)) for n, w, c in re.findall(r'found(\d+)="(\d+) (\d+)"', body)}
    assert sorted(actual) == list(range(len(pages))), body[:500]
    return [actual[number] for number in range(len(pages))]


@needs_browser
def test_no_page_is_wider_than_its_window(folder: Path, tmp_path: Path) -> None:
    """Check also that a page that is too wide is detected."""
    pages = [
        ((folder / name).read_text().replace("<details>", "<details open>"), width)
        for name in ("first/report.html", "report.html")
        for width in (390, 1200)
    ]
    wide = '<!DOCTYPE html><body><div style="width:700px">x</div></body>'
    *actual, (_, too_wide) = widths(tmp_path, [*pages, (wide, 390)])
    for (_, width), (window, content) in zip(pages, actual, strict=True):
        assert window == width and content <= width
    assert too_wide >= 700


@needs_browser
def test_a_page_prints_with_its_details_open(folder: Path, tmp_path: Path) -> None:
    pages = {}
    for name in ("as it is", "closed"):
        text = (folder / "report.html").read_text()
        if name == "closed":
            text = re.sub(r"</summary>.*?</details>", "</summary></details>", text, flags=re.DOTALL)
        (tmp_path / "page.html").write_text(text)
        target = tmp_path / f"{name}.pdf"
        browse(tmp_path, f"--print-to-pdf={target}", (tmp_path / "page.html").as_uri())
        data = target.read_bytes()
        assert data.startswith(b"%PDF")
        pages[name] = len(re.findall(rb"/Type\s*/Page\b(?!s)", data))
    # The overview is on one page, and each experiment begins on a new page.
    assert pages["as it is"] > pages["closed"] >= 3
