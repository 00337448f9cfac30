"""Tests of the LinUCB class: batches of rounds, methods of scikit-learn, discounting, sparse rows,
files."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse

import fastfed
from fastfed import LinUCB, off_policy
from fastfed._validate import InputError
from fastfed.bandits import policy

D = 6
DISCOUNTS = pytest.mark.parametrize("discount", [1.0, 0.9])


def trained_agent(discount=1.0, rows=20, **keywords):
    """Return an agent that has observed ``rows`` random rows."""
    agent = LinUCB(D, discount=discount, **keywords)
    rng = np.random.default_rng(5)
    for x, y in zip(rng.normal(size=(rows, D)) / 3, rng.uniform(size=rows), strict=True):
        agent.observe(y, x)
    return agent


def action_sets(n=9, k=7, dtype=np.float64):
    """Return n random sets of k actions."""
    return (np.random.default_rng(1).normal(size=(n, k, D)) / 3).astype(dtype)


def check_same(first: LinUCB, second: LinUCB):
    """Check that two agents have the same state and the same scores, bit for bit."""
    assert first.round == second.round and first.confidence_radius == second.confidence_radius
    assert first.theta.tobytes() == second.theta.tobytes()
    actions = action_sets(1, 50)[0]
    assert first.scores(actions).tobytes() == second.scores(actions).tobytes()


# ---- batches of rounds --------------------------------------------------------------------------


@DISCOUNTS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_select_many_equals_one_select_per_round(discount, dtype):
    single, batched = trained_agent(discount), trained_agent(discount)
    contexts, rewards = action_sets(dtype=dtype), np.linspace(0, 1, 9)
    expected = [single.select(x) for x in contexts]
    selected = batched.select_many(contexts)
    assert selected.dtype == np.int64 and selected.tolist() == expected
    for x, a, y in zip(contexts, expected, rewards, strict=True):
        single.observe(y, x[a])
    batched.observe_many(rewards)
    check_same(single, batched)
    single.select(contexts[0])
    single.observe(0.5)
    batched.select_many(contexts[:1])
    batched.observe(0.5)
    check_same(single, batched)


@DISCOUNTS
def test_select_many_accepts_sets_of_different_sizes(discount):
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(k, D)).astype(t) for k, t in ((3, "f8"), (1, "f4"), (40, "f8"))]
    single, batched = trained_agent(discount), trained_agent(discount)
    offered = [*arrays, scipy.sparse.csr_array(arrays[0]), arrays[0].tolist()]
    assert batched.select_many(offered).tolist() == [single.select(x) for x in offered]
    for x in offered:
        single.select(x)
        single.observe(1.0)
    with pytest.raises(InputError, match="observe learns one reward, 5 actions were selected"):
        batched.observe(1.0)
    assert batched.select_many([]).tolist() == []
    batched.observe_many([])
    assert batched.round == 20 and single.round == 25


def test_errors_say_what_is_missing():
    agent = trained_agent()
    for call, message in (
        (lambda: agent.observe(1.0), "observe needs a select before it"),
        (lambda: agent.observe_many([1.0]), "observe_many needs a select_many before it"),
        (
            lambda: agent.observe_many([1.0], np.ones((2, D))),
            r"rewards must have shape \(2,\), one",
        ),
        (lambda: agent.observe_many([np.nan], np.ones((1, D))), "rewards must be finite"),
        (lambda: agent.observe_many([1.0], np.ones((1, 2))), r"actions must have shape \(any, 6\)"),
        (lambda: agent.select_many(3), r"actions must have shape \(n, K, d\), or be a sequence"),
        (lambda: agent.select_many(scipy.sparse.eye_array(D)), "actions must have shape"),
        (lambda: agent.select_many(np.ones((2, 3, 4))), r"actions must have shape \(any, 6\)"),
        (lambda: agent.select(np.ones((2, 3, D))), r"actions must have shape \(any, 6\)"),
        (lambda: agent.scores(np.ones((2, 3, D))), r"actions must have shape \(any, 6\)"),
        (lambda: agent.select(np.full((2, D), np.nan)), "actions must be finite"),
        (lambda: agent.observe(1.0, np.full(D, 1e90)), "action must have a width .* at most 1e75"),
        (lambda: agent.observe("1", np.ones(D)), "reward must be a number, got '1'"),
        (lambda: LinUCB(2, discount=0.0), "discount must be > 0 and <= 1, got 0.0"),
        (lambda: LinUCB(2, discount=1.1), "discount must be > 0 and <= 1, got 1.1"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    check_same(agent, trained_agent())


# ---- methods of scikit-learn --------------------------------------------------------------------


def test_an_agent_is_cloned_by_its_parameters():
    base = pytest.importorskip("sklearn.base")
    agent = LinUCB(3, regularizer=2.0, discount=0.9)
    agent.select(np.eye(3))
    agent.observe(1.0)
    copied = base.clone(agent)
    assert copied.get_params() == agent.get_params() and copied.round == 0
    assert eval(repr(agent)).get_params() == agent.get_params()
    assert repr(agent).endswith("# 1 round") and "#" not in repr(copied)


def test_an_agent_works_in_searches_and_pipelines_of_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.metrics import r2_score
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(6)
    X = rng.normal(size=(60, 3))
    y = X @ [0.5, -0.2, 0.1] + 0.1 * rng.normal(size=60)
    agent = LinUCB(3).fit(X, y)
    assert agent.score(X, y) == pytest.approx(r2_score(y, agent.predict(X)), rel=1e-12)
    search = GridSearchCV(LinUCB(3), {"regularizer": [1.0, 1e4]}, cv=3).fit(X, y)
    assert search.best_params_ == {"regularizer": 1.0} and search.best_score_ > 0.8
    pipeline = make_pipeline(StandardScaler(), LinUCB(3))
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.7
    assert "LinUCB(dimension=3" in repr(pipeline)
    assert pipeline.fit(X, y).predict(X[:2]).shape == (2,)


def test_a_score_of_equal_rewards_is_1_or_0():
    agent = LinUCB(2)
    assert agent.score(np.eye(2), [0.0, 0.0]) == 1.0 and agent.score(np.eye(2), [1.0, 1.0]) == 0.0
    with pytest.raises(InputError, match="at least one row"):
        agent.score(np.empty((0, 2)), [])
    with pytest.raises(InputError, match=r"y must have shape \(2,\), got \(3,\)"):
        agent.score(np.eye(2), [1.0, 2.0, 3.0])


def test_parameters_change_together_or_not_at_all():
    agent = LinUCB(2)
    assert agent.set_params(dimension=3, regularizer=0.5) is agent
    assert agent.theta.shape == (3,) and agent.regularizer == 0.5
    with pytest.raises(InputError, match="regularizer must be > 0"):
        agent.set_params(discount=0.5, regularizer=-1.0)
    assert agent.discount == 1.0
    with pytest.raises(TypeError, match='unknown argument "alpha"; here it is called radius_mult'):
        LinUCB(2, alpha=1.0)
    with pytest.raises(TypeError, match='did you mean "discount"'):
        LinUCB(2, discont=0.5)


def test_a_replay_without_a_rewarded_round_has_only_the_bounded_interval():
    rng = np.random.default_rng(1)
    log = rng.normal(size=(200, 2, 3)), rng.integers(2, size=200), np.zeros(200)
    value = LinUCB(3).replay(*log, largest_reward=1.0).inverse_propensity
    assert value.value == 0.0 and np.isnan([value.low, value.high]).all()
    assert value.bounded[0] == 0.0 and 0.02 < value.bounded[1] < 0.05
    assert LinUCB(3).replay(*log).inverse_propensity.bounded is None


@DISCOUNTS
def test_fit_and_predict_work_as_in_scikit_learn(discount):
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(30, D)), rng.uniform(size=30)
    agent, reference = trained_agent(discount), LinUCB(D, discount=discount)
    assert agent.fit(X, y) is agent
    for row, reward in zip(X, y, strict=True):
        reference.observe(reward, row)
    check_same(agent, reference)
    assert agent.partial_fit(X[:3], y[:3]) is agent and agent.round == 33
    np.testing.assert_allclose(agent.predict(X), X @ agent.theta, rtol=1e-13)
    sparse = scipy.sparse.csr_array(X)
    np.testing.assert_allclose(agent.predict(sparse), agent.predict(X), rtol=1e-12)
    assert agent.predict(sparse[:0]).shape == (0,)
    with pytest.raises(InputError, match="y must be finite"):
        agent.fit(X, y * np.nan)
    assert agent.round == 33  # a refused fit does not reset the agent


@pytest.mark.slow
def test_predictions_equal_ridge_regression():
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(50, D)), rng.uniform(size=50)
    expected = Ridge(alpha=2.0, fit_intercept=False).fit(X, y).predict(X)
    np.testing.assert_allclose(LinUCB(D, regularizer=2.0).fit(X, y).predict(X), expected, rtol=1e-9)


# ---- discounting --------------------------------------------------------------------------------


def test_the_weight_of_a_row_falls_with_every_later_row():
    agent, gamma = trained_agent(0.8, rows=30, regularizer=0.7), 0.8
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(30, D)) / 3, rng.uniform(size=30)
    weights = gamma ** np.arange(29, -1, -1)
    v = 0.7 * np.eye(D) + (x * weights[:, None]).T @ x
    theta = np.linalg.solve(v, x.T @ (weights * y))
    np.testing.assert_allclose(agent.theta, theta, rtol=1e-10)
    effective_rows = (1 - gamma**60) / (1 - gamma**2)
    beta = np.sqrt(0.7) + 0.5 * np.sqrt(2 * np.log(100) + D * np.log1p(effective_rows / (0.7 * D)))
    assert agent.confidence_radius == pytest.approx(beta, rel=1e-12)
    width = np.sqrt(np.einsum("ki,ij,kj->k", x, np.linalg.inv(v), x))
    np.testing.assert_allclose(agent.scores(x), x @ theta + beta * width, rtol=1e-10)


def test_a_discounted_agent_adapts_to_a_change():
    missed_by_discount = []
    for discount in (1.0, 0.98):
        agent = LinUCB(2, discount=discount, radius_multiplier=0.2)
        missed = 0
        for t in range(1200):
            best = int(t >= 600)
            chosen = agent.select(np.eye(2))
            agent.observe(1.0 if chosen == best else 0.0)
            missed += t >= 600 and chosen != best
        missed_by_discount.append(missed)
    assert missed_by_discount[1] < 100 < 250 < missed_by_discount[0]


# ---- sparse rows --------------------------------------------------------------------------------


@DISCOUNTS
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("block", [1, D, 5 * D, 2**17])
def test_sparse_rows_give_the_same_bits_as_dense_rows(discount, dtype, block, monkeypatch):
    monkeypatch.setattr(policy, "MAX_BLOCK_ENTRIES", block)
    rng = np.random.default_rng(7)
    dense = (rng.normal(size=(23, D)) * 3 * (rng.uniform(size=(23, D)) < 0.3)).astype(dtype)
    sparse_agent, dense_agent = trained_agent(discount), trained_agent(discount)
    for sparse in (scipy.sparse.csr_array(dense), scipy.sparse.coo_matrix(dense)):
        assert sparse_agent.scores(sparse).tobytes() == dense_agent.scores(dense).tobytes()
        assert sparse_agent.select(sparse) == dense_agent.select(dense)
        sparse_agent.observe(0.3)
        dense_agent.observe(0.3)
        sparse_agent.observe_many(np.arange(23.0), sparse)
        dense_agent.observe_many(np.arange(23.0), dense)
        sparse_agent.observe(0.1, sparse.tocsr()[[2]])
        dense_agent.observe(0.1, dense[2])
        check_same(sparse_agent, dense_agent)


def test_ties_of_sparse_rows_go_to_the_lowest_index(monkeypatch):
    monkeypatch.setattr(policy, "MAX_BLOCK_ENTRIES", 2 * D)
    assert trained_agent().select(scipy.sparse.csr_array(np.ones((9, D)))) == 0


def test_a_large_sparse_set_is_converted_in_blocks(monkeypatch):
    block_sizes = []
    toarray = scipy.sparse.csr_array.toarray
    monkeypatch.setattr(
        scipy.sparse.csr_array,
        "toarray",
        lambda self: block_sizes.append(self.shape[0]) or toarray(self),
    )
    monkeypatch.setattr(policy, "MAX_BLOCK_ENTRIES", 100 * D)
    actions = scipy.sparse.csr_array(np.random.default_rng(1).binomial(1, 0.1, (2050, D)) / 3.0)
    agent = trained_agent()
    agent.select(actions)
    assert sum(block_sizes) == 2050 and max(block_sizes) == 100


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (scipy.sparse.eye_array(3), r"actions must have shape \(any, 6\), got \(3, 3\)"),
        (scipy.sparse.csr_array((0, D)), "actions must hold at least one action"),
        (scipy.sparse.csr_array(np.full((1, D), np.nan)), "actions must be finite, got nan among"),
        (scipy.sparse.csr_array(np.full((1, D), 1j)), "actions must be real"),
    ],
)
def test_errors_about_sparse_rows(rows, message):
    with pytest.raises(InputError, match=message):
        trained_agent().select(rows)


# ---- replay -------------------------------------------------------------------------------------


def logged_rounds(n=4000, k=4):
    """Return contexts, actions, rewards and mean rewards of n rounds of a uniform policy."""
    rng = np.random.default_rng(8)
    theta = np.full(D, 1 / np.sqrt(D))
    contexts = rng.normal(size=(n, k, D)) / np.sqrt(D)
    actions = rng.integers(k, size=n)
    means = 0.5 + 0.2 * contexts @ theta
    rewards = (rng.uniform(size=n) < means[np.arange(n), actions]).astype(float)
    return contexts, actions, rewards, means


def test_replay_estimates_the_reward_of_a_fixed_policy():
    contexts, actions, rewards, means = logged_rounds()
    agent = LinUCB(D).fit(*(np.random.default_rng(0).normal(size=s) for s in ((300, D), 300)))
    theta = agent.theta
    result = agent.replay(contexts, actions, rewards, learn=False)
    assert np.array_equal(agent.theta, theta) and agent.round == 300
    assert result.actions.tolist() == agent.select_many(contexts).tolist()
    true_mean = means[np.arange(len(means)), result.actions].mean()
    for interval in (result.inverse_propensity, result.self_normalised):
        assert interval.low < true_mean < interval.high and interval.rounds == 4000
    assert np.array_equal(result.matched, result.actions == actions)
    # For a uniform log, the self-normalised estimate is the mean over matched rounds.
    assert result.mean_reward == pytest.approx(result.self_normalised.value)
    assert result.mean_reward == rewards[result.matched].mean()
    policy_rows = np.eye(4)[result.actions]
    estimate = off_policy.inverse_propensity(actions, rewards, np.full(4000, 0.25), policy_rows)
    assert result.inverse_propensity.value == pytest.approx(estimate.value, rel=1e-12)
    assert result.inverse_propensity.stderr == pytest.approx(estimate.stderr, rel=1e-12)


@DISCOUNTS
def test_replay_learns_only_from_matched_rounds(discount):
    contexts, actions, rewards, _ = logged_rounds(300)
    agent, reference = LinUCB(D, discount=discount), LinUCB(D, discount=discount)
    result = agent.replay([*contexts], actions, rewards, np.full(300, 0.25))
    for x, a, y, chosen in zip(contexts, actions, rewards, result.actions, strict=True):
        assert reference.select(x) == chosen
        if chosen == a:
            reference.observe(y)
    assert agent.round == result.matched.sum() > 0
    check_same(agent, reference)


def test_a_refused_log_does_not_change_the_agent():
    contexts, actions, rewards, _ = logged_rounds(20)
    agent = trained_agent()
    nan_in_last_round = contexts.copy()
    nan_in_last_round[-1] = np.nan
    for arguments, message in (
        ((contexts, actions[:3], rewards), r"actions must have shape \(20,\), got \(3,\)"),
        (
            (contexts, actions + 4, rewards),
            "actions must be integers from 0 to K - 1 = [0-9]+, got",
        ),
        (
            (contexts, actions + 0.5, rewards),
            "actions must be integers from 0 to K - 1 = [0-9]+, got",
        ),
        ((contexts, actions, rewards[:-1]), r"rewards must have shape \(20,\)"),
        ((contexts, actions, rewards, np.zeros(20)), "propensities must be > 0 and <= 1, got 0"),
        ((contexts[:1], actions, rewards), "contexts must hold at least 2 rounds"),
        ((contexts[0], actions[:4], rewards[:4]), r"contexts must have shape \(n, K, d\)"),
        ((3, actions, rewards), r"contexts must have shape \(n, K, d\), or be a sequence"),
        ((nan_in_last_round, actions, rewards), "actions must be finite, got nan"),
    ):
        with pytest.raises(InputError, match=message):
            agent.replay(*arguments)
    check_same(agent, trained_agent())
    agent.select(contexts[0])
    agent.observe(1.0)  # the restored agent still works


# ---- files --------------------------------------------------------------------------------------


@DISCOUNTS
def test_a_saved_agent_continues_bit_for_bit(discount, tmp_path):
    agent = trained_agent(discount, regularizer=0.3, reward_scale=0.2, radius_multiplier=0.5)
    agent.select(action_sets(1)[0])
    path = tmp_path / "agent.model"
    agent.save(path)
    assert sorted(os.listdir(tmp_path)) == ["agent.model"]
    loaded = LinUCB.load(path)
    for name in policy._PARAMETERS:
        assert getattr(loaded, name) == getattr(agent, name)
    check_same(agent, loaded)
    for each_agent in (agent, loaded):
        each_agent.observe(0.7)  # the reward of the action selected before saving
    check_same(agent, loaded)
    loaded.save(path)
    check_same(LinUCB.load(path), agent)


def test_a_file_needs_no_pickle_and_survives_a_failed_save(tmp_path, monkeypatch):
    path = tmp_path / "agent"
    trained_agent().save(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {"about", "factor", "theta", "sums", "chosen"}
    content = path.read_bytes()

    def fsync(descriptor):
        """Fail as a full disk does."""
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.os, "fsync", fsync)
    with pytest.raises(InputError, match="agent cannot be written: No space left on device"):
        trained_agent(rows=3).save(path)
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["agent"]


def test_load_refuses_other_newer_and_damaged_files(tmp_path, monkeypatch):
    path = tmp_path / "agent"
    with pytest.raises(InputError, match="cannot be read: No such file"):
        LinUCB.load(path)
    for content in (b"", b"words", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is not a file of LinUCB.save, or is damaged"):
            LinUCB.load(path)
    np.save(path.open("wb"), np.eye(3))
    with pytest.raises(InputError, match=r"is not a file of LinUCB.save"):
        LinUCB.load(path)
    monkeypatch.setattr(policy, "VERSION", 2)
    trained_agent().save(path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="has version 2, this fastfed reads 1"):
        LinUCB.load(path)
    agent = trained_agent()
    agent._estimate.w[0, 1] = 1.0
    agent.save(path)
    with pytest.raises(InputError, match="is damaged: factor must be lower triangular"):
        LinUCB.load(path)


def test_a_flipped_byte_is_detected_or_harmless(tmp_path):
    agent, path = trained_agent(), tmp_path / "agent"
    agent.save(path)
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x40]) + content[position + 1 :]
        )
        try:
            loaded = LinUCB.load(path)
        except InputError:
            continue
        check_same(loaded, agent)


def test_the_package_exports_linucb():
    assert fastfed.LinUCB is policy.LinUCB
