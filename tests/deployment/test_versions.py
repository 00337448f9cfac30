"""Files that an earlier version wrote, opened by this one."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import fastfed
from fastfed import InputError
from fastfed.deployment import demo, plans
from fastfed.deployment import folder as folders
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import model_of

#: Written by the state of 2026-11-20, before plan files held choices and ledgers had a chain.
FILES = Path(__file__).parents[1] / "versions" / "unreleased"


def test_a_plan_file_of_format_1_says_what_to_do():
    with pytest.raises(InputError, match=r"format 1, .* compile it again from its spec"):
        plans.load(FILES / "plan")


def test_a_ledger_keeps_what_was_spent(tmp_path):
    copy = tmp_path / "ledger.sqlite"
    shutil.copy(FILES / "ledger.sqlite", copy)
    ledger = Ledger(copy)
    assert ledger.epsilon("records") == pytest.approx(0.8039765724201364, rel=1e-12)
    assert [charge.release for charge in ledger.charges("records")] == [1, 2, 3]


def test_a_store_of_results_reports_as_before(tmp_path):
    shutil.copy(FILES / "results.sqlite", tmp_path / "results.sqlite")
    (curve,) = fastfed.load(tmp_path).curves
    assert curve.final()["mean"] == pytest.approx(69.9, abs=0.06)
    assert curve.certificate["status"] == "proven"


# ---- a federation that was begun by an earlier version -------------------------------------------

#: Folders of all parties after two of four releases, written by the state of 2026-11-28.
RUNNING = Path(__file__).parents[1] / "versions" / "2026-11-28"


@pytest.fixture(params=["silo-ldp", "secure-sum"])
def running(request, tmp_path):
    home = tmp_path / request.param
    shutil.copytree(RUNNING / request.param, home)
    for secret in home.glob(f"*/{folders.SECRET}"):
        # What is kept in a repository has no such modes.
        secret.chmod(0o400)
        secret.parent.chmod(0o700)
    return home


def test_a_plan_and_a_model_of_an_earlier_version_say_the_same(running):
    plan = plans.load(running / "plan")
    kept = json.loads((running / "model.json").read_text())
    assert plan.digest.hex() == kept["plan"] and plan.certificate.status == "proven"
    made = json.loads(json.dumps(model_of(folders.read_party(running / "north").party)))
    assert made.keys() == kept.keys() and made["certificate"].keys() == kept["certificate"].keys()
    # Wording may change, numbers may not.
    for key in ("format", "plan", "release", "releases", "schema", "theta", "V"):
        assert made[key] == kept[key], key
    for key in ("unit", "relation", "claimed", "exact", "status", "noise_std"):
        assert made["certificate"][key] == kept["certificate"][key], key


def test_a_federation_of_an_earlier_version_goes_on(running):
    plan = plans.load(running / "plan")
    names = ("hub", *demo.SILOS, *(["helper"] if plan.shared else []))
    parties = {name: folders.opened(running / name) for name in names}
    try:
        last, now = plan.document.calendar.closes[1], [0.0]
        for process in parties.values():
            process.clock = lambda: now[0]
        assert parties["hub"].party.status()["released"] == 2
        # A decision of before gets its reward now.
        now[0] = float(last) + 20.0
        parties["north"].reward((running / "open").read_text(), 0.5)
        for close in plan.document.calendar.closes[2:]:
            now[0] = close - 1.0
            for i, name in enumerate(demo.SILOS):
                made = parties[name].decide(demo.rows_of(i, 7))
                parties[name].reward(made.id, 0.25)
            now[0] = float(close)
            demo.settle(parties)
        thetas = [parties[name].party.model.theta.tolist() for name in demo.SILOS]
        assert parties["hub"].party.status()["released"] == 4
        assert thetas[0] == thetas[1] == thetas[2] and any(thetas[0])
        for name in demo.SILOS:
            charged = parties[name].ledger.charges("records")
            assert sorted(charge.release for charge in charged) == [1, 2, 3, 4]
            assert not parties[name].party.stopped
    finally:
        for process in parties.values():
            process.close()
