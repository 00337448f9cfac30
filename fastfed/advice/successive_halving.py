"""Successive halving of candidates by short simulations, and the break-even point of sharing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from fastfed._kernels import environments as native_environments
from fastfed._validate import InputError
from fastfed.advice.answer import Regret, mean_and_stderr
from fastfed.advice.systems import Choice, Question, batch_sizes, noise_count
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
from fastfed.simulation.driver import batches_that_fit, bytes_of, checkpoint_rounds

# ---- Simulating M silos by fewer silos, and the cost of a simulation -----------------------------
# With lazy updates all silos choose from the same released statistics. Together they add to the
# next release a sum of M B terms of one distribution. If m silos are simulated and each round
# counts q = M / m times, the sum is the same in expectation. Instead of multiplying rounds by q,
# everything else is divided. Privacy noise, the regularizer and the bounds on noise in the radius
# are divided by q. The reward noise and its radius are divided by sqrt(q), because reward noise
# averages over q rounds. Then V, u and both bonuses equal the values with M silos, up to a factor
# that cancels. The widths of the sieve are divided by sqrt(q), as both bonuses are. Two things are
# not reproduced: the sampling error of the contexts in a batch is sqrt(q) times too large, and
# rewards are not Bernoulli. With m = M nothing is scaled and the distribution is exact; only the
# sum of M Gaussian noises matters, so only the sum is drawn. Noise of shuffled bits is drawn from a
# normal approximation unless ``bits`` is set. A plan with local rounds is simulated unscaled,
# because each silo subtracts its own noisy message from the sum.

#: Environments whose silos have the same model and whose reward noise can be scaled.
SCALABLE = (Sphere, Gap, FixedSet)
#: Upper bound on the standard deviation of a Bernoulli reward.
BERNOULLI = 0.5


def scalable(environment: Environment) -> bool:
    """Return True if few silos of this environment can represent many (see the comment above)."""
    return isinstance(environment, SCALABLE)


def scaled_environment(
    environment: Environment, times: float, std: float | None = None
) -> Environment:
    """Return the environment with reward noise divided by sqrt(``times``), as Gaussian noise.

    A round then stands for the mean of ``times`` rounds. If ``times`` is 1, or there is no noise to
    divide, the environment is returned unchanged.

    ``std`` is the standard deviation of the unscaled reward noise. Default: the value of the
    environment.
    """
    if times == 1.0:
        return environment
    assert isinstance(environment, SCALABLE)
    reward = environment.reward
    if std is None:
        if reward.kind == "none":
            return environment
        std = reward.std if reward.kind == "gaussian" else BERNOULLI
    return replace(environment, reward=RewardDistribution("gaussian", std / math.sqrt(times)))


def scaled_plan(plan: Plan, node: NoiseStd | None, silos: int, *, bits: bool = False) -> Plan:
    """Return the plan scaled to ``silos`` silos, which represent all silos of the plan.

    Each simulated silo stands for q = (silos of the plan) / ``silos`` silos. The comment at the top
    of this module explains which numbers are divided by q and which by sqrt(q).

    Parameters
    ----------
    plan : Plan
        The plan with all silos.
    node : NoiseStd or None
        The noise of one tree node of the plan; None without noise.
    silos : int
        Number of silos to simulate.
    bits : bool
        True to simulate shuffled bits if ``silos`` is the number of all silos. By default, and with
        fewer silos, normal noise of the same variance replaces the bits.
    """
    q = plan.silos / silos
    if plan.own is not None:
        assert q == 1.0
        return plan
    if node is not None and not (plan.encoding is not None and bits and q == 1.0):
        # Draw one noise vector instead of the sum of all vectors: it has the same distribution, or
        # nearly the same for bits.
        std = node.times(math.sqrt(noise_count(plan)) / q)
        release, factor = plan.release, plan.factor
        if plan.protocol.flat and plan.encoding is not None:
            # Every batch has independent noise, and the noise of a prefix is the sum over its
            # batches.
            release, factor = "factorised", Factor(np.tri(plan.releases))
        # The scaled plan only predicts the regret of the real plan; it makes no privacy claim.
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
    if q == 1.0:
        return plan
    r = plan.radius
    radius = replace(
        r,
        scale=r.scale / math.sqrt(q),
        anchor=r.anchor / q,
        error_bound=r.error_bound / q,
        floor=r.floor / q,
        offset=r.offset / math.sqrt(q),
        log_lambda=r.log_lambda / q,
    )
    # Scaled Gaussian rewards are not clipped, because clipping would change their mean. They are
    # still centred.
    clip = plan.clip
    centred = clip is not None and (clip.constant > 0.0 or clip.centre > 0.0)
    if plan.flips:
        # Normal rewards stand for bits of users, see `Contender.environment`.
        plan = replace(plan, protocol=PROTOCOLS["none"], flips=0)
    return replace(
        plan,
        silos=silos,
        regularizer=plan.regularizer / q,
        radius=radius,
        clip=replace(clip, low=-math.inf, high=math.inf) if clip and centred else None,
        widths=tuple(width / math.sqrt(q) for width in plan.widths),
        privacy=None,
    )


def round_cost(actions: int, dimension: int) -> float:
    """Return the nominal seconds of one system in one round of one silo, without making contexts.

    Measured for 5 to 1 000 actions and d from 3 to 50 (docs/plan.md), within 20 %.
    """
    return 1e-6 * (0.2 + 6.2e-4 * actions * dimension + 6e-4 * dimension**2)


def context_cost(actions: int, dimension: int) -> float:
    """Return the nominal seconds to make the contexts of one silo and round, for all systems.

    Measured like `round_cost`.
    """
    return 1e-6 * (0.1 + 5.5e-4 * actions * dimension)


def release_cost(plan: Plan) -> float:
    """Return the nominal seconds of all releases of one plan in one replicate.

    Measured like `round_cost`.
    """
    d, k = plan.dimension, plan.releases
    # A release of these types uses all earlier noise draws again, so the time grows with k^2.
    noise_seconds = 1e-10 * k * k * plan.statistic_size if plan.release in KEEPING else 0.0
    # Only a plan with local rounds has noise vectors of every silo; else their sum is drawn.
    if plan.own is not None:
        noise_seconds *= plan.silos
    return 1e-6 * k * (3.0 + 4e-3 * d**3) + noise_seconds


# ---- Short simulations of many plans over the same contexts --------------------------------------

#: Number of checkpoints of a run. The final pace of regret, in regret per round, is measured over
#: the last quarter of the simulated checkpoints.
CHECKPOINTS = 64
#: At least max(MIN_SILOS, d) silos are simulated to represent all silos. With fewer than d silos, a
#: short batch does not cover all directions, and learning is far too slow. MAX_REPLICATES is the
#: largest number of replicates in a stage.
MIN_SILOS, MAX_REPLICATES = 4, 32
#: Fewest systems in a group that is simulated separately to use spare threads.
MIN_GROUP_SYSTEMS = 4
#: If this number of replicates of all silos fits into the time, all silos are simulated, and not
#: more replicates of few silos.
MIN_EXACT_REPLICATES = 4
#: Factor on the time of a round for systems with local rounds, in which silos learn immediately.
LOCAL_ROUND_FACTOR = 2.0
#: A stage that does not fit into its time simulates at least this share of the rounds, and at least
#: this number of rounds.
MIN_SHARE_OF_ROUNDS, MIN_ROUNDS = 1.0 / 16.0, 300


@dataclass(frozen=True)
class Contender:
    """A plan to simulate, with its privacy noise (None without noise).

    In a ``federated`` plan silos share data, so few silos can represent many only by scaling. In
    other plans silos are independent, and any few silos are a sample of all. ``intercept`` is used
    instead of the environment's intercept.
    """

    name: str
    plan: Plan
    node: NoiseStd | None = None
    federated: bool = True
    intercept: float | None = None

    @classmethod
    def of(cls, candidate: Choice) -> Contender:
        """Return the contender for a candidate."""
        intercept = candidate.variant.intercept
        node = candidate.node if candidate.has_noise else None
        return cls(candidate.label, candidate.plan, node, intercept=intercept)

    @property
    def bit_std(self) -> float | None:
        """Bound on the standard deviation of a debiased bit; None unless users send bits."""
        return self.plan.radius.scale if self.plan.flips else None

    @property
    def kind(self) -> tuple[bool, float | None, float | None]:
        """Properties that determine the environment; contenders of one kind share it."""
        return self.federated, self.intercept, self.bit_std

    def environment(self, environment: Environment, times: float) -> Environment:
        """Return the environment in which the scaled plan is simulated.

        The contender's intercept, if any, replaces that of ``environment``. If silos share data,
        each simulated round stands for ``times`` rounds. If moreover users send bits and ``times``
        is not 1, normal rewards with the standard deviation `bit_std` replace the bits.
        """
        if self.intercept is not None:
            environment = replace(environment, intercept=self.intercept)  # type: ignore[type-var]
        if not self.federated or times == 1.0:
            return environment
        return scaled_environment(environment, times, self.bit_std)


@dataclass(frozen=True)
class Size:
    """Numbers of silos, rounds and replicates that a stage simulates."""

    silos: int
    rounds: int
    replicates: int


@dataclass
class SuccessiveHalving:
    """A search that simulates contenders stage by stage, each stage on new replicates."""

    environment: Environment
    silos: int
    horizon: int
    actions: int
    seed: int
    threads: int
    on_stage: Callable[[str], None] | None = None
    replicate: int = 0  # number of the next unused replicate
    #: Regret of one silo (R,) by contender name, from the last stage that simulated it.
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    regrets: dict[str, Regret] = field(default_factory=dict)

    def least_silos(self, dimension: int) -> int:
        """Return the smallest number of silos that may represent all silos."""
        return min(self.silos, max(MIN_SILOS, dimension))

    def learns_since(self, plan: Plan) -> int | None:
        """Return the round after which the regret per round keeps decreasing, or None.

        - If the environment is `scalable`, all silos have the same theta*. The regret per round
          then decreases from the start: return 0.
        - If theta* may differ between silos, it decreases for local models only: return the last
          round that may be shared. With one shared model it converges to a positive constant:
          return None.
        - In all other environments return None.
        """
        if scalable(self.environment):
            return 0
        # Plans with local rounds (``own``), and plans without batches, have local models.
        facts = self.environment.facts(self.silos, self.horizon)
        if not (isinstance(facts, EnvironmentSpec) and facts.linear_by_silo):
            return None
        return plan.share_until if plan.own is not None or not plan.batch_size else None

    @property
    def marks(self) -> np.ndarray:
        """Rounds at which regret is recorded, shape (C,)."""
        return checkpoint_rounds(self.horizon, CHECKPOINTS)

    def size(
        self,
        contenders: Sequence[Contender],
        seconds: float,
        replicates: int,
        fewest: int | None = None,
    ) -> Size:
        """Return the numbers of silos, rounds and replicates that ``seconds`` allow for a stage.

        The seconds are nominal seconds of one core. The first of these rules that applies decides:

        1. If `MIN_EXACT_REPLICATES` replicates of all silos and rounds fit: as many replicates as
           fit, at most `MAX_REPLICATES`.
        2. If the environment cannot be scaled: ``replicates`` replicates of all silos, for as many
           rounds as fit, at least up to the first checkpoint.
        3. Else ``replicates`` replicates of as many silos as fit, at least `least_silos`. If these
           do not fit and ``fewest`` is given, the replicates are reduced to at least ``fewest``,
           and then the rounds as in `rounds_for`. Without ``fewest``, the stage may take longer
           than ``seconds``.
        """
        full_cost = self.silos * self.horizon * self.pass_cost(contenders)
        release_seconds = sum(release_cost(contender.plan) for contender in contenders)
        fitting = int(seconds / (full_cost + release_seconds))
        if fitting >= MIN_EXACT_REPLICATES:
            return Size(self.silos, self.horizon, min(fitting, MAX_REPLICATES))
        affordable_share = max(seconds / replicates - release_seconds, 0.0) / full_cost
        if not scalable(self.environment):
            marks = self.marks
            position = (
                int(np.searchsorted(marks, self.horizon * affordable_share, side="right")) - 1
            )
            return Size(self.silos, int(marks[max(position, 0)]), replicates)
        least = self.least_silos(contenders[0].plan.dimension)
        simulated_silos = min(self.silos, max(least, int(self.silos * affordable_share)))
        rounds = self.horizon
        if simulated_silos == least and fewest is not None:
            replicate_seconds = release_seconds + full_cost * least / self.silos
            replicates = min(replicates, max(fewest, int(seconds / replicate_seconds)))
            rounds = self.rounds_for(seconds / (replicates * replicate_seconds))
        return Size(simulated_silos, rounds, replicates)

    def rounds_for(self, share: float) -> int:
        """Return the first checkpoint at or after this share of the rounds.

        The share is at least `MIN_SHARE_OF_ROUNDS`, and the checkpoint is at or after round
        `MIN_ROUNDS` or the horizon, whichever is earlier.
        """
        least = max(share, MIN_SHARE_OF_ROUNDS) * self.horizon
        marks = self.marks
        return int(marks[np.searchsorted(marks, min(max(least, MIN_ROUNDS), self.horizon))])

    def pass_cost(self, contenders: Sequence[Contender]) -> float:
        """Return the nominal seconds in which all contenders are simulated for one agent-round."""
        # Contenders of one kind share an environment, whose contexts are made once.
        dimensions = {contender.kind: contender.plan.dimension for contender in contenders}
        contexts = sum(context_cost(self.actions, d) for d in dimensions.values())
        return contexts + sum(
            round_cost(self.actions, contender.plan.dimension)
            * (LOCAL_ROUND_FACTOR if contender.plan.own is not None else 1.0)
            for contender in contenders
        )

    def run(self, stage: str, contenders: Sequence[Contender], size: Size) -> None:
        """Simulate a stage, and store the regret of each contender in ``samples`` and ``regrets``.

        Results depend only on the arguments and the seed.
        """
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
        """Simulate contenders; return the regret of one silo over the horizon, (R, contenders).

        R is the number of replicates of ``size``. If ``size`` has fewer rounds than the horizon,
        the regret is extrapolated. ``bits`` is passed to `scaled_plan`: True to simulate the
        shuffled bits of a plan if all silos are simulated.
        """
        first_replicate, self.replicate = self.replicate, self.replicate + size.replicates
        marks = self.marks
        last_mark = int(np.searchsorted(marks, size.rounds))
        times = self.silos / size.silos
        plans = [
            scaled_plan(contender.plan, contender.node, size.silos, bits=bits)
            if contender.federated
            else replace(contender.plan, silos=size.silos)  # independent silos: a sample of all
            for contender in contenders
        ]
        # Contenders of one kind share an environment. They are split into parts that run in
        # parallel, because threads inside one simulation would wait for each other at every
        # release. Results do not depend on the split.
        parts: list[tuple[Environment, list[int]]] = []
        for kind in dict.fromkeys(contender.kind for contender in contenders):
            group = [i for i, contender in enumerate(contenders) if contender.kind == kind]
            environment = contenders[group[0]].environment(self.environment, times)
            for part in _parts(group, self.threads // size.replicates):
                parts.append((environment, part))

        def simulate(job: tuple[int, int]) -> list[float]:
            """Simulate one part of the contenders on one replicate, and return their regrets."""
            replicate, number = job
            environment, part = parts[number]
            opened_environment = environment.open(
                self.seed, first_replicate + replicate, size.silos
            )
            assert isinstance(opened_environment, native_environments.Environment)
            part_plans = [plans[i] for i in part]
            outcomes = dispatch.run(
                opened_environment, part_plans, marks, threads=inner_threads, last=size.rounds
            )
            curves = [o.group_regret / size.silos for o in outcomes]
            return [
                _extended(curve, marks, last_mark, self.horizon, self.learns_since(plan))
                for curve, plan in zip(curves, part_plans, strict=True)
            ]

        jobs = [(r, number) for r in range(size.replicates) for number in range(len(parts))]
        inner_threads = max(1, self.threads // len(jobs))
        facts = self.environment.facts(size.silos, self.horizon)
        memory_terms = [
            dispatch.memory_of_batch(
                environment, facts, [plans[i] for i in part], len(marks), inner_threads
            )
            for environment, part in parts
        ]
        workers = batches_that_fit(max(memory_terms, key=bytes_of), min(self.threads, len(jobs)))
        finals = np.zeros((size.replicates, len(contenders)))
        with ThreadPoolExecutor(workers) as pool:
            for (replicate, number), regrets in zip(jobs, pool.map(simulate, jobs), strict=True):
                finals[replicate, parts[number][1]] = regrets
        return finals

    def difference(self, a: str, b: str) -> tuple[float, float]:
        """Return mean and standard error of the regret of contender ``a`` minus that of ``b``.

        It is the regret of one silo, paired by replicate. ``a`` and ``b`` are names of contenders,
        both last simulated in the same stage.
        """
        return mean_and_stderr(self.samples[a] - self.samples[b])

    def announce(self, stage: str, count: int, size: Size) -> str:
        """Return a sentence that describes a stage."""
        silos = f"all {self.silos} silos"
        if size.silos < self.silos:
            silos = f"{size.silos} silos for all {self.silos}"
        rounds = "" if size.rounds >= self.horizon else f", the first {size.rounds} rounds"
        times = f"{size.replicates} replicate{'s' if size.replicates > 1 else ''}"
        return f"{stage}: {count} systems, {times} of {silos}{rounds}"


def _parts(group: list[int], count: int) -> list[list[int]]:
    """Split a group into at most ``count`` parts of at least ``MIN_GROUP_SYSTEMS`` contenders.

    A smaller group is one part.
    """
    count = max(1, min(count, len(group) // MIN_GROUP_SYSTEMS))
    return [group[i::count] for i in range(count)] if group else []


def _extended(
    curve: np.ndarray, marks: np.ndarray, last_index: int, horizon: int, since: int | None = None
) -> float:
    """Return the regret at the horizon, extrapolated from a curve up to a checkpoint.

    ``curve`` (C,) is the regret at the rounds ``marks`` (C,), known up to index ``last_index``. The
    pace is the regret per round. By default, the pace stays as in the last quarter of the known
    checkpoints. The pace of a learner decreases, so this overestimates regret.

    ``since`` is a round after which the pace keeps decreasing (`learns_since`). If it is in the
    first half of the known rounds, the pace is proportional to round^-a with a in [0, 1]. a is
    fitted to the last three quarters of the known rounds, without those up to ``since``. If a pace
    in this fit is not positive, the default applies.
    """
    if last_index == len(marks) - 1:
        return float(curve[-1])
    last, last_regret = int(marks[last_index]), float(curve[last_index])
    if since is not None and 2 * since <= last:
        rounds, regret = (
            np.append(0, marks[: last_index + 1]),
            np.append(0.0, curve[: last_index + 1]),
        )
        start = max(since, last / 4.0)
        middle = math.sqrt(start * last)
        start_regret, middle_regret = np.interp([start, middle], rounds, regret)
        earlier_pace = (middle_regret - start_regret) / (middle - start)
        pace = (last_regret - middle_regret) / (last - middle)
        if earlier_pace > 0.0 and pace > 0.0:
            # The pace is proportional to round^-exponent. Each measured pace belongs to the middle
            # of its interval, on a logarithmic scale.
            exponent = min(
                1.0, max(0.0, 2.0 * math.log(earlier_pace / pace) / math.log(last / start))
            )
            # Compute the pace at the last round, and add up the pace until the horizon.
            pace *= (middle / last) ** (0.5 * exponent)
            log_growth = math.log(horizon / last)
            if exponent < 1.0:
                log_growth = math.expm1((1.0 - exponent) * log_growth) / (1.0 - exponent)
            return float(last_regret + pace * last * log_growth)
    first_index = min(3 * last_index // 4, last_index - 1)
    start_regret, start_round = (
        (0.0, 0) if first_index < 0 else (float(curve[first_index]), int(marks[first_index]))
    )
    return float(
        last_regret + (last_regret - start_regret) / (last - start_round) * (horizon - last)
    )


def within_error(difference: tuple[float, float]) -> bool:
    """Return True if a paired difference is within two standard errors of 0.

    Without a standard error (NaN), return True.
    """
    mean, stderr = difference
    return math.isnan(stderr) or abs(mean) <= 2.0 * stderr


# ---- Break-even: the epsilon, or the number of silos, from which sharing would help --------------

#: The search for a break-even point multiplies by SEARCH_FACTOR up to MAX_SEARCH_STEPS times, then
#: bisects BISECTIONS times.
SEARCH_FACTOR, MAX_SEARCH_STEPS, BISECTIONS = 4.0, 6, 2
#: Number of multiplications that is assumed when the time is divided among simulations.
USUAL_SEARCH_STEPS = 3
#: Fewest and most replicates of each simulation in this search.
MIN_SEARCH_REPLICATES, MAX_SEARCH_REPLICATES = 3, 16


def break_even(
    question: Question,
    best: Choice,
    halving: SuccessiveHalving,
    seconds: float,
    local_regret: float,
) -> tuple[float | None, int | None]:
    """Return the least epsilon and the least number of silos at which sharing helps.

    Sharing helps if ``best`` has less regret than ``local_regret``, the regret of the local
    baseline. Epsilon is searched with the silos of the question, and silos with its epsilon. Each
    of the two results is accurate to a factor of about 1.4. It is None if sharing does not help at
    any tried value, up to 4096 times that of the question. Protocol, release, variant and growing
    batches stay as in ``best``. If ``best`` has batches of equal size, an eighth of this size is
    tried too.
    """
    batch_sizes_tried = 2 if isinstance(best.batches, int) else 1
    sizes = halving.actions, question.problem.dimension
    silo_cost = halving.horizon * (batch_sizes_tried * round_cost(*sizes) + context_cost(*sizes))
    # Two searches share the time, and each is assumed to make USUAL_SEARCH_STEPS + BISECTIONS
    # simulations. The time of one simulation suffices for this number of silos times replicates.
    affordable_silos = seconds / (2 * (USUAL_SEARCH_STEPS + BISECTIONS) * silo_cost)
    least = halving.least_silos(question.problem.dimension)
    simulated_silos = max(
        least, min(question.problem.silos, int(affordable_silos) // MIN_SEARCH_REPLICATES)
    )
    replicates = max(
        MIN_SEARCH_REPLICATES, min(MAX_SEARCH_REPLICATES, int(affordable_silos) // simulated_silos)
    )
    rounds = halving.rounds_for(affordable_silos / (simulated_silos * replicates))

    def helps(changed_question: Question) -> bool:
        """Return True if sharing helps with a different epsilon or number of silos."""
        silos = changed_question.problem.silos
        search = replace(halving, silos=silos, replicate=0, on_stage=None, samples={}, regrets={})
        contenders, variants = [], [best]
        if isinstance(best.batches, int):
            shortest = batch_sizes(halving.horizon)[0]
            sizes = sorted({max(shortest, best.batches // divisor) for divisor in (1, 8)})
            variants = [replace(best, batches=size) for size in sizes]
        for variant in variants:
            try:
                candidate = changed_question.rebuild(variant)
            except InputError:
                continue
            contenders.append(Contender.of(candidate))
        if not contenders:
            return False
        final_regrets = search.finals(contenders, Size(simulated_silos, rounds, replicates))
        # The mean of few replicates is often low by chance, so one standard error is added.
        return any(sum(mean_and_stderr(column)) < local_regret for column in final_regrets.T)

    epsilon = _least(question.epsilon, lambda e: helps(replace(question, epsilon=e)))
    silos = _least(
        float(question.problem.silos),
        lambda m: helps(replace(question, problem=replace(question.problem, silos=round(m)))),
    )
    return epsilon, None if silos is None else round(silos)


def _least(start: float, is_enough: Callable[[float], bool]) -> float | None:
    """Return about the least value above ``start`` for which ``is_enough`` returns True.

    ``is_enough`` should be False below some value and True above it. The result is at most a factor
    of SEARCH_FACTOR^(1 / 2^BISECTIONS) above this value. Return None if ``is_enough`` returns False
    for all values that are tried.
    """
    low, high = start, start
    for _ in range(MAX_SEARCH_STEPS):
        low, high = high, high * SEARCH_FACTOR
        if is_enough(high):
            break
    else:
        return None
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
