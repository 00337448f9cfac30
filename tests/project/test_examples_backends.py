"""The examples of examples/backends use fastfed in coba, and in a class with mabwiser's methods."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from fastfed import InputError

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "backends"


@pytest.fixture
def example(monkeypatch):
    """Return a function that imports a module of the examples by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def coba():
    """Return coba, or skip the test."""
    return pytest.importorskip("coba", reason="coba is not installed (extra: examples)")


@pytest.fixture
def mabwiser():
    """Return mabwiser, or skip the test."""
    return pytest.importorskip("mabwiser.mab", reason="mabwiser is not installed (extra: examples)")


# ---- coba ---------------------------------------------------------------------------------------

#: (terms of features, keys of the environment) of streams for coba.
STREAMS = [
    (["a"], {"n_context_features": 0, "n_action_features": 5}),
    ([1, "a", "ax"], {"n_context_features": 4, "n_action_features": 3}),
    ([1, "a", "ax"], {"n_context_features": 0, "n_action_features": 3}),
    # Actions are unit vectors: all actions that were not chosen yet have equal scores.
    ([1, "a", "ax"], {"n_context_features": 3, "n_action_features": 0}),
    ([0.5, "xa", "x", 2], {"n_context_features": 3, "n_action_features": 0}),
    ([1, "x", "xxa", "a"], {"n_context_features": 3, "n_action_features": 2}),
]


def interactions_of(coba, rounds, seed=1, actions=8, **keys):
    """Return the interactions of a synthetic linear environment of coba."""
    environment = coba.Environments.from_linear_synthetic(
        rounds, n_actions=actions, seed=seed, **keys
    )
    return list(environment[0].read())


def run(learner, interactions):
    """Run a learner, and return (action, probability of the action) for every round."""
    collected = []
    for i in interactions:
        action, probability = learner.predict(i["context"], i["actions"])
        learner.learn(i["context"], action, i["rewards"](action), probability)
        collected.append((action, probability))
    return collected


@pytest.mark.parametrize(("terms", "keys"), STREAMS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("alpha", [*(pytest.param(a, marks=pytest.mark.slow) for a in (0, 2)), 0.3])
def test_decisions_equal_those_of_the_learner_in_coba(coba, example, terms, keys, alpha):
    ours = example("coba_linucb").LinUCBLearner(alpha, terms, seed=7)
    theirs = coba.LinUCBLearner(alpha, terms, seed=7)
    stream = interactions_of(coba, 200, **keys)
    chosen = run(ours, stream)
    assert chosen == run(theirs, stream)
    assert len({tuple(action) for action, _ in chosen}) > 2
    last = stream[-1]
    for action in last["actions"]:
        arguments = last["context"], last["actions"], action
        assert ours.score(*arguments) == theirs.score(*arguments)


def test_features_equal_those_of_coba(coba, example):
    from coba.encodings import InteractionsEncoder

    features = example("coba_linucb").Features
    x, actions = [2.0, -3.0, 0.5], [[5, 7], [1, 0], [0.25, -4]]
    for terms in (["a"], ["xa"], [1, "a", "ax"], ["x", 2, "ax", "a", 0.5], ["xx", "aax", 1], ["x"]):
        expected = [InteractionsEncoder(terms).encode(x=x, a=action) for action in actions]
        assert features(terms, x).rows(x, actions).tolist() == expected
    assert features(["a"], None).rows(None, [3, 4]).tolist() == [[3.0], [4.0]]


def test_data_that_coba_refuses_are_refused(coba, example):
    from coba.exceptions import CobaException

    for context, actions in (
        ({"a": 1}, [[1], [0]]),
        (None, [{"b": 1}, {"b": 2}]),
        (None, ["1", "2"]),
        (["x", "y"], [[1], [0]]),
    ):
        with pytest.raises(CobaException, match="Sparse data cannot be handled"):
            example("coba_linucb").LinUCBLearner().predict(context, actions)
    with pytest.raises(CobaException, match="of one length"):
        example("coba_linucb").LinUCBLearner().predict(None, [[1, 2], [1]])


def test_both_learners_run_in_an_experiment(coba, example):
    module = example("coba_linucb")
    environment = coba.Environments.from_linear_synthetic(
        60, n_actions=4, n_context_features=2, n_action_features=2, seed=2
    )
    private = module.PrivateLinUCBLearner(60, 7, 1.0, 1e-5, batch_size=10, norm=3.0)
    learners = [module.LinUCBLearner(), coba.LinUCBLearner(), private]
    result = coba.Experiment(environment, learners).run(quiet=True)
    rewards = {0: [], 1: [], 2: []}
    for learner, reward in zip(
        result.interactions["learner_id"], result.interactions["reward"], strict=True
    ):
        rewards[learner].append(reward)
    assert rewards[0] == rewards[1] and len(rewards[2]) == 60
    families = [learner.params["family"] for learner in learners]
    assert families == ["fastfed LinUCB", "LinUCB", "fastfed private LinUCB"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_copy_of_a_learner_makes_the_same_decisions(coba, example, copied):
    stream = interactions_of(coba, 60, n_context_features=2, n_action_features=2)
    learner = example("coba_linucb").LinUCBLearner()
    run(learner, stream[:30])
    assert run(copied(learner), stream[30:]) == run(learner, stream[30:])


def test_the_private_learner_respects_its_budget_and_refuses_other_actions(coba, example):
    from coba.exceptions import CobaException

    private = example("coba_linucb").PrivateLinUCBLearner
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 8, "features": ["a"]}
    learner = private(40, 5, **keys)
    certificate = learner.certificate
    assert certificate.status == "proven" and certificate.unit == "user"
    assert certificate.exact.epsilon <= 2.0 and certificate.exact.delta == 1e-5
    stream = interactions_of(coba, 41, n_context_features=0, n_action_features=5)
    # Deployed noise comes from the operating system, so two runs differ.
    assert run(learner, stream[:40]) != run(private(40, 5, **keys), stream[:40])
    with pytest.raises(InputError, match="the plan ends after round 40"):
        learner.predict(None, stream[40]["actions"])
    other = private(40, 5, **keys)
    chosen, _ = other.predict(None, stream[0]["actions"])
    wrong = next(action for action in stream[0]["actions"] if action != chosen)
    with pytest.raises(CobaException, match="learns the action it has just predicted"):
        other.learn(None, wrong, 1.0, 1.0)


def test_the_private_learner_learns_with_a_large_budget(coba, example):
    private = example("coba_linucb").PrivateLinUCBLearner
    stream = interactions_of(
        coba, 1500, actions=10, n_context_features=0, n_action_features=5, seed=3
    )
    learner = private(
        1500, 5, 50.0, 1e-3, batch_size=10, norm=5**0.5, features=["a"], radius_multiplier=0.1
    )
    rewards = [
        i["rewards"](action) for i, (action, _) in zip(stream, run(learner, stream), strict=True)
    ]
    mean_rewards = [np.mean([i["rewards"](action) for action in i["actions"]]) for i in stream]
    assert np.mean(rewards[750:]) > np.mean(mean_rewards[750:]) + 0.1


# ---- mabwiser -----------------------------------------------------------------------------------


def random_rows(draw, arms, n, d):
    """Return n random (arms, rewards, contexts) with d features."""
    return (
        [arms[i] for i in draw.integers(0, len(arms), n)],
        draw.uniform(size=n).tolist(),
        draw.normal(size=(n, d)),
    )


@pytest.mark.parametrize(("alpha", "l2_lambda"), [(1.0, 1.0), (0.25, 3.5), (2, 0.01), (0, 1)])
@pytest.mark.parametrize("d", [1, 6, 40])
def test_predictions_equal_those_of_mabwiser(mabwiser, example, alpha, l2_lambda, d):
    draw, arms = np.random.default_rng(d), ["red", "green", "blue", "white", "grey"]
    policy = mabwiser.LearningPolicy.LinUCB(alpha=alpha, l2_lambda=l2_lambda)
    pair = (
        mabwiser.MAB(list(arms), policy),
        example("mabwiser_linucb").LinUCB(arms, alpha, l2_lambda),
    )
    contexts = draw.normal(size=(30, d))

    def check_agreement():
        """Check that both bandits give equal expectations and predictions."""
        theirs, ours = (bandit.predict_expectations(contexts) for bandit in pair)
        assert [list(row) for row in ours] == [list(row) for row in theirs] and len(ours) == 30
        for row, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(list(row.values()), list(other.values()), rtol=1e-9)
        assert pair[1].predict(contexts) == pair[0].predict(contexts)
        assert pair[1].predict(contexts[:1]) == pair[0].predict(contexts[:1])
        assert pair[1].arms == pair[0].arms

    def both(method, *arguments):
        """Call a method of both bandits, and compare them."""
        for bandit in pair:
            getattr(bandit, method)(*arguments)
        check_agreement()

    both("partial_fit", *random_rows(draw, arms[:3], 12, d))  # "white" and "grey" have no rows
    for _ in range(20):
        both("partial_fit", *random_rows(draw, arms[:4], 1, d))
    both("add_arm", "black")
    both("partial_fit", *random_rows(draw, ["black", "grey"], 7, d))
    both("remove_arm", "green")
    both("partial_fit", *random_rows(draw, ["black", "red"], 3, d))
    both("fit", *random_rows(draw, arms[2:], 50, d))  # earlier rows are forgotten


def test_an_arm_without_rows_is_estimated_as_by_mabwiser_or_by_ridge_regression(mabwiser, example):
    linucb, x = example("mabwiser_linucb").LinUCB, [[3.0, 4.0]]
    row = ["a"], [1.0], [[1.0, 0.0]]
    policy = mabwiser.LearningPolicy.LinUCB(alpha=1.0, l2_lambda=4.0)
    theirs = mabwiser.MAB(["a", "b"], policy)
    theirs.fit(*row)
    assert theirs.predict_expectations(x)["b"] == pytest.approx(10.0)
    for untrained, expected in (("mabwiser", 10.0), ("ridge", 2.5)):
        ours = linucb(["a", "b"], 1.0, 4.0, untrained=untrained)
        ours.fit(*row)
        assert ours.predict_expectations(x)["b"] == pytest.approx(expected)
        ours.partial_fit(["b"], [0.0], [[0.0, 1.0]])
        theirs.partial_fit(["b"], [0.0], [[0.0, 1.0]])
        assert ours.predict_expectations(x)["b"] == pytest.approx(np.sqrt(9 / 4 + 16 / 5))
    assert theirs.predict_expectations(x)["b"] == pytest.approx(np.sqrt(9 / 4 + 16 / 6))


def test_the_class_with_the_methods_of_mabwiser_does_not_need_mabwiser(example):
    draw, linucb = np.random.default_rng(0), example("mabwiser_linucb").LinUCB
    bandit, x, y = linucb([0, 1], 0.5, 2.0), draw.normal(size=(9, 3)), draw.normal(size=9)
    bandit.partial_fit([0] * 9, y, x)
    inverse = np.linalg.inv(2.0 * np.eye(3) + x.T @ x)
    expected = x @ (inverse @ x.T @ y) + 0.5 * np.sqrt(np.sum(x @ inverse * x, axis=1))
    actual = [row[0] for row in bandit.predict_expectations(x)]
    np.testing.assert_allclose(actual, expected, rtol=1e-10)
    assert bandit.predict(x[:1]) in (0, 1) and bandit.predict(x)[0] == bandit.predict(x[:1])


def test_invalid_rows_are_refused_and_nothing_is_learned(example):
    linucb = example("mabwiser_linucb").LinUCB
    for arguments, message in (
        (([],), "arms must be distinct, and at least one"),
        ((["a", "a"],), "arms must be distinct"),
        ((["a"], -1.0), "alpha must be >= 0"),
        ((["a"], 1.0, 0.0), "l2_lambda > 0, got 1.0 and 0.0"),
    ):
        with pytest.raises(InputError, match=message):
            linucb(*arguments)
    bandit = linucb(["a", "b"])
    with pytest.raises(InputError, match="must come before a prediction"):
        bandit.predict([[1.0]])
    bandit.fit(["a"], [1.0], [[1.0, 2.0]])
    before = bandit.predict_expectations([[1.0, 1.0]])
    for decisions, rewards, contexts, message in (
        (["a", "c"], [1, 1], np.ones((2, 2)), "arm 'c' is not one of"),
        (["a", "b"], [1], np.ones((2, 2)), r"must have shape \(n,\)"),
        (["a"], [1], [1.0, 2.0], r"must have shape \(n,\)"),
        (["a"], [1], [[1.0]], "contexts must have 2 features, got 1"),
        (["a", "b"], [1, np.nan], np.ones((2, 2)), "must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            bandit.partial_fit(decisions, rewards, contexts)
    with pytest.raises(InputError, match="arm 'a' is there already"):
        bandit.add_arm("a")
    with pytest.raises(InputError, match="arm 'z' is not one of"):
        bandit.remove_arm("z")
    assert bandit.predict_expectations([[1.0, 1.0]]) == before


# ---- output of the examples ----------------------------------------------------------------------


def test_the_examples_run(coba, example, capsys):
    example("mabwiser_linucb").main()
    assert capsys.readouterr().out.startswith("Arm2 ")
    example("coba_linucb").main(rounds=200)
    output = capsys.readouterr().out
    theirs, ours = (line.split()[-1] for line in output.splitlines()[1:3])
    assert theirs == ours and "status      proven" in output


def test_the_benchmark_runs(coba, mabwiser, example, capsys):
    example("benchmark").main(["--blocks", "1", "--seconds", "0.001", "--sizes", "4x3"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 4 | 3 |")]
    assert len(lines) == 3
    for line in lines:
        same, rounds = line.split("|")[-2].split(" of ")
        assert int(same) == int(rounds) >= 60


def test_the_benchmark_of_kernels_runs(example, capsys):
    small = ["--blocks", "1", "--seconds", "0.0001", "--sizes", "4x3", "9x3", "9x4"]
    example("benchmark").main(["--kernels", *small])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert len(rows) == 3 and all(line.count(" / ") == 6 for line in rows)


@pytest.mark.slow
def test_the_benchmark_of_all_implementations_runs(coba, mabwiser, example, capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    example("benchmark").main(
        ["--all", "--blocks", "1", "--seconds", "0.01", "--sizes", "4x3", "5x2"]
    )
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    agreement = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in rows}
    assert {"NumPy", "`kernels`", "`LinUCB`", "coba", "mabwiser"} < set(agreement)
    for name in ("the same under numba.njit", "`kernels`, trusted", "coba"):
        same, compared = agreement[name].split(" of ")
        assert same == compared and int(compared) > 50, name


@pytest.mark.parametrize(
    ("index", "beginning"),
    [(0, "1 ["), pytest.param(1, "1 [", marks=pytest.mark.slow), (2, "843\n")],
)
def test_the_blocks_of_the_page_run(index, beginning, capsys):
    page = (FOLDER.parents[1] / "docs" / "backends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    exec(compile(blocks[index], "backends.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith(beginning)


def test_every_kernel_is_on_the_page():
    from fastfed import kernels

    page = (FOLDER.parents[1] / "docs" / "backends.md").read_text(encoding="utf-8")
    for name in kernels.__all__:
        assert f"`{name}" in page, name
