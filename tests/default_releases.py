"""Measure the regret of the default release and of every other release, at equal privacy.

`scripts/releases` prints the table of docs/releases.md. test_default_release.py fails where another
release has 5 % less regret than the default release.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import fastfed

#: Federations by silos, rounds, dimension, epsilon and batches. Batches are equal or growing; noise
#: is large or small compared with the data of a batch.
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
#: Single agents by rounds, dimension, epsilon and batches.
AGENTS: dict[str, dict[str, Any]] = {
    "T 5000, d 5, eps 1, B 1": {"epsilon": 1.0, "batch_size": 1},
    "T 5000, d 5, eps 5, B 1": {"epsilon": 5.0, "batch_size": 1},
    "T 5000, d 5, eps 1, B 20": {"epsilon": 1.0, "batch_size": 20},
    "T 5000, d 5, eps 5, B 100": {"epsilon": 5.0, "batch_size": 100},
    "T 5000, d 5, eps 5, growing": {"epsilon": 5.0, "batch_size": "growing"},
    "T 20000, d 5, eps 1, B 100": {"horizon": 20000, "epsilon": 1.0, "batch_size": 100},
}
#: Releases of each trust model that has several.
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
    """Final group regret in one setting, as (mean, standard error) by release."""

    default: str  # the release of a curve that names none
    regret: dict[str, tuple[float, float]]

    @property
    def excess(self) -> float:
        """Return the relative excess of the default release's regret over the smallest regret."""
        return self.regret[self.default][0] / min(mean for mean, _ in self.regret.values()) - 1.0


def settings() -> list[tuple[str, str]]:
    """Return (trust model, name of its sizes) for all settings."""
    return [
        (model, name) for model in RELEASES for name in (AGENTS if model == "linucb-jdp" else SIZES)
    ]


def measure(model: str, name: str) -> Measured:
    """Simulate one setting with every release that it supports."""
    is_agent = model == "linucb-jdp"
    keys = dict((AGENTS if is_agent else SIZES)[name])
    horizon, dimension = keys.pop("horizon", 5000 if is_agent else 2000), keys.pop("dimension", 5)
    silos, replicates = keys.pop("silos", 1), keys.pop("replicates", REPLICATES)
    keys |= (
        {"algorithm": model} if is_agent else {"algorithm": "private-fedlinucb", "protocol": model}
    )
    keys["delta"] = 1e-6
    world = {"kind": "fixed-set" if is_agent else "sphere", "dimension": dimension, "actions": 20}
    tables = []
    for release in (None, *RELEASES[model]):
        table = {"label": "default", **keys} if release is None else {
            "label": release, **keys, "release": release,
        }  # fmt: skip
        try:
            sizes = {"silos": silos, "horizon": horizon, "dimension": dimension}
            system_keys = {k: v for k, v in table.items() if k not in ("label", "algorithm")}
            fastfed.make_system(keys["algorithm"], **sizes, **system_keys)
        except (
            fastfed.InputError
        ):  # too many releases to factorise, or growing batches in a shuffled tree
            continue
        tables.append(table)
    results = fastfed.simulate(
        world, curves=tables, silos=silos, horizon=horizon, replicates=replicates, checkpoints=1
    )
    final = {curve.label: curve.final() for curve in results.curves}
    regret = {
        label: (final_regret["mean"], final_regret["stderr"])
        for label, final_regret in final.items()
    }
    default_regret = regret.pop("default")
    # The default release has exactly the regret of the curve without a named release.
    return Measured(
        next(
            release_name
            for release_name, final_regret in regret.items()
            if final_regret == default_regret
        ),
        regret,
    )


def main(models: list[str]) -> None:
    """Print a row for each setting: regrets of all releases, the default and its excess."""
    for model, name in settings():
        if models and model not in models:
            continue
        measured = measure(model, name)
        regrets = ", ".join(
            f"{release_name} {mean:.0f} ± {stderr:.0f}"
            for release_name, (mean, stderr) in measured.regret.items()
        )
        print(
            f"{model} | {name} | {measured.default} | {regrets} | {measured.excess:.1%}", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
