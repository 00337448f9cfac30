"""What playing takes in memory, from the shapes of the arrays that drivers allocate.

An estimate is a list of terms, each with a name, its bytes, and what they are made of. It is of
what is really written to: zeros that nobody touches take no memory, and neither do pages of a
mapped file, which the system takes back when it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._memory import available, format_size
from fastfed._validate import InputError
from fastfed.environments import EnvironmentSpec, LossSpec
from fastfed.experts.plan import ExpertPlan
from fastfed.privacy.mechanisms.winsorized import padded_dimension
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Plan
from fastfed.protocols.trigger import DETERMINANT, PRIVATE_DETERMINANT
from fastfed.simulation import compiled
from fastfed.simulation.dispatch import AnyPlan
from fastfed.simulation.experts import MOST_SUMS

#: Bytes of a Python object with a few fields, and of a number in a list.
OBJECT, NUMBER = 200, 40

#: Of a silo of the step driver: its objects, and how many statistics its arrays are.
SILO, SILO_STATISTICS, LEVEL_STATISTICS = 3500, 5, 2

#: From this dimension on actions are brought to 16 bits as they are made (WIDE, src/ff_scores.c).
SHORT = 32

#: Bytes by release of a plan's arrays while they are made.
RELEASE = 80


@dataclass(frozen=True)
class Term:
    """One part of an estimate."""

    name: str
    bytes: int
    of: str = ""  # such as "1 000 silos x d = 57"
    less: str = ""  # what makes it smaller, such as "silos"

    def times(self, factor: float, of: str = "") -> Term:
        """So many of it at once."""
        if factor == 1:
            return self
        return Term(self.name, int(self.bytes * factor), f"{self.of}{of}", self.less)


def total(terms: Iterable[Term]) -> int:
    """Bytes of all terms."""
    return sum(term.bytes for term in terms)


def merged(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Terms of one name as one, that of the largest, the largest first."""
    by_name: dict[str, list[Term]] = {}
    for term in terms:
        by_name.setdefault(term.name, []).append(term)
    found = []
    for name, alike in by_name.items():
        first = max(alike, key=lambda term: term.bytes)
        found.append(Term(name, total(alike), first.of, first.less))
    return tuple(sorted(found, key=lambda term: -term.bytes))


def spaced(number: int) -> str:
    """10 000 for 10000."""
    return f"{number:,}".replace(",", " ")


# ---- what is made before anything is played ------------------------------------------------------


def check_before(horizon: int, checkpoints: int, batches: Iterable[int]) -> None:
    """InputError where the arrays by checkpoint and by release would not fit into memory.

    ``batches``: rounds between two releases, of each curve that has a fixed number of them.
    """
    count = min(checkpoints, horizon)
    releases = sum(horizon // batch for batch in batches if batch >= 1)
    terms = (
        Term("rounds of checkpoints", 24 * count, spaced(count), "checkpoints"),
        Term("what holds after each release", RELEASE * releases, spaced(releases), "releases"),
    )
    most = available()
    if most is not None and total(terms) > most:
        raise InputError(f"{sentence(terms)}, and {format_size(most)} are available")


def sentence(terms: Iterable[Term]) -> str:
    """What a run needs, and for what."""
    found = merged(terms)
    needed = total(found)
    parts = [
        f"{term.name} {format_size(term.bytes)}{f': {term.of}' if term.of else ''}"
        for term in found
        if term.bytes >= 0.1 * needed
    ][:3]
    return f"this run needs about {format_size(needed)} ({'; '.join(parts)})"


# ---- one pass ------------------------------------------------------------------------------------


def of_pass(
    environment: Any,
    facts: EnvironmentSpec | LossSpec,
    plans: list[AnyPlan],
    checkpoints: int,
    threads: int,
    *,
    steps: bool = False,
    record: bool = False,
) -> list[Term]:
    """What playing these plans together over one environment takes.

    ``steps``: by the step driver, in Python objects; ``record``: with actions and rewards kept.
    An environment of one's own says what it takes beside that by a method ``memory(silos, horizon,
    curves) -> bytes``; without it nothing is counted.
    """
    first = plans[0]
    terms: list[Term] = []
    for plan in plans:
        terms += of_plan(plan, checkpoints, steps=steps, record=record)
    if isinstance(facts, EnvironmentSpec):
        most = max(_bit_levels(plan) for plan in plans)
        terms.append(scratch(facts, most, len(plans), 1 if steps else min(threads, first.silos)))
    own = getattr(environment, "memory", None)
    if own is not None:
        size = int(own(first.silos, first.horizon, len(plans)))
        terms.append(Term("data of a replicate", size, environment.kind))
    return terms


def _bit_levels(plan: AnyPlan) -> int:
    """Levels of nodes that travel as bits."""
    return plan.levels if isinstance(plan, Plan) and plan.protocol.bits else 0


def of_plan(
    plan: AnyPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """The state of one curve of one replicate, and what it leaves behind."""
    if isinstance(plan, ExpertPlan):
        return [*_of_experts(plan, checkpoints, steps), _outcome(checkpoints, plan.experts)]
    if isinstance(plan, PeerPlan):
        return _of_peers(plan, checkpoints, steps, record)
    local = plan.local if isinstance(plan, PhasePlan) else plan
    left = _outcome(checkpoints, local.statistic_size)
    if steps or local.individual:
        terms = _of_steps(local, checkpoints)
    else:
        terms = _of_state(local, checkpoints, record)
    if isinstance(plan, PhasePlan):
        # Estimates as objects; in rotated coordinates, and what is drawn beside them.
        wide = padded_dimension(plan.dimension)
        each = 8 * (2 * plan.dimension + 4 * wide) + 2 * OBJECT
        terms.append(_by_silo("estimates of all silos", plan.silos * each, local))
    return [*terms, left]


def _by_silo(name: str, size: int, plan: Plan, less: str = "silos") -> Term:
    return Term(name, size, f"{spaced(plan.silos)} silos x d = {plan.dimension}", less)


def _of_state(plan: Plan, checkpoints: int, record: bool) -> list[Term]:
    """Of the compiled driver."""
    sizes = {name: _bytes(*one) for name, one in compiled.shapes(plan, checkpoints, record).items()}
    # Only pools whose rows come again remember contenders: the environment counts them.
    sizes.pop("contend")
    curve = sizes.pop("curve")
    recorded = sizes.pop("actions", 0) + sizes.pop("rewards", 0)
    noises = sizes.pop("history")
    for name, one in compiled.clock_shapes(plan).items():
        kind = {"rest": DETERMINANT, "wide": DETERMINANT, "nodes": PRIVATE_DETERMINANT}.get(name)
        if plan.trigger is None or kind in (None, plan.trigger.kind):
            sizes[f"clock {name}"] = _bytes(*one)
    # Noise scales, a tuple and an array of it, and statuses.
    states = sum(sizes.values()) + 8 * 4 * plan.silos
    marks = f"{spaced(plan.silos)} silos x {spaced(checkpoints)} checkpoints"
    rounds = f"{spaced(plan.silos)} silos x {spaced(plan.horizon)} rounds"
    return [
        _by_silo("silo states", states, plan),
        Term("regret of every silo", curve, marks, "checkpoints"),
        Term("noises of Toeplitz releases", noises, spaced(plan.releases), "releases"),
        Term("actions and rewards", recorded, rounds, "rounds"),
    ]


def _of_steps(plan: Plan, checkpoints: int) -> list[Term]:
    """Of the step driver, whose silos are objects, and which records what it plays."""
    m, s = plan.silos, plan.statistic_size
    levels = plan.levels + (plan.trigger.levels(plan.horizon) if plan.trigger else 0)
    each = SILO + 8 * s * (SILO_STATISTICS + LEVEL_STATISTICS * levels)
    # A message, its copy, and the shuffler's.
    each += 3 * (8 * s + OBJECT) if plan.batch_size else 0
    terms = [_by_silo("silos as objects", m * each, plan)]
    if plan.individual and plan.encoding is not None:
        bits = sum(
            plan.points(j) * plan.encoding.message_bits(j) for j in range(max(1, plan.levels))
        )
        # A byte each, kept until sent, sent, and shuffled.
        terms.append(_by_silo("bits of all messages", 3 * m * s * bits, plan, "points of a batch"))
    elif plan.by_users:
        size = m * plan.batch_size * (16 * s + 2 * OBJECT)
        terms.append(_by_silo("messages of users", size, plan, "points of a batch"))
    rounds = f"{spaced(m)} silos x {spaced(plan.horizon)} rounds"
    marks = f"{spaced(m)} silos x {spaced(checkpoints)} checkpoints"
    return [
        *terms,
        Term("regret of every silo", 8 * m * checkpoints, marks, "checkpoints"),
        Term("actions and rewards", 12 * m * plan.horizon, rounds, "rounds"),
    ]


def _of_peers(plan: PeerPlan, checkpoints: int, steps: bool, record: bool) -> list[Term]:
    """Part after part, or all of them message by message."""
    parts: list[list[Term]] = []
    asked = []
    for part in {(len(p.clique), p.plan.horizon): p for p in plan.parts}.values():
        kind = _of_steps if steps else lambda p, c: _of_state(p, c, record)
        parts.append(kind(part.plan, checkpoints))
        asked.append(part.plan.horizon * (1 + len(part.clique)))
    hops = 8 * plan.silos * (plan.gamma + 1)
    totals = 8 * len(plan.parts) * plan.parts[0].plan.statistic_size
    links = f"{spaced(plan.silos)} silos, {spaced(len(plan.graph.edges))} edges"
    sizes = len(plan.graph.edges) * OBJECT + hops + len(plan.parts) * OBJECT
    graph = Term("graph and parts", sizes, links, "silos")
    left = [graph, Term("totals of all parts", 2 * totals), _outcome(checkpoints, 0)]
    rounds = Term("who asked when", max(asked) + 8 * plan.horizon, less="rounds")
    if steps:
        whole = [t for part, one in zip(plan.parts, _alike(plan, parts), strict=True)
                 for t in one if part]  # fmt: skip
        return [*whole, *left]
    recorded = 12 * plan.silos * plan.horizon if record else 0
    return [*max(parts, key=total), rounds, Term("actions and rewards", recorded), *left]


def _alike(plan: PeerPlan, parts: list[list[Term]]) -> list[list[Term]]:
    """The terms of every part, from those of each kind."""
    kinds = {(len(p.clique), p.plan.horizon): None for p in plan.parts}
    by_kind = dict(zip(kinds, parts, strict=True))
    return [by_kind[len(p.clique), p.plan.horizon] for p in plan.parts]


def _of_experts(plan: ExpertPlan, checkpoints: int, steps: bool) -> list[Term]:
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


def _outcome(checkpoints: int, size: int) -> Term:
    """What a played curve leaves behind, and the lists that it is made of."""
    made = (4 * 8 + 2 * NUMBER) * checkpoints + 8 * size
    return Term("counts at checkpoints", made, spaced(checkpoints), "checkpoints")


def scratch(facts: EnvironmentSpec, bit_levels: int, curves: int, threads: int) -> Term:
    """Of all threads: the actions of a round, and what scores are computed in.

    As ff_play_scratch of src/ff_play.c, of which only what is written to counts.
    """
    k, d = facts.actions, facts.dimension
    s = d + d * (d + 1) // 2
    # Made of normals in float32, in a buffer for float64; then in 16 bits, or as panels, bounds,
    # candidates.
    actions = 4 * k * (2 * d + 5) if facts.contexts_made else 0
    scores = k * (8 + 8 + 4 + 4) + 2 * k * (d + 1) * (d >= SHORT)
    # The factor in float32 and in 16 bits, what is refreshed, noise; words of bits; what waits.
    models = 8 * (d * d + 3 * s + 16 * curves * (d + 1)) + 4 * bit_levels * s
    size = threads * (actions + scores + models)
    of = f"{spaced(k)} actions x d = {d}, {threads} thread{'s' if threads > 1 else ''}"
    return Term("actions of a round", size, of, "actions")


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def that_fit(terms: list[Term], wanted: int) -> int:
    """How many passes of these terms, up to so many, memory holds at once; InputError if none."""
    most, needed = available(), total(terms)
    if most is None or wanted * needed <= most:
        return wanted
    if needed > most:
        raise InputError(f"{sentence(terms)}, and {format_size(most)} are available")
    return max(1, most // needed)


# ---- what stays ----------------------------------------------------------------------------------


def of_results(curves: int, replicates: int, checkpoints: int) -> Term:
    """Results as they are read from the store, or collected: four numbers by checkpoint."""
    cells = curves * replicates
    # Those of all curves, and once more those of one while its rows are put together; the rounds.
    size = 32 * checkpoints * replicates * (curves + 1) + 2 * OBJECT * cells
    size += (24 + 2 * NUMBER) * checkpoints
    of = f"{spaced(cells)} curve replicates x {spaced(checkpoints)} checkpoints"
    return Term("results", size, of, "replicates or checkpoints")


def of_passes(passes: int) -> Term:
    """The list of what is left to play, and of what is done."""
    return Term("the list of passes", 3 * OBJECT * passes, spaced(passes), "replicates")
