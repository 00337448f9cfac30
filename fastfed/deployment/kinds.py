"""Which plans can be deployed, and what a deployment needs to know about each type of plan.

To deploy a new type of plan, add a file with its parties and the checks of its plans, and an entry
of `KINDS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fastfed._system import Algorithm, account
from fastfed._validate import InputError, choice, integer, show
from fastfed.bandits import ALGORITHMS, ProblemSpec
from fastfed.bandits.clocks import deployed_clocks
from fastfed.bandits.delays import refuse_delay
from fastfed.bandits.system import Config
from fastfed.deployment import charges
from fastfed.experts import ALGORITHMS as EXPERTS
from fastfed.experts import ProblemSpec as ExpertProblem
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.privacy.account import TOLERANCE, event_epsilon, released
from fastfed.privacy.certificate import NOISE_BITS_CAVEAT, Certificate, Condition, deployed
from fastfed.protocols.plan import ClockedPlan, Plan, check_plan
from fastfed.protocols.protocol import statistic_size
from fastfed.protocols.serverless import PhasePlan

if TYPE_CHECKING:
    from fastfed.deployment.hub import Hub
    from fastfed.deployment.ledger import Ledger
    from fastfed.deployment.plans import DeployedPlan
    from fastfed.deployment.silo import SiloParty

# ---- plans that can be deployed -----------------------------------------------------------------

#: Protocols that the parties of this package run.
SUPPORTED_PROTOCOLS = (
    "silo-ldp",
    "silo-ldp-prefix",
    "central",
    "secure-sum",
    "shuffle-vector",
    "user-bit",
)
#: Values of ``system.algorithm`` in a spec that can be deployed.
SUPPORTED_SYSTEMS = ("private-fedlinucb", "feducb", "robin", "fed-dp-ope-stoch", "fed-svt")
#: Protocols with secure sums: nobody sees a single silo's report.
SECURE_SUM_PROTOCOLS = ("secure-sum", "shuffle-vector")
_DEVICES_REASON = (
    "its guarantee is for what leaves a user's own device, and a silo that draws the noise for its "
    "users has seen their data"
)
_BASELINE_REASON = (
    "it is a baseline of simulations, whose parties keep no state on disk; "
    'system.algorithm = "fed-svt" and "fed-dp-ope-stoch" do'
)
#: System or protocol -> why it cannot be deployed, for messages.
REFUSAL_REASONS = {
    "shuffle-amplified": (
        "its account adds up pairs (epsilon, delta) of single nodes for one replaced record: there "
        "is no proof for a record that comes late, and no charge that a ledger could add up"
    ),
    "linucb-ldp": _DEVICES_REASON,
    "linucb-sdp-amp": _DEVICES_REASON,
    "linucb-sdp-vec": _DEVICES_REASON,
    "feducb-decentralized": "it has no hub, and when its silos report depends on their data",
    "fedlinucb": "it is not private",
    "thompson": "it is not private",
    "private-dartboard": _BASELINE_REASON,
    "limited-updates": _BASELINE_REASON,
}
#: How secure sums hide reports: in two shares, for hub and helper, or under pairwise masks.
SUM_METHODS = ("shares", "masks")

#: Conditions that a deployment's certificate states in addition to its system's conditions.
SECRETS_CONDITION = Condition(
    "no silo reveals its state or its secret: whoever has both the secret and the messages of a "
    "silo can remove its noise (taken on trust)",
    True,
)
LATE_RECORD_CONDITION = Condition(
    "when a record comes may depend on the record: if it comes later, it moves from one batch to "
    "another, which costs no more than its replacement (docs/deployment.md)",
    True,
)
HELPER_CONDITION = Condition(
    "hub and helper do not share what they know (taken on trust; `also` states what holds if they "
    "do)",
    True,
)
SHUFFLER_CONDITION = Condition(
    "hub and helper, which together are the shuffler, do not share what they know (taken on trust: "
    "otherwise they could read the counts of single silos, for which nothing is proven); each silo "
    "draws the noise bits for as many users as a batch may have",
    True,
)
MASKS_CONDITION = Condition(
    "each key of masks is known only to its two silos, which agree on it by X25519; masks derived "
    "from it by ChaCha20 are assumed to be random; the plan has every silo's true public keys "
    "(taken on trust)",
    True,
)
#: A silo learns from at most `PEOPLE_PER_ROUND` times as many people as its plan has rounds.
PEOPLE_PER_ROUND = 64
PEOPLE_CONDITION = Condition(
    f"no silo has more than {PEOPLE_PER_ROUND} times system.horizon people to learn from (taken on "
    "trust): it would not learn from further people, so what it learns would depend on who came "
    "before",
    True,
)
#: Caveat that replaces a simulation's caveat about its random bits.
EXACT_BITS_CAVEAT = (
    "the exact epsilon is for exact draws; noise bits are drawn exactly, but records are rounded "
    "by 32-bit random words, which changes a record by at most 2^-32 of an encoding level"
)
#: First words of a simulation's condition about masks, which HELPER_CONDITION, SHUFFLER_CONDITION
#: or MASKS_CONDITION replaces.
_MASKS_PREFIX = "the masks' keys"


def _device_bits(plan: Plan) -> Condition:
    """Return the condition about users' devices, which states the plan's flip probability."""
    claim = plan.privacy
    assert claim is not None
    count = claim.max_participations
    bits = "one bit at most," if count == 1 else f"at most {count} bits to all silos together, each"
    return Condition(
        f"each person's device sends {bits} flipped with probability {plan.flips} / 2^53, and "
        "whether and when it does so does not depend on the reward (taken on trust)",
        True,
    )


def linear_conditions(plan: Plan, helper: bool) -> tuple[Condition, ...]:
    """Return the conditions that a linear bandit's deployment adds to its certificate.

    They depend on how the silos' reports are hidden from the hub: by shares with a helper, by
    masks, or not at all. If users send bits, the only condition is about their devices.
    ``helper`` is True if the plan has a helper.
    """
    if plan.flips:
        return (_device_bits(plan),)
    conditions = (SECRETS_CONDITION, LATE_RECORD_CONDITION, PEOPLE_CONDITION)
    if added_up(plan) and helper:
        return *conditions, SHUFFLER_CONDITION if plan.protocol.bits else HELPER_CONDITION
    return (*conditions, MASKS_CONDITION) if added_up(plan) and plan.silos > 1 else conditions


def with_conditions(certificate: Certificate, added: tuple[Condition, ...]) -> Certificate:
    """Return a certificate to which the conditions ``added`` of a deployment are added.

    The simulation's condition about masks is removed, and its caveat about random bits is replaced.
    """
    conditions = [c for c in certificate.conditions if not c.text.startswith(_MASKS_PREFIX)]
    caveats = tuple(EXACT_BITS_CAVEAT if c == NOISE_BITS_CAVEAT else c for c in certificate.caveats)
    return msgspec.structs.replace(certificate, conditions=(*conditions, *added), caveats=caveats)


def linear_rounds(plan: Plan) -> Plan:
    """Return a linear bandit's plan unchanged; raise InputError if it cannot be deployed."""
    check_supported(check_plan(plan))
    return plan


def charged_bits(plan: Plan) -> tuple[float, float] | None:
    """Return (requested epsilon, charged epsilon) of a plan with bits; None for other noise.

    The bits are noise bits that silos add, or bits that users' devices send. Requested is the
    epsilon of the plan's budget, charged is the epsilon that ledgers count.
    """
    events: Any = released(plan)
    if plan.flips:
        return events[0].budget.epsilon, charges.epsilon_of_user_bits(events[0])
    if plan.protocol.bits and plan.releases:
        return events[0].budget.epsilon, charges.charge_of_bits(events[0])[0]
    return None


def system_keys(table: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Split a spec's table ``system`` into its parts, for a deployment.

    A key for which deployments allow only one value is set to this value.

    Returns
    -------
    algorithm, protocol : str
    keys : dict
        The other keys of the table, which belong to the algorithm.

    Raises
    ------
    InputError
        If the system, protocol or schedule cannot be deployed.
    """
    keys = dict(table)
    name = _checked_choice(
        "system.algorithm", keys.pop("algorithm", SUPPORTED_SYSTEMS[0]), SUPPORTED_SYSTEMS
    )
    if name == "feducb":
        if (schedule := keys.setdefault("schedule", "fixed")) != "fixed":
            raise InputError(
                'system.schedule must be "fixed" in a deployment, whose releases follow the '
                f"calendar and not the data, got {show(schedule)}"
            )
        return name, "silo-ldp-prefix", keys
    if name == "robin":
        # The silos' data have no known bounds, so features and rewards must be clipped.
        if not (keys.setdefault("clip", True) and keys.setdefault("private", True)):
            raise InputError("system.clip and system.private must be true in a deployment of robin")
        return name, "private-mean", keys
    if name == "fed-dp-ope-stoch":
        keys.setdefault("noise", "central")
        return name, "scores", keys
    if name == "fed-svt":
        return name, "sparse-switching", keys
    protocol = _checked_choice(
        "system.protocol", keys.setdefault("protocol", SUPPORTED_PROTOCOLS[0]), SUPPORTED_PROTOCOLS
    )
    if protocol == "secure-sum":
        keys["messages"] = "individual"
    return name, protocol, keys


def _checked_choice(key: str, value: Any, supported: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``supported``; else raise InputError.

    The message gives the reason of `REFUSAL_REASONS` for a value that exists but is not deployed.
    """
    reason = REFUSAL_REASONS.get(value) if isinstance(value, str) else None
    if reason is not None:
        raise InputError(f'{key} "{value}" is not deployed: {reason}')
    return choice(key, value, supported)


def added_up(plan: Plan) -> bool:
    """Return True if only the sum of the silos' reports is seen.

    This holds for secure sums, and for protocols in which users send bits.
    """
    return plan.secure is not None or plan.protocol.bits


def check_supported(plan: Plan) -> None:
    """Raise InputError if a linear bandit's plan cannot be deployed, or not with its guarantee.

    The error lists all reasons.
    """
    claim, protocol = plan.privacy, plan.protocol
    if (
        claim is None
        or claim.budget is None
        or not claim.exact
        or not math.isfinite(claim.exact[0])
    ):
        raise InputError("a deployment needs a plan with a proven epsilon")
    if protocol.id not in SUPPORTED_PROTOCOLS:
        raise InputError(
            f'deployments run the protocols {", ".join(SUPPORTED_PROTOCOLS)}, got "{protocol.id}"'
        )
    refused = {
        "a trigger": plan.trigger is not None,
        "eager selection": not plan.lazy,
        "own rounds": plan.own is not None,
        "arms without contexts": plan.arms,
        "a score function": plan.score is not None,
        "another policy than ucb": plan.policy != "ucb",
        "no clipping": plan.clip is None,
        # With an intercept, the sums of a batch reveal its number of records. A late record would
        # change two of these numbers.
        "a public intercept": plan.clip is not None and plan.clip.constant > 0.0,
        "a user of several batches, unless users send bits": (
            claim.max_participations != 1 and not plan.flips
        ),
        "a user of several silos, whose ledgers do not know of each other": claim.silos_met != 1,
        'a relation other than "replace", which covers late records': claim.budget.relation
        != "replace",
        'a unit other than "user", or "reward" with bits of users': (
            claim.budget.unit != ("reward" if plan.flips else "user")
        ),
        # In one dimension, replacing a record may cost less than moving it to a later leaf.
        "secure sums of one feature": plan.secure is not None and plan.dimension == 1,
        'release "nested"': plan.release == "nested",
        'noise_draws "sum", which is for simulations: here each silo adds its own noise': (
            plan.drawn_once
        ),
        'messages "individual", which would send every bit': protocol.bits and plan.individual,
        "no release": not plan.releases,
        "columns of the factor with a negative inner product, with which a late record costs more "
        "than a replaced one": not _delays_covered(plan),
        "noise bits under which a record that comes late costs more than replacing one": (
            not _late_bits_covered(plan)
        ),
    }
    reasons = [reason for reason, applies in refused.items() if applies]
    if reasons:
        raise InputError(f"deployments do not run plans with {', '.join(reasons)}")


def _delays_covered(plan: Plan) -> bool:
    """Return True if moving a record to a later batch costs no more privacy than replacing it.

    Costs are measured in the sensitivity of the plan's noise mechanism, a matrix factorisation: the
    sums of the batches are multiplied by an encoder matrix, and then get noise.
    """
    if plan.secure is not None:
        size = plan.releases
        encoder = np.zeros((size, size))
        for k, row in enumerate(plan.secure.factor):
            encoder[k, : k + 1] = row
    elif plan.factor is not None:
        encoder = plan.factor.encoder
    else:
        # Trees and Toeplitz factors have no negative entry, so no inner product is negative.
        return True
    # A record that moves from batch i to batch j changes the encoded sums by the difference of the
    # encoder's columns i and j, times the record. The proof that this costs no more than replacing
    # the record ("Late records" in docs/deployment.md) needs a squared norm of this difference that
    # is at most the sum of the two columns' squared norms. So their inner product must be >= 0.
    products = encoder.T @ encoder
    return bool((products >= -1e-12 * products.max()).all())


def _late_bits_covered(plan: Plan) -> bool:
    """Return True if a plan's exact epsilon also holds for a record that comes late.

    Only plans with noise bits need this check; the result is True for all others.
    """
    if not plan.protocol.bits or not plan.releases:
        return True
    event: Any = (released(plan) or (None,))[0]
    return charges.late_epsilon(event) <= event_epsilon(event) * (1.0 + TOLERANCE)


def check_sum(requested: Any, protocol: str, helper: bool) -> None:
    """Raise InputError if a helper, or its absence, does not fit ``federation.sum`` of a spec.

    A plan file does not store ``federation.sum``: after this check, only the presence of a helper
    matters.

    Parameters
    ----------
    requested
        The value of ``federation.sum``; None if the spec has none.
    protocol : str
        The id of the plan's protocol.
    helper : bool
        True if the spec has a helper.
    """
    if requested is not None and protocol not in SECURE_SUM_PROTOCOLS:
        raise InputError(f'federation.sum has no meaning for protocol "{protocol}"; leave it out')
    if protocol in SECURE_SUM_PROTOCOLS:
        sum_method = choice(
            "federation.sum", "shares" if requested is None else requested, SUM_METHODS
        )
        if sum_method == "shares" and not helper:
            raise InputError(
                f'protocol "{protocol}" needs a helper; where no third party exists, say '
                'sum = "masks" under federation'
            )
        if sum_method == "masks" and helper:
            raise InputError('sum = "masks" has no use for a helper; leave its table out')


def check_least(plan: Plan, least: int, masked: bool) -> None:
    """Raise InputError if ``least``, the minimum number of silos in a release, does not fit a plan.

    ``masked`` is True if pairwise masks hide the reports. Masks cancel only in the sum over all
    silos. Noise bits have enough variance only if enough silos contribute them. In a plan with
    clocks, silos report at different times, so ``least`` must be 1.
    """
    if isinstance(plan, ClockedPlan) and least != 1:
        raise InputError(
            "least must be 1 with clock, since no silo waits for another; leave it out, got "
            f"{least}"
        )
    if masked and least != plan.silos:
        raise InputError(
            f"least must be all {plan.silos} silos where sums are under masks, which cancel only "
            f"if none is missing, got {least}"
        )
    if plan.protocol.bits and plan.privacy is not None:
        honest_silos = plan.privacy.honest_fraction * plan.silos
        if least < honest_silos - 1e-9:
            raise InputError(
                f"least must be at least {math.ceil(honest_silos - 1e-9)} of {plan.silos} silos, "
                f"got {least}: the certificate counts on the noise bits of these silos; with "
                "honest_fraction below 1 it counts on fewer"
            )


# ---- kinds ---------------------------------------------------------------------------------------

#: Types of plans that can be deployed.
Executed = Plan | PhasePlan | FrankWolfePlan | SparseVectorPlan

#: Conditions of the joint guarantee of a plan and the plans that it continues. The first is for
#: plans that protect persons, the second for plans that learn from a person several times, and the
#: third for plans that protect silos.
SAME_PEOPLE = Condition(
    "each plan learns from a person at most once (taken on trust); a person who is in one plan "
    "only has the guarantee of that plan",
    True,
)
SAME_VISITORS = Condition(
    "each plan learns from a person at most as often as its certificate states (taken on trust); a "
    "person who is in one plan only has the guarantee of that plan",
    True,
)
SAME_SILOS = Condition(
    "the unit is a silo with all data that it has in any of the plans: all of its data may be "
    "replaced at once",
    True,
)


@dataclass(frozen=True)
class Kind:
    """What a deployment needs to know about one type of plan.

    Parameters
    ----------
    rounds : callable
        Maps a plan to a `Plan` with its schedule of releases. Raises InputError if the plan cannot
        be deployed privately.
    message_size : callable
        Maps a plan to the count of numbers in a report.
    conditions : callable
        Maps (plan, whether it has a helper) to the conditions that the deployment adds to the
        certificate.
    charged : callable
        Maps a plan to (requested epsilon, charged epsilon), if a ledger may charge more than the
        certificate states; else to None.
    silo, hub : str
        The classes of the parties, as "module.class" in `fastfed.deployment`.
    linear : bool
        True for linear bandits.
    experts : bool
        True for plans with experts, whose silos learn the losses of all experts.
    same : Condition
        The condition of the joint guarantee of a plan and the plans that it continues.
    """

    rounds: Callable[[Any], Plan]
    message_size: Callable[[Any], int]
    conditions: Callable[[Any, bool], tuple[Condition, ...]]
    charged: Callable[[Any], tuple[float, float] | None]
    silo: str
    hub: str
    linear: bool = False
    experts: bool = False
    same: Condition = SAME_PEOPLE


def _imported(path: str) -> Any:
    """Return an object of `fastfed.deployment`, given as "module.name".

    The module is imported at the call, to avoid an import cycle.
    """
    module, name = path.split(".")
    return getattr(importlib.import_module(f"fastfed.deployment.{module}"), name)


def _expert_kind(message_size: Callable[[Any], int], silo: str, hub: str) -> Kind:
    """Create the `Kind` of a type of plan with experts; see `Kind` for the parameters."""
    return Kind(
        rounds=lambda plan: _imported("experts.rounds")(plan),
        message_size=message_size,
        conditions=lambda plan, helper: _imported("experts.CONDITIONS"),
        charged=charges.requested_and_charged,
        silo=silo,
        hub=hub,
        experts=True,
    )


LINEAR = Kind(
    rounds=linear_rounds,
    message_size=lambda plan: int(plan.statistic_size),
    conditions=linear_conditions,
    charged=charged_bits,
    silo="silo.SiloParty",
    hub="hub.Hub",
    linear=True,
)
#: Type of the plan -> its kind.
KINDS: dict[type, Kind] = {
    Plan: LINEAR,
    ClockedPlan: replace(LINEAR, silo="clocked.ClockedSilo", hub="clocked.ClockedHub"),
    PhasePlan: Kind(
        rounds=lambda plan: _imported("phases.rounds")(plan),
        # A message holds an estimate or a model, (d,).
        message_size=lambda plan: int(plan.local.dimension),
        conditions=lambda plan, helper: _imported("phases.CONDITIONS"),
        charged=charges.charged_means,
        silo="phases.PhaseSilo",
        hub="phases.PhaseHub",
        same=SAME_SILOS,
    ),
    FrankWolfePlan: _expert_kind(
        lambda plan: int(_imported("experts.tree_numbers")(plan)),
        "experts.ExpertSilo",
        "experts.ExpertHub",
    ),
    SparseVectorPlan: _expert_kind(
        lambda plan: int(plan.experts), "experts.SparseSilo", "experts.SparseHub"
    ),
}


def kind_of(plan: object) -> Kind:
    """Return the kind of a plan; raise InputError if plans of its type cannot be deployed."""
    kind = KINDS.get(type(plan))
    if kind is None:
        raise InputError("the plan file must hold a plan that can be deployed")
    return kind


def first_model(deployed: DeployedPlan) -> Any:
    """Create the model by which a plan's silos choose actions before the plan's first release."""
    return _imported(deployed.kind.silo).starts(deployed)


def silo_of(
    deployed: DeployedPlan,
    name: str,
    secret: bytes,
    ledger: Ledger,
    dataset: str = "records",
    **options: Any,
) -> SiloParty:
    """Create a silo, of the class that fits the plan's kind; see `SiloParty` for the parameters."""
    silo: SiloParty = _imported(deployed.kind.silo)(
        deployed, name, secret, ledger, dataset, **options
    )
    return silo


def hub_of(deployed: DeployedPlan, secret: bytes, **options: Any) -> Hub:
    """Create the hub, of the class that fits the plan's kind; see `Hub` for the parameters."""
    hub: Hub = _imported(deployed.kind.hub)(deployed, secret, **options)
    return hub


#: Maximum number of releases: a receipt lists all of them in one message.
MAX_RELEASES = 10_000
#: Maximum horizon of fed-dp-ope-stoch, whose trees are computed whenever a plan file is loaded.
MAX_LOSSES = 2**20
#: Maximum number of releases with an optimal factor: computing it takes a second at every load.
MAX_FACTORISED = 512
#: Maximum count of numbers in one message of sums, and in a silo's sums of all releases.
MAX_IN_MESSAGE, MAX_KEPT = 1 << 22, 1 << 27


def check_sizes(
    algorithm: str,
    keys: dict[str, Any],
    silos: int,
    horizon: int,
    dimension: int,
    closes: int | None = None,
) -> None:
    """Raise InputError if a plan is too large, before any array of its size is allocated.

    ``algorithm`` and ``keys`` are as in `derived`, ``dimension`` is the number of columns.
    ``closes`` is the number of periods in a plan file's calendar; None for a spec, which has no
    such calendar yet. It must equal the number of releases or, with ``clock``, of exchanges.
    """
    max_horizon = MAX_LOSSES if algorithm == "fed-dp-ope-stoch" else 2**31
    integer("system.horizon", horizon, at_least=1, at_most=max_horizon)
    config = _entry(algorithm).check(keys)
    refuse_delay(getattr(config, "delay", None))
    releases = _known_releases(algorithm, config, (silos, horizon, dimension), closes)
    if releases > MAX_RELEASES:
        raise InputError(
            f"a deployment has at most {MAX_RELEASES} releases, got {releases}: longer batches "
            "give fewer"
        )
    if getattr(config, "release", None) == "factorised" and releases > MAX_FACTORISED:
        raise InputError(
            f'release "factorised" in a deployment is for at most {MAX_FACTORISED} releases, as '
            f'every party derives the factor, got {releases}: choose release = "toeplitz"'
        )
    if algorithm in EXPERTS:
        return
    size = statistic_size(dimension)
    if size > MAX_IN_MESSAGE or size * max(releases, 1) > MAX_KEPT:
        raise InputError(
            f"a deployment of {releases} releases cannot have {dimension} columns: their sums have "
            f"{size} numbers, and at most {min(MAX_IN_MESSAGE, MAX_KEPT // max(releases, 1))} fit"
        )


def _known_releases(
    algorithm: str, config: Any, sizes: tuple[int, int, int], closes: int | None
) -> int:
    """Return the number of releases (with ``clock``: exchanges) of a plan before it is computed.

    For `fed-svt`, it is an upper bound. The result is 0 if the number is known only from the plan.
    ``config`` holds the algorithm's checked keys. ``sizes`` are the numbers of silos, of rounds and
    of columns; ``closes`` is as in `check_sizes`.

    Raises
    ------
    InputError
        If ``closes`` differs from the number.
    """
    if algorithm == "fed-svt":
        # Return the larger of `closes` and the number of phases, so that the caller limits both.
        # Deriving the plan checks that they are equal.
        return max(closes or 0, sizes[1] // config.phase_length)
    if getattr(config, "clock", None) is not None:
        exchanges = len(deployed_clocks(config, problem_of(algorithm, *sizes)).ticks)
        if closes is not None and closes != exchanges:
            raise InputError(
                f"calendar must have {exchanges} closes, one for each exchange of the plan's "
                f"clock, got {closes}"
            )
        return exchanges
    if isinstance(config, Config) and algorithm != "robin":
        releases = _known_batches(config, problem_of(algorithm, *sizes))
        if releases and closes is not None and closes != releases:
            raise InputError(
                f"calendar must close {releases} leaves, one for each release of the plan, got "
                f"{closes}"
            )
        return releases
    return closes or 0


def _known_batches(config: Config, problem: ProblemSpec) -> int:
    """Return the number of batches of a linear bandit; 0 if it is known only from the plan."""
    if getattr(config, "every_round", False):
        return problem.horizon
    if isinstance(config.batch_size, int):
        # Do not call `config.batches` here: it would allocate an array of all rounds.
        return problem.horizon // config.batch_size if config.batch_size > 0 else 0
    if config.batch_size == "theorem" or getattr(config, "share", None) is not None:
        return 0
    return config.batches(problem).releases


def problem_of(algorithm: str, silos: int, horizon: int, dimension: int) -> Any:
    """Return the problem of a deployment: its sizes, and no assumption about the data.

    Data are bounded only by clipping.

    Returns
    -------
    ProblemSpec
        Of `fastfed.experts` if the algorithm has experts, else of `fastfed.bandits`.
    """
    if algorithm in EXPERTS:
        return ExpertProblem(
            silos=silos,
            horizon=horizon,
            experts=dimension,
            notes=("deployment: losses are the silos' own, and of no law that is known",),
        )
    return ProblemSpec(
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        reward_range=None,
        features_bounded=False,
        room=PEOPLE_PER_ROUND,
        notes=("deployment: who is served how often, and at which silo, is taken on trust",),
    )


def derived(
    algorithm: str, keys: dict[str, Any], silos: int, horizon: int, dimension: int
) -> Executed:
    """Return the plan that follows from a plan file's choices, computed on this machine.

    Parameters
    ----------
    algorithm : str
        One of `SUPPORTED_SYSTEMS`.
    keys : dict
        Every key of the algorithm, as `resolved_keys` returns them.
    silos, horizon, dimension : int
        The numbers of silos, of rounds of each silo, and of columns (with experts: of experts).

    Raises
    ------
    InputError
        For unknown keys, and for values that the algorithm refuses.
    """
    return _derived(algorithm, _CANONICAL.encode(keys), silos, horizon, dimension)


_CANONICAL = msgspec.msgpack.Encoder(order="deterministic")


@lru_cache(maxsize=64)
def _derived(algorithm: str, keys: bytes, *sizes: int) -> Any:
    """Return the plan of `derived`; cached. ``keys`` are encoded, so that they can be hashed."""
    keys_given = msgspec.msgpack.decode(keys)
    entry = _entry(algorithm)
    problem = problem_of(algorithm, *sizes)
    all_keys = resolved_keys(algorithm, keys_given, problem)
    for key, value in keys_given.items():
        expected = all_keys.get(key)
        # Compare encodings: Python's != takes the values 1, 1.0 and true for equal.
        if _CANONICAL.encode(expected) != _CANONICAL.encode(value):
            raise InputError(
                f"the plan file's {key} must be {show(expected)} with its other keys, got "
                f"{show(value)}"
            )
    return entry.make(keys_given, problem).plan


def _entry(algorithm: str) -> Algorithm:
    """Return the registry entry of an algorithm that can be deployed."""
    return {**ALGORITHMS, **EXPERTS}[choice("system.algorithm", algorithm, SUPPORTED_SYSTEMS)]


def resolved_keys(algorithm: str, keys: dict[str, Any], problem: Any) -> dict[str, Any]:
    """Return all keys of an algorithm with their values, including defaults, as plain data.

    A plan file stores all values, because defaults may change in a later version of fastfed. It
    has no ``delay`` and no ``shuffled``, which are keys of simulations only, and no ``clock`` if
    silos have none.
    """
    entry = _entry(algorithm)
    encoded = _CANONICAL.encode(msgspec.to_builtins(entry.settled(entry.check(keys), problem)))
    # Decode again, to get the values as from a plan file: tuples become lists.
    all_keys: dict[str, Any] = msgspec.msgpack.decode(encoded)
    for key in ("delay", "shuffled"):
        all_keys.pop(key, None)
    if all_keys.get("clock") is None:
        all_keys.pop("clock", None)
    return all_keys


# ---- certificates and charges --------------------------------------------------------------------


def deployed_certificate(
    plan: Executed, problem: ProblemSpec | ExpertProblem, helper: bool = False
) -> Certificate:
    """Return the certificate of a deployed plan, computed from the plan's numbers.

    ``helper`` is True if secure sums are split into shares for hub and helper, False for masks.
    """
    kind, certificate = kind_of(plan), deployed(account(plan, problem))
    conditions = kind.conditions(plan, helper)
    if not kind.linear:
        return msgspec.structs.replace(
            certificate, conditions=(*certificate.conditions, SECRETS_CONDITION, *conditions)
        )
    return with_conditions(certificate, conditions)


def affordable_keys(
    algorithm: str, keys: dict[str, Any], problem: ProblemSpec | ExpertProblem
) -> dict[str, Any]:
    """Return all keys of a system, with a smaller epsilon if ledgers would charge too much.

    A ledger may charge more for a plan than the plan's certificate states, for two reasons:

    - For noise bits in unequal batches, the certificate may use a different cost (mu^2, failure)
      for each batch (see `deployment.charges`). The ledger stores one cost for the plan, so the
      charge is higher by about 10^-4 of epsilon.
    - Private means are charged as a Gaussian mechanism, which costs some hundredths of epsilon
      more.

    In both cases the system is built for a smaller epsilon, for which ledgers charge at most the
    requested epsilon.
    """
    entry = _entry(algorithm)
    requested = None
    # Each pass multiplies epsilon by the requested epsilon divided by the charged epsilon.
    for _ in range(6):
        plan = entry.make(keys, problem).plan
        charged = kind_of(plan).charged(plan)
        if charged is None:
            break
        plan_epsilon, epsilon_charged = charged
        requested = plan_epsilon if requested is None else requested
        if epsilon_charged <= requested or not math.isfinite(epsilon_charged):
            break
        keys = keys | {"epsilon": plan_epsilon * requested / epsilon_charged * (1.0 - 1e-6)}
    return resolved_keys(algorithm, keys, problem)
