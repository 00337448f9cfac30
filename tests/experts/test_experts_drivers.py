"""Tests of experts: both drivers, threads, checkpoints, seeds, loss functions, noise and regret."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from itertools import combinations, pairwise, product
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import coins as oracle
from scipy import stats
from scipy.optimize import minimize
from test_drivers import assert_same_bits

import fastfed
from fastfed import InputError
from fastfed._kernels import losses as loss_kernels
from fastfed._kernels import rng
from fastfed._random import CONTEXT, SAMPLE, SCORE_NOISE, SeededNoise, SystemNoise
from fastfed.environments import (
    GradientLosses,
    LowerBoundLosses,
    NearRealizableLosses,
    ObliviousLosses,
    RealizableLosses,
    StochasticLosses,
    gradient_signature,
    losses_signature,
)
from fastfed.environments.base import best_expert
from fastfed.environments.losses import (
    linear_suboptimality,
    square_loss,
    square_minimum,
    square_suboptimality,
)
from fastfed.experts.frank_wolfe import Bounds, FrankWolfePlan, GradientCollector, NoisyLeast, Phase
from fastfed.experts.plan import CENTRAL_SCORES, LOCAL_SCORES
from fastfed.simulation import experts
from fastfed.simulation.experiment import Experiment, make_experiment

UNIT = 2.0**-24


# -- Loss functions of a user, in Python and compiled ---------------------------------------------


def python_losses(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
    """Return losses of 5 experts in [0, 1] that are not multiples of 2^-24."""
    n = np.arange(5)
    return ((7 * silo + 13 * round + 5 * n * n + 3 * replicate + seed) % 29) / 28.0


def python_gradient(seed: int, replicate: int, silo: int, round: int, x: np.ndarray) -> Any:
    """Return half the squared distance of x to a point, and its gradient.

    The point in 4 dimensions depends on seed, replicate, silo and round.
    """
    loss, gradient = 0.0, np.zeros(4)
    for n in range(4):
        gradient[n] = x[n] - ((3 * silo + 11 * round + 7 * n + replicate + seed) % 17) / 32.0
        loss += 0.5 * gradient[n] * gradient[n]
    return loss, gradient


@cache
def compiled_losses() -> Any:
    """Return ``python_losses`` as a function compiled by numba."""
    import numba

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        """Write the losses of ``python_losses`` to ``loss``."""
        for n in range(5):
            loss[n] = ((7 * silo + 13 * round + 5 * n * n + 3 * replicate + seed) % 29) / 28.0
        return 0

    return function


@cache
def compiled_gradient() -> Any:
    """Return ``python_gradient`` as a function compiled by numba."""
    import numba

    @numba.cfunc(gradient_signature())
    def function(state, seed, replicate, silo, round, x, gradient):
        """Write the gradient of ``python_gradient``, and return the loss."""
        loss = 0.0
        for n in range(4):
            gradient[n] = x[n] - ((3 * silo + 11 * round + 7 * n + replicate + seed) % 17) / 32.0
            loss += 0.5 * gradient[n] * gradient[n]
        return loss

    return function


def gradient_environment(function: Any) -> GradientLosses:
    """Return losses whose gradients a function gives."""
    return GradientLosses(function=function, experts=4, optimum=np.full(4, 0.25), spread=2.0)


TABLE = np.random.default_rng(8).random((3, 150, 6))


def linear_losses(d: int = 5) -> StochasticLosses:
    """Return linear stochastic losses of d experts."""
    return StochasticLosses(experts=d)


def quadratic_losses(d: int = 5) -> StochasticLosses:
    """Return quadratic stochastic losses of d experts."""
    return StochasticLosses(experts=d, mean=0.7, gap=0.3, loss="quadratic")


OPE = {"algorithm": "fed-dp-ope-stoch", "batch": "largest", "epsilon": 20.0}
SVT = {"algorithm": "fed-svt", "epsilon": 5.0, "threshold": 12.0, "switches": 5}
LEADER, HEDGE = {"algorithm": "follow-the-leader"}, {"algorithm": "hedge"}
#: Name -> (environment, curve, horizon, silos).
PROBLEMS: dict[str, tuple[Any, dict[str, Any], int, int]] = {
    "linear": (linear_losses(), OPE, 130, 3),
    "quadratic": (quadratic_losses(), OPE, 130, 3),
    "gradients": (gradient_environment(python_gradient), OPE, 100, 2),
    "server's noise": (quadratic_losses(), {**OPE, "noise": "central"}, 130, 5),
    "no noise": (
        quadratic_losses(), {"algorithm": "fed-dp-ope-stoch", "noise": "none", "batch": "largest"},
        130, 3,
    ),
    "as in the paper": (quadratic_losses(3), {**OPE, "batch": "paper", "epsilon": 90.0}, 270, 2),
    "messages": (linear_losses(3), {**OPE, "protect": "messages", "epsilon": 60.0}, 130, 4),
    "no tree": (linear_losses(), OPE, 5, 3),
    "hindsight": (ObliviousLosses(losses=TABLE), OPE, 150, 3),
    "svt": (RealizableLosses(experts=7), SVT, 140, 4),
    "svt, N = 9": (
        NearRealizableLosses(experts=7, optimal_loss=5), {**SVT, "phase_length": 9}, 140, 4
    ),
    "svt, table": (ObliviousLosses(losses=TABLE), {**SVT, "optimal_loss": 2.0}, 150, 3),
    "svt, function": (
        ObliviousLosses(function=python_losses, experts=5), {**SVT, "optimal_loss": 0.0}, 90, 3
    ),
    "svt, pseudo-regret": (linear_losses(), {**SVT, "optimal_loss": 0.0}, 90, 3),
    "svt, one client": (LowerBoundLosses(experts=3, theorem="2.7", burst=60), SVT, 90, 1),
    "dartboard": (
        ObliviousLosses(losses=TABLE),
        {"algorithm": "private-dartboard", "epsilon": 20.0, "switch_probability": 0.1}, 150, 3,
    ),
    "dartboard, N = 7, pseudo-regret": (
        linear_losses(), {"algorithm": "private-dartboard", "epsilon": 20.0, "phase_length": 7},
        140, 3,
    ),
    "limited updates": (
        RealizableLosses(experts=7), {"algorithm": "limited-updates", "epsilon": 2.0}, 140, 4
    ),
    "leader": (ObliviousLosses(losses=TABLE), LEADER, 140, 3),
    "leader, ties": (LowerBoundLosses(experts=5), {**LEADER, "phase_length": 7}, 140, 6),
    "leader, pseudo-regret": (linear_losses(), LEADER, 140, 2),
    "hedge": (ObliviousLosses(losses=TABLE), HEDGE, 140, 3),
    "hedge, N = 7": (LowerBoundLosses(experts=5), {**HEDGE, "phase_length": 7}, 140, 6),
    "hedge, pseudo-regret": (linear_losses(), HEDGE, 140, 3),
    "hedge, common function": (
        ObliviousLosses(function=python_losses, experts=5, common=True), HEDGE, 60, 4
    ),
    "one round": (linear_losses(), HEDGE, 1, 3),
}  # fmt: skip
#: Problems in which each choice is one expert and losses are multiples of 2^-24. So is the regret.
INTEGER_REGRET = [n for n in PROBLEMS if n.startswith(("svt", "leader")) and "pseudo" not in n]


@cache
def experiment(name: str, *, seed: int = 7, checkpoints: int = 6) -> Experiment:
    """Return the experiment of one problem."""
    environment, curve, horizon, silos = PROBLEMS[name]
    return make_experiment(
        name="experts", environment=environment, curves=[curve], horizon=horizon, silos=silos,
        seed=seed, checkpoints=checkpoints,
    )  # fmt: skip


def run_compiled(e: Experiment, replicate: int = 0, **keys: Any) -> Any:
    """Run the experiment with the compiled driver."""
    environment = e.environment.open(e.seed, replicate, e.silos)
    checkpoints = keys.pop("checkpoints", e.checkpoints)
    return experts.run(environment, e.curves[0].system.plan, checkpoints, **keys)


def run_readable(e: Experiment, replicate: int = 0, **keys: Any) -> Any:
    """Run the experiment with the step driver, which is written in Python."""
    environment = e.environment.open(e.seed, replicate, e.silos)
    checkpoints = keys.pop("checkpoints", e.checkpoints)
    return experts.run_steps(environment, e.curves[0].system.plan, checkpoints, **keys)


FIELDS = ("group_regret", "synchronisations", "bits_up", "bits_down")


# -- Both drivers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_drivers_agree_bit_for_bit(name):
    e = experiment(name)
    outcome = run_compiled(e)
    assert_same_bits(outcome, run_readable(e))
    for threads in (2, 3):
        assert_same_bits(outcome, run_compiled(e, threads=threads))
    assert np.isfinite(outcome.group_regret).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_simulate_gives_equal_bits_in_both_drivers(name):
    environment, curve, horizon, silos = PROBLEMS[name]
    runs = [
        fastfed.simulate(
            environment, curves=[curve], horizon=horizon, silos=silos, replicates=2, seed=3,
            checkpoints=9, **driver_keys,
        ).curves[0]
        for driver_keys in ({"threads": 1}, {"threads": 3}, {"driver": "step"})
    ]  # fmt: skip
    for run in runs[1:]:
        for field in (
            *("group_regret", "synchronisation_counts", "bits_up_counts", "bits_down_counts"),
            *("rounds",),
        ):
            np.testing.assert_array_equal(getattr(runs[0], field), getattr(run, field))
        assert runs[0].events == run.events
        assert runs[0].certificate == run.certificate


@pytest.mark.parametrize("name", PROBLEMS)
def test_results_do_not_depend_on_the_block_size_of_sums(name, monkeypatch):
    e = experiment(name)
    outcome = run_compiled(e)
    for max_sums in (1, 60):
        monkeypatch.setattr(experts, "MAX_SUMS", max_sums)
        assert_same_bits(outcome, run_compiled(e, threads=2))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_that_stops_early_equals_the_start_of_the_full_run(name):
    e = experiment(name, checkpoints=10**6)
    full_run = run_compiled(e)
    for last in {1, 8, 63, 64, e.horizon - 1} & set(range(1, e.horizon + 1)):
        short_runs = (
            run_compiled(e, last=last),
            run_compiled(e, last=last, threads=2),
            run_readable(e, last=last),
        )
        for run in short_runs:
            for field in FIELDS:
                short, full = getattr(run, field), getattr(full_run, field)
                np.testing.assert_array_equal(short[:last], full[:last])
            assert not run.group_regret[last:].any() and not run.bits_up[last:].any()
            np.testing.assert_array_equal(run.total, short_runs[0].total)
            assert run.events == short_runs[0].events


@pytest.mark.parametrize("name", PROBLEMS)
def test_results_do_not_depend_on_checkpoints(name):
    """Compare bit for bit where losses are whole units, and up to rounding elsewhere.

    The losses of one x are added up at each checkpoint, so rounding depends on the checkpoints.
    """
    e = experiment(name, checkpoints=10**6)
    full_run = run_compiled(e)
    for rounds in ([e.horizon // 2], [3, 8, 9], [1, 64, e.horizon]):
        checkpoints = np.array([t for t in sorted(set(rounds)) if 1 <= t <= e.horizon])
        if not len(checkpoints):
            continue
        for driver in (run_compiled, run_readable):
            outcome = driver(e, checkpoints=checkpoints)
            for field in FIELDS:
                values, expected = (
                    getattr(outcome, field),
                    getattr(full_run, field)[checkpoints - 1],
                )
                if field == "group_regret" and name not in INTEGER_REGRET:
                    atol = 1e-14 * e.silos * e.horizon
                    np.testing.assert_allclose(values, expected, rtol=1e-13, atol=atol)
                else:
                    np.testing.assert_array_equal(values, expected)
            np.testing.assert_array_equal(outcome.total, full_run.total)
            assert outcome.events == full_run.events


@pytest.mark.parametrize("name", INTEGER_REGRET)
def test_regret_of_single_experts_is_a_multiple_of_the_unit(name):
    regret = run_compiled(experiment(name)).group_regret / UNIT
    np.testing.assert_array_equal(regret, np.rint(regret))


@pytest.mark.parametrize("name", [n for n in PROBLEMS if n not in ("no tree", "one round")])
def test_other_seeds_and_replicates_give_other_runs(name):
    """Check also that the same seed and replicate give the same run."""
    e = experiment(name, checkpoints=30)
    outcome = run_compiled(e)
    assert_same_bits(outcome, run_compiled(e))
    if PROBLEMS[name][0].kind in ("oblivious-losses",) and "hedge" in name:
        # These losses are fixed arrays, and hedge draws nothing at random.
        return
    for other_outcome in (
        run_compiled(e, replicate=1),
        run_compiled(experiment(name, seed=8, checkpoints=30)),
    ):
        assert not np.array_equal(outcome.group_regret, other_outcome.group_regret)


def test_curves_simulated_together_equal_curves_simulated_alone():
    environment = RealizableLosses(experts=6)
    curves = [
        {"label": "a", **SVT}, {"label": "b", **SVT, "phase_length": 4}, {"label": "c", **LEADER},
        {"label": "d", **HEDGE}, {"label": "e", **OPE}, {"label": "f", **OPE, "noise": "central"},
    ]  # fmt: skip
    keys = {"horizon": 90, "silos": 3, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(environment, curves=curves, threads=2, **keys)
    for curve in curves:
        alone = fastfed.simulate(environment, curves=[curve], threads=1, **keys)
        np.testing.assert_array_equal(
            alone.curves[0].group_regret, together[curve["label"]].group_regret
        )
        assert alone.curves[0].events == together[curve["label"]].events


@pytest.mark.parametrize("name", ["linear", "svt", "hedge, N = 7", "gradients"])
def test_progress_counts_each_round_once(name):
    e = experiment(name)
    for driver, last in product((run_compiled, run_readable), (None, 9)):
        reported_rounds: list[int] = []
        driver(e, last=last, progress=reported_rounds.append)
        assert sum(reported_rounds) == (last or e.horizon)


@pytest.mark.parametrize(
    "fault",
    [
        (
            experts.Hedge,
            "decide_many",
            lambda self, part: DECIDE_MANY(self, part._replace(sums=part.sums * 2)),
        ),
        (
            experts,
            "exchange_flags_of",
            lambda plan, edges: ASKS_OF(plan, edges) * (np.arange(len(edges)) != 7),
        ),
    ],
    ids=["sums", "an exchange"],
)
def test_comparison_detects_a_fault_of_one_driver(fault, monkeypatch):
    monkeypatch.setattr(*fault)
    for name in ("hedge", "hedge, N = 7"):
        e = experiment(name)
        with pytest.raises(AssertionError):
            assert_same_bits(run_compiled(e), run_readable(e))


DECIDE_MANY, ASKS_OF = experts.Hedge.decide_many, experts.exchange_flags_of


# -- Loss kernels ----------------------------------------------------------------------------------


def coin_thresholds(*means: float) -> np.ndarray:
    """Convert mean losses to the integer thresholds that ``Coins`` expects."""
    return np.rint(np.array(means) * loss_kernels.CHANCES).astype(np.uint32)


def as_float64(result: Any) -> Any:
    """Return a function's result as a contiguous float64 array."""
    return np.ascontiguousarray(result, dtype=np.float64)


def random_table(m: int, T: int, d: int) -> np.ndarray:
    """Draw a table (m, T, d) of losses in units of 2^-24."""
    generator = np.random.default_rng((m, T, d))
    return generator.integers(0, 2**24 + 1, size=(m, T, d)).astype(np.uint32)


def python_losses_kernel(m: int, **keys: Any) -> loss_kernels.Losses:
    """Return the kernel that calls ``python_losses`` for m silos."""
    return loss_kernels.Called(2, 1, m, 5, python_losses, as_float64, **keys)


def compiled_losses_kernel(m: int, **keys: Any) -> loss_kernels.Losses:
    """Return the kernel that calls ``compiled_losses`` for m silos."""
    return loss_kernels.Compiled(2, 1, m, 5, compiled_losses(), None, **keys)


COIN_MEANS = coin_thresholds(0.5, 0.25, 1.0, 0.0, 0.9)
#: Name -> function of the number of silos m that returns losses for 700 rounds.
LOSSES: dict[str, Callable[[int], loss_kernels.Losses]] = {
    "coins": lambda m: loss_kernels.Coins(1, 0, m, COIN_MEANS),
    "common coins": lambda m: loss_kernels.Coins(1, 0, m, COIN_MEANS, common=True),
    "coins that stop": lambda m: loss_kernels.Coins(1, 0, m, COIN_MEANS, last=301),
    "coins, common, that stop": lambda m: loss_kernels.Coins(
        1, 3, m, COIN_MEANS, common=True, last=2
    ),
    "planned": lambda m: loss_kernels.Coins(1, 0, m, COIN_MEANS, planned=2, lost=111),
    "planned, never": lambda m: loss_kernels.Coins(1, 0, m, COIN_MEANS, planned=0, lost=0),
    "planned, stopping": lambda m: loss_kernels.Coins(
        1, 0, m, COIN_MEANS, planned=4, lost=300, last=100
    ),
    "many experts": lambda m: loss_kernels.Coins(1, 0, m, coin_thresholds(*np.linspace(0, 1, 77))),
    "a table": lambda m: loss_kernels.Table(1, 0, m, random_table(m, 700, 5)),
    "a common table": lambda m: loss_kernels.Table(1, 0, m, random_table(1, 700, 3)),
    "a function": python_losses_kernel,
    "a common function": lambda m: python_losses_kernel(m, common=True),
    "compiled": compiled_losses_kernel,
    "compiled and common": lambda m: compiled_losses_kernel(m, common=True),
}
EDGES = {
    "all": [0, 700], "one": [0, 1], "the last": [699, 700], "each": list(range(701)),
    "inside": [255, 256, 257], "blocks": [0, 256, 512, 700], "beside blocks": [3, 259, 515, 700],
    "empty ones": [0, 0, 5, 5, 5, 300, 300], "from inside": [17, 640],
    "any": sorted(np.random.default_rng(4).choice(701, 40, replace=False).tolist()),
}  # fmt: skip


def all_rows_in_units(losses: loss_kernels.Losses) -> np.ndarray:
    """Return the losses of all silos in 700 rounds, (m, 700, d), as integer multiples of the
    unit."""
    rows = np.array([[losses.row(i, t) for t in range(1, 701)] for i in range(losses.silos)])
    integers = np.rint(rows / losses.unit)
    np.testing.assert_array_equal(integers * losses.unit, rows)
    return integers.astype(np.int64)


@pytest.mark.parametrize("silos", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_sums_equal_summed_rows_for_any_edges(name, silos):
    losses = LOSSES[name](silos)
    rows = all_rows_in_units(losses)
    assert rows.min() >= 0 and rows.max() <= 1 / losses.unit
    cumulative = np.concatenate([np.zeros_like(rows[0, :1]), rows.sum(axis=0).cumsum(axis=0)])
    for edges, threads in product(EDGES.values(), (1, 3)):
        sums = losses.sums(np.array(edges, np.int64), threads)
        assert sums.dtype == np.int64
        np.testing.assert_array_equal(sums, np.diff(cumulative[edges], axis=0))


@pytest.mark.parametrize("silos", [255, 256, 257, 600])
def test_sums_are_right_for_more_silos_than_a_block_holds(silos):
    losses = loss_kernels.Coins(1, 0, silos, coin_thresholds(0.3, 0.6))
    edges = np.array([0, 1, 4, 9], np.int64)
    rows = np.array([[losses.row(i, t) for t in range(1, 10)] for i in range(silos)]).sum(axis=0)
    for threads in (1, 3, 100):
        sums = losses.sums(edges, threads)
        for (a, b), total in zip(pairwise(edges), sums, strict=True):
            np.testing.assert_array_equal(total, rows[a:b].sum(axis=0))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_linear_losses_are_sums_of_rows(name):
    """Check that rows are added in the order of ``rounds``."""
    losses = LOSSES[name](3)
    rounds = np.array([[1, 5, 5, 700], [2, 9, 300, 4], [301, 302, 3, 1]], np.int64)
    x = np.full(losses.experts, 1 / losses.experts)
    expected = [
        np.sum([losses.row(i, t) for t in silo_rounds], axis=0)
        for i, silo_rounds in enumerate(rounds)
    ]
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(losses.gradients(rounds, x, threads), expected)


@pytest.mark.parametrize("experts", [1, 10, 33, 64, 65, 128, 129, 300])
@pytest.mark.parametrize("samples", [1, 15, 16, 17, 260])
def test_gradients_of_coins_count_them_in_any_rounds(experts, samples):
    """Sixteen rounds are drawn together; a group of silos shares a block of bits."""
    rng = np.random.default_rng([experts, samples])
    silos = 4 if experts > 64 else 128 // experts + 2
    chance = coin_thresholds(*rng.choice([0.0, 0.25, 0.4, 0.5, 1.0], size=experts))
    rounds = rng.integers(1, 2**32, size=(silos, samples))
    x = np.full(experts, 1 / experts)
    for common in (False, True):
        losses = loss_kernels.Coins(5, 1, silos, chance, common=common)
        expected = np.array(
            [
                np.sum([losses.row(i, int(t)) for t in own_rounds], axis=0)
                for i, own_rounds in enumerate(rounds)
            ]
        )
        for bounds in ((-1.0, 1.0, 1.0), (0.0, 2.0, np.inf)):
            np.testing.assert_array_equal(losses.gradients(rounds, x, bounds=bounds), expected)
        clipped = losses.gradients(rounds, x, bounds=(0.25, 0.75, 1.0))
        np.testing.assert_array_equal(clipped, 0.25 * samples + 0.5 * expected)


@pytest.mark.parametrize("common", [False, True])
def test_gradients_of_quadratic_losses_are_sums_over_rounds(common):
    x = np.random.default_rng(1).dirichlet(np.ones(4))
    rounds = np.random.default_rng(2).integers(1, 60, size=(3, 11))
    for losses in (
        loss_kernels.Coins(
            4, 2, 3, coin_thresholds(0.5, 0.7, 0.2, 0.9), quadratic=True, common=common
        ),
        loss_kernels.Table(4, 2, 3, random_table(1 if common else 3, 60, 4), quadratic=True),
    ):
        gradient_sums = losses.gradients(rounds, x, 2)
        for i, gradient_sum in enumerate(gradient_sums):
            total = np.zeros(4)
            for t in rounds[i]:
                g = losses.row(i, int(t))
                total += loss_kernels.square_gradient(g, x)
                np.testing.assert_allclose(
                    loss_kernels.square_gradient(g, x), g * (g @ x), rtol=1e-14
                )
            np.testing.assert_array_equal(gradient_sum, total)


def test_coins_obey_their_options():
    """Check the rows for the options ``last``, ``planned`` and ``common``."""
    without_options = all_rows_in_units(LOSSES["coins"](2))
    stopped = all_rows_in_units(LOSSES["coins that stop"](2))
    np.testing.assert_array_equal(stopped[:, :301], without_options[:, :301])
    assert not stopped[:, 301:].any()
    planned = all_rows_in_units(LOSSES["planned"](2))
    random_experts = [0, 1, 3, 4]
    np.testing.assert_array_equal(
        planned[:, :, random_experts], without_options[:, :, random_experts]
    )
    rounds = np.arange(1, 701)
    planned_losses = (rounds % 2 == 0) & (rounds <= 222)
    np.testing.assert_array_equal(planned[:, :, 2], np.broadcast_to(planned_losses, (2, 700)))
    assert planned[0, :, 2].sum() == 111
    assert not all_rows_in_units(LOSSES["planned, never"](2))[:, :, 0].any()
    planned_and_stopped = all_rows_in_units(LOSSES["planned, stopping"](2))
    assert (
        not planned_and_stopped[:, 100:, :4].any()
        and planned_and_stopped[:, 100:, 4].sum() == 2 * 250
    )
    common_rows = all_rows_in_units(LOSSES["common coins"](2))
    np.testing.assert_array_equal(common_rows[0], common_rows[1])
    np.testing.assert_array_equal(common_rows[0], without_options[0])
    assert without_options[:, :, 2].all() and not without_options[:, :, 3].any()


def words_of_coins(group: int, round: int, number: int) -> Any:
    """Return the words of a Philox block of the coins of seed 3 and replicate 1."""
    return rng.philox(3, CONTEXT, 1, group, round, number)


@pytest.mark.parametrize("d", [1, 2, 10, 33, 64, 65, 128, 129, 200, 300, 1000, 2049, 4200])
def test_coins_equal_their_definition(d):
    """Check coins against the oracle, and with chances one below, at and above their uniforms."""
    size = oracle.group_size(d)
    chances = coin_thresholds(*np.random.default_rng(d).random(d)).tolist()
    # Chances that one plane decides, that no plane decides, and that need all planes.
    for n, chance in enumerate([2**30, 0, 2**31, 3 * 2**28, 1, 2**31 - 1]):
        if n * 3 < d:
            chances[n * 3] = chance
    for silo, round in ((0, 1), (1, 2), (2 * size + size // 2, 9)):
        row = loss_kernels.Coins(3, 1, 3 * size, np.array(chances, np.uint32)).row(silo, round)
        assert row.tolist() == oracle.coins(chances, silo, round, words_of_coins)
        experts_tested = range(0, d, max(1, d // 50))
        uniforms = {n: oracle.uniform(n, d, silo, round, words_of_coins) for n in experts_tested}
        for offset in (-1, 0, 1):
            shifted_chances = np.array(chances, np.uint32)
            for n, uniform in uniforms.items():
                shifted_chances[n] = max(uniform + offset, 0)
            row = loss_kernels.Coins(3, 1, 3 * size, shifted_chances).row(silo, round)
            assert {row[n] for n in experts_tested} == {float(offset > 0)}


def test_every_plane_decides_coins():
    """Check coins whose uniforms first differ from their chances in plane p, for every p."""
    for d, silo in ((3, 2), (100, 0), (300, 1)):
        uniforms = [oracle.uniform(n, d, silo, 5, words_of_coins) for n in range(d)]
        for plane in range(31):
            flipped = np.array(uniforms, np.uint32) ^ np.uint32(1 << (30 - plane))
            losses = loss_kernels.Coins(3, 1, 3, flipped)
            row = losses.row(silo, 5)
            assert row.tolist() == [float(u < c) for u, c in zip(uniforms, flipped, strict=True)]
            row_sum = sum(losses.row(i, 5) for i in range(3))
            np.testing.assert_array_equal(losses.sums(np.array([4, 5], np.int64))[0], row_sum)


@pytest.mark.parametrize("d", [2, 10, 40, 64, 65, 128, 150, 1100])
@pytest.mark.parametrize("common", [False, True])
def test_sums_of_coins_equal_rows_for_any_number_of_experts(d, common):
    """Check sums of one round, of many rounds and of several groups of silos."""
    chances = coin_thresholds(*np.random.default_rng(d).random(d))
    chances[0], chances[1] = 2**31, 0
    size = oracle.group_size(d)
    edges = np.array([3, 4, 5, 6, 20, 21, 60, 61], np.int64)
    for silos in sorted({1, 2, size, size + 1, 17 * size}):
        losses = loss_kernels.Coins(3, 1, silos, chances, common=common)
        rows = np.array(
            [sum(losses.row(i, t) for i in range(silos)) for t in range(4, 62)], np.int64
        )
        expected = np.add.reduceat(rows, edges[:-1] - 3)
        np.testing.assert_array_equal(losses.sums(edges, 2), expected)


def test_rows_equal_table_entries():
    for silo, round in ((0, 1), (2, 9)):
        entries = random_table(3, 20, 4)
        row = loss_kernels.Table(3, 1, 3, entries).row(silo, round) / UNIT
        np.testing.assert_array_equal(row, entries[silo, round - 1])
        common = loss_kernels.Table(3, 1, 3, entries[2:]).row(silo, round) / UNIT
        np.testing.assert_array_equal(common, entries[2, round - 1])


def test_sums_are_exact_in_units():
    """Check sums of losses near 0, near 1 and at odd multiples of 2^-24."""
    values = np.array([0, 1, 2**24 - 1, 2**24, 2**23 + 1, 3], np.uint32)
    rows = values[np.random.default_rng(6).integers(0, 6, size=(4, 3000, 6))]
    losses = loss_kernels.Table(0, 0, 4, np.ascontiguousarray(rows))
    expected = [sum(int(value) for value in rows[:, :, n].ravel()) for n in range(6)]
    (sums,) = losses.sums(np.array([0, 3000], np.int64), 2)
    assert sums.tolist() == expected
    # float64 holds these sums exactly. Losses are rounded to the nearest multiple of the unit.
    assert [int(value / UNIT) for value in losses.unit * sums] == expected
    losses_given = np.array([[0.1, 0.25 + 0.4 * UNIT, 1.0 - 0.6 * UNIT, 0.5 * UNIT]])
    rounded = ObliviousLosses(losses=losses_given).open(0, 0, 2).losses.row(1, 1) / UNIT
    assert rounded.tolist() == [round(0.1 / UNIT), 2**22, 2**24 - 1, 0]


def test_python_and_compiled_functions_give_equal_losses():
    for common in (False, True):
        from_python, from_compiled = (
            python_losses_kernel(3, common=common),
            compiled_losses_kernel(3, common=common),
        )
        np.testing.assert_array_equal(
            all_rows_in_units(from_python), all_rows_in_units(from_compiled)
        )
        expected = np.rint(python_losses(2, 1, 0 if common else 2, 9) / UNIT)
        np.testing.assert_array_equal(from_python.row(2, 9) / UNIT, expected)
    x = np.array([0.1, 0.2, 0.3, 0.4])
    rounds = np.arange(1, 31).reshape(3, 10)
    gradient_losses = (
        gradient_environment(python_gradient).open(2, 1, 3).losses,
        gradient_environment(compiled_gradient()).open(2, 1, 3).losses,
    )
    for silo, round in product(range(3), (1, 7, 30)):
        (a, da), (b, db) = (losses.value(silo, round, x) for losses in gradient_losses)
        assert a == b == python_gradient(2, 1, silo, round, x)[0]
        np.testing.assert_array_equal(da, db)
    totals = [
        losses.gradients(rounds, x, threads) for losses in gradient_losses for threads in (1, 2)
    ]
    for total in totals:
        np.testing.assert_array_equal(total, totals[0])


def test_python_and_compiled_functions_give_equal_curves():
    keys = {"horizon": 70, "silos": 3, "seed": 4, "replicates": 2, "checkpoints": 7}
    pairs = [
        (
            HEDGE,
            [
                ObliviousLosses(function=function, experts=5)
                for function in (python_losses, compiled_losses())
            ],
        ),
        (
            OPE,
            [gradient_environment(function) for function in (python_gradient, compiled_gradient())],
        ),
    ]
    for curve, environments in pairs:
        runs = [
            fastfed.simulate(environment, curves=[curve], driver=driver, **keys).curves[0]
            for environment, driver in product(environments, ("compiled", "step"))
        ]
        for run in runs:
            np.testing.assert_array_equal(run.group_regret, runs[0].group_regret)
        assert len(np.unique(runs[0].group_regret)) > 5


def test_compiled_functions_can_read_their_state():
    import numba

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        """Write the numbers of the state as losses."""
        for n in range(3):
            loss[n] = state[n]
        return 0

    state = np.array([0.25, 0.5, 0.75])
    losses = ObliviousLosses(function=function, experts=3, state=state).open(0, 0, 2).losses
    np.testing.assert_array_equal(losses.row(1, 4), state)
    np.testing.assert_array_equal(losses.sums(np.array([0, 10], np.int64))[0] * UNIT, 20 * state)


# -- Coins and Laplace draws -----------------------------------------------------------------------


@cache
def coin_rows() -> np.ndarray:
    """Return coins (4 silos, 4000 rounds, 4 experts) with means 0.5, 0.3, 0.05 and 0.97."""
    losses = loss_kernels.Coins(12, 3, 4, coin_thresholds(0.5, 0.3, 0.05, 0.97))
    return np.array([[losses.row(i, t) for t in range(1, 4001)] for i in range(4)])


def test_coins_have_their_means():
    rows, p = coin_rows(), np.array([0.5, 0.3, 0.05, 0.97])
    assert set(np.unique(rows)) == {0.0, 1.0}
    std = np.sqrt(p * (1 - p))
    # Compare the means over all rounds, of each silo, and of each tenth of the rounds.
    assert (np.abs(rows.mean(axis=(0, 1)) - p) < 5 * std / sqrt(16000)).all()
    assert (np.abs(rows.mean(axis=1) - p) < 5 * std / sqrt(4000)).all()
    tenths = rows.reshape(4, 10, 400, 4).mean(axis=(0, 2))
    assert (np.abs(tenths - p) < 5 * std / sqrt(1600)).all()
    # Compare the sums of a million coins of each expert.
    losses = loss_kernels.Coins(13, 0, 10, coin_thresholds(*p))
    (total,) = losses.sums(np.array([0, 100_000], np.int64), 2)
    assert (np.abs(total / 1e6 - p) < 5 * std / 1e3).all()


def test_coins_are_independent_between_silos_rounds_and_experts():
    centred = coin_rows() - coin_rows().mean(axis=(0, 1))
    centred /= centred.std(axis=(0, 1))
    correlations = []
    for a, b in combinations(range(4), 2):
        correlations.append((centred[:, :, a] * centred[:, :, b]).mean() * sqrt(16000))
        for n in range(4):
            correlations.append((centred[a, :, n] * centred[b, :, n]).mean() * sqrt(4000))
    for lag, n, k in product((1, 2, 4, 256), range(4), range(4)):
        pairs = centred[:, lag:, n] * centred[:, :-lag, k]
        correlations.append(pairs.mean() * sqrt(pairs.size))
    assert np.abs(correlations).max() < 5
    # The correlations have about the spread of standard normals: no draw is used twice.
    assert 0.6 < np.std(correlations) < 1.5


@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_the_best_expert_has_the_lowest_mean(mean):
    environment, best_experts = StochasticLosses(experts=6, mean=mean, gap=0.2), set()
    for replicate in range(24):
        adversary = environment.open(5, replicate, 3)
        best = best_expert(5, replicate, 6)
        (total,) = adversary.losses.sums(np.array([0, 2000], np.int64))
        means = np.full(6, mean)
        means[best] -= 0.2
        mean_std = np.sqrt(means * (1 - means) / 6000)
        assert (np.abs(total / 6000 - means) < 5 * mean_std).all()
        best_experts.add(best)
        assert adversary.suboptimality(np.eye(6)[best]) == 0.0
    assert len(best_experts) >= 5


def test_realizable_losses_and_bursts_have_their_totals():
    for lost in (0, 3):
        opened_environment = NearRealizableLosses(experts=5, optimal_loss=lost).open(3, 1, 4)
        (total,) = opened_environment.losses.sums(np.array([0, 400], np.int64))
        assert total[best_expert(3, 1, 5)] == 4 * lost
        assert np.sum(total > 600) == 4
    fair = LowerBoundLosses(experts=5).open(3, 1, 4).losses
    rows = np.array([[fair.row(i, t) for t in range(1, 401)] for i in range(4)])
    assert (rows == rows[0]).all() and np.abs(rows.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / 20
    opened_environment = LowerBoundLosses(experts=5, theorem="2.7", burst=9).open(3, 1, 4)
    (total,) = opened_environment.losses.sums(np.array([0, 400], np.int64))
    assert sorted(total) == [0, 36, 36, 36, 36] and total[best_expert(3, 1, 5)] == 0


def laplace_draws(n: int, index: int = 0, silo: int = 0) -> np.ndarray:
    """Return n Laplace draws under one key."""
    return rng.laplace(21, SCORE_NOISE, 2, silo, index, n)


def test_laplace_draws_follow_the_distribution():
    n = 1_000_000
    z = laplace_draws(n)
    assert abs(z.mean()) < 5 * sqrt(2 / n)
    # The fourth and eighth moments of the Laplace distribution are 24 and 40320.
    assert abs((z**2).mean() - 2) < 5 * sqrt((24 - 4) / n)
    assert abs(np.abs(z).mean() - 1) < 5 * sqrt(1 / n)
    assert abs((z**4).mean() - 24) < 5 * sqrt((40320 - 576) / n)
    assert stats.kstest(z, stats.laplace.cdf).pvalue > 1e-3
    assert stats.kstest(np.abs(z), stats.expon.cdf).pvalue > 1e-3
    # Test means of every eighth draw and correlations of neighbours. One block of words fills two
    # halves.
    assert np.abs(z.reshape(-1, 8).mean(axis=0)).max() < 5 * sqrt(2 * 8 / n)
    for lag in (1, 2, 3, 4, 8, n // 2):
        pairs = z[lag:] * z[:-lag]
        assert abs(pairs.mean()) < 5 * 2 / sqrt(len(pairs))
    assert stats.kstest(SystemNoise().laplace(0, 1, 20_000), stats.laplace.cdf).pvalue > 1e-6


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 100, 1001])
def test_laplace_draws_of_rows_have_equal_bits(count):
    rows = rng.laplace_rows(21, SCORE_NOISE, 2, 5, 9, count)
    assert rows.shape == (5, count)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row, laplace_draws(count, 9, i))
        np.testing.assert_array_equal(row, SeededNoise(21, 2).laplace(i, 9, count))
    if count:
        assert len(np.unique(rows)) == rows.size
        assert not np.array_equal(rows, rng.laplace_rows(21, SCORE_NOISE, 2, 5, 10, count))


@pytest.mark.parametrize(("count", "used"), [(0, 0), (1, 1), (64, 28), (64, 64), (1000, 3)])
def test_orders_of_rows_are_the_orders_of_clients(count, used):
    rows = rng.permutation_rows(21, SAMPLE, 2, 5, 9, count, used)
    assert rows.shape == (5, used)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row, SeededNoise(21, 2).sample(i, 9, count)[:used])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_ctrl_c_interrupts_the_orders_of_many_clients():
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            rng.permutation_rows(21, SAMPLE, 2, 20_000, 9, 100_000, 1)
        # The whole call takes more than five seconds.
        assert time.perf_counter() - start < 2.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


def laplace_quantile(bits: int) -> float:
    """Return the Laplace quantile of (bits + 1/2) / 2^53, computed with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        u = (2 * Decimal(bits) + 1) / Decimal(2**54)
        exact = (2 * u).ln() if bits < 2**52 else -(2 * (1 - u)).ln()
        return float(exact)


def test_laplace_from_bits_is_the_quantile_in_both_tails():
    draw = np.random.default_rng(3)
    bit_values = {0, 1, 2, 3, 5, 2**10, 2**20 + 1, 2**31, 2**50, 2**51, 2**52 - 1, 2**52 - 2}
    bit_values |= {2**k + int(draw.integers(2**k)) for k in range(52)}
    bit_values |= {2**52 - 1 - int(draw.integers(2**k)) for k in range(1, 52)}
    bits = np.array(sorted(bit_values), np.uint64)
    draws = rng.laplace_from_bits(bits)
    exact = np.array([laplace_quantile(int(b)) for b in bits])
    np.testing.assert_allclose(draws, exact, rtol=1e-15, atol=0)
    # The upper tail has the same bits with the other sign, so the distribution is symmetric.
    mirrored = rng.laplace_from_bits(np.uint64(2**53 - 1) - bits)
    np.testing.assert_array_equal(mirrored, -draws)
    assert draws[0] == pytest.approx(-53 * np.log(2), rel=1e-15)
    upper_tail_bits = np.array([2**52, 2**53 - 1], np.uint64)
    expected = [laplace_quantile(int(b)) for b in upper_tail_bits]
    np.testing.assert_allclose(rng.laplace_from_bits(upper_tail_bits), expected, rtol=1e-15, atol=0)


# -- Noise against the number of clients -----------------------------------------------------------

#: One phase of five trees with batches of 32. All scales differ, so that the test detects the scale
#: of a wrong tree.
TREES, BATCH, SCALES = 5, 32, (0.4, 0.7, 1.3, 2.1, 3.6)
PHASE_NUMBER = 11
EXPERTS = 8192


def tree_plan(m: int, central: bool) -> FrankWolfePlan:
    """Return a plan of one phase for m silos with central or local noise."""
    return FrankWolfePlan(
        silos=m, horizon=2**PHASE_NUMBER - 1, experts=EXPERTS,
        protocol=CENTRAL_SCORES if central else LOCAL_SCORES,
        phases=(Phase(PHASE_NUMBER, BATCH, SCALES),), bounds=Bounds(0.0, 1.0, 0.0),
    )  # fmt: skip


class RecordedScores(np.ndarray):
    """Scores that are recorded when ``argmin`` is called."""

    log: list[np.ndarray]

    def argmin(self, *args: Any, **keys: Any) -> Any:
        """Record the scores, and return the index of the smallest."""
        RecordedScores.log.append(np.array(self))
        return np.asarray(self).argmin(*args, **keys)


def noise_of_mean_score(m: int, central: bool, together: bool) -> dict[int, np.ndarray]:
    """Return, for each tree, the server's averaged scores when all losses are 0.

    These scores are nothing but noise. ``together`` takes sums of all clients from one object.
    """
    plan, source = tree_plan(m, central), SeededNoise(31, m)
    assert len(plan.phases[0].samples) >= plan.phases[0].used
    x, zeros = np.full(EXPERTS, 1 / EXPERTS), np.zeros(EXPERTS)
    if together:
        zero_losses = loss_kernels.Coins(31, m, m, np.zeros(EXPERTS, np.uint32))
        all_clients = experts.Scores(plan, zero_losses, source, 1)
    else:
        collectors = [GradientCollector(plan, i, source) for i in range(m)]
        for collector in collectors:
            for t in plan.phases[0].samples:
                collector.observe(t, zeros)
    server = NoisyLeast(plan, source)
    server.start()
    RecordedScores.log = []
    for release in range(1, plan.exchanges + 1):
        if together:
            total = all_clients.total(release, x)
        else:
            total = np.sum([c.values(release, x) for c in collectors], axis=0)
        server.decide(total.view(RecordedScores))
    scores = np.array(RecordedScores.log)
    trees = np.array([leaf.tree for leaf in plan.phases[0].leaves])
    return {j: scores[trees == j] for j in range(1, TREES + 1)}


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_noise_of_the_mean_score_falls_with_the_number_of_clients(central, together):
    """Check that the standard deviation is proportional to m^-1/2, or to m^-1 for central noise.

    The tolerance is 2 %. Tree 5 has 32 leaves of 8192 scores. A standard deviation estimated from n
    draws has relative standard error sqrt((kurtosis - 1) / (4 n)). For Laplace noise (kurtosis 6)
    this is 0.0022, so 2 % is nine standard errors. For sums of m clients (kurtosis 3 + 3/m) it is
    smaller. Tree 3 has 65536 draws and a standard error of 0.0044: 2 % is four and a half of them.
    """
    power = -1.0 if central else -0.5
    for m in (1, 4, 16, 64) if together else (1, 3, 12):
        noise = noise_of_mean_score(m, central, together)
        for j in (3, 5):
            std = sqrt(2) * SCALES[j - 1] * m**power
            assert noise[j].std() == pytest.approx(std, rel=0.02)
            assert abs(noise[j].mean()) < 5 * std / sqrt(noise[j].size)
        # Noise of one client or of the server is Laplace; noise of many clients is nearly normal.
        kurtosis = float((noise[5] ** 4).mean() / (noise[5] ** 2).mean() ** 2)
        assert kurtosis == pytest.approx(6.0 if central else 3 + 3 / m, rel=0.08)
        # Two successive leaves share no draw.
        leaves, next_leaves = noise[5][:-1], noise[5][1:]
        assert abs((leaves * next_leaves).mean()) < 5 * std**2 / sqrt(leaves.size)


def test_noise_test_detects_planted_faults(monkeypatch):
    """Plant a wrong tree's scale, equal noise for all clients, and central noise that is not
    divided."""

    def fails(central: bool, together: bool, patch: Callable[[pytest.MonkeyPatch], None]) -> None:
        """Check that the test of the noise fails with a fault."""
        with pytest.MonkeyPatch.context() as context:
            patch(context)
            with pytest.raises(AssertionError):
                test_noise_of_the_mean_score_falls_with_the_number_of_clients(central, together)

    scale, laplace = FrankWolfePlan.scale, SeededNoise.laplace
    fails(False, True, lambda p: p.setattr(
        FrankWolfePlan, "scale", lambda self, n: scale(self, max(1, n - 14))))  # fmt: skip
    fails(False, False, lambda p: p.setattr(
        SeededNoise, "laplace", lambda self, i, n, d: laplace(self, 0, n, d)))  # fmt: skip
    fails(True, True, lambda p: p.setattr(
        FrankWolfePlan, "scale", lambda self, n: scale(self, n) * self.silos))  # fmt: skip
    fails(False, False, lambda p: p.setattr(
        SeededNoise, "laplace", lambda self, i, n, d: laplace(self, i, n // 2, d)))  # fmt: skip


def test_scales_depend_only_on_batch_and_trees():
    """Check that scales are the same for any number of clients: lambda_j belongs to one client's
    loss."""
    scales_by_shape: dict[tuple[int, int], set[tuple[float, ...]]] = {}
    for m, noise in product((1, 4, 64, 1024), ("local", "central")):
        system = make_experiment(
            name="x", environment=quadratic_losses(10),
            curves=[{**OPE, "epsilon": 2.0, "noise": noise}], horizon=2**14, silos=m,
        ).curves[0].system  # fmt: skip
        for phase in system.plan.phases:
            scales_by_shape.setdefault((phase.batch, phase.trees), set()).add(phase.scales)
    assert len(scales_by_shape) > 8 and all(len(scales) == 1 for scales in scales_by_shape.values())


# -- Regret ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_suboptimality_equals_the_excess_loss(seed):
    """Compare with 300 000 sampled losses, within five standard errors."""
    draw = np.random.default_rng(seed)
    means, n = draw.random(5), 300_000
    coins = coin_thresholds(*means)
    means = coins / loss_kernels.CHANCES
    rounds = np.arange(1, n + 1).reshape(1, n)
    for x in (draw.dirichlet(np.ones(5)), np.eye(5)[seed], np.full(5, 0.2)):
        linear_gradients, square_gradients = (
            loss_kernels.Coins(seed, 0, 1, coins, quadratic=quadratic).gradients(rounds, x)[0]
            for quadratic in (0, 1)
        )
        mean, mean_square = float(linear_gradients @ x) / n, float(square_gradients @ x) / (2 * n)
        assert abs(mean - means @ x) < 5 * 0.5 / sqrt(n)
        assert abs(mean_square - square_loss(means, x)) < 5 * 0.25 / sqrt(n)
        min_square = square_minimum(means)
        suboptimalities = (
            square_suboptimality(means, min_square, x),
            linear_suboptimality(means, means.min(), x),
        )
        assert abs(mean_square - min_square - suboptimalities[0]) < 5 * 0.25 / sqrt(n)
        assert abs(mean - means.min() - suboptimalities[1]) < 5 * 0.5 / sqrt(n)
        # Compare exactly with the mean over all outcomes of the coins.
        g = np.array(list(product((0.0, 1.0), repeat=5)))
        probabilities = np.prod(np.where(g == 1.0, means, 1.0 - means), axis=1)
        assert probabilities @ (g @ x) ** 2 / 2 == pytest.approx(square_loss(means, x), rel=1e-12)


def minimum_on_simplex(means: np.ndarray) -> tuple[float, float]:
    """Return an interval that contains the minimum of E <g, x>^2 / 2 over the simplex.

    A numerical search gives the upper end; subtracting its duality gap gives the lower end.
    """
    q = np.outer(means, means) + np.diag(means * (1 - means))
    d = len(means)
    best = (inf, 0.0)
    for start in (np.full(d, 1 / d), np.eye(d)[int(means.argmin())]):
        solution = minimize(
            lambda x: 0.5 * x @ q @ x, start, jac=lambda x: q @ x, bounds=[(0, 1)] * d,
            method="SLSQP", constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0,
                                         "jac": lambda x: np.ones(d)},
            options={"ftol": 1e-16, "maxiter": 500},
        )  # fmt: skip
        x = np.clip(solution.x, 0.0, None)
        x /= x.sum()
        # f is convex, so the minimum is at least f(x) - max <grad, x - e_n>.
        gap = float(x @ q @ x - (q @ x).min())
        best = min(best, (0.5 * float(x @ q @ x), gap))
    return best[0] - best[1], best[0]


MEANS = {
    "random": lambda draw, d: draw.random(d),
    "near one another": lambda draw, d: 0.5 + 1e-3 * draw.random(d),
    "near 0": lambda draw, d: 1e-3 * draw.random(d) + 1e-6,
    "near 1": lambda draw, d: 1 - 1e-3 * draw.random(d),
    "one good": lambda draw, d: np.r_[0.05, 0.6 + 0.4 * draw.random(d - 1)],
    "equal": lambda draw, d: np.full(d, 0.3),
    "some always lose": lambda draw, d: np.r_[draw.random(d - d // 2), np.ones(d // 2)],
    "all always lose": lambda draw, d: np.ones(d),
    "one never loses": lambda draw, d: np.r_[0.0, draw.random(d - 1)],
    "the environment's": lambda draw, d: np.r_[0.4, np.full(d - 1, 0.5)],
}


@pytest.mark.parametrize("means_name", MEANS)
def test_square_minimum_agrees_with_a_numerical_search(means_name):
    for d, seed in product((2, 3, 6, 15), range(3)):
        means = np.random.default_rng((seed, d)).permutation(
            MEANS[means_name](np.random.default_rng((d, seed)), d)
        )
        low, high = minimum_on_simplex(means)
        assert high - low < 1e-6
        minimum = square_minimum(means)
        assert low - 1e-12 <= minimum <= high + 1e-12


def test_pseudo_regret_of_a_run_is_the_sum_over_rounds():
    """Compare with m times the summed suboptimality of the recorded x of each round."""
    for name in ("linear", "quadratic", "hedge, pseudo-regret"):
        e = experiment(name, checkpoints=10**6)
        points: list[np.ndarray] = []

        def record_weights(
            self: Any, edges: np.ndarray, settles: Any, which: np.ndarray, weights: np.ndarray,
            sums: Any, log: list[np.ndarray] = points,
        ) -> None:  # fmt: skip
            """Record the weights of each round, then call the original method."""
            for row, rounds in zip(which, np.diff(edges), strict=True):
                log += [weights[row].copy()] * rounds
            PLAYED_MANY(self, edges, settles, which, weights, sums)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(experts.Ledger, "played_many", record_weights)
            outcome = run_compiled(e)
        environment = e.environment
        means = np.full(5, environment.mean)
        means[best_expert(e.seed, 0, 5)] -= environment.gap
        loss = square_loss if environment.loss == "quadratic" else np.dot
        minimum = minimum_on_simplex(means)[1] if environment.loss == "quadratic" else means.min()
        expected = e.silos * np.cumsum([loss(means, x) - minimum for x in points])
        np.testing.assert_allclose(outcome.group_regret, expected, rtol=1e-6, atol=1e-6)
        assert len(points) == e.horizon


PLAYED_MANY = experts.Ledger.played_many


def test_regret_has_the_right_sign_and_size():
    """Check three facts.

    With stochastic losses the leader learns. Hedge keeps its bound against the best expert in
    hindsight. With fair coins no algorithm gains more than by chance.
    """
    keys = {"horizon": 400, "silos": 4, "seed": 1, "replicates": 5}
    curves = [{"label": "leader", **LEADER}, {"label": "hedge", **HEDGE}, {"label": "ope", **OPE}]
    results = fastfed.simulate(StochasticLosses(experts=8, gap=0.3), curves=curves, **keys)
    for label in ("leader", "hedge", "ope"):
        regret = results[label].group_regret
        # Pseudo-regret never falls. A random expert would lose 4 * 400 * 0.3 * 7 / 8 = 420.
        assert (np.diff(regret, axis=1) >= -1e-9).all() and (regret >= 0).all()
        assert regret[:, -1].max() < 0.9 * 420
    assert results["leader"].group_regret[:, -1].max() < 0.1 * 420
    results = fastfed.simulate(LowerBoundLosses(experts=8), curves=curves, **keys)
    hedge = results["hedge"].group_regret[:, -1] / 4
    assert (hedge <= sqrt(400 * np.log(8) / 2)).all() and hedge.mean() > 5
    results = fastfed.simulate(RealizableLosses(experts=8), curves=[*curves, SVT], **keys)
    for curve in results.curves:
        assert (curve.group_regret >= 0).all()


# -- Functions that fail ---------------------------------------------------------------------------

DRIVERS: dict[str, dict[str, Any]] = {
    "one thread": {"threads": 1}, "three threads": {"threads": 3}, "steps": {"driver": "step"},
}  # fmt: skip


def losses_that_raise(kind: type[Exception], at: tuple[int, int]) -> Callable[..., np.ndarray]:
    """Return losses that raise an exception of this kind for (silo, round) = ``at``."""

    def function(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
        """Return losses of 1/2, except for the exception."""
        if (silo, round) == at:
            raise kind("nothing here")
        return np.full(3, 0.5)

    return function


def constant_function(losses: Any) -> Callable[..., Any]:
    """Return a loss function that always returns ``losses``."""
    return lambda seed, replicate, silo, round: losses


def simulate_with_driver(environment: Any, curve: dict[str, Any], driver_name: str) -> None:
    """Simulate 60 rounds with the driver options of this name."""
    fastfed.simulate(
        environment, curves=[curve], horizon=60, silos=2, seed=1, **DRIVERS[driver_name]
    )


@pytest.mark.parametrize("driver_name", DRIVERS)
@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError, KeyError])
@pytest.mark.parametrize("at", [(0, 1), (1, 37)])
def test_exceptions_of_a_loss_function_get_a_note(driver_name, kind, at):
    environment = ObliviousLosses(function=losses_that_raise(kind, at), experts=3)
    with pytest.raises(kind, match="nothing here") as error:
        simulate_with_driver(environment, HEDGE, driver_name)
    note = f"in the environment's function (replicate 0, silo {at[0]}, round {at[1]})"
    assert error.value.__notes__ == [note]


@pytest.mark.parametrize("driver_name", DRIVERS)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.array([0.5, np.nan, 0.5]), "losses must be finite, got nan at index (1,)"),
        (np.array([0.5, np.inf, 0.5]), "losses must be finite, got inf at index (1,)"),
        (np.array([0.5, 1.5, 0.5]), "losses must be in [0, 1], got 0.5 to 1.5"),
        (np.array([0.5, 0.5, -1e-9]), "losses must be in [0, 1], got -1e-09 to 0.5"),
        (np.array([0.5, 0.5]), "losses must have shape (3,), got (2,)"),
        (0.5, "losses must have shape (3,), got ()"),
        ("half", "losses must be an array of numbers, got 'half'"),
        (None, "losses must have shape (3,), got ()"),
    ],
)
def test_losses_out_of_range_raise_errors(driver_name, answer, message):
    environment = ObliviousLosses(function=constant_function(answer), experts=3)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        simulate_with_driver(environment, HEDGE, driver_name)
    (note,) = error.value.__notes__
    assert re.fullmatch(r"in the environment's function \(replicate 0, silo \d, round \d+\)", note)


GRADIENT_ANSWERS: dict[str, tuple[Any, str]] = {
    "NaN loss": ((np.nan, np.zeros(3)), "loss must be finite, got nan"),
    "a text": (("much", np.zeros(3)), "loss must be a number, got 'much'"),
    "NaN gradient": ((0.5, np.array([0, np.nan, 0])), "gradient must be finite, got nan"),
    "short gradient": ((0.5, np.zeros(2)), "gradient must have shape (3,), got (2,)"),
    "no tuple": (0.5, "function must return (loss, gradient)"),
    "no gradient": ((0.5,), "function must return (loss, gradient)"),
}


@pytest.mark.parametrize("driver_name", DRIVERS)
@pytest.mark.parametrize("name", GRADIENT_ANSWERS)
def test_bad_gradients_raise_errors(driver_name, name):
    answer, message = GRADIENT_ANSWERS[name]
    environment = GradientLosses(
        function=lambda seed, replicate, silo, round, x: answer, experts=3, optimum=[1, 0, 0]
    )
    with pytest.raises(InputError, match=re.escape(message)) as error:
        simulate_with_driver(environment, OPE, driver_name)
    assert len(error.value.__notes__) == 1


def test_the_first_failure_is_reported():
    """Check that later failures of a call do not hide the first, and that none carries over to the
    next call."""
    failing = {(0, 3), (1, 3), (1, 400)}

    def function(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
        """Return losses of 0, but raise ValueError for some (silo, round)."""
        if (silo, round) in failing:
            raise ValueError(f"{silo} {round}")
        return np.zeros(3)

    losses = loss_kernels.Called(0, 0, 2, 3, function, as_float64)
    edges = np.array([0, 500], np.int64)
    with pytest.raises(ValueError, match="0 3"):
        losses.sums(edges, 1)
    failing.clear()
    assert losses.sums(edges, 1).sum() == 0
    failing.add((1, 9))
    with pytest.raises(ValueError, match="1 9"):
        losses.row(1, 9)
    with pytest.raises(ValueError, match="1 9"):
        losses.gradients(np.array([[1], [9]], np.int64), np.zeros(3), 2)


@cache
def bad_losses(kind: str) -> Any:
    """Return compiled losses that are wrong in round 11 of silo 1."""
    import numba

    value = {"nan": np.nan, "above": 1.0 + 1e-9, "below": -1e-9, "status": 0.5}[kind]
    status = -1 if kind == "status" else 0

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        """Write losses of 1/2, except for the wrong one."""
        for n in range(3):
            loss[n] = 0.5
        if round == 11 and silo == 1:
            loss[1] = value
            return status
        return 0

    return function


@pytest.mark.parametrize("kind", ["nan", "above", "below", "status"])
def test_compiled_losses_out_of_range_raise_errors(kind):
    message = "reported a failure" if kind == "status" else r"outside \[0, 1\]"
    environment = ObliviousLosses(function=bad_losses(kind), experts=3)
    for driver_name in DRIVERS:
        with pytest.raises(loss_kernels.LossError, match=message):
            simulate_with_driver(environment, HEDGE, driver_name)


@cache
def bad_gradient(kind: str) -> Any:
    """Return a compiled function whose loss or gradient is NaN."""
    import numba

    loss, slope = (np.nan, 0.0) if kind == "loss" else (0.5, np.nan)

    @numba.cfunc(gradient_signature())
    def function(state, seed, replicate, silo, round, x, gradient):
        """Write the gradient, and return the loss."""
        for n in range(3):
            gradient[n] = slope
        return loss

    return function


@pytest.mark.parametrize("driver_name", DRIVERS)
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_compiled_gradients_that_are_nan_raise_errors(driver_name, kind):
    environment = GradientLosses(function=bad_gradient(kind), experts=3, optimum=[1, 0, 0])
    curve = {**OPE, "noise": "none"}
    del curve["epsilon"]
    with pytest.raises((loss_kernels.LossError, InputError)):
        simulate_with_driver(environment, curve, driver_name)


@pytest.mark.parametrize(
    "losses",
    [
        np.full((5, 3), np.nan), np.full((5, 3), 1.1), np.full((5, 3), -0.1), np.zeros((5, 1)),
        np.zeros(5), np.zeros((0, 3)), np.zeros((2, 2, 2, 2)), "no such file.npy",
    ],
)  # fmt: skip
def test_bad_tables_raise_errors(losses):
    with pytest.raises(InputError, match=r"^(losses|experts) .*$"):
        ObliviousLosses(losses=losses)


def test_tables_from_files_determine_silos_and_horizon(tmp_path):
    np.save(tmp_path / "losses.npy", TABLE)
    from_file = ObliviousLosses(losses=str(tmp_path / "losses.npy"))
    assert (
        from_file.natural_silos() == 3
        and from_file.describe() == ObliviousLosses(losses=TABLE).describe()
    )
    with pytest.raises(InputError, match="horizon must be at most 150, the rounds of losses"):
        fastfed.simulate(from_file, curves=[HEDGE], horizon=151)
    with pytest.raises(InputError, match="silos must be 3"):
        fastfed.simulate(from_file, curves=[HEDGE], horizon=10, silos=2)
    common = ObliviousLosses(losses=TABLE[1])
    for environment, silo in product((common, ObliviousLosses(losses=TABLE[1:2])), (0, 4)):
        row = environment.open(0, 0, 5).losses.row(silo, 7)
        np.testing.assert_allclose(row, TABLE[1, 6], atol=UNIT / 2)
