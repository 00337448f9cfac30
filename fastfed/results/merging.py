"""Merge the stores of several jobs that simulated parts of one experiment."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastfed._validate import InputError, show, with_example
from fastfed._validate import folder as path_of
from fastfed.results import digests
from fastfed.results.files import opener, write_error
from fastfed.results.identity import difference
from fastfed.results.store import (
    CERTIFIED,
    FILE,
    LOCK_SECONDS,
    Store,
    held_for_writing,
    name_damaged,
    read_meta,
    uri_of,
)

if TYPE_CHECKING:
    from fastfed.results.results import Results

#: Columns of the table ``cells`` that hold the results of a replicate.
CELL = ("group_regret", "synchronisations", "bits_up", "bits_down", "events")


@with_example('fastfed.merge(["out-0", "out-1"], "out")')
def merge(parts: Sequence[str | Path], folder: str | Path) -> Results:
    """Copy the replicates of several output folders of one experiment into one folder.

    Parameters
    ----------
    parts : sequence of str or Path
        Output folders, such as those of ``fastfed run spec.toml -o part3 --replicates 15:20``.
    folder : str or Path
        Output folder. It may exist and hold replicates of the same experiment.

    Returns
    -------
    Results
        The results of all replicates in ``folder``.

    Raises
    ------
    InputError
        If a folder holds no results or damaged ones, the experiments differ, two folders have
        different results for the same replicate, or ``folder`` cannot be written. If this happens
        while parts are copied, the parts before the failing one have been copied.
    """
    if isinstance(parts, (str, bytes, os.PathLike)):
        raise InputError(
            f"parts must be a list of output folders, got {show(parts)}: write [{show(parts)}]"
        )
    target, sources = path_of(folder), [path_of(part) for part in parts]
    if not sources:
        raise InputError("parts must be at least one output folder, got none")
    for source in sources:
        with Store.open_existing(source):  # checks that there is a store, and its digests
            pass
    folders = [*([target] if (target / FILE).is_file() else []), *sources]
    identities = [msgspec.json.decode(read_meta(each / FILE)["identity"]) for each in folders]
    for other_folder, identity in zip(folders[1:], identities[1:], strict=True):
        if identity != identities[0]:
            raise InputError(
                f"{folders[0]} and {other_folder} hold different experiments (different "
                f"{difference(identities[0], identity) or 'curves'})"
            )
    private = _is_private(sources[0])
    with held_for_writing(target, private):
        for source in sources:
            if source.resolve() != target.resolve():
                try:
                    _copy(source / FILE, target / FILE, private)
                except OSError as error:
                    raise write_error(target, error) from None
    with Store.open_existing(target) as store:
        return store.results()


def missing_replicates(results: Results) -> str:
    """Return a sentence about missing replicates; empty if none is missing.

    A replicate is missing if a curve lacks it although some curve has this or a later replicate.
    """
    end = max((max(curve.replicates, default=-1) + 1 for curve in results.curves), default=0)
    missing = {c.label: sorted(set(range(end)) - set(c.replicates)) for c in results.curves}
    incomplete = [label for label, numbers in missing.items() if numbers]
    if not incomplete:
        return ""
    numbers = missing[incomplete[0]]
    numbers_text = f"{numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} from {numbers[0]} on"
    others_text = f" and {len(incomplete) - 1} more" if len(incomplete) > 1 else ""
    return (
        f"replicates below {end} are missing "
        f"({numbers_text}, of {show(incomplete[0])}{others_text}): "
        "merge the parts that have them, or run `fastfed run` into this folder with "
        f"--replicates {end}"
    )


def _is_private(source: Path) -> bool:
    """Return True if the results are of real records, so that only their owner may read them."""
    with Store.open_existing(source) as store:
        return any(curve.about_records for curve in store.results().curves)


def _copy(source: Path, target: Path, private: bool) -> None:
    """Copy replicates from the store ``source`` to ``target``, except those that ``target`` has.

    All rows are copied in one transaction. Raises InputError if the stores have different results
    for a replicate. If ``target`` does not exist, it is created, and with ``private`` only its
    owner may read it.
    """
    if not target.exists():
        _copy_all(source, target, private)
        return
    connected = closing(sqlite3.connect(uri_of(target), uri=True, timeout=LOCK_SECONDS))
    with name_damaged(target), connected as db:
        digests.check(db)
        db.execute("ATTACH ? AS part", (f"{uri_of(source)}?mode=ro",))
        with db:
            db.execute("BEGIN")
            different = " OR ".join(f"old.{name} != new.{name}" for name in CELL)
            contradiction = db.execute(
                "SELECT new.position, new.replicate FROM main.cells AS old JOIN part.cells AS new "
                f"USING (position, replicate) WHERE {different}"
            ).fetchone()
            if contradiction:
                position, replicate = contradiction
                (label,) = db.execute(
                    "SELECT label FROM curves WHERE position = ?", (position,)
                ).fetchone()
                raise InputError(
                    f"{source} and {target} have different results for replicate {replicate} of "
                    f"{show(label)}: simulate one of them again"
                )
            keys = db.execute(
                "SELECT position, replicate FROM part.cells EXCEPT "
                "SELECT position, replicate FROM main.cells"
            ).fetchall()
            for table in ("cells", "timings"):
                db.executemany(
                    f"INSERT INTO main.{table} SELECT * FROM part.{table} "
                    "WHERE position = ? AND replicate = ?",
                    keys,
                )
            if keys:
                runs = db.execute("SELECT * FROM part.runs ORDER BY run").fetchall()
                db.executemany(
                    "INSERT INTO main.runs VALUES (NULL, ?, ?, ?, ?, ?, ?)",
                    [values for _, *values in runs],
                )
            db.execute(CERTIFIED)
            digests.seal(db)


def _copy_all(source: Path, target: Path, private: bool) -> None:
    """Copy a whole store to the new file ``target``; if ``private``, only its owner may read it.

    The copy has a temporary name until it is complete.
    """
    temporary = target.with_name(f".{FILE}.new")
    temporary.unlink(missing_ok=True)
    open(temporary, "xb", opener=opener(private)).close()
    with (
        closing(
            sqlite3.connect(f"{uri_of(source)}?mode=ro", uri=True, timeout=LOCK_SECONDS)
        ) as part,
        closing(sqlite3.connect(temporary)) as copy,
    ):
        part.backup(copy)
    temporary.replace(target)
