"""`returning` of feducb: one person met by several silos, by an account of its own.

The oracle finds the worst pair of records by itself and composes the silos' Gaussian mechanisms
with SciPy; it imports nothing of the package's accounting.
"""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from scipy import optimize, stats

import fastfed
from fastfed import InputError
from fastfed.privacy.account import accounted, verify

SIZES = {"silos": 6, "horizon": 64, "dimension": 3, "batch_size": 8, "schedule": "fixed"}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def system(**keys):
    return fastfed.make_system("feducb", **{**SIZES, **BUDGET, **keys})


def node_mu(std):
    """Largest change of one node, in units of its noise, when a person's record is replaced."""

    def change(angles):
        """Minus the squared norm; unit features in a plane, rewards at their ends."""
        first, second = ([math.cos(a), math.sin(a), 0.0] for a in angles)
        best = 0.0
        for y in (0.0, 1.0, -1.0):
            for z in (0.0, 1.0, -1.0):
                bias = y * np.array(first) - z * np.array(second)
                moved = np.outer(first, first) - np.outer(second, second)
                off, on = moved[np.tril_indices(3, -1)], np.diag(moved)
                squares = (bias**2).sum() / std.bias**2 + (on**2).sum() / std.diagonal**2
                best = max(best, squares + (off**2).sum() / std.off_diagonal**2)
        return -best

    found = optimize.minimize(change, [0.3, 1.5], method="Nelder-Mead")
    corners = min(change([0.0, a]) for a in np.linspace(0, math.pi, 181))
    return math.sqrt(-min(found.fun, corners))


def epsilon_of(mu, delta):
    """Balle and Wang 2018, Theorem 8, solved for epsilon."""

    def over(epsilon):
        low = stats.norm.cdf(-epsilon / mu + mu / 2)
        return low - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2) - delta

    return optimize.brentq(over, 0.0, 200.0, xtol=1e-12)


@pytest.mark.parametrize("returning", [1, 2, 5, 6, "every-silo"])
def test_the_account_is_that_of_the_composition_over_silos(returning):
    made = system(returning=returning)
    met = 6 if returning == "every-silo" else returning
    # 8 batches: the first leaf is in nodes 1, 2, 4 and 8 of its silo's tree, with noise of its own.
    mu = node_mu(made.plan.noise_std) * math.sqrt(4 * met)
    assert made.certificate.status == "proven"
    assert made.certificate.exact.epsilon == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-6)
    assert made.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)
    texts = [c.text for c in made.certificate.conditions]
    assert any(f"at most {met} silos meet one user" in text for text in texts) is (met > 1)


def test_a_private_schedule_counts_once_for_each_silo():
    keys = {"schedule": "private-determinant", "batch_size": None, "horizon": 32}
    one, all_ = system(**keys), system(**keys, returning="every-silo")
    ratio = all_.plan.noise_std.bias / one.plan.noise_std.bias
    assert ratio == pytest.approx(math.sqrt(6), rel=1e-12)
    assert all_.plan.trigger.std[0] / one.plan.trigger.std[0] == pytest.approx(math.sqrt(6))
    assert all_.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)


def test_a_plan_that_claims_fewer_silos_than_it_has_noise_for_is_refused():
    plan = system(returning=4).plan
    verify(plan)
    for met, message in ((5, "certified"), (3, "certified"), (7, "once each"), (0, ">= 1")):
        claim = msgspec.structs.replace(plan.privacy, silos_met=met)
        with pytest.raises(InputError, match=message):
            verify(dataclasses.replace(plan, privacy=claim))
    # At the edge: a millionth less noise is more than the claim.
    less = dataclasses.replace(plan, noise_std=plan.noise_std.times(1 - 1e-6))
    more = dataclasses.replace(plan, noise_std=plan.noise_std.times(1 + 1e-6))
    assert accounted(less)[0] > 1.0 > accounted(more)[0]


def test_a_server_that_adds_the_noise_has_no_such_account():
    """One noise for all silos: what a person adds at each of them adds up under it."""
    sizes = {k: v for k, v in SIZES.items() if k != "schedule"}
    plan = fastfed.make_system("private-fedlinucb", **sizes, **BUDGET, protocol="central").plan
    claim = msgspec.structs.replace(plan.privacy, silos_met=2)
    with pytest.raises(InputError, match="once each"):
        verify(dataclasses.replace(plan, privacy=claim))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"returning": 7}, "returning must be an integer >= 1 and <= 6, got 7"),
        ({"returning": 0}, "returning must be an integer >= 1"),
        ({"returning": "every-batch"}, 'returning must be one of "every-silo"'),
        ({"returning": 2, "calibration": "theorem"}, 'needs calibration "exact"'),
        ({"returning": 2, "epsilon": None, "silo_epsilon": [1.0] * 6}, "one budget for all silos"),
        ({"returning": 2, "private": False, "epsilon": None, "delta": None}, "private = false"),
    ],
)
def test_what_has_no_account_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        system(**keys)


def test_without_a_server_and_in_deployments_it_is_refused():
    with pytest.raises(InputError, match="returning needs a server"):
        fastfed.make_system(
            "feducb-decentralized", silos=3, horizon=20, dimension=2, returning=2, **BUDGET
        )
    pytest.importorskip("cryptography")
    import federation

    from fastfed.deployment import plans

    with pytest.raises(InputError, match="a user of several silos"):
        plans.compile_plan(federation.spec("feducb", system={"batch_size": 5, "returning": 2}))


def test_a_simulation_plays_with_the_larger_noise():
    world = {"kind": "sphere", "dimension": 3, "actions": 4}
    keys = {"schedule": "fixed", "batch_size": 8, **BUDGET}
    curves = [{"label": str(n), "algorithm": "feducb", "returning": n, **keys} for n in (1, 6)]
    found = fastfed.simulate(world, curves=curves, silos=6, horizon=64, replicates=2)
    stds = [curve.certificate["noise_std"]["bias"] for curve in found.curves]
    assert stds[1] == pytest.approx(math.sqrt(6) * stds[0], rel=1e-9)
