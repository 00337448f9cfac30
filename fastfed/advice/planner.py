"""`plan`: compare systems by noise and bounds, then by longer simulations of fewer candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._random import check_seed
from fastfed._validate import InputError, choice, integer, number, show, with_example
from fastfed.advice.answer import (
    FAILS_FOR_ALL,
    ONE_ACTION,
    REAL_RECORDS,
    Advice,
    Baseline,
    Candidate,
    Verdict,
    scaling_text,
    unequal_text,
    verdict_text,
)
from fastfed.advice.successive_halving import (
    Contender,
    SuccessiveHalving,
    break_even,
    scalable,
    within_error,
)
from fastfed.advice.systems import (
    ALONE,
    LESS,
    NEVER_CANDIDATES,
    SIEVES,
    TRUST,
    TRUST_WITH_REWARDS_ONLY,
    TRUST_WITHOUT_ARMS,
    TRUST_WITHOUT_CANDIDATES,
    WHY_NO_LOCAL_ROUNDS,
    WHY_NOT_CENTRED,
    Choice,
    Question,
    Recipe,
    baseline,
    baselines,
    build_candidates,
    feducb_reason,
    greedier_recipes,
    neighbours,
    noisier,
    recipes,
    trusted_text,
)
from fastfed.bandits import ProblemSpec
from fastfed.bandits.system import PROTECTS
from fastfed.environments import (
    ENVIRONMENTS,
    Environment,
    EnvironmentSpec,
    Sphere,
    environment_from_spec,
)
from fastfed.environments.pool import PoolEnvironment
from fastfed.experiments.specs import environment_table
from fastfed.privacy.sensitivity import RELATIONS
from fastfed.protocols.account import USER_BIT
from fastfed.reporting.text import privacy_text
from fastfed.simulation.dispatch import check_threads
from fastfed.simulation.experiment import make_problem
from fastfed.simulation.systems import algorithm as registered
from fastfed.simulation.systems import check_kind, problem_spec

# ---- The search ----------------------------------------------------------------------------------

#: Shares of the time for simulations: all candidates, the best few and their neighbours, the
#: finalists, and the break-even point.
SCREENED, REFINED, FINAL, THRESHOLDS = 0.25, 0.25, 0.4, 0.1
#: A stage that cannot simulate all rounds has two parts. FIRST_PART is the share of its time for
#: the first part, with all systems and few rounds. Then CONTINUE systems of each trust model
#: remain.
FIRST_PART, CONTINUE = 0.4, 3
#: Candidates that are expected to waste more than MAX_WASTED_RATIO times the fewest rounds are not
#: simulated. In the settings of docs/plan.md no candidate above 1.5 was the best of its trust
#: model.
MAX_WASTED_RATIO = 1.7
#: Nominal seconds to build one system, and the number of systems of each trust model that later
#: stages build.
BUILD_SECONDS, LATER_SYSTEMS = 0.01, 10
#: Number of candidates of each trust model in the second and in the last stage.
REFINED_PER_TRUST, FINALISTS_PER_TRUST = 2, 2
#: Replicates of each stage: the usual number, and the minimum if time is short.
REPLICATES = {"screened": (2, 1), "refined": (3, 2), "final": (6, 4)}
#: Replicates of each stage if silos differ: fewer, so that more rounds can be simulated. Then no
#: break-even point is searched, and the last stage also uses the time for that search.
REPLICATES_IF_SILOS_DIFFER = {"screened": 1, "refined": 1, "final": 3}


@with_example("fastfed.plan(silos=50, horizon=400, dimension=3, epsilon=1.0, delta=1e-5)")
def plan(
    *,
    silos: int | None = None,
    horizon: int,
    dimension: int | None = None,
    epsilon: float,
    delta: float,
    actions: int = 100,
    environment: Environment | dict[str, Any] | str | Path | None = None,
    trust: str | Sequence[str] | None = None,
    relation: str = "replace",
    protects: str = "user",
    radius_multiplier: float = 1.0,
    colluders: int | None = None,
    intercept: float | None = None,
    seconds: float = 3.0,
    seed: int = 0,
    threads: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Advice:
    """Find the protocol, release and batch sizes of least regret under a privacy guarantee.

    All systems that give the guarantee are compared, first by noise and bounds, then by successive
    halving with short simulations. Every candidate's noise is calibrated exactly, and its
    certificate is proven. If the environment violates a condition, certificates are conditional and
    ``notes`` lists the condition.

    Parameters
    ----------
    silos : int, optional
        M, at least 2. Default: the number of silos of the environment, if it has one.
    horizon : int
        T, the number of rounds of each silo.
    dimension : int, optional
        d, the number of features. Default: the dimension of the environment, if it has one.
    epsilon, delta : float
        Guarantee for every user, the same for all candidates; delta is 0 under trust "user-bit".
    actions : int
        K, the number of actions of the sphere environment; ignored if an environment is given.
    environment : Environment, dict, str or Path, optional
        Environment to simulate instead of the sphere: an environment, its table as in a spec, a
        spec file (TOML) with an [environment] table, or the id of a figure (`fastfed list
        figures`), whose environment is then simulated.
    trust : str or sequence of str, optional
        One or several names in ``TRUST``. Default: all trust models that can protect what
        ``protects`` names, except those that do not support arms if the environment has arms. Each
        trust model gets one verdict.
    relation : {"replace", "zero-out"}
        Neighbouring datasets differ in one user, who is replaced (bounded DP), or whose
        contribution becomes zero, which is a weaker guarantee.
    protects : {"user", "reward"}
        What is private: a user's contexts and rewards, or rewards only, if contexts are public.
        Trust "user-bit" needs "reward", and "shuffle" and "secure-sum" need "user".
    radius_multiplier : float
        Factor on all confidence radii. Below 1, no regret bound is proven.
    colluders : int, optional
        t, the number of silos of a secure sum whose noise is not counted. Default: a third of all.
    intercept : float, optional
        kappa >= 1. The last feature of the sphere is then the declared constant 1 / sqrt(2 kappa),
        so that rewards can be centred. Not allowed with an environment, which declares its
        intercept.
    seconds : float
        Work in seconds of one core, all of it: systems, simulations and break-even points. A fixed
        formula derives the amount of simulation from it, so the answer depends only on the
        arguments, and a slower machine takes longer. Accounts of shuffled batches take some seconds
        more the first time; then they are cached.
    seed : int
        Seed of all randomness.
    threads : int, optional
        Number of threads. Default: all processors. The answer does not depend on it.
    on_stage : callable, optional
        Called before each stage with a sentence that describes the stage.

    Returns
    -------
    Advice
        Candidates, baselines, and one verdict for each trust model.

    Raises
    ------
    InputError
        If an argument is invalid, or no system can give the guarantee.

    Examples
    --------
    >>> a = plan(silos=10, horizon=400, dimension=3, epsilon=4.0, delta=1e-5, actions=5,
    ...          trust="central", seconds=0.1)
    >>> a.verdicts[0].trust, {c.trust for c in a.candidates}
    ('central', {'central'})
    """
    simulated, table = _environment(environment, dimension, actions, intercept)
    horizon = integer("horizon", horizon, at_least=2, at_most=2**32 - 2)
    shared = make_problem(simulated, silos, horizon)
    environment_facts = shared.facts
    check_kind(registered("private-fedlinucb"), simulated.kind, environment_facts)
    assert isinstance(environment_facts, EnvironmentSpec)
    choice("protects", protects, PROTECTS)
    trusts = _trusts(trust, environment_facts.arms, protects)
    if shared.silos < 2:
        raise InputError(f"silos must be >= 2: a single silo has nobody to share with, got {silos}")
    choice("relation", relation, RELATIONS)
    problem = problem_spec(environment_facts, shared.silos, horizon)
    assert isinstance(problem, ProblemSpec)
    question = Question(
        problem,
        number("epsilon", epsilon, above=0.0),
        number("delta", delta, above=0.0, below=1.0),
        relation,
        number("radius_multiplier", radius_multiplier, above=0.0),
        _colluders(colluders, shared.silos, trusts),
        # The default sphere stands for an unknown environment, which may have no constant feature.
        centred=environment_facts.intercept is not None
        and not (environment is None and intercept is None),
        differ=not scalable(simulated) and not environment_facts.arms,
        protects=protects,
    )
    time_budget = number("seconds", seconds, above=0.0)
    halving = SuccessiveHalving(
        simulated,
        shared.silos,
        horizon,
        environment_facts.actions,
        check_seed(seed),
        check_threads(threads),
        on_stage,
    )
    notes = (
        ((REAL_RECORDS,) if environment_facts.real_records else ())
        + ((ONE_ACTION,) if environment_facts.actions == 1 else ())
        + _unequal(simulated, shared.silos, horizon)
    )
    search = _Search(question, trusts, halving, time_budget, notes)
    search.screen()
    search.refine()
    search.finish()
    return search.advice(table)


def _trusts(trust: str | Sequence[str] | None, arms: bool, protects: str) -> list[str]:
    """Return the requested trust models, checked, in the order of ``TRUST``."""
    allowed = [
        name
        for name in TRUST
        if (name in TRUST_WITH_REWARDS_ONLY if protects == "reward" else name != USER_BIT)
        and not (arms and name in TRUST_WITHOUT_ARMS)
    ]
    requested = allowed if trust is None else [trust] if isinstance(trust, str) else list(trust)
    for name in requested:
        choice("trust", name, list(TRUST))
        if name in allowed:
            continue
        text = f"trust must be one of {', '.join(allowed)}"
        if arms and name in TRUST_WITHOUT_ARMS:
            raise InputError(
                f'{text} for arms, got "{name}": its protocols have no account for arms'
            )
        raise InputError(f'{text} where protects is "{protects}", got "{name}"')
    if not requested:
        raise InputError(f"trust must name at least one of {', '.join(allowed)}")
    return [name for name in TRUST if name in requested]


def _colluders(colluders: int | None, silos: int, trusts: list[str]) -> int | None:
    """Return the number of colluding silos in a secure sum, after checking it against M."""
    if colluders is None:
        return None
    if "secure-sum" not in trusts:
        raise InputError('colluders belongs to trust "secure-sum", which was not requested')
    integer("colluders", colluders, at_least=0)
    if colluders >= silos:
        raise InputError(f"colluders must be below the number of silos ({silos}), got {colluders}")
    return colluders


def _unequal(environment: Environment, silos: int, horizon: int) -> tuple[str, ...]:
    """Return a note if silos of a record pool hold unequal numbers of records."""
    if not isinstance(environment, PoolEnvironment):
        return ()
    starts = environment.pool(silos).silo_starts
    records_per_silo = [int(n) for n in np.diff(starts)]
    # Equal shares of n records differ by one record if M does not divide n.
    return (
        (unequal_text(records_per_silo, horizon),)
        if max(records_per_silo) > min(records_per_silo) + 1
        else ()
    )


def _environment(
    environment: Environment | dict[str, Any] | str | Path | None,
    dimension: int | None,
    actions: int,
    intercept: float | None,
) -> tuple[Environment, dict[str, Any]]:
    """Return the environment to simulate, and its table in a spec."""
    if environment is None:
        if dimension is None:
            raise InputError("dimension is required, or an environment that has one")
        d = integer("dimension", dimension, at_least=1)
        k = integer("actions", actions, at_least=1)
        table: dict[str, Any] = {"kind": "sphere", "dimension": d, "actions": k}
        if intercept is None:
            return Sphere(dimension=d, actions=k), table
        kappa = number("intercept", intercept, at_least=1.0)
        return Sphere(dimension=d, actions=k, intercept=kappa), {**table, "intercept": kappa}
    if intercept is not None:
        raise InputError(
            "intercept belongs to the sphere; an environment declares its own intercept"
        )
    if isinstance(environment, str) and environment in ENVIRONMENTS:
        raise InputError(
            f"environment must be a spec file, an environment or its table, got "
            f'{show(environment)}: write {{"kind": "{environment}"}}'
        )
    if isinstance(environment, (str, Path)):
        environment = environment_table(environment)
    if isinstance(environment, dict):
        table, environment = dict(environment), environment_from_spec(environment)
    elif hasattr(environment, "facts"):
        table = environment.describe()
        reward = table.get("reward")
        # In a spec, only Gaussian rewards have a standard deviation.
        if isinstance(reward, dict) and reward.get("kind") != "gaussian":
            table["reward"] = {"kind": reward["kind"]}
    else:
        raise InputError(f"environment must be an environment or a table, got {show(environment)}")
    environment_dimension = getattr(environment, "dimension", dimension)
    if dimension is not None and environment_dimension != dimension:
        raise InputError(
            f"dimension must be {environment_dimension}, the environment's, got {dimension}"
        )
    return environment, table


class _Search:
    """The search of one call of `plan`: its stages, candidates and results so far."""

    def __init__(
        self,
        question: Question,
        trust_models: list[str],
        halving: SuccessiveHalving,
        seconds: float,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.question, self.trust_models = question, trust_models
        self.halving, self.seconds = halving, seconds
        self.first_notes = notes
        self.left_out: dict[str, str] = {}
        self.candidates: dict[str, list[Choice]] = {trust: [] for trust in trust_models}
        self.remarks: dict[str, str] = {}
        self.baselines = baselines(question)

    def add(self, trust: str, recipes_to_add: Sequence[Recipe]) -> list[Choice]:
        """Build candidates from recipes and store them; return the candidates to simulate.

        Two kinds are not simulated: a candidate that is noisier than a different one with the same
        batches, and a candidate that is expected to waste too many rounds. The limit is
        `MAX_WASTED_RATIO` times the smallest number that a candidate of this trust model is
        expected to waste. ``remarks`` gives the reasons.
        """
        known_labels = {candidate.label for candidate in self.candidates[trust]}
        candidates, failed = build_candidates(self.question, trust, recipes_to_add)
        candidates = [candidate for candidate in candidates if candidate.label not in known_labels]
        self.left_out.update(failed)
        self.candidates[trust] += candidates
        # The estimate of wasted rounds is not for candidates with local rounds, which do not depend
        # on later releases, nor for those without noise on sums.
        comparable = [c for c in self.candidates[trust] if c.variant.until is None and c.has_noise]
        least = min(comparable, key=lambda c: c.expected_loss, default=None)
        to_simulate = []
        for candidate in candidates:
            less_noisy = next((rival for rival in candidates if noisier(candidate, rival)), None)
            if less_noisy is not None:
                self.remarks[candidate.label] = f"not simulated: noisier than {less_noisy.label}"
            elif (
                least is not None
                and candidate in comparable
                and candidate.expected_loss > MAX_WASTED_RATIO * least.expected_loss
            ):
                self.remarks[candidate.label] = (
                    f"not simulated: noise is expected to waste {candidate.expected_loss:.3g} "
                    f"rounds, and {least.expected_loss:.3g} with {least.label}"
                )
            else:
                to_simulate.append(candidate)
        return to_simulate

    def stage(self, name: str, contenders: Sequence[Contender], share: float) -> None:
        """Simulate one stage of the search, with ``share`` of the time budget.

        If silos are alike (`scalable`) and the time does not suffice for all rounds, every stage
        but the last one ("final") has two parts: all contenders over few rounds, then the best of
        each trust model over more rounds. If silos may differ, the last stage also gets the share
        `THRESHOLDS`, because no break-even point is searched.
        """
        halving = self.halving
        replicates, fewest = REPLICATES[name]
        if not scalable(halving.environment):
            replicates = REPLICATES_IF_SILOS_DIFFER[name]
            share += THRESHOLDS if name == "final" else 0.0
        seconds = share * self.seconds
        self.size = halving.size(contenders, seconds, replicates, fewest)
        if name != "final" and scalable(halving.environment) and self.size.rounds < halving.horizon:
            first = halving.size(contenders, FIRST_PART * seconds, 1, 1)
            halving.run(name, contenders, first)
            contenders = self.continuing(contenders)
            self.size = halving.size(contenders, (1.0 - FIRST_PART) * seconds, replicates, fewest)
            if self.size.rounds <= first.rounds:
                return
        halving.run(name, contenders, self.size)

    def continuing(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Return, for each trust model, the `CONTINUE` contenders with the least regret so far."""
        names = {contender.name for contender in contenders}
        best: set[str] = set()
        for trust in self.trust_models:
            simulated = [c.label for c in self.candidates[trust] if c.label in names]
            simulated.sort(key=lambda label: self.halving.regrets[label].mean)
            best.update(simulated[:CONTINUE])
        return [contender for contender in contenders if contender.name in best]

    def screen(self) -> None:
        """Simulate the first candidates of each trust model, on a coarse grid of batch sizes."""
        to_simulate = [
            candidate
            for trust in self.trust_models
            for candidate in self.add(trust, recipes(self.question, trust))
        ]
        self.trust_models = [trust for trust in self.trust_models if self.candidates[trust]]
        if not self.trust_models:
            name, reason = next(iter(self.left_out.items()))
            raise InputError(f"no system gives this guarantee, not even {name}: {reason}")
        systems_to_build = len(to_simulate) + LATER_SYSTEMS * len(self.trust_models)
        self.seconds = max(self.seconds - BUILD_SECONDS * systems_to_build, 0.5 * self.seconds)
        self.stage("screened", [Contender.of(candidate) for candidate in to_simulate], SCREENED)

    def refine(self) -> None:
        """Simulate the best few candidates of each trust model, and variants of them."""
        to_simulate: list[Choice] = []
        for trust in self.trust_models:
            ranked = self.ranked(trust)
            best = ranked[0]
            to_simulate += ranked[:REFINED_PER_TRUST] + self.add(
                trust, neighbours(self.question, best)
            )
            sieve_variants = [best.with_sieve(m) for m in SIEVES] if self.question.sieves else []
            # The best batches may depend on the sieve, so try the smallest factor m' of the sieve
            # with the next best candidates too.
            smallest_sieve = SIEVES[-1]
            for other in ranked[1:REFINED_PER_TRUST]:
                if self.question.sieves:
                    sieve_variants.append(other.with_sieve(smallest_sieve))
                to_simulate += self.add(
                    trust, greedier_recipes(self.question, other, (smallest_sieve,))
                )
            self.candidates[trust] += sieve_variants
            to_simulate += sieve_variants
        self.stage("refined", [Contender.of(candidate) for candidate in to_simulate], REFINED)

    def finish(self) -> None:
        """Simulate the finalists together with the baselines."""
        finalists = [
            candidate
            for trust in self.trust_models
            for candidate in self.ranked(trust, "refined")[:FINALISTS_PER_TRUST]
        ]
        contenders = [Contender.of(candidate) for candidate in finalists]
        for name, _, keys in self.baselines:
            plan = baseline(self.question, keys).plan
            # Of the baselines, only the one without privacy shares data.
            contenders.append(Contender(name, plan, federated=name == "no privacy"))
        self.stage("final", contenders, FINAL)

    def ranked(self, trust: str, stage: str | None = None) -> list[Choice]:
        """Return the simulated candidates of a trust model, least regret first.

        Candidates that were simulated for fewer rounds come last. With ``stage``, return only
        candidates whose last simulation was in this stage.
        """
        regrets = self.halving.regrets
        simulated = [
            candidate
            for candidate in self.candidates[trust]
            if candidate.label in regrets and stage in (None, regrets[candidate.label].stage)
        ]
        return sorted(simulated, key=lambda c: (-regrets[c.label].rounds, regrets[c.label].mean))

    def advice(self, table: dict[str, Any]) -> Advice:
        """Return the answer of `plan`, from the results of all stages."""
        problem, question = self.question.problem, self.question
        silo_ldp_candidates = self.candidates.get("silo-ldp", [])
        feducb_text = "adds noise at the silos, and that trust was not requested"
        if question.protects == "reward":
            feducb_text = (
                "its schedule depends on contexts and bits, so few silos cannot represent all: "
                "simulate it (docs/user-bit.md)"
            )
        elif problem.arms:
            feducb_text = "it needs contexts, and arms have none"
        elif silo_ldp_candidates:
            feducb_text = feducb_reason(
                question, min(silo_ldp_candidates, key=lambda c: c.plan.releases)
            )
        left_out = {
            **TRUST_WITHOUT_CANDIDATES[question.protects],
            **NEVER_CANDIDATES,
            "feducb": feducb_text,
        }
        if not question.centred:
            left_out["reward_centre"] = WHY_NOT_CENTRED
        if not question.differ:
            left_out["share"] = WHY_NO_LOCAL_ROUNDS
        rows = []
        for trust in self.trust_models:
            order = [
                candidate
                for stage in ("final", "refined", "screened")
                for candidate in self.ranked(trust, stage)
            ]
            order += [
                candidate
                for candidate in self.candidates[trust]
                if candidate.label not in self.halving.regrets
            ]
            rows += [self.row(entry) for entry in order]
        colluders = problem.silos // 3 if question.colluders is None else question.colluders
        return Advice(
            silos=problem.silos,
            horizon=problem.horizon,
            dimension=problem.dimension,
            epsilon=question.epsilon,
            delta=question.delta,
            relation=question.relation,
            unit=question.protects,
            radius_multiplier=question.radius_multiplier,
            environment=table,
            seed=self.halving.seed,
            scaling=scaling_text(self.size, problem.silos, problem.horizon, problem.linear_by_silo),
            candidates=tuple(rows),
            baselines=tuple(
                Baseline(name, label, self.halving.regrets[name], keys, self.privacy(keys))
                for name, label, keys in self.baselines
            ),
            verdicts=tuple(self.verdict(trust) for trust in self.trust_models),
            left_out={**left_out, **self.left_out},
            notes=self.notes,
            colluders=colluders if "secure-sum" in self.trust_models else None,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes before the answer, on real records, unequal silos and violated conditions."""
        failed = tuple(
            f"{FAILS_FOR_ALL}{c.text}" for c in self.question.problem.conditions if not c.holds
        )
        return self.first_notes + failed

    def privacy(self, keys: dict[str, Any]) -> str:
        """Return the short privacy text of the system with these keys of a curve."""
        settings = {key: value for key, value in keys.items() if key != "algorithm"}
        system = registered(keys["algorithm"]).make(settings, self.question.problem)
        return privacy_text(system.certificate.to_builtins()).short

    def row(self, candidate: Choice) -> Candidate:
        """Return the entry of a candidate in the answer, with its regret and its guarantee."""
        certificate, plan, bound = candidate.system.certificate, candidate.plan, candidate.bound
        assert certificate.exact is not None
        bits = plan.bits_up_of(plan.releases) + plan.bits_down_of(plan.releases)
        return Candidate(
            label=candidate.label,
            trust=candidate.trust,
            protocol=candidate.protocol,
            release=candidate.release,
            batch_size=candidate.batch_size,
            epsilon=certificate.exact.epsilon,
            delta=certificate.exact.delta,
            node_std=dict(certificate.noise_std),
            noise_std=candidate.noise_std,
            bound=bound,
            vacuous=None if bound is None else bound >= plan.horizon,
            bytes_sent=-(-bits // 8),
            regret=self.halving.regrets.get(candidate.label),
            remark=self.remarks.get(candidate.label, ""),
            keys=candidate.keys,
            batches=candidate.batches_text,
            releases=plan.releases,
            bonus=candidate.plan.ranking,
            centred=candidate.variant.centred,
            share_until=candidate.variant.until,
            fallback_epsilon=candidate.fallback,
        )

    def verdict(self, trust: str) -> Verdict:
        """Return the verdict: the best candidate compared with the others and with silos alone."""
        halving, question = self.halving, self.question
        best, *others = self.ranked(trust, "final")
        not_worse = tuple(
            other.label
            for other in others
            if within_error(halving.difference(best.label, other.label))
        )
        # The better one of the simulated local baselines, which share no data.
        local_baseline = min(
            (name for name in (ALONE, LESS) if name in halving.regrets),
            key=lambda name: halving.regrets[name].mean,
        )
        # Mean of (best - local baseline), and its standard error.
        difference_to_alone = halving.difference(best.label, local_baseline)
        sharing_helps = difference_to_alone[0] < 0.0 and not within_error(difference_to_alone)
        seconds_share = THRESHOLDS * self.seconds / len(self.trust_models)
        # The least epsilon and the least number of silos at which sharing helps.
        pays_from: tuple[float | None, int | None] = (None, None)
        searched = not sharing_helps and scalable(halving.environment)
        if searched:
            pays_from = break_even(
                question, best, halving, seconds_share, halving.regrets[local_baseline].mean
            )
        trusted = trusted_text(trust, question.problem.silos, question.colluders)
        verdict = Verdict(
            trust,
            trusted,
            best.label,
            not_worse,
            difference_to_alone,
            sharing_helps,
            *pays_from,
            sentence="",
            alone=local_baseline,
        )
        sentence = verdict_text(
            verdict,
            halving.regrets,
            budget=(question.epsilon, question.delta),
            searched=searched,
            differ=question.differ,
            fallback=best.fallback,
        )
        return dataclasses.replace(verdict, sentence=sentence)
