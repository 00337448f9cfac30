"""Fed-DP-OPE-Stoch (gao-2024, Algorithms 1-3): private Frank-Wolfe steps on stochastic losses.

Deviations from the paper, and why:

- The paper's batch size b = 2^(p-1)/(p-1)^2 is rounded down to a power of two, so that sets of
  b / 2^h losses exist. The number of trees T1 is rounded down until the trees' disjoint sets fit
  into the previous phase. A phase without a tree does not change x. ``batch = "largest"`` uses as
  many losses as fit, because the paper's b leaves about nine in ten losses unused.
- ``calibration = "exact"`` uses the least noise with a proven composition, computed from the
  ranges that the losses guarantee. The printed scale lambda = 4 alpha 2^j/(b eps) gives the chosen
  experts up to 2 eps: when scores can move in both directions, an argmin costs twice what the
  printed proof says. ``"corrected"`` replaces the factor 4 by 8.
- The sensitivity of a client's d scores is d times the sensitivity of the chosen experts.
  ``protect = "messages"`` scales local noise so that the budget also covers each client's messages.
- ``noise = "central"``: clients send raw scores and the server adds Lap(lambda/m) to their mean.
  ``"none"`` adds no noise.
- x_1 is uniform; the paper allows any point. eta = 2/(k + 1), where k counts all leaves of a phase.
- With central noise, the rule for T1 has m in place of sqrt m, because m clients reduce central
  noise by the factor m.
- ``smoothness`` sets beta in the rule for T1. Linear losses have beta = 0; the rule then uses
  alpha by default.
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
    batch_and_trees,
    phases_of,
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
    CHANCES_CAVEAT,
    SIMULATION_CAVEAT,
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

#: Trust model of the messages when clients add the noise.
MESSAGES = "silo-level local: server and other clients are not trusted"
NOISES = {"local": LOCAL_SCORES, "central": CENTRAL_SCORES, "none": PLAIN_SCORES}


class OpeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a fed-dp-ope-stoch curve.

    Parameters
    ----------
    epsilon : float
        Privacy budget for one record, in [1e-9, 1e6]. Required unless ``noise = "none"``.
    delta : float, default 0
        Privacy budget for one record, in [0, 1).
    noise : {"local", "central", "none"}
        Who adds noise: each client, the server, or nobody.
    protect : {"experts", "messages"}
        What the budget covers: the decisions, or each client's messages.
    calibration : str, default "exact"
        The rule that chooses the noise, one of ``CALIBRATIONS``.
    batch : {"paper", "largest"}
        The rule for the batch size b: the paper's formula, or as many losses as fit.
    smoothness : float, optional
        beta > 0 in the rule for T1. By default the smoothness of the losses, or alpha if the losses
        are linear.
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
            settings_present = {
                "epsilon": self.epsilon is not None,
                "delta": self.delta != 0.0,
                "protect": self.protect != "experts",
                "calibration": self.calibration != "exact",
            }
            for key, is_set in settings_present.items():
                if is_set:
                    raise InputError(f'{key} has no meaning where noise = "none"')
            return
        if self.epsilon is None:
            raise InputError('epsilon is required, or noise = "none"')
        number("epsilon", self.epsilon, at_least=1e-9, at_most=1e6)
        if self.protect == "messages" and self.noise != "local":
            raise InputError(
                'protect = "messages" needs noise = "local": with "central" the server gets raw '
                "messages"
            )


def build(config: OpeConfig, problem: ProblemSpec) -> System:
    """Return the plan, certificate and bounds of one fed-dp-ope-stoch curve."""
    noise_by_phase = phase_noises(config, problem)
    phases, offset = [], 0
    for phase_number, (batch, scales) in noise_by_phase.items():
        phases.append(Phase(phase_number, batch, scales, offset))
        offset += len(phases[-1].leaves)
    plan = FrankWolfePlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=NOISES[config.noise],
        linear=problem.linear,
        phases=tuple(phases),
        bounds=gradient_bounds(problem),
    )
    plan = sealed(replace(plan, privacy=privacy_claim(config, problem, plan)))
    return System(
        "fed-dp-ope-stoch", plan, account(plan, problem), bound_curves(config, problem, plan)
    )


def gradient_bounds(problem: ProblemSpec) -> Bounds:
    """Return the bounds to which clients clip gradients; the problem's losses satisfy them."""
    return Bounds(problem.lipschitz - problem.spread, problem.lipschitz, problem.smoothness)


def phase_noises(
    config: OpeConfig, problem: ProblemSpec
) -> dict[int, tuple[int, tuple[float, ...]]]:
    """Return, by phase number, the phase's batch size b and the noise scale of each of its trees.

    A phase without a tree is left out: it does not change the decision x. Without noise, all scales
    are 0.
    """
    noise_by_phase = {}
    for phase in range(2, phases_of(problem.horizon) + 1):
        batch, trees = batch_and_trees(
            phase, config.batch, lambda b: theorem_tree_count(config, problem, b)
        )
        if trees == 0:
            continue
        scales = (0.0,) * trees
        if config.epsilon is not None:
            scales = vertex_noise(config, problem, batch, trees).scales
        noise_by_phase[phase] = batch, scales
    return noise_by_phase


def theorem_tree_count(config: OpeConfig, problem: ProblemSpec, batch: int) -> float:
    """Return T1, the number of trees in Theorem C.5, for batch size b, before rounding."""
    beta = config.smoothness
    if beta is None:
        beta = problem.lipschitz if problem.linear else problem.smoothness
    epsilon = math.inf if config.epsilon is None else config.epsilon
    noise_reduction = problem.silos if config.noise == "central" else math.sqrt(problem.silos)
    return theorem_trees(batch, noise_reduction, problem.experts, epsilon, problem.lipschitz, beta)


@lru_cache(maxsize=256)
def vertex_noise(config: OpeConfig, problem: ProblemSpec, batch: int, trees: int) -> VertexNoise:
    """Calibrate the noise of one phase, which has ``trees`` trees.

    The root of a tree uses a set of ``batch`` losses of each client, and each right child uses a
    smaller set. The calibration considers the sets of all these vertices.
    """
    assert config.epsilon is not None
    return calibrate_vertices(
        Budget(config.epsilon, config.delta, "replace", "user"),
        batch=batch,
        trees=trees,
        lipschitz=problem.lipschitz,
        # Use the same float64 value to which clients clip, so that the account fits the clients.
        spread=min(gradient_bounds(problem).spread, 2.0 * problem.lipschitz),
        smoothness=problem.smoothness,
        experts=problem.experts,
        protect=config.protect,
        calibration=config.calibration,
    )


def privacy_claim(config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan) -> Claim:
    """Return the plan's privacy claim for one record, which may affect several losses."""
    caveats = _learning_caveats(config, problem, plan)
    if config.epsilon is None:
        return Claim(source=plan.protocol.source, caveats=caveats)
    return Claim(
        budget=Budget(config.epsilon, config.delta, "replace", "user"),
        source=SOURCES[config.calibration] if plan.phases else plan.protocol.source,
        calibration=config.calibration,
        protect=config.protect,
        max_participations=problem.multiplicity,
        caveats=caveats,
    )


@account.register
def _certificate(plan: FrankWolfePlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate for one record, which affects up to ``multiplicity`` losses.

    `ProblemSpec.multiplicity` is 1 if each record affects one loss of one client.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    if claim.budget is None:
        return no_privacy(claim.source, caveats=claim.caveats)
    events = released(plan)
    assert events is not None
    main_event, budget = events[0], claim.budget
    epsilon, is_finite = event_epsilon(main_event), math.isfinite(event_epsilon(main_event))
    exact = Guarantee(epsilon, budget.delta) if is_finite else None
    # With local noise there are two events, one for decisions and one for messages. The event that
    # the claim is about comes first, and events[-1] is the other one. Without phases there is only
    # one event.
    local = plan.protocol.noise_by == "silos"
    claims_messages = claim.protect == "messages" and local
    uses = claim.max_participations
    claimed, uses_condition = (
        Guarantee(budget.epsilon, budget.delta),
        multiplicity_condition(uses, problem.multiplicity),
    )
    status = "none" if not is_finite else "proven" if uses_condition.holds else "conditional"
    loss_conditions = (
        Condition("when messages are exchanged does not depend on losses", True),
        Condition("losses do not look at what is played (taken on trust)", True),
        Condition("clients clip losses, gradients and their differences, in code", True),
    )
    conditions = (*loss_conditions, uses_condition, *main_event.conditions())
    # The server adds Lap(lambda/m) to the mean score, a client adds Lap(lambda) to each score.
    noise_divisor = 1.0 if local else float(plan.silos)
    stds = {
        f"phase {p.number}": math.sqrt(2.0) * max(p.scales) / noise_divisor for p in plan.phases
    }
    side_certificates: tuple[SideCertificate, ...] = ()
    if local:
        side_certificates = (
            SideCertificate(
                unit="user",
                relation="replace",
                model=plan.protocol.model if claims_messages else MESSAGES,
                claimed=None,
                exact=Guarantee(event_epsilon(events[-1]), budget.delta) if is_finite else None,
                status=status,
                noise_std=stds,
                conditions=tuple(c for c in conditions if not isinstance(c, ClaimCondition)),
                caveats=(PROTECTS_CHOICES if claims_messages else PROTECTS_MESSAGES,),
                source="decisions are computed from the messages, so they reveal no more"
                if claims_messages
                else f"all {plan.experts} scores of each leaf, as messages carry them",
            ),
        )
    if problem.multiplicity > 1 and is_finite:
        loss_event = main_event.one if isinstance(main_event, GroupedLosses) else main_event
        model = MESSAGES if claims_messages else plan.protocol.model
        side_certificates += (
            SideCertificate(
                unit="item",
                relation="replace",
                model=f"{model}; {ONE_LOSS}",
                claimed=claimed,
                exact=Guarantee(event_epsilon(loss_event), budget.delta),
                status="proven",
                noise_std=stds,
                conditions=(*loss_conditions, *loss_event.conditions()),
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
            SIMULATION_CAVEAT,
            CHANCES_CAVEAT,
            *problem.notes,
        ),
        source=claim.source,
        also=side_certificates,
    )


def _learning_caveats(
    config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan
) -> tuple[str, ...]:
    """Return the caveats about the regret bound, if no phase learns or losses are not i.i.d."""
    regret_caveats = []
    if not plan.phases:
        regret_caveats.append(
            "nothing is learnt, x_1 is played to the end: "
            + (
                "no phase has losses enough for a tree"
                if config.epsilon is None
                or theorem_tree_count(config, problem, problem.horizon) >= 1.0
                else "for so small an epsilon or smoothness the rule for T1 asks for no tree"
            )
        )
    if not problem.iid:
        regret_caveats.append(
            "the regret bound needs losses of one distribution, which these are not known to have"
        )
    return tuple(regret_caveats)


def bound_curves(
    config: OpeConfig, problem: ProblemSpec, plan: FrankWolfePlan
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """Return a function from rounds (C,) to group regret bounds, or None if losses are not iid.

    The function returns lists of C values by name: the proven bound, the order of Theorem 2.2 with
    constant 1, and, for linear losses, the lower bounds.
    """
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
        """Return the proven bound on one client's regret in t rounds."""
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
        """Return the bounds at rounds (C,), by name."""
        curves = {"proven": [m * proven(int(t)) for t in rounds]}
        if config.epsilon is not None:
            beta = config.smoothness or problem.smoothness or problem.lipschitz
            curves["theorem-2-2"] = [
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
            curves.update(lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta))
        return curves

    return at


ALGORITHM = Algorithm(
    id="fed-dp-ope-stoch",
    paper="gao-2024",
    summary="private Frank-Wolfe steps of all clients together, against stochastic losses",
    config=OpeConfig,
    build=build,
)
