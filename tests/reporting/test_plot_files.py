"""Figures are drawn once, and again only if their content or one of their files has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import fastfed
from fastfed.reporting import page, plot_files
from fastfed.reporting.figure import read_source

pytest.importorskip("matplotlib")

CURVES = [
    {"label": "a", "algorithm": "fedlinucb"},
    {"label": "b", "algorithm": "private-fedlinucb", "protocol": "central", "epsilon": 1.0,
     "delta": 1e-6},
]  # fmt: skip
SPEC = """
name = "small"
silos = 2
horizon = 40
replicates = 1
[environment]
kind = "sphere"
dimension = 2
actions = 3
"""


#: Drawn figures by digest of their content and kinds, shared by all tests.
DRAWN: dict[tuple[str, tuple[str, ...]], dict[str, bytes]] = {}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of one experiment with its report, shared by all tests."""
    folder = tmp_path_factory.mktemp("made")
    run(folder / "small")
    page.report(folder / "small")
    return folder / "small"


@pytest.fixture
def out(reported: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder that a test may change."""
    return Path(shutil.copytree(reported, tmp_path / "small"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return a list that gets the kinds of each call that draws; reuse earlier drawings."""
    calls: list[tuple[str, ...]] = []
    draw = plot_files.draw

    def record_call(source, charts, kinds):
        """Draw each figure once, and note the call."""
        calls.append(tuple(kinds))
        key = plot_files.made_from_digest(source), tuple(kinds)
        if key not in DRAWN:
            DRAWN[key] = draw(source, charts, kinds)
        return dict(DRAWN[key])

    monkeypatch.setattr(plot_files, "draw", record_call)
    return calls


def run(folder: Path, replicates: int = 1) -> None:
    """Run the spec into a folder."""
    spec = folder.with_suffix(".toml")
    tables = [
        "[[curve]]\n" + "".join(f"{key} = {value!r}\n" for key, value in curve.items())
        for curve in CURVES
    ]
    spec.write_text(SPEC + "\n".join(tables))
    fastfed.run(spec, folder, replicates=replicates)


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time and content of each file except the store."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.iterdir()
        if path.name != "results.sqlite"
    }


def test_a_second_report_draws_nothing_and_changes_no_file(out: Path, drawn: list) -> None:
    state_before = state(out)
    page.report(out)
    assert drawn == []
    assert state(out) == state_before
    assert "<svg" in (out / "report.html").read_text()


def test_the_report_needs_no_figure_file(out: Path, drawn: list) -> None:
    report_before = (out / "report.html").read_bytes()
    for path in (
        *out.glob("*.png"),
        *out.glob("*.svg"),
        out / "report.html",
        out / plot_files.FILE,
    ):
        path.unlink()
    page.report(out, formats=[])
    assert drawn == []
    assert (out / "report.html").read_bytes() == report_before


def test_figures_are_drawn_again_after_a_new_replicate(out: Path, drawn: list) -> None:
    state_before = state(out)
    run(out, replicates=2)
    page.report(out)
    state_after = state(out)
    assert len(drawn) == 1
    assert all(
        state_after[name][2] != state_before[name][2] for name in ("figure.png", "report.html")
    )


@pytest.mark.parametrize("how", ["changed", "gone", "kept changed", "kept cut", "nothing kept"])
def test_changed_or_missing_files_are_drawn_again(out: Path, drawn: list, how: str) -> None:
    state_before = state(out)
    path = out / ("figure.png" if "kept" not in how else plot_files.FILE)
    data = path.read_bytes()
    if how in ("gone", "nothing kept"):
        path.unlink()
    elif how == "kept changed":
        cache = msgspec.msgpack.decode(data)
        digests = cache["digests"]
        digests["figure.svg"] = digests["communication.svg"]
        path.write_bytes(msgspec.msgpack.encode(cache))
    else:
        path.write_bytes(data[: len(data) // 2])
    page.report(out)
    assert len(drawn) == 1
    assert {name: file_state[2] for name, file_state in state(out).items()} == {
        name: file_state[2] for name, file_state in state_before.items()
    }


def test_figures_are_drawn_again_after_a_change_of_the_code(
    out: Path, drawn: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot_files, "_code", lambda: "another")
    page.report(out)
    assert len(drawn) == 1


def test_figures_of_several_formats_are_stored_together(out: Path, drawn: list) -> None:
    page.report(out, formats=["pdf"])
    page.report(out, formats=["pdf"])
    page.report(out)
    assert drawn == [("pdf",)]


def test_a_missing_figure_draws_only_its_format(out: Path, drawn: list) -> None:
    (out / "communication.png").unlink()
    page.report(out)
    assert drawn == [("png",)] and (out / "communication.png").exists()


def test_figures_of_fewer_replicates_are_out_of_date(out: Path) -> None:
    assert plot_files.out_of_date(read_source(out), out) == []
    (out / "figure.pgf").write_text("of an earlier version")
    assert plot_files.out_of_date(read_source(out), out) == ["figure.pgf"]
    run(out, replicates=2)
    (out / "figure.png").unlink()
    assert plot_files.formats_in(out) == ["png", "svg"]
    names = ["figure.svg", "figure.pgf", "communication.png", "communication.svg"]
    assert plot_files.out_of_date(read_source(out), out) == names


def test_the_overview_of_several_experiments_draws_no_figure(out: Path, drawn: list) -> None:
    shutil.copytree(out, out.with_name("twin"))
    overview = page.write_overview(out.parent)
    assert overview is not None and drawn == []
    assert overview[0].read_text().count('<section class="experiment"') == 2
    time_before = overview[0].stat().st_mtime_ns
    page.write_overview(out.parent)
    assert drawn == [] and overview[0].stat().st_mtime_ns == time_before
