"""Audits of systems with experts: clients and server as deployed, on two neighbouring data sets.

The two data sets ("worlds") are two tables of losses. The statistic is the log likelihood ratio of
the chosen experts under the two tables. It is computed for the claimed plan, so an audit does not
know about the fault that it must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise

import numpy as np

from fastfed._random import QUERY, NoiseSource, SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.experts.plan import Decider, ExpertPlan
from fastfed.experts.private_dartboard import Dart, DartboardPlan
from fastfed.privacy.audit.bounds import AuditResult, audit
from fastfed.privacy.audit.experts import crossing_distributions
from fastfed.privacy.mechanisms.sparse_vector import NoisyArgmin
from fastfed.simulation.systems import make_system

Audit = Callable[[int, int], AuditResult]
Chosen = tuple[int, ...]

CLAIM = (1.0, 0.0)
# Log ratios are rounded to this many digits, so that ratios that differ by rounding become equal.
_DIGITS = 9


def chosen_experts(plan: ExpertPlan, noise: NoiseSource, losses: np.ndarray) -> Chosen:
    """Run a federation of experts, and return the experts that the server chooses, in order.

    ``losses`` (T, M, d) are by round, client and expert. The first expert is the choice before any
    message. If a choice of the server is a vector of weights instead of a single expert, the result
    has no entry for it.
    """
    clients = [ExpertClient(plan, i, noise) for i in range(plan.silos)]
    server = ExpertServer(plan, noise)
    choices = [server.start()]
    for client in clients:
        client.receive(choices[0])
    for round_losses in losses:
        while clients[0].due:
            choices.append(server.combine([client.report() for client in clients]))
            for client in clients:
                client.receive(choices[-1])
        for client, loss in zip(clients, round_losses, strict=True):
            client.observe(loss)
    return tuple(choice.expert for choice in choices if choice.expert is not None)


# ---- fed-svt ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Switching:
    """A case of the audit of Fed-SVT, with one client. Only round 1 differs between the worlds.

    All losses are 0 in rounds 2 to ``quiet``. In later rounds they are 1 for every expert, which
    causes switches.
    """

    experts: int
    switches: int
    threshold: float
    quiet: int
    horizon: int
    #: Losses of the first round in the two worlds.
    first: tuple[tuple[float, ...], tuple[float, ...]]
    #: Planted fault, unknown to the certificate: the comparison as printed in Algorithm 5, line 9.
    printed: bool = False

    def plan(self) -> SparseVectorPlan:
        """Return the plan that the audit claims to run, without the planted fault."""
        epsilon, delta = CLAIM
        plan: SparseVectorPlan = make_system(
            "fed-svt",
            horizon=self.horizon,
            dimension=self.experts,
            epsilon=epsilon,
            delta=delta,
            optimal_loss=0.0,
            switches=self.switches,
            threshold=self.threshold,
        ).plan
        return plan

    def simulated_plan(self) -> SparseVectorPlan:
        """Return the plan to run: the claimed plan, or a plan with the planted fault."""
        plan = self.plan()
        if not self.printed:
            return plan
        return PrintedPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)})

    def losses(self, world: int) -> np.ndarray:
        """Return the losses (T, 1, d) of the client in world 0 or 1."""
        table = np.zeros((self.horizon, 1, self.experts))
        table[self.quiet :] = 1.0
        table[0, 0] = self.first[world]
        return table


class PrintedPlan(SparseVectorPlan):
    """A planted fault: the noisy query is compared with the threshold L, which gets no noise."""

    def decider(self, noise: NoiseSource) -> Decider:
        """Return the faulty server."""
        return Printed(self, noise)


class Printed(SparseVector):
    """The server of `PrintedPlan`."""

    def _threshold(self, switches: int) -> float:
        """Return the threshold without noise; the noise is drawn as usual, but not used."""
        super()._threshold(switches)
        return self.plan.threshold


def switching_law(plan: SparseVectorPlan, losses: np.ndarray) -> Callable[[Chosen], float]:
    """Return a function that computes the log-probability of a sequence of T chosen experts.

    The losses have shape (T, 1, d), and the plan must exchange messages before every round. The
    result is exact. A switch can choose the current expert again, which cannot be seen. So the
    function adds up the probabilities of all times of switches that give the same sequence.
    """
    assert plan.phase_length == 1
    # Losses of the last round are never sent.
    sums = losses.sum(axis=1)[:-1]
    mechanism, last = plan.noise, len(sums)
    crossings = crossing_distributions(mechanism, sums, plan.threshold)
    totals = np.maximum(np.cumsum(sums, axis=0), plan.floor)
    choices = [np.exp(mechanism.choices.log_probabilities(costs)) for costs in totals]

    @cache
    def segment(start: int, expert: int) -> np.ndarray:
        """Return the distribution of the time of the next switch after round ``start``.

        ``expert`` is the expert that was chosen at ``start``.

        Entry i is the probability of a switch i + 1 rounds after ``start``. The last entry is the
        probability that there is no switch.
        """
        return np.exp(crossings(start, expert))

    @cache
    def law(experts: Chosen) -> float:
        """Return the log-probability of a sequence of chosen experts."""
        # `total` adds up the probability of the whole sequence. `by_last_switch` maps the time of
        # the last switch -> probability of this time together with the experts so far.
        total, by_last_switch = 0.0, {0: 1.0 / plan.experts}
        for switches in range(mechanism.switches + 1):
            next_by_switch: dict[int, float] = {}
            for start, p in by_last_switch.items():
                expert, no_switch_left = experts[start], switches == mechanism.switches
                first_change = next(
                    (t for t in range(start, last + 1) if experts[t] != expert), last + 1
                )
                if first_change == last + 1:
                    total += p * (1.0 if no_switch_left else segment(start, expert)[-1])
                # The next switch comes at the latest when the expert changes.
                latest_switch = start if no_switch_left else min(first_change, last)
                for switch_time in range(start + 1, latest_switch + 1):
                    p_switch = segment(start, expert)[switch_time - start - 1]
                    p_switch *= choices[switch_time - 1][experts[switch_time]]
                    next_by_switch[switch_time] = (
                        next_by_switch.get(switch_time, 0.0) + p * p_switch
                    )
            by_last_switch = next_by_switch
        return float(np.log(total))

    return law


def audit_switching(case: Switching, name: str, trials: int, seed: int) -> AuditResult:
    """Audit Fed-SVT in one case, with ``trials`` runs in each of two worlds.

    The statistic is the log likelihood ratio of the sequence of chosen experts.
    """
    claimed, plan = case.plan(), case.simulated_plan()
    tables = [case.losses(world) for world in (0, 1)]
    laws = [switching_law(claimed, table) for table in tables]

    def log_ratio(noise: SeededNoise, world: int) -> float:
        """Run the federation once in a world; return the log likelihood ratio of its choices."""
        experts = chosen_experts(plan, noise, tables[world])
        return laws[1](experts) - laws[0](experts)

    return run(name, log_ratio, trials, seed)


# ---- private-dartboard --------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """A case of the audit of the private dartboard, with one client.

    Only round 1 differs between the worlds. Losses after round 1 are 0, so later coins reveal
    nothing.
    """

    experts: int
    switches: int
    chance: float
    horizon: int
    #: Losses of the first round in the two worlds.
    first: tuple[tuple[float, ...], tuple[float, ...]]
    #: Planted fault: the coin that ignores the loss is not tossed, unknown to the certificate.
    bare: bool = False

    def plan(self) -> DartboardPlan:
        """Return the plan that the audit claims to run, without the planted fault."""
        epsilon, delta = CLAIM
        plan: DartboardPlan = make_system(
            "private-dartboard",
            horizon=self.horizon,
            dimension=self.experts,
            epsilon=epsilon,
            delta=delta,
            switch_probability=self.chance,
            switches=self.switches,
        ).plan
        return plan

    def simulated_plan(self) -> DartboardPlan:
        """Return the plan to run: the claimed plan, or a plan with the planted fault."""
        plan = self.plan()
        if not self.bare:
            return plan
        return BarePlan(**{f.name: getattr(plan, f.name) for f in fields(plan)})

    def losses(self, world: int) -> np.ndarray:
        """Return the losses (T, 1, d) of the client in world 0 or 1."""
        table = np.zeros((self.horizon, 1, self.experts))
        table[0, 0] = self.first[world]
        return table


class BarePlan(DartboardPlan):
    """A planted fault: the dartboard without privacy, whose coin depends on the loss only."""

    def decider(self, noise: NoiseSource) -> Decider:
        """Return the faulty server."""
        return Bare(self, noise)


class Bare(Dart):
    """The server of `BarePlan`."""

    def _keeps(self, expert_loss: float, release: int) -> bool:
        """Return whether the current expert stays, without the coin that ignores the loss."""
        rate = self.plan.noise.rate
        return bool(self._draw(QUERY, release) < np.exp(-rate * expert_loss))


def board_law(plan: DartboardPlan, losses: np.ndarray) -> Callable[[Chosen], float]:
    """Return a function that computes the log-probability of a sequence of T chosen experts.

    The losses have shape (T, 1, d), and the plan must exchange messages before every round. The
    result is exact. A draw of the current expert cannot be seen. So the function adds up the
    probabilities of all numbers of draws that give the same sequence.
    """
    assert plan.phase_length == 1
    sums, board = losses.sum(axis=1)[:-1], plan.noise
    choices = [np.exp(board.choices.log_probabilities(s)) for s in np.cumsum(sums, axis=0)]

    @cache
    def law(experts: Chosen) -> float:
        """Return the log-probability of a sequence of chosen experts."""
        # Number of draws so far -> probability of this number together with the experts so far.
        by_draws = {0: 1.0 / plan.experts}
        for t, (before, after) in enumerate(pairwise(experts)):
            next_by_draws: dict[int, float] = {}
            for draws, p in by_draws.items():
                draws_left = draws < board.switches
                p_stay = board.keeps(float(sums[t][before])) if draws_left else 1.0
                if before == after:
                    next_by_draws[draws] = next_by_draws.get(draws, 0.0) + p * p_stay
                if draws_left:
                    p_draw = p * (1.0 - p_stay) * float(choices[t][after])
                    next_by_draws[draws + 1] = next_by_draws.get(draws + 1, 0.0) + p_draw
            by_draws = next_by_draws
        return float(np.log(sum(by_draws.values())))

    return law


def audit_board(case: Board, name: str, trials: int, seed: int) -> AuditResult:
    """Audit the private dartboard in one case, with ``trials`` runs in each of two worlds.

    The statistic is the log likelihood ratio of the sequence of chosen experts.
    """
    claimed, plan = case.plan(), case.simulated_plan()
    tables = [case.losses(world) for world in (0, 1)]
    laws = [board_law(claimed, table) for table in tables]

    def log_ratio(noise: SeededNoise, world: int) -> float:
        """Run the federation once in a world; return the log likelihood ratio of its choices."""
        experts = chosen_experts(plan, noise, tables[world])
        return laws[1](experts) - laws[0](experts)

    return run(name, log_ratio, trials, seed)


# ---- fed-dp-ope-stoch ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Vertices:
    """A case of the audit of Fed-DP-OPE-Stoch, with two clients and two experts.

    One loss of client 0 is (0, 1) in world 0 and (1, 0) in world 1. All other losses favour expert
    1, so that expert 0 is chosen rarely enough to be informative, and often enough to be counted.

    The replaced loss is the first sample of the first tree of the last phase, so its round depends
    on the random order of the client's samples. The guarantee does not rely on that order, so it
    must hold for each order.
    """

    silos: int = 2
    horizon: int = 8
    #: Planted fault: the noise is divided by this number, unknown to the certificate. With 1 there
    #: is no fault.
    fault: float = 1.0

    def plan(self) -> FrankWolfePlan:
        """Return the plan that the audit claims to run, without the planted fault."""
        epsilon, delta = CLAIM
        plan: FrankWolfePlan = make_system(
            "fed-dp-ope-stoch",
            silos=self.silos,
            horizon=self.horizon,
            dimension=2,
            epsilon=epsilon,
            delta=delta,
            noise="central",
            batch="largest",
        ).plan
        return plan

    def simulated_plan(self) -> FrankWolfePlan:
        """Return the plan to run: the claimed plan, or a plan with the planted fault."""
        plan = self.plan()
        phases = (replace(p, scales=tuple(s / self.fault for s in p.scales)) for p in plan.phases)
        # Drop the claim of a faulty plan, which would be refused otherwise.
        claim = plan.privacy if self.fault == 1 else None
        return replace(plan, phases=tuple(phases), privacy=claim)


#: The replaced loss of client 0 in each world: a vector with the losses of both experts.
VICTIM = (np.array([0.0, 1.0]), np.array([1.0, 0.0]))
# Difference between the mean scores of experts 0 and 1, averaged over both worlds, divided by the
# scale of the noise.
_GAP = 0.45


def losses_of_others(plan: FrankWolfePlan) -> np.ndarray:
    """Return the losses (2,) of experts 0 and 1 in all samples except the replaced one.

    Expert 1 has the smaller loss. The difference is such that the two mean scores, averaged over
    both worlds, differ by `_GAP` times the noise scale; see `Vertices` for the reason.
    """
    phase = plan.phases[-1]
    samples_at_root = plan.silos * phase.batch
    difference = _GAP * phase.scales[0] / plan.silos * samples_at_root / (samples_at_root - 1)
    return np.array([1.0 + difference, 1.0 - difference]) / 2.0


def losses_of_run(plan: FrankWolfePlan, noise: NoiseSource, world: int) -> np.ndarray:
    """Return the losses (T, M, 2) of one run in world 0 or 1.

    The replaced loss is in the round that client 0 samples first in the last phase. ``noise``
    decides which round that is.
    """
    samples = plan.phases[-1].samples
    first_sample = int(noise.sample(0, plan.phases[-1].number, len(samples))[0])
    table = np.tile(losses_of_others(plan), (plan.horizon, plan.silos, 1))
    table[samples[first_sample] - 1, 0] = VICTIM[world]
    return table


def leaf_law(plan: FrankWolfePlan, world: int) -> np.ndarray:
    """Return the log probabilities (2,) of the experts at each leaf of the last phase's first tree.

    ``world`` (0 or 1) selects the replaced loss. Losses are linear, so the scores of the two
    experts are the same at every leaf of a tree as at its root: the mean of the losses of the
    root's samples.
    """
    phase = plan.phases[-1]
    samples_at_root = plan.silos * phase.batch
    scores = (VICTIM[world] + (samples_at_root - 1) * losses_of_others(plan)) / samples_at_root
    return NoisyArgmin(phase.scales[0] / plan.silos).log_probabilities(scores)


def audit_vertices(case: Vertices, name: str, trials: int, seed: int) -> AuditResult:
    """Audit Fed-DP-OPE-Stoch in one case, with ``trials`` runs in each of two worlds.

    The statistic is the log likelihood ratio of the experts that are chosen in the tree with the
    replaced loss. The experts of the other trees have the same distribution in both worlds.
    """
    claimed, plan = case.plan(), case.simulated_plan()
    phase = plan.phases[-1]
    leaves = [phase.offset + i for i, leaf in enumerate(phase.leaves) if leaf.tree == 1]
    log_ratios = leaf_law(claimed, 1) - leaf_law(claimed, 0)

    def log_ratio(noise: SeededNoise, world: int) -> float:
        """Run the federation once; return the log likelihood ratio of its choices in the tree."""
        experts = np.array(chosen_experts(plan, noise, losses_of_run(claimed, noise, world)))
        return float(log_ratios[experts[leaves]].sum())

    return run(name, log_ratio, trials, seed)


# ---- all audits ---------------------------------------------------------------------------------


def run(
    name: str, log_ratio: Callable[[SeededNoise, int], float], trials: int, seed: int
) -> AuditResult:
    """Audit one system with ``trials`` runs in each of two worlds (neighbouring datasets).

    ``log_ratio(noise, world)`` runs the system once in world 0 or 1, and returns log(P1 / P0). P1
    and P0 are the likelihoods of the outcome of this run in world 1 and in world 0.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    seed = check_seed(seed)
    ratios = [
        # World 0 uses even replicates and world 1 odd ones, so that their noise is independent.
        [log_ratio(SeededNoise(seed, 2 * i + world), world) for i in range(trials)]
        for world in (0, 1)
    ]
    statistics_0, statistics_1 = np.round(ratios, _DIGITS)
    epsilon, delta = CLAIM
    return audit(name, statistics_0, statistics_1, claimed_epsilon=epsilon, delta=delta)


#: The losses of expert 0 and of all others are swapped: comparisons and choices reveal the world.
_SWAPPED = ((1.0, 0.0, 0.0), (0.0, 1.0, 1.0))
#: The losses of all experts change: comparisons reveal the world. With 12 experts, a switch rarely
#: chooses the current expert again, which would hide it.
_SHIFTED = ((0.0,) * 12, (1.0,) * 12)

SWITCHING = {
    "fed-svt": Switching(3, 2, threshold=1.0, quiet=6, horizon=10, first=_SWAPPED),
    "fault-fed-svt-printed-threshold": Switching(
        12, 1, threshold=0.5, quiet=6, horizon=10, first=_SHIFTED, printed=True
    ),
}
BOARDS = {
    "private-dartboard": Board(3, 2, 0.2, horizon=4, first=_SWAPPED),
    "fault-private-dartboard-bare-coin": Board(12, 1, 0.2, horizon=3, first=_SHIFTED, bare=True),
}
VERTICES = {
    "fed-dp-ope-stoch": Vertices(),
    # Noise as for one score of one leaf. But an argmin of scores that move in both directions needs
    # twice that noise, and a loss is in two leaves.
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": Vertices(fault=4.0),
}

#: Function audit(trials, seed) of each audit, by name.
AUDITS: dict[str, Audit] = {
    **{name: partial(audit_switching, case, name) for name, case in SWITCHING.items()},
    **{name: partial(audit_board, case, name) for name, case in BOARDS.items()},
    **{name: partial(audit_vertices, case, name) for name, case in VERTICES.items()},
}
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each data set, enough for a nearly certain verdict within seconds.
TRIALS: dict[str, int] = {
    "fed-svt": 3500,
    "fault-fed-svt-printed-threshold": 5000,
    "private-dartboard": 8000,
    "fault-private-dartboard-bare-coin": 3000,
    "fed-dp-ope-stoch": 4000,
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": 3000,
}
