"""The compiled driver: a replicate of one or several curves, played without Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments
from fastfed.privacy.account import verify
from fastfed.protocols.peers import Part, PeerPlan
from fastfed.protocols.phases import PhasePlan, check_phase_plan
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import NOISY_ADD, REPLACE
from fastfed.protocols.release import RELEASES
from fastfed.simulation import phases
from fastfed.simulation.outcome import Outcome, linear_events, sent
from fastfed.simulation.peers import play_parts

#: What a curve's state is made of: by name (shape, type), zeros at first.
Shapes = dict[str, tuple[tuple[int, ...], Any]]


def shapes(plan: Plan, checkpoints: int, record: bool = False) -> Shapes:
    """The arrays that a curve's state consists of, and what it takes in memory (see memory.py)."""
    m, d, s = plan.silos, plan.dimension, plan.statistic_size
    slots = 1 if plan.lazy else m
    levels, protocol = plan.levels, plan.protocol
    owners = m if protocol.analyzer == REPLACE else 1  # of noises that are kept
    node_rows = owners if levels else 0
    sum_rows = m if protocol.tree or protocol.bits else int(protocol.analyzer == NOISY_ADD)
    made: Shapes = {
        "history": ((owners if plan.release == "toeplitz" else 0, plan.releases, s), float),
        "choice": ((m, 3), np.int64),
        "candidates": ((m, driver.CANDIDATES_SIZE), np.uint8),
        "w": ((slots, d, d), float),
        "theta": ((slots, d), float),
        "batch": ((m, s), float),
        "sums": ((sum_rows, levels, s), float),
        "nodes": ((node_rows, levels, s), float),
        "messages": ((m if plan.batch_size else 0, s), float),
        "total": ((s,), float),
        "regret": ((m,), float),
        "curve": ((m, checkpoints), float),
        "clipped": ((m, 2), np.int64),
        "indefinite": ((1,), np.int64),
        "synchronised": ((checkpoints,), np.int64),
    }
    if record:
        made |= {
            "actions": ((m, plan.horizon), np.int32),
            "rewards": ((m, plan.horizon), float),
        }
    return made


def clock_shapes(plan: Plan) -> Shapes:
    """The same of a trigger, named as ff_trigger in src/ff_trigger.h."""
    if plan.trigger is None:
        return {}
    m, d = plan.silos, plan.dimension
    return {
        "skip_bound": ((m, driver.SKIP_BOUND_SIZE), float),
        "aggregate_factor": ((m if plan.trigger.updates(d) else 0, d, d), float),
        "nodes": ((m, plan.trigger.levels(plan.horizon), plan.statistic_size), float),
        "fired": ((m,), np.int64),
        "snapshot": ((m, driver.snapshot_size(d)), float),
    }


def state(plan: Plan, checkpoints: int, record: bool) -> dict[str, Any]:
    """A curve's plan and fresh state, named as ff_curve in src/ff_run.h."""
    levels, protocol = plan.levels, plan.protocol
    clip, encoding = plan.clip, plan.encoding
    return {
        "batch_size": plan.batch_size,
        "lazy": plan.lazy,
        "random": plan.policy == "random",
        "score": plan.score,
        "randomizer": protocol.randomizer,
        "analyzer": protocol.analyzer,
        "noise_std": plan.noise_std.parts,
        "noise_scale": np.ascontiguousarray(plan.noise_scale, dtype=np.float64),
        "radius": (plan.radius.multiplier, plan.radius.scale, plan.radius.base),
        "radius_count": float(plan.rows_per_round),
        "determinant": plan.radius.determinant,
        "direct": plan.radius.direct,
        "anchor": plan.radius.anchor,
        "error_bound": np.ascontiguousarray(plan.radius.error_bound, dtype=np.float64),
        "floor": np.ascontiguousarray(plan.radius.floor, dtype=np.float64),
        "release": RELEASES.index(plan.release),
        "coefficients": plan.coefficients,
        "regularizer": np.ascontiguousarray(plan.regularizer, dtype=np.float64),
        "radius_offset": np.ascontiguousarray(plan.radius.offset, dtype=np.float64),
        "radius_lambda": np.ascontiguousarray(plan.radius.log_lambda, dtype=np.float64),
        "clip": clip is not None,
        "feature_bound": clip.feature if clip else 0.0,
        "reward_range": (clip.low, clip.high) if clip else (0.0, 0.0),
        "levels": levels,
        "shuffled": protocol.shuffled,
        "bit_levels": np.array(
            [encoding.steps(j) for j in range(levels)] if encoding else (), np.int64
        ),
        "noise_bits": np.array(encoding.noise_bits if encoding else (), np.int64),
        "unit": np.ascontiguousarray(plan.units),
        "order": np.arange(plan.silos, dtype=np.int64),
        "trigger": clock(plan),
        "requested": None,
        "synchronised_rounds": None,
        "actions": None,
        "rewards": None,
        **zeros(shapes(plan, checkpoints, record)),
    }


def zeros(made: Shapes) -> dict[str, np.ndarray]:
    """Arrays of these shapes."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in made.items()}


def clock(plan: Plan) -> dict[str, Any] | None:
    """A trigger and its fresh state, named as ff_trigger in src/ff_trigger.h."""
    if plan.trigger is None:
        return None
    return {
        "kind": plan.trigger.kind,
        "delay": plan.trigger.delay,
        "threshold": plan.trigger.threshold,
        "extra": plan.trigger.extra,
        "std": plan.trigger.std,
        "levels": plan.trigger.levels(plan.horizon),
        **zeros(clock_shapes(plan)),
    }


def outcome(plan: Plan, state: dict[str, Any]) -> Outcome:
    """What the state has come to. Silos are summed one after the other, in index order."""
    group = np.zeros(state["curve"].shape[1])
    for row in state["curve"]:
        group += row
    features, rewards = state["clipped"].sum(axis=0)
    return Outcome(
        group_regret=group,
        **sent(plan, state["synchronised"].cumsum()),
        events=linear_events(int(state["indefinite"][0]), int(features), int(rewards)),
        total=state["total"],
        actions=state["actions"],
        rewards=state["rewards"],
    )


#: A call into the compiled side aims at this many seconds: Ctrl-C and progress come between.
CALL_SECONDS = 0.25


def play(
    environment: environments.Environment,
    plans: Sequence[Plan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """Play rounds 1..last (all by default) of all plans over one environment.

    One outcome per plan; a plan with a trigger comes alone. ``progress(rounds)`` hears how many
    rounds each call played and may raise to stop. How the rounds are divided into calls changes
    nothing.
    """
    for plan in plans:
        check_plan(plan)
    horizon, silos = plans[0].horizon, plans[0].silos
    states = [state(plan, len(checkpoints), record) for plan in plans]
    run = driver.Run(environment, silos, horizon, checkpoints, states, threads)
    run.initialise()
    through(run, 1, horizon if last is None else last, rounds_per_call, progress)
    return [outcome(plan, s) for plan, s in zip(plans, states, strict=True)]


def through(
    run: driver.Run,
    first: int,
    last: int,
    rounds_per_call: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Play rounds first..last of a pass, call by call."""
    step = rounds_per_call or 16
    while first <= last:
        until = min(first + step - 1, last)
        start = time.perf_counter()
        run.simulate(first, until)
        seconds = time.perf_counter() - start
        if progress is not None:
            progress(until - first + 1)
        first = until + 1
        if rounds_per_call is None:
            step = max(1, min(4 * step, int(step * CALL_SECONDS / max(seconds, 1e-6))))


def play_peers(
    environment: environments.Environment,
    plan: PeerPlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """The same for a decentralised plan, part after part."""
    verify(plan)
    until = plan.horizon if last is None else last
    heard = 0

    def play_part(part: Part, own: np.ndarray) -> dict[str, Any]:
        silos = len(part.clique)
        made = state(part.plan, len(own), record)
        made["synchronised_rounds"] = np.zeros(part.plan.horizon, np.uint8)
        made["requested"] = np.zeros((part.plan.horizon, silos), np.uint8)
        run = driver.Run(
            environment,
            silos,
            part.plan.horizon,
            own,
            [made],
            threads,
            names=np.array(part.clique, np.int64),
            phase=part.estimator,
            stride=plan.gamma,
        )

        def tell(rounds: int) -> None:
            nonlocal heard
            heard += rounds * silos
            if progress is not None:
                # In whole rounds of all silos.
                progress(heard // plan.silos - (heard - rounds * silos) // plan.silos)

        run.initialise()
        through(run, 1, plan.uses(part.estimator, until), rounds_per_call, tell)
        return made

    return play_parts(plan, checkpoints, play_part, record=record)


def play_phases(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """The same for a plan in phases, phase after phase."""
    check_phase_plan(plan)
    made = state(plan.local, len(checkpoints), record)

    def open_pass(made: dict[str, Any]) -> driver.Run:
        return driver.Run(environment, plan.silos, plan.horizon, checkpoints, [made], threads)

    def play_rounds(run: driver.Run, first: int, last: int) -> None:
        through(run, first, last, rounds_per_call, progress)

    until = plan.horizon if last is None else last
    released, model = phases.play(
        environment, plan, checkpoints, made, open_pass, play_rounds, until
    )
    changed: dict[str, Any] = {**phases.sent(plan, released), "total": model}
    return replace(outcome(plan.local, made), **changed)
