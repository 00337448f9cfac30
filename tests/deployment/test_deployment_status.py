"""The status page, `deploy status` of folders, and what parties say while they run."""

import hashlib
import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

import federation
from click.testing import CliRunner
from federation import ROWS, deployed, period, served

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import observe, plans, status_page
from fastfed.deployment.application import Application
from fastfed.deployment.demo import free_port
from fastfed.deployment.observe import PlainLog, metrics_text
from fastfed.deployment.progress import WAITS
from fastfed.deployment.shell import HubApp
from fastfed.deployment.status import LABEL, WIDTH, duration, facts_of, text_of
from fastfed.deployment.status_page import CSS, StatusPage, html_of
from fastfed.deployment.store import Write

ROOT = Path(__file__).parents[2]
#: Elements and attributes that the page may have.
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "strong",
    "section", "svg", "rect", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td",
    "details", "summary", "pre", "footer", "code",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "name", "content", "http-equiv", "class", "viewbox", "preserveaspectratio",
    "role", "aria-label", "width", "height", "scope", "tabindex",
}  # fmt: skip


class Page(HTMLParser):
    """A parsed page: its elements, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.attributes, self.parts = set(), set(), []
        self.feed(html)
        assert self.elements <= ELEMENTS, self.elements - ELEMENTS
        assert self.attributes <= ATTRIBUTES, self.attributes - ATTRIBUTES

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.parts += [f" {value} " for name, value in attrs if name == "aria-label"]
        self.parts.append(" ")

    def handle_data(self, data):
        self.parts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.parts).replace(CSS, "").split())


def status_text(deployment, name, **more):
    """Return the text of a party's status page."""
    return Page(html_of(facts_of(deployment.processes[name]) | {"per_minute": None} | more)).text


def running(protocol="silo-ldp", **keys):
    """Return a federation that all parties have joined."""
    deployment = federation.Federation(deployed(protocol, **keys))
    deployment.settle()
    return deployment


# ---- what the page says --------------------------------------------------------------------------


def test_the_page_of_a_hub_says_who_is_waited_for_and_since_when():
    deployment = running()
    period(deployment, 1)
    deployment.processes.pop("silo2")
    served(deployment, 2, ["silo0", "silo1"])
    deployment.settle()
    closed, deployment.now = deployment.now, deployment.now + 40.0
    text = status_text(deployment, "hub")
    row = WAITS["hub"]["reports"]
    assert f"Waits for {row.what} For: silo2 Since: {observe.utc(closed)} (40 s ago)" in text
    assert f"What to do: {row.do}" in text and "1 of 4 releases are out" in text
    assert f"The next was due {observe.utc(closed)} (40 s ago)" in text
    assert deployment.plan.digest.hex() in text and 'hub of "tests"' in text
    assert "silo0 release 2 40 s ago" in text and "silo2 release 1 2 min ago" in text
    assert "status proven" in text and "Something is wrong" not in text


def test_the_page_of_a_hub_names_its_helper_and_capped_reports():
    deployment = running("secure-sum")
    period(deployment, 1)
    assert "helper (helper) sum 1 0 s ago" in status_text(deployment, "hub")
    capped = running(federation={"name": "tests", "least": 2, "influence": 0.01})
    period(capped, 1)
    hub = capped.processes["hub"].party
    hub.capped["silo1"] = {1, 2}
    assert re.search(r"silo1 release 1 0 s ago 2 ", status_text(capped, "hub"))
    assert "Capped" not in status_text(deployment, "hub")


def test_a_hub_that_was_started_again_has_no_contact_yet():
    deployment = running()
    period(deployment, 1)
    hub = deployment.processes["hub"].party
    restarted = type(hub)(deployment.plan, federation.secret("hub"))
    for write in deployment.processes["hub"].store.writes():
        restarted.fold(write)
    assert restarted.contacts == {} and restarted.last_reports() == hub.last_reports()
    assert hub.last_reports() == dict.fromkeys(deployment.plan.silos, 1)
    assert set(hub.contacts) >= set(deployment.plan.silos)


def test_the_page_of_a_silo_says_what_is_spent_and_what_it_did():
    deployment = running()
    silo = deployment.processes["silo0"]
    served(deployment, 1)
    deployment.now -= 5.0
    silo.reward(silo.decide([[1.0, 1.0]]).id, 1.5)
    silo.decide(ROWS)
    deployment.now += 5.0
    deployment.settle()
    spent = deployment.ledgers["silo0"].epsilon("records")
    text = status_text(deployment, "silo0", per_minute=12.34)
    for part in (
        'silo0, silo of "tests"',
        f"epsilon {spent:.4g} spent of 1, at delta 1e-06",
        "Decisions 3 Open, without a reward 1 Ended by a reward or without 2",
        "Decisions a minute 12.3",
        "Records with clipped features 1 Records with a clipped reward 1",
        "Reports made 1 Releases without a report 0 Reports lost 0",
        "Waits for the end of the period",
        "1 of 4 releases are out The next is due",
    ):
        assert part in text, part
    assert "Decisions a minute not known yet" in status_text(deployment, "silo0")
    width = re.findall(r'<rect width="([0-9.]+)"', html_of(facts_of(silo)))
    assert width == ["100", "25.00", "100", f"{100 * spent:.2f}"]


def test_the_page_names_what_is_wrong():
    deployment = running()
    silo, hub = deployment.processes["silo0"], deployment.processes["hub"]
    silo.problem = "release 2 is more than the ceiling of the budget allows"
    hub.party.fold(Write("alarm", "two reports", b"silo1 has sent two reports"))
    hub.party.fold(Write("ended", "", b"entry 3 beyond what 213 allows: -1042.5"))
    assert f"Something is wrong {silo.problem}" in status_text(deployment, "silo0")
    text = status_text(deployment, "hub")
    # The reason of an end may quote a sum.
    assert "two reports entry # beyond what # allows: #" in text and "1042" not in text
    silo.leave()
    assert "Something is wrong the silo has left" in status_text(deployment, "silo0")


def test_a_page_says_that_a_clock_is_ignored():
    deployment = running()
    for name in ("hub", "silo1"):
        process = deployment.processes[name]
        process.clock = type("Off", (), {"off": 99.0, "__call__": lambda self: deployment.now})()
        assert "this machine's clock differs" in status_text(deployment, name)


def test_when_all_releases_are_out_nothing_is_due():
    deployment = running()
    for release in range(1, 5):
        period(deployment, release)
    for name in ("hub", "silo1"):
        text = status_text(deployment, name)
        assert "All releases are out What to do: " in text and "4 of 4 releases" in text
        assert "The next" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (3600, "1 h"), (11523, "3 h 12 min"), (86405, "1 d"),
     (187200, "2 d 4 h"), (-5, "0 s")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


# ---- hostile texts, and values -------------------------------------------------------------------

HOSTILE = "</p><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;\u202e\x1b[31m\n"


def test_texts_from_outside_are_escaped():
    # The title of a plan has no control characters; alarms and the like may have any.
    title = HOSTILE[: HOSTILE.index("\u202e")]
    deployment = running(federation={"name": title, "least": 2})
    deployment.now += 110.0
    facts = facts_of(deployment.processes["hub"])
    assert facts["federation"] == title and facts["waits"]["who"] == list(deployment.plan.silos)
    facts["silos"][0]["name"] = facts["waits"]["who"][0] = HOSTILE
    facts |= {"troubles": [HOSTILE], "certificate": HOSTILE}
    silo = facts_of(deployment.processes["silo0"]) | {"party": HOSTILE, "troubles": [HOSTILE]}
    silo["budget"]["dataset"] = HOSTILE
    for each in (facts, silo):
        page = html_of(each)
        # `Page` refuses other elements and attributes.
        assert "<script>alert(1)</script>" in Page(page).text and "<script" not in page
        assert "\u202e" not in page.split("<pre")[0] and "\x1b" not in page.split("<pre")[0]
        text = text_of(each | {"runs": True, "started": True, "folder": "x"})
        assert max(map(len, text.split("\n"))) <= WIDTH
        assert "\u202e" not in text and "\x1b" not in text


FEATURES, REWARD, SUBJECT = [[0.12347, 0.56789], [-0.34567, 0.45671]], 0.87653, "Ada Lovelace"


def check_no_value(text, ids):
    """Check that a text holds no value of a record and no id of a decision."""
    for value in (*(abs(x) for row in FEATURES for x in row), REWARD):
        for digits in (3, 4, 5):
            assert f"{value:.{digits}f}" not in text, value
    assert SUBJECT not in text and "Lovelace" not in text
    assert not any(name in text for name in ids)


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", "shuffle-vector"])
def test_the_page_has_no_value_of_a_record_at_any_state(protocol):
    """No value of a record appears on the page, in the text or in the log, in any state."""
    deployment, ids, stream = running(protocol), [], io.StringIO()
    logs = {name: PlainLog(stream, name, lambda: deployment.now) for name in deployment.processes}
    states = set()

    def look():
        """Check the page, the text and the log of every party."""
        for name, process in deployment.processes.items():
            facts = facts_of(process)
            states.add((facts["kind"], facts["waits"]["state"]))
            if facts["kind"] != "helper":
                check_no_value(Page(html_of(facts)).text, ids)
            folder = {"folder": name, "runs": True, "started": True}
            check_no_value(text_of(facts | folder), ids)
            check_no_value(json.dumps({k: v for k, v in facts.items() if k != "plan"}), ids)
            logs[name].look(process)

    look()
    for release in (1, 2):
        deployment.now = deployment.plan.document.calendar.closes[release - 1] - 5.0
        for name in deployment.plan.silos:
            silo = deployment.processes[name]
            ids.append(silo.decide(FEATURES, f"{SUBJECT} {release} {name}").id)
            look()
            silo.reward(ids[-1], REWARD)
            ids.append(silo.decide(FEATURES).id)
            look()
        deployment.now += 5.0
        absent_silo = deployment.processes.pop("silo2")
        deployment.settle()
        deployment.now += 45.0
        look()
        deployment.add(absent_silo)
        deployment.settle()
        look()
    deployment.processes["silo2"].cancel(ids[-1])
    deployment.processes["silo1"].leave()
    look()
    check_no_value(stream.getvalue(), ids)
    assert "waiting for" in stream.getvalue() and "release 1 is out" in stream.getvalue()
    assert {("hub", "open"), ("silo", "open"), ("silo", "release"), ("silo", "stopped")} <= states


# ---- the server ----------------------------------------------------------------------------------


@contextmanager
def serving(process):
    """Serve the status page of a process until the end of the block."""
    server = StatusPage(process, 0)
    server.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def request_page(server, path="/", method="GET", host=None, body=None):
    """Return (code, headers, body) of a request to a status page."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, body, {"host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


@pytest.mark.parametrize("name", ["hub", "silo0"])
def test_the_page_is_served_to_this_machine_alone_and_changes_nothing(name):
    deployment = running()
    period(deployment, 1)
    process = deployment.processes[name]
    before = list(process.store.writes())
    with serving(process) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, page = request_page(server)
        assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
        assert f"<h1>{name}</h1>" in page and '<meta http-equiv="refresh" content="30">' in page
        policy = headers["content-security-policy"]
        (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
        style_hash = b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.startswith(f"default-src 'none'; style-src 'sha256-{style_hash}';")
        assert "unsafe" not in policy and "script" not in policy
        for header, value in (
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ):
            assert headers[header] == value
        # Nothing is loaded from anywhere.
        assert "http://" not in page and "https://" not in page and "url(" not in page
        status, _, text = request_page(server, "/metrics")
        kind = "hub" if name == "hub" else "silo"
        assert status == 200 and f"fastfed_{kind}_released 1" in text
        for path in ("/status", "/leave", "/recover", "/?x=1", "/../secret", "/index.html"):
            assert request_page(server, path)[0] == 404, path
        for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
            status, headers, _ = request_page(server, "/", method, body=b"{}")
            assert (status, headers["allow"]) == (405, "GET"), method
        # DNS rebinding: a web page whose host name points to this machine.
        assert request_page(server, host="evil.example.org")[0] == 404
        assert request_page(server, host="localhost:9100")[0] == 200
    assert list(process.store.writes()) == before


def test_many_connections_that_send_nothing_do_not_stop_the_page():
    deployment = running()
    with serving(deployment.processes["silo0"]) as server:
        connections = [
            socket.create_connection(("127.0.0.1", server.server_port), 10) for _ in range(100)
        ]
        begin = time.monotonic()
        assert request_page(server)[0] == 200 and time.monotonic() - begin < 5.0
        assert threading.active_count() < 80
        for connection in connections:
            connection.close()


def test_a_page_is_of_a_hub_or_a_silo_and_needs_a_free_port():
    deployment = running("secure-sum")
    with pytest.raises(InputError, match="of a hub or a silo"):
        StatusPage(deployment.processes["helper"], 0)
    with (
        serving(deployment.processes["hub"]) as server,
        pytest.raises(InputError, match=f"port {server.server_port} .*: choose another"),
    ):
        StatusPage(deployment.processes["silo0"], server.server_port)


def test_the_pace_of_decisions_is_that_of_the_last_minutes(monkeypatch):
    deployment, now = running(), [1000.0]
    monkeypatch.setattr(status_page.time, "monotonic", lambda: now[0])
    silo = deployment.processes["silo0"]
    silo.decide(ROWS)
    with serving(silo) as server:
        server.shutdown()
        assert server.per_minute() is None
        for _ in range(60):
            now[0] += 10.0
            silo.decide(ROWS)
            server.service_actions()
        assert server.per_minute() == pytest.approx(6.0)
        for _ in range(31):
            now[0] += 10.0
            server.service_actions()
        assert server.per_minute() == 0.0
        assert len(server._counts) == 31


# ---- a browser -----------------------------------------------------------------------------------


def test_the_page_fits_a_phone_and_loads_nothing_else():
    """Skip the test if no browser is installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser")
    deployment = running(federation={"name": "x" * 200, "least": 2})
    period(deployment, 1)
    for name in ("hub", "silo0"):
        with serving(deployment.processes[name]) as server, playwright.sync_playwright() as play:
            started = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            for width in (390, 1280):
                page = started.new_page(viewport={"width": width, "height": 800})
                requests, console = [], []
                page.on("request", lambda request, found=requests: found.append(request.url))
                page.on("console", lambda message, found=console: found.append(message.text))
                page.goto(f"http://127.0.0.1:{server.server_port}/")
                page.locator("summary").click()
                inner = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert inner[0] <= inner[1] == width and page.locator("pre").is_visible()
                assert len(requests) == 1 and console == []
                # The style sheet is applied, so its hash in the policy is right.
                assert page.evaluate("getComputedStyle(document.querySelector('svg')).width")
                assert (
                    page.evaluate("getComputedStyle(document.querySelector('.cards')).display")
                    == "grid"
                )
            started.close()


# ---- deploy status of a folder -------------------------------------------------------------------


def site(home, protocol="secure-sum", start="2020-01-01T00:00:00Z"):
    """Make folders of two silos, a hub and perhaps a helper, which have joined one plan."""
    names = ("silo0", "silo1", "hub", *(("helper",) if protocol == "secure-sum" else ()))
    keys = {name: folders.make_keys(home / name) for name in names}
    spec = federation.spec(protocol, silos=2, federation={"name": "wound care", "least": 2})
    spec |= {"silos": [{"name": n, **keys[n]} for n in names[:2]], "hub": keys["hub"]}
    spec |= {"helper": keys["helper"]} if "helper" in keys else {}
    plans.compile_plan(spec).save(home / "plan")
    for name in names:
        ceiling = (1.0, 1e-6) if name.startswith("silo") else None
        folders.join(home / name, home / "plan", ceiling)
    return names


def files(folder):
    """Return the content and the time of change of every file of a folder."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


def status(folder, *options, code=0):
    """Run `deploy status` on a folder; check that it changes no file and cuts no line."""
    before = files(Path(folder)) if Path(folder).is_dir() else {}
    result = CliRunner().invoke(cli, ["deploy", "status", str(folder), *options])
    assert result.exit_code == code, (result.output, result.exception)
    if before:
        assert files(Path(folder)) == before
    for line in result.stdout.split("\n"):
        # A single word, such as a long path, is never cut.
        assert len(line) <= WIDTH or options or len(line[LABEL:].split()) == 1
    return result.stdout if code == 0 else str(result.exception or result.output)


def test_status_of_folders_that_were_never_started(tmp_path):
    for name in site(tmp_path):
        text = status(tmp_path / name)
        kind = name.rstrip("01")
        who = kind if name == kind else f"{name}, {kind}"
        assert text.startswith(f'party      {who} of "wound care"\n')
        assert "runs       no, it has never been started" in text
        assert "releases   0 of 4; the next was due 1970-01-01 00:18 UTC" in text
        command = f"fastfed {'serve' if kind == 'hub' else kind}"
        assert f"start it: {command}" in text and "waits for" not in text
        assert ("budget     epsilon 0 spent of 1, at delta 1e-06" in text) == (kind == "silo")
        as_json = json.loads(status(tmp_path / name, "--json"))
        assert (as_json["runs"], as_json["started"], as_json["waits"]) == (False, False, None)
        assert as_json["certificate"].startswith("Privacy certificate")


def test_status_of_folders_that_run_and_have_stopped(tmp_path):
    names = site(tmp_path)
    running = {name: folders.opened(tmp_path / name) for name in names}
    for process in running.values():
        process.clock = lambda: 1000.0
    deployment = federation.Federation.__new__(federation.Federation)
    deployment.processes = running
    deployment.settle()
    silo = running["silo0"]
    silo.decide(ROWS)
    silo.reward(silo.decide(ROWS).id, 0.5)
    for process in running.values():
        process.clock = lambda: 1110.0
    deployment.processes = {name: p for name, p in running.items() if name != "silo1"}
    deployment.settle()
    with Application(silo, tmp_path / "silo0" / "silo.sock") as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        text = status(tmp_path / "silo0")
        assert "runs       yes" in text and "decisions  2, of which 1 are open" in text
        assert f"waits for  {WAITS['silo']['release'].what}: hub, since 1970-01-01 00:18" in text
        assert f"epsilon {silo.party.ledger.epsilon('records'):.4g} spent of 1" in text
    text = " ".join(status(tmp_path / "hub").split())
    assert "runs yes" in text and "report silo0: release 1 report silo1: none yet" in text
    assert f"waits for {WAITS['hub']['too-few'].what}: silo1, since" in text
    assert f"to do {WAITS['hub']['too-few'].do}" in text
    text = " ".join(status(tmp_path / "helper").split())
    assert "runs yes" in text and f"waits for {WAITS['helper']['set'].what}: hub, since" in text
    for process in running.values():
        process.close()
    for name in names:
        text = status(tmp_path / name)
        assert "runs       no\n" in text and "to do      start it: fastfed" in text
    facts = json.loads(status(tmp_path / "silo0", "--json"))
    assert facts["numbers"]["decisions"] == 2 and facts["budget"]["spent"] > 0
    assert "theta" not in facts and str(ROWS[0][0]) not in facts["numbers"]


def test_status_of_damaged_folders(tmp_path):
    site(tmp_path)
    for name in ("silo0", "silo1", "hub"):
        folders.opened(tmp_path / name).close()
    (tmp_path / "hub" / "state.sqlite").write_bytes(b"no database at all" * 100)
    result = CliRunner().invoke(cli, ["deploy", "status", str(tmp_path / "hub")])
    assert result.exit_code == 2 and "state.sqlite is no SQLite file" in result.output
    # A lost or damaged ledger is reported; everything else is still shown.
    ledger = tmp_path / "silo0" / "ledger.sqlite"
    ledger.write_bytes(b"no database at all" * 100)
    text = " ".join(status(tmp_path / "silo0").split())
    assert "trouble" in text and "ledger.sqlite is no SQLite file" in text
    assert "budget no ceiling is set" not in text and "budget not known" in text
    for path in (tmp_path / "silo1").glob("ledger.sqlite*"):
        path.unlink()
    text = " ".join(status(tmp_path / "silo1").split())
    assert "there is no ledger at" in text and "runs no" in text
    assert not list((tmp_path / "silo1").glob("ledger*"))
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(cli, ["deploy", "status", str(tmp_path / "empty")])
    assert result.exit_code == 2 and "holds no plan; join one first" in result.output
    (tmp_path / "all" / "north").mkdir(parents=True)
    (tmp_path / "all" / "north" / "plan").touch()
    result = CliRunner().invoke(cli, ["deploy", "status", str(tmp_path / "all")])
    assert result.exit_code == 2 and "(folders of parties in it: north)" in result.output
    result = CliRunner().invoke(cli, ["deploy", "status", str(tmp_path / "nothing")])
    assert result.exit_code == 2 and "there is no folder" in result.output


def test_a_system_without_a_list_of_locks(tmp_path, monkeypatch):
    site(tmp_path)
    folders.opened(tmp_path / "hub").close()
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text",
        lambda self, **keys: (_ for _ in ()).throw(FileNotFoundError())
        if str(self) == "/proc/locks" else read(self, **keys),
    )  # fmt: skip
    assert folders.in_use(tmp_path / "hub") is None
    text = status(tmp_path / "hub")
    assert "runs       not known on this system" in text and "waits for" in text


# ---- what parties say while they run -------------------------------------------------------------


def test_a_plain_log_has_a_line_for_each_event():
    deployment, stream = running(), io.StringIO()
    hub = deployment.processes["hub"]
    log = PlainLog(stream, "hub", lambda: deployment.now)
    log.start(hub, page="http://127.0.0.1:9100/")
    log.event("listening", address="https://0.0.0.0:8443")
    log.look(hub)

    def lines():
        """Return the lines since the last call."""
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text.splitlines()

    digest = deployment.plan.digest.hex()
    assert lines() == [
        f'hub of "tests"; plan {digest}, release 0 of 4',
        "the status page is http://127.0.0.1:9100/",
        "listening on https://0.0.0.0:8443",
    ]
    period(deployment, 1)
    log.look(hub)
    log.look(hub)
    assert lines() == ["release 1 is out"]
    absent_silos = [deployment.processes.pop(name) for name in ("silo1", "silo2")]
    served(deployment, 2, ["silo0"])
    deployment.settle()
    since = observe.utc(deployment.now)
    log.look(hub)
    # A wait that has just begun is not logged.
    assert lines() == []
    deployment.now += 31.0
    log.look(hub)
    row = WAITS["hub"]["reports"]
    logged = lines()
    assert logged == [f"waiting for {row.what}: silo1, silo2, since {since}; what to do: {row.do}"]
    deployment.add(absent_silos[0])
    deployment.settle()
    deployment.now += 10.0
    log.look(hub)
    # Within a minute after a wait was logged, a change of the wait is not logged.
    assert lines() == []
    deployment.now += 51.0
    log.look(hub)
    (line,) = lines()
    assert line.startswith(f"waiting for {WAITS['hub']['too-few'].what}: silo2, since {since}")
    deployment.settle()
    log.look(hub)
    assert lines() == ["release 2 is out"]
    hub.party.fold(Write("alarm", "x", b"a hostile text 4711"))
    log.look(hub)
    logged = lines()
    assert "alarms: 1; the status has their texts" in logged and "4711" not in "".join(logged)


def test_a_silo_says_what_it_seals_and_where_it_can_be_found():
    deployment, stream = running(), io.StringIO()
    silo = deployment.processes["silo0"]
    log = PlainLog(stream, "silo0", lambda: deployment.now)
    log.start(silo, socket="/data/silo.sock", hub="https://hub:8443")
    period(deployment, 1)
    log.look(silo)
    log("the hub cannot be reached (timed out)")
    silo.leave()
    log.look(silo)
    assert stream.getvalue().splitlines()[1:] == [
        "the socket of the application is /data/silo.sock",
        "the hub is https://hub:8443",
        "the report of release 1 is sealed",
        "release 1 is out",
        "the hub cannot be reached (timed out)",
        "nothing is sent any more; the status says why",
    ]


def test_a_log_that_cannot_be_written_or_read_stops_nothing(monkeypatch):
    deployment, stream = running(), io.StringIO()
    log = PlainLog(stream, "hub", lambda: deployment.now)
    monkeypatch.setattr(deployment.processes["hub"].party, "waits", lambda now: 1 / 0)
    for _ in range(3):
        log.look(deployment.processes["hub"])
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("program error, please report it: ZeroDivisionError in")
    stream.close()
    log("more")
    log.event("listening", address="x")


def test_a_full_disk_of_the_hub_is_a_line_a_minute(monkeypatch):
    deployment, stream = running(), io.StringIO()
    log = PlainLog(stream, "hub", lambda: deployment.now)
    app = HubApp(deployment.processes["hub"], log)
    monkeypatch.setattr(app, "answer", lambda data: (_ for _ in ()).throw(OSError(28, "disk full")))
    for _ in range(3):
        assert app._answer_logged(b"x")[0] == 503
    assert len(stream.getvalue().splitlines()) == 1 and "disk full" in stream.getvalue()
    deployment.now += 61.0
    app._answer_logged(b"x")
    assert len(stream.getvalue().splitlines()) == 2
    # Messages of strangers do not appear in the log.
    monkeypatch.undo()
    assert app._answer_logged(b"x")[0] == 400 and len(stream.getvalue().splitlines()) == 2


def test_commands_serve_pages_and_say_where(tmp_path):
    site(tmp_path, "silo-ldp")
    ports = [free_port() for _ in range(4)]
    command = [sys.executable, "-P", "-m", "fastfed"]
    hub = [*command, "serve", str(tmp_path / "hub"), "--port", str(ports[0])]
    hub += ["--page", str(ports[1])]
    silos = [
        [*command, "silo", str(tmp_path / name), "--hub", f"http://127.0.0.1:{ports[0]}",
         "--every", "0.1", "--page", str(page), "--metrics", str(page)]
        for name, page in (("silo0", ports[2]), ("silo1", ports[3]))
    ]  # fmt: skip
    running = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in (hub, *silos)]
    pages, until = {}, time.time() + 180
    try:
        # The calendar is over: four empty releases come at once.
        while time.time() < until and not all("4 of 4" in pages.get(p, "") for p in ports[1:]):
            time.sleep(0.1)
            for port in ports[1:]:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                        pages[port] = answer.read().decode()
                except OSError:
                    pass
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[2]}/metrics") as answer:
            assert "fastfed_silo_released 4" in answer.read().decode()
        assert "runs       yes" in status(tmp_path / "silo0")
        facts = json.loads(status(tmp_path / "hub", "--json"))
        assert facts["runs"] is True and facts["waits"]["state"] == "over"
        busy = subprocess.run(
            [*command, "serve", str(tmp_path / "hub"), "--port", str(ports[0])],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert busy.returncode == 2 and "in use by another process" in busy.stderr
    finally:
        for each in running:
            each.terminate()
        outputs = [each.communicate()[1].splitlines() for each in running]
    assert all("All releases are out" in pages[port] for port in ports[1:])
    assert outputs[0][:3] == [
        f'hub of "wound care"; plan {facts["plan"]}, release 0 of 4',
        f"the status page is http://127.0.0.1:{ports[1]}/",
        f"listening on http://127.0.0.1:{ports[0]}",
    ]
    assert outputs[0][-1] == "release 4 is out"
    assert f"the socket of the application is {tmp_path / 'silo0' / 'silo.sock'}" in outputs[1]
    assert all("release 4 is out" in lines for lines in outputs[1:])
    assert not any("Traceback" in line for lines in outputs for line in lines)
    # A hub has nothing to do after the last release; a silo can still be asked for decisions.
    text = status(tmp_path / "hub")
    assert "runs       no\n" in text and f"waits for  {WAITS['hub']['over'].what}\n" in text
    text = " ".join(status(tmp_path / "silo0").split())
    assert "all releases are out; for decisions with the last model, start it: fastfed silo" in text


# ---- the dashboard -------------------------------------------------------------------------------


def test_the_dashboard_shows_metrics_that_exist():
    deployment = running()
    printed = {
        word
        for name in ("hub", "silo0")
        for word in re.findall(
            r"^(fastfed_\w+) ", metrics_text(deployment.processes[name]), re.MULTILINE
        )
    }
    board = json.loads((ROOT / "examples" / "deployment" / "grafana.json").read_text())
    queried = [
        set(re.findall(r"fastfed_\w+", target["expr"]))
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(queried) > 20 and all(queried)
    assert set().union(*queried) <= printed
    assert {name.split("_")[1] for name in set().union(*queried)} == {"hub", "silo"}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
