"""LETOR files larger than memory: parsed block by block into the cache, and read from there."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfed._validate import InputError
from fastfed.environments import letor_files, letor_parser, storage
from fastfed.environments.letor import letor_pool
from fastfed.environments.letor_files import cached_sources, read_letor
from fastfed.environments.storage import GrowableArray, StoredArray

pytestmark = pytest.mark.filterwarnings("ignore:.*relevance -1 or")

#: Hard cases for parsers: line ends of both kinds, comments, a wide line, exponents, a query that
#: spans blocks, blank lines, and no line end at the end.
TEXT = (
    b"2 qid:7 1:3 2:0.25 3:-1.5 \r\n0 qid:7 1:12345678 2:0 3:22.076928 \r\n"
    b"# a comment\r\n\n1 qid:8 2:.5 # and qid:9\n1 qid:8 1:1e-3 3:2\n\r\n"
    b"4 qid:8 9:0.125\n0 qid:9 1:-4.\n0 qid:10 1:7 4:8\r\n3 qid:10 2:1"
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Keep parsed files in a new folder, and return it."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FASTFED_CACHE", str(folder))
    return folder


def mslr(path: Path, queries: int, features: int = 136, seed: int = 0) -> Path:
    """Write a random file in the format of MSLR, and return its path."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for q in range(queries):
            for _ in range(rng.integers(5, 15)):
                values = np.round(rng.uniform(0, 100, features), 3)
                pairs = " ".join(f"{j}:{v:g}" for j, v in enumerate(values, start=1))
                file.write(f"{int(values[1] > 50)} qid:{q} {pairs} \r\n")
    return path


def in_memory(*sources: Path) -> dict[str, np.ndarray]:
    """Return the arrays that the cache must hold, parsed with one block for each file."""
    parts = letor_parser.Parts([], [], [], [])
    letor_parser.parse(sources, 65_536, parts)
    width = max(block.shape[1] for block in parts.features)
    wide = [np.pad(b, ((0, 0), (0, width - b.shape[1]))) for b in parts.features]
    flat = {k: np.concatenate(v) for k, v in vars(parts).items() if k != "features"}
    return {"features": np.concatenate(wide), **flat}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every array in a folder."""
    return {p.name: p.read_bytes() for p in folder.rglob("*.npy")}


def saved(arrays: dict[str, np.ndarray], folder: Path) -> dict[str, bytes]:
    """Save arrays in a new folder, and return the content of their files."""
    folder.mkdir()
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return files_of(folder)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, len(TEXT) + 2), cut=st.integers(0, len(TEXT)), packed=st.booleans())
def test_any_block_size_leaves_the_same_cache(size, cut, packed, tmp_path_factory):
    """Let blocks end within a line, a query, a number or a line end; files end between lines."""
    folder = tmp_path_factory.mktemp("data")
    at = TEXT.rfind(b"\n", 0, cut) + 1
    texts = [t for t in (TEXT[:at], TEXT[at:]) if b"qid:7" in t or b"qid:10" in t]
    sources = []
    for number, text in enumerate(texts):
        path = folder / (f"{number}.txt.gz" if packed else f"{number}.txt")
        path.write_bytes(gzip.compress(text) if packed else text)
        sources.append(path)
    expected = saved(in_memory(*sources), folder / "saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTFED_CACHE", str(folder / "cache"))
        patch.setattr(letor_parser, "_BLOCK", size)
        rows = read_letor(folder)
    assert rows.folder is not None
    assert files_of(rows.folder) == expected


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.integers(1, 12), max_size=6), seed=st.integers(0, 9), piece=st.integers(1, 9)
)
def test_a_growing_table_is_what_numpy_saves(widths, seed, piece, tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(seed)
    blocks = [rng.normal(size=(rng.integers(1, 5), w)).astype(np.float32) for w in widths]
    wide = max(widths, default=1)
    whole = np.concatenate(
        [np.zeros((0, wide)), *(np.pad(b, ((0, 0), (0, wide - b.shape[1]))) for b in blocks)]
    ).astype(np.float32)
    np.save(folder / "saved.npy", whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "PIECE_BYTES", piece)
        with closing(GrowableArray(folder / "grown.npy", np.float32, table=True)) as grown:
            for block in blocks:
                grown.append(block)
            grown.finish()
    assert (folder / "grown.npy").read_bytes() == (folder / "saved.npy").read_bytes()
    stored = StoredArray(folder / "grown.npy")
    np.testing.assert_array_equal(stored.part(1, max(1, len(whole))), whole[1:])
    stored.close()


def test_a_wide_line_does_not_widen_the_table_of_short_lines(tmp_path, monkeypatch):
    text = "".join(f"1 qid:{i // 4} 1:{i}\n" for i in range(40)) + "2 qid:11 9:1\n3 qid:11 1:4\n"
    path = tmp_path / "a.txt"
    path.write_text(text)
    expected = in_memory(path)
    largest = []
    monkeypatch.setattr(letor_parser, "MAX_ENTRIES", 20)
    rows_of = letor_parser._rows
    monkeypatch.setattr(
        letor_parser, "_rows", lambda *a: [largest.append(r.values.size) or r for r in rows_of(*a)]
    )
    rows = read_letor(path)
    # All lines of a block in one table would be nine columns of 42.
    assert max(largest) < 42
    np.testing.assert_array_equal(rows.features, expected["features"])
    path.write_text(text + "2 qid:11 9:1 3:x\n" + text)
    with pytest.raises(InputError, match=r"a\.txt:43: expected a pair"):
        read_letor(path)


def test_a_file_without_line_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(letor_parser, "_LONGEST", 1 << 20)
    path = tmp_path / "a.txt"
    path.write_bytes(b"1 qid:1 1:2\n" + b"x" * (3 << 20))
    with pytest.raises(InputError, match=r"a\.txt:2: a line must be at most 1048576 bytes"):
        read_letor(path)


# ---- what stops a parse -----------------------------------------------------------------------

CHILD = """
import sys, time, warnings
warnings.simplefilter("ignore")
from fastfed.environments import {module}
inside = {module}.{name}
def stopped(*args, **kwargs):
    if {after}:
        inside(*args, **kwargs)
    print("here", flush=True)
    time.sleep(600)
{module}.{name} = stopped
from fastfed.environments.letor_files import read_letor
read_letor(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("storage", "GrowableArray.append", True),  # a first block is there
        ("storage", "GrowableArray.finish", True),  # a first array is whole
        ("storage", "_rename", False),  # all is there, under its temporary name
    ],
)
def test_a_killed_parse_leaves_no_cache(module, name, after, tmp_path, cache):
    path = mslr(tmp_path / "a.txt", 40)
    program = CHILD.format(module=module, name=name, after=after)
    child = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
        # The child waits at a known place, so that the speed of the machine does not matter.
        left = list((cache / "letor").glob(".part-*"))
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert len(left) == 1 and any(left[0].iterdir())
    assert cached_sources() == []
    os.utime(left[0], (0, 0))
    rows = read_letor(path)
    assert rows.folder is not None and files_of(rows.folder) == saved(
        in_memory(path), tmp_path / "s"
    )
    assert list((cache / "letor").glob(".part-*")) == []


def test_a_folder_that_is_being_written_is_not_deleted(tmp_path, cache):
    folder = cache / "letor"
    with storage.fresh_folder(folder / "one") as temporary:
        os.utime(temporary, (0, 0))
        with storage.fresh_folder(folder / "two") as other:
            storage.write_meta(other, {"format": 0})
        assert temporary.exists()
        storage.write_meta(temporary, {"format": 0})
    assert sorted(p.name for p in folder.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("after", [0, 1, 5, 20])
def test_with_a_full_disk_a_file_is_parsed_in_memory(after, tmp_path, cache, monkeypatch):
    path = mslr(tmp_path / "a.txt", 40)
    expected = in_memory(path)
    monkeypatch.setattr(letor_parser, "_BLOCK", 30_000)
    append, calls = GrowableArray.append, []

    def full(self, block):
        """Append as before, until the disk is full."""
        calls.append(1)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, block)

    monkeypatch.setattr(GrowableArray, "append", full)
    with pytest.warns(UserWarning, match=r"\(No space left on device\).*is parsed in memory"):
        rows = read_letor(path)
    np.testing.assert_array_equal(rows.features, expected["features"])
    np.testing.assert_array_equal(rows.starts, expected["starts"])
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_a_full_disk_and_a_file_larger_than_memory_are_refused(tmp_path, cache, monkeypatch):
    path = mslr(tmp_path / "a.txt", 40)

    def full(self, block):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GrowableArray, "append", full)
    monkeypatch.setattr(letor_files, "available", lambda: 100_000)
    message = rf"{path} is larger than memory, and the cache folder {cache} cannot be written"
    with pytest.warns(UserWarning), pytest.raises(InputError, match=message):
        read_letor(path)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_a_disk_that_is_full_when_the_pool_is_made(tmp_path, cache, monkeypatch):
    pytest.importorskip("sklearn")
    path = mslr(tmp_path / "a.txt", 40)
    expected = letor_pool(path, 2, "anchor-url")
    kept = {name: np.array(getattr(expected, name)) for name in ("values", "means", "theta")}
    (pools,) = cache.glob("letor/*/pools")
    for folder in pools.iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GrowableArray, "finish", full)
    with pytest.warns(UserWarning, match=r"the pool of .* stays in memory"):
        pool = letor_pool(path, 2, "anchor-url")
    for name, values in kept.items():
        np.testing.assert_array_equal(getattr(pool, name), values)
    assert list(pools.iterdir()) == []
    monkeypatch.setattr("fastfed.environments.letor.available", lambda: 1000)
    with pytest.raises(InputError, match=r"the pool of .* is larger than memory, and the cache"):
        letor_pool(path, 2, "anchor-url")


# ---- memory -----------------------------------------------------------------------------------

PEAK = """
import resource, sys, warnings
warnings.simplefilter("error")
from fastfed.environments import letor_files
from fastfed.environments import letor as module
from fastfed.environments.letor import letor_pool
module._CHUNK_ROWS = 512
import sklearn.linear_model, numpy.linalg
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "parse":
    letor_files.read_letor(sys.argv[1])
else:
    letor_pool(sys.argv[1], 2)
print(peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kilobytes and pages as on Linux")
def test_the_memory_of_parsing_does_not_grow_with_the_file(tmp_path):
    pytest.importorskip("sklearn")
    small = mslr(tmp_path / "small.txt", 20)
    line = small.read_bytes()
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        for _ in range(40_000_000 // len(line)):
            file.write(line)
    peaks = {}
    for path in (small, large):
        for what in ("parse", "derive"):
            result = subprocess.run(
                [sys.executable, "-c", PEAK, path, what], capture_output=True, text=True, check=True
            )
            peaks[path.name, what] = int(result.stdout) * 1024
    # The large file takes 40 MB as text, 18 MB in the cache, and another 18 MB as a pool.
    print(peaks)
    assert peaks["large.txt", "parse"] - peaks["small.txt", "parse"] < 10e6
    assert peaks["large.txt", "derive"] - peaks["small.txt", "derive"] < 10e6
