"""Tests of the ledger: identity, chain, extensions, and commands that only read."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys

import federation
import numpy as np
import pytest

pytest.importorskip("cryptography")

from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import plans, wire
from fastfed.deployment.charges import charge_of
from fastfed.deployment.folder import extended, last_broadcast
from fastfed.deployment.ledger import Charge, Ledger, OverBudget, epsilon_of_charges, spent_lines
from fastfed.deployment.seal import Identity
from fastfed.deployment.store import SqliteStore, Write

CEILING = (2.0, 1e-6)
MORE = """
[system]
horizon = 10
batch_size = 5
epsilon = 0.5
delta = 1e-6
[calendar]
start = 1970-01-01T00:30:00Z
period = 100
"""
#: The tables of a ledger as version 0.1.0 first made them.
EARLIER = """
CREATE TABLE ceilings (dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE charges (
    dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL, mu2 REAL NOT NULL,
    told REAL NOT NULL, report BLOB NOT NULL, PRIMARY KEY (dataset, plan, release));
INSERT INTO ceilings VALUES ('records', 1.0, 1e-6);
INSERT INTO charges VALUES ('records', x'01', 1, 0.03, 0.0, x'');
"""


@pytest.fixture
def home(tmp_path):
    """Return folders of a plan at silo0 and the hub, and a plan that continues it."""
    names = ("silo0", "silo1", "hub")
    keys = {name: folders.make_keys(tmp_path / name) for name in names}
    silos = [{"name": name, **keys[name]} for name in names[:2]]
    plan = plans.compile_plan(federation.spec(silos=2) | {"silos": silos, "hub": keys["hub"]})
    plan.save(tmp_path / "plan")
    folders.join(tmp_path / "silo0", tmp_path / "plan", CEILING, "people")
    folders.join(tmp_path / "hub", tmp_path / "plan")
    charge(tmp_path / "silo0", plan)
    extended(MORE, plan).save(tmp_path / "plan2")
    return tmp_path


def charge(folder, plan):
    """Charge release 1 as the silo of a folder does."""
    process = folders.opened(folder)
    process.ledger.charge(charge_of(plan.executed, plan.digest, process.party.dataset, 1))
    process.ledger.close()
    process.store.close()


def run(*arguments):
    """Run a command in this process."""
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def words(result):
    """Return the output of a command without frames and line ends."""
    return " ".join(result.output.replace("│", " ").split())


def spent(file):
    """Return the epsilon that each dataset has spent, by the ledger in a file."""
    return {line["dataset"]: line["spent_epsilon"] for line in spent_lines(Ledger.read(file))}


# ---- which ledger --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [("--dataset", "others"), ("--ledger", "fresh.sqlite")])
def test_an_extension_charges_the_ledger_and_dataset_of_its_parent(home, more, monkeypatch):
    monkeypatch.chdir(home)
    joined = ("deploy", "join", "next", "plan2", "--extends", "silo0")
    ceiling = ("--epsilon", 2, "--delta", 1e-6)
    refused = run(*joined, *more, *ceiling)
    assert refused.exit_code == 2 and not (home / "next" / folders.PLAN).exists()
    assert "these records are charged" in words(refused) or "no ledger at" in words(refused)
    # An existing ledger of something else is refused as well.
    Ledger("fresh.sqlite").close()
    refused = run(*joined, *more, *ceiling)
    assert refused.exit_code == 2 and "these records are charged" in words(refused)
    assert run(*joined).exit_code == 0
    assert folders.read_note("next")[:2] == ("people", home / "silo0" / folders.LEDGER)
    assert spent("silo0/ledger.sqlite")["people"] > 0.0


def test_without_the_parents_folder_its_charges_must_be_in_the_ledger(home):
    fresh = home / "fresh.sqlite"
    shutil.copytree(
        home / "silo0", home / "other", ignore=shutil.ignore_patterns("*.sqlite*", "[!s]*")
    )
    joined = ("deploy", "join", home / "other", home / "plan2", "--epsilon", 2, "--delta", 1e-6)
    refused = run(*joined, "--ledger", fresh)
    assert refused.exit_code == 2 and "no charge of the plan that this one continues" in words(
        refused
    )
    ledger_path = home / "silo0" / folders.LEDGER
    refused = run(*joined, "--ledger", ledger_path)
    assert refused.exit_code == 2 and 'dataset "records"' in words(refused)
    assert run(*joined, "--ledger", ledger_path, "--dataset", "people").exit_code == 0


def test_a_second_ledger_that_the_officer_allows_is_shown(home):
    more = ("--ledger", home / "fresh.sqlite", "--epsilon", 2, "--delta", 1e-6, "--second-ledger")
    result = run(
        "deploy", "join", home / "next", home / "plan2", "--extends", home / "silo0", *more
    )
    assert result.exit_code == 0, result.output
    digest = plans.load(home / "plan2").digest.hex()
    (line,) = json.loads(run("ledger", "show", home / "fresh.sqlite").output)
    assert line["second_ledger_of_plans"] == [digest] and line["spent_epsilon"] == 0.0
    # The entry is in the chain: if it is removed, the ledger cannot be opened.
    db = sqlite3.connect(home / "fresh.sqlite")
    db.execute("DELETE FROM writes WHERE kind = 'second ledger'")
    db.commit()
    db.close()
    with pytest.raises(InputError, match="older than what was charged"):
        folders.opened(home / "next")
    (other,) = json.loads(run("ledger", "show", home / "silo0" / folders.LEDGER).output)
    assert "second_ledger_of_plans" not in other


def test_a_plan_that_runs_is_not_joined_under_another_dataset_or_ledger(home):
    joined = ("deploy", "join", home / "silo0", home / "plan", "--epsilon", 3, "--delta", 1e-6)
    for more in (("--dataset", "others"), ("--ledger", home / "fresh.sqlite")):
        for flag in ((), ("--second-ledger",)):
            refused = run(*joined, *more, *flag)
            assert refused.exit_code == 2, refused.output
            assert "these records are charged" in words(refused) or "no ledger at" in words(refused)
    with pytest.raises(InputError, match='dataset must be "people"'):
        folders.opened(home / "silo0", "others")
    assert run(*joined).exit_code == 0
    assert Ledger.read(home / "silo0" / folders.LEDGER).ceiling("people") == (3.0, 1e-6)


def test_a_folder_that_was_moved_charges_its_own_ledger_and_no_other(home):
    before = spent(home / "silo0" / folders.LEDGER)["people"]
    shutil.move(home / "silo0", home / "moved")
    process = folders.opened(home / "moved")
    assert process.ledger.epsilon("people") == before > 0.0
    process.store.close()
    process.ledger.close()
    # The old folder is made again, with a fresh ledger, and joins the same plan.
    (home / "silo0").mkdir()
    shutil.copy(home / "moved" / folders.SECRET, home / "silo0" / folders.SECRET)
    folders.join(home / "silo0", home / "plan", CEILING, "people")
    for place in ("silo0", "moved"):
        shutil.copy(home / place / folders.LEDGER, home / f"{place}.sqlite")
    with pytest.raises(InputError, match="is another ledger"):
        folders.opened(home / "moved", ledger=home / "silo0.sqlite")
    os.replace(home / "silo0.sqlite", home / "moved" / folders.LEDGER)
    with pytest.raises(InputError, match="is another ledger"):
        folders.opened(home / "moved")
    with pytest.raises(InputError, match="is another ledger"):
        folders.join(home / "moved", home / "plan", CEILING, "people")


def test_a_ledger_elsewhere_may_be_moved_if_it_is_named(home):
    folders.join(home / "silo1", home / "plan", CEILING, ledger=home / "shared.sqlite")
    os.replace(home / "shared.sqlite", home / "elsewhere.sqlite")
    for open_without_name in (
        lambda: folders.opened(home / "silo1"),
        lambda: folders.join(home / "silo1", home / "plan", CEILING),
    ):
        with pytest.raises(InputError, match="there is no ledger at"):
            open_without_name()
        assert not (home / "shared.sqlite").exists()
    process = folders.opened(home / "silo1", ledger=home / "elsewhere.sqlite")
    assert process.ledger.ceiling("records") == CEILING
    process.store.close()
    process.ledger.close()
    assert folders.read_note(home / "silo1").ledger == home / "elsewhere.sqlite"


def test_an_older_ledger_is_refused_and_leaving_is_not(home):
    ledger, plan = home / "silo0" / folders.LEDGER, plans.load(home / "plan")
    shutil.copy(ledger, home / "backup")
    process = folders.opened(home / "silo0")
    process.ledger.charge(charge_of(plan.executed, plan.digest, "people", 2))
    process.ledger.close()
    process.store.close()
    folders.opened(home / "silo0").store.close()  # this start notes the ledger's head
    for file in home.joinpath("silo0").glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(home / "backup", ledger)
    with pytest.raises(InputError, match="older than what was charged"):
        folders.opened(home / "silo0")
    assert folders.leave(home / "silo0")["stopped"] == "the silo has left"


def test_a_report_that_was_sealed_must_be_in_the_ledger(home):
    ledger = home / "silo0" / folders.LEDGER
    process = folders.opened(home / "silo0")
    process.store.write(Write("sealed", "2", b"a report"))
    process.store.close()
    process.ledger.close()
    with pytest.raises(InputError, match="no charge for release 2"):
        folders.opened(home / "silo0")
    assert ledger.exists()


def test_charges_of_other_processes_count_and_undone_charges_do_not(tmp_path, monkeypatch):
    """A ledger reads each charge once; it must see later charges, and forget undone charges."""
    first, second = (Ledger(str(tmp_path / "ledger.sqlite")) for _ in range(2))
    first.set_ceiling("records", 5.0, 1e-6)
    charges = [Charge("records", plan, 1, 0.01) for plan in (b"b", b"a", b"c")]
    first.charge(charges[0])
    assert first.charges("records") == second.charges("records") == [charges[0]]
    second.charge(charges[1])
    assert first.charges("records") == [charges[1], charges[0]]
    assert first.epsilon("records") == epsilon_of_charges(charges[:2], 1e-6)

    def fail(kind, values):
        """Read the charge in the open transaction, then fail as a full disk does."""
        assert charges[2] in first.charges("records")
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(first, "_append", fail)
        with pytest.raises(OSError, match="full"):
            first.charge(charges[2])
    assert first.charges("records") == second.charges("records") == [charges[1], charges[0]]


@pytest.mark.parametrize(
    ("factor", "holds"), [(1.0 - 1e-6, False), (1.0, True), (1.0 + 1e-6, True)]
)
def test_a_ceiling_holds_to_less_than_a_millionth(factor, holds, home):
    """Check a charge, a ceiling below the spent budget, and a plan that continues a plan."""
    cost = Charge("records", b"plan", 1, 0.03, 1e-8)
    exact = epsilon_of_charges([cost], 1e-6)
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", exact * factor, 1e-6)
    assert ledger.allows(cost) is holds
    if holds:
        ledger.charge(cost)
    else:
        with pytest.raises(OverBudget):
            ledger.charge(cost)
        assert ledger.charges("records") == []
    spent_ledger = Ledger(":memory:")
    spent_ledger.set_ceiling("records", 2.0, 1e-6)
    spent_ledger.charge(cost)
    if holds:
        spent_ledger.set_ceiling("records", exact * factor, 1e-6)
    else:
        with pytest.raises(InputError, match="what was spent"):
            spent_ledger.set_ceiling("records", exact * factor, 1e-6)
    plan, own = plans.load(home / "plan2"), Ledger(str(home / "silo0" / folders.LEDGER))
    whole = charge_of(plan.executed, plan.digest, "people", -1)
    both = epsilon_of_charges([*own.charges("people"), whole], 1e-6)
    if holds:
        folders.check_room(own, "people", plan, (both * factor, 1e-6))
    else:
        with pytest.raises(InputError, match="more than the ceiling"):
            folders.check_room(own, "people", plan, (both * factor, 1e-6))
    own.close()


# ---- the chain -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM charges",
        "UPDATE charges SET mu2 = mu2 * 0.999999",
        "UPDATE ceilings SET epsilon = epsilon * 1.000001",
        "DELETE FROM writes WHERE kind = 'charge'",
        "UPDATE writes SET value = x'00' WHERE kind = 'ledger'",
        "INSERT INTO charges VALUES ('records', x'02', 9, 0.0, 0.0, x'', 0.0)",
    ],
)
def test_a_ledger_that_something_else_changed_is_noticed(damage, tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(str(path))
    ledger.set_ceiling("records", 1.0, 1e-6)
    ledger.charge(Charge("records", b"plan", 1, 0.03))
    ledger.close()
    db = sqlite3.connect(path)
    db.execute(damage)
    db.commit()
    db.close()
    for open_file in (Ledger, Ledger.read):
        with pytest.raises(InputError, match=r"broken|changed by something else"):
            open_file(str(path))


def test_a_ledger_of_an_earlier_version_is_read_as_it_is_and_chained_when_it_is_used(tmp_path):
    path = tmp_path / "ledger.sqlite"
    db = sqlite3.connect(path)
    db.executescript(EARLIER)
    db.close()
    before = path.read_bytes()
    shown = json.loads(run("ledger", "show", path).output)
    assert shown[0]["charges"] == 1 and shown[0]["spent_epsilon"] > 0.0 and "ledger" not in shown[0]
    assert path.read_bytes() == before
    used = Ledger(str(path))
    identity, head = used.identity, used.head
    assert len(identity) == 16 and used.charges("records")[0].pure == 0.0
    used.charge(Charge("records", b"plan", 1, 0.001))
    assert used.had_head(head) and used.head != head
    used.close()
    reopened = Ledger(str(path))
    assert reopened.identity == identity and len(reopened.charges("records")) == 2


def test_a_note_of_an_earlier_version_is_taken_over(home):
    note = home / "silo0" / folders.JOINED
    file = (home / "silo0" / folders.LEDGER).resolve()
    note.write_text(json.dumps({"dataset": "people", "ledger": str(file)}) + "\n")
    process = folders.opened(home / "silo0")
    assert process.party.dataset == "people"
    process.store.close()
    assert folders.read_note(home / "silo0").identity == process.ledger.identity
    note.write_text("[1]")
    with pytest.raises(InputError, match="damaged"):
        folders.opened(home / "silo0")


# ---- commands that only read ---------------------------------------------------------------------


def files_of(place):
    """Return, for every file below a folder, the time of its last change and its hash."""
    return {
        str(file.relative_to(place)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in sorted(place.rglob("*"))
        if file.is_file()
    }


HOLD_SILO = """
import sys, time
from fastfed.deployment import folder
process = folder.opened(sys.argv[1])
process.decide([[0.5, 0.1], [-0.3, 0.8]])
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("running", [False, True, "killed"])
def test_commands_that_only_read_make_and_change_no_file(home, running):
    """Check a stopped party, a running party, and a party killed while it wrote its log."""
    process = folders.opened(home / "silo0")
    entries = tuple(wire.Entry(i, bytes(32)) for i in (0, 1))
    body = wire.Broadcast(wire.packed(np.array([1.0, 2.0, 3.0, 0.5, 4.0])), entries, b"")
    hub = Identity(folders.read_secret(home / "hub" / folders.SECRET))
    plan = plans.load(home / "plan").wire.signed(hub, "hub", 1, body)
    process.store.write(Write("broadcast", "1", plan))
    process.store.close()
    process.ledger.close()
    folders.opened(home / "hub").store.close()
    child = None
    if running:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD_SILO, home / "silo0"], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "there\n"
    try:
        if running == "killed":
            child.kill()
            child.wait()
        before = files_of(home)
        assert bool(running) == any(name.endswith("-wal") for name in before)
        for arguments, expected in (
            (("ledger", "show", home / "silo0" / folders.LEDGER), '"people"'),
            (("ledger", "verify", home / "silo0"), "entries, chain and sums"),
            (("ledger", "verify", home / "hub"), "hub: 1 entries"),
            (("deploy", "export", home / "silo0"), '"theta"'),
        ):
            result = run(*arguments)
            assert result.exit_code == 0 and expected in result.output, result.output
        assert last_broadcast(home / "silo0")[1] == plan
        assert files_of(home) == before
    finally:
        if child is not None:
            child.kill()
            child.wait()
            child.stdout.close()


def test_reading_a_folder_that_was_never_started_makes_no_file(home):
    before = files_of(home)
    assert run("ledger", "verify", home / "hub").output.startswith("hub: no state yet")
    assert last_broadcast(home / "hub")[1] == b""
    assert run("deploy", "export", home / "hub").exit_code == 2
    assert files_of(home) == before


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path):
    db = sqlite3.connect(tmp_path / "patients.sqlite")
    db.execute("CREATE TABLE patients (name TEXT)")
    db.close()
    sqlite3.connect(tmp_path / "no-tables.sqlite").close()
    SqliteStore(str(tmp_path / "state.sqlite")).close()
    (tmp_path / "text.sqlite").write_text("no database\n" * 1000)
    (tmp_path / "cut.sqlite").write_bytes((tmp_path / "state.sqlite").read_bytes()[:700])
    (tmp_path / "empty.sqlite").touch()
    before = files_of(tmp_path)
    modes = {name: (tmp_path / name).stat().st_mode for name in before}
    for name in before:
        result = run("ledger", "show", tmp_path / name)
        assert result.exit_code == 2 and name in words(result).replace(" ", ""), result.output
    for name in ("patients.sqlite", "state.sqlite", "text.sqlite"):
        with pytest.raises(InputError, match=r"no ledger of fastfed|no SQLite file"):
            Ledger(str(tmp_path / name))
    ledger = Ledger(str(tmp_path / "made"))
    ledger.close()
    for name in ("patients.sqlite", "text.sqlite", "made"):
        with pytest.raises(InputError, match=r"no log of a party of fastfed|no SQLite file"):
            SqliteStore(str(tmp_path / name))
    (tmp_path / "made").unlink()
    assert files_of(tmp_path) == before
    assert modes == {name: (tmp_path / name).stat().st_mode for name in before}


def test_a_file_with_damaged_pages_is_reported_in_a_sentence(tmp_path):
    store = SqliteStore(str(tmp_path / "state.sqlite"))
    for number in range(200):
        store.write(Write("a", str(number), bytes(500)))
    store.close()
    data = bytearray((tmp_path / "state.sqlite").read_bytes())
    data[-8192:] = b"\xff" * 8192
    (tmp_path / "state.sqlite").write_bytes(data)
    for open_file in (SqliteStore.read, SqliteStore):
        with pytest.raises(InputError, match=r"is (damaged|broken)"):
            list(open_file(str(tmp_path / "state.sqlite")).writes())
