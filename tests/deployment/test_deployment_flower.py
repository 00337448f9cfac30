"""Tests of Flower as the network: messages, couriers' sockets, Apps and real processes."""

import http.client
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import federation
from click.testing import CliRunner

import fastfed
from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import demo, flower
from fastfed.deployment import folder as folders
from fastfed.deployment.client import Client
from fastfed.deployment.hub import Hub
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.sums import Helper

ROWS = [[0.5, 0.1], [-0.3, 0.8]]
ROOT = Path(__file__).parents[2]


def silence(text):
    """Ignore a log line."""


class Nodes:
    """A federation behind Flower nodes, with lost and repeated messages and killed parties."""

    def __init__(self, plan, seed=0, faults=0.0):
        self.deployment = federation.Federation(plan)
        self.plan, self.random, self.faults = plan, random.Random(seed), faults
        self.numbers = {n: i for i, n in enumerate(self.deployment.processes, 1) if n != "hub"}
        self.now, self.kills, self.problems, self.late = 0.0, 0, [], []
        self.mail = self.new_mail()

    def new_mail(self):
        """Return the mail of the hub."""
        return flower.Mail(self.deployment.processes["hub"], 1.0, 5.0, self.problems.append)

    def kill(self, name):
        """Replace a process by a new one with what was durable, as after SIGKILL."""
        old, plan, key = self.deployment.processes[name], self.plan, federation.secret(name)
        store, clock = MemoryStore(list(old.store.writes())), lambda: self.deployment.now
        if name in plan.silos:
            process = SiloProcess(SiloParty(plan, name, key, old.ledger), store, old.ledger, clock)
        else:
            process = Process((Hub if name == "hub" else Helper)(plan, key), store, None, clock)
        self.deployment.processes[name] = process
        self.kills += 1
        if name == "hub":
            self.mail = self.new_mail()

    def chance(self):
        """Return whether a fault happens now."""
        return self.random.random() < self.faults

    def answered(self, name, letters):
        """Return the answers of a party's node; None if the letters or the answers are lost."""
        if self.chance():
            return None
        if self.chance():
            flower.pass_to_party(self.deployment.processes[name], letters, silence)
        answers = flower.pass_to_party(self.deployment.processes[name], letters, silence)
        if self.chance():
            self.kill(name)
        return None if self.chance() else answers

    def turn(self):
        """Let the ServerApp send letters to all nodes and receive their answers once."""
        self.now += 1.0
        for node, letters in self.mail.outgoing(self.numbers.values(), self.now).items():
            (name,) = (n for n, i in self.numbers.items() if i == node)
            answer = self.answered(name, letters)
            if answer is None:
                self.mail.failed(node, "lost")
                continue
            self.late += [(node, answer)] if self.chance() else []
            self.mail.incoming(node, answer)
        if self.late and self.chance():
            # An old answer comes again.
            self.mail.incoming(*self.random.choice(self.late))
        if self.chance() and self.chance():
            self.kill("hub")


def learn(deployment, plan, release):
    """Make one decision and its reward at each silo, just before the period of a release ends."""
    deployment.now = plan.document.calendar.closes[release - 1] - 1.0
    for name in plan.silos:
        silo = deployment.processes[name]
        silo.reward(silo.decide(ROWS).id, 0.5)
    deployment.now += 1.0


@pytest.mark.parametrize("faults", [0.0, 0.15])
@pytest.mark.parametrize("protocol", ["silo-ldp", "secure-sum", federation.MASKED_BITS])
def test_whatever_happens_to_mail_and_processes_the_model_is_that_of_a_calm_run(protocol, faults):
    plan = federation.deployed(protocol)
    nodes, undisturbed = Nodes(plan, 7, faults), federation.Federation(plan)
    for release in (1, 2, 3):
        for each in (nodes.deployment, undisturbed):
            learn(each, plan, release)
        undisturbed.settle()
        wanted = undisturbed.processes["silo0"].party.model
        assert wanted.release == release
        for _ in range(1000):
            nodes.turn()
            models = [nodes.deployment.processes[name].party.model for name in plan.silos]
            if all(model.release == release for model in models):
                break
        assert all(model.release == release for model in models)
        assert all(model.theta.tolist() == wanted.theta.tolist() for model in models)
    hub, other = (each.processes["hub"].party for each in (nodes.deployment, undisturbed))
    assert hub.broadcasts == other.broadcasts and not hub.alarms
    assert not any("digest" in text for text in nodes.problems)
    assert nodes.kills > 10 if faults else nodes.kills == 0


def test_a_calm_release_takes_two_messages_to_each_node():
    plan = federation.deployed()
    nodes = Nodes(plan)
    for _ in range(4):
        nodes.turn()
    learn(nodes.deployment, plan, 1)
    nodes.turn()
    assert len(nodes.deployment.processes["hub"].party.broadcasts) == 1
    nodes.turn()
    assert all(nodes.deployment.processes[name].party.model.release == 1 for name in plan.silos)


def test_a_silo_that_is_started_for_each_message_would_seal_nothing():
    """After each start a silo must first get an answer of the hub, so a ClientApp is a courier."""
    plan = federation.deployed()
    nodes = Nodes(plan)
    learn(nodes.deployment, plan, 1)
    for _ in range(20):
        nodes.turn()
        for name in plan.silos:
            nodes.kill(name)
    silo = nodes.deployment.processes["silo0"].party
    assert not silo.sealed and len(nodes.deployment.processes["hub"].party.joined) == 3


def test_receipts_wait_for_the_next_question_and_silent_nodes_get_none():
    plan = federation.deployed()
    nodes = Nodes(plan)
    nodes.mail = flower.Mail(nodes.deployment.processes["hub"], 100.0, 500.0, silence)
    nodes.turn()
    assert nodes.mail.outgoing(nodes.numbers.values(), nodes.now) == {}
    assert sorted(nodes.mail.outgoing(nodes.numbers.values(), nodes.now + 100.0)) == [1, 2, 3]
    # Nodes that do not answer get no more messages until they are given up.
    assert nodes.mail.outgoing(nodes.numbers.values(), nodes.now + 300.0) == {}
    assert sorted(nodes.mail.outgoing([1, 2], nodes.now + 700.0)) == [1, 2]


def test_a_foreign_node_changes_nothing_and_takes_nothing_away():
    """The node sends garbage, messages of a different plan, and copies of a silo's messages."""
    plan, messages = federation.deployed(), []
    nodes, undisturbed = Nodes(plan), federation.Federation(plan)
    other = Nodes(federation.deployed(dimension=3))
    thief, seen = 99, []
    nodes.problems = messages
    nodes.mail = nodes.new_mail()
    take = nodes.mail.incoming

    def incoming(node, letters):
        """Deliver spoiled copies of the letters in the thief's name, then the letters."""
        seen.extend(letters)
        # The thief delivers first, so that its node has the silo's name before the silo's node.
        take(thief, [b"rubbish", b"", *letters, *(d[:-1] + b"0" for d in letters)])
        take(thief, flower.pass_to_party(other.deployment.processes["silo0"], [], silence))
        take(node, letters)

    nodes.mail.incoming = incoming
    nodes.numbers["thief"] = thief
    answered = nodes.answered
    nodes.answered = lambda name, letters: [] if name == "thief" else answered(name, letters)
    for release in (1, 2):
        for each in (nodes.deployment, undisturbed):
            learn(each, plan, release)
        undisturbed.settle()
        for _ in range(6):
            nodes.turn()
    for name in plan.silos:
        model, wanted = (
            each.processes[name].party.model for each in (nodes.deployment, undisturbed)
        )
        assert model.release == wanted.release == 2
        assert model.theta.tolist() == wanted.theta.tolist()
    hub = nodes.deployment.processes["hub"].party
    assert hub.broadcasts == undisturbed.processes["hub"].party.broadcasts and not hub.alarms
    assert seen and any(text.startswith("node 99") for text in messages)
    assert not any(re.search(r"\d\.\d", text) for text in messages)


def test_a_full_disk_ends_no_run():
    plan, messages = federation.deployed(), []
    nodes = Nodes(plan)
    nodes.mail = flower.Mail(nodes.deployment.processes["hub"], 1.0, 5.0, messages.append)
    store = nodes.deployment.processes["hub"].store
    write, store.write = store.write, raise_full_disk
    nodes.turn()
    assert set(messages) == {f"node {i}: database or disk is full" for i in (1, 2, 3)}
    assert not nodes.deployment.processes["hub"].party.joined
    store.write = write
    nodes.turn()
    assert set(nodes.deployment.processes["hub"].party.joined) == set(plan.silos)


def raise_full_disk(_):
    """Raise the error of a store on a full disk."""
    raise sqlite3.OperationalError("database or disk is full")


def test_only_a_hub_has_mail():
    with pytest.raises(InputError, match="silo0 is not the hub"):
        flower.Mail(federation.Federation(federation.deployed()).processes["silo0"])


# ---- the socket ----------------------------------------------------------------------------------


def serve_couriers(stack, process, path, say=silence):
    """Serve couriers of a process in a thread, until the stack is left."""
    courier = stack.enter_context(flower.Courier(process, path, say))
    threading.Thread(target=courier.serve_forever, daemon=True).start()
    stack.callback(courier.shutdown)


def test_a_socket_carries_messages_and_nothing_else(tmp_path):
    deployment, path = federation.Federation(federation.deployed()), tmp_path / "a.sock"
    problems = []
    silo, hub = deployment.processes["silo0"], deployment.processes["hub"]
    with ExitStack() as stack:
        serve_couriers(stack, silo, path, problems.append)
        assert path.stat().st_mode & 0o777 == 0o660
        (question,) = flower.carry(path, [])
        answers = [message.data for message in hub.handle(question)[1]]
        replies = flower.carry(path, answers)
        assert {deployment.plan.wire.read(data).kind for data in replies} == {"join"}
        before = list(silo.store.writes())
        assert flower.carry(path, [b"rubbish"]) and "rubbish" not in str(problems)
        assert len(problems) == 1 and list(silo.store.writes()) == before
        client = Client(path)
        for name in ("decide", "status", "leave", "export", "recover"):
            with pytest.raises(ValueError):
                client.call(name)
        assert not silo.party.leave_reason
        assert posted(path, b"\x81\xa1a\x01") == (
            400,
            b"the courier's data are not a list of messages",
        )
        assert posted(path, b"", "/decide")[0] == 404
    with pytest.raises(InputError, match="cannot be reached"):
        flower.carry(path, [])
    with ExitStack() as stack:
        # The socket that was left behind is replaced.
        serve_couriers(stack, silo, path)
        assert flower.carry(path, [])


def posted(path, body, where="/carry"):
    """Return status and answer of a request to a socket."""
    connection = http.client.HTTPConnection("party")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("POST", where, body)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def test_where_a_socket_can_be(tmp_path):
    silo = federation.Federation(federation.deployed()).processes["silo0"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="got the file"):
        flower.Courier(silo, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InputError, match="in a directory that exists"):
        flower.Courier(silo, tmp_path / "none" / "a.sock")


def test_a_silo_has_a_hub_or_a_courier(tmp_path):
    plan = demo.made_plan(tmp_path, int(time.time()), "silo-ldp", None)
    assert plan.silos[0] == "north"
    for more in ([], ["--hub", "https://a", "--courier", str(tmp_path / "a.sock")]):
        with pytest.raises(InputError, match="one of --hub and --courier"):
            CliRunner().invoke(
                cli, ["silo", str(tmp_path / "north"), *more],
                catch_exceptions=False, standalone_mode=False,
            )  # fmt: skip


# ---- Apps ----------------------------------------------------------------------------------------


def test_without_flwr_the_extra_is_named(monkeypatch):
    for name in ("flwr", "flwr.app"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=re.escape("pip install 'fastfed[flower]'")):
        _ = flower.client_app
    with pytest.raises(AttributeError, match="no attribute"):
        _ = flower.agent_app


@pytest.mark.parametrize("value", [None, "", 3])
def test_a_path_is_needed(value):
    with pytest.raises(InputError, match="folder of here must be a path"):
        flower.path_of({} if value is None else {"folder": value}, "folder", "here")


@pytest.mark.parametrize("value", [0, -1.0, True, "x", float("nan"), float("inf")])
def test_seconds_are_checked(value):
    assert flower.seconds_of({}, "every", "here", 2.0) == 2.0
    assert flower.seconds_of({"every": 3}, "every", "here", 2.0) == 3.0
    with pytest.raises(InputError, match="every of here must be a number of seconds > 0"):
        flower.seconds_of({"every": value}, "every", "here", 2.0)


def test_the_module_names_what_the_example_asks_for():
    """Flower reads `__all__` before it loads the module."""
    text = (ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8")
    for named in tomllib.loads(text)["tool"]["flwr"]["app"]["components"].values():
        module, _, name = named.partition(":")
        assert module == flower.__name__ and name in flower.__all__


class FakeGrid:
    """A grid of Flower that runs ClientApps here, repeats messages and loses replies."""

    def __init__(self, nodes, faults, seed=0):
        self.nodes, self.faults, self.random = nodes, faults, random.Random(seed)
        self.replies, self.letters, self.count = {}, {}, 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        """Call the ClientApp of each receiver; return the ids of the messages."""
        from flwr.app import Context, RecordDict

        ids = []
        for message in messages:
            self.count += 1
            ids.append(f"m{self.count}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            config = {"courier": str(self.nodes[message.metadata.dst_node_id])}
            context = Context(1, message.metadata.dst_node_id, config, RecordDict(), {})
            reply = self.called(message, context)
            if self.random.random() < self.faults:
                # The node was killed before it answered, and gets the message again.
                reply = self.called(message, context)
            if self.random.random() >= self.faults:
                self.replies[ids[-1]] = reply
        return ids

    def called(self, message, context):
        """Return the reply of the ClientApp to a message, and keep its letters."""
        reply = flower.client_app(message, context)
        if reply.has_content():
            self.letters.setdefault(message.metadata.dst_node_id, []).extend(
                flower.unpack_envelopes(reply.content)
            )
        return reply

    def pull_messages(self, ids):
        """Return the replies that have not been lost."""
        return [self.replies.pop(i) for i in ids if i in self.replies]


@pytest.mark.parametrize(
    ("protocol", "faults"), [("silo-ldp", 0.0), ("silo-ldp", 0.2), ("secure-sum", 0.2)]
)
def test_apps_of_flower_carry_a_federation(protocol, faults, tmp_path):
    """The silos have couriers, and so has the helper if sums are in shares."""
    pytest.importorskip("flwr")
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for key in ("run_id", "node_id", "task_id"):
        setattr(identity, key, 1)
    plan = federation.deployed(protocol)
    deployment, undisturbed = federation.Federation(plan), federation.Federation(plan)
    parties = [*plan.silos, *(["helper"] if plan.shared else [])]
    with ExitStack() as stack:
        for number, name in enumerate(parties):
            serve_couriers(stack, deployment.processes[name], tmp_path / f"{number}.sock")
        nodes = {7 + i: tmp_path / f"{i}.sock" for i in range(len(parties))}
        nodes[99] = tmp_path / "nobody.sock"
        grid, stop, messages = FakeGrid(nodes, faults), threading.Event(), []
        mail = flower.Mail(deployment.processes["hub"], 0.01, 0.1, messages.append)
        serving = threading.Thread(target=flower.serve, args=(grid, mail, stop, 0.001))
        serving.start()
        try:
            for release in (1, 2):
                for each in (deployment, undisturbed):
                    learn(each, plan, release)
                undisturbed.settle()
                until = time.time() + 20
                while (
                    time.time() < until
                    and serving.is_alive()
                    and any(
                        deployment.processes[name].party.model.release < release
                        for name in plan.silos
                    )
                ):
                    time.sleep(0.01)
        finally:
            stop.set()
            serving.join()
    for name in plan.silos:
        found, wanted = (each.processes[name].party for each in (deployment, undisturbed))
        assert found.model.release == 2
        assert found.model.theta.tolist() == wanted.model.theta.tolist()
        # Each sealed report is, byte for byte, among the letters of the silo's node.
        assert set(found.sealed.values()) <= set(grid.letters[7 + plan.silos.index(name)])
    assert "node 99: its party did not answer" in messages
    if plan.shared:
        answers = deployment.processes["helper"].party.answers
        assert sorted(answers) == [1, 2] and set(answers.values()) <= set(grid.letters[10])


# ---- real processes ------------------------------------------------------------------------------

#: Seconds of the period in which patients come: processes must have started by its end.
PERIOD = 60


class Network:
    """Processes that can be killed: SuperLink and SuperNodes with TLS, silos behind their sockets.

    Flower's own processes are found by the port in their command line, which no other process has.
    """

    def __init__(self, home, plan, every):
        from test_deployment_network import certificates

        self.home, self.plan, self.port, self.running = home, plan, demo.free_port(), {}
        self.ca, cert, key = certificates(home)
        self.bin = Path(sys.executable).parent
        self.parties = {name: "silo" for name in plan.silos}
        self.parties |= {"helper": "helper"} if plan.shared else {}
        self.ports = {name: demo.free_port() for name in self.parties}
        self.commands = {
            "link": [
                self.bin / "flower-superlink", "--disable-runtime-dependency-installation",
                "--host", "127.0.0.1", "--port", self.port, "--database", home / "link.db",
                "--ssl-ca-certfile", self.ca, "--ssl-certfile", cert, "--ssl-keyfile", key,
            ]
        }  # fmt: skip
        for name, role in self.parties.items():
            self.commands[f"{role} {name}"] = [sys.executable, "-m", "fastfed", role, home / name]
            self.commands[f"{role} {name}"] += ["--courier", home / f"{name}.sock"]
            self.commands[f"node {name}"] = [
                self.bin / "flower-supernode", "--root-certificates", self.ca,
                "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1",
                "--port", self.ports[name], "--node-config", f'courier="{home / name}.sock"',
            ]  # fmt: skip
        text = (ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8")
        (home / "app").mkdir()
        text = text.replace("/srv/hub", str(home / "hub")).replace("60.0", str(every))
        (home / "app" / "pyproject.toml").write_text(text)
        where = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.ca}"\n'
        (self.environment("cli") / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n{where}'
        )

    def environment(self, name):
        """Return the folder of Flower of one machine."""
        folder = self.home / "flwr" / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def variables(self, name):
        """Return the environment variables of a process."""
        return os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "FLWR_HOME": str(self.environment(name)),
            "PYTHONPATH": str(Path(fastfed.__file__).parents[1]),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def start(self, name):
        """Start a process."""
        with (self.home / "log").open("a") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in self.commands[name]],
                env=self.variables(name), stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name):
        """Kill a process."""
        self.running[name].kill()
        self.running[name].wait()

    def restart(self, name):
        """Kill a process and start it again."""
        self.kill(name)
        self.start(name)

    def run(self, until):
        """Start a run, once the SuperLink answers."""
        command = [self.bin / "flwr", "run", self.home / "app"]
        while True:
            process = subprocess.run(
                command, env=self.variables("cli"), capture_output=True, text=True
            )
            if process.returncode == 0:
                return
            assert time.time() < until, process.stderr
            time.sleep(1.0)

    def apps(self, kind, port):
        """Yield processes of a kind that Flower has started for a port."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any(part.endswith(kind) for part in arguments[:2]) and any(
                part.endswith(f":{port}") for part in arguments
            ):
                yield int(entry.name)

    def kill_app(self, kind, port, until):
        """Kill a process of a kind that Flower has started for a port; wait until there is one."""
        while time.time() < until:
            for number in self.apps(kind, port):
                os.kill(number, signal.SIGKILL)
                return
            time.sleep(0.02)
        raise AssertionError(f"no {kind} was started")

    def stop(self):
        """Kill all processes, also those that outlive the processes that started them."""
        for process in self.running.values():
            process.kill()
            process.wait()
        for kind in ("flower-superexec", "flwr-clientapp", "flwr-serverapp"):
            for port in (self.port, *self.ports.values()):
                for number in self.apps(kind, port):
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["silo-ldp", "secure-sum"])
def test_real_processes_of_flower_are_killed_and_come_to_the_model_of_a_calm_run(
    protocol, tmp_path, monkeypatch
):
    """Kill a silo, a SuperNode, a ClientApp, the ServerApp, the SuperLink and the helper."""
    pytest.importorskip("flwr")
    monkeypatch.setattr(demo, "RELEASES", 1)
    plan = demo.made_plan(tmp_path, int(time.time()) + 5, protocol, None, period=PERIOD)
    (close,) = plan.document.calendar.closes
    until, actions = close + 900, {}
    clients = [Client(tmp_path / name / folders.SOCKET) for name in plan.silos]
    network = Network(tmp_path, plan, 5.0)

    def waits(wanted):
        """Wait until the status of every silo is as wanted; return all statuses."""
        while True:
            actual = [demo.repeat_until(lambda c=c: c.call("status"), until) for c in clients]
            if all(map(wanted, actual)):
                return actual
            assert time.time() < until, actual
            time.sleep(0.2)

    try:
        for name in network.commands:
            network.start(name)
        time.sleep(max(0.0, close - PERIOD + 0.1 - time.time()))
        for patient in range(demo.PATIENTS):
            for i, client in enumerate(clients):
                rows = demo.treatment_features(i, patient)
                decision = demo.repeat_until(
                    lambda c=client, r=rows: c.call("decide", actions=r), close
                )
                request = {
                    "id": decision["id"],
                    "reward": demo.treatment_reward(rows, decision["action"]),
                }
                if (i, patient) == (1, 1):
                    network.restart("silo east")
                demo.repeat_until(lambda c=client, g=request: c.call("reward", **g), close)
                actions[i, patient] = decision["action"]
        assert time.time() < close
        network.run(until)
        network.kill_app("flwr-clientapp", network.ports["south"], until)
        network.restart("node north")
        network.restart("silo north")
        if plan.shared:
            network.restart("helper helper")
            network.kill_app("flwr-clientapp", network.ports["helper"], until)
        time.sleep(max(0.0, close - time.time()))
        network.kill_app("flwr-serverapp", network.port, until)
        network.run(until)
        time.sleep(10.0)
        network.restart("link")
        if plan.shared:
            network.restart("node helper")
            network.restart("helper helper")
        network.run(until)
        actual = waits(lambda status: status["model"] == 1 and not status["stopped"])
    finally:
        network.stop()
    undisturbed = demo.theta_without_failures(tmp_path, plan, actions)
    assert len(actions) == 9 and all(status["theta"] == undisturbed for status in actual)
