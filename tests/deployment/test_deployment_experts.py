"""Tests of deployed fed-dp-ope-stoch: places of losses, weights, charges, planted faults."""

import math
import sqlite3
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("cryptography")

import exchanges
import federation
from exchanges import LOSSES, ExpertWorld, Moving, Redrawing, Uncharged, small_plan
from federation import Violation

from fastfed import InputError
from fastfed._random import SeededNoise, SystemNoise
from fastfed.deployment import experts, plans, wire
from fastfed.deployment import folder as folders
from fastfed.deployment.application import answers
from fastfed.deployment.experts import ExpertHub, ExpertSilo, check_experts
from fastfed.deployment.kinds import SAME_PEOPLE, hub_of
from fastfed.deployment.ledger import Charge, Ledger, epsilon_of_charges
from fastfed.deployment.model import model_of
from fastfed.deployment.process import settle
from fastfed.deployment.seal import SealedNoise
from fastfed.deployment.wire import Refused, Report
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.privacy.account import sealed
from fastfed.privacy.accounting.gdp import gaussian_epsilon

KINDS = {"silo": ExpertSilo, "hub": ExpertHub}


def spec(silos=3, dimension=3, federation_=None, **system):
    """Return the spec of a deployment of fed-dp-ope-stoch."""
    return exchanges.spec_of_experts(exchanges.TREES | system, silos, dimension, federation_)


@lru_cache
def plan_of(**keys):
    """Return the compiled plan of a spec with these keys."""
    return plans.compile_plan(spec(**keys))


# ---- plan files and charges ----------------------------------------------------------------------


def test_a_plan_file_says_what_it_protects_and_opens_again():
    plan = plan_of()
    assert plan.plan.release_rounds == tuple(p.first - 1 for p in plan.executed.phases)
    assert plan.plan.releases >= 3 and max(p.trees for p in plan.executed.phases) >= 2
    certificate = plan.certificate
    assert (certificate.status, certificate.unit, certificate.relation) == (
        "proven",
        "user",
        "replace",
    )
    assert (
        experts.OWN_PERIOD_CONDITION in certificate.conditions
        and experts.PRESENCE_CONDITION in certificate.conditions
    )
    assert not any("simulation" in caveat for caveat in certificate.caveats)
    loaded = plans.load(plan.as_bytes())
    assert loaded.digest == plan.digest and loaded.executed == plan.executed


def test_a_plan_whose_numbers_are_not_those_of_its_certificate_is_refused():
    plan = plan_of()
    executed = plan.executed
    quiet = tuple(replace(p, scales=tuple(s / 2.0 for s in p.scales)) for p in executed.phases)
    wide = executed.bounds._replace(high=2.0)
    exchanges.check_refused(
        plan,
        replace(executed, phases=quiet),
        replace(executed, phases=executed.phases[:-1]),
        replace(executed, bounds=wide),
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"noise": "local"}, 'other noise than "central"'),
        ({"delta": 0.0}, "delta = 0"),
        ({"horizon": 3}, "no exchange of losses"),
        ({"federation_": {"explore": 0.1}}, "no explore"),
        ({"federation_": {"influence": 0.5}}, "influence belongs to silo-ldp"),
        ({"batch_size": 5}, "batch_size"),
    ],
)
def test_a_spec_that_is_not_deployed_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        plans.compile_plan(spec(**keys))


def test_a_plan_of_experts_continues_only_a_plan_of_the_same_kind():
    tables = {"system": federation.spec()["system"], "calendar": {"start": 9000, "period": 100}}
    with pytest.raises(InputError, match="of the same kind"):
        folders.extended(tables, plan_of(), b"")


def test_the_last_weights_are_played_until_the_next_plan_has_some():
    deployment = all_releases(plan_of())
    old = deployment.processes["silo0"].party.model.theta
    plan, new = exchanges.extended_federation(deployment, spec(epsilon=0.5)["system"])
    silo = new.processes["silo0"].party
    assert silo.model.release == 0 and silo.model.theta.tolist() == old.tolist()
    assert model_of(silo)["theta"] == old.tolist()
    assert old.tolist() != experts.even_start(plan.executed).tolist()
    decision = new.processes["silo0"].decide()
    assert decision.propensity == old[decision.action]
    all_releases(plan, deployment=new)
    assert silo.model.release == plan.plan.releases
    exchanges.check_together(deployment, plan, new, SAME_PEOPLE)


def test_one_charge_covers_a_loss_of_any_phase():
    exchanges.check_one_charge(plan_of(), 0.99)


def test_pure_charges_are_added_up_where_the_sum_is_less_also_beside_other_charges():
    few = [Charge("d", b"", k, 1.5, 0.0, b"", 1.0) for k in (1, 2)]
    other = Charge("d", b"", 3, 0.2, 1e-9)
    assert epsilon_of_charges(few, 1e-6) == pytest.approx(2.0)
    gaussian = gaussian_epsilon(math.sqrt(0.2), 1e-6 - 1e-9)
    assert epsilon_of_charges([*few, other], 1e-6) == pytest.approx(2.0 + gaussian)
    many = [Charge("d", b"", k, 0.001, 0.0, b"", 0.05) for k in range(1, 1001)]
    assert epsilon_of_charges(many, 1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6))
    assert epsilon_of_charges([], 1e-6) == 0.0


def test_a_ledger_without_pure_charges_of_an_earlier_version_opens(tmp_path):
    path = str(tmp_path / "ledger.sqlite")
    old = sqlite3.connect(path)
    old.executescript(
        "CREATE TABLE ceilings"
        " (dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);"
        "CREATE TABLE charges (dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL,"
        " mu2 REAL NOT NULL, told REAL NOT NULL, report BLOB NOT NULL,"
        " PRIMARY KEY (dataset, plan, release));"
        "INSERT INTO ceilings VALUES ('records', 2.0, 1e-6);"
        "INSERT INTO charges VALUES ('records', X'00', 1, 0.04, 0.0, X'');"
    )
    old.commit()
    old.close()
    for mu2 in (0.04, 0.09):
        ledger = Ledger(path)
        assert ledger.charges("records")[0] == Charge("records", b"\0", 1, 0.04)
        assert ledger.epsilon("records") == pytest.approx(gaussian_epsilon(math.sqrt(mu2), 1e-6))
        ledger.charge(Charge("records", b"\1", 1, 0.05))
        ledger.close()


# ---- one calm federation -------------------------------------------------------------------------


def test_deployed_parties_compute_the_same_bits_as_client_and_server():
    plan, noise = plan_of(), SeededNoise(7)
    p, phases = plan.plan, plan.executed.phases
    clients = [ExpertClient(plan.executed, i, noise) for i in range(3)]
    server = ExpertServer(plan.executed, noise)
    for client in clients:
        client.receive(server.start())
    deployment = federation.Federation(plan, noise)
    deployment.settle()
    rng = np.random.default_rng(3)
    for round in range(1, p.end(p.releases) + 2):
        if clients[0].due:
            deployment.now = float(plan.document.calendar.closes[p.due(round - 1) - 1])
            deployment.settle()
        while clients[0].due:
            choice = server.combine([client.report() for client in clients])
            for client in clients:
                client.receive(choice)
        for i, client in enumerate(clients):
            party = deployment.processes[f"silo{i}"].party
            assert np.array_equal(party.model.theta, client.x)
            loss = rng.uniform(-0.1, 1.1, 3)
            client.observe(loss)
            period = p.due(round - 1) + 1
            if period <= p.releases and round in phases[period - 1].samples:
                deployment.now = plan.document.calendar.closes[period - 1] - 1.0
                decision = deployment.processes[f"silo{i}"].decide()
                assert decision.learns and decision.name == f"e{decision.action}"
                assert decision.propensity == client.x[decision.action]
                deployment.processes[f"silo{i}"].losses(decision.id, loss)
    party = deployment.processes["silo0"].party
    assert party.model.release == p.releases and party.model.theta.max() > 1.0 / 3.0
    assert model_of(party)["V"] is None and model_of(party)["theta"] == party.model.theta.tolist()


def all_releases(plan, late=None, late_losses=LOSSES, deployment=None):
    """Make all releases, and return the deployment.

    The losses of silo1's first decision arrive in period ``late`` (from 0; None: at once).
    """
    deployment = federation.Federation(plan) if deployment is None else deployment
    deployment.settle()
    closes = plan.document.calendar.closes
    waiting = None
    for k, close in enumerate(closes):
        deployment.now = close - 10.0
        for name in plan.silos:
            for n in range(plan.executed.phases[k].used):
                decision = deployment.processes[name].decide()
                if (name, k, n) == ("silo1", 0, 0):
                    waiting = decision.id
                    if late is None:
                        deployment.processes[name].losses(decision.id, late_losses)
                else:
                    deployment.processes[name].losses(decision.id, LOSSES)
            if late == k and name == "silo1":
                deployment.processes[name].losses(waiting, late_losses)
        deployment.now = float(close)
        deployment.settle()
    return deployment


def test_a_loss_enters_only_the_phase_of_its_decision():
    """A loss that arrives in a later period has the same effect as a loss that never arrives."""
    plan = plan_of()
    never, after = (all_releases(plan, late) for late in (99, 1))
    assert never.processes["hub"].party.reports == after.processes["hub"].party.reports
    silo = after.processes["silo1"].party
    assert [e.why for e in silo.ended.values()].count("late") == 1
    # A loss that arrives in time changes only the report of its period, by at most one loss.
    reports_in_time = all_releases(plan).processes["hub"].party.reports
    reports_without = never.processes["hub"].party.reports
    changed = {key for key in reports_in_time if reports_in_time[key] != reports_without[key]}
    assert changed <= {(1, 1)}
    change = np.abs(
        exchanges.values(plan, reports_in_time[1, 1])
        - exchanges.values(plan, reports_without[1, 1])
    ).max()
    assert change <= 1.0 / plan.executed.phases[0].batch


def test_a_silo_that_is_missing_counts_with_losses_of_0():
    plan = plan_of()
    deployment = federation.Federation(plan)
    deployment.settle()
    del deployment.processes["silo2"]
    deployment.now = float(plan.document.calendar.closes[0] + federation.GRACE)
    deployment.settle()
    complete = federation.Federation(plan)
    complete.settle()
    complete.now = deployment.now
    complete.settle()
    actual = [m.processes["silo0"].party.model for m in (deployment, complete)]
    assert [model.release for model in actual] == [1, 1]
    assert np.array_equal(actual[0].theta, actual[1].theta)


def test_a_phase_learns_from_its_number_of_decisions_and_once_from_a_person():
    plan = plan_of()
    deployment = federation.Federation(plan)
    silo, places = deployment.processes["silo0"], len(plan.executed.phases[0].samples)
    assert silo.decide(subject="a").learns and not silo.decide(subject="a").learns
    assert [silo.decide().learns for _ in range(places)] == [True] * (places - 1) + [False]
    # The places of a period do not depend on losses.
    first = next(iter(silo.party.decisions))
    silo.losses(first, LOSSES)
    silo.losses(first, LOSSES)
    assert not silo.decide().learns
    with pytest.raises(InputError, match="ended already"):
        silo.losses(first, [0.0, 0.0, 0.0])


def test_noise_of_a_leaf_depends_on_all_means_and_the_order_on_none():
    noises = [SealedNoise(b"k" * 32, b"p" * 32, "hub") for _ in "abc"]
    for noise, sums in zip(noises, (b"one", b"one", b"two"), strict=True):
        noise.set_hidden_sums(1, sums)
    one, same, other = (noise.ideal_laplace(3, 1, 8).values for noise in noises)
    assert np.array_equal(one, same) and np.abs(one - other).min() > 0.0
    orders = [noise.sample(0, 4, 32) for noise in noises]
    assert np.array_equal(orders[0], orders[2]) and sorted(orders[0]) == list(range(32))
    assert not np.array_equal(orders[0], noises[0].sample(1, 4, 32))


@pytest.mark.parametrize("bad_value", [math.nan, -0.5, 1.1, 0.1 + 2.0**-54, None])
def test_means_that_no_losses_can_have_are_refused(bad_value):
    plan = plan_of()
    hub = hub_of(plan, federation.secret("hub"))
    silo = federation.Identity(federation.secret("silo0"))
    values = np.zeros(plan.wire.size)
    values[0 if bad_value is not None else -1] = bad_value or 0.5
    actual = plan.wire.signed(silo, "silo0", 1, Report(wire.packed(values)))
    with pytest.raises(Refused):
        hub._decrypt_report(plan.wire.read(actual), "a report")


def test_a_broadcast_that_is_no_weights_is_refused():
    plan = plan_of()
    model = federation.Federation(plan).processes["silo0"].party.model
    for first in ([0.5, 0.6, 0.0], [1.5, -0.5, 0.0], [0.0, 0.0, 0.0]):
        with pytest.raises(Refused, match="weights"):
            model.adopt(np.array(first + [0.0] * (plan.wire.size - 3)), 1)
    assert model.release == 0


def test_calls_of_an_application():
    deployment = federation.Federation(plan_of())
    silo = deployment.processes["silo0"]
    decided = answers(silo, "/decide", {"subject": "a"})
    assert decided["name"] == f"e{decided['action']}" and decided["propensity"] == 1.0 / 3.0
    assert answers(silo, "/losses", {"id": decided["id"], "losses": LOSSES})["open_decisions"] == 0
    for path, given, message in (
        ("/decide", {"actions": [[0.0, 0.0, 0.0]]}, "takes subject alone"),
        ("/reward", {"id": decided["id"], "reward": 1.0}, "call losses"),
        ("/losses", {"id": decided["id"], "losses": [0.0]}, "losses"),
        ("/losses", {"id": "x", "losses": LOSSES}, "no decision"),
    ):
        with pytest.raises(InputError, match=message):
            answers(silo, path, given)
    other = federation.Federation(federation.deployed()).processes["silo0"]
    with pytest.raises(InputError, match="no experts"):
        answers(other, "/losses", {"id": "x", "losses": LOSSES})


# ---- schedules and planted faults ----------------------------------------------------------------


def schedules(seeds, kinds=KINDS, **chances):
    """Run schedules of faults, one for each seed, and return them."""
    return exchanges.schedules(plan_of(), seeds, kinds, ExpertWorld, **chances)


def test_any_schedule_of_kills_and_restores_ends_in_one_model():
    worlds = schedules(range(10), kill=0.06) + schedules(range(20, 29), kill=0.04, restore=0.5)
    worlds += schedules(range(40, 100), kill=0.06, erase=0.2, stride=40.0)
    assert sum(w.snapshots for w in worlds) > 300 and sum(w.erased for w in worlds) > 40
    assert sum(w.kills for w in worlds) > 100 and sum(w.restores for w in worlds) > 5
    # Losses were learned from: first reports differ by schedule.
    assert len({w.reports.get(("silo0", 1)) for w in worlds}) > 5


def test_a_restored_hub_opens_the_same_sets_and_makes_the_same_weights():
    worlds = exchanges.schedules_with_the_hub_put_back(spec(), range(5), KINDS, ExpertWorld)
    assert sum(w.hub_restores for w in worlds) > 10 and sum(w.behind for w in worlds) > 0


class Unordered:
    """A planted fault: a silo that orders its losses differently after each restart."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more, noise=SystemNoise())


class Forgetful:
    """A planted fault: a silo whose snapshot does not hold the number of places taken."""

    snapshot_attributes = ("_old_places",)


@pytest.mark.parametrize(
    ("party", "fault", "message"),
    [
        ("hub", Redrawing, "broadcast|log"),
        ("silo", Moving, "another phase"),
        ("silo", Uncharged, "invariant 5"),
        ("silo", Unordered, "invariant|two|another"),
        ("silo", Forgetful, "leads to another state"),
    ],
)
def test_planted_faults_are_caught(party, fault, message):
    with pytest.raises((Violation, InputError), match=message):
        schedules(range(30), exchanges.with_fault(KINDS, party, fault), kill=0.1)


# ---- commands ------------------------------------------------------------------------------------


def test_commands_make_join_and_open_a_plan_of_experts(tmp_path):
    processes = exchanges.opened(tmp_path, spec(), "replace")
    for process in processes.values():
        process.clock = lambda: 1050.0
    silo = processes["silo0"]
    assert isinstance(silo.party, ExpertSilo)
    silo.losses(silo.decide().id, LOSSES)
    for process in processes.values():
        process.clock = lambda: 1150.0
    settle(processes)
    assert silo.party.model.release == 1
    for process in processes.values():
        process.store.close()
    assert sum(folders.export_model(tmp_path / "silo0")["theta"]) == pytest.approx(1.0)


def test_a_plan_whose_losses_would_be_clipped_is_not_deployed():
    """Silos do not clip losses again, so an account for narrower bounds would be wrong."""
    plan = small_plan("fed-dp-ope-stoch").executed
    narrower = sealed(replace(plan, bounds=plan.bounds._replace(high=0.5)))
    with pytest.raises(InputError, match=r"losses beyond \[0, 1\]"):
        check_experts(narrower)
    assert check_experts(plan) is plan
