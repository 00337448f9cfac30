"""`plan`: bounds and noise first, then ever longer simulations of ever fewer candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._random import check_seed
from fastfed._validate import InputError, choice, integer, number, show
from fastfed.advice.answer import (
    BROKEN,
    READ,
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
    level,
    scalable,
)
from fastfed.advice.systems import (
    ALONE,
    ELSEWHERE,
    LESS,
    NOT_CENTRED,
    NOT_SHARED,
    TRUST,
    Choice,
    Question,
    Recipe,
    baseline,
    baselines,
    feducb_reason,
    made_of,
    near,
    noisier,
    recipes,
    trusted_text,
)
from fastfed.bandits import ProblemSpec
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
from fastfed.reporting.text import privacy_text
from fastfed.simulation.dispatch import check_threads
from fastfed.simulation.experiment import make_problem
from fastfed.simulation.systems import algorithm as registered
from fastfed.simulation.systems import check_kind, problem_spec

# ---- The search ----------------------------------------------------------------------------------

#: Shares of the budget: all candidates, the best few and their neighbours, the last ones, and the
#: break-even point.
SCREENED, REFINED, FINAL, THRESHOLDS = 0.3, 0.2, 0.3, 0.2
#: Candidates of a trust model that go on to the next stage.
KEPT, FINALISTS = 2, 2
#: Replicates of each stage, and the fewest where not even so many of the least silos fit.
REPLICATES = {"screened": (2, 1), "refined": (3, 2), "final": (6, 4)}
#: The most where silos are not alike, so that more rounds are simulated; no break-even is looked
#: for then, and the last stage has its share.
UNLIKE = {"screened": 1, "refined": 1, "final": 3}


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
    radius_multiplier: float = 1.0,
    colluders: int | None = None,
    intercept: float | None = None,
    seconds: float = 20.0,
    seed: int = 0,
    threads: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Advice:
    """Find the protocol, release and batches of least regret under one guarantee.

    All systems that give the guarantee are compared, first by noise and bounds, then by short
    simulations in which ever fewer of them stay. Every candidate's certificate is proven, with
    exactly calibrated noise; or conditional, where the environment itself breaks a condition,
    which ``notes`` name.

    Parameters
    ----------
    silos : int, optional
        M, at least 2; may be left to an environment that knows its own.
    horizon : int
        T, rounds of each silo.
    dimension : int, optional
        d, of the features; may be left to an environment that has one.
    epsilon, delta : float
        Guarantee of every user, the same for all candidates.
    actions : int
        K, actions of the sphere that is simulated where no environment is given.
    environment : Environment, dict, str or Path, optional
        Simulated in place of the sphere: an environment, its table as in a spec, or a spec file
        (TOML), whose [environment] is taken.
    trust : str or sequence of str, optional
        One or several of ``TRUST``; by default all, each with a verdict of its own.
    relation : {"replace", "zero-out"}
        Neighbours differ in one user, who is replaced (bounded DP, substitution), or whose
        contribution becomes zero, which is weaker.
    radius_multiplier : float
        Factor of all confidence radii; below 1 no regret bound is promised.
    colluders : int, optional
        t, silos of a secure sum whose noise is not counted; by default a third of all.
    intercept : float, optional
        kappa >= 1, where the last feature of the sphere is the constant 1 / sqrt(2 kappa) and
        declared as such, so that rewards may be centred. An environment has its own.
    seconds : float
        Work on one core, nominally. It decides by a fixed formula how much is simulated, so the
        answer is a function of the arguments alone, and a slower machine takes longer.
    seed : int
        Of all randomness.
    threads : int, optional
        Default: all processors. The answer does not depend on it.
    on_stage : callable, optional
        Called before each stage with a sentence that announces it.

    Returns
    -------
    Advice
        Candidates, baselines, and a verdict for each trust model.

    Raises
    ------
    InputError
        For bad input, and where no system can give the guarantee.

    Examples
    --------
    >>> a = plan(silos=10, horizon=400, dimension=3, epsilon=4.0, delta=1e-5, actions=5,
    ...          trust="central", seconds=0.1)
    >>> a.verdicts[0].trust, {c.trust for c in a.candidates}
    ('central', {'central'})
    """
    asked = _trusts(trust)
    simulated, table = _environment(environment, dimension, actions, intercept)
    horizon = integer("horizon", horizon, at_least=2, at_most=2**32 - 2)
    shared = make_problem(simulated, silos, horizon)
    facts = shared.facts
    check_kind(registered("private-fedlinucb"), simulated.kind, facts)
    assert isinstance(facts, EnvironmentSpec)
    if shared.silos < 2:
        raise InputError(f"silos must be >= 2: a single one has nobody to share with, got {silos}")
    choice("relation", relation, RELATIONS)
    problem = problem_spec(facts, shared.silos, horizon)
    assert isinstance(problem, ProblemSpec)
    question = Question(
        problem,
        number("epsilon", epsilon, above=0.0),
        number("delta", delta, above=0.0, below=1.0),
        relation,
        number("radius_multiplier", radius_multiplier, above=0.0),
        _colluders(colluders, shared.silos, asked),
        # Without an environment the sphere stands for another one, which may have no constant.
        centred=facts.intercept is not None and not (environment is None and intercept is None),
        differ=not scalable(simulated),
    )
    work = number("seconds", seconds, above=0.0)
    halving = SuccessiveHalving(
        simulated,
        shared.silos,
        horizon,
        facts.actions,
        check_seed(seed),
        check_threads(threads),
        on_stage,
    )
    notes = ((READ,) if facts.real_records else ()) + _unequal(simulated, shared.silos, horizon)
    run = _Search(question, asked, halving, work, notes)
    run.screen()
    run.refine()
    run.finish()
    return run.advice(table)


def _trusts(trust: str | Sequence[str] | None) -> list[str]:
    asked = list(TRUST) if trust is None else [trust] if isinstance(trust, str) else list(trust)
    for name in asked:
        choice("trust", name, list(TRUST))
    if not asked:
        raise InputError(f"trust must name at least one of {', '.join(TRUST)}")
    return [name for name in TRUST if name in asked]


def _colluders(colluders: int | None, silos: int, asked: list[str]) -> int | None:
    """The silos of a secure sum that are not counted, checked."""
    if colluders is None:
        return None
    if "secure-sum" not in asked:
        raise InputError('colluders belongs to trust "secure-sum", which was not asked for')
    integer("colluders", colluders, at_least=0)
    if colluders >= silos:
        raise InputError(f"colluders must be below the number of silos ({silos}), got {colluders}")
    return colluders


def _unequal(environment: Environment, silos: int, horizon: int) -> tuple[str, ...]:
    """A note where silos hold unequal numbers of records, as far as the environment tells."""
    if not isinstance(environment, PoolEnvironment):
        return ()
    starts = environment.pool(silos).silo_starts
    held = [int(n) for n in np.diff(starts)]
    # Blocks of n records that M does not divide differ by one.
    return (unequal_text(held, horizon),) if max(held) > min(held) + 1 else ()


def _environment(
    environment: Environment | dict[str, Any] | str | Path | None,
    dimension: int | None,
    actions: int,
    intercept: float | None,
) -> tuple[Environment, dict[str, Any]]:
    """The environment to simulate, and its table in a spec."""
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
        raise InputError("intercept belongs to the sphere, the environment has its own")
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
        if isinstance(reward, dict) and reward.get("kind") != "gaussian":
            table["reward"] = {"kind": reward["kind"]}
    else:
        raise InputError(f"environment must be an environment or a table, got {show(environment)}")
    has = getattr(environment, "dimension", dimension)
    if dimension is not None and has != dimension:
        raise InputError(f"dimension must be {has}, the environment's, got {dimension}")
    return environment, table


class _Search:
    """The stages of one search."""

    def __init__(
        self,
        question: Question,
        asked: list[str],
        halving: SuccessiveHalving,
        seconds: float,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.question, self.asked, self.halving, self.seconds = question, asked, halving, seconds
        self.first_notes = notes
        self.left_out: dict[str, str] = {}
        self.made: dict[str, list[Choice]] = {trust: [] for trust in asked}
        self.remarks: dict[str, str] = {}
        self.baselines = baselines(question)

    def add(self, trust: str, wanted: Sequence[Recipe]) -> list[Choice]:
        """Add candidates of these recipes; of those at the same rounds, the least noisy go on."""
        known = {one.label for one in self.made[trust]}
        made, failed = made_of(self.question, trust, wanted)
        made = [one for one in made if one.label not in known]
        self.left_out.update(failed)
        self.made[trust] += made
        going = []
        for one in made:
            other = next((o for o in made if noisier(one, o)), None)
            if other is None:
                going.append(one)
            else:
                self.remarks[one.label] = f"not played: noisier than {other.label}"
        return going

    def stage(self, name: str, going: Sequence[Contender], share: float) -> None:
        """Simulate a stage for its share of the seconds."""
        replicates, fewest = REPLICATES[name]
        if not scalable(self.halving.environment):
            replicates = UNLIKE[name]
            share += THRESHOLDS if name == "final" else 0.0
        self.size = self.halving.size(going, share * self.seconds, replicates, fewest)
        self.halving.run(name, going, self.size)

    def screen(self) -> None:
        """Simulate all candidates of a coarse grid of batches."""
        going = [
            one for trust in self.asked for one in self.add(trust, recipes(self.question, trust))
        ]
        self.asked = [trust for trust in self.asked if self.made[trust]]
        if not self.asked:
            name, why = next(iter(self.left_out.items()))
            raise InputError(f"no system gives this guarantee, not even {name}: {why}")
        self.stage("screened", [contender(one) for one in going], SCREENED)

    def refine(self) -> None:
        """Simulate the best few of each trust model, and what differs from the best in one thing.

        The best is also simulated with the bonus 1, whose bound has no part for a ledger.
        """
        going: list[Choice] = []
        for trust in self.asked:
            ranked = self.ranked(trust)
            best = ranked[0]
            going += ranked[:KEPT] + self.add(trust, near(self.question, best))
            if best.variant.bonus < 1.0:
                full = best.with_bonus(1.0)
                self.made[trust].append(full)
                going.append(full)
        self.stage("refined", [contender(one) for one in going], REFINED)

    def finish(self) -> None:
        """Simulate the last ones beside the baselines."""
        going = [one for trust in self.asked for one in self.ranked(trust, "refined")[:FINALISTS]]
        contenders = [contender(one) for one in going]
        for name, _, keys in self.baselines:
            plan = baseline(self.question, keys).plan
            contenders.append(Contender(name, plan, federated=name == "no privacy"))
        self.stage("final", contenders, FINAL)

    def ranked(self, trust: str, stage: str | None = None) -> list[Choice]:
        """Simulated candidates of a trust model (last in this stage), least regret first."""
        regrets = self.halving.regrets
        found = [
            one
            for one in self.made[trust]
            if one.label in regrets and stage in (None, regrets[one.label].stage)
        ]
        return sorted(found, key=lambda one: regrets[one.label].mean)

    def advice(self, table: dict[str, Any]) -> Advice:
        """The answer, with everything that was found."""
        problem, question = self.question.problem, self.question
        local = self.made.get("silo-ldp", [])
        feducb = "adds noise at the silos, and that trust was not asked for"
        if local:
            feducb = feducb_reason(question, min(local, key=lambda c: c.plan.releases))
        left_out = {**ELSEWHERE, "feducb": feducb}
        if not question.centred:
            left_out["reward_centre"] = NOT_CENTRED
        if not question.differ:
            left_out["share"] = NOT_SHARED
        rows = []
        for trust in self.asked:
            order = self.ranked(trust, "final")
            order += [o for o in self.ranked(trust, "refined") + self.ranked(trust, "screened")]
            order += [o for o in self.made[trust] if o.label not in self.halving.regrets]
            rows += [self.row(one) for one in order]
        colluders = problem.silos // 3 if question.colluders is None else question.colluders
        return Advice(
            silos=problem.silos,
            horizon=problem.horizon,
            dimension=problem.dimension,
            epsilon=question.epsilon,
            delta=question.delta,
            relation=question.relation,
            unit="user",
            radius_multiplier=question.radius_multiplier,
            environment=table,
            seed=self.halving.seed,
            scaling=scaling_text(self.size, problem.silos, problem.horizon, problem.linear_by_silo),
            candidates=tuple(rows),
            baselines=tuple(
                Baseline(name, label, self.halving.regrets[name], keys, self.privacy(keys))
                for name, label, keys in self.baselines
            ),
            verdicts=tuple(self.verdict(trust) for trust in self.asked),
            left_out={**left_out, **self.left_out},
            notes=self.notes,
            colluders=colluders if "secure-sum" in self.asked else None,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that stand before the answer."""
        failed = tuple(f"{BROKEN}{c.text}" for c in self.question.problem.conditions if not c.holds)
        return self.first_notes + failed

    def privacy(self, keys: dict[str, Any]) -> str:
        """Short text of a baseline's certificate."""
        own = {key: value for key, value in keys.items() if key != "algorithm"}
        system = registered(keys["algorithm"]).make(own, self.question.problem)
        return privacy_text(system.certificate.to_builtins()).short

    def row(self, one: Choice) -> Candidate:
        """A candidate as it stands in the answer."""
        stated, plan, bound = one.system.certificate, one.plan, one.bound
        assert stated.exact is not None
        bits = plan.bits_up_of(plan.releases) + plan.bits_down_of(plan.releases)
        return Candidate(
            label=one.label,
            trust=one.trust,
            protocol=one.protocol,
            release=one.release,
            batch_size=one.batch_size,
            epsilon=stated.exact.epsilon,
            delta=stated.exact.delta,
            node_std=dict(stated.noise_std),
            noise_std=one.noise_std,
            bound=bound,
            vacuous=None if bound is None else bound >= plan.horizon,
            bytes_sent=-(-bits // 8),
            regret=self.halving.regrets.get(one.label),
            remark=self.remarks.get(one.label, ""),
            keys=one.keys,
            batches=one.batches_text,
            releases=plan.releases,
            bonus=one.variant.bonus,
            centred=one.variant.centred,
            share_until=one.variant.until,
            fallback_epsilon=one.fallback,
        )

    def verdict(self, trust: str) -> Verdict:
        """Compare the best of the last stage with the others and with each silo alone."""
        halving, question = self.halving, self.question
        best, *others = self.ranked(trust, "final")
        same = tuple(o.label for o in others if level(halving.difference(best.label, o.label)))
        # Like with like: proven with proven, and else whatever each silo alone does best.
        alone = min(
            (n for n in (ALONE, LESS) if n in halving.regrets and (n == ALONE or not best.bound)),
            key=lambda name: halving.regrets[name].mean,
        )
        against = halving.difference(best.label, alone)
        helps = against[0] < 0.0 and not level(against)
        share = THRESHOLDS * self.seconds / len(self.asked)
        found: tuple[float | None, int | None] = (None, None)
        looked = not helps and scalable(halving.environment)
        if looked:
            found = break_even(question, best, halving, share, halving.regrets[alone].mean)
        trusted = trusted_text(trust, question.problem.silos, question.colluders)
        verdict = Verdict(
            trust, trusted, best.label, same, against, helps, *found, sentence="", alone=alone
        )
        sentence = verdict_text(
            verdict,
            halving.regrets,
            budget=(question.epsilon, question.delta),
            looked=looked,
            differ=question.differ,
            fallback=best.fallback,
        )
        return dataclasses.replace(verdict, sentence=sentence)


def contender(one: Choice) -> Contender:
    """A candidate as a contender."""
    return Contender(one.label, one.plan, one.node)
