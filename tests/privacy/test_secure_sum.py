"""The account of secure sums: from the numbers that are executed, against independent ones."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from oracle import secure_sum as oracle
from scipy import stats

from fastfed._random import SeededNoise, entries
from fastfed._validate import InputError
from fastfed.privacy import Budget, ClaimCondition, delta_of, epsilon_of, mu_of
from fastfed.privacy.mechanisms.secure_sum import (
    SecureSum,
    calibrate_secure_sum,
    integer_factor,
)
from fastfed.privacy.releases.prefix_sums import toeplitz_factor
from fastfed.protocols.secure_sum import Aggregate, Decoder

BUDGETS = (Budget(1.0, 1e-3), Budget(5.0, 1e-5))
REAL = {"silos": 100, "colluders": 33, "dimension": 10, "points": 10**6}


def factor(releases: int, horizon: int = 10_000) -> np.ndarray:
    times = oracle.growing(releases, horizon)
    assert len(times) == releases
    return oracle.optimal_factor(times)


@pytest.fixture(scope="module")
def real() -> SecureSum:
    """The setting of the page, with 27 releases."""
    return calibrate_secure_sum(BUDGETS[0], factor(27), **REAL)


def small(trials=(40, 40, 80), *, colluders=0, rows=((1,), (1, 2)), **keys) -> SecureSum:
    """Few coins and coarse records, where everything can be summed exactly."""
    given = {
        "budget": Budget(1.0, 0.1),
        "factor": rows,
        "trials": trials,
        "silos": 3,
        "colluders": colluders,
        "dimension": 1,
        "points": 10,
        "unit": 1.0,
        "factor_bits": 0,
        **keys,
    }
    return SecureSum(**given)


# ---- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("releases", [27, 74])
def test_the_budget_is_met_by_a_hair_at_the_sizes_of_the_page(budget, releases) -> None:
    made = calibrate_secure_sum(budget, factor(releases), **REAL)
    assert budget.epsilon * (1.0 - 1e-4) < made.exact() <= budget.epsilon
    # Of the Gaussian limit: for coins of the same variance, 1e-9 apart.
    assert epsilon_of(made.mu(), budget.delta) == pytest.approx(made.exact(), rel=1e-8)
    assert made.fallback() == pytest.approx(
        epsilon_of(made.mu() * math.sqrt(67), budget.delta), rel=1e-8
    )
    assert made.fallback() == pytest.approx(14.184 if budget.epsilon == 1.0 else 80.438, abs=1e-3)
    assert (made.nbytes, made.honest, made.releases) == (520, 67, releases)
    assert made.bits == 57 and made.unit == 2.0**-22
    # One coin in a million less does not meet it.
    fewer = tuple(n - 2 * (n // 2_000_000) for n in made.trials)
    assert msgspec.structs.replace(made, trials=fewer).exact() > budget.epsilon


def test_noise_is_that_of_the_gaussian_mechanism(real: SecureSum) -> None:
    """All M shares: sqrt(M / (M - t)) times D / mu, D = 2 under replacement."""
    std = 2.0 / mu_of(1.0, 1e-3) * math.sqrt(100 / 67)
    # Columns rounded and records rounded: some 1e-5.
    assert real.stds[0] == pytest.approx(std, rel=1e-4) and real.stds[0] > std
    assert real.stds[1] == real.stds[0]
    assert real.stds[2] == pytest.approx(math.sqrt(2.0) * real.stds[0], rel=1e-12)
    assert real.noise_stds["bias"] == real.stds[0]


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_layouts_relations_ratios_and_bounds(layout, relation, ratio) -> None:
    given = {"silos": 7, "colluders": 2, "dimension": 3, "points": 500}
    budget = Budget(2.0, 1e-4, relation)
    made = calibrate_secure_sum(
        budget,
        toeplitz_factor(6),
        **given,
        layout=layout,
        covariance_ratio=ratio,
        feature_bound=0.5,
        reward_bound=3.0,
    )
    assert 1.9998 < made.exact() <= 2.0
    bias, off, on = made.stds
    off_unit, on_unit = {"iid": (1, 1), "goe1": (0.5**0.5, 1), "goe2": (1, 2**0.5)}[layout]
    assert off / bias == pytest.approx(ratio * off_unit * 0.25 / 1.5, rel=1e-9)
    assert on / bias == pytest.approx(ratio * on_unit * 0.25 / 1.5, rel=1e-9)
    # The account follows the bounds: features four times as long tell more.
    longer = msgspec.structs.replace(made, feature_bound=1.0)
    assert longer.exact() > 2.0 * made.exact()


def test_a_longer_factor_needs_as_much_more_noise() -> None:
    given = {"silos": 5, "colluders": 1, "dimension": 2, "points": 100}
    one, two = (
        calibrate_secure_sum(BUDGETS[0], c * toeplitz_factor(8), **given) for c in (0.5, 2.0)
    )
    assert two.stds[0] / one.stds[0] == pytest.approx(4.0, rel=1e-4)
    np.testing.assert_allclose(
        two.variance_factors * two.stds[0] ** 2,
        one.variance_factors * one.stds[0] ** 2,
        rtol=1e-3,
    )


def test_one_silo_and_everybody_colluding() -> None:
    alone = calibrate_secure_sum(BUDGETS[0], np.eye(3), 1, 0, 2, points=100)
    assert alone.exact() == alone.fallback() and len(alone.conditions()) == 2
    all_but_one = calibrate_secure_sum(BUDGETS[0], np.eye(3), 4, 3, 2, points=100)
    assert all_but_one.exact() == all_but_one.fallback()
    # Every share is then as large as that of a silo which trusts nobody.
    assert all_but_one.trials[0] == pytest.approx(alone.trials[0], rel=1e-6)


# ---- the account says what is executed -----------------------------------------------------------


def faulty(made: SecureSum) -> dict[str, SecureSum]:
    """What each fault does to the executed numbers."""

    def change(**fields) -> SecureSum:
        return msgspec.structs.replace(made, **fields)

    bias, off, on = made.trials
    rows = [list(row) for row in made.factor]
    rows[-1][0] += 2**13
    return {
        "half the noise": change(trials=tuple(n // 8 * 2 for n in made.trials)),
        "less noise on the bias": change(trials=(bias // 4 * 2, off, on)),
        "less noise off the diagonal": change(trials=(bias, off // 4 * 2, on)),
        "less noise on the diagonal": change(trials=(bias, off, on // 4 * 2)),
        "colluders": change(colluders=made.colluders + 40),
        "fewer silos": change(silos=80),
        "a longer column": change(factor=tuple(tuple(row) for row in rows)),
        "a finer unit": change(unit=made.unit / 2),
        "longer features": change(feature_bound=1.3),
        "larger rewards": change(reward_bound=1.3),
        "users that return": change(max_participations=2),
    }


def test_every_fault_changes_the_account(real: SecureSum) -> None:
    found = {name: made.exact() for name, made in faulty(real).items()}
    assert real.exact() <= 1.0
    assert all(epsilon > 1.001 for epsilon in found.values()), found
    assert found["half the noise"] == pytest.approx(
        epsilon_of(2.0 * mu_of(1.0, 1e-3), 1e-3), rel=1e-6
    )
    # The same integers said to be of another scale are as private, and their sums another thing.
    scaled = msgspec.structs.replace(real, factor_bits=13)
    assert scaled.exact() == pytest.approx(real.exact(), rel=1e-9)
    assert scaled.stds[0] == 2.0 * real.stds[0]
    # t ignored: calibrated for nobody, 33 collude.
    naive = calibrate_secure_sum(BUDGETS[0], factor(27), 100, 0, 10, points=10**6)
    honest = msgspec.structs.replace(naive, colluders=33)
    assert honest.exact() == pytest.approx(
        epsilon_of(mu_of(1.0, 1e-3) * math.sqrt(100 / 67), 1e-3), rel=1e-6
    )
    assert honest.exact() > 1.2


def test_conditions_say_what_holds(real: SecureSum) -> None:
    *trusted, claim = real.conditions()
    assert isinstance(claim, ClaimCondition) and claim.holds
    assert "67 of the 100 silos" in trusted[0].text and "keys" in trusted[1].text
    (side,) = real.sides()
    assert side.epsilon == real.fallback()
    for name, made in faulty(real).items():
        assert not made.conditions()[-1].holds, name
    nothing = msgspec.structs.replace(real, trials=(0, 0, 0), remark="no noise")
    assert nothing.exact() == math.inf and not nothing.sides()
    assert "none is" in nothing.conditions()[-1].text
    assert "no noise" in nothing.conditions()[-1].text
    several = msgspec.structs.replace(real, max_participations=3)
    assert any("at most 3 batches" in condition.text for condition in several.conditions())


def test_delta_and_epsilon_are_inverse(real: SecureSum) -> None:
    for epsilon in (0.3, 1.0, 2.0):
        delta = real.delta(epsilon)
        assert real.exact(delta * 1.001) <= epsilon * 1.001
        assert delta == pytest.approx(delta_of(epsilon, real.mu()), rel=1e-3)
    assert real.exact(relation="zero-out") < real.exact()
    assert real.exact(0.0) == math.inf


def test_it_is_a_value(real: SecureSum) -> None:
    again = calibrate_secure_sum(BUDGETS[0], factor(27), **REAL)
    assert again == real and hash(again) == hash(real)
    with pytest.raises(AttributeError):
        real.silos = 3


# ---- against independent numbers -----------------------------------------------------------------


def test_small_sums_are_never_claimed_more_private_than_they_are() -> None:
    """Every pair of records, every release and entry, all coins: exact convolutions."""
    made = small()
    honest = made.silos
    points = [(x, y) for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)]
    codes = [oracle.statistic(np.array([x]), y, made.unit) for x, y in points]
    trials = np.array(entries(1, made.trials)) * honest
    worst = {epsilon: 0.0 for epsilon in (0.2, 1.0, 3.0)}
    for first, second in itertools.combinations(codes, 2):
        for leaf in range(2):
            parts = [
                (int(n), abs(row[leaf] * int(change)))
                for row in made.factor[leaf:]
                for n, change in zip(trials, first - second, strict=True)
                if change
            ]
            for epsilon in worst:
                true = oracle.composed_delta(parts, epsilon, 1e-3) if parts else 0.0
                worst[epsilon] = max(worst[epsilon], true)
    for epsilon, true in worst.items():
        assert 0.0 < true <= made.delta(epsilon)
        # One colluder, one share less: the same coins claim less.
        assert small(colluders=1).delta(epsilon) > made.delta(epsilon)


def test_with_more_coins_the_claim_is_close() -> None:
    """The worst records, 1 and -1, in units of 2^-10: rounding adds 1 part in 1000."""
    coins = 6 * 10**7
    made = small(
        (coins, coins, 2 * coins), rows=((2,), (1, 2)), unit=2.0**-10, budget=Budget(1.0, 1e-3)
    )
    steps = [(3 * coins, abs(row[0]) * 2 * 2**10) for row in made.factor]
    mu = math.hypot(*(shift / math.sqrt(n / 4) for n, shift in steps))
    assert made.mu() == pytest.approx(mu, rel=0.01)
    for epsilon in (0.3, 1.0):
        # Losses of many coins, sampled: -ln of the ratio of two masses by log-gammas.
        true = _many_coins(steps, epsilon)
        assert true == pytest.approx(delta_of(epsilon, mu), rel=0.01)
        assert true * 0.999 <= made.delta(epsilon) <= 1.05 * true


def _many_coins(parts, epsilon: float) -> float:
    """Hockey-stick divergence of two independent coordinates, within twelve deviations."""
    from scipy.special import gammaln

    sides = []
    for n, shift in parts:
        std = math.sqrt(n) / 2.0
        step = max(1, round(std / 200))
        k = np.arange(int(n / 2 - 12 * std), int(n / 2 + 12 * std), step, dtype=np.float64)

        def log_mass(v, n=n):
            return gammaln(n + 1) - gammaln(v + 1) - gammaln(n - v + 1) - n * math.log(2.0)

        mass = np.exp(log_mass(k))
        sides.append((mass / mass.sum(), log_mass(k) - log_mass(k - shift)))
    (p, a), (q, b) = sides
    loss = a[:, None] + b[None, :]
    over = loss > epsilon
    return float((np.outer(p, q)[over] * -np.expm1(epsilon - loss[over])).sum())


def test_the_account_against_another_library(real: SecureSum) -> None:
    """The Gaussian limit of the executed integers, from the records' own change."""
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    stds = np.sqrt(np.array(real.entry_trials(real.honest), dtype=np.float64)) / 2.0
    x = np.zeros(10)
    x[0] = 1.0
    change = oracle.statistic(x, 1.0, real.unit) - oracle.statistic(-x, 1.0, real.unit)
    worst = max(oracle.gaussian_mu(real.factor, change, stds, leaf) for leaf in range(27))
    theirs = mechanism.GaussianPrivacyLoss(standard_deviation=1.0 / worst)
    assert theirs.get_delta_for_epsilon(real.exact()) == pytest.approx(1e-3, rel=1e-4)
    assert theirs.get_delta_for_epsilon(real.exact()) <= 1e-3


def test_no_pair_of_records_moves_more_than_is_counted(real: SecureSum) -> None:
    draw = np.random.default_rng(1)
    stds = np.sqrt(np.array(real.entry_trials(real.honest), dtype=np.float64)) / 2.0
    most = 0.0
    for _ in range(2000):
        pair = []
        for _ in range(2):
            x = draw.normal(size=10)
            x *= min(1.0, draw.uniform(0.8, 1.3)) / np.linalg.norm(x)
            pair.append((x, draw.choice([-1.0, 1.0, draw.uniform(-1, 1)])))
        if draw.random() < 0.5:
            pair[1] = (-pair[0][0] + 0.02 * draw.normal(size=10), pair[0][1])
            pair[1] = (pair[1][0] / max(1.0, np.linalg.norm(pair[1][0])), pair[0][1])
        change = np.subtract(*(oracle.statistic(x, y, real.unit) for x, y in pair))
        assert np.abs(change).max() * max(map(abs, real.factor[0])) <= real.reach
        most = max(most, oracle.gaussian_mu(real.factor, change, stds, 0))
    assert 0.97 * real.mu() < most <= real.mu()


@pytest.mark.parametrize("returning", [1, 2, 3, 9])
def test_users_of_several_batches(returning: int) -> None:
    """q against every set of columns; exact where all products are positive."""
    rows = integer_factor(toeplitz_factor(6), 8)
    made = small(rows=rows, max_participations=returning, points=50)
    full = np.zeros((6, 6), dtype=np.int64)
    for k, row in enumerate(rows):
        full[k, : k + 1] = row
    products = np.abs(full.T @ full)
    count = min(returning, 6)
    worst = max(
        int(products[np.ix_(chosen, chosen)].sum())
        for chosen in itertools.combinations(range(6), count)
    )
    assert worst <= made.squares <= 1.3 * worst
    if returning in (1, 9):
        assert made.squares == worst
    negative = tuple(
        tuple(-v if (k + j) % 2 else v for j, v in enumerate(row)) for k, row in enumerate(rows)
    )
    assert small(rows=negative, max_participations=returning).squares == made.squares


def test_integers_of_any_size_are_multiplied_exactly() -> None:
    rows = ((2**33,), (2**32 + 1, 2**33))
    made = small((2**100,) * 3, rows=rows, max_participations=2, factor_bits=20)
    lengths = [2**66 + (2**32 + 1) ** 2, 2**66]
    assert made.squares == sum(lengths) + 2 * (2**32 + 1) * 2**33


def test_monte_carlo_of_the_transcript(real: SecureSum) -> None:
    """Log likelihood ratios of whole transcripts have the mu of the account: 2000 of each world."""
    change = np.zeros(65)
    change[0] = 2.0
    found = []
    precision = 1.0 / np.array(real.entry_trials(real.silos), dtype=np.float64)[0] * 4.0
    column = np.array([row[0] for row in real.factor], dtype=np.float64)
    for world in (0, 1):
        for run in range(2000):
            sums = Aggregate(real, SeededNoise(11 + world, run))
            first = np.zeros(65)
            first[0] = 1.0 - 2.0 * world
            ratio = 0.0
            for k in range(3):  # columns are short after some releases
                total = sums.total(first if k == 0 else np.zeros(65))
                ratio += column[k] * float(total.view(np.int64)[0])
            found.append(ratio)
    step = 2.0 / real.unit
    part = float((column[:3] ** 2).sum())
    mu = math.sqrt(part * precision) * step
    first, second = np.array(found[:2000]), np.array(found[2000:])
    apart = (first.mean() - second.mean()) / np.concatenate(
        [first - first.mean(), second - second.mean()]
    ).std()
    assert apart == pytest.approx(mu, abs=4.0 * math.sqrt(2.0 / 2000))
    # The whole column, with the shares that count.
    whole = mu * math.sqrt(float((column**2).sum()) / part * 100 / 67)
    assert whole == pytest.approx(real.mu(), rel=1e-4)


# ---- words and decoding --------------------------------------------------------------------------


def test_the_weights_are_those_of_fractions(real: SecureSum) -> None:
    wanted = np.zeros((27, 27))
    for k, row in enumerate(oracle.exact_inverse(real.factor)):
        wanted[k] = [float(v * 2**14) for v in row]
    np.testing.assert_allclose(real.prefix_weights, wanted, rtol=1e-9, atol=1e-12)
    assert not np.triu(real.prefix_weights, 1).any()
    np.testing.assert_allclose(real.variance_factors, [0.0, *(wanted**2).sum(axis=1)], rtol=1e-12)


def test_prefixes_have_the_covariance_of_the_factor() -> None:
    """B~ B~' times the variance, entry by entry, from 3000 federations."""
    made = calibrate_secure_sum(BUDGETS[0], toeplitz_factor(5), 6, 1, 2, points=100)
    runs = np.empty((3000, 5, 5))
    leaves = [np.arange(5.0) + k for k in range(5)]
    for run in range(len(runs)):
        sums, decoder = Aggregate(made, SeededNoise(5, run)), Decoder(made)
        runs[run] = [decoder.add(sums.total(leaf)) for leaf in leaves]
    noise = runs - np.cumsum(leaves, axis=0)
    wanted = made.prefix_weights @ made.prefix_weights.T
    for entry, std in enumerate(entries(2, made.stds)):
        found = np.cov(noise[:, :, entry].T) / std**2
        np.testing.assert_allclose(found, wanted, atol=5.0 * wanted.max() * math.sqrt(2 / 3000))
        scores = noise[:, 4, entry] / (std * math.sqrt(wanted[4, 4]))
        assert stats.kstest(scores, "norm").pvalue > 1e-4


@pytest.mark.parametrize("points", [1, 10**6, 10**8, 10**10])
def test_no_sum_overflows(points: int) -> None:
    """The largest sums of records, in any order, with 40 deviations of noise."""
    made = calibrate_secure_sum(
        BUDGETS[0], -3.0 * factor(9), 100, 33, 2, points=points, feature_bound=1.7
    )
    entry = round(1.7**2 / made.unit)
    noise = 40 * math.sqrt(made.silos * max(made.trials)) / 2
    # All records in the worst leaf of the worst release.
    most = max(max(map(abs, row)) for row in made.factor) * points * entry + noise
    assert most < 2.0 ** (made.bits - 1) <= 2.0**62
    # float64 adds up that many fixed-point entries exactly.
    assert points * entry < 2**53
    assert 1.0 - 1e-4 < made.exact() <= 1.0
    assert made.unit <= (2.0**-20 if points <= 10**6 else 2.0**-10)


def test_a_sum_that_cannot_fit_is_refused() -> None:
    with pytest.raises(InputError, match="must leave 63 bits for the sum of 1000000000000 rec"):
        calibrate_secure_sum(BUDGETS[0], factor(9), 100, 33, 2, points=10**12)
    with pytest.raises(InputError, match="63 bits"):
        calibrate_secure_sum(BUDGETS[0], factor(9), 100, 33, 2, points=10, unit=2.0**-50)


def test_a_given_unit_is_taken() -> None:
    coarse, fine = (
        calibrate_secure_sum(BUDGETS[0], factor(9), 100, 33, 10, points=1000, unit=unit)
        for unit in (2.0**-10, 2.0**-22)
    )
    assert (coarse.unit, fine.unit) == (2.0**-10, 2.0**-22)
    # 2 sqrt(2 s) u / 2 more noise, s = 65.
    assert coarse.stds[0] / fine.stds[0] == pytest.approx(1.0 + math.sqrt(130) / 1024, rel=1e-5)


# ---- input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ()}, "rows of 1, 2, 3"),
        ({"rows": ((1,), (1, 2, 3))}, "rows of 1, 2, 3"),
        ({"rows": ((1,), (1, 0))}, "no 0 on its diagonal"),
        ({"rows": ((1,), (0.5, 1))}, "factor must hold integers"),
        ({"trials": (2, 2)}, "3 numbers of coins"),
        ({"trials": (2, 3, 2)}, "trials must be even, got 3"),
        ({"trials": (-2, 2, 2)}, "trials must be an integer >= 0"),
        ({"silos": 0}, "silos must be an integer >= 1"),
        ({"colluders": 3}, "colluders must be an integer >= 0 and <= 2"),
        ({"unit": 0.3}, "unit must be a power of two"),
        ({"unit": 0.0}, "unit must be >= 1e-100"),
        ({"feature_bound": 0.0}, "feature_bound must be > 0"),
        ({"max_participations": 0}, "max_participations must be an integer >= 1"),
        ({"points": 2**60}, "must leave 63 bits"),
    ],
)
def test_numbers_that_no_account_is_about(change, message) -> None:
    with pytest.raises(InputError, match=message):
        small(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": np.ones((2, 2))}, "must be lower triangular"),
        ({"factor": np.zeros((0, 0))}, "must be lower triangular"),
        ({"factor": np.diag([1.0, 1e-9])}, "none that is 0 on its diagonal"),
        ({"factor": 1e9 * np.eye(2)}, "entries below 2\\^31"),
        ({"factor": [[math.nan]]}, "factor must be finite"),
        ({"budget": Budget(1.0, 0.0)}, "delta must be > 0"),
        ({"budget": Budget(1.0, 0.1, unit="silo")}, "unit must be one of"),
        ({"colluders": 5}, "colluders must be an integer >= 0 and <= 4"),
        ({"layout": "goe3"}, "layout must be one of"),
        ({"unit": 0.3}, "unit must be a power of two"),
        ({"covariance_ratio": 0.0}, "covariance_ratio must be > 0"),
    ],
)
def test_bad_input_is_one_clear_sentence(change, message) -> None:
    given = {
        "budget": BUDGETS[0],
        "factor": np.eye(2),
        "silos": 5,
        "colluders": 1,
        "dimension": 2,
        "points": 10,
        **change,
    }
    with pytest.raises(InputError, match=message):
        calibrate_secure_sum(**given)
