"""Tests of deployments in which users' devices send bits (protocol "user-bit")."""

import json
import math
import shutil
import subprocess
from decimal import Decimal, getcontext
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

import federation
import records
import schedules
from oracle import user_bit as oracle

from fastfed import InputError
from fastfed.deployment import bit_to_send, plans
from fastfed.deployment.agent import PrivateLinUCB
from fastfed.deployment.charges import charge_of
from fastfed.deployment.data import cases, source_of
from fastfed.deployment.folder import extended
from fastfed.deployment.kinds import SAME_VISITORS, silo_of
from fastfed.deployment.ledger import epsilon_of_charges
from fastfed.deployment.process import Call, SiloProcess
from fastfed.deployment.replay import survey
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.wire import Refused, packed
from fastfed.privacy.mechanisms import user_bit

ONE = 2**53
PAGE = Path(__file__).parents[2] / "docs" / "user-bit.md"


@pytest.fixture
def plan():
    """Return a plan in which users send bits, for two features."""
    return federation.deployed(federation.BITS, dimension=2)


def test_the_certificate_is_pure_and_states_the_epsilon_of_the_bits_that_are_sent(plan):
    certificate, flips = plan.certificate, plan.plan.flips
    getcontext().prec = 40
    exact = (Decimal(ONE - flips) / flips).ln()
    assert certificate.status == "proven" and certificate.unit == "reward"
    assert certificate.exact.delta == 0.0
    assert 0 <= Decimal(certificate.exact.epsilon) - exact < Decimal("1e-15")
    texts = " ".join(condition.text for condition in certificate.conditions)
    assert "one bit at most" in texts and "contexts" in texts
    # A silo adds no noise that its secret could remove.
    assert "secret" not in texts


def test_the_model_is_the_ridge_estimate_of_the_bits_values(plan):
    deployment = federation.Federation(plan)
    deployment.settle()
    chance = plan.plan.flips / ONE
    rng, rows, values = np.random.default_rng(2), [], []
    for close in plan.document.calendar.closes:
        deployment.now = close - 1.0
        for name in plan.silos:
            for _ in range(4):
                offered = rng.uniform(-0.7, 0.7, (3, 2))
                decision = deployment.processes[name].decide(offered.tolist())
                bit = int(rng.integers(2))
                deployment.processes[name].bit(decision.id, bit)
                rows.append(offered[decision.action])
                values.append((bit - chance) / (1.0 - 2.0 * chance))
        deployment.now = float(close)
        deployment.settle()
        x, z = np.array(rows), np.array(values)
        released = deployment.processes["silo0"].party.model.release
        ridge = plan.plan.regularizer[plan.plan.entry(released)]
        theta = np.linalg.solve(x.T @ x + ridge * np.eye(2), x.T @ z)
        for name in plan.silos:
            assert deployment.processes[name].party.model.theta == pytest.approx(theta, abs=1e-12)
    assert released == plan.plan.releases
    spent = deployment.ledgers["silo0"].epsilon("records")
    assert plan.certificate.exact.epsilon <= spent <= 1.0 + 1e-9


def test_a_bit_is_charged_once_as_a_gaussian_that_covers_each_test(plan):
    first, second, whole_plan = (charge_of(plan.executed, b"p", "records", k) for k in (1, 2, -2))
    probability = 1.0 - plan.plan.flips / ONE
    assert first.pure == pytest.approx(1.0, abs=1e-11) and first.failure == 0.0
    assert math.sqrt(first.mu2) == pytest.approx(2.0 * NormalDist().inv_cdf(probability))
    assert (second.mu2, second.pure) == (0.0, 0.0)
    assert (whole_plan.mu2, whole_plan.pure) == (first.mu2, first.pure)
    # The best test between two rewards is no better than the best one between the two normals.
    mu, normal = math.sqrt(first.mu2), NormalDist()
    for alpha in np.linspace(0.001, 0.999, 200):
        vertices = [0.0, 1.0 - probability, 1.0], [1.0, 1.0 - probability, 0.0]
        assert np.interp(alpha, *vertices) >= normal.cdf(normal.inv_cdf(1 - alpha) - mu) - 1e-12


def test_rewards_are_refused_and_so_is_what_is_no_bit(plan):
    deployment = federation.Federation(plan)
    deployment.settle()
    deployment.now += 1.0
    silo = deployment.processes["silo0"]
    name = silo.decide(federation.ROWS).id
    for call in (silo.reward, silo.outcome):
        with pytest.raises(InputError, match="users' devices send, not from rewards: call bit"):
            call(name, 0.37)
    for wrong in (True, 0.5, 1.0, "1", 2, -1, None):
        with pytest.raises(InputError, match="bit must be 0 or 1"):
            silo.bit(name, wrong)
    silo.bit(name, 1)
    silo.bit(name, 1)
    with pytest.raises(InputError, match="an outcome cannot be changed"):
        silo.bit(name, 0)
    other = federation.Federation(federation.deployed("silo-ldp"))
    with pytest.raises(InputError, match='bit is for protocol "user-bit"'):
        other.processes["silo0"].bit(name, 1)


def test_the_hub_refuses_sums_that_no_bits_can_have(plan):
    deployment = federation.Federation(plan)
    deployment.settle()
    deployment.now = float(plan.document.calendar.closes[0])
    hub = deployment.processes["hub"]
    largest = max(map(abs, plan.plan.bit_values))
    # All records x = (1, 0) with the largest value, then 1 % more of x y than they allow.
    for factor, refused in ((1.0, False), (1.01, True)):
        count = plan.plan.most_records(1)
        values = np.array([factor * count * largest, 0.0, count, 0.0, 0.0])
        report = federation.sealed_report(plan, 0, 1, packed(values))
        if refused:
            with pytest.raises(Refused, match="report 1 of silo0"):
                hub.party._store_report(0, plan.wire.read(report), report)
        else:
            assert hub.party._store_report(0, plan.wire.read(report), report).writes


def test_schedules_of_faults_with_bits():
    releases = 0
    for seed in range(schedules.ALL, schedules.ALL + 400):
        if schedules.chosen(seed)[0] == federation.BITS:
            counts, broken = schedules.run(seed)
            assert not broken, (seed, broken)
            releases += counts["releases"]
    assert releases > 20


# ---- persons who come several times --------------------------------------------------------------


def returning(count, epsilon=1.0, **system):
    """Return a plan that learns from a person up to ``count`` times."""
    return federation.deployed(
        federation.BITS,
        batches=max(4, count),
        system={"batch_size": 5, "returning": count, "epsilon": epsilon, **system},
    )


@pytest.mark.parametrize(("count", "delta"), [(3, 0.0), (3, 1e-3), (12, 1e-6), (40, 1e-6)])
def test_the_certificate_composes_the_bits_of_a_person_exactly(count, delta):
    plan = returning(count, **({"delta": delta} if delta else {}))
    q, exact = plan.plan.flips / ONE, plan.certificate.exact
    assert plan.plan.privacy.max_participations == count
    assert 0.85 < exact.epsilon <= 1.0 and exact.delta == delta
    if delta:
        assert exact.epsilon <= count * math.log((1.0 - q) / q)
        assert oracle.delta_binomial(q, count, exact.epsilon) <= delta
        assert oracle.delta_binomial(q, count, exact.epsilon * 0.998) > delta
    else:
        assert exact.epsilon == pytest.approx(count * math.log((1.0 - q) / q), abs=1e-14)
    texts = [condition.text for condition in plan.certificate.conditions]
    assert any(f"at most {count} bits to all silos together" in text for text in texts)
    assert any(f"at most {count} rewards at all silos" in text for text in texts)


@pytest.mark.parametrize(("count", "delta"), [(3, 0.0), (3, 1e-3), (40, 1e-6)])
def test_the_charge_of_several_bits_covers_every_test_between_two_inputs(count, delta):
    plan = returning(count, **({"delta": delta} if delta else {}))
    charge, second = (charge_of(plan.executed, b"p", "records", k) for k in (1, 2))
    q, mu, normal = plan.plan.flips / ONE, math.sqrt(charge.mu2), NormalDist()
    assert (second.mu2, second.pure) == (0.0, 0.0)
    # The best tests reject if at most j of the bits are ones.
    tests = [(0.0, 0.0)]
    for j in range(count + 1):
        sizes = (stats.binom.cdf(j, count, chance) for chance in (1.0 - q, q))
        tests.append(tuple(sizes))
    sizes, powers = map(np.array, zip(*tests, strict=True))
    for alpha in np.linspace(1e-4, 1.0 - 1e-4, 400):
        least = 1.0 - np.interp(alpha, sizes, powers)
        gaussian = normal.cdf(normal.inv_cdf(1.0 - alpha) - mu)
        assert least >= gaussian * (1.0 - charge.failure) - 1e-9
    # A mechanism with a 3 % smaller mu would not cover all tests.
    alphas = sizes[1:-1]
    gaps = [
        (1.0 - powers[i + 1]) - normal.cdf(normal.inv_cdf(1.0 - a) - 0.97 * mu)
        for i, a in enumerate(alphas)
    ]
    assert min(gaps) < 0.0
    assert charge.pure >= count * math.log((1.0 - q) / q)
    spent = epsilon_of_charges([charge], delta or 1e-6)
    assert plan.certificate.exact.epsilon <= spent * (1.0 + 1e-9) and spent <= 1.0 + 1e-9


def test_a_silo_learns_from_a_person_as_often_as_the_plan_says():
    plan = returning(3)
    deployment = federation.Federation(plan)
    deployment.settle()
    deployment.now += 1.0
    silo = deployment.processes["silo0"]

    def learns(subject):
        return silo.decide(federation.ROWS, subject).learns

    assert [learns("anna") for _ in range(5)] == [True] * 3 + [False] * 2
    assert [learns(" anna"), learns("bert"), learns(7), learns("7")] == [False, True, True, True]
    # Two calls of one person that are in flight have different numbers, or one of them waits.
    calls = [Call(lambda: silo.party.decide(federation.ROWS, silo.now(), "carl")) for _ in range(4)]
    for call in calls:
        silo.submit(call)
    assert silo.waiting == 1
    for call in calls:
        silo.finish(call)
    assert [call.returned().learns for call in calls] == [True] * 3 + [False]
    restarted = SiloProcess(
        silo_of(plan, "silo0", federation.secret("silo0"), silo.ledger),
        MemoryStore(list(silo.store.writes())), silo.ledger, lambda: deployment.now,
    )  # fmt: skip
    decided = [restarted.decide(federation.ROWS, name).learns for name in ("anna", "bert", "bert")]
    assert decided == [False, True, True]
    assert not restarted.decide(federation.ROWS, "bert").learns


def test_a_survey_counts_a_person_as_often_as_the_plan_learns(tmp_path):
    system = {"horizon": 20, "batch_size": 5, "epsilon": 1.0, "returning": 2}
    system |= {"protocol": federation.BITS, "protects": "reward"}
    plan = plans.compile_plan(records.spec() | {"system": system})
    rows = "".join(f"{who},63,1,m,0\n" for who in ("a", "b", "a", "a", "a"))
    (tmp_path / "a.csv").write_text(f"who,age,pain,sex,num\n{rows}", encoding="utf-8")
    source = source_of({"file": "a.csv", "subject": "who"}, tmp_path)
    counts = survey(plan, source, cases(source, plan.document.schema))
    assert (counts["learned"], counts["repeated"]) == (3, 2)


def test_a_plan_that_continues_another_adds_up_the_bits_of_both():
    earlier = returning(3)
    spec = federation.spec(federation.BITS, batches=4, system={"batch_size": 5, "epsilon": 0.5})
    calendar = spec["calendar"] | {"start": earlier.document.calendar.closes[-1] + 1}
    later = extended({"system": spec["system"], "calendar": calendar}, earlier)
    (together,) = later.certificate.also
    assert (together.exact.epsilon, together.exact.delta) == (pytest.approx(1.5), 0.0)
    assert together.conditions == (SAME_VISITORS,)


# ---- the device ----------------------------------------------------------------------------------


def test_a_device_compares_53_bits_with_exact_thresholds(monkeypatch):
    flips, reward = 3 * 2**50 + 1, 0.25
    for rounded, flipped, wanted in (
        (2**51 - 1, flips, 1), (2**51, flips, 0), (2**51 - 1, flips - 1, 0), (2**51, flips - 1, 1),
    ):  # fmt: skip
        words = iter([rounded, flipped])
        monkeypatch.setattr(user_bit.secrets, "randbits", lambda bits, w=words: next(w))
        assert bit_to_send(reward, flips) == wanted


@pytest.mark.parametrize("reward", [-0.3, 0.0, 0.3, 1.0, 7])
def test_a_device_sends_bits_of_the_stated_probability(reward):
    flips, runs = ONE // 4, 20_000
    ones = sum(bit_to_send(reward, flips) for _ in range(runs))
    chance = 0.25 + 0.5 * min(max(reward, 0.0), 1.0)
    assert stats.binomtest(ones, runs, chance).pvalue > 1e-6


def test_a_device_refuses_invalid_rewards_and_flips():
    for wrong in (float("nan"), "0.5x", None, [1.0]):
        with pytest.raises(InputError, match="reward must be a finite number, got something else"):
            bit_to_send(wrong, 5)
    for flips in (0, ONE // 2, 1.5):
        with pytest.raises(InputError, match="flips"):
            bit_to_send(0.5, flips)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_of_the_page_sends_bits_of_the_stated_probability():
    (script,) = [part.split("```")[0] for part in PAGE.read_text().split("```js\n")[1:]]
    flips, runs = ONE // 4 - 1, 4_000
    loop = f"""
    const ones = [0, 0.3, 1].map((y) => {{
      let sum = 0;
      for (let i = 0; i < {runs}; i++) sum += bitToSend(y, {flips});
      return sum;
    }});
    const words = [[2**51 - 1, 5], [2**51, 5], [2**51 - 1, 4], [2**51, 4]];
    randomBits = () => drawn.shift();
    let drawn;
    const edges = words.map((pair) => {{ drawn = [...pair]; return bitToSend(0.25, 5); }});
    console.log(JSON.stringify([ones, edges]));
    """
    run = subprocess.run(["node", "-e", script + loop], capture_output=True, text=True, check=True)
    ones, edges = json.loads(run.stdout)
    for reward, count in zip((0.0, 0.3, 1.0), ones, strict=True):
        assert stats.binomtest(count, runs, 0.25 + 0.5 * reward).pvalue > 1e-6
    assert edges == [1, 0, 0, 1]


# ---- an agent of one service ---------------------------------------------------------------------


def test_an_agent_learns_from_bits(tmp_path):
    settings = {
        "epsilon": 1.0, "period": 60, "releases": 3, "batch_size": 50, "dimension": 2,
        "protocol": "user-bit", "start": 1_000_000,
    }  # fmt: skip
    with PrivateLinUCB(tmp_path / "shop", **settings) as agent:
        assert agent.certificate.unit == "reward" and agent.certificate.exact.delta == 0.0
        assert 0 < agent.flips < ONE // 2
        decision = agent.select([[0.5, 0.5]], subject="a")
        agent.bit(decision, bit_to_send(0.5, agent.flips))
        with pytest.raises(InputError, match="call bit"):
            agent.observe(decision, 0.5)
    with PrivateLinUCB(tmp_path / "shop", protocol="user-bit") as agent:
        assert agent.status()["open_decisions"] == 0
