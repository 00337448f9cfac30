"""What is timed: every algorithm, the main benches, what users run, and every public kernel.

Head's copy of this file describes the work to both sides, so it uses only names that earlier
versions have too; what a side cannot make is named and left out.
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

#: What has to be said where a curve may say it; all else is by default.
REQUIRED = {"epsilon": 1.0, "delta": 1e-5, "graph": "ring", "initial_phases": 2, "diversity": 0.01}
#: Needed instead of these: what the algorithm asks for.
OWN: dict[str, dict[str, Any]] = {
    "linucb-jdp": {"release": "tree"},  # the default of both sides, or of one alone
    "linucb-sdp-amp": {"epsilon": 0.2, "delta": 0.1},
    "linucb-sdp-vec": {"epsilon": 0.2, "delta": 0.1},
    "robin": {"epsilon": 2.0},
}
#: A protocol after every round with one draw for the noise of all silos.
DRAWN_ONCE = "silo-ldp-drawn-once"
#: Runs classes of a user's own.
NOT_TIMED = ("policy",)


def system_names() -> list[str]:
    """`ALGORITHM` or `ALGORITHM/PROTOCOL` of all that is registered, and one draw for all noise."""
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
    """The protocols of a federation's silos."""
    return [n for n, p in protocols.items() if n != "none" and p.senders == "silos"]


def system(name: str) -> Call:
    """A run of an algorithm at a small size, every key at its default."""
    from fastfed.environments import FixedSet, RealizableLosses, Sphere, StochasticLosses
    from fastfed.experts import ALGORITHMS as EXPERTS
    from fastfed.simulation import dispatch
    from fastfed.simulation.systems import ALGORITHMS

    algorithm, _, protocol = name.partition("/")
    known = ALGORITHMS[algorithm].config.__struct_fields__
    keys = {**REQUIRED, **OWN.get(algorithm, {})}
    keys = {key: value for key, value in keys.items() if key in known}
    if protocol:
        keys["protocol"] = protocol
    if protocol == DRAWN_ONCE:
        keys |= {"protocol": "silo-ldp", "batch_size": 1, "noise_draws": "sum", "release": "tree"}
    environment: Any = Sphere(dimension=10, actions=100)
    horizon, silos = 200, 4
    if algorithm in EXPERTS:
        losses = RealizableLosses if algorithm == "fed-svt" else StochasticLosses
        environment, horizon = losses(experts=50), 300
    elif algorithm == "robin":
        horizon = 50
    elif algorithm.startswith("linucb"):
        environment, horizon, silos = FixedSet(basis_actions=True), 2000, 1
    e = experiment(environment, {"algorithm": algorithm, **keys}, horizon=horizon, silos=silos)
    opened, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: dispatch.run(opened, plans, e.checkpoints)


# ---- sizes at which work that should not grow did ------------------------------------------------


def ring() -> Call:
    """A hundred silos in a ring, from the spec on: the graph is a part of the work."""
    from fastfed.environments import Gap
    from fastfed.simulation import dispatch

    keys = {"algorithm": "feducb-decentralized", "graph": "ring", "private": False}
    # So low a threshold that every silo asks.
    keys |= {"communication": 1e-3, "lazy": False}

    def play() -> None:
        e = experiment(Gap(dimension=5, actions=10), keys, horizon=100, silos=100)
        dispatch.run(e.environment.open(0, 0, 100), [e.curves[0].system.plan], e.checkpoints)

    return play


def private_determinant() -> Call:
    """A private trigger in a hundred dimensions, which few rounds bring near its threshold."""
    from fastfed.environments import Gap
    from fastfed.simulation import dispatch

    keys = {"algorithm": "feducb", "schedule": "private-determinant", "epsilon": 1.0}
    keys |= {"delta": 1e-5, "lazy": False}
    e = experiment(Gap(dimension=100, actions=20), keys, horizon=100, silos=4)
    opened, plans = e.environment.open(0, 0, 4), [e.curves[0].system.plan]
    return lambda: dispatch.run(opened, plans, e.checkpoints)


def experiment(environment: Any, keys: dict[str, Any], **sizes: int) -> Any:
    """One curve at a size."""
    from fastfed.simulation.experiment import make_experiment

    curves = [{"label": "a", **keys}]
    return make_experiment(
        name="gate", environment=environment, curves=curves, checkpoints=5, **sizes
    )


SIZES = {"ring M=100": ring, "private-determinant d=100": private_determinant}


# ---- the rows of `fastfed bench` ----------------------------------------------------------------

#: Queries of a pool: what is timed is a round, and large pools take seconds to make.
QUERIES = 20
#: The same sizes with another number of queries.
LEFT_OUT = ("letor-d57-q16000",)


def case_names() -> list[str]:
    from fastfed.simulation import bench

    return [case.name for case in bench.CASES if case.name not in LEFT_OUT]


def case(name: str) -> Call:
    """A row of `fastfed bench`, with fewer rounds, silos and queries."""
    from fastfed.simulation import bench, compiled

    (found,) = (each for each in bench.CASES if each.name == name)
    sizes = [part for part in name.split("-") if part[0] in "kd" and part[1:].isdigit()]
    numbers = [int(part[1:]) for part in sizes]
    if name.startswith("letor"):
        close = {"close": True} if "close" in name else {}
        pool = partial(bench.LetorPool, numbers[0], 5 * QUERIES, **close)
        found = replace(found, environment=pool)
    elif name.startswith("pool"):
        found = replace(found, environment=lambda: bench.SyntheticPool(*numbers, QUERIES))
    # Some milliseconds, so that a call's own costs do not hide those of its rounds.
    rounds, silos = 50, found.silos
    if silos == 1:
        rounds = found.rounds // 10
    elif numbers[-1] < 20:
        rounds = 200
    elif numbers[-1] >= 100:
        silos = 1
    small = replace(found, rounds=rounds, silos=silos)
    e, _ = bench.experiments_of(small)
    opened, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: compiled.run(opened, plans, e.checkpoints, rounds_per_call=e.horizon)


# ---- what users run -----------------------------------------------------------------------------

#: Specs in examples/, and rows of `scripts/bench opponents`, which run defaults.
SPECS = Path(__file__).parents[2] / "examples"
ROWS = ("set d=2", "set d=10", "set d=50", "set d=200", "sphere d=10", "letor d=57 q=60")
EXPERT_ROWS = ("hedge", "follow-the-leader", "fed-svt")


def user_names() -> list[str]:
    """`NAME.toml`, and rows by their names; with `plain` by the largest bound, without a sieve."""
    sieves = [f"{row}{plain}" for row in ROWS for plain in ("", " plain")]
    experts = [f"{row} m={silos}" for row in EXPERT_ROWS for silos in (1, 10)]
    return [*(path.name for path in sorted(SPECS.glob("*.toml"))), *sieves, *experts]


def user(name: str) -> Call:
    """One replicate of a spec or a row, with fewer rounds."""
    from fastfed.simulation import dispatch

    if name.endswith(".toml"):
        from fastfed.simulation.experiment import load_experiment

        e = load_experiment(SPECS / name, horizon=122, silos=10, checkpoints=5)
    else:
        import opponents

        (row,) = (row for row in opponents.rows() if row.name == name)
        e = replace(row, rounds=row.rounds // 10).experiment
    opened, plans = e.environment.open(0, 0, e.silos), [c.system.plan for c in e.curves]
    return lambda: [dispatch.run(opened, [plan], e.checkpoints) for plan in plans]


# ---- public kernels -----------------------------------------------------------------------------

DIMENSIONS = (10, 57)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins with a cache line, as arrays of both sides then do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 64
    found = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def kernel_calls(d: int, trusted: bool) -> dict[str, Call]:
    """Every function of `fastfed.kernels` at d dimensions and K = 100, by its name."""
    from fastfed import kernels

    draw = np.random.default_rng(0)
    actions = (draw.normal(size=(100, d)) / np.sqrt(d)).astype(np.float32)
    v = actions.astype(float).T @ actions + 5.0 * np.eye(d)
    factor = kernels.inverse_factor(v)
    theta, x = draw.normal(size=d) / d, actions[0].astype(float) / 8.0
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
    """`NAME d=D`, and with checked values too (`checked`) at the smaller size."""
    names = kernel_calls(2, True)
    return [
        *(f"{name} d={d}" for d in DIMENSIONS for name in names),
        *(f"{name} d={DIMENSIONS[0]} checked" for name in list(names)[:7]),
    ]


def kernel(name: str) -> Call:
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
    """The workloads of some groups that this side knows, as `GROUP NAME`."""
    return [f"{group} {name}" for group in groups for name in GROUPS[group][0]()]


def make(name: str) -> Call:
    """The work itself, made ready: what is not timed is done."""
    group, _, rest = name.partition(" ")
    return GROUPS[group][1](rest)
