"""Metrics of hub and silos, logs without values, and who may connect to the hub."""

import datetime
import http.client
import io
import ipaddress
import json
import logging
import re
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

import federation
import uvicorn
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from test_deployment_network import Listening

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import plans
from fastfed.deployment.demo import free_port
from fastfed.deployment.observe import (
    HELP,
    JsonHandler,
    JsonLog,
    Metrics,
    hub_numbers,
    mask_numbers,
    prometheus,
    silo_numbers,
)
from fastfed.deployment.shell import Dialer, HubApp, listening, serve

ROWS = [[0.5, 0.1], [-0.3, 0.8]]


def federation_after_releases(releases=1):
    """Return a federation after some releases, with two rewards at each silo in each period."""
    deployment = federation.Federation(federation.deployed())
    deployment.settle()
    for close in deployment.plan.document.calendar.closes[:releases]:
        deployment.now = close - 1.0
        for name in deployment.plan.silos:
            silo = deployment.processes[name]
            silo.reward(silo.decide(ROWS).id, 1.5)
            silo.reward(silo.decide([[1.0, 1.0]]).id, 0.5)
            silo.decide(ROWS)
        deployment.now += 1.0
        deployment.settle()
    return deployment


# ---- metrics -------------------------------------------------------------------------------------


def read(text):
    """Return names and values of Prometheus text; check that each line is of a known kind."""
    metrics = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z_]+) ([0-9.e+-]+)", line)
        assert match or re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line), line
        if match:
            metrics[match[1]] = float(match[2])
    return metrics


def test_a_silo_counts_what_it_does_and_says_what_is_left():
    deployment = federation_after_releases()
    silo = deployment.processes["silo0"]
    metrics = read(prometheus("silo", silo_numbers(silo)))
    spent = deployment.ledgers["silo0"].epsilon("records")
    wanted = {
        "released": 1, "releases_total": 4, "releases_waited_for": 0, "reports_sealed": 1,
        "decisions": 3, "open_decisions": 1, "clipped_rewards": 1, "clipped_features": 1,
        "stopped": 0, "reports_lost": 0, "epsilon_ceiling": 1.0,
    }  # fmt: skip
    for name, value in wanted.items():
        assert metrics[f"fastfed_silo_{name}"] == value, name
    assert metrics["fastfed_silo_epsilon_spent"] == pytest.approx(spent)
    assert metrics["fastfed_silo_epsilon_left"] == pytest.approx(1.0 - spent) and 0.3 < spent < 1
    # A silo that has sealed and waits for the others.
    absent_silos = [deployment.processes.pop(name) for name in ("silo1", "silo2")]
    deployment.now = deployment.plan.document.calendar.closes[1] + 0.0
    deployment.settle()
    assert silo_numbers(silo)["releases_waited_for"] == 1 and len(absent_silos) == 2
    hub = hub_numbers(deployment.processes["hub"].party, deployment.now)
    assert (hub["silos_waited_for"], hub["released"], hub["alarms"]) == (2, 1, 0)
    # Before a release closes nobody is late.
    early = hub_numbers(deployment.processes["hub"].party, deployment.now - 1.0)
    assert early["silos_waited_for"] == 0
    silo.leave()
    assert silo_numbers(silo)["stopped"] == 1
    assert set(silo_numbers(silo)) | set(hub) == set(HELP)


def test_a_restarted_silo_counts_the_same():
    deployment = federation_after_releases()
    before = silo_numbers(deployment.processes["silo0"])
    from fastfed.deployment.process import SiloProcess
    from fastfed.deployment.silo import SiloParty

    old = deployment.processes["silo0"]
    party = SiloParty(deployment.plan, "silo0", federation.secret("silo0"), old.ledger)
    restarted = SiloProcess(party, old.store, old.ledger, lambda: deployment.now)
    assert silo_numbers(restarted) == before


def test_metrics_are_served_to_this_machine_alone():
    deployment = federation_after_releases()
    server = Metrics(deployment.processes["silo0"], 0)
    server.start()
    assert server.server_address[0] == "127.0.0.1"

    def response_of(path="/metrics", host=None, method="GET"):
        """Return (code, body) of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request(method, path, headers={"host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    status, text = response_of()
    assert status == 200 and read(text)["fastfed_silo_released"] == 1
    assert response_of("/status")[0] == response_of("/")[0] == 404
    # DNS rebinding: a web page whose host name points to this machine.
    assert response_of(host="evil.example.org")[0] == 404
    assert response_of(method="POST")[0] == 405
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match="the metrics of a silo"):
        Metrics(deployment.processes["hub"], 0)
    with pytest.raises(InputError, match="port"):
        Metrics(deployment.processes["silo0"], 70000)


# ---- logs ----------------------------------------------------------------------------------------


def lines(stream):
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_says_what_happened_and_no_values():
    deployment, stream = federation_after_releases(0), io.StringIO()
    silo = deployment.processes["silo0"]
    log = JsonLog(stream, "silo0", lambda: 1000.0)
    log.look(silo)
    assert lines(stream) == []
    deployment.now = deployment.plan.document.calendar.closes[0] - 1.0
    silo.reward(silo.decide([[0.1234, 0.5678]]).id, 0.8765)
    deployment.now += 1.0
    deployment.settle()
    for _ in range(2):
        log.look(silo)
    log("the hub answered 400: report 2 of north has entry 3 beyond what 213 allows: -1042.5e3")
    log("the hub cannot be reached (timed out)")
    log("the hub is reached again")
    log("release 3 is more than the ceiling of the budget allows")
    silo.leave()
    log.look(silo)
    log_lines = lines(stream)
    assert [line["event"] for line in log_lines] == [
        "sealed", "released", "refused", "unreachable", "reached", "problem", "stopped",
    ]  # fmt: skip
    assert {line["time"] for line in log_lines} == {"1970-01-01T00:16:40Z"}
    assert {line["party"] for line in log_lines} == {"silo0"} and log_lines[0]["value"] == 1
    text = stream.getvalue()
    for number in ("1042", "213", "0.1234", "0.5678", "0.8765", "8765"):
        assert number not in text
    assert "entry # beyond what # allows: #" in text


@pytest.mark.parametrize("value", [-1.5, 1e300, 3, "0x1f", float("nan"), float("inf"), "1_000"])
def test_numbers_of_any_kind_are_masked(value):
    assert mask_numbers(f"it is {value}, [{value}] and so on") == "it is #, [#] and so on"


def test_the_hub_logs_refusals_and_only_the_type_of_an_exception():
    import asyncio

    deployment, stream = federation_after_releases(), io.StringIO()
    log = JsonLog(stream, "hub")
    app = HubApp(deployment.processes["hub"], log)
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"17 bytes of rubbish", "more_body": False}

    async def send(event):
        sent.append(event)

    asyncio.run(app({"type": "http", "method": "POST", "path": "/v1/messages"}, receive, send))
    logger = logging.getLogger("tests.log")
    logger.handlers, logger.propagate = [JsonHandler(log)], False
    try:
        raise ValueError("patient 4711")
    except ValueError:
        logger.exception("failed with 4711")
    log_lines = lines(stream)
    assert log_lines[0]["event"] == "message" and log_lines[0]["status"] == 400
    assert {"event": "released", "value": 1}.items() <= log_lines[1].items()
    assert log_lines[-1]["exception"] == "ValueError" and "4711" not in stream.getvalue()


# ---- TLS -----------------------------------------------------------------------------------------

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority that makes certificates as files."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = self._written(name, self._signed(name, self.key, True, -1, 1))

    def _signed(self, name, key, ca, start, end):
        """Return a certificate, valid from day `start` to day `end`; `ca`: of an authority."""
        now = datetime.datetime.now(datetime.UTC)
        subject, issuer = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, self.name)
        )
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + start * DAY).not_valid_after(now + end * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca, None), True)
        key_identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(key_identifier, False)
        issuer_key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer_key_id, False)
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "encipher_only", "decipher_only"), False,
        )  # fmt: skip
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **usage), True
        )
        if not ca:
            local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([local]), False)
        return builder.sign(self.key, hashes.SHA256())

    def _written(self, name, certificate):
        """Write a certificate, and return its path."""
        path = self.folder / f"{self.name}-{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def pair(self, name, start=-1, end=1):
        """Return a certificate and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{self.name}-{name}.key"
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        return self._written(name, self._signed(name, key, False, start, end)), str(path)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Return two authorities: one that the hub trusts, and one that it does not know."""
    home = tmp_path_factory.mktemp("tls")
    return Authority(home, "consortium"), Authority(home, "stranger")


class Running(Listening):
    """A hub that listens as `serve` would, in a thread."""

    def __init__(self, process, *keys):
        self.port = free_port()
        self.server = uvicorn.Server(listening(process, "127.0.0.1", self.port, *keys))
        self.thread = threading.Thread(target=self.server.run)
        self.url = f"https://127.0.0.1:{self.port}"


def test_the_hub_serves_only_clients_with_a_valid_certificate_of_the_consortium(authorities):
    ours, theirs = authorities
    deployment = federation.Federation(federation.deployed())
    hub, silo = deployment.processes["hub"], deployment.processes["silo0"]
    good = ours.pair("silo0")
    with Running(hub, *ours.pair("hub"), ours.file) as running:
        for invalid_pair in (
            (None, None),
            ours.pair("late", -3, -2),
            ours.pair("early", 2, 3),
            theirs.pair("silo0"),
        ):
            dialer = Dialer(silo, running.url, ours.file, *invalid_pair)
            assert "the hub cannot be reached" in dialer.round()
            assert not hub.party.joined
        assert Dialer(silo, running.url, ours.file, *good).round() == ""
        assert hub.party.joined == {"silo0"}
        # Status and metrics require a client certificate, too.
        run = CliRunner().invoke
        command = ["deploy", "status", running.url, "--ca", ours.file]
        assert run(cli, command).exit_code == 1
        result = run(cli, [*command, "--cert", good[0], "--key", good[1]])
        assert json.loads(result.output)["joined"] == ["silo0"]
        # With mutual TLS, a silo still accepts only a hub certified by the silo's authority.
        other = deployment.processes["silo1"]
        assert "cannot be reached" in Dialer(other, running.url, theirs.file, *good).round()


@pytest.mark.parametrize("hub", ["late", "early", "foreign", "another name"])
def test_a_silo_refuses_a_hub_whose_certificate_is_not_as_it_should_be(hub, authorities):
    ours, theirs = authorities
    deployment = federation.Federation(federation.deployed())
    pair = {
        "late": lambda: ours.pair("hub", -3, -2),
        "early": lambda: ours.pair("hub", 2, 3),
        "foreign": lambda: theirs.pair("hub"),
        "another name": lambda: ours.pair("hub"),
    }[hub]()
    with Running(deployment.processes["hub"], *pair) as running:
        name = "localhost" if hub == "another name" else "127.0.0.1"
        url = f"https://{name}:{running.port}"
        trouble = Dialer(deployment.processes["silo0"], url, ours.file).round()
        assert "CERTIFICATE_VERIFY_FAILED" in trouble
        assert not deployment.processes["hub"].party.joined


def test_mutual_tls_needs_tls():
    deployment = federation.Federation(federation.deployed())
    with pytest.raises(InputError, match="client_ca needs a certificate"):
        serve(deployment.processes["hub"], "127.0.0.1", 8443, client_ca="ca.pem")


# ---- commands ------------------------------------------------------------------------------------


def test_processes_log_lines_of_json_and_serve_metrics(tmp_path):
    keys = {name: folders.make_keys(tmp_path / name) for name in ("silo0", "hub")}
    spec = federation.spec(silos=1, federation={"least": 1})
    spec |= {"silos": [{"name": "silo0", **keys["silo0"]}], "hub": keys["hub"]}
    plans.compile_plan(spec).save(tmp_path / "plan")
    folders.join(tmp_path / "silo0", tmp_path / "plan", (1.0, 1e-6))
    folders.join(tmp_path / "hub", tmp_path / "plan")
    ports = free_port(), free_port()
    command = [sys.executable, "-m", "fastfed"]
    hub = [*command, "serve", str(tmp_path / "hub"), "--port", str(ports[0]), "--log-json"]
    silo = [*command, "silo", str(tmp_path / "silo0"), "--hub", f"http://127.0.0.1:{ports[0]}"]
    silo += ["--every", "0.1", "--log-json", "--metrics", str(ports[1])]
    running = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in (silo, hub)]
    try:
        until, numbers = time.time() + 60, {}
        # All leaves of the calendar are closed: four empty releases come at once.
        while numbers.get("fastfed_silo_released") != 4 and time.time() < until:
            time.sleep(0.05)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics") as response:
                    numbers = read(response.read().decode())
            except OSError:
                pass
    finally:
        for each in running:
            each.terminate()
        outputs = [each.communicate()[1] for each in running]
    assert numbers["fastfed_silo_released"] == 4 and numbers["fastfed_silo_epsilon_spent"] > 0.9
    log_lines = [[json.loads(line) for line in each.splitlines()] for each in outputs]
    assert {"sealed", "released"} <= {line["event"] for line in log_lines[0]}
    assert {"released"} <= {line["event"] for line in log_lines[1]}
    assert {line["party"] for line in log_lines[0]} == {"silo0"}
    assert np.isfinite(list(numbers.values())).all()
