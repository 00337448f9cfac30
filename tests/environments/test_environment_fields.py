"""Every field of every environment and adversary refuses invalid values, and names the field."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfed._validate import InputError, show
from fastfed.environments import ADVERSARIES, BANDIT_ENVIRONMENTS, RewardDistribution

CLASSES = {kind: cls for kind, (cls, _) in {**BANDIT_ENVIRONMENTS, **ADVERSARIES}.items()}


def function(*arguments: Any) -> Any:
    """Fail: a user's function that must not be called."""
    raise AssertionError


def valid(kind: str, folder: Path) -> dict[str, Any]:
    """Return valid values of the fields without a default."""
    if kind == "replay":
        path = folder / "rounds.npz"
        np.savez(path, contexts=np.zeros((2, 3, 2, 2)), rewards=np.zeros((2, 3, 2)))
        return {"path": str(path)}
    if kind == "letor":
        path = folder / "train.txt"
        rows = [f"{r} qid:{q} 1:{0.1 * r + q} 2:{r - q}" for q in range(4) for r in range(3)]
        path.write_text("\n".join(rows) + "\n")
        return {"path": str(path)}
    if kind == "log":
        path = folder / "log.csv"
        path.write_text("action,reward,propensity\n" + "a,1,0.5\nb,0,0.5\n" * 4)
        return {"data": str(path)}
    return {
        "classification": {"data": "digits"},
        "python": {"function": function, "dimension": 2, "actions": 2},
        "oblivious-losses": {"losses": np.zeros((4, 3))},
        "near-realizable-losses": {"experts": 3, "optimal_loss": 1},
        "lower-bound-losses": {"experts": 3, "theorem": "2.4"},
        "gradient-losses": {"function": function, "experts": 3, "optimum": [1.0, 0.0, 0.0]},
        "stochastic-losses": {"experts": 3},
        "realizable-losses": {"experts": 3},
    }.get(kind, {})


HOSTILE: tuple[Any, ...] = (
    None, math.nan, math.inf, -math.inf, -1, -1.5, 2**70, True, "", "no-such", b"x", [], {}, [None],
    {"kind": "bernoulli"}, (1, 2, 3), np.array(["a"]), object(),
)  # fmt: skip
FIELDS = [
    (kind, field.name)
    for kind, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
    if field.init
]
#: Fields that may be anything: a user's own objects, which only their functions read.
ANYTHING = {"state"}


def accepts(field: dataclasses.Field[Any], value: Any) -> bool:
    """Return True if a value of HOSTILE is valid for a field, by its declared type."""
    kind = str(field.type)
    if value is None:
        return "None" in kind or field.default is None
    if value is True:
        return "bool" in kind
    if "float" in kind and "Sequence" not in kind:
        return value == 2**70  # a field without an upper limit
    return kind == "int" and value == 2**70


def is_empty(name: str, value: Any) -> bool:
    """Return True for an empty list of columns and for empty tables, which declare nothing."""
    return type(value) is {"columns": list, "ranges": dict, "where": dict}.get(name) and not value


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_refuses_invalid_values(kind: str, name: str, tmp_path: Path) -> None:
    cls, base = CLASSES[kind], valid(kind, tmp_path)
    cls(**base)
    (field,) = (f for f in dataclasses.fields(cls) if f.name == name)
    refused = 0
    for value in HOSTILE:
        try:
            environment = cls(**{**base, name: value})
        except InputError as error:
            refused += 1
            assert name in str(error), (value, str(error))
            assert "\n" not in str(error)
            continue
        if name in ANYTHING or accepts(field, value) or (kind == "log" and is_empty(name, value)):
            continue
        # Values that only the data refute are refused when data are read: by facts, at the latest.
        with pytest.raises(InputError, match=f"{name}|there is no such file"):
            environment.facts(2, 3)
        refused += 1
    assert refused >= 10 or name in ANYTHING, f"{kind}.{name} refuses {refused} of {len(HOSTILE)}"


@pytest.mark.parametrize("kind", [k for k, name in FIELDS if name == "reward" and k != "log"])
@pytest.mark.parametrize("value", [{"kind": "gaussian"}, "gaussian", None, 0.5, math.nan])
def test_a_reward_is_a_distribution(kind: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        CLASSES[kind](**{**valid(kind, tmp_path), "reward": value})
    assert str(caught.value).startswith("reward must be a RewardDistribution, such as")
    assert str(caught.value).endswith(f"got {show(value)}")


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian", "none"])
@pytest.mark.parametrize("std", [math.nan, math.inf, -1.0, "wide", None, [1.0]])
def test_the_std_of_a_reward_is_a_number(kind: str, std: Any) -> None:
    with pytest.raises(InputError, match=r"reward\.std must be"):
        RewardDistribution(kind, std)
