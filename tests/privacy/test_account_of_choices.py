"""Check that plans which no builder makes have no privacy account.

Whoever edits a plan may change any of its numbers and seal it again. The package must then refuse
an account, or account for exactly what the plan runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from test_account import CASES, Case, _private, everywhere, parties

import fastfed
from fastfed._validate import InputError
from fastfed.privacy.account import accounted, event_epsilon, sealed, terms, verify
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.mechanisms.reward_release import RewardRelease
from fastfed.privacy.numbers import MOST, check_numbers
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.account import bounds_of, centred_of
from fastfed.protocols.plan import Clip, NoiseStd
from fastfed.protocols.protocol import drawn_once, released_as
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT, Trigger
from fastfed.protocols.serverless import PLAIN_MEAN, PeerPlan

replace_struct = msgspec.structs.replace


def account_again(plan: Any) -> tuple[float, ...]:
    """Seal the changed plan with the package's functions and return its account."""
    if isinstance(plan, PeerPlan):
        parts = tuple(replace(part, plan=sealed(part.plan)) for part in plan.parts)
        choice_account = accounted(replace(plan, parts=parts))
        assert choice_account is not None
        return choice_account
    return sealed(plan).privacy.exact


# ---- the claim's budget and the mechanism's budget -----------------------------------------------

#: Plans with a mechanism that was calibrated for a budget.
MECHANISM_CASES = tuple(
    name
    for name in CASES
    if name.startswith(("robin", "fed-svt", "private-dartboard", "limited-updates"))
)


@pytest.mark.parametrize("name", MECHANISM_CASES)
@pytest.mark.parametrize(
    "budget_changes",
    [
        *({"delta": delta} for delta in (1e-30, 0.0, 1e-3 * (1.0 + 1e-6), 0.3)),
        *({"epsilon": 9.0}, {"relation": "zero-out"}, {"unit": "item"}),
    ],
    ids=str,
)
def test_claims_must_have_the_budget_of_the_mechanism(
    name: str, budget_changes: dict[str, Any]
) -> None:
    """Check that an epsilon at the mechanism's delta is never combined with another delta."""
    plan = CASES[name].make().plan
    if "pure" in name and budget_changes == {"delta": 0.0}:
        assert account_again(plan) == plan.privacy.exact
        return
    claim = replace_struct(
        plan.privacy, budget=replace_struct(plan.privacy.budget, **budget_changes)
    )
    faulty = replace(plan, privacy=claim)
    with pytest.raises(InputError, match=r"noise is for .* both must be the same budget"):
        account_again(faulty)
    for make_party in parties(faulty).values():
        with pytest.raises(InputError, match="both must be the same budget"):
            make_party()


def test_the_budget_of_every_mechanism_is_checked() -> None:
    """Change the budget of a mechanism, also of a single mean."""
    for name in MECHANISM_CASES:
        plan = CASES[name].make().plan
        if name == "robin":
            last = plan.means[-1]
            other_mechanism = replace_struct(last, budget=replace_struct(last.budget, delta=0.3))
            faulty = replace(plan, means=(*plan.means[:-1], other_mechanism))
        else:
            other_mechanism = replace_struct(
                plan.noise, budget=replace_struct(plan.noise.budget, delta=0.3)
            )
            faulty = replace(plan, noise=other_mechanism)
        with pytest.raises(
            InputError, match=r"must be the same budget|equal except for their radius"
        ):
            account_again(faulty)


@pytest.mark.parametrize("delta", [1e-30, 0.0, 0.3])
@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in MECHANISM_CASES and "decentral" not in n]
)
def test_accounts_without_a_mechanism_use_the_delta_of_the_claim(name: str, delta: float) -> None:
    """Check that epsilon is computed at whatever delta is claimed, if the noise is in the plan."""
    plan = CASES[name].make().plan
    claim = replace_struct(plan.privacy, budget=replace_struct(plan.privacy.budget, delta=delta))
    try:
        choice_account = account_again(replace(plan, privacy=claim))
    except InputError:
        return
    # With budgets per silo, only the first event uses the claim's delta.
    before, after = plan.privacy.exact[0], choice_account[0]
    assert after > before if delta < plan.privacy.budget.delta else after < before


# ---- combinations --------------------------------------------------------------------------------


def change_plan(name: str, change: Callable[[Any], Any]) -> Any:
    """Return the plan of a case with ``change`` applied to every part."""
    return everywhere(CASES[name].make().plan, change)


def with_protocol(name: str, **fields: Any) -> Any:
    """Return the plan of a case with changed fields of its protocol."""
    return change_plan(name, lambda p: replace(p, protocol=replace(p.protocol, **fields)))


def small_factor(name: str) -> Any:
    """Return a plan with 10^-6 of a node's noise in every prefix, so nearly raw sums."""
    plan = CASES[name].make().plan
    factor = Factor(1e-6 * np.tri(plan.releases))
    protocol = released_as(plan.protocol, "factorised")
    return replace(plan, release="factorised", factor=factor, protocol=protocol)


def reward_plan() -> Any:
    """Return a plan with private rewards only: a tree of sums of x y."""
    return _private("silo-ldp", protects="reward", release="tree", clip=True).make().plan


def one_phase_twice(name: str) -> Any:
    """Return a plan in which the losses of the last phase are used in two phases."""
    plan = CASES[name].make().plan
    last = plan.phases[-1]
    second_phase = replace(last, offset=last.offset + len(last.leaves))
    return replace(plan, phases=(*plan.phases, second_phase))


def with_phase(name: str, **fields: Any) -> Any:
    """Return the plan of a case with changed fields of its last phase."""
    plan = CASES[name].make().plan
    return replace(plan, phases=(*plan.phases[:-1], replace(plan.phases[-1], **fields)))


def one_part_otherwise(**fields: Any) -> Any:
    """Return a decentralised plan with changed fields of its last part."""
    plan = CASES["feducb-decentralized fixed"].make().plan
    *other_parts, last = plan.parts
    return replace(plan, parts=(*other_parts, replace(last, **fields)))


def one_part(**fields: Any) -> Any:
    """Return the plan of the last part with changed fields."""
    return replace(CASES["feducb-decentralized fixed"].make().plan.parts[-1].plan, **fields)


def one_part_at_another_delta() -> Any:
    """Return a decentralised plan in which one part has half the noise and claims delta 1/2."""
    part = one_part()
    claim = replace_struct(part.privacy, budget=replace_struct(part.privacy.budget, delta=0.5))
    return one_part_otherwise(
        plan=replace(part, noise_std=part.noise_std.times(0.5), privacy=claim)
    )


def plan_with_noise(name: str, **fields: Any) -> Any:
    """Return the plan of an expert case with a changed mechanism."""
    plan = CASES[name].make().plan
    return replace(plan, noise=replace_struct(plan.noise, **fields))


def plan_with_means(change: Callable[[Any], Any]) -> Any:
    """Return the plan of robin with changed private means."""
    plan = CASES["robin"].make().plan
    return replace(plan, means=tuple(change(plan.means)))


EVERY_ROUND = Case("private-fedlinucb", {"batch_size": 1}, horizon=7)
BAD_COMBINATIONS = {
    "users that do not send": (
        lambda: replace(
            (p := EVERY_ROUND.make().plan), protocol=replace(p.protocol, senders="users")
        ),
        "protocol must be .* senders 'silos', got 'users'",
    ),
    "a shuffle of another release": (lambda: small_factor("shuffle-amplified"), "release of"),
    "prefixes of another release": (lambda: small_factor("silo-ldp prefix"), "release of"),
    "users of another release": (lambda: small_factor("linucb-ldp"), "release of"),
    "a factor beside a tree": (
        lambda: change_plan(
            "shuffle-amplified", lambda p: replace(p, factor=Factor(np.tri(p.releases)))
        ),
        "factor belongs to release",
    ),
    "a factor of rewards": (
        lambda: replace((p := reward_plan()), factor=Factor(1e6 * np.eye(p.releases))),
        "factor belongs to release",
    ),
    "a short factor of rewards": (
        lambda: replace(
            (p := reward_plan()),
            release="factorised",
            protocol=released_as(p.protocol, "factorised"),
            factor=Factor(1e6 * np.eye(1)),
        ),
        "factor must be of 7 releases, got 1",
    ),
    "noise of nobody": (
        lambda: with_protocol("fed-dp-ope-stoch local", noise_by="users"),
        "as it is registered",
    ),
    "a phase twice": (lambda: one_phase_twice("fed-dp-ope-stoch central"), "increasing numbers"),
    "phases in another order": (
        lambda: change_plan("fed-dp-ope-stoch local", lambda p: replace(p, phases=p.phases[:1:-1])),
        "phase 9 must begin after 0 exchanges",
    ),
    "a phase after the horizon": (
        lambda: with_phase("fed-dp-ope-stoch local", number=10),
        "increasing numbers from 2 to 9",
    ),
    "a phase before the first": (
        lambda: change_plan(
            "fed-dp-ope-stoch local",
            lambda p: replace(p, phases=(replace(p.phases[0], number=1), *p.phases[1:])),
        ),
        "increasing numbers from 2 to 9",
    ),
    "a phase without a tree": (
        lambda: with_phase("fed-dp-ope-stoch local", scales=()),
        "must have 1 to 20 trees",
    ),
    "a phase of too many trees": (
        lambda: with_phase("fed-dp-ope-stoch local", scales=(1.0,) * 21, batch=2**21),
        "must have 1 to 20 trees",
    ),
    "a batch that its trees do not divide": (
        lambda: with_phase("fed-dp-ope-stoch local", batch=18),
        "a batch that 2 to that power",
    ),
    "exchanges counted twice": (
        lambda: with_phase("fed-dp-ope-stoch local", offset=0),
        "must begin after 18 exchanges .* got 0 and 56",
    ),
    "more losses than there are": (
        lambda: with_phase("fed-dp-ope-stoch local", batch=128),
        "use at most 128 losses, got 18 and 448",
    ),
    "messages of a server": (
        lambda: change_plan(
            "fed-dp-ope-stoch central",
            lambda p: replace(p, privacy=replace_struct(p.privacy, protect="messages")),
        ),
        'protect "messages" needs noise of clients',
    ),
    "choices that are not counted": (
        lambda: plan_with_noise("limited-updates", choices=0),
        "must be of 6 choices, .* got 0",
    ),
    "losses that are not linear": (
        lambda: change_plan("fed-svt", lambda p: replace(p, linear=False)),
        "needs linear losses",
    ),
    "switches under another name": (
        lambda: with_protocol("fed-svt", model="local: nobody is trusted"),
        "as it is registered",
    ),
    "one mean of three": (
        lambda: plan_with_means(lambda m: m[:1]),
        "must have 3 private means, got 1",
    ),
    "means of other silos": (
        lambda: plan_with_means(lambda m: tuple(replace_struct(n, silos=29) for n in m)),
        "must be of 30 silos",
    ),
    "means of another dimension": (
        lambda: plan_with_means(lambda m: tuple(replace_struct(n, dimension=4) for n in m)),
        "and dimension 3",
    ),
    "one mean louder": (
        lambda: plan_with_means(
            lambda m: (
                m[0],
                *(replace_struct(n, epsilon_coordinate=2 * n.epsilon_coordinate) for n in m[1:]),
            )
        ),
        "equal except for their radius",
    ),
    "a mean that is declared private": (
        lambda: change_plan(
            "robin", lambda p: replace(p, protocol=replace(PLAIN_MEAN, noise_by="server"))
        ),
        "as it is registered",
    ),
    "initial phases that send": (
        lambda: change_plan("robin", lambda p: replace(p, local=replace(p.local, batch_size=5))),
        "nothing of initial phases",
    ),
    "a part at another delta": (one_part_at_another_delta, "must claim one budget"),
    "a part of other rounds": (
        lambda: one_part_otherwise(plan=one_part(horizon=30)),
        "must be of 3 silos, 35 rounds",
    ),
    "a part of another estimator": (
        lambda: one_part_otherwise(estimator=2),
        "each of 3 silos once for each of 2 estimators",
    ),
    "a part of another dimension": (
        lambda: one_part_otherwise(plan=one_part(dimension=2)),
        "and dimension 3, got",
    ),
    "a silo in no part": (lambda: one_part_otherwise(clique=(0, 1)), "must be of 2 silos"),
    "a silo in two parts": (
        lambda: one_part_otherwise(clique=(0, 1, 1)),
        "hold each of 3 silos once",
    ),
    "a part twice": (
        lambda: change_whole_plan(
            "feducb-decentralized fixed", lambda p: replace(p, parts=(*p.parts, p.parts[-1]))
        ),
        "hold each of 3 silos once",
    ),
    "no part": (
        lambda: change_whole_plan("feducb-decentralized fixed", lambda p: replace(p, parts=())),
        "must hold each of 3 silos once",
    ),
    "a private schedule of bits": (
        lambda: change_plan(
            "linucb-sdp-vec",
            lambda p: replace(
                p,
                batch_size=1,
                horizon=7,
                trigger=Trigger(PRIVATE_DETERMINANT, 1.0, std=(0.1, 0.1)),
            ),
        ),
        'must have protocol "silo-ldp-prefix" if a trigger reads noisy sums',
    ),
    "a schedule of no kind": (
        lambda: change_plan(
            "feducb private-determinant", lambda p: replace(p, trigger=replace(p.trigger, kind=3))
        ),
        "must have a trigger of kind",
    ),
    "a trigger beside batches": (
        lambda: change_plan("silo-ldp", lambda p: replace(p, trigger=Trigger(DETERMINANT, 1.0))),
        "must have batch_size 1",
    ),
    "noise of single users": (
        lambda: change_plan("linucb-ldp", lambda p: replace(p, silo_noise=(1e-6,))),
        "silo_noise of 1 silos",
    ),
    "noise of silos that are not there": (
        lambda: change_plan("silo-ldp", lambda p: replace(p, silo_noise=(1.0, 1.0))),
        "silo_noise of 3",
    ),
    "two agents": (
        lambda: change_plan("linucb-jdp", lambda p: replace(p, silos=2)),
        "must have one silo",
    ),
    "bits that nobody sends": (
        lambda: change_plan(
            "silo-ldp", lambda p: replace(p, encoding=CASES["shuffle-vector"].make().plan.encoding)
        ),
        "an encoding if users send bits",
    ),
    "a longest batch that is none": (
        lambda: change_plan("linucb-ldp growing", lambda p: replace(p, batch_size=1)),
        "batch_size of its longest batch",
    ),
    "own rounds of users": (
        lambda: change_plan("shuffle-vector", lambda p: replace(p, own=local_rounds(p))),
        "share needs protocol",
    ),
    "more releases than fit": (
        lambda: change_plan("silo-ldp toeplitz", lambda p: replace(p, horizon=2**40)),
        "at most 16777216",
    ),
}


def change_whole_plan(name: str, change: Callable[[Any], Any]) -> Any:
    """Return the plan of a case after ``change``."""
    return change(CASES[name].make().plan)


def local_rounds(plan: Any) -> Any:
    """Return local rounds that start after the last release."""
    share = {"until": 20}
    keys = {"share": share, "clip": True}
    own_ = _private("silo-ldp", release="factorised", **keys).make().plan.own
    return replace(own_, until=plan.end(plan.releases))


@pytest.mark.parametrize("name", BAD_COMBINATIONS)
def test_combinations_that_no_builder_makes_have_no_account(name: str) -> None:
    make_plan, message = BAD_COMBINATIONS[name]
    with pytest.raises(InputError, match=message):
        account_again(make_plan())


@pytest.mark.parametrize("name", [n for n in CASES if "decentral" not in n])
def test_every_field_of_a_protocol_is_the_registered_one(name: str) -> None:
    """Change each field of the protocol alone."""
    plan = CASES[name].make().plan
    protocol = plan.protocol
    for field in dataclasses.fields(protocol):
        value = getattr(protocol, field.name)
        other = value + 7 if type(value) is int else not value
        if isinstance(value, str):
            other = f"{value}, more or less"
        with pytest.raises(InputError):
            # The name of a package's own protocol is for batches with separate noise, not for this
            # plan.
            account_again(replace(plan, protocol=replace(protocol, **{field.name: other})))


#: Cases in which a record causes one loss. With local noise, the account of messages takes seconds.
ONE_LOSS = ("fed-svt", "fed-svt pure", "private-dartboard", "private-dartboard pure",
            "limited-updates", "limited-updates pure", "fed-dp-ope-stoch central")  # fmt: skip


@pytest.mark.parametrize("name", ONE_LOSS)
def test_several_losses_of_a_record_increase_epsilon(name: str) -> None:
    """Check that at delta = 0 epsilon is multiplied by the number of losses."""
    plan = CASES[name].make().plan
    before = plan.privacy.exact
    assert account_again(plan) == before
    for uses in (2, 3):
        choice_account = account_again(
            replace(plan, privacy=replace_struct(plan.privacy, max_participations=uses))
        )
        assert len(choice_account) == len(before)
        if plan.privacy.budget.delta == 0.0:
            assert choice_account[0] == pytest.approx(uses * before[0])
        assert all(
            after > 1.01 * earlier for after, earlier in zip(choice_account, before, strict=True)
        )


def test_plans_of_simulations_that_draw_once_have_no_claim() -> None:
    """The reason: no silo runs their protocol."""
    plan = CASES["silo-ldp"].make().plan
    with pytest.raises(InputError, match="as it is registered, with randomizer"):
        account_again(replace(plan, protocol=drawn_once(plan.protocol)))
    verify(replace(plan, drawn_once=True).simulated)


def test_protocols_of_other_packages_must_be_batches_of_silos() -> None:
    """Check that name, summary and source are free, but trust and messages are not."""
    plan = _private("silo-ldp", release="tree").make(batch_size=35).plan
    own_protocol = replace(
        plan.protocol, id="noisy-batches", summary="mine", source="mine", randomizer=6, analyzer=0
    )
    assert account_again(replace(plan, protocol=own_protocol)) == pytest.approx(plan.privacy.exact)
    for fields in (
        {"senders": "users"}, {"noise_by": "none"}, {"shuffled": True}, {"analyzer": 1},
        {"randomizer": 0}, {"model": "local: nobody is trusted"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="as it is registered"):
            account_again(replace(plan, protocol=replace(own_protocol, **fields)))


def test_terms_of_a_certificate_follow_from_the_plan() -> None:
    """Check that the terms describe the plan that runs."""
    plan = CASES["silo-ldp published"].make().plan
    raw_plan = replace(plan, lazy=False, clip=None, trigger=Trigger(DETERMINANT, 1.0), batch_size=1)
    noisy_plan = CASES["feducb private-determinant"].make().plan
    assert terms(plan)[3:] == ("actions from released statistics", "fixed rounds", "clipping")
    assert terms(raw_plan)[3:] == ("actions from raw data", "rounds by raw data", "no clipping")
    assert terms(noisy_plan)[4] == "rounds by noisy sums"


# ---- intervals -----------------------------------------------------------------------------------

INTERVALS = [
    {"low": -1.0, "high": math.nan}, {"low": math.nan}, {"high": math.inf}, {"low": -math.inf},
    {"low": 2.0, "high": 1.0}, {"low": 0.5, "high": 0.5}, {"feature": math.nan}, {"feature": 0.0},
    {"feature": -1.0}, {"feature": math.inf}, {"centre": math.nan}, {"centre": math.inf},
    {"constant": math.nan}, {"constant": -0.5}, {"constant": math.inf},
]  # fmt: skip


@pytest.mark.parametrize("fields", INTERVALS, ids=str)
def test_clips_that_are_no_interval_are_refused(fields: dict[str, float]) -> None:
    """In Python max(1, nan) is 1, so an unbounded reward would seem bounded by 1."""
    clip = replace(Clip(), **fields)
    for bound in (bounds_of, centred_of):
        with pytest.raises(InputError, match="clip must have"):
            bound(clip)
    for name in ("silo-ldp published", "central", "secure-sum", "shuffle-vector", "linucb-sdp-amp"):
        with pytest.raises(InputError, match="clip"):
            account_again(
                change_plan(name, lambda p: replace(p, clip=replace(p.clip or Clip(), **fields)))
            )


def test_clipped_rewards_attain_the_bound_of_the_account() -> None:
    """Check that the account's bound is the largest absolute clipped reward."""
    for low, high, centre in (
        (0.0, 1.0, 0.0),
        (-3.0, 1.0, 0.0),
        (-1.0, 2.5, 0.25),
        (2.0, 3.0, 2.5),
    ):
        clip = Clip(low=low, high=high, centre=centre)
        _, bound = bounds_of(clip)
        clipped = [abs(clip.apply(np.ones(2), y)[0]) for y in (-1e9, low, high, 1e9)]
        assert max(clipped) == bound


@pytest.mark.parametrize("fields", [
    {"release": "tree"}, {"factor": None}, {"releases": 8}, {"releases": -1}, {"returning": 0},
    {"release": "nested", "factor": None}, {"noise_std": math.nan}, {"noise_std": -1.0},
    {"feature_bound": 0.0}, {"reward_range": (1.0, 1.0)}, {"reward_range": (0.0, math.nan)},
], ids=str)  # fmt: skip
def test_reward_releases_with_invalid_fields_are_refused(fields: dict[str, Any]) -> None:
    budget = Budget(1.0, 1e-3, unit="reward")
    release = RewardRelease(7, 5.0, budget, "factorised", factor=Factor(np.tri(7)))
    assert 0.0 < release.exact() < math.inf
    with pytest.raises(InputError):
        replace_struct(release, **fields)


@pytest.mark.parametrize(("relation", "max_change"), [("replace", 1.25), ("zero-out", 1.0)])
def test_mu_of_a_reward_release_follows_the_reward_range(relation: str, max_change: float) -> None:
    """Check seven batches of a flat factor, of which a user is in one batch."""
    budget = Budget(1.0, 1e-3, relation, unit="reward")
    release = RewardRelease(7, 5.0, budget, "factorised", factor=Factor(np.tri(7)),
                            feature_bound=2.0, reward_range=(-0.25, 1.0))  # fmt: skip
    assert release.mu() == pytest.approx(2.0 * max_change / 5.0)
    assert release.exact() == pytest.approx(gaussian_epsilon(2.0 * max_change / 5.0, 1e-3))
    without_noise = replace_struct(release, noise_std=0.0)
    assert without_noise.mu() == without_noise.exact() == math.inf
    without_release = RewardRelease(0, 0.0, budget, "tree")
    assert without_release.mu() == without_release.exact() == 0.0


# ---- every number --------------------------------------------------------------------------------

#: Values that replace each number.
STRANGE_VALUES: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -0.0, 0, 1, 0.5, 1.5, 1e308, 5e-324, MOST, MOST + 1, 10**400,
    -1, -1.0, "", "1", "x" * 10**5, b"", None, (), [], [1.0], (1.0,), ((),), {}, True, 1j,
)  # fmt: skip
#: One case for each kind of plan.
PLAN_CASES = (
    "silo-ldp published", "silo-ldp by silo", "silo-ldp centred", "silo-ldp growing toeplitz",
    "silo-ldp buffered", "central factorised", "shuffle-amplified", "shuffle-vector", "secure-sum",
    "shuffle-vector flat growing", "shuffle-vector centred", "linucb-jdp honaker",
    "linucb-sdp-amp growing", "linucb-ldp by users", "linucb-ldp vector", "feducb by silo",
    "feducb private-determinant", "feducb-decentralized fixed", "feducb-decentralized private",
    "robin", "fed-svt", "private-dartboard", "limited-updates", "fed-dp-ope-stoch local",
    "fed-dp-ope-stoch central",
)  # fmt: skip

#: Numbers whose change may lower epsilon, because the changed plan really is more private. A "+"
#: allows this for larger noise, a "-" for a smaller release, record or claim. The keys are the last
#: field names of the paths.
MAY_LOWER_EPSILON = {
    "horizon": "-", "batch_size": "-+", "dimension": "-", "switches": "-", "chance": "+",
    "precision": "-", "covariance_precision": "-", "bias": "+", "off_diagonal": "+",
    "diagonal": "+", "silo_noise": "+", "std": "+", "noise_bits": "+", "scales": "+", "eta": "-",
    "rate": "-", "feature": "-", "low": "+-", "high": "+-", "centre": "+-", "constant": "-",
    "delta": "+", "delta_by_silo": "+", "threshold_scale": "+", "query_scale": "+",
    "kind": "-", "epsilon_coordinate": "-", "smoothness": "-", "initial": "+",
    "arms": "+",  # parties then add up unit vectors only, which change sums by less
}  # fmt: skip


def field_names(value: Any) -> tuple[str, ...]:
    """Return the field names of plain data; a number has none."""
    if is_dataclass(value):
        return tuple(f.name for f in dataclasses.fields(value))
    return getattr(value, "__struct_fields__", None) or getattr(value, "_fields", ())


def all_numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, number) for the numbers of plain data; of a tuple, only the first and last."""
    if names := field_names(value):
        for name in names:
            yield from all_numbers(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for index in sorted({0, len(value) - 1} if value else ()):
            yield from all_numbers(value[index], (*path, index))
    elif isinstance(value, (int, float)):
        yield path, value


def put_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return plain data with the value at a path replaced by `new`."""
    if not path:
        return new
    key, *further_keys = path
    inner = put_value(
        value[key] if isinstance(key, int) else getattr(value, key), tuple(further_keys), new
    )
    if isinstance(key, int):
        return (*value[:key], inner, *value[key + 1 :])
    if is_dataclass(value):
        return replace(value, **{key: inner})
    if isinstance(value, msgspec.Struct):
        return replace_struct(value, **{key: inner})
    return value._replace(**{key: inner})


@pytest.mark.parametrize("name", PLAN_CASES)
def test_strange_numbers_are_refused_or_accounted_correctly(name: str) -> None:
    """Replace each number of a plan by each strange value, using reflection.

    New fields are covered automatically.
    """
    plan = CASES[name].make().plan
    before, tried_count = account_again(plan), 0
    for path, number in all_numbers(plan):
        field = next(part for part in reversed(path) if isinstance(part, str))
        if field == "exact":
            continue  # `sealed` computes this field
        for strange in STRANGE_VALUES:
            tried_count += 1
            try:
                choice_account = account_again(put_value(plan, path, strange))
            except InputError as error:
                assert str(error).isprintable() and len(str(error)) < 1000, (path, strange)
                continue
            assert type(strange) in (int, float) or type(strange) is type(number), (path, strange)
            if field in ("by_silo", "delta_by_silo", "smoothness"):
                continue  # another event, with which nothing can be compared
            assert strange == strange and abs(strange) <= 1e150, (path, strange)
            if field in ("horizon", "batch_size") and choice_account == (0.0,):
                continue  # nothing is released
            assert len(choice_account) == len(before) and not any(e != e for e in choice_account), (
                path,
                strange,
            )
            if any(
                after < earlier * (1.0 - 1e-9)
                for after, earlier in zip(choice_account, before, strict=True)
            ):
                sign = "+" if strange > number else "-"
                assert sign in MAY_LOWER_EPSILON.get(field, ""), (
                    path,
                    number,
                    strange,
                    before,
                    choice_account,
                )
    assert tried_count > 200


def test_numbers_are_checked_everywhere_in_a_plan() -> None:
    """Check numbers of plans, mechanisms and claims, also if no account reads them."""
    plan = CASES["silo-ldp"].make().plan
    check_numbers(plan)
    for path, value in (
        ("radius.multiplier", replace(plan, radius=replace(plan.radius, multiplier=math.nan))),
        ("ranking", replace(plan, ranking=math.inf)),
        ("sieve_growth", replace(plan, sieve_growth=-1.0)),
        ("widths", replace(plan, widths=(1.0, math.nan))),
        ("regularizer", replace(plan, regularizer=np.array([1.0, math.nan]))),
        ("regularizer", replace(plan, regularizer=[1.0])),
        ("lazy", replace(plan, lazy="no")),
        ("release", replace(plan, release=7)),
        ("noise_std.bias", replace(plan, noise_std=NoiseStd(bias=1e151))),
        ("noise_std.bias", replace(plan, noise_std=NoiseStd(bias=1e-151))),
        ("privacy.max_participations",
         replace(plan, privacy=replace_struct(plan.privacy, max_participations=True))),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^{path} must be"):
            check_numbers(value)
        with pytest.raises(InputError, match=f"^{path} must be"):
            fastfed.parties.Silo(value)


def test_ranges_of_numbers_have_their_declared_limits() -> None:
    """Check the last allowed and the first forbidden value of each range."""
    plan, ope = (CASES[n].make().plan for n in ("silo-ldp published", "fed-dp-ope-stoch local"))
    edges: list[tuple[Any, tuple[Any, ...], Any, Any]] = [
        (plan, ("silos",), 1, 0),
        (plan, ("horizon",), MOST, MOST + 1),
        (plan, ("batch_size",), 0, -1),
        (plan, ("batch_size",), MOST, MOST + 1),
        (plan, ("noise_std", "bias"), 1e150, 1e150 * (1.0 + 1e-6)),
        (plan, ("noise_std", "bias"), 1.0001e-150, 0.9999e-150),
        (plan, ("noise_std", "bias"), 0.0, -5e-324),
        (plan, ("noise_std", "diagonal"), 7, "7"),
        (plan, ("clip", "low"), -1e150, -1.001e150),
        (plan, ("clip", "feature"), 1.0, -1.0),
        (plan, ("ranking",), 1.0, math.nan),
        (plan, ("sieve_growth",), 1.5, math.inf),
        (plan, ("radius", "log_lambda"), np.array([math.inf]), np.array([-math.inf])),
        (plan, ("radius", "log_lambda"), np.zeros(1), np.array([math.nan])),
        (plan, ("regularizer",), np.ones(2), np.array([1.0, math.inf])),
        (plan, ("lazy",), np.bool_(True), 1),
        (plan, ("encoding",), None, None),
        (plan, ("privacy", "max_participations"), 1, 0),
        (plan, ("silo_noise",), (), ((1.0,),)),
        (plan, ("silo_noise",), (1.0, 2.0), [1.0, 2.0]),
        (plan, ("privacy", "budget", "delta"), 5e-324, None),
        (plan, ("privacy", "exact"), (math.inf,), (-math.inf,)),
        (ope, ("bounds", "smoothness"), math.inf, -math.inf),
        (ope, ("bounds", "smoothness"), 0.0, math.nan),
        (ope, ("bounds", "low"), -1.0, -math.inf),
        (ope, ("phases", 0, "scales"), (1.0, 2.0), (1.0, math.inf)),
        (replace(plan, trigger=Trigger(2, 1.0)), ("trigger", "std"), (1.0, 1.0), (1.0, 1.0, 1.0)),
        (replace(plan, trigger=Trigger(2, 1.0)), ("trigger", "std"), (0.0, 0.0), (1.0,)),
    ]
    for base, path, good, bad_value in edges:
        check_numbers(put_value(base, path, good))
        if bad_value is not None:
            with pytest.raises(InputError, match=f"^{'.'.join(map(str, path)).split('.0')[0]}"):
                check_numbers(put_value(base, path, bad_value))


def test_plans_can_have_at_most_2_to_24_releases() -> None:
    """Check that 2^24 releases have an account and one more has none."""
    plan = CASES["silo-ldp"].make().plan
    assert math.isfinite(account_again(replace(plan, horizon=5 * 2**24))[0])
    with pytest.raises(InputError, match="at most 16777216 releases, got 16777217"):
        account_again(replace(plan, horizon=5 * 2**24 + 5))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", None, True])
def test_numbers_of_registered_events_are_checked(value: Any) -> None:
    """Check each number of an event of another package before its epsilon is computed."""

    class Own(msgspec.Struct, frozen=True):
        """A mechanism of another package."""

        epsilon: float
        noise_stds = {}

        def exact(self) -> float:
            """Return the epsilon of the mechanism."""
            return 0.0

    assert event_epsilon(Own(1.0)) == 0.0
    event_epsilon.cache_clear()  # True is the same key as 1.0
    with pytest.raises(InputError, match=r"^epsilon must be"):
        event_epsilon(Own(value))
