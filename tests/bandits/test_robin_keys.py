"""Tests of the keys of robin: errors, certificates, and runs together with other curves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracle import huang_2023 as oracle
from test_run import assert_same_results, check_resumed

import fastfed
from fastfed import InputError
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import System
from fastfed.cli import cli
from fastfed.privacy.certificate import SIMULATION_CAVEAT, Certificate, ClaimCondition
from fastfed.protocols.serverless import PhasePlan

SETTING = ProblemSpec(silos=40, horizon=100, dimension=3)  # six phases
REQUIRED = {"epsilon": 1.0, "delta": 0.01, "diversity": 0.2, "initial_phases": 2}


def make(problem: ProblemSpec = SETTING, **keys: Any) -> System:
    """Make the system with the required keys; a key with value ``...`` is left out."""
    all_keys = {**REQUIRED, **keys}
    return ALGORITHMS["robin"].make(
        {key: value for key, value in all_keys.items() if value is not ...}, problem
    )


def certificate(problem: ProblemSpec = SETTING, **keys: Any) -> Certificate:
    """Return the certificate of the system with these keys."""
    return make(problem, **keys).certificate


def plan_of(problem: ProblemSpec = SETTING, **keys: Any) -> PhasePlan:
    """Return the plan of the system with these keys."""
    plan = make(problem, **keys).plan
    assert isinstance(plan, PhasePlan)
    return plan


# -- Errors ----------------------------------------------------------------------------------------

NOT_PRIVATE = {"private": False, "epsilon": ..., "delta": ...}
BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": ...}, "epsilon is required, or private = false"),
    ({"delta": ...}, "delta is required, or private = false"),
    ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
    ({"epsilon": -1.0}, "epsilon must be > 0, got -1.0"),
    ({"epsilon": math.inf}, "epsilon must be .*got inf"),
    ({"epsilon": "x"}, "epsilon must be a number, got '"),
    ({"delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
    ({"delta": 1.0}, "delta must be > 0 and < 1, got 1.0"),
    ({"diversity": ...}, r"diversity \(lambda_0\) is required"),
    ({"diversity": 0.0}, "diversity must be > 0, got 0.0"),
    ({"diversity": math.nan}, "diversity must be .*got nan"),
    ({"margin": -2.0}, "margin must be > 0, got -2.0"),
    ({"initial_phases": "printed"}, 'initial_phases "printed" needs .*margin'),
    ({"initial_phases": ...}, 'initial_phases "printed" needs .*margin'),
    (
        {"initial_phases": "printed", "diversity": ..., "margin": 1.0},
        'initial_phases "printed" needs diversity',
    ),
    ({**NOT_PRIVATE, "initial_phases": "printed"}, 'initial_phases "printed" needs .*margin'),
    ({"initial_phases": 0}, "initial_phases must be an integer >= 1, got 0"),
    ({"initial_phases": -3}, "initial_phases must be an integer >= 1, got -3"),
    ({"initial_phases": "many"}, "initial_phases must be one of \"printed\", got 'many'"),
    ({"initial_phases": 2.5}, "initial_phases must be an integer or a text, got 2.5"),
    ({"initial_phases": True}, "initial_phases must be an integer or a text, got True"),
    ({"calibration": "theorem"}, "calibration must be one of .*\"printed\".*got 'theorem'"),
    ({"concentration_multiplier": 0.0}, "concentration_multiplier must be > 0, got 0.0"),
    ({"concentration_multiplier": -0.5}, "concentration_multiplier must be > 0, got -0.5"),
    ({"private": False}, "epsilon has no meaning where private = false"),
    ({**NOT_PRIVATE, "epsilon": 1.0}, "epsilon has no meaning where private = false"),
    ({**NOT_PRIVATE, "delta": 0.1}, "delta has no meaning where private = false"),
    ({**NOT_PRIVATE, "memory": True}, "memory needs private = true: it depends on the budget"),
    ({"memory": "yes"}, "memory must be true or false, got 'yes'"),
    ({"batch_size": 10}, "batch_size has no meaning for robin: phases double in length"),
    ({"batch_size": "theorem"}, "batch_size has no meaning for robin"),
    ({"lazy": True}, "lazy has no meaning for robin"),
    ({"radius": "nice"}, "radius must be one of .*got 'nice'"),
    ({"radius_multiplier": 0.0}, "radius_multiplier must be > 0, got 0.0"),
    ({"failure_probability": 1.0}, "failure_probability must be .*got 1.0"),
    ({"protocol": "central"}, 'unknown key "protocol" for robin'),
    ({"epsilom": 1.0}, 'unknown key "epsilom" for robin'),
]


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS)
def test_errors_about_bad_keys_are_one_sentence(keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(**keys)
    assert "\n" not in str(error.value)


def test_errors_of_a_spec_name_the_curve():
    with pytest.raises(InputError, match=r'lambda_0\) is required.*\(curve "mine"\)'):
        fastfed.simulate(
            {"kind": "sphere", "dimension": 2, "actions": 3},
            horizon=9,
            silos=2,
            curves=[{"label": "mine", "algorithm": "robin"} | REQUIRED | {"diversity": None}],
        )


@pytest.mark.parametrize("keys", [{"concentration_multiplier": 1e-30}, {"diversity": 1e-320}])
def test_errors_about_extreme_radii_are_one_sentence(keys):
    with pytest.raises(InputError) as error:
        make(**keys)
    assert "\n" not in str(error.value)


# -- Constants -------------------------------------------------------------------------------------


def test_number_of_initial_phases_follows_the_key():
    """Check numbers as given and by Proposition C.3, at most the number of phases."""
    printed_numbers = set()
    for horizon in (1, 40, 1000, 2**14):
        problem = dataclasses.replace(SETTING, horizon=horizon)
        P = oracle.number_of_phases(horizon)
        for diversity, margin in ((0.1, 6.7), (8.0, 0.1), (30.0, 1.0), (200.0, 1.0)):
            keys = {"initial_phases": "printed", "diversity": diversity, "margin": margin}
            plan = plan_of(problem, **keys)
            U = oracle.initial_phases(40, P, 3, 0.01, diversity, margin)
            assert (plan.initial, plan.phases) == (min(U, P), P)
            assert plan.releasing == tuple(oracle.releasing_phases(horizon, U))
            printed_numbers.add(U)
        for number in (1, 4, 10**12):
            assert plan_of(problem, initial_phases=number).initial == min(number, P)
    assert len(printed_numbers) > 4 and min(printed_numbers) < 5


def test_phases_of_a_plan_equal_the_oracles_phases():
    plan = plan_of()
    assert (plan.silos, plan.horizon, plan.dimension, plan.phases) == (40, 100, 3, 6)
    assert plan.initial_rounds == 6 and plan.releasing == (2, 3, 4, 5)
    for t in range(1, 101):
        assert plan.phase_of(t) == oracle.phase_of(t)
    assert plan.bits(3) == 3 * 40 * 3 * 64


def test_radii_equal_the_papers_radii():
    """Check r' of every phase for each calibration; the radius shrinks with phases, the budget does
    not."""
    for multiplier in (1.0, 0.012, 1e-4):
        for calibration in ("exact", "printed"):
            keys = {"concentration_multiplier": multiplier, "calibration": calibration}
            plan = plan_of(failure_probability=0.03, **keys)
            c1 = oracle.concentration_c1(40, 6, 3, 0.03, 0.2)
            for p, mean in zip(plan.releasing, plan.means, strict=True):
                r = oracle.concentration_radius(c1, p, multiplier)
                expected = oracle.rotated_radius(r, 4, 40, oracle.call_beta(0.03, 6))
                assert mean.rotated_radius == pytest.approx(expected, rel=1e-12)
                assert mean.bins == len(oracle.midpoints(expected, 2.0))
                assert mean.epsilon_coordinate == plan.means[0].epsilon_coordinate
                assert (mean.silos, mean.padded, mean.releases) == (40, 4, 4)


@pytest.mark.parametrize(
    ("epsilon", "delta", "horizon", "dimension"),
    [
        (1.0, 1e-3, 7, 3),
        (1.0, 1e-3, 100, 8),
        (5.0, 1e-3, 100, 5),
        (0.2, 1e-5, 40, 2),
        (50.0, 0.01, 7, 1),
    ],
)
def test_epsilon_of_a_coordinate_follows_its_calibration(epsilon, delta, horizon, dimension):
    """Compare "printed" with the paper and "exact" with randomised response in place of the
    range."""
    problem = ProblemSpec(silos=7, horizon=horizon, dimension=dimension)
    releases = len(oracle.releasing_phases(horizon, 2))
    P, d2 = oracle.number_of_phases(horizon), oracle.padded(dimension)
    budget = {"epsilon": epsilon, "delta": delta}
    printed = plan_of(problem, calibration="printed", **budget).means[0].epsilon_coordinate
    expected = oracle.printed_budget(epsilon, delta, P, d2).epsilon_coordinate
    assert printed == pytest.approx(expected, rel=1e-12)
    exact = plan_of(problem, **budget).means[0].epsilon_coordinate
    tight = oracle.tight_epsilon(epsilon, delta, releases * d2)
    assert tight * (1 - 1e-6) <= exact <= 1.3 * tight
    assert exact > 5 * printed


def test_memory_shares_models_as_in_remark_4_6():
    results = set()
    for silos in (1, 40, 1000):
        problem = dataclasses.replace(SETTING, silos=silos)
        threshold = math.sqrt(3) * math.log(100) ** 1.5 / silos
        for epsilon in (0.9 * threshold, 1.1 * threshold):
            expected = oracle.shares(epsilon, silos, 3, 100)
            with_memory = make(problem, memory=True, epsilon=epsilon)
            without_memory = make(problem, epsilon=epsilon)
            assert isinstance(with_memory.plan, PhasePlan)
            assert bool(with_memory.plan.means) == expected == (epsilon > threshold)
            assert isinstance(without_memory.plan, PhasePlan) and without_memory.plan.means
            caveat = [
                caveat_ for caveat_ in with_memory.certificate.caveats if "Remark 4.6" in caveat_
            ]
            assert bool(caveat) != expected
            if expected:
                assert with_memory.plan == without_memory.plan
                assert with_memory.certificate == without_memory.certificate
            else:
                assert with_memory.certificate.exact.epsilon == 0.0
            results.add(expected)
    assert results == {True, False}


# -- Certificates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["exact", "printed"])
@pytest.mark.parametrize("budget", [(1.0, 1e-3), (0.05, 1e-6), (10.0, 0.1), (200.0, 1e-5)])
def test_certificate_protects_all_data_of_a_silo(calibration, budget):
    """Check printed budgets, too: the paper's own composition fails there, but the true loss is far
    smaller."""
    epsilon, delta = budget
    system = make(epsilon=epsilon, delta=delta, calibration=calibration)
    robin_certificate, plan = system.certificate, system.plan
    assert isinstance(plan, PhasePlan)
    assert (robin_certificate.status, robin_certificate.unit, robin_certificate.relation) == (
        "proven",
        "silo",
        "replace",
    )
    assert (robin_certificate.claimed.epsilon, robin_certificate.claimed.delta) == budget
    assert robin_certificate.exact.delta == delta and robin_certificate.exact.epsilon <= epsilon
    assert all(condition.holds for condition in robin_certificate.conditions)
    assert [type(c) for c in robin_certificate.conditions].count(ClaimCondition) == 1
    assert robin_certificate.model.startswith("central: the server is trusted")
    assert robin_certificate.source.startswith("huang-2023")
    assert any("released at most 4 times" in c.text for c in robin_certificate.conditions)
    epsilon_coordinate = plan.means[0].epsilon_coordinate
    # 4 releases of 4 coordinates; the range is no worse than randomised response.
    upper_bound = oracle.composition_epsilon(delta, epsilon_coordinate, 16)
    assert robin_certificate.exact.epsilon <= upper_bound * (1 + 1e-6)
    if calibration == "exact":
        assert epsilon * 0.999 < robin_certificate.exact.epsilon and upper_bound < 1.5 * epsilon
    else:
        assert robin_certificate.exact.epsilon < 0.5 * epsilon
    # The certificate reports the smallest noise, that of the last model.
    last = oracle.laplace_scale(plan.means[-1].rotated_radius, 40, epsilon_coordinate)
    assert robin_certificate.noise_std == {"mean": pytest.approx(math.sqrt(2) * last)}


def test_phases_without_a_release_cost_no_budget():
    """Check initial phases and a last phase that ends with the horizon."""
    epsilon_coordinates = {
        (horizon, U): plan_of(
            dataclasses.replace(SETTING, horizon=horizon), initial_phases=U
        ).means[0].epsilon_coordinate
        for horizon, U in ((100, 2), (100, 4), (30, 2), (31, 3))
    }  # fmt: skip
    assert (
        epsilon_coordinates[100, 2]
        < epsilon_coordinates[100, 4]
        == epsilon_coordinates[30, 2]
        == epsilon_coordinates[31, 3]
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"initial_phases": 6},
        {"initial_phases": 99, "calibration": "printed"},
        {"initial_phases": "printed", "margin": 7.0},
        {"memory": True, "epsilon": 0.1},
    ],
)
def test_plans_without_releases_have_epsilon_zero(keys):
    system = make(**keys)
    robin_certificate = system.certificate
    assert isinstance(system.plan, PhasePlan)
    assert system.plan.releasing == system.plan.means == ()
    assert (robin_certificate.exact.epsilon, robin_certificate.exact.delta) == (0.0, 0.01)
    assert robin_certificate.claimed.epsilon == keys.get("epsilon", 1.0)
    assert (robin_certificate.status, robin_certificate.unit, robin_certificate.relation) == (
        "proven",
        "silo",
        "replace",
    )
    assert robin_certificate.model == "nothing leaves a client" and not robin_certificate.noise_std
    assert any("learn alone" in caveat for caveat in robin_certificate.caveats)
    assert all(condition.holds for condition in robin_certificate.conditions)


def test_certificate_without_privacy_has_status_none():
    for keys in ({}, {"diversity": ...}, {"initial_phases": 99}):
        robin_certificate = certificate(**(NOT_PRIVATE | keys))
        assert (robin_certificate.status, robin_certificate.exact, robin_certificate.claimed) == (
            "none",
            None,
            None,
        )
        assert not robin_certificate.noise_std
    assert plan_of(**NOT_PRIVATE).means == () and plan_of(**NOT_PRIVATE).releasing == (2, 3, 4, 5)


def test_certificate_names_a_scaled_radius():
    def caveats_with_theorem(**keys: Any) -> list[str]:
        """Return the caveats of a certificate that mention Theorem 3.3."""
        return [caveat_ for caveat_ in certificate(**keys).caveats if "Theorem 3.3" in caveat_]

    (caveat,) = caveats_with_theorem(concentration_multiplier=0.012)
    assert "0.012" in caveat and "privacy is not touched" in caveat
    assert caveats_with_theorem() == caveats_with_theorem(concentration_multiplier=3.0) == []
    # The multiplier does not change the account.
    default, scaled = certificate(), certificate(concentration_multiplier=1e-4)
    assert (default.exact, default.conditions) == (scaled.exact, scaled.conditions)
    assert scaled.noise_std["mean"] < default.noise_std["mean"]


def test_certificate_names_phases_whose_range_mostly_fails():
    """Check cases where all phases, later phases with more bins, or no phases fail."""
    phases_by_silos = []
    for silos in (10, 165, 187, 20_000):
        problem = dataclasses.replace(SETTING, silos=silos)
        keys = {"concentration_multiplier": 1e-4}
        plan, robin_certificate = plan_of(problem, **keys), certificate(problem, **keys)
        epsilon_coordinate = plan.means[0].epsilon_coordinate
        failing_phases = [
            p
            for p, mean in zip(plan.releasing, plan.means, strict=True)
            if not oracle.range_feasible(silos, epsilon_coordinate, mean.bins)
        ]
        caveats = [caveat for caveat in robin_certificate.caveats if "mostly fails" in caveat]
        phases_by_silos.append(failing_phases)
        assert bool(caveats) == bool(failing_phases)
        assert not failing_phases or caveats[0].endswith(
            "phases " + ", ".join(map(str, failing_phases))
        )
        assert robin_certificate.status == "proven"
    assert phases_by_silos == [[2, 3, 4, 5], [3, 4, 5], [5], []]


def test_certificate_without_caveat_about_chance_if_there_is_one_bin():
    assert {mean.bins for mean in plan_of(concentration_multiplier=1.0).means} == {1}
    assert not any(
        "chance" in caveat for caveat in certificate(concentration_multiplier=1.0).caveats
    )


def test_only_simulations_have_a_caveat_about_simulation():
    for keys in ({}, {"initial_phases": 99}):
        system = make(**keys)
        assert SIMULATION_CAVEAT in system.certificate.caveats
        assert SIMULATION_CAVEAT not in system.deployed_certificate.caveats
        assert not any("simulation" in c for c in system.deployed_certificate.caveats)


def test_caveats_about_float64_name_no_gaussian_noise():
    """The reason: robin draws Laplace noise and a private range."""
    caveats = certificate().caveats
    assert any("float64" in caveat for caveat in caveats)
    assert not any("Gaussian" in caveat for caveat in caveats)


def test_guarantees_do_not_need_bounded_data():
    """Check unbounded features and rewards: the server clips the estimates."""
    unbounded_problem = dataclasses.replace(
        SETTING, features_bounded=False, reward_range=None, multiplicity=5
    )
    for clip in (True, False):
        robin_certificate = certificate(unbounded_problem, clip=clip)
        assert (robin_certificate.status, robin_certificate.exact) == (
            certificate().status,
            certificate().exact,
        )


def test_clipping_is_off_by_default():
    assert plan_of().local.clip is None
    assert plan_of(clip=False).local.clip is None
    assert plan_of(clip=True).local.clip is not None


# -- Specs and the command line --------------------------------------------------------------------

CURVES: list[dict[str, Any]] = [
    {
        "label": "ROBIN",
        "algorithm": "robin",
        "epsilon": [5.0, 500.0],
        "delta": 1e-3,
        "diversity": 0.2,
        "initial_phases": 2,
        "concentration_multiplier": 1e-3,
        "silos": [2, 5],
    },
    {"label": "plain", "algorithm": "robin", "private": False, "initial_phases": 1},
    {"label": "alone", "algorithm": "local-linucb", "silos": [2, 5], "sieve": 1.0},
    {"label": "together", "algorithm": "fedlinucb", "batch_size": 5, "silos": [2, 5]},
]
LABELS = [
    *(f"ROBIN, epsilon = {e}, silos = {m}" for e in (5.0, 500.0) for m in (2, 5)),
    "plain",
    *(f"{name}, silos = {m}" for name in ("alone", "together") for m in (2, 5)),
]
ENVIRONMENT = {"kind": "sphere", "dimension": 3, "actions": 5}
SPEC: dict[str, Any] = {
    "name": "robin",
    "horizon": 35,
    "silos": 3,
    "replicates": 2,
    "seed": 4,
    "checkpoints": 7,
    "environment": ENVIRONMENT,
    "curve": CURVES,
}


def test_robin_can_be_simulated_together_with_other_curves():
    results = [
        fastfed.simulate(
            ENVIRONMENT, horizon=35, silos=3, replicates=2, seed=4, checkpoints=35,
            curves=CURVES, **driver_keys,
        )
        for driver_keys in ({}, {"threads": 1}, {"driver": "step"})
    ]  # fmt: skip
    for other_results in results[1:]:
        assert_same_results(results[0], other_results)
    curves = {curve.label: curve for curve in results[0].curves}
    assert list(curves) == LABELS
    for label, curve in curves.items():
        assert curve.group_regret.shape == (2, 35)
        if label.startswith("ROBIN"):
            synchronisations = np.isin(np.arange(1, 36), [6, 14, 30]).cumsum()
            np.testing.assert_array_equal(
                curve.synchronisation_counts, [synchronisations, synchronisations]
            )
            bits = 64 * 3 * int(label[-1]) * synchronisations
            np.testing.assert_array_equal(curve.bits_up_counts, [bits, bits])
            assert curve.certificate["unit"] == "silo"
            # Until the first model, silos act as local LinUCB with contexts and rewards of the same
            # seed.
            local_linucb = curves[f"alone, silos = {label[-1]}"]
            before = local_linucb.group_regret[:, :6]
            np.testing.assert_array_equal(curve.group_regret[:, :6], before)
            assert (curve.group_regret != local_linucb.group_regret).any()
    assert curves["plain"].synchronisation_counts[0, -1] == 4
    low_epsilon, high_epsilon = (curves[f"ROBIN, epsilon = {e}, silos = 5"] for e in (5.0, 500.0))
    assert (low_epsilon.group_regret != high_epsilon.group_regret).any()
    # Replicates have different noise.
    assert (low_epsilon.group_regret[0] != low_epsilon.group_regret[1]).any()


def test_a_resumed_run_repeats_no_batch(tmp_path):
    remaining_batches, _ = check_resumed(SPEC, tmp_path)
    assert remaining_batches[0] == remaining_batches[1] > 0 and remaining_batches[2] == 0


def spec_file(tmp_path: Any) -> Any:
    """Write a spec file with the first two curves and return its path."""
    path = tmp_path / "robin.toml"
    lines = ['name = "robin"', "horizon = 35", "silos = 3", "replicates = 2"]
    lines += ["[environment]", 'kind = "sphere"', "dimension = 3", "actions = 5"]
    for curve in CURVES[:2]:
        lines.append("[[curve]]")
        for key, value in curve.items():
            toml_value = str(value).lower() if isinstance(value, bool) else repr(value)
            lines.append(f"{key} = {toml_value}")
    path.write_text("\n".join(lines))
    return path


def invoke(*args: Any) -> str:
    """Run the command line and return its output."""
    result = CliRunner().invoke(cli, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result.output


def test_command_privacy_prints_certificates(tmp_path):
    printed = invoke("privacy", spec_file(tmp_path))
    for label in LABELS[:5]:
        assert f"\n{label}\n" in "\n" + printed
    # The certificate of the file's second curve.
    robin_certificate = make(
        ProblemSpec(silos=5, horizon=35, dimension=3), epsilon=5.0, delta=1e-3
    ).certificate
    for condition in robin_certificate.conditions:
        assert condition.text in " ".join(printed.split())
    single_curve = invoke("privacy", spec_file(tmp_path), "--curve", LABELS[0], "--json")
    assert '"unit": "silo"' in single_curve and LABELS[1] not in single_curve


def test_command_run_writes_certificates_and_report(tmp_path):
    invoke("run", spec_file(tmp_path), "-o", tmp_path / "out")
    text = (tmp_path / "out" / "certificates.txt").read_text()
    assert all(label in text for label in LABELS[:5])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "ROBIN" in page
    listed = invoke("results", tmp_path / "out", "--json")
    assert all(label in listed for label in LABELS[:5])
