"""Small problems that cover corner cases, for the tests of drivers and oracles.

A problem is a name and a dict: the keys of ``SIZES`` and the keys of one curve's table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

PROTOCOLS = (
    *("none", "silo-ldp", "silo-ldp-prefix", "central"),
    *("shuffle-amplified", "shuffle-vector", "secure-sum", "user-bit"),
)

# Systems of a single agent. A problem names one of them under "protocol".
AGENTS = ("linucb", "linucb-jdp", "linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec")

# Keys of a problem that are not keys of its curve.
SIZES = ("silos", "horizon", "dimension", "actions", "protocol")


def ordinary_cases(cases: Iterable, ordinary: Callable[..., bool]) -> list:
    """Return the cases for parametrize; mark as slow those for which ``ordinary`` is false.

    Slow cases run with `scripts/test --all` only. A tuple holds several arguments of one case.
    """
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        parameters.append(
            pytest.param(*values, marks=() if ordinary(*values) else pytest.mark.slow)
        )
    assert 0 < sum(not case.marks for case in parameters) < len(parameters)
    return parameters


def curve_keys(keys: dict) -> dict:
    """Return the keys that belong in the table of a curve: all but the sizes of the problem."""
    return {key: value for key, value in keys.items() if key not in SIZES}


def curve(protocol: str, **keys) -> dict:
    """Return a curve's table for a protocol; "none" and "local" are the systems without privacy."""
    if protocol == "local":
        keys.pop("batch_size", None)
        keys.pop("lazy", None)
        return {"label": protocol, "algorithm": "local-linucb", **keys}
    if protocol == "none":
        return {"label": protocol, "algorithm": "fedlinucb", **keys}
    if protocol in AGENTS:
        budget = {} if protocol == "linucb" else {"epsilon": 20.0, "delta": 0.01}
        if protocol == "linucb-jdp":
            budget["release"] = "tree"  # the paper's release, which the oracle computes
        return {"label": protocol, "algorithm": protocol, **budget, **keys}
    private = {"epsilon": 20.0, "delta": 0.01, "protocol": protocol}
    if protocol == "user-bit":
        bits = {"epsilon": 2.0, "delta": 0.0, "protects": "reward"}
        return {"label": protocol, "algorithm": "private-fedlinucb", **private, **bits, **keys}
    if "share" not in keys:
        private["release"] = "tree"  # the paper's release, which the oracles compute
    return {"label": protocol, "algorithm": "private-fedlinucb", **private, **keys}


def releases() -> list[tuple[str, dict]]:
    """Return problems whose prefix sums are released by other mechanisms than the paper's tree.

    Their numbers of releases are 2^k, one less and one more, and larger. In "low noise" the data
    outgrow the noise, so that the direct radius lowers lambda.
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
    """Return corner cases of federations: every protocol, eager and lazy, at corner sizes."""
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
    """Return corner cases of single agents; ``protocol`` is one of ``AGENTS``.

    Only "linucb-jdp" releases trees, so the sizes around 2^k releases are for it. In "low
    noise" the direct radius lowers lambda.
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
    """Return problems with unequal batches, factorised and flat releases, and centred rewards.

    Lazy curves with a direct radius have a sieve. Some have another ranking, or a wider sieve.
    """
    sizes = {
        "growing": {"horizon": 41, "batch_size": "growing", "batch_ratio": 1.4},
        "explicit": {"horizon": 30, "release_rounds": [1, 2, 9, 10, 24]},
        "one release": {"horizon": 12, "release_rounds": [5]},
        "to the horizon": {"horizon": 12, "release_rounds": [3, 12]},
        "every round": {"horizon": 7, "release_rounds": [1, 2, 3, 4, 5, 6, 7]},
        "one round": {"horizon": 1, "release_rounds": [1]},
        "equal": {"horizon": 22, "batch_size": 5},
    }
    releases_by_name = {
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
    problems: list[tuple[str, dict]] = []

    def add_problem(name: str, protocol: str, keys: dict) -> None:
        """Append a problem of the smallest sizes, with these keys."""
        small_sizes = {"silos": 1 if protocol in AGENTS else 2, "dimension": 3, "actions": 5}
        problems.append((name, {**small_sizes, "protocol": protocol, **keys}))

    everywhere = ("growing", "explicit")
    for (size_name, batch_keys), (release_name, (protocol, keys)) in itertools.product(
        sizes.items(), releases_by_name.items()
    ):
        if size_name == "equal" and "factorised" not in release_name and "flat" not in release_name:
            continue
        if size_name not in (*everywhere, "equal") and release_name not in (
            "none", "silo-ldp, tree", "central, factorised", "shuffle-vector, flat", "linucb-ldp",
            "linucb-sdp-vec",
        ):  # fmt: skip
            continue
        add_problem(f"{size_name}, {release_name}, lazy", protocol, {**batch_keys, **keys})
        eager = release_name in (
            "none", "silo-ldp, tree", "silo-ldp, factorised", "central, factorised",
            "shuffle-vector, flat",
        )  # fmt: skip
        if eager and size_name in everywhere:
            add_problem(
                f"{size_name}, {release_name}, eager",
                protocol,
                {**batch_keys, **keys, "lazy": False},
            )
    for size_name in everywhere:
        batch_keys = sizes[size_name]
        add_problem(f"{size_name}, silo-ldp, factorised, lemma-c2", "silo-ldp",
            {**batch_keys, "release": "factorised", "radius": "lemma-c2"})  # fmt: skip
        add_problem(f"{size_name}, one of everything, lazy", "silo-ldp",
            {**batch_keys, "release": "factorised", "silos": 1, "dimension": 1,
             "actions": 1})  # fmt: skip
        add_problem(f"{size_name}, low noise, lazy", "central",
            {**batch_keys, "release": "factorised", "epsilon": 3000.0, "silos": 3})  # fmt: skip
        add_problem(f"{size_name}, unclipped, lazy", "shuffle-vector",
            {**batch_keys, "release": "flat", "clip": False})  # fmt: skip
        feducb = {"algorithm": "feducb", "schedule": "fixed", "radius": "direct",
                  "epsilon": 20.0, "delta": 0.01}  # fmt: skip
        add_problem(f"{size_name}, feducb", "none", {**batch_keys, **feducb})
        peers = {**feducb, "algorithm": "feducb-decentralized", "graph": "line", "silos": 3}
        add_problem(
            f"{size_name}, feducb-decentralized", "none", {**batch_keys, **peers, "horizon": 60}
        )
    centred_rewards = {"reward_centre": 0.5}
    for release_name in ("none", "silo-ldp, tree", "silo-ldp, factorised", "silo-ldp-prefix",
                 "central, tree", "central, factorised", "shuffle-amplified",
                 "shuffle-vector, flat", "linucb-jdp, factorised", "linucb-ldp",
                 "linucb-ldp, individual", "linucb-sdp-vec"):  # fmt: skip
        protocol, keys = releases_by_name[release_name]
        add_problem(
            f"centred, {release_name}", protocol, {**sizes["equal"], **keys, **centred_rewards}
        )
        add_problem(
            f"centred, {release_name}, growing",
            protocol,
            {**sizes["growing"], **keys, **centred_rewards},
        )
    add_problem("centred, base rate, eager", "silo-ldp",
        {**sizes["growing"], "reward_centre": 0.4, "base_rates": [0.3, 0.6],
         "lazy": False})  # fmt: skip
    rankings: dict[str, dict] = {
        "0": {"sieve": 0.0},
        "wide": {"bonus": 0.3, "ledger": 0.2},
        "tied": {"tie_bonus": 0.5},
        "none": {"sieve": 1.0},
    }
    for (ranking, chosen), size_name in itertools.product(rankings.items(), ("equal", "growing")):
        for release_name in ("none", "silo-ldp", "central, factorised", "shuffle-vector, flat",
                     "linucb-jdp, tree", "linucb-sdp-vec"):  # fmt: skip
            protocol, keys = releases_by_name.get(release_name, ("silo-ldp", {}))
            add_problem(f"sieve {ranking}, {release_name}, {size_name}", protocol,
                {**sizes[size_name], **keys, **chosen})  # fmt: skip
    return problems
