"""No release has 5 % less regret than the default release, under any trust model."""

import itertools

import default_releases
import numpy as np
import pytest

import fastfed
from fastfed.bandits import ALGORITHMS, ProblemSpec
from fastfed.bandits.assemble import MAX_KEPT, MAX_OPTIMISED
from fastfed.deployment.kinds import check_supported

#: Sizes that ordinary tests run, two per trust model. One has equal batches, one growing batches.
ORDINARY = (*tuple(default_releases.SIZES)[:2], *tuple(default_releases.AGENTS)[2:5:2])


@pytest.mark.parametrize(
    "model, name",
    [
        pytest.param(*case, marks=() if case[1] in ORDINARY else pytest.mark.slow)
        for case in default_releases.settings()
    ],
)
def test_no_release_has_less_regret_than_the_default(model: str, name: str) -> None:
    measured = default_releases.measure(model, name)
    assert len(measured.regret) >= 2 or model == "shuffle-vector"
    assert measured.excess < 0.05, measured


def release(algorithm: str, silos: int, horizon: int, dimension: int = 5, **keys: object) -> str:
    """Return the default release of a system."""
    table = {"epsilon": 1.0, "delta": 1e-6, **keys}
    problem = ProblemSpec(silos=silos, horizon=horizon, dimension=dimension)
    entry = ALGORITHMS[algorithm]
    default: str = entry.settled(entry.check(table), problem).release
    return default


def test_the_default_release_depends_on_the_sizes() -> None:
    too_many_releases = MAX_OPTIMISED + 1
    assert release("linucb-jdp", 1, 20 * MAX_KEPT) == "buffered"
    assert (
        release("linucb-jdp", 1, 10 * too_many_releases, batch_size=10, epsilon=1e4) == "toeplitz"
    )
    few_releases = {"batch_size": 25, "epsilon": 100.0}
    assert release("private-fedlinucb", 20, 2000, **few_releases) == "factorised"
    # 10^5 silos would cache more noise than the rule allows.
    assert release("private-fedlinucb", 10**5, 2000, **few_releases) == "buffered"
    assert (
        release("private-fedlinucb", 10**5, 2000, protocol="central", **few_releases)
        == "factorised"
    )
    vector_sums = {"protocol": "shuffle-vector", "batch_size": 2}
    assert release("private-fedlinucb", 20, 2000, **vector_sums) == "tree"
    assert release("private-fedlinucb", 20, 2000, **vector_sums, covariance_ratio=0.5) == "flat"


@pytest.mark.parametrize("calibration", ["theorem", "published-code"])
def test_a_calibration_of_a_paper_uses_the_tree_of_the_paper(calibration: str) -> None:
    for algorithm, silos in (("private-fedlinucb", 3), ("linucb-jdp", 1)):
        keys = {"batch_size": 5, "calibration": calibration}
        assert release(algorithm, silos, 100, **keys) == "tree"


@pytest.mark.parametrize(
    "protocol, keys",
    list(
        itertools.product(
            ("silo-ldp", "central", "secure-sum", "shuffle-vector", "shuffle-amplified"),
            ({"batch_size": 5}, {}, {"batch_size": 40}),
        )
    ),
)
def test_naming_the_default_release_changes_no_result(protocol: str, keys: dict) -> None:
    """Compare a curve without a release with the curve that names its default release."""
    keys_of_system = {"protocol": protocol, "epsilon": 2.0, "delta": 1e-5, **keys}
    default = release("private-fedlinucb", 4, 60, 3, **keys_of_system)
    table = {"algorithm": "private-fedlinucb", **keys_of_system}
    world = {"kind": "sphere", "dimension": 3, "actions": 5}
    curves = [{**table, "label": "a"}, {**table, "label": "b", "release": default}]
    results = fastfed.simulate(world, curves=curves, silos=4, horizon=60)
    unnamed, named = results.curves
    np.testing.assert_array_equal(unnamed.group_regret, named.group_regret)
    assert unnamed.certificate["exact"] == named.certificate["exact"]


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", "shuffle-vector"])
def test_deployments_support_every_default_release(protocol: str) -> None:
    """The accounts of deployments cover late reports, for all kinds of batches."""
    default_releases_seen = set()
    sizes = itertools.product((2, 20), (40, 1000), (0.2, 50.0), (1, 5, 40, "growing"))
    for silos, horizon, epsilon, batch_size in sizes:
        slow_calibration = batch_size in (1, 5) or horizon > 40
        if (
            protocol in ("secure-sum", "shuffle-vector") and slow_calibration
        ):  # calibration takes seconds
            continue
        keys = {"protocol": protocol, "epsilon": epsilon, "delta": 1e-6, "batch_size": batch_size}
        problem = ProblemSpec(silos=silos, horizon=horizon, dimension=3)
        plan = ALGORITHMS["private-fedlinucb"].make(keys, problem).plan
        check_supported(plan)
        default_releases_seen.add(plan.release)
    assert len(default_releases_seen) > 1 or protocol in ("secure-sum", "shuffle-vector")
