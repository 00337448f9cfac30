"""Own rounds: drivers, the oracle's posterior, what leaves a silo, certificates, keys."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import problems
import pytest
from oracle import own_rounds as oracle
from test_drivers import both, same

from fastfed._kernels import linalg
from fastfed._random import InterleavedNoise, SeededNoise, SystemNoise
from fastfed._validate import InputError
from fastfed.bandits import silo as silos_module
from fastfed.bandits.radius import direct_regret_bound
from fastfed.bandits.silo import Silo
from fastfed.environments import Replay, Rotated
from fastfed.parties import Server
from fastfed.privacy.account import released
from fastfed.protocols.schedule import OwnRounds
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

UNTIL, HORIZON, SILOS, D, K = 40, 150, 4, 5, 20
COINS = {"until": UNTIL, "fraction": 0.4, "coin": "secret"}
LEAST = {"until": UNTIL, "rule": "min-of-bounds"}


def experiment(protocol="silo-ldp", *, environment=None, share=None, silos=SILOS, **keys):
    table = problems.curve(protocol, share={"until": UNTIL} if share is None else share, **keys)
    return make_experiment(
        name="own rounds",
        environment=environment or Rotated(D, K, 0.4, intercept=3.0),
        curves=[table],
        horizon=HORIZON,
        silos=silos,
        seed=7,
        checkpoints=5,
    )


def system(protocol="silo-ldp", **keys):
    return experiment(protocol, **keys).curves[0].system


# ---- Drivers -------------------------------------------------------------------------------------

CASES = {
    "plain sums": ("none", {}),
    "factorised": ("silo-ldp", {}),
    "centred, less bonus": ("silo-ldp", {"reward_centre": 0.5, "bonus": 0.3}),
    "tree": ("silo-ldp", {"release": "tree"}),
    "prefix": ("silo-ldp-prefix", {"release": "tree"}),
    "toeplitz": ("silo-ldp", {"release": "toeplitz", "batch_size": 7}),
    "central": ("central", {"reward_centre": 0.5}),
    "central tree": ("central", {"release": "tree", "batch_size": 10}),
    "secure sum": ("secure-sum", {"reward_centre": 0.5, "epsilon": 1.0}),
    "secure tree": ("secure-sum", {"release": "tree", "batch_size": 10, "colluders": 1}),
    "rewards": ("silo-ldp", {"protects": "reward", "epsilon": 1.0}),
    "rounds of one's own": ("silo-ldp", {"release_rounds": (9, 33)}),
    "a power of two": ("silo-ldp", {"share": {"until": 32}}),
    "one shared round": ("silo-ldp", {"share": {"until": 1}, "batch_first": 1}),
    "alone": ("silo-ldp", {"silos": 1}),
    "strong noise": ("silo-ldp", {"epsilon": 0.1}),
    **{
        f"half: {name}": (protocol, {"share": {"until": UNTIL, "fraction": 0.5}, **keys})
        for name, protocol, keys in (
            ("plain sums", "none", {}),
            ("factorised", "silo-ldp", {"reward_centre": 0.5}),
            ("tree", "silo-ldp", {"release": "tree", "batch_size": 3}),
            ("central", "central", {"reward_centre": 0.5}),
            ("secure sum", "secure-sum", {"epsilon": 1.0}),
            ("batches of one", "silo-ldp", {"batch_size": 1}),
        )
    },
    "a twentieth": ("silo-ldp", {"share": {"until": UNTIL, "fraction": 0.05}, "batch_size": 1}),
    **{
        f"coins: {name}": (protocol, {"share": COINS, **keys})
        for name, protocol, keys in (
            ("factorised", "silo-ldp", {}),
            ("centred", "silo-ldp", {"reward_centre": 0.5}),
            ("toeplitz", "silo-ldp", {"release": "toeplitz", "batch_size": 7}),
            ("tree", "silo-ldp", {"release": "tree", "batch_size": 5}),
            ("prefix", "silo-ldp-prefix", {"release": "tree"}),
            ("central", "central", {"reward_centre": 0.5}),
            ("less bonus", "silo-ldp", {"bonus": 0.3}),
        )
    },
    **{
        f"min-of-bounds: {name}": (protocol, {"share": {**LEAST, **share}, **keys})
        for name, protocol, share, keys in (
            ("plain sums", "none", {}, {}),
            ("factorised", "silo-ldp", {}, {"reward_centre": 0.5}),
            ("narrow", "secure-sum", {}, {"radius_multiplier": 0.1}),
            ("half", "central", {"fraction": 0.5}, {}),
            ("coins", "silo-ldp", {"fraction": 0.5, "coin": "secret"}, {"epsilon": 20.0}),
        )
    },
}


@pytest.mark.parametrize(("protocol", "keys"), CASES.values(), ids=CASES)
def test_drivers_agree_bit_for_bit(protocol, keys):
    (fast,), (readable,) = both(experiment(protocol, **keys))
    same(fast, readable)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
@pytest.mark.parametrize("share", [None, COINS, {**LEAST, "fraction": 0.7}])
def test_threads_and_calls_change_nothing(threads, rounds_per_call, share):
    e = experiment(share=share)
    (fast,), (readable,) = both(e, threads=threads, rounds_per_call=rounds_per_call)
    same(fast, readable)


@pytest.mark.parametrize("keys", [{}, {"fraction": 0.5}, {"fraction": 0.5, "coin": "secret"},
                                  {"rule": "min-of-bounds", "fraction": 0.5}])  # fmt: skip
def test_drivers_agree_on_a_pool(recorded, keys):
    sizes = {"share": {"until": 8, **keys}, "batch_first": 2}
    table = problems.curve("silo-ldp", **sizes)
    replay = Replay.from_arrays(*recorded, sampling="with-replacement")
    e = make_experiment(
        name="pool", environment=replay, curves=[table], horizon=24, silos=3, seed=7, checkpoints=3
    )
    (fast,), (readable,) = both(e)
    same(fast, readable)


def test_curves_run_together_as_they_do_alone():
    e = experiment(share=[{"until": 20}, {"until": 40}, COINS, LEAST], epsilon=[1.0, 20.0])
    assert len(e.curves) == 8
    plans = [curve.system.plan for curve in e.curves]
    opened = e.environment.open(e.seed, 0, e.silos)
    together = compiled.run(opened, plans, e.checkpoints, record=True)
    for plan, found in zip(plans, together, strict=True):
        (alone,) = compiled.run(opened, [plan], e.checkpoints, record=True)
        same(found, alone)


def test_shared_rounds_are_those_of_the_same_federation_without_own_ones():
    """Up to ``until`` nothing but the noise's scale differs; without noise nothing does."""
    own = experiment("none", share={"until": UNTIL}, batch_size=5)
    table = problems.curve("none", batch_size=5)
    shared = make_experiment(
        name="all", environment=own.environment, curves=[table], horizon=HORIZON, silos=SILOS,
        seed=7, checkpoints=5,
    )  # fmt: skip
    (a,), _ = both(own)
    (b,), _ = both(shared)
    np.testing.assert_array_equal(a.actions[:, :UNTIL], b.actions[:, :UNTIL])
    assert (a.actions[:, UNTIL:] != b.actions[:, UNTIL:]).any()
    assert a.synchronisations[-1] == UNTIL // 5 and b.synchronisations[-1] == HORIZON // 5


# ---- The belief ----------------------------------------------------------------------------------


def statistic(a, h):
    return np.concatenate([h, a[np.tril_indices(len(a))]])


@pytest.mark.parametrize("variance", [0.0, 1e-3, 2.0, 500.0])
@pytest.mark.parametrize("silos", [1, 2, 30])
def test_a_belief_is_the_oracles(variance, silos):
    """Mean, covariance and weights, for noisy sums that may be indefinite."""
    draw = np.random.default_rng([silos, int(1e3 * variance)])
    d, scale = 6, 0.5
    rows, own_rows = draw.normal(size=(60, d)) / 3.0, draw.normal(size=(25, d)) / 3.0
    noise = draw.normal(size=(d, d)) * 4.0 * math.sqrt(variance)
    a, h = rows.T @ rows + (noise + noise.T) / 2.0, draw.normal(size=d) * 5.0
    g, u = own_rows.T @ own_rows, draw.normal(size=d) * 3.0
    if variance > 1.0:
        assert np.linalg.eigvalsh(a)[0] < 0.0
    spreads = [delta**2 * (1.0 + 1.0 / max(1, silos - 1)) for delta in oracle.GRID]
    floors = [1.01 * scale**4 / (4.0 * s) if variance else 1e-9 for s in spreads]
    model = scale**2, float(d), tuple(spreads), tuple(max(variance, f) for f in floors)
    w, theta = np.zeros((d, d)), np.zeros(d)
    weights = linalg.belief(model, statistic(a, h), statistic(g, u), w, theta)
    sources = [
        oracle.information(a[None], h[None], variance, delta, silos, scale, float(d))
        for delta in oracle.GRID
    ]
    precision, r, expected = oracle.mixed(sources, g[None] / scale**2, u[None] / scale**2)
    belief = oracle.Belief.of(precision, r)
    np.testing.assert_allclose(weights, expected[:, 0], rtol=1e-7)
    np.testing.assert_allclose(w.T @ w * scale**2, belief.c[0], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(theta, belief.mean[0], rtol=1e-7, atol=1e-10)


def test_a_belief_of_what_is_not_finite_is_none():
    model = 0.25, 2.0, (0.01,), (1.0,)
    bad = np.full(5, np.nan)
    assert linalg.belief(model, bad, np.zeros(5), np.zeros((2, 2)), np.zeros(2)) is None


class Federation:
    """Silos and server as parties, round by round, on drawn contexts and rewards."""

    def __init__(self, plan, kind=Silo, change=None, noise=None):
        noise = SeededNoise(3, 0) if noise is None else noise
        self.plan = plan
        self.silos = [kind(plan, i, noise) for i in range(plan.silos)]
        server = Server(plan, noise)
        draw = np.random.default_rng(11)
        self.x = draw.normal(size=(HORIZON, plan.silos, K, plan.dimension))
        self.x /= np.linalg.norm(self.x, axis=-1, keepdims=True)
        self.x[..., -1] = abs(self.x[..., -1])
        self.y = draw.random((HORIZON, plan.silos, K))
        if change is not None:
            silo, round = change
            self.x[round - 1, silo] = self.x[round - 1, silo, ::-1]
            self.y[round - 1, silo] = 1.0 - self.y[round - 1, silo]
        self.actions = np.zeros((HORIZON, plan.silos), int)
        self.means = np.zeros((HORIZON, plan.silos, plan.dimension))
        self.sent, self.totals = [], []
        for t in range(HORIZON):
            for i, silo in enumerate(self.silos):
                self.means[t, i] = silo.theta
                a = silo.select(self.x[t, i])
                silo.observe(self.y[t, i, a])
                self.actions[t, i] = a
            if any(silo.due for silo in self.silos):
                reports = [silo.report() for silo in self.silos]
                broadcast = server.combine(reports)
                for silo in self.silos:
                    silo.receive(broadcast)
                self.sent.append(np.array([report.values for report in reports]))
                self.totals.append(broadcast.values)


def full(values, d):
    made = np.zeros((d, d))
    made[np.tril_indices(d)] = values[d:]
    return made + np.tril(made, -1).T, values[:d]


class Coins(SeededNoise):
    """Keyed noise; of each coin that was tossed, how it fell."""

    def __init__(self, seed, replicate=0):
        super().__init__(seed, replicate)
        self.tossed = {}

    def participation(self, silo, round):
        assert (silo, round) not in self.tossed
        self.tossed[silo, round] = super().participation(silo, round)
        return self.tossed[silo, round]


@pytest.mark.parametrize(
    ("protocol", "share"),
    [
        *((protocol, None) for protocol in ("silo-ldp", "central", "secure-sum", "none")),
        *((protocol, {"until": UNTIL, "fraction": 0.4}) for protocol in ("silo-ldp", "central")),
        ("none", {"until": UNTIL, "fraction": 0.4}),
        *((protocol, COINS) for protocol in ("silo-ldp", "central")),
    ],
)
def test_parties_play_own_rounds_by_the_oracles_posterior(protocol, share):
    """On the same releases, contexts and rewards: means and actions of every own round."""
    keys = {} if share == COINS and protocol == "central" else {"reward_centre": 0.5}
    if protocol != "none":
        keys["epsilon"] = 8.0
    plan = system(protocol, share=share, **keys).plan
    d, clip, factor = plan.dimension, plan.clip, plan.factor
    noise = Coins(3)
    played = Federation(plan, noise=noise)
    std = plan.noise_std
    assert std.diagonal == pytest.approx(math.sqrt(2.0) * std.off_diagonal)
    ratio = 1.0 if "reward_centre" in keys else std.off_diagonal / std.bias
    assert std.off_diagonal == pytest.approx(ratio * std.bias)
    # A norm that brings the oracle's one noise to the plan's two.
    release = oracle.Release(std.bias, centred=True, norm=ratio * plan.radius.tau)
    noises = {"silo-ldp": SILOS - 1, "central": 1, "secure-sum": 1, "none": 0}[protocol]
    rows = np.zeros((plan.releases, 1)) if factor is None else factor.matrix
    variances = oracle.noise_variance(release, rows, noises)
    scale = plan.radius.scale
    assert scale == 0.5 and (variances[-1] > 0) == (protocol != "none")
    mixed = share is not None
    rule = oracle.shared_rounds(HORIZON, UNTIL, share["fraction"] if mixed else 1.0)
    ends = dict(zip(plan.release_rounds, range(plan.releases), strict=True))
    assert len(ends) > 2 and not any(t > UNTIL for _, t in noise.tossed)
    for i in range(SILOS):
        g, u = np.zeros((1, d, d)), np.zeros((1, d))
        raw_g, raw_u = np.zeros((d, d)), np.zeros(d)
        prior = d * np.eye(d)[None]
        belief = oracle.Belief.of(prior, np.zeros((1, d))) if mixed else None
        sources = [(prior, np.zeros((1, d)))]
        for t in range(1, HORIZON + 1):
            a = played.actions[t - 1, i]
            rows = played.x[t - 1, i].copy()
            shared = bool(rule[t])
            if share == COINS and t <= UNTIL:
                shared = noise.tossed[i, t] < 0.4 * 2.0**64
            if not shared:
                np.testing.assert_allclose(
                    played.means[t - 1, i], belief.mean[0], rtol=1e-6, atol=1e-9
                )
                width = np.sqrt(np.einsum("kd,de,ke->k", rows, belief.c[0], rows))
                scores = rows @ belief.mean[0] + 0.5 * width
                assert scores[a] >= scores.max() - 1e-9
            x = rows[a].copy()
            y, *_ = clip.apply(x, played.y[t - 1, i, a])
            g, u = g + np.outer(x, x), u + x * y
            if shared:
                raw_g, raw_u = raw_g + np.outer(x, x), raw_u + x * y
            if belief is not None:
                belief.observe(x[None], np.array([y]), scale)
            k = ends.get(t)
            if k is not None and (mixed or t == UNTIL):
                known = played.sent[k][i] if protocol == "silo-ldp" else statistic(raw_g, raw_u)
                rest, bias = full(played.totals[k] - known, d)
                sources = [
                    oracle.information(rest[None], bias[None], variances[k], delta, SILOS, scale, d)
                    for delta in oracle.GRID
                ]
                due = True
            else:
                due = belief is not None and t & (t - 1) == 0
            if due:
                precision, r, _ = oracle.mixed(sources, g / scale**2, u / scale**2)
                belief = oracle.Belief.of(precision, r)
    if share == COINS:
        count = sum(bits < 0.4 * 2.0**64 for bits in noise.tossed.values())
        assert len(noise.tossed) == SILOS * UNTIL and 40 < count < 90


@pytest.mark.parametrize("share", [LEAST, {**LEAST, "fraction": 0.5}])
@pytest.mark.parametrize("protocol", ["silo-ldp", "none"])
def test_parties_play_the_lesser_of_the_oracles_bounds(protocol, share):
    """The silo's own bound by the oracle, the public one as shared rounds have it."""
    keys = {"epsilon": 8.0} if protocol != "none" else {}
    plan = system(protocol, share=share, **keys).plan
    played = Federation(plan)
    rule = oracle.shared_rounds(HORIZON, UNTIL, share.get("fraction", 1.0))
    differs = np.zeros(2, int)
    for i in range(SILOS):
        # An ordinary silo of the same plan, which is told the releases.
        public = Silo(replace(plan, own=None, privacy=None), i, SeededNoise(3))
        g, u = np.zeros((1, D, D)), np.zeros((1, D))
        at = iter(zip(plan.release_rounds, played.totals, strict=True))
        end, total = next(at)
        for t in range(1, HORIZON + 1):
            rows, a = played.x[t - 1, i], played.actions[t - 1, i]
            made = public._estimate
            beta, gamma = public._radius(), public._second_bonus
            first = linalg.scores(rows, made.w, made.theta, beta, gamma)
            if not rule[t]:
                # Half of the failure probability is the public bound's: the oracle has all of it.
                bound = oracle.local_bounds(g, u, plan.radius.tau, 2 * SILOS, plan.radius.scale)
                mean, width = bound.mean_and_width(rows[None])
                least = np.minimum(first, (mean + width)[0])
                assert least[a] >= least.max() - 1e-9
                own = (mean + width)[0].argmax()
                differs += least.argmax() != first.argmax(), least.argmax() != own
            else:
                assert a == first.argmax()
            x = rows[a].copy()
            y, *_ = plan.clip.apply(x, played.y[t - 1, i, a])
            g, u = g + np.outer(x, x), u + x * y
            if t == end:
                public._refresh(total, public.release + 1)
                public.release += 1
                end, total = next(at, (0, None))
    # Without noise the public bound is the lesser of the two nearly always, with noise the other.
    assert differs[1 if protocol == "none" else 0] > 20


# ---- What leaves a silo --------------------------------------------------------------------------


def transcript(played):
    return np.concatenate([np.ravel(part) for part in (*played.sent, *played.totals)])


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix", "secure-sum"])
@pytest.mark.parametrize("round", [UNTIL + 1, 64, HORIZON - 1])
def test_outsiders_see_nothing_of_users_of_own_rounds(protocol, round):
    plan = system(protocol).plan
    one, other = Federation(plan), Federation(plan, change=(1, round))
    np.testing.assert_array_equal(transcript(one), transcript(other))
    others = [i for i in range(SILOS) if i != 1]
    np.testing.assert_array_equal(one.actions[:, others], other.actions[:, others])
    # Users of the same silo do.
    assert (one.means[round:, 1] != other.means[round:, 1]).any()


@pytest.mark.parametrize("rule", ["gls", "min-of-bounds"])
@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix"])
def test_outsiders_see_nothing_of_own_rounds_between_shared_ones(protocol, rule):
    """By rule and by coin, before and after `until`, also of users before the first release."""
    for share in ({"until": UNTIL, "fraction": 0.4}, COINS):
        plan = system(protocol, share={**share, "rule": rule}, epsilon=8.0).plan
        noise = Coins(3)
        one = Federation(plan, noise=noise)
        own = [t for t in range(1, UNTIL) if not plan.own.shares(t, noise.tossed.get((1, t), 0))]
        for round in (own[0], own[len(own) // 2], UNTIL + 1):
            other = Federation(plan, change=(1, round))
            np.testing.assert_array_equal(transcript(one), transcript(other))
            others = [i for i in range(SILOS) if i != 1]
            np.testing.assert_array_equal(one.actions[:, others], other.actions[:, others])
            assert (one.means[round:, 1] != other.means[round:, 1]).any()
        shared = next(t for t in range(2, UNTIL) if t not in own)
        other = Federation(plan, change=(1, shared))
        assert (transcript(one) != transcript(other)).any()


def test_a_user_of_a_shared_round_moves_the_transcript():
    plan = system().plan
    one, other = Federation(plan), Federation(plan, change=(1, UNTIL))
    assert (transcript(one) != transcript(other)).any()


class Leaking(Silo):
    """A planted fault: own rounds enter the batch too."""

    def _learn(self, x, y):
        if self.plays_own:
            self._randomizer.observe(x, y)
        super()._learn(x, y)


def test_own_rounds_in_a_leaf_are_caught(monkeypatch):
    """The plan is refused; where nobody checks it, the transcript shows the fault."""
    plan = system().plan
    early = replace(plan, own=replace(plan.own, until=20))
    for broken in (early, replace(plan, own=None)):
        with pytest.raises(InputError):
            Silo(broken)
    monkeypatch.setattr(silos_module, "check_plan", lambda plan: plan)
    monkeypatch.setattr("fastfed.protocols.randomizer.check_plan", lambda plan: plan)
    monkeypatch.setattr("fastfed.protocols.server.check_plan", lambda plan: plan)
    honest = [transcript(Federation(early, change=c)) for c in (None, (1, 25))]
    np.testing.assert_array_equal(*honest)
    leaked = [transcript(Federation(early, Leaking, change=c)) for c in (None, (1, 25))]
    assert (leaked[0] != leaked[1]).any()


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
def test_deployed_parties_learn_in_own_rounds(protocol):
    """With noise of the operating system, exact: raw sums and messages on a grid."""
    played = Federation(system(protocol, reward_centre=0.5).plan, noise=SystemNoise())
    assert len(played.totals) == played.plan.releases
    late = played.means[UNTIL:]
    assert np.isfinite(late).all() and (np.diff(late, axis=0) != 0).any(axis=(0, 2)).all()
    # No two silos believe the same.
    assert len(np.unique(late[-1], axis=0)) == SILOS


def test_nothing_is_due_after_the_last_shared_round():
    silo = Federation(system().plan).silos[0]
    assert silo.round == HORIZON and not silo.due and silo.plays_own
    with pytest.raises(InputError, match="no report due"):
        silo.report()


# ---- Certificates --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum"])
def test_the_certificate_is_about_outsiders(protocol):
    flat = Rotated(D, K, 0.0, intercept=3.0)
    made = system(protocol, environment=flat, epsilon=1.0)
    stated = made.certificate
    assert stated.status == "proven" and stated.exact.epsilon <= 1.0 + 1e-9
    assert "own silo" in stated.model
    assert "other silos and users" not in stated.model
    (own,) = [side for side in stated.also if side.exact.epsilon == 0.0]
    assert own.status == "proven" and f"after round {UNTIL}" in own.model and own.claimed is None
    assert not any("joint" in side.model for side in stated.also)
    assert any(f"shared rounds, 1 to {UNTIL}" in c.text and c.holds for c in stated.conditions)
    assert any("users of the same silo are not protected" in text for text in stated.caveats)
    assert not made.theory.proven
    assert any("own" in text and "unproven" in text for text in stated.caveats)
    # Releases end, so that there are fewer of them, and less noise.
    table = problems.curve(protocol, epsilon=1.0)
    usual = make_experiment(
        name="all", environment=flat, curves=[table], horizon=HORIZON, silos=SILOS, seed=7,
        checkpoints=5,
    ).curves[0].system  # fmt: skip
    assert made.plan.releases < usual.plan.releases
    assert any("joint" in side.model for side in usual.certificate.also)


def test_a_secret_coin_needs_less_noise():
    """The oracle's account, and the certificate's own: (1, 1e-3) at p = 1/2 and without a coin."""
    half = {"until": UNTIL, "fraction": 0.5}
    found = {}
    for share in (half, {**half, "coin": "secret"}):
        for ratio in (1.0, None):
            made = system("silo-ldp", share=share, epsilon=1.0, delta=1e-3, covariance_ratio=ratio)
            found[len(share), ratio] = made
            stated = made.certificate
            assert stated.status == "proven"
            assert 1.0 - 1e-6 < stated.exact.epsilon <= 1.0
            tossed = [c for c in stated.conditions if "which users were shared" in c.text]
            assert len(tossed) == (len(share) == 3) and all(c.holds for c in tossed)
            told = [text for text in stated.caveats if "actions of no round" in text]
            assert len(told) == len(tossed)
            (own,) = [side for side in stated.also if side.exact.epsilon == 0.0]
            public = "that the public rule leaves out"
            assert (public in own.model) == (len(share) == 2)
    plain, coin = (found[n, 1.0].plan.noise_std for n in (2, 3))
    expected = oracle.coin_mu(1.0, 1e-3, 0.5) / oracle.gaussian_mu(1.0, 1e-3)
    assert plain.bias / coin.bias == pytest.approx(expected, rel=1e-6)
    assert plain.diagonal / coin.diagonal == pytest.approx(expected, rel=1e-6)
    # A coin keeps .79 of the signal at p = 1/2: the noise falls by that over p.
    assert expected == pytest.approx(0.79 / 0.5, abs=0.012)
    assert found[3, None].plan.noise_std.bias < found[2, None].plan.noise_std.bias


def test_a_coin_that_is_another_is_refused():
    """Fewer users are dearer with a coin: what is not accounted for is no plan."""
    plan = system(share=COINS).plan
    for own in (
        replace(plan.own, secret=False),
        replace(plan.own, fraction=0.5),
        replace(plan.own, fraction=0.3),
    ):
        with pytest.raises(InputError, match=r"epsilon|certificate"):
            Silo(replace(plan, own=own))
    rule = system(share={"until": UNTIL, "fraction": 0.4}).plan
    with pytest.raises(InputError, match=r"epsilon|certificate"):
        Silo(replace(rule, own=replace(rule.own, secret=True)))
    secure = system("secure-sum", share={"until": UNTIL, "fraction": 0.4}).plan
    with pytest.raises(InputError, match="Gaussian noise on all sums"):
        Silo(replace(secure, own=replace(secure.own, secret=True)))


def test_a_public_rule_claims_nothing_more():
    half, whole = (system(share={"until": UNTIL, "fraction": p}).plan for p in (0.5, 1.0))
    assert half.noise_std == whole.noise_std and half.privacy.exact == whole.privacy.exact
    assert list(half.own.rule[:6]) == [0, 1, 0, 1, 0, 1]
    assert (oracle.shared_rounds(UNTIL, UNTIL, 0.5)[1:] == half.own.rule).all()


@pytest.mark.parametrize("p", [1.0, 0.7, 0.3, 0.1, 1e-3])
def test_the_rule_is_the_oracles(p):
    own = OwnRounds(2000, 1.0, 1.0, (), (), 1.0, p)
    np.testing.assert_array_equal(own.rule, oracle.shared_rounds(2000, 2000, p)[1:])


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix"])
def test_shared_counts_have_noise(protocol):
    """The last entry of centred sums counts users: public by rule, and never bare by coins."""
    rule = {"until": UNTIL, "fraction": 0.4}
    for share in (rule, {**rule, "coin": "secret"}):
        keys = {"release": "tree"} if protocol == "silo-ldp-prefix" else {}
        plan = system(protocol, share=share, reward_centre=0.5, **keys).plan
        assert plan.public_constant == (share is rule)
        for noise in (SeededNoise(3), SystemNoise()):
            played = Federation(plan, noise=noise)
            count = np.array(played.totals)[:, -1] / plan.clip.constant**2
            whole = np.abs(count - np.round(count)) < 1e-3
            assert whole.all() if share is rule else not whole.all()
            if share is rule:
                ends = [plan.own.rule[:end].sum() for end in plan.release_rounds]
                assert count == pytest.approx(SILOS * np.array(ends), abs=1e-3)


def test_a_centred_coin_counts_absence():
    """zeta of the oracle, with the count's own noise; the certificate keeps its budget."""
    share = {"until": UNTIL, "fraction": 0.5, "coin": "secret"}
    flat = Rotated(D, K, 0.0, intercept=3.0)
    coin, certain = (
        system(environment=flat, share=s, reward_centre=0.5, epsilon=1.0, delta=1e-3)
        for s in (share, {"until": UNTIL})
    )
    assert coin.certificate.status == "proven"
    assert 1.0 - 1e-6 < coin.certificate.exact.epsilon <= 1.0
    expected = oracle.coin_mu(1.0, 1e-3, 0.5, oracle.absence(centred=True))
    expected /= oracle.gaussian_mu(1.0, 1e-3)
    found = certain.plan.noise_std.bias / coin.plan.noise_std.bias
    assert found == pytest.approx(expected, rel=1e-6)
    # Without the count's part absence would be cheaper than it is.
    (event,) = released(coin.plan)
    assert event.absent_mu() > 1.01 * event.mu("zero-out")
    assert event.absent_mu() / event.mu() == pytest.approx(oracle.absence(True), rel=1e-9)


def test_coins_are_keyed_for_themselves():
    noise = SeededNoise(5, 2)
    drawn = {noise.participation(i, t) for i in range(20) for t in range(1, 60)}
    assert len(drawn) == 20 * 59 and all(0 <= bits < 2**64 for bits in drawn)
    assert noise.participation(3, 4) == SeededNoise(5, 2).participation(3, 4)
    assert noise.participation(3, 4) != noise.score_key(3, 4)
    turns = InterleavedNoise(noise, (7, 9), 1, 3)
    assert turns.participation(1, 2) == noise.participation(9, 4)
    system_noise = SystemNoise()
    assert system_noise.participation(0, 1) != system_noise.participation(0, 1)
    shares = np.mean([bits < 0.4 * 2**64 for bits in drawn])
    assert abs(shares - 0.4) < 0.06


# ---- Regret --------------------------------------------------------------------------------------


def test_min_of_bounds_is_proven_where_silos_are_alike():
    flat = Rotated(D, K, 0.0)
    for protocol, keys in (("silo-ldp", {}), ("none", {}), ("central", {"fraction": 0.5})):
        share = {**LEAST, **keys}
        made = system(protocol, environment=flat, share=share)
        assert made.theory.proven
        gls = system(protocol, environment=flat, share={**share, "rule": "gls"})
        assert not gls.theory.proven and direct_regret_bound(gls.plan, gls.theory) is None
        own = made.plan.silos * oracle.local_regret(HORIZON, D, 1.0, 2 * SILOS, 0.5)
        whole = direct_regret_bound(made.plan, made.theory)
        # What is shared costs what the same federation costs over `until` rounds.
        assert whole > own
        table = problems.curve(protocol)
        short = make_experiment(
            name="x", environment=flat, curves=[table], horizon=UNTIL, silos=SILOS, seed=7
        ).curves[0].system  # fmt: skip
        assert whole - own < 3.0 * direct_regret_bound(short.plan, short.theory)
        (played,), _ = both(experiment(protocol, environment=flat, share=share))
        assert played.group_regret[-1] < whole
    turned = system(environment=Rotated(D, K, 0.4), share=LEAST)
    assert not turned.theory.proven
    narrow = system(environment=flat, share=LEAST, radius_multiplier=0.1)
    assert not narrow.theory.proven


def test_own_bounds_share_the_failure_probability():
    flat = Rotated(D, K, 0.0)
    least, gls = (system(environment=flat, share=share).plan for share in (LEAST, None))
    halved = system(environment=flat, failure_probability=0.005).plan
    assert least.radius.base == halved.radius.base > gls.radius.base
    assert least.own.bound == (1.0, 0.5, 2.0 * math.log(2 * SILOS / 0.01), 1.0)


def test_a_changed_plan_is_refused():
    plan = system().plan
    with pytest.raises(InputError, match=r"the plan's protocol must be .* with model"):
        Silo(replace(plan, own=None))
    stronger = replace(plan, noise_std=plan.noise_std.times(0.5))
    with pytest.raises(InputError, match="epsilon"):
        Silo(stronger)


def test_without_privacy_there_is_none():
    assert system("none").certificate.status == "none"


# ---- Keys ----------------------------------------------------------------------------------------


def test_releases_end_with_the_last_shared_round():
    for keys in ({}, {"batch_size": 7}, {"release_rounds": (3, 20)}, {"batch_size": UNTIL}):
        plan = system(**keys).plan
        assert plan.release_rounds[-1] == UNTIL and plan.release == "factorised"
        assert plan.due(HORIZON) == plan.releases
        assert isinstance(plan.own, OwnRounds) and plan.share_until == UNTIL
    assert system(batch_size=7).plan.release_rounds == (7, 14, 21, 28, 35, 40)


BAD = {
    "share.fraction must be > 0": {"share": {"until": 40, "fraction": 0.0}},
    "no round is shared, got 3 times 0.2": {"share": {"until": 3, "fraction": 0.2}},
    'share.coin must be one of "none"': {"share": {**COINS, "coin": "public"}},
    "needs share.fraction below 1": {"share": {"until": 40, "coin": "secret"}},
    "needs no silo_epsilon: all silos": {
        "share": COINS,
        "epsilon": None,
        "silo_epsilon": [1.0, 2.0, 2.0, 2.0],
    },
    'needs protects = "user"': {"share": COINS, "protects": "reward"},
    'needs relation = "replace"': {"share": COINS, "relation": "zero-out"},
    "needs returning = 1": {"share": COINS, "returning": 2},
    'whose noise is Gaussian, got "secure-sum"': {"share": COINS, "protocol": "secure-sum"},
    'whose noise is Gaussian, got "none"': {"share": COINS, "protocol": "none"},
    "share.fraction must be above delta": {"share": {**COINS, "fraction": 0.05}, "delta": 0.1},
    "needs bonus = 1": {"share": LEAST, "bonus": 0.5},
    "share.until must be an integer >= 1": {"share": {"until": 0}},
    "share.until must be below horizon": {"share": {"until": HORIZON}},
    "rule": {"share": {"until": 40, "rule": "ledger"}},
    "untill": {"share": {"until": 40, "untill": 3}},
    "until": {"share": {}},
    'share needs radius "direct", lazy = true': {"lazy": False},
    'got radius "lemma-c2"': {"radius": "lemma-c2"},
    "share needs clip = true": {"clip": False},
    "here the horizon is share.until": {"batch_size": 41},
    "one epsilon for all silos": {"epsilon": None, "silo_epsilon": [1.0, 2.0, 2.0, 2.0]},
    'got "shuffle-vector"': {"protocol": "shuffle-vector"},
    'got "shuffle-amplified"': {"protocol": "shuffle-amplified"},
}


@pytest.mark.parametrize(("text", "keys"), BAD.items(), ids=BAD)
def test_bad_keys_are_refused_by_name(text, keys):
    keys = dict(keys)
    with pytest.raises(InputError, match=text):
        experiment(keys.pop("protocol", "silo-ldp"), **keys)


@pytest.mark.parametrize("name", ["local", "linucb"])
def test_other_systems_have_no_such_key(name):
    table = problems.curve(name, share={"until": 3})
    with pytest.raises(InputError, match='unknown key "share"'):
        make_experiment(
            name="x", environment=Rotated(D, K, 0.0), curves=[table], horizon=20, silos=1, seed=1
        )


def test_stores_of_curves_without_the_key_stay_valid():
    table = problems.curve("silo-ldp")
    sizes = {"environment": Rotated(D, K, 0.0), "horizon": 30, "silos": 2, "seed": 1}
    plain = make_experiment(name="x", curves=[table], **sizes)
    (keys,) = plain.identity()["curves"]
    assert "share" not in keys
    shared = make_experiment(name="x", curves=[{**table, "share": {"until": 9}}], **sizes)
    (keys,) = shared.identity()["curves"]
    assert keys["share"] == {"until": 9, "fraction": 1.0, "rule": "gls"}
    coins = make_experiment(
        name="x", curves=[{**table, "share": {"until": 9, "fraction": 0.5, "coin": "secret"}}],
        **sizes,
    )  # fmt: skip
    (keys,) = coins.identity()["curves"]
    assert keys["share"]["coin"] == "secret"
    assert plain.digest() != shared.digest()


# ---- Memory --------------------------------------------------------------------------------------


def test_memory_counts_what_own_rounds_keep():
    plan = system().plan
    s = plan.statistic_size
    made = compiled.state(plan, 5, False)
    added = {name: array.nbytes for name, array in made.items() if name.startswith("own_")
             and isinstance(array, np.ndarray) and array.size}  # fmt: skip
    # A few numbers of the plan, no state.
    assert added.pop("own_ridges") == 8 * 4 * (plan.releases + 1)
    assert added == {
        "own_w": 8 * SILOS * D * D,
        "own_theta": 8 * SILOS * D,
        "own_sums": 8 * SILOS * s,
        "own_rest": 8 * SILOS * s,
    }
    without = replace(plan, own=None)
    for steps, bytes in ((False, sum(added.values())), (True, 8 * SILOS * (D * D + D + 3 * s))):
        size = [sum(term.bytes for term in server.memory(p, 5, steps=steps)) for p in
                (plan, without)]  # fmt: skip
        assert size[0] - size[1] == bytes
    half, least = (system(share=share).plan for share in (COINS, LEAST))
    for plan, more in ((half, 8 * SILOS * s), (least, -16 * SILOS * s)):
        size = [sum(term.bytes for term in server.memory(p, 5)) for p in (plan, without)]
        assert size[0] - size[1] == sum(added.values()) + more
