"""Batches of vector sums: published constants, the proven account, and lower bounds of delta."""

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

# -- One user in several nodes ---------------------------------------------------------------------


def test_nodes_of_one_record_each_are_the_listed_nodes() -> None:
    for trials, norm, count in ((40, 1.5, 2), (50_000, 18.0, 7), (10**9, 3000.0, 40)):
        for integers in (False, True):
            together = VectorSumAccount([Node(trials, norm, count, count)], 20, integers=integers)
            listed = VectorSumAccount([(trials, norm)] * count, 20, integers=integers)
            for delta in (0.1, 1e-4):
                assert together.epsilon(delta) == pytest.approx(listed.epsilon(delta), rel=1e-12)


def test_pairs_and_default_nodes_are_the_same() -> None:
    pairs = [(3_000, 7.5), (90, 0.4), (0, 0.0)]
    plain = VectorSumAccount(pairs, 4)
    nodes = VectorSumAccount([Node(*pair) for pair in pairs], 4)
    assert plain.nodes == nodes.nodes
    assert [plain.epsilon(d) for d in (0.3, 1e-5)] == [nodes.epsilon(d) for d in (0.3, 1e-5)]
    assert VectorSumAccount([Node(50, 0.6, 4.0, 1, 1.2)], 3, integers=True).delta(0.0) > 0.0


@pytest.mark.parametrize("integers", [False, True])
def test_several_records_in_a_node_are_within_its_squares(integers: bool) -> None:
    """Any split c of squares = 9 over nodes costs no more than the Node that allows them all."""
    for trials, norm in ((2_000, 4.0), (200_000, 40.0), (10**8, 800.0)):
        bound = VectorSumAccount([Node(trials, norm, 9.0, 9, 3 * norm)], 6, integers=integers)
        for c in ([3], [2, 2, 1], [1] * 9, [2, 1, 1, 1, 1, 1]):
            listed = VectorSumAccount([(trials, i * norm) for i in c], 6, integers=integers)
            for delta in (0.1, 1e-3):
                assert listed.epsilon(delta) <= bound.epsilon(delta) * (1 + 1e-12)
        # The window for the reach costs little where there is noise enough.
        limit = epsilon_of(3 * norm / math.sqrt(3 / 16 * trials), 1e-3)
        assert bound.epsilon(1e-3) <= 1.2 * limit


def law(trials: int, value: float, length: int) -> np.ndarray:
    """Law on 0..length-1 of Bin(trials, 1/4) plus value >= 0, rounded at random."""
    noise, low = stats.binom.pmf(np.arange(trials + 1), trials, 0.25), math.floor(value)
    out = np.zeros(length)
    out[low : low + trials + 1] += (1 - (value - low)) * noise
    out[low + 1 : low + trials + 2] += (value - low) * noise
    return out


def divergence(
    trials: int, before: Sequence[float], after: Sequence[float], epsilon: float
) -> float:
    """The larger hockey-stick divergence over all joint outcomes of these encoded vectors."""
    least = math.floor(min(*before, *after))
    length = trials + math.ceil(max(*before, *after)) - least + 2
    p, q = np.ones(1), np.ones(1)
    for v, w in zip(before, after, strict=True):
        if v != w:
            p = np.outer(p, law(trials, v - least, length)).ravel()
            q = np.outer(q, law(trials, w - least, length)).ravel()
    e = math.exp(epsilon)
    return max(float(np.maximum(p - e * q, 0).sum()), float(np.maximum(q - e * p, 0).sum()))


def test_two_records_of_one_user_in_one_node_by_enumeration() -> None:
    for trials, norm in ((60, 0.8), (250, 2.5)):
        account = VectorSumAccount([Node(trials, norm, 4.0, 1, 2 * norm)], 2)
        for angle in np.linspace(0, math.pi / 2, 5):
            for start in (0.0, 0.4):
                before = np.array([start, 0.7]) + 20
                after = before + 2 * norm * np.array([math.cos(angle), math.sin(angle)])
                for epsilon in (0.0, 0.5, 2.0):
                    found = divergence(trials, before, after, epsilon)
                    assert found <= account.delta(epsilon) * (1 + 1e-9)


# -- Constants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "epsilon", "scale", "g", "b"),
    [(5, 0.2, 1, 9, 1550), (5, 1, 10, 9, 620), (5, 10, 10, 9, 7), (10, 1, 1, 10, 107),
     (15, 1, 1, 15, 283)],
)  # fmt: skip
def test_published_code(d: int, epsilon: float, scale: float, g: int, b: int) -> None:
    made = calibrate_vector_batches(
        Budget(epsilon, 0.1), 20, d, calibration="published-code", vector_scale=scale
    )
    encoding = cz.published(
        "linucb-sdp-vec", T=20_000, d=d, epsilon=epsilon, delta=0.1, scale=scale
    ).encoding
    assert encoding is not None
    assert (made.g[0], made.b) == (encoding.g, encoding.b) == (g, b)
    assert made.g[1] == round(math.sqrt(2) * g)
    # x = sqrt2 x': the published units are sqrt2 times ours for x y, twice ours for x x^T.
    std = cz.vec_noise_std(encoding.g, encoding.b, 20, encoding.L)
    assert made.noise_std[0] == pytest.approx(std / math.sqrt(2), rel=1e-12)
    assert made.noise_std[1] == pytest.approx(std / 2 * math.sqrt(2) * g / made.g[1], rel=1e-12)
    assert made.noise_std[1] == pytest.approx(std / 2, rel=0.03)
    # The weights 1 and 2 of the streams: 2 + 2 (2) + 1/(2 (2)) = 2.5^2.
    assert made.norm() == pytest.approx(2.5 * g, rel=0.03)
    assert made.mu() == pytest.approx(cz.vec_mu(1, b, 20, made.norm()), rel=1e-12)


def test_published_code_at_epsilon_ten() -> None:
    """The published setting d = 5, B = 20, delta = 0.1: what the noise bits do not hide."""

    def at(log: str, scale: float = 1.0) -> VectorBatches:
        return calibrate_vector_batches(
            Budget(10, 0.1), 20, 5, calibration="published-code", vector_scale=scale,
            published_log=log,
        )  # fmt: skip

    later, own, ten = at("ln(d^2/delta)"), at("ln(d/delta)"), at("ln(d/delta)", 10)
    assert [v.b for v in (later, own, ten)] == [2, 1, 7]
    assert [v.exact() for v in (later, own, ten)] == [math.inf] * 3
    # A changed sign of x = e_1 alone, by the oracle's sums.
    signs = [max(cz.binomial_delta(v.trials, 18, 10)) for v in (later, own, ten)]
    assert signs == pytest.approx([0.99535, 1.0, 0.20477], abs=5e-6)
    least = [v.hockey_stick_lower_bound(10) for v in (later, own, ten)]
    assert all(found >= sign * (1 - 1e-12) for found, sign in zip(least, signs, strict=True))
    assert least == pytest.approx([0.99776, 1.0, 0.4157], abs=5e-5)
    claim = later.conditions()[-1]
    assert not claim.holds
    assert "its delta at epsilon 10 is at least 0.997;" in claim.text
    assert "no theorem states these constants" in claim.text
    # Ten times the later paper's bits are still above the claim.
    more = at("ln(d^2/delta)", 10)
    assert (more.b, more.trials) == (13, 260)
    assert 10 < epsilon_of(more.mu(), 0.1) + 2 < more.exact() < 18
    assert "17.69 at delta 0.1 under replace, is at most 10" in more.conditions()[-1].text


def test_published_code_that_holds() -> None:
    for epsilon, scale, true in ((0.2, 1, 0.0487), (1, 10, 0.2627)):
        made = calibrate_vector_batches(
            Budget(epsilon, 0.1), 20, 5, calibration="published-code", vector_scale=scale
        )
        assert made.exact() == pytest.approx(true, abs=1e-4)
        assert [c.holds for c in made.conditions()] == [True, True]
        assert "its delta" not in made.conditions()[1].text
    # Without the factor 10 the bits for epsilon = 1 prove 2.7, and 1 is refuted.
    plain = calibrate_vector_batches(Budget(1, 0.1), 20, 5, calibration="published-code")
    assert plain.exact() == pytest.approx(2.69, abs=0.01)
    assert plain.hockey_stick_lower_bound(1) > 0.3


@pytest.mark.parametrize(("epsilon", "delta", "B", "d"), [(1, 0.1, 20, 5), (7.5, 1e-4, 333, 40)])
def test_theorem(epsilon: float, delta: float, B: int, d: int) -> None:
    budget = Budget(epsilon, delta)
    one = calibrate_vector_batches(budget, B, d, calibration="theorem")
    g = cz.vec_g(B, d)
    assert one.g == (g, g)
    assert 0 <= one.b - cz.vec_b(epsilon, delta, B, d, g) < 1
    assert one.source == "chowdhury-zhou-2022, Theorem C.1"
    assert f"epsilon = {epsilon:g} <= 15 and delta = {delta:g} < 1/2: met" in one.remark
    local = calibrate_vector_batches(budget, B, d, calibration="theorem", local=True)
    levels, bits = cz.vec_local(epsilon, delta, d)
    assert local.g == (levels, levels)
    assert 0 <= local.b - bits < 1
    assert (local.counted, local.trials) == (local.b, B * local.b)
    returning = calibrate_vector_batches(budget, B, d, calibration="theorem", returning=30)
    assert 0 <= returning.b - cz.vec_returning_b(epsilon, delta, B, d, 30, g) < 1
    assert "for each batch: met" in returning.remark
    for made in (one, local, returning):
        assert made.noise_std == pytest.approx([cz.vec_noise_std(made.g[0], made.b, B)] * 2)
        assert made.exact() <= epsilon
        # The rounding is at most a quarter where g follows the batch.
        assert made.rounding_std == pytest.approx([math.sqrt(B) / (2 * made.g[0])] * 2)


def test_theorem_facts() -> None:
    """The batch's noise is free of B and g: 1474 at epsilon 1, d 5, delta 0.1."""
    for B in (1, 20, 5000):
        made = calibrate_vector_batches(Budget(1, 0.1), B, 5, calibration="theorem")
        assert made.noise_std[0] == pytest.approx(1474, rel=1e-3)
    # Remark 3.7: locally epsilon sqrt(B), while that is at most 15.
    made = calibrate_vector_batches(Budget(1, 0.1), 20, 5, calibration="theorem")
    assert made.local_epsilon() <= math.sqrt(20)
    assert made.local_epsilon(1e-9) == pytest.approx(
        epsilon_of(math.sqrt(20) * made.mu(), 1e-9), rel=0.01
    )
    large = calibrate_vector_batches(Budget(20, 0.1), 20, 5, calibration="theorem")
    assert "epsilon = 20 <= 15 and delta = 0.1 < 1/2: not met" in large.conditions()[-1].text
    assert large.conditions()[-1].holds


# -- "exact" ---------------------------------------------------------------------------------------

CASES: list[dict[str, object]] = [
    {"batch_size": 20, "dimension": 5},
    {"batch_size": 1000, "dimension": 10, "returning": 50, "covariance_ratio": 0.5},
    {"batch_size": 30, "dimension": 3, "local": True, "returning": 3},
    {"batch_size": 1, "dimension": 1, "covariance_ratio": 2.0},
    {"batch_size": 10**5, "dimension": 57, "honest_fraction": 0.3},
]
# The last three are extreme: a budget nobody can use, almost no delta, almost no noise.
BUDGETS = [(0.2, 0.1), (1, 1e-3), (5, 1e-5), (15, 1e-7), (1e-6, 1e-40), (50, 1e-12), (1e4, 0.1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    ordinary_cases(BUDGETS, lambda epsilon, delta: epsilon in (1, 15, 1e-6, 1e4)),
)
def test_exact_meets_the_budget(epsilon: float, delta: float, case: dict[str, object]) -> None:
    made = calibrate_vector_batches(Budget(epsilon, delta), **case)  # type: ignore[arg-type]
    assert made.exact() <= epsilon
    assert all(c.holds for c in made.conditions())
    assert isinstance(made.conditions()[-1], ClaimCondition)
    # From below nothing contradicts it.
    assert made.hockey_stick_lower_bound(epsilon) <= made.account().delta(epsilon) * (1 + 1e-9)
    if epsilon > 15:
        return
    need = 16 / 3 * made.norm() ** 2 * made.returning / mu_of(epsilon, delta) ** 2
    assert need <= made.counted <= 1.025 * need + made.counted / made.b
    # At 0.1 part of delta is bought by noise of any size: epsilon moves less there.
    fewer = math.ceil(0.98 * need / (made.counted / made.b)) - 1
    assert msgspec.structs.replace(made, b=fewer).exact() > epsilon
    assert math.sqrt(3 / 16 * made.counted) >= 149.9


@pytest.mark.parametrize("case", CASES)
def test_exact_has_the_smallest_bits(case: dict[str, object]) -> None:
    made = calibrate_vector_batches(Budget(1, 1e-3), **case)  # type: ignore[arg-type]
    less = msgspec.structs.replace(made, b=made.b - 1)
    assert made.exact() <= 1 < less.exact()


def test_covariance_ratio() -> None:
    for ratio in (0.25, 1.0, 3.0):
        made = calibrate_vector_batches(Budget(1, 1e-5), 2500, 10, covariance_ratio=ratio)
        bias, covariance = made.noise_std
        assert covariance / bias == pytest.approx(ratio, rel=0.03)
        assert made.noise_stds == {
            "bias": bias,
            "covariance": covariance,
            "covariance_diagonal": covariance,
        }
        assert made.exact() <= 1
        # The streams' joint change in units of the bias noise, whatever the levels.
        w = (made.g[1] / made.g[0]) ** 2
        joint = 2 + 2 * w + 1 / (2 * w) if w >= 0.5 else 4.0
        assert bias == pytest.approx(math.sqrt(joint) / mu_of(1, 1e-5), rel=0.01)


def test_returning_users() -> None:
    """M0 batches of one user cost M0 times the bits; without them the claim is broken."""
    budget = Budget(1, 1e-4)
    one = calibrate_vector_batches(budget, 2500, 5)
    assert one.returning == 1
    assert not any("at most 1 batches" in c.text for c in one.conditions())
    for many in (4, 100, 10**6):
        made = calibrate_vector_batches(budget, 2500, 5, returning=many)
        assert made.b / made.g[0] ** 2 == pytest.approx(many * one.b / one.g[0] ** 2, rel=0.02)
        assert made.mu() == pytest.approx(one.mu(), rel=0.02)
        texts = [c.text for c in made.conditions()]
        assert texts[1].startswith(f"a user takes part in at most {many} batches, once in each")
        forgotten = msgspec.structs.replace(one, returning=many)
        assert not forgotten.conditions()[-1].holds
        assert (
            forgotten.exact()
            == pytest.approx(epsilon_of(one.mu() * math.sqrt(many), 1e-4), rel=0.25)
            or forgotten.exact() == math.inf
        )


def test_local_claims_do_not_know_the_batch() -> None:
    budget = Budget(2, 1e-4)
    made = [calibrate_vector_batches(budget, B, 5, local=True) for B in (1, 20, 10**5)]
    assert len({(v.g, v.b, v.counted, v.exact()) for v in made}) == 1
    assert [c.holds for c in made[1].conditions()] == [True]
    assert made[1].exact() == made[1].local_epsilon() <= 2
    # The released noise grows with the batch, and so does the privacy behind a shuffler.
    assert made[1].noise_std[0] == pytest.approx(math.sqrt(20) * made[0].noise_std[0])
    assert made[0].sides()[0][2] == made[0].exact()
    ((model, source, epsilon, conditions),) = made[1].sides()
    assert ["noise bits" in c.text for c in conditions] == [True]
    assert model == "shuffle: with a trusted shuffler of each batch in between"
    assert source == "chowdhury-zhou-2022, Corollary C.3"
    assert epsilon == pytest.approx(epsilon_of(made[1].mu() / math.sqrt(20), 1e-4), rel=0.02)
    # By the same bits one user alone is as private as a batch of one.
    alone = msgspec.structs.replace(made[1], local=False, batch_size=1)
    assert alone.exact() == made[1].exact()


def test_sides_of_a_shuffled_batch() -> None:
    made = calibrate_vector_batches(Budget(0.5, 1e-4), 20, 5)
    ((model, source, epsilon, conditions),) = made.sides()
    assert conditions == ()
    assert (model, source) == (
        "local: nobody but the user is trusted",
        "chowdhury-zhou-2022, Remark 3.7",
    )
    assert epsilon == made.local_epsilon()
    assert epsilon == pytest.approx(epsilon_of(made.mu() * math.sqrt(20), 1e-4), rel=0.15)
    # With few bits of one's own nothing is proven, and nothing is said.
    few = calibrate_vector_batches(Budget(15, 0.1), 10**5, 5)
    assert few.local_epsilon() == math.inf
    assert few.sides() == []


def test_honest_fraction() -> None:
    budget = Budget(1, 1e-3)
    trusting = calibrate_vector_batches(budget, 2500, 5)
    half = calibrate_vector_batches(budget, 2500, 5, honest_fraction=0.5)
    assert half.counted == 1250 * half.b
    assert half.b == pytest.approx(2 * trusting.b, abs=3)
    assert "fraction 0.5" in half.conditions()[0].text
    # Whoever relies on all of these bits proves more.
    assert msgspec.structs.replace(half, honest_fraction=1.0).exact() < 0.7
    nobody = msgspec.structs.replace(half, honest_fraction=1e-9)
    assert (nobody.exact(), nobody.mu(), nobody.hockey_stick_lower_bound(9.0)) == (
        math.inf,
        math.inf,
        1.0,
    )


def test_the_weaker_relation_costs_less() -> None:
    made = calibrate_vector_batches(Budget(1, 1e-3), 500, 5)
    assert made.exact(relation="zero-out") < made.exact(relation="replace") <= 1
    assert made.norm("zero-out") == pytest.approx(math.hypot(*made.g))
    weak = calibrate_vector_batches(Budget(1, 1e-3, "zero-out"), 500, 5)
    assert weak.noise_std[0] == pytest.approx(made.noise_std[0] * math.sqrt(2 / 4.5), rel=0.02)


# -- From below ------------------------------------------------------------------------------------


def made_of(
    g: tuple[int, int],
    bits: int,
    *,
    dimension: int = 2,
    batch: int = 1,
    returning: int = 1,
    relation: str = "replace",
) -> VectorBatches:
    return VectorBatches(
        batch_size=batch, dimension=dimension, g=g, b=bits, returning=returning,
        calibration="exact", budget=Budget(1, 0.1, relation), source="a test",
    )  # fmt: skip


def vector(x: Sequence[float], y: float, g: tuple[int, int]) -> list[float]:
    """g (x y, x x^T on and above the diagonal)."""
    d = len(x)
    return [g[0] * v * y for v in x] + [g[1] * x[i] * x[j] for i in range(d) for j in range(i, d)]


@pytest.mark.parametrize(("g", "bits"), [((2, 2), 9), ((3, 4), 14), ((1, 3), 12), ((3, 2), 20)])
def test_least_delta_by_enumeration(g: tuple[int, int], bits: int) -> None:
    """All joint outcomes in two dimensions: no pair of records is above the proven delta, and the
    lower bound is attained up to its grid of privacy losses."""
    made = made_of(g, bits)
    right, down = (1.0, 0.0), (0.0, 1.0)
    u = math.asin(min(1.0, 0.5 * (g[0] / g[1]) ** 2)) / 2
    worst = (math.cos(u), -math.sin(u)), (-math.sin(u), math.cos(u))
    known = [(right, (-1.0, 0.0)), (right, down), worst]
    for epsilon in (0.0, 1.0, 4.0):
        exact = [divergence(bits, *(vector(x, 1.0, g) for x in xs), epsilon) for xs in known]
        found = made.hockey_stick_lower_bound(epsilon)
        assert found <= max(exact) * (1 + 1e-9)
        assert found >= max(exact) * 0.999
    rng = np.random.default_rng(5)
    for _ in range(4):
        angles, signs = rng.uniform(0, 2 * math.pi, 2), rng.choice([-1.0, 1.0], 2)
        records = [
            vector((math.cos(a), math.sin(a)), s, g) for a, s in zip(angles, signs, strict=True)
        ]
        # A fifth coordinate would be too many outcomes; leaving it out is post-processing.
        before, after = (r[:3] + r[4:] for r in records)
        assert divergence(bits, before, after, 1.0) <= made.account().delta(1.0) * (1 + 1e-9)


def test_least_delta_in_one_dimension() -> None:
    """On a line nothing is between x = 1 and -1, but with many levels for x x^T."""
    for g, bits in (((3, 3), 30), ((2, 5), 60)):
        made = made_of(g, bits, dimension=1)
        best = max(
            divergence(bits, [g[0], g[1]], [-g[0] * q, g[1] * q * q], 1.0)
            for q in np.linspace(0, 1, 51)
        )
        assert (
            0.98 * best
            <= made.hockey_stick_lower_bound(1.0)
            <= made.account().delta(1.0) * (1 + 1e-9)
        )
    plain = made_of((40, 40), 4_000, dimension=1)
    assert plain.hockey_stick_lower_bound(0.5) == pytest.approx(
        shifted_binomial_delta(4_000, 80, 0.5)
    )


def test_least_delta_stays_below_what_is_proven() -> None:
    grid = itertools.product(((9, 9), (9, 13), (30, 12)), (40, 900, 60_000))
    for (g, bits), relation in itertools.product(grid, ("replace", "zero-out")):
        made = made_of(g, bits, dimension=5, relation=relation)
        for epsilon in (0.0, 0.3, 10.0, 100.0):
            proven = made.account().delta(epsilon)
            assert 0.0 <= made.hockey_stick_lower_bound(epsilon) <= proven * (1 + 1e-9)
    assert made_of((9, 9), 2**28 + 1).hockey_stick_lower_bound(0.0) == 0.0


def test_what_only_one_world_can_release() -> None:
    """Noise shorter than the change: everything is told, at every epsilon."""
    assert made_of((9, 9), 17).hockey_stick_lower_bound(1e6) == 1.0
    told = made_of((9, 9), 18).hockey_stick_lower_bound(1e6)
    assert told >= 1 - 0.25**18 - 1e-12


@pytest.mark.slow
def test_dp_accounting_agrees_from_below() -> None:
    pytest.importorskip("dp_accounting")
    # x = e_1 becomes e_2, which is on the grid of both streams.
    for g, bits, epsilon in (((9, 13), 40, 10.0), ((9, 9), 600, 1.0), ((12, 40), 5_000, 1.0)):
        made = made_of(g, bits, dimension=5)
        change = [g[0], -g[0], g[1], -g[1]]
        low, high = (pld_delta([(bits, change)], epsilon, 5e-3, upper=up) for up in (False, True))
        assert low <= high <= made.account().delta(epsilon) * (1 + 1e-9)
        assert made.hockey_stick_lower_bound(epsilon) >= 0.997 * low
    # Under zero-out this change is the worst, and the only one tried.
    for bits, epsilon in ((600, 0.3), (5_000, 1.0)):
        made = made_of((9, 9), bits, relation="zero-out")
        low, high = (pld_delta([(bits, [9, 9])], epsilon, 1e-4, upper=up) for up in (False, True))
        assert 0.997 * low <= made.hockey_stick_lower_bound(epsilon) <= high * (1 + 1e-9)


def test_dp_accounting_agrees_with_the_proven_epsilon() -> None:
    """Three batches of one user under zero-out: not beaten, and close."""
    pytest.importorskip("dp_accounting")
    for bits, excess in ((4_000, 0.12), (60_000, 0.04)):
        made = made_of((20, 20), bits, returning=3, relation="zero-out")
        nodes = [(bits, [20, 20])] * 3
        for delta in (0.1, 1e-4):
            epsilon = made.exact(delta)
            assert pld_delta(nodes, epsilon, 1e-3, upper=False) <= delta
            assert pld_delta(nodes, epsilon * (1 - excess), 1e-3, upper=False) > delta


# -- Bad input -------------------------------------------------------------------------------------

ANY = Budget(1, 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_vector_batches(Budget(1, 0), 9, 2), "delta must be > 0 and < 1, got 0"),
        (lambda: calibrate_vector_batches(ANY, 0, 2), "batch_size must be an integer >= 1, got 0"),
        (lambda: calibrate_vector_batches(ANY, 9, 2, returning=0), "returning must be an integer"),
        (lambda: calibrate_vector_batches(Budget(1, 0.1, unit="silo"), 9, 2), "unit must be one"),
        (lambda: calibrate_vector_batches(ANY, 9, 2, calibration="exakt"), 'mean "exact"?'),
        (
            lambda: calibrate_vector_batches(ANY, 9, 2, vector_scale=2.0),
            'vector_scale must be 1 when calibration is "exact", got 2',
        ),
        (
            lambda: calibrate_vector_batches(
                ANY, 9, 2, calibration="theorem", published_log="ln(d^2/delta)"
            ),
            'published_log must be "ln(d/delta)" when calibration is "theorem", got "ln(d^2',
        ),
        (
            lambda: calibrate_vector_batches(ANY, 9, 2, calibration="published-code", local=True),
            'local must be false when calibration is "published-code", got true',
        ),
        (
            lambda: calibrate_vector_batches(ANY, 9, 2, calibration="published-code", returning=2),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_vector_batches(
                ANY, 9, 2, calibration="theorem", covariance_ratio=0.5
            ),
            'covariance_ratio must be 1 when calibration is "theorem", got 0.5',
        ),
        (
            lambda: calibrate_vector_batches(ANY, 9, 2, honest_fraction=0.1),
            "honest_fraction must leave at least 1 of 9 users, got 0.1",
        ),
        (
            lambda: calibrate_vector_batches(ANY, 9, 2, honest_fraction=0.5, local=True),
            "honest_fraction must be 1 when the claim is local",
        ),
        (lambda: made_of((4, 4, 4), 9), "g must have one value for each of the 2 streams, got 3"),
        (lambda: made_of((4, 4), 0), "b must be an integer >= 1, got 0"),
        (
            lambda: made_of((4, 4), 9).hockey_stick_lower_bound(-1.0),
            "epsilon must be >= 0, got -1.0",
        ),
        (lambda: VectorSumAccount([(1, 2.0, 3)], 1), "nodes must be pairs (trials, norm) or Node"),
        (lambda: VectorSumAccount([Node(9, 1.0, 0.5)], 1), "squares must be >= 1, got 0.5"),
        (lambda: VectorSumAccount([Node(9, 1.0, 4.0, 0)], 1), "count must be an integer >= 1"),
        (lambda: VectorSumAccount([Node(9, 2.0, reach=1.0)], 1), "reach must be >= 2, got 1.0"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
