"""Whether the gate is right on this machine, now: `python -m gate.trials` from benches/.

Head against itself must pass every time; head with a planted slowdown, a wasted loop that makes one
part take about 1.3 times as long, must fail every time, and for that part. Plants are edits of a
copy of the checkout; nothing of the kind is in the package.
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
    """A wasted loop: where it goes, and a workload that it makes 1.3 times as slow."""

    file: str
    before: str
    after: str
    workload: str


PLANTS = {
    # Some of the products of the matrix with x are made again.
    "kernel": Plant(
        "fastfed/_kernels/src/ff_linalg.c",
        "        scratch[i] = dot(inverse + i * d, x, d);\n    double scale",
        "        scratch[i] = dot(inverse + i * d, x, d);\n"
        "    for (int64_t i = 0; i < d * 11 / 20; i++) {\n"
        '        __asm__ volatile("" ::: "memory");\n'
        "        scratch[i] = dot(inverse + i * d, x, d);\n    }\n    double scale",
        "kernel sherman_morrison d=57",
    ),
    # Some of the normals of fresh contexts are drawn again.
    "contexts": Plant(
        "fastfed/_kernels/src/ff_environment.c",
        "        ff_normals_f32(&s, k * free, p.normals);\n    /* One pass for the sums",
        "        ff_normals_f32(&s, k * free, p.normals);\n    if (free > 0)\n"
        "        ff_normals_f32(&s, k * free * 3 / 5, p.normals);\n    /* One pass for the sums",
        "bench sphere-k100-d10-ldp",
    ),
    # An empty loop in Python.
    "python": Plant(
        "fastfed/experts/baselines.py",
        "        kernels.to_weights(np.exp(weights, out=weights))\n",
        "        for _ in range(7400):\n            pass\n"
        "        kernels.to_weights(np.exp(weights, out=weights))\n",
        "system hedge",
    ),
}


def planted(plant: Plant, tree: Path) -> Path:
    """A copy of the checkout with a wasted loop."""
    builds.head_tree(tree)
    file = tree / plant.file
    text = file.read_text()
    if text.count(plant.before) != 1:
        sys.exit(f"{plant.file} has changed: the plant in {__file__} no longer fits")
    file.write_text(text.replace(plant.before, plant.after))
    return tree


def run(tree: Path | None, extra: list[str]) -> tuple[int, float, dict[str, Any]]:
    """One run of the gate against HEAD's own tree: exit status, seconds, figures."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "gate", "HEAD", "--json", str(found), *extra]
        if tree is not None:
            command += ["--tree", str(tree)]
        start = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not found.exists():
            sys.exit(done.stderr)
        return done.returncode, time.monotonic() - start, json.loads(found.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gate.trials", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="runs of each kind (10)")
    parser.add_argument("--kind", action="append", choices=["itself", *PLANTS], help="only these")
    parser.add_argument("--only", action="append", default=[], help="handed to the gate")
    parser.add_argument("--group", action="append", default=[], help="handed to the gate")
    said = parser.parse_args()
    extra = [word for name in said.only for word in ("--only", name)]
    extra += [word for name in said.group for word in ("--group", name)]
    right = True
    for kind in said.kind or ["itself", *PLANTS]:
        plant = PLANTS.get(kind)
        tree = builds.CACHE / "trees" / f"planted-{kind}-{os.getpid()}"
        if plant is not None:
            planted(plant, tree)
        good = 0
        for turn in range(said.runs):
            status, seconds, found = run(tree if plant else None, extra)
            failed = [line.rsplit(": ", 1)[0] for line in found["failures"]]
            named = plant is None or plant.workload in failed
            good += status == (plant is not None) and named
            ratios = sorted(row["ratio"] for row in found["rows"].values())
            ratio = found["rows"][plant.workload]["ratio"] if plant else ratios[-1]
            print(
                f"{kind} {turn + 1}: {'failed' if status else 'passed'} in {seconds:.0f} s; "
                f"ratio {ratio:.3f} ({'planted' if plant else 'the largest'}); "
                f"{', '.join(failed) or '-'}",
                flush=True,
            )
        shutil.rmtree(tree, ignore_errors=True)
        print(f"{kind}: right {good} of {said.runs}", flush=True)
        right = right and good == said.runs
    return not right


if __name__ == "__main__":
    sys.exit(main())
