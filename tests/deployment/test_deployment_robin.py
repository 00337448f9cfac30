"""robin at real silos: phases by the calendar, private means at the hub, planted faults."""

import math
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import exchanges
import federation
from exchanges import Redrawing, Uncharged, values
from federation import Violation

from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.bandits.silo import Client
from fastfed.deployment import charges, phases, plans, wire
from fastfed.deployment import folder as folders
from fastfed.deployment.charges import charge_of
from fastfed.deployment.kinds import SAME_SILOS, hub_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import model_of
from fastfed.deployment.observe import hub_numbers, silo_numbers
from fastfed.deployment.phases import PhaseHub, PhaseSilo
from fastfed.deployment.process import settle
from fastfed.deployment.seal import SealedNoise
from fastfed.deployment.wire import Broadcast, Refused, Report
from fastfed.privacy.account import released
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.protocols.server import Averager
from fastfed.protocols.serverless import LocalEstimate

KINDS = {"silo": PhaseSilo, "hub": PhaseHub}


def spec(silos=3, dimension=2, federation_=None, **system):
    """Return the spec of a deployment of robin."""
    return exchanges.spec_of_phases(exchanges.ROBIN | system, silos, dimension, federation_)


@lru_cache
def plan_of(**keys):
    """Return the compiled plan of a spec with these keys."""
    return plans.compile_plan(spec(**keys))


# ---- plan files and charges ----------------------------------------------------------------------


def test_a_plan_file_says_what_it_protects_and_opens_again():
    plan = plan_of()
    assert (plan.plan.releases, plan.plan.release_rounds) == (3, (6, 14, 30))
    certificate = plan.certificate
    assert (certificate.status, certificate.unit, certificate.relation) == (
        "proven",
        "silo",
        "replace",
    )
    assert (
        phases.PRESENCE_CONDITION in certificate.conditions
        and phases.LATE_RECORD_CONDITION in certificate.conditions
    )
    assert not any("simulation" in caveat for caveat in certificate.caveats)
    loaded = plans.load(plan.as_bytes())
    assert loaded.digest == plan.digest and loaded.executed == plan.executed


def test_a_plan_whose_noise_is_less_than_its_certificate_says_is_refused():
    plan = plan_of()
    with_less_noise = tuple(
        msgspec.structs.replace(mean, epsilon_coordinate=2.0 * mean.epsilon_coordinate)
        for mean in plan.executed.means
    )
    exchanges.check_refused(
        plan,
        replace(plan.executed, means=with_less_noise),
        replace(plan.executed, means=plan.executed.means[:-1]),
        replace(plan.executed, initial=3),
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"private": False}, "must be true"),
        ({"clip": False}, "must be true"),
        ({"initial_phases": 9}, "no phase whose estimates are sent"),
        ({"federation_": {"influence": 0.5}}, "influence belongs to silo-ldp"),
        ({"federation_": {"sum": "masks"}}, "has no meaning"),
        ({"batch_size": 5}, "phases double"),
    ],
)
def test_a_spec_that_is_not_deployed_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        plans.compile_plan(spec(**keys))


def test_a_plan_in_phases_continues_only_a_plan_in_phases():
    tables = {"system": spec()["system"], "calendar": {"start": 9000, "period": 100}}
    with pytest.raises(InputError, match="of the same kind"):
        folders.extended(tables, federation.deployed(), b"")
    tables["system"] = federation.spec()["system"]
    with pytest.raises(InputError, match="of the same kind"):
        folders.extended(tables, plan_of(), b"")


def test_the_last_model_is_played_until_the_next_plan_has_one():
    """Run a plan, then a plan that continues it."""
    deployment = federation.Federation(plan_of())
    deployment.settle()
    for close in deployment.plan.document.calendar.closes:
        deployment.now = close - 1.0
        for name in deployment.plan.silos:
            silo = deployment.processes[name]
            silo.reward(silo.decide([[0.6, 0.1], [-0.4, 0.5]]).id, 0.5)
        deployment.now += 1.0
        deployment.settle()
    old = deployment.processes["silo0"].party.model
    assert old.release == deployment.plan.plan.releases and old.theta.any()
    system = spec(epsilon=0.5)["system"]
    plan, new = exchanges.extended_federation(deployment, system)
    silo = new.processes["silo0"].party
    assert silo.model.release == 0 and silo.model.theta.tolist() == old.theta.tolist()
    assert model_of(silo)["theta"] == old.theta.tolist() and "extends" in model_of(silo)
    new.settle()
    closes = plan.document.calendar.closes
    rows = np.random.default_rng(3).uniform(-0.5, 0.5, (30, 2))
    wanted = int(np.argmax(rows @ old.theta))
    new.now = closes[0] - 1.0
    for name in plan.silos:
        decision = new.processes[name].decide(rows)
        # The silo acts greedily on the model even if it has records; it only reports its records.
        assert decision.action == wanted and decision.learns
        new.processes[name].reward(decision.id, 0.9)
        assert new.processes[name].decide(rows).action == wanted
    new.now = float(closes[0])
    new.settle()
    assert silo.model.release == 1 and silo.model.theta.tolist() != old.theta.tolist()
    body = plan.wire.body(plan.wire.read(silo.broadcasts[1]), Broadcast)
    assert body.values == wire.packed(silo.model.theta)
    for close in closes[1:]:
        new.now = float(close)
        new.settle()
    exchanges.check_together(deployment, plan, new, SAME_SILOS)
    fresh, unrelated = exchanges.extended_federation(deployment, system, fresh=True)
    assert fresh.document.extends.why == "requested"
    assert unrelated.processes["silo0"].party.model.start is None


def test_the_symmetric_pair_of_exponential_mechanisms_costs_most():
    for e in (0.001, 0.1, 1.0, 5.0):
        x = np.linspace(-8.0, 8.0, 2001)
        p, q = (1.0 / (1.0 + np.exp(-(x + sign * e / 2.0))) for sign in (1, -1))
        normal = NormalDist()
        mus = [normal.inv_cdf(a) - normal.inv_cdf(b) for a, b in zip(p, q, strict=True)]
        assert max(mus) <= charges.mu_of_exponential(e) * (1.0 + 1e-9)
        assert max(mus) == pytest.approx(charges.mu_of_exponential(e))


@pytest.mark.parametrize(
    ("count", "e", "failure"), [(1, 0.5, 1e-9), (7, 0.3, 1e-6), (200, 0.05, 1e-8)]
)
def test_a_gaussian_mechanism_dominates_randomised_responses(count, e, failure):
    """Compare with the exact privacy profile of the responses, at every epsilon of a grid."""
    mu, truth_probability = charges.mu_of_responses(count, e, failure), 1.0 / (1.0 + math.exp(-e))
    normal = NormalDist()

    def gaussian(epsilon, mu):
        """Return delta at epsilon of Gaussian DP with mu, plus the failure."""
        high, low = normal.cdf(mu / 2 - epsilon / mu), normal.cdf(-mu / 2 - epsilon / mu)
        return failure + (1.0 - failure) * (high - math.exp(epsilon) * low)

    def responses(epsilon):
        """Return delta at epsilon of `count` randomised responses, exactly."""
        masses = (
            math.comb(count, j)
            * (truth_probability**j * (1 - truth_probability) ** (count - j)
            - math.exp(epsilon) * (1 - truth_probability) ** j * truth_probability ** (count - j))
            for j in range(count + 1)
        )  # fmt: skip
        return math.fsum(max(0.0, mass) for mass in masses)

    grid = np.linspace(-1.0, min(count * e, 4.0), 201)
    assert all(responses(x) <= gaussian(x, mu) + 1e-12 for x in grid)
    # A mechanism that is 1 % less private would not dominate them.
    assert any(responses(x) > gaussian(x, 0.99 * mu) for x in grid)


@pytest.mark.parametrize("dimension", [2, 12])
def test_charges_cover_what_the_certificate_proves_at_every_delta(dimension):
    plan = plan_of(dimension=dimension)
    (event,) = released(plan.executed)
    (mu2, failure), parts = charges.totals_of_means(event)[-1], event._first.parts()
    for delta in (1e-6, 1e-5, 1e-3):
        charged = gaussian_epsilon(math.sqrt(mu2), delta - failure)
        # The certificate's bound is at most a relative 10^-4 above the exact value.
        assert charged >= composed_epsilon(parts, delta) * (1.0 - 2e-4)
    # The mechanism's epsilon is lowered so that the ledger meets the spec, but not further.
    assert 0.98 < charges.epsilon_of_means(event) <= 1.0
    assert event.exact() > (0.75 if dimension == 2 else 0.9)


def test_releases_are_charged_what_they_add_and_together_the_whole_plan():
    plan, ledger = plan_of(), Ledger(":memory:")
    ledger.set_ceiling("records", 1.0, 1e-6)
    spent = []
    for k in (1, 2, 3):
        ledger.charge(charge_of(plan.executed, plan.digest, "records", k))
        spent.append(ledger.epsilon("records"))
    assert 0.0 < spent[0] < spent[1] < spent[2] <= 1.0
    whole = charge_of(plan.executed, plan.digest, "records", -1)
    assert math.fsum(c.mu2 for c in ledger.charges("records")) == pytest.approx(whole.mu2)
    with pytest.raises(InputError, match="ceiling"):
        ledger.charge(whole)


# ---- one calm federation -------------------------------------------------------------------------


def test_deployed_parties_compute_the_same_bits_as_client_and_averager():
    plan = plan_of(dimension=3)
    noise, p = SeededNoise(7), plan.plan
    clients, averager = [Client(plan.executed, i) for i in range(3)], Averager(plan.executed, noise)
    deployment = federation.Federation(plan, noise)
    deployment.settle()
    rng = np.random.default_rng(3)
    for round in range(1, 41):
        period = p.due(round - 1) + 1
        deployment.now = [*plan.document.calendar.closes, 9000][period - 1] - 1.0
        for i, client in enumerate(clients):
            rows, y = rng.uniform(-0.5, 0.5, (4, 3)), rng.uniform(-0.2, 1.2)
            process = deployment.processes[f"silo{i}"]
            decision = process.decide(rows)
            assert decision.action == client.select(rows)
            assert decision.learns == (round <= 30)
            client.observe(y)
            process.reward(decision.id, y)
        if p.due(round) == period:
            model = averager.combine([client.estimate() for client in clients])
            for client in clients:
                client.adopt(model)
            deployment.now += 1.0
            deployment.settle()
            actual = deployment.processes["hub"].party.broadcasts[period]
            assert np.array_equal(values(plan, actual, Broadcast), model.values)
            for i, client in enumerate(clients):
                assert np.array_equal(
                    deployment.processes[f"silo{i}"].party.model.theta, client.theta
                )
    for ledger in deployment.ledgers.values():
        assert 0.99 < ledger.epsilon("records") <= 1.0
    party = deployment.processes["silo0"].party
    assert model_of(party)["V"] is None and model_of(party)["theta"] == party.model.theta.tolist()
    assert silo_numbers(deployment.processes["silo0"])["released"] == 3
    assert hub_numbers(deployment.processes["hub"].party, deployment.now)["released"] == 3


def first_release(plan, rows, rewards=(0.9,), silo="silo1", away=()):
    """Return a federation after its first release, in which one silo has records."""
    deployment = federation.Federation(plan)
    deployment.settle()
    process = deployment.processes[silo]
    for x, y in zip(rows, rewards, strict=True):
        process.reward(process.decide([x]).id, y)
    for name in away:
        del deployment.processes[name]
    deployment.now = float(plan.document.calendar.closes[0] + federation.GRACE)
    deployment.settle()
    return deployment


def test_noise_depends_on_all_estimates_and_the_rotation_on_none():
    plan = plan_of()
    first, repeated, other = (
        values(
            plan, first_release(plan, [[x, 0.2]]).processes["hub"].party.broadcasts[1], Broadcast
        )
        for x in (0.5, 0.5, 0.5000001)
    )
    assert np.array_equal(first, repeated)
    # The estimates differ by about 10^-6, and so would the means if the noise were the same.
    assert np.abs(first - other).min() > 1e-3
    noises = [SealedNoise(b"k" * 32, b"p" * 32, "hub") for _ in "ab"]
    for noise, sums in zip(noises, (b"one", b"two"), strict=True):
        noise.set_hidden_sums(1, sums)
    signs = [noise.uniforms(12, 1, 64) for noise in noises]
    assert np.array_equal(*signs) and 0.3 < (signs[0] < 0.5).mean() < 0.7
    assert not np.array_equal(signs[0], noises[0].uniforms(12, 2, 64))
    assert not np.array_equal(*(noise.ideal_draws(14, 1, 8).values for noise in noises))
    ranges = [noise.ideal_uniforms(13, 1, 8).random_u64 for noise in noises]
    assert not np.array_equal(*ranges)


def test_a_silo_that_is_missing_counts_as_an_estimate_of_0():
    plan = plan_of()
    with_silo2 = first_release(plan, [[0.5, 0.2]])
    without_silo2 = first_release(plan, [[0.5, 0.2]], away=("silo2",))
    # silo2 has no records: its estimate is 0, whether silo2 reports or not.
    assert 2 not in [e.silo for e in without_silo2.processes["hub"].party.sets[1].entries]
    actual = [
        values(plan, each.processes["hub"].party.broadcasts[1], Broadcast)
        for each in (with_silo2, without_silo2)
    ]
    assert np.array_equal(*actual)
    report = with_silo2.processes["hub"].party.reports[1, 2]
    assert np.array_equal(values(plan, report, Report), np.zeros(2))


def test_estimates_of_any_finite_size_are_accepted_and_others_are_refused():
    """Refusing large estimates would reveal their size; the private mean clips them instead."""
    plan = plan_of()
    hub = hub_of(plan, federation.secret("hub"))
    deployment = first_release(plan, [[0.5, 0.2]])
    for write in deployment.processes["hub"].store.writes():
        if write.kind == "join":
            hub.fold(write)
    for bad_value in (math.nan, math.inf):
        with pytest.raises(Refused, match="finite"):
            hub.handle(federation.sealed_report(plan, 0, 1, np.array([bad_value, 0.0])), 0.0)
    huge = federation.sealed_report(plan, 0, 1, np.array([1e300, -1e300]))
    for write in hub.handle(huge, 0.0).writes:
        hub.fold(write)
    mean = plan.executed.means[0]
    estimates = [LocalEstimate(2, values(plan, huge, Report) * (i == 0), i) for i in range(3)]
    model = Averager(plan.executed).combine(estimates).values
    assert np.abs(model).max() <= hub._range.broadcast(1)[0] < 1e3 * mean.noise_stds["mean"]


def test_a_model_that_no_mean_with_noise_can_give_is_refused():
    plan = plan_of()
    deployment = first_release(plan, [[0.5, 0.2]], away=("silo2",))
    other = federation.Federation(plan)
    late, other.now = other.processes["silo2"], deployment.now
    late.tick()
    actual = deployment.processes["hub"].party.broadcasts[1]
    body = plan.wire.body(plan.wire.read(actual), Broadcast)
    hub = federation.Identity(federation.secret("hub"))
    wrong = msgspec.structs.replace(body, values=wire.packed(np.array([1e9, 0.0])))
    with pytest.raises(Refused, match="beyond"):
        late.handle(federation.news(plan, plan.wire.signed(hub, "hub", 1, wrong)))
    assert late.party.model.release == 0


# ---- schedules and planted faults ----------------------------------------------------------------


def schedules(seeds, kinds=KINDS, **chances):
    """Run schedules of faults, one for each seed, and return them."""
    return exchanges.schedules(plan_of(), seeds, kinds, **chances)


def test_any_schedule_of_kills_and_restores_ends_in_one_model():
    worlds = schedules(range(20), kill=0.06) + schedules(range(20, 35), kill=0.04, restore=0.5)
    worlds += schedules(range(40, 100), kill=0.06, erase=0.2, stride=40.0)
    assert sum(w.snapshots for w in worlds) > 300 and sum(w.erased for w in worlds) > 40
    assert sum(w.kills for w in worlds) > 250 and sum(w.restores for w in worlds) > 15
    # Records were learned from: first reports differ by schedule.
    assert len({w.reports.get(("silo0", 1)) for w in worlds}) > 20


def test_a_restored_hub_opens_the_same_sets_and_makes_the_same_models():
    """Silos are away for at most 200 seconds, and the restored hub waits for them."""
    worlds = exchanges.schedules_with_the_hub_put_back(spec(), range(16), KINDS)
    assert sum(w.hub_restores for w in worlds) > 15 and sum(w.behind for w in worlds) > 3


class AddingLateRewards:
    """A planted fault: a silo that adds late rewards to a sealed phase."""

    def _open_leaf(self, now):
        return max(1, self.deployed.document.calendar.period(now) - 1)


class Whimsical:
    """A planted fault: a silo whose estimate changes each time it is computed."""

    def report(self, release):
        d = self.plan.dimension
        return self.encrypt_report(release, np.random.default_rng().normal(size=d))


class Forgetful:
    """A planted fault: a silo whose snapshot does not hold the number of its records."""

    snapshot_attributes = ()


@pytest.mark.parametrize(
    ("party", "fault", "message"),
    [
        ("hub", Redrawing, "broadcast|log"),
        ("silo", AddingLateRewards, "invariant 3"),
        ("silo", Uncharged, "invariant 5"),
        ("silo", Whimsical, "invariant|two"),
        ("silo", Forgetful, "leads to another state"),
    ],
)
def test_planted_faults_are_caught(party, fault, message):
    with pytest.raises((Violation, InputError), match=message):
        schedules(range(12), exchanges.with_fault(KINDS, party, fault), kill=0.1)


# ---- commands ------------------------------------------------------------------------------------


def test_commands_make_join_and_open_a_plan_of_robin(tmp_path):
    processes = exchanges.opened(tmp_path, spec(), "silo")
    assert isinstance(processes["silo0"].party, PhaseSilo)
    assert isinstance(processes["hub"].party, PhaseHub)
    for process in processes.values():
        process.clock = lambda: 1350.0
    settle(processes)
    assert processes["silo1"].party.model.release == 3
    for process in processes.values():
        process.store.close()
    assert folders.export_model(tmp_path / "silo0")["release"] == 3
