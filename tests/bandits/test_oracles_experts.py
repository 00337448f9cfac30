"""Tests of the experts oracle (Gao et al. 2024): closed forms, exact distributions, cases by hand.

E# numbers a correction of section 6 of the text next to the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, exp, log
from typing import Any

import numpy as np
import pytest
from oracle import gao_2024 as gao
from pytest import approx


def keyed_rng(*key: int) -> np.random.Generator:
    """Return a random generator for this key."""
    return np.random.default_rng([2024, *key])


# Phases, batches and trees.


def test_phases_and_batches() -> None:
    assert [gao.number_of_phases(T) for T in (1, 2, 3, 4, 7, 8)] == [1, 2, 2, 3, 3, 4]
    assert [gao.first_round(p) for p in (1, 2, 3)] == [1, 2, 4]
    assert [list(gao.sample_rounds(p)) for p in (2, 3, 4)] == [[1], [2, 3], [4, 5, 6, 7]]
    actual = [gao.batch_paper(p) for p in range(2, 16)]
    assert actual == [2, 1, 0, 1, 1, 1, 2, 4, 4, 8, 16, 16, 32, 64]


def test_designs() -> None:
    # b eps beta sqrt m / (alpha ln e) = 64: half its binary logarithm is 3.
    sizes: dict[str, Any] = {"d": exp(1), "epsilon": 0.5, "alpha": 2.0, "beta": 1.0}
    assert gao.trees_wanted(64, m=16, **sizes) == approx(3.0)
    assert gao.trees_wanted(64, m=16, central=True, **sizes) == approx(4.0)
    # T = 2^14, alpha = beta = 1, eps 1, d 10: the numbers of trees of all phases.
    sizes = {"d": 10, "epsilon": 1.0, "alpha": 1.0, "beta": 1.0}
    for rule, m, trees in [
        ("paper", 1, [0] * 11 + [1, 1, 1, 2]),
        ("paper", 256, [0] * 7 + [1, 2, 2, 2, 3, 3, 3, 4]),
        ("largest", 1, [0] * 6 + [1, 1, 1, 2, 2, 2, 3, 3, 3]),
        ("largest", 256, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5]),
    ]:
        assert [gao.design(rule, p, m=m, **sizes)[1] for p in range(1, 16)] == trees
    assert gao.design("paper", 15, m=256, **sizes) == (64, 4)


# Algorithms 1-3.


@dataclass(frozen=True)
class Squared:
    """The losses (<a, x> - y)^2 / 2 of every client and round."""

    a: np.ndarray
    y: np.ndarray

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        """Return the gradient of a client's loss of round t at x."""
        a = self.a[client, t - 1]
        return a * (a @ x - self.y[client, t - 1])


@dataclass(frozen=True)
class OneKinked:
    """Constant gradients, except for client 0 in round t: u if u x > 1/2, otherwise -u."""

    elsewhere: np.ndarray
    t: int
    u: np.ndarray

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        """Return the gradient of a client's loss of round t at x."""
        return self.elsewhere if t != self.t else self.u * (1.0 if self.u @ x > 0.5 else -1.0)


def one_phase(p: int, b: int) -> Callable[[int], tuple[int, int]]:
    """Return designs in which only phase p has a tree."""
    return lambda q: (b, 1) if q == p else (0, 0)


@pytest.mark.parametrize("central", [False, True])
def test_phases_vertices_and_leaves(central: bool) -> None:
    """Compute every vertex and leaf of a run again from its definition."""
    m, d, T = 3, 4, 300
    losses = Squared(keyed_rng(1).uniform(-1, 1, (m, T, d)), keyed_rng(2).uniform(-1, 1, (m, T)))

    def noise(i: int, p: int, k: int) -> np.ndarray:
        """Return the noise of client i in leaf k of phase p."""
        return keyed_rng(3, i + 1, p, k).laplace(size=d)

    run = gao.ope_stoch(
        losses,
        T=T,
        m=m,
        d=d,
        designs=lambda p: {6: (2, 1), 7: (4, 2), 8: (4, 2), 9: (8, 3)}.get(p, (0, 0)),
        permutation=lambda i, p: keyed_rng(4, i, p).permutation(2 ** (p - 2)),
        scale=lambda p, j, b: 0.2 * 2**j / b,
        noise=noise,
        central=central,
    )
    assert [t for phase in run.phases for t in phase.rounds] == [*range(1, T + 1)]
    assert run.released == [leaf.w for leaf in run.leaves]
    x, vertex_at, leaves = np.full(d, 0.25), {}, iter(run.leaves)
    for phase in run.phases:
        vertices = [v for v in run.vertices if v.phase == phase.p]
        for v in vertices:
            vertex_at[v.tree, v.path] = v
            parent = vertex_at[v.tree, v.path[:-1]]
            if v.path.endswith("0"):
                # A left vertex takes x and v from its parent.
                assert v.rounds.size == 0
                assert np.array_equal(v.x, parent.x) and np.array_equal(v.v, parent.v)
            else:
                # A right vertex follows Equation (3), with x after all leaves so far.
                assert v.rounds.shape == (m, phase.batch / 2 ** len(v.path))
                assert np.array_equal(v.x, x)
                for i in range(m):
                    mean_gradient = np.mean(
                        [losses.gradient(i, t, v.x) for t in v.rounds[i]], axis=0
                    )
                    if v.path:
                        parent_gradients = [losses.gradient(i, t, parent.x) for t in v.rounds[i]]
                        mean_gradient += parent.v[i] - np.mean(parent_gradients, axis=0)
                    assert v.v[i] == approx(mean_gradient, abs=1e-14)
            if len(v.path) == v.tree:
                leaf = next(leaves)
                noises = [noise(gao.SERVER if central else i, leaf.phase, leaf.k) for i in range(m)]
                scores = v.v.mean(axis=0) + 0.2 * 2**v.tree / phase.batch * np.mean(noises, axis=0)
                assert leaf.scores == approx(scores)
                first, second = np.sort(scores)[:2]
                assert (scores[leaf.w], leaf.gap) == (approx(first), 0.0)
                assert leaf.margin == approx(second - first)
                x = leaf.x
        # eta_k = 2/(k+1): x_K weighs w_k by 2k / (K (K+1)).
        w = [leaf.w for leaf in run.leaves if leaf.phase == phase.p]
        if w:
            assert len(w) == gao.number_of_leaves(phase.trees)
            weights = 2 * np.arange(1, len(w) + 1) / (len(w) * (len(w) + 1))
            assert phase.x == approx(np.bincount(w, weights, minlength=d), abs=1e-14)
            # The sets of a client are disjoint, and all samples are of the previous phase.
            used_rounds = np.hstack([v.rounds for v in vertices])
            assert np.isin(used_rounds, gao.sample_rounds(phase.p)).all()
            assert all(len(set(row)) == len(row) for row in used_rounds)
            assert used_rounds.shape[1] == gao.samples_needed(phase.batch, phase.trees)
        for t in phase.rounds:
            assert np.array_equal(run.x[t - 1], phase.x)


def test_scales_and_changes() -> None:
    assert gao.lambda_printed(1, 2, 16, 1) == 1.0
    assert gao.lambda_corrected(1, 2, 16, 1) == 2.0
    assert (gao.mu_printed(1, 2, 16, 1, 10), gao.mu_corrected(1, 2, 16, 1, 10)) == (0.1, 0.2)
    actual = [
        gao.leaf_change(3.0, 8, *further_arguments) for further_arguments in ((0,), (2,), (2, True))
    ]
    assert actual == [0.75, 6.0, 3.0]
    # All d scores of a leaf are sent. If they change together, they cost d eps (E1).
    cost = gao.leaves_below(2, 1) * 5 * gao.leaf_change(1.0, 8, 1)
    assert cost / gao.lambda_printed(1.0, 2, 8, 0.3) == approx(5 * 0.3)


def test_distribution_and_privacy_loss_of_argmin() -> None:
    """Check P(the expert that is worse by g) = exp(-g) (2 + g) / 4 at scale 1."""
    for g in (0.0, 0.3, 40.0):
        distribution = gao.argmin_law(np.array([0.0, 3 * g]), 3.0)
        assert distribution == approx([1 - exp(-g) * (2 + g) / 4, exp(-g) * (2 + g) / 4], rel=1e-12)
    # Change 1 at scale 1 from a gap of 40: 40 to 42 in both directions, 40 to 41 in one.
    scores = np.array([0.0, 40.0])
    assert gao.argmin_cost(scores, 1.0, 1.0) == approx(2 - log(44 / 42))
    assert gao.argmin_cost(scores, 1.0, 1.0, one_sided=True) == approx(1 - log(43 / 42))


@pytest.mark.parametrize("at, printed", [(0, 1.0), (64, 2.0)])
def test_privacy_loss_of_the_expert_sequence_by_its_exact_distribution(
    at: int, printed: float
) -> None:
    """Replace the sample of the root (0) or of the right child (64) in a tree of two leaves.

    With the printed mu the sequence costs up to 1 or 2 eps; with twice this mu it costs half (E2).
    """
    b, epsilon, d, p = 64, 2.0, 3, 9
    for scale, expected in ((gao.mu_printed, printed), (gao.mu_corrected, printed / 2)):
        distributions = [
            gao.ope_law(
                OneKinked(np.array([1.0, -1.0, 1.0]), 2 ** (p - 2) + at, u),
                T=2**p - 1,
                m=1,
                d=d,
                designs=one_phase(p, b),
                permutation=lambda i, q: np.arange(2 ** (q - 2)),
                scale=lambda q, j, b, scale=scale: scale(1.0, j, b, epsilon, 1),
            )
            for u in np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
        ]
        assert sum(distributions[0].values()) == approx(1.0)
        assert (
            0.95 * expected * epsilon < gao.log_ratio(*distributions) <= expected * epsilon + 1e-9
        )


# Fed-SVT.


COSTS = (gao.advanced_epsilon, gao.response_epsilon, gao.zcdp_epsilon)


def test_constants_of_fed_svt() -> None:
    # delta = e^-4, kappa = 9: the root of kappa log(1/delta) is 6.
    delta = exp(-4)
    assert (gao.eta_pure(1.0, 20), gao.eta_printed(3.0, delta, 9)) == (0.025, approx(0.5))
    assert gao.eta_advanced(3.0, delta, 9) == approx(0.125)
    assert gao.advanced_epsilon(0.5, 9, delta) == approx(72**0.5 / 2 + 4.5 * (exp(0.5) - 1))
    assert gao.zcdp_epsilon(gao.eta_zcdp(1.0, 1e-6, 20), 20, 1e-6) == approx(0.5)
    assert gao.zcdp_epsilon(0.4, 9, delta) == approx(0.18 + 4 * 0.18**0.5)
    # The printed eta claims 0.5; it costs 1.4888 by advanced composition, 1.0589 exactly and 0.7162
    # by zCDP (E9).
    eta = gao.eta_printed(1.0, 1e-6, 20)
    costs = [cost(eta, 20, 1e-6) for cost in COSTS]
    assert costs == approx([1.4888175, 1.0589, 0.7162], abs=1e-4)
    for share, holds in [(1.88, True), (1.92, False)]:
        total_epsilon = share * log(1e6)
        actual = gao.advanced_epsilon(gao.eta_advanced(total_epsilon, 1e-6, 20), 20, 1e-6)
        assert (actual <= total_epsilon / 2) == holds
    assert (gao.threshold_scale_printed(0.5), gao.query_scale_printed(0.5)) == (8.0, 16.0)
    assert (gao.svt_cost(4.0, 8.0), gao.svt_cost_standard(4.0, 8.0)) == (0.25, 0.5)
    assert gao.svt_cost(8.0, 4.0) == 0.25
    assert gao.scale_least(0.5) == 4.0
    assert gao.switching_budget(10, 0.1) == ceil(3 * 4 + 24 * log(10)) == 68
    assert gao.switching_budget(10, 0.1, printed=True) == ceil(3 * 3 + 24 * log(10)) == 65
    arguments: dict[str, Any] = {"m": 10, "T": 100, "N": 5, "rho": 0.1, "epsilon": 0.5, "eta": 0.01}
    actual = gao.threshold(**arguments, optimal_loss=2.0)
    assert actual == approx(20 + 16 * log(2 * 400 / 0.1) + 400)


def test_response_delta_by_enumeration() -> None:
    eta, epsilon, kappa, total = 0.4, 0.7, 5, 0.0
    p = exp(eta) / (1 + exp(eta))
    for bits in product((0, 1), repeat=kappa):
        here = np.prod([p if bit else 1 - p for bit in bits])
        there = np.prod([1 - p if bit else p for bit in bits])
        total += max(0.0, here - exp(epsilon) * there)
    assert gao.response_delta(epsilon, eta, kappa) == approx(total)
    assert gao.response_epsilon(eta, kappa, total) == approx(epsilon)


def test_fed_svt_by_hand() -> None:
    """Use one client and N = 2, with noise only in the second threshold.

    Losses are 0.5 for expert 0 and 0 for expert 1.
    """
    losses = np.zeros((1, 12, 2))
    losses[:, :, 0] = 0.5
    arguments: dict[str, Any] = {"N": 2, "L": 1.4, "kappa": 2, "eta": 2 * log(3), "losses": losses}
    arguments |= {"threshold_scale": 2.0, "query_scale": 3.0}
    # The thresholds are 1.4 and 1.4 + 1. The first new choice is made to stay at expert 0.
    noise = gao.SvtNoise(lambda k: 0.5 * k, lambda t: 0.0, lambda t: 0.0)
    run = gao.fed_svt(noise=noise, **arguments)
    assert run.queries == [(2, 0.5), (4, 1.5), (6, 1.0), (8, 2.0), (10, 3.0)]
    assert (run.switches, run.margin) == ([4, 10], approx(0.1))
    assert run.laws[0] == approx(np.array([3**-1.5, 1]) / (1 + 3**-1.5))
    assert run.draw_margin == approx(1 / (1 + 3**4.5))
    assert run.x.tolist() == [0] * 12
    # L* = 3 hides the difference until round 7; at t = 10 expert 0 has cost 4.5.
    with_optimal_loss = gao.fed_svt(noise=noise, optimal_loss=3.0, **arguments)
    assert with_optimal_loss.laws[0] == approx([0.5, 0.5])
    assert with_optimal_loss.laws[1] == approx(np.array([3**-1.5, 1]) / (1 + 3**-1.5))
    # Two clients lose 1.5 in three rounds, which is below 2 L*.
    cost = gao.resampling_cost(np.full((2, 4, 2), 0.25), np.zeros(4, int), 4, 1.0, False)
    assert cost.tolist() == [2.0, 2.0]
    # With a uniform near 1, expert 1 is drawn and stays. A query noise of -0.3 delays the switch.
    upper_uniform = replace(noise, uniform=lambda t: 0.99 if t > 1 else 0.0)
    run = gao.fed_svt(noise=upper_uniform, **arguments)
    assert (run.switches, run.x.tolist()) == ([4], [0] * 3 + [1] * 9)
    run = gao.fed_svt(noise=replace(upper_uniform, query=lambda t: -0.1), **arguments)
    assert run.switches == [6]
    assert gao.decisions(7, 1) == [2, 3, 4, 5, 6, 7]
    assert (gao.decisions(9, 4), gao.decisions(3, 5)) == ([4, 8], [])
    experts = [gao.uniform_expert(7, u) for u in (np.arange(70) + 0.5) / 70]
    assert np.bincount(experts).tolist() == [10] * 7


# Exact distributions of small games.


def small_game(losses: np.ndarray, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a small game, with ``changes``."""
    arguments = {
        "N": 1,
        "L": 1.0,
        "kappa": 2,
        "eta": 0.5,
        "threshold_scale": 1.0,
        "query_scale": 2.0,
    }
    return {"losses": losses} | arguments | changes


def test_probabilities_of_outcomes_add_up_to_one() -> None:
    """Sum over the query that crosses the threshold, or none."""
    queries, scales = (0.5, 2.0, 2.5, 7.0), (1.5, 0.7, 1.1)
    total = gao.segment_probability(queries, False, *scales)
    total += sum(gao.segment_probability(queries[:n], True, *scales) for n in range(1, 5))
    assert total == approx(1.0, abs=1e-12)
    # One query: P(query noise - threshold noise <= x).
    single_query = gao.segment_probability((0.0,), True, 3.0, 4.0, 8.0)
    assert single_query == approx(gao.noise_gap_tail(3.0, 4.0, 8.0), rel=1e-12)
    distribution = gao.svt_law(**small_game(keyed_rng(30).random((2, 4, 2)), optimal_loss=0.3))
    assert sum(distribution.values()) == approx(1.0, abs=1e-12)
    assert sum(gao.expert_law(distribution).values()) == approx(1.0, abs=1e-12)
    assert len(gao.expert_law(distribution)) < len(distribution)


def test_without_threshold_noise_every_query_costs_privacy() -> None:
    """Check the printed `<= L`: n queries below it cost n/b.

    This exceeds eps/4 at n = 3 and eps at n = 9 (E7).
    """
    for n in (3, 9):
        distributions: dict[bool, list[Any]] = {True: [], False: []}
        for first, printed in product((0.0, 1.0), (True, False)):
            losses = np.zeros((1, n + 1, 1))
            losses[0, 0] = first
            scales: dict[str, Any] = {"threshold_scale": 4.0, "query_scale": 8.0, "kappa": 1}
            distribution = gao.svt_law(**small_game(losses, L=-80.0, printed=printed, **scales))
            distributions[printed].append(distribution)
        assert gao.log_ratio(*distributions[True]) == approx(n / 8, rel=1e-4)
        assert gao.log_ratio(*distributions[False]) <= 1 / 4 + 1e-9


# Follow the leader, hedge, regret and bounds.


def test_leader_hedge_and_regret_by_hand() -> None:
    losses = np.zeros((2, 7, 3))
    losses[0, 0] = [0.0, 1.0, 0.5]
    losses[1, 2] = [1.0, 0.0, 0.25]
    assert gao.follow_the_leader(losses, N=1, first=2).tolist() == [2, 0, 0, 2, 2, 2, 2]
    assert gao.follow_the_leader(losses, N=3, first=1).tolist() == [1, 1, 0, 0, 0, 2, 2]
    # Ties go to the first index.
    assert gao.follow_the_leader(np.zeros((1, 4, 3)), N=2, first=2).tolist() == [2, 0, 0, 0]
    distributions, x = gao.hedge(losses, N=3, eta=2 * log(2), uniform=lambda t: 0.99 * (t % 3 == 2))
    weights = [2.0 ** -np.array(S) for S in ([0, 0, 0], [0, 1, 0.5], [1, 1, 0.75])]
    for t, S in enumerate([0, 0, 1, 1, 1, 2, 2]):
        assert distributions[t] == approx(weights[S] / weights[S].sum())
    assert x is not None and x.tolist() == [0, 2, 0, 0, 2, 0, 0]
    assert gao.hedge(losses, N=3, eta=0.7)[1] is None
    # The best expert is 2 with a loss of 0.75; all three experts together lose 2.75.
    assert gao.regret(losses, np.array([1, 0, 0, 0, 0, 0, 0])) == approx((2 - 0.75) / 2)
    assert gao.regret(losses, np.full((7, 3), 1 / 3)) == approx((2.75 / 3 - 0.75) / 2)
    with pytest.raises(ValueError, match="losses"):
        gao.regret(losses + 1, np.zeros(7, dtype=int))


def test_bounds_by_hand() -> None:
    e: Any = exp(1)
    arguments: dict[str, Any] = {"T": 100, "m": 16, "d": e}
    actual = gao.theorem_2_2(**arguments, epsilon=4.0, alpha=1.0, beta=0.25)
    assert actual == approx(1.25 * log(100) * 2.5 + log(100) * 0.5 * 5 / 2)
    actual = gao.corollary_2_3(**arguments, epsilon=4.0, alpha=4.0)
    assert actual == approx(4 * log(100) * 2.5 + 2 * log(100) / 8)
    assert gao.theorem_2_4(100, e, None) == approx(10.0)
    assert gao.theorem_2_4(100, e, 0.5) == approx(2.0)
    assert gao.theorem_2_4(100, e, 1e-4) == 100
    actual = gao.theorem_2_6(**arguments, epsilon=0.5, N=10, rho=exp(-1), optimal_loss=2.0)
    assert actual == approx((1 + (log(100) + 1) * 2) / 8 + 12 * 2)
    arguments["d"] = exp(4)
    actual = gao.theorem_2_6(**arguments, epsilon=0.5, N=10, rho=exp(-1), delta=exp(-4))
    assert actual == approx((8 * 2 + (log(100) + 1) * 5) / 8 + 10 * 5)
    assert gao.theorem_2_7(16, e, 0.5) == approx(1 / 8)
