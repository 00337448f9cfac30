"""Check the worst leaves of returning users against brute force and dynamic programming, and their
noise."""

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


def released_nodes(name: str, releases: int) -> list[tuple[int, range]]:
    """Return (level, leaves) of every released node, from the definitions.

    For "honaker" these are all nodes.
    """
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


def sensitivity_matrix(name: str, releases: int) -> np.ndarray:
    """Return (outputs, leaves): the effect of one unit in each leaf on all outputs."""
    if name == "toeplitz":
        return toeplitz_factor(releases)
    if name == "buffered":
        t, w, direct = buffers(releases)
        return oracle.encoder(oracle.decoder(np.array(t), np.array(w), direct, releases))
    if name == "honaker":
        # The prefixes, whitened by the covariance of their noise.
        rows = np.zeros((releases, node_count(releases)))
        for k in range(1, releases + 1):
            for node, coefficient in honaker_coefficients(k).items():
                rows[k - 1, node_number(*node) - 1] = coefficient
        return np.linalg.solve(np.linalg.cholesky(rows @ rows.T), np.tri(releases))
    leaves = range(1, releases + 1)
    return np.array(
        [[x in node for x in leaves] for _, node in released_nodes(name, releases)], float
    )


def squared_sensitivity_by_dynamic_programming(name: str, releases: int, returning: int) -> int:
    """Return the maximum by max-plus convolution up the tree, and over its blocks.

    For "honaker" assume that all nodes are released.
    """

    def convolved(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the largest sums of two values by number of leaves, up to `returning` leaves."""
        maxima = np.full(min(left.size + right.size - 1, returning + 1), -1)
        for count, value in enumerate(left.tolist()):
            size = min(right.size, maxima.size - count)
            if size > 0:
                section = maxima[count : count + size]
                np.maximum(section, value + right[:size], out=section)
        return maxima

    without_own_node = np.zeros(
        2, int
    )  # by the number of chosen leaves, without the block's own node
    of_blocks = np.zeros(1, int)
    for level in range(releases.bit_length()):
        with_own_node = without_own_node + np.arange(without_own_node.size) ** 2
        if releases >> level & 1:
            of_blocks = convolved(with_own_node, of_blocks)
        without_own_node = convolved(
            with_own_node, with_own_node if name == "honaker" else without_own_node
        )
    return int(of_blocks[: returning + 1].max())


#: Releases with a formula; each "factorised" release has its own factor
#: (test_privacy_factorised.py).
FORMULAS = [name for name in RELEASES if name != "factorised"]

# ---- The worst leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("releases", [*range(1, 11), 12])
def test_squared_sensitivity_equals_brute_force(name: str, releases: int) -> None:
    maxima = dict.fromkeys(range(1, releases + 1), 0.0)
    matrix = sensitivity_matrix(name, releases)
    for chosen in itertools.product((0.0, 1.0), repeat=releases):
        size = int(sum(chosen))
        if size:
            maxima[size] = max(maxima[size], float(np.sum((matrix @ chosen) ** 2)))
    largest = 0.0
    for size, value in maxima.items():
        assert value > largest, "another leaf always adds something"
        largest = value
        squared_sensitivity = max_squared_sensitivity(name, releases, size)
        if name == "honaker" and 1 < size < releases:
            # This is a close upper bound.
            assert largest * (1 - 1e-12) <= squared_sensitivity <= 1.04 * largest
        else:
            assert squared_sensitivity == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("name", TREES)
def test_squared_sensitivity_agrees_with_dynamic_programming(name: str) -> None:
    rng = np.random.default_rng(3)
    cases = [(k, m) for k in range(1, 41) for m in range(1, k + 1)]
    cases += [(int(rng.integers(41, 3000)), int(rng.integers(1, 160))) for _ in range(60)]
    for releases, returning in cases:
        expected = squared_sensitivity_by_dynamic_programming(
            name, releases, min(returning, releases)
        )
        squared_sensitivity = max_squared_sensitivity(name, releases, returning)
        if name == "tree":
            assert squared_sensitivity == expected
        else:
            assert 0.84 * expected < squared_sensitivity <= expected


def test_squared_sensitivities_of_the_oracle() -> None:
    for releases, squared, printed_bound in ((400, 412, 576), (1000, 476, 640)):
        assert max_squared_sensitivity("tree", releases, 8) == squared
        assert group_sensitivity_squared(range(1, 9), releases) == squared
        assert proposition_e_7_squared(releases, 8) == printed_bound


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(
    "releases",
    [0, 1, 2, 7, 8, 33, *(pytest.param(n, marks=pytest.mark.slow) for n in (400, 1000))],
)
def test_squared_sensitivity_grows_from_one_batch_to_all_batches(name: str, releases: int) -> None:
    """Compare one and all batches with formulas, and all numbers between with a bound."""
    of_one_batch = {
        "toeplitz": toeplitz_sensitivity_squared,
        "honaker": honaker_sensitivity_squared,
        "buffered": buffered_sensitivity_squared,
    }.get(name, depth)(releases)
    assert max_squared_sensitivity(name, releases, 1) == of_one_batch
    of_all_batches = (
        float(np.sum(sensitivity_matrix(name, releases).sum(axis=1) ** 2)) if releases else 0.0
    )
    assert max_squared_sensitivity(name, releases, max(releases, 1)) == pytest.approx(
        of_all_batches, rel=1e-12
    )
    assert max_squared_sensitivity(name, releases, releases + 5) == max_squared_sensitivity(
        name, releases, 10**9
    )
    values = [max_squared_sensitivity(name, releases, m) for m in range(1, releases + 1)]
    assert all(a < b for a, b in itertools.pairwise(values))
    for m, value in enumerate(values, 1):
        bound = proposition_e_7_squared(releases, m)
        assert bound == m * m * depth(releases)
        # The numerical bound of "buffered" covers rounding.
        assert value <= m * m * of_one_batch <= bound * (1.0 + 1e-12 * (name == "buffered"))
    # The release object has the same value.
    if releases:
        release = GaussianRelease(
            releases, "iid", 3.0, "exact", Budget(1, 0.1), "x", release=name, returning=3
        )
        assert release.sensitivity_squared == max_squared_sensitivity(name, releases, 3)
        assert release.mu() == pytest.approx(
            math.sqrt(max_squared_sensitivity(name, releases, 3) * 4.5) / 3.0
        )


def test_squared_sensitivity_of_many_releases() -> None:
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
def test_squares_of_levels_equal_brute_force(releases: int) -> None:
    nodes = released_nodes("tree", releases)
    for returning in range(1, releases + 2):
        sets = list(itertools.combinations(range(1, releases + 1), min(returning, releases)))
        squares = 0
        for level in range(depth(releases)):
            counts = [
                [
                    sum(x in leaves for x in chosen)
                    for node_level, leaves in nodes
                    if node_level == level
                ]
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


# ---- Noise --------------------------------------------------------------------------------------


def calibrated(
    name: str, budget: Budget, releases: int, layout: str, returning: int
) -> GaussianRelease:
    """Return a release of this name, calibrated to the budget for users who return."""
    if name == "tree":
        return calibrate_tree(budget, releases, layout=layout, returning=returning)
    return calibrate_release(name, budget, releases, layout=layout, returning=returning)


@pytest.mark.parametrize("name", FORMULAS)
def test_noise_uses_the_whole_budget(name: str) -> None:
    rng = np.random.default_rng(21)
    for _ in range(25):
        budget = Budget(
            float(10 ** rng.uniform(-3, 1.5)),
            float(10 ** rng.uniform(-12, -0.5)),
            str(rng.choice(["replace", "zero-out"])),
        )
        layout = str(rng.choice(["iid", "goe1", "goe2"]))
        releases, returning = int(rng.integers(2, 900)), int(rng.integers(2, 60))
        tree = calibrated(name, budget, releases, layout, returning)
        assert tree.returning == returning
        assert tree.exact() <= budget.epsilon * (1 + 1e-9)
        trust, claim = tree.conditions()
        assert trust.holds and f"at most {returning} batches, once in each" in trust.text
        assert isinstance(claim, ClaimCondition) and claim.holds
        with_less_noise = msgspec.structs.replace(tree, noise_std=tree.noise_std * 0.99)
        assert (
            with_less_noise.exact() > budget.epsilon and not with_less_noise.conditions()[-1].holds
        )
        of_one_batch = calibrated(name, budget, releases, layout, 1)
        growth = max_squared_sensitivity(name, releases, returning) / max_squared_sensitivity(
            name, releases, 1
        )
        assert tree.noise_std == pytest.approx(of_one_batch.noise_std * math.sqrt(growth))
        with_wrong_count = msgspec.structs.replace(of_one_batch, returning=returning)
        assert with_wrong_count.exact() > budget.epsilon
        assert len(of_one_batch.conditions()) == 1


def test_calibration_theorem_uses_the_factor_of_proposition_e_7() -> None:
    budget = Budget(1.0, 1e-3, "zero-out")
    of_one_batch = calibrate_tree(budget, 400, "theorem")
    of_eight_batches = calibrate_tree(budget, 400, "theorem", returning=8)
    assert of_eight_batches.noise_std == pytest.approx(8 * of_one_batch.noise_std)
    assert (
        "Proposition E.7" in of_eight_batches.source
        and "Proposition E.7" in of_eight_batches.conditions()[-1].text
    )
    assert "Proposition E.7" not in of_one_batch.source + of_one_batch.conditions()[-1].text
    assert of_eight_batches.exact() < of_one_batch.exact() < 1
    # A user cannot be in more batches than there are.
    of_three_releases = calibrate_tree(budget, 3, "theorem", returning=8)
    assert of_three_releases.noise_std == pytest.approx(
        3 * calibrate_tree(budget, 3, "theorem").noise_std
    )


def test_shuffled_silos_use_local_privacy_for_returning_users() -> None:
    budget = Budget(1e-3, 1e-4)
    of_one_batch = calibrate_shuffled_tree(budget, 1, 10**6, 25, 25)
    assert "by Lemma F.2" in of_one_batch.conditions()[-1].text
    with_returning_users = msgspec.structs.replace(of_one_batch, returning=2)
    assert with_returning_users.exact() == with_returning_users.ldp() > of_one_batch.exact()
    of_two_batches = calibrate_shuffled_tree(budget, 3, 10**6, 25, 75, returning=2)
    assert of_two_batches.noise_std == calibrate_tree(budget, 3, returning=2).noise_std
    assert of_two_batches.exact() == of_two_batches.ldp() == pytest.approx(budget.epsilon)
    trust, claim = of_two_batches.conditions()
    assert "at most 2 batches" in trust.text and claim.holds
    assert "F.2, which is about one record, is not used" in claim.text
    assert "Lemma" not in of_two_batches.source


# ---- Vector sums --------------------------------------------------------------------------------


def noisy_sum_probabilities(
    trials: int, values: tuple[float, ...], offset: int, length: int
) -> np.ndarray:
    """Return the probabilities on 0..length-1 of Bin(trials, 1/4) + offset + values.

    Each value is rounded at random.
    """
    first, probabilities, _ = masses(trials)
    assert first == 0
    for value in values:
        lower = math.floor(value)
        offset += lower
        probabilities = np.convolve(probabilities, [1.0 - (value - lower), value - lower])
    padded = np.zeros(length)
    padded[offset : offset + probabilities.size] = probabilities
    return padded


@pytest.mark.parametrize(("g", "trials"), [((2, 3), (160, 240)), ((5, 2), (320, 160))])
def test_vector_sum_account_covers_several_roundings_in_one_node(
    g: tuple[int, int], trials: tuple[int, int]
) -> None:
    """Check the exact joint divergence of both records of a user in the two nodes of K = 2, d = 1.

    The features are x and -x, so that x^2 is unchanged and one coordinate of each node changes.
    """
    bits = (trials[0] // 4, trials[1] // 8)
    tree = BinomialTree(2, 4, 1, g, bits, "exact", Budget(1, 0.1), "test", returning=2)
    epsilons = (0.0, 0.5, 2.0)
    accounted_deltas = [tree.account().delta(e) for e in epsilons]
    largest_deltas = np.zeros(3)
    for first, second in itertools.product((1.0, 0.9, 0.47, -0.47, -0.61, -1.0), repeat=2):
        probabilities = []
        for sign in (1.0, -1.0):
            leaf = noisy_sum_probabilities(trials[0], (sign * first * g[0],), 40, trials[0] + 80)
            both = (sign * first * g[1], sign * second * g[1])
            probabilities.append(
                np.outer(leaf, noisy_sum_probabilities(trials[1], both, 40, trials[1] + 80))
            )
        p, q = probabilities
        for i, e in enumerate(map(math.exp, epsilons)):
            divergence = max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())
            largest_deltas[i] = max(largest_deltas[i], divergence)
    assert (largest_deltas <= accounted_deltas).all() and max(accounted_deltas) < 1
    # An account that ignores the return of the user is violated.
    of_one_batch = msgspec.structs.replace(tree, returning=1).account()
    assert all(
        divergence > of_one_batch.delta(e)
        for divergence, e in zip(largest_deltas[1:], epsilons[1:], strict=True)
    )


@pytest.mark.parametrize(
    ("budget", "releases", "points", "dimension"),
    [
        (Budget(1.0, 1e-3), 400, 2500, 10),
        (Budget(0.2, 1e-6, "zero-out"), 40, 20, 5),
        (Budget(10.0, 1e-5), 7, 100, 3),
    ],
)
def test_vector_sums_of_returning_users_meet_the_budget(
    budget: Budget, releases: int, points: int, dimension: int
) -> None:
    stds = [calibrate_vector_sum(budget, releases, points, dimension).noise_stds["bias"]]
    for returning in (2, 5, 30):
        tree = calibrate_vector_sum(budget, releases, points, dimension, returning=returning)
        assert tree.exact() <= budget.epsilon
        users, trust, claim = tree.conditions()
        assert "noise bits" in users.text and f"at most {returning} batches" in trust.text
        assert isinstance(claim, ClaimCondition) and claim.holds
        with_fewer_bits = msgspec.structs.replace(
            tree, b=tuple(math.ceil(0.96 * b) - 1 for b in tree.b)
        )
        assert with_fewer_bits.exact() > budget.epsilon
        stds.append(tree.noise_stds["bias"])
        # Gaussian noise for the same squares; roundings, windows and skewness cost at most 6 %.
        squares = sum(level_squares(releases, returning, j)[0] for j in range(tree.depth))
        gaussian_tree = calibrate_tree(budget, releases, layout="iid", returning=returning)
        gaussian_std = (
            math.sqrt(squares / gaussian_tree.sensitivity_squared) * gaussian_tree.noise_std
        )
        assert gaussian_std < stds[-1] < 1.06 * gaussian_std
        assert gaussian_tree.mu() / 1.06 < tree.mu() < gaussian_tree.mu()
    assert all(a <= b for a, b in itertools.pairwise(stds))


def test_vector_sum_of_one_release_ignores_returning_users() -> None:
    budget = Budget(1.0, 1e-3)
    of_one_batch = calibrate_vector_sum(budget, 1, 50, 4)
    of_two_batches = calibrate_vector_sum(budget, 1, 50, 4, returning=2)
    assert (of_two_batches.g, of_two_batches.b, of_two_batches.exact()) == (
        of_one_batch.g,
        of_one_batch.b,
        of_one_batch.exact(),
    )
    for_one_batch, for_two_batches = (
        calibrate_vector_sum(budget, 2, 50, 4, returning=returning) for returning in (1, 2)
    )
    assert (
        msgspec.structs.replace(for_one_batch, returning=2).exact() > 1 >= for_two_batches.exact()
    )
    assert msgspec.structs.replace(for_two_batches, returning=1).exact() < for_two_batches.exact()
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
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
