"""The compiled driver of federations with a server: the state of curves, and calls into C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments
from fastfed.environments import EnvironmentSpec
from fastfed.protocols.plan import KEEPING, ClockedPlan, DelayedPlan, Plan, check_plan
from fastfed.protocols.protocol import NOISY_ADD, REPLACE
from fastfed.protocols.release import RELEASES
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT
from fastfed.simulation.driver import (
    Outcome,
    Progress,
    Term,
    array_bytes,
    linear_events,
    message_fields,
    silo_term,
    spaced,
)
from fastfed.simulation.snapshots import Snapshot, report_progress

#: Shape and type of each array of a curve's state, by name. Initially all arrays are zero.
Shapes = dict[str, tuple[tuple[int, ...], Any]]


def shapes(plan: Plan, checkpoints: int, record: bool = False) -> Shapes:
    """Return the shape and type of each array of a curve's state, by its name in ff_curve.

    src/ff_run.h describes the arrays. ``checkpoints`` is the number of checkpoints; ``record`` adds
    arrays of actions and rewards.
    """
    m, d, s = plan.silos, plan.dimension, plan.statistic_size
    models = 1 if plan.lazy else m  # lazy silos share one model
    levels, protocol = plan.levels, plan.protocol
    # The parties that keep noise, or noisy nodes, for later releases: every silo if silos send
    # prefix sums, otherwise one party.
    keepers = m if protocol.analyzer == REPLACE else 1
    node_rows = keepers if levels else 0
    sum_rows = m if protocol.tree or protocol.bits else int(protocol.analyzer == NOISY_ADD)
    arrays: Shapes = {
        "history": ((keepers if plan.release in KEEPING else 0, plan.releases, s), float),
        "choice": ((m, 3), np.int64),
        "w": ((models, d, d), float),
        "theta": ((models, d), float),
        "log_dets": ((models,), float),
        "batch": ((m, s), float),
        "sums": ((sum_rows, levels, s), float),
        "nodes": ((node_rows, plan.buffers or levels, s), float),
        "messages": ((m if plan.batch_size else 0, s), float),
        "total": ((s,), float),
        "regret": ((m,), float),
        "curve": ((m, checkpoints), float),
        "clipped": ((m, 2), np.int64),
        "indefinite": ((1,), np.int64),
        "synchronised": ((checkpoints,), np.int64),
    }
    if plan.own is not None:
        sums = m if plan.own.posterior else 0
        sieves = m if plan.own.sieve_width else 0
        arrays |= {
            "own_w": ((m, d, d), float),
            "own_theta": ((m, d), float),
            "own_sums": ((sums, s), float),
            "own_shared": ((sums if plan.own.mixed else 0, s), float),
            "own_rest": ((sums, s), float),
            "local_w": ((sieves, d, d), float),
            "local_theta": ((sieves, d), float),
        }
    if isinstance(plan, DelayedPlan):
        late_shape = m, len(plan.arrivals)
        arrays |= {
            "late": ((*late_shape, d + 1), float),
            "late_next": (late_shape, np.int64),
            "late_ends": ((*late_shape, 2), np.int64),
        }
    if isinstance(plan, ClockedPlan):
        arrays |= {
            "reported": ((m,), np.int64),
            "views": ((m, driver.VIEW_NUMBERS), float),
            "view_w": ((m, d, d), float),
            "view_theta": ((m, d), float),
        }
    if plan.slack_by_round:
        arrays["inverses"] = ((m,), float)
    if record:
        arrays |= {"actions": ((m, plan.horizon), np.int32), "rewards": ((m, plan.horizon), float)}
    return arrays


def trigger_shapes(plan: Plan) -> Shapes:
    """Return the shape and type of each array of a trigger's state.

    The names are those of ff_trigger in src/ff_trigger.h. Without a trigger the result is empty.
    """
    if plan.trigger is None:
        return {}
    m, d, s = plan.silos, plan.dimension, plan.statistic_size
    levels = plan.trigger.levels(plan.horizon)
    return {
        "skip_bound": ((m, driver.SKIP_BOUND_SIZE), float),
        "aggregate_factor": ((m if plan.trigger.updates(d) else 0, d, d), float),
        "nodes": ((m, levels, s), float),
        "node_rounds": ((m, levels), np.int64),
        "inverse": ((s,), float),
        "mass": ((m,), float),
        "trace_bound": ((1, driver.TRACE_BOUND_SIZE), float),
        "fired": ((m,), np.int64),
        "snapshot": ((m, driver.snapshot_size(d)), float),
    }


def state(plan: Plan, checkpoints: int, record: bool) -> dict[str, Any]:
    """Return a curve's fresh state for the compiled driver: the plan's values, and zeroed arrays.

    The keys are the names of the fields of ff_curve in src/ff_run.h. ``record`` adds arrays of
    actions and rewards.
    """
    levels, protocol = plan.levels, plan.protocol
    clip, encoding = plan.clip, plan.encoding
    # None leaves a field of ff_curve zero. If the plan lacks a number, such as a bound of clipping,
    # C gets a number that it ignores.
    return {
        "batch_size": plan.batch_size,
        "releases": plan.releases,
        "ends": np.array(plan.release_rounds, np.int64) if plan.release_rounds else None,
        **clock_fields(plan),
        "release_scale": plan.release_scale if len(plan.release_scale) else None,
        "by_release": plan.encoded_by_release,
        "lazy": plan.lazy,
        "random": plan.policy == "random",
        "score": plan.score,
        **local_round_fields(plan),
        "arrivals": plan.arrivals if isinstance(plan, DelayedPlan) else None,
        "arrival_count": len(plan.arrivals) if isinstance(plan, DelayedPlan) else 0,
        "randomizer": protocol.randomizer,
        "analyzer": protocol.analyzer,
        "noise_std": plan.noise_std.parts,
        "noise_scale": np.ascontiguousarray(plan.noise_scale, dtype=np.float64),
        "drawn_once": plan.drawn_once,
        "radius": (plan.radius.multiplier, plan.radius.scale, plan.radius.base),
        "radius_count": float(plan.rows_per_round),
        "radius.determinant": plan.radius.determinant,
        "radius.arms": plan.arms,
        "radius.anchor": plan.radius.anchor,
        "direct": plan.radius.direct,
        "inflation": 1.0,
        "error_bound": np.ascontiguousarray(plan.radius.error_bound, dtype=np.float64),
        "floor": np.ascontiguousarray(plan.radius.floor, dtype=np.float64),
        "release": RELEASES.index(plan.release),
        "coefficients": plan.coefficients,
        "buffers": plan.buffers,
        "last_entry": len(plan.regularizer) - 1,
        "regularizer": np.ascontiguousarray(plan.regularizer, dtype=np.float64),
        "radius_offset": np.ascontiguousarray(plan.radius.offset, dtype=np.float64),
        "radius_lambda": np.ascontiguousarray(plan.radius.log_lambda, dtype=np.float64),
        "clip": clip is not None,
        "feature_bound": clip.feature if clip else 0.0,
        "public_constant": plan.public_constant,
        "constant": clip.constant if clip else 0.0,
        "reward_centre": clip.centre if clip else 0.0,
        "tau": plan.radius.tau,
        "sieve": (plan.reward_limit, 1.0, plan.ranking),
        "sieve_growth": plan.sieve_growth,
        "widths": np.array(plan.widths) if plan.widths else None,
        "reward_low": clip.low if clip else 0.0,
        "reward_high": clip.high if clip else 0.0,
        "flips": plan.flips,
        "bit_values": plan.sent_values,
        "count_values": plan.bit_values if plan.counts_ones else (0.0, 0.0),
        "levels": levels,
        # If the shuffler counts the ones of all users, the order of messages does not matter.
        "shuffled": protocol.shuffled and not plan.counts_ones,
        "bit_levels": np.array(
            [encoding.steps(j) for j in range(len(plan.units))] if encoding else (), np.int64
        ),
        "noise_bits": np.array(encoding.noise_bits if encoding else (), np.int64),
        "unit": np.ascontiguousarray(plan.units),
        "order": np.arange(plan.silos, dtype=np.int64),
        "trigger": trigger_fields(plan),
        "fixed": None,
        "requested": None,
        "synchronised_rounds": None,
        "actions": None,
        "rewards": None,
        **zeros(shapes(plan, checkpoints, record)),
    }


def fixed_models(environment: environments.Environment, plan: Plan) -> np.ndarray | None:
    """Return zeroed memory for each silo's model of its fixed set of actions (src/ff_fixed.h).

    Return None if the silos do not learn by such a model (see `uses_fixed_sets`).
    """
    if not uses_fixed_sets(environment, plan):
        return None
    size = driver.fixed_size(environment.actions, plan.dimension)
    # A vector that crosses a cache line takes twice the time, so models start at cache lines.
    memory = np.zeros(plan.silos * size + 8)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + plan.silos * size].reshape(plan.silos, size)


def uses_fixed_sets(environment: environments.Environment, plan: Plan) -> bool:
    """Return True if silos learn by a model of their fixed set of actions, in both drivers.

    They do so if the environment offers such sets, and if each data point is a row of the set and
    changes the model at once.
    """
    return (
        environment.fixed
        and not plan.lazy
        and plan.policy != "random"
        and plan.score is None
        and plan.own is None
        and plan.trigger is None
        and not isinstance(plan, DelayedPlan)
        and (plan.clip is None or plan.clip.constant == 0.0)
    )


def local_round_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of ff_curve (src/ff_run.h) about local rounds, whose data stay local."""
    own = plan.own
    if own is None or not own.until:
        return {"share_until": 0}
    by_rule = own.mixed and not own.secret
    return {
        "share_until": own.until,
        "share_rule": np.ascontiguousarray(own.rule) if by_rule else None,
        "share_coin": own.secret,
        "share_threshold": own.threshold if own.secret else 0,
        "own_radius": own.bound and own.bound[:3],
        "own_offset": own.bound and own.bound[3],
        "own_radius.determinant": own.bound is not None,
        "own_radius.anchor": 1.0,
        "own_sieve_width": own.sieve_width,
        "own_least": not own.posterior,
        "belief": own.model(0) if own.posterior else None,
        "own_ridges": np.array(own.ridges),
        "own_bonus": own.bonus,
    }


def clock_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of ff_curve (src/ff_run.h) about silos with their own clocks.

    ``serves`` is 1 where a silo serves a user in a tick, and ``sends`` where a silo sends a report
    in an exchange; ``ends`` are the ticks of exchanges.
    """
    if not isinstance(plan, ClockedPlan):
        return {"serves": None, "sends": None}
    clocks = plan.clocks
    return {
        "serves": clocks.serves,
        "sends": clocks.sends,
        "exchanges": len(clocks.sends),
        "ends": clocks.ticks,
    }


def zeros(arrays: Shapes) -> dict[str, np.ndarray]:
    """Return arrays of zeros with these shapes and types, by name."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in arrays.items()}


def trigger_fields(plan: Plan) -> dict[str, Any] | None:
    """Return a trigger's values and its fresh arrays; None for a plan without a trigger.

    The names are those of the fields of ff_trigger in src/ff_trigger.h.
    """
    if plan.trigger is None:
        return None
    return {
        "kind": plan.trigger.kind,
        "delay": plan.trigger.delay,
        "threshold": plan.trigger.threshold,
        "extra": plan.trigger.extra,
        "std.off_diagonal": plan.trigger.std,
        "levels": plan.trigger.levels(plan.horizon),
        **zeros(trigger_shapes(plan)),
    }


def outcome(plan: Plan, state: dict[str, Any]) -> Outcome:
    """Return the Outcome of a plan from the final ``state`` of its curve (see `state`)."""
    # Add silo by silo, as the step driver does; sum may add in a different order.
    group = np.zeros(state["curve"].shape[1])
    for silo_regret in state["curve"]:
        group += silo_regret
    features, rewards = state["clipped"].sum(axis=0)
    return Outcome(
        group_regret=group,
        **message_fields(plan, state["synchronised"].cumsum()),
        events=linear_events(int(state["indefinite"][0]), int(features), int(rewards)),
        total=state["total"],
        actions=state["actions"],
        rewards=state["rewards"],
    )


#: Target duration of one call into the C driver. Ctrl-C and progress are handled between calls.
CALL_SECONDS = 0.25


def run(
    environment: environments.Environment,
    plans: Sequence[Plan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Progress | None = None,
    snapshot: Snapshot | None = None,
) -> list[Outcome]:
    """Run rounds 1..last (default: all) of all plans over one environment; one outcome per plan.

    A plan with a trigger must be the only plan. ``progress(rounds)`` is called after each call into
    the C driver; it may raise an exception to end the run. If ``snapshot`` contains an earlier
    state, the run resumes from that state. Outcomes depend neither on the division into calls nor
    on the snapshot.
    """
    plans = [check_plan(plan).simulated for plan in plans]
    horizon, silos = plans[0].horizon, plans[0].silos
    states = [
        state(plan, len(checkpoints), record) | {"fixed": fixed_models(environment, plan)}
        for plan in plans
    ]
    run = driver.Run(environment, silos, horizon, checkpoints, states, threads)
    run.initialise()
    rounds = horizon if last is None else last
    if snapshot is None:
        run_rounds(run, 1, rounds, rounds_per_call, progress)
    else:
        run_from_snapshot(run, states, rounds, snapshot, progress)
    return [outcome(plan, s) for plan, s in zip(plans, states, strict=True)]


def run_from_snapshot(
    run: driver.Run,
    states: list[dict[str, Any]],
    last: int,
    snapshot: Snapshot,
    progress: Progress | None = None,
) -> None:
    """Run rounds up to ``last``, from the round after the snapshot's; without one, from round 1."""
    rounds_done = 0
    if (position := snapshot.read(states, last)) is not None:
        rounds_done, numbers = position
        run.resume(numbers)
    on_progress = progress_with_snapshots(run, states, 0, snapshot, progress)
    on_progress(rounds_done)
    run_rounds(run, rounds_done + 1, last, progress=on_progress)


def progress_with_snapshots(
    run: driver.Run,
    states: list[dict[str, Any]],
    rounds_done: int,
    snapshot: Snapshot | None,
    progress: Progress | None,
    stage: int = 0,
) -> Progress:
    """Return a function that reports progress, and writes a snapshot whenever one is due.

    ``rounds_done`` is the number of rounds done before the function's first call. ``stage`` is
    stored in the snapshots.
    """

    def write_snapshot(snapshot: Snapshot) -> None:
        """Write a snapshot of the state after ``rounds_done`` rounds."""
        snapshot.write(rounds_done, run.numbers(), states, stage)

    def on_progress(rounds: int) -> None:
        """Report further rounds, and write a snapshot if one is due."""
        nonlocal rounds_done
        rounds_done += rounds
        report_progress(snapshot, write_snapshot, rounds, progress)

    return on_progress


def run_rounds(
    run: driver.Run,
    first: int,
    last: int,
    rounds_per_call: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Run rounds first..last of a batch of runs, in calls of about ``CALL_SECONDS`` each."""
    step = rounds_per_call or 16
    while first <= last:
        call_end = min(first + step - 1, last)
        start = time.perf_counter()
        run.simulate(first, call_end)
        seconds = time.perf_counter() - start
        if progress is not None:
            progress(call_end - first + 1)
        first = call_end + 1
        if rounds_per_call is None:
            # The next call should take CALL_SECONDS, but have at most four times the rounds: the
            # first rounds may be faster than later ones.
            step = max(1, min(4 * step, int(step * CALL_SECONDS / max(seconds, 1e-6))))


# ---- Memory --------------------------------------------------------------------------------------


def state_terms(plan: Plan, checkpoints: int, record: bool) -> list[Term]:
    """Return the memory terms of a curve in the compiled driver.

    ``checkpoints`` is the number of checkpoints; ``record`` adds the memory of actions and rewards.
    """
    plan = plan.simulated
    sizes = {name: array_bytes(*shape) for name, shape in shapes(plan, checkpoints, record).items()}
    curve = sizes.pop("curve")
    recorded = sizes.pop("actions", 0) + sizes.pop("rewards", 0)
    noises = sizes.pop("history")
    for name, shape in trigger_shapes(plan).items():
        # The kind of trigger that writes to this array; None if all kinds do.
        kind = {
            "skip_bound": DETERMINANT,
            "aggregate_factor": DETERMINANT,
            "nodes": PRIVATE_DETERMINANT,
            "node_rounds": PRIVATE_DETERMINANT,
            "inverse": PRIVATE_DETERMINANT,
            "mass": PRIVATE_DETERMINANT,
        }.get(name)
        if plan.trigger is None or kind in (None, plan.trigger.kind):
            sizes[f"trigger {name}"] = array_bytes(*shape)
    if not plan.lazy and plan.dimension >= SHORT:
        sizes["factors of bonuses"] = 8 * plan.silos * driver.bonus_cache_size(plan.dimension)
    # Noise scales as a tuple and as an array, and the silos' statuses.
    states = sum(sizes.values()) + 8 * 4 * plan.silos
    checkpoint_text = f"{spaced(plan.silos)} silos x {spaced(checkpoints)} checkpoints"
    round_text = f"{spaced(plan.silos)} silos x {spaced(plan.horizon)} rounds"
    return [
        silo_term("silo states", states, plan),
        Term("regret of every silo", curve, checkpoint_text, "checkpoints"),
        Term("cached noise", noises, spaced(plan.releases), "releases"),
        Term("actions and rewards", recorded, round_text, "rounds"),
    ]


#: From this dimension on, actions are also stored in 16 bits (WIDE in src/ff_scores.c).
SHORT = 32


def scratch_term(
    facts: EnvironmentSpec, bit_levels: int, curves: int, threads: int, grid: int = 0
) -> Term:
    """Return the memory term of all threads' scratch: the actions of a round, and score buffers.

    The scratch is that of ff_run_scratch in src/ff_run.h, without memory that is never written to.
    ``bit_levels`` is the number of tree levels whose sums are sent as bits, and ``curves`` the
    number of curves that are run together. ``grid`` is the number of values of the standard
    deviation Delta over which the posterior of local rounds averages (src/ff_belief.h); 0 without
    such a posterior.
    """
    k, d = facts.actions, facts.dimension
    s = d + d * (d + 1) // 2
    # Actions are made from float32 normals in a float64 buffer. Then they are stored in 16 bits, or
    # as panels, bounds and candidates.
    actions = 4 * k * (2 * d + 5) if facts.contexts_made else 0
    scores = k * (8 + 8 + 4 + 4) + 2 * k * (d + 1) * (d >= SHORT)
    # The factor in float32 and in 16 bits, refreshed statistics, noise, random words for bits, and
    # pending results.
    models = 8 * (d * d + 3 * s + 16 * curves * (d + 1)) + 4 * bit_levels * s
    beliefs = 8 * (4 * d * d + grid * s + 5 * d) if grid else 0
    size = threads * (actions + scores + models + beliefs)
    sizes = f"{spaced(k)} actions x d = {d}, {threads} thread{'s' if threads > 1 else ''}"
    return Term("actions of a round", size, sizes, "actions")
