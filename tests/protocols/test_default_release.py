"""No release loses 5 % less than the default one, under any trust model that has several."""

import itertools

import default_releases
import numpy as np
import pytest

import fastfed
from fastfed.bandits import ALGORITHMS, ProblemSpec
from fastfed.bandits.assemble import MOST_KEPT, MOST_OPTIMISED
from fastfed.deployment.kinds import check_supported

#: Two of these are ordinary tests for each trust model: equal batches and batches that grow.
ORDINARY = (*tuple(default_releases.SIZES)[:2], *tuple(default_releases.AGENTS)[2:5:2])


@pytest.mark.parametrize(
    "model, name",
    [
        pytest.param(*case, marks=() if case[1] in ORDINARY else pytest.mark.slow)
        for case in default_releases.settings()
    ],
)
def test_no_release_loses_less_than_the_default(model: str, name: str) -> None:
    found = default_releases.measure(model, name)
    assert len(found.regret) >= 2 or model == "shuffle-vector"
    assert found.excess < 0.05, found


def release(algorithm: str, silos: int, horizon: int, dimension: int = 5, **keys: object) -> str:
    """The default release of a system."""
    own = {"epsilon": 1.0, "delta": 1e-6, **keys}
    problem = ProblemSpec(silos=silos, horizon=horizon, dimension=dimension)
    entry = ALGORITHMS[algorithm]
    found: str = entry.settled(entry.check(own), problem).release
    return found


def test_the_rule_knows_sizes() -> None:
    many = MOST_OPTIMISED + 1
    assert release("linucb-jdp", 1, 20 * MOST_KEPT) == "buffered"
    assert release("linucb-jdp", 1, 10 * many, batch_size=10, epsilon=1e4) == "toeplitz"
    few = {"batch_size": 25, "epsilon": 100.0}
    assert release("private-fedlinucb", 20, 2000, **few) == "factorised"
    # So many silos would keep more noise than the rule allows for.
    assert release("private-fedlinucb", 10**5, 2000, **few) == "buffered"
    assert release("private-fedlinucb", 10**5, 2000, protocol="central", **few) == "factorised"
    flat = {"protocol": "shuffle-vector", "batch_size": 2}
    assert release("private-fedlinucb", 20, 2000, **flat) == "tree"
    assert release("private-fedlinucb", 20, 2000, **flat, covariance_ratio=0.5) == "flat"


@pytest.mark.parametrize("calibration", ["theorem", "published-code"])
def test_a_papers_noise_is_the_papers_tree(calibration: str) -> None:
    for algorithm, silos in (("private-fedlinucb", 3), ("linucb-jdp", 1)):
        keys = {"batch_size": 5, "calibration": calibration}
        assert release(algorithm, silos, 100, **keys) == "tree"


@pytest.mark.parametrize(
    "protocol, keys",
    itertools.product(
        ("silo-ldp", "central", "secure-sum", "shuffle-vector", "shuffle-amplified"),
        ({"batch_size": 5}, {}, {"batch_size": 40}),
    ),
)
def test_a_default_and_its_name_are_one_curve(protocol: str, keys: dict) -> None:
    """In plans, in what is stored of a curve, and in certificates."""
    own = {"protocol": protocol, "epsilon": 2.0, "delta": 1e-5, **keys}
    found = release("private-fedlinucb", 4, 60, 3, **own)
    table = {"algorithm": "private-fedlinucb", **own}
    world = {"kind": "sphere", "dimension": 3, "actions": 5}
    curves = [{**table, "label": "a"}, {**table, "label": "b", "release": found}]
    results = fastfed.simulate(world, curves=curves, silos=4, horizon=60)
    a, b = results.curves
    np.testing.assert_array_equal(a.group_regret, b.group_regret)
    assert a.certificate["exact"] == b.certificate["exact"]


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", "shuffle-vector"])
def test_deployments_can_execute_every_default(protocol: str) -> None:
    """Their accounts cover reports that come late, for few and many, small and large batches."""
    chosen = set()
    sizes = itertools.product((2, 20), (40, 1000), (0.2, 50.0), (1, 5, 40, "growing"))
    for silos, horizon, epsilon, batch_size in sizes:
        few = batch_size in (1, 5) or horizon > 40
        if protocol in ("secure-sum", "shuffle-vector") and few:  # whose calibration takes seconds
            continue
        keys = {"protocol": protocol, "epsilon": epsilon, "delta": 1e-6, "batch_size": batch_size}
        problem = ProblemSpec(silos=silos, horizon=horizon, dimension=3)
        plan = ALGORITHMS["private-fedlinucb"].make(keys, problem).plan
        check_supported(plan)
        chosen.add(plan.release)
    assert len(chosen) > 1 or protocol in ("secure-sum", "shuffle-vector")
