"""Only the owner can read files derived from real records, whatever the umask."""

import os
import stat
import sys

import numpy as np
import pytest

import fastfed
from fastfed.cli.execution import write_report
from fastfed.environments import letor_files
from fastfed.reporting.figure import read_source
from fastfed.simulation.experiment import experiment_from_spec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes as on POSIX")

SPHERE = {"kind": "sphere", "dimension": 2, "actions": 2}


@pytest.fixture(autouse=True)
def open_umask():
    """Set the umask to 0, so that files are readable by all unless fastfed restricts them."""
    old_umask = os.umask(0)
    yield
    os.umask(old_umask)


def mode(path):
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder):
    """Return the permissions of all files below a folder, by file name."""
    return {path.name: mode(path) for path in folder.rglob("*") if path.is_file()}


def experiment(tmp_path, real):
    """Return an experiment on a data set, or on the sphere if not ``real``."""
    rows = "".join(f"{i},{i * i % 7},{i % 2},{i % 3}\n" for i in range(40))
    (tmp_path / "d.csv").write_text("x,y,label,silo\n" + rows)
    table = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
    curve = {"label": "one", "algorithm": "fedlinucb", "batch_size": 3}
    return experiment_from_spec(
        {
            "name": "x", "horizon": 9, "silos": 2, "replicates": 1,
            "environment": table if real else SPHERE, "curve": [curve],
        }
    )  # fmt: skip


@pytest.mark.parametrize("real", [True, False])
def test_stores_and_reports_of_real_records_are_private(real, tmp_path):
    small_experiment, folder = experiment(tmp_path, real), tmp_path / "out"
    fastfed.run(small_experiment, folder)
    source = read_source(folder)
    pytest.importorskip("matplotlib")
    report_files = write_report(source, folder, ["png"])
    assert bool(source.about_records) == real
    assert mode(folder) == (0o700 if real else 0o777)
    assert set(modes(folder).values()) == {0o600 if real else 0o666}
    assert {"results.sqlite", "table.csv", "figure.png", ".pictures"} <= set(modes(folder))
    # A store that its owner made readable keeps its permissions and can be resumed.
    for path in (folder, *report_files, folder / "results.sqlite"):
        path.chmod(0o755 if path == folder else 0o644)
    resumed = fastfed.run(small_experiment.with_options(2), folder)
    assert resumed.curves[0].replicates == (0, 1)
    assert (mode(folder), mode(folder / "results.sqlite")) == (0o755, 0o644)


def test_caches_of_parsed_files_are_private(tmp_path, monkeypatch):
    cache = tmp_path / "made" / "cache"
    monkeypatch.setenv("FASTFED_CACHE", str(cache))
    letor_text = "1 qid:1 1:0.5 2:0.25\n" * 3 + "0 qid:2 1:0.5 2:0.25 3:1\n" * 2
    (tmp_path / "train.txt").write_text(letor_text)
    parsed = letor_files.read_letor(tmp_path / "train.txt")
    assert parsed.folder is not None and parsed.features.shape == (5, 3)
    assert set(modes(cache).values()) == {0o600}
    folders = [
        tmp_path / "made",
        cache,
        *(subpath for subpath in cache.rglob("*") if subpath.is_dir()),
    ]
    assert {mode(folder) for folder in folders} == {0o700}
    for path in cache.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert np.array_equal(letor_files.read_letor(tmp_path / "train.txt").features, parsed.features)


# ---- refused files -------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip", "bad line", "bad last line"])
def test_a_refused_file_leaves_no_cache(damage, tmp_path, monkeypatch):
    import gzip

    cache = tmp_path / "made" / "cache"
    monkeypatch.setenv("FASTFED_CACHE", str(cache))
    text = b"".join(b"%d qid:%d 1:0.%d 2:0.5\n" % (i % 3, i // 5, i % 10) for i in range(4000))
    data = bytearray(gzip.compress(text))
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[-6] ^= 1  # in the checksum, which is read after all text
    elif damage == "no gzip":
        data[:2] = b"PK"
    elif damage == "bad line":
        data = bytearray(gzip.compress(b"not LETOR\n" + text))
    else:
        data = bytearray(gzip.compress(text + b"1 qid:900 1:x\n"))
    (tmp_path / "train.txt.gz").write_bytes(bytes(data))
    with pytest.raises(fastfed.InputError):
        letor_files.read_letor(tmp_path / "train.txt.gz")
    assert not cache.exists() and not (tmp_path / "made").exists()
