"""Folders whose files were exchanged, changed or used twice: parties refuse to start."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("cryptography")

import federation
from federation import secret
from test_deployment_status import site

from fastfed import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment.agent import PrivateLinUCB
from fastfed.deployment.application import calls_of
from fastfed.deployment.calls import MAX_REQUEST
from fastfed.deployment.client import Client
from fastfed.deployment.kinds import silo_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import id_of
from fastfed.deployment.store import MemoryStore, SqliteStore, Write

SETTINGS = {"epsilon": 1.0, "delta": 1e-6, "period": 3600, "releases": 3, "batch_size": 10}


def replace(source, target):
    """Replace a file by a copy of another."""
    target.unlink(missing_ok=True)
    shutil.copy(source, target)


@pytest.fixture
def home(tmp_path):
    """Return a folder with the files of all parties of a site."""
    site(tmp_path)
    return tmp_path


def test_exchanged_secrets_are_refused(home):
    replace(home / "silo1" / "secret", home / "silo0" / "secret")
    with pytest.raises(InputError, match="joined by silo0, but the secret is that of silo1: use"):
        folders.opened(home / "silo0")


@pytest.mark.parametrize("name", ["silo0", "hub", "helper"])
@pytest.mark.parametrize("plan", ["plan", "silo1/plan"])
def test_a_party_that_has_not_joined_the_plan_does_not_start(home, name, plan):
    replace(home / plan, home / name / "plan")
    signed = "silo1" if "/" in plan else "nobody"
    with pytest.raises(InputError, match=f"joined by {signed}, but the secret is that of {name}"):
        folders.opened(home / name)
    assert not (home / name / "state.sqlite").exists()


def test_a_state_of_another_plan_is_refused(home):
    folders.opened(home / "silo0").close()
    replace(home / "silo0" / "state.sqlite", home / "silo1" / "state.sqlite")
    with pytest.raises(InputError, match=r"state.sqlite is of another plan or party, or is damag"):
        folders.opened(home / "silo1")


def test_a_secret_of_a_wrong_length_is_refused(home):
    path = home / "silo0" / "secret"
    path.chmod(0o600)
    path.write_bytes(b"short")
    path.chmod(0o400)
    with pytest.raises(InputError, match=r"must hold 32 bytes, got 5: restore its backup"):
        folders.opened(home / "silo0")


def test_the_hub_has_no_ceiling(home):
    with pytest.raises(InputError, match="a ceiling, a dataset and a ledger belong to silos"):
        folders.join(home / "hub", home / "plan", (1.0, 1e-6))


CHANGES = [
    "UPDATE ceilings SET epsilon = 'much'",
    "UPDATE writes SET value = 'text'",
    "UPDATE writes SET chain = 'text'",
    "UPDATE writes SET kind = x'00' WHERE number = 1",
    "UPDATE writes SET value = x'00' WHERE kind = 'ceiling'",
    "INSERT INTO charges VALUES ('a', 'b', 'c', 'd', 'e', 'f', 'g')",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_ledger_with_values_of_other_types_is_refused_as_damaged(home, change):
    path = home / "silo0" / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    for read in (Ledger, Ledger.read):
        with pytest.raises(InputError, match="restore the newest backup"):
            read(str(path))
    with pytest.raises(InputError, match="restore the newest backup"):
        folders.opened(home / "silo0")


@pytest.mark.parametrize("change", [c for c in CHANGES if "writes" in c and "ceiling" not in c])
def test_a_log_with_values_of_other_types_is_refused_as_damaged(home, change):
    folders.opened(home / "silo0").close()
    with closing(sqlite3.connect(home / "silo0" / "state.sqlite")) as db, db:
        db.execute(change)
    with pytest.raises(InputError, match="restore the newest backup"):
        folders.opened(home / "silo0")


def test_a_silo_without_a_ceiling_says_how_to_set_one():
    silo = silo_of(federation.deployed("silo-ldp"), "silo0", secret("silo0"), Ledger(":memory:"))
    silo.attach(MemoryStore())
    assert 'no ceiling is set for dataset "records"' in silo._close_leaf(1).problem


def test_a_forked_process_cannot_use_an_open_store(tmp_path):
    store = SqliteStore(str(tmp_path / "state.sqlite"))
    store.write(Write("a", "", b"1"))
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            store.write(Write("b", "", b"2"))
        except InputError as error:
            os._exit(7 if "cannot be used in a forked process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    store.close()


def test_a_forked_process_cannot_use_an_agent(tmp_path):
    agent = PrivateLinUCB(tmp_path / "agent", dimension=2, **SETTINGS)
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            agent.select([[1.0, 0.0], [0.0, 1.0]])
        except InputError as error:
            os._exit(7 if "cannot be used in a forked process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    decision = agent.select([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match="decision must be a Decision or its id"):
        agent.observe(1.0, decision.id)
    agent.observe(decision, 1.0)
    agent.close()


def test_refusals_of_requests_say_what_they_need(home, tmp_path):
    with closing(folders.opened(home / "silo0")) as silo:
        for path, key in [("reward", "reward"), ("outcome", "outcome"), ("bit", "bit")]:
            with pytest.raises(InputError, match=f"/{path} needs {key}"):
                calls_of(silo, f"/{path}", {"id": "0123456789abcdef"})
        (call,) = calls_of(silo, "/decide", {})
        with pytest.raises(InputError, match="decide needs actions, a row of 2 numbers for each"):
            silo.submit(call)
            silo.finish(call)
            call.returned()
    with pytest.raises(InputError, match="path must be the socket of a silo"):
        Client("http://127.0.0.1:8000")
    with pytest.raises(
        InputError, match=f"a request must be at most {MAX_REQUEST} bytes long, got"
    ):
        Client(tmp_path / "silo.sock", wait=0).decide(["a" * MAX_REQUEST])
    with pytest.raises(InputError, match="got float"):
        id_of(1.0)
