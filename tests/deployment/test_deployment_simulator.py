"""Tests that deployed parties and step objects give the same bits with the same rows and seeds."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation

from fastfed._random import SeededNoise
from fastfed.bandits.silo import Silo
from fastfed.deployment.wire import Broadcast
from fastfed.protocols.randomizer import Shuffler, user_bit
from fastfed.protocols.secure_sum import simulated_keys
from fastfed.protocols.server import Server

GROWING = {"batch_first": 3, "batch_ratio": 1.5}
CASES = {
    "silo-ldp": ("silo-ldp", {"batch_size": 5}),
    "silo-ldp growing": ("silo-ldp", GROWING),
    "silo-ldp honaker": ("silo-ldp", {"batch_size": 5, "release": "honaker"}),
    "silo-ldp toeplitz": ("silo-ldp", {"batch_size": 5, "release": "toeplitz"}),
    "prefix": ("silo-ldp-prefix", {"batch_size": 5}),
    "feducb": ("feducb", {"batch_size": 5}),
    "feducb growing": ("feducb", GROWING),
    "feducb direct": ("feducb", {"batch_size": 5, "radius": "direct"}),
    "central": ("central", {"batch_size": 5}),
    "central growing": ("central", GROWING),
    "central honaker": ("central", {"batch_size": 5, "release": "honaker"}),
    "secure-sum": ("secure-sum", {"batch_size": 5}),
    "secure-sum growing": ("secure-sum", GROWING),
    "masks": (federation.MASKS, {"batch_size": 5}),
    "masks growing": (federation.MASKS, GROWING),
    "bits": ("shuffle-vector", {"batch_size": 5}),
    "bits growing": ("shuffle-vector", GROWING),
    "bits flat": ("shuffle-vector", {"batch_size": 5, "release": "flat"}),
    "bits by masks": (federation.MASKED_BITS, {"batch_size": 5}),
    "bits of users": (federation.BITS, {"batch_size": 5}),
    "bits of users growing": (federation.BITS, GROWING),
}


@pytest.mark.parametrize("name", CASES)
def test_deployed_parties_release_the_same_bits_as_the_step_objects(name):
    """Play the same rounds with deployed parties, and with silos and server of a simulation."""
    protocol, system = CASES[name]
    plan = federation.deployed(protocol, dimension=3, system=system)
    noise, p = SeededNoise(7), plan.plan
    rng = np.random.default_rng(3)
    keys = [simulated_keys(7, i, p.silos) if p.secure else None for i in range(p.silos)]
    silos = [Silo(p, i, noise, keys[i]) for i in range(p.silos)]
    server, shuffler = Server(p, noise), Shuffler(p, noise)
    deployment = federation.Federation(plan, noise)
    deployment.settle()
    for round in range(1, p.end(p.releases) + 1):
        period = p.due(round - 1) + 1
        deployment.now = plan.document.calendar.closes[period - 1] - 1.0
        for i, silo in enumerate(silos):
            rows, y = rng.uniform(-0.9, 0.9, (4, 3)), rng.uniform(-0.2, 1.2)
            process = deployment.processes[f"silo{i}"]
            decision = process.decide(rows)
            assert decision.action == silo.select(rows)
            assert decision.learns and decision.propensity == 1.0
            silo.observe(y)
            if p.flips:
                words = noise.random_u32(i, round, 4)
                process.bit(decision.id, user_bit(p, min(max(y, 0.0), 1.0), words))
            else:
                process.reward(decision.id, y)
        if p.due(round) == period:
            reports = [silo.report() for silo in silos]
            broadcast = server.combine(shuffler.shuffle(reports) if p.protocol.bits else reports)
            for silo in silos:
                silo.receive(broadcast)
            deployment.now += 1.0
            deployment.settle()
            actual = deployment.processes["hub"].party.broadcasts[period]
            values = plan.wire.body(plan.wire.read(actual), Broadcast).values
            assert np.array_equal(np.frombuffer(values), broadcast.values)
            for i, silo in enumerate(silos):
                assert np.array_equal(
                    deployment.processes[f"silo{i}"].party.model.theta, silo.theta
                )
    assert deployment.processes["hub"].party.status()["released"] == p.releases
    for ledger in deployment.ledgers.values():
        # The number of noise bits is an integer, so epsilon can be up to 2e-4 smaller.
        spent = ledger.epsilon("records")
        assert spent == pytest.approx(1.0, rel=2e-4 if p.protocol.bits else 1e-6)
        assert spent <= 1.0 + 1e-9


@pytest.mark.parametrize("protocol", ["silo-ldp", "feducb", "central", *federation.WORDS])
def test_with_sealed_noise_a_second_federation_makes_the_same_bytes(protocol):
    """Noise is a function of the secret, the plan, the node and the sums that the node hides."""
    plan = federation.deployed(protocol, dimension=3)
    logs = []
    for changed in (0.0, 0.0, 1.0):
        deployment = federation.Federation(plan)
        deployment.settle()
        for k, close in enumerate(plan.document.calendar.closes):
            deployment.now = close - 1.0
            for name in plan.silos:
                process = deployment.processes[name]
                decision = process.decide(np.eye(3)[:2])
                # One record of silo1 differs, in the third leaf.
                odd = changed if (name, k) == ("silo1", 2) else 0.0
                process.reward(decision.id, 0.25 + 0.5 * odd)
            deployment.now = float(close)
            deployment.settle()
        logs.append(deployment.processes["hub"].party.reports)
    first, repeated, other = logs
    assert first == repeated
    unchanged = {key for key, data in first.items() if other[key] == data}
    # Nodes (or rows of the factor) that contain the third leaf of silo1 have different noise; later
    # actions depend on what was released, so only releases before the third are compared.
    assert {key for key in first if key[0] <= 2} <= unchanged
    assert (3, 1) not in unchanged
    # With masks, the reports of the other silos depend on silo1's session.
    assert {(3, 0), (3, 2)} <= unchanged or plan.masked
    change = [np.frombuffer(federation.opened_report(plan, log[3, 1])) for log in (first, other)]
    if protocol == "silo-ldp":
        # The difference must be that of independent noise, not that of the records.
        assert np.abs(change[0] - change[1]).max() > 1.0
    if protocol == "central":
        assert np.abs(change[0] - change[1]).max() <= 0.5
