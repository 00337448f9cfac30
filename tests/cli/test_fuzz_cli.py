"""The command line with bad options and folders: it ends in one sentence, never a traceback."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import SPEC
from test_cli import fastfed as command

from fastfed.results import digests

RANDOM = st.randoms(use_true_random=False)
NUMBERS = (
    *("0", "1", "-1", "2", "0.5", "nan", "inf", "-inf", "1e308", "1e-320", "1e400", "", " ", "x"),
    *("9" * 30, "-" + "9" * 30, "1_0", "0x1", "1,5", "é", "--"),
    *("2147483648", "18446744073709551616"),
)  # fmt: skip
TEXTS = (
    "",
    " ",
    "x",
    "all",
    "é",
    "\n",
    "\x1b[31m",
    "a" * 300,
    "-",
    "/",
    ".",
    "gaussian",
    "a\udcff",
)
MECHANISMS = (
    *("gaussian", "gaussian-tree", "gaussian-tree-theorem", "honaker", "toeplitz", "vector-sum"),
    *("noisy-points", "shuffled-points", "vector-batches", "noisy-argmin", "x", ""),
)


def repeat(examples):
    """Return settings of hypothesis: always the same examples, without a deadline."""
    quiet = list(HealthCheck)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=quiet
    )


def exit_code_of(*args: object) -> int:
    """Run a command that must not end in a traceback; return its exit code, 0, 1 or 2."""
    with fuzzing.within(60):
        result = command(*args)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        args,
        result.exception,
    )
    assert result.exit_code in (0, 1, 2)
    if result.exit_code:
        lines = result.stderr.strip().splitlines()
        assert lines and lines[-1].startswith("error: "), (args, result.stderr)
        assert lines[-1].isprintable()
    return result.exit_code


def options(rng, known: dict[str, tuple[str, ...]], most: int) -> list[str]:
    """Return up to `most` options, drawn with values from `known`."""
    names = [rng.choice(list(known)) for _ in range(rng.randint(0, most))]
    return [f"{name}={rng.choice(known[name])}" for name in names]


def calibrate(rng) -> list[str]:
    """Return a random command `calibrate`, mostly with a valid budget."""
    sizes = (*NUMBERS, "1", "10", "100", "5000")
    small = {"--releases": sizes, "--users": sizes, "--dimension": sizes}
    small |= {"--sensitivity": (*NUMBERS, "1", "0.5")}
    odd = {**small, "--relation": (*TEXTS, "replace", "zero-out"), "--json": TEXTS}
    epsilon = rng.choice((*NUMBERS, *("0.1", "1.0", "3") * 10))
    delta = rng.choice((*NUMBERS, *("1e-5", "0.1") * 12))
    budget = [f"--epsilon={epsilon}", f"--delta={delta}"]
    return ["calibrate", *budget, *options(rng, odd, 1), "--", rng.choice(MECHANISMS)]


def refused_command(rng) -> list[str]:
    """Return a command that must be refused at once: its figure, folder or spec does not exist."""
    name = rng.choice(TEXTS)
    playing = {"--replicates": NUMBERS, "--threads": ("0", "x", "-1"), "--seed": NUMBERS}
    playing |= {"--engine": TEXTS, "--scheduler": TEXTS, "-o": TEXTS}
    planning = {"--silos": NUMBERS, "--dimension": NUMBERS, "--trust": TEXTS}
    planning |= {"--relation": TEXTS, "--actions": NUMBERS, "--radius-multiplier": NUMBERS}
    kinds = {
        "run": options(rng, playing, 3),
        "reproduce": [*options(rng, playing, 3), "--dry-run"],
        "results": options(rng, {"--json": TEXTS}, 1),
        "report": [],
        "compare": [rng.choice(TEXTS)],
        "privacy": options(rng, {"--curve": TEXTS}, 1),
        "audit": options(rng, {"--trials": NUMBERS, "--seed": NUMBERS}, 2),
        "plan": [*options(rng, planning, 4), "--seconds=0.01", "--epsilon=1", "--delta=0",
                 "--environment=none.toml"],
        "list": [],
        rng.choice(TEXTS): [],
    }  # fmt: skip
    chosen = rng.choice(list(kinds))
    odd = name if name not in ("all", "list") else "none"
    return [chosen, *kinds[chosen], "--", odd]


@repeat(250)
@given(RANDOM)
def test_odd_options_get_a_sentence(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    exit_code_of(*(calibrate(rng) if rng.random() < 0.6 else refused_command(rng)))


@pytest.mark.slow
@repeat(20_000)
@given(RANDOM)
def test_many_odd_options_get_a_sentence(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    exit_code_of(*(calibrate(rng) if rng.random() < 0.6 else refused_command(rng)))


# ---- stores ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    """Return a folder with a spec and a finished store of it."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "small.toml").write_text(SPEC)
    assert command("run", folder / "small.toml", "-o", folder / "good").exit_code == 0
    return folder


def write_broken_store(rng, good: bytes, path: Path) -> None:
    """Write a store in which bytes, rows or columns are lost or changed."""
    path.write_bytes(good)
    kind = rng.randrange(8)
    data = bytearray(good)
    at = rng.randrange(len(data))
    if kind == 0:
        del data[at:]
    elif kind == 1:
        for _ in range(rng.choice((1, 5, 50))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        data[at : at + 4096] = bytes(4096)
    elif kind == 3:
        data[:] = bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    if kind <= 3:
        path.write_bytes(bytes(data))
        return
    with sqlite3.connect(path) as db:
        table = rng.choice(("meta", "curves", "cells", "timings", "runs"))
        columns = [column[1] for column in db.execute(f"PRAGMA table_info({table})")]
        value = rng.choice((b"", b"\0" * 8, b"abc", "", "null", "{}", "[]", "x", -1, 2**62, 1e308))
        change = rng.choice(
            (
                f"DROP TABLE {table}",
                f"DELETE FROM {table}",
                f"ALTER TABLE {table} RENAME COLUMN {columns[-1]} TO other",
                f"UPDATE {table} SET {rng.choice(columns[1:])} = ?",
            )
        )
        with contextlib.suppress(sqlite3.IntegrityError):  # SQLite itself refuses some values
            db.execute(change, (value,) * change.count("?"))
        if rng.random() < 0.5:  # as if fastfed itself had written the damage
            digests.seal(db)
    db.close()


def check_store(rng, played: Path) -> None:
    """Damage a copy of the store, and run every command that reads it."""
    other = played / "other"
    other.mkdir(exist_ok=True)
    for file in other.iterdir():
        file.unlink()
    write_broken_store(
        rng, (played / "good" / "results.sqlite").read_bytes(), other / "results.sqlite"
    )
    for args in (("results", other), ("results", other, "--json"), ("report", other)):
        exit_code_of(*args)
    exit_code_of("compare", played / "good", other)
    exit_code_of("run", played / "small.toml", "-o", other, "--threads", 1)


@repeat(40)
@given(RANDOM)
def test_a_damaged_store_gets_a_sentence(played, monkeypatch, rng):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    check_store(rng, played)


@pytest.mark.slow
@repeat(3_000)
@given(RANDOM)
def test_many_damaged_stores_get_a_sentence(played, monkeypatch, rng):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    check_store(rng, played)


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE curves",
        "DROP TABLE cells",
        "UPDATE meta SET value = '[]' WHERE key = 'figure'",
        "UPDATE meta SET value = '{' WHERE key = 'identity'",
        "UPDATE cells SET bits_up = 'x'",
        "UPDATE cells SET group_regret = x'0000'",
        "UPDATE curves SET certificate = '{}'",
        "UPDATE runs SET numpy = x'00'",
        "UPDATE timings SET seconds = 9e999",
    ],
)
def test_found_by_fuzzing(played, tmp_path, change):
    path = tmp_path / "results.sqlite"
    path.write_bytes((played / "good" / "results.sqlite").read_bytes())
    with sqlite3.connect(path) as db:
        db.execute(change)
        digests.seal(db)
    db.close()
    assert exit_code_of("results", tmp_path) == 2
    assert "is damaged, or no store of fastfed" in command("results", tmp_path).stderr


def test_an_invalid_statement_in_a_store_gets_a_sentence(played, tmp_path):
    path = tmp_path / "results.sqlite"
    path.write_bytes((played / "good" / "results.sqlite").read_bytes())
    with sqlite3.connect(path) as db:
        db.execute(
            """UPDATE meta SET value = '{"statement":[{"says":null}]}' WHERE key = 'figure'"""
        )
        digests.seal(db)
    db.close()
    assert exit_code_of("report", tmp_path) == 2
    assert "results.sqlite is damaged: " in command("report", tmp_path).stderr


def test_names_too_long_for_a_file_get_a_sentence():
    for name in ("run", "privacy", "results", "report"):
        extra = ("-o", "x") if name == "run" else ()
        assert exit_code_of(name, "y" * 300, *extra) == 2
