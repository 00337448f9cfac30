"""Silos that choose for many users at once, and what a private system refuses."""

import numpy as np
import pytest

import fastfed
from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.parties import Server, Silo

D, ROUNDS, BATCH = 3, 22, 5


def silos(**keys):
    given = {"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6, "batch_size": BATCH}
    system = fastfed.make_system(**{**given, **keys}, silos=2, horizon=ROUNDS, dimension=D)
    return [Silo(system.plan, i, SeededNoise(3)) for i in range(2)], Server(system.plan)


def offers(round, silo):
    draw = np.random.default_rng(100 * round + silo)
    return draw.normal(size=(4 + round % 3, D)) / 3


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix"])
def test_many_users_are_served_as_one_after_the_other(protocol):
    found = []
    for many in (False, True):
        parties, server = silos(protocol=protocol)
        made, done = [], 0
        while done < ROUNDS:
            n = min(BATCH, ROUNDS - done)
            for i, silo in enumerate(parties):
                given = [offers(done + j, i) for j in range(n)]
                if many:
                    # In two parts: a batch need not be served at once.
                    for part in filter(len, (given[:2], given[2:])):
                        index = silo.select_many(part)
                        made += index.tolist()
                        silo.observe_many(index / 7)
                    continue
                for each in given:
                    made.append(silo.select(each))
                    silo.observe(made[-1] / 7)
            done += n
            if parties[0].due:
                reports = [silo.report() for silo in parties]
                made += [report.values.tobytes() for report in reports]
                broadcast = server.combine(reports)
                for silo in parties:
                    silo.receive(broadcast)
        made += [silo.theta.tobytes() for silo in parties] + [silo.round for silo in parties]
        found.append(made)
    assert found[0] == found[1]


def test_what_cannot_be_done_at_once_is_refused():
    (silo, _), _ = silos(protocol="silo-ldp")
    with pytest.raises(InputError, match=r"select_many can choose for 5 users before .* got 6"):
        silo.select_many([offers(0, 0)] * 6)
    with pytest.raises(InputError, match="observe_many needs a select_many before it"):
        silo.observe_many([1.0])
    with pytest.raises(InputError, match=r"actions must have shape \(any, 3\)"):
        silo.select_many([offers(0, 0), np.ones((2, 2))])
    assert silo.round == 0
    silo.select_many([offers(0, 0)] * 3)
    for call in (lambda: silo.select(offers(0, 0)), lambda: silo.select_many([offers(0, 0)])):
        with pytest.raises(InputError, match="select was called twice"):
            call()
    with pytest.raises(InputError, match="observe needs a select before it"):
        silo.observe(1.0)
    with pytest.raises(InputError, match=r"rewards must have shape \(3,\), got \(2,\)"):
        silo.observe_many([1.0, 0.0])
    silo.observe_many([1.0, 0.0, 0.0])
    silo.select_many([offers(0, 0)] * 2)
    silo.observe_many([1.0, 0.0])
    with pytest.raises(InputError, match="silo 0 must report and receive release 1"):
        silo.select_many([offers(0, 0)])


def test_plans_whose_model_changes_within_a_batch_choose_one_at_a_time():
    (silo, _), _ = silos(protocol="silo-ldp", lazy=False)
    with pytest.raises(InputError, match="select_many needs a model that changes with releases"):
        silo.select_many([offers(0, 0)])
    for algorithm in ("private-fedlinucb", "fedlinucb", "linucb-jdp"):
        with pytest.raises(InputError, match=f"discount is no key of {algorithm}: "):
            fastfed.make_system(algorithm, horizon=20, dimension=2, discount=0.9)
