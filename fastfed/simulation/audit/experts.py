"""Audits of systems of experts: clients and server as deployed, on two neighbouring datasets.

What is looked at is what all clients run. The statistic is the likelihood ratio of the two tables
under the noise that the plan claims, so an audit is not told of the fault that it is to catch.
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
# Ratios that are equal but for rounding are made equal.
_DIGITS = 9


def chosen(plan: ExpertPlan, noise: NoiseSource, losses: np.ndarray) -> Chosen:
    """The experts that the server names, in order, on losses (T, m, d): they fix what is played.

    The first is what is played before any message, where that is an expert.
    """
    clients = [ExpertClient(plan, i, noise) for i in range(plan.silos)]
    server = ExpertServer(plan, noise)
    choices = [server.start()]
    for client in clients:
        client.receive(choices[0])
    for rows in losses:
        while clients[0].due:
            choices.append(server.combine([client.report() for client in clients]))
            for client in clients:
                client.receive(choices[-1])
        for client, row in zip(clients, rows, strict=True):
            client.observe(row)
    return tuple(c.expert for c in choices if c.expert is not None)


# ---- fed-svt ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Switching:
    """One client that loses nothing for some rounds, but for the first of them, and then one a
    round with every expert, which brings switches."""

    experts: int
    switches: int
    threshold: float
    quiet: int
    horizon: int
    #: The first round's losses in the two worlds.
    first: tuple[tuple[float, ...], tuple[float, ...]]
    #: The comparison of Algorithm 5 as printed, line 9, behind the certificate's back.
    printed: bool = False

    def plan(self) -> SparseVectorPlan:
        epsilon, delta = CLAIM
        made: SparseVectorPlan = make_system(
            "fed-svt",
            horizon=self.horizon,
            dimension=self.experts,
            epsilon=epsilon,
            delta=delta,
            optimal_loss=0.0,
            switches=self.switches,
            threshold=self.threshold,
        ).plan
        return made

    def played(self) -> SparseVectorPlan:
        """The plan that is run: the claimed one, or the fault."""
        plan = self.plan()
        if not self.printed:
            return plan
        return PrintedPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)})

    def losses(self, world: int) -> np.ndarray:
        """(T, 1, d)."""
        table = np.zeros((self.horizon, 1, self.experts))
        table[self.quiet :] = 1.0
        table[0, 0] = self.first[world]
        return table


class PrintedPlan(SparseVectorPlan):
    """A planted fault: the query is compared with L, without the threshold's noise."""

    def decider(self, noise: NoiseSource) -> Decider:
        return Printed(self, noise)


class Printed(SparseVector):
    """The server of `PrintedPlan`."""

    def _threshold(self, switches: int) -> float:
        super()._threshold(switches)
        return self.plan.threshold


def switching_law(plan: SparseVectorPlan, losses: np.ndarray) -> Callable[[Chosen], float]:
    """ln of the probability of a sequence of experts (T of them) for N = 1, exactly.

    A switch may choose the expert again that is played, which is not seen: all ways to the same
    sequence are added up.
    """
    assert plan.phase_length == 1
    # The last round's losses are never sent.
    sums = losses.sum(axis=1)[:-1]
    mechanism, last = plan.noise, len(sums)
    crossings = crossing_distributions(mechanism, sums, plan.threshold)
    totals = np.maximum(np.cumsum(sums, axis=0), plan.floor)
    choices = [np.exp(mechanism.choices.log_probabilities(costs)) for costs in totals]

    @cache
    def segment(start: int, expert: int) -> np.ndarray:
        return np.exp(crossings(start, expert))

    @cache
    def law(experts: Chosen) -> float:
        total, ways = 0.0, {0: 1.0 / plan.experts}  # of the last switch's time
        for made in range(mechanism.switches + 1):
            longer: dict[int, float] = {}
            for start, p in ways.items():
                expert, spent = experts[start], made == mechanism.switches
                same = next((t for t in range(start, last + 1) if experts[t] != expert), last + 1)
                if same == last + 1:
                    total += p * (1.0 if spent else segment(start, expert)[-1])
                for after in range(start + 1, min(same, last) + 1 if not spent else 0):
                    here = segment(start, expert)[after - start - 1]
                    here *= choices[after - 1][experts[after]]
                    longer[after] = longer.get(after, 0.0) + p * here
            ways = longer
        return float(np.log(total))

    return law


def audit_switching(case: Switching, name: str, trials: int, seed: int) -> AuditResult:
    """The ratio is that of all experts that are played."""
    claimed, plan = case.plan(), case.played()
    tables = [case.losses(world) for world in (0, 1)]
    laws = [switching_law(claimed, table) for table in tables]

    def ratio(noise: SeededNoise, world: int) -> float:
        experts = chosen(plan, noise, tables[world])
        return laws[1](experts) - laws[0](experts)

    return run(name, ratio, trials, seed)


# ---- private-dartboard --------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """One client that loses nothing after the first round: coins of later ones tell nothing."""

    experts: int
    switches: int
    chance: float
    horizon: int
    #: The first round's losses in the two worlds.
    first: tuple[tuple[float, ...], tuple[float, ...]]
    #: The coin of p is not thrown, behind the certificate's back.
    bare: bool = False

    def plan(self) -> DartboardPlan:
        epsilon, delta = CLAIM
        made: DartboardPlan = make_system(
            "private-dartboard",
            horizon=self.horizon,
            dimension=self.experts,
            epsilon=epsilon,
            delta=delta,
            switch_probability=self.chance,
            switches=self.switches,
        ).plan
        return made

    def played(self) -> DartboardPlan:
        """The plan that is run: the claimed one, or the fault."""
        plan = self.plan()
        if not self.bare:
            return plan
        return BarePlan(**{f.name: getattr(plan, f.name) for f in fields(plan)})

    def losses(self, world: int) -> np.ndarray:
        """(T, 1, d)."""
        table = np.zeros((self.horizon, 1, self.experts))
        table[0, 0] = self.first[world]
        return table


class BarePlan(DartboardPlan):
    """A planted fault: the shrinking dartboard without privacy, whose coin is of the loss alone."""

    def decider(self, noise: NoiseSource) -> Decider:
        return Bare(self, noise)


class Bare(Dart):
    """The server of `BarePlan`."""

    def _keeps(self, lost: float, release: int) -> bool:
        rate = self.plan.noise.rate
        return bool(self._draw(QUERY, release) < np.exp(-rate * lost))


def board_law(plan: DartboardPlan, losses: np.ndarray) -> Callable[[Chosen], float]:
    """ln of the probability of a sequence of experts (T of them) for N = 1, exactly.

    A draw of the expert that is played is not seen: all ways to a sequence are added up.
    """
    assert plan.phase_length == 1
    sums, board = losses.sum(axis=1)[:-1], plan.noise
    choices = [np.exp(board.choices.log_probabilities(s)) for s in np.cumsum(sums, axis=0)]

    @cache
    def law(experts: Chosen) -> float:
        ways = {0: 1.0 / plan.experts}  # of how many were drawn
        for t, (before, after) in enumerate(pairwise(experts)):
            longer: dict[int, float] = {}
            for drawn, p in ways.items():
                left = drawn < board.switches
                stays = board.keeps(float(sums[t][before])) if left else 1.0
                if before == after:
                    longer[drawn] = longer.get(drawn, 0.0) + p * stays
                if left:
                    here = p * (1.0 - stays) * float(choices[t][after])
                    longer[drawn + 1] = longer.get(drawn + 1, 0.0) + here
            ways = longer
        return float(np.log(sum(ways.values())))

    return law


def audit_board(case: Board, name: str, trials: int, seed: int) -> AuditResult:
    """The ratio is that of all experts that are played."""
    claimed, plan = case.plan(), case.played()
    tables = [case.losses(world) for world in (0, 1)]
    laws = [board_law(claimed, table) for table in tables]

    def ratio(noise: SeededNoise, world: int) -> float:
        experts = chosen(plan, noise, tables[world])
        return laws[1](experts) - laws[0](experts)

    return run(name, ratio, trials, seed)


# ---- fed-dp-ope-stoch ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Vertices:
    """Two clients and two experts. One loss of client 0 is (0, 1) or (1, 0); all others favour
    expert 1, so that expert 0 is named seldom enough to tell much and often enough to be counted.

    Which round the replaced loss is of depends on the order in which the client takes its samples:
    the loss is the first of the last phase's first root. The certificate counts nothing for the
    order, and so holds for each.
    """

    silos: int = 2
    horizon: int = 8
    #: The noise divided by this, behind the certificate's back.
    fault: float = 1.0

    def plan(self) -> FrankWolfePlan:
        epsilon, delta = CLAIM
        made: FrankWolfePlan = make_system(
            "fed-dp-ope-stoch",
            silos=self.silos,
            horizon=self.horizon,
            dimension=2,
            epsilon=epsilon,
            delta=delta,
            noise="central",
            batch="largest",
        ).plan
        return made

    def played(self) -> FrankWolfePlan:
        """The plan that is run: the claimed one, or the fault."""
        plan = self.plan()
        phases = (replace(p, scales=tuple(s / self.fault for s in p.scales)) for p in plan.phases)
        # A faulty plan that claimed its budget would be refused.
        claim = plan.privacy if self.fault == 1 else None
        return replace(plan, phases=tuple(phases), privacy=claim)


VICTIM = (np.array([0.0, 1.0]), np.array([1.0, 0.0]))
# Expert 0's mean score is above expert 1's by so many noise scales, on average over both worlds.
_GAP = 0.45


def others(plan: FrankWolfePlan) -> np.ndarray:
    """Everybody else's loss (2,)."""
    phase = plan.phases[-1]
    root = plan.silos * phase.batch
    apart = _GAP * phase.scales[0] / plan.silos * root / (root - 1)
    return np.array([1.0 + apart, 1.0 - apart]) / 2.0


def table_of(plan: FrankWolfePlan, noise: NoiseSource, world: int) -> np.ndarray:
    """Losses (T, m, 2) of one run."""
    samples = plan.phases[-1].samples
    first = int(noise.sample(0, plan.phases[-1].number, len(samples))[0])
    table = np.tile(others(plan), (plan.horizon, plan.silos, 1))
    table[samples[first] - 1, 0] = VICTIM[world]
    return table


def leaf_law(plan: FrankWolfePlan, world: int) -> np.ndarray:
    """ln of the probabilities (2,) of the experts at each leaf of the last phase's first tree.

    Losses are linear: all leaves below a root have its scores, the mean of its losses.
    """
    phase = plan.phases[-1]
    root = plan.silos * phase.batch
    scores = (VICTIM[world] + (root - 1) * others(plan)) / root
    return NoisyArgmin(phase.scales[0] / plan.silos).log_probabilities(scores)


def audit_vertices(case: Vertices, name: str, trials: int, seed: int) -> AuditResult:
    """The ratio is that of the experts of the one tree that the loss enters: what the others name
    has one distribution in both worlds."""
    claimed, plan = case.plan(), case.played()
    phase = plan.phases[-1]
    leaves = [phase.offset + i for i, leaf in enumerate(phase.leaves) if leaf.tree == 1]
    ratios = leaf_law(claimed, 1) - leaf_law(claimed, 0)

    def ratio(noise: SeededNoise, world: int) -> float:
        experts = np.array(chosen(plan, noise, table_of(claimed, noise, world)))
        return float(ratios[experts[leaves]].sum())

    return run(name, ratio, trials, seed)


# ---- all of them --------------------------------------------------------------------------------


def run(
    name: str, ratio: Callable[[SeededNoise, int], float], trials: int, seed: int
) -> AuditResult:
    """Audit one system by ratio(noise, world) of ``trials`` runs in each world."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    seed = check_seed(seed)
    found = [
        # The worlds take replicates of their own: even and odd.
        [ratio(SeededNoise(seed, 2 * i + world), world) for i in range(trials)]
        for world in (0, 1)
    ]
    first, second = np.round(found, _DIGITS)
    epsilon, delta = CLAIM
    return audit(name, first, second, claimed_epsilon=epsilon, delta=delta)


#: The first expert's loss against all others': comparisons and choices both tell.
_SWAPPED = ((1.0, 0.0, 0.0), (0.0, 1.0, 1.0))
#: All experts' losses alike: comparisons tell. Of so many experts a switch seldom hides.
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
    # Noise for one score of one leaf, where an argmin of scores that move both ways costs twice
    # that, and a loss enters two leaves.
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": Vertices(fault=4.0),
}

#: Name -> audit(trials, seed).
AUDITS: dict[str, Audit] = {
    **{name: partial(audit_switching, case, name) for name, case in SWITCHING.items()},
    **{name: partial(audit_board, case, name) for name, case in BOARDS.items()},
    **{name: partial(audit_vertices, case, name) for name, case in VERTICES.items()},
}
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each dataset that make every verdict all but certain, within seconds.
TRIALS: dict[str, int] = {
    "fed-svt": 3500,
    "fault-fed-svt-printed-threshold": 5000,
    "private-dartboard": 8000,
    "fault-private-dartboard-bare-coin": 3000,
    "fed-dp-ope-stoch": 4000,
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": 3000,
}
