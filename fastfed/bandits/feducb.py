"""FedUCB (dubey-pentland-2020, Algorithms 1 to 3): with a server and without one.

Silos synchronise when a determinant has grown. Deviations from the paper, and why:

- The algorithm is corrected: the trigger's matrix stands inside the determinant, the counter and
  the batch start anew at a synchronisation, a leaf of the tree is a whole batch, and the server
  replaces its sums by the sum of the silos' prefix sums, which contain all earlier ones.
- Proposition 2 is used as its proof has it: ln det V once, not d times.
- The trigger's time since the last synchronisation counts the current round: it is 1 in the first
  round after one. Line 12 of the pseudocode reads a counter that starts at 0, and divides by it.
- The radius of silos that use their own batch at once has ln(2 M / alpha) where Proposition 2 has
  ln(2 / alpha), with and without privacy: its proof is for one order of events, and each of M silos
  has its own. ``calibration = "theorem"`` keeps ln(2 / alpha), which the caveats say.
- The matrices' last entry, the sum of squared rewards, is never used, so it is never sent.
- Features and rewards are clipped in code to what the proof bounds.
- ``schedule = "determinant"``, the paper's, reads raw data: no finite epsilon holds for it, and the
  certificate says "none". "fixed" synchronises at rounds known in advance; "private-determinant" is
  the rule of zhou-chowdhury-2024, Appendix D.2, which reads noisy sums, paid from the same budget.
- ``lazy = true`` is the default; the paper's silos use their own batch at once (``lazy = false``).
- ``calibration = "exact"`` takes the least noise that gives the budget, and rho_min and kappa from
  that noise; "theorem" is the paper's Lambda and its kappa, which lacks delta.
- D for O(M T) communication is 0 in the paper, which rounding would decide; it becomes
  ``batch_size = 1``.

Without a server (Algorithm 3) silos send messages to their neighbours. Further deviations:

- The proof is followed where the pseudocode differs from it: a silo whose trigger fires asks its
  clique, all report gamma rounds later, and all reports arrive before the estimator is used again.
  The pseudocode replies at once, to silos of which some have not heard.
- Each clique starts from |C| rho_min I and triggers with |C| (rho_max - rho_min) I, as in the
  proof; the pseudocode starts from 0, a singular matrix, and writes M.
- Sums are replaced, never added to: they are whole prefixes. Without privacy they are batches.
- Proposition 2 has |C| for M, too, and its failure probability is shared by all cliques and
  estimators.
- The number of rounds in the trigger is counted in rounds of the estimator.
- The paper gives no threshold; "log-T" is Algorithm 1's for the T / gamma rounds of an estimator,
  divided by 1 + L^2 = 2 (line 6). A number is compared as it is, divided by nothing.
- The clique cover is a greedy one, a partition of the silos.
- Estimators are numbered t mod gamma. Each has a tree of its own at every silo; a user takes part
  in one of them, so they compose in parallel.
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
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.assemble import Noise, assemble, make_plan
from fastfed.bandits.certify import certify, declared
from fastfed.bandits.feducb_bounds import batch_size_proposition_1
from fastfed.bandits.feducb_theory import (
    Federation,
    centralised_bound_curves,
    constants,
    decentralised_bound_curves,
    proposition_2,
    threshold_of,
    trigger,
)
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import NOISE_DRAWS, Algorithm, Config, System
from fastfed.privacy.account import Claim, sealed
from fastfed.privacy.releases.gaussian_release import (
    PRIVATIZER_CALIBRATIONS,
    Privatizer,
    calibrate_privatizer,
)
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes
from fastfed.privacy.sensitivity import RELATIONS, Budget
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.serverless import GRAPHS, Graph, Part, PeerPlan

# ---- With a server -------------------------------------------------------------------------------

#: Value of ``returning`` for a user whom every silo meets.
EVERY_SILO = "every-silo"
SCHEDULES = ("determinant", "fixed", "private-determinant")
COMMUNICATION = ("log-T", "M1.5", "MT")

K = TypeVar("K", bound="FedUCBConfig")


class FedUCBConfig(Config, frozen=True, kw_only=True):
    """Keys of a feducb curve, beside those of `Config`.

    Parameters
    ----------
    schedule : {"determinant", "fixed", "private-determinant"}
        The rule for synchronisations.
    communication : {"log-T", "M1.5", "MT"} or float
        The threshold D > 0 of the determinant, or the paper's rule for it.
    private : bool, default True
        False for no noise.
    epsilon : float
        Budget of one user, > 0; required if private, unless ``silo_epsilon`` is given.
    delta : float
        Budget of one user, in (0, 1); required if private, unless ``silo_delta`` is given.
    silo_epsilon : tuple of float, optional
        One epsilon for each silo in place of ``epsilon``: each silo adds the noise of its own
        budget. For ``schedule = "fixed"``.
    silo_delta : tuple of float, optional
        With it, one delta for each silo in place of ``delta``.
    calibration : {"exact", "theorem"}
        The least noise that gives the budget, or the paper's.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data replaced (bounded DP), or set to zero, its weaker
        cousin.
    rho_min : float, optional
        Lower bound > 0 on the eigenvalues of one silo's regularizer; by default from the noise.
    radius : {"proposition-2", "direct"}
        The confidence radius.
    noise_draws : {"silo", "sum"}
        What a simulation draws: the noise of each silo, or that of their sum at once, which has the
        same distribution and takes less time.
    returning : int or "every-silo", default 1
        The most silos that meet one user, once each (footnote 4: one individual meets all M
        agents). For ``calibration = "exact"`` and one budget.
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
        if self.bonus < 1.0 and self.schedule != "fixed" and not self.every_round:
            raise InputError(
                'bonus below 1 needs schedule "fixed", whose rounds are known in advance, got '
                f'"{self.schedule}"'
            )
        self._check_privacy()

    @property
    def every_round(self) -> bool:
        """True if the paper's D is 0, so that silos synchronise after every round."""
        return self.communication == "MT"

    def _check_privacy(self) -> None:
        """Raise InputError for keys of the budget that do not fit each other."""
        choice("relation", self.relation, RELATIONS)
        choice("calibration", self.calibration, PRIVATIZER_CALIBRATIONS)
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
        if self.silo_delta is None:
            number("delta", self.delta, above=0.0, below=1.0)
        if self.calibration == "theorem":
            if self.schedule == "private-determinant":
                raise InputError('schedule "private-determinant" needs calibration "exact"')
            if self.radius == "direct":
                raise InputError('radius "direct" needs calibration "exact"')
        if self.radius == "direct":
            if self.schedule == "determinant" and not self.every_round:
                raise InputError('radius "direct" needs schedule "fixed" or "private-determinant"')
            if self.rho_min is not None:
                raise InputError('rho_min belongs to radius "proposition-2", got radius "direct"')

    def _check_returning(self) -> None:
        """Raise InputError for a number of silos that cannot be, or has no account."""
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
        """The most silos that meet one user; InputError for more than there are."""
        if isinstance(self.returning, str):
            return problem.silos
        return integer("returning", self.returning, at_least=1, at_most=problem.silos)

    def _check_silo_budgets(self) -> None:
        """Raise InputError for budgets of single silos that make no sense."""
        for key in ("epsilon", "delta"):
            if (given := getattr(self, f"silo_{key}")) is None:
                continue
            if not given:
                raise InputError(f"silo_{key} must hold one number for each silo, got none")
            if getattr(self, key) is not None:
                raise InputError(f"give either {key} or silo_{key}, not both")
            for value in given:
                number(f"silo_{key}", value, above=0.0, below=math.inf if key == "epsilon" else 1.0)
        if self.silo_epsilon is None:
            if self.silo_delta is not None:
                raise InputError("silo_delta needs silo_epsilon, one for each silo beside it")
            return
        if self.schedule != "fixed" and not self.every_round:
            raise InputError(
                'silo_epsilon needs schedule "fixed": what the data schedule has one noise, or '
                f'none, for all silos, got "{self.schedule}"'
            )


def privatizers(
    config: FedUCBConfig, problem: ProblemSpec, releases: int
) -> tuple[Privatizer, ...]:
    """Calibrate each silo's noise, where silos have budgets of their own; () where not."""
    if config.silo_epsilon is None:
        return ()
    deltas = config.silo_delta or (config.delta or 0.0,) * problem.silos
    for key, given in (("silo_epsilon", config.silo_epsilon), ("silo_delta", deltas)):
        if len(given) != problem.silos:
            raise InputError(
                f"{key} must hold one number for each of {problem.silos} silos, got {len(given)}"
            )
    budgets = [
        Budget(float(epsilon), float(delta), config.relation)
        for epsilon, delta in zip(config.silo_epsilon, deltas, strict=True)
    ]
    made = {b: calibrate_privatizer(b, releases, config.calibration) for b in set(budgets)}
    return tuple(made[budget] for budget in budgets)


def weakest(own: tuple[Privatizer, ...]) -> Privatizer:
    """The least noise of any silo, under a budget that is no less than any silo's."""
    least = min(own, key=lambda p: p.noise_std)
    epsilon, delta = max(p.budget.epsilon for p in own), max(p.budget.delta for p in own)
    return msgspec.structs.replace(least, budget=Budget(epsilon, delta, least.budget.relation))


def privatizer(
    config: FedUCBConfig,
    releases: int,
    own: tuple[Privatizer, ...] = (),
    silos_met: int = 1,
) -> Privatizer | None:
    """Calibrate the noise of one silo's tree of so many releases; None without privacy.

    ``own``: each silo's, where they differ; of these the weakest. ``silos_met``: the most silos
    that meet one user.
    """
    if not config.private:
        return None
    if own:
        return weakest(own)
    assert config.epsilon is not None and config.delta is not None
    rounds = releases if config.schedule == "private-determinant" else 0
    budget = Budget(config.epsilon, config.delta, config.relation)
    return calibrate_privatizer(
        budget, releases, config.calibration, schedule_rounds=rounds, silos_met=silos_met
    )


def fixed_schedule(config: FedUCBConfig, problem: ProblemSpec) -> Schedule:
    """Rounds of a fixed schedule: as given, all, or as often as Proposition 1 counts."""
    every = Schedule(problem.horizon, 1)
    if config.every_round:
        return every
    if config.batch_size != "theorem":
        return config.batches(problem)
    federation = Federation(problem)
    own = privatizers(config, problem, problem.horizon)
    noise = privatizer(config, problem.horizon, own, config.silos_met(problem))
    found = constants(config, federation, noise, own)
    bar = threshold_of(config, federation, found)
    # D of "M1.5" is 0 for one silo and one round: synchronise after every round.
    if not bar:
        return every
    horizon, d = problem.horizon, problem.dimension
    return Schedule(
        horizon, batch_size_proposition_1(horizon, d, bar, found.rho_min, found.rho_max)
    )


def resolve_schedule(config: K) -> K:
    """Config with "every round" as the fixed schedule that it is."""
    if config.every_round and config.schedule != "fixed":
        return msgspec.structs.replace(config, schedule="fixed")
    return config


def build(config: FedUCBConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one feducb curve."""
    config = resolve_schedule(config)
    fixed = config.schedule == "fixed"
    schedule = fixed_schedule(config, problem) if fixed else Schedule(problem.horizon, 1)
    own = privatizers(config, problem, schedule.releases)
    noise = privatizer(config, schedule.releases, own, config.silos_met(problem))
    clip = config.bounds(published=False)
    federation = Federation(problem)
    plan, theory = plan_and_theory(config, federation, noise, schedule, clip, own)
    plan = replace(plan, drawn_once=config.noise_draws == "sum")
    source = source_text(config, noise, "Algorithm 1")
    made = _noise(config, problem, noise, own)
    plan, certificate = certify(plan, problem, theory, made, source)
    return System(
        "feducb", plan, certificate, _bound_curves(config, federation, noise), theory=theory
    )


def _bound_curves(
    config: FedUCBConfig, federation: Federation, noise: Privatizer | None
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """Bounds of Theorem 1 and Proposition 1, if they are about this run."""
    if config.schedule != "determinant" or config.radius != "proposition-2":
        return None
    found = constants(config, federation, noise)
    bar = threshold_of(config, federation, found)
    if not bar:
        return None
    return partial(centralised_bound_curves, config, federation.problem, found, bar)


def released_only(config: FedUCBConfig, schedule: Schedule) -> bool:
    """True if actions depend on synchronised statistics alone."""
    return config.lazy or (config.schedule == "fixed" and schedule.every_round)


def plan_and_theory(
    config: FedUCBConfig,
    federation: Federation,
    noise: Privatizer | None,
    schedule: Schedule,
    clip: Clip | None,
    own: tuple[Privatizer, ...] = (),
) -> tuple[Plan, Theory]:
    """Plan and theory of the silos that share one estimator.

    Parameters
    ----------
    config : FedUCBConfig
        The curve's keys.
    federation : Federation
        The silos, and the whole that they are a part of.
    noise : Privatizer or None
        The calibrated noise.
    schedule : Schedule
        The rounds of synchronisation; where data decide, each of them.
    clip : Clip or None
        Bounds that features and rewards are clipped to.
    own : tuple of Privatizer, optional
        Each silo's noise, where silos have budgets of their own.
    """
    problem = federation.problem
    made = _noise(config, problem, noise, own)
    found = constants(config, federation, noise, own)
    protocol = PROTOCOLS["silo-ldp-prefix" if noise else "none"]
    rule = trigger(config, federation, found, noise)
    if config.radius == "direct":
        plan, theory = assemble(
            config,
            problem,
            protocol,
            schedule,
            clip,
            made,
            only_released=released_only(config, schedule),
            ordered=config.schedule == "fixed",
        )
        return replace(plan, trigger=rule), theory
    only = released_only(config, schedule)
    theory = proposition_2(config, federation, found, clip, only, bool(own))
    plan = make_plan(config, problem, protocol, schedule, clip, theory, made)
    return replace(plan, trigger=rule), theory


def _noise(
    config: FedUCBConfig,
    problem: ProblemSpec,
    mechanism: Privatizer | None,
    own: tuple[Privatizer, ...] = (),
) -> Noise | None:
    """Noise of a federation for theory and plan; None without privacy."""
    if mechanism is None:
        return None
    std = NoiseStd(*mechanism.stds)
    if config.schedule == "fixed":
        distribution = NoiseDistribution(std, problem.silos, mechanism.variance_factors)
    else:
        # The data decide which release has which noise: all as the one with the most.
        most = max_prefix_nodes(mechanism.releases)
        distribution = NoiseDistribution(
            std, problem.silos, np.array([0.0, most]), counted=mechanism.releases
        )
    if not own:
        return Noise(mechanism, distribution, std)
    scales = tuple(p.noise_std / mechanism.noise_std for p in own)
    deltas = tuple(p.budget.delta for p in own)
    return Noise(
        mechanism,
        replace(distribution, noises=sum(f * f for f in scales)),
        std,
        silo_noise=scales,
        silo_epsilon=tuple(p.budget.epsilon for p in own),
        silo_delta=deltas if config.silo_delta is not None else (),
    )


def source_text(config: FedUCBConfig, noise: Privatizer | None, algorithm: str) -> str:
    """Papers and algorithms of the guarantee."""
    source = f"dubey-pentland-2020, {algorithm}"
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

#: Hops between all pairs of silos are kept, and a complete graph of so many takes seconds to check.
MAX_SILOS = 2000


class DecentralizedConfig(FedUCBConfig, frozen=True, kw_only=True):
    """Keys of a feducb-decentralized curve, beside those of feducb.

    Parameters
    ----------
    graph : str or tuple of (int, int), default "complete"
        The name of a graph over silos, or its edges.
    graph_seed : int, default 0
        Seed of a random graph.
    gamma : int, optional
        Time to live of a message in hops, and the number of estimators; by default the graph's
        diameter.
    """

    graph: str | tuple[tuple[int, int], ...] = "complete"
    graph_seed: int = 0
    gamma: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.silo_epsilon is not None:
            raise InputError(
                "silo_epsilon needs a server: in feducb-decentralized all silos have one noise"
            )
        if self.returning != 1:
            raise InputError(
                "returning needs a server: without one a user has one round in the federation"
            )
        if self.noise_draws == "sum":
            raise InputError(
                'noise_draws "sum" needs a server that adds up all silos, got it for '
                "feducb-decentralized, whose silos pass single messages on"
            )
        if isinstance(self.graph, str):
            choice("graph", self.graph, GRAPHS)
        integer("graph_seed", self.graph_seed, at_least=0, at_most=2**63 - 1)
        if self.gamma is not None:
            integer("gamma", self.gamma, at_least=1)
        named = self.batch_size is not None or self.release_rounds is not None
        if self.schedule == "fixed" and not named and not self.every_round:
            raise InputError("batch_size is required: an integer >= 1, in uses of an estimator")
        if self.batch_size == "theorem":
            raise InputError('batch_size "theorem" belongs to feducb: Proposition 1 has a server')


def build_decentralized(config: DecentralizedConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one feducb-decentralized curve."""
    if problem.silos > MAX_SILOS:
        raise InputError(f"silos must be <= {MAX_SILOS} without a server, got {problem.silos}")
    graph = Graph.of(config.graph, problem.silos, config.graph_seed)
    gamma = max(1, graph.diameter) if config.gamma is None else config.gamma
    if gamma > problem.horizon:
        raise InputError(f"gamma must be <= horizon ({problem.horizon}), got {gamma}")
    config = resolve_schedule(config)
    rounds = -(-problem.horizon // gamma)
    chosen = config.schedule == "fixed" and not config.every_round
    if chosen and isinstance(config.batch_size, int):
        size = integer("batch_size", config.batch_size, at_least=1)
        if size > rounds:
            raise InputError(
                f"batch_size must be <= {rounds}, the uses of an estimator in {problem.horizon} "
                f"rounds at gamma = {gamma}, got {size}"
            )
    elif chosen:
        config.batches(replace(problem, horizon=rounds))  # refuses what no estimator can keep

    def schedule_of(uses: int) -> Schedule:
        """Rounds of synchronisation of an estimator with so many uses."""
        if not chosen:
            return Schedule(uses, 1)
        if isinstance(config.batch_size, int):
            return Schedule(uses, config.batch_size)
        if config.release_rounds is not None:
            # A last batch that an estimator's uses cut short is not sent.
            kept = tuple(n for n in config.release_rounds if n <= uses)
            return Schedule.at(kept, uses) if kept else Schedule(uses, uses + 1)
        return config.batches(replace(problem, horizon=uses))

    noise = privatizer(config, schedule_of(rounds).releases)
    clip = config.bounds(published=False)
    shape = PeerPlan(graph, gamma, problem.horizon, problem.dimension, ())
    parts, theories = [], []
    alike: dict[tuple[int, int], tuple[Plan, Theory]] = {}
    cliques = graph.cliques(gamma)
    if config.radius == "direct":
        # Its bounds are made part by part, each with a share of the failure probability.
        share = config.failure_probability / (len(cliques) * gamma)
        config = msgspec.structs.replace(config, failure_probability=share)
    for clique in cliques:
        for estimator in range(gamma):
            own = replace(
                problem, silos=len(clique), horizon=shape.uses(estimator, problem.horizon)
            )
            federation = Federation(own, problem, gamma, len(cliques))
            # Parts of one size are alike, and some constants take long to compute.
            kind = own.silos, own.horizon
            if kind not in alike:
                schedule = schedule_of(own.horizon)
                alike[kind] = plan_and_theory(config, federation, noise, schedule, clip)
            plan, theory = alike[kind]
            parts.append(Part(clique, estimator, plan))
            theories.append(theory)
    # One part with an unproven bound leaves the whole unproven.
    theory = next((t for t in theories if not t.proven), theories[0])
    source = source_text(config, noise, "Algorithm 3")
    claim = Claim(source=source, caveats=theory.caveats)
    if noise is not None:
        claim = declared(noise, source, theory)
    sealing = {id(p.plan): sealed(replace(p.plan, privacy=claim)) for p in parts}
    made = replace(shape, parts=tuple(replace(p, plan=sealing[id(p.plan)]) for p in parts))
    bound_curves = None
    if config.schedule == "determinant":
        federation = Federation(problem, problem, gamma)
        found = constants(config, federation, noise)
        # Line 6's division by 1 + L^2 is no part of D.
        bar = 2.0 * threshold_of(config, federation, found)
        sizes = [len(clique) for clique in cliques]
        bound_curves = partial(
            decentralised_bound_curves, config, problem, found, bar, sizes, gamma
        )
    return System("feducb-decentralized", made, account(made, problem), bound_curves, theory=theory)


FEDUCB_DECENTRALIZED = Algorithm(
    id="feducb-decentralized",
    paper="dubey-pentland-2020",
    summary="FedUCB without a server: messages travel along a graph",
    config=DecentralizedConfig,
    build=build_decentralized,
)
