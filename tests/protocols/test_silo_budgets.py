"""Budgets of their own for silos: noise, law and certificate of each."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed.deployment import codec
from fastfed.environments import Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import make_system

KEYS = {"silos": 3, "horizon": 60, "dimension": 3, "batch_size": 6, "delta": 1e-4}


def system(**keys):
    return make_system("private-fedlinucb", **{**KEYS, **keys})


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix"])
def test_each_silo_has_the_noise_of_its_budget(protocol):
    own = system(protocol=protocol, silo_epsilon=[0.5, 2.0, 0.5])
    alone = {e: system(protocol=protocol, epsilon=e) for e in (0.5, 2.0)}
    for silo, epsilon in enumerate((0.5, 2.0, 0.5)):
        std = own.plan.noise_std.times(own.plan.noise_scale[silo])
        assert std.parts == pytest.approx(alone[epsilon].plan.noise_std.parts)
    # The law adds up variances: one radius between those of the two budgets.
    bounds = [s.plan.radius.error_bound[-1] for s in (alone[2.0], own, alone[0.5])]
    assert bounds[0] < bounds[1] < bounds[2]
    shares = sum(alone[e].plan.noise_std.bias ** 2 for e in (0.5, 2.0, 0.5)) / 3
    expected = bounds[0] * math.sqrt(shares) / alone[2.0].plan.noise_std.bias
    assert bounds[1] == pytest.approx(expected)


def test_the_certificate_names_every_budget():
    certificate = system(silo_epsilon=[0.5, 2.0, 0.5]).certificate
    assert certificate.claimed.epsilon == 2.0
    assert certificate.exact.epsilon == pytest.approx(2.0)
    named = {s.model.split("; ")[-1]: s for s in certificate.also if "users of silo" in s.model}
    assert named["users of silos 0, 2"].exact.epsilon == pytest.approx(0.5)
    assert named["users of silo 1"].exact.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("release", ["tree", "toeplitz", "honaker"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_two_drivers_agree(release, lazy):
    curve = {
        "label": "own", "algorithm": "private-fedlinucb", "silo_epsilon": [5.0, 50.0, 500.0],
        "delta": 1e-3, "batch_size": 6, "release": release, "lazy": lazy,
    }  # fmt: skip
    e = make_experiment(
        name="own", environment=Sphere(dimension=3, actions=5), curves=[curve], horizon=40, silos=3
    )
    opened, plans = e.environment.open(0, 0, 3), [c.system.plan for c in e.curves]
    (one,) = compiled.run(opened, plans, e.checkpoints, record=True)
    (other,) = server.run_steps(opened, plans, e.checkpoints)
    assert np.array_equal(one.total, other.total)
    assert np.array_equal(one.actions, other.actions)


def test_a_list_of_budgets_is_no_sweep():
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
def test_bad_budgets(keys, message):
    with pytest.raises(InputError, match=message):
        system(**keys)


# -- feducb: each silo's own (epsilon, delta) ------------------------------------------------------

FEDUCB = {"silos": 3, "horizon": 60, "dimension": 3, "batch_size": 6, "schedule": "fixed"}
BUDGETS = ((0.5, 1e-4), (2.0, 1e-6), (0.5, 1e-4))
OWN = {"silo_epsilon": [e for e, _ in BUDGETS], "silo_delta": [d for _, d in BUDGETS]}


def feducb(**keys):
    return make_system("feducb", **{**FEDUCB, **keys})


@pytest.mark.parametrize("calibration", ["exact", "theorem"])
def test_each_silo_of_feducb_has_the_noise_of_its_budget(calibration):
    own = feducb(**OWN, calibration=calibration).plan
    alone = [feducb(epsilon=e, delta=d, calibration=calibration).plan for e, d in BUDGETS]
    for silo, plan in enumerate(alone):
        std = own.noise_std.times(own.noise_scale[silo])
        assert std.parts == pytest.approx(plan.noise_std.parts)
    assert min(own.noise_scale) == 1.0
    # Proposition 2 adds up what each silo's regularizer is bounded by.
    expected = np.mean([plan.regularizer for plan in alone], axis=0)
    np.testing.assert_allclose(own.regularizer, expected, rtol=1e-12)
    assert own.radius.anchor == pytest.approx(np.mean([plan.radius.anchor for plan in alone]))
    # sqrt(sum rho_max_i) + sqrt(sum kappa_i^2), where alone both are of M equal ones.
    for part in range(2):
        high = [3.0 * plan.radius.anchor for plan in alone]
        kappa = [
            plan.radius.offset[part] - math.sqrt(h) for plan, h in zip(alone, high, strict=True)
        ]
        sums = math.sqrt(np.mean(high)) + math.sqrt(np.mean(np.square(kappa)))
        assert own.radius.offset[part] == pytest.approx(sums)


def test_what_proposition_2_takes_of_sums_holds():
    """h' (sum H_i)^-1 h <= sum h_i' H_i^-1 h_i, for h = sum h_i and any H_i > 0."""
    r = np.random.default_rng(4)
    for _ in range(50):
        factors = r.normal(size=(4, 3, 3)) * r.choice([0.1, 1.0, 10.0], size=(4, 1, 1))
        matrices = factors @ factors.transpose(0, 2, 1) + 0.1 * np.eye(3)
        h = r.normal(size=(4, 3))
        whole = h.sum(axis=0) @ np.linalg.solve(matrices.sum(axis=0), h.sum(axis=0))
        each = sum(a @ np.linalg.solve(b, a) for a, b in zip(h, matrices, strict=True))
        assert whole <= each * (1 + 1e-9)


def test_the_certificate_of_feducb_names_every_budget_and_the_weakest():
    found = feducb(**OWN).certificate
    assert (found.claimed.epsilon, found.claimed.delta) == (2.0, 1e-4)
    # The least noise, that of silo 1, at the largest delta: less than 2.
    assert found.status == "proven" and 1.4 < found.exact.epsilon < 1.6
    named = {s.model.split("; ")[-1]: s for s in found.also if "users of silo" in s.model}
    for who, (epsilon, delta) in {
        "users of silos 0, 2": BUDGETS[0], "users of silo 1": BUDGETS[1]
    }.items():  # fmt: skip
        side = named[who]
        assert (side.claimed.epsilon, side.claimed.delta) == (epsilon, delta)
        assert side.exact.epsilon == pytest.approx(epsilon) and side.exact.delta == delta
        assert side.exact.epsilon <= epsilon and side.status == "proven"
    assert set(named) == {"users of silos 0, 2", "users of silo 1"}


@pytest.mark.parametrize("radius", ["proposition-2", "direct"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_two_drivers_of_feducb_agree(radius, lazy):
    curve = {
        "label": "own", "algorithm": "feducb", "silo_epsilon": [5.0, 50.0, 500.0],
        "silo_delta": [1e-3, 1e-3, 1e-5], "batch_size": 6, "schedule": "fixed", "lazy": lazy,
        "radius": radius,
    }  # fmt: skip
    e = make_experiment(
        name="own", environment=Sphere(dimension=3, actions=5), curves=[curve], horizon=40, silos=3
    )
    opened, plans = e.environment.open(0, 0, 3), [c.system.plan for c in e.curves]
    (one,) = compiled.run(opened, plans, e.checkpoints, record=True)
    (other,) = server.run_steps(opened, plans, e.checkpoints)
    assert np.array_equal(one.total, other.total)
    assert np.array_equal(one.actions, other.actions)


@pytest.mark.parametrize("keys", [{}, {"batch_size": "theorem"}, {"radius": "direct"}])
def test_equal_budgets_play_what_one_budget_plays(keys):
    world = {"kind": "sphere", "dimension": 3, "actions": 5}
    sizes = {"silos": 4, "horizon": 60, "replicates": 2, "schedule": "fixed", "batch_size": 6}
    one = fastfed.simulate(world, "feducb", **{**sizes, **keys}, epsilon=50.0, delta=1e-3)
    own = fastfed.simulate(
        world, "feducb", **{**sizes, **keys}, silo_epsilon=[50.0] * 4, silo_delta=[1e-3] * 4
    )
    assert len(own.curves) == 1  # no sweep
    np.testing.assert_array_equal(one.curves[0].group_regret, own.curves[0].group_regret)
    assert own.curves[0].certificate["exact"] == one.curves[0].certificate["exact"]


def test_a_plan_with_budgets_of_silos_travels():
    """Their numbers are stored, and are those of the plan that they are read into."""
    for keys in (OWN, {"epsilon": 1.0, "delta": 1e-4}):
        plan = feducb(**keys).plan
        numbers = codec.numbers_of(plan)
        assert codec.executed(plan, numbers) is plan
        assert ("privacy.delta_by_silo" in numbers) is ("silo_delta" in keys)


def test_a_silo_of_feducb_with_less_noise_is_refused():
    plan = feducb(**OWN).plan
    first, *others = plan.silo_noise
    weaker = dataclasses.replace(plan, silo_noise=(first / 1.5, *others))
    with pytest.raises(InputError, match="its certificate says"):
        fastfed.parties.Silo(weaker)
    stricter = msgspec.structs.replace(plan.privacy, delta_by_silo=(1e-4, 1e-9, 1e-4))
    with pytest.raises(InputError, match="its certificate says"):
        fastfed.parties.Silo(dataclasses.replace(plan, privacy=stricter))
    short = msgspec.structs.replace(plan.privacy, delta_by_silo=(1e-4, 1e-9))
    with pytest.raises(InputError, match="one number for each of 3 silos"):
        fastfed.parties.Silo(dataclasses.replace(plan, privacy=short))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"silo_epsilon": [1.0, 2.0], "delta": 1e-4}, "one number for each of 3 silos, got 2"),
        ({"silo_epsilon": [1.0] * 3, "silo_delta": [1e-4]}, "silo_delta must hold one number"),
        ({"silo_epsilon": [], "delta": 1e-4}, "silo_epsilon must hold one number .* got none"),
        ({"silo_epsilon": [1.0, 0.0, 1.0], "delta": 1e-4}, "silo_epsilon must be .*got 0.0"),
        ({"silo_epsilon": [1.0] * 3, "silo_delta": [0.1, 1.0, 0.1]}, "silo_delta must be .*got 1"),
        ({"silo_epsilon": [1.0] * 3, "epsilon": 1.0, "delta": 1e-4}, "either epsilon or silo_eps"),
        ({**OWN, "delta": 1e-4}, "either delta or silo_delta, not both"),
        ({"epsilon": 1.0, "silo_delta": [1e-4] * 3}, "silo_delta needs silo_epsilon"),
        ({"silo_epsilon": [1.0] * 3}, "delta is required"),
        ({**OWN, "schedule": "determinant", "batch_size": None}, 'needs schedule "fixed"'),
        ({**OWN, "schedule": "private-determinant", "batch_size": None}, 'needs schedule "fixed"'),
        ({**OWN, "private": False}, "silo_epsilon has no meaning where private = false"),
    ],
)  # fmt: skip
def test_bad_budgets_of_feducb(keys, message):
    with pytest.raises(InputError, match=message):
        feducb(**keys)


def test_without_a_server_all_silos_have_one_noise():
    with pytest.raises(InputError, match="silo_epsilon needs a server"):
        make_system("feducb-decentralized", **{**FEDUCB, **OWN}, graph="line")


def test_a_federation_of_feducb_has_budgets_of_single_silos():
    """Its plan file says them; a ledger is charged for the weakest silo, as it is elsewhere."""
    pytest.importorskip("cryptography")
    import federation

    from fastfed.deployment import plans

    spec = federation.spec("feducb")
    spec["system"] = {
        "algorithm": "feducb", "horizon": 20, "batch_size": 5,
        "silo_epsilon": [0.5, 1.0, 0.25], "silo_delta": [1e-6, 1e-6, 1e-7],
    }  # fmt: skip
    plan = plans.compile_plan(spec)
    assert len([s for s in plan.certificate.also if "users of silo" in s.model]) == 3
    assert plans.load(plan.as_bytes()).plan.silo_noise == plan.plan.silo_noise
    made = federation.Federation(plan)
    made.settle()
    for close in plan.document.calendar.closes:
        made.now = close - 1.0
        for name in plan.silos:
            decision = made.processes[name].decide(np.eye(2))
            made.processes[name].reward(decision.id, 0.3)
        made.now = float(close)
        made.settle()
    assert made.processes["hub"].party.status()["released"] == plan.plan.releases == 4
    for ledger in made.ledgers.values():
        assert 0.999 < ledger.epsilon("records") <= 1.0
