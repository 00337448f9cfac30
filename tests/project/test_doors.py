"""Every array argument of the public API refuses other values, and the message names the argument.

Array arguments are those that a docstring calls array_like. A test fails if one is not listed here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import tempfile
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import kernels, off_policy, parties
from fastfed._validate import InputError
from fastfed.bandits.linucb import check_actions
from fastfed.environments import Classification, ObliviousLosses, Replay
from fastfed.environments.losses import GradientLosses
from fastfed.environments.pool import Pool
from fastfed.privacy import TreeRelease
from fastfed.privacy.audit.low_bits import reachable
from fastfed.privacy.mechanisms import laplace
from fastfed.privacy.mechanisms.sparse_vector import AboveThreshold
from fastfed.privacy.mechanisms.winsorized import winsorized_mean
from fastfed.protocols.serverless import LocalEstimate

EYE, ONES = np.eye(2), np.ones(2)
FACTOR = kernels.inverse_factor(EYE)
POLICY, LOGGED = np.full((4, 2), 0.5), np.array([0.0, 1.0, 0.0, 1.0])
HALVES, CONTEXTS = np.full(4, 0.5), np.ones((4, 2, 2)) / 2


@lru_cache
def system(algorithm: str) -> Any:
    """Return the plan of a small system."""
    keys = {
        "private-fedlinucb": {"silos": 2, "horizon": 20, "dimension": 2, "batch_size": 4},
        "linucb-sdp-vec": {"horizon": 200, "dimension": 2, "batch_size": 20},
        "follow-the-leader": {"silos": 2, "horizon": 20, "dimension": 2},
    }[algorithm]
    private = {} if algorithm == "follow-the-leader" else {"epsilon": 1.0, "delta": 1e-4}
    return fastfed.make_system(algorithm, **keys, **private).plan


def silo(chosen: bool = False) -> Any:
    """Return a silo; with ``chosen``, it has chosen actions for two users."""
    party = parties.Silo(system("private-fedlinucb"), 0)
    if chosen:
        party.select_many([EYE, EYE])
    return party


def agent(chosen: bool = False) -> Any:
    """Return an agent; with ``chosen``, it has chosen actions for two users."""
    bandit = fastfed.LinUCB(2)
    if chosen:
        bandit.select_many(np.stack([EYE, EYE]))
    return bandit


def private_agent() -> Any:
    """Return a private agent in a new folder."""
    pytest.importorskip("cryptography")
    from fastfed.deployment.agent import PrivateLinUCB

    # A new folder for each call, since an open agent locks its folder.
    folder = Path(tempfile.mkdtemp()) / "agent"
    settings = {"epsilon": 1.0, "delta": 1e-3, "period": 100, "releases": 2, "batch_size": 5}
    return PrivateLinUCB(folder, **settings, dimension=2)


def expert() -> Any:
    """Return a client of an expert system that has received the first broadcast."""
    client = parties.ExpertClient(system("follow-the-leader"), 0)
    client.receive(parties.ExpertServer(client.plan).start())
    return client


def vectors() -> Any:
    """Return a private sum of vectors."""
    return parties.VectorSum(dimension=2, users=3, epsilon=1.0, delta=1e-3)


#: "module.name:argument" -> (function that passes a value as this argument, a valid value).
DOORS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "bandits.linucb.check_actions:actions": (lambda v: check_actions(v, 2), EYE),
    "bandits.policy.LinUCB.scores:actions": (lambda v: agent().scores(v), EYE),
    "bandits.policy.LinUCB.select:actions": (lambda v: agent().select(v), EYE),
    "bandits.policy.LinUCB.select_many:actions": (lambda v: agent().select_many(v), CONTEXTS),
    "bandits.policy.LinUCB.observe:action": (lambda v: agent().observe(1.0, v), ONES),
    "bandits.policy.LinUCB.observe_many:rewards": (lambda v: agent(True).observe_many(v), ONES),
    "bandits.policy.LinUCB.observe_many:actions": (lambda v: agent().observe_many(ONES, v), EYE),
    "bandits.policy.LinUCB.partial_fit:X": (lambda v: agent().partial_fit(v, ONES), EYE),
    "bandits.policy.LinUCB.partial_fit:y": (lambda v: agent().partial_fit(EYE, v), ONES),
    "bandits.policy.LinUCB.predict:X": (lambda v: agent().predict(v), EYE),
    "bandits.policy.LinUCB.score:X": (lambda v: agent().score(v, ONES), EYE),
    "bandits.policy.LinUCB.score:y": (lambda v: agent().score(EYE, v), ONES),
    "bandits.policy.LinUCB.replay:contexts": (
        lambda v: agent().replay(v, LOGGED, LOGGED),
        CONTEXTS,
    ),
    "bandits.policy.LinUCB.replay:actions": (
        lambda v: agent().replay(CONTEXTS, v, LOGGED),
        LOGGED,
    ),
    "bandits.policy.LinUCB.replay:rewards": (
        lambda v: agent().replay(CONTEXTS, LOGGED, v),
        LOGGED,
    ),
    "bandits.policy.LinUCB.replay:propensities": (
        lambda v: agent().replay(CONTEXTS, LOGGED, LOGGED, v),
        HALVES,
    ),
    "bandits.silo.Silo.select:actions": (lambda v: silo().select(v), EYE),
    "bandits.silo.Silo.select_many:actions": (lambda v: silo().select_many(v), CONTEXTS),
    "bandits.silo.Silo.observe_many:rewards": (lambda v: silo(True).observe_many(v), ONES),
    "deployment.agent.PrivateLinUCB.select:actions": (lambda v: private_agent().select(v), EYE),
    "environments.classification.Classification.from_arrays:features": (
        lambda v: Classification.from_arrays(v, [0, 1]),
        EYE,
    ),
    "environments.classification.Classification.from_arrays:classes": (
        lambda v: Classification.from_arrays(EYE, v),
        np.array([0.0, 1.0]),
    ),
    "environments.classification.Classification.from_arrays:silo": (
        lambda v: Classification.from_arrays(EYE, [0, 1], v),
        np.array([0.0, 1.0]),
    ),
    "environments.losses.GradientLosses:optimum": (
        lambda v: GradientLosses(function=lambda *a: None, experts=2, optimum=v),
        np.array([1.0, 0.0]),
    ),
    "environments.losses.ObliviousLosses:losses": (lambda v: ObliviousLosses(losses=v), POLICY),
    "environments.pool.Pool.from_rows:rows": (
        lambda v: Pool.from_rows(v, ONES, np.array([0, 2]), np.array([0, 1])),
        EYE,
    ),
    "environments.replay.Replay:contexts": (
        lambda v: Replay(contexts=v, rewards=np.ones((1, 4, 2))),
        CONTEXTS[None],
    ),
    "environments.replay.Replay:rewards": (
        lambda v: Replay(contexts=CONTEXTS[None], rewards=v),
        np.ones((1, 4, 2)),
    ),
    "environments.replay.Replay:rounds": (
        lambda v: Replay(contexts=CONTEXTS[None], rewards=np.ones((1, 4, 2)), rounds=v),
        np.array([3.0]),
    ),
    "environments.replay.Replay:mask": (
        lambda v: Replay(contexts=CONTEXTS[None], rewards=np.ones((1, 4, 2)), mask=v),
        np.ones((1, 4, 2)),
    ),
    "environments.replay.Replay.from_arrays:contexts": (
        lambda v: Replay.from_arrays(v, np.ones((1, 4, 2))),
        CONTEXTS[None],
    ),
    "environments.replay.Replay.from_arrays:rewards": (
        lambda v: Replay.from_arrays(CONTEXTS[None], v),
        np.ones((1, 4, 2)),
    ),
    "experts.parties.ExpertClient.observe:loss": (lambda v: expert().observe(v), ONES),
    "kernels.noise.tree_noise:release": (
        lambda v: kernels.tree_noise(1, v, 2, 1.0),
        np.array([1, 2]),
    ),
    "kernels.noise.encode_bits:ones": (lambda v: kernels.encode_bits(v, 3), np.array([1, 2])),
    "kernels.regression.rank_one_update:x": (
        lambda v: kernels.rank_one_update(EYE.copy(), ONES.copy(), v, ONES),
        EYE,
    ),
    "kernels.regression.rank_one_update:y": (
        lambda v: kernels.rank_one_update(EYE.copy(), ONES.copy(), EYE, v),
        ONES,
    ),
    "kernels.regression.sherman_morrison:x": (
        lambda v: kernels.sherman_morrison(EYE.copy(), v),
        EYE,
    ),
    "kernels.regression.inverse_factor:V": (kernels.inverse_factor, EYE),
    "kernels.regression.solve:factor": (lambda v: kernels.solve(v, ONES), EYE),
    "kernels.regression.solve:u": (lambda v: kernels.solve(FACTOR, v), ONES),
    "kernels.regression.factor_update:x": (
        lambda v: kernels.factor_update(FACTOR.copy(), ONES.copy(), v, ONES),
        EYE,
    ),
    "kernels.regression.factor_update:y": (
        lambda v: kernels.factor_update(FACTOR.copy(), ONES.copy(), EYE, v),
        ONES,
    ),
    "kernels.scores.ucb_scores:actions": (lambda v: kernels.ucb_scores(v, FACTOR, ONES, 1.0), EYE),
    "kernels.scores.ucb_scores:factor": (lambda v: kernels.ucb_scores(EYE, v, ONES, 1.0), FACTOR),
    "kernels.scores.ucb_scores:theta": (lambda v: kernels.ucb_scores(EYE, FACTOR, v, 1.0), ONES),
    "kernels.scores.ucb_argmax:actions": (lambda v: kernels.ucb_argmax(v, FACTOR, ONES, 1.0), EYE),
    "kernels.scores.ucb_argmax:factor": (lambda v: kernels.ucb_argmax(EYE, v, ONES, 1.0), FACTOR),
    "kernels.scores.ucb_argmax:theta": (lambda v: kernels.ucb_argmax(EYE, FACTOR, v, 1.0), ONES),
    "off_policy.inverse_propensity:actions": (
        lambda v: off_policy.inverse_propensity(v, LOGGED, HALVES, POLICY),
        LOGGED,
    ),
    "off_policy.inverse_propensity:rewards": (
        lambda v: off_policy.inverse_propensity(LOGGED, v, HALVES, POLICY),
        LOGGED,
    ),
    "off_policy.inverse_propensity:propensities": (
        lambda v: off_policy.inverse_propensity(LOGGED, LOGGED, v, POLICY),
        HALVES,
    ),
    "off_policy.inverse_propensity:policy": (
        lambda v: off_policy.inverse_propensity(LOGGED, LOGGED, HALVES, v),
        POLICY,
    ),
    "off_policy.doubly_robust:predicted": (
        lambda v: off_policy.doubly_robust(LOGGED, LOGGED, HALVES, POLICY, v),
        POLICY,
    ),
    "off_policy.cross_fitted_ridge:contexts": (
        lambda v: off_policy.cross_fitted_ridge(v, LOGGED, LOGGED, folds=2),
        CONTEXTS,
    ),
    "off_policy.cross_fitted_ridge:actions": (
        lambda v: off_policy.cross_fitted_ridge(CONTEXTS, v, LOGGED, folds=2),
        LOGGED,
    ),
    "off_policy.cross_fitted_ridge:rewards": (
        lambda v: off_policy.cross_fitted_ridge(CONTEXTS, LOGGED, v, folds=2),
        LOGGED,
    ),
    "privacy.audit.low_bits.reachable:released": (lambda v: reachable(v, ONES, ONES), ONES),
    "privacy.audit.low_bits.reachable:contribution": (lambda v: reachable(ONES, v, ONES), ONES),
    "privacy.audit.low_bits.reachable:scale": (lambda v: reachable(ONES, ONES, v), ONES),
    "privacy.mechanisms.laplace.laplace_quantile:uniforms": (laplace.laplace_quantile, HALVES),
    "privacy.mechanisms.laplace.Laplace.release:value": (
        lambda v: laplace.Laplace(sensitivity=1.0, epsilon=1.0).release(v),
        ONES,
    ),
    "privacy.mechanisms.laplace.Laplace.release:uniforms": (
        lambda v: laplace.Laplace(sensitivity=1.0, epsilon=1.0).release(LOGGED, v),
        HALVES,
    ),
    "privacy.mechanisms.laplace.private_range:values": (
        lambda v: laplace.private_range(v, 1.0, 0.1, 1.0),
        HALVES,
    ),
    "privacy.mechanisms.laplace.winsorized_mean_1d:values": (
        lambda v: laplace.winsorized_mean_1d(v, 1.0, 0.1, 1.0),
        HALVES,
    ),
    "privacy.mechanisms.sparse_vector.AboveThreshold.first_above:queries": (
        lambda v: AboveThreshold(1.0, 1.0, 1.0).first_above(v, 1.0, np.full(5, 0.5)),
        HALVES,
    ),
    "privacy.mechanisms.sparse_vector.AboveThreshold.first_above:uniforms": (
        lambda v: AboveThreshold(1.0, 1.0, 1.0).first_above(HALVES, 1.0, v),
        np.full(5, 0.5),
    ),
    "privacy.mechanisms.winsorized.winsorized_mean:vectors": (
        lambda v: winsorized_mean(v, epsilon=1.0, delta=1e-3, radius=0.1),
        POLICY,
    ),
    "privacy.releases.tree_release.TreeRelease.add:x": (
        lambda v: TreeRelease(2, 4, noise_std=1.0, delta=1e-6).add(v),
        ONES / 2,
    ),
    "protocols.randomizer.User.message:x": (
        lambda v: parties.User(system("linucb-sdp-vec"), 1).message(v, 1.0),
        ONES / 2,
    ),
    "protocols.serverless.LocalEstimate:values": (lambda v: LocalEstimate(1, v, 0), ONES),
    "protocols.vector_sum.VectorSum.randomize:x": (lambda v: vectors().randomize(v), ONES / 2),
    "protocols.vector_sum.VectorSum.sum:vectors": (
        lambda v: vectors().sum(v),
        np.full((3, 2), 0.5),
    ),
}

#: Array arguments that are not tested here, because they take one type only.
NOT_TESTED_HERE = {
    "deployment.client.Client.decide:actions",  # checked by the silo; the message has no value
    "deployment.silo.SiloParty.decide:actions",  # tested in tests/deployment
    "environments.losses.GradientLosses:state",  # anything
    "environments.losses.ObliviousLosses:state",
    "environments.python.Python:state",
    "protocols.score.Score:state",
    "privacy.mechanisms.secure_sum.calibrate_secure_sum:factor",  # may be a Factor
    "privacy.releases.prefix_sums.Factor:matrix",
    "protocols.serverless.Model:values",
    "protocols.vector_sum.VectorSum.shuffle:bits",  # uint8 only
    "protocols.vector_sum.VectorSum.analyze:bits",
}


def array_arguments() -> set[str]:
    """Return "module.name:argument" of each argument that docstrings call array_like."""
    arguments = set()
    for info in pkgutil.walk_packages(fastfed.__path__, "fastfed."):
        if any(part.startswith("_") for part in info.name.split(".")[1:]):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # a package that is not installed
            continue
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != info.name:
                continue
            functions = {name: value}
            if inspect.isclass(value):
                members = {key: getattr(value, key) for key in vars(value) if key[0] != "_"}
                functions |= {f"{name}.{key}": m for key, m in members.items() if callable(m)}
            for qualified, function in functions.items():
                text = inspect.getdoc(function) or ""
                for names in re.findall(r"^(\w[\w, ]*) : .*array_like", text, re.M):
                    path = f"{info.name}.{qualified}".removeprefix("fastfed.")
                    arguments |= {f"{path}:{name}" for name in names.split(", ")}
    return arguments


def test_every_array_argument_is_listed():
    # The docstring of ucb_argmax refers to ucb_scores for its arguments.
    listed = {argument for argument in DOORS if "ucb_argmax" not in argument}
    assert array_arguments() == listed | NOT_TESTED_HERE


def no_arrays(good: np.ndarray) -> dict[str, Any]:
    """Return values that are not arrays of numbers, by kind; made from a valid array."""
    mask = np.zeros(good.shape, bool)
    mask.flat[0] = True
    ragged = good.tolist()
    ragged[-1] = [ragged[-1], ragged[-1]] if good.ndim == 1 else ragged[-1][:-1]
    with_none = good.astype(object)
    with_none.flat[0] = None
    with_word = good.astype(object)
    with_word.flat[0] = "many"
    return {
        "masked": np.ma.masked_array(good, mask),
        "ragged": ragged,
        "mapping": {"a": good, "b": good},
        "None": with_none,
        "word": with_word,
        "complex": good + 1j,
        "set": {1.0, 2.0},
        "object": object(),
    }


#: (argument, kind) of values that are valid although they are not arrays of numbers.
VALID = {
    ("environments.classification.Classification.from_arrays:silo", "word"),
    ("environments.classification.Classification.from_arrays:silo", "complex"),
    # Users may have different numbers of actions.
    ("bandits.policy.LinUCB.select_many:actions", "ragged"),
    ("bandits.silo.Silo.select_many:actions", "ragged"),
    ("bandits.policy.LinUCB.replay:contexts", "ragged"),
    # The result is an array of a different shape, with fewer rounds.
    ("environments.replay.Replay:contexts", "ragged"),
    ("environments.replay.Replay.from_arrays:contexts", "ragged"),
    # Values that are not finite count as 0.
    ("privacy.mechanisms.laplace.private_range:values", "None"),
    ("privacy.mechanisms.laplace.winsorized_mean_1d:values", "None"),
    ("privacy.mechanisms.winsorized.winsorized_mean:vectors", "None"),
    ("protocols.serverless.LocalEstimate:values", "None"),
}


@pytest.mark.parametrize("kind", no_arrays(EYE))
@pytest.mark.parametrize("argument", DOORS)
def test_values_that_are_not_arrays_are_refused_with_the_name_of_the_argument(argument, kind):
    if (argument, kind) in VALID:
        return
    function, good = DOORS[argument]
    with pytest.raises(InputError) as error:
        function(no_arrays(good)[kind])
    assert argument.split(":")[1] in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("argument", DOORS)
def test_arrays_of_other_types_are_accepted(argument):
    function, good = DOORS[argument]
    function(good)
    if good.dtype.kind == "i":
        others = [good.astype(np.uint8), good.tolist()]
    else:
        decimals = np.array([Decimal(v) for v in good.flat], object).reshape(good.shape)
        others = [good.astype(np.float16), good.astype(np.longdouble), good.tolist(), decimals]
    for other in [*others, np.ma.masked_array(good), np.asfortranarray(good)]:
        function(other)
