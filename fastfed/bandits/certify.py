"""The certificate of a linear system: a function of its plan and of its problem.

`certify` seals a plan with a claim, which says nothing that the plan's numbers say themselves, and
`account` makes the certificate of the sealed plan. Relations of neighbouring data sets: *replace*
is bounded DP (substitution), *zero-out* its weaker cousin.
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
from fastfed.privacy.account import Claim, NoRelease, PrivacyEvent, event_epsilon, released, sealed
from fastfed.privacy.certificate import (
    DRAWS,
    FLOATS,
    LIMITS,
    REALS,
    SIMULATION,
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
from fastfed.privacy.mechanisms.joint_dp import NestedNoise
from fastfed.privacy.mechanisms.local_gaussian import LocalGaussian
from fastfed.privacy.mechanisms.reward_release import RewardRelease
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.releases.gaussian_release import GaussianRelease
from fastfed.protocols.account import alike, bounds, released_only, worst_part
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.schedule import PRIVATE_DETERMINANT
from fastfed.protocols.serverless import PeerPlan, PhasePlan

#: Conditions on the schedule of synchronisations: known in advance, or a function of data.
FIXED = Condition("synchronisation rounds do not depend on data", True)
BY_RAW_DATA = Condition(FIXED.text, False)
BY_NOISY_SUMS = Condition(
    "synchronisation rounds depend on data through noisy sums alone, which are accounted for", True
)
#: Caveat of a schedule that reads raw data: nothing can be proven.
RAW_SCHEDULE = (
    "no finite epsilon holds for the run: silos ask for a synchronisation when a determinant of "
    "raw data has grown, and everybody sees when (`fastfed audit feducb-schedule`)"
)
#: Caveat of silos that use raw data at once, which discloses them to later users.
SAME_SILO = (
    "users of the same silo are not protected from each other: raw data of one choose the actions "
    "of those who come next"
)
#: Caveat of own rounds, whose actions follow the raw data of a silo's earlier users.
OWN_ROUNDS = (
    "users of the same silo are not protected from each other: raw data of one, of a shared round "
    "too, choose the actions of own rounds, which must not be shown outside of the silo"
)
#: Caveat of secret coins: which sums chose an action tells how the coin fell.
COINS = (
    "the coin of a user shows in the action where released sums would choose another: actions of "
    "no round may be shown outside of the silo"
)
#: Caveat of a simulation that draws no silo's noise, only that of the sum.
DRAWN_ONCE = (
    "this simulation draws the noise of the sum over silos at once, which has the law of that sum; "
    "the account is of what each silo releases, whose noise a deployment draws"
)
#: Condition of an agent that chooses for its users, and so sees what they are offered.
PUBLIC_OFFER = Condition(
    "what is offered to a user is public, or the user's own device chooses (taken on trust)", True
)
#: Mechanisms whose conditions follow from the plan's numbers and claim; others bring their own.
_BUILTIN = (
    GaussianRelease,
    AmplifiedTree,
    BinomialTree,
    LocalGaussian,
    VectorBatches,
    UnequalBatches,
    NestedNoise,
    RewardRelease,
    SecureSum,
)


# ---- Claims --------------------------------------------------------------------------------------


def declared(
    mechanism: Mechanism,
    source: str,
    theory: Theory | None = None,
    by_silo: tuple[float, ...] = (),
    delta_by_silo: tuple[float, ...] = (),
) -> Claim:
    """The claim of a plan with this mechanism's noise: nothing that the plan's numbers say.

    Parameters
    ----------
    mechanism : Mechanism
        The mechanism that the plan's noise was calibrated by.
    source : str
        Author-year and theorem of the guarantee.
    theory : Theory, optional
        For its caveats about the regret bound.
    by_silo, delta_by_silo : tuple of float, optional
        Each silo's own epsilon, and its own delta.

    Returns
    -------
    Claim
    """
    own: tuple[Condition, ...] = ()
    if not isinstance(mechanism, _BUILTIN):
        own = tuple(c for c in mechanism.conditions() if not isinstance(c, ClaimCondition))
    plain = isinstance(mechanism, GaussianRelease) and not isinstance(mechanism, AmplifiedTree)
    return Claim(
        budget=mechanism.budget,
        source=source,
        calibration=getattr(mechanism, "calibration", "exact"),
        remark=getattr(mechanism, "remark", "") if plain else "",
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
        conditions=own,
        caveats=theory.caveats if theory is not None else (),
    )


def certify(
    plan: Plan,
    problem: ProblemSpec,
    theory: Theory,
    noise: Noise | None,
    source: str,
) -> tuple[Plan, Certificate]:
    """Seal a plan and make its certificate.

    Parameters
    ----------
    plan : Plan
        The plan, from `assemble`.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    theory : Theory
        The theory that the plan was made with.
    noise : Noise or None
        The noise that the plan was made with. Only its declarations are used: budget, relation,
        participations. None claims nothing.
    source : str
        Author-year and theorem of the guarantee.

    Returns
    -------
    plan : Plan
        The plan with its claim and the account of its own numbers.
    certificate : Certificate
    """
    if noise is None:
        claim = Claim(source=source, caveats=theory.caveats)
    else:
        claim = declared(noise.mechanism, source, theory, noise.silo_epsilon, noise.silo_delta)
    plan = sealed(replace(plan, privacy=claim))
    return plan, account(plan, problem)


# ---- Certificates --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumptions:
    """Conditions that the accounting of one release assumes of the run.

    Parameters
    ----------
    schedule : Condition
        Synchronisation rounds are known in advance, or read noisy sums alone.
    released_only : Condition
        Actions depend on released statistics alone.
    features, rewards : Condition
        Norms and rewards are bounded.
    once : Condition
        No record is served twice.
    environment : tuple of Condition
        Conditions on the environment, and on code of other packages in this run.
    """

    schedule: Condition
    released_only: Condition
    features: Condition
    rewards: Condition
    once: Condition
    environment: tuple[Condition, ...]

    @classmethod
    def of(cls, plan: Plan, problem: ProblemSpec) -> Assumptions:
        """Assumptions of a plan on a problem, and whether they hold."""
        clip, (feature, reward) = plan.clip, bounds(plan)
        low, high = problem.reward_range or (float("-inf"), float("inf"))
        bounded = clip is not None or (low >= -1.0 and high <= 1.0)
        where = "clipped" if clip is not None else "as the environment gives them"
        return cls(
            schedule=_schedule(plan),
            released_only=Condition(_what_actions_read(plan), released_only(plan)),
            features=Condition(
                f"feature norms <= {feature:g} ({where})",
                clip is not None or problem.features_bounded,
            ),
            rewards=Condition(
                f"rewards bounded by {reward:g} in absolute value ({where})", bounded
            ),
            once=Condition("no record is served twice", problem.multiplicity == 1),
            environment=_environment_conditions(plan, problem),
        )

    @property
    def all(self) -> tuple[Condition, ...]:
        """Assumptions on the run, then those on the environment."""
        return (*self.about_run, *self.environment)

    @property
    def about_run(self) -> tuple[Condition, ...]:
        """Assumptions on the run. If one fails, the proof is of another claim, under ``also``."""
        return (self.schedule, self.released_only, self.features, self.rewards, self.once)

    @property
    def about_data(self) -> tuple[Condition, ...]:
        """Assumptions of every claim about the release, whatever it protects."""
        return (self.schedule, self.features, self.rewards, self.once, *self.environment)


def _environment_conditions(plan: Plan, problem: ProblemSpec) -> tuple[Condition, ...]:
    """Conditions on the environment, and on the score function if the plan has one."""
    return (*problem.conditions, *((plan.score.condition,) if plan.score is not None else ()))


def _what_actions_read(plan: Plan) -> str:
    """The condition that no raw data choose what is released."""
    if plan.own is not None:
        which = f"1 to {plan.share_until}"
        later = "later"
        if plan.own.mixed:
            which, later = f"some of 1 to {plan.share_until}", "own"
        return (
            f"actions of shared rounds, {which}, depend on released statistics "
            f"only, and nothing of {later} rounds is released"
        )
    return "actions depend on released statistics only (lazy play, or B = 1)"


def _schedule(plan: Plan) -> Condition:
    """The condition on the schedule, and whether it holds."""
    if plan.trigger is None:
        return FIXED
    return BY_NOISY_SUMS if plan.trigger.kind == PRIVATE_DETERMINANT else BY_RAW_DATA


@account.register
def _of_plan(plan: Plan, problem: ProblemSpec) -> Certificate:
    """The certificate of one linear system, with its noise from seeded streams.

    The top is the user-level claim: proven where every assumption holds, conditional where only
    one about the environment or a score fails, "none" where raw data make the schedule, else
    unproven. Under ``also`` stands what holds beside it: weaker claims, and as "conditional" what
    would hold under an assumption that this run breaks. Where silos have budgets of their own, the
    top is that of the weakest, and others follow. A system of users or of an agent says what the
    same noise guarantees towards others; else, what users of one silo learn about each other.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    found = released(plan)
    assert found is not None
    if claim.budget is None:
        return _unclaimed(plan, problem, claim, found[0])
    top, protocol, budget = found[0], plan.protocol, claim.budget
    noise_std = _noise_stds(plan, top)
    claimed = Guarantee(budget.epsilon, budget.delta)
    epsilon = event_epsilon(top)
    known = math.isfinite(epsilon)
    exact = Guarantee(epsilon, budget.delta) if known else None
    assumed, lazy = Assumptions.of(plan, problem), released_only(plan)
    unit = "reward" if budget.unit == "reward" else "user"
    trust = (PUBLIC_OFFER,) if protocol.senders == "users" else ()
    met = (*trust, *claim.conditions, *top.conditions())
    # Where nothing leaves a silo nothing has to be assumed; users of one silo are not protected.
    silent = isinstance(top, NoRelease) and protocol.senders == "silos"
    # The account is of what this run does; conditions state what it assumes of the environment.
    covered = known and (silent or all(c.holds for c in assumed.about_run))
    proven = covered and all(c.holds for c in assumed.environment)
    kept = all(c.holds for c in assumed.about_data)
    # The status of a side claim whose value is known.
    status = "proven" if kept else "conditional"

    def side(unit: str, model: str, source: str = claim.source) -> SideCertificate:
        """A weaker claim about the same release."""
        return SideCertificate(
            unit=unit,
            relation=budget.relation,
            model=model,
            claimed=claimed,
            exact=exact,
            status=status if known else "unproven",
            noise_std=noise_std,
            conditions=(*assumed.about_data, *met),
            source=source,
        )

    also = []
    if silent:
        pass
    elif not lazy:
        also.append(
            side("item", f"{protocol.model}; neighbours differ in one realised pair (x, y)")
        )
    elif known and not covered:
        also.append(side(unit, protocol.model))
    # Where rounds are own, users of the same silo see what raw data choose.
    if plan.own is not None:
        also.append(_of_own_rounds(plan, budget.relation, assumed))
    if lazy and protocol.senders == "silos" and plan.own is None:
        also.append(
            side(
                unit,
                "joint differential privacy against users of the same silo",
                "zhou-chowdhury-2024, Appendix G.3 (Algorithm 8)",
            )
        )
    for other in _side_guarantees(plan, top):
        also.append(
            SideCertificate(
                unit=unit if lazy else "item",
                relation=budget.relation,
                model=other.model,
                claimed=None,
                exact=Guarantee(other.epsilon, budget.delta),
                status=status,
                noise_std=noise_std,
                conditions=(*assumed.about_data, *trust, *other.conditions),
                source=other.source,
            )
        )
    budgets = alike(claim.silo_budgets) if claim.by_silo else {}
    for ((asked, delta), silos), own in zip(budgets.items(), found[1:], strict=False):
        epsilon = event_epsilon(own)
        who = f"silo{'s' if len(silos) > 1 else ''} {', '.join(str(i) for i in silos)}"
        also.append(
            SideCertificate(
                unit=unit if lazy else "item",
                relation=budget.relation,
                model=f"{protocol.model}; users of {who}",
                claimed=Guarantee(asked, delta),
                exact=Guarantee(epsilon, delta) if math.isfinite(epsilon) else None,
                status=status if math.isfinite(epsilon) else "unproven",
                noise_std=own.noise_stds,
                conditions=(*assumed.about_data, *own.conditions()),
                source="zhou-chowdhury-2024, Definition 2.1",
            )
        )
    conditions = (*assumed.all, *met)
    if silent:
        conditions = tuple(c for c in conditions if c.holds or c in assumed.environment)
    none = not assumed.schedule.holds and not silent
    return Certificate(
        unit=unit,
        relation=budget.relation,
        model=protocol.model,
        claimed=claimed,
        exact=exact if covered else None,
        status="none" if none else "proven" if proven else "conditional" if covered else "unproven",
        noise_std=noise_std,
        conditions=conditions,
        caveats=(
            *((RAW_SCHEDULE,) if none else ()),
            *_caveats(plan, problem, claim, epsilon),
        ),
        source=claim.source,
        also=tuple(also),
    )


def _of_own_rounds(plan: Plan, relation: str, assumed: Assumptions) -> SideCertificate:
    """The side claim of users of own rounds: nothing that leaves a silo is a function of them."""
    # Nothing is assumed of their records, which enter no sum that is sent.
    conditions = (assumed.schedule, assumed.once, *assumed.environment)
    assert plan.own is not None
    which = f"after round {plan.share_until}"
    if plan.own.mixed and not plan.own.secret:
        which += ", and in rounds before it that the public rule leaves out"
    return SideCertificate(
        unit="user",
        relation=relation,
        model=f"{plan.protocol.model}; users of own rounds alone, {which}",
        claimed=None,
        exact=Guarantee(0.0, 0.0),
        status="proven" if all(c.holds for c in conditions) else "conditional",
        noise_std={},
        conditions=conditions,
        source="docs/own-rounds.md, Privacy",
    )


def _unclaimed(plan: Plan, problem: ProblemSpec, claim: Claim, top: PrivacyEvent) -> Certificate:
    """The certificate of a system without a claim: it has no privacy, or sends nothing."""
    if plan.policy == "random":
        text = "nothing is learned, so nothing is disclosed: there is nothing to protect"
        return nothing_sent(claim.source, model="local: nobody is trusted", caveats=(text,))
    if isinstance(top, NoRelease) and plan.protocol.senders == "silos":
        caveats = (SAME_SILO, *claim.caveats)
        stated = nothing_sent(claim.source, model=PROTOCOLS["silo-ldp"].model, caveats=caveats)
        environment = _environment_conditions(plan, problem)
        status = "proven" if all(c.holds for c in environment) else "conditional"
        return msgspec.structs.replace(stated, status=status, conditions=environment)
    return no_privacy(claim.source, caveats=claim.caveats)


def _noise_stds(plan: Plan, top: PrivacyEvent) -> dict[str, float]:
    """Noise as drivers add it: of one user's message, of a batch's bits, or of one node."""
    if isinstance(top, LocalGaussian):
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, plan.user_std.parts, strict=True))
    return top.noise_stds


def _side_guarantees(plan: Plan, top: PrivacyEvent) -> list[Side]:
    """Guarantees of the same noise towards others than the claim is about: of a single agent's
    users, and of a silo whose peers all collude."""
    if isinstance(top, SecureSum):
        return top.sides()
    if plan.protocol.senders != "users" or not isinstance(
        top, LocalGaussian | VectorBatches | UnequalBatches
    ):
        return []
    others, exact = list(top.sides()), event_epsilon(top)
    if plan.protocol.shuffled and math.isfinite(exact):
        trusted = [c for c in top.conditions() if type(c) is Condition]
        others.append(
            Side(
                "joint: other users see actions only, and keep what they know of their own "
                "noise to themselves",
                "chowdhury-zhou-2022, Section 2: a shuffle model's guarantee is one of these too",
                exact,
                tuple(trusted),
            )
        )
    return others


def _caveats(plan: Plan, problem: ProblemSpec, claim: Claim, found: float) -> tuple[str, ...]:
    """Caveats of a claimed plan whose exact epsilon is ``found``."""
    caveats = []
    budget, users = claim.asked, problem.silos * problem.horizon
    if not math.isfinite(found):
        caveats.append("no finite epsilon is proven for this noise")
    elif found > budget.epsilon:
        caveats.append("the claimed budget is not met; the exact value is what holds")
    if not released_only(plan):
        caveats.append(
            "raw data of a user choose the next actions of the same silo within a batch, a path "
            "that the paper's proof does not cover; lazy = true closes it"
        )
        caveats.append(SAME_SILO)
    if plan.own is not None:
        caveats.append(OWN_ROUNDS)
        if plan.own.secret:
            caveats.append(COINS)
    if plan.drawn_once:
        caveats.append(DRAWN_ONCE)
    if problem.multiplicity > 1:
        caveats.append(
            f"one record can be served up to {problem.multiplicity} times: a user is not one round"
        )
    if budget.delta * users >= 1.0:
        caveats.append(
            f"delta = {budget.delta:g} is not small against 1 / {users} users: it allows the "
            "full disclosure of some of them, and certifies almost nothing"
        )
    # Bits are integers on a wire as on paper; real numbers are not.
    machine = DRAWS if plan.protocol.bits else LIMITS if plan.protocol.masked else FLOATS
    return (*caveats, *claim.caveats, SIMULATION, machine, *problem.notes)


@account.register
def _of_peers(plan: PeerPlan, problem: ProblemSpec) -> Certificate:
    """The certificate of a federation without a server: its costliest part, and who reads it."""
    stated = _of_plan(worst_part(plan).plan, problem)
    if stated.claimed is None:
        return stated
    hops = "1 hop" if plan.gamma == 1 else f"{plan.gamma} hops"
    who = f"messages are handed on {hops}: every silo on the way reads them"
    if len({part.clique for part in plan.parts}) > 1:
        who += ", silos of other cliques too"
    return msgspec.structs.replace(stated, caveats=(*stated.caveats, who))


@account.register
def _of_phases(plan: PhasePlan, problem: ProblemSpec) -> Certificate:
    """The certificate of a federation in phases: everything that one client holds."""
    claim = plan.privacy or Claim(source=plan.protocol.source)
    if claim.budget is None:
        return no_privacy(claim.source, caveats=claim.caveats)
    found: Any = released(plan)
    top, budget = found[0], claim.budget
    epsilon = event_epsilon(top)
    known, kept = math.isfinite(epsilon), all(c.holds for c in problem.conditions)
    sends = not isinstance(top, NoRelease)
    return Certificate(
        unit="silo",
        relation="replace",
        model=plan.protocol.model if sends else "nothing leaves a client",
        claimed=Guarantee(budget.epsilon, budget.delta),
        exact=Guarantee(epsilon, budget.delta) if known else None,
        status="none" if not known else "proven" if kept else "conditional",
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
        caveats=(*claim.caveats, SIMULATION, *((REALS,) if sends else ()), *problem.notes),
        source=claim.source,
    )
