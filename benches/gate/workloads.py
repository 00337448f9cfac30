"""The workloads that are timed: all algorithms, the main benches, users' runs, public kernels.

Both sides use head's copy of this file, so it uses only names that exist in earlier versions, too.
A workload that a side cannot prepare is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]

# ---- every algorithm ----------------------------------------------------------------------------

#: Values of keys without a default, for algorithms that have these keys.
REQUIRED = {"epsilon": 1.0, "delta": 1e-5, "graph": "ring", "initial_phases": 2, "diversity": 0.01}
#: Values of keys for single algorithms; they replace `REQUIRED`.
BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "linucb-jdp": {
        "release": "tree"
    },  # fixed here, since the default may differ between base and head
    "linucb-sdp-amp": {"epsilon": 0.2, "delta": 0.1},
    "linucb-sdp-vec": {"epsilon": 0.2, "delta": 0.1},
    "robin": {"epsilon": 2.0},
}
#: Synchronise after every round, with one draw for the noise of all silos.
DRAWN_ONCE = "silo-ldp-drawn-once"
#: Algorithms without a workload: "policy" runs a class that a user wrote.
NOT_TIMED = ("policy",)


def system_names() -> list[str]:
    """Return `ALGORITHM` or `ALGORITHM/PROTOCOL` of all algorithms, and `DRAWN_ONCE`."""
    from fastfed.protocols.protocol import PROTOCOLS
    from fastfed.simulation.systems import ALGORITHMS

    names: list[str] = []
    for name in ALGORITHMS.builtin:
        if name == "private-fedlinucb":
            names += [f"{name}/{each}" for each in federated(PROTOCOLS)]
            if "noise_draws" in ALGORITHMS[name].config.__struct_fields__:
                names.append(f"{name}/{DRAWN_ONCE}")
        elif name not in NOT_TIMED:
            names.append(name)
    return names


def federated(protocols: dict[str, Any]) -> list[str]:
    """Return the names of the protocols in which silos send the messages."""
    return [n for n, p in protocols.items() if n != "none" and p.senders == "silos"]


def system(name: str) -> Call:
    """Prepare a run of an algorithm at a small size, with defaults of all optional keys."""
    from fastfed.environments import FixedSet, RealizableLosses, Sphere, StochasticLosses
    from fastfed.experts import ALGORITHMS as EXPERTS
    from fastfed.simulation import dispatch
    from fastfed.simulation.systems import ALGORITHMS

    algorithm, _, protocol = name.partition("/")
    known_keys = ALGORITHMS[algorithm].config.__struct_fields__
    keys = {**REQUIRED, **BY_ALGORITHM.get(algorithm, {})}
    keys = {key: value for key, value in keys.items() if key in known_keys}
    if protocol:
        keys["protocol"] = protocol
    if protocol == "user-bit":
        keys |= {"protects": "reward", "delta": 0.0}
    if protocol == DRAWN_ONCE:
        keys |= {"protocol": "silo-ldp", "batch_size": 1, "noise_draws": "sum", "release": "tree"}
    environment: Any = Sphere(dimension=10, actions=100)
    horizon, silos = 200, 4
    if algorithm in EXPERTS:
        losses = RealizableLosses if algorithm == "fed-svt" else StochasticLosses
        environment, horizon = losses(experts=50), 300
    elif algorithm == "robin":
        horizon = 50
    elif algorithm == "thompson":
        from fastfed.environments import Arms

        environment, horizon = Arms(actions=10), 2000
    elif algorithm.startswith("linucb"):
        environment, horizon, silos = FixedSet(basis_actions=True), 2000, 1
    e = experiment(environment, {"algorithm": algorithm, **keys}, horizon=horizon, silos=silos)
    environment_run, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: dispatch.run(environment_run, plans, e.checkpoints)


# ---- sizes at which earlier versions were too slow ----------------------------------------------


def ring() -> Call:
    """Prepare a run of 100 silos in a ring; the time includes making the graph from the spec."""
    from fastfed.environments import Gap
    from fastfed.simulation import dispatch

    keys = {"algorithm": "feducb-decentralized", "graph": "ring", "private": False}
    # With this low threshold, every silo requests a synchronisation.
    keys |= {"communication": 1e-3, "lazy": False}

    def simulate() -> None:
        e = experiment(Gap(dimension=5, actions=10), keys, horizon=100, silos=100)
        dispatch.run(e.environment.open(0, 0, 100), [e.curves[0].system.plan], e.checkpoints)

    return simulate


def private_determinant() -> Call:
    """Prepare a run with a private trigger and d = 100, which is rarely near its threshold."""
    from fastfed.environments import Gap
    from fastfed.simulation import dispatch

    keys = {"algorithm": "feducb", "schedule": "private-determinant", "epsilon": 1.0}
    keys |= {"delta": 1e-5, "lazy": False}
    e = experiment(Gap(dimension=100, actions=20), keys, horizon=100, silos=4)
    environment_run, plans = e.environment.open(0, 0, 4), [e.curves[0].system.plan]
    return lambda: dispatch.run(environment_run, plans, e.checkpoints)


def experiment(environment: Any, keys: dict[str, Any], **sizes: int) -> Any:
    """Return an experiment with one curve and the given sizes."""
    from fastfed.simulation.experiment import make_experiment

    curves = [{"label": "a", **keys}]
    return make_experiment(
        name="gate", environment=environment, curves=curves, checkpoints=5, **sizes
    )


SIZES = {"ring M=100": ring, "private-determinant d=100": private_determinant}


# ---- the rows of `fastfed bench` ----------------------------------------------------------------

#: Queries of a pool. Only rounds are timed, and large pools would take seconds to make.
QUERIES = 20
#: Cases that differ from a timed case only in the number of queries.
LEFT_OUT = ("letor-d57-q16000",)


def case_names() -> list[str]:
    """Return the names of the timed cases of `fastfed bench`."""
    from fastfed.simulation import bench

    return [case.name for case in bench.CASES if case.name not in LEFT_OUT]


def case(name: str) -> Call:
    """Prepare a case of `fastfed bench`, with fewer rounds, silos and queries."""
    from fastfed.simulation import bench, compiled

    (case,) = (each for each in bench.CASES if each.name == name)
    sizes = [part for part in name.split("-") if part[0] in "kd" and part[1:].isdigit()]
    numbers = [int(part[1:]) for part in sizes]
    if name.startswith("letor"):
        # By place: the gate also calls an earlier version, in which the argument had another name.
        similar_rows = (True,) if "close" in name else ()
        pool = partial(bench.LetorPool, numbers[0], 5 * QUERIES, *similar_rows)
        case = replace(case, environment=pool)
    elif name.startswith("pool"):
        case = replace(case, environment=lambda: bench.SyntheticPool(*numbers, QUERIES))
    # Run for some milliseconds, so that the overhead of the call is small.
    rounds, silos = 50, case.silos
    if silos == 1:
        rounds = case.rounds // 10
    elif numbers[-1] < 20:
        rounds = 200
    elif numbers[-1] >= 100:
        silos = 1
    small = replace(case, rounds=rounds, silos=silos)
    e, _ = bench.experiments_of(small)
    environment_run, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: compiled.run(environment_run, plans, e.checkpoints, rounds_per_call=e.horizon)


# ---- what users run -----------------------------------------------------------------------------

#: SPECS: the folder of example specs. ROWS: rows of `scripts/bench opponents`, with default keys.
SPECS = Path(__file__).parents[2] / "examples"
ROWS = ("set d=2", "set d=10", "set d=50", "set d=200", "sphere d=10", "letor d=57 q=60")
EXPERT_ROWS = ("hedge", "follow-the-leader", "fed-svt")


def user_names() -> list[str]:
    """Return file names of specs and names of rows; rows named `plain` have no sieve."""
    sieves = [f"{row}{plain}" for row in ROWS for plain in ("", " plain")]
    experts = [f"{row} m={silos}" for row in EXPERT_ROWS for silos in (1, 10)]
    return [*(path.name for path in sorted(SPECS.glob("*.toml"))), *sieves, *experts]


def user(name: str) -> Call:
    """Prepare one replicate of a spec or a row, with fewer rounds."""
    from fastfed.simulation import dispatch

    if name.endswith(".toml"):
        from fastfed.simulation.experiment import load_experiment

        e = load_experiment(SPECS / name, horizon=122, silos=10, checkpoints=5)
    else:
        import opponents

        (row,) = (row for row in opponents.rows() if row.name == name)
        e = replace(row, rounds=row.rounds // 10).experiment
    environment_run, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: [dispatch.run(environment_run, [plan], e.checkpoints) for plan in plans]


# ---- public kernels -----------------------------------------------------------------------------

DIMENSIONS = (10, 57)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that arrays of both sides are aligned alike."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    first = -buffer.ctypes.data % 64
    copy = buffer[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def kernel_calls(d: int, trusted: bool) -> dict[str, Call]:
    """Return name -> call for every function of `fastfed.kernels`, with d features and K = 100."""
    from fastfed import kernels

    rng = np.random.default_rng(0)
    actions = (rng.normal(size=(100, d)) / np.sqrt(d)).astype(np.float32)
    v = actions.astype(float).T @ actions + 5.0 * np.eye(d)
    factor = kernels.inverse_factor(v)
    theta, x = rng.normal(size=d) / d, actions[0].astype(float) / 8.0
    actions, v, factor, theta = map(aligned, (actions, v, factor, theta))
    rows, rewards = aligned(np.tile(x, (10, 1))), aligned(np.full(10, 0.1))
    gram, bias, inverse = aligned(v), aligned(np.zeros(d)), aligned(np.linalg.inv(v))
    w, estimate = aligned(factor), aligned(theta)
    bits = kernels.encode_bits(np.arange(65), 100)
    keys = {"trusted": trusted}
    return {
        "rank_one_update": lambda: kernels.rank_one_update(gram, bias, rows, rewards, **keys),
        "sherman_morrison": lambda: kernels.sherman_morrison(inverse, rows, **keys),
        "factor_update": lambda: kernels.factor_update(w, estimate, rows, rewards, **keys),
        "inverse_factor": lambda: kernels.inverse_factor(v, **keys),
        "solve": lambda: kernels.solve(factor, theta, **keys),
        "ucb_scores": lambda: kernels.ucb_scores(actions, factor, theta, 2.0, **keys),
        "ucb_argmax": lambda: kernels.ucb_argmax(actions, factor, theta, 2.0, **keys),
        "normals": lambda: kernels.normals(0, 16 * d),
        "tree_noise": lambda: kernels.tree_noise(0, 7, d, 1.0),
        "encode_bits": lambda: kernels.encode_bits(np.arange(d), 100),
        "shuffle_bits": lambda: kernels.shuffle_bits(bits, 1),
    }


def kernel_names() -> list[str]:
    """Return `NAME d=D` of all kernels, and `NAME d=10 checked` of those that can check values."""
    names = kernel_calls(2, True)
    return [
        *(f"{name} d={d}" for d in DIMENSIONS for name in names),
        *(f"{name} d={DIMENSIONS[0]} checked" for name in list(names)[:7]),
    ]


def kernel(name: str) -> Call:
    """Prepare the call of one kernel by its workload name."""
    function, size, *checked = name.split()
    return kernel_calls(int(size.removeprefix("d=")), not checked)[function]


# ---- all of it ----------------------------------------------------------------------------------

GROUPS = {
    "system": (system_names, system),
    "size": (lambda: list(SIZES), lambda name: SIZES[name]()),
    "bench": (case_names, case),
    "user": (user_names, user),
    "kernel": (kernel_names, kernel),
}


def names(groups: Iterable[str] = GROUPS) -> list[str]:
    """Return the names of this side's workloads in some groups, as `GROUP NAME`."""
    return [f"{group} {name}" for group in groups for name in GROUPS[group][0]()]


def make(name: str) -> Call:
    """Prepare a workload: do all work that is not timed, and return the timed call."""
    group, _, rest = name.partition(" ")
    return GROUPS[group][1](rest)
