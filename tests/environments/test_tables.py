"""Tables: CSV dialects, a file for each silo, and frames of other libraries."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.environments import Classification
from fastfed.environments.tables import digest_of, read_table

PLAIN = "age,height,y\n30,1.5,ill\n40,1.75,well\n50,1.25,ill\n60,2,well\n"
DIALECTS = {
    "semicolons": PLAIN.replace(",", ";"),
    "tabs": PLAIN.replace(",", "\t"),
    "bars": PLAIN.replace(",", "|"),
    "decimal commas": PLAIN.replace(",", ";").replace(".", ","),
    "a byte order mark": "\ufeff" + PLAIN,
    "carriage returns": PLAIN.replace("\n", "\r\n"),
    "quotes": PLAIN.replace("age", '"age"').replace("ill", '"ill"'),
    "a header of semicolons in quotes": PLAIN.replace("age", '"age;in;years"'),
}


def written(folder, name, text):
    """Write a file, and return its path."""
    path = folder / name
    path.write_bytes(text.encode())
    return path


def pool_of(data, **keys):
    """Return the pool of a table for two silos."""
    return Classification(data=data, label="y", dimension=4, **keys).pool(2)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_records(tmp_path, dialect):
    wanted = pool_of(written(tmp_path, "plain.csv", PLAIN))
    actual = pool_of(written(tmp_path, "other.csv", DIALECTS[dialect]))
    np.testing.assert_array_equal(actual.values, wanted.values)
    np.testing.assert_array_equal(actual.means, wanted.means)


def test_how_a_file_was_read_is_noted(tmp_path):
    actual = pool_of(written(tmp_path, "a.csv", DIALECTS["decimal commas"]))
    sentence = "a.csv is read with semicolons between cells and decimal commas in height"
    assert actual.notes[0] == sentence
    plain = pool_of(written(tmp_path, "b.csv", PLAIN))
    assert not any("is read with" in note for note in plain.notes)


def test_commas_in_texts_are_no_decimals(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "place;y\nUlm, south;1\nBonn;2\n"))
    assert table.cells == [["Ulm, south", "1"], ["Bonn", "2"]]


def test_a_comma_file_whose_texts_have_semicolons_is_read_with_commas(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "a;b,y\n1;2,3\n"))
    assert table.names == ["a;b", "y"] and table.cells == [["1;2", "3"]]


def silo_files(folder):
    """Write a folder with one file for each of two silos, and return its path."""
    folder.mkdir()
    written(folder, "north.csv", PLAIN)
    written(folder, "south.csv", "y;height;age\nill;1,5;33\nwell;1,8;66\n")
    return folder


def test_a_folder_a_list_and_a_mapping_have_a_silo_for_each_table(tmp_path):
    folder = silo_files(tmp_path / "silos")
    files = [folder / "north.csv", folder / "south.csv"]
    sources = [folder, files, {"north": files[0], "south": files[1]}]
    environments = [Classification(data=source, label="y", dimension=4) for source in sources]
    assert [environment.natural_silos() for environment in environments] == [2, 2, 2]
    tables = [read_table(source) for source in sources]
    assert tables[0].column("silo") == ["north"] * 4 + ["south"] * 2
    assert tables[0].column("age") == ["30", "40", "50", "60", "33", "66"]
    assert tables[0].cells == tables[1].cells == tables[2].cells
    assert len({digest_of(source) for source in sources}) == 1
    assert tables[0].where[4] == f"{files[1]}:2"


def test_a_spec_names_files_beside_itself(tmp_path):
    silo_files(tmp_path / "silos")
    spec = tmp_path / "spec.toml"
    text = (
        'name = "x"\nhorizon = 2\n[environment]\nkind = "classification"\nlabel = "y"\n'
        'data = {}\n[[curve]]\nlabel = "a"\nalgorithm = "fedlinucb"\n'
    )
    finals = []
    for number, data in enumerate(('"silos"', '["silos/north.csv", "silos/south.csv"]')):
        spec.write_text(text.format(data))
        results = fastfed.run(spec, tmp_path / f"out{number}")
        assert results.silos == 2
        finals.append(results.curves[0].final()["mean"])
    assert finals[0] == finals[1]


def frames():
    """Return the table as a frame of each library that is installed."""
    columns = {
        "age": [30.0, 40.0, 50.0, None],
        "sex": ["m", "f", None, "m"],
        "y": ["ill", "well", "ill", "well"],
    }
    collected = {}
    for name in ("pandas", "polars", "pyarrow"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        make = library.table if name == "pyarrow" else library.DataFrame
        collected[name] = make(columns)
    return collected


def test_frames_give_the_records_of_their_csv(tmp_path):
    path = written(tmp_path, "a.csv", "age,sex,y\n30,m,ill\n40,f,well\n50,,ill\n,m,well\n")
    wanted = pool_of(path)
    actual = frames()
    assert "pandas" in actual
    for name, frame in actual.items():
        np.testing.assert_array_equal(pool_of(frame).values, wanted.values, err_msg=name)


def test_numbers_of_a_frame_are_kept_in_full():
    pandas = pytest.importorskip("pandas")
    value = 0.1 + 0.2
    table = read_table(pandas.DataFrame({"a": [value, 2.0**60, -0.0], "y": [True, False, True]}))
    assert [float(cell) for cell in table.column("a")] == [value, 2.0**60, 0.0]
    assert table.column("y") == ["True", "False", "True"]


def test_frames_of_silos_are_simulated_and_certified():
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(random.normal(size=(40, 2)), columns=["a", "b"])
    frame["y"] = np.where(random.random(40) < 0.5, "ill", "well")
    environment = Classification(
        data={"north": frame[:25], "south": frame[25:]}, label="y", dimension=4
    )
    keys = {"protocol": "central", "epsilon": np.float32(1.0), "delta": 1e-4, "batch_size": 5}
    results = fastfed.simulate(environment, "private-fedlinucb", horizon=15, **keys)
    # Scales are read from the data, so the guarantee is conditional.
    assert results.curves[0].certificate["status"] == "conditional" and results.silos == 2


def test_texts_are_classes_of_arrays():
    features = np.eye(4)
    texts = Classification.from_arrays(features, ["b", "a", "a", "b"]).pool(2)
    numbers = Classification.from_arrays(features, [1, 0, 0, 1]).pool(2)
    np.testing.assert_array_equal(texts.means, numbers.means)


def refused(data, **keys):
    """Return the message with which a table is refused."""
    with pytest.raises(InputError) as error:
        pool_of(data, **keys)
    return str(error.value)


def test_an_infinite_cell_is_named_with_its_line(tmp_path):
    path = written(tmp_path, "a.csv", PLAIN.replace("1.25", "inf"))
    assert refused(path) == (
        f"{path}:4: column 'height' must be finite, got 'inf': correct the cell, or leave it "
        "empty if the value is missing"
    )


def test_a_number_that_is_none_is_named_where_a_column_has_too_many_texts(tmp_path):
    rows = "".join(f"{n}.5,{n % 2}\n" for n in range(60))
    path = written(tmp_path, "a.csv", "a,y\n" + rows.replace("7.5", "7..5", 1))
    assert f"'a' (no number: {path}:9 '7..5')" in refused(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,2,3\n", "expected 2 cells as in the header, got 3: put a cell that holds"),
        ("a,a,y\n1,2,3\n", "column names must differ, got 'a' twice"),
        ("a,y\n", "must hold a header and at least one record, got only a header"),
    ],
)
def test_bad_files_are_refused_with_a_sentence_that_says_what_to_do(tmp_path, text, message):
    assert message in refused(written(tmp_path, "a.csv", text))


def test_tables_of_silos_must_fit_together(tmp_path):
    folder = silo_files(tmp_path / "silos")
    written(folder, "west.csv", "age,weight,y\n1,2,ill\n")
    assert "tables must have the same columns, got 'height' in only one of" in refused(folder)
    with_silo = {"a": written(tmp_path, "s.csv", "silo,y\n1,2\n2,3\n")}
    assert 'a column "silo" with the names of the tables is added' in refused(with_silo)
    (tmp_path / "empty").mkdir()
    assert "must hold a table for each silo" in refused(tmp_path / "empty")
    second_north = written(tmp_path / "empty", "north.tsv", PLAIN)
    assert "got north twice" in refused([folder / "north.csv", second_north])


def test_what_is_no_table_is_refused():
    assert "an existing CSV file, a folder or list of them, or a data frame, got 3" in refused(3)
    pandas = pytest.importorskip("pandas")
    assert "a table without rows" in refused(pandas.DataFrame({"a": [], "y": []}))

    class Columns:
        columns = ("a",)

    assert "such as one of pandas, polars or Arrow" in refused(Columns())
