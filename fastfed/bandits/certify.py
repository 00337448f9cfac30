"""From a plan's noise to the certificate of a linear system: which guarantee covers whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastfed.bandits.noise import Mechanism
from fastfed.bandits.setting import Setting
from fastfed.bandits.theory import Theory
from fastfed.privacy.certificate import (
    DRAWS,
    FLOATS,
    SIMULATION,
    Certificate,
    Condition,
    Guarantee,
    Side,
    SideCertificate,
)
from fastfed.protocols.plan import Clip
from fastfed.protocols.protocol import Protocol

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


@dataclass(frozen=True)
class Assumptions:
    """What the accounting of one release assumes of the run."""

    schedule: Condition
    released_only: Condition
    features: Condition
    rewards: Condition
    once: Condition
    world: tuple[Condition, ...]  # of the environment

    @classmethod
    def of(
        cls, setting: Setting, clip: Clip | None, released_only: bool, schedule: Condition
    ) -> Assumptions:
        low, high = setting.reward_range or (float("-inf"), float("inf"))
        bounded = clip is not None or (low >= -1.0 and high <= 1.0)
        where = "clipped" if clip is not None else "as the environment gives them"
        return cls(
            schedule=schedule,
            released_only=Condition(
                "actions depend on released statistics only (lazy play, or B = 1)", released_only
            ),
            features=Condition(
                f"feature norms <= 1 ({where})", clip is not None or setting.features_bounded
            ),
            rewards=Condition(f"rewards bounded by 1 in absolute value ({where})", bounded),
            once=Condition("no record is served twice", setting.multiplicity == 1),
            world=setting.conditions,
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


def certify(
    mechanism: Mechanism,
    protocol: Protocol,
    setting: Setting,
    theory: Theory,
    clip: Clip | None,
    released_only: bool,
    source: str,
    by_silo: Sequence[tuple[tuple[int, ...], Mechanism]] = (),
    schedule: Condition = FIXED,
    beside: Sequence[Side] | None = None,
    trust: Sequence[Condition] = (),
) -> Certificate:
    """The certificate of one private linear system, its noise taken from seeded streams.

    The top is the user-level claim: proven where every assumption holds, conditional where only
    the environment's own fail, "none" where raw data make the schedule, else unproven. Under ``also`` stands what holds beside it: weaker statements, and
    as "conditional" what would hold under an assumption that this run breaks. Where silos
    have budgets of their own, the top is that of the weakest, and ``by_silo`` adds the others.
    ``beside`` is what the same noise is worth towards others; by default, what users of one silo
    see of each other. ``trust`` is what the protocol itself takes on trust.
    """
    budget = mechanism.budget
    claimed = Guarantee(budget.epsilon, budget.delta)
    epsilon = mechanism.exact()
    known = math.isfinite(epsilon)
    exact = Guarantee(epsilon, budget.delta) if known else None
    assumed = Assumptions.of(setting, clip, released_only, schedule)
    met = (*trust, *mechanism.conditions())
    #: The account is of what this run does; of the world around it the conditions speak.
    covered = known and all(c.holds for c in assumed.about_run)
    proven = covered and all(c.holds for c in assumed.world)

    kept = all(c.holds for c in assumed.about_data)
    #: Of a side statement whose value is known.
    status = "proven" if kept else "conditional"

    def side(unit: str, model: str, source: str = source) -> SideCertificate:
        """The same release as a weaker statement."""
        return SideCertificate(
            unit=unit,
            relation=budget.relation,
            model=model,
            claimed=claimed,
            exact=exact,
            status=status if known else "unproven",
            noise_std=mechanism.noise_stds,
            conditions=(*assumed.about_data, *met),
            source=source,
        )

    also = []
    if not released_only:
        also.append(
            side("item", f"{protocol.model}; neighbours differ in one realised pair (x, y)")
        )
    elif known and not covered:
        also.append(side("user", protocol.model))
    if released_only and beside is None:
        also.append(
            side(
                "user",
                "joint differential privacy against users of the same silo",
                "zhou-chowdhury-2024, Appendix G.3 (Algorithm 8)",
            )
        )
    for other in beside or ():
        also.append(
            SideCertificate(
                unit="user",
                relation=budget.relation,
                model=other.model,
                claimed=None,
                exact=Guarantee(other.epsilon, budget.delta),
                status=status,
                noise_std=mechanism.noise_stds,
                conditions=(*assumed.about_data, *trust, *other.conditions),
                source=other.source,
            )
        )
    for silos, own in by_silo:
        epsilon, wanted = own.exact(), Guarantee(own.budget.epsilon, own.budget.delta)
        who = f"silo{'s' if len(silos) > 1 else ''} {', '.join(str(i) for i in silos)}"
        also.append(
            SideCertificate(
                unit="user" if released_only else "item",
                relation=budget.relation,
                model=f"{protocol.model}; users of {who}",
                claimed=wanted,
                exact=Guarantee(epsilon, own.budget.delta),
                status=status,
                noise_std=own.noise_stds,
                conditions=(*assumed.about_data, *own.conditions()),
                source="zhou-chowdhury-2024, Definition 2.1",
            )
        )
    return Certificate(
        unit="user",
        relation=budget.relation,
        model=protocol.model,
        claimed=claimed,
        exact=exact if covered else None,
        status="none"
        if not schedule.holds
        else "proven"
        if proven
        else "conditional"
        if covered
        else "unproven",
        noise_std=mechanism.noise_stds,
        conditions=(*assumed.all, *met),
        caveats=(
            *(() if schedule.holds else (RAW_SCHEDULE,)),
            *_caveats(setting, theory, mechanism, protocol, released_only),
        ),
        source=source,
        also=tuple(also),
    )


def _caveats(
    setting: Setting,
    theory: Theory,
    mechanism: Mechanism,
    protocol: Protocol,
    released_only: bool,
) -> tuple[str, ...]:
    caveats = []
    budget, users = mechanism.budget, setting.silos * setting.horizon
    found = mechanism.exact()
    if not math.isfinite(found):
        caveats.append("no finite epsilon is proven for this noise")
    elif found > budget.epsilon:
        caveats.append("the claimed budget is not met; the exact value is what holds")
    if not released_only:
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
    machine = DRAWS if protocol.bits else FLOATS
    return (*caveats, *theory.caveats, SIMULATION, machine, *setting.notes)
