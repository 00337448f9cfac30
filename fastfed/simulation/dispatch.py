"""Dispatch: every plan to the driver that it names.

A new kind of plan is one file with a `driver.Driver`, and one line in ``DRIVERS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._validate import InputError
from fastfed.environments import Adversary
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Plan
from fastfed.simulation import experts, peers, phases, server
from fastfed.simulation.driver import Driver, Outcome, Progress

AnyPlan = Plan | PeerPlan | PhasePlan | ExpertPlan
OpenEnvironment = environments.Environment | Adversary

#: By the name that a kind of plan has as ``driver``.
DRIVERS: dict[str, Driver] = {
    "server": server.DRIVER,
    "peers": peers.DRIVER,
    "phases": phases.DRIVER,
    "experts": experts.DRIVER,
}


def driver_of(plan: Any) -> Driver:
    """Driver of a plan; InputError where fastfed has none."""
    name = getattr(plan, "driver", None)
    if name not in DRIVERS:
        raise InputError(
            f"plan must name its driver, one of {', '.join(DRIVERS)}: got {type(plan).__name__}"
        )
    return DRIVERS[name]


def together(plan: AnyPlan) -> bool:
    """Curves of such plans are run at once, over contexts made once."""
    return driver_of(plan).together(plan)


def run(
    environment: OpenEnvironment,
    plans: Sequence[AnyPlan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run rounds 1..last (all by default) of every plan, each by its fast driver.

    ``progress`` hears of rounds, each once for every plan.
    """
    shared = [i for i, plan in enumerate(plans) if together(plan)]
    groups = [shared] if shared else []
    groups += [[i] for i in range(len(plans)) if i not in shared]
    outcomes: dict[int, Outcome] = {}
    for group in groups:

        def heard(rounds: int, curves: int = len(group)) -> None:
            if progress is not None:
                progress(rounds * curves)

        made = driver_of(plans[group[0]]).run(
            environment,
            [plans[i] for i in group],
            checkpoints,
            threads=threads,
            record=record,
            last=last,
            progress=heard,
        )
        outcomes.update(zip(group, made, strict=True))
    return [outcomes[i] for i in range(len(plans))]


def run_steps(environment: OpenEnvironment, plan: AnyPlan, checkpoints: np.ndarray) -> Outcome:
    """Run a plan by the step driver, message by message."""
    return driver_of(plan).run_steps(environment, plan, checkpoints)
