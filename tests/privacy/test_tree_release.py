"""Check TreeRelease: node counts, variances, privacy of the released sums, and refused
arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import fastfed
from fastfed._validate import InputError
from fastfed.privacy import Budget, as_text
from fastfed.privacy.accounting.gdp import epsilon_of
from fastfed.privacy.releases.prefix_sums import prefix_nodes
from fastfed.privacy.releases.tree_release import TreeRelease

FALSE_ALARM = 1e-6  # false-alarm probability of each statistical test for a random seed


def test_tree_release_is_public():
    assert fastfed.privacy.TreeRelease is TreeRelease


# ---- Sums ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("releases", [1, 2, 3, 7, 8, 9, 31, 32, 33, 100])
def test_constant_noise_counts_the_nodes(releases):
    """Check that prefix k consists of one node for each bit 1 of k."""
    tree = TreeRelease(3, releases, noise_std=1.0, noise=lambda node: np.ones(3))
    x = np.array([0.5, 0.0, -0.25])
    for k in range(1, releases + 1):
        assert np.array_equal(tree.add(x) - k * x, np.full(3, k.bit_count()))
        assert tree.released == k


def test_noise_of_every_node_is_drawn_once_and_in_order():
    drawn_nodes = []

    def noise(node):
        """Return noise that names the node, and note the node."""
        drawn_nodes.append(node)
        return [float(2**node), 0.0]

    tree = TreeRelease(2, 20, noise_std=1.0, noise=noise)
    for k in range(1, 21):
        total = tree.add([0.0, 0.0])
        # With powers of two, the sum shows the nodes of which it consists.
        assert total.tolist() == [float(sum(2**node for node in prefix_nodes(k))), 0.0]
    assert drawn_nodes == list(range(1, 21))


def test_sums_without_noise_are_exact():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(77, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * rng.uniform(1.0, 3.0, size=(77, 1))
    tree = TreeRelease(5, 77, noise_std=1.0, noise=lambda node: np.zeros(5))
    for k, row in enumerate(x, start=1):
        np.testing.assert_allclose(tree.add(row), x[:k].sum(axis=0), atol=1e-13)
    assert tree.clipped == 0


def test_noise_has_the_variance_of_its_nodes():
    """Test the noise of many seeded trees by chi-square, for prefixes of one to five nodes."""
    d, std = 50, 2.5
    trees = [TreeRelease(d, 31, noise_std=std, seed=seed) for seed in range(300)]
    for k in range(1, 32):
        noise = np.concatenate([tree.add(np.zeros(d)) for tree in trees])
        variance = std**2 * k.bit_count()
        p = stats.chi2.cdf(np.sum(noise**2) / variance, len(noise))
        assert FALSE_ALARM / 2 < p < 1.0 - FALSE_ALARM / 2, k
        assert stats.kstest(noise / math.sqrt(variance), stats.norm.cdf).pvalue > FALSE_ALARM, k


def test_prefixes_share_the_noise_of_shared_nodes():
    """Check that prefixes 4 and 5 share node 4, and that 3 and 4 share none."""
    d = 20_000
    tree = TreeRelease(d, 8, noise_std=1.0, seed=1)
    totals = {k: tree.add(np.zeros(d)) for k in range(1, 9)}
    limit = stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(d)
    for k, other, shared in ((4, 5, 1), (3, 4, 0), (6, 7, 2), (7, 8, 0), (5, 6, 1)):
        expected = shared / math.sqrt(k.bit_count() * other.bit_count())
        assert abs(np.corrcoef(totals[k], totals[other])[0, 1] - expected) < limit


def test_vectors_are_clipped_and_counted():
    tree = TreeRelease(2, 8, noise_std=1.0, noise=lambda node: np.zeros(2))
    x = np.array([3.0, 4.0])
    x.flags.writeable = False
    np.testing.assert_allclose(tree.add(x), [0.6, 0.8], rtol=1e-15)
    assert tree.clipped == 1
    tree.add([0.6, 0.8])
    tree.add(np.array([0.6, 0.8], np.float32))  # above 1 only by rounding
    assert tree.clipped == 1
    before = tree.add([0, 0])
    np.testing.assert_allclose(tree.add([-3e200, 4e200]) - before, [-0.6, 0.8], rtol=1e-14)
    assert tree.clipped == 2
    assert x.tolist() == [3.0, 4.0]


# ---- Sources of noise ---------------------------------------------------------------------------


def release_all(**keywords):
    """Return the noise of six releases of zeros."""
    tree = TreeRelease(4, 6, noise_std=1.0, **keywords)
    return np.array([tree.add(np.zeros(4)) for _ in range(6)])


def test_seeded_noise_repeats_and_system_noise_does_not():
    # Noise is rounded to a grid, so that single numbers may agree by chance, but not four together.
    assert not (release_all() == release_all()).all(axis=1).any()
    assert np.array_equal(release_all(seed=3), release_all(seed=3))
    assert not np.isin(release_all(seed=3), release_all(seed=4)).any()


# ---- Privacy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize(("releases", "kappa"), [(1, 1), (7, 3), (8, 4), (1000, 10)])
def test_calibration_is_exact_and_tight(releases, kappa, relation):
    tree = TreeRelease(3, releases, epsilon=0.7, delta=1e-6, relation=relation)
    size = 2.0 if relation == "replace" else 1.0
    assert tree.mu == pytest.approx(math.sqrt(kappa) * size / tree.noise_std, rel=1e-12)
    assert 0.7 * (1.0 - 1e-6) < tree.exact() <= 0.7
    assert tree.exact(1e-3) < 0.7 < tree.exact(1e-9)
    fixed = TreeRelease(3, releases, noise_std=tree.noise_std, relation=relation)
    assert fixed.exact(1e-6) == tree.exact()


def test_noise_covers_the_worst_pair_of_streams():
    """Calculate by brute force the squared change of all nodes over noise^2, for a change in each
    leaf."""
    releases, x, other = 13, np.array([1.0, 0.0]), np.array([-1.0, 0.0])
    largest_change = 0.0
    for leaf in range(1, releases + 1):
        nodes = []
        for changed in (x, other):
            streams = [changed if k == leaf else np.zeros(2) for k in range(1, releases + 1)]
            nodes.append(
                [np.sum(streams[k - (k & -k) : k], axis=0) for k in range(1, releases + 1)]
            )
        largest_change = max(largest_change, float(np.sum((np.array(nodes[0]) - nodes[1]) ** 2)))
    tree = TreeRelease(2, releases, noise_std=3.0)
    assert tree.mu == pytest.approx(math.sqrt(largest_change) / 3.0)
    assert tree.exact(1e-5) == pytest.approx(epsilon_of(math.sqrt(largest_change) / 3.0, 1e-5))


def test_certificate_of_a_budget_is_proven():
    tree = TreeRelease(3, 100, epsilon=1.0, delta=1e-6)
    certificate = tree.certificate
    assert (certificate.unit, certificate.status) == ("item", "proven")
    assert certificate.claimed is not None and certificate.exact is not None
    assert (certificate.claimed.epsilon, certificate.claimed.delta) == (1.0, 1e-6)
    assert (certificate.exact.epsilon, certificate.exact.delta) == (tree.exact(), 1e-6)
    assert certificate.noise_std == {"node": tree.noise_std}
    assert all(condition.holds for condition in certificate.conditions)
    assert not any("seed" in caveat for caveat in certificate.caveats)
    (user,) = certificate.also
    assert user.unit == "user" and user.conditions[-1].holds
    assert user.conditions[-1].text.startswith("every user adds one vector only")
    assert "kappa" not in as_text(certificate) and "proven" in as_text(certificate)


def test_certificate_of_a_given_noise_std():
    certificate = TreeRelease(3, 100, noise_std=20.0, delta=1e-6, relation="zero-out").certificate
    assert certificate.claimed is None and certificate.status == "proven"
    assert certificate.relation == "zero-out"
    assert certificate.exact is not None
    assert certificate.exact.epsilon == epsilon_of(math.sqrt(7) / 20.0, 1e-6)


def test_certificate_of_seeded_noise_mentions_simulation():
    certificate = TreeRelease(3, 9, epsilon=1.0, delta=1e-6, seed=1).certificate
    assert certificate.status == "proven"
    assert any(caveat.startswith("simulation:") for caveat in certificate.caveats)


def test_certificate_of_a_noise_function_is_unproven():
    tree = TreeRelease(3, 9, epsilon=1.0, delta=1e-6, noise=lambda node: np.zeros(3))
    certificate = tree.certificate
    assert certificate.status == "unproven" and certificate.exact is None
    assert [condition.text for condition in certificate.conditions if not condition.holds] == [
        "every node's noise is standard normal, and drawn once"
    ]
    (user,) = certificate.also
    assert user.status == "conditional" and user.exact is not None
    assert [condition.text for condition in user.conditions if not condition.holds] == [
        "every node's noise is standard normal, and drawn once"
    ]


# ---- Refused arguments --------------------------------------------------------------------------


def test_more_vectors_than_releases_are_refused():
    tree = TreeRelease(2, 3, noise_std=1.0)
    for _ in range(3):
        tree.add([0.0, 0.0])
    with pytest.raises(InputError, match="at most 3 vectors can be added, got one more"):
        tree.add([0.0, 0.0])
    assert tree.released == 3


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], r"x must have shape \(2,\), got \(1,\)"),
        ([[1.0, 0.0]], r"x must have shape \(2,\), got \(1, 2\)"),
        ([np.nan, 0.0], r"x must be finite, got nan at index \(0,\)"),
        ([0.0, np.inf], r"x must be finite, got inf at index \(1,\)"),
        ("xy", "x must be an array of numbers, got 'xy'"),
    ],
)
def test_bad_vectors_change_nothing_and_draw_no_noise(x, message):
    drawn_nodes = []

    def noise(node):
        """Return ones, and note the node."""
        drawn_nodes.append(node)
        return np.ones(2)

    tree = TreeRelease(2, 3, noise_std=1.0, noise=noise)
    with pytest.raises(InputError, match=message):
        tree.add(x)
    assert tree.released == 0 and not drawn_nodes
    assert tree.add([1.0, 0.0]).tolist() == [2.0, 1.0]


def test_bad_noise_changes_nothing():
    answers = iter([np.ones(3), [np.nan, 0.0], np.ones(2)])
    tree = TreeRelease(2, 3, noise_std=1.0, noise=lambda node: next(answers))
    with pytest.raises(InputError, match=r"noise must have shape \(2,\), got \(3,\)"):
        tree.add([1.0, 0.0])
    with pytest.raises(InputError, match="noise must be finite"):
        tree.add([1.0, 0.0])
    assert tree.released == 0 and tree.clipped == 0
    assert tree.add([1.0, 0.0]).tolist() == [2.0, 1.0]


EXACTLY_ONE = "exactly one of epsilon .with delta. and noise_std must be given"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, f"{EXACTLY_ONE}, got epsilon None, noise_std None"),
        ({"epsilon": 1.0, "delta": 1e-6, "noise_std": 1.0}, f"{EXACTLY_ONE}, got epsilon 1.0"),
        ({"delta": 1e-6}, EXACTLY_ONE),
        ({"epsilon": 1.0}, "delta must be given with epsilon, got None"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
        ({"epsilon": 0.0, "delta": 1e-6}, "epsilon must be > 0, got 0.0"),
        ({"noise_std": 0.0}, "noise_std must be > 0, got 0.0"),
        ({"noise_std": 1.0, "relation": "add"}, 'relation must be one of "replace", "zero-out"'),
        ({"noise_std": 1.0, "dimension": 0}, "dimension must be an integer >= 1, got 0"),
        ({"noise_std": 1.0, "releases": 0}, "releases must be an integer >= 1 .*, got 0"),
        ({"noise_std": 1.0, "seed": -1}, "seed must be an integer"),
        ({"noise_std": 1.0, "seed": 1, "noise": len}, "noise and seed must not both be given"),
        ({"noise_std": 1.0, "noise": np.ones(2)}, "noise must be a function of the node's number"),
    ],
)
def test_errors_name_the_bad_argument(changes, message):
    arguments = {"dimension": 2, "releases": 5} | changes
    with pytest.raises(InputError, match=message):
        TreeRelease(**arguments)


def test_epsilon_needs_a_delta():
    tree = TreeRelease(2, 5, noise_std=1.0)
    with pytest.raises(InputError, match="delta must be given: this TreeRelease was made from"):
        tree.exact()
    with pytest.raises(InputError, match="delta must be given to TreeRelease for a certificate"):
        _ = tree.certificate
    with pytest.raises(InputError, match="delta must be > 0 and < 1"):
        tree.exact(1.0)
    assert tree.exact(1e-6) > 0.0


def test_noise_grows_only_with_the_depth():
    stds = [
        TreeRelease(2, releases, epsilon=1.0, delta=1e-6).noise_std for releases in (4, 7, 8, 15)
    ]
    assert stds[0] == stds[1] < stds[2] == stds[3]
    assert stds[2] / stds[0] == pytest.approx(math.sqrt(4 / 3), rel=1e-12)
    assert Budget(1.0, 1e-6).relation == TreeRelease(2, 4, noise_std=1.0).relation
