"""Bounds for prediction from experts: by brute force, by playing the algorithms, by hand."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, special

from fastfed._validate import InputError
from fastfed.experts import bounds
from fastfed.experts.bounds import PhaseNoise
from fastfed.experts.fed_dp_ope_stoch_bounds import _largest_error, _largest_laplace

RNG = np.random.default_rng
LAWS = [(1.0, 1.0), (4.0, 8.0), (5.0, 0.3), (0.0, 2.0), (2.0, 0.0), (3.0, 3.0 * (1 + 1e-9))]


def agree(ours: float, theirs: float, rel: float = 1e-9) -> None:
    assert math.isclose(ours, theirs, rel_tol=rel), (ours, theirs)


# -- Fed-DP-OPE-Stoch ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 17, 400])
def test_largest_laplace_is_its_integral(d: int) -> None:
    def above(x: float) -> float:
        return -math.expm1(d * math.log1p(-0.5 * math.exp(-x)))

    up = integrate.quad(above, 0, 60, epsabs=1e-12)[0]
    down = integrate.quad(lambda x: (0.5 * math.exp(x)) ** d, -60, 0, epsabs=1e-12)[0]
    assert _largest_laplace(d) == pytest.approx(up - down, abs=1e-9)


@pytest.mark.parametrize(
    ("variance", "draws", "scale"), [(1.0, 1, 0.0), (1.0, 1, 1.0), (0.01, 1, 2.0), (0.2, 5, 0.3)]
)
def test_largest_error_is_above_and_near_what_is_drawn(
    variance: float, draws: int, scale: float
) -> None:
    d, runs = 300, 2000
    r = RNG(1)
    error = math.sqrt(variance) * r.standard_normal((runs, d))
    for _ in range(draws):
        error -= scale * r.laplace(size=(runs, d))
    largest = error.max(axis=1)
    low = largest.mean() - 4 * largest.std() / math.sqrt(runs)
    # Chernoff's bound costs the most, 1.41, where error and one draw of noise are alike.
    assert low <= _largest_error(variance, draws, scale, d) <= 1.5 * largest.mean()


def test_largest_error_is_the_least_chernoff_bound() -> None:
    for variance, draws, scale, d in product((0.0, 1e-4, 1.0, 1e4), (2, 50), (1e-3, 2.0), (2, 900)):
        u = np.geomspace(1e-6, 1, 400_001)[:-1] / scale
        grid = math.log(d) + u * u * variance / 2 - draws * np.log1p(-((u * scale) ** 2))
        agree(_largest_error(variance, draws, scale, d), (grid / u).min(), 1e-5)


def leaves_of(trees: int) -> list[list[tuple[int, int]]]:
    """Per leaf, walking depth first: (depth, leaf at which the parent was visited) of its right
    vertices, and -1 for its own tree's number."""
    found: list[list[tuple[int, int]]] = []

    def visit(depth: int, tree: int, path: list[tuple[int, int]]) -> None:
        if depth == tree:
            found.append([(-1, tree), *path])
            return
        first = len(found) + 1
        visit(depth + 1, tree, path)
        visit(depth + 1, tree, [*path, (depth + 1, first)])

    for tree in range(1, trees + 1):
        visit(0, tree, [])
    return found


def moved(first: int, last: int) -> float:
    """Largest 1-norm of what updates first..last - 1 can move x: toward a new vertex each time."""
    size = last - first + 1
    x = np.zeros(size)
    x[0] = 1.0
    for i, k in enumerate(range(first, last), start=1):
        eta = 2.0 / (k + 1)
        x *= 1 - eta
        x[i] += eta
    x[0] -= 1.0
    return float(np.abs(x).sum())


def slow_suboptimality(
    phase: PhaseNoise, m: int, d: int, beta: float, spread: float, local: bool
) -> float:
    """The recursion leaf by leaf, each leaf with its own Chernoff bound on a grid."""
    h = math.inf
    for k, (head, *rights) in enumerate(leaves_of(phase.trees), start=1):
        variance = spread**2 / 4 / (phase.batch * m)
        for depth, first in rights:
            samples = phase.batch // 2**depth * m
            half = min(spread, beta * moved(first, k - (k - first) % 2 ** (head[1] - depth)))
            variance += (2 * half) ** 2 / 4 / samples
        scale = phase.scales[head[1] - 1] / (m if local else 1)
        u = np.geomspace(1e-4, 1, 4001)[:-1] / scale
        log_moment = u * u * variance / 2 - (m if local else 1) * np.log1p(-((u * scale) ** 2))
        noise = ((math.log(d) + log_moment) / u).min()
        if not local or m == 1:
            laplace = sum((1 - 0.5**i) / i for i in range(1, d + 1)) - 0.5**d / d
            noise = min(noise, math.sqrt(2 * variance * math.log(d)) + scale * laplace)
        eta = 2 / (k + 1)
        h = (0.0 if k == 1 else (1 - eta) * h) + eta * noise + 2 * beta * eta**2
    return h


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.05, 0.7])
def test_a_phase_is_its_recursion_leaf_by_leaf(beta: float, local: bool) -> None:
    phase = PhaseNoise(4, 32, (0.02, 0.05, 0.1, 0.3))
    for m, d in ((1, 2), (3, 40), (20, 1000)):
        slow = slow_suboptimality(phase, m, d, beta, 1.0, local)
        ours = bounds.phase_suboptimality(
            phase,
            m,
            d,
            lipschitz=100.0,
            smoothness=beta,
            noise="local" if local else "central",
            spread=1.0,
        )
        # The mean variance of a tree is put for each leaf's own: never less, the same for beta = 0.
        assert slow * (1 - 1e-5) <= ours <= slow * (1 + 1e-4 if beta == 0 else 1.06)


def play_phase(
    phase: PhaseNoise, m: int, d: int, beta: float, local: bool, runs: int, r: np.random.Generator
) -> np.ndarray:
    """Suboptimality of DP-FW from e_1 for losses <g, x> + (beta/2) <s, x>^2, g in {0, 1}^d coins.

    s has entries +-1. All runs at once; samples are drawn fresh, as each is used once.
    """
    p = np.linspace(0.35, 0.65, d)
    s = np.where(np.arange(d) % 2, 1.0, -1.0)

    def gradient(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        return g + beta * (x @ s)[:, None] * s

    x = np.zeros((runs, d))
    x[:, 0] = 1.0
    k = 0
    for j in range(1, phase.trees + 1):
        points, values = [x] * (j + 1), [np.empty(0)] * (j + 1)
        for leaf in range(2**j):
            for depth in range(j + 1):
                # Visit the vertices on the way that begin at this leaf.
                if leaf % 2 ** (j - depth):
                    continue
                right = leaf >> (j - depth) & 1
                if depth == 0:
                    g = r.binomial(m * phase.batch, p, (runs, d)) / (m * phase.batch)
                    points[0], values[0] = x, gradient(x, g)
                elif right:
                    n = m * phase.batch // 2**depth
                    g = r.binomial(n, p, (runs, d)) / n
                    change = gradient(x, g) - gradient(points[depth - 1], g)
                    points[depth], values[depth] = x, values[depth - 1] + change
                else:
                    points[depth], values[depth] = points[depth - 1], values[depth - 1]
            k += 1
            draws = m if local else 1
            noise = r.laplace(size=(draws, runs, d)).mean(axis=0) * phase.scales[j - 1]
            best = (values[j] + noise).argmin(axis=1)
            eta = 2 / (k + 1)
            x = (1 - eta) * x
            x[np.arange(runs), best] += eta
    losses = x @ p + beta / 2 * (x @ s) ** 2
    # The minimum over mixtures of two experts of unlike sign (same sign: a vertex of the two).
    w = np.linspace(0, 1, 2001)
    least = min(
        (w * p[a] + (1 - w) * p[b] + beta / 2 * (w * s[a] + (1 - w) * s[b]) ** 2).min()
        for a in range(d)
        for b in range(d)
    )
    return losses - least


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_played_phase_is_within_its_bound(beta: float, local: bool) -> None:
    phase = PhaseNoise(3, 64, (0.1, 0.2, 0.4))
    m, d, runs = 4, 12, 400
    lost = play_phase(phase, m, d, beta, local, runs, RNG(2))
    bound = bounds.phase_suboptimality(
        phase,
        m,
        d,
        lipschitz=1 + beta,
        smoothness=beta,
        noise="local" if local else "central",
        spread=1 + 2 * beta,
    )
    assert lost.min() > -1e-9
    assert lost.mean() + 4 * lost.std() / math.sqrt(runs) <= bound <= 12 * lost.mean()


def test_smoothness_term_is_attained_where_the_papers_is_exceeded() -> None:
    """(beta/2)(x_1 - x_2)^2, a full step from e_1 to e_2: 2 beta eta^2, not eta^2 beta/2."""
    beta, s = 0.6, np.array([1.0, -1.0])

    def loss(x: np.ndarray) -> float:
        return beta / 2 * float(s @ x) ** 2

    for eta in (0.25, 1.0):
        x, w = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        slope = float(beta * (s @ x) * s @ (w - x))
        excess = loss(x + eta * (w - x)) - loss(x) - eta * slope
        agree(excess, 2 * beta * eta**2)
        assert excess > beta * eta**2 / 2


COMMON: dict[str, Any] = {"lipschitz": 1.0, "smoothness": 0.05, "noise": "central", "spread": 1.0}


def test_phases_sum_to_the_regret() -> None:
    phase = PhaseNoise(1, 4, (0.01,))
    one = bounds.phase_suboptimality(phase, 50, 3, **COMMON)
    phases = [None, None, None, None, phase, None]
    for t in (32, 40, 63):
        total = bounds.stoch_regret(t, phases, 50, 3, **COMMON, loss_range=1.0)
        agree(total, 15 + (t - 15) * min(one, 1.0))
    assert bounds.stoch_regret(63, [None] * 6, 50, 3, **COMMON) == 126
    # 6 of the 8 losses of phase 4 are used; a second tree would use 4 (1 + 1 + 1/2 + 1) = 14.
    with pytest.raises(InputError, match="at most 8 losses a client, got 14"):
        bounds.stoch_regret(31, [None] * 4 + [PhaseNoise(2, 4, (0.1, 0.1))], 5, 3, **COMMON)
    with pytest.raises(InputError, match="phases must be 6"):
        bounds.stoch_regret(40, phases[:5], 50, 3, **COMMON)
    with pytest.raises(InputError, match="begin with None"):
        bounds.stoch_regret(1, [phase], 50, 3, **COMMON)


def test_a_phase_gets_worse_with_noise_and_better_with_data() -> None:
    def at(
        b: int = 64, m: int = 4, d: int = 10, scale: float = 0.1, beta: float = 0.05, **other: Any
    ) -> float:
        kwargs = {**COMMON, "smoothness": beta, **other}
        return bounds.phase_suboptimality(PhaseNoise(2, b, (scale, 2 * scale)), m, d, **kwargs)

    assert at(b=128) < at() < at(b=32)
    assert at(m=5) < at() < at(m=3)
    assert at(d=9) < at() < at(d=11)
    assert at(scale=0.05) < at() < at(scale=0.2)
    assert at(beta=0.0) < at() < at(beta=0.1)
    assert at(spread=0.5) < at() < at(spread=2.0)
    # The average of m draws is smaller than one of them, larger than one of scale/m.
    assert at(scale=0.1 / 4) < at(noise="local") < at()
    assert at(scale=1e9) == 2.0
    assert at(scale=1e9, loss_range=1.0) == 1.0
    assert at(d=1) == 0.0
    assert at(m=10**9, scale=0.0, beta=0.0) < 1e-4


# -- Fed-SVT: switches -----------------------------------------------------------------------------


def sum_below(k: int, edge: float, width: float) -> float:
    """P(X_1 + ... + X_k <= edge) for Exp(1) given X <= width, by inclusion and exclusion."""
    terms = [
        (-1) ** j * math.comb(k, j) * math.exp(-width * j) * special.gammainc(k, edge - width * j)
        for j in range(k + 1)
        if edge > width * j
    ]
    return math.fsum(terms) / (1 - math.exp(-width)) ** k


@pytest.mark.parametrize("gap", [2.0, 4.0, 7.0])
def test_budget_failure_is_the_sums_law_from_above(gap: float) -> None:
    for d, kappa in product((2, 30, 5000), (0, 1, 4, 12)):
        ours = bounds.budget_failure(d, kappa, gap=gap)
        exact = sum_below(kappa + 1, math.log(d), gap / 2)
        rounded = sum_below(kappa + 1, math.log(d) + (kappa + 1) * gap / 1024, gap / 2)
        assert exact * (1 - 1e-9) <= ours <= min(rounded, 1.0) + 1e-12


def geometric_budget(d: int, rho: float) -> int:
    """3 s + quantile of s geometric numbers on 1, 2, ... of success 1/3: Lemma D.2, convolved."""
    s = (d - 1).bit_length()
    law = np.zeros(3000)
    law[1:] = (2 / 3) ** np.arange(2999) / 3
    sums = np.ones(1)
    for _ in range(s):
        sums = np.convolve(sums, law)[:3000]
    return 3 * s + int(np.searchsorted(np.cumsum(sums), 1 - rho))


def test_budgets_in_order() -> None:
    for d, rho in product((2, 3, 10, 100, 5000, 10**6), (0.5, 0.1, 0.05, 1e-3, 1e-6)):
        kappa = bounds.switching_budget(d, rho)
        assert bounds.budget_failure(d, kappa) <= rho
        assert kappa == 0 or bounds.budget_failure(d, kappa - 1) > rho
        assert kappa <= geometric_budget(d, rho)
        assert kappa <= bounds.switching_budget_printed(d, rho)
        assert kappa <= bounds.switching_budget(d + 1, rho)
        assert kappa <= bounds.switching_budget(d, rho / 2)
    assert bounds.switching_budget(1, 0.1) == bounds.budget_failure(1, 0) == 0
    assert bounds.switching_budget_printed(100, 0.05) == math.ceil(21 + 24 * math.log(20)) == 93
    assert bounds.switching_budget_printed(64, 0.05) == math.ceil(18 + 24 * math.log(20)) == 90
    assert bounds.switching_budget(100, 0.05) == 10
    # Lemma D.3 alone does not carry the printed budget: 3 s + 24 ln(1/rho) is below the quantile.
    assert bounds.switching_budget_printed(2**40, 0.5) < geometric_budget(2**40, 0.5)


def count_switches(d: int, runs: int, r: np.random.Generator) -> np.ndarray:
    """Switches where experts lose gap/eta one by one, round and round, the last one never.

    Without noise and with L just below that: a kill of the expert in use is a switch.
    """
    others = np.arange(d - 1)
    end = (d - 1) * math.ceil(math.log(d))  # weights e^-2 a pass: only the last expert is left
    count = np.zeros(runs, dtype=int)
    for run in range(runs):
        t = 0
        while True:
            weights = np.append(np.exp(-2.0 * ((t - others + d - 2) // (d - 1))), 1.0)
            x = int(np.searchsorted(np.cumsum(weights), r.random() * weights.sum()))
            if x == d - 1:
                break
            t += (x - t) % (d - 1) + 1
            if t > end:
                break
            count[run] += 1
    return count


def test_budget_failure_is_nearly_attained() -> None:
    d, runs = 600, 4000
    count = count_switches(d, runs, RNG(3))
    for kappa in range(12, 20):
        share = float((count > kappa).mean())
        assert share <= bounds.budget_failure(d, kappa) + 4 * math.sqrt(0.25 / runs)
    for kappa in (7, 8, 9, 10):
        share, proven = float((count > kappa).mean()), bounds.budget_failure(d, kappa)
        error = 4 * math.sqrt(proven / runs)
        assert 0.6 * proven - error <= share <= proven + error, (kappa, share, proven)
    # One switch fewer in the sum would not hold.
    assert float((count > 8).mean()) > bounds.budget_failure(d, 10)


# -- Fed-SVT: noise --------------------------------------------------------------------------------


def laplace_cdf(x: float) -> float:
    return 0.5 * math.exp(x) if x < 0 else 1 - 0.5 * math.exp(-x)


@pytest.mark.parametrize(("a", "b"), LAWS)
def test_margins_are_their_integrals(a: float, b: float) -> None:
    for w, (n, kappa) in product((0.3, 5.0, 40.0), ((1, 0), (7, 2), (500, 9), (3, 50))):
        count = min(n, kappa + 1)
        k = n / count

        def kept(r: float, w: float = w, k: float = k) -> float:
            if b == 0:
                return float(w + r >= 0)
            return laplace_cdf((w + r) / b) ** k

        def density(r: float) -> float:
            return math.exp(-abs(r) / a) / (2 * a)

        if a == 0:
            one = kept(0.0)
        else:
            top = max(b * math.log(k) - w, -w + 0.01)
            cuts = sorted({-w - 60 * max(a, b), -w, *(c for c in (top, 0.0) if c > -w), 60 * a})
            one = sum(
                integrate.quad(lambda r: density(r) * kept(r), *pair, limit=200, epsabs=1e-13)[0]
                for pair in pairwise(cuts)
            )
        ours = bounds.early_switch_failure(w, n, kappa, a, b)
        assert ours == pytest.approx(1 - one**count, rel=1e-6, abs=1e-9)
    for w in (0.0, 0.7, 9.0):
        if a == 0 or b == 0:
            p = math.exp(-w / (a + b)) / 2
        else:
            # P(Lap(a) > w + y) over y ~ Lap(b)
            p = sum(
                integrate.quad(
                    lambda y, w=w: math.exp(-abs(y) / b) / (2 * b) * laplace_cdf(-(w + y) / a),
                    *pair,
                    limit=200,
                )[0]
                for pair in ((-w - 60 * b, -w), (-w, 0), (0, 60 * b))
            )
        assert bounds.late_switch_failure(w, 4, a, b) == pytest.approx(1 - (1 - p) ** 5, rel=1e-6)


@pytest.mark.parametrize(("a", "b"), LAWS)
def test_margins_fail_as_often_as_allowed(a: float, b: float) -> None:
    for n, kappa, rho in product((1, 40, 10**6), (0, 12), (0.5, 0.05, 1e-12)):
        w = bounds.noise_margin(n, kappa, a, b, rho)
        failing = bounds.early_switch_failure(w, n, kappa, a, b)
        assert rho * (1 - 1e-5) <= failing <= rho or (w < 1e-6 and failing <= rho)
        assert w <= bounds.noise_margin(n + 1, kappa, a, b, rho)
        assert w <= bounds.noise_margin(n, kappa + 1, a, b, rho) * (1 + 1e-8)
        # Never more than a union over decisions.
        union = min(1.0, n * bounds.late_switch_failure(w, 0, a, b))
        assert failing <= union * (1 + 1e-8)
    assert bounds.noise_margin(0, 3, a, b, 0.1) == 0.0
    assert bounds.noise_margin(9, 3, 0.0, 0.0, 0.1) == 0.0


def test_printed_margin_is_enough() -> None:
    for t, n, epsilon, rho in product((10, 10**6), (1, 7), (0.1, 3.0), (0.5, 1e-3)):
        w = bounds.noise_margin_printed(t, n, epsilon, rho)
        agree(w, 8 * math.log(2 * t**2 / (n**2 * rho)) / epsilon)
        failing = bounds.early_switch_failure(w, t // n, 20, 4 / epsilon, 8 / epsilon)
        assert failing <= rho * n / (3 * t)
        assert bounds.noise_margin(t // n, 20, 4 / epsilon, 8 / epsilon, rho) < w


def test_early_switches_are_attained_and_late_ones_too() -> None:
    """Stretches of 10 decisions at L - W, then a jump far above; then one decision at L + W'."""
    a, b, kappa, k, runs = 2.0, 3.0, 4, 10, 40_000
    r = RNG(4)
    level = r.laplace(size=(runs, kappa + 1)) * a
    noise = r.laplace(size=(runs, kappa + 1, k)) * b
    w = bounds.noise_margin(k * (kappa + 1), kappa, a, b, 0.1)
    early = (noise - w > level[:, :, None]).any(axis=(1, 2)).mean()
    assert abs(early - 0.1) < 4 * math.sqrt(0.09 / runs)
    late = (noise[:, :, 0] + 20.0 <= level).any(axis=1).mean()
    proven = bounds.late_switch_failure(20.0, kappa, a, b)
    assert abs(late - proven) < 4 * math.sqrt(proven / runs)


# -- Fed-SVT: played -------------------------------------------------------------------------------


def play_svt(
    losses: np.ndarray,
    m: int,
    n: int,
    *,
    floor: float,
    eta: float,
    level: float,
    kappa: int,
    a: float,
    b: float,
    runs: int,
    r: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses summed over clients and switches wanted, for all runs at once.

    losses: (T, d), the same at all clients. From switch kappa on losses are those of the expert
    that is kept, but noise and queries go on as if to count.
    """
    t_end, d = losses.shape
    prefix = np.vstack([np.zeros(d), np.cumsum(losses, axis=0)]) * m
    x = r.integers(d, size=runs)
    start = np.zeros(runs, dtype=int)
    noise = a * r.laplace(size=runs)
    paid, wanted = np.zeros(runs), np.zeros(runs, dtype=int)
    done = 0
    for t in range(n - 1, t_end, n):  # decision at round t + 1 = n, 2n, ...
        paid += prefix[t, x] - prefix[done, x]
        done = t
        q = prefix[t, x] - prefix[start, x]
        switch = (q + b * r.laplace(size=runs) > level + noise) & (wanted < kappa)
        weights = np.exp(-eta / 2 * (np.maximum(prefix[t], floor) - floor))
        drawn = np.searchsorted(np.cumsum(weights), r.random(runs) * weights.sum())
        x = np.where(switch, drawn, x)
        start = np.where(switch, t, start)
        noise = np.where(switch, a * r.laplace(size=runs), noise)
        wanted += switch
    paid += prefix[t_end, x] - prefix[done, x]
    return paid, wanted


def adversaries(t: int, d: int, optimal: int) -> dict[str, np.ndarray]:
    """Losses (T, d) whose last expert loses `optimal`; the others are ruined in turn."""
    time, expert = np.arange(t)[:, None], np.arange(d)[None, :]
    turn = np.where(expert * t // d <= time, 1.0, 0.0)
    halves = np.where(expert < d - (d >> np.minimum(time * 5 // t, 30)), 1.0, 0.0)
    hidden = np.ones((t, d))
    found = {"turn": turn, "halves": halves, "hidden": hidden}
    for losses in found.values():
        losses[:, -1] = 0.0
        losses[:: max(1, t // max(optimal, 1)), -1] = 1.0 if optimal else 0.0
        losses[:, -1] *= np.cumsum(losses[:, -1]) <= optimal
    return found


@pytest.mark.parametrize("name", ["turn", "halves", "hidden"])
@pytest.mark.parametrize("optimal", [0, 5])
@pytest.mark.parametrize("n", [1, 9])
def test_played_svt_is_within_its_bound(name: str, optimal: int, n: int) -> None:
    t, m, d, rho, epsilon, runs = 1500, 4, 16, 0.3, 40.0, 300
    losses = adversaries(t, d, optimal)[name]
    assert losses[:, -1].sum() == optimal
    kappa = bounds.switching_budget(d, rho / 3)
    eta, a, b = epsilon / 2 / kappa, 2 / epsilon, 2 / epsilon
    w = bounds.noise_margin(t // n, kappa, a, b, rho / 3)
    level = bounds.threshold(m, optimal, eta, w)
    bound = bounds.svt_regret(
        t,
        m,
        phase_length=n,
        threshold=level,
        switches=kappa,
        threshold_scale=a,
        query_scale=b,
        failure_probability=rho / 3,
    )
    assert bound < t / 2
    paid, wanted = play_svt(
        losses,
        m,
        n,
        floor=m * optimal,
        eta=eta,
        level=level,
        kappa=10**9,
        a=a,
        b=b,
        runs=runs,
        r=RNG(5),
    )
    assert wanted.max() >= (1 if name == "hidden" else 2)  # the adversary does make it switch
    error = 4 * math.sqrt(rho / runs)
    assert (wanted <= kappa).mean() >= 1 - 2 * rho / 3 - error
    assert (paid / m <= bound).mean() >= 1 - rho - error
    # A stretch alone costs nearly its share: a bound for one stretch would be broken.
    assert name == "hidden" or (paid / m > bound / (kappa + 1)).mean() > rho


def test_regret_by_hand() -> None:
    kwargs: dict[str, Any] = {
        "phase_length": 6,
        "threshold": 20.0,
        "switches": 2,
        "threshold_scale": 0.0,
        "query_scale": 2.0,
        "failure_probability": 0.1,
    }
    late = 2.0 * math.log(0.5 / (1 - 0.9 ** (1 / 3)))
    agree(bounds.svt_regret(1000, 4, **kwargs), 3 * ((20 + late) / 4 + 6), 1e-7)
    agree(bounds.svt_regret(1000, 4, **{**kwargs, "query_scale": 0.0}), 3 * (20 / 4 + 6))
    assert bounds.svt_regret(7, 4, **kwargs) == 7
    agree(bounds.threshold(5, 3.0, 0.1, 7.0), 15 + 7 + 40)
    agree(bounds.threshold(5, 3.0, 0.1, 7.0, gap=6.0), 15 + 7 + 60)
    for name, larger in [
        ("phase_length", 7),
        ("threshold", 21.0),
        ("switches", 3),
        ("threshold_scale", 1.0),
        ("query_scale", 2.5),
        ("failure_probability", 0.05),
    ]:
        assert bounds.svt_regret(1000, 4, **{**kwargs, name: larger}) > bounds.svt_regret(
            1000, 4, **kwargs
        )
    assert bounds.svt_regret(1000, 5, **kwargs) < bounds.svt_regret(1000, 4, **kwargs)


# -- Lower bounds ----------------------------------------------------------------------------------


def test_fair_coins_by_enumeration() -> None:
    for t, d in [(1, 2), (2, 2), (3, 3), (4, 2), (2, 4), (3, 1)]:
        least = [
            np.array(coins).reshape(t, d).sum(axis=0).min()
            for coins in product((0, 1), repeat=t * d)
        ]
        assert bounds.theorem_2_4(t, d) == pytest.approx(t / 2 - np.mean(least), abs=1e-12)


def test_fair_coins_by_closed_forms() -> None:
    for t in (1, 2, 3, 50, 1001, 2**20, 10**9):
        # Two experts: half of E|Bin - Bin'|, t C(2t, t)/4^t.
        choose = special.gammaln(2 * t + 1) - 2 * special.gammaln(t + 1) - 2 * t * math.log(2)
        # lgamma keeps the absolute error of 2t ln(2t).
        rel = 1e-9 + 4e-16 * t * math.log(t + 1)
        agree(bounds.theorem_2_4(t, 2), t / 2 * math.exp(choose), rel)
        assert abs(bounds.theorem_2_4(t, 1)) < 1e-6 * math.sqrt(t)
    for t, d in product((100, 2**20), (2, 3, 100, 10**4)):
        top = math.sqrt(t * math.log(d) / 2)
        assert bounds.theorem_2_4(t, d) < top
        assert bounds.theorem_2_4(t, d) < bounds.theorem_2_4(t, d + 1)
        assert bounds.theorem_2_4(t, d) < bounds.theorem_2_4(t + 1, d)
    # Normal coins for long T: E max of d N(0, 1/4), sqrt(T).
    d = 50
    normal = integrate.quad(
        lambda x: -math.expm1(d * special.log_ndtr(x)) - math.exp(d * special.log_ndtr(-x)), 0, 12
    )[0]
    agree(bounds.theorem_2_4(2**30, d), normal * 2**15 / 2, 1e-4)


def test_hedge_loses_exactly_that_to_fair_coins() -> None:
    t, d, runs = 60, 5, 6000
    coins = RNG(6).integers(0, 2, size=(runs, t, d)).astype(float)
    before = np.cumsum(coins, axis=1) - coins
    weights = np.exp(-0.4 * (before - before.min(axis=2, keepdims=True)))
    weights /= weights.sum(axis=2, keepdims=True)
    regret = (weights * coins).sum(axis=(1, 2)) - coins.sum(axis=1).min(axis=1)
    proven = bounds.theorem_2_4(t, d)
    assert abs(regret.mean() - proven) < 4 * regret.std() / math.sqrt(runs) < 0.05 * proven


def best_marginal(a: float, slack: float, d: int) -> float:
    """Least mean of 1 - P_j(j) over laws P_1..P_d that are (a, slack)-close to one law P_0.

    By linear programming over P_0, P_1 (by symmetry), and the excess of each over e^a the other.
    """
    # Variables: p0 (d), p1 (d), up (d), down (d); minimise -p1[0]; P_0 uniform by symmetry.
    size = 4 * d
    cost = np.zeros(size)
    cost[d] = -1.0
    rows, limits = [], []
    for x in range(d):
        for first, second, excess in ((d, 0, 2 * d), (0, d, 3 * d)):
            row = np.zeros(size)
            row[first + x], row[second + x], row[excess + x] = 1.0, -math.exp(a), -1.0
            rows.append(row)
            limits.append(0.0)
    for excess in (2 * d, 3 * d):
        row = np.zeros(size)
        row[excess : excess + d] = 1.0
        rows.append(row)
        limits.append(slack)
    equal = np.zeros((d + 1, size))
    equal[:d, :d] = np.eye(d)
    equal[d, d : 2 * d] = 1.0
    found = optimize.linprog(
        cost, np.array(rows), limits, equal, [*([1.0 / d] * d), 1.0], bounds=(0, None)
    )
    assert found.status == 0
    return 1.0 + float(found.fun)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_hidden_expert_is_the_sum_of_best_marginals(delta: float) -> None:
    for m, d, epsilon in ((1, 2, 0.3), (3, 5, 0.2), (2, 40, 0.5)):
        total, t = 0.0, 12
        for i in range(t):
            a = epsilon * m * i
            slack = delta * math.expm1(a) / math.expm1(epsilon)
            total += best_marginal(a, slack, d)
        found = bounds.hidden_expert(t, m, d, epsilon, delta=delta)
        assert found.regret == pytest.approx(total, rel=1e-7)
        assert found.rounds == t if delta == 0 else found.rounds <= t


def test_hidden_expert_is_its_sum() -> None:
    for t, m, d, epsilon, delta in product(
        (1, 2, 300), (1, 7), (2, 3, 900), (1e-4, 0.05, 3.0, 900.0), (0.0, 1e-9, 0.01)
    ):
        terms = []
        for i in range(t):
            y = math.exp(min(epsilon * m * i, 500.0))
            c = delta / math.expm1(epsilon) if epsilon < 700 else 0.0
            spill = c * (y - 1)
            terms.append(max(1 - y / d - spill, (1 - 1 / d - spill) / y, 0.0))
        found = bounds.hidden_expert(t, m, d, epsilon, delta=delta)
        assert found.regret == pytest.approx(math.fsum(terms), rel=1e-7, abs=1e-12)
        less = found.regret * (1 - 1e-12)
        # No shorter charge is better, no longer one either.
        assert all(term > 0 for term in terms[: found.rounds - 1])
        assert not any(terms[found.rounds :])
        assert bounds.hidden_expert(t, m + 1, d, epsilon, delta=delta).regret * (1 - 1e-12) <= (
            found.regret
        )
        assert bounds.hidden_expert(t + 1, m, d, epsilon, delta=delta).regret >= less
        assert bounds.hidden_expert(t, m, d, epsilon, delta=delta / 2).regret >= less
    assert bounds.hidden_expert(9, 1, 1, 0.5) == (9, 0.0)


def test_hidden_experts_constants() -> None:
    for d, m, epsilon in product((2, 3, 4, 5, 10, 10**3, 10**9), (1, 30), (1e-6, 1e-3, 0.1, 2.0)):
        for t in (1, 2, 10, 1000, 10**9):
            proven = bounds.hidden_expert(t, m, d, epsilon).regret
            assert proven >= 0.36 * min(bounds.theorem_2_7(m, d, epsilon), t)
            assert proven <= t
        long = bounds.hidden_expert(10**12, m, d, epsilon).regret
        assert long >= (math.log(d - 1) - 1 + 3 / d) / (m * epsilon) * (1 - 1e-9)
        assert long >= 0.6 * bounds.theorem_2_7(m, d, epsilon)
    # .36 cannot be much more.
    tight = bounds.hidden_expert(693147, 1, 2, 1e-6).regret
    assert tight < 0.361 * bounds.theorem_2_7(1, 2, 1e-6)


def test_a_private_algorithm_loses_more_than_the_hidden_experts_bound() -> None:
    """Exponential weights with a fresh draw at epsilon/(T - 1) a round, its regret in closed form,
    and the best of all rates."""
    t, d = 200, 30
    for m, epsilon in product((1, 5, 400), (0.1, 1.0, 10.0)):
        rate = epsilon / (2 * (t - 1)) * m
        i = np.arange(t)
        lost = float((1 - 1 / (1 + (d - 1) * np.exp(-rate * i))).sum())
        assert lost >= bounds.hidden_expert(t, m, d, epsilon).regret


def hedge(t: int, m: int, d: int, epsilon: float) -> float:
    """Upper bound on the regret of Hedge, private by fresh draws at rate epsilon/(2 T) a loss."""
    rate = min(math.sqrt(8 * math.log(d) / t), m * epsilon / (2 * t))
    return math.log(d) / rate + rate * t / 8


def test_the_printed_private_bound_contradicts_hedge() -> None:
    for t, d in ((10**4, 10), (10**6, 10), (10**8, 10)):
        epsilon = math.log(d) / t
        m = math.ceil(math.sqrt(32 * t * math.log(d)) / epsilon)
        printed = bounds.theorem_2_4_private(t, d, epsilon)
        assert printed == pytest.approx(t)
        agree(hedge(t, m, d, epsilon), math.sqrt(t * math.log(d) / 2), 1e-6)
        assert hedge(t, m, d, epsilon) < 1.1 / math.sqrt(t) * printed
        # What is proven contradicts nothing.
        assert bounds.hidden_expert(t, m, d, epsilon).regret < hedge(t, m, d, epsilon)
        assert bounds.theorem_2_4(t, d) < hedge(t, m, d, epsilon)


def test_the_printed_upper_bound_contradicts_the_hidden_expert() -> None:
    """beta = 0, epsilon = 1/(m T): the printed order is far below what the adversary takes."""
    for t in (10**4, 10**6, 10**8):
        m, d = 100, 10
        printed = bounds.theorem_2_2(t, m, d, 1 / (m * t), lipschitz=1.0, smoothness=0.0)
        taken = bounds.hidden_expert(t, m, d, 1 / (m * t)).regret
        assert taken > 0.3 * t
        assert printed < 500 * taken / math.sqrt(t)


# -- As printed ------------------------------------------------------------------------------------


def test_printed_orders() -> None:
    log_t, log_d = math.log(1000), math.log(8)
    stoch: dict[str, Any] = {"lipschitz": 2.0, "constant": 3.0}
    first = math.sqrt(1000 * log_d / 16)
    agree(
        bounds.theorem_2_2(1000, 16, 8, 0.25, smoothness=0.5, **stoch),
        3 * (2.5 * log_t * first + math.sqrt(1000) * log_t * log_d / (2 * 0.5)),
    )
    agree(
        bounds.corollary_2_3(1000, 16, 8, 0.25, **stoch),
        3 * (2 * log_t * first + math.sqrt(2) * log_t * log_d / (2 * 0.25)),
    )
    # The corollary is the theorem's second term at beta = 1/(T epsilon).
    beta = 1 / (1000 * 0.25)
    difference = bounds.theorem_2_2(1000, 16, 8, 0.25, smoothness=beta, **stoch)
    difference -= bounds.corollary_2_3(1000, 16, 8, 0.25, **stoch)
    agree(difference, 3 * beta * log_t * first, 1e-6)
    svt: dict[str, Any] = {"phase_length": 10, "failure_probability": 0.1, "optimal_loss": 4.0}
    logs = math.log(1000**2 / 10**2 / 0.1) * math.log(80)
    agree(
        bounds.theorem_2_6(1000, 5, 8, 0.5, **svt),
        (log_d**2 + logs) / 2.5 + 14 * math.log(80),
    )
    agree(
        bounds.theorem_2_6(1000, 5, 8, 0.5, **svt, delta=1e-5, constant=2.0),
        2 * ((log_d**1.5 * math.sqrt(math.log(1e5)) + logs) / 2.5 + 14 * math.log(80)),
    )
    agree(bounds.theorem_2_4_private(1000, 8, 0.5, constant=2.0), 4 * log_d)
    assert bounds.theorem_2_4_private(3, 8, 0.5) == 3
    agree(bounds.theorem_2_7(5, 8, 0.5, constant=2.0), 4 * log_d / 5)


def test_table_1() -> None:
    t, m, d, epsilon = 1000, 16, 8, 0.5
    log_t, log_d = math.log(t), math.log(d)
    expected = {
        "limited-updates": math.sqrt(t * log_d) + 2 * log_d * log_t,
        "fed-dp-ope-stoch": math.sqrt(t * log_d) / 4 + log_d * log_t / 2,
        "sparse-vector": 2 * (log_t * log_d + log_d**2),
        "fed-svt": (log_t * log_d + log_d**2) / 8,
        "sparse-vector-approximate": 2 * (log_t * log_d + log_d**1.5),
        "fed-svt-approximate": (log_t * log_d + log_d**1.5) / 8,
        "realizable-lower": log_d / 8,
        "private-sd": 2 * math.sqrt(t) * log_d,
        "private-sd-approximate": math.sqrt(t * log_d) + 20 * log_d,
        "oblivious-lower": 2 * log_d,
    }
    assert tuple(expected) == bounds.TABLE_1
    for row, value in expected.items():
        agree(bounds.table_1(row, t, m, d, epsilon, constant=1.5), 1.5 * value)
    for fed, single in (
        ("fed-svt", "sparse-vector"),
        ("fed-dp-ope-stoch", "limited-updates"),
        ("fed-svt-approximate", "sparse-vector-approximate"),
    ):
        agree(bounds.table_1(fed, t, 1, d, epsilon), bounds.table_1(single, t, m, d, epsilon))
    agree(bounds.table_1_communication("fed-dp-ope-stoch", t, m, d, epsilon), 16 * 8 * log_t)
    agree(bounds.table_1_communication("fed-svt", t, m, d, epsilon), 16 * 16 * 8 * 1000 * 0.5)
    with pytest.raises(InputError, match='did you mean "fed-svt"'):
        bounds.table_1("fed-svr", t, m, d, epsilon)


# -- Bad input -------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "horizon": 100,
    "clients": 3,
    "experts": 5,
    "epsilon": 0.5,
    "delta": 1e-3,
    "failure_probability": 0.1,
    "lipschitz": 1.0,
    "smoothness": 0.1,
    "noise": "local",
    "spread": 1.0,
    "loss_range": 1.0,
    "phase": PhaseNoise(1, 2, (0.1,)),
    "phases": [None] * 7,
    "switches": 4,
    "decisions": 9,
    "gap": 4.0,
    "margin": 3.0,
    "noise_margin": 3.0,
    "threshold_scale": 1.0,
    "query_scale": 1.0,
    "phase_length": 5,
    "optimal_loss": 1.0,
    "eta": 0.1,
    "threshold": 5.0,
    "constant": 2.0,
    "row": "fed-svt",
}
BAD: dict[str, list[Any]] = {
    "horizon": [0, 1.5, True],
    "clients": [0, 2.0],
    "experts": [0, 3.0],
    "epsilon": [0, math.inf, "1"],
    "delta": [-1e-3, 1],
    "failure_probability": [0, 1],
    "lipschitz": [0, math.nan],
    "smoothness": [-1, math.inf],
    "noise": ["both", 1],
    "spread": [-1, 3.0],
    "loss_range": [-1, 3.0],
    "phase": [
        None,
        PhaseNoise(0, 2, ()),
        PhaseNoise(1, 3, (0.1,)),
        PhaseNoise(1, 2, ()),
        PhaseNoise(1, 2, (-1.0,)),
    ],
    "phases": [[], [None] * 6, [None] * 6 + [3]],
    "switches": [-1, 2.0],
    "decisions": [-1, 2.0],
    "gap": [0, 33, math.nan],
    "margin": [-1, math.inf],
    "noise_margin": [-1, math.inf],
    "threshold_scale": [-1, math.nan],
    "query_scale": [-1, math.nan],
    "phase_length": [0, 1.5],
    "optimal_loss": [-1, math.inf],
    "eta": [0, -1],
    "threshold": [-1, math.inf],
    "constant": [0, -1],
    "row": ["fed", 3],
}
FUNCTIONS = {
    name: getattr(bounds, name)
    for name in bounds.__all__
    if inspect.isfunction(getattr(bounds, name))
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_input_is_refused(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    good = {key: GOOD[key] for key in parameters}
    result = function(**good)
    assert np.isfinite(result).all()
    assert np.all(np.asarray(result) >= 0)
    for key in parameters:
        for value in BAD[key]:
            with pytest.raises(InputError):
                function(**{**good, key: value})
