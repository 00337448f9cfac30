"""Hub, silos and application over real sockets, folders and commands; the demonstration."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

import federation
import uvicorn
from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import wire
from fastfed.deployment.application import Application, answers
from fastfed.deployment.client import Client
from fastfed.deployment.demo import free_port, repeat_until
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import compile_plan, load
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity
from fastfed.deployment.shell import Dialer, HubApp, check_free, serve
from fastfed.deployment.store import MemoryStore, SqliteStore

ROWS = [[0.5, 0.1], [-0.3, 0.8]]


def status_and_body(app, method="POST", path="/v1/messages", body=b""):
    """Return status and body of one request to an ASGI application."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event):
        sent.append(event)

    asyncio.run(app({"type": "http", "method": method, "path": path}, receive, send))
    return sent[0]["status"], sent[1]["body"]


def test_the_hub_answers_with_codes_and_changes_nothing_for_bad_messages():
    plan = federation.deployed()
    process = Process(Hub(plan, federation.secret("hub")), MemoryStore())
    app, silo = HubApp(process), Identity(federation.secret("silo0"))

    def message(body, release=0, name="silo0"):
        return plan.wire.signed(silo, name, release, body)

    assert status_and_body(app, "GET", "/nothing")[0] == 404
    assert status_and_body(app, body=b"x")[0] == 400
    assert status_and_body(app, body=bytes(plan.wire.largest + 1))[0] == 413
    report = federation.sealed_report(plan, 0, 1, bytes(40))
    assert status_and_body(app, body=report)[0] == 400
    assert (
        status_and_body(app, body=message(wire.Join(bytes(16), plan.countersignature(silo))))[0]
        == 200
    )
    assert status_and_body(app, body=federation.seen(plan, 0, report))[0] == 200
    assert status_and_body(app, body=report)[0] == 200
    assert status_and_body(app, body=report)[0] == 200
    code, answer = status_and_body(
        app, body=federation.sealed_report(plan, 0, 1, bytes(39) + b"\x3f")
    )
    assert (code, b"two reports" in answer) == (409, True)
    status = json.loads(status_and_body(app, "GET", "/status")[1])
    assert status["waiting_for"] == ["silo1", "silo2"] and len(status["alarms"]) == 1
    assert b"fastfed_hub_silos_waited_for 2\n" in status_and_body(app, "GET", "/metrics")[1]


def certificates(folder, address="127.0.0.1", days=(-1, 1)):
    """Return paths of an authority's certificate, and of a certificate for an address and its key.

    The second certificate is valid from the first to the last of ``days``, counted from now.
    """
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    pem = serialization.Encoding.PEM

    def certificate(name, issuer, key, signer, ca):
        """Return a certificate as PEM; `ca`: of an authority."""
        names = [
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer)
        ]
        builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1])
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + (days[0] - ca) * day)
        builder = builder.not_valid_after(now + (days[1] + 2 * ca) * day)
        builder = builder.add_extension(x509.BasicConstraints(ca, None), True)
        # Python 3.13 and later require these extensions.
        key_identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(key_identifier, False).add_extension(issuer_key_id, False)
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "encipher_only", "decipher_only"), False,
        )  # fmt: skip
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **usage), True
        )
        if not ca:
            local = x509.IPAddress(ipaddress.ip_address(address))
            builder = builder.add_extension(x509.SubjectAlternativeName([local]), False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(pem)

    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in "ab")
    (folder / "ca.pem").write_bytes(certificate("ca", "ca", authority, authority, True))
    (folder / "cert.pem").write_bytes(certificate("hub", "ca", key, authority, False))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    return [str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")]


class Listening:
    """The hub of a federation on a port, in a thread."""

    def __init__(self, process, **keys):
        self.port = free_port()
        config = uvicorn.Config(
            HubApp(process),
            host="127.0.0.1",
            port=self.port,
            log_level="error",
            lifespan="off",
            **keys,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self):
        self.thread.start()
        until = time.time() + 20
        while not self.server.started and time.time() < until:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join()


@pytest.mark.parametrize("protocol", ["silo-ldp", "secure-sum", federation.MASKED_BITS])
def test_a_federation_over_tls_comes_to_the_model_of_one_in_memory(protocol, tmp_path):
    ca, cert, key = certificates(tmp_path)
    plan = federation.deployed(protocol)
    deployment, undisturbed = federation.Federation(plan), federation.Federation(plan)
    hub = deployment.processes["hub"]
    with Listening(hub, ssl_certfile=cert, ssl_keyfile=key) as listening:
        url = f"https://127.0.0.1:{listening.port}"
        others = [p for name, p in deployment.processes.items() if name != "hub"]
        dialers = [Dialer(process, url, ca) for process in others]
        stranger = Dialer(others[0], url)
        assert "cannot be reached" in stranger.round()
        for _ in range(2):
            assert not any([dialer.round() for dialer in dialers])
        undisturbed.settle()
        for close in plan.document.calendar.closes[:2]:
            for each in (deployment, undisturbed):
                each.now = close - 1.0
                for name in plan.silos:
                    silo = each.processes[name]
                    silo.reward(silo.decide(ROWS).id, 0.5)
                each.now += 1.0
            undisturbed.settle()
            for _ in range(4):
                assert not any([dialer.round() for dialer in dialers])
    for name in plan.silos:
        model, wanted = (each.processes[name].party.model for each in (deployment, undisturbed))
        assert model.release == wanted.release == 2
        assert model.theta.tolist() == wanted.theta.tolist()


def test_addresses_without_tls_are_of_this_machine_alone():
    plan = federation.deployed()
    deployment = federation.Federation(plan)
    with pytest.raises(InputError, match="https://"):
        Dialer(deployment.processes["silo0"], "http://hub.example.org")
    with pytest.raises(InputError, match="needs TLS"):
        serve(deployment.processes["hub"], "0.0.0.0", 8443)
    with pytest.raises(InputError, match="not the hub"):
        serve(deployment.processes["silo0"], "127.0.0.1", 8443)
    trouble = Dialer(deployment.processes["silo0"], "http://127.0.0.1:9").round()
    assert "cannot be reached" in trouble


def test_an_application_talks_through_a_socket_of_its_own(tmp_path):
    deployment = federation.Federation(federation.deployed())
    silo, path = deployment.processes["silo0"], tmp_path / "silo.sock"
    path.write_text("left behind")
    with Application(silo, path) as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        assert path.stat().st_mode & 0o777 == 0o600
        client = Client(path)
        decision = client.call("decide", actions=ROWS, subject="ada")
        assert decision["learns"] and decision["propensity"] == 1.0
        assert client.call("reward", id=decision["id"], reward=0.5)["open_decisions"] == 0
        with pytest.raises(InputError, match="no decision"):
            client.call("reward", id="x", reward=0.5)
        with pytest.raises(InputError, match="there is no /model"):
            client.call("model")
        with pytest.raises(InputError, match="reward must be a finite number"):
            client.call("reward", id=client.call("decide", actions=ROWS)["id"], reward="good")
        application.shutdown()
    with pytest.raises(OSError):
        client.call("status")
    assert answers(silo, "/leave", {})["stopped"] == "the silo has left"


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        (
            "/decide",
            {"actions": ROWS, "subjct": "ada"},
            'unknown key "subjct"; did you mean "subject"',
        ),
        (
            "/decide",
            {"actions": ROWS, "subject": ""},
            "subject must be a whole number, or a text of printable characters",
        ),
        (
            "/decide",
            {"actions": ROWS, "subject": ["ada"]},
            "subject must be a whole number, or a text",
        ),
        (
            "/decide",
            {"actions": ROWS, "subject": True},
            "subject must be a whole number, or a text",
        ),
        ("/reward", {"id": "x", "rewrad": 1.0}, 'unknown key "rewrad"; did you mean "reward"'),
        ("/reward", {"reward": 1.0}, "/reward needs id"),
        ("/cancel", {"id": 7}, "/cancel needs id"),
        ("/status", {"id": "x"}, "/status takes no keys"),
    ],
)
def test_an_invalid_call_of_an_application_is_refused_with_the_reason(path, given, message):
    silo = federation.Federation(federation.deployed()).processes["silo0"]
    with pytest.raises(InputError, match=message):
        answers(silo, path, given)
    assert silo.party.status()["open_decisions"] == 0


def test_a_person_may_be_a_number():
    silo = federation.Federation(federation.deployed()).processes["silo0"]
    assert answers(silo, "/decide", {"actions": ROWS, "subject": 17})["learns"]
    assert not answers(silo, "/decide", {"actions": ROWS, "subject": "17"})["learns"]


def test_a_client_says_what_it_cannot_send_or_reach(tmp_path):
    with pytest.raises(InputError, match="give numbers, text and lists"):
        Client(tmp_path / "none").decide(actions={1, 2})
    with pytest.raises(FileNotFoundError, match="is `fastfed silo` running there"):
        Client(tmp_path / "none").call("status")


@pytest.mark.parametrize("files", [("no", None), ("no", "no")])
def test_files_that_are_no_certificates_are_refused(files, tmp_path):
    pytest.importorskip("uvicorn")
    deployment, path = federation.Federation(federation.deployed()), tmp_path / "no"
    path.write_text("no certificate")
    cert, key = (str(tmp_path / file) if file else None for file in files)
    with pytest.raises(InputError, match="must be PEM files of a certificate"):
        serve(deployment.processes["hub"], "0.0.0.0", 8443, cert, key)
    with pytest.raises(InputError, match="must be PEM files of a certificate"):
        Dialer(deployment.processes["silo0"], "https://127.0.0.1:9", cert)


def test_a_file_that_may_not_grow_stops_nothing_for_good(tmp_path):
    """SQLite reports a full disk because of a page limit: the silo reports it and continues."""
    deployment = federation.Federation(federation.deployed())
    deployment.settle()
    old, hub = deployment.processes["silo0"], deployment.processes["hub"]
    store = SqliteStore(str(tmp_path / "state.sqlite"))
    silo = SiloProcess(old.party, store, old.ledger, lambda: deployment.now)
    dialer, problems, stop = Dialer(silo, "http://127.0.0.1:9"), [], threading.Event()
    dialer._post = lambda data: [m.data for m in hub.handle(data)[1] if m.to == "silo0"]

    def limit(pages):
        """Limit the file to this number of pages."""
        store._db.execute(f"PRAGMA max_page_count = {pages}")

    with Application(silo, tmp_path / "silo.sock") as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        client = Client(tmp_path / "silo.sock", wait=0)
        limit(1)
        with pytest.raises(OSError, match="nothing was stored: database or disk is full"):
            for _ in range(100):
                client.call("decide", actions=ROWS, subject="x" * 100)
        deployment.now = deployment.plan.document.calendar.closes[0] + 0.0

        def note_problem(text):
            """Note a problem that the dialer reports, and let the file grow again."""
            problems.append(text)
            limit(100000)

        class UntilSealed:
            is_set = stop.is_set

            @staticmethod
            def wait(_):
                if silo.party.sealed:
                    stop.set()

        dialer.run(UntilSealed, 0.0, note_problem)
        assert problems == ["database or disk is full"] and list(silo.party.sealed) == [1]
        assert (1, 0) in hub.party.reports
        assert client.call("decide", actions=ROWS)["model"] == 0
        application.shutdown()
    store.close()


def toml(home):
    """Return a spec of three silos whose keys are in folders."""
    keys = {name: folders.make_keys(home / name) for name in ("hub", "a", "b", "c")}
    lines = ["norm = 1.0", "[federation]", 'name = "test"', "least = 2", "[system]"]
    lines += ["horizon = 20", "batch_size = 5", "epsilon = 1.0", "delta = 1e-6", "[calendar]"]
    lines += ["start = 2030-01-01T00:00:00Z", "period = 86400", "[hub]"]
    lines += [f'{key} = "{value}"' for key, value in keys["hub"].items()]
    for name in "abc":
        lines += ["[[silos]]", f'name = "{name}"']
        lines += [f'{key} = "{value}"' for key, value in keys[name].items()]
    for name in ("age", "dose"):
        lines += ["[[columns]]", f'name = "{name}"']
    (home / "spec.toml").write_text("\n".join(lines))
    return str(home / "spec.toml")


def test_keys_are_printed_again(tmp_path):
    run, folder = CliRunner().invoke, str(tmp_path / "north")
    first = run(cli, ["deploy", "keys", folder])
    secret = (tmp_path / "north" / "secret").read_bytes()
    second = run(cli, ["deploy", "keys", folder])
    assert first.exit_code == second.exit_code == 0 and first.stdout == second.stdout
    assert "never replaced" in second.stderr and not first.stderr
    assert (tmp_path / "north" / "secret").read_bytes() == secret


def test_a_warning_says_that_a_calendar_is_over(tmp_path):
    run = CliRunner().invoke
    spec, plan = toml(tmp_path), str(tmp_path / "plan")
    early = run(cli, ["deploy", "new", spec, plan])
    assert early.exit_code == 0 and not early.stderr
    text = Path(spec).read_text()
    Path(spec).write_text(text.replace("2030-01-01", "2020-01-01"))
    late = run(cli, ["deploy", "new", spec, plan + "2"])
    joined = run(cli, ["deploy", "join", str(tmp_path / "hub"), plan + "2"])
    for found in (late, joined):
        assert found.exit_code == 0
        assert "ended at 2020-01-05T00:00:00Z: the plan learns nothing" in found.stderr


def test_a_dialer_says_when_the_hub_is_back():
    trouble = ["the hub cannot be reached (refused)"] * 3 + ["the hub answered 400: x", "", ""]
    trouble += ["the hub cannot be reached (timed out)", "", ""]
    dialer, printed, stop = object.__new__(Dialer), [], threading.Event()
    dialer.process = None

    def failing_round():
        """Return the next failure of a round, or None; stop after the last."""
        failure = trouble.pop(0)
        if not trouble:
            stop.set()
        return failure

    dialer.round = failing_round
    dialer.run(stop, 0.0, printed.append)
    assert printed == [
        "the hub cannot be reached (refused)", "the hub answered 400: x",
        "the hub cannot be reached (timed out)", "the hub is reached again",
    ]  # fmt: skip


def test_commands_plan_join_and_show(tmp_path):
    run = CliRunner().invoke
    spec, plan = toml(tmp_path), str(tmp_path / "plan")
    result = run(cli, ["deploy", "new", spec, plan])
    assert result.exit_code == 0 and "proven" in result.output
    assert load(plan).digest.hex() in result.output
    with pytest.raises(InputError, match="never replaced"):
        run(cli, ["deploy", "new", spec, plan], catch_exceptions=False, standalone_mode=False)
    result = run(
        cli, ["deploy", "join", str(tmp_path / "a"), plan, "--epsilon", "1", "--delta", "1e-6"]
    )
    assert result.exit_code == 0 and result.output.startswith("a agrees to plan")
    assert load(tmp_path / "a" / "plan").signatures.keys() == {"a"}
    with pytest.raises(InputError, match="needs a ceiling"):
        run(
            cli, ["deploy", "join", str(tmp_path / "b"), plan],
            catch_exceptions=False, standalone_mode=False,
        )  # fmt: skip
    assert not (tmp_path / "b" / "plan").exists()
    shown = run(cli, ["ledger", "show", str(tmp_path / "a" / "ledger.sqlite")])
    assert json.loads(shown.output) == [
        {
            "dataset": "records",
            "charges": 0,
            "ceiling_epsilon": 1.0,
            "delta": 1e-6,
            "spent_epsilon": 0.0,
            "ledger": folders.read_note(tmp_path / "a").identity.hex(),
        }
    ]
    result = run(cli, ["ledger", "verify", str(tmp_path / "a")])
    assert result.exit_code == 0 and result.output.startswith("a: no state yet")
    keys_result = run(cli, ["deploy", "keys", str(tmp_path / "d")])
    assert keys_result.exit_code == 0 and keys_result.output.startswith('sign = "')
    with pytest.raises(InputError, match="no party"):
        run(
            cli, ["deploy", "join", str(tmp_path / "d"), plan],
            catch_exceptions=False, standalone_mode=False,
        )  # fmt: skip
    with pytest.raises(InputError, match="holds no plan"):
        folders.opened(tmp_path / "c")


def test_a_ceiling_is_set_before_anything_is_printed(tmp_path, monkeypatch):
    """The ceiling is stored even if the output is closed early, as by `head -1`."""
    spec, plan = toml(tmp_path), tmp_path / "plan"
    compile_plan(Path(spec).read_text()).save(plan)

    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("fastfed.cli.deploy.click.echo", closed)
    ceiling = ["--epsilon", "1", "--delta", "1e-6"]
    result = CliRunner().invoke(cli, ["deploy", "join", str(tmp_path / "a"), str(plan), *ceiling])
    assert result.exit_code == 1
    ledger = Ledger(str(tmp_path / "a" / folders.LEDGER))
    assert ledger.ceiling("records") == (1.0, 1e-6)


def test_the_spec_of_the_page_compiles():
    page = Path(__file__).parents[2] / "docs" / "deployment.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    spec = tomllib.loads(block)
    assert [silo["name"] for silo in spec["silos"]] == ["north"]
    spec["silos"] = federation.spec()["silos"]
    spec["hub"] = federation.spec()["hub"]
    loaded_plan = compile_plan(spec)
    assert loaded_plan.plan.releases == 20 and loaded_plan.certificate.status == "proven"
    assert (
        loaded_plan.document.calendar.closes[0] - loaded_plan.document.calendar.start == 7 * 86400
    )


CHILD = """
import sys, time
from fastfed.deployment import folder
silo = folder.opened(sys.argv[1])
while True:
    decision = silo.decide([[0.5, 0.1], [-0.3, 0.8]])
    silo.reward(decision.id, 0.5)
    print(decision.id, flush=True)
"""


def test_what_was_answered_survives_kill_9(tmp_path):
    """Kill a process three times while it makes decisions as fast as it can."""
    spec, plan = toml(tmp_path), tmp_path / "plan"
    compile_plan(Path(spec).read_text()).save(plan)
    folders.countersign(tmp_path / "a", plan)
    decision_ids = []
    for _ in range(3):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "a")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            lines = [child.stdout.readline() for _ in range(20)]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        # The last line may have been cut off.
        decision_ids += [line.strip() for line in lines if line.endswith("\n")]
    silo = folders.opened(tmp_path / "a")
    assert len(decision_ids) >= 60 and all(
        silo.party.ended[name].reward == 0.5 for name in decision_ids
    )
    assert len(silo.party.decisions) - len(decision_ids) <= 3


def test_hub_and_silo_run_as_commands(tmp_path):
    spec, plan, port = toml(tmp_path), tmp_path / "plan", str(free_port())
    compile_plan(Path(spec).read_text()).save(plan)
    for name in ("hub", "a"):
        folders.countersign(tmp_path / name, plan)
    url, fastfed = f"http://127.0.0.1:{port}", [sys.executable, "-m", "fastfed"]
    hub = subprocess.Popen([*fastfed, "serve", str(tmp_path / "hub"), "--port", port])
    silo = subprocess.Popen(
        [*fastfed, "silo", str(tmp_path / "a"), "--hub", url, "--every", "0.1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        client, until = Client(tmp_path / "a" / "silo.sock"), time.time() + 60
        decision = repeat_until(lambda: client.call("decide", actions=ROWS), until)
        # The calendar begins in years: nothing is learned yet.
        assert decision["learns"] is False and decision["model"] == 0
        while time.time() < until:
            result = CliRunner().invoke(cli, ["deploy", "status", url])
            if result.exit_code == 0 and json.loads(result.output)["joined"]:
                break
            time.sleep(0.1)
        assert json.loads(result.output)["joined"] == ["a"]
        result = CliRunner().invoke(cli, ["ledger", "verify", str(tmp_path / "a")])
        assert result.exit_code == 0 and "chain and sums as they should be" in result.output
        silo.terminate()
        assert silo.wait(20) == 0
    finally:
        for child in (hub, silo):
            child.kill()
            child.wait()
        silo.stderr.close()


def test_help_does_not_load_what_deployments_need():
    code = (
        "import sys; from fastfed.cli import cli\n"
        "try: cli(['deploy', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('scipy', 'cryptography', 'uvicorn') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("own_clocks", [False, True])
def test_the_demonstration_ends_with_the_model_of_a_calm_run(tmp_path, own_clocks):
    """The demonstration kills silos and hub at arbitrary moments."""
    from fastfed.deployment import demo

    report = demo.run(tmp_path, lambda text: None, own_clocks=own_clocks)
    assert report["same"] and report["kills"] == 3 * demo.RELEASES + 1  # and a restored backup
    assert report["released"] == demo.RELEASES and report["decisions"] == 36


def test_a_hub_whose_port_is_taken_says_so_before_it_starts():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=rf"cannot listen on port {port} of 127.0.0.1"):
            check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)


def test_the_days_that_records_are_kept_are_a_number(tmp_path):
    run = CliRunner().invoke(cli, ["silo", str(tmp_path), "--hub", "https://x", "--keep", "30d"])
    assert run.exit_code == 2 and "a number of days from 0 to 36500, such as 30" in run.output


def test_without_grace_the_hub_waits_as_long_as_the_shortest_period(tmp_path):
    import mistakes_deployed

    text = mistakes_deployed.spec(tmp_path).replace("grace = 43200\n", "")
    assert compile_plan(text).document.calendar.grace == 86_400
    dates = "closes = [2027-01-05T00:00:00Z, 2027-01-05T12:00:00Z, 2027-01-07T00:00:00Z]"
    unequal = text.replace("period = 86400", dates).replace("horizon = 200", "horizon = 60")
    calendar = compile_plan(unequal).document.calendar
    assert (calendar.grace, calendar.reward_deadline) == (43_200, 172_800)
