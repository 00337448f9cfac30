"""Tests of deployed peers (``feducb-decentralized``) and of the messages that they refuse."""

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


def play_round(peer: fastfed.parties.Peer) -> None:
    """Let the peer select an action and observe a reward."""
    peer.observe(float(peer.select(ACTIONS) == 1))


def make_peers(
    peer_system: Any, noise: Callable[[int], Any] = lambda i: None
) -> list[fastfed.parties.Peer]:
    """Return the peers of a system; ``noise(i)`` returns the noise source of peer i."""
    return [
        fastfed.parties.Peer(peer_system.plan, i, noise(i)) for i in range(peer_system.plan.silos)
    ]


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
def test_deployed_peers_reach_the_same_sums(keys, lazy, graph):
    """Use noise from the operating system, with one source for each silo."""
    peer_system = system(horizon=30, **keys, **graph, lazy=lazy)
    peers = make_peers(peer_system)
    network: Network[Message] = Network(peer_system.plan.graph, peer_system.plan.gamma)
    messages = step_peers(peers, network, 30)
    for _ in range(peer_system.plan.gamma):
        for i, message in network.deliver():
            peers[i].receive(message)
    assert any(isinstance(m, Sums) for m in messages)
    for part in peer_system.plan.parts:
        estimators = [peers[i].estimators[part.estimator] for i in part.clique]
        reports = [
            m for m in messages
            if isinstance(m, Sums) and m.silo == part.clique[0] and m.estimator == part.estimator
        ]  # fmt: skip
        assert {estimator.silo.release for estimator in estimators} == {len(reports)}
        for estimator in estimators:
            np.testing.assert_array_equal(estimator.total, estimators[0].total)
            assert not estimator.silo.due
        if lazy:
            for estimator in estimators:
                np.testing.assert_array_equal(estimator.silo.theta, estimators[0].silo.theta)
    assert all(peer.round == 30 and peer.outbox() == [] for peer in peers)
    with pytest.raises(InputError, match="the plan ends after round 30"):
        peers[0].select(ACTIONS)


def test_two_deployments_draw_different_noise():
    peer_system = system(**STEADY, horizon=4, silos=2)
    messages_per_run = [
        step_peers(make_peers(peer_system), Network(peer_system.plan.graph, 1), 4) for _ in range(2)
    ]  # fmt: skip
    first, second = (
        [message.report.values for message in run if isinstance(message, Sums)]
        for run in messages_per_run
    )
    assert len(first) == len(second) == 4
    assert all((a != b).all() for a, b in zip(first, second, strict=True))


def test_a_shared_noise_source_never_repeats_a_draw():
    peer_system = system(horizon=12, **STEADY, graph="line")
    shared = SystemNoise()
    step_peers(make_peers(peer_system, lambda i: shared), Network(peer_system.plan.graph, 3), 12)
    second_peer = fastfed.parties.Peer(peer_system.plan, 0, shared)
    with pytest.raises(InputError, match="use one SystemNoise for each system"):
        for _ in range(12):
            play_round(second_peer)
            second_peer.outbox()


def test_errors_about_wrong_arguments_are_one_sentence():
    peer_system = system(**STEADY)
    central = fastfed.make_system("feducb", silos=2, horizon=9, dimension=2, private=False)
    with pytest.raises(
        InputError, match=r"a PeerPlan, such as system\.plan of feducb-\w+, got Sys"
    ):
        fastfed.parties.Peer(peer_system)
    with pytest.raises(InputError, match="plan must be a PeerPlan"):
        fastfed.parties.Peer(central.plan)
    for make_party in (fastfed.parties.Silo, fastfed.parties.Server, fastfed.parties.Shuffler):
        with pytest.raises(InputError, match="has no server, each silo is a Peer"):
            make_party(peer_system.plan)
    for index in (-1, 4, 1.0, True):
        with pytest.raises(InputError, match="index must be an integer"):
            fastfed.parties.Peer(peer_system.plan, index)
    peer = fastfed.parties.Peer(peer_system.plan, 1)
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
    # The refused calls did not change the round.
    assert peer.round == 0
    peer.observe(1.0)
    assert peer.round == 1


def test_a_peer_waits_for_all_reports():
    peer_system = system(silos=3, **STEADY)
    peers = make_peers(peer_system)
    for peer in peers:
        play_round(peer)
        assert peer.outbox() == []
        play_round(peer)
    messages = [peer.outbox() for peer in peers]
    assert [[type(m) for m in sent] for sent in messages] == [[Sums]] * 3
    assert all(m.nbytes == 8 * 5 for (m,) in messages)
    # Peers send each report once.
    assert [peer.outbox() for peer in peers] == [[]] * 3
    for silo_list in ([1], [2]):
        with pytest.raises(InputError, match="before round 3"):
            peers[0].select(ACTIONS)
        assert peers[0].estimators[0].silo.release == 0
        peers[0].receive(messages[silo_list[0]][0])
    assert peers[0].estimators[0].silo.release == 1
    play_round(peers[0])


def test_a_request_is_answered_after_the_next_use():
    """Check that the report covers both uses and that the other estimator sends nothing."""
    peer_system = system(silos=2, private=False, communication=1e6, gamma=2)
    peer, chosen_features = fastfed.parties.Peer(peer_system.plan, 1), []
    for t in (1, 2, 3):
        a = peer.select(ACTIONS)
        peer.observe(0.5)
        if t == 1:
            # A repeated request has no effect.
            peer.receive(Request(0, 1, 1))
            peer.receive(Request(0, 1, 1))
            assert peer.estimators[1].silo.asked == 2
        if t != 2:
            chosen_features.append(ACTIONS[a])
        sent = peer.outbox()
        assert len(sent) == (t == 3)
    (message,) = sent
    assert isinstance(message, Sums) and (message.silo, message.estimator) == (1, 1)
    np.testing.assert_allclose(
        message.report.covariance, sum(np.outer(x, x) for x in chosen_features)
    )
    np.testing.assert_allclose(message.report.bias, sum(0.5 * x for x in chosen_features))
    assert peer.estimators[0].silo.asked is None


def test_a_peer_that_requested_ignores_other_requests():
    peer_system = system(silos=3, private=False, communication=1e-9)
    peers = make_peers(peer_system)
    for peer in peers:
        play_round(peer)
    requests = [peer.outbox() for peer in peers]
    assert requests == [[Request(i, 0, 1)] for i in range(3)]
    for (message,) in requests:
        peers[0].receive(message)
    assert peers[0].estimators[0].silo.asked == 2
    play_round(peers[0])
    (message,) = peers[0].outbox()
    assert isinstance(message, Sums)


def test_messages_of_other_cliques_are_ignored():
    peer_system = system(**STEADY, graph="line", gamma=1)
    assert peer_system.plan.graph.cliques(1) == ((0, 1), (2, 3))
    peers = make_peers(peer_system, lambda i: SeededNoise(5))
    undisturbed = fastfed.parties.Peer(peer_system.plan, 1, SeededNoise(5))
    for _ in range(2):
        for peer in (*peers, undisturbed):
            play_round(peer)
    (own_report,), _, (foreign_report,), _, _ = (peer.outbox() for peer in (*peers, undisturbed))
    peers[1].receive(foreign_report)
    # The content of such messages is not even read.
    peers[1].receive(Sums(3, 0, Report(9, 7, np.zeros(35))))
    peers[1].receive(Request(3, 0, 1))
    for peer in (peers[1], undisturbed):
        assert peer.estimators[0].silo.release == 0
        peer.receive(own_report)
        assert peer.estimators[0].silo.release == 1
    np.testing.assert_array_equal(peers[1].estimators[0].total, undisturbed.estimators[0].total)


def receive_ignoring_errors(peer: fastfed.parties.Peer, message: Message) -> None:
    """Let the peer receive a message that it may refuse or ignore."""
    with contextlib.suppress(InputError):
        peer.receive(message)


def with_report(message: Message, **changes: Any) -> Sums:
    """Return the message with changed fields of its report."""
    assert isinstance(message, Sums)
    report = dataclasses.replace(message.report, **changes)
    return dataclasses.replace(message, report=report)


#: Wrong messages for release 1, computed from the correct messages by (silo, release).
BAD_MESSAGES: dict[str, Callable[[dict[tuple[int, int], Message]], list[Message]]] = {
    "the same again": lambda m: [m[2, 1]],
    "its own, handed back": lambda m: [m[0, 1]],
    "another's, the same release, other numbers": lambda m: [
        with_report(m[2, 1], values=m[2, 1].report.values + 1.0)
    ],
    "a later release": lambda m: [with_report(m[2, 1], release=2)],
    "a much later release": lambda m: [with_report(m[2, 1], release=7)],
    "release 0": lambda m: [with_report(m[2, 1], release=0)],
    "another dimension": lambda m: [with_report(m[2, 1], dimension=3, values=np.zeros(9))],
    "not finite": lambda m: [with_report(m[2, 1], values=np.full(5, np.nan))],
    "under another's name": lambda m: [with_report(m[2, 1], silo=1)],
    "no report at all": lambda m: [Sums(2, 0, "sums")],
    "its own name": lambda m: [with_report(m[0, 1], values=np.ones(5))],
}


#: When the wrong message arrives: before silo 0 reports, before any other report, after silo 2's
#: report, or after all reports.
MOMENTS = ("early", "before", "between", "after")
#: Moments at which the wrong message cannot be distinguished from a correct one; they are skipped.
INDISTINGUISHABLE = {
    "the same again": ("early", "before"),
    "another's, the same release, other numbers": ("early", "before"),
    "a later release": ("after",),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_a_wrong_report_is_never_counted_and_does_not_block_correct_reports(name):
    """Send a wrong report to peer 0 and compare peer 0 with an undisturbed twin.

    Peers 0, 1 and 2 report twice.
    """
    for moment in MOMENTS:
        if moment not in INDISTINGUISHABLE.get(name, ()):
            check_bad_message(name, moment)


def check_bad_message(name: str, moment: str) -> None:
    """Run peers where peer 0 receives the wrong message at this moment; compare with its twin."""
    peer_system = system(silos=3, horizon=8, **STEADY)
    peers = make_peers(peer_system, lambda i: SeededNoise(5))
    twin = fastfed.parties.Peer(peer_system.plan, 0, SeededNoise(5))
    all_peers = [*peers, twin]
    correct: dict[tuple[int, int], Message] = {}
    # Peers with the same seeds give the correct messages of release 1.
    reference_peers = make_peers(peer_system, lambda i: SeededNoise(5))
    for peer in reference_peers:
        play_round(peer)
        play_round(peer)
        (correct[peer.index, 1],) = peer.outbox()
    for release in (1, 2):
        bad = BAD_MESSAGES[name](correct) if release == 1 else []
        for peer in all_peers:
            play_round(peer)
        if moment == "early":
            for message in bad:
                receive_ignoring_errors(peers[0], message)
        for peer in all_peers:
            play_round(peer)
        reports = [peer.outbox()[0] for peer in all_peers]
        if moment == "before":
            for message in bad:
                receive_ignoring_errors(peers[0], message)
        for j in (2, 1) if release == 1 else (1, 2):
            peers[0].receive(reports[j])
            twin.receive(reports[j])
            if moment == "between" and j == 2:
                for message in bad:
                    receive_ignoring_errors(peers[0], message)
        if moment == "after":
            for message in bad:
                receive_ignoring_errors(peers[0], message)
        for i, j in ((1, 0), (1, 2), (2, 0), (2, 1)):
            peers[i].receive(reports[j])
        estimator, twin_estimator = peers[0].estimators[0], twin.estimators[0]
        assert estimator.silo.release == twin_estimator.silo.release == release
        np.testing.assert_array_equal(estimator.total, twin_estimator.total)
    for peer in all_peers:
        play_round(peer)


@pytest.mark.parametrize("round", [0, -3, 4, 7, 10**6, 1.0, "1", None])
def test_requests_for_invalid_rounds_are_refused(round):
    """Send requests to estimator 1, which is used in rounds 1, 3 and 5; its use in round 1 is
    over."""
    peer_system = system(silos=2, horizon=20, private=False, communication=1e6, gamma=2)
    peer = fastfed.parties.Peer(peer_system.plan, 1)
    play_round(peer)
    with pytest.raises(InputError):
        peer.receive(Request(0, 1, round))
    assert peer.estimators[1].silo.asked is None


def test_a_late_request_does_not_block_the_peer():
    """Send a request whose use and next use are over; the peer must be able to continue."""
    peer_system = system(silos=2, private=False, communication=1e6)
    peer = fastfed.parties.Peer(peer_system.plan, 1)
    play_round(peer)
    play_round(peer)
    receive_ignoring_errors(peer, Request(0, 0, 1))
    messages = peer.outbox()
    if messages:
        # The peer reports late. Then it waits for silo 0's report, which is late as well.
        assert [type(message) for message in messages] == [Sums]
        peer.receive(Sums(0, 0, Report(1, 2, np.zeros(5), 0)))
    play_round(peer)


def test_a_repeated_request_after_the_reports_has_no_effect():
    peer_system = system(silos=2, private=False, communication=1e6)
    peers = make_peers(peer_system)
    for peer in peers:
        play_round(peer)
    request = Request(0, 0, 1)
    peers[0].estimators[0].silo.ask(2)
    peers[1].receive(request)
    for peer in peers:
        play_round(peer)
    reports = [peer.outbox()[0] for peer in peers]
    peers[0].receive(reports[1])
    peers[1].receive(reports[0])
    receive_ignoring_errors(peers[1], request)
    play_round(peers[1])
    assert peers[1].outbox() == []


class FailingNoise(SeededNoise):
    """A noise source whose draws fail while ``fails`` is set."""

    fails = True

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the noise of a node, or fail if the test wants that."""
        if self.fails:
            raise OSError("no entropy")
        return super().node(silo, node, dimension)


def test_a_report_is_sent_after_its_noise_source_recovers():
    peer_system = system(silos=2, horizon=6, **STEADY)
    source = FailingNoise(5)
    peer, undisturbed = (
        fastfed.parties.Peer(peer_system.plan, 0, source),
        fastfed.parties.Peer(peer_system.plan, 0, SeededNoise(5)),
    )
    other_peer = fastfed.parties.Peer(peer_system.plan, 1, SeededNoise(5))
    for each_peer in (peer, undisturbed, other_peer):
        play_round(each_peer)
    play_round(undisturbed)
    play_round(other_peer)
    with pytest.raises(OSError, match="no entropy"):
        play_round(peer)
        peer.outbox()
    assert peer.round == 2
    source.fails = False
    (late_report,), (expected_report,) = peer.outbox(), undisturbed.outbox()
    np.testing.assert_array_equal(late_report.report.values, expected_report.report.values)
    peer.receive(other_peer.outbox()[0])
    play_round(peer)


def test_an_observation_can_be_repeated_after_trigger_noise_failed():
    class FailsOnce(SeededNoise):
        """A noise source whose trigger noise fails once in round 3."""

        failed = False

        def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
            """Draw the noise of the trigger; fail once, in round 3."""
            if round == 3 and not self.failed:
                self.failed = True
                raise OSError("no entropy")
            return super().trigger(silo, round, dimension)

    peer_system = system(
        silos=2, horizon=6, epsilon=1e4, delta=0.01, **QUIET, communication=1e6, gamma=2
    )
    failing, undisturbed = (
        fastfed.parties.Peer(peer_system.plan, 0, FailsOnce(5)),
        fastfed.parties.Peer(peer_system.plan, 0, SeededNoise(5)),
    )
    for t in range(1, 6):
        for peer in (failing, undisturbed):
            peer.select(ACTIONS)
        if t == 3:
            with pytest.raises(OSError, match="no entropy"):
                failing.observe(1.0)
            assert failing.round == 2
        for peer in (failing, undisturbed):
            peer.observe(1.0)
    for estimator, undisturbed_estimator in zip(
        failing.estimators, undisturbed.estimators, strict=True
    ):
        assert estimator.silo.trigger.value == undisturbed_estimator.silo.trigger.value


def test_errors_of_a_waiting_peer_name_its_silo_and_round():
    """Check that the error names neither the position in the clique nor the use of the
    estimator."""
    peer_system = system(silos=6, horizon=30, **STEADY, graph="line", gamma=2)
    clique = next(c for c in peer_system.plan.graph.cliques(2) if 5 in c)
    assert clique.index(5) != 5
    peer = fastfed.parties.Peer(peer_system.plan, 5)
    for _ in range(4):
        play_round(peer)
    with pytest.raises(InputError, match=r"silo 5\b.*\bround 5\b"):
        peer.select(ACTIONS)
