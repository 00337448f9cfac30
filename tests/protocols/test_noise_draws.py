"""One draw for the noise of all silos' sum: its law, both drivers, and where it is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import problems
import pytest
from test_drivers import both, experiment, same

from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.bandits.certify import DRAWN_ONCE
from fastfed.bandits.silo import Silo
from fastfed.deployment import codec
from fastfed.deployment.kinds import check_supported
from fastfed.environments import Sphere
from fastfed.privacy.releases.prefix_sums import prefix_nodes
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.release import prefix_noise
from fastfed.simulation import compiled
from fastfed.simulation.experiment import make_experiment

SPHERE = Sphere(dimension=3, actions=4)
SIZES = {"silos": 3, "horizon": 22, "batch_size": 3, "protocol": "silo-ldp", "lazy": True}
FEDUCB = {"algorithm": "feducb", "epsilon": 20.0, "delta": 0.01}


def made(environment=SPHERE, draws="sum", **keys):
    """An experiment of one curve, and its plan."""
    e = experiment(environment, {**SIZES, "noise_draws": draws, **keys})
    return e, e.curves[0].system.plan


def table(silos=3, horizon=24, environment=SPHERE, **keys):
    """The same of any algorithm."""
    return make_experiment(
        name="draws", environment=environment, curves=[keys], horizon=horizon, silos=silos, seed=7,
        checkpoints=5,
    )  # fmt: skip


# ---- the law ------------------------------------------------------------------------------------

#: Normal quantile of a bound: of some 900 comparisons of a true law one fails in 2000 seeds.
Z = 5.0
REPLICATES = 30
BIG = 30
LAWS = {
    "tree": {},
    "prefix": {"protocol": "silo-ldp-prefix"},
    "honaker": {"release": "honaker"},
    "toeplitz": {"release": "toeplitz"},
    "buffered": {"release": "buffered"},
    "factorised": {"release": "factorised"},
    "shuffled": {"protocol": "shuffle-amplified"},
    "silos that differ": {"silo_epsilon": [2.0, 20.0, 5.0], "epsilon": None},
    "rewards": {"protects": "reward"},
}


def noises(plan, environment):
    """Noise of all synchronised sums, (replicates, releases, s).

    One action is offered, so that no noise decides what is summed.
    """
    bare = replace(plan, noise_std=NoiseStd(), privacy=None)
    rows = []
    for replicate in range(REPLICATES):
        opened = environment.open(11, replicate, plan.silos)
        for k in range(1, plan.releases + 1):
            (noisy,), (raw,) = (
                compiled.run(opened, [p], np.array([plan.horizon]), last=plan.end(k))
                for p in (plan, bare)
            )
            rows.append(noisy.total - raw.total)
    return np.array(rows).reshape(REPLICATES, plan.releases, -1)


def covariance_of(plan):
    """Covariance (K, K) of the noise of releases, in units of one node's."""
    made, rows = prefix_noise(plan), np.zeros((plan.releases, 4 * plan.releases))
    for k in range(1, plan.releases + 1):
        terms = dict.fromkeys(prefix_nodes(k), 1) if made is None else made.terms(k)
        for node, c in terms.items():
            rows[k - 1, node] = float(c)
    return rows @ rows.T


def samples(noise, std, d):
    """Noise in units of its standard deviations, (releases, samples), where there is any."""
    rows, columns = np.tril_indices(d)
    of_matrix = np.where(rows == columns, std.diagonal, std.off_diagonal)
    each = np.concatenate([np.full(d, std.bias), of_matrix])
    kept = noise[:, :, each > 0.0] / each[each > 0.0]
    assert (noise[:, :, each == 0.0] == 0.0).all()
    return kept.transpose(1, 0, 2).reshape(noise.shape[1], -1)


@pytest.mark.parametrize("name", LAWS)
def test_the_sum_has_the_law_of_silos_that_draw_for_themselves(name):
    """Covariances of all releases, against theory and against each silo's own draws.

    An entry of a sample covariance of n normal vectors has variance (C_ii C_jj + C_ij^2) / n.
    """
    keys = {"horizon": 7, "batch_size": 1, "epsilon": 20.0, **LAWS[name]}
    keys = {key: value for key, value in keys.items() if value is not None}
    environment = Sphere(dimension=BIG, actions=1)
    found = {}
    for draws in ("silo", "sum"):
        e = table(
            label="a", algorithm="private-fedlinucb", delta=0.01, noise_draws=draws,
            environment=environment, horizon=keys["horizon"],
            **{k: v for k, v in keys.items() if k != "horizon"},
        )  # fmt: skip
        plan = e.curves[0].system.plan
        assert plan.releases == 7 and plan.drawn_once == (draws == "sum")
        x = samples(noises(plan, environment), plan.noise_std, BIG)
        found[draws] = x @ x.T / x.shape[1]
        # Independent entries: neighbours of one release have no covariance.
        apart = (x[:, 1:] * x[:, :-1]).mean(axis=1) / found[draws].diagonal()
        assert (np.abs(apart) < Z / math.sqrt(x.shape[1] - 1)).all()
    wanted = covariance_of(plan) * sum(scale**2 for scale in plan.noise_scale)
    spread = np.outer(wanted.diagonal(), wanted.diagonal()) + wanted**2
    bound = Z * np.sqrt(spread / x.shape[1])
    assert (np.abs(found["sum"] - wanted) < bound).all()
    assert (np.abs(found["silo"] - wanted) < bound).all()
    assert (np.abs(found["sum"] - found["silo"]) < math.sqrt(2.0) * bound).all()


def test_its_numbers_are_nobody_elses():
    """Neither a trusted server's, nor a silo's; and each release, replicate and M has its own."""
    source = SeededNoise(3, 1)
    e, plan = made(Sphere(dimension=3, actions=1), batch_size=22)
    std = plan.noise_std.times(math.sqrt(3.0))
    bare = replace(plan, noise_std=NoiseStd(), privacy=None)
    opened = e.environment.open(3, 1, 3)
    (noisy,), (raw,) = (compiled.run(opened, [p], e.checkpoints) for p in (plan, bare))
    bias = (noisy.total - raw.total)[:3] / std.bias
    for silo in range(4):
        assert not np.isclose(bias, source.node(silo, 1, 3)[:3], rtol=1e-6).any()


# ---- both drivers -------------------------------------------------------------------------------

PLAYED = [
    *({"release": r} for r in ("tree", "honaker", "toeplitz", "buffered", "factorised")),
    *({"protocol": p} for p in ("silo-ldp-prefix", "shuffle-amplified")),
    *({"release": r, "batch_size": "growing", "horizon": 60} for r in ("tree", "factorised")),
    *({"protocol": "silo-ldp-prefix", "batch_size": 1, "silo_epsilon": [2.0, 20.0, 9.0]},),
    {"batch_size": 1, "protects": "reward"},
]


# Rewards are protected in lazy play alone.
PLAYED = [{**k, "lazy": z} for k in PLAYED for z in (True, False) if z or "protects" not in k]


@pytest.mark.parametrize("keys", PLAYED, ids=[", ".join(map(str, k.values())) for k in PLAYED])
def test_both_drivers_play_it_bit_for_bit(keys):
    curve = {"batch_size": 3, **keys}
    horizon = curve.pop("horizon", 22)
    if "silo_epsilon" not in curve:
        curve["epsilon"] = 20.0
    totals = []
    for draws in ("sum", "silo"):
        e = table(
            horizon=horizon, label="a", algorithm="private-fedlinucb", delta=0.01,
            noise_draws=draws, **curve,
        )  # fmt: skip
        (fast,), (readable,) = both(e)
        same(fast, readable)
        totals.append(fast)
    # Another play of the same law, that sends as much.
    assert not np.array_equal(totals[0].total, totals[1].total)
    np.testing.assert_array_equal(totals[0].bits_up, totals[1].bits_up)


@pytest.mark.parametrize(
    ("schedule", "radius"),
    [
        *(("fixed", "proposition-2"), ("fixed", "direct"), ("determinant", "proposition-2")),
        *(("private-determinant", "proposition-2"), ("private-determinant", "direct")),
    ],
)
def test_so_does_feducb_whatever_its_schedule(schedule, radius):
    keys = {"schedule": schedule, "radius": radius, "communication": 0.5, "noise_draws": "sum"}
    if schedule == "fixed":
        keys |= {"batch_size": 4}
        keys.pop("communication")
    e = table(label="a", horizon=40, **FEDUCB, **keys)
    assert e.curves[0].system.plan.drawn_once
    (fast,), (readable,) = both(e)
    assert fast.synchronisations[-1] > 0
    same(fast, readable)


def test_a_public_constant_gets_no_noise():
    environment = Sphere(dimension=4, actions=5, intercept=2.0)
    e = table(
        label="a", algorithm="private-fedlinucb", epsilon=20.0, delta=0.01, batch_size=4,
        reward_centre=0.5, noise_draws="sum", environment=environment,
    )  # fmt: skip
    (fast,), (readable,) = both(e)
    same(fast, readable)
    plan = e.curves[0].system.plan
    assert plan.public_constant
    assert fast.total[-1] == pytest.approx(24 * 3 * plan.clip.constant**2)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_and_calls_change_nothing(threads):
    e, plan = made(batch_size=1)
    opened = e.environment.open(e.seed, 0, 3)
    (one,), (many,) = (
        compiled.run(opened, [plan], e.checkpoints, record=True, **keys)
        for keys in ({}, {"threads": threads, "rounds_per_call": 5})
    )
    same(one, many)


# ---- what stays as it is ------------------------------------------------------------------------


def test_by_default_nothing_says_so():
    """Identities of stores, and bytes of deployed plans, are those of before."""
    plain, spelled, other = (
        experiment(SPHERE, {**SIZES, **keys})
        for keys in ({}, {"noise_draws": "silo"}, {"noise_draws": "sum"})
    )
    assert plain.digest() == spelled.digest() != other.digest()
    assert "noise_draws" not in plain.identity()["curves"][0]
    assert other.identity()["curves"][0]["noise_draws"] == "sum"
    plan = plain.curves[0].system.plan
    assert codec.executed(plan, codec.numbers_of(plan)) is plan and not plan.drawn_once


def test_the_certificate_is_that_of_each_silo():
    """Of the same releases with the same numbers, and it says what the simulation draws."""
    (_, one), (_, other) = (made(draws=draws) for draws in ("silo", "sum"))
    assert other.noise_std == one.noise_std and other.silo_noise == one.silo_noise
    assert other.privacy == one.privacy and other.protocol == one.protocol
    certificates = [
        experiment(SPHERE, {**SIZES, "noise_draws": draws}).curves[0].system.certificate
        for draws in ("silo", "sum")
    ]
    assert certificates[0].exact == certificates[1].exact
    assert certificates[0].status == certificates[1].status == "proven"
    assert DRAWN_ONCE in certificates[1].caveats and DRAWN_ONCE not in certificates[0].caveats


def test_another_noise_is_refused_as_ever():
    _, plan = made()
    weaker = replace(plan, noise_std=plan.noise_std.times(0.5))
    opened = SPHERE.open(0, 0, 3)
    with pytest.raises(InputError, match="the plan is not the one that was certified"):
        compiled.run(opened, [weaker], np.array([22]))


def test_parties_draw_their_own_noise():
    """Whoever runs a silo gets what the certificate says, whatever the plan says of simulations."""
    reports = []
    for draws in ("silo", "sum"):
        silo = Silo(made(draws=draws)[1], 1, SeededNoise(5))
        for _ in range(3):
            silo.select(np.eye(3))
            silo.observe(0.5)
        reports.append(silo.report().values)
    np.testing.assert_array_equal(*reports)


def test_one_noise_is_kept_for_all_silos():
    (_, one), (_, other) = (made(draws=draws, release="toeplitz") for draws in ("silo", "sum"))
    assert one.history_numbers == 3 * other.history_numbers > 0
    shapes = compiled.shapes(other.simulated, 5)
    assert shapes["history"][0] == (1, 7, other.statistic_size)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["central", "shuffle-vector", "secure-sum"])
def test_protocols_without_such_noise(protocol):
    keys = {"release": "tree"} if protocol == "secure-sum" else {}
    with pytest.raises(
        InputError, match=f'noise_draws "sum" needs protocol silo-ldp.*"{protocol}"'
    ):
        made(protocol=protocol, **keys)


def test_own_rounds_know_their_noise():
    with pytest.raises(InputError, match='noise_draws "sum" needs a curve without share'):
        made(share={"until": 10})


def test_a_plan_by_hand_is_refused_too():
    e = experiment(SPHERE, {**SIZES, "share": {"until": 12}})
    plan = replace(e.curves[0].system.plan, drawn_once=True)
    with pytest.raises(InputError, match="drawn_once needs a plan without local rounds"):
        compiled.run(SPHERE.open(0, 0, 3), [plan], np.array([22]))
    central = experiment(SPHERE, {**SIZES, "protocol": "central"}).curves[0].system.plan
    with pytest.raises(
        InputError, match='silos add Gaussian noise to their own sums, got "central"'
    ):
        compiled.run(SPHERE.open(0, 0, 3), [replace(central, drawn_once=True)], np.array([22]))


def test_feducb_without_noise_or_server():
    with pytest.raises(InputError, match="no meaning where private = false"):
        table(label="a", algorithm="feducb", private=False, noise_draws="sum")
    with pytest.raises(InputError, match='noise_draws "sum" needs a server'):
        table(label="a", **{**FEDUCB, "algorithm": "feducb-decentralized"}, noise_draws="sum")


def test_other_systems_do_not_have_it():
    with pytest.raises(InputError, match='"noise_draws"'):
        table(label="a", algorithm="fedlinucb", noise_draws="sum")


def test_other_values():
    with pytest.raises(InputError, match=r"noise_draws must be .*silo.*sum.*, got 'once'"):
        made(draws="once")


def test_deployments_do_not_run_it():
    (_, one), (_, other) = (made(draws=draws) for draws in ("silo", "sum"))
    check_supported(one)
    with pytest.raises(InputError, match='noise_draws "sum", which is for simulations'):
        check_supported(other)


def test_every_protocol_is_decided():
    """A new protocol is one that may be drawn once, or is refused above."""
    assert set(PROTOCOLS) == {
        *("none", "silo-ldp", "silo-ldp-prefix", "shuffle-amplified"),
        *("central", "shuffle-vector", "secure-sum"),
    }
    assert set(problems.PROTOCOLS) == set(PROTOCOLS)
