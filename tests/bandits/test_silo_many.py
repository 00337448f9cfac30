"""Check silos that choose for many users at once, and errors of private systems."""

import numpy as np
import pytest

import fastfed
from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.parties import Server, Silo

D, ROUNDS, BATCH = 3, 22, 5


def make_parties(**keys):
    """Return two silos and their server."""
    arguments = {
        "algorithm": "private-fedlinucb",
        "epsilon": 1.0,
        "delta": 1e-6,
        "batch_size": BATCH,
    }
    system = fastfed.make_system(**{**arguments, **keys}, silos=2, horizon=ROUNDS, dimension=D)
    return [Silo(system.plan, i, SeededNoise(3)) for i in range(2)], Server(system.plan)


def action_rows(round, silo):
    """Return 4 to 6 random actions for a round of a silo."""
    rng = np.random.default_rng(100 * round + silo)
    return rng.normal(size=(4 + round % 3, D)) / 3


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix"])
def test_choices_for_many_users_equal_single_choices(protocol):
    outcomes = []
    for many in (False, True):
        parties, server = make_parties(protocol=protocol)
        outcome, finished_rounds = [], 0
        while finished_rounds < ROUNDS:
            n = min(BATCH, ROUNDS - finished_rounds)
            for i, silo in enumerate(parties):
                rows_of_users = [action_rows(finished_rounds + j, i) for j in range(n)]
                if many:
                    # In two parts, since a batch may be served in several calls.
                    for part in filter(len, (rows_of_users[:2], rows_of_users[2:])):
                        index = silo.select_many(part)
                        outcome += index.tolist()
                        silo.observe_many(index / 7)
                    continue
                for rows in rows_of_users:
                    outcome.append(silo.select(rows))
                    silo.observe(outcome[-1] / 7)
            finished_rounds += n
            if parties[0].due:
                reports = [silo.report() for silo in parties]
                outcome += [report.values.tobytes() for report in reports]
                broadcast = server.combine(reports)
                for silo in parties:
                    silo.receive(broadcast)
        outcome += [silo.theta.tobytes() for silo in parties] + [silo.round for silo in parties]
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_errors_about_choices_for_many_users():
    (silo, _), _ = make_parties(protocol="silo-ldp")
    with pytest.raises(InputError, match=r"select_many can choose for 5 users before .* got 6"):
        silo.select_many([action_rows(0, 0)] * 6)
    with pytest.raises(InputError, match="observe_many needs a select_many before it"):
        silo.observe_many([1.0])
    with pytest.raises(InputError, match=r"actions must have shape \(any, 3\)"):
        silo.select_many([action_rows(0, 0), np.ones((2, 2))])
    assert silo.round == 0
    silo.select_many([action_rows(0, 0)] * 3)
    for call in (
        lambda: silo.select(action_rows(0, 0)),
        lambda: silo.select_many([action_rows(0, 0)]),
    ):
        with pytest.raises(InputError, match="select was called twice"):
            call()
    with pytest.raises(InputError, match="observe needs a select before it"):
        silo.observe(1.0)
    with pytest.raises(InputError, match=r"rewards must have shape \(3,\), got \(2,\)"):
        silo.observe_many([1.0, 0.0])
    silo.observe_many([1.0, 0.0, 0.0])
    silo.select_many([action_rows(0, 0)] * 2)
    silo.observe_many([1.0, 0.0])
    with pytest.raises(InputError, match="silo 0 must report and receive release 1"):
        silo.select_many([action_rows(0, 0)])


def test_plans_whose_model_changes_within_a_batch_refuse_select_many():
    (silo, _), _ = make_parties(protocol="silo-ldp", lazy=False)
    with pytest.raises(InputError, match="select_many needs a model that changes with releases"):
        silo.select_many([action_rows(0, 0)])
    for algorithm in ("private-fedlinucb", "fedlinucb", "linucb-jdp"):
        with pytest.raises(InputError, match=f"discount is no key of {algorithm}: "):
            fastfed.make_system(algorithm, horizon=20, dimension=2, discount=0.9)
