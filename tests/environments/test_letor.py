"""LETOR files to pools: parsing, the cache, feature sets, scaling and the model."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.environments import letor_files, letor_parser, storage
from fastfed.environments.letor import FEATURE_SETS, letor_pool
from fastfed.environments.letor_files import cached_sources, read_letor, verify
from fastfed.environments.letor_parser import parse_block, parse_lines
from fastfed.environments.pool import Pool, equal_blocks

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
PLAIN = "2 qid:7 1:3 2:0.25 3:-1.5 \r\n0 qid:7 1:12345678 2:0 3:22.076928 \r\n"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Keep parsed files in a new folder, and return it."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FASTFED_CACHE", str(folder))
    return folder


def write(path: Path, text: str) -> Path:
    """Write a text, and return the path."""
    path.write_bytes(text.encode())
    return path


def letor_text(rng, queries=6, features=136, first_qid=1, actions=(3, 9)) -> str:
    """Return dense rows whose relevance depends on a few large columns, as in ranking data."""
    lines = []
    for q in range(queries):
        for _ in range(rng.integers(*actions)):
            values = np.round(rng.uniform(0, 100, features), rng.integers(0, 7))
            relevance = int(np.clip(values[1] / 30 + values[125] / 60, 0, 4))
            pairs = " ".join(f"{j}:{v:g}" for j, v in enumerate(values, start=1))
            lines.append(f"{relevance} qid:{first_qid + q} {pairs} \r\n")
    return "".join(lines)


@pytest.fixture
def file(tmp_path):
    """Write a random LETOR file, and return its path."""
    return write(tmp_path / "train.txt", letor_text(np.random.default_rng(0)))


# ---- the two parsers -------------------------------------------------------------------------


def test_plain_block_takes_the_compiled_path_and_has_the_right_numbers():
    rows = parse_block(PLAIN.encode())
    assert rows is not None
    assert rows.relevance.tolist() == [2, 0]
    assert rows.qid.tolist() == [7, 7]
    expected = np.array([[3, 0.25, -1.5], [12345678, 0, 22.076928]], dtype=np.float32)
    np.testing.assert_array_equal(rows.values, expected)


def random_value(rng) -> str:
    """Return a random spelling of a decimal number."""
    kind = rng.integers(0, 7)
    digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, 10))))
    more = "".join(map(str, rng.integers(0, 10, rng.integers(1, 12))))
    sign = "-" if rng.random() < 0.2 else ""
    return (
        sign + [digits, f"{digits}.{more}", f".{more}", f"{digits}.", "0", f"0.{more}", more][kind]
    )


def test_compiled_and_exact_parsers_agree_bitwise():
    rng = np.random.default_rng(1)
    compiled = 0
    for _ in range(200):
        lines = []
        for _ in range(rng.integers(1, 8)):
            chosen = np.flatnonzero(rng.random(20) < rng.choice([0.3, 1.0])) + 1
            pairs = " ".join(f"{j}:{random_value(rng)}" for j in chosen)
            tail = rng.choice([" ", "", " \r", "\t", " # docid = 3:4 qid:1"])
            lines.append(f"{rng.integers(0, 5)} qid:{rng.integers(1, 10**9)} {pairs}{tail}\n")
        block = "".join(lines).encode()
        exact = parse_lines(block, "f")
        fast = parse_block(block)
        if fast is not None:
            compiled += 1
            assert fast.relevance.tolist() == exact.relevance.tolist()
            assert fast.qid.tolist() == exact.qid.tolist()
            np.testing.assert_array_equal(fast.values, exact.values)
    assert compiled > 50


def hard_value(rng) -> str:
    """Return a decimal of any length, often near a tie of two float32 numbers."""
    if rng.random() < 0.5:
        low = np.float32(rng.uniform(0.0, 1.0) * 10.0 ** rng.integers(-30, 30))
        tie = (Fraction(float(low)) + Fraction(float(np.nextafter(low, np.float32(np.inf))))) / 2
        scale = int(rng.integers(0, 40))
        text = str(int(tie * 10**scale) + int(rng.integers(-1, 2)))
        return f"{text}e-{scale}" if rng.random() < 0.5 else f"{text}.{rng.integers(0, 3)}e{-scale}"
    digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, 26))))
    point = int(rng.integers(0, len(digits) + 1))
    exponent = f"{rng.choice(['e', 'E', 'e+', 'e-'])}{rng.integers(0, 13)}"
    sign = rng.choice(["", "-", "+"])
    return f"{sign}{digits[:point]}.{digits[point:]}{exponent if rng.random() < 0.5 else ''}"


def test_compiled_values_are_those_of_python_at_any_length():
    rng = np.random.default_rng(3)
    texts = [hard_value(rng) for _ in range(4000)]
    block = "".join(f"0 qid:1 1:{text} # 2:3\n\n" for text in texts).encode()
    rows = parse_block(block)
    assert rows is not None
    expected = np.array([[float(text)] for text in texts]).astype(np.float32)
    np.testing.assert_array_equal(rows.values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("value", ["1e39", "-3.5e38", "1e99999", "1" * 40])
def test_values_beyond_float32_are_left_to_the_parser_that_refuses_them(value):
    block = f"0 qid:1 1:{value}\n".encode()
    assert parse_block(block) is None
    with pytest.raises(InputError, match=r"^f:1: feature 1 must fit a float32"):
        parse_lines(block, "f")


def test_rows_wider_than_the_first_are_read():
    rows = parse_block(b"1 qid:1 2:5\n2 qid:1\n\n0 qid:2 1:1 7:2.5 # end\n")
    assert rows is not None
    assert rows.values.tolist() == [[0, 5, 0, 0, 0, 0, 0], [0] * 7, [1, 0, 0, 0, 0, 0, 2.5]]
    assert rows.qid.tolist() == [1, 1, 2]


def test_compiled_parser_never_accepts_what_the_exact_one_refuses():
    rng = np.random.default_rng(2)
    alphabet = np.frombuffer(b"0123456789 :.-\n\r\tqid#eE+naf", dtype=np.uint8)
    refused = accepted = 0
    for _ in range(6000):
        block = np.frombuffer(PLAIN.encode(), dtype=np.uint8).copy()
        at = rng.integers(0, len(block) - 1, rng.integers(1, 3))
        block[at] = rng.choice(alphabet, len(at))
        text = block.tobytes()
        fast = parse_block(text)
        try:
            exact = parse_lines(text, "f")
        except InputError:
            refused += 1
            assert fast is None, text
            continue
        if fast is not None:
            accepted += 1
            assert fast.qid.tolist() == exact.qid.tolist(), text
            assert fast.relevance.tolist() == exact.relevance.tolist(), text
            np.testing.assert_array_equal(fast.values, exact.values, err_msg=str(text))
    assert refused > 1000
    assert accepted > 500


def test_unusual_but_right_lines_are_read(tmp_path):
    text = "\ufeff  2.0  qid:3\t3:1e-2 1:+4   # comment with 9:9\n\n \r\n1 qid:3\n0 qid:4 2:.5"
    rows = read_letor(write(tmp_path / "a.txt", text))
    assert rows.relevance.tolist() == [2, 1, 0]
    assert rows.starts.tolist() == [0, 2, 3]
    assert rows.qids.tolist() == [3, 4]
    expected = np.array([[4, 0, 0.01], [0, 0, 0], [0, 0.5, 0]], dtype=np.float32)
    np.testing.assert_array_equal(rows.features, expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 qid:1 1:2 2", "expected a pair index:value, got '2'"),
        ("1 qid:1 1:2 2:", "expected a pair index:value, got '2:'"),
        ("1 qid:1 1:2 :3", "expected a pair"),
        ("1 qid:1 1:2:3", "expected a pair"),
        ("1 qid:1 1:1_0", "expected a pair"),
        ("1 qid:1 x:1", "expected a pair"),
        ("1 1:2 2:3", "qid:N must follow the relevance, got '1:2'"),
        ("1", "qid:N must follow the relevance, got the end of the line"),
        ("1 qid: 1:2", "qid must be a whole number"),
        ("1 qid:a 1:2", "qid must be a whole number, got 'a'"),
        ("1.5 qid:1 1:2", "relevance must be a whole number, got '1.5'"),
        ("x qid:1 1:2", "relevance must be a whole number"),
        ("99999999999 qid:1 1:2", "relevance must be a whole number"),
        ("1 qid:1 1:nan", "feature 1 must be finite, got 'nan'"),
        ("1 qid:1 1:-Inf", "feature 1 must be finite"),
        ("1 qid:1 1:1e39", "must fit a float32"),
        ("1 qid:1 0:2", "feature index must be 1 to 65536, got '0'"),
        ("1 qid:1 65537:2", "feature index must be 1 to 65536"),
        ("1 qid:1 -1:2", "expected a pair"),
        ("1 qid:1 2:2 2:3", "feature 2 must come once in a line"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, message):
    # The line is far into the file, so that line numbers must count earlier blocks.
    filler = "0 qid:1 1:0.5 2:0.25\n" * 20_000
    path = write(tmp_path / "bad.txt", filler + line + "\n" + filler)
    with pytest.raises(InputError) as caught:
        read_letor(path)
    assert str(caught.value).startswith(f"{path}:20001: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_index_above_the_declared_number_is_refused_with_and_without_cache(file):
    with pytest.raises(InputError, match=r"train\.txt:1: feature index must be 1 to 100"):
        read_letor(file, features=100)
    assert read_letor(file, features=136).features.shape[1] == 136
    with pytest.raises(InputError, match=r"train\.txt:1: feature index must be 1 to 100"):
        read_letor(file, features=100)


@pytest.mark.parametrize("text", ["", "\n \r\n", "# only a comment\n"])
def test_a_file_without_rows_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"empty\.txt must hold LETOR rows, found none"):
        read_letor(write(tmp_path / "empty.txt", text))


def test_a_block_boundary_may_fall_anywhere(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", letor_text(np.random.default_rng(3), queries=3))
    whole = letor_parser.Parts([], [], [], [])
    digests = letor_parser.parse([path], 136, whole)
    for size in (64, 1000, 4097):
        monkeypatch.setattr(letor_parser, "_BLOCK", size)
        parts = letor_parser.Parts([], [], [], [])
        assert letor_parser.parse([path], 136, parts) == digests
        for have, want in zip(vars(parts).values(), vars(whole).values(), strict=True):
            np.testing.assert_array_equal(np.concatenate(have), np.concatenate(want))


# ---- files and folders -----------------------------------------------------------------------


def test_gzip_is_read_like_plain_text_and_damage_is_named(tmp_path, file):
    packed = tmp_path / "packed" / "train.txt.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(file.read_bytes()))
    for path in (packed, packed.parent):
        np.testing.assert_array_equal(read_letor(path).features, read_letor(file).features)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"cut\.gz must be a whole gzip file"):
        read_letor(cut)


def test_a_qid_of_the_next_file_is_another_query(tmp_path):
    write(tmp_path / "train.txt", "1 qid:6 1:3\n1 qid:5 1:1\n0 qid:5 1:2\n")
    write(tmp_path / "vali.txt", "1 qid:5 1:5\n1 qid:5 2:6\n")
    rows = read_letor(tmp_path)
    assert rows.starts.tolist() == [0, 1, 3, 5]
    assert rows.qids.tolist() == [6, 5, 5]
    np.testing.assert_array_equal(rows.features[-1], [0, 6])
    np.testing.assert_array_equal(rows.features[0], [3, 0])


@pytest.mark.parametrize("block", [1 << 18, 9])
def test_a_qid_that_comes_back_is_refused_with_its_line(tmp_path, monkeypatch, block):
    monkeypatch.setattr(letor_parser, "_BLOCK", block)
    lines = ["# a comment", "1 qid:5 1:1", "", "0 qid:5 1:2", "-1 qid:6 1:3", "2 qid:5 1:4"]
    path = write(tmp_path / "a.txt", "\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="nobody has judged"):
        # Unjudged rows are left out, so the rows of 5 are together.
        assert read_letor(path).qids.tolist() == [5]
    path = write(tmp_path / "b.txt", "\n".join([*lines, "1.0 qid:7 1:3", "2 qid:5.0 1:4"]))
    message = r"b\.txt:8: rows of one query must be together, but qid 5 comes back .* sort the rows"
    for _ in range(2):  # nothing is cached
        with pytest.raises(InputError, match=message):
            read_letor(path)


def test_a_cache_of_an_earlier_version_with_a_returning_qid_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.txt", "1 qid:5 1:1\n1 qid:6 1:1\n")
    meta = read_letor(path).folder / "meta.json"
    earlier = {**json.loads(meta.read_text()), "returning": 1}
    meta.write_text(json.dumps(earlier))
    assert read_letor(path).qids.tolist() == [5, 6]
    assert json.loads(meta.read_text())["returning"] == 0


def test_a_folder_gives_its_splits_or_else_all_text_files_by_name(tmp_path):
    write(tmp_path / "b.txt", "1 qid:2 1:1\n")
    write(tmp_path / "a.txt", "1 qid:1 1:1\n")
    assert read_letor(tmp_path).qids.tolist() == [1, 2]
    write(tmp_path / "vali.txt", "1 qid:4 1:1\n")
    write(tmp_path / "test.txt", "1 qid:3 1:1\n")
    assert read_letor(tmp_path).qids.tolist() == [3, 4]
    (tmp_path / "vali.txt.gz").write_bytes(gzip.compress(b"1 qid:4 1:1\n"))
    with pytest.raises(InputError, match=r"holds both vali\.txt and vali\.txt\.gz"):
        read_letor(tmp_path)


def test_a_path_with_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="not found"):
        read_letor(tmp_path / "absent.txt")
    (tmp_path / "Fold1").mkdir()
    with pytest.raises(InputError, match=r"found none; it holds the folders Fold1: name one"):
        read_letor(tmp_path)


# ---- cache -----------------------------------------------------------------------------------


def refuse(*args, **kwargs):
    """Fail, because a file that is in the cache was parsed again."""
    raise AssertionError("parsed again")


def test_a_second_start_maps_the_cache_without_reading_the_source(file, monkeypatch):
    first = read_letor(file)
    monkeypatch.setattr(letor_files, "parse", refuse)
    monkeypatch.setattr(letor_parser, "_blocks", refuse)
    second = read_letor(file)
    np.testing.assert_array_equal(first.features, second.features)
    assert not second.features.flags.writeable
    assert second.folder is not None


def test_a_changed_source_is_parsed_again_and_the_old_entry_dropped(file):
    first = read_letor(file)
    write(file, "3 qid:1 1:1\n")
    second = read_letor(file)
    assert second.relevance.tolist() == [3]
    assert len(first.relevance) > 1
    assert [entry.rows for entry in cached_sources()] == [1]


def test_cached_sources_lists_what_is_there(file, cache):
    assert cached_sources() == []
    rows = read_letor(file)
    (entry,) = cached_sources()
    assert entry.path == str(file.resolve())
    assert entry.sources == (str(file.resolve()),)
    assert (entry.rows, entry.features) == rows.features.shape
    assert entry.queries == 6
    assert entry.bytes > rows.features.nbytes
    assert cache in entry.folder.parents


def test_verify_notices_corruption_behind_an_unchanged_time_stamp(file):
    assert verify(file) == [
        (str(file.resolve()), True, "not in the cache: nothing to compare with")
    ]
    read_letor(file)
    assert [ok for _, ok, _ in verify(file)] == [True]
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    ((source, ok, message),) = verify(file)
    assert (source, ok) == (str(file.resolve()), False)
    assert "although size and time stamp agree" in message


def test_verify_distinguishes_touched_changed_and_missing_files(file):
    read_letor(file)
    os.utime(file, ns=(1, 1))
    ((_, ok, message),) = verify(file)
    assert ok and "new time stamp" in message
    write(file, "3 qid:1 1:1\n")
    ((_, ok, message),) = verify(file)
    assert not ok and "changed since it was cached" in message
    file.unlink()
    ((_, ok, message),) = verify(file)
    assert not ok and "the file is gone: restore it, or delete its cache" in message
    assert verify(file.parent / "never")[0][1] is False


def test_verify_checks_every_file_of_a_folder(tmp_path):
    write(tmp_path / "train.txt", PLAIN)
    write(tmp_path / "vali.txt", PLAIN)
    read_letor(tmp_path)
    write(tmp_path / "vali.txt", PLAIN + PLAIN)
    assert [(Path(name).name, ok) for name, ok, _ in verify(tmp_path)] == [
        ("train.txt", True),
        ("vali.txt", False),
    ]


def test_a_cache_that_cannot_be_written_is_warned_of_and_not_needed(file, tmp_path, monkeypatch):
    expected = read_letor(file).features
    blocked = write(tmp_path / "a-file", "")
    monkeypatch.setenv("FASTFED_CACHE", str(blocked / "cache"))
    with pytest.warns(UserWarning, match="cannot be written"):
        rows = read_letor(file)
    assert rows.folder is None
    np.testing.assert_array_equal(rows.features, expected)
    # One warning is enough, although every reader of the file finds the cache blocked.
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pool = letor_pool(file, 2)
    pool.check()


@pytest.mark.filterwarnings("ignore:.*has changed since it was written")
@pytest.mark.parametrize("name", ["features.npy", "meta.json", "starts.npy"])
def test_a_damaged_cache_is_made_again(file, name):
    first = read_letor(file)
    expected = np.array(first.features)
    damaged = first.folder / name
    damaged.write_bytes(damaged.read_bytes()[:50])
    reread = read_letor(file)
    np.testing.assert_array_equal(reread.features, expected)
    assert reread.folder == first.folder


@pytest.mark.filterwarnings("ignore:.*has changed since it was written")
def test_a_damaged_pool_in_the_cache_is_made_again(file):
    expected = letor_pool(file, 2).means.copy()
    (values,) = read_letor(file).folder.glob("pools/*/values.npy")
    values.write_bytes(values.read_bytes()[:-4])
    np.testing.assert_array_equal(letor_pool(file, 2).means, expected)
    assert len(np.load(values)) == len(expected) * 137  # the file is whole again


CACHED = ["values", "means", "theta", "relevance", "starts", "qids", "features", "sums"]


@pytest.mark.parametrize("name", CACHED)
def test_a_flipped_bit_in_the_cache_changes_no_result_and_is_warned_of(file, name, cache):
    """Check that a process compares each array that it reads with its checksum once."""
    expected = letor_pool(file, 2)
    values, means = np.array(expected.values), np.array(expected.means)
    if name == "features":  # read only if no pool was derived from them yet
        (pools,) = cache.rglob("pools")
        shutil.rmtree(pools)
    for actual in cache.rglob(f"{name}.*"):
        data = bytearray(actual.read_bytes())
        data[-9] ^= 4
        actual.write_bytes(data)
    storage._checked_arrays.clear()
    with pytest.warns(UserWarning, match="has changed since it was written"):
        reread = letor_pool(file, 2)
    np.testing.assert_array_equal(reread.values, values)
    np.testing.assert_array_equal(reread.means, means)
    assert storage.damaged_arrays() == []


def test_undamaged_arrays_are_checked_once_in_a_process(file, monkeypatch):
    expected = np.array(letor_pool(file, 2).values)
    storage._checked_arrays.clear()
    letor_pool(file, 2)
    monkeypatch.setattr(storage, "_checksum", refuse)
    np.testing.assert_array_equal(letor_pool(file, 2).values, expected)


def test_the_cache_goes_where_the_platform_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("FASTFED_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert storage.cache_folder() == tmp_path / "fastfed"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage.cache_folder() == tmp_path / ".cache" / "fastfed"


# ---- pools -----------------------------------------------------------------------------------


def test_pool_blocks_are_feature_major_and_rows_is_a_view():
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    means = np.array([0.1, 0.9, 0.5, 0.2, 0.3])
    pool = Pool.from_rows(rows, means, np.array([0, 2, 5]), np.array([0, 1, 2]))
    assert pool.values[:6].tolist() == [0, 3, 1, 4, 2, 5]
    np.testing.assert_array_equal(pool.rows(1), rows[2:])
    assert np.shares_memory(pool.rows(1), pool.values)
    assert (pool.queries, pool.silos, pool.max_actions) == (2, 2, 3)
    assert pool.best.tolist() == [0.9, 0.5]
    with pytest.raises(InputError, match="query"):
        pool.rows(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": np.array([0, 2, 4])}, "starts must run from 0 to 5, got 0 to 4"),
        ({"starts": np.array([0, 0, 5])}, "starts must grow at every step"),
        ({"starts": np.array([0.0, 5.0])}, "starts must be a flat array"),
        ({"silo_starts": np.array([0, 1])}, "silo_starts must run from 0 to 2"),
        ({"means": np.zeros(4)}, "means must have shape"),
        ({"rows": np.full((5, 3), np.nan)}, "rows must be finite"),
        ({"theta": np.zeros(2)}, "theta must have shape"),
        ({"linear": True}, "linear must be False"),
    ],
)
def test_a_pool_whose_parts_do_not_fit_is_refused(change, message):
    parts = {
        "rows": np.zeros((5, 3)),
        "means": np.zeros(5),
        "starts": np.array([0, 2, 5]),
        "silo_starts": np.array([0, 1, 2]),
    }
    with pytest.raises(InputError, match=message):
        Pool.from_rows(**{**parts, **change})


def test_equal_blocks_are_those_of_array_split():
    for count, blocks in ((10, 3), (7, 7), (100, 9)):
        sizes = [len(part) for part in np.array_split(np.arange(count), blocks)]
        assert np.diff(equal_blocks(count, blocks)).tolist() == sizes


def test_feature_sets_have_the_columns_of_the_experiment():
    sizes = {name: len(columns) for name, columns in FEATURE_SETS.items()}
    assert sizes == {"anchor-url": 57, "text": 78, "both": 135}
    assert set(FEATURE_SETS["anchor-url"][:5]) == {0, 2, 4, 7, 9}
    assert set(FEATURE_SETS["anchor-url"]) & set(FEATURE_SETS["text"]) == {0}
    assert FEATURE_SETS["both"].count(0) == 2


def raw_columns(path, columns):
    """Return columns of the features of a file; column 0 is the constant 0.01."""
    features = read_letor(path).features.astype(np.float64)
    padded = np.hstack([np.full((len(features), 1), 0.01), features])
    return padded[:, list(columns)]


@pytest.fixture(scope="module")
def forty_queries(tmp_path_factory):
    """Write a LETOR file of 40 queries, and return its path."""
    text = letor_text(np.random.default_rng(4), queries=40, actions=(4, 12))
    return write(tmp_path_factory.mktemp("letor") / "train.txt", text)


@pytest.mark.parametrize("features", ["anchor-url", "text", "both", [0, 2, 126], "all"])
def test_theta_is_the_lasso_of_scikit_learn_on_the_raw_columns(forty_queries, features):
    sklearn, path = pytest.importorskip("sklearn.linear_model"), forty_queries
    columns = range(137) if features == "all" else FEATURE_SETS.get(str(features), features)
    raw = raw_columns(path, columns)
    lasso = sklearn.Lasso(alpha=1.0, fit_intercept=False, max_iter=10_000)
    lasso.fit(raw, read_letor(path).relevance)
    pool = letor_pool(path, 3, features, scaling="row")
    assert np.count_nonzero(lasso.coef_) > 0
    np.testing.assert_allclose(pool.theta, lasso.coef_, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(pool.means, raw @ lasso.coef_, rtol=1e-9, atol=1e-12)


def test_the_lasso_agrees_when_there_are_fewer_rows_than_columns(file):
    sklearn = pytest.importorskip("sklearn.linear_model")
    raw = raw_columns(file, range(137))
    assert len(raw) < 137
    lasso = sklearn.Lasso(alpha=0.5, fit_intercept=False, max_iter=10_000)
    lasso.fit(raw, read_letor(file).relevance)
    pool = letor_pool(file, 2, scaling="row", theta_penalty=0.5)
    np.testing.assert_allclose(pool.theta, lasso.coef_, rtol=1e-8, atol=1e-12)


def all_rows(pool):
    """Return the rows of all queries of a pool."""
    return np.vstack([pool.rows(q) for q in range(pool.queries)])


@pytest.mark.parametrize("features", ["anchor-url", "both", "all"])
def test_column_scaling_keeps_the_model_exactly_linear(file, features):
    pytest.importorskip("sklearn")
    pool = letor_pool(file, 2, features)
    rows = all_rows(pool)
    assert pool.linear
    np.testing.assert_allclose(rows.astype(np.float64) @ pool.theta, pool.means, atol=1e-12)
    assert (pool.means.min(), pool.means.max()) == (0.0, pytest.approx(1.0, abs=1e-12))
    norms = np.sqrt(np.sum(rows * rows, axis=1, dtype=np.float32))
    assert norms.max() <= 1
    assert norms.max() > 0.999
    assert any("taken as public" in note for note in pool.notes)
    assert any(f"||theta*|| = {np.linalg.norm(pool.theta):.4g}" in note for note in pool.notes)
    # The scaled model is an affine map of the raw one, so actions are ordered as by the lasso.
    raw = letor_pool(file, 2, features, scaling="row").means
    slope, shift = np.polyfit(raw, pool.means, 1)
    np.testing.assert_allclose(slope * raw + shift, pool.means, atol=1e-5)
    assert slope > 0


def test_without_a_constant_column_the_shift_is_outside_the_model(file):
    pytest.importorskip("sklearn")
    pool = letor_pool(file, 2, [2, 4, 126], reward_range=(0.2, 0.7))
    assert not pool.linear
    assert (pool.means.min(), pool.means.max()) == (0.2, pytest.approx(0.7, abs=1e-12))
    shift = pool.means - all_rows(pool).astype(np.float64) @ pool.theta
    np.testing.assert_allclose(shift, shift[0], atol=1e-12)
    assert abs(shift[0]) > 1e-3
    assert any("outside the linear model" in note for note in pool.notes)


def test_row_scaling_gives_unit_rows_and_raw_rewards(file):
    pytest.importorskip("sklearn")
    pool = letor_pool(file, 2, "anchor-url", scaling="row")
    norms = np.linalg.norm(all_rows(pool), axis=1)
    assert norms.max() <= 1
    np.testing.assert_allclose(norms, 1, atol=1e-5)
    raw = raw_columns(file, FEATURE_SETS["anchor-url"])
    unit = raw / np.linalg.norm(raw, axis=1)[:, None]
    np.testing.assert_allclose(all_rows(pool), unit, atol=1e-5)
    np.testing.assert_allclose(pool.means, raw @ pool.theta, rtol=1e-12)
    assert not pool.linear
    assert any("not linear" in note for note in pool.notes)


def test_chunks_do_not_change_the_pool(file, monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    from fastfed.environments import letor as module

    whole = letor_pool(file, 2, "anchor-url")
    monkeypatch.setattr(module, "_CHUNK_ROWS", 5)
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "other"))
    parts = letor_pool(file, 2, "anchor-url")
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-6)
    np.testing.assert_allclose(parts.means, whole.means, atol=1e-9)


def test_a_second_pool_comes_from_the_cache_without_scikit_learn(file, monkeypatch):
    pytest.importorskip("sklearn")
    first = letor_pool(file, 2, "anchor-url")
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    second = letor_pool(file, 3, "anchor-url")
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.means, second.means)
    assert second.notes == first.notes
    assert (second.silos, second.linear) == (3, True)
    assert not second.values.flags.writeable
    with pytest.raises(InputError, match=r"pip install fastfed\[data\]"):
        letor_pool(file, 2, "text")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"silos": 7}, "silos must be at most the 6 queries of .*, got 7"),
        ({"silos": 0}, "silos must be an integer >= 1, got 0"),
        ({"features": "anchor"}, 'features must be one of .* did you mean "anchor-url"'),
        ({"features": []}, "features must name at least one column"),
        ({"features": [0, -1]}, "features must be an integer >= 0"),
        ({"features": [3, 3]}, "got column 3 twice"),
        ({"features": [0, 137]}, "must be columns 0 to 136, .*, got column 137"),
        ({"scaling": "rows"}, 'scaling must be one of .* did you mean "row"'),
        ({"theta_penalty": 0}, "theta_penalty must be > 0"),
        ({"theta_penalty": 1e9}, "theta_penalty must be smaller"),
        ({"reward_range": (1.0, 0.0)}, "reward_range must be .* with low < high"),
        ({"reward_range": 1.0}, "reward_range must be two numbers"),
        ({"scaling": "row", "reward_range": (0.0, 1.0)}, "reward_range must be left out"),
    ],
)
def test_bad_options_get_one_sentence(file, options, message):
    pytest.importorskip("sklearn")
    with pytest.raises(InputError, match=message) as caught:
        letor_pool(file, **{"silos": 2, **options})
    assert "\n" not in str(caught.value)


def test_importing_the_pools_loads_no_heavy_library():
    code = (
        "import sys, fastfed.environments.letor, fastfed.environments.classification;"
        "print([m for m in ('sklearn', 'scipy', 'numba', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# ---- real rows -------------------------------------------------------------------------------


def shared(name: str) -> Path:
    """Return the path of a data set; skip the test if it is not here."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the data set {name}, which is not part of the project")
    return path


@pytest.mark.parametrize(
    ("name", "queries", "rows"), [("train.txt", 43, 5000), ("vali.txt", 18, 1734)]
)
def test_mslr_rows(name, queries, rows):
    read = read_letor(shared("mslr") / name)
    assert read.features.shape == (rows, 136)
    assert len(read.qids) == queries
    assert set(np.unique(read.relevance)) <= set(range(5))
    assert np.abs(read.features).max() > 1e6  # raw columns, not yet scaled


def test_mslr_never_needs_the_slow_parser(monkeypatch):
    folder = shared("mslr")
    monkeypatch.setattr(letor_parser, "parse_lines", refuse)
    assert len(read_letor(folder).relevance) == 6734


def test_mslr_random_policy_has_the_regret_the_experiments_quote():
    pytest.importorskip("sklearn")
    pool = letor_pool(shared("mslr") / "vali.txt", 10, "anchor-url")
    sizes = np.diff(pool.starts)
    gap = pool.best - np.add.reduceat(pool.means, pool.starts[:-1]) / sizes
    ends = zip(pool.silo_starts[:-1], pool.silo_starts[1:], strict=True)
    regret = 3000 * sum(gap[a:b].mean() for a, b in ends)
    assert 12_660 / 1.5 < regret < 12_660 * 1.5  # other held-out queries: the same order


def test_mq2008_has_comments_and_too_few_columns_for_the_mslr_sets():
    pytest.importorskip("sklearn")
    path = shared("mq2008") / "vali.txt"
    assert read_letor(path).features.shape == (2874, 46)
    with pytest.raises(InputError, match=r"must be columns 0 to 46, .*, got column 131"):
        letor_pool(path, 4, "anchor-url")
    with pytest.raises(InputError, match="theta_penalty must be smaller"):
        letor_pool(path, 4, theta_penalty=1.0)
    default = letor_pool(path, 4)
    assert default.theta.any() and "1 makes theta* = 0" in default.notes[0]
    pool = letor_pool(path, 4, theta_penalty=0.001)
    assert (pool.silos, pool.dimension, pool.linear) == (4, 47, True)
