"""The oracle of own rounds against its model: exact posteriors, bounds, what leaves a silo."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from oracle import own_rounds as oracle
from pytest import approx
from scipy import stats


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([1909, *key])


def random_psd(draw: np.random.Generator, d: int, scale: float = 1.0) -> np.ndarray:
    rows = draw.normal(size=(2 * d, d))
    return scale * rows.T @ rows


# ---- Schedules and noise -------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.3, 0.1, 0.07])
def test_shared_rounds(fraction: float) -> None:
    for until in (0, 1, 33, 60, 100):
        shared = oracle.shared_rounds(60, until, fraction)
        assert not shared[0] and not shared[min(until, 60) + 1 :].any()
        counts = np.cumsum(shared)
        for t in range(min(until, 60) + 1):
            assert counts[t] == math.floor(round(t * fraction, 9))


def test_release_rounds() -> None:
    shared = oracle.shared_rounds(1000, 400, 0.5)
    rounds = oracle.release_rounds(shared, 20, 1.25)
    counts = np.cumsum(shared)[rounds]
    assert shared[rounds].all() and counts[0] == 20 and counts[-1] == 200
    assert (np.diff(counts) > 0).all() and rounds[-1] == 400
    growth = counts[1:-1] / counts[:-2]
    assert (growth > 1.2).all() and (growth < 1.3).all()
    assert oracle.release_rounds(oracle.shared_rounds(9, 0, 1.0), 5, 2.0) == []
    assert oracle.release_rounds(oracle.shared_rounds(9, 3, 1.0), 5, 2.0) == [3]


def test_the_factor_is_optimal() -> None:
    """Below Toeplitz and the trivial factors, and no feasible step makes it smaller."""
    shared = oracle.shared_rounds(4000, 4000, 1.0)
    weights = oracle.release_weights(oracle.release_rounds(shared, 10, 1.5), shared)
    c, b = oracle.optimal_factor(weights)
    count = len(weights)
    prefix = np.tril(np.ones((count, count)))
    np.testing.assert_allclose(b @ c, prefix, atol=1e-9)
    assert (np.triu(c, 1) == 0).all()
    np.testing.assert_allclose(np.linalg.norm(c, axis=0), 1.0, rtol=1e-6)

    def cost(factor: np.ndarray) -> float:
        unit = factor / np.linalg.norm(factor, axis=0).max()
        return float(weights @ ((prefix @ np.linalg.inv(unit)) ** 2).sum(axis=1))

    series = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, count))])
    toeplitz = np.array(
        [[series[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)]
    )
    assert cost(c) < min(cost(toeplitz), cost(np.eye(count)), cost(prefix))

    w = prefix.T @ np.diag(weights) @ prefix
    x = c.T @ c
    least = np.trace(w @ np.linalg.inv(x))
    assert least == approx(cost(c), rel=1e-6)
    draw = keyed(1)
    for _ in range(50):
        step = draw.normal(size=(count, count)) * 1e-3
        step = step + step.T
        np.fill_diagonal(step, -np.abs(draw.normal(size=count)) * 1e-4)
        if np.linalg.eigvalsh(x + step)[0] > 0:
            assert np.trace(w @ np.linalg.inv(x + step)) > least * (1 - 1e-9)


def test_noise_of_a_silo() -> None:
    """Over releases its covariance is B B'; the matrix is goe2 and its last entry 0."""
    draw, d, b = keyed(2), 3, np.array([[1.0, 0.0], [0.6, 0.9]])
    release = oracle.Release(2.0, centred=True)
    made = np.array(
        [oracle.noise_of(draw.standard_normal((2, d + d * d)), release, b, d) for _ in range(20000)]
    )
    np.testing.assert_allclose(np.cov(made[:, :, 0].T), 4.0 * b @ b.T, rtol=0.06)
    matrix = made[:, 1, d:].reshape(-1, d, d)
    assert (matrix == matrix.transpose(0, 2, 1)).all() and (matrix[:, 2, 2] == 0).all()
    rows = 4.0 * (b[1] ** 2).sum()
    assert matrix[:, 0, 1].var() == approx(rows, rel=0.06)
    assert matrix[:, 0, 0].var() == approx(2.0 * rows, rel=0.06)
    # sigma_k^2 is the variance of an entry of h - N theta, but for theta's own direction.
    theta = np.array([0.5, 0.0, 0.5])
    residual = made[:, 1, :d] - matrix @ theta
    release = replace(release, norm=float(np.linalg.norm(theta)))
    expected = oracle.noise_variance(release, b, 7)[1] / 7.0
    assert residual[:, 1].var() == approx(expected, rel=0.06)


def test_gaussian_mu() -> None:
    for epsilon, delta in ((1.0, 1e-3), (5.0, 1e-5), (0.1, 1e-8)):
        mu = oracle.gaussian_mu(epsilon, delta)
        upper = stats.norm.cdf(mu / 2 - epsilon / mu)
        found = upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert found == approx(delta, rel=1e-6)


# ---- Beliefs -------------------------------------------------------------------------------------


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
    """Precision and mean of theta_0 from the joint Gaussian of theta, theta_0, .., theta_(M-1).

    theta is flat, theta_j = theta + N(0, Delta^2 I). Each of the others has the sums S; h is the
    sum of theirs, with noise of variance sigma^2 I besides that of the rewards.
    """
    d = len(h)
    precision, linear = np.zeros((d * (silos + 1),) * 2), np.zeros(d * (silos + 1))

    def at(j: int) -> slice:
        return slice(d * (j + 1), d * (j + 2))

    common = slice(0, d)
    for j in range(silos):
        for one, other, sign in ((common, common, 1), (at(j), at(j), 1), (common, at(j), -1)):
            precision[one, other] += sign * np.eye(d) / delta**2
            if sign < 0:
                precision[other, one] += sign * np.eye(d) / delta**2
    design = np.zeros((d, d * (silos + 1)))
    for j in range(1, silos):
        design[:, at(j)] = s
    inverse = np.linalg.inv(variance * np.eye(d) + scale**2 * (silos - 1) * s)
    precision += design.T @ inverse @ design
    linear += design.T @ inverse @ h
    precision[at(0), at(0)] += g / scale**2 + prior * np.eye(d)
    linear[at(0)] += u / scale**2
    covariance = np.linalg.inv(precision)
    return np.linalg.inv(covariance[at(0), at(0)]), (covariance @ linear)[at(0)]


@pytest.mark.parametrize("silos", [2, 3, 6])
@pytest.mark.parametrize("delta", [0.05, 0.3, 2.0])
def test_a_silos_belief_is_the_exact_posterior(silos: int, delta: float) -> None:
    """Of the model without noise in the matrix, where the others' sums are alike."""
    draw, d, scale = keyed(3, silos), 3, 0.5
    s, g = random_psd(draw, d), random_psd(draw, d, 0.5)
    h, u, variance = draw.normal(size=d), draw.normal(size=d), 8.0
    a = (silos - 1) * s
    p, q = oracle.information(a[None], h[None], variance, delta, silos, scale, 0.7)
    precision, r, weights = oracle.mixed([(p, q)], g[None] / scale**2, u[None] / scale**2)
    expected = exact_posterior(s, h, g, u, silos, variance, delta, scale, 0.7)
    np.testing.assert_allclose(precision[0], expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.linalg.solve(precision[0], r[0]), expected[1], rtol=1e-6)
    assert (weights == 1.0).all()
    # With its own sums among the others' the silo would be surer than it may be.
    twice, _ = oracle.information((a + g)[None], h[None], variance, delta, silos, scale, 0.7)
    surer = np.linalg.eigvalsh(twice[0] + g / scale**2 - expected[0])
    assert surer[-1] > 1e-4


def test_information_has_the_right_ends() -> None:
    """Silos alike: what one sum says. Far apart: at most 1 / Delta^2. No noise: at most theirs."""
    draw, d = keyed(4), 4
    a = random_psd(draw, d)[None]
    h = draw.normal(size=(1, d))
    p, _ = oracle.information(a, h, 2.0, 1e-6, 10, 0.5, 0.0)
    # Mat is raised to R^4 / (4 Delta^2) here: the sums say nothing rather than too much.
    assert np.linalg.eigvalsh(p[0])[-1] < 1e-6
    p, _ = oracle.information(a, h, 2.0, 0.0, 10, 0.5, 0.0)
    np.testing.assert_allclose(
        p[0], a[0] @ np.linalg.inv(2 * np.eye(d) + a[0] / 4) @ a[0], rtol=1e-9
    )
    p, _ = oracle.information(1e6 * a, h, 2.0, 0.2, 11, 0.5, 0.0)
    np.testing.assert_allclose(p[0], np.eye(d) / (0.04 * 1.1), rtol=1e-3, atol=1e-3)


def test_the_middle_matrix_is_positive_definite_whatever_was_released() -> None:
    draw, scale = keyed(5), 0.5
    for delta in oracle.GRID:
        spread = delta**2 * (1 + 1 / 9)
        bad = -(scale**2) / (2 * spread)
        a = np.array(
            [bad * np.eye(3), np.diag([bad, 0.0, -3 * bad]), draw.normal(size=(3, 3)) * bad]
        )
        a = 0.5 * (a + a.transpose(0, 2, 1))
        p, q = oracle.information(a, np.ones((3, 3)), 1e-3, delta, 10, scale, 0.0)
        assert np.isfinite(p).all() and np.isfinite(q).all()
        assert np.linalg.eigvalsh(p).min() > -1e-9 * np.abs(p).max()


def test_evidence_is_the_density_of_the_silos_own_rewards() -> None:
    draw, d, n, scale = keyed(6), 3, 8, 0.5
    x, y = draw.normal(size=(n, d)), draw.normal(size=n)
    g, u = x.T @ x / scale**2, x.T @ y / scale**2

    def density(p: np.ndarray, q: np.ndarray) -> float:
        prior = np.linalg.inv(p)
        law = stats.multivariate_normal(x @ prior @ q, scale**2 * np.eye(n) + x @ prior @ x.T)
        return float(law.logpdf(y))

    made = [(random_psd(draw, d), draw.normal(size=d)) for _ in range(4)]
    found = [oracle.evidence(p[None], q[None], g[None], u[None])[0] for p, q in made]
    exact = [density(p, q) for p, q in made]
    np.testing.assert_allclose(np.diff(found), np.diff(exact), rtol=1e-8)
    *_, weights = oracle.mixed([(p[None], q[None]) for p, q in made], g[None], u[None])
    expected = np.exp(np.array(exact) - max(exact))
    np.testing.assert_allclose(weights[:, 0], expected / expected.sum(), rtol=1e-7)


def test_beliefs_are_updated_by_one_rank() -> None:
    draw, d, scale = keyed(7), 4, 0.5
    precision, r = random_psd(draw, d)[None], draw.normal(size=(1, d))
    belief = oracle.Belief.of(precision, r)
    for _ in range(20):
        x, y = draw.normal(size=(1, d)), draw.normal(size=1)
        belief.observe(x, y, scale)
        precision, r = precision + x[:, :, None] * x[:, None] / scale**2, r + x * y / scale**2
    np.testing.assert_allclose(belief.c, np.linalg.inv(precision), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(belief.mean, np.linalg.solve(precision[0], r[0])[None], rtol=1e-8)


# ---- What leaves a silo --------------------------------------------------------------------------

SMALL = oracle.Setting(silos=3, horizon=80, dimension=3, actions=5, until=60, fraction=0.5, first=4)


def played(setting: oracle.Setting, changed: tuple[int, int] | None = None) -> oracle.Outcome:
    """A run with fixed draws, the user of (silo, round) replaced by another one if told."""
    s = setting
    n = 2 * s.silos
    draw = keyed(8)
    thetas = oracle.turned(draw, 2, s.silos, s.dimension, 0.3)
    count = len(
        oracle.release_rounds(
            oracle.shared_rounds(s.horizon, s.until, s.fraction), s.first, s.ratio
        )
    )
    noises = draw.standard_normal((n, count, s.dimension + s.dimension**2))

    def contexts(t: int) -> np.ndarray:
        z = keyed(9, t).standard_normal((n, s.actions, s.dimension - 1))
        if changed and changed[1] == t:
            z[changed[0]] = keyed(10).standard_normal(z.shape[1:])
        return (z / np.linalg.norm(z, axis=2, keepdims=True)).astype(np.float32)

    def uniforms(t: int) -> np.ndarray:
        u = keyed(11, t).random(n)
        if changed and changed[1] == t:
            u[changed[0]] = 1.0 - u[changed[0]]
        return u

    release = oracle.Release(0.7, centred=True, norm=math.sqrt(0.5))
    return oracle.simulate(s, release, thetas, contexts, uniforms, lambda i: noises[i])


@pytest.mark.parametrize("own", ["gls", "min-of-bounds", "ledger"])
def test_users_of_own_rounds_are_not_in_the_transcript(own: str) -> None:
    """Replacing one changes the silo's later play and no bit of what is public."""
    setting = replace(SMALL, own=own)
    shared = oracle.shared_rounds(setting.horizon, setting.until, setting.fraction)
    reference = played(setting)
    assert len(reference.transcript) == len(reference.releases) > 3
    private = 0
    for t in (1, 7, 33, 59, 70):
        assert not shared[t]
        other = played(setting, (1, t))
        private += int((other.mean[1] != reference.mean[1]).any())
        for one, two in zip(reference.transcript, other.transcript, strict=True):
            for mine, theirs in zip(one, two, strict=True):
                assert mine.tobytes() == theirs.tobytes()
    assert private == 5


def test_a_shared_user_is_in_the_releases_from_its_own_on() -> None:
    reference = played(SMALL)
    for t in (2, 30, 60):
        other = played(SMALL, (1, t))
        for released, one, two in zip(
            reference.releases, reference.transcript, other.transcript, strict=True
        ):
            same = all(a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True))
            assert same == (released < t)


# ---- Bounds and regret ---------------------------------------------------------------------------


def test_local_bounds_hold() -> None:
    """In every round of 400 silos that play by them; 1 per cent may fail, all silos together."""
    draw, n, d, norm = keyed(12), 400, 4, math.sqrt(0.5)
    theta = draw.normal(size=(n, d))
    theta *= norm / np.linalg.norm(theta, axis=1, keepdims=True)
    g, u = np.zeros((n, d, d)), np.zeros((n, d))
    tight = 0.0
    for _ in range(80):
        x = draw.normal(size=(n, 5, d))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        bound = oracle.local_bounds(g, u, norm, n, 0.5)
        mean, width = bound.mean_and_width(x)
        error = np.abs((x @ theta[..., None])[..., 0] - mean)
        assert (error <= width).all()
        tight = max(tight, float((error / width).max()))
        row = x[np.arange(n), (mean + width).argmax(axis=1)]
        y = (draw.random(n) < 0.5 + 0.5 * (row * theta).sum(axis=1)) - 0.5
        g += row[:, :, None] * row[:, None]
        u += row * (y / 0.5)[:, None] * 0.5 + row * (0.5 * (row * theta).sum(axis=1))[:, None]
    assert tight > 0.4


@pytest.mark.slow
def test_the_ledger_bounds_what_a_wrong_belief_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A belief that is sure of the opposite theta plays the worst action, without the ledger."""
    silos, d, horizon = 4, 3, 20_000
    draw = keyed(13)
    thetas = np.tile([[1.0, 0.0]], (silos, 1))

    def wrong(a: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        opposite = np.append(-thetas, np.ones((silos, 1)), axis=1) / math.sqrt(2.0)
        return np.broadcast_to(1e6 * np.eye(d), a.shape), 1e6 * opposite

    monkeypatch.setattr(oracle, "information", wrong)
    setting = oracle.Setting(
        silos=silos, horizon=horizon, dimension=d, actions=10, until=50, first=50, ledger=0.5
    )
    release, contexts = oracle.Release(1.0), oracle.pooled(draw, silos, 10, d)
    noises = draw.standard_normal((silos, 1, d + d * d))

    def regret(own: str) -> float:
        made = oracle.simulate(
            replace(setting, own=own),
            release,
            thetas,
            contexts,
            lambda t: draw.random(silos),
            lambda i: noises[i],
        )
        return float((made.regret[horizon] - made.regret[50]).max())

    local = oracle.local_regret(horizon, d, 1.0, silos, 0.5)
    assert regret("gls") > 1.5 * local
    assert regret("ledger") <= 1.5 * local


@pytest.mark.slow
def test_sharing_first_beats_both_ends_where_silos_differ() -> None:
    """Secure sums, 30 silos turned by 0.4: share 150 rounds, then own rounds."""
    base = oracle.Setting(silos=30, horizon=3000, rotation=0.4, until=150, first=5)
    release = oracle.release_for("secure-sum", oracle.gaussian_mu(1.0, 1e-3), 30, centred=True)
    found = {
        until: oracle.group_regret(
            oracle.play(replace(base, until=until), release, 4, 3, pool=True), 30
        )
        for until in (0, 150, 3000)
    }
    assert found[150][0] < 0.9 * found[0][0]
    assert found[150][0] < 0.8 * found[3000][0]


# ---- Coins ---------------------------------------------------------------------------------------


def test_a_coin_keeps_what_the_page_says() -> None:
    """The budget is met, and p mu is the part of the signal that the page says is kept."""
    for epsilon, delta, p, kept in ((1.0, 1e-3, 0.5, 0.79), (5.0, 1e-5, 0.3, 0.40)):
        mu = oracle.coin_mu(epsilon, delta, p)
        assert oracle.coin_delta(epsilon, p, math.sqrt(1.5) / 2.0, mu) == approx(delta, rel=1e-6)
        assert p * mu / oracle.gaussian_mu(epsilon, delta) == approx(kept, abs=0.006)
    assert oracle.absence(centred=False) == approx(math.sqrt(1.5) / 2.0)


def test_absence_is_that_of_the_extreme_record() -> None:
    """No drawn centred record is further from nothing, and its (c, c) is part of it."""
    draw, far = keyed(21), 0.0
    for _ in range(3000):
        u = draw.normal(size=3)
        z = math.sqrt(0.5) * u / np.linalg.norm(u) * draw.random() ** 0.1
        x = np.append(z, math.sqrt(1.0 / 6.0))
        y = draw.uniform(-0.5, 0.5)
        far = max(far, float(x @ x * y * y + (np.outer(x, x) ** 2).sum() / 2.0))
    most = oracle.absence(centred=True) * 11.0 / 12.0
    assert 0.98 * most < math.sqrt(far) <= most


def test_coins_decide_which_users_enter() -> None:
    """Leaves hold those whose coin said so; coins of probability 1 are the rule itself."""
    setting = oracle.Setting(
        silos=3, horizon=40, dimension=3, actions=5, until=30, fraction=0.5, first=5, secret=True
    )
    quiet = oracle.Release(0.0)
    half = oracle.play(setting, quiet, 2, 5)
    assert half.releases == oracle.play(replace(setting, fraction=1.0), quiet, 2, 5).releases
    # The constant's square is 1/2: the last entry of the Gram matrix counts users.
    shared = 2.0 * half.transcript[-1][0][:, -1, -1]
    assert ((shared > 25) & (shared < 65)).all() and shared == approx(np.round(shared))
    certain = oracle.play(replace(setting, fraction=1.0), quiet, 2, 5)
    plain = oracle.play(replace(setting, fraction=1.0, secret=False), quiet, 2, 5)
    for a, b in zip(certain.transcript, plain.transcript, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    assert 2.0 * plain.transcript[-1][0][:, -1, -1] == approx(90.0)
