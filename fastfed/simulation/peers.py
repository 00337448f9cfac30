"""The driver of federations without a server: message by message, or part by part in compiled code.

The step driver sends every message along the graph, hop by hop. The compiled driver uses a property
of dubey-pentland-2020, Algorithm 3: all messages about an estimator arrive before the estimator is
used again. So each estimator of each clique (a part) is a separate federation, whose reports arrive
by the estimator's next use. The compiled driver runs the parts one by one, and computes how many
messages the step driver would send. Tests compare both drivers.
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
    bytes_of,
    linear_events,
    outcome_term,
    spaced,
)
from fastfed.simulation.server import step_terms
from fastfed.simulation.snapshots import Snapshot

#: Size of a request in bytes.
REQUEST_BYTES = Request(0, 0, 0).nbytes


def run_steps(
    environment: environments.Environment,
    plan: PeerPlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (default: all), sending each message hop by hop; return the outcome."""
    noise = SeededNoise(environment.seed, environment.replicate)
    peers = [Peer(plan, i, noise) for i in range(plan.silos)]
    network: Network[Message] = Network(plan.graph, plan.gamma)
    counts = _StepCounts(plan, checkpoints)
    actions = np.zeros((plan.silos, plan.horizon), np.int32)
    rewards = np.zeros((plan.silos, plan.horizon))
    for round in range(1, (plan.horizon if last is None else last) + 1):
        for i, message in network.deliver():
            peers[i].receive(message)
        for i, peer in enumerate(peers):
            features, means = environment.round(i, round)
            action = peer.select(features)
            reward = environment.reward(i, round, means[action])
            peer.observe(reward)
            actions[i, round - 1], rewards[i, round - 1] = action, reward
            counts.regret[i, round % plan.gamma] += means.max() - means[action]
        for i, peer in enumerate(peers):
            for message in peer.outbox():
                network.broadcast(i, message)
                part = plan.of_silo[i][message.estimator]
                # In a synchronisation each member sends one report; count only the first member's.
                counts.synchronisations += not isinstance(message, Request) and i == part.clique[0]
        counts.note(round, network.bytes_sent)
        if progress is not None:
            progress(1)
    # Deliver the messages that are still on their way. They are neither used nor counted.
    for _ in range(plan.gamma):
        for i, message in network.deliver():
            peers[i].receive(message)
    silos_by_peer = [[estimator.silo for estimator in peer.estimators] for peer in peers]
    all_silos = [silo for silos in silos_by_peer for silo in silos]
    return Outcome(
        group_regret=counts.group(plan),
        synchronisations=counts.synchronisations_at,
        bits_up=8.0 * counts.bytes_at,
        bits_down=np.zeros(len(checkpoints)),
        events=linear_events(
            # All members of a part compute the same V, so count the events of the first member.
            sum(silos_by_peer[p.clique[0]][p.estimator].indefinite for p in plan.parts),
            sum(s.clipped_features for s in all_silos),
            sum(s.clipped_rewards for s in all_silos),
        ),
        total=np.array([_statistics_of_part(peers, p) for p in plan.parts]),
        actions=actions,
        rewards=rewards,
    )


def _statistics_of_part(peers: list[Peer], part: Part) -> np.ndarray:
    """Return the synchronised statistics (s,) of a part, which all silos of its clique share."""
    return peers[part.clique[0]].estimators[part.estimator].total


class _StepCounts:
    """What the step driver counts: regret, synchronisations and bytes sent.

    Arrays whose names end in ``_at`` have the values at the checkpoints. The other attributes have
    the values so far.
    """

    def __init__(self, plan: PeerPlan, checkpoints: np.ndarray) -> None:
        self.checkpoints = checkpoints
        # Cumulative regret by silo and estimator.
        self.regret = np.zeros((plan.silos, plan.gamma))
        self.regret_at = np.zeros((len(checkpoints), plan.silos, plan.gamma))
        self.synchronisations = 0
        self.synchronisations_at = np.zeros(len(checkpoints), np.int64)
        self.bytes_at = np.zeros(len(checkpoints))

    def note(self, round: int, bytes_sent: int) -> None:
        """Record regret, synchronisations and bytes after a round, if it is a checkpoint.

        ``bytes_sent`` is the number of bytes that the network has sent so far.
        """
        at_checkpoint = self.checkpoints == round
        self.regret_at[at_checkpoint] = self.regret
        self.synchronisations_at[at_checkpoint] = self.synchronisations
        self.bytes_at[at_checkpoint] = bytes_sent

    def group(self, plan: PeerPlan) -> np.ndarray:
        """Return the group regret (C,), summed in the compiled driver's order."""
        total = np.zeros(len(self.checkpoints))
        for part in plan.parts:
            for silo in part.clique:
                total += self.regret_at[:, silo, part.estimator]
        return total


@dataclass(frozen=True)
class _PartSums:
    """Sums over the parts that have been run: arrays by name. Snapshots contain these arrays.

    A part is one estimator of one clique of silos, run as a separate federation. Arrays "group"
    (regret), "counts" (synchronisations) and "sent" (bytes) have one entry for each checkpoint.
    """

    arrays: dict[str, np.ndarray]

    @classmethod
    def none(cls, plan: PeerPlan, checkpoints: int, record: bool) -> _PartSums:
        """Return sums of zeros, before the first part; ``record`` adds actions and rewards."""
        zeros = {
            "group": np.zeros(checkpoints),
            "counts": np.zeros(checkpoints, np.int64),
            "sent": np.zeros(checkpoints),
            "clipped": np.zeros(2, np.int64),
            "indefinite": np.zeros(1, np.int64),
            "totals": np.zeros((len(plan.parts), plan.parts[0].plan.statistic_size)),
        }
        if record:
            zeros["actions"] = np.zeros((plan.silos, plan.horizon), np.int32)
            zeros["rewards"] = np.zeros((plan.silos, plan.horizon))
        return cls(zeros)

    def add(
        self, plan: PeerPlan, number: int, state: dict[str, Any], checkpoints: np.ndarray
    ) -> None:
        """Add the results of part ``number`` from its final state (`compiled.state`)."""
        part, sums = plan.parts[number], self.arrays
        # At checkpoint c of the curve, the part's value is entry at[c] of [0, the values at the
        # part's checkpoints].
        _, at = _part_checkpoints(plan, part, checkpoints)
        # Add the regret of each silo to the sum of earlier parts. cumsum adds silo by silo, as the
        # step driver does; sum may add in a different order.
        terms = np.vstack([sums["group"], _with_start(state["curve"])[:, at]])
        sums["group"][:] = terms.cumsum(axis=0)[-1]
        sums["counts"] += _with_start(state["synchronised"].cumsum())[at]
        sums["sent"] += _bytes_sent(plan, part, state, checkpoints)
        sums["clipped"] += state["clipped"].sum(axis=0)
        sums["indefinite"] += state["indefinite"]
        sums["totals"][number] = state["total"]
        if "actions" in sums:
            rounds = plan.rounds(part.estimator) - 1
            for member, silo in enumerate(part.clique):
                sums["actions"][silo, rounds] = state["actions"][member]
                sums["rewards"][silo, rounds] = state["rewards"][member]

    def outcome(self, checkpoints: int) -> Outcome:
        """Return the Outcome of the plan; ``checkpoints`` is the number of checkpoints."""
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


def _part_checkpoints(
    plan: PeerPlan, part: Part, checkpoints: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Convert checkpoints of the curve to checkpoints of a part.

    A part's rounds are the rounds of the curve that use its estimator. Return the part's
    checkpoints, counted in its rounds, and for each checkpoint of the curve (C,) how many of the
    part's checkpoints are at or before it.
    """
    uses = np.array([plan.uses(part.estimator, int(c)) for c in checkpoints])
    part_checkpoints = np.unique(uses[uses > 0])
    return part_checkpoints, np.searchsorted(part_checkpoints, uses, side="right")


def _with_start(curves: np.ndarray) -> np.ndarray:
    """Return curves with a 0 in front, which is the value before a part's first round."""
    return np.pad(curves, [(0, 0)] * (curves.ndim - 1) + [(1, 0)])


def _bytes_sent(
    plan: PeerPlan, part: Part, state: dict[str, Any], checkpoints: np.ndarray
) -> np.ndarray:
    """Return the bytes of one part's messages over all edges up to each checkpoint, (C,).

    ``state`` is the part's final state. It contains in which of the part's rounds its silos
    synchronised, and in which rounds each silo requested a synchronisation.
    """
    rounds = plan.rounds(part.estimator)
    report_bytes = 8 * part.plan.statistic_size
    report_rounds = rounds[state["synchronised_rounds"] > 0]
    bytes_sent = report_bytes * _report_crossings(
        plan.clique_crossings[part.clique], report_rounds, checkpoints
    )
    requested = state["requested"]
    request_positions = np.flatnonzero(requested.any(axis=1))
    silos = np.array(part.clique)
    requesters = [silos[np.flatnonzero(requested[position])] for position in request_positions]
    bytes_sent += REQUEST_BYTES * _request_crossings(
        plan.crossings, requesters, rounds[request_positions], checkpoints
    )
    return bytes_sent


def _report_crossings(edges: np.ndarray, rounds: np.ndarray, checkpoints: np.ndarray) -> np.ndarray:
    """Return how many edges a clique's reports have crossed up to each checkpoint, (C,).

    At the end of each round in ``rounds``, all silos of the clique send reports. ``edges``
    (gamma + 1,) is the number of edges that the reports of one round have crossed after 0, 1, ...
    hops. The rounds are at least gamma apart, so only the last reports can still be on their way.
    """
    gamma = len(edges) - 1
    reports_sent = np.searchsorted(rounds, checkpoints, side="right")
    if not len(rounds):
        return np.zeros(len(checkpoints))
    # `age` is the number of rounds since the last reports were sent. At age 0 these reports have
    # crossed their first edges. All earlier reports have arrived.
    age = checkpoints - rounds[np.maximum(reports_sent - 1, 0)]
    crossed = (reports_sent - 1) * edges[gamma] + edges[np.clip(age + 1, 0, gamma)]
    return np.where(reports_sent > 0, crossed, 0).astype(np.float64)


def _request_crossings(
    edges: np.ndarray, requesters: list[np.ndarray], rounds: np.ndarray, checkpoints: np.ndarray
) -> np.ndarray:
    """Return the number of edges that all requests have crossed up to each checkpoint, (C,).

    The silos ``requesters[k]`` sent requests in round ``rounds[k]``. ``edges`` (M, gamma + 1) has
    the number of edges that each silo's message has crossed after 0, 1, ... hops. The rounds are at
    least gamma apart, so only the last requests can still be on their way.
    """
    gamma = edges.shape[1] - 1
    # Entry k is for the requests of the first k of ``rounds``, after all of them have arrived.
    crossed_in_all = np.cumsum([0, *(edges[silos, gamma].sum() for silos in requesters)])
    rounds_so_far = np.searchsorted(rounds, checkpoints, side="right")
    crossed = crossed_in_all[rounds_so_far].astype(np.float64)
    for c in np.flatnonzero(rounds_so_far):
        last = rounds_so_far[c] - 1
        if (hops := checkpoints[c] - rounds[last] + 1) < gamma:
            crossed[c] = crossed_in_all[last] + edges[requesters[last], hops].sum()
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
    """Run rounds 1..last (default: all) by the compiled driver, part by part; return the outcome.

    A part is one estimator of one clique of silos. The run resumes from the file of ``snapshot``,
    if this file exists and fits the run.
    """
    verify(plan)
    last_round = plan.horizon if last is None else last
    part_sums, agent_rounds = _PartSums.none(plan, len(checkpoints), record), 0

    def open_part(number: int) -> tuple[driver.Run, dict[str, Any]]:
        """Return a new run of one part, and the part's fresh state."""
        part = plan.parts[number]
        part_checkpoints, _ = _part_checkpoints(plan, part, checkpoints)
        state = compiled.state(part.plan, len(part_checkpoints), record)
        state["synchronised_rounds"] = np.zeros(part.plan.horizon, np.uint8)
        state["requested"] = np.zeros((part.plan.horizon, len(part.clique)), np.uint8)
        run = driver.Run(
            environment,
            len(part.clique),
            part.plan.horizon,
            part_checkpoints,
            [state],
            threads,
            names=np.array(part.clique, np.int64),
            phase=part.estimator,
            stride=plan.gamma,
        )
        run.initialise()
        return run, state

    def report_progress(silos: int, rounds: int) -> None:
        """Report that a part with ``silos`` silos has run further rounds.

        An agent-round is one round of one silo. As parts differ in their number of silos, progress
        is reported as agent-rounds divided by the number of silos of the plan.
        """
        nonlocal agent_rounds
        agent_rounds += rounds * silos
        if progress is not None:
            progress(agent_rounds // plan.silos - (agent_rounds - rounds * silos) // plan.silos)

    # `begin` is the part that was being run when the snapshot was written, `rounds_done` how many
    # of its rounds were done, and `resumed` its run with the restored state.
    begin, rounds_done, resumed = 0, 0, None
    stored = snapshot.kept() if snapshot is not None else None
    if snapshot is not None and stored is not None and stored.stage < len(plan.parts):
        run, state = open_part(stored.stage)
        uses = plan.uses(plan.parts[stored.stage].estimator, last_round)
        if (
            position := snapshot.read([state, part_sums.arrays], uses, stored.stage, stored)
        ) is not None:
            begin, rounds_done, resumed = stored.stage, position[0], (run, state)
            run.resume(position[1])
        del run, state
    # Free the snapshot's arrays: all of them are copied by now.
    del stored
    for number, part in enumerate(plan.parts):
        # `uses` is the number of rounds, up to the last round, that use the part's estimator.
        silos, uses = len(part.clique), plan.uses(part.estimator, last_round)
        if number < begin:
            report_progress(silos, uses)
            continue
        run, state = resumed or open_part(number)
        resumed = None
        states = [state, part_sums.arrays]
        on_progress = compiled.progress_with_snapshots(
            run, states, 0, snapshot, partial(report_progress, silos), number
        )
        if rounds_done:
            on_progress(rounds_done)
        compiled.run_rounds(run, rounds_done + 1, uses, rounds_per_call, on_progress)
        part_sums.add(plan, number, state, checkpoints)
        rounds_done = 0
        del run, state, states, on_progress  # free the memory before the next part
    return part_sums.outcome(len(checkpoints))


def memory(
    plan: PeerPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Return the memory terms of one curve; ``checkpoints`` is the number of checkpoints.

    The compiled driver runs one part at a time, so it needs the memory of the largest part. The
    step driver runs all parts at once.
    """
    terms_by_size: list[list[Term]] = []  # of one part of each size (silos, rounds)
    request_bytes = []
    for part in {(len(p.clique), p.plan.horizon): p for p in plan.parts}.values():
        terms_of = step_terms if steps else lambda p, c: compiled.state_terms(p, c, record)
        terms_by_size.append(terms_of(part.plan, checkpoints))
        # Two arrays: rounds with a synchronisation, and rounds with a request, for each silo.
        request_bytes.append(part.plan.horizon * (1 + len(part.clique)))
    hops = 8 * plan.silos * (plan.gamma + 1)
    totals = 8 * len(plan.parts) * plan.parts[0].plan.statistic_size
    links = f"{spaced(plan.silos)} silos, {spaced(len(plan.graph.edges))} edges"
    sizes = len(plan.graph.edges) * OBJECT + hops + len(plan.parts) * OBJECT
    graph = Term("graph and parts", sizes, links, "silos")
    common_terms = [graph, Term("totals of all parts", 2 * totals), outcome_term(checkpoints, 0)]
    rounds = Term("rounds of requests", max(request_bytes) + 8 * plan.horizon, less="rounds")
    if steps:
        terms_of_parts = _terms_by_part(plan, terms_by_size)
        return [*(term for terms in terms_of_parts for term in terms), *common_terms]
    recorded = 12 * plan.silos * plan.horizon if record else 0
    largest = max(terms_by_size, key=bytes_of)
    return [*largest, rounds, Term("actions and rewards", recorded), *common_terms]


def _terms_by_part(plan: PeerPlan, terms_by_size: list[list[Term]]) -> list[list[Term]]:
    """Return the memory terms of each part of a plan, in the order of ``plan.parts``.

    The size of a part is its number of silos and its number of rounds. ``terms_by_size`` has the
    terms of one part of each size, in the order in which the sizes first occur.
    """
    sizes = {(len(p.clique), p.plan.horizon): None for p in plan.parts}
    terms_of_size = dict(zip(sizes, terms_by_size, strict=True))
    return [terms_of_size[len(p.clique), p.plan.horizon] for p in plan.parts]


DRIVER = Driver(run, run_steps, memory, snapshots=True)
