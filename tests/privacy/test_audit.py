"""Audits: the bound itself, what it says of right and wrong mechanisms, and the registry."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from problems import ordinary_cases
from scipy import stats

from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate_tree, epsilon_of, mu_of
from fastfed.privacy.audit import mechanisms
from fastfed.privacy.audit.bounds import (
    AuditResult,
    audit,
    epsilon_lower_bound,
    estimated_mu,
    gaussian_audit,
    judged,
)
from fastfed.privacy.audit.mechanisms import (
    AUDITS,
    BUDGET,
    FAULTY,
    STEPS,
    TRIALS,
    WORST_PAIR,
    node_statistics,
    prefix_statistics,
    release_statistics,
)
from fastfed.privacy.mechanisms.laplace import Laplace
from fastfed.privacy.releases.gaussian_release import calibrate_release
from fastfed.privacy.releases.prefix_sums import (
    honaker_coefficients,
    node_count,
    node_number,
    toeplitz_factor,
)

KEYS = ["name", "delta", "claimed_epsilon", "epsilon_lower_bound", "confidence", "trials"]


# ---- the bound ----------------------------------------------------------------------------------


def test_bound_of_a_certain_event() -> None:
    """Values of an event that always and never happens, at 95 %."""
    assert epsilon_lower_bound(4000, 0, 4000, 0.1) == pytest.approx(6.88, abs=0.005)
    assert epsilon_lower_bound(4000, 0, 4000, 0.001) == pytest.approx(6.99, abs=0.005)
    assert epsilon_lower_bound(100_000, 0, 100_000, 0.1) == pytest.approx(10.1, abs=0.05)


@pytest.mark.parametrize("trials", [1, 7, 400])
def test_bound_is_that_of_exact_binomial_tests(trials: int) -> None:
    for tp in {0, 1, trials // 2, trials}:
        for fp in {0, trials // 3, trials}:
            low = stats.binomtest(tp, trials).proportion_ci(0.9, "exact").low
            up = stats.binomtest(fp, trials).proportion_ci(0.9, "exact").high
            expected = math.log((low - 0.01) / up) if low > 0.01 else 0.0
            found = epsilon_lower_bound(tp, fp, trials, 0.01, confidence=0.9)
            assert found == pytest.approx(max(0.0, expected), rel=1e-9, abs=1e-12)


def test_bound_is_right_as_often_as_it_says() -> None:
    """At 80 % confidence, 300 audits of tight Gaussians: too high no oftener than promised."""
    draw, mu = np.random.default_rng(11), 1.5
    true = epsilon_of(mu, 0.01)
    wrong = 0
    for _ in range(300):
        first, second = draw.normal(size=600), draw.normal(size=600) + mu
        found = audit("x", first, second, claimed_epsilon=true, delta=0.01, confidence=0.8)
        wrong += found.verdict == "caught"
    # 79 wrong of 300 would happen once in 100 times at a rate of 20 %.
    assert wrong < stats.binom.isf(0.01, 300, 0.2)


@pytest.mark.parametrize(("swap", "sign"), [(False, 1), (True, 1), (False, -1), (True, -1)])
def test_direction_of_the_statistic_does_not_matter(swap: bool, sign: int) -> None:
    draw = np.random.default_rng(12)
    runs = [sign * draw.normal(size=20_000), sign * (draw.normal(size=20_000) + 3.0)]
    if swap:
        runs.reverse()
    found = audit("x", *runs, claimed_epsilon=1.0, delta=0.01)
    assert found.verdict == "caught" and 4.5 < found.epsilon_lower_bound < epsilon_of(3.0, 0.01)


def test_one_sided_leaks_are_found_from_either_side() -> None:
    """An event of probability 0.05 that the other dataset never shows: only one order of P, Q
    tells."""
    draw = np.random.default_rng(13)
    rare = (draw.uniform(size=20_000) < 0.05).astype(float)
    for runs in ((rare, np.zeros(20_000)), (np.zeros(20_000), rare), (-rare, np.zeros(20_000))):
        found = audit("x", *runs, claimed_epsilon=1.0, delta=0.01)
        assert found.epsilon_lower_bound > 4.0


def test_what_chose_the_event_is_not_counted_again() -> None:
    """A leak in the first half of the runs only: those chose, the others are counted."""
    draw = np.random.default_rng(16)
    first, second = draw.normal(size=8000), draw.normal(size=8000)
    first[:4000] += 4.0
    assert audit("x", first, second, claimed_epsilon=1, delta=0.0).epsilon_lower_bound < 0.5
    first[4000:] += 4.0
    assert audit("x", first, second, claimed_epsilon=1, delta=0.0).epsilon_lower_bound > 3.0


def test_equal_worlds_give_nothing() -> None:
    draw = np.random.default_rng(14)
    same = audit("x", draw.normal(size=5000), draw.normal(size=5000), claimed_epsilon=0.1, delta=0)
    assert same.epsilon_lower_bound < 0.1 and same.verdict == "pass"
    constant = audit("x", np.ones(100), np.ones(100), claimed_epsilon=0.0, delta=0.1)
    assert constant.epsilon_lower_bound == 0.0 and constant.verdict == "pass"


def test_functions_are_called_with_the_number_of_trials() -> None:
    seen = []

    def play(n: int) -> np.ndarray:
        seen.append(n)
        return np.arange(n, dtype=float)

    found = audit("x", play, play, claimed_epsilon=1.0, delta=0.0, trials=50)
    assert seen == [50, 50] and found.trials == 50


# ---- estimated mu -------------------------------------------------------------------------------


def test_estimated_mu_covers_the_truth() -> None:
    draw, outside = np.random.default_rng(15), 0
    for _ in range(200):
        first = 3.0 * draw.normal(size=500) - 8.0
        second = 3.0 * (draw.normal(size=400) + 2.4) - 8.0
        found = estimated_mu(first, second, confidence=0.9)
        assert found.low < found.mu < found.high
        outside += not found.low <= 2.4 <= found.high
    low, high = stats.binom.interval(1 - 1e-4, 200, 0.1)
    assert low <= outside <= high


def test_gaussian_audit_at_large_epsilon() -> None:
    """Counting events says little at epsilon = 5; the estimate finds 5 % too little noise."""
    tree = calibrate_tree(Budget(5.0, 0.01), 7)
    results = {}
    for factor in (1.0, 0.95):
        wrong = msgspec.structs.replace(tree, noise_std=factor * tree.noise_std)
        runs = [node_statistics(wrong, 6000, 3, world) for world in (0, 1)]
        mu = estimated_mu(*runs)
        assert mu.low <= mu_of(5.0, 0.01) / factor <= mu.high
        results[factor] = gaussian_audit("x", *runs, claimed_epsilon=5.0, delta=0.01)
        assert audit("x", *runs, claimed_epsilon=5.0, delta=0.01).verdict == "pass"
    assert results[1.0].verdict == "pass" and results[1.0].epsilon_lower_bound > 4.7
    assert results[0.95].verdict == "caught"


# ---- what is played -----------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["exact", "theorem", "published-code"])
def test_worst_pairs_attain_the_sensitivity(calibration: str) -> None:
    """One layout each; mu from the implementation's own runs, 3.5 % at four standard errors."""
    tree = calibrate_tree(Budget(2.0, 0.01), 3, calibration)
    first, second = (node_statistics(tree, 20_000, 5, world) for world in (0, 1))
    # The exact value from the likelihood ratio: its mean moves by mu^2, its deviation is mu.
    shift = second.mean() - first.mean()
    assert estimated_mu(first, second).mu == pytest.approx(tree.mu(), rel=0.035, abs=0.045)
    assert shift == pytest.approx(tree.mu() ** 2, rel=0.05, abs=0.04 * tree.mu())
    assert stats.kstest((first - first.mean()) / first.std(), stats.norm.cdf).pvalue > 1e-6
    (x, other) = WORST_PAIR[tree.layout]
    assert math.hypot(*x) == pytest.approx(1.0) and math.hypot(*other) == pytest.approx(1.0)


def test_prefixes_say_what_nodes_say() -> None:
    """Reused noise makes prefixes post-processing; redrawn, they add up to a mu of their own."""
    tree = calibrate_tree(BUDGET, 24)
    reused = [prefix_statistics(tree, 4000, 6, world) for world in (0, 1)]
    assert estimated_mu(*reused).mu == pytest.approx(tree.mu(), abs=0.09)
    redrawn = [prefix_statistics(tree, 4000, 6, world, redrawn=True) for world in (0, 1)]
    # One for each prefix of a single node, half for each of two.
    sizes = [k.bit_count() for k in range(1, 25) if k.bit_count() <= 2]
    expected = sum(1 / s for s in sizes)
    mu = 2.0 * math.sqrt(expected) / tree.noise_std
    assert estimated_mu(*redrawn).mu == pytest.approx(mu, abs=0.09)
    assert mu > 1.4 * tree.mu()


@pytest.mark.parametrize("play", [node_statistics, prefix_statistics])
def test_runs_are_independent(play: Callable[..., np.ndarray]) -> None:
    tree, n = calibrate_tree(BUDGET, 7), 3000
    first, second = (play(tree, n, 8, world) for world in (0, 1))
    limit = stats.norm.isf(1e-6) / math.sqrt(n)
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < limit
    assert not np.isin(first, play(tree, 100, 9, 0)).any()


@pytest.mark.parametrize("name", ["honaker", "toeplitz"])
def test_releases_leak_what_their_prefixes_can_tell(name: str) -> None:
    release = calibrate_release(name, BUDGET, 12)
    runs = [release_statistics(release, 3000, 7, world) for world in (0, 1)]
    if name == "toeplitz":
        expected = release.mu()
        rows = toeplitz_factor(12)
    else:
        rows = np.zeros((12, node_count(12)))
        for k in range(1, 13):
            for node, c in honaker_coefficients(k).items():
                rows[k - 1, node_number(*node) - 1] = c
        inverse = np.linalg.inv(rows @ rows.T)
        squared = max(inverse[j:, j:].sum() for j in range(12))
        expected = 2.0 * math.sqrt(squared) / release.noise_std
        assert expected == pytest.approx(release.mu(), rel=1e-12)
        # Nothing of that is lost by looking at another leaf than the first, which is not a worst.
        assert inverse.sum() < 0.98 * squared
    assert estimated_mu(*runs).mu == pytest.approx(expected, abs=0.1)


# ---- the registry -------------------------------------------------------------------------------

FAST = ("laplace", "exponential", "exponential-gumbel", "sparse-vector")
FEW = {  # runs that settle a verdict, for the ordinary tests
    **dict.fromkeys(AUDITS, 4000),
    **dict.fromkeys(FAST, 20_000),
    **dict.fromkeys(("honaker", "toeplitz", "gaussian-tree-prefix"), 1000),
    "fault-noise-redrawn": 2500,
    "fault-bare-threshold": 5000,
    "fault-kappa-forgotten": 1000,
    "fault-winsorized-half-noise": 8000,
}


# Each has another of its mechanism among the rest, here or in test_privacy_experts.
ALSO = {
    *("fault-winsorized-half-noise", "exponential-gumbel", "toeplitz", "gaussian-tree-prefix"),
    *("gaussian-tree-theorem", "gaussian-tree-published-code", "sparse-switching"),
    "fault-sparse-switching-printed-threshold",
}


@pytest.mark.parametrize(
    "name",
    ordinary_cases(sorted(set(AUDITS) - {"fault-natural-log"}), lambda name: name not in ALSO),
)
def test_verdicts(name: str) -> None:
    found = AUDITS[name](FEW[name], 0)
    assert (found.name, found.trials, found.claimed_epsilon) == (name, FEW[name], 1.0)
    assert found.verdict == ("caught" if name in FAULTY else "pass"), found


@pytest.mark.parametrize("name", ["gaussian-tree", "toeplitz", "laplace"])
def test_an_audit_is_a_function_of_its_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "RELEASES", 7)
    monkeypatch.setattr(mechanisms, "STEPS", 7)
    results = [AUDITS[name](1000, seed).epsilon_lower_bound for seed in (4, 4, 5)]
    assert results[0] == results[1] != results[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("gaussian-tree-theorem", 0.30, 0.46),
        ("gaussian-tree", 0.75, 1.0),
        ("gaussian-tree-published-code", 1.6, 2.0),
        ("fault-kappa-forgotten", 3.3, 4.4),
        ("fault-natural-log", 1.0, 1.18),
    ],
)
def test_figures_of_many_runs(name: str, low: float, high: float) -> None:
    found = AUDITS[name](max(100_000, TRIALS[name]), 1)
    assert low < found.epsilon_lower_bound <= high
    assert found.verdict == ("caught" if name in FAULTY else "pass")


def test_under_noised_laplace_is_caught() -> None:
    draw = np.random.default_rng(17)
    wrong = Laplace(sensitivity=1.0, epsilon=1.5)  # the scale of a sensitivity of 2 / 3

    def play(value: float) -> Callable[[int], np.ndarray]:
        return lambda n: wrong.release(np.full(n, value), draw.uniform(size=n))

    found = audit("x", play(0.0), play(1.0), claimed_epsilon=1.0, delta=0.0, trials=20_000)
    assert found.verdict == "caught" and found.epsilon_lower_bound < 1.5


def test_names() -> None:
    assert set(AUDITS) >= FAULTY and set(TRIALS) == set(AUDITS)
    assert STEPS < 400 and all(name in AUDITS for name in FAST)


# ---- results ------------------------------------------------------------------------------------


def test_result_keys() -> None:
    built = judged("x", 1.5, 100, claimed_epsilon=1.0, delta=0.01).to_builtins()
    assert list(built) == [*KEYS, "verdict"] and built["verdict"] == "caught"
    assert json.loads(json.dumps(built)) == built
    assert judged("x", 1.0, 100, claimed_epsilon=1.0, delta=0.01).verdict == "pass"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AuditResult("x", 0.1, 1.0, 1.5, 0.95, 10, "pass"), 'verdict must be "caught"'),
        (lambda: AuditResult("x", 0.1, 1.0, 0.5, 0.95, 10, "fine"), "verdict must be one of"),
        (
            lambda: audit("x", np.ones(3), np.ones(4), claimed_epsilon=1, delta=0),
            "first and second must have the same number of runs, >= 2, got 3, 4",
        ),
        (
            lambda: audit("x", np.ones(4), np.full(4, math.nan), claimed_epsilon=1, delta=0),
            "second must be finite",
        ),
        (
            lambda: audit("x", np.ones, np.ones, claimed_epsilon=1, delta=0),
            "trials must be given when first is a function, got None",
        ),
        (lambda: epsilon_lower_bound(5, 0, 4, 0.1), "true_positives must be an integer >= 0"),
        (lambda: epsilon_lower_bound(4, 0, 4, 0.1, 1.0), "confidence must be > 0 and < 1"),
        (lambda: estimated_mu(np.ones(4), np.ones(4)), "must vary over the runs"),
        (lambda: estimated_mu(np.ones(1), np.ones(4)), "at least 2 runs each"),
        (lambda: AUDITS["gaussian-tree"](1, 0), "trials must be an integer >= 2"),
        (lambda: AUDITS["laplace"](1, 0), "trials must be an integer >= 2, got 1"),
        (lambda: AUDITS["laplace"](10, -1), "seed must be an integer"),
    ],
)
def test_bad_input_is_one_clear_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
