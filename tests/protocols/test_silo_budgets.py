"""Check that silos may have different budgets: each gets its own noise and certificate."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.deployment import codec
from fastfed.environments import Sphere
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.randomizer import SumRandomizer
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import make_system

KEYS = {"silos": 3, "horizon": 60, "dimension": 3, "batch_size": 6, "delta": 1e-4}


def system(**keys):
    """Return a private FedLinUCB system; keywords add to KEYS."""
    return make_system("private-fedlinucb", **{**KEYS, **keys})


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix"])
def test_each_silo_has_the_noise_of_its_budget(protocol):
    # The default saturation depends on the noise, and a factor on the saturation.
    keys = {"protocol": protocol, "saturation": 0.0}
    mixed = system(**keys, silo_epsilon=[0.5, 2.0, 0.5])
    single_budget = {
        epsilon_of_silo: system(**keys, epsilon=epsilon_of_silo) for epsilon_of_silo in (0.5, 2.0)
    }
    for silo, epsilon in enumerate((0.5, 2.0, 0.5)):
        std = mixed.plan.noise_std.times(mixed.plan.noise_scale[silo])
        assert std.parts == pytest.approx(single_budget[epsilon].plan.noise_std.parts)
    # Variances add, so the common radius lies between the radii of the two budgets.
    bounds = [
        each_system.plan.radius.error_bound[-1]
        for each_system in (single_budget[2.0], mixed, single_budget[0.5])
    ]
    assert bounds[0] < bounds[1] < bounds[2]
    mean_variance = (
        sum(
            single_budget[epsilon_of_silo].plan.noise_std.bias ** 2
            for epsilon_of_silo in (0.5, 2.0, 0.5)
        )
        / 3
    )
    expected = bounds[0] * math.sqrt(mean_variance) / single_budget[2.0].plan.noise_std.bias
    assert bounds[1] == pytest.approx(expected)


def test_certificate_names_every_budget():
    certificate = system(silo_epsilon=[0.5, 2.0, 0.5]).certificate
    assert certificate.claimed.epsilon == 2.0
    assert certificate.exact.epsilon == pytest.approx(2.0)
    certificates_by_users = {
        statement.model.split("; ")[-1]: statement
        for statement in certificate.also
        if "users of silo" in statement.model
    }
    assert certificates_by_users["users of silos 0, 2"].exact.epsilon == pytest.approx(0.5)
    assert certificates_by_users["users of silo 1"].exact.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("release", ["tree", "toeplitz", "honaker"])
@pytest.mark.parametrize("lazy", [True, False])
def test_drivers_agree_for_different_budgets(release, lazy):
    curve = {
        "label": "own", "algorithm": "private-fedlinucb", "silo_epsilon": [5.0, 50.0, 500.0],
        "delta": 1e-3, "batch_size": 6, "release": release, "lazy": lazy,
    }  # fmt: skip
    experiment = make_experiment(
        name="own", environment=Sphere(dimension=3, actions=5), curves=[curve], horizon=40, silos=3
    )
    problem, plans = (
        experiment.environment.open(0, 0, 3),
        [each_curve.system.plan for each_curve in experiment.curves],
    )
    (compiled_outcome,) = compiled.run(problem, plans, experiment.checkpoints, record=True)
    (step_outcome,) = server.run_steps(problem, plans, experiment.checkpoints)
    assert np.array_equal(compiled_outcome.total, step_outcome.total)
    assert np.array_equal(compiled_outcome.actions, step_outcome.actions)


def test_a_list_of_budgets_makes_one_curve_and_no_sweep():
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 3}, "private-fedlinucb", silos=2, horizon=20,
        batch_size=5, silo_epsilon=[1.0, 3.0], delta=1e-3,
    )  # fmt: skip
    assert len(results.curves) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"silo_epsilon": [1.0, 2.0]}, "one number for each of 3 silos, got 2"),
        ({"silo_epsilon": [1.0, 2.0, 0.0]}, "silo_epsilon must be > 0"),
        ({"silo_epsilon": [1.0] * 3, "epsilon": 1.0}, "either epsilon or silo_epsilon"),
        ({"silo_epsilon": [1.0] * 3, "protocol": "central"}, "in which each silo adds noise"),
    ],
)
def test_bad_budgets_are_refused(keys, message):
    with pytest.raises(InputError, match=message):
        system(**keys)


# -- feducb: one (epsilon, delta) per silo ---------------------------------------------------------

FEDUCB = {"silos": 3, "horizon": 60, "dimension": 3, "batch_size": 6, "schedule": "fixed"}
BUDGETS = ((0.5, 1e-4), (2.0, 1e-6), (0.5, 1e-4))
#: Keys of a system whose silos have different budgets.
MIXED = {"silo_epsilon": [e for e, _ in BUDGETS], "silo_delta": [d for _, d in BUDGETS]}


def feducb(**keys):
    """Return a system of feducb with these keys."""
    return make_system("feducb", **{**FEDUCB, **keys})


@pytest.mark.parametrize("calibration", ["exact", "theorem"])
def test_each_silo_of_feducb_has_the_noise_of_its_budget(calibration):
    mixed = feducb(**MIXED, calibration=calibration).plan
    single_budget = [
        feducb(epsilon=epsilon, delta=delta, calibration=calibration).plan
        for epsilon, delta in BUDGETS
    ]
    for silo, plan in enumerate(single_budget):
        std = mixed.noise_std.times(mixed.noise_scale[silo])
        assert std.parts == pytest.approx(plan.noise_std.parts)
    assert min(mixed.noise_scale) == 1.0
    # Proposition 2 adds the bounds on the regularizers of all silos.
    expected = np.mean([plan.regularizer for plan in single_budget], axis=0)
    np.testing.assert_allclose(mixed.regularizer, expected, rtol=1e-12)
    assert mixed.radius.anchor == pytest.approx(
        np.mean([plan.radius.anchor for plan in single_budget])
    )
    # sqrt(sum rho_max_i) + sqrt(sum kappa_i^2); with one budget all M terms are equal.
    for part in range(2):
        high = [3.0 * plan.radius.anchor for plan in single_budget]
        kappa = [
            plan.radius.offset[part] - math.sqrt(h)
            for plan, h in zip(single_budget, high, strict=True)
        ]
        sums = math.sqrt(np.mean(high)) + math.sqrt(np.mean(np.square(kappa)))
        assert mixed.radius.offset[part] == pytest.approx(sums)


def test_inequality_used_by_proposition_2_holds():
    """Check h' (sum H_i)^-1 h <= sum h_i' H_i^-1 h_i, for h = sum h_i and any H_i > 0."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        factors = rng.normal(size=(4, 3, 3)) * rng.choice([0.1, 1.0, 10.0], size=(4, 1, 1))
        matrices = factors @ factors.transpose(0, 2, 1) + 0.1 * np.eye(3)
        h = rng.normal(size=(4, 3))
        left_side = h.sum(axis=0) @ np.linalg.solve(matrices.sum(axis=0), h.sum(axis=0))
        right_side = sum(a @ np.linalg.solve(b, a) for a, b in zip(h, matrices, strict=True))
        assert left_side <= right_side * (1 + 1e-9)


def test_certificate_of_feducb_names_every_budget_and_the_weakest():
    certificate = feducb(**MIXED).certificate
    assert (certificate.claimed.epsilon, certificate.claimed.delta) == (2.0, 1e-4)
    # The exact account takes the least noise (silo 1) at the largest delta, so epsilon is below 2.
    assert certificate.status == "proven" and 1.4 < certificate.exact.epsilon < 1.6
    certificates_by_users = {
        statement.model.split("; ")[-1]: statement
        for statement in certificate.also
        if "users of silo" in statement.model
    }
    for users, (epsilon, delta) in {
        "users of silos 0, 2": BUDGETS[0], "users of silo 1": BUDGETS[1]
    }.items():  # fmt: skip
        certificate_of_users = certificates_by_users[users]
        assert (certificate_of_users.claimed.epsilon, certificate_of_users.claimed.delta) == (
            epsilon,
            delta,
        )
        assert (
            certificate_of_users.exact.epsilon == pytest.approx(epsilon)
            and certificate_of_users.exact.delta == delta
        )
        assert (
            certificate_of_users.exact.epsilon <= epsilon
            and certificate_of_users.status == "proven"
        )
    assert set(certificates_by_users) == {"users of silos 0, 2", "users of silo 1"}


@pytest.mark.parametrize("radius", ["proposition-2", "direct"])
@pytest.mark.parametrize("lazy", [True, False])
def test_drivers_agree_for_feducb_with_different_budgets(radius, lazy):
    curve = {
        "label": "own", "algorithm": "feducb", "silo_epsilon": [5.0, 50.0, 500.0],
        "silo_delta": [1e-3, 1e-3, 1e-5], "batch_size": 6, "schedule": "fixed", "lazy": lazy,
        "radius": radius,
    }  # fmt: skip
    experiment = make_experiment(
        name="own", environment=Sphere(dimension=3, actions=5), curves=[curve], horizon=40, silos=3
    )
    environment, plans = (
        experiment.environment.open(0, 0, 3),
        [curve_.system.plan for curve_ in experiment.curves],
    )
    (compiled_outcome,) = compiled.run(environment, plans, experiment.checkpoints, record=True)
    (step_outcome,) = server.run_steps(environment, plans, experiment.checkpoints)
    assert np.array_equal(compiled_outcome.total, step_outcome.total)
    assert np.array_equal(compiled_outcome.actions, step_outcome.actions)


@pytest.mark.parametrize("keys", [{}, {"batch_size": "theorem"}, {"radius": "direct"}])
def test_equal_budgets_give_the_results_of_one_budget(keys):
    environment = {"kind": "sphere", "dimension": 3, "actions": 5}
    sizes = {"silos": 4, "horizon": 60, "replicates": 2, "schedule": "fixed", "batch_size": 6}
    one_budget = fastfed.simulate(
        environment, "feducb", **{**sizes, **keys}, epsilon=50.0, delta=1e-3
    )
    equal_budgets = fastfed.simulate(
        environment, "feducb", **{**sizes, **keys}, silo_epsilon=[50.0] * 4, silo_delta=[1e-3] * 4
    )
    assert len(equal_budgets.curves) == 1  # no sweep
    np.testing.assert_array_equal(
        one_budget.curves[0].group_regret, equal_budgets.curves[0].group_regret
    )
    assert equal_budgets.curves[0].certificate["exact"] == one_budget.curves[0].certificate["exact"]


def test_a_plan_with_budgets_of_silos_can_be_stored_and_read():
    """The stored numbers include every delta and lead back to the same plan."""
    for keys in (MIXED, {"epsilon": 1.0, "delta": 1e-4}):
        plan = feducb(**keys).plan
        numbers = codec.numbers_of(plan)
        assert codec.executed(plan, numbers) is plan
        assert ("privacy.delta_by_silo" in numbers) is ("silo_delta" in keys)


def test_a_silo_of_feducb_with_less_noise_is_refused():
    plan = feducb(**MIXED).plan
    first_noise, *other_noise = plan.silo_noise
    plan_with_less_noise = dataclasses.replace(plan, silo_noise=(first_noise / 1.5, *other_noise))
    with pytest.raises(InputError, match="its certificate says"):
        fastfed.parties.Silo(plan_with_less_noise)
    privacy_with_small_delta = msgspec.structs.replace(
        plan.privacy, delta_by_silo=(1e-4, 1e-9, 1e-4)
    )
    with pytest.raises(InputError, match="its certificate says"):
        fastfed.parties.Silo(dataclasses.replace(plan, privacy=privacy_with_small_delta))
    privacy_of_two_silos = msgspec.structs.replace(plan.privacy, delta_by_silo=(1e-4, 1e-9))
    with pytest.raises(InputError, match="one number for each of 3 silos"):
        fastfed.parties.Silo(dataclasses.replace(plan, privacy=privacy_of_two_silos))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"silo_epsilon": [1.0, 2.0], "delta": 1e-4}, "one number for each of 3 silos, got 2"),
        ({"silo_epsilon": [1.0] * 3, "silo_delta": [1e-4]}, "silo_delta must hold one number"),
        ({"silo_epsilon": [], "delta": 1e-4}, "silo_epsilon must hold one number .* got none"),
        ({"silo_epsilon": [1.0, 0.0, 1.0], "delta": 1e-4}, "silo_epsilon must be .*got 0.0"),
        ({"silo_epsilon": [1.0] * 3, "silo_delta": [0.1, 1.0, 0.1]}, "silo_delta must be .*got 1"),
        ({"silo_epsilon": [1.0] * 3, "epsilon": 1.0, "delta": 1e-4}, "either epsilon or silo_eps"),
        ({**MIXED, "delta": 1e-4}, "either delta or silo_delta, not both"),
        ({"epsilon": 1.0, "silo_delta": [1e-4] * 3}, "silo_delta needs silo_epsilon"),
        ({"silo_epsilon": [1.0] * 3}, "delta is required"),
        ({**MIXED, "schedule": "determinant", "batch_size": None}, 'needs schedule "fixed"'),
        (
            {**MIXED, "schedule": "private-determinant", "batch_size": None},
            'needs schedule "fixed"',
        ),
        ({**MIXED, "private": False}, "silo_epsilon has no meaning where private = false"),
    ],
)  # fmt: skip
def test_bad_budgets_of_feducb_are_refused(keys, message):
    with pytest.raises(InputError, match=message):
        feducb(**keys)


def test_silo_budgets_without_a_server_are_refused():
    with pytest.raises(InputError, match="silo_epsilon needs a server"):
        make_system("feducb-decentralized", **{**FEDUCB, **MIXED}, graph="line")


def test_a_deployed_federation_of_feducb_may_have_silo_budgets():
    """The plan file contains the budgets; each ledger is charged for the weakest silo."""
    pytest.importorskip("cryptography")
    import federation

    from fastfed.deployment import plans

    spec = federation.spec("feducb")
    spec["system"] = {
        "algorithm": "feducb", "horizon": 20, "batch_size": 5,
        "silo_epsilon": [0.5, 1.0, 0.25], "silo_delta": [1e-6, 1e-6, 1e-7],
    }  # fmt: skip
    plan = plans.compile_plan(spec)
    assert (
        len(
            [statement for statement in plan.certificate.also if "users of silo" in statement.model]
        )
        == 3
    )
    assert plans.load(plan.as_bytes()).plan.silo_noise == plan.plan.silo_noise
    deployment = federation.Federation(plan)
    deployment.settle()
    for close in plan.document.calendar.closes:
        deployment.now = close - 1.0
        for name in plan.silos:
            decision = deployment.processes[name].decide(np.eye(2))
            deployment.processes[name].reward(decision.id, 0.3)
        deployment.now = float(close)
        deployment.settle()
    assert deployment.processes["hub"].party.status()["released"] == plan.plan.releases == 4
    for ledger in deployment.ledgers.values():
        assert 0.999 < ledger.epsilon("records") <= 1.0


def test_a_silo_without_noise_refuses_a_plan_that_claims_privacy():
    """Use a protocol whose account reads the noise elsewhere; the silo would send raw sums."""
    plan = make_system(
        "private-fedlinucb", protocol="silo-ldp", silos=2, horizon=20, dimension=2, batch_size=5,
        epsilon=1.0, delta=1e-6,
    ).plan  # fmt: skip
    silent = dataclasses.replace(plan, noise_std=NoiseStd())
    with pytest.raises(InputError, match="silo 1 must add noise under silo-ldp"):
        SumRandomizer(silent, 1, SeededNoise(0, 0))
    SumRandomizer(dataclasses.replace(silent, privacy=None), 1, SeededNoise(0, 0))
