"""A federation on one machine, in processes that are killed: hub, three silos, perhaps a helper.

Patients come to three silos, and their rewards a moment later. All of them are killed in the
middle, and started again. At the end the model is compared with that of a calm federation in one
process that was told the same.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import ADDED_UP, SUPPORTED
from fastfed.deployment.ledger import Ledger, MemoryStore
from fastfed.deployment.party import Process, SiloProcess
from fastfed.deployment.plans import DeployedPlan, compile_plan
from fastfed.deployment.seal import read_secret
from fastfed.deployment.shell import SiloClient
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sums import Helper

SILOS, RELEASES, PATIENTS, PERIOD, DIMENSION = ("north", "east", "south"), 4, 3, 10, 3
EPSILON, DELTA = 2.0, 1e-6
TOO_BUSY = "this machine is too busy for the demonstration's calendar, try again"


def rows_of(silo: int, patient: int) -> list[list[float]]:
    """Features of three treatments for one patient, the same in both federations."""
    rng = np.random.default_rng([silo, patient])
    rows: np.ndarray = rng.uniform(-0.5, 0.5, (3, DIMENSION))
    return rows.tolist()


def reward_of(rows: list[list[float]], action: int) -> float:
    """The reward of a treatment."""
    return float(min(max(0.5 + rows[action][0], 0.0), 1.0))


class Child:
    """One party as a process of its own."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name, self.arguments = name, arguments
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        command = [sys.executable, "-m", "fastfed", *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it without warning, and start it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.start()

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def made_plan(
    home: Path,
    start: int,
    protocol: str,
    hidden: str | None,
    period: int = PERIOD,
    room: int = 1,
) -> DeployedPlan:
    """Keys of all parties, and the plan that they countersign.

    room: times as many decisions as there are patients may be learned from.
    """
    shares = protocol in ADDED_UP and hidden != "masks"
    names = (*SILOS, "hub", *(["helper"] if shares else []))
    keys = {name: folders.make_keys(home / name) for name in names}
    plan = compile_plan(
        {
            "federation": {"name": "demo", "least": len(SILOS) if protocol in ADDED_UP else 2}
            | ({} if hidden is None else {"sum": hidden}),
            "system": {
                "protocol": protocol,
                "horizon": RELEASES * PATIENTS * room,
                "batch_size": PATIENTS * room,
                "epsilon": EPSILON,
                "delta": DELTA,
            },
            "calendar": {"start": start, "period": period, "grace": 600, "reward_deadline": 600},
            "columns": [{"name": f"x{i}", "low": -0.5, "high": 0.5} for i in range(DIMENSION)],
            "silos": [{"name": name, **keys[name]} for name in SILOS],
            "hub": keys["hub"],
        }
        | ({"helper": keys["helper"]} if shares else {})
    )
    plan.save(home / "plan")
    for name in names:
        folders.countersign(home / name, home / "plan")
    for name in SILOS:
        Ledger(str(home / name / folders.LEDGER)).set_ceiling("records", EPSILON, DELTA)
    return plan


def insist(call: Callable[[], dict[str, Any]], until: float) -> dict[str, Any]:
    """The answer of a process that may be starting; InputError once ``until`` has passed."""
    while True:
        try:
            return call()
        except OSError as error:
            if time.time() > until:
                raise InputError(f"{TOO_BUSY}: a party did not answer in time ({error})") from None
            time.sleep(0.02)


def run(
    home: Path,
    say: Callable[[str], None] = print,
    protocol: str = SUPPORTED[0],
    hidden: str | None = None,
) -> dict[str, Any]:
    """Run the demonstration in an empty folder.

    Parameters
    ----------
    home : Path
    say : callable
        Takes a line for each period.
    protocol : str
        The protocol of `private-fedlinucb`.
    hidden : {"shares", "masks"}, optional
        How its sums are hidden, where they are.

    Returns
    -------
    dict
        ``same``: True if the model is that of the calm federation, bit for bit; ``kills``,
        ``theta``, ``decisions`` and ``certificate``.
    """
    start = int(time.time()) + 4
    plan, port = made_plan(home, start, protocol, hidden), free_port()
    address, closes = f"http://127.0.0.1:{port}", plan.document.calendar.closes
    clients = [SiloClient(home / name / folders.SOCKET) for name in SILOS]
    children = [Child("hub", "serve", str(home / "hub"), "--port", str(port))]
    for name in SILOS:
        dial = ("--hub", address, "--every", "0.1")
        children.append(Child(name, "silo", str(home / name), *dial))
    if plan.shared:
        children.append(Child("helper", "helper", str(home / "helper"), *dial))
    actions: dict[tuple[int, int], int] = {}
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    try:
        for k, close in enumerate(closes):
            _wait(close - PERIOD + 0.05)
            # One silo is killed between a decision and its reward.
            unlucky = int(rng.integers(len(SILOS))), int(rng.integers(PATIENTS))
            for patient in range(k * PATIENTS, (k + 1) * PATIENTS):
                for i, client in enumerate(clients):
                    # Every silo must act on the release before: the calm federation does.
                    _caught_up(client, k, close)
                    rows = rows_of(i, patient)
                    made = insist(lambda c=client, r=rows: c.call("decide", actions=r), close)  # type: ignore[misc]
                    actions[i, patient] = made["action"]
                    given = {"id": made["id"], "reward": reward_of(rows, made["action"])}
                    if (i, patient % PATIENTS) == unlucky:
                        children[1 + i].kill()
                    insist(lambda c=client, g=given: c.call("reward", **g), close)  # type: ignore[misc]
            if time.time() >= close:
                raise InputError(TOO_BUSY)
            _wait(close)
            victims = rng.permutation(len(children))[:2]
            for at in victims:
                time.sleep(float(rng.uniform(0.0, 0.3)))
                children[at].kill()
            status = insist(lambda: clients[0].call("status"), close + 60)
            say(
                f"period {k + 1} of {RELEASES}: closed; silo {SILOS[0]} acts on release "
                f"{status['model']}; killed {', '.join(children[at].name for at in victims)}"
            )
        thetas = [_caught_up(client, RELEASES, time.time() + 60)["theta"] for client in clients]
    finally:
        for child in children:
            child.stop()
    calm = calm_theta(home, plan, actions)
    process = folders.opened(home / "hub")
    assert isinstance(process.party, Hub)
    return {
        "same": all(theta == calm for theta in thetas),
        "kills": sum(child.kills for child in children),
        "theta": thetas[0],
        "decisions": len(actions),
        "released": len(process.party.broadcasts),
        "certificate": plan.certificate.status,
    }


def _wait(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


def _caught_up(client: SiloClient, release: int, until: float) -> dict[str, Any]:
    """The status of a silo, once it acts on a release."""
    while True:
        status = insist(lambda: client.call("status"), until)
        if status["model"] >= release:
            return status
        if time.time() > until:
            raise InputError(f"silo {status['silo']} has not received release {release}")
        time.sleep(0.02)


def calm_theta(home: Path, plan: DeployedPlan, actions: dict[tuple[int, int], int]) -> list[float]:
    """The model of the same federation in one process, where nothing goes wrong."""
    now = [0.0]
    processes: dict[str, Process] = {}
    for name in SILOS:
        ledger = Ledger(":memory:")
        ledger.set_ceiling("records", EPSILON, DELTA)
        secret = read_secret(home / name / folders.SECRET)
        party = SiloParty(plan, name, secret, ledger)
        processes[name] = SiloProcess(party, MemoryStore(), ledger, lambda: now[0])
    secret = read_secret(home / "hub" / folders.SECRET)
    processes["hub"] = Process(Hub(plan, secret), MemoryStore(), None, lambda: now[0])
    if plan.shared:
        secret = read_secret(home / "helper" / folders.SECRET)
        processes["helper"] = Process(Helper(plan, secret), MemoryStore(), None, lambda: now[0])
    for k, close in enumerate(plan.document.calendar.closes):
        now[0] = close - 1.0
        for patient in range(k * PATIENTS, (k + 1) * PATIENTS):
            for i, name in enumerate(SILOS):
                silo, rows = processes[name], rows_of(i, patient)
                assert isinstance(silo, SiloProcess)
                made = silo.decide(rows)
                if made.action != actions[i, patient]:
                    raise InputError(
                        f"patient {patient} of {name} got another action when all was calm"
                    )
                silo.reward(made.id, reward_of(rows, made.action))
        now[0] = float(close)
        settle(processes)
    first = processes[SILOS[0]].party
    assert isinstance(first, SiloParty)
    theta: list[float] = first.model.theta.tolist()
    return theta


def settle(processes: dict[str, Process]) -> None:
    """Carry messages between processes of one machine until nothing new is said."""
    for _ in range(4):
        mail = [message for process in processes.values() for message in process.tick()]
        while mail:
            message = mail.pop(0)
            mail += processes[message.to].handle(message.data)[1]
