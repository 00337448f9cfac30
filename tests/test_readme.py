"""What the README and the spec page show is what runs."""

import re
import tomllib
from pathlib import Path

import pytest

import fastfed
from fastfed.simulation.experiment import TOP_KEYS, experiment_from_spec

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


FEDUCB = (ROOT / "docs" / "feducb.md").read_text(encoding="utf-8")


def blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda b: b.split("\n")[0][:30])
def test_python_blocks_run(block, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_blocks_of_the_feducb_page_run_in_order(capsys):
    scope = {"__name__": "page"}
    for block in blocks("python", FEDUCB):
        exec(compile(block, "feducb.md", "exec"), scope)
    assert capsys.readouterr().out.split() == ["proven", "proven"]


def test_the_block_of_the_agent_page_runs(capsys):
    (block,) = blocks("python", (ROOT / "docs" / "agent.md").read_text(encoding="utf-8"))
    exec(compile(block, "agent.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith("proven")


def test_the_block_of_the_robin_page_runs(capsys):
    (block,) = blocks("python", (ROOT / "docs" / "robin.md").read_text(encoding="utf-8"))
    exec(compile(block, "robin.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip().endswith("proven")


def test_the_blocks_of_the_experts_page_run(capsys):
    page = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    (spec,) = blocks("toml", page)
    assert len(experiment_from_spec(tomllib.loads(spec)).curves) == 4
    losses, deployment = blocks("python", page)
    scope = {"__name__": "page"}
    exec(compile(losses, "experts.md", "exec"), scope)
    assert float(capsys.readouterr().out.split("'mean': ")[1].split(",")[0]) < 50
    exec(compile(deployment, "experts.md", "exec"), scope)
    assert "epsilon=1.0" in capsys.readouterr().out


def test_the_blocks_of_the_notebook_page_run_in_order(capsys):
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("pandas")
    from matplotlib import pyplot

    scope = {"__name__": "page"}
    for block in blocks("python", (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")):
        exec(compile(block, "notebook.md", "exec"), scope)
    pyplot.close("all")
    out = capsys.readouterr().out
    assert out.startswith("label\n") and "\nno privacy None " in out
    assert "Privacy certificate  proven" in out


def test_there_are_blocks_to_run():
    assert len(blocks("python")) >= 3
    assert len(blocks("toml")) == 1


def test_the_toml_block_is_a_spec_and_plays():
    (block,) = blocks("toml")
    e = experiment_from_spec(tomllib.loads(block))
    assert [c.label for c in e.curves] == ["LDP, epsilon = 1.0", "LDP, epsilon = 5.0"]


def test_files_the_readme_points_at_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_top_level_key_and_every_curve_key_is_on_the_spec_page():
    from fastfed.simulation.systems import ALGORITHMS

    page = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    for key in set(TOP_KEYS) - {"environment", "curve", "figure"}:
        assert f"`{key}`" in page, key
    for entry in ALGORITHMS.values():
        for key in entry.keys.__struct_fields__:
            assert f"`{key}`" in page, key


def test_every_algorithm_is_in_the_readme():
    from fastfed.simulation.systems import ALGORITHMS

    for name in ALGORITHMS:
        assert f"`{name}`" in README


@pytest.mark.parametrize("name", ["sphere", "digits"])
def test_the_quickstart_specs_load(name):
    if name == "digits":
        pytest.importorskip("sklearn")
    e = fastfed.simulation.load_experiment(ROOT / "examples" / f"{name}.toml")
    assert len(e.curves) == 4
