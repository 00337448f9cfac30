"""Cases that look like mistakes and get an answer: little data, odd labels, read-only folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import Mistake, command
from mistakes_specs import SPEC
from mistakes_tables import columns

Make = Callable[[Path], Any]


def results(change: tuple[str, str], *arguments: object) -> Make:
    """Return a function that runs the spec with a part replaced, and shows the results."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        (folder / "s.toml").write_text(SPEC.replace(*change))
        fastfed.run(folder / "s.toml", folder / "kept")
        command("results", folder / "kept", *arguments)

    return make


def cache_that_is_read_only(folder: Path) -> None:
    """Run a spec over a LETOR file where the cache cannot be written, and show the warnings."""
    lines = [f"{q % 3} qid:{q // 3} 1:{q % 7} 2:{q % 5}" for q in range(24)]
    (folder / "rows.txt").write_text("\n".join(lines) + "\n")
    old_environment = SPEC[SPEC.index("[environment]") : SPEC.index("[[curve]]")]
    world = '[environment]\nkind = "letor"\npath = "rows.txt"\nfeatures = "all"\n\n'
    (folder / "s.toml").write_text(SPEC.replace(old_environment, world))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTFED_CACHE", "/proc/none")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import fastfed

            fastfed.run(folder / "s.toml", folder / "kept")
    raise_as_printed([str(warning.message) for warning in caught])


def raise_as_printed(lines: list[str]) -> None:
    """Raise the numbered lines, as if a command had printed them."""
    from mistakes import Printed

    raise Printed("\n".join(f"{i}: {line}" for i, line in enumerate(lines, 1)), 0, "")


def simulated(make: Callable[[], Any]) -> Make:
    """Return a function that simulates, and shows the text that ``make`` returns."""

    def run(folder: Path) -> None:
        """Simulate, and raise the text as printed output."""
        raise_as_printed([make()])

    return run


def epsilon_of(number: Any) -> Callable[[], str]:
    """Return a function that simulates with this epsilon and returns the claimed epsilon."""

    def simulate() -> str:
        """Return the claimed epsilon of a simulation, as text."""
        import fastfed

        keys = {"algorithm": "private-fedlinucb", "epsilon": number, "delta": np.float32(1e-5)}
        world = {"kind": "sphere", "dimension": 3, "actions": 5}
        results = fastfed.simulate(world, **keys, silos=2, horizon=20)
        return f"claimed epsilon {results.curves[0].certificate['claimed']['epsilon']:g}"

    return simulate


def frame_of(library: str) -> Callable[[], str]:
    """Return a function that simulates on a table of this library."""

    def simulate() -> str:
        """Return the number of silos of a simulation, as text."""
        import importlib

        import fastfed

        module = importlib.import_module(library)
        frame = getattr(module, "table" if library == "pyarrow" else "DataFrame")(columns())
        environment = fastfed.environments.Classification(data=frame, label="state", silo="site")
        return f"{fastfed.simulate(environment, 'local-linucb', horizon=4).silos} silos"

    return simulate


def missing_package(folder: Path) -> None:
    """Show the problems that `fastfed doctor` finds if a package is missing."""
    from fastfed.cli import doctor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "REQUIRED", ("numpy", "numpypy"))
        raise_as_printed(doctor.examine(None)["problems"])


def noted(old: str, new: str) -> Make:
    """Return a function that runs the spec with a part replaced, and shows its notes."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed
        from fastfed.reporting.sharing import notes_on_curves

        assert old in SPEC
        (folder / "s.toml").write_text(SPEC.replace(old, new))
        notes = notes_on_curves(fastfed.run(folder / "s.toml", folder / "kept"))
        raise_as_printed([*notes, "end of notes"])

    return make


def table_notes(header: str, row: Callable[[int], str]) -> Make:
    """Return a function that simulates over a table of 60 records, and shows the warnings."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        lines = [header, *(f"{row(i)},{'ill' if i % 3 else 'well'}" for i in range(60))]
        (folder / "t.csv").write_text("\n".join(lines) + "\n")
        environment = fastfed.environments.Classification(data="t.csv", label="state")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fastfed.simulate(environment, "local-linucb", silos=2, horizon=4)
        raise_as_printed([str(warning.message) for warning in caught] or ["no warning"])

    return make


def log_notes(propensity: str) -> Make:
    """Return a function that reads a log with this propensity, and shows its doubts."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        lines = [f"{'abc'[i % 3]},{i % 2},{propensity}" for i in range(60)]
        (folder / "log.csv").write_text("\n".join(["action,reward,propensity", *lines]) + "\n")
        rounds = fastfed.environments.Log(data=str(folder / "log.csv")).rounds(1)
        raise_as_printed(list(rounds.doubts) or ["no doubt"])

    return make


LATE = 'delay = { kind = "constant", rounds = %d }\n'
PLAN = ("--silos", 4, "--horizon", 60, "--dimension", 2, "--actions", 5, "--seconds", 0.1)
MISTAKES = [
    Mistake(
        "one replicate",
        results(("replicates = 1", "replicates = 1")),
        ("LDP",),
        code=0,
        never=("nan", "1 replicates"),
    ),
    Mistake(
        'a label that begins with "=", as CSV',
        results(('"LDP"', '"=1+1"'), "--csv"),
        ("'=1+1",),
        code=0,
        never=("\n=1+1",),
    ),
    Mistake(
        "a plan where sharing does not pay",
        lambda f: command("plan", *PLAN, "--epsilon", 0.1, "--delta", "1e-5", "--trust", "central"),
        ("do not share",),
        code=0,
        never=("no less than chance",),
    ),
    Mistake(
        "a cache that is read-only",
        cache_that_is_read_only,
        ("parsed in memory",),
        code=0,
        never=("2: ",),
    ),
    Mistake("doctor where a package is missing", missing_package, ("pip install numpypy",), code=0),
    Mistake("epsilon = np.float32(0.5)", simulated(epsilon_of(np.float32(0.5))), ("0.5",), code=0),
    Mistake("a pandas frame", simulated(frame_of("pandas")), ("2 silos",), ("pandas",), 0),
    Mistake("a polars frame", simulated(frame_of("polars")), ("2 silos",), ("polars",), 0),
    Mistake("an Arrow table", simulated(frame_of("pyarrow")), ("2 silos",), ("pyarrow",), 0),
    Mistake(
        "a sphere of dimension 1",
        noted("dimension = 3", "dimension = 1"),
        ("dimension is 1", "all actions"),
        code=0,
    ),
    Mistake(
        "a delay beyond the horizon",
        noted('"fedlinucb"\n', '"fedlinucb"\n' + LATE % 60),
        ("open: ", "no reward arrives", "nothing is learned"),
        code=0,
    ),
    Mistake(
        "the longest delay from which something is learned",
        noted('"fedlinucb"\n', '"fedlinucb"\n' + LATE % 59),
        ("end of notes",),
        code=0,
        never=("no reward arrives",),
    ),
    Mistake(
        "a number of each record among the features",
        table_notes("id,age,state", lambda i: f"{i + 100},{20 + i % 40}"),
        ("'id'", "different value", "columns"),
        code=0,
        never=("'age'",),
    ),
    Mistake(
        "measurements that all differ",
        table_notes("dose,state", lambda i: f"{i + 0.25}"),
        ("no warning",),
        code=0,
    ),
    Mistake("a propensity of 1/3, rounded", log_notes("0.333"), ("no doubt",), code=0),
    Mistake("a propensity of 1/3, rounded to 2", log_notes("0.33"), ("no doubt",), code=0),
    Mistake(
        "a propensity of 0.4 for three actions",
        log_notes("0.4"),
        ("1 / propensity is 2.5, but 3 actions", "do not fit"),
        code=0,
    ),
]
