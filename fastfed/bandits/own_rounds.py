"""Own rounds: some rounds are shared, and later ones stay in their silo (docs/own-rounds.md).

A shared round's action is chosen from released sums alone, and its (x, y) enters the silo's batch.
An own round's action may use all that its silo holds, and nothing of the round leaves it. Here are
the key ``share`` of a curve, and from it the schedule of releases and the numbers of the plan.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.bandits.system import Config
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import OwnRounds, Plan, Schedule
from fastfed.protocols.protocol import REPLACE, Protocol
from fastfed.protocols.score import UCB

#: Rules of own rounds, protocols that allow them.
RULES = ("gls",)
SHAREABLE = ("none", "silo-ldp", "silo-ldp-prefix", "central", "secure-sum")
#: Deviations Delta of a silo's theta from the common one that its rewards choose among.
GRID = (0.08, 0.16, 0.32, 0.64)
#: Factor on the posterior's standard deviation in the score of an own round.
BONUS = 0.5
#: The last release serves all own rounds, but counts for so many times the rounds before it.
LAST = 3
#: Least scale of rewards' noise in the posterior, which has none without any.
LEAST_SCALE = 1e-3


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rounds are shared; all later ones are a silo's own.

    Parameters
    ----------
    until : int
        T_s >= 1, the last shared round, below the horizon. It always ends with a release.
    fraction : float, default 1
        Share of the rounds up to ``until`` that are shared: 1, all of them.
    rule : {"gls"}
        How own rounds choose: by a posterior from the released sums of all other silos and the
        silo's own raw data.

    Raises
    ------
    InputError
        For a bad value, which it names.
    """

    until: int
    fraction: float = 1.0
    rule: str = "gls"

    def __post_init__(self) -> None:
        integer("share.until", self.until, at_least=1)
        number("share.fraction", self.fraction)
        if self.fraction != 1.0:
            raise InputError(
                "share.fraction must be 1: all rounds up to share.until are shared, which costs "
                f"least regret, got {self.fraction:g}"
            )
        choice("share.rule", self.rule, RULES)


class SharingConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve that may have own rounds: those of `Config` and ``share``.

    Parameters
    ----------
    share : Share, optional
        ``{ until = T_s }``: later rounds are own. By default all rounds are shared.
    """

    share: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is None:
            return
        if self.radius != "direct" or not self.lazy or self.score != UCB:
            raise InputError(
                'share needs radius "direct", lazy = true and score "ucb": shared rounds are '
                f'played from released sums alone, got radius "{self.radius}", lazy = '
                f'{str(self.lazy).lower()}, score "{self.score}"'
            )
        if self.clip is False:
            raise InputError("share needs clip = true, which the privacy of shared rounds rests on")


def shared_batches(config: Config, problem: ProblemSpec) -> Schedule:
    """Rounds of synchronisation: those of the config, or within shared rounds alone.

    Parameters
    ----------
    config : Config
        The curve's keys, of which ``share`` may be none.
    problem : ProblemSpec
        Sizes.

    Returns
    -------
    Schedule
        With ``share`` its last release is after round ``share.until``.

    Raises
    ------
    InputError
        If a batch is longer than what is shared, or ``until`` is not below the horizon.
    """
    share = share_of(config)
    if share is None:
        return config.batches(problem)
    if share.until >= problem.horizon:
        raise InputError(
            f"share.until must be below horizon ({problem.horizon}), got {share.until}: without "
            "share all rounds are shared"
        )
    try:
        within = config.batches(replace(problem, horizon=share.until))
    except InputError as error:
        raise InputError(f"{error} (share.until stands for the horizon of releases)") from None
    rounds = tuple(int(n) for n in within.ends) if within.releases else ()
    if rounds[-1:] != (share.until,):
        rounds = (*rounds, share.until)
    return Schedule.at(rounds, problem.horizon)


def share_of(config: Config) -> Share | None:
    """The key ``share``, which configs of other systems do not have."""
    found: Share | None = getattr(config, "share", None)
    return found


def factor_horizon(config: Config, problem: ProblemSpec, schedule: Schedule) -> int:
    """Horizon that the optimal factor is made for: own rounds outgrow the last release."""
    if share_of(config) is None:
        return problem.horizon
    return min(problem.horizon, (1 + LAST) * int(schedule.ends[-1]))


def trusting(protocol: Protocol, share: Share | None) -> Protocol:
    """The protocol whose model says that the own silo's users are trusted, where rounds are own."""
    if share is None or protocol.noise_by == "none":
        return protocol
    if protocol.id not in SHAREABLE:
        raise InputError(
            f"share needs protocol {', '.join(SHAREABLE[1:-1])} or {SHAREABLE[-1]}, where a silo "
            f'is trusted with its own data, got "{protocol.id}"'
        )
    model = protocol.model.replace(
        "other silos and users are not", "other silos and their users are not"
    )
    return replace(protocol, model=f"{model}; the own silo and its users are")


def with_own_rounds(
    plan: Plan,
    theory: Theory,
    config: Config,
    variance_factor: float = 0.0,
    noises: float = 0.0,
) -> tuple[Plan, Theory]:
    """The plan with own rounds after ``share.until``, and a theory that says what is not proven.

    Parameters
    ----------
    plan : Plan
        Of shared rounds.
    theory : Theory
        Of its radius.
    config : Config
        The curve's keys, of which ``share`` may be none.
    variance_factor : float, default 0
        Variance of one noise in the last release, in units of one node's.
    noises : float, default 0
        Noises that add up in a release.

    Returns
    -------
    plan : Plan
    theory : Theory
    """
    share = share_of(config)
    if share is None:
        return plan, theory
    std, silos = plan.noise_std, plan.silos
    if len(set(plan.noise_scale)) > 1:
        raise InputError("share needs one epsilon for all silos, got silo_epsilon")
    # A silo takes its own message off where it is part of the sum, and so its own noise.
    others = max(0.0, noises - 1.0) if plan.protocol.analyzer == REPLACE else noises
    tau, scale = plan.radius.tau, max(plan.radius.scale, LEAST_SCALE)
    variance = others * variance_factor * (std.bias**2 + (tau * std.off_diagonal) ** 2)
    spreads = tuple(delta**2 * (1.0 + 1.0 / max(1, silos - 1)) for delta in GRID)
    # Of every symmetric A the matrix R^2 A + D^2 A^2 + ridge I is positive definite from here on;
    # without noise A is positive semidefinite, and a little more than 0 will do.
    ridges = tuple(
        max(variance, 1.01 * scale**4 / (4.0 * s)) if variance else 1e-9 for s in spreads
    )
    own = OwnRounds(share.until, scale**2, float(plan.dimension), spreads, ridges, BONUS * scale)
    text = (
        f"every round is shared (here rounds after {share.until} are own, and the posterior that "
        f'rule "{share.rule}" plays by is a model)'
    )
    conditions = (*theory.conditions, Condition(text, False))
    return replace(plan, own=own), replace(theory, conditions=conditions)
