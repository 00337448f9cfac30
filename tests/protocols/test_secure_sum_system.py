"""Tests of the protocol "secure-sum" as a system: keys, plan, drivers, parties and certificate."""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle import centred as oracle
from scipy import stats
from test_drivers import assert_same_bits, outcomes_of_both_drivers

import fastfed
from fastfed._random import SeededNoise
from fastfed._system import System
from fastfed._validate import InputError
from fastfed.bandits.assemble import secure_encoder
from fastfed.environments import Sphere
from fastfed.parties import Report, Server, Silo
from fastfed.privacy.certificate import EXACT_SECURE_SUM_CAVEAT, SECURE_SUM_CAVEAT
from fastfed.privacy.sensitivity import layout_stds
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.secure_sum import Encoded, simulated_keys
from fastfed.simulation import server
from fastfed.simulation.experiment import make_experiment, without_new_defaults

D, SILOS, HORIZON = 3, 4, 60
SIZES = {"silos": SILOS, "horizon": HORIZON, "dimension": D}
CURVE: dict[str, Any] = {
    "algorithm": "private-fedlinucb",
    "protocol": "secure-sum",
    "epsilon": 20.0,
    "delta": 1e-2,
    "batch_size": "growing",
    "batch_first": 2,
    "batch_ratio": 1.4,
}
CENTRED = {"reward_centre": 0.5}


def make(**keys: Any) -> System:
    """Make a system without an environment and so without an intercept."""
    curve_keys = {key: value for key, value in CURVE.items() if key != "algorithm"}
    return fastfed.make_system("private-fedlinucb", **{**SIZES, **curve_keys, **keys})


def experiment(*curves: dict[str, Any], intercept: float = 2.0, **sizes: Any) -> Any:
    """Return an experiment on a sphere with an intercept."""
    labelled_curves = [{"label": str(i), **CURVE, **keys} for i, keys in enumerate(curves)]
    all_sizes = {"horizon": HORIZON, "silos": SILOS, "seed": 7, "checkpoints": 5, **sizes}
    actions = all_sizes.pop("actions", 6)
    sphere = Sphere(dimension=all_sizes.pop("dimension", D), actions=actions, intercept=intercept)
    return make_experiment(name="secure", environment=sphere, curves=labelled_curves, **all_sizes)


# ---- drivers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"lazy": False},
        CENTRED,
        {**CENTRED, "lazy": False},
        {"release": "toeplitz"},
        {"batch_size": 7, "batch_first": None, "batch_ratio": None, "colluders": 3},
        {"epsilon": 2000.0},
        {**CENTRED, "bonus": 0.3, "epsilon": 200.0},
        {"relation": "zero-out", "returning": 3, "layout": "iid", "lazy": False},
    ],
    ids=str,
)
def test_both_drivers_agree_bit_for_bit(keys: dict[str, Any]) -> None:
    e = experiment(keys)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert compiled_outcome.synchronisations[-1] == e.curves[0].system.plan.releases > 1
    assert_same_bits(compiled_outcome, step_outcome)


@functools.cache
def noise_of_releases(messages: str, runs: int) -> tuple[Plan, np.ndarray]:
    """Return the plan and the noise (runs, K, s) of each release.

    With a single action, the noise is the broadcast minus the plain sums.
    """
    (curve,) = experiment(
        {"messages": messages, **CENTRED}, actions=1, horizon=9, silos=3, dimension=2
    ).curves
    plan = curve.system.plan
    sphere = Sphere(dimension=2, actions=1, intercept=2.0)
    noise = np.zeros((runs, plan.releases, plan.statistic_size))
    for run in range(runs):
        noise_of_run = broadcast_noise(plan, sphere.open(3, run, 3), SeededNoise(3, run))
        noise[run] = noise_of_run
    return plan, noise


def broadcast_noise(plan: Plan, environment: Any, noise: SeededNoise) -> np.ndarray:
    """Run the parties and return each broadcast minus the plain sums."""
    keys = [simulated_keys(3, i, 3) if plan.individual else None for i in range(3)]
    silos = [Silo(plan, i, noise, keys[i]) for i in range(3)]
    sum_server, noise_per_release, plain_sums = (
        Server(plan, noise),
        [],
        np.zeros(plan.statistic_size),
    )
    for round in range(1, plan.horizon + 1):
        for i, silo in enumerate(silos):
            features, means = environment.round(i, round)
            silo.select(features)
            y = environment.reward(i, round, means[0])
            silo.observe(y)
            x = features[0].astype(np.float64)
            plain_sums[:2] += x * (y - 0.5)
            plain_sums[2:] += np.outer(x, x)[np.tril_indices(2)]
        if silos[0].due:
            broadcast = sum_server.combine([silo.report() for silo in silos])
            for silo in silos:
                silo.receive(broadcast)
            noise_per_release.append(broadcast.values - plain_sums)
    return np.array(noise_per_release)


def test_individual_and_aggregate_noise_have_the_same_distribution() -> None:
    """Check that all whitened entries and releases are standard normal in both cases."""
    runs, whitened = 400, {}
    for messages in ("individual", "aggregate"):
        plan, noise = noise_of_releases(messages, runs)
        # Differences come from records in fixed point and from clipped features, which are rounded.
        np.testing.assert_allclose(noise[:, :, -1], 0.0, atol=1e-5)
        bias, off_diagonal, _ = plan.noise_std.parts
        white = np.linalg.solve(plan.factor.matrix, noise[:, :, :-1])
        # d = 2 and the last feature is constant: x y twice, z z on the diagonal, c z off the
        # diagonal.
        white /= np.array([bias, bias, plan.noise_std.diagonal, off_diagonal])
        whitened[messages] = white.reshape(runs, -1)
    for white in whitened.values():
        assert stats.kstest(white.ravel(), "norm").pvalue > 1e-6
        # Correlations of all pairs of the K s entries.
        size = white.shape[1]
        correlations = np.corrcoef(white.T)[np.triu_indices(size, 1)]
        statistic = runs * float((correlations**2).sum())
        assert stats.chi2.sf(statistic, len(correlations)) > 1e-6
    first, second = whitened.values()
    assert not np.array_equal(first, second)
    assert stats.ks_2samp(first.ravel(), second.ravel()).pvalue > 1e-6
    for first_entry, second_entry in zip(first.T, second.T, strict=True):
        assert stats.ks_2samp(first_entry, second_entry).pvalue > 1e-6


def test_individual_messages_are_simulated_by_the_parties() -> None:
    """Check that both drivers run the parties and that with little noise the sums are nearly
    plain."""
    e = experiment({"messages": "individual", "epsilon": 1e9}, {"epsilon": 1e9})
    environment = e.environment.open(e.seed, 0, SILOS)
    individual_plan, aggregate_plan = (curve.system.plan for curve in e.curves)
    assert individual_plan.individual and not aggregate_plan.individual
    individual_outcome = server.run(environment, individual_plan, e.checkpoints)
    np.testing.assert_array_equal(
        individual_outcome.total, server.run_one(environment, individual_plan, e.checkpoints).total
    )
    aggregate_outcome = server.run_one(environment, aggregate_plan, e.checkpoints)
    assert np.abs(individual_outcome.total - aggregate_outcome.total).max() > 0.0
    np.testing.assert_allclose(individual_outcome.total, aggregate_outcome.total, atol=0.01)
    np.testing.assert_array_equal(individual_outcome.bits_up, aggregate_outcome.bits_up)


# ---- sizes ---------------------------------------------------------------------------------------


def test_a_silo_sends_one_word_per_entry() -> None:
    plan = make().plan
    k, s = plan.releases, D + D * (D + 1) // 2
    assert plan.bits_up_of(k) == plan.bits_down_of(k) == 64 * s * SILOS * k
    assert plan.secure.nbytes == 8 * s
    assert plan.history_numbers == k * s


def test_a_message_of_ten_dimensions_has_520_bytes() -> None:
    system = make(dimension=10, silos=100, horizon=10_000, batch_ratio=1.1, batch_first=1)
    assert system.plan.bits_up_of(1) == 100 * 520 * 8


# ---- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("colluders", [None, 0, 5, 14])
@pytest.mark.parametrize("centre", [{}, CENTRED])
@pytest.mark.parametrize("release", ["factorised", "toeplitz", "tree"])
def test_noise_exceeds_that_of_a_trusted_server_by_the_colluders_share(
    colluders: int | None, centre: dict[str, Any], release: str
) -> None:
    """Check the factor sqrt(M / (M - t)), up to rounding of the factor."""
    keys = {"silos": 15, "release": release, **centre, "epsilon": 1.0, "saturation": 0.0}
    e = experiment({**keys, "colluders": colluders}, {**keys, "protocol": "central"}, horizon=200)
    secure_plan, central_plan = (curve.system.plan for curve in e.curves)
    t = 5 if colluders is None else colluders
    assert secure_plan.secure.colluders == t
    ratio = math.sqrt(15 / (15 - t))
    for secure_std, central_std in zip(
        secure_plan.noise_std.parts, central_plan.noise_std.parts, strict=True
    ):
        # Up to rounding, columns of the optimal factor have the largest allowed norm.
        assert ratio * (1.0 - 1e-4) <= secure_std / central_std <= ratio * (1.0 + 1e-3)
    # The radius accounts for the noise of each prefix.
    np.testing.assert_allclose(
        secure_plan.radius.error_bound, ratio * central_plan.radius.error_bound, rtol=2e-3
    )


def test_factors_of_toeplitz_and_tree_by_hand() -> None:
    """Compare Toeplitz rows and nodes of the binary tree with values by hand."""
    toeplitz = secure_encoder("toeplitz", Schedule(4, 1), 4)
    np.testing.assert_allclose(toeplitz[3], [0.3125, 0.375, 0.5, 1.0])
    tree = secure_encoder("tree", Schedule(6, 1), 6)
    np.testing.assert_array_equal(
        tree,
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [0, 0, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 1, 1],
        ],
    )
    plan = make(release="tree", batch_size=10, batch_first=None, batch_ratio=None).plan
    np.testing.assert_array_equal(plan.factor.matrix[4], [0, 0, 0, 1, 1, 0])


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("intercept", [1.0, 2.0, 5.0])
def test_no_centred_record_exceeds_the_sensitivity(intercept: float, relation: str) -> None:
    """Search records with a constant feature, entry by entry of the noise."""
    e = experiment({**CENTRED, "relation": relation}, intercept=intercept)
    secure = e.curves[0].system.plan.secure
    bias, off_std, diagonal_std = (
        std * math.sqrt(secure.honest / secure.silos) for std in secure.stds
    )
    release = oracle.Release(
        kappa=intercept,
        bias=bias,
        constant_bias=bias,
        off_diagonal=off_std,
        diagonal=diagonal_std,
        cross=off_std,
    )
    rng = np.random.default_rng(1)
    largest_ratio = oracle.largest_found(release, D - 1, rng, 11, relation == "replace")
    column = math.sqrt(secure.squares) / 2.0**secure.factor_bits
    assert column * largest_ratio <= secure.mu() <= column * largest_ratio * (1.0 + 1e-5)
    # Colluders' shares are not counted, and the entry of the constant has no noise.
    assert secure.entry_trials()[-1] == 0 and min(secure.entry_trials()[:-1]) > 0
    assert secure.mu() > column * largest_ratio * (1.0 - 1e-12)


def test_account_of_centred_sums_follows_reward_range_and_constant() -> None:
    secure = experiment({**CENTRED, "covariance_ratio": 0.3}).curves[0].system.plan.secure
    assert 19.99 < secure.exact() <= 20.0
    wider_rewards = msgspec.structs.replace(
        secure, centred=msgspec.structs.replace(secure.centred, high=0.7)
    )
    assert wider_rewards.exact() > 20.1
    without_constant = msgspec.structs.replace(secure, centred=None)
    # Rows without a constant include rows with one.
    assert without_constant.exact() >= secure.exact() * (1.0 - 1e-6)
    with pytest.raises(InputError, match="the range of centred rewards must contain 0"):
        msgspec.structs.replace(
            secure, centred=msgspec.structs.replace(secure.centred, low=0.2, high=0.7)
        )


def test_noise_follows_the_layout_key() -> None:
    for layout in ("iid", "goe1", "goe2"):
        bias, off_std, diagonal_std = make(layout=layout, covariance_ratio=2.0).plan.noise_std.parts
        expected = layout_stds(layout, 2.0)
        assert (off_std / bias, diagonal_std / bias) == pytest.approx(expected, rel=1e-9)
        centred = experiment({"layout": layout, "covariance_ratio": 2.0, **CENTRED}, intercept=3.0)
        bias, off_std, diagonal_std = centred.curves[0].system.plan.noise_std.parts
        assert (off_std / bias, diagonal_std / bias) == pytest.approx(expected, rel=1e-9)


# ---- the certificate -----------------------------------------------------------------------------


def test_certificate_names_trusted_parties_and_the_guarantee_without_them() -> None:
    system = make(silos=9, epsilon=1.0, delta=1e-3)
    plan, certificate = system.plan, system.certificate
    assert (certificate.status, certificate.unit, certificate.relation) == (
        "proven",
        "user",
        "replace",
    )
    assert certificate.exact.epsilon == plan.secure.exact() <= 1.0 == certificate.claimed.epsilon
    assert certificate.exact.epsilon > 0.9999
    assert "server and 3 of the 9 silos" in certificate.model
    texts = [condition.text for condition in certificate.conditions]
    assert all(condition.holds for condition in certificate.conditions)
    assert any("at least 6 of the 9 silos" in text for text in texts)
    assert any("masks' keys" in text for text in texts)
    assert any("drop-outs are not recovered" in text for text in texts)
    assert (
        SECURE_SUM_CAVEAT in certificate.caveats
        and EXACT_SECURE_SUM_CAVEAT not in certificate.caveats
    )
    same_silo_claim, without_trust = certificate.also
    assert "same silo" in same_silo_claim.model and same_silo_claim.exact == certificate.exact
    assert "all other silos" in without_trust.model and without_trust.claimed is None
    assert (without_trust.unit, without_trust.status) == ("user", "proven")
    # Only one of the 6 counted shares remains: mu grows by the factor sqrt(6).
    mu = plan.secure.mu() * math.sqrt(6)
    assert without_trust.exact.epsilon == pytest.approx(
        fastfed.privacy.epsilon_of(mu, 1e-3), rel=1e-8
    )
    deployed = system.deployed_certificate
    assert EXACT_SECURE_SUM_CAVEAT in deployed.caveats and SECURE_SUM_CAVEAT not in deployed.caveats
    assert not any(
        "simulation" in condition or "Gaussian" in condition for condition in deployed.caveats
    )


def test_eager_play_protects_only_single_pairs() -> None:
    certificate = make(lazy=False).certificate
    assert certificate.status == "unproven" and certificate.exact is None
    assert [side.unit for side in certificate.also] == ["item", "item"]
    assert "all other silos" in certificate.also[1].model


def test_certificates_without_and_with_full_collusion() -> None:
    no_colluders = make(colluders=0).certificate
    assert no_colluders.model == "secure sum: the server, honest but curious, is not trusted"
    all_collude = make(colluders=SILOS - 1).certificate
    assert all_collude.exact == all_collude.also[1].exact
    single_silo = make(silos=1).certificate
    assert single_silo.exact == single_silo.also[1].exact
    assert not any(
        "masks" in condition.text or "drop-outs" in condition.text
        for condition in single_silo.conditions
    )


# ---- keys ----------------------------------------------------------------------------------------


def test_keys_have_their_documented_defaults() -> None:
    system = make(silos=100)
    assert system.plan.secure.colluders == 33 and make(silos=2).plan.secure.colluders == 0
    assert system.plan.factor == make(silos=100, release="factorised").plan.factor
    assert system.plan.factor != make(silos=100, release="toeplitz").plan.factor
    # Other protocols of the same sizes have the same default.
    assert make(protocol="central", silos=100).plan.release == "factorised"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"colluders": 4}, r"colluders must be below the number of silos \(4\), got 4"),
        ({"colluders": -1}, "colluders must be an integer >= 0"),
        ({"protocol": "central", "colluders": 1}, 'colluders belongs to protocol "secure-sum"'),
        ({"release": "honaker"}, 'release must be "factorised", "toeplitz" or "tree"'),
        ({"release": "flat"}, 'release "flat" needs protocol "shuffle-vector"'),
        ({"calibration": "theorem"}, 'calibration must be "exact" for secure-sum'),
        ({"epsilon": None, "silo_epsilon": (1.0, 1.0, 2.0, 1.0)}, "silo_epsilon needs protocol"),
        ({"protects": "reward"}, 'protects "reward" needs protocol'),
        ({"vector_scale": 2.0}, 'vector_scale belongs to protocol "shuffle-vector"'),
        ({"honest_fraction": 0.5}, 'honest_fraction belongs to protocol "shuffle-vector"'),
        ({"messages": "each"}, "messages must be"),
        (
            {"protocol": "central", "messages": "individual"},
            'messages belongs to protocol "shuffle-vector" or "secure-sum"',
        ),
        (
            {
                "release": "tree",
                "batch_size": 1,
                "horizon": 1100,
                "batch_first": None,
                "batch_ratio": None,
            },
            "at most 1024 releases, got 1100",
        ),
        (
            {"batch_size": 1, "horizon": 1100, "batch_first": None, "batch_ratio": None},
            "at most 1024 releases, got 1100",
        ),
        ({"reward_centre": 0.5}, "reward_centre needs an environment with an intercept"),
        ({"delta": 1e-300, "epsilon": 1e-9}, "must leave 63 bits"),
    ],
)
def test_errors_about_bad_keys_are_one_sentence(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**keys)


def test_identity_of_older_curves_does_not_change() -> None:
    """Check that the new keys are left out of a curve's identity unless they are used."""
    e = experiment({"protocol": "silo-ldp", "batch_size": 5, "batch_first": None,
                    "batch_ratio": None}, CURVE)  # fmt: skip
    silo_ldp_keys, secure_keys = (without_new_defaults(curve.keys) for curve in e.curves)
    assert "colluders" not in silo_ldp_keys and "colluders" not in secure_keys


# ---- parties -------------------------------------------------------------------------------------


def deployed_parties(plan: Plan) -> tuple[list[Silo], Server]:
    """Return silos and a server with shared keys and noise from the operating system."""
    silos = [Silo(plan, i, keys=simulated_keys(1, i, plan.silos)) for i in range(plan.silos)]
    return silos, Server(plan)


@pytest.mark.parametrize("messages", ["aggregate", "individual"])
def test_deployed_silos_always_send_masked_words(messages: str) -> None:
    plan = make(messages=messages, epsilon=1e5).plan
    silos, sum_server = deployed_parties(plan)
    total = np.zeros(plan.statistic_size)
    for round in range(plan.horizon):
        for i, silo in enumerate(silos):
            x = np.eye(D)[[round % D]] * 0.9
            silo.select(x)
            silo.observe(0.25 * i)
            total[:D] += x[0] * 0.25 * i
            total[D:] += np.outer(x[0], x[0])[np.tril_indices(D)]
        if silos[0].due:
            reports = [silo.report() for silo in silos]
            assert all(type(report) is Encoded for report in reports)
            # If a report is missing or doubled, the server refuses and its state does not change.
            for wrong_reports in (reports[1:], [*reports[:-1], reports[0]]):
                with pytest.raises(InputError, match="one of each of the 4 silos"):
                    sum_server.combine(wrong_reports)
            broadcast = sum_server.combine(reports)
            for silo in silos:
                silo.receive(broadcast)
            # The noise of epsilon 1e5 is small; a word that is still masked would be about 2^27.
            np.testing.assert_allclose(broadcast.values, total, atol=0.5)
    assert sum_server.release == plan.releases
    assert np.linalg.norm(silos[0].theta - 0.375 / 0.9) < 0.1
    with pytest.raises(InputError, match="has no report due"):
        silos[0].report()


def test_servers_refuse_messages_of_other_types() -> None:
    plan = make().plan
    _, sum_server = deployed_parties(plan)
    size = plan.statistic_size
    with pytest.raises(InputError, match="messages must be Encoded values, got Report"):
        sum_server.combine([Report(1, D, np.zeros(size), i) for i in range(SILOS)])
    simulated = Server(plan, SeededNoise(1))
    words = np.zeros(size, dtype=np.uint64)
    with pytest.raises(InputError, match="reports must hold one report of each of the 4 silos"):
        simulated.combine([Encoded(1, D, words, i) for i in range(SILOS)])


def test_silos_need_keys_only_for_masked_messages() -> None:
    plan, keys = make().plan, simulated_keys(1, 0, SILOS)
    with pytest.raises(InputError, match='keys must be given with protocol "secure-sum": silo 0'):
        Silo(plan, 0)
    with pytest.raises(InputError, match="keys must be given"):
        Silo(make(messages="individual").plan, 0, SeededNoise(1))
    with pytest.raises(InputError, match="keys must hold one for each of the 3 other silos"):
        Silo(plan, 0, keys=simulated_keys(1, 0, 3))
    with pytest.raises(
        InputError, match='keys are for masked messages only, got keys for "central"'
    ):
        Silo(make(protocol="central").plan, 0, keys=keys)
    with pytest.raises(InputError, match="keys are for masked messages only"):
        Silo(plan, 0, SeededNoise(1), keys)
    Silo(plan, 0, SeededNoise(1))
    Silo(make(silos=1).plan, 0)
