"""Tests of deployments whose silos report on their own clocks (docs/clocks.md)."""

import os
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("cryptography")

import federation
import schedules as schedules_of_all
from federation import GRACE, START, TICK, ClockedWorld, Violation, clocked, clocked_spec

from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.bandits.noise_distributions import NoiseDistribution, of_views
from fastfed.cli import cli
from fastfed.deployment import plans
from fastfed.deployment.clocked import ClockedHub, ClockedSilo
from fastfed.deployment.folder import extended
from fastfed.deployment.guard import Alarm, sum_of
from fastfed.deployment.kinds import silo_of
from fastfed.deployment.model import ClockedModel, report_variance, view_variance
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.status import facts_of, silo_text
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.wire import Broadcast, Entry, View
from fastfed.simulation.server import Federation as Simulation

GROWING = {"batch_size": "growing", "batch_first": 2, "batch_ratio": 1.4}
CASES = {
    "equal": ({}, "silo-ldp", {}),
    "one is slow": ({"rates": [0.3]}, "silo-ldp", {}),
    "growing": ({"rates": [0.6, 0.3]}, "silo-ldp", GROWING),
    "one comes late, one leaves": ({"asleep": [[1, 1, 6], [2, 13]]}, "silo-ldp", {}),
    "calendars": ({"rates": [0.4], "by": "ticks", "asleep": [[1, 1, 6]]}, "silo-ldp", {}),
    "prefix": ({"rates": [0.3, 0.7]}, "silo-ldp-prefix", {}),
    "toeplitz": ({"rates": [0.3, 0.7]}, "silo-ldp", {"release": "toeplitz"}),
    "honaker": ({"rates": [0.3, 0.7]}, "silo-ldp", {"release": "honaker"}),
    "buffered": ({"rates": [0.3, 0.7]}, "silo-ldp", {"release": "buffered"}),
}


def view_of(plan, data):
    """Return the body of a broadcast."""
    return plan.wire.body(plan.wire.read(data), Broadcast)


def hub_of(deployment):
    """Return the hub of a deployment."""
    return deployment.processes["hub"].party


def serve(deployment, tick, names=None, reward=0.5):
    """Add a record at each silo in a tick, close the tick and deliver all messages."""
    deployment.now = START + TICK * tick - 10.0
    for name in names or deployment.plan.silos:
        if name in deployment.processes:
            deployment.processes[name].reward(
                deployment.processes[name].decide(federation.ROWS).id, reward
            )
    deployment.now += 10.0
    deployment.settle()


def started(clock, protocol="silo-ldp", **more):
    """Return a federation whose silos have their own clocks, after all parties have joined."""
    deployment = federation.Federation(clocked(clock, protocol, **more))
    deployment.settle()
    return deployment


# ---- the simulator -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_deployment_computes_the_same_bits_as_the_simulator(name):
    """Compare actions, views, models and ledgers, for the same rows, rewards and seeds."""
    clock, protocol, system = CASES[name]
    plan = clocked(clock, protocol, system=system, dimension=3, batches=11)
    plan = plans.load(plan.as_bytes())
    p, noise, rng = plan.plan, SeededNoise(7), np.random.default_rng(3)
    simulation, deployment = Simulation(p, noise), federation.Federation(plan, noise)
    deployment.settle()
    hub, views = hub_of(deployment), 0
    for tick in range(1, p.horizon + 1):
        deployment.now = START + TICK * tick - 10.0
        for i, silo in enumerate(simulation.silos):
            rows, y = rng.uniform(-0.9, 0.9, (4, 3)), rng.uniform(-0.2, 1.2)
            if not p.clocks.serves[i, tick - 1]:
                silo.idle()
                continue
            process = deployment.processes[f"silo{i}"]
            decision = process.decide(rows)
            assert decision.action == silo.select(rows)
            silo.observe(y)
            process.reward(decision.id, y)
        deployment.now += 10.0
        deployment.settle()
        if simulation.due:
            simulation.exchange()
            views += 1
            assert len(hub.broadcasts) == views == simulation.server.release
            body = view_of(plan, hub.broadcasts[views])
            assert np.array_equal(np.frombuffer(body.values), simulation.total)
            assert list(body.numbers) == p.clocks.reports[views].tolist()
            for i, silo in enumerate(simulation.silos):
                party = deployment.processes[f"silo{i}"].party
                assert np.array_equal(party.model.theta, silo.theta)
                assert party.released == views
    assert views == plan.exchanges and not hub.alarms
    claims = {text.model: text.exact.epsilon for text in plan.certificate.also}
    for i, reports in enumerate(p.clocks.reports_of_silos):
        party, ledger = deployment.processes[f"silo{i}"].party, deployment.ledgers[f"silo{i}"]
        assert sorted(party.sealed) == list(range(1, reports + 1)) and not party.unreported
        assert [charge.release for charge in ledger.charges("records")] == sorted(party.sealed)
        spent = ledger.epsilon("records")
        assert spent <= plan.certificate.exact.epsilon * (1 + 1e-6)
        stated = [epsilon for model, epsilon in claims.items() if re.search(rf"silos? {i},", model)]
        if stated:
            # The certificate's claim for the reports of this silo.
            assert spent == pytest.approx(stated[0], rel=1e-5)
        if reports == p.releases:
            assert spent == pytest.approx(plan.certificate.exact.epsilon, rel=1e-6)


def test_with_equal_clocks_the_sums_are_those_of_a_plan_without_clocks():
    values = []
    for plan in (
        clocked({}),
        federation.deployed(system={"batch_size": 2}, batch=2),
    ):
        deployment = federation.Federation(plan, SeededNoise(5))
        deployment.settle()
        for close in plan.document.calendar.closes:
            deployment.now = close - 1.0
            for name in plan.silos:
                deployment.processes[name].reward(
                    deployment.processes[name].decide(federation.ROWS).id, 0.7
                )
            deployment.now = float(close)
            deployment.settle()
        sums = [view_of(plan, data).values for data in hub_of(deployment).broadcasts.values()]
        values.append((sums, deployment.processes["silo1"].party.model.theta.tolist()))
    assert values[0] == values[1] and len(values[0][0]) == 4


def test_the_same_records_give_the_same_bytes():
    logs = []
    for _ in range(2):
        deployment = started({"rates": [0.5]})
        for tick in range(1, 9):
            serve(deployment, tick)
        logs.append((hub_of(deployment).reports, hub_of(deployment).broadcasts))
    assert logs[0] == logs[1] and len(logs[0][1]) == 4


# ---- late reports --------------------------------------------------------------------------------


def test_nobody_waits_for_a_silo_and_its_report_enters_a_later_view():
    """Take silo 1 away for four ticks, and bring it back."""
    deployment = started({})
    serve(deployment, 1)
    absent_silo = deployment.processes.pop("silo1")
    serve(deployment, 2)
    hub = hub_of(deployment)
    assert not hub.broadcasts
    # The hub collects the reports of one moment during the grace period.
    assert hub.waits(deployment.now)["state"] == "reports" and hub.waits(deployment.now)["who"] == [
        "silo1"
    ]
    deployment.now += GRACE
    deployment.settle()
    assert view_of(deployment.plan, hub.broadcasts[1]).numbers == (1, 0, 1)
    assert hub.waits(deployment.now)["state"] == "clocks" and hub.status()["waiting_for"] == []
    assert deployment.processes["silo0"].party.model.release == 1
    serve(deployment, 3)
    serve(deployment, 4)
    deployment.now += GRACE
    deployment.settle()
    assert view_of(deployment.plan, hub.broadcasts[2]).numbers == (2, 0, 2)
    # Two reports of silo1 are late. Only the later one, which has the data of both, is added.
    deployment.add(absent_silo)
    deployment.settle()
    assert sorted(absent_silo.party.sealed) == [1, 2] and len(hub.broadcasts) == 2
    assert absent_silo.party.model.release == 0 and absent_silo.party.released == 2
    serve(deployment, 5)
    serve(deployment, 6)
    body = view_of(deployment.plan, hub.broadcasts[3])
    assert body.numbers == (3, 3, 3)
    assert absent_silo.party.model.release == 3
    spent = {name: ledger.charges("records") for name, ledger in deployment.ledgers.items()}
    assert {name: len(charges) for name, charges in spent.items()} == dict.fromkeys(spent, 3)


def test_a_late_report_that_is_not_followed_by_another_enters_the_next_view():
    deployment = started({"rates": [0.5]})
    absent_silo = deployment.processes.pop("silo0")
    for tick in range(1, 5):
        serve(deployment, tick)
    deployment.now += GRACE
    deployment.settle()
    assert view_of(deployment.plan, hub_of(deployment).broadcasts[2]).numbers == (0, 2, 2)
    deployment.add(absent_silo)
    deployment.settle()
    serve(deployment, 6)
    body = view_of(deployment.plan, hub_of(deployment).broadcasts[3])
    assert body.numbers == (1, 3, 3) and len(body.entries) == 3
    reports = [deployment.processes[f"silo{i}"].party.sealed[k] for i, k in enumerate(body.numbers)]
    rows = [np.frombuffer(federation.opened_report(deployment.plan, data)) for data in reports]
    assert np.array_equal(np.frombuffer(body.values), sum_of(rows))


def test_a_report_at_a_later_moment_ends_the_wait_for_an_earlier_one():
    """A silo does not wait for the grace period of an exchange that it takes no part in."""
    calendar = {"start": START, "round": TICK, "grace": 10 * TICK, "reward_deadline": 250}
    clock = {"asleep": [[0, 3, 4], [2, 3, 4]], "by": "ticks"}
    deployment = started(clock, calendar=calendar)
    serve(deployment, 2)
    deployment.processes.pop("silo1")
    serve(deployment, 4)
    # Only silo1 reports at the second moment. The others do at the third.
    assert len(hub_of(deployment).broadcasts) == 1
    serve(deployment, 6)
    assert len(hub_of(deployment).broadcasts) == 2
    deployment.now += 10 * TICK
    deployment.settle()
    assert view_of(deployment.plan, hub_of(deployment).broadcasts[2]).entries == ()
    assert view_of(deployment.plan, hub_of(deployment).broadcasts[3]).numbers == (2, 1, 2)


def test_the_radius_of_a_late_view_is_that_of_its_reports():
    """Compare with the noise distribution, computed from the numbers of reports."""
    for clock, protocol, system in CASES.values():
        plan = clocked(clock, protocol, system=system, dimension=3, batches=11)
        p = plan.plan
        variances = np.array([0.0, *(report_variance(p, k) for k in range(1, p.releases + 1))])
        view = plan.exchanges
        planned = p.clocks.reports[view].tolist()
        late = [max(0, k - i - 1) for i, k in enumerate(planned)]
        model = ClockedModel(p)
        model.adopt_view(np.zeros(p.statistic_size), view, planned)
        assert model.plan is p
        model.adopt_view(np.zeros(p.statistic_size), view, late)
        noise = NoiseDistribution(node=p.noise_std, variances=variances, noises=3)
        reports = p.clocks.reports.copy()
        reports[view] = late
        distributions = of_views(noise, (), reports), of_views(noise, (), p.clocks.reports)
        # The bounds hold for all views together; late reports do not change how many there are.
        actual, expected = (each.errors(3, 0.01 / 4.0)[view] for each in distributions)
        ratio = model.plan.radius.error_bound[view] / p.radius.error_bound[view]
        assert ratio == pytest.approx(actual / expected, rel=1e-12)
        actual, expected = (each.operator_norms(3, 0.01 / 4.0)[view] for each in distributions)
        bound = p.regularizer[view] - p.radius.anchor
        ratio = (model.plan.regularizer[view] - p.radius.anchor) / bound
        assert ratio == pytest.approx(actual / expected, rel=1e-12)
        assert model.plan.radius.floor[view] == model.plan.regularizer[view]
        assert np.array_equal(model.plan.regularizer[:view], p.regularizer[:view])
        assert view_variance(p, late) == pytest.approx(distributions[0].variances[view])


# ---- silos that leave, sleep and come late -------------------------------------------------------


def test_the_last_report_of_a_silo_that_leaves_stays_in_later_views():
    deployment = started({})
    for tick in (1, 2):
        serve(deployment, tick)
    deployment.processes["silo1"].leave()
    deployment.settle()
    for tick in range(3, 9):
        serve(deployment, tick, ["silo0", "silo2"])
    hub = hub_of(deployment)
    numbers = [view_of(deployment.plan, data).numbers for data in hub.broadcasts.values()]
    assert numbers == [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4)]
    assert hub.waits(deployment.now)["state"] == "over" and not hub.silent(deployment.now + 1e6)


def test_the_plan_ends_when_all_silos_have_left():
    deployment = started({})
    for name in deployment.plan.silos:
        deployment.processes[name].leave()
    deployment.settle()
    assert hub_of(deployment).ended == "all silos have left"


def test_after_the_last_exchange_nothing_is_charged():
    deployment = started({})
    absent_silo = deployment.processes.pop("silo1")
    for tick in range(1, 9):
        serve(deployment, tick)
    deployment.now += GRACE
    deployment.settle()
    assert len(hub_of(deployment).broadcasts) == 4
    # A restarted silo asks the hub before it seals anything.
    ledger, secret = deployment.ledgers["silo1"], federation.secret("silo1")
    silo = silo_of(deployment.plan, "silo1", secret, ledger)
    deployment.add(SiloProcess(silo, absent_silo.store, ledger, lambda: deployment.now))
    deployment.settle()
    assert not silo.sealed and set(silo.unreported) == {1, 2, 3, 4}
    assert not ledger.charges("records") and silo.waits(deployment.now)["state"] == "over"


def test_each_silo_closes_its_leaves_by_its_own_calendar():
    deployment = started({"rates": [0.5]})
    calendars = [deployment.processes[name].party.calendar.closes for name in deployment.plan.silos]
    assert calendars[0] == (START + 4 * TICK, START + 8 * TICK)
    assert calendars[1] == tuple(START + TICK * k for k in (2, 4, 6, 8))
    # A record of tick 3 enters the first leaf of silo0, and the second of silo1.
    deployment.now = START + 2.5 * TICK
    leaves = []
    for name in deployment.plan.silos:
        process = deployment.processes[name]
        decision_id = process.decide(federation.ROWS).id
        process.reward(decision_id, 0.5)
        leaves.append(process.party.ended[decision_id].leaf)
    assert leaves == [1, 2, 2]


# ---- status --------------------------------------------------------------------------------------


def test_the_status_says_each_silos_last_report_and_who_is_silent():
    deployment = started({"rates": [0.5]})
    serve(deployment, 2)
    deployment.processes.pop("silo1")
    serve(deployment, 4)
    hub = deployment.processes["hub"]
    deployment.now += GRACE
    deployment.settle()
    facts = facts_of(hub)
    assert facts["releases"] == 4 and facts["released"] == 2 and not facts["notes"]
    texts = {silo["name"]: silo_text(silo) for silo in facts["silos"]}
    assert texts["silo0"].startswith("1 of 2, of 1970-01-01 00:20 UTC")
    assert texts["silo1"].startswith("1 of 4") and texts["silo2"].startswith("2 of 4")
    assert facts["waits"]["state"] == "clocks" and facts["waits"]["who"] == []
    deployment.now += 2 * TICK
    deployment.settle()
    (note,) = facts_of(hub)["notes"]
    assert note.startswith("silo1 is silent: its next report was due") and "no silo waits" in note
    assert hub.party.status(deployment.now)["silent"] == {"silo1": START + 4.0 * TICK}
    assert "silo0" not in hub.party.silent(deployment.now)
    silo = facts_of(deployment.processes["silo0"])
    assert silo["next_close"] == START + 8 * TICK
    assert deployment.processes["silo0"].party.status()["reports"] == [1, 2]


# ---- a hub that lies -----------------------------------------------------------------------------


def send_changed_view(change):
    """Send silo2, which has the first view, a changed second view; return silo2 and its step."""
    deployment = started({"rates": [0.5]})
    serve(deployment, 2)
    silo, hub = deployment.processes["silo2"].party, hub_of(deployment)
    absent_silo = deployment.processes.pop("silo2")
    # The report of silo2 reaches the hub, but the view does not reach silo2.
    deployment.now = START + 4.0 * TICK
    for _ in range(3):
        for to, data in absent_silo.tick():
            if to == "hub":
                deployment.processes["hub"].handle(data)
    deployment.settle()
    envelope = deployment.plan.wire.read(hub.broadcasts[2])
    body = change(deployment.plan.wire.body(envelope, Broadcast))
    data = hub.signed(2, body)
    seen = [hub.seen[hub._report_number(2, entry), entry.silo] for entry in hub.sets[2].entries]
    entries = {deployment.plan.index(deployment.plan.wire.read(each).sender): each for each in seen}
    statements = tuple(entries[entry.silo] for entry in body.entries)
    news = hub.signed(2, federation.News(data, statements))
    return silo, silo.handle(news, deployment.now)


def test_a_silo_accepts_the_view_that_the_hub_made():
    silo, step = send_changed_view(lambda body: body)
    assert not step.problem and step.writes[0].kind == "broadcast"
    silo.fold(step.writes[0])
    assert silo.released == 2 and silo._numbers == (1, 2, 2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda b: msgspec.structs.replace(b, entries=b.entries[1:]), "report 1 of silo silo0"),
        (lambda b: msgspec.structs.replace(b, before=bytes(32)), "does not follow"),
    ],
)
def test_a_silo_stops_if_a_view_contradicts_its_numbers(change, problem):
    assert problem in send_changed_view(change)[1].problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: msgspec.structs.replace(b, numbers=(1, 2)), "must state 3 numbers"),
        (lambda b: msgspec.structs.replace(b, numbers=(1, 3, 2)), "is about release"),
        (lambda b: msgspec.structs.replace(b, values=b.values[8:]), "bytes of values"),
        (
            lambda b: msgspec.structs.replace(
                b, entries=(Entry(b.entries[0].silo, bytes(32)), *b.entries[1:])
            ),
            "no silo signed",
        ),
    ],
)
def test_a_silo_refuses_an_impossible_view(change, message):
    with pytest.raises(InputError, match=message):
        send_changed_view(change)


def test_the_alarm_allows_each_silo_noise_for_the_batches_that_it_has_reported():
    plan = clocked({"rates": [0.5]}).plan
    alarm, rng = Alarm(plan), np.random.default_rng(4)
    rows = {i: rng.uniform(0.0, 1.0, plan.statistic_size) for i in range(3)}
    same = list(alarm.fits_of_view(2, {i: (2, row) for i, row in rows.items()}))
    assert same == list(alarm.fits(2, {2: rows}))
    # Silo 0 has reported one batch, the others two. The sums of silo 0 have less noise of rewards,
    # so the alarm sees smaller deviations.
    (fewer, *_) = alarm.fits_of_view(2, {0: (1, rows[0]), 1: (2, rows[1]), 2: (2, rows[2])})
    assert fewer.moves == same[0].moves and fewer.sees < same[0].sees


def test_clocks_that_differ_raise_the_threshold_of_the_alarm():
    """Each silo is tested in each view, and there are more views than with equal clocks."""
    plan, equal = (clocked(clock).plan for clock in ({"rates": [0.9]}, {}))
    assert len(plan.clocks.ticks) > len(equal.clocks.ticks)
    assert Alarm(plan).threshold > Alarm(equal).threshold


def test_a_silo_that_does_not_fit_the_others_is_named():
    deployment = started({"rates": [0.5]})
    serve(deployment, 1)
    hub, silo = hub_of(deployment), deployment.processes["silo1"].party
    values = silo._range.report(1) * 0.99
    false_report = federation.sealed_report(deployment.plan, 1, 1, values)
    silo.report = lambda release: false_report if release == 1 else b""
    serve(deployment, 2, ["silo0", "silo2"])
    (fit, _) = sorted(hub._fits(1), key=lambda fit: -fit.score)
    assert len(hub.broadcasts) == 1 and {1, 2} == {each.silo for each in hub._fits(1)}
    assert fit.score > 0.0 and "silo1" in hub.status()["moves"]


# ---- restarts, restored backups ------------------------------------------------------------------


def test_a_restored_silo_gets_the_views_and_recovers_its_reports():
    deployment = started({"rates": [0.5]})
    serve(deployment, 2)
    process = deployment.processes["silo1"]
    serve(deployment, 3)
    backup = MemoryStore(list(process.store.writes()))
    serve(deployment, 4, ["silo0", "silo2"])
    sent = process.party.sealed[2]
    ledger = deployment.ledgers["silo1"]
    restored = silo_of(deployment.plan, "silo1", federation.secret("silo1"), ledger)
    deployment.add(SiloProcess(restored, backup, ledger, lambda: deployment.now))
    deployment.settle()
    assert restored.lost.keys() == {2} and restored.waits(deployment.now)["state"] == "recover"
    deployment.processes["silo1"].recover()
    deployment.settle()
    assert restored.sealed[2] == sent and restored.released == 2 and not restored.lost
    assert restored.model.release == 2
    serve(deployment, 6)
    assert view_of(deployment.plan, hub_of(deployment).broadcasts[3]).numbers == (1, 3, 3)


def test_a_restored_hub_makes_the_same_views_again():
    deployment = started({"rates": [0.5]})
    serve(deployment, 2)
    backup = list(deployment.processes["hub"].store.writes())
    absent_silo = deployment.processes.pop("silo1")
    serve(deployment, 4)
    deployment.now += GRACE
    deployment.settle()
    second = hub_of(deployment).broadcasts[2]
    deployment.add(absent_silo)
    hub = ClockedHub(deployment.plan, federation.secret("hub"))
    deployment.add(Process(hub, MemoryStore(backup), None, lambda: deployment.now))
    deployment.settle()
    # silo1 has reported meanwhile, but the set was opened without it.
    assert hub.broadcasts[2] == second and view_of(deployment.plan, second).numbers == (1, 1, 2)
    assert not hub.alarms and (2, 1) in hub.reports


class Stale(ClockedHub):
    """A hub whose views always have the first report of each silo."""

    def _reports_in(self, view):
        rows = super()._reports_in(view)
        return {
            silo: (1, self._decrypt_report(self.wire.read(self.reports[1, silo]), "a report"))
            for silo in rows
        }


class Early(ClockedHub):
    """A hub that adds a report of a later moment."""

    def _planned_number(self, view, silo):
        return super()._planned_number(min(view + 1, self.deployed.exchanges), silo)


class Eager(ClockedSilo):
    """A silo that uses every view."""

    def _use_broadcast(self, model, values, release, body):
        model.adopt_view(values, release, body.numbers)


class ByCount(ClockedSilo):
    """A silo whose leaf ends when it has a number of records."""

    def _open_leaf(self, now):
        return min(1 + sum(e.leaf > 0 for e in self.ended.values()) // 2, self.leaves)


@pytest.mark.parametrize(
    ("kinds", "keys", "problem"),
    [
        ({"hub": Stale}, {}, "not the sum"),
        # The silos refuse a view with a report of a later moment, so the plan makes no progress.
        ({"hub": Early}, {"kill": 0.0}, "did not come to its end"),
        ({"silo": Eager}, {}, "another view"),
        ({"silo": ByCount}, {}, "invariant 3"),
        ({}, {"reverse": True}, "invariant 5"),
    ],
)
def test_planted_faults_are_caught(kinds, keys, problem):
    plan, found = clocked({"rates": [0.5], "asleep": [[1, 7]]}), set()
    for seed in range(40):
        try:
            with federation.quickly():
                ClockedWorld(plan, seed, kinds=kinds, **keys).run()
        except (Violation, ValueError, IndexError) as error:
            found.add(str(error))
            if re.search(problem, str(error)):
                return
    pytest.fail(f"not caught: {found}")


def test_random_schedules_of_own_clocks():
    counts = run_schedules(range(schedules_of_all.OWN_CLOCKS, schedules_of_all.OWN_CLOCKS + 40))
    assert all(counts[f"plan {name}"] for name in schedules_of_all.CLOCKS)
    assert (
        counts["kills"] > 100
        and counts["views with late reports"] > 5
        and counts["hubs restored"] > 5
    )


@pytest.mark.slow
def test_many_random_schedules_of_own_clocks():
    first = schedules_of_all.OWN_CLOCKS + 10_000
    counts = run_schedules(range(first, first + int(os.environ.get("FASTFED_SCHEDULES", "1000"))))
    assert counts["hubs restored to before a broadcast"] > 50


def run_schedules(seeds):
    """Run schedules, and return the counts of their events."""
    total = schedules_of_all.Counter()
    for seed in seeds:
        counts, broken = schedules_of_all.run(seed)
        assert not broken, f"seed {seed}: {broken}"
        total += counts
    return total


# ---- plans ---------------------------------------------------------------------------------------

REFUSED = {
    "wait must be false in a deployment": {"system": {"clock": {"wait": True}}},
    r"clock needs protocol silo-ldp or silo-ldp-prefix": {"system": {"protocol": "central"}},
    "clock needs reports of prefix sums": {"system": {"release": "tree"}},
    "clock needs returning 1|returning": {"system": {"returning": 2}},
    "least must be 1 with clock": {"federation": {"name": "tests", "least": 2}},
    "period must be calendar.round": {"calendar": {"start": START, "period": 100}},
    "must let each silo close a batch .* silo 0": {"system": {"clock": {"rates": [0.01]}}},
    "two silos or more": {"silos": 1},
    "must have 4 closes, one for each exchange .* got 1": {
        "calendar": {"start": START, "closes": [START + 100]}
    },
    "choose longer ticks": {"system": {"horizon": 2**23}},
    "clock.rates": {"system": {"clock": {"rates": [2.0]}}},
    "clock.asleep": {"system": {"clock": {"asleep": [[9, 1]]}}},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_plans_that_cannot_have_clocks_are_refused(sentence):
    change = REFUSED[sentence]
    spec = clocked_spec({"rates": [0.5]}, silos=change.get("silos", 3))
    spec |= {key: table for key, table in change.items() if key not in ("silos", "system")}
    spec["system"] |= change.get("system", {})
    with pytest.raises(InputError, match=sentence):
        plans.compile_plan(spec)


def test_feducb_has_no_clock():
    spec = federation.spec("feducb")
    spec["system"]["clock"] = {}
    with pytest.raises(InputError, match='unknown key "clock"'):
        plans.compile_plan(spec)


def test_defaults_of_plans_with_clocks():
    spec = clocked_spec({"rates": [0.5]})
    spec["calendar"] = {"start": START, "round": 3600}
    document = plans.compile_plan(spec).document
    assert document.least == 1 and document.calendar.grace == 60
    # The longest period of a silo: four ticks of silo0.
    assert document.calendar.reward_deadline == 4 * 3600
    assert document.keys["clock"] == {"rates": [0.5], "asleep": [], "by": "users", "wait": False}


def test_plans_without_clocks_are_as_before():
    plan = federation.deployed()
    assert "clock" not in plan.document.keys and "clocks" not in str(plan.document.numbers.keys())
    assert plan.clocks is None and plan.exchanges == plan.plan.releases
    assert plan.calendar_of(1) is plan.document.calendar
    assert type(view_of(plan, made_broadcast(plan))) is Broadcast


def made_broadcast(plan):
    """Return the first broadcast of a plan without clocks, after one period."""
    deployment = federation.Federation(plan)
    deployment.settle()
    federation.period(deployment, 1)
    return hub_of(deployment).broadcasts[1]


def test_a_plan_file_whose_clock_was_changed_is_refused():
    plan = clocked({"rates": [0.5]})
    numbers = dict(plan.document.numbers)
    assert isinstance(view_of(plan, first_view(plan)), View)
    numbers["clocks.rates"] = [0.5 * (1 + 2.0**-40)]
    document = msgspec.structs.replace(plan.document, numbers=numbers)
    with pytest.raises(InputError, match=r"clocks\.rates"):
        plans.checked(document, {})
    calendar = plan.document.calendar
    fewer = msgspec.structs.replace(calendar, closes=calendar.closes[:-1])
    with pytest.raises(InputError, match="must have 4 closes"):
        plans.checked(msgspec.structs.replace(plan.document, calendar=fewer), {})


def test_a_clock_whose_keys_are_numbers_is_refused():
    """Regression test: reading such a file raised a TypeError."""
    plan = clocked({"rates": [0.5]})
    fields = msgspec.msgpack.decode(plans.spelled(plan.document))
    keys = plans.Document.__struct_fields__.index("keys")
    fields[keys]["clock"] = {1: fields[keys]["clock"]}
    with pytest.raises(InputError, match="canonical form"):
        plans.read_document(msgspec.msgpack.encode(fields))


def first_view(plan):
    """Return the first broadcast of a plan with clocks, after two ticks."""
    deployment = federation.Federation(plan)
    deployment.settle()
    serve(deployment, 2)
    return hub_of(deployment).broadcasts[1]


def test_the_certificate_states_the_condition_and_the_silos_with_fewer_reports():
    certificate = clocked({"rates": [0.5]}).certificate
    texts = [condition.text for condition in certificate.conditions]
    assert any("when a silo reports does not depend on contexts or rewards" in t for t in texts)
    (fewer,) = [also for also in certificate.also if "with 2 reports" in also.model]
    assert "silo 0" in fewer.model and fewer.exact.epsilon < certificate.exact.epsilon
    assert certificate.status == "proven"


def test_the_command_prints_the_dates_of_each_silo(tmp_path):
    lines = ["norm = 1.0", "[federation]", 'name = "tests"', "[system]", "horizon = 8"]
    lines += ["batch_size = 2", "epsilon = 1.0", "delta = 1e-6", "clock = { rates = [0.5] }"]
    lines += ["[calendar]", "start = 2127-01-01T00:00:00Z", "round = 86400"]
    lines += ["[[columns]]", 'name = "x"', "low = -1.0", "high = 1.0"]
    for name in ("north", "east", "hub"):
        keys = federation.party(name)
        lines += ["[hub]"] if name == "hub" else ["[[silos]]", f'name = "{name}"']
        lines += [f'sign = "{keys["sign"]}"', f'open = "{keys["open"]}"']
    (tmp_path / "spec.toml").write_text("\n".join(lines))
    arguments = ["deploy", "new", str(tmp_path / "spec.toml"), str(tmp_path / "plan")]
    output = CliRunner().invoke(cli, arguments).output
    assert "north: 2 reports, from 2127-01-05 00:00 UTC to 2127-01-09 00:00 UTC" in output
    assert "east: 4 reports, from 2127-01-03 00:00 UTC to 2127-01-09 00:00 UTC" in output
    assert "when a silo reports does not depend on contexts or rewards" in " ".join(output.split())


def test_a_plan_with_clocks_continues_and_is_continued():
    deployment = started({"rates": [0.5]})
    for tick in range(1, 9):
        serve(deployment, tick)
    last = hub_of(deployment).broadcasts[4]
    later = {"start": START + 1000, "grace": 50, "reward_deadline": 250}
    budget = {"horizon": 8, "batch_size": 2, "epsilon": 1.0, "delta": 1e-6}
    without_clock = extended(
        {"system": budget, "calendar": {**later, "period": 100}}, deployment.plan, last
    )
    assert without_clock.document.least == 3 and without_clock.document.extends.start == last
    with_clock = extended(
        {
            "system": {**budget, "clock": {"rates": [1.0, 0.5]}},
            "calendar": {**later, "round": 100},
        },
        federation.deployed(system={"batch_size": 2}, batch=2),
    )
    assert with_clock.document.least == 1
    silo = silo_of(without_clock, "silo1", federation.secret("silo1"), deployment.ledgers["silo1"])
    # The model of the last view, in which silo1 took part, is the start.
    assert np.array_equal(silo.model.theta, deployment.processes["silo1"].party.model.theta)
    with pytest.raises(InputError, match="signature of the broadcast"):
        bad = msgspec.structs.replace(without_clock.document.extends, start=last[:-1] + b"\0")
        plans.checked(msgspec.structs.replace(without_clock.document, extends=bad), {})


def test_planned_numbers_never_change_a_plan():
    plan = clocked({"rates": [0.5]}).plan
    before = replace(plan)
    ClockedModel(plan).adopt_view(np.zeros(plan.statistic_size), 2, [0, 1, 2])
    assert np.array_equal(before.radius.error_bound, plan.radius.error_bound)
