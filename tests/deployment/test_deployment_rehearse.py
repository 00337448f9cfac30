"""A rehearsal: all parties of a spec over tables, in simulated time."""

import csv
import json
import math
import statistics

import numpy as np
import pytest

pytest.importorskip("cryptography")

from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment.rehearse import rehearse

SPEC = """
[system]
epsilon = 2.0
delta = 1e-6
{system}

{federation}
[[columns]]
name = "age"
kind = "number"
low = 20
high = 80

[[columns]]
name = "sex"
kind = "flag"

[actions]
names = ["ill", "well"]
features = [[1], [-1]]
constant = 1.0

[reward]
column = "ill"
correct = {{ yes = "ill", no = "well" }}
"""


def spec(system="", federation=""):
    """Return the spec with these additional keys of the system and of the federation."""
    return SPEC.format(system=system, federation=federation)


@pytest.fixture
def tables(tmp_path):
    """Write the tables of three silos, and return their paths."""
    rng = np.random.default_rng(3)
    files = {}
    for name, rows in (("north", 160), ("east", 120), ("south", 100)):
        files[name] = tmp_path / f"{name}.csv"
        with open(files[name], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", "ill"])
            for age, sex in zip(rng.uniform(20, 80, rows), rng.integers(0, 2, rows), strict=True):
                score = (age - 50) / 30 + 0.8 * (sex - 0.5) + rng.normal(0, 0.3)
                writer.writerow([round(age, 1), sex, "yes" if score > 0 else "no"])
    return files


@pytest.mark.parametrize("keys", [
    ("", ""),
    ('protocol = "central"', ""),
    ('protocol = "secure-sum"', ""),
    ('protocol = "secure-sum"', '[federation]\nsum = "masks"\nleast = 3\n'),
])  # fmt: skip
def test_every_party_does_its_part(keys, tables, tmp_path):
    lines = []
    home = tmp_path / "out"
    rehearsal = rehearse(spec(*keys), tables, home, lines.append)
    assert rehearsal.releases == 10 == len(lines) and rehearsal.plan.certificate.status == "proven"
    for name, rows in (("north", 160), ("east", 120), ("south", 100)):
        result = rehearsal.silos[name]
        assert result.decisions == result.learned == rows
        assert 0.0 < result.spent <= result.ceiling <= 2.0 * (1 + 1e-9)
        process = folders.opened(home / name)
        rewards = [end.reward for end in process.party.ended.values()]
        assert result.mean_reward == pytest.approx(np.mean(rewards))
        assert result.late_reward == pytest.approx(np.mean(rewards[rows // 2 :]))
        assert process.party.model.release == 10
        process.close()
        with open(tables[name]) as file:
            ill = np.mean([row["ill"] == "yes" for row in csv.DictReader(file)])
        assert result.best_single == pytest.approx(max(ill, 1 - ill))


def test_without_much_noise_most_calls_are_right(tables, tmp_path):
    text = spec().replace("epsilon = 2.0", "epsilon = 50.0")
    rehearsal = rehearse(text, tables, tmp_path / "out", lambda line: None)
    late = {name: result.late_reward for name, result in rehearsal.silos.items()}
    # The noise comes from the operating system. In 1 400 runs the least reward of a silo was 0.62,
    # and the least mean of the silos 0.666; the best single actions have a mean of 0.523.
    # In 1 % of the runs one silo was less than 0.1 above its best single action, so the means
    # are compared.
    assert min(late.values()) > 0.55
    best_single = [result.best_single for result in rehearsal.silos.values()]
    assert statistics.mean(late.values()) > statistics.mean(best_single) + 0.1, late


def test_a_source_says_how_a_table_is_read(tables, tmp_path):
    source = tmp_path / "north.toml"
    source.write_text('file = "north.csv"\nsubject = "who"\ndelay = 90000\n')
    with open(tables["north"]) as file:
        rows = list(csv.reader(file))
    with open(tables["north"], "w", newline="") as file:
        csv.writer(file).writerows(
            [["who", *rows[0]], *([f"p{k // 2}", *row] for k, row in enumerate(rows[1:]))]
        )
    lines = []
    rehearsal = rehearse(spec(), tables | {"north": source}, tmp_path / "out", lines.append)
    # Each person comes twice, and is learned from once; an outcome comes more than a period later.
    assert rehearsal.silos["north"].decisions == 160 and rehearsal.silos["north"].learned <= 80
    assert any("north: 80 of 160 rows" in line and "came before" in line for line in lines)


def test_the_command_prints_a_table_or_json(tables, tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(spec())
    arguments = ["deploy", "rehearse", str(file)]
    for name, table in tables.items():
        arguments += ["--table", f"{name}={table}"]
    result = CliRunner().invoke(cli, [*arguments, "--folder", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "proven: epsilon 2 at delta 1e-06 for one user" in result.output
    assert (tmp_path / "out" / "hub" / "state.sqlite").exists()
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    answer = json.loads(result.stdout)
    assert answer["silos"].keys() == tables.keys() and answer["releases"] == 10
    assert all(math.isfinite(one["mean_reward"]) for one in answer["silos"].values())


def test_a_spec_or_a_table_that_does_not_fit_is_refused_in_a_sentence(tables, tmp_path):
    def refused(match, text=None, files=None, home="new"):
        """Check that a rehearsal is refused with this message, and writes nothing."""
        with pytest.raises(InputError, match=match):
            rehearse(text or spec(), files or tables, tmp_path / home, lambda line: None)
        assert not (tmp_path / "new").exists()

    refused("needs a plan of records", spec().replace("[actions]", "[others]"))
    refused("epsilon", spec().replace("epsilon = 2.0", ""))
    refused("folder must be new or empty", home=".")
    refused("hub or helper", files={"hub": tables["north"], "b": tables["east"]})
    empty = tmp_path / "empty.csv"
    empty.write_text("age,sex,ill\n")
    refused("the table of a: the table has no rows", files={"a": empty})
    refused("age", files={"a": tables["north"]}, text=spec().replace('"age"', '"ages"'))
    refused("horizon", spec('horizon = "x"'))
    file = tmp_path / "spec.toml"
    file.write_text(spec())
    for wrong in ("north", "=x.csv", "a="):
        result = CliRunner().invoke(cli, ["deploy", "rehearse", str(file), "--table", wrong])
        assert result.exit_code == 2 and "north=north.csv" in result.output


def run(*arguments):
    """Run a command in this process."""
    return CliRunner().invoke(cli, list(map(str, arguments)))


def test_silos_on_their_own_clocks(tables, tmp_path):
    """A silo with fewer rows reports less often, learns from all of them and spends less."""
    lines, home = [], tmp_path / "out"
    rehearsal = rehearse(spec("clock = { rates = [1.0, 0.75, 0.5] }"), tables, home, lines.append)
    clocks = rehearsal.plan.clocks
    assert clocks.reports_of_silos == (10, 7, 5)
    assert rehearsal.releases == rehearsal.plan.exchanges == len(clocks.ticks) == 15
    assert sum(line.startswith("release") for line in lines) == 15
    spent = []
    for name, rows in (("north", 160), ("east", 120), ("south", 100)):
        assert rehearsal.silos[name].decisions == rehearsal.silos[name].learned == rows
        spent.append(rehearsal.silos[name].spent)
    assert spent[2] < spent[1] < spent[0] <= 2.0 * (1 + 1e-9)
    answer = run("deploy", "status", home / "hub")
    assert "10 of 10" in answer.output and "7 of 7" in answer.output and "5 of 5" in answer.output
    source = tmp_path / "south.toml"
    source.write_text(f'file = "{tables["south"]}"\n')
    refused = run("deploy", "check", home / "plan", source)
    assert refused.exit_code == 2 and "name the silo (--silo)" in refused.output
    counts = json.loads(run("deploy", "check", home / "plan", source, "--silo", "south").output)
    assert counts["learned"] == 100 and len(counts["periods"]) == len(counts["caps"]) == 5
    assert sum(counts["periods"]) == 100 and counts["caps"] == [16] * 5
    unknown = run("deploy", "check", home / "plan", source, "--silo", "west")
    assert unknown.exit_code == 2 and "west" in unknown.output


def test_values_outside_their_range_are_noted(tmp_path, tables):
    rows = tables["east"].read_text().splitlines()
    months = [f"{12 * float(row.split(',')[0])}," + row.split(",", 1)[1] for row in rows[1:]]
    tables["east"].write_text("\n".join([rows[0], *months]) + "\n")
    lines = []
    rehearse(spec(), tables, tmp_path / "out", lines.append)
    (note,) = [line for line in lines if "compare the units" in line]
    assert note.startswith('east: column "age": 120 of 120 values are outside the range')
