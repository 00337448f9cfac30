"""Deployed federations with sealed noise have the distribution of the simulated plan.

Every run has other secrets behind its noise. What is released over the same records is compared
with what the step objects release under seeds: Kolmogorov-Smirnov of each number, and the ratio of
variances of all. With one seed their bits are the same (test_deployment_simulator.py).
"""

import os

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from federation import MASKED_BITS, MASKS, Federation, deployed
from problems import ordinary_cases

from fastfed._random import SeededNoise
from fastfed.bandits.silo import Silo
from fastfed.deployment.seal import SealedNoise, keyed_digest
from fastfed.deployment.wire import Broadcast
from fastfed.protocols.randomizer import Shuffler
from fastfed.protocols.secure_sum import simulated_keys
from fastfed.protocols.server import Server

CASES = {
    "silo-ldp": ("silo-ldp", {}),
    "silo-ldp honaker": ("silo-ldp", {"system": {"batch_size": 2, "release": "honaker"}}),
    "silo-ldp toeplitz": ("silo-ldp", {"system": {"batch_size": 2, "release": "toeplitz"}}),
    "silo-ldp-prefix": ("silo-ldp-prefix", {}),
    "feducb": ("feducb", {}),
    "central": ("central", {}),
    "secure-sum": ("secure-sum", {}),
    "secure-sum by masks": (MASKS, {}),
    "shuffle-vector": ("shuffle-vector", {}),
    "shuffle-vector by masks": (MASKED_BITS, {}),
}
#: The one row that is offered, so that records do not depend on what is released, and rewards.
ROW, REWARDS = [[0.6, -0.3]], (0.25, 1.0)


def plan_of(case):
    protocol, tables = CASES[case]
    return deployed(protocol, batches=2, batch=2, **tables)


def deployed_once(plan, run):
    """What a federation released, (K, s): its noise is sealed by this run's secrets."""
    made = Federation(plan)
    for name in (*plan.silos, "hub"):
        party = made.processes[name].party
        own = keyed_digest(b"law" + bytes(29), b"tests", name.encode(), run.to_bytes(4, "big"))
        party._sealing = SealedNoise(own, plan.digest, name)
        if name != "hub":
            party._noise = party._sealing.source
        elif plan.plan.protocol.noise_by == "server":
            party._server = Server(plan.plan, party._sealing.source)
    for close in plan.document.calendar.closes:
        made.now = close - 1.0
        for name in plan.silos:
            for reward in REWARDS:
                process = made.processes[name]
                process.reward(process.decide(ROW).id, reward)
        made.now = float(close)
        made.settle()
    sent = made.processes["hub"].party.broadcasts
    return [
        np.frombuffer(plan.wire.body(plan.wire.read(sent[k]), Broadcast).values)
        for k in range(1, plan.plan.releases + 1)
    ]


def simulated_once(plan, run):
    """The same of the step objects, under one seed."""
    p, noise = plan.plan, SeededNoise(run)
    keys = [simulated_keys(run, i, p.silos) if p.secure else None for i in range(p.silos)]
    silos = [Silo(p, i, noise, keys[i]) for i in range(p.silos)]
    server, shuffler, values = Server(p, noise), Shuffler(p, noise), []
    for _ in range(p.releases):
        for silo in silos:
            for reward in REWARDS:
                silo.select(np.array(ROW))
                silo.observe(reward)
        reports = [silo.report() for silo in silos]
        broadcast = server.combine(shuffler.shuffle(reports) if p.protocol.bits else reports)
        for silo in silos:
            silo.receive(broadcast)
        values.append(np.array(broadcast.values))
    return values


def problems(case, runs, factor=1.0):
    """p-values of all comparisons that are too small together, by name; factor scales noise."""
    plan = plan_of(case)
    found = np.array([deployed_once(plan, run) for run in range(runs)])
    wanted = np.array([simulated_once(plan, run) for run in range(3 * runs)])
    centre = wanted.mean(axis=0)
    found = centre + factor * (found - centre)
    tests = {}
    for k, i in np.ndindex(found.shape[1:]):
        tests[f"release {k + 1}, entry {i}"] = stats.ks_2samp(found[:, k, i], wanted[:, k, i])[1]
    # What a release adds to the one before: noise that nodes share must cancel alike.
    for i in range(found.shape[2]):
        added = [np.diff(each[:, :, i], axis=1)[:, 0] for each in (found, wanted)]
        tests[f"added to entry {i}"] = stats.ks_2samp(*added)[1]
    # Entries have independent noise, and so have different runs.
    for k in range(found.shape[1]):
        scale = wanted[:, k].std(axis=0)
        ratio = float((((found - centre)[:, k] / scale) ** 2).mean())
        free = runs * found.shape[2], 3 * runs * found.shape[2]
        tests[f"variance of release {k + 1}"] = 2.0 * min(
            stats.f.cdf(ratio, *free), stats.f.sf(ratio, *free)
        )
    return {name: float(p) for name, p in tests.items() if p < 1e-4 / len(tests)}


@pytest.mark.parametrize(
    "case",
    ordinary_cases(
        ["silo-ldp", "central", "shuffle-vector by masks"], lambda case: case == "silo-ldp"
    ),
)
def test_deployed_federations_have_the_law_of_the_simulated_plan(case):
    assert problems(case, 40) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_many_deployed_federations_have_the_law_of_the_simulated_plan(case):
    assert problems(case, int(os.environ.get("FASTFED_LAW", "1000"))) == {}


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_other_noise_is_found_out(factor):
    """Planted: the noise of deployed federations is smaller or larger than the plan's."""
    assert any("variance" in name for name in problems("silo-ldp", 40, factor))


def test_runs_with_other_secrets_release_other_numbers():
    plan = plan_of("silo-ldp")
    one, other = deployed_once(plan, 1), deployed_once(plan, 2)
    assert not np.any(np.equal(one, other))
    assert np.array_equal(one, deployed_once(plan, 1))
