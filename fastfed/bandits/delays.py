"""Rewards that arrive late in a simulation: the key ``delay`` (docs/delays.md)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fastfed._validate import InputError, choice, integer, number, show
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import Config, check_required
from fastfed.privacy.certificate import Condition
from fastfed.protocols.account import DELAYABLE
from fastfed.protocols.plan import DelayedPlan, Plan

if TYPE_CHECKING:
    from fastfed.bandits.fedlinucb import PrivateConfig

#: The keys of each kind of delay.
KINDS = {"constant": ("rounds",), "uniform": ("low", "high"), "geometric": ("mean",)}
#: Largest value of the keys of a delay, in rounds.
MAX_ROUNDS = 10**6
#: Probabilities of delays are multiples of 1 / UNITS.
UNITS = 2**53


class Delay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key ``delay``: how many rounds pass between an action and its reward.

    Delays are independent of each other and of everything else. With delay 0 a reward is known
    before the next round.

    Parameters
    ----------
    kind : {"constant", "uniform", "geometric"}
        The distribution.
    rounds : int, optional
        The delay of every reward, for "constant".
    low, high : int, optional
        The least and the largest delay, for "uniform". All integers in low..high are equally
        likely.
    mean : float, optional
        The mean delay, for "geometric": P(delay = k) = p (1 - p)^k with p = 1 / (1 + mean).
    deadline : int, optional
        A reward with a longer delay is lost. By default no reward is lost, except those that would
        arrive after the horizon.

    Raises
    ------
    InputError
        For an invalid value. The message names the key.
    """

    kind: str
    rounds: int | None = None
    low: int | None = None
    high: int | None = None
    mean: float | None = None
    deadline: int | None = None

    def __post_init__(self) -> None:
        choice("delay.kind", self.kind, list(KINDS))
        for kind, keys in KINDS.items():
            for key in keys:
                if (getattr(self, key) is None) == (kind == self.kind):
                    problem = "needs" if kind == self.kind else "has no"
                    raise InputError(f'delay of kind "{self.kind}" {problem} key {key}')
        for key in ("rounds", "low", "high", "deadline"):
            if getattr(self, key) is not None:
                integer(f"delay.{key}", getattr(self, key), at_least=0, at_most=MAX_ROUNDS)
        if self.low is not None and self.high is not None and self.high < self.low:
            raise InputError(f"delay.high must be >= delay.low = {self.low}, got {self.high}")
        if self.mean is not None:
            number("delay.mean", self.mean, at_least=0.0, at_most=float(MAX_ROUNDS))
        least = next((n for n in (self.rounds, self.low) if n is not None), 0)
        if self.deadline is not None and self.deadline < least:
            raise InputError(
                f"delay.deadline must be at least the least delay, {least} rounds, or every reward "
                f"is lost, got {self.deadline}"
            )

    def arrivals(self, horizon: int) -> np.ndarray:
        """Return the distribution of delays: 2^53 times P(delay <= k) for k = 0, 1, ..., last.

        The last k is at most ``horizon`` - 1. Rewards with a longer delay are lost, or arrive after
        the horizon. The values are integers in float64, see `DelayedPlan.arrivals`.
        """
        longest = horizon - 1 if self.deadline is None else min(self.deadline, horizon - 1)
        if self.mean is not None:
            # A longer delay has a probability below 2^-54, less than half a unit of the result.
            longest = min(longest, math.ceil(54.0 * math.log(2.0) * (1.0 + self.mean)))
            delays = np.arange(longest + 1)
            # P(delay > k) = (mean / (1 + mean))^(k + 1)
            log_late = math.log(self.mean / (1.0 + self.mean)) if self.mean else -math.inf
            # Integers up to 2^53, which a float64 holds exactly.
            return np.rint(-np.expm1((delays + 1) * log_late) * UNITS)
        low = self.rounds if self.low is None else self.low
        high = self.rounds if self.high is None else self.high
        assert low is not None and high is not None
        count = high - low + 1
        return np.array(
            [max(k - low + 1, 0) * UNITS // count for k in range(min(longest, high) + 1)],
            dtype=np.float64,
        )


class DelayConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve whose rewards may arrive late: the keys of `Config` and ``delay``.

    Parameters
    ----------
    delay : Delay, optional
        For example ``{ kind = "geometric", mean = 20 }``. By default a reward is known before the
        next round.
    """

    delay: Delay | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay is not None and self.reward_centre is not None:
            raise InputError(
                "delay needs a curve without reward_centre: the sum of squares of the constant "
                "feature, which gets no noise, would reveal how many rewards arrived"
            )


def check_private_delay(config: PrivateConfig) -> None:
    """Raise InputError if the privacy proof of a private curve with ``delay`` would not hold."""
    if config.protocol not in DELAYABLE:
        raise InputError(
            f"delay needs protocol {', '.join(DELAYABLE[1:-1])} or {DELAYABLE[-1]}: no privacy "
            f'account covers delays under "{config.protocol}"'
        )
    check_required(
        "delay",
        config,
        ("lazy", True, "actions must not depend on raw data"),
        ("returning", 1, "several rewards of one user could arrive in the same batch"),
        ("protects", "user", "contexts enter public sums when their rewards arrive"),
    )


def refuse_delay(delay: object) -> None:
    """Raise InputError if the key ``delay`` is given for a deployment, whose delays are real."""
    if delay is not None:
        raise InputError(
            "delay is a key of simulations: in a deployment a reward enters when it becomes known, "
            f"got {show(delay)}"
        )


def with_delay(plan: Plan, theory: Theory, delay: Delay | None) -> tuple[Plan, Theory]:
    """Return the plan and the theory of a curve with the key ``delay``.

    Parameters
    ----------
    plan : Plan
        The plan without delays.
    theory : Theory
        The theory of that plan.
    delay : Delay or None
        The key. With None, plan and theory are returned unchanged.

    Returns
    -------
    plan : Plan
        A `DelayedPlan` if there is a delay.
    theory : Theory
        The given radius and regularizer, with the further condition that the radius is proven for
        late rewards. Radius "direct" meets it, because its proof holds for any number of rewards up
        to M t after t rounds of M silos. Other radii fail it.
    """
    if delay is None:
        return plan, theory
    condition = Condition(
        'the radius is proven for rewards that arrive late (radius "direct", docs/delays.md)',
        plan.radius.direct,
    )
    theory = replace(theory, conditions=(*theory.conditions, condition))
    return DelayedPlan.of(plan, delay.arrivals(plan.horizon)), theory
