"""The certificate of a linear system: a function of its plan and of the problem it is put to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fastfed._system import account
from fastfed.bandits.assemble import Mechanism, Noise
from fastfed.bandits.radius import Theory
from fastfed.bandits.setting import ProblemSpec
from fastfed.privacy.account import Claim, NoRelease, PrivacyEvent, event_epsilon, released, sealed
from fastfed.privacy.certificate import (
    DRAWS,
    FLOATS,
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
from fastfed.privacy.mechanisms.vector_batches import VectorBatches
from fastfed.privacy.releases.gaussian_release import GaussianRelease
from fastfed.protocols.account import alike, bounds, released_only, worst_part
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.phases import PhasePlan
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.trigger import PRIVATE_DETERMINANT

#: Who says when to synchronise.
FIXED = Condition("synchronisation rounds do not depend on data", True)
BY_RAW_DATA = Condition(FIXED.text, False)
BY_NOISY_SUMS = Condition(
    "synchronisation rounds depend on data through noisy sums alone, which are accounted for", True
)
#: Why that leaves nothing to prove.
RAW_SCHEDULE = (
    "no finite epsilon holds for the run: silos ask for a synchronisation when a determinant of "
    "raw data has grown, and everybody sees when (`fastfed audit feducb-schedule`)"
)
#: Whoever uses raw data at once shows them to those who come next.
SAME_SILO = (
    "users of the same silo are not protected from each other: raw data of one choose the actions "
    "of those who come next"
)
#: An agent that chooses for its users has seen what was offered to them.
PUBLIC_OFFER = Condition(
    "what is offered to a user is public, or the user's own device chooses (taken on trust)", True
)
#: Mechanisms whose words follow from the numbers and the claim; others bring conditions along.
_OWN = (GaussianRelease, AmplifiedTree, BinomialTree, LocalGaussian, VectorBatches, NestedNoise)


# ---- what is declared ----------------------------------------------------------------------------


def declared(
    mechanism: Mechanism,
    source: str,
    theory: Theory | None = None,
    by_silo: tuple[float, ...] = (),
) -> Claim:
    """The claim of a plan with this mechanism's noise: nothing that the plan's numbers say."""
    own: tuple[Condition, ...] = ()
    if not isinstance(mechanism, _OWN):
        own = tuple(c for c in mechanism.conditions() if not isinstance(c, ClaimCondition))
    plain = isinstance(mechanism, GaussianRelease) and not isinstance(mechanism, AmplifiedTree)
    return Claim(
        budget=mechanism.budget,
        source=source,
        calibration=getattr(mechanism, "calibration", "exact"),
        remark=getattr(mechanism, "remark", "") if plain else "",
        max_participations=getattr(mechanism, "returning", 1),
        honest_fraction=getattr(mechanism, "honest_fraction", 1.0),
        vector_scale=getattr(mechanism, "vector_scale", 1.0),
        by_silo=by_silo,
        conditions=own,
        caveats=theory.caveats if theory is not None else (),
    )


def certify(
    plan: Plan,
    setting: ProblemSpec,
    theory: Theory,
    noise: Noise | None,
    source: str,
) -> tuple[Plan, Certificate]:
    """The plan, sealed, and its certificate, which is made of the plan.

    ``noise`` is what the plan was made with, of which only what was declared is taken: budget,
    relation, how often a user takes part. None claims nothing. ``source``: the certificate's.
    """
    if noise is None:
        claim = Claim(source=source, caveats=theory.caveats)
    else:
        claim = declared(noise.mechanism, source, theory, noise.silo_epsilon)
    made = sealed(replace(plan, privacy=claim))
    return made, account(made, setting)


# ---- the certificate -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumptions:
    """What the accounting of one release assumes of the run."""

    schedule: Condition
    released_only: Condition
    features: Condition
    rewards: Condition
    once: Condition
    world: tuple[Condition, ...]  # of the environment, and of what others wrote for this run

    @classmethod
    def of(cls, plan: Plan, setting: ProblemSpec) -> Assumptions:
        clip, (feature, reward) = plan.clip, bounds(plan)
        low, high = setting.reward_range or (float("-inf"), float("inf"))
        bounded = clip is not None or (low >= -1.0 and high <= 1.0)
        where = "clipped" if clip is not None else "as the environment gives them"
        return cls(
            schedule=_schedule(plan),
            released_only=Condition(
                "actions depend on released statistics only (lazy play, or B = 1)",
                released_only(plan),
            ),
            features=Condition(
                f"feature norms <= {feature:g} ({where})",
                clip is not None or setting.features_bounded,
            ),
            rewards=Condition(
                f"rewards bounded by {reward:g} in absolute value ({where})", bounded
            ),
            once=Condition("no record is served twice", setting.multiplicity == 1),
            world=_world(plan, setting),
        )

    @property
    def all(self) -> tuple[Condition, ...]:
        return (*self.about_run, *self.world)

    @property
    def about_run(self) -> tuple[Condition, ...]:
        """Without one of these the proof is of another statement, which stands under ``also``."""
        return (self.schedule, self.released_only, self.features, self.rewards, self.once)

    @property
    def about_data(self) -> tuple[Condition, ...]:
        """Those that every statement about the release rests on, whatever it protects."""
        return (self.schedule, self.features, self.rewards, self.once, *self.world)


def _world(plan: Plan, setting: ProblemSpec) -> tuple[Condition, ...]:
    return (*setting.conditions, *((plan.score.condition,) if plan.score is not None else ()))


def _schedule(plan: Plan) -> Condition:
    if plan.trigger is None:
        return FIXED
    return BY_NOISY_SUMS if plan.trigger.kind == PRIVATE_DETERMINANT else BY_RAW_DATA


@account.register
def _of_plan(plan: Plan, setting: ProblemSpec) -> Certificate:
    """The certificate of one linear system, its noise taken from seeded streams.

    The top is the user-level claim: proven where every assumption holds, conditional where only
    one about the environment or a score fails, "none" where raw data make the schedule, else
    unproven. Under ``also`` stands what holds beside it: weaker statements, and as "conditional"
    what would hold under an assumption that this run breaks. Where silos have budgets of their
    own, the top is that of the weakest, and others follow. A system of users or of an agent says
    what the same noise is worth towards others; else, what users of one silo see of each other.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    found = released(plan)
    assert found is not None
    if claim.budget is None:
        return _unclaimed(plan, setting, claim, found[0])
    top, protocol, budget = found[0], plan.protocol, claim.budget
    noise_std = _noise_stds(plan, top)
    claimed = Guarantee(budget.epsilon, budget.delta)
    epsilon = event_epsilon(top)
    known = math.isfinite(epsilon)
    exact = Guarantee(epsilon, budget.delta) if known else None
    assumed, lazy = Assumptions.of(plan, setting), released_only(plan)
    trust = (PUBLIC_OFFER,) if protocol.senders == "users" else ()
    met = (*trust, *claim.conditions, *top.conditions())
    # Where nothing leaves a silo nothing has to be assumed; its own users it does not hide.
    silent = isinstance(top, NoRelease) and protocol.senders == "silos"
    # The account is of what this run does; of the world around it the conditions speak.
    covered = known and (silent or all(c.holds for c in assumed.about_run))
    proven = covered and all(c.holds for c in assumed.world)
    kept = all(c.holds for c in assumed.about_data)
    #: Of a side statement whose value is known.
    status = "proven" if kept else "conditional"

    def side(unit: str, model: str, source: str = claim.source) -> SideCertificate:
        """The same release as a weaker statement."""
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
        also.append(side("user", protocol.model))
    if lazy and protocol.senders == "silos":
        also.append(
            side(
                "user",
                "joint differential privacy against users of the same silo",
                "zhou-chowdhury-2024, Appendix G.3 (Algorithm 8)",
            )
        )
    for other in _beside(plan, top):
        also.append(
            SideCertificate(
                unit="user",
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
    for (asked, silos), own in zip(alike(claim.by_silo).items(), found[1:], strict=False):
        epsilon = event_epsilon(own)
        who = f"silo{'s' if len(silos) > 1 else ''} {', '.join(str(i) for i in silos)}"
        also.append(
            SideCertificate(
                unit="user" if lazy else "item",
                relation=budget.relation,
                model=f"{protocol.model}; users of {who}",
                claimed=Guarantee(asked, budget.delta),
                exact=Guarantee(epsilon, budget.delta) if math.isfinite(epsilon) else None,
                status=status if math.isfinite(epsilon) else "unproven",
                noise_std=own.noise_stds,
                conditions=(*assumed.about_data, *own.conditions()),
                source="zhou-chowdhury-2024, Definition 2.1",
            )
        )
    conditions = (*assumed.all, *met)
    if silent:
        conditions = tuple(c for c in conditions if c.holds or c in assumed.world)
    none = not assumed.schedule.holds and not silent
    return Certificate(
        unit="user",
        relation=budget.relation,
        model=protocol.model,
        claimed=claimed,
        exact=exact if covered else None,
        status="none" if none else "proven" if proven else "conditional" if covered else "unproven",
        noise_std=noise_std,
        conditions=conditions,
        caveats=(
            *((RAW_SCHEDULE,) if none else ()),
            *_caveats(plan, setting, claim, epsilon),
        ),
        source=claim.source,
        also=tuple(also),
    )


def _unclaimed(plan: Plan, setting: ProblemSpec, claim: Claim, top: PrivacyEvent) -> Certificate:
    """Of a system that claims nothing: it has no privacy, or sends nothing."""
    if plan.policy == "random":
        text = "nothing is learned, so nothing is disclosed: there is nothing to protect"
        return nothing_sent(claim.source, model="local: nobody is trusted", caveats=(text,))
    if isinstance(top, NoRelease) and plan.protocol.senders == "silos":
        caveats = (SAME_SILO, *claim.caveats)
        stated = nothing_sent(claim.source, model=PROTOCOLS["silo-ldp"].model, caveats=caveats)
        world = _world(plan, setting)
        status = "proven" if all(c.holds for c in world) else "conditional"
        return msgspec.structs.replace(stated, status=status, conditions=world)
    return no_privacy(claim.source, caveats=claim.caveats)


def _noise_stds(plan: Plan, top: PrivacyEvent) -> dict[str, float]:
    """As drivers add it: of one user's message, of a batch's bits, or of one node."""
    if isinstance(top, LocalGaussian):
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, plan.user_std.parts, strict=True))
    return top.noise_stds


def _beside(plan: Plan, top: PrivacyEvent) -> list[Side]:
    """What the noise of a single agent's users is worth towards others than the claim is about."""
    if plan.protocol.senders != "users" or not isinstance(top, LocalGaussian | VectorBatches):
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


def _caveats(plan: Plan, setting: ProblemSpec, claim: Claim, found: float) -> tuple[str, ...]:
    caveats = []
    budget, users = claim.asked, setting.silos * setting.horizon
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
    if setting.multiplicity > 1:
        caveats.append(
            f"one record can be served up to {setting.multiplicity} times: a user is not one round"
        )
    if budget.delta * users >= 1.0:
        caveats.append(
            f"delta = {budget.delta:g} is not small against 1 / {users} users: it allows the "
            "full disclosure of some of them, and certifies almost nothing"
        )
    # Bits are integers on a wire as on paper; real numbers are not.
    machine = DRAWS if plan.protocol.bits else FLOATS
    return (*caveats, *claim.caveats, SIMULATION, machine, *setting.notes)


@account.register
def _of_peers(plan: PeerPlan, setting: ProblemSpec) -> Certificate:
    """Of a federation without a server: that of the part that costs most, and who reads it."""
    stated = _of_plan(worst_part(plan).plan, setting)
    if stated.claimed is None:
        return stated
    hops = "1 hop" if plan.gamma == 1 else f"{plan.gamma} hops"
    who = f"messages are handed on {hops}: every silo on the way reads them"
    if len({part.clique for part in plan.parts}) > 1:
        who += ", silos of other cliques too"
    return msgspec.structs.replace(stated, caveats=(*stated.caveats, who))


@account.register
def _of_phases(plan: PhasePlan, setting: ProblemSpec) -> Certificate:
    """Of phases: what holds for everything one client holds."""
    claim = plan.privacy or Claim(source=plan.protocol.source)
    if claim.budget is None:
        return no_privacy(claim.source, caveats=claim.caveats)
    found: Any = released(plan)
    top, budget = found[0], claim.budget
    epsilon = event_epsilon(top)
    known, kept = math.isfinite(epsilon), all(c.holds for c in setting.conditions)
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
            *setting.conditions,
            *top.conditions(),
        ),
        caveats=(*claim.caveats, SIMULATION, *((REALS,) if sends else ()), *setting.notes),
        source=claim.source,
    )
