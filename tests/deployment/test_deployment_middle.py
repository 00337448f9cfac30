"""Tests of TLS connections that must fail, and of a man in the middle with a valid certificate."""

import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

import federation
import msgspec
from federation import MASKS
from problems import ordinary_cases
from test_deployment_network import Listening, certificates

from fastfed.deployment import shell
from fastfed.deployment.shell import Dialer

ROWS = [[0.5, 0.1], [-0.3, 0.8]]


def made_files(folder, **keys):
    """Write certificates into a new folder, and return their paths."""
    folder.mkdir()
    return certificates(folder, **keys)


def test_certificates_that_are_not_the_hubs_are_refused(tmp_path):
    """Nothing is sent if the certificate is expired, not yet valid, of another issuer or host."""
    deployment = federation.Federation(federation.deployed())
    ours = made_files(tmp_path / "ours")
    wrong = {
        "expired": made_files(tmp_path / "old", days=(-3, -1)),
        "not yet valid": made_files(tmp_path / "new", days=(1, 2)),
        "address mismatch": made_files(tmp_path / "there", address="10.0.0.9"),
        "(self-signed|unable to get local issuer|certificate verify failed)": made_files(
            tmp_path / "foreign"
        ),
    }
    hub, silo = deployment.processes["hub"], deployment.processes["silo0"]
    for reason, (ca, cert, key) in wrong.items():
        trusted = ours[0] if reason.startswith("(") else ca
        with Listening(hub, ssl_certfile=cert, ssl_keyfile=key) as listening:
            trouble = Dialer(silo, f"https://127.0.0.1:{listening.port}", trusted).round()
        assert "cannot be reached" in trouble
        assert re.search(reason, trouble), trouble
        assert not hub.party.joined
    ca, cert, key = ours
    with Listening(hub, ssl_certfile=cert, ssl_keyfile=key) as listening:
        assert not Dialer(silo, f"https://127.0.0.1:{listening.port}", ca).round()
    assert hub.party.joined == {"silo0"}


class Middle:
    """A man in the middle with a certificate that silos accept; it changes and drops messages."""

    WAYS = ("through", "flip", "flip answer", "drop", "drop answer", "late", "repeat", "swap",
            "swap answer", "old answer", "nothing", "junk")  # fmt: skip

    def __init__(self, hub, files, seed):
        self.hub, self.random, self.calm = hub, random.Random(seed), False
        self.sent, self.answers, self.did = [], [], dict.fromkeys(self.WAYS, 0)
        self.lock = threading.Lock()
        middle = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                with middle.lock:
                    status, body = middle.answer(data)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[1], files[2])
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def forward(self, data):
        """Pass a request on to the hub; return its code and answer."""
        request = urllib.request.Request(self.hub + shell.PATH, data)
        try:
            with urllib.request.urlopen(request, timeout=10) as actual:
                return actual.status, actual.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def flipped(self, data):
        """Return the bytes with one random bit flipped."""
        changed_bytes = bytearray(data or b"\0")
        changed_bytes[self.random.randrange(len(changed_bytes))] ^= 1 << self.random.randrange(8)
        return bytes(changed_bytes)

    def answer(self, data):
        """Answer a request in a way that is drawn from WAYS."""
        way = "through" if self.calm else self.random.choice(self.WAYS)
        self.did[way] += 1
        self.sent.append(data)
        other = self.random.choice(self.sent)
        if way == "drop":
            return 502, b""
        if way == "late":
            time.sleep(0.01)
        if way == "repeat":
            self.forward(data)
            self.forward(other)
        status, body = self.forward(
            self.flipped(data) if way == "flip" else other if way == "swap" else data
        )
        self.answers.append(body)
        if way == "flip answer":
            try:
                inside = msgspec.msgpack.decode(body, type=list[bytes])
            except msgspec.DecodeError:
                return status, self.flipped(body)
            return 200, msgspec.msgpack.encode([self.flipped(each) for each in inside])
        if way in ("swap answer", "old answer"):
            # Send an earlier answer, or one to another silo; code 200 makes an error look valid.
            return 200, self.random.choice(self.answers)
        if way == "drop answer":
            return 504, b""
        if way == "nothing":
            return 200, msgspec.msgpack.encode([])
        return (200, self.random.randbytes(50)) if way == "junk" else (status, body)


@pytest.mark.parametrize(
    "protocol",
    ordinary_cases(["silo-ldp", "secure-sum", MASKS], lambda protocol: protocol == "silo-ldp"),
)
def test_a_man_in_the_middle_changes_nothing_and_nothing_is_lost(protocol, tmp_path):
    """In each period let the man in the middle attack, then pass all messages on."""
    plan = federation.deployed(protocol)
    deployment, undisturbed = federation.Federation(plan), federation.Federation(plan)
    hub, sent = deployment.processes["hub"], set()
    files = certificates(tmp_path)
    with (
        Listening(hub) as listening,
        Middle(f"http://127.0.0.1:{listening.port}", files, 7) as middle,
    ):
        others = [process for name, process in deployment.processes.items() if name != "hub"]
        dialers = [Dialer(process, middle.url, files[0]) for process in others]
        undisturbed.settle()
        for close in plan.document.calendar.closes[:2]:
            for each in (deployment, undisturbed):
                each.now = close - 1.0
                for name in plan.silos:
                    silo = each.processes[name]
                    silo.reward(silo.decide(ROWS).id, 0.5)
                each.now += 1.0
            undisturbed.settle()
            middle.calm = False
            for _ in range(9):
                for dialer in dialers:
                    dialer.round()
            middle.calm = True
            for _ in range(6):
                for dialer in dialers:
                    dialer.round()
        sent |= set(middle.sent)
    # The hub stores only messages that parties sent or that it made.
    party = hub.party
    assert {*party.reports.values(), *party.answers.values()} <= sent
    wanted = undisturbed.processes["hub"].party
    assert party.broadcasts == wanted.broadcasts and party.reports == wanted.reports
    assert party.broadcasts.keys() == {1, 2} and not party.alarms
    for name in plan.silos:
        silo_party = deployment.processes[name].party
        assert not silo_party.alarms and not silo_party.lost and not silo_party.stopped
        assert silo_party.model.release == 2
        assert (
            silo_party.model.theta.tolist()
            == undisturbed.processes[name].party.model.theta.tolist()
        )
    assert min(middle.did[way] for way in Middle.WAYS) > 2
