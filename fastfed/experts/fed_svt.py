"""Fed-SVT (gao-2024, Algorithms 4 and 5): one expert for all clients, switched by sparse vector.

The server follows one expert. In every exchange a noisy test (the sparse vector technique) checks
whether the expert has lost more than a threshold L since it was chosen; if so, the exponential
mechanism draws a new expert, at most kappa times.

Deviations from the paper, and why:

- The noisy query is compared with L plus the threshold's noise. As printed, it is compared with L
  and the threshold's noise is never used; then the privacy proof of sparse vector does not apply.
- Each expert is scored by its own losses. As printed, it is scored by the losses of the chosen
  experts, which is the same number for all, so the new expert would be uniformly random.
- tau starts at 1, and for N = 1 the first exchange is before round 2: no losses are known earlier.
- ``calibration = "exact"``: replacing a loss changes all later queries by the same amount, so
  Lap(2/eps) on threshold and query costs eps/2 (the printed 4/eps and 8/eps cost eps/4). eta is
  the largest that the composition of bounded-range mechanisms allows. The printed eta for delta > 0
  does not follow from the printed proof; the certificate gives its exact epsilon.
- ``switches = "proven"``: kappa from the proof in ``bounds.switching_budget``, about a seventh of
  the printed 3 ceil(log2 d) + 24 ln(1/rho). A smaller kappa allows a larger eta.
- ``threshold = "proven"``: L with the smallest proven margin for the noise actually drawn
  (``bounds.noise_margin``). The paper's margin is 8 ln(2 T^2/(N^2 rho))/eps.
- As in the paper, all clients send in every exchange, even after all kappa switches are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfed._kernels import experts as kernels
from fastfed._random import CHOICE, QUERY, THRESHOLD, NoiseSource, SeededNoise, is_exact
from fastfed._system import account
from fastfed._validate import InputError, choice, integer, number
from fastfed.experts.certify import certificate_of_choices
from fastfed.experts.deciders import ExactChooser, SeldomChooser
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    SPARSE_SWITCHING,
    Algorithm,
    BudgetConfig,
    CompiledRule,
    Decider,
    ExpertChoice,
    ProblemSpec,
    Rounds,
    Stretches,
    SumsPlan,
    System,
    check_linear,
    check_phase_length,
    choices_of,
)
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, PrivacyEvent, released, sealed
from fastfed.privacy.certificate import CHANCES_CAVEAT, Certificate
from fastfed.privacy.mechanisms.laplace import standard_laplace
from fastfed.privacy.mechanisms.sparse_vector import (
    CALIBRATIONS,
    SparseSwitching,
    calibrate_switching,
)

# ---- Plan and server -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SparseVectorPlan(SumsPlan):
    """Plan of one fed-svt curve.

    Parameters
    ----------
    noise : SparseSwitching
        The calibrated mechanism: number of switches, scales of its Laplace noise, and eta.
    threshold : float
        L, in units of the loss summed over clients.
    floor : float
        m L*. Cumulative losses are raised to at least this value before an expert is drawn.
    """

    noise: SparseSwitching
    threshold: float
    floor: float

    def decider(self, noise: NoiseSource) -> Decider:
        """Return a server in its initial state, with exact comparisons if ``noise`` is exact."""
        return ExactSparseVector(self, noise) if is_exact(noise) else SparseVector(self, noise)


@released.register
def _(plan: SparseVectorPlan) -> tuple[PrivacyEvent, ...]:
    """Return the released events: the switches of the expert."""
    return choices_of(plan, plan.noise, SPARSE_SWITCHING)


class SparseVector(SeldomChooser):
    """State of the Fed-SVT server; ``switches`` is the paper's k."""

    plan: SparseVectorPlan

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release", "_expert", "_total", "_before", "_limit", "switches")

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        super().__init__(plan, noise)
        self._before = 0.0  # cumulative loss of the current expert when it was chosen
        # Noisy threshold for the loss of the current expert since it was chosen.
        self._limit = self._threshold(0)
        self._draws = {}

    def _threshold(self, switches: int) -> Any:
        """Return the threshold L plus Laplace noise, which is drawn for the current expert.

        ``switches`` is the number of switches so far.
        """
        laplace = standard_laplace(self._draw(THRESHOLD, switches + 1))
        return self.plan.threshold + self.plan.noise.threshold_scale * laplace

    def _above(self, query: float, release: int) -> bool:
        """Return True if the query plus noise exceeds the noisy threshold.

        ``query`` is the loss of the current expert since it was chosen.
        """
        laplace = standard_laplace(self._draw(QUERY, release))
        return bool(query + self.plan.noise.query_scale * laplace > self._limit)

    def begin(self, expert: int) -> None:
        """Start with the given expert, instead of the random one that `start` chooses.

        The expert must not depend on losses.
        """
        self._expert = expert

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Keep the expert or draw a new one, given the sums (d,) of all clients' new losses."""
        plan, release = self.plan, self._release + 1
        cumulative = self._total + total
        expert, loss_when_chosen, limit, switches = (
            self._expert,
            self._before,
            self._limit,
            self.switches,
        )
        if switches < plan.noise.switches and self._above(
            cumulative[expert] - loss_when_chosen, release
        ):
            expert = self._draw_expert(np.maximum(cumulative, plan.floor), release)
            limit = self._threshold(switches + 1)
            loss_when_chosen, switches = float(cumulative[expert]), switches + 1
        choice = ExpertChoice(release, expert)
        # State changes only after the last step that can fail: a failed call can be repeated.
        self._total, self._release, self._draws = cumulative, release, {}
        self._expert, self._before, self._limit, self.switches = (
            expert,
            loss_when_chosen,
            limit,
            switches,
        )
        return choice

    def decide_many(self, stretches: Stretches) -> np.ndarray:
        """Return the experts (n,) chosen in n >= 1 stretches of rounds.

        The last stretch must begin with an exchange, and the noise must be a `SeededNoise`.
        """
        (sums, unit, has_exchange, cumulative), noise, plan = stretches, self.noise, self.plan
        assert type(noise) is SeededNoise
        chosen, position, is_switched = np.empty(len(has_exchange), np.int64), 0, False
        # Each call keeps the expert until the exchange before stretch ``position`` must switch it,
        # or until the end. ``is_switched`` is True if this exchange has already taken place.
        while position < len(has_exchange):
            position, self._release = kernels.sparse(
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
                has_exchange,
                position,
                is_switched,
                cumulative,
                chosen,
            )
            if is_switched := position < len(has_exchange):
                self._switch(unit * cumulative)
        self._total = unit * cumulative
        return chosen

    def decide_rounds(self, rounds: Rounds, last: int) -> int:
        """Run the next rounds up to ``last``, deciding in each; return the last chosen expert."""
        asks = True
        while rounds.done < last:
            rule = CompiledRule(
                "sparse",
                spent=self.switches >= self.plan.noise.switches,
                before=self._before,
                limit=self._limit,
                query_scale=self.plan.noise.query_scale,
            )
            _, self._release, _ = rounds.run(
                rule, self._expert, self._release, last=last, asks=asks
            )
            if rounds.done < last:
                self._switch(rounds.lost.astype(np.float64))
            asks = rounds.done == last
        self._total = (rounds.lost - rounds.latest).astype(np.float64)
        return self._expert

    def _switch(self, total: np.ndarray) -> None:
        """Draw a new expert in the next exchange, given the cumulative loss of each expert (d,)."""
        self._release += 1
        self._expert = self._draw_expert(np.maximum(total, self.plan.floor), self._release)
        self.switches += 1
        self._limit = self._threshold(self.switches)
        self._before, self._draws = float(total[self._expert]), {}


class ExactSparseVector(ExactChooser, SparseVector):
    """State of the Fed-SVT server whose decisions equal the decisions of real arithmetic."""

    def _draw_from_source(self, purpose: int, number: int) -> Any:
        """Return an exact draw: uniform for choices of experts, Laplace for comparisons."""
        if purpose == CHOICE:
            return super()._draw_from_source(purpose, number)
        return self.noise.ideal_draws(purpose, number, 1)

    def _threshold(self, switches: int) -> Any:
        """Return an exact draw of the threshold's noise, to which `_above` adds the threshold L."""
        return self._draw(THRESHOLD, switches + 1)

    def _above(self, query: float, release: int) -> bool:
        """Return True if the query plus noise exceeds the noisy threshold, compared exactly.

        ``query`` is the loss of the current expert since it was chosen.
        """
        noise, sensitivity = self.plan.noise, self._sensitivity
        return exact.above(
            float(query),
            noise.query_scale * sensitivity,
            self._draw(QUERY, release),
            self.plan.threshold,
            noise.threshold_scale * sensitivity,
            self._limit,
        )


# ---- Config and plan -----------------------------------------------------------------------------

PROVEN, PRINTED = "proven", "printed"
RULES = (PROVEN, PRINTED)


class SvtConfig(BudgetConfig, frozen=True, kw_only=True):
    """Keys of a fed-svt curve, in addition to the keys of `BudgetConfig`.

    Parameters
    ----------
    phase_length : int, default 1
        N, the number of rounds between two exchanges.
    optimal_loss : float, optional
        L* >= 0, an upper bound on the best expert's loss at any client. By default the bound that
        the losses guarantee.
    failure_probability : float, default 0.05
        rho, the probability that the regret bound fails, in [1e-12, 0.5).
    calibration : str, default "exact"
        The rule that chooses the noise, one of ``CALIBRATIONS``.
    switches : int, "proven" or "printed"
        kappa, the largest number of switches.
    threshold : float, "proven" or "printed"
        L, in units of the loss summed over clients.
    """

    phase_length: int = 1
    optimal_loss: float | None = None
    failure_probability: float = 0.05
    calibration: str = "exact"
    switches: int | str = PROVEN
    threshold: float | str = PROVEN

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """Return the plan, certificate and bounds of one fed-svt curve."""
    check_linear("fed-svt", problem)
    length = check_phase_length(config.phase_length, problem)
    best = config.optimal_loss if config.optimal_loss is not None else problem.optimal_loss
    if best is None:
        raise InputError(
            "optimal_loss (L*) is required: these losses do not bound the best expert's loss"
        )
    noise = calibrate_switching(
        config.budget, switches=switching_budget(config, problem), calibration=config.calibration
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
    plan = sealed(replace(plan, privacy=privacy_claim(config, problem, plan, best)))
    return System(
        "fed-svt", plan, account(plan, problem), bound_curves(config, problem, plan, best)
    )


def switching_budget(config: SvtConfig, problem: ProblemSpec) -> int:
    """Return kappa, the largest number of switches.

    If the key ``switches`` is a number, kappa is this number. The key "printed" selects the paper's
    formula, and the key "proven" the formula from this package's proof. The proof divides the
    failure probability rho equally among three events.
    """
    from fastfed.experts import fed_svt_bounds as bounds

    if not isinstance(config.switches, str):
        return config.switches
    if config.switches == PRINTED:
        return bounds.switching_budget_printed(problem.experts, config.failure_probability)
    return bounds.switching_budget(problem.experts, config.failure_probability / 3.0)


def threshold(
    config: SvtConfig, problem: ProblemSpec, noise: SparseSwitching, best: float
) -> float:
    """Return L, with which a noisy test compares the loss of an expert since it was chosen.

    The loss is summed over clients. If the noisy loss is above L plus noise, the expert is
    switched. If the key ``threshold`` is a number, L is this number. The key "printed" selects the
    paper's formula, and the key "proven" the formula from this package's proof, which divides the
    failure probability rho equally among three events. ``best`` is L*, a bound on the best expert's
    loss at any client.
    """
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
    """Return a function from rounds (C,) to bounds on group regret.

    The function returns lists of C values by name: the proven bound (if it applies), the order of
    Theorem 2.6 with constant 1, and the lower bounds. ``best`` is L*, the configured bound on the
    best expert's loss at any client.
    """
    from fastfed.experts import fed_svt_bounds as bounds

    m, noise = plan.silos, plan.noise
    # The proof excludes three events, each of probability at most rho/3. It needs kappa and L from
    # the proof, and losses that guarantee L*.
    best_guaranteed = problem.optimal_loss is not None and best >= problem.optimal_loss
    proven = best_guaranteed and config.switches == config.threshold == PROVEN

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Return the bounds at rounds (C,), by name."""
        curves = {}
        if proven:
            proven_bound = bounds.svt_regret(
                plan.horizon,
                m,
                phase_length=plan.phase_length,
                threshold=plan.threshold,
                switches=noise.switches,
                threshold_scale=noise.threshold_scale,
                query_scale=noise.query_scale,
                failure_probability=config.failure_probability / 3.0,
            )
            curves["proven"] = [m * min(float(t), proven_bound) for t in rounds]
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
        curves["theorem-2-6"] = [m * min(float(t), printed) for t in rounds]
        return {**curves, **lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta)}

    return at


def privacy_claim(
    config: SvtConfig, problem: ProblemSpec, plan: SparseVectorPlan, best: float
) -> Claim:
    """Return the plan's privacy claim for one record, which may affect several losses."""
    return Claim(
        budget=plan.noise.budget,
        source=plan.noise.source,
        max_participations=problem.multiplicity,
        caveats=tuple(_regret_caveats(config, problem, plan, best)),
    )


@account.register
def _certificate(plan: SparseVectorPlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate for one record."""
    return certificate_of_choices(plan, problem, plan.noise, CHANCES_CAVEAT)


def _regret_caveats(
    config: SvtConfig, problem: ProblemSpec, plan: SparseVectorPlan, best: float
) -> list[str]:
    """Return the caveats about the regret bound.

    ``best`` is L*, the configured bound on the best expert's loss at any client.
    """
    regret_caveats = []
    if problem.optimal_loss is None:
        regret_caveats.append(
            f"that the best expert loses at most {best:g} at any client is a key's word"
        )
    elif best < problem.optimal_loss:
        regret_caveats.append(
            f"the best expert may lose {problem.optimal_loss:g}, more than optimal_loss = {best:g}:"
            " privacy does not depend on this, but the regret bound does"
        )
    if plan.threshold / problem.silos >= problem.horizon:
        regret_caveats.append(
            f"the threshold, {plan.threshold / problem.silos:.3g} a client, is beyond the horizon: "
            "the first expert is hardly ever changed"
        )
    return regret_caveats


ALGORITHM = Algorithm(
    id="fed-svt",
    paper="gao-2024",
    summary="one expert for all clients, changed by chance when it has lost too much",
    config=SvtConfig,
    build=build,
)
