"""`plan`: bounds and noise first, then ever longer simulations of ever fewer candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfed._random import check_seed
from fastfed._validate import InputError, choice, integer, number, show
from fastfed.advice.successive_halving import (
    Contender,
    SuccessiveHalving,
    break_even,
    level,
    scalable,
)
from fastfed.advice.systems import (
    BROKEN,
    ELSEWHERE,
    READ,
    TRUST,
    Advice,
    Baseline,
    Candidate,
    Choice,
    Question,
    Regret,
    Verdict,
    baseline,
    batch_sizes,
    candidates,
    feducb_reason,
    noisier,
)
from fastfed.bandits import ProblemSpec
from fastfed.bandits.bounds import batch_size_corollary_5_2
from fastfed.environments import Environment, EnvironmentSpec, Sphere, environment_from_spec
from fastfed.experiments.specs import environment_table
from fastfed.privacy.sensitivity import RELATIONS
from fastfed.reporting.table import plus_minus
from fastfed.reporting.text import privacy_text
from fastfed.simulation.dispatch import check_threads
from fastfed.simulation.experiment import make_problem
from fastfed.simulation.systems import algorithm as registered
from fastfed.simulation.systems import check_kind, problem_spec

if TYPE_CHECKING:
    from fastfed.advice.successive_halving import Size

# ---- Sentences of an answer ----------------------------------------------------------------------


def scaling_text(size: Size, silos: int, horizon: int) -> str:
    """Say how the last stage was simulated."""
    if size.rounds < horizon:
        return (
            f"simulated are the first {size.rounds} of {horizon} rounds of all {silos} silos, "
            "extended at their last pace: rather too much regret than too little"
        )
    if size.silos < silos:
        return (
            f"simulated are {size.silos} silos that stand for all {silos}, noise and radius "
            "scaled: approximate; more seconds play all"
        )
    return f"simulated are all {silos} silos over all {horizon} rounds"


def verdict_text(
    verdict: Verdict, best: Regret, alone: Regret, open_: Regret, chance: Regret, *, looked: bool
) -> str:
    """Say whether to share under a trust model, by which system, and at what price."""
    ours, theirs = figure(best), figure(alone)
    mean, stderr = verdict.against_alone
    if verdict.helps:
        price = best.mean - open_.mean
        text = (
            f"share by {verdict.best}: regret {ours} per silo, alone {theirs}; "
            f"privacy costs {price:.3g} of it, sharing without would leave {figure(open_)}"
        )
        if verdict.level:
            text += f"; no worse within error: {', '.join(verdict.level)}"
        return text + "."
    much = "no less than" if mean > 2.0 * stderr else "not clearly less than"
    text = (
        f"privacy is too costly for sharing to help: {verdict.best}, the best, has regret {ours} "
        f"per silo, {much} each silo alone with {theirs}"
    )
    if best.mean > chance.mean - 2.0 * (chance.stderr + best.stderr):
        text += f", and no less than chance with {figure(chance)}"
    if open_.mean >= alone.mean:
        text += f"; nor would sharing without privacy help ({figure(open_)})"
    if not looked:
        return text + "."
    ways = []
    if verdict.pays_from_epsilon is not None:
        ways.append(f"epsilon {verdict.pays_from_epsilon:.2g}")
    if verdict.pays_from_silos is not None:
        ways.append(f"{float(verdict.pays_from_silos):.2g} silos".replace("e+0", "e"))
    if not ways:
        return text + "; neither more silos nor a larger epsilon was found to change that."
    return f"{text}; it would pay from about {' or '.join(ways)}, all else equal."


def figure(regret: Regret) -> str:
    """Format a regret with its standard error."""
    return plus_minus(regret.mean, regret.stderr)


# ---- The search ----------------------------------------------------------------------------------

#: Shares of the budget: all candidates, the best few and their neighbours, the last ones, and the
#: break-even point.
SCREENED, REFINED, FINAL, THRESHOLDS = 0.3, 0.2, 0.3, 0.2
#: Candidates of a trust model that go on to the next stage.
KEPT, FINALISTS = 2, 2


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
    seconds: float = 20.0,
    seed: int = 0,
    threads: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Advice:
    """Find the protocol, release and batch size of least regret under one guarantee.

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
    simulated, table = _environment(environment, dimension, actions)
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
    run = _Search(question, asked, halving, work, facts.real_records)
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


def _environment(
    environment: Environment | dict[str, Any] | str | Path | None,
    dimension: int | None,
    actions: int,
) -> tuple[Environment, dict[str, Any]]:
    """The environment to simulate, and its table in a spec."""
    if environment is None:
        if dimension is None:
            raise InputError("dimension is required, or an environment that has one")
        d = integer("dimension", dimension, at_least=1)
        k = integer("actions", actions, at_least=1)
        return Sphere(dimension=d, actions=k), {"kind": "sphere", "dimension": d, "actions": k}
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
        real_records: bool = False,
    ) -> None:
        self.question, self.asked, self.halving, self.seconds = question, asked, halving, seconds
        self.real_records = real_records
        self.left_out: dict[str, str] = {}
        self.made: dict[str, list[Choice]] = {trust: [] for trust in asked}
        self.remarks: dict[str, str] = {}
        problem = question.problem
        usual = min(batch_size_corollary_5_2(problem.horizon, problem.silos), problem.horizon)
        self.baselines = [
            ("alone", "alone: local-linucb", {"algorithm": "local-linucb", **question.common()}),
            (
                "no privacy",
                f"no privacy: fedlinucb, B = {usual}",
                {"algorithm": "fedlinucb", "batch_size": usual, **question.common()},
            ),
            ("random", "random", {"algorithm": "random"}),
        ]

    def add(self, trust: str, sizes: Sequence[int]) -> list[Choice]:
        """Add candidates of these batch sizes; of those at one, only the least noisy go on."""
        made, failed = candidates(self.question, trust, sizes)
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

    def screen(self) -> None:
        """Simulate all candidates of a coarse grid of batch sizes."""
        sizes = batch_sizes(self.question.problem.horizon)
        going = [one for trust in self.asked for one in self.add(trust, sizes)]
        self.asked = [trust for trust in self.asked if self.made[trust]]
        if not self.asked:
            name, why = next(iter(self.left_out.items()))
            raise InputError(f"no system gives this guarantee, not even {name}: {why}")
        contenders = [contender(one) for one in going]
        size = self.halving.size(contenders, SCREENED * self.seconds, 2)
        self.halving.run("screened", contenders, size)

    def refine(self) -> None:
        """Simulate the best few of each trust model, and twice and half the best batch size."""
        going = []
        for trust in self.asked:
            ranked = self.ranked(trust)
            best, sizes = ranked[0], {one.batch_size for one in self.made[trust]}
            near = [best.batch_size // 2, 2 * best.batch_size]
            horizon = self.question.problem.horizon
            new = [b for b in near if 1 <= b <= horizon // 2 and b not in sizes]
            going += ranked[:KEPT] + self.add(trust, new)
        contenders = [contender(one) for one in going]
        size = self.halving.size(contenders, REFINED * self.seconds, 3)
        self.halving.run("refined", contenders, size)

    def finish(self) -> None:
        """Simulate the last ones beside the baselines."""
        going = [one for trust in self.asked for one in self.ranked(trust, "refined")[:FINALISTS]]
        contenders = [contender(one) for one in going]
        for name, _, keys in self.baselines:
            plan = baseline(self.question, keys).plan
            contenders.append(Contender(name, plan, federated=name == "no privacy"))
        size = self.halving.size(contenders, FINAL * self.seconds, 6)
        self.halving.run("final", contenders, size)
        self.size = size

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
        problem = self.question.problem
        local = self.made.get("silo-ldp", [])
        feducb = "adds noise at the silos, and that trust was not asked for"
        if local:
            feducb = feducb_reason(self.question, min(local, key=lambda c: c.batch_size))
        left_out = {**ELSEWHERE, "feducb": feducb, **self.left_out}
        rows = []
        for trust in self.asked:
            order = self.ranked(trust, "final")
            order += [o for o in self.ranked(trust, "refined") + self.ranked(trust, "screened")]
            order += [o for o in self.made[trust] if o.label not in self.halving.regrets]
            rows += [self.row(one) for one in order]
        return Advice(
            silos=problem.silos,
            horizon=problem.horizon,
            dimension=problem.dimension,
            epsilon=self.question.epsilon,
            delta=self.question.delta,
            relation=self.question.relation,
            unit="user",
            radius_multiplier=self.question.radius_multiplier,
            environment=table,
            seed=self.halving.seed,
            scaling=scaling_text(self.size, problem.silos, problem.horizon),
            candidates=tuple(rows),
            baselines=tuple(
                Baseline(name, label, self.halving.regrets[name], keys, self.privacy(keys))
                for name, label, keys in self.baselines
            ),
            verdicts=tuple(self.verdict(trust) for trust in self.asked),
            left_out=left_out,
            notes=self.notes,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that stand before the answer."""
        failed = tuple(f"{BROKEN}{c.text}" for c in self.question.problem.conditions if not c.holds)
        return ((READ,) if self.real_records else ()) + failed

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
        )

    def verdict(self, trust: str) -> Verdict:
        """Compare the best of the last stage with the others and with each silo alone."""
        halving = self.halving
        best, *others = self.ranked(trust, "final")
        same = tuple(o.label for o in others if level(halving.difference(best.label, o.label)))
        against = halving.difference(best.label, "alone")
        helps = against[0] < 0.0 and not level(against)
        share = THRESHOLDS * self.seconds / len(self.asked)
        found: tuple[float | None, int | None] = (None, None)
        if not helps and scalable(halving.environment):
            found = break_even(self.question, best, halving, share)
        verdict = Verdict(
            trust, TRUST[trust][0], best.label, same, against, helps, *found, sentence=""
        )
        regrets = [halving.regrets[n] for n in (best.label, "alone", "no privacy", "random")]
        worth = not helps and scalable(halving.environment)
        return dataclasses.replace(verdict, sentence=verdict_text(verdict, *regrets, looked=worth))


def contender(one: Choice) -> Contender:
    """A candidate as a contender."""
    return Contender(one.label, one.plan, one.node)
