"""Changed plan files, sealed again; `scripts/plan_mutations` loads as many as requested.

The party that compiles a plan can write any file. So each seed changes a file of one kind of plan,
or mixes several, and encodes it canonically. Loading must refuse it with an InputError, or return a
plan whose certificate is correct for the numbers and choices that run. `plan_accounts` has the
second account, with which certificates are compared.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import os
import re
import resource
import signal
import struct
import sys
import time
from collections import Counter
from functools import cache
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import federation
import federation_of_all
import msgspec
import numpy as np
from exchanges import spec_of_experts
from federation_of_all import KINDS
from plan_accounts import Unknown, gaussian_epsilon, linear_mu

from fastfed import InputError
from fastfed.deployment import plans
from fastfed.deployment.folder import extended
from fastfed.privacy.account import released
from fastfed.privacy.certificate import ClaimCondition, Condition

FIELDS = (
    "format", "name", "algorithm", "horizon", "keys", "numbers", "silos", "hub", "helper",
    "calendar", "schema", "least", "explore", "extends", "influence",
)  # fmt: skip
AT = {name: i for i, name in enumerate(FIELDS)}
#: Seconds and bytes that loading one file may take at most.
SECONDS, BYTES = 5.0, 1 << 30
#: How far a certificate may be below the second account; how far apart both count as equal.
BELOW, EQUAL, EQUAL_BITS = 1e-8, 1e-6, 0.03
#: Numbers may differ from the derived ones by 2^-20 of the largest number of an array.
NEAR = 2.0**-20 * (1.0 + 1e-9)


class Broken(AssertionError):
    """Raised if a file is loaded that should be refused, or has a wrong account."""


# ---- honest files --------------------------------------------------------------------------------

#: Changes of a spec's [system] for honest plans; changes that compiling refuses are left out.
SYSTEMS: tuple[dict[str, Any], ...] = (
    {"epsilon": 2.0}, {"epsilon": 0.5}, {"delta": 1e-5}, {"delta": 1e-9},
    {"epsilon": 2.0, "delta": 1e-5},
)  # fmt: skip
LINEAR: tuple[dict[str, Any], ...] = (
    {"batch_size": 4}, {"batch_size": 10}, {"horizon": 40}, {"release": "factorised"},
    {"release": "toeplitz"}, {"release": "honaker"}, {"release": "buffered"},
    {"relation": "zero-out"}, {"returning": 2}, {"protects": "reward"},
    {"calibration": "theorem"}, {"calibration": "published-code"}, {"lazy": False},
    {"honest_fraction": 0.5}, {"vector_scale": 0.5}, {"colluders": 0}, {"colluders": 2},
    {"layout": "iid"}, {"covariance_ratio": 2.0}, {"clip": False}, {"share": 0.5},
    {"reward_centre": 0.5}, {"silo_epsilon": [1.0, 2.0, 4.0]}, {"radius": "theorem"},
    {"batch_size": None, "batch_first": 2, "batch_ratio": 1.5}, {"bonus": 0.5}, {"score": "greedy"},
    {"protocol": "silo-ldp"}, {"protocol": "silo-ldp-prefix"}, {"protocol": "central"},
    {"failure_probability": 0.05}, {"tie_bonus": 0.5}, {"regularizer": 50.0}, {"sieve": 1.0},
    {"sieve": 0.1}, {"bonus": 0.3, "ledger": 0.5}, {"release": "factorised", "saturation": 20.0},
)  # fmt: skip
OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    "robin": ({"initial_phases": 3}, {"diversity": 0.1}, {"clip": False}, {"horizon": 80}),
    "fed-svt": ({"phase_length": 20}, {"switches": 2}, {"threshold": 8.0}, {"optimal_loss": 0.1}),
    "fed-dp-ope-stoch": ({"horizon": 31}, {"smoothness": 30.0}, {"protect": "messages"}),
    "feducb": ({"batch_size": 4}, {"horizon": 40}, {"private": False}, {"schedule": "determinant"}),
}
TABLES: tuple[dict[str, Any], ...] = (
    {"norm": 2.0}, {"federation": {"name": "other", "least": 3}},
    {"federation": {"explore": 0.1}}, {"federation": {"influence": 0.5}},
    {"calendar": {"start": 5000}}, {"calendar": {"period": 200}}, {"silos": 4}, {"columns": 3},
)  # fmt: skip


def spec_of(kind: str) -> dict[str, Any]:
    """Return the spec of a kind of plan, as `federation_of_all` compiles it."""
    budget = {"epsilon": 1.0, "delta": 1e-6}
    if kind in federation_of_all.EXPERTS:
        keys = {"algorithm": kind, **federation_of_all.EXPERTS[kind]}
        return spec_of_experts(keys | ({"threshold": 4.0} if "svt" in kind else {}))
    if kind == "robin":
        system = {"algorithm": kind} | federation_of_all.ROBIN | budget
        return federation.spec() | {"system": system}
    if kind == "records":
        spec = federation.spec() | federation_of_all.RECORDS
        del spec["norm"]
        return spec
    if kind == "silo-ldp factorised":
        return federation.spec(system={"batch_size": 5, "release": "factorised"})
    if kind == "silo-ldp clocks":
        return federation.clocked_spec({"rates": [0.5]})
    if kind == "extended":
        return {
            "system": {"horizon": 10, "batch_size": 5, **budget},
            "calendar": dict(federation_of_all.LATER),
        }
    return federation.spec(kind)


def changes_of(kind: str) -> list[dict[str, Any]]:
    """Return changes of the spec of a kind, each a mapping of its tables."""
    keys = OTHERS.get(kind, LINEAR)
    return [{"system": system_keys} for system_keys in (*SYSTEMS, *keys)] + list(TABLES)


@cache
def honest(kind: str, number: int = -1) -> plans.DeployedPlan | None:
    """Return the plan of a kind, or of its spec after one change; None if it is refused."""
    if number < 0:
        return federation_of_all.plan(kind)
    spec = copy.deepcopy(spec_of(kind))
    for table, change in changes_of(kind)[number].items():
        if table == "silos":
            spec["silos"] = [federation.party(f"silo{i}") for i in range(change)]
        elif table == "columns":
            name = "e" if kind in federation_of_all.EXPERTS else "x"
            spec["columns"] = [
                {"name": f"{name}{i}", "low": 0.0, "high": 1.0} for i in range(change)
            ]
        elif isinstance(change, dict):
            spec[table] = spec.get(table, {}) | change
            spec[table] = {k: v for k, v in spec[table].items() if v is not None}
        else:
            spec[table] = change
    try:
        if kind == "extended":
            return extended(spec, federation_of_all.plan("silo-ldp"))
        return plans.compile_plan(spec)
    except InputError:
        return None


def some_honest(rng: Random, kind: str) -> plans.DeployedPlan:
    """Return the plan of a kind, half of the time after a change of its spec."""
    actual = honest(kind, rng.randrange(len(changes_of(kind)))) if rng.random() < 0.6 else None
    return actual or federation_of_all.plan(kind)


def another_honest(rng: Random, kind: str) -> plans.DeployedPlan:
    """Return a plan of a kind after a change of its spec that can be compiled."""
    numbers = list(range(len(changes_of(kind))))
    rng.shuffle(numbers)
    base = federation_of_all.plan(kind)
    actual = (honest(kind, number) for number in numbers)
    return next(plan for plan in actual if plan is not None and plan.digest != base.digest)


def document(plan: plans.DeployedPlan) -> list[Any]:
    """Return all fields of a plan's file."""
    content = msgspec.msgpack.decode(msgspec.msgpack.decode(plan.as_bytes())[0])
    return content + [None] * (len(FIELDS) - len(content))


def encoded(fields: Any) -> bytes:
    """Return the canonical encoding, in which trailing fields that are None are left out."""
    if isinstance(fields, list):
        fields = list(fields)
        while len(fields) > AT["extends"] and fields[-1] is None:
            fields.pop()
    return msgspec.msgpack.encode(fields)


def sealed(fields: Any, signatures: Any = None) -> bytes:
    """Return a plan file of these fields."""
    return msgspec.msgpack.encode([encoded(fields), signatures or {}])


# ---- numbers of a document -----------------------------------------------------------------------


class Place:
    """A number of a document: an item of a list or dict, or 8 bytes of an array."""

    def __init__(self, box: Any, key: Any, offset: int = -1) -> None:
        self.box, self.key, self.offset = box, key, offset

    def get(self) -> Any:
        """Return the value here: an entry of the box, or a number at an offset of its bytes."""
        value = self.box[self.key]
        return value if self.offset < 0 else struct.unpack_from("<d", value, self.offset)[0]

    def put(self, value: Any) -> None:
        """Store a value here."""
        if self.offset < 0:
            self.box[self.key] = value
            return
        data = bytearray(self.box[self.key])
        try:
            data[self.offset : self.offset + 8] = struct.pack("<d", value)
        except (struct.error, OverflowError, TypeError):
            data[self.offset : self.offset + 8] = struct.pack("<d", math.nan)
        self.box[self.key] = bytes(data)


def places(value: Any, arrays: bool = False) -> list[Place]:
    """Return the places of all numbers in a document's part; with `arrays` also those in bytes."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    collected = []
    for key, item in items:
        if isinstance(item, bool) or item is None:
            continue
        if isinstance(item, int | float):
            collected.append(Place(value, key))
        elif isinstance(item, list | dict):
            collected += places(item, arrays)
        elif arrays and isinstance(item, bytes) and len(item) % 8 == 0:
            collected += [Place(value, key, offset) for offset in range(0, len(item), 8)]
    return collected


def containers(value: Any) -> list[Any]:
    """Return all lists and dicts of a document."""
    items: Any = value.values() if isinstance(value, dict) else value
    nested = [b for i in items if isinstance(i, list | dict) for b in containers(i)]
    return [value, *nested]


def some_place(rng: Random, fields: list[Any]) -> Place:
    """Return the place of a number in the document, most often in its field "numbers"."""
    chance = rng.random()
    if chance < 0.7:
        return rng.choice(places(fields[AT["numbers"]], arrays=True))
    return rng.choice(places(fields[AT["keys"]] if chance < 0.85 else fields))


NUMBERS = (
    0, 1, 2, -1, 3, 5, 64, 255, 10_000, 10_001, 2**31, 2**32, 2**33, 2**53 + 1, 2**63 - 1,
    2**64 - 1, -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-6, math.nan, math.inf, -math.inf, 1e308, -1e308,
    5e-324, 1e-300, 1e9, True, False,
)  # fmt: skip
TEXTS = (
    "", "silo-ldp", "central", "replace", "zero-out", "reward", "tree", "factorised", "exact",
    "theorem", "published-code", "users", "aggregate", "individual", "hub", "silo0", "helper",
    "\x1b[2J", "status proven\n", "\0", "x" * 5000, "\u202e", "1", "nan", "private-fedlinucb",
    "feducb", "robin", "fed-svt", "fed-dp-ope-stoch", "linucb-ldp", "secure-sum", "shuffle-vector",
    "shuffle-amplified", "none", "silo-ldp-prefix", "toeplitz", "honaker", "buffered", "iid",
)  # fmt: skip


def hostile(rng: Random, depth: int = 0) -> Any:
    """Return any value that msgpack can encode."""
    choice = rng.randrange(8)
    if choice < 3:
        return rng.choice(NUMBERS)
    if choice < 5:
        return rng.choice(TEXTS)
    if choice == 5:
        return rng.choice((None, b"", bytes(8), bytes(32), rng.randbytes(32), bytes(80_000)))
    if choice == 6 and depth < 3:
        return [hostile(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {str(rng.choice(TEXTS)): hostile(rng, 3)} if depth < 3 else None


# ---- mutations -----------------------------------------------------------------------------------
# Each takes the fields of an honest file, and may change them, or return the bytes of a file.


def ulp(rng: Random, fields: list[Any], kind: str) -> None:
    """Move a number to the next double, or by 1."""
    place = some_place(rng, fields)
    value, direction = place.get(), rng.choice((-1, 1))
    if isinstance(value, int):
        place.put(value + direction)
    elif math.isfinite(value):
        place.put(math.nextafter(value, direction * math.inf))


def nudge(rng: Random, fields: list[Any], kind: str) -> None:
    """Move a number by 1e-12 to 1e-3 of its size."""
    place = some_place(rng, fields)
    factor = 1.0 + rng.choice((-1, 1)) * 10.0 ** rng.uniform(-12, -3)
    value = place.get()
    if abs(value) < 1e300:
        place.put(value * factor)


GROUPS = (
    ("noise_std.",), ("noise_std.", "privacy.exact"), ("radius.", "regularizer"), ("privacy.",),
    ("secure.",), ("encoding.",), ("clip.",), ("factor.",), ("means",), ("phases",), ("noise.",),
    ("local.",), ("",), ("noise_std.", "factor."), ("secure.", "factor.", "noise_std."),
)  # fmt: skip


def _grouped(numbers: dict[str, Any], group: tuple[str, ...]) -> list[Place]:
    """Return the places of all floats among the numbers whose keys begin with `group`."""
    box = {key: value for key, value in numbers.items() if key.startswith(group)}
    actual = places(box, arrays=True)
    for place in actual:
        if place.box is box:
            place.box = numbers
    return [p for p in actual if isinstance(p.get(), float)]


def nudge_group(rng: Random, fields: list[Any], kind: str) -> None:
    """Multiply all floats of one mechanism by one factor, by about what rounding may explain."""
    factor = 1.0 + rng.choice((-1, 1)) * 2.0 ** rng.uniform(-24, -18)
    for place in _grouped(fields[AT["numbers"]], rng.choice(GROUPS)):
        if abs(place.get()) < 1e300:
            place.put(place.get() * factor)


def nudge_apart(rng: Random, fields: list[Any], kind: str) -> None:
    """Move the floats of one mechanism by up to 2^-20, each in a different direction."""
    for place in _grouped(fields[AT["numbers"]], rng.choice(GROUPS)):
        if abs(place.get()) < 1e300:
            place.put(place.get() * (1.0 + rng.choice((-1, 0, 1)) * 2.0**-20 * rng.random()))


def scale(rng: Random, fields: list[Any], kind: str) -> None:
    """Halve, double or negate a number, or make it huge."""
    place = some_place(rng, fields)
    value, factor = place.get(), rng.choice((0.5, 2, 1e9, 1e-9, -1, 0))
    if isinstance(value, int) and factor != 1e-9:
        place.put(int(value * factor) if abs(value * factor) < 2**63 else 2**63)
    elif abs(value) < 1e290:
        place.put(value * factor)


def swap_numbers(rng: Random, fields: list[Any], kind: str) -> None:
    """Swap two numbers of the file."""
    place, other_place = some_place(rng, fields), some_place(rng, fields)
    first, second = place.get(), other_place.get()
    place.put(second)
    other_place.put(first)


def hostile_value(rng: Random, fields: list[Any], kind: str) -> None:
    """Replace any item by a value of any type."""
    box = rng.choice(containers(fields))
    keys = list(box) if isinstance(box, dict) else list(range(len(box)))
    if keys:
        box[rng.choice(keys)] = hostile(rng)


def other_kind(rng: Random, fields: list[Any], kind: str) -> None:
    """Replace a field by that of a plan of a different kind."""
    other = document(some_honest(rng, rng.choice(KINDS)))
    for name in rng.sample(FIELDS, rng.choice((1, 1, 2, 3))):
        fields[AT[name]] = other[AT[name]]


def choices_with_numbers(rng: Random, fields: list[Any], kind: str) -> None:
    """Combine the choices of one plan with all or some numbers of a different plan."""
    other = document(some_honest(rng, rng.choice(KINDS)))
    numbers, foreign = fields[AT["numbers"]], other[AT["numbers"]]
    if rng.random() < 0.4:
        fields[AT["numbers"]] = foreign
        return
    group = rng.choice(GROUPS)
    keep_names = rng.random() < 0.5
    for key, value in foreign.items():
        if key.startswith(group) and (key in numbers or not keep_names):
            numbers[key] = value
    fields[AT["numbers"]] = dict(sorted(numbers.items()))


def keys(rng: Random, fields: list[Any], kind: str) -> None:
    """Add, remove or rename a key, or change the type of its value."""
    name = rng.choice(("keys", "numbers"))
    box = fields[AT[name]]
    key, choice = rng.choice(list(box)), rng.randrange(5)
    if choice == 0:
        del box[key]
    elif choice == 1:
        box[rng.choice(TEXTS) or key + "."] = hostile(rng)
    elif choice == 2:
        box[key + rng.choice((".x", " ", "\0", "[0]"))] = box.pop(key)
    elif choice == 3:
        other = document(some_honest(rng, rng.choice(KINDS)))[AT[name]]
        other_key = rng.choice(list(other))
        box[other_key] = other[other_key]
    else:
        value = box[key]
        box[key] = rng.choice(
            [str(value), [value], {key: value}, None, bool(value), repr(value).encode()]
            + ([int(value)] if isinstance(value, float) and math.isfinite(value) else [])
            + ([float(value)] if isinstance(value, int) else [])
        )
    fields[AT[name]] = dict(sorted(box.items()))


def change_list(rng: Random, fields: list[Any], kind: str) -> None:
    """Shorten, lengthen or reorder a list."""
    box = rng.choice([b for b in containers(fields) if isinstance(b, list) and b])
    choice, index = rng.randrange(5), rng.randrange(len(box))
    if choice == 0:
        del box[index]
    elif choice == 1:
        box.insert(index, copy.deepcopy(rng.choice(box)))
    elif choice == 2:
        rng.shuffle(box)
    elif choice == 3:
        box.append(hostile(rng))
    else:
        box[:] = box * rng.choice((0, 2, 50))


def parties(rng: Random, fields: list[Any], kind: str) -> None:
    """Swap, repeat, remove or rename parties and their keys."""
    silos, hub, helper = (fields[AT[name]] for name in ("silos", "hub", "helper"))
    everybody = [*silos, hub, *([helper] if helper else [])]
    party, other_party = rng.sample(everybody, 2)
    choice = rng.randrange(8)
    if choice == 0:
        party[1:], other_party[1:] = other_party[1:], party[1:]
    elif choice == 1:
        key_index = rng.choice((1, 2))
        party[key_index] = other_party[key_index]
    elif choice == 2:
        party[0] = rng.choice(
            (other_party[0], "hub", "helper", "silo0 ", "\x1b[2J", "s" * 300, "Silo0", "")
        )
    elif choice == 3:
        silos.append(copy.deepcopy(rng.choice(everybody)))
    elif choice == 4:
        silos.remove(rng.choice(silos))
    elif choice == 5:
        rng.shuffle(silos)
    elif choice == 6:
        party[1], party[2] = party[2], party[1]
    else:
        key_index = rng.choice((1, 2))
        party[key_index] = rng.choice(
            (bytes(32), b"\x01" + bytes(31), rng.randbytes(32), b"\xff" * 32, b"")
        )


def calendar(rng: Random, fields: list[Any], kind: str) -> None:
    """Move, add or remove dates."""
    dates = fields[AT["calendar"]]
    choice = rng.randrange(7)
    if choice == 0:
        shift = rng.choice((-2000, -1, 1, 100, 10**9, 2**40))
        fields[AT["calendar"]] = [dates[0] + shift, [c + shift for c in dates[1]], *dates[2:]]
    elif choice == 1:
        index = rng.randrange(len(dates[1]))
        dates[1][index] += rng.choice((-100, -50, 1, 100, 0.5))
    elif choice == 2:
        dates[1].append(dates[1][-1] + 100)
    elif choice == 3:
        dates[1].pop(rng.randrange(len(dates[1])))
    elif choice == 4:
        dates[rng.choice((0, 2, 3))] = rng.choice((0, -1, 1, 10**6, 2**53, 0.5, 1e300))
    elif choice == 5:
        dates[1][:] = range(1100, 1100 + 100 * rng.choice((1, 40, 10_001)), 100)
    else:
        size = rng.choice((0, 2, 20_000))
        fields[AT["horizon"]] = size
        dates[1][:] = [1100 + i for i in range(size)]


def helper(rng: Random, fields: list[Any], kind: str) -> None:
    """Add, remove or exchange the helper, the least set, exploration or the cap."""
    choice = rng.randrange(5)
    if choice < 2:
        actual = document(federation_of_all.plan("secure-sum"))[AT["helper"]]
        fields[AT["helper"]] = None if fields[AT["helper"]] else actual
        if choice == 1 and fields[AT["helper"]]:
            fields[AT["helper"]] = list(rng.choice((fields[AT["hub"]], *fields[AT["silos"]])))
            fields[AT["helper"]][0] = rng.choice(("helper", fields[AT["helper"]][0]))
    elif choice == 2:
        fields[AT["least"]] = rng.choice((0, 1, 2, 3, 4, -1, 2.5, True, 2**40))
    elif choice == 3:
        fields[AT["explore"]] = rng.choice((0, 0.0, 0.1, 1.0, 1, -0.1, 1.1, math.nan, True))
    else:
        fields[AT["influence"]] = rng.choice((0.0, 0.5, 1.0, 1, -1.0, math.nan, 1e308, None))


def chain(rng: Random, fields: list[Any], kind: str) -> None:
    """Let a plan continue a different plan, itself, or a long chain of plans."""
    choice = rng.randrange(6)
    before = document(some_honest(rng, rng.choice((*KINDS, "extended", kind))))
    later = document(federation_of_all.plan("extended"))
    reason = later[AT["extends"]][2]
    if choice == 0:
        fields[AT["extends"]] = [encoded(before), b"", reason]
    elif choice == 1:
        # Move the dates after those of the earlier plan, so that only other fields can be wrong.
        fields[AT["extends"]] = [encoded(before), b"", reason]
        shift = before[AT["calendar"]][1][-1] + 1000 - fields[AT["calendar"]][0]
        dates = fields[AT["calendar"]]
        fields[AT["calendar"]] = [dates[0] + shift, [c + shift for c in dates[1]], *dates[2:]]
        if rng.random() < 0.5:
            for name in ("silos", "hub", "helper"):
                fields[AT[name]] = before[AT[name]]
    elif choice == 2:
        depth, encoded_plan = rng.choice((2, 3, 20, 200)), encoded(before)
        for number in count(1):
            dates = fields[AT["calendar"]]
            shift = 2000 * number + before[AT["calendar"]][1][-1] - dates[0]
            fields[AT["calendar"]] = [dates[0] + shift, [c + shift for c in dates[1]], *dates[2:]]
            fields[AT["extends"]] = [encoded_plan, b"", reason]
            if number == depth:
                break
            encoded_plan = encoded(fields)
    elif choice == 3:
        fields[AT["extends"]] = [encoded(later), rng.randbytes(rng.choice((0, 32, 500))), reason]
    elif choice == 4:
        fields[AT["extends"]] = [encoded(before), b"", rng.choice((*TEXTS, "features", None))]
    elif fields[AT["extends"]] and rng.random() < 0.6:
        inner = msgspec.msgpack.decode(fields[AT["extends"]][0])
        inner += [None] * (len(FIELDS) - len(inner))
        change = rng.choice((ulp, nudge_group, scale, keys, parties, calendar, helper))
        change(rng, inner, "silo-ldp")
        fields[AT["extends"]][0] = encoded(inner)
    else:
        fields[AT["extends"]] = hostile(rng)


def flipped(rng: Random, fields: list[Any], kind: str) -> bytes:
    """Flip bytes of the document and seal it again, or flip bytes of the file."""
    in_document = rng.random() < 0.7
    data = bytearray(encoded(fields) if in_document else sealed(fields))
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        index, choice = rng.randrange(len(data)), rng.randrange(6)
        if choice < 3:
            data[index] ^= 1 << rng.randrange(8)
        elif choice == 3:
            del data[index : index + rng.choice((1, 8, 10_000))]
        elif choice == 4:
            data[index:index] = rng.randbytes(rng.randrange(1, 9))
        else:
            data[index : index + 5] = rng.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb")) + b"\xff" * 4
        if not data:
            break
    return msgspec.msgpack.encode([bytes(data), {}]) if in_document else bytes(data)


def loose(rng: Random, value: Any, chance: float) -> bytes:
    """Encode in msgpack with some headers longer than necessary."""
    longer = rng.random() < chance
    if isinstance(value, dict):
        items = list(value.items())
        if longer:
            rng.shuffle(items)
        header = b"\xdf" + struct.pack(">I", len(items))
        if not longer:
            header = msgspec.msgpack.encode(dict.fromkeys(map(str, range(len(items)))))[:1]
            header = header if len(items) < 16 else b"\xde" + struct.pack(">H", len(items))
        if longer and items and rng.random() < 0.3:
            items.append(items[0])
            header = b"\xdf" + struct.pack(">I", len(items))
        return header + b"".join(loose(rng, k, chance) + loose(rng, v, chance) for k, v in items)
    if isinstance(value, list):
        header = b"\xdd" + struct.pack(">I", len(value))
        if not longer:
            short = len(value) < 16
            header = (
                bytes([0x90 + len(value)]) if short else b"\xdc" + struct.pack(">H", len(value))
            )
        return header + b"".join(loose(rng, item, chance) for item in value)
    if longer and isinstance(value, str):
        data = value.encode()
        return rng.choice((b"\xdb", b"\xc6")) + struct.pack(">I", len(data)) + data
    if longer and isinstance(value, bytes):
        return rng.choice((b"\xc6", b"\xdb")) + struct.pack(">I", len(value)) + value
    if longer and isinstance(value, bool):
        return msgspec.msgpack.encode(int(value))
    if longer and isinstance(value, int) and 0 <= value < 2**63:
        return rng.choice((b"\xcf", b"\xd3")) + struct.pack(">Q", value)
    if longer and isinstance(value, float) and abs(value) < 1e38:
        if value.is_integer():
            return msgspec.msgpack.encode(int(value))
        return b"\xca" + struct.pack(">f", value)
    return msgspec.msgpack.encode(value)


def spelled(rng: Random, fields: list[Any], kind: str) -> bytes:
    """Encode the same document in a form that is not canonical."""
    choice = rng.randrange(6)
    if choice < 3:
        while len(fields) > AT["extends"] and fields[-1] is None:
            fields.pop()
        inner = loose(rng, fields, rng.choice((0.01, 0.05, 0.5)))
        return msgspec.msgpack.encode([inner, {}])
    if choice == 3:
        suffix = rng.choice((b"\xc0", b"\0", b"\x90", rng.randbytes(3)))
        if rng.random() < 0.5:
            return msgspec.msgpack.encode([encoded(fields) + suffix, {}])
        return sealed(fields) + suffix
    if choice == 4:
        named = dict(zip(FIELDS, fields, strict=True))
        return msgspec.msgpack.encode([msgspec.msgpack.encode(named), {}])
    outer = rng.choice(
        [[encoded(fields)], [encoded(fields), {}, {}], [fields, {}], {"document": encoded(fields)},
         [msgspec.msgpack.encode(fields), {}], [encoded(fields), None], [encoded(fields), []]]
    )  # fmt: skip
    return loose(rng, outer, 0.3) if rng.random() < 0.3 else msgspec.msgpack.encode(outer)


def signed(rng: Random, fields: list[Any], kind: str) -> bytes:
    """Add invalid signatures."""
    names = [p[0] for p in fields[AT["silos"]]] + ["hub", "helper", "nobody", ""]
    signatures = {
        rng.choice(names): rng.choice((bytes(64), rng.randbytes(64), b"", rng.randbytes(63), None))
        for _ in range(rng.randrange(1, 4))
    }
    return sealed(fields, signatures)


def guided(rng: Random, fields: list[Any], kind: str) -> None:
    """Move a plan's file towards the base plan of its kind.

    ``fields`` is the file of a plan with other choices than the base plan. Some of its items get
    the values of the base plan, or (the last case) its numbers become weighted means of both plans'
    numbers.
    """
    base = document(federation_of_all.plan(kind))
    choice, numbers, old = rng.randrange(7), fields[AT["numbers"]], base[AT["numbers"]]
    if choice == 0:
        different = [k for k in old if k in numbers and old[k] != numbers[k]]
        if different:
            key = rng.choice(different)
            numbers[key] = old[key]
    elif choice == 1:
        box, base_keys = fields[AT["keys"]], base[AT["keys"]]
        different = [k for k in base_keys if box.get(k) != base_keys[k]]
        if different:
            key = rng.choice(different)
            box[key] = base_keys[key]
    elif choice == 2:
        group = rng.choice(GROUPS)
        for key in old:
            if key.startswith(group) and key in numbers:
                numbers[key] = old[key]
    elif choice == 3:
        name = rng.choice([n for n in FIELDS if base[AT[n]] != fields[AT[n]]] or ["name"])
        fields[AT[name]] = base[AT[name]]
    elif choice == 4:
        # Restore all numbers except those of one mechanism.
        group = rng.choice(GROUPS)
        for key in old:
            if not key.startswith(group) and key in numbers:
                numbers[key] = old[key]
    elif choice == 5:
        fields[AT["keys"]] = base[AT["keys"]]
        for key in ("privacy.budget.epsilon", "privacy.budget.delta"):
            numbers[key] = old[key]
    else:
        share = rng.random()
        for place in _grouped(numbers, ("",)):
            if place.offset < 0 and place.box is numbers and isinstance(old.get(place.key), float):
                place.put(place.get() * share + old[place.key] * (1.0 - share))


def consistent(rng: Random, fields: list[Any], kind: str) -> None:
    """Scale the noise, and adapt the numbers that follow from it: epsilon, radii, coins, bits."""
    factor = rng.choice((0.5, 0.9, 0.999, 1.0 - 2.0**-20, 1.0 - 2.0**-21, 1.0 - 2.0**-19, 2.0))
    numbers = fields[AT["numbers"]]
    noise = (
        "noise_std.", "secure.trials", "encoding.noise_bits", "noise.", "phases", "radius.",
        "regularizer", "means",
    )  # fmt: skip
    some = noise if rng.random() < 0.5 else noise[:5]
    for place in _grouped(numbers, some):
        if abs(place.get()) < 1e300 and "budget" not in str(place.key):
            place.put(place.get() * factor)
    if "secure.trials" in numbers:
        numbers["secure.trials"] = [
            str(int(int(n) * factor * factor) // 2 * 2) for n in numbers["secure.trials"]
        ]
    if "encoding.noise_bits" in numbers and abs(factor - 1.0) > 1e-5:
        numbers["encoding.noise_bits"] = [
            int(b * factor * factor) for b in numbers["encoding.noise_bits"]
        ]
    # Epsilon to first order; a loader that trusts it would print a certificate of this epsilon.
    if rng.random() < 0.7:
        numbers["privacy.exact"] = [e / factor for e in numbers["privacy.exact"]]
    if rng.random() < 0.3:
        numbers["privacy.budget.epsilon"] = numbers["privacy.budget.epsilon"] / factor
        fields[AT["keys"]]["epsilon"] = numbers["privacy.budget.epsilon"]


def less_noise(rng: Random, fields: list[Any], kind: str) -> None:
    """Reduce Gaussian noise, or the coins of a secure sum, by about what rounding may explain.

    The sealed epsilon is changed to that of the noise, so that only derived numbers can differ.
    """
    numbers = fields[AT["numbers"]]
    factor = 1.0 + rng.choice((-1, -1, 1)) * 2.0**-20 * rng.choice((rng.random(), 0.99, 1.01))
    source = loaded(sealed(fields))
    if source is None or not source.kind.linear or source.executed.protocol.bits:
        nudge_group(rng, fields, kind)
        return
    mu, delta = linear_mu(source.executed), numbers["privacy.budget.delta"]
    for place in _grouped(numbers, ("noise_std.",)):
        place.put(place.get() * factor)
    if "secure.trials" in numbers:
        trials = [int(int(n) * factor**2) // 2 * 2 for n in numbers["secure.trials"]]
        numbers["secure.trials"] = [str(n) for n in trials]
        executed = source.executed.secure
        for part, n in zip(("bias", "off_diagonal", "diagonal"), trials, strict=True):
            changed = msgspec.structs.replace(executed, trials=(n, n, n))
            numbers[f"noise_std.{part}"] = changed.stds[0]
    added_epsilon = gaussian_epsilon(mu / factor, delta) - gaussian_epsilon(mu, delta)
    numbers["privacy.exact"] = [e + added_epsilon for e in numbers["privacy.exact"]]


@cache
def loaded(data: bytes) -> plans.DeployedPlan | None:
    """Return the plan that a file contains, or None if `plans.load` refuses the file."""
    try:
        return plans.load(data)
    except InputError:
        return None


SINGLE = (
    ulp, nudge, nudge_group, nudge_apart, scale, swap_numbers, hostile_value, other_kind,
    choices_with_numbers, keys, change_list, parties, calendar, helper, chain, guided, consistent,
)  # fmt: skip
RAW = (flipped, spelled, signed)


def mutated(seed: int, kinds: tuple[str, ...] = KINDS) -> tuple[str, str, bytes, bytes]:
    """Return kind of plan, kind of mutation, the file, and the honest file that it came from."""
    rng = Random(f"plans {seed}")
    kind = rng.choice(kinds)
    change: Any = rng.choice((*SINGLE, guided, consistent, less_noise, *RAW, None))
    plan = some_honest(rng, kind) if rng.random() < 0.3 or change is chain else None
    if change is guided:
        plan = another_honest(rng, kind)
    plan = plan or federation_of_all.plan(kind)
    fields = document(plan)
    if change is not None:
        data = change(rng, fields, kind)
        return kind, change.__name__, data or sealed(fields), plan.as_bytes()
    for next_change in rng.sample(SINGLE, rng.choice((2, 2, 3, 4))):
        try:
            next_change(rng, fields, kind)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError):
            # An earlier change removed what this change needs.
            continue
    if rng.random() < 0.1:
        try:
            return kind, "several", rng.choice(RAW)(rng, fields, kind), plan.as_bytes()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError):
            pass
    return kind, "several", sealed(fields), plan.as_bytes()


def sized(seed: int) -> tuple[str, str, bytes, bytes]:
    """Return a small file, as `mutated` does, whose choices require many releases or hard sums."""
    rng = Random(f"sizes {seed}")
    kind = rng.choice(KINDS)
    plan = federation_of_all.plan(kind)
    fields = document(plan)
    box = fields[AT["keys"]]
    horizon = rng.choice((300, 1024, 4096, 10_000, 2**17, 2**20, 2**31 - 1))
    if kind == "fed-dp-ope-stoch":
        box["smoothness"] = 10.0 ** rng.uniform(0, 9)
    elif kind == "fed-svt":
        box["phase_length"] = max(1, horizon // rng.choice((10, 100, 9999)))
        box["switches"] = rng.choice((1, 50, 5000))
    elif kind == "robin":
        box["initial_phases"] = rng.choice((1, 5, 20))
    else:
        releases = rng.choice((300, 1024, 4096, 10_000))
        box["batch_size"] = max(1, horizon // releases)
        if kind not in ("feducb",):
            if rng.random() < 0.5:
                box |= {
                    "batch_size": None,
                    "batch_first": rng.choice((1, 2, 50)),
                    "batch_ratio": 1.0 + 10.0 ** rng.uniform(-3, -0.5),
                }
            box["release"] = rng.choice(("tree", "flat", "factorised", "honaker", "buffered"))
            if kind.startswith("secure"):
                box["release"] = "factorised"
    fields[AT["horizon"]] = horizon
    if "horizon" in fields[AT["numbers"]]:
        fields[AT["numbers"]]["horizon"] = horizon
    return kind, "sizes", sealed(fields), plan.as_bytes()


# ---- what loads ----------------------------------------------------------------------------------

_WATCHING: list[bool] = []
_WRITES: list[str] = []
_CHANGES = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink",
    "os.chmod", "os.chown", "os.utime", "os.system", "subprocess.Popen", "sqlite3.connect",
    "socket.connect", "shutil.rmtree", "os.putenv",
)  # fmt: skip


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Record what loading a plan would change."""
    if not _WATCHING:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if writes and "__pycache__" not in str(path):
            _WRITES.append(f"open {path} {mode}")
    elif event in _CHANGES:
        _WRITES.append(event)


sys.addaudithook(_watch)


def load(data: bytes) -> plans.DeployedPlan | None:
    """Load a file: return its plan, or None if it is refused."""
    _WRITES.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, plan = time.process_time(), None
    _WATCHING.append(True)
    try:
        plan = plans.load(data)
    except InputError as error:
        # A message quotes an unknown key in full.
        if len(str(error)) > 2000 + 2 * len(data):
            raise Broken(f"the refusal has {len(str(error))} characters") from error
        if any(not c.isprintable() for c in str(error)):
            raise Broken(f"the refusal has characters of control: {str(error)!r}") from error
    except BaseException as error:
        raise Broken(f"loading failed with {type(error).__name__}: {error}") from error
    finally:
        _WATCHING.pop()
    seconds = time.process_time() - started
    if seconds > SECONDS:
        raise Broken(f"loading took {seconds:.1f} s")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > BYTES:
        raise Broken(f"loading took {grown >> 20} MB")
    if _WRITES:
        raise Broken(f"loading changes files: {_WRITES[:3]}")
    return plan


def judged(plan: plans.DeployedPlan, data: bytes) -> str:
    """Compare a plan's certificate with a second account; return the result, or raise Broken."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.decode(data)[0])
    fields += [None] * (len(FIELDS) - len(fields))
    if plan.as_bytes() != data:
        raise Broken("the plan is written again as other bytes than it was read from")
    if plan.digest != sha256(encoded(fields)).digest():
        raise Broken("the digest is not that of choices and numbers")
    check_executed(plan, fields)
    check_parties(plan, fields)
    check_ranges(plan, fields)
    compared = check_sentences(plan, fields)
    certificate = plan.certificate
    actual = check_epsilon(plan) if certificate.status == "proven" else certificate.status
    return actual if compared else f"{actual}; sentences compared with the protocol's alone"


def check_executed(plan: plans.DeployedPlan, fields: list[Any]) -> None:
    """Check that parties use the file's numbers, within the budget of the choices."""
    for path, stored in fields[AT["numbers"]].items():
        value: Any = plan.executed
        for part in re.findall(r"[^.\[\]]+", path):
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        if isinstance(stored, bytes):
            stored_array = np.frombuffer(stored)
            equal = np.array_equal(np.asarray(value).ravel(), stored_array)
        elif isinstance(stored, list):
            equal = [float(v) for v in value] == [float(v) for v in stored]
        else:
            equal = value == stored and type(value) is type(stored)
        if not equal:
            raise Broken(f"{path} is executed as {value!r}, and the file says {stored!r}")
    claimed, budget = plan.certificate.claimed, plan.executed.privacy.budget
    choices = tuple(fields[AT["keys"]].get(k) for k in ("epsilon", "delta"))
    if claimed is None or budget is None:
        return
    if not (claimed.epsilon, claimed.delta) == (budget.epsilon, budget.delta) == choices:
        raise Broken(f"the claim is {claimed}, the budget {budget}, the choices say {choices}")
    if plan.certificate.exact and plan.certificate.exact.delta != claimed.delta:
        raise Broken(f"epsilon is at another delta than claimed: {plan.certificate.exact}")


def strings(value: Any) -> list[str]:
    """Return all texts of a document's part."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def check_parties(plan: plans.DeployedPlan, fields: list[Any]) -> None:
    """Check numbers of parties, periods and columns, and that no key or name is used twice."""
    document, executed = plan.document, plan.executed
    silos, closes = fields[AT["silos"]], fields[AT["calendar"]][1]
    everybody = [*silos, fields[AT["hub"]], fields[AT["helper"]]]
    everybody = [p for p in everybody if p is not None]
    for part, noun in enumerate(("name", "signing key", "key to encrypt to")):
        if len({p[part] for p in everybody}) != len(everybody):
            raise Broken(f"two parties have one {noun}")
    if plan.silos != tuple(p[0] for p in silos) or executed.silos != len(silos):
        raise Broken(f"{executed.silos} silos are accounted for, {len(silos)} take part")
    if not 1 <= fields[AT["least"]] <= len(silos):
        raise Broken(f"a set may have {fields[AT['least']]} of {len(silos)} silos")
    releases = getattr(executed, "releases", None)
    if plan.clocks is not None:
        if max(len(plan.calendar_of(i).closes) for i in range(len(silos))) != releases:
            raise Broken(f"{releases} reports of a silo are accounted for")
        releases = len(plan.clocks.ticks)
    if plan.kind.linear and releases != len(closes):
        raise Broken(f"{releases} releases are accounted for, {len(closes)} periods close")
    if list(document.calendar.closes) != closes or closes != sorted(set(closes)):
        raise Broken(f"periods close at {closes}")
    columns = len(fields[AT["schema"]][0])
    if columns != getattr(executed, "dimension", getattr(executed, "experts", None)):
        raise Broken(f"{columns} columns are not those of the account")
    if plan.kind.linear and plan.plan.protocol.id == "central" and fields[AT["influence"]]:
        raise Broken("a cap on raw sums is loaded")
    explore, cap = fields[AT["explore"]], fields[AT["influence"]]
    if type(explore) is not float or not 0.0 <= explore <= 1.0:
        raise Broken(f"explore is {explore!r}")
    if cap is not None and (type(cap) is not float or not 0.0 < cap < math.inf):
        raise Broken(f"influence is {cap!r}")
    start, _, grace, deadline = fields[AT["calendar"]]
    if not start < closes[0] or not all(type(v) is int and v >= 0 for v in (grace, deadline)):
        raise Broken(f"the calendar is {fields[AT['calendar']]}")
    if any(not text.isprintable() or len(text) > 1000 for text in strings(fields)):
        raise Broken("a text is not printable, or very long")
    helped = fields[AT["helper"]] is not None
    words = plan.kind.linear and (executed.protocol.masked or executed.protocol.bits)
    if helped and not words:
        raise Broken("a helper takes part where nothing is shared")
    if words:
        texts = " ".join(c.text for c in plan.certificate.conditions)
        if ("hub and helper" in texts) != helped:
            raise Broken("the conditions do not say whether there is a helper")


def check_ranges(plan: plans.DeployedPlan, fields: list[Any]) -> None:
    """Check that every record within the ranges has finite features or losses before clipping.

    Infinity is clipped to NaN. A silo cannot send a report with it, or the hub refuses the report,
    so that everybody sees which records a silo has.
    """
    columns, norm, *records = fields[AT["schema"]]
    ranges = [column[1:3] for column in columns]
    for variable in records[0][0] if records else ():
        ranges.append(variable[2:4])
    for low, high in ranges:
        if not math.isfinite(high - low):
            raise Broken(f"a value in [{low}, {high}] is scaled to NaN")
    largest = max(abs(limit) for column in columns for limit in column[1:3])
    if not plan.kind.experts and not math.isfinite(largest / norm):
        raise Broken(f"a value of {largest!r} divided by the norm {norm!r} is clipped to NaN")


# ---- sentences -----------------------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")


def nearly_equal(one: str, two: str) -> bool:
    """Return True if texts are equal up to the last digits of numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", two):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(two), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=2e-3) for a, b in pairs)


#: The caveat if rounding makes the noise a little too small. It is true, so it breaks no check.
EXCEEDED = "the claimed budget is not met; the exact value is what holds"


def texts_of(certificate: Any) -> list[str]:
    """Return all sentences of a certificate and of the certificates under `also`.

    The certificates of several plans together are left out.
    """
    collected = []
    for claim in (certificate, *getattr(certificate, "also", ())):
        if "together with plan" in claim.model:
            continue
        collected += [claim.unit, claim.relation, claim.model, claim.status, claim.source]
        # Other conditions hold if the exact epsilon is within the claim: the numbers show that.
        collected += [c.text for c in claim.conditions]
        collected += [str(c.holds) for c in claim.conditions if type(c) is Condition]
        collected += [*(c for c in claim.caveats if c != EXCEEDED), *claim.noise_std]
    return collected


def check_sentences(plan: plans.DeployedPlan, fields: list[Any]) -> bool:
    """Check that the certificate's texts belong to the protocol and the choices.

    Return False if no spec of these choices is known, so that texts cannot be compared.
    """
    certificate = plan.certificate
    if certificate.model != plan.plan.protocol.model:
        raise Broken(f"{plan.plan.protocol.id} runs, the certificate says {certificate.model!r}")
    if certificate.relation != plan.executed.privacy.budget.relation:
        raise Broken("the relation is not the account's")
    protocol = fields[AT["keys"]].get("protocol")
    if protocol is not None and plan.plan.protocol.id != protocol:
        raise Broken(f"{plan.plan.protocol.id} runs, {protocol} was chosen")
    other = compiled(encoded(choices_of(fields)))
    if other is None:
        return False
    sentences, other_sentences = texts_of(certificate), texts_of(other.certificate)
    for one, two in zip(sentences, other_sentences, strict=False):
        if not nearly_equal(one, two):
            raise Broken(f"the certificate says {one!r}, of the same choices {two!r}")
    if len(sentences) != len(other_sentences):
        raise Broken(
            f"there are {len(sentences)} sentences, of the same choices {len(other_sentences)}"
        )
    # A later plan begins with another model, and has the same noise.
    numbers, derived = fields[AT["numbers"]], document(other)[AT["numbers"]]
    if sorted(numbers) != sorted(derived):
        raise Broken(f"numbers {set(numbers) ^ set(derived)} are not those of the choices")
    for path, value in numbers.items():
        if not near(value, derived[path]):
            raise Broken(f"{path} is {value!r}, of the same choices {derived[path]!r}")
    return True


def near(one: Any, two: Any) -> bool:
    """Return True if numbers or arrays differ by at most rounding; integers by at most 2."""
    a, b = (
        np.frombuffer(v) if isinstance(v, bytes) else np.array(v, float).ravel() for v in (one, two)
    )
    if a.shape != b.shape:
        return False
    integers = all(type(v) is int for v in (one if isinstance(one, list) else [one]))
    limit = max(NEAR * float(np.abs(b).max(initial=0.0)), 2.0 * integers)
    return not a.size or float(np.abs(a - b).max()) <= limit


def choices_of(fields: list[Any]) -> list[Any]:
    """Return a file's choices with standard names, keys and dates, which change no sentence."""
    actual = list(fields)
    base = document(federation_of_all.plan("secure-sum"))
    for name in ("format", "name", "hub"):
        actual[AT[name]] = base[AT[name]]
    actual[AT["numbers"]] = {}
    actual[AT["silos"]] = [f"silo{i}" for i in range(len(fields[AT["silos"]]))]
    actual[AT["helper"]] = base[AT["helper"]] if fields[AT["helper"]] else None
    actual[AT["calendar"]] = [len(fields[AT["calendar"]][1])]
    actual[AT["extends"]] = None
    return actual


@cache
def compiled(choices: bytes) -> plans.DeployedPlan | None:
    """Compile the plan of these choices; None if no spec is known for them."""
    fields = msgspec.msgpack.decode(choices)
    fields += [None] * (len(FIELDS) - len(fields))
    algorithm = fields[AT["algorithm"]]
    if algorithm not in ("private-fedlinucb", "feducb"):
        # Compiling lowers their epsilon, so the epsilon of the spec is known only for honest plans.
        for number in range(-1, len(changes_of(algorithm))):
            plan = honest(algorithm, number)
            if plan and encoded(choices_of(document(plan))) == choices:
                return plan
        return None
    schema, keys = fields[AT["schema"]], fields[AT["keys"]]
    system = {k: v for k, v in keys.items() if v is not None}
    system |= {"algorithm": algorithm, "horizon": fields[AT["horizon"]]}
    spec = federation.spec() | {
        "system": system,
        "federation": {"name": "tests", "least": fields[AT["least"]]},
        "silos": [federation.party(name) for name in fields[AT["silos"]]],
        "calendar": {
            "start": 1000, "grace": 50, "reward_deadline": 250,
            "closes": [1100 + 100 * i for i in range(fields[AT["calendar"]][0])],
        },
    }  # fmt: skip
    for name in ("explore", "influence"):
        if fields[AT[name]]:
            spec["federation"][name] = fields[AT[name]]
    if fields[AT["helper"]]:
        spec["helper"] = {k: v for k, v in federation.party("helper").items() if k != "name"}
    elif keys.get("protocol") in ("secure-sum", "shuffle-vector"):
        spec["federation"]["sum"] = "masks"
    if len(schema) > 2:
        if schema != document(federation_of_all.plan("records"))[AT["schema"]]:
            return None
        del spec["norm"]
        spec |= federation_of_all.RECORDS
    else:
        parts = ("name", "low", "high", "unit")
        spec["columns"] = [
            {k: v for k, v in zip(parts, column, strict=True) if v != ""} for column in schema[0]
        ]
        spec["norm"] = schema[1]
    try:
        return plans.compile_plan(spec)
    except (InputError, ArithmeticError) as error:
        raise Broken(f"it loads, and compiling its choices gives {error!r}") from error


# ---- epsilon -------------------------------------------------------------------------------------


def check_events(plan: plans.DeployedPlan) -> None:
    """Compute the first account again, from the executed numbers, and compare the claim with it."""
    certificate, exact = plan.certificate, plan.certificate.exact
    events = released(plan.executed)
    fresh = max(event.exact() for event in events)
    if exact.epsilon < fresh * (1.0 - 1e-12):
        raise Broken(f"epsilon {exact.epsilon!r} is certified, the events give {fresh!r}")
    claims_hold = [c.holds for c in certificate.conditions if isinstance(c, ClaimCondition)]
    if claims_hold != [exact.epsilon <= certificate.claimed.epsilon]:
        raise Broken(
            f"of epsilon {exact.epsilon!r} and {certificate.claimed} it says {claims_hold}"
        )
    if (EXCEEDED in certificate.caveats) == claims_hold[0]:
        raise Broken(f"the caveats of a certificate beyond its claim: {certificate.caveats}")


def check_epsilon(plan: plans.DeployedPlan) -> str:
    """Compare every epsilon of a proven certificate with both accounts."""
    certificate, exact = plan.certificate, plan.certificate.exact
    check_events(plan)
    if not plan.kind.linear:
        return "equal to its events"
    try:
        mu = linear_mu(plan.executed, certificate.relation)
    except Unknown as unknown:
        return f"equal to its events ({unknown})"
    true_epsilon = gaussian_epsilon(mu, exact.delta)
    if exact.epsilon < true_epsilon * (1.0 - BELOW):
        raise Broken(f"epsilon {exact.epsilon!r} is certified, {true_epsilon!r} is true")
    for entry in certificate.also:
        if entry.exact is not None:
            check_also(plan, entry, true_epsilon)
    limit = EQUAL_BITS if plan.executed.protocol.bits else EQUAL
    return "equal" if exact.epsilon <= true_epsilon * (1.0 + limit) else "larger"


def check_also(plan: plans.DeployedPlan, entry: Any, true_epsilon: float) -> None:
    """Compare the epsilon of a claim under `also`, which has a different trust model."""
    certified, delta = entry.exact.epsilon, entry.exact.delta
    if entry.model.startswith("joint differential privacy"):
        expected = true_epsilon
    elif "together with plan" in entry.model:
        squares, earlier_plan = 0.0, plan
        while earlier_plan is not None:
            squares += linear_mu(earlier_plan.executed, entry.relation) ** 2
            earlier_plan = earlier_plan.earlier
        expected = gaussian_epsilon(math.sqrt(squares), delta)
    elif entry.model.startswith("silo-level local: the server and all other silos"):
        expected = gaussian_epsilon(linear_mu(plan.executed, entry.relation, honest=1), delta)
    elif reports := re.search(r"users of silos? .*, with (\d+) reports?$", entry.model):
        mu = linear_mu(plan.executed, entry.relation, reports=int(reports[1]))
        expected = gaussian_epsilon(mu, delta)
    else:
        raise Broken(f"nothing is known of {entry.model!r}")
    if certified < expected * (1.0 - BELOW):
        raise Broken(f"{entry.model!r}: epsilon {certified!r} is certified, {expected!r} is true")


# ---- runs ----------------------------------------------------------------------------------------


def attempt(seed: int, kinds: tuple[str, ...] = KINDS, sizes: bool = False) -> tuple[str, ...]:
    """Return the outcome of one seed as words to count, or raise Broken."""
    kind, mutation, data, source = sized(seed) if sizes else mutated(seed, kinds)
    if data == source:
        return ("unchanged",)
    try:
        plan = load(data)
        judgement = "refused" if plan is None else judged(plan, data)
    except Broken as broken:
        raise Broken(f"seed {seed} ({kind}, {mutation}): {broken}") from broken
    if judgement == "refused":
        return "mutations", "refused", f"of {kind}", f"by {mutation}"
    return (
        "mutations", "loaded", f"of {kind}", f"by {mutation}", f"loaded, of {kind}",
        f"loaded, by {mutation}", f"loaded, epsilon {judgement}",
    )  # fmt: skip


def _hangs(number: int, frame: Any) -> None:
    """End a load that takes two minutes (a signal handler)."""
    raise Broken("no end after two minutes")


def run(job: tuple[int, int, float, bool, bool]) -> tuple[Counter[str], list[str]]:
    """Return the outcomes of a range of seeds, counted, and a text if a check failed."""
    first, count_, until, keep_going, sizes = job
    total: Counter[str] = Counter()
    broken: list[str] = []
    signal.signal(signal.SIGALRM, _hangs)
    for seed in range(first, first + count_):
        if time.time() > until:
            break
        signal.alarm(120)
        try:
            total.update(attempt(seed, sizes=sizes))
        except Broken as fault:
            broken.append(str(fault) if "seed" in str(fault) else f"seed {seed}: {fault}")
        except Exception as error:
            broken.append(f"seed {seed}: the check failed with {type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        if broken and not keep_going:
            break
    return total, broken


def main() -> int:
    """Load the requested number of files; return 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="scripts/plan_mutations", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start none after these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--keep-going", action="store_true", help="list all that break")
    parser.add_argument("--sizes", action="store_true", help="only choices of many releases")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    started, per_job = time.monotonic(), 250
    broken: list[str] = []
    until = time.time() + arguments.seconds
    end = arguments.first + arguments.count
    flags = arguments.keep_going, arguments.sizes
    jobs = [(i, min(per_job, end - i), until, *flags) for i in range(arguments.first, end, per_job)]
    # Workers inherit the honest plans of all kinds.
    for kind in KINDS:
        for number in range(-1, -1 if arguments.sizes else len(changes_of(kind))):
            plan = honest(kind, number)
            if plan is not None:
                judged(plan, plan.as_bytes())
    print(f"{time.monotonic() - started:10.0f}  seconds to compile honest plans", flush=True)
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for counts, problems in pool.imap(run, jobs):
            total += counts
            broken += problems
            if problems and not arguments.keep_going:
                break
        pool.terminate()
    for what, number in sorted(total.items()):
        print(f"{number:10d}  {what}")
    print(f"{time.monotonic() - started:10.0f}  seconds")
    print("\n".join(broken) or "every file was refused, or is what its certificate says")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
