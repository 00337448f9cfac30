"""examples/deployment/hospitals.py reads the same records from four kinds of tables."""

import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from click.testing import CliRunner

from fastfed.deployment.data import cases, load_source
from fastfed.deployment.replay import survey

HERE = Path(__file__).resolve().parents[2] / "examples" / "deployment"


@pytest.fixture(scope="module")
def script():
    """Import hospitals.py as a module."""
    spec = importlib.util.spec_from_file_location("deployed_hospitals", HERE / "hospitals.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path):
    """Write a CSV file with the same twelve patients at each of the four hospitals."""
    sites = ("cleveland", "hungarian", "switzerland", "va_long_beach")
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(12):
        num = int(rng.integers(5))
        row = {
            "age": int(rng.integers(30, 80)),
            "sex": rng.choice(["0.0", "1"]),
            "thalach": rng.choice(["?", "150.0", "300"]),
            "exang": rng.choice(["", "1.0", "0"]),
            "oldpeak": round(4.0 * num / 4 + 0.25, 2),
            "cp": rng.choice(["1", "4.0"]),
            "num": num,
        }
        rows += [row | {"site": site} for site in sites]
    (folder := tmp_path / "data").mkdir()
    with (folder / "patients.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_all_hospitals_read_equal_records_from_their_tables(script, data, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    plan = script.make_plan(home, "silo-ldp", (3.0, 1e-5), 2)
    script.write_files(script.patients(data), home)
    assert {path.suffix for site in script.SITES for path in (home / site).iterdir()} >= {
        ".csv",
        ".sqlite",
    }
    rows_by_hospital = []
    for name in script.SITES:
        source = load_source(home / name / "source.toml")
        hospital_cases = cases(source, plan.document.schema)
        assert survey(plan, source, hospital_cases)["learned"] == 12
        records = plan.document.schema.records
        rows_of_hospital = [
            (
                *np.round(records.context(case.record)[:6], 12),
                records.outcome.reward(case.outcome, action),
            )
            for case in hospital_cases
            for action in ("ill",)
        ]
        rows_by_hospital.append(sorted(rows_of_hospital))
    assert rows_by_hospital[0] == rows_by_hospital[1] == rows_by_hospital[2] == rows_by_hospital[3]
    assert len({row[-1] for row in rows_by_hospital[0]}) == 2
    error_without_privacy = script.without_privacy(home, plan, ["swiss"])["swiss"]
    assert (
        0.0 <= error_without_privacy <= 1.0 and 0.0 <= script.commoner(home, plan, "swiss") <= 0.5
    )


def test_a_folder_without_the_records_is_refused(script, data, tmp_path):
    result = CliRunner().invoke(script.main, [str(tmp_path)])
    assert result.exit_code == 1 and "give the folder with the CSV file" in result.output
    (data / "patients.csv").write_text("age,site\n1,va\n")
    result = CliRunner().invoke(script.main, [str(data)])
    assert result.exit_code == 1 and "has no column cp" in result.output


@pytest.mark.slow
def test_hub_and_hospitals_run_as_processes_and_one_hospital_leaves(script, data):
    result = CliRunner().invoke(script.main, [str(data), "--period", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.count("hungary leaves") == 2
    assert result.output.count("chain and sums as they should be") == 2
    assert "proven" in result.output
