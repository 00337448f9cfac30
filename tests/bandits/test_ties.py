"""tie_bonus: bounds beyond the range of rewards tie; the choice, both drivers, the proof."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed._kernels import linalg
from fastfed.bandits.problem import ProblemSpec
from fastfed.simulation.systems import ALGORITHMS

PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 5.0, "delta": 1e-3}
CURVES: list[dict[str, Any]] = [
    {**PRIVATE, "protocol": "central", "reward_centre": 0.5, "tie_bonus": 0.5},
    {**PRIVATE, "protocol": "silo-ldp", "tie_bonus": 0.0},
    {**PRIVATE, "protocol": "silo-ldp", "reward_centre": 0.5, "bonus": 0.3, "tie_bonus": 0.5},
    {**PRIVATE, "protocol": "central", "radius": "lemma-c2", "batch_size": 5, "tie_bonus": 0.5},
    {"algorithm": "fedlinucb", "lazy": False, "batch_size": 5, "tie_bonus": 0.4},
    {"algorithm": "local-linucb", "tie_bonus": 0.5},
    {"algorithm": "feducb", "epsilon": 1.0, "delta": 1e-3, "tie_bonus": 0.5},
    {"algorithm": "linucb-jdp", "epsilon": 1.0, "delta": 1e-3, "tie_bonus": 0.5},
]


def scores(x: np.ndarray, w: np.ndarray, theta: np.ndarray, b: float, g: float) -> np.ndarray:
    """<x, theta> + b ||x||_{V^-1} + g ||V^-1 x|| from their definitions."""
    inverse = w.T @ w
    first = np.sqrt(np.einsum("ai,ij,aj->a", x, inverse, x))
    return x @ theta + b * first + g * np.linalg.norm(x @ inverse, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("d", "actions"), [(2, 1), (3, 7), (10, 100), (40, 33), (135, 50)])
def test_the_choice_is_that_of_the_definition(d: int, actions: int, dtype: type) -> None:
    rng = np.random.default_rng(d)
    kinds = set()
    for _ in range(60):
        w = np.tril(rng.normal(size=(d, d))) / d
        theta = rng.normal(size=d) / d
        x = (rng.normal(size=(actions, d)) / np.sqrt(d)).astype(dtype)
        beta, gamma, tie = rng.uniform(0, 2), rng.choice([0.0, 1.5]), rng.uniform()
        full = scores(x.astype(float), w, theta, beta, gamma)
        limit = float(rng.choice([full.min() - 0.1, np.median(full), full.max() + 0.1]))
        limit += 1e-6 * float(np.ptp(full))  # no score is the limit itself
        tied = full >= limit
        smaller = scores(x.astype(float), w, theta, tie * beta, tie * gamma)
        wanted = np.where(tied, smaller, -np.inf).argmax() if tied.any() else full.argmax()
        kinds.add((bool(tied.any()), bool(tied.all())))
        index, row = linalg.select_tied(x, w, theta, beta, gamma, limit, tie)
        assert index == wanted
        np.testing.assert_array_equal(row, x[index])
    assert len(kinds) >= 2


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: f"{c['algorithm']}-{c['tie_bonus']}")
def test_both_drivers_play_the_same(curve: dict[str, Any]) -> None:
    single = curve["algorithm"].startswith("linucb")
    world = {"kind": "sphere", "dimension": 4, "actions": 15, "intercept": 2.0}
    keys = {"horizon": 200, "silos": 1 if single else 3, "seed": 1, "replicates": 2}
    keys["checkpoints"] = 5
    runs = [
        fastfed.simulate(world, curves=[{"label": "a", **curve}], driver=driver, **keys)["a"]
        for driver in ("compiled", "step")
    ]
    np.testing.assert_array_equal(runs[0].group_regret, runs[1].group_regret)
    plain = {k: v for k, v in curve.items() if k != "tie_bonus"}
    other = fastfed.simulate(world, curves=[{"label": "a", **plain}], **keys)["a"]
    if "bonus" not in curve:
        assert (np.asarray(other.group_regret) != np.asarray(runs[0].group_regret)).any()


def test_one_is_the_largest_bound() -> None:
    rng = np.random.default_rng(0)
    w, theta = np.tril(rng.normal(size=(5, 5))), rng.normal(size=5)
    for _ in range(50):
        x = rng.normal(size=(20, 5))
        one = linalg.select_tied(x, w, theta, 0.7, 0.3, -10.0, 1.0)[0]
        assert one == linalg.select(x, w, theta, 0.7, 0.3)[0]


@pytest.mark.parametrize("tie", [0.0, 0.5])
def test_regret_of_a_round_is_twice_its_bonus_at_most(tie: float) -> None:
    """Step 1 of the proof, with the silo's own V, theta_hat and radii, where theta* is known."""
    spec = ProblemSpec(silos=1, horizon=400, dimension=4, reward_range=(0.0, 1.0))
    keys = {"batch_size": 4, "epsilon": 20.0, "delta": 1e-2, "tie_bonus": tie}
    plan = ALGORITHMS.choose("private-fedlinucb").make({**keys, "protocol": "central"}, spec).plan
    rng = np.random.default_rng(3)
    noise = fastfed.parties.SeededNoise(7)
    silo = fastfed.parties.Silo(plan, 0, noise)
    server = fastfed.parties.Server(plan, noise)
    theta = np.array([0.5, 0.3, 0.2, 0.4])
    ties = 0
    for _ in range(plan.horizon):
        x = np.abs(rng.normal(size=(12, 4)))
        x /= np.linalg.norm(x, axis=1)[:, None]
        mean = np.clip(x @ theta, 0.0, 1.0)
        w, radii = silo._estimate.w, (silo._radius(), silo._second_bonus)
        bonus = scores(x, w, np.zeros(4), *radii)
        full = scores(x, w, silo.theta, *radii)
        a = silo.select(x)
        ties += full.max() >= 1.0 and a != full.argmax()
        if full.max() >= 1.0:
            assert full[a] >= 1.0 - 1e-12
        assert (x @ theta).max() - x[a] @ theta <= 2.0 * bonus[a] + 1e-9
        silo.observe(float(rng.random() < mean[a]))
        if silo.due:
            silo.receive(server.combine([silo.report()]))
    assert ties > 10


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ({"algorithm": "fedlinucb", "tie_bonus": 1.5}, "tie_bonus must be"),
        ({"algorithm": "fedlinucb", "tie_bonus": -0.1}, "tie_bonus must be"),
        ({"algorithm": "random", "tie_bonus": 0.5}, "tie_bonus has no meaning for random"),
        ({"algorithm": "robin", "diversity": 0.2, "epsilon": 1.0, "delta": 1e-3, "lazy": False,
          "tie_bonus": 0.5}, "tie_bonus has no meaning for robin"),
    ],
)  # fmt: skip
def test_what_it_cannot_mean_is_refused(curve: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fastfed.simulate(
            {"kind": "sphere", "dimension": 3, "actions": 5}, curves=[{"label": "a", **curve}],
            horizon=40, silos=30, replicates=1,
        )  # fmt: skip


def test_rewards_of_no_known_range_are_refused() -> None:
    spec = ProblemSpec(silos=2, horizon=20, dimension=3, reward_range=None)
    system, keys = ALGORITHMS.choose("fedlinucb"), {"batch_size": 5, "tie_bonus": 0.5}
    with pytest.raises(InputError, match="tie_bonus below 1 needs rewards in a known range"):
        system.make({**keys, "clip": False}, spec)
    made = system.make(keys, spec).plan
    assert made.reward_limit == made.clip.high == 1.0
