"""Run cases of `fastfed bench` with the reference programs and the numbers of the plan.

The reference is code in the style of the papers. For default curves it is a competent NumPy loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy_arms
import numpy_float32
import reference
import reference_agent

from fastfed._kernels import environments
from fastfed.bandits.system import System
from fastfed.environments import Arms, FixedSet
from fastfed.protocols.plan import Plan, check_plan
from fastfed.simulation.bench import LetorPool, SyntheticPool
from fastfed.simulation.experiment import Experiment


def reference_microseconds(experiment: Experiment) -> tuple[float, float]:
    """Return the reference's microseconds per agent-round, and the part spent on contexts."""
    environment = experiment.environment
    if experiment.curves[0].label.startswith("default"):
        return competent_microseconds(experiment), 0.0
    agent = isinstance(environment, FixedSet)
    result = agent_reference(experiment) if agent else federated_reference(experiment)
    scale = 1e6 / experiment.agent_rounds([0])
    return scale * result["total_seconds"], scale * result["data_seconds"]


def competent_microseconds(experiment: Experiment) -> float:
    """Return the microseconds per agent-round of a competent NumPy loop."""
    environment, plan = experiment.environment, check_plan(experiment.curves[0].system.plan)
    if isinstance(environment, LetorPool):
        return numpy_float32.pool_microseconds(
            plan,
            environment.rows,
            environment.starts,
            environment.silo_starts,
            environment.means,
            rounds=experiment.horizon,
        )
    if isinstance(environment, Arms):
        means = environment.theta(experiment.seed, 0)
        return numpy_arms.arms_microseconds(plan, means, rounds=experiment.horizon)
    environment_run = environment.open(experiment.seed, 0, 1)
    assert isinstance(environment_run, environments.Environment)
    rows, means = environment_run.round(0, 0)
    return numpy_float32.fixed_set_microseconds(plan, rows, means, rounds=experiment.horizon)


def federated_reference(experiment: Experiment, seed: int = 0) -> reference.Result:
    """Run the reference of a federation."""
    system = experiment.curves[0].system
    assert isinstance(system, System)
    plan = check_plan(system.plan)
    keys: dict[str, Any] = {
        "horizon": experiment.horizon,
        "batch_size": plan.batch_size,
        "regularizer": float(system.theory.regularizer[-1]),
        "seed": seed,
    }
    environment = experiment.environment
    noise_std = plan.noise_std.bias
    if plan.protocol.bits:
        return reference.vector_fedlinucb_sphere(silos=experiment.silos, **keys)
    if isinstance(environment, SyntheticPool):
        return reference.private_fedlinucb_pool(
            rows=environment.rows,
            starts=environment.starts,
            silo_starts=environment.silo_starts,
            means=environment.means,
            noise_std=noise_std,
            **keys,
        )
    return reference.private_fedlinucb_sphere(silos=experiment.silos, noise_std=noise_std, **keys)


def agent_reference(experiment: Experiment, seed: int = 0) -> reference.Result:
    """Run the reference of a single agent, with the experiment's set, ridge, width and noise."""
    environment_run = experiment.environment.open(experiment.seed, seed, 1)
    assert isinstance(environment_run, environments.Environment)
    contexts, means = environment_run.round(0, 0)
    plan = check_plan(experiment.curves[0].system.plan)
    return reference_agent.linucb_fixed_set(
        contexts.astype(np.float64),
        means,
        agent_sums(plan, np.random.default_rng((seed, 1))),
        horizon=experiment.horizon,
        batch_size=plan.batch_size or 1,  # 0: every round, without noise
        regularizer=float(plan.regularizer[-1]),
        width=plan.radius.at(-1, 0.0, plan.dimension),
        seed=seed,
    )


def agent_sums(plan: Plan, mechanism: np.random.Generator) -> reference_agent.Sums:
    """Return the reference's object that adds up users' data with the noise of a plan."""
    d = plan.dimension
    if plan.encoding is not None:
        noise_bits = plan.encoding.noise_bits[0]
        return reference_agent.BitSums(d, plan.encoding.steps(0), noise_bits, mechanism)
    if plan.protocol.noise_by == "none":
        return reference_agent.PlainSums(d)
    # Published or exact, the covariance noise is (A + A') / 2: the diagonal has the std of A.
    if plan.protocol.senders == "agent":
        std = plan.noise_std
        return reference_agent.TreeSums(d, plan.levels, std.bias, std.diagonal, mechanism)
    std = plan.user_std
    return reference_agent.NoisySums(d, std.bias, std.diagonal, mechanism)
