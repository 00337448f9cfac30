"""Regret of the default release and of every other one, at the same guarantee.

`scripts/releases` prints the table of docs/releases.md; test_default_release.py fails where another
release loses 5 % less than the default.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import fastfed

#: Federations: silos, rounds, dimension, epsilon and batches. The first is the one of the issue;
#: then batches that grow, and noise that is large or small beside the data of a batch.
SIZES: dict[str, dict[str, Any]] = {
    "M 20, T 2000, d 5, eps 1, B 25": {"silos": 20, "epsilon": 1.0, "batch_size": 25},
    "M 20, T 2000, d 5, eps 1, growing": {"silos": 20, "epsilon": 1.0},
    "M 20, T 2000, d 5, eps 0.2, B 10": {"silos": 20, "epsilon": 0.2, "batch_size": 10},
    "M 5, T 2000, d 5, eps 1, B 100": {"silos": 5, "epsilon": 1.0, "batch_size": 100},
    "M 100, T 1000, d 10, eps 5, B 10": {
        "silos": 100, "horizon": 1000, "dimension": 10, "epsilon": 5.0, "batch_size": 10,
        "replicates": 12,
    },
    "M 100, T 1000, d 10, eps 1, growing": {
        "silos": 100, "horizon": 1000, "dimension": 10, "epsilon": 1.0, "replicates": 12,
    },
}  # fmt: skip
#: One agent: rounds, epsilon and batches.
AGENTS: dict[str, dict[str, Any]] = {
    "T 5000, d 5, eps 1, B 1": {"epsilon": 1.0, "batch_size": 1},
    "T 5000, d 5, eps 5, B 1": {"epsilon": 5.0, "batch_size": 1},
    "T 5000, d 5, eps 1, B 20": {"epsilon": 1.0, "batch_size": 20},
    "T 5000, d 5, eps 5, B 100": {"epsilon": 5.0, "batch_size": 100},
    "T 5000, d 5, eps 5, growing": {"epsilon": 5.0, "batch_size": "growing"},
    "T 20000, d 5, eps 1, B 100": {"horizon": 20000, "epsilon": 1.0, "batch_size": 100},
}
#: Releases of each trust model that may have several.
RELEASES = {
    "central": ("tree", "honaker", "toeplitz", "buffered", "factorised"),
    "silo-ldp": ("tree", "honaker", "toeplitz", "buffered", "factorised"),
    "secure-sum": ("tree", "toeplitz", "factorised"),
    "shuffle-vector": ("tree", "flat"),
    "linucb-jdp": ("tree", "honaker", "toeplitz", "buffered", "factorised"),
}
REPLICATES = 24


@dataclass(frozen=True)
class Measured:
    """Group regret at the end of a setting, (mean, standard error), by release."""

    default: str  # the release that is chosen where a curve names none
    regret: dict[str, tuple[float, float]]

    @property
    def excess(self) -> float:
        """Regret of the default over that of the best release, less 1."""
        return self.regret[self.default][0] / min(mean for mean, _ in self.regret.values()) - 1.0


def settings() -> list[tuple[str, str]]:
    """(trust model, name of its sizes) of all settings."""
    return [
        (model, name) for model in RELEASES for name in (AGENTS if model == "linucb-jdp" else SIZES)
    ]


def measure(model: str, name: str) -> Measured:
    """Simulate one setting with every release that it admits."""
    agent = model == "linucb-jdp"
    keys = dict((AGENTS if agent else SIZES)[name])
    horizon, dimension = keys.pop("horizon", 5000 if agent else 2000), keys.pop("dimension", 5)
    silos, replicates = keys.pop("silos", 1), keys.pop("replicates", REPLICATES)
    keys |= {"algorithm": model} if agent else {"algorithm": "private-fedlinucb", "protocol": model}
    keys["delta"] = 1e-6
    world = {"kind": "fixed-set" if agent else "sphere", "dimension": dimension, "actions": 20}
    tables = []
    for release in (None, *RELEASES[model]):
        table = {"label": "default", **keys} if release is None else {
            "label": release, **keys, "release": release,
        }  # fmt: skip
        try:
            sizes = {"silos": silos, "horizon": horizon, "dimension": dimension}
            own = {k: v for k, v in table.items() if k not in ("label", "algorithm")}
            fastfed.make_system(keys["algorithm"], **sizes, **own)
        except fastfed.InputError:  # a factor of too many releases, a shuffled tree that grows
            continue
        tables.append(table)
    results = fastfed.simulate(
        world, curves=tables, silos=silos, horizon=horizon, replicates=replicates, checkpoints=1
    )
    final = {curve.label: curve.final() for curve in results.curves}
    regret = {label: (found["mean"], found["stderr"]) for label, found in final.items()}
    usual = regret.pop("default")
    # A curve that names the release which is its default is the same curve.
    return Measured(next(r for r, found in regret.items() if found == usual), regret)


def main(models: list[str]) -> None:
    """Print a row for each setting: the default's regret, then every release's."""
    for model, name in settings():
        if models and model not in models:
            continue
        found = measure(model, name)
        each = ", ".join(f"{r} {m:.0f} ± {se:.0f}" for r, (m, se) in found.regret.items())
        print(f"{model} | {name} | {found.default} | {each} | {found.excess:.1%}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
