"""The determinant rule: the compiled driver looks only when it may fire, and misses nothing.

The step driver takes the determinant in every round, so both play alike only if the bound on what a
determinant has grown by holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import ordinary_cases
from test_feducb_oracle import OPEN, SHARP, experiment, fast, readable, same, synchronised

import fastfed
from fastfed._random import SeededNoise
from fastfed.environments import Python, RewardDistribution
from fastfed.simulation.experiment import Experiment

D, ROUNDS, SILOS = 5, 220, 2


def lengths(draw: np.random.Generator, round: int) -> Any:
    return 10.0 ** draw.uniform(-4.0, 2.0)


#: Directions and lengths of one round's actions.
FEATURES = {
    "sphere": (D, lambda draw, t: 1.0),
    "over decades": (D, lengths),
    # V^{-1} stays as large as it was in what no action has.
    "in a plane": (2, lambda draw, t: 1.0),
    "tiny": (D, lambda draw, t: 1e-7),
    "longer and longer": (D, lambda draw, t: 1.05**t),
    "silent, then loud": (D, lambda draw, t: 0.0 if t < 90 else 30.0),
}


def world(name: str) -> Python:
    span, length = FEATURES[name]

    def function(seed: int, replicate: int, silo: int, round: int) -> tuple[Any, Any]:
        draw = np.random.default_rng([seed, replicate, silo, round])
        features = np.zeros((3, D))
        features[:, :span] = draw.normal(size=(3, span))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        return features * length(draw, round), draw.uniform(size=3)

    return Python(
        function=function, dimension=D, actions=3, reward=RewardDistribution("gaussian", 0.5)
    )


def make(name: str, communication: float, **keys: Any) -> Experiment:
    return experiment(world(name), silos=SILOS, horizon=ROUNDS, communication=communication, **keys)


def values(e: Experiment) -> np.ndarray:
    """(M, T): what the rule compares with D, of silos that never synchronise."""
    opened, plan = e.environment.open(e.seed, 0, SILOS), e.curves[0].system.plan
    found = np.zeros((SILOS, ROUNDS))
    for i in range(SILOS):
        silo = fastfed.parties.Silo(plan, i, SeededNoise(e.seed, 0))
        for t in range(1, ROUNDS + 1):
            features, _ = opened.round(i, t)
            silo.select(features)
            silo.observe(0.0)
            assert silo.trigger is not None
            found[i, t - 1] = silo.trigger.value
    return found


#: Laws of features that ordinary tests play by one rule.
FEW_LAWS = ("sphere", "in a plane")
RULES: dict[str, dict[str, Any]] = {
    "open": {**OPEN, "clip": False, "rho_min": 0.5},
    "small ridge": {**OPEN, "clip": False, "rho_min": 1e-6},
    "noisy": {**SHARP},
}


@pytest.mark.parametrize(
    ("name", "rule"),
    ordinary_cases(
        [(name, rule) for name in FEATURES for rule in RULES],
        lambda name, rule: name == "silent, then loud" or (rule == "noisy" and name in FEW_LAWS),
    ),
)
def test_it_fires_in_the_very_round_that_reaches_the_threshold(name, rule):
    """Lazy silos: features that are played do not depend on rewards before the first release."""
    grown = values(make(name, 1e30, **RULES[rule])).max(axis=0)
    best = np.maximum.accumulate(grown)
    reached = np.flatnonzero(np.diff(best, prepend=-np.inf) > 0) + 1
    reached = reached[grown[reached - 1] > 0]
    for round in {*reached[[0, len(reached) // 3, len(reached) // 2]], *reached[-3:]}:
        # D / n may round up.
        e = make(name, float(best[round - 1]) * (1.0 - 1e-15), **RULES[rule])
        assert synchronised(fast(e))[0] == round


@pytest.mark.parametrize(
    ("name", "rule", "lazy"),
    ordinary_cases(
        [(name, rule, lazy) for name in FEATURES for rule in RULES for lazy in (True, False)],
        # Three laws of features eagerly by one rule, and all rules, lazily too, in one of them.
        lambda name, rule, lazy: (
            name == "tiny" or ((rule, lazy) == ("open", False) and name in FEW_LAWS)
        ),
    ),
)
def test_the_drivers_fire_alike(name, rule, lazy):
    keys = {**RULES[rule], "lazy": lazy}
    whole = float(np.max(values(make(name, 1e30, **keys))))
    counts = []
    for share in (1e-4, 0.02, 0.3):
        e = make(name, max(whole * share, 1e-12), **keys)
        outcome = fast(e)
        same(outcome, readable(e))
        counts.append(len(synchronised(outcome)))
    assert counts[0] > 1 and counts[-1] >= 1
