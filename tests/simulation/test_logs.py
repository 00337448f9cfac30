"""Training on logs and the value of what is learned, against loops that do not import fastfed."""

from __future__ import annotations

import csv
import gzip
import json
import math
import random
from pathlib import Path

import click.testing
import numpy as np
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.cli import cli
from fastfed.environments import Log
from fastfed.environments.log_files import read_vw
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.logs import LOGGED, UNIFORM, evaluate

OBD = Path(__file__).resolve().parents[3] / "shared" / "data" / "obd"
MEANS, CHANCES = [0.2, 0.7, 0.4], [0.5, 0.2, 0.3]
ONE_RELEASE = {"algorithm": "fedlinucb"}


def random_log(seed, rows=400):
    """Return a log of three actions without features: (action, reward, propensity) of each row."""
    draw = random.Random(seed)
    actions = draw.choices(range(3), CHANCES, k=rows)
    return [(a, int(draw.random() < MEANS[a]), CHANCES[a]) for a in actions]


def write_log(folder, log, name="log.csv"):
    """Write a log of (action, reward, propensity), and return its path."""
    path = folder / name
    path.write_text("action,reward,propensity\n" + "".join(f"{a},{r},{p}\n" for a, r, p in log))
    return path


def values_of(path, horizon, curves=({},), silos=1, replicates=1, **keys):
    """Return the estimated values of curves on a log."""
    spec = {
        "name": "log",
        "horizon": horizon,
        "replicates": replicates,
        "silos": silos,
        "environment": {"kind": "log", "data": str(path), "coding": "blocks", **keys},
        "curve": [curve or {**ONE_RELEASE, "batch_size": horizon} for curve in curves],
    }
    return evaluate(experiment_from_spec(spec))


def best_action(train):
    """Return the action of the largest ridge estimate, or None if it depends on the regularizer."""
    collected = set()
    for ridge in (0.1, 1.0, 10.0):
        sums = [(sum(r for a, r, _ in train if a == k), sum(a == k for a, _, _ in train))
                for k in range(3)]  # fmt: skip
        collected.add(max(range(3), key=lambda k: sums[k][0] / (ridge + sums[k][1])))
    return collected.pop() if len(collected) == 1 else None


def weighted(rows, chance):
    """Return (value, standard error, self-normalised value) of the policy ``chance(a)``."""
    terms = [chance(a) / p * r for a, r, p in rows]
    mean = sum(terms) / len(terms)
    variance = sum((t - mean) ** 2 for t in terms) / (len(terms) - 1)
    return (
        mean,
        math.sqrt(variance / len(terms)),
        sum(terms) / sum(chance(a) / p for a, _, p in rows),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top", [1, 2])
def test_the_value_of_the_best_action_is_that_of_a_loop(tmp_path, seed, top):
    log = random_log(seed)
    values = values_of(write_log(tmp_path, log), 200, top=top)
    train, test = log[:200], log[200:]
    order = sorted(range(3), key=lambda k: -sum(r for a, r, _ in train if a == k)
                   / (1.0 + sum(a == k for a, _, _ in train)))  # fmt: skip
    wanted = weighted(test, lambda a: (a in order[:top]) / top)
    row = values.rows[-1]
    actual = row.value.value, row.value.stderr, row.normalised.value
    np.testing.assert_allclose(actual, wanted, rtol=1e-12)
    rows = {row.label: row.value.value for row in values.rows}
    assert rows[LOGGED] == pytest.approx(sum(r for _, r, _ in test) / 200, rel=1e-12)
    assert rows[UNIFORM] == pytest.approx(weighted(test, lambda a: 1 / 3)[0], rel=1e-12)
    assert (values.trained, values.evaluated, values.actions) == (200, 200, 3)


def test_estimates_are_unbiased(tmp_path):
    """Over independent logs, the estimate minus the true value of the learned policy is near 0."""
    errors = []
    for seed in range(100, 220):
        log = random_log(seed, rows=120)
        best = best_action(log[:60])
        if best is None:
            continue
        row = values_of(write_log(tmp_path, log, f"{seed}.csv"), 60).rows[-1]
        errors.append((row.value.value if row.value else 0.0) - MEANS[best])
    assert len(errors) > 90
    assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(len(errors))


def test_features_silos_and_the_baseline_without_sharing(tmp_path):
    """Two silos with features: the learned scores are those of ridge regression by NumPy."""
    draw = random.Random(5)
    rows = []
    for i in range(600):
        x, a = draw.random(), draw.randrange(3)
        mean = [0.5, x, 1 - x][a]
        rows.append((("north", "south")[i % 2], a, int(draw.random() < mean), 1 / 3, x))
    path = tmp_path / "log.csv"
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_text("site,action,reward,propensity,x\n" + lines)
    curves = [{}, {"algorithm": "local-linucb"}]
    values = values_of(path, 150, curves, silos=2, silo="site", ranges={"x": [0, 1]})
    parts = {site: [row for row in rows if row[0] == site] for site in ("north", "south")}

    def z(row):
        """Return the context of a row."""
        # A declared column, the mark of missing cells, and the constant; the norm is sqrt 2.
        return np.array([row[4], 0.0, 1.0]) / math.sqrt(2.0)

    def fitted(train):
        """Return the ridge estimate (actions, features) of rows."""
        gram, bias = np.eye(9), np.zeros(9)
        for row in train:
            phi = np.zeros((3, 3))
            phi[row[1]] = z(row)
            gram += np.outer(phi.ravel(), phi.ravel())
            bias += row[2] * phi.ravel()
        return np.linalg.solve(gram, bias).reshape(3, 3)

    def value(models):
        """Return the estimated value of the greedy policy of each silo."""
        terms = [
            3.0 * row[2] * (np.argmax(models[site] @ z(row)) == row[1])
            for site in parts
            for row in parts[site][150:]
        ]
        return float(np.mean(terms))

    shared = fitted(parts["north"][:150] + parts["south"][:150])
    alone = {site: fitted(parts[site][:150]) for site in parts}
    actual = [row.value.value for row in values.rows[2:]]
    assert actual == pytest.approx([value(dict.fromkeys(parts, shared)), value(alone)], abs=1e-9)


def test_replicates_differ_by_the_noise_and_the_row_is_their_mixture(tmp_path):
    private = {"algorithm": "private-fedlinucb", "protocol": "central", "batch_size": 200}
    private |= {"epsilon": 0.5, "delta": 1e-3}
    path = write_log(tmp_path, random_log(3))
    values = values_of(path, 200, [private], replicates=6)
    row = values.rows[-1]
    assert row.noise_std > 0 and row.releases == 1
    certificate = row.certificate
    assert certificate.exact.epsilon <= 0.5 * (1 + 1e-9)
    # Without feature columns nothing is read from the data but what the notes name.
    assert certificate.status == "proven"
    assert any("logs that differ in one row" in note for note in certificate.caveats)


def test_rewards_beyond_one_are_scaled_in_training_and_not_in_values(tmp_path):
    log = [(a, 5 * r, p) for a, r, p in random_log(1)]
    values = values_of(write_log(tmp_path, log), 200, reward_range=[0, 5])
    plain = values_of(write_log(tmp_path, random_log(1), "plain.csv"), 200)
    assert values.rows[-1].value.value == pytest.approx(5 * plain.rows[-1].value.value)


# ---- Formats -------------------------------------------------------------------------------------


def test_lines_of_vowpal_wabbit_are_the_same_log_as_a_table(tmp_path):
    log = random_log(8)
    path = tmp_path / "log.vw"
    path.write_text("".join(f"{a + 1}:{-r}:{p} |\n" for a, r, p in log))
    vw = values_of(path, 200, format="vw", norm=1)
    table = values_of(write_log(tmp_path, log), 200)
    assert [r.value for r in vw.rows] == [r.value for r in table.rows]
    gz = tmp_path / "log.vw.gz"
    gz.write_bytes(gzip.compress(path.read_bytes()))
    assert values_of(gz, 200, format="vw", norm=1).rows[-1].value == vw.rows[-1].value


def test_what_a_line_of_vowpal_wabbit_says(tmp_path):
    path = tmp_path / "log.vw"
    path.write_text("2:-1:0.25 'tag |user:2 age:0.4 old | plain:-1\n\n1:0:0.5 |\n")
    # A blank line does not matter if each line is a decision.
    first, second = read_vw(path)
    assert first.shared == {"user^age": 0.8, "user^old": 2.0, "plain": -1.0}
    assert (first.chosen, first.reward, first.propensity) == (2, 1.0, 0.25)
    assert second.shared == {} and second.where.endswith(":3")
    path.write_text("shared |s a\n|x b:3\n0:0.5:0.4 |x c\n\n0:-2:1 | d\n| e\n")
    first, second = read_vw(path)
    assert first.shared == {"s^a": 1.0} and first.actions == [{"x^b": 3.0}, {"x^c": 1.0}]
    assert (first.chosen, first.reward, first.propensity) == (1, -0.5, 0.4)
    assert second.actions == [{"d": 1.0}, {"e": 1.0}] and second.chosen == 0


def test_blocks_of_vowpal_wabbit_are_learned_by_products_of_features(tmp_path):
    draw = random.Random(2)
    decisions = []
    for _ in range(300):
        x = draw.random()
        offered = draw.sample("abc", draw.choice([2, 3]))
        chosen = draw.randrange(len(offered))
        mean = {"a": 0.5, "b": x, "c": 1 - x}[offered[chosen]]
        decisions.append((x, offered, chosen, int(draw.random() < mean)))
    blocks = []
    for x, offered, chosen, reward in decisions:
        lines = [f"shared | x:{x!r}"]
        for k, name in enumerate(offered):
            label = f"0:{-reward}:{1 / len(offered)!r} " if k == chosen else ""
            lines.append(f"{label}| {name}")
        blocks.append("\n".join(lines) + "\n")
    path = tmp_path / "adf.vw"
    path.write_text("\n".join(blocks))
    values = values_of(path, 150, format="vw", norm=math.sqrt(2))

    def phi(x, name):
        """Return the products of the features of action and context."""
        u = np.array([name == "a", name == "b", name == "c", 1.0]) / math.sqrt(2)
        return np.outer(u, np.array([x, 1.0]) / math.sqrt(2)).ravel()

    gram, bias = np.eye(8), np.zeros(8)
    for x, offered, chosen, reward in decisions[:150]:
        row = phi(x, offered[chosen])
        gram += np.outer(row, row)
        bias += reward * row
    theta = np.linalg.solve(gram, bias)
    terms = []
    for x, offered, chosen, reward in decisions[150:]:
        best = int(np.argmax([phi(x, name) @ theta for name in offered]))
        terms.append(reward * len(offered) * (best == chosen))
    assert values.rows[-1].value.value == pytest.approx(np.mean(terms), abs=1e-9)
    projected = values_of(
        path, 150, format="vw", norm=math.sqrt(2), coding="projection", dimension=8
    )
    # A projection to as many numbers is a rotation, which ridge regression does not notice.
    assert projected.rows[-1].value.value == pytest.approx(np.mean(terms), abs=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a logged decision, got an empty file"),
        ("1:0:0.5\n", "log.vw:1: features must follow a bar"),
        ("1:0 | a\n", "log.vw:1: a label must be action:cost:probability"),
        ("1:0:0.5 2:1:0.5 | a\n", "log.vw:1: a label must be action:cost:probability"),
        ("1:nan:0.5 | a\n", "log.vw:1: a label must be"),
        ("0:0:0.5 | a\n", "log.vw:1: actions are numbered from 1"),
        ("1:0:0.5 | a a\n", "log.vw:1: feature 'a' must come once"),
        ("1:0:0.5 | a:b\n", "log.vw:1: a feature must be a name"),
        ("1:0:0.5 | a:1e999\n", "log.vw:1: a feature must be a name"),
        ("1:0:0.5 | a\n1:0:0.5 | a\n", "at least 2 actions, got only '1'"),
        ("1:0:0 | a\n2:0:1 | b\n", "log.vw:1: propensity must be a probability, > 0"),
        ("1:2:0.5 | a\n2:0:1 | b\n", r"log.vw:1: reward must lie in reward_range \[0, 1\], got -2"),
        ("| a\n| b\n", "log.vw:1: one action of a decision must have the label"),
        ("0:0:0.5 | a\n| b\n0:0:0.5 | c\n", "log.vw:3: a decision must have one line with a label"),
        ("0:0:0.5 | a\nshared | b\n", "log.vw:2: shared must be the first line"),
    ],
)
def test_text_that_is_no_log_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "log.vw"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Log(data=str(path), format="vw").rounds(1)


@pytest.mark.skipif(
    not OBD.exists(), reason="../shared/data/obd is not here: the logs are not shipped"
)
def test_open_bandit_logs_have_the_values_of_a_loop():
    files, clicks, uniform, n = [], 0.0, 0.0, 0
    for campaign in ("all", "men", "women"):
        files.append(str(OBD / campaign / f"{campaign}.csv.gz"))
        with gzip.open(files[-1], "rt", newline="") as file:
            rows = [(r["item_id"], float(r["click"]), float(r["propensity_score"]))
                    for r in csv.DictReader(file)]  # fmt: skip
        items = len({item for item, _, _ in rows})
        late = rows[len(rows) // 2 :]
        clicks += sum(click for _, click, _ in late)
        uniform += sum(click / (items * p) for _, click, p in late)
        n += len(late)
    spec = {
        "name": "obd", "horizon": 500,
        "environment": {"kind": "log", "format": "open-bandit", "data": files, "dimension": 5},
        "curve": [{**ONE_RELEASE, "batch_size": 500}],
    }  # fmt: skip
    experiment = evaluate(experiment_from_spec(spec))
    assert experiment.rows[0].value.value == pytest.approx(clicks / n)
    assert experiment.rows[1].value.value == pytest.approx(uniform / n)
    assert (experiment.silos, experiment.actions, experiment.evaluated) == (3, 80, n)
    # The logging policy is uniform, so the mean of 1 / propensity is the number of items.
    notes = experiment_from_spec(spec).facts.notes
    assert not any("do not fit" in note for note in notes)


# ---- Mistakes, and the command -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"format": "csv"}, "format must be"),
        ({"action": "item"}, "action must be a column of .* got 'item'"),
        ({"reward": "action"}, "must be different columns"),
        ({"train": 1.0}, "train must be"),
        ({"top": 0}, "top must be"),
        ({"columns": ["reward"]}, "columns must not list the reward column"),
        ({"columns": "x"}, "columns must be a list"),
        ({"columns": [], "ranges": {"reward": [0, 1]}}, "ranges must be of feature columns"),
        ({"table": "t"}, "table is only for an SQLite file"),
        ({"format": "vw", "where": {"x": [0, 1]}}, 'where is only for tables, not for'),
        ({"reward_range": [0, 0.5]}, r"reward must lie in reward_range \[0, 0.5\], got 1"),
        ({"where": {"action": [5, 9]}}, "where must keep at least one"),
        ({"horizon": 201}, "horizon must be <= 200, train = 0.5 of the rows"),
        ({"dimension": 3}, 'dimension needs coding = "projection"'),
    ],
)  # fmt: skip
def test_mistakes_in_a_spec(tmp_path, keys, message):
    path = write_log(tmp_path, random_log(0))
    with pytest.raises(InputError, match=message):
        values_of(path, keys.pop("horizon", 200), **keys)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a,1,0.5", "a,1,0", "log.csv:2: propensity must be a probability, > 0 and <= 1, got 0"),
        ("a,1,0.5", "a,,0.5", "log.csv:2: reward 'reward' must be given for every record"),
        ("a,1,0.5", "a,x,0.5", "log.csv:2: reward must be a number, got 'x'"),
        ("a,1,0.5", ",1,0.5", "log.csv:2: action 'action' must be given"),
        ("b,", "a,", "at least 2 actions, got only 'a'"),
    ],
)
def test_mistakes_in_a_table(tmp_path, old, new, message):
    text = "action,reward,propensity\na,1,0.5\nb,yes,0.5\nb,no,0.5\n"
    path = tmp_path / "log.csv"
    path.write_text(text)
    assert Log(data=str(path)).rounds(1).rewards.tolist() == [1.0, 1.0, 0.0]
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        Log(data=str(path)).rounds(1)


def test_propensities_that_do_not_fit_the_actions_are_noted(tmp_path):
    right = Log(data=str(write_log(tmp_path, random_log(0)))).rounds(1)
    assert not any("do not fit" in note for note in right.notes)
    wrong = [(a, r, 0.9) for a, r, _ in random_log(0)]
    actual = Log(data=str(write_log(tmp_path, wrong, "wrong.csv"))).rounds(1)
    assert any("mean of 1 / propensity is 1.111, but 3 actions" in note for note in actual.notes)


def test_a_log_cannot_be_simulated_for_its_regret(tmp_path):
    log = Log(data=str(write_log(tmp_path, random_log(0))))
    with pytest.raises(InputError, match="a log has no regret"):
        fastfed.simulate(log, "local-linucb", silos=1, horizon=10)


def test_systems_without_a_server_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be trained on a log"):
        values_of(write_log(tmp_path, random_log(0)), 100, [{"algorithm": "random"}])


def test_the_command_prints_and_writes_the_values(tmp_path):
    write_log(tmp_path, random_log(4))
    spec = tmp_path / "s.toml"
    spec.write_text(
        'name = "shop"\nhorizon = 200\nsilos = 1\nreplicates = 1\n'
        '[environment]\nkind = "log"\ndata = "log.csv"\ncoding = "blocks"\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 50\n'
    )
    result = click.testing.CliRunner().invoke(cli, ["run", str(spec), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    plain = json.loads((tmp_path / "out" / "values.json").read_text())
    value = plain["rows"][-1]["value"]
    assert plain["evaluated"] == value["rounds"] == 200
    assert f"{value['value']:.4g}" in result.output
    assert "several releases" in result.output and "batch_size = 200" in result.output
    assert "fedlinucb" in (tmp_path / "out" / "certificates.txt").read_text()
    options = ["run", str(spec), "-o", str(tmp_path / "out"), "--format", "png"]
    assert (
        "a log of decisions has no regret" in click.testing.CliRunner().invoke(cli, options).output
    )
    shown = click.testing.CliRunner().invoke(cli, ["privacy", str(spec)])
    assert shown.exit_code == 0 and "Made of real records" in shown.output


def test_a_policy_without_matching_rounds_or_rewards_has_no_interval(tmp_path):
    # Action 0 is the best in training and never taken, or never rewarded, afterwards.
    for later, rewarded in (([(1, 1, 0.5)] * 4, None), ([(0, 0, 0.5), (1, 0, 0.5)] * 2, 0)):
        log = [(0, 1, 0.5), (1, 0, 0.5)] * 2 + later
        row = values_of(write_log(tmp_path, log), 4).rows[-1]
        if rewarded is None:
            assert row.value is None and row.normalised is None
        else:
            assert row.value.value == 0.0 and row.value.rewarded == 0
            assert row.value.bounded[1] > 0.5
        spec = tmp_path / "s.toml"
        spec.write_text(
            'name = "few"\nhorizon = 4\nsilos = 1\nreplicates = 1\n'
            '[environment]\nkind = "log"\ndata = "log.csv"\ncoding = "blocks"\n'
            '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 4\n'
        )
        shown = click.testing.CliRunner().invoke(cli, ["run", str(spec), "-o", str(tmp_path / "o")])
        assert shown.exit_code == 0, shown.output
        assert ("chose no logged action" in shown.output) == (rewarded is None)
        (line,) = [line for line in shown.output.splitlines() if line.startswith("fedlinucb  ")]
        assert "0 to 0 " not in line
