"""The oracle of Gao et al. 2024 against itself: definitions, exact laws, second players, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, exp, factorial, log, log2, sqrt
from typing import Any

import numpy as np
import pytest
from oracle.gao_2024 import (
    SERVER,
    LinearLosses,
    OpeRun,
    SvtNoise,
    advanced_epsilon,
    argmin_cost,
    argmin_law,
    batch_paper,
    corollary_2_3,
    decisions,
    depth_first,
    design,
    eta_advanced,
    eta_printed,
    eta_pure,
    eta_zcdp,
    expert_law,
    exponential_law,
    feasible,
    fed_svt,
    first_round,
    follow_the_leader,
    hedge,
    lambda_corrected,
    lambda_printed,
    leaf_change,
    leaves_below,
    log_ratio,
    mu_corrected,
    mu_printed,
    noise_gap_tail,
    number_of_leaves,
    number_of_phases,
    ope_law,
    ope_stoch,
    quadrature,
    query_scale_printed,
    regret,
    response_delta,
    response_epsilon,
    sample_rounds,
    samples_needed,
    scale_least,
    segment_probability,
    svt_cost,
    svt_cost_standard,
    svt_law,
    switching_budget,
    theorem_2_2,
    theorem_2_4,
    theorem_2_6,
    theorem_2_7,
    threshold,
    threshold_scale_printed,
    trees_wanted,
    uniform_expert,
    zcdp_epsilon,
)


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([2024, *key])


# Phases, batches and trees.


def test_phases_share_the_rounds() -> None:
    for T in (1, 2, 3, 4, 100, 2**14):
        P = number_of_phases(T)
        assert first_round(P) <= T < first_round(P + 1)
    assert number_of_phases(2**14) == 15
    assert [list(sample_rounds(p)) for p in (2, 3, 4)] == [[1], [2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("b, T1, need", [(1, 1, 1.5), (4, 2, 14.0), (16, 3, 96.0)])
def test_samples_needed(b: int, T1: int, need: float) -> None:
    assert samples_needed(b, T1) == need
    by_vertex = 0.0
    for j in range(1, T1 + 1):
        for path in depth_first(j):
            by_vertex += 0 if path.endswith("0") else b / 2 ** len(path)
    assert by_vertex == need


def test_depth_first() -> None:
    assert depth_first(2) == ["", "0", "00", "01", "1", "10", "11"]
    for T1 in (1, 2, 5):
        leaves = sum(len(s) == j for j in range(1, T1 + 1) for s in depth_first(j))
        assert leaves == number_of_leaves(T1)


def test_batch_of_the_paper() -> None:
    found = [batch_paper(p) for p in range(2, 16)]
    assert found == [2, 1, 0, 1, 1, 1, 2, 4, 4, 8, 16, 16, 32, 64]
    for p in range(2, 40):
        exact = 2.0 ** (p - 1) / (p - 1) ** 2
        assert batch_paper(p) == (2 ** int(np.floor(np.log2(exact))) if exact >= 1 else 0)


def test_first_phases_are_infeasible() -> None:
    """As printed: p = 2 wants 3 of 1 sample, p = 3 half samples; until p = 7, b < 2."""
    assert samples_needed(2, 1) > len(sample_rounds(2))
    assert not feasible(2, 2, 1) and not feasible(3, 1, 1)
    huge: dict[str, Any] = {"m": 10**12, "d": 2, "epsilon": 1e6, "alpha": 1.0, "beta": 1.0}
    assert [p for p in range(1, 12) if design("paper", p, **huge)[1]] == [8, 9, 10, 11]
    assert next(p for p in range(1, 12) if design("largest", p, **huge)[1]) == 4


@pytest.mark.parametrize("m, d, epsilon", [(1, 10, 1.0), (16, 10, 0.3), (256, 100, 5.0)])
@pytest.mark.parametrize("central", [False, True])
def test_designs_by_their_definition(m: int, d: int, epsilon: float, central: bool) -> None:
    given: dict[str, Any] = {"m": m, "d": d, "epsilon": epsilon, "alpha": 2.0, "beta": 1.5}
    for p in range(2, 18):
        n = 2 ** (p - 2)
        root = m if central else sqrt(m)

        def rule(b: int, root: float = root) -> float:
            return 0.5 * np.log2(b * epsilon * 1.5 * root / (2.0 * log(d)))

        def fits(b: int, T1: int, n: int = n) -> bool:
            return b % 2**T1 == 0 and b * (T1 + T1 * (T1 + 1) / 4) <= n

        b = batch_paper(p)
        T1 = max([k for k in range(1, 30) if b and fits(b, k) and k <= rule(b)], default=0)
        assert design("paper", p, central=central, **given) == (b, T1)

        best = (0, 0)
        for power in range(1, 20):
            b = 2**power
            T1 = max([k for k in range(1, power + 1) if k <= rule(b)], default=0)
            if T1 and fits(b, T1):
                best = (b, T1)
        assert design("largest", p, central=central, **given) == best


def test_designs_at_the_experiment() -> None:
    """T = 2^14, alpha = beta = 1, eps 1, d 10: where trees begin, and the last of them."""

    def trees(rule: str, m: int) -> list[int]:
        rest: dict[str, Any] = {"d": 10, "epsilon": 1.0, "alpha": 1.0, "beta": 1.0}
        return [design(rule, p, m=m, **rest)[1] for p in range(1, 16)]

    assert trees("paper", 1) == [0] * 11 + [1, 1, 1, 2]
    assert trees("paper", 256) == [0] * 7 + [1, 2, 2, 2, 3, 3, 3, 4]
    assert trees("largest", 1) == [0] * 6 + [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert trees("largest", 256) == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5]


def test_trees_at_the_ends_of_the_rule() -> None:
    given: dict[str, Any] = {"m": 4, "epsilon": 1.0, "alpha": 1.0}
    assert design("largest", 12, d=10, beta=0.0, **given) == (0, 0)
    # One expert: nothing to learn, ln d = 0 asks for every tree that fits.
    b, T1 = design("largest", 12, d=1, beta=1.0, **given)
    assert feasible(12, b, T1) and b == 2**T1
    with pytest.raises(ValueError, match="rule"):
        design("other", 3, d=2, beta=1.0, **given)


def test_trees_balance_the_bound() -> None:
    """T1 makes beta / 2^T1 and alpha 2^T1 ln d / (b eps sqrt m) equal: log is log2 there (E4)."""
    m, d, epsilon, alpha, beta, b = 49, 30, 0.7, 1.3, 0.6, 2**20
    T1 = trees_wanted(b, m=m, d=d, epsilon=epsilon, alpha=alpha, beta=beta)
    assert beta / 2**T1 == pytest.approx(alpha * 2**T1 * log(d) / (b * epsilon * sqrt(m)))
    T1 = trees_wanted(b, m=m, d=d, epsilon=epsilon, alpha=alpha, beta=beta, central=True)
    assert beta / 2**T1 == pytest.approx(alpha * 2**T1 * log(d) / (b * epsilon * m))


def test_corollary_2_3_grows_no_tree() -> None:
    """beta = 1/(T eps): T1 >= 1 needs sqrt m >= 4 alpha ln d log2(T)^2 in the last phase (E6)."""
    T, d, epsilon = 2**14, 10, 1.0
    given: dict[str, Any] = {"d": d, "epsilon": epsilon, "alpha": 1.0, "beta": 1 / (T * epsilon)}

    def most(rule: str, m: int) -> int:
        return max(design(rule, p, m=m, **given)[1] for p in range(1, 16))

    least = (4 * log(d) * 14**2) ** 2
    assert least == pytest.approx(3.26e6, rel=1e-3)
    b = 2**14 / 14**2
    assert trees_wanted(b, m=least, **given) == pytest.approx(1.0)  # type: ignore[arg-type]
    assert most("paper", round(0.9 * least)) == 0
    # Rounding b down to 64 asks for (83.6 / 64)^2 times as many clients.
    assert most("paper", round(1.7 * least)) == 0 and most("paper", round(1.72 * least)) == 1
    # b = 4096, a quarter of T: sqrt m >= 16 ln d.
    assert most("largest", 1350) == 0 and most("largest", 1365) == 1


# Scales and sensitivities.


def test_scales() -> None:
    assert lambda_printed(1, 2, 16, 1) == 1.0
    assert mu_printed(1, 2, 16, 1, 10) == 0.1
    assert mu_corrected(1, 2, 16, 1, 10) == 0.2
    assert lambda_corrected(1, 2, 16, 1) == 2.0


@dataclass(frozen=True)
class SquaredLosses:
    """(<a, x> - y)^2 / 2 with |a|, |y| <= 1: gradients up to 2, beta = 1."""

    a: np.ndarray  # (m, T, d)
    y: np.ndarray  # (m, T)

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        a = self.a[client, t - 1]
        return a * (a @ x - self.y[client, t - 1])


def squared(m: int, T: int, d: int, *key: int) -> SquaredLosses:
    rng = keyed(*key)
    return SquaredLosses(rng.uniform(-1, 1, (m, T, d)), rng.uniform(-1, 1, (m, T)))


@dataclass(frozen=True)
class Kinked:
    """alpha |<u, x> - c|, |u| <= 1: convex, alpha-Lipschitz; smoothed, as sharp as one likes."""

    u: np.ndarray
    c: float
    alpha: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.alpha * self.u * (1.0 if self.u @ x > self.c else -1.0)


@dataclass(frozen=True)
class Replaced:
    """Some losses with those of one client and round replaced."""

    losses: Any
    client: int
    t: int
    gradient_there: Callable[[np.ndarray], np.ndarray]

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        if (client, t) == (self.client, self.t):
            return self.gradient_there(x)
        return self.losses.gradient(client, t, x)


def permutations(*key: int) -> Callable[[int, int], np.ndarray]:
    return lambda i, p: keyed(1, *key, i, p).permutation(2 ** (p - 2))


def laplace_noise(d: int, *key: int) -> Callable[[int, int, int], np.ndarray]:
    return lambda i, p, k: keyed(2, *key, i + 1, p, k).laplace(size=d)


def one_phase(p: int, b: int, T1: int) -> Callable[[int], tuple[int, int]]:
    return lambda q: (b, T1) if q == p else (0, 0)


def leaf_values(run: OpeRun) -> np.ndarray:
    """(leaves, m, d), from the messages of runs without noise."""
    return np.array([leaf.messages for leaf in run.leaves])


def set_of(run: OpeRun, client: int, t: int) -> tuple[int, str] | None:
    found = [(v.tree, v.path) for v in run.vertices if t in v.rounds[client]]
    assert len(found) <= 1
    return found[0] if found else None


def moved_leaves(run: OpeRun, other: OpeRun, client: int, t: int) -> tuple[int, float, int]:
    """(depth of the set, largest change of an entry, leaves that changed) under the same w."""
    change = np.abs(leaf_values(run) - leaf_values(other))
    assert np.all(np.delete(change, client, axis=1) == 0)
    touched = np.flatnonzero(np.max(change, axis=(1, 2)) > 0)
    where = set_of(run, client, t)
    if where is None:
        assert len(touched) == 0
        return -1, 0.0, 0
    tree, path = where
    below = [
        n for n, leaf in enumerate(run.leaves) if leaf.tree == tree and leaf.path.startswith(path)
    ]
    assert set(touched) <= set(below)
    assert len(below) == leaves_below(tree, len(path))
    return len(path), float(np.max(change)), len(touched)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_sensitivity_of_the_leaves(nonnegative: bool) -> None:
    """Any gradient functions in [-alpha, alpha] or [0, alpha]; each sample of a phase replaced."""
    m, d, p, b, T1, alpha = 2, 3, 8, 8, 3, 1.5
    low = 0.0 if nonnegative else -alpha

    class Signs:
        """One sign per entry, as good as drawn anew at each x."""

        def __init__(self, *key: int) -> None:
            self.wave = keyed(3, *key).normal(0, 1000, (m, 2**p, d, d))

        def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
            return np.where(np.sin(self.wave[client, t] @ x) > 0, alpha, low)

    given: dict[str, Any] = {
        "T": 2**p - 1,
        "m": m,
        "d": d,
        "designs": one_phase(p, b, T1),
        "permutation": permutations(4),
        "forced": lambda p, k: int(keyed(5, p, k).integers(d)),
    }
    base = Signs(0)
    run = ope_stoch(base, **given)
    largest: dict[int, float] = {}
    for attempt in range(3):
        fresh = Signs(7, attempt)
        for t in sample_rounds(p):
            there = Replaced(base, 1, t, lambda x, t=t, fresh=fresh: fresh.gradient(1, t, x))
            depth, change, _ = moved_leaves(run, ope_stoch(there, **given), 1, t)
            if depth >= 0:
                largest[depth] = max(largest.get(depth, 0.0), change)
    assert sorted(largest) == [0, 1, 2, 3]
    for depth, change in largest.items():
        bound = leaf_change(alpha, b, depth, nonnegative)
        # Met by such losses at every depth: the bounds are not loose.
        assert change == pytest.approx(bound)


def test_convex_losses_meet_the_bound_up_and_down() -> None:
    """Scores 0 and 1 move by 4 alpha 2^|s|/b in opposite directions: the argmin pays for 8."""
    alpha, b, d = 1.0, 2, 4
    given: dict[str, Any] = {
        "T": 15,
        "m": 1,
        "d": d,
        "designs": one_phase(4, b, 1),
        "permutation": lambda i, p: np.arange(2 ** (p - 2)),
        "forced": lambda p, k: 2,
    }
    base = LinearLosses(np.zeros((1, 15, d)))
    up = Kinked(np.array([1.0, -1, 1, -1]), 0.5, alpha)
    down = Kinked(np.array([-1.0, 1, 1, -1]), 0.5, alpha)
    t = 4 + b  # the third sample: the right child's
    values = [leaf_values(ope_stoch(Replaced(base, 0, t, f), **given))[1, 0] for f in (up, down)]
    most = leaf_change(alpha, b, 1)
    assert most == 4 * alpha * 2 / b
    assert values[0] - values[1] == pytest.approx([most, -most, 0, 0])
    # With the printed scale the argmin's log ratio passes eps and tends to 2 eps (E2).
    epsilon = 1.0
    for scale, limit in ((lambda_printed, 2.0), (lambda_corrected, 1.0)):
        lam = scale(alpha, 1, b, epsilon)
        gap = 60 * lam
        first = argmin_law(np.array([gap, 0.0]), lam)[0]
        second = argmin_law(np.array([gap, 0.0]) - [most, -most], lam)[0]
        ratio = log(second / first)
        assert 0.95 * limit * epsilon < ratio < limit * epsilon


def test_linear_losses_pay_at_the_root_only() -> None:
    """Their corrections vanish; the printed scale then gives the expert sequence eps exactly."""
    m, d, p, b, T1 = 2, 3, 8, 8, 3
    given: dict[str, Any] = {
        "T": 2**p - 1,
        "m": m,
        "d": d,
        "designs": one_phase(p, b, T1),
        "permutation": permutations(4),
        "forced": lambda p, k: k % d,
    }
    table = keyed(6).uniform(0, 1, (m, 2**p, d))
    run = ope_stoch(LinearLosses(table), **given)
    seen = set()
    for t in sample_rounds(p):
        other = table.copy()
        other[0, t - 1] = 1 - np.round(table[0, t - 1])
        depth, change, leaves = moved_leaves(run, ope_stoch(LinearLosses(other), **given), 0, t)
        seen.add(depth)
        if depth == 0:
            tree = set_of(run, 0, t)[0]  # type: ignore[index]
            assert 0 < change <= leaf_change(1.0, b, 0, nonnegative=True) == 1 / b
            assert leaves == leaves_below(tree, 0)
        else:
            assert change < 1e-12
    assert seen == {-1, 0, 1, 2, 3}
    for j, depth in ((3, 0), (3, 1), (3, 3)):
        cost = leaves_below(j, depth) * 2 * leaf_change(1.0, b, depth)
        assert cost / lambda_printed(1.0, j, b, 1.0) == (1.0 if depth == 0 else 2.0)


def test_messages_cost_d_times_as_much() -> None:
    """All d scores are sent: moved together, their Laplace losses add up (E1)."""
    d, alpha, b, j, epsilon = 5, 1.0, 8, 2, 0.3
    lam = lambda_printed(alpha, j, b, epsilon)
    for depth in (1, 2):
        move = np.full(d, leaf_change(alpha, b, depth))
        # log of prod exp(-|z|/lam) / exp(-|z + move|/lam) at z = 0, in every leaf below.
        loss = leaves_below(j, depth) * np.sum(move) / lam
        assert loss == pytest.approx(d * epsilon)


# The argmin of noisy scores.


def test_argmin_law_in_two() -> None:
    """P(the worse by g) = exp(-g) (2 + g) / 4 at scale 1."""
    for g in (0.0, 0.3, 2.0, 40.0):
        law = argmin_law(np.array([0.0, 3 * g]), 3.0)
        assert law[1] == pytest.approx(exp(-g) * (2 + g) / 4, rel=1e-12)
        assert np.sum(law) == pytest.approx(1.0)


def test_argmin_law_is_that_of_draws() -> None:
    scores, n = np.array([0.0, 0.4, 0.5, 2.0]), 40_000
    law = argmin_law(scores, 0.7)
    won = np.argmin(scores + 0.7 * keyed(8).laplace(size=(n, 4)), axis=1)
    share = np.bincount(won, minlength=4) / n
    assert np.all(np.abs(share - law) < 4.5 * np.sqrt(law * (1 - law) / n))


def test_argmin_cost_is_the_worst_of_all_corners() -> None:
    scores, scale, change = np.array([0.0, 1.0, 3.0]), 0.8, 0.6
    law = argmin_law(scores, scale)
    both = one = 0.0
    for signs in product((-1, -0.5, 0, 0.5, 1), repeat=3):
        other = argmin_law(scores + change * np.array(signs), scale)
        worst = float(np.max(np.abs(np.log(other / law))))
        both = max(both, worst)
        if min(signs) >= 0 or max(signs) <= 0:
            one = max(one, worst)
    assert both == pytest.approx(argmin_cost(scores, scale, change))
    assert one == pytest.approx(argmin_cost(scores, scale, change, one_sided=True))
    assert one < both


def test_argmin_cost_tends_to_twice_the_change() -> None:
    """Change = eps at scale 1, scores 40 changes apart: 1.91, 1.95, 1.98 times eps."""
    found = []
    for epsilon in (0.5, 1.0, 2.0):
        scores = np.array([0.0, 40 * epsilon])
        found.append(argmin_cost(scores, 1.0, epsilon) / epsilon)
        assert argmin_cost(scores, 1.0, epsilon, one_sided=True) < epsilon
    assert found == pytest.approx([1.911, 1.953, 1.976], abs=1e-3)
    for gap, d in product((0.1, 1.0, 10.0, 100.0), (2, 5)):
        assert argmin_cost(np.arange(d) * gap, 1.0, 0.5) <= 1 + 1e-12
    assert 0.997 < argmin_cost(np.array([0.0, 400.0]), 1.0, 0.5) < 1.0
    # Between three it is met to rounding.
    assert argmin_cost(np.array([0.0, 100.0, 200.0]), 1.0, 0.5) == pytest.approx(1.0, abs=1e-12)
    assert argmin_cost(np.array([0.0, 400.0]), 1.0, 0.5, one_sided=True) > 0.498


def several_laplace_above(g: float, n: int) -> float:
    """P(sum of n standard Laplace > g), g >= 0: a difference of two gammas, integrated exactly."""
    y, weight = np.polynomial.laguerre.laggauss(30)
    y = y / 2
    tail = sum((g + y) ** i / factorial(i) for i in range(n))
    return exp(-g) * float(np.sum(weight / 2 * y ** (n - 1) / factorial(n - 1) * tail))


def test_local_noise_costs_the_same_limit() -> None:
    """The average of m clients' noises: one client's change still costs up to 2 Delta/lambda."""
    assert several_laplace_above(3.0, 2) == pytest.approx(exp(-3) * 5 / 4)
    for m in (1, 4):
        ratios = []
        for gap in (5.0, 50.0, 500.0):
            # Two scores, m times their average: 2m noises, and the client's move of 2 Delta.
            pair = [several_laplace_above(g, 2 * m) for g in (gap, gap - 2 * 0.5)]
            ratios.append(log(pair[1] / pair[0]))
        assert ratios == sorted(ratios) and 0.98 < ratios[-1] < 1.0


# Algorithms 1-3 against a second player and planted faults.

FAULTS = (
    "eta",
    "leaves count per tree",
    "set used twice",
    "left children take samples",
    "right child keeps its parent's x",
    "x of the root for every vertex",
    "one batch size",
    "argmax",
    "noise of depth",
    "samples of this phase",
    "sum for mean",
)


def second_player(
    losses: Any,
    *,
    T: int,
    m: int,
    d: int,
    designs: Callable[[int], tuple[int, int]],
    permutation: Callable[[int, int], np.ndarray],
    scale: Callable[[int, int, int], float] | None = None,
    noise: Callable[[int, int, int], np.ndarray] | None = None,
    central: bool = False,
    fault: str = "",
) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Leaf by leaf: leaf l = 1, 2, ... of a tree enters one right child, whose parent was entered
    with leaf l & (l - 1), at depth j - (trailing zeros of l)."""
    x, chosen, scores, played = np.full(d, 1 / d), [], [], []
    p = 1
    while len(played) < T:
        b, T1 = designs(p)
        n, start, k = 2 ** (p - 2) if p > 1 else 0, 0, 0
        first = 2 ** (p - 1) if fault == "samples of this phase" else n
        for j in range(1, T1 + 1):
            if fault == "leaves count per tree":
                k = 0
            X: list[np.ndarray] = []
            V: list[np.ndarray] = []
            for leaf in range(2**j):
                parent = leaf & (leaf - 1)
                zeros = (leaf & -leaf).bit_length() - 1
                size = b if leaf == 0 or fault == "one batch size" else b // 2 ** (j - zeros)
                X.append(X[parent] if leaf and fault == "right child keeps its parent's x" else x)
                back = X[0] if fault == "x of the root for every vertex" else X[parent]
                if fault == "set used twice" and leaf:
                    start -= size
                v = np.zeros((m, d))
                for i in range(m):
                    for a in permutation(i, p)[start : start + size]:
                        v[i] += losses.gradient(i, first + int(a), X[leaf])
                        if leaf:
                            v[i] -= losses.gradient(i, first + int(a), back)
                start += size
                if fault == "left children take samples":
                    start += 1
                if fault != "sum for mean":
                    v /= size
                V.append(v + V[parent] if leaf else v)
                k += 1
                score = V[leaf].mean(axis=0)
                if noise is not None and scale is not None:
                    level = j - zeros if fault == "noise of depth" and leaf else j
                    width = scale(p, level, b)
                    drawn = [noise(i, p, k) for i in ([SERVER] if central else range(m))]
                    score = score + width * np.mean(drawn, axis=0)
                w = int(np.argmax(score) if fault == "argmax" else np.argmin(score))
                eta = 2 / (k + 2) if fault == "eta" else 2 / (k + 1)
                x = x + eta * (np.arange(d) == w) - eta * x
                chosen.append(w)
                scores.append(score)
        played += [x] * min(2 ** (p - 1), T - len(played))
        p += 1
    return np.array(played), chosen, np.array(scores)


def game(kind: str, *key: int) -> dict[str, Any]:
    m, d, T = 3, 4, 300
    out: dict[str, Any] = {
        "T": T,
        "m": m,
        "d": d,
        # 2-power batches that leave room, so that faults do not run out of samples.
        "designs": lambda p: {6: (2, 1), 7: (4, 2), 8: (4, 2), 9: (8, 3)}.get(p, (0, 0)),
        "permutation": permutations(10, *key),
    }
    if kind != "plain":
        out["scale"] = lambda p, j, b: 0.2 * 2**j / b
        out["noise"] = laplace_noise(d, 11, *key)
        out["central"] = kind == "central"
    return out


@pytest.mark.parametrize("kind", ["plain", "local", "central"])
@pytest.mark.parametrize("seed", range(3))
def test_second_player(kind: str, seed: int) -> None:
    losses, given = squared(3, 300, 4, 12, seed), game(kind, seed)
    run = ope_stoch(losses, **given)
    x, chosen, scores = second_player(losses, **given)
    assert min(leaf.margin for leaf in run.leaves) > 1e-9
    assert run.released == chosen
    assert run.x == pytest.approx(x, abs=1e-12)
    assert np.array([leaf.scores for leaf in run.leaves]) == pytest.approx(scores, abs=1e-12)
    assert all(leaf.gap == 0 for leaf in run.leaves)
    assert len(run.leaves) == 2 + 6 + 6 + 14


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str) -> None:
    """In every game, by the scores; and by x alone, in some."""
    by_score = by_x = 0
    for seed in range(6):
        losses, given = squared(3, 600, 4, 12, seed), game("local", seed)
        x, _, scores = second_player(losses, fault=fault, **given)
        run = ope_stoch(losses, **given)
        by_x += not np.allclose(run.x, x, atol=1e-9)
        by_score += not np.allclose([leaf.scores for leaf in run.leaves], scores, atol=1e-9)
    assert by_score == 6 and by_x >= 1


def sets_are_sound(run: OpeRun) -> bool:
    """Every set of its size, of its phase, and no sample of a client in two."""
    for phase in run.phases:
        vertices = [v for v in run.vertices if v.phase == phase.p]
        for v in vertices:
            size = 0 if v.path.endswith("0") else phase.batch / 2 ** len(v.path)
            if v.rounds.shape[1] != size:
                return False
        if not vertices:
            continue
        used = np.hstack([v.rounds for v in vertices])
        if not np.all(np.isin(used, sample_rounds(phase.p))):
            return False
        if any(len(set(row)) < len(row) for row in used):
            return False
        if used.shape[1] != samples_needed(phase.batch, phase.trees):
            return False
    return True


def test_sets_of_a_phase() -> None:
    run = ope_stoch(squared(3, 300, 4, 12, 0), **game("plain", 0))
    assert sets_are_sound(run)
    at = next(n for n, v in enumerate(run.vertices) if v.path == "1")
    for rounds in (run.vertices[0].rounds[:, :1], run.vertices[at].rounds + 400):
        wrong = replace(run.vertices[at], rounds=rounds)
        assert wrong.rounds.shape == run.vertices[at].rounds.shape
        vertices = [*run.vertices[:at], wrong, *run.vertices[at + 1 :]]
        assert not sets_are_sound(OpeRun(run.x, run.phases, vertices, run.leaves))


def test_sets_follow_the_permutation() -> None:
    given = game("plain", 1)
    run = ope_stoch(squared(3, 300, 4, 12, 0), **given)
    for p in (7, 9):
        used = np.hstack([v.rounds for v in run.vertices if v.phase == p])
        for i in range(3):
            order = given["permutation"](i, p)[: used.shape[1]]
            assert np.array_equal(used[i], 2 ** (p - 2) + order)


def test_end_of_a_phase_in_closed_form() -> None:
    """eta_k = 2/(k+1): x_K weighs w_k by 2k / (K (K+1)); what was before the phase is forgotten."""
    run = ope_stoch(squared(3, 300, 4, 12, 0), **game("local", 2))
    for phase in run.phases:
        w = [leaf.w for leaf in run.leaves if leaf.phase == phase.p]
        if w:
            K = len(w)
            share = 2 * np.arange(1, K + 1) / (K * (K + 1))
            assert phase.x == pytest.approx(np.bincount(w, share, minlength=4), abs=1e-14)
        for t in phase.rounds:
            assert np.array_equal(run.x[t - 1], phase.x)
    assert [t for phase in run.phases for t in phase.rounds] == list(range(1, 301))


def test_estimates_at_the_vertices() -> None:
    """Left: the parent's; right: Equation (3), with x after all leaves so far."""
    losses = squared(3, 300, 4, 12, 0)
    run = ope_stoch(losses, **game("local", 3))
    x = np.full(4, 0.25)
    at: dict[tuple[int, int, str], Any] = {}
    leaves = iter(run.leaves)
    for v in run.vertices:
        at[v.phase, v.tree, v.path] = v
        parent = at[v.phase, v.tree, v.path[:-1]] if v.path else None
        if v.path.endswith("0"):
            assert parent is not None
            assert np.array_equal(v.x, parent.x) and np.array_equal(v.v, parent.v)
        else:
            assert np.array_equal(v.x, x)
            for i in range(3):
                here = np.mean([losses.gradient(i, t, v.x) for t in v.rounds[i]], axis=0)
                if parent is not None:
                    here -= np.mean([losses.gradient(i, t, parent.x) for t in v.rounds[i]], axis=0)
                    here += parent.v[i]
                assert v.v[i] == pytest.approx(here, abs=1e-14)
        if len(v.path) == v.tree:
            x = next(leaves).x


def test_noise_of_clients_and_server() -> None:
    losses, given = squared(3, 300, 4, 12, 0), game("local", 4)
    noise, scale = given["noise"], given["scale"]
    path = ope_stoch(losses, **game("plain", 4) | {"forced": lambda p, k: k % 4})
    for central in (False, True):
        given |= {"central": central, "forced": lambda p, k: k % 4}
        run = ope_stoch(losses, **given)
        for leaf, plain in zip(run.leaves, path.leaves, strict=True):
            b = given["designs"](leaf.phase)[0]
            assert leaf.scale == scale(leaf.phase, leaf.tree, b)
            sent = leaf.messages - plain.messages
            if central:
                assert np.all(sent == 0)
                added = noise(SERVER, leaf.phase, leaf.k)
            else:
                drawn = np.array([noise(i, leaf.phase, leaf.k) for i in range(3)])
                assert sent == pytest.approx(leaf.scale * drawn)
                added = drawn.mean(axis=0)
            assert leaf.scores - plain.scores == pytest.approx(leaf.scale * added)
            assert leaf.gap == pytest.approx(leaf.scores[leaf.k % 4] - leaf.scores.min())


def test_ties_go_to_the_first() -> None:
    run = ope_stoch(LinearLosses(np.zeros((3, 300, 4))), **game("plain", 0))
    assert set(run.released) == {0}


def test_only_the_phase_before_counts() -> None:
    losses, given = squared(3, 300, 4, 12, 0), game("local", 5)
    run = ope_stoch(losses, **given)
    for t in (40, 127, 128):
        other = ope_stoch(Replaced(losses, 0, t, lambda x: np.array([9.0, -9, 0, 0])), **given)
        first = 2 ** int(t).bit_length()  # of the phase after that of t
        assert np.array_equal(run.x[: first - 1], other.x[: first - 1])


def test_arguments_of_ope_stoch() -> None:
    losses, given = squared(3, 300, 4, 12, 0), game("local", 0)
    with pytest.raises(ValueError, match="both"):
        ope_stoch(losses, **given | {"noise": None})
    with pytest.raises(ValueError, match="do not fit"):
        ope_stoch(losses, **given | {"designs": one_phase(6, 2, 2)})
    with pytest.raises(ValueError, match="permutations"):
        ope_stoch(losses, **given | {"permutation": lambda i, p: np.zeros(2 ** (p - 2), dtype=int)})


def test_ope_beats_uniform_when_noise_is_small() -> None:
    """Linear losses, expert 2 better by .2; both rules; and huge noise does not."""
    m, T, d = 16, 2**12 - 1, 10
    means = np.full(d, 0.5)
    means[2] = 0.3
    table = (keyed(13).random((m, T, d)) < means).astype(float)
    uniform = regret(table, np.full((T, d), 1 / d))

    def played(rule: str, epsilon: float) -> float:
        given: dict[str, Any] = {"m": m, "d": d, "alpha": 1.0, "beta": 1.0}
        run = ope_stoch(
            LinearLosses(table),
            T=T,
            m=m,
            d=d,
            designs=lambda p: design(rule, p, epsilon=1.0, **given),
            permutation=permutations(14),
            scale=lambda p, j, b: lambda_corrected(1.0, j, b, epsilon),
            noise=laplace_noise(d, 15),
        )
        return regret(table, run.x)

    assert uniform == pytest.approx(0.18 * T, rel=0.03)
    assert played("largest", 1e6) < 0.25 * uniform
    assert played("paper", 1e6) < 0.75 * uniform
    assert played("largest", 1e-4) > 0.7 * uniform


def test_ope_follows_a_quadratic() -> None:
    """(x_0 - x_1 - .4)^2 / 2 and cost x_2: the minimum is inside, and approached by more leaves."""
    T, m = 2**11 - 1, 8

    class Bowl:
        def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
            y = 0.4 + keyed(16, client, t).uniform(-0.2, 0.2)
            return np.array([1.0, -1.0, 0.0]) * (x[0] - x[1] - y) + np.array([0.0, 0.0, 1.0])

    far = []
    for trees in (1, 2, 4):
        run = ope_stoch(
            Bowl(), T=T, m=m, d=3, designs=one_phase(11, 32, trees), permutation=permutations(17)
        )
        x = run.x[-1]
        far.append((x[0] - x[1] - 0.4) ** 2 / 2 + x[2])
    assert far[2] < 0.02 < far[0]


# Constants of Fed-SVT.


def test_vectors_of_fed_svt() -> None:
    epsilon, delta, kappa = 1.0, 1e-6, 20
    assert eta_pure(epsilon, kappa) == 0.025
    assert eta_printed(epsilon, delta, kappa) == pytest.approx(0.06015912800670484, rel=1e-12)
    adv = epsilon / 2 + advanced_epsilon(eta_printed(epsilon, delta, kappa), kappa, delta)
    assert adv == pytest.approx(1.9888175322018793, rel=1e-12)
    assert eta_zcdp(epsilon, delta, kappa) == pytest.approx(0.04216085463601084, rel=1e-12)
    assert threshold_scale_printed(epsilon) == 4.0
    assert query_scale_printed(epsilon) == 8.0
    assert svt_cost(4.0, 8.0) == 0.25
    assert svt_cost_standard(4.0, 8.0) == 0.5
    assert scale_least(epsilon) == 2.0
    assert svt_cost(2.0, 2.0) == 0.5


def test_printed_eta_by_other_accountants() -> None:
    """1.91 eps + .., 1.56 by exact randomised responses, 1.22 by bounded range: none is 1 (E9)."""
    epsilon, delta, kappa = 1.0, 1e-6, 20
    eta = eta_printed(epsilon, delta, kappa)
    assert 0.5 + sqrt(2) == pytest.approx(1.914, abs=1e-3)
    assert 0.5 + sqrt(2 * kappa * log(1 / delta)) * eta == pytest.approx(0.5 + sqrt(2))
    assert 0.5 + response_epsilon(eta, kappa, delta) == pytest.approx(1.5589, abs=1e-4)
    assert 0.5 + zcdp_epsilon(eta, kappa, delta) == pytest.approx(1.2162, abs=1e-4)
    # Its sparse-vector part costs eps / 4, which does not save it.
    assert 0.25 + response_epsilon(eta, kappa, delta) > 1.3
    assert 0.25 + zcdp_epsilon(eta, kappa, delta) == pytest.approx(0.9662, abs=1e-4)


def test_response_delta_by_enumeration() -> None:
    eta, epsilon, kappa = 0.4, 0.7, 5
    p = exp(eta) / (1 + exp(eta))
    total = 0.0
    for bits in product((0, 1), repeat=kappa):
        here = np.prod([p if bit else 1 - p for bit in bits])
        there = np.prod([1 - p if bit else p for bit in bits])
        total += max(0.0, here - exp(epsilon) * there)
    assert response_delta(epsilon, eta, kappa) == pytest.approx(total)


@pytest.mark.parametrize("epsilon, delta, kappa", [(1.0, 1e-6, 20), (0.2, 1e-3, 70), (8, 1e-5, 7)])
def test_eta_zcdp_is_half(epsilon: float, delta: float, kappa: int) -> None:
    assert zcdp_epsilon(eta_zcdp(epsilon, delta, kappa), kappa, delta) == pytest.approx(epsilon / 2)


def test_eta_advanced_and_its_limit() -> None:
    """At most eps / 2 up to eps = 2.3 ln(1/delta) only as kappa grows; 1.9 at kappa = 20 (E9)."""
    delta = 1e-6
    edge = {
        kappa: max(
            c
            for c in np.arange(0.01, 3, 0.01)
            if advanced_epsilon(eta_advanced(c * log(1 / delta), delta, kappa), kappa, delta)
            <= c * log(1 / delta) / 2
        )
        for kappa in (5, 20, 100, 10**6)
    }
    assert edge[10**6] == pytest.approx(2.34, abs=0.015)
    assert edge[20] == pytest.approx(1.9, abs=0.015)
    assert edge[5] < edge[20] < edge[100] < 2.3
    assert eta_advanced(1.0, delta, 20) < eta_zcdp(1.0, delta, 20)


def test_switching_budget_and_threshold() -> None:
    assert switching_budget(10, 0.1) == ceil(3 * 4 + 24 * log(10)) == 68
    assert switching_budget(10, 0.1, printed=True) == ceil(3 * 3 + 24 * log(10)) == 65
    found = threshold(m=10, T=100, N=5, rho=0.1, epsilon=0.5, eta=0.01, optimal_loss=2.0)
    assert found == pytest.approx(20 + 16 * log(2 * 400 / 0.1) + 400)


def test_threshold_leaves_room_for_the_noise() -> None:
    """8 ln(2 T^2/(N^2 rho))/eps covers one query noise less one threshold noise T/N times (E10)."""
    a, b = 4.0, 8.0
    z, h = quadrature([0.0, 5.0], 1.0, 400.0)
    density = np.exp(-np.abs(z) / a) / (2 * a)
    above = np.where(z + 5 > 0, np.exp(-np.abs(z + 5) / b) / 2, 1 - np.exp(-np.abs(z + 5) / b) / 2)
    assert np.sum(h * density * above) == pytest.approx(noise_gap_tail(5.0, a, b), rel=1e-9)
    for T, N, rho in ((100, 1, 0.1), (2**14, 30, 0.4), (10, 10, 0.01)):
        room = 8 * log(2 * T**2 / (N**2 * rho))
        assert T / N * noise_gap_tail(room, a, b) < rho / 3


# Fed-SVT against a second player and planted faults.


def svt_noise(*key: int) -> SvtNoise:
    return SvtNoise(
        threshold=lambda k: float(keyed(20, *key, k).laplace()),
        query=lambda t: float(keyed(21, *key, t).laplace()),
        uniform=lambda t: float(keyed(22, *key, t).random()),
    )


SVT_FAULTS = (
    "threshold not noisy",
    "threshold not fresh",
    "segment from round 1",
    "one round too many",
    "one round too few",
    "scores of the segment",
    "scores paid",
    "budget one too large",
    "eta not halved",
    "L* per client",
    "phase later",
)


def second_svt(
    losses: np.ndarray,
    *,
    N: int,
    L: float,
    kappa: int,
    eta: float,
    noise: SvtNoise,
    threshold_scale: float,
    query_scale: float,
    optimal_loss: float,
    fault: str = "",
) -> tuple[np.ndarray, list[tuple[int, float]], list[np.ndarray]]:
    """Running sums; experts, queries and laws of resamplings."""
    m, T, d = losses.shape
    x = min(int(noise.uniform(1) * d), d - 1)
    total, segment, spent, k = np.zeros(d), np.zeros(d), 0.0, 0
    out: list[int] = []
    queries: list[tuple[int, float]] = []
    laws: list[np.ndarray] = []
    for t in range(1, T + 1):
        now = losses[:, t - 1].sum(axis=0)
        if fault == "one round too many":
            spent, total = spent + now[x], total + now
        offset = 1 if fault == "phase later" else 0
        if t >= 2 and (t - offset) % N == 0 and k < kappa + (fault == "budget one too large"):
            index = 0 if fault == "threshold not fresh" else k
            level = L + threshold_scale * noise.threshold(index)
            if fault == "threshold not noisy":
                level = L
            paid = spent
            if fault == "one round too few":
                paid = spent - losses[:, t - 2].sum(axis=0)[x]
            queries.append((t, paid))
            if paid + query_scale * noise.query(t) > level:
                score = segment if fault == "scores of the segment" else total
                if fault == "scores paid":
                    score = np.full(d, spent)
                score = np.maximum(score, optimal_loss * (1 if fault == "L* per client" else m))
                weight = np.exp(-(eta if fault == "eta not halved" else eta / 2) * score)
                laws.append(weight / weight.sum())
                x = min(
                    int(np.searchsorted(np.cumsum(laws[-1]), noise.uniform(t), side="right")), d - 1
                )
                k += 1
                segment = np.zeros(d)
                if fault != "segment from round 1":
                    spent = 0.0
        out.append(x)
        segment = segment + now
        if fault != "one round too many":
            spent, total = spent + now[x], total + now
    return np.array(out), queries, laws


def same_game(run: Any, other: tuple[np.ndarray, list[tuple[int, float]], list]) -> bool:
    x, queries, laws = other
    return (
        np.array_equal(run.x, x)
        and [t for t, _ in run.queries] == [t for t, _ in queries]
        and np.allclose([q for _, q in run.queries], [q for _, q in queries], atol=1e-9)
        and np.allclose(run.laws, laws, atol=1e-9)
    )


def svt_game(*key: int, N: int = 3) -> dict[str, Any]:
    return {
        "losses": keyed(23, *key).random((2, 60, 4)) * np.array([0.6, 0.7, 0.9, 1.0]),
        "N": N,
        "L": 4.0,
        "kappa": 3,
        "eta": 0.4,
        "noise": svt_noise(*key),
        "threshold_scale": 2.0,
        "query_scale": 2.0,
        "optimal_loss": 3.0,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("N", [1, 3, 7])
def test_second_svt(seed: int, N: int) -> None:
    given = svt_game(seed, N=N)
    run = fed_svt(**given)
    assert run.margin > 1e-9 and run.draw_margin > 1e-9
    assert same_game(run, second_svt(**given))
    assert set(run.switches) <= {t for t, _ in run.queries} <= set(decisions(60, N))
    assert len(run.switches) == len(run.laws) <= 3


@pytest.mark.parametrize("fault", SVT_FAULTS)
def test_svt_faults_are_seen(fault: str) -> None:
    seen = sum(
        not same_game(fed_svt(**svt_game(seed)), second_svt(fault=fault, **svt_game(seed)))
        for seed in range(10)
    )
    assert seen >= 4


def test_svt_by_hand() -> None:
    """One client, N = 2, no noise but in the second threshold; losses .5 for expert 0, 0 for 1."""
    losses = np.zeros((1, 12, 2))
    losses[:, :, 0] = 0.5
    zero = lambda t: 0.0  # noqa: E731
    given: dict[str, Any] = {"N": 2, "L": 1.4, "kappa": 2, "eta": 2 * log(3), "losses": losses}
    given |= {"threshold_scale": 1.0, "query_scale": 1.0}
    # Thresholds 1.4 and 1.4 + 0.5; the first resampling is made to stay at expert 0.
    noise = SvtNoise(lambda k: 0.5 * k, zero, lambda t: 0.0)
    run = fed_svt(noise=noise, **given)
    assert run.queries == [(2, 0.5), (4, 1.5), (6, 1.0), (8, 2.0)]
    assert run.switches == [4, 8]
    assert run.laws[0] == pytest.approx(np.array([3**-1.5, 1]) / (1 + 3**-1.5))
    assert run.x.tolist() == [0] * 12
    # L* = 3 hides the difference until round 7 (cost 3.5 of expert 0 at t = 8).
    near = fed_svt(noise=noise, optimal_loss=3.0, **given)
    assert near.laws[0] == pytest.approx([0.5, 0.5])
    assert near.laws[1] == pytest.approx(np.array([3**-0.5, 1]) / (1 + 3**-0.5))
    # Drawn from the upper end, expert 1 comes and stays.
    run = fed_svt(noise=replace(noise, uniform=lambda t: 0.99 if t > 1 else 0.0), **given)
    assert run.switches == [4] and run.x.tolist() == [0] * 3 + [1] * 9


def test_printed_algorithm_5() -> None:
    """Its threshold noise is not used, its resampling is uniform whatever the losses (E7, E8)."""
    unused = 0
    for seed in range(8):
        given = svt_game(seed) | {"printed": True, "optimal_loss": 0.0}
        run = fed_svt(**given)
        other = fed_svt(**given | {"noise": replace(given["noise"], threshold=lambda k: 1e9)})
        assert np.array_equal(run.x, other.x) and run.switches == other.switches
        for law in run.laws:
            assert law.tolist() == [0.25] * 4
        corrected = fed_svt(**given | {"printed": False})
        unused += run.switches != corrected.switches
        for law in corrected.laws:
            assert np.ptp(law) > 1e-3
    assert unused >= 4


def test_decisions() -> None:
    assert decisions(7, 1) == [2, 3, 4, 5, 6, 7]
    assert decisions(9, 4) == [4, 8]
    assert decisions(3, 5) == []


def test_uniform_expert() -> None:
    n = [uniform_expert(7, u) for u in (np.arange(7000) + 0.5) / 7000]
    assert np.bincount(n).tolist() == [1000] * 7


# Laws of tiny games.


def tiny(losses: np.ndarray, **changes: Any) -> dict[str, Any]:
    given = {"N": 1, "L": 1.0, "kappa": 2, "eta": 0.5, "threshold_scale": 1.0, "query_scale": 2.0}
    return {"losses": losses} | given | changes


@pytest.mark.parametrize("printed", [False, True])
def test_svt_law_is_that_of_draws(printed: bool) -> None:
    losses = keyed(30).random((2, 4, 2))
    given = tiny(losses, optimal_loss=0.3, printed=printed)
    law = svt_law(**given)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    n = 6000
    rng = keyed(31)
    counts = dict.fromkeys(law, 0)
    for _ in range(n):
        a, b, u = rng.laplace(size=5), rng.laplace(size=5), rng.random(5)
        noise = SvtNoise(lambda k, a=a: a[k], lambda t, b=b: b[t], lambda t, u=u: u[t])
        run = fed_svt(noise=noise, **given)
        counts[tuple(run.x.tolist()), tuple(run.switches)] += 1
    for outcome, p in law.items():
        assert abs(counts[outcome] - n * p) < 4.5 * sqrt(n * p) + 1
    experts = expert_law(law)
    assert len(experts) < len(law) and sum(experts.values()) == pytest.approx(1.0)


def test_segment_probability_adds_up() -> None:
    """To cross at one of the queries, or at none."""
    queries, rest = (0.5, 2.0, 2.5, 7.0), (1.5, 0.7, 1.1)
    total = segment_probability(queries, False, *rest)
    total += sum(segment_probability(queries[:n], True, *rest) for n in range(1, 5))
    assert total == pytest.approx(1.0, abs=1e-12)
    # One query: P(query noise - threshold noise <= x).
    alone = segment_probability((0.0,), True, 3.0, 4.0, 8.0)
    assert alone == pytest.approx(noise_gap_tail(3.0, 4.0, 8.0), rel=1e-12)


def sequences(m: int, rounds: int, T: int, levels: tuple[float, ...]) -> dict[tuple, np.ndarray]:
    """All losses (m, T, 2) on a grid; those of rounds > `rounds` are never used."""
    out = {}
    for key in product(product(levels, repeat=2), repeat=m * rounds):
        table = np.zeros((m, T, 2))
        table[:, :rounds] = np.array(key).reshape(m, rounds, 2)
        out[key] = table
    return out


def neighbours(keys: list[tuple]) -> Iterator[tuple[tuple, tuple]]:
    """Pairs that differ in one loss function."""
    for key in keys:
        for at in range(len(key)):
            for other in {k[at] for k in keys}:
                if other > key[at]:
                    yield key, (*key[:at], other, *key[at + 1 :])


def worst_ratio(tables: dict[tuple, np.ndarray], **changes: Any) -> tuple[float, float]:
    """Over all neighbours: of the transcript with its switches, and of the experts alone."""
    laws = {key: svt_law(**tiny(table, **changes)) for key, table in tables.items()}
    experts = {key: expert_law(law) for key, law in laws.items()}
    pairs = list(neighbours(list(laws)))
    assert pairs
    return (
        max(log_ratio(laws[a], laws[b]) for a, b in pairs),
        max(log_ratio(experts[a], experts[b]) for a, b in pairs),
    )


@pytest.mark.parametrize("m, rounds, T", [(1, 3, 4), (2, 2, 3)])
@pytest.mark.parametrize("optimal_loss", [0.0, 1.0])
def test_fed_svt_on_all_neighbours(m: int, rounds: int, T: int, optimal_loss: float) -> None:
    """eps-DP as calibrated, with printed scales and with the least ones."""
    epsilon, kappa = 1.0, 2
    tables = sequences(m, rounds, T, (0.0, 1.0))
    for a, b in ((4.0, 8.0), (2.0, 2.0)):
        for L in (-8.0, 1.0, 8.0):
            both = worst_ratio(
                tables,
                L=L,
                kappa=kappa,
                eta=eta_pure(epsilon, kappa),
                threshold_scale=a,
                query_scale=b,
                optimal_loss=optimal_loss,
            )
            assert both[1] <= both[0] + 1e-12
            assert both[0] <= svt_cost(a, b) + kappa * eta_pure(epsilon, kappa) + 1e-9
            assert both[0] <= epsilon


def test_sparse_vector_alone_costs_a_quarter() -> None:
    """eta = 0: only the crossings tell. Printed scales: eps / 4, met; the least ones: eps / 2."""
    epsilon = 1.0
    tables = sequences(1, 3, 4, (0.0, 1.0))
    for a, b, limit in ((4.0, 8.0, epsilon / 4), (2.0, 2.0, epsilon / 2)):
        found = max(
            worst_ratio(tables, L=L, eta=0.0, threshold_scale=a, query_scale=b)[0]
            for L in (-60.0, -8.0, 2.0, 30.0)
        )
        assert 0.97 * limit < found <= limit + 1e-9


def test_without_threshold_noise_every_query_costs() -> None:
    """Printed `<= L`: n queries below it cost n/b, eps/4 is passed by n = 3, eps by n = 9 (E7)."""
    for n, limit in ((3, 3 / 8), (9, 9 / 8)):
        ones, zeros = np.zeros((1, n + 1, 1)), np.zeros((1, n + 1, 1))
        ones[0, 0] = 1.0
        given: dict[str, Any] = {"threshold_scale": 4.0, "query_scale": 8.0, "kappa": 1}
        laws = [svt_law(**tiny(v, L=-80.0, printed=True, **given)) for v in (zeros, ones)]
        assert log_ratio(*laws) == pytest.approx(limit, rel=1e-4)
        laws = [svt_law(**tiny(v, L=-80.0, **given)) for v in (zeros, ones)]
        assert log_ratio(*laws) <= 1 / 4 + 1e-9


def test_exponential_mechanism_costs_eta() -> None:
    """One resampling, costs that may move by one: bounded by eta, and met from afar."""
    eta = 0.6
    for gap in (0.0, 2.0, 30.0):
        law = exponential_law(np.array([0.0, gap]), eta)
        worst = 0.0
        for move in product((-1, 0, 1), repeat=2):
            other = exponential_law(np.array([0.0, gap]) + move, eta)
            worst = max(worst, float(np.max(np.abs(np.log(other / law)))))
        assert worst <= eta + 1e-12
        if gap == 30.0:
            assert worst > 0.99 * eta


def test_ope_law_adds_up_and_is_that_of_draws() -> None:
    given: dict[str, Any] = {"T": 15, "m": 2, "d": 2, "designs": one_phase(4, 2, 1)}
    given |= {"permutation": permutations(32), "scale": lambda p, j, b: 0.4}
    losses = squared(2, 15, 2, 33)
    law = ope_law(losses, **given)
    assert len(law) == 4 and sum(law.values()) == pytest.approx(1.0)
    n, counts = 3000, dict.fromkeys(law, 0)
    draws = keyed(34).laplace(size=(n, 3, 2))
    for xi in draws:
        run = ope_stoch(losses, noise=lambda i, p, k, xi=xi: xi[k], central=True, **given)
        counts[tuple(run.released)] += 1
    for outcome, p in law.items():
        assert abs(counts[outcome] - n * p) < 4.5 * sqrt(n * p)


@pytest.mark.parametrize("at, printed", [(0, 1.0), (70, 2.0)])
def test_expert_sequence_by_its_exact_law(at: int, printed: float) -> None:
    """Two leaves, the sample of the root (0) or of the right child (70) replaced.

    With the printed mu the sequence costs up to 1 and 2 eps, with twice that half as much (E2).
    """
    b, epsilon, d, p = 64, 2.0, 4, 9
    table = np.zeros((1, 2**p, d))
    table[:, :] = [1.0, -1.0, 1.0, 1.0]
    base = LinearLosses(table)
    if at == 0:
        moves = [lambda x: np.array([1.0, -1, 1, 1]), lambda x: np.array([-1.0, 1, 1, 1])]
    else:
        up = Kinked(np.array([1.0, -1, 1, -1]), 0.5, 1.0)
        moves = [up, Kinked(np.array([-1.0, 1, 1, -1]), 0.5, 1.0)]
    for scale, share in ((mu_printed, printed), (mu_corrected, printed / 2)):
        laws = [
            ope_law(
                Replaced(base, 0, 2 ** (p - 2) + at, move),
                T=2**p - 1,
                m=1,
                d=d,
                designs=one_phase(p, b, 1),
                permutation=lambda i, q: np.arange(2 ** (q - 2)),
                scale=lambda q, j, b, scale=scale: scale(1.0, j, b, epsilon, 1),
            )
            for move in moves
        ]
        assert 0.9 * share * epsilon < log_ratio(*laws) <= share * epsilon + 1e-9


# Fed-SVT plays.


def realizable(m: int, T: int, d: int, best: int, *key: int) -> np.ndarray:
    losses = (keyed(40, *key).random((m, T, d)) < 0.5).astype(float)
    losses[:, :, best] = 0.0
    return losses


def svt_play(losses: np.ndarray, seed: int, printed: bool = False) -> Any:
    m, T, d = losses.shape
    epsilon, rho = 1.0, 0.1
    kappa = switching_budget(d, rho)
    eta = eta_pure(epsilon, kappa)
    return fed_svt(
        losses,
        N=5,
        L=threshold(m=m, T=T, N=5, rho=rho, epsilon=epsilon, eta=eta, optimal_loss=0.0),
        kappa=kappa,
        eta=eta,
        noise=svt_noise(41, seed),
        threshold_scale=4.0,
        query_scale=8.0,
        printed=printed,
    )


def test_realizable_losses_end_with_few_switches() -> None:
    """Corrected: 1-3 switches to the best of 8. Printed: it comes only by a chance of 1/8."""
    switches, printed = [], []
    for seed in range(6):
        losses = realizable(20, 1500, 8, seed, seed)
        run = svt_play(losses, seed)
        assert run.x[-1] == seed
        assert regret(losses, run.x) < 80
        switches.append(len(run.switches))
        printed.append(len(svt_play(losses, seed, printed=True).switches))
    assert max(switches) <= 3
    assert np.mean(printed) > 2 * np.mean(switches)


def test_the_best_expert_stays() -> None:
    """From the start at it: no switch, with probability 1 - rho at least; here in all 20 runs."""
    losses = realizable(5, 300, 4, 2, 9)
    for seed in range(20):
        given: dict[str, Any] = {"losses": losses, "N": 1, "kappa": 100, "eta": 0.005}
        given |= {"threshold_scale": 4.0, "query_scale": 8.0}
        L = threshold(m=5, T=300, N=1, rho=0.1, epsilon=1.0, eta=0.005, optimal_loss=0.0)
        noise = replace(svt_noise(42, seed), uniform=lambda t: 0.6)
        run = fed_svt(L=L, noise=noise, **given)
        assert not run.switches and set(run.x) == {2}
        assert regret(losses, run.x) == 0.0


# Follow the leader and hedge.


def test_follow_the_leader() -> None:
    losses = np.zeros((2, 7, 3))
    losses[0, 0] = [0.0, 1.0, 0.5]
    losses[1, 2] = [1.0, 0.0, 0.25]
    assert follow_the_leader(losses, N=1, first=2).tolist() == [2, 0, 0, 2, 2, 2, 2]
    assert follow_the_leader(losses, N=3, first=1).tolist() == [1, 1, 0, 0, 0, 2, 2]
    # A tie goes to the first index.
    assert follow_the_leader(np.zeros((1, 4, 3)), N=2, first=2).tolist() == [2, 0, 0, 0]


def test_follow_the_leader_sees_the_past_only() -> None:
    losses = keyed(50).random((3, 40, 4))
    x = follow_the_leader(losses, N=3, first=0)
    for t in range(1, 41):
        known = 3 * (t // 3) - 1 if t >= 3 else 0
        expected = int(np.argmin(losses[:, :known].sum(axis=(0, 1)))) if known else 0
        assert x[t - 1] == expected


def test_hedge() -> None:
    losses = keyed(51).random((3, 20, 4))
    laws, none = hedge(losses, N=4, eta=0.7)
    assert none is None
    for t in range(1, 21):
        known = 4 * (t // 4) - 1 if t >= 4 else 0
        weight = np.exp(-0.7 * losses[:, :known].sum(axis=(0, 1)) / 3)
        assert laws[t - 1] == pytest.approx(weight / weight.sum())
    uniform = keyed(52).random(21)
    _, x = hedge(losses, N=4, eta=0.7, uniform=lambda t: float(uniform[t // 4]))
    assert x is not None
    changes = [t for t in range(2, 21) if x[t - 1] != x[t - 2]]
    assert changes and all(t % 4 == 0 for t in changes)


def test_hedge_meets_its_bound() -> None:
    """sqrt(T ln d / 2) at N = 1 and eta = sqrt(8 ln d / T), for losses made to be hard."""
    m, T, d = 2, 400, 4
    losses = np.repeat((keyed(53).random((1, T, d)) < 0.5).astype(float), m, axis=0)
    laws, _ = hedge(losses, N=1, eta=sqrt(8 * log(d) / T))
    assert 0 < regret(losses, laws) <= sqrt(T * log(d) / 2)


def test_regret() -> None:
    losses = np.zeros((2, 3, 2))
    losses[:, :, 0] = 1.0
    losses[0, 0, 1] = 0.5
    assert regret(losses, np.array([0, 0, 1])) == pytest.approx((4 - 0.5) / 2)
    assert regret(losses, np.full((3, 2), 0.5)) == pytest.approx((3.25 - 0.5) / 2)
    with pytest.raises(ValueError, match="losses"):
        regret(losses + 1, np.zeros(3, dtype=int))


# Bounds.


def test_bounds_by_hand() -> None:
    e = exp(1)
    given: dict[str, Any] = {"T": 100, "m": 16, "d": e}
    found = theorem_2_2(**given, epsilon=4.0, alpha=1.0, beta=0.25)
    assert found == pytest.approx(1.25 * log(100) * 2.5 + log(100) * 0.5 * 5 / 2)
    # beta = 1/(T eps) is the corollary, but for beta beside alpha.
    small = theorem_2_2(**given, epsilon=4.0, alpha=1.0, beta=1 / 400)
    found = corollary_2_3(**given, epsilon=4.0, alpha=1.0)
    assert found == pytest.approx(small, rel=0.01)
    assert theorem_2_4(100, e, None) == pytest.approx(10.0)
    assert theorem_2_4(100, e, 0.5) == pytest.approx(2.0)
    assert theorem_2_4(100, e, 1e-4) == 100
    found = theorem_2_6(**given, epsilon=0.5, N=10, rho=exp(-1), optimal_loss=2.0)
    assert found == pytest.approx((1 + (log(100) + 1) * 2) / 8 + 12 * 2)
    found = theorem_2_6(**given, epsilon=0.5, N=10, rho=exp(-1), delta=exp(-4))
    assert found == pytest.approx((2 + (log(100) + 1) * 2) / 8 + 10 * 2)
    assert theorem_2_7(16, e, 0.5) == pytest.approx(1 / 8)


def test_log_of_the_switching_budget_is_binary() -> None:
    """A potential from d to 1 halves up to log2 d times; ceil(ln 10) = 3 is too few (E10)."""
    assert 2 ** ceil(log2(10)) >= 10 > 2 ** ceil(log(10))
