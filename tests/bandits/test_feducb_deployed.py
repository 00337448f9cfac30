"""Tests of FedUCB deployments with adaptive schedules, and of simulated, stored and resumed
runs."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed._random import SeededNoise, SystemNoise
from fastfed.bandits.system import System
from fastfed.environments import Sphere
from fastfed.privacy.certificate import SIMULATION_CAVEAT
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import missing_batches, predict_seconds
from fastfed.simulation.experiment import experiment_from_spec

PRIVATE = {"epsilon": 1.0, "delta": 1e-4}
PRIVATE_TRIGGER = {**PRIVATE, "schedule": "private-determinant"}

# -- Deployment ------------------------------------------------------------------------------------

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])


def make_deployed_system(**keys: Any) -> System:
    """Make a system with two silos, 30 rounds and two dimensions."""
    return fastfed.make_system("feducb", silos=2, horizon=30, dimension=2, **keys)


def play_round(silo: fastfed.parties.Silo) -> None:
    """Let the silo select an action and observe a reward."""
    silo.observe(float(silo.select(ACTIONS) == 1))


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    "keys",
    [
        {"private": False, "communication": 1.0},
        {"epsilon": 20.0, "delta": 0.01, "communication": 2.0},
        {**PRIVATE_TRIGGER, "epsilon": 1e4, "communication": 1.0},
    ],
    ids=["open", "determinant", "private-determinant"],
)
def test_deployed_silos_synchronise_when_one_of_them_is_due(keys, lazy):
    """Use noise from the operating system and reports in reverse order."""
    system = make_deployed_system(**keys, lazy=lazy)
    silos, server = (
        [fastfed.parties.Silo(system.plan, i) for i in range(2)],
        fastfed.parties.Server(system.plan),
    )
    rounds = []
    for user in range(1, 31):
        for silo in silos:
            play_round(silo)
        if any(silo.due for silo in silos):
            rounds.append(user)
            assert {silo.asked for silo in silos} <= {user, None}
            for silo in silos:
                silo.ask()
            assert all(silo.due and silo.asked == user for silo in silos)
            broadcast = server.combine([silo.report() for silo in reversed(silos)])
            assert not any(silo.due for silo in silos)
            for silo in silos:
                silo.receive(broadcast)
            assert all(silo.asked is None and not silo.due for silo in silos)
    assert len(rounds) >= 2
    assert server.release == silos[0].release == silos[1].release == len(rounds)
    if lazy:
        np.testing.assert_array_equal(silos[0].theta, silos[1].theta)
    if keys.get("private") is False:
        # Without noise the total is the gram of all rounds up to the last synchronisation.
        assert broadcast.covariance.trace() <= 2 * rounds[-1]
        assert silos[0].indefinite == 0
    assert SIMULATION_CAVEAT in system.certificate.caveats or keys.get("private") is False
    assert SIMULATION_CAVEAT not in system.deployed_certificate.caveats
    assert system.deployed_certificate.status == system.certificate.status


def test_parties_with_seeded_noise_equal_the_step_driver():
    from fastfed.simulation import server

    sphere = Sphere(dimension=3, actions=5)
    system = fastfed.make_system(
        "feducb",
        silos=2,
        horizon=25,
        dimension=3,
        **{**PRIVATE_TRIGGER, "epsilon": 1e4},
        communication=1.0,
    )
    environment = sphere.open(3, 0, 2)
    outcome = server.run_one(environment, system.plan, np.arange(1, 26))
    noise = SeededNoise(3)
    silos = [fastfed.parties.Silo(system.plan, i, noise) for i in range(2)]
    server = fastfed.parties.Server(system.plan, noise)
    for t in range(1, 26):
        # The order of silos within a round does not matter.
        for i in (1, 0):
            features, means = environment.round(i, t)
            a = silos[i].select(features)
            silos[i].observe(environment.reward(i, t, means[a]))
            assert a == outcome.actions[i, t - 1]
        if any(silo.due for silo in silos):
            for silo in silos:
                silo.ask()
            broadcast = server.combine([silo.report() for silo in silos])
            for silo in silos:
                silo.receive(broadcast)
        assert server.release == outcome.synchronisations[t - 1]
    np.testing.assert_array_equal(broadcast.values, outcome.total)


def test_errors_of_an_adaptive_silo_are_one_sentence():
    system = make_deployed_system(private=False, communication=1e6)
    silos, server = (
        [fastfed.parties.Silo(system.plan, i) for i in range(2)],
        fastfed.parties.Server(system.plan),
    )
    first_silo, second_silo = silos
    for silo in silos:
        play_round(silo)
        assert not silo.due
    with pytest.raises(InputError, match=r"silo 0 has no report due after round 1 \(no trigger ma"):
        first_silo.report()
    for silo in silos:
        silo.ask()
    with pytest.raises(InputError, match="silo 0 must report and receive release 1 before round 2"):
        first_silo.select(ACTIONS)
    reports = [first_silo.report()]
    with pytest.raises(InputError, match="silo 0 must report and receive release 1 before round 2"):
        first_silo.select(ACTIONS)
    with pytest.raises(InputError, match="no report due"):
        first_silo.report()
    with pytest.raises(InputError, match="one report of each of the 2 silos"):
        server.combine(reports)
    broadcast = server.combine([*reports, second_silo.report()])
    first_silo.receive(broadcast)
    with pytest.raises(InputError, match="silo 0 waits for release 2, got release 1 again"):
        first_silo.receive(broadcast)
    play_round(first_silo)
    with pytest.raises(InputError, match="silo 1 must report and receive release 1"):
        second_silo.select(ACTIONS)
    second_silo.receive(broadcast)
    play_round(second_silo)
    assert (first_silo.release, second_silo.release) == (1, 1)


def test_a_silo_can_be_asked_to_report_after_a_later_round():
    system = make_deployed_system(private=False, communication=1e6)
    silo = fastfed.parties.Silo(system.plan, 0)
    play_round(silo)
    silo.ask(3)
    assert silo.asked == 3 and not silo.due
    silo.ask()  # a request is already pending
    assert silo.asked == 3
    with pytest.raises(InputError, match="no report due after round 1"):
        silo.report()
    play_round(silo)
    assert not silo.due
    play_round(silo)
    assert silo.due
    with pytest.raises(InputError, match="must report and receive"):
        silo.select(ACTIONS)
    late_silo = fastfed.parties.Silo(system.plan, 1)
    play_round(late_silo)
    play_round(late_silo)
    with pytest.raises(InputError, match="round must be an integer >= 2, got 1"):
        late_silo.ask(1)
    assert late_silo.asked is None
    early_silo = fastfed.parties.Silo(system.plan, 1)
    early_silo.ask()
    assert early_silo.asked == 1 and not early_silo.due


def test_a_request_during_a_round_includes_this_round():
    """Check that a round whose reward is still missing belongs to the batch."""
    silo = fastfed.parties.Silo(make_deployed_system(private=False, communication=1e6).plan, 0)
    play_round(silo)
    silo.select(ACTIONS)
    silo.ask()
    assert silo.asked == 2 and not silo.due
    silo.observe(1.0)
    assert silo.due
    assert silo.report().covariance.trace() == pytest.approx(2.0)


def test_silos_with_a_fixed_schedule_refuse_requests():
    silo = fastfed.parties.Silo(
        make_deployed_system(private=False, schedule="fixed", batch_size=2).plan, 0
    )
    with pytest.raises(InputError, match="ask is for plans with a trigger; here the batch"):
        silo.ask()
    play_round(silo)
    with pytest.raises(InputError, match=r"no report due after round 1 \(batch_size = 2\)"):
        silo.report()
    play_round(silo)
    assert silo.due and silo.asked is None


def test_system_noise_never_returns_trigger_noise_twice():
    noise = SystemNoise()
    draws = [noise.trigger(0, 1, 3), noise.trigger(1, 1, 3), noise.trigger(0, 2, 3)]
    assert {len(z) for z in draws} == {6}
    assert len({tuple(z) for z in draws}) == 3
    with pytest.raises(InputError, match="the schedule's noise of round 1 of silo 0 was drawn alr"):
        noise.trigger(0, 1, 3)
    # The noise of a node of the sums is separate.
    assert len(noise.node(0, 1, 3)) == 9
    # Two silos with the same number share a source: the second is refused in its first round.
    plan, shared = make_deployed_system(**PRIVATE_TRIGGER).plan, SystemNoise()
    play_round(fastfed.parties.Silo(plan, 0, shared))
    second_silo = fastfed.parties.Silo(plan, 0, shared)
    second_silo.select(ACTIONS)
    with pytest.raises(InputError, match="use one SystemNoise for each system"):
        second_silo.observe(1.0)


def test_system_noise_is_standard_normal():
    """Check 4000 draws: mean within 0.08 and variance within 0.11; a correct source fails once in
    10^6."""
    noise = SystemNoise()
    z = np.concatenate([noise.trigger(0, t, 4) for t in range(1, 401)])
    assert abs(z.mean()) < 0.08 and abs(z.var() - 1.0) < 0.11


class FailsInRoundThree(SeededNoise):
    """A noise source that fails once in round 3, as a draw from the operating system may."""

    failed = False

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        """Draw the noise of the trigger; fail once, in round 3."""
        if round == 3 and not self.failed:
            self.failed = True
            raise OSError("no entropy")
        return super().trigger(silo, round, dimension)


@pytest.mark.parametrize("lazy", [True, False])
def test_an_observation_can_be_repeated_after_its_noise_source_failed(lazy):
    """Give the reward again and check that it counts once."""
    system = make_deployed_system(
        **{**PRIVATE_TRIGGER, "epsilon": 1e4, "communication": 1e6}, lazy=lazy
    )
    undisturbed = fastfed.parties.Silo(system.plan, 0, SeededNoise(0))
    failing = fastfed.parties.Silo(system.plan, 0, FailsInRoundThree(0))
    for t in range(1, 6):
        for silo in (undisturbed, failing):
            assert silo.select(ACTIONS) in range(3)
        if t == 3:
            with pytest.raises(OSError, match="no entropy"):
                failing.observe(1.5)
        for silo in (undisturbed, failing):
            silo.observe(1.5)
    assert (
        (undisturbed.round, undisturbed.clipped_rewards)
        == (failing.round, failing.clipped_rewards)
        == (5, 5)
    )
    for silo in (undisturbed, failing):
        silo.ask()
    np.testing.assert_array_equal(undisturbed.report().values, failing.report().values)


# -- Experiments -----------------------------------------------------------------------------------


def spec(**changes: Any) -> dict[str, Any]:
    """Return a spec with one curve whose schedule is private and adaptive."""
    return {
        "name": "adaptive",
        "horizon": 60,
        "silos": 3,
        "replicates": 3,
        "seed": 4,
        "checkpoints": 7,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
        "curve": [
            {
                "label": "quiet",
                "algorithm": "feducb",
                "schedule": "private-determinant",
                "epsilon": 1e4,
                "delta": 1e-3,
                "communication": 0.3,
            }
        ],
        **changes,
    }


def stored_tables(folder: Any) -> list[list[Any]]:
    """Return all rows of the store except timings."""
    with sqlite3.connect(folder / FILE) as db:
        return [
            list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2"))
            for table in ("meta", "curves", "cells")
        ]


def test_replicates_report_different_numbers_of_synchronisations():
    keys = {"horizon": 60, "silos": 3, "seed": 4, "replicates": 2, "checkpoints": 7}
    curve_keys = {
        key: value for key, value in spec()["curve"][0].items() if key not in ("label", "algorithm")
    }
    results_by_driver = {
        driver: fastfed.simulate(
            spec()["environment"], "feducb", driver=driver, **keys, **curve_keys
        )
        for driver in ("compiled", "step")
    }
    (curve,), (step_curve,) = (results_.curves for results_ in results_by_driver.values())
    counts = curve.synchronisation_counts
    np.testing.assert_array_equal(counts, step_curve.synchronisation_counts)
    np.testing.assert_array_equal(curve.group_regret, step_curve.group_regret)
    assert counts.shape == (2, 7) and counts.dtype == np.int64
    assert (counts[0] != counts[1]).any() and (np.diff(counts, axis=1) >= 0).all()
    # 9 numbers of 64 bits to and from each of 3 silos.
    np.testing.assert_array_equal(curve.bits_up_counts, counts * 3 * 9 * 64)
    np.testing.assert_array_equal(curve.bits_down_counts, counts * 3 * 9 * 64)
    json_curve = json.loads(json.dumps(results_by_driver["compiled"].to_builtins()))["curves"][0]
    assert json_curve["synchronisations_curve"] == counts.mean(axis=0).tolist()
    assert json_curve["synchronisations"] == counts[:, -1].mean()
    assert json_curve["bytes_up"] == counts[:, -1].mean() * 3 * 9 * 8
    assert json_curve["certificate"]["status"] == "proven"


def test_a_run_of_one_round_synchronises_once():
    """Use one silo and one round, for which the threshold T ln(M T) / (d M) is 0."""
    curve = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 2}, "feducb", horizon=1, silos=1,
        private=False, communication="M1.5",
    ).curves[0]  # fmt: skip
    assert curve.synchronisation_counts.tolist() == [[1]]


def test_more_replicates_extend_a_stored_adaptive_curve(tmp_path):
    for folder, replicates in (("grown", 1), ("grown", 2), ("straight", 2)):
        fastfed.run(experiment_from_spec(spec(replicates=replicates)), tmp_path / folder)
    assert stored_tables(tmp_path / "grown") == stored_tables(tmp_path / "straight")
    (curve,) = fastfed.load(tmp_path / "grown").curves
    assert curve.synchronisation_counts.shape == (2, 7)
    assert len({tuple(row) for row in curve.synchronisation_counts.tolist()}) == 2


def test_an_interrupted_adaptive_run_continues_with_the_same_results(tmp_path):
    e, reported = experiment_from_spec(spec()), []

    def stop(agent_rounds: int) -> None:
        """Note the progress, and interrupt the run in its second replicate."""
        reported.append(agent_rounds)
        # Stop in the second replicate, between two calls of the compiled driver.
        if sum(reported) > 3 * 60 + 3 * 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastfed.run(e, tmp_path / "out", threads=1, progress=stop)
    committed = {(cell[0], cell[1]) for cell in stored_tables(tmp_path / "out")[2]}
    assert committed == {(0, 0)} and len(missing_batches(e, committed)) == 2
    fastfed.run(e, tmp_path / "out", threads=2)
    fastfed.run(e, tmp_path / "straight", threads=1)
    assert stored_tables(tmp_path / "out") == stored_tables(tmp_path / "straight")


TOGETHER = [
    {"label": "plain", "algorithm": "fedlinucb", "batch_size": 10},
    {"label": "adaptive", "algorithm": "feducb", "private": False, "communication": [1.0, 3.0]},
]


def test_adaptive_curves_can_be_simulated_together_with_others(tmp_path):
    """Check that a spec may hold any curves; curves that need a separate batch get one."""
    e = experiment_from_spec(spec(curve=TOGETHER, replicates=2))
    results = fastfed.run(e, tmp_path / "out")
    for curve in (
        TOGETHER[0],
        *({**TOGETHER[1], "communication": communication} for communication in (1.0, 3.0)),
    ):
        alone = fastfed.run(
            experiment_from_spec(spec(curve=[curve], replicates=2)),
            tmp_path / f"{curve['label']}{curve.get('communication', '')}",
        ).curves[0]
        label = curve["label"]
        label += f", communication = {curve['communication']}" if "communication" in curve else ""
        np.testing.assert_array_equal(alone.group_regret, results[label].group_regret)
        np.testing.assert_array_equal(
            alone.synchronisation_counts, results[label].synchronisation_counts
        )


def test_run_time_of_adaptive_curves_is_predicted():
    e = experiment_from_spec(spec(curve=TOGETHER))
    assert predict_seconds(e, missing_batches(e, set()), 2) > 0


def test_a_late_request_makes_no_empty_release():
    """Check that there are never more releases than rounds."""
    system = fastfed.make_system(
        "feducb", silos=1, horizon=2, dimension=2, epsilon=1.0, delta=1e-6,
        schedule="private-determinant", communication=1e9,
    )  # fmt: skip
    silo, server = fastfed.parties.Silo(system.plan), fastfed.parties.Server(system.plan)
    for release in (1, 2):
        silo.select(np.eye(2))
        silo.observe(1.0)
        silo.ask()
        silo.receive(server.combine([silo.report()]))
        assert silo.release == release
        silo.ask()
        assert not silo.due
        with pytest.raises(InputError, match="no report due"):
            silo.report()


def test_requests_for_synchronised_rounds_are_refused():
    system = fastfed.make_system(
        "feducb", silos=1, horizon=9, dimension=2, private=False, communication=1e9
    )
    silo, server = fastfed.parties.Silo(system.plan), fastfed.parties.Server(system.plan)
    for _ in range(3):
        silo.select(np.eye(2))
        silo.observe(1.0)
    silo.ask()
    silo.receive(server.combine([silo.report()]))
    with pytest.raises(InputError, match="round must be an integer >= 4, got 3"):
        silo.ask(3)


def test_a_randomizer_refuses_reports_after_the_last_release():
    from fastfed.protocols import make_randomizer

    system = fastfed.make_system(
        "private-fedlinucb", silos=1, horizon=3, dimension=2, batch_size=1, epsilon=1.0, delta=1e-6
    )
    randomizer = make_randomizer(system.plan, 0, fastfed.parties.SeededNoise(0))
    for _ in range(3):
        randomizer.report()
    with pytest.raises(InputError, match="the plan has 3 releases, got one more report"):
        randomizer.report()
