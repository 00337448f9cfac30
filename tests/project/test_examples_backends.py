"""examples/backends: fastfed as a part of coba and of a class like mabwiser's."""

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
    """Return the example's module by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def coba():
    return pytest.importorskip("coba", reason="coba is not installed (extra: examples)")


@pytest.fixture
def mabwiser():
    return pytest.importorskip("mabwiser.mab", reason="mabwiser is not installed (extra: examples)")


# ---- coba ---------------------------------------------------------------------------------------

STREAMS = [
    (["a"], {"n_context_features": 0, "n_action_features": 5}),
    ([1, "a", "ax"], {"n_context_features": 4, "n_action_features": 3}),
    ([1, "a", "ax"], {"n_context_features": 0, "n_action_features": 3}),
    # Actions as unit vectors: whatever was not played yet ties with the rest.
    ([1, "a", "ax"], {"n_context_features": 3, "n_action_features": 0}),
    ([0.5, "xa", "x", 2], {"n_context_features": 3, "n_action_features": 0}),
    ([1, "x", "xxa", "a"], {"n_context_features": 3, "n_action_features": 2}),
]


def offers(coba, rounds, seed=1, actions=8, **keys):
    environment = coba.Environments.from_linear_synthetic(
        rounds, n_actions=actions, seed=seed, **keys
    )
    return list(environment[0].read())


def play(learner, interactions):
    """Return (action, its probability) of every round."""
    collected = []
    for i in interactions:
        action, chance = learner.predict(i["context"], i["actions"])
        learner.learn(i["context"], action, i["rewards"](action), chance)
        collected.append((action, chance))
    return collected


@pytest.mark.parametrize(("terms", "keys"), STREAMS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("alpha", [*(pytest.param(a, marks=pytest.mark.slow) for a in (0, 2)), 0.3])
def test_decisions_are_those_of_cobas_own_learner(coba, example, terms, keys, alpha):
    ours = example("coba_linucb").LinUCBLearner(alpha, terms, seed=7)
    theirs = coba.LinUCBLearner(alpha, terms, seed=7)
    stream = offers(coba, 200, **keys)
    chosen = play(ours, stream)
    assert chosen == play(theirs, stream)
    assert len({tuple(action) for action, _ in chosen}) > 2
    last = stream[-1]
    for action in last["actions"]:
        given = last["context"], last["actions"], action
        assert ours.score(*given) == theirs.score(*given)


def test_features_are_cobas(coba, example):
    from coba.encodings import InteractionsEncoder

    features = example("coba_linucb").Features
    x, actions = [2.0, -3.0, 0.5], [[5, 7], [1, 0], [0.25, -4]]
    for terms in (["a"], ["xa"], [1, "a", "ax"], ["x", 2, "ax", "a", 0.5], ["xx", "aax", 1], ["x"]):
        expected = [InteractionsEncoder(terms).encode(x=x, a=action) for action in actions]
        assert features(terms, x).rows(x, actions).tolist() == expected
    assert features(["a"], None).rows(None, [3, 4]).tolist() == [[3.0], [4.0]]


def test_what_coba_refuses_is_refused(coba, example):
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
def test_a_copied_learner_goes_on_alike(coba, example, copied):
    stream = offers(coba, 60, n_context_features=2, n_action_features=2)
    learner = example("coba_linucb").LinUCBLearner()
    play(learner, stream[:30])
    assert play(copied(learner), stream[30:]) == play(learner, stream[30:])


def test_the_private_learner_keeps_its_budget_and_its_rules(coba, example):
    from coba.exceptions import CobaException

    private = example("coba_linucb").PrivateLinUCBLearner
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 8, "features": ["a"]}
    learner = private(40, 5, **keys)
    certificate = learner.certificate
    assert certificate.status == "proven" and certificate.unit == "user"
    assert certificate.exact.epsilon <= 2.0 and certificate.exact.delta == 1e-5
    stream = offers(coba, 41, n_context_features=0, n_action_features=5)
    # Deployed noise comes from the operating system: two runs do not play alike.
    assert play(learner, stream[:40]) != play(private(40, 5, **keys), stream[:40])
    with pytest.raises(InputError, match="the plan ends after round 40"):
        learner.predict(None, stream[40]["actions"])
    other = private(40, 5, **keys)
    chosen, _ = other.predict(None, stream[0]["actions"])
    wrong = next(action for action in stream[0]["actions"] if action != chosen)
    with pytest.raises(CobaException, match="learns the action it has just predicted"):
        other.learn(None, wrong, 1.0, 1.0)


def test_the_private_learner_learns_where_the_budget_is_generous(coba, example):
    private = example("coba_linucb").PrivateLinUCBLearner
    stream = offers(coba, 1500, actions=10, n_context_features=0, n_action_features=5, seed=3)
    learner = private(
        1500, 5, 50.0, 1e-3, batch_size=10, norm=5**0.5, features=["a"], radius_multiplier=0.1
    )
    earned = [
        i["rewards"](action) for i, (action, _) in zip(stream, play(learner, stream), strict=True)
    ]
    by_chance = [np.mean([i["rewards"](action) for action in i["actions"]]) for i in stream]
    assert np.mean(earned[750:]) > np.mean(by_chance[750:]) + 0.1


# ---- mabwiser -----------------------------------------------------------------------------------


def rows(draw, arms, n, d):
    return (
        [arms[i] for i in draw.integers(0, len(arms), n)],
        draw.uniform(size=n).tolist(),
        (draw.normal(size=(n, d))),
    )


@pytest.mark.parametrize(("alpha", "l2_lambda"), [(1.0, 1.0), (0.25, 3.5), (2, 0.01), (0, 1)])
@pytest.mark.parametrize("d", [1, 6, 40])
def test_predictions_are_those_of_mabwiser(mabwiser, example, alpha, l2_lambda, d):
    draw, arms = np.random.default_rng(d), ["red", "green", "blue", "white", "grey"]
    policy = mabwiser.LearningPolicy.LinUCB(alpha=alpha, l2_lambda=l2_lambda)
    pair = (
        mabwiser.MAB(list(arms), policy),
        example("mabwiser_linucb").LinUCB(arms, alpha, l2_lambda),
    )
    contexts = draw.normal(size=(30, d))

    def agree():
        theirs, ours = (bandit.predict_expectations(contexts) for bandit in pair)
        assert [list(row) for row in ours] == [list(row) for row in theirs] and len(ours) == 30
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(list(mine.values()), list(other.values()), rtol=1e-9)
        assert pair[1].predict(contexts) == pair[0].predict(contexts)
        assert pair[1].predict(contexts[:1]) == pair[0].predict(contexts[:1])
        assert pair[1].arms == pair[0].arms

    def both(method, *arguments):
        for bandit in pair:
            getattr(bandit, method)(*arguments)
        agree()

    both("partial_fit", *rows(draw, arms[:3], 12, d))  # "white" and "grey" have seen nothing
    for _ in range(20):
        both("partial_fit", *rows(draw, arms[:4], 1, d))
    both("add_arm", "black")
    both("partial_fit", *rows(draw, ["black", "grey"], 7, d))
    both("remove_arm", "green")
    both("partial_fit", *rows(draw, ["black", "red"], 3, d))
    both("fit", *rows(draw, arms[2:], 50, d))  # what came before is forgotten


def test_an_arm_without_rows_is_mabwisers_or_ridge_regressions(mabwiser, example):
    linucb, x = example("mabwiser_linucb").LinUCB, [[3.0, 4.0]]
    given = ["a"], [1.0], [[1.0, 0.0]]
    policy = mabwiser.LearningPolicy.LinUCB(alpha=1.0, l2_lambda=4.0)
    theirs = mabwiser.MAB(["a", "b"], policy)
    theirs.fit(*given)
    assert theirs.predict_expectations(x)["b"] == pytest.approx(10.0)
    for untrained, expected in (("mabwiser", 10.0), ("ridge", 2.5)):
        ours = linucb(["a", "b"], 1.0, 4.0, untrained=untrained)
        ours.fit(*given)
        assert ours.predict_expectations(x)["b"] == pytest.approx(expected)
        ours.partial_fit(["b"], [0.0], [[0.0, 1.0]])
        theirs.partial_fit(["b"], [0.0], [[0.0, 1.0]])
        assert ours.predict_expectations(x)["b"] == pytest.approx(np.sqrt(9 / 4 + 16 / 5))
    assert theirs.predict_expectations(x)["b"] == pytest.approx(np.sqrt(9 / 4 + 16 / 6))


def test_the_class_like_mabwisers_needs_no_mabwiser(example):
    draw, linucb = np.random.default_rng(0), example("mabwiser_linucb").LinUCB
    bandit, x, y = linucb([0, 1], 0.5, 2.0), draw.normal(size=(9, 3)), draw.normal(size=9)
    bandit.partial_fit([0] * 9, y, x)
    inverse = np.linalg.inv(2.0 * np.eye(3) + x.T @ x)
    expected = x @ (inverse @ x.T @ y) + 0.5 * np.sqrt(np.sum(x @ inverse * x, axis=1))
    actual = [row[0] for row in bandit.predict_expectations(x)]
    np.testing.assert_allclose(actual, expected, rtol=1e-10)
    assert bandit.predict(x[:1]) in (0, 1) and bandit.predict(x)[0] == bandit.predict(x[:1])


def test_bad_rows_are_refused_and_nothing_is_learnt(example):
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


# ---- what they print ----------------------------------------------------------------------------


def test_the_examples_run(coba, example, capsys):
    example("mabwiser_linucb").main()
    assert capsys.readouterr().out.startswith("Arm2 ")
    example("coba_linucb").main(rounds=200)
    shown = capsys.readouterr().out
    theirs, ours = (line.split()[-1] for line in shown.splitlines()[1:3])
    assert theirs == ours and "status      proven" in shown


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
def test_the_benchmark_of_all_players_runs(coba, mabwiser, example, capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    example("benchmark").main(
        ["--all", "--blocks", "1", "--seconds", "0.01", "--sizes", "4x3", "5x2"]
    )
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    actual = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in rows}
    assert {"NumPy", "`kernels`", "`LinUCB`", "coba", "mabwiser"} < set(actual)
    for name in ("the same under numba.njit", "`kernels`, trusted", "coba"):
        same, compared = actual[name].split(" of ")
        assert same == compared and int(compared) > 50, name


@pytest.mark.parametrize(
    ("which", "prints"), [(0, "1 ["), pytest.param(1, "1 [", marks=pytest.mark.slow), (2, "843\n")]
)
def test_the_blocks_of_the_page_run(which, prints, capsys):
    page = (FOLDER.parents[1] / "docs" / "backends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    exec(compile(blocks[which], "backends.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith(prints)


def test_every_kernel_is_on_the_page():
    from fastfed import kernels

    page = (FOLDER.parents[1] / "docs" / "backends.md").read_text(encoding="utf-8")
    for name in kernels.__all__:
        assert f"`{name}" in page, name
