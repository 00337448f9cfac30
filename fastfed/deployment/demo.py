"""Demonstrate a federation whose processes are killed: a hub, three silos and a helper.

All parties run on one machine. Patients come to three silos, and their rewards follow a moment
later. Parties are killed and restarted during the run. One silo is restored from an old backup, and
one of its messages is replayed. At the end, the silos' model is compared with the model of an
undisturbed federation in one process, which gets the same patients and rewards.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice
from fastfed.deployment import folder as folders
from fastfed.deployment.calls import call
from fastfed.deployment.client import Client
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import (
    SECURE_SUM_PROTOCOLS,
    SUPPORTED_PROTOCOLS,
    SUPPORTED_SYSTEMS,
    hub_of,
    silo_of,
)
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import DeployedPlan, compile_plan
from fastfed.deployment.process import Process, SiloProcess, settle
from fastfed.deployment.seal import read_secret
from fastfed.deployment.shell import PATH
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore, SqliteStore
from fastfed.deployment.sums import Helper

SILOS, DIMENSION = ("north", "east", "south"), 3
#: Number of releases, patients of a silo in a period, and seconds of a period.
RELEASES, PATIENTS, PERIOD = 4, 3, 10
EPSILON, DELTA = 2.0, 1e-6
#: Users per tick of the silos, if they report on their own clocks.
SLOW_SILO_RATES = [1.0, 1.0, 0.5]
BACKUP, REFUSED = "backup", "refused"
TOO_BUSY = "this machine is too busy for the demonstration's calendar, try again"

#: System -> its keys in the spec, except horizon and budget.
SYSTEM_KEYS: dict[str, dict[str, Any]] = {
    "robin": {
        "horizon": 40,
        "initial_phases": 2,
        "diversity": 0.05,
        "concentration_multiplier": 1e-3,
    },
    "fed-dp-ope-stoch": {"horizon": 63, "batch": "largest", "smoothness": 60.0},
    "fed-svt": {
        "horizon": 40,
        "phase_length": 10,
        "optimal_loss": 0.0,
        "switches": 3,
        "threshold": 4.0,
    },
}


def treatment_features(silo: int, patient: int) -> list[list[float]]:
    """Return the features of three treatments for one patient, the same for every call."""
    rng = np.random.default_rng([silo, patient])
    rows: np.ndarray = rng.uniform(-0.5, 0.5, (3, DIMENSION))
    return rows.tolist()


def treatment_reward(rows: list[list[float]], action: int) -> float:
    """Return the reward of a treatment, given the features of all treatments."""
    return float(min(max(0.5 + rows[action][0], 0.0), 1.0))


class Child:
    """One party in a separate process, whose log is the file ``log`` in the party's folder."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name, self.arguments = name, arguments
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start the process."""
        # -P: do not import from the current folder, which may be a checkout that is not built.
        command = [sys.executable, "-P", "-m", "fastfed", *self.arguments]
        with open(Path(self.arguments[1]) / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        """Kill the process without warning, and start it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.start()

    def stop(self) -> None:
        """Kill the process for good."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """Find a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def time_to_start() -> float:
    """Measure how many seconds a process needs to start on this machine, under its present load."""
    started = time.monotonic()
    command = "import uvicorn, scipy.special, scipy.optimize, fastfed.deployment.folder"
    subprocess.run([sys.executable, "-P", "-c", command], check=True)
    return time.monotonic() - started


def made_plan(
    home: Path,
    start: int,
    protocol: str,
    hidden: str | None,
    period: int = PERIOD,
    room: int = 1,
    system: str = SUPPORTED_SYSTEMS[0],
    own_clocks: bool = False,
) -> DeployedPlan:
    """Create the folders and keys of all parties, and the plan, which all parties countersign.

    Parameters
    ----------
    home : Path
        The folder in which each party gets a folder.
    start, period : int
        Start of the calendar in seconds since 1970, and seconds of one period.
    protocol, hidden, system, own_clocks
        As in `run`.
    room : int
        The plan's horizon allows ``room`` * `PATIENTS` patients of a silo in each period. (The
        horizon of a system in `SYSTEM_KEYS` is fixed there.)
    """
    # Losses of experts are in [0, 1], features of bandits in [-1/2, 1/2].
    system_settings = SYSTEM_KEYS.get(system, {"batch_size": PATIENTS * room})
    if system == SUPPORTED_SYSTEMS[0]:
        system_settings = system_settings | {"protocol": protocol}
        if protocol == "user-bit":
            system_settings |= {"protects": "reward"}
    elif protocol != SUPPORTED_PROTOCOLS[0]:
        raise InputError(f"{system} has no choice of protocols; leave protocol out")
    if own_clocks:
        system_settings = system_settings | {"clock": {"rates": SLOW_SILO_RATES}}
        # A batch is a period of `PATIENTS` * `room` ticks. The calendar's `round` is the length of
        # a tick in seconds.
        calendar = {"round": period // (PATIENTS * room)}
        federation: dict[str, Any] = {}
    else:
        calendar = {"period": period}
        federation = {"least": len(SILOS) if protocol in SECURE_SUM_PROTOCOLS else 2}
    experts = system in ("fed-svt", "fed-dp-ope-stoch")
    low = 0.0 if experts else -0.5
    has_helper = protocol in SECURE_SUM_PROTOCOLS and hidden != "masks"
    names = (*SILOS, "hub", *(["helper"] if has_helper else []))
    keys = {name: folders.make_keys(home / name) for name in names}
    plan = compile_plan(
        {
            "federation": {"name": "demo", **federation}
            | ({} if hidden is None else {"sum": hidden}),
            "system": {
                "algorithm": system,
                "horizon": RELEASES * PATIENTS * room,
                "epsilon": EPSILON,
                "delta": DELTA,
                **system_settings,
            },
            "calendar": {"start": start, **calendar, "grace": 600, "reward_deadline": 600},
            "columns": [{"name": f"x{i}", "low": low, "high": low + 1.0} for i in range(DIMENSION)],
            "silos": [{"name": name, **keys[name]} for name in SILOS],
            "hub": keys["hub"],
        }
        | ({"helper": keys["helper"]} if has_helper else {})
    )
    plan.save(home / "plan")
    for name in names:
        folders.countersign(home / name, home / "plan")
    for name in SILOS:
        Ledger(str(home / name / folders.LEDGER)).set_ceiling("records", EPSILON, DELTA)
    return plan


def repeat_until(call: Callable[[], dict[str, Any]], until: float) -> dict[str, Any]:
    """Repeat a call until the process answers; raise InputError if it has not at ``until``.

    ``until`` is in seconds since 1970.
    """
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
    protocol: str = SUPPORTED_PROTOCOLS[0],
    hidden: str | None = None,
    system: str = SUPPORTED_SYSTEMS[0],
    own_clocks: bool = False,
) -> dict[str, Any]:
    """Run the demonstration in a folder, which must be new or empty.

    Parameters
    ----------
    home : Path
    say : callable
        Called with a line for each period.
    protocol : str
        The protocol, for the system `private-fedlinucb`.
    hidden : {"shares", "masks"}, optional
        How reports are hidden, for protocols with secure sums.
    system : str
        The system that is deployed.
    own_clocks : bool
        True if the last silo reports half as often as the others, which do not wait for it.

    Returns
    -------
    dict
        - ``same``: True if the model equals the undisturbed federation's model, bit for bit.
        - ``verified``: True if the logs of hub and silos are complete and consistent.
        - ``kills``: how many times a process was killed during the run, except to make the backup.
        - ``theta``: theta of the first silo's model at the end.
        - ``decisions``: the number of decisions of all silos.
        - ``released``: the number of releases in the hub's log.
        - ``certificate``: the status of the plan's certificate.
    """
    choice("system", system, SUPPORTED_SYSTEMS)
    start_seconds = time_to_start()
    # A period (in seconds) must be long enough to start a process eight times. On an idle machine a
    # start takes about a second, and `PERIOD` is long enough.
    period = max(PERIOD, math.ceil(8.0 * start_seconds) + 2)
    start = int(time.time() + 2.0 * start_seconds) + 2
    # With clocks, a period is divided into `PATIENTS` ticks, and a tick must have whole seconds.
    period += -period % PATIENTS if own_clocks else 0
    plan = made_plan(home, start, protocol, hidden, period, system=system, own_clocks=own_clocks)
    address, closes = f"http://127.0.0.1:{free_port()}", plan.document.calendar.closes
    # The children are the hub, then the silos in the order of `SILOS`, then the helper.
    clients = [Client(home / name / folders.SOCKET) for name in SILOS]
    children = [Child("hub", "serve", str(home / "hub"), "--port", address.rpartition(":")[2])]
    for name in SILOS:
        dial = ("--hub", address, "--every", "0.1")
        children.append(Child(name, "silo", str(home / name), *dial))
    if plan.shared:
        children.append(Child("helper", "helper", str(home / "helper"), *dial))
    actions: dict[tuple[int, int], int] = {}
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    try:
        for k, close_time in enumerate(closes):
            # Wait until the period has certainly begun.
            _sleep_until(close_time - period + 0.05)
            if k == 2:
                _restore_backup(home, children[1], clients[0], k, close_time)
                say(f"{SILOS[0]} was restored to its state before release {k}, and recovered")
                _replay_report(home, address, close_time)
                say(f"its report of release 1 was sent again, and a changed one was {REFUSED}")
            # In each period, one silo is killed between the decision and the reward of one patient.
            unlucky = int(rng.integers(len(SILOS))), int(rng.integers(PATIENTS))
            for patient in range(k * PATIENTS, (k + 1) * PATIENTS):
                for i, client in enumerate(clients):
                    # Silos must use the previous release, as they do in the undisturbed federation.
                    _wait_for_release(client, k, close_time)
                    victim = children[1 + i] if (i, patient % PATIENTS) == unlucky else None
                    actions[i, patient] = _serve(plan, client, i, patient, close_time, victim)
            if k == 1:
                # Make the backup from which the first silo is restored in the next period.
                children[1].process.kill()
                children[1].process.wait()
                _copy_state(home / SILOS[0], home / BACKUP)
                children[1].start()
            if time.time() >= close_time:
                raise InputError(TOO_BUSY)
            _sleep_until(close_time)
            # Kill two random parties while the release is made.
            victims = rng.permutation(len(children))[:2]
            for index in victims:
                time.sleep(float(rng.uniform(0.0, 0.3)))
                children[index].kill()
            status = repeat_until(lambda: clients[0].call("status"), close_time + 60)
            model = f"{'view' if own_clocks else 'release'} {status['model']}"
            say(
                f"period {k + 1} of {len(closes)}: closed; silo {SILOS[0]} acts on {model}; "
                f"killed {', '.join(children[index].name for index in victims)}"
            )
        thetas = [
            _wait_for_release(client, len(closes), time.time() + 60)["theta"] for client in clients
        ]
    finally:
        for child in children:
            child.stop()
    undisturbed_theta = theta_without_failures(home, plan, actions)
    # Opening a folder checks its log and, for a hub, recomputes its sums.
    released = {name: _release_count(home / name) for name in (*SILOS, "hub")}
    return {
        "same": all(theta == undisturbed_theta for theta in thetas),
        "verified": set(released.values()) == {len(closes)},
        "kills": sum(child.kills for child in children),
        "theta": thetas[0],
        "decisions": len(actions),
        "released": released["hub"],
        "certificate": plan.certificate.status,
    }


def _release_count(folder: Path) -> int:
    """Check the log of a hub or silo; return its number of releases."""
    process = folders.opened(folder)
    assert isinstance(process.party, Hub | SiloParty)
    return len(process.party.broadcasts)


def _visit_requests(
    plan: DeployedPlan, silo: int, patient: int
) -> tuple[str, dict[str, Any], Callable[[int], dict[str, Any]]]:
    """Return the requests to a silo for the visit of one patient.

    Returns
    -------
    str
        The path of the request that passes on the reward or the losses: "reward", "bit" or
        "losses".
    dict
        The keys of the request to `decide`.
    callable
        Maps the chosen action to the keys of the request with the reward or the losses.
    """
    rows = treatment_features(silo, patient)
    if plan.kind.experts:
        losses = [row[0] + 0.5 for row in rows]
        return "losses", {}, lambda action: {"losses": losses}
    if plan.plan.flips:
        # `bit_to_send` would draw a new random bit at each call. Here the bit of a patient must be
        # the same in the run with failures and in the run without, which are compared.
        coin = random.Random(f"{silo} {patient}").random()
        low, high = plan.plan.bit_values
        return (
            "bit",
            {"actions": rows},
            lambda action: {"bit": int(coin * (high - low) < treatment_reward(rows, action) - low)},
        )
    return "reward", {"actions": rows}, lambda action: {"reward": treatment_reward(rows, action)}


def _serve(
    plan: DeployedPlan, client: Client, silo: int, patient: int, until: float, victim: Child | None
) -> int:
    """Request a decision for one patient, and pass on the reward or the losses; return the action.

    Between the two requests, the process ``victim`` is killed.
    """
    path, request, keys_for = _visit_requests(plan, silo, patient)
    decision = repeat_until(lambda: client.call("decide", **request), until)
    if victim is not None:
        victim.kill()
    reward_keys = {"id": decision["id"], **keys_for(decision["action"])}
    repeat_until(lambda: client.call(path, **reward_keys), until)
    action: int = decision["action"]
    return action


def _copy_state(source: Path, target: Path) -> None:
    """Copy the state database of a party that is not running, with its write-ahead log."""
    target.mkdir(exist_ok=True)
    # An old write-ahead log must not stay in the target.
    for file in list(target.glob(f"{folders.STATE}*")):
        file.unlink()
    for file in source.glob(f"{folders.STATE}*"):
        shutil.copy(file, target)


def _restore_backup(home: Path, child: Child, client: Client, release: int, until: float) -> None:
    """Restore a silo from its backup, and let it recover the reports that the backup lacks.

    First wait until the silo has received ``release``, which the backup lacks.
    """
    _wait_for_release(client, release, until)
    child.process.kill()
    child.process.wait()
    _copy_state(home / BACKUP, home / child.name)
    child.kills += 1
    child.start()
    while not repeat_until(lambda: client.call("status"), until)["lost"]:
        # The hub tells the silo which reports the silo has lost.
        if time.time() > until:
            raise InputError(f"{TOO_BUSY}: {child.name} has not received its list of lost reports")
        time.sleep(0.05)
    while repeat_until(lambda: client.call("status"), until)["lost"]:
        with contextlib.suppress(InputError):
            # With masks this is refused until the hub has sent the sessions again.
            repeat_until(lambda: client.call("recover"), until)
        time.sleep(0.05)


def _replay_report(home: Path, address: str, until: float) -> None:
    """Send the first report in a silo's backup to the hub again, then a changed copy of it.

    The hub must accept the first (without effect) and refuse the second.
    """
    store = SqliteStore(str(home / BACKUP / folders.STATE))
    (stolen,) = (w.value for w in store.writes() if (w.kind, w.key) == ("sealed", "1"))
    store.close()
    if repeat_until(lambda: {"status": _posted(address, stolen)}, until)["status"] != 200:
        raise InputError("the hub did not accept a report that was sent again")
    changed = stolen[:-1] + bytes([stolen[-1] ^ 1])
    if repeat_until(lambda: {"status": _posted(address, changed)}, until)["status"] != 400:
        raise InputError("the hub did not refuse a changed report")


def _posted(address: str, data: bytes) -> int:
    """Send a message to the hub; return the HTTP status of its answer."""
    return call(address + PATH, 1 << 24, data)[0]


def _sleep_until(until: float) -> None:
    """Sleep until a time in seconds since 1970."""
    time.sleep(max(0.0, until - time.time()))


def _wait_for_release(client: Client, release: int, until: float) -> dict[str, Any]:
    """Wait until a silo has the model of a release; return its status."""
    while True:
        status = repeat_until(lambda: client.call("status"), until)
        if status.get("views", status["model"]) >= release:
            return status
        if time.time() > until:
            raise InputError(f"silo {status['silo']} has not received release {release}")
        time.sleep(0.02)


def theta_without_failures(
    home: Path, plan: DeployedPlan, actions: dict[tuple[int, int], int]
) -> list[float]:
    """Return theta of the demonstration's federation, run again in one process without failures.

    Parameters
    ----------
    home : Path
        The folder of the demonstration. Its parties' secrets are used again.
    plan : DeployedPlan
        The plan of the demonstration.
    actions : dict
        (silo, patient) -> the action in the demonstration. The run without failures must choose the
        same actions, except with experts.
    """
    # All parties read their time from this list. It is set to times of the calendar.
    now = [0.0]
    processes: dict[str, Process] = {}
    for name in SILOS:
        ledger = Ledger(":memory:")
        ledger.set_ceiling("records", EPSILON, DELTA)
        secret = read_secret(home / name / folders.SECRET)
        party = silo_of(plan, name, secret, ledger)
        processes[name] = SiloProcess(party, MemoryStore(), ledger, lambda: now[0])
    secret = read_secret(home / "hub" / folders.SECRET)
    processes["hub"] = Process(hub_of(plan, secret), MemoryStore(), None, lambda: now[0])
    if plan.shared:
        secret = read_secret(home / "helper" / folders.SECRET)
        processes["helper"] = Process(Helper(plan, secret), MemoryStore(), None, lambda: now[0])
    for k, close_time in enumerate(plan.document.calendar.closes):
        now[0] = close_time - 1.0
        for patient in range(k * PATIENTS, (k + 1) * PATIENTS):
            for i, name in enumerate(SILOS):
                silo = processes[name]
                path, request, keys_for = _visit_requests(plan, i, patient)
                assert isinstance(silo, SiloProcess)
                decision = silo.decide(request.get("actions"))
                # With experts the action is random, but the losses do not depend on it.
                if not plan.kind.experts and decision.action != actions[i, patient]:
                    raise InputError(
                        f"patient {patient} of {name} got a different action without failures"
                    )
                reward_keys = keys_for(decision.action)
                # The path ("reward", "bit" or "losses") is also the name of the silo's method.
                getattr(silo, path)(decision.id, reward_keys[path])
        now[0] = float(close_time)
        settle(processes)
    first = processes[SILOS[0]].party
    assert isinstance(first, SiloParty)
    theta: list[float] = first.model.theta.tolist()
    return theta
