"""The releases of plans of linear bandits, as privacy events for `fastfed.privacy.account`.

A privacy event describes what a plan releases, and an accountant computes its epsilon. The events
are computed from the fields that drivers and parties execute: the protocol's randomizer and
analyzer, batch size and horizon, noise, bits, clipping and trigger. The plan's claim adds only what
these fields do not contain, such as how often one user may take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np

from fastfed._validate import InputError, show
from fastfed.privacy.account import (
    Centred,
    Claim,
    GaussianSums,
    HashedTuple,
    NoRelease,
    PrivacyEvent,
    RawData,
    WinsorizedMeans,
    check_budget,
    event_epsilon,
    recovered_layout,
    released,
    terms,
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
from fastfed.privacy.releases.gaussian_release import RELEASES, check_factor
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, ClockedPlan, DelayedPlan, NoiseStd, Plan
from fastfed.protocols.protocol import (
    ADD,
    AGENT_PROTOCOLS,
    FLAT,
    NOISY_ADD,
    NOISY_TREE,
    PROTOCOLS,
    REPLACE,
    SEND_BATCH,
    SEND_NODE,
    SEND_NOISY_BATCH,
    SEND_NOISY_NODE,
    SEND_NOISY_PREFIX,
    SEND_NOISY_SUM,
    TREE,
    Protocol,
    counting_ones,
    keeping_own_rounds,
    released_as,
    under_masks,
)
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT, check_rounds
from fastfed.protocols.serverless import (
    PLAIN_MEAN,
    PRIVATE_MEAN,
    Part,
    PeerPlan,
    PhasePlan,
    check_means,
    check_parts,
)

#: Pairs of randomizer and analyzer whose Gaussian noise `_gaussian_sums` accounts for. Other pairs
#: are refused, because their account would describe a different mechanism.
GAUSSIAN_PAIRS = (
    (SEND_NOISY_NODE, TREE),
    (SEND_NOISY_PREFIX, REPLACE),
    (SEND_NOISY_SUM, REPLACE),
    (SEND_NOISY_BATCH, ADD),
    (SEND_NODE, NOISY_TREE),
    (SEND_BATCH, NOISY_ADD),
)


#: Largest number of releases of a plan. Arrays with one number for each release then fit into
#: memory.
_MAX_RELEASES = 2**24

#: The release types that each protocol allows. Protocols that are not listed allow only "tree".
_RELEASES = {
    "silo-ldp": RELEASES,
    "central": RELEASES,
    "agent-central": (*RELEASES, "nested"),
    "secure-sum": ("factorised",),
}

#: The protocol in which each user sends one bit.
USER_BIT = "user-bit"

#: Protocols whose privacy does not depend on the number of records in a batch, so that rewards may
#: arrive late.
DELAYABLE = ("none", "silo-ldp", "silo-ldp-prefix", "central", "secure-sum")


#: Protocols with an account for arms without contexts. Their noise is only on the counts and reward
#: sums of arms, or users send bits.
FOR_ARMS = ("none", "agent", "silo-ldp", "silo-ldp-prefix", "central", USER_BIT)

#: Protocols whose server adds up one message of each silo, so that silos may report at different
#: times, on separate clocks.
CLOCKED = ("none", "silo-ldp", "silo-ldp-prefix")


def protocol_of(plan: Plan) -> Protocol:
    """Return the protocol that a plan must have, given the protocol's name and the release type.

    `check_combination` compares it with the protocol in the plan. A protocol name that is not
    registered here belongs to another package. Its silos must send each batch once with independent
    noise, and its trust model is that of "silo-ldp".

    Raises
    ------
    InputError
        If the protocol does not allow the plan's release type.
    """
    protocol = plan.protocol
    expected = {**PROTOCOLS, **AGENT_PROTOCOLS}.get(protocol.id)
    if expected is None:
        expected = replace(
            PROTOCOLS["silo-ldp"],
            id=protocol.id,
            summary=protocol.summary,
            source=protocol.source,
            randomizer=SEND_NOISY_BATCH,
            analyzer=ADD,
        )
    releases = _RELEASES.get(protocol.id, ("tree",))
    if plan.release not in releases:
        raise InputError(
            f'release of protocol "{protocol.id}" must be one of {", ".join(releases)}, got '
            f"{show(plan.release)}"
        )
    flat_shuffle = protocol.id == "shuffle-vector" and protocol.flat
    expected = released_as(expected, FLAT if flat_shuffle else plan.release)
    if protocol.id == USER_BIT and protocol.shuffled:
        expected = counting_ones(expected)
    if expected.masked and plan.secure is not None:
        expected = under_masks(expected, plan.secure.silos, plan.secure.colluders)
    return expected if plan.own is None else keeping_own_rounds(expected)


def _supports_silos_met(plan: Plan, claim: Claim) -> bool:
    """Return True if the plan has an account for users who visit ``claim.silos_met`` silos."""
    by_silos = plan.protocol.noise_by == "silos" and not plan.protocol.masked
    one_budget = claim.max_participations == 1 and not claim.by_silo and not plan.silo_noise
    return claim.silos_met == 1 or (
        by_silos and one_budget and not plan.protocol.shuffled and claim.silos_met <= plan.silos
    )


def _supports_delays(plan: Plan) -> bool:
    """Return True if the account of the plan also holds for rewards that arrive late.

    With late rewards nobody knows in advance which records are in a batch. So a user may be in one
    batch only, because two records of one user could arrive in the same batch. And no feature may
    be a public constant: its sum of squares, which gets no noise, would reveal how many records
    arrived.
    """
    claim = plan.privacy or Claim(source="none")
    unit = claim.budget.unit if claim.budget is not None else "user"
    return (
        plan.protocol.id in DELAYABLE
        and unit == "user"
        and claim.max_participations == 1
        and plan.own is None
        and plan.trigger is None
        and not plan.public_constant
    )


def _supports_clocks(plan: ClockedPlan) -> bool:
    """Return True if the account of the plan also holds for silos that report on separate clocks.

    It holds if each user is in one batch of one silo, and no silo makes more reports than the
    plan's noise is calibrated for.
    """
    clocks, claim = plan.clocks, plan.privacy or Claim(source="none")
    unit = claim.budget.unit if claim.budget is not None else "user"
    return (
        plan.protocol.id in CLOCKED
        and plan.protocol.analyzer in (ADD, REPLACE)
        and unit == "user"
        and claim.max_participations == claim.silos_met == 1
        and plan.own is None
        and plan.trigger is None
        and plan.lazy
        and not plan.drawn_once
        and (clocks.silos, clocks.horizon) == (plan.silos, plan.horizon)
        and clocks.valid
        and max(clocks.reports_of_silos) == plan.releases
    )


def _supports_arms(plan: Plan) -> bool:
    """Return True if a plan whose actions are arms (unit vectors) has an account and a radius."""
    return (
        plan.protocol.id in FOR_ARMS
        and (plan.radius.direct or plan.policy == "random")
        and plan.own is None
        and plan.trigger is None
        and not plan.public_constant
        and not isinstance(plan, DelayedPlan | ClockedPlan)
        and plan.release != "nested"
    )


def _supports_counts(plan: Plan) -> bool:
    """Return True if there is an account for releasing the number of ones in each batch of bits.

    All users of a batch must get the same action, which is a function of earlier counts.
    """
    claim = plan.privacy or Claim(source="none")
    return (
        plan.arms
        and plan.lazy
        and plan.score is None
        and plan.policy == "ucb"
        and claim.max_participations == claim.silos_met == 1
    )


def check_combination(plan: Plan) -> None:
    """Raise InputError for a combination of fields that no builder makes and no account covers."""
    protocol = plan.protocol
    if (plan.secure is not None) != protocol.masked:
        raise InputError(
            f'a plan of protocol "{protocol.id}" must have '
            f"{'a' if protocol.masked else 'no'} secure sum"
        )
    if protocol != (expected := protocol_of(plan)):
        names = [n for n in vars(expected) if getattr(expected, n) != getattr(protocol, n)]
        texts = (
            f"{n} {show(getattr(expected, n))}, got {show(getattr(protocol, n))}" for n in names
        )
        raise InputError(
            f'the plan\'s protocol must be "{protocol.id}" as it is registered, with '
            f"{'; '.join(texts)}"
        )
    if plan.release_rounds:
        check_rounds(plan.release_rounds, plan.horizon)
    if plan.releases and plan.secure is None:
        check_factor(plan.release, plan.releases, plan.factor)
    if plan.releases > _MAX_RELEASES:
        raise InputError(f"a plan must have at most {_MAX_RELEASES} releases, got {plan.releases}")
    # Requirements that the plans of all builders satisfy -> whether this plan satisfies them.
    trigger, silos = plan.trigger, plan.silos
    noisy_trigger = trigger is not None and trigger.kind == PRIVATE_DETERMINANT
    rules = {
        f'one silo with protocol "{protocol.id}"': protocol.id not in AGENT_PROTOCOLS or silos == 1,
        f"silo_noise of {silos} silos that add noise, or none": (
            not plan.silo_noise or (protocol.noise_by == "silos" and len(plan.silo_noise) == silos)
        ),
        "an encoding if users send bits, and only then": (
            (plan.encoding is not None) == protocol.bits
        ),
        'flips and bounds of clipping if its protocol is "user-bit", and else no flips': (
            (plan.flips > 0) == (protocol.id == USER_BIT) and not (plan.flips and plan.clip is None)
        ),
        "arms, lazy updates, no draws among arms and users of one batch if bits are counted": (
            not plan.counts_ones or _supports_counts(plan)
        ),
        "the batch_size of its longest batch": (
            not plan.release_rounds
            or plan.batch_size == int(np.diff(plan.release_rounds, prepend=0).max())
        ),
        f"a trigger of kind {DETERMINANT} or {PRIVATE_DETERMINANT}": (
            trigger is None or trigger.kind in (DETERMINANT, PRIVATE_DETERMINANT)
        ),
        "batch_size 1 and no release_rounds with a trigger": (
            trigger is None or (plan.batch_size == 1 and not plan.release_rounds)
        ),
        "one silo for each user, or silos with noise of one budget that meet a user once each": (
            plan.privacy is None or _supports_silos_met(plan, plan.privacy)
        ),
        'protocol "silo-ldp-prefix" if a trigger reads noisy sums': (
            not noisy_trigger or protocol.id == "silo-ldp-prefix"
        ),
        "arms if its score is for the diagonal of w": (
            plan.score is None or not plan.score.diagonal or plan.arms
        ),
        f"no arms, or one of the protocols {', '.join(FOR_ARMS)} with the direct radius, fixed "
        "rounds and no local rounds": not plan.arms or _supports_arms(plan),
        f"no delayed rewards, or one of the protocols {', '.join(DELAYABLE)} with users of one "
        "batch, all of whose data are private": not isinstance(plan, DelayedPlan)
        or _supports_delays(plan),
        f"no clocks of silos, or one of the protocols {', '.join(CLOCKED)} with reports of prefix "
        "sums or plain batches, users of one batch, lazy updates and as many releases as the silo "
        "with the most reports has": not isinstance(plan, ClockedPlan) or _supports_clocks(plan),
    }
    broken_rules = [rule for rule, is_satisfied in rules.items() if not is_satisfied]
    if broken_rules:
        raise InputError(
            f"the plan must have {' and '.join(broken_rules)}; other plans have no account"
        )


def bounds(plan: Plan) -> tuple[float, float]:
    """Return (L, Y), the bounds on feature norms and on absolute rewards that a plan assumes.

    Without clipping they are (1, 1). A condition of the certificate then states whether the
    environment satisfies these bounds.
    """
    return bounds_of(plan.clip)


def bounds_of(clip: Clip | None) -> tuple[float, float]:
    """Return the bounds (L, Y) on feature norms and absolute rewards of clipped records.

    They are (1, 1) without clipping. Raises InputError for invalid bounds.
    """
    if clip is None:
        return 1.0, 1.0
    # Written so that NaN fails: "high <= low" would let NaN pass.
    if not (-math.inf < clip.low < clip.high < math.inf and 0.0 < clip.feature < math.inf):
        raise InputError(
            "clip must have finite bounds low < high and feature > 0, got "
            f"{show((clip.low, clip.high, clip.feature))}"
        )
    if not (math.isfinite(clip.centre) and 0.0 <= clip.constant < math.inf):
        raise InputError(
            "clip must have a finite centre and constant >= 0, got "
            f"{show((clip.centre, clip.constant))}"
        )
    feature = clip.feature
    if clip.constant:
        # The largest norm of a feature vector: features z with the constant c appended. Set it to
        # exactly 1 if it differs from 1 only by rounding.
        feature = math.hypot(clip.feature, clip.constant)
        feature = 1.0 if abs(feature - 1.0) < 1e-12 else feature
    return feature, max(abs(bound) for bound in clip.centred)


@released.register
def _events_of_plan(plan: Plan) -> tuple[PrivacyEvent, ...]:
    """Return the privacy events of a plan, first the event of the silo with the weakest guarantee.

    If silos' budgets differ, one further event follows for each budget. If silos report on separate
    clocks, the first event is for the silos with the most reports, and one further event follows
    for each smaller number of reports.
    """
    claim = plan.privacy or Claim(source="none")
    # A plan is plain data that a caller may have changed, so check it before accounting for it.
    check_combination(plan)
    if plan.flips and not plan.counts_ones:
        # Users send their bits whether or not silos synchronise.
        return (UserBits(plan.flips, claim.required_budget, claim.max_participations),)
    if plan.policy == "random" or not plan.releases:
        return (NoRelease(),)
    if plan.flips:
        # The shuffler forwards nothing of an incomplete last batch.
        smallest_batch = int(np.diff(plan.ends, prepend=0).min())
        return (BitCounts(plan.flips, claim.required_budget, users=plan.silos * smallest_batch),)
    if plan.own is not None and plan.end(plan.releases) != plan.own.until:
        raise InputError(
            f"the last release must be after the last shared round ({plan.own.until}), got "
            f"round {plan.end(plan.releases)}"
        )
    protocol = plan.protocol
    if plan.own is not None and plan.own.secret:
        _check_coin(plan, claim)
    if protocol.masked:
        return (_secure_sum(plan, claim),)
    if protocol.bits:
        return (_vector_sums(plan, claim),)
    by_server = protocol.analyzer in (NOISY_TREE, NOISY_ADD)
    if protocol.randomizer in (SEND_BATCH, SEND_NODE) and not by_server:
        return (RawData(claim.budget),)
    if protocol.senders == "users":
        return (_local_noise(plan, claim),)
    budget = claim.required_budget
    # The silo with the least noise has the weakest guarantee.
    worst = _gaussian_sums(
        plan, claim, budget, plan.noise_std.times(min(plan.silo_noise, default=1.0))
    )
    if not claim.by_silo:
        return (worst, *_events_of_fewer_reports(plan, worst))
    deltas_fit = len(claim.delta_by_silo) in (0, plan.silos)
    if not len(claim.by_silo) == len(plan.noise_scale) == plan.silos or not deltas_fit:
        raise InputError(
            f"privacy.by_silo and silo_noise must hold one number for each of {plan.silos} silos, "
            f"got {len(claim.by_silo)}"
        )
    if not isinstance(worst, GaussianSums):
        raise InputError(f'silos of "{protocol.id}" cannot have different budgets')
    return _events_by_budget(worst, plan.noise_std.parts, plan.noise_scale, claim.silo_budgets)


def fewer_reports(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the silos that make fewer reports than the plan has releases, by number of reports.

    The keys are numbers of reports, and the values indices of silos. Silos without reports are left
    out. The result is empty unless silos report on separate clocks and have the same budget. It is
    also empty for release "buffered": its noise depends on the planned number of releases, so after
    k reports a silo's noise is not that of a plan with k releases.
    """
    budgets = plan.privacy.by_silo if plan.privacy is not None else ()
    if not isinstance(plan, ClockedPlan) or budgets or plan.release == "buffered":
        return {}
    silos: dict[int, tuple[int, ...]] = {}
    for silo, reports in enumerate(plan.clocks.reports_of_silos):
        if 0 < reports < plan.releases:
            silos[reports] = (*silos.get(reports, ()), silo)
    return dict(sorted(silos.items()))


def _events_of_fewer_reports(plan: Plan, worst: PrivacyEvent) -> list[PrivacyEvent]:
    """Return an event for each group of silos in `fewer_reports`.

    ``worst`` is the event of the silos with the most reports. The event of a group is ``worst``
    with the group's number of reports as its number of releases. The result is empty if ``worst``
    is not Gaussian noise on sums.
    """
    if not isinstance(worst, GaussianSums):
        return []
    return [
        msgspec.structs.replace(
            worst,
            releases=reports,
            factor=None if worst.factor is None else worst.factor.first(reports),
        )
        for reports in fewer_reports(plan)
    ]


def _check_coin(plan: Plan, claim: Claim) -> None:
    """Raise InputError if random sampling by a secret coin has no account for this plan."""
    unit = claim.budget.unit if claim.budget is not None else "user"
    if plan.protocol.noise_by == "none" or plan.protocol.masked or unit == "reward":
        raise InputError(
            "a secret coin has an account only with Gaussian noise on all sums, got protocol "
            f'"{plan.protocol.id}" and unit "{unit}"'
        )


@lru_cache(maxsize=64)
def _events_by_budget(
    worst: GaussianSums,
    stds: tuple[float, float, float],
    scales: tuple[float, ...],
    silo_budgets: tuple[tuple[float, float], ...],
) -> tuple[PrivacyEvent, ...]:
    """Return the event ``worst``, followed by one event for each distinct budget of silos.

    ``worst`` is the event of the silo with the least noise. ``stds`` are the plan's standard
    deviations, and ``scales`` each silo's factor on them. The result is cached: each of M silos
    verifies the plan, and there may be M budgets.
    """
    events = [worst]
    for (epsilon, delta), silos in alike(silo_budgets).items():
        scale = min(scales[i] for i in silos)
        group_stds = NoiseStd(*stds).times(scale).parts
        budget = msgspec.structs.replace(worst.budget, epsilon=epsilon, delta=delta)
        events.append(msgspec.structs.replace(worst, budget=budget, stds=group_stds))
    return HashedTuple(events)


def alike(
    silo_budgets: tuple[tuple[float, float], ...],
) -> dict[tuple[float, float], tuple[int, ...]]:
    """Return the indices of the silos with each budget: {(epsilon, delta): indices of silos}."""
    silos_by_budget: dict[tuple[float, float], list[int]] = {}
    for silo, budget in enumerate(silo_budgets):
        silos_by_budget.setdefault(budget, []).append(silo)
    return {budget: tuple(silos) for budget, silos in silos_by_budget.items()}


def _gaussian_sums(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    """Return the event of Gaussian noise that silos, server or agent add to sums of batches.

    ``std`` is the noise to account for: that of the silo with the least noise.
    """
    protocol, (feature, reward) = plan.protocol, bounds(plan)
    # First the mechanisms with a separate account. All other Gaussian noise is one kind of event.
    if budget.unit == "reward":
        return _reward_release(plan, claim, budget, std)
    if plan.release == "nested":
        return NestedNoise(
            budget=budget, releases=plan.releases, noise_std=std.bias, source=claim.source
        )
    if protocol.shuffled:
        return _amplified_tree(plan, claim, budget, std)
    if (protocol.randomizer, protocol.analyzer) not in GAUSSIAN_PAIRS:
        raise InputError(
            f'protocol "{protocol.id}" has no privacy account: add one for its randomizer '
            f"{protocol.randomizer} with analyzer {protocol.analyzer} in {__name__}"
        )
    trigger_stds, trigger_rounds = (0.0, 0.0), 0
    if plan.trigger is not None and plan.trigger.kind == PRIVATE_DETERMINANT:
        trigger_stds, trigger_rounds = plan.trigger.std, plan.horizon
    flat = protocol.randomizer == SEND_NOISY_BATCH
    return GaussianSums(
        budget=budget,
        release="flat" if flat else plan.release,
        releases=plan.releases,
        stds=std.parts,
        feature_bound=feature,
        reward_bound=reward,
        max_participations=claim.max_participations,
        schedule=trigger_stds,
        schedule_rounds=trigger_rounds,
        remark=claim.remark,
        factor=plan.factor,
        centred=centred_of(plan.clip),
        coin=plan.own.coin if plan.own is not None else 1.0,
        silos_met=claim.silos_met,
        unit_vectors=plan.arms,
    )


def _reward_release(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    """Return the event of Gaussian noise on sums of x y only, for public contexts."""
    protocol = plan.protocol
    if protocol.shuffled or plan.trigger is not None or protocol.randomizer == SEND_NOISY_BATCH:
        raise InputError(f'protects "reward" has no account for protocol "{protocol.id}"')
    clip = plan.clip
    return RewardRelease(
        plan.releases,
        std.bias,
        budget,
        plan.release,
        claim.max_participations,
        plan.factor,
        bounds(plan)[0],
        clip.centred if clip is not None else (-1.0, 1.0),
    )


def _secure_sum(plan: Plan, claim: Claim) -> SecureSum:
    """Return the event of binomial noise on masked sums.

    Deployed parties execute ``plan.secure``, and a simulation executes the plan's ``noise_std`` and
    ``factor``. Raise InputError unless both describe the same mechanism. Bounds on records come
    from the plan, and the budget from its claim.
    """
    mechanism = plan.secure
    assert mechanism is not None
    centred, (feature, reward) = centred_of(plan.clip), bounds(plan)
    # What must agree between the plan and its mechanism -> whether it agrees.
    rules = {
        "trigger": plan.trigger is None,
        "silo_noise": not plan.silo_noise and not claim.by_silo,
        "silos": mechanism.silos == plan.silos,
        "dimension": mechanism.dimension == plan.dimension,
        "number of releases": mechanism.releases == plan.releases,
        "number of records": mechanism.points >= plan.silos * plan.most_records(plan.releases),
        "noise_std": mechanism.stds == plan.noise_std.parts,
        "factor": plan.factor is not None
        and np.array_equal(plan.factor.matrix, mechanism.prefix_weights),
        "constant feature": (mechanism.centred is None) == (centred is None),
    }
    wrong = [name for name, agrees in rules.items() if not agrees]
    if wrong:
        raise InputError(
            f"the plan's {', '.join(wrong)} must be {'that' if len(wrong) == 1 else 'those'} of "
            "its secure sum: the plan is not the one that was certified"
        )
    return msgspec.structs.replace(
        mechanism,
        budget=claim.required_budget,
        feature_bound=feature,
        reward_bound=reward,
        max_participations=claim.max_participations,
        centred=centred,
    )


def centred_of(clip: Clip | None) -> Centred | None:
    """Return the bounds of clipped records whose last feature is a constant.

    Return None without clipping, or if clipping does not write a constant into the last feature.
    """
    bounds_of(clip)  # raises InputError for invalid bounds
    if clip is None or not clip.constant:
        return None
    return Centred(clip.kappa, clip.feature, *clip.centred)


def _unit_noise(plan: Plan, std: NoiseStd) -> tuple[str, float, float]:
    """Return (layout, noise_std, covariance_ratio) of a plan's noise, for records scaled to norm 1.

    The plan's bounds on features and rewards become L = Y = 1. ``noise_std`` is the standard
    deviation in the sum of x y, and ``covariance_ratio`` that in the sum of x x' divided by it. The
    result is (layout, 0, 1) if some entry has no noise.
    """
    feature_bound, reward_bound = bounds(plan)
    layout, covariance_std = recovered_layout(std.off_diagonal, std.diagonal)
    # Noise in the sum of x y is in units of the product of both bounds.
    bias_std = std.bias / (feature_bound * reward_bound)
    if min(bias_std, covariance_std) == 0.0:
        return layout, 0.0, 1.0
    return layout, bias_std, covariance_std / feature_bound**2 / bias_std


def _amplified_tree(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    """Return the event of noisy p-sums (tree nodes) of silos whose messages are shuffled."""
    layout, noise_std, ratio = _unit_noise(plan, std)
    if not noise_std:
        return RawData(budget)
    # The amplification lemma bounds the sums of x y and of x x' separately, but assumes that both
    # have the same noise relative to their sensitivity. If the sum of x x' has less relative noise
    # than the sum of x y, account for this lower noise in both sums. Noise of layout "goe2" with
    # parameter s counts as sqrt(2) s: a change D of the sum has mu^2 = ||D||_F^2 / (2 s^2).
    relative_noise = min(1.0, ratio * (1.0 if layout == "iid" else math.sqrt(2.0)))
    if relative_noise < 1.0 - 1e-12:
        noise_std, ratio = relative_noise * noise_std, ratio / relative_noise
    return AmplifiedTree(
        plan.releases,
        layout,
        noise_std,
        claim.calibration,
        budget,
        claim.source,
        ratio,
        returning=claim.max_participations,
        silos=plan.silos,
        batch_size=tree_batch(plan.ends),
        horizon=plan.horizon,
    )


def tree_batch(ends: Sequence[int] | np.ndarray) -> int:
    """Return the smallest B for which every tree node of level j contains at most B 2^j rounds.

    ``ends`` holds the last round of each batch. For batches of equal length, B is this length.
    """
    rounds = np.concatenate([[0], np.asarray(ends, np.int64)])
    k = np.arange(1, len(rounds))
    # The tree node that is complete at release k has as many leaves as the lowest set bit of k.
    leaves = k & -k
    rounds_of_node = rounds[k] - rounds[k - leaves]
    return int((-(-rounds_of_node // leaves)).max(initial=1))  # rounded up


def _local_noise(plan: Plan, claim: Claim) -> PrivacyEvent:
    """Return the event of Gaussian noise that each user adds to their data point."""
    layout, noise_std, ratio = _unit_noise(plan, plan.user_std)
    if not noise_std:
        return RawData(claim.required_budget)
    return LocalGaussian(
        # The smallest batch is the worst case: a shuffler hides a user less among fewer users.
        batch_size=int(np.diff(plan.ends, prepend=0).min()),
        returning=claim.max_participations,
        layout=layout,
        noise_std=noise_std,
        covariance_ratio=ratio,
        calibration=claim.calibration,
        budget=claim.required_budget,
        source=claim.source,
        shuffled=plan.protocol.shuffled,
    )


def _vector_sums(plan: Plan, claim: Claim) -> PrivacyEvent:
    """Return the event of vector sums: users send data points as bits, together with noise bits."""
    encoding, (feature, reward) = plan.encoding, bounds(plan)
    if encoding is None:
        raise InputError(f'protocol "{plan.protocol.id}" needs an encoding')
    steps = [encoding.steps(j) for j in range(len(encoding.precision))]
    # One pair g for each level of the tree or each batch: the largest entries of x y and of x x',
    # in steps of the encoding.
    g = [
        (math.ceil(bias * feature * reward), math.ceil(covariance * feature**2))
        for bias, covariance in steps
    ]
    if plan.protocol.flat and centred_of(plan.clip) is not None:
        g = steps  # per unit: `Centred` already contains the bounds on features and rewards
    if plan.protocol.flat:
        count = plan.releases if plan.encoded_by_release else 1
        if not len(g) == len(encoding.noise_bits) == count:
            raise InputError(f"encoding must be of {count} batches, got {len(g)}")
        lengths = [plan.batch_of(k) for k in range(1, count + 1)]
        batches = [
            VectorBatches(
                batch_size=plan.silos * length,
                dimension=plan.dimension,
                g=steps_of_batch,
                b=b,
                returning=claim.max_participations,
                calibration=claim.calibration,
                budget=claim.required_budget,
                source=claim.source,
                vector_scale=claim.vector_scale,
                honest_fraction=claim.honest_fraction,
                local=not plan.protocol.shuffled,
                centred=centred_of(plan.clip),
            )
            for length, steps_of_batch, b in zip(lengths, g, encoding.noise_bits, strict=True)
        ]
        return batches[0] if count == 1 else UnequalBatches(tuple(batches))
    if plan.release_rounds:
        raise InputError('release_rounds with bits need release "flat": a tree has equal batches')
    return BinomialTree(
        plan.releases,
        plan.silos * plan.batch_size,
        plan.dimension,
        tuple(max(pair) for pair in g),
        encoding.noise_bits,
        claim.calibration,
        claim.required_budget,
        claim.source,
        claim.vector_scale,
        claim.honest_fraction,
        claim.max_participations,
    )


def released_only(plan: Plan) -> bool:
    """Return True if no action depends on raw data.

    This holds for a lazy plan, whose actions depend on released statistics only. It holds for a
    plan that synchronises in every round, because the local batch is empty whenever an action is
    chosen. It also holds if users send their rewards as randomly flipped bits (``flips`` > 0),
    because these bits are private wherever they are used.
    """
    return plan.lazy or plan.flips > 0 or (plan.trigger is None and plan.releases == plan.horizon)


@terms.register
def _terms(plan: Plan) -> tuple[str, ...]:
    """Return what a certificate of the plan assumes besides the noise, as texts."""
    schedule = "fixed rounds"
    if plan.trigger is not None:
        noisy_trigger = plan.trigger.kind == PRIVATE_DETERMINANT
        schedule = "rounds by noisy sums" if noisy_trigger else "rounds by raw data"
        schedule = "rounds by bits of users" if plan.flips else schedule
    return (
        f'protocol "{plan.protocol.id}"',
        plan.protocol.model,
        f"sent by {plan.protocol.senders}, noise of {plan.protocol.noise_by}",
        "actions from released statistics" if released_only(plan) else "actions from raw data",
        schedule,
        "no clipping" if plan.clip is None else "clipping",
        *_own_terms(plan),
    )


def _own_terms(plan: Plan) -> tuple[str, ...]:
    """Return what a certificate assumes about local rounds, as texts; () without local rounds."""
    own = plan.own
    if own is None:
        return ()
    local_rounds = f"own rounds after round {own.until}"
    if not own.mixed:
        return (local_rounds,)
    coin_or_rule = "by a secret coin" if own.secret else "by a public rule"
    return local_rounds, f"a fraction {own.fraction:g} of earlier rounds shared {coin_or_rule}"


def worst_part(plan: PeerPlan) -> Part:
    """Return the part (estimator of a clique) with the largest epsilon.

    The epsilon of this part is the epsilon of the plan, because each user belongs to one part only.
    """
    return max(plan.parts, key=lambda part: event_epsilon(_events_of_plan(part.plan)[0]))


@released.register
def _events_of_peers(plan: PeerPlan) -> tuple[PrivacyEvent, ...]:
    """Return the events that a plan without a server releases: the events of its worst part."""
    check_parts(plan)
    return _events_of_plan(worst_part(plan).plan)


@released.register
def _events_of_phases(plan: PhasePlan) -> tuple[PrivacyEvent, ...]:
    """Return the event of a plan in phases: the released averages of the silos' estimates.

    It is `WinsorizedMeans` if the averages have noise, else `RawData`, and `NoRelease` if the plan
    releases nothing. Raises InputError if the initial phases, in which silos learn alone, release
    something.
    """
    check_means(plan)
    _events_of_plan(plan.local)  # raises InputError for an invalid plan
    if plan.protocol not in (PRIVATE_MEAN, PLAIN_MEAN):
        raise InputError(
            f'protocol of a plan in phases must be "{PRIVATE_MEAN.id}" or "{PLAIN_MEAN.id}" as it '
            f"is registered, got {show(plan.protocol)}"
        )
    if plan.local.releases or plan.local.protocol != PROTOCOLS["none"]:
        raise InputError("silos must send nothing of initial phases, got a plan with releases")
    if not plan.releasing:
        return (NoRelease(),)
    if plan.protocol != PRIVATE_MEAN:
        return (RawData(plan.privacy.budget if plan.privacy else None),)
    for mean in plan.means:
        check_budget(mean, plan.privacy)
    return (WinsorizedMeans(means=plan.means),)
