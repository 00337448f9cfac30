"""Fed-DP-OPE-Stoch (gao-2024, Algorithms 1-3): private Frank-Wolfe steps, stochastic losses.

Deviations from the paper, and why:
- b = 2^(p-1)/(p-1)^2 is rounded down to a power of two, so that sets of b / 2^h losses exist, and
  T1 to the largest number of trees whose disjoint sets fit into the last phase; a phase without a
  tree keeps x. ``batch = "largest"`` takes the most losses that fit, where the paper's b leaves
  nine in ten or so unused.
- ``calibration = "exact"``: the least noise whose composition is proven, from the ranges that the
  losses promise. The printed lambda = 4 alpha 2^j/(b eps) gives the experts up to 2 eps, as an
  argmin of scores that move both ways costs twice what the proof says; "corrected" has 8 for 4.
- What all clients send is d times more than the experts that come of it: ``protect = "messages"``
  scales local noise so that a client's messages have the budget, not only the decisions.
- ``noise = "central"``: the server adds Lap(lambda/m) to the mean scores, each client's being raw;
  ``"none"`` draws no noise.
- x_1 is uniform; the paper takes any point. eta = 2/(k + 1) over all leaves of a phase.
- The rule for T1 has m for sqrt m where noise is central, which falls so.
- beta of the rule for T1 is a key: of linear losses, which have beta = 0, it is alpha unless said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np

from fastfed._system import account
from fastfed._validate import InputError, choice, number
from fastfed.experts.frank_wolfe import (
    BATCHES,
    Bounds,
    FrankWolfePlan,
    Phase,
    phases_of,
    shape,
    theorem_trees,
)
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    CENTRAL_SCORES,
    LOCAL_SCORES,
    ONE_LOSS,
    PLAIN_SCORES,
    PROTECTS_CHOICES,
    PROTECTS_MESSAGES,
    RAW_MESSAGES,
    Algorithm,
    ProblemSpec,
    System,
    budget_exceeded,
    multiplicity_condition,
)
from fastfed.privacy.account import Claim, GroupedLosses, event_epsilon, released, sealed
from fastfed.privacy.certificate import (
    CHANCES,
    SIMULATION,
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    SideCertificate,
    no_privacy,
)
from fastfed.privacy.mechanisms.vertex_sets import (
    CALIBRATIONS,
    PROTECTED,
    SOURCES,
    VertexNoise,
    calibrate_vertices,
)
from fastfed.privacy.sensitivity import Budget

#: Trust of local noise.
MESSAGES = "silo-level local: server and other clients are not trusted"
NOISES = {"local": LOCAL_SCORES, "central": CENTRAL_SCORES, "none": PLAIN_SCORES}


class OpeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a fed-dp-ope-stoch curve.

    Parameters
    ----------
    epsilon : float
        Budget of one record, in [1e-9, 1e6]; required unless ``noise = "none"``.
    delta : float, default 0
        Budget of one record, in [0, 1).
    noise : {"local", "central", "none"}
        Noise of each client, of the server, or none.
    protect : {"experts", "messages"}
        What has the budget: the decisions, or each client's messages.
    calibration : str, default "exact"
        The rule that chooses the noise, one of ``CALIBRATIONS``.
    batch : {"paper", "largest"}
        The rule for b: the paper's, or the most losses that fit.
    smoothness : float, optional
        beta > 0 of the rule for T1; by default the losses' own, alpha if they are linear.
    """

    epsilon: float | None = None
    delta: float = 0.0
    noise: str = "local"
    protect: str = "experts"
    calibration: str = "exact"
    batch: str = "paper"
    smoothness: float | None = None

    def __post_init__(self) -> None:
        choice("noise", self.noise, tuple(NOISES))
        choice("protect", self.protect, PROTECTED)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("batch", self.batch, BATCHES)
        number("delta", self.delta, at_least=0.0, below=1.0)
        if self.smoothness is not None:
            number("smoothness", self.smoothness, above=0.0)
        if self.noise == "none":
            given = {
                "epsilon": self.epsilon is not None,
                "delta": self.delta != 0.0,
                "protect": self.protect != "experts",
                "calibration": self.calibration != "exact",
            }
            for key, said in given.items():
                if said:
                    raise InputError(f'{key} has no meaning where noise = "none"')
            return
        if self.epsilon is None:
            raise InputError('epsilon is required, or noise = "none"')
        number("epsilon", self.epsilon, at_least=1e-9, at_most=1e6)
        if self.protect == "messages" and self.noise != "local":
            raise InputError('protect = "messages" needs noise = "local": a server sees the others')


def build(config: OpeConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one fed-dp-ope-stoch curve."""
    noises = phase_noises(config, problem)
    phases, offset = [], 0
    for number_of_phase, (batch, scales) in noises.items():
        phases.append(Phase(number_of_phase, batch, scales, offset))
        offset += len(phases[-1].leaves)
    plan = FrankWolfePlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=NOISES[config.noise],
        linear=problem.linear,
        phases=tuple(phases),
        bounds=clipped_to(problem),
    )
    plan = sealed(replace(plan, privacy=declared(config, problem, plan)))
    return System(
        "fed-dp-ope-stoch", plan, account(plan, problem), bound_curves(config, problem, plan)
    )


def clipped_to(problem: ProblemSpec) -> Bounds:
    """Bounds that clients clip gradients to: those that the losses guarantee."""
    return Bounds(problem.lipschitz - problem.spread, problem.lipschitz, problem.smoothness)


def phase_noises(
    config: OpeConfig, problem: ProblemSpec
) -> dict[int, tuple[int, tuple[float, ...]]]:
    """(b, noise scales by tree) of every phase that learns, by its number."""
    found = {}
    for phase in range(2, phases_of(problem.horizon) + 1):
        batch, trees = shape(phase, config.batch, lambda b: theorem_tree_count(config, problem, b))
        if trees == 0:
            continue
        scales = (0.0,) * trees
        if config.epsilon is not None:
            scales = vertex_noise(config, problem, batch, trees).scales
        found[phase] = batch, scales
    return found


def theorem_tree_count(config: OpeConfig, problem: ProblemSpec, batch: int) -> float:
    """T1 of Theorem C.5 for a batch, before rounding."""
    beta = config.smoothness
    if beta is None:
        beta = problem.lipschitz if problem.linear else problem.smoothness
    epsilon = math.inf if config.epsilon is None else config.epsilon
    gain = problem.silos if config.noise == "central" else math.sqrt(problem.silos)
    return theorem_trees(batch, gain, problem.experts, epsilon, problem.lipschitz, beta)


@lru_cache(maxsize=256)
def vertex_noise(config: OpeConfig, problem: ProblemSpec, batch: int, trees: int) -> VertexNoise:
    """Calibrate the noise of one phase."""
    assert config.epsilon is not None
    return calibrate_vertices(
        Budget(config.epsilon, config.delta, "replace", "user"),
        batch=batch,
        trees=trees,
        lipschitz=problem.lipschitz,
        # As clients clip, to the last bit, which the account describes.
        spread=min(clipped_to(problem).spread, 2.0 * problem.lipschitz),
        smoothness=problem.smoothness,
        experts=problem.experts,
        protect=config.protect,
        calibration=config.calibration,
    )


def declared(config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan) -> Claim:
    """The claim of the plan for one record, which may be behind several losses."""
    about = _learning_caveats(config, problem, plan)
    if config.epsilon is None:
        return Claim(source=plan.protocol.source, caveats=about)
    return Claim(
        budget=Budget(config.epsilon, config.delta, "replace", "user"),
        source=SOURCES[config.calibration] if plan.phases else plan.protocol.source,
        calibration=config.calibration,
        protect=config.protect,
        max_participations=problem.multiplicity,
        caveats=about,
    )


@account.register
def _certificate(plan: FrankWolfePlan, problem: ProblemSpec) -> Certificate:
    """The certificate for one record: a loss of one client in one round, or all it is behind."""
    claim = plan.privacy or Claim(source=plan.protocol.source)
    if claim.budget is None:
        return no_privacy(claim.source, caveats=claim.caveats)
    found = released(plan)
    assert found is not None
    top, budget = found[0], claim.budget
    epsilon, known = event_epsilon(top), math.isfinite(event_epsilon(top))
    exact = Guarantee(epsilon, budget.delta) if known else None
    # Where messages depend on no data both accounts are one.
    local = plan.protocol.noise_by == "silos"
    claims_messages = claim.protect == "messages" and local
    uses = claim.max_participations
    claimed, once = (
        Guarantee(budget.epsilon, budget.delta),
        multiplicity_condition(uses, problem.multiplicity),
    )
    status = "none" if not known else "proven" if once.holds else "conditional"
    about_losses = (
        Condition("when messages are exchanged does not depend on losses", True),
        Condition("losses do not look at what is played (taken on trust)", True),
        Condition("clients clip losses, gradients and their differences, in code", True),
    )
    conditions = (*about_losses, once, *top.conditions())
    # The divisor of one score's noise before it is added.
    share = 1.0 if local else float(plan.silos)
    stds = {f"phase {p.number}": math.sqrt(2.0) * max(p.scales) / share for p in plan.phases}
    also: tuple[SideCertificate, ...] = ()
    if local:
        also = (
            SideCertificate(
                unit="user",
                relation="replace",
                model=plan.protocol.model if claims_messages else MESSAGES,
                claimed=None,
                exact=Guarantee(event_epsilon(found[-1]), budget.delta) if known else None,
                status=status,
                noise_std=stds,
                conditions=tuple(c for c in conditions if not isinstance(c, ClaimCondition)),
                caveats=(PROTECTS_CHOICES if claims_messages else PROTECTS_MESSAGES,),
                source="what is played comes of the messages, and tells less"
                if claims_messages
                else f"all {plan.experts} scores of each leaf, as messages carry them",
            ),
        )
    if problem.multiplicity > 1 and known:
        one = top.one if isinstance(top, GroupedLosses) else top
        model = MESSAGES if claims_messages else plan.protocol.model
        also += (
            SideCertificate(
                unit="item",
                relation="replace",
                model=f"{model}; {ONE_LOSS}",
                claimed=claimed,
                exact=Guarantee(event_epsilon(one), budget.delta),
                status="proven",
                noise_std=stds,
                conditions=(*about_losses, *one.conditions()),
                source=claim.source,
            ),
        )
    return Certificate(
        unit="user",
        relation="replace",
        model=MESSAGES if claims_messages else plan.protocol.model,
        claimed=claimed,
        exact=exact,
        status=status,
        noise_std=stds,
        conditions=conditions,
        caveats=(
            *claim.caveats,
            PROTECTS_MESSAGES if claims_messages else PROTECTS_CHOICES,
            *((RAW_MESSAGES,) if plan.protocol.noise_by == "server" else ()),
            *((budget_exceeded(uses),) if epsilon > budget.epsilon else ()),
            SIMULATION,
            CHANCES,
            *problem.notes,
        ),
        source=claim.source,
        also=also,
    )


def _learning_caveats(
    config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan
) -> tuple[str, ...]:
    """Caveats about the regret."""
    found = []
    if not plan.phases:
        found.append(
            "nothing is learnt, x_1 is played to the end: "
            + (
                "no phase has losses enough for a tree"
                if config.epsilon is None
                or theorem_tree_count(config, problem, problem.horizon) >= 1.0
                else "for so small an epsilon or smoothness the rule for T1 asks for no tree"
            )
        )
    if not problem.iid:
        found.append("these losses are not promised to be of one law, as the regret bound needs")
    return tuple(found)


def bound_curves(
    config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """Bounds of group regret at rounds (C,): the proven one, and Theorem 2.2 with 1 for O."""
    if not problem.iid:
        return None
    from fastfed.experts import fed_dp_ope_stoch_bounds as bounds

    m = plan.silos
    local = config.noise != "central"
    by_number = {
        p.number: bounds.PhaseNoise(
            p.trees, p.batch, tuple(s if local else s / m for s in p.scales)
        )
        for p in plan.phases
    }

    def proven(t: int) -> float:
        """The proven bound on one client's regret in t rounds."""
        return bounds.stoch_regret(
            t,
            [by_number.get(p) for p in range(1, phases_of(t) + 1)],
            m,
            plan.experts,
            lipschitz=problem.lipschitz,
            smoothness=problem.smoothness,
            noise="local" if local else "central",
            spread=problem.spread,
            loss_range=problem.loss_range,
        )

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Bounds at rounds (C,), by name."""
        found = {"proven": [m * proven(int(t)) for t in rounds]}
        if config.epsilon is not None:
            beta = config.smoothness or problem.smoothness or problem.lipschitz
            found["theorem-2-2"] = [
                m
                * bounds.theorem_2_2(
                    int(t),
                    m,
                    plan.experts,
                    config.epsilon,
                    lipschitz=problem.lipschitz,
                    smoothness=beta,
                )
                for t in rounds
            ]
        if problem.linear:
            found.update(lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta))
        return found

    return at


ALGORITHM = Algorithm(
    id="fed-dp-ope-stoch",
    paper="gao-2024",
    summary="private Frank-Wolfe steps of all clients together, against stochastic losses",
    config=OpeConfig,
    build=build,
)
