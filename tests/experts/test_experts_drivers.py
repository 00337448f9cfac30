"""Experts: both drivers, threads, checkpoints and seeds; losses and their laws; noise; regret."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from itertools import combinations, pairwise, product
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from test_drivers import same

import fastfed
from fastfed import InputError
from fastfed._kernels import losses as loss_kernels
from fastfed._kernels import rng
from fastfed._random import CONTEXT, SCORE_NOISE, SeededNoise, SystemNoise
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


# -- Losses of a user, in Python and compiled -----------------------------------------------------


def patterned(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
    """Losses of 5 experts in [0, 1], no whole multiples of 2^-24."""
    n = np.arange(5)
    return ((7 * silo + 13 * round + 5 * n * n + 3 * replicate + seed) % 29) / 28.0


def about(seed: int, replicate: int, silo: int, round: int, x: np.ndarray) -> Any:
    """Half the squared distance to a point of the key, of 4 experts: loss and gradient."""
    loss, gradient = 0.0, np.zeros(4)
    for n in range(4):
        gradient[n] = x[n] - ((3 * silo + 11 * round + 7 * n + replicate + seed) % 17) / 32.0
        loss += 0.5 * gradient[n] * gradient[n]
    return loss, gradient


@cache
def compiled_losses() -> Any:
    import numba

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        for n in range(5):
            loss[n] = ((7 * silo + 13 * round + 5 * n * n + 3 * replicate + seed) % 29) / 28.0
        return 0

    return function


@cache
def compiled_gradient() -> Any:
    import numba

    @numba.cfunc(gradient_signature())
    def function(state, seed, replicate, silo, round, x, gradient):
        loss = 0.0
        for n in range(4):
            gradient[n] = x[n] - ((3 * silo + 11 * round + 7 * n + replicate + seed) % 17) / 32.0
            loss += 0.5 * gradient[n] * gradient[n]
        return loss

    return function


def gradients(function: Any) -> GradientLosses:
    return GradientLosses(function=function, experts=4, optimum=np.full(4, 0.25), spread=2.0)


TABLE = np.random.default_rng(8).random((3, 150, 6))


def linear(d: int = 5) -> StochasticLosses:
    return StochasticLosses(experts=d)


def quadratic(d: int = 5) -> StochasticLosses:
    return StochasticLosses(experts=d, mean=0.7, gap=0.3, loss="quadratic")


OPE = {"algorithm": "fed-dp-ope-stoch", "batch": "largest", "epsilon": 20.0}
SVT = {"algorithm": "fed-svt", "epsilon": 5.0, "threshold": 12.0, "switches": 5}
LEADER, HEDGE = {"algorithm": "follow-the-leader"}, {"algorithm": "hedge"}
#: Environment, curve, rounds, silos.
PROBLEMS: dict[str, tuple[Any, dict[str, Any], int, int]] = {
    "linear": (linear(), OPE, 130, 3),
    "quadratic": (quadratic(), OPE, 130, 3),
    "gradients": (gradients(about), OPE, 100, 2),
    "server's noise": (quadratic(), {**OPE, "noise": "central"}, 130, 5),
    "no noise": (
        quadratic(), {"algorithm": "fed-dp-ope-stoch", "noise": "none", "batch": "largest"}, 130, 3
    ),
    "as in the paper": (quadratic(3), {**OPE, "batch": "paper", "epsilon": 90.0}, 270, 2),
    "messages": (linear(3), {**OPE, "protect": "messages", "epsilon": 60.0}, 130, 4),
    "no tree": (linear(), OPE, 5, 3),
    "hindsight": (ObliviousLosses(losses=TABLE), OPE, 150, 3),
    "svt": (RealizableLosses(experts=7), SVT, 140, 4),
    "svt, N = 9": (
        NearRealizableLosses(experts=7, optimal_loss=5), {**SVT, "phase_length": 9}, 140, 4
    ),
    "svt, table": (ObliviousLosses(losses=TABLE), {**SVT, "optimal_loss": 2.0}, 150, 3),
    "svt, function": (
        ObliviousLosses(function=patterned, experts=5), {**SVT, "optimal_loss": 0.0}, 90, 3
    ),
    "svt, pseudo-regret": (linear(), {**SVT, "optimal_loss": 0.0}, 90, 3),
    "svt, one client": (LowerBoundLosses(experts=3, theorem="2.7", burst=60), SVT, 90, 1),
    "dartboard": (
        ObliviousLosses(losses=TABLE),
        {"algorithm": "private-dartboard", "epsilon": 20.0, "switch_probability": 0.1}, 150, 3,
    ),
    "dartboard, N = 7, pseudo-regret": (
        linear(), {"algorithm": "private-dartboard", "epsilon": 20.0, "phase_length": 7}, 140, 3
    ),
    "limited updates": (
        RealizableLosses(experts=7), {"algorithm": "limited-updates", "epsilon": 2.0}, 140, 4
    ),
    "leader": (ObliviousLosses(losses=TABLE), LEADER, 140, 3),
    "leader, ties": (LowerBoundLosses(experts=5), {**LEADER, "phase_length": 7}, 140, 6),
    "leader, pseudo-regret": (linear(), LEADER, 140, 2),
    "hedge": (ObliviousLosses(losses=TABLE), HEDGE, 140, 3),
    "hedge, N = 7": (LowerBoundLosses(experts=5), {**HEDGE, "phase_length": 7}, 140, 6),
    "hedge, pseudo-regret": (linear(), HEDGE, 140, 3),
    "hedge, common function": (
        ObliviousLosses(function=patterned, experts=5, common=True), HEDGE, 60, 4
    ),
    "one round": (linear(), HEDGE, 1, 3),
}  # fmt: skip
#: What is played is one expert, and what it loses a whole number of units.
WHOLE = [n for n in PROBLEMS if n.startswith(("svt", "leader")) and "pseudo" not in n]


@cache
def experiment(name: str, *, seed: int = 7, checkpoints: int = 6) -> Experiment:
    environment, curve, horizon, silos = PROBLEMS[name]
    return make_experiment(
        name="experts", environment=environment, curves=[curve], horizon=horizon, silos=silos,
        seed=seed, checkpoints=checkpoints,
    )  # fmt: skip


def fast(e: Experiment, replicate: int = 0, **keys: Any) -> Any:
    opened = e.environment.open(e.seed, replicate, e.silos)
    at = keys.pop("checkpoints", e.checkpoints)
    return experts.run(opened, e.curves[0].system.plan, at, **keys)


def readable(e: Experiment, replicate: int = 0, **keys: Any) -> Any:
    opened = e.environment.open(e.seed, replicate, e.silos)
    at = keys.pop("checkpoints", e.checkpoints)
    return experts.run_steps(opened, e.curves[0].system.plan, at, **keys)


COUNTED = ("group_regret", "synchronisations", "bits_up", "bits_down")


# -- Both drivers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_two_drivers_agree_bit_for_bit(name):
    e = experiment(name)
    played = fast(e)
    same(played, readable(e))
    for threads in (2, 3):
        same(played, fast(e, threads=threads))
    assert np.isfinite(played.group_regret).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_simulate_gives_equal_bits_in_both_drivers(name):
    environment, curve, horizon, silos = PROBLEMS[name]
    runs = [
        fastfed.simulate(
            environment, curves=[curve], horizon=horizon, silos=silos, replicates=2, seed=3,
            checkpoints=9, **more,
        ).curves[0]
        for more in ({"threads": 1}, {"threads": 3}, {"driver": "step"})
    ]  # fmt: skip
    for other in runs[1:]:
        for counted in (
            *("group_regret", "synchronisation_counts", "bits_up_counts", "bits_down_counts"),
            *("rounds",),
        ):
            np.testing.assert_array_equal(getattr(runs[0], counted), getattr(other, counted))
        assert runs[0].events == other.events
        assert runs[0].certificate == other.certificate


@pytest.mark.parametrize("name", PROBLEMS)
def test_blocks_of_sums_change_nothing(name, monkeypatch):
    e = experiment(name)
    whole = fast(e)
    for most in (1, 60):
        monkeypatch.setattr(experts, "MOST_SUMS", most)
        same(whole, fast(e, threads=2))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_that_stops_early_is_the_beginning_of_the_whole(name):
    e = experiment(name, checkpoints=10**6)
    whole = fast(e)
    for last in {1, 8, 63, 64, e.horizon - 1} & set(range(1, e.horizon + 1)):
        played = fast(e, last=last), fast(e, last=last, threads=2), readable(e, last=last)
        for one in played:
            for counted in COUNTED:
                found, wanted = getattr(one, counted), getattr(whole, counted)
                np.testing.assert_array_equal(found[:last], wanted[:last])
            assert not one.group_regret[last:].any() and not one.bits_up[last:].any()
            np.testing.assert_array_equal(one.total, played[0].total)
            assert one.events == played[0].events


@pytest.mark.parametrize("name", PROBLEMS)
def test_results_do_not_depend_on_checkpoints(name):
    """Bits, where what is lost is a whole number of units; otherwise to rounding, as sums of what
    one x has lost are settled at each checkpoint."""
    e = experiment(name, checkpoints=10**6)
    whole = fast(e)
    for rounds in ([e.horizon // 2], [3, 8, 9], [1, 64, e.horizon]):
        at = np.array([r for r in sorted(set(rounds)) if 1 <= r <= e.horizon])
        if not len(at):
            continue
        for play in (fast, readable):
            played = play(e, checkpoints=at)
            for counted in COUNTED:
                found, wanted = getattr(played, counted), getattr(whole, counted)[at - 1]
                if counted == "group_regret" and name not in WHOLE:
                    atol = 1e-14 * e.silos * e.horizon
                    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=atol)
                else:
                    np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(played.total, whole.total)
            assert played.events == whole.events


@pytest.mark.parametrize("name", WHOLE)
def test_what_single_experts_lose_is_a_whole_number_of_units(name):
    regret = fast(experiment(name)).group_regret / UNIT
    np.testing.assert_array_equal(regret, np.rint(regret))


@pytest.mark.parametrize("name", [n for n in PROBLEMS if n not in ("no tree", "one round")])
def test_another_key_is_another_run(name):
    """A seed or a replicate; the same key is the same run."""
    e = experiment(name, checkpoints=30)
    one = fast(e)
    same(one, fast(e))
    if PROBLEMS[name][0].kind in ("oblivious-losses",) and "hedge" in name:
        # An array, or losses that forget their key, and no draws of its own.
        return
    for other in (fast(e, replicate=1), fast(experiment(name, seed=8, checkpoints=30))):
        assert not np.array_equal(one.group_regret, other.group_regret)


def test_curves_played_together_equal_curves_played_alone():
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
def test_progress_hears_of_every_round_once(name):
    e = experiment(name)
    for play, last in product((fast, readable), (None, 9)):
        heard: list[int] = []
        play(e, last=last, progress=heard.append)
        assert sum(heard) == (last or e.horizon)


@pytest.mark.parametrize(
    "wrong",
    [
        (
            experts.Hedge,
            "decide_many",
            lambda self, part: MANY(self, part._replace(sums=part.sums * 2)),
        ),
        (experts, "asks_of", lambda plan, edges: ASKS(plan, edges) * (np.arange(len(edges)) != 7)),
    ],
    ids=["sums", "an exchange"],
)
def test_a_fault_of_one_driver_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr(*wrong)
    for name in ("hedge", "hedge, N = 7"):
        e = experiment(name)
        with pytest.raises(AssertionError):
            same(fast(e), readable(e))


MANY, ASKS = experts.Hedge.decide_many, experts.asks_of


# -- Compiled losses -------------------------------------------------------------------------------


def chances(*means: float) -> np.ndarray:
    return np.rint(np.array(means) * loss_kernels.CHANCES).astype(np.uint32)


def check(result: Any) -> Any:
    return np.ascontiguousarray(result, dtype=np.float64)


def table(m: int, T: int, d: int) -> np.ndarray:
    draw = np.random.default_rng((m, T, d))
    return draw.integers(0, 2**24 + 1, size=(m, T, d)).astype(np.uint32)


def called(m: int, **keys: Any) -> loss_kernels.Losses:
    return loss_kernels.Called(2, 1, m, 5, patterned, check, **keys)


def built(m: int, **keys: Any) -> loss_kernels.Losses:
    return loss_kernels.Compiled(2, 1, m, 5, compiled_losses(), None, **keys)


HALF = chances(0.5, 0.25, 1.0, 0.0, 0.9)
#: Losses of m silos in 700 rounds.
LOSSES: dict[str, Callable[[int], loss_kernels.Losses]] = {
    "coins": lambda m: loss_kernels.Coins(1, 0, m, HALF),
    "common coins": lambda m: loss_kernels.Coins(1, 0, m, HALF, common=True),
    "coins that stop": lambda m: loss_kernels.Coins(1, 0, m, HALF, last=301),
    "coins, common, that stop": lambda m: loss_kernels.Coins(1, 3, m, HALF, common=True, last=2),
    "planned": lambda m: loss_kernels.Coins(1, 0, m, HALF, planned=2, lost=111),
    "planned, never": lambda m: loss_kernels.Coins(1, 0, m, HALF, planned=0, lost=0),
    "planned, stopping": lambda m: loss_kernels.Coins(1, 0, m, HALF, planned=4, lost=300, last=100),
    "many experts": lambda m: loss_kernels.Coins(1, 0, m, chances(*np.linspace(0, 1, 77))),
    "a table": lambda m: loss_kernels.Table(1, 0, m, table(m, 700, 5)),
    "a common table": lambda m: loss_kernels.Table(1, 0, m, table(1, 700, 3)),
    "a function": called,
    "a common function": lambda m: called(m, common=True),
    "compiled": built,
    "compiled and common": lambda m: built(m, common=True),
}
EDGES = {
    "all": [0, 700], "one": [0, 1], "the last": [699, 700], "each": list(range(701)),
    "inside": [255, 256, 257], "blocks": [0, 256, 512, 700], "beside blocks": [3, 259, 515, 700],
    "empty ones": [0, 0, 5, 5, 5, 300, 300], "from inside": [17, 640],
    "any": sorted(np.random.default_rng(4).choice(701, 40, replace=False).tolist()),
}  # fmt: skip


def units(losses: loss_kernels.Losses) -> np.ndarray:
    """All rows (m, 700, d) in whole units."""
    found = np.array([[losses.row(i, t) for t in range(1, 701)] for i in range(losses.silos)])
    whole = np.rint(found / losses.unit)
    np.testing.assert_array_equal(whole * losses.unit, found)
    return whole.astype(np.int64)


@pytest.mark.parametrize("silos", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_sums_are_sums_of_rows_wherever_edges_lie(name, silos):
    losses = LOSSES[name](silos)
    whole = units(losses)
    assert whole.min() >= 0 and whole.max() <= 1 / losses.unit
    before = np.concatenate([np.zeros_like(whole[0, :1]), whole.sum(axis=0).cumsum(axis=0)])
    for edges, threads in product(EDGES.values(), (1, 3)):
        found = losses.sums(np.array(edges, np.int64), threads)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, np.diff(before[edges], axis=0))


@pytest.mark.parametrize("silos", [255, 256, 257, 600])
def test_sums_of_more_silos_than_a_block_has_rows(silos):
    losses = loss_kernels.Coins(1, 0, silos, chances(0.3, 0.6))
    edges = np.array([0, 1, 4, 9], np.int64)
    rows = np.array([[losses.row(i, t) for t in range(1, 10)] for i in range(silos)]).sum(axis=0)
    for threads in (1, 3, 100):
        found = losses.sums(edges, threads)
        for (a, b), total in zip(pairwise(edges), found, strict=True):
            np.testing.assert_array_equal(total, rows[a:b].sum(axis=0))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_sums_of_rows(name):
    """Linear losses: the rows themselves, added in the order that is asked for."""
    losses = LOSSES[name](3)
    rounds = np.array([[1, 5, 5, 700], [2, 9, 300, 4], [301, 302, 3, 1]], np.int64)
    x = np.full(losses.experts, 1 / losses.experts)
    wanted = [np.sum([losses.row(i, t) for t in r], axis=0) for i, r in enumerate(rounds)]
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(losses.gradients(rounds, x, threads), wanted)


@pytest.mark.parametrize("common", [False, True])
def test_gradients_of_quadratic_losses(common):
    x = np.random.default_rng(1).dirichlet(np.ones(4))
    rounds = np.random.default_rng(2).integers(1, 60, size=(3, 11))
    for losses in (
        loss_kernels.Coins(4, 2, 3, chances(0.5, 0.7, 0.2, 0.9), quadratic=True, common=common),
        loss_kernels.Table(4, 2, 3, table(1 if common else 3, 60, 4), quadratic=True),
    ):
        found = losses.gradients(rounds, x, 2)
        for i, row in enumerate(found):
            total = np.zeros(4)
            for t in rounds[i]:
                g = losses.row(i, int(t))
                total += loss_kernels.square_gradient(g, x)
                np.testing.assert_allclose(
                    loss_kernels.square_gradient(g, x), g * (g @ x), rtol=1e-14
                )
            np.testing.assert_array_equal(row, total)


def test_what_coins_are_told():
    """last, planned and common, by their rows."""
    free = units(LOSSES["coins"](2))
    stopped = units(LOSSES["coins that stop"](2))
    np.testing.assert_array_equal(stopped[:, :301], free[:, :301])
    assert not stopped[:, 301:].any()
    planned = units(LOSSES["planned"](2))
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(planned[:, :, others], free[:, :, others])
    rounds = np.arange(1, 701)
    wanted = (rounds % 2 == 0) & (rounds <= 222)
    np.testing.assert_array_equal(planned[:, :, 2], np.broadcast_to(wanted, (2, 700)))
    assert planned[0, :, 2].sum() == 111
    assert not units(LOSSES["planned, never"](2))[:, :, 0].any()
    both = units(LOSSES["planned, stopping"](2))
    assert not both[:, 100:, :4].any() and both[:, 100:, 4].sum() == 2 * 250
    common = units(LOSSES["common coins"](2))
    np.testing.assert_array_equal(common[0], common[1])
    np.testing.assert_array_equal(common[0], free[0])
    assert free[:, :, 2].all() and not free[:, :, 3].any()


def test_rows_are_what_was_given():
    """Coins by the words they are thrown with, to one part in 2^31; tables by their entries."""
    for silo, round in ((0, 1), (2, 9)):
        words = rng.random_u32(3, CONTEXT, 1, silo, round, 6) >> 1
        for more in (-1, 0, 1):
            losses = loss_kernels.Coins(3, 1, 3, (words.astype(np.int64) + more).astype(np.uint32))
            assert losses.row(silo, round).tolist() == [float(more > 0)] * 6
        given = table(3, 20, 4)
        found = loss_kernels.Table(3, 1, 3, given).row(silo, round) / UNIT
        np.testing.assert_array_equal(found, given[silo, round - 1])
        common = loss_kernels.Table(3, 1, 3, given[2:]).row(silo, round) / UNIT
        np.testing.assert_array_equal(common, given[2, round - 1])


def test_sums_are_exact_in_units():
    """Of losses next to 0, 1 and odd multiples of 2^-24, as whole numbers."""
    values = np.array([0, 1, 2**24 - 1, 2**24, 2**23 + 1, 3], np.uint32)
    rows = values[np.random.default_rng(6).integers(0, 6, size=(4, 3000, 6))]
    losses = loss_kernels.Table(0, 0, 4, np.ascontiguousarray(rows))
    wanted = [sum(int(v) for v in rows[:, :, n].ravel()) for n in range(6)]
    (found,) = losses.sums(np.array([0, 3000], np.int64), 2)
    assert found.tolist() == wanted
    # float64 keeps them, and what is given as losses is taken to the nearest multiple.
    assert [int(v / UNIT) for v in losses.unit * found] == wanted
    given = np.array([[0.1, 0.25 + 0.4 * UNIT, 1.0 - 0.6 * UNIT, 0.5 * UNIT]])
    taken = ObliviousLosses(losses=given).open(0, 0, 2).losses.row(1, 1) / UNIT
    assert taken.tolist() == [round(0.1 / UNIT), 2**22, 2**24 - 1, 0]


def test_functions_in_python_and_compiled_are_equal():
    for common in (False, True):
        one, two = called(3, common=common), built(3, common=common)
        np.testing.assert_array_equal(units(one), units(two))
        wanted = np.rint(patterned(2, 1, 0 if common else 2, 9) / UNIT)
        np.testing.assert_array_equal(one.row(2, 9) / UNIT, wanted)
    x = np.array([0.1, 0.2, 0.3, 0.4])
    rounds = np.arange(1, 31).reshape(3, 10)
    made = (
        gradients(about).open(2, 1, 3).losses,
        gradients(compiled_gradient()).open(2, 1, 3).losses,
    )
    for silo, round in product(range(3), (1, 7, 30)):
        (a, da), (b, db) = (losses.value(silo, round, x) for losses in made)
        assert a == b == about(2, 1, silo, round, x)[0]
        np.testing.assert_array_equal(da, db)
    totals = [losses.gradients(rounds, x, threads) for losses in made for threads in (1, 2)]
    for total in totals:
        np.testing.assert_array_equal(total, totals[0])


def test_curves_over_both_are_equal():
    keys = {"horizon": 70, "silos": 3, "seed": 4, "replicates": 2, "checkpoints": 7}
    pairs = [
        (HEDGE, [ObliviousLosses(function=f, experts=5) for f in (patterned, compiled_losses())]),
        (OPE, [gradients(f) for f in (about, compiled_gradient())]),
    ]
    for curve, environments in pairs:
        runs = [
            fastfed.simulate(made, curves=[curve], driver=driver, **keys).curves[0]
            for made, driver in product(environments, ("compiled", "step"))
        ]
        for run in runs:
            np.testing.assert_array_equal(run.group_regret, runs[0].group_regret)
        assert len(np.unique(runs[0].group_regret)) > 5


def test_a_compiled_function_reads_its_state():
    import numba

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        for n in range(3):
            loss[n] = state[n]
        return 0

    state = np.array([0.25, 0.5, 0.75])
    losses = ObliviousLosses(function=function, experts=3, state=state).open(0, 0, 2).losses
    np.testing.assert_array_equal(losses.row(1, 4), state)
    np.testing.assert_array_equal(losses.sums(np.array([0, 10], np.int64))[0] * UNIT, 20 * state)


# -- Coins and Laplace draws -----------------------------------------------------------------------


@cache
def thrown() -> np.ndarray:
    """Coins (4 silos, 4000 rounds, 4 experts) of chances .5, .3, .05 and .97."""
    losses = loss_kernels.Coins(12, 3, 4, chances(0.5, 0.3, 0.05, 0.97))
    return np.array([[losses.row(i, t) for t in range(1, 4001)] for i in range(4)])


def test_means_of_coins():
    rows, p = thrown(), np.array([0.5, 0.3, 0.05, 0.97])
    assert set(np.unique(rows)) == {0.0, 1.0}
    one = np.sqrt(p * (1 - p))
    # Over all, by silo, and by tenths of the rounds.
    assert (np.abs(rows.mean(axis=(0, 1)) - p) < 5 * one / sqrt(16000)).all()
    assert (np.abs(rows.mean(axis=1) - p) < 5 * one / sqrt(4000)).all()
    tenths = rows.reshape(4, 10, 400, 4).mean(axis=(0, 2))
    assert (np.abs(tenths - p) < 5 * one / sqrt(1600)).all()
    # And a million of each by sums.
    losses = loss_kernels.Coins(13, 0, 10, chances(*p))
    (total,) = losses.sums(np.array([0, 100_000], np.int64), 2)
    assert (np.abs(total / 1e6 - p) < 5 * one / 1e3).all()


def test_coins_are_independent_between_silos_rounds_and_experts():
    rows = thrown() - thrown().mean(axis=(0, 1))
    rows /= rows.std(axis=(0, 1))
    correlations = []
    for a, b in combinations(range(4), 2):
        correlations.append((rows[:, :, a] * rows[:, :, b]).mean() * sqrt(16000))
        for n in range(4):
            correlations.append((rows[a, :, n] * rows[b, :, n]).mean() * sqrt(4000))
    for lag, n, k in product((1, 2, 4, 256), range(4), range(4)):
        pairs = rows[:, lag:, n] * rows[:, :-lag, k]
        correlations.append(pairs.mean() * sqrt(pairs.size))
    assert np.abs(correlations).max() < 5
    # They spread as standard normals, nearly: no draw is used for two.
    assert 0.6 < np.std(correlations) < 1.5


@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_the_better_expert_is_the_better_one(mean):
    law, found = StochasticLosses(experts=6, mean=mean, gap=0.2), set()
    for replicate in range(24):
        adversary = law.open(5, replicate, 3)
        best = best_expert(5, replicate, 6)
        (total,) = adversary.losses.sums(np.array([0, 2000], np.int64))
        wanted = np.full(6, mean)
        wanted[best] -= 0.2
        spread = np.sqrt(wanted * (1 - wanted) / 6000)
        assert (np.abs(total / 6000 - wanted) < 5 * spread).all()
        found.add(best)
        assert adversary.suboptimality(np.eye(6)[best]) == 0.0
    assert len(found) >= 5


def test_realizable_losses_and_bursts():
    for lost in (0, 3):
        made = NearRealizableLosses(experts=5, optimal_loss=lost).open(3, 1, 4)
        (total,) = made.losses.sums(np.array([0, 400], np.int64))
        assert total[best_expert(3, 1, 5)] == 4 * lost
        assert np.sum(total > 600) == 4
    fair = LowerBoundLosses(experts=5).open(3, 1, 4).losses
    rows = np.array([[fair.row(i, t) for t in range(1, 401)] for i in range(4)])
    assert (rows == rows[0]).all() and np.abs(rows.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / 20
    made = LowerBoundLosses(experts=5, theorem="2.7", burst=9).open(3, 1, 4)
    (total,) = made.losses.sums(np.array([0, 400], np.int64))
    assert sorted(total) == [0, 36, 36, 36, 36] and total[best_expert(3, 1, 5)] == 0


def drawn(n: int, index: int = 0, silo: int = 0) -> np.ndarray:
    return rng.laplace(21, SCORE_NOISE, 2, silo, index, n)


def test_laplace_draws_have_the_law():
    n = 1_000_000
    z = drawn(n)
    assert abs(z.mean()) < 5 * sqrt(2 / n)
    # Fourth and eighth moments of the law are 24 and 40320.
    assert abs((z**2).mean() - 2) < 5 * sqrt((24 - 4) / n)
    assert abs(np.abs(z).mean() - 1) < 5 * sqrt(1 / n)
    assert abs((z**4).mean() - 24) < 5 * sqrt((40320 - 576) / n)
    assert stats.kstest(z, stats.laplace.cdf).pvalue > 1e-3
    assert stats.kstest(np.abs(z), stats.expon.cdf).pvalue > 1e-3
    # By eights and between neighbours, and between the halves that one block of words makes.
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
        np.testing.assert_array_equal(row, drawn(count, 9, i))
        np.testing.assert_array_equal(row, SeededNoise(21, 2).laplace(i, 9, count))
    if count:
        assert len(np.unique(rows)) == rows.size
        assert not np.array_equal(rows, rng.laplace_rows(21, SCORE_NOISE, 2, 5, 10, count))


def quantile(bits: int) -> float:
    """Of (bits + 1/2) / 2^53, in 50 digits."""
    with localcontext() as context:
        context.prec = 50
        u = (2 * Decimal(bits) + 1) / Decimal(2**54)
        exact = (2 * u).ln() if bits < 2**52 else -(2 * (1 - u)).ln()
        return float(exact)


def test_laplace_from_bits_is_the_quantile_in_both_tails():
    draw = np.random.default_rng(3)
    low = {0, 1, 2, 3, 5, 2**10, 2**20 + 1, 2**31, 2**50, 2**51, 2**52 - 1, 2**52 - 2}
    low |= {2**k + int(draw.integers(2**k)) for k in range(52)}
    low |= {2**52 - 1 - int(draw.integers(2**k)) for k in range(1, 52)}
    bits = np.array(sorted(low), np.uint64)
    found = rng.laplace_from_bits(bits)
    exact = np.array([quantile(int(b)) for b in bits])
    np.testing.assert_allclose(found, exact, rtol=1e-15, atol=0)
    # The other tail has equal bits, so that the law is symmetric.
    mirrored = rng.laplace_from_bits(np.uint64(2**53 - 1) - bits)
    np.testing.assert_array_equal(mirrored, -found)
    assert found[0] == pytest.approx(-53 * np.log(2), rel=1e-15)
    above = np.array([2**52, 2**53 - 1], np.uint64)
    wanted = [quantile(int(b)) for b in above]
    np.testing.assert_allclose(rng.laplace_from_bits(above), wanted, rtol=1e-15, atol=0)


# -- How noise falls with the clients --------------------------------------------------------------

#: One phase of five trees, a batch of 32; scales of other trees tell when they are taken instead.
TREES, BATCH, SCALES = 5, 32, (0.4, 0.7, 1.3, 2.1, 3.6)
PHASE = 11
D = 8192


def tree_plan(m: int, central: bool) -> FrankWolfePlan:
    return FrankWolfePlan(
        silos=m, horizon=2**PHASE - 1, experts=D,
        protocol=CENTRAL_SCORES if central else LOCAL_SCORES,
        phases=(Phase(PHASE, BATCH, SCALES),), bounds=Bounds(0.0, 1.0, 0.0),
    )  # fmt: skip


class Seen(np.ndarray):
    """Scores that are noted when their least one is asked for."""

    log: list[np.ndarray]

    def argmin(self, *args: Any, **keys: Any) -> Any:
        Seen.log.append(np.array(self))
        return np.asarray(self).argmin(*args, **keys)


def added(m: int, central: bool, together: bool) -> dict[int, np.ndarray]:
    """Noise of the averaged score of losses that are all 0, by tree: the server's doing."""
    plan, source = tree_plan(m, central), SeededNoise(31, m)
    assert len(plan.phases[0].samples) >= plan.phases[0].used
    x, zeros = np.full(D, 1 / D), np.zeros(D)
    if together:
        nothing = loss_kernels.Coins(31, m, m, np.zeros(D, np.uint32))
        everyone = experts.Scores(plan, nothing, source, 1)
    else:
        collectors = [GradientCollector(plan, i, source) for i in range(m)]
        for collector in collectors:
            for t in plan.phases[0].samples:
                collector.observe(t, zeros)
    server = NoisyLeast(plan, source)
    server.start()
    Seen.log = []
    for release in range(1, plan.exchanges + 1):
        if together:
            total = everyone.total(release, x)
        else:
            total = np.sum([c.values(release, x) for c in collectors], axis=0)
        server.decide(total.view(Seen))
    scores = np.array(Seen.log)
    trees = np.array([leaf.tree for leaf in plan.phases[0].leaves])
    return {j: scores[trees == j] for j in range(1, TREES + 1)}


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_noise_of_the_mean_score_falls_with_the_clients(central, together):
    """As m^-1/2, and as m^-1 where it is the server's, to 2 %.

    At tree 5 there are 32 leaves of 8192 scores. The relative standard error of a standard
    deviation from n draws is sqrt((kurtosis - 1) / (4 n)): of Laplace noise, kurtosis 6, 0.0022,
    and of sums of m, kurtosis 3 + 3/m, less. 2 % are nine of them. Tree 3, an eighth as many for
    2^3 leaves: 65536 draws, 0.0044, four and a half.
    """
    power = -1.0 if central else -0.5
    for m in (1, 4, 16, 64) if together else (1, 3, 12):
        noise = added(m, central, together)
        for j in (3, 5):
            wanted = sqrt(2) * SCALES[j - 1] * m**power
            assert noise[j].std() == pytest.approx(wanted, rel=0.02)
            assert abs(noise[j].mean()) < 5 * wanted / sqrt(noise[j].size)
        # Laplace at one client or of the server; nearly normal of many.
        kurtosis = float((noise[5] ** 4).mean() / (noise[5] ** 2).mean() ** 2)
        assert kurtosis == pytest.approx(6.0 if central else 3 + 3 / m, rel=0.08)
        # No draw serves two leaves.
        first, second = noise[5][:-1], noise[5][1:]
        assert abs((first * second).mean()) < 5 * wanted**2 / sqrt(first.size)


def test_wrong_noise_is_noticed(monkeypatch):
    """Noise of the tree before, one client's for all, and central noise that is not divided."""

    def fails(central: bool, together: bool, patch: Callable[[pytest.MonkeyPatch], None]) -> None:
        with pytest.MonkeyPatch.context() as context:
            patch(context)
            with pytest.raises(AssertionError):
                test_noise_of_the_mean_score_falls_with_the_clients(central, together)

    scale, laplace = FrankWolfePlan.scale, SeededNoise.laplace
    fails(False, True, lambda p: p.setattr(
        FrankWolfePlan, "scale", lambda self, n: scale(self, max(1, n - 14))))  # fmt: skip
    fails(False, False, lambda p: p.setattr(
        SeededNoise, "laplace", lambda self, i, n, d: laplace(self, 0, n, d)))  # fmt: skip
    fails(True, True, lambda p: p.setattr(
        FrankWolfePlan, "scale", lambda self, n: scale(self, n) * self.silos))  # fmt: skip
    fails(False, False, lambda p: p.setattr(
        SeededNoise, "laplace", lambda self, i, n, d: laplace(self, i, n // 2, d)))  # fmt: skip


def test_scales_depend_on_batch_and_trees_alone():
    """Not on the clients: lambda_j is that of one client's loss."""
    found: dict[tuple[int, int], set[tuple[float, ...]]] = {}
    for m, noise in product((1, 4, 64, 1024), ("local", "central")):
        system = make_experiment(
            name="x", environment=quadratic(10), curves=[{**OPE, "epsilon": 2.0, "noise": noise}],
            horizon=2**14, silos=m,
        ).curves[0].system  # fmt: skip
        for phase in system.plan.phases:
            found.setdefault((phase.batch, phase.trees), set()).add(phase.scales)
    assert len(found) > 8 and all(len(scales) == 1 for scales in found.values())


# -- What regret is measured by --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_suboptimality_is_what_is_lost(seed):
    """Against 300 000 losses of the law: within five standard errors."""
    draw = np.random.default_rng(seed)
    means, n = draw.random(5), 300_000
    coins = chances(*means)
    means = coins / loss_kernels.CHANCES
    rounds = np.arange(1, n + 1).reshape(1, n)
    for x in (draw.dirichlet(np.ones(5)), np.eye(5)[seed], np.full(5, 0.2)):
        linear_, square = (
            loss_kernels.Coins(seed, 0, 1, coins, quadratic=q).gradients(rounds, x)[0]
            for q in (0, 1)
        )
        mean, half = float(linear_ @ x) / n, float(square @ x) / (2 * n)
        assert abs(mean - means @ x) < 5 * 0.5 / sqrt(n)
        assert abs(half - square_loss(means, x)) < 5 * 0.25 / sqrt(n)
        least = square_minimum(means)
        found = square_suboptimality(means, least, x), linear_suboptimality(means, means.min(), x)
        assert abs(half - least - found[0]) < 5 * 0.25 / sqrt(n)
        assert abs(mean - means.min() - found[1]) < 5 * 0.5 / sqrt(n)
        # Exactly: the mean over all outcomes of coins.
        g = np.array(list(product((0.0, 1.0), repeat=5)))
        law = np.prod(np.where(g == 1.0, means, 1.0 - means), axis=1)
        assert law @ (g @ x) ** 2 / 2 == pytest.approx(square_loss(means, x), rel=1e-12)


def least_on_the_simplex(means: np.ndarray) -> tuple[float, float]:
    """An interval that holds the minimum of E <g, x>^2 / 2: a search, less its duality gap."""
    q = np.outer(means, means) + np.diag(means * (1 - means))
    d = len(means)
    best = (inf, 0.0)
    for start in (np.full(d, 1 / d), np.eye(d)[int(means.argmin())]):
        found = minimize(
            lambda x: 0.5 * x @ q @ x, start, jac=lambda x: q @ x, bounds=[(0, 1)] * d,
            method="SLSQP", constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0,
                                         "jac": lambda x: np.ones(d)},
            options={"ftol": 1e-16, "maxiter": 500},
        )  # fmt: skip
        x = np.clip(found.x, 0.0, None)
        x /= x.sum()
        # f convex: the minimum is at least f(x) - max <grad, x - e_n>.
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


@pytest.mark.parametrize("law", MEANS)
def test_the_least_square_loss_is_that_of_a_search(law):
    for d, seed in product((2, 3, 6, 15), range(3)):
        means = np.random.default_rng((seed, d)).permutation(
            MEANS[law](np.random.default_rng((d, seed)), d)
        )
        low, high = least_on_the_simplex(means)
        assert high - low < 1e-6
        found = square_minimum(means)
        assert low - 1e-12 <= found <= high + 1e-12


def test_pseudo_regret_of_a_run_is_the_sum_over_rounds():
    """m times the suboptimality of each round's x, from a run that is recorded."""
    for name in ("linear", "quadratic", "hedge, pseudo-regret"):
        e = experiment(name, checkpoints=10**6)
        played: list[np.ndarray] = []

        def note(
            self: Any, edges: np.ndarray, settles: Any, which: np.ndarray, weights: np.ndarray,
            sums: Any, log: list[np.ndarray] = played,
        ) -> None:  # fmt: skip
            for row, rounds in zip(which, np.diff(edges), strict=True):
                log += [weights[row].copy()] * rounds
            LEDGER(self, edges, settles, which, weights, sums)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(experts.Ledger, "played_many", note)
            outcome = fast(e)
        law = e.environment
        means = np.full(5, law.mean)
        means[best_expert(e.seed, 0, 5)] -= law.gap
        loss = square_loss if law.loss == "quadratic" else np.dot
        least = least_on_the_simplex(means)[1] if law.loss == "quadratic" else means.min()
        wanted = e.silos * np.cumsum([loss(means, x) - least for x in played])
        np.testing.assert_allclose(outcome.group_regret, wanted, rtol=1e-6, atol=1e-6)
        assert len(played) == e.horizon


LEDGER = experts.Ledger.played_many


def test_regret_has_the_signs_it_must_have():
    """Against losses of one law the leader learns; against the best in hindsight hedge keeps its
    bound; nobody beats fair coins by more than chance."""
    keys = {"horizon": 400, "silos": 4, "seed": 1, "replicates": 5}
    curves = [{"label": "leader", **LEADER}, {"label": "hedge", **HEDGE}, {"label": "ope", **OPE}]
    found = fastfed.simulate(StochasticLosses(experts=8, gap=0.3), curves=curves, **keys)
    for label in ("leader", "hedge", "ope"):
        regret = found[label].group_regret
        # Pseudo-regret never falls; a random expert would lose 4 * 400 * .3 * 7 / 8.
        assert (np.diff(regret, axis=1) >= -1e-9).all() and (regret >= 0).all()
        assert regret[:, -1].max() < 0.9 * 420
    assert found["leader"].group_regret[:, -1].max() < 0.1 * 420
    found = fastfed.simulate(LowerBoundLosses(experts=8), curves=curves, **keys)
    hedge = found["hedge"].group_regret[:, -1] / 4
    assert (hedge <= sqrt(400 * np.log(8) / 2)).all() and hedge.mean() > 5
    found = fastfed.simulate(RealizableLosses(experts=8), curves=[*curves, SVT], **keys)
    for curve in found.curves:
        assert (curve.group_regret >= 0).all()


# -- Functions that fail ---------------------------------------------------------------------------

DRIVERS: dict[str, dict[str, Any]] = {
    "one thread": {"threads": 1}, "three threads": {"threads": 3}, "steps": {"driver": "step"},
}  # fmt: skip


def raising(kind: type[Exception], at: tuple[int, int]) -> Callable[..., np.ndarray]:
    def function(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
        if (silo, round) == at:
            raise kind("nothing here")
        return np.full(3, 0.5)

    return function


def answering(answer: Any) -> Callable[..., Any]:
    return lambda seed, replicate, silo, round: answer


def simulated(environment: Any, curve: dict[str, Any], how: str) -> None:
    fastfed.simulate(environment, curves=[curve], horizon=60, silos=2, seed=1, **DRIVERS[how])


@pytest.mark.parametrize("how", DRIVERS)
@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError, KeyError])
@pytest.mark.parametrize("at", [(0, 1), (1, 37)])
def test_exceptions_of_a_function_come_out_with_a_note(how, kind, at):
    environment = ObliviousLosses(function=raising(kind, at), experts=3)
    with pytest.raises(kind, match="nothing here") as caught:
        simulated(environment, HEDGE, how)
    where = f"in the environment's function (replicate 0, silo {at[0]}, round {at[1]})"
    assert caught.value.__notes__ == [where]


@pytest.mark.parametrize("how", DRIVERS)
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
def test_losses_out_of_range_are_refused(how, answer, message):
    environment = ObliviousLosses(function=answering(answer), experts=3)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        simulated(environment, HEDGE, how)
    (where,) = caught.value.__notes__
    assert re.fullmatch(r"in the environment's function \(replicate 0, silo \d, round \d+\)", where)


GRADIENT_ANSWERS: dict[str, tuple[Any, str]] = {
    "NaN loss": ((np.nan, np.zeros(3)), "loss must be finite, got nan"),
    "a text": (("much", np.zeros(3)), "loss must be a number, got 'much'"),
    "NaN gradient": ((0.5, np.array([0, np.nan, 0])), "gradient must be finite, got nan"),
    "short gradient": ((0.5, np.zeros(2)), "gradient must have shape (3,), got (2,)"),
    "no tuple": (0.5, "function must return (loss, gradient)"),
    "no gradient": ((0.5,), "function must return (loss, gradient)"),
}


@pytest.mark.parametrize("how", DRIVERS)
@pytest.mark.parametrize("name", GRADIENT_ANSWERS)
def test_bad_gradients_are_refused(how, name):
    answer, message = GRADIENT_ANSWERS[name]
    environment = GradientLosses(
        function=lambda seed, replicate, silo, round, x: answer, experts=3, optimum=[1, 0, 0]
    )
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        simulated(environment, OPE, how)
    assert len(caught.value.__notes__) == 1


def test_the_first_failure_is_the_one_to_show():
    """Later failures of the same call do not hide it, and none is left for the next call."""
    failing = {(0, 3), (1, 3), (1, 400)}

    def function(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
        if (silo, round) in failing:
            raise ValueError(f"{silo} {round}")
        return np.zeros(3)

    losses = loss_kernels.Called(0, 0, 2, 3, function, check)
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
    import numba

    value = {"nan": np.nan, "above": 1.0 + 1e-9, "below": -1e-9, "status": 0.5}[kind]
    status = -1 if kind == "status" else 0

    @numba.cfunc(losses_signature())
    def function(state, seed, replicate, silo, round, loss):
        for n in range(3):
            loss[n] = 0.5
        if round == 11 and silo == 1:
            loss[1] = value
            return status
        return 0

    return function


@pytest.mark.parametrize("kind", ["nan", "above", "below", "status"])
def test_compiled_losses_out_of_range_are_refused(kind):
    message = "reported a failure" if kind == "status" else r"outside \[0, 1\]"
    environment = ObliviousLosses(function=bad_losses(kind), experts=3)
    for how in DRIVERS:
        with pytest.raises(loss_kernels.LossError, match=message):
            simulated(environment, HEDGE, how)


@cache
def bad_gradient(kind: str) -> Any:
    import numba

    loss, slope = (np.nan, 0.0) if kind == "loss" else (0.5, np.nan)

    @numba.cfunc(gradient_signature())
    def function(state, seed, replicate, silo, round, x, gradient):
        for n in range(3):
            gradient[n] = slope
        return loss

    return function


@pytest.mark.parametrize("how", DRIVERS)
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_compiled_gradients_that_are_nan_are_refused(how, kind):
    environment = GradientLosses(function=bad_gradient(kind), experts=3, optimum=[1, 0, 0])
    curve = {**OPE, "noise": "none"}
    del curve["epsilon"]
    with pytest.raises((loss_kernels.LossError, InputError)):
        simulated(environment, curve, how)


@pytest.mark.parametrize(
    "losses",
    [
        np.full((5, 3), np.nan), np.full((5, 3), 1.1), np.full((5, 3), -0.1), np.zeros((5, 1)),
        np.zeros(5), np.zeros((0, 3)), np.zeros((2, 2, 2, 2)), "no such file.npy",
    ],
)  # fmt: skip
def test_bad_tables_are_refused(losses):
    with pytest.raises(InputError, match=r"^(losses|experts) .*$"):
        ObliviousLosses(losses=losses)


def test_tables_from_files_and_their_sizes(tmp_path):
    np.save(tmp_path / "losses.npy", TABLE)
    one = ObliviousLosses(losses=str(tmp_path / "losses.npy"))
    assert one.natural_silos() == 3 and one.describe() == ObliviousLosses(losses=TABLE).describe()
    with pytest.raises(InputError, match="horizon must be at most 150, the rounds of losses"):
        fastfed.simulate(one, curves=[HEDGE], horizon=151)
    with pytest.raises(InputError, match="silos must be 3"):
        fastfed.simulate(one, curves=[HEDGE], horizon=10, silos=2)
    common = ObliviousLosses(losses=TABLE[1])
    for made, silo in product((common, ObliviousLosses(losses=TABLE[1:2])), (0, 4)):
        found = made.open(0, 0, 5).losses.row(silo, 7)
        np.testing.assert_allclose(found, TABLE[1, 6], atol=UNIT / 2)
