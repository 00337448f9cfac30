"""`fastfed bench` measures: every kind of case runs, on tiny sizes."""

from __future__ import annotations

import pytest

from fastfed.environments import Sphere
from fastfed.simulation.bench import CASES, Case, SyntheticPool, experiments_of, measure


@pytest.mark.parametrize(
    "case",
    [
        Case("sphere", 1.0, lambda: Sphere(dimension=3, actions=4), 50, 25),
        Case("bits", 1.0, lambda: Sphere(dimension=10, actions=4), 50, 4, "shuffle-vector"),
        Case("pool", 1.0, lambda: SyntheticPool(5, 4, queries=20), 50, 25),
    ],
    ids=lambda case: case.name,
)
def test_every_kind_of_case_is_measured(case):
    found = measure(case, repeats=1)
    assert found["name"] == case.name
    assert found["microseconds_per_agent_round"] > 0
    assert found["ratio"] >= found["ratio_without_data"] > 0


def test_the_vector_case_has_the_tree_of_the_paper():
    """T / B = 400 on both sides, so that a data point is encoded for 4.76 nodes on average."""
    (case,) = [c for c in CASES if c.name == "sphere-k100-d10-vector"]
    assert [e.curves[0].system.plan.releases for e in experiments_of(case)] == [400, 400]
