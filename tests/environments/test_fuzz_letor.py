"""Damaged LETOR files: each gives the rows of a plain reader or is refused."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from letor_oracle import oracle

from fastfed._validate import InputError
from fastfed.environments import letor_parser
from fastfed.environments.letor_files import LetorRows, read_letor

pytestmark = pytest.mark.filterwarnings("ignore:.*relevance -1 or")

RANDOM = st.randoms(use_true_random=False)


def repeat(examples):
    """Return settings of hypothesis: always the same examples, without a deadline."""
    # All examples share the folder of one test, of which hypothesis would warn.
    quiet = list(HealthCheck)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=quiet
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Keep parsed files in a new folder, and return it."""
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_rows_of_oracle(read: LetorRows, data: bytes, name: str) -> None:
    """Check that the rows are those of the plain reader."""
    expected = oracle(data, name)
    assert expected is not None, (read.relevance, read.features)
    relevance, qids, features = expected
    assert read.relevance.tolist() == relevance
    assert np.repeat(read.qids, np.diff(read.starts)).tolist() == qids
    np.testing.assert_array_equal(read.features, features)


def check(data: bytes, name: str, cache: Path) -> None:
    """Check that a file is read twice as the oracle reads it, or refused and never cached."""
    shutil.rmtree(cache, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, fuzzing.within(20):
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            read = read_letor(path)
        except InputError as error:
            assert oracle(data, name) is None, str(error)
            assert str(path) in str(error) and str(error).isprintable()
            assert not list(cache.rglob("*.npy"))
            return
        assert_rows_of_oracle(read, data, name)
        again = read_letor(path)
        assert again.folder is not None
        assert_rows_of_oracle(again, data, name)


def check_damaged_letor(rng, cache, monkeypatch):
    """Check one damaged LETOR file, read in blocks of random size."""
    data, name = fuzzing.damaged_letor(rng), "a.txt"
    if rng.random() < 0.2:
        name, data = rng.choice(("a.txt.gz", "a.gz", "a.txt")), fuzzing.packed(rng, data)
    # Some blocks are so small that their ends cut lines and numbers.
    monkeypatch.setattr(letor_parser, "_BLOCK", rng.choice((1 << 18, 7, 16, 64)))
    check(data, name, cache)


@repeat(250)
@given(RANDOM)
def test_a_damaged_file_is_read_right_or_refused(cache, monkeypatch, rng):
    check_damaged_letor(rng, cache, monkeypatch)


@pytest.mark.slow
@repeat(20_000)
@given(RANDOM)
def test_many_damaged_files_are_read_right_or_refused(cache, monkeypatch, rng):
    check_damaged_letor(rng, cache, monkeypatch)


@repeat(40)
@given(RANDOM)
def test_a_folder_is_its_files_one_after_another(cache, rng):
    parts = [fuzzing.valid_letor(rng) for _ in range(rng.randint(1, 3))]
    shutil.rmtree(cache, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in zip(("train.txt", "vali.txt", "test.txt"), parts, strict=False):
            (Path(folder) / name).write_bytes(data)
        (Path(folder) / "notes.md").write_bytes(b"no rows")
        read = read_letor(folder)
    order = sorted(zip(("train.txt", "vali.txt", "test.txt"), parts, strict=False))
    rows = [oracle(data, name) for name, data in order]
    assert read.relevance.tolist() == [r for relevance, _, _ in rows for r in relevance]
    for at, (_, _, features) in enumerate(rows):
        first = sum(len(r[0]) for r in rows[:at])
        part = read.features[first : first + len(features)]
        np.testing.assert_array_equal(part[:, : features.shape[1]], features)
        assert not part[:, features.shape[1] :].any()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1 qid:1 1:2\n1 qid:1 " + b"0" * 19 + b"12:5\n", None),  # once read as feature 1
        (b"1 qid:1 1:2\n" + b"1" * (1 << 25), "a.txt:2: a line must be at most"),
    ],
)
def test_found_by_fuzzing(cache, data, message):
    if message is None:
        check(data, "a.txt", cache)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_letor(Path(folder) / "a.txt")
