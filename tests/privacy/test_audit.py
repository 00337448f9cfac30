"""Tests of audits: the lower bound of epsilon, verdicts on correct and faulty mechanisms, and the
registry."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from problems import ordinary_cases
from scipy import stats

from fastfed._validate import InputError
from fastfed.cli import cli
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
from fastfed.reporting.notebook import as_html

KEYS = ["name", "delta", "claimed_epsilon", "epsilon_lower_bound", "confidence", "trials"]


# ---- the bound ----------------------------------------------------------------------------------


def test_bound_of_a_certain_event() -> None:
    """Check an event that always happens in one case and never in the other, at 95 %."""
    assert epsilon_lower_bound(4000, 0, 4000, 0.1) == pytest.approx(6.88, abs=0.005)
    assert epsilon_lower_bound(4000, 0, 4000, 0.001) == pytest.approx(6.99, abs=0.005)
    assert epsilon_lower_bound(100_000, 0, 100_000, 0.1) == pytest.approx(10.1, abs=0.05)


@pytest.mark.parametrize("trials", [1, 7, 400])
def test_bound_equals_exact_binomial_tests(trials: int) -> None:
    for tp in {0, 1, trials // 2, trials}:
        for fp in {0, trials // 3, trials}:
            low = stats.binomtest(tp, trials).proportion_ci(0.9, "exact").low
            high = stats.binomtest(fp, trials).proportion_ci(0.9, "exact").high
            expected = math.log((low - 0.01) / high) if low > 0.01 else 0.0
            bound = epsilon_lower_bound(tp, fp, trials, 0.01, confidence=0.9)
            assert bound == pytest.approx(max(0.0, expected), rel=1e-9, abs=1e-12)


def test_bound_has_its_confidence() -> None:
    """Run 300 audits of tight Gaussians at 80 % confidence and count bounds that are too high."""
    rng, mu = np.random.default_rng(11), 1.5
    true = epsilon_of(mu, 0.01)
    wrong_count = 0
    for _ in range(300):
        first, second = rng.normal(size=600), rng.normal(size=600) + mu
        result = audit("x", first, second, claimed_epsilon=true, delta=0.01, confidence=0.8)
        wrong_count += result.verdict == "caught"
    # At a rate of 20 %, 79 wrong bounds of 300 occur once in 100 times.
    assert wrong_count < stats.binom.isf(0.01, 300, 0.2)


@pytest.mark.parametrize(("swap", "sign"), [(False, 1), (True, 1), (False, -1), (True, -1)])
def test_direction_of_the_statistic_does_not_matter(swap: bool, sign: int) -> None:
    rng = np.random.default_rng(12)
    runs = [sign * rng.normal(size=20_000), sign * (rng.normal(size=20_000) + 3.0)]
    if swap:
        runs.reverse()
    result = audit("x", *runs, claimed_epsilon=1.0, delta=0.01)
    assert result.verdict == "caught" and 4.5 < result.epsilon_lower_bound < epsilon_of(3.0, 0.01)


def test_one_sided_leaks_are_detected_in_both_directions() -> None:
    """Use an event of probability 0.05 that never happens with the other data set."""
    rng = np.random.default_rng(13)
    rare = (rng.uniform(size=20_000) < 0.05).astype(float)
    for runs in ((rare, np.zeros(20_000)), (np.zeros(20_000), rare), (-rare, np.zeros(20_000))):
        result = audit("x", *runs, claimed_epsilon=1.0, delta=0.01)
        assert result.epsilon_lower_bound > 4.0


def test_runs_that_choose_the_event_are_not_counted() -> None:
    """Let only the first half of the runs leak: they choose the event, the second half is
    counted."""
    rng = np.random.default_rng(16)
    first, second = rng.normal(size=8000), rng.normal(size=8000)
    first[:4000] += 4.0
    assert audit("x", first, second, claimed_epsilon=1, delta=0.0).epsilon_lower_bound < 0.5
    first[4000:] += 4.0
    assert audit("x", first, second, claimed_epsilon=1, delta=0.0).epsilon_lower_bound > 3.0


def test_equal_distributions_give_a_bound_near_zero() -> None:
    rng = np.random.default_rng(14)
    result = audit("x", rng.normal(size=5000), rng.normal(size=5000), claimed_epsilon=0.1, delta=0)
    assert result.epsilon_lower_bound < 0.1 and result.verdict == "pass"
    constant = audit("x", np.ones(100), np.ones(100), claimed_epsilon=0.0, delta=0.1)
    assert constant.epsilon_lower_bound == 0.0 and constant.verdict == "pass"


def test_functions_are_called_with_the_number_of_trials() -> None:
    calls = []

    def count_up(n: int) -> np.ndarray:
        """Return 0, .., n - 1, and note n."""
        calls.append(n)
        return np.arange(n, dtype=float)

    result = audit("x", count_up, count_up, claimed_epsilon=1.0, delta=0.0, trials=50)
    assert calls == [50, 50] and result.trials == 50


def test_few_runs_cannot_refute_a_claim() -> None:
    def audit_without_overlap(n: int) -> AuditResult:
        """Return the audit of n runs whose outputs always differ between the two data sets."""
        return audit("x", np.zeros(n), np.ones(n), claimed_epsilon=1.0, delta=0.0)

    # Outputs that never agree, so the bound is the largest one: that of the second half of runs.
    for n in (2, 10, 11, 40, 400):
        result = audit_without_overlap(n)
        by_hand = stats.binomtest(n - n // 2, n - n // 2).proportion_ci(0.95, "exact").low
        expected = max(0.0, np.log(by_hand / (1.0 - by_hand)))
        assert result.largest_bound == pytest.approx(expected, abs=1e-12)
        # In five runs every event has the bound 0, so the choice of one is arbitrary.
        assert result.epsilon_lower_bound == result.largest_bound or n == 11
        assert result.can_refute == (result.verdict == "caught") == (expected > 1.0)
    few_runs = as_html(audit_without_overlap(10))
    assert "Too few runs" in few_runs and "did not refute" not in few_runs
    equal_outputs = audit("x", np.ones(400), np.ones(400), claimed_epsilon=1.0, delta=0.0)
    assert equal_outputs.can_refute and "did not refute the claim" in as_html(equal_outputs)
    for name in ("gaussian-tree", "fault-noise-redrawn", "feducb-schedule"):
        few_trials = CliRunner().invoke(cli, ["audit", name, "--trials", "10"])
        # The audit of a schedule chooses no event, so it counts all ten runs. With 0.05 / 2 in each
        # tail, low is 0.025^(1/10) = 0.6915: ln((0.6915 - 0.01) / (1 - 0.6915)) = 0.793.
        largest = "0.793" if name == "feducb-schedule" else "0"
        assert f"pass: too few trials, which can show {largest} at most" in few_trials.stdout
    with pytest.raises(InputError, match=r"largest_bound must be >= 0\.5"):
        AuditResult("x", 0.1, 1.0, 0.5, 0.95, 10, "pass", 0.4)


# ---- estimated mu -------------------------------------------------------------------------------


def test_estimated_mu_covers_the_truth() -> None:
    rng, outside_count = np.random.default_rng(15), 0
    for _ in range(200):
        first = 3.0 * rng.normal(size=500) - 8.0
        second = 3.0 * (rng.normal(size=400) + 2.4) - 8.0
        estimate = estimated_mu(first, second, confidence=0.9)
        assert estimate.low < estimate.mu < estimate.high
        outside_count += not estimate.low <= 2.4 <= estimate.high
    low, high = stats.binom.interval(1 - 1e-4, 200, 0.1)
    assert low <= outside_count <= high


def test_gaussian_audit_at_large_epsilon() -> None:
    """Check that the estimate of mu detects 5 % too little noise at epsilon = 5.

    Counting events shows little there.
    """
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


# ---- statistics of the runs ---------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["exact", "theorem", "published-code"])
def test_worst_pairs_attain_the_sensitivity(calibration: str) -> None:
    """Estimate mu from runs of the implementation, one layout per case.

    The tolerance of 3.5 % is four standard errors.
    """
    tree = calibrate_tree(Budget(2.0, 0.01), 3, calibration)
    first, second = (node_statistics(tree, 20_000, 5, world) for world in (0, 1))
    # For the log likelihood ratio, the mean shifts by mu^2 and the standard deviation is mu.
    shift = second.mean() - first.mean()
    assert estimated_mu(first, second).mu == pytest.approx(tree.mu(), rel=0.035, abs=0.045)
    assert shift == pytest.approx(tree.mu() ** 2, rel=0.05, abs=0.04 * tree.mu())
    assert stats.kstest((first - first.mean()) / first.std(), stats.norm.cdf).pvalue > 1e-6
    (x, other) = WORST_PAIR[tree.layout]
    assert math.hypot(*x) == pytest.approx(1.0) and math.hypot(*other) == pytest.approx(1.0)


def test_prefixes_have_the_mu_of_the_nodes() -> None:
    """Check that prefixes with reused noise are post-processing; with new noise, mu is larger."""
    tree = calibrate_tree(BUDGET, 24)
    reused = [prefix_statistics(tree, 4000, 6, world) for world in (0, 1)]
    assert estimated_mu(*reused).mu == pytest.approx(tree.mu(), abs=0.09)
    redrawn = [prefix_statistics(tree, 4000, 6, world, redrawn=True) for world in (0, 1)]
    # A prefix of a single node counts 1, a prefix of two nodes counts 1/2.
    sizes = [k.bit_count() for k in range(1, 25) if k.bit_count() <= 2]
    expected = sum(1 / s for s in sizes)
    mu = 2.0 * math.sqrt(expected) / tree.noise_std
    assert estimated_mu(*redrawn).mu == pytest.approx(mu, abs=0.09)
    assert mu > 1.4 * tree.mu()


@pytest.mark.parametrize("statistics_of", [node_statistics, prefix_statistics])
def test_runs_are_independent(statistics_of: Callable[..., np.ndarray]) -> None:
    tree, n = calibrate_tree(BUDGET, 7), 3000
    first, second = (statistics_of(tree, n, 8, world) for world in (0, 1))
    limit = stats.norm.isf(1e-6) / math.sqrt(n)
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < limit
    assert not np.isin(first, statistics_of(tree, 100, 9, 0)).any()


@pytest.mark.parametrize("name", ["honaker", "toeplitz"])
def test_prefix_statistics_attain_the_mu_of_their_release(name: str) -> None:
    release = calibrate_release(name, BUDGET, 12)
    runs = [release_statistics(release, 3000, 7, world) for world in (0, 1)]
    if name == "toeplitz":
        expected = release.mu()
        rows = toeplitz_factor(12)
    else:
        rows = np.zeros((12, node_count(12)))
        for k in range(1, 13):
            for node, coefficient in honaker_coefficients(k).items():
                rows[k - 1, node_number(*node) - 1] = coefficient
        inverse = np.linalg.inv(rows @ rows.T)
        squared = max(inverse[j:, j:].sum() for j in range(12))
        expected = 2.0 * math.sqrt(squared) / release.noise_std
        assert expected == pytest.approx(release.mu(), rel=1e-12)
        # The first leaf is not the worst one, so that auditing another leaf matters.
        assert inverse.sum() < 0.98 * squared
    assert estimated_mu(*runs).mu == pytest.approx(expected, abs=0.1)


# ---- the registry -------------------------------------------------------------------------------

FAST = ("laplace", "exponential", "exponential-gumbel", "sparse-vector")
FEW = {  # numbers of runs that suffice for a verdict, for the ordinary
    **dict.fromkeys(AUDITS, 4000),
    **dict.fromkeys(FAST, 20_000),
    **dict.fromkeys(("honaker", "toeplitz", "gaussian-tree-prefix"), 1000),
    "fault-noise-redrawn": 2500,
    "fault-bare-threshold": 5000,
    "fault-kappa-forgotten": 1000,
    "fault-winsorized-half-noise": 8000,
}


# Audits that need no ordinary test, since another audit of the same mechanism runs here or in
# test_privacy_experts.
ALSO = {
    *("fault-winsorized-half-noise", "exponential-gumbel", "toeplitz", "gaussian-tree-prefix"),
    *("gaussian-tree-theorem", "gaussian-tree-published-code", "sparse-switching"),
    "fault-sparse-switching-printed-threshold",
}


@pytest.mark.parametrize(
    "name",
    ordinary_cases(sorted(set(AUDITS) - {"fault-natural-log"}), lambda name: name not in ALSO),
)
def test_audits_give_their_verdicts(name: str) -> None:
    result = AUDITS[name](FEW[name], 0)
    assert (result.name, result.trials, result.claimed_epsilon) == (name, FEW[name], 1.0)
    assert result.verdict == ("caught" if name in FAULTY else "pass"), result


@pytest.mark.parametrize("name", ["gaussian-tree", "toeplitz", "laplace"])
def test_results_of_an_audit_depend_only_on_its_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_lower_bounds_of_many_runs(name: str, low: float, high: float) -> None:
    result = AUDITS[name](max(100_000, TRIALS[name]), 1)
    assert low < result.epsilon_lower_bound <= high
    assert result.verdict == ("caught" if name in FAULTY else "pass")


def test_audit_detects_too_little_laplace_noise() -> None:
    rng = np.random.default_rng(17)
    mechanism = Laplace(sensitivity=1.0, epsilon=1.5)  # the scale of a sensitivity of 2 / 3

    def release_of(value: float) -> Callable[[int], np.ndarray]:
        """Return a function of n that draws n releases of this value."""
        return lambda n: mechanism.release(np.full(n, value), rng.uniform(size=n))

    result = audit(
        "x", release_of(0.0), release_of(1.0), claimed_epsilon=1.0, delta=0.0, trials=20_000
    )
    assert result.verdict == "caught" and result.epsilon_lower_bound < 1.5


def test_names_of_audits() -> None:
    assert set(AUDITS) >= FAULTY and set(TRIALS) == set(AUDITS)
    assert STEPS < 400 and all(name in AUDITS for name in FAST)


# ---- results ------------------------------------------------------------------------------------


def test_results_have_their_keys() -> None:
    result_dict = judged("x", 1.5, 100, claimed_epsilon=1.0, delta=0.01).to_builtins()
    assert (
        list(result_dict) == [*KEYS, "verdict", "largest_bound"]
        and result_dict["verdict"] == "caught"
    )
    assert json.loads(json.dumps(result_dict)) == result_dict
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
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
