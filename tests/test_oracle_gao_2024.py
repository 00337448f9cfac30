"""The oracle of Gao et al. 2024 against itself: definitions, exact laws, second players, faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, exp, log
from typing import Any

import numpy as np
import pytest
from oracle.gao_2024 import (
    LinearLosses,
    OpeRun,
    SvtNoise,
    advanced_epsilon,
    argmin_cost,
    argmin_law,
    batch_paper,
    corollary_2_3,
    decisions,
    design,
    eta_advanced,
    eta_printed,
    eta_pure,
    eta_zcdp,
    expert_law,
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
    number_of_phases,
    ope_law,
    ope_stoch,
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


def test_batch_of_the_paper() -> None:
    found = [batch_paper(p) for p in range(2, 16)]
    assert found == [2, 1, 0, 1, 1, 1, 2, 4, 4, 8, 16, 16, 32, 64]
    for p in range(2, 40):
        exact = 2.0 ** (p - 1) / (p - 1) ** 2
        assert batch_paper(p) == (2 ** int(np.floor(np.log2(exact))) if exact >= 1 else 0)


def test_designs_at_the_experiment() -> None:
    """T = 2^14, alpha = beta = 1, eps 1, d 10: where trees begin, and the last of them."""

    def trees(rule: str, m: int) -> list[int]:
        rest: dict[str, Any] = {"d": 10, "epsilon": 1.0, "alpha": 1.0, "beta": 1.0}
        return [design(rule, p, m=m, **rest)[1] for p in range(1, 16)]

    assert trees("paper", 1) == [0] * 11 + [1, 1, 1, 2]
    assert trees("paper", 256) == [0] * 7 + [1, 2, 2, 2, 3, 3, 3, 4]
    assert trees("largest", 1) == [0] * 6 + [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert trees("largest", 256) == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5]


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


# The argmin of noisy scores.


def test_argmin_law_in_two() -> None:
    """P(the worse by g) = exp(-g) (2 + g) / 4 at scale 1."""
    for g in (0.0, 0.3, 2.0, 40.0):
        law = argmin_law(np.array([0.0, 3 * g]), 3.0)
        assert law[1] == pytest.approx(exp(-g) * (2 + g) / 4, rel=1e-12)
        assert np.sum(law) == pytest.approx(1.0)


# Algorithms 1-3 against a second player and planted faults.


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


def test_response_delta_by_enumeration() -> None:
    eta, epsilon, kappa = 0.4, 0.7, 5
    p = exp(eta) / (1 + exp(eta))
    total = 0.0
    for bits in product((0, 1), repeat=kappa):
        here = np.prod([p if bit else 1 - p for bit in bits])
        there = np.prod([1 - p if bit else p for bit in bits])
        total += max(0.0, here - exp(epsilon) * there)
    assert response_delta(epsilon, eta, kappa) == pytest.approx(total)


def test_switching_budget_and_threshold() -> None:
    assert switching_budget(10, 0.1) == ceil(3 * 4 + 24 * log(10)) == 68
    assert switching_budget(10, 0.1, printed=True) == ceil(3 * 3 + 24 * log(10)) == 65
    found = threshold(m=10, T=100, N=5, rho=0.1, epsilon=0.5, eta=0.01, optimal_loss=2.0)
    assert found == pytest.approx(20 + 16 * log(2 * 400 / 0.1) + 400)


# Fed-SVT against a second player and planted faults.


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


def test_segment_probability_adds_up() -> None:
    """To cross at one of the queries, or at none."""
    queries, rest = (0.5, 2.0, 2.5, 7.0), (1.5, 0.7, 1.1)
    total = segment_probability(queries, False, *rest)
    total += sum(segment_probability(queries[:n], True, *rest) for n in range(1, 5))
    assert total == pytest.approx(1.0, abs=1e-12)
    # One query: P(query noise - threshold noise <= x).
    alone = segment_probability((0.0,), True, 3.0, 4.0, 8.0)
    assert alone == pytest.approx(noise_gap_tail(3.0, 4.0, 8.0), rel=1e-12)


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


# Follow the leader and hedge.


def test_follow_the_leader() -> None:
    losses = np.zeros((2, 7, 3))
    losses[0, 0] = [0.0, 1.0, 0.5]
    losses[1, 2] = [1.0, 0.0, 0.25]
    assert follow_the_leader(losses, N=1, first=2).tolist() == [2, 0, 0, 2, 2, 2, 2]
    assert follow_the_leader(losses, N=3, first=1).tolist() == [1, 1, 0, 0, 0, 2, 2]
    # A tie goes to the first index.
    assert follow_the_leader(np.zeros((1, 4, 3)), N=2, first=2).tolist() == [2, 0, 0, 0]


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


def test_costs_of_the_accountants() -> None:
    epsilon, delta, kappa = 1.0, 1e-6, 20
    eta = eta_printed(epsilon, delta, kappa)
    assert response_epsilon(eta, kappa, delta) == pytest.approx(1.0589, abs=1e-4)
    assert zcdp_epsilon(eta, kappa, delta) == pytest.approx(0.7162, abs=1e-4)
    for share, holds in [(1.88, True), (1.92, False)]:
        whole = share * log(1 / delta)
        found = advanced_epsilon(eta_advanced(whole, delta, kappa), kappa, delta)
        assert (found <= whole / 2) == holds
    # Change = eps at scale 1, scores 40 changes apart: 1.95 eps both ways, below eps one way.
    scores = np.array([0.0, 40.0])
    assert argmin_cost(scores, 1.0, 1.0) == pytest.approx(1.953, abs=1e-3)
    assert argmin_cost(scores, 1.0, 1.0, one_sided=True) < 1.0
    # All d scores of a leaf are sent: moved together, they cost d eps (E1).
    cost = leaves_below(2, 1) * 5 * leaf_change(1.0, 8, 1) / lambda_printed(1.0, 2, 8, 0.3)
    assert cost == pytest.approx(5 * 0.3)


def test_designs_and_laws_by_hand() -> None:
    # b eps beta sqrt m / (alpha ln e) = 64: half its binary logarithm is 3.
    given: dict[str, Any] = {"d": exp(1), "epsilon": 0.5, "alpha": 2.0, "beta": 1.0}
    assert trees_wanted(64, m=16, **given) == pytest.approx(3.0)
    assert trees_wanted(64, m=16, central=True, **given) == pytest.approx(4.0)
    rest: dict[str, Any] = {"d": 10, "epsilon": 1.0, "alpha": 1.0, "beta": 1.0}
    assert design("paper", 15, m=256, **rest) == (64, 4)
    found = corollary_2_3(100, 16, exp(1), epsilon=4.0, alpha=1.0)  # type: ignore[arg-type]
    assert found == pytest.approx(log(100) * 2.5 + log(100) / 8)
    law = svt_law(**tiny(keyed(30).random((2, 4, 2)), optimal_loss=0.3))
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert sum(expert_law(law).values()) == pytest.approx(1.0, abs=1e-12)
