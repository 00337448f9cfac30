"""The Gaussian tree's calibration against an accounting library that shares no code with it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastfed.privacy import Budget, calibrate_tree, epsilon_of, user_sensitivity
from fastfed.privacy.releases.gaussian_release import calibrate_release
from fastfed.privacy.releases.prefix_sums import (
    honaker_coefficients,
    node_count,
    node_number,
    toeplitz_factor,
)

REL = 1e-6


def test_epsilon_of_two_hundred_trees_agrees_with_dp_accounting() -> None:
    """Compute dp-accounting's delta at fastfed's epsilon, for one Gaussian of kappa nodes."""
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    draw = np.random.default_rng(2024)
    for _ in range(200):
        epsilon = float(10 ** draw.uniform(-1.5, 1.2))
        delta = float(10 ** draw.uniform(-9, -1))
        releases = int(10 ** draw.uniform(0, 5))
        layout = str(draw.choice(["iid", "goe1", "goe2"]))
        relation = str(draw.choice(["replace", "zero-out"]))
        tree = calibrate_tree(Budget(epsilon, delta, relation), releases, layout=layout)
        kappa = len(bin(releases)) - 2
        joint = {
            ("replace", "goe2"): 2.0,
            ("replace", "iid"): math.sqrt(4.5),
            ("replace", "goe1"): math.sqrt(4.5),
            ("zero-out", "goe2"): math.sqrt(1.5),
            ("zero-out", "iid"): math.sqrt(2.0),
            ("zero-out", "goe1"): math.sqrt(2.0),
        }[relation, layout]
        library_loss = mechanism.GaussianPrivacyLoss(
            standard_deviation=tree.noise_std / (math.sqrt(kappa) * joint)
        )
        actual = library_loss.get_delta_for_epsilon(epsilon)
        assert actual == pytest.approx(delta, rel=REL), (epsilon, delta, releases, layout)
        assert tree.exact() == pytest.approx(epsilon, rel=REL)


@pytest.mark.parametrize("name", ["honaker", "toeplitz"])
def test_epsilon_of_other_releases_agrees_with_dp_accounting(name: str) -> None:
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    draw = np.random.default_rng(5)
    for _ in range(20):
        epsilon, delta = float(10 ** draw.uniform(-1, 1)), float(10 ** draw.uniform(-8, -1))
        releases = int(draw.integers(1, 300))
        release = calibrate_release(name, Budget(epsilon, delta), releases)
        if name == "honaker":
            rows = np.zeros((releases, node_count(releases)))
            for k in range(1, releases + 1):
                for node, c in honaker_coefficients(k).items():
                    rows[k - 1, node_number(*node) - 1] = c
            # |L^-1 a|^2 of every leaf, Sigma = L L'.
            white = np.linalg.solve(np.linalg.cholesky(rows @ rows.T), np.tri(releases))
            squared = float((white**2).sum(axis=0).max())
        else:
            squared = float((toeplitz_factor(releases)[:, 0] ** 2).sum())
        library_loss = mechanism.GaussianPrivacyLoss(
            standard_deviation=release.noise_std / (math.sqrt(squared) * 2.0)
        )
        assert library_loss.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=REL)


def test_epsilon_of_the_published_noise_agrees_with_dp_accounting() -> None:
    """Compute dp-accounting's epsilon of published noise, which often misses the budget."""
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    for calibration, layout in (("theorem", "iid"), ("published-code", "goe1")):
        for epsilon, delta in ((0.2, 0.01), (1.0, 0.01), (5.0, 0.1), (5.0, 1e-3)):
            tree = calibrate_tree(Budget(epsilon, delta), 400, calibration)
            mu = 3.0 * user_sensitivity("replace", layout) / tree.noise_std
            library_loss = mechanism.GaussianPrivacyLoss(standard_deviation=1.0 / mu)
            actual = tree.exact()
            assert actual == pytest.approx(epsilon_of(mu, delta), rel=1e-12)
            assert library_loss.get_delta_for_epsilon(actual) == pytest.approx(delta, rel=REL)
