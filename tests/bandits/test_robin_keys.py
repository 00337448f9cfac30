"""Config of robin: what they refuse, what they certify, and how a spec plays it beside others."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracle import huang_2023 as oracle
from test_run import check_resumed, same

import fastfed
from fastfed import InputError
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import System
from fastfed.cli import cli
from fastfed.privacy.certificate import SIMULATION, Certificate, ClaimCondition
from fastfed.protocols.serverless import PhasePlan

SETTING = ProblemSpec(silos=40, horizon=100, dimension=3)  # six phases
REQUIRED = {"epsilon": 1.0, "delta": 0.01, "diversity": 0.2, "initial_phases": 2}


def make(setting: ProblemSpec = SETTING, **keys: Any) -> System:
    """The system with a budget, lambda_0 and U, unless ``keys`` say otherwise."""
    given = {**REQUIRED, **keys}
    return ALGORITHMS["robin"].make({k: v for k, v in given.items() if v is not ...}, setting)


def certificate(setting: ProblemSpec = SETTING, **keys: Any) -> Certificate:
    return make(setting, **keys).certificate


def plan_of(setting: ProblemSpec = SETTING, **keys: Any) -> PhasePlan:
    plan = make(setting, **keys).plan
    assert isinstance(plan, PhasePlan)
    return plan


# -- What is refused -------------------------------------------------------------------------------

PUBLIC = {"private": False, "epsilon": ..., "delta": ...}
REFUSED: list[tuple[dict[str, Any], str]] = [
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
    ({**PUBLIC, "initial_phases": "printed"}, 'initial_phases "printed" needs .*margin'),
    ({"initial_phases": 0}, "initial_phases must be an integer >= 1, got 0"),
    ({"initial_phases": -3}, "initial_phases must be an integer >= 1, got -3"),
    ({"initial_phases": "many"}, "initial_phases must be one of \"printed\", got 'many'"),
    ({"initial_phases": 2.5}, "initial_phases must be an integer or a text, got 2.5"),
    ({"initial_phases": True}, "initial_phases must be an integer or a text, got True"),
    ({"calibration": "theorem"}, "calibration must be one of .*\"printed\".*got 'theorem'"),
    ({"concentration_multiplier": 0.0}, "concentration_multiplier must be > 0, got 0.0"),
    ({"concentration_multiplier": -0.5}, "concentration_multiplier must be > 0, got -0.5"),
    ({"private": False}, "epsilon has no meaning where private = false"),
    ({**PUBLIC, "epsilon": 1.0}, "epsilon has no meaning where private = false"),
    ({**PUBLIC, "delta": 0.1}, "delta has no meaning where private = false"),
    ({**PUBLIC, "memory": True}, "memory needs private = true: it depends on the budget"),
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


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_every_error_is_one_sentence(keys, message):
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
def test_a_radius_no_mechanism_has_is_refused_in_one_sentence(keys):
    with pytest.raises(InputError) as error:
        make(**keys)
    assert "\n" not in str(error.value)


# -- Constants -------------------------------------------------------------------------------------


def test_initial_phases():
    """As given, or Proposition C.3's, and no more than there are."""
    found = set()
    for horizon in (1, 40, 1000, 2**14):
        setting = dataclasses.replace(SETTING, horizon=horizon)
        P = oracle.number_of_phases(horizon)
        for diversity, margin in ((0.1, 6.7), (8.0, 0.1), (30.0, 1.0), (200.0, 1.0)):
            keys = {"initial_phases": "printed", "diversity": diversity, "margin": margin}
            plan = plan_of(setting, **keys)
            U = oracle.initial_phases(40, P, 3, 0.01, diversity, margin)
            assert (plan.initial, plan.phases) == (min(U, P), P)
            assert plan.releasing == tuple(oracle.releasing_phases(horizon, U))
            found.add(U)
        for given in (1, 4, 10**12):
            assert plan_of(setting, initial_phases=given).initial == min(given, P)
    assert len(found) > 4 and min(found) < 5


def test_phases_of_a_plan():
    plan = plan_of()
    assert (plan.silos, plan.horizon, plan.dimension, plan.phases) == (40, 100, 3, 6)
    assert plan.initial_rounds == 6 and plan.releasing == (2, 3, 4, 5)
    for t in range(1, 101):
        assert plan.phase_of(t) == oracle.phase_of(t)
    assert plan.bits(3) == 3 * 40 * 3 * 64


def test_radii_are_the_papers():
    """r' of every phase, whatever the calibration; the radius shrinks, the budget stays."""
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
def test_epsilon_of_a_coordinate(epsilon, delta, horizon, dimension):
    """Printed: the paper's. Exact: more than randomised response in place of the range allows."""
    setting = ProblemSpec(silos=7, horizon=horizon, dimension=dimension)
    releases = len(oracle.releasing_phases(horizon, 2))
    P, d2 = oracle.number_of_phases(horizon), oracle.padded(dimension)
    at = {"epsilon": epsilon, "delta": delta}
    printed = plan_of(setting, calibration="printed", **at).means[0].epsilon_coordinate
    expected = oracle.printed_budget(epsilon, delta, P, d2).epsilon_coordinate
    assert printed == pytest.approx(expected, rel=1e-12)
    exact = plan_of(setting, **at).means[0].epsilon_coordinate
    tight = oracle.tight_epsilon(epsilon, delta, releases * d2)
    assert tight * (1 - 1e-6) <= exact <= 1.3 * tight
    assert exact > 5 * printed


def test_memory_shares_where_remark_4_6_says():
    shared = set()
    for silos in (1, 40, 1000):
        setting = dataclasses.replace(SETTING, silos=silos)
        edge = math.sqrt(3) * math.log(100) ** 1.5 / silos
        for epsilon in (0.9 * edge, 1.1 * edge):
            shares = oracle.shares(epsilon, silos, 3, 100)
            with_memory = make(setting, memory=True, epsilon=epsilon)
            without = make(setting, epsilon=epsilon)
            assert isinstance(with_memory.plan, PhasePlan)
            assert bool(with_memory.plan.means) == shares == (epsilon > edge)
            assert isinstance(without.plan, PhasePlan) and without.plan.means
            caveat = [c for c in with_memory.certificate.caveats if "Remark 4.6" in c]
            assert bool(caveat) != shares
            if shares:
                assert with_memory.plan == without.plan
                assert with_memory.certificate == without.certificate
            else:
                assert with_memory.certificate.exact.epsilon == 0.0
            shared.add(shares)
    assert shared == {True, False}


# -- Certificates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["exact", "printed"])
@pytest.mark.parametrize("budget", [(1.0, 1e-3), (0.05, 1e-6), (10.0, 0.1), (200.0, 1e-5)])
def test_everything_a_silo_holds_is_protected(calibration, budget):
    """Printed budgets too, where the paper's own composition breaks: the true loss is far below."""
    epsilon, delta = budget
    system = make(epsilon=epsilon, delta=delta, calibration=calibration)
    found, plan = system.certificate, system.plan
    assert isinstance(plan, PhasePlan)
    assert (found.status, found.unit, found.relation) == ("proven", "silo", "replace")
    assert (found.claimed.epsilon, found.claimed.delta) == budget
    assert found.exact.delta == delta and found.exact.epsilon <= epsilon
    assert all(condition.holds for condition in found.conditions)
    assert [type(c) for c in found.conditions].count(ClaimCondition) == 1
    assert found.model.startswith("central: the server is trusted")
    assert found.source.startswith("huang-2023")
    assert any("released at most 4 times" in c.text for c in found.conditions)
    each = plan.means[0].epsilon_coordinate
    # Of 4 releases of 4 coordinates, the range no worse than randomised response.
    above = oracle.composition_epsilon(delta, each, 16)
    assert found.exact.epsilon <= above * (1 + 1e-6)
    if calibration == "exact":
        assert epsilon * 0.999 < found.exact.epsilon and above < 1.5 * epsilon
    else:
        assert found.exact.epsilon < 0.5 * epsilon
    # The least noise, that of the last model.
    last = oracle.laplace_scale(plan.means[-1].rotated_radius, 40, each)
    assert found.noise_std == {"mean": pytest.approx(math.sqrt(2) * last)}


def test_phases_that_release_nothing_cost_nothing():
    """U takes its share of the budget's releases away, and so does a last phase."""
    each = {
        (horizon, U): plan_of(
            dataclasses.replace(SETTING, horizon=horizon), initial_phases=U
        ).means[0].epsilon_coordinate
        for horizon, U in ((100, 2), (100, 4), (30, 2), (31, 3))
    }  # fmt: skip
    assert each[100, 2] < each[100, 4] == each[30, 2] == each[31, 3]


@pytest.mark.parametrize(
    "keys",
    [
        {"initial_phases": 6},
        {"initial_phases": 99, "calibration": "printed"},
        {"initial_phases": "printed", "margin": 7.0},
        {"memory": True, "epsilon": 0.1},
    ],
)
def test_what_is_not_shared_is_not_lost(keys):
    system = make(**keys)
    found = system.certificate
    assert isinstance(system.plan, PhasePlan)
    assert system.plan.releasing == system.plan.means == ()
    assert (found.exact.epsilon, found.exact.delta) == (0.0, 0.01)
    assert found.claimed.epsilon == keys.get("epsilon", 1.0)
    assert (found.status, found.unit, found.relation) == ("proven", "silo", "replace")
    assert found.model == "nothing leaves a client" and not found.noise_std
    assert any("learn alone" in caveat for caveat in found.caveats)
    assert all(condition.holds for condition in found.conditions)


def test_without_privacy_nothing_is_promised():
    for keys in ({}, {"diversity": ...}, {"initial_phases": 99}):
        found = certificate(**(PUBLIC | keys))
        assert (found.status, found.exact, found.claimed) == ("none", None, None)
        assert not found.noise_std
    assert plan_of(**PUBLIC).means == () and plan_of(**PUBLIC).releasing == (2, 3, 4, 5)


def test_a_scaled_radius_is_said_aloud():
    def said(**keys: Any) -> list[str]:
        return [c for c in certificate(**keys).caveats if "Theorem 3.3" in c]

    (caveat,) = said(concentration_multiplier=0.012)
    assert "0.012" in caveat and "privacy is not touched" in caveat
    assert said() == said(concentration_multiplier=3.0) == []
    # Nothing of it is in the account.
    whole, scaled = certificate(), certificate(concentration_multiplier=1e-4)
    assert (whole.exact, whole.conditions) == (scaled.exact, scaled.conditions)
    assert scaled.noise_std["mean"] < whole.noise_std["mean"]


def test_ranges_that_cannot_work_are_named():
    """All phases, the later ones, which have more bins, or none."""
    lists = []
    for silos in (10, 165, 187, 20_000):
        setting = dataclasses.replace(SETTING, silos=silos)
        keys = {"concentration_multiplier": 1e-4}
        plan, found = plan_of(setting, **keys), certificate(setting, **keys)
        each = plan.means[0].epsilon_coordinate
        hopeless = [
            p
            for p, mean in zip(plan.releasing, plan.means, strict=True)
            if not oracle.range_feasible(silos, each, mean.bins)
        ]
        caveats = [c for c in found.caveats if "mostly fails" in c]
        lists.append(hopeless)
        assert bool(caveats) == bool(hopeless)
        assert not hopeless or caveats[0].endswith("phases " + ", ".join(map(str, hopeless)))
        assert found.status == "proven"
    assert lists == [[2, 3, 4, 5], [3, 4, 5], [5], []]


def test_one_bin_leaves_nothing_to_chance():
    assert {mean.bins for mean in plan_of(concentration_multiplier=1.0).means} == {1}
    assert not any(
        "chance" in caveat for caveat in certificate(concentration_multiplier=1.0).caveats
    )


def test_simulation_is_said_of_simulations_only():
    for keys in ({}, {"initial_phases": 99}):
        system = make(**keys)
        assert SIMULATION in system.certificate.caveats
        assert SIMULATION not in system.deployed_certificate.caveats
        assert not any("simulation" in c for c in system.deployed_certificate.caveats)


def test_what_real_numbers_hide_is_said_of_the_right_noise():
    """Laplace noise and a private range: no Gaussian noise is drawn."""
    caveats = certificate().caveats
    assert any("float64" in caveat for caveat in caveats)
    assert not any("Gaussian" in caveat for caveat in caveats)


def test_guarantees_need_no_bounded_data():
    """Features and rewards may be anything: estimates are cut at the server."""
    loose = dataclasses.replace(SETTING, features_bounded=False, reward_range=None, multiplicity=5)
    for clip in (True, False):
        found = certificate(loose, clip=clip)
        assert (found.status, found.exact) == (certificate().status, certificate().exact)


def test_clipping_is_off_unless_asked_for():
    assert plan_of().local.clip is None
    assert plan_of(clip=False).local.clip is None
    assert plan_of(clip=True).local.clip is not None


# -- In an experiment ------------------------------------------------------------------------------

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


def test_it_is_played_beside_others():
    played = [
        fastfed.simulate(
            ENVIRONMENT, horizon=35, silos=3, replicates=2, seed=4, checkpoints=35,
            curves=CURVES, **more,
        )
        for more in ({}, {"threads": 1}, {"driver": "step"})
    ]  # fmt: skip
    for other in played[1:]:
        same(played[0], other)
    curves = {curve.label: curve for curve in played[0].curves}
    assert list(curves) == LABELS
    for label, curve in curves.items():
        assert curve.group_regret.shape == (2, 35)
        if label.startswith("ROBIN"):
            ends = np.isin(np.arange(1, 36), [6, 14, 30]).cumsum()
            np.testing.assert_array_equal(curve.synchronisation_counts, [ends, ends])
            bits = 64 * 3 * int(label[-1]) * ends
            np.testing.assert_array_equal(curve.bits_up_counts, [bits, bits])
            assert curve.certificate["unit"] == "silo"
            # Alone until the first model, with contexts and rewards of the same seed.
            alone = curves[f"alone, silos = {label[-1]}"]
            before = alone.group_regret[:, :6]
            np.testing.assert_array_equal(curve.group_regret[:, :6], before)
            assert (curve.group_regret != alone.group_regret).any()
    assert curves["plain"].synchronisation_counts[0, -1] == 4
    few, many = (curves[f"ROBIN, epsilon = {e}, silos = 5"] for e in (5.0, 500.0))
    assert (few.group_regret != many.group_regret).any()
    # Replicates have noise of their own.
    assert (few.group_regret[0] != few.group_regret[1]).any()


def test_a_run_resumes_and_repeats_nothing(tmp_path):
    left, _ = check_resumed(SPEC, tmp_path)
    assert left[0] == left[1] > 0 and left[2] == 0


def toml(tmp_path: Any) -> Any:
    """A spec file with the first two curves."""
    path = tmp_path / "robin.toml"
    lines = ['name = "robin"', "horizon = 35", "silos = 3", "replicates = 2"]
    lines += ["[environment]", 'kind = "sphere"', "dimension = 3", "actions = 5"]
    for curve in CURVES[:2]:
        lines.append("[[curve]]")
        for key, value in curve.items():
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            lines.append(f"{key} = {shown}")
    path.write_text("\n".join(lines))
    return path


def invoke(*args: Any) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result.output


def test_fastfed_privacy_prints_it(tmp_path):
    printed = invoke("privacy", toml(tmp_path))
    for label in LABELS[:5]:
        assert f"\n{label}\n" in "\n" + printed
    # As in the file, whose certificate this is.
    found = make(ProblemSpec(silos=5, horizon=35, dimension=3), epsilon=5.0, delta=1e-3).certificate
    for condition in found.conditions:
        assert condition.text in " ".join(printed.split())
    one = invoke("privacy", toml(tmp_path), "--curve", LABELS[0], "--json")
    assert '"unit": "silo"' in one and LABELS[1] not in one


def test_fastfed_run_writes_it(tmp_path):
    invoke("run", toml(tmp_path), "-o", tmp_path / "out")
    text = (tmp_path / "out" / "certificates.txt").read_text()
    assert all(label in text for label in LABELS[:5])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "ROBIN" in page
    listed = invoke("results", tmp_path / "out", "--json")
    assert all(label in listed for label in LABELS[:5])
