"""Config of the systems of experts: what they refuse, what they certify, and what a spec plays."""

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
from test_run import cells, check_resumed, same

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
from fastfed.privacy.certificate import SIMULATION, Certificate, ClaimCondition
from fastfed.privacy.mechanisms.vertex_sets import max_change
from fastfed.simulation.dispatch import missing_batches
from fastfed.simulation.experiment import experiment_from_spec

LINEAR = ProblemSpec(silos=4, horizon=2000, experts=6, iid=True, optimal_loss=0.0)
SMOOTH = dataclasses.replace(
    LINEAR, linear=False, smoothness=1.0, loss_range=0.5, optimal_loss=None
)
#: Gradients of both signs, as a user's own losses have them.
SIGNED = dataclasses.replace(SMOOTH, spread=2.0, loss_range=2.0)
#: ... and no smoothness to speak of.
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


def make(algorithm: str, setting: ProblemSpec = LINEAR, **keys: Any) -> System:
    """The system, with a budget where it needs one unless ``keys`` say otherwise (...: none)."""
    given = {**REQUIRED[algorithm], **keys}
    return ALGORITHMS[algorithm].make({k: v for k, v in given.items() if v is not ...}, setting)


def certificate(algorithm: str, setting: ProblemSpec = LINEAR, **keys: Any) -> Certificate:
    return make(algorithm, setting, **keys).certificate


def svt(setting: ProblemSpec = LINEAR, **keys: Any) -> SparseVectorPlan:
    plan = make(SVT, setting, **keys).plan
    assert isinstance(plan, SparseVectorPlan)
    return plan


def ope(setting: ProblemSpec = LINEAR, **keys: Any) -> FrankWolfePlan:
    plan = make(OPE, setting, **keys).plan
    assert isinstance(plan, FrankWolfePlan)
    return plan


# -- What is refused -------------------------------------------------------------------------------

NO_PROMISE = dataclasses.replace(LINEAR, optimal_loss=None)
PLAIN = {"epsilon": ..., "noise": "none"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("algorithm", "keys", "message"), REFUSED)
def test_every_error_is_one_sentence(algorithm, keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(algorithm, **keys)
    assert "\n" not in str(error.value)


def test_a_promise_or_a_key_says_what_the_best_expert_loses():
    with pytest.raises(InputError, match=r"optimal_loss \(L\*\) is required: these losses do not"):
        make(SVT, NO_PROMISE)
    assert svt(NO_PROMISE, optimal_loss=2.0).floor == 8.0
    # The key stands before what the losses promise.
    assert svt(dataclasses.replace(LINEAR, optimal_loss=3.0)).floor == 12.0
    assert svt(dataclasses.replace(LINEAR, optimal_loss=3.0), optimal_loss=0).floor == 0.0


@pytest.mark.parametrize("algorithm", [SVT, HEDGE, LEADER])
def test_losses_that_are_no_vectors_are_refused(algorithm):
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
def test_bandits_and_experts_do_not_mix(algorithm, losses):
    """Whatever the environment, one of the two is refused, and told what would fit."""
    expert = {"label": "expert", "algorithm": algorithm, **REQUIRED[algorithm]}
    if losses:
        environment = {"kind": "realizable-losses", "experts": 3}
        sentence = r'fedlinucb needs contexts, which "realizable-losses" does not have .*sphere'
        sentence += r'.*\(curve "bandit"\)'
    else:
        environment = {"kind": "sphere", "dimension": 2, "actions": 3}
        sentence = rf'{algorithm} needs losses of experts, which "sphere" does not have .*'
        sentence += r'stochastic-losses.*\(curve "expert"\)'
    for curves in ([expert, BANDIT], [BANDIT, expert]):
        with pytest.raises(InputError, match=sentence) as error:
            fastfed.simulate(environment, horizon=9, silos=2, curves=curves)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("keys", [{"delta": 1e-3}, {"protect": "messages"}], ids=str)
def test_keys_that_have_no_meaning_without_noise_are_refused(keys):
    """As epsilon is, and as delta is where a bandit has private = false."""
    with pytest.raises(InputError, match="noise = "):
        make(OPE, **PLAIN, **keys)


# -- Keys and plans ---------------------------------


def test_defaults():
    entry = {name: ALGORITHMS[name].check(REQUIRED[name]) for name in ALGORITHMS}
    kept = {name: dataclass_of(keys) for name, keys in entry.items()}
    assert kept == {
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
    assert svt() == svt(
        delta=0.0, phase_length=1, optimal_loss=0.0, failure_probability=0.05,
        calibration="exact", switches="proven", threshold="proven",
    )  # fmt: skip
    assert ope() == ope(
        delta=0.0, noise="local", protect="experts", calibration="exact", batch="paper",
        smoothness=1.0,
    )  # fmt: skip


def dataclass_of(keys: Any) -> dict[str, Any]:
    return {name: getattr(keys, name) for name in keys.__struct_fields__}


@pytest.mark.parametrize("algorithm", [SVT, BOARD, HEDGE, LEADER])
@pytest.mark.parametrize(("length", "exchanges"), [(1, 1999), (2, 1000), (7, 285), (2000, 1)])
def test_phase_length_is_when_messages_are_exchanged(algorithm, length, exchanges):
    plan = make(algorithm, phase_length=length).plan
    assert isinstance(plan, SumsPlan)
    assert plan.exchanges == exchanges
    made = [plan.exchanges_before(t) for t in range(1, 2001)]
    # Before rounds N, 2 N, ...; before round 1 nothing is known.
    expected = [t for t in range(1, 2001) if t % length == 0 and t > 1]
    assert [t for t in range(2, 2001) if made[t - 1] > made[t - 2]] == expected
    assert made[0] == 0 and made[-1] == exchanges
    assert plan.bits_up(3) == 3 * 64 * 6 * 4
    down = {SVT: 4, BOARD: 4, LEADER: 4, HEDGE: 3 * 6}[algorithm]
    assert plan.bits_down(3) == down * 64 * 4


def test_learning_rate():
    for length in (1, 9):
        plan = make(HEDGE, phase_length=length).plan
        assert isinstance(plan, HedgePlan)
        assert plan.learning_rate == pytest.approx(math.sqrt(8 * math.log(6) / (length * 2000)))
    plan = make(HEDGE, learning_rate=0.7).plan
    assert isinstance(plan, HedgePlan) and plan.learning_rate == 0.7


def test_switches():
    assert svt().noise.switches == bounds.switching_budget(6, 0.05 / 3)
    assert svt(switches="printed").noise.switches == math.ceil(3 * 3 + 24 * math.log(20))
    assert svt(switches=9).noise.switches == 9
    rare, often = svt(failure_probability=1e-9), svt(failure_probability=0.4)
    assert rare.noise.switches > svt().noise.switches > often.noise.switches
    # Pure: eta = epsilon / (2 kappa).
    for plan in (rare, often, svt(switches=9)):
        assert plan.noise.eta == pytest.approx(0.5 / plan.noise.switches)


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_noise_of_fed_svt(delta):
    exact, printed = (svt(delta=delta, epsilon=2.0, calibration=c) for c in ("exact", "printed"))
    assert (exact.noise.threshold_scale, exact.noise.query_scale) == (1.0, 1.0)
    assert (printed.noise.threshold_scale, printed.noise.query_scale) == (2.0, 4.0)
    kappa = exact.noise.switches
    assert kappa == printed.noise.switches
    if delta == 0.0:
        assert exact.noise.eta == printed.noise.eta == pytest.approx(1.0 / kappa)
    else:
        assert printed.noise.eta == pytest.approx(2.0 / math.sqrt(kappa * math.log(1e4)))
        zcdp = svt(delta=delta, epsilon=2.0, calibration="zcdp").noise
        rho = (math.sqrt(math.log(1e4) + 1.0) - math.sqrt(math.log(1e4))) ** 2
        assert zcdp.eta == pytest.approx(math.sqrt(8 * rho / kappa))
        assert zcdp.eta < exact.noise.eta


def test_threshold():
    """L = m L* + W + 4/eta; the margin W of the proof is below the paper's for the same noise."""
    for best in (0.0, 5.0):
        for length in (1, 20):
            plan = svt(optimal_loss=best, phase_length=length)
            margin = plan.threshold - 4 * best - 4 / plan.noise.eta
            a, b, kappa = plan.noise.threshold_scale, plan.noise.query_scale, plan.noise.switches
            n = 2000 // length
            assert bounds.early_switch_failure(margin, n, kappa, a, b) <= 0.05 / 3 * (1 + 1e-9)
            assert bounds.early_switch_failure(0.99 * margin, n, kappa, a, b) > 0.05 / 3
            printed = svt(optimal_loss=best, phase_length=length, threshold="printed")
            paper = 8 * math.log(2 * (2000 / length) ** 2 / 0.05)
            assert printed.threshold == pytest.approx(4 * best + paper + 4 / plan.noise.eta)
            assert printed.noise == plan.noise and paper > margin
    assert svt(threshold=17.5).threshold == 17.5


def test_phases_of_the_paper():
    """b = 2^(p-1)/(p-1)^2 as a power of two, and disjoint sets that fit into the last phase."""
    for keys in ({}, {"batch": "largest"}, {"smoothness": 40.0}, {"epsilon": 200.0}):
        for noise in ("local", "central"):
            plan = ope(**keys, noise=noise)
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
                wanted = 0.5 * math.log2(b * epsilon * beta * gain / math.log(6))
                assert trees <= wanted
            assert plan.exchanges == sum(len(phase.leaves) for phase in plan.phases)
            assert plan.bits_up(5) == 5 * 64 * 6 * 4 and plan.bits_down(5) == 5 * 64 * 4
    used = {rule: sum(p.used for p in ope(batch=rule).phases) for rule in ("paper", "largest")}
    assert used["largest"] > 2 * used["paper"]


def test_smoothness_is_the_losses_own_unless_said():
    own, other = {"epsilon": 1.0, "smoothness": 1.0}, {"epsilon": 1.0, "smoothness": 64.0}
    assert ope(SMOOTH, epsilon=1.0) == ope(SMOOTH, **own) != ope(SMOOTH, **other)
    flat = dataclasses.replace(SMOOTH, smoothness=0.5)
    assert ope(flat) == ope(flat, smoothness=0.5)
    # Linear losses have none: alpha.
    assert ope(epsilon=1.0) == ope(**own) != ope(**other)
    steep = dataclasses.replace(LINEAR, lipschitz=2.0)
    assert ope(steep) == ope(steep, smoothness=2.0)


def test_without_noise_all_trees_that_fit_are_grown():
    plan = ope(**PLAIN)
    assert {s for phase in plan.phases for s in phase.scales} == {0.0}
    assert len(plan.phases) >= len(ope(epsilon=1e6).phases)
    for phase in plan.phases:
        one_more = phase.batch * (phase.trees + 1 + (phase.trees + 1) * (phase.trees + 2) / 4)
        assert phase.batch % 2 ** (phase.trees + 1) or one_more > 2 ** (phase.number - 2)


# -- Certificates ----------------------------------------------------------------------------------


def claim_holds(found: Certificate) -> bool:
    (claim,) = [c for c in found.conditions if isinstance(c, ClaimCondition)]
    assert all(c.holds for c in found.conditions if c is not claim)
    assert any("claimed budget is not met" in c for c in found.caveats) != claim.holds
    return claim.holds


@pytest.mark.parametrize("switches", ["proven", "printed", 3])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.1, 20.0])
def test_certificate_of_fed_svt(epsilon, delta, switches):
    for calibration in ("exact", "printed", *(("zcdp",) if delta else ())):
        keys = {"epsilon": epsilon, "delta": delta, "switches": switches}
        system = make(SVT, calibration=calibration, **keys)
        found, plan = system.certificate, system.plan
        assert (found.status, found.unit, found.relation) == ("proven", "user", "replace")
        assert (found.claimed.epsilon, found.claimed.delta) == (epsilon, delta)
        assert found.model.startswith("central: the server is trusted")
        assert found.source.startswith("gao-2024, Algorithm 5 (corrected)")
        assert found.also == () and found.exact.delta == delta
        # The comparisons once, and each choice as a mechanism of bounded range.
        noise = plan.noise
        once = max(1 / noise.threshold_scale, 1 / noise.query_scale)
        kappa = noise.switches
        if delta == 0.0:
            expected = once + kappa * noise.eta
        else:
            expected = min(
                composed_epsilon(
                    [("randomized-response", once, 1), ("bounded-range", noise.eta, kappa)], delta
                ),
                once + epsilon_of_rho(kappa * rho_of_bounded_range(noise.eta), delta),
            )
            assert expected <= once + kappa * noise.eta
        assert found.exact.epsilon == pytest.approx(expected, rel=1e-12)
        assert claim_holds(found) == (found.exact.epsilon <= epsilon)
        if calibration == "exact":
            assert 0.999 * epsilon < found.exact.epsilon <= epsilon
        elif calibration == "zcdp" or delta == 0.0:
            assert found.exact.epsilon <= epsilon
        assert found.noise_std == pytest.approx(
            {
                "threshold": math.sqrt(2) * noise.threshold_scale,
                "query": math.sqrt(2) * noise.query_scale,
            }
        )


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_printed_fed_svt_exceeds_its_claim(delta):
    found = certificate(SVT, epsilon=20.0, delta=delta, calibration="printed", switches="printed")
    assert found.status == "proven" and found.exact.epsilon > 1.2 * 20.0
    assert not claim_holds(found)
    assert "[fails]" in str(found)


composed = cache(composed_epsilon)


def vertex_epsilon(phase: Any, setting: ProblemSpec, messages: bool, delta: float) -> float:
    """What one loss of a phase pays, from Laplace noise, argmins and the sets above each leaf."""
    worst, d = 0.0, setting.experts
    for tree, scale in enumerate(phase.scales, start=1):
        for depth in range(tree + 1):
            leaves = 2 ** (tree - depth)
            change = setting.spread / phase.batch
            if depth:
                moved = min(setting.spread, setting.smoothness * max_change(2**tree - 1, leaves))
                change = 2 * moved * 2**depth / phase.batch
            costs = [composed((("laplace", change / scale, d * leaves),), delta)]
            if not messages:
                argmin = (("randomized-response", 2 * change / scale, leaves),)
                costs.append(composed(argmin, delta))
            worst = max(worst, min(costs))
    return worst


@pytest.mark.parametrize("delta", [0.0, 1e-4])
@pytest.mark.parametrize("setting", [LINEAR, SMOOTH, SIGNED], ids=["linear", "smooth", "signed"])
@pytest.mark.parametrize(
    ("noise", "protect"), [("local", "experts"), ("local", "messages"), ("central", "experts")]
)
def test_certificate_of_fed_dp_ope_stoch(setting, noise, protect, delta):
    calibrations = ("exact", "corrected", "printed")
    if delta:  # takes longer
        calibrations = ("printed",) if setting is SIGNED else ("exact",)
    for calibration in calibrations:
        keys = {"noise": noise, "protect": protect, "delta": delta, "smoothness": 20.0}
        system = make(OPE, setting, calibration=calibration, **keys)
        found, plan = system.certificate, system.plan
        assert len(plan.phases) > 3 and max(p.trees for p in plan.phases) > 2
        assert (found.status, found.unit, found.relation) == ("proven", "user", "replace")
        assert (found.claimed.epsilon, found.claimed.delta) == (8.0, delta)
        assert found.source.startswith("gao-2024, ")
        experts, messages = (
            max(vertex_epsilon(p, setting, told, delta) for p in plan.phases)
            for told in (False, True)
        )
        top, other = (messages, experts) if protect == "messages" else (experts, messages)
        assert found.exact.epsilon == pytest.approx(top, rel=1e-9)
        assert claim_holds(found) == (found.exact.epsilon <= 8.0)
        if calibration == "exact":
            assert 0.99 * 8.0 < found.exact.epsilon <= 8.0
        if calibration == "corrected":
            assert found.exact.epsilon <= 8.0
        elif calibration == "printed" and setting is SIGNED:
            assert found.exact.epsilon > 1.9 * 8.0 and not claim_holds(found)
        share = 4 if noise == "central" else 1
        assert found.noise_std == pytest.approx(
            {f"phase {p.number}": math.sqrt(2) * max(p.scales) / share for p in plan.phases}
        )
        # Local noise protects from the server too, with another epsilon.
        if noise == "central":
            assert found.also == () and found.model.startswith("central: the server is trusted")
            assert any("clients send the server raw numbers" in c for c in found.caveats)
            continue
        (also,) = found.also
        assert (also.status, also.unit, also.claimed) == ("proven", "user", None)
        assert also.exact.epsilon == pytest.approx(other, rel=1e-9)
        assert also.noise_std == found.noise_std
        models = found.model, also.model
        if protect == "messages":
            models = models[::-1]
        assert models == (
            "whoever sees the experts that are played is not trusted",
            "silo-level local: server and other clients are not trusted",
        )


@pytest.mark.parametrize("calibration", ["exact", "corrected", "printed"])
def test_scales_of_the_lemma(calibration):
    """lambda_j = 4 alpha 2^j/(b eps) as printed, and twice it, or d times, as its proof needs."""
    for protect, factor in (("experts", 8.0), ("messages", 24.0)):
        plan = ope(ROUGH, calibration=calibration, protect=protect, smoothness=20.0)
        factor = 4.0 if calibration == "printed" else factor
        for phase in plan.phases:
            for tree, scale in enumerate(phase.scales, start=1):
                assert scale == pytest.approx(factor * 2**tree / (phase.batch * 8.0))


def test_exact_noise_takes_what_losses_promise():
    """Gradients in [0, 1] need half the noise of those with both signs, linear losses half of that;
    and where x hardly moves, smooth ones less than rough ones."""
    settings = LINEAR, SMOOTH, SIGNED, ROUGH
    for a, b, c, d in zip(*(ope(s, smoothness=20.0).phases for s in settings), strict=True):
        assert (a.batch, a.trees) == (b.batch, b.trees) == (c.batch, c.trees) == (d.batch, d.trees)
        np.testing.assert_allclose(b.scales, 2 * np.array(a.scales))
        np.testing.assert_allclose(d.scales, 2 * np.array(b.scales))
        assert c.scales[0] == d.scales[0]
        assert all(x < y for x, y in zip(c.scales[1:], d.scales[1:], strict=True))


def test_a_delta_never_costs_noise():
    keys = {"epsilon": 0.5, "smoothness": 900.0, "batch": "largest"}
    plain, with_delta = ope(**keys), ope(**keys, delta=1e-3)
    for a, b in zip(plain.phases, with_delta.phases, strict=True):
        assert all(y <= x * (1 + 1e-12) for x, y in zip(a.scales, b.scales, strict=True))
        assert a.trees < 5 or b.scales[-1] < 0.8 * a.scales[-1]
    assert max(p.trees for p in plain.phases) == 5
    assert svt(delta=1e-3, switches=80).noise.eta > svt(switches=80).noise.eta


def test_without_privacy_nothing_is_promised():
    for system in (make(OPE, **PLAIN), make(HEDGE), make(LEADER)):
        found = system.certificate
        assert (found.status, found.exact, found.claimed) == ("none", None, None)
        assert found.caveats[0] == "no privacy" and not found.noise_std and not found.also


def test_no_phase_no_loss():
    """A budget too small for a tree: x_1 is played, and nothing of the losses is told."""
    system = make(OPE, epsilon=1e-4)
    found = system.certificate
    assert system.plan.phases == () and system.plan.exchanges == 0
    assert (found.status, found.exact.epsilon) == ("proven", 0.0)
    assert [a.exact.epsilon for a in found.also] == [0.0]
    assert any("x_1 is played to the end" in c for c in found.caveats)
    assert not any("x_1 is played" in c for c in certificate(OPE).caveats)


def test_caveats_about_the_regret():
    def said(word: str, *args: Any, **keys: Any) -> bool:
        return any(word in c for c in certificate(*args, **keys).caveats)

    assert said("is a key's word", SVT, NO_PROMISE, optimal_loss=1.0)
    assert not said("is a key's word", SVT)
    loose = dataclasses.replace(LINEAR, optimal_loss=4.0)
    assert said("may lose 4, more than optimal_loss = 1", SVT, loose, optimal_loss=1.0)
    assert not said("more than optimal_loss", SVT, loose, optimal_loss=4.0)
    assert said("beyond the horizon", SVT, epsilon=0.001)
    assert not said("beyond the horizon", SVT, epsilon=10.0)
    one_law = "not promised to be of one law"
    assert said(one_law, OPE, dataclasses.replace(LINEAR, iid=False)) and not said(one_law, OPE)
    noted = dataclasses.replace(LINEAR, notes=("taken on trust",))
    assert said("taken on trust", SVT, noted) and said("taken on trust", OPE, noted)
    # None of it touches the account.
    assert certificate(SVT, NO_PROMISE, optimal_loss=9.0).exact == certificate(SVT).exact


def test_simulation_is_said_of_simulations_only():
    for algorithm in (SVT, OPE):
        system = make(algorithm)
        assert SIMULATION in system.certificate.caveats
        assert not any("simulation" in c for c in system.deployed_certificate.caveats)
        assert system.deployed_certificate.exact == system.certificate.exact
        text = " ".join(system.certificate.caveats)
        assert "Laplace noise and exact probabilities" in text and "Gaussian" not in text


# -- Bounds ----------------------------------------------------------------------------------------

#: Fixed in advance: regret is in hindsight.
FIXED = dataclasses.replace(LINEAR, iid=False)

DRAWN: list[tuple[str, ProblemSpec, dict[str, Any], set[str]]] = [
    (SVT, FIXED, {}, {"proven", "theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"delta": 1e-3}, {"proven", "theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"switches": 4}, {"theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, FIXED, {"threshold": "printed"}, {"theorem-2-6", "theorem-2-4", "hidden-expert"}),
    (SVT, LINEAR, {}, {"proven", "theorem-2-6", "hidden-expert"}),
    (OPE, LINEAR, {}, {"proven", "theorem-2-2", "hidden-expert"}),
    (OPE, LINEAR, {"noise": "central"}, {"proven", "theorem-2-2", "hidden-expert"}),
    (OPE, LINEAR, PLAIN, {"proven"}),
    (OPE, SMOOTH, {}, {"proven", "theorem-2-2"}),
    (OPE, SIGNED, PLAIN, {"proven"}),
    (HEDGE, FIXED, {}, {"theorem-2-4"}),
    (LEADER, FIXED, {}, {"theorem-2-4"}),
    # In expectation no fair coin is better than another.
    (HEDGE, LINEAR, {}, set()),
]


@pytest.mark.parametrize(("algorithm", "setting", "keys", "names"), DRAWN)
def test_bounds_are_finite_and_do_not_fall(algorithm, setting, keys, names):
    system = make(algorithm, setting, **keys)
    assert system.bounds_at is not None
    rounds = np.unique(np.geomspace(1, 2000, 25).astype(np.int64))
    found = system.bounds_at(rounds)
    assert set(found) == names
    for name, values in found.items():
        drawn = np.array(values)
        assert drawn.shape == rounds.shape and np.isfinite(drawn).all(), name
        assert (drawn >= 0).all() and (np.diff(drawn) >= -1e-9 * drawn[1:]).all(), name
        assert drawn[-1] > 0
        if name == "proven":
            # No more than all that can be lost.
            assert (drawn <= 4 * rounds * max(setting.loss_range, 1.0) * (1 + 1e-12)).all()
        one = system.bounds_at(rounds[7:8])[name]
        assert one == pytest.approx(values[7:8], rel=1e-12)


def test_losses_of_no_law_have_no_proven_line():
    assert make(OPE, dataclasses.replace(LINEAR, iid=False)).bounds_at is None


# -- Played ----------------------------------------------------------------------------------------

PLAYED: list[tuple[dict[str, Any], dict[str, Any]]] = [
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


@pytest.mark.parametrize(("environment", "curve"), PLAYED)
def test_played_regret_is_below_the_proven_bound(environment, curve):
    """And nothing is gained on the best expert but what it loses itself, or on the law's best."""
    keys = {k: v for k, v in curve.items() if k != "algorithm"}
    found = fastfed.simulate(
        {"experts": 8, **environment}, curve["algorithm"], horizon=1000, silos=8, replicates=8,
        seed=2, checkpoints=10, **keys,
    ).curves[0]  # fmt: skip
    top = np.array(found.bounds["proven"])
    assert found.group_regret.shape == (8, 10) and (found.group_regret <= top).all()
    assert (found.group_regret >= -8 * environment.get("optimal_loss", 0)).all()
    # It learns: the last 400 rounds cost less than the first.
    first, last = found.mean[3], found.mean[-1] - found.mean[5]
    assert first > 0 and last < 0.8 * first
    assert top[-1] < 8 * 1000 * 1.01


def test_hedge_is_below_its_theorem():
    """sqrt(N T ln(d)/2) a client, against coins that are the same at all of them."""
    for length in (1, 5):
        found = fastfed.simulate(
            {"kind": "lower-bound-losses", "experts": 8}, HEDGE, horizon=500, silos=3,
            replicates=10, seed=1, checkpoints=5, phase_length=length,
        ).curves[0]  # fmt: skip
        most = 3 * math.sqrt(length * 500 * math.log(8) / 2)
        assert (found.group_regret[:, -1] <= most).all()
        assert found.mean[-1] > 0.3 * 3 * math.sqrt(500 * math.log(8) / 2)
        assert found.events == {}


def test_leader_learns_at_once_what_does_not_change():
    """Two losses of 1 at round 1, and from then on none: N rounds later the hidden one is found."""
    for length in (1, 4):
        found = fastfed.simulate(
            {"kind": "lower-bound-losses", "experts": 5, "theorem": "2.7", "burst": 40}, LEADER,
            horizon=50, silos=3, replicates=12, seed=1, checkpoints=50, phase_length=length,
        ).curves[0]  # fmt: skip
        lost = found.group_regret[:, -1] / 3
        # Wrong until the first exchange, before round 2 or N, unless the first guess was right.
        wrong = 1 if length == 1 else length - 1
        assert set(lost) <= {0.0, float(wrong)} and lost.max() == wrong
        assert found.events == {"switches": int((lost > 0).sum())}


# -- In an experiment ------------------------------------------------------------------------------

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
SHOWN = ["SVT, epsilon = 5.0", "SVT, epsilon = 50.0", "OPE", "leader"]


def test_sweeps_over_keys_silos_and_numbers_of_the_environment():
    played = [
        fastfed.simulate(
            ENVIRONMENT, horizon=70, silos=3, replicates=2, seed=4, checkpoints=7, curves=CURVES,
            **more,
        )
        for more in ({}, {"threads": 1}, {"driver": "step"})
    ]  # fmt: skip
    for other in played[1:]:
        same(played[0], other)
        assert [c.events for c in other.curves] == [c.events for c in played[0].curves]
    curves = {curve.label: curve for curve in played[0].curves}
    assert list(curves) == LABELS
    assert [curves[x].silos for x in LABELS] == [2, 6, 2, 6, *[3] * 9]
    assert [curves[x].dimension for x in LABELS] == [*[4] * 8, 4, 4, 9, 9, 4]
    # More losses, more regret.
    assert (
        curves["hedge, experts = 4, mean = 0.9"].mean[-1]
        > curves["hedge, experts = 4, mean = 0.5"].mean[-1]
    )
    few, many = (curves[f"SVT, epsilon = {e}, silos = 6"] for e in (5.0, 50.0))
    assert (few.group_regret != many.group_regret).any()
    ends = curves["phases, phase_length = 5"].rounds // 5
    np.testing.assert_array_equal(
        curves["phases, phase_length = 5"].synchronisation_counts, [ends, ends]
    )
    for label in LABELS[:6]:
        assert set(curves[label].events) == {"switches", "switches_spent"}
    assert curves["leader"].events["switches"] > 0
    assert curves[LABELS[0]].certificate["unit"] == "user"


def test_a_curve_alone_is_as_it_is_beside_others(tmp_path):
    together = fastfed.run(experiment_from_spec(SPEC), tmp_path / "all")
    for table, label in ((CURVES[1], LABELS[5]), (CURVES[4], "leader")):
        alone = fastfed.run(
            experiment_from_spec(SPEC | {"curve": [table]}), tmp_path / table["label"]
        )
        np.testing.assert_array_equal(alone[label].group_regret, together[label].group_regret)


def test_a_run_resumes_and_repeats_nothing(tmp_path):
    left, (grown, *others) = check_resumed(SPEC, tmp_path)
    # Experts play alone: a pass is a curve of a replicate.
    assert left == [len(LABELS), len(LABELS), 0]
    for other in others:
        assert [c.events for c in other.curves] == [c.events for c in grown.curves]
    assert missing_batches(experiment_from_spec(SPEC), {(i, 0) for i in range(13)})


def invoke(*args: Any) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "experts.toml"
    path.write_text(TOML)
    return path


def test_fastfed_list_names_them():
    listed = json.loads(invoke("list", "--json"))
    assert set(ALGORITHMS) <= {entry["id"] for entry in listed["algorithms"]}
    papers = {entry["id"]: entry["paper"] for entry in listed["algorithms"]}
    assert papers[SVT] == papers[OPE] == "gao-2024"
    kinds = {entry["id"] for entry in listed["environments"]}
    assert len({k for k in kinds if k.endswith("-losses")}) == 6


def test_fastfed_privacy_prints_it(toml):
    printed = invoke("privacy", toml)
    for label in SHOWN:
        assert f"\n{label}\n" in "\n" + printed
    setting = ProblemSpec(silos=3, horizon=70, experts=4, optimal_loss=0.0)
    found = certificate(SVT, setting, epsilon=5.0, delta=1e-3)
    for condition in found.conditions:
        assert condition.text in " ".join(printed.split())
    one = invoke("privacy", toml, "--curve", SHOWN[0], "--json")
    assert '"unit": "user"' in one and SHOWN[1] not in one


def test_fastfed_run_results_and_report(toml, tmp_path):
    table = invoke("run", toml, "-o", tmp_path / "out")
    out = tmp_path / "out"
    listed = json.loads(invoke("results", out, "--json"))
    assert [c["label"] for c in listed["curves"]] == SHOWN
    events = {c["label"]: c["events"] for c in listed["curves"]}
    assert set(events[SHOWN[0]]) == {"switches", "switches_spent"}
    assert events["leader"]["switches"] > 0 and events["OPE"] == {}
    said = f"leader: switches of the expert, {events['leader']['switches']} times in all replicates"
    assert said in table and said in (out / "table.txt").read_text()
    rows = list(csv.DictReader(io.StringIO(invoke("results", out, "--csv"))))
    assert [row["label"] for row in rows] == SHOWN
    assert rows[3]["switches"] == str(events["leader"]["switches"])
    assert rows[2]["switches"] == "" and rows[3]["privacy_status"] == "none"
    assert float(rows[0]["claimed_epsilon"]) == 5.0
    assert 4.95 < float(rows[0]["exact_epsilon"]) <= 5.0
    assert all(label in (out / "certificates.txt").read_text() for label in SHOWN)
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert "report.html" in invoke("report", out)
    again = (out / "report.html").read_text()
    assert "SVT" in again and "switches of the expert" in again and len(again) == len(page)


def test_the_same_command_again_plays_nothing(toml, tmp_path):
    out = tmp_path / "out"
    invoke("run", toml, "-o", out)
    before = cells(out)
    again = CliRunner().invoke(cli, ["run", str(toml), "-o", str(out)])
    assert again.exit_code == 0 and "nothing left to run" in again.stderr
    assert cells(out) == before
    more = CliRunner().invoke(cli, ["run", str(toml), "-o", str(out), "--replicates", "3"])
    assert more.exit_code == 0 and len(cells(out)[2]) == 12
    assert cells(out)[2] != before[2] and all(row in cells(out)[2] for row in before[2])


def test_a_bad_spec_is_one_sentence(toml, tmp_path):
    toml.write_text(TOML.replace("realizable-losses", "stochastic-losses"))
    result = CliRunner().invoke(cli, ["run", str(toml), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    assert "optimal_loss (L*) is required" in " ".join(result.stderr.split())
    toml.write_text(
        TOML + '\n[[curve]]\nlabel = "bandit"\nalgorithm = "fedlinucb"\nbatch_size = 5\n'
    )
    result = CliRunner().invoke(cli, ["privacy", str(toml)])
    assert result.exit_code == 2 and "needs contexts" in result.stderr


def test_quick_leaves_room_for_a_phase(toml, tmp_path):
    """As it does for a batch: a tenth of the rounds may be less than one phase."""
    toml.write_text(TOML.replace('"follow-the-leader"', '"follow-the-leader"\nphase_length = 10'))
    result = CliRunner().invoke(cli, ["run", str(toml), "-o", str(tmp_path / "out"), "--quick"])
    assert result.exit_code == 0, result.output


def test_every_key_decides_the_identity():
    """A store is not resumed by another experiment."""
    base = SPEC | {"curve": [{"label": "a", "algorithm": SVT, "epsilon": 50.0}]}
    seen = {experiment_from_spec(base).digest()}
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
        table = {**base["curve"][0], key: value}
        seen.add(experiment_from_spec(base | {"curve": [table]}).digest())
    assert len(seen) == len(changes) + 1
