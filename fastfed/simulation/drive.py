"""Which driver plays which plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fastfed._kernels import native
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.plan import Plan
from fastfed.simulation import compiled, peers, step
from fastfed.simulation.outcome import Outcome

Progress = Callable[[int], None]


def shared(plan: Plan | PeerPlan) -> bool:
    """Whether curves of such plans are played together, over contexts made once.

    A plan with a trigger goes back and plays rounds again, and peers take turns: they play alone.
    Bits that are really made lie outside of what the compiled driver executes.
    """
    return isinstance(plan, Plan) and plan.trigger is None and not plan.individual


def play(
    environment: native.Environment,
    plans: Sequence[Plan | PeerPlan],
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

    def heard(curves: int) -> Progress | None:
        return None if progress is None else lambda rounds: progress(rounds * curves)

    together = {i: p for i, p in enumerate(plans) if isinstance(p, Plan) and shared(p)}
    outcomes: dict[int, Outcome] = {}
    if together:
        played = compiled.play(
            environment,
            list(together.values()),
            checkpoints,
            threads=threads,
            record=record,
            last=last,
            progress=heard(len(together)),
        )
        outcomes.update(zip(together, played, strict=True))
    for i, plan in enumerate(plans):
        if i in outcomes:
            continue
        if isinstance(plan, PeerPlan):
            outcomes[i] = compiled.play_peers(
                environment,
                plan,
                checkpoints,
                threads=threads,
                record=record,
                last=last,
                progress=progress,
            )
        elif plan.individual:
            outcomes[i] = step.play_one(
                environment, plan, checkpoints, last=last, progress=progress
            )
        else:
            (outcomes[i],) = compiled.play(
                environment,
                [plan],
                checkpoints,
                threads=threads,
                record=record,
                last=last,
                progress=progress,
            )
    return [outcomes[i] for i in range(len(plans))]


def play_steps(
    environment: native.Environment, plan: Plan | PeerPlan, checkpoints: np.ndarray
) -> Outcome:
    """Play a plan by the step driver, message by message."""
    if isinstance(plan, PeerPlan):
        return peers.play_steps(environment, plan, checkpoints)
    return step.play_one(environment, plan, checkpoints)
