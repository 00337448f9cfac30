"""FedUCB at work: deployed by hand with an adaptive schedule, simulated, stored and resumed."""

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
from fastfed.privacy.certificate import SIMULATION
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import missing_batches, predict_seconds
from fastfed.simulation.experiment import experiment_from_spec

PRIVATE = {"epsilon": 1.0, "delta": 1e-4}
QUIET = {**PRIVATE, "schedule": "private-determinant"}

# -- Deployment ------------------------------------------------------------------------------------

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])


def deployed(**keys: Any) -> System:
    return fastfed.make_system("feducb", silos=2, horizon=30, dimension=2, **keys)


def one_round(silo: fastfed.parties.Silo) -> None:
    silo.observe(float(silo.select(ACTIONS) == 1))


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    "keys",
    [
        {"private": False, "communication": 1.0},
        {"epsilon": 20.0, "delta": 0.01, "communication": 2.0},
        {**QUIET, "epsilon": 1e4, "communication": 1.0},
    ],
    ids=["open", "determinant", "private-determinant"],
)
def test_a_deployment_by_hand(keys, lazy):
    """Noise of the operating system, reports out of order, whoever is due asks the others."""
    system = deployed(**keys, lazy=lazy)
    silos, server = (
        [fastfed.parties.Silo(system.plan, i) for i in range(2)],
        fastfed.parties.Server(system.plan),
    )
    rounds = []
    for user in range(1, 31):
        for silo in silos:
            one_round(silo)
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
    assert SIMULATION in system.certificate.caveats or keys.get("private") is False
    assert SIMULATION not in system.deployed_certificate.caveats
    assert system.deployed_certificate.status == system.certificate.status


def test_a_deployment_with_seeded_noise_is_the_step_driver():
    from fastfed.simulation import server

    sphere = Sphere(dimension=3, actions=5)
    system = fastfed.make_system(
        "feducb", silos=2, horizon=25, dimension=3, **{**QUIET, "epsilon": 1e4}, communication=1.0
    )
    opened = sphere.open(3, 0, 2)
    played = server.run_one(opened, system.plan, np.arange(1, 26))
    noise = SeededNoise(3)
    silos = [fastfed.parties.Silo(system.plan, i, noise) for i in range(2)]
    server = fastfed.parties.Server(system.plan, noise)
    for t in range(1, 26):
        # The silos' order within a round is nobody's business.
        for i in (1, 0):
            features, means = opened.round(i, t)
            a = silos[i].select(features)
            silos[i].observe(opened.reward(i, t, means[a]))
            assert a == played.actions[i, t - 1]
        if any(silo.due for silo in silos):
            for silo in silos:
                silo.ask()
            broadcast = server.combine([silo.report() for silo in silos])
            for silo in silos:
                silo.receive(broadcast)
        assert server.release == played.synchronisations[t - 1]
    np.testing.assert_array_equal(broadcast.values, played.total)


def test_misuse_of_an_adaptive_silo_is_one_clear_sentence():
    system = deployed(private=False, communication=1e6)
    silos, server = (
        [fastfed.parties.Silo(system.plan, i) for i in range(2)],
        fastfed.parties.Server(system.plan),
    )
    asked, other = silos
    for silo in silos:
        one_round(silo)
        assert not silo.due
    with pytest.raises(InputError, match=r"silo 0 has no report due after round 1 \(no trigger ma"):
        asked.report()
    for silo in silos:
        silo.ask()
    with pytest.raises(InputError, match="silo 0 must report and receive release 1 before round 2"):
        asked.select(ACTIONS)
    reports = [asked.report()]
    with pytest.raises(InputError, match="silo 0 must report and receive release 1 before round 2"):
        asked.select(ACTIONS)
    with pytest.raises(InputError, match="no report due"):
        asked.report()
    with pytest.raises(InputError, match="one report of each of the 2 silos"):
        server.combine(reports)
    broadcast = server.combine([*reports, other.report()])
    asked.receive(broadcast)
    with pytest.raises(InputError, match="silo 0 waits for release 2, got release 1 again"):
        asked.receive(broadcast)
    one_round(asked)
    with pytest.raises(InputError, match="silo 1 must report and receive release 1"):
        other.select(ACTIONS)
    other.receive(broadcast)
    one_round(other)
    assert (asked.release, other.release) == (1, 1)


def test_to_be_asked_for_a_later_round():
    system = deployed(private=False, communication=1e6)
    silo = fastfed.parties.Silo(system.plan, 0)
    one_round(silo)
    silo.ask(3)
    assert silo.asked == 3 and not silo.due
    silo.ask()  # it has heard already
    assert silo.asked == 3
    with pytest.raises(InputError, match="no report due after round 1"):
        silo.report()
    one_round(silo)
    assert not silo.due
    one_round(silo)
    assert silo.due
    with pytest.raises(InputError, match="must report and receive"):
        silo.select(ACTIONS)
    late = fastfed.parties.Silo(system.plan, 1)
    one_round(late)
    one_round(late)
    with pytest.raises(InputError, match="round must be an integer >= 2, got 1"):
        late.ask(1)
    assert late.asked is None
    early = fastfed.parties.Silo(system.plan, 1)
    early.ask()
    assert early.asked == 1 and not early.due


def test_to_be_asked_in_the_middle_of_a_round():
    """A choice that waits for its reward is a round under way: it belongs to the batch."""
    silo = fastfed.parties.Silo(deployed(private=False, communication=1e6).plan, 0)
    one_round(silo)
    silo.select(ACTIONS)
    silo.ask()
    assert silo.asked == 2 and not silo.due
    silo.observe(1.0)
    assert silo.due
    assert silo.report().covariance.trace() == pytest.approx(2.0)


def test_a_fixed_plan_cannot_be_asked():
    silo = fastfed.parties.Silo(deployed(private=False, schedule="fixed", batch_size=2).plan, 0)
    with pytest.raises(InputError, match="ask is for plans with a trigger; here the batch"):
        silo.ask()
    one_round(silo)
    with pytest.raises(InputError, match=r"no report due after round 1 \(batch_size = 2\)"):
        silo.report()
    one_round(silo)
    assert silo.due and silo.asked is None


def test_system_noise_never_gives_a_schedule_the_same_round_twice():
    noise = SystemNoise()
    drawn = [noise.trigger(0, 1, 3), noise.trigger(1, 1, 3), noise.trigger(0, 2, 3)]
    assert {len(z) for z in drawn} == {6}
    assert len({tuple(z) for z in drawn}) == 3
    with pytest.raises(InputError, match="the schedule's noise of round 1 of silo 0 was drawn alr"):
        noise.trigger(0, 1, 3)
    # A node of the sums is another noise.
    assert len(noise.node(0, 1, 3)) == 9
    # Two silos of one name that share a source: the second is refused in its first round.
    plan, shared = deployed(**QUIET).plan, SystemNoise()
    one_round(fastfed.parties.Silo(plan, 0, shared))
    twin = fastfed.parties.Silo(plan, 0, shared)
    twin.select(ACTIONS)
    with pytest.raises(InputError, match="use one SystemNoise for each system"):
        twin.observe(1.0)


def test_system_noise_is_standard_normal():
    """4 000 draws: mean within 0.08, variance within 0.11, wrong once in 10^6 runs."""
    noise = SystemNoise()
    z = np.concatenate([noise.trigger(0, t, 4) for t in range(1, 401)])
    assert abs(z.mean()) < 0.08 and abs(z.var() - 1.0) < 0.11


class Failing(SeededNoise):
    """A source that fails once in its third round, as an operating system may."""

    failed = False

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        if round == 3 and not self.failed:
            self.failed = True
            raise OSError("no entropy")
        return super().trigger(silo, round, dimension)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_failing_noise_source_changes_nothing(lazy):
    """The reward is told again, and counts once."""
    system = deployed(**{**QUIET, "epsilon": 1e4, "communication": 1e6}, lazy=lazy)
    good = fastfed.parties.Silo(system.plan, 0, SeededNoise(0))
    bad = fastfed.parties.Silo(system.plan, 0, Failing(0))
    for t in range(1, 6):
        for silo in (good, bad):
            assert silo.select(ACTIONS) in range(3)
        if t == 3:
            with pytest.raises(OSError, match="no entropy"):
                bad.observe(1.5)
        for silo in (good, bad):
            silo.observe(1.5)
    assert (good.round, good.clipped_rewards) == (bad.round, bad.clipped_rewards) == (5, 5)
    for silo in (good, bad):
        silo.ask()
    np.testing.assert_array_equal(good.report().values, bad.report().values)


# -- Experiments -----------------------------------------------------------------------------------


def spec(**changes: Any) -> dict[str, Any]:
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


def stored(folder: Any) -> list[list[Any]]:
    """Everything in the store but timings."""
    with sqlite3.connect(folder / FILE) as db:
        return [
            list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2"))
            for table in ("meta", "curves", "cells")
        ]


def test_replicates_synchronise_as_often_as_their_data_say():
    keys = {"horizon": 60, "silos": 3, "seed": 4, "replicates": 2, "checkpoints": 7}
    given = {k: v for k, v in spec()["curve"][0].items() if k not in ("label", "algorithm")}
    played = {
        driver: fastfed.simulate(spec()["environment"], "feducb", driver=driver, **keys, **given)
        for driver in ("compiled", "step")
    }
    (curve,), (other,) = (r.curves for r in played.values())
    counts = curve.synchronisation_counts
    np.testing.assert_array_equal(counts, other.synchronisation_counts)
    np.testing.assert_array_equal(curve.group_regret, other.group_regret)
    assert counts.shape == (2, 7) and counts.dtype == np.int64
    assert (counts[0] != counts[1]).any() and (np.diff(counts, axis=1) >= 0).all()
    # 9 numbers of 64 bits to and from each of 3 silos.
    np.testing.assert_array_equal(curve.bits_up_counts, counts * 3 * 9 * 64)
    np.testing.assert_array_equal(curve.bits_down_counts, counts * 3 * 9 * 64)
    listed = json.loads(json.dumps(played["compiled"].to_builtins()))["curves"][0]
    assert listed["synchronisations_curve"] == counts.mean(axis=0).tolist()
    assert listed["synchronisations"] == counts[:, -1].mean()
    assert listed["bytes_up"] == counts[:, -1].mean() * 3 * 9 * 8
    assert listed["certificate"]["status"] == "proven"


def test_the_least_that_there_is():
    """One silo, one round, and the threshold T ln(M T) / (d M), which is then 0."""
    curve = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 2}, "feducb", horizon=1, silos=1,
        private=False, communication="M1.5",
    ).curves[0]  # fmt: skip
    assert curve.synchronisation_counts.tolist() == [[1]]


def test_more_replicates_of_an_adaptive_curve_equal_a_straight_run(tmp_path):
    for folder, replicates in (("grown", 1), ("grown", 2), ("straight", 2)):
        fastfed.run(experiment_from_spec(spec(replicates=replicates)), tmp_path / folder)
    assert stored(tmp_path / "grown") == stored(tmp_path / "straight")
    (curve,) = fastfed.load(tmp_path / "grown").curves
    assert curve.synchronisation_counts.shape == (2, 7)
    assert len({tuple(row) for row in curve.synchronisation_counts.tolist()}) == 2


def test_an_interrupted_adaptive_run_is_finished_as_if_it_had_not_been(tmp_path):
    e, heard = experiment_from_spec(spec()), []

    def stop(agent_rounds: int) -> None:
        heard.append(agent_rounds)
        # In the second replicate, between two calls of the compiled driver.
        if sum(heard) > 3 * 60 + 3 * 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastfed.run(e, tmp_path / "out", threads=1, progress=stop)
    done = {(c[0], c[1]) for c in stored(tmp_path / "out")[2]}
    assert done == {(0, 0)} and len(missing_batches(e, done)) == 2
    fastfed.run(e, tmp_path / "out", threads=2)
    fastfed.run(e, tmp_path / "straight", threads=1)
    assert stored(tmp_path / "out") == stored(tmp_path / "straight")


TOGETHER = [
    {"label": "plain", "algorithm": "fedlinucb", "batch_size": 10},
    {"label": "adaptive", "algorithm": "feducb", "private": False, "communication": [1.0, 3.0]},
]


def test_adaptive_curves_are_played_beside_others(tmp_path):
    """Those that need a pass of their own get one: one spec holds any curves."""
    e = experiment_from_spec(spec(curve=TOGETHER, replicates=2))
    played = fastfed.run(e, tmp_path / "out")
    for table in (TOGETHER[0], *({**TOGETHER[1], "communication": c} for c in (1.0, 3.0))):
        alone = fastfed.run(
            experiment_from_spec(spec(curve=[table], replicates=2)),
            tmp_path / f"{table['label']}{table.get('communication', '')}",
        ).curves[0]
        label = table["label"]
        label += f", communication = {table['communication']}" if "communication" in table else ""
        np.testing.assert_array_equal(alone.group_regret, played[label].group_regret)
        np.testing.assert_array_equal(
            alone.synchronisation_counts, played[label].synchronisation_counts
        )


def test_the_time_of_adaptive_curves_beside_others_is_predicted():
    e = experiment_from_spec(spec(curve=TOGETHER))
    assert predict_seconds(e, missing_batches(e, set()), 2) > 0


def test_there_are_no_more_releases_than_rounds():
    """A late duplicate of a request must not make a release of nothing."""
    system = fastfed.make_system(
        "feducb", silos=1, horizon=2, dimension=2, epsilon=1.0, delta=1e-6,
        schedule="private-determinant", communication=1e9,
    )  # fmt: skip
    silo, server = fastfed.parties.Silo(system.plan), fastfed.parties.Server(system.plan)
    for released in (1, 2):
        silo.select(np.eye(2))
        silo.observe(1.0)
        silo.ask()
        silo.receive(server.combine([silo.report()]))
        assert silo.release == released
        silo.ask()
        assert not silo.due
        with pytest.raises(InputError, match="no report due"):
            silo.report()


def test_a_round_that_is_synchronised_already_cannot_be_asked_for():
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


def test_a_randomizer_stops_after_the_last_release():
    from fastfed.protocols import make_randomizer

    system = fastfed.make_system(
        "private-fedlinucb", silos=1, horizon=3, dimension=2, batch_size=1, epsilon=1.0, delta=1e-6
    )
    randomizer = make_randomizer(system.plan, 0, fastfed.parties.SeededNoise(0))
    for _ in range(3):
        randomizer.report()
    with pytest.raises(InputError, match="the plan has 3 releases, got one more report"):
        randomizer.report()
