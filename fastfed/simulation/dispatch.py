"""Which driver plays which plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed.environments import Adversary
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Plan
from fastfed.simulation import compiled, experts, peers, phases, step
from fastfed.simulation.outcome import Outcome

Progress = Callable[[int], None]
AnyPlan = Plan | PeerPlan | PhasePlan | ExpertPlan
OpenEnvironment = environments.Environment | Adversary


def shared(plan: AnyPlan) -> bool:
    """Whether curves of such plans are played together, over contexts made once.

    A plan with a trigger goes back and plays rounds again, peers take turns, what comes in phases
    changes its state between them, and experts meet losses: they play alone.
    Bits that are really made lie outside of what the compiled driver executes.
    """
    return isinstance(plan, Plan) and plan.trigger is None and not plan.individual


def play(
    environment: OpenEnvironment,
    plans: Sequence[AnyPlan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Play rounds 1..last (all by default) of every plan, each by the fastest driver it has.

    ``progress`` hears of rounds, each once for every plan.
    """

    together = [i for i, plan in enumerate(plans) if shared(plan)]
    groups = [together] if together else []
    groups += [[i] for i in range(len(plans)) if i not in together]
    outcomes: dict[int, Outcome] = {}
    for group in groups:

        def heard(rounds: int, curves: int = len(group)) -> None:
            if progress is not None:
                progress(rounds * curves)

        chosen = [plans[i] for i in group]
        keys = {"last": last, "progress": heard}
        outcomes.update(
            zip(
                group,
                _fastest(environment, chosen, checkpoints, threads, record, keys),
                strict=True,
            )
        )
    return [outcomes[i] for i in range(len(plans))]


def _fastest(
    environment: OpenEnvironment,
    plans: list[AnyPlan],
    checkpoints: np.ndarray,
    threads: int,
    record: bool,
    keys: dict[str, Any],
) -> list[Outcome]:
    """Several plans that are shared, or any single one, by its fastest driver."""
    (first, *_), both = plans, {"threads": threads, "record": record, **keys}
    if isinstance(first, ExpertPlan):
        assert isinstance(environment, Adversary)
        return [experts.play(environment, first, checkpoints, threads=threads, **keys)]
    assert isinstance(environment, environments.Environment)
    if isinstance(first, PeerPlan):
        return [compiled.play_peers(environment, first, checkpoints, **both)]
    if isinstance(first, PhasePlan):
        return [compiled.play_phases(environment, first, checkpoints, **both)]
    if first.individual:
        return [step.play_one(environment, first, checkpoints, **keys)]
    return compiled.play(
        environment, [p for p in plans if isinstance(p, Plan)], checkpoints, **both
    )


def play_steps(environment: OpenEnvironment, plan: AnyPlan, checkpoints: np.ndarray) -> Outcome:
    """Play a plan by the step driver, message by message."""
    if isinstance(plan, ExpertPlan):
        assert isinstance(environment, Adversary)
        return experts.play_steps(environment, plan, checkpoints)
    assert isinstance(environment, environments.Environment)
    if isinstance(plan, PeerPlan):
        return peers.play_steps(environment, plan, checkpoints)
    if isinstance(plan, PhasePlan):
        return phases.play_steps(environment, plan, checkpoints)
    return step.play_one(environment, plan, checkpoints)
