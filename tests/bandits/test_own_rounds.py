"""Tests of local rounds (key ``share``).

In a local round, a silo learns from its user but shares nothing. The tests cover the drivers, the
oracle's posterior, the messages of a silo, certificates and keys.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import problems
import pytest
from oracle import own_rounds as oracle
from oracle import sieve
from test_drivers import assert_same_bits, outcomes_of_both_drivers

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
SECRET_COIN = {"until": UNTIL, "fraction": 0.4, "coin": "secret"}
MIN_OF_BOUNDS = {"until": UNTIL, "rule": "min-of-bounds"}


def experiment(protocol="silo-ldp", *, environment=None, share=None, silos=SILOS, **keys):
    """Return an experiment with one curve that has local rounds after round UNTIL."""
    curve = problems.curve(protocol, share={"until": UNTIL} if share is None else share, **keys)
    return make_experiment(
        name="own rounds",
        environment=environment or Rotated(D, K, 0.4, intercept=3.0),
        curves=[curve],
        horizon=HORIZON,
        silos=silos,
        seed=7,
        checkpoints=5,
    )


def system(protocol="silo-ldp", **keys):
    """Return the system of the experiment's curve."""
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
        f"coins: {name}": (protocol, {"share": SECRET_COIN, **keys})
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
        f"min-of-bounds: {name}": (protocol, {"share": {**MIN_OF_BOUNDS, **share}, **keys})
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
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(protocol, **keys))
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
@pytest.mark.parametrize("share", [None, SECRET_COIN, {**MIN_OF_BOUNDS, "fraction": 0.7}])
def test_results_do_not_depend_on_threads_or_call_lengths(threads, rounds_per_call, share):
    e = experiment(share=share)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        e, threads=threads, rounds_per_call=rounds_per_call
    )
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("keys", [{}, {"fraction": 0.5}, {"fraction": 0.5, "coin": "secret"},
                                  {"rule": "min-of-bounds", "fraction": 0.5}])  # fmt: skip
def test_drivers_agree_on_a_replayed_pool(recorded, keys):
    curve_keys = {"share": {"until": 8, **keys}, "batch_first": 2}
    curve = problems.curve("silo-ldp", **curve_keys)
    pool = Replay.from_arrays(*recorded, sampling="with-replacement")
    e = make_experiment(
        name="pool", environment=pool, curves=[curve], horizon=24, silos=3, seed=7, checkpoints=3
    )
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)


def test_curves_simulated_together_equal_curves_simulated_alone():
    e = experiment(
        share=[{"until": 20}, {"until": 40}, SECRET_COIN, MIN_OF_BOUNDS], epsilon=[1.0, 20.0]
    )
    assert len(e.curves) == 8
    plans = [curve.system.plan for curve in e.curves]
    environment = e.environment.open(e.seed, 0, e.silos)
    together = compiled.run(environment, plans, e.checkpoints, record=True)
    for plan, outcome in zip(plans, together, strict=True):
        (single_outcome,) = compiled.run(environment, [plan], e.checkpoints, record=True)
        assert_same_bits(outcome, single_outcome)


def test_shared_rounds_equal_those_of_a_federation_without_local_rounds():
    """Check rounds up to ``until`` without noise; with noise only its scale would differ."""
    with_local_rounds = experiment("none", share={"until": UNTIL}, batch_size=5)
    curve = problems.curve("none", batch_size=5)
    all_shared = make_experiment(
        name="all", environment=with_local_rounds.environment, curves=[curve], horizon=HORIZON,
        silos=SILOS, seed=7, checkpoints=5,
    )  # fmt: skip
    (local_outcome,), _ = outcomes_of_both_drivers(with_local_rounds)
    (shared_outcome,), _ = outcomes_of_both_drivers(all_shared)
    np.testing.assert_array_equal(
        local_outcome.actions[:, :UNTIL], shared_outcome.actions[:, :UNTIL]
    )
    assert (local_outcome.actions[:, UNTIL:] != shared_outcome.actions[:, UNTIL:]).any()
    assert (
        local_outcome.synchronisations[-1] == UNTIL // 5
        and shared_outcome.synchronisations[-1] == HORIZON // 5
    )


# ---- The posterior ------------------------------------------------------------------------------


def packed_sums(a, h):
    """Pack the bias h and the lower triangle of the matrix a into one vector."""
    return np.concatenate([h, a[np.tril_indices(len(a))]])


@pytest.mark.parametrize("variance", [0.0, 1e-3, 2.0, 500.0])
@pytest.mark.parametrize("silos", [1, 2, 30])
def test_posterior_equals_the_oracles_posterior(variance, silos):
    """Compare mean, covariance and weights for noisy sums that may be indefinite."""
    rng = np.random.default_rng([silos, int(1e3 * variance)])
    d, scale = 6, 0.5
    rows, local_rows = rng.normal(size=(60, d)) / 3.0, rng.normal(size=(25, d)) / 3.0
    noise = rng.normal(size=(d, d)) * 4.0 * math.sqrt(variance)
    a, h = rows.T @ rows + (noise + noise.T) / 2.0, rng.normal(size=d) * 5.0
    g, u = local_rows.T @ local_rows, rng.normal(size=d) * 3.0
    if variance > 1.0:
        assert np.linalg.eigvalsh(a)[0] < 0.0
    spreads = [delta**2 * (1.0 + 1.0 / max(1, silos - 1)) for delta in oracle.GRID]
    floors = [1.01 * scale**4 / (4.0 * spread) if variance else 1e-9 for spread in spreads]
    model = scale**2, float(d), tuple(spreads), tuple(max(variance, floor) for floor in floors)
    w, theta = np.zeros((d, d)), np.zeros(d)
    weights = linalg.belief(model, packed_sums(a, h), packed_sums(g, u), w, theta)
    sources = [
        oracle.information(a[None], h[None], variance, delta, silos, scale, float(d))
        for delta in oracle.GRID
    ]
    precision, r, expected = oracle.mixed(sources, g[None] / scale**2, u[None] / scale**2)
    belief = oracle.Belief.of(precision, r)
    np.testing.assert_allclose(weights, expected[:, 0], rtol=1e-7)
    np.testing.assert_allclose(w.T @ w * scale**2, belief.c[0], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(theta, belief.mean[0], rtol=1e-7, atol=1e-10)


def test_posterior_of_nan_sums_is_none():
    model = 0.25, 2.0, (0.01,), (1.0,)
    bad = np.full(5, np.nan)
    assert linalg.belief(model, bad, np.zeros(5), np.zeros((2, 2)), np.zeros(2)) is None


class Federation:
    """Silos and a server that play drawn contexts and rewards, round by round."""

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
        for round_index in range(HORIZON):
            for i, silo in enumerate(self.silos):
                self.means[round_index, i] = silo.theta
                a = silo.select(self.x[round_index, i])
                silo.observe(self.y[round_index, i, a])
                self.actions[round_index, i] = a
            if any(silo.due for silo in self.silos):
                reports = [silo.report() for silo in self.silos]
                broadcast = server.combine(reports)
                for silo in self.silos:
                    silo.receive(broadcast)
                self.sent.append(np.array([report.values for report in reports]))
                self.totals.append(broadcast.values)


def unpacked_sums(values, d):
    """Return the symmetric matrix and the bias of a packed vector."""
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = values[d:]
    return matrix + np.tril(matrix, -1).T, values[:d]


class RecordedCoins(SeededNoise):
    """Seeded noise that records every coin toss."""

    def __init__(self, seed, replicate=0):
        super().__init__(seed, replicate)
        self.tossed = {}

    def participation(self, silo, round):
        """Toss the coin of a round, which must not have been tossed before."""
        assert (silo, round) not in self.tossed
        self.tossed[silo, round] = super().participation(silo, round)
        return self.tossed[silo, round]


@pytest.mark.parametrize(
    ("protocol", "share"),
    [
        *((protocol, None) for protocol in ("silo-ldp", "central", "secure-sum", "none")),
        *((protocol, {"until": UNTIL, "fraction": 0.4}) for protocol in ("silo-ldp", "central")),
        ("none", {"until": UNTIL, "fraction": 0.4}),
        *((protocol, SECRET_COIN) for protocol in ("silo-ldp", "central")),
    ],
)
def test_local_rounds_follow_the_oracles_posterior(protocol, share):
    """Compare means and actions of every local round on the same releases, contexts and rewards."""
    keys = {} if share == SECRET_COIN and protocol == "central" else {"reward_centre": 0.5}
    if protocol != "none":
        keys["epsilon"] = 8.0
    plan = system(protocol, share=share, **keys).plan
    d, clip, factor = plan.dimension, plan.clip, plan.factor
    noise = RecordedCoins(3)
    federation = Federation(plan, noise=noise)
    std = plan.noise_std
    assert std.diagonal == pytest.approx(math.sqrt(2.0) * std.off_diagonal)
    ratio = 1.0 if "reward_centre" in keys else std.off_diagonal / std.bias
    assert std.off_diagonal == pytest.approx(ratio * std.bias)
    # The oracle has one noise scale; this norm maps it to the plan's two scales.
    release = oracle.Release(std.bias, centred=True, norm=ratio * plan.radius.tau)
    noises = {"silo-ldp": SILOS - 1, "central": 1, "secure-sum": 1, "none": 0}[protocol]
    rows = np.zeros((plan.releases, 1)) if factor is None else factor.matrix
    variances = oracle.noise_variance(release, rows, noises)
    scale = plan.radius.scale
    assert scale == 0.5 and (variances[-1] > 0) == (protocol != "none")
    mixed = share is not None
    rule = oracle.shared_rounds(HORIZON, UNTIL, share["fraction"] if mixed else 1.0)
    release_index_of = dict(zip(plan.release_rounds, range(plan.releases), strict=True))
    assert len(release_index_of) > 2 and not any(t > UNTIL for _, t in noise.tossed)
    for i in range(SILOS):
        g, u = np.zeros((1, d, d)), np.zeros((1, d))
        raw_g, raw_u = np.zeros((d, d)), np.zeros(d)
        prior = d * np.eye(d)[None]
        belief = oracle.Belief.of(prior, np.zeros((1, d))) if mixed else None
        sources = [(prior, np.zeros((1, d)))]
        for t in range(1, HORIZON + 1):
            a = federation.actions[t - 1, i]
            rows = federation.x[t - 1, i].copy()
            shared = bool(rule[t])
            if share == SECRET_COIN and t <= UNTIL:
                shared = noise.tossed[i, t] < 0.4 * 2.0**64
            if not shared:
                np.testing.assert_allclose(
                    federation.means[t - 1, i], belief.mean[0], rtol=1e-6, atol=1e-9
                )
                width = np.sqrt(np.einsum("kd,de,ke->k", rows, belief.c[0], rows))
                scores = rows @ belief.mean[0] + 0.5 * width
                assert scores[a] >= scores.max() - 1e-9
            x = rows[a].copy()
            y, *_ = clip.apply(x, federation.y[t - 1, i, a])
            g, u = g + np.outer(x, x), u + x * y
            if shared:
                raw_g, raw_u = raw_g + np.outer(x, x), raw_u + x * y
            if belief is not None:
                belief.observe(x[None], np.array([y]), scale)
            release_index = release_index_of.get(t)
            if release_index is not None and (mixed or t == UNTIL):
                own_values = (
                    federation.sent[release_index][i]
                    if protocol == "silo-ldp"
                    else packed_sums(raw_g, raw_u)
                )
                other_sums, bias = unpacked_sums(federation.totals[release_index] - own_values, d)
                sources = [
                    oracle.information(
                        other_sums[None],
                        bias[None],
                        variances[release_index],
                        delta,
                        SILOS,
                        scale,
                        d,
                    )
                    for delta in oracle.GRID
                ]
                rebuild = True
            else:
                rebuild = belief is not None and t & (t - 1) == 0
            if rebuild:
                precision, r, _ = oracle.mixed(sources, g / scale**2, u / scale**2)
                belief = oracle.Belief.of(precision, r)
    if share == SECRET_COIN:
        count = sum(bits < 0.4 * 2.0**64 for bits in noise.tossed.values())
        assert len(noise.tossed) == SILOS * UNTIL and 40 < count < 90


@pytest.mark.parametrize("share", [MIN_OF_BOUNDS, {**MIN_OF_BOUNDS, "fraction": 0.5}])
@pytest.mark.parametrize("protocol", ["silo-ldp", "none"])
def test_local_rounds_use_the_minimum_of_two_bounds(protocol, share):
    """Compute the silo's local bound with the oracle and the public bound as in shared rounds."""
    keys = {"epsilon": 8.0} if protocol != "none" else {}
    plan = system(protocol, share=share, **keys).plan
    federation = Federation(plan)
    rule = oracle.shared_rounds(HORIZON, UNTIL, share.get("fraction", 1.0))
    differing_counts = np.zeros(2, int)
    for i in range(SILOS):
        # A silo of the same plan without local rounds; it receives the releases.
        public_silo = Silo(replace(plan, own=None, privacy=None), i, SeededNoise(3))
        g, u = np.zeros((1, D, D)), np.zeros((1, D))
        releases = iter(zip(plan.release_rounds, federation.totals, strict=True))
        release_round, release_sums = next(releases)
        for t in range(1, HORIZON + 1):
            rows, a = federation.x[t - 1, i], federation.actions[t - 1, i]
            estimate = public_silo._estimate
            beta, gamma = public_silo._radius(), public_silo._second_bonus
            public_bounds = linalg.scores(rows, estimate.w, estimate.theta, beta, gamma)
            if not rule[t]:
                # The public bound takes half of the failure probability. The oracle's bound would
                # take all of it, hence 2 * SILOS.
                bound = oracle.local_bounds(g, u, plan.radius.tau, 2 * SILOS, plan.radius.scale)
                mean, width = bound.mean_and_width(rows[None])
                min_bounds = np.minimum(public_bounds, (mean + width)[0])
                assert min_bounds[a] >= min_bounds.max() - 1e-9
                local_argmax = (mean + width)[0].argmax()
                differing_counts += (
                    min_bounds.argmax() != public_bounds.argmax(),
                    min_bounds.argmax() != local_argmax,
                )
            else:
                # Shared rounds have a sieve, as those of all other plans.
                mean = rows.astype(float) @ estimate.theta
                bonus, slack = public_bounds - mean, public_silo._slack
                passing = sieve.passes(mean, bonus, slack, plan.reward_limit)
                ranked = mean + plan.ranking * bonus
                assert passing[a] and ranked[a] >= ranked[passing].max() - 1e-9
            x = rows[a].copy()
            y, *_ = plan.clip.apply(x, federation.y[t - 1, i, a])
            g, u = g + np.outer(x, x), u + x * y
            if t == release_round:
                public_silo._refresh(release_sums, public_silo.release + 1)
                public_silo.release += 1
                release_round, release_sums = next(releases, (0, None))
    # Without noise the public bound is nearly always the smaller one; with noise the local bound
    # is.
    assert differing_counts[1 if protocol == "none" else 0] > 20


# ---- Messages of a silo -------------------------------------------------------------------------


def transcript_of(federation):
    """Return all values that the silos and the server sent, in one vector."""
    return np.concatenate([np.ravel(values) for values in (*federation.sent, *federation.totals)])


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix", "secure-sum"])
@pytest.mark.parametrize("round", [UNTIL + 1, 64, HORIZON - 1])
def test_messages_do_not_depend_on_users_of_local_rounds(protocol, round):
    plan = system(protocol).plan
    federation, changed_federation = Federation(plan), Federation(plan, change=(1, round))
    np.testing.assert_array_equal(transcript_of(federation), transcript_of(changed_federation))
    other_silos = [i for i in range(SILOS) if i != 1]
    np.testing.assert_array_equal(
        federation.actions[:, other_silos], changed_federation.actions[:, other_silos]
    )
    # Later users of the same silo do depend on this user.
    assert (federation.means[round:, 1] != changed_federation.means[round:, 1]).any()


@pytest.mark.parametrize("rule", ["gls", "min-of-bounds"])
@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix"])
def test_messages_do_not_depend_on_local_rounds_between_shared_rounds(protocol, rule):
    """Check local rounds by rule and by coin, before and after ``until`` and before any release."""
    for share in ({"until": UNTIL, "fraction": 0.4}, SECRET_COIN):
        plan = system(protocol, share={**share, "rule": rule}, epsilon=8.0).plan
        noise = RecordedCoins(3)
        federation = Federation(plan, noise=noise)
        local_rounds = [
            t for t in range(1, UNTIL) if not plan.own.shares(t, noise.tossed.get((1, t), 0))
        ]
        for round in (local_rounds[0], local_rounds[len(local_rounds) // 2], UNTIL + 1):
            changed_federation = Federation(plan, change=(1, round))
            np.testing.assert_array_equal(
                transcript_of(federation), transcript_of(changed_federation)
            )
            other_silos = [i for i in range(SILOS) if i != 1]
            np.testing.assert_array_equal(
                federation.actions[:, other_silos], changed_federation.actions[:, other_silos]
            )
            assert (federation.means[round:, 1] != changed_federation.means[round:, 1]).any()
        shared_round = next(t for t in range(2, UNTIL) if t not in local_rounds)
        changed_federation = Federation(plan, change=(1, shared_round))
        assert (transcript_of(federation) != transcript_of(changed_federation)).any()


def test_messages_depend_on_users_of_shared_rounds():
    plan = system().plan
    federation, changed_federation = Federation(plan), Federation(plan, change=(1, UNTIL))
    assert (transcript_of(federation) != transcript_of(changed_federation)).any()


class LeakingSilo(Silo):
    """A silo with a planted fault: its batches contain local rounds, too."""

    def _learn(self, x, y):
        """Add the data point of a local round to the batch, too."""
        if self.plays_own:
            self._randomizer.observe(x, y)
        super()._learn(x, y)


def test_local_rounds_that_enter_a_batch_are_detected(monkeypatch):
    """Check that such a plan is refused and that, without this check, the transcript shows the
    fault."""
    plan = system().plan
    early_plan = replace(plan, own=replace(plan.own, until=20))
    for broken_plan in (early_plan, replace(plan, own=None)):
        with pytest.raises(InputError):
            Silo(broken_plan)
    monkeypatch.setattr(silos_module, "check_plan", lambda plan: plan)
    monkeypatch.setattr("fastfed.protocols.randomizer.check_plan", lambda plan: plan)
    monkeypatch.setattr("fastfed.protocols.server.check_plan", lambda plan: plan)
    honest_transcripts = [
        transcript_of(Federation(early_plan, change=change)) for change in (None, (1, 25))
    ]
    np.testing.assert_array_equal(*honest_transcripts)
    leaked_transcripts = [
        transcript_of(Federation(early_plan, LeakingSilo, change=change))
        for change in (None, (1, 25))
    ]
    assert (leaked_transcripts[0] != leaked_transcripts[1]).any()


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
def test_deployed_silos_learn_in_local_rounds(protocol):
    """Use noise from the operating system, with raw sums and messages on a grid."""
    federation = Federation(system(protocol, reward_centre=0.5).plan, noise=SystemNoise())
    assert len(federation.totals) == federation.plan.releases
    late_means = federation.means[UNTIL:]
    assert (
        np.isfinite(late_means).all() and (np.diff(late_means, axis=0) != 0).any(axis=(0, 2)).all()
    )
    # All silos have different means.
    assert len(np.unique(late_means[-1], axis=0)) == SILOS


def test_no_report_is_due_after_the_last_shared_round():
    silo = Federation(system().plan).silos[0]
    assert silo.round == HORIZON and not silo.due and silo.plays_own
    with pytest.raises(InputError, match="no report due"):
        silo.report()


# ---- Certificates --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum"])
def test_certificate_protects_against_other_silos_only(protocol):
    homogeneous = Rotated(D, K, 0.0, intercept=3.0)
    local_system = system(protocol, environment=homogeneous, epsilon=1.0)
    certificate = local_system.certificate
    assert certificate.status == "proven" and certificate.exact.epsilon <= 1.0 + 1e-9
    assert "own silo" in certificate.model
    assert "other silos and users" not in certificate.model
    (local_claim,) = [claim for claim in certificate.also if claim.exact.epsilon == 0.0]
    assert (
        local_claim.status == "proven"
        and f"after round {UNTIL}" in local_claim.model
        and local_claim.claimed is None
    )
    assert not any("joint" in claim.model for claim in certificate.also)
    assert any(
        f"shared rounds, 1 to {UNTIL}" in condition.text and condition.holds
        for condition in certificate.conditions
    )
    assert any(
        "users of the same silo are not protected" in caveat for caveat in certificate.caveats
    )
    assert local_system.theory.proven
    unsieved = system(protocol, environment=homogeneous, epsilon=1.0, sieve=1.0)
    assert not unsieved.theory.proven
    caveats = unsieved.certificate.caveats
    assert any("own" in caveat and "unproven" in caveat for caveat in caveats)
    # Releases end early, so there are fewer of them.
    curve = problems.curve(protocol, epsilon=1.0)
    shared_system = make_experiment(
        name="all", environment=homogeneous, curves=[curve], horizon=HORIZON, silos=SILOS, seed=7,
        checkpoints=5,
    ).curves[0].system  # fmt: skip
    assert local_system.plan.releases < shared_system.plan.releases
    assert any("joint" in claim.model for claim in shared_system.certificate.also)


def test_a_secret_coin_reduces_the_noise():
    """Compare the noise for (1, 1e-3) at p = 1/2 with the oracle's account and with no coin."""
    half = {"until": UNTIL, "fraction": 0.5}
    systems = {}
    for share in (half, {**half, "coin": "secret"}):
        for ratio in (1.0, None):
            coin_system = system(
                "silo-ldp", share=share, epsilon=1.0, delta=1e-3, covariance_ratio=ratio
            )
            systems[len(share), ratio] = coin_system
            certificate = coin_system.certificate
            assert certificate.status == "proven"
            assert 1.0 - 1e-6 < certificate.exact.epsilon <= 1.0
            coin_conditions = [
                condition
                for condition in certificate.conditions
                if "which users were shared" in condition.text
            ]
            assert len(coin_conditions) == (len(share) == 3) and all(
                condition.holds for condition in coin_conditions
            )
            coin_caveats = [
                caveat for caveat in certificate.caveats if "actions of no round" in caveat
            ]
            assert len(coin_caveats) == len(coin_conditions)
            (local_claim,) = [claim for claim in certificate.also if claim.exact.epsilon == 0.0]
            public_rule = "that the public rule leaves out"
            assert (public_rule in local_claim.model) == (len(share) == 2)
    plain_noise, coin_noise = (systems[n, 1.0].plan.noise_std for n in (2, 3))
    expected = oracle.coin_mu(1.0, 1e-3, 0.5) / oracle.gaussian_mu(1.0, 1e-3)
    assert plain_noise.bias / coin_noise.bias == pytest.approx(expected, rel=1e-6)
    assert plain_noise.diagonal / coin_noise.diagonal == pytest.approx(expected, rel=1e-6)
    # At p = 1/2 a coin keeps a share 0.79 of the signal. The noise falls by the factor 0.79 / p.
    assert expected == pytest.approx(0.79 / 0.5, abs=0.012)
    assert systems[3, None].plan.noise_std.bias < systems[2, None].plan.noise_std.bias


def test_a_plan_with_a_wrong_coin_is_refused():
    """Check that plans are refused if their noise does not account for the coin."""
    plan = system(share=SECRET_COIN).plan
    for local_rounds in (
        replace(plan.own, secret=False),
        replace(plan.own, fraction=0.5),
        replace(plan.own, fraction=0.3),
    ):
        with pytest.raises(InputError, match=r"epsilon|certificate"):
            Silo(replace(plan, own=local_rounds))
    rule_plan = system(share={"until": UNTIL, "fraction": 0.4}).plan
    with pytest.raises(InputError, match=r"epsilon|certificate"):
        Silo(replace(rule_plan, own=replace(rule_plan.own, secret=True)))
    secure_plan = system("secure-sum", share={"until": UNTIL, "fraction": 0.4}).plan
    with pytest.raises(InputError, match="Gaussian noise on all sums"):
        Silo(replace(secure_plan, own=replace(secure_plan.own, secret=True)))


def test_a_public_rule_does_not_change_the_noise():
    half_plan, full_plan = (
        system(share={"until": UNTIL, "fraction": fraction}).plan for fraction in (0.5, 1.0)
    )
    assert (
        half_plan.noise_std == full_plan.noise_std
        and half_plan.privacy.exact == full_plan.privacy.exact
    )
    assert list(half_plan.own.rule[:6]) == [0, 1, 0, 1, 0, 1]
    assert (oracle.shared_rounds(UNTIL, UNTIL, 0.5)[1:] == half_plan.own.rule).all()


@pytest.mark.parametrize("fraction", [1.0, 0.7, 0.3, 0.1, 1e-3])
def test_shared_rounds_equal_the_oracles_shared_rounds(fraction):
    local_rounds = OwnRounds(2000, 1.0, 1.0, (), (), 1.0, fraction)
    np.testing.assert_array_equal(local_rounds.rule, oracle.shared_rounds(2000, 2000, fraction)[1:])


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "silo-ldp-prefix"])
def test_counts_of_shared_users_are_noisy_only_with_coins(protocol):
    """Check the last entry of centred sums, which counts users.

    The count is public under a rule and must be noisy with coins.
    """
    rule = {"until": UNTIL, "fraction": 0.4}
    for share in (rule, {**rule, "coin": "secret"}):
        keys = {"release": "tree"} if protocol == "silo-ldp-prefix" else {}
        plan = system(protocol, share=share, reward_centre=0.5, **keys).plan
        assert plan.public_constant == (share is rule)
        for noise in (SeededNoise(3), SystemNoise()):
            federation = Federation(plan, noise=noise)
            counts = np.array(federation.totals)[:, -1] / plan.clip.constant**2
            is_integer = np.abs(counts - np.round(counts)) < 1e-3
            assert is_integer.all() if share is rule else not is_integer.all()
            if share is rule:
                expected_counts = [
                    plan.own.rule[:release_round].sum() for release_round in plan.release_rounds
                ]
                assert counts == pytest.approx(SILOS * np.array(expected_counts), abs=1e-3)


def test_noise_of_a_centred_coin_covers_the_count():
    """Compare the noise with the oracle's zeta, which includes the count; check the certificate."""
    share = {"until": UNTIL, "fraction": 0.5, "coin": "secret"}
    homogeneous = Rotated(D, K, 0.0, intercept=3.0)
    coin_system, certain_system = (
        system(
            environment=homogeneous, share=share_keys, reward_centre=0.5, epsilon=1.0, delta=1e-3
        )
        for share_keys in (share, {"until": UNTIL})
    )
    assert coin_system.certificate.status == "proven"
    assert 1.0 - 1e-6 < coin_system.certificate.exact.epsilon <= 1.0
    expected = oracle.coin_mu(1.0, 1e-3, 0.5, oracle.absence(centred=True))
    expected /= oracle.gaussian_mu(1.0, 1e-3)
    noise_ratio = certain_system.plan.noise_std.bias / coin_system.plan.noise_std.bias
    assert noise_ratio == pytest.approx(expected, rel=1e-6)
    # Without the count, the absence of a user would seem cheaper than it is.
    (event,) = released(coin_system.plan)
    assert event.absent_mu() > 1.01 * event.mu("zero-out")
    assert event.absent_mu() / event.mu() == pytest.approx(oracle.absence(True), rel=1e-9)


def test_coins_have_separate_noise_keys():
    noise = SeededNoise(5, 2)
    coins = {noise.participation(i, t) for i in range(20) for t in range(1, 60)}
    assert len(coins) == 20 * 59 and all(0 <= bits < 2**64 for bits in coins)
    assert noise.participation(3, 4) == SeededNoise(5, 2).participation(3, 4)
    assert noise.participation(3, 4) != noise.score_key(3, 4)
    interleaved = InterleavedNoise(noise, (7, 9), 1, 3)
    assert interleaved.participation(1, 2) == noise.participation(9, 4)
    system_noise = SystemNoise()
    assert system_noise.participation(0, 1) != system_noise.participation(0, 1)
    share = np.mean([bits < 0.4 * 2**64 for bits in coins])
    # The share of 1180 coins has standard error 0.014; the limit is four of these.
    assert abs(share - 0.4) < 0.06


# ---- Regret --------------------------------------------------------------------------------------


def test_regret_bound_of_min_of_bounds_is_proven_for_equal_silos():
    """Compare the bound with that of a short federation plus the regret of local rounds."""
    homogeneous = Rotated(D, K, 0.0)
    for protocol, keys in (("silo-ldp", {}), ("none", {}), ("central", {"fraction": 0.5})):
        share = {**MIN_OF_BOUNDS, **keys}
        min_system = system(protocol, environment=homogeneous, share=share)
        assert min_system.theory.proven
        gls_share = {**share, "rule": "gls"}
        gls_system = system(protocol, environment=homogeneous, share=gls_share, sieve=1.0)
        assert (
            not gls_system.theory.proven
            and direct_regret_bound(gls_system.plan, gls_system.theory) is None
        )
        local_regret = min_system.plan.silos * oracle.local_regret(HORIZON, D, 1.0, 2 * SILOS, 0.5)
        regret_bound = direct_regret_bound(min_system.plan, min_system.theory)
        # Shared rounds cost about as much as a federation that ends after ``until`` rounds.
        assert regret_bound > local_regret
        curve = problems.curve(protocol)
        short_system = make_experiment(
            name="x", environment=homogeneous, curves=[curve], horizon=UNTIL, silos=SILOS, seed=7
        ).curves[0].system  # fmt: skip
        assert regret_bound - local_regret < 3.0 * direct_regret_bound(
            short_system.plan, short_system.theory
        )
        (outcome,), _ = outcomes_of_both_drivers(
            experiment(protocol, environment=homogeneous, share=share)
        )
        assert outcome.group_regret[-1] < regret_bound
    rotated_system = system(environment=Rotated(D, K, 0.4), share=MIN_OF_BOUNDS)
    assert not rotated_system.theory.proven
    narrow_system = system(environment=homogeneous, share=MIN_OF_BOUNDS, radius_multiplier=0.1)
    assert not narrow_system.theory.proven


def test_local_and_public_bounds_divide_the_failure_probability():
    homogeneous = Rotated(D, K, 0.0)
    # The default has a sieve, which uses both bounds, as the minimum of bounds does.
    min_plan, default_plan, unsieved_plan = (
        system(environment=homogeneous, **keys).plan
        for keys in ({"share": MIN_OF_BOUNDS}, {}, {"sieve": 1.0})
    )
    halved_plan = system(environment=homogeneous, failure_probability=0.005, sieve=1.0).plan
    assert min_plan.radius.base == halved_plan.radius.base > unsieved_plan.radius.base
    assert default_plan.radius.base == min_plan.radius.base
    assert default_plan.own.bound == min_plan.own.bound
    assert min_plan.own.bound == (1.0, 0.5, 2.0 * math.log(2 * SILOS / 0.01), 1.0)


def test_a_plan_without_its_local_rounds_or_noise_is_refused():
    plan = system().plan
    with pytest.raises(InputError, match=r"the plan's protocol must be .* with model"):
        Silo(replace(plan, own=None))
    plan_with_less_noise = replace(plan, noise_std=plan.noise_std.times(0.5))
    with pytest.raises(InputError, match="epsilon"):
        Silo(plan_with_less_noise)


def test_certificate_without_privacy_has_status_none():
    assert system("none").certificate.status == "none"


# ---- Keys ----------------------------------------------------------------------------------------


def test_releases_end_with_the_last_shared_round():
    for keys in ({}, {"batch_size": 7}, {"release_rounds": (3, 20)}, {"batch_size": UNTIL}):
        plan = system(**keys).plan
        assert plan.release_rounds[-1] == UNTIL and plan.release == "factorised"
        assert plan.due(HORIZON) == plan.releases
        assert isinstance(plan.own, OwnRounds) and plan.share_until == UNTIL
    assert system(batch_size=7).plan.release_rounds == (7, 14, 21, 28, 35, 40)


BAD_KEYS = {
    "share.fraction must be > 0": {"share": {"until": 40, "fraction": 0.0}},
    "no round is shared, got 3 times 0.2": {"share": {"until": 3, "fraction": 0.2}},
    'share.coin must be one of "none"': {"share": {**SECRET_COIN, "coin": "public"}},
    "needs share.fraction below 1": {"share": {"until": 40, "coin": "secret"}},
    "needs no silo_epsilon: all silos": {
        "share": SECRET_COIN,
        "epsilon": None,
        "silo_epsilon": [1.0, 2.0, 2.0, 2.0],
    },
    'needs protects = "user"': {"share": SECRET_COIN, "protects": "reward"},
    'needs relation = "replace"': {"share": SECRET_COIN, "relation": "zero-out"},
    "needs returning = 1": {"share": SECRET_COIN, "returning": 2},
    'whose noise is Gaussian, got "secure-sum"': {"share": SECRET_COIN, "protocol": "secure-sum"},
    'whose noise is Gaussian, got "none"': {"share": SECRET_COIN, "protocol": "none"},
    "share.fraction must be above delta": {
        "share": {**SECRET_COIN, "fraction": 0.05},
        "delta": 0.1,
    },
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


@pytest.mark.parametrize(("message", "keys"), BAD_KEYS.items(), ids=BAD_KEYS)
def test_errors_name_the_bad_key(message, keys):
    keys = dict(keys)
    with pytest.raises(InputError, match=message):
        experiment(keys.pop("protocol", "silo-ldp"), **keys)


@pytest.mark.parametrize("name", ["local", "linucb"])
def test_other_systems_do_not_know_the_key_share(name):
    curve = problems.curve(name, share={"until": 3})
    with pytest.raises(InputError, match='unknown key "share"'):
        make_experiment(
            name="x", environment=Rotated(D, K, 0.0), curves=[curve], horizon=20, silos=1, seed=1
        )


def test_identity_of_curves_without_share_does_not_change():
    curve = problems.curve("silo-ldp")
    settings = {"environment": Rotated(D, K, 0.0), "horizon": 30, "silos": 2, "seed": 1}
    without_share = make_experiment(name="x", curves=[curve], **settings)
    (keys,) = without_share.identity()["curves"]
    assert "share" not in keys
    with_share = make_experiment(name="x", curves=[{**curve, "share": {"until": 9}}], **settings)
    (keys,) = with_share.identity()["curves"]
    assert keys["share"] == {"until": 9, "fraction": 1.0, "rule": "gls"}
    with_coin = make_experiment(
        name="x", curves=[{**curve, "share": {"until": 9, "fraction": 0.5, "coin": "secret"}}],
        **settings,
    )  # fmt: skip
    (keys,) = with_coin.identity()["curves"]
    assert keys["share"]["coin"] == "secret"
    assert without_share.digest() != with_share.digest()


# ---- Memory --------------------------------------------------------------------------------------


def test_memory_estimate_counts_the_arrays_of_local_rounds():
    plan = system().plan
    s = plan.statistic_size
    state = compiled.state(plan, 5, False)
    local_bytes = {name: array.nbytes for name, array in state.items()
             if name.startswith(("own_", "local_"))
             and isinstance(array, np.ndarray) and array.size}  # fmt: skip
    # This array holds a few numbers of the plan, not state.
    assert local_bytes.pop("own_ridges") == 8 * 4 * (plan.releases + 1)
    assert local_bytes == {
        "own_w": 8 * SILOS * D * D,
        "own_theta": 8 * SILOS * D,
        "own_sums": 8 * SILOS * s,
        "own_rest": 8 * SILOS * s,
        "local_w": 8 * SILOS * D * D,
        "local_theta": 8 * SILOS * D,
    }
    plan_without = replace(plan, own=None)
    for steps, expected in (
        (False, sum(local_bytes.values())),
        (True, 8 * SILOS * (2 * (D * D + D) + 3 * s)),
    ):
        totals = [
            sum(term.bytes for term in server.memory(each_plan, 5, steps=steps))
            for each_plan in (plan, plan_without)
        ]
        assert totals[0] - totals[1] == expected
    coin_plan, min_plan = (system(share=share).plan for share in (SECRET_COIN, MIN_OF_BOUNDS))
    without_posterior = -16 * SILOS * s - 8 * SILOS * (D * D + D)
    for plan, extra_bytes in ((coin_plan, 8 * SILOS * s), (min_plan, without_posterior)):
        totals = [
            sum(term.bytes for term in server.memory(each_plan, 5))
            for each_plan in (plan, plan_without)
        ]
        assert totals[0] - totals[1] == sum(local_bytes.values()) + extra_bytes
