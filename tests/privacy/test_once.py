"""Check objects that act once: they refuse copies, pickles and forks, and a failing call changes
nothing.

Failures are raised at every line of the package that a call executes, one after the other.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed._random import SystemNoise
from fastfed.parties import (
    Averager,
    Broadcast,
    Client,
    ExpertClient,
    ExpertServer,
    Peer,
    Report,
    SeededNoise,
    Server,
    Shuffler,
    Silo,
    User,
    VectorSum,
)
from fastfed.protocols.secure_sum import simulated_keys

ROOT = str(Path(fastfed.__file__).parent)
D = 3
KEYS = {"silos": 2, "horizon": 8, "dimension": D, "epsilon": 1.0, "delta": 1e-6}


class PlannedFailure(Exception):
    """A failure that no code expects."""


def failing_at(line: int, call: Callable[..., Any], *args: Any) -> bool:
    """Run a call that fails at its given line inside the package.

    Return whether the call ended before that line.
    """
    remaining_lines = line

    def trace(frame: Any, event: str, arg: Any) -> Any:
        """Count the executed lines of the package, and fail at the planned one."""
        nonlocal remaining_lines
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            remaining_lines -= 1
            if remaining_lines < 0:
                sys.settrace(None)
                raise PlannedFailure
        return trace

    sys.settrace(trace)
    try:
        call(*args)
    except PlannedFailure:
        return False
    finally:
        sys.settrace(None)
    return True


PROTOCOLS = [
    ("silo-ldp", {}),
    ("silo-ldp", {"release": "honaker"}),
    ("silo-ldp", {"release": "toeplitz"}),
    ("silo-ldp-prefix", {}),
    ("central", {}),
    ("central", {"release": "honaker"}),
    ("central", {"release": "toeplitz"}),
    ("silo-ldp", {"release": "buffered"}),
    ("shuffle-amplified", {}),
    ("shuffle-vector", {}),
    ("secure-sum", {}),
    ("secure-sum", {"messages": "individual", "release": "toeplitz"}),
    ("silo-ldp", {"share": {"until": 7, "fraction": 0.5}}),
    ("central", {"share": {"until": 7, "fraction": 0.5, "coin": "secret"}}),
    ("silo-ldp", {"share": {"until": 7, "rule": "min-of-bounds"}}),
]


def make_plan(protocol: str, **changes: Any) -> Any:
    """Return a plan of a protocol with batches of one round."""
    keys = {**KEYS, "batch_size": 1, "protocol": protocol, **changes}
    return fastfed.make_system("private-fedlinucb", **keys).plan


class SmallFederation:
    """Two silos and a server after a few rounds, with seeded noise."""

    def __init__(self, plan: Any, releases: int) -> None:
        self.plan, noise = plan, SeededNoise(5)
        keys = [simulated_keys(5, i, 2) if plan.individual else None for i in range(2)]
        self.silos = [Silo(plan, i, noise, keys[i]) for i in range(2)]
        self.server = Server(plan, noise)
        self.shuffler = Shuffler(plan, noise)
        for _ in range(releases):
            self.play()
            self.pass_on([silo.report() for silo in self.silos])

    def play(self) -> None:
        """Play one round at every silo."""
        for i, silo in enumerate(self.silos):
            silo.select(np.eye(D) * (0.9 - 0.1 * i))
            silo.observe(0.3 + 0.4 * i)

    def combined(self, reports: list[Any]) -> Any:
        """Return the broadcast of these reports."""
        sent = self.shuffler.shuffle(reports) if self.plan.protocol.shuffled else reports
        return self.server.combine(sent)

    def pass_on(self, reports: list[Any]) -> None:
        """Combine the reports, and let all silos receive the broadcast."""
        answer = self.combined(reports)
        for silo in self.silos:
            silo.receive(answer)


#: After 5 releases, node 6 of a tree closes a block of two; after 6, prefix 7 has three blocks.
@pytest.mark.parametrize("releases", [5, 6])
@pytest.mark.parametrize(("protocol", "changes"), PROTOCOLS)
def test_reports_and_sums_that_fail_at_any_line_can_be_repeated(protocol, changes, releases):
    """Let report, sum and receipt fail at each of their lines in turn, and repeat them."""
    plan = make_plan(protocol, **changes)
    undisturbed = SmallFederation(plan, releases)
    undisturbed.play()
    reports = [silo.report() for silo in undisturbed.silos]
    answer = undisturbed.combined(reports)
    undisturbed.silos[0].receive(answer)

    other = SmallFederation(plan, releases)
    other.play()
    silo, line, own_reports = other.silos[0], 0, []
    while not failing_at(line, lambda: own_reports.append(silo.report())):
        line += 1
        if silo.reported:  # the last lines only return the report, so it is lost with them
            break
    if own_reports:
        np.testing.assert_array_equal(own_reports[0].values, reports[0].values)
        all_reports = [own_reports[0], other.silos[1].report()]
        messages = other.shuffler.shuffle(all_reports) if plan.protocol.shuffled else all_reports
        line, answers = 0, []
        while not failing_at(line, lambda: answers.append(other.server.combine(messages))):
            line += 1
            if other.server.release > releases:
                break
        if answers:
            np.testing.assert_array_equal(answers[0].values, answer.values)
        before = silo.theta
        line = 0
        while not failing_at(line, silo.receive, answer):
            line += 1
            if not np.array_equal(silo.theta, before):  # the last lines only assign attributes
                break
        if silo.release == releases:
            silo.receive(answer)
        np.testing.assert_array_equal(silo.theta, undisturbed.silos[0].theta)
    # The failures came later than the checks at the beginning.
    assert line > 10


@pytest.mark.parametrize(("protocol", "changes"), PROTOCOLS)
def test_failing_reports_never_count_a_batch_twice(protocol, changes):
    """Check that the report after a failure at any line contains the batch once."""
    plan = make_plan(protocol, **changes)
    undisturbed = SmallFederation(plan, 5)
    undisturbed.play()
    expected = undisturbed.silos[0].report().values
    line = repeated = 0
    while True:
        other = SmallFederation(plan, 5)
        other.play()
        silo = other.silos[0]
        if failing_at(line, silo.report):
            break
        if not silo.reported:
            np.testing.assert_array_equal(silo.report().values, expected)
            repeated += 1
        line += 1
    assert repeated > 15


@pytest.mark.parametrize("value", [-1e300, 1e300, 1e308, -1e308, np.inf, np.nan])
def test_huge_and_non_finite_sums_change_nothing(value):
    plan = make_plan("central")
    federation = SmallFederation(plan, 2)
    federation.play()
    answer = federation.combined([silo.report() for silo in federation.silos])
    silo = federation.silos[0]
    before = silo.theta, silo.release, silo.indefinite
    size = plan.statistic_size
    with pytest.raises(Exception, match="finite"):
        silo.receive(Broadcast(3, D, np.full(size, value)))
    np.testing.assert_array_equal(silo.theta, before[0])
    assert (silo.release, silo.indefinite) == before[1:]
    silo.receive(answer)
    assert silo.release == 3


def test_reports_that_overflow_change_nothing():
    server = Server(make_plan("silo-ldp"))
    reports = [Report(1, D, np.full(9, 1e308), i) for i in range(2)]
    with pytest.raises(InputError, match="must add up to finite numbers"):
        server.combine(reports)
    assert server.release == 0
    server.combine([Report(1, D, np.ones(9), i) for i in range(2)])


# ---- Copies, processes and threads ---------------------------------------------------------------


def make_objects() -> list[Any]:
    """Return one object of every class that acts once."""
    users = fastfed.make_system("linucb-ldp", **{**KEYS, "silos": 1}).plan
    peers = fastfed.make_system("feducb-decentralized", **KEYS, schedule="fixed", batch_size=2)
    experts = fastfed.make_system(
        "fed-svt", silos=2, horizon=9, dimension=4, epsilon=1.0, optimal_loss=0.1
    ).plan
    phases = fastfed.make_system(
        "robin", **{**KEYS, "horizon": 100}, diversity=0.1, initial_phases=2
    ).plan
    plan = make_plan("silo-ldp")
    return [
        Silo(plan, 0), Server(plan), Shuffler(make_plan("shuffle-vector")),
        User(users, 1), Peer(peers.plan, 0), Averager(phases),
        Client(phases, 0), ExpertClient(experts, 0), ExpertServer(experts),
        SystemNoise(), fastfed.privacy.TreeRelease(2, 5, epsilon=1.0, delta=1e-6),
        VectorSum(2, 5, epsilon=1.0, delta=1e-6),
    ]  # fmt: skip


# Objects are unchanged by refused copies, so all cases share them.
shared_objects = functools.cache(make_objects)


@pytest.mark.parametrize("index", range(12))
@pytest.mark.parametrize("copy_function", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(index, copy_function):
    with pytest.raises(InputError, match=r"cannot be (copied|pickled): two copies .*save and load"):
        copy_function(shared_objects()[index])


def test_forked_processes_may_not_release():
    silo = Silo(make_plan("silo-ldp"), 0)
    silo.select(np.eye(D))
    silo.observe(0.5)
    context = multiprocessing.get_context("fork")
    parent_end, child_end = context.Pipe()

    def child() -> None:
        """Report in the child process, and send the outcome."""
        try:
            silo.report()
            child_end.send("reported")
        except InputError as error:
            child_end.send(str(error))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    assert "cannot be used in a forked process" in parent_end.recv()
    process.join()
    assert silo.report().release == 1


def test_threads_get_only_one_report():
    for _ in range(20):
        silo = Silo(make_plan("silo-ldp"), 0)
        silo.select(np.eye(D))
        silo.observe(0.5)
        barrier, outcomes = threading.Barrier(4), []

        def report_or_message(silo=silo, barrier=barrier, outcomes=outcomes) -> None:
            """Report together with the other threads; note the report or the error."""
            barrier.wait()
            try:
                outcomes.append(silo.report())
            except InputError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=report_or_message) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(outcome, Report) for outcome in outcomes) == 1
        assert sum("no report due" in str(outcome) for outcome in outcomes) == 3
