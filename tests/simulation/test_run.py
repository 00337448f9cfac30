"""Stored runs: what a store holds, how a run resumes, and what is refused."""

import contextlib
import hashlib
import html
import json
import math
import re
import sqlite3
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import fastfed
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import write_report
from fastfed.reporting.panels import split_label
from fastfed.reporting.text import spec_text
from fastfed.results import digests
from fastfed.results import store as store_module
from fastfed.results.store import FILE, Store, made_now
from fastfed.simulation import dispatch as passes_module
from fastfed.simulation import run as run_module
from fastfed.simulation.dispatch import RunBatch, missing_batches, predict_seconds
from fastfed.simulation.driver import Outcome
from fastfed.simulation.experiment import experiment_from_spec, load_experiment, make_experiment
from fastfed.simulation.run import collect


def spec(**changes):
    """Return the spec of a small experiment with three curves; keywords replace its keys."""
    return {
        "name": "small",
        "horizon": 60,
        "silos": 3,
        "replicates": 3,
        "seed": 4,
        "checkpoints": 7,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
        "curve": [
            {"label": "plain", "algorithm": "fedlinucb", "batch_size": 10},
            {
                "label": "private",
                "algorithm": "private-fedlinucb",
                "batch_size": 10,
                "epsilon": [1.0, 10.0],
                "delta": 1e-3,
            },
        ],
        **changes,
    }


def check_resumed(spec_table, folder):
    """Check that adding replicates to a store repeats no batch and equals one run of them all.

    Returns the number of batches simulated by each of the first three runs, and the four results,
    which are equal.
    """
    batches_per_run = []

    def count_batches(batches, threads):
        batches_per_run.append(len(batches))

    one_replicate = experiment_from_spec(spec_table | {"replicates": 1})
    fastfed.run(one_replicate, folder / "a", on_start=count_batches)
    resumed = fastfed.run(experiment_from_spec(spec_table), folder / "a", on_start=count_batches)
    cells_before = cells(folder / "a")
    repeated = fastfed.run(experiment_from_spec(spec_table), folder / "a", on_start=count_batches)
    assert cells(folder / "a") == cells_before
    in_one_run = fastfed.run(experiment_from_spec(spec_table), folder / "b", threads=2)
    results = [resumed, repeated, in_one_run, fastfed.load(folder / "a")]
    for other_results in results[1:]:
        assert_same_results(resumed, other_results)
    return batches_per_run, results


def cells(folder):
    """Return all rows of the store, except timings."""
    with sqlite3.connect(folder / FILE) as db:
        return [
            list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2"))
            for table in ("meta", "curves", "cells")
        ]


def assert_same_results(a, b):
    """Check that two results hold the same curves, counts and certificates."""
    assert [curve.label for curve in a.curves] == [curve.label for curve in b.curves]
    for curve_a, curve_b in zip(a.curves, b.curves, strict=True):
        for counts in (
            "group_regret", "synchronisation_counts", "bits_up_counts", "bits_down_counts",
        ):  # fmt: skip
            counts_a, counts_b = getattr(curve_a, counts), getattr(curve_b, counts)
            np.testing.assert_array_equal(counts_a, counts_b)
            assert counts_a.dtype == counts_b.dtype
        assert curve_a.certificate == curve_b.certificate


def test_labels_of_a_sweep_contain_the_swept_values():
    e = experiment_from_spec(spec())
    assert [c.label for c in e.curves] == [
        "plain",
        "private, epsilon = 1.0",
        "private, epsilon = 10.0",
    ]


def test_labels_of_swept_tables_contain_keys_and_values():
    """Sweep over tables: labels have no Python dict, and are split again for the plots."""
    curve = {"label": "LDP", "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-4,
             "batch_size": 10, "intercept": [5.0, 8.0], "sieve": 0.1,
             "share": [{"until": 20}, {"until": 30, "fraction": 0.5}]}  # fmt: skip
    labels = [c.label for c in experiment_from_spec({**spec(), "curve": [curve]}).curves]
    assert labels[:2] == [
        "LDP, intercept = 5.0, share = until 20",
        "LDP, intercept = 5.0, share = until 30; fraction 0.5",
    ]
    values = {"intercept": "8.0", "share": "until 30; fraction 0.5"}
    assert len(labels) == 4 and split_label(labels[3]) == ("LDP", values)


def test_a_stored_run_loads_with_equal_results(tmp_path):
    results = fastfed.run(experiment_from_spec(spec()), tmp_path / "out")
    loaded = fastfed.load(tmp_path / "out")
    assert_same_results(results, loaded)
    assert loaded.curves[0].group_regret.shape == (3, 7)
    assert loaded.curves[0].rounds[-1] == 60
    assert loaded.curves[0].agent_rounds_per_second > 0
    simulated = fastfed.simulate(
        spec()["environment"], curves=spec()["curve"], horizon=60, silos=3, replicates=3, seed=4,
        checkpoints=7,
    )  # fmt: skip
    assert_same_results(results, simulated)


def test_a_fixed_schedule_has_equal_counts_in_all_replicates(tmp_path):
    curve = fastfed.run(experiment_from_spec(spec()), tmp_path).curves[0]
    # Batches of 10 rounds. Each of 3 silos sends and receives 9 entries of 64 bits per batch.
    assert curve.rounds.tolist() == [9, 18, 26, 35, 43, 52, 60]
    expected = np.tile([0, 1, 2, 3, 4, 5, 6], (3, 1))
    np.testing.assert_array_equal(curve.synchronisation_counts, expected)
    np.testing.assert_array_equal(curve.bits_up_counts, expected * 3 * 9 * 64)
    np.testing.assert_array_equal(curve.bits_down_counts, expected * 3 * 9 * 64)


@pytest.mark.parametrize("protocol", ["central", "silo-ldp"])
def test_stores_from_before_the_radius_changed_are_refused(protocol, tmp_path):
    keys = {"epsilon": 1.0, "delta": 1e-5, "batch_size": 10, "protocol": protocol}
    private = {"label": "a", "algorithm": "private-fedlinucb", **keys}
    open_curve = {"label": "b", "algorithm": "fedlinucb", "batch_size": 10}
    experiment = experiment_from_spec(spec(curve=[private, open_curve]))
    assert experiment.identity()["revisions"] == {"a": 2}
    assert "revisions" not in spec_text(experiment.identity(), 3, {})
    old_identity = {k: v for k, v in experiment.identity().items() if k != "revisions"}
    meta = {"identity": old_identity, "rounds": experiment.checkpoints.tolist(), "figure": {}}
    with Store.create_or_resume(tmp_path, meta, run_module.curve_rows(experiment)):
        pass
    with pytest.raises(fastfed.InputError, match="different revisions"):
        Store.done_in(tmp_path, experiment.identity())
    by_lemma = experiment_from_spec(spec(curve=[{**private, "radius": "lemma-c2"}, open_curve]))
    assert "revisions" not in by_lemma.identity()


def test_fixed_sets_with_fewer_actions_than_features_have_a_new_identity():
    def revisions(actions, **keys):
        """Return the revisions in the identity of an experiment."""
        environment = {"kind": "fixed-set", "dimension": 6, "actions": actions}
        curve = {"label": "a", "algorithm": "linucb", **keys}
        experiment = experiment_from_spec(spec(environment=environment, silos=1, curve=[curve]))
        return experiment.identity().get("revisions")

    assert revisions(5) == {"a": 2}
    assert revisions(6) is None and revisions(5, sieve=1.0) is None


def test_stores_from_before_coins_changed_are_refused(tmp_path):
    losses = {"kind": "realizable-losses", "experts": 3}
    curve = {"label": "a", "algorithm": "hedge"}
    experiment = experiment_from_spec(spec(environment=losses, silos=2, curve=[curve]))
    old_identity = {k: v for k, v in experiment.identity().items() if k != "revisions"}
    meta = {"identity": old_identity, "rounds": experiment.checkpoints.tolist(), "figure": {}}
    with Store.create_or_resume(tmp_path, meta, run_module.curve_rows(experiment)):
        pass
    with pytest.raises(fastfed.InputError, match="different revisions"):
        Store.done_in(tmp_path, experiment.identity())


def test_curves_on_coins_have_a_new_identity():
    def revisions(kind, **keys):
        """Return the revisions in the identity of an experiment."""
        environment = {"kind": kind, **keys}
        curve = {"label": "a", "algorithm": "follow-the-leader"}
        experiment = experiment_from_spec(spec(environment=environment, silos=2, curve=[curve]))
        return experiment.identity().get("revisions")

    for kind in ("stochastic-losses", "realizable-losses", "lower-bound-losses"):
        assert revisions(kind, experts=3) == {"a": 2}
    assert revisions("near-realizable-losses", experts=3, optimal_loss=2) == {"a": 2}
    # These losses are not random.
    assert revisions("lower-bound-losses", experts=3, theorem="2.7", burst=4) is None
    assert revisions("oblivious-losses", losses=[[0.0, 1.0]] * 60) is None


def test_results_with_more_noise_are_a_different_experiment(tmp_path):
    """Refuse stores from before a tighter account chose less noise; other stores stay valid."""

    def experiment_of(silos=3, **keys):
        """Return an experiment with one private curve."""
        keys = {"batch_size": 10, "epsilon": 1e-6, "delta": 1e-9, **keys}
        curve = {"label": "a", "algorithm": "private-fedlinucb", **keys}
        return experiment_from_spec(spec(silos=silos, curve=[curve]))

    amplified = {"protocol": "shuffle-amplified", "silos": 10**6, "batch_size": 60}
    for changed_keys in ({"release": "honaker"}, amplified):
        experiment = experiment_of(**changed_keys)
        assert experiment.identity()["accounts"] == {"a": 2}
        assert "accounts" not in spec_text(experiment.identity(), 3, {})
        old_identity = {k: v for k, v in experiment.identity().items() if k != "accounts"}
        meta = {"identity": old_identity, "rounds": experiment.checkpoints.tolist(), "figure": {}}
        folder = tmp_path / changed_keys.get("release", "lemma")
        with Store.create_or_resume(folder, meta, run_module.curve_rows(experiment)):
            pass
        with pytest.raises(fastfed.InputError, match="different accounts"):
            Store.done_in(folder, experiment.identity())
    for unchanged_keys in ({}, {"release": "toeplitz"}, {**amplified, "calibration": "theorem"}):
        assert "accounts" not in experiment_of(**unchanged_keys).identity()
    # This small federation gets its noise from silo-level LDP, whose account did not change.
    assert "accounts" not in experiment_of(protocol="shuffle-amplified").identity()
    assert "accounts" not in experiment_from_spec(spec()).identity()


def outcome(synchronisations, bits_up, bits_down):
    """Return one replicate's outcome with these counts at two checkpoints."""
    return Outcome(
        group_regret=np.array([1.0, 2.0]),
        synchronisations=np.array(synchronisations),
        bits_up=np.array(bits_up, np.float64),
        bits_down=np.array(bits_down, np.float64),
        total=np.zeros(9),
        events={},
    )


def stored(folder, outcomes):
    """Store these outcomes, one per replicate, as one curve; return experiment and results."""
    experiment = experiment_from_spec(
        spec(checkpoints=2, replicates=len(outcomes), curve=spec()["curve"][:1])
    )
    meta = {
        "identity": experiment.identity(),
        "rounds": experiment.checkpoints.tolist(),
        "figure": {},
    }
    with Store.create_or_resume(folder, meta, run_module.curve_rows(experiment)) as store:
        for replicate, replicate_outcome in enumerate(outcomes):
            store.commit(
                run_module.replicate_rows(RunBatch(replicate, (0,)), [replicate_outcome]), 1.0, 1, 1
            )
        return experiment, store.results()


def test_synchronisations_and_bits_are_counted_for_each_replicate(tmp_path):
    """Data-dependent synchronisation differs between replicates; a curve reports the mean."""
    outcomes = [
        outcome([2, 12], [16, 20], [8, 9]),
        outcome([2, 13], [16, 40], [8, 17]),
        outcome([2, 12], [16, 20], [9, 9]),
    ]
    experiment, loaded = stored(tmp_path / "a", outcomes)
    assert_same_results(
        loaded,
        collect(
            experiment, {(0, r): replicate_outcome for r, replicate_outcome in enumerate(outcomes)}
        ),
    )
    (curve,) = loaded.curves
    assert curve.synchronisation_counts.tolist() == [[2, 12], [2, 13], [2, 12]]
    assert curve.synchronisation_counts.dtype == np.int64
    assert curve.synchronisations == pytest.approx(37 / 3)
    assert (curve.bits_up, curve.bits_down) == (pytest.approx(80 / 3), pytest.approx(35 / 3))
    # Bits are rounded up to whole bytes per replicate: 3, 5, 3 up and 2, 3, 2 down.
    assert (curve.bytes_up, curve.bytes_down) == (pytest.approx(11 / 3), pytest.approx(7 / 3))
    assert curve.bytes_curve == [pytest.approx(3 + 1 / 3), pytest.approx(6)]
    assert curve.bytes_sent == curve.bytes_curve[-1]
    curve_dict = curve.to_builtins()
    assert curve_dict["synchronisations"] == curve.synchronisations
    assert curve_dict["synchronisations_curve"] == [2, curve.synchronisations]
    assert curve_dict["bytes_curve"] == curve.bytes_curve

    # A count that all replicates share is an integer. A mean is a float, even a whole one.
    assert type(curve_dict["synchronisations_curve"][0]) is int
    outcomes_with_whole_mean = [
        outcome([1, synchronisations], [8, 8], [0, 0]) for synchronisations in (12, 14)
    ]
    _, whole_mean_results = stored(tmp_path / "b", outcomes_with_whole_mean)
    assert repr(whole_mean_results.curves[0].synchronisations) == "13.0"
    assert (
        repr(whole_mean_results.curves[0].bits_up) == "8"
        and repr(whole_mean_results.curves[0].bytes_up) == "1"
    )
    assert whole_mean_results.curves[0].bytes_curve == [1, 1]


def test_counts_above_64_bits_are_stored_and_listed(tmp_path):
    """Vector sums send more bits than a 64-bit integer holds; the mean of equal counts is exact."""
    large = 2.0**53 - 1.0
    _, loaded = stored(tmp_path, [outcome([1, 1], [large, 3e30], [0, 0])] * 3)
    (curve,) = loaded.curves
    assert curve.bits_up_counts[:, 0].tolist() == [large] * 3
    assert curve.bits_up == 3e30 and isinstance(curve.bits_up, float)
    assert curve.bytes_curve == [2**50, 3e30 / 8]
    assert type(curve.bytes_curve[0]) is int
    assert b"3e30" in msgspec.json.encode(curve.to_builtins())


def test_a_store_of_an_older_format_is_refused(tmp_path):
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE meta SET value = '\"2\"' WHERE key = 'format'")
    with pytest.raises(fastfed.InputError, match="another version of fastfed"):
        fastfed.load(tmp_path)
    with pytest.raises(fastfed.InputError, match="another version of fastfed"):
        fastfed.run(experiment_from_spec(spec()), tmp_path)


def test_adding_replicates_repeats_nothing_and_equals_one_run_of_all(tmp_path, monkeypatch):
    two_replicates = experiment_from_spec(spec(replicates=2))
    fastfed.run(two_replicates, tmp_path / "a")
    simulated_replicates = []
    original = passes_module.run_together

    def record_replicate(experiment, batch, *rest, **keys):
        """Simulate as before, and note the replicate."""
        simulated_replicates.append(batch.replicate)
        return original(experiment, batch, *rest, **keys)

    monkeypatch.setattr(passes_module, "run_together", record_replicate)
    resumed = fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "a")
    assert sorted(simulated_replicates) == [2, 3, 4]
    fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "a")
    assert sorted(simulated_replicates) == [2, 3, 4]
    in_one_run = fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "b")
    assert_same_results(resumed, in_one_run)
    assert cells(tmp_path / "a") == cells(tmp_path / "b")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_change_the_store(tmp_path, threads):
    fastfed.run(experiment_from_spec(spec()), tmp_path / "one", threads=1)
    fastfed.run(experiment_from_spec(spec()), tmp_path / "many", threads=threads)
    assert cells(tmp_path / "one") == cells(tmp_path / "many")


def test_an_interrupted_run_keeps_the_batches_that_ended(tmp_path):
    experiment = experiment_from_spec(spec())
    progress = []

    def stop(agent_rounds):
        """Note the progress, and interrupt the run before its end."""
        progress.append(agent_rounds)
        if sum(progress) > 2 * 3 * 60 * 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastfed.run(experiment, tmp_path / "out", threads=1, progress=stop)
    missing = missing_batches(
        experiment, {(cell[0], cell[1]) for cell in cells(tmp_path / "out")[2]}
    )
    assert 0 < len(missing) < 3
    resumed = fastfed.run(experiment, tmp_path / "out")
    assert_same_results(resumed, fastfed.run(experiment, tmp_path / "straight"))
    assert cells(tmp_path / "out") == cells(tmp_path / "straight")


def test_a_folder_of_a_different_experiment_is_refused_and_unchanged(tmp_path):
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    cells_before = cells(tmp_path)
    different_experiment = experiment_from_spec(spec(horizon=50))
    with pytest.raises(
        fastfed.InputError, match=r'a different experiment \("small", different horizon'
    ):
        fastfed.run(different_experiment, tmp_path)
    assert cells(tmp_path) == cells_before


def test_files_and_folders_without_a_store_are_refused(tmp_path):
    (tmp_path / FILE).write_text("not a database at all")
    with pytest.raises(fastfed.InputError, match="not a store of fastfed"):
        fastfed.load(tmp_path)
    (tmp_path / "all" / "one").mkdir(parents=True)
    (tmp_path / "all" / "one" / "results.sqlite").touch()
    with pytest.raises(fastfed.InputError, match=r"its subfolder \S+one does"):
        fastfed.load(tmp_path / "all")
    with pytest.raises(fastfed.InputError, match="holds no results"):
        fastfed.load(tmp_path / "..")
    with pytest.raises(fastfed.InputError, match="is not a folder"):
        fastfed.load(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_created_gives_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fastfed.InputError, match="cannot write to"):
        fastfed.run(experiment_from_spec(spec()), tmp_path / "file" / "out")


def test_the_predicted_time_is_positive():
    experiment = experiment_from_spec(spec())
    assert predict_seconds(experiment, missing_batches(experiment, set()), 2) > 0
    assert predict_seconds(experiment, [], 2) == 0


def test_paired_differences_are_less_noisy_than_the_curves(tmp_path):
    results = fastfed.run(experiment_from_spec(spec(replicates=12)), tmp_path)
    mean, stderr = results.paired_difference("private, epsilon = 1.0", "plain")
    private, plain = results["private, epsilon = 1.0"], results["plain"]
    assert mean == pytest.approx(private.mean[-1] - plain.mean[-1])
    assert stderr < np.hypot(private.stderr[-1], plain.stderr[-1])
    with pytest.raises(KeyError, match="no curve"):
        results["nonsense"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"silos": 0}, "silos must be an integer >= 1"),
        ({"silos": None}, "silos is required"),
        ({"horizon": 0}, "horizon must be an integer >= 1"),
        ({"horizon": 10.5}, "horizon must be an integer"),
        ({"replicates": 0}, "replicates must be an integer >= 1"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"checkpoints": 0}, "checkpoints must be an integer >= 1"),
        ({"horizn": 5}, 'unknown key "horizn"; did you mean "horizon"'),
        ({"environment": {"kind": "spere"}}, 'unknown environment "spere"; did you mean "sphere"'),
        ({"environment": {}}, "environment.kind is required"),
        ({"environment": {"kind": "sphere", "dimensions": 3}}, 'did you mean "dimension"'),
        ({"environment": {"kind": "letor"}}, "environment.path is required"),
        ({"curve": []}, "curve is required"),
        ({"curve": {"label": "x"}}, r"write \[\[curve\]\]"),
        (
            {"curve": [{"label": "x", "algorithm": "fedlinub", "batch_size": 5}]},
            r'unknown algorithm "fedlinub"; did you mean "fedlinucb".*\(curve "x"\)',
        ),
        (
            {"curve": [{"algorithm": "fedlinucb", "batch_size": 5}] * 2},
            'label must be unique, got "fedlinucb" twice',
        ),
        (
            {"curve": [{"algorithm": "fedlinucb", "batch_size": []}]},
            "batch_size must not be an empty list",
        ),
        ({"environment": {"kind": "sphere", "reward": {"kind": "bernouli"}}}, "did you mean"),
        ({"environment": {"kind": "sphere", "reward": {"kind": "none", "std": 1}}}, "reward.std"),
    ],
)
def test_a_bad_spec_gives_one_clear_sentence(changes, sentence):
    with pytest.raises(fastfed.InputError, match=sentence) as error:
        experiment_from_spec(spec(**changes))
    assert "\n" not in str(error.value)


def test_a_spec_that_is_not_toml_names_line_and_column(tmp_path):
    (tmp_path / "bad.toml").write_text('name = "x"\nhorizon = = 3\n')
    with pytest.raises(fastfed.InputError, match=r"bad.toml: not TOML: .*line 2, column 11"):
        load_experiment(tmp_path / "bad.toml")
    with pytest.raises(fastfed.InputError, match="cannot be read"):
        load_experiment(tmp_path / "none.toml")


def test_data_paths_are_relative_to_the_spec(tmp_path):
    rows = "\n".join(f"{i % 3} qid:{i // 2} 1:{i}.5 2:{i % 5}" for i in range(24))
    (tmp_path / "rows.txt").write_text(rows + "\n")
    (tmp_path / "s.toml").write_text(
        'name = "l"\nhorizon = 6\nsilos = 2\n[environment]\nkind = "letor"\npath = "rows.txt"\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 2\n'
    )
    pytest.importorskip("sklearn")
    experiment = load_experiment(tmp_path / "s.toml")
    assert experiment.facts.dimension == 3


def test_checkpoints_are_distinct_rounds_that_end_with_the_last():
    """Test many horizons and counts: a floating-point ceiling once exceeded the horizon."""
    from fastfed.simulation.driver import checkpoint_rounds

    for horizon in [*range(1, 400), 10_000, 25_000, 10**5, 10**6]:
        for count in (1, 2, 7, 19, 145, 200):
            rounds = checkpoint_rounds(horizon, count)
            assert len(rounds) == min(count, horizon)
            assert rounds[-1] == horizon
            assert rounds[0] >= 1
            assert (np.diff(rounds) > 0).all()


def test_a_resumed_store_shows_the_current_certificate(tmp_path):
    """The privacy analysis of a run may improve later; its simulated results may not change."""
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE curves SET certificate = '{}' WHERE position = 1")
        digests.seal(db)
    resumed = fastfed.run(experiment_from_spec(spec()), tmp_path)
    assert resumed.curves[1].certificate["status"] == "proven"


def bounded(rounds):
    """Return three bounds, functions of the rounds; "late" is infinite before round 30."""
    assert rounds.dtype == np.int64
    return {
        "theorem-1": (3.0 * rounds).tolist(),
        "synchronisations-proposition-1": np.sqrt(rounds),
        "late": [math.inf if t < 30 else float(t) for t in rounds],
    }


def with_bounds(experiment, position, bounds_at=bounded):
    """Return the experiment with bounds on the curve at this position."""
    curves = list(experiment.curves)
    system = replace(curves[position].system, bounds_at=bounds_at)
    curves[position] = replace(curves[position], system=system)
    return replace(experiment, curves=tuple(curves))


def test_bounds_of_a_system_are_stored_at_the_checkpoints(tmp_path):
    experiment = with_bounds(experiment_from_spec(spec()), 1)
    results_of_run = fastfed.run(experiment, tmp_path)
    loaded = fastfed.load(tmp_path)
    rounds = [9, 18, 26, 35, 43, 52, 60]
    expected = {
        "theorem-1": [27.0, 54.0, 78.0, 105.0, 129.0, 156.0, 180.0],
        "synchronisations-proposition-1": [math.sqrt(t) for t in rounds],
        "late": [math.inf, math.inf, math.inf, 35.0, 43.0, 52.0, 60.0],
    }
    batches = missing_batches(experiment, set())
    outcomes = {
        (position, batch.replicate): batch_outcome
        for batch in batches
        for position, batch_outcome in zip(
            batch.positions, passes_module.run_together(experiment, batch, 1).outcomes, strict=True
        )
    }
    collected = collect(experiment, outcomes)
    for results in (results_of_run, loaded, collected):
        assert [curve.bounds for curve in results.curves] == [{}, expected, {}]
        assert list(results.curves[1].rounds) == rounds
    curve_dicts = msgspec.json.decode(msgspec.json.encode(loaded.to_builtins()))["curves"]
    assert [curve["bounds"] for curve in curve_dicts][::2] == [{}, {}]
    assert curve_dicts[1]["bounds"]["late"] == [None, None, None, 35, 43, 52, 60]
    assert curve_dicts[1]["bounds"]["theorem-1"] == expected["theorem-1"]


def test_a_store_without_bounds_loads_and_a_resumed_run_adds_them(tmp_path, monkeypatch):
    experiment = experiment_from_spec(spec())
    fastfed.run(experiment, tmp_path)
    facts = [msgspec.json.decode(row[4]) for row in cells(tmp_path)[1]]
    assert all(len(curve.pop("random_regret")) == 2 for curve in facts)
    assert facts == [{"silos": 3, "dimension": 3}] * 3
    assert all(curve.bounds == {} for curve in fastfed.load(tmp_path).curves)
    results_before = cells(tmp_path)[2]
    monkeypatch.setattr(passes_module, "run_together", None)  # fails if a batch is simulated again
    resumed = fastfed.run(with_bounds(experiment, 2), tmp_path)
    assert resumed.curves[2].bounds["theorem-1"][-1] == 180.0
    assert cells(tmp_path)[2] == results_before


def test_a_bound_that_misses_a_checkpoint_is_refused(tmp_path):
    experiment = with_bounds(experiment_from_spec(spec()), 0, lambda rounds: {"short": [1.0]})
    with pytest.raises(fastfed.InputError, match=r"bound short must have shape \(7,\)"):
        fastfed.run(experiment, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_changed_data_of_the_same_size_are_a_different_experiment(tmp_path):
    def experiment_on(rows):
        """Return an experiment on a table of these rows."""
        (tmp_path / "d.csv").write_text(
            "x,label\n" + "".join(f"{x},{label}\n" for x, label in rows)
        )
        environment = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
        curve = [{"algorithm": "fedlinucb", "batch_size": 2}]
        return experiment_from_spec(spec(environment=environment, curve=curve, silos=2, horizon=4))

    fastfed.run(experiment_on([(i, i % 2) for i in range(8)]), tmp_path / "out")
    changed = experiment_on([(i, (i + 1) % 2) for i in range(8)])
    with pytest.raises(fastfed.InputError, match="a different experiment"):
        fastfed.run(changed, tmp_path / "out")


def real_records(tmp_path, **keys):
    """Return an experiment on a data set; keywords go to `environments.Classification`."""
    rows = "\n".join(f"{20 + i % 50},{i % 2}" for i in range(60))
    (tmp_path / "people.csv").write_text(f"age,ill\n{rows}\n")
    environment = fastfed.environments.Classification(
        data=str(tmp_path / "people.csv"), label="ill", dimension=3, **keys
    )
    curve = {
        "label": "private", "algorithm": "private-fedlinucb", "batch_size": 5, "epsilon": 1.0,
        "delta": 1e-6,
    }  # fmt: skip
    return make_experiment(
        name="people", environment=environment, curves=[curve], horizon=20, silos=3
    )


def test_reports_on_real_records_begin_with_what_no_certificate_covers(tmp_path):
    """The report, the table and the certificates hold the notes, also for stored results."""
    for keys, has_scaling_note in (({}, True), ({"ranges": {"age": [0, 120]}}, False)):
        folder = tmp_path / str(has_scaling_note)
        fastfed.run(real_records(tmp_path, **keys), folder, threads=1)
        source = read_source(folder)
        assert source.about_records[0].startswith("Made of real records: regret, curves, tables")
        assert "`fastfed plan`" in source.about_records[1]
        scaling_note = "features are scaled by declared ranges, not by ranges of these data"
        assert any(scaling_note in note for note in source.about_records) == has_scaling_note
        pages = {path.name: path.read_text() for path in write_report(source, folder, {})}
        report = pages["report.html"]
        report_header = report[: report.index("</header>")]
        for note in source.about_records:
            assert note in html.unescape(re.sub("<[^>]*>", "", report_header))
            assert note in pages["table.txt"]
            certificates = " ".join(pages["certificates.txt"].split())
            assert certificates.index(" ".join(note.split())) < certificates.index(
                "Privacy certificate"
            )
        assert "<details" not in report_header
        stored_notes = source.results.to_builtins()["curves"][0]["about_records"]
        assert tuple(stored_notes) == source.about_records


def test_reports_on_synthetic_data_do_not_mention_real_records(tmp_path):
    fastfed.run(experiment_from_spec(spec()), tmp_path, threads=1)
    source = read_source(tmp_path)
    assert source.about_records == ()
    text = write_report(source, tmp_path, {})[-1].read_text()
    assert "real records" not in text


def test_an_older_store_of_a_data_set_mentions_real_records_too(tmp_path):
    fastfed.run(real_records(tmp_path), tmp_path / "out", threads=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "results.sqlite")) as db, db:
        facts = json.loads(db.execute("SELECT facts FROM curves").fetchone()[0])
        del facts["about_records"]
        db.execute("UPDATE curves SET facts = ?", (json.dumps(facts),))
        db.execute("DROP TABLE certified")
        db.execute("DROP TABLE digests")
    source = read_source(tmp_path / "out")
    (note,) = source.about_records
    assert note.startswith("Made of real records") and "earlier version" in note
    (curve,) = source.results.curves
    assert curve.provenance == {} and curve.dated_certificate == curve.certificate
    # Resuming the run adds the current notes.
    fastfed.run(real_records(tmp_path), tmp_path / "out", threads=1)
    source = read_source(tmp_path / "out")
    assert len(source.about_records) == 3 and source.results.curves[0].provenance["version"]


def test_certificates_name_version_spec_digest_and_date(tmp_path, monkeypatch):
    experiment = real_records(tmp_path)
    dates = iter(["2031-01-01", "2031-01-02", "2031-01-03"])

    def with_next_date(identity):
        return {**made_now(identity), "date": next(dates)}

    monkeypatch.setattr(store_module, "made_now", with_next_date)
    first = fastfed.run(experiment, tmp_path / "out", threads=1).curves[0]
    digest = hashlib.sha256(msgspec.json.encode(experiment.identity(), order="sorted")).hexdigest()
    assert first.provenance == {
        "version": fastfed.__version__, "spec_digest": digest, "date": "2031-01-01"
    }  # fmt: skip
    assert digest.startswith(experiment.digest())
    # An unchanged certificate keeps its date; a changed certificate gets a new date.
    repeated = fastfed.run(experiment, tmp_path / "out", threads=1).curves[0]
    assert repeated.provenance == first.provenance and repeated.certificate == first.certificate
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "results.sqlite")) as db, db:
        db.execute("UPDATE curves SET certificate = replace(certificate, 'conditional', 'none')")
        digests.seal(db)
    assert (
        fastfed.run(experiment, tmp_path / "out", threads=1).curves[0].provenance["date"]
        == "2031-01-03"
    )
    shown_certificate = first.to_builtins()["certificate"]
    assert shown_certificate == {**first.certificate, **first.provenance}
    text = write_report(read_source(tmp_path / "out"), tmp_path / "out", {})[2].read_text()
    assert f"by fastfed {fastfed.__version__} on 2031-01-03 (UTC)" in text and digest in text
    # Certificates of two runs are compared without the date.
    assert "date" not in first.certificate


# ---- Progress and the log ------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_simulate_reports_all_agent_rounds(driver: str) -> None:
    world = {"kind": "sphere", "dimension": 3, "actions": 4}
    curves = [{"label": "open", "algorithm": "fedlinucb"}, {"label": "dice", "algorithm": "random"}]
    reported: list[int] = []
    sizes = {"silos": 5, "horizon": 60, "replicates": 3, "driver": driver}
    actual = fastfed.simulate(world, curves=curves, progress=reported.append, **sizes)
    assert sum(reported) == 2 * 3 * 5 * 60
    plain = fastfed.simulate(world, curves=curves, **sizes)
    assert (actual["open"].group_regret == plain["open"].group_regret).all()
    with pytest.raises(fastfed.InputError, match="progress must be a function"):
        fastfed.simulate(world, curves=curves, silos=5, horizon=60, progress=True)


def test_runs_log_their_work_and_every_replicate(tmp_path, caplog) -> None:
    world = {"kind": "sphere", "dimension": 3, "actions": 4}
    sizes = {"name": "small", "silos": 5, "horizon": 60, "replicates": 3}
    with caplog.at_level("INFO", logger="fastfed"):
        fastfed.simulate(world, "fedlinucb", threads=1, **sizes)
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0] == "small: 3 curve replicates, 900 agent-rounds, on 1 threads"
        assert [re.sub(", [^,]* s$", "", line) for line in lines[1:]] == [
            f"small: replicate {number} of fedlinucb" for number in range(3)
        ]
        caplog.clear()
        curve = {"label": "open", "algorithm": "fedlinucb"}
        stored = experiment_from_spec({**sizes, "environment": world, "curve": [curve]})
        for expected in (4, 1):  # the second run has nothing left to simulate
            fastfed.run(stored, tmp_path / "out", threads=1)
            assert len(caplog.records) == expected
            caplog.clear()
