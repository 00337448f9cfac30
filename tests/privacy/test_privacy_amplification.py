"""Check amplification for p-sums of whole silos: Lemma F.2, Theorem 5.3, and the tree that uses
them."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.privacy import Budget, GaussianTree, calibrate_tree, delta_of
from fastfed.privacy.mechanisms.amplification import (
    AmplifiedTree,
    amplified,
    amplified_std,
    amplified_tree_std,
    calibrate_shuffled_tree,
    published_shuffle_std,
    theorem_5_3_std,
)

LEMMA = [  # epsilon0, delta0, points, silos, inner delta, epsilon, delta
    (5e-05, 1e-09, 6400, 100, 0.15, 4.528171983288983e-05, 4.050001791642304e-06),
    (1e-05, 1e-09, 10000, 100, 0.5, 6.505891948137587e-06, 2.7999999758678804e-06),
    (0.0001, 1e-12, 6400, 10000, 0.03, 1.2260496291743573e-05, 1.52999918270244e-06),
]


@pytest.mark.parametrize(
    ("epsilon_0", "delta_0", "n", "silos", "inner_delta", "epsilon", "delta"), LEMMA
)
def test_lemma_has_its_reference_values(
    epsilon_0: float,
    delta_0: float,
    n: int,
    silos: int,
    inner_delta: float,
    epsilon: float,
    delta: float,
) -> None:
    result = amplified(epsilon_0, delta_0, n, silos, inner_delta)
    assert result.holds
    assert result.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert result.delta == pytest.approx(delta, rel=1e-9)


def test_lemma_holds_only_under_its_condition() -> None:
    limit = math.log(100 / (16 * math.log(2 / 0.5))) / 50
    assert amplified(limit * (1 - 1e-9), 1e-9, 50, 100, 0.5).holds
    assert not amplified(limit * (1 + 1e-9), 1e-9, 50, 100, 0.5).holds
    assert not amplified(1.0, 1e-9, 1, 10**9, 0.5).holds  # epsilon0 < 1
    assert not amplified(1e-9, 1e-9, 1, 11, 1.0).holds  # 16 ln 2 = 11.09
    assert amplified(1e-9, 1e-9, 1, 12, 1.0).holds
    assert amplified(0.9, 1e-9, 10**6, 100, 0.5) == (math.inf, math.inf, False)


def test_theorem_5_3_has_its_reference_values() -> None:
    for epsilon, std in ((1e-3, 7637.374322367414), (1e-4, 76373.74322367414)):
        noise_std = theorem_5_3_std(Budget(epsilon, 1e-4), 400, 100, 10_000)
        assert noise_std == pytest.approx(std, rel=1e-12)
        tree = calibrate_shuffled_tree(Budget(epsilon, 1e-4), 400, 100, 25, 10_000, "theorem")
        assert (tree.layout, tree.noise_std) == ("iid", noise_std)
    assert published_shuffle_std(Budget(1e-3, 1e-4), 400, 100, 10_000) == pytest.approx(
        5528, abs=0.5
    )
    # The published formula is also defined for budgets outside the theorem.
    assert published_shuffle_std(Budget(0.2, 0.1), 400, 100, 10_000) > 0


def lemma_proves(std: float, epsilon: float, delta: float, n: int, silos: int) -> bool:
    """Return whether the lemma proves (epsilon, delta) for this noise, on a grid of its free
    choices."""
    for inner_delta in np.geomspace(1e-7, 1, 80):
        largest_exponent = math.log(silos / (16 * math.log(2 / inner_delta)))
        if largest_exponent <= 0:
            continue
        for epsilon_0 in np.geomspace(1e-3, 1, 400) * min(largest_exponent, 1.0) / n * (1 - 1e-12):
            delta_0 = 1.25 * math.exp(-((std * epsilon_0 / 2) ** 2) / 2)
            if delta_0 >= 1:
                continue
            result = amplified(epsilon_0, delta_0, n, silos, inner_delta)
            if result.holds and result.epsilon <= epsilon and result.delta <= delta:
                return True
    return False


@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "silos"),
    [(5.6e-5, 5.6e-6, 6400, 100), (0.01, 1e-6, 10, 1000), (0.002, 1e-5, 25, 10_000)],
)
def test_inverse_of_the_lemma_agrees_with_a_search(
    epsilon: float, delta: float, n: int, silos: int
) -> None:
    """The std is the smallest one for which the lemma proves the budget, within 2 %."""
    std = amplified_std(epsilon, delta, n, silos)
    assert std is not None
    assert lemma_proves(std * 1.02, epsilon, delta, n, silos)
    assert not lemma_proves(std * 0.98, epsilon, delta, n, silos)
    assert amplified_std(epsilon, delta, n, silos, 1.0) == pytest.approx(std / 2)


def test_classical_noise_has_its_delta_at_any_distance() -> None:
    """Check an assumption of the lemma about its local mechanism.

    It must have delta0 also at n epsilon0 and distance n.
    """
    for delta_0 in (1e-3, 1e-8, 1e-30):
        for n in (1, 25, 6400):
            for exponent in (1.0, 0.3, 0.01):
                epsilon_0 = exponent / n
                mu = epsilon_0 / math.sqrt(2 * math.log(1.25 / delta_0))
                assert delta_of(epsilon_0, mu) <= delta_0
                assert delta_of(n * epsilon_0, n * mu) <= delta_0


def test_lemma_needs_more_noise_than_local_privacy_for_a_hundred_silos() -> None:
    # Two messages of one stream each would need a std of 2.1e5 and 1.2e6.
    for epsilon, std, local_std in ((1e-3, 1.26e5, 5966.46), (1e-4, 6.58e5, 17567.06)):
        budget = Budget(epsilon, 1e-4)
        lemma_std = amplified_tree_std(budget, 400, 100, 25, "iid")
        assert lemma_std == pytest.approx(std, rel=0.01)
        tree = calibrate_shuffled_tree(budget, 400, 100, 25, 10_000, layout="iid")
        assert tree.noise_std == pytest.approx(local_std, rel=1e-6)
        assert tree.noise_std == calibrate_tree(budget, 400, layout="iid").noise_std
        assert tree.exact() == pytest.approx(epsilon, rel=1e-6)
        assert "by silo-level LDP; Lemma F.2 would need" in tree.conditions()[0].text


def test_lemma_proves_nothing_for_too_few_silos() -> None:
    assert amplified_std(0.1, 1e-6, 1, 11) is None
    assert amplified_std(0.1, 1e-6, 1, 12) is not None
    assert amplified_tree_std(Budget(1e-3, 1e-4), 400, 11, 25) is None
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 400, 10, 25, 10_000)
    assert tree.noise_std == calibrate_tree(Budget(1e-3, 1e-4), 400).noise_std
    assert "Lemma F.2 proves nothing for 10 silos" in tree.conditions()[0].text


def test_lemma_needs_less_noise_for_very_many_silos() -> None:
    budget = Budget(1e-4, 1e-9)
    tree = calibrate_shuffled_tree(budget, 1, 10**6, 25, 25)
    assert tree.noise_std == amplified_tree_std(budget, 1, 10**6, 25)
    local_tree = calibrate_tree(budget, 1)
    assert tree.noise_std < 0.2 * local_tree.noise_std
    assert tree.ldp() > 5 * budget.epsilon
    assert tree.exact() <= budget.epsilon
    assert tree.exact() == pytest.approx(budget.epsilon, rel=1e-3)
    trust, condition = tree.conditions()
    assert "none tells the server" in trust.text
    assert condition.holds
    assert "by Lemma F.2" in condition.text
    with_less_noise = msgspec.structs.replace(tree, noise_std=0.9 * tree.noise_std)
    assert budget.epsilon < with_less_noise.exact() < with_less_noise.ldp()
    assert [each_condition.holds for each_condition in with_less_noise.conditions()][-1] is False
    # A single silo is not hidden among others.
    of_one_silo = msgspec.structs.replace(tree, silos=1)
    assert of_one_silo.exact() == of_one_silo.ldp()


def test_noise_depends_on_batch_releases_silos_and_epsilon() -> None:
    def std(epsilon: float = 1e-3, releases: int = 40, silos: int = 1000, batch: int = 25) -> float:
        """Return the standard deviation of the noise for these sizes."""
        noise_std = amplified_tree_std(Budget(epsilon, 1e-5), releases, silos, batch)
        assert noise_std is not None
        return noise_std

    assert std(batch=50) > std() > std(batch=10)
    assert std(releases=80) > std() > std(releases=20)
    assert std(silos=200) > std() > std(silos=5000)
    assert std(epsilon=1e-4) > std() > std(epsilon=1e-2)


def test_lemma_uses_the_full_distance_between_data_sets_for_zero_out() -> None:
    """The full distance is that of replacement.

    One record changes a sum by less, but two sums of n points may be as far apart.
    """
    budget = Budget(1e-3, 1e-5, "zero-out")
    record_sensitivity = math.sqrt(1.5)
    shares = [
        (1e-3, 1e-5),
        (1e-3 / (2 * math.sqrt(2 * math.log(2e5))), 1e-5 / 2),
    ]
    expected = min(
        amplified_std(
            share_epsilon, share_delta, 25 * 2 / record_sensitivity, 1000, record_sensitivity
        )
        for share_epsilon, share_delta in shares
    )
    assert amplified_tree_std(budget, 1, 1000, 25) == pytest.approx(expected, rel=1e-12)


# ---- One message of both streams ----------------------------------------------------------------

RECORD_SENSITIVITY = {  # joint sensitivity of one record
    ("replace", "goe2"): 2.0,
    ("replace", "iid"): math.sqrt(4.5),
    ("replace", "goe1"): math.sqrt(4.5),
    ("zero-out", "goe2"): math.sqrt(1.5),
    ("zero-out", "iid"): math.sqrt(2.0),
    ("zero-out", "goe1"): math.sqrt(2.0),
}


def message(points: np.ndarray, rewards: np.ndarray, layout: str) -> np.ndarray:
    """Return the p-sum of both streams, with every entry in units of its noise's std."""
    bias = (points * rewards[:, None]).sum(axis=0)
    matrix = points.T @ points
    off_diagonal_std, diagonal_std = {"iid": (1, 1), "goe1": (0.5**0.5, 1), "goe2": (1, 2**0.5)}[
        layout
    ]
    rows, columns = np.triu_indices(points.shape[1], 1)
    return np.concatenate(
        [bias, matrix[rows, columns] / off_diagonal_std, np.diag(matrix) / diagonal_std]
    )


@pytest.mark.parametrize("layout", ["goe2", "goe1", "iid"])
def test_messages_have_the_stated_sensitivities(layout: str) -> None:
    """Check distances that the lemma assumes, for random and for worst data sets."""
    rng = np.random.default_rng(6)
    n = 7
    for _ in range(300):
        x = rng.normal(size=(2, n, 3))
        x /= np.linalg.norm(x, axis=2, keepdims=True) / rng.uniform(0.5, 1, (2, n, 1))
        y = rng.choice([-1.0, 1.0], (2, n))
        first, second = (
            message(points, rewards, layout) for points, rewards in zip(x, y, strict=True)
        )
        assert np.linalg.norm(first - second) <= n * RECORD_SENSITIVITY["replace", layout]
        # Replace one record, then omit it.
        x[1, 1:], y[1, 1:] = x[0, 1:], y[0, 1:]
        replaced = message(x[1], y[1], layout)
        assert np.linalg.norm(first - replaced) <= RECORD_SENSITIVITY["replace", layout] * (
            1 + 1e-12
        )
        left_out = message(x[0, 1:], y[0, 1:], layout)
        assert np.linalg.norm(first - left_out) <= RECORD_SENSITIVITY["zero-out", layout] * (
            1 + 1e-12
        )
    # n times the worst pair of records.
    cosine, sine = math.cos(math.pi / 12), math.sin(math.pi / 12)
    worst_pair = {
        "iid": ((cosine, -sine), (-sine, cosine)),
        "goe1": ((1, 0), (-0.5, math.sqrt(0.75))),
        "goe2": ((1, 0), (-1, 0)),
    }[layout]
    first, second = (message(np.tile(x, (n, 1)), np.ones(n), layout) for x in worst_pair)
    assert np.linalg.norm(first - second) == pytest.approx(
        n * RECORD_SENSITIVITY["replace", layout], rel=1e-12
    )


def lemma_by_grid(
    epsilon: float,
    delta: float,
    distance: float,
    record_sensitivity: float,
    silos: int,
    size: int = 1500,
) -> float:
    """Return the least noise of one message on a grid of epsilon0 and the inner delta.

    The formulas are as printed.
    """
    inner_delta = np.geomspace(1e-12, 1.0, size)[:, None]
    inner_delta = inner_delta[silos > 16 * np.log(2 / inner_delta)][:, None]
    n = distance / record_sensitivity
    epsilon_0 = (
        np.minimum(np.log(silos / (16 * np.log(2 / inner_delta))), 1.0)
        / n
        * np.geomspace(1e-4, 1, size)
    )
    clones = np.exp(n * epsilon_0) / silos
    epsilon_reached = np.log1p(
        np.tanh(epsilon_0 / 2) * 8 * (np.sqrt(clones * np.log(4 / inner_delta)) + clones)
    )
    remaining_delta = delta - np.tanh(epsilon_0 / 2) * inner_delta
    delta_0 = remaining_delta / (
        silos * (np.exp(epsilon_reached) + 1) * (1 + np.exp(-epsilon_0) / 2)
    )
    is_proven = (epsilon_reached <= epsilon) & (delta_0 > 0)
    std = (
        record_sensitivity
        * np.sqrt(2 * np.log(1.25 / np.where(is_proven, delta_0, 0.5)))
        / epsilon_0
    )
    return float(np.where(is_proven, std, np.inf).min())


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases", "silos", "batch"),
    [
        (1e-4, 1e-6, 400, 10**6, 25),
        pytest.param(1e-5, 1e-6, 400, 10**6, 25, marks=pytest.mark.slow),
        pytest.param(1e-3, 1e-4, 400, 100, 25, marks=pytest.mark.slow),
        (1e-2, 1e-5, 3, 2000, 2),
        pytest.param(1e-4, 1e-9, 1, 10**6, 10, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("relation", "layout"), RECORD_SENSITIVITY)
def test_noise_of_the_lemma_equals_a_grid_search(
    epsilon: float, delta: float, releases: int, silos: int, batch: int, relation: str, layout: str
) -> None:
    """Check kappa messages of both streams, or 2 kappa of one stream.

    Both compositions are tried.
    """
    kappa = len(bin(releases)) - 2
    points = batch * 2 ** (kappa - 1)
    message_kinds = [
        (
            kappa,
            points * RECORD_SENSITIVITY["replace", layout],
            RECORD_SENSITIVITY[relation, layout],
        )
    ]
    if layout != "goe2":
        message_kinds.append((2 * kappa, 2 * points, 2.0 if relation == "replace" else 1.0))
    grid_std = math.inf
    for message_count, distance, record_sensitivity in message_kinds:
        advanced_factor = math.sqrt(2 * message_count * math.log(2 / delta))
        for share_epsilon, share_delta in (
            (epsilon / message_count, delta / message_count),
            (epsilon / (2 * advanced_factor), delta / (2 * message_count)),
        ):
            grid_std = min(
                grid_std,
                lemma_by_grid(share_epsilon, share_delta, distance, record_sensitivity, silos),
            )
    budget = Budget(epsilon, delta, relation)
    noise_std = amplified_tree_std(budget, releases, silos, batch, layout)
    assert noise_std == pytest.approx(grid_std, rel=0.01)
    assert grid_std > 0.999 * noise_std, "the grid has no way to less noise"


def test_joint_messages_need_at_most_the_noise_of_separate_streams() -> None:
    """Compare kappa messages of both streams with 2 kappa messages of one stream, in any layout."""
    rng = np.random.default_rng(12)
    smallest_ratio = 1.0
    for _ in range(40):
        epsilon, delta = float(10 ** rng.uniform(-6, -1)), float(10 ** rng.uniform(-10, -2))
        releases, silos = int(rng.integers(1, 500)), int(10 ** rng.uniform(2, 7))
        relation = str(rng.choice(["replace", "zero-out"]))
        kappa, record_sensitivity = releases.bit_length(), 2.0 if relation == "replace" else 1.0
        message_count, points = 2 * kappa, 25 * 2 ** (kappa - 1) * 2.0 / record_sensitivity
        advanced_factor = math.sqrt(2 * message_count * math.log(2 / delta))
        shares = [
            (epsilon / message_count, delta / message_count),
            (epsilon / (2 * advanced_factor), delta / (2 * message_count)),
        ]
        stds = [
            amplified_std(share_epsilon, share_delta, points, silos, record_sensitivity)
            for share_epsilon, share_delta in shares
        ]
        separate_std = min((std for std in stds if std is not None), default=None)
        for layout in ("goe2", "goe1", "iid"):
            budget = Budget(epsilon, delta, relation)
            joint_std = amplified_tree_std(budget, releases, silos, 25, layout)
            assert (joint_std is None) == (separate_std is None)
            if joint_std is not None and separate_std is not None:
                assert joint_std <= separate_std * (1 + 1e-9)
                smallest_ratio = min(smallest_ratio, joint_std / separate_std)
    assert smallest_ratio < 0.55


def test_epsilon_counts_smaller_noise_of_the_covariance_stream() -> None:
    tree = calibrate_shuffled_tree(Budget(1e-4, 1e-9), 1, 10**6, 25, 25)
    assert tree.exact() < tree.ldp()
    with_less_noise = msgspec.structs.replace(tree, covariance_ratio=0.2)
    assert with_less_noise.exact() > 2 * tree.exact()


@pytest.mark.parametrize("calibration", ["theorem", "published-code"])
def test_epsilon_of_formulas_is_calculated(calibration: str) -> None:
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 400, 100, 25, 10_000, calibration)
    assert isinstance(tree, GaussianTree)
    same_noise = GaussianTree(
        400, tree.layout, tree.noise_std, calibration, tree.budget, "same noise"
    )
    assert tree.exact() == same_noise.exact()
    assert tree.mu() == same_noise.mu()
    assert tree.noise_stds == same_noise.noise_stds
    (condition,) = tree.conditions()
    if calibration == "theorem":
        assert tree.exact() == pytest.approx(6.7e-4, rel=0.01)
        assert condition.holds
        assert "3e-05/C1" in condition.text
        assert "0.0009/C2" in condition.text
        assert "cannot be checked" in condition.text
    else:
        assert tree.layout == "goe1"
        assert tree.exact() == pytest.approx(1.126e-3, rel=1e-3)
        assert not condition.holds


@pytest.mark.parametrize("calibration", ["exact", "theorem", "published-code"])
def test_trees_without_release_have_epsilon_zero(calibration: str) -> None:
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 0, 100, 25, 10_000, calibration)
    assert (tree.noise_std, tree.mu(), tree.exact()) == (0.0, 0.0, 0.0)
    assert all(condition.holds for condition in tree.conditions())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theorem_5_3_std(Budget(0.2, 0.1), 400, 100, 10_000),
            "delta must be < kappa / horizon = 0.0009 in Theorem 5.3, got 0.1",
        ),
        (
            lambda: calibrate_shuffled_tree(Budget(1, 1e-5), 4, 9, 2, 8, "theorem", "goe2"),
            'layout must be "iid" when calibration is "theorem", got "goe2"',
        ),
        (
            lambda: calibrate_shuffled_tree(Budget(1, 0), 4, 9, 2, 8),
            "delta must be > 0 and < 1, got 0.0",
        ),
        (
            lambda: calibrate_shuffled_tree(Budget(1, 0.1, unit="silo"), 4, 9, 2, 8),
            "unit must be one of",
        ),
        (lambda: amplified(0.1, 0.1, 1, 10, 1.5), "inner_delta must be > 0 and <= 1, got 1.5"),
        (lambda: amplified(0.1, 0.1, 0, 10, 1.0), "points must be >= 1, got 0"),
        (
            lambda: AmplifiedTree(
                1, "iid", 1.0, "exact", Budget(1, 0.1), "x", silos=0, batch_size=1, horizon=1
            ),
            "silos must be an integer >= 1, got 0",
        ),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
