"""Tests of what parties wait for: each state is reached, and docs/deployment.md lists it."""

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import federation
from federation import ROWS, deployed, period, served

from fastfed.deployment import wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.party import SteadyClock
from fastfed.deployment.process import Process
from fastfed.deployment.progress import WAITS
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.sums import Helper

CLOCKS = "silo-ldp clocks"
PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def running(protocol="silo-ldp", **keys):
    """Return a federation that all parties have joined."""
    plan = federation.clocked({}) if protocol == CLOCKS else deployed(protocol, **keys)
    deployment = federation.Federation(plan)
    deployment.settle()
    return deployment


def state_and_parties(deployment, name):
    """Return the state of a party, and whom it waits for."""
    now = deployment.processes[name].now()
    actual = deployment.processes[name].party.waits(now)
    kind = name if name in ("hub", "helper") else "silo"
    row = WAITS[kind][actual["state"]]
    assert (actual["for"], actual["do"]) == (row.what, row.do)
    if hasattr(deployment.processes[name].party, "status"):
        assert deployment.processes[name].party.status(now)["waits"] == actual
    return actual["state"], actual["who"]


def replace_party(deployment, name, writes):
    """Replace a party by one with these writes."""
    kind = Hub if name == "hub" else Helper
    party = kind(deployment.plan, federation.secret(name))
    deployment.add(Process(party, MemoryStore(writes), None, lambda: deployment.now))


def hub_of_open_period(deployment):
    """Move the time into the first period."""
    deployment.now = federation.START + 10.0


def silo_before_the_start(deployment):
    """Move the time to before the first period."""
    deployment.now = federation.START - 10.0


def hub_over(deployment):
    """Run all four releases."""
    for release in range(1, 5):
        period(deployment, release)


def hub_ended(deployment):
    """Bring the hub to its end: two of three silos leave, so no release can have enough reports."""
    deployment.processes["silo0"].leave()
    deployment.processes["silo1"].leave()
    served(deployment, 1, ["silo2"])
    deployment.settle()


def hub_without_a_silo(deployment):
    """Let the first period end without a report of silo 2."""
    deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0", "silo1"])
    deployment.settle()


def hub_after_grace(deployment):
    """Let the grace of the first period end with one report."""
    deployment.processes.pop("silo1")
    hub_with_one_report(deployment)
    deployment.now += federation.GRACE
    deployment.settle()


def hub_with_one_report(deployment):
    """Let the first period end with the report of silo 0 only."""
    deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0"])
    deployment.settle()


def hub_with_half_a_report(deployment):
    """Let the report of silo2 arrive without the signed message about it (`seen`)."""
    absent_silo = deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0", "silo1"])
    deployment.settle()
    for to, data in absent_silo.tick():
        if to == "hub" and deployment.processes["hub"].party.wire.read(data).kind == "report":
            deployment.processes["hub"].handle(data)


def hub_just_started(deployment):
    """Restart the hub while two silos are away."""
    absent_silos = [deployment.processes.pop(name) for name in ("silo1", "silo2")]
    served(deployment, 1, ["silo0"])
    replace_party(deployment, "hub", list(deployment.processes["hub"].store.writes()))
    deployment.settle()
    assert absent_silos


def hub_restored(deployment):
    """Restore the hub to its state before a release that silos have, while one silo is away."""
    backup = list(deployment.processes["hub"].store.writes())
    period(deployment, 1)
    deployment.processes.pop("silo2")
    replace_party(deployment, "hub", backup)
    deployment.settle()


def hub_with_second_broadcast(deployment):
    """Restore the hub from a backup, and return only the second of two broadcasts to it."""
    backup = list(deployment.processes["hub"].store.writes())
    for release in (1, 2):
        period(deployment, release)
    replace_party(deployment, "hub", backup)
    # The second broadcast comes back, and not the first.
    second = deployment.processes["silo0"].party.broadcasts[2]
    deployment.processes["hub"].handle(second)


def hub_of_clocks(deployment):
    """Let silo1 miss the first moment, for longer than the grace period."""
    deployment.processes.pop("silo1")
    deployment.settle()
    deployment.now = deployment.plan.document.calendar.closes[0] + federation.GRACE
    deployment.settle()
    assert len(deployment.processes["hub"].party.broadcasts) == 1


def without_helper(deployment):
    """Let the first period end without the helper."""
    deployment.processes.pop("helper")
    served(deployment, 1)
    deployment.settle()


def with_clock_off(name, off):
    """Advance all clocks to the end of a period; one clock is off by the given seconds."""

    def set_clocks(deployment):
        for each, process in deployment.processes.items():
            error = off if each == name else 0.0
            # The first clock is the wall clock, and the second the monotonic one.
            process.clock = SteadyClock(
                lambda error=error: deployment.now + error, lambda: deployment.now
            )
        deployment.settle()
        deployment.now = federation.START + 100.0
        deployment.settle()

    return set_clocks


HUB = [
    ("clock", "silo-ldp", with_clock_off("hub", -90.0), ["silo0", "silo1", "silo2"]),
    ("open", "silo-ldp", hub_of_open_period, []),
    ("over", "silo-ldp", hub_over, []),
    ("ended", "silo-ldp", hub_ended, []),
    ("reports", "silo-ldp", hub_without_a_silo, ["silo2"]),
    ("reports", "silo-ldp", hub_with_half_a_report, ["silo2"]),
    ("too-few", "silo-ldp", hub_after_grace, ["silo1", "silo2"]),
    ("unheard", "silo-ldp", hub_just_started, ["silo1", "silo2"]),
    ("reports-again", "silo-ldp", hub_restored, ["silo2"]),
    ("broadcast-again", "silo-ldp", hub_with_second_broadcast, ["silo0", "silo1", "silo2"]),
    ("sessions", federation.MASKS, hub_without_a_silo, ["silo2"]),
    ("helper", "secure-sum", without_helper, ["helper"]),
    ("clocks", CLOCKS, hub_of_clocks, []),
]


@pytest.mark.parametrize(
    ("state", "protocol", "bring_about", "who"), HUB, ids=[h[2].__name__ for h in HUB]
)
def test_every_state_of_the_hub_is_reached(state, protocol, bring_about, who):
    deployment = running(protocol)
    bring_about(deployment)
    assert state_and_parties(deployment, "hub") == (state, who)
    since = deployment.processes["hub"].party.waits(deployment.now)["since"]
    assert since is None or since <= deployment.now


def silo_over(deployment):
    """Run all four releases."""
    hub_over(deployment)


def silo_stopped(deployment):
    """Let silo 0 leave."""
    deployment.processes["silo0"].leave()
    deployment.settle()


def silo_without_hub(deployment):
    """Let silo 0 believe that the hub does not answer."""
    silo = deployment.processes["silo0"].party
    silo._hub_answered = False


def silo_lost(deployment):
    """Send silo 0 a receipt of a report that it does not know: the silo has lost the report."""
    deployment.now = federation.START + 100.0
    silo = deployment.processes["silo0"]
    receipt = wire.Receipt(0, ((1, bytes(32)),), silo.party._nonce)
    hub = federation.Identity(federation.secret("hub"))
    silo.handle(deployment.plan.wire.signed(hub, "hub", 0, receipt))


def silo_ceiling(deployment):
    """Give silo 0 a ledger whose ceiling is below the cost of the plan."""
    silo, ledger = deployment.processes["silo0"], Ledger(":memory:")
    ledger.set_ceiling("records", 1e-3, 1e-6)
    silo.ledger = silo.party.ledger = ledger
    served(deployment, 1)
    deployment.settle()


def silo_given_up(deployment):
    """Let silo 0, which has lost its state, continue with a higher ceiling."""
    silo_lost(deployment)
    deployment.ledgers["silo0"].set_ceiling("records", 20.0, 1e-6)
    deployment.processes["silo0"].recover()
    deployment.settle()


def silo_forgotten(deployment):
    """Send silo 0 a list with another session than its own, as after a restored backup."""
    deployment.now = federation.START + 100.0
    silo = deployment.processes["silo0"]
    values = tuple(bytes([i]) * 32 for i in range(3))
    hub = federation.Identity(federation.secret("hub"))
    silo.tick()
    silo.handle(deployment.plan.wire.signed(hub, "hub", 1, wire.Sessions(values)))


def silo_after_its_report(deployment):
    """Let silo 0 report while the other silos are away."""
    deployment.processes.pop("silo1")
    deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0"])
    deployment.settle()


SILO = [
    ("start", "silo-ldp", silo_before_the_start, []),
    ("open", "silo-ldp", hub_of_open_period, []),
    ("over", "silo-ldp", silo_over, []),
    ("stopped", "silo-ldp", silo_stopped, []),
    ("hub", "silo-ldp", silo_without_hub, ["hub"]),
    ("recover", "silo-ldp", silo_lost, []),
    ("sessions", federation.MASKS, hub_without_a_silo, ["hub"]),
    ("ceiling", "silo-ldp", silo_ceiling, []),
    ("clock", "silo-ldp", with_clock_off("silo0", -90.0), ["hub"]),
    ("given-up", "silo-ldp", silo_given_up, ["hub"]),
    ("given-up", federation.MASKS, silo_forgotten, ["silo0"]),
    ("release", "silo-ldp", silo_after_its_report, ["hub"]),
]


@pytest.mark.parametrize(
    ("state", "protocol", "bring_about", "who"), SILO, ids=[s[0] for s in SILO]
)
def test_every_state_of_a_silo_is_reached(state, protocol, bring_about, who):
    deployment = running(protocol)
    bring_about(deployment)
    assert state_and_parties(deployment, "silo0") == (state, who)


def test_every_state_of_the_helper_is_reached():
    deployment = running("secure-sum")
    assert state_and_parties(deployment, "helper") == ("set", ["hub"])
    hub_over(deployment)
    assert state_and_parties(deployment, "helper") == ("over", [])
    deployment.processes["helper"].party.unanswered_since = 0.0
    assert state_and_parties(deployment, "helper") == ("over", [])
    second = running("secure-sum")
    second.processes["helper"].party.unanswered_since = 0.0
    assert state_and_parties(second, "helper") == ("hub", ["hub"])
    deployment.processes["helper"].party.alarms.append("two sets")
    assert state_and_parties(deployment, "helper") == ("alarm", [])


def test_every_row_is_reached_and_the_page_has_it():
    assert {h[0] for h in HUB} == set(WAITS["hub"])
    assert {s[0] for s in SILO} == set(WAITS["silo"])
    for party, rows in WAITS.items():
        for state, row in rows.items():
            assert f"| {party} | `{state}` | {row.what} | {row.do} |" in PAGE


def test_the_hub_says_that_it_waits_for_a_restored_helper():
    """Regression test: the helper was refused forever, but no field of the status showed it."""
    deployment = running("secure-sum")
    backup = list(deployment.processes["helper"].store.writes())
    period(deployment, 1)
    replace_party(deployment, "helper", backup)
    absent_helper = deployment.processes.pop("helper")
    served(deployment, 2)
    deployment.settle()
    assert state_and_parties(deployment, "hub") == ("helper", ["helper"])
    deployment.add(absent_helper)
    deployment.settle()
    assert deployment.processes["hub"].party.broadcasts.keys() == {1, 2}
    assert state_and_parties(deployment, "hub")[0] == "open" and ROWS
