"""Inputs as users break them: specs, LETOR files and CSVs, made valid and then damaged.

Every maker takes a ``random.Random``. It may be one of hypothesis (``st.randoms``), which then
shrinks failing cases.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import signal
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fastfed import experiments
from fastfed.environments import ENVIRONMENTS
from fastfed.experts import ALGORITHMS as EXPERTS
from fastfed.simulation.systems import ALGORITHMS

#: Numbers that some user will pass.
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 2**31, 2**32, 2**63, 2**64, 2**200, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 5e-324, 1e-9, 0.999999, 1.5, 1e6, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf),
)
TEXTS = (
    *("", " ", "theorem", "exact", "printed", "published-code", "direct", "tree", "honaker"),
    *("toeplitz", "central", "silo-ldp", "silo-ldp-prefix", "shuffle-amplified", "shuffle-vector"),
    *("zero-out", "replace", "iid", "goe1", "goe2", "every-batch", "aggregate", "individual"),
    *("lemma-a2", "lemma-a4", "lemma-c2", "lemma-c4", "proposition-2", "from-noise", "gaussian"),
    *("vector-sum", "quadratic", "linear", "MT", "ring", "complete", "2.4", "2.7", "shared"),
    *("without-replacement", "in-order", "row", "digits", "nan"),
    *("1", "é\u202e\u0000", "\n", "x" * 300),
    *("none", "None", "../..", "/", "~", "math:sqrt", "os:system", ":", "no.such:thing", "𝟙𝟚"),
)  # fmt: skip


class Hang(BaseException):
    """Raised in a case that takes too long; no code of the project may catch it."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise Hang in a body that runs longer than this; on systems without alarms, let it run."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_: object) -> None:
        """Raise Hang."""
        raise Hang(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- specs -----------------------------------------------------------------------------------

BANDITS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fedlinucb", {"batch_size": 5}),
    ("private-fedlinucb", {"batch_size": 5, "epsilon": 1.0, "delta": 1e-5}),
    (
        "private-fedlinucb",
        {
            **{"batch_size": 5, "epsilon": 1.0, "delta": 1e-3},
            **{"protocol": "user-bit", "protects": "reward", "shuffled": True},
        },
    ),
    ("fedlinucb", {"batch_size": 2, "clock": {"rates": [0.3], "asleep": [[0, 9, 20]]}}),
    ("feducb", {"epsilon": 1.0, "delta": 1e-5}),
    ("feducb-decentralized", {"epsilon": 1.0, "delta": 1e-5, "graph": "ring"}),
    ("linucb", {}),
    ("linucb-jdp", {"epsilon": 1.0, "delta": 1e-5}),
    ("linucb-ldp", {"epsilon": 1.0, "delta": 1e-5}),
    ("linucb-sdp-amp", {"epsilon": 0.2, "delta": 0.1, "batch_size": 5}),
    ("linucb-sdp-vec", {"epsilon": 0.2, "delta": 0.1, "batch_size": 5}),
    ("robin", {"epsilon": 2.0, "delta": 1e-5, "initial_phases": 2, "diversity": 0.01}),
    ("local-linucb", {}),
    ("thompson", {"batch_size": 5}),
    ("random", {}),
)
WORLDS = (
    {"kind": "sphere", "dimension": 3, "actions": 5},
    {"kind": "sphere", "dimension": 2, "actions": 3, "reward": {"kind": "gaussian", "std": 0.5}},
    {"kind": "gap", "dimension": 3, "actions": 4, "gap": 0.2},
    {"kind": "fixed-set", "dimension": 3, "actions": 6, "basis_actions": True},
    {"kind": "hard-instance", "dimension": 4},
    {"kind": "no-diversity"},
    {"kind": "rotated", "dimension": 3, "actions": 4, "rotation": 0.5},
    {"kind": "arms", "means": [0.2, 0.7, 0.4]},
    {"kind": "classification", "data": "digits", "dimension": 3},
)
LOSSES = (
    {"kind": "stochastic-losses", "experts": 5},
    {"kind": "stochastic-losses", "experts": 4, "loss": "quadratic"},
    {"kind": "realizable-losses", "experts": 6},
    {"kind": "near-realizable-losses", "experts": 6, "optimal_loss": 2},
    {"kind": "lower-bound-losses", "experts": 4, "theorem": "2.4"},
)


@cache
def figures() -> tuple[dict[str, Any], ...]:
    """Return the shipped figures that need no data."""
    return tuple(f.spec for f in experiments.figures() if not f.needs_data)


@cache
def keys_of_curves() -> tuple[str, ...]:
    """Return every key that a curve may have."""
    algorithm_keys = {
        key for name in ALGORITHMS.builtin for key in ALGORITHMS[name].config.__struct_fields__
    }
    return (
        *sorted(algorithm_keys),
        "label",
        "algorithm",
        "silos",
        "dimension",
        "actions",
        "experts",
    )


def valid_spec(rng: Random) -> dict[str, Any]:
    """Return a spec that runs in an instant: a small shipped figure, or any valid combination."""
    if rng.random() < 0.4:
        spec = tomllib.loads(toml(rng.choice(figures())))
        spec["curve"] = rng.sample(spec["curve"], k=min(len(spec["curve"]), rng.randint(1, 2)))
        # Statements about curves that were left out would be refused at once.
        spec["figure"] = {k: v for k, v in spec["figure"].items() if k not in ("statement", "line")}
        spec.update(horizon=rng.randint(8, 40), replicates=1, checkpoints=3)
        spec["silos"] = min(spec.get("silos", 2), 4)
        return spec
    experts = rng.random() < 0.35
    if experts:
        name, keys = rng.choice(list(EXPERTS)), {"epsilon": 1.0, "delta": 1e-5, "phase_length": 4}
        allowed_keys = ALGORITHMS[name].config.__struct_fields__
        keys = {k: v for k, v in keys.items() if k in allowed_keys}
    else:
        name, keys = rng.choice(BANDITS)
    single_agent = name.startswith("linucb")
    return {
        "name": "fuzzed",
        "horizon": rng.randint(1, 40),
        "silos": 1 if single_agent else rng.randint(1, 4),
        "replicates": rng.randint(1, 2),
        "checkpoints": 3,
        "environment": deepcopy(rng.choice(LOSSES if experts else WORLDS)),
        "curve": [{"label": "a", "algorithm": name, **keys}],
    }


def odd_value(rng: Random, depth: int = 0) -> Any:
    """Return a value of any type that TOML has."""
    kind = rng.randrange(8)
    if kind <= 2:
        return rng.choice(NUMBERS)
    if kind <= 4 or depth > 2:
        return rng.choice(TEXTS)
    if kind == 5:
        return rng.random() < 0.5
    if kind == 6:
        return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(("kind", "std", "a", "")): odd_value(rng, depth + 1)}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value inside nested tables and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


def damaged_spec(rng: Random) -> dict[str, Any]:
    """Return a valid spec after up to four changes."""
    spec = valid_spec(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        change_spec(rng, spec)
    return spec


#: Valid values of keys that are texts, over all algorithms.
WORDS = {
    "radius": ("direct", "lemma-c2", "lemma-c4", "lemma-a2", "published-code", "proposition-2"),
    "regularizer": ("from-noise", "published-code", "lemma-a4"),
    "protocol": (
        *("silo-ldp", "silo-ldp-prefix", "shuffle-amplified", "shuffle-vector", "central"),
        "user-bit",
    ),
    "protects": ("user", "reward"),
    "release": ("tree", "honaker", "toeplitz", "buffered"),
    "layout": ("goe1", "goe2", "iid"),
    "calibration": ("exact", "theorem", "published-code", "printed"),
    "relation": ("replace", "zero-out"),
    "messages": ("aggregate", "individual"),
    "noise_draws": ("silo", "sum"),
    "schedule": ("determinant", "fixed", "private-determinant"),
    "communication": ("log-T", "M1.5", "MT"),
    "graph": ("complete", "star", "ring", "line", "random"),
    "mechanism": ("gaussian", "vector-sum"),
    "batch": ("paper", "largest"),
    "noise": ("local", "central"),
    "returning": ("every-batch",),
}


def fitting_value(rng: Random, key_type: Any) -> Any:
    """Return a value of a key's annotated type, usually a reasonable one."""
    if get_origin(key_type) is Literal:
        return rng.choice(get_args(key_type))
    if get_args(key_type):
        return fitting_value(rng, rng.choice(get_args(key_type)))
    if key_type is bool:
        return rng.random() < 0.5
    if key_type is int:
        return rng.choice((0, 1, 2, 3, 5, 8, 50, 10**6, 2**40))
    if key_type is float:
        return rng.choice(
            (1e-9, 1e-5, 0.01, 0.1, 0.5, 0.9, 1.0, 2.0, 10.0, 1e3, 1e9, 1e-300, 1e300)
        )
    return rng.choice(TEXTS)


#: Budgets and sizes at the ends of what a float64 holds.
EXTREMES = (
    *(5e-324, 1e-300, 1e-155, 1e-100, 1e-30, 1e-16, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.9),
    *(1.0 - 2.0**-53, 1.0, 10.0, 1e3, 1e6, 1e16, 1e100, 1e155, 1e300, 1.7976931348623157e308),
)


def extreme_spec(rng: Random) -> dict[str, Any]:
    """Return a valid spec whose numbers have the right type and any size."""
    spec = valid_spec(rng)
    curve = rng.choice(spec["curve"])
    spec["curve"] = [curve]
    keys = ALGORITHMS[curve["algorithm"]].config
    for key, key_type in get_type_hints(keys).items():
        if key not in keys.__struct_fields__ or rng.random() < 0.75:
            continue
        if key in WORDS and rng.random() < 0.7:
            curve[key] = rng.choice(WORDS[key])
        elif float in (key_type, *get_args(key_type)):
            curve[key] = rng.choice(EXTREMES)
    for key in ("epsilon", "delta"):
        if key in curve and rng.random() < 0.6:
            curve[key] = rng.choice(EXTREMES)
    if "reward" in spec["environment"] and rng.random() < 0.3:
        spec["environment"]["reward"] = {"kind": "gaussian", "std": rng.choice(EXTREMES)}
    return spec


def fit_key(rng: Random, curve: dict[str, Any]) -> None:
    """Give a curve another value of one of its algorithm's keys."""
    keys = ALGORITHMS[curve["algorithm"]].config
    hints = get_type_hints(keys)
    key = rng.choice(keys.__struct_fields__)
    words = key in WORDS and rng.random() < 0.6
    curve[key] = rng.choice(WORDS[key]) if words else fitting_value(rng, hints[key])


KEYS_OF_WORLDS = (
    *("reward", "actions", "dimension", "gap", "experts", "mean", "path", "data", "losses"),
    *("function", "silo", "label", "columns", "sampling", "radius", "contexts", "burst"),
    *("optimum", "features", "coding", "projection_seed", "multiplicity", "rotation", "means"),
)


def change_spec(rng: Random, spec: dict[str, Any]) -> None:
    """Damage a spec in place: change, remove or add a random key or value."""
    kind = rng.randrange(10)
    curves = [c for c in spec["curve"] if isinstance(c, dict)] if _listed(spec) else []
    known = [c for c in curves if str(c.get("algorithm")) in ALGORITHMS.builtin]
    if kind <= 3 and known and rng.random() < 0.7:
        fit_key(rng, rng.choice(known))
        return
    if kind <= 3 and curves:  # a key that this or another algorithm knows
        rng.choice(curves)[rng.choice(keys_of_curves())] = odd_value(rng)
        return
    everywhere = list(places(spec))
    if not everywhere:
        return
    path = rng.choice(everywhere)
    holder: Any = spec
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    if kind == 4:
        del holder[key]
    elif kind == 5 and isinstance(holder, dict):
        holder[f"{key}{rng.choice(('s', '', '_', 'é', '.'))}"] = holder.pop(key)
    elif kind == 6 and isinstance(spec.get("environment"), dict):
        known = list(ENVIRONMENTS.builtin)
        keys_of_worlds = KEYS_OF_WORLDS
        if rng.random() < 0.3:
            spec["environment"]["kind"] = rng.choice(known)
        else:
            spec["environment"][rng.choice(keys_of_worlds)] = odd_value(rng)
    elif kind == 7:
        old = holder[key]
        holder[key] = rng.choice(([old, old], [old], {"a": old}, str(old), [odd_value(rng), old]))
    else:
        holder[key] = odd_value(rng)


def _listed(spec: dict[str, Any]) -> bool:
    """Return whether the curves of a spec are a list."""
    return isinstance(spec.get("curve"), list)


def toml(spec: dict[str, Any]) -> str:
    """Return a spec as TOML text, nested tables inline."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in spec.items())


def _key(key: str) -> str:
    """Return a key as TOML."""
    return _value(str(key))


def _value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, int) and abs(value) >= 10**4300:
        return hex(value)
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def damaged_text(rng: Random, text: bytes) -> bytes:
    """Return bytes after a few random changes."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(9)
        start = rng.randint(0, len(data))
        if kind == 0:
            del data[start:]
        elif kind == 1:
            del data[start : start + rng.randint(1, 20)]
        elif kind == 2:
            data[start:start] = rng.choice(JUNK)
        elif kind == 3 and data:
            data[start % len(data)] = rng.randrange(256)
        elif kind == 4:
            data[start:start] = bytes(data[start : start + rng.randint(1, 60)])
        elif kind == 5:
            data[:] = data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x00\n")))
        elif kind == 6:
            data[:0] = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"PK\x03\x04"))
        elif kind == 7:
            end = rng.randint(start, min(len(data), start + 8))
            data[start:end] = rng.choice(JUNK)
        else:
            text = bytes(data).decode("utf-8", "replace")
            data[:] = text.encode(rng.choice(("utf-16", "latin-1", "utf-8")), "replace")
    return bytes(data)


JUNK = (
    *(
        b"\x00",
        b"\x00" * 40,
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\x8b",
        b"\xd9\xa1",
        b"\n",
        b"\r",
        b"\t",
    ),
    *(
        b" ",
        b"  ",
        b"#",
        b":",
        b",",
        b";",
        b'"',
        b"'",
        b"[",
        b"]",
        b"=",
        b"-",
        b"+",
        b".",
        b"e",
        b"0",
    ),
    *(b"9" * 30, b"0" * 30, b"1e400", b"-1e400", b"1e-400", b"nan", b"inf", b"-Infinity", b"1e5"),
    *(b"1_000", b"0x10", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xc2\xa0", b" qid:", b" 1:", b"-0"),
)


# ---- LETOR files -----------------------------------------------------------------------------


def valid_letor(rng: Random) -> bytes:
    """Return rows of a few queries, with all that the format allows."""
    width = rng.choice((1, 2, 3, 5, 9))
    ending = rng.choice(("\n", "\r\n", " \n", "\t\r\n", " # docid = 1:2 x\n"))
    lines = []
    for query in range(rng.randint(1, 4)):
        qid = rng.choice((query + 1, query + 1, query * 10**9))
        for _ in range(rng.randint(1, 4)):
            pairs = [
                f"{j}:{letor_number(rng)}"
                for j in range(1, width + 1)
                if rng.random() < rng.choice((1.0, 0.7))
            ]
            lines.append(f"{rng.randint(0, 4)} qid:{qid} {' '.join(pairs)}{ending}")
    text = "".join(lines)
    return (text if rng.random() < 0.7 else text.rstrip("\n")).encode()


def letor_number(rng: Random) -> str:
    """Return a decimal as LETOR files have them."""
    kind = rng.randrange(6)
    integer_part = str(rng.randint(0, 10 ** rng.randint(0, 9)))
    fraction = str(rng.randint(0, 10 ** rng.randint(0, 12)))
    sign = rng.choice(("", "", "", "-", "+"))
    return (
        sign
        + (
            integer_part,
            f"{integer_part}.{fraction}",
            f".{fraction}",
            f"{integer_part}.",
            f"0.{fraction}",
            "1e-3",
        )[kind]
    )


ODD_TOKENS = (
    *("nan", "inf", "-inf", "1e400", "1e39", "3.4028235e38", "3.4028236e38", "-1e39", "1e-400"),
    *("0x10", "1,5", "1_0", "٣", "²", "--1", "+-1", "1.2.3", ".", "-", "+", "", "e5", "1e", "1e+"),
    *("00000000000000000001", "000000000000000000012", "999999999999999999999", "-0", "0"),
    *("65536", "65537", "2147483647", "2147483648"),
    *("9223372036854775808", "4294967297", "2.0", "2.5"),
)  # fmt: skip


def damaged_letor(rng: Random) -> bytes:
    """Return rows with a few faults that such files have, or with bytes changed."""
    text = valid_letor(rng)
    if rng.random() < 0.35:
        return damaged_text(rng, text)
    lines = text.split(b"\n")
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        row = rng.randrange(len(lines))
        words = lines[row].split(b" ")
        kind = rng.randrange(12)
        word = rng.randrange(len(words))
        odd_token = rng.choice(ODD_TOKENS).encode()
        if kind == 0:
            words[0] = odd_token
        elif kind == 1 and len(words) > 1:
            words[1] = b"qid:" + odd_token
        elif kind == 2 and len(words) > 1:
            words[1] = rng.choice((b"", b"qid", b"QID:1", b"qid: 1", b"qid:1:2", b"q:1", b"1"))
        elif kind == 3:
            words[word] = words[word].split(b":")[0] + b":" + odd_token
        elif kind == 4:
            words[word] = odd_token + b":" + words[word].split(b":")[-1]
        elif kind == 5:
            words.insert(word, words[-1])
        elif kind == 6:
            features = words[2:]
            rng.shuffle(features)
            words[2:] = features
        elif kind == 7:
            del words[word]
        elif kind == 8:
            words.insert(
                word, rng.choice((b"#", b"# x", b"\t", b"", b"\r", b"\x0b", b"1:2", odd_token))
            )
        elif kind == 9:
            words = [b" ".join(words), rng.choice((b"", b"# a", b"\r\n", b"\n\n"))]
        elif kind == 10:
            words = [rng.choice((b"", b"#", b"   ", b"# only a comment", b"\r", b"\xef\xbb\xbf"))]
        else:
            words = words[: word + 1]
        lines[row] = b" ".join(words)
    return b"\n".join(lines)


def packed(rng: Random, data: bytes) -> bytes:
    """Return a gzip file, whole or damaged."""
    compressed = gzip.compress(data, mtime=0)
    kind = rng.randrange(6)
    if kind == 0:
        return compressed[: rng.randint(0, len(compressed))]
    if kind == 1:
        broken = bytearray(compressed)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    if kind == 2:
        half = len(data) // 2
        return gzip.compress(data[:half], mtime=0) + gzip.compress(data[half:], mtime=0)
    if kind == 3:
        return compressed + rng.choice((b"\0" * 9, b"junk", b"\x1f\x8b", compressed[:-3]))
    return compressed


# ---- CSV files -------------------------------------------------------------------------------

CELLS = (
    *("", "?", "NA", "NaN", "nan", "N/A", "null", "None", " "),
    *("  7 ", "1", "0", "-1", "2.5", "1e400"),
    *("-1e400", "1e308", "-1e308", "1e-400", "inf", "-inf"),
    *("Infinity", "1,5", "1.234,5", "1_0", "0x1f"),
    *("١", "²", "1e", ".5", "5.", ".", "-", "+3", "--3"),
    *("9" * 25, "10000000000000000001", "é", "a b"),
    *('a"b', "a\nb", "a\r\nb", "x\0y", "\u200b", "\xa0"),
    *("x" * 2000, "True", "2020-01-01", "'", ";"),
)  # fmt: skip


def csv_cell(rng: Random, text: str) -> str:
    """Return a cell as CSV: in quotes where they are needed, and sometimes where they are not."""
    if any(c in text for c in ',"\r\n') or rng.random() < 0.1:
        return '"' + text.replace('"', '""') + '"'
    return text


def damaged_csv(rng: Random) -> bytes:
    """Return a table of records with a label and a silo, with odd cells, or with bytes changed."""
    numeric, texts = rng.randint(0, 3), rng.randint(0, 2)
    names = [f"n{i}" for i in range(numeric)] + [f"t{i}" for i in range(texts)] + ["label", "silo"]
    rng.shuffle(names)
    count = rng.choice((0, 1, 2, 4, 6, 8, 10, 12))
    rows = []
    for _ in range(count):
        row = []
        for name in names:
            if name == "label":
                row.append(rng.choice(("0", "1") if rng.random() < 0.97 else CELLS))
            elif name == "silo":
                row.append(rng.choice(("north", "south")))
            elif name[0] == "n":
                row.append(str(rng.choice((rng.randint(-5, 99), round(rng.uniform(-2, 2), 3)))))
            else:
                row.append(rng.choice(("red", "blue", "green")))
        rows.append(row)
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        if rows:
            row = rng.choice(rows)
            row[rng.randrange(len(names))] = rng.choice(CELLS)
    if rows and rng.random() < 0.15:
        row = rng.choice(rows)
        rng.choice((row.pop, lambda: row.append("extra"), row.clear, lambda: row.insert(0, "")))()
    if rng.random() < 0.1:
        names[rng.randrange(len(names))] = rng.choice(("", "label", "n0", " silo ", "é", "x" * 500))
    separator = rng.choice((",",) * 12 + (";", "\t", ", "))
    line_end = rng.choice(("\n", "\n", "\r\n", "\r\n", "\r", "\n\n", "\n\n", ",,\n"))
    text = line_end.join(separator.join(csv_cell(rng, c) for c in row) for row in (names, *rows))
    data = (text + rng.choice(("", line_end))).encode(
        rng.choice(("utf-8",) * 9 + ("utf-8-sig",) * 2 + ("utf-16",))
    )
    return damaged_text(rng, data) if rng.random() < 0.15 else data
