"""Peers of `feducb-decentralized` in a deployment, and what they refuse."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_feducb_decentralized import (
    ACTIONS,
    BUDGET,
    FIXED,
    OPEN,
    QUIET,
    STEADY,
    step_peers,
    system,
)

import fastfed
from fastfed import InputError
from fastfed._random import SeededNoise, SystemNoise
from fastfed.bandits.peer import Message
from fastfed.protocols.protocol import Report
from fastfed.protocols.serverless import Network, Request, Sums


def one_round(peer: fastfed.parties.Peer) -> None:
    peer.observe(float(peer.select(ACTIONS) == 1))


def crowd_of(made: Any, noise: Callable[[int], Any] = lambda i: None) -> list[fastfed.parties.Peer]:
    return [fastfed.parties.Peer(made.plan, i, noise(i)) for i in range(made.plan.silos)]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    "keys",
    [
        {**OPEN, "communication": 1.0},
        {"epsilon": 50.0, "delta": 0.01, "communication": 3.0},
        {"epsilon": 1e4, "delta": 0.01, **QUIET, "communication": 0.3},
        {**BUDGET, **FIXED, "batch_size": 2},
    ],
    ids=["open", "determinant", "quiet", "fixed"],
)
@pytest.mark.parametrize("graph", [{"graph": "line", "gamma": 2}, {"graph": "ring"}])
def test_a_deployment_by_hand(keys, lazy, graph):
    """Noise of the operating system, one source for each silo."""
    made = system(horizon=30, **keys, **graph, lazy=lazy)
    crowd = crowd_of(made)
    network: Network[Message] = Network(made.plan.graph, made.plan.gamma)
    messages = step_peers(crowd, network, 30)
    for _ in range(made.plan.gamma):
        for i, message in network.deliver():
            crowd[i].receive(message)
    assert any(isinstance(m, Sums) for m in messages)
    for part in made.plan.parts:
        own = [crowd[i].estimators[part.estimator] for i in part.clique]
        reports = [
            m for m in messages
            if isinstance(m, Sums) and m.silo == part.clique[0] and m.estimator == part.estimator
        ]  # fmt: skip
        assert {estimator.silo.release for estimator in own} == {len(reports)}
        for estimator in own:
            np.testing.assert_array_equal(estimator.total, own[0].total)
            assert not estimator.silo.due
        if lazy:
            for estimator in own:
                np.testing.assert_array_equal(estimator.silo.theta, own[0].silo.theta)
    assert all(peer.round == 30 and peer.outbox() == [] for peer in crowd)
    with pytest.raises(InputError, match="the plan ends after round 30"):
        crowd[0].select(ACTIONS)


def test_two_deployments_have_noise_of_their_own():
    made = system(**STEADY, horizon=4, silos=2)
    sent_twice = [
        step_peers(crowd_of(made), Network(made.plan.graph, 1), 4) for _ in range(2)
    ]  # fmt: skip
    first, second = ([m.report.values for m in run if isinstance(m, Sums)] for run in sent_twice)
    assert len(first) == len(second) == 4
    assert all((a != b).all() for a, b in zip(first, second, strict=True))


def test_one_source_for_all_never_draws_twice():
    made = system(horizon=12, **STEADY, graph="line")
    shared = SystemNoise()
    step_peers(crowd_of(made, lambda i: shared), Network(made.plan.graph, 3), 12)
    twin = fastfed.parties.Peer(made.plan, 0, shared)
    with pytest.raises(InputError, match="use one SystemNoise for each system"):
        for _ in range(12):
            one_round(twin)
            twin.outbox()


def test_wrong_objects_are_one_clear_sentence():
    made = system(**STEADY)
    central = fastfed.make_system("feducb", silos=2, horizon=9, dimension=2, private=False)
    with pytest.raises(
        InputError, match=r"a PeerPlan, such as system\.plan of feducb-\w+, got Sys"
    ):
        fastfed.parties.Peer(made)
    with pytest.raises(InputError, match="plan must be a PeerPlan"):
        fastfed.parties.Peer(central.plan)
    for door in (fastfed.parties.Silo, fastfed.parties.Server, fastfed.parties.Shuffler):
        with pytest.raises(InputError, match="has no server, each silo is a Peer"):
            door(made.plan)
    for index in (-1, 4, 1.0, True):
        with pytest.raises(InputError, match="index must be an integer"):
            fastfed.parties.Peer(made.plan, index)
    peer = fastfed.parties.Peer(made.plan, 1)
    with pytest.raises(InputError, match="message must be a Request or Sums, got Report"):
        peer.receive(Report(1, 2, np.zeros(5)))
    for estimator in (1, -1, 0.0, None):
        with pytest.raises(InputError, match=r"message\.estimator must be an integer"):
            peer.receive(Request(0, estimator, 1))
    with pytest.raises(InputError, match="observe needs a select before it"):
        peer.observe(1.0)
    with pytest.raises(InputError, match="actions"):
        peer.select(np.zeros((2, 3)))
    peer.select(ACTIONS)
    with pytest.raises(InputError, match="select was called twice"):
        peer.select(ACTIONS)
    with pytest.raises(InputError, match="reward must be"):
        peer.observe(np.nan)
    # None of it counts.
    assert peer.round == 0
    peer.observe(1.0)
    assert peer.round == 1


def test_a_peer_waits_for_all_reports():
    made = system(silos=3, **STEADY)
    crowd = crowd_of(made)
    for peer in crowd:
        one_round(peer)
        assert peer.outbox() == []
        one_round(peer)
    messages = [peer.outbox() for peer in crowd]
    assert [[type(m) for m in sent_now] for sent_now in messages] == [[Sums]] * 3
    assert all(m.nbytes == 8 * 5 for (m,) in messages)
    # It is said once.
    assert [peer.outbox() for peer in crowd] == [[]] * 3
    for others in ([1], [2]):
        with pytest.raises(InputError, match="before round 3"):
            crowd[0].select(ACTIONS)
        assert crowd[0].estimators[0].silo.release == 0
        crowd[0].receive(messages[others[0]][0])
    assert crowd[0].estimators[0].silo.release == 1
    one_round(crowd[0])


def test_who_asks_is_reported_to_one_use_later():
    """A request, one more use of all, reports of both uses; another estimator is not touched."""
    made = system(silos=2, private=False, communication=1e6, gamma=2)
    peer, chosen = fastfed.parties.Peer(made.plan, 1), []
    for t in (1, 2, 3):
        a = peer.select(ACTIONS)
        peer.observe(0.5)
        if t == 1:
            # Twice is once.
            peer.receive(Request(0, 1, 1))
            peer.receive(Request(0, 1, 1))
            assert peer.estimators[1].silo.asked == 2
        if t != 2:
            chosen.append(ACTIONS[a])
        sent_now = peer.outbox()
        assert len(sent_now) == (t == 3)
    (message,) = sent_now
    assert isinstance(message, Sums) and (message.silo, message.estimator) == (1, 1)
    np.testing.assert_allclose(message.report.covariance, sum(np.outer(x, x) for x in chosen))
    np.testing.assert_allclose(message.report.bias, sum(0.5 * x for x in chosen))
    assert peer.estimators[0].silo.asked is None


def test_a_request_after_ones_own_changes_nothing():
    made = system(silos=3, private=False, communication=1e-9)
    crowd = crowd_of(made)
    for peer in crowd:
        one_round(peer)
    asked = [peer.outbox() for peer in crowd]
    assert asked == [[Request(i, 0, 1)] for i in range(3)]
    for (message,) in asked:
        crowd[0].receive(message)
    assert crowd[0].estimators[0].silo.asked == 2
    one_round(crowd[0])
    (message,) = crowd[0].outbox()
    assert isinstance(message, Sums)


def test_messages_of_other_cliques_are_passed_by():
    made = system(**STEADY, graph="line", gamma=1)
    assert made.plan.graph.cliques(1) == ((0, 1), (2, 3))
    crowd = crowd_of(made, lambda i: SeededNoise(5))
    twin = fastfed.parties.Peer(made.plan, 1, SeededNoise(5))
    for _ in range(2):
        for peer in (*crowd, twin):
            one_round(peer)
    (own,), _, (foreign,), _, _ = (peer.outbox() for peer in (*crowd, twin))
    crowd[1].receive(foreign)
    # Nor is it read: whatever stands in it.
    crowd[1].receive(Sums(3, 0, Report(9, 7, np.zeros(35))))
    crowd[1].receive(Request(3, 0, 1))
    for peer in (crowd[1], twin):
        assert peer.estimators[0].silo.release == 0
        peer.receive(own)
        assert peer.estimators[0].silo.release == 1
    np.testing.assert_array_equal(crowd[1].estimators[0].total, twin.estimators[0].total)


def refused(peer: fastfed.parties.Peer, message: Message) -> None:
    """It may be refused with a sentence or passed by; what comes after tells whether it counted."""
    with contextlib.suppress(InputError):
        peer.receive(message)


def sums(message: Message, **changes: Any) -> Sums:
    """The same message, another report in it."""
    assert isinstance(message, Sums)
    report = dataclasses.replace(message.report, **changes)
    return dataclasses.replace(message, report=report)


#: What a peer may hear beside the right messages of release 1, made of those of (silo, release).
BAD: dict[str, Callable[[dict[tuple[int, int], Message]], list[Message]]] = {
    "the same again": lambda m: [m[2, 1]],
    "its own, handed back": lambda m: [m[0, 1]],
    "another's, the same release, other numbers": lambda m: [
        sums(m[2, 1], values=m[2, 1].report.values + 1.0)
    ],
    "a later release": lambda m: [sums(m[2, 1], release=2)],
    "a much later release": lambda m: [sums(m[2, 1], release=7)],
    "release 0": lambda m: [sums(m[2, 1], release=0)],
    "another dimension": lambda m: [sums(m[2, 1], dimension=3, values=np.zeros(9))],
    "not finite": lambda m: [sums(m[2, 1], values=np.full(5, np.nan))],
    "under another's name": lambda m: [sums(m[2, 1], silo=1)],
    "no report at all": lambda m: [Sums(2, 0, "sums")],
    "its own name": lambda m: [sums(m[0, 1], values=np.ones(5))],
}


#: When: before silo 0 reports itself, before any other's report, after silo 2's, after all.
MOMENTS = ("early", "before", "between", "after")
#: A first report is the right one as far as anybody can tell, and so is one of the next release.
NO_TELLING = {
    "the same again": ("early", "before"),
    "another's, the same release, other numbers": ("early", "before"),
    "a later release": ("after",),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_report_is_never_counted_and_hurts_no_good_one(what):
    """Peers 0, 1, 2 report twice. Peer 0 hears something else beside: the right messages are then
    taken without an error, and it knows what its twin knows."""
    for when in MOMENTS:
        if when not in NO_TELLING.get(what, ()):
            hears_beside(what, when)


def hears_beside(what: str, when: str) -> None:
    made = system(silos=3, horizon=8, **STEADY)
    crowd = crowd_of(made, lambda i: SeededNoise(5))
    twin = fastfed.parties.Peer(made.plan, 0, SeededNoise(5))
    everyone = [*crowd, twin]
    right: dict[tuple[int, int], Message] = {}
    # What will be said in release 1, from peers of the same seeds.
    shadow = crowd_of(made, lambda i: SeededNoise(5))
    for peer in shadow:
        one_round(peer)
        one_round(peer)
        (right[peer.index, 1],) = peer.outbox()
    for release in (1, 2):
        bad = BAD[what](right) if release == 1 else []
        for peer in everyone:
            one_round(peer)
        if when == "early":
            for message in bad:
                refused(crowd[0], message)
        for peer in everyone:
            one_round(peer)
        said = [peer.outbox()[0] for peer in everyone]
        if when == "before":
            for message in bad:
                refused(crowd[0], message)
        for j in (2, 1) if release == 1 else (1, 2):
            crowd[0].receive(said[j])
            twin.receive(said[j])
            if when == "between" and j == 2:
                for message in bad:
                    refused(crowd[0], message)
        if when == "after":
            for message in bad:
                refused(crowd[0], message)
        for i, j in ((1, 0), (1, 2), (2, 0), (2, 1)):
            crowd[i].receive(said[j])
        ours, theirs = crowd[0].estimators[0], twin.estimators[0]
        assert ours.silo.release == theirs.silo.release == release
        np.testing.assert_array_equal(ours.total, theirs.total)
    for peer in everyone:
        one_round(peer)


@pytest.mark.parametrize("round", [0, -3, 4, 7, 10**6, 1.0, "1", None])
def test_a_request_for_no_use_is_never_counted(round):
    """Estimator 1 of two is used in rounds 1, 3, 5; its use in round 1 is over."""
    made = system(silos=2, horizon=20, private=False, communication=1e6, gamma=2)
    peer = fastfed.parties.Peer(made.plan, 1)
    one_round(peer)
    with pytest.raises(InputError):
        peer.receive(Request(0, 1, round))
    assert peer.estimators[1].silo.asked is None


def test_a_request_that_comes_too_late_stops_nobody():
    """Its use and the next one are over: whatever is made of it, the peer can go on."""
    made = system(silos=2, private=False, communication=1e6)
    peer = fastfed.parties.Peer(made.plan, 1)
    one_round(peer)
    one_round(peer)
    refused(peer, Request(0, 0, 1))
    messages = peer.outbox()
    if messages:
        # It reports late; then it waits for silo 0's report, which is late as well.
        assert [type(m) for m in messages] == [Sums]
        peer.receive(Sums(0, 0, Report(1, 2, np.zeros(5), 0)))
    one_round(peer)


def test_a_request_heard_again_after_the_reports_asks_for_nothing():
    made = system(silos=2, private=False, communication=1e6)
    crowd = crowd_of(made)
    for peer in crowd:
        one_round(peer)
    again = Request(0, 0, 1)
    crowd[0].estimators[0].silo.ask(2)
    crowd[1].receive(again)
    for peer in crowd:
        one_round(peer)
    said = [peer.outbox()[0] for peer in crowd]
    crowd[0].receive(said[1])
    crowd[1].receive(said[0])
    refused(crowd[1], again)
    one_round(crowd[1])
    assert crowd[1].outbox() == []


class Failing(SeededNoise):
    """A source that fails until it is told not to, as an operating system may."""

    fails = True

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        if self.fails:
            raise OSError("no entropy")
        return super().node(silo, node, dimension)


def test_a_failing_noise_source_loses_no_report():
    made = system(silos=2, horizon=6, **STEADY)
    source = Failing(5)
    peer, good = (
        fastfed.parties.Peer(made.plan, 0, source),
        fastfed.parties.Peer(made.plan, 0, SeededNoise(5)),
    )
    other = fastfed.parties.Peer(made.plan, 1, SeededNoise(5))
    for each in (peer, good, other):
        one_round(each)
    one_round(good)
    one_round(other)
    with pytest.raises(OSError, match="no entropy"):
        one_round(peer)
        peer.outbox()
    assert peer.round == 2
    source.fails = False
    (late,), (wanted,) = peer.outbox(), good.outbox()
    np.testing.assert_array_equal(late.report.values, wanted.report.values)
    peer.receive(other.outbox()[0])
    one_round(peer)


def test_a_failing_schedule_noise_changes_nothing():
    class Once(SeededNoise):
        failed = False

        def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
            if round == 3 and not self.failed:
                self.failed = True
                raise OSError("no entropy")
            return super().trigger(silo, round, dimension)

    made = system(silos=2, horizon=6, epsilon=1e4, delta=0.01, **QUIET, communication=1e6, gamma=2)
    bad, good = (
        fastfed.parties.Peer(made.plan, 0, Once(5)),
        fastfed.parties.Peer(made.plan, 0, SeededNoise(5)),
    )
    for t in range(1, 6):
        for peer in (bad, good):
            peer.select(ACTIONS)
        if t == 3:
            with pytest.raises(OSError, match="no entropy"):
                bad.observe(1.0)
            assert bad.round == 2
        for peer in (bad, good):
            peer.observe(1.0)
    for one, other in zip(bad.estimators, good.estimators, strict=True):
        assert one.silo.trigger.value == other.silo.trigger.value


def test_a_peer_that_waits_is_named_by_its_own_number_and_round():
    """Not by its place in the clique, nor by the uses of the estimator."""
    made = system(silos=6, horizon=30, **STEADY, graph="line", gamma=2)
    clique = next(c for c in made.plan.graph.cliques(2) if 5 in c)
    assert clique.index(5) != 5
    peer = fastfed.parties.Peer(made.plan, 5)
    for _ in range(4):
        one_round(peer)
    with pytest.raises(InputError, match=r"silo 5\b.*\bround 5\b"):
        peer.select(ACTIONS)
