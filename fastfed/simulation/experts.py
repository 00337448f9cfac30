"""Curves of experts in both drivers: message by message, and from sums over all clients.

The fast one asks the compiled losses for what all clients have lost together, or for all clients'
gradients at once, and hands it to the same server. Sums of losses are whole numbers of units, so
both drivers, and any number of threads, have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fastfed._kernels import experts as kernels
from fastfed._kernels import losses as loss_kernels
from fastfed._kernels import rng
from fastfed._random import SCORE_NOISE, SeededNoise
from fastfed.environments.base import Adversary
from fastfed.experts.baselines import Hedge, HedgePlan, Leader, LeaderPlan
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan, NoisyLeast, Phase, Walk
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.experts.plan import (
    ExpertChoice,
    ExpertPlan,
    Gradient,
    Stretches,
    check_expert_plan,
)
from fastfed.simulation.driver import OBJECT, Driver, Outcome, Progress, Term, outcome_term, spaced
from fastfed.simulation.expert_course import Course
from fastfed.simulation.snapshots import Snapshot

#: Of one call into the losses: numbers in its sums, losses that are added up, calls of Python.
MOST_SUMS, MOST_LOSSES, MOST_CALLS = 2**20, 2**27, 2**12
#: Sums of a block whose decisions are made at once: they stay in a core's cache.
MOST_SUMS_TOGETHER = 2**16


class Ledger:
    """Group regret as it adds up, against what the adversary says it is measured by.

    Between two exchanges one x is played, and what it loses is settled as one number, so that a
    round at a time and a stretch at a time round alike.
    """

    #: What rounds change, for snapshots.
    KEPT: ClassVar = ("regret", "_at", "_lost", "_total", "_rounds", "_sums")

    def __init__(self, adversary: Adversary, checkpoints: np.ndarray) -> None:
        self.adversary, self.checkpoints = adversary, checkpoints
        self.regret = np.zeros(len(checkpoints))
        self._at = 0
        self._lost = 0.0
        self._total = np.zeros(adversary.losses.experts)
        self._rounds, self._sums = 0, np.zeros_like(self._total)  # not settled yet
        self._seen: np.ndarray | None = None
        self._expert: int | None = None
        self._gap_of: dict[int, float] = {}  # of single experts

    @property
    def needs_sums(self) -> bool:
        """Regret needs the losses of every expert."""
        return self.adversary.suboptimality is None and self.adversary.optimum is None

    def played(self, first: int, last: int, x: np.ndarray, sums: np.ndarray | None) -> None:
        """Rounds first..last of all clients, in which x was played; no checkpoint lies before last.

        ``sums``: what every expert lost in them, (d,), where it is known.
        """
        losses, optimum = self.adversary.losses, self.adversary.optimum
        if optimum is not None:
            self._lost = losses.excess(first, last, x, optimum, self._lost)
        self._rounds += last - first + 1
        if sums is not None and self.needs_sums:
            self._sums += sums
        if self._at < len(self.checkpoints) and last == self.checkpoints[self._at]:
            self.settle(x)
            best = float(self._total.min()) if self.needs_sums else 0.0
            self.regret[self._at] = self._lost - best
            self._at += 1

    def played_many(
        self,
        edges: np.ndarray,
        settles: np.ndarray,
        which: np.ndarray,
        weights: np.ndarray | None,
        sums: np.ndarray | None,
    ) -> None:
        """Stretches edges[i] + 1 .. edges[i + 1], as `played` and `settle` one after the other.

        ``which``: the expert (n,) of each, or where ``weights`` (k, d) are given their row. They
        are settled where ``settles`` (n,) is 1, and at checkpoints. ``sums``: (n, d) whole units,
        which pseudo-regret does without.
        """
        gaps = None
        if self.adversary.suboptimality is not None:
            gaps = self._gaps(which, weights)
        self._lost, self._rounds, self._at = kernels.regret(
            self._lost,
            self._total,
            self._sums,
            self._rounds,
            self._at,
            self.checkpoints,
            self.regret,
            sums,
            edges,
            settles,
            which,
            weights,
            gaps,
            self.adversary.losses.silos,
            self.adversary.losses.unit,
        )

    def _gaps(self, which: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """What each decision loses more than the best in expectation, (n,)."""
        suboptimality = self.adversary.suboptimality
        assert suboptimality is not None
        if weights is not None:
            many = getattr(suboptimality, "of_rows", None)
            rows = many(weights) if many else np.array([suboptimality(x) for x in weights])
            found: np.ndarray = rows[which]
            return found
        played, places = np.unique(which, return_inverse=True)
        for expert in played:
            if int(expert) not in self._gap_of:
                alone = np.zeros(self.adversary.losses.experts)
                alone[expert] = 1.0
                self._gap_of[int(expert)] = suboptimality(alone)
        return np.array([self._gap_of[int(expert)] for expert in played])[places]

    def settle(self, x: np.ndarray) -> None:
        """x has been played since the last call, and something else may be from now on."""
        if self.adversary.suboptimality is not None:
            agent_rounds = self.adversary.losses.silos * self._rounds
            self._lost += agent_rounds * self.adversary.suboptimality(x)
        elif self.needs_sums:
            self._lost += self._inner(x)
            self._total += self._sums
            self._sums[:] = 0.0
        self._rounds = 0

    def _inner(self, x: np.ndarray) -> float:
        """Loss of x, exact where it is all on one expert."""
        if x is not self._seen:
            best = int(x.argmax())
            self._seen, self._expert = x, best if x[best] == 1.0 else None
        if self._expert is not None:
            return float(self._sums[self._expert])
        return float((self._sums * x).sum())


def run_steps(
    adversary: Adversary,
    plan: ExpertPlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default), one client and round at a time."""
    noise = SeededNoise(adversary.seed, adversary.replicate)
    clients = [ExpertClient(plan, i, noise) for i in range(plan.silos)]
    server = ExpertServer(plan, noise)
    ledger = Ledger(adversary, checkpoints)
    exchanged = np.zeros(len(checkpoints), np.int64)
    for client in clients:
        client.receive(server.start())
    for round in range(1, (last or plan.horizon) + 1):
        if clients[0].due:
            ledger.settle(clients[0].x)
        while clients[0].due:
            choice = server.combine([client.report() for client in clients])
            for client in clients:
                client.receive(choice)
        rows = [loss_of(adversary.losses, i, round) for i in range(plan.silos)]
        sums = np.sum(np.array(rows), axis=0) if ledger.needs_sums else None
        ledger.played(round, round, clients[0].x, sums)
        for client, loss in zip(clients, rows, strict=True):
            client.observe(loss)
        exchanged[checkpoints == round] = server.releases
        if progress is not None:
            progress(1)
    return outcome(plan, ledger, exchanged, clients[0].x, server.events)


def loss_of(losses: loss_kernels.Losses, silo: int, round: int) -> np.ndarray | Gradient:
    """Observation of one client: losses (d,), or a gradient function."""
    if not losses.has_rows:
        return lambda x: losses.value(silo, round, x)[1]
    row = losses.row(silo, round)
    return (lambda x: loss_kernels.square_gradient(row, x)) if losses.quadratic else row


def run(
    adversary: Adversary,
    plan: ExpertPlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
    snapshot: Snapshot | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) from sums over all clients; there are no actions. On from
    the snapshot if it holds an earlier part."""
    check_expert_plan(plan)
    noise = SeededNoise(adversary.seed, adversary.replicate)
    decider = plan.decider(noise)
    ledger = Ledger(adversary, checkpoints)
    ask = totals(adversary.losses, plan, noise, threads)
    parts: dict[str, Any] = {"decider": decider, "ledger": ledger}
    walks = ask if isinstance(ask, Scores) else None
    if walks is None:
        parts["ask"] = ask
    course = Course(plan, parts, walks, snapshot, progress)
    until = last or plan.horizon
    done = course.begin(until)
    # A subclass may decide otherwise, message by message.
    scores = type(decider) is NoisyLeast and type(plan) is FrankWolfePlan
    sums_needed = ledger.needs_sums or plan.sends == "sums"
    pseudo = adversary.suboptimality is not None and not sums_needed
    most = plan.horizon if pseudo else rounds_of_call(adversary.losses)
    edges = stretches_of(plan, checkpoints, until, most)
    if adversary.optimum is None and (scores or whole(plan, decider)):
        asks, at = asks_of(plan, edges), int(np.searchsorted(edges, done))
        if isinstance(ask, Scores):
            run_scores(plan, ask, ledger, edges[at:], asks[at:], course)
        else:
            run_sums(plan, decider, ledger, edges[at:], asks[at:], threads, course)
        return finished(plan, ledger, checkpoints, until, course.x, decider.events)
    played = with_sums(adversary.losses, edges[edges >= done], sums_needed, threads)
    for first, end, sums in played:
        if plan.exchanges_before(first) > course.made:
            ledger.settle(course.x)
        for release in range(course.made + 1, plan.exchanges_before(first) + 1):
            course.x = plan.move(course.x, decider.decide(ask.total(release, course.x)))
            course.made = release
            course.passed(first - 1)
        if sums is not None:
            ask.saw(sums)
        ledger.played(first, end, course.x, sums)
        course.passed(end)
    course.reached(until)
    return finished(plan, ledger, checkpoints, until, course.x, decider.events)


def finished(
    plan: ExpertPlan,
    ledger: Ledger,
    checkpoints: np.ndarray,
    last: int,
    x: np.ndarray,
    events: dict[str, int],
) -> Outcome:
    """Outcome after rounds 1..last."""
    # Exchanges are few rounds apart, or all before few rounds: checkpoints share their counts.
    asked = np.searchsorted(plan.asking_rounds(last), checkpoints, side="right")
    _, where, places = np.unique(asked, return_index=True, return_inverse=True)
    counts = np.array([plan.exchanges_before(int(checkpoints[at])) for at in where], np.int64)
    return outcome(plan, ledger, counts[places] * (checkpoints <= last), x, events)


def whole(plan: ExpertPlan, decider: object) -> bool:
    """Whether all decisions of a block of rounds can be made at once: by these classes themselves,
    for a subclass may decide otherwise."""
    return type(decider) in (Leader, Hedge, SparseVector) and type(plan) in (
        LeaderPlan,
        HedgePlan,
        SparseVectorPlan,
    )


def asks_of(plan: ExpertPlan, edges: np.ndarray) -> np.ndarray:
    """1 where messages are exchanged before the stretch that begins at an edge, (n + 1,)."""
    last, asks = int(edges[-1]), np.zeros(len(edges), np.uint8)
    asking = plan.asking_rounds(last)
    asking = asking[asking > 1]
    if dense(asking, last):
        marks = np.zeros(last + 1, np.uint8)
        marks[asking - 1] = 1
        found: np.ndarray = marks[edges]
        return found
    asks[np.searchsorted(edges, asking - 1)] = 1
    return asks


def dense(asking: np.ndarray, last: int) -> bool:
    """Whether a byte for each round takes no more than the stretches themselves."""
    return 8 * len(asking) > last


def run_sums(
    plan: ExpertPlan,
    decider: Any,
    ledger: Ledger,
    edges: np.ndarray,
    asks: np.ndarray,
    threads: int,
    course: Course,
) -> None:
    """Play the stretches, decisions of a block of them at once."""
    losses, lost = ledger.adversary.losses, course.lost
    # The last edge is where no stretch begins.
    for at, end in blocks_of(losses, edges, MOST_SUMS_TOGETHER):
        sums, part = losses.sums(edges[at : end + 1], threads), asks[at:end]
        count = int(np.flatnonzero(part)[-1]) + 1 if part.any() else 0
        found = np.zeros(0, np.int64)
        if count:
            found = decider.decide_many(Stretches(sums[:count], losses.unit, part[:count], lost))
        lost += sums[max(count - 1, 0) :].sum(axis=0)
        weights = None
        if plan.sends_weights(1):
            weights = np.concatenate([course.x[None], found]) if count else course.x[None]
            which = np.cumsum(part, dtype=np.int64)
            course.x = weights[-1]
        else:
            which = np.full(end - at, found[-1] if count else course.x.argmax())
            which[:count] = found
            course.x = plan.move(course.x, ExpertChoice(0, int(which[-1])))
        ledger.played_many(edges[at : end + 1], asks[at + 1 : end + 1], which, weights, sums)
        course.made += int(part.sum())
        course.reached(int(edges[end]))


def run_scores(
    plan: Any, ask: Scores, ledger: Ledger, edges: np.ndarray, asks: np.ndarray, course: Course
) -> None:
    """Play the stretches, exchanges of a phase at once."""
    losses = ledger.adversary.losses
    for at, end in blocks_of(losses, edges, MOST_SUMS_TOGETHER):
        sums = losses.sums(edges[at : end + 1], ask.threads) if ledger.needs_sums else None
        cuts = [at, *(at + 1 + np.flatnonzero(asks[at + 1 : end])), end]
        for first, after in pairwise(cuts):
            due = plan.exchanges_before(int(edges[first]) + 1)
            ask.walk(course, due, partial(course.reached, int(edges[first])))
            ledger.played_many(
                edges[first : after + 1],
                asks[first + 1 : after + 1],
                np.zeros(after - first, np.int64),
                course.x[None],
                None if sums is None else sums[first - at : after - at],
            )
        course.reached(int(edges[end]))


def blocks_of(
    losses: loss_kernels.Losses, edges: np.ndarray, most_sums: int
) -> Iterator[tuple[int, int]]:
    """Stretches at..end - 1 whose sums are made in one call."""
    most_rounds, most_stretches = rounds_of_call(losses), max(1, most_sums // losses.experts)
    at = 0
    while at < len(edges) - 1:
        reach = int(np.searchsorted(edges, edges[at] + most_rounds, side="right")) - 1
        end = max(at + 1, min(reach, at + most_stretches))
        yield at, end
        at = end


def stretches_of(
    plan: ExpertPlan, checkpoints: np.ndarray, last: int, most_rounds: int
) -> np.ndarray:
    """Edges (n + 1,) of stretches of rounds edges[i] + 1 .. edges[i + 1], at most so many rounds
    each, without an exchange or a checkpoint inside."""
    asking = plan.asking_rounds(last)
    inside = checkpoints[checkpoints < last]
    cuts = np.arange(0, last, most_rounds)
    if dense(asking, last):
        marks = np.zeros(last + 1, bool)
        for part in (cuts, asking[asking > 1] - 1, inside, last):
            marks[part] = True
        return np.flatnonzero(marks)
    cut = np.concatenate([cuts, asking[asking > 1] - 1, inside, [last]]).astype(np.int64)
    # Four runs in order: a stable sort merges them.
    cut.sort(kind="stable")
    return cut[np.append(True, np.diff(cut) > 0)]


def rounds_of_call(losses: loss_kernels.Losses) -> int:
    """Rounds of all silos that one call into the losses takes on: progress and Ctrl-C come between
    calls."""
    if isinstance(losses, loss_kernels.Called):
        return max(1, MOST_CALLS // losses.silos)
    return max(1, MOST_LOSSES // (losses.silos * losses.experts))


def with_sums(
    losses: loss_kernels.Losses, edges: np.ndarray, needed: bool, threads: int
) -> Iterator[tuple[int, int, np.ndarray | None]]:
    """(first, last, what every expert lost at all clients) of each stretch, made in blocks."""
    for at, end in blocks_of(losses, edges, MOST_SUMS):
        part = edges[at : end + 1]
        sums = losses.unit * losses.sums(part, threads) if needed else None
        for i, (before, after) in enumerate(pairwise(part)):
            yield int(before) + 1, int(after), None if sums is None else sums[i]


class Sums:
    """Sums that all clients of a plan send together."""

    KEPT: ClassVar = ("_sum",)

    def __init__(self, experts: int) -> None:
        self._sum = np.zeros(experts)

    def saw(self, sums: np.ndarray) -> None:
        self._sum += sums

    def total(self, release: int, x: np.ndarray) -> np.ndarray:
        sent, self._sum = self._sum, np.zeros(len(self._sum))
        return sent


class Scores:
    """Scores that all clients of a plan send together, from gradients of losses made when
    needed."""

    def __init__(
        self, plan: Any, losses: loss_kernels.Losses, noise: SeededNoise, threads: int
    ) -> None:
        self.plan, self.losses, self.noise, self.threads = plan, losses, noise, threads
        self._rounds = np.zeros((plan.silos, 0), np.int64)
        self.walking: Walk | None = None

    def saw(self, sums: np.ndarray) -> None:
        """Sums are for the regret alone."""

    def begin(self, number: int) -> None:
        """Begin the phase of this number again."""
        for phase in self.plan.phases:
            if phase.number == number:
                self.walking = self._begin(phase)

    def _walk_of(self, release: int) -> Walk:
        """The walk through the trees of the phase that an exchange is of."""
        phase = self.plan.phase_of(release)
        if self.walking is None or self.walking.phase is not phase:
            self.walking = self._begin(phase)
        return self.walking

    def _begin(self, phase: Phase) -> Walk:
        count, used = len(phase.samples), phase.used
        # Copies: a view would keep the whole order of every client.
        orders = [self.noise.sample(i, phase.number, count)[:used].copy() for i in self._silos]
        self._rounds = phase.samples.start + np.array(orders)
        return self.plan.walk(phase, self.plan.silos, self._sum)

    @property
    def _silos(self) -> range:
        return range(self.plan.silos)

    def _sum(
        self, start: int, stop: int, x: np.ndarray, parent: np.ndarray | None, most: float
    ) -> np.ndarray:
        rounds = np.ascontiguousarray(self._rounds[:, start:stop])
        bounds = self.plan.bounds.low, self.plan.bounds.high, most
        return self.losses.gradients(rounds, x, self.threads, parent, bounds)

    def walk(self, course: Course, last: int, heard: Callable[[], None]) -> None:
        """Exchanges up to the last with `NoisyLeast`, as many of a phase at once as one call should
        have."""
        if course.made >= last:
            return
        x = course.x = course.x.copy()
        while course.made < last:
            release = course.made + 1
            course.made = self._leaves(self._walk_of(release), release, last, x) - 1
            heard()

    def _leaves(self, walk: Walk, release: int, last: int, x: np.ndarray) -> int:
        """Walk on, as far as one call should; returns the next exchange. x is moved."""
        plan, phase = self.plan, walk.phase
        most = rounds_of_call(self.losses)
        taken: list[tuple[float, ...]] = []
        samples = 0
        for leaf in phase.leaves[walk.done : walk.done + last + 1 - release]:
            samples += leaf.stop - leaf.start
            if taken and samples > most:
                break
            taken.append((*leaf, phase.scales[leaf.tree - 1]))
        self.losses.walk(
            self._rounds,
            taken,
            release,
            x,
            walk.estimates,
            walk.points,
            plan.bounds,
            linear=plan.linear,
            noise_by=plan.protocol.noise_by,
            threads=self.threads,
        )
        walk.done += len(taken)
        return release + len(taken)

    def total(self, release: int, x: np.ndarray) -> np.ndarray:
        """Values that all clients send in one exchange, added up in order, (d,)."""
        plan = self.plan
        rows = self._walk_of(release).leaf(x)
        if plan.protocol.noise_by == "silos":
            key = self.noise.seed, SCORE_NOISE, self.noise.replicate, plan.silos
            rows = rows + plan.scale(release) * rng.laplace_rows(*key, release, plan.experts)
        total = np.zeros(plan.experts)
        for row in rows:
            total += row
        return total


def totals(
    losses: loss_kernels.Losses, plan: ExpertPlan, noise: SeededNoise, threads: int
) -> Sums | Scores:
    """All clients of a plan at once."""
    return Scores(plan, losses, noise, threads) if plan.sends == "scores" else Sums(plan.experts)


def outcome(
    plan: ExpertPlan,
    ledger: Ledger,
    exchanged: np.ndarray,
    x: np.ndarray,
    events: dict[str, int],
) -> Outcome:
    """Outcome of a finished curve."""
    return Outcome(
        group_regret=ledger.regret,
        synchronisations=exchanged,
        bits_up=np.array([plan.bits_up(int(k)) for k in exchanged]),
        bits_down=np.array([plan.bits_down(int(k)) for k in exchanged]),
        total=x,
        events=events,
    )


# ---- Memory, and the driver --------------------------------------------------------------------


def terms_of(plan: ExpertPlan, checkpoints: int, steps: bool) -> list[Term]:
    """Sums or gradients of all clients, and the stretches between exchanges."""
    d, m = plan.experts, plan.silos
    who = f"{spaced(m)} clients x {spaced(d)} experts"
    edges = plan.exchanges + min(checkpoints, plan.horizon)
    terms = [
        # Made, sorted, and made unique.
        Term("stretches of rounds", 8 * 5 * edges, spaced(edges), "exchanges"),
        Term("decisions", 8 * 10 * d, f"{spaced(d)} experts", "experts"),
        Term("clients", plan.memory(), who, "clients or experts"),
    ]
    if steps:
        return [*terms, Term("losses of a round", m * (4 * 8 * d + 4 * OBJECT), who, "clients")]
    sums = min(max(MOST_SUMS, d), max(1, edges) * d)
    return [*terms, Term("sums of losses", 16 * sums, f"{spaced(d)} experts", "experts")]


def memory(
    plan: ExpertPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Terms of one curve of one replicate."""
    return [*terms_of(plan, checkpoints, steps), outcome_term(checkpoints, plan.experts)]


DRIVER = Driver(run, run_steps, memory, snapshots=True)
