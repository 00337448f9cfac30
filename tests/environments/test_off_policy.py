"""Off-policy estimates: against the oracle, and against logs whose truth is known.

Seeds are fixed; a test of a mean fails by chance with probability below 1e-4 (four standard
errors) for a random seed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from oracle import off_policy as oracle

import fastfed
from fastfed import InputError
from fastfed.off_policy import cross_fitted_ridge, doubly_robust, inverse_propensity
from fastfed.off_policy import self_normalised as self_normalised_


def log(seed=0, n=40, k=5, rate=0.5):
    """Return the arguments of an estimator, the expected rewards, and the true value of the policy.

    The log is of a policy that prefers low actions; the policy to evaluate prefers high ones.
    """
    draw = np.random.default_rng(seed)
    logging = draw.dirichlet(np.linspace(2.0, 1.0, k), size=n) * 0.8 + 0.2 / k
    actions = (logging.cumsum(axis=1) > draw.uniform(size=(n, 1))).argmax(axis=1)
    means = rate * draw.uniform(size=(n, k)) * np.linspace(0.2, 1.0, k)
    rewards = (draw.uniform(size=n) < means[np.arange(n), actions]).astype(float)
    policy = draw.dirichlet(np.linspace(0.2, 2.0, k), size=n)
    arguments = actions, rewards, logging[np.arange(n), actions], policy
    return arguments, means, (policy * means).sum(axis=1).mean()


@pytest.mark.parametrize("seed", range(4))
def test_values_and_standard_errors_are_the_oracle_s(seed):
    arguments, means, _ = log(seed)
    predicted = means + np.random.default_rng(seed).normal(0, 0.2, means.shape)
    for ours, theirs in (
        (inverse_propensity(*arguments), oracle.inverse_propensity(*arguments)),
        (self_normalised_(*arguments), oracle.self_normalised(*arguments)),
        (doubly_robust(*arguments, predicted), oracle.doubly_robust(*arguments, predicted)),
    ):
        np.testing.assert_allclose((ours.value, ours.stderr), theirs, rtol=1e-11, atol=1e-14)
        half = 1.959963984540054 * ours.stderr
        np.testing.assert_allclose((ours.low, ours.high), (ours.value - half, ours.value + half))
        assert ours.rounds == 40


def test_the_logging_policy_s_own_value_is_the_mean_reward():
    n, k = 60, 4
    draw = np.random.default_rng(1)
    actions, rewards = draw.integers(k, size=n), draw.uniform(size=n)
    uniform = np.full((n, k), 1 / k)
    for estimate in (inverse_propensity, self_normalised_):
        actual = estimate(actions, rewards, np.full(n, 1 / k), uniform)
        assert actual.value == pytest.approx(rewards.mean())
        assert actual.effective_rounds == pytest.approx(n)
        assert actual.rewarded == n


def test_cross_fitting_is_the_oracle_s_and_never_sees_the_round_itself():
    draw = np.random.default_rng(2)
    n, k, d, folds = 23, 3, 4, 4
    contexts, actions = draw.normal(size=(n, k, d)), draw.integers(k, size=n)
    rewards = draw.uniform(size=n)
    predictions = cross_fitted_ridge(contexts, actions, rewards, folds=folds, ridge=0.7, seed=5)
    fold = np.random.default_rng(5).permutation(n) % folds
    for t in range(n):
        train = [s for s in range(n) if fold[s] != fold[t]]
        for b in range(k):
            want = oracle.ridge_prediction(contexts, actions, rewards, train, 0.7, t, b)
            assert predictions[t, b] == pytest.approx(want, rel=1e-9, abs=1e-12)
    other = rewards.copy()
    other[7] += 100.0
    refitted = cross_fitted_ridge(contexts, actions, other, folds=folds, ridge=0.7, seed=5)
    same_fold = fold == fold[7]
    np.testing.assert_array_equal(refitted[same_fold], predictions[same_fold])
    assert (refitted[~same_fold] != predictions[~same_fold]).all()


def test_estimates_are_unbiased_and_a_good_model_makes_them_vary_less():
    actual = {"ipw": [], "wrong model": [], "good model": [], "no weights": []}
    for seed in range(600):
        arguments, means, truth = log(seed, n=80)
        actual["ipw"].append(inverse_propensity(*arguments).value - truth)
        actual["wrong model"].append(doubly_robust(*arguments, 0.9 - means).value - truth)
        actual["good model"].append(doubly_robust(*arguments, means).value - truth)
        actual["no weights"].append(arguments[1].mean() - truth)
    errors = {name: np.array(values) for name, values in actual.items()}
    z_scores = {n: abs(e.mean()) / e.std() * math.sqrt(len(e)) for n, e in errors.items()}
    assert max(z_scores["ipw"], z_scores["wrong model"], z_scores["good model"]) < 4
    assert z_scores["no weights"] > 20  # so the log and the policy do differ
    assert errors["good model"].std() < errors["ipw"].std()
    # With rewards without noise, the estimate by the true model is exact.
    actions, _, propensities, policy = arguments
    exact = means[np.arange(80), actions]
    actual = doubly_robust(actions, exact, propensities, policy, means)
    assert actual.value == pytest.approx(truth, rel=1e-12)


def test_intervals_cover_with_many_clicks_and_with_few():
    """Evaluate one action from a uniform log over 20 actions: clicks are binomial."""

    def covered(rate, n, runs=400):
        """Return how often the normal and the bounded interval contain the true value."""
        normal = bounded = 0
        draw = np.random.default_rng(11)
        policy = np.zeros((n, 20))
        policy[:, 3] = 1.0
        for _ in range(runs):
            actions = draw.integers(20, size=n)
            rewards = (draw.uniform(size=n) < rate).astype(float)
            e = inverse_propensity(actions, rewards, np.full(n, 0.05), policy, largest_reward=1.0)
            normal += e.low <= rate <= e.high
            bounded += e.bounded[0] <= rate <= e.bounded[1]
        return normal / runs, bounded / runs

    # Four standard errors of a share of 400 at 0.95 are 0.044.
    many, few = covered(0.5, 2000), covered(0.01, 2000)
    assert many[0] > 0.906 and many[1] >= 0.95
    assert few[0] < 0.80  # one click on average; without a click the interval is a point
    assert few[1] >= 0.95


def test_the_bounded_interval_is_the_binomial_one():
    n, k = 500, 10
    actions = np.arange(n) % k
    policy = np.zeros((n, k))
    policy[:, 0] = 1.0
    for clicks in (0, 1, 7, 50):
        rewards = np.zeros(n)
        rewards[np.flatnonzero(actions == 0)[:clicks]] = 1.0
        e = inverse_propensity(actions, rewards, np.full(n, 0.1), policy, largest_reward=1.0)
        low, high = oracle.binomial_interval(clicks, n, 0.05)
        assert e.bounded[0] == pytest.approx(k * low if clicks else 0.0, abs=1e-4)
        assert e.bounded[1] == pytest.approx(min(1.0, k * high), abs=1e-4)
        assert e.rewarded == clicks
    # Half the rewards have half the interval.
    e = inverse_propensity(actions, rewards / 2, np.full(n, 0.1), policy, largest_reward=0.5)
    assert e.bounded[0] == pytest.approx(k * low / 2, abs=1e-4)
    assert inverse_propensity(actions, rewards, np.full(n, 0.1), policy).bounded is None


def test_a_largest_weight_that_is_known_shortens_the_bounded_interval():
    """Check a log whose largest weight is below the inverse of its smallest propensity.

    Even rows: the log takes action 0 or 1 with probability 1/2, and the policy always takes action
    0, so weights are 0 and 2. Odd rows: log and policy are uniform on 8 actions, so weights are 1.
    """
    n = 400
    policy, propensities = np.full((n, 8), 1 / 8), np.full(n, 1 / 8)
    policy[::2], propensities[::2] = 0.0, 1 / 2
    policy[::2, 0] = 1.0
    actions = np.where(np.arange(n) % 2, np.arange(n) // 2 % 8, np.arange(n) // 2 % 2)
    rewards = (np.arange(n) % 7 == 0).astype(float)
    arguments = actions, rewards, propensities, policy
    loose = inverse_propensity(*arguments, largest_reward=1.0)
    tight = inverse_propensity(*arguments, largest_reward=1.0, largest_weight=2.0)
    assert loose.value == tight.value
    assert loose.bounded[0] < tight.bounded[0] < tight.value < tight.bounded[1] < loose.bounded[1]
    low, high = oracle.binomial_interval(tight.value * n / 2, n, 0.05)
    assert tight.bounded == pytest.approx((2 * low, 2 * high), abs=1e-5)
    with pytest.raises(InputError, match="largest_weight must be at least 2, as in the log, got 1"):
        inverse_propensity(*arguments, largest_reward=1.0, largest_weight=1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({0: lambda a: a + 5}, "actions must be integers from 0 to 4"),
        ({0: lambda a: a[:3]}, r"actions must have shape \(40,\), got \(3,\)"),
        ({1: lambda r: r * np.nan}, "rewards must be finite"),
        ({2: lambda p: 0 * p}, "propensities must be > 0 and <= 1, got 0"),
        ({3: lambda q: 2 * q}, "policy must hold probabilities"),
        ({3: lambda q: q[0]}, "policy must have shape \\(n, K\\)"),
    ],
)
def test_logs_that_do_not_fit_are_refused(change, sentence):
    arguments = [change.get(i, lambda v: v)(value) for i, value in enumerate(log()[0])]
    for estimate in (inverse_propensity, self_normalised_):
        with pytest.raises(InputError, match=sentence):
            estimate(*arguments)


def test_other_input_is_refused():
    arguments = log()[0]
    actions, rewards, propensities, policy = arguments
    with pytest.raises(InputError, match=r"predicted must have shape \(40, 5\)"):
        doubly_robust(*arguments, np.zeros((40, 4)))
    with pytest.raises(InputError, match=r"rewards must lie in \[0, largest_reward = 0.5\]"):
        inverse_propensity(*arguments, largest_reward=0.5)
    with pytest.raises(InputError, match="confidence must be > 0 and < 1, got 95"):
        fastfed.off_policy.inverse_propensity(*arguments, confidence=95)
    never = np.zeros_like(policy)
    never[np.arange(40), (actions + 1) % 5] = 1.0
    with pytest.raises(InputError, match="it takes none"):
        self_normalised_(actions, rewards, propensities, never)
    with pytest.raises(InputError, match="folds must be an integer >= 2 and <= 3, got 5"):
        cross_fitted_ridge(np.ones((3, 2, 2)), [0, 1, 0], [0, 1, 0])


def test_the_block_of_the_page_runs(capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "applied.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(block, {})
    value, stderr = map(float, capsys.readouterr().out.split()[:2])
    assert abs(value - 0.08) < 4 * stderr
