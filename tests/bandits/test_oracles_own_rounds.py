"""Tests of the oracle of local rounds: exact posteriors, bounds, and the messages of a silo."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from oracle import own_rounds as oracle
from pytest import approx
from scipy import stats


def keyed_rng(*key: int) -> np.random.Generator:
    """Return a random generator for this key."""
    return np.random.default_rng([1909, *key])


def random_psd(rng: np.random.Generator, d: int, scale: float = 1.0) -> np.ndarray:
    """Return a random positive semidefinite matrix."""
    rows = rng.normal(size=(2 * d, d))
    return scale * rows.T @ rows


# ---- Schedules and noise -------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.3, 0.1, 0.07])
def test_number_of_shared_rounds_follows_the_fraction(fraction: float) -> None:
    for until in (0, 1, 33, 60, 100):
        shared = oracle.shared_rounds(60, until, fraction)
        assert not shared[0] and not shared[min(until, 60) + 1 :].any()
        counts = np.cumsum(shared)
        for t in range(min(until, 60) + 1):
            assert counts[t] == math.floor(round(t * fraction, 9))


def test_release_rounds_grow_geometrically() -> None:
    shared = oracle.shared_rounds(1000, 400, 0.5)
    rounds = oracle.release_rounds(shared, 20, 1.25)
    counts = np.cumsum(shared)[rounds]
    assert shared[rounds].all() and counts[0] == 20 and counts[-1] == 200
    assert (np.diff(counts) > 0).all() and rounds[-1] == 400
    growth = counts[1:-1] / counts[:-2]
    assert (growth > 1.2).all() and (growth < 1.3).all()
    assert oracle.release_rounds(oracle.shared_rounds(9, 0, 1.0), 5, 2.0) == []
    assert oracle.release_rounds(oracle.shared_rounds(9, 3, 1.0), 5, 2.0) == [3]


def test_optimal_factor_has_the_smallest_error() -> None:
    """Compare with Toeplitz and trivial factors and with random feasible steps."""
    shared = oracle.shared_rounds(4000, 4000, 1.0)
    weights = oracle.release_weights(oracle.release_rounds(shared, 10, 1.5), shared)
    c, b = oracle.optimal_factor(weights)
    count = len(weights)
    prefix = np.tril(np.ones((count, count)))
    np.testing.assert_allclose(b @ c, prefix, atol=1e-9)
    assert (np.triu(c, 1) == 0).all()
    np.testing.assert_allclose(np.linalg.norm(c, axis=0), 1.0, rtol=1e-6)

    def cost(factor: np.ndarray) -> float:
        """Return the weighted error of the releases with an encoder, scaled to sensitivity 1."""
        unit = factor / np.linalg.norm(factor, axis=0).max()
        return float(weights @ ((prefix @ np.linalg.inv(unit)) ** 2).sum(axis=1))

    series = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, count))])
    toeplitz = np.array(
        [[series[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)]
    )
    assert cost(c) < min(cost(toeplitz), cost(np.eye(count)), cost(prefix))

    w = prefix.T @ np.diag(weights) @ prefix
    x = c.T @ c
    min_error = np.trace(w @ np.linalg.inv(x))
    assert min_error == approx(cost(c), rel=1e-6)
    rng = keyed_rng(1)
    for _ in range(50):
        step = rng.normal(size=(count, count)) * 1e-3
        step = step + step.T
        np.fill_diagonal(step, -np.abs(rng.normal(size=count)) * 1e-4)
        if np.linalg.eigvalsh(x + step)[0] > 0:
            assert np.trace(w @ np.linalg.inv(x + step)) > min_error * (1 - 1e-9)


def test_noise_of_a_silo_has_its_covariance() -> None:
    """Check the covariance B B' over releases, the layout goe2, and the last entry, which is 0."""
    rng, d, b = keyed_rng(2), 3, np.array([[1.0, 0.0], [0.6, 0.9]])
    release = oracle.Release(2.0, centred=True)
    noise = np.array(
        [oracle.noise_of(rng.standard_normal((2, d + d * d)), release, b, d) for _ in range(20000)]
    )
    # A variance of 20 000 draws has relative standard error 0.01; the limit is six of these.
    np.testing.assert_allclose(np.cov(noise[:, :, 0].T), 4.0 * b @ b.T, rtol=0.06)
    matrix = noise[:, 1, d:].reshape(-1, d, d)
    assert (matrix == matrix.transpose(0, 2, 1)).all() and (matrix[:, 2, 2] == 0).all()
    variance = 4.0 * (b[1] ** 2).sum()
    assert matrix[:, 0, 1].var() == approx(variance, rel=0.06)
    assert matrix[:, 0, 0].var() == approx(2.0 * variance, rel=0.06)
    # sigma_k^2 is the variance of an entry of h - N theta, except in the direction of theta.
    theta = np.array([0.5, 0.0, 0.5])
    residual = noise[:, 1, :d] - matrix @ theta
    release = replace(release, norm=float(np.linalg.norm(theta)))
    expected = oracle.noise_variance(release, b, 7)[1] / 7.0
    assert residual[:, 1].var() == approx(expected, rel=0.06)


def test_gaussian_mu_inverts_the_privacy_profile() -> None:
    for epsilon, delta in ((1.0, 1e-3), (5.0, 1e-5), (0.1, 1e-8)):
        mu = oracle.gaussian_mu(epsilon, delta)
        upper = stats.norm.cdf(mu / 2 - epsilon / mu)
        release_delta = upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert release_delta == approx(delta, rel=1e-6)


# ---- Posteriors ----------------------------------------------------------------------------------


def exact_posterior(
    s: np.ndarray,
    h: np.ndarray,
    g: np.ndarray,
    u: np.ndarray,
    silos: int,
    variance: float,
    delta: float,
    scale: float,
    prior: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute precision and mean of theta_0 from the joint Gaussian of theta, theta_0, ...,
    theta_(M-1).

    The prior of theta is flat, and theta_j = theta + N(0, Delta^2 I). Each of the other silos has
    the sums S. h is the sum of the others' biases. Its noise has variance sigma^2 I in addition to
    the noise of the rewards.
    """
    d = len(h)
    precision, linear = np.zeros((d * (silos + 1),) * 2), np.zeros(d * (silos + 1))

    def block(j: int) -> slice:
        """Return the rows and columns of theta_j in the joint precision."""
        return slice(d * (j + 1), d * (j + 2))

    common_block = slice(0, d)
    for j in range(silos):
        for rows, columns, sign in (
            (common_block, common_block, 1),
            (block(j), block(j), 1),
            (common_block, block(j), -1),
        ):
            precision[rows, columns] += sign * np.eye(d) / delta**2
            if sign < 0:
                precision[columns, rows] += sign * np.eye(d) / delta**2
    design = np.zeros((d, d * (silos + 1)))
    for j in range(1, silos):
        design[:, block(j)] = s
    inverse = np.linalg.inv(variance * np.eye(d) + scale**2 * (silos - 1) * s)
    precision += design.T @ inverse @ design
    linear += design.T @ inverse @ h
    precision[block(0), block(0)] += g / scale**2 + prior * np.eye(d)
    linear[block(0)] += u / scale**2
    covariance = np.linalg.inv(precision)
    return np.linalg.inv(covariance[block(0), block(0)]), (covariance @ linear)[block(0)]


@pytest.mark.parametrize("silos", [2, 3, 6])
@pytest.mark.parametrize("delta", [0.05, 0.3, 2.0])
def test_belief_of_a_silo_equals_the_exact_posterior(silos: int, delta: float) -> None:
    """Check the model without noise in the matrix and with equal sums of the other silos."""
    rng, d, scale = keyed_rng(3, silos), 3, 0.5
    s, g = random_psd(rng, d), random_psd(rng, d, 0.5)
    h, u, variance = rng.normal(size=d), rng.normal(size=d), 8.0
    a = (silos - 1) * s
    p, q = oracle.information(a[None], h[None], variance, delta, silos, scale, 0.7)
    precision, r, weights = oracle.mixed([(p, q)], g[None] / scale**2, u[None] / scale**2)
    expected = exact_posterior(s, h, g, u, silos, variance, delta, scale, 0.7)
    np.testing.assert_allclose(precision[0], expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.linalg.solve(precision[0], r[0]), expected[1], rtol=1e-6)
    assert (weights == 1.0).all()
    # If the silo's own sums were counted among the others', the precision would be too large.
    counted_twice, _ = oracle.information(
        (a + g)[None], h[None], variance, delta, silos, scale, 0.7
    )
    excess_precision = np.linalg.eigvalsh(counted_twice[0] + g / scale**2 - expected[0])
    assert excess_precision[-1] > 1e-4


def test_information_has_the_right_limits() -> None:
    """Check equal silos, very different silos, and sums without noise."""
    rng, d = keyed_rng(4), 4
    a = random_psd(rng, d)[None]
    h = rng.normal(size=(1, d))
    p, _ = oracle.information(a, h, 2.0, 1e-6, 10, 0.5, 0.0)
    # The matrix is raised to R^4 / (4 Delta^2) here, so that the sums give no information rather
    # than too much.
    assert np.linalg.eigvalsh(p[0])[-1] < 1e-6
    p, _ = oracle.information(a, h, 2.0, 0.0, 10, 0.5, 0.0)
    np.testing.assert_allclose(
        p[0], a[0] @ np.linalg.inv(2 * np.eye(d) + a[0] / 4) @ a[0], rtol=1e-9
    )
    p, _ = oracle.information(1e6 * a, h, 2.0, 0.2, 11, 0.5, 0.0)
    np.testing.assert_allclose(p[0], np.eye(d) / (0.04 * 1.1), rtol=1e-3, atol=1e-3)


def test_information_is_finite_for_indefinite_sums() -> None:
    rng, scale = keyed_rng(5), 0.5
    for delta in oracle.GRID:
        spread = delta**2 * (1 + 1 / 9)
        bad = -(scale**2) / (2 * spread)
        a = np.array(
            [bad * np.eye(3), np.diag([bad, 0.0, -3 * bad]), rng.normal(size=(3, 3)) * bad]
        )
        a = 0.5 * (a + a.transpose(0, 2, 1))
        p, q = oracle.information(a, np.ones((3, 3)), 1e-3, delta, 10, scale, 0.0)
        assert np.isfinite(p).all() and np.isfinite(q).all()
        assert np.linalg.eigvalsh(p).min() > -1e-9 * np.abs(p).max()


def test_evidence_equals_the_density_of_the_silos_rewards() -> None:
    rng, d, n, scale = keyed_rng(6), 3, 8, 0.5
    x, y = rng.normal(size=(n, d)), rng.normal(size=n)
    g, u = x.T @ x / scale**2, x.T @ y / scale**2

    def density(p: np.ndarray, q: np.ndarray) -> float:
        """Return the log density of the rewards under the prior (p, q)."""
        prior = np.linalg.inv(p)
        distribution = stats.multivariate_normal(
            x @ prior @ q, scale**2 * np.eye(n) + x @ prior @ x.T
        )
        return float(distribution.logpdf(y))

    priors = [(random_psd(rng, d), rng.normal(size=d)) for _ in range(4)]
    evidences = [oracle.evidence(p[None], q[None], g[None], u[None])[0] for p, q in priors]
    densities = [density(p, q) for p, q in priors]
    np.testing.assert_allclose(np.diff(evidences), np.diff(densities), rtol=1e-8)
    *_, weights = oracle.mixed([(p[None], q[None]) for p, q in priors], g[None], u[None])
    expected = np.exp(np.array(densities) - max(densities))
    np.testing.assert_allclose(weights[:, 0], expected / expected.sum(), rtol=1e-7)


def test_rank_one_updates_equal_the_full_posterior() -> None:
    rng, d, scale = keyed_rng(7), 4, 0.5
    precision, r = random_psd(rng, d)[None], rng.normal(size=(1, d))
    belief = oracle.Belief.of(precision, r)
    for _ in range(20):
        x, y = rng.normal(size=(1, d)), rng.normal(size=1)
        belief.observe(x, y, scale)
        precision, r = precision + x[:, :, None] * x[:, None] / scale**2, r + x * y / scale**2
    np.testing.assert_allclose(belief.c, np.linalg.inv(precision), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(belief.mean, np.linalg.solve(precision[0], r[0])[None], rtol=1e-8)


# ---- Messages of a silo --------------------------------------------------------------------------

SMALL = oracle.Setting(silos=3, horizon=80, dimension=3, actions=5, until=60, fraction=0.5, first=4)


def run_with_fixed_draws(
    setting: oracle.Setting, changed: tuple[int, int] | None = None
) -> oracle.Outcome:
    """Run the oracle with fixed draws; replace the user of (silo, round) ``changed`` if given."""
    n = 2 * setting.silos
    rng = keyed_rng(8)
    thetas = oracle.turned(rng, 2, setting.silos, setting.dimension, 0.3)
    count = len(
        oracle.release_rounds(
            oracle.shared_rounds(setting.horizon, setting.until, setting.fraction),
            setting.first,
            setting.ratio,
        )
    )
    noises = rng.standard_normal((n, count, setting.dimension + setting.dimension**2))

    def contexts(t: int) -> np.ndarray:
        """Return the contexts of round t; one silo may have changed ones."""
        z = keyed_rng(9, t).standard_normal((n, setting.actions, setting.dimension - 1))
        if changed and changed[1] == t:
            z[changed[0]] = keyed_rng(10).standard_normal(z.shape[1:])
        return (z / np.linalg.norm(z, axis=2, keepdims=True)).astype(np.float32)

    def uniforms(t: int) -> np.ndarray:
        """Return the uniforms that draw the rewards of round t."""
        u = keyed_rng(11, t).random(n)
        if changed and changed[1] == t:
            u[changed[0]] = 1.0 - u[changed[0]]
        return u

    release = oracle.Release(0.7, centred=True, norm=math.sqrt(0.5))
    return oracle.simulate(setting, release, thetas, contexts, uniforms, lambda i: noises[i])


@pytest.mark.parametrize("local_rule", ["gls", "min-of-bounds", "ledger"])
def test_the_transcript_does_not_depend_on_users_of_local_rounds(local_rule: str) -> None:
    """Replace such a user; only later choices of the same silo may change."""
    setting = replace(SMALL, own=local_rule)
    shared = oracle.shared_rounds(setting.horizon, setting.until, setting.fraction)
    reference = run_with_fixed_draws(setting)
    assert len(reference.transcript) == len(reference.releases) > 3
    changed_count = 0
    for t in (1, 7, 33, 59, 70):
        assert not shared[t]
        other_run = run_with_fixed_draws(setting, (1, t))
        changed_count += int((other_run.mean[1] != reference.mean[1]).any())
        for values, other_values in zip(reference.transcript, other_run.transcript, strict=True):
            for array, other_array in zip(values, other_values, strict=True):
                assert array.tobytes() == other_array.tobytes()
    assert changed_count == 5


def test_a_shared_user_changes_only_later_releases() -> None:
    reference = run_with_fixed_draws(SMALL)
    for t in (2, 30, 60):
        other_run = run_with_fixed_draws(SMALL, (1, t))
        for release_round, values, other_values in zip(
            reference.releases, reference.transcript, other_run.transcript, strict=True
        ):
            is_equal = all(
                a.tobytes() == b.tobytes() for a, b in zip(values, other_values, strict=True)
            )
            assert is_equal == (release_round < t)


# ---- Bounds and regret ---------------------------------------------------------------------------


def test_local_bounds_hold() -> None:
    """Check every round of 400 silos that act by these bounds.

    All silos together may fail with probability 1 %.
    """
    rng, n, d, norm = keyed_rng(12), 400, 4, math.sqrt(0.5)
    theta = rng.normal(size=(n, d))
    theta *= norm / np.linalg.norm(theta, axis=1, keepdims=True)
    g, u = np.zeros((n, d, d)), np.zeros((n, d))
    max_ratio = 0.0
    for _ in range(80):
        x = rng.normal(size=(n, 5, d))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        bound = oracle.local_bounds(g, u, norm, n, 0.5)
        mean, width = bound.mean_and_width(x)
        error = np.abs((x @ theta[..., None])[..., 0] - mean)
        assert (error <= width).all()
        max_ratio = max(max_ratio, float((error / width).max()))
        row = x[np.arange(n), (mean + width).argmax(axis=1)]
        y = (rng.random(n) < 0.5 + 0.5 * (row * theta).sum(axis=1)) - 0.5
        g += row[:, :, None] * row[:, None]
        u += row * (y / 0.5)[:, None] * 0.5 + row * (0.5 * (row * theta).sum(axis=1))[:, None]
    assert max_ratio > 0.4


@pytest.mark.slow
def test_regret_allowance_bounds_the_cost_of_a_wrong_belief(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use a belief that is certain of the opposite theta.

    Without the allowance (``ledger``), such a silo chooses the worst action.
    """
    silos, d, horizon = 4, 3, 20_000
    rng = keyed_rng(13)
    thetas = np.tile([[1.0, 0.0]], (silos, 1))

    def wrong_information(a: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        """Return strong information that theta points the opposite way."""
        opposite = np.append(-thetas, np.ones((silos, 1)), axis=1) / math.sqrt(2.0)
        return np.broadcast_to(1e6 * np.eye(d), a.shape), 1e6 * opposite

    monkeypatch.setattr(oracle, "information", wrong_information)
    setting = oracle.Setting(
        silos=silos, horizon=horizon, dimension=d, actions=10, until=50, first=50, ledger=0.5
    )
    release, contexts = oracle.Release(1.0), oracle.pooled(rng, silos, 10, d)
    noises = rng.standard_normal((silos, 1, d + d * d))

    def regret(local_rule: str) -> float:
        """Return the largest regret of a silo in its local rounds."""
        run = oracle.simulate(
            replace(setting, own=local_rule),
            release,
            thetas,
            contexts,
            lambda t: rng.random(silos),
            lambda i: noises[i],
        )
        return float((run.regret[horizon] - run.regret[50]).max())

    local = oracle.local_regret(horizon, d, 1.0, silos, 0.5)
    assert regret("gls") > 1.5 * local
    assert regret("ledger") <= 1.5 * local


@pytest.mark.slow
def test_sharing_first_is_better_than_always_or_never() -> None:
    """Simulate secure sums of 30 silos rotated by 0.4 that share 150 rounds and then learn
    locally."""
    base = oracle.Setting(silos=30, horizon=3000, rotation=0.4, until=150, first=5)
    release = oracle.release_for("secure-sum", oracle.gaussian_mu(1.0, 1e-3), 30, centred=True)
    regret_by_until = {
        until: oracle.group_regret(
            oracle.play(replace(base, until=until), release, 4, 3, pool=True), 30
        )
        for until in (0, 150, 3000)
    }
    assert regret_by_until[150][0] < 0.9 * regret_by_until[0][0]
    assert regret_by_until[150][0] < 0.8 * regret_by_until[3000][0]


# ---- Coins ---------------------------------------------------------------------------------------


def test_a_coin_keeps_the_documented_share_of_the_signal() -> None:
    """Check that the budget is met and that p mu is the documented share."""
    for epsilon, delta, p, signal_share in ((1.0, 1e-3, 0.5, 0.79), (5.0, 1e-5, 0.3, 0.40)):
        mu = oracle.coin_mu(epsilon, delta, p)
        assert oracle.coin_delta(epsilon, p, math.sqrt(1.5) / 2.0, mu) == approx(delta, rel=1e-6)
        assert p * mu / oracle.gaussian_mu(epsilon, delta) == approx(signal_share, abs=0.006)
    assert oracle.absence(centred=False) == approx(math.sqrt(1.5) / 2.0)


def test_absence_is_attained_by_the_extreme_record() -> None:
    """Check that no random centred record, with its entry (c, c), is further from the absent
    one."""
    rng, max_square = keyed_rng(21), 0.0
    for _ in range(3000):
        u = rng.normal(size=3)
        z = math.sqrt(0.5) * u / np.linalg.norm(u) * rng.random() ** 0.1
        x = np.append(z, math.sqrt(1.0 / 6.0))
        y = rng.uniform(-0.5, 0.5)
        max_square = max(max_square, float(x @ x * y * y + (np.outer(x, x) ** 2).sum() / 2.0))
    largest = oracle.absence(centred=True) * 11.0 / 12.0
    assert 0.98 * largest < math.sqrt(max_square) <= largest


def test_coins_decide_which_users_are_shared() -> None:
    """Check that leaves hold the users whose coin allows it; coins of probability 1 equal the
    rule."""
    setting = oracle.Setting(
        silos=3, horizon=40, dimension=3, actions=5, until=30, fraction=0.5, first=5, secret=True
    )
    no_noise = oracle.Release(0.0)
    half_shared = oracle.play(setting, no_noise, 2, 5)
    assert (
        half_shared.releases == oracle.play(replace(setting, fraction=1.0), no_noise, 2, 5).releases
    )
    # The constant's square is 1/2, so that twice the last entry of the Gram matrix counts the
    # users.
    shared = 2.0 * half_shared.transcript[-1][0][:, -1, -1]
    assert ((shared > 25) & (shared < 65)).all() and shared == approx(np.round(shared))
    all_coins = oracle.play(replace(setting, fraction=1.0), no_noise, 2, 5)
    all_by_rule = oracle.play(replace(setting, fraction=1.0, secret=False), no_noise, 2, 5)
    for coin_values, rule_values in zip(all_coins.transcript, all_by_rule.transcript, strict=True):
        np.testing.assert_array_equal(coin_values[0], rule_values[0])
    assert 2.0 * all_by_rule.transcript[-1][0][:, -1, -1] == approx(90.0)
