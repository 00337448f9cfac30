"""Small problems that cover the corners: used by the driver and the oracle tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

PROTOCOLS = (
    *("none", "silo-ldp", "silo-ldp-prefix", "central"),
    *("shuffle-amplified", "shuffle-vector"),
)

# Systems of a single agent; in a problem they stand where others name their protocol.
AGENTS = ("linucb", "linucb-jdp", "linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec")

# What a problem says beside its curve; all else are keys of the curve.
SIZES = ("silos", "horizon", "dimension", "actions", "protocol")


def ordinary_cases(cases: Iterable, ordinary: Callable[..., bool]) -> list:
    """Cases for parametrize: those that are not ordinary run with `scripts/test --all` only.

    A case that is a tuple stands for several arguments.
    """
    out = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        out.append(pytest.param(*values, marks=() if ordinary(*values) else pytest.mark.slow))
    assert 0 < sum(not case.marks for case in out) < len(out)
    return out


def keys_of(sizes: dict) -> dict:
    """The keys of the curve's table in a problem."""
    return {key: value for key, value in sizes.items() if key not in SIZES}


def curve(protocol: str, **keys) -> dict:
    """A curve's table for a protocol by its name; "none" and "local" are the public systems."""
    if protocol == "local":
        keys.pop("batch_size", None)
        keys.pop("lazy", None)
        return {"label": protocol, "algorithm": "local-linucb", **keys}
    if protocol == "none":
        return {"label": protocol, "algorithm": "fedlinucb", **keys}
    if protocol in AGENTS:
        budget = {} if protocol == "linucb" else {"epsilon": 20.0, "delta": 0.01}
        return {"label": protocol, "algorithm": protocol, **budget, **keys}
    private = {"epsilon": 20.0, "delta": 0.01, "protocol": protocol}
    return {"label": protocol, "algorithm": "private-fedlinucb", **private, **keys}


def releases() -> list[tuple[str, dict]]:
    """Prefix sums other than the paper's tree: at 2^k releases and one less and more, and long.

    In "low noise" the data outgrow the noise, so that the direct radius lowers lambda.
    """
    small = {"silos": 2, "dimension": 3, "actions": 4, "batch_size": 3}
    sizes = {
        "2^k - 1 releases": {**small, "horizon": 21},
        "2^k releases": {**small, "horizon": 24},
        "2^k + 1 releases": {**small, "horizon": 29},
        "every round": {**small, "horizon": 17, "batch_size": 1},
        "one of everything": {
            "silos": 1, "horizon": 6, "dimension": 1, "actions": 1, "batch_size": 2,
        },
        "low noise": {
            "silos": 3, "horizon": 60, "dimension": 4, "actions": 9, "batch_size": 4,
            "epsilon": 2000.0,
        },
    }  # fmt: skip
    return [
        (f"{name}, {protocol}, {release}, {'lazy' if lazy else 'eager'}",
         {**size, "protocol": protocol, "release": release, "lazy": lazy, "calibration": "exact"})
        for (name, size), protocol, release, lazy in itertools.product(
            sizes.items(), ("silo-ldp", "central"), ("honaker", "toeplitz"), (True, False)
        )
    ]  # fmt: skip


def corners() -> list[tuple[str, dict]]:
    """(name, {silos, horizon, dimension, actions, protocol, and keys of the curve})."""
    sizes = {
        "plain": {"silos": 3, "horizon": 40, "dimension": 4, "actions": 9, "batch_size": 8},
        "short last batch": {
            "silos": 2, "horizon": 37, "dimension": 3, "actions": 5, "batch_size": 6,
        },
        "every round": {"silos": 2, "horizon": 17, "dimension": 3, "actions": 5, "batch_size": 1},
        "2^k - 1 releases": {
            "silos": 2, "horizon": 21, "dimension": 3, "actions": 4, "batch_size": 3,
        },
        "2^k releases": {
            "silos": 2, "horizon": 24, "dimension": 3, "actions": 4, "batch_size": 3,
        },
        "2^k + 1 releases": {
            "silos": 2, "horizon": 27, "dimension": 3, "actions": 4, "batch_size": 3,
        },
        "one of everything": {
            "silos": 1, "horizon": 6, "dimension": 1, "actions": 1, "batch_size": 2,
        },
        "more features than a panel": {
            "silos": 2, "horizon": 12, "dimension": 23, "actions": 37, "batch_size": 4,
        },
        "one batch": {"silos": 2, "horizon": 10, "dimension": 3, "actions": 4, "batch_size": 10},
    }  # fmt: skip
    problems = [
        (f"{name}, {protocol}, {'lazy' if lazy else 'eager'}",
         {**size, "protocol": protocol, "lazy": lazy})
        for (name, size), protocol, lazy in itertools.product(
            sizes.items(), PROTOCOLS, (True, False)
        )
    ]  # fmt: skip
    local = {**sizes["plain"], "protocol": "local", "lazy": False}
    return [*problems, ("plain, local", local), *releases()]


def agents() -> list[tuple[str, dict]]:
    """The same for the systems of a single agent, ``protocol`` one of ``AGENTS``.

    Trees matter to "linucb-jdp" alone. In "low noise" the direct radius lowers lambda.
    """
    sizes = {
        "every round": {"horizon": 13, "dimension": 3, "actions": 5, "batch_size": 1},
        "short last batch": {"horizon": 37, "dimension": 3, "actions": 5, "batch_size": 6},
        "one of everything": {"horizon": 6, "dimension": 1, "actions": 1, "batch_size": 2},
        "one batch": {"horizon": 10, "dimension": 3, "actions": 4, "batch_size": 10},
        "more features than a panel": {
            "horizon": 12, "dimension": 23, "actions": 37, "batch_size": 4,
        },
        "2^k - 1 releases": {"horizon": 21, "dimension": 3, "actions": 4, "batch_size": 3},
        "2^k releases": {"horizon": 24, "dimension": 3, "actions": 4, "batch_size": 3},
        "2^k + 1 releases": {"horizon": 29, "dimension": 3, "actions": 4, "batch_size": 3},
        "low noise": {
            "horizon": 80, "dimension": 3, "actions": 9, "batch_size": 4, "epsilon": 2000.0,
        },
    }  # fmt: skip
    everywhere = tuple(sizes)[:5]
    bits = {"mechanism": "vector-sum"}
    published = {"calibration": "published-code", "radius": "published-code"}
    problems = [
        *itertools.product(everywhere, AGENTS, ({},)),
        *itertools.product(everywhere, ("linucb-ldp",), (bits,)),
        *itertools.product(tuple(sizes)[5:8], ("linucb-jdp",), ({},)),
        *itertools.product(
            (*everywhere[:3], *tuple(sizes)[5:8]),
            ("linucb-jdp",),
            ({"release": "honaker"}, {"release": "toeplitz"}),
        ),
        *itertools.product(("low noise",), AGENTS[1:], ({},)),
        ("low noise", "linucb-ldp", bits),
        *itertools.product(
            ("short last batch",), AGENTS, ({"radius": "lemma-a2"}, {"radius": "lemma-a4"})
        ),
        ("every round", "linucb", {"radius": "lemma-a2"}),
        ("every round", "linucb-ldp", {"radius": "lemma-a4"}),
        ("short last batch", "linucb-ldp", {**bits, "radius": "lemma-a4"}),
        *itertools.product(
            ("every round", "short last batch"), ("linucb",), ({"radius": "published-code"},)
        ),
        *itertools.product(("every round", "short last batch"), AGENTS[1:], (published,)),
        *itertools.product(("2^k releases",), AGENTS[1:4:2], ({"calibration": "theorem"},)),
    ]
    return [
        (
            ", ".join([size, system, *(f"{key} {value}" for key, value in keys.items())]),
            {"silos": 1, **sizes[size], "protocol": system, **keys},
        )
        for size, system, keys in problems
    ]
