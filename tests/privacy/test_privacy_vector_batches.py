"""Tests of batches of vector sums: published constants, the proven account, and lower bounds of
delta."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from oracle import chowdhury_zhou_2022 as cz
from problems import ordinary_cases
from scipy import stats

from fastfed._validate import InputError
from fastfed.privacy import Budget, ClaimCondition, epsilon_of, mu_of
from fastfed.privacy.accounting.binomial import (
    Node,
    VectorSumAccount,
    pld_delta,
    shifted_binomial_delta,
)
from fastfed.privacy.mechanisms.vector_batches import VectorBatches, calibrate_vector_batches

# -- Users in several nodes ------------------------------------------------------------------------


def test_one_node_with_a_count_equals_a_list_of_nodes() -> None:
    for trials, norm, count in ((40, 1.5, 2), (50_000, 18.0, 7), (10**9, 3000.0, 40)):
        for integers in (False, True):
            counted = VectorSumAccount([Node(trials, norm, count, count)], 20, integers=integers)
            listed = VectorSumAccount([(trials, norm)] * count, 20, integers=integers)
            for delta in (0.1, 1e-4):
                assert counted.epsilon(delta) == pytest.approx(listed.epsilon(delta), rel=1e-12)


def test_pairs_equal_nodes_with_defaults() -> None:
    pairs = [(3_000, 7.5), (90, 0.4), (0, 0.0)]
    from_pairs = VectorSumAccount(pairs, 4)
    from_nodes = VectorSumAccount([Node(*pair) for pair in pairs], 4)
    assert from_pairs.nodes == from_nodes.nodes
    assert [from_pairs.epsilon(d) for d in (0.3, 1e-5)] == [
        from_nodes.epsilon(d) for d in (0.3, 1e-5)
    ]
    assert VectorSumAccount([Node(50, 0.6, 4.0, 1, 1.2)], 3, integers=True).delta(0.0) > 0.0


@pytest.mark.parametrize("integers", [False, True])
def test_a_node_bounds_all_splits_of_its_records(integers: bool) -> None:
    """Check that no split c of squares = 9 over nodes costs more than the Node that allows all
    splits."""
    for trials, norm in ((2_000, 4.0), (200_000, 40.0), (10**8, 800.0)):
        bound = VectorSumAccount([Node(trials, norm, 9.0, 9, 3 * norm)], 6, integers=integers)
        for split in ([3], [2, 2, 1], [1] * 9, [2, 1, 1, 1, 1, 1]):
            listed = VectorSumAccount(
                [(trials, records * norm) for records in split], 6, integers=integers
            )
            for delta in (0.1, 1e-3):
                assert listed.epsilon(delta) <= bound.epsilon(delta) * (1 + 1e-12)
        # With enough noise, the window for the reach costs little.
        limit = epsilon_of(3 * norm / math.sqrt(3 / 16 * trials), 1e-3)
        assert bound.epsilon(1e-3) <= 1.2 * limit


def rounded_noise_probabilities(trials: int, value: float, length: int) -> np.ndarray:
    """Return the probabilities on 0..length-1 of Bin(trials, 1/4) + value.

    ``value`` >= 0 is rounded at random.
    """
    noise, low = stats.binom.pmf(np.arange(trials + 1), trials, 0.25), math.floor(value)
    probabilities = np.zeros(length)
    probabilities[low : low + trials + 1] += (1 - (value - low)) * noise
    probabilities[low + 1 : low + trials + 2] += (value - low) * noise
    return probabilities


def divergence(
    trials: int, before: Sequence[float], after: Sequence[float], epsilon: float
) -> float:
    """Return the larger of both hockey-stick divergences over all joint outcomes of encoded
    vectors."""
    offset = math.floor(min(*before, *after))
    length = trials + math.ceil(max(*before, *after)) - offset + 2
    p, q = np.ones(1), np.ones(1)
    for before_value, after_value in zip(before, after, strict=True):
        if before_value != after_value:
            p = np.outer(
                p, rounded_noise_probabilities(trials, before_value - offset, length)
            ).ravel()
            q = np.outer(
                q, rounded_noise_probabilities(trials, after_value - offset, length)
            ).ravel()
    factor = math.exp(epsilon)
    return max(
        float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum())
    )


def test_delta_bounds_two_records_in_one_node_by_enumeration() -> None:
    for trials, norm in ((60, 0.8), (250, 2.5)):
        account = VectorSumAccount([Node(trials, norm, 4.0, 1, 2 * norm)], 2)
        for angle in np.linspace(0, math.pi / 2, 5):
            for start in (0.0, 0.4):
                before = np.array([start, 0.7]) + 20
                after = before + 2 * norm * np.array([math.cos(angle), math.sin(angle)])
                for epsilon in (0.0, 0.5, 2.0):
                    delta = divergence(trials, before, after, epsilon)
                    assert delta <= account.delta(epsilon) * (1 + 1e-9)


# -- Constants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "epsilon", "scale", "g", "b"),
    [(5, 0.2, 1, 9, 1550), (5, 1, 10, 9, 620), (5, 10, 10, 9, 7), (10, 1, 1, 10, 107),
     (15, 1, 1, 15, 283)],
)  # fmt: skip
def test_published_constants_are_reproduced(
    d: int, epsilon: float, scale: float, g: int, b: int
) -> None:
    batches = calibrate_vector_batches(
        Budget(epsilon, 0.1), 20, d, calibration="published-code", vector_scale=scale
    )
    encoding = cz.published(
        "linucb-sdp-vec", T=20_000, d=d, epsilon=epsilon, delta=0.1, scale=scale
    ).encoding
    assert encoding is not None
    assert (batches.g[0], batches.b) == (encoding.g, encoding.b) == (g, b)
    assert batches.g[1] == round(math.sqrt(2) * g)
    # In the published code x = sqrt2 x'. Its units are sqrt2 times ours for x y and twice ours for
    # x x^T.
    std = cz.vec_noise_std(encoding.g, encoding.b, 20, encoding.L)
    assert batches.noise_std[0] == pytest.approx(std / math.sqrt(2), rel=1e-12)
    assert batches.noise_std[1] == pytest.approx(
        std / 2 * math.sqrt(2) * g / batches.g[1], rel=1e-12
    )
    assert batches.noise_std[1] == pytest.approx(std / 2, rel=0.03)
    # With weights 1 and 2 of the streams, 2 + 2 (2) + 1/(2 (2)) = 2.5^2.
    assert batches.norm() == pytest.approx(2.5 * g, rel=0.03)
    assert batches.mu() == pytest.approx(cz.vec_mu(1, b, 20, batches.norm()), rel=1e-12)


def test_published_code_breaks_its_claim_at_epsilon_ten() -> None:
    """Use the published setting d = 5, B = 20, delta = 0.1, where the noise is too small."""

    def published(log: str, scale: float = 1.0) -> VectorBatches:
        """Return the noise of the published code with this logarithm."""
        return calibrate_vector_batches(
            Budget(10, 0.1), 20, 5, calibration="published-code", vector_scale=scale,
            published_log=log,
        )  # fmt: skip

    later_paper, same_paper, ten_times_the_bits = (
        published("ln(d^2/delta)"),
        published("ln(d/delta)"),
        published("ln(d/delta)", 10),
    )
    assert [batches.b for batches in (later_paper, same_paper, ten_times_the_bits)] == [2, 1, 7]
    assert [batches.exact() for batches in (later_paper, same_paper, ten_times_the_bits)] == [
        math.inf
    ] * 3
    # Lower bounds of delta when only the sign of x = e_1 changes, from the oracle's sums.
    sign_deltas = [
        max(cz.binomial_delta(batches.trials, 18, 10))
        for batches in (later_paper, same_paper, ten_times_the_bits)
    ]
    assert sign_deltas == pytest.approx([0.99535, 1.0, 0.20477], abs=5e-6)
    lower_bounds = [
        batches.hockey_stick_lower_bound(10)
        for batches in (later_paper, same_paper, ten_times_the_bits)
    ]
    assert all(
        lower_bound >= sign_delta * (1 - 1e-12)
        for lower_bound, sign_delta in zip(lower_bounds, sign_deltas, strict=True)
    )
    assert lower_bounds == pytest.approx([0.99776, 1.0, 0.4157], abs=5e-5)
    claim = later_paper.conditions()[-1]
    assert not claim.holds
    assert "its delta at epsilon 10 is at least 0.997;" in claim.text
    assert "no theorem states these constants" in claim.text
    # Even ten times the later paper's bits do not meet the claim.
    later_paper_ten = published("ln(d^2/delta)", 10)
    assert (later_paper_ten.b, later_paper_ten.trials) == (13, 260)
    assert 10 < epsilon_of(later_paper_ten.mu(), 0.1) + 2 < later_paper_ten.exact() < 18
    assert (
        "17.69 at delta 0.1 under replace, is at most 10" in later_paper_ten.conditions()[-1].text
    )


def test_published_code_meets_small_budgets() -> None:
    for epsilon, scale, true_epsilon in ((0.2, 1, 0.0487), (1, 10, 0.2627)):
        batches = calibrate_vector_batches(
            Budget(epsilon, 0.1), 20, 5, calibration="published-code", vector_scale=scale
        )
        assert batches.exact() == pytest.approx(true_epsilon, abs=1e-4)
        assert [condition.holds for condition in batches.conditions()] == [True, True]
        assert "its delta" not in batches.conditions()[1].text
    # Without the factor 10, the bits for epsilon = 1 prove 2.7, and a lower bound refutes 1.
    without_factor = calibrate_vector_batches(Budget(1, 0.1), 20, 5, calibration="published-code")
    assert without_factor.exact() == pytest.approx(2.69, abs=0.01)
    assert without_factor.hockey_stick_lower_bound(1) > 0.3


@pytest.mark.parametrize(("epsilon", "delta", "B", "d"), [(1, 0.1, 20, 5), (7.5, 1e-4, 333, 40)])
def test_theorem_constants_follow_the_paper(epsilon: float, delta: float, B: int, d: int) -> None:
    budget = Budget(epsilon, delta)
    shuffled_batches = calibrate_vector_batches(budget, B, d, calibration="theorem")
    g = cz.vec_g(B, d)
    assert shuffled_batches.g == (g, g)
    assert 0 <= shuffled_batches.b - cz.vec_b(epsilon, delta, B, d, g) < 1
    assert shuffled_batches.source == "chowdhury-zhou-2022, Theorem C.1"
    assert (
        f"epsilon = {epsilon:g} <= 15 and delta = {delta:g} < 1/2: met" in shuffled_batches.remark
    )
    local = calibrate_vector_batches(budget, B, d, calibration="theorem", local=True)
    levels, bits = cz.vec_local(epsilon, delta, d)
    assert local.g == (levels, levels)
    assert 0 <= local.b - bits < 1
    assert (local.counted, local.trials) == (local.b, B * local.b)
    returning = calibrate_vector_batches(budget, B, d, calibration="theorem", returning=30)
    assert 0 <= returning.b - cz.vec_returning_b(epsilon, delta, B, d, 30, g) < 1
    assert "for each batch: met" in returning.remark
    for batches in (shuffled_batches, local, returning):
        assert batches.noise_std == pytest.approx(
            [cz.vec_noise_std(batches.g[0], batches.b, B)] * 2
        )
        assert batches.exact() <= epsilon
        # Rounding noise is at most a quarter if g follows the batch size.
        assert batches.rounding_std == pytest.approx([math.sqrt(B) / (2 * batches.g[0])] * 2)


def test_noise_of_the_theorem_does_not_depend_on_the_batch() -> None:
    """The standard deviation depends neither on B nor on g: 1474 at epsilon 1, d 5, delta 0.1."""
    for B in (1, 20, 5000):
        batches = calibrate_vector_batches(Budget(1, 0.1), B, 5, calibration="theorem")
        assert batches.noise_std[0] == pytest.approx(1474, rel=1e-3)
    # Remark 3.7: the local guarantee is epsilon sqrt(B), if this is at most 15.
    batches = calibrate_vector_batches(Budget(1, 0.1), 20, 5, calibration="theorem")
    assert batches.local_epsilon() <= math.sqrt(20)
    assert batches.local_epsilon(1e-9) == pytest.approx(
        epsilon_of(math.sqrt(20) * batches.mu(), 1e-9), rel=0.01
    )
    large = calibrate_vector_batches(Budget(20, 0.1), 20, 5, calibration="theorem")
    assert "epsilon = 20 <= 15 and delta = 0.1 < 1/2: not met" in large.conditions()[-1].text
    assert large.conditions()[-1].holds


# -- Calibration "exact" ---------------------------------------------------------------------------

CASES: list[dict[str, object]] = [
    {"batch_size": 20, "dimension": 5},
    {"batch_size": 1000, "dimension": 10, "returning": 50, "covariance_ratio": 0.5},
    {"batch_size": 30, "dimension": 3, "local": True, "returning": 3},
    {"batch_size": 1, "dimension": 1, "covariance_ratio": 2.0},
    {"batch_size": 10**5, "dimension": 57, "honest_fraction": 0.3},
]
# The last three budgets are extreme: nearly useless, with almost no delta, with almost no noise.
BUDGETS = [(0.2, 0.1), (1, 1e-3), (5, 1e-5), (15, 1e-7), (1e-6, 1e-40), (50, 1e-12), (1e4, 0.1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    ordinary_cases(BUDGETS, lambda epsilon, delta: epsilon in (1, 15, 1e-6, 1e4)),
)
def test_exact_calibration_meets_the_budget(
    epsilon: float, delta: float, case: dict[str, object]
) -> None:
    batches = calibrate_vector_batches(Budget(epsilon, delta), **case)  # type: ignore[arg-type]
    assert batches.exact() <= epsilon
    assert all(condition.holds for condition in batches.conditions())
    assert isinstance(batches.conditions()[-1], ClaimCondition)
    # The lower bound of delta does not contradict the account.
    assert batches.hockey_stick_lower_bound(epsilon) <= batches.account().delta(epsilon) * (
        1 + 1e-9
    )
    if epsilon > 15:
        return
    needed_trials = 16 / 3 * batches.norm() ** 2 * batches.returning / mu_of(epsilon, delta) ** 2
    assert needed_trials <= batches.counted <= 1.025 * needed_trials + batches.counted / batches.b
    # At delta = 0.1, part of delta holds for noise of any size, so epsilon changes less.
    fewer = math.ceil(0.98 * needed_trials / (batches.counted / batches.b)) - 1
    assert msgspec.structs.replace(batches, b=fewer).exact() > epsilon
    assert math.sqrt(3 / 16 * batches.counted) >= 149.9


@pytest.mark.parametrize("case", CASES)
def test_exact_calibration_uses_the_fewest_bits(case: dict[str, object]) -> None:
    batches = calibrate_vector_batches(Budget(1, 1e-3), **case)  # type: ignore[arg-type]
    fewer_bits = msgspec.structs.replace(batches, b=batches.b - 1)
    assert batches.exact() <= 1 < fewer_bits.exact()


def test_noise_follows_the_covariance_ratio() -> None:
    for ratio in (0.25, 1.0, 3.0):
        batches = calibrate_vector_batches(Budget(1, 1e-5), 2500, 10, covariance_ratio=ratio)
        bias, covariance = batches.noise_std
        assert covariance / bias == pytest.approx(ratio, rel=0.03)
        assert batches.noise_stds == {
            "bias": bias,
            "covariance": covariance,
            "covariance_diagonal": covariance,
        }
        assert batches.exact() <= 1
        # The joint sensitivity of both streams in units of the bias noise does not depend on the
        # levels.
        squared_ratio = (batches.g[1] / batches.g[0]) ** 2
        joint_square = (
            2 + 2 * squared_ratio + 1 / (2 * squared_ratio) if squared_ratio >= 0.5 else 4.0
        )
        assert bias == pytest.approx(math.sqrt(joint_square) / mu_of(1, 1e-5), rel=0.01)


def test_bits_grow_with_the_participations_of_a_user() -> None:
    """Check that M0 batches of one user need M0 times the bits."""
    budget = Budget(1, 1e-4)
    one_batch = calibrate_vector_batches(budget, 2500, 5)
    assert one_batch.returning == 1
    assert not any("at most 1 batches" in condition.text for condition in one_batch.conditions())
    for participations in (4, 100, 10**6):
        batches = calibrate_vector_batches(budget, 2500, 5, returning=participations)
        assert batches.b / batches.g[0] ** 2 == pytest.approx(
            participations * one_batch.b / one_batch.g[0] ** 2, rel=0.02
        )
        assert batches.mu() == pytest.approx(one_batch.mu(), rel=0.02)
        texts = [condition.text for condition in batches.conditions()]
        assert texts[1].startswith(
            f"a user takes part in at most {participations} batches, once in each"
        )
        too_few_bits = msgspec.structs.replace(one_batch, returning=participations)
        assert not too_few_bits.conditions()[-1].holds
        assert (
            too_few_bits.exact()
            == pytest.approx(epsilon_of(one_batch.mu() * math.sqrt(participations), 1e-4), rel=0.25)
            or too_few_bits.exact() == math.inf
        )


def test_local_claims_do_not_depend_on_the_batch_size() -> None:
    budget = Budget(2, 1e-4)
    batches_by_size = [calibrate_vector_batches(budget, B, 5, local=True) for B in (1, 20, 10**5)]
    assert (
        len(
            {
                (batches.g, batches.b, batches.counted, batches.exact())
                for batches in batches_by_size
            }
        )
        == 1
    )
    assert [condition.holds for condition in batches_by_size[1].conditions()] == [True]
    assert batches_by_size[1].exact() == batches_by_size[1].local_epsilon() <= 2
    # The released noise grows with the batch, and so does privacy behind a shuffler.
    assert batches_by_size[1].noise_std[0] == pytest.approx(
        math.sqrt(20) * batches_by_size[0].noise_std[0]
    )
    assert batches_by_size[0].sides()[0][2] == batches_by_size[0].exact()
    ((model, source, epsilon, conditions),) = batches_by_size[1].sides()
    assert ["noise bits" in condition.text for condition in conditions] == [True]
    assert model == "shuffle: with a trusted shuffler of each batch in between"
    assert source == "chowdhury-zhou-2022, Corollary C.3"
    assert epsilon == pytest.approx(
        epsilon_of(batches_by_size[1].mu() / math.sqrt(20), 1e-4), rel=0.02
    )
    # With the same bits, a single user is as private as a batch of one.
    single_user = msgspec.structs.replace(batches_by_size[1], local=False, batch_size=1)
    assert single_user.exact() == batches_by_size[1].exact()


def test_a_shuffled_batch_has_a_local_guarantee() -> None:
    batches = calibrate_vector_batches(Budget(0.5, 1e-4), 20, 5)
    ((model, source, epsilon, conditions),) = batches.sides()
    assert conditions == ()
    assert (model, source) == (
        "local: nobody but the user is trusted",
        "chowdhury-zhou-2022, Remark 3.7",
    )
    assert epsilon == batches.local_epsilon()
    assert epsilon == pytest.approx(epsilon_of(batches.mu() * math.sqrt(20), 1e-4), rel=0.15)
    # With few bits per user no local guarantee is proven, and none is listed.
    few_bits_per_user = calibrate_vector_batches(Budget(15, 0.1), 10**5, 5)
    assert few_bits_per_user.local_epsilon() == math.inf
    assert few_bits_per_user.sides() == []


def test_bits_grow_if_fewer_users_are_honest() -> None:
    budget = Budget(1, 1e-3)
    all_honest = calibrate_vector_batches(budget, 2500, 5)
    half_honest = calibrate_vector_batches(budget, 2500, 5, honest_fraction=0.5)
    assert half_honest.counted == 1250 * half_honest.b
    assert half_honest.b == pytest.approx(2 * all_honest.b, abs=3)
    assert "fraction 0.5" in half_honest.conditions()[0].text
    # If all users are honest, these bits prove a smaller epsilon.
    assert msgspec.structs.replace(half_honest, honest_fraction=1.0).exact() < 0.7
    none_honest = msgspec.structs.replace(half_honest, honest_fraction=1e-9)
    assert (none_honest.exact(), none_honest.mu(), none_honest.hockey_stick_lower_bound(9.0)) == (
        math.inf,
        math.inf,
        1.0,
    )


def test_zero_out_needs_less_noise_than_replace() -> None:
    batches = calibrate_vector_batches(Budget(1, 1e-3), 500, 5)
    assert batches.exact(relation="zero-out") < batches.exact(relation="replace") <= 1
    assert batches.norm("zero-out") == pytest.approx(math.hypot(*batches.g))
    zero_out_batches = calibrate_vector_batches(Budget(1, 1e-3, "zero-out"), 500, 5)
    assert zero_out_batches.noise_std[0] == pytest.approx(
        batches.noise_std[0] * math.sqrt(2 / 4.5), rel=0.02
    )


# -- Lower bounds of delta -------------------------------------------------------------------------


def make_batches(
    g: tuple[int, int],
    bits: int,
    *,
    dimension: int = 2,
    batch: int = 1,
    returning: int = 1,
    relation: str = "replace",
) -> VectorBatches:
    """Return batches with these levels and bits."""
    return VectorBatches(
        batch_size=batch, dimension=dimension, g=g, b=bits, returning=returning,
        calibration="exact", budget=Budget(1, 0.1, relation), source="a test",
    )  # fmt: skip


def encoded_record(x: Sequence[float], y: float, g: tuple[int, int]) -> list[float]:
    """Return g (x y, x x^T on and above the diagonal) for one record."""
    d = len(x)
    return [g[0] * value * y for value in x] + [
        g[1] * x[i] * x[j] for i in range(d) for j in range(i, d)
    ]


@pytest.mark.parametrize(("g", "bits"), [((2, 2), 9), ((3, 4), 14), ((1, 3), 12), ((3, 2), 20)])
def test_lower_bound_of_delta_agrees_with_enumeration(g: tuple[int, int], bits: int) -> None:
    """Enumerate all joint outcomes in two dimensions.

    No pair of records exceeds the proven delta, and a pair attains the lower bound up to its grid.
    """
    batches = make_batches(g, bits)
    right, down = (1.0, 0.0), (0.0, 1.0)
    own_angle = math.asin(min(1.0, 0.5 * (g[0] / g[1]) ** 2)) / 2
    worst_pair = (
        (math.cos(own_angle), -math.sin(own_angle)),
        (-math.sin(own_angle), math.cos(own_angle)),
    )
    pairs = [(right, (-1.0, 0.0)), (right, down), worst_pair]
    for epsilon in (0.0, 1.0, 4.0):
        deltas = [
            divergence(bits, *(encoded_record(x, 1.0, g) for x in pair), epsilon) for pair in pairs
        ]
        lower_bound = batches.hockey_stick_lower_bound(epsilon)
        assert lower_bound <= max(deltas) * (1 + 1e-9)
        assert lower_bound >= max(deltas) * 0.999
    rng = np.random.default_rng(5)
    for _ in range(4):
        angles, signs = rng.uniform(0, 2 * math.pi, 2), rng.choice([-1.0, 1.0], 2)
        records = [
            encoded_record((math.cos(angle), math.sin(angle)), sign, g)
            for angle, sign in zip(angles, signs, strict=True)
        ]
        # Five coordinates have too many outcomes. Leaving one out is post-processing.
        before, after = (record[:3] + record[4:] for record in records)
        assert divergence(bits, before, after, 1.0) <= batches.account().delta(1.0) * (1 + 1e-9)


def test_lower_bound_of_delta_in_one_dimension() -> None:
    """Compare with a search over x between -1 and 1."""
    for g, bits in (((3, 3), 30), ((2, 5), 60)):
        batches = make_batches(g, bits, dimension=1)
        max_delta = max(
            divergence(bits, [g[0], g[1]], [-g[0] * q, g[1] * q * q], 1.0)
            for q in np.linspace(0, 1, 51)
        )
        assert (
            0.98 * max_delta
            <= batches.hockey_stick_lower_bound(1.0)
            <= batches.account().delta(1.0) * (1 + 1e-9)
        )
    many_levels = make_batches((40, 40), 4_000, dimension=1)
    assert many_levels.hockey_stick_lower_bound(0.5) == pytest.approx(
        shifted_binomial_delta(4_000, 80, 0.5)
    )


def test_lower_bound_of_delta_is_below_the_proven_delta() -> None:
    grid = itertools.product(((9, 9), (9, 13), (30, 12)), (40, 900, 60_000))
    for (g, bits), relation in itertools.product(grid, ("replace", "zero-out")):
        batches = make_batches(g, bits, dimension=5, relation=relation)
        for epsilon in (0.0, 0.3, 10.0, 100.0):
            proven = batches.account().delta(epsilon)
            assert 0.0 <= batches.hockey_stick_lower_bound(epsilon) <= proven * (1 + 1e-9)
    assert make_batches((9, 9), 2**28 + 1).hockey_stick_lower_bound(0.0) == 0.0


def test_noise_shorter_than_the_change_gives_delta_one() -> None:
    """Check that delta is 1 at every epsilon if some outcome occurs under one data set only."""
    assert make_batches((9, 9), 17).hockey_stick_lower_bound(1e6) == 1.0
    lower_bound = make_batches((9, 9), 18).hockey_stick_lower_bound(1e6)
    assert lower_bound >= 1 - 0.25**18 - 1e-12


@pytest.mark.slow
def test_lower_bound_of_delta_agrees_with_dp_accounting() -> None:
    pytest.importorskip("dp_accounting")
    # x changes from e_1 to e_2; both are on the grid of both streams.
    for g, bits, epsilon in (((9, 13), 40, 10.0), ((9, 9), 600, 1.0), ((12, 40), 5_000, 1.0)):
        batches = make_batches(g, bits, dimension=5)
        change = [g[0], -g[0], g[1], -g[1]]
        low, high = (
            pld_delta([(bits, change)], epsilon, 5e-3, upper=upper) for upper in (False, True)
        )
        assert low <= high <= batches.account().delta(epsilon) * (1 + 1e-9)
        assert batches.hockey_stick_lower_bound(epsilon) >= 0.997 * low
    # With zero-out this change is the worst, and the lower bound uses only this change.
    for bits, epsilon in ((600, 0.3), (5_000, 1.0)):
        batches = make_batches((9, 9), bits, relation="zero-out")
        low, high = (
            pld_delta([(bits, [9, 9])], epsilon, 1e-4, upper=upper) for upper in (False, True)
        )
        assert 0.997 * low <= batches.hockey_stick_lower_bound(epsilon) <= high * (1 + 1e-9)


def test_proven_epsilon_agrees_with_dp_accounting() -> None:
    """Check three batches of one user with zero-out: dp_accounting is never above and close."""
    pytest.importorskip("dp_accounting")
    for bits, excess in ((4_000, 0.12), (60_000, 0.04)):
        batches = make_batches((20, 20), bits, returning=3, relation="zero-out")
        nodes = [(bits, [20, 20])] * 3
        for delta in (0.1, 1e-4):
            epsilon = batches.exact(delta)
            assert pld_delta(nodes, epsilon, 1e-3, upper=False) <= delta
            assert pld_delta(nodes, epsilon * (1 - excess), 1e-3, upper=False) > delta


# -- Errors ----------------------------------------------------------------------------------------

BUDGET = Budget(1, 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_vector_batches(Budget(1, 0), 9, 2), "delta must be > 0 and < 1, got 0"),
        (
            lambda: calibrate_vector_batches(BUDGET, 0, 2),
            "batch_size must be an integer >= 1, got 0",
        ),
        (
            lambda: calibrate_vector_batches(BUDGET, 9, 2, returning=0),
            "returning must be an integer",
        ),
        (lambda: calibrate_vector_batches(Budget(1, 0.1, unit="silo"), 9, 2), "unit must be one"),
        (lambda: calibrate_vector_batches(BUDGET, 9, 2, calibration="exakt"), 'mean "exact"?'),
        (
            lambda: calibrate_vector_batches(BUDGET, 9, 2, vector_scale=2.0),
            'vector_scale must be 1 when calibration is "exact", got 2',
        ),
        (
            lambda: calibrate_vector_batches(
                BUDGET, 9, 2, calibration="theorem", published_log="ln(d^2/delta)"
            ),
            'published_log must be "ln(d/delta)" when calibration is "theorem", got "ln(d^2',
        ),
        (
            lambda: calibrate_vector_batches(
                BUDGET, 9, 2, calibration="published-code", local=True
            ),
            'local must be false when calibration is "published-code", got true',
        ),
        (
            lambda: calibrate_vector_batches(
                BUDGET, 9, 2, calibration="published-code", returning=2
            ),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_vector_batches(
                BUDGET, 9, 2, calibration="theorem", covariance_ratio=0.5
            ),
            'covariance_ratio must be 1 when calibration is "theorem", got 0.5',
        ),
        (
            lambda: calibrate_vector_batches(BUDGET, 9, 2, honest_fraction=0.1),
            "honest_fraction must leave at least 1 of 9 users, got 0.1",
        ),
        (
            lambda: calibrate_vector_batches(BUDGET, 9, 2, honest_fraction=0.5, local=True),
            "honest_fraction must be 1 when the claim is local",
        ),
        (
            lambda: make_batches((4, 4, 4), 9),
            "g must have one value for each of the 2 streams, got 3",
        ),
        (lambda: make_batches((4, 4), 0), "b must be an integer >= 1, got 0"),
        (
            lambda: make_batches((4, 4), 9).hockey_stick_lower_bound(-1.0),
            "epsilon must be >= 0, got -1.0",
        ),
        (lambda: VectorSumAccount([(1, 2.0, 3)], 1), "nodes must be pairs (trials, norm) or Node"),
        (lambda: VectorSumAccount([Node(9, 1.0, 0.5)], 1), "squares must be >= 1, got 0.5"),
        (lambda: VectorSumAccount([Node(9, 1.0, 4.0, 0)], 1), "count must be an integer >= 1"),
        (lambda: VectorSumAccount([Node(9, 2.0, reach=1.0)], 1), "reach must be >= 2, got 1.0"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
