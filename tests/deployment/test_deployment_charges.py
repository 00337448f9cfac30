"""Compare the ledger's charges for the first releases of a plan with independent computations."""

import math

import federation
import msgspec
import numpy as np
import pytest
from scipy.linalg import solve_triangular

from fastfed.deployment import plans
from fastfed.deployment.charges import charge_of, totals_of_means
from fastfed.privacy.account import released
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.sensitivity import joint_sensitivity
from fastfed.protocols.release import prefix_noise

GROWING = {"batch_size": "growing", "batch_first": 2, "batch_ratio": 1.3}


def totals(plan):
    """Return (mu^2, probability) charged for the first k releases, k = 1..K."""
    charges = [charge_of(plan.executed, b"", "d", k) for k in range(1, plan.plan.releases + 1)]
    return np.cumsum([c.mu2 for c in charges]), np.cumsum([c.failure for c in charges])


def noise_rows(plan):
    """Return coefficients of independent draws in the noise of each prefix, (K, draws)."""
    source = prefix_noise(plan)
    if source is not None:
        rows = [source.terms(k) for k in range(1, plan.releases + 1)]
    else:
        # A p-sum tree: prefix k is the sum of the dyadic blocks of its binary digits.
        rows = []
        for k in range(1, plan.releases + 1):
            row, end = {}, k
            while end:
                size = end & -end
                row[end, size] = 1
                end -= size
            rows.append(row)
    draws = sorted({name for row in rows for name in row})
    return np.array([[float(row.get(name, 0)) for name in draws] for row in rows])


def squared_shifts(plan):
    """Return, for each k, the largest squared shift of the first k prefixes by one leaf.

    The shift is in units of their noise, a' (B_k B_k')^-1 a, where a says in which of the k
    prefixes the leaf is, and row i of B holds the weights of the noise in prefix i.
    """
    rows, collected = noise_rows(plan), []
    for k in range(1, plan.releases + 1):
        root = np.linalg.cholesky(rows[:k] @ rows[:k].T)
        shifts = solve_triangular(root, np.tri(k), lower=True)
        collected.append(float((shifts**2).sum(axis=0).max()))
    return np.array(collected)


RELEASES = {
    "tree": {"batches": 8, "system": {"batch_size": 5, "release": "tree"}},
    "honaker": {"batches": 8, "system": {"batch_size": 5, "release": "honaker"}},
    "toeplitz": {"batches": 8, "system": {"batch_size": 5, "release": "toeplitz"}},
    "buffered": {"batches": 8, "system": {"batch_size": 5, "release": "buffered"}},
    "buffered, 40": {"batches": 40, "system": {"batch_size": 5, "release": "buffered"}},
    "factorised": {"batches": 12, "system": {**GROWING, "release": "factorised"}},
    "factorised, equal": {"batches": 8, "system": {"batch_size": 5, "release": "factorised"}},
}


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("name", RELEASES)
def test_the_first_releases_are_charged_for_the_noise_that_runs(name, protocol):
    plan = federation.deployed(protocol, **RELEASES[name])
    (event,) = released(plan.plan)
    assert event.release == name.split(",")[0]
    bias, off = event.stds[:2]
    layout = "iid" if event.stds[1] == event.stds[2] else "goe2"
    unit = joint_sensitivity("replace", layout, bias_std=bias, cov_std=off)
    exact = unit**2 * squared_shifts(plan.plan)
    charged = totals(plan)[0]
    # The charge is never too small, and too large only by rounding errors.
    assert (charged >= exact).all(), charged / exact - 1.0
    assert (charged <= exact * (1.0 + 1e-7)).all(), charged / exact - 1.0
    assert charge_of(plan.executed, b"", "d", -1).mu2 == pytest.approx(charged[-1], rel=1e-12)


@pytest.mark.parametrize("name", RELEASES)
def test_a_late_record_costs_the_first_releases_no_more_than_is_charged(name):
    """A record moves from leaf j to leaf j'. The worst case is a replacement or two zero-outs."""
    plan = federation.deployed("silo-ldp", **RELEASES[name])
    rows, (event,) = noise_rows(plan.plan), released(plan.plan)
    layout = "iid" if event.stds[1] == event.stds[2] else "goe2"
    replace, zero = (
        joint_sensitivity(r, layout, bias_std=event.stds[0], cov_std=event.stds[1])
        for r in ("replace", "zero-out")
    )
    charged = totals(plan)[0]
    for k in range(1, plan.plan.releases + 1):
        root = np.linalg.cholesky(rows[:k] @ rows[:k].T)
        encoder = solve_triangular(root, np.tri(k), lower=True)
        products = encoder.T @ encoder
        norms = np.sqrt(np.diag(products))
        # <z, z'> lies between -(replace^2 - 2 zero^2) / 2 and zero^2.
        for inner in ((2.0 * zero**2 - replace**2) / 2.0, zero**2):
            moved = np.add.outer(norms**2, norms**2) * zero**2 - 2.0 * products * inner
            np.fill_diagonal(moved, 0.0)
            assert moved.max() <= charged[k - 1] * (1.0 + 1e-9)


@pytest.mark.parametrize("protocol", ["secure-sum", "shuffle-vector", "secure-sum masks"])
def test_sums_that_were_proven_together_are_paid_for_by_the_first_release(protocol):
    name = {"secure-sum masks": federation.MASKS}.get(protocol, protocol)
    plan = federation.deployed(name, batches=4)
    charged, failure = totals(plan)
    assert (charged == charged[0]).all() and (failure == failure[0]).all()
    epsilon = gaussian_epsilon(math.sqrt(charged[0]), 1e-6 - failure[0])
    assert epsilon >= plan.certificate.exact.epsilon * (1.0 - 1e-9)


ROBIN = {
    "algorithm": "robin", "horizon": 40, "epsilon": 1.0, "delta": 1e-6, "initial_phases": 2,
    "diversity": 0.05, "concentration_multiplier": 1e-3,
}  # fmt: skip


def test_the_first_private_means_are_charged_no_less_than_their_exact_composition():
    plan = plans.compile_plan(federation.spec() | {"system": ROBIN})
    (event,) = released(plan.executed)
    charged, failure = totals(plan)
    for k in range(1, plan.plan.releases + 1):
        parts = msgspec.structs.replace(event._first, releases=k).parts()
        for delta in (1e-6, 1e-4):
            epsilon = gaussian_epsilon(math.sqrt(charged[k - 1]), delta - failure[k - 1])
            # The certificate's bound is at most a relative 10^-4 above the exact value.
            assert epsilon >= composed_epsilon(parts, delta) * (1.0 - 2e-4)


def test_a_mean_that_is_dearer_than_the_first_is_charged():
    plan = plans.compile_plan(federation.spec() | {"system": ROBIN})
    (event,) = released(plan.executed)
    dear = msgspec.structs.replace(
        event.means[-1], epsilon_coordinate=2.0 * event.means[-1].epsilon_coordinate
    )
    dearer = msgspec.structs.replace(event, means=(*event.means[:-1], dear))
    assert totals_of_means(dearer)[-1][0] > totals_of_means(event)[-1][0]


@pytest.mark.parametrize("algorithm", ["fed-svt", "fed-dp-ope-stoch"])
def test_a_loss_of_experts_is_paid_for_by_the_first_release(algorithm):
    import test_deployment_experts
    import test_deployment_svt

    modules = {"fed-svt": test_deployment_svt, "fed-dp-ope-stoch": test_deployment_experts}
    plan = modules[algorithm].plan_of()
    charged, failure = totals(plan)
    assert (charged == charged[0]).all() and (failure == failure[0]).all()
    epsilon = gaussian_epsilon(math.sqrt(charged[0]), plan.certificate.exact.delta - failure[0])
    assert epsilon >= plan.certificate.exact.epsilon * (1.0 - 1e-9)
    whole_plan = charge_of(plan.executed, b"", "d", -1)
    assert (whole_plan.mu2, whole_plan.failure) == (charged[0], failure[0])
