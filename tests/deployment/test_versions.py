"""Files that an earlier version wrote, opened by this one."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation

import fastfed
from fastfed import InputError
from fastfed.deployment import demo, plans
from fastfed.deployment import folder as folders
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import model_of
from fastfed.deployment.process import settle

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
    """Return a copy of the folders of a federation that an earlier version wrote."""
    home = tmp_path / request.param
    shutil.copytree(RUNNING / request.param, home)
    for secret in home.glob(f"*/{folders.SECRET}"):
        # A repository does not store these file modes.
        secret.chmod(0o400)
        secret.parent.chmod(0o700)
    return home


def test_a_plan_and_a_model_of_an_earlier_version_say_the_same(running):
    plan = plans.load(running / "plan")
    stored_model = json.loads((running / "model.json").read_text())
    assert plan.digest.hex() == stored_model["plan"] and plan.certificate.status == "proven"
    document = json.loads(json.dumps(model_of(folders.read_party(running / "north").party)))
    assert (
        document.keys() == stored_model.keys()
        and document["certificate"].keys() == stored_model["certificate"].keys()
    )
    # Wording may change, numbers may not.
    for key in ("format", "plan", "release", "releases", "schema", "theta", "V"):
        assert document[key] == stored_model[key], key
    # Earlier versions did not state mu.
    if document["certificate"]["exact"].pop("mu", None) is not None:
        assert "mu" not in stored_model["certificate"]["exact"]
    for key in ("unit", "relation", "claimed", "exact", "status", "noise_std"):
        assert document["certificate"][key] == stored_model["certificate"][key], key


def test_a_plan_of_an_earlier_version_keeps_its_ranking(running):
    plan = plans.load(running / "plan")
    keys = plan.document.keys
    assert "sieve" not in keys and "saturation" not in keys and "tie_bonus" in keys
    executed = plan.plan
    assert (executed.ranking, executed.sieve_growth, executed.widths) == (
        keys["tie_bonus"],
        0.0,
        (),
    )
    # The largest bound is chosen, from the model that the party holds.
    model = folders.read_party(running / "north").party.model
    rng = np.random.default_rng(0)
    d, (_, estimate, beta, gamma) = executed.dimension, model._acting
    for _ in range(20):
        x = rng.normal(size=(9, d)) / d
        z = x @ estimate.w.T
        scores = x @ estimate.theta + beta * np.linalg.norm(z, axis=1)
        scores += gamma * np.linalg.norm(z @ estimate.w, axis=1)
        assert model.select(x)[0] == scores.argmax()


#: Keys that a plan file of the earlier version could hold, and their (ranking, sieve_growth) now.
EARLIER = {
    "largest bound": ({"sieve": 1.0}, (1.0, 0.0)),
    "tied": ({"tie_bonus": 0.5}, (0.5, 0.0)),
    "less bonus": ({"bonus": 0.3}, (0.3, 2.0)),
    "less bonus, small ledger": ({"bonus": 0.3, "ledger": 0.25}, (0.3, 1.25)),
}


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "shuffle-vector", "secure-sum"])
@pytest.mark.parametrize("name", EARLIER)
def test_a_plan_file_with_the_keys_of_an_earlier_version_is_loaded(name, protocol):
    """The plan has the noise and account of a new plan with that version's factor and batches."""
    keys, ranking = EARLIER[name]
    vector = protocol == "shuffle-vector"
    batches = {"batch_size": "growing", "batch_first": 3, "batch_ratio": 1.2} if vector else {}
    new_plan = federation.deployed(protocol, system={**keys, **batches, "saturation": 0.0})
    document = new_plan.document
    old_keys = {k: v for k, v in document.keys.items() if k not in ("sieve", "saturation")}
    if vector:
        old_keys["batch_first"] = old_keys["batch_ratio"] = None
    numbers = {k: v for k, v in document.numbers.items() if k not in plans.codec.ADDED_NUMBERS}
    numbers |= {
        "bonus": old_keys["bonus"],
        "tie_bonus": old_keys["tie_bonus"],
        "allowance": [1.0, 2.0],
    }
    changed = msgspec.structs.replace(document, keys=old_keys, numbers=numbers)
    data = msgspec.msgpack.encode([plans.spelled(changed), {}])
    loaded = plans.load(data)
    assert (loaded.plan.ranking, loaded.plan.sieve_growth) == ranking
    assert loaded.plan.widths == new_plan.plan.widths
    assert loaded.plan.release_rounds == new_plan.plan.release_rounds
    assert loaded.plan.noise_std == new_plan.plan.noise_std
    assert loaded.certificate.exact == new_plan.certificate.exact
    # All parties sign the file of the earlier version, not a new file.
    assert loaded.document == changed and loaded.digest != new_plan.digest
    # An additional number is still refused.
    spoiled = msgspec.structs.replace(changed, numbers={**numbers, "radius.other": 1.0})
    with pytest.raises(InputError, match=r"radius\.other"):
        plans.load(msgspec.msgpack.encode([plans.spelled(spoiled), {}]))


def test_a_federation_of_an_earlier_version_goes_on(running):
    plan = plans.load(running / "plan")
    names = ("hub", *demo.SILOS, *(["helper"] if plan.shared else []))
    parties = {name: folders.opened(running / name) for name in names}
    try:
        last, now = plan.document.calendar.closes[1], [0.0]
        for process in parties.values():
            process.clock = lambda: now[0]
        assert parties["hub"].party.status()["released"] == 2
        # A decision of the earlier version gets its reward now.
        now[0] = float(last) + 20.0
        parties["north"].reward((running / "open").read_text(), 0.5)
        for close in plan.document.calendar.closes[2:]:
            now[0] = close - 1.0
            for i, name in enumerate(demo.SILOS):
                decision = parties[name].decide(demo.treatment_features(i, 7))
                parties[name].reward(decision.id, 0.25)
            now[0] = float(close)
            settle(parties)
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
