"""Objects that act once: no copies, pickles or forks; a call that fails changes nothing.

Failures are planted at every line of the package that a call runs through, one after the other.
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


class Planted(Exception):
    """A failure that no code expects."""


def failing_at(line: int, call: Callable[..., Any], *args: Any) -> bool:
    """Run a call that fails at its so-many-th line inside the package; whether it came that far."""
    left = line

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Planted
        return trace

    sys.settrace(trace)
    try:
        call(*args)
    except Planted:
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


def plan_of(protocol: str, **more: Any) -> Any:
    keys = {**KEYS, "batch_size": 1, "protocol": protocol, **more}
    return fastfed.make_system("private-fedlinucb", **keys).plan


class Federation:
    """Two silos and a server at the end of a few rounds, on seeded noise."""

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
        for i, silo in enumerate(self.silos):
            silo.select(np.eye(D) * (0.9 - 0.1 * i))
            silo.observe(0.3 + 0.4 * i)

    def combined(self, reports: list[Any]) -> Any:
        sent = self.shuffler.shuffle(reports) if self.plan.protocol.shuffled else reports
        return self.server.combine(sent)

    def pass_on(self, reports: list[Any]) -> None:
        answer = self.combined(reports)
        for silo in self.silos:
            silo.receive(answer)


#: The last release but one: node 6 of a tree closes a block of two, prefix 7 has three blocks.
@pytest.mark.parametrize("releases", [5, 6])
@pytest.mark.parametrize(("protocol", "more"), PROTOCOLS)
def test_a_report_or_a_sum_that_fails_anywhere_can_be_made_again(protocol, more, releases):
    plan = plan_of(protocol, **more)
    straight = Federation(plan, releases)
    straight.play()
    reports = [silo.report() for silo in straight.silos]
    answer = straight.combined(reports)
    straight.silos[0].receive(answer)

    other = Federation(plan, releases)
    other.play()
    silo, line, made = other.silos[0], 0, []
    while not failing_at(line, lambda: made.append(silo.report())):
        line += 1
        if silo.reported:  # the last lines only hand it over, so the report is lost with them
            break
    if made:
        np.testing.assert_array_equal(made[0].values, reports[0].values)
        reported = [made[0], other.silos[1].report()]
        sent = other.shuffler.shuffle(reported) if plan.protocol.shuffled else reported
        line, answers = 0, []
        while not failing_at(line, lambda: answers.append(other.server.combine(sent))):
            line += 1
            if other.server.release > releases:
                break
        if answers:
            np.testing.assert_array_equal(answers[0].values, answer.values)
        before = silo.theta
        line = 0
        while not failing_at(line, silo.receive, answer):
            line += 1
            if not np.array_equal(silo.theta, before):  # the last lines only assign
                break
        if silo.release == releases:
            silo.receive(answer)
        np.testing.assert_array_equal(silo.theta, straight.silos[0].theta)
    # It got far: through more than the checks at the door.
    assert line > 10


@pytest.mark.parametrize(("protocol", "more"), PROTOCOLS)
def test_a_failing_report_never_counts_a_batch_twice(protocol, more):
    """After a failure at any line, the next report holds the batch once."""
    plan = plan_of(protocol, **more)
    straight = Federation(plan, 5)
    straight.play()
    wanted = straight.silos[0].report().values
    line = again = 0
    while True:
        other = Federation(plan, 5)
        other.play()
        silo = other.silos[0]
        if failing_at(line, silo.report):
            break
        if not silo.reported:
            np.testing.assert_array_equal(silo.report().values, wanted)
            again += 1
        line += 1
    assert again > 15


@pytest.mark.parametrize("value", [-1e300, 1e300, 1e308, -1e308, np.inf, np.nan])
def test_absurd_sums_change_nothing(value):
    plan = plan_of("central")
    federation = Federation(plan, 2)
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
    server = Server(plan_of("silo-ldp"))
    reports = [Report(1, D, np.full(9, 1e308), i) for i in range(2)]
    with pytest.raises(InputError, match="must add up to finite numbers"):
        server.combine(reports)
    assert server.release == 0
    server.combine([Report(1, D, np.ones(9), i) for i in range(2)])


# ---- copies, processes, threads ------------------------------------------------------------------


def objects() -> list[Any]:
    users = fastfed.make_system("linucb-ldp", **{**KEYS, "silos": 1}).plan
    peers = fastfed.make_system("feducb-decentralized", **KEYS, schedule="fixed", batch_size=2)
    experts = fastfed.make_system(
        "fed-svt", silos=2, horizon=9, dimension=4, epsilon=1.0, optimal_loss=0.1
    ).plan
    phases = fastfed.make_system(
        "robin", **{**KEYS, "horizon": 100}, diversity=0.1, initial_phases=2
    ).plan
    plan = plan_of("silo-ldp")
    return [
        Silo(plan, 0), Server(plan), Shuffler(plan_of("shuffle-vector")),
        User(users, 1), Peer(peers.plan, 0), Averager(phases),
        Client(phases, 0), ExpertClient(experts, 0), ExpertServer(experts),
        SystemNoise(), fastfed.privacy.TreeRelease(2, 5, epsilon=1.0, delta=1e-6),
        VectorSum(2, 5, epsilon=1.0, delta=1e-6),
    ]  # fmt: skip


# What refuses to be copied is as it was: all cases share the objects.
made_once = functools.cache(objects)


@pytest.mark.parametrize("index", range(12))
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(index, way):
    with pytest.raises(InputError, match=r"cannot be (copied|pickled): two of it .*save and load"):
        way(made_once()[index])


def test_a_forked_process_may_not_release():
    silo = Silo(plan_of("silo-ldp"), 0)
    silo.select(np.eye(D))
    silo.observe(0.5)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        try:
            silo.report()
            theirs.send("reported")
        except InputError as error:
            theirs.send(str(error))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    assert "cannot be used in a forked process" in ours.recv()
    process.join()
    assert silo.report().release == 1


def test_threads_get_one_report_together():
    for _ in range(20):
        silo = Silo(plan_of("silo-ldp"), 0)
        silo.select(np.eye(D))
        silo.observe(0.5)
        gate, found = threading.Barrier(4), []

        def ask(silo=silo, gate=gate, found=found) -> None:
            gate.wait()
            try:
                found.append(silo.report())
            except InputError as error:
                found.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(f, Report) for f in found) == 1
        assert sum("no report due" in str(f) for f in found) == 3
