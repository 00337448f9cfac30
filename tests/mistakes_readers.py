"""Mistakes of people who have read the pages: TOML, tables in curves, logs, parts, certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mistakes import Mistake, command
from mistakes_specs import SPEC, spec

Make = Callable[[Path], Any]
REHEARSAL = """
[federation]
name = "trial"

[system]
epsilon = 1.0
delta = 1e-5

[[columns]]
name = "age"
low = 20
high = 80

[actions]
names = ["A", "B"]

[reward]
column = "sick"
correct = { yes = "A", no = "B" }
"""
LOG = """
name = "log"
horizon = 20
silos = 2

[environment]
kind = "log"
data = "log.csv"
columns = []
{more}

[[curve]]
algorithm = "local-linucb"
"""


def private_line(line: str) -> Make:
    """Return a function that runs the spec with this further line in the private curve."""
    return spec("delta = 1e-5\nbatch_size = 10", f"delta = 1e-5\nbatch_size = 10\n{line}")


def log(more: str = "", propensity: float = 1 / 3, then: str = "") -> Make:
    """Return a function that runs a spec over a log of three actions, then the command ``then``."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        rows = [f"{'abc'[i % 3]},{int(i % 5 == 0)},{propensity}" for i in range(90)]
        (folder / "log.csv").write_text("\n".join(["action,reward,propensity", *rows]) + "\n")
        (folder / "s.toml").write_text(LOG.format(more=more))
        if not then:
            command("run", folder / "s.toml", "-o", folder / "kept")
        from click.testing import CliRunner

        from fastfed.cli import cli

        run = CliRunner().invoke(cli, ["run", str(folder / "s.toml"), "-o", str(folder / "kept")])
        assert run.exit_code == 0, run.stderr
        more_arguments = ["-o", folder / "merged"] if then == "merge" else []
        command(then, folder / "kept", *more_arguments)

    return make


def rehearse(*tables: str, text: str = REHEARSAL) -> Make:
    """Return a function that rehearses a spec of a deployment."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        (folder / "s.toml").write_text(text)
        named = [part for table in tables for part in ("--table", table)]
        command("deploy", "rehearse", folder / "s.toml", *named)

    return make


def with_results(use: Callable[[Any, Path], object]) -> Make:
    """Return a function that runs the spec and a curve of silos alone, and uses the results."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        further_curve = '\n[[curve]]\nlabel = "alone"\nalgorithm = "local-linucb"\n'
        (folder / "s.toml").write_text(SPEC + further_curve)
        use(fastfed.run(folder / "s.toml", folder / "kept"), folder)

    return make


def merge_a_gap(folder: Path) -> None:
    """Merge the part of a later job, while the part of the first job is missing."""
    import fastfed

    (folder / "s.toml").write_text(SPEC)
    fastfed.run(folder / "s.toml", folder / "part1", replicates=(2, 4))
    command("merge", folder / "part1", "-o", folder / "merged")


def overwritten(folder: Path) -> None:
    """Write a plan to the path of an existing spec, which must not be overwritten."""
    (folder / "s.toml").write_text(SPEC)
    sizes = ("--silos", 4, "--horizon", 60, "--dimension", 3, "--epsilon", 1, "--delta", "1e-5")
    try:
        command("plan", *sizes, "--seconds", 0.1, "--write", folder / "s.toml")
    finally:
        assert (folder / "s.toml").read_text() == SPEC


def certificate(data: Any) -> Make:
    """Return a function that reads a certificate."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed.privacy import Certificate

        Certificate.from_builtins(data)

    return make


def weight_without_reward(folder: Path) -> None:
    """Ask for the interval of clicks without their largest reward."""
    from fastfed.off_policy import inverse_propensity

    policy = np.full((4, 2), 0.5)
    inverse_propensity([0, 1, 0, 1], [0.0, 1, 0, 1], [0.5] * 4, policy, largest_weight=2.0)


def audit_of_equal_data(folder: Path) -> None:
    """Audit a mechanism on one dataset twice."""
    import fastfed

    fastfed.audit(lambda data: np.sum(data), [0.0, 1.0], np.array([0, 1]), epsilon=1.0, delta=0.0)


def merge_of_one_text(folder: Path) -> None:
    """Merge a folder that is given as a text instead of a list."""
    import fastfed

    fastfed.merge("part0", folder / "merged")


def range_as_text(folder: Path) -> None:
    """Run in Python with a range that is written as at the command line."""
    import fastfed

    (folder / "s.toml").write_text(SPEC)
    fastfed.run(folder / "s.toml", folder / "out", replicates="5:10")  # type: ignore[arg-type]


LABELS = ('"open"', '"LDP, epsilon = 1.0"', '"LDP, epsilon = 2.0"')
SWEEP = SPEC.replace("epsilon = 1.0", "epsilon = [1.0, 2.0]")
STATEMENT = '\n[[figure.statement]]\nsays = "x"\nbelow = ["LDP", "open"]\n'
MISTAKES = [
    Mistake(
        "True in TOML", private_line("lazy = True"), ("not TOML", "line 24", "true instead of")
    ),
    Mistake("None in TOML", private_line("share = None"), ("not TOML", "leave the key out")),
    Mistake("a text without quotes", spec('"open"', "open"), ("line 14", "in quotes", '"open"')),
    Mistake("a text that does not end", spec('"open"', '"open'), ("line 14", "with a quote")),
    Mistake("10^-5", spec("1e-5", "10^-5"), ("not TOML", "line 22", "1e-6")),
    Mistake("a key twice", spec("silos = 4", "silos = 4\nsilos = 5"), ("silos", "once only")),
    Mistake(
        "[curve] twice", spec(text=SPEC.replace("[[curve]]", "[curve]")), ("line", "[[curve]]")
    ),
    Mistake("clock.rate", private_line("clock = { rate = [0.5] }"), ('"rate" in clock', '"rates"')),
    Mistake(
        "clock.x", private_line("clock = { x = 1 }"), ('"x" in clock', "rates, asleep, by, wait")
    ),
    Mistake(
        "share without until", private_line("share = { fraction = 0.5 }"), ("share.until", "takes")
    ),
    Mistake(
        "delay without kind", private_line("delay = { rounds = 5 }"), ("delay.kind", "required")
    ),
    Mistake(
        "a flat clock.asleep", private_line("clock = { asleep = [3, 11] }"), ("[[3, 101]]", "got 3")
    ),
    Mistake(
        "baseline is the label of a sweep",
        spec(text=SWEEP + '\n[figure]\nbaseline = "LDP"\n'),
        ("figure.baseline", "'LDP'", *LABELS),
    ),
    Mistake(
        "a claim about the label of a sweep",
        spec(text=SWEEP + STATEMENT),
        ("figure.statement.below", '"LDP"', *LABELS),
    ),
    Mistake(
        "--set by a number of a curve",
        spec("", "", "--set", "curve.0.epsilon=2.0"),
        ("--set", '"0"', '"open"', '"LDP"'),
    ),
    Mistake(
        "run with the spec of a deployment", spec(text=REHEARSAL), ('"federation"', "rehearse")
    ),
    Mistake("--memory 40", spec("", "", "--memory", 40), ("memory_limit is 40 bytes", "--memory")),
    Mistake("rehearse: one silo twice", rehearse("n=a.csv", "n=b.csv"), ("n twice", "b.csv")),
    Mistake("rehearse: no kind", rehearse("n=a.csv"), ("columns[0].kind", "'age'", "category")),
    Mistake(
        "a log: reward_range upside down", log("reward_range = [1, 0]"), ("low < high", "[1, 0]")
    ),
    Mistake("results of a log", log(then="results"), ("kept", "values.json", "no regret")),
    Mistake("report of a log", log(then="report"), ("kept", "values.json", "no regret")),
    Mistake("merge of a log", log(then="merge"), ("kept", "values.json", "no regret")),
    Mistake("a log: wrong propensities", log(propensity=0.9), ("do not trust", "1.11"), code=0),
    Mistake("a log: right propensities", log(), ("value",), code=0, never=("do not trust", "top")),
    Mistake("a log: top = all actions", log("top = 3"), ("top = 3", "smaller"), code=0),
    Mistake("merge without the first part", merge_a_gap, ("below 4", "2 from 0 on"), code=0),
    Mistake("plan --write over a spec", overwritten, ("--write", "s.toml", "exists", "name")),
    Mistake("merge(text)", merge_of_one_text, ("parts", "['part0']")),
    Mistake('replicates = "5:10"', range_as_text, ("replicates", "'5:10'", "(5, 10)")),
    Mistake(
        "paired_difference of the baseline",
        with_results(lambda results, _: results.paired_difference("alone")),
        ("'alone'", "baseline", "second label"),
    ),
    Mistake(
        "plot(curves=[no label])",
        with_results(lambda results, _: results.plot(curves=["x7"])),
        ("'x7'", '"open"', '"LDP"', '"alone"'),
        ("matplotlib",),
    ),
    Mistake("a certificate: None", certificate(None), ("None", "a table")),
    Mistake("a certificate: {}", certificate({}), ("{}", '"claimed"')),
    Mistake("a certificate: a curve", certificate({"certificate": {}}), ('data["certificate"]',)),
    Mistake(
        "a certificate: all JSON", certificate({"curves": [{}]}), ('["curves"][i]["certificate"]',)
    ),
    Mistake("a certificate: no JSON", certificate("{"), ("no certificate", "truncated")),
    Mistake(
        "largest_weight alone", weight_without_reward, ("largest_weight", "largest_reward", "2")
    ),
    Mistake("audit of equal data", audit_of_equal_data, ("neighbour", "equal", "replace")),
]
