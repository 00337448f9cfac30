"""Returning users: the worst leaves against brute force and dynamic programming, and the noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import oracle.dvijotham_2024 as oracle
import pytest

from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate_release, calibrate_tree
from fastfed.privacy.accounting.binomial import masses
from fastfed.privacy.certificate import ClaimCondition
from fastfed.privacy.mechanisms.amplification import calibrate_shuffled_tree
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree, calibrate_vector_sum
from fastfed.privacy.releases.buffered import buffered_sensitivity_squared, buffers
from fastfed.privacy.releases.gaussian_release import RELEASES, GaussianRelease
from fastfed.privacy.releases.participation import (
    level_squares,
    max_squared_sensitivity,
    proposition_e_7_squared,
)
from fastfed.privacy.releases.prefix_sums import (
    depth,
    group_sensitivity_squared,
    honaker_coefficients,
    honaker_sensitivity_squared,
    node_count,
    node_number,
    toeplitz_coefficients,
    toeplitz_factor,
    toeplitz_sensitivity_squared,
)

TREES = ("tree", "honaker")


def released(name: str, releases: int) -> list[tuple[int, range]]:
    """(level, leaves) of every released node, of "honaker" of all nodes, from the definitions."""
    blocks = [
        (level, range((block << level) + 1, ((block + 1) << level) + 1))
        for level in range(releases.bit_length())
        for block in range(releases >> level)
    ]
    if name == "honaker":
        return blocks
    # Of the blocks that end at k, the p-sum tree releases the largest.
    largest = {leaves[-1]: (level, leaves) for level, leaves in blocks}
    return list(largest.values())


def moves(name: str, releases: int) -> np.ndarray:
    """(outputs, leaves): what one unit in each leaf does to everything released."""
    if name == "toeplitz":
        return toeplitz_factor(releases)
    if name == "buffered":
        t, w, direct = buffers(releases)
        return oracle.encoder(oracle.decoder(np.array(t), np.array(w), direct, releases))
    if name == "honaker":
        # The prefixes, whitened by the covariance of their noises.
        rows = np.zeros((releases, node_count(releases)))
        for k in range(1, releases + 1):
            for node, c in honaker_coefficients(k).items():
                rows[k - 1, node_number(*node) - 1] = c
        return np.linalg.solve(np.linalg.cholesky(rows @ rows.T), np.tri(releases))
    leaves = range(1, releases + 1)
    return np.array([[x in node for x in leaves] for _, node in released(name, releases)], float)


def programmed(name: str, releases: int, returning: int) -> int:
    """The most by dynamic programming: max-plus convolution up the tree, and over its blocks.

    "honaker": as if all nodes were seen.
    """

    def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        out = np.full(min(left.size + right.size - 1, returning + 1), -1)
        for count, value in enumerate(left.tolist()):
            size = min(right.size, out.size - count)
            if size > 0:
                part = out[count : count + size]
                np.maximum(part, value + right[:size], out=part)
        return out

    inside = np.zeros(2, int)  # by the number of chosen leaves, without the block's own node
    whole = np.zeros(1, int)
    for level in range(releases.bit_length()):
        block = inside + np.arange(inside.size) ** 2
        if releases >> level & 1:
            whole = joined(block, whole)
        inside = joined(block, block if name == "honaker" else inside)
    return int(whole[: returning + 1].max())


#: Releases by a formula; of "factorised" each has a factor of its own (test_privacy_factorised.py).
FORMULAS = [name for name in RELEASES if name != "factorised"]

# ---- the worst leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("releases", [*range(1, 11), 12])
def test_brute_force_over_all_sets_of_leaves(name: str, releases: int) -> None:
    found = dict.fromkeys(range(1, releases + 1), 0.0)
    changed = moves(name, releases)
    for chosen in itertools.product((0.0, 1.0), repeat=releases):
        size = int(sum(chosen))
        if size:
            found[size] = max(found[size], float(np.sum((changed @ chosen) ** 2)))
    best = 0.0
    for size, value in found.items():
        assert value > best, "another leaf always adds something"
        best = value
        most = max_squared_sensitivity(name, releases, size)
        if name == "honaker" and 1 < size < releases:
            # A bound, and a close one.
            assert best * (1 - 1e-12) <= most <= 1.04 * best
        else:
            assert most == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("name", TREES)
def test_dynamic_programming(name: str) -> None:
    draw = np.random.default_rng(3)
    cases = [(k, m) for k in range(1, 41) for m in range(1, k + 1)]
    cases += [(int(draw.integers(41, 3000)), int(draw.integers(1, 160))) for _ in range(60)]
    for releases, returning in cases:
        expected = programmed(name, releases, min(returning, releases))
        found = max_squared_sensitivity(name, releases, returning)
        if name == "tree":
            assert found == expected
        else:
            assert 0.84 * expected < found <= expected


def test_numbers_of_the_oracle() -> None:
    for releases, squared, bound in ((400, 412, 576), (1000, 476, 640)):
        assert max_squared_sensitivity("tree", releases, 8) == squared
        assert group_sensitivity_squared(range(1, 9), releases) == squared
        assert proposition_e_7_squared(releases, 8) == bound


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(
    "releases",
    [0, 1, 2, 7, 8, 33, *(pytest.param(n, marks=pytest.mark.slow) for n in (400, 1000))],
)
def test_one_batch_all_batches_and_in_between(name: str, releases: int) -> None:
    one = {
        "toeplitz": toeplitz_sensitivity_squared,
        "honaker": honaker_sensitivity_squared,
        "buffered": buffered_sensitivity_squared,
    }.get(name, depth)(releases)
    assert max_squared_sensitivity(name, releases, 1) == one
    every = float(np.sum(moves(name, releases).sum(axis=1) ** 2)) if releases else 0.0
    assert max_squared_sensitivity(name, releases, max(releases, 1)) == pytest.approx(
        every, rel=1e-12
    )
    assert max_squared_sensitivity(name, releases, releases + 5) == max_squared_sensitivity(
        name, releases, 10**9
    )
    values = [max_squared_sensitivity(name, releases, m) for m in range(1, releases + 1)]
    assert all(a < b for a, b in itertools.pairwise(values))
    for m, value in enumerate(values, 1):
        bound = proposition_e_7_squared(releases, m)
        assert bound == m * m * depth(releases)
        # Rounding is paid for once more.
        assert value <= m * m * one <= bound * (1.0 + 1e-12 * (name == "buffered"))
    # A Struct says the same.
    if releases:
        made = GaussianRelease(
            releases, "iid", 3.0, "exact", Budget(1, 0.1), "x", release=name, returning=3
        )
        assert made.sensitivity_squared == max_squared_sensitivity(name, releases, 3)
        assert made.mu() == pytest.approx(
            math.sqrt(max_squared_sensitivity(name, releases, 3) * 4.5) / 3.0
        )


def test_large_releases() -> None:
    million = 10**6
    for returning in (2, 30, 5000):
        rows = np.convolve(toeplitz_coefficients(20_000), np.ones(returning))[:20_000]
        assert max_squared_sensitivity("toeplitz", 20_000, returning) == pytest.approx(
            float(rows @ rows), rel=1e-12
        )
    # All leaves: the sum of (2 k f_k)^2, about (4 / pi) times the sum of k.
    assert max_squared_sensitivity("toeplitz", million, million) == pytest.approx(
        2 / math.pi * million**2, rel=1e-5
    )
    # Two leaves share all nodes but the lowest.
    assert max_squared_sensitivity("tree", million, 2) == 4 * depth(million) - 3
    assert max_squared_sensitivity("honaker", million, 2) < 4 * honaker_sensitivity_squared(million)
    assert max_squared_sensitivity("tree", 2**60, 2**60) == sum(
        4.0**j * 2 ** (59 - j) for j in range(60)
    ) + (4.0**60)


@pytest.mark.parametrize("releases", [1, 2, 3, 5, 6, 7, 8, 10])
def test_levels_by_brute_force(releases: int) -> None:
    nodes = released("tree", releases)
    for returning in range(1, releases + 2):
        sets = list(itertools.combinations(range(1, releases + 1), min(returning, releases)))
        squares = 0
        for level in range(depth(releases)):
            counts = [
                [sum(x in leaves for x in chosen) for at, leaves in nodes if at == level]
                for chosen in sets
            ]
            expected = (
                max(sum(c * c for c in row) for row in counts),
                max(sum(c > 0 for c in row) for row in counts),
                max(max(row) for row in counts),
            )
            assert level_squares(releases, returning, level) == expected
            squares += expected[0]
        assert squares >= max_squared_sensitivity("tree", releases, returning)


# ---- noise --------------------------------------------------------------------------------------


def made(name: str, budget: Budget, releases: int, layout: str, returning: int) -> GaussianRelease:
    if name == "tree":
        return calibrate_tree(budget, releases, layout=layout, returning=returning)
    return calibrate_release(name, budget, releases, layout=layout, returning=returning)


@pytest.mark.parametrize("name", FORMULAS)
def test_budget_is_met_and_not_wasted(name: str) -> None:
    draw = np.random.default_rng(21)
    for _ in range(25):
        budget = Budget(
            float(10 ** draw.uniform(-3, 1.5)),
            float(10 ** draw.uniform(-12, -0.5)),
            str(draw.choice(["replace", "zero-out"])),
        )
        layout = str(draw.choice(["iid", "goe1", "goe2"]))
        releases, returning = int(draw.integers(2, 900)), int(draw.integers(2, 60))
        tree = made(name, budget, releases, layout, returning)
        assert tree.returning == returning
        assert tree.exact() <= budget.epsilon * (1 + 1e-9)
        trust, claim = tree.conditions()
        assert trust.holds and f"at most {returning} batches, once in each" in trust.text
        assert isinstance(claim, ClaimCondition) and claim.holds
        less = msgspec.structs.replace(tree, noise_std=tree.noise_std * 0.99)
        assert less.exact() > budget.epsilon and not less.conditions()[-1].holds
        once = made(name, budget, releases, layout, 1)
        growth = max_squared_sensitivity(name, releases, returning) / max_squared_sensitivity(
            name, releases, 1
        )
        assert tree.noise_std == pytest.approx(once.noise_std * math.sqrt(growth))
        forgotten = msgspec.structs.replace(once, returning=returning)
        assert forgotten.exact() > budget.epsilon
        assert len(once.conditions()) == 1


def test_theorem_takes_the_factor_of_proposition_e_7() -> None:
    budget = Budget(1.0, 1e-3, "zero-out")
    once = calibrate_tree(budget, 400, "theorem")
    eight = calibrate_tree(budget, 400, "theorem", returning=8)
    assert eight.noise_std == pytest.approx(8 * once.noise_std)
    assert "Proposition E.7" in eight.source and "Proposition E.7" in eight.conditions()[-1].text
    assert "Proposition E.7" not in once.source + once.conditions()[-1].text
    assert eight.exact() < once.exact() < 1
    # One user cannot be in more batches than there are.
    capped = calibrate_tree(budget, 3, "theorem", returning=8)
    assert capped.noise_std == pytest.approx(3 * calibrate_tree(budget, 3, "theorem").noise_std)


def test_shuffled_silos_fall_back_on_local_privacy() -> None:
    budget = Budget(1e-3, 1e-4)
    once = calibrate_shuffled_tree(budget, 1, 10**6, 25, 25)
    assert "by Lemma F.2" in once.conditions()[-1].text
    returning = msgspec.structs.replace(once, returning=2)
    assert returning.exact() == returning.ldp() > once.exact()
    two = calibrate_shuffled_tree(budget, 3, 10**6, 25, 75, returning=2)
    assert two.noise_std == calibrate_tree(budget, 3, returning=2).noise_std
    assert two.exact() == two.ldp() == pytest.approx(budget.epsilon)
    trust, claim = two.conditions()
    assert "at most 2 batches" in trust.text and claim.holds
    assert "F.2, which is about one record, is not used" in claim.text
    assert "Lemma" not in two.source


# ---- vector sums --------------------------------------------------------------------------------


def sums(trials: int, values: tuple[float, ...], offset: int, length: int) -> np.ndarray:
    """Law on 0..length-1 of Bin(trials, 1/4) + offset + values, each value rounded at random."""
    first, law, _ = masses(trials)
    assert first == 0
    for value in values:
        low = math.floor(value)
        offset += low
        law = np.convolve(law, [1.0 - (value - low), value - low])
    out = np.zeros(length)
    out[offset : offset + law.size] = law
    return out


@pytest.mark.parametrize(("g", "trials"), [((2, 3), (160, 240)), ((5, 2), (320, 160))])
def test_account_covers_several_roundings_in_one_node(
    g: tuple[int, int], trials: tuple[int, int]
) -> None:
    """Both records of a user in the two nodes of K = 2, d = 1: exact joint divergence.

    The features are x and -x, so x^2 stays and one coordinate of each node changes.
    """
    bits = (trials[0] // 4, trials[1] // 8)
    tree = BinomialTree(2, 4, 1, g, bits, "exact", Budget(1, 0.1), "test", returning=2)
    epsilons = (0.0, 0.5, 2.0)
    proven = [tree.account().delta(e) for e in epsilons]
    worst = np.zeros(3)
    for first, second in itertools.product((1.0, 0.9, 0.47, -0.47, -0.61, -1.0), repeat=2):
        worlds = []
        for sign in (1.0, -1.0):
            leaf = sums(trials[0], (sign * first * g[0],), 40, trials[0] + 80)
            both = (sign * first * g[1], sign * second * g[1])
            worlds.append(np.outer(leaf, sums(trials[1], both, 40, trials[1] + 80)))
        p, q = worlds
        for i, e in enumerate(map(math.exp, epsilons)):
            found = max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())
            worst[i] = max(worst[i], found)
    assert (worst <= proven).all() and max(proven) < 1
    # Who forgets that the user returns is found out.
    once = msgspec.structs.replace(tree, returning=1).account()
    assert all(found > once.delta(e) for found, e in zip(worst[1:], epsilons[1:], strict=True))


@pytest.mark.parametrize(
    ("budget", "releases", "points", "dimension"),
    [
        (Budget(1.0, 1e-3), 400, 2500, 10),
        (Budget(0.2, 1e-6, "zero-out"), 40, 20, 5),
        (Budget(10.0, 1e-5), 7, 100, 3),
    ],
)
def test_vector_sum_meets_the_budget(
    budget: Budget, releases: int, points: int, dimension: int
) -> None:
    stds = [calibrate_vector_sum(budget, releases, points, dimension).noise_stds["bias"]]
    for returning in (2, 5, 30):
        tree = calibrate_vector_sum(budget, releases, points, dimension, returning=returning)
        assert tree.exact() <= budget.epsilon
        users, trust, claim = tree.conditions()
        assert "noise bits" in users.text and f"at most {returning} batches" in trust.text
        assert isinstance(claim, ClaimCondition) and claim.holds
        less = msgspec.structs.replace(tree, b=tuple(math.ceil(0.96 * b) - 1 for b in tree.b))
        assert less.exact() > budget.epsilon
        stds.append(tree.noise_stds["bias"])
        # Gaussian noise for the same squares; roundings, windows and skewness cost little.
        squares = sum(level_squares(releases, returning, j)[0] for j in range(tree.depth))
        gauss = calibrate_tree(budget, releases, layout="iid", returning=returning)
        ideal = math.sqrt(squares / gauss.sensitivity_squared) * gauss.noise_std
        assert ideal < stds[-1] < 1.06 * ideal
        assert gauss.mu() / 1.06 < tree.mu() < gauss.mu()
    assert all(a <= b for a, b in itertools.pairwise(stds))


def test_vector_sum_of_one_release_knows_no_return() -> None:
    budget = Budget(1.0, 1e-3)
    once = calibrate_vector_sum(budget, 1, 50, 4)
    twice = calibrate_vector_sum(budget, 1, 50, 4, returning=2)
    assert (twice.g, twice.b, twice.exact()) == (once.g, once.b, once.exact())
    one, two = (calibrate_vector_sum(budget, 2, 50, 4, returning=m) for m in (1, 2))
    assert msgspec.structs.replace(one, returning=2).exact() > 1 >= two.exact()
    assert msgspec.structs.replace(two, returning=1).exact() < two.exact()
    assert calibrate_vector_sum(budget, 0, 50, 4, returning=3).exact() == 0.0


BUDGET = Budget(1.0, 0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: max_squared_sensitivity("trie", 4, 2), 'release must be one of "tree", "honaker"'),
        (
            lambda: max_squared_sensitivity("tree", -1, 2),
            "releases must be an integer >= 0, got -1",
        ),
        (lambda: max_squared_sensitivity("tree", 4, 0), "returning must be an integer >= 1, got 0"),
        (lambda: proposition_e_7_squared(4, 0), "returning must be an integer >= 1, got 0"),
        (lambda: level_squares(4, 2, 3), "level must be an integer >= 0 and <= 2, got 3"),
        (lambda: calibrate_tree(BUDGET, 4, returning=0), "returning must be an integer >= 1"),
        (
            lambda: calibrate_tree(BUDGET, 4, "published-code", returning=2),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_release("toeplitz", BUDGET, 4, returning=1.5),  # type: ignore[arg-type]
            "returning must be an integer, got 1.5",
        ),
        (
            lambda: GaussianRelease(4, "goe2", 1.0, "exact", BUDGET, "x", returning=0),
            "returning must be an integer >= 1, got 0",
        ),
        (
            lambda: calibrate_shuffled_tree(BUDGET, 4, 9, 2, 8, "theorem", returning=2),
            'returning must be 1 when calibration is "theorem", got 2',
        ),
        (
            lambda: calibrate_shuffled_tree(BUDGET, 4, 9, 2, 8, "published-code", returning=2),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_shuffled_tree(BUDGET, 4, 9, 2, 8, returning=-1),
            "returning must be an integer >= 1, got -1",
        ),
        (
            lambda: calibrate_vector_sum(BUDGET, 4, 9, 2, "theorem", returning=2),
            'returning must be 1 when calibration is "theorem", got 2',
        ),
        (
            lambda: calibrate_vector_sum(BUDGET, 4, 9, 2, "published-code", returning=2),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_vector_sum(BUDGET, 4, 9, 2, returning=0),
            "returning must be an integer >= 1, got 0",
        ),
        (
            lambda: BinomialTree(1, 9, 2, (4,), (1,), "exact", BUDGET, "x", returning=0),
            "returning must be an integer >= 1, got 0",
        ),
    ],
)
def test_bad_input_is_one_clear_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
