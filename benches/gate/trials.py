"""Test the gate on this machine: run `python -m gate.trials` in benches/.

The gate must pass every time if head is compared with itself. It must fail every time if head has a
planted slowdown (a wasted loop that makes one workload take about 1.3 times as long), and it must
name this workload. Slowdowns are planted in a copy of the checkout, never in the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate import builds


@dataclass(frozen=True)
class Plant:
    """A wasted loop: an edit of one file, and a workload that it makes 1.3 times as slow."""

    file: str
    before: str
    after: str
    workload: str


def loop_before(file: str, line: str, iterations: int, workload: str) -> Plant:
    """Return the plant of an empty loop before a line of a C file of the core."""
    waste = (
        f"    for (int64_t waste = 0; waste < {iterations}; waste++)\n"
        '        __asm__ volatile("" ::: "memory");\n'
    )
    return Plant(f"fastfed/_kernels/src/{file}", line, waste + line, workload)


PLANTS = {
    # Wait in each choice on fixed sets, in each choice over pools, and in each block of coins.
    "fixed": loop_before(
        "ff_fixed.c",
        "    const factors f = {beta, gamma};\n    bound_all(&m, f, ranking, m.rank);",
        2200,
        "user set d=50",
    ),
    "pools": loop_before(
        "ff_policy.c",
        "    int64_t *cached = c->chosen && actions->quantised",
        4000,
        "user letor d=57 q=60",
    ),
    "coins": loop_before(
        "ff_coins.c",
        "    if (silos <= size) {\n        draw_rounds(",
        800,
        "user follow-the-leader m=10",
    ),
    # Compute some products of the matrix with x twice.
    "kernel": Plant(
        "fastfed/_kernels/src/ff_linalg.c",
        "        scratch[i] = dot(inverse + i * d, x, d);\n    double scale",
        "        scratch[i] = dot(inverse + i * d, x, d);\n"
        "    for (int64_t i = 0; i < d * 11 / 20; i++) {\n"
        '        __asm__ volatile("" ::: "memory");\n'
        "        scratch[i] = dot(inverse + i * d, x, d);\n    }\n    double scale",
        "kernel sherman_morrison d=57",
    ),
    # Draw some normals of fresh contexts twice.
    "contexts": Plant(
        "fastfed/_kernels/src/ff_environment.c",
        "        ff_normals_f32(&s, k * free, p.normals);\n    /* One pass for the sums",
        "        ff_normals_f32(&s, k * free, p.normals);\n    if (free > 0)\n"
        "        ff_normals_f32(&s, k * free * 3 / 5, p.normals);\n    /* One pass for the sums",
        "user sphere d=10",
    ),
    # Run an empty loop in Python.
    "python": Plant(
        "fastfed/experts/baselines.py",
        "        return ExpertChoice(0, None, np.full(self.plan.experts, 1.0 ",
        "        for _ in range(5800):\n            pass\n"
        "        return ExpertChoice(0, None, np.full(self.plan.experts, 1.0 ",
        "system hedge",
    ),
}


def planted(plant: Plant, tree: Path) -> Path:
    """Copy the checkout to ``tree``, plant a wasted loop there, and return ``tree``."""
    builds.head_tree(tree)
    file = tree / plant.file
    text = file.read_text()
    if text.count(plant.before) != 1:
        sys.exit(f"{plant.file} has changed: the plant in {__file__} no longer fits")
    file.write_text(text.replace(plant.before, plant.after))
    return tree


def run(tree: Path | None, extra: list[str]) -> tuple[int, float, dict[str, Any]]:
    """Compare a tree, or the checkout, with HEAD; return exit status, seconds and results."""
    with tempfile.TemporaryDirectory() as folder:
        json_file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "gate", "HEAD", "--json", str(json_file), *extra]
        if tree is not None:
            command += ["--tree", str(tree)]
        start = time.monotonic()
        process = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if not json_file.exists():
            sys.exit(process.stderr)
        return process.returncode, time.monotonic() - start, json.loads(json_file.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gate.trials", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="runs of each kind (10)")
    parser.add_argument("--kind", action="append", choices=["itself", *PLANTS], help="only these")
    parser.add_argument("--only", action="append", default=[], help="passed to the gate")
    parser.add_argument("--group", action="append", default=[], help="passed to the gate")
    options = parser.parse_args()
    extra = [word for name in options.only for word in ("--only", name)]
    extra += [word for name in options.group for word in ("--group", name)]
    all_right = True
    for kind in options.kind or ["itself", *PLANTS]:
        plant = PLANTS.get(kind)
        tree = builds.CACHE / "trees" / f"planted-{kind}-{os.getpid()}"
        if plant is not None:
            planted(plant, tree)
        right_runs = 0
        for turn in range(options.runs):
            status, seconds, results = run(tree if plant else None, extra)
            failed = [line.rsplit(": ", 1)[0] for line in results["failures"]]
            is_named = plant is None or plant.workload in failed
            right_runs += status == (plant is not None) and is_named
            ratios = sorted(row["ratio"] for row in results["rows"].values())
            ratio = results["rows"][plant.workload]["ratio"] if plant else ratios[-1]
            print(
                f"{kind} {turn + 1}: {'failed' if status else 'passed'} in {seconds:.0f} s; "
                f"ratio {ratio:.3f} ({'planted' if plant else 'the largest'}); "
                f"{', '.join(failed) or '-'}",
                flush=True,
            )
        shutil.rmtree(tree, ignore_errors=True)
        print(f"{kind}: right {right_runs} of {options.runs}", flush=True)
        all_right = all_right and right_runs == options.runs
    return not all_right


if __name__ == "__main__":
    sys.exit(main())
