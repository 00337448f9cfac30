"""Tests of the keys of expert systems: errors, certificates, bounds, and runs of specs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_run import assert_same_results, cells, check_resumed

import fastfed
from fastfed import InputError
from fastfed.cli import cli
from fastfed.experts import ALGORITHMS, ProblemSpec, System, bounds
from fastfed.experts.baselines import HedgePlan
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import SumsPlan
from fastfed.privacy.accounting.gdp import epsilon_of_rho, rho_of_bounded_range
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.certificate import SIMULATION_CAVEAT, Certificate, ClaimCondition
from fastfed.privacy.mechanisms.vertex_sets import max_change
from fastfed.simulation.dispatch import missing_batches
from fastfed.simulation.experiment import experiment_from_spec

LINEAR = ProblemSpec(silos=4, horizon=2000, experts=6, iid=True, optimal_loss=0.0)
SMOOTH = dataclasses.replace(
    LINEAR, linear=False, smoothness=1.0, loss_range=0.5, optimal_loss=None
)
#: Gradients of both signs, as in general losses.
SIGNED = dataclasses.replace(SMOOTH, spread=2.0, loss_range=2.0)
#: Gradients of both signs and almost no smoothness.
ROUGH = dataclasses.replace(SIGNED, smoothness=1e6)

SVT, OPE, HEDGE, LEADER = "fed-svt", "fed-dp-ope-stoch", "hedge", "follow-the-leader"
BOARD, LIMITED = "private-dartboard", "limited-updates"
REQUIRED: dict[str, dict[str, Any]] = {
    SVT: {"epsilon": 1.0},
    OPE: {"epsilon": 8.0},
    BOARD: {"epsilon": 1.0},
    LIMITED: {"epsilon": 1.0},
    HEDGE: {},
    LEADER: {},
}


def make(algorithm: str, problem: ProblemSpec = LINEAR, **keys: Any) -> System:
    """Make the system with the required keys; a key with value ``...`` is left out."""
    all_keys = {**REQUIRED[algorithm], **keys}
    return ALGORITHMS[algorithm].make(
        {key: value for key, value in all_keys.items() if value is not ...}, problem
    )


def certificate(algorithm: str, problem: ProblemSpec = LINEAR, **keys: Any) -> Certificate:
    """Return the certificate of the system with these keys."""
    return make(algorithm, problem, **keys).certificate


def svt_plan(problem: ProblemSpec = LINEAR, **keys: Any) -> SparseVectorPlan:
    """Return the plan of fed-svt with these keys."""
    plan = make(SVT, problem, **keys).plan
    assert isinstance(plan, SparseVectorPlan)
    return plan


def ope_plan(problem: ProblemSpec = LINEAR, **keys: Any) -> FrankWolfePlan:
    """Return the plan of fed-dp-ope-stoch with these keys."""
    plan = make(OPE, problem, **keys).plan
    assert isinstance(plan, FrankWolfePlan)
    return plan


# -- Errors ----------------------------------------------------------------------------------------

UNKNOWN_OPTIMUM = dataclasses.replace(LINEAR, optimal_loss=None)
NO_NOISE = {"epsilon": ..., "noise": "none"}
BAD_KEYS: list[tuple[str, dict[str, Any], str]] = [
    (SVT, {"epsilon": ...}, "required field `?epsilon`?"),
    (SVT, {"epsilon": None}, "epsilon must be a number, got None"),
    (SVT, {"epsilon": 0.0}, "epsilon must be >= 1e-09 and <= 1e\\+06, got 0.0"),
    (SVT, {"epsilon": -1.0}, "epsilon must be >= 1e-09 and <= 1e\\+06, got -1.0"),
    (SVT, {"epsilon": math.inf}, "epsilon must be .*got inf"),
    (SVT, {"epsilon": math.nan}, "epsilon must be .*got nan"),
    (SVT, {"epsilon": "1"}, "epsilon must be a number, got '"),
    (SVT, {"epsilom": 1.0}, 'unknown key "epsilom" for fed-svt; did you mean "epsilon"?'),
    (SVT, {"noise": "local"}, 'unknown key "noise" for fed-svt'),
    (SVT, {"delta": -0.1}, "delta must be >= 0 and < 1, got -0.1"),
    (SVT, {"delta": 1.0}, "delta must be >= 0 and < 1, got 1.0"),
    (SVT, {"phase_length": 0}, "phase_length must be an integer >= 1, got 0"),
    (SVT, {"phase_length": 2.5}, "phase_length must be an integer, got 2.5"),
    (SVT, {"phase_length": True}, "phase_length must be an integer, got True"),
    (SVT, {"phase_length": 2001}, r"phase_length must be <= horizon \(2000\), got 2001"),
    (SVT, {"optimal_loss": -1.0}, "optimal_loss must be >= 0, got -1.0"),
    (SVT, {"optimal_loss": math.inf}, "optimal_loss must be .*got inf"),
    (SVT, {"optimal_loss": "no"}, "optimal_loss must be a number, got '"),
    (SVT, {"failure_probability": 0.0}, "failure_probability must be .*got 0.0"),
    (SVT, {"failure_probability": 0.5}, "failure_probability must be .*< 0.5, got 0.5"),
    (SVT, {"calibration": "exakt"}, 'calibration must be one of .*did you mean "exact"'),
    (SVT, {"calibration": "corrected"}, 'calibration must be one of "exact", "printed", "zcdp"'),
    (SVT, {"calibration": "zcdp"}, 'calibration "zcdp" needs delta > 0'),
    (SVT, {"switches": 0}, "switches must be an integer >= 1 .*got 0"),
    (SVT, {"switches": 2**20 + 1}, "switches must be an integer .*<= 1048576, got 1048577"),
    (SVT, {"switches": 1.5}, "switches must be an integer or a text, got 1.5"),
    (SVT, {"switches": "prove"}, 'switches must be one of .*did you mean "proven"'),
    (SVT, {"threshold": -1.0}, "threshold must be >= 0, got -1.0"),
    (SVT, {"threshold": math.nan}, "threshold must be .*got nan"),
    (SVT, {"threshold": "print"}, 'threshold must be one of .*did you mean "printed"'),
    (SVT, {"batch_size": 3}, 'unknown key "batch_size" for fed-svt'),
    (OPE, {"epsilon": ...}, 'epsilon is required, or noise = "none"'),
    (OPE, {"epsilon": 0.0}, "epsilon must be >= 1e-09 and <= 1e\\+06, got 0.0"),
    (OPE, {"epsilon": math.inf}, "epsilon must be .*got inf"),
    (OPE, {"epsilon": "x"}, "epsilon must be a number, got '"),
    (OPE, {"noise": "none"}, 'epsilon has no meaning where noise = "none"'),
    (OPE, {"noise": "locale"}, 'noise must be one of .*did you mean "local"'),
    (OPE, {"noise": True}, "noise must be a text, got True"),
    (OPE, {"noise": "central", "protect": "messages"}, 'protect = "messages" needs noise = "local'),
    (OPE, {"protect": "expert"}, 'protect must be one of .*did you mean "experts"'),
    (OPE, {"calibration": "zcdp"}, 'calibration must be one of "exact", "corrected", "printed"'),
    (OPE, {"batch": "theorem"}, 'batch must be one of "paper", "largest"'),
    (OPE, {"batch": 8}, "batch must be a text, got 8"),
    (OPE, {"smoothness": 0.0}, "smoothness must be > 0, got 0.0"),
    (OPE, {"smoothness": math.inf}, "smoothness must be .*got inf"),
    (OPE, {"delta": 1.0}, "delta must be >= 0 and < 1, got 1.0"),
    (OPE, {"delta": "0"}, "delta must be a number, got '"),
    (OPE, {"phase_length": 3}, 'unknown key "phase_length" for fed-dp-ope-stoch'),
    (OPE, {"batchs": "paper"}, 'unknown key "batchs" .*did you mean "batch"'),
    (HEDGE, {"phase_length": 0}, "phase_length must be an integer >= 1, got 0"),
    (HEDGE, {"phase_length": 2001}, r"phase_length must be <= horizon \(2000\), got 2001"),
    (HEDGE, {"learning_rate": 0.0}, "learning_rate must be > 0, got 0.0"),
    (HEDGE, {"learning_rate": math.inf}, "learning_rate must be .*got inf"),
    (HEDGE, {"learning_rate": "x"}, "learning_rate must be a number, got '"),
    (HEDGE, {"learning_rates": 0.1}, 'unknown key "learning_rates" for hedge; did you mean'),
    (HEDGE, {"epsilon": 1.0}, 'unknown key "epsilon" for hedge'),
    (LEADER, {"phase_length": -1}, "phase_length must be an integer >= 1, got -1"),
    (LEADER, {"phase_length": 2001}, r"phase_length must be <= horizon \(2000\), got 2001"),
    (LEADER, {"phase_lenght": 1}, 'unknown key "phase_lenght" .*did you mean "phase_length"'),
    (LEADER, {"learning_rate": 1.0}, 'unknown key "learning_rate" for follow-the-leader'),
]


@pytest.mark.parametrize(("algorithm", "keys", "message"), BAD_KEYS)
def test_errors_about_bad_keys_are_one_sentence(algorithm, keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(algorithm, **keys)
    assert "\n" not in str(error.value)


def test_fed_svt_needs_the_loss_of_the_best_expert():
    with pytest.raises(InputError, match=r"optimal_loss \(L\*\) is required: these losses do not"):
        make(SVT, UNKNOWN_OPTIMUM)
    assert svt_plan(UNKNOWN_OPTIMUM, optimal_loss=2.0).floor == 8.0
    # The key overrides the value of the environment.
    assert svt_plan(dataclasses.replace(LINEAR, optimal_loss=3.0)).floor == 12.0
    assert svt_plan(dataclasses.replace(LINEAR, optimal_loss=3.0), optimal_loss=0).floor == 0.0


@pytest.mark.parametrize("algorithm", [SVT, HEDGE, LEADER])
def test_losses_that_are_not_linear_are_refused(algorithm):
    with pytest.raises(InputError, match=f"{algorithm} needs linear losses, one number for each"):
        make(algorithm, SMOOTH)
    with pytest.raises(InputError, match=r'needs linear losses.*\(curve "mine"\)'):
        fastfed.simulate(
            {"kind": "stochastic-losses", "experts": 3, "loss": "quadratic"},
            horizon=9,
            silos=2,
            curves=[{"label": "mine", "algorithm": algorithm, **REQUIRED[algorithm]}],
        )


BANDIT = {"label": "bandit", "algorithm": "fedlinucb", "batch_size": 5}


@pytest.mark.parametrize("losses", [True, False])
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_bandits_and_experts_need_different_environments(algorithm, losses):
    """Check that the error names environments that would fit."""
    expert = {"label": "expert", "algorithm": algorithm, **REQUIRED[algorithm]}
    if losses:
        environment = {"kind": "realizable-losses", "experts": 3}
        message = r'fedlinucb needs contexts, which "realizable-losses" does not have .*sphere'
        message += r'.*\(curve "bandit"\)'
    else:
        environment = {"kind": "sphere", "dimension": 2, "actions": 3}
        message = rf'{algorithm} needs losses of experts, which "sphere" does not have .*'
        message += r'stochastic-losses.*\(curve "expert"\)'
    for curves in ([expert, BANDIT], [BANDIT, expert]):
        with pytest.raises(InputError, match=message) as error:
            fastfed.simulate(environment, horizon=9, silos=2, curves=curves)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("keys", [{"delta": 1e-3}, {"protect": "messages"}], ids=str)
def test_keys_without_meaning_are_refused_if_there_is_no_noise(keys):
    """Check that delta and protect are refused, as epsilon is."""
    with pytest.raises(InputError, match="noise = "):
        make(OPE, **NO_NOISE, **keys)


# -- Keys and plans ---------------------------------


def test_keys_have_their_documented_defaults():
    checked_keys = {name: ALGORITHMS[name].check(REQUIRED[name]) for name in ALGORITHMS}
    defaults = {name: key_values(keys) for name, keys in checked_keys.items()}
    assert defaults == {
        SVT: {
            "epsilon": 1.0,
            "delta": 0.0,
            "phase_length": 1,
            "optimal_loss": None,
            "failure_probability": 0.05,
            "calibration": "exact",
            "switches": "proven",
            "threshold": "proven",
        },
        OPE: {
            "epsilon": 8.0,
            "delta": 0.0,
            "noise": "local",
            "protect": "experts",
            "calibration": "exact",
            "batch": "paper",
            "smoothness": None,
        },
        BOARD: {
            "epsilon": 1.0,
            "delta": 0.0,
            "phase_length": 1,
            "switch_probability": "proven",
            "switches": "proven",
        },
        LIMITED: {"epsilon": 1.0, "delta": 0.0},
        HEDGE: {"phase_length": 1, "learning_rate": None},
        LEADER: {"phase_length": 1},
    }
    assert svt_plan() == svt_plan(
        delta=0.0, phase_length=1, optimal_loss=0.0, failure_probability=0.05,
        calibration="exact", switches="proven", threshold="proven",
    )  # fmt: skip
    assert ope_plan() == ope_plan(
        delta=0.0, noise="local", protect="experts", calibration="exact", batch="paper",
        smoothness=1.0,
    )  # fmt: skip


def key_values(keys: Any) -> dict[str, Any]:
    """Return the keys and their values as a dict."""
    return {name: getattr(keys, name) for name in keys.__struct_fields__}


@pytest.mark.parametrize("algorithm", [SVT, BOARD, HEDGE, LEADER])
@pytest.mark.parametrize(("length", "exchanges"), [(1, 1999), (2, 1000), (7, 285), (2000, 1)])
def test_messages_are_exchanged_every_phase_length_rounds(algorithm, length, exchanges):
    plan = make(algorithm, phase_length=length).plan
    assert isinstance(plan, SumsPlan)
    assert plan.exchanges == exchanges
    exchanges_before = [plan.exchanges_before(t) for t in range(1, 2001)]
    # Messages are exchanged before rounds N, 2 N, ...; before round 1 there are no losses.
    exchange_rounds = [t for t in range(1, 2001) if t % length == 0 and t > 1]
    assert [
        t for t in range(2, 2001) if exchanges_before[t - 1] > exchanges_before[t - 2]
    ] == exchange_rounds
    assert exchanges_before[0] == 0 and exchanges_before[-1] == exchanges
    assert plan.bits_up(3) == 3 * 64 * 6 * 4
    values_down = {SVT: 4, BOARD: 4, LEADER: 4, HEDGE: 3 * 6}[algorithm]
    assert plan.bits_down(3) == values_down * 64 * 4


def test_default_learning_rate_follows_its_formula():
    for length in (1, 9):
        plan = make(HEDGE, phase_length=length).plan
        assert isinstance(plan, HedgePlan)
        assert plan.learning_rate == pytest.approx(math.sqrt(8 * math.log(6) / (length * 2000)))
    plan = make(HEDGE, learning_rate=0.7).plan
    assert isinstance(plan, HedgePlan) and plan.learning_rate == 0.7


def test_number_of_switches_follows_the_key():
    assert svt_plan().noise.switches == bounds.switching_budget(6, 0.05 / 3)
    assert svt_plan(switches="printed").noise.switches == math.ceil(3 * 3 + 24 * math.log(20))
    assert svt_plan(switches=9).noise.switches == 9
    fails_rarely, fails_often = (
        svt_plan(failure_probability=1e-9),
        svt_plan(failure_probability=0.4),
    )
    assert fails_rarely.noise.switches > svt_plan().noise.switches > fails_often.noise.switches
    # With delta = 0, eta = epsilon / (2 kappa).
    for plan in (fails_rarely, fails_often, svt_plan(switches=9)):
        assert plan.noise.eta == pytest.approx(0.5 / plan.noise.switches)


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_noise_of_fed_svt_follows_its_calibration(delta):
    exact, printed = (
        svt_plan(delta=delta, epsilon=2.0, calibration=calibration)
        for calibration in ("exact", "printed")
    )
    assert (exact.noise.threshold_scale, exact.noise.query_scale) == (1.0, 1.0)
    assert (printed.noise.threshold_scale, printed.noise.query_scale) == (2.0, 4.0)
    kappa = exact.noise.switches
    assert kappa == printed.noise.switches
    if delta == 0.0:
        assert exact.noise.eta == printed.noise.eta == pytest.approx(1.0 / kappa)
    else:
        assert printed.noise.eta == pytest.approx(2.0 / math.sqrt(kappa * math.log(1e4)))
        zcdp = svt_plan(delta=delta, epsilon=2.0, calibration="zcdp").noise
        rho = (math.sqrt(math.log(1e4) + 1.0) - math.sqrt(math.log(1e4))) ** 2
        assert zcdp.eta == pytest.approx(math.sqrt(8 * rho / kappa))
        assert zcdp.eta < exact.noise.eta


def test_threshold_of_fed_svt_follows_the_proof():
    """Check L = m L* + W + 4/eta; for equal noise, the proof's margin W is below the paper's
    margin."""
    for optimal_loss in (0.0, 5.0):
        for length in (1, 20):
            plan = svt_plan(optimal_loss=optimal_loss, phase_length=length)
            margin = plan.threshold - 4 * optimal_loss - 4 / plan.noise.eta
            a, b, kappa = plan.noise.threshold_scale, plan.noise.query_scale, plan.noise.switches
            n = 2000 // length
            assert bounds.early_switch_failure(margin, n, kappa, a, b) <= 0.05 / 3 * (1 + 1e-9)
            assert bounds.early_switch_failure(0.99 * margin, n, kappa, a, b) > 0.05 / 3
            printed = svt_plan(optimal_loss=optimal_loss, phase_length=length, threshold="printed")
            paper_margin = 8 * math.log(2 * (2000 / length) ** 2 / 0.05)
            assert printed.threshold == pytest.approx(
                4 * optimal_loss + paper_margin + 4 / plan.noise.eta
            )
            assert printed.noise == plan.noise and paper_margin > margin
    assert svt_plan(threshold=17.5).threshold == 17.5


def test_phases_follow_the_paper():
    """Check batches b = 2^(p-1)/(p-1)^2, rounded to a power of two, and disjoint sample sets."""
    for keys in ({}, {"batch": "largest"}, {"smoothness": 40.0}, {"epsilon": 200.0}):
        for noise in ("local", "central"):
            plan = ope_plan(**keys, noise=noise)
            assert plan.phases
            gain = 4 if noise == "central" else 2
            for phase in plan.phases:
                p, b, trees = phase.number, phase.batch, phase.trees
                assert b & (b - 1) == 0 and b % 2**trees == 0
                assert phase.used <= 2 ** (p - 2) and phase.first == 2 ** (p - 1)
                assert len(phase.leaves) == 2 ** (trees + 1) - 2
                if keys.get("batch") != "largest":
                    assert b <= 2 ** (p - 1) / (p - 1) ** 2 < 2 * b
                epsilon, beta = keys.get("epsilon", 8.0), keys.get("smoothness", 1.0)
                max_trees = 0.5 * math.log2(b * epsilon * beta * gain / math.log(6))
                assert trees <= max_trees
            assert plan.exchanges == sum(len(phase.leaves) for phase in plan.phases)
            assert plan.bits_up(5) == 5 * 64 * 6 * 4 and plan.bits_down(5) == 5 * 64 * 4
    samples_used = {
        rule: sum(p.used for p in ope_plan(batch=rule).phases) for rule in ("paper", "largest")
    }
    assert samples_used["largest"] > 2 * samples_used["paper"]


def test_smoothness_defaults_to_that_of_the_losses():
    same_smoothness, larger_smoothness = (
        {"epsilon": 1.0, "smoothness": 1.0},
        {"epsilon": 1.0, "smoothness": 64.0},
    )
    assert (
        ope_plan(SMOOTH, epsilon=1.0)
        == ope_plan(SMOOTH, **same_smoothness)
        != ope_plan(SMOOTH, **larger_smoothness)
    )
    flat = dataclasses.replace(SMOOTH, smoothness=0.5)
    assert ope_plan(flat) == ope_plan(flat, smoothness=0.5)
    # Linear losses have no smoothness; alpha takes its place.
    assert ope_plan(epsilon=1.0) == ope_plan(**same_smoothness) != ope_plan(**larger_smoothness)
    steep = dataclasses.replace(LINEAR, lipschitz=2.0)
    assert ope_plan(steep) == ope_plan(steep, smoothness=2.0)


def test_without_noise_phases_have_as_many_trees_as_fit():
    plan = ope_plan(**NO_NOISE)
    assert {s for phase in plan.phases for s in phase.scales} == {0.0}
    assert len(plan.phases) >= len(ope_plan(epsilon=1e6).phases)
    for phase in plan.phases:
        one_more = phase.batch * (phase.trees + 1 + (phase.trees + 1) * (phase.trees + 2) / 4)
        assert phase.batch % 2 ** (phase.trees + 1) or one_more > 2 ** (phase.number - 2)


# -- Certificates ----------------------------------------------------------------------------------


def check_claim(expert_certificate: Certificate) -> bool:
    """Check conditions and caveats of the certificate and return whether its claim holds."""
    (claim,) = [
        condition
        for condition in expert_certificate.conditions
        if isinstance(condition, ClaimCondition)
    ]
    assert all(
        condition.holds for condition in expert_certificate.conditions if condition is not claim
    )
    assert (
        any("claimed budget is not met" in condition for condition in expert_certificate.caveats)
        != claim.holds
    )
    return claim.holds


@pytest.mark.parametrize("switches", ["proven", "printed", 3])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.1, 20.0])
def test_certificate_of_fed_svt_gives_the_exact_epsilon(epsilon, delta, switches):
    """Compute epsilon from the plan: one comparison and kappa choices."""
    for calibration in ("exact", "printed", *(("zcdp",) if delta else ())):
        keys = {"epsilon": epsilon, "delta": delta, "switches": switches}
        system = make(SVT, calibration=calibration, **keys)
        expert_certificate, plan = system.certificate, system.plan
        assert (
            expert_certificate.status,
            expert_certificate.unit,
            expert_certificate.relation,
        ) == (
            "proven",
            "user",
            "replace",
        )
        assert (expert_certificate.claimed.epsilon, expert_certificate.claimed.delta) == (
            epsilon,
            delta,
        )
        assert expert_certificate.model.startswith("central: the server is trusted")
        assert expert_certificate.source.startswith("gao-2024, Algorithm 5 (corrected)")
        assert expert_certificate.also == () and expert_certificate.exact.delta == delta
        # All comparisons together count once. Each choice is a mechanism of bounded range.
        noise = plan.noise
        comparison_epsilon = max(1 / noise.threshold_scale, 1 / noise.query_scale)
        kappa = noise.switches
        if delta == 0.0:
            expected = comparison_epsilon + kappa * noise.eta
        else:
            expected = min(
                composed_epsilon(
                    [
                        ("randomized-response", comparison_epsilon, 1),
                        ("bounded-range", noise.eta, kappa),
                    ],
                    delta,
                ),
                comparison_epsilon + epsilon_of_rho(kappa * rho_of_bounded_range(noise.eta), delta),
            )
            assert expected <= comparison_epsilon + kappa * noise.eta
        assert expert_certificate.exact.epsilon == pytest.approx(expected, rel=1e-12)
        assert check_claim(expert_certificate) == (expert_certificate.exact.epsilon <= epsilon)
        if calibration == "exact":
            assert 0.999 * epsilon < expert_certificate.exact.epsilon <= epsilon
        elif calibration == "zcdp" or delta == 0.0:
            assert expert_certificate.exact.epsilon <= epsilon
        assert expert_certificate.noise_std == pytest.approx(
            {
                "threshold": math.sqrt(2) * noise.threshold_scale,
                "query": math.sqrt(2) * noise.query_scale,
            }
        )


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_printed_fed_svt_exceeds_its_claim(delta):
    expert_certificate = certificate(
        SVT, epsilon=20.0, delta=delta, calibration="printed", switches="printed"
    )
    assert expert_certificate.status == "proven" and expert_certificate.exact.epsilon > 1.2 * 20.0
    assert not check_claim(expert_certificate)
    assert "[fails]" in str(expert_certificate)


cached_epsilon = cache(composed_epsilon)


def vertex_epsilon(phase: Any, problem: ProblemSpec, messages: bool, delta: float) -> float:
    """Return the epsilon of one loss of a phase.

    The worst leaf counts, with Laplace noise on its scores or the argmin of noisy scores.
    """
    max_epsilon, d = 0.0, problem.experts
    for tree, scale in enumerate(phase.scales, start=1):
        for depth in range(tree + 1):
            leaves = 2 ** (tree - depth)
            change = problem.spread / phase.batch
            if depth:
                gradient_change = min(
                    problem.spread, problem.smoothness * max_change(2**tree - 1, leaves)
                )
                change = 2 * gradient_change * 2**depth / phase.batch
            costs = [cached_epsilon((("laplace", change / scale, d * leaves),), delta)]
            if not messages:
                argmin = (("randomized-response", 2 * change / scale, leaves),)
                costs.append(cached_epsilon(argmin, delta))
            max_epsilon = max(max_epsilon, min(costs))
    return max_epsilon


@pytest.mark.parametrize("delta", [0.0, 1e-4])
@pytest.mark.parametrize("setting", [LINEAR, SMOOTH, SIGNED], ids=["linear", "smooth", "signed"])
@pytest.mark.parametrize(
    ("noise", "protect"), [("local", "experts"), ("local", "messages"), ("central", "experts")]
)
def test_certificate_of_fed_dp_ope_stoch_gives_the_exact_epsilon(setting, noise, protect, delta):
    """Compute epsilon from the plan, for experts and for messages; which one is exact depends on
    `protect`."""
    calibrations = ("exact", "corrected", "printed")
    if delta:  # with delta, calibration takes longer
        calibrations = ("printed",) if setting is SIGNED else ("exact",)
    for calibration in calibrations:
        keys = {"noise": noise, "protect": protect, "delta": delta, "smoothness": 20.0}
        system = make(OPE, setting, calibration=calibration, **keys)
        expert_certificate, plan = system.certificate, system.plan
        assert len(plan.phases) > 3 and max(p.trees for p in plan.phases) > 2
        assert (
            expert_certificate.status,
            expert_certificate.unit,
            expert_certificate.relation,
        ) == (
            "proven",
            "user",
            "replace",
        )
        assert (expert_certificate.claimed.epsilon, expert_certificate.claimed.delta) == (
            8.0,
            delta,
        )
        assert expert_certificate.source.startswith("gao-2024, ")
        experts_epsilon, messages_epsilon = (
            max(vertex_epsilon(p, setting, protects_messages, delta) for p in plan.phases)
            for protects_messages in (False, True)
        )
        expected_epsilon, expected_other_epsilon = (
            (messages_epsilon, experts_epsilon)
            if protect == "messages"
            else (experts_epsilon, messages_epsilon)
        )
        assert expert_certificate.exact.epsilon == pytest.approx(expected_epsilon, rel=1e-9)
        assert check_claim(expert_certificate) == (expert_certificate.exact.epsilon <= 8.0)
        if calibration == "exact":
            assert 0.99 * 8.0 < expert_certificate.exact.epsilon <= 8.0
        if calibration == "corrected":
            assert expert_certificate.exact.epsilon <= 8.0
        elif calibration == "printed" and setting is SIGNED:
            assert expert_certificate.exact.epsilon > 1.9 * 8.0 and not check_claim(
                expert_certificate
            )
        clients_per_noise = 4 if noise == "central" else 1
        assert expert_certificate.noise_std == pytest.approx(
            {
                f"phase {p.number}": math.sqrt(2) * max(p.scales) / clients_per_noise
                for p in plan.phases
            }
        )
        # Local noise also protects against the server, with a different epsilon.
        if noise == "central":
            assert expert_certificate.also == () and expert_certificate.model.startswith(
                "central: the server is trusted"
            )
            assert any(
                "clients send the server raw numbers" in c for c in expert_certificate.caveats
            )
            continue
        (also,) = expert_certificate.also
        assert (also.status, also.unit, also.claimed) == ("proven", "user", None)
        assert also.exact.epsilon == pytest.approx(expected_other_epsilon, rel=1e-9)
        assert also.noise_std == expert_certificate.noise_std
        models = expert_certificate.model, also.model
        if protect == "messages":
            models = models[::-1]
        assert models == (
            "whoever sees the experts that are played is not trusted",
            "silo-level local: server and other clients are not trusted",
        )


@pytest.mark.parametrize("calibration", ["exact", "corrected", "printed"])
def test_noise_scales_follow_the_lemma(calibration):
    """Check the printed lambda_j = 4 alpha 2^j/(b eps).

    The proof needs twice this value for experts and d times this value for messages.
    """
    for protect, factor in (("experts", 8.0), ("messages", 24.0)):
        plan = ope_plan(ROUGH, calibration=calibration, protect=protect, smoothness=20.0)
        factor = 4.0 if calibration == "printed" else factor
        for phase in plan.phases:
            for tree, scale in enumerate(phase.scales, start=1):
                assert scale == pytest.approx(factor * 2**tree / (phase.batch * 8.0))


def test_exact_noise_depends_on_properties_of_the_losses():
    """Compare the noise of four kinds of losses.

    Gradients in [0, 1] need half the noise of gradients of both signs. Linear losses need half of
    that. Deeper in a tree x moves little, so smooth losses need less noise than rough losses.
    """
    settings = LINEAR, SMOOTH, SIGNED, ROUGH
    for a, b, c, d in zip(
        *(ope_plan(problem, smoothness=20.0).phases for problem in settings), strict=True
    ):
        assert (a.batch, a.trees) == (b.batch, b.trees) == (c.batch, c.trees) == (d.batch, d.trees)
        np.testing.assert_allclose(b.scales, 2 * np.array(a.scales))
        np.testing.assert_allclose(d.scales, 2 * np.array(b.scales))
        assert c.scales[0] == d.scales[0]
        assert all(
            smooth_scale < rough_scale
            for smooth_scale, rough_scale in zip(c.scales[1:], d.scales[1:], strict=True)
        )


def test_a_positive_delta_never_increases_the_noise():
    keys = {"epsilon": 0.5, "smoothness": 900.0, "batch": "largest"}
    plain, with_delta = ope_plan(**keys), ope_plan(**keys, delta=1e-3)
    for a, b in zip(plain.phases, with_delta.phases, strict=True):
        assert all(y <= x * (1 + 1e-12) for x, y in zip(a.scales, b.scales, strict=True))
        assert a.trees < 5 or b.scales[-1] < 0.8 * a.scales[-1]
    assert max(p.trees for p in plain.phases) == 5
    assert svt_plan(delta=1e-3, switches=80).noise.eta > svt_plan(switches=80).noise.eta


def test_certificate_without_privacy_has_status_none():
    for system in (make(OPE, **NO_NOISE), make(HEDGE), make(LEADER)):
        expert_certificate = system.certificate
        assert (
            expert_certificate.status,
            expert_certificate.exact,
            expert_certificate.claimed,
        ) == (
            "none",
            None,
            None,
        )
        assert (
            expert_certificate.caveats[0] == "no privacy"
            and not expert_certificate.noise_std
            and not expert_certificate.also
        )


def test_a_budget_too_small_for_a_tree_releases_nothing():
    """Check that x_1 is chosen in all rounds and that epsilon is 0."""
    system = make(OPE, epsilon=1e-4)
    expert_certificate = system.certificate
    assert system.plan.phases == () and system.plan.exchanges == 0
    assert (expert_certificate.status, expert_certificate.exact.epsilon) == ("proven", 0.0)
    assert [a.exact.epsilon for a in expert_certificate.also] == [0.0]
    assert any("x_1 is played to the end" in c for c in expert_certificate.caveats)
    assert not any("x_1 is played" in c for c in certificate(OPE).caveats)


def test_certificate_has_caveats_about_regret():
    def has_caveat(word: str, *args: Any, **keys: Any) -> bool:
        """Return whether a caveat of the certificate contains the word."""
        return any(word in c for c in certificate(*args, **keys).caveats)

    assert has_caveat("is a key's word", SVT, UNKNOWN_OPTIMUM, optimal_loss=1.0)
    assert not has_caveat("is a key's word", SVT)
    loose = dataclasses.replace(LINEAR, optimal_loss=4.0)
    assert has_caveat("may lose 4, more than optimal_loss = 1", SVT, loose, optimal_loss=1.0)
    assert not has_caveat("more than optimal_loss", SVT, loose, optimal_loss=4.0)
    assert has_caveat("beyond the horizon", SVT, epsilon=0.001)
    assert not has_caveat("beyond the horizon", SVT, epsilon=10.0)
    caveat_text = "needs losses of one distribution"
    assert has_caveat(caveat_text, OPE, dataclasses.replace(LINEAR, iid=False)) and not has_caveat(
        caveat_text, OPE
    )
    noted = dataclasses.replace(LINEAR, notes=("taken on trust",))
    assert has_caveat("taken on trust", SVT, noted) and has_caveat("taken on trust", OPE, noted)
    # None of these caveats changes the privacy account.
    assert certificate(SVT, UNKNOWN_OPTIMUM, optimal_loss=9.0).exact == certificate(SVT).exact


def test_only_simulations_have_a_caveat_about_simulation():
    for algorithm in (SVT, OPE):
        system = make(algorithm)
        assert SIMULATION_CAVEAT in system.certificate.caveats
        assert not any("simulation" in c for c in system.deployed_certificate.caveats)
        assert system.deployed_certificate.exact == system.certificate.exact
        text = " ".join(system.certificate.caveats)
        assert "Laplace noise and exact probabilities" in text and "Gaussian" not in text


# -- Bounds ----------------------------------------------------------------------------------------

#: Losses fixed in advance: regret compares with the best expert in hindsight.
FIXED = dataclasses.replace(LINEAR, iid=False)

BOUND_CASES: list[tuple[str, ProblemSpec, dict[str, Any], set[str]]] = [
    (SVT, FIXED, {}, {"proven", "theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"delta": 1e-3}, {"proven", "theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"switches": 4}, {"theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"threshold": "printed"}, {"theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, LINEAR, {}, {"proven", "theorem-2-6", "hidden-expert"}),
    (OPE, LINEAR, {}, {"proven", "theorem-2-2", "hidden-expert"}),
    (OPE, LINEAR, {"noise": "central"}, {"proven", "theorem-2-2", "hidden-expert"}),
    (OPE, LINEAR, NO_NOISE, {"proven"}),
    (OPE, SMOOTH, {}, {"proven", "theorem-2-2"}),
    (OPE, SIGNED, NO_NOISE, {"proven"}),
    (HEDGE, FIXED, {}, {"theorem-2-4"}),
    (LEADER, FIXED, {}, {"theorem-2-4"}),
    # Theorem 2.4 bounds regret in hindsight only, and these losses have pseudo-regret.
    (HEDGE, LINEAR, {}, set()),
]


@pytest.mark.parametrize(("algorithm", "problem", "keys", "names"), BOUND_CASES)
def test_bounds_are_finite_and_do_not_fall(algorithm, problem, keys, names):
    system = make(algorithm, problem, **keys)
    assert system.bounds_at is not None
    rounds = np.unique(np.geomspace(1, 2000, 25).astype(np.int64))
    bounds_by_name = system.bounds_at(rounds)
    assert set(bounds_by_name) == names
    for name, values in bounds_by_name.items():
        bound_values = np.array(values)
        assert bound_values.shape == rounds.shape and np.isfinite(bound_values).all(), name
        assert (bound_values >= 0).all() and (
            np.diff(bound_values) >= -1e-9 * bound_values[1:]
        ).all(), name
        assert bound_values[-1] > 0
        if name == "proven":
            # No more than all that can be lost.
            assert (bound_values <= 4 * rounds * max(problem.loss_range, 1.0) * (1 + 1e-12)).all()
        single_value = system.bounds_at(rounds[7:8])[name]
        assert single_value == pytest.approx(values[7:8], rel=1e-12)


def test_losses_that_are_not_iid_have_no_proven_bound():
    assert make(OPE, dataclasses.replace(LINEAR, iid=False)).bounds_at is None


# -- Simulated -------------------------------------------------------------------------------------

SIMULATED_CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kind": "realizable-losses"}, {"algorithm": SVT, "epsilon": 20.0}),
    ({"kind": "near-realizable-losses", "optimal_loss": 3}, {"algorithm": SVT, "epsilon": 20.0}),
    (
        {"kind": "lower-bound-losses", "theorem": "2.7", "burst": 25},
        {"algorithm": SVT, "epsilon": 20.0, "phase_length": 2},
    ),
    ({"kind": "stochastic-losses", "gap": 0.3}, {"algorithm": OPE, "epsilon": 40.0}),
    (
        {"kind": "stochastic-losses", "gap": 0.3, "loss": "quadratic"},
        {"algorithm": OPE, "noise": "none", "batch": "largest"},
    ),
]


@pytest.mark.parametrize(("environment", "curve"), SIMULATED_CASES)
def test_simulated_regret_is_below_the_proven_bound(environment, curve):
    """Check the upper bound; regret falls below zero at most by the best expert's loss."""
    keys = {key: value for key, value in curve.items() if key != "algorithm"}
    result = fastfed.simulate(
        {"experts": 8, **environment}, curve["algorithm"], horizon=1000, silos=8, replicates=8,
        seed=2, checkpoints=10, **keys,
    ).curves[0]  # fmt: skip
    proven_bound = np.array(result.bounds["proven"])
    assert result.group_regret.shape == (8, 10) and (result.group_regret <= proven_bound).all()
    assert (result.group_regret >= -8 * environment.get("optimal_loss", 0)).all()
    # The algorithm learns: the last 400 rounds cost less than the first 400.
    early_regret, late_regret = result.mean[3], result.mean[-1] - result.mean[5]
    assert early_regret > 0 and late_regret < 0.8 * early_regret
    assert proven_bound[-1] < 8 * 1000 * 1.01


def test_regret_of_hedge_is_below_its_theorem():
    """Check sqrt(N T ln(d)/2) per client for coins that are equal at all clients."""
    for length in (1, 5):
        result = fastfed.simulate(
            {"kind": "lower-bound-losses", "experts": 8}, HEDGE, horizon=500, silos=3,
            replicates=10, seed=1, checkpoints=5, phase_length=length,
        ).curves[0]  # fmt: skip
        bound = 3 * math.sqrt(length * 500 * math.log(8) / 2)
        assert (result.group_regret[:, -1] <= bound).all()
        assert result.mean[-1] > 0.3 * 3 * math.sqrt(500 * math.log(8) / 2)
        assert result.events == {}


def test_leader_finds_the_best_expert_at_the_first_exchange():
    """Use losses after which the best expert is known from round 1 on."""
    for length in (1, 4):
        result = fastfed.simulate(
            {"kind": "lower-bound-losses", "experts": 5, "theorem": "2.7", "burst": 40}, LEADER,
            horizon=50, silos=3, replicates=12, seed=1, checkpoints=50, phase_length=length,
        ).curves[0]  # fmt: skip
        loss = result.group_regret[:, -1] / 3
        # A wrong first guess costs 1 per round until the first exchange, before round 2 or round N.
        max_loss = 1 if length == 1 else length - 1
        assert set(loss) <= {0.0, float(max_loss)} and loss.max() == max_loss
        assert result.events == {"switches": int((loss > 0).sum())}


# -- Specs and the command line --------------------------------------------------------------------

ENVIRONMENT = {"kind": "realizable-losses", "experts": 4}
CURVES: list[dict[str, Any]] = [
    {"label": "SVT", "algorithm": SVT, "epsilon": [5.0, 50.0], "delta": 1e-3, "silos": [2, 6]},
    {"label": "phases", "algorithm": SVT, "epsilon": 50.0, "phase_length": [2, 5]},
    {"label": "OPE", "algorithm": OPE, "epsilon": 90.0, "noise": ["local", "central"]},
    {"label": "hedge", "algorithm": HEDGE, "experts": [4, 9], "mean": [0.5, 0.9]},
    {"label": "leader", "algorithm": LEADER},
]
LABELS = [
    *(f"SVT, epsilon = {e}, silos = {m}" for e in (5.0, 50.0) for m in (2, 6)),
    *(f"phases, phase_length = {n}" for n in (2, 5)),
    *(f"OPE, noise = {n}" for n in ("local", "central")),
    *(f"hedge, experts = {d}, mean = {p}" for d in (4, 9) for p in (0.5, 0.9)),
    "leader",
]
SPEC: dict[str, Any] = {
    "name": "experts",
    "horizon": 70,
    "silos": 3,
    "replicates": 2,
    "seed": 4,
    "checkpoints": 7,
    "environment": ENVIRONMENT,
    "curve": CURVES,
}
TOML = """
name = "experts"
horizon = 70
silos = 3
replicates = 2
seed = 4
checkpoints = 7

[environment]
kind = "realizable-losses"
experts = 4

[[curve]]
label = "SVT"
algorithm = "fed-svt"
epsilon = [5.0, 50.0]
delta = 1e-3

[[curve]]
label = "OPE"
algorithm = "fed-dp-ope-stoch"
epsilon = 90.0

[[curve]]
label = "leader"
algorithm = "follow-the-leader"
"""
TOML_LABELS = ["SVT, epsilon = 5.0", "SVT, epsilon = 50.0", "OPE", "leader"]


def test_sweeps_over_keys_silos_and_environment_parameters():
    results = [
        fastfed.simulate(
            ENVIRONMENT, horizon=70, silos=3, replicates=2, seed=4, checkpoints=7, curves=CURVES,
            **driver_keys,
        )
        for driver_keys in ({}, {"threads": 1}, {"driver": "step"})
    ]  # fmt: skip
    for other_results in results[1:]:
        assert_same_results(results[0], other_results)
        assert [c.events for c in other_results.curves] == [c.events for c in results[0].curves]
    curves = {curve.label: curve for curve in results[0].curves}
    assert list(curves) == LABELS
    assert [curves[x].silos for x in LABELS] == [2, 6, 2, 6, *[3] * 9]
    assert [curves[x].dimension for x in LABELS] == [*[4] * 8, 4, 4, 9, 9, 4]
    # Larger losses give more regret.
    assert (
        curves["hedge, experts = 4, mean = 0.9"].mean[-1]
        > curves["hedge, experts = 4, mean = 0.5"].mean[-1]
    )
    low_epsilon, high_epsilon = (curves[f"SVT, epsilon = {e}, silos = 6"] for e in (5.0, 50.0))
    assert (low_epsilon.group_regret != high_epsilon.group_regret).any()
    phases = curves["phases, phase_length = 5"].rounds // 5
    np.testing.assert_array_equal(
        curves["phases, phase_length = 5"].synchronisation_counts, [phases, phases]
    )
    for label in LABELS[:6]:
        assert set(curves[label].events) == {"switches", "switches_spent"}
    assert curves["leader"].events["switches"] > 0
    assert curves[LABELS[0]].certificate["unit"] == "user"


def test_a_curve_does_not_depend_on_other_curves(tmp_path):
    together = fastfed.run(experiment_from_spec(SPEC), tmp_path / "all")
    for curve, label in ((CURVES[1], LABELS[5]), (CURVES[4], "leader")):
        alone = fastfed.run(
            experiment_from_spec(SPEC | {"curve": [curve]}), tmp_path / curve["label"]
        )
        np.testing.assert_array_equal(alone[label].group_regret, together[label].group_regret)


def test_a_resumed_run_repeats_no_batch(tmp_path):
    remaining_batches, (resumed, *other_results) = check_resumed(SPEC, tmp_path)
    # Expert curves are not batched: one batch is one curve of one replicate.
    assert remaining_batches == [len(LABELS), len(LABELS), 0]
    for other in other_results:
        assert [curve.events for curve in other.curves] == [
            curve.events for curve in resumed.curves
        ]
    assert missing_batches(experiment_from_spec(SPEC), {(i, 0) for i in range(13)})


def invoke(*args: Any) -> str:
    """Run the command line and return its output."""
    result = CliRunner().invoke(cli, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """Write the spec, and return its path."""
    path = tmp_path / "experts.toml"
    path.write_text(TOML)
    return path


def test_command_list_names_experts():
    listed = json.loads(invoke("list", "--json"))
    assert set(ALGORITHMS) <= {entry["id"] for entry in listed["algorithms"]}
    papers = {entry["id"]: entry["paper"] for entry in listed["algorithms"]}
    assert papers[SVT] == papers[OPE] == "gao-2024"
    kinds = {entry["id"] for entry in listed["environments"]}
    assert len({kind for kind in kinds if kind.endswith("-losses")}) == 6


def test_command_privacy_prints_certificates(toml):
    printed = invoke("privacy", toml)
    for label in TOML_LABELS:
        assert f"\n{label}\n" in "\n" + printed
    problem = ProblemSpec(silos=3, horizon=70, experts=4, optimal_loss=0.0)
    expert_certificate = certificate(SVT, problem, epsilon=5.0, delta=1e-3)
    for condition in expert_certificate.conditions:
        assert condition.text in " ".join(printed.split())
    single_curve = invoke("privacy", toml, "--curve", TOML_LABELS[0], "--json")
    assert '"unit": "user"' in single_curve and TOML_LABELS[1] not in single_curve


def test_commands_run_results_and_report_agree(toml, tmp_path):
    table = invoke("run", toml, "-o", tmp_path / "out")
    out = tmp_path / "out"
    listed = json.loads(invoke("results", out, "--json"))
    assert [curve["label"] for curve in listed["curves"]] == TOML_LABELS
    events = {curve["label"]: curve["events"] for curve in listed["curves"]}
    assert set(events[TOML_LABELS[0]]) == {"switches", "switches_spent"}
    assert events["leader"]["switches"] > 0 and events["OPE"] == {}
    sentence = (
        f"leader: switches of the expert, {events['leader']['switches']} times in all replicates"
    )
    assert sentence in table and sentence in (out / "table.txt").read_text()
    rows = list(csv.DictReader(io.StringIO(invoke("results", out, "--csv"))))
    assert [row["label"] for row in rows] == TOML_LABELS
    assert rows[3]["switches"] == str(events["leader"]["switches"])
    assert rows[2]["switches"] == "" and rows[3]["privacy_status"] == "none"
    assert float(rows[0]["claimed_epsilon"]) == 5.0
    assert 4.95 < float(rows[0]["exact_epsilon"]) <= 5.0
    assert all(label in (out / "certificates.txt").read_text() for label in TOML_LABELS)
    report = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert "report.html" in invoke("report", out)
    new_report = (out / "report.html").read_text()
    assert (
        "SVT" in new_report
        and "switches of the expert" in new_report
        and len(new_report) == len(report)
    )


def test_a_repeated_run_simulates_nothing(toml, tmp_path):
    out = tmp_path / "out"
    invoke("run", toml, "-o", out)
    stored_cells = cells(out)
    second_run = CliRunner().invoke(cli, ["run", str(toml), "-o", str(out)])
    assert second_run.exit_code == 0 and "nothing left to run" in second_run.stderr
    assert cells(out) == stored_cells
    third_run = CliRunner().invoke(cli, ["run", str(toml), "-o", str(out), "--replicates", "3"])
    assert third_run.exit_code == 0 and len(cells(out)[2]) == 12
    assert cells(out)[2] != stored_cells[2] and all(row in cells(out)[2] for row in stored_cells[2])


def test_errors_about_a_bad_spec_are_one_sentence(toml, tmp_path):
    toml.write_text(TOML.replace("realizable-losses", "stochastic-losses"))
    result = CliRunner().invoke(cli, ["run", str(toml), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    assert "optimal_loss (L*) is required" in " ".join(result.stderr.split())
    toml.write_text(
        TOML + '\n[[curve]]\nlabel = "bandit"\nalgorithm = "fedlinucb"\nbatch_size = 5\n'
    )
    result = CliRunner().invoke(cli, ["privacy", str(toml)])
    assert result.exit_code == 2 and "needs contexts" in result.stderr


def test_quick_keeps_at_least_one_phase(toml, tmp_path):
    """Check that --quick, which keeps a tenth of the rounds, keeps a full phase."""
    toml.write_text(TOML.replace('"follow-the-leader"', '"follow-the-leader"\nphase_length = 10'))
    result = CliRunner().invoke(cli, ["run", str(toml), "-o", str(tmp_path / "out"), "--quick"])
    assert result.exit_code == 0, result.output


def test_every_key_changes_the_digest():
    """Check that no other experiment can resume a store."""
    base = SPEC | {"curve": [{"label": "a", "algorithm": SVT, "epsilon": 50.0}]}
    digests = {experiment_from_spec(base).digest()}
    changes: dict[str, Any] = {
        "epsilon": 40.0,
        "delta": 1e-3,
        "phase_length": 2,
        "optimal_loss": 1.0,
        "failure_probability": 0.1,
        "calibration": "printed",
        "switches": 3,
        "threshold": 9.0,
    }
    for key, value in changes.items():
        curve = {**base["curve"][0], key: value}
        digests.add(experiment_from_spec(base | {"curve": [curve]}).digest())
    assert len(digests) == len(changes) + 1
