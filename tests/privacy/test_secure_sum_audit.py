"""Transcripts of secure sums under attack: the likelihood ratio of all of it, and its last bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import ordinary_cases

from fastfed._random import SeededNoise, SystemNoise
from fastfed.privacy import Budget, epsilon_of
from fastfed.privacy.audit.bounds import estimated_mu
from fastfed.privacy.audit.low_bits import Channel, attack
from fastfed.privacy.audit.secure_sum import (
    AUDITS,
    BUDGET,
    FAULTY,
    PLAIN,
    TRIALS,
    WORST,
    calibrated,
    likelihood,
    low_bits,
    transcripts,
)
from fastfed.privacy.mechanisms.secure_sum import SecureSum, calibrate_secure_sum
from fastfed.protocols.secure_sum import Encoder, simulated_keys

FEW = 2500
#: Integers in units that the attack's grids reach.
STEP = 2.0**-20


@pytest.mark.parametrize("name", sorted(AUDITS))
def test_faults_are_caught_and_nothing_else_is(name: str) -> None:
    found = AUDITS[name](FEW, 0)
    assert found.verdict == ("caught" if name in FAULTY else "pass")
    assert (found.name, found.trials, found.delta) == (name, FEW, BUDGET.delta)
    assert set(TRIALS) == set(AUDITS) > FAULTY


def test_an_audit_is_a_function_of_its_seed() -> None:
    name = "fault-secure-sum-half-noise"
    found = [AUDITS[name](500, seed).epsilon_lower_bound for seed in (4, 4, 5)]
    assert found[0] == found[1] != found[2]


def test_the_likelihood_ratio_has_the_mu_of_the_account() -> None:
    """The worst pair attains it: no less noise would do."""
    made = calibrated()
    first, second = (
        likelihood(made, WORST, transcripts(made, WORST, world, 6000, 3)) for world in (0, 1)
    )
    found = estimated_mu(first, second)
    assert found.low <= made.mu() <= found.high
    assert epsilon_of(found.mu, BUDGET.delta) == pytest.approx(made.exact(), rel=0.1)


def test_transcripts_are_what_the_parties_send() -> None:
    """The audited sums are the honest silos' unmasked messages."""
    made = calibrated()

    class World(SeededNoise):
        """The audit's keys: the silo of the noise says the world, too."""

        def coins(self, silo, node, dimension, trials):
            return super().coins(2 * silo, node, dimension, trials)

    audited = transcripts(made, PLAIN, 0, 1, 9)[0]
    record = np.array(PLAIN[0])
    known = np.full(2, math.sqrt(0.5))
    silos = [Encoder(made, i, simulated_keys(1, i, made.silos), World(9)) for i in range(4)]
    for k in range(made.releases):
        total = np.zeros(5, dtype=np.uint64)
        for i, silo in enumerate(silos):
            leaf = np.zeros(5)
            if i == 0:
                leaf += silo.point(known, 1.0)
                leaf += silo.point(record, 1.0) if k == 0 else 0.0
            total += silo.message(leaf).values
        for i in range(made.honest, made.silos):  # what colluders know of themselves
            total -= World(9).coins(i, k + 1, 2, made.trials)
        # The audit rounds a leaf as a whole: a unit apart at most, for two records.
        apart = np.abs((total - audited[k]).view(np.int64))
        assert (apart <= 2 * abs(made.factor[k][0])).all()


def test_low_bits_are_uniform_in_both_worlds() -> None:
    made = calibrated()
    for world in (0, 1):
        found = transcripts(made, PLAIN, world, 2000, 5)
        for bit in range(20):
            ones = ((found >> np.uint64(bit)) & np.uint64(1)).sum()
            assert abs(int(ones) - found.size / 2) < 4.5 * math.sqrt(found.size / 4)
        # Trailing zeros of uniform words: as many of one record's as of the other's.
        agreed = low_bits(made, PLAIN, found)
        assert agreed.std() > 1.0
        assert abs(agreed.mean()) < 5.0 * agreed.std() / math.sqrt(len(agreed))


# ---- which of many records was it? ---------------------------------------------------------------


class Coarse(SystemNoise):
    """The fault of noise whose last 16 bits are 0."""

    def coins(self, silo, node, dimension, trials):
        return super().coins(silo, node, dimension, trials) >> np.uint64(16) << np.uint64(16)


def channel(made: SecureSum, source: type[SystemNoise], count: int) -> Channel:
    """One silo's record of the first release, all other silos' messages known but for noise."""
    draw = np.random.default_rng(2)
    records = draw.normal(size=(count, made.dimension))
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    rewards = draw.uniform(-1.0, 1.0, size=count)

    def sums(index: int) -> np.ndarray:
        encoder = Encoder(made, 0, simulated_keys(1, 0, made.silos), SeededNoise(0))
        return encoder.point(records[index], float(rewards[index]))

    def send(index: int) -> np.ndarray:
        """The unmasked sum of all messages, as integers: what a server makes of them."""
        total = np.zeros(made.size, dtype=np.uint64)
        for silo in range(made.silos):
            keys = simulated_keys(1, silo, made.silos)
            encoder = Encoder(made, silo, keys, source())
            leaf = sums(index) if silo == 0 else np.zeros(made.size)
            total += encoder.message(leaf).values
        found = total.view(np.int64)
        assert np.abs(found).max() < 2**52  # float64 holds every bit
        return found * STEP

    rows = [made.row(made.encode(sums(i))[None]).view(np.int64) for i in range(count)]
    contributions = np.array(rows)[:, None, :] * STEP
    stds = np.sqrt(np.array(made.entry_trials(made.silos), dtype=np.float64)) / 2.0 * STEP
    return Channel("secure-sum", contributions, stds, send)


@pytest.mark.parametrize(
    "count", ordinary_cases([40, 200], lambda count: count == 40), ids=lambda count: str(count)
)
def test_the_low_bits_attack_excludes_nobody(count: int) -> None:
    """Deployed silos, the operating system's noise; a coarser grid of it tells every record."""
    factor = np.array([[14747.0, 0.0], [6553.0, 14001.0]]) / 2.0**14
    made = calibrate_secure_sum(Budget(1.0, 1e-6), factor, 3, 0, 4, points=100)
    sound = attack(channel(made, SystemNoise, count), 12)
    assert sound.wrongly_excluded == sound.decoded == 0 and sound.excluded == 0.0
    coarse = attack(channel(made, Coarse, count), 12)
    assert coarse.wrongly_excluded == 0 and coarse.decoded == 12 and "residue" in coarse.tests
