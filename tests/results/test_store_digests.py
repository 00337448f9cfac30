"""Digests detect every change to a store that would change its results."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.environments import Sphere
from fastfed.results.store import FILE, name_damaged
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.run import load


def experiment(*epsilons: float, replicates: int = 2) -> Experiment:
    """Return an experiment with one private curve for each epsilon."""
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="rows",
        environment=Sphere(dimension=3, actions=4),
        curves=[{"label": str(e), "epsilon": e, **keys} for e in epsilons],
        horizon=40, silos=2, replicates=replicates, seed=1,
    )  # fmt: skip


def written_store(folder: Path) -> Path:
    """Run an experiment of two curves and return the path of its store."""
    fastfed.run(experiment(1.0, 5.0), folder, threads=1)
    return folder / FILE


def plain_values(results: fastfed.Results) -> list:
    """Return results as plain values that can be compared."""
    return [
        (curve.label, curve.group_regret.tolist(), curve.certificate, curve.events)
        for curve in results.curves
    ]


def count_flips(path: Path, folder: Path, count: int) -> tuple[int, int]:
    """Flip ``count`` random bits, one at a time, and count the detected and the harmless flips.

    A flip that is neither would change results without notice.
    """
    store_bytes, expected = path.read_bytes(), plain_values(load(path.parent))
    folder.mkdir()
    rng, detected, harmless = random.Random(4), 0, 0
    for _ in range(count):
        changed_bytes = bytearray(store_bytes)
        changed_bytes[rng.randrange(len(changed_bytes))] ^= 1 << rng.randrange(8)
        (folder / FILE).write_bytes(bytes(changed_bytes))
        try:
            loaded = plain_values(load(folder))
        except InputError as error:
            detected += FILE in str(error)
        else:
            harmless += loaded == expected
    return detected, harmless


def test_a_flipped_bit_is_detected_or_harmless(tmp_path: Path) -> None:
    detected, harmless = count_flips(written_store(tmp_path / "a"), tmp_path / "b", 60)
    assert detected + harmless == 60 and detected > 2


@pytest.mark.slow
def test_300_flipped_bits_are_detected_or_harmless(tmp_path: Path) -> None:
    detected, harmless = count_flips(written_store(tmp_path / "a"), tmp_path / "b", 300)
    assert detected + harmless == 300


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE cells SET events = '{}' WHERE replicate = 1 AND position = 1",
        "UPDATE cells SET replicate = 7 WHERE replicate = 1 AND position = 0",
        "DELETE FROM cells WHERE replicate = 1 AND position = 0",
        "UPDATE curves SET label = 'x' WHERE position = 0",
        "UPDATE meta SET value = '{\"x\":1}' WHERE key = 'figure'",
        "UPDATE timings SET agent_rounds = 1",
        "UPDATE certified SET date = '2001-01-01'",
        "DELETE FROM digests WHERE name = 'cells'",
    ],
)
def test_a_changed_row_is_named_and_the_store_is_refused(change: str, tmp_path: Path) -> None:
    path = written_store(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute(change)
    for use in (
        lambda: load(tmp_path),
        lambda: fastfed.run(experiment(1.0, 5.0), tmp_path, threads=1),
    ):
        with pytest.raises(InputError, match=r"damaged.*row .* of \w+ is not what was written"):
            use()


def test_stores_without_digests_load_and_a_resumed_run_adds_them(tmp_path: Path) -> None:
    path = written_store(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE digests")
        db.execute("DELETE FROM cells WHERE replicate = 1")
        db.execute("DELETE FROM timings WHERE replicate = 1")
    assert load(tmp_path).curves[0].replicates == (0,)
    fastfed.run(experiment(1.0, 5.0), tmp_path, threads=1)
    assert load(tmp_path).curves[0].replicates == (0, 1)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM digests WHERE name = 'cells'").fetchone() == (4,)


def test_stores_that_get_more_curves_keep_valid_digests(tmp_path: Path) -> None:
    written_store(tmp_path)
    fastfed.run(experiment(0.5, 1.0, 5.0, replicates=3), tmp_path, threads=1)
    assert [c.label for c in load(tmp_path).curves] == ["0.5", "1.0", "5.0"]


def test_a_python_error_about_a_damaged_row_becomes_a_clear_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"is damaged, or .* \(a row cannot be read\)"),
        name_damaged(tmp_path / FILE),
    ):
        sorted([None, "a"])
