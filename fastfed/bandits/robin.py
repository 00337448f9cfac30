"""ROBIN (huang-2023, Algorithms 1-4), which protects all data of one client instead of one round.

A client is a silo. Clients run local LinUCB in U initial phases. In all later phases they choose
actions greedily by a model from the server, which is the private mean of the clients' estimates of
the previous phase. This implementation deviates from the paper:

- ``calibration = "exact"`` composes the privacy losses of all releases, and adds the least noise in
  every coordinate that satisfies the budget. "printed" is the paper's noise, which is 30 to 80
  times larger.
- The last phase releases no model, because no phase follows. The paper's noise is calibrated for
  all P phases.
- Vectors are padded with zeros to a power of two. The rotation is H D / sqrt d, and its inverse
  D H' / sqrt d. The paper leaves d and the order open.
- Estimates that are not finite are replaced by 0, because an error would disclose information.
- In the U initial phases clients choose the same actions as ``local-linucb``. V is reset in greedy
  phases only. If the initial phases cover all T rounds, `robin` and ``local-linucb`` are the same.
- Features and rewards may be clipped. The guarantee does not need it.
- ``memory = true`` (Remark 4.6) chooses between Algorithm 1 and local LinUCB, once, from the sizes
  and the budget.
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

#: B of Algorithm 4. The range of rotated coordinates is searched in [-B sqrt(d2), B sqrt(d2)],
#: where d2 is the dimension after padding.
SEARCH_FACTOR = 1.0
PRINTED = "printed"


class RobinConfig(Config, frozen=True, kw_only=True):
    """Keys of a robin curve, in addition to the keys of `Config`.

    Parameters
    ----------
    lazy : bool
        Always false, because phases decide which data a client uses.
    clip : bool, default False
        True to clip features and rewards. The guarantee does not need it, and the paper's rewards
        are not bounded.
    private : bool, default True
        False for plain means of the clients' estimates.
    epsilon : float
        Epsilon > 0 for all data of one client. Required if private.
    delta : float
        Delta for all data of one client, in (0, 1). Required if private.
    calibration : {"exact", "printed"}
        "exact" adds the least noise that satisfies the budget, "printed" the noise of the paper.
    initial_phases : int or "printed"
        U, the number of phases of local LinUCB. "printed" is the rule of Proposition C.3.
    diversity : float
        lambda_0 of the environment (Assumption 3.1): how much contexts vary in every direction.
        Required if private, or if ``initial_phases`` is "printed".
    margin : float
        C_0 of the environment (Assumption 3.2), which bounds how often the two best actions are
        nearly equal. Required if ``initial_phases`` is "printed".
    concentration_multiplier : float, default 1
        Factor on the radius of the ball around theta* that is assumed to contain all estimates.
    memory : bool, default False
        True to use local LinUCB if sharing does not reduce regret (Remark 4.6).
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
            raise InputError("lazy has no meaning for robin: phases decide which data are used")
        if self.tie_bonus not in (None, 1.0):
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
        """Raise InputError for privacy keys that contradict each other or are missing."""
        if not self.private:
            for key in ("epsilon", "delta"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} has no meaning where private = false")
            if self.memory:
                raise InputError("memory needs private = true: it depends on the budget")
            return
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required, or private = false")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        if self.diversity is None:
            raise InputError("diversity (lambda_0) is required: the concentration radius needs it")


def build(config: RobinConfig, problem: ProblemSpec) -> System:
    """Build the system of one robin curve of an experiment: its plan, certificate and bounds."""
    clip = config.bounds(published=config.radius == "published-code")
    local_plan, theory = assemble(
        config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), clip
    )
    phases = phases_of(problem.horizon)
    initial_count = initial_phase_count(config, problem)
    # If sharing estimates does not pay, all phases are initial ones: clients run local LinUCB.
    shares = not config.memory or sharing_pays(problem, config.epsilon or 0.0)
    protocol = PRIVATE_MEAN if config.private else PLAIN_MEAN
    plan = PhasePlan(local_plan, min(initial_count, phases) if shares else phases, protocol)
    if not config.private:
        claim = Claim(source="huang-2023, Algorithm 1", caveats=theory.caveats)
        plan = sealed(replace(plan, privacy=claim))
        return System("robin", plan, account(plan, problem), theory=theory)
    plan = replace(plan, means=private_means(config, problem, plan))
    plan = sealed(replace(plan, privacy=privacy_claim(config, problem, plan, theory, shares)))
    bound_curves = partial(lower_bound_curves, config, problem)
    return System("robin", plan, account(plan, problem), bound_curves, theory=theory)


def initial_phase_count(config: RobinConfig, problem: ProblemSpec) -> int:
    """Return U, the number of initial phases: the key, or the rule of Proposition C.3."""
    if not isinstance(config.initial_phases, str):
        return config.initial_phases
    assert config.diversity is not None and config.margin is not None
    return initial_phases(problem, config.diversity, config.margin, config.failure_probability)


def private_means(
    config: RobinConfig, problem: ProblemSpec, plan: PhasePlan
) -> tuple[WinsorizedMean, ...]:
    """Return the calibrated private means of the clients' estimates, one for each release.

    All means share one budget. Each assumes that the clients' estimates are in a ball around
    theta*. Phases double in length, and the radius of the ball is proportional to 2^(-phase/2).
    """
    assert config.epsilon is not None and config.delta is not None and config.diversity is not None
    beta = config.failure_probability
    concentration_radius = config.concentration_multiplier * concentration(
        problem, config.diversity, beta
    )
    first_mean = None
    means = []
    for phase in plan.releasing:
        radius = concentration_radius / math.sqrt(2.0**phase)
        if not 1e-9 < radius < 1e9:
            raise InputError(
                "concentration_multiplier / diversity must leave a radius between 1e-9 and 1e9, "
                f"got {radius:g}"
            )
        if first_mean is None:
            first_mean = calibrate_winsorized(
                Budget(config.epsilon, config.delta, "replace", "silo"),
                silos=problem.silos,
                dimension=problem.dimension,
                radius=radius,
                bound=SEARCH_FACTOR,  # B of Algorithm 4
                releases=len(plan.releasing),
                concentration_failure=beta / (16.0 * plan.phases),
                calibration=config.calibration,
                phases=plan.phases if config.calibration == PRINTED else None,
            )
        means.append(first_mean.at(radius))
    return tuple(means)


def privacy_claim(
    config: RobinConfig, problem: ProblemSpec, plan: PhasePlan, theory: Theory, shares: bool
) -> Claim:
    """Return the privacy claim of the plan, which protects all data of one client.

    ``shares`` is False if the clients learn alone, because sharing does not pay.
    """
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
    """Return the texts of the caveats about a private curve's regret, for its certificate.

    ``means`` are the private means of the phases that release a model. ``shares`` is False if the
    clients learn alone, because sharing does not pay.
    """
    caveats = []
    if not shares:
        caveats.append(
            "epsilon is below sqrt(d) ln^1.5(T) / M, so clients learn alone (Remark 4.6)"
        )
    elif not plan.releasing:
        caveats.append(
            f"the {plan.phases} phases of {problem.horizon} rounds are all initial ones: clients "
            "learn alone, as under local-linucb"
        )
    if config.concentration_multiplier < 1.0:
        caveats.append(
            f"the concentration radius is {config.concentration_multiplier:g} times Theorem 3.3's: "
            "privacy is not touched, the regret bound is"
        )
    infeasible_phases = [
        p for p, mean in zip(plan.releasing, means, strict=True) if not mean.feasible
    ]
    if infeasible_phases:
        caveats.append(
            "with so few clients the private search of the range mostly fails after phases "
            + ", ".join(str(p) for p in infeasible_phases)
        )
    single_bin_phases = [p for p, mean in zip(plan.releasing, means, strict=True) if mean.bins == 1]
    if single_bin_phases:
        caveats.append(
            "the concentration radius spans the whole ball, and the noise is for all of it, after "
            f"phases {', '.join(str(p) for p in single_bin_phases)}"
        )
    return caveats


ALGORITHM = Algorithm(
    id="robin",
    paper="huang-2023",
    summary="local learning, then phases greedy on a private mean: everything a client holds is "
    "protected",
    config=RobinConfig,
    build=build,
)
