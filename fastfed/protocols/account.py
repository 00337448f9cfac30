"""Releases of linear systems' plans, in the terms of `fastfed.privacy.account`.

Everything is read from what drivers and parties execute: the protocol's randomizer and analyzer,
batch size and horizon, noise, bits, clipping, trigger. The claim adds what no number says.
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
from fastfed.privacy.mechanisms.joint_dp import NestedNoise
from fastfed.privacy.mechanisms.local_gaussian import LocalGaussian
from fastfed.privacy.mechanisms.reward_release import RewardRelease
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.releases.gaussian_release import RELEASES, check_factor
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, NoiseStd, Plan
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

#: Randomizers and analyzers whose Gaussian noise `_sums` accounts for. A pair that is not here is
#: refused: to take it for one of these would be a guarantee of something else.
GAUSSIAN_PAIRS = (
    (SEND_NOISY_NODE, TREE),
    (SEND_NOISY_PREFIX, REPLACE),
    (SEND_NOISY_SUM, REPLACE),
    (SEND_NOISY_BATCH, ADD),
    (SEND_NODE, NOISY_TREE),
    (SEND_BATCH, NOISY_ADD),
)


#: Releases of a plan, at most: arrays of one number for each still fit into memory.
_MOST = 2**24

#: Releases that each protocol has; of the others "tree" alone.
_RELEASES = {
    "silo-ldp": RELEASES,
    "central": RELEASES,
    "agent-central": (*RELEASES, "nested"),
    "secure-sum": ("factorised",),
}


def protocol_of(plan: Plan) -> Protocol:
    """The protocol that the builders give a plan of this protocol's name.

    A package's own name stands for batches that silos send once, each with noise of its own, under
    the words of "silo-ldp".

    Raises
    ------
    InputError
        For a release that the protocol does not have.
    """
    protocol = plan.protocol
    known = {**PROTOCOLS, **AGENT_PROTOCOLS}.get(protocol.id)
    if known is None:
        known = replace(
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
    flat = protocol.id == "shuffle-vector" and protocol.flat
    known = released_as(known, FLAT if flat else plan.release)
    if known.masked and plan.secure is not None:
        known = under_masks(known, plan.secure.silos, plan.secure.colluders)
    return known if plan.own is None else keeping_own_rounds(known)


def _meets(plan: Plan, claim: Claim) -> bool:
    """True if the account of a user whom several silos meet is about this plan."""
    own = plan.protocol.noise_by == "silos" and not plan.protocol.masked
    one = claim.max_participations == 1 and not claim.by_silo and not plan.silo_noise
    return claim.silos_met == 1 or (
        own and one and not plan.protocol.shuffled and claim.silos_met <= plan.silos
    )


def check_combination(plan: Plan) -> None:
    """Refuse a plan whose parts no builder puts together: its account would be of another one.

    Raises InputError.
    """
    protocol = plan.protocol
    if (plan.secure is not None) != protocol.masked:
        raise InputError(
            f'a plan of protocol "{protocol.id}" must have '
            f"{'a' if protocol.masked else 'no'} secure sum"
        )
    if protocol != (known := protocol_of(plan)):
        names = [n for n in vars(known) if getattr(known, n) != getattr(protocol, n)]
        texts = (f"{n} {show(getattr(known, n))}, got {show(getattr(protocol, n))}" for n in names)
        raise InputError(
            f'the plan\'s protocol must be "{protocol.id}" as it is registered, with '
            f"{'; '.join(texts)}"
        )
    if plan.release_rounds:
        check_rounds(plan.release_rounds, plan.horizon)
    if plan.releases and plan.secure is None:
        check_factor(plan.release, plan.releases, plan.factor)
    if plan.releases > _MOST:
        raise InputError(f"a plan must have at most {_MOST} releases, got {plan.releases}")
    trigger, silos = plan.trigger, plan.silos
    private = trigger is not None and trigger.kind == PRIVATE_DETERMINANT
    wanted = {
        f'one silo with protocol "{protocol.id}"': protocol.id not in AGENT_PROTOCOLS or silos == 1,
        f"silo_noise of {silos} silos that add noise, or none": (
            not plan.silo_noise or (protocol.noise_by == "silos" and len(plan.silo_noise) == silos)
        ),
        "an encoding where users send bits, and only there": (
            (plan.encoding is not None) == protocol.bits
        ),
        "the batch_size of its longest batch": (
            not plan.release_rounds
            or plan.batch_size == int(np.diff(plan.release_rounds, prepend=0).max())
        ),
        f"a trigger of kind {DETERMINANT} or {PRIVATE_DETERMINANT}": (
            trigger is None or trigger.kind in (DETERMINANT, PRIVATE_DETERMINANT)
        ),
        "batch_size 1 and no release_rounds beside a trigger": (
            trigger is None or (plan.batch_size == 1 and not plan.release_rounds)
        ),
        "one silo for each user, or silos with noise of one budget that meet a user once each": (
            plan.privacy is None or _meets(plan, plan.privacy)
        ),
        'protocol "silo-ldp-prefix" where a trigger reads noisy sums': (
            not private or protocol.id == "silo-ldp-prefix"
        ),
    }
    wrong = [what for what, holds in wanted.items() if not holds]
    if wrong:
        raise InputError(f"the plan must have {' and '.join(wrong)}: nothing else has an account")


def bounds(plan: Plan) -> tuple[float, float]:
    """L and Y: what features' norms and rewards are held to; 1 where nothing is clipped.

    Whether the environment keeps the latter is a condition of the certificate.
    """
    return bounds_of(plan.clip)


def bounds_of(clip: Clip | None) -> tuple[float, float]:
    """L and Y of records that are clipped so. Raises InputError for what is no interval."""
    if clip is None:
        return 1.0, 1.0
    # Not "high <= low", which NaN passes.
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
        # Of (z, c): 1 at most where z is scaled to make room for the constant.
        feature = math.hypot(clip.feature, clip.constant)
        feature = 1.0 if abs(feature - 1.0) < 1e-12 else feature
    return feature, max(abs(bound) for bound in clip.centred)


@released.register
def _of_plan(plan: Plan) -> tuple[PrivacyEvent, ...]:
    claim = plan.privacy or Claim(source="none")
    # Plain data that anyone may change: drivers and parties go by them.
    check_combination(plan)
    if plan.policy == "random" or not plan.releases:
        return (NoRelease(),)
    if plan.own is not None and plan.end(plan.releases) != plan.own.until:
        raise InputError(
            f"the last release must be after the last shared round ({plan.own.until}), got "
            f"round {plan.end(plan.releases)}"
        )
    protocol = plan.protocol
    if plan.own is not None and plan.own.secret:
        _check_coin(plan, claim)
    if protocol.masked:
        return (_secure(plan, claim),)
    if protocol.bits:
        return (_bits(plan, claim),)
    by_server = protocol.analyzer in (NOISY_TREE, NOISY_ADD)
    if protocol.randomizer in (SEND_BATCH, SEND_NODE) and not by_server:
        return (RawData(claim.budget),)
    if protocol.senders == "users":
        return (_points(plan, claim),)
    budget = claim.asked
    # Of silos that differ, the one with the least noise.
    worst = _sums(plan, claim, budget, plan.noise_std.times(min(plan.silo_noise, default=1.0)))
    if not claim.by_silo:
        return (worst,)
    own_deltas = len(claim.delta_by_silo) in (0, plan.silos)
    if not len(claim.by_silo) == len(plan.noise_scale) == plan.silos or not own_deltas:
        raise InputError(
            f"privacy.by_silo and silo_noise must hold one number for each of {plan.silos} silos, "
            f"got {len(claim.by_silo)}"
        )
    if not isinstance(worst, GaussianSums):
        raise InputError(f'silos of "{protocol.id}" cannot have budgets of their own')
    return _by_silo(worst, plan.noise_std.parts, plan.noise_scale, claim.silo_budgets)


def _check_coin(plan: Plan, claim: Claim) -> None:
    """Refuse a secret coin where its account is not the one that would be taken."""
    unit = claim.budget.unit if claim.budget is not None else "user"
    if plan.protocol.noise_by == "none" or plan.protocol.masked or unit == "reward":
        raise InputError(
            "a secret coin has an account for Gaussian noise on all sums alone, got protocol "
            f'"{plan.protocol.id}" and unit "{unit}"'
        )


@lru_cache(maxsize=64)
def _by_silo(
    worst: GaussianSums,
    stds: tuple[float, float, float],
    scales: tuple[float, ...],
    asked: tuple[tuple[float, float], ...],
) -> tuple[PrivacyEvent, ...]:
    """The worst of all silos, then one for each (epsilon, delta) that some asked for.

    All of it once for a plan: there may be as many as there are silos, each of which verifies it.
    """
    found = [worst]
    for (epsilon, delta), silos in alike(asked).items():
        scale = min(scales[i] for i in silos)
        own = NoiseStd(*stds).times(scale).parts
        budget = msgspec.structs.replace(worst.budget, epsilon=epsilon, delta=delta)
        found.append(msgspec.structs.replace(worst, budget=budget, stds=own))
    return HashedTuple(found)


def alike(
    asked: tuple[tuple[float, float], ...],
) -> dict[tuple[float, float], tuple[int, ...]]:
    """Silos that asked for one (epsilon, delta), by budget."""
    found: dict[tuple[float, float], list[int]] = {}
    for silo, budget in enumerate(asked):
        found.setdefault(budget, []).append(silo)
    return {budget: tuple(silos) for budget, silos in found.items()}


def _sums(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    """Gaussian noise of silos, or of a trusted server or agent, on sums of batches."""
    protocol, (feature, reward) = plan.protocol, bounds(plan)
    if budget.unit == "reward":
        return _rewards(plan, claim, budget, std)
    if plan.release == "nested":
        return NestedNoise(
            budget=budget, releases=plan.releases, noise_std=std.bias, source=claim.source
        )
    if protocol.shuffled:
        return _shuffled(plan, claim, budget, std)
    if (protocol.randomizer, protocol.analyzer) not in GAUSSIAN_PAIRS:
        raise InputError(
            f'nothing here says what protocol "{protocol.id}" releases: account for its randomizer '
            f"{protocol.randomizer} with analyzer {protocol.analyzer} in {__name__}"
        )
    schedule, rounds = (0.0, 0.0), 0
    if plan.trigger is not None and plan.trigger.kind == PRIVATE_DETERMINANT:
        schedule, rounds = plan.trigger.std, plan.horizon
    flat = protocol.randomizer == SEND_NOISY_BATCH
    return GaussianSums(
        budget=budget,
        release="flat" if flat else plan.release,
        releases=plan.releases,
        stds=std.parts,
        feature_bound=feature,
        reward_bound=reward,
        max_participations=claim.max_participations,
        schedule=schedule,
        schedule_rounds=rounds,
        remark=claim.remark,
        factor=plan.factor,
        centred=centred_of(plan.clip),
        coin=plan.own.coin if plan.own is not None else 1.0,
        silos_met=claim.silos_met,
    )


def _rewards(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    """Gaussian noise on sums of x y alone, where contexts are public."""
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


def _secure(plan: Plan, claim: Claim) -> SecureSum:
    """Binomial noise on sums under masks: shares of silos, or in simulations of all together.

    What parties send is the plan's secure sum, what a simulation of all messages together plays is
    its noise and factor: they must be of one mechanism. Bounds and users are the plan's own.
    """
    made = plan.secure
    assert made is not None
    centred, (feature, reward) = centred_of(plan.clip), bounds(plan)
    wanted = {
        "trigger": plan.trigger is None,
        "silo_noise": not plan.silo_noise and not claim.by_silo,
        "silos": made.silos == plan.silos,
        "dimension": made.dimension == plan.dimension,
        "number of releases": made.releases == plan.releases,
        "number of records": made.points >= plan.silos * plan.most_records(plan.releases),
        "noise_std": made.stds == plan.noise_std.parts,
        "factor": plan.factor is not None
        and np.array_equal(plan.factor.matrix, made.prefix_weights),
        "constant feature": (made.centred is None) == (centred is None),
    }
    wrong = [name for name, holds in wanted.items() if not holds]
    if wrong:
        raise InputError(
            f"the plan's {', '.join(wrong)} must be {'that' if len(wrong) == 1 else 'those'} of "
            "its secure sum: the plan is not the one that was certified"
        )
    return msgspec.structs.replace(
        made,
        budget=claim.asked,
        feature_bound=feature,
        reward_bound=reward,
        max_participations=claim.max_participations,
        centred=centred,
    )


def centred_of(clip: Clip | None) -> Centred | None:
    """Bounds of records whose last feature is a constant of the code."""
    bounds_of(clip)
    if clip is None or not clip.constant:
        return None
    return Centred(clip.kappa, clip.feature, *clip.centred)


def _unit(plan: Plan, std: NoiseStd) -> tuple[str, float, float]:
    """(layout, noise_std, covariance_ratio) of the same noise about records of unit bounds."""
    feature, reward = bounds(plan)
    layout, covariance = recovered_layout(std.off_diagonal, std.diagonal)
    bias = std.bias / (feature * reward)
    if min(bias, covariance) == 0.0:
        return layout, 0.0, 1.0
    return layout, bias, covariance / feature**2 / bias


def _shuffled(plan: Plan, claim: Claim, budget: Budget, std: NoiseStd) -> PrivacyEvent:
    layout, bias, ratio = _unit(plan, std)
    if not bias:
        return RawData(budget)
    # The lemma is about each stream alone, at the sensitivity of the bias stream: where the
    # covariance stream has less noise for its own, both are accounted as if they had that.
    least = min(1.0, ratio * (1.0 if layout == "iid" else math.sqrt(2.0)))
    if least < 1.0 - 1e-12:
        bias, ratio = least * bias, ratio / least
    return AmplifiedTree(
        plan.releases,
        layout,
        bias,
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
    """Batch size B with which no node of the tree of these batches has over B 2^level rounds."""
    n = np.concatenate([[0], np.asarray(ends, np.int64)])
    k = np.arange(1, len(n))
    size = k & -k
    return int((-(-(n[k] - n[k - size]) // size)).max(initial=1))


def _points(plan: Plan, claim: Claim) -> PrivacyEvent:
    """Every user's own Gaussian noise."""
    layout, bias, ratio = _unit(plan, plan.user_std)
    if not bias:
        return RawData(claim.asked)
    return LocalGaussian(
        # The fewer users a shuffler mixes, the less it hides.
        batch_size=int(np.diff(plan.ends, prepend=0).min()),
        returning=claim.max_participations,
        layout=layout,
        noise_std=bias,
        covariance_ratio=ratio,
        calibration=claim.calibration,
        budget=claim.asked,
        source=claim.source,
        shuffled=plan.protocol.shuffled,
    )


def _bits(plan: Plan, claim: Claim) -> PrivacyEvent:
    """Every user's own noise bits. A larger record moves as many more levels."""
    encoding, (feature, reward) = plan.encoding, bounds(plan)
    if encoding is None:
        raise InputError(f'protocol "{plan.protocol.id}" needs an encoding')
    steps = [encoding.steps(j) for j in range(len(encoding.precision))]
    g = [
        (math.ceil(bias * feature * reward), math.ceil(covariance * feature**2))
        for bias, covariance in steps
    ]
    if plan.protocol.flat and centred_of(plan.clip) is not None:
        g = steps  # its norm is that of the records themselves
    if plan.protocol.flat:
        count = plan.releases if plan.encoded_by_release else 1
        if not len(g) == len(encoding.noise_bits) == count:
            raise InputError(f"encoding must be of {count} batches, got {len(g)}")
        lengths = [plan.batch_of(k) for k in range(1, count + 1)]
        batches = [
            VectorBatches(
                batch_size=plan.silos * length,
                dimension=plan.dimension,
                g=levels,
                b=b,
                returning=claim.max_participations,
                calibration=claim.calibration,
                budget=claim.asked,
                source=claim.source,
                vector_scale=claim.vector_scale,
                honest_fraction=claim.honest_fraction,
                local=not plan.protocol.shuffled,
                centred=centred_of(plan.clip),
            )
            for length, levels, b in zip(lengths, g, encoding.noise_bits, strict=True)
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
        claim.asked,
        claim.source,
        claim.vector_scale,
        claim.honest_fraction,
        claim.max_participations,
    )


def released_only(plan: Plan) -> bool:
    """True if actions depend on synchronised statistics alone.

    After every round, in fixed rounds, the local batch is empty whenever an action is chosen.
    """
    return plan.lazy or (plan.trigger is None and plan.releases == plan.horizon)


@terms.register
def _terms(plan: Plan) -> tuple[str, ...]:
    schedule = "fixed rounds"
    if plan.trigger is not None:
        private = plan.trigger.kind == PRIVATE_DETERMINANT
        schedule = "rounds by noisy sums" if private else "rounds by raw data"
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
    """What a certificate says of own rounds."""
    own = plan.own
    if own is None:
        return ()
    after = f"own rounds after round {own.until}"
    if not own.mixed:
        return (after,)
    kind = "by a secret coin" if own.secret else "by a public rule"
    return after, f"a fraction {own.fraction:g} of earlier rounds shared {kind}"


def worst_part(plan: PeerPlan) -> Part:
    """The part whose release costs most: a user takes part in one of them."""
    return max(plan.parts, key=lambda part: event_epsilon(_of_plan(part.plan)[0]))


@released.register
def _of_peers(plan: PeerPlan) -> tuple[PrivacyEvent, ...]:
    check_parts(plan)
    return _of_plan(worst_part(plan).plan)


@released.register
def _of_phases(plan: PhasePlan) -> tuple[PrivacyEvent, ...]:
    check_means(plan)
    _of_plan(plan.local)
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
