"""Check the bounds for prediction from experts by brute force, by simulation of the algorithms and
by hand."""

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
NOISE_SCALES = [(1.0, 1.0), (4.0, 8.0), (5.0, 0.3), (0.0, 2.0), (2.0, 0.0), (3.0, 3.0 * (1 + 1e-9))]


def check_equal(actual: float, expected: float, rel: float = 1e-9) -> None:
    """Check that two numbers are equal up to rounding."""
    assert math.isclose(actual, expected, rel_tol=rel), (actual, expected)


# -- Fed-DP-OPE-Stoch ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 17, 400])
def test_largest_laplace_equals_its_integral(d: int) -> None:
    def probability_above(x: float) -> float:
        """Return the probability that the largest of d Laplace numbers exceeds x."""
        return -math.expm1(d * math.log1p(-0.5 * math.exp(-x)))

    positive_part = integrate.quad(probability_above, 0, 60, epsabs=1e-12)[0]
    negative_part = integrate.quad(lambda x: (0.5 * math.exp(x)) ** d, -60, 0, epsabs=1e-12)[0]
    assert _largest_laplace(d) == pytest.approx(positive_part - negative_part, abs=1e-9)


@pytest.mark.parametrize(
    ("variance", "draws", "scale"), [(1.0, 1, 0.0), (1.0, 1, 1.0), (0.01, 1, 2.0), (0.2, 5, 0.3)]
)
def test_largest_error_bounds_drawn_errors_closely(
    variance: float, draws: int, scale: float
) -> None:
    d, runs = 300, 2000
    r = RNG(1)
    error = math.sqrt(variance) * r.standard_normal((runs, d))
    for _ in range(draws):
        error -= scale * r.laplace(size=(runs, d))
    largest = error.max(axis=1)
    low = largest.mean() - 4 * largest.std() / math.sqrt(runs)
    # Chernoff's bound is 1.41 times too large at most, when the error and one draw of noise are
    # equal.
    assert low <= _largest_error(variance, draws, scale, d) <= 1.5 * largest.mean()


def test_largest_error_is_the_smallest_chernoff_bound() -> None:
    for variance, draws, scale, d in product((0.0, 1e-4, 1.0, 1e4), (2, 50), (1e-3, 2.0), (2, 900)):
        u = np.geomspace(1e-6, 1, 400_001)[:-1] / scale
        grid = math.log(d) + u * u * variance / 2 - draws * np.log1p(-((u * scale) ** 2))
        check_equal(_largest_error(variance, draws, scale, d), (grid / u).min(), 1e-5)


def leaves_with_right_vertices(trees: int) -> list[list[tuple[int, int]]]:
    """Return (depth, leaf at which the parent was visited) of the right vertices of every leaf.

    Leaves are in depth-first order. The first entry of a leaf is -1 and the number of its tree.
    """
    leaves: list[list[tuple[int, int]]] = []

    def visit(depth: int, tree: int, path: list[tuple[int, int]]) -> None:
        """Visit the vertices of a tree depth first; `path` lists the right vertices above."""
        if depth == tree:
            leaves.append([(-1, tree), *path])
            return
        first = len(leaves) + 1
        visit(depth + 1, tree, path)
        visit(depth + 1, tree, [*path, (depth + 1, first)])

    for tree in range(1, trees + 1):
        visit(0, tree, [])
    return leaves


def largest_movement(first: int, last: int) -> float:
    """Return the largest 1-norm by which updates first..last - 1 can move x.

    Every update moves toward a new vertex.
    """
    size = last - first + 1
    x = np.zeros(size)
    x[0] = 1.0
    for i, k in enumerate(range(first, last), start=1):
        eta = 2.0 / (k + 1)
        x *= 1 - eta
        x[i] += eta
    x[0] -= 1.0
    return float(np.abs(x).sum())


def suboptimality_by_leaf(
    phase: PhaseNoise, m: int, d: int, beta: float, spread: float, local: bool
) -> float:
    """Calculate the recursion leaf by leaf, with a Chernoff bound on a grid for each leaf."""
    h = math.inf
    for k, (head, *right_vertices) in enumerate(leaves_with_right_vertices(phase.trees), start=1):
        variance = spread**2 / 4 / (phase.batch * m)
        for depth, first in right_vertices:
            samples = phase.batch // 2**depth * m
            half_range = min(
                spread, beta * largest_movement(first, k - (k - first) % 2 ** (head[1] - depth))
            )
            variance += (2 * half_range) ** 2 / 4 / samples
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
def test_suboptimality_of_a_phase_equals_the_recursion_by_leaf(beta: float, local: bool) -> None:
    phase = PhaseNoise(4, 32, (0.02, 0.05, 0.1, 0.3))
    for m, d in ((1, 2), (3, 40), (20, 1000)):
        by_leaf = suboptimality_by_leaf(phase, m, d, beta, 1.0, local)
        actual = bounds.phase_suboptimality(
            phase,
            m,
            d,
            lipschitz=100.0,
            smoothness=beta,
            noise="local" if local else "central",
            spread=1.0,
        )
        # The function uses the mean variance of a tree for every leaf. This is never smaller, and
        # equal for beta = 0.
        assert by_leaf * (1 - 1e-5) <= actual <= by_leaf * (1 + 1e-4 if beta == 0 else 1.06)


def simulate_phase(
    phase: PhaseNoise, m: int, d: int, beta: float, local: bool, runs: int, r: np.random.Generator
) -> np.ndarray:
    """Return the suboptimality of DP-FW from e_1 for losses <g, x> + (beta/2) <s, x>^2.

    The entries of g are fair or unfair coins, and s has entries +-1. All runs are simulated at
    once. Each sample is a new draw, since it is used once.
    """
    p = np.linspace(0.35, 0.65, d)
    s = np.where(np.arange(d) % 2, 1.0, -1.0)

    def gradient(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return the gradient at x of the losses with these g."""
        return g + beta * (x @ s)[:, None] * s

    x = np.zeros((runs, d))
    x[:, 0] = 1.0
    k = 0
    for j in range(1, phase.trees + 1):
        points, values = [x] * (j + 1), [np.empty(0)] * (j + 1)
        for leaf in range(2**j):
            for depth in range(j + 1):
                # Visit the vertices of the path that begin at this leaf.
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
    # The minimum over mixtures of two experts of opposite sign; for equal signs it is at one of the
    # two.
    w = np.linspace(0, 1, 2001)
    smallest_loss = min(
        (w * p[a] + (1 - w) * p[b] + beta / 2 * (w * s[a] + (1 - w) * s[b]) ** 2).min()
        for a in range(d)
        for b in range(d)
    )
    return losses - smallest_loss


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_suboptimality_of_a_simulated_phase_is_within_its_bound(beta: float, local: bool) -> None:
    phase = PhaseNoise(3, 64, (0.1, 0.2, 0.4))
    m, d, runs = 4, 12, 400
    suboptimalities = simulate_phase(phase, m, d, beta, local, runs, RNG(2))
    bound = bounds.phase_suboptimality(
        phase,
        m,
        d,
        lipschitz=1 + beta,
        smoothness=beta,
        noise="local" if local else "central",
        spread=1 + 2 * beta,
    )
    assert suboptimalities.min() > -1e-9
    assert (
        suboptimalities.mean() + 4 * suboptimalities.std() / math.sqrt(runs)
        <= bound
        <= 12 * suboptimalities.mean()
    )


def test_smoothness_term_is_attained_and_the_printed_one_exceeded() -> None:
    """Check 2 beta eta^2 for (beta/2)(x_1 - x_2)^2 and a full step from e_1 to e_2.

    The printed term is eta^2 beta/2.
    """
    beta, s = 0.6, np.array([1.0, -1.0])

    def loss(x: np.ndarray) -> float:
        """Return the smooth loss (beta/2) <s, x>^2."""
        return beta / 2 * float(s @ x) ** 2

    for eta in (0.25, 1.0):
        x, w = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        slope = float(beta * (s @ x) * s @ (w - x))
        excess = loss(x + eta * (w - x)) - loss(x) - eta * slope
        check_equal(excess, 2 * beta * eta**2)
        assert excess > beta * eta**2 / 2


COMMON: dict[str, Any] = {"lipschitz": 1.0, "smoothness": 0.05, "noise": "central", "spread": 1.0}


def test_regret_is_the_sum_over_phases() -> None:
    phase = PhaseNoise(1, 4, (0.01,))
    of_one_phase = bounds.phase_suboptimality(phase, 50, 3, **COMMON)
    phases = [None, None, None, None, phase, None]
    for t in (32, 40, 63):
        total = bounds.stoch_regret(t, phases, 50, 3, **COMMON, loss_range=1.0)
        check_equal(total, 15 + (t - 15) * min(of_one_phase, 1.0))
    assert bounds.stoch_regret(63, [None] * 6, 50, 3, **COMMON) == 126
    # 6 of the 8 losses of phase 4 are used; a second tree would use 4 (1 + 1 + 1/2 + 1) = 14.
    with pytest.raises(InputError, match="at most 8 losses a client, got 14"):
        bounds.stoch_regret(31, [None] * 4 + [PhaseNoise(2, 4, (0.1, 0.1))], 5, 3, **COMMON)
    with pytest.raises(InputError, match="phases must be 6"):
        bounds.stoch_regret(40, phases[:5], 50, 3, **COMMON)
    with pytest.raises(InputError, match="begin with None"):
        bounds.stoch_regret(1, [phase], 50, 3, **COMMON)


def test_suboptimality_grows_with_noise_and_falls_with_data() -> None:
    def suboptimality(
        b: int = 64, m: int = 4, d: int = 10, scale: float = 0.1, beta: float = 0.05, **changes: Any
    ) -> float:
        """Return the bound for phase 2 with these sizes."""
        kwargs = {**COMMON, "smoothness": beta, **changes}
        return bounds.phase_suboptimality(PhaseNoise(2, b, (scale, 2 * scale)), m, d, **kwargs)

    assert suboptimality(b=128) < suboptimality() < suboptimality(b=32)
    assert suboptimality(m=5) < suboptimality() < suboptimality(m=3)
    assert suboptimality(d=9) < suboptimality() < suboptimality(d=11)
    assert suboptimality(scale=0.05) < suboptimality() < suboptimality(scale=0.2)
    assert suboptimality(beta=0.0) < suboptimality() < suboptimality(beta=0.1)
    assert suboptimality(spread=0.5) < suboptimality() < suboptimality(spread=2.0)
    # The average of m draws is smaller than one of them and larger than one draw of scale/m.
    assert suboptimality(scale=0.1 / 4) < suboptimality(noise="local") < suboptimality()
    assert suboptimality(scale=1e9) == 2.0
    assert suboptimality(scale=1e9, loss_range=1.0) == 1.0
    assert suboptimality(d=1) == 0.0
    assert suboptimality(m=10**9, scale=0.0, beta=0.0) < 1e-4


# -- Fed-SVT: switches -----------------------------------------------------------------------------


def probability_of_sum_below(k: int, limit: float, width: float) -> float:
    """Return P(X_1 + ... + X_k <= limit) for Exp(1) given X <= width, by inclusion and
    exclusion."""
    terms = [
        (-1) ** j * math.comb(k, j) * math.exp(-width * j) * special.gammainc(k, limit - width * j)
        for j in range(k + 1)
        if limit > width * j
    ]
    return math.fsum(terms) / (1 - math.exp(-width)) ** k


@pytest.mark.parametrize("gap", [2.0, 4.0, 7.0])
def test_budget_failure_bounds_the_distribution_of_the_sum(gap: float) -> None:
    for d, kappa in product((2, 30, 5000), (0, 1, 4, 12)):
        bound = bounds.budget_failure(d, kappa, gap=gap)
        exact = probability_of_sum_below(kappa + 1, math.log(d), gap / 2)
        rounded = probability_of_sum_below(
            kappa + 1, math.log(d) + (kappa + 1) * gap / 1024, gap / 2
        )
        assert exact * (1 - 1e-9) <= bound <= min(rounded, 1.0) + 1e-12


def budget_of_geometric_sums(d: int, rho: float) -> int:
    """Return 3 s plus the quantile of the sum of s geometric numbers with success probability 1/3.

    This is Lemma D.2, calculated by convolution.
    """
    s = (d - 1).bit_length()
    probabilities = np.zeros(3000)
    probabilities[1:] = (2 / 3) ** np.arange(2999) / 3
    sums = np.ones(1)
    for _ in range(s):
        sums = np.convolve(sums, probabilities)[:3000]
    return 3 * s + int(np.searchsorted(np.cumsum(sums), 1 - rho))


def test_switching_budgets_are_ordered() -> None:
    for d, rho in product((2, 3, 10, 100, 5000, 10**6), (0.5, 0.1, 0.05, 1e-3, 1e-6)):
        kappa = bounds.switching_budget(d, rho)
        assert bounds.budget_failure(d, kappa) <= rho
        assert kappa == 0 or bounds.budget_failure(d, kappa - 1) > rho
        assert kappa <= budget_of_geometric_sums(d, rho)
        assert kappa <= bounds.switching_budget_printed(d, rho)
        assert kappa <= bounds.switching_budget(d + 1, rho)
        assert kappa <= bounds.switching_budget(d, rho / 2)
    assert bounds.switching_budget(1, 0.1) == bounds.budget_failure(1, 0) == 0
    assert bounds.switching_budget_printed(100, 0.05) == math.ceil(21 + 24 * math.log(20)) == 93
    assert bounds.switching_budget_printed(64, 0.05) == math.ceil(18 + 24 * math.log(20)) == 90
    assert bounds.switching_budget(100, 0.05) == 10
    # Lemma D.3 alone does not prove the printed budget: 3 s + 24 ln(1/rho) is below the quantile.
    assert bounds.switching_budget_printed(2**40, 0.5) < budget_of_geometric_sums(2**40, 0.5)


def simulated_switches(d: int, runs: int, r: np.random.Generator) -> np.ndarray:
    """Count switches if experts lose gap/eta one after the other, in turn, except the last one.

    There is no noise and L is just below that loss, so that every loss of the expert in use causes
    a switch.
    """
    other_experts = np.arange(d - 1)
    last_loss = (d - 1) * math.ceil(
        math.log(d)
    )  # weights e^-2 per pass: only the last expert remains
    count = np.zeros(runs, dtype=int)
    for run in range(runs):
        t = 0
        while True:
            weights = np.append(np.exp(-2.0 * ((t - other_experts + d - 2) // (d - 1))), 1.0)
            x = int(np.searchsorted(np.cumsum(weights), r.random() * weights.sum()))
            if x == d - 1:
                break
            t += (x - t) % (d - 1) + 1
            if t > last_loss:
                break
            count[run] += 1
    return count


def test_simulated_switches_nearly_attain_the_budget_failure() -> None:
    d, runs = 600, 4000
    count = simulated_switches(d, runs, RNG(3))
    for kappa in range(12, 20):
        frequency = float((count > kappa).mean())
        assert frequency <= bounds.budget_failure(d, kappa) + 4 * math.sqrt(0.25 / runs)
    for kappa in (7, 8, 9, 10):
        frequency, proven = float((count > kappa).mean()), bounds.budget_failure(d, kappa)
        error = 4 * math.sqrt(proven / runs)
        assert 0.6 * proven - error <= frequency <= proven + error, (kappa, frequency, proven)
    # A sum with one switch fewer would be no bound.
    assert float((count > 8).mean()) > bounds.budget_failure(d, 10)


# -- Fed-SVT: noise --------------------------------------------------------------------------------


def laplace_cdf(x: float) -> float:
    """Return the distribution function of the standard Laplace distribution."""
    return 0.5 * math.exp(x) if x < 0 else 1 - 0.5 * math.exp(-x)


@pytest.mark.parametrize(("a", "b"), NOISE_SCALES)
def test_failure_probabilities_equal_their_integrals(a: float, b: float) -> None:
    for w, (n, kappa) in product((0.3, 5.0, 40.0), ((1, 0), (7, 2), (500, 9), (3, 50))):
        count = min(n, kappa + 1)
        k = n / count

        def kept(r: float, w: float = w, k: float = k) -> float:
            """Return the probability that no query exceeds the threshold, given its noise r."""
            if b == 0:
                return float(w + r >= 0)
            return laplace_cdf((w + r) / b) ** k

        def density(r: float) -> float:
            """Return the density of the threshold noise."""
            return math.exp(-abs(r) / a) / (2 * a)

        if a == 0:
            one_stretch = kept(0.0)
        else:
            peak = max(b * math.log(k) - w, -w + 0.01)
            interval_ends = sorted(
                {-w - 60 * max(a, b), -w, *(c for c in (peak, 0.0) if c > -w), 60 * a}
            )
            one_stretch = sum(
                integrate.quad(lambda r: density(r) * kept(r), *pair, limit=200, epsabs=1e-13)[0]
                for pair in pairwise(interval_ends)
            )
        actual = bounds.early_switch_failure(w, n, kappa, a, b)
        assert actual == pytest.approx(1 - one_stretch**count, rel=1e-6, abs=1e-9)
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


@pytest.mark.parametrize(("a", "b"), NOISE_SCALES)
def test_noise_margins_have_their_failure_probability(a: float, b: float) -> None:
    for n, kappa, rho in product((1, 40, 10**6), (0, 12), (0.5, 0.05, 1e-12)):
        w = bounds.noise_margin(n, kappa, a, b, rho)
        failure = bounds.early_switch_failure(w, n, kappa, a, b)
        assert rho * (1 - 1e-5) <= failure <= rho or (w < 1e-6 and failure <= rho)
        assert w <= bounds.noise_margin(n + 1, kappa, a, b, rho)
        assert w <= bounds.noise_margin(n, kappa + 1, a, b, rho) * (1 + 1e-8)
        # The failure probability is at most that of a union bound over decisions.
        union = min(1.0, n * bounds.late_switch_failure(w, 0, a, b))
        assert failure <= union * (1 + 1e-8)
    assert bounds.noise_margin(0, 3, a, b, 0.1) == 0.0
    assert bounds.noise_margin(9, 3, 0.0, 0.0, 0.1) == 0.0


def test_printed_margin_is_sufficient() -> None:
    for t, n, epsilon, rho in product((10, 10**6), (1, 7), (0.1, 3.0), (0.5, 1e-3)):
        w = bounds.noise_margin_printed(t, n, epsilon, rho)
        check_equal(w, 8 * math.log(2 * t**2 / (n**2 * rho)) / epsilon)
        failure = bounds.early_switch_failure(w, t // n, 20, 4 / epsilon, 8 / epsilon)
        assert failure <= rho * n / (3 * t)
        assert bounds.noise_margin(t // n, 20, 4 / epsilon, 8 / epsilon, rho) < w


def test_simulated_early_and_late_switches_attain_their_probability() -> None:
    """Simulate stretches of 10 decisions at L - W, then a jump far above, then one decision at L +
    W'."""
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


# -- Fed-SVT: simulations --------------------------------------------------------------------------


def simulate_svt(
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
    """Return the losses summed over clients and the number of switches, for all runs at once.

    The losses (T, d) are the same at all clients. From switch kappa on the expert is kept, but
    noise and queries continue.
    """
    t_end, d = losses.shape
    prefix = np.vstack([np.zeros(d), np.cumsum(losses, axis=0)]) * m
    x = r.integers(d, size=runs)
    start = np.zeros(runs, dtype=int)
    noise = a * r.laplace(size=runs)
    total_losses, switch_counts = np.zeros(runs), np.zeros(runs, dtype=int)
    counted_rounds = 0
    for t in range(n - 1, t_end, n):  # decision at round t + 1 = n, 2n, ...
        total_losses += prefix[t, x] - prefix[counted_rounds, x]
        counted_rounds = t
        q = prefix[t, x] - prefix[start, x]
        switch = (q + b * r.laplace(size=runs) > level + noise) & (switch_counts < kappa)
        weights = np.exp(-eta / 2 * (np.maximum(prefix[t], floor) - floor))
        draws = np.searchsorted(np.cumsum(weights), r.random(runs) * weights.sum())
        x = np.where(switch, draws, x)
        start = np.where(switch, t, start)
        noise = np.where(switch, a * r.laplace(size=runs), noise)
        switch_counts += switch
    total_losses += prefix[t_end, x] - prefix[counted_rounds, x]
    return total_losses, switch_counts


def losses_by_name(t: int, d: int, optimal: int) -> dict[str, np.ndarray]:
    """Return losses (T, d) whose last expert loses `optimal`, while the others lose in turn."""
    time, expert = np.arange(t)[:, None], np.arange(d)[None, :]
    turn = np.where(expert * t // d <= time, 1.0, 0.0)
    halves = np.where(expert < d - (d >> np.minimum(time * 5 // t, 30)), 1.0, 0.0)
    hidden = np.ones((t, d))
    by_name = {"turn": turn, "halves": halves, "hidden": hidden}
    for losses in by_name.values():
        losses[:, -1] = 0.0
        losses[:: max(1, t // max(optimal, 1)), -1] = 1.0 if optimal else 0.0
        losses[:, -1] *= np.cumsum(losses[:, -1]) <= optimal
    return by_name


@pytest.mark.parametrize("name", ["turn", "halves", "hidden"])
@pytest.mark.parametrize("optimal", [0, 5])
@pytest.mark.parametrize("n", [1, 9])
def test_regret_of_simulated_svt_is_within_its_bound(name: str, optimal: int, n: int) -> None:
    t, m, d, rho, epsilon, runs = 1500, 4, 16, 0.3, 40.0, 300
    losses = losses_by_name(t, d, optimal)[name]
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
    total_losses, switch_counts = simulate_svt(
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
    assert switch_counts.max() >= (
        1 if name == "hidden" else 2
    )  # the adversary does cause switches
    error = 4 * math.sqrt(rho / runs)
    assert (switch_counts <= kappa).mean() >= 1 - 2 * rho / 3 - error
    assert (total_losses / m <= bound).mean() >= 1 - rho - error
    # One stretch costs nearly its share, so that a bound for one stretch would be exceeded.
    assert name == "hidden" or (total_losses / m > bound / (kappa + 1)).mean() > rho


def test_svt_regret_has_values_calculated_by_hand() -> None:
    arguments: dict[str, Any] = {
        "phase_length": 6,
        "threshold": 20.0,
        "switches": 2,
        "threshold_scale": 0.0,
        "query_scale": 2.0,
        "failure_probability": 0.1,
    }
    late_margin = 2.0 * math.log(0.5 / (1 - 0.9 ** (1 / 3)))
    check_equal(bounds.svt_regret(1000, 4, **arguments), 3 * ((20 + late_margin) / 4 + 6), 1e-7)
    check_equal(bounds.svt_regret(1000, 4, **{**arguments, "query_scale": 0.0}), 3 * (20 / 4 + 6))
    assert bounds.svt_regret(7, 4, **arguments) == 7
    check_equal(bounds.threshold(5, 3.0, 0.1, 7.0), 15 + 7 + 40)
    check_equal(bounds.threshold(5, 3.0, 0.1, 7.0, gap=6.0), 15 + 7 + 60)
    for name, larger_value in [
        ("phase_length", 7),
        ("threshold", 21.0),
        ("switches", 3),
        ("threshold_scale", 1.0),
        ("query_scale", 2.5),
        ("failure_probability", 0.05),
    ]:
        assert bounds.svt_regret(1000, 4, **{**arguments, name: larger_value}) > bounds.svt_regret(
            1000, 4, **arguments
        )
    assert bounds.svt_regret(1000, 5, **arguments) < bounds.svt_regret(1000, 4, **arguments)


# -- Lower bounds ----------------------------------------------------------------------------------


def test_regret_of_fair_coins_equals_enumeration() -> None:
    for t, d in [(1, 2), (2, 2), (3, 3), (4, 2), (2, 4), (3, 1)]:
        smallest_losses = [
            np.array(coins).reshape(t, d).sum(axis=0).min()
            for coins in product((0, 1), repeat=t * d)
        ]
        assert bounds.theorem_2_4(t, d) == pytest.approx(
            t / 2 - np.mean(smallest_losses), abs=1e-12
        )


def test_regret_of_fair_coins_equals_closed_forms() -> None:
    for t in (1, 2, 3, 50, 1001, 2**20, 10**9):
        # Two experts: half of E|Bin - Bin'|, which is t C(2t, t)/4^t.
        log_binomial = special.gammaln(2 * t + 1) - 2 * special.gammaln(t + 1) - 2 * t * math.log(2)
        # lgamma has the absolute error of 2t ln(2t).
        rel = 1e-9 + 4e-16 * t * math.log(t + 1)
        check_equal(bounds.theorem_2_4(t, 2), t / 2 * math.exp(log_binomial), rel)
        assert abs(bounds.theorem_2_4(t, 1)) < 1e-6 * math.sqrt(t)
    for t, d in product((100, 2**20), (2, 3, 100, 10**4)):
        upper_bound = math.sqrt(t * math.log(d) / 2)
        assert bounds.theorem_2_4(t, d) < upper_bound
        assert bounds.theorem_2_4(t, d) < bounds.theorem_2_4(t, d + 1)
        assert bounds.theorem_2_4(t, d) < bounds.theorem_2_4(t + 1, d)
    # The normal limit for large T: E max of d N(0, 1/4), times sqrt(T).
    d = 50
    expected_maximum = integrate.quad(
        lambda x: -math.expm1(d * special.log_ndtr(x)) - math.exp(d * special.log_ndtr(-x)), 0, 12
    )[0]
    check_equal(bounds.theorem_2_4(2**30, d), expected_maximum * 2**15 / 2, 1e-4)


def test_hedge_has_the_regret_of_fair_coins() -> None:
    t, d, runs = 60, 5, 6000
    coins = RNG(6).integers(0, 2, size=(runs, t, d)).astype(float)
    before = np.cumsum(coins, axis=1) - coins
    weights = np.exp(-0.4 * (before - before.min(axis=2, keepdims=True)))
    weights /= weights.sum(axis=2, keepdims=True)
    regret = (weights * coins).sum(axis=(1, 2)) - coins.sum(axis=1).min(axis=1)
    proven = bounds.theorem_2_4(t, d)
    assert abs(regret.mean() - proven) < 4 * regret.std() / math.sqrt(runs) < 0.05 * proven


def smallest_miss_probability(a: float, slack: float, d: int) -> float:
    """Return the least mean of 1 - P_j(j) over distributions P_1..P_d (a, slack)-close to one P_0.

    Solve a linear program over P_0, P_1 (by symmetry), and the excess of each over e^a times the
    other.
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
    equalities = np.zeros((d + 1, size))
    equalities[:d, :d] = np.eye(d)
    equalities[d, d : 2 * d] = 1.0
    solution = optimize.linprog(
        cost, np.array(rows), limits, equalities, [*([1.0 / d] * d), 1.0], bounds=(0, None)
    )
    assert solution.status == 0
    return 1.0 + float(solution.fun)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_hidden_expert_bound_is_the_sum_of_linear_programs(delta: float) -> None:
    for m, d, epsilon in ((1, 2, 0.3), (3, 5, 0.2), (2, 40, 0.5)):
        total, t = 0.0, 12
        for i in range(t):
            a = epsilon * m * i
            slack = delta * math.expm1(a) / math.expm1(epsilon)
            total += smallest_miss_probability(a, slack, d)
        bound = bounds.hidden_expert(t, m, d, epsilon, delta=delta)
        assert bound.regret == pytest.approx(total, rel=1e-7)
        assert bound.rounds == t if delta == 0 else bound.rounds <= t


def test_hidden_expert_bound_is_the_sum_of_its_terms() -> None:
    for t, m, d, epsilon, delta in product(
        (1, 2, 300), (1, 7), (2, 3, 900), (1e-4, 0.05, 3.0, 900.0), (0.0, 1e-9, 0.01)
    ):
        terms = []
        for i in range(t):
            y = math.exp(min(epsilon * m * i, 500.0))
            c = delta / math.expm1(epsilon) if epsilon < 700 else 0.0
            delta_term = c * (y - 1)
            terms.append(max(1 - y / d - delta_term, (1 - 1 / d - delta_term) / y, 0.0))
        bound = bounds.hidden_expert(t, m, d, epsilon, delta=delta)
        assert bound.regret == pytest.approx(math.fsum(terms), rel=1e-7, abs=1e-12)
        nearly_bound = bound.regret * (1 - 1e-12)
        # Neither fewer nor more rounds give a larger bound.
        assert all(term > 0 for term in terms[: bound.rounds - 1])
        assert not any(terms[bound.rounds :])
        assert bounds.hidden_expert(t, m + 1, d, epsilon, delta=delta).regret * (1 - 1e-12) <= (
            bound.regret
        )
        assert bounds.hidden_expert(t + 1, m, d, epsilon, delta=delta).regret >= nearly_bound
        assert bounds.hidden_expert(t, m, d, epsilon, delta=delta / 2).regret >= nearly_bound
    assert bounds.hidden_expert(9, 1, 1, 0.5) == (9, 0.0)


def test_constants_of_the_hidden_expert_bound() -> None:
    for d, m, epsilon in product((2, 3, 4, 5, 10, 10**3, 10**9), (1, 30), (1e-6, 1e-3, 0.1, 2.0)):
        for t in (1, 2, 10, 1000, 10**9):
            proven = bounds.hidden_expert(t, m, d, epsilon).regret
            assert proven >= 0.36 * min(bounds.theorem_2_7(m, d, epsilon), t)
            assert proven <= t
        of_long_horizon = bounds.hidden_expert(10**12, m, d, epsilon).regret
        assert of_long_horizon >= (math.log(d - 1) - 1 + 3 / d) / (m * epsilon) * (1 - 1e-9)
        assert of_long_horizon >= 0.6 * bounds.theorem_2_7(m, d, epsilon)
    # The constant 0.36 cannot be much larger.
    tight = bounds.hidden_expert(693147, 1, 2, 1e-6).regret
    assert tight < 0.361 * bounds.theorem_2_7(1, 2, 1e-6)


def test_regret_of_a_private_algorithm_exceeds_the_hidden_expert_bound() -> None:
    """Check exponential weights that draw an expert again in every round.

    Each draw after the first spends epsilon / (T - 1). The learning rate is the largest that this
    budget allows. If one expert never loses and all others always lose, the regret has a closed
    form.
    """
    t, d = 200, 30
    for m, epsilon in product((1, 5, 400), (0.1, 1.0, 10.0)):
        rate = epsilon / (2 * (t - 1)) * m
        i = np.arange(t)
        regret = float((1 - 1 / (1 + (d - 1) * np.exp(-rate * i))).sum())
        assert regret >= bounds.hidden_expert(t, m, d, epsilon).regret


def hedge_regret(t: int, m: int, d: int, epsilon: float) -> float:
    """Return an upper bound on the regret of Hedge with fresh draws at rate epsilon/(2 T) per
    loss."""
    rate = min(math.sqrt(8 * math.log(d) / t), m * epsilon / (2 * t))
    return math.log(d) / rate + rate * t / 8


def test_printed_private_bound_contradicts_hedge() -> None:
    for t, d in ((10**4, 10), (10**6, 10), (10**8, 10)):
        epsilon = math.log(d) / t
        m = math.ceil(math.sqrt(32 * t * math.log(d)) / epsilon)
        printed = bounds.theorem_2_4_private(t, d, epsilon)
        assert printed == pytest.approx(t)
        check_equal(hedge_regret(t, m, d, epsilon), math.sqrt(t * math.log(d) / 2), 1e-6)
        assert hedge_regret(t, m, d, epsilon) < 1.1 / math.sqrt(t) * printed
        # The proven bounds do not contradict it.
        assert bounds.hidden_expert(t, m, d, epsilon).regret < hedge_regret(t, m, d, epsilon)
        assert bounds.theorem_2_4(t, d) < hedge_regret(t, m, d, epsilon)


def test_printed_upper_bound_contradicts_the_hidden_expert() -> None:
    """Check beta = 0 and epsilon = 1/(m T), where the printed order is far below the adversary's
    regret."""
    for t in (10**4, 10**6, 10**8):
        m, d = 100, 10
        printed = bounds.theorem_2_2(t, m, d, 1 / (m * t), lipschitz=1.0, smoothness=0.0)
        adversary_regret = bounds.hidden_expert(t, m, d, 1 / (m * t)).regret
        assert adversary_regret > 0.3 * t
        assert printed < 500 * adversary_regret / math.sqrt(t)


# -- Orders as printed in the paper ----------------------------------------------------------------


def test_printed_orders_follow_their_formulas() -> None:
    log_t, log_d = math.log(1000), math.log(8)
    stoch_arguments: dict[str, Any] = {"lipschitz": 2.0, "constant": 3.0}
    first_term = math.sqrt(1000 * log_d / 16)
    check_equal(
        bounds.theorem_2_2(1000, 16, 8, 0.25, smoothness=0.5, **stoch_arguments),
        3 * (2.5 * log_t * first_term + math.sqrt(1000) * log_t * log_d / (2 * 0.5)),
    )
    check_equal(
        bounds.corollary_2_3(1000, 16, 8, 0.25, **stoch_arguments),
        3 * (2 * log_t * first_term + math.sqrt(2) * log_t * log_d / (2 * 0.25)),
    )
    # At beta = 1/(T epsilon) the theorem and its corollary differ by the term with beta.
    beta = 1 / (1000 * 0.25)
    difference = bounds.theorem_2_2(1000, 16, 8, 0.25, smoothness=beta, **stoch_arguments)
    difference -= bounds.corollary_2_3(1000, 16, 8, 0.25, **stoch_arguments)
    check_equal(difference, 3 * beta * log_t * first_term, 1e-6)
    svt_arguments: dict[str, Any] = {
        "phase_length": 10,
        "failure_probability": 0.1,
        "optimal_loss": 4.0,
    }
    log_terms = math.log(1000**2 / 10**2 / 0.1) * math.log(80)
    check_equal(
        bounds.theorem_2_6(1000, 5, 8, 0.5, **svt_arguments),
        (log_d**2 + log_terms) / 2.5 + 14 * math.log(80),
    )
    check_equal(
        bounds.theorem_2_6(1000, 5, 8, 0.5, **svt_arguments, delta=1e-5, constant=2.0),
        2 * ((log_d**1.5 * math.sqrt(math.log(1e5)) + log_terms) / 2.5 + 14 * math.log(80)),
    )
    check_equal(bounds.theorem_2_4_private(1000, 8, 0.5, constant=2.0), 4 * log_d)
    assert bounds.theorem_2_4_private(3, 8, 0.5) == 3
    check_equal(bounds.theorem_2_7(5, 8, 0.5, constant=2.0), 4 * log_d / 5)


def test_rows_of_table_1_follow_their_formulas() -> None:
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
        check_equal(bounds.table_1(row, t, m, d, epsilon, constant=1.5), 1.5 * value)
    for federated, single_client in (
        ("fed-svt", "sparse-vector"),
        ("fed-dp-ope-stoch", "limited-updates"),
        ("fed-svt-approximate", "sparse-vector-approximate"),
    ):
        check_equal(
            bounds.table_1(federated, t, 1, d, epsilon),
            bounds.table_1(single_client, t, m, d, epsilon),
        )
    check_equal(bounds.table_1_communication("fed-dp-ope-stoch", t, m, d, epsilon), 16 * 8 * log_t)
    check_equal(bounds.table_1_communication("fed-svt", t, m, d, epsilon), 16 * 16 * 8 * 1000 * 0.5)
    with pytest.raises(InputError, match='did you mean "fed-svt"'):
        bounds.table_1("fed-svr", t, m, d, epsilon)


# -- Invalid arguments -----------------------------------------------------------------------------

VALID: dict[str, Any] = {
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
INVALID: dict[str, list[Any]] = {
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
def test_functions_refuse_invalid_arguments(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    valid = {argument: VALID[argument] for argument in parameters}
    result = function(**valid)
    assert np.isfinite(result).all()
    assert np.all(np.asarray(result) >= 0)
    for argument in parameters:
        for value in INVALID[argument]:
            with pytest.raises(InputError):
                function(**{**valid, argument: value})
