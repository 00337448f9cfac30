"""LinUCB as a library: many at once, names of other libraries, forgetting, sparse rows, files."""

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


def agent(discount=1.0, rows=20, **keywords):
    """An agent that has learned something."""
    made = LinUCB(D, discount=discount, **keywords)
    draw = np.random.default_rng(5)
    for x, y in zip(draw.normal(size=(rows, D)) / 3, draw.uniform(size=rows), strict=True):
        made.observe(y, x)
    return made


def sets(n=9, k=7, dtype=np.float64):
    return (np.random.default_rng(1).normal(size=(n, k, D)) / 3).astype(dtype)


def same(one: LinUCB, other: LinUCB):
    assert one.round == other.round and one.confidence_radius == other.confidence_radius
    assert one.theta.tobytes() == other.theta.tobytes()
    probe = sets(1, 50)[0]
    assert one.scores(probe).tobytes() == other.scores(probe).tobytes()


# ---- many at once -------------------------------------------------------------------------------


@DISCOUNTS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_are_each_of_them(discount, dtype):
    one, many = agent(discount), agent(discount)
    contexts, rewards = sets(dtype=dtype), np.linspace(0, 1, 9)
    expected = [one.select(x) for x in contexts]
    found = many.select_many(contexts)
    assert found.dtype == np.int64 and found.tolist() == expected
    for x, a, y in zip(contexts, expected, rewards, strict=True):
        one.observe(y, x[a])
    many.observe_many(rewards)
    same(one, many)
    one.select(contexts[0])
    one.observe(0.5)
    many.select_many(contexts[:1])
    many.observe(0.5)
    same(one, many)


@DISCOUNTS
def test_action_sets_grow_and_shrink(discount):
    draw = np.random.default_rng(2)
    offers = [draw.normal(size=(k, D)).astype(t) for k, t in ((3, "f8"), (1, "f4"), (40, "f8"))]
    one, many = agent(discount), agent(discount)
    ragged = [*offers, scipy.sparse.csr_array(offers[0]), offers[0].tolist()]
    assert many.select_many(ragged).tolist() == [one.select(x) for x in ragged]
    for x in ragged:
        one.select(x)
        one.observe(1.0)
    with pytest.raises(InputError, match="observe learns one reward, 5 actions were selected"):
        many.observe(1.0)
    assert many.select_many([]).tolist() == []
    many.observe_many([])
    assert many.round == 20 and one.round == 25


def test_what_is_missing_is_said():
    made = agent()
    for call, message in (
        (lambda: made.observe(1.0), "observe needs a select before it"),
        (lambda: made.observe_many([1.0]), "observe_many needs a select_many before it"),
        (lambda: made.observe_many([1.0], np.ones((2, D))), r"rewards must have shape \(2,\), one"),
        (lambda: made.observe_many([np.nan], np.ones((1, D))), "rewards must be finite"),
        (lambda: made.observe_many([1.0], np.ones((1, 2))), r"actions must have shape \(any, 6\)"),
        (lambda: made.select_many(3), r"actions must have shape \(n, K, d\), or be a sequence"),
        (lambda: made.select_many(scipy.sparse.eye_array(D)), "actions must have shape"),
        (lambda: made.select_many(np.ones((2, 3, 4))), r"actions must have shape \(any, 6\)"),
        (lambda: made.select(np.ones((2, 3, D))), r"actions must have shape \(any, 6\)"),
        (lambda: made.scores(np.ones((2, 3, D))), r"actions must have shape \(any, 6\)"),
        (lambda: made.select(np.full((2, D), np.nan)), "actions must be finite"),
        (lambda: made.observe(1.0, np.full(D, 1e90)), "action must have a width .* at most 1e75"),
        (lambda: made.observe("1", np.ones(D)), "reward must be a number, got '1'"),
        (lambda: LinUCB(2, discount=0.0), "discount must be > 0 and <= 1, got 0.0"),
        (lambda: LinUCB(2, discount=1.1), "discount must be > 0 and <= 1, got 1.1"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    same(made, agent())


# ---- names of other libraries -------------------------------------------------------------------


@DISCOUNTS
def test_names_of_scikit_learn(discount):
    draw = np.random.default_rng(4)
    X, y = draw.normal(size=(30, D)), draw.uniform(size=30)
    made, other = agent(discount), LinUCB(D, discount=discount)
    assert made.fit(X, y) is made
    for row, reward in zip(X, y, strict=True):
        other.observe(reward, row)
    same(made, other)
    assert made.partial_fit(X[:3], y[:3]) is made and made.round == 33
    np.testing.assert_allclose(made.predict(X), X @ made.theta, rtol=1e-13)
    sparse = scipy.sparse.csr_array(X)
    np.testing.assert_allclose(made.predict(sparse), made.predict(X), rtol=1e-12)
    assert made.predict(sparse[:0]).shape == (0,)
    with pytest.raises(InputError, match="y must be finite"):
        made.fit(X, y * np.nan)
    assert made.round == 33  # what is refused forgets nothing


@pytest.mark.slow
def test_predictions_are_those_of_ridge_regression():
    from sklearn.linear_model import Ridge

    draw = np.random.default_rng(6)
    X, y = draw.normal(size=(50, D)), draw.uniform(size=50)
    expected = Ridge(alpha=2.0, fit_intercept=False).fit(X, y).predict(X)
    np.testing.assert_allclose(LinUCB(D, regularizer=2.0).fit(X, y).predict(X), expected, rtol=1e-9)


# ---- forgetting ---------------------------------------------------------------------------------


def test_discounted_rows_count_less_with_every_later_one():
    made, gamma = agent(0.8, rows=30, regularizer=0.7), 0.8
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(30, D)) / 3, draw.uniform(size=30)
    weights = gamma ** np.arange(29, -1, -1)
    v = 0.7 * np.eye(D) + (x * weights[:, None]).T @ x
    theta = np.linalg.solve(v, x.T @ (weights * y))
    np.testing.assert_allclose(made.theta, theta, rtol=1e-10)
    count = (1 - gamma**60) / (1 - gamma**2)
    beta = np.sqrt(0.7) + 0.5 * np.sqrt(2 * np.log(100) + D * np.log1p(count / (0.7 * D)))
    assert made.confidence_radius == pytest.approx(beta, rel=1e-12)
    width = np.sqrt(np.einsum("ki,ij,kj->k", x, np.linalg.inv(v), x))
    np.testing.assert_allclose(made.scores(x), x @ theta + beta * width, rtol=1e-10)


def test_an_agent_that_forgets_follows_a_change():
    lost = []
    for discount in (1.0, 0.98):
        made = LinUCB(2, discount=discount, radius_multiplier=0.2)
        missed = 0
        for t in range(1200):
            best = int(t >= 600)
            chosen = made.select(np.eye(2))
            made.observe(1.0 if chosen == best else 0.0)
            missed += t >= 600 and chosen != best
        lost.append(missed)
    assert lost[1] < 100 < 250 < lost[0]


# ---- sparse rows --------------------------------------------------------------------------------


@DISCOUNTS
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("block", [1, D, 5 * D, 2**17])
def test_sparse_rows_have_the_bits_of_dense_ones(discount, dtype, block, monkeypatch):
    monkeypatch.setattr(policy, "BLOCK", block)
    draw = np.random.default_rng(7)
    dense = (draw.normal(size=(23, D)) * 3 * (draw.uniform(size=(23, D)) < 0.3)).astype(dtype)
    one, other = agent(discount), agent(discount)
    for sparse in (scipy.sparse.csr_array(dense), scipy.sparse.coo_matrix(dense)):
        assert one.scores(sparse).tobytes() == other.scores(dense).tobytes()
        assert one.select(sparse) == other.select(dense)
        one.observe(0.3)
        other.observe(0.3)
        one.observe_many(np.arange(23.0), sparse)
        other.observe_many(np.arange(23.0), dense)
        one.observe(0.1, sparse.tocsr()[[2]])
        other.observe(0.1, dense[2])
        same(one, other)


def test_ties_of_sparse_rows_go_to_the_lowest_index(monkeypatch):
    monkeypatch.setattr(policy, "BLOCK", 2 * D)
    assert agent().select(scipy.sparse.csr_array(np.ones((9, D)))) == 0


def test_a_large_sparse_offer_is_never_dense_as_a_whole(monkeypatch):
    seen = []
    whole = scipy.sparse.csr_array.toarray
    monkeypatch.setattr(
        scipy.sparse.csr_array, "toarray", lambda self: seen.append(self.shape[0]) or whole(self)
    )
    monkeypatch.setattr(policy, "BLOCK", 100 * D)
    offer = scipy.sparse.csr_array(np.random.default_rng(1).binomial(1, 0.1, (2050, D)) / 3.0)
    made = agent()
    made.select(offer)
    assert sum(seen) == 2050 and max(seen) == 100


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (scipy.sparse.eye_array(3), r"actions must have shape \(any, 6\), got \(3, 3\)"),
        (scipy.sparse.csr_array((0, D)), "actions must hold at least one action"),
        (scipy.sparse.csr_array(np.full((1, D), np.nan)), "actions must be finite, got nan among"),
        (scipy.sparse.csr_array(np.full((1, D), 1j)), "actions must be real"),
    ],
)
def test_bad_sparse_rows(rows, message):
    with pytest.raises(InputError, match=message):
        agent().select(rows)


# ---- replay -------------------------------------------------------------------------------------


def log(n=4000, k=4):
    draw = np.random.default_rng(8)
    theta = np.full(D, 1 / np.sqrt(D))
    contexts = draw.normal(size=(n, k, D)) / np.sqrt(D)
    actions = draw.integers(k, size=n)
    means = 0.5 + 0.2 * contexts @ theta
    rewards = (draw.uniform(size=n) < means[np.arange(n), actions]).astype(float)
    return contexts, actions, rewards, means


def test_replay_estimates_what_a_fixed_policy_earns():
    contexts, actions, rewards, means = log()
    made = LinUCB(D).fit(*(np.random.default_rng(0).normal(size=s) for s in ((300, D), 300)))
    before = made.theta
    found = made.replay(contexts, actions, rewards, learn=False)
    assert np.array_equal(made.theta, before) and made.round == 300
    assert found.actions.tolist() == made.select_many(contexts).tolist()
    truth = means[np.arange(len(means)), found.actions].mean()
    for value in (found.inverse_propensity, found.self_normalised):
        assert value.low < truth < value.high and value.rounds == 4000
    assert np.array_equal(found.matched, found.actions == actions)
    # A uniform log's self-normalised estimate is the mean of matched rounds.
    assert found.mean_reward == pytest.approx(found.self_normalised.value)
    assert found.mean_reward == rewards[found.matched].mean()
    policy_rows = np.eye(4)[found.actions]
    full = off_policy.inverse_propensity(actions, rewards, np.full(4000, 0.25), policy_rows)
    assert found.inverse_propensity.value == pytest.approx(full.value, rel=1e-12)
    assert found.inverse_propensity.stderr == pytest.approx(full.stderr, rel=1e-12)


@DISCOUNTS
def test_replay_learns_matched_rounds_only(discount):
    contexts, actions, rewards, _ = log(300)
    made, other = LinUCB(D, discount=discount), LinUCB(D, discount=discount)
    found = made.replay([*contexts], actions, rewards, np.full(300, 0.25))
    for x, a, y, chosen in zip(contexts, actions, rewards, found.actions, strict=True):
        assert other.select(x) == chosen
        if chosen == a:
            other.observe(y)
    assert made.round == found.matched.sum() > 0
    same(made, other)


def test_bad_logs_are_refused_before_anything_is_learned():
    contexts, actions, rewards, _ = log(20)
    made = agent()
    late = contexts.copy()
    late[-1] = np.nan
    for given, message in (
        ((contexts, actions[:3], rewards), r"actions must have shape \(20,\), got \(3,\)"),
        ((contexts, actions + 4, rewards), "actions must be integers from 0 to K - 1, got"),
        ((contexts, actions + 0.5, rewards), "actions must be integers from 0 to K - 1, got"),
        ((contexts, actions, rewards[:-1]), r"rewards must have shape \(20,\)"),
        ((contexts, actions, rewards, np.zeros(20)), "propensities must be > 0 and <= 1, got 0"),
        ((contexts[:1], actions, rewards), "contexts must hold at least 2 rounds"),
        ((contexts[0], actions[:4], rewards[:4]), r"contexts must hold actions \(K, d\)"),
        ((3, actions, rewards), r"contexts must have shape \(n, K, d\), or be a sequence"),
        ((late, actions, rewards), "actions must be finite, got nan"),
    ):
        with pytest.raises(InputError, match=message):
            made.replay(*given)
    same(made, agent())
    made.select(contexts[0])
    made.observe(1.0)  # what was restored still works


# ---- files --------------------------------------------------------------------------------------


@DISCOUNTS
def test_a_saved_agent_goes_on_bit_for_bit(discount, tmp_path):
    made = agent(discount, regularizer=0.3, reward_scale=0.2, radius_multiplier=0.5)
    made.select(sets(1)[0])
    path = tmp_path / "agent.model"
    made.save(path)
    assert sorted(os.listdir(tmp_path)) == ["agent.model"]
    other = LinUCB.load(path)
    for name in policy._PARAMETERS:
        assert getattr(other, name) == getattr(made, name)
    same(made, other)
    for each in (made, other):
        each.observe(0.7)  # of the action that was selected before
    same(made, other)
    other.save(path)
    same(LinUCB.load(path), made)


def test_a_saved_file_needs_no_pickle_and_a_broken_save_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "agent"
    agent().save(path)
    with np.load(path, allow_pickle=False) as held:
        assert set(held) == {"about", "factor", "theta", "sums", "chosen"}
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.os, "fsync", full)
    with pytest.raises(InputError, match="agent cannot be written: No space left on device"):
        agent(rows=3).save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["agent"]


def test_files_of_others_later_ones_and_damaged_ones(tmp_path, monkeypatch):
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
    agent().save(path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="has version 2, this fastfed reads 1"):
        LinUCB.load(path)
    made = agent()
    made._estimate.w[0, 1] = 1.0
    made.save(path)
    with pytest.raises(InputError, match="is damaged: factor must be lower triangular"):
        LinUCB.load(path)


def test_a_flipped_byte_is_found_or_harmless(tmp_path):
    made, path = agent(), tmp_path / "agent"
    made.save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            found = LinUCB.load(path)
        except InputError:
            continue
        same(found, made)


def test_it_is_the_name_at_the_top():
    assert fastfed.LinUCB is policy.LinUCB
