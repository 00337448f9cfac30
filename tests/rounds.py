"""Times of one round of a federation over HTTPS with everything synced to disk; a table.

All parties run on this machine: hub and its HTTPS server in one process, all silos and the helper
in another, which does their rounds one after the other. `scripts/deployment_rounds` prints it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import federation
from federation import MASKS, deployed, secret
from test_deployment_network import Listening, certificates

from fastfed.deployment import shell
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger, SqliteStore
from fastfed.deployment.party import Process, SiloProcess
from fastfed.deployment.shell import Dialer
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sums import Helper

PROTOCOLS = {
    "silo-ldp": "silo-ldp",
    "secure sums in shares": "secure-sum",
    "secure sums by masks": MASKS,
}
#: Releases of the plan; all but the first are measured.
RELEASES = 3


class Clock:
    """The plan's time, which the measurement moves; the same for both processes."""

    def __init__(self, value) -> None:
        self._value = value

    def __call__(self) -> float:
        return float(self._value.value)


def plan_of(protocol: str, silos: int, dimension: int):
    keys = {"silos": silos, "dimension": dimension, "batches": RELEASES, "batch": 2}
    return deployed(PROTOCOLS[protocol], **keys)


def hub_of(plan, folder: Path, files, clock: Clock, pipe) -> None:
    """The hub's process: tells its port, and then, when asked, the seconds of CPU it has used."""
    hub = Hub(plan, secret("hub"))
    process = Process(hub, SqliteStore(str(folder / "hub")), None, clock)
    with Listening(process, ssl_certfile=files[1], ssl_keyfile=files[2]) as listening:
        pipe.send(listening.port)
        while pipe.recv():
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((used.ru_utime + used.ru_stime, len(hub.broadcasts)))


class Counted(Dialer):
    """A dialer that counts the bytes of messages that go up and come down."""

    up = down = 0

    def _post(self, data: bytes) -> list[bytes]:
        found = super()._post(data)
        self.up += len(data)
        self.down += sum(map(len, found))
        return found


def measured(protocol: str, silos: int, dimension: int, folder: Path) -> dict[str, float]:
    """One federation: means of its rounds after the first."""
    plan, files = plan_of(protocol, silos, dimension), certificates(folder)
    context = get_context("fork")
    value = context.Value("d", float(federation.START))
    clock = Clock(value)
    ours, theirs = context.Pipe()
    child = context.Process(target=hub_of, args=(plan, folder, files, clock, theirs), daemon=True)
    child.start()
    url = f"https://127.0.0.1:{ours.recv()}"
    parties: list[Process] = []
    for name in plan.silos:
        ledger = Ledger(str(folder / f"{name} ledger"))
        ledger.set_ceiling("records", 10.0, 1e-5)
        party = SiloParty(plan, name, secret(name), ledger)
        parties.append(SiloProcess(party, SqliteStore(str(folder / name)), ledger, clock))
    if plan.shared:
        store = SqliteStore(str(folder / "helper"))
        parties.append(Process(Helper(plan, secret("helper")), store, None, clock))
    dialers = [Counted(process, url, files[0]) for process in parties]
    row = [[0.5 / dimension**0.5] * dimension] * 2
    seconds = cpu = own = up = down = 0.0
    try:
        for _ in range(2):
            for dialer in dialers:
                dialer.round()
        for release, close in enumerate(plan.document.calendar.closes, 1):
            value.value = close - 1.0
            for process in parties[: len(plan.silos)]:
                process.reward(process.decide(row).id, 0.5)
            ours.send(True)
            before, _ = ours.recv()
            was = sum(d.up for d in dialers), sum(d.down for d in dialers)
            value.value = float(close)
            started, used = time.monotonic(), time.process_time()
            for _ in range(12):
                for dialer in dialers:
                    trouble = dialer.round()
                    assert not trouble, trouble
                if all(p.party.model.release == release for p in parties[: len(plan.silos)]):
                    break
            else:
                raise AssertionError(f"release {release} has not come to all silos")
            taken, used = time.monotonic() - started, time.process_time() - used
            ours.send(True)
            after, released = ours.recv()
            assert released == release
            if release > 1:
                seconds += taken
                cpu += after - before
                own += used
                up += sum(d.up for d in dialers) - was[0]
                down += sum(d.down for d in dialers) - was[1]
    finally:
        ours.send(False)
        child.join(10)
    rounds = RELEASES - 1
    made = {"latency": seconds / rounds, "hub": cpu / rounds, "silo": own / rounds / silos}
    return made | {"up": up / rounds / silos, "down": down / rounds / silos}


def main() -> int:
    """Print a row for each federation."""
    parser = argparse.ArgumentParser(prog="scripts/deployment_rounds", description=__doc__)
    parser.add_argument("--silos", type=int, nargs="*", default=[3, 10, 100])
    parser.add_argument("--dimensions", type=int, nargs="*", default=[10, 135])
    parser.add_argument("--protocols", nargs="*", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--folder", help="where the files of all parties go; a real disk")
    given = parser.parse_args()
    # Hundreds of federations must not dial the hub at once.
    shell.PATIENCE = 120.0
    print(
        "| protocol | M | d | round, s | CPU of the hub, s | CPU of a silo, ms | up, kB a silo | "
        "down, kB a silo |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for protocol in given.protocols:
        for dimension in given.dimensions:
            for silos in given.silos:
                with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                    found = measured(protocol, silos, dimension, Path(folder))
                print(
                    f"| {protocol} | {silos} | {dimension} | {found['latency']:.2f} | "
                    f"{found['hub']:.2f} | {1e3 * found['silo']:.0f} | {found['up'] / 1e3:.1f} | "
                    f"{found['down'] / 1e3:.1f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
