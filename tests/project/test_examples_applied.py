"""The scripts of examples/applied run on small files, and on real rows if these are present."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fastfed

pytest.importorskip("matplotlib")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "applied"
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def script(name):
    """Import a script of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"applied_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses need it
    spec.loader.exec_module(module)
    return module


hospitals, warfarin, open_bandit = (script(n) for n in ("hospitals", "warfarin", "open_bandit"))


def run(module, data, plot, *options):
    """Run a script on ``data``; check that it writes its plot as PNG, and return its output."""
    result = CliRunner().invoke(module.main, ["--data", str(data), "-o", str(plot), *options])
    assert result.exit_code == 0, result.output
    assert plot.read_bytes()[:4] == b"\x89PNG"
    return result.output


def shares(output):
    """Return the first percentage of each row of a printed table as a share, by label."""
    rows = re.findall(r"^(\S.{0,38}?) +(\d+\.\d)%", output, re.MULTILINE)
    return {label.strip(): float(value) / 100 for label, value in rows}


def write(path, rows):
    """Write rows as CSV, compressed if the suffix is .gz, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "wt", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def real(*parts):
    """Return the path of real rows; skip the test if they are not present."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(
            f"../shared/data/{'/'.join(parts)} is missing: real rows are not part of the repository"
        )
    return path


# ---- four hospitals ---------------------------------------------------------------------------


def patient(draw, site, ill):
    """Return the row of a patient, whose chest pain shows whether the patient is ill."""
    return {
        "age": f"{draw.integers(30, 75)}", "sex": "1.0", "cp": "4.0" if ill else "2.0",
        "trestbps": "", "chol": "0.0", "fbs": "?",
        "thalach": "" if draw.uniform() < 0.1 else f"{110 if ill else 160}.0",
        "exang": f"{float(ill)}", "oldpeak": f"{2.0 * ill}", "num": str(int(ill) * 2), "site": site,
    }  # fmt: skip


@pytest.fixture
def hearts(tmp_path):
    """Write a table of patients of four sites, and return its path."""
    draw = np.random.default_rng(0)
    sizes = {"one": (40, 0.5), "two": (45, 0.3), "three": (50, 0.9), "four": (60, 0.6)}
    rows = [
        patient(draw, site, i < share * count)
        for site, (count, share) in sizes.items()
        for i in range(count)
    ]
    return write(tmp_path / "hearts.csv", rows)


def test_hospitals_learn_the_diagnosis_from_chest_pain(hearts, tmp_path):
    options = ["--replicates", "3", "--epsilon", "2", "--epsilon", "8"]
    output = run(hospitals, hearts, tmp_path / "plot.png", *options)
    assert "4 hospitals, 40 patients of each, 3 random orders" in output
    # Shares of the rarer diagnosis in the four hospitals.
    assert f"{(0.5 + 14 / 45 + 0.1 + 0.4) / 4:.1%} wrong" in output
    wrong = shares(output)
    assert len(wrong) == 2 * 2 + 1 + 2 * (1 + 3 * 2)
    # Chest pain determines the diagnosis, so learners without noise err in the first rounds only.
    assert wrong["alone"] < 0.15 and wrong["not private"] < 0.2
    assert wrong["silo-level, epsilon = 2.0"] > wrong["alone"]
    assert wrong["silo-level + own, epsilon = 2.0"] < wrong["silo-level, epsilon = 2.0"]
    assert output.count("(8, 1e-05)") == 8 and output.count("(2, 1e-05)") == 8
    assert "epsilon 0, delta 0" in output  # users of local rounds, against outsiders
    assert "status      proven" in output and "unit        user" in output
    assert "known without the data" in output  # no scale is read from the rows


def test_features_of_a_patient_do_not_depend_on_other_patients(hearts):
    features, ill, site = hospitals.read(hearts)
    assert features.shape == (195, 6 + 4)
    assert np.abs(features).max() <= 1.0
    assert ill.sum() == 20 + 14 + 45 + 36
    rows = hearts.read_text(encoding="utf-8-sig").splitlines()
    hearts.write_text("\n".join([rows[0], *rows[1:41], *rows[46:]]))
    fewer, _, _ = hospitals.read(hearts)
    np.testing.assert_array_equal(fewer[:40], features[:40])
    assert (site[:40] == "one").all()


def test_hospitals_on_real_rows(heart, tmp_path):
    output = run(hospitals, heart, tmp_path / "plot.png", "--replicates", "8")
    wrong = shares(output)
    assert "4 hospitals, 123 patients of each" in output and "28.5% wrong" in output
    assert 0.17 < wrong["alone"] < 0.23
    # Conclusions of docs/applied.md: every private system is worse than each hospital alone.
    private = {label: value for label, value in wrong.items() if "epsilon" in label}
    assert len(private) == 24 and all(value > wrong["alone"] for value in private.values())
    for epsilon in ("1.0", "3.0", "10.0"):
        server, secure, silo = (
            {kind: wrong[f"{name}{kind}, epsilon = {epsilon}"] for kind in kinds}
            for name, kinds in (
                ("trusted server", ("", " + own", ", before")),
                ("secure sum", ("", " + own")),
                ("silo-level", ("", " + own", ", before")),
            )
        )
        # New releases are better than older ones ("before"), and local rounds ("own") are best. A
        # secure sum is nearly as good as a trusted server.
        assert server[" + own"] < server[""] < server[", before"]
        assert silo[" + own"] < silo[""] < silo[", before"]
        assert server[""] <= secure[""] < silo[""]
        assert server[" + own"] < wrong["alone"] + 0.03


# ---- warfarin ---------------------------------------------------------------------------------


def patient_with_dose(race, dose, vkorc1="G/G", cyp2c9="*1/*1", age="60 - 69", **other):
    """Return the record of a patient of the warfarin table."""
    return {
        "PharmGKB Subject ID": "PA1", "Race": race, "Age": age, "Height (cm)": "170.0",
        "Weight (kg)": "NA", "Therapeutic Dose of Warfarin": dose,
        "VKORC1 -1639 consensus": vkorc1, "CYP2C9 consensus": cyp2c9,
        "Amiodarone (Cordarone)": "0", **dict.fromkeys(warfarin.INDUCERS, "NA"), **other,
    }  # fmt: skip


@pytest.fixture
def doses(tmp_path):
    """Write a warfarin table with three unusable rows, and return its path."""
    draw = np.random.default_rng(1)
    dose_of_gene = {"A/A": "14.00", "A/G": "35.00", "G/G": "63.00"}
    rows = [
        patient_with_dose(race, dose_of_gene[gene], gene)
        for race, count in (("White", 90), ("Asian", 70), ("Unknown", 60))
        for gene in draw.choice(list(dose_of_gene), p=[0.2, 0.5, 0.3], size=count)
    ]
    bad = [
        patient_with_dose("White", "NA"),
        patient_with_dose("White", "35.00", age="NA"),
        patient_with_dose("", "35.00"),
    ]
    return write(tmp_path / "doses.csv.gz", rows[:100] + bad + rows[100:])


def test_dose_classes_have_the_limits_inside_the_middle():
    mg = np.array([6.0, 20.99, 21.0, 35.0, 49.0, 49.01, 200.0])
    assert warfarin.dose_class(mg).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_features_of_one_patient():
    row = patient_with_dose("White", "35", "A/G", "*2/*3", "90+", **{warfarin.INDUCERS[1]: "1"})
    row["Height (cm)"], row[warfarin.AMIODARONE] = "300", "1"
    assert warfarin.features(row) == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 1.0]
    row = patient_with_dose("White", "35", "NA", "NA", "10 - 19")
    assert warfarin.features(row) == [-1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("by", ["race", "blocks"])
def test_warfarin_learns_the_gene(doses, tmp_path, by):
    options = [
        "--replicates",
        "3",
        "--epsilon",
        "5",
        *(["--blocks", "5"] if by == "blocks" else []),
    ]
    output = run(warfarin, doses, tmp_path / "plot.png", *options)
    patients = warfarin.read(doses)
    assert len(patients) == 220  # without dose, age or race: left out
    assert "220 patients with a known dose" in output
    dose, race = (np.array([row[k] for row in patients]) for k in (warfarin.DOSE, warfarin.RACE))
    silo = race if by == "race" else np.arange(220) // 44
    medium = np.mean([(dose[silo == s] != "35.00").mean() for s in np.unique(silo)])
    wrong = shares(output)
    assert wrong["medium for everybody"] == pytest.approx(medium, abs=0.0006)
    assert wrong["linear model of all doses"] == 0.0
    assert wrong["not private"] < medium
    assert len(wrong) == 2 + 2 + 1 + 2 * (1 + 3)
    assert "exact       epsilon 5, delta 1e-05" in output


def test_warfarin_on_real_rows(tmp_path):
    output = run(warfarin, real("warfarin.csv.gz"), tmp_path / "plot.png", "--replicates", "5")
    wrong = shares(output)
    assert "5489 patients with a known dose" in output
    assert (wrong["medium for everybody"], wrong["linear model of all doses"]) == (0.382, 0.320)
    medium = wrong["medium for everybody"]
    assert wrong["linear model of all doses"] < wrong["not private"] < medium
    # Conclusions of docs/applied.md, with 462 patients of each silo: if all rounds are shared,
    # noise costs more than sharing gains; with local rounds ("own") it costs little.
    for label, value in wrong.items():
        if "epsilon" in label:
            assert (value < medium) == ("own" in label), label
            assert "own" in label or value > wrong["alone"] + 0.01, label
    for kind in ("trusted server", "silo-level"):
        new, before = (wrong[f"{kind}{k}, epsilon = 10.0"] for k in ("", ", before"))
        assert new < before
    assert abs(wrong["trusted server + own, epsilon = 10.0"] - wrong["alone"]) < 0.015
    assert wrong["trusted server, epsilon = 10.0"] < wrong["silo-level, epsilon = 10.0"]


# ---- Open Bandit ------------------------------------------------------------------------------


@pytest.fixture
def clicks(tmp_path):
    """Write logs of three campaigns with few items, of which users click the expensive ones."""
    draw = np.random.default_rng(2)
    for campaign, items in (("all", 6), ("men", 4), ("women", 5)):
        price = np.linspace(-1.5, 2.5, items)
        catalogue = [
            {"": k, "item_id": k, "item_feature_0": price[k], "item_feature_1": "ab"}
            for k in draw.permutation(items)
        ]
        write(tmp_path / "obd" / campaign / "item_context.csv.gz", catalogue)
        rows = []
        for i in range(300):
            shown = int(draw.integers(items))
            rows.append({
                "": i, "item_id": shown, "position": 1 + i % 3,
                "click": int(draw.uniform() < 0.1 + 0.3 * (price[shown] > 1)),
                "propensity_score": 1 / items,
                **{f"user_feature_{j}": f"{draw.integers(16**8):08x}" for j in range(4)},
                **{f"user-item_affinity_{k}": float(draw.uniform() < 0.05) for k in range(items)},
            })  # fmt: skip
        write(tmp_path / "obd" / campaign / f"{campaign}.csv", rows)
    return tmp_path / "obd"


def test_open_bandit_prints_estimates_with_their_certificate(clicks, tmp_path):
    output = run(open_bandit, clicks, tmp_path / "plot.png", "--epsilon", "20")
    assert re.search(r"^men +4 +150, 150", output, re.MULTILINE)
    table = re.findall(
        r"(inverse propensity|self-normalised|doubly robust) +(\S+) +(\S+)  ", output
    )
    assert [name for name, _, _ in table] == [
        "inverse propensity", "self-normalised", "doubly robust",
    ] * 5  # fmt: skip
    value = {i: float(v) for i, (_, v, _) in enumerate(table)}
    agreements = re.findall(
        r"^(trusted server|secure sum|silo-level), epsilon = 20 +(\S+)%$", output, re.M
    )
    assert [name for name, _ in agreements] == list(open_bandit.SERVERS)
    assert float(agreements[0][1]) > 100 * open_bandit.SHARE
    evaluation_logs = [
        open_bandit.read(clicks, c).part(slice(150, None)) for c in open_bandit.CAMPAIGNS
    ]
    logged_rate = 1000 * np.mean(np.concatenate([log.clicks for log in evaluation_logs]))
    assert value[0] == pytest.approx(logged_rate, abs=0.006)
    # Policies learn to show expensive items, also with privacy.
    assert all(value[i] > logged_rate for i in (3, 6, 9))
    assert "exact       epsilon 20, delta 1e-06" in output and "status      proven" in output
    assert "the certificate does not cover them" in output


def test_training_on_a_log_is_ridge_regression_on_the_shown_items(clicks):
    logs = [open_bandit.read(clicks, campaign) for campaign in open_bandit.CAMPAIGNS]
    theta, certificate = open_bandit.train(logs, None, 0)
    assert certificate.status == "none"
    x = np.vstack([log.contexts[np.arange(300), log.items] for log in logs])
    y = np.concatenate([log.clicks for log in logs])
    assert np.linalg.norm(x, axis=1).max() <= 1.0
    system = fastfed.make_system("fedlinucb", silos=3, horizon=300, dimension=15, batch_size=300)
    gram = x.T @ x + float(system.plan.regularizer[-1]) * np.eye(15)
    np.testing.assert_allclose(theta, np.linalg.solve(gram, x.T @ y), rtol=1e-9)


def test_simulated_noise_depends_on_the_seed_and_deployed_noise_has_no_seed(clicks):
    logs = [open_bandit.read(clicks, campaign) for campaign in open_bandit.CAMPAIGNS]
    first, certificate = open_bandit.train(logs, 5.0, 3)
    again, _ = open_bandit.train(logs, 5.0, 3)
    other, _ = open_bandit.train(logs, 5.0, 4)
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    assert any("simulation" in caveat for caveat in certificate.caveats)
    (one, deployed), (two, _) = (open_bandit.train(logs, 5.0, None) for _ in range(2))
    assert (one != two).all()
    assert not any("simulation" in caveat for caveat in deployed.caveats)
    assert deployed.exact.epsilon <= 5.0 * (1 + 1e-9)


@pytest.mark.parametrize("protocol", open_bandit.SERVERS.values())
def test_less_noise_makes_policies_more_alike(clicks, protocol):
    logs = [open_bandit.read(clicks, campaign) for campaign in open_bandit.CAMPAIGNS]
    with_little_noise, with_much_noise = (
        open_bandit.agreement(logs, logs, 0.34, epsilon, protocol, draws=20)
        for epsilon in (200.0, 1.0)
    )
    assert with_little_noise > 0.9 and 0.3 < with_much_noise < with_little_noise
    theta, certificate = open_bandit.train(logs, 200.0, None, protocol)
    assert np.isfinite(theta).all() and certificate.status == "proven"
    assert certificate.exact.epsilon <= 200.0 * (1 + 1e-9)


def test_policies_show_the_best_items_with_equal_probability(clicks):
    log = open_bandit.read(clicks, "all")
    theta = np.zeros(15)
    theta[1] = 1.0  # the score is the price, for every user
    policy = open_bandit.best_of(log, theta, 0.34)
    assert (policy == [0, 0, 0, 0, 0.5, 0.5]).all()
    assert open_bandit.best_of(log, theta, 0.0).sum(axis=1).tolist() == [1.0] * 300
    two = open_bandit.stacked([policy, np.ones((2, 1))])
    assert two.shape == (302, 6) and (two[300:] == [1, 0, 0, 0, 0, 0]).all()


@pytest.mark.slow
def test_open_bandit_on_real_rows(tmp_path):
    output = run(open_bandit, real("obd"), tmp_path / "plot.png", "--epsilon", "10")
    assert re.search(r"^women +46 +5000, 5000 +15, 31$", output, re.MULTILINE)
    uniform, free, *private = re.findall(r"inverse propensity +(\S+) +\S+  (\S+) to (\S+)", output)
    assert uniform[0] == "5.07"  # 76 clicks of 15 000
    # Conclusion of docs/applied.md: the intervals do not distinguish these policies.
    assert len(private) == 3
    for value, low, high in (free, *private):
        assert float(low) < 5.07 < float(high) and float(low) < float(value)


# ---- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [hospitals, warfarin, open_bandit])
def test_missing_data_is_one_sentence(module, tmp_path):
    result = CliRunner().invoke(module.main, ["--data", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: no data at \S+nowhere: give the .* as --data\n", result.output)
    assert not list(tmp_path.iterdir())


def test_missing_columns_and_files_are_named(hearts, clicks, doses, tmp_path):
    for module, data, sentence in (
        (hospitals, write(tmp_path / "a.csv", [{"age": 1}]), "a.csv has no column cp, exang, num"),
        (
            warfarin,
            write(tmp_path / "b.csv", [{"Race": 1}]),
            "b.csv has no column Therapeutic Dose",
        ),
        (open_bandit, tmp_path, "item_context.csv or item_context.csv.gz is missing"),
    ):
        result = CliRunner().invoke(module.main, ["--data", str(data)])
        assert result.exit_code == 1 and sentence in result.output, result.output
    write(clicks / "men" / "men.csv", [{"item_id": 1}])
    result = CliRunner().invoke(open_bandit.main, ["--data", str(clicks)])
    assert result.exit_code == 1 and "men.csv has no column click, prop" in result.output
