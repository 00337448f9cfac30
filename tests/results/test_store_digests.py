"""Every bit of a store that means something is seen when it is lost."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.environments import Sphere
from fastfed.results.store import FILE, _name_damaged
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.run import load, run


def experiment(*epsilons: float, replicates: int = 2) -> Experiment:
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="rows",
        environment=Sphere(dimension=3, actions=4),
        curves=[{"label": str(e), "epsilon": e, **keys} for e in epsilons],
        horizon=40, silos=2, replicates=replicates, seed=1,
    )  # fmt: skip


def written(folder: Path) -> Path:
    run(experiment(1.0, 5.0), folder, threads=1)
    return folder / FILE


def plain(results: fastfed.Results) -> list:
    return [(c.label, c.group_regret.tolist(), c.certificate, c.events) for c in results.curves]


def flips(path: Path, folder: Path, count: int) -> tuple[int, int]:
    """(seen, harmless) of so many flipped bits; any other would be taken for a result."""
    whole, want = path.read_bytes(), plain(load(path.parent))
    folder.mkdir()
    rng, seen, harmless = random.Random(4), 0, 0
    for _ in range(count):
        body = bytearray(whole)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        (folder / FILE).write_bytes(bytes(body))
        try:
            found = plain(load(folder))
        except InputError as error:
            seen += FILE in str(error)
        else:
            harmless += found == want
    return seen, harmless


def test_a_flipped_bit_is_seen_or_harmless(tmp_path: Path) -> None:
    seen, harmless = flips(written(tmp_path / "a"), tmp_path / "b", 60)
    assert seen + harmless == 60 and seen > 2


@pytest.mark.slow
def test_300_flipped_bits(tmp_path: Path) -> None:
    seen, harmless = flips(written(tmp_path / "a"), tmp_path / "b", 300)
    assert seen + harmless == 300


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
def test_a_changed_row_is_named_and_nothing_goes_on(change: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute(change)
    for use in (lambda: load(tmp_path), lambda: run(experiment(1.0, 5.0), tmp_path, threads=1)):
        with pytest.raises(InputError, match=r"damaged.*row .* of \w+ is not what was written"):
            use()


def test_stores_without_digests_open_and_get_them(tmp_path: Path) -> None:
    path = written(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE digests")
        db.execute("DELETE FROM cells WHERE replicate = 1")
        db.execute("DELETE FROM timings WHERE replicate = 1")
    assert load(tmp_path).curves[0].replicates == (0,)
    run(experiment(1.0, 5.0), tmp_path, threads=1)
    assert load(tmp_path).curves[0].replicates == (0, 1)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM digests WHERE name = 'cells'").fetchone() == (4,)


def test_stores_that_grow_keep_digests(tmp_path: Path) -> None:
    written(tmp_path)
    run(experiment(0.5, 1.0, 5.0, replicates=3), tmp_path, threads=1)
    assert [c.label for c in load(tmp_path).curves] == ["0.5", "1.0", "5.0"]


def test_what_python_says_of_a_damaged_row_is_not_passed_on(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"is damaged, or .* \(a row cannot be read\)"),
        _name_damaged(tmp_path / FILE),
    ):
        sorted([None, "a"])
