"""Tests of audits of secure sums: likelihood ratios of whole transcripts, and attacks on their low
bits."""

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
#: The unit of integers, on a grid that the attack can handle.
STEP = 2.0**-20


@pytest.mark.parametrize("name", sorted(AUDITS))
def test_audits_detect_exactly_the_planted_faults(name: str) -> None:
    result = AUDITS[name](FEW, 0)
    assert result.verdict == ("caught" if name in FAULTY else "pass")
    assert (result.name, result.trials, result.delta) == (name, FEW, BUDGET.delta)
    assert set(TRIALS) == set(AUDITS) > FAULTY


def test_results_of_an_audit_depend_only_on_its_seed() -> None:
    name = "fault-secure-sum-half-noise"
    bounds = [AUDITS[name](500, seed).epsilon_lower_bound for seed in (4, 4, 5)]
    assert bounds[0] == bounds[1] != bounds[2]


def test_likelihood_ratio_has_the_mu_of_the_account() -> None:
    """Use the worst pair of records, which attains mu: less noise would not suffice."""
    secure_sum = calibrated()
    first, second = (
        likelihood(secure_sum, WORST, transcripts(secure_sum, WORST, data_set, 6000, 3))
        for data_set in (0, 1)
    )
    estimate = estimated_mu(first, second)
    assert estimate.low <= secure_sum.mu() <= estimate.high
    assert epsilon_of(estimate.mu, BUDGET.delta) == pytest.approx(secure_sum.exact(), rel=0.1)


def test_transcripts_equal_the_messages_of_the_parties() -> None:
    """Compare the audited sums with the honest silos' unmasked messages."""
    secure_sum = calibrated()

    class AuditNoise(SeededNoise):
        """The audit's noise: silo i draws from stream 2 i for data set 0, and 2 i + 1 for 1."""

        def coins(self, silo, node, dimension, trials):
            """Return the coins of the audit's stream 2 i for silo i."""
            return super().coins(2 * silo, node, dimension, trials)

    audited = transcripts(secure_sum, PLAIN, 0, 1, 9)[0]
    record = np.array(PLAIN[0])
    fixed_record = np.full(2, math.sqrt(0.5))
    silos = [
        Encoder(secure_sum, i, simulated_keys(1, i, secure_sum.silos), AuditNoise(9))
        for i in range(4)
    ]
    for k in range(secure_sum.releases):
        total = np.zeros(5, dtype=np.uint64)
        for i, silo in enumerate(silos):
            leaf = np.zeros(5)
            if i == 0:
                leaf += silo.point(fixed_record, 1.0)
                leaf += silo.point(record, 1.0) if k == 0 else 0.0
            total += silo.message(leaf).values
        for i in range(secure_sum.honest, secure_sum.silos):  # colluders know their own noise
            total -= AuditNoise(9).coins(i, k + 1, 2, secure_sum.trials)
        # The audit rounds the sum of a leaf: for two records the difference is at most one unit.
        difference = np.abs((total - audited[k]).view(np.int64))
        assert (difference <= 2 * abs(secure_sum.factor[k][0])).all()


def test_low_bits_are_uniform_for_both_data_sets() -> None:
    secure_sum = calibrated()
    for data_set in (0, 1):
        drawn_transcripts = transcripts(secure_sum, PLAIN, data_set, 2000, 5)
        for bit in range(20):
            ones = ((drawn_transcripts >> np.uint64(bit)) & np.uint64(1)).sum()
            assert abs(int(ones) - drawn_transcripts.size / 2) < 4.5 * math.sqrt(
                drawn_transcripts.size / 4
            )
        # Trailing zeros of uniform words agree equally often with both records.
        low_bit_scores = low_bits(secure_sum, PLAIN, drawn_transcripts)
        assert low_bit_scores.std() > 1.0
        assert abs(low_bit_scores.mean()) < 5.0 * low_bit_scores.std() / math.sqrt(
            len(low_bit_scores)
        )


# ---- attacks among many records ------------------------------------------------------------------


class CoarseNoise(SystemNoise):
    """A planted fault: noise whose last 16 bits are 0."""

    def coins(self, silo, node, dimension, trials):
        """Return coins whose last 16 bits are 0."""
        return super().coins(silo, node, dimension, trials) >> np.uint64(16) << np.uint64(16)


def make_channel(secure_sum: SecureSum, source: type[SystemNoise], count: int) -> Channel:
    """Return a channel of one silo's record; all other messages are known up to noise."""
    rng = np.random.default_rng(2)
    records = rng.normal(size=(count, secure_sum.dimension))
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    rewards = rng.uniform(-1.0, 1.0, size=count)

    def leaf_sums_of(index: int) -> np.ndarray:
        """Return the encoded statistic of one record."""
        encoder = Encoder(secure_sum, 0, simulated_keys(1, 0, secure_sum.silos), SeededNoise(0))
        return encoder.point(records[index], float(rewards[index]))

    def send(index: int) -> np.ndarray:
        """Return the unmasked sum of all messages as integers, as the server computes it."""
        total = np.zeros(secure_sum.size, dtype=np.uint64)
        for silo in range(secure_sum.silos):
            keys = simulated_keys(1, silo, secure_sum.silos)
            encoder = Encoder(secure_sum, silo, keys, source())
            leaf = leaf_sums_of(index) if silo == 0 else np.zeros(secure_sum.size)
            total += encoder.message(leaf).values
        decrypted_sum = total.view(np.int64)
        assert np.abs(decrypted_sum).max() < 2**52  # float64 holds every bit
        return decrypted_sum * STEP

    rows = [
        secure_sum.row(secure_sum.encode(leaf_sums_of(i))[None]).view(np.int64)
        for i in range(count)
    ]
    contributions = np.array(rows)[:, None, :] * STEP
    stds = (
        np.sqrt(np.array(secure_sum.entry_trials(secure_sum.silos), dtype=np.float64)) / 2.0 * STEP
    )
    return Channel("secure-sum", contributions, stds, send)


@pytest.mark.parametrize(
    "count", ordinary_cases([40, 200], lambda count: count == 40), ids=lambda count: str(count)
)
def test_low_bits_attack_on_secure_sums_excludes_no_record(count: int) -> None:
    """Attack deployed silos with system noise; with coarse noise the attack finds every record."""
    factor = np.array([[14747.0, 0.0], [6553.0, 14001.0]]) / 2.0**14
    secure_sum = calibrate_secure_sum(Budget(1.0, 1e-6), factor, 3, 0, 4, points=100)
    sound_result = attack(make_channel(secure_sum, SystemNoise, count), 12)
    assert (
        sound_result.wrongly_excluded == sound_result.decoded == 0 and sound_result.excluded == 0.0
    )
    coarse_result = attack(make_channel(secure_sum, CoarseNoise, count), 12)
    assert (
        coarse_result.wrongly_excluded == 0
        and coarse_result.decoded == 12
        and "residue" in coarse_result.tests
    )
