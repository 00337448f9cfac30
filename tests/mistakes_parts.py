"""Mistakes with the parts: LinUCB, kernels, off-policy estimates, parties."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mistakes import Mistake

from fastfed import LinUCB

Make = Callable[[Path], Any]


def agent(use: Callable[[Any], object], **keys: Any) -> Make:
    """Return a function that calls ``use`` with an agent of three features."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed import LinUCB

        use(LinUCB(**{"dimension": 3, **keys}))

    return make


def loaded(content: bytes | None, **arrays: Any) -> Make:
    """Return a function that loads an agent from a file with other content."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed import LinUCB

        path = folder / "agent.npz"
        if arrays:
            np.savez(path, **arrays)
        elif content is not None:
            path.write_bytes(content)
        LinUCB.load(path)

    return make


def half_saved(folder: Path) -> None:
    """Load an agent from a file that was cut."""
    from fastfed import LinUCB

    path = folder / "agent.npz"
    LinUCB(3).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    LinUCB.load(path)


def sparse(rows: Any) -> Any:
    """Return rows as a sparse array of SciPy."""
    import scipy.sparse

    return scipy.sparse.csr_array(np.asarray(rows, dtype=float))


def kernel(name: str, *arguments: Any, **keys: Any) -> Make:
    """Return a function that calls a kernel."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed import kernels

        getattr(kernels, name)(*arguments, **keys)

    return make


def frozen(array: np.ndarray) -> np.ndarray:
    """Make the array read-only, and return it."""
    array.flags.writeable = False
    return array


def estimate(name: str, *arguments: Any, **keys: Any) -> Make:
    """Return a function that calls an estimator."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed import off_policy

        getattr(off_policy, name)(*arguments, **keys)

    return make


def silo(use: Callable[[Any], object], **keys: Any) -> Make:
    """Return a function that calls ``use`` with a silo of a small plan."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        arguments = {
            "silos": 2,
            "horizon": 20,
            "dimension": 3,
            "batch_size": 5,
            "epsilon": 1.0,
            "delta": 1e-5,
        }
        system = fastfed.make_system("private-fedlinucb", **{**arguments, **keys})
        use(fastfed.parties.Silo(system.plan, 0))

    return make


def select_beyond_the_batch(selector: Any) -> None:
    """Serve a whole batch, and select again before the report."""
    for _ in range(5):
        selector.select(np.eye(3))
        selector.observe(1.0)
    selector.select(np.eye(3))


NAN = [[1.0, 0.0, np.nan]]
LOG = np.zeros((4, 2, 3)), [0, 1, 0, 1], [0.0, 1.0, 0.0, 1.0]
AGENTS = [
    Mistake(
        "LinUCB() without a dimension of 1 or more",
        agent(lambda a: None, dimension=0),
        ("dimension", ">= 1", "got 0"),
    ),
    Mistake(
        "LinUCB(10**6)",
        agent(lambda a: None, dimension=10**6),
        ("dimension = 1000000", "12 TB", "available", "fewer features"),
    ),
    Mistake(
        "alpha = 0.01 of other libraries",
        agent(lambda a: None, alpha=0.01),
        ("LinUCB", "radius_multiplier"),
        error=TypeError,
    ),
    Mistake(
        "actions of another d",
        agent(lambda a: a.select(np.eye(4))),
        ("actions", "(any, 3)", "(4, 4)"),
    ),
    Mistake(
        "one action as a vector",
        agent(lambda a: a.select([1.0, 0.0, 0.0])),
        ("actions", "(any, 3)", "(3,)", "[actions]"),
    ),
    Mistake(
        "update of an agent",
        agent(lambda a: a.update(1.0)),
        ("'update'", "agent.observe(reward)"),
        error=AttributeError,
    ),
    Mistake(
        "LinUCB(n_features=3)",
        lambda folder: LinUCB(n_features=3),
        ("'dimension'", "LinUCB(dimension=3)"),
        error=TypeError,
    ),
    Mistake(
        "replay of one set of actions",
        agent(lambda a: a.replay(np.eye(3), np.zeros(10, int), np.zeros(10))),
        ("contexts", "(n, K, d)", "[actions] * n"),
    ),
    Mistake(
        "replay of actions counted from 1",
        agent(lambda a: a.replay(np.zeros((9, 4, 3)), np.full(9, 4), np.zeros(9))),
        ("actions", "K - 1 = 3", "got 4", "counted from 0"),
    ),
    Mistake(
        "no actions",
        agent(lambda a: a.select(np.empty((0, 3)))),
        ("actions", "at least one", "(0, 3)"),
    ),
    Mistake(
        "a NaN among actions",
        agent(lambda a: a.select(NAN)),
        ("actions", "finite", "nan", "(0, 2)"),
    ),
    Mistake(
        "actions of different lengths",
        agent(lambda a: a.select([[1.0], [1.0, 2.0]])),
        ("actions", "array of numbers"),
    ),
    Mistake(
        "texts as actions",
        agent(lambda a: a.select(["red", "blue"])),
        ("actions", "numbers", "'red'"),
    ),
    Mistake("observe before select", agent(lambda a: a.observe(1.0)), ("observe", "select")),
    Mistake(
        "a missing reward",
        agent(lambda a: (a.select(np.eye(3)), a.observe(None))),
        ("reward", "number", "None"),
    ),
    Mistake(
        "a reward that is NaN",
        agent(lambda a: (a.select(np.eye(3)), a.observe(float("nan")))),
        ("reward", "finite", "nan"),
    ),
    Mistake(
        "observe after select_many",
        agent(lambda a: (a.select_many(np.zeros((2, 2, 3))), a.observe(1.0))),
        ("observe", "2", "observe_many"),
    ),
    Mistake(
        "a reward too few",
        agent(lambda a: (a.select_many(np.zeros((2, 2, 3))), a.observe_many([1.0]))),
        ("rewards", "2", "(1,)"),
    ),
    Mistake(
        "one set of actions for select_many",
        agent(lambda a: a.select_many(np.eye(3))),
        ("actions", "(n, K, 3)", "(3, 3)"),
    ),
    Mistake(
        "sparse actions of another d",
        agent(lambda a: a.select(sparse(np.eye(4)))),
        ("actions", "(any, 3)", "(4, 4)"),
    ),
    Mistake(
        "sparse actions with an infinite entry",
        agent(lambda a: a.select(sparse([[1.0, 0.0, np.inf]]))),
        ("actions", "finite", "inf"),
    ),
    Mistake(
        "discount = 0", agent(lambda a: None, discount=0), ("discount", "> 0", "<= 1", "got 0")
    ),
    Mistake(
        "scikit-learn's fit with rewards first",
        agent(lambda a: a.fit([1.0, 0.0], np.eye(3)[:2])),
        ("X", "(any, 3)", "(2,)"),
    ),
    Mistake(
        "a log of actions from 1",
        agent(lambda a: a.replay(LOG[0], [1, 2, 1, 2], LOG[2])),
        ("actions", "0 to K - 1", "got 2", "index 1"),
    ),
    Mistake(
        "a log that is one reward short",
        agent(lambda a: a.replay(*LOG[:2], [0.0, 1.0])),
        ("rewards", "(4,)", "(2,)"),
    ),
    Mistake(
        "logged probabilities of 0",
        agent(lambda a: a.replay(*LOG, [0.5, 0.0, 0.5, 0.5])),
        ("propensities", "> 0", "got 0"),
    ),
    Mistake(
        "load of a missing file", loaded(None), ("agent.npz", "cannot be read", "No such file")
    ),
    Mistake("load of half a file", half_saved, ("agent.npz", "damaged")),
    Mistake("load of another .npz", loaded(None, theta=np.zeros(3)), ("agent.npz", "LinUCB.save")),
    Mistake("load of a pickle", loaded(b"\x80\x04}\x94."), ("agent.npz", "LinUCB.save")),
    Mistake(
        "save into a folder that is not there",
        agent(lambda a: a.save("none/out")),
        ("none/out", "cannot be written", "No such file"),
    ),
]
V = 2.0 * np.eye(3)
KERNELS = [
    Mistake(
        "a float32 factor that is updated in place",
        kernel("factor_update", np.eye(3, dtype=np.float32), np.zeros(3), np.ones(3), 1.0),
        ("factor", "float64", "float32"),
    ),
    Mistake(
        "a read-only factor",
        kernel("factor_update", frozen(np.eye(3)), np.zeros(3), np.ones(3), 1.0),
        ("factor", "writable"),
    ),
    Mistake(
        "a transposed factor",
        kernel("factor_update", np.tril(np.ones((3, 3))).T, np.zeros(3), np.ones(3), 1.0),
        ("factor", "contiguous"),
    ),
    Mistake(
        "a list in place of an array",
        kernel("factor_update", [[1.0]], np.zeros(1), [1.0], 1.0),
        ("factor", "array", "list"),
    ),
    Mistake(
        "theta of another length",
        kernel("ucb_scores", np.eye(3), np.eye(3), np.zeros(2), 1.0),
        ("theta", "(3,)", "(2,)"),
    ),
    Mistake(
        "a matrix that is not positive definite",
        kernel("inverse_factor", -V),
        ("V", "positive definite"),
    ),
    Mistake(
        "a matrix that is not symmetric",
        kernel("inverse_factor", V + np.triu(np.ones((3, 3)), 1)),
        ("V", "symmetric"),
    ),
    Mistake(
        "a matrix that is not square",
        kernel("inverse_factor", np.ones((3, 2))),
        ("V", "(d, d)", "(3, 2)"),
    ),
    Mistake(
        "a negative radius",
        kernel("ucb_argmax", np.eye(3), np.eye(3), np.zeros(3), -1.0),
        ("radius", ">= 0", "-1"),
    ),
    Mistake(
        "V in place of its inverse factor",
        kernel("ucb_scores", np.eye(3), V + 0.5, np.zeros(3), 1.0),
        ("factor", "lower triangular", "inverse_factor"),
    ),
    Mistake(
        "a propensity of 0",
        estimate("inverse_propensity", [0, 1], [0.0, 1.0], [0.0, 0.5], np.full((2, 2), 0.5)),
        ("propensities", "> 0", "got 0"),
    ),
    Mistake(
        "actions in place of probabilities",
        estimate("inverse_propensity", [0, 1], [0.0, 1.0], [0.5, 0.5], [0, 1]),
        ("policy", "shape (n, K)", "(2,)", "numpy.eye(K)[actions]"),
    ),
    Mistake(
        "probabilities that sum to 2",
        estimate("self_normalised", [0, 1], [0.0, 1.0], [0.5, 0.5], np.ones((2, 2))),
        ("policy", "sum to 1", "got a sum of 2"),
    ),
]
PARTIES = [
    Mistake(
        "observe before select at a silo", silo(lambda s: s.observe(1.0)), ("observe", "select")
    ),
    Mistake("a report before the batch is full", silo(lambda s: s.report()), ("report", "due")),
    Mistake(
        "select when a report is due",
        silo(select_beyond_the_batch),
        ("silo 0", "report", "receive", "round 6"),
    ),
    Mistake("a copy of a silo", silo(copy.copy), ("Silo", "copied", "two different noises")),
    Mistake(
        "a silo's actions of another d",
        silo(lambda s: s.select(np.eye(4))),
        ("actions", "3", "(4, 4)"),
    ),
    Mistake(
        "a broadcast that is none",
        silo(lambda s: s.receive(1.0)),
        ("broadcast", "Broadcast", "float"),
    ),
    Mistake(
        "a seed for a private silo's discount",
        silo(lambda s: None, discount=0.9),
        ("discount", "private-fedlinucb"),
    ),
    Mistake(
        "features as texts",
        agent(lambda a: a.select([["1", "2", "3"]])),
        ("actions", "numbers", "without quotes"),
    ),
]
MISTAKES = AGENTS + KERNELS + PARTIES
