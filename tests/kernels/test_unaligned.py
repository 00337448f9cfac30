"""Check arrays at odd addresses: public functions copy them, give the same bits, and pass none to
C."""

import dataclasses
import types

import numpy as np
import pytest

import fastfed
from fastfed import InputError, kernels, parties
from fastfed._kernels import aggregation, linalg, rng
from fastfed._validate import array

DIMENSION, ACTIONS = 3, 5


def at_odd_address(value):
    """Return a copy of an array at an address that is no multiple of its items' size."""
    value = np.ascontiguousarray(value)
    buffer = np.empty(value.nbytes + 2 * value.itemsize, np.uint8)
    start = 1 + -buffer.ctypes.data % value.itemsize
    misaligned = buffer[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    misaligned[...] = value
    assert value.itemsize == 1 or not misaligned.flags.aligned
    return misaligned


def recording(function, alignments):
    """Return the function, which from now on appends whether its arrays are aligned."""

    def recorded_call(*arguments, **keys):
        """Record whether each array is aligned, then call the function."""
        for argument in (*arguments, *keys.values()):
            if isinstance(argument, np.ndarray):
                alignments.append(argument.flags.aligned)
        return function(*arguments, **keys)

    return recorded_call


@pytest.fixture
def recorded_alignments(monkeypatch):
    """Record whether each array that a compiled function gets is aligned."""
    alignments = []
    for module in (linalg, aggregation, rng):
        for name, function in vars(module).copy().items():
            kind = type(function).__name__
            if isinstance(function, types.BuiltinFunctionType) or kind.startswith("cython_func"):
                monkeypatch.setattr(module, name, recording(function, alignments))
    return alignments


def arguments_by_function():
    """Return arguments of all functions of `fastfed.kernels` with arrays, and which of them
    change."""
    rng = np.random.default_rng(7)
    rows, y = rng.normal(size=(4, DIMENSION)), rng.normal(size=4)
    gram = rows.T @ rows + np.eye(DIMENSION)
    factor, sets = kernels.inverse_factor(gram), rng.normal(size=(2, ACTIONS, DIMENSION))
    theta = rng.normal(size=DIMENSION)
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


def test_every_function_with_arrays_is_tested():
    assert set(arguments_by_function()) == set(kernels.__all__) - {"normals"}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", sorted(arguments_by_function()))
def test_kernels_copy_unaligned_arrays(name, single, recorded_alignments):
    arguments, targets = arguments_by_function()[name]
    if single:
        arguments = [
            argument.astype("f4")
            if index not in targets and isinstance(argument, np.ndarray) and argument.dtype == "f8"
            else argument
            for index, argument in enumerate(arguments)
        ]
    function = getattr(kernels, name)

    def outcome(change):
        """Return the bytes of the results for changed copies of the arguments."""
        copies = [
            change(argument)
            if isinstance(argument, np.ndarray) and index not in targets
            else (argument.copy() if isinstance(argument, np.ndarray) else argument)
            for index, argument in enumerate(arguments)
        ]
        results = function(*copies)
        return [
            np.asarray(result).tobytes()
            for result in (results if isinstance(results, tuple) else (results,))
        ]

    assert outcome(at_odd_address) == outcome(np.copy) and all(recorded_alignments)


@pytest.mark.parametrize("name", ["factor_update", "rank_one_update", "sherman_morrison"])
def test_arrays_updated_in_place_must_be_aligned(name):
    arguments, targets = arguments_by_function()[name]
    for target in targets:
        with pytest.raises(InputError, match="aligned"):
            getattr(kernels, name)(
                *[
                    at_odd_address(argument) if index == target else argument
                    for index, argument in enumerate(arguments)
                ]
            )


@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "u8", ">f8"])
def test_checked_arrays_are_aligned(kind):
    misaligned = at_odd_address(np.arange(6.0).reshape(2, 3).astype(kind))
    checked_array = array("x", misaligned, dtype=np.dtype(kind).newbyteorder("="))
    assert (
        checked_array.flags.aligned
        and checked_array.flags.c_contiguous
        and (checked_array == misaligned).all()
    )


def test_policies_copy_unaligned_arrays(recorded_alignments):
    rng = np.random.default_rng(8)
    rows, rewards = rng.normal(size=(6, ACTIONS, DIMENSION)) / 3, rng.random(6)

    def outcome(change):
        """Return choices, scores and estimate of a policy with changed arguments."""
        policy = fastfed.LinUCB(DIMENSION)
        chosen = []
        for actions, reward in zip(rows, rewards, strict=True):
            chosen.append(policy.select(change(actions)))
            policy.observe(reward)
            policy.observe_many(change(rewards[:2]), change(actions[:2]))
            chosen.append(policy.scores(change(actions)).tobytes())
        return chosen, policy.theta.tobytes()

    assert outcome(at_odd_address) == outcome(np.copy)
    assert recorded_alignments and all(recorded_alignments)


def test_step_objects_copy_unaligned_arrays(recorded_alignments):
    rng = np.random.default_rng(9)
    shared = {"silos": 2, "horizon": 20, "dimension": DIMENSION, "epsilon": 1.0}
    linear = fastfed.make_system("private-fedlinucb", batch_size=5, delta=1e-6, **shared)
    rows = rng.normal(size=(20, 2, ACTIONS, DIMENSION)) / 3
    experts = fastfed.make_system("fed-svt", optimal_loss=0.0, phase_length=5, **shared)
    losses = rng.random((20, 2, DIMENSION))

    def outcome(change):
        """Return the results of silos and server with changed arguments."""
        results = []
        silos = [parties.Silo(linear.plan, index, parties.SeededNoise(5)) for index in range(2)]
        server = parties.Server(linear.plan, parties.SeededNoise(5))
        for sets in rows:
            for silo, actions in zip(silos, sets, strict=True):
                results.append(silo.select(change(actions)))
                silo.observe(0.5)
            if silos[0].due:
                reports = [silo.report() for silo in silos]
                reports = [with_copied_values(report, change) for report in reports]
                broadcast = with_copied_values(server.combine(reports), change)
                for silo in silos:
                    silo.receive(broadcast)
                results.append(broadcast.values.tobytes())
        clients = [parties.ExpertClient(experts.plan, index) for index in range(2)]
        leader = parties.ExpertServer(experts.plan, parties.SeededNoise(5))
        for client in clients:
            client.receive(leader.start())
        for vectors in losses:
            if clients[0].due:
                reports = [with_copied_values(client.report(), change) for client in clients]
                choice = leader.combine(reports)
                for client in clients:
                    client.receive(choice)
            for client, vector in zip(clients, vectors, strict=True):
                results.append(client.expert)
                client.observe(change(vector))
        return results

    assert outcome(at_odd_address) == outcome(np.copy)
    assert recorded_alignments and all(recorded_alignments)


def with_copied_values(message, copy):
    """Return the message with the array ``copy(values)``, which has the same values elsewhere."""
    return dataclasses.replace(message, values=copy(message.values))
