"""Decentralised curves in both drivers: message by message, and part by part.

The step driver sends every message along the graph, hop by hop. The compiled driver rests on what
Algorithm 3 makes sure of: all that concerns an estimator arrives before it is used again, so that
each estimator of each clique is a federation of its own, whose reports come one use late. It runs
those, and counts the messages that the step driver sends; the tests hold one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments
from fastfed._random import SeededNoise
from fastfed.bandits.peer import Message, Peer
from fastfed.privacy.account import verify
from fastfed.protocols.serverless import Network, Part, PeerPlan, Request
from fastfed.simulation import compiled
from fastfed.simulation.driver import (
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Term,
    linear_events,
    outcome_term,
    spaced,
    total,
)
from fastfed.simulation.server import step_terms
from fastfed.simulation.snapshots import Snapshot

#: Of any silo's request.
REQUEST_BYTES = Request(0, 0, 0).nbytes


def run_steps(
    environment: environments.Environment,
    plan: PeerPlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default), every message on its way."""
    noise = SeededNoise(environment.seed, environment.replicate)
    peers = [Peer(plan, i, noise) for i in range(plan.silos)]
    network: Network[Message] = Network(plan.graph, plan.gamma)
    seen = _Seen(plan, checkpoints)
    actions = np.zeros((plan.silos, plan.horizon), np.int32)
    rewards = np.zeros((plan.silos, plan.horizon))
    for round in range(1, (plan.horizon if last is None else last) + 1):
        for i, message in network.deliver():
            peers[i].receive(message)
        for i, peer in enumerate(peers):
            features, means = environment.round(i, round)
            a = peer.select(features)
            y = environment.reward(i, round, means[a])
            peer.observe(y)
            actions[i, round - 1], rewards[i, round - 1] = a, y
            seen.regret[i, round % plan.gamma] += means.max() - means[a]
        for i, peer in enumerate(peers):
            for message in peer.outbox():
                network.broadcast(i, message)
                part = plan.of_silo[i][message.estimator]
                # One synchronisation is one report of each member.
                seen.synchronisations += not isinstance(message, Request) and i == part.clique[0]
        seen.note(round, network.bytes_sent)
        if progress is not None:
            progress(1)
    # What is under way still arrives; nobody uses it, and it is not counted.
    for _ in range(plan.gamma):
        for i, message in network.deliver():
            peers[i].receive(message)
    silos = [[estimator.silo for estimator in peer.estimators] for peer in peers]
    flat = [silo for of_peer in silos for silo in of_peer]
    return Outcome(
        group_regret=seen.group(plan),
        synchronisations=seen.counts,
        bits_up=8.0 * seen.sent,
        bits_down=np.zeros(len(checkpoints)),
        events=linear_events(
            # Every member refreshes the same V.
            sum(silos[p.clique[0]][p.estimator].indefinite for p in plan.parts),
            sum(s.clipped_features for s in flat),
            sum(s.clipped_rewards for s in flat),
        ),
        total=np.array([_total(peers, p) for p in plan.parts]),
        actions=actions,
        rewards=rewards,
    )


def _total(peers: list[Peer], part: Part) -> np.ndarray:
    return peers[part.clique[0]].estimators[part.estimator].total


class _Seen:
    """Counts of the step driver at the checkpoints."""

    def __init__(self, plan: PeerPlan, checkpoints: np.ndarray) -> None:
        self.checkpoints = checkpoints
        self.regret = np.zeros((plan.silos, plan.gamma))
        self.curves = np.zeros((len(checkpoints), plan.silos, plan.gamma))
        self.synchronisations = 0
        self.counts = np.zeros(len(checkpoints), np.int64)
        self.sent = np.zeros(len(checkpoints))

    def note(self, round: int, sent: int) -> None:
        at = self.checkpoints == round
        self.curves[at] = self.regret
        self.counts[at] = self.synchronisations
        self.sent[at] = sent

    def group(self, plan: PeerPlan) -> np.ndarray:
        total = np.zeros(len(self.checkpoints))
        for part in plan.parts:
            for silo in part.clique:
                total += self.curves[:, silo, part.estimator]
        return total


@dataclass(frozen=True)
class _Added:
    """What the parts that were run add up to."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def none(cls, plan: PeerPlan, checkpoints: int, record: bool) -> _Added:
        made = {
            "group": np.zeros(checkpoints),
            "counts": np.zeros(checkpoints, np.int64),
            "sent": np.zeros(checkpoints),
            "clipped": np.zeros(2, np.int64),
            "indefinite": np.zeros(1, np.int64),
            "totals": np.zeros((len(plan.parts), plan.parts[0].plan.statistic_size)),
        }
        if record:
            made["actions"] = np.zeros((plan.silos, plan.horizon), np.int32)
            made["rewards"] = np.zeros((plan.silos, plan.horizon))
        return cls(made)

    def add(
        self, plan: PeerPlan, number: int, state: dict[str, Any], checkpoints: np.ndarray
    ) -> None:
        """Add the state of a part that was run."""
        part, sums = plan.parts[number], self.arrays
        _, at = _marks(plan, part, checkpoints)
        # Silos one after the other, as the step driver adds them: a sum could take another order.
        rows = np.vstack([sums["group"], _since_start(state["curve"])[:, at]])
        sums["group"][:] = rows.cumsum(axis=0)[-1]
        sums["counts"] += _since_start(state["synchronised"].cumsum())[at]
        sums["sent"] += _sent(plan, part, state, checkpoints)
        sums["clipped"] += state["clipped"].sum(axis=0)
        sums["indefinite"] += state["indefinite"]
        sums["totals"][number] = state["total"]
        if "actions" in sums:
            rounds = plan.rounds(part.estimator) - 1
            for row, silo in enumerate(part.clique):
                sums["actions"][silo, rounds] = state["actions"][row]
                sums["rewards"][silo, rounds] = state["rewards"][row]

    def outcome(self, checkpoints: int) -> Outcome:
        """Of all parts."""
        sums = self.arrays
        features, rewards = sums["clipped"]
        return Outcome(
            group_regret=sums["group"],
            synchronisations=sums["counts"],
            bits_up=8.0 * sums["sent"],
            bits_down=np.zeros(checkpoints),
            events=linear_events(int(sums["indefinite"][0]), int(features), int(rewards)),
            total=sums["totals"],
            actions=sums.get("actions"),
            rewards=sums.get("rewards"),
        )


def _marks(plan: PeerPlan, part: Part, checkpoints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Checkpoints of a part, in rounds of its own; and where each checkpoint finds the part among
    them, 0 before its first round."""
    uses = np.array([plan.uses(part.estimator, int(c)) for c in checkpoints])
    own = np.unique(uses[uses > 0])
    return own, np.searchsorted(own, uses, side="right")


def _since_start(curves: np.ndarray) -> np.ndarray:
    """Curves with a 0 in front, for checkpoints before a part's first round."""
    return np.pad(curves, [(0, 0)] * (curves.ndim - 1) + [(1, 0)])


def _sent(plan: PeerPlan, part: Part, state: dict[str, Any], checkpoints: np.ndarray) -> np.ndarray:
    """Bytes over all edges by each checkpoint, of all messages about one part."""
    rounds = plan.rounds(part.estimator)
    report = 8 * part.plan.statistic_size
    reported = rounds[state["synchronised_rounds"] > 0]
    total = report * _crossed(plan.clique_crossings[part.clique], reported, checkpoints)
    asked = state["requested"]
    uses = np.flatnonzero(asked.any(axis=1))
    silos = np.array(part.clique)
    askers = [silos[np.flatnonzero(asked[use])] for use in uses]
    total += REQUEST_BYTES * _asked(plan.crossings, askers, rounds[uses], checkpoints)
    return total


def _crossed(edges: np.ndarray, when: np.ndarray, checkpoints: np.ndarray) -> np.ndarray:
    """Edges crossed by each checkpoint, of messages sent at the ends of the rounds ``when``.

    They are gamma rounds apart at least: only the last one can still be on its way.
    """
    gamma = len(edges) - 1
    sent = np.searchsorted(when, checkpoints, side="right")
    if not len(when):
        return np.zeros(len(checkpoints))
    age = checkpoints - when[np.maximum(sent - 1, 0)]
    crossed = (sent - 1) * edges[gamma] + edges[np.clip(age + 1, 0, gamma)]
    return np.where(sent > 0, crossed, 0).astype(np.float64)


def _asked(
    edges: np.ndarray, askers: list[np.ndarray], when: np.ndarray, checkpoints: np.ndarray
) -> np.ndarray:
    """The same of requests: those of the silos ``askers[k]`` were sent in round ``when[k]``."""
    gamma = edges.shape[1] - 1
    whole = np.cumsum([0, *(edges[silos, gamma].sum() for silos in askers)])
    sent = np.searchsorted(when, checkpoints, side="right")
    crossed = whole[sent].astype(np.float64)
    for k in np.flatnonzero(sent):
        last = sent[k] - 1
        if (hops := checkpoints[k] - when[last] + 1) < gamma:
            crossed[k] = whole[last] + edges[askers[last], hops].sum()
    return crossed


def run(
    environment: environments.Environment,
    plan: PeerPlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Progress | None = None,
    snapshot: Snapshot | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) of every part by the compiled driver, one by one; on from
    the snapshot if it holds an earlier part."""
    verify(plan)
    until = plan.horizon if last is None else last
    added, told = _Added.none(plan, len(checkpoints), record), 0

    def opened(number: int) -> tuple[driver.Run, dict[str, Any]]:
        part = plan.parts[number]
        own, _ = _marks(plan, part, checkpoints)
        made = compiled.state(part.plan, len(own), record)
        made["synchronised_rounds"] = np.zeros(part.plan.horizon, np.uint8)
        made["requested"] = np.zeros((part.plan.horizon, len(part.clique)), np.uint8)
        run = driver.Run(
            environment,
            len(part.clique),
            part.plan.horizon,
            own,
            [made],
            threads,
            names=np.array(part.clique, np.int64),
            phase=part.estimator,
            stride=plan.gamma,
        )
        run.initialise()
        return run, made

    def tell(silos: int, rounds: int) -> None:
        nonlocal told
        told += rounds * silos
        if progress is not None:
            # In whole rounds of all silos.
            progress(told // plan.silos - (told - rounds * silos) // plan.silos)

    # The part that was being run when the snapshot was kept, and its rounds by then.
    begin, done, reached = 0, 0, None
    kept = snapshot.kept() if snapshot is not None else None
    if snapshot is not None and kept is not None and kept.stage < len(plan.parts):
        run, made = opened(kept.stage)
        uses = plan.uses(plan.parts[kept.stage].estimator, until)
        if (found := snapshot.read([made, added.arrays], uses, kept.stage, kept)) is not None:
            begin, done, reached = kept.stage, found[0], (run, made)
            run.resume(found[1])
        del run, made
    del kept
    for number, part in enumerate(plan.parts):
        silos, uses = len(part.clique), plan.uses(part.estimator, until)
        if number < begin:
            tell(silos, uses)
            continue
        run, made = reached or opened(number)
        reached = None
        states = [made, added.arrays]
        heard = compiled.keeping(run, states, 0, snapshot, partial(tell, silos), number)
        if done:
            heard(done)
        compiled.run_rounds(run, done + 1, uses, rounds_per_call, heard)
        added.add(plan, number, made, checkpoints)
        done = 0
        del run, made, states, heard  # the next part's take as much
    return added.outcome(len(checkpoints))


def memory(
    plan: PeerPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Memory of the largest part, for they run one by one, or of all, message by message."""
    parts: list[list[Term]] = []
    asked = []
    for part in {(len(p.clique), p.plan.horizon): p for p in plan.parts}.values():
        kind = step_terms if steps else lambda p, c: compiled.state_terms(p, c, record)
        parts.append(kind(part.plan, checkpoints))
        asked.append(part.plan.horizon * (1 + len(part.clique)))
    hops = 8 * plan.silos * (plan.gamma + 1)
    totals = 8 * len(plan.parts) * plan.parts[0].plan.statistic_size
    links = f"{spaced(plan.silos)} silos, {spaced(len(plan.graph.edges))} edges"
    sizes = len(plan.graph.edges) * OBJECT + hops + len(plan.parts) * OBJECT
    graph = Term("graph and parts", sizes, links, "silos")
    left = [graph, Term("totals of all parts", 2 * totals), outcome_term(checkpoints, 0)]
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


DRIVER = Driver(run, run_steps, memory, snapshots=True)
