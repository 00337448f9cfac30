"""Check the documentation without building its site, and the metadata of the package.

`scripts/docs` builds the site, runs the gallery, and stops at the first broken link.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

import fastfed

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GALLERY = sorted(path for path in (DOCS / "gallery").glob("*.md") if path.stem != "index")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Gallery pages that run in less than a second. `scripts/docs` runs the other pages.
QUICK = {"noise-for-a-budget", "own-loop"}


def test_the_navigation_lists_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    listed = re.findall(r"^ +- (\S+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) - pages == {"contributing.md", "changelog.md", "security.md"}
    assert pages <= set(listed)


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.stem not in QUICK)) for p in GALLERY],
    ids=lambda path: path.stem,
)
def test_code_of_the_gallery_runs_and_draws_a_figure(path):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    namespace = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, path.name, "exec"), namespace)
    assert pyplot.get_fignums()
    pyplot.close("all")


@pytest.mark.parametrize("path", [*GALLERY, DOCS / "gallery" / "index.md"], ids=lambda p: p.stem)
def test_links_of_the_gallery_lead_to_existing_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_broken_links_are_found(tmp_path):
    broken_links = runpy.run_path(str(ROOT / "scripts" / "site" / "links.py"))["broken"]
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="#top">.</a><a href="b/">.</a><a href="b/#end">.</a>'
        '<a href="https://elsewhere.example">.</a>'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<p id="end"><img src="../picture.svg#only-dark">')
    (tmp_path / "picture.svg").write_text("<svg/>")
    assert broken_links(tmp_path) == (2, [])
    (tmp_path / "b" / "index.html").write_text('<script src="https://cdn.example/x.js"></script>')
    (tmp_path / "picture.svg").unlink()
    with (tmp_path / "a.html").open("a") as page:
        page.write('<a href="c.html">.</a><a href="#bottom">.</a><img src="picture.svg">')
    assert broken_links(tmp_path) == (
        2,
        [
            "a.html: no anchor for b/#end",
            "a.html: no file for c.html",
            "a.html: no anchor for #bottom",
            "a.html: no file for picture.svg",
            "b/index.html: loads https://cdn.example/x.js",
        ],
    )


def test_recipe_and_citation_have_the_version_of_the_package():
    """fastfed/__init__.py defines the version."""
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    assert ("repository:" in recipe) == ("urls" in PROJECT)
    assert f'version: "{fastfed.__version__}"\n' in recipe
    assert f"version: {fastfed.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text().split("  run:\n")[1].split("\ntests:")[0]
    requirements = {
        line.strip("- ").replace(" ", "") for line in recipe.split("\n") if ">=" in line
    }
    assert requirements == set(PROJECT["dependencies"])


def test_links_of_the_readme_work_on_the_package_index():
    try:
        text = metadata("fastfed").get_payload() or metadata("fastfed")["Description"]
    except PackageNotFoundError:
        pytest.skip("fastfed is not installed here")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 15
    for target in targets:
        path = target
        if "urls" in PROJECT:  # without an address nothing is published, and links are relative
            kind = "raw" if target.endswith(".png") else "blob"
            address = f"{PROJECT['urls']['Repository']}/{kind}/v{fastfed.__version__}/"
            assert target.startswith(address), target
            path = target.removeprefix(address)
        assert (ROOT / path.split("#")[0]).exists(), target
