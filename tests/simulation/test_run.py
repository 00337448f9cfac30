"""Runs that are stored: what is committed, what is repeated, what is refused."""

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


def check_resumed(given, folder):
    """Check that a run of more replicates repeats nothing, and is that of all at once.

    Returns how many passes were left in each of three calls, and the results, which are the same.
    """
    left = []

    def counted(passes, threads):
        left.append(len(passes))

    few = experiment_from_spec(given | {"replicates": 1})
    fastfed.run(few, folder / "a", on_start=counted)
    grown = fastfed.run(experiment_from_spec(given), folder / "a", on_start=counted)
    before = cells(folder / "a")
    again = fastfed.run(experiment_from_spec(given), folder / "a", on_start=counted)
    assert cells(folder / "a") == before
    straight = fastfed.run(experiment_from_spec(given), folder / "b", threads=2)
    found = [grown, again, straight, fastfed.load(folder / "a")]
    for other in found[1:]:
        same(grown, other)
    return left, found


def cells(folder):
    """Everything in the store but timings, byte for byte."""
    with sqlite3.connect(folder / FILE) as db:
        return [
            list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2"))
            for table in ("meta", "curves", "cells")
        ]


def same(a, b):
    assert [c.label for c in a.curves] == [c.label for c in b.curves]
    for one, other in zip(a.curves, b.curves, strict=True):
        for counted in (
            "group_regret", "synchronisation_counts", "bits_up_counts", "bits_down_counts",
        ):  # fmt: skip
            first, second = getattr(one, counted), getattr(other, counted)
            np.testing.assert_array_equal(first, second)
            assert first.dtype == second.dtype
        assert one.certificate == other.certificate


def test_labels_of_a_sweep_carry_the_values():
    e = experiment_from_spec(spec())
    assert [c.label for c in e.curves] == [
        "plain",
        "private, epsilon = 1.0",
        "private, epsilon = 10.0",
    ]


def test_a_run_is_stored_and_loads_as_it_was(tmp_path):
    played = fastfed.run(experiment_from_spec(spec()), tmp_path / "out")
    loaded = fastfed.load(tmp_path / "out")
    same(played, loaded)
    assert loaded.curves[0].group_regret.shape == (3, 7)
    assert loaded.curves[0].rounds[-1] == 60
    assert loaded.curves[0].agent_rounds_per_second > 0
    direct = fastfed.simulate(
        spec()["environment"], curves=spec()["curve"], horizon=60, silos=3, replicates=3, seed=4,
        checkpoints=7,
    )  # fmt: skip
    same(played, direct)


def test_a_fixed_schedule_counts_the_same_in_every_replicate(tmp_path):
    curve = fastfed.run(experiment_from_spec(spec()), tmp_path).curves[0]
    # Batches of 10 rounds; 9 entries of 64 bits from and to each of 3 silos.
    assert curve.rounds.tolist() == [9, 18, 26, 35, 43, 52, 60]
    expected = np.tile([0, 1, 2, 3, 4, 5, 6], (3, 1))
    np.testing.assert_array_equal(curve.synchronisation_counts, expected)
    np.testing.assert_array_equal(curve.bits_up_counts, expected * 3 * 9 * 64)
    np.testing.assert_array_equal(curve.bits_down_counts, expected * 3 * 9 * 64)


def test_results_of_more_noise_are_another_experiment(tmp_path):
    """Where a tighter account has come to choose less noise; all other stores stay valid."""

    def played(silos=3, **keys):
        keys = {"batch_size": 10, "epsilon": 1e-6, "delta": 1e-9, **keys}
        curve = {"label": "a", "algorithm": "private-fedlinucb", **keys}
        return experiment_from_spec(spec(silos=silos, curve=[curve]))

    lemma = {"protocol": "shuffle-amplified", "silos": 10**6, "batch_size": 60}
    for new in ({"release": "honaker"}, lemma):
        e = played(**new)
        assert e.identity()["accounts"] == {"a": 2}
        assert "accounts" not in spec_text(e.identity(), 3, {})
        before = {k: v for k, v in e.identity().items() if k != "accounts"}
        meta = {"identity": before, "rounds": e.checkpoints.tolist(), "figure": {}}
        folder = tmp_path / new.get("release", "lemma")
        with Store.create_or_resume(folder, meta, run_module.curve_rows(e)):
            pass
        with pytest.raises(fastfed.InputError, match="different accounts"):
            Store.done_in(folder, e.identity())
    for old in ({}, {"release": "toeplitz"}, {**lemma, "calibration": "theorem"}):
        assert "accounts" not in played(**old).identity()
    # By silo-level LDP, as before.
    assert "accounts" not in played(protocol="shuffle-amplified").identity()
    assert "accounts" not in experiment_from_spec(spec()).identity()


def outcome(synchronisations, bits_up, bits_down):
    return Outcome(
        group_regret=np.array([1.0, 2.0]),
        synchronisations=np.array(synchronisations),
        bits_up=np.array(bits_up, np.float64),
        bits_down=np.array(bits_down, np.float64),
        total=np.zeros(9),
        events={},
    )


def stored(folder, outcomes):
    """A store of one curve with these outcomes, one for each replicate."""
    e = experiment_from_spec(
        spec(checkpoints=2, replicates=len(outcomes), curve=spec()["curve"][:1])
    )
    meta = {"identity": e.identity(), "rounds": e.checkpoints.tolist(), "figure": {}}
    with Store.create_or_resume(folder, meta, run_module.curve_rows(e)) as store:
        for replicate, one in enumerate(outcomes):
            store.commit(run_module.cells(RunBatch(replicate, (0,)), [one]), 1.0, 1, 1)
        return e, store.results()


def test_what_was_sent_is_counted_replicate_by_replicate(tmp_path):
    """Replicates that synchronise when their data say so differ, and the curve says the mean."""
    outcomes = [
        outcome([2, 12], [16, 20], [8, 9]),
        outcome([2, 13], [16, 40], [8, 17]),
        outcome([2, 12], [16, 20], [9, 9]),
    ]
    e, loaded = stored(tmp_path / "a", outcomes)
    same(loaded, collect(e, {(0, r): one for r, one in enumerate(outcomes)}))
    (curve,) = loaded.curves
    assert curve.synchronisation_counts.tolist() == [[2, 12], [2, 13], [2, 12]]
    assert curve.synchronisation_counts.dtype == np.int64
    assert curve.synchronisations == pytest.approx(37 / 3)
    assert (curve.bits_up, curve.bits_down) == (pytest.approx(80 / 3), pytest.approx(35 / 3))
    # Whole bytes in each replicate: 3, 5, 3 up and 2, 3, 2 down.
    assert (curve.bytes_up, curve.bytes_down) == (pytest.approx(11 / 3), pytest.approx(7 / 3))
    assert curve.bytes_curve == [pytest.approx(3 + 1 / 3), pytest.approx(6)]
    assert curve.bytes_sent == curve.bytes_curve[-1]
    listed = curve.to_builtins()
    assert listed["synchronisations"] == curve.synchronisations
    assert listed["synchronisations_curve"] == [2, curve.synchronisations]
    assert listed["bytes_curve"] == curve.bytes_curve

    # Where all agree counts are whole, and where only the mean is whole it is a mean.
    assert type(listed["synchronisations_curve"][0]) is int
    even = [outcome([1, last], [8, 8], [0, 0]) for last in (12, 14)]
    _, two = stored(tmp_path / "b", even)
    assert repr(two.curves[0].synchronisations) == "13.0"
    assert repr(two.curves[0].bits_up) == "8" and repr(two.curves[0].bytes_up) == "1"
    assert two.curves[0].bytes_curve == [1, 1]


def test_huge_counts_are_kept_and_listed(tmp_path):
    """Vector sums send more bits than a 64-bit integer holds; equal ones are their own mean."""
    large = 2.0**53 - 1.0
    _, loaded = stored(tmp_path, [outcome([1, 1], [large, 3e30], [0, 0])] * 3)
    (curve,) = loaded.curves
    assert curve.bits_up_counts[:, 0].tolist() == [large] * 3
    assert curve.bits_up == 3e30 and isinstance(curve.bits_up, float)
    assert curve.bytes_curve == [2**50, 3e30 / 8]
    assert type(curve.bytes_curve[0]) is int
    assert b"3e30" in msgspec.json.encode(curve.to_builtins())


def test_a_store_of_an_older_form_is_refused(tmp_path):
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE meta SET value = '\"2\"' WHERE key = 'format'")
    with pytest.raises(fastfed.InputError, match="another version of fastfed"):
        fastfed.load(tmp_path)
    with pytest.raises(fastfed.InputError, match="another version of fastfed"):
        fastfed.run(experiment_from_spec(spec()), tmp_path)


def test_more_replicates_later_repeat_nothing_and_equal_a_straight_run(tmp_path, monkeypatch):
    few = experiment_from_spec(spec(replicates=2))
    fastfed.run(few, tmp_path / "a")
    played = []
    original = passes_module.run_together

    def counted(experiment, work, *rest, **keys):
        played.append(work.replicate)
        return original(experiment, work, *rest, **keys)

    monkeypatch.setattr(passes_module, "run_together", counted)
    grown = fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "a")
    assert sorted(played) == [2, 3, 4]
    fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "a")
    assert sorted(played) == [2, 3, 4]
    straight = fastfed.run(experiment_from_spec(spec(replicates=5)), tmp_path / "b")
    same(grown, straight)
    assert cells(tmp_path / "a") == cells(tmp_path / "b")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_leave_the_same_bytes(tmp_path, threads):
    fastfed.run(experiment_from_spec(spec()), tmp_path / "one", threads=1)
    fastfed.run(experiment_from_spec(spec()), tmp_path / "many", threads=threads)
    assert cells(tmp_path / "one") == cells(tmp_path / "many")


def test_an_interrupted_run_keeps_what_was_played(tmp_path):
    e = experiment_from_spec(spec())
    heard = []

    def stop(agent_rounds):
        heard.append(agent_rounds)
        if sum(heard) > 2 * 3 * 60 * 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastfed.run(e, tmp_path / "out", threads=1, progress=stop)
    left = missing_batches(e, {(c[0], c[1]) for c in cells(tmp_path / "out")[2]})
    assert 0 < len(left) < 3
    finished = fastfed.run(e, tmp_path / "out")
    same(finished, fastfed.run(e, tmp_path / "straight"))
    assert cells(tmp_path / "out") == cells(tmp_path / "straight")


def test_another_experiment_in_the_folder_is_refused_and_untouched(tmp_path):
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    before = cells(tmp_path)
    other = experiment_from_spec(spec(horizon=50))
    with pytest.raises(
        fastfed.InputError, match=r'a different experiment \("small", different horizon'
    ):
        fastfed.run(other, tmp_path)
    assert cells(tmp_path) == before


def test_what_is_not_a_store_is_refused(tmp_path):
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


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fastfed.InputError, match="cannot write to"):
        fastfed.run(experiment_from_spec(spec()), tmp_path / "file" / "out")


def test_the_prediction_is_a_positive_time():
    e = experiment_from_spec(spec())
    assert predict_seconds(e, missing_batches(e, set()), 2) > 0
    assert predict_seconds(e, [], 2) == 0


def test_paired_differences_are_less_noisy_than_the_curves(tmp_path):
    r = fastfed.run(experiment_from_spec(spec(replicates=12)), tmp_path)
    mean, stderr = r.paired_difference("private, epsilon = 1.0", "plain")
    a, b = r["private, epsilon = 1.0"], r["plain"]
    assert mean == pytest.approx(a.mean[-1] - b.mean[-1])
    assert stderr < np.hypot(a.stderr[-1], b.stderr[-1])
    with pytest.raises(KeyError, match="no curve"):
        r["nonsense"]


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
def test_bad_specs_are_one_clear_sentence(changes, sentence):
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
    e = load_experiment(tmp_path / "s.toml")
    assert e.facts.dimension == 3


def test_checkpoints_are_distinct_rounds_that_end_with_the_last():
    """Every horizon and count: a floating ceiling once landed on a round past the last."""
    from fastfed.simulation.driver import checkpoint_rounds

    for horizon in [*range(1, 400), 10_000, 25_000, 10**5, 10**6]:
        for count in (1, 2, 7, 19, 145, 200):
            rounds = checkpoint_rounds(horizon, count)
            assert len(rounds) == min(count, horizon)
            assert rounds[-1] == horizon
            assert rounds[0] >= 1
            assert (np.diff(rounds) > 0).all()


def test_a_resumed_store_shows_the_certificate_of_today(tmp_path):
    """What is known of a run's privacy may change; what it played may not."""
    fastfed.run(experiment_from_spec(spec()), tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE curves SET certificate = '{}' WHERE position = 1")
        digests.seal(db)
    resumed = fastfed.run(experiment_from_spec(spec()), tmp_path)
    assert resumed.curves[1].certificate["status"] == "proven"


def bounded(rounds):
    """Bounds that only the rounds decide: one without end, one of counts, one promising late."""
    assert rounds.dtype == np.int64
    return {
        "theorem-1": (3.0 * rounds).tolist(),
        "synchronisations-proposition-1": np.sqrt(rounds),
        "late": [math.inf if t < 30 else float(t) for t in rounds],
    }


def with_bounds(experiment, position, bounds_at=bounded):
    curves = list(experiment.curves)
    system = replace(curves[position].system, bounds_at=bounds_at)
    curves[position] = replace(curves[position], system=system)
    return replace(experiment, curves=tuple(curves))


def test_bounds_of_a_system_are_stored_at_the_checkpoints(tmp_path):
    e = with_bounds(experiment_from_spec(spec()), 1)
    played = fastfed.run(e, tmp_path)
    loaded = fastfed.load(tmp_path)
    rounds = [9, 18, 26, 35, 43, 52, 60]
    expected = {
        "theorem-1": [27.0, 54.0, 78.0, 105.0, 129.0, 156.0, 180.0],
        "synchronisations-proposition-1": [math.sqrt(t) for t in rounds],
        "late": [math.inf, math.inf, math.inf, 35.0, 43.0, 52.0, 60.0],
    }
    passes = missing_batches(e, set())
    outcomes = {
        (position, work.replicate): one
        for work in passes
        for position, one in zip(
            work.positions, passes_module.run_together(e, work, 1).outcomes, strict=True
        )
    }
    direct = collect(e, outcomes)
    for results in (played, loaded, direct):
        assert [c.bounds for c in results.curves] == [{}, expected, {}]
        assert list(results.curves[1].rounds) == rounds
    listed = msgspec.json.decode(msgspec.json.encode(loaded.to_builtins()))["curves"]
    assert [c["bounds"] for c in listed][::2] == [{}, {}]
    assert listed[1]["bounds"]["late"] == [None, None, None, 35, 43, 52, 60]
    assert listed[1]["bounds"]["theorem-1"] == expected["theorem-1"]


def test_a_store_without_bounds_loads_and_gets_them_when_it_is_resumed(tmp_path, monkeypatch):
    e = experiment_from_spec(spec())
    fastfed.run(e, tmp_path)
    facts = [msgspec.json.decode(row[4]) for row in cells(tmp_path)[1]]
    assert facts == [{"silos": 3, "dimension": 3}] * 3
    assert all(c.bounds == {} for c in fastfed.load(tmp_path).curves)
    before = cells(tmp_path)[2]
    monkeypatch.setattr(passes_module, "run_together", None)  # nothing is played again
    resumed = fastfed.run(with_bounds(e, 2), tmp_path)
    assert resumed.curves[2].bounds["theorem-1"][-1] == 180.0
    assert cells(tmp_path)[2] == before


def test_a_bound_that_misses_a_checkpoint_is_refused(tmp_path):
    e = with_bounds(experiment_from_spec(spec()), 0, lambda rounds: {"short": [1.0]})
    with pytest.raises(fastfed.InputError, match=r"bound short must have shape \(7,\)"):
        fastfed.run(e, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_changed_data_of_the_same_size_are_another_experiment(tmp_path):
    def table(rows):
        (tmp_path / "d.csv").write_text("x,label\n" + "".join(f"{a},{b}\n" for a, b in rows))
        environment = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
        curve = [{"algorithm": "fedlinucb", "batch_size": 2}]
        return experiment_from_spec(spec(environment=environment, curve=curve, silos=2, horizon=4))

    fastfed.run(table([(i, i % 2) for i in range(8)]), tmp_path / "out")
    changed = table([(i, (i + 1) % 2) for i in range(8)])
    with pytest.raises(fastfed.InputError, match="a different experiment"):
        fastfed.run(changed, tmp_path / "out")


def real_records(tmp_path, **keys):
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


def test_what_no_certificate_covers_stands_first_where_records_are_real(tmp_path):
    """On the page, in the table and beside certificates; also where they come from a store."""
    for keys, failed in (({}, True), ({"ranges": {"age": [0, 120]}}, False)):
        out = tmp_path / str(failed)
        run_module.run(real_records(tmp_path, **keys), out, threads=1)
        source = read_source(out)
        assert source.about_records[0].startswith("Made of real records: regret, curves, tables")
        assert "`fastfed plan`" in source.about_records[1]
        scaled = "features are scaled by declared ranges, not by ranges of these data"
        assert any(scaled in note for note in source.about_records) == failed
        pages = {path.name: path.read_text() for path in write_report(source, out, {})}
        page = pages["report.html"]
        above = page[: page.index("</header>")]
        for note in source.about_records:
            assert note in html.unescape(re.sub("<[^>]*>", "", above))
            assert note in pages["table.txt"]
            flat = " ".join(pages["certificates.txt"].split())
            assert flat.index(" ".join(note.split())) < flat.index("Privacy certificate")
        assert "<details" not in above
        stored = source.results.to_builtins()["curves"][0]["about_records"]
        assert tuple(stored) == source.about_records


def test_where_nobodys_records_are_played_nothing_is_said(tmp_path):
    run_module.run(experiment_from_spec(spec()), tmp_path, threads=1)
    source = read_source(tmp_path)
    assert source.about_records == ()
    text = write_report(source, tmp_path, {})[-1].read_text()
    assert "real records" not in text


def test_an_older_store_of_real_records_says_so_too(tmp_path):
    run_module.run(real_records(tmp_path), tmp_path / "out", threads=1)
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
    assert curve.made == {} and curve.dated_certificate == curve.certificate
    # Whoever continues it learns what is known today.
    run_module.run(real_records(tmp_path), tmp_path / "out", threads=1)
    source = read_source(tmp_path / "out")
    assert len(source.about_records) == 3 and source.results.curves[0].made["version"]


def test_certificates_say_by_what_and_when_they_were_made(tmp_path, monkeypatch):
    e = real_records(tmp_path)
    days = iter(["2031-01-01", "2031-01-02", "2031-01-03"])

    def on(identity):
        return {**made_now(identity), "date": next(days)}

    monkeypatch.setattr(store_module, "made_now", on)
    first = run_module.run(e, tmp_path / "out", threads=1).curves[0]
    digest = hashlib.sha256(msgspec.json.encode(e.identity(), order="sorted")).hexdigest()
    assert first.made == {
        "version": fastfed.__version__, "spec_digest": digest, "date": "2031-01-01"
    }  # fmt: skip
    assert digest.startswith(e.digest())
    # A certificate that stays as it is keeps its day; another one has its own.
    again = run_module.run(e, tmp_path / "out", threads=1).curves[0]
    assert again.made == first.made and again.certificate == first.certificate
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "results.sqlite")) as db, db:
        db.execute("UPDATE curves SET certificate = replace(certificate, 'conditional', 'none')")
        digests.seal(db)
    assert run_module.run(e, tmp_path / "out", threads=1).curves[0].made["date"] == "2031-01-03"
    shown = first.to_builtins()["certificate"]
    assert shown == {**first.certificate, **first.made}
    text = write_report(read_source(tmp_path / "out"), tmp_path / "out", {})[2].read_text()
    assert f"by fastfed {fastfed.__version__} on 2031-01-03 (UTC)" in text and digest in text
    # What is compared of two runs has no date.
    assert "date" not in first.certificate
