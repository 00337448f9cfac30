"""The protocol "secure-sum" as a system: keys, plan, both drivers, parties and certificate."""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle import centred as oracle
from scipy import stats
from test_drivers import both, same

import fastfed
from fastfed._random import SeededNoise
from fastfed._system import System
from fastfed._validate import InputError
from fastfed.bandits.assemble import secure_encoder
from fastfed.environments import Sphere
from fastfed.parties import Report, Server, Silo
from fastfed.privacy.certificate import COINS, LIMITS
from fastfed.privacy.sensitivity import layout_stds
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.secure_sum import Encoded, simulated_keys
from fastfed.simulation import server
from fastfed.simulation.experiment import make_experiment, since

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
    """A system of a problem without an environment, which has no intercept."""
    own = {k: v for k, v in CURVE.items() if k != "algorithm"}
    return fastfed.make_system("private-fedlinucb", **{**SIZES, **own, **keys})


def experiment(*curves: dict[str, Any], intercept: float = 2.0, **sizes: Any) -> Any:
    """An experiment of a sphere with an intercept."""
    named = [{"label": str(i), **CURVE, **keys} for i, keys in enumerate(curves)]
    given = {"horizon": HORIZON, "silos": SILOS, "seed": 7, "checkpoints": 5, **sizes}
    actions = given.pop("actions", 6)
    sphere = Sphere(dimension=given.pop("dimension", D), actions=actions, intercept=intercept)
    return make_experiment(name="secure", environment=sphere, curves=named, **given)


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
def test_the_two_drivers_agree_bit_for_bit(keys: dict[str, Any]) -> None:
    e = experiment(keys)
    (fast,), (readable,) = both(e)
    assert fast.synchronisations[-1] == e.curves[0].system.plan.releases > 1
    same(fast, readable)


@functools.cache
def noises(messages: str, runs: int) -> tuple[Plan, np.ndarray]:
    """Noise of every release (runs, K, s): what is broadcast less the plain sums of one action."""
    (curve,) = experiment(
        {"messages": messages, **CENTRED}, actions=1, horizon=9, silos=3, dimension=2
    ).curves
    plan = curve.system.plan
    sphere = Sphere(dimension=2, actions=1, intercept=2.0)
    found = np.zeros((runs, plan.releases, plan.statistic_size))
    for run in range(runs):
        seen = _broadcasts(plan, sphere.open(3, run, 3), SeededNoise(3, run))
        found[run] = seen
    return plan, found


def _broadcasts(plan: Plan, world: Any, noise: SeededNoise) -> np.ndarray:
    keys = [simulated_keys(3, i, 3) if plan.individual else None for i in range(3)]
    silos = [Silo(plan, i, noise, keys[i]) for i in range(3)]
    middle, seen, total = Server(plan, noise), [], np.zeros(plan.statistic_size)
    for round in range(1, plan.horizon + 1):
        for i, silo in enumerate(silos):
            features, means = world.round(i, round)
            silo.select(features)
            y = world.reward(i, round, means[0])
            silo.observe(y)
            x = features[0].astype(np.float64)
            total[:2] += x * (y - 0.5)
            total[2:] += np.outer(x, x)[np.tril_indices(2)]
        if silos[0].due:
            broadcast = middle.combine([silo.report() for silo in silos])
            for silo in silos:
                silo.receive(broadcast)
            seen.append(broadcast.values - total)
    return np.array(seen)


def test_messages_and_their_sum_have_one_law() -> None:
    """Whitened, all entries and releases of both are standard normals, and alike."""
    runs, whitened = 400, {}
    for messages in ("individual", "aggregate"):
        plan, found = noises(messages, runs)
        # Of records in fixed point, and of clipped features, which float64 scales.
        np.testing.assert_allclose(found[:, :, -1], 0.0, atol=1e-5)
        bias, off, _ = plan.noise_std.parts
        white = np.linalg.solve(plan.factor.matrix, found[:, :, :-1])
        # d = 2 with a constant last: x y twice, z z on the diagonal, c z off it.
        white /= np.array([bias, bias, plan.noise_std.diagonal, off])
        whitened[messages] = white.reshape(runs, -1)
    for white in whitened.values():
        assert stats.kstest(white.ravel(), "norm").pvalue > 1e-6
        # Correlations of all pairs, K s of them.
        size = white.shape[1]
        correlations = np.corrcoef(white.T)[np.triu_indices(size, 1)]
        statistic = runs * float((correlations**2).sum())
        assert stats.chi2.sf(statistic, len(correlations)) > 1e-6
    first, second = whitened.values()
    assert not np.array_equal(first, second)
    assert stats.ks_2samp(first.ravel(), second.ravel()).pvalue > 1e-6
    for one, other in zip(first.T, second.T, strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-6


def test_individual_messages_are_played_by_the_parties() -> None:
    """The step driver, whichever is asked for; next to no noise: nearly the plain sums' play."""
    e = experiment({"messages": "individual", "epsilon": 1e9}, {"epsilon": 1e9})
    opened = e.environment.open(e.seed, 0, SILOS)
    masked, plain = (c.system.plan for c in e.curves)
    assert masked.individual and not plain.individual
    one = server.run(opened, masked, e.checkpoints)
    np.testing.assert_array_equal(one.total, server.run_one(opened, masked, e.checkpoints).total)
    other = server.run_one(opened, plain, e.checkpoints)
    assert np.abs(one.total - other.total).max() > 0.0
    np.testing.assert_allclose(one.total, other.total, atol=0.01)
    np.testing.assert_array_equal(one.bits_up, other.bits_up)


# ---- sizes ---------------------------------------------------------------------------------------


def test_a_silo_sends_a_word_for_each_entry() -> None:
    plan = make().plan
    k, s = plan.releases, D + D * (D + 1) // 2
    assert plan.bits_up_of(k) == plan.bits_down_of(k) == 64 * s * SILOS * k
    assert plan.secure.nbytes == 8 * s
    assert plan.history_numbers == k * s


def test_ten_dimensions_take_520_bytes() -> None:
    system = make(dimension=10, silos=100, horizon=10_000, batch_ratio=1.1, batch_first=1)
    assert system.plan.bits_up_of(1) == 100 * 520 * 8


# ---- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("colluders", [None, 0, 5, 14])
@pytest.mark.parametrize("centre", [{}, CENTRED])
@pytest.mark.parametrize("release", ["factorised", "toeplitz", "tree"])
def test_noise_is_a_trusted_servers_and_the_colluders(
    colluders: int | None, centre: dict[str, Any], release: str
) -> None:
    """Of the least noise of a trusted server, sqrt(M / (M - t)) times; factors are rounded."""
    keys = {"silos": 15, "release": release, **centre, "epsilon": 1.0, "saturation": 0.0}
    e = experiment({**keys, "colluders": colluders}, {**keys, "protocol": "central"}, horizon=200)
    ours, theirs = (c.system.plan for c in e.curves)
    t = 5 if colluders is None else colluders
    assert ours.secure.colluders == t
    more = math.sqrt(15 / (15 - t))
    for own, other in zip(ours.noise_std.parts, theirs.noise_std.parts, strict=True):
        # Columns of the optimal factor are as long as they may be, but for rounding.
        assert more * (1.0 - 1e-4) <= own / other <= more * (1.0 + 1e-3)
    # The radius counts what each prefix then has.
    np.testing.assert_allclose(ours.radius.error_bound, more * theirs.radius.error_bound, rtol=2e-3)


def test_factors_of_the_releases() -> None:
    """Toeplitz rows, and nodes of the binary tree, worked out by hand."""
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
def test_no_centred_record_moves_more_than_is_counted(intercept: float, relation: str) -> None:
    """By search over records with the constant of the code, entry by entry of the noise."""
    e = experiment({**CENTRED, "relation": relation}, intercept=intercept)
    secure = e.curves[0].system.plan.secure
    bias, off, on = (std * math.sqrt(secure.honest / secure.silos) for std in secure.stds)
    release = oracle.Release(
        kappa=intercept, bias=bias, constant_bias=bias, off_diagonal=off, diagonal=on, cross=off
    )
    rng = np.random.default_rng(1)
    found = oracle.largest_found(release, D - 1, rng, 11, relation == "replace")
    column = math.sqrt(secure.squares) / 2.0**secure.factor_bits
    assert column * found <= secure.mu() <= column * found * (1.0 + 1e-5)
    # A third colluder's share is not counted, and the constant's entry has none.
    assert secure.entry_trials()[-1] == 0 and min(secure.entry_trials()[:-1]) > 0
    assert secure.mu() > column * found * (1.0 - 1e-12)


def test_a_centred_account_pays_for_what_is_changed() -> None:
    secure = experiment({**CENTRED, "covariance_ratio": 0.3}).curves[0].system.plan.secure
    assert 19.99 < secure.exact() <= 20.0
    wide = msgspec.structs.replace(
        secure, centred=msgspec.structs.replace(secure.centred, high=0.7)
    )
    assert wide.exact() > 20.1
    free = msgspec.structs.replace(secure, centred=None)
    # Rows that are free contain those with a constant.
    assert free.exact() >= secure.exact() * (1.0 - 1e-6)
    with pytest.raises(InputError, match="the range of centred rewards must contain 0"):
        msgspec.structs.replace(
            secure, centred=msgspec.structs.replace(secure.centred, low=0.2, high=0.7)
        )


def test_layouts_are_those_of_the_key() -> None:
    for layout in ("iid", "goe1", "goe2"):
        bias, off, on = make(layout=layout, covariance_ratio=2.0).plan.noise_std.parts
        wanted = layout_stds(layout, 2.0)
        assert (off / bias, on / bias) == pytest.approx(wanted, rel=1e-9)
        centred = experiment({"layout": layout, "covariance_ratio": 2.0, **CENTRED}, intercept=3.0)
        bias, off, on = centred.curves[0].system.plan.noise_std.parts
        assert (off / bias, on / bias) == pytest.approx(wanted, rel=1e-9)


# ---- the certificate -----------------------------------------------------------------------------


def test_the_certificate_says_who_is_trusted_and_the_fallback() -> None:
    system = make(silos=9, epsilon=1.0, delta=1e-3)
    plan, found = system.plan, system.certificate
    assert (found.status, found.unit, found.relation) == ("proven", "user", "replace")
    assert found.exact.epsilon == plan.secure.exact() <= 1.0 == found.claimed.epsilon
    assert found.exact.epsilon > 0.9999
    assert "server and 3 of the 9 silos" in found.model
    texts = [c.text for c in found.conditions]
    assert all(c.holds for c in found.conditions)
    assert any("at least 6 of the 9 silos" in text for text in texts)
    assert any("masks' keys" in text for text in texts)
    assert any("drop-outs are not recovered" in text for text in texts)
    assert LIMITS in found.caveats and COINS not in found.caveats
    same_silo, alone = found.also
    assert "same silo" in same_silo.model and same_silo.exact == found.exact
    assert "all other silos" in alone.model and alone.claimed is None
    assert (alone.unit, alone.status) == ("user", "proven")
    # One share of 6 that were counted: sqrt(6) times the mu.
    mu = plan.secure.mu() * math.sqrt(6)
    assert alone.exact.epsilon == pytest.approx(fastfed.privacy.epsilon_of(mu, 1e-3), rel=1e-8)
    deployed = system.deployed_certificate
    assert COINS in deployed.caveats and LIMITS not in deployed.caveats
    assert not any("simulation" in c or "Gaussian" in c for c in deployed.caveats)


def test_eager_play_protects_single_pairs_alone() -> None:
    found = make(lazy=False).certificate
    assert found.status == "unproven" and found.exact is None
    assert [side.unit for side in found.also] == ["item", "item"]
    assert "all other silos" in found.also[1].model


def test_nobody_colludes_or_all_do() -> None:
    nobody = make(colluders=0).certificate
    assert nobody.model == "secure sum: the server, honest but curious, is not trusted"
    every = make(colluders=SILOS - 1).certificate
    assert every.exact == every.also[1].exact
    alone = make(silos=1).certificate
    assert alone.exact == alone.also[1].exact
    assert not any("masks" in c.text or "drop-outs" in c.text for c in alone.conditions)


# ---- keys ----------------------------------------------------------------------------------------


def test_defaults() -> None:
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
def test_bad_keys_are_one_clear_sentence(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**keys)


def test_older_stores_know_nothing_of_it() -> None:
    """A curve's identity is what it was before there were these keys."""
    e = experiment({"protocol": "silo-ldp", "batch_size": 5, "batch_first": None,
                    "batch_ratio": None}, CURVE)  # fmt: skip
    old, new = (since(c.keys) for c in e.curves)
    assert "colluders" not in old and "colluders" not in new


# ---- parties -------------------------------------------------------------------------------------


def federation(plan: Plan) -> tuple[list[Silo], Server]:
    """Deployed parties: keys are shared, noise is the operating system's."""
    silos = [Silo(plan, i, keys=simulated_keys(1, i, plan.silos)) for i in range(plan.silos)]
    return silos, Server(plan)


@pytest.mark.parametrize("messages", ["aggregate", "individual"])
def test_deployed_silos_send_masked_words_whatever_messages_says(messages: str) -> None:
    plan = make(messages=messages, epsilon=1e5).plan
    silos, middle = federation(plan)
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
            # Without a silo, or with one twice, nothing is told, and nothing changes.
            for bad in (reports[1:], [*reports[:-1], reports[0]]):
                with pytest.raises(InputError, match="one of each of the 4 silos"):
                    middle.combine(bad)
            broadcast = middle.combine(reports)
            for silo in silos:
                silo.receive(broadcast)
            # The noise of epsilon 1e5 is small; a word that is not unmasked is of size 2^27.
            np.testing.assert_allclose(broadcast.values, total, atol=0.5)
    assert middle.release == plan.releases
    assert np.linalg.norm(silos[0].theta - 0.375 / 0.9) < 0.1
    with pytest.raises(InputError, match="has no report due"):
        silos[0].report()


def test_messages_of_another_kind_are_refused() -> None:
    plan = make().plan
    _, middle = federation(plan)
    size = plan.statistic_size
    with pytest.raises(InputError, match="messages must be Encoded values, got Report"):
        middle.combine([Report(1, D, np.zeros(size), i) for i in range(SILOS)])
    simulated = Server(plan, SeededNoise(1))
    words = np.zeros(size, dtype=np.uint64)
    with pytest.raises(InputError, match="reports must hold one report of each of the 4 silos"):
        simulated.combine([Encoded(1, D, words, i) for i in range(SILOS)])


def test_keys_are_needed_where_messages_are_masked_and_nowhere_else() -> None:
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
