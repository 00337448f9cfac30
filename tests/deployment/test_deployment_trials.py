"""Tests of real processes over days and weeks, with little memory, shared folders or lost states.

A test can skip days: every process reads wall time and monotonic time from a file that the test
writes, so all clocks advance together.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

from fastfed import InputError
from fastfed.deployment import demo
from fastfed.deployment import folder as folders
from fastfed.deployment.calls import call
from fastfed.deployment.client import Client
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import compile_plan

#: Longest real time that a test waits for an event, in seconds.
PATIENCE = 90.0
DAY = 86_400

TRAVEL = """
import os, time
def passed(now):
    def read(*clock):
        try:
            with open(os.environ["FASTFED_DAYS"]) as file:
                return now(*clock) + float(file.read() or 0.0)
        except OSError:
            return now(*clock)
    return read
time.time, time.clock_gettime = passed(time.time), passed(time.clock_gettime)
"""


class Site:
    """The folders and processes of one plan, and the file with their time."""

    def __init__(
        self, home: Path, monkeypatch, protocol="silo-ldp", releases=10, period=DAY, **more
    ):
        self.home, self.children = home, {}
        (home / "travel").mkdir()
        (home / "travel" / "sitecustomize.py").write_text(TRAVEL)
        self.days = home / "days"
        self.days.write_text("0")
        monkeypatch.setenv("PYTHONPATH", str(home / "travel"))
        monkeypatch.setenv("FASTFED_DAYS", str(self.days))
        self.shift, self.period = 0.0, period
        shared = protocol == "secure-sum"
        names = ("hub", *demo.SILOS, *(["helper"] if shared else []))
        keys = {name: folders.make_keys(home / name) for name in names}
        self.start = int(time.time())
        spec = {
            "federation": {"name": "trial", "least": 3 if shared else 2},
            "system": {"horizon": 5 * releases, "batch_size": 5, "protocol": protocol}
            | {"epsilon": 2.0, "delta": 1e-6, **more},
            "calendar": {"start": self.start, "period": period, "grace": period // 4}
            | {"reward_deadline": 30 * period},
            "columns": [{"name": f"x{i}", "low": -0.5, "high": 0.5} for i in range(3)],
            "silos": [{"name": name, **keys[name]} for name in demo.SILOS],
            "hub": keys["hub"],
        }
        self.plan = compile_plan(spec | ({"helper": keys["helper"]} if shared else {}))
        self.plan.save(home / "plan")
        for name in names:
            folders.countersign(home / name, home / "plan")
        for name in demo.SILOS:
            Ledger(str(home / name / folders.LEDGER)).set_ceiling("records", 2.0, 1e-6)
        self.port = demo.free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def run(self, *names):
        """Start parties, or start them again."""
        for name in names:
            arguments = ["serve", "--port", str(self.port)]
            if name != "hub":
                arguments = [
                    "helper" if name == "helper" else "silo",
                    "--hub",
                    self.url,
                    "--every",
                    "0.1",
                ]
            kind, *more = arguments
            self.children[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", "fastfed", kind, str(self.home / name), *more],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )

    def end(self, *names, how=signal.SIGKILL):
        """End processes by a signal."""
        for name in names:
            child = self.children.pop(name)
            child.send_signal(how)
            child.wait(20)
            child.stderr.close()

    def go_to(self, seconds):
        """Set the time to some seconds after the start of the calendar."""
        self.shift = self.start + seconds - time.time()
        self.days.write_text(str(self.shift))

    def status(self, name):
        """Return the status of a party."""
        if name == "hub":
            status, data = call(self.url + "/status", 1 << 20)
            assert status == 200
            return json.loads(data)
        return Client(self.home / name / folders.SOCKET).call("status")

    def until(self, name, condition):
        """Wait until the status of a party meets a condition, and return the status."""
        deadline = time.monotonic() + PATIENCE
        status = None
        while time.monotonic() < deadline:
            with suppress(OSError, InputError):
                status = self.status(name)
                if condition(status):
                    return status
            time.sleep(0.05)
        pytest.fail(f"{name} is not so after {PATIENCE:.0f} s: {status}")

    def patient(self, name):
        """Make one decision of a silo and report its reward."""
        client = Client(self.home / name / folders.SOCKET)
        deadline = time.time() + PATIENCE
        rows = [[0.1, 0.2, 0.3], [0.3, -0.2, 0.1]]
        decision = demo.repeat_until(lambda: client.call("decide", actions=rows), deadline)
        client.call("reward", id=decision["id"], reward=0.5)
        return decision

    def day(self, number, *names):
        """Pass a day with one patient at each of these silos, and then its grace period."""
        self.go_to((number - 0.5) * self.period)
        for name in names:
            self.patient(name)
        self.go_to((number + 0.3) * self.period)


@contextmanager
def site(tmp_path, monkeypatch, **keys):
    """Run the processes of a site until the end of the block."""
    deployment = Site(tmp_path, monkeypatch, **keys)
    try:
        yield deployment
    finally:
        deployment.end(*list(deployment.children))


def released(at_least):
    """Return a condition on the status: at least this many releases."""
    return lambda status: status["released"] >= at_least


def acts_on(release):
    """Return a condition on the status: the silo uses a model of at least this release."""
    return lambda status: status["model"] >= release


def verified(home):
    """Return whether `ledger verify` accepts the ledger of a folder."""
    command = [sys.executable, "-P", "-m", "fastfed", "ledger", "verify", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_silo_that_was_away_for_a_week_is_back_with_the_next_release(tmp_path, monkeypatch):
    with site(tmp_path, monkeypatch) as deployment:
        north, east, south = demo.SILOS
        deployment.run("hub", *demo.SILOS)
        deployment.until("hub", lambda status: len(status["joined"]) == 3)
        deployment.day(1, *demo.SILOS)
        deployment.until(north, acts_on(1))
        deployment.end(north)
        for number in range(2, 9):
            deployment.day(number, east, south)
            waits = deployment.until("hub", released(number))["waits"]
            assert waits["state"] == "open"
        deployment.go_to(8.5 * DAY)
        deployment.run(north)
        away = {str(k) for k in range(2, 9)}
        status = deployment.until(north, lambda status: set(status["without"]) == away)
        assert status["model"] == 8 and not status["stopped"] and not status["lost"]
        deployment.day(9, *demo.SILOS)
        for name in demo.SILOS:
            assert 9 in deployment.until(name, acts_on(9))["sealed"]
        deployment.end(*list(deployment.children))
        assert all(verified(deployment.home / name) for name in ("hub", *demo.SILOS))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["restored", "deleted"])
def test_hub_and_helper_are_both_lost(lost, tmp_path, monkeypatch):
    """Silos send hub and helper the lost messages; the same sets are opened; the plan continues."""
    with site(tmp_path, monkeypatch, protocol="secure-sum", releases=4) as deployment:
        deployment.run("hub", "helper", *demo.SILOS)
        deployment.until("hub", lambda status: len(status["joined"]) == 4)
        for number in (1, 2):
            if number == 2 and lost == "restored":
                deployment.end("hub", "helper")
                for name in ("hub", "helper"):
                    demo._copy_state(deployment.home / name, deployment.home / f"{name}.old")
                deployment.run("hub", "helper")
            deployment.day(number, *demo.SILOS)
            for name in demo.SILOS:
                deployment.until(name, acts_on(number))
        deployment.end("hub", "helper")
        for name in ("hub", "helper"):
            for file in (deployment.home / name).glob(f"{folders.STATE}*"):
                file.unlink()
            if lost == "restored":
                for file in (deployment.home / f"{name}.old").iterdir():
                    shutil.copy(file, deployment.home / name)
        deployment.run("hub", "helper")
        deployment.until("hub", released(2))
        deployment.day(3, *demo.SILOS)
        thetas = [deployment.until(name, acts_on(3))["theta"] for name in demo.SILOS]
        assert thetas[0] == thetas[1] == thetas[2]
        assert not deployment.status("hub")["alarms"]
        deployment.end(*list(deployment.children))
        assert all(verified(deployment.home / name) for name in ("hub", *demo.SILOS))


@pytest.mark.slow
def test_a_party_of_another_plan_is_refused_and_stops_nobody(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with site(tmp_path / "one", monkeypatch) as one:
        other = Site(tmp_path / "other", monkeypatch, epsilon=1.0)
        monkeypatch.setenv("FASTFED_DAYS", str(one.days))
        one.run("hub", *demo.SILOS)
        other.url = one.url
        other.run("north")
        one.until("hub", lambda status: len(status["joined"]) == 3)
        try:
            printed = iter(other.children["north"].stderr.readline, b"")
            assert any(b"the hub answered 400: message is for another" in line for line in printed)
            waits = other.until("north", lambda status: True)["waits"]
            assert waits["state"] == "hub"
            one.day(1, *demo.SILOS)
            one.until("north", acts_on(1))
        finally:
            other.end("north")


def test_a_second_process_in_a_folder_is_refused(tmp_path, monkeypatch):
    with site(tmp_path, monkeypatch) as deployment:
        deployment.run("hub", "north")
        deployment.until("north", lambda status: True)
        deployment.until("hub", lambda status: status["joined"] == ["north"])
        for kind, name in (("silo", "north"), ("serve", "hub")):
            more = (
                ["--hub", deployment.url] if kind == "silo" else ["--port", str(demo.free_port())]
            )
            second = subprocess.run(
                [sys.executable, "-P", "-m", "fastfed", kind, str(deployment.home / name), *more],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert second.returncode == 2 and "Traceback" not in second.stderr
            assert "in use by another process" in second.stderr
        assert deployment.status("north")["stopped"] == ""


def test_a_silo_whose_hub_is_gone_says_so(tmp_path, monkeypatch):
    with site(tmp_path, monkeypatch) as deployment:
        deployment.run("hub", "north")
        deployment.until("north", lambda status: status["waits"]["state"] == "open")
        deployment.end("hub")
        waits = deployment.until("north", lambda status: status["waits"]["state"] == "hub")["waits"]
        assert waits["who"] == ["hub"] and waits["since"] is None
        deployment.go_to(1.5 * DAY)
        waits = deployment.until("north", lambda status: status["waits"]["since"] is not None)[
            "waits"
        ]
        assert waits["state"] == "hub" and waits["since"] == deployment.start + DAY
        deployment.run("hub")
        deployment.until("north", lambda status: status["waits"]["state"] != "hub")


# ---- little memory, little of the processor ------------------------------------------------------

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def group(kind, name, **limits):
    """Return a control group (cgroup v1) with these limits; skip the test if none exists."""
    folder = GROUPS / kind / f"fastfed_{os.getpid()}_{name}"
    try:
        folder.mkdir()
        for file, value in limits.items():
            (folder / f"{kind}.{file}").write_text(str(value))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made here ({error})")
    try:
        yield folder
    finally:
        for _ in range(100):
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@pytest.mark.slow
def test_parties_with_a_tenth_of_a_processor_are_slow_and_nothing_else(tmp_path, monkeypatch):
    with (
        group("cpu", "slow", cfs_period_us=100_000, cfs_quota_us=10_000) as slow,
        site(tmp_path, monkeypatch) as deployment,
    ):
        deployment.run("hub", *demo.SILOS)
        deployment.until("hub", lambda status: len(status["joined"]) == 3)
        for child in deployment.children.values():
            (slow / "cgroup.procs").write_text(str(child.pid))
        for number in (1, 2):
            deployment.day(number, *demo.SILOS)
            for name in demo.SILOS:
                deployment.until(name, acts_on(number))
        assert not deployment.status("hub")["alarms"]


@pytest.mark.slow
def test_a_party_that_is_killed_for_its_memory_goes_on_with_more_memory(tmp_path, monkeypatch):
    """With half of the needed memory, the kernel kills the party at its start or later."""
    with (
        group("memory", "small", limit_in_bytes=40 << 20) as small,
        site(tmp_path, monkeypatch) as deployment,
    ):
        deployment.run("hub", *demo.SILOS)
        deployment.until("hub", lambda status: len(status["joined"]) == 3)
        deployment.day(1, *demo.SILOS)
        deployment.until("north", acts_on(1))
        for name in ("hub", "north"):
            deployment.end(name)
            deployment.run(name)
            (small / "cgroup.procs").write_text(str(deployment.children[name].pid))
            assert deployment.children[name].wait(PATIENCE) != 0
            deployment.end(name)
            deployment.run(name)
        deployment.day(2, *demo.SILOS)
        for name in demo.SILOS:
            deployment.until(name, acts_on(2))
        deployment.end(*list(deployment.children))
        assert all(verified(deployment.home / name) for name in ("hub", *demo.SILOS))
