"""Keys that prepare a table (where, bins, missing) against loops over the csv module."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

import numpy as np
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.environments import Classification
from fastfed.environments.tables import read_table

TEXT = """status,age,dose,ward
done,30,20.9,a
closed,17,21,a
open,50,60,b
done,,30,b
done,120,49,b
closed,18,48.99,a
done,-9,70,a
"""
WARFARIN = Path(__file__).resolve().parents[3] / "shared" / "data" / "warfarin.csv.gz"


def written(folder, text=TEXT):
    """Write a CSV file, and return its path."""
    path = folder / "t.csv"
    path.write_text(text)
    return path


def classified(path, **keys):
    """Return the environment of a table with these keys changed."""
    keys = {"label": "dose", "bins": [21, 49], "coding": "blocks", **keys}
    return Classification(data=str(path), **keys)


def classes_of(pool):
    """Return the class with the largest reward in each query."""
    return pool.means.reshape(pool.queries, -1).argmax(axis=1).tolist()


def test_where_keeps_the_records_that_fit_all_entries(tmp_path):
    where = {"status": ["done", "closed"], "age": [18, 120]}
    pool = classified(written(tmp_path), where=where).pool(1)
    rows = list(csv.DictReader(io.StringIO(TEXT)))
    kept = [r for r in rows if r["status"] in ("done", "closed")]
    kept = [r for r in kept if r["age"] and 18 <= float(r["age"]) <= 120]
    doses = [float(r["dose"]) for r in kept]
    assert classes_of(pool) == [0 if d < 21 else 1 if d < 49 else 2 for d in doses] == [0, 2, 1]
    note = next(note for note in pool.notes if "left out" in note)
    assert note == (
        "of 7 records that were read, 4 are left out by where (1 with another text in where.status "
        "= ['done', 'closed'], 1 without a value of 'age', 2 with a number outside of where.age = "
        "[18.0, 120.0]): which records are left out is taken as public"
    )


def test_missing_names_further_texts_for_all_columns_or_one(tmp_path):
    path = written(tmp_path)
    ranges = {"age": [0, 120]}
    for missing in (["-9"], {"age": ["-9"]}, {"age": ["-9.0", "x"]}):
        pool = classified(path, columns=["age"], ranges=ranges, missing=missing).pool(1)
        # A declared column has a second feature, which marks missing cells: row 3 and row 6.
        marks = [pool.rows(q)[0][1] > 0 for q in range(pool.queries)]
        assert marks == [False, False, False, True, False, False, True]
    pool = classified(path, columns=["age"], ranges=ranges, missing={"dose": ["-9"]}).pool(1)
    assert [pool.rows(q)[0][1] > 0 for q in range(7)] == [False] * 3 + [True] + [False] * 3


def test_a_record_that_misses_a_value_by_a_declared_text_is_left_out(tmp_path):
    pool = classified(written(tmp_path), where={"age": [-20, 200]}, missing=["-9"]).pool(1)
    assert pool.queries == 5
    assert any("2 without a value of 'age'" in note for note in pool.notes)


def test_a_missing_value_marker_that_where_lists_is_a_value(tmp_path):
    path = written(tmp_path, "x,z,y\nNone,1,a\nb,2,b\nNone,3,b\n")
    assert Classification(data=str(path), label="y", where={"x": ["None"]}).pool(1).queries == 2


def test_bins_declare_the_classes_even_if_no_record_is_in_the_last(tmp_path):
    pool = classified(written(tmp_path), bins=[21, 49, 200]).pool(1)
    assert pool.max_actions == 4
    assert any(
        'classes of \'dose\' are made by declared edges: 0 is "< 21", 1 is "21 to 49", 2 is '
        '"49 to 200", 3 is ">= 200"' in note
        for note in pool.notes
    )
    assert any("no record has class 3" in note for note in pool.notes)


def test_where_and_missing_do_not_change_the_condition_of_ranges(tmp_path):
    ranges = {"age": [0, 120], "status": ["done", "closed", "open"], "ward": ["a", "b"]}
    keys = {"where": {"age": [18, 120]}, "missing": ["-9"]}
    declared = classified(written(tmp_path), ranges=ranges, **keys).pool(1)
    assert [holds for _, holds in declared.conditions] == [True]
    read = classified(written(tmp_path), **keys).pool(1)
    assert [holds for _, holds in read.conditions] == [False]


def test_another_record_changes_no_other_record(tmp_path):
    """Replace one kept record by another that is kept too: all others stay the same."""
    ranges = {"age": [0, 120], "status": ["done", "closed", "open"], "ward": ["a", "b"]}
    keys = {"ranges": ranges, "where": {"age": [10, 120]}, "missing": ["-9"]}
    before = classified(written(tmp_path), **keys).pool(1)
    changed = TEXT.replace("closed,17,21,a", "open,99,80,b")
    after = classified(written(tmp_path, changed), **keys).pool(1)
    unchanged = [np.array_equal(before.rows(q), after.rows(q)) for q in range(before.queries)]
    assert unchanged == [True, False, True, True, True]


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_and_filters_agree_with_loops(tmp_path, seed):
    draw = random.Random(seed)
    rows = [
        {
            "n": draw.choice(["", "NA", "-9", "0", "1.5", "2", "2.0", "3e1", "77"]),
            "t": draw.choice(["", "x", "y", "z", "999"]),
            "y": draw.choice(["1", "2", "5.5", "7", "30"]),
        }
        for _ in range(draw.randrange(8, 30))
    ]
    text = "n,t,y\n" + "".join(f"{r['n']},{r['t']},{r['y']}\n" for r in rows)
    low = draw.choice([0, 1.5, 2])
    high = draw.choice([2, 30, 80])
    texts = draw.sample(["x", "y", "z"], 2)
    absent = {"", "NA", "-9", "999"}
    kept = [
        r for r in rows
        if r["n"] not in absent and low <= float(r["n"]) <= high and r["t"] in texts
    ]  # fmt: skip
    classes = [sum(float(r["y"]) >= edge for edge in (2, 6)) for r in kept]
    keys = {"where": {"n": [low, high], "t": texts}, "missing": ["-9", "999"], "label": "y"}
    environment = classified(written(tmp_path, text), **keys, bins=[2, 6])
    if len(set(classes)) < 2:
        with pytest.raises(InputError, match="where must keep" if not kept else "bins must make"):
            environment.pool(1)
    else:
        assert classes_of(environment.pool(1)) == classes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"where": {"age": [200, 300]}}, r"t.csv: where must keep at least one of 7 records, but "
         r"leaves out 1 without a value of 'age', 6 with a number outside of where.age"),
        ({"where": {"agee": [1, 2]}}, "where must be a column of .*'agee'; did you mean"),
        ({"where": {"status": "done"}}, "where.status must be .low, high. or a list of texts"),
        ({"where": {"age": [5, 4]}}, "where.age must be .* with low <= high, got .5, 4."),
        ({"where": ["age"]}, "where must be a table of columns"),
        ({"where": {"status": [1, 2]}}, "t.csv:2: column 'status' must hold numbers, .* where"),
        ({"bins": [49, 21]}, "bins must increase, got .49, 21.: write .21, 49."),
        ({"bins": []}, "bins must be a list of numbers"),
        ({"bins": 21}, "bins must be a list of numbers"),
        ({"bins": [500]}, 'bins must make at least 2 classes .* all 7 records are "< 500"'),
        ({"label": "status"}, "t.csv:2: label 'status' must hold numbers, as bins"),
        ({"label": "age"}, "label 'age' must be given .*leave such records out by where"),
        ({"missing": "-9"}, 'missing must be a list of texts, such as .*a table of such lists'),
        ({"missing": [-9]}, "missing must be a list of texts"),
        ({"missing": {"age": "-9"}}, "missing.age must be a list of texts"),
        ({"missing": {"agee": ["-9"]}}, "missing must be a column of"),
        ({"missing": ["done"], "where": {"status": ["done"]}}, "missing must not have a text that "
         "ranges or where declares for column 'status', got 'done'"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, keys, message):
    with pytest.raises(InputError, match=message):
        classified(written(tmp_path), **keys).pool(1)


def test_the_keys_are_only_for_tables():
    for key, value in {"where": {"x": [0, 1]}, "bins": [1], "missing": ["-9"]}.items():
        with pytest.raises(InputError, match=f'{key} must be left out with data "digits"'):
            Classification(data="digits", **{key: value})


def test_descriptions_differ_by_the_keys(tmp_path):
    path = written(tmp_path)
    described = [
        repr(classified(path, **keys).describe())
        for keys in (
            {},
            {"where": {"age": [0, 1]}},
            {"bins": [21]},
            {"missing": ["-9"]},
            {"missing": {"age": ["-9"]}},
        )
    ]
    assert len(set(described)) == len(described)
    shipped = [Classification(data=name).describe() for name in ("digits", "randhie")]
    assert shipped[0] != shipped[1]


def test_a_spec_runs_with_the_keys(tmp_path):
    experiment = fastfed.simulate(
        classified(written(tmp_path), where={"status": ["done", "closed"]}), "local-linucb",
        silos=2, horizon=3,
    )  # fmt: skip
    assert experiment.curves[0].final() is not None


@pytest.mark.skipif(
    not WARFARIN.exists(),
    reason="../shared/data/warfarin.csv.gz is not here: the rows are not shipped",
)
def test_warfarin_by_a_spec_has_the_classes_of_a_loop():
    dose = "Therapeutic Dose of Warfarin"
    with gzip.open(WARFARIN, "rt", encoding="utf-8-sig", newline="") as file:
        read = [row for row in csv.DictReader(file) if any(row.values())]
    doses = [float(r[dose]) for r in read if r[dose] not in ("", "NA")]
    wanted = [0 if d < 21 else 1 if d < 49 else 2 for d in doses if d <= 500]
    environment = Classification(
        data=str(WARFARIN), label=dose, bins=[21, 49], where={dose: [0, 500]},
        columns=["Age", "Gender", "Race"], coding="blocks",
    )  # fmt: skip
    pool = environment.pool(1)
    assert classes_of(pool) == wanted
    assert len(read_table(WARFARIN).cells) == len(read)
