"""Classification data as pools: digits and CSV files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.environments import Classification
from fastfed.environments.coding import from_table
from fastfed.environments.tables import read_table

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
CSV = """age,colour,weight,kind,ward
20,red,1.5,cat,north
30,blue,?,dog,south
40,red,NA,cat,north

25,,2.5,bird,north
"""


@pytest.fixture
def file(tmp_path):
    """Write a small CSV file, and return its path."""
    path = tmp_path / "pets.csv"
    path.write_text(CSV)
    return path


def pool_of(data, silos, dimension, **keys):
    """Return the pool of classification data for this number of silos."""
    return Classification(data=data, dimension=dimension, **keys).load(silos)


def features(path, label="kind", silo="ward", columns=None):
    """Return (features, classes, silos of the rows, notes) of a table."""
    return from_table(read_table(path), label, silo, columns)


def test_columns_are_scaled_coded_and_marked_where_missing(file):
    matrix, classes, owner, notes = features(file)
    # age; colour blue, red, missing; weight, missing
    expected = [
        [0.0, 0, 1, 0, 0.0, 0],
        [0.5, 1, 0, 0, 0.0, 1],
        [1.0, 0, 1, 0, 0.0, 1],
        [0.25, 0, 0, 1, 1.0, 0],
    ]
    np.testing.assert_array_equal(matrix, expected)
    assert classes.tolist() == [1, 2, 1, 0]  # bird, cat, dog
    assert owner.tolist() == [0, 1, 0, 0]
    assert "taken as public" in notes[0]


def test_label_and_silo_never_enter_the_features(file, tmp_path):
    matrix = features(file)[0]
    other = tmp_path / "other.csv"
    other.write_text(CSV.replace("north", "east").replace("dog", "eel"))
    np.testing.assert_array_equal(features(other)[0], matrix)
    assert features(file, columns=["weight"])[0].shape == (4, 2)


def test_a_silo_column_groups_records_in_order_of_first_appearance(file):
    pool = pool_of(file, None, 4, label="kind", silo="ward")
    assert pool.silo_starts.tolist() == [0, 3, 4]
    assert (pool.queries, pool.max_actions, pool.dimension) == (4, 3, 4)
    means = pool.means.reshape(4, 3)
    assert means.tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]  # south comes last
    assert pool_of(file, 2, 4, label="kind", silo="ward").silos == 2
    with pytest.raises(InputError, match="silos must be the 2 values of the silo column 'ward'"):
        pool_of(file, 3, 4, label="kind", silo="ward")


def test_records_split_into_equal_contiguous_blocks_without_a_silo_column(file):
    pool = pool_of(file, 3, 4, label="kind")
    assert pool.silo_starts.tolist() == [0, 2, 3, 4]
    with pytest.raises(InputError, match="silos must be at most the 4 records"):
        pool_of(file, 5, 4, label="kind")
    with pytest.raises(InputError, match="silos is required: the data have no silo column"):
        pool_of(file, None, 4, label="kind")


@pytest.mark.parametrize("dimension", [1, 3, 7, 20])
def test_features_are_projections_of_norm_at_most_one(file, dimension):
    pool = pool_of(file, 1, dimension, label="kind", silo=None, columns=["age"])
    rows = np.vstack([pool.rows(q) for q in range(pool.queries)])
    norms = np.sqrt(np.sum(rows * rows, axis=1, dtype=np.float32))
    assert norms.max() <= 1
    if dimension >= 2:  # p = 2: an isometry, so the longest record keeps its length
        assert norms.max() > 0.999
    assert not pool.linear
    assert pool.theta is None


def test_each_action_is_a_different_linear_map_of_the_record():
    pytest.importorskip("sklearn")
    pool = pool_of("digits", 10, 80)
    rows = np.stack([pool.rows(q) for q in range(200)]).astype(np.float64)
    assert rows.shape == (200, 10, 80)
    # With d >= p every P_a is an isometry: inner products between records agree over actions.
    gram = np.einsum("qad,rad->aqr", rows, rows)
    np.testing.assert_allclose(gram - gram[0], 0, atol=1e-5)
    assert np.abs(rows[:, 0] - rows[:, 1]).max() > 0.1


def test_the_seed_fixes_the_projections(file):
    first = pool_of(file, 2, 4, label="kind")
    np.testing.assert_array_equal(first.values, pool_of(file, 2, 4, label="kind").values)
    other = pool_of(file, 2, 4, label="kind", projection_seed=1)
    assert not np.array_equal(first.values, other.values)
    np.testing.assert_array_equal(first.means, other.means)


def test_digits():
    pytest.importorskip("sklearn")
    pool = pool_of("digits", 7, 16)
    assert (pool.queries, pool.silos, pool.max_actions, pool.dimension) == (1797, 7, 10, 16)
    assert pool.means.sum() == 1797
    np.testing.assert_array_equal(pool.best, 1)
    assert any("not linear" in note for note in pool.notes)
    with pytest.raises(InputError, match='label must be left out with data "digits"'):
        pool_of("digits", 7, 16, label="target")


def test_gzip_bom_and_quoted_cells(tmp_path):
    text = '\ufeffx,"a, b",y\r\n1,"p\nq",0\r\n2,r,1\r\n4,r,1\r\n'
    plain = tmp_path / "a.csv"
    plain.write_bytes(text.encode())
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        matrix = features(path, "y", None)[0]
        np.testing.assert_allclose(matrix, [[0, 1, 0], [1 / 3, 0, 1], [1, 0, 1]])
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(InputError, match="must be a whole gzip file"):
        features(packed, "y", None)


def test_numeric_labels_are_ordered_by_size(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,10\n2,9\n3,9.0\n")
    assert features(path, "y", None)[1].tolist() == [1, 0, 0]


def test_columns_without_name_or_values_are_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",x,none,y,\n0,1,?,a,\n1,2,,b,\n2,3,NA,a,\n")
    matrix, _, _, notes = features(path, "y", None)
    np.testing.assert_array_equal(matrix, [[0], [0.5], [1]])
    assert "without any value are left out: none" in notes[1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x,y\n1,a\n2,?\n", {}, r"a\.csv:3: label 'y' must be given for every record, got '\?'"),
        ("x,y\n1,a\n2,a\n", {}, "label 'y' must have at least 2 classes, got only 'a'"),
        ("x,y\n1,1.5\n2,2.5\n3,3.5\n", {}, "got 3 distinct values in 3 records"),
        ("x,y\n1,a\n2\n", {}, r"a\.csv:3: expected 2 cells as in the header, got 1"),
        ("x,x,y\n1,1,a\n", {}, r"a\.csv:1: column names must differ, got 'x' twice"),
        ("x,y\n", {}, "at least one record, got only a header"),
        ("", {}, "at least one record, got an empty file"),
        ('x,y\n1,"a\n', {}, r"a\.csv:2: must be CSV"),
        ("x,y\n1e999,a\n2,b\n", {}, r"a\.csv:2: column 'x' must be finite, got '1e999'"),
        ("age,y\n1,a\n2,b\n", {"label": "Age"}, 'label must be .* did you mean "age"'),
        ("age,y\n1,a\n2,b\n", {"silo": "zzz"}, "silo must be .*; it has age, y"),
        ("age,y\n1,a\n2,b\n", {"silo": "y"}, "silo and label must be different columns"),
        ("age,y\n1,a\n2,b\n", {"columns": ["agee"]}, 'columns must be .* did you mean "age"'),
        ("age,y\n1,a\n2,b\n", {"columns": ["y"]}, "columns must not list the label column"),
        ("age,y\n1,a\n2,b\n", {"columns": "age"}, "columns must be a list of column names"),
        ("age,y\n1,a\n2,b\n", {"columns": ["age", "age"]}, "columns must name each column once"),
        ("age,y\n1,a\n2,b\n", {"label": None}, "label must name the column .*: one of age, y"),
        ("y\na\nb\n", {}, "must have columns besides label and silo"),
        ("x,s,y\n1,p,a\n2,,b\n", {"silo": "s"}, r"a\.csv:3: silo 's' must be given"),
    ],
)
def test_bad_tables_get_one_sentence(tmp_path, text, options, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    silos = None if "silo" in options else 1
    with pytest.raises(InputError, match=message) as caught:
        pool_of(path, silos, 3, **{"label": "y", **options})
    assert "\n" not in str(caught.value)


def test_text_columns_of_many_values_are_named(tmp_path):
    path = tmp_path / "a.csv"
    body = "".join(f"{i},n{i},{i % 2}\n" for i in range(60))
    path.write_text("x,name,y\n" + body)
    with pytest.raises(InputError, match="at most 50 distinct values, got 60 in 'name'"):
        pool_of(path, 2, 3, label="y")
    assert pool_of(path, 2, 3, label="y", columns=["x"]).queries == 60


def test_data_that_is_neither_digits_nor_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r'data must be "digits" or .* did you mean "digits"'):
        pool_of("digit", 2, 3)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"x,y\n\xe9,a\n1,b\n")
    with pytest.raises(InputError, match="must be UTF-8 text, got byte 0xe9"):
        pool_of(latin, 1, 3, label="y")


def test_heart_disease_has_four_hospitals():
    path = SHARED / "heart-disease" / "heart_disease_4sites.csv"
    if not path.exists():
        pytest.skip("needs the heart disease data set, which is not part of the project")
    pool = pool_of(path, None, 30, label="num", silo="site")
    assert np.diff(pool.silo_starts).tolist() == [303, 294, 123, 200]
    assert pool.max_actions == 5
    assert all(np.isfinite(pool.rows(q)).all() for q in range(0, 920, 50))


# ---- declared texts ------------------------------------------------------------------------------


def test_declared_texts_that_are_numbers_are_compared_as_numbers(tmp_path):
    """Hospitals write 1 and 1.0; compared as texts, every 1.0 would silently count as missing."""
    written = {}
    for name, cells in {"whole": ["1", "0", "1", "?"], "points": ["1.0", "0.0", "1", ""]}.items():
        path = tmp_path / f"{name}.csv"
        rows = [f"{cell},{y}" for cell, y in zip(cells, "abab", strict=True)]
        path.write_text("\n".join(["sex,y", *rows]) + "\n")
        pool = pool_of(path, 1, 3, label="y", ranges={"sex": ["0", "1"]})
        written[name] = pool.rows(0).tobytes()
    assert written["whole"] == written["points"]


def test_declared_texts_that_no_cell_has_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sex,y\nfemale,a\nmale,b\n?,b\n")
    with pytest.raises(InputError, match=r"ranges\.sex in some cell, got 'female' and none of"):
        pool_of(path, 1, 3, label="y", ranges={"sex": ["f", "m"]})
    path.write_text("sex,y\n?,a\n,b\n?,b\n")  # nothing is known of anybody
    assert pool_of(path, 1, 3, label="y", ranges={"sex": ["f", "m"]}).queries == 3


def test_a_text_among_numbers_is_noted_and_never_quoted(tmp_path):
    """Such a column is coded as texts: the certificate names the column, but quotes no cell."""
    path = tmp_path / "a.csv"
    path.write_text("dose,site,y\n" + "".join(f"{i},n{i % 2},{i % 2}\n" for i in range(9)))
    assert not any("texts in others" in note for note in pool_of(path, 2, 3, label="y").notes)
    path.write_text(path.read_text().replace("\n3,", "\n3 mg,"))
    notes = pool_of(path, 2, 3, label="y").notes
    assert (
        "columns with numbers in most cells and texts in others are coded as texts: dose" in notes
    )
    assert not any("3 mg" in note for note in notes)


def test_decimal_points_and_commas_in_one_column_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("dose;y\n1,5;a\n2,5;b\n3;a\n")
    assert pool_of(path, 1, 3, label="y").queries == 3
    path.write_text("dose;y\n1.5;a\n2,5;b\n3;a\n")
    with pytest.raises(InputError, match=r"a\.csv:3: column 'dose' must have decimal points or"):
        pool_of(path, 1, 3, label="y")
    path.write_text("dose;y\n1.5 mg;a\n2,5;b\n3;a\n")  # texts may have both
    assert pool_of(path, 1, 3, label="y").queries == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,yes 1,Yes 2,no 2,no", "column 'y' has 'Yes' and 'yes', which count as different"),
        ("2020-01-30,a 2020-02-01,b 2020-02-01,a", "column 'x' has dates, and each date is a"),
        ("F,a f,b M,b M,a", "column 'x' has texts that differ in upper and lower case only"),
        ("70%,a 71%,b 70%,b", "column 'x' has numbers with units"),
        ("1'200,a 1'300,b 1'200,b", "column 'x' has numbers with units or separators"),
        ("30.1.2020,a 1.2.2020,b 1.2.2020,a", "column 'x' has dates, and each date is a"),
    ],
)
def test_texts_that_look_alike_numbers_with_units_and_dates_are_warned_of(tmp_path, rows, message):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + rows.replace(" ", "\n") + "\n")
    with pytest.warns(UserWarning, match=message):
        from_table(read_table(path), "y", None, None)
