"""Check the key `returning` of feducb, for persons who are users of several silos.

The oracle finds the worst pair of records independently and composes the silos' Gaussian mechanisms
with SciPy. It imports nothing from the package's accounting.
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


def make_system(**keys):
    """Return a system of feducb with these keys."""
    return fastfed.make_system("feducb", **{**SIZES, **BUDGET, **keys})


def node_mu(std):
    """Return the largest change of one node, in units of its noise, if a person's record is
    replaced."""

    def change(angles):
        """Return minus the squared norm, for unit features in a plane and extreme rewards."""
        first, second = ([math.cos(a), math.sin(a), 0.0] for a in angles)
        best = 0.0
        for reward in (0.0, 1.0, -1.0):
            for other_reward in (0.0, 1.0, -1.0):
                bias = reward * np.array(first) - other_reward * np.array(second)
                matrix_change = np.outer(first, first) - np.outer(second, second)
                off_diagonal, diagonal = (
                    matrix_change[np.tril_indices(3, -1)],
                    np.diag(matrix_change),
                )
                squares = (bias**2).sum() / std.bias**2 + (diagonal**2).sum() / std.diagonal**2
                best = max(best, squares + (off_diagonal**2).sum() / std.off_diagonal**2)
        return -best

    optimum = optimize.minimize(change, [0.3, 1.5], method="Nelder-Mead")
    edge_minimum = min(change([0.0, a]) for a in np.linspace(0, math.pi, 181))
    return math.sqrt(-min(optimum.fun, edge_minimum))


def epsilon_of(mu, delta):
    """Solve Theorem 8 of Balle and Wang (2018) for epsilon."""

    def excess_delta(epsilon):
        """Return delta at epsilon of Gaussian DP with mu, minus the allowed delta."""
        first_term = stats.norm.cdf(-epsilon / mu + mu / 2)
        return first_term - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2) - delta

    return optimize.brentq(excess_delta, 0.0, 200.0, xtol=1e-12)


@pytest.mark.parametrize("returning", [1, 2, 5, 6, "every-silo"])
def test_account_equals_the_composition_over_silos(returning):
    system = make_system(returning=returning)
    silos_per_user = 6 if returning == "every-silo" else returning
    # 8 batches: the first leaf is in nodes 1, 2, 4 and 8 of its silo's tree, with independent
    # noise.
    mu = node_mu(system.plan.noise_std) * math.sqrt(4 * silos_per_user)
    assert system.certificate.status == "proven"
    assert system.certificate.exact.epsilon == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-6)
    assert system.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)
    texts = [condition.text for condition in system.certificate.conditions]
    assert any(f"at most {silos_per_user} silos meet one user" in text for text in texts) is (
        silos_per_user > 1
    )


def test_a_private_schedule_is_counted_once_per_silo():
    keys = {"schedule": "private-determinant", "batch_size": None, "horizon": 32}
    one_silo, all_silos = make_system(**keys), make_system(**keys, returning="every-silo")
    ratio = all_silos.plan.noise_std.bias / one_silo.plan.noise_std.bias
    assert ratio == pytest.approx(math.sqrt(6), rel=1e-12)
    assert all_silos.plan.trigger.std[0] / one_silo.plan.trigger.std[0] == pytest.approx(
        math.sqrt(6)
    )
    assert all_silos.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)


def test_plans_with_a_wrong_number_of_silos_per_user_are_refused():
    plan = make_system(returning=4).plan
    verify(plan)
    for silos_met, message in ((5, "certified"), (3, "certified"), (7, "once each"), (0, ">= 1")):
        guarantee = msgspec.structs.replace(plan.privacy, silos_met=silos_met)
        with pytest.raises(InputError, match=message):
            verify(dataclasses.replace(plan, privacy=guarantee))
    # A millionth less noise exceeds the certified epsilon.
    less_noise = dataclasses.replace(plan, noise_std=plan.noise_std.times(1 - 1e-6))
    more_noise = dataclasses.replace(plan, noise_std=plan.noise_std.times(1 + 1e-6))
    assert accounted(less_noise)[0] > 1.0 > accounted(more_noise)[0]


def test_plans_whose_server_adds_the_noise_refuse_returning_users():
    """The reason: one noise hides the sum of a person's records at all silos."""
    sizes = {key: value for key, value in SIZES.items() if key != "schedule"}
    plan = fastfed.make_system("private-fedlinucb", **sizes, **BUDGET, protocol="central").plan
    guarantee = msgspec.structs.replace(plan.privacy, silos_met=2)
    with pytest.raises(InputError, match="once each"):
        verify(dataclasses.replace(plan, privacy=guarantee))


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
def test_errors_about_unsupported_combinations(keys, message):
    with pytest.raises(InputError, match=message):
        make_system(**keys)


def test_returning_is_refused_without_a_server_and_in_deployments():
    with pytest.raises(InputError, match="returning needs a server"):
        fastfed.make_system(
            "feducb-decentralized", silos=3, horizon=20, dimension=2, returning=2, **BUDGET
        )
    pytest.importorskip("cryptography")
    import federation

    from fastfed.deployment import plans

    with pytest.raises(InputError, match="a user of several silos"):
        plans.compile_plan(federation.spec("feducb", system={"batch_size": 5, "returning": 2}))


def test_simulations_use_the_larger_noise():
    environment = {"kind": "sphere", "dimension": 3, "actions": 4}
    keys = {"schedule": "fixed", "batch_size": 8, **BUDGET}
    curves = [
        {"label": str(count), "algorithm": "feducb", "returning": count, **keys} for count in (1, 6)
    ]
    results = fastfed.simulate(environment, curves=curves, silos=6, horizon=64, replicates=2)
    stds = [curve.certificate["noise_std"]["bias"] for curve in results.curves]
    assert stds[1] == pytest.approx(math.sqrt(6) * stds[0], rel=1e-9)
