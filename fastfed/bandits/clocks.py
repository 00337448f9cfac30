"""The key ``clock``: silos that serve users and close batches at different times (docs/clocks.md).

Time passes in ticks: one tick is a round of a simulation, or a moment in a deployment's calendar.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from fastfed._validate import InputError, choice, integer, number, show
from fastfed.bandits.own_rounds import SharingConfig, shared_batches
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, sieve_widths
from fastfed.bandits.system import check_required
from fastfed.protocols.account import CLOCKED
from fastfed.protocols.clocks import RULES, TICKS, USERS, Clocks
from fastfed.protocols.plan import ClockedPlan, Plan
from fastfed.protocols.schedule import Schedule

if TYPE_CHECKING:
    from fastfed.bandits.fedlinucb import PrivateConfig

#: Largest number of silos times ticks. Clocks store a few bytes for each silo in each tick.
MAX_TICKS = 2**27
#: Largest number of silos times ticks in a plan file, which each party reads whenever it starts.
MAX_DEPLOYED_TICKS = 2**24


class Clock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key ``clock``: in which ticks each silo serves a user, and when it closes a batch.

    Parameters
    ----------
    rates : tuple of float, optional
        Users per tick of silo 0, 1, ..., each above 0 and at most 1. Further silos have rate 1.
    asleep : tuple of tuple of int, optional
        Intervals (silo, first tick, last tick) in which a silo serves nobody and sends nothing. An
        interval (silo, first tick) has no end.
    by : {"users", "ticks"}
        The unit of the keys for batches, such as ``batch_size``: users that the silo has served, or
        ticks.
    wait : bool, default False
        True if no silo closes a batch before all silos can.

    Raises
    ------
    InputError
        For an invalid value. The message names the key.
    """

    rates: tuple[float, ...] = ()
    asleep: tuple[tuple[int, ...] | int, ...] = ()  # an int is refused below, with advice
    by: str = USERS
    wait: bool = False

    def __post_init__(self) -> None:
        for rate in self.rates:
            number("clock.rates", rate, above=0.0, at_most=1.0)
        for interval in self.asleep:
            if isinstance(interval, int) or len(interval) not in (2, 3):
                got = interval if isinstance(interval, int) else list(interval)
                raise InputError(
                    "clock.asleep must hold [silo, first tick, last tick], or [silo, first tick] "
                    f"for good, such as [[3, 101]], got {show(got)}"
                )
            integer("silo in clock.asleep", interval[0], at_least=0)
            first = integer("first tick in clock.asleep", interval[1], at_least=1)
            integer("last tick in clock.asleep", interval[-1], at_least=first)
        choice("clock.by", self.by, RULES)
        if self.wait and self.by == TICKS:
            raise InputError(
                'clock.wait needs clock.by "users": in a calendar no silo waits for another, got '
                f'"{self.by}"'
            )

    def clocks(self, schedule: Schedule, problem: ProblemSpec) -> Clocks:
        """Return the clocks of all silos of a problem.

        Batch k of a silo ends when the silo has counted ``schedule.ends[k]`` users (or ticks, if
        ``by`` is "ticks").
        """
        silos, horizon = problem.silos, problem.horizon
        if len(self.rates) > silos:
            raise InputError(
                f"clock.rates must hold at most one number for each of {silos} silos, got "
                f"{len(self.rates)}"
            )
        # __post_init__ has refused integers; this is for the type checker.
        intervals = [i for i in self.asleep if not isinstance(i, int)]
        for silo, *_ in intervals:
            integer("silo in clock.asleep", silo, at_least=0, at_most=silos - 1)
        if silos * horizon > MAX_TICKS:
            raise InputError(
                f"clock needs silos times horizon of at most {MAX_TICKS}, got {silos * horizon}: "
                "choose a shorter horizon or fewer silos"
            )
        return Clocks(
            silos=silos,
            horizon=horizon,
            ends=tuple(int(n) for n in schedule.ends),
            rates=self.rates,
            asleep=tuple(
                (silo, first, min((*last, horizon)))
                for silo, first, *last in intervals
                if first <= horizon
            ),
            by=self.by,
            wait=self.wait,
        )


class ClockConfig(SharingConfig, frozen=True, kw_only=True):
    """Keys of a curve whose silos may have separate clocks: keys of `SharingConfig` and ``clock``.

    Parameters
    ----------
    clock : Clock, optional
        For example ``{ rates = [0.05], asleep = [[3, 101]] }``. By default all silos serve one user
        in each round and synchronise together.
    """

    clock: Clock | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clock is None:
            return
        for key in ("share", "delay"):
            if getattr(self, key) is not None:
                raise InputError(f"clock needs a curve without {key}: no proof covers both")
        if self.radius != "direct" or not self.lazy:
            raise InputError(
                'clock needs radius "direct" and lazy = true: no proof covers others, got radius '
                f'"{self.radius}", lazy = {str(self.lazy).lower()}'
            )


def check_private_clock(config: PrivateConfig) -> None:
    """Raise InputError if the proofs of a private curve with ``clock`` would not hold."""
    if config.protocol not in CLOCKED:
        raise InputError(
            f"clock needs protocol {' or '.join(CLOCKED[1:])}, in which the server adds up the "
            "latest report of each silo, which may be from an earlier exchange, got "
            f'"{config.protocol}"'
        )
    check_required(
        "clock",
        config,
        ("returning", 1, "batches of different silos close at different times"),
        ("protects", "user", "public contexts are not implemented"),
        ("noise_draws", "silo", "silos report at different times"),
    )
    if config.protocol == "silo-ldp" and config.release == "tree":
        raise InputError(
            'clock needs reports of prefix sums: use protocol "silo-ldp-prefix" with release '
            '"tree", or a different release with "silo-ldp"'
        )


def refuse_clock(clock: object) -> None:
    """Raise InputError if the key ``clock`` is given for parties that a program calls itself.

    Such parties have no clock to follow. ``clock`` is the key, or None.
    """
    if clock is not None:
        raise InputError(
            "clock is a key of simulations and of plan files (`fastfed deploy new`): a program "
            f"that calls the parties itself has no clock to follow, got {show(clock)}"
        )


def deployed_clocks(config: ClockConfig, problem: ProblemSpec) -> Clocks:
    """Return the clocks of a deployment's silos. A tick is a moment of the deployment's calendar.

    Raises
    ------
    InputError
        If silos would wait for each other, if a silo never reports, or if there are too many ticks.
    """
    assert config.clock is not None
    if config.clock.wait:
        raise InputError(
            "clock.wait must be false in a deployment: without the key clock all silos close their "
            "batches together"
        )
    if problem.silos == 1:
        raise InputError("clock needs two silos or more: a single silo waits for nobody")
    if problem.silos * problem.horizon > MAX_DEPLOYED_TICKS:
        raise InputError(
            f"clock needs silos times system.horizon of at most {MAX_DEPLOYED_TICKS} in a "
            f"deployment, got {problem.silos * problem.horizon}: choose longer ticks"
        )
    clocks = config.clock.clocks(shared_batches(config, problem), problem)
    for silo, reports in enumerate(clocks.reports_of_silos):
        if not reports:
            raise InputError(
                f"clock must let each silo close a batch within system.horizon, got no batch of "
                f"silo {silo}"
            )
    return clocks


def clocks_of(config: ClockConfig, problem: ProblemSpec) -> Clocks | None:
    """Return the clocks of a curve's silos, or None if the curve has no key ``clock``."""
    if config.clock is None:
        return None
    return config.clock.clocks(shared_batches(config, problem), problem)


def reported_batches(config: ClockConfig, problem: ProblemSpec) -> Schedule:
    """Return the schedule for which a curve's noise is calibrated: a release for each silo report.

    Without the key ``clock`` all silos report together, after each batch. With it, silos make
    different numbers of reports, and the schedule has one release for each report of the silo that
    reports most often.

    Parameters
    ----------
    config : ClockConfig
        Keys of the curve, which is one system in an experiment.
    problem : ProblemSpec
        Sizes: silos M, rounds T, dimension d.

    Raises
    ------
    InputError
        If the batches or the clock do not fit the problem.
    """
    schedule, clocks = shared_batches(config, problem), clocks_of(config, problem)
    return schedule if clocks is None else clocks.schedule(schedule)


def with_clock(plan: Plan, theory: Theory, clocks: Clocks | None) -> tuple[Plan, Theory]:
    """Return the plan of a curve with its clocks added, and the curve's theory.

    Parameters
    ----------
    plan : Plan
        The plan without clocks. A release is a report of one silo.
    theory : Theory
        The theory of the views. A view is the sum of the latest reports of all silos, see
        `noise_distributions.of_views`.
    clocks : Clocks or None
        The clocks of all silos. If None, ``plan`` is returned unchanged.

    Returns
    -------
    plan : Plan
        If there are clocks, a `ClockedPlan`.
    theory : Theory
        ``theory``, unchanged.
    """
    if clocks is None:
        return plan, theory
    clocked = ClockedPlan.of(plan, clocks)
    if clocked.widths:
        clocked = replace(clocked, widths=sieve_widths(clocked, theory))
    return clocked, theory
