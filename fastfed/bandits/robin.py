"""ROBIN (huang-2023, Algorithms 1-4), which protects all data of one client, not one round.

Deviations from the paper, and why:
- ``calibration = "exact"`` takes the most that the budget allows in every coordinate, by composing
  the privacy losses of all releases; "printed" is the paper's, with 30 to 80 times more noise.
- Only phases that another one follows release a model; the paper counts all P.
- The rotation is H D / sqrt d on vectors padded with zeros to a power of two, and is undone by
  D H' / sqrt d; the paper leaves d and the order open.
- Estimates that are not finite count as 0: an error that depends on data would disclose them.
- U initial phases of local LinUCB are those of ``local-linucb``, with its radius, reset in greedy
  phases only; where U reaches beyond T the two systems are the same.
- Features and rewards are clipped in code as elsewhere; the guarantee does not need it.
- ``memory = true`` (Remark 4.6) decides once, from sizes and budget alone, between Algorithm 1 and
  LinUCB without sharing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from fastfed._system import account
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.assemble import assemble
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.robin_bounds import (
    concentration,
    initial_phases,
    lower_bound_curves,
    sharing_pays,
)
from fastfed.bandits.system import Algorithm, Config, System
from fastfed.privacy.account import Claim, sealed
from fastfed.privacy.mechanisms.winsorized import CALIBRATIONS, WinsorizedMean, calibrate_winsorized
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import UCB
from fastfed.protocols.serverless import PLAIN_MEAN, PRIVATE_MEAN, PhasePlan, phases_of

#: B of Algorithm 4: the range of rotated coordinates is searched in [-B sqrt(d2), B sqrt(d2)].
BOUND = 1.0
PRINTED = "printed"


class RobinConfig(Config, frozen=True, kw_only=True):
    """Keys of a robin curve, beside those of `Config`.

    Parameters
    ----------
    lazy : bool
        Always false: phases decide who learns from what.
    clip : bool, default False
        True to clip: the guarantee does not need it, and the paper's rewards are not bounded.
    private : bool, default True
        False for plain means.
    epsilon : float
        Budget of everything that one client holds, > 0; required if private.
    delta : float
        Likewise, in (0, 1); required if private.
    calibration : {"exact", "printed"}
        The least noise that gives the budget, or the paper's.
    initial_phases : int or "printed"
        U, phases of local LinUCB; "printed" is Proposition C.3.
    diversity : float
        lambda_0 of the environment; required if private or "printed".
    margin : float
        C_0 of the environment; required for "printed".
    concentration_multiplier : float, default 1
        Factor on the radius within which estimates are taken to concentrate.
    memory : bool, default False
        True to learn alone if sharing cannot pay (Remark 4.6).
    """

    lazy: bool = False
    clip: bool | None = False
    private: bool = True
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    initial_phases: int | str = PRINTED
    diversity: float | None = None
    margin: float | None = None
    concentration_multiplier: float = 1.0
    memory: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("batch_size", "release_rounds"):
            if getattr(self, key) is not None:
                raise InputError(f"{key} has no meaning for robin: phases double in length")
        if self.lazy:
            raise InputError("lazy has no meaning for robin: its phases say who learns from what")
        if self.tie_bonus != 1.0:
            raise InputError("tie_bonus has no meaning for robin: its later phases are greedy")
        if self.score != UCB:
            raise InputError(
                f'score must be "{UCB}" for robin: its later phases are greedy, got "{self.score}"'
            )
        choice("calibration", self.calibration, CALIBRATIONS)
        if isinstance(self.initial_phases, str):
            choice("initial_phases", self.initial_phases, (PRINTED,))
        else:
            integer("initial_phases", self.initial_phases, at_least=1)
        for key in ("diversity", "margin"):
            if getattr(self, key) is not None:
                number(key, getattr(self, key), above=0.0)
        number("concentration_multiplier", self.concentration_multiplier, above=0.0)
        if self.initial_phases == PRINTED and (self.diversity is None or self.margin is None):
            raise InputError(
                'initial_phases "printed" needs diversity (lambda_0) and margin (C_0); '
                "or give a number of phases"
            )
        self._check_privacy()

    def _check_privacy(self) -> None:
        """Raise InputError for keys of the budget that do not fit each other."""
        if not self.private:
            for key in ("epsilon", "delta"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} has no meaning where private = false")
            if self.memory:
                raise InputError("memory decides by the budget: it needs private = true")
            return
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required, or private = false")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        if self.diversity is None:
            raise InputError("diversity (lambda_0) is required: the concentration radius needs it")


def build(config: RobinConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one robin curve."""
    clip = config.bounds(published=config.radius == "published-code")
    local, theory = assemble(config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), clip)
    phases = phases_of(problem.horizon)
    first = initial(config, problem)
    shares = not config.memory or sharing_pays(problem, config.epsilon or 0.0)
    protocol = PRIVATE_MEAN if config.private else PLAIN_MEAN
    plan = PhasePlan(local, min(first, phases) if shares else phases, protocol)
    if not config.private:
        claim = Claim(source="huang-2023, Algorithm 1", caveats=theory.caveats)
        plan = sealed(replace(plan, privacy=claim))
        return System("robin", plan, account(plan, problem), theory=theory)
    plan = replace(plan, means=private_means(config, problem, plan))
    plan = sealed(replace(plan, privacy=declared(config, problem, plan, theory, shares)))
    bound_curves = partial(lower_bound_curves, config, problem)
    return System("robin", plan, account(plan, problem), bound_curves, theory=theory)


def initial(config: RobinConfig, problem: ProblemSpec) -> int:
    """U: as given, or Proposition C.3's."""
    if not isinstance(config.initial_phases, str):
        return config.initial_phases
    assert config.diversity is not None and config.margin is not None
    return initial_phases(problem, config.diversity, config.margin, config.failure_probability)


def private_means(
    config: RobinConfig, problem: ProblemSpec, plan: PhasePlan
) -> tuple[WinsorizedMean, ...]:
    """Private means of all phases that release a model: one budget, a radius for each."""
    assert config.epsilon is not None and config.delta is not None and config.diversity is not None
    beta = config.failure_probability
    spread = config.concentration_multiplier * concentration(problem, config.diversity, beta)
    made = None
    found = []
    for phase in plan.releasing:
        radius = spread / math.sqrt(2.0**phase)
        if not 1e-9 < radius < 1e9:
            raise InputError(
                "concentration_multiplier / diversity must leave a radius between 1e-9 and 1e9, "
                f"got {radius:g}"
            )
        if made is None:
            made = calibrate_winsorized(
                Budget(config.epsilon, config.delta, "replace", "silo"),
                silos=problem.silos,
                dimension=problem.dimension,
                radius=radius,
                bound=BOUND,
                releases=len(plan.releasing),
                concentration_failure=beta / (16.0 * plan.phases),
                calibration=config.calibration,
                phases=plan.phases if config.calibration == PRINTED else None,
            )
        found.append(made.at(radius))
    return tuple(found)


def declared(
    config: RobinConfig, problem: ProblemSpec, plan: PhasePlan, theory: Theory, shares: bool
) -> Claim:
    """The claim of the plan, for everything that one client holds."""
    assert config.epsilon is not None and config.delta is not None
    source = "huang-2023, Algorithm 1, of which no greedy phase is reached"
    if plan.means:
        source = f"huang-2023, Algorithms 1-4; {plan.means[0].source}"
    return Claim(
        budget=Budget(config.epsilon, config.delta, "replace", "silo"),
        source=source,
        caveats=(*_learning_caveats(config, problem, plan, plan.means, shares), *theory.caveats),
    )


def _learning_caveats(
    config: RobinConfig,
    problem: ProblemSpec,
    plan: PhasePlan,
    means: tuple[WinsorizedMean, ...],
    shares: bool,
) -> list[str]:
    """Caveats about the regret."""
    found = []
    if not shares:
        found.append("epsilon is below sqrt(d) ln^1.5(T) / M, so clients learn alone (Remark 4.6)")
    elif not plan.releasing:
        found.append(
            f"the {plan.phases} phases of {problem.horizon} rounds are all initial ones: clients "
            "learn alone, as under local-linucb"
        )
    if config.concentration_multiplier < 1.0:
        found.append(
            f"the concentration radius is {config.concentration_multiplier:g} times Theorem 3.3's: "
            "privacy is not touched, the regret bound is"
        )
    hopeless = [p for p, mean in zip(plan.releasing, means, strict=True) if not mean.feasible]
    if hopeless:
        found.append(
            "with so few clients the private range is mostly chance after phases "
            + ", ".join(str(p) for p in hopeless)
        )
    whole = [p for p, mean in zip(plan.releasing, means, strict=True) if mean.bins == 1]
    if whole:
        found.append(
            "the concentration radius spans the whole ball, and the noise is for all of it, after "
            f"phases {', '.join(str(p) for p in whole)}"
        )
    return found


ALGORITHM = Algorithm(
    id="robin",
    paper="huang-2023",
    summary="local learning, then phases greedy on a private mean: everything a client holds is "
    "protected",
    config=RobinConfig,
    build=build,
)
