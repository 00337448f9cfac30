"""Fed-SVT (gao-2024, Algorithms 4 and 5): one expert for all clients, switched by sparse vector.

Deviations from the paper, and why:

- The query is compared with L plus the threshold's noise; as printed it is compared with L, the
  threshold's noise is never used, and the sparse vector technique has no proof.
- Each expert is scored by what it has lost itself; as printed by what the chosen ones have, which
  is the same for all, so that the new expert is a uniformly random one.
- tau starts at 1, and for N = 1 the first exchange is before round 2: before, nothing is known.
- ``calibration = "exact"``: a replaced loss moves all later queries alike, so that Lap(2/eps) on
  threshold and query costs eps/2 (the printed 4/eps and 8/eps cost eps/4), and eta is the largest
  that the composition of bounded-range mechanisms allows. The printed eta for delta > 0 does not
  follow from the printed proof; the certificate gives its exact epsilon.
- ``switches = "proven"``: kappa of our own proof (``bounds.switching_budget``), about a seventh
  of the printed 3 ceil(log2 d) + 24 ln(1/rho), and with it a larger eta.
- ``threshold = "proven"``: L with the least margin for the noise that is really drawn
  (``bounds.noise_margin``) where the paper has 8 ln(2 T^2/(N^2 rho))/eps.
- All clients send in every exchange, also once kappa is spent, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fastfed._kernels import experts as kernels
from fastfed._random import (
    CHOICE,
    QUERY,
    THRESHOLD,
    NoiseSource,
    SeededNoise,
    is_exact,
)
from fastfed._system import account
from fastfed._validate import InputError, choice, integer, number
from fastfed.experts.certify import certificate_of_choices
from fastfed.experts.deciders import ExactChooser, SeldomChooser
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    SPARSE_SWITCHING,
    Algorithm,
    Decider,
    ExpertChoice,
    ProblemSpec,
    Stretches,
    SumsPlan,
    System,
    check_linear,
    check_phase_length,
    choices_of,
)
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, PrivacyEvent, released, sealed
from fastfed.privacy.certificate import CHANCES, Certificate
from fastfed.privacy.mechanisms.laplace import standard_laplace
from fastfed.privacy.mechanisms.sparse_vector import (
    CALIBRATIONS,
    SparseSwitching,
    calibrate_switching,
)
from fastfed.privacy.sensitivity import Budget

# ---- Plan and server -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SparseVectorPlan(SumsPlan):
    """Plan of one fed-svt curve.

    Parameters
    ----------
    noise : SparseSwitching
        The calibrated mechanism: switches, scales of its Laplace noise, and eta.
    threshold : float
        L, of the sum of all clients' losses.
    floor : float
        m L*: losses below it count as it.
    """

    noise: SparseSwitching
    threshold: float
    floor: float

    def decider(self, noise: NoiseSource) -> Decider:
        """Make the server: with exact comparisons where the noise source is exact."""
        return ExactSparseVector(self, noise) if is_exact(noise) else SparseVector(self, noise)


@released.register
def _(plan: SparseVectorPlan) -> tuple[PrivacyEvent, ...]:
    """Everything released: the switches."""
    return choices_of(plan, plan.noise, SPARSE_SWITCHING)


class SparseVector(SeldomChooser):
    """Server of Fed-SVT; ``switches`` is k of the paper."""

    plan: SparseVectorPlan

    #: What exchanges change, for snapshots of simulations.
    KEPT = ("_release", "_expert", "_total", "_before", "_limit", "switches")

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        super().__init__(plan, noise)
        self._before = 0.0  # the loss of the expert when it was chosen
        self._limit = self._threshold(0)
        self._drawn = {}

    def _threshold(self, switches: int) -> Any:
        """L plus noise, drawn anew for every expert."""
        drawn = standard_laplace(self._draw(THRESHOLD, switches + 1))
        return self.plan.threshold + self.plan.noise.threshold_scale * drawn

    def _above(self, query: float, release: int) -> bool:
        """True if the query with its noise exceeds the threshold with its own."""
        drawn = standard_laplace(self._draw(QUERY, release))
        return bool(query + self.plan.noise.query_scale * drawn > self._limit)

    def begin(self, expert: int) -> None:
        """Begin with an expert that does not depend on losses, in place of `start`."""
        self._expert = expert

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Keep the expert or switch, from the sums (d,) of all clients' losses."""
        plan, release = self.plan, self._release + 1
        lost = self._total + total
        expert, before, limit, switches = self._expert, self._before, self._limit, self.switches
        if switches < plan.noise.switches and self._above(lost[expert] - before, release):
            expert = self._choose(np.maximum(lost, plan.floor), release)
            limit = self._threshold(switches + 1)
            before, switches = float(lost[expert]), switches + 1
        choice = ExpertChoice(release, expert)
        # Everything is computed: from here on nothing can fail.
        self._total, self._release, self._drawn = lost, release, {}
        self._expert, self._before, self._limit, self.switches = expert, before, limit, switches
        return choice

    def decide_many(self, stretches: Stretches) -> np.ndarray:
        """The experts (n,) of n >= 1 stretches of rounds, an exchange before the last; noise is
        that of `SeededNoise`."""
        (sums, unit, asks, lost), noise, plan = stretches, self.noise, self.plan
        assert type(noise) is SeededNoise
        chosen, at, decided = np.empty(len(asks), np.int64), 0, False
        while at < len(asks):
            at, self._release = kernels.sparse(
                noise.seed,
                noise.replicate,
                self._expert,
                self._release,
                self.switches >= plan.noise.switches,
                unit,
                self._before,
                self._limit,
                plan.noise.query_scale,
                sums,
                asks,
                at,
                decided,
                lost,
                chosen,
            )
            if decided := at < len(asks):
                total = unit * lost
                self._release += 1
                self._expert = self._choose(np.maximum(total, plan.floor), self._release)
                self.switches += 1
                self._limit = self._threshold(self.switches)
                self._before, self._drawn = float(total[self._expert]), {}
        self._total = unit * lost
        return chosen


class ExactSparseVector(ExactChooser, SparseVector):
    """Server of Fed-SVT with decisions as for real numbers."""

    def _source(self, purpose: int, number: int) -> Any:
        """Draw ideally: uniforms of choices, and Laplace noise of comparisons."""
        if purpose == CHOICE:
            return super()._source(purpose, number)
        return self.noise.ideal_draws(purpose, number, 1)

    def _threshold(self, switches: int) -> Any:
        """The draw of the threshold's noise, which `exact.above` adds."""
        return self._draw(THRESHOLD, switches + 1)

    def _above(self, query: float, release: int) -> bool:
        """True if the query with its noise exceeds the threshold with its own."""
        noise, larger = self.plan.noise, self._moved
        return exact.above(
            float(query),
            noise.query_scale * larger,
            self._draw(QUERY, release),
            self.plan.threshold,
            noise.threshold_scale * larger,
            self._limit,
        )


# ---- Config and plan -----------------------------------------------------------------------------

PROVEN, PRINTED = "proven", "printed"
RULES = (PROVEN, PRINTED)


class SvtConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a fed-svt curve.

    Parameters
    ----------
    epsilon : float
        Budget of one record, in [1e-9, 1e6].
    delta : float, default 0
        Budget of one record, in [0, 1).
    phase_length : int, default 1
        N, rounds between two exchanges.
    optimal_loss : float, optional
        L* >= 0: the best expert loses at most so much at any client; by default the losses'
        guarantee.
    failure_probability : float, default 0.05
        rho, in [1e-12, 0.5).
    calibration : str, default "exact"
        The rule that chooses the noise, one of ``CALIBRATIONS``.
    switches : int, "proven" or "printed"
        kappa.
    threshold : float, "proven" or "printed"
        L, of the sum of all clients' losses.
    """

    epsilon: float
    delta: float = 0.0
    phase_length: int = 1
    optimal_loss: float | None = None
    failure_probability: float = 0.05
    calibration: str = "exact"
    switches: int | str = PROVEN
    threshold: float | str = PROVEN

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, at_least=1e-9, at_most=1e6)
        number("delta", self.delta, at_least=0.0, below=1.0)
        integer("phase_length", self.phase_length, at_least=1)
        number("failure_probability", self.failure_probability, at_least=1e-12, below=0.5)
        choice("calibration", self.calibration, CALIBRATIONS)
        if self.calibration == "zcdp" and self.delta == 0.0:
            raise InputError('calibration "zcdp" needs delta > 0: it composes concentrated privacy')
        if self.optimal_loss is not None:
            number("optimal_loss", self.optimal_loss, at_least=0.0)
        for key in ("switches", "threshold"):
            value = getattr(self, key)
            if isinstance(value, str):
                choice(key, value, RULES)
            elif key == "switches":
                integer(key, value, at_least=1, at_most=2**20)
            else:
                number(key, value, at_least=0.0)


def build(config: SvtConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one fed-svt curve."""
    check_linear("fed-svt", problem)
    length = check_phase_length(config.phase_length, problem)
    best = config.optimal_loss if config.optimal_loss is not None else problem.optimal_loss
    if best is None:
        raise InputError(
            "optimal_loss (L*) is required: these losses do not promise what the best expert loses"
        )
    budget = Budget(config.epsilon, config.delta, "replace", "user")
    noise = calibrate_switching(
        budget, switches=switching_budget(config, problem), calibration=config.calibration
    )
    plan = SparseVectorPlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=SPARSE_SWITCHING,
        phase_length=length,
        noise=noise,
        threshold=threshold(config, problem, noise, best),
        floor=problem.silos * best,
    )
    plan = sealed(replace(plan, privacy=declared(config, problem, plan, best)))
    return System(
        "fed-svt", plan, account(plan, problem), bound_curves(config, problem, plan, best)
    )


def switching_budget(config: SvtConfig, problem: ProblemSpec) -> int:
    """kappa: as given, proven or printed."""
    from fastfed.experts import fed_svt_bounds as bounds

    if not isinstance(config.switches, str):
        return config.switches
    if config.switches == PRINTED:
        return bounds.switching_budget_printed(problem.experts, config.failure_probability)
    return bounds.switching_budget(problem.experts, config.failure_probability / 3.0)


def threshold(
    config: SvtConfig, problem: ProblemSpec, noise: SparseSwitching, best: float
) -> float:
    """L: as given, proven or printed."""
    from fastfed.experts import fed_svt_bounds as bounds

    if not isinstance(config.threshold, str):
        return config.threshold
    if config.threshold == PRINTED:
        margin = bounds.noise_margin_printed(
            problem.horizon, config.phase_length, config.epsilon, config.failure_probability
        )
    else:
        margin = bounds.noise_margin(
            problem.horizon // config.phase_length,
            noise.switches,
            noise.threshold_scale,
            noise.query_scale,
            config.failure_probability / 3.0,
        )
    return bounds.threshold(problem.silos, best, noise.eta, margin)


def bound_curves(
    config: SvtConfig, problem: ProblemSpec, plan: SparseVectorPlan, best: float
) -> Callable[[np.ndarray], dict[str, list[float]]]:
    """Bounds of group regret at rounds (C,): the proven one, and Theorem 2.6 with 1 for O."""
    from fastfed.experts import fed_svt_bounds as bounds

    m, noise = plan.silos, plan.noise
    # Three events fail with probability rho/3 each, if kappa and L are those of the proof and the
    # losses themselves guarantee L*.
    promised = problem.optimal_loss is not None and best >= problem.optimal_loss
    proven = promised and config.switches == config.threshold == PROVEN

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Bounds at rounds (C,), by name."""
        found = {}
        if proven:
            most = bounds.svt_regret(
                plan.horizon,
                m,
                phase_length=plan.phase_length,
                threshold=plan.threshold,
                switches=noise.switches,
                threshold_scale=noise.threshold_scale,
                query_scale=noise.query_scale,
                failure_probability=config.failure_probability / 3.0,
            )
            found["proven"] = [m * min(float(t), most) for t in rounds]
        printed = bounds.theorem_2_6(
            plan.horizon,
            m,
            plan.experts,
            config.epsilon,
            phase_length=plan.phase_length,
            failure_probability=config.failure_probability,
            optimal_loss=best,
            delta=config.delta or None,
        )
        found["theorem-2-6"] = [m * min(float(t), printed) for t in rounds]
        return {**found, **lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta)}

    return at


def declared(config: SvtConfig, problem: ProblemSpec, plan: SparseVectorPlan, best: float) -> Claim:
    """The claim of the plan for one record, which may be behind several losses."""
    return Claim(
        budget=plan.noise.budget,
        source=plan.noise.source,
        max_participations=problem.multiplicity,
        caveats=tuple(_regret_caveats(config, problem, plan, best)),
    )


@account.register
def _certificate(plan: SparseVectorPlan, problem: ProblemSpec) -> Certificate:
    """The certificate for one record: a loss of one client in one round, or all it is behind."""
    return certificate_of_choices(plan, problem, plan.noise, CHANCES)


def _regret_caveats(
    config: SvtConfig, problem: ProblemSpec, plan: SparseVectorPlan, best: float
) -> list[str]:
    """Caveats about the regret."""
    found = []
    if problem.optimal_loss is None:
        found.append(f"that the best expert loses at most {best:g} at any client is a key's word")
    elif best < problem.optimal_loss:
        found.append(
            f"the best expert may lose {problem.optimal_loss:g}, more than optimal_loss = {best:g}:"
            " privacy is not touched, the regret bound is"
        )
    if plan.threshold / problem.silos >= problem.horizon:
        found.append(
            f"the threshold, {plan.threshold / problem.silos:.3g} a client, is beyond the horizon: "
            "the first expert is hardly ever changed"
        )
    return found


ALGORITHM = Algorithm(
    id="fed-svt",
    paper="gao-2024",
    summary="one expert for all clients, changed by chance when it has lost too much",
    config=SvtConfig,
    build=build,
)
