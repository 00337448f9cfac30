"""Successive halving over candidates by short simulations, and the break-even point of sharing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from fastfed._kernels import environments as native_environments
from fastfed._validate import InputError
from fastfed.advice.answer import Regret, mean_and_stderr
from fastfed.advice.systems import Choice, Question, batch_sizes, noises
from fastfed.environments import (
    Environment,
    EnvironmentSpec,
    FixedSet,
    Gap,
    RewardDistribution,
    Sphere,
)
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.protocols.plan import KEEPING, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS, released_as
from fastfed.simulation import dispatch
from fastfed.simulation.driver import checkpoint_rounds, that_fit, total

# ---- A federation of few silos that stands for one of many, and its cost -------------------------
# With lazy updates all silos choose from the same released statistics, and what they add to the
# next release is a sum of M B terms of one distribution. m silos whose rounds each count M / m = q
# times make the same sum in expectation. Instead of weighing rounds everything else is divided:
# privacy noise, lambda, c, E and phi by q, the radius of reward noise by sqrt(q), and so is the
# reward noise itself, since it averages out over q rounds. Then V, u and both bonuses are those of
# M silos up to a factor that cancels; a ledger's charges count silos, so its allowance is divided
# too. Not kept are the sampling error of the contexts in a batch, sqrt(q) times too large, and that
# rewards are Bernoulli. With m = M nothing is scaled, and the distribution is exact: of M Gaussian
# noises only the sum is seen, so the sum alone is drawn. Noise of bits is drawn as the normal
# numbers it is close to, unless ``bits`` are asked for. A plan with own rounds is simulated as it
# is: each silo takes its own message, with its own noise, off the sum.

#: Environments whose silos are alike and whose reward noise can be made smaller.
SCALABLE = (Sphere, Gap, FixedSet)
#: Standard deviation of a Bernoulli reward, at most.
BERNOULLI = 0.5


def scalable(environment: Environment) -> bool:
    """Return True if few silos of this environment can stand for many."""
    return isinstance(environment, SCALABLE)


def scaled_environment(environment: Environment, times: float) -> Environment:
    """Scale the reward noise of an environment whose rounds each stand for ``times`` rounds."""
    if times == 1.0:
        return environment
    assert isinstance(environment, SCALABLE)
    reward = environment.reward
    if reward.kind == "none":
        return environment
    std = (reward.std if reward.kind == "gaussian" else BERNOULLI) / math.sqrt(times)
    return replace(environment, reward=RewardDistribution("gaussian", std))


def scaled_plan(plan: Plan, node: NoiseStd | None, silos: int, *, bits: bool = False) -> Plan:
    """Scale a plan to ``silos`` silos that stand for all of its own.

    ``node``: noise of one node of the plan, None without noise. ``bits``: simulate shuffled bits as
    such where nothing is scaled, not as normal numbers of the same variance.
    """
    times = plan.silos / silos
    if plan.own is not None:
        assert times == 1.0
        return plan
    if node is not None and not (plan.encoding is not None and bits and times == 1.0):
        # One sum of noises in place of the sum of all: the same distribution (bits: nearly).
        std = node.times(math.sqrt(noises(plan)) / times)
        release, factor = plan.release, plan.factor
        if plan.protocol.flat and plan.encoding is not None:
            # Every batch has noise of its own, and a prefix that of all of them.
            release, factor = "factorised", Factor(np.tri(plan.releases))
        # It stands for another plan's regret, and claims no privacy of its own.
        plan = replace(
            plan,
            protocol=released_as(PROTOCOLS["central"], release),
            release=release,
            factor=factor,
            noise_std=std,
            encoding=None,
            secure=None,
            privacy=None,
        )
    if times == 1.0:
        return plan
    r = plan.radius
    radius = replace(
        r,
        scale=r.scale / math.sqrt(times),
        anchor=r.anchor / times,
        error_bound=r.error_bound / times,
        floor=r.floor / times,
        offset=r.offset / math.sqrt(times),
        log_lambda=r.log_lambda / times,
    )
    # Smaller Gaussian reward noise is not clipped: that would move its mean. A centre stays.
    clip = plan.clip
    centred = clip is not None and (clip.constant > 0.0 or clip.centre > 0.0)
    return replace(
        plan,
        silos=silos,
        regularizer=plan.regularizer / times,
        radius=radius,
        clip=replace(clip, low=-math.inf, high=math.inf) if clip and centred else None,
        allowance=tuple(a / times for a in plan.allowance),
        privacy=None,
    )


def round_cost(actions: int, dimension: int) -> float:
    """Nominal seconds of one agent-round: rather more than the machine of docs/speed.md takes."""
    return 1e-6 * (0.5 + 1.5e-3 * actions * dimension + 1e-3 * dimension**2)


def release_cost(plan: Plan) -> float:
    """Nominal seconds of the releases of one replicate, when noise is drawn once."""
    d, k = plan.dimension, plan.releases
    kept = 0.5e-9 * k * k * plan.statistic_size if plan.release in KEEPING else 0.0
    if plan.own is not None:
        kept *= plan.silos
    return 1e-6 * k * (3.0 + 4e-3 * d**3) + kept


# ---- Short simulations of many plans over the same contexts --------------------------------------

#: Checkpoints of a short run; the pace at its end is that of its last quarter.
CHECKPOINTS = 64
#: Fewest silos that stand for more, where d is not more, and the most replicates of a stage. With
#: fewer than d a batch of few rounds does not show all directions, and learning is far too slow.
LEAST_SILOS, MOST_REPLICATES = 4, 32
#: Fewest systems that are simulated over contexts of their own, where threads are left.
LEAST_PART = 4
#: Fewest replicates of all silos that are worth more than many of few.
LEAST_EXACT = 4

Heard = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """A plan to simulate, with its privacy noise (None: it has none).

    ``federated`` plans share, so few silos stand for many by scaling. The silos of others are
    alone: any few are a sample of all.
    """

    name: str
    plan: Plan
    node: NoiseStd | None = None
    federated: bool = True


@dataclass(frozen=True)
class Size:
    """Size of the simulations of a stage."""

    silos: int
    rounds: int
    replicates: int


@dataclass
class SuccessiveHalving:
    """Simulates entrants, stage after stage, each stage on replicates of its own."""

    environment: Environment
    silos: int
    horizon: int
    actions: int
    seed: int
    threads: int
    on_stage: Heard | None = None
    replicate: int = 0  # the next one that is unused
    #: Regret of one silo by name, (R,), of the last stage that simulated it.
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    regrets: dict[str, Regret] = field(default_factory=dict)

    def least_silos(self, dimension: int) -> int:
        """Fewest silos that may stand for all."""
        return min(self.silos, max(LEAST_SILOS, dimension))

    def learns_since(self, plan: Plan) -> int | None:
        """Round from which a silo learns its own theta; None if that is not known of a plan.

        Its pace then goes on falling, while one model for silos that differ ends at a pace that
        does not.
        """
        facts = self.environment.facts(self.silos, self.horizon)
        if not (isinstance(facts, EnvironmentSpec) and facts.linear_by_silo):
            return None
        return plan.share_until if plan.own is not None or not plan.batch_size else None

    @property
    def marks(self) -> np.ndarray:
        """Rounds at which regret is kept, (C,)."""
        return checkpoint_rounds(self.horizon, CHECKPOINTS)

    def size(
        self,
        contenders: Sequence[Contender],
        seconds: float,
        replicates: int,
        fewest: int | None = None,
    ) -> Size:
        """The largest stage for so many nominal seconds of one core.

        All silos where ``LEAST_EXACT`` replicates of them fit, and then as many replicates as do;
        otherwise ``replicates`` of as few silos as fit, d and four at least, or not even so many
        replicates, but ``fewest`` at least. Where silos cannot be scaled, all of them for as many
        rounds as fit.
        """
        whole = sum(
            self.silos * self.horizon * round_cost(self.actions, e.plan.dimension)
            for e in contenders
        )
        fixed = sum(release_cost(e.plan) for e in contenders)
        fitting = int(seconds / (whole + fixed))
        if fitting >= LEAST_EXACT:
            return Size(self.silos, self.horizon, min(fitting, MOST_REPLICATES))
        share = max(seconds / replicates - fixed, 0.0) / whole
        if not scalable(self.environment):
            marks = self.marks
            at = int(np.searchsorted(marks, self.horizon * share, side="right")) - 1
            return Size(self.silos, int(marks[max(at, 0)]), replicates)
        least = self.least_silos(contenders[0].plan.dimension)
        few = min(self.silos, max(least, int(self.silos * share)))
        if few == least and fewest is not None:
            fit = int(seconds / (fixed + whole * least / self.silos))
            replicates = min(replicates, max(fewest, fit))
        return Size(few, self.horizon, replicates)

    def run(self, stage: str, contenders: Sequence[Contender], size: Size) -> None:
        """Simulate a stage and keep its regrets, a function of arguments and seed."""
        if self.on_stage is not None:
            self.on_stage(self.announce(stage, len(contenders), size))
        finals = self.finals(contenders, size, bits=stage == "final")
        for contender, column in zip(contenders, finals.T, strict=True):
            mean, stderr = mean_and_stderr(column)
            self.samples[contender.name] = column
            self.regrets[contender.name] = Regret(
                mean, stderr, size.replicates, size.silos, size.rounds, stage
            )

    def finals(self, contenders: Sequence[Contender], size: Size, bits: bool = False) -> np.ndarray:
        """Regret of one silo at the end of the horizon, (R, entrants); ``bits``: `scaled_plan`."""
        first, self.replicate = self.replicate, self.replicate + size.replicates
        marks = self.marks
        at = int(np.searchsorted(marks, size.rounds))
        # Parts of few replicates are simulated side by side: threads inside of one would wait for
        # each other at every release. Results do not depend on who is simulated together.
        parts = [
            (kind, group)
            for kind, federated in enumerate((True, False))
            for group in _parts(
                [i for i, e in enumerate(contenders) if e.federated is federated],
                self.threads // size.replicates,
            )
        ]
        times = self.silos / size.silos
        environments = [scaled_environment(self.environment, times), self.environment]
        plans = [
            scaled_plan(e.plan, e.node, size.silos, bits=bits)
            if e.federated
            else replace(e.plan, silos=size.silos)  # a sample of all
            for e in contenders
        ]

        def job(work: tuple[int, int]) -> tuple[int, int, list[float]]:
            replicate, part = work
            kind, group = parts[part]
            opened = environments[kind].open(self.seed, first + replicate, size.silos)
            assert isinstance(opened, native_environments.Environment)
            chosen = [plans[i] for i in group]
            outcomes = dispatch.run(opened, chosen, marks, threads=inner, last=size.rounds)
            curves = [o.group_regret / size.silos for o in outcomes]
            found = [
                _extended(curve, marks, at, self.horizon, self.learns_since(plan))
                for curve, plan in zip(curves, chosen, strict=True)
            ]
            return replicate, part, found

        works = [(r, part) for r in range(size.replicates) for part in range(len(parts))]
        inner = max(1, self.threads // len(works))
        finals = np.zeros((size.replicates, len(contenders)))
        facts = self.environment.facts(size.silos, self.horizon)
        terms = [
            dispatch.of_pass(
                environments[kind], facts, [plans[i] for i in group], len(marks), inner
            )
            for kind, group in parts
        ]
        workers = that_fit(max(terms, key=total), min(self.threads, len(works)))
        with ThreadPoolExecutor(workers) as pool:
            for replicate, part, found in pool.map(job, works):
                finals[replicate, parts[part][1]] = found
        return finals

    def difference(self, a: str, b: str) -> tuple[float, float]:
        """Mean and standard error of a - b, regret of one silo, paired; of one stage."""
        return mean_and_stderr(self.samples[a] - self.samples[b])

    def announce(self, stage: str, count: int, size: Size) -> str:
        """Announce a stage in a sentence."""
        silos = f"all {self.silos} silos"
        if size.silos < self.silos:
            silos = f"{size.silos} silos for all {self.silos}"
        rounds = "" if size.rounds >= self.horizon else f", the first {size.rounds} rounds"
        times = f"{size.replicates} replicate{'s' if size.replicates > 1 else ''}"
        return f"{stage}: {count} systems, {times} of {silos}{rounds}"


def _parts(group: list[int], count: int) -> list[list[int]]:
    """The group in about ``count`` parts, none of fewer than ``LEAST_PART`` unless it is all."""
    count = max(1, min(count, len(group) // LEAST_PART))
    return [group[i::count] for i in range(count)] if group else []


def _extended(
    curve: np.ndarray, marks: np.ndarray, at: int, horizon: int, since: int | None = None
) -> float:
    """Regret at the end, from the curve up to checkpoint ``at``, at the pace it had there.

    The pace of a learner falls, so this is rather too much than too little. With ``since`` the
    pace goes on falling as it did: as a power of the round, between 0 and -1, taken from the last
    three quarters, or from what is after round ``since`` of them.
    """
    if at == len(marks) - 1:
        return float(curve[-1])
    last, now = int(marks[at]), float(curve[at])
    if since is not None and 2 * since <= last:
        rounds, regret = np.append(0, marks[: at + 1]), np.append(0.0, curve[: at + 1])
        start = max(since, last / 4.0)
        middle = math.sqrt(start * last)
        first, half = np.interp([start, middle], rounds, regret)
        before, pace = (half - first) / (middle - start), (now - half) / (last - middle)
        if before > 0.0 and pace > 0.0:
            # Both paces are those in the middle of their part, on a logarithmic scale.
            falls = min(1.0, max(0.0, 2.0 * math.log(before / pace) / math.log(last / start)))
            pace *= (middle / last) ** (0.5 * falls)
            more = math.log(horizon / last)
            if falls < 1.0:
                more = math.expm1((1.0 - falls) * more) / (1.0 - falls)
            return float(now + pace * last * more)
    before_at = min(3 * at // 4, at - 1)
    start_regret, start_round = (
        (0.0, 0) if before_at < 0 else (float(curve[before_at]), int(marks[before_at]))
    )
    return float(now + (now - start_regret) / (last - start_round) * (horizon - last))


def level(difference: tuple[float, float]) -> bool:
    """Return True if a paired difference is within two standard errors of 0, or has none."""
    mean, stderr = difference
    return math.isnan(stderr) or abs(mean) <= 2.0 * stderr


# ---- Break-even: the epsilon, or the number of silos, from which sharing would help --------------

#: Factor of a step up, the most steps, and the halvings of the interval that was found.
STEP, STEPS, HALVINGS = 4.0, 6, 2
#: Fewest and most replicates of each of the batches at every step.
REPLICATES, MOST_AT_STEP = 3, 16


def break_even(
    question: Question, best: Choice, halving: SuccessiveHalving, seconds: float, alone: float
) -> tuple[float | None, int | None]:
    """The least epsilon, and the least number of silos, at which ``best`` has less than ``alone``.

    Each to within a factor of about 1.4, all else as it is; None where none was found up to 4096
    times as much. Protocol, release and variant are those of ``best``, and so are batches that
    grow; of an equal batch size and an eighth of it the better counts.
    """
    one = halving.horizon * round_cost(halving.actions, question.problem.dimension)
    tried = 2 if isinstance(best.batches, int) else 1
    fitting = int(seconds / (2 * (STEPS + HALVINGS) * tried * one))  # silos of all replicates
    least = halving.least_silos(question.problem.dimension)
    few = max(least, min(question.problem.silos, fitting // REPLICATES))
    replicates = max(REPLICATES, min(MOST_AT_STEP, fitting // few))

    def helps(asked: Question) -> bool:
        silos = asked.problem.silos
        own = replace(halving, silos=silos, replicate=0, on_stage=None, samples={}, regrets={})
        contenders, variants = [], [best]
        if isinstance(best.batches, int):
            shortest = batch_sizes(halving.horizon)[0]
            sizes = sorted({max(shortest, best.batches // by) for by in (1, 8)})
            variants = [replace(best, batches=size) for size in sizes]
        for variant in variants:
            try:
                made = asked.again(variant)
            except InputError:
                continue
            contenders.append(Contender(made.label, made.plan, made.node))
        if not contenders:
            return False
        found = own.finals(contenders, Size(few, own.horizon, replicates))
        # A mean of so few is often lucky: one standard error is added.
        return any(sum(mean_and_stderr(column)) < alone for column in found.T)

    epsilon = _least(question.epsilon, lambda e: helps(replace(question, epsilon=e)))
    silos = _least(
        float(question.problem.silos),
        lambda m: helps(replace(question, problem=replace(question.problem, silos=round(m)))),
    )
    return epsilon, None if silos is None else round(silos)


def _least(start: float, holds: Callable[[float], bool]) -> float | None:
    """The least value above ``start`` for which ``holds``, on a coarse logarithmic scale."""
    low, high = start, start
    for _ in range(STEPS):
        low, high = high, high * STEP
        if holds(high):
            break
    else:
        return None
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
