"""Tests of the account of secure sums: it follows from the numbers of the plan and agrees with
independent computations."""

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
SIZES = {"silos": 100, "colluders": 33, "dimension": 10, "points": 10**6}


def growing_factor(releases: int, horizon: int = 10_000) -> np.ndarray:
    """Return the optimal factor for releases at growing times."""
    times = oracle.growing(releases, horizon)
    assert len(times) == releases
    return oracle.optimal_factor(times)


@pytest.fixture(scope="module")
def published_sum() -> SecureSum:
    """Return the setting of docs/secure-sum.md with 27 releases."""
    return calibrate_secure_sum(BUDGETS[0], growing_factor(27), **SIZES)


def small_sum(trials=(40, 40, 80), *, colluders=0, rows=((1,), (1, 2)), **keys) -> SecureSum:
    """Return a sum with few coins and coarse records, which can be enumerated exactly."""
    all_keys = {
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
    return SecureSum(**all_keys)


# ---- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("releases", [27, 74])
def test_calibration_uses_nearly_the_whole_budget(budget, releases) -> None:
    secure_sum = calibrate_secure_sum(budget, growing_factor(releases), **SIZES)
    assert budget.epsilon * (1.0 - 1e-4) < secure_sum.exact() <= budget.epsilon
    # The Gaussian limit for coins of the same variance differs by 1e-9.
    assert epsilon_of(secure_sum.mu(), budget.delta) == pytest.approx(secure_sum.exact(), rel=1e-8)
    assert secure_sum.fallback() == pytest.approx(
        epsilon_of(secure_sum.mu() * math.sqrt(67), budget.delta), rel=1e-8
    )
    assert secure_sum.fallback() == pytest.approx(
        14.184 if budget.epsilon == 1.0 else 80.438, abs=1e-3
    )
    assert (secure_sum.nbytes, secure_sum.honest, secure_sum.releases) == (520, 67, releases)
    assert secure_sum.bits == 57 and secure_sum.unit == 2.0**-22
    # With one coin in a million less, the budget is exceeded.
    fewer_coins = tuple(coins - 2 * (coins // 2_000_000) for coins in secure_sum.trials)
    assert msgspec.structs.replace(secure_sum, trials=fewer_coins).exact() > budget.epsilon


def test_noise_equals_the_noise_of_a_gaussian_mechanism(published_sum: SecureSum) -> None:
    """Check the noise of the sum of all M = 100 shares, of which t = 33 do not count.

    The M - t counted shares have the noise D / mu of a Gaussian mechanism with sensitivity D = 2
    (replacement), so all shares have sqrt(M / (M - t)) times this noise.
    """
    std = 2.0 / mu_of(1.0, 1e-3) * math.sqrt(100 / 67)
    # Rounding of columns and records adds about 1e-5.
    assert published_sum.stds[0] == pytest.approx(std, rel=1e-4) and published_sum.stds[0] > std
    assert published_sum.stds[1] == published_sum.stds[0]
    assert published_sum.stds[2] == pytest.approx(math.sqrt(2.0) * published_sum.stds[0], rel=1e-12)
    assert published_sum.noise_stds["bias"] == published_sum.stds[0]


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_noise_follows_layout_relation_ratio_and_bounds(layout, relation, ratio) -> None:
    sizes = {"silos": 7, "colluders": 2, "dimension": 3, "points": 500}
    budget = Budget(2.0, 1e-4, relation)
    secure_sum = calibrate_secure_sum(
        budget,
        toeplitz_factor(6),
        **sizes,
        layout=layout,
        covariance_ratio=ratio,
        feature_bound=0.5,
        reward_bound=3.0,
    )
    assert 1.9998 < secure_sum.exact() <= 2.0
    bias, off_diagonal, diagonal = secure_sum.stds
    off_unit, on_unit = {"iid": (1, 1), "goe1": (0.5**0.5, 1), "goe2": (1, 2**0.5)}[layout]
    assert off_diagonal / bias == pytest.approx(ratio * off_unit * 0.25 / 1.5, rel=1e-9)
    assert diagonal / bias == pytest.approx(ratio * on_unit * 0.25 / 1.5, rel=1e-9)
    # With longer features the account gives a larger epsilon.
    longer_features = msgspec.structs.replace(secure_sum, feature_bound=1.0)
    assert longer_features.exact() > 2.0 * secure_sum.exact()


def test_noise_is_proportional_to_the_factor() -> None:
    sizes = {"silos": 5, "colluders": 1, "dimension": 2, "points": 100}
    small_factor_sum, large_factor_sum = (
        calibrate_secure_sum(BUDGETS[0], scale * toeplitz_factor(8), **sizes)
        for scale in (0.5, 2.0)
    )
    assert large_factor_sum.stds[0] / small_factor_sum.stds[0] == pytest.approx(4.0, rel=1e-4)
    np.testing.assert_allclose(
        large_factor_sum.variance_factors * large_factor_sum.stds[0] ** 2,
        small_factor_sum.variance_factors * small_factor_sum.stds[0] ** 2,
        rtol=1e-3,
    )


def test_silos_that_trust_nobody_add_the_same_noise() -> None:
    single_silo = calibrate_secure_sum(BUDGETS[0], np.eye(3), 1, 0, 2, points=100)
    assert single_silo.exact() == single_silo.fallback() and len(single_silo.conditions()) == 2
    all_others_collude = calibrate_secure_sum(BUDGETS[0], np.eye(3), 4, 3, 2, points=100)
    assert all_others_collude.exact() == all_others_collude.fallback()
    # Each share is then as large as the share of a silo that trusts nobody.
    assert all_others_collude.trials[0] == pytest.approx(single_silo.trials[0], rel=1e-6)


# ---- planted faults ------------------------------------------------------------------------------


def faulty_sums(secure_sum: SecureSum) -> dict[str, SecureSum]:
    """Return, for each planted fault, the sum with the changed numbers."""

    def change(**fields) -> SecureSum:
        """Return the sum with changed fields."""
        return msgspec.structs.replace(secure_sum, **fields)

    bias, off_diagonal, diagonal = secure_sum.trials
    rows = [list(row) for row in secure_sum.factor]
    rows[-1][0] += 2**13
    return {
        "half the noise": change(trials=tuple(coins // 8 * 2 for coins in secure_sum.trials)),
        "less noise on the bias": change(trials=(bias // 4 * 2, off_diagonal, diagonal)),
        "less noise off the diagonal": change(trials=(bias, off_diagonal // 4 * 2, diagonal)),
        "less noise on the diagonal": change(trials=(bias, off_diagonal, diagonal // 4 * 2)),
        "colluders": change(colluders=secure_sum.colluders + 40),
        "fewer silos": change(silos=80),
        "a longer column": change(factor=tuple(tuple(row) for row in rows)),
        "a finer unit": change(unit=secure_sum.unit / 2),
        "longer features": change(feature_bound=1.3),
        "larger rewards": change(reward_bound=1.3),
        "users that return": change(max_participations=2),
    }


def test_account_of_every_fault_gives_a_larger_epsilon(published_sum: SecureSum) -> None:
    epsilons = {name: faulty_sum.exact() for name, faulty_sum in faulty_sums(published_sum).items()}
    assert published_sum.exact() <= 1.0
    assert all(epsilon > 1.001 for epsilon in epsilons.values()), epsilons
    assert epsilons["half the noise"] == pytest.approx(
        epsilon_of(2.0 * mu_of(1.0, 1e-3), 1e-3), rel=1e-6
    )
    # The same integers with a different scale are as private; only the decoded sums differ.
    scaled = msgspec.structs.replace(published_sum, factor_bits=13)
    assert scaled.exact() == pytest.approx(published_sum.exact(), rel=1e-9)
    assert scaled.stds[0] == 2.0 * published_sum.stds[0]
    # Calibrated for t = 0, while 33 silos collude.
    without_colluders = calibrate_secure_sum(
        BUDGETS[0], growing_factor(27), 100, 0, 10, points=10**6
    )
    with_colluders = msgspec.structs.replace(without_colluders, colluders=33)
    assert with_colluders.exact() == pytest.approx(
        epsilon_of(mu_of(1.0, 1e-3) * math.sqrt(100 / 67), 1e-3), rel=1e-6
    )
    assert with_colluders.exact() > 1.2


def test_conditions_name_trusted_silos_and_missed_claims(published_sum: SecureSum) -> None:
    *trusted, claim = published_sum.conditions()
    assert isinstance(claim, ClaimCondition) and claim.holds
    assert "67 of the 100 silos" in trusted[0].text and "keys" in trusted[1].text
    (side,) = published_sum.sides()
    assert side.epsilon == published_sum.fallback()
    for name, faulty_sum in faulty_sums(published_sum).items():
        assert not faulty_sum.conditions()[-1].holds, name
    without_noise = msgspec.structs.replace(published_sum, trials=(0, 0, 0), remark="no noise")
    assert without_noise.exact() == math.inf and not without_noise.sides()
    assert "none is" in without_noise.conditions()[-1].text
    assert "no noise" in without_noise.conditions()[-1].text
    three_batches = msgspec.structs.replace(published_sum, max_participations=3)
    assert any("at most 3 batches" in condition.text for condition in three_batches.conditions())


def test_delta_and_exact_epsilon_are_inverse_functions(published_sum: SecureSum) -> None:
    for epsilon in (0.3, 1.0, 2.0):
        delta = published_sum.delta(epsilon)
        assert published_sum.exact(delta * 1.001) <= epsilon * 1.001
        assert delta == pytest.approx(delta_of(epsilon, published_sum.mu()), rel=1e-3)
    assert published_sum.exact(relation="zero-out") < published_sum.exact()
    assert published_sum.exact(0.0) == math.inf


def test_secure_sums_are_immutable_and_hashable(published_sum: SecureSum) -> None:
    equal_sum = calibrate_secure_sum(BUDGETS[0], growing_factor(27), **SIZES)
    assert equal_sum == published_sum and hash(equal_sum) == hash(published_sum)
    with pytest.raises(AttributeError):
        published_sum.silos = 3


# ---- against independent numbers -----------------------------------------------------------------


def test_delta_of_small_sums_is_at_least_the_exact_delta() -> None:
    """Convolve exactly over all coins, for every pair of records, release and entry."""
    secure_sum = small_sum()
    honest = secure_sum.silos
    points = [(x, y) for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)]
    codes = [oracle.statistic(np.array([x]), y, secure_sum.unit) for x, y in points]
    trials = np.array(entries(1, secure_sum.trials)) * honest
    max_delta = {epsilon: 0.0 for epsilon in (0.2, 1.0, 3.0)}
    for first, second in itertools.combinations(codes, 2):
        for leaf in range(2):
            parts = [
                (int(n), abs(row[leaf] * int(change)))
                for row in secure_sum.factor[leaf:]
                for n, change in zip(trials, first - second, strict=True)
                if change
            ]
            for epsilon in max_delta:
                exact_delta = oracle.composed_delta(parts, epsilon, 1e-3) if parts else 0.0
                max_delta[epsilon] = max(max_delta[epsilon], exact_delta)
    for epsilon, exact_delta in max_delta.items():
        assert 0.0 < exact_delta <= secure_sum.delta(epsilon)
        # With one colluder, one share does not count: the same coins give a larger delta.
        assert small_sum(colluders=1).delta(epsilon) > secure_sum.delta(epsilon)


def test_delta_of_many_coins_is_close_to_the_exact_delta() -> None:
    """Use the worst records, 1 and -1, in units of 2^-10; rounding adds 1 part in 1000."""
    coins = 6 * 10**7
    secure_sum = small_sum(
        (coins, coins, 2 * coins), rows=((2,), (1, 2)), unit=2.0**-10, budget=Budget(1.0, 1e-3)
    )
    coins_and_shifts = [(3 * coins, abs(row[0]) * 2 * 2**10) for row in secure_sum.factor]
    mu = math.hypot(*(shift / math.sqrt(n / 4) for n, shift in coins_and_shifts))
    assert secure_sum.mu() == pytest.approx(mu, rel=0.01)
    for epsilon in (0.3, 1.0):
        # Privacy losses on a grid of outcomes, computed with log-gamma functions.
        exact_delta = divergence_of_many_coins(coins_and_shifts, epsilon)
        assert exact_delta == pytest.approx(delta_of(epsilon, mu), rel=0.01)
        assert exact_delta * 0.999 <= secure_sum.delta(epsilon) <= 1.05 * exact_delta


def divergence_of_many_coins(parts, epsilon: float) -> float:
    """Return the hockey-stick divergence of two independent coordinates.

    Outcomes up to twelve standard deviations are included.
    """
    from scipy.special import gammaln

    masses_and_losses = []
    for n, shift in parts:
        std = math.sqrt(n) / 2.0
        step = max(1, round(std / 200))
        k = np.arange(int(n / 2 - 12 * std), int(n / 2 + 12 * std), step, dtype=np.float64)

        def log_mass(v, n=n):
            """Return ln P(Bin(n, 1/2) = v)."""
            return gammaln(n + 1) - gammaln(v + 1) - gammaln(n - v + 1) - n * math.log(2.0)

        mass = np.exp(log_mass(k))
        masses_and_losses.append((mass / mass.sum(), log_mass(k) - log_mass(k - shift)))
    (p, a), (q, b) = masses_and_losses
    loss = a[:, None] + b[None, :]
    exceeds = loss > epsilon
    return float((np.outer(p, q)[exceeds] * -np.expm1(epsilon - loss[exceeds])).sum())


def test_account_agrees_with_dp_accounting(published_sum: SecureSum) -> None:
    """Compare with the Gaussian limit of the executed integers for the worst change of a record."""
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    stds = (
        np.sqrt(np.array(published_sum.entry_trials(published_sum.honest), dtype=np.float64)) / 2.0
    )
    x = np.zeros(10)
    x[0] = 1.0
    change = oracle.statistic(x, 1.0, published_sum.unit) - oracle.statistic(
        -x, 1.0, published_sum.unit
    )
    max_mu = max(oracle.gaussian_mu(published_sum.factor, change, stds, leaf) for leaf in range(27))
    loss = mechanism.GaussianPrivacyLoss(standard_deviation=1.0 / max_mu)
    assert loss.get_delta_for_epsilon(published_sum.exact()) == pytest.approx(1e-3, rel=1e-4)
    assert loss.get_delta_for_epsilon(published_sum.exact()) <= 1e-3


def test_no_pair_of_records_exceeds_the_sensitivity(published_sum: SecureSum) -> None:
    rng = np.random.default_rng(1)
    stds = (
        np.sqrt(np.array(published_sum.entry_trials(published_sum.honest), dtype=np.float64)) / 2.0
    )
    max_mu = 0.0
    for _ in range(2000):
        pair = []
        for _ in range(2):
            x = rng.normal(size=10)
            x *= min(1.0, rng.uniform(0.8, 1.3)) / np.linalg.norm(x)
            pair.append((x, rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])))
        if rng.random() < 0.5:
            pair[1] = (-pair[0][0] + 0.02 * rng.normal(size=10), pair[0][1])
            pair[1] = (pair[1][0] / max(1.0, np.linalg.norm(pair[1][0])), pair[0][1])
        change = np.subtract(*(oracle.statistic(x, y, published_sum.unit) for x, y in pair))
        assert np.abs(change).max() * max(map(abs, published_sum.factor[0])) <= published_sum.reach
        max_mu = max(max_mu, oracle.gaussian_mu(published_sum.factor, change, stds, 0))
    assert 0.97 * published_sum.mu() < max_mu <= published_sum.mu()


@pytest.mark.parametrize("returning", [1, 2, 3, 9])
def test_sensitivity_of_several_batches_covers_every_set(returning: int) -> None:
    """Compare the squares with every set of columns.

    They are equal where all products are positive.
    """
    rows = integer_factor(toeplitz_factor(6), 8)
    secure_sum = small_sum(rows=rows, max_participations=returning, points=50)
    matrix = np.zeros((6, 6), dtype=np.int64)
    for k, row in enumerate(rows):
        matrix[k, : k + 1] = row
    products = np.abs(matrix.T @ matrix)
    count = min(returning, 6)
    max_square = max(
        int(products[np.ix_(chosen, chosen)].sum())
        for chosen in itertools.combinations(range(6), count)
    )
    assert max_square <= secure_sum.squares <= 1.3 * max_square
    if returning in (1, 9):
        assert secure_sum.squares == max_square
    negative = tuple(
        tuple(-entry if (k + j) % 2 else entry for j, entry in enumerate(row))
        for k, row in enumerate(rows)
    )
    assert small_sum(rows=negative, max_participations=returning).squares == secure_sum.squares


def test_large_integers_are_multiplied_exactly() -> None:
    rows = ((2**33,), (2**32 + 1, 2**33))
    secure_sum = small_sum((2**100,) * 3, rows=rows, max_participations=2, factor_bits=20)
    lengths = [2**66 + (2**32 + 1) ** 2, 2**66]
    assert secure_sum.squares == sum(lengths) + 2 * (2**32 + 1) * 2**33


def test_log_likelihood_ratios_of_transcripts_have_the_accounts_mu(
    published_sum: SecureSum,
) -> None:
    """Simulate 2000 transcripts under each of two neighbouring data sets."""
    change = np.zeros(65)
    change[0] = 2.0
    ratios = []
    precision = (
        1.0 / np.array(published_sum.entry_trials(published_sum.silos), dtype=np.float64)[0] * 4.0
    )
    column = np.array([row[0] for row in published_sum.factor], dtype=np.float64)
    for data_set in (0, 1):
        for run in range(2000):
            sums = Aggregate(published_sum, SeededNoise(11 + data_set, run))
            first = np.zeros(65)
            first[0] = 1.0 - 2.0 * data_set
            ratio = 0.0
            for k in range(3):  # later entries of the column are small
                total = sums.total(first if k == 0 else np.zeros(65))
                ratio += column[k] * float(total.view(np.int64)[0])
            ratios.append(ratio)
    step = 2.0 / published_sum.unit
    short_column_square = float((column[:3] ** 2).sum())
    mu = math.sqrt(short_column_square * precision) * step
    first, second = np.array(ratios[:2000]), np.array(ratios[2000:])
    separation = (first.mean() - second.mean()) / np.concatenate(
        [first - first.mean(), second - second.mean()]
    ).std()
    assert separation == pytest.approx(mu, abs=4.0 * math.sqrt(2.0 / 2000))
    # For the whole column, with the shares of honest silos only.
    mu_of_column = mu * math.sqrt(float((column**2).sum()) / short_column_square * 100 / 67)
    assert mu_of_column == pytest.approx(published_sum.mu(), rel=1e-4)


# ---- words and decoding --------------------------------------------------------------------------


def test_prefix_weights_equal_exact_fractions(published_sum: SecureSum) -> None:
    expected = np.zeros((27, 27))
    for k, row in enumerate(oracle.exact_inverse(published_sum.factor)):
        expected[k] = [float(fraction * 2**14) for fraction in row]
    np.testing.assert_allclose(published_sum.prefix_weights, expected, rtol=1e-9, atol=1e-12)
    assert not np.triu(published_sum.prefix_weights, 1).any()
    np.testing.assert_allclose(
        published_sum.variance_factors, [0.0, *(expected**2).sum(axis=1)], rtol=1e-12
    )


def test_prefix_noise_has_the_covariance_of_the_factor() -> None:
    """Compare 3000 simulated federations with B~ B~' times the variance, entry by entry."""
    secure_sum = calibrate_secure_sum(BUDGETS[0], toeplitz_factor(5), 6, 1, 2, points=100)
    runs = np.empty((3000, 5, 5))
    leaves = [np.arange(5.0) + k for k in range(5)]
    for run in range(len(runs)):
        sums, decoder = Aggregate(secure_sum, SeededNoise(5, run)), Decoder(secure_sum)
        runs[run] = [decoder.add(sums.total(leaf)) for leaf in leaves]
    noise = runs - np.cumsum(leaves, axis=0)
    expected = secure_sum.prefix_weights @ secure_sum.prefix_weights.T
    for entry, std in enumerate(entries(2, secure_sum.stds)):
        covariance = np.cov(noise[:, :, entry].T) / std**2
        np.testing.assert_allclose(
            covariance, expected, atol=5.0 * expected.max() * math.sqrt(2 / 3000)
        )
        scores = noise[:, 4, entry] / (std * math.sqrt(expected[4, 4]))
        assert stats.kstest(scores, "norm").pvalue > 1e-4


@pytest.mark.parametrize("points", [1, 10**6, 10**8, 10**10])
def test_largest_sums_do_not_overflow(points: int) -> None:
    """Check the largest sum of records plus 40 standard deviations of noise."""
    secure_sum = calibrate_secure_sum(
        BUDGETS[0], -3.0 * growing_factor(9), 100, 33, 2, points=points, feature_bound=1.7
    )
    entry = round(1.7**2 / secure_sum.unit)
    noise = 40 * math.sqrt(secure_sum.silos * max(secure_sum.trials)) / 2
    # Put all records into the worst leaf of the worst release.
    largest_sum = max(max(map(abs, row)) for row in secure_sum.factor) * points * entry + noise
    assert largest_sum < 2.0 ** (secure_sum.bits - 1) <= 2.0**62
    # float64 adds this number of fixed-point entries exactly.
    assert points * entry < 2**53
    assert 1.0 - 1e-4 < secure_sum.exact() <= 1.0
    assert secure_sum.unit <= (2.0**-20 if points <= 10**6 else 2.0**-10)


def test_sums_that_need_more_than_63_bits_are_refused() -> None:
    with pytest.raises(InputError, match="must leave 63 bits for the sum of 1000000000000 rec"):
        calibrate_secure_sum(BUDGETS[0], growing_factor(9), 100, 33, 2, points=10**12)
    with pytest.raises(InputError, match="63 bits"):
        calibrate_secure_sum(BUDGETS[0], growing_factor(9), 100, 33, 2, points=10, unit=2.0**-50)


def test_noise_grows_with_a_coarse_unit() -> None:
    coarse, fine = (
        calibrate_secure_sum(BUDGETS[0], growing_factor(9), 100, 33, 10, points=1000, unit=unit)
        for unit in (2.0**-10, 2.0**-22)
    )
    assert (coarse.unit, fine.unit) == (2.0**-10, 2.0**-22)
    # Rounding to a unit u adds 2 sqrt(2 s) u / 2 to the sensitivity, with s = 65 entries.
    assert coarse.stds[0] / fine.stds[0] == pytest.approx(1.0 + math.sqrt(130) / 1024, rel=1e-5)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_errors_name_the_bad_field(changes, message) -> None:
    with pytest.raises(InputError, match=message):
        small_sum(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_errors_name_the_bad_argument(changes, message) -> None:
    arguments = {
        "budget": BUDGETS[0],
        "factor": np.eye(2),
        "silos": 5,
        "colluders": 1,
        "dimension": 2,
        "points": 10,
        **changes,
    }
    with pytest.raises(InputError, match=message):
        calibrate_secure_sum(**arguments)
