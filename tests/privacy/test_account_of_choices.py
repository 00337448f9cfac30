"""Plans that no builder makes have no account: their epsilon would be that of another plan.

Whoever compiles a plan may change any of its numbers and seal it again. An account is refused, or
it is of what runs.
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

changed = msgspec.structs.replace


def again(plan: Any) -> tuple[float, ...]:
    """The account of a changed plan, sealed by the package's own functions."""
    if isinstance(plan, PeerPlan):
        parts = tuple(replace(part, plan=sealed(part.plan)) for part in plan.parts)
        found = accounted(replace(plan, parts=parts))
        assert found is not None
        return found
    return sealed(plan).privacy.exact


# ---- one budget ----------------------------------------------------------------------------------

#: Plans that carry a mechanism, which was calibrated for a budget.
CARRIERS = tuple(
    name
    for name in CASES
    if name.startswith(("robin", "fed-svt", "private-dartboard", "limited-updates"))
)


@pytest.mark.parametrize("name", CARRIERS)
@pytest.mark.parametrize(
    "other",
    [
        *({"delta": delta} for delta in (1e-30, 0.0, 1e-3 * (1.0 + 1e-6), 0.3)),
        *({"epsilon": 9.0}, {"relation": "zero-out"}, {"unit": "item"}),
    ],
    ids=str,
)
def test_a_claim_has_the_budget_that_the_noise_was_made_for(
    name: str, other: dict[str, Any]
) -> None:
    """Epsilon at the mechanism's delta must not stand beside the claim's."""
    plan = CASES[name].make().plan
    if "pure" in name and other == {"delta": 0.0}:
        assert again(plan) == plan.privacy.exact
        return
    claim = changed(plan.privacy, budget=changed(plan.privacy.budget, **other))
    faulty = replace(plan, privacy=claim)
    with pytest.raises(InputError, match=r"noise is for .* both must be the same budget"):
        again(faulty)
    for make in parties(faulty).values():
        with pytest.raises(InputError, match="both must be the same budget"):
            make()


def test_every_mechanism_of_a_plan_is_looked_at() -> None:
    """The mechanism's own budget may be changed as well as the claim's: also of one mean alone."""
    for name in CARRIERS:
        plan = CASES[name].make().plan
        if name == "robin":
            last = plan.means[-1]
            other = changed(last, budget=changed(last.budget, delta=0.3))
            faulty = replace(plan, means=(*plan.means[:-1], other))
        else:
            other = changed(plan.noise, budget=changed(plan.noise.budget, delta=0.3))
            faulty = replace(plan, noise=other)
        with pytest.raises(
            InputError, match=r"must be the same budget|equal except for their radius"
        ):
            again(faulty)


@pytest.mark.parametrize("delta", [1e-30, 0.0, 0.3])
@pytest.mark.parametrize("name", [n for n in CASES if n not in CARRIERS and "decentral" not in n])
def test_other_accounts_are_at_the_delta_of_the_claim(name: str, delta: float) -> None:
    """Where the noise is the plan's own, epsilon is computed at whatever delta is claimed."""
    plan = CASES[name].make().plan
    claim = changed(plan.privacy, budget=changed(plan.privacy.budget, delta=delta))
    try:
        found = again(replace(plan, privacy=claim))
    except InputError:
        return
    # Of silos with budgets of their own only the first event is at the claim's delta.
    before, now = plan.privacy.exact[0], found[0]
    assert now > before if delta < plan.privacy.budget.delta else now < before


# ---- combinations --------------------------------------------------------------------------------


def at(name: str, change: Callable[[Any], Any]) -> Any:
    """The plan of a case, changed in every part."""
    return everywhere(CASES[name].make().plan, change)


def with_protocol(name: str, **fields: Any) -> Any:
    """The plan of a case, with other fields of its protocol."""
    return at(name, lambda p: replace(p, protocol=replace(p.protocol, **fields)))


def small_factor(name: str) -> Any:
    """Noise that is 10^-6 of a node's in every prefix: raw sums."""
    plan = CASES[name].make().plan
    factor = Factor(1e-6 * np.tri(plan.releases))
    protocol = released_as(plan.protocol, "factorised")
    return replace(plan, release="factorised", factor=factor, protocol=protocol)


def reward_plan() -> Any:
    """Rewards alone are private: a tree of sums of x y."""
    return _private("silo-ldp", protects="reward", release="tree", clip=True).make().plan


def one_phase_twice(name: str) -> Any:
    """The losses of the last phase pay for two phases."""
    plan = CASES[name].make().plan
    last = plan.phases[-1]
    more = replace(last, offset=last.offset + len(last.leaves))
    return replace(plan, phases=(*plan.phases, more))


def with_phase(name: str, **fields: Any) -> Any:
    """The last phase changed."""
    plan = CASES[name].make().plan
    return replace(plan, phases=(*plan.phases[:-1], replace(plan.phases[-1], **fields)))


def one_part_otherwise(**fields: Any) -> Any:
    """A decentralised plan whose last part is another one."""
    plan = CASES["feducb-decentralized fixed"].make().plan
    *others, last = plan.parts
    return replace(plan, parts=(*others, replace(last, **fields)))


def one_part(**fields: Any) -> Any:
    """The plan of the last part, changed."""
    return replace(CASES["feducb-decentralized fixed"].make().plan.parts[-1].plan, **fields)


def one_part_at_another_delta() -> Any:
    """One part has half the noise, and says so at a delta of 1/2."""
    part = one_part()
    claim = changed(part.privacy, budget=changed(part.privacy.budget, delta=0.5))
    return one_part_otherwise(
        plan=replace(part, noise_std=part.noise_std.times(0.5), privacy=claim)
    )


def noise(name: str, **fields: Any) -> Any:
    """The mechanism of a plan of experts, changed."""
    plan = CASES[name].make().plan
    return replace(plan, noise=changed(plan.noise, **fields))


def means(change: Callable[[Any], Any]) -> Any:
    """The private means of robin, changed."""
    plan = CASES["robin"].make().plan
    return replace(plan, means=tuple(change(plan.means)))


EVERY_ROUND = Case("private-fedlinucb", {"batch_size": 1}, horizon=7)
CASES_HERE = {
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
        lambda: at("shuffle-amplified", lambda p: replace(p, factor=Factor(np.tri(p.releases)))),
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
        lambda: at("fed-dp-ope-stoch local", lambda p: replace(p, phases=p.phases[:1:-1])),
        "phase 9 must begin after 0 exchanges",
    ),
    "a phase after the horizon": (
        lambda: with_phase("fed-dp-ope-stoch local", number=10),
        "increasing numbers from 2 to 9",
    ),
    "a phase before the first": (
        lambda: at(
            "fed-dp-ope-stoch local",
            lambda p: replace(p, phases=(replace(p.phases[0], number=1), *p.phases[1:])),
        ),
        "increasing numbers from 2 to 9",
    ),
    "a phase without a tree": (
        lambda: with_phase("fed-dp-ope-stoch local", scales=()), "must have 1 to 20 trees"
    ),
    "a phase of too many trees": (
        lambda: with_phase("fed-dp-ope-stoch local", scales=(1.0,) * 21, batch=2**21),
        "must have 1 to 20 trees",
    ),
    "a batch that its trees do not divide": (
        lambda: with_phase("fed-dp-ope-stoch local", batch=18), "a batch that 2 to that power"
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
        lambda: at("fed-dp-ope-stoch central", lambda p: replace(
            p, privacy=changed(p.privacy, protect="messages")
        )),
        'protect "messages" needs noise of clients',
    ),
    "choices that are not counted": (
        lambda: noise("limited-updates", choices=0), "must be of 6 choices, .* got 0"
    ),
    "losses that are not linear": (
        lambda: at("fed-svt", lambda p: replace(p, linear=False)), "needs linear losses"
    ),
    "switches under another name": (
        lambda: with_protocol("fed-svt", model="local: nobody is trusted"), "as it is registered"
    ),
    "one mean of three": (lambda: means(lambda m: m[:1]), "must have 3 private means, got 1"),
    "means of other silos": (
        lambda: means(lambda m: tuple(changed(n, silos=29) for n in m)), "must be of 30 silos"
    ),
    "means of another dimension": (
        lambda: means(lambda m: tuple(changed(n, dimension=4) for n in m)), "and dimension 3"
    ),
    "one mean louder": (
        lambda: means(
            lambda m: (m[0], *(changed(n, epsilon_coordinate=2 * n.epsilon_coordinate)
                               for n in m[1:]))
        ),
        "equal except for their radius",
    ),
    "a mean that is said to be private": (
        lambda: at("robin", lambda p: replace(
            p, protocol=replace(PLAIN_MEAN, noise_by="server")
        )),
        "as it is registered",
    ),
    "initial phases that send": (
        lambda: at("robin", lambda p: replace(p, local=replace(p.local, batch_size=5))),
        "nothing of initial phases",
    ),
    "a part at another delta": (one_part_at_another_delta, "must claim one budget"),
    "a part of other rounds": (
        lambda: one_part_otherwise(plan=one_part(horizon=30)), "must be of 3 silos, 35 rounds"
    ),
    "a part of another estimator": (
        lambda: one_part_otherwise(estimator=2), "each of 3 silos once for each of 2 estimators"
    ),
    "a part of another dimension": (
        lambda: one_part_otherwise(plan=one_part(dimension=2)), "and dimension 3, got"
    ),
    "a silo in no part": (
        lambda: one_part_otherwise(clique=(0, 1)), "must be of 2 silos"
    ),
    "a silo in two parts": (
        lambda: one_part_otherwise(clique=(0, 1, 1)), "hold each of 3 silos once"
    ),
    "a part twice": (
        lambda: at_plan("feducb-decentralized fixed", lambda p: replace(
            p, parts=(*p.parts, p.parts[-1])
        )),
        "hold each of 3 silos once",
    ),
    "no part": (
        lambda: at_plan("feducb-decentralized fixed", lambda p: replace(p, parts=())),
        "must hold each of 3 silos once",
    ),
    "a private schedule of bits": (
        lambda: at("linucb-sdp-vec", lambda p: replace(
            p, batch_size=1, horizon=7, trigger=Trigger(PRIVATE_DETERMINANT, 1.0, std=(0.1, 0.1))
        )),
        'must have protocol "silo-ldp-prefix" if a trigger reads noisy sums',
    ),
    "a schedule of no kind": (
        lambda: at("feducb private-determinant", lambda p: replace(
            p, trigger=replace(p.trigger, kind=3)
        )),
        "must have a trigger of kind",
    ),
    "a trigger beside batches": (
        lambda: at("silo-ldp", lambda p: replace(p, trigger=Trigger(DETERMINANT, 1.0))),
        "must have batch_size 1",
    ),
    "noise of single users": (
        lambda: at("linucb-ldp", lambda p: replace(p, silo_noise=(1e-6,))), "silo_noise of 1 silos"
    ),
    "noise of silos that are not there": (
        lambda: at("silo-ldp", lambda p: replace(p, silo_noise=(1.0, 1.0))), "silo_noise of 3"
    ),
    "two agents": (lambda: at("linucb-jdp", lambda p: replace(p, silos=2)), "must have one silo"),
    "bits that nobody sends": (
        lambda: at("silo-ldp", lambda p: replace(
            p, encoding=CASES["shuffle-vector"].make().plan.encoding
        )),
        "an encoding if users send bits",
    ),
    "a longest batch that is none": (
        lambda: at("linucb-ldp growing", lambda p: replace(p, batch_size=1)),
        "batch_size of its longest batch",
    ),
    "own rounds of users": (
        lambda: at("shuffle-vector", lambda p: replace(p, own=_own(p))), "share needs protocol"
    ),
    "more releases than fit": (
        lambda: at("silo-ldp toeplitz", lambda p: replace(p, horizon=2**40)), "at most 16777216"
    ),
}  # fmt: skip


def at_plan(name: str, change: Callable[[Any], Any]) -> Any:
    """The plan of a case, changed as a whole."""
    return change(CASES[name].make().plan)


def _own(plan: Any) -> Any:
    """Own rounds after the last release."""
    share = {"until": 20}
    keys = {"share": share, "clip": True}
    own = _private("silo-ldp", release="factorised", **keys).make().plan.own
    return replace(own, until=plan.end(plan.releases))


@pytest.mark.parametrize("what", CASES_HERE)
def test_a_combination_that_no_builder_makes_has_no_account(what: str) -> None:
    make, message = CASES_HERE[what]
    with pytest.raises(InputError, match=message):
        again(make())


@pytest.mark.parametrize("name", [n for n in CASES if "decentral" not in n])
def test_every_field_of_a_protocol_is_the_registered_one(name: str) -> None:
    """Each field of the protocol, changed alone."""
    plan = CASES[name].make().plan
    protocol = plan.protocol
    for field in dataclasses.fields(protocol):
        value = getattr(protocol, field.name)
        other = value + 7 if type(value) is int else not value
        if isinstance(value, str):
            other = f"{value}, more or less"
        with pytest.raises(InputError):
            # A package's own name is that of batches with noise of their own, not of these.
            again(replace(plan, protocol=replace(protocol, **{field.name: other})))


#: Of one loss each: with local noise the account of messages takes seconds.
ONE_LOSS = ("fed-svt", "fed-svt pure", "private-dartboard", "private-dartboard pure",
            "limited-updates", "limited-updates pure", "fed-dp-ope-stoch central")  # fmt: skip


@pytest.mark.parametrize("name", ONE_LOSS)
def test_losses_of_one_record_are_accounted_together(name: str) -> None:
    """A record behind several losses costs more than behind one: at delta = 0 as often as much."""
    plan = CASES[name].make().plan
    before = plan.privacy.exact
    assert again(plan) == before
    for uses in (2, 3):
        found = again(replace(plan, privacy=changed(plan.privacy, max_participations=uses)))
        assert len(found) == len(before)
        if plan.privacy.budget.delta == 0.0:
            assert found[0] == pytest.approx(uses * before[0])
        assert all(now > 1.01 * old for now, old in zip(found, before, strict=True))


def test_a_simulation_that_draws_noise_once_claims_nothing() -> None:
    """Its protocol is none that silos run, so no claim about it is taken."""
    plan = CASES["silo-ldp"].make().plan
    with pytest.raises(InputError, match="as it is registered, with randomizer"):
        again(replace(plan, protocol=drawn_once(plan.protocol)))
    verify(replace(plan, drawn_once=True).simulated)


def test_a_packages_own_protocol_is_batches_of_silos_and_nothing_else() -> None:
    """Its name, summary and source are free; who is trusted and what is sent are not."""
    plan = _private("silo-ldp", release="tree").make(batch_size=35).plan
    own = replace(
        plan.protocol, id="noisy-batches", summary="mine", source="mine", randomizer=6, analyzer=0
    )
    assert again(replace(plan, protocol=own)) == pytest.approx(plan.privacy.exact)
    for fields in (
        {"senders": "users"}, {"noise_by": "none"}, {"shuffled": True}, {"analyzer": 1},
        {"randomizer": 0}, {"model": "local: nobody is trusted"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="as it is registered"):
            again(replace(plan, protocol=replace(own, **fields)))


def test_terms_name_what_the_plan_has() -> None:
    """A certificate's terms are words of the plan that runs, not of another one."""
    plan = CASES["silo-ldp published"].make().plan
    raw = replace(plan, lazy=False, clip=None, trigger=Trigger(DETERMINANT, 1.0), batch_size=1)
    noisy = CASES["feducb private-determinant"].make().plan
    assert terms(plan)[3:] == ("actions from released statistics", "fixed rounds", "clipping")
    assert terms(raw)[3:] == ("actions from raw data", "rounds by raw data", "no clipping")
    assert terms(noisy)[4] == "rounds by noisy sums"


# ---- intervals -----------------------------------------------------------------------------------

INTERVALS = [
    {"low": -1.0, "high": math.nan}, {"low": math.nan}, {"high": math.inf}, {"low": -math.inf},
    {"low": 2.0, "high": 1.0}, {"low": 0.5, "high": 0.5}, {"feature": math.nan}, {"feature": 0.0},
    {"feature": -1.0}, {"feature": math.inf}, {"centre": math.nan}, {"centre": math.inf},
    {"constant": math.nan}, {"constant": -0.5}, {"constant": math.inf},
]  # fmt: skip


@pytest.mark.parametrize("fields", INTERVALS, ids=str)
def test_what_is_no_interval_bounds_nothing(fields: dict[str, float]) -> None:
    """max(1, nan) is 1: a reward without a bound was "bounded by 1"."""
    clip = replace(Clip(), **fields)
    for bound in (bounds_of, centred_of):
        with pytest.raises(InputError, match="clip must have"):
            bound(clip)
    for name in ("silo-ldp published", "central", "secure-sum", "shuffle-vector", "linucb-sdp-amp"):
        with pytest.raises(InputError, match="clip"):
            again(at(name, lambda p: replace(p, clip=replace(p.clip or Clip(), **fields))))


def test_a_reward_outside_of_its_bounds_is_never_taken() -> None:
    """The account's bound is one of what is sent: the largest that clipped rewards are."""
    for low, high, centre in (
        (0.0, 1.0, 0.0),
        (-3.0, 1.0, 0.0),
        (-1.0, 2.5, 0.25),
        (2.0, 3.0, 2.5),
    ):
        clip = Clip(low=low, high=high, centre=centre)
        _, bound = bounds_of(clip)
        sent = [abs(clip.apply(np.ones(2), y)[0]) for y in (-1e9, low, high, 1e9)]
        assert max(sent) == bound


@pytest.mark.parametrize("fields", [
    {"release": "tree"}, {"factor": None}, {"releases": 8}, {"releases": -1}, {"returning": 0},
    {"release": "nested", "factor": None}, {"noise_std": math.nan}, {"noise_std": -1.0},
    {"feature_bound": 0.0}, {"reward_range": (1.0, 1.0)}, {"reward_range": (0.0, math.nan)},
], ids=str)  # fmt: skip
def test_rewards_of_another_release_are_refused(fields: dict[str, Any]) -> None:
    budget = Budget(1.0, 1e-3, unit="reward")
    made = RewardRelease(7, 5.0, budget, "factorised", factor=Factor(np.tri(7)))
    assert 0.0 < made.exact() < math.inf
    with pytest.raises(InputError):
        changed(made, **fields)


@pytest.mark.parametrize(("relation", "moved"), [("replace", 1.25), ("zero-out", 1.0)])
def test_rewards_cost_what_they_move(relation: str, moved: float) -> None:
    """Seven batches of a flat factor, of which one user is in one: the largest change of a sum."""
    budget = Budget(1.0, 1e-3, relation, unit="reward")
    release = RewardRelease(7, 5.0, budget, "factorised", factor=Factor(np.tri(7)),
                            feature_bound=2.0, reward_range=(-0.25, 1.0))  # fmt: skip
    assert release.mu() == pytest.approx(2.0 * moved / 5.0)
    assert release.exact() == pytest.approx(gaussian_epsilon(2.0 * moved / 5.0, 1e-3))
    silent = changed(release, noise_std=0.0)
    assert silent.mu() == silent.exact() == math.inf
    nothing = RewardRelease(0, 0.0, budget, "tree")
    assert nothing.mu() == nothing.exact() == 0.0


# ---- every number --------------------------------------------------------------------------------

#: What each number is replaced by.
STRANGE: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -0.0, 0, 1, 0.5, 1.5, 1e308, 5e-324, MOST, MOST + 1, 10**400,
    -1, -1.0, "", "1", "x" * 10**5, b"", None, (), [], [1.0], (1.0,), ((),), {}, True, 1j,
)  # fmt: skip
#: One plan of each kind that is executed.
KINDS = (
    "silo-ldp published", "silo-ldp by silo", "silo-ldp centred", "silo-ldp growing toeplitz",
    "silo-ldp buffered", "central factorised", "shuffle-amplified", "shuffle-vector", "secure-sum",
    "shuffle-vector flat growing", "shuffle-vector centred", "linucb-jdp honaker",
    "linucb-sdp-amp growing", "linucb-ldp by users", "linucb-ldp vector", "feducb by silo",
    "feducb private-determinant", "feducb-decentralized fixed", "feducb-decentralized private",
    "robin", "fed-svt", "private-dartboard", "limited-updates", "fed-dp-ope-stoch local",
    "fed-dp-ope-stoch central",
)  # fmt: skip

#: Numbers of which a change may lower epsilon, for it is then what runs: noise that is larger (+)
#: or a release, record or claim that is smaller (-). Each by the end of its path.
HONEST = {
    "horizon": "-", "batch_size": "-+", "dimension": "-", "switches": "-", "chance": "+",
    "precision": "-", "covariance_precision": "-", "bias": "+", "off_diagonal": "+",
    "diagonal": "+", "silo_noise": "+", "std": "+", "noise_bits": "+", "scales": "+", "eta": "-",
    "rate": "-", "feature": "-", "low": "+-", "high": "+-", "centre": "+-", "constant": "-",
    "delta": "+", "delta_by_silo": "+", "threshold_scale": "+", "query_scale": "+",
    "kind": "-", "epsilon_coordinate": "-", "smoothness": "-", "initial": "+",
}  # fmt: skip


def names_of(value: Any) -> tuple[str, ...]:
    """The fields of plain data; none of a number."""
    if is_dataclass(value):
        return tuple(f.name for f in dataclasses.fields(value))
    return getattr(value, "__struct_fields__", None) or getattr(value, "_fields", ())


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, number) of every number of plain data, the first and last of a tuple."""
    if names := names_of(value):
        for name in names:
            yield from numbers_in(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for place in sorted({0, len(value) - 1} if value else ()):
            yield from numbers_in(value[place], (*path, place))
    elif isinstance(value, (int, float)):
        yield path, value


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Plain data with another value at a path."""
    if not path:
        return new
    head, *rest = path
    inner = put(value[head] if isinstance(head, int) else getattr(value, head), tuple(rest), new)
    if isinstance(head, int):
        return (*value[:head], inner, *value[head + 1 :])
    if is_dataclass(value):
        return replace(value, **{head: inner})
    if isinstance(value, msgspec.Struct):
        return changed(value, **{head: inner})
    return value._replace(**{head: inner})


@pytest.mark.parametrize("name", KINDS)
def test_a_strange_number_is_refused_or_accounted_as_it_runs(name: str) -> None:
    """By reflection: each number of a plan by each strange value, a field that is new too."""
    plan = CASES[name].make().plan
    before, tried = again(plan), 0
    for path, number in numbers_in(plan):
        field = next(part for part in reversed(path) if isinstance(part, str))
        if field == "exact":
            continue  # what `sealed` computes
        for strange in STRANGE:
            tried += 1
            try:
                found = again(put(plan, path, strange))
            except InputError as error:
                assert str(error).isprintable() and len(str(error)) < 1000, (path, strange)
                continue
            assert type(strange) in (int, float) or type(strange) is type(number), (path, strange)
            if field in ("by_silo", "delta_by_silo", "smoothness"):
                continue  # a silo that asks for something else has another event; none is known
            assert strange == strange and abs(strange) <= 1e150, (path, strange)
            if field in ("horizon", "batch_size") and found == (0.0,):
                continue  # nothing is released
            assert len(found) == len(before) and not any(e != e for e in found), (path, strange)
            if any(now < old * (1.0 - 1e-9) for now, old in zip(found, before, strict=True)):
                sign = "+" if strange > number else "-"
                assert sign in HONEST.get(field, ""), (path, number, strange, before, found)
    assert tried > 200


def test_a_number_is_checked_wherever_it_stands() -> None:
    """Of plans, mechanisms and claims, also where no account would read it."""
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
         replace(plan, privacy=changed(plan.privacy, max_participations=True))),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^{path} must be"):
            check_numbers(value)
        with pytest.raises(InputError, match=f"^{path} must be"):
            fastfed.parties.Silo(value)


def test_ranges_end_where_they_are_declared() -> None:
    """The last number that is in a range, and the first that is not."""
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
    for base, path, good, bad in edges:
        check_numbers(put(base, path, good))
        if bad is not None:
            with pytest.raises(InputError, match=f"^{'.'.join(map(str, path)).split('.0')[0]}"):
                check_numbers(put(base, path, bad))


def test_as_many_releases_as_are_allowed() -> None:
    """2^24 releases have an account, one more has none."""
    plan = CASES["silo-ldp"].make().plan
    assert math.isfinite(again(replace(plan, horizon=5 * 2**24))[0])
    with pytest.raises(InputError, match="at most 16777216 releases, got 16777217"):
        again(replace(plan, horizon=5 * 2**24 + 5))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", None, True])
def test_events_are_checked_too(value: Any) -> None:
    """An event that another package registers: each number, before its epsilon is computed."""

    class Own(msgspec.Struct, frozen=True):
        epsilon: float
        noise_stds = {}

        def exact(self) -> float:
            return 0.0

    assert event_epsilon(Own(1.0)) == 0.0
    event_epsilon.cache_clear()  # True is the same key as 1.0
    with pytest.raises(InputError, match=r"^epsilon must be"):
        event_epsilon(Own(value))
