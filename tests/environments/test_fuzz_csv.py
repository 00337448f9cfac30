"""Damaged CSVs and arrays: each gives the right records or is refused."""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from csv_oracle import oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfed._validate import InputError
from fastfed.environments import Classification, ObliviousLosses, Replay
from fastfed.environments.coding import from_table
from fastfed.environments.tables import read_table

RANDOM = st.randoms(use_true_random=False)


def repeat(examples):
    """Return settings of hypothesis: always the same examples, without a deadline."""
    quiet = list(HealthCheck)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=quiet
    )


def check(data: bytes, name: str, silo: str | None) -> None:
    """Check that a file is read as the oracle reads it, or refused with its name."""
    expected = oracle(data, name, "label", silo)
    with tempfile.TemporaryDirectory() as folder, fuzzing.within(20):
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            features, classes, owner, _ = from_table(read_table(path), "label", silo, None)
        except InputError as error:
            assert expected is None, str(error)
            assert name in str(error) and str(error).isprintable()
            return
        environment = Classification(data=path, dimension=3, label="label", silo=silo)
        pool = environment.load(None if silo else 1)
    assert expected is not None, (features, classes)
    np.testing.assert_allclose(features, expected[0], rtol=0, atol=1e-9)
    assert classes.tolist() == expected[1]
    assert (None if owner is None else owner.tolist()) == expected[2]
    assert np.isfinite(pool.values).all() and pool.queries == len(classes)


def check_damaged_csv(rng):
    """Check one damaged CSV file."""
    data, name = fuzzing.damaged_csv(rng), "a.csv"
    if rng.random() < 0.1:
        name, data = "a.csv.gz", fuzzing.packed(rng, data)
    check(data, name, rng.choice(("silo", "silo", None)))


@repeat(250)
@given(RANDOM)
def test_a_damaged_csv_is_read_right_or_refused(rng):
    check_damaged_csv(rng)


@pytest.mark.slow
@repeat(20_000)
@given(RANDOM)
def test_many_damaged_csvs_are_read_right_or_refused(rng):
    check_damaged_csv(rng)


@pytest.mark.parametrize(
    "rows",
    [
        ["n,label", "1,10000000000000000001", "2,10000000000000000002"],  # once read as one class
        ["n,label", "1,1e400", "2,1e401"],
        ["n,label", "1,1", "2,1.0", "3,0.1e1", "4,2"],
        ["n,label", "1,a", "2,b", "x\0,a", "4,b"],  # once read as a text column
        ["n,label", "1,0", "2,1", "-0,0"],
    ],
)
def test_found_by_fuzzing(rows):
    check("\n".join(rows).encode(), "a.csv", None)


def test_a_label_beyond_any_number_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"n,label\n1,1e{'9' * 30}\n2,1\n")
    with pytest.raises(InputError, match=r"a.csv:2: label 'label' must have an exponent"):
        from_table(read_table(path), "label", None, None)


def test_a_csv_of_many_columns_is_read_in_20_seconds(tmp_path):
    names = [f"gene{i}" for i in range(40_000)]
    path = tmp_path / "wide.csv"
    cells = [",".join(str(i % 7) for i in range(j, j + 40_000)) for j in range(4)]
    header = ",".join(names)
    path.write_text(f"{header},label\n" + "".join(f"{c},{j % 2}\n" for j, c in enumerate(cells)))
    start = time.process_time()
    features, *_ = from_table(read_table(path), "label", None, None)
    assert features.shape == (4, 40_000)
    assert time.process_time() - start < 20


def damaged_arrays(rng) -> bytes:
    """Return the bytes of an .npz or .npy file: whole, of another kind, or damaged."""
    file = io.BytesIO()
    shapes = ((2, 5, 3, 2), (2, 5, 3), (1, 1, 1, 1), (0, 5, 3, 2), (4, 3), (2, 4, 3), ())
    kinds = (float, float, np.float32, int, bool, complex, "<U3", "datetime64[s]", ">f4")
    size = rng.choice((0.0, 0.1, 0.5, 1.0, 1e308, -1.0, np.nan, np.inf))

    def random_array():
        """Return a random array, without warnings about its casts."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.full(rng.choice(shapes), size).astype(rng.choice(kinds))

    try:
        if rng.random() < 0.5:
            names = rng.choice((("contexts", "rewards"), ("contexts",), ("a", "rewards"), ()))
            np.savez(file, **{name: random_array() for name in names})
        else:
            np.save(file, random_array())
    except ValueError:
        np.save(file, np.zeros(3))
    data = file.getvalue()
    return fuzzing.damaged_text(rng, data) if rng.random() < 0.6 else data


def check_arrays(data: bytes, name: str) -> None:
    """Check that damaged arrays are refused in one sentence, or hold finite numbers."""
    with tempfile.TemporaryDirectory() as folder, fuzzing.within(20):
        path = Path(folder) / name
        path.write_bytes(data)
        for make in (lambda: Replay(path=str(path)), lambda: ObliviousLosses(losses=str(path))):
            try:
                environment = make()
            except InputError as error:
                assert str(error).isprintable()
                continue
            if isinstance(environment, Replay):
                assert (
                    np.isfinite(environment.contexts).all()
                    and np.isfinite(environment.rewards).all()
                )
            environment.describe()


@repeat(200)
@given(RANDOM)
def test_damaged_arrays_are_refused(rng):
    check_arrays(damaged_arrays(rng), "a" + rng.choice((".npz", ".npy")))


@pytest.mark.slow
@repeat(20_000)
@given(RANDOM)
def test_many_damaged_arrays_are_refused(rng):
    check_arrays(damaged_arrays(rng), "a" + rng.choice((".npz", ".npy")))


def test_a_signalling_nan_is_refused_like_any_other():
    signalling = np.full((2, 5, 3, 2), 0x7F800001, np.uint32).view(np.float32)
    with pytest.raises(InputError, match="losses must be finite"):
        ObliviousLosses(losses=signalling)
