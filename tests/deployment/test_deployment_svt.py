"""fed-svt at real silos: sums of the losses of one exchange, switches, charges, planted faults."""

import math
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import exchanges
import federation
from exchanges import LOSSES, ExpertWorld, Moving, Redrawing, Uncharged
from federation import Violation

from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.deployment import experts, plans
from fastfed.deployment.experts import SparseHub, SparseSilo
from fastfed.deployment.kinds import SAME_PEOPLE, hub_of
from fastfed.deployment.wire import Refused
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.experts.plan import ExpertChoice

KINDS = {"silo": SparseSilo, "hub": SparseHub}


def spec(silos=3, **system):
    """Return the spec of a deployment of fed-svt."""
    return exchanges.spec_of_experts(exchanges.SWITCHES | system, silos)


@lru_cache
def plan_of(**keys):
    """Return the compiled plan of a spec with these keys."""
    return plans.compile_plan(spec(**keys))


def test_a_plan_file_says_what_it_protects_and_opens_again():
    plan = plan_of()
    assert plan.plan.release_rounds == (9, 19, 29, 39)
    certificate = plan.certificate
    assert (certificate.status, certificate.unit, certificate.relation) == (
        "proven",
        "user",
        "replace",
    )
    assert experts.OWN_PERIOD_CONDITION in certificate.conditions
    loaded = plans.load(plan.as_bytes())
    assert loaded.digest == plan.digest and loaded.executed == plan.executed
    shortest_phases = plans.compile_plan(spec(phase_length=1, horizon=5))
    assert shortest_phases.plan.release_rounds == (1, 2, 3, 4)


def test_a_plan_whose_numbers_are_not_those_of_its_certificate_is_refused():
    plan = plan_of().executed
    exchanges.check_refused(
        plan_of(),
        replace(plan, noise=msgspec.structs.replace(plan.noise, query_scale=0.5)),
        replace(plan, noise=msgspec.structs.replace(plan.noise, switches=9)),
        replace(plan, phase_length=5),
    )
    with pytest.raises(InputError, match="delta = 0"):
        plans.compile_plan(spec(delta=0.0))


@pytest.mark.parametrize("switches", [3, 60])
def test_one_charge_covers_a_loss_of_any_exchange(switches):
    exchanges.check_one_charge(plan_of(switches=switches), 0.97)


def test_deployed_parties_compute_the_same_bits_as_client_and_server():
    plan, noise = plan_of(epsilon=20.0), SeededNoise(7)
    p = plan.plan
    first = experts.first_expert(plan.digest, 3)
    clients = [ExpertClient(plan.executed, i, noise) for i in range(3)]
    server = ExpertServer(plan.executed, noise)
    server.start()
    server._decider.begin(first)
    for client in clients:
        client.receive(ExpertChoice(0, first))
    deployment = federation.Federation(plan, noise)
    for ledger in deployment.ledgers.values():
        ledger.set_ceiling("records", 20.0, 1e-6)
    deployment.settle()
    rng = np.random.default_rng(3)
    for round in range(1, 41):
        if clients[0].due:
            deployment.now = float(plan.document.calendar.closes[p.due(round - 1) - 1])
            deployment.settle()
            choice = server.combine([client.report() for client in clients])
            for client in clients:
                client.receive(choice)
        for i, client in enumerate(clients):
            party = deployment.processes[f"silo{i}"].party
            assert np.array_equal(party.model.theta, client.x)
            # The best expert is not the first one.
            loss = rng.uniform(-0.1, 1.1, 3)
            loss[(first + 1) % 3] = 0.0
            client.observe(loss)
            period = p.due(round - 1) + 1
            if period <= 4:
                deployment.now = plan.document.calendar.closes[period - 1] - 1.0
                decision = deployment.processes[f"silo{i}"].decide()
                assert decision.learns and decision.action == client.expert
                assert decision.propensity == 1.0
                deployment.processes[f"silo{i}"].losses(decision.id, loss)
    assert deployment.processes["silo0"].party.model.release == 4
    assert server.events["switches"] > 0


def test_the_last_expert_is_the_first_of_a_plan_that_goes_on():
    deployment = all_releases(0)
    old = deployment.processes["silo0"].party.model.theta
    system = spec(epsilon=0.5)["system"]
    plan, new = exchanges.extended_federation(deployment, system)
    silo, hub = new.processes["silo0"].party, new.processes["hub"].party
    assert silo.model.theta.tolist() == old.tolist()
    # Hub and silos agree on the first expert, even if nobody would have chosen it.
    assert hub._server._expert == int(np.argmax(old)) == new.processes["silo0"].decide().action
    all_releases(0, plan=plan, deployment=new)
    assert silo.model.release == plan.plan.releases
    exchanges.check_together(deployment, plan, new, SAME_PEOPLE)
    fresh, unrelated = exchanges.extended_federation(deployment, system, fresh=True)
    first = experts.first_expert(fresh.digest, 3)
    assert unrelated.processes["hub"].party._server._expert == first


def all_releases(late, late_losses=LOSSES, plan=None, deployment=None):
    """Make all releases, and return the deployment.

    The losses of silo1's first decision arrive in period ``late`` (from 0).
    """
    plan = plan_of() if plan is None else plan
    deployment = federation.Federation(plan) if deployment is None else deployment
    deployment.settle()
    for k, close in enumerate(plan.document.calendar.closes):
        deployment.now = close - 10.0
        for name in plan.silos:
            ids = [deployment.processes[name].decide().id for _ in range(5)]
            if (name, k) == ("silo1", 0):
                waiting, *ids = ids
            if (name, k) == ("silo1", late):
                deployment.processes[name].losses(waiting, late_losses)
            for each in ids:
                deployment.processes[name].losses(each, LOSSES)
        deployment.now = float(close)
        deployment.settle()
    return deployment


def test_a_loss_enters_the_exchange_of_its_own_round_or_none():
    never, after, here = (all_releases(late).processes["hub"].party for late in (99, 1, 0))
    assert never.reports == after.reports and never.broadcasts == after.broadcasts
    assert {key for key in here.reports if here.reports[key] != never.reports[key]} == {(1, 1)}
    sums = [exchanges.values(plan_of(), each.reports[1, 1]) for each in (here, never)]
    assert np.allclose(sums[0] - sums[1], LOSSES)


def test_noise_depends_on_all_sums_so_far_but_the_first_threshold_on_none():
    """Compare the keys of all draws of three runs; only the third has other first losses."""
    keys = []

    class Watched(SparseHub):
        """A hub that notes silo, node and key of each draw of noise."""

        def _make_server(self, noise):
            draws = []
            original = self._sealing.key

            def key(purpose, silo, node):
                """Derive a key as before, and note it."""
                drawn_key = original(purpose, silo, node)
                draws.append((silo, node, drawn_key))
                return drawn_key

            self._sealing.key = key
            keys.append(draws)
            return super()._make_server(noise)

    plan = plan_of(epsilon=20.0)
    for first in (LOSSES, LOSSES, [0.2, 0.1, 0.8]):
        deployment = federation.Federation(plan)
        hub = federation.Process(
            Watched(plan, federation.secret("hub")),
            federation.MemoryStore(),
            None,
            lambda deployment=deployment: deployment.now,
        )
        deployment.add(hub)
        for ledger in deployment.ledgers.values():
            ledger.set_ceiling("records", 20.0, 1e-6)
        deployment.settle()
        for k, close in enumerate(plan.document.calendar.closes):
            deployment.now = close - 1.0
            process = deployment.processes["silo0"]
            process.losses(process.decide().id, LOSSES if k else first)
            deployment.now = float(close)
            deployment.settle()
    assert (
        keys[0] == keys[1] and len({drawn_key for _, _, drawn_key in keys[0]}) == len(keys[0]) >= 5
    )
    # The first threshold is drawn before any loss; all other noise depends on the history.
    assert keys[0][0] == keys[2][0]
    assert not {drawn_key for _, _, drawn_key in keys[0][1:]} & {
        drawn_key for _, _, drawn_key in keys[2]
    }


@pytest.mark.parametrize("bad_value", [math.nan, -0.5, 9.1, 0.1 + 2.0**-54])
def test_sums_that_no_losses_can_have_are_refused(bad_value):
    plan = plan_of()
    hub = hub_of(plan, federation.secret("hub"))
    actual = federation.sealed_report(plan, 0, 1, np.array([bad_value, 0.0, 0.0]))
    with pytest.raises(Refused):
        hub._decrypt_report(plan.wire.read(actual), "a report")


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
    assert len({w.reports.get(("silo0", 1)) for w in worlds}) > 10


def test_a_restored_hub_opens_the_same_sets_and_plays_the_same_experts():
    worlds = exchanges.schedules_with_the_hub_put_back(spec(), range(5), KINDS, ExpertWorld)
    assert sum(w.hub_restores for w in worlds) > 10 and sum(w.behind for w in worlds) > 0


@pytest.mark.parametrize(
    ("party", "fault", "message"),
    [
        ("hub", Redrawing, "broadcast|log"),
        ("silo", Moving, "another phase"),
        ("silo", Uncharged, "invariant 5"),
    ],
)
def test_planted_faults_are_caught(party, fault, message):
    # Small noise and a low threshold: experts are switched.
    plan = plan_of(epsilon=4.0, threshold=0.2)
    kinds = exchanges.with_fault(KINDS, party, fault)
    with pytest.raises((Violation, InputError), match=message):
        exchanges.schedules(plan, range(30), kinds, ExpertWorld, kill=0.1)
