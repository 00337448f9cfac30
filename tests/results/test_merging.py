"""Job arrays: parts of an experiment in several folders are merged into one folder."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from click.testing import CliRunner

import fastfed
from fastfed import InputError
from fastfed.cli import cli

SPEC = """
name = "parts"
horizon = 40
silos = 3
replicates = 6
[environment]
kind = "sphere"
dimension = 3
actions = 4
[[curve]]
label = "server"
algorithm = "private-fedlinucb"
protocol = "central"
epsilon = [1.0, 2.0]
delta = 1e-6
batch_size = 10
[[curve]]
label = "alone"
algorithm = "local-linucb"
"""


@pytest.fixture
def spec(tmp_path):
    """Write the spec, and return its path."""
    path = tmp_path / "parts.toml"
    path.write_text(SPEC)
    return path


def assert_same(a, b):
    """Check that two results have the same curves."""
    assert [c.label for c in a] == [c.label for c in b]
    for one, other in zip(a, b, strict=True):
        assert one.replicates == other.replicates
        np.testing.assert_array_equal(one.group_regret, other.group_regret)
        np.testing.assert_array_equal(one.bits_up_counts, other.bits_up_counts)
        assert one.events == other.events and one.certificate == other.certificate


def test_merged_parts_equal_a_whole_run(spec, tmp_path):
    whole = fastfed.run(spec, tmp_path / "whole")
    for first in (0, 2, 4):
        part = fastfed.run(spec, tmp_path / f"p{first}", replicates=(first, first + 2))
        assert {c.replicates for c in part} == {(first, first + 1)}
    parts = [tmp_path / f"p{first}" for first in (4, 0, 2)]
    assert_same(fastfed.merge(parts, tmp_path / "all"), whole)
    assert_same(fastfed.load(tmp_path / "all"), whole)
    # Merge again, and into a folder with some parts: nothing changes, and nothing is simulated.
    assert_same(fastfed.merge(parts, tmp_path / "all"), whole)
    assert_same(fastfed.merge([parts[0], tmp_path / "all"], tmp_path / "p0"), whole)
    assert_same(fastfed.run(spec, tmp_path / "all"), whole)
    with sqlite3.connect(tmp_path / "all" / "results.sqlite") as db:
        assert db.execute("SELECT count(*) FROM cells").fetchone() == (18,)
        assert db.execute("SELECT count(*) FROM timings").fetchone() == (18,)


def test_a_range_that_overlaps_stored_replicates_adds_the_others(spec, tmp_path):
    fastfed.run(spec, tmp_path / "out", replicates=(3, 4))
    fastfed.run(spec, tmp_path / "out", replicates=(2, 6))
    assert fastfed.load(tmp_path / "out")["alone"].replicates == (2, 3, 4, 5)
    assert_same(fastfed.run(spec, tmp_path / "out"), fastfed.run(spec, tmp_path / "whole"))


def test_the_commands(spec, tmp_path):
    def call(*words, code=0):
        """Run a command, check its exit code, and return its output."""
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result.output

    for part in ("0:2", "2:6"):
        call("run", spec, "-o", tmp_path / part.replace(":", "-"), "--replicates", part)
    text = call("merge", tmp_path / "0-2", tmp_path / "2-6", "-o", tmp_path / "all")
    assert "6 replicates" in text and "Against alone (" in text
    assert {"report.html", "table.txt", "certificates.txt"} <= {
        p.name for p in (tmp_path / "all").iterdir()
    }
    for wrong in ("2:2", "5:1", "x", "-1", "0", "1:2:3", ":", "1:", "0:99999999999"):
        text = call("run", spec, "-o", tmp_path / "no", "--replicates", wrong, code=2)
        assert "5:10" in text and not (tmp_path / "no").exists()


def test_other_experiments_are_refused_by_name(spec, tmp_path):
    fastfed.run(spec, tmp_path / "a", replicates=(0, 1))
    fastfed.run(spec, tmp_path / "b", replicates=(1, 2), seed=5)
    fastfed.run(spec, tmp_path / "c", replicates=(1, 2), changes={"curve.server.delta": 1e-5})
    for other, message in (("b", "different seed"), ("c", '"server, epsilon = 1.0" in delta')):
        with pytest.raises(InputError, match="different experiments") as found:
            fastfed.merge([tmp_path / "a", tmp_path / other], tmp_path / "all")
        assert message in str(found.value)
    assert not (tmp_path / "all").exists()
    with pytest.raises(InputError, match="holds no results"):
        fastfed.merge([tmp_path / "a", tmp_path / "nothing"], tmp_path / "all")
    with pytest.raises(InputError, match="at least one"):
        fastfed.merge([], tmp_path / "all")


def test_results_that_contradict_each_other_are_refused(spec, tmp_path):
    from fastfed.results import digests

    for name in ("a", "b"):
        fastfed.run(spec, tmp_path / name, replicates=(0, 2))
    with sqlite3.connect(tmp_path / "b" / "results.sqlite") as db:
        other = np.ones(len(fastfed.load(tmp_path / "a")["alone"].rounds)).tobytes()
        db.execute(
            "UPDATE cells SET group_regret = ? WHERE position = 2 AND replicate = 1", (other,)
        )
        digests.seal(db)
    with pytest.raises(InputError, match="different results for replicate 1 of 'alone'"):
        fastfed.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert_same(fastfed.load(tmp_path / "all"), fastfed.load(tmp_path / "a"))


def test_damaged_parts_are_refused_before_anything_is_written(spec, tmp_path):
    for first in (0, 1):
        fastfed.run(spec, tmp_path / f"p{first}", replicates=(first, first + 1))
    with sqlite3.connect(tmp_path / "p1" / "results.sqlite") as db:
        db.execute("UPDATE cells SET events = '{}' WHERE position = 0")
        db.execute("UPDATE cells SET events = '{\"switches\": 3}' WHERE position = 0")
    with pytest.raises(InputError, match="damaged"):
        fastfed.merge([tmp_path / "p0", tmp_path / "p1"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("wrong", [(3, 3), (5, 2), (-1, 2), (0, 1, 2), "0:2", 0, 1.5])
def test_wrong_ranges_in_python(spec, tmp_path, wrong):
    with pytest.raises(InputError, match="replicate"):
        fastfed.run(spec, tmp_path / "out", replicates=wrong)
    assert not (tmp_path / "out").exists()
