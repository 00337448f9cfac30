"""Code in the README and in docs/ runs, and names, links and numbers there are correct."""

import importlib.util
import json
import math
import re
import sys
import tomllib
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

import fastfed
from fastfed import experiments
from fastfed.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu
from fastfed.simulation.experiment import TOP_KEYS, experiment_from_spec

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name):
    """Return the text of a page of docs/."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


README = (ROOT / "README.md").read_text(encoding="utf-8")
SPEC, FIGURES, FEDUCB = page("spec"), page("figures"), page("feducb")
GLOSSARY = page("glossary")
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
#: Pages whose Python blocks each run without the blocks before.
PAGES_OF_SEPARATE_BLOCKS = {
    "README.md": README,
    "certificates.md": page("certificates"),
    "deployment.md": page("deployment"),
    "secure-sum.md": page("secure-sum"),
    "spec.md": SPEC,
    "tracking.md": page("tracking"),
}


def blocks(language, page=README):
    """Return the code blocks of a language in a page's text."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def rows(text):
    """Return the cells of every row of the tables in a text, including header rows."""
    lines = [line for line in text.split("\n") if line.startswith("| ") and "---" not in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        (name, block)
        for name, text in PAGES_OF_SEPARATE_BLOCKS.items()
        for block in blocks("python", text)
    ],
    ids=lambda text: text.split("\n")[0][:30],
)
def test_python_blocks_run_and_print_what_the_page_shows(
    name, block, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)  # blocks may write files
    exec(compile(block, name, "exec"), {"__name__": "page"})
    output_block = re.match(
        r"```\s*```text\n(.*?)```", PAGES_OF_SEPARATE_BLOCKS[name].split(block)[1], re.DOTALL
    )
    if output_block:
        assert capsys.readouterr().out == output_block[1]


def test_the_blocks_of_the_feducb_page_run_in_order(capsys):
    namespace = {"__name__": "page"}
    for block in blocks("python", FEDUCB):
        exec(compile(block, "feducb.md", "exec"), namespace)
    printed = capsys.readouterr().out.split()
    assert printed == ["18.89", "1.000", "84.49", "1.000", "proven", "proven"]
    # Noise for a person in all 20 silos has sqrt(20) times the std; without it mu grows as much.
    assert float(printed[2]) == pytest.approx(math.sqrt(20) * float(printed[0]), rel=1e-3)
    epsilon_of_person = gaussian_epsilon(math.sqrt(20) * gaussian_mu(1.0, 1e-6), 1e-6)
    assert f"guarantee ({epsilon_of_person:.2f}, 1e-6)" in " ".join(FEDUCB.split())
    # Advanced composition (Dwork et al.) of twenty (1, 1e-6) releases, as the paper states it.
    epsilon_of_paper = math.sqrt(2.0 * 20 * math.log(1e6)) + 20 * (math.e - 1.0)
    assert f"an epsilon of {epsilon_of_paper:.1f} at a delta of 2.1e-5" in " ".join(FEDUCB.split())


def test_the_blocks_of_the_agent_page_run(capsys, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
    (block, service, library) = blocks("python", page)
    exec(compile(block, "agent.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith("proven")
    monkeypatch.chdir(tmp_path)
    for code in (service, library):
        exec(compile(code, "agent.md", "exec"), {"__name__": "page"})
        assert capsys.readouterr().out in page


def test_the_block_of_the_robin_page_runs(capsys):
    (block,) = blocks("python", (ROOT / "docs" / "robin.md").read_text(encoding="utf-8"))
    exec(compile(block, "robin.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip().endswith("proven")


def test_the_blocks_of_the_experts_page_run(capsys):
    page = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    (spec,) = blocks("toml", page)
    assert len(experiment_from_spec(tomllib.loads(spec)).curves) == 4
    losses, deployment = blocks("python", page)
    namespace = {"__name__": "page"}
    exec(compile(losses, "experts.md", "exec"), namespace)
    assert float(capsys.readouterr().out.split("'mean': ")[1].split(",")[0]) < 50
    exec(compile(deployment, "experts.md", "exec"), namespace)
    assert "epsilon=1.0" in capsys.readouterr().out


def test_the_blocks_of_the_notebook_page_run_in_order(capsys):
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("pandas")
    from matplotlib import pyplot

    namespace = {"__name__": "page"}
    for block in blocks("python", (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")):
        exec(compile(block, "notebook.md", "exec"), namespace)
    pyplot.close("all")
    output = capsys.readouterr().out
    assert output.startswith("label\n") and "\nno privacy None " in output
    assert "Privacy certificate  proven" in output


def test_the_pages_contain_blocks_to_run():
    assert sum(len(blocks("python", text)) for text in PAGES_OF_SEPARATE_BLOCKS.values()) >= 3
    assert all(blocks("python", text) for text in PAGES_OF_SEPARATE_BLOCKS.values())
    assert len(blocks("toml", SPEC)) == 1


def test_the_readme_is_short_and_says_how_to_test():
    assert len(README.splitlines()) <= 120
    assert "./scripts/test" in README


def test_the_toml_block_is_a_spec_and_simulates():
    (block,) = blocks("toml", SPEC)
    experiment = experiment_from_spec(tomllib.loads(block))
    assert [curve.label for curve in experiment.curves] == [
        "LDP, epsilon = 1.0",
        "LDP, epsilon = 5.0",
    ]


def test_trackers_get_every_curve_and_checkpoint(monkeypatch):
    """The blocks run with stand-ins for MLflow and wandb, which are not installed."""
    private = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-6}
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 3, "actions": 4},
        curves=[{**private, "epsilon": [1.0, 2.0]}],
        silos=2,
        horizon=20,
    )
    stand_ins = {name: MagicMock() for name in ("mlflow", "wandb")}
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    for block in blocks("py", page("tracking")):
        exec(block, {"results": results})
    points = sum(len(curve.rounds) for curve in results)
    mlflow, run = stand_ins["mlflow"], stand_ins["wandb"].init.return_value.__enter__.return_value
    assert mlflow.log_metric.call_count == points + 2 and run.log.call_count == points
    assert [call.args[0]["epsilon"] for call in mlflow.log_params.call_args_list] == [1.0, 2.0]
    (data, file), _ = mlflow.log_dict.call_args
    assert json.loads(json.dumps(data))["status"] == "proven" and file.endswith(".json")


@pytest.mark.slow
def test_the_readme_shows_the_output_of_its_command(tmp_path):
    from fastfed.cli import cli

    (command,) = [
        line for block in blocks("sh") for line in block.split("\n") if "fastfed run" in line
    ]
    assert command.split()[:3] == ["fastfed", "run", "examples/sphere.toml"]

    def run(spec, folder):
        """Run a spec; return its output and its results."""
        result = CliRunner().invoke(cli, ["run", str(spec), "-o", str(tmp_path / folder)])
        assert result.exit_code == 0, result.output
        return result.output, fastfed.load(tmp_path / folder)

    spec = ROOT / "examples" / "sphere.toml"
    output, results = run(spec, "out")
    table = next(text for text in blocks("text") if text.startswith("curve "))
    for line in table.splitlines():
        assert f"\n{line}" in output  # without the speed column
    assert "undecided for silo-level LDP" in output
    assert "for silo-level LDP the answer is undecided" in " ".join(README.split())
    alone, server = (results[c].final()["mean"] for c in ("each silo alone", "trusted server"))
    assert "about a ninth" in " ".join(README.split()) and 8 < alone / server < 10
    changed_spec = tmp_path / "changed.toml"
    changed_spec.write_text(
        re.sub(r'(protocol = "silo-ldp"\n)', r"\1intercept = 8.0\nsieve = 0.1\n", spec.read_text())
    )
    _, results = run(changed_spec, "changed")
    final = results["silo-level LDP"].final()
    shown = f"LDP has a regret of {final['mean']:,.0f} ± {final['stderr']:.0f} instead of 1 966"
    assert shown.replace(",", " ") in " ".join(README.split())

    _, results = run(ROOT / "examples" / "visits.toml", "visits")
    for label in ("trusted server", "each silo alone"):
        regret_per_visit = results[label].final()["mean"] / (results.horizon * 40)
        assert f"{100 * regret_per_visit:.1f} %" in README


def test_the_readme_states_the_ratios_of_the_speed_page():
    section = page("speed").split("### The papers' constants")[1]
    ratios = [int(number) for row in rows(section)[1:] for number in re.findall(r"\d+", row[-1])]
    sentence = f"{min(ratios)} to {max(ratios)} times as fast as code written as in the papers"
    assert sentence in " ".join(README.split())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_of_pages_lead_to_existing_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


def test_the_index_links_every_page_and_the_readme_links_the_index():
    index = page("index")
    for path in PAGES[1:]:
        assert path.stem == "index" or f"]({path.name})" in index, path.name
    assert "](docs/index.md)" in README


def test_every_top_level_key_and_every_curve_key_is_on_the_spec_page():
    from fastfed.simulation.systems import ALGORITHMS

    page = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    for key in set(TOP_KEYS) - {"environment", "curve", "figure"}:
        assert f"`{key}`" in page, key
    for entry in ALGORITHMS.values():
        for key in entry.config.__struct_fields__:
            assert f"`{key}`" in page, key


def test_every_environment_is_on_the_spec_page():
    from fastfed.environments import ENVIRONMENTS

    for kind in ENVIRONMENTS:
        assert f"`{kind}`" in SPEC and f'kind = "{kind}"' in " ".join(SPEC.split()), kind


def test_the_figures_page_lists_every_figure_with_its_size():
    listed_figures = {}
    for id_cell, title, *sizes in rows(FIGURES.split("## All figures")[1]):
        for name in re.findall(r"`([^`]+)`", id_cell):
            listed_figures[name] = title, *sizes
    assert sorted(listed_figures) == experiments.figure_ids()
    for name, (title, *sizes) in listed_figures.items():
        figure = experiments.figure(name)
        assert sizes == [str(figure.spec[key]) for key in ("silos", "horizon", "replicates")], name
        assert figure.needs_data == title.endswith(" (needs `--data`)"), name
        if not name.endswith("-exact"):
            assert title.removesuffix(" (needs `--data`)") == figure.title


def test_the_stated_counts_of_claims_add_up():
    """A figure without statements counts as one claim with the tag "ours"."""
    figure_tables = [experiments.figure(name).spec["figure"] for name in experiments.figure_ids()]
    tags = [
        statement["tag"]
        for table_of_figure in figure_tables
        for statement in table_of_figure.get("statement", [{"tag": "ours"}])
    ]
    counts = re.search(
        r"Of (\d+) statements\D+(\d+) hold\D+(\d+) fail, (\d+) \D+(\d+) are about "
        r"systems\D+(\d+) \D+(\d+) are about figures that",
        " ".join(FIGURES.split()),
    )
    total, *parts = map(int, counts.groups())
    assert total == len(tags) == sum(parts)
    table = rows(FIGURES.split("**Of ")[1].split("The row *variants*")[0])[1:]
    by_tag = {cells[0]: [int(number) for number in cells[1:]] for cells in table}
    row_names = {"paper": "printed figures, as printed", "variant": "variants", "ours": "ours"}
    for tag, name in row_names.items():
        assert sum(by_tag[name]) == tags.count(tag), tag
    assert [sum(column) for column in zip(*by_tag.values(), strict=True)] == parts
    paper_counts = re.search(
        r"(\d+) are about printed figures\D+(\d+) of these are reproduced\D+(\d+) fail, "
        r"(\d+) are undecided, (\d+) are not judged and (\d+) not played",
        " ".join(FIGURES.split()),
    )
    paper_total, *parts = map(int, paper_counts.groups())
    assert paper_total == sum(parts) == tags.count("paper")


def test_the_glossary_names_modules_and_pages_that_exist():
    """Every entry names a module of fastfed or a file that exists."""
    entries = [row for row in rows(GLOSSARY.split("## Symbols")[0]) if row[0] != "here"]
    assert len(entries) > 60
    for term, _, code, _ in entries:
        names = re.findall(r"`([a-z_0-9./]+)`", code)
        assert names, term
        for name in names:
            if "/" in name:
                assert (ROOT / name).exists(), name
            else:
                assert importlib.util.find_spec(f"fastfed.{name}"), name


def test_every_algorithm_is_in_the_readme():
    from fastfed.simulation.systems import ALGORITHMS

    for name in ALGORITHMS:
        assert f"`{name}`" in README


@pytest.mark.parametrize(
    ("name", "curves"), [("sphere", 5), ("visits", 6), ("digits", 4), ("arms", 10)]
)
def test_the_quickstart_specs_load(name, curves):
    if name == "digits":
        pytest.importorskip("sklearn")
    if name == "visits":
        pytest.importorskip("statsmodels")
    experiment = fastfed.simulation.load_experiment(ROOT / "examples" / f"{name}.toml")
    assert len(experiment.curves) == curves


def test_the_keys_of_the_glossary_are_keys_of_a_spec():
    head, *symbols = rows(GLOSSARY.split("## Symbols")[1])
    assert head[2] == "key" and len(symbols) > 20
    for cells in symbols:
        assert len(cells) == len(head), cells
        for name in re.findall(r"`([a-z_0-9]+)[` ]", cells[2]):
            assert f"`{name}`" in SPEC, name
