"""Arrays at odd addresses are copied at the public door: the same bits, and C never reads them."""

import dataclasses
import types

import numpy as np
import pytest

import fastfed
from fastfed import InputError, kernels, parties
from fastfed._kernels import aggregation, linalg, rng
from fastfed._validate import array

DIMENSION, ACTIONS = 3, 5


def odd(value):
    """A copy of an array at an address that is no multiple of its items' size."""
    value = np.ascontiguousarray(value)
    raw = np.empty(value.nbytes + 2 * value.itemsize, np.uint8)
    start = 1 + -raw.ctypes.data % value.itemsize
    found = raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    found[...] = value
    assert value.itemsize == 1 or not found.flags.aligned
    return found


def spied(function, seen):
    def called(*given, **keys):
        for each in (*given, *keys.values()):
            if isinstance(each, np.ndarray):
                seen.append(each.flags.aligned)
        return function(*given, **keys)

    return called


@pytest.fixture
def seen(monkeypatch):
    """Whether each array that reaches a compiled function is aligned."""
    found = []
    for module in (linalg, aggregation, rng):
        for name, function in vars(module).copy().items():
            kind = type(function).__name__
            if isinstance(function, types.BuiltinFunctionType) or kind.startswith("cython_func"):
                monkeypatch.setattr(module, name, spied(function, found))
    return found


def arguments():
    """Arguments of all functions of `fastfed.kernels` with arrays, and which are changed."""
    draw = np.random.default_rng(7)
    rows, y = draw.normal(size=(4, DIMENSION)), draw.normal(size=4)
    gram = rows.T @ rows + np.eye(DIMENSION)
    factor, sets = kernels.inverse_factor(gram), draw.normal(size=(2, ACTIONS, DIMENSION))
    theta = draw.normal(size=DIMENSION)
    return {
        "encode_bits": ([np.array([1, 3]), 5], ()),
        "factor_update": ([factor, theta, rows, y], (0, 1)),
        "inverse_factor": ([gram], ()),
        "rank_one_update": ([gram, theta, rows, y], (0, 1)),
        "sherman_morrison": ([np.linalg.inv(gram), rows], (0,)),
        "shuffle_bits": ([np.array([[1, 0, 1], [0, 0, 1]], np.uint8), 5], (0,)),
        "solve": ([factor, theta], ()),
        "tree_noise": ([3, np.array([1, 2, 5]), DIMENSION, 1.0], ()),
        "ucb_argmax": ([sets, factor, theta, 0.5], ()),
        "ucb_scores": ([sets, factor, theta, 0.5], ()),
    }


def test_every_function_with_arrays_is_tried():
    assert set(arguments()) == set(kernels.__all__) - {"normals"}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", sorted(arguments()))
def test_kernels_copy_what_is_not_aligned(name, single, seen):
    given, targets = arguments()[name]
    if single:
        given = [g.astype("f4") if k not in targets and isinstance(g, np.ndarray) and
                 g.dtype == "f8" else g for k, g in enumerate(given)]  # fmt: skip
    function = getattr(kernels, name)

    def called(change):
        fresh = [
            change(g) if isinstance(g, np.ndarray) and k not in targets
            else (g.copy() if isinstance(g, np.ndarray) else g) for k, g in enumerate(given)
        ]  # fmt: skip
        found = function(*fresh)
        return [np.asarray(f).tobytes() for f in (found if isinstance(found, tuple) else (found,))]

    assert called(odd) == called(np.copy) and all(seen)


@pytest.mark.parametrize("name", ["factor_update", "rank_one_update", "sherman_morrison"])
def test_what_is_changed_in_place_must_be_aligned(name):
    given, targets = arguments()[name]
    for k in targets:
        with pytest.raises(InputError, match="aligned"):
            getattr(kernels, name)(*[odd(g) if j == k else g for j, g in enumerate(given)])


@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "u8", ">f8"])
def test_a_checked_array_is_aligned(kind):
    given = odd(np.arange(6.0).reshape(2, 3).astype(kind))
    found = array("x", given, dtype=np.dtype(kind).newbyteorder("="))
    assert found.flags.aligned and found.flags.c_contiguous and (found == given).all()


def test_a_policy_copies_what_is_not_aligned(seen):
    draw = np.random.default_rng(8)
    rows, rewards = draw.normal(size=(6, ACTIONS, DIMENSION)) / 3, draw.random(6)

    def played(change):
        policy = fastfed.LinUCB(DIMENSION)
        chosen = []
        for actions, reward in zip(rows, rewards, strict=True):
            chosen.append(policy.select(change(actions)))
            policy.observe(reward)
            policy.observe_many(change(rewards[:2]), change(actions[:2]))
            chosen.append(policy.scores(change(actions)).tobytes())
        return chosen, policy.theta.tobytes()

    assert played(odd) == played(np.copy)
    assert seen and all(seen)


def test_step_objects_copy_what_is_not_aligned(seen):
    draw = np.random.default_rng(9)
    shared = {"silos": 2, "horizon": 20, "dimension": DIMENSION, "epsilon": 1.0}
    linear = fastfed.make_system("private-fedlinucb", batch_size=5, delta=1e-6, **shared)
    rows = draw.normal(size=(20, 2, ACTIONS, DIMENSION)) / 3
    experts = fastfed.make_system("fed-svt", optimal_loss=0.0, phase_length=5, **shared)
    losses = draw.random((20, 2, DIMENSION))

    def run(change):
        found = []
        silos = [parties.Silo(linear.plan, i, parties.SeededNoise(5)) for i in range(2)]
        server = parties.Server(linear.plan, parties.SeededNoise(5))
        for sets in rows:
            for silo, actions in zip(silos, sets, strict=True):
                found.append(silo.select(change(actions)))
                silo.observe(0.5)
            if silos[0].due:
                reports = [silo.report() for silo in silos]
                reports = [changed(report, change) for report in reports]
                broadcast = changed(server.combine(reports), change)
                for silo in silos:
                    silo.receive(broadcast)
                found.append(broadcast.values.tobytes())
        clients = [parties.ExpertClient(experts.plan, i) for i in range(2)]
        leader = parties.ExpertServer(experts.plan, parties.SeededNoise(5))
        for client in clients:
            client.receive(leader.start())
        for vectors in losses:
            if clients[0].due:
                reports = [changed(client.report(), change) for client in clients]
                choice = leader.combine(reports)
                for client in clients:
                    client.receive(choice)
            for client, vector in zip(clients, vectors, strict=True):
                found.append(client.expert)
                client.observe(change(vector))
        return found

    assert run(odd) == run(np.copy)
    assert seen and all(seen)


def changed(message, change):
    """A message with its array at another address."""
    return dataclasses.replace(message, values=change(message.values))
