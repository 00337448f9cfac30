"""Tests of the parties of a secure sum: their messages add up to the sum of plain integers and hide
everything else."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from oracle import secure_sum as oracle
from scipy import stats

from fastfed._random import InterleavedNoise, SeededNoise, SystemNoise
from fastfed._validate import InputError
from fastfed.privacy import Budget
from fastfed.privacy.mechanisms.secure_sum import SecureSum, calibrate_secure_sum
from fastfed.privacy.releases.prefix_sums import toeplitz_factor
from fastfed.protocols.secure_sum import (
    Aggregate,
    Decoder,
    Encoded,
    Encoder,
    Masks,
    simulated_keys,
)

SILOS, RELEASES, DIMENSION, SIZE = 4, 6, 3, 9
SEED = 8


class RecordingSeededNoise(SeededNoise):
    """Seeded noise that records its draws."""

    def __init__(self, seed: int, replicate: int = 0) -> None:
        super().__init__(seed, replicate)
        self.drawn: list[np.ndarray] = []

    def coins(self, silo, node, dimension, trials):
        """Draw coins, and record them."""
        drawn_coins = super().coins(silo, node, dimension, trials)
        self.drawn.append(drawn_coins.view(np.int64))
        return drawn_coins


@pytest.fixture(scope="module")
def secure_sum() -> SecureSum:
    """Return a secure sum whose factor has a negative entry."""
    factor = toeplitz_factor(RELEASES)
    factor[2, 0] = -0.3  # so that some words are negative
    budget = Budget(1.0, 1e-4)
    return calibrate_secure_sum(budget, factor, SILOS, 1, DIMENSION, points=1000)


def leaf_sums(secure_sum: SecureSum, seed: int = 1) -> np.ndarray:
    """Return sums of ten records for each leaf, (M, K, s), in fixed point."""
    rng = np.random.default_rng(seed)
    sums = np.zeros((secure_sum.silos, secure_sum.releases, secure_sum.size))
    encoder = Aggregate(secure_sum, SeededNoise(0))
    for leaf in sums.reshape(-1, secure_sum.size):
        for _ in range(10):
            x = rng.normal(size=secure_sum.dimension)
            leaf += encoder.point(x / np.linalg.norm(x), rng.uniform(-1.0, 1.0))
    return sums


def make_encoders(secure_sum: SecureSum, noises=None, seed: int = SEED) -> list[Encoder]:
    """Return one encoder per silo, with keys of this seed."""
    noises = noises or [SeededNoise(seed)] * secure_sum.silos
    return [
        Encoder(secure_sum, silo, simulated_keys(seed, silo, secure_sum.silos), noise)
        for silo, noise in enumerate(noises)
    ]


# ---- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [RecordingSeededNoise, SystemNoise])
def test_messages_add_up_to_the_sum_of_plain_integers(secure_sum, source) -> None:
    """Compare bit for bit, with seeded noise and with noise from the operating system."""
    data = leaf_sums(secure_sum)
    units = np.rint(data / secure_sum.unit).astype(np.int64)
    noises = [
        RecordingSeededNoise(SEED) if source is RecordingSeededNoise else RecordingSystemNoise()
        for _ in range(SILOS)
    ]
    silos, decoder = make_encoders(secure_sum, noises), Decoder(secure_sum)
    totals, prefixes = [], []
    for k in range(RELEASES):
        messages = [silo.message(data[i, k]) for i, silo in enumerate(silos)]
        total = np.zeros(SIZE, dtype=np.uint64)
        for message in messages:
            total += message.values
        totals.append(total.view(np.int64).tolist())
        prefixes.append(decoder.combine(messages[::-1]))
    shares = [[draw.tolist() for draw in noise.drawn] for noise in noises]
    expected = oracle.secure_sums(secure_sum.factor, units.tolist(), shares)
    assert totals == expected
    # Compare the decoded prefixes with exact fractions.
    for k, row in enumerate(oracle.exact_inverse(secure_sum.factor)):
        exact = [
            float(sum(b * w[entry] for b, w in zip(row, expected, strict=True))) * secure_sum.unit
            for entry in range(SIZE)
        ]
        np.testing.assert_allclose(prefixes[k], exact, rtol=1e-10, atol=1e-9)


class RecordingSystemNoise(SystemNoise):
    """Noise from the operating system that records its draws."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[np.ndarray] = []

    def coins(self, silo, node, dimension, trials):
        """Draw coins, and record them."""
        drawn_coins = super().coins(silo, node, dimension, trials)
        self.drawn.append(drawn_coins.view(np.int64))
        return drawn_coins


def test_without_noise_prefixes_are_exact(secure_sum: SecureSum) -> None:
    import msgspec

    without_noise = msgspec.structs.replace(secure_sum, trials=(0, 0, 0))
    data, decoder = leaf_sums(secure_sum), Decoder(without_noise)
    silos = make_encoders(without_noise)
    for k in range(RELEASES):
        prefix = decoder.combine([silo.message(data[i, k]) for i, silo in enumerate(silos)])
        np.testing.assert_allclose(prefix, data[:, : k + 1].sum(axis=(0, 1)), atol=1e-8)


def test_records_are_rounded_to_the_unit(secure_sum: SecureSum) -> None:
    encoder = make_encoders(secure_sum)[0]
    x, y = np.array([0.3, -0.5, 0.7]), 0.6
    expected = oracle.statistic(x, y, secure_sum.unit)
    assert (encoder.point(x, y) / secure_sum.unit).tolist() == expected.tolist()


def test_a_message_has_eight_bytes_per_entry(secure_sum: SecureSum) -> None:
    message = make_encoders(secure_sum)[2].message(np.zeros(SIZE))
    assert (message.release, message.silo, message.dimension) == (1, 2, DIMENSION)
    assert message.nbytes == secure_sum.nbytes == 72 and not message.values.flags.writeable


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_cancel_only_over_all_silos() -> None:
    masks = [Masks(i, simulated_keys(3, i, 5)) for i in range(5)]
    for release in (1, 2, 2**40):
        rows = np.array([mask.at(release, 6) for mask in masks])
        assert not rows.sum(axis=0, dtype=np.uint64).any()
        for missing_silo in range(5):
            assert np.delete(rows, missing_silo, axis=0).sum(axis=0, dtype=np.uint64).all()
    assert not Masks(0, {}).at(1, 3).any()


def test_masks_depend_on_release_pair_seed_and_replicate() -> None:
    mask = Masks(0, simulated_keys(3, 0, 3)).at(1, 4)
    np.testing.assert_array_equal(mask, Masks(0, simulated_keys(3, 0, 3)).at(1, 4))
    other_masks = [
        Masks(0, simulated_keys(3, 0, 3)).at(2, 4),
        Masks(0, simulated_keys(4, 0, 3)).at(1, 4),
        Masks(0, simulated_keys(3, 0, 3, replicate=1)).at(1, 4),
        Masks(0, simulated_keys(3, 0, 4)).at(1, 4),
    ]
    assert all((mask != other_mask).all() for other_mask in other_masks)
    assert simulated_keys(3, 0, 3)[2] == simulated_keys(3, 2, 3)[0]
    # The mask stream is SHAKE-256 of key and release, as documented.
    import hashlib

    key = simulated_keys(3, 0, 2)[1]
    words = np.frombuffer(hashlib.shake_256(key + bytes(7) + b"\x05").digest(32), dtype="<u8")
    np.testing.assert_array_equal(Masks(0, simulated_keys(3, 0, 2)).at(5, 4), words)
    np.testing.assert_array_equal(Masks(1, simulated_keys(3, 1, 2)).at(5, 4), np.uint64(0) - words)


def test_single_messages_are_uniform(secure_sum: SecureSum) -> None:
    """Check all 64 bits of 3000 words, for zero and for large data, and for sums of messages."""
    for value in (0.0, 900.0):
        words = []
        for seed in range(120):
            silos = make_encoders(secure_sum, seed=seed)
            for _ in range(3):
                messages = [silo.message(np.full(SIZE, value)).values for silo in silos]
                words.append([messages[0], messages[1], messages[0] + messages[1] + messages[2]])
        rows = np.array(words).transpose(1, 0, 2).reshape(3, -1)
        for row in rows:
            ones_of_each_bit = np.array(
                [int((row >> np.uint64(b) & np.uint64(1)).sum()) for b in range(64)]
            )
            z_scores = (ones_of_each_bit - row.size / 2) / math.sqrt(row.size / 4)
            assert np.abs(z_scores).max() < 4.5
            assert stats.kstest(row.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("silo", "keys", "message"),
    [
        (0, {0: bytes(32)}, "must be of other silos"),
        (0, {1: bytes(31)}, "key with silo 1 must be 32 bytes"),
        (0, {1: "x" * 32}, "key with silo 1 must be 32 bytes"),
        (0, {1: bytes(32), 2: bytes(32)}, "keys must differ"),
        (0, {-1: bytes(32)}, "silo must be an integer >= 0"),
        (-1, {}, "silo must be an integer >= 0"),
    ],
)
def test_invalid_mask_keys_are_refused(silo, keys, message) -> None:
    with pytest.raises(InputError, match=message):
        Masks(silo, keys)


# ---- distributions -------------------------------------------------------------------------------


def test_silos_and_aggregate_have_the_same_distribution_for_few_coins() -> None:
    """Count outcomes: three shares of 8 coins equal one share of 24 coins."""
    secure_sum = SecureSum(
        budget=Budget(1.0, 0.1),
        factor=((1,),),
        trials=(8, 8, 12),
        silos=3,
        colluders=0,
        dimension=1,
        points=10,
        unit=1.0,
        factor_bits=0,
    )
    sums_by_source = {"silos": [], "aggregate": []}
    for run in range(3000):
        total = np.zeros(2, dtype=np.uint64)
        for silo in range(3):
            total += (
                Encoder(secure_sum, silo, simulated_keys(run, silo, 3)).message([1.0, 2.0]).values
            )
        sums_by_source["silos"].append(total.view(np.int64))
        sums_by_source["aggregate"].append(
            Aggregate(secure_sum, SystemNoise()).total(np.array([3.0, 6.0])).view(np.int64)
        )
    for rows in sums_by_source.values():
        for entry, coins in enumerate((24, 36)):
            heads = np.array(rows)[:, entry] - (3, 6)[entry] + coins // 2
            mass = stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
            is_frequent = mass * len(heads) >= 5
            count = np.bincount(heads, minlength=coins + 1)
            observed = np.append(count[is_frequent], count[~is_frequent].sum())
            expected = np.append(mass[is_frequent], mass[~is_frequent].sum()) * len(heads)
            assert stats.chisquare(observed, expected).pvalue > 1e-6


@pytest.mark.parametrize("source", [SeededNoise, pytest.param(SystemNoise, marks=pytest.mark.slow)])
def test_silos_and_aggregate_have_the_same_distribution_for_many_coins(
    secure_sum: SecureSum, source
) -> None:
    runs = 250 if source is SystemNoise else 500
    rows = []
    for run in range(runs):

        def noise(run=run, silo=0):
            """Return the noise source of a silo in a run."""
            return SystemNoise() if source is SystemNoise else SeededNoise(run)

        silos, decoder = (
            make_encoders(secure_sum, [noise() for _ in range(SILOS)]),
            Decoder(secure_sum),
        )
        sums, aggregate_decoder = Aggregate(secure_sum, noise()), Decoder(secure_sum)
        for _ in range(2):
            silos_prefix = decoder.combine([s.message(np.full(SIZE, 0.25)) for s in silos])
            aggregate_prefix = aggregate_decoder.add(sums.total(np.full(SIZE, SILOS * 0.25)))
        rows.append((silos_prefix, aggregate_prefix))
    prefixes = np.array(rows).transpose(1, 2, 0)  # (2, s, runs)
    stds = np.repeat(secure_sum.stds[0], SIZE)
    stds[[DIMENSION, DIMENSION + 2, DIMENSION + 5]] *= math.sqrt(2.0)
    scale = stds * math.sqrt(secure_sum.variance_factors[2])
    scores = (prefixes - 2 * SILOS * 0.25) / scale[:, None]
    assert stats.ks_2samp(scores[0].ravel(), scores[1].ravel()).pvalue > 1e-6
    for source_scores in scores:
        # One share more or less of the four would change the variance by 25 %.
        assert abs(source_scores.var() - 1.0) < 5.0 * math.sqrt(2.0 / source_scores.size) < 0.16
        assert stats.kstest(source_scores.ravel(), "norm").pvalue > 1e-6
        for entry in source_scores:
            assert stats.kstest(entry, "norm").pvalue > 1e-7


def test_interleaved_systems_have_separate_noise(secure_sum: SecureSum) -> None:
    source = SeededNoise(4)
    first, second = (InterleavedNoise(source, tuple(range(SILOS)), phase, 2) for phase in (0, 1))
    key = (0, 1, DIMENSION, secure_sum.trials)
    assert (first.coins(*key) != second.coins(*key)).all()


# ---- repeated and refused steps ------------------------------------------------------------------


def test_a_repeated_message_has_the_same_noise(secure_sum: SecureSum) -> None:
    noise = RecordingSystemNoise()
    encoder = Encoder(secure_sum, 0, simulated_keys(1, 0, SILOS), noise)
    undisturbed = Encoder(secure_sum, 0, simulated_keys(1, 0, SILOS), ReplayedCoins(noise))
    with pytest.raises(InputError, match="values must have shape"):
        encoder.message(np.zeros(3))
    with pytest.raises(InputError, match="fixed point"):
        encoder.message(np.full(SIZE, 0.1))
    assert encoder.release == 0
    masks = encoder._masks
    encoder._masks = None
    with pytest.raises(AttributeError):
        encoder.message(np.zeros(SIZE))
    encoder._masks = masks
    assert encoder.release == 0 and len(noise.drawn) == 1
    first, second = encoder.message(np.ones(SIZE)), encoder.message(np.ones(SIZE))
    assert len(noise.drawn) == 2
    np.testing.assert_array_equal(first.values, undisturbed.message(np.ones(SIZE)).values)
    np.testing.assert_array_equal(second.values, undisturbed.message(np.ones(SIZE)).values)


class ReplayedCoins(SeededNoise):
    """A source that returns the recorded coins of another source."""

    def __init__(self, other: RecordingSystemNoise) -> None:
        super().__init__(0)
        self.other = other

    def coins(self, silo, node, dimension, trials):
        """Return the recorded coins of this node."""
        return self.other.drawn[node - 1].view(np.uint64)


def test_seeded_parties_round_and_deployed_parties_refuse_values_off_the_grid(
    secure_sum: SecureSum,
) -> None:
    values = np.full(SIZE, 0.1)
    seeded = make_encoders(secure_sum)[0].message(values)
    rounded = np.rint(values / secure_sum.unit) * secure_sum.unit
    np.testing.assert_array_equal(
        seeded.values, make_encoders(secure_sum)[0].message(rounded).values
    )
    with pytest.raises(InputError, match="multiples of 2\\^-22"):
        Encoder(secure_sum, 0, simulated_keys(1, 0, SILOS)).message(values)


def test_parties_refuse_messages_after_the_last_release(secure_sum: SecureSum) -> None:
    encoder, decoder = make_encoders(secure_sum)[0], Decoder(secure_sum)
    for _ in range(RELEASES):
        encoder.message(np.zeros(SIZE))
        decoder.add(np.zeros(SIZE, dtype=np.uint64))
    with pytest.raises(InputError, match="6 releases"):
        encoder.message(np.zeros(SIZE))
    with pytest.raises(InputError, match="6 releases"):
        decoder.add(np.zeros(SIZE, dtype=np.uint64))


def test_parties_cannot_be_copied(secure_sum: SecureSum) -> None:
    for party in (
        make_encoders(secure_sum)[0],
        Aggregate(secure_sum, SeededNoise(0)),
        Decoder(secure_sum),
    ):
        for copy_ in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match="two different noises"):
                copy_(party)


def test_the_decoder_needs_one_message_from_each_silo(secure_sum: SecureSum) -> None:
    all_messages, decoder = (
        [silo.message(np.zeros(SIZE)) for silo in make_encoders(secure_sum)],
        Decoder(secure_sum),
    )
    of_release_2 = Encoded(2, DIMENSION, all_messages[0].values, 0)
    of_dimension_2 = Encoded(1, 2, np.zeros(5, dtype=np.uint64), 0)
    for messages, error in [
        (all_messages[1:], "one of each of the 4 silos"),
        ([*all_messages[1:], all_messages[1]], "one of each of the 4 silos"),
        ([of_release_2, *all_messages[1:]], "must be of release 1"),
        ([of_dimension_2, *all_messages[1:]], "dimension 3"),
        ([1, *all_messages[1:]], "must be Encoded values"),
    ]:
        with pytest.raises(InputError, match=error):
            decoder.combine(messages)
    for total, error in [
        (np.zeros(SIZE), "array of uint64"),
        (np.zeros(4, dtype=np.uint64), "shape"),
    ]:
        with pytest.raises(InputError, match=error):
            decoder.add(total)
    assert decoder.release == 0
    decoder.combine(all_messages)
    assert decoder.release == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: Encoder(m, 4, {}), "silo must be an integer >= 0 and <= 3"),
        (lambda m: Encoder(m, 0, {1: bytes(32)}), "each of the 3 other silos"),
        (lambda m: Encoder(m, 0, simulated_keys(1, 0, 5)), "each of the 3 other silos"),
        (lambda m: Encoder(3, 0, {}), "mechanism must be a SecureSum"),
        (lambda m: Aggregate(3, SeededNoise(0)), "mechanism must be a SecureSum"),
        (lambda m: Decoder(3), "mechanism must be a SecureSum"),
        (lambda m: Encoded(1, 3, np.zeros(9)), "array of uint64"),
        (lambda m: Encoded(1, 3, [1]), "array of uint64"),
        (lambda m: Encoded(1, 3, np.zeros(4, dtype=np.uint64)), "shape"),
        (lambda m: simulated_keys(1, 4, 4), "silo must be an integer >= 0 and <= 3"),
    ],
)
def test_errors_name_the_bad_argument(secure_sum, call, message) -> None:
    with pytest.raises(InputError, match=message):
        call(secure_sum)
