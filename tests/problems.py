"""Small problems that cover the corners: used by the driver and the oracle tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

PROTOCOLS = (
    *("none", "silo-ldp", "silo-ldp-prefix", "central"),
    *("shuffle-amplified", "shuffle-vector", "secure-sum"),
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
        if protocol == "linucb-jdp":
            budget["release"] = "tree"  # the paper's, which the oracle knows
        return {"label": protocol, "algorithm": protocol, **budget, **keys}
    private = {"epsilon": 20.0, "delta": 0.01, "protocol": protocol}
    if "share" not in keys:
        private["release"] = "tree"  # the paper's, which the oracles know
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


def schedules() -> list[tuple[str, dict]]:
    """Batches that differ, factors, shuffles without a tree, centred rewards and ledgers."""
    sizes = {
        "growing": {"horizon": 41, "batch_size": "growing", "batch_ratio": 1.4},
        "explicit": {"horizon": 30, "release_rounds": [1, 2, 9, 10, 24]},
        "one release": {"horizon": 12, "release_rounds": [5]},
        "to the horizon": {"horizon": 12, "release_rounds": [3, 12]},
        "every round": {"horizon": 7, "release_rounds": [1, 2, 3, 4, 5, 6, 7]},
        "one round": {"horizon": 1, "release_rounds": [1]},
        "equal": {"horizon": 22, "batch_size": 5},
    }
    kinds = {
        "none": ("none", {}),
        "silo-ldp, tree": ("silo-ldp", {}),
        "silo-ldp, factorised": ("silo-ldp", {"release": "factorised"}),
        "silo-ldp, toeplitz": ("silo-ldp", {"release": "toeplitz"}),
        "silo-ldp, honaker": ("silo-ldp", {"release": "honaker"}),
        "silo-ldp-prefix": ("silo-ldp-prefix", {}),
        "central, tree": ("central", {}),
        "central, factorised": ("central", {"release": "factorised"}),
        "shuffle-amplified": ("shuffle-amplified", {}),
        "shuffle-vector, flat": ("shuffle-vector", {"release": "flat"}),
        "shuffle-vector, flat, individual": (
            "shuffle-vector", {"release": "flat", "messages": "individual"},
        ),
        "linucb": ("linucb", {}),
        "linucb-jdp, tree": ("linucb-jdp", {}),
        "linucb-jdp, factorised": ("linucb-jdp", {"release": "factorised"}),
        "linucb-ldp": ("linucb-ldp", {}),
        "linucb-ldp, individual": ("linucb-ldp", {"messages": "individual"}),
        "linucb-ldp, vector": ("linucb-ldp", {"mechanism": "vector-sum"}),
        "linucb-sdp-amp": ("linucb-sdp-amp", {}),
        "linucb-sdp-vec": ("linucb-sdp-vec", {}),
        "linucb-sdp-vec, individual": ("linucb-sdp-vec", {"messages": "individual"}),
    }  # fmt: skip
    made: list[tuple[str, dict]] = []

    def add(name: str, protocol: str, keys: dict) -> None:
        small = {"silos": 1 if protocol in AGENTS else 2, "dimension": 3, "actions": 5}
        made.append((name, {**small, "protocol": protocol, **keys}))

    everywhere = ("growing", "explicit")
    for (size, rounds), (kind, (protocol, keys)) in itertools.product(sizes.items(), kinds.items()):
        if size == "equal" and "factorised" not in kind and "flat" not in kind:
            continue
        if size not in (*everywhere, "equal") and kind not in (
            "none", "silo-ldp, tree", "central, factorised", "shuffle-vector, flat", "linucb-ldp",
            "linucb-sdp-vec",
        ):  # fmt: skip
            continue
        add(f"{size}, {kind}, lazy", protocol, {**rounds, **keys})
        eager = kind in ("none", "silo-ldp, tree", "silo-ldp, factorised", "central, factorised",
                         "shuffle-vector, flat")  # fmt: skip
        if eager and size in everywhere:
            add(f"{size}, {kind}, eager", protocol, {**rounds, **keys, "lazy": False})
    for size in everywhere:
        rounds = sizes[size]
        add(f"{size}, silo-ldp, factorised, lemma-c2", "silo-ldp",
            {**rounds, "release": "factorised", "radius": "lemma-c2"})  # fmt: skip
        add(f"{size}, one of everything, lazy", "silo-ldp",
            {**rounds, "release": "factorised", "silos": 1, "dimension": 1,
             "actions": 1})  # fmt: skip
        add(f"{size}, low noise, lazy", "central",
            {**rounds, "release": "factorised", "epsilon": 3000.0, "silos": 3})  # fmt: skip
        add(f"{size}, unclipped, lazy", "shuffle-vector",
            {**rounds, "release": "flat", "clip": False})  # fmt: skip
        feducb = {"algorithm": "feducb", "schedule": "fixed", "radius": "direct",
                  "epsilon": 20.0, "delta": 0.01}  # fmt: skip
        add(f"{size}, feducb", "none", {**rounds, **feducb})
        peers = {**feducb, "algorithm": "feducb-decentralized", "graph": "line", "silos": 3}
        add(f"{size}, feducb-decentralized", "none", {**rounds, **peers, "horizon": 60})
    centred = {"reward_centre": 0.5}
    for kind in ("none", "silo-ldp, tree", "silo-ldp, factorised", "silo-ldp-prefix",
                 "central, tree", "central, factorised", "shuffle-amplified",
                 "shuffle-vector, flat", "linucb-jdp, factorised", "linucb-ldp",
                 "linucb-ldp, individual", "linucb-sdp-vec"):  # fmt: skip
        protocol, keys = kinds[kind]
        add(f"centred, {kind}", protocol, {**sizes["equal"], **keys, **centred})
        add(f"centred, {kind}, growing", protocol, {**sizes["growing"], **keys, **centred})
    add("centred, base rate, eager", "silo-ldp",
        {**sizes["growing"], "reward_centre": 0.4, "base_rates": [0.3, 0.6],
         "lazy": False})  # fmt: skip
    for bonus, size in itertools.product((0.0, 0.3), ("equal", "growing")):
        for kind in ("none", "silo-ldp", "central, factorised", "shuffle-vector, flat",
                     "linucb-jdp, tree", "linucb-sdp-vec"):  # fmt: skip
            protocol, keys = kinds.get(kind, ("silo-ldp", {}))
            add(f"ledger, {kind}, {size}, {bonus}", protocol,
                {**sizes[size], **keys, "bonus": bonus, "ledger": 0.2})  # fmt: skip
    return made
