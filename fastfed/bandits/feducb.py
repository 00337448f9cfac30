"""FedUCB (dubey-pentland-2020, Algorithms 1 to 3), with a server and without one.

Silos synchronise when the determinant of V has grown. The trigger is the rule that decides when.
This implementation deviates from the paper:

- Errors in the pseudocode are corrected. In this implementation the trigger's matrix is inside the
  determinant. The counter and the batch are reset at a synchronisation. A leaf of the tree is a
  whole batch. The server replaces its sums by the sum of the silos' prefix sums, which contain all
  earlier data.
- The radius of Proposition 2 contains ln det V, as in its proof. The printed proposition has
  d ln det V.
- The trigger's time since the last synchronisation counts the current round, so it starts at 1. The
  counter in line 12 of the pseudocode starts at 0 and is a divisor.
- If silos use their current batch at once, the radius has ln(2 M / alpha) where Proposition 2 has
  ln(2 / alpha), with and without privacy. The proof assumes one order of all rounds, and each of
  the M silos needs a different order. ``calibration = "theorem"`` keeps ln(2 / alpha), and a caveat
  states this.
- The last diagonal entry of the matrices, the sum of squared rewards, is never used or sent.
- Features and rewards are clipped to the bounds that the proof assumes.
- The paper's ``schedule = "determinant"`` depends on raw data. No finite epsilon holds for it, and
  the certificate's status is "none". "fixed" synchronises at rounds known in advance.
  "private-determinant" is the rule of zhou-chowdhury-2024, Appendix D.2. It uses noisy sums only,
  and their privacy cost is part of the same budget.
- ``lazy = true`` is the default. In the paper silos use their current batch at once, which is
  ``lazy = false``.
- ``calibration = "exact"`` adds the least noise that satisfies the budget. It computes rho_min, a
  lower bound on the eigenvalues of a silo's regularizer, and kappa, a bound on the noise in the
  bias sum, from this noise. "theorem" uses the paper's formulas: rho_min is Lambda of the paper,
  and the printed kappa lacks a term in delta.
- With ``protects = "reward"`` users send bits of their rewards (docs/user-bit.md), and silos add no
  noise. V, and with it the paper's schedule, then depends only on public contexts and on bits. The
  guarantee of the bits therefore also covers the schedule.
- For O(M T) communication the paper sets the threshold D = 0, with which rounding errors would
  decide when silos synchronise. Here silos synchronise after every round (``batch_size = 1``).

Without a server (Algorithm 3) silos send messages to their neighbours in a graph. There are gamma
estimators: round t belongs to estimator t mod gamma. Each estimator has a tree at every silo. A
user's data are in one estimator, so the privacy of the estimators composes in parallel. Silos are
partitioned into cliques, and the silos of a clique share their estimators. Further deviations:

- The proof is followed where the pseudocode differs from it. A silo whose trigger fires sends a
  request to its clique. All silos of the clique report gamma rounds later, and all reports arrive
  before the estimator is used again. In the pseudocode silos reply at once, although some silos
  have not received the request.
- Each clique C starts from |C| rho_min I, and its trigger uses |C| (rho_max - rho_min) I, as in the
  proof. The pseudocode starts from 0, a singular matrix, and writes M instead of |C|.
- With privacy each report is a whole prefix sum and replaces the sums before it. Without privacy it
  is the sum of a batch and is added to them.
- In Proposition 2 |C| replaces M, and the failure probability is split over all cliques and
  estimators.
- The trigger counts the rounds of the estimator.
- The paper gives no threshold. "log-T" is the threshold of Algorithm 1 for the T / gamma rounds of
  an estimator, divided by 1 + L^2 = 2 (line 6). A threshold given as a number is not divided.
- The clique cover is a partition found by a greedy algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
import numpy as np

from fastfed._system import account
from fastfed._validate import InputError, choice, integer, number, show
from fastfed.bandits.assemble import Noise, assemble, bit_noise, make_plan
from fastfed.bandits.certify import certify, claim_of_mechanism
from fastfed.bandits.feducb_bounds import batch_size_proposition_1
from fastfed.bandits.feducb_theory import (
    Federation,
    centralised_bound_curves,
    constants,
    decentralised_bound_curves,
    proposition_2,
    sizes_of,
    threshold_of,
    trigger,
)
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import NOISE_DRAWS, PROTECTS, Algorithm, Config, System
from fastfed.privacy.account import Claim, sealed
from fastfed.privacy.releases.gaussian_release import (
    PRIVATIZER_CALIBRATIONS,
    Privatizer,
    calibrate_privatizer,
)
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes
from fastfed.privacy.sensitivity import RELATIONS, Budget
from fastfed.protocols.account import USER_BIT
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.serverless import GRAPHS, Graph, Part, PeerPlan

# ---- With a server -------------------------------------------------------------------------------

#: Value of ``returning`` if a user may take part at every silo.
EVERY_SILO = "every-silo"
SCHEDULES = ("determinant", "fixed", "private-determinant")
COMMUNICATION = ("log-T", "M1.5", "MT")

ConfigType = TypeVar("ConfigType", bound="FedUCBConfig")


class FedUCBConfig(Config, frozen=True, kw_only=True):
    """Keys of a feducb curve, in addition to the keys of `Config`.

    Parameters
    ----------
    schedule : {"determinant", "fixed", "private-determinant"}
        The rule for synchronisations.
    communication : {"log-T", "M1.5", "MT"} or float
        The threshold D > 0 of the trigger, or one of the paper's rules for D, which are named after
        the order of the number of messages: O(M log T), O(M^1.5 d^3) and O(M T).
    private : bool, default True
        False for no noise.
    epsilon : float
        Epsilon > 0 of the guarantee for each user. Required if private, unless ``silo_epsilon`` is
        given.
    delta : float
        Delta of the guarantee for each user, in (0, 1). Required if private, unless ``silo_delta``
        is given, or ``protects`` is "reward".
    silo_epsilon : tuple of float, optional
        One epsilon for each silo instead of ``epsilon``. Each silo then adds the noise of its
        budget. Requires ``schedule = "fixed"``.
    silo_delta : tuple of float, optional
        One delta for each silo instead of ``delta``. Requires ``silo_epsilon``.
    calibration : {"exact", "theorem"}
        "exact" adds the least noise that satisfies the budget, "theorem" the noise of the paper.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data are replaced by any other data (bounded DP), or by
        zeros, which is a weaker guarantee.
    rho_min : float, optional
        Lower bound > 0 on the eigenvalues of one silo's regularizer. The default is computed from
        the noise.
    radius : {"proposition-2", "direct"}
        The confidence radius: that of the paper, or fastfed's direct radius (docs/radius.md).
    noise_draws : {"silo", "sum"}
        Whether a simulation draws the noise of each silo, or only the noise of the sum over silos.
        The sums have the same distribution, and "sum" takes less time.
    returning : int or "every-silo", default 1
        The largest number of silos at which one user takes part (footnote 4 of the paper). A user
        takes part at a silo at most once. Values above 1 require ``calibration = "exact"`` and the
        same budget at all silos.
    protects : {"user", "reward"}
        What is private: a user's context and rewards, or only rewards, if contexts are public. With
        "reward" each user sends one random bit, and delta is 0 by default (docs/user-bit.md).
    """

    schedule: str = "determinant"
    communication: str | float = "log-T"
    private: bool = True
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    rho_min: float | None = None
    radius: str = "proposition-2"
    silo_epsilon: tuple[float, ...] | None = None
    silo_delta: tuple[float, ...] | None = None
    noise_draws: str = "silo"
    returning: int | str = 1
    protects: str = "user"

    radii: ClassVar[tuple[str, ...]] = ("proposition-2", "direct")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("schedule", self.schedule, SCHEDULES)
        if isinstance(self.communication, str):
            choice("communication", self.communication, COMMUNICATION)
        else:
            number("communication", self.communication, above=0.0)
        if self.rho_min is not None:
            number("rho_min", self.rho_min, above=0.0)
        if self.regularizer is not None:
            raise InputError("regularizer has no meaning for feducb: it follows from rho_min")
        if self.every_round and self.schedule == "private-determinant":
            raise InputError('communication "MT" is every round: it needs no private-determinant')
        if self.every_round and self.batch_size not in (None, 1, "theorem"):
            raise InputError(
                f'communication "MT" is every round: batch_size must be 1, got {self.batch_size}'
            )
        if self.every_round and self.release_rounds is not None:
            raise InputError('communication "MT" is every round: it has no release_rounds')
        for key in ("batch_size", "release_rounds"):
            if self.schedule != "fixed" and getattr(self, key) is not None:
                raise InputError(f'{key} belongs to schedule "fixed", got "{self.schedule}"')
        self._check_privacy()

    @property
    def every_round(self) -> bool:
        """True if silos synchronise after every round (D = 0 in the paper)."""
        return self.communication == "MT"

    @property
    def sieve_proven(self) -> bool:
        """True if the regret bound with a sieve is proven for the keys of this curve.

        A sieve is a rule that decides which arms may be chosen. The proof needs rounds of
        synchronisation that are known in advance.
        """
        return super().sieve_proven and (self.schedule == "fixed" or self.every_round)

    @property
    def sieve_needs(self) -> str:
        """The keys that a sieve needs, as text for error messages."""
        return f'schedule "fixed", {super().sieve_needs}'

    def _check_privacy(self) -> None:
        """Raise InputError for privacy keys that contradict each other or are missing."""
        choice("relation", self.relation, RELATIONS)
        choice("calibration", self.calibration, PRIVATIZER_CALIBRATIONS)
        if choice("protects", self.protects, PROTECTS) == "reward":
            self._check_bits()
        if choice("noise_draws", self.noise_draws, NOISE_DRAWS) == "sum" and not self.private:
            raise InputError('noise_draws "sum" has no meaning where private = false: no noise')
        if not self.private:
            for key in ("epsilon", "delta", "silo_epsilon", "silo_delta"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} has no meaning where private = false")
            if self.returning != 1:
                raise InputError("returning has no meaning where private = false")
            if self.radius != "proposition-2" or self.schedule == "private-determinant":
                what = "radius" if self.radius != "proposition-2" else "schedule"
                raise InputError(f'{what} "{getattr(self, what)}" needs private = true')
            return
        self._check_silo_budgets()
        self._check_returning()
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None and getattr(self, f"silo_{key}") is None:
                raise InputError(f"{key} is required, or private = false")
        if self.silo_epsilon is None:
            number("epsilon", self.epsilon, above=0.0)
        if self.sends_bits:
            number("delta", self.delta, at_least=0.0, below=1.0)
        elif self.silo_delta is None:
            number("delta", self.delta, above=0.0, below=1.0)
        if self.calibration == "theorem":
            if self.schedule == "private-determinant":
                raise InputError('schedule "private-determinant" needs calibration "exact"')
            if self.radius == "direct":
                raise InputError('radius "direct" needs calibration "exact"')
        if self.radius == "direct":
            if self.schedule == "determinant" and not (self.every_round or self.sends_bits):
                raise InputError('radius "direct" needs schedule "fixed" or "private-determinant"')
            if self.rho_min is not None:
                raise InputError('rho_min belongs to radius "proposition-2", got radius "direct"')

    @property
    def sends_bits(self) -> bool:
        """True if each user sends one random bit instead of the reward, and silos add no noise."""
        return self.protects == "reward"

    def _check_bits(self) -> None:
        """Raise InputError for keys that do not fit ``protects`` = "reward"; set delta's default.

        Users then send bits of their rewards.
        """
        if self.delta is None:
            msgspec.structs.force_setattr(self, "delta", 0.0)
        if self.radius != "direct":
            raise InputError(
                f'protects "reward" needs radius = "direct", which is proven for bits of users, '
                f'got "{self.radius}"'
            )
        if self.schedule == "private-determinant":
            raise InputError(
                'protects "reward" needs schedule "determinant" or "fixed": bits need no noise in '
                'the schedule, got "private-determinant"'
            )
        if self.clip is False:
            raise InputError(
                'protects "reward" needs clip = true: a reward out of range fits into no bit'
            )
        for key, default in (
            *(("private", True), ("calibration", "exact"), ("relation", "replace")),
            *(("silo_epsilon", None), ("silo_delta", None), ("returning", 1)),
            *(("noise_draws", "silo"), ("reward_centre", None)),
        ):
            if getattr(self, key) != default:
                raise InputError(
                    f'{key} has no meaning where protects is "reward": users send bits, got '
                    f"{show(getattr(self, key))}"
                )

    def _check_returning(self) -> None:
        """Raise InputError for a value of ``returning`` that is invalid or has no privacy proof."""
        if isinstance(self.returning, str):
            choice("returning", self.returning, (EVERY_SILO,))
        else:
            integer("returning", self.returning, at_least=1)
        if self.returning != 1 and self.calibration != "exact":
            raise InputError(
                f'returning needs calibration "exact", got "{self.calibration}": the rule of the '
                "paper is for a user of one silo"
            )
        if self.returning != 1 and self.silo_epsilon is not None:
            raise InputError(
                "returning needs one budget for all silos: give epsilon, not silo_epsilon"
            )

    def silos_met(self, problem: ProblemSpec) -> int:
        """Return the largest number of silos at which one user takes part, from ``returning``.

        Raise InputError if this number is larger than the number of silos of the problem.
        """
        if isinstance(self.returning, str):
            return problem.silos
        return integer("returning", self.returning, at_least=1, at_most=problem.silos)

    def _check_silo_budgets(self) -> None:
        """Raise InputError for invalid values of ``silo_epsilon`` and ``silo_delta``."""
        for key in ("epsilon", "delta"):
            if (silo_values := getattr(self, f"silo_{key}")) is None:
                continue
            if not silo_values:
                raise InputError(f"silo_{key} must hold one number for each silo, got none")
            if getattr(self, key) is not None:
                raise InputError(f"give either {key} or silo_{key}, not both")
            for value in silo_values:
                number(f"silo_{key}", value, above=0.0, below=math.inf if key == "epsilon" else 1.0)
        if self.silo_epsilon is None:
            if self.silo_delta is not None:
                raise InputError("silo_delta needs silo_epsilon, one for each silo")
            return
        if self.schedule != "fixed" and not self.every_round:
            raise InputError(
                'silo_epsilon needs schedule "fixed": in schedules that depend on data all silos '
                f'have the same noise, got "{self.schedule}"'
            )


def privatizers(
    config: FedUCBConfig, problem: ProblemSpec, releases: int
) -> tuple[Privatizer, ...]:
    """Calibrate the noise of each silo for its budget in ``silo_epsilon`` and ``silo_delta``.

    The result has one privatizer for each silo. A privatizer is the noise that a silo adds to the
    nodes of its tree with ``releases`` leaves. The result is () if all silos have the same budget.
    """
    if config.silo_epsilon is None:
        return ()
    deltas = config.silo_delta or (config.delta or 0.0,) * problem.silos
    for key, values in (("silo_epsilon", config.silo_epsilon), ("silo_delta", deltas)):
        if len(values) != problem.silos:
            raise InputError(
                f"{key} must hold one number for each of {problem.silos} silos, got {len(values)}"
            )
    budgets = [
        Budget(float(epsilon), float(delta), config.relation)
        for epsilon, delta in zip(config.silo_epsilon, deltas, strict=True)
    ]
    privatizer_of_budget = {
        b: calibrate_privatizer(b, releases, config.calibration) for b in set(budgets)
    }
    return tuple(privatizer_of_budget[budget] for budget in budgets)


def least_noisy(silo_privatizers: tuple[Privatizer, ...]) -> Privatizer:
    """Return the privatizer of the silo with the least noise and so the weakest guarantee.

    In the result, its budget is replaced by the largest epsilon and the largest delta of any silo.
    This budget holds for the users of every silo.

    Parameters
    ----------
    silo_privatizers : tuple of Privatizer
        The privatizer of each silo.
    """
    least_noise = min(silo_privatizers, key=lambda p: p.noise_std)
    largest_epsilon, largest_delta = (
        max(p.budget.epsilon for p in silo_privatizers),
        max(p.budget.delta for p in silo_privatizers),
    )
    return msgspec.structs.replace(
        least_noise, budget=Budget(largest_epsilon, largest_delta, least_noise.budget.relation)
    )


def privatizer(
    config: FedUCBConfig,
    releases: int,
    silo_privatizers: tuple[Privatizer, ...] = (),
    silos_met: int = 1,
) -> Privatizer | None:
    """Return the calibrated noise of one silo's tree, or None if silos add no noise.

    Silos add no noise in a curve without privacy, and if users send bits.

    Parameters
    ----------
    config : FedUCBConfig
        Keys of the curve (one system of an experiment).
    releases : int
        The number of leaves of the tree.
    silo_privatizers : tuple of Privatizer, optional
        The privatizer of each silo, if silos have different budgets. The result is then their
        `least_noisy`.
    silos_met : int, default 1
        The largest number of silos at which one user takes part.
    """
    if not config.private or config.sends_bits:
        return None
    if silo_privatizers:
        return least_noisy(silo_privatizers)
    assert config.epsilon is not None and config.delta is not None
    # The number of rounds in which the schedule also releases noisy sums.
    schedule_rounds = releases if config.schedule == "private-determinant" else 0
    budget = Budget(config.epsilon, config.delta, config.relation)
    return calibrate_privatizer(
        budget, releases, config.calibration, schedule_rounds=schedule_rounds, silos_met=silos_met
    )


def fixed_schedule(config: FedUCBConfig, problem: ProblemSpec) -> Schedule:
    """Return the schedule of a curve whose rounds of synchronisation are known in advance.

    With ``batch_size`` = "theorem" the number of synchronisations is that of Proposition 1, the
    paper's upper bound on the number of synchronisations of the determinant schedule.
    """
    every_round = Schedule(problem.horizon, 1)
    if config.every_round:
        return every_round
    if config.batch_size != "theorem":
        return config.batches(problem)
    federation = Federation(problem)
    silo_privatizers = privatizers(config, problem, problem.horizon)
    noise = privatizer(config, problem.horizon, silo_privatizers, config.silos_met(problem))
    numbers = constants(config, federation, noise, silo_privatizers)
    threshold = threshold_of(config, federation, numbers)
    # The threshold D of rule "M1.5" is 0 for one silo and one round. Proposition 1 needs D > 0.
    if not threshold:
        return every_round
    batch_size = batch_size_proposition_1(sizes_of(problem, numbers), threshold)
    return Schedule(problem.horizon, batch_size)


def with_fixed_schedule(config: ConfigType) -> ConfigType:
    """Return the config with ``schedule`` = "fixed" if silos synchronise after every round."""
    if config.every_round and config.schedule != "fixed":
        return msgspec.structs.replace(config, schedule="fixed")
    return config


def build(config: FedUCBConfig, problem: ProblemSpec) -> System:
    """Build the system of one feducb curve of an experiment: its plan, certificate and bounds."""
    config = with_fixed_schedule(config)
    fixed = config.schedule == "fixed"
    schedule = fixed_schedule(config, problem) if fixed else Schedule(problem.horizon, 1)
    silo_privatizers = privatizers(config, problem, schedule.releases)
    noise = privatizer(config, schedule.releases, silo_privatizers, config.silos_met(problem))
    clip = config.bounds(published=False)
    federation = Federation(problem)
    plan, theory = plan_and_theory(config, federation, noise, schedule, clip, silo_privatizers)
    plan = replace(plan, drawn_once=config.noise_draws == "sum")
    source = source_text(config, noise, "Algorithm 1")
    noise_of_plan = _noise_of_plan(config, problem, schedule, noise, silo_privatizers)
    plan, certificate = certify(plan, problem, theory, noise_of_plan, source)
    return System(
        "feducb", plan, certificate, _bound_curves(config, federation, noise), theory=theory
    )


def _bound_curves(
    config: FedUCBConfig, federation: Federation, noise: Privatizer | None
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """Return a function that computes the paper's bounds on regret and synchronisations by name.

    Its argument is an array of n rounds, and each of its results a list of n values. Return None if
    the bounds do not apply to the keys of the curve.
    """
    if config.schedule != "determinant" or config.radius != "proposition-2":
        return None
    numbers = constants(config, federation, noise)
    threshold = threshold_of(config, federation, numbers)
    if not threshold:
        return None
    return partial(centralised_bound_curves, config, federation.problem, numbers, threshold)


def released_only(config: FedUCBConfig, schedule: Schedule) -> bool:
    """Return True if actions depend on synchronised statistics only.

    This holds for lazy updates. It also holds if silos synchronise after every round, because the
    local batch is then empty whenever an action is chosen.
    """
    return config.lazy or (config.schedule == "fixed" and schedule.every_round)


def plan_and_theory(
    config: FedUCBConfig,
    federation: Federation,
    noise: Privatizer | None,
    schedule: Schedule,
    clip: Clip | None,
    silo_privatizers: tuple[Privatizer, ...] = (),
) -> tuple[Plan, Theory]:
    """Return the plan and the theory of the silos that share one estimator.

    With a server all silos share it, without a server the silos of one clique.

    Parameters
    ----------
    config : FedUCBConfig
        Keys of the curve (one system of an experiment).
    federation : Federation
        The silos that share the estimator, and the federation that they belong to.
    noise : Privatizer or None
        The calibrated noise.
    schedule : Schedule
        The rounds of synchronisation. If they depend on data, a schedule with all rounds.
    clip : Clip or None
        Bounds that features and rewards are clipped to; None for no clipping.
    silo_privatizers : tuple of Privatizer, optional
        The noise of each silo, if silos have different budgets.

    Returns
    -------
    plan : Plan
        The plan without a privacy claim, which `certify` adds.
    theory : Theory
        The regularizer and the confidence radius, and the conditions of their proof.
    """
    problem = federation.problem
    noise_of_plan = _noise_of_plan(config, problem, schedule, noise, silo_privatizers)
    numbers = constants(config, federation, noise, silo_privatizers)
    protocol = PROTOCOLS[USER_BIT if config.sends_bits else "silo-ldp-prefix" if noise else "none"]
    rule = trigger(config, federation, numbers, noise)
    if config.radius == "direct":
        plan, theory = assemble(
            config,
            problem,
            protocol,
            schedule,
            clip,
            noise_of_plan,
            only_released=released_only(config, schedule),
            ordered=config.schedule == "fixed",
        )
        return replace(plan, trigger=rule), theory
    only_released = released_only(config, schedule)
    theory = proposition_2(config, federation, numbers, clip, only_released, bool(silo_privatizers))
    plan = make_plan(config, problem, protocol, schedule, clip, theory, noise_of_plan)
    return replace(plan, trigger=rule), theory


def _noise_of_plan(
    config: FedUCBConfig,
    problem: ProblemSpec,
    schedule: Schedule,
    mechanism: Privatizer | None,
    silo_privatizers: tuple[Privatizer, ...] = (),
) -> Noise | None:
    """Return the noise that a plan stores, with its distribution; None if there is no noise.

    ``mechanism`` is the noise of every silo. If silos have different budgets, it is the least noise
    of any silo, and ``silo_privatizers`` holds the noise of each silo.
    """
    if config.sends_bits:
        return bit_noise(config, problem, schedule)
    if mechanism is None:
        return None
    std = NoiseStd(*mechanism.stds)
    if config.schedule == "fixed":
        distribution = NoiseDistribution(std, problem.silos, mechanism.variance_factors)
    else:
        # The noise of release k depends on k. Here data decide in which round release k is made.
        # So bound the noise of each release by that of the release with the most tree nodes.
        max_nodes = max_prefix_nodes(mechanism.releases)
        distribution = NoiseDistribution(
            std, problem.silos, np.array([0.0, max_nodes]), counted=mechanism.releases
        )
    if not silo_privatizers:
        return Noise(mechanism, distribution, std)
    multiples = tuple(p.noise_std / mechanism.noise_std for p in silo_privatizers)
    deltas = tuple(p.budget.delta for p in silo_privatizers)
    return Noise(
        mechanism,
        replace(distribution, noises=sum(f * f for f in multiples)),
        std,
        silo_noise=multiples,
        silo_epsilon=tuple(p.budget.epsilon for p in silo_privatizers),
        silo_delta=deltas if config.silo_delta is not None else (),
    )


def source_text(config: FedUCBConfig, noise: Privatizer | None, algorithm: str) -> str:
    """Return a line of text that cites the papers and algorithms behind a curve's guarantee.

    ``algorithm`` names the algorithm of dubey-pentland-2020, such as "Algorithm 1".
    """
    source = f"dubey-pentland-2020, {algorithm}"
    if config.sends_bits:
        return f"{source} on bits (Warner 1965)"
    if noise is None:
        return source
    if config.schedule == "private-determinant":
        source += ", with the schedule of zhou-chowdhury-2024, Appendix D.2"
    return f"{source}; {noise.source}"


FEDUCB = Algorithm(
    id="feducb",
    paper="dubey-pentland-2020",
    summary="federated LinUCB that synchronises when a determinant has grown",
    config=FedUCBConfig,
    build=build,
)


# ---- Without a server ----------------------------------------------------------------------------

#: Largest number of silos without a server. The distances between all pairs of silos are stored,
#: and the check of a complete graph of this size takes seconds.
MAX_SILOS = 2000


class DecentralizedConfig(FedUCBConfig, frozen=True, kw_only=True):
    """Keys of a feducb-decentralized curve, in addition to the keys of feducb.

    Parameters
    ----------
    graph : str or tuple of (int, int), default "complete"
        The name of a graph over silos, or its edges.
    graph_seed : int, default 0
        Seed of a random graph.
    gamma : int, optional
        Time to live of a message in hops, and the number of estimators. The default is the diameter
        of the graph.
    """

    graph: str | tuple[tuple[int, int], ...] = "complete"
    graph_seed: int = 0
    gamma: int | None = None

    @property
    def sieve_proven(self) -> bool:
        """False: no regret bound with constants is proven without a server."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sends_bits:
            raise InputError(
                'protects "reward" needs a server: no radius is proven for bits without one'
            )
        if self.silo_epsilon is not None:
            raise InputError(
                "silo_epsilon needs a server: in feducb-decentralized all silos have the same noise"
            )
        if self.returning != 1:
            raise InputError(
                "returning needs a server: without one a user has one round in the federation"
            )
        if self.noise_draws == "sum":
            raise InputError(
                'noise_draws "sum" needs a server that adds up all silos: in feducb-decentralized '
                "each silo's message is sent separately"
            )
        if isinstance(self.graph, str):
            choice("graph", self.graph, GRAPHS)
        integer("graph_seed", self.graph_seed, at_least=0, at_most=2**63 - 1)
        if self.gamma is not None:
            integer("gamma", self.gamma, at_least=1)
        has_batches = self.batch_size is not None or self.release_rounds is not None
        if self.schedule == "fixed" and not has_batches and not self.every_round:
            raise InputError("batch_size is required: an integer >= 1, in rounds of an estimator")
        if self.batch_size == "theorem":
            raise InputError('batch_size "theorem" belongs to feducb: Proposition 1 needs a server')


def build_decentralized(config: DecentralizedConfig, problem: ProblemSpec) -> System:
    """Build the system of one feducb-decentralized curve: its plan, certificate and bounds."""
    if problem.silos > MAX_SILOS:
        raise InputError(f"silos must be <= {MAX_SILOS} without a server, got {problem.silos}")
    graph = Graph.of(config.graph, problem.silos, config.graph_seed)
    gamma = max(1, graph.diameter) if config.gamma is None else config.gamma
    if gamma > problem.horizon:
        raise InputError(f"gamma must be <= horizon ({problem.horizon}), got {gamma}")
    config = with_fixed_schedule(config)
    rounds_per_estimator = -(-problem.horizon // gamma)
    fixed_batches = config.schedule == "fixed" and not config.every_round
    if fixed_batches and isinstance(config.batch_size, int):
        size = integer("batch_size", config.batch_size, at_least=1)
        if size > rounds_per_estimator:
            raise InputError(
                f"batch_size must be <= {rounds_per_estimator}, the rounds of an estimator in "
                f"{problem.horizon} rounds with gamma = {gamma}, got {size}"
            )
    elif fixed_batches:
        # Raise InputError for batches that exceed the rounds of every estimator.
        config.batches(replace(problem, horizon=rounds_per_estimator))

    def schedule_of(uses: int) -> Schedule:
        """Return the schedule of an estimator that is used in ``uses`` of the horizon's rounds."""
        if not fixed_batches:
            return Schedule(uses, 1)
        if isinstance(config.batch_size, int):
            return Schedule(uses, config.batch_size)
        if config.release_rounds is not None:
            # An incomplete last batch is not sent. If no batch is complete, the batch size exceeds
            # the number of rounds, so nothing is sent.
            ends = tuple(n for n in config.release_rounds if n <= uses)
            return Schedule.at(ends, uses) if ends else Schedule(uses, uses + 1)
        return config.batches(replace(problem, horizon=uses))

    noise = privatizer(config, schedule_of(rounds_per_estimator).releases)
    clip = config.bounds(published=False)
    empty_plan = PeerPlan(graph, gamma, problem.horizon, problem.dimension, ())
    parts, theories = [], []
    plan_by_size: dict[tuple[int, int], tuple[Plan, Theory]] = {}
    cliques = graph.cliques(gamma)
    if config.radius == "direct":
        # A part is one estimator of one clique. Divide the failure probability alpha equally among
        # the regret bounds of all parts.
        share = config.failure_probability / (len(cliques) * gamma)
        config = msgspec.structs.replace(config, failure_probability=share)
    for clique in cliques:
        for estimator in range(gamma):
            part_problem = replace(
                problem, silos=len(clique), horizon=empty_plan.uses(estimator, problem.horizon)
            )
            federation = Federation(part_problem, problem, gamma, len(cliques))
            # Parts with the same silos and rounds have the same plan. It is computed once, because
            # some of its constants are slow to compute.
            size_of_part = part_problem.silos, part_problem.horizon
            if size_of_part not in plan_by_size:
                schedule = schedule_of(part_problem.horizon)
                plan_by_size[size_of_part] = plan_and_theory(
                    config, federation, noise, schedule, clip
                )
            plan, theory = plan_by_size[size_of_part]
            parts.append(Part(clique, estimator, plan))
            theories.append(theory)
    # If the regret bound of one part is unproven, the bound of the whole federation is unproven.
    theory = next((t for t in theories if not t.proven), theories[0])
    source = source_text(config, noise, "Algorithm 3")
    claim = Claim(source=source, caveats=theory.caveats)
    if noise is not None:
        claim = claim_of_mechanism(noise, source, theory)
    sealed_plans = {
        id(plan): sealed(replace(plan, privacy=claim)) for plan, _ in plan_by_size.values()
    }
    plan_of_peers = replace(
        empty_plan, parts=tuple(replace(p, plan=sealed_plans[id(p.plan)]) for p in parts)
    )
    bound_curves = None
    if config.schedule == "determinant":
        federation = Federation(problem, problem, gamma)
        numbers = constants(config, federation, noise)
        # `threshold_of` divides D by 1 + L^2 = 2, as line 6 of the paper's Algorithm 3 does. The
        # bounds are stated in terms of D before this division.
        threshold = 2.0 * threshold_of(config, federation, numbers)
        sizes = [len(clique) for clique in cliques]
        bound_curves = partial(
            decentralised_bound_curves, config, problem, numbers, threshold, sizes, gamma
        )
    return System(
        "feducb-decentralized",
        plan_of_peers,
        account(plan_of_peers, problem),
        bound_curves,
        theory=theory,
    )


FEDUCB_DECENTRALIZED = Algorithm(
    id="feducb-decentralized",
    paper="dubey-pentland-2020",
    summary="FedUCB without a server: messages travel along a graph",
    config=DecentralizedConfig,
    build=build_decentralized,
)
