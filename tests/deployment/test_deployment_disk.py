"""Tests with a full or a read-only disk: nothing is lost, and the federation continues."""

import os
import sqlite3
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("uvicorn")

import federation
from click.testing import CliRunner
from test_deployment_network import status_and_body, toml

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import compile_plan
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.shell import FULL_DISK_ERRORS, HubApp
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import SqliteStore, damage_named

ROWS = [[0.5, 0.1], [-0.3, 0.8]]
SIZE = 1024


def mounted(*arguments):
    """Return whether a mount with these arguments succeeded."""
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path):
    """Return a file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not mounted("-t", "tmpfs", "-o", f"size={SIZE}k", "tmpfs", str(place)):
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


class OnDisk(federation.Federation):
    """A federation in which silo0, its ledger and the hub use one disk."""

    def __init__(self, plan, place):
        super().__init__(plan)
        self.place = place
        self.reopen()

    def reopen(self):
        """Open silo 0 and the hub again from their files."""
        hub = Hub(self.plan, federation.secret("hub"))
        self.ledgers["silo0"] = ledger = Ledger(str(self.place / "ledger"))
        ledger.set_ceiling("records", 1.0, 1e-6)
        silo = SiloParty(self.plan, "silo0", federation.secret("silo0"), ledger)
        stores = SqliteStore(str(self.place / "hub")), SqliteStore(str(self.place / "silo0"))
        self.add(Process(hub, stores[0], None, lambda: self.now))
        self.add(SiloProcess(silo, stores[1], ledger, lambda: self.now))

    def close(self):
        """Close all files."""
        for name in ("hub", "silo0"):
            self.processes[name].store.close()
        self.ledgers["silo0"].close()

    def settle(self):
        """Exchange messages as the network does; repeat what a full disk refuses."""
        for _ in range(10):
            mail = []
            for process in self.processes.values():
                with suppress(*FULL_DISK_ERRORS):
                    mail += process.tick()
            while mail:
                to, data = mail.pop(0)
                with suppress(federation.Refused, *FULL_DISK_ERRORS):
                    mail += self.processes[to].handle(data)[1]

    def fill(self):
        """Fill the disk to the last byte."""
        with open(self.place / "filler", "ab", buffering=0) as file:
            for size in (4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
        assert os.statvfs(self.place).f_bavail == 0

    def free(self):
        """Free the disk that `fill` has filled."""
        (self.place / "filler").unlink()


def period(deployment, release, full=False):
    """Give a reward at every silo and let the period end; `full`: fill the disk before it ends."""
    deployment.now = deployment.plan.document.calendar.closes[release - 1] - 10.0
    for name in deployment.plan.silos:
        process = deployment.processes[name]
        process.reward(process.decide(ROWS).id, 0.25 * release)
    if full:
        deployment.fill()
    deployment.now += 10.0
    deployment.settle()


@pytest.fixture
def undisturbed():
    """Return a federation after three releases without faults, to compare models with."""
    deployment = federation.Federation(federation.deployed())
    deployment.settle()
    for release in (1, 2, 3):
        period(deployment, release)
    return deployment


def thetas(deployment):
    """Return the estimate of every silo."""
    return [deployment.processes[name].party.model.theta.tolist() for name in deployment.plan.silos]


def test_a_full_disk_loses_nothing_and_the_federation_goes_on(disk, undisturbed):
    deployment = OnDisk(undisturbed.plan, disk)
    deployment.settle()
    period(deployment, 1)
    for release in (2, 3):
        period(deployment, release, full=True)
        silo, hub = deployment.processes["silo0"].party, deployment.processes["hub"].party
        reports = len(hub.reports)
        assert release not in hub.broadcasts and release not in silo.sealed
        refused = 0
        for _ in range(60):
            try:
                deployment.processes["silo0"].decide(ROWS)
            except FULL_DISK_ERRORS:
                refused += 1
        assert refused > 10
        deployment.settle()
        assert len(hub.reports) == reports and release not in silo.broadcasts
        deployment.free()
        deployment.settle()
        assert release in hub.broadcasts and silo.model.release == release
    assert thetas(deployment) == thetas(undisturbed)
    # After a restart, the parties know exactly what they wrote to disk.
    before = (
        deployment.processes["hub"].party.broadcasts,
        set(deployment.processes["silo0"].party.ended),
    )
    deployment.close()
    deployment.reopen()
    after = (
        deployment.processes["hub"].party.broadcasts,
        set(deployment.processes["silo0"].party.ended),
    )
    assert before == after == (undisturbed.processes["hub"].party.broadcasts, before[1])
    assert [c.release for c in deployment.ledgers["silo0"].charges("records")] == [1, 2, 3]


def test_a_disk_that_is_read_only_is_not_opened_and_later_goes_on(disk, undisturbed):
    deployment = OnDisk(undisturbed.plan, disk)
    deployment.settle()
    period(deployment, 1)
    deployment.close()
    assert mounted("-o", "remount,ro", str(disk))
    with pytest.raises((OSError, sqlite3.OperationalError), match=r"(?i)read.?only"):
        deployment.reopen()
    assert mounted("-o", "remount,rw", str(disk))
    deployment.reopen()
    deployment.settle()
    for release in (2, 3):
        period(deployment, release)
    assert thetas(deployment) == thetas(undisturbed)


def test_a_charge_that_a_full_disk_refuses_can_be_made_later(disk):
    """Try every amount of free space, including amounts at which only the commit fails."""
    charge = federation.Charge("records", bytes(32), 1, 1e-4, 0.0, bytes(32))
    failed = 0
    for free_bytes in range(0, 40960, 4096):
        ledger = Ledger(str(disk / f"ledger{free_bytes}"))
        ledger.set_ceiling("records", 1.0, 1e-6)
        deployment = OnDisk.__new__(OnDisk)
        deployment.place = disk
        deployment.fill()
        os.truncate(disk / "filler", max(0, os.path.getsize(disk / "filler") - free_bytes))
        for release in range(1, 40):
            try:
                ledger.charge(charge._replace(release=release))
            except FULL_DISK_ERRORS:
                failed += 1
                break
        deployment.free()
        ledger.charge(charge._replace(release=release))
        assert [c.release for c in ledger.charges("records")] == list(range(1, release + 1))
        ledger.close()
        for file in disk.glob(f"ledger{free_bytes}*"):
            file.unlink()
    assert failed > 3


def test_a_hub_whose_disk_is_full_says_so(disk):
    deployment = OnDisk(federation.deployed(), disk)
    app = HubApp(deployment.processes["hub"])
    deployment.fill()
    codes = []
    for process in deployment.processes.values():
        for message in process.tick() if process.party.name != "silo0" else ():
            codes.append(status_and_body(app, body=message.data))
    assert codes and all(code == 503 and b"nothing was stored" in text for code, text in codes)
    assert not deployment.processes["hub"].party.joined
    deployment.free()
    deployment.settle()
    assert deployment.processes["hub"].party.joined == set(deployment.plan.silos)


@pytest.mark.parametrize("name", ["a", "hub"])
def test_a_party_on_a_full_disk_says_so_when_it_starts(name, disk, tmp_path):
    plan = tmp_path / "plan"
    compile_plan(Path(toml(disk)).read_text()).save(plan)
    folders.countersign(disk / name, plan)
    with open(disk / "filler", "ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    result = CliRunner().invoke(
        cli,
        ["serve", str(disk / name)]
        if name == "hub"
        else ["silo", str(disk / name), "--hub", "http://127.0.0.1:9"],
    )
    assert result.exit_code == 1 and "make room on the disk" in result.output


def test_every_damaged_page_of_a_ledger_or_a_state_is_reported_in_a_sentence(tmp_path):
    """Damage of a page that is read is reported in one sentence, never as an SQLite error."""
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.set_ceiling("records", 1.0, 1e-6)
    store = SqliteStore(str(tmp_path / "state"))
    plan = federation.deployed()
    hub = Hub(plan, federation.secret("hub"))
    Process(hub, store)
    for each in (ledger, store):
        each.close()
    refused = 0
    for name in ("ledger", "state"):
        data = (tmp_path / name).read_bytes()
        for page in range(0, len(data), 4096):
            for at, junk in ((0, b"\xff" * 200), (3500, b"\xff" * 596), (3500, bytes(596))):
                for suffix in ("", "-wal", "-shm"):
                    (tmp_path / f"x{suffix}").unlink(missing_ok=True)
                place = tmp_path / "x"
                place.write_bytes(data[: page + at] + junk + data[page + at + len(junk) :])
                for open_file in (
                    (opened_ledger, Ledger.read) if name == "ledger" else (opened_state,)
                ):
                    try:
                        open_file(place).close()
                    except InputError as error:
                        refused += str(place) in str(error)
    assert refused > 20


def opened_ledger(path):
    """Open a file as a ledger."""
    return Ledger(str(path))


def opened_state(path):
    """Open a file as the state of a hub."""
    with damage_named(path):
        store = SqliteStore(str(path))
        Process(Hub(federation.deployed(), federation.secret("hub")), store)
    return store
