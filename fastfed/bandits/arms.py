"""Arms without contexts: which keys a curve may set, and ranking by random draws.

Each of the K arms is the unit vector e_a in every round, so the sums of x x' are diagonal: they
count how often each arm was chosen. The direct confidence radius then consists of K confidence
sets, each for one coordinate of theta (docs/arms.md), and a private release adds noise to K counts
and K sums of rewards.

In a lazy federation nothing is learned between two synchronisations. All users in between would
get the same arm, because all have the same actions. A sieve is a rule that decides which arms may
be chosen without changing the proven regret bound. With a sieve, the arms that pass it are
therefore ranked by a random draw in each round: the estimate plus m' times the bonus times a
standard normal, with m' of `Config.ranking`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastfed._system import account
from fastfed._validate import InputError, show
from fastfed.bandits.problem import ProblemSpec
from fastfed.protocols.account import FOR_ARMS
from fastfed.protocols.plan import Plan
from fastfed.protocols.score import CoreScore, Score

if TYPE_CHECKING:
    from fastfed.bandits.system import System

#: Algorithms that may be used on arms without contexts.
ARMS_ALGORITHMS = (
    *("linucb", "local-linucb", "fedlinucb", "private-fedlinucb"),
    *("thompson", "random"),
)
#: The only value that a key may have on arms (None: it must not be set), and the reason.
FIXED_KEYS = {
    "radius": ("direct", "no other radius is proven for arms"),
    "calibration": ("exact", "no paper states constants for arms"),
    "layout": (None, "the sum of x x' is diagonal"),
    "reward_centre": (None, "no feature is constant"),
    "base_rates": (None, "no feature is constant"),
    "share": (None, "local rounds have no account for arms"),
    "delay": (None, "late rewards have no account for arms"),
    "clock": (None, "clocks of silos have no account for arms"),
}


def check_arms(algorithm: str, config: Any) -> None:
    """Raise InputError for an algorithm or a key that arms without contexts do not allow.

    Parameters
    ----------
    algorithm : str
        Id of the algorithm.
    config : Config
        The checked keys of the curve.
    """
    if algorithm not in ARMS_ALGORITHMS:
        raise InputError(
            f"{algorithm} needs contexts, and arms have none: use one of "
            f"{', '.join(ARMS_ALGORITHMS)}"
        )
    for key, (only_value, reason) in FIXED_KEYS.items():
        if (value := getattr(config, key, only_value)) != only_value:
            rule = f"must be {json.dumps(only_value)}" if only_value else "must be left out"
            raise InputError(f"{key} {rule} for arms, got {show(value)}: {reason}")
    if config.regularizer not in (None, "from-noise") and isinstance(config.regularizer, str):
        raise InputError(
            f'regularizer must be "from-noise" or a number for arms, got "{config.regularizer}"'
        )
    protocol = getattr(config, "protocol", "none")
    if protocol not in FOR_ARMS:
        private = [p for p in FOR_ARMS if p not in ("none", "agent")]
        raise InputError(
            f'protocol must be one of {", ".join(private)} for arms, got "{protocol}": it has no '
            "account for arms"
        )


def with_draws(system: System, problem: ProblemSpec) -> System:
    """Return the system, with a score that ranks the arms that pass the sieve by random draws.

    The top of this module explains the ranking. A system is returned unchanged if it is not lazy,
    has no sieve, has a score function that the user supplied, or has a policy other than "ucb".
    """
    plan: Plan = system.plan
    if not (plan.lazy and plan.sieve_growth and plan.score is None and plan.policy == "ucb"):
        return system
    plan = replace(plan, score=Score(CoreScore("normal_draws"), diagonal=True))
    return replace(system, plan=plan, certificate=account(plan, problem))
