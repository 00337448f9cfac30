"""Which plans the parties of a deployment run, and what their certificates take on trust."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._system import account
from fastfed._validate import InputError
from fastfed.bandits import ProblemSpec
from fastfed.privacy.certificate import Certificate, Condition, deployed
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import PROTOCOLS, released_as

#: Protocols that the parties of this package run.
SUPPORTED = ("silo-ldp", "central", "secure-sum")
#: How the sums of masked protocols are hidden: two shares, for hub and helper, or pairwise masks.
SUMS = ("shares", "masks")

#: What a deployment takes on trust beside what its system does.
KEPT = Condition(
    "every silo keeps its state and its secret to itself: with both the secret and the messages "
    "the noise can be removed (taken on trust)",
    True,
)
DELAYED = Condition(
    "a record may come later than others for reasons that are in it: it then leaves one batch for "
    "another, which costs no more than replacing it (docs/deployment.md)",
    True,
)
APART = Condition(
    "hub and helper do not put together what they know (taken on trust; what holds if they do is "
    "under `also`)",
    True,
)
MASKED = Condition(
    "the masks' keys are agreed by X25519 and known to the two silos of each alone, and masks of "
    "ChaCha20 made of them are taken for random; a silo whose state and ledger are both lost makes "
    "no second report of a release (taken on trust)",
    True,
)
#: Begins the condition of a mechanism's own masks, which the two above stand in for.
_MASKS = "the masks' keys"


def certified(plan: Plan, problem: ProblemSpec, helper: bool = False) -> Certificate:
    """The certificate of a deployed plan, from its numbers.

    helper: sums are hidden by shares for hub and helper, and else by masks.
    """
    found = deployed(account(plan, problem))
    conditions = [c for c in found.conditions if not c.text.startswith(_MASKS)]
    own: tuple[Condition, ...] = (KEPT, DELAYED)
    if plan.secure is not None and helper:
        own += (APART,)
    elif plan.secure is not None and plan.silos > 1:
        own += (MASKED,)
    return msgspec.structs.replace(found, conditions=(*conditions, *own))


def check_supported(plan: Plan) -> None:
    """Refuse a plan that the parties of this package do not run, or not privately."""
    claim, protocol = plan.privacy, plan.protocol
    if (
        claim is None
        or claim.budget is None
        or not claim.exact
        or not math.isfinite(claim.exact[0])
    ):
        raise InputError("a deployment needs a plan with a proven epsilon")
    if protocol.id not in SUPPORTED:
        raise InputError(
            f'deployments run the protocols {", ".join(SUPPORTED)}, got "{protocol.id}"'
        )
    known = released_as(PROTOCOLS[protocol.id], plan.release)
    if (known.randomizer, known.analyzer, known.noise_by, known.masked) != (
        protocol.randomizer, protocol.analyzer, protocol.noise_by, protocol.masked,
    ):  # fmt: skip
        raise InputError(f'the plan\'s protocol "{protocol.id}" is not the one of that name')
    refused = {
        "a trigger": plan.trigger is not None,
        "eager selection": not plan.lazy,
        "own rounds": plan.own is not None,
        "a score function": plan.score is not None,
        "another policy than ucb": plan.policy != "ucb",
        "no clipping": plan.clip is None,
        # A record that comes late would move the public count from one batch to another.
        "a public intercept": plan.clip is not None and plan.clip.constant > 0.0,
        "a user of several batches": claim.max_participations != 1,
        'a relation other than "replace", which covers late records': claim.budget.relation
        != "replace",
        'a unit other than "user"': claim.budget.unit != "user",
        # Its account is that of one dimension, where replacing may cost less than moving.
        "secure sums of one feature": plan.secure is not None and plan.dimension == 1,
        'release "nested"': plan.release == "nested",
        "no release": not plan.releases,
        "columns of the factor with a negative inner product": not _delays_covered(plan),
    }
    wrong = [what for what, found in refused.items() if found]
    if wrong:
        raise InputError(f"deployments do not run plans with {', '.join(wrong)}")


def _delays_covered(plan: Plan) -> bool:
    """True if a record that moves from one leaf to another costs no more than replacing one."""
    if plan.secure is not None:
        size = plan.releases
        encoder = np.zeros((size, size))
        for k, row in enumerate(plan.secure.factor):
            encoder[k, : k + 1] = row
    elif plan.factor is not None:
        encoder = plan.factor.encoder
    else:
        # Trees and Toeplitz factors have no negative entry.
        return True
    products = encoder.T @ encoder
    return bool((products >= -1e-12 * products.max()).all())
