"""Config of the systems of a single agent: what they refuse, and what they certify."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from oracle import chowdhury_zhou_2022 as oracle
from problems import AGENTS

import fastfed
from fastfed import InputError
from fastfed.bandits import ALGORITHMS, linucb_bounds
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import System
from fastfed.privacy.certificate import ClaimCondition, SideCertificate
from fastfed.privacy.mechanisms.local_gaussian import calibrate_local_gaussian
from fastfed.privacy.mechanisms.vector_batches import calibrate_vector_batches
from fastfed.privacy.sensitivity import Budget

SETTING = ProblemSpec(silos=1, horizon=100, dimension=3)
BUDGET = {"epsilon": 1.0, "delta": 0.01}
PUBLISHED = {"calibration": "published-code", "radius": "published-code"}
PRIVATE = AGENTS[1:]
SHUFFLED = AGENTS[3:]


def make(algorithm: str, setting: ProblemSpec = SETTING, **keys: Any) -> System:
    """The system with a budget and batches of ten, unless ``keys`` say otherwise."""
    given = {"batch_size": 10, **(BUDGET if algorithm in PRIVATE else {}), **keys}
    return ALGORITHMS[algorithm].make(
        {key: value for key, value in given.items() if value is not ...}, setting
    )


def sides(system: System) -> dict[str, SideCertificate]:
    """What stands beside the claim, by the first word of its model."""
    also = system.certificate.also
    found = {side.model.split(":")[0]: side for side in also}
    assert len(found) == len(also)
    return found


# -- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", AGENTS)
def test_one_agent_and_one_sentence(algorithm):
    """Every error names the key and, where there is one, the value; none has two lines."""
    refused = [
        ({"lazy": False}, "lazy must be true for a single agent"),
        ({"batch_size": 101}, r"batch_size must be <= horizon \(100\), got 101"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": "big"}, "batch_size must be one of .*\"growing\", got 'big'"),
        ({"batch_size": 2.5}, "batch_size must be .*got 2.5"),
        ({"batch_first": 2}, 'batch_first belongs to batch_size "growing", got 2'),
        ({"radius": "lemma-c2"}, "radius must be one of .*\"lemma-a2\".*got 'lemma-c2'"),
        ({"regularizer": "nice"}, "regularizer must be one of .*got 'nice'"),
        ({"regularizer": 0.0}, "regularizer must be > 0, got 0.0"),
        ({"radius_multiplier": 0.0}, "radius_multiplier must be > 0, got 0.0"),
        ({"failure_probability": 1.0}, "failure_probability must be .*got 1.0"),
        ({"protocol": "central"}, 'unknown key "protocol" for ' + algorithm),
        ({"silo_epsilon": [1.0]}, 'unknown key "silo_epsilon" for ' + algorithm),
    ]
    if algorithm in PRIVATE:
        refused += [
            ({"epsilon": ...}, "epsilon is required"),
            ({"delta": ...}, "delta is required"),
            ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
            ({"epsilon": "x"}, "epsilon must be a number, got '"),
            ({"delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
            ({"delta": 1.0}, "delta must be > 0 and < 1, got 1.0"),
            ({"relation": "add"}, "relation must be one of .*got 'add'"),
            ({"calibration": "exactly"}, "calibration must be one of .*got 'exactly'"),
            ({"returning": 0}, "returning must be an integer >= 1, got 0"),
            ({"returning": "sometimes"}, 'returning must be .*"every-batch".*got "sometimes"'),
            ({"returning": 2, **PUBLISHED}, 'must be 1 .* "published-code", got 2'),
            ({"returning": "every-batch", **PUBLISHED}, 'must be 1 .* "published-code", got 10'),
            ({"covariance_ratio": 0.0}, "covariance_ratio must be .*got 0.0"),
            (
                {"covariance_ratio": 2.0, "calibration": "theorem"},
                'covariance_ratio must be 1 when calibration is "theorem", got 2',
            ),
            (
                {"covariance_ratio": 2.0, "calibration": "published-code"},
                'covariance_ratio must be 1 when calibration is "published-code", got 2',
            ),
        ]
    else:
        refused += [({"epsilon": 1.0}, 'unknown key "epsilon" for linucb')]
    if algorithm in AGENTS[1:4]:
        refused += [
            ({"layout": "goe3"}, "layout must be one of .*got 'goe3'"),
            ({"layout": "goe2", **PUBLISHED}, 'layout must be "goe1" when .*got "goe2"'),
            ({"layout": "goe1", "calibration": "theorem"}, 'layout must be "iid" .*got "goe1"'),
        ]
    for keys, message in refused:
        with pytest.raises(InputError, match=message) as error:
            make(algorithm, **keys)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=f"silos must be 1 for {algorithm}, .*got 3"):
        make(algorithm, dataclasses.replace(SETTING, silos=3))
    with pytest.raises(InputError, match=f"silos must be 1 for {algorithm}, .*got 2"):
        budget = BUDGET if algorithm in PRIVATE else {}
        fastfed.make_system(algorithm, silos=2, horizon=9, dimension=2, batch_size=3, **budget)


@pytest.mark.parametrize(
    ("algorithm", "keys", "message"),
    [
        ("linucb-jdp", {"release": "wood"}, "release must be one of .*got 'wood'"),
        (
            "linucb-jdp",
            {"release": "honaker", "calibration": "theorem"},
            'release must be "tree" when calibration is "theorem", got "honaker"',
        ),
        (
            "linucb-jdp",
            {"release": "toeplitz", **PUBLISHED},
            'release must be "tree" when calibration is "published-code", got "toeplitz"',
        ),
        ("linucb-jdp", {"messages": "individual"}, 'unknown key "messages"'),
        ("linucb-ldp", {"mechanism": "laplace"}, "mechanism must be one of .*got 'laplace'"),
        ("linucb-ldp", {"messages": "some"}, "messages must be one of .*got 'some'"),
        (
            "linucb-ldp",
            {"mechanism": "vector-sum", "calibration": "published-code"},
            'mechanism "vector-sum" has no published code for linucb-ldp',
        ),
        (
            "linucb-ldp",
            {"mechanism": "vector-sum", "radius": "published-code"},
            'mechanism "vector-sum" has no published code for linucb-ldp',
        ),
        (
            "linucb-ldp",
            {"mechanism": "vector-sum", "layout": "goe2"},
            'layout must be "iid" for mechanism "vector-sum".*got "goe2"',
        ),
        ("linucb-sdp-amp", {"messages": "some"}, "messages must be one of .*got 'some'"),
        ("linucb-sdp-amp", {"mechanism": "vector-sum"}, 'unknown key "mechanism"'),
        ("linucb-sdp-vec", {"messages": "some"}, "messages must be one of .*got 'some'"),
        ("linucb-sdp-vec", {"layout": "iid"}, 'unknown key "layout"'),
        ("linucb-sdp-vec", {"vector_scale": 0.0}, "vector_scale must be > 0, got 0.0"),
        (
            "linucb-sdp-vec",
            {"vector_scale": 2.0},
            'vector_scale belongs to calibration "published-code", got 2 with "exact"',
        ),
        (
            "linucb-sdp-vec",
            {"vector_scale": 2.0, "calibration": "theorem"},
            'vector_scale belongs to calibration "published-code", got 2 with "theorem"',
        ),
        ("linucb-sdp-vec", {"honest_fraction": 0.0}, "honest_fraction must be > 0 and <= 1"),
        (
            "linucb-sdp-vec",
            {"honest_fraction": 0.01},
            "honest_fraction must leave at least 1 of 10 users, got 0.01",
        ),
        (
            "linucb-sdp-vec",
            {"messages": "individual", "clip": False},
            'messages = "individual" needs clip = true',
        ),
        (
            "linucb-sdp-vec",
            {"messages": "individual", "calibration": "theorem"},
            'messages = "individual" would store .* a batch_size below 10 sends fewer',
        ),
    ],
)
def test_keys_of_one_system(algorithm, keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(algorithm, **keys)
    assert "\n" not in str(error.value)


def test_published_noise_of_one_round_does_not_exist():
    with pytest.raises(
        InputError, match='calibration "published-code" needs a horizon of at least 2'
    ):
        make("linucb-jdp", dataclasses.replace(SETTING, horizon=1), batch_size=1, **PUBLISHED)


@pytest.mark.parametrize("algorithm", AGENTS[:3])
def test_every_round_is_the_default_without_a_shuffler(algorithm):
    plan = make(algorithm, batch_size=...).plan
    assert plan.releases == (0 if algorithm == "linucb" else 100)
    assert plan.rows_per_round == 1


@pytest.mark.parametrize("algorithm", AGENTS)
def test_one_silo_of_a_simulation(algorithm):
    """The same sentence from an experiment, with the curve's label; one silo plays."""
    budget = BUDGET if algorithm in PRIVATE else {}
    keys = {"horizon": 6, "batch_size": 3, **budget}
    sphere = {"kind": "sphere", "dimension": 2, "actions": 3}
    with pytest.raises(
        InputError, match=f'silos must be 1 for .*got 2.* \\(curve "{algorithm}"\\)'
    ):
        fastfed.simulate(sphere, algorithm, silos=2, **keys)
    (curve,) = fastfed.simulate(sphere, algorithm, silos=1, **keys).curves
    assert curve.group_regret.shape == (1, 6)


# -- batch_size = "theorem" ------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [(1.0, 0.01), (0.05, 1e-5), (9.0, 0.3)])
def test_batches_of_the_theorems(budget):
    epsilon, delta = budget
    given = {"epsilon": epsilon, "delta": delta, "batch_size": "theorem"}
    for horizon, d in ((2000, 3), (50, 2), (1, 1)):
        setting = ProblemSpec(silos=1, horizon=horizon, dimension=d)
        at = horizon, d, epsilon, delta
        kinds: list[tuple[str, dict[str, Any], int, str]] = [
            ("linucb-jdp", {}, linucb_bounds.batch_size_f_4(horizon), "F.4"),
            ("linucb-jdp", {"returning": 2}, linucb_bounds.batch_size_f_4(horizon), "F.4"),
            ("linucb-ldp", {}, linucb_bounds.batch_size_f_2(horizon), "F.2"),
            ("linucb-sdp-amp", {}, linucb_bounds.batch_size_b_2(*at), "B.2"),
            ("linucb-sdp-amp", {"returning": 2}, linucb_bounds.batch_size_e_4(*at), "E.4"),
            (
                "linucb-sdp-amp",
                {"returning": "every-batch"},
                linucb_bounds.batch_size_e_4(*at),
                "E.4",
            ),
        ]
        # Bits at tiny budgets are many, and all are accounted for.
        if epsilon >= 1.0:
            kinds += [
                (
                    "linucb-ldp",
                    {"mechanism": "vector-sum"},
                    linucb_bounds.batch_size_c_3(*at),
                    "C.3",
                ),
                ("linucb-sdp-vec", {}, linucb_bounds.batch_size_c_2(*at), "C.2"),
                ("linucb-sdp-vec", {"returning": 2}, linucb_bounds.batch_size_e_6(*at), "E.6"),
            ]
        for algorithm, keys, expected, rule in kinds:
            found = make(algorithm, setting, **given, **keys).plan.batch_size
            sizes = {"T": horizon, "d": d, "epsilon": epsilon, "delta": delta}
            assert found == expected == oracle.batch_size(rule, **sizes), (algorithm, keys)
        of_linucb = make("linucb", setting, batch_size="theorem").plan.batch_size
        assert of_linucb == (linucb_bounds.batch_size_f_4(horizon) if horizon > 1 else 0)


# -- Certificates ----------------------------------------------------------------------------------


def test_linucb_promises_nothing():
    certificate = make("linucb").certificate
    assert (certificate.status, certificate.exact, certificate.claimed) == ("none", None, None)


MODELS = {
    "linucb-jdp": "joint: the agent is trusted",
    "linucb-ldp": "local: nobody is trusted",
    "linucb-sdp-amp": "shuffle: the shuffler is trusted",
    "linucb-sdp-vec": "shuffle: the shuffler and the counted users' noise bits are trusted",
}


@pytest.mark.parametrize("algorithm", PRIVATE)
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
def test_the_claim_is_met_and_not_overpaid(algorithm, relation):
    certificate = make(algorithm, relation=relation).certificate
    assert certificate.status == "proven" and all(c.holds for c in certificate.conditions)
    assert certificate.claimed.epsilon == 1.0
    assert 0.999 < certificate.exact.epsilon <= 1.0
    assert (certificate.unit, certificate.relation) == ("user", relation)
    assert certificate.exact.delta == certificate.claimed.delta == 0.01
    assert certificate.model.startswith(MODELS[algorithm])
    assert certificate.source.startswith("chowdhury-zhou-2022")


@pytest.mark.parametrize(
    ("calibration", "layout"),
    [("exact", "iid"), ("exact", "goe1"), ("exact", "goe2"), ("theorem", "iid")],
)
def test_the_exact_epsilon_of_local_noise_by_hand(calibration, layout):
    """Balle and Wang's formula at the joint sensitivity of both streams, by the oracle."""
    ratio = {"covariance_ratio": 1.0} if calibration == "exact" else {}
    keys = {"layout": layout, "calibration": calibration, **ratio}
    certificate = make("linucb-ldp", **keys).certificate
    std = certificate.noise_std["bias"]
    found = oracle.gaussian_epsilon(0.01, oracle.joint_sensitivity(layout) / std)
    assert certificate.exact.epsilon == pytest.approx(found, rel=1e-6)
    expected = oracle.ldp_noise_std(1.0, 0.01)
    if calibration == "exact":
        expected = oracle.tight_noise_std(1.0, 0.01, layout=layout)
    assert std == pytest.approx(expected, rel=1e-6)


def test_the_exact_epsilon_of_the_published_local_noise():
    """No less than what the published instances lose, where u' = -u is the worst change."""
    certificate = make("linucb-ldp", **PUBLISHED).certificate
    std = certificate.noise_std["bias"] * math.sqrt(2.0)
    assert std == pytest.approx(oracle.published("linucb-ldp", T=100, d=3, **BUDGET).noise_std)
    there = oracle.gaussian_epsilon(0.01, oracle.published_sensitivity("goe1") / std)
    assert there * (1 - 1e-9) <= certificate.exact.epsilon < 1.2 * there


def test_the_noise_of_the_theorems():
    s = make("linucb-sdp-amp", calibration="theorem").certificate.noise_std["bias"]
    assert s == pytest.approx(oracle.amp_noise_std(1.0, 0.01, 10))
    s = make("linucb-jdp", calibration="theorem").certificate.noise_std["bias"]
    assert s == pytest.approx(oracle.jdp_noise_std(1.0, 0.01, 10))
    plan = make("linucb-sdp-vec", calibration="theorem").plan
    g = oracle.vec_g(10, 3)
    assert plan.encoding.steps(0) == (g, g)
    assert plan.encoding.noise_bits == (math.ceil(oracle.vec_b(1.0, 0.01, 10, 3, g)),)
    plan = make("linucb-ldp", mechanism="vector-sum", calibration="theorem").plan
    g, b = oracle.vec_local(1.0, 0.01, 3)
    assert plan.encoding.steps(0) == (g, g)
    assert plan.encoding.noise_bits == (math.ceil(b),)


@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
def test_a_trusted_agent_has_the_least_noise_of_its_release(release):
    """Squared sensitivity by leaf: kappa = 4 nodes, what prefixes tell of them, sum of f_k^2."""
    certificate = make("linucb-jdp", release=release, covariance_ratio=1.0).certificate
    f = [math.comb(2 * k, k) / 4**k for k in range(10)]
    squared = {"tree": 4, "honaker": 9 / 5 + 144 / 85, "toeplitz": sum(x * x for x in f)}[release]
    expected = oracle.tight_noise_std(1.0, 0.01, users=math.sqrt(squared))
    assert certificate.noise_std["bias"] == pytest.approx(expected, rel=1e-6)


def test_the_published_agent_is_unproven():
    certificate = make("linucb-jdp", **PUBLISHED).certificate
    assert (certificate.status, certificate.exact, certificate.also) == ("unproven", None, ())
    (claim,) = [c for c in certificate.conditions if type(c) is ClaimCondition]
    assert not claim.holds and "between two draws" in claim.text
    assert certificate.claimed.epsilon == 1.0
    s = oracle.published("linucb-jdp", T=100, d=3, **BUDGET).noise_std
    assert certificate.noise_std["bias"] == pytest.approx(s / math.sqrt(2))


@pytest.mark.parametrize("algorithm", AGENTS[2:])
def test_published_noise_is_certified_as_what_it_is(algorithm):
    certificate = make(algorithm, **PUBLISHED).certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon > 1.0
    assert any("budget is not met" in caveat for caveat in certificate.caveats)
    assert any("regret bound is unproven" in caveat for caveat in certificate.caveats)


# What stands beside the claim.


def points(system: System, keys: dict[str, Any], **more: Any) -> Any:
    """The mechanism that the keys ask for."""
    budget = Budget(keys["epsilon"], keys["delta"], "replace")
    calibration = keys.get("calibration", "exact")
    ratio = keys["covariance_ratio"] if calibration == "exact" else 1.0
    shuffled = system.plan.protocol.shuffled
    return calibrate_local_gaussian(
        budget,
        system.plan.batch_size,
        shuffled=shuffled,
        calibration=calibration,
        covariance_ratio=ratio,
        **more,
    )


@pytest.mark.parametrize(
    "keys",
    [
        # Lemma B.4 proves more than local privacy, and less.
        {"epsilon": 0.2, "delta": 1e-5, "batch_size": 1000},
        {"epsilon": 1.0, "delta": 1e-3, "batch_size": 20},
        {"epsilon": 0.02, "delta": 1e-3, "batch_size": 1000, "calibration": "theorem"},
        {"epsilon": 0.2, "delta": 0.1, "batch_size": 20, "calibration": "published-code"},
        {"epsilon": 1.0, "delta": 1e-5, "batch_size": 1000, "returning": 2},
    ],
)
def test_shuffled_noise_is_worth_something_without_the_shuffler(keys):
    setting = dataclasses.replace(SETTING, horizon=5000)
    given = keys | ({} if "calibration" in keys else {"covariance_ratio": 1.0})
    system = make("linucb-sdp-amp", setting, **given)
    certificate, found = system.certificate, sides(system)
    returning = keys.get("returning", 1)
    mechanism = points(system, given, returning=returning)
    # The account is of the plan's noise, whose unit is a batch: equal but for a root's rounding.
    exact, local = (pytest.approx(e, rel=1e-14) for e in (mechanism.exact(), mechanism.ldp()))
    assert certificate.exact.epsilon == exact and mechanism.exact() <= mechanism.ldp()
    assert set(found) == {"local", "joint"}
    assert found["local"].exact.epsilon == local
    assert found["joint"].exact.epsilon == exact
    if keys.get("calibration", "exact") != "published-code":
        layout = "iid" if "calibration" in keys else "goe2"
        mu = oracle.joint_sensitivity(layout) / certificate.noise_std["bias"]
        by_hand = oracle.gaussian_epsilon(keys["delta"], math.sqrt(returning) * mu)
        assert found["local"].exact.epsilon == pytest.approx(by_hand, rel=1e-6)
    for side in found.values():
        assert side.status == "proven" and side.claimed is None
        assert (side.unit, side.relation) == ("user", "replace")
        assert side.exact.delta == keys["delta"]
        assert all(c.holds for c in side.conditions)
        assert side.noise_std == certificate.noise_std
    if keys["batch_size"] == 20 and "calibration" not in keys:
        # The lemma proves nothing for batches of 20: nothing is gained by the shuffler.
        assert found["local"].exact == certificate.exact
    if keys["batch_size"] == 1000 and "calibration" not in keys and returning == 1:
        assert found["local"].exact.epsilon > certificate.exact.epsilon
        inverted = oracle.amp_inverted_noise_std(keys["epsilon"], keys["delta"], 1000)
        # The best share of delta of this grid, or of another.
        assert certificate.noise_std["bias"] == pytest.approx(inverted, rel=0.02)


def test_a_shuffler_would_add_to_local_noise():
    setting = dataclasses.replace(SETTING, horizon=5000)
    keys = {"epsilon": 1.0, "delta": 1e-5, "batch_size": 2000, "covariance_ratio": 1.0}
    system = make("linucb-ldp", setting, **keys)
    found, mechanism = sides(system), points(system, keys)
    assert set(found) == {"shuffle"}
    assert found["shuffle"].exact.epsilon == min(mechanism.ldp(), mechanism.amplified())
    assert found["shuffle"].exact.epsilon < system.certificate.exact.epsilon == mechanism.exact()
    # Lemma B.4 at another share of delta is no better than what was searched for.
    for share in np.linspace(0.1, 0.9, 9):
        if not oracle.shuffling_condition(1.0, 2000, share * 1e-5):
            continue
        left = (1e-5 - share * 1e-5) / (2000 * (math.e + 1) * 1.5)
        mu = oracle.joint_sensitivity("goe2") / system.certificate.noise_std["bias"]
        local = oracle.gaussian_epsilon(left, mu)
        if not oracle.shuffling_condition(local, 2000, share * 1e-5):
            continue
        epsilon, delta = oracle.shuffled_budget(local, left, 2000, share * 1e-5)
        assert delta > 1e-5 or epsilon >= found["shuffle"].exact.epsilon * (1 - 1e-3)
    # One user is nobody to be mixed with.
    assert sides(make("linucb-ldp", setting, **(keys | {"batch_size": 1}))) == {}


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("linucb-sdp-vec", {}),
        ("linucb-sdp-vec", {"calibration": "published-code"}),
        ("linucb-sdp-vec", {"honest_fraction": 0.5}),
        ("linucb-sdp-vec", {"returning": 3}),
        ("linucb-ldp", {"mechanism": "vector-sum"}),
        ("linucb-ldp", {"mechanism": "vector-sum", "returning": "every-batch"}),
    ],
)
def test_bits_are_worth_something_to_others(algorithm, keys):
    local = algorithm == "linucb-ldp"
    system = make(algorithm, radius="lemma-a2", **keys)
    returning = {"every-batch": 10}.get(keys.get("returning", 1), keys.get("returning", 1))
    mechanism = calibrate_vector_batches(
        Budget(1.0, 0.01, "replace"),
        10,
        3,
        returning=returning,
        local=local,
        calibration=keys.get("calibration", "exact"),
        honest_fraction=keys.get("honest_fraction", 1.0),
    )
    assert system.plan.encoding.steps(0) == mechanism.g
    assert system.plan.encoding.noise_bits == (mechanism.b,)
    certificate, found = system.certificate, sides(system)
    assert certificate.exact.epsilon == mechanism.exact()
    other = "shuffle" if local else "local"
    expected = {model: epsilon for model, _, epsilon, _ in mechanism.sides()}
    assert set(found) == ({other} if local else {other, "joint"} if expected else {"joint"})
    for side in found.values():
        assert side.status == "proven" and side.exact.delta == 0.01
        assert side.exact.epsilon == expected.get(side.model, mechanism.exact())
    if local:
        # Ten users' bits hide more than one's.
        assert found["shuffle"].exact.epsilon < certificate.exact.epsilon
    elif "local" in found:
        assert found["local"].exact.epsilon == mechanism.local_epsilon()
        assert found["local"].exact.epsilon > certificate.exact.epsilon


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_what_a_run_breaks_is_said_beside_every_number(algorithm):
    """Features unbounded and not clipped: nothing is proven but under that assumption, aloud."""
    loose = dataclasses.replace(SETTING, features_bounded=False)
    certificate = make(algorithm, loose, clip=False).certificate
    assert (certificate.status, certificate.exact) == ("unproven", None)
    assert certificate.also
    for side in certificate.also:
        assert side.status == "conditional" and side.exact is not None
        failed = [c.text for c in side.conditions if not c.holds]
        assert any(text.startswith("feature norms <= 1") for text in failed)
    assert make(algorithm, loose).certificate.status == "proven"
    twice = dataclasses.replace(SETTING, multiplicity=2)
    assert make(algorithm, twice).certificate.status == "unproven"


# -- Users who return ------------------------------------------------------------------------------


@pytest.mark.parametrize("returning", [3, 10, "every-batch", 1000])
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("linucb-jdp", {"release": "tree"}),
        ("linucb-jdp", {"release": "toeplitz"}),
        ("linucb-jdp", {"release": "honaker"}),
        ("linucb-jdp", {"calibration": "theorem"}),
        ("linucb-ldp", {}),
        ("linucb-ldp", {"calibration": "theorem"}),
        ("linucb-ldp", {"mechanism": "vector-sum"}),
        ("linucb-sdp-amp", {}),
        ("linucb-sdp-vec", {}),
        ("linucb-sdp-vec", {"calibration": "theorem"}),
    ],
)
def test_users_who_return_are_protected_as_a_whole(algorithm, keys, returning):
    """No more batches than there are: ten."""
    most = min(10, 10 if isinstance(returning, str) else returning)
    once, often = make(algorithm, **keys), make(algorithm, returning=returning, **keys)
    certificate = often.certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon <= certificate.claimed.epsilon == 1.0
    trusted = [c for c in certificate.conditions if "a user takes part in at most" in c.text]
    assert [c.holds for c in trusted] == [True]
    assert f"at most {most} batches, once in each" in trusted[0].text
    assert not any("takes part" in c.text for c in once.certificate.conditions)
    for side in certificate.also:
        assert any(f"at most {most} batches" in c.text for c in side.conditions)
    if keys.get("calibration") == "theorem":
        return
    assert certificate.exact.epsilon > 0.99
    grown = certificate.noise_std["bias"] / once.certificate.noise_std["bias"]
    if algorithm == "linucb-jdp" and not keys:
        squared = oracle.tree_group_sensitivity2(range(1, most + 1), 10)
        assert grown == pytest.approx(math.sqrt(squared / 4), rel=1e-6)
    elif algorithm == "linucb-jdp":
        assert grown > math.sqrt(most)
    else:
        # M0 messages are independent: mu^2 adds up. Bits are whole, and their tails heavier.
        rel = 0.03 if often.plan.protocol.bits else 1e-6
        assert grown == pytest.approx(math.sqrt(most), rel=rel)


def test_the_theorems_for_returning_users():
    """Theorem E.3 with its logarithm put right, and E.5, at the budget of one batch."""
    amp = make("linucb-sdp-amp", calibration="theorem", returning="every-batch").certificate
    expected = oracle.amp_returning_noise_std(1.0, 0.01, 10, 10)
    assert amp.noise_std["bias"] == pytest.approx(expected)
    plan = make("linucb-sdp-vec", calibration="theorem", returning="every-batch").plan
    g = oracle.vec_g(10, 3)
    expected = oracle.vec_returning_b(1.0, 0.01, 10, 3, 10, g)
    assert plan.encoding.noise_bits == (math.ceil(expected),)


# -- Regret bounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", AGENTS)
@pytest.mark.parametrize(
    ("radius", "proven"),
    [("direct", True), ("lemma-a2", True), ("lemma-a4", False), ("published-code", False)],
)
def test_which_radius_is_proven(algorithm, radius, proven):
    assert make(algorithm, radius=radius).theory.proven == proven
    caveat = [c for c in make(algorithm, radius=radius).certificate.caveats if "regret" in c]
    assert bool(caveat) != proven
    assert not make(algorithm, radius=radius, radius_multiplier=0.5).theory.proven
    if radius != "published-code":
        assert make(algorithm, radius=radius, regularizer=1e9).theory.regularizer.max() == 1e9


@pytest.mark.parametrize("algorithm", AGENTS)
def test_a_regularizer_of_ones_own(algorithm):
    for radius in ("direct", "lemma-a2", "lemma-a4", "published-code"):
        plan = make(algorithm, radius=radius, regularizer=777.0).plan
        assert set(plan.regularizer) == {777.0}
    # Under another radius the printed lambda has to be asked for.
    printed = make(algorithm, radius="lemma-a4").plan.regularizer
    asked = make(algorithm, radius="lemma-a2", regularizer="lemma-a4").plan
    np.testing.assert_array_equal(asked.regularizer, printed)
