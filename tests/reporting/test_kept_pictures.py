"""Pictures are drawn once: again only where what they show has changed, or a file has."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import fastfed
from fastfed.reporting import kept, page
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


DRAWN: dict[tuple[str, tuple[str, ...]], dict[str, bytes]] = {}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one experiment with its report."""
    folder = tmp_path_factory.mktemp("made")
    run(folder / "small")
    page.report(folder / "small")
    return folder / "small"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "small"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Kinds of each call that draws; what was drawn in an earlier test is not waited for again."""
    calls: list[tuple[str, ...]] = []
    draw_all = page.draw_all

    def counted(source, kinds=page.KINDS):
        calls.append(tuple(kinds))
        key = kept.made_from_digest(source), tuple(kinds)
        if key not in DRAWN:
            DRAWN[key] = draw_all(source, kinds)
        return dict(DRAWN[key])

    monkeypatch.setattr(page, "draw_all", counted)
    return calls


def run(folder: Path, replicates: int = 1) -> None:
    spec = folder.with_suffix(".toml")
    tables = [
        "[[curve]]\n" + "".join(f"{k} = {v!r}\n" for k, v in curve.items()) for curve in CURVES
    ]
    spec.write_text(SPEC + "\n".join(tables))
    fastfed.run(spec, folder, replicates=replicates)


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        p.name: (p.stat().st_ino, p.stat().st_mtime_ns, p.read_bytes())
        for p in folder.iterdir()
        if p.name != "results.sqlite"
    }


def test_a_second_report_draws_nothing_and_leaves_every_file(out: Path, drawn: list) -> None:
    before = state(out)
    page.report(out)
    assert drawn == []
    assert state(out) == before
    assert "<svg" in (out / "report.html").read_text()


def test_the_page_needs_no_picture_file(out: Path, drawn: list) -> None:
    before = (out / "report.html").read_bytes()
    for path in (*out.glob("*.png"), *out.glob("*.svg"), out / "report.html", out / kept.FILE):
        path.unlink()
    page.report(out, formats=[])
    assert drawn == []
    assert (out / "report.html").read_bytes() == before


def test_another_replicate_is_drawn(out: Path, drawn: list) -> None:
    before = state(out)
    run(out, replicates=2)
    page.report(out)
    after = state(out)
    assert len(drawn) == 1
    assert all(after[name][2] != before[name][2] for name in ("figure.png", "report.html"))


@pytest.mark.parametrize("how", ["changed", "gone", "kept changed", "kept cut", "nothing kept"])
def test_files_that_somebody_changed_are_drawn_again(out: Path, drawn: list, how: str) -> None:
    before = state(out)
    path = out / ("figure.png" if "kept" not in how else kept.FILE)
    data = path.read_bytes()
    if how in ("gone", "nothing kept"):
        path.unlink()
    elif how == "kept changed":
        found = msgspec.msgpack.decode(data)
        digests = found["digests"]
        digests["figure.svg"] = digests["communication.svg"]
        path.write_bytes(msgspec.msgpack.encode(found))
    else:
        path.write_bytes(data[: len(data) // 2])
    page.report(out)
    assert len(drawn) == 1
    assert {n: s[2] for n, s in state(out).items()} == {n: s[2] for n, s in before.items()}


def test_other_code_draws_again(out: Path, drawn: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_code", lambda: "another")
    page.report(out)
    assert len(drawn) == 1


def test_formats_are_kept_beside_each_other(out: Path, drawn: list) -> None:
    page.report(out, formats=["pdf"])
    page.report(out, formats=["pdf"])
    page.report(out)
    assert drawn == [("pdf",)]


def test_a_picture_that_is_gone_does_not_draw_other_formats(out: Path, drawn: list) -> None:
    (out / "communication.png").unlink()
    page.report(out)
    assert drawn == [("png",)] and (out / "communication.png").exists()


def test_pictures_of_fewer_replicates_are_named(out: Path) -> None:
    assert page.out_of_date(read_source(out), out) == []
    (out / "figure.pgf").write_text("of an earlier version")
    assert page.out_of_date(read_source(out), out) == ["figure.pgf"]
    run(out, replicates=2)
    (out / "figure.png").unlink()
    assert page.formats_in(out) == ["png", "svg"]
    names = ["figure.svg", "figure.pgf", "communication.png", "communication.svg"]
    assert page.out_of_date(read_source(out), out) == names


def test_the_page_over_several_experiments_draws_none_of_them(out: Path, drawn: list) -> None:
    shutil.copytree(out, out.with_name("twin"))
    before = page.write_overview(out.parent)
    assert before is not None and drawn == []
    assert before[0].read_text().count('<section class="experiment"') == 2
    stamp = before[0].stat().st_mtime_ns
    page.write_overview(out.parent)
    assert drawn == [] and before[0].stat().st_mtime_ns == stamp
