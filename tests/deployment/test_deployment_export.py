"""Tests of `deploy export`: the JSON of a silo's last model, of a running or a stopped silo."""

import json
import threading

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import wire
from fastfed.deployment.application import Application
from fastfed.deployment.model import model_of
from fastfed.deployment.plans import compile_plan
from fastfed.deployment.seal import Identity, read_secret
from fastfed.deployment.store import Write

ROWS = [[0.5, 0.1], [-0.3, 0.8]]


def federation_after_release(protocol):
    """Return a federation after one release."""
    deployment = federation.Federation(federation.deployed(protocol))
    deployment.settle()
    deployment.now = deployment.plan.document.calendar.closes[0] - 1.0
    for name in deployment.plan.silos:
        silo = deployment.processes[name]
        silo.reward(silo.decide(ROWS).id, 0.5)
    deployment.now += 1.0
    deployment.settle()
    return deployment


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", "shuffle-vector"])
def test_a_model_is_that_of_the_last_broadcast(protocol):
    deployment = federation_after_release(protocol)
    parties = [deployment.processes[name].party for name in deployment.plan.silos]
    actual, *others = map(model_of, parties)
    assert all(other == actual for other in others) and actual["release"] == 1
    body = deployment.plan.wire.read(parties[0].broadcasts[1])
    values = np.frombuffer(deployment.plan.wire.body(body, wire.Broadcast).values, dtype="<f8")
    gram, theta = np.array(actual["V"]), np.array(actual["theta"])
    covariance = np.zeros((2, 2))
    covariance[np.triu_indices(2)] = values[2:]
    covariance = np.triu(covariance) + np.triu(covariance, 1).T
    # V is the covariance plus a positive diagonal, and theta solves V theta = u.
    added = gram - covariance
    np.testing.assert_allclose(added, added[0, 0] * np.eye(2), atol=1e-9 * np.abs(gram).max())
    assert added[0, 0] > 0 and np.linalg.eigvalsh(gram)[0] > 0
    np.testing.assert_allclose(gram @ theta, values[:2], rtol=1e-9)
    assert actual["schema"]["columns"][1] == {"name": "x1", "low": -1.0, "high": 1.0, "unit": ""}
    assert actual["plan"] == deployment.plan.digest.hex()
    assert actual["certificate"] == deployment.plan.certificate.to_builtins()
    assert json.loads(json.dumps(actual)) == actual


def test_there_is_no_model_before_the_first_release():
    deployment = federation.Federation(federation.deployed())
    with pytest.raises(InputError, match="silo0 has no model yet"):
        model_of(deployment.processes["silo0"].party)


def test_the_command_exports_from_a_running_silo_and_from_its_folder(tmp_path):
    names = ("silo0", "silo1", "silo2", "hub")
    keys = {name: folders.make_keys(tmp_path / name) for name in names}
    silos = [{"name": name, **keys[name]} for name in names[:3]]
    plan = compile_plan(federation.spec(silos=3) | {"silos": silos, "hub": keys["hub"]})
    plan.save(tmp_path / "plan")
    for name in ("silo0", "hub"):
        folders.countersign(tmp_path / name, tmp_path / "plan")
    hub = Identity(read_secret(tmp_path / "hub" / folders.SECRET))
    entries = tuple(wire.Entry(i, bytes(32)) for i in (1, 2))
    values = wire.packed(np.array([1.0, 2.0, 3.0, 0.5, 4.0]))
    broadcast = plan.wire.signed(hub, "hub", 1, wire.Broadcast(values, entries, b"", b""))
    silo, output = folders.opened(tmp_path / "silo0"), tmp_path / "model.json"
    folder = str(tmp_path / "silo0")

    def exported(*more, folder=folder):
        """Run `deploy export` on a folder, and return the result."""
        command = ["deploy", "export", folder, *more]
        return CliRunner().invoke(cli, command)

    # Nobody answers at the socket, so the command reads a copy of the state.
    assert exported().exit_code == 2 and "no model yet" in exported().output
    socket = tmp_path / "silo0" / folders.SOCKET
    with Application(silo, socket) as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        assert exported().exit_code == 2 and "no model yet" in exported().output
        write = Write("broadcast", "1", broadcast)
        silo.store.write(write)
        silo.party.fold(write)
        running = exported("-o", str(output))
        assert running.exit_code == 0 and running.output == ""
        application.shutdown()
    silo.store.close()
    (tmp_path / "silo0" / folders.LEDGER).unlink()
    stopped = exported()
    assert stopped.exit_code == 0
    assert json.loads(stopped.output) == json.loads(output.read_text())
    assert json.loads(stopped.output) == folders.export_model(folder)
    # Export does not open the ledger.
    assert not (tmp_path / "silo0" / folders.LEDGER).exists()
    refused = exported(folder=str(tmp_path / "hub"))
    assert refused.exit_code == 2 and "not the folder of a silo" in refused.output
