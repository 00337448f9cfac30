"""Small problems that cover the corners: used by the driver and the oracle tests."""

from __future__ import annotations

import itertools

PROTOCOLS = (
    *("none", "silo-ldp", "silo-ldp-prefix", "central"),
    *("shuffle-amplified", "shuffle-vector"),
)


def curve(protocol: str, **keys) -> dict:
    """A curve's table for a protocol by its name; "none" and "local" are the public systems."""
    if protocol == "local":
        keys.pop("batch_size", None)
        keys.pop("lazy", None)
        return {"label": protocol, "algorithm": "local-linucb", **keys}
    if protocol == "none":
        return {"label": protocol, "algorithm": "fedlinucb", **keys}
    private = {"epsilon": 20.0, "delta": 0.01, "protocol": protocol}
    return {"label": protocol, "algorithm": "private-fedlinucb", **private, **keys}


def corners() -> list[tuple[str, dict]]:
    """(name, {silos, horizon, dimension, actions, batch_size, lazy, protocol})."""
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
    return [*problems, ("plain, local", local)]
