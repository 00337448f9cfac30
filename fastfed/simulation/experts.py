"""The two drivers of curves with experts: message by message, or from sums over all clients.

The fast driver gets sums of all clients' losses, or all clients' gradients, from compiled code, and
passes them to the same server as the step driver. Losses are integer multiples of a unit, so their
sums are exact. So the two drivers, with any number of threads, give the same bits.

A *decision* x is an expert, or weights of the d experts; it is always stored as weights (d,). A
*stretch* is a range of rounds between two exchanges of messages, in which the decision does not
change. An *edge* is the last round of a stretch.
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
from fastfed._random import SAMPLE, SCORE_NOISE, SeededNoise
from fastfed.environments.base import Adversary
from fastfed.experts.baselines import Hedge, HedgePlan, Leader, LeaderPlan
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan, NoisyLeast, Phase, Walk
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.experts.plan import (
    CompiledRule,
    ExpertChoice,
    ExpertPlan,
    Gradient,
    Stretches,
    check_expert_plan,
)
from fastfed.simulation.driver import OBJECT, Driver, Outcome, Progress, Term, outcome_term, spaced
from fastfed.simulation.expert_course import Course
from fastfed.simulation.snapshots import Snapshot

#: Limits of one call into the compiled losses: numbers in the sums that it returns, losses that it
#: adds up, and calls of a user's Python function that it makes.
MAX_SUMS, MAX_LOSSES, MAX_CALLS = 2**20, 2**27, 2**12
#: Largest number of sums in a block whose decisions are made at once; they fit a core's cache.
MAX_SUMS_TOGETHER = 2**16
#: Largest number of coins in a round for `run_coins`. With more, sums by blocks are faster.
MAX_COINS = 2**12


class Ledger:
    """Accumulates the group regret, by the adversary's definition of regret.

    The loss of the decision is added once per stretch (rounds between two exchanges), not once per
    round. So the step driver and the fast driver have the same rounding errors.
    """

    #: Attributes that change during a run, which snapshots store.
    KEPT: ClassVar = ("regret", "_at", "_lost", "_total", "_rounds", "_sums")

    def __init__(self, adversary: Adversary, checkpoints: np.ndarray) -> None:
        self.adversary, self.checkpoints = adversary, checkpoints
        self.regret = np.zeros(len(checkpoints))
        self._at = 0  # position of the next checkpoint
        self._lost = 0.0  # loss of the decisions so far
        self._total = np.zeros(adversary.losses.experts)  # loss of every expert so far
        # Number of rounds, and loss of every expert, since the last call of `settle`.
        self._rounds, self._sums = 0, np.zeros_like(self._total)
        self._last_x: np.ndarray | None = None
        self._expert: int | None = None  # the expert that _last_x chooses, if it chooses one
        self._gap_of: dict[int, float] = {}  # expected gap to the best expert, by expert

    @property
    def needs_sums(self) -> bool:
        """True if the regret depends on the losses of every expert, which callers must then pass.

        False for pseudo-regret, and for regret against a known optimum.
        """
        return self.adversary.suboptimality is None and self.adversary.optimum is None

    def played(self, first: int, last: int, x: np.ndarray, sums: np.ndarray | None) -> None:
        """Record rounds first..last, in which all clients used the decision x (d,).

        Only ``last`` may be a checkpoint. ``sums`` (d,) holds the loss of every expert, added up
        over these rounds and all clients; it may be None unless `needs_sums`.
        """
        losses, optimum = self.adversary.losses, self.adversary.optimum
        if optimum is not None:
            self._lost = losses.excess(first, last, x, optimum, self._lost)
        self._rounds += last - first + 1
        if sums is not None and self.needs_sums:
            self._sums += sums
        if self._at < len(self.checkpoints) and last == self.checkpoints[self._at]:
            self.settle(x)
            best_loss = float(self._total.min()) if self.needs_sums else 0.0
            self.regret[self._at] = self._lost - best_loss
            self._at += 1

    def played_many(
        self,
        edges: np.ndarray,
        settles: np.ndarray,
        decisions: np.ndarray,
        weights: np.ndarray | None,
        sums: np.ndarray | None,
    ) -> None:
        """Record the decisions in n ranges of rounds, as n calls of `played` would.

        Parameters
        ----------
        edges : ndarray of int, shape (n + 1,)
            Range i has the rounds edges[i] + 1 to edges[i + 1].
        settles : ndarray of uint8, shape (n,)
            1 if `settle` is called after range i, which adds the loss of the decision since the
            last call. It is also called at every checkpoint.
        decisions : ndarray of int, shape (n,)
            The expert that was chosen in range i, or the row of ``weights`` that was used.
        weights : ndarray, shape (k, d), or None
            Decisions that are weights of experts. None if each decision is a single expert.
        sums : ndarray of int64, shape (n, d), or None
            The loss of each expert in each range, in multiples of ``losses.unit``. Pseudo-regret
            does not need these losses.
        """
        gaps = None
        if self.adversary.suboptimality is not None:
            gaps = self._gaps(decisions, weights)
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
            decisions,
            weights,
            gaps,
            self.adversary.losses.silos,
            self.adversary.losses.unit,
        )

    def _gaps(self, decisions: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Return the expected loss of each decision minus that of the best expert, (n,).

        ``decisions`` and ``weights`` are as in `played_many`.
        """
        suboptimality = self.adversary.suboptimality
        assert suboptimality is not None
        if weights is not None and len(weights) == 1:
            return np.full(len(decisions), suboptimality(weights[0]))
        if weights is not None:
            of_rows = getattr(suboptimality, "of_rows", None)
            row_gaps = of_rows(weights) if of_rows else np.array(list(map(suboptimality, weights)))
            gaps: np.ndarray = row_gaps[decisions]
            return gaps
        experts, places = np.unique(decisions, return_inverse=True)
        for expert in experts:
            if int(expert) not in self._gap_of:
                unit_vector = np.zeros(self.adversary.losses.experts)
                unit_vector[expert] = 1.0
                self._gap_of[int(expert)] = suboptimality(unit_vector)
        return np.array([self._gap_of[int(expert)] for expert in experts])[places]

    def settle(self, x: np.ndarray) -> None:
        """Add the loss of the decision x (d,) over all rounds since the last call."""
        if self.adversary.suboptimality is not None:
            agent_rounds = self.adversary.losses.silos * self._rounds
            self._lost += agent_rounds * self.adversary.suboptimality(x)
        elif self.needs_sums:
            self._lost += self._inner(x)
            self._total += self._sums
            self._sums[:] = 0.0
        self._rounds = 0

    def _inner(self, x: np.ndarray) -> float:
        """Return <sums, x>, the loss of the decision x (d,) in all rounds since the last `settle`.

        It has no rounding error if x chooses a single expert.
        """
        if x is not self._last_x:
            best = int(x.argmax())
            self._last_x, self._expert = x, best if x[best] == 1.0 else None
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
    """Run rounds 1..last (default: all) of a plan, one client and round at a time.

    This is the step driver. ``progress`` is called with 1 after each round.

    Returns
    -------
    Outcome
        The results at the checkpoints.
    """
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
        losses = [loss_of(adversary.losses, i, round) for i in range(plan.silos)]
        sums = np.sum(np.array(losses), axis=0) if ledger.needs_sums else None
        ledger.played(round, round, clients[0].x, sums)
        for client, loss in zip(clients, losses, strict=True):
            client.observe(loss)
        exchanged[checkpoints == round] = server.releases
        if progress is not None:
            progress(1)
    return make_outcome(plan, ledger, exchanged, clients[0].x, server.events)


def loss_of(losses: loss_kernels.Losses, silo: int, round: int) -> np.ndarray | Gradient:
    """Return what one client observes in a round.

    For linear losses this is the vector (d,) of the experts' losses. For other losses it is a
    function that returns the gradient at a decision x (d,).
    """
    if not losses.has_rows:
        return lambda x: losses.value(silo, round, x)[1]
    loss = losses.row(silo, round)
    return (lambda x: loss_kernels.square_gradient(loss, x)) if losses.quadratic else loss


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
    """Run rounds 1..last (default: all) of a plan by means of sums over all clients.

    This is the fast driver: it does not compute each client's messages. The run resumes from the
    snapshot if there is one. ``record`` is ignored, as experts have no actions to record.

    Returns
    -------
    Outcome
        The results at the checkpoints, without actions.
    """
    check_expert_plan(plan)
    noise = SeededNoise(adversary.seed, adversary.replicate)
    decider = plan.decider(noise)
    ledger = Ledger(adversary, checkpoints)
    clients = clients_of(adversary.losses, plan, noise, threads)
    changing_objects: dict[str, Any] = {"decider": decider, "ledger": ledger}
    walks = clients if isinstance(clients, Scores) else None
    if walks is None:
        changing_objects["ask"] = clients
    course = Course(plan, changing_objects, walks, snapshot, progress)
    last_round = last or plan.horizon
    rounds_done = course.begin(last_round)
    # Compare exact types: a subclass may decide differently, so its exchanges are made one by one.
    walks_trees = type(decider) is NoisyLeast and type(plan) is FrankWolfePlan
    sums_needed = ledger.needs_sums or plan.sends == "sums"
    if in_coins(plan, decider, ledger, last_round):
        rounds_done = run_coins(decider, ledger, rounds_done, last_round, course)
        if rounds_done == last_round:
            # There was an exchange before each round but the first.
            exchanged = (checkpoints - 1) * (checkpoints <= last_round)
            return make_outcome(plan, ledger, exchanged, course.x, decider.events)
    pseudo_regret = adversary.suboptimality is not None and not sums_needed
    most_rounds = plan.horizon if pseudo_regret else rounds_of_call(adversary.losses)
    edges = stretches_of(plan, checkpoints, last_round, most_rounds)
    if adversary.optimum is None and (walks_trees or decides_in_blocks(plan, decider)):
        exchange_flags, start_edge = (
            exchange_flags_of(plan, edges),
            int(np.searchsorted(edges, rounds_done)),
        )
        if isinstance(clients, Scores):
            run_scores(
                plan, clients, ledger, edges[start_edge:], exchange_flags[start_edge:], course
            )
        else:
            run_sums(
                plan,
                decider,
                ledger,
                edges[start_edge:],
                exchange_flags[start_edge:],
                threads,
                course,
            )
        return outcome_after(plan, ledger, checkpoints, last_round, course.x, decider.events)
    ranges = ranges_with_losses(adversary.losses, edges[edges >= rounds_done], sums_needed, threads)
    for first, end, sums in ranges:
        if plan.exchanges_before(first) > course.made:
            ledger.settle(course.x)
        for release in range(course.made + 1, plan.exchanges_before(first) + 1):
            course.x = plan.move(course.x, decider.decide(clients.total(release, course.x)))
            course.made = release
            course.passed(first - 1)
        if sums is not None:
            clients.saw(sums)
        ledger.played(first, end, course.x, sums)
        course.passed(end)
    course.reached(last_round)
    return outcome_after(plan, ledger, checkpoints, last_round, course.x, decider.events)


def outcome_after(
    plan: ExpertPlan,
    ledger: Ledger,
    checkpoints: np.ndarray,
    last: int,
    x: np.ndarray,
    events: dict[str, int],
) -> Outcome:
    """Return the Outcome after rounds 1..last.

    The number of exchanges at each checkpoint follows from the plan. ``x`` (d,) is the last
    decision, and ``events`` are the decider's counts.
    """
    asking_rounds = plan.asking_rounds(last)
    counts = np.searchsorted(asking_rounds, checkpoints, side="right")
    # Some rounds may begin with several exchanges.
    if plan.exchanges_before(last) != len(asking_rounds):
        exchanges = [0, *(plan.exchanges_before(int(round)) for round in asking_rounds)]
        counts = np.array(exchanges, np.int64)[counts]
    return make_outcome(plan, ledger, counts * (checkpoints <= last), x, events)


def decides_in_blocks(plan: ExpertPlan, decider: object) -> bool:
    """Return whether ``decider`` can make all decisions of a block of rounds in one call."""
    # Compare exact types: a subclass may decide differently.
    return type(decider) in (Leader, Hedge, SparseVector) and type(plan) in (
        LeaderPlan,
        HedgePlan,
        SparseVectorPlan,
    )


class CoinRounds:
    """Runs rounds whose losses are coin flips in compiled code, with their decisions and regret.

    It implements `fastfed.experts.plan.Rounds`. ``lost`` (d,) is the cumulative loss of every
    expert in multiples of ``losses.unit``, and ``done`` is the number of completed rounds.
    """

    def __init__(self, ledger: Ledger, lost: np.ndarray, rounds_done: int) -> None:
        """Start after ``rounds_done`` rounds; ``lost`` is updated in place."""
        self.ledger, self.lost, self.done = ledger, lost, rounds_done
        self.latest = np.zeros_like(lost)  # loss of every expert in the last round, like ``lost``

    def run(
        self, rule: CompiledRule, expert: int, release: int, *, last: int, asks: bool = True
    ) -> tuple[int, int, int]:
        """Run rounds up to ``last``, or up to a decision that compiled code cannot make.

        `fastfed.experts.plan.Rounds.run` describes arguments and result.
        """
        ledger, coins = self.ledger, self.ledger.adversary.losses
        assert isinstance(coins, loss_kernels.Coins)
        self.done, expert, release, changes, ledger._lost, ledger._at = coins.course(
            rule.name,
            self.done,
            last,
            asks and self.done > 0,
            self.lost,
            self.latest,
            (expert, release, 0, rule.spent, rule.before, rule.limit, rule.query_scale),
            rule.table,
            rule.alone,
            ledger.regret,
            ledger._lost,
            ledger._at,
            ledger.checkpoints,
        )
        ledger._total[:] = self.lost
        return expert, release, changes


def in_coins(plan: ExpertPlan, decider: object, ledger: Ledger, last: int) -> bool:
    """Return whether `run_coins` can run the rounds up to ``last``.

    It needs losses that are coin flips (`losses.Coins`), few enough of them in a round, and an
    exchange before each round but the first.
    """
    losses = ledger.adversary.losses
    return (
        decides_in_blocks(plan, decider)
        and isinstance(losses, loss_kernels.Coins)
        and ledger.needs_sums
        and losses.experts <= loss_kernels.COURSE_EXPERTS
        and losses.silos <= loss_kernels.COURSE_SILOS
        and losses.silos * losses.experts <= MAX_COINS
        and plan.exchanges_before(last) == last - 1
        # All losses must be settled before and after these rounds.
        and ledger._rounds == 0
        and last in ledger.checkpoints
    )


def run_coins(decider: Any, ledger: Ledger, rounds_done: int, last: int, course: Course) -> int:
    """Run rounds ``rounds_done`` + 1 to ``last``; return the last completed round.

    The losses must be coin flips (see `in_coins`). The result is below ``last`` if a decision comes
    up that compiled code cannot make. Then the caller must run the later rounds from sums of
    losses.
    """
    plan, rounds = course.plan, CoinRounds(ledger, course.lost, rounds_done)
    most_rounds = rounds_of_call(ledger.adversary.losses)
    while rounds.done < last:
        end = min(last, rounds.done + most_rounds)
        decision = decider.decide_rounds(rounds, end)
        if rounds.done == rounds_done:
            break
        course.x = (
            decision if plan.sends_weights(1) else plan.move(course.x, ExpertChoice(0, decision))
        )
        course.made, rounds_done = plan.exchanges_before(rounds.done), rounds.done
        course.reached(rounds_done)
    return rounds_done


def exchange_flags_of(plan: ExpertPlan, edges: np.ndarray) -> np.ndarray:
    """Return for each edge whether messages are exchanged after it: 1 or 0, (n + 1,) uint8.

    An edge is the last round of a range of rounds (see `stretches_of`). Messages are exchanged at
    the beginning of the round after the edge.
    """
    last, flags = int(edges[-1]), np.zeros(len(edges), np.uint8)
    exchange_rounds = plan.asking_rounds(last)
    if is_every_round(exchange_rounds, last) and len(edges) == last + 1:
        flags[1:-1] = 1
        return flags
    exchange_rounds = exchange_rounds[exchange_rounds > 1]
    if dense(exchange_rounds, last):
        round_marks = np.zeros(last + 1, np.uint8)
        round_marks[exchange_rounds - 1] = 1
        edge_marks: np.ndarray = round_marks[edges]
        return edge_marks
    flags[np.searchsorted(edges, exchange_rounds - 1)] = 1
    return flags


def is_every_round(exchange_rounds: np.ndarray, last: int) -> bool:
    """Return whether ``exchange_rounds``, in ascending order, are exactly 2, 3, ..., last."""
    return len(exchange_rounds) == last - 1 > 0 and bool(exchange_rounds[0] == 2)


def dense(exchange_rounds: np.ndarray, last: int) -> bool:
    """Return whether one byte per round takes less memory than 8 bytes per exchange.

    If so, rounds with an exchange are marked in an array of all ``last`` rounds.
    """
    return 8 * len(exchange_rounds) > last


def run_sums(
    plan: ExpertPlan,
    decider: Any,
    ledger: Ledger,
    edges: np.ndarray,
    exchange_flags: np.ndarray,
    threads: int,
    course: Course,
) -> None:
    """Run the stretches between ``edges`` for a plan that sends sums of losses.

    A stretch is a range of rounds with one decision, an edge its last round. The decisions of a
    block of many stretches are made in one call. ``exchange_flags`` is 1 at edges after which
    messages are exchanged.
    """
    losses, cumulative_losses = ledger.adversary.losses, course.lost
    blocks = list(blocks_of(losses, edges, MAX_SUMS_TOGETHER))
    buffer = np.empty(
        (max((end - begin for begin, end in blocks), default=0), losses.experts), np.int64
    )
    # The flags of a block exclude its last edge, at which no stretch of the block begins.
    for begin, end in blocks:
        sums, flags = (
            losses.sums(edges[begin : end + 1], threads, buffer),
            exchange_flags[begin:end],
        )
        # The first exchange of the block, and the number of stretches up to its last exchange.
        positions = np.flatnonzero(flags)
        first, count = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        decisions = np.zeros(0, np.int64)
        if count:
            decisions = decider.decide_many(
                Stretches(sums[:count], losses.unit, flags[:count], cumulative_losses)
            )
        # decide_many has added the losses before the last exchange; add the losses after it.
        cumulative_losses += sums[max(count - 1, 0) :].sum(axis=0)

        def record_decisions(
            start: int, stop: int, decisions: np.ndarray, weights: np.ndarray | None,
            begin: int = begin, sums: np.ndarray = sums,
        ) -> None:  # fmt: skip
            """Record the decisions in the block's stretches start..stop - 1.

            ``decisions`` and ``weights`` are passed to `Ledger.played_many`. The default arguments
            keep the values of this iteration of the loop.
            """
            ledger.played_many(
                edges[begin + start : begin + stop + 1],
                exchange_flags[begin + start + 1 : begin + stop + 1],
                decisions,
                weights,
                sums[start:stop],
            )

        n = end - begin
        if plan.sends_weights(1):
            # The weights of the last block apply until the first exchange.
            before = first if count else n
            if before:
                record_decisions(0, before, np.zeros(before, np.int64), course.x[None])
            if count:
                rows = np.arange(n - before)
                if len(positions) < n - before:
                    rows = np.cumsum(flags[before:], dtype=np.int64) - 1
                record_decisions(before, n, rows, decisions)
                course.x = decisions[-1].copy()
        else:
            rows = decisions
            if count < n:
                rows = np.full(n, decisions[-1] if count else course.x.argmax())
                rows[:count] = decisions
            record_decisions(0, n, rows, None)
            course.x = plan.move(course.x, ExpertChoice(0, int(rows[-1])))
        course.made += len(positions)
        course.reached(int(edges[end]))


def run_scores(
    plan: Any,
    clients: Scores,
    ledger: Ledger,
    edges: np.ndarray,
    exchange_flags: np.ndarray,
    course: Course,
) -> None:
    """Run the stretches between ``edges`` for a plan that sends scores of gradients.

    A stretch is a range of rounds with one decision, an edge its last round. ``exchange_flags`` is
    1 at edges after which messages are exchanged. The exchanges of a plan are divided into phases
    (`frank_wolfe.Phase`); one call into the compiled losses makes many exchanges of a phase.
    """
    losses = ledger.adversary.losses
    for begin, end in blocks_of(losses, edges, MAX_SUMS_TOGETHER):
        sums = losses.sums(edges[begin : end + 1], clients.threads) if ledger.needs_sums else None
        cuts = [begin, *(begin + 1 + np.flatnonzero(exchange_flags[begin + 1 : end])), end]
        for first, after in pairwise(cuts):
            last_exchange = plan.exchanges_before(int(edges[first]) + 1)
            clients.walk(course, last_exchange, partial(course.reached, int(edges[first])))
            ledger.played_many(
                edges[first : after + 1],
                exchange_flags[first + 1 : after + 1],
                np.zeros(after - first, np.int64),
                course.x[None],
                None if sums is None else sums[first - begin : after - begin],
            )
        course.reached(int(edges[end]))


def blocks_of(
    losses: loss_kernels.Losses, edges: np.ndarray, most_sums: int
) -> Iterator[tuple[int, int]]:
    """Yield blocks of stretches whose losses are summed in one call, as pairs (first, end).

    A block has the stretches first..end - 1, numbered from 0. Stretch i has the rounds edges[i] + 1
    to edges[i + 1]. Each stretch has one sum for each expert. A block has at most ``most_sums``
    sums and at most as many rounds as `rounds_of_call` allows, unless it has only one stretch.
    """
    most_rounds, most_stretches = rounds_of_call(losses), max(1, most_sums // losses.experts)
    start = 0
    while start < len(edges) - 1:
        last_edge = int(np.searchsorted(edges, edges[start] + most_rounds, side="right")) - 1
        end = max(start + 1, min(last_edge, start + most_stretches))
        yield start, end
        start = end


def stretches_of(
    plan: ExpertPlan, checkpoints: np.ndarray, last: int, most_rounds: int
) -> np.ndarray:
    """Divide rounds 1..last into n ranges, and return their edges, (n + 1,).

    Range i has the rounds edges[i] + 1 to edges[i + 1], at most ``most_rounds``. A range ends at
    each checkpoint, and at the round before each exchange.
    """
    exchange_rounds = plan.asking_rounds(last)
    if is_every_round(exchange_rounds, last):
        return np.arange(last + 1)
    inner_checkpoints = checkpoints[checkpoints < last]
    cuts = np.arange(0, last, most_rounds)
    if dense(exchange_rounds, last):
        marks = np.zeros(last + 1, bool)
        for rounds in (cuts, exchange_rounds[exchange_rounds > 1] - 1, inner_checkpoints, last):
            marks[rounds] = True
        return np.flatnonzero(marks)
    edges = np.concatenate(
        [cuts, exchange_rounds[exchange_rounds > 1] - 1, inner_checkpoints, [last]]
    ).astype(np.int64)
    # The array consists of four sorted parts, which a stable sort merges fast.
    edges.sort(kind="stable")
    return edges[np.append(True, np.diff(edges) > 0)]


def rounds_of_call(losses: loss_kernels.Losses) -> int:
    """Return the largest number of rounds that one call into the compiled losses computes.

    Progress and Ctrl-C are handled between calls, so a call must not take long.
    """
    if isinstance(losses, loss_kernels.Called):
        return max(1, MAX_CALLS // losses.silos)
    return max(1, MAX_LOSSES // (losses.silos * losses.experts))


def ranges_with_losses(
    losses: loss_kernels.Losses, edges: np.ndarray, needs_losses: bool, threads: int
) -> Iterator[tuple[int, int, np.ndarray | None]]:
    """Yield (first round, last round, losses) of each range of rounds.

    Range i has the rounds edges[i] + 1 to edges[i + 1]. The losses (d,) of the experts are summed
    over the rounds of the range and over all clients; they are None unless ``needs_losses``. The
    losses of several ranges are computed in one call, which is limited to save memory.
    """
    for begin, end in blocks_of(losses, edges, MAX_SUMS):
        block_edges = edges[begin : end + 1]
        sums = losses.unit * losses.sums(block_edges, threads) if needs_losses else None
        for i, (before, after) in enumerate(pairwise(block_edges)):
            yield int(before) + 1, int(after), None if sums is None else sums[i]


class Sums:
    """Computes what all clients of a plan that sends sums of losses send together."""

    KEPT: ClassVar = ("_sum",)

    def __init__(self, experts: int) -> None:
        self._sum = np.zeros(experts)

    def saw(self, sums: np.ndarray) -> None:
        """Add the losses (d,) of all clients in some rounds to the sum for the next exchange."""
        self._sum += sums

    def total(self, release: int, x: np.ndarray) -> np.ndarray:
        """Return the sum (d,) of all clients' messages in this exchange, and start a new sum.

        ``release`` (number of the exchange) and ``x`` (decision) are ignored; `Scores` uses them.
        """
        sum_sent, self._sum = self._sum, np.zeros(len(self._sum))
        return sum_sent


class Scores:
    """Computes what all clients of a plan send together, if they send scores.

    A score of an expert is its entry in an estimated gradient of the loss, with noise if the
    clients add noise.
    """

    def __init__(
        self, plan: Any, losses: loss_kernels.Losses, noise: SeededNoise, threads: int
    ) -> None:
        self.plan, self.losses, self.noise, self.threads = plan, losses, noise, threads
        self._rounds = np.zeros((plan.silos, 0), np.int64)
        self.walking: Walk | None = None

    def saw(self, sums: np.ndarray) -> None:
        """Ignore losses (d,), which `Sums` needs: scores are computed from gradients instead."""

    def begin(self, number: int) -> None:
        """Start the phase with this number again, so that its walk can be restored."""
        for phase in self.plan.phases:
            if phase.number == number:
                self.walking = self._begin(phase)

    def _walk_of(self, release: int) -> Walk:
        """Return the walk through the trees of the phase that contains exchange ``release``.

        If the last walk was for an earlier phase, start a new walk.
        """
        phase = self.plan.phase_of(release)
        if self.walking is None or self.walking.phase is not phase:
            self.walking = self._begin(phase)
        return self.walking

    def _begin(self, phase: Phase) -> Walk:
        """Draw the clients' samples of a phase, and return a new walk through its trees."""
        key = self.noise.seed, SAMPLE, self.noise.replicate, self.plan.silos
        orders = rng.permutation_rows(*key, phase.number, len(phase.samples), phase.used)
        self._rounds = phase.samples.start + orders
        return self.plan.walk(phase, self.plan.silos, self._sum)

    def _sum(
        self, start: int, stop: int, x: np.ndarray, parent: np.ndarray | None, limit: float
    ) -> np.ndarray:
        """Return the sum (M, d) of each client's gradients at x, over samples start..stop - 1.

        With ``parent`` (d,), the gradients at the decision ``parent`` are subtracted. Gradients are
        clipped to the plan's bounds, and the entries of differences to [-limit, limit].
        """
        rounds = np.ascontiguousarray(self._rounds[:, start:stop])
        bounds = self.plan.bounds.low, self.plan.bounds.high, limit
        return self.losses.gradients(rounds, x, self.threads, parent, bounds)

    def walk(self, course: Course, last: int, on_progress: Callable[[], None]) -> None:
        """Make the exchanges up to number ``last``, and update the course (the state of the run).

        The server must be a `NoisyLeast`. The compiled losses make many exchanges of a phase in one
        call; ``on_progress`` is called after each call.
        """
        if course.made >= last:
            return
        x = course.x = course.x.copy()
        while course.made < last:
            release = course.made + 1
            course.made = self._visit_leaves(self._walk_of(release), release, last, x) - 1
            on_progress()

    def _visit_leaves(self, walk: Walk, release: int, last: int, x: np.ndarray) -> int:
        """Visit the next leaves of the walk in one call, and update the decision x in place.

        Each leaf is one exchange. This call makes exchanges ``release`` to at most ``last``, and
        returns the number of the exchange after the last visited leaf.
        """
        plan, phase = self.plan, walk.phase
        # Visit as many leaves as fit into one call, at least one. Columns 2 and 3 are the first
        # sample of a leaf and the end of its samples.
        leaves = phase.leaf_rows[walk.done : walk.done + last + 1 - release]
        last_sample = leaves[0, 2] + rounds_of_call(self.losses)
        if leaves[-1, 3] > last_sample:
            count = int(np.searchsorted(leaves[:, 3], last_sample, side="right"))
            leaves = leaves[: max(1, count)]
        self.losses.walk(
            self._rounds,
            leaves,
            release,
            x,
            walk.estimates,
            walk.points,
            plan.bounds,
            linear=plan.linear,
            noise_by=plan.protocol.noise_by,
            threads=self.threads,
        )
        walk.done += len(leaves)
        return release + len(leaves)

    def total(self, release: int, x: np.ndarray) -> np.ndarray:
        """Return the sum (d,) of all clients' scores at x in exchange ``release``.

        Clients are added in the order of their indices, so that rounding is reproducible.
        """
        plan = self.plan
        rows = self._walk_of(release).leaf(x)
        if plan.protocol.noise_by == "silos":
            key = self.noise.seed, SCORE_NOISE, self.noise.replicate, plan.silos
            rows = rows + plan.scale(release) * rng.laplace_rows(*key, release, plan.experts)
        total = np.zeros(plan.experts)
        for row in rows:
            total += row
        return total


def clients_of(
    losses: loss_kernels.Losses, plan: ExpertPlan, noise: SeededNoise, threads: int
) -> Sums | Scores:
    """Return the object that computes the sum of all clients' messages in each exchange."""
    return Scores(plan, losses, noise, threads) if plan.sends == "scores" else Sums(plan.experts)


def make_outcome(
    plan: ExpertPlan, ledger: Ledger, exchanged: np.ndarray, x: np.ndarray, events: dict[str, int]
) -> Outcome:
    """Return the Outcome of a run.

    ``exchanged`` (C,) is the number of exchanges up to each checkpoint, ``x`` (d,) is the last
    decision, and ``events`` are the decider's counts.
    """
    return Outcome(
        group_regret=ledger.regret,
        synchronisations=exchanged,
        bits_up=plan.bits_up(exchanged),
        bits_down=plan.bits_down(exchanged),
        total=x,  # what all clients know at the end
        events=events,
    )


# ---- Memory, and the driver --------------------------------------------------------------------


def curve_terms(plan: ExpertPlan, checkpoints: int, steps: bool) -> list[Term]:
    """Return the memory that a curve needs, as a list of terms in bytes, without its Outcome.

    ``checkpoints`` is the number of checkpoints; ``steps`` selects the step driver.
    """
    d, m = plan.experts, plan.silos
    size_text = f"{spaced(m)} clients x {spaced(d)} experts"
    edges = plan.exchanges + min(checkpoints, plan.horizon)
    terms = [
        # Five arrays of edges exist while `stretches_of` collects, sorts and filters them.
        Term("stretches of rounds", 8 * 5 * edges, spaced(edges), "exchanges"),
        Term("decisions", 8 * 10 * d, f"{spaced(d)} experts", "experts"),
        Term("clients", plan.memory(), size_text, "clients or experts"),
    ]
    if steps:
        return [
            *terms,
            Term("losses of a round", m * (4 * 8 * d + 4 * OBJECT), size_text, "clients"),
        ]
    sums = min(max(MAX_SUMS, d), max(1, edges) * d)
    return [*terms, Term("sums of losses", 16 * sums, f"{spaced(d)} experts", "experts")]


def memory(
    plan: ExpertPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Return the memory that one curve needs in one replicate, as a list of terms in bytes.

    ``record`` is ignored, as experts have no actions to record; see `curve_terms` for the others.
    """
    return [*curve_terms(plan, checkpoints, steps), outcome_term(checkpoints, plan.experts)]


DRIVER = Driver(run, run_steps, memory, snapshots=True)
