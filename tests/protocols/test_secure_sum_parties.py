"""The parties of a secure sum: bit for bit the sum of plain integers, and nothing else."""

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


class Spy(SeededNoise):
    """A source that remembers what it drew."""

    def __init__(self, seed: int, replicate: int = 0) -> None:
        super().__init__(seed, replicate)
        self.drawn: list[np.ndarray] = []

    def coins(self, silo, node, dimension, trials):
        found = super().coins(silo, node, dimension, trials)
        self.drawn.append(found.view(np.int64))
        return found


@pytest.fixture(scope="module")
def made() -> SecureSum:
    factor = toeplitz_factor(RELEASES)
    factor[2, 0] = -0.3  # words below 0, too
    budget = Budget(1.0, 1e-4)
    return calibrate_secure_sum(budget, factor, SILOS, 1, DIMENSION, points=1000)


def leaves(made: SecureSum, seed: int = 1) -> np.ndarray:
    """Sums of ten records a leaf, (M, K, s), in fixed point."""
    draw = np.random.default_rng(seed)
    found = np.zeros((made.silos, made.releases, made.size))
    encoder = Aggregate(made, SeededNoise(0))
    for leaf in found.reshape(-1, made.size):
        for _ in range(10):
            x = draw.normal(size=made.dimension)
            leaf += encoder.point(x / np.linalg.norm(x), draw.uniform(-1.0, 1.0))
    return found


def encoders(made: SecureSum, noises=None, seed: int = SEED) -> list[Encoder]:
    noises = noises or [SeededNoise(seed)] * made.silos
    return [
        Encoder(made, silo, simulated_keys(seed, silo, made.silos), noise)
        for silo, noise in enumerate(noises)
    ]


# ---- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [Spy, SystemNoise])
def test_the_sum_of_messages_is_the_sum_of_plain_integers(made, source) -> None:
    """Bit for bit, for keyed noise and for the operating system's."""
    data = leaves(made)
    units = np.rint(data / made.unit).astype(np.int64)
    noises = [Spy(SEED) if source is Spy else Remembered() for _ in range(SILOS)]
    silos, decoder = encoders(made, noises), Decoder(made)
    totals, prefixes = [], []
    for k in range(RELEASES):
        messages = [silo.message(data[i, k]) for i, silo in enumerate(silos)]
        total = np.zeros(SIZE, dtype=np.uint64)
        for message in messages:
            total += message.values
        totals.append(total.view(np.int64).tolist())
        prefixes.append(decoder.combine(messages[::-1]))
    shares = [[drawn.tolist() for drawn in noise.drawn] for noise in noises]
    wanted = oracle.secure_sums(made.factor, units.tolist(), shares)
    assert totals == wanted
    # Decoded in fractions.
    for k, row in enumerate(oracle.exact_inverse(made.factor)):
        exact = [
            float(sum(b * w[e] for b, w in zip(row, wanted, strict=True))) * made.unit
            for e in range(SIZE)
        ]
        np.testing.assert_allclose(prefixes[k], exact, rtol=1e-10, atol=1e-9)


class Remembered(SystemNoise):
    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[np.ndarray] = []

    def coins(self, silo, node, dimension, trials):
        found = super().coins(silo, node, dimension, trials)
        self.drawn.append(found.view(np.int64))
        return found


def test_without_noise_prefixes_are_exact(made: SecureSum) -> None:
    import msgspec

    bare = msgspec.structs.replace(made, trials=(0, 0, 0))
    data, decoder = leaves(made), Decoder(bare)
    silos = encoders(bare)
    for k in range(RELEASES):
        prefix = decoder.combine([s.message(data[i, k]) for i, s in enumerate(silos)])
        np.testing.assert_allclose(prefix, data[:, : k + 1].sum(axis=(0, 1)), atol=1e-8)


def test_records_are_rounded_to_the_unit(made: SecureSum) -> None:
    encoder = encoders(made)[0]
    x, y = np.array([0.3, -0.5, 0.7]), 0.6
    wanted = oracle.statistic(x, y, made.unit)
    assert (encoder.point(x, y) / made.unit).tolist() == wanted.tolist()


def test_a_message_is_eight_bytes_an_entry(made: SecureSum) -> None:
    message = encoders(made)[2].message(np.zeros(SIZE))
    assert (message.release, message.silo, message.dimension) == (1, 2, DIMENSION)
    assert message.nbytes == made.nbytes == 72 and not message.values.flags.writeable


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_cancel_over_all_silos_and_no_fewer() -> None:
    masks = [Masks(i, simulated_keys(3, i, 5)) for i in range(5)]
    for release in (1, 2, 2**40):
        rows = np.array([m.at(release, 6) for m in masks])
        assert not rows.sum(axis=0, dtype=np.uint64).any()
        for left in range(5):
            assert np.delete(rows, left, axis=0).sum(axis=0, dtype=np.uint64).all()
    assert not Masks(0, {}).at(1, 3).any()


def test_masks_are_of_the_release_the_pair_the_seed_and_the_replicate() -> None:
    first = Masks(0, simulated_keys(3, 0, 3)).at(1, 4)
    np.testing.assert_array_equal(first, Masks(0, simulated_keys(3, 0, 3)).at(1, 4))
    others = [
        Masks(0, simulated_keys(3, 0, 3)).at(2, 4),
        Masks(0, simulated_keys(4, 0, 3)).at(1, 4),
        Masks(0, simulated_keys(3, 0, 3, replicate=1)).at(1, 4),
        Masks(0, simulated_keys(3, 0, 4)).at(1, 4),
    ]
    assert all((first != other).all() for other in others)
    assert simulated_keys(3, 0, 3)[2] == simulated_keys(3, 2, 3)[0]
    # The stream's digits: the keys and the release, as the page says.
    import hashlib

    key = simulated_keys(3, 0, 2)[1]
    words = np.frombuffer(hashlib.shake_256(key + bytes(7) + b"\x05").digest(32), dtype="<u8")
    np.testing.assert_array_equal(Masks(0, simulated_keys(3, 0, 2)).at(5, 4), words)
    np.testing.assert_array_equal(Masks(1, simulated_keys(3, 1, 2)).at(5, 4), np.uint64(0) - words)


def test_a_message_alone_is_uniform_whatever_it_hides(made: SecureSum) -> None:
    """All 64 bits of 3000 words, for data that are 0 and for large ones; pairs are, too."""
    for value in (0.0, 900.0):
        words = []
        for seed in range(120):
            silos = encoders(made, seed=seed)
            for _ in range(3):
                sent = [silo.message(np.full(SIZE, value)).values for silo in silos]
                words.append([sent[0], sent[1], sent[0] + sent[1] + sent[2]])
        rows = np.array(words).transpose(1, 0, 2).reshape(3, -1)
        for row in rows:
            ones = np.array([int((row >> np.uint64(b) & np.uint64(1)).sum()) for b in range(64)])
            away = (ones - row.size / 2) / math.sqrt(row.size / 4)
            assert np.abs(away).max() < 4.5
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
def test_keys_that_hide_nothing_are_refused(silo, keys, message) -> None:
    with pytest.raises(InputError, match=message):
        Masks(silo, keys)


# ---- laws ----------------------------------------------------------------------------------------


def test_all_silos_and_one_aggregate_have_one_law_of_few_coins() -> None:
    """Counted outcome by outcome: three shares of 8 coins are one of 24."""
    few = SecureSum(
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
    found = {"silos": [], "aggregate": []}
    for run in range(3000):
        total = np.zeros(2, dtype=np.uint64)
        for silo in range(3):
            total += Encoder(few, silo, simulated_keys(run, silo, 3)).message([1.0, 2.0]).values
        found["silos"].append(total.view(np.int64))
        found["aggregate"].append(
            Aggregate(few, SystemNoise()).total(np.array([3.0, 6.0])).view(np.int64)
        )
    for rows in found.values():
        for entry, coins in enumerate((24, 36)):
            heads = np.array(rows)[:, entry] - (3, 6)[entry] + coins // 2
            mass = stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
            often = mass * len(heads) >= 5
            count = np.bincount(heads, minlength=coins + 1)
            seen = np.append(count[often], count[~often].sum())
            wanted = np.append(mass[often], mass[~often].sum()) * len(heads)
            assert stats.chisquare(seen, wanted).pvalue > 1e-6


@pytest.mark.parametrize("source", [SeededNoise, pytest.param(SystemNoise, marks=pytest.mark.slow)])
def test_the_two_have_one_law_of_many_coins(made: SecureSum, source) -> None:
    runs = 250 if source is SystemNoise else 500
    rows = []
    for run in range(runs):

        def noise(run=run, silo=0):
            return SystemNoise() if source is SystemNoise else SeededNoise(run)

        silos, decoder = encoders(made, [noise() for _ in range(SILOS)]), Decoder(made)
        sums, other = Aggregate(made, noise()), Decoder(made)
        for _ in range(2):
            first = decoder.combine([s.message(np.full(SIZE, 0.25)) for s in silos])
            second = other.add(sums.total(np.full(SIZE, SILOS * 0.25)))
        rows.append((first, second))
    both = np.array(rows).transpose(1, 2, 0)  # (2, s, runs)
    stds = np.repeat(made.stds[0], SIZE)
    stds[[DIMENSION, DIMENSION + 2, DIMENSION + 5]] *= math.sqrt(2.0)
    scale = stds * math.sqrt(made.variance_factors[2])
    scores = (both - 2 * SILOS * 0.25) / scale[:, None]
    assert stats.ks_2samp(scores[0].ravel(), scores[1].ravel()).pvalue > 1e-6
    for each in scores:
        # One share of the four more or less is 25 % of the variance.
        assert abs(each.var() - 1.0) < 5.0 * math.sqrt(2.0 / each.size) < 0.16
        assert stats.kstest(each.ravel(), "norm").pvalue > 1e-6
        for entry in each:
            assert stats.kstest(entry, "norm").pvalue > 1e-7


def test_every_system_that_takes_turns_has_noise_of_its_own(made: SecureSum) -> None:
    source = SeededNoise(4)
    first, second = (InterleavedNoise(source, tuple(range(SILOS)), p, 2) for p in (0, 1))
    given = (0, 1, DIMENSION, made.trials)
    assert (first.coins(*given) != second.coins(*given)).all()


# ---- one after the other -------------------------------------------------------------------------


def test_a_message_that_fails_is_made_again_with_the_same_noise(made: SecureSum) -> None:
    noise = Remembered()
    encoder = Encoder(made, 0, simulated_keys(1, 0, SILOS), noise)
    wanted = Encoder(made, 0, simulated_keys(1, 0, SILOS), Replay(noise))
    with pytest.raises(InputError, match="values must have shape"):
        encoder.message(np.zeros(3))
    with pytest.raises(InputError, match="fixed point"):
        encoder.message(np.full(SIZE, 0.1))
    assert encoder.release == 0
    broken = encoder._masks
    encoder._masks = None
    with pytest.raises(AttributeError):
        encoder.message(np.zeros(SIZE))
    encoder._masks = broken
    assert encoder.release == 0 and len(noise.drawn) == 1
    first, second = encoder.message(np.ones(SIZE)), encoder.message(np.ones(SIZE))
    assert len(noise.drawn) == 2
    np.testing.assert_array_equal(first.values, wanted.message(np.ones(SIZE)).values)
    np.testing.assert_array_equal(second.values, wanted.message(np.ones(SIZE)).values)


class Replay(SeededNoise):
    """What another source drew."""

    def __init__(self, other: Remembered) -> None:
        super().__init__(0)
        self.other = other

    def coins(self, silo, node, dimension, trials):
        return self.other.drawn[node - 1].view(np.uint64)


def test_seeded_parties_round_and_deployed_ones_refuse(made: SecureSum) -> None:
    values = np.full(SIZE, 0.1)
    seeded = encoders(made)[0].message(values)
    rounded = np.rint(values / made.unit) * made.unit
    np.testing.assert_array_equal(seeded.values, encoders(made)[0].message(rounded).values)
    with pytest.raises(InputError, match="multiples of 2\\^-22"):
        Encoder(made, 0, simulated_keys(1, 0, SILOS)).message(values)


def test_releases_end(made: SecureSum) -> None:
    encoder, decoder = encoders(made)[0], Decoder(made)
    for _ in range(RELEASES):
        encoder.message(np.zeros(SIZE))
        decoder.add(np.zeros(SIZE, dtype=np.uint64))
    with pytest.raises(InputError, match="6 releases"):
        encoder.message(np.zeros(SIZE))
    with pytest.raises(InputError, match="6 releases"):
        decoder.add(np.zeros(SIZE, dtype=np.uint64))


def test_parties_act_once(made: SecureSum) -> None:
    for party in (encoders(made)[0], Aggregate(made, SeededNoise(0)), Decoder(made)):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match="two noises"):
                copied(party)


def test_the_decoder_takes_one_message_of_each_silo(made: SecureSum) -> None:
    sent, decoder = [s.message(np.zeros(SIZE)) for s in encoders(made)], Decoder(made)
    later = Encoded(2, DIMENSION, sent[0].values, 0)
    other = Encoded(1, 2, np.zeros(5, dtype=np.uint64), 0)
    for messages, said in [
        (sent[1:], "one of each of the 4 silos"),
        ([*sent[1:], sent[1]], "one of each of the 4 silos"),
        ([later, *sent[1:]], "must be of release 1"),
        ([other, *sent[1:]], "dimension 3"),
        ([1, *sent[1:]], "must be Encoded values"),
    ]:
        with pytest.raises(InputError, match=said):
            decoder.combine(messages)
    for total, said in [
        (np.zeros(SIZE), "array of uint64"),
        (np.zeros(4, dtype=np.uint64), "shape"),
    ]:
        with pytest.raises(InputError, match=said):
            decoder.add(total)
    assert decoder.release == 0
    decoder.combine(sent)
    assert decoder.release == 1


@pytest.mark.parametrize(
    ("make", "message"),
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
def test_bad_input_is_one_clear_sentence(made, make, message) -> None:
    with pytest.raises(InputError, match=message):
        make(made)
