"""The compiled driver evaluates the determinant rule only when it may fire, and never fires late.

The determinant rule makes a silo synchronise when its determinant has grown enough. The step driver
computes the determinant in every round. The compiled driver computes a cheap upper bound first, so
both drivers agree only if this bound on the growth holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import ordinary_cases
from test_feducb_oracle import (
    OPEN,
    SHARP,
    experiment,
    run_compiled,
    run_readable,
    same,
    synchronisation_rounds,
)

import fastfed
from fastfed._random import SeededNoise
from fastfed.environments import Python, RewardDistribution
from fastfed.simulation.experiment import Experiment

D, ROUNDS, SILOS = 5, 220, 2


def lengths(draw: np.random.Generator, round: int) -> Any:
    """Return a random length between 1e-4 and 100."""
    return 10.0 ** draw.uniform(-4.0, 2.0)


#: By name: the dimension that actions span, and the length of actions in round t.
FEATURES = {
    "sphere": (D, lambda draw, t: 1.0),
    "over decades": (D, lengths),
    # V^{-1} does not shrink in directions that no action has.
    "in a plane": (2, lambda draw, t: 1.0),
    "tiny": (D, lambda draw, t: 1e-7),
    "longer and longer": (D, lambda draw, t: 1.05**t),
    "silent, then loud": (D, lambda draw, t: 0.0 if t < 90 else 30.0),
}


def environment_named(name: str) -> Python:
    """Return an environment whose features have this span and these lengths."""
    span, length = FEATURES[name]

    def function(seed: int, replicate: int, silo: int, round: int) -> tuple[Any, Any]:
        """Return features that span the first coordinates, of random lengths, and means."""
        rng = np.random.default_rng([seed, replicate, silo, round])
        features = np.zeros((3, D))
        features[:, :span] = rng.normal(size=(3, span))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        return features * length(rng, round), rng.uniform(size=3)

    return Python(
        function=function, dimension=D, actions=3, reward=RewardDistribution("gaussian", 0.5)
    )


def make(name: str, communication: float, **keys: Any) -> Experiment:
    """Return an experiment in a named environment, with this communication parameter."""
    return experiment(
        environment_named(name), silos=SILOS, horizon=ROUNDS, communication=communication, **keys
    )


def values(e: Experiment) -> np.ndarray:
    """Return (M, T): values that the rule compares with D, for silos that never synchronise."""
    environment, plan = e.environment.open(e.seed, 0, SILOS), e.curves[0].system.plan
    rule_values = np.zeros((SILOS, ROUNDS))
    for i in range(SILOS):
        silo = fastfed.parties.Silo(plan, i, SeededNoise(e.seed, 0))
        for t in range(1, ROUNDS + 1):
            features, _ = environment.round(i, t)
            silo.select(features)
            silo.observe(0.0)
            assert silo.trigger is not None
            rule_values[i, t - 1] = silo.trigger.value
    return rule_values


#: Features that ordinary tests run with one rule.
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
def test_the_rule_fires_in_the_round_that_reaches_the_threshold(name, rule):
    """Silos are lazy, so chosen features do not depend on rewards before the first release."""
    largest_values = values(make(name, 1e30, **RULES[rule])).max(axis=0)
    running_maximum = np.maximum.accumulate(largest_values)
    record_rounds = np.flatnonzero(np.diff(running_maximum, prepend=-np.inf) > 0) + 1
    record_rounds = record_rounds[largest_values[record_rounds - 1] > 0]
    for round in {
        *record_rounds[[0, len(record_rounds) // 3, len(record_rounds) // 2]],
        *record_rounds[-3:],
    }:
        # The factor compensates for rounding up in D / n.
        e = make(name, float(running_maximum[round - 1]) * (1.0 - 1e-15), **RULES[rule])
        assert synchronisation_rounds(run_compiled(e))[0] == round


@pytest.mark.parametrize(
    ("name", "rule", "lazy"),
    ordinary_cases(
        [(name, rule, lazy) for name in FEATURES for rule in RULES for lazy in (True, False)],
        # Ordinary: three features with one rule and eager silos; all rules, eager and lazy, on one.
        lambda name, rule, lazy: (
            name == "tiny" or ((rule, lazy) == ("open", False) and name in FEW_LAWS)
        ),
    ),
)
def test_the_drivers_synchronise_in_the_same_rounds(name, rule, lazy):
    keys = {**RULES[rule], "lazy": lazy}
    largest_value = float(np.max(values(make(name, 1e30, **keys))))
    counts = []
    for share in (1e-4, 0.02, 0.3):
        e = make(name, max(largest_value * share, 1e-12), **keys)
        outcome = run_compiled(e)
        same(outcome, run_readable(e))
        counts.append(len(synchronisation_rounds(outcome)))
    assert counts[0] > 1 and counts[-1] >= 1
