"""Oracle for local ("own") rounds: silos share only some of their rounds (docs/own-rounds.md).

Everything is written from that page, for all silos of all replicates at once. The action of a
shared round is a function of its context and the public transcript, and its (x, y) enters the
silo's leaf. The action of an own round may use all raw data of its silo, and its (x, y) stays
there.

Indices: n silos of all replicates together, K actions, d features. Random numbers are arguments:
contexts(t) gives unit vectors (n, K, d - 1), and uniforms(t) numbers in [0, 1) for the rewards
(n,). Further, noise(n) gives standard normals (releases, d + d^2) of a silo. If coins decide which
users are shared, coins(t) gives numbers in [0, 1) (n,). The environment is the sphere rotated by
`rotation` at each silo. As a script with an angle (or "few") and "centred" or "uncentred" this
module prints a part of that page's tables.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

GRID = (0.08, 0.16, 0.32, 0.64)

# ---- The schedule, known in advance --------------------------------------------------------------


def shared_rounds(horizon: int, until: int, fraction: float) -> np.ndarray:
    """Return true for each shared round 1..T, at [t].

    A round is shared if t <= until and floor(t p) > floor((t - 1) p).
    """
    t = np.arange(horizon + 1)
    # Sums of p have rounding errors: 0.1 * 30 is 3.0000000000000004.
    parts = np.floor(t * fraction + 1e-9)
    shared = np.zeros(horizon + 1, bool)
    shared[1:] = (parts[1:] > parts[:-1]) & (t[1:] <= until)
    return shared


def certain_rounds(horizon: int, until: int, fraction: float, secret: bool) -> np.ndarray:
    """Return the rounds known in advance: `shared_rounds`, or all rounds in which a coin is
    tossed."""
    return shared_rounds(horizon, until, 1.0 if secret else fraction)


def release_rounds(shared: np.ndarray, first: int, ratio: float) -> list[int]:
    """Return the rounds of releases.

    The first release is after `first` shared rounds. Each later release is when the number of
    shared rounds has grown by the factor `ratio`. The last shared round is always a release round.
    """
    counts = np.cumsum(shared)
    total = int(counts[-1])
    marks, mark = [], min(first, total)
    while 0 < mark < total:
        marks.append(mark)
        mark = max(mark + 1, round(mark * ratio))
    marks += [total] if total else []
    return [int(np.searchsorted(counts, mark)) for mark in marks]


def release_weights(rounds: list[int], shared: np.ndarray, last: float = 3.0) -> np.ndarray:
    """Return om_k = L_(k+1) / n_k^2: rounds that use release k, over its shared rounds squared.

    Since there may be many own rounds after the last release, it counts for at most `last` times
    the rounds before it.
    """
    counts = np.cumsum(shared)[rounds].astype(float)
    lengths = np.diff(np.append(rounds, len(shared) - 1)).astype(float)
    lengths[-1] = max(1.0, min(lengths[-1], last * rounds[-1]))
    return lengths / counts**2


def optimal_factor(weights: np.ndarray, steps: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Return (C, B) with B C the prefix matrix and the least sum of om_k ||B_k||^2.

    C has columns of norm 1. For X = C'C the problem is min tr(W X^-1) with diag X <= 1 and W = A'
    diag(om) A. Its solution is the fixed point v <- v diag(X), X = v^-1/2 (v^1/2 W v^1/2)^1/2
    v^-1/2. C is the reverse Cholesky factor of X.
    """
    count = len(weights)
    prefix = np.tril(np.ones((count, count)))
    w = prefix.T @ np.diag(weights) @ prefix
    v = np.sqrt(np.diag(w))
    for _ in range(steps):
        root = np.sqrt(v)
        values, vectors = np.linalg.eigh(root[:, None] * w * root[None])
        x = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / root[:, None] / root[None]
        v = v * np.diag(x)
        if np.abs(np.diag(x) - 1.0).max() < 1e-10:
            break
    backwards = np.linalg.cholesky((x / np.diag(x).max())[::-1, ::-1])
    c = backwards.T[::-1, ::-1]
    return c, prefix @ np.linalg.inv(c)


# ---- Privacy: size of the noise ------------------------------------------------------------------


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return mu of a Gaussian mechanism that is (epsilon, delta)-private (Balle & Wang 2018)."""

    def excess(mu: float) -> float:
        """Return delta at epsilon of Gaussian DP with mu, minus the allowed delta."""
        upper = 0.5 * math.erfc((epsilon / mu - mu / 2.0) / math.sqrt(2.0))
        lower = 0.5 * math.erfc((epsilon / mu + mu / 2.0) / math.sqrt(2.0))
        return upper - math.exp(epsilon) * lower - delta

    low, high = 1e-6, 50.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
    return low


def coin_delta(epsilon: float, p: float, zeta: float, mu: float) -> float:
    """Return delta of a release that a user enters by a secret coin (docs/own-rounds.md, "The
    coin")."""

    def gaussian(e: float, m: float) -> float:
        """Return delta at e of Gaussian DP with m."""
        upper = 0.5 * math.erfc((e / m - m / 2.0) / math.sqrt(2.0))
        return upper - math.exp(e) * 0.5 * math.erfc((e / m + m / 2.0) / math.sqrt(2.0))

    inner = math.log(1.0 + (math.exp(epsilon) - 1.0) / p)
    b = math.exp(epsilon - inner)
    mixed = (1.0 - b) * gaussian(inner, zeta * mu) + b * gaussian(inner, mu)
    return p * min(gaussian(epsilon, mu), mixed)


def absence(centred: bool, kappa: float = 3.0) -> float:
    """Return zeta in layout goe2 with one noise for both streams, by the extreme record (x y, x
    x').

    If not centred, ||x|| = |y| = 1, and the largest change is 2. If centred, ||z||^2 = 1/2 and |y|
    = 1/2, and the constant c has c^2 = 1 / (2 kappa). The largest change is then 11/12 for kappa =
    3, where c^2 does not change.
    """
    if not centred:
        return math.sqrt(1.0 + 1.0 / 2.0) / 2.0
    z2, c2 = 0.5, 0.5 / kappa
    matrix = (z2**2 + 2.0 * c2 * z2 + c2**2) / 2.0
    return math.sqrt((z2 + c2) / 4.0 + matrix) / (11.0 / 12.0)


def coin_mu(epsilon: float, delta: float, p: float, zeta: float = math.sqrt(1.5) / 2.0) -> float:
    """Return mu of a release that is (epsilon, delta)-private with a secret coin.

    zeta is the change by absence over the change by replacement.
    """
    low, high = 1e-6, 50.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        keeps = coin_delta(epsilon, p, zeta, middle) <= delta
        low, high = (middle, high) if keeps else (low, middle)
    return low


@dataclass(frozen=True)
class Release:
    """The release of a silo's sums.

    `std` is the standard deviation of each entry of a silo's own noise; on the diagonal of the
    matrix it is sqrt(2) times as large (goe2). `centred` means rewards minus 1/2 and the constant
    scaled to 1/sqrt(2 kappa), with public square. `norm` is the bound on ||theta*||, or on ||theta*
    - theta0|| if centred, in those coordinates.
    """

    std: float
    centred: bool = False
    kappa: float = 3.0
    norm: float = 1.0

    @property
    def constant(self) -> float:
        """The constant feature."""
        return math.sqrt(0.5 / self.kappa) if self.centred else math.sqrt(0.5)

    @property
    def centre(self) -> float:
        """The number subtracted from every reward."""
        return 0.5 if self.centred else 0.0


def release_for(
    trust: str, mu: float, silos: int, *, centred: bool, colluders: int | None = None
) -> Release:
    """Return the release of one silo, with noise s = D / mu for "silo-ldp" and s / sqrt(M - t) for
    "secure-sum".

    D = 2 for x y and x x' with ||x|| <= 1, |y| <= 1; D = 11/12 if centred, with kappa = 3.
    """
    s = (11.0 / 12.0 if centred else 2.0) / mu if mu < math.inf else 0.0
    if trust == "secure-sum":
        s /= math.sqrt(silos - (silos // 3 if colluders is None else colluders))
    return Release(s, centred, norm=math.sqrt(0.5) if centred else 1.0)


def noise_of(
    draw: np.ndarray, release: Release, factor: np.ndarray, d: int, secret: bool = False
) -> np.ndarray:
    """Return the noise of a silo's prefixes, (K, d + d^2): B z, z_k = std (vector, symmetric
    matrix).

    The count of users is the last entry of centred sums. It has no noise unless secret coins decide
    it.
    """
    count = len(factor)
    matrix = draw[:, d:].reshape(count, d, d)
    matrix = (matrix + matrix.transpose(0, 2, 1)) / math.sqrt(2.0)
    if release.centred and not secret:
        matrix[:, -1, -1] = 0.0
    z = np.concatenate([draw[:, :d], matrix.reshape(count, d * d)], axis=1)
    return release.std * factor @ z


# ---- Beliefs of silos ----------------------------------------------------------------------------


def noise_variance(release: Release, factor: np.ndarray, silos: int) -> np.ndarray:
    """Return sigma_k^2, the variance of each entry of h - N theta at each release, for this number
    of silos."""
    return silos * release.std**2 * (factor**2).sum(axis=1) * (1.0 + release.norm**2)


def information(
    a: np.ndarray,
    h: np.ndarray,
    variance: float,
    deviation: float,
    silos: int,
    scale: float,
    prior: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (P, q), the information of the other silos' sums about theta_i.

    P is a precision, and q is the precision times the mean. The arguments a (n, d, d) and h (n, d)
    are the released sums of the other silos, and Delta is `deviation`. The residual h - a theta_i
    has the covariance Mat = sigma^2 I + R^2 a + Delta^2 (1 + 1/(M - 1)) a^2, so that P = a Mat^-1 a
    and q = a Mat^-1 h. The prior I is added to P. Mat is positive definite for every a, since
    sigma^2 is raised to R^4 / (4 Delta^2) if necessary. Without noise a is positive semidefinite.
    """
    d = a.shape[-1]
    spread = deviation**2 * (1.0 + 1.0 / max(1, silos - 1))
    floor = 1.01 * scale**4 / (4.0 * spread) if spread and variance else 1e-9
    mat = max(variance, floor) * np.eye(d) + scale**2 * a + spread * a @ a
    solved = np.linalg.solve(mat, np.concatenate([a, h[..., None]], axis=-1))
    p = a @ solved[..., :d]
    return 0.5 * (p + np.swapaxes(p, -1, -2)) + prior * np.eye(d), (a @ solved[..., d:])[..., 0]


def evidence(p: np.ndarray, q: np.ndarray, g: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return ln p(own data | P, q) up to a constant; g and u are a silo's raw sums over R^2."""
    after, toward = p + g, q + u

    def quadratic(m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return v' M^-1 v for each matrix and vector."""
        return (v * np.linalg.solve(m, v[..., None])[..., 0]).sum(axis=-1)

    determinants = np.linalg.slogdet(p)[1] - np.linalg.slogdet(after)[1]
    return 0.5 * (determinants + quadratic(after, toward) - quadratic(p, q))


def mixed(
    candidates: list[tuple[np.ndarray, np.ndarray]], g: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the posterior precision, its product with the mean, and the evidence weights
    (.., n)."""
    log_evidence = np.array([evidence(p, q, g, u) for p, q in candidates])
    weights = np.exp(log_evidence - log_evidence.max(axis=0))
    weights /= weights.sum(axis=0)
    p = sum(w[:, None, None] * c[0] for w, c in zip(weights, candidates, strict=True))
    q = sum(w[:, None] * c[1] for w, c in zip(weights, candidates, strict=True))
    return p + g, q + u, weights


@dataclass
class Belief:
    """Covariance C (n, d, d), precision times mean r (n, d) and mean of every silo."""

    c: np.ndarray
    r: np.ndarray

    @classmethod
    def of(cls, precision: np.ndarray, r: np.ndarray) -> Belief:
        """Return the belief with this precision and precision times mean."""
        return cls(np.linalg.inv(precision), r.copy())

    @property
    def mean(self) -> np.ndarray:
        """The mean of theta."""
        return (self.c @ self.r[..., None])[..., 0]

    def observe(self, x: np.ndarray, y: np.ndarray, scale: float) -> None:
        """Add x x' / R^2 to the precision and x y / R^2 to r, by Sherman and Morrison."""
        cx = (self.c @ x[..., None])[..., 0]
        self.c -= cx[:, :, None] * cx[:, None, :] / (scale**2 + (cx * x).sum(1))[:, None, None]
        self.r += x * y[:, None] / scale**2


# ---- Bounds --------------------------------------------------------------------------------------


@dataclass
class Bound:
    """<x, theta> + m (beta ||x||_{V^-1} + gamma ||V^-1 x||), one for each silo."""

    inverse: np.ndarray
    theta: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray

    def mean_and_width(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the bonus of every action."""
        x64 = x.astype(np.float64)
        vx = x64 @ self.inverse
        width = self.beta[:, None] * np.sqrt(np.einsum("nkd,nkd->nk", x64, vx))
        width += self.gamma[:, None] * np.sqrt(np.einsum("nkd,nkd->nk", vx, vx))
        return (x64 @ self.theta[..., None])[..., 0], width


def direct_bounds(
    a: np.ndarray, h: np.ndarray, stds: np.ndarray, k: int, release: Release, scale: float
) -> Bound:
    """Return the direct radius (docs/radius.md) after release k, of public sums a (r, d, d), h (r,
    d).

    `stds` are the standard deviations of an entry of the public noise at every release. n_k and E_k
    are closed bounds: ||GOE|| <= 2 sqrt d + t except with probability exp(-t^2 / 4), and ||normal||
    <= sqrt d + t except with probability exp(-t^2 / 2). The failure probability is 0.01: a quarter
    for each of them and half for the rewards.
    """
    d, tail = a.shape[-1], math.log(4.0 * len(stds) / 0.01)
    n = stds * (2.0 * math.sqrt(d) + 2.0 * math.sqrt(tail))
    error = stds[k] * math.sqrt(1.0 + release.norm**2) * (math.sqrt(d) + math.sqrt(2.0 * tail))
    c = max(1.0, 0.1 * n.max())
    full = n[k] + c
    least = np.linalg.eigvalsh(a)[:, 0]
    steps = np.ceil(np.clip((full - least) / full, 0.0, 1.0) * 8.0) / 8.0
    lam = full * steps
    f = np.where(lam >= full, 1.0, 1.0 + (full - lam) / full)
    # V is not positive definite only if event 1 fails; this is the shift that the code also uses.
    shift = np.maximum(0.0, 1e-9 + 1e-3 * full - (least + lam))
    v = a + (lam + shift)[:, None, None] * np.eye(d)
    logs = 2.0 * math.log(2.0 / 0.01) + np.linalg.slogdet(v)[1] + d * np.log(f / c)
    inverse = np.linalg.inv(v)
    return Bound(
        inverse,
        (inverse @ h[..., None])[..., 0],
        scale * np.sqrt(f * np.maximum(logs, 0.0)),
        (lam + shift) * release.norm + error,
    )


def local_bounds(
    g: np.ndarray, u: np.ndarray, norm: float, silos: int, scale: float, lam: float = 1.0
) -> Bound:
    """Return LinUCB (Abbasi-Yadkori et al. 2011, Theorem 2) of raw sums, for M silos at once."""
    d = g.shape[-1]
    v = g + lam * np.eye(d)
    inverse = np.linalg.inv(v)
    logs = 2.0 * math.log(silos / 0.01) + np.linalg.slogdet(v)[1] - d * math.log(lam)
    beta = scale * np.sqrt(logs) + math.sqrt(lam) * norm
    return Bound(inverse, (inverse @ u[..., None])[..., 0], beta, np.zeros(len(g)))


# ---- The federation ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One federation: its sizes, what is shared, and how own rounds are played.

    `own` is "gls", "min-of-bounds" or "ledger". The ledger uses gls as long as its possible loss,
    by the local bound, is at most `ledger` times that bound's regret, and else the local bound.
    `shared_multiplier` is the factor on the direct radius in shared rounds. `bound_multiplier` is
    that on both bounds in own rounds; bounds are proven for 1. `own_bonus` is the factor on the
    posterior's standard deviation. With `secret`, coins of probability `fraction` replace the rule
    that `fraction` of rounds are shared.
    """

    silos: int = 20
    horizon: int = 1000
    dimension: int = 10
    actions: int = 100
    rotation: float = 0.0
    until: int = 200
    fraction: float = 1.0
    first: int = 20
    ratio: float = 1.25
    own: str = "gls"
    grid: tuple[float, ...] = GRID
    shared_multiplier: float = 0.1
    bound_multiplier: float = 1.0
    own_bonus: float = 0.5
    ledger: float = 1.0
    scale: float = 0.5
    secret: bool = False


@dataclass
class Outcome:
    """Regret (n,) by checkpoint, the public transcript by release, and the last beliefs."""

    regret: dict[int, np.ndarray]
    transcript: list[tuple[np.ndarray, np.ndarray]]
    releases: list[int]
    weights: np.ndarray
    mean: np.ndarray


def simulate(
    setting: Setting,
    release: Release,
    thetas: np.ndarray,
    contexts: Callable[[int], np.ndarray],
    uniforms: Callable[[int], np.ndarray],
    noise: Callable[[int], np.ndarray],
    coins: Callable[[int], np.ndarray] | None = None,
) -> Outcome:
    """Simulate replicates of a federation.

    thetas (n, d - 1) has unit vectors v_i, with n = replicates times silos.
    """
    s, d, m = setting, setting.dimension, setting.silos
    n, all_n = len(thetas), np.arange(len(thetas))
    replicates = n // m
    shared = certain_rounds(s.horizon, s.until, s.fraction, s.secret)
    rounds = release_rounds(shared, s.first, s.ratio)
    factor = optimal_factor(release_weights(rounds, shared))[1] if rounds else np.zeros((0, 0))
    added = np.array([noise_of(noise(i), release, factor, d, s.secret) for i in range(n)])
    entry_stds = release.std * np.sqrt(m * (factor**2).sum(axis=1))
    other_noise = noise_variance(release, factor, m - 1)

    leaves, leaf_bias = np.zeros((n, d, d)), np.zeros((n, d))  # sums of all shared rounds so far
    g, u = np.zeros((n, d, d)), np.zeros((n, d))  # raw sums of all rounds of a silo
    prior = np.broadcast_to(d * np.eye(d), (n, d, d))
    sources = [(prior, np.zeros((n, d)))]
    belief, weights = Belief.of(prior, np.zeros((n, d))), np.ones((1, n))
    public: Bound | None = None
    transcript: list[tuple[np.ndarray, np.ndarray]] = []
    regret, spent = np.zeros(n), np.zeros(n)
    regret_at: dict[int, np.ndarray] = {}

    for t in range(1, s.horizon + 1):
        z = contexts(t)
        x = np.empty((n, s.actions, d), np.float32)
        x[:, :, :-1] = z * np.float32(math.sqrt(0.5))
        x[:, :, -1] = release.constant
        enters = np.full(n, shared[t])
        if s.secret and coins is not None:
            enters &= coins(t) < s.fraction
        if not enters.all():
            if s.own == "min-of-bounds":
                mean, width = local_bounds(g, u, release.norm, m, s.scale).mean_and_width(x)
                scores = mean + s.bound_multiplier * width
                if public is not None:
                    mean, width = public.mean_and_width(x)
                    scores = np.minimum(scores, mean + s.bound_multiplier * width)
            else:
                scores = (x @ belief.mean.astype(np.float32)[..., None])[..., 0]
                if s.own_bonus:
                    scaled = x @ np.linalg.cholesky(belief.c).astype(np.float32)
                    scores = scores + s.own_bonus * np.sqrt(
                        np.einsum("nkd,nkd->nk", scaled, scaled)
                    )
            own_scores = scores
        if enters.any():
            if public is None:
                scores = np.tile(
                    np.arange(s.actions, 0, -1.0), (n, 1)
                )  # the first action: all scores are equal
            else:
                mean, width = public.mean_and_width(x)
                scores = mean + s.shared_multiplier * width
            if not enters.all():
                scores = np.where(enters[:, None], scores, own_scores)
        chosen = scores.argmax(axis=1)
        if s.own == "ledger" and not enters.all():
            mean, width = local_bounds(g, u, release.norm, m, s.scale).mean_and_width(x)
            charge = (mean + width).max(axis=1) - (mean - width)[all_n, chosen]
            charge = np.minimum(1.0, charge)
            allowed = spent + charge <= s.ledger * local_regret(t, d, release.norm, m, s.scale)
            allowed |= enters
            spent += np.where(allowed & ~enters, charge, 0.0)
            chosen = np.where(allowed, chosen, (mean + width).argmax(axis=1))

        products = (z @ thetas.astype(np.float32)[..., None])[..., 0]
        expected = 0.5 * (1.0 + products[all_n, chosen])
        regret += 0.5 * (1.0 + products.max(axis=1)) - expected
        y = (uniforms(t) < expected) - release.centre
        row = x[all_n, chosen].astype(float)
        outer = row[:, :, None] * row[:, None, :]
        g += outer
        u += row * y[:, None]
        belief.observe(row, y, s.scale)
        leaves += outer * enters[:, None, None]
        leaf_bias += row * (y * enters)[:, None]

        rebuild = t & (t - 1) == 0
        if t in rounds:
            k, rebuild = rounds.index(t), True
            sent = leaves + added[:, k, d:].reshape(n, d, d)
            sent_bias = leaf_bias + added[:, k, :d]
            a = sent.reshape(replicates, m, d, d).sum(axis=1)
            h = sent_bias.reshape(replicates, m, d).sum(axis=1)
            transcript.append((a, h))
            bounds_of_total = direct_bounds(a, h, entry_stds, k, release, s.scale)
            public = Bound(*(np.repeat(part, m, axis=0) for part in vars(bounds_of_total).values()))
            other_sums, other_bias = (
                np.repeat(a, m, axis=0) - sent,
                np.repeat(h, m, axis=0) - sent_bias,
            )
            sources = [
                information(other_sums, other_bias, other_noise[k], delta, m, s.scale, float(d))
                for delta in s.grid
            ]
        if rebuild:
            precision, r, weights = mixed(sources, g / s.scale**2, u / s.scale**2)
            belief = Belief.of(precision, r)
        if rebuild or t == s.horizon:
            regret_at[t] = regret.copy()
    return Outcome(regret_at, transcript, rounds, weights, belief.mean)


def local_regret(t: int, d: int, norm: float, silos: int, scale: float) -> float:
    """Return a bound on LinUCB's regret in t rounds of one silo: 2 beta sqrt(2 t d ln(1 + t / d)).

    It holds for lambda = 1 and ||x|| <= 1, with beta from ln det V <= d ln(1 + t / d).
    """
    growth = d * math.log1p(t / d)
    beta = scale * math.sqrt(2.0 * math.log(silos / 0.01) + growth) + norm
    return 2.0 * beta * math.sqrt(2.0 * t * growth)


# ---- Environments --------------------------------------------------------------------------------


def turned(rng: np.random.Generator, replicates: int, silos: int, d: int, angle: float):
    """Return v_i (n, d - 1): one v for each replicate, rotated by the angle in each silo's
    direction."""

    def unit(a: np.ndarray) -> np.ndarray:
        """Return the rows scaled to norm 1."""
        return a / np.linalg.norm(a, axis=1, keepdims=True)

    v = np.repeat(unit(rng.standard_normal((replicates, d - 1))), silos, axis=0)
    w = rng.standard_normal(v.shape)
    w = unit(w - (w * v).sum(axis=1, keepdims=True) * v)
    return math.cos(angle) * v + math.sin(angle) * w


def fresh(rng: np.random.Generator, n: int, actions: int, d: int):
    """Return contexts(t) of the sphere, drawn again at every call."""

    def contexts(t: int) -> np.ndarray:
        """Return fresh contexts of a round."""
        z = rng.standard_normal((n, actions, d - 1), dtype=np.float32)
        return z / np.linalg.norm(z, axis=2, keepdims=True)

    return contexts


def pooled(rng: np.random.Generator, n: int, actions: int, d: int, size: int = 300_000):
    """Return a function that takes the contexts of each round from one pool of unit vectors.

    Each set of actions is a run of neighbours in the pool. This is many times faster than draws.
    """
    pool = rng.standard_normal((size, d - 1), dtype=np.float32)
    pool /= np.linalg.norm(pool, axis=1, keepdims=True)
    runs = np.lib.stride_tricks.sliding_window_view(pool, actions, axis=0)

    def contexts(t: int) -> np.ndarray:
        """Return the contexts of a round, a run of the pool for each of the n silos."""
        return runs[rng.integers(0, len(runs), n)].transpose(0, 2, 1)

    return contexts


def play(
    setting: Setting, release: Release, replicates: int, seed: int, pool: bool = False
) -> Outcome:
    """Simulate with every draw from one seed."""
    s = setting
    rng = np.random.default_rng(seed)
    n = replicates * s.silos
    thetas = turned(rng, replicates, s.silos, s.dimension, s.rotation)
    contexts = (pooled if pool else fresh)(rng, n, s.actions, s.dimension)
    certain = certain_rounds(s.horizon, s.until, s.fraction, s.secret)
    count = len(release_rounds(certain, s.first, s.ratio))
    noises = rng.standard_normal((n, count, s.dimension + s.dimension**2))
    coins = np.random.default_rng([seed, 21])
    return simulate(
        s,
        release,
        thetas,
        contexts,
        lambda t: rng.random(n),
        lambda i: noises[i],
        lambda t: coins.random(n),
    )


def group_regret(outcome: Outcome, silos: int) -> tuple[float, float]:
    """Return the mean over replicates of the group's regret, and its standard error."""
    regrets = outcome.regret[max(outcome.regret)].reshape(-1, silos).sum(axis=1)
    error = regrets.std(ddof=1) / math.sqrt(len(regrets)) if len(regrets) > 1 else math.nan
    return float(regrets.mean()), float(error)


# ---- Tables --------------------------------------------------------------------------------------


def tables(angle: float | None, centred: bool, replicates: int = 3) -> None:
    """Print one part of the tables of docs/own-rounds.md, for an angle, or None for few silos.

    Each part needs some minutes.
    """
    base = Setting(silos=100, horizon=10_000, until=300)
    budgets = {
        "silo-ldp (1, 1e-3)": ("silo-ldp", gaussian_mu(1.0, 1e-3), 20),
        "silo-ldp (5, 1e-5)": ("silo-ldp", gaussian_mu(5.0, 1e-5), 5),
        "secure-sum (1, 1e-3)": ("secure-sum", gaussian_mu(1.0, 1e-3), 5),
    }

    def show(label: str, setting: Setting, release: Release, count: int) -> None:
        """Print the mean regret of a setting and its standard error."""
        mean, error = group_regret(play(setting, release, count, 7, pool=True), setting.silos)
        print(f"{label:64s} {mean:8.0f} +- {error:.0f}", flush=True)

    rules = {
        "gls": {},
        "min-of-bounds": {"own": "min-of-bounds"},
        "min-of-bounds x .3": {"own": "min-of-bounds", "bound_multiplier": 0.3},
        "ledger": {"own": "ledger"},
    }
    if angle is not None:
        kind = f"rotation {angle}, {'centred' if centred else 'uncentred'}"
        for name, (trust, mu, first) in budgets.items():
            mechanism = release_for(trust, mu, 100, centred=centred)
            setting = replace(base, rotation=angle, first=first)
            ldp = name == "silo-ldp (1, 1e-3)"
            if ldp:
                show(f"{kind}, alone, gls", replace(setting, until=0), mechanism, replicates)
            for rule, keys in rules.items() if ldp and centred else (("gls", {}),):
                show(f"{kind}, {name}, {rule}", replace(setting, **keys), mechanism, replicates)
            if ldp:
                always = replace(setting, until=base.horizon, first=25)
                show(f"{kind}, {name}, always shared", always, mechanism, replicates)
        return
    mechanism = release_for("silo-ldp", gaussian_mu(1.0, 1e-3), 10, centred=centred)
    for horizon, until in ((1000, 0), (1000, 50), (1000, 100), (1000, 1000), (10_000, 0),
                           (10_000, 100), (10_000, 300), (10_000, 10_000)):  # fmt: skip
        setting = replace(base, silos=10, horizon=horizon, until=until)
        kind = "centred" if centred else "uncentred"
        show(f"M 10, T {horizon}, {kind}, until {until}", setting, mechanism, 30)


if __name__ == "__main__":
    tables(None if sys.argv[1] == "few" else float(sys.argv[1]), sys.argv[2] == "centred")
