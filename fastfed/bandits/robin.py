"""ROBIN (huang-2023, Algorithms 1-4): everything one client holds is protected, not one round.

Deviations from the paper, and why:
- ``calibration = "exact"`` takes the most that the budget allows in every coordinate, by composing
  the privacy losses of all releases; "printed" is the paper's, with 30 to 80 times more noise.
- Only phases that another one follows release a model; the paper counts all P.
- The rotation is H D / sqrt d on vectors padded with zeros to a power of two, and is undone by
  D H' / sqrt d; the paper leaves d and the order open.
- Estimates that are not finite count as 0: an error that depends on data would tell of them.
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
from fastfed.bandits.radius import Theory
from fastfed.bandits.robin_bounds import concentration, initial_phases, lower, sharing_pays
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.privacy.account import Claim, sealed
from fastfed.privacy.mechanisms.winsorized import CALIBRATIONS, WinsorizedMean, calibrate_winsorized
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.phases import PLAIN_MEAN, PRIVATE_MEAN, PhasePlan, phases_of
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.score import UCB

#: B of Algorithm 4: rotated coordinates are sought in [-B sqrt(d2), B sqrt(d2)].
BOUND = 1.0
PRINTED = "printed"


class RobinKeys(Keys, frozen=True, kw_only=True):
    """Keys of a robin curve."""

    lazy: bool = False
    #: The guarantee does not need clipping, and the paper's rewards are not bounded.
    clip: bool | None = False
    private: bool = True
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    #: U, or "printed": Proposition C.3.
    initial_phases: int | str = PRINTED
    #: lambda_0 and C_0 of the environment.
    diversity: float | None = None
    margin: float | None = None
    #: Of the radius that estimates are trusted to concentrate in.
    concentration_multiplier: float = 1.0
    memory: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise InputError("batch_size has no meaning for robin: phases double in length")
        if self.lazy:
            raise InputError("lazy has no meaning for robin: its phases say who learns from what")
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


def build(keys: RobinKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    clip = keys.bounds(published=keys.radius == "published-code")
    local, theory = assemble(keys, setting, PROTOCOLS["none"], 0, clip)
    phases = phases_of(setting.horizon)
    first = initial(keys, setting)
    shares = not keys.memory or sharing_pays(setting, keys.epsilon or 0.0)
    protocol = PRIVATE_MEAN if keys.private else PLAIN_MEAN
    plan = PhasePlan(local, min(first, phases) if shares else phases, protocol)
    if not keys.private:
        claim = Claim(source="huang-2023, Algorithm 1", caveats=theory.caveats)
        plan = sealed(replace(plan, privacy=claim))
        return System("robin", plan, account(plan, setting), theory=theory)
    plan = replace(plan, means=private_means(keys, setting, plan))
    plan = sealed(replace(plan, privacy=declared(keys, setting, plan, theory, shares)))
    lines = partial(lower, keys, setting)
    return System("robin", plan, account(plan, setting), lines, theory=theory)


def initial(keys: RobinKeys, setting: Setting) -> int:
    """U: as given, or Proposition C.3's."""
    if not isinstance(keys.initial_phases, str):
        return keys.initial_phases
    assert keys.diversity is not None and keys.margin is not None
    return initial_phases(setting, keys.diversity, keys.margin, keys.failure_probability)


def private_means(keys: RobinKeys, setting: Setting, plan: PhasePlan) -> tuple[WinsorizedMean, ...]:
    """The mean of every phase that releases one: a common budget, a radius for each."""
    assert keys.epsilon is not None and keys.delta is not None and keys.diversity is not None
    beta = keys.failure_probability
    spread = keys.concentration_multiplier * concentration(setting, keys.diversity, beta)
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
                Budget(keys.epsilon, keys.delta, "replace", "silo"),
                silos=setting.silos,
                dimension=setting.dimension,
                radius=radius,
                bound=BOUND,
                releases=len(plan.releasing),
                concentration_failure=beta / (16.0 * plan.phases),
                calibration=keys.calibration,
                phases=plan.phases if keys.calibration == PRINTED else None,
            )
        found.append(made.at(radius))
    return tuple(found)


def declared(
    keys: RobinKeys, setting: Setting, plan: PhasePlan, theory: Theory, shares: bool
) -> Claim:
    """What the plan claims for everything one client holds."""
    assert keys.epsilon is not None and keys.delta is not None
    source = "huang-2023, Algorithm 1, of which no greedy phase is reached"
    if plan.means:
        source = f"huang-2023, Algorithms 1-4; {plan.means[0].source}"
    return Claim(
        budget=Budget(keys.epsilon, keys.delta, "replace", "silo"),
        source=source,
        caveats=(*_about_learning(keys, setting, plan, plan.means, shares), *theory.caveats),
    )


def _about_learning(
    keys: RobinKeys,
    setting: Setting,
    plan: PhasePlan,
    means: tuple[WinsorizedMean, ...],
    shares: bool,
) -> list[str]:
    """What a reader should know before trusting the regret."""
    found = []
    if not shares:
        found.append("epsilon is below sqrt(d) ln^1.5(T) / M, so clients learn alone (Remark 4.6)")
    elif not plan.releasing:
        found.append(
            f"the {plan.phases} phases of {setting.horizon} rounds are all initial ones: clients "
            "learn alone, as under local-linucb"
        )
    if keys.concentration_multiplier < 1.0:
        found.append(
            f"the concentration radius is {keys.concentration_multiplier:g} times Theorem 3.3's: "
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
    keys=RobinKeys,
    build=build,
)
