"""The papers'-style reference: it learns, it repeats, and the oracle agrees with its actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle.zhou_chowdhury_2024 import Noise, replay

from fastfed import _reference
from fastfed._reference import private_fedlinucb_pool, private_fedlinucb_sphere


def small_sphere(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "silos": 3,
        "horizon": 60,
        "dimension": 4,
        "actions": 10,
        "batch_size": 5,
        "noise_std": 1.0,
        "regularizer": 60.0,
        "seed": 11,
    }
    return arguments | changes


def small_pool(**changes: Any) -> dict[str, Any]:
    """Five queries of 1 to 7 documents; silos own queries 1-2 and 3-4, nobody owns query 0."""
    rng = np.random.default_rng(3)
    starts = np.cumsum([0, 4, 7, 1, 5, 3])
    rows = rng.standard_normal((starts[-1], 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    arguments: dict[str, Any] = {
        "rows": rows,
        "starts": starts,
        "silo_starts": np.array([1, 3, 5]),
        "means": (1 + rows @ np.array([0.6, -0.5, 0.3])) / 2,
        "horizon": 50,
        "batch_size": 5,
        "noise_std": 1.0,
        "regularizer": 60.0,
        "seed": 11,
    }
    return arguments | changes


def assert_sane(result: _reference.Result, horizon: int) -> None:
    regret = result["group_regret"]
    assert regret.shape == (horizon,)
    assert np.isfinite(regret).all()
    assert (np.diff(regret, prepend=0.0) >= 0).all()
    assert regret[-1] > 0
    assert 0 < result["data_seconds"] < result["total_seconds"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"silos": 1}, {"batch_size": 1}, {"batch_size": 7}, {"batch_size": 100}, {"dimension": 2}],
)
def test_sphere_is_sane(changes: dict[str, Any]) -> None:
    assert_sane(private_fedlinucb_sphere(**small_sphere(**changes)), 60)


def test_pool_is_sane() -> None:
    assert_sane(private_fedlinucb_pool(**small_pool()), 50)


def test_one_action_has_no_regret() -> None:
    result = private_fedlinucb_sphere(**small_sphere(actions=1))
    assert np.array_equal(result["group_regret"], np.zeros(60))


def test_seeds_repeat_and_differ() -> None:
    first, again = (private_fedlinucb_sphere(**small_sphere())["group_regret"] for _ in range(2))
    assert np.array_equal(first, again)
    other = private_fedlinucb_sphere(**small_sphere(seed=12))["group_regret"]
    assert not np.array_equal(first, other)
    first, again = (private_fedlinucb_pool(**small_pool())["group_regret"] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, private_fedlinucb_pool(**small_pool(seed=12))["group_regret"])


def test_privacy_noise_leaves_the_environment_alone() -> None:
    """Before the first synchronisation two noise levels see and do the same; after it not."""
    quiet, loud = (
        private_fedlinucb_sphere(**small_sphere(noise_std=std))["group_regret"] for std in (0, 3)
    )
    assert np.array_equal(quiet[:5], loud[:5])
    assert not np.array_equal(quiet, loud)


def test_silos_meet_only_their_own_queries() -> None:
    """All actions tie, so action 0 is played; it costs 1 in silo 1's block and 0 in silo 0's."""
    result = private_fedlinucb_pool(
        rows=np.zeros((10, 3)),
        starts=np.arange(0, 11, 2),
        silo_starts=np.array([1, 3, 5]),
        means=np.array([0, 9, 0, 0, 0, 0, 0, 1, 0, 1], dtype=float),
        horizon=40,
        noise_std=0.0,
        regularizer=1.0,
        seed=11,
    )
    assert np.array_equal(result["group_regret"], np.arange(1, 41))


def test_radius_of_the_published_code() -> None:
    """sqrt(2) sqrt(5) + 0.5 sqrt(5 ln(1 + 100 * 10 / (5 * 2)) + ln 100), worked out by hand."""
    assert _reference._radius(100, 10, 5, 2.0, 0.01) == pytest.approx(5.79290, abs=1e-5)


def test_learns_better_than_random_play() -> None:
    result = private_fedlinucb_sphere(
        **small_sphere(silos=5, horizon=400, noise_std=0.0, regularizer=1.0, radius_multiplier=0.2)
    )
    per_round = np.diff(result["group_regret"], prepend=0.0).reshape(4, 100).mean(axis=1) / 5
    # Random play loses E[max - mean] of <u, v> / 2 over ten actions, u on the 2-sphere: there
    # <u, v> is uniform on [-1, 1], so the maximum of ten has mean 9/11, and the loss is 9/22.
    assert per_round[0] < 9 / 22
    assert per_round[-1] < per_round[0]
    assert per_round[-1] < 0.05


def test_noise_too_large_for_the_regularizer_is_an_error() -> None:
    with pytest.raises(FloatingPointError):
        private_fedlinucb_sphere(**small_sphere(noise_std=50.0, regularizer=0.1))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_oracle_agrees_with_every_action(batch_size: int) -> None:
    """Regret written in base 16 tells what each of two silos did; the oracle replays that."""
    silos, horizon, d, actions, unit = 2, 34, 3, 16, 2.0**-12
    tables = np.random.default_rng(5).standard_normal((horizon, silos, actions, d))
    tables /= np.linalg.norm(tables, axis=-1, keepdims=True)
    means = [-np.arange(actions) * unit * 16**i for i in range(silos)]
    rounds = [0] * silos

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        rounds[silo] += 1
        return tables[rounds[silo] - 1, silo], means[silo]

    noise_std, regularizer, multiplier, alpha = 1.0, 40.0, 0.3, 0.01
    result = _reference._private_fedlinucb(
        draw,
        silos=silos,
        horizon=horizon,
        dimension=d,
        batch_size=batch_size,
        noise_std=noise_std,
        regularizer=regularizer,
        radius_multiplier=multiplier,
        failure_probability=alpha,
        reward_std=0.0,
        environment=np.random.default_rng(6),
        mechanism=np.random.default_rng(7),
    )
    digits = np.rint(np.diff(result["group_regret"], prepend=0.0) / unit).astype(int)
    played = np.array([(digits >> (4 * i)) & 15 for i in range(silos)])
    assert len(np.unique(played)) > 10

    # The same draws again: for each synchronisation and silo the square matrix, then the vector.
    mechanism = np.random.default_rng(7)
    nodes: dict[tuple[int, int], Noise] = {}
    for k in range(1, horizon // batch_size + 1):
        for i in range(silos):
            square = mechanism.normal(0.0, noise_std, size=(d, d))
            nodes[i, k] = mechanism.normal(0.0, noise_std, size=d), (square + square.T) / 2

    def radius(t: int, k: int) -> float:
        growth = d * np.log(1 + t * silos / (d * regularizer)) + np.log(1 / alpha)
        return multiplier * float(np.sqrt(regularizer) * np.sqrt(d) + 0.5 * np.sqrt(growth))

    follow: dict[str, Any] = {
        "contexts": lambda t, i: tables[t - 1, i],
        "means": lambda t, i: means[i],
        "actions": played,
        "rewards": np.array([means[i][played[i]] for i in range(silos)]),
        "batch_size": batch_size,
        "protocol": "silo-ldp",
        "lazy": False,
        "regularizer": lambda k: regularizer,
        "radius": radius,
        "noise": lambda i, k: nodes[i, k],
    }
    checked = replay(**follow)
    assert checked.worst_gap < 1e-9
    assert np.allclose(checked.group_regret, result["group_regret"], rtol=1e-12)
    # The check can fail: without the privacy noise other actions would have been best.
    assert replay(**follow | {"protocol": "none"}).worst_gap > 1e-4
