"""Binomial noise: exact divergence, the proven account against enumeration, and the tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import cache

import msgspec
import numpy as np
import pytest
from scipy import special

from fastfed._validate import InputError
from fastfed.privacy import Budget, epsilon_of, mu_of
from fastfed.privacy.accounting.binomial import TABLE_TRIALS, Probits
from fastfed.privacy.mechanisms.binomial_tree import (
    BinomialTree,
    VectorSumAccount,
    calibrate_vector_sum,
    pld_delta,
    shifted_binomial_delta,
)

EXACT = [  # trials, shift, epsilon, delta
    (1000, 8, 1, 0.018438438494949153),
    (4000, 40, 0.5, 0.41846478336362636),
    (40, 18, 10, 0.9953485319203083),
    (2000, 1, 0.1, 0.0006044034424678733),
]


@cache
def pmf(trials: int, p: float = 0.25) -> np.ndarray:
    """Return the probability mass by logarithms of factorials, unlike the package."""
    k = np.arange(trials + 1)
    log = special.gammaln(trials + 1) - special.gammaln(k + 1) - special.gammaln(trials - k + 1)
    return np.exp(log + k * math.log(p) + (trials - k) * math.log1p(-p))


def encoded(trials: int, value: float, length: int) -> np.ndarray:
    """Return the distribution, on 0..length-1, of Bin(trials, 1/4) + `value` rounded at random."""
    noise, low = pmf(trials), math.floor(value)
    probabilities = np.zeros(length)
    probabilities[low : low + noise.size] += (1.0 - (value - low)) * noise
    probabilities[low + 1 : low + 1 + noise.size] += (value - low) * noise
    return probabilities


def divergences(
    first: list[np.ndarray], second: list[np.ndarray], epsilons: Iterable[float]
) -> np.ndarray:
    """Return the larger hockey-stick divergence of two product laws, over all joint outcomes."""
    p, q = np.ones(1), np.ones(1)
    for a, b in zip(first, second, strict=True):
        p, q = np.outer(p, a).ravel(), np.outer(q, b).ravel()
    return np.array(
        [
            max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())
            for e in map(math.exp, epsilons)
        ]
    )


def deltas(account: VectorSumAccount, epsilons: Iterable[float]) -> np.ndarray:
    """Return delta at each epsilon."""
    return np.array([account.delta(epsilon) for epsilon in epsilons])


@pytest.mark.parametrize(("trials", "shift", "epsilon", "delta"), EXACT)
def test_shifted_binomials_have_their_reference_delta(
    trials: int, shift: int, epsilon: float, delta: float
) -> None:
    assert shifted_binomial_delta(trials, shift, epsilon) == pytest.approx(delta, rel=1e-10)
    assert shifted_binomial_delta(trials, -shift, epsilon) == pytest.approx(delta, rel=1e-10)


@pytest.mark.parametrize("p", [0.25, 0.1, 0.5, 0.8])
def test_delta_of_shifted_binomials_equals_enumeration(p: float) -> None:
    for trials, shift, epsilon in itertools.product((1, 7, 60), (1, 2, 5, 40), (0.0, 0.3, 4.0)):
        length = trials + shift + 1
        unshifted, shifted = np.zeros(length), np.zeros(length)
        unshifted[: trials + 1] = shifted[shift:] = pmf(trials, p)
        actual = shifted_binomial_delta(trials, shift, epsilon, p)
        (expected,) = divergences([unshifted], [shifted], [epsilon])
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_delta_of_shifted_binomials_of_large_sizes() -> None:
    """Compare with incomplete beta functions at the best threshold, and with the Gaussian limit."""
    trials, shift, epsilon = 10**7, 1000, 0.5
    k = np.arange(2_495_000, 2_515_000)
    tail, shifted_tail = (special.betainc(c, trials - c + 1.0, 0.25) for c in (k, k - shift))
    best = float(np.max(shifted_tail - math.exp(epsilon) * tail))
    assert shifted_binomial_delta(trials, shift, epsilon) == pytest.approx(best, rel=2e-3)
    assert shifted_binomial_delta(trials, shift, epsilon) >= best * (1 - 1e-9)
    # Where the method changes from a table to a bound, delta grows by less than 1 %.
    by_table = shifted_binomial_delta(TABLE_TRIALS, shift, epsilon)
    by_bound = shifted_binomial_delta(TABLE_TRIALS + 1, shift, epsilon)
    assert by_table < by_bound < 1.01 * by_table
    assert shifted_binomial_delta(2**62, 10**9, 1.0) == pytest.approx(
        shifted_binomial_delta(2**60, 5 * 10**8, 1.0), rel=1e-3
    )
    assert shifted_binomial_delta(100, 0, 0.0) == 0.0
    assert shifted_binomial_delta(100, 101, 50.0) == 1.0
    assert shifted_binomial_delta(0, 1, 5.0) == 1.0


# -- The proven account ----------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [3, 40, 150])
def test_account_covers_every_integer_vector(trials: int) -> None:
    """Compare with the exact joint divergence of all integer vectors (x, y) up to the norm."""
    epsilons = (0.0, 0.2, 1.0, 3.0)
    for norm in (1.0, 2.3, 3.7):
        account = VectorSumAccount([(trials, norm)], 2, integers=True)
        proven = deltas(account, epsilons) * (1 + 1e-9)
        reach = int(norm)
        # In one order of the two coordinates, which are alike.
        for v in itertools.combinations_with_replacement(range(-reach, reach + 1), 2):
            if not 0 < v[0] ** 2 + v[1] ** 2 <= norm**2:
                continue
            length = trials + 2 * reach + 1
            without_record = [encoded(trials, reach, length + 1)] * 2
            with_record = [encoded(trials, reach + x, length + 1) for x in v]
            assert np.all(divergences(without_record, with_record, epsilons) <= proven)


def test_account_covers_two_nodes() -> None:
    """Use one coordinate in each of two nodes, whose losses compose like coordinates."""
    epsilons = (0.0, 0.5, 2.0)
    for sizes, norms in (((60, 200), (2, 5)), ((500, 90), (6, 1))):
        nodes = list(zip(sizes, norms, strict=True))
        account = VectorSumAccount(nodes, 1, integers=True)
        proven = deltas(account, epsilons)
        for signs in itertools.product((-1, 1), repeat=2):
            without_record = [encoded(n, s, n + 2 * s + 2) for n, s in nodes]
            with_record = [
                encoded(n, s + c * s, n + 2 * s + 2) for (n, s), c in zip(nodes, signs, strict=True)
            ]
            assert np.all(divergences(without_record, with_record, epsilons) <= proven)


@pytest.mark.parametrize("trials", [50, 400])
def test_account_covers_random_rounding(trials: int) -> None:
    """Use real changes in every direction, with random rounding."""
    rng, epsilons = np.random.default_rng(17), (0.0, 0.1, 1.0, 3.0)
    for norm in (0.02, 0.3, 1.0, 2.7, 8.5):
        account = VectorSumAccount([(trials, norm)], 2)
        proven = deltas(account, epsilons) * (1 + 1e-9)
        tried = [(0.0, 0.0, 0.0), (0.0, 0.5, math.pi / 4), (0.5, 0.5, 0.0)]
        tried += [tuple(rng.uniform((0, 0, 0), (1, 1, 2 * math.pi))) for _ in range(12)]
        for a, b, angle in tried:
            start = np.array([a, b]) + 10.0
            end = start + norm * np.array([math.cos(angle), math.sin(angle)])
            length = trials + 24
            distributions = [[encoded(trials, float(x), length) for x in w] for w in (start, end)]
            assert np.all(divergences(*distributions, epsilons) <= proven)


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dp-accounting build the loss distribution of a node once, not for every epsilon."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    name, built = "from_two_probability_mass_functions", {}
    build = getattr(pld, name)

    def once(first: dict, second: dict, **keywords: object) -> object:
        """Call the original function, but only once for each set of arguments."""
        key = (*first.items(), *second.items(), *keywords.items())
        if key not in built:
            built[key] = build(first, second, **keywords)
        return built[key]

    monkeypatch.setattr(pld, name, once)


@pytest.mark.usefixtures("built_once")
def test_account_covers_many_small_changes_and_one_large_change() -> None:
    """Use 65 coordinates: numerical composition gives a lower bound on delta below the account."""
    shapes = [[30], [18, 24], [10] * 9, [5, 5, -5] * 12, [-4] * 56, [1] * 65]
    for shape in shapes:
        norm = math.hypot(*shape)
        account = VectorSumAccount([(20_000, norm)], 65, integers=True)
        for epsilon in (0.0, 0.2, 1.0):
            actual = pld_delta([(20_000, shape)], epsilon, 1e-3, upper=False)
            assert actual <= account.delta(epsilon) + 1e-13


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize(
    ("trials", "shift", "excess"), [(4_000, 20, 0.12), (100_000, 100, 0.02), (2_000_000, 400, 0.01)]
)
def test_account_is_close_to_numerical_composition(trials: int, shift: int, excess: float) -> None:
    proven = VectorSumAccount([(trials, shift)] * 3, 1, integers=True)
    nodes = [(trials, [shift])] * 3
    for delta in (0.1, 1e-4):
        epsilon = proven.epsilon(delta)
        assert pld_delta(nodes, epsilon * (1 - excess), 1e-3, upper=False) > delta
        assert pld_delta(nodes, epsilon, 1e-3, upper=False) <= delta


def test_pld_agrees_with_the_exact_divergence() -> None:
    pytest.importorskip("dp_accounting")
    for trials, shift, epsilon, delta in EXACT:
        for sign in (1, -1):
            low, high = (
                pld_delta([(trials, [sign * shift])], epsilon, 1e-3, upper=u) for u in (False, True)
            )
            assert low <= delta * (1 + 1e-9)
            assert delta * (1 - 1e-9) <= high <= low + 5e-3 * delta + 1e-3
    assert pld_delta([(10, [0, 0])], 1.0) == 0.0


def test_account_reaches_the_gaussian_limit() -> None:
    for trials in (10**7, 10**9, 10**12, 10**15, 2**62):
        mu = 0.35
        norm = mu * math.sqrt(3 / 16 * trials)
        for integers in (False, True):
            account = VectorSumAccount([(trials, norm)] * 9, 65, integers=integers)
            for delta in (0.1, 1e-3, 1e-9):
                limit = epsilon_of(3 * mu, delta)
                assert (
                    limit <= account.epsilon(delta) <= limit * (1.004 if trials < 10**9 else 1.002)
                )


def test_delta_and_epsilon_are_inverse_functions() -> None:
    account = VectorSumAccount([(30_000, 25.0), (60_000, 35.4)], 20)
    for delta in (0.1, 1e-2, 1e-6):
        epsilon = account.epsilon(delta)
        assert account.delta(epsilon) == pytest.approx(delta, rel=0.02)
    assert account.epsilon(0.0) == math.inf
    assert VectorSumAccount([], 5).epsilon(0.0) == 0.0
    assert VectorSumAccount([(0, 1.0)], 5).epsilon(0.5) == math.inf
    assert VectorSumAccount([(0, 0.0)], 5).delta(0.0) == 0.0
    assert VectorSumAccount([(100, 0.5)], 5, integers=True).delta(0.0) == 0.0


def test_steps_of_normal_quantiles_are_bounded() -> None:
    """Compare every bound with probits from an independent distribution function."""
    for trials in (200, 5_000, 1_000_000):
        probits = Probits(trials)
        k = np.arange(0, trials, dtype=np.float64)
        lower = special.betainc(trials - k, k + 1.0, 0.75)
        upper = special.betainc(k + 1.0, trials - k, 0.25)
        for tail, largest in ((1e-2, 3), (1e-9, 1)):
            steps = probits.steps(tail, largest)
            in_window = (lower > tail) & (upper > tail)
            first, last = k[in_window][0] - 1 - largest, k[in_window][-1] + 1 + largest
            window = (k >= first) & (k <= last)
            x = np.where(lower < upper, special.ndtri(lower), -special.ndtri(upper))[window]
            assert np.diff(x).max() <= steps.mean <= np.diff(x).max() * (1 + 1e-6)
            # Between integers the distribution function is linear: 50 points of each interval.
            share = np.linspace(0, 1, 51)
            f = lower[window]
            fine_probits = special.ndtri(f[:-1, None] * (1 - share) + f[1:, None] * share)
            assert np.diff(fine_probits).max() * 50 <= steps.slope
            line = x[:-1, None] * (1 - share) + x[1:, None] * share
            assert np.abs(fine_probits - line).max() <= steps.bend


def test_closed_steps_are_above_the_tabulated() -> None:
    probits = Probits(TABLE_TRIALS)
    for tail in (1e-1, 1e-3, 1e-6, 1e-12, 1e-30):
        for largest in (1, 1000, 5000):
            table = probits.steps(tail, largest)
            closed = probits._steps_in_closed_form(tail, largest)
            for a, b in zip(
                (table.mean, table.slope, table.bend),
                (closed.mean, closed.slope, closed.bend),
                strict=True,
            ):
                assert a <= b <= 1.04 * a


def test_inequality_of_zubkov_and_serov_holds() -> None:
    """Check, for some binomials, the published inequality on which the closed bounds rest."""
    for trials in (5, 80, 3000):
        k = np.arange(trials + 1, dtype=np.float64)
        r = k / trials
        entropy = special.rel_entr(r, 0.25) + special.rel_entr(1 - r, 0.75)
        h = np.sign(r - 0.25) * np.sqrt(2 * trials * np.maximum(entropy, 0))
        c = special.ndtr(h)
        c[0], c[-1] = 0.75**trials, 1 - 0.25**trials
        f = special.betainc(trials - k[:-1], k[:-1] + 1.0, 0.75)
        assert np.all(c[:-1] <= f * (1 + 1e-10) + 1e-300)
        assert np.all(f <= c[1:] * (1 + 1e-10) + 1e-300)


# -- The tree --------------------------------------------------------------------------------------


def test_parameters_follow_the_published_code() -> None:
    tree = calibrate_vector_sum(Budget(0.2, 0.1), 400, 2500, 10, "published-code")
    assert (tree.depth, tree.coordinates) == (9, 65)
    assert tree.g[:3] == (100, 142, 200)
    assert tree.b[0] == math.ceil(100**2 * math.log(1000) ** 2 / (0.04 * 2500)) == 4772
    assert tree.noise_stds["bias"] == pytest.approx(15, abs=0.1)
    assert tree.published_std == pytest.approx(207, abs=0.5)
    assert tree.users(3) == 20_000
    assert tree.trials(3) == 20_000 * tree.b[3]
    assert tree.rounding_std(0) == pytest.approx(0.25)
    assert all(tree.rounding_std(j) <= 0.25 for j in range(9))
    ten = calibrate_vector_sum(Budget(0.2, 0.1), 400, 2500, 10, "published-code", vector_scale=10)
    assert ten.b[0] == math.ceil(10 * 100**2 * math.log(1000) ** 2 / (0.04 * 2500))


def test_published_code_meets_its_budget_for_some_sizes_only() -> None:
    lucky = calibrate_vector_sum(Budget(0.2, 0.1), 400, 2500, 10, "published-code")
    assert [c.holds for c in lucky.conditions()] == [True, True]
    assert lucky.exact() == pytest.approx(epsilon_of(lucky.mu(), 0.1), rel=5e-3)
    tree = calibrate_vector_sum(Budget(1, 0.001), 400, 2500, 10, "published-code")
    assert tree.exact() == pytest.approx(4.26, abs=0.01)
    who, claim = tree.conditions()
    assert (who.holds, claim.holds) == (True, False)
    assert "4.262" in claim.text
    assert "no theorem states these constants" in claim.text


def test_too_few_bits_have_no_finite_epsilon() -> None:
    """Use the small setting of chowdhury-zhou-2022: 40 noise bits against a shift of 18."""
    tree = calibrate_vector_sum(Budget(10, 0.1), 1, 20, 5, "published-code")
    assert (tree.g, tree.b, tree.trials(0)) == ((9,), (2,), 40)
    assert shifted_binomial_delta(tree.trials(0), 2 * tree.g[0], 10) == pytest.approx(
        0.995, abs=5e-4
    )
    assert tree.exact() == math.inf
    _, claim = tree.conditions()
    assert not claim.holds
    assert "too small" in claim.text
    # At a stricter nominal budget there are more bits, and about the Gaussian privacy of them.
    with_more_bits = calibrate_vector_sum(Budget(1, 0.1), 1, 20, 5, "published-code")
    assert with_more_bits.b == (124,)
    assert 1 < with_more_bits.exact() / epsilon_of(with_more_bits.mu(), 0.1) < 1.12


def test_parameters_follow_the_theorem() -> None:
    tree = calibrate_vector_sum(Budget(1, 0.001), 400, 2500, 10, "theorem")
    epsilon0 = 0.5 / (2 * math.sqrt(2 * 9 * math.log(2 / 0.0005)))
    delta0 = 0.0005 / 18
    factor = 24e4 * math.log(4 * 101 / delta0) ** 2 / epsilon0**2
    assert tree.b == tuple(math.ceil(factor * g * g / (2500 * 2**j)) for j, g in enumerate(tree.g))
    assert tree.g == tuple(math.ceil(2 * math.sqrt(2500 * 2**j)) for j in range(9))
    assert tree.exact() == 0.0
    assert "epsilon_0 = 0.02046 <= 15" in tree.conditions()[1].text
    assert "not met" not in tree.conditions()[1].text
    assert tree.exact(1e-9) == pytest.approx(epsilon_of(tree.mu(), 1e-9), rel=1e-3)
    large = calibrate_vector_sum(Budget(3000, 0.1), 400, 2500, 10, "theorem")
    assert "not met" in large.conditions()[1].text
    assert calibrate_vector_sum(Budget(1, 0.1), 3, 2, 40, "theorem").g == (40, 40)


@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "d", "g", "b_theorem", "b_scale1", "need", "true_scale1"),
    [
        (0.2, 0.1, 2500, 10, 100, 1654953972.4229734, 6895.641551762389, 126.85253128676513, 0.0),
        (
            *(1, 0.001, 20, 5, 8.94427190999916, 128113998.06790426, 533.8083252829344),
            *(159.0926103268282, 1.1105138700104844),
        ),
    ],
)
def test_one_run_reference(
    epsilon: float,
    delta: float,
    n: int,
    d: int,
    g: float,
    b_theorem: float,
    b_scale1: float,
    need: float,
    true_scale1: float,
) -> None:
    """Compare with values of one run, in which g was not rounded up and b scales with g^2."""
    # The budget whose half, split by advanced composition over one node, is (epsilon, delta).
    total_budget = Budget(epsilon * 4 * math.sqrt(2 * math.log(1 / delta)), 4 * delta)
    tree = calibrate_vector_sum(total_budget, 1, n, d, "theorem")
    square = (tree.g[0] / g) ** 2
    assert tree.b[0] == pytest.approx(b_theorem * square, rel=1e-7)
    exact = calibrate_vector_sum(Budget(epsilon, delta), 1, n, d)
    assert exact.trials(0) / exact.g[0] ** 2 == pytest.approx(need, rel=0.025)
    bits = (math.ceil(b_scale1 * square),)
    scale1 = msgspec.structs.replace(tree, b=bits, budget=Budget(epsilon, delta))
    assert true_scale1 * 0.995 <= scale1.exact() <= true_scale1 * 1.05


BUDGETS = [(0.2, 0.1), (1, 1e-3), (5, 1e-5), (15, 1e-7)]
SHAPES = [(400, 2500, 10), (1, 20, 5), (7, 1, 2), (40, 100_000, 57)]
# Every budget and every shape twice; the rest of the grid only adds depth.
ORDINARY = {(0, 0), (0, 2), (1, 1), (1, 3), (2, 0), (2, 1), (3, 2), (3, 3)}


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases", "points", "dimension"),
    [
        pytest.param(*budget, *shape, marks=() if (i, j) in ORDINARY else pytest.mark.slow)
        for i, budget in enumerate(BUDGETS)
        for j, shape in enumerate(SHAPES)
    ],
)
def test_exact_meets_the_budget_with_little_more_than_gaussian_noise(
    epsilon: float, delta: float, releases: int, points: int, dimension: int
) -> None:
    for relation in ("replace", "zero-out"):
        tree = calibrate_vector_sum(Budget(epsilon, delta, relation), releases, points, dimension)
        assert all(c.holds for c in tree.conditions())
        assert tree.exact() <= epsilon
        # N_j = 24 g^2 kappa / mu*^2 under replacement; the proof costs two per cent at most.
        joint = 4.5 if relation == "replace" else 2.0
        share = mu_of(epsilon, delta) / math.sqrt(tree.depth)
        for j, g in enumerate(tree.g):
            need = 16 / 3 * joint * g * g / share**2
            assert need <= tree.trials(j) <= 1.035 * need + tree.users(j)
        fewer = tuple(math.ceil(0.96 * b) - 1 for b in tree.b)
        less = msgspec.structs.replace(tree, b=fewer)
        assert less.exact() > epsilon


def test_exact_calibration_has_the_fewest_bits() -> None:
    tree = calibrate_vector_sum(Budget(1, 1e-3), 1, 2500, 10)
    less = msgspec.structs.replace(tree, b=(tree.b[0] - 1,))
    assert tree.exact() <= 1 < less.exact()


def test_account_detects_too_few_bits() -> None:
    budget = Budget(1, 1e-3)
    right = calibrate_vector_sum(budget, 400, 2500, 10)
    for factor in (1 / 9, 4 / 9, (1 + math.log(400)) / 9):
        wrong = msgspec.structs.replace(right, b=tuple(math.ceil(b * factor) for b in right.b))
        assert not wrong.conditions()[1].holds
        assert wrong.exact() == pytest.approx(epsilon_of(wrong.mu(), 1e-3), rel=0.02)


def test_noise_bits_of_a_silo_grow_if_fewer_silos_are_honest() -> None:
    """Check that each silo adds twice the noise bits if half of the silos are honest."""
    budget = Budget(1, 1e-3)
    all_honest = calibrate_vector_sum(budget, 40, 2500, 5)
    half_honest = calibrate_vector_sum(budget, 40, 2500, 5, honest_fraction=0.5)
    assert half_honest.exact() <= 1
    assert half_honest.counted(2) == half_honest.users(2) // 2 * half_honest.b[2]
    for a, b in zip(all_honest.b, half_honest.b, strict=True):
        assert b == pytest.approx(2 * a, abs=3)
    assert half_honest.noise_stds["bias"] == pytest.approx(
        math.sqrt(2) * all_honest.noise_stds["bias"], rel=1e-3
    )
    assert "fraction 0.5" in half_honest.conditions()[0].text
    overstated = msgspec.structs.replace(half_honest, honest_fraction=1.0)
    assert overstated.exact() < 0.75
    nobody_honest = msgspec.structs.replace(half_honest, honest_fraction=1e-9)
    assert nobody_honest.exact() == math.inf
    assert nobody_honest.mu() == math.inf


def test_relation_zero_out_needs_fewer_bits() -> None:
    tree = calibrate_vector_sum(Budget(1, 1e-3), 400, 2500, 10)
    assert tree.exact(relation="zero-out") < tree.exact(relation="replace") <= 1
    assert tree.mu("zero-out") == pytest.approx(tree.mu("replace") * math.sqrt(2 / 4.5))
    assert tree.exact(1e-9) > tree.exact(1e-3)


def test_bits_of_any_size() -> None:
    tree = BinomialTree(
        1, 1 << 31, 10, (1 << 29,), (1 << 31,), "theorem", Budget(1, 1e-6), "nobody"
    )
    assert tree.trials(0) == 1 << 62
    assert tree.exact() == pytest.approx(epsilon_of(tree.mu(), 1e-6), rel=1e-4)
    strict = calibrate_vector_sum(Budget(1e-3, 1e-9), 400, 2500, 10, "theorem")
    assert all(isinstance(b, int) for b in strict.b)


@pytest.mark.parametrize("calibration", ["exact", "theorem", "published-code"])
def test_epsilon_without_releases_is_zero(calibration: str) -> None:
    tree = calibrate_vector_sum(Budget(1, 0.01), 0, 100, 3, calibration)
    assert (tree.depth, tree.mu(), tree.exact(), tree.published_std) == (0, 0.0, 0.0, 0.0)
    assert tree.noise_stds["covariance"] == 0.0
    assert all(c.holds for c in tree.conditions())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_vector_sum(Budget(1, 0), 4, 9, 2), "delta must be > 0 and < 1, got 0.0"),
        (lambda: calibrate_vector_sum(Budget(1, 0.1), 4, 0, 2), "batch_points must be an integer"),
        (
            lambda: calibrate_vector_sum(Budget(1, 0.1), 4, 9, 2, "theorem", 2.0),
            'vector_scale must be 1 when calibration is "theorem", got 2',
        ),
        (
            lambda: calibrate_vector_sum(Budget(1, 0.1), 4, 9, 2, honest_fraction=0.1),
            "honest_fraction must leave at least 1 of 9 users, got 0.1",
        ),
        (lambda: calibrate_vector_sum(Budget(1, 0.1, unit="silo"), 4, 9, 2), "unit must be one of"),
        (lambda: calibrate_vector_sum(Budget(1, 0.1), 4, 9, 2, "exakt"), 'did you mean "exact"?'),
        (
            lambda: BinomialTree(4, 9, 2, (4, 4), (1, 1, 1), "exact", Budget(1, 0.1), "x"),
            "g must have one value for each of the 3 levels, got 2",
        ),
        (lambda: shifted_binomial_delta(-1, 1, 1), "trials must be an integer >= 0, got -1"),
        (lambda: shifted_binomial_delta(10**9, 1, 1, 0.5), "p must be 0.25 when trials > 16777216"),
        (lambda: VectorSumAccount([(1, 2, 3)], 1), "nodes must be pairs (trials, norm)"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
