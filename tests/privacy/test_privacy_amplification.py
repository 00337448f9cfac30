"""Amplification of whole silos' p-sums: Lemma F.2, Theorem 5.3, and the tree that uses them."""

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


@pytest.mark.parametrize(("e0", "d0", "n", "silos", "inner", "epsilon", "delta"), LEMMA)
def test_lemma_reference(
    e0: float, d0: float, n: int, silos: int, inner: float, epsilon: float, delta: float
) -> None:
    found = amplified(e0, d0, n, silos, inner)
    assert found.holds
    assert found.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert found.delta == pytest.approx(delta, rel=1e-9)


def test_lemma_condition() -> None:
    limit = math.log(100 / (16 * math.log(2 / 0.5))) / 50
    assert amplified(limit * (1 - 1e-9), 1e-9, 50, 100, 0.5).holds
    assert not amplified(limit * (1 + 1e-9), 1e-9, 50, 100, 0.5).holds
    assert not amplified(1.0, 1e-9, 1, 10**9, 0.5).holds  # epsilon0 < 1
    assert not amplified(1e-9, 1e-9, 1, 11, 1.0).holds  # 16 ln 2 = 11.09
    assert amplified(1e-9, 1e-9, 1, 12, 1.0).holds
    assert amplified(0.9, 1e-9, 10**6, 100, 0.5) == (math.inf, math.inf, False)


def test_theorem_5_3_reference() -> None:
    for epsilon, std in ((1e-3, 7637.374322367414), (1e-4, 76373.74322367414)):
        found = theorem_5_3_std(Budget(epsilon, 1e-4), 400, 100, 10_000)
        assert found == pytest.approx(std, rel=1e-12)
        tree = calibrate_shuffled_tree(Budget(epsilon, 1e-4), 400, 100, 25, 10_000, "theorem")
        assert (tree.layout, tree.noise_std) == ("iid", found)
    assert published_shuffle_std(Budget(1e-3, 1e-4), 400, 100, 10_000) == pytest.approx(
        5528, abs=0.5
    )
    # The published formula is defined where the theorem's is not.
    assert published_shuffle_std(Budget(0.2, 0.1), 400, 100, 10_000) > 0


def exists(std: float, epsilon: float, delta: float, n: int, silos: int) -> bool:
    """Whether the lemma proves (epsilon, delta) for this noise, on a grid of its free choices."""
    for inner in np.geomspace(1e-7, 1, 80):
        top = math.log(silos / (16 * math.log(2 / inner)))
        if top <= 0:
            continue
        for e0 in np.geomspace(1e-3, 1, 400) * min(top, 1.0) / n * (1 - 1e-12):
            d0 = 1.25 * math.exp(-((std * e0 / 2) ** 2) / 2)
            if d0 >= 1:
                continue
            found = amplified(e0, d0, n, silos, inner)
            if found.holds and found.epsilon <= epsilon and found.delta <= delta:
                return True
    return False


@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "silos"),
    [(5.6e-5, 5.6e-6, 6400, 100), (0.01, 1e-6, 10, 1000), (0.002, 1e-5, 25, 10_000)],
)
def test_inverted_lemma_by_search(epsilon: float, delta: float, n: int, silos: int) -> None:
    std = amplified_std(epsilon, delta, n, silos)
    assert std is not None
    assert exists(std * 1.02, epsilon, delta, n, silos)
    assert not exists(std * 0.98, epsilon, delta, n, silos)
    assert amplified_std(epsilon, delta, n, silos, 1.0) == pytest.approx(std / 2)


def test_classical_noise_keeps_delta_at_any_distance() -> None:
    """What the lemma assumes of its local mechanism: delta0 also at n epsilon0, distance n."""
    for d0 in (1e-3, 1e-8, 1e-30):
        for n in (1, 25, 6400):
            for exponent in (1.0, 0.3, 0.01):
                e0 = exponent / n
                mu = e0 / math.sqrt(2 * math.log(1.25 / d0))
                assert delta_of(e0, mu) <= d0
                assert delta_of(n * e0, n * mu) <= d0


def test_tree_by_the_lemma_needs_more_than_local_privacy_at_a_hundred_silos() -> None:
    # Two messages of one stream each would need 2.1e5 and 1.2e6.
    for epsilon, std, local in ((1e-3, 1.26e5, 5966.46), (1e-4, 6.58e5, 17567.06)):
        budget = Budget(epsilon, 1e-4)
        found = amplified_tree_std(budget, 400, 100, 25, "iid")
        assert found == pytest.approx(std, rel=0.01)
        tight = calibrate_shuffled_tree(budget, 400, 100, 25, 10_000, layout="iid")
        assert tight.noise_std == pytest.approx(local, rel=1e-6)
        assert tight.noise_std == calibrate_tree(budget, 400, layout="iid").noise_std
        assert tight.exact() == pytest.approx(epsilon, rel=1e-6)
        assert "by silo-level LDP; Lemma F.2 would need" in tight.conditions()[0].text


def test_too_few_silos() -> None:
    assert amplified_std(0.1, 1e-6, 1, 11) is None
    assert amplified_std(0.1, 1e-6, 1, 12) is not None
    assert amplified_tree_std(Budget(1e-3, 1e-4), 400, 11, 25) is None
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 400, 10, 25, 10_000)
    assert tree.noise_std == calibrate_tree(Budget(1e-3, 1e-4), 400).noise_std
    assert "Lemma F.2 proves nothing for 10 silos" in tree.conditions()[0].text


def test_the_lemma_wins_with_very_many_silos() -> None:
    budget = Budget(1e-4, 1e-9)
    tree = calibrate_shuffled_tree(budget, 1, 10**6, 25, 25)
    assert tree.noise_std == amplified_tree_std(budget, 1, 10**6, 25)
    local = calibrate_tree(budget, 1)
    assert tree.noise_std < 0.2 * local.noise_std
    assert tree.ldp() > 5 * budget.epsilon
    assert tree.exact() <= budget.epsilon
    assert tree.exact() == pytest.approx(budget.epsilon, rel=1e-3)
    trust, condition = tree.conditions()
    assert "none tells the server" in trust.text
    assert condition.holds
    assert "by Lemma F.2" in condition.text
    less = msgspec.structs.replace(tree, noise_std=0.9 * tree.noise_std)
    assert budget.epsilon < less.exact() < less.ldp()
    assert [c.holds for c in less.conditions()][-1] is False
    # A single silo has no one to hide among.
    alone = msgspec.structs.replace(tree, silos=1)
    assert alone.exact() == alone.ldp()


def test_more_points_silos_and_budget() -> None:
    def std(epsilon: float = 1e-3, releases: int = 40, silos: int = 1000, batch: int = 25) -> float:
        found = amplified_tree_std(Budget(epsilon, 1e-5), releases, silos, batch)
        assert found is not None
        return found

    assert std(batch=50) > std() > std(batch=10)
    assert std(releases=80) > std() > std(releases=20)
    assert std(silos=200) > std() > std(silos=5000)
    assert std(epsilon=1e-4) > std() > std(epsilon=1e-2)


def test_zero_out_counts_the_full_distance_between_datasets() -> None:
    """A record moves less, but any two sums of n points stay as far apart as under replacement."""
    budget = Budget(1e-3, 1e-5, "zero-out")
    one = math.sqrt(1.5)
    shares = [
        (1e-3, 1e-5),
        (1e-3 / (2 * math.sqrt(2 * math.log(2e5))), 1e-5 / 2),
    ]
    expected = min(amplified_std(e, d, 25 * 2 / one, 1000, one) for e, d in shares)
    assert amplified_tree_std(budget, 1, 1000, 25) == pytest.approx(expected, rel=1e-12)


# ---- one message of both streams ----------------------------------------------------------------

ONE = {  # joint sensitivity of one record
    ("replace", "goe2"): 2.0,
    ("replace", "iid"): math.sqrt(4.5),
    ("replace", "goe1"): math.sqrt(4.5),
    ("zero-out", "goe2"): math.sqrt(1.5),
    ("zero-out", "iid"): math.sqrt(2.0),
    ("zero-out", "goe1"): math.sqrt(2.0),
}


def message(points: np.ndarray, rewards: np.ndarray, layout: str) -> np.ndarray:
    """The p-sum of both streams, every entry in units of its noise's standard deviation."""
    bias = (points * rewards[:, None]).sum(axis=0)
    matrix = points.T @ points
    off, on = {"iid": (1, 1), "goe1": (0.5**0.5, 1), "goe2": (1, 2**0.5)}[layout]
    rows, columns = np.triu_indices(points.shape[1], 1)
    return np.concatenate([bias, matrix[rows, columns] / off, np.diag(matrix) / on])


@pytest.mark.parametrize("layout", ["goe2", "goe1", "iid"])
def test_distances_of_messages(layout: str) -> None:
    """What the lemma is told of its local mechanism, on random datasets and on the worst ones."""
    draw = np.random.default_rng(6)
    n = 7
    for _ in range(300):
        x = draw.normal(size=(2, n, 3))
        x /= np.linalg.norm(x, axis=2, keepdims=True) / draw.uniform(0.5, 1, (2, n, 1))
        y = draw.choice([-1.0, 1.0], (2, n))
        first, second = (message(a, b, layout) for a, b in zip(x, y, strict=True))
        assert np.linalg.norm(first - second) <= n * ONE["replace", layout]
        # One record replaced, and left out.
        x[1, 1:], y[1, 1:] = x[0, 1:], y[0, 1:]
        other = message(x[1], y[1], layout)
        assert np.linalg.norm(first - other) <= ONE["replace", layout] * (1 + 1e-12)
        out = message(x[0, 1:], y[0, 1:], layout)
        assert np.linalg.norm(first - out) <= ONE["zero-out", layout] * (1 + 1e-12)
    # n times the worst pair of records.
    c, s = math.cos(math.pi / 12), math.sin(math.pi / 12)
    worst = {
        "iid": ((c, -s), (-s, c)),
        "goe1": ((1, 0), (-0.5, math.sqrt(0.75))),
        "goe2": ((1, 0), (-1, 0)),
    }[layout]
    first, second = (message(np.tile(x, (n, 1)), np.ones(n), layout) for x in worst)
    assert np.linalg.norm(first - second) == pytest.approx(n * ONE["replace", layout], rel=1e-12)


def lemma_by_grid(
    epsilon: float, delta: float, apart: float, one: float, silos: int, size: int = 1500
) -> float:
    """Least noise of one message on a grid of epsilon0 and the inner delta; formulas as printed."""
    inner = np.geomspace(1e-12, 1.0, size)[:, None]
    inner = inner[silos > 16 * np.log(2 / inner)][:, None]
    n = apart / one
    e0 = np.minimum(np.log(silos / (16 * np.log(2 / inner))), 1.0) / n * np.geomspace(1e-4, 1, size)
    clones = np.exp(n * e0) / silos
    reached = np.log1p(np.tanh(e0 / 2) * 8 * (np.sqrt(clones * np.log(4 / inner)) + clones))
    left = delta - np.tanh(e0 / 2) * inner
    d0 = left / (silos * (np.exp(reached) + 1) * (1 + np.exp(-e0) / 2))
    fits = (reached <= epsilon) & (d0 > 0)
    std = one * np.sqrt(2 * np.log(1.25 / np.where(fits, d0, 0.5))) / e0
    return float(np.where(fits, std, np.inf).min())


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
@pytest.mark.parametrize(("relation", "layout"), ONE)
def test_the_tree_by_the_lemma_from_scratch(
    epsilon: float, delta: float, releases: int, silos: int, batch: int, relation: str, layout: str
) -> None:
    """kappa messages of both streams, or 2 kappa of one stream, by either composition."""
    kappa = len(bin(releases)) - 2
    points = batch * 2 ** (kappa - 1)
    ways = [(kappa, points * ONE["replace", layout], ONE[relation, layout])]
    if layout != "goe2":
        ways.append((2 * kappa, 2 * points, 2.0 if relation == "replace" else 1.0))
    best = math.inf
    for q, apart, one in ways:
        root = math.sqrt(2 * q * math.log(2 / delta))
        for e, d in ((epsilon / q, delta / q), (epsilon / (2 * root), delta / (2 * q))):
            best = min(best, lemma_by_grid(e, d, apart, one, silos))
    budget = Budget(epsilon, delta, relation)
    found = amplified_tree_std(budget, releases, silos, batch, layout)
    assert found == pytest.approx(best, rel=0.01)
    assert best > 0.999 * found, "the grid has no way to less noise"


def test_one_message_needs_no_more_than_two_streams() -> None:
    """Composition over kappa messages of both streams against 2 kappa of one, any layout."""
    draw = np.random.default_rng(12)
    least = 1.0
    for _ in range(40):
        epsilon, delta = float(10 ** draw.uniform(-6, -1)), float(10 ** draw.uniform(-10, -2))
        releases, silos = int(draw.integers(1, 500)), int(10 ** draw.uniform(2, 7))
        relation = str(draw.choice(["replace", "zero-out"]))
        kappa, one = releases.bit_length(), 2.0 if relation == "replace" else 1.0
        q, points = 2 * kappa, 25 * 2 ** (kappa - 1) * 2.0 / one
        root = math.sqrt(2 * q * math.log(2 / delta))
        shares = [(epsilon / q, delta / q), (epsilon / (2 * root), delta / (2 * q))]
        stds = [amplified_std(e, d, points, silos, one) for e, d in shares]
        before = min((s for s in stds if s is not None), default=None)
        for layout in ("goe2", "goe1", "iid"):
            budget = Budget(epsilon, delta, relation)
            now = amplified_tree_std(budget, releases, silos, 25, layout)
            assert (now is None) == (before is None)
            if now is not None and before is not None:
                assert now <= before * (1 + 1e-9)
                least = min(least, now / before)
    assert least < 0.55


def test_less_noise_in_the_covariance_stream_is_counted() -> None:
    tree = calibrate_shuffled_tree(Budget(1e-4, 1e-9), 1, 10**6, 25, 25)
    assert tree.exact() < tree.ldp()
    quieter = msgspec.structs.replace(tree, covariance_ratio=0.2)
    assert quieter.exact() > 2 * tree.exact()


@pytest.mark.parametrize("calibration", ["theorem", "published-code"])
def test_formulas_are_computed_not_quoted(calibration: str) -> None:
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 400, 100, 25, 10_000, calibration)
    assert isinstance(tree, GaussianTree)
    plain = GaussianTree(400, tree.layout, tree.noise_std, calibration, tree.budget, "same noise")
    assert tree.exact() == plain.exact()
    assert tree.mu() == plain.mu()
    assert tree.noise_stds == plain.noise_stds
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
def test_no_release_costs_nothing(calibration: str) -> None:
    tree = calibrate_shuffled_tree(Budget(1e-3, 1e-4), 0, 100, 25, 10_000, calibration)
    assert (tree.noise_std, tree.mu(), tree.exact()) == (0.0, 0.0, 0.0)
    assert all(c.holds for c in tree.conditions())


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
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
