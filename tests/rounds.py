"""Measure one round of a federation over HTTPS with everything synced to disk, and print a table.

All parties run on this machine. Hub and HTTPS server are one process. All silos and the helper are
another, which does their rounds one after the other. `scripts/deployment_rounds` prints the table.
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

from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.shell import Dialer
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import SqliteStore
from fastfed.deployment.sums import Helper

PROTOCOLS = {
    "silo-ldp": "silo-ldp",
    "secure sums in shares": "secure-sum",
    "secure sums by masks": MASKS,
}
#: Releases of the plan; all except the first are measured.
RELEASES = 3


class Clock:
    """The plan's time, which the measurement sets for both processes."""

    def __init__(self, value) -> None:
        self._value = value

    def __call__(self) -> float:
        """Return the time."""
        return float(self._value.value)


def plan_of(protocol: str, silos: int, dimension: int):
    """Return a plan of a protocol with this number of silos and features."""
    keys = {"silos": silos, "dimension": dimension, "batches": RELEASES, "batch": 2}
    return deployed(PROTOCOLS[protocol], **keys)


def hub_of(plan, folder: Path, files, clock: Clock, pipe) -> None:
    """Run the hub: send its port and, on request, the CPU seconds that it has used."""
    hub = Hub(plan, secret("hub"))
    process = Process(hub, SqliteStore(str(folder / "hub")), None, clock)
    with Listening(process, ssl_certfile=files[1], ssl_keyfile=files[2]) as listening:
        pipe.send(listening.port)
        while pipe.recv():
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((usage.ru_utime + usage.ru_stime, len(hub.broadcasts)))


class Counted(Dialer):
    """A dialer that counts the bytes of sent and received messages."""

    up = down = 0

    def _post(self, data: bytes) -> list[bytes]:
        """Send a message, and count the bytes of the message and the answers."""
        answers = super()._post(data)
        self.up += len(data)
        self.down += sum(map(len, answers))
        return answers


def measured(protocol: str, silos: int, dimension: int, folder: Path) -> dict[str, float]:
    """Simulate one federation and return the means of its rounds after the first."""
    plan, files = plan_of(protocol, silos, dimension), certificates(folder)
    context = get_context("fork")
    value = context.Value("d", float(federation.START))
    clock = Clock(value)
    parent_end, child_end = context.Pipe()
    child = context.Process(
        target=hub_of, args=(plan, folder, files, clock, child_end), daemon=True
    )
    child.start()
    url = f"https://127.0.0.1:{parent_end.recv()}"
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
    seconds = cpu = party_cpu = up = down = 0.0
    try:
        for _ in range(2):
            for dialer in dialers:
                dialer.round()
        for release, close in enumerate(plan.document.calendar.closes, 1):
            value.value = close - 1.0
            for process in parties[: len(plan.silos)]:
                process.reward(process.decide(row).id, 0.5)
            parent_end.send(True)
            before, _ = parent_end.recv()
            bytes_before = (
                sum(each_dialer.up for each_dialer in dialers),
                sum(each_dialer.down for each_dialer in dialers),
            )
            value.value = float(close)
            started, party_seconds = time.monotonic(), time.process_time()
            for _ in range(12):
                for dialer in dialers:
                    trouble = dialer.round()
                    assert not trouble, trouble
                if all(
                    each_process.party.model.release == release
                    for each_process in parties[: len(plan.silos)]
                ):
                    break
            else:
                raise AssertionError(f"release {release} has not come to all silos")
            elapsed, party_seconds = time.monotonic() - started, time.process_time() - party_seconds
            parent_end.send(True)
            after, released = parent_end.recv()
            assert released == release
            if release > 1:
                seconds += elapsed
                cpu += after - before
                party_cpu += party_seconds
                up += sum(each_dialer.up for each_dialer in dialers) - bytes_before[0]
                down += sum(each_dialer.down for each_dialer in dialers) - bytes_before[1]
    finally:
        parent_end.send(False)
        child.join(10)
    rounds = RELEASES - 1
    means = {"latency": seconds / rounds, "hub": cpu / rounds, "silo": party_cpu / rounds / silos}
    return means | {"up": up / rounds / silos, "down": down / rounds / silos}


def main() -> int:
    """Print a row for each federation."""
    parser = argparse.ArgumentParser(prog="scripts/deployment_rounds", description=__doc__)
    parser.add_argument("--silos", type=int, nargs="*", default=[3, 10, 100])
    parser.add_argument("--dimensions", type=int, nargs="*", default=[10, 135])
    parser.add_argument("--protocols", nargs="*", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--folder", help="where the files of all parties go; a real disk")
    arguments = parser.parse_args()
    print(
        "| protocol | M | d | round, s | CPU of the hub, s | CPU of a silo, ms | up, kB a silo | "
        "down, kB a silo |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for protocol in arguments.protocols:
        for dimension in arguments.dimensions:
            for silos in arguments.silos:
                with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                    means = measured(protocol, silos, dimension, Path(folder))
                print(
                    f"| {protocol} | {silos} | {dimension} | {means['latency']:.2f} | "
                    f"{means['hub']:.2f} | {1e3 * means['silo']:.0f} | {means['up'] / 1e3:.1f} | "
                    f"{means['down'] / 1e3:.1f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
