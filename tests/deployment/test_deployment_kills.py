"""Kill real processes at random times; the model must equal an undisturbed run's, bit for bit."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

from fastfed import InputError
from fastfed.deployment import demo
from fastfed.deployment import folder as folders
from fastfed.deployment.client import Client

#: Number of kills in one run.
KILLS = int(os.environ.get("FASTFED_KILLS", "25"))


class Killer(threading.Thread):
    """A thread that kills random processes at random times and restarts them."""

    def __init__(self, children, gap, seed):
        super().__init__(daemon=True)
        self.gap = gap
        self.children, self.rng, self.over = children, np.random.default_rng(seed), False
        self.counts = dict.fromkeys([child.name for child in children], 0)

    def run(self):
        """Kill until there were KILLS kills or the test ends."""
        while not self.over and sum(self.counts.values()) < KILLS:
            time.sleep(float(self.rng.uniform(0, self.gap)))
            child = self.children[int(self.rng.integers(len(self.children)))]
            child.kill()
            self.counts[child.name] += 1


def time_to_start():
    """Return an estimate, in seconds, of the time that a process needs to start on this machine."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "fastfed", "silo", "--help"], check=True, stdout=-3)
    command = "import uvicorn, scipy.special, scipy.optimize, fastfed.deployment.folder"
    subprocess.run([sys.executable, "-c", command], check=True)
    return time.monotonic() - started


def run_with_kills(home, protocol, hidden, seed):
    """Serve patients while processes are killed.

    Return the thetas of the silos, the theta of a run without kills, and the kills per process.
    """
    startup_seconds = time_to_start()
    gap = max(1.5, 1.2 * startup_seconds)
    period = int(KILLS * gap / 2 / demo.RELEASES + 8 * startup_seconds) + 6
    start = int(time.time() + 2 * startup_seconds) + 3
    plan = demo.made_plan(home, start, protocol, hidden, period, room=10)
    address = f"http://127.0.0.1:{(port := demo.free_port())}"
    clients = [Client(home / name / folders.SOCKET) for name in demo.SILOS]
    children = [demo.Child("hub", "serve", str(home / "hub"), "--port", str(port))]
    dial = ("--hub", address, "--every", "0.1")
    children += [demo.Child(name, "silo", str(home / name), *dial) for name in demo.SILOS]
    if plan.shared:
        children.append(demo.Child("helper", "helper", str(home / "helper"), *dial))
    actions, killer = {}, Killer(children, gap, seed)
    try:
        demo.repeat_until(lambda: clients[0].call("status"), start + period)
        killer.start()
        for k, close in enumerate(plan.document.calendar.closes):
            demo._sleep_until(close - period + 0.05)
            for patient in range(k * demo.PATIENTS, (k + 1) * demo.PATIENTS):
                for i, client in enumerate(clients):
                    demo._wait_for_release(client, k, close)
                    path, request, answer = demo._visit_requests(plan, i, patient)
                    decision = demo.repeat_until(
                        lambda c=client, g=request: c.call("decide", **g), close
                    )
                    actions[i, patient] = decision["action"]
                    answer_request = {"id": decision["id"], **answer(decision["action"])}
                    demo.repeat_until(
                        lambda c=client, p=path, g=answer_request: c.call(p, **g), close
                    )
            if time.time() >= close:
                raise InputError(demo.TOO_BUSY)
        killer.join(KILLS * gap)
        killer.over = True
        killer.join()
        deadline = time.time() + 90 + 20 * startup_seconds
        thetas = [demo._wait_for_release(c, demo.RELEASES, deadline)["theta"] for c in clients]
    finally:
        killer.over = True
        if killer.ident:
            killer.join()
        for child in children:
            child.stop()
    return thetas, demo.theta_without_failures(home, plan, actions), killer.counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "hidden"), [("silo-ldp", None), ("secure-sum", "shares"), ("user-bit", None)]
)
def test_processes_that_are_killed_end_with_the_model_of_a_calm_run(protocol, hidden, tmp_path):
    for attempt in range(3):
        home = tmp_path / str(attempt)
        home.mkdir()
        try:
            thetas, undisturbed, counts = run_with_kills(home, protocol, hidden, attempt)
            break
        except InputError as error:
            # The calendar is real time: a machine that is too busy proves nothing.
            if demo.TOO_BUSY not in str(error) and "has not received" not in str(error):
                raise
    else:
        pytest.fail(demo.TOO_BUSY)
    print(f"{protocol}: killed {counts}")
    assert sum(counts.values()) == KILLS and np.any(undisturbed)
    assert all(theta == undisturbed for theta in thetas)
    for name in ("hub", *demo.SILOS):
        command = [sys.executable, "-m", "fastfed", "ledger", "verify", str(home / name)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
