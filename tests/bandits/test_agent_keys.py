"""Tests of the keys of systems with a single agent: errors and certificates."""

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
from fastfed.bandits.problem import BoundSetting, ProblemSpec
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


def make(algorithm: str, problem: ProblemSpec = SETTING, **keys: Any) -> System:
    """Make the system with a budget and batches of ten; a key with value ``...`` is left out."""
    all_keys = {"batch_size": 10, **(BUDGET if algorithm in PRIVATE else {}), **keys}
    return ALGORITHMS[algorithm].make(
        {key: value for key, value in all_keys.items() if value is not ...}, problem
    )


def side_claims(system: System) -> dict[str, SideCertificate]:
    """Return the additional claims of the certificate by the first word of their model."""
    side_certificates = system.certificate.also
    claims = {side.model.split(":")[0]: side for side in side_certificates}
    assert len(claims) == len(side_certificates)
    return claims


# -- Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", AGENTS)
def test_errors_about_bad_keys_are_one_sentence(algorithm):
    """Check that every error names the key and the value, if there is one."""
    bad_keys = [
        ({"lazy": False}, "lazy must be true for a single agent"),
        ({"batch_size": 101}, r"batch_size must be <= horizon \(100\), got 101"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": "big"}, "batch_size must be an integer or one of .*\"growing\", got 'big'"),
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
        bad_keys += [
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
        bad_keys += [({"epsilon": 1.0}, 'unknown key "epsilon" for linucb')]
    if algorithm in AGENTS[1:4]:
        bad_keys += [
            ({"layout": "goe3"}, "layout must be one of .*got 'goe3'"),
            ({"layout": "goe2", **PUBLISHED}, 'layout must be "goe1" when .*got "goe2"'),
            ({"layout": "goe1", "calibration": "theorem"}, 'layout must be "iid" .*got "goe1"'),
        ]
    for keys, message in bad_keys:
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
def test_errors_about_keys_of_one_system(algorithm, keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(algorithm, **keys)
    assert "\n" not in str(error.value)


def test_published_noise_needs_at_least_two_rounds():
    with pytest.raises(
        InputError, match='calibration "published-code" needs a horizon of at least 2'
    ):
        make("linucb-jdp", dataclasses.replace(SETTING, horizon=1), batch_size=1, **PUBLISHED)


@pytest.mark.parametrize("algorithm", AGENTS[:3])
def test_default_without_a_shuffler_is_a_release_in_every_round(algorithm):
    plan = make(algorithm, batch_size=...).plan
    assert plan.releases == (0 if algorithm == "linucb" else 100)
    assert plan.rows_per_round == 1


@pytest.mark.parametrize("algorithm", AGENTS)
def test_simulations_need_one_silo(algorithm):
    """Check that the error names the curve, and that a simulation with one silo runs."""
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
def test_batch_sizes_of_the_theorems(budget):
    epsilon, delta = budget
    budget_keys = {"epsilon": epsilon, "delta": delta, "batch_size": "theorem"}
    for horizon, d in ((2000, 3), (50, 2), (1, 1)):
        problem = ProblemSpec(silos=1, horizon=horizon, dimension=d)
        setting = BoundSetting(horizon=horizon, dimension=d, epsilon=epsilon, delta=delta)
        cases: list[tuple[str, dict[str, Any], int, str]] = [
            ("linucb-jdp", {}, linucb_bounds.batch_size("F.4", setting), "F.4"),
            ("linucb-jdp", {"returning": 2}, linucb_bounds.batch_size("F.4", setting), "F.4"),
            ("linucb-ldp", {}, linucb_bounds.batch_size("F.2", setting), "F.2"),
            ("linucb-sdp-amp", {}, linucb_bounds.batch_size("B.2", setting), "B.2"),
            ("linucb-sdp-amp", {"returning": 2}, linucb_bounds.batch_size("E.4", setting), "E.4"),
            (
                "linucb-sdp-amp",
                {"returning": "every-batch"},
                linucb_bounds.batch_size("E.4", setting),
                "E.4",
            ),
        ]
        # Tiny budgets need very many bits, whose account takes long.
        if epsilon >= 1.0:
            cases += [
                (
                    "linucb-ldp",
                    {"mechanism": "vector-sum"},
                    linucb_bounds.batch_size("C.3", setting),
                    "C.3",
                ),
                ("linucb-sdp-vec", {}, linucb_bounds.batch_size("C.2", setting), "C.2"),
                (
                    "linucb-sdp-vec",
                    {"returning": 2},
                    linucb_bounds.batch_size("E.6", setting),
                    "E.6",
                ),
            ]
        for algorithm, keys, expected, rule in cases:
            batch_size = make(algorithm, problem, **budget_keys, **keys).plan.batch_size
            sizes = {"T": horizon, "d": d, "epsilon": epsilon, "delta": delta}
            assert batch_size == expected == oracle.batch_size(rule, **sizes), (algorithm, keys)
        of_linucb = make("linucb", problem, batch_size="theorem").plan.batch_size
        assert of_linucb == (linucb_bounds.batch_size("F.4", setting) if horizon > 1 else 0)


# -- Certificates ----------------------------------------------------------------------------------


def test_certificate_of_linucb_has_status_none():
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
def test_certificate_meets_the_claim_without_excess_noise(algorithm, relation):
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
def test_exact_epsilon_of_local_noise_follows_balle_and_wang(calibration, layout):
    """Compare with the oracle's formula at the joint sensitivity of both streams."""
    ratio = {"covariance_ratio": 1.0} if calibration == "exact" else {}
    keys = {"layout": layout, "calibration": calibration, **ratio}
    certificate = make("linucb-ldp", **keys).certificate
    std = certificate.noise_std["bias"]
    own_epsilon = oracle.gaussian_epsilon(0.01, oracle.joint_sensitivity(layout) / std)
    assert certificate.exact.epsilon == pytest.approx(own_epsilon, rel=1e-6)
    expected = oracle.ldp_noise_std(1.0, 0.01)
    if calibration == "exact":
        expected = oracle.tight_noise_std(1.0, 0.01, layout=layout)
    assert std == pytest.approx(expected, rel=1e-6)


def test_exact_epsilon_of_published_local_noise():
    """The loss is at least that of the published instances, where u' = -u is worst."""
    certificate = make("linucb-ldp", **PUBLISHED).certificate
    std = certificate.noise_std["bias"] * math.sqrt(2.0)
    assert std == pytest.approx(oracle.published("linucb-ldp", T=100, d=3, **BUDGET).noise_std)
    published_epsilon = oracle.gaussian_epsilon(0.01, oracle.published_sensitivity("goe1") / std)
    assert published_epsilon * (1 - 1e-9) <= certificate.exact.epsilon < 1.2 * published_epsilon


def test_noise_of_the_theorems():
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
def test_noise_of_a_trusted_agent_is_the_smallest_for_its_release(release):
    """Check the squared sensitivity per leaf: 4 nodes, the prefixes of Honaker, or the sum of
    f_k^2."""
    certificate = make("linucb-jdp", release=release, covariance_ratio=1.0).certificate
    coefficients = [math.comb(2 * k, k) / 4**k for k in range(10)]
    squared = {
        "tree": 4,
        "honaker": 9 / 5 + 144 / 85,
        "toeplitz": sum(coefficient * coefficient for coefficient in coefficients),
    }[release]
    expected = oracle.tight_noise_std(1.0, 0.01, users=math.sqrt(squared))
    assert certificate.noise_std["bias"] == pytest.approx(expected, rel=1e-6)


def test_certificate_of_the_published_agent_is_unproven():
    certificate = make("linucb-jdp", **PUBLISHED).certificate
    assert (certificate.status, certificate.exact, certificate.also) == ("unproven", None, ())
    (claim,) = [c for c in certificate.conditions if type(c) is ClaimCondition]
    assert not claim.holds and "between two draws" in claim.text
    assert certificate.claimed.epsilon == 1.0
    s = oracle.published("linucb-jdp", T=100, d=3, **BUDGET).noise_std
    assert certificate.noise_std["bias"] == pytest.approx(s / math.sqrt(2))


@pytest.mark.parametrize("algorithm", AGENTS[2:])
def test_certificate_gives_published_noise_its_true_epsilon(algorithm):
    certificate = make(algorithm, **PUBLISHED).certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon > 1.0
    assert any("budget is not met" in caveat for caveat in certificate.caveats)
    assert any("regret bound is unproven" in caveat for caveat in certificate.caveats)


# Additional claims of the certificate.


def local_mechanism(system: System, keys: dict[str, Any], **arguments: Any) -> Any:
    """Return the mechanism of local noise for these keys."""
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
        **arguments,
    )


@pytest.mark.parametrize(
    "keys",
    [
        # In some cases Lemma B.4 proves more than local privacy does, in others less.
        {"epsilon": 0.2, "delta": 1e-5, "batch_size": 1000},
        {"epsilon": 1.0, "delta": 1e-3, "batch_size": 20},
        {"epsilon": 0.02, "delta": 1e-3, "batch_size": 1000, "calibration": "theorem"},
        {"epsilon": 0.2, "delta": 0.1, "batch_size": 20, "calibration": "published-code"},
        {"epsilon": 1.0, "delta": 1e-5, "batch_size": 1000, "returning": 2},
    ],
)
def test_shuffled_noise_has_local_and_joint_guarantees(keys):
    problem = dataclasses.replace(SETTING, horizon=5000)
    all_keys = keys | ({} if "calibration" in keys else {"covariance_ratio": 1.0})
    system = make("linucb-sdp-amp", problem, **all_keys)
    certificate, claims = system.certificate, side_claims(system)
    returning = keys.get("returning", 1)
    mechanism = local_mechanism(system, all_keys, returning=returning)
    # The account uses the plan's noise per batch; it is equal up to the rounding of a square root.
    exact, local = (pytest.approx(e, rel=1e-14) for e in (mechanism.exact(), mechanism.ldp()))
    assert certificate.exact.epsilon == exact and mechanism.exact() <= mechanism.ldp()
    assert set(claims) == {"local", "joint"}
    assert claims["local"].exact.epsilon == local
    assert claims["joint"].exact.epsilon == exact
    if keys.get("calibration", "exact") != "published-code":
        layout = "iid" if "calibration" in keys else "goe2"
        mu = oracle.joint_sensitivity(layout) / certificate.noise_std["bias"]
        by_hand = oracle.gaussian_epsilon(keys["delta"], math.sqrt(returning) * mu)
        assert claims["local"].exact.epsilon == pytest.approx(by_hand, rel=1e-6)
    for claim in claims.values():
        assert claim.status == "proven" and claim.claimed is None
        assert (claim.unit, claim.relation) == ("user", "replace")
        assert claim.exact.delta == keys["delta"]
        assert all(c.holds for c in claim.conditions)
        assert claim.noise_std == certificate.noise_std
    if keys["batch_size"] == 20 and "calibration" not in keys:
        # The lemma proves nothing for batches of 20, so the shuffler adds no privacy.
        assert claims["local"].exact == certificate.exact
    if keys["batch_size"] == 1000 and "calibration" not in keys and returning == 1:
        assert claims["local"].exact.epsilon > certificate.exact.epsilon
        inverted = oracle.amp_inverted_noise_std(keys["epsilon"], keys["delta"], 1000)
        # The best share of delta may lie on a slightly different grid.
        assert certificate.noise_std["bias"] == pytest.approx(inverted, rel=0.02)


def test_local_noise_has_a_stronger_guarantee_with_a_shuffler():
    problem = dataclasses.replace(SETTING, horizon=5000)
    keys = {"epsilon": 1.0, "delta": 1e-5, "batch_size": 2000, "covariance_ratio": 1.0}
    system = make("linucb-ldp", problem, **keys)
    claims, mechanism = side_claims(system), local_mechanism(system, keys)
    assert set(claims) == {"shuffle"}
    assert claims["shuffle"].exact.epsilon == min(mechanism.ldp(), mechanism.amplified())
    assert claims["shuffle"].exact.epsilon < system.certificate.exact.epsilon == mechanism.exact()
    # Other shares of delta in Lemma B.4 are not better than the share that the search found.
    for share in np.linspace(0.1, 0.9, 9):
        if not oracle.shuffling_condition(1.0, 2000, share * 1e-5):
            continue
        remaining_delta = (1e-5 - share * 1e-5) / (2000 * (math.e + 1) * 1.5)
        mu = oracle.joint_sensitivity("goe2") / system.certificate.noise_std["bias"]
        local = oracle.gaussian_epsilon(remaining_delta, mu)
        if not oracle.shuffling_condition(local, 2000, share * 1e-5):
            continue
        epsilon, delta = oracle.shuffled_budget(local, remaining_delta, 2000, share * 1e-5)
        assert delta > 1e-5 or epsilon >= claims["shuffle"].exact.epsilon * (1 - 1e-3)
    # A shuffler has no effect on a batch of one user.
    assert side_claims(make("linucb-ldp", problem, **(keys | {"batch_size": 1}))) == {}


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
def test_bit_mechanisms_have_guarantees_under_other_trust_models(algorithm, keys):
    is_local = algorithm == "linucb-ldp"
    system = make(algorithm, radius="lemma-a2", **keys)
    returning = {"every-batch": 10}.get(keys.get("returning", 1), keys.get("returning", 1))
    mechanism = calibrate_vector_batches(
        Budget(1.0, 0.01, "replace"),
        10,
        3,
        returning=returning,
        local=is_local,
        calibration=keys.get("calibration", "exact"),
        honest_fraction=keys.get("honest_fraction", 1.0),
    )
    assert system.plan.encoding.steps(0) == mechanism.g
    assert system.plan.encoding.noise_bits == (mechanism.b,)
    certificate, claims = system.certificate, side_claims(system)
    assert certificate.exact.epsilon == mechanism.exact()
    other_model = "shuffle" if is_local else "local"
    expected = {model: epsilon for model, _, epsilon, _ in mechanism.sides()}
    assert set(claims) == (
        {other_model} if is_local else {other_model, "joint"} if expected else {"joint"}
    )
    for claim in claims.values():
        assert claim.status == "proven" and claim.exact.delta == 0.01
        assert claim.exact.epsilon == expected.get(claim.model, mechanism.exact())
    if is_local:
        # The bits of ten users hide more than the bits of one user.
        assert claims["shuffle"].exact.epsilon < certificate.exact.epsilon
    elif "local" in claims:
        assert claims["local"].exact.epsilon == mechanism.local_epsilon()
        assert claims["local"].exact.epsilon > certificate.exact.epsilon


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_every_claim_names_the_assumption_that_fails(algorithm):
    """Check features that are neither bounded nor clipped: all claims are conditional and name
    this."""
    unbounded_problem = dataclasses.replace(SETTING, features_bounded=False)
    certificate = make(algorithm, unbounded_problem, clip=False).certificate
    assert (certificate.status, certificate.exact) == ("unproven", None)
    assert certificate.also
    for claim in certificate.also:
        assert claim.status == "conditional" and claim.exact is not None
        failed = [condition.text for condition in claim.conditions if not condition.holds]
        assert any(text.startswith("feature norms <= 1") for text in failed)
    assert make(algorithm, unbounded_problem).certificate.status == "proven"
    problem_with_two = dataclasses.replace(SETTING, multiplicity=2)
    assert make(algorithm, problem_with_two).certificate.status == "unproven"


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
def test_certificate_protects_returning_users_in_all_batches(algorithm, keys, returning):
    """Use at most ten batches, the number in the run."""
    max_batches = min(10, 10 if isinstance(returning, str) else returning)
    single_system, returning_system = (
        make(algorithm, **keys),
        make(algorithm, returning=returning, **keys),
    )
    certificate = returning_system.certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon <= certificate.claimed.epsilon == 1.0
    conditions_on_users = [
        condition
        for condition in certificate.conditions
        if "a user takes part in at most" in condition.text
    ]
    assert [condition.holds for condition in conditions_on_users] == [True]
    assert f"at most {max_batches} batches, once in each" in conditions_on_users[0].text
    assert not any(
        "takes part" in condition.text for condition in single_system.certificate.conditions
    )
    for claim in certificate.also:
        assert any(
            f"at most {max_batches} batches" in condition.text for condition in claim.conditions
        )
    if keys.get("calibration") == "theorem":
        return
    assert certificate.exact.epsilon > 0.99
    noise_ratio = certificate.noise_std["bias"] / single_system.certificate.noise_std["bias"]
    if algorithm == "linucb-jdp" and not keys:
        squared = oracle.tree_group_sensitivity2(range(1, max_batches + 1), 10)
        assert noise_ratio == pytest.approx(math.sqrt(squared / 4), rel=1e-6)
    elif algorithm == "linucb-jdp":
        assert noise_ratio > math.sqrt(max_batches)
    else:
        # M0 messages are independent, so that mu^2 adds up. Numbers of bits are integers, and their
        # tails are heavier.
        rel = 0.03 if returning_system.plan.protocol.bits else 1e-6
        assert noise_ratio == pytest.approx(math.sqrt(max_batches), rel=rel)


def test_noise_of_the_theorems_for_returning_users():
    """Check Theorem E.3 with a corrected logarithm, and E.5, at the budget of one batch."""
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
def test_only_some_radii_have_a_proven_regret_bound(algorithm, radius, proven):
    assert make(algorithm, radius=radius).theory.proven == proven
    caveats = [
        caveat_
        for caveat_ in make(algorithm, radius=radius).certificate.caveats
        if "regret" in caveat_
    ]
    assert bool(caveats) != proven
    assert not make(algorithm, radius=radius, radius_multiplier=0.5).theory.proven
    if radius != "published-code":
        assert make(algorithm, radius=radius, regularizer=1e9).theory.regularizer.max() == 1e9


@pytest.mark.parametrize("algorithm", AGENTS)
def test_a_given_regularizer_is_used_with_every_radius(algorithm):
    for radius in ("direct", "lemma-a2", "lemma-a4", "published-code"):
        plan = make(algorithm, radius=radius, regularizer=777.0).plan
        assert set(plan.regularizer) == {777.0}
    # With another radius, the printed lambda must be requested.
    printed = make(algorithm, radius="lemma-a4").plan.regularizer
    plan_with_printed = make(algorithm, radius="lemma-a2", regularizer="lemma-a4").plan
    np.testing.assert_array_equal(plan_with_printed.regularizer, printed)
