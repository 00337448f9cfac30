"""Certificates of linear systems, computed from the plan and the problem.

A plan holds the numbers that parties execute, such as the standard deviations of noise. Its claim
states what these numbers do not show: the budget, the relation, the participations of a user, the
source of the proof. `certify` adds the claim and the exact epsilon to a plan ("seals" the plan).
`account` computes the certificate of a sealed plan. The exact epsilon always comes from the noise
in the plan, and never from the claim.

The relation defines which data sets are neighbours: with *replace* one user's record is replaced by
any other record, with *zero-out* it is replaced by zeros, which is a weaker guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fastfed._system import account
from fastfed.bandits.assemble import Mechanism, Noise
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory
from fastfed.privacy.account import (
    Claim,
    NoRelease,
    PrivacyEvent,
    event_epsilon,
    exact_guarantee,
    released,
    sealed,
)
from fastfed.privacy.certificate import (
    FLOATS_CAVEAT,
    LARGE_DELTA,
    NOISE_BITS_CAVEAT,
    REALS_CAVEAT,
    SECURE_SUM_CAVEAT,
    SIMULATION_CAVEAT,
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    Side,
    SideCertificate,
    no_privacy,
    nothing_sent,
)
from fastfed.privacy.mechanisms.amplification import AmplifiedTree
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.bit_counts import BitCounts
from fastfed.privacy.mechanisms.joint_dp import NestedNoise
from fastfed.privacy.mechanisms.local_gaussian import LocalGaussian
from fastfed.privacy.mechanisms.reward_release import RewardRelease
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.user_bit import UserBits
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.releases.gaussian_release import GaussianRelease
from fastfed.privacy.sensitivity import STREAMS
from fastfed.protocols.account import alike, bounds, fewer_reports, released_only, worst_part
from fastfed.protocols.plan import ClockedPlan, DelayedPlan, Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.schedule import PRIVATE_DETERMINANT
from fastfed.protocols.serverless import PeerPlan, PhasePlan

#: Conditions on the synchronisation rounds: known in advance, or dependent on data.
FIXED_SCHEDULE = Condition("synchronisation rounds do not depend on data", True)
DATA_SCHEDULE = Condition(FIXED_SCHEDULE.text, False)
NOISY_SUMS_SCHEDULE = Condition(
    "synchronisation rounds depend on data through noisy sums alone, which are accounted for", True
)
BITS_SCHEDULE = Condition(
    "synchronisation rounds depend on public contexts and on bits that users sent only", True
)
#: Caveat of a schedule that depends on raw data, for which no epsilon can be proven.
DATA_SCHEDULE_CAVEAT = (
    "no finite epsilon holds for the run: silos ask for a synchronisation when a determinant of "
    "raw data has grown, and everybody sees when (`fastfed audit feducb-schedule`)"
)
#: Caveat of silos whose actions depend on raw data of earlier users of the silo.
SAME_SILO_CAVEAT = (
    "users of the same silo are not protected from each other: actions for later users depend on "
    "raw data of earlier users"
)
#: Caveat of local rounds, whose actions depend on raw data of earlier users of the silo.
LOCAL_ROUNDS_CAVEAT = (
    "users of the same silo are not protected from each other: actions of local rounds depend on "
    "raw data of earlier users, also of shared rounds, and must not be shown outside of the silo"
)
#: Caveat of secret coins: an action may reveal whether the coin made its round shared or local.
COINS_CAVEAT = (
    "if released sums would choose a different action, the action reveals the coin of its user: "
    "actions of no round may be shown outside of the silo"
)
#: Caveat of a simulation that draws the noise of the sum over silos instead of each silo's noise.
DRAWN_ONCE_CAVEAT = (
    "this simulation draws the noise of the sum over silos at once, which has the law of that sum; "
    "the account is of what each silo releases, whose noise a deployment draws"
)
#: Condition of an agent that chooses for its users, and so sees the features of their actions.
PUBLIC_OFFER_CONDITION = Condition(
    "what is offered to a user is public, or the user's own device chooses (taken on trust)", True
)
#: Text of the condition of arms without contexts.
UNIT_VECTORS_TEXT = "every feature vector is the unit vector of an arm (the code makes it)"
#: Condition of rewards that arrive late: each record is in one batch, as without delays.
DELAYS_CONDITION = Condition(
    "when a reward arrives does not depend on data (each delay is drawn)", True
)
#: Condition of silos that close batches on separate clocks: as with fixed rounds of
#: synchronisation, the moments of reports do not depend on data.
CLOCKS_CONDITION = Condition(
    "when a silo reports does not depend on contexts or rewards (its clock is public)", True
)
#: Mechanisms of this package, whose conditions are derived from the plan and its claim. The claim
#: itself lists the conditions of a mechanism of another package.
_BUILTIN_MECHANISMS = (
    GaussianRelease,
    AmplifiedTree,
    BinomialTree,
    LocalGaussian,
    VectorBatches,
    UnequalBatches,
    NestedNoise,
    RewardRelease,
    SecureSum,
    UserBits,
)


# ---- Claims --------------------------------------------------------------------------------------


def claim_of_mechanism(
    mechanism: Mechanism,
    source: str,
    theory: Theory | None = None,
    by_silo: tuple[float, ...] = (),
    delta_by_silo: tuple[float, ...] = (),
) -> Claim:
    """Return the privacy claim of a plan whose noise comes from ``mechanism``.

    Parameters
    ----------
    mechanism : Mechanism
        The mechanism that calibrated the plan's noise.
    source : str
        Authors, year and theorem of the paper that proves the guarantee.
    theory : Theory, optional
        The theory of the plan. Its caveats about the regret bound become part of the claim.
    by_silo, delta_by_silo : tuple of float, optional
        The epsilon and the delta of each silo, if silos have different budgets.
    """
    if isinstance(mechanism, UnequalBatches):
        # The claim is the same for all batches: it does not state their sizes and noise.
        mechanism = mechanism.batches[0]
    conditions: tuple[Condition, ...] = ()
    if not isinstance(mechanism, _BUILTIN_MECHANISMS):
        conditions = tuple(c for c in mechanism.conditions() if not isinstance(c, ClaimCondition))
    has_remark = isinstance(mechanism, GaussianRelease) and not isinstance(mechanism, AmplifiedTree)
    return Claim(
        budget=mechanism.budget,
        source=source,
        calibration=getattr(mechanism, "calibration", "exact"),
        remark=getattr(mechanism, "remark", "") if has_remark else "",
        max_participations=(
            mechanism.max_participations
            if isinstance(mechanism, SecureSum)
            else getattr(mechanism, "returning", 1)
        ),
        honest_fraction=getattr(mechanism, "honest_fraction", 1.0),
        vector_scale=getattr(mechanism, "vector_scale", 1.0),
        by_silo=by_silo,
        delta_by_silo=delta_by_silo,
        silos_met=getattr(mechanism, "silos_met", 1),
        conditions=conditions,
        caveats=theory.caveats if theory is not None else (),
    )


def certify(
    plan: Plan, problem: ProblemSpec, theory: Theory, noise: Noise | None, source: str
) -> tuple[Plan, Certificate]:
    """Add the privacy claim to a plan, and compute its certificate.

    Parameters
    ----------
    plan : Plan
        The plan, from `assemble`.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    theory : Theory
        The theory that the plan was made with.
    noise : Noise or None
        The noise that the plan was made with. Only its budget, relation, participations and
        conditions are used. With None the plan claims no privacy.
    source : str
        Authors, year and theorem of the paper that proves the guarantee.

    Returns
    -------
    plan : Plan
        The plan with its claim and the exact epsilon of its noise.
    certificate : Certificate
        The certificate of this plan.
    """
    if noise is None:
        claim = Claim(source=source, caveats=theory.caveats)
    else:
        claim = claim_of_mechanism(
            noise.mechanism, source, theory, noise.silo_epsilon, noise.silo_delta
        )
    plan = sealed(replace(plan, privacy=claim))
    return plan, account(plan, problem)


# ---- Certificates --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumptions:
    """Conditions under which the computed epsilon holds for a run, and whether they hold.

    Parameters
    ----------
    schedule : Condition
        Synchronisation rounds do not depend on raw data: they are known in advance, or depend only
        on noisy sums or on bits that users sent.
    released_only : Condition
        Actions depend on released statistics only.
    features, rewards : Condition
        Feature norms and rewards are bounded.
    once : Condition
        No record is served twice.
    environment : tuple of Condition
        Conditions on the environment, and on code of other packages that the plan uses.
    """

    schedule: Condition
    released_only: Condition
    features: Condition
    rewards: Condition
    once: Condition
    environment: tuple[Condition, ...]

    @classmethod
    def of(cls, plan: Plan, problem: ProblemSpec) -> Assumptions:
        """Return the assumptions of a plan that is run on a problem, and whether they hold."""
        clip, (feature, reward) = plan.clip, bounds(plan)
        low, high = problem.reward_range or (float("-inf"), float("inf"))
        rewards_bounded = clip is not None or (low >= -1.0 and high <= 1.0)
        bounded_how = "clipped" if clip is not None else "as the environment gives them"
        return cls(
            schedule=_schedule_condition(plan),
            released_only=Condition(_actions_text(plan), released_only(plan)),
            features=Condition(
                f"feature norms <= {feature:g} ({bounded_how})",
                clip is not None or problem.features_bounded,
            ),
            rewards=Condition(
                f"rewards bounded by {reward:g} in absolute value ({bounded_how})", rewards_bounded
            ),
            once=Condition("no record is served twice", problem.multiplicity == 1),
            environment=_environment_conditions(plan, problem),
        )

    @property
    def all(self) -> tuple[Condition, ...]:
        """Assumptions on the run, followed by assumptions on the environment."""
        return (*self.about_run, *self.environment)

    @property
    def about_run(self) -> tuple[Condition, ...]:
        """Assumptions on the run. If one fails, only the claims in ``Certificate.also`` hold."""
        return (self.schedule, self.released_only, self.features, self.rewards, self.once)

    @property
    def about_data(self) -> tuple[Condition, ...]:
        """Assumptions that every claim about the releases needs: all except ``released_only``.

        Claims about one record ("item") do not need ``released_only``: they hold even if actions
        depend on raw data.
        """
        return (self.schedule, self.features, self.rewards, self.once, *self.environment)


def _environment_conditions(plan: Plan, problem: ProblemSpec) -> tuple[Condition, ...]:
    """Return the conditions of the guarantee that the plan itself does not enforce.

    They are about the environment, arms, delays, clocks and the plan's score function. Each says
    whether it holds.
    """
    return (
        *problem.conditions,
        *((Condition(UNIT_VECTORS_TEXT, problem.arms),) if plan.arms else ()),
        *((DELAYS_CONDITION,) if isinstance(plan, DelayedPlan) else ()),
        *((CLOCKS_CONDITION,) if isinstance(plan, ClockedPlan) else ()),
        *((plan.score.condition,) if plan.score is not None else ()),
    )


def _actions_text(plan: Plan) -> str:
    """Return the text of the condition that actions depend on released statistics only.

    The text differs for plans in which users send bits and for plans with local rounds.
    """
    if plan.flips and not plan.counts_ones:
        return "actions depend on public contexts and on bits that users sent only"
    if plan.own is not None:
        shared_rounds = f"1 to {plan.share_until}"
        local_rounds = "later"
        if plan.own.mixed:
            shared_rounds, local_rounds = f"some of 1 to {plan.share_until}", "own"
        return (
            f"actions of shared rounds, {shared_rounds}, depend on released statistics "
            f"only, and nothing of {local_rounds} rounds is released"
        )
    return "actions depend on released statistics only (lazy play, or B = 1)"


def _schedule_condition(plan: Plan) -> Condition:
    """Return the condition that synchronisation rounds do not depend on raw data."""
    if plan.trigger is None:
        return FIXED_SCHEDULE
    if plan.flips:
        return BITS_SCHEDULE
    return NOISY_SUMS_SCHEDULE if plan.trigger.kind == PRIVATE_DETERMINANT else DATA_SCHEDULE


@account.register
def _of_plan(plan: Plan, problem: ProblemSpec) -> Certificate:
    """Return the certificate of a plan for linear bandits, with noise from seeded streams.

    The main claim is about one user. Its status is

    - "none" if the schedule depends on raw data,
    - "proven" if epsilon is finite and all assumptions hold,
    - "conditional" if epsilon is finite and all assumptions hold, except some on the environment or
      on a score function,
    - "unproven" otherwise.

    If nothing leaves a silo, the assumptions on the run, such as the schedule, are not needed.

    The certificate's ``also`` lists further claims about the same releases. Some are weaker claims
    that hold for this run. Others are "conditional" claims, which would hold if an assumption held.
    If silos have different budgets, the main claim is for the silo with the weakest guarantee, and
    ``also`` has one claim for each budget. If users send their messages themselves, ``also`` has
    the guarantee towards observers other than the one in the main claim. If silos send messages,
    ``also`` has the guarantee towards users of the same silo.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    # The first event is that of all releases. Further events are of groups of silos.
    events = released(plan)
    assert events is not None
    if claim.budget is None:
        return _certificate_without_claim(plan, problem, claim, events[0])
    top, protocol, budget = events[0], plan.protocol, claim.budget
    noise_std = _noise_stds(plan, top)
    claimed = Guarantee(budget.epsilon, budget.delta)
    epsilon = event_epsilon(top)
    is_finite = math.isfinite(epsilon)
    exact = exact_guarantee(top, budget.delta)
    assumed, lazy = Assumptions.of(plan, problem), released_only(plan)
    unit = "reward" if budget.unit == "reward" else "user"
    trust = (PUBLIC_OFFER_CONDITION,) if protocol.senders == "users" else ()
    release_conditions = (*trust, *claim.conditions, *top.conditions())
    # `silent`: nothing leaves a silo, so the guarantee needs no assumption about the run.
    silent = isinstance(top, NoRelease) and protocol.senders == "silos"
    # `covered`: the exact epsilon holds for this run, up to conditions on the environment.
    covered = is_finite and (silent or all(c.holds for c in assumed.about_run))
    proven = covered and all(c.holds for c in assumed.environment)
    data_assumptions_hold = all(c.holds for c in assumed.about_data)
    # The status of a further claim whose epsilon is finite.
    status = "proven" if data_assumptions_hold else "conditional"

    def side(unit: str, model: str, source: str = claim.source) -> SideCertificate:
        """Return a claim about the same releases for the given unit and trust model.

        Budget, relation and exact epsilon are those of the main claim.
        """
        return SideCertificate(
            unit=unit,
            relation=budget.relation,
            model=model,
            claimed=claimed,
            exact=exact,
            status=status if is_finite else "unproven",
            noise_std=noise_std,
            conditions=(*assumed.about_data, *release_conditions),
            source=source,
        )

    sides = []
    if silent:
        pass
    elif not lazy:
        sides.append(
            side("item", f"{protocol.model}; neighbours differ in one realised pair (x, y)")
        )
    elif is_finite and not covered:
        sides.append(side(unit, protocol.model))
    if plan.own is not None:
        sides.append(_local_rounds_claim(plan, budget.relation, assumed))
    # With local rounds no claim holds towards users of the same silo, who see actions that depend
    # on raw data.
    if lazy and protocol.senders == "silos" and plan.own is None and not plan.flips:
        sides.append(
            side(
                unit,
                "joint differential privacy against users of the same silo",
                "zhou-chowdhury-2024, Appendix G.3 (Algorithm 8)",
            )
        )
    for side_guarantee in _side_guarantees(plan, top):
        sides.append(
            SideCertificate(
                unit=unit if lazy else "item",
                relation=budget.relation,
                model=side_guarantee.model,
                claimed=None,
                exact=Guarantee(side_guarantee.epsilon, budget.delta),
                status=status,
                noise_std=noise_std,
                conditions=(*assumed.about_data, *trust, *side_guarantee.conditions),
                source=side_guarantee.source,
            )
        )
    # If silos report on separate clocks, the main claim is for the silos with the most reports.
    # Add one claim for each smaller number of reports.
    for (reports, silos), event in zip(fewer_reports(plan).items(), events[1:], strict=False):
        count_text = "with 1 report" if reports == 1 else f"with {reports} reports"
        sides.append(
            SideCertificate(
                unit=unit,
                relation=budget.relation,
                model=f"{protocol.model}; users of {_silo_names(silos)}, {count_text}",
                claimed=claimed,
                exact=Guarantee(event_epsilon(event), budget.delta),
                status=status,
                noise_std=event.noise_stds,
                conditions=(*assumed.about_data, *event.conditions()),
                source="docs/clocks.md, Privacy",
            )
        )
    # One claim for each distinct budget of silos.
    silos_by_budget = alike(claim.silo_budgets) if claim.by_silo else {}
    for ((budget_epsilon, delta), silos), event in zip(
        silos_by_budget.items(), events[1:], strict=False
    ):
        epsilon = event_epsilon(event)
        sides.append(
            SideCertificate(
                unit=unit if lazy else "item",
                relation=budget.relation,
                model=f"{protocol.model}; users of {_silo_names(silos)}",
                claimed=Guarantee(budget_epsilon, delta),
                exact=Guarantee(epsilon, delta) if math.isfinite(epsilon) else None,
                status=status if math.isfinite(epsilon) else "unproven",
                noise_std=event.noise_stds,
                conditions=(*assumed.about_data, *event.conditions()),
                source="zhou-chowdhury-2024, Definition 2.1",
            )
        )
    conditions = (*assumed.all, *release_conditions)
    if silent:
        conditions = tuple(c for c in conditions if c.holds or c in assumed.environment)
    raw_schedule = not assumed.schedule.holds and not silent
    return Certificate(
        unit=unit,
        relation=budget.relation,
        model=protocol.model,
        claimed=claimed,
        exact=exact if covered else None,
        status="none"
        if raw_schedule
        else "proven"
        if proven
        else "conditional"
        if covered
        else "unproven",
        noise_std=noise_std,
        conditions=conditions,
        caveats=(
            *((DATA_SCHEDULE_CAVEAT,) if raw_schedule else ()),
            *_caveats(plan, problem, claim, epsilon),
        ),
        source=claim.source,
        also=tuple(sides),
    )


def _silo_names(silos: tuple[int, ...]) -> str:
    """Return the text "silo 3" or "silos 3, 4"."""
    return f"silo{'s' if len(silos) > 1 else ''} {', '.join(str(i) for i in silos)}"


def _local_rounds_claim(plan: Plan, relation: str, assumed: Assumptions) -> SideCertificate:
    """Return the claim that users of local rounds have epsilon = 0, as their data stay in the silo.

    ``relation`` is the relation of neighbouring data sets, and ``assumed`` the plan's assumptions.
    """
    # The users' records enter no sum that is sent, so features and rewards need not be bounded.
    conditions = (assumed.schedule, assumed.once, *assumed.environment)
    assert plan.own is not None
    local_rounds = f"after round {plan.share_until}"
    if plan.own.mixed and not plan.own.secret:
        local_rounds += ", and in rounds before it that the public rule leaves out"
    return SideCertificate(
        unit="user",
        relation=relation,
        model=f"{plan.protocol.model}; users of local rounds, {local_rounds}",
        claimed=None,
        exact=Guarantee(0.0, 0.0),
        status="proven" if all(c.holds for c in conditions) else "conditional",
        noise_std={},
        conditions=conditions,
        source="docs/own-rounds.md, Privacy",
    )


def _certificate_without_claim(
    plan: Plan, problem: ProblemSpec, claim: Claim, top: PrivacyEvent
) -> Certificate:
    """Return the certificate of a plan whose claim states no budget.

    Such a plan has no privacy, or it sends nothing. ``claim`` still states the source and the
    caveats. ``top`` is the privacy event of all releases, which an accountant turns into an
    epsilon.
    """
    if plan.policy == "random":
        text = "nothing is learned, so nothing is disclosed: there is nothing to protect"
        return nothing_sent(claim.source, model="local: nobody is trusted", caveats=(text,))
    if isinstance(top, NoRelease) and plan.protocol.senders == "silos":
        caveats = (SAME_SILO_CAVEAT, *claim.caveats)
        certificate = nothing_sent(claim.source, model=PROTOCOLS["silo-ldp"].model, caveats=caveats)
        environment = _environment_conditions(plan, problem)
        status = "proven" if all(c.holds for c in environment) else "conditional"
        return msgspec.structs.replace(certificate, status=status, conditions=environment)
    return no_privacy(claim.source, caveats=claim.caveats)


def _noise_stds(plan: Plan, top: PrivacyEvent) -> dict[str, float]:
    """Return the standard deviations of the noise, by the name of the sum that gets the noise.

    Each is for one draw of noise, which a driver adds to a user's message, a batch or a tree node.
    ``top`` is the privacy event of all releases.
    """
    if isinstance(top, LocalGaussian):
        return dict(zip(STREAMS, plan.user_std.parts, strict=True))
    return top.noise_stds


def _side_guarantees(plan: Plan, top: PrivacyEvent) -> list[Side]:
    """Return guarantees of the plan's noise towards observers that the main claim does not name.

    In a secure sum the observers are colluding silos. If a shuffler counts the bits of users, the
    observer is the shuffler. If users send their messages to a single agent, the observers are the
    agent or the other users. Other plans have no such guarantees. ``top`` is the privacy event of
    all releases.
    """
    if isinstance(top, SecureSum | BitCounts):
        return top.sides()
    if plan.protocol.senders != "users" or not isinstance(
        top, LocalGaussian | VectorBatches | UnequalBatches
    ):
        return []
    guarantees, exact = list(top.sides()), event_epsilon(top)
    if plan.protocol.shuffled and math.isfinite(exact):
        trusted = [c for c in top.conditions() if type(c) is Condition]
        guarantees.append(
            Side(
                "joint: other users see actions only, and keep what they know of their own "
                "noise to themselves",
                "chowdhury-zhou-2022, Section 2: a shuffle model's guarantee is one of these too",
                exact,
                tuple(trusted),
            )
        )
    return guarantees


def _caveats(plan: Plan, problem: ProblemSpec, claim: Claim, epsilon: float) -> tuple[str, ...]:
    """Return the caveats of a certificate, for a plan whose noise gives the exact ``epsilon``."""
    caveats = []
    budget, users = claim.required_budget, problem.silos * problem.horizon
    if not math.isfinite(epsilon):
        caveats.append("no finite epsilon is proven for this noise")
    elif epsilon > budget.epsilon:
        caveats.append("the claimed budget is not met; the exact value is what holds")
    if not released_only(plan):
        caveats.append(
            "raw data of a user choose the next actions of the same silo within a batch, a path "
            "that the paper's proof does not cover; lazy = true closes it"
        )
        caveats.append(SAME_SILO_CAVEAT)
    if plan.own is not None:
        caveats.append(LOCAL_ROUNDS_CAVEAT)
        if plan.own.secret:
            caveats.append(COINS_CAVEAT)
    if plan.drawn_once:
        caveats.append(DRAWN_ONCE_CAVEAT)
    if problem.multiplicity > 1:
        caveats.append(
            f"one record can be served up to {problem.multiplicity} times: a user is not one round"
        )
    if budget.delta * users >= 1.0:
        caveats.append(
            f"delta = {budget.delta:g} {LARGE_DELTA} {users} users: it allows the full disclosure "
            "of some of them, and certifies almost nothing"
        )
    # The proofs hold exactly for messages of bits. Proofs for real numbers ignore that drivers
    # round them to floats.
    number_caveat = (
        NOISE_BITS_CAVEAT
        if plan.protocol.bits
        else SECURE_SUM_CAVEAT
        if plan.protocol.masked
        else FLOATS_CAVEAT
    )
    # Whether a user's bit is flipped is decided by comparing integers, so nothing is rounded.
    number_caveats = () if plan.flips else (number_caveat,)
    return (*caveats, *claim.caveats, SIMULATION_CAVEAT, *number_caveats, *problem.notes)


@account.register
def _of_peers(plan: PeerPlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate of a federation without a server.

    Each part of the plan is a separate federation: one clique of silos with one of the clique's
    estimators. The certificate is that of the part with the largest epsilon, with a caveat about
    the silos that read messages.
    """
    certificate = _of_plan(worst_part(plan).plan, problem)
    if certificate.claimed is None:
        return certificate
    hops = "1 hop" if plan.gamma == 1 else f"{plan.gamma} hops"
    readers_text = f"messages are handed on {hops}: every silo on the way reads them"
    if len({part.clique for part in plan.parts}) > 1:
        readers_text += ", silos of other cliques too"
    return msgspec.structs.replace(certificate, caveats=(*certificate.caveats, readers_text))


@account.register
def _of_phases(plan: PhasePlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate of a federation in phases, which protects all data of one client.

    A client is a silo. In each phase it sends one estimate.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    if claim.budget is None:
        return no_privacy(claim.source, caveats=claim.caveats)
    events: Any = released(plan)
    top, budget = events[0], claim.budget
    epsilon = event_epsilon(top)
    is_finite, conditions_hold = math.isfinite(epsilon), all(c.holds for c in problem.conditions)
    sends = not isinstance(top, NoRelease)
    return Certificate(
        unit="silo",
        relation="replace",
        model=plan.protocol.model if sends else "nothing leaves a client",
        claimed=Guarantee(budget.epsilon, budget.delta),
        exact=Guarantee(epsilon, budget.delta) if is_finite else None,
        status="none" if not is_finite else "proven" if conditions_hold else "conditional",
        noise_std=top.noise_stds,
        conditions=(
            Condition("when estimates are sent does not depend on data", True),
            Condition(
                "every client sends one estimate of each phase, whatever its data (taken on trust: "
                "a client that refuses bad input must send one all the same)",
                True,
            ),
            Condition("one person's data are at one client (taken on trust)", True),
            *problem.conditions,
            *top.conditions(),
        ),
        caveats=(
            *claim.caveats,
            SIMULATION_CAVEAT,
            *((REALS_CAVEAT,) if sends else ()),
            *problem.notes,
        ),
        source=claim.source,
    )
