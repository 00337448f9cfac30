"""Check that every instruction-set level gives the same bits, compiled from the same C sources.

The tests compile the sources once per level into separate libraries, with gcc and, where present,
clang. The extension keeps a table of its functions for each level; the tests call these functions,
too. FASTFED_LEVEL selects the level when the extension is loaded.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from fastfed._kernels import _native, aggregation, linalg, rng
from fastfed.environments import Gap, HardInstance, Sphere

SOURCES = Path(__file__).resolve().parents[2] / "fastfed" / "_kernels" / "src"
EXACT = (
    "random",
    "release",
    "linalg",
    "scores",
    "environment",
    "aggregation",
    "estimate",
)
WIDE = ("screen_i16_factor", "quantise_i16")
FUSED = ("screen_f32", "screen_f32_small")
CHOICE = ("processor", "levels")
FLAGS = "-O2 -ftree-vectorize -std=gnu11 -fno-math-errno -fno-trapping-math -Wno-psabi -fPIC"
# Names on Linux of the processor features that a level adds to the level below. "portable" is the
# code for compilers without vector extensions.
LEVELS = {
    "portable": (),
    "x86-64-v2": ("sse4_2", "ssse3", "popcnt"),
    "x86-64-v3": ("avx2", "bmi2", "fma"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
# Levels of the extension in the order of its table, with the allowed ratio of run times to v4. By
# register width, times should be about 2 and 4 times as long, and twice that if only the higher
# level fuses operations. Vectors wider than registers made the ratio 40.
SHIPPED = {"x86-64": 12, "x86-64-v3": 5, "x86-64-v4": 1}
PORTABLE = """
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#undef __GNUC__
"""
# Argument types and, after the colon, the result type: p pointer, i int64_t, j int, d double.
SIGNATURES = {
    "ff_normals_f32": "pip:",
    "ff_normals_f64": "pip:",
    "ff_normals_from_bits": "ppip:",
    "ff_ideal_normals": "pip:i",
    "ff_ideal_laplace": "pip:i",
    "ff_round_noisy": "ppppdipp:i",
    "ff_permutation": "pip:",
    "ff_log": "d:d",
    "ff_factor": "pip:j",
    "ff_solve": "ppipp:",
    "ff_log_det": "pi:d",
    "ff_observe": "pppdip:d",
    "ff_accumulate": "pppdi:",
    "ff_rank_one": "pppdi:",
    "ff_sherman_morrison": "ppip:",
    "ff_clip_norm": "pid:j",
    "ff_score_scratch": "ii:i",
    "ff_scores": "pppddipp:",
    "ff_select": "pppddippp:i",
    "ff_select_max_min": "pppddppdipp:i",
    "ff_screen_f32_scratch": "ii:i",
    "ff_screen_f32": "pppddipp:i",
    "ff_fill_capacity": "ii:i",
    "ff_sphere_fill": "piiiipp:i",
    "ff_sphere_mean": "pipi:d",
    "ff_gap_fill": "piiiipp:i",
    "ff_gap_mean": "pipi:d",
    "ff_mean_error": "i:d",
    "ff_stride": "i:i",
    "ff_hard_fill": "piiiipp:i",
    "ff_prefix": "piip:",
    "ff_add_noise": "pppip:",
    "ff_refresh": "pdippp:d",
}
TYPES = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int64,
    "j": ctypes.c_int,
    "d": ctypes.c_double,
    "": None,
}
D, K = 21, 45
S = D + D * (D + 1) // 2


class Actions(ctypes.Structure):
    """The struct ff_actions of ff_scores.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("is_double", ctypes.c_int64),
        ("action_stride", ctypes.c_int64),
        ("feature_stride", ctypes.c_int64),
        ("actions", ctypes.c_int64),
        ("mean", ctypes.c_void_p),
        ("best", ctypes.c_double),
        ("quantised", ctypes.c_void_p),
        ("query", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("silo", ctypes.c_int64),
    ]


class SphereState(ctypes.Structure):
    """The struct ff_sphere of ff_environment.h."""

    _fields_ = [
        ("theta", ctypes.c_void_p),
        ("theta_stride", ctypes.c_int64),
        ("dimension", ctypes.c_int64),
        ("actions", ctypes.c_int64),
        ("basis_actions", ctypes.c_int64),
        ("shared", ctypes.c_int64),
        ("constant", ctypes.c_double),
    ]


class GapState(ctypes.Structure):
    """The struct ff_gap of ff_environment.h."""

    _fields_ = [
        ("theta", ctypes.c_void_p),
        ("dimension", ctypes.c_int64),
        ("actions", ctypes.c_int64),
        ("inferior", ctypes.c_double),
        ("best", ctypes.c_double),
        ("width", ctypes.c_double),
    ]


class HardState(ctypes.Structure):
    """The struct ff_hard of ff_environment.h."""

    _fields_ = [("theta", ctypes.c_void_p), ("dimension", ctypes.c_int64)]


def processor_features() -> set[str]:
    """Return the feature names in /proc/cpuinfo, or an empty set."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def skip_unless_runs(level: str) -> None:
    """Skip the test if this processor cannot run the level."""
    if not set(LEVELS.get(level, ())) <= processor_features():
        pytest.skip(f"this processor cannot run {level}")


class LeafLibrary:
    """The leaf functions compiled for one level.

    ``Leaves.f(...)`` calls ff_f with arrays, numbers or structs.
    """

    def __init__(self, folder: Path, level: str, compiler: str | None = None) -> None:
        compiler = shlex.split(compiler or os.environ.get("CC", "cc"))
        if shutil.which(compiler[0]) is None:
            pytest.skip(f"no {compiler[0]} here to build the levels with")
        if platform.machine() not in ("x86_64", "AMD64"):
            pytest.skip(f"the levels are those of x86-64, this is {platform.machine()}")
        if not SOURCES.exists():
            pytest.skip("the C sources are not beside the tests")
        skip_unless_runs(level)
        objects, running = [], []
        for name in EXACT + WIDE + FUSED + CHOICE:
            source = folder / f"{name}.c"
            source.write_text(
                (PORTABLE if level == "portable" else "") + f'#include "ff_{name}.c"\n'
            )
            objects.append(str(source.with_suffix(".o")))
            command = [*compiler, *FLAGS.split(), "-I", str(SOURCES), "-c", str(source)]
            command += ["-o", objects[-1], f"-march={'x86-64' if level == 'portable' else level}"]
            # As in the extension, only screening may fuse multiplications and additions.
            command += [f"-ffp-contract={'fast' if name in FUSED else 'off'}"]
            # Some processors of the highest level have VNNI, which screening in 16 bits uses.
            if level == "x86-64-v4" and name in WIDE and _native.HAS_VNNI:
                command += ["-mavx512vnni"]
            running.append(subprocess.Popen(command))
        assert not any([process.wait() for process in running])
        library = folder / "leaves.so"
        subprocess.run([*compiler, "-shared", "-o", str(library), *objects, "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))

    def __getattr__(self, name: str):
        """Return the leaf function of this name."""
        return lambda *values: self.bound(name, *values)()

    def bound(self, name: str, *values) -> Callable[[], object]:
        """Return a function without arguments that calls the leaf function again."""
        arguments, result = SIGNATURES[f"ff_{name}"].split(":")
        prototype = ctypes.CFUNCTYPE(TYPES[result], *(TYPES[a] for a in arguments))
        function = prototype(self.address(f"ff_{name}"))
        call_arguments = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in values]
        return lambda values_kept_alive=values: function(*call_arguments)

    def address(self, name: str) -> int:
        """Return the address of an exported function."""
        return ctypes.cast(self._library[name], ctypes.c_void_p).value


class Row(ctypes.Structure):
    """A row of the table ff_levels in ff_levels.c."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("of", ctypes.c_void_p * len(SHIPPED)),
        ("at", ctypes.POINTER(ctypes.c_void_p)),
    ]


class ExtensionLibrary(LeafLibrary):
    """The leaf functions of the extension: at one level, or the chosen function where there are no
    levels."""

    def __init__(self, level: str) -> None:
        if not _native.HAS_LEVELS:
            pytest.skip("this build is for one level")
        skip_unless_runs(level)
        self._library = ctypes.CDLL(_native.__file__)
        first = ctypes.pointer(Row.in_dll(self._library, "ff_levels"))
        rows = takewhile(lambda row: row.name, (first[i] for i in range(1000)))
        column = list(SHIPPED).index(level)
        self._levelled = {row.name.decode(): row.of[column] for row in rows}

    def address(self, name: str) -> int:
        """Return the address at the level, or else that of the exported function."""
        return self._levelled.get(name) or super().address(name)


def inputs() -> dict[str, np.ndarray]:
    """Return one fixed input of every kind; actions 7 and 30 nearly tie."""
    generator = np.random.default_rng(11)
    rows = generator.normal(size=(2 * D, D))
    v = np.eye(D) + rows.T @ rows / D
    actions = generator.normal(size=(K, D))
    actions[7] *= 2.0
    actions[30] = actions[7] * (1.0 + 1e-9)
    return {
        "stream": np.array([1, 2, 3, 4, 5], np.uint32),
        "bits": generator.integers(0, 2**53, size=(2, 1001), dtype=np.uint64),
        "positive": np.exp(generator.uniform(-50, 50, size=200)),
        "v": v,
        "packed": v[np.tril_indices(D)],
        "x": generator.normal(size=D),
        "u": generator.normal(size=D),
        "actions": actions,
        "statistic": generator.normal(size=S),
        "normals": generator.normal(size=S),
        "nodes": generator.normal(size=(5, S)),
        # No word is so close to 0 that 64 bits would give infinity.
        "words": generator.integers(2**40, 2**64, size=2000, dtype=np.uint64),
        "noise": np.array(
            [
                np.rint(generator.normal(size=S) * 2**20) * 2.0**-14,
                generator.normal(size=S),
                generator.uniform(1.0, 2.0, size=S),
                np.full(S, 2.0**-14),
            ]
        ),
    }


def outputs(leaves: LeafLibrary) -> dict[str, bytes]:
    """Return the bytes that every leaf function computes from the inputs."""
    fixed_inputs = inputs()
    results: dict[str, bytes] = {}

    def store(name: str, *values) -> None:
        """Store the bytes of the values under a name."""
        results[name] = b"".join(np.asarray(v).tobytes() for v in values)

    for name, dtype in (("normals_f32", np.float32), ("normals_f64", np.float64)):
        output = np.empty(4096, dtype)
        getattr(leaves, name)(fixed_inputs["stream"], 4096, output)
        store(name, output)
    output = np.empty(2002)
    leaves.normals_from_bits(*fixed_inputs["bits"], 1001, output)
    store("normals_from_bits", output)
    words = fixed_inputs["words"]
    unsure = leaves.ideal_normals(words, len(words) // 2, output)
    store("ideal_normals", output[: len(words)], unsure)
    unsure = leaves.ideal_laplace(words, len(words), output)
    store("ideal_laplace", output[: len(words)], unsure)
    noise, doubtful = fixed_inputs["noise"], np.empty(S, np.uint8)
    doubts = leaves.round_noisy(*noise, 1e-5, S, output, doubtful)
    store("round_noisy", output[:S], doubtful, doubts)
    order = np.empty(100, np.int64)
    leaves.permutation(fixed_inputs["stream"], 100, order)
    store("permutation", order)
    store("log", [leaves.log(x) for x in fixed_inputs["positive"]])

    # One action of 5000 dimensions is scaled down because its rounded norm exceeds 1.
    for d, actions in ((1, 45), (2, 3), (10, 100), (5000, 100)):
        environment = Gap(dimension=d, actions=actions)
        direction = environment.theta(4, 1)
        state = ctypes.byref(GapState(direction.ctypes.data, d, actions, 0.5, 0.7, 0.1))
        features = np.empty(leaves.fill_capacity(actions, d), np.float32)
        means = np.empty(actions)
        assert leaves.gap_fill(state, 4, 1, 2, 3, features, means) == actions
        exact = np.array([leaves.gap_mean(state, 2, features, a) for a in range(actions)])
        assert np.abs(means - exact).max() <= leaves.mean_error(d)
        rows = features[: leaves.stride(actions) * d].reshape(d, -1)
        store(f"gap_fill {d}", rows[:, :actions], exact)

    # Check a theta for all silos and a theta per silo, with and without fixed actions.
    for d, actions, theta_per_silo in ((1, 45, 0), (3, 5, 1), (10, 100, 0), (10, 100, 1)):
        thetas = np.tile(Sphere(d).theta(4, 1), (3, 1)) * np.array([[1.0], [0.5], [0.25]])
        fixed = d if theta_per_silo else 0
        sizes = theta_per_silo * d, d, actions, fixed, 0
        state = ctypes.byref(SphereState(thetas.ctypes.data, *sizes, 0.5**0.5))
        features = np.empty(leaves.fill_capacity(actions, d), np.float32)
        means = np.empty(actions)
        assert leaves.sphere_fill(state, 4, 1, 2, 3, features, means) == actions
        exact = np.array([leaves.sphere_mean(state, 2, features, a) for a in range(actions)])
        assert np.abs(means - exact).max() <= leaves.mean_error(d)
        rows = features[: leaves.stride(actions) * d].reshape(d, -1)[:, :actions]
        np.testing.assert_allclose(exact, thetas[2 * theta_per_silo] @ rows, atol=1e-15)
        store(f"sphere_fill {d} {theta_per_silo}", rows, exact)

    for d in (2, 8, 5000):
        direction = HardInstance(d).theta(4, 1)
        state = ctypes.byref(HardState(direction.ctypes.data, d))
        features, means = (
            np.empty((300, leaves.fill_capacity(2, d)), np.float32),
            np.empty((300, 2)),
        )
        for t in range(300):
            assert leaves.hard_fill(state, 4, 1, 2, t + 1, features[t], means[t]) == 2
        store(f"hard_fill {d}", features[:, : 2 * d], means)

    x, u, y = fixed_inputs["x"], fixed_inputs["u"], 0.7
    w, theta, scratch = np.empty((D, D)), np.empty(D), np.empty(S + 3 * D)
    assert leaves.factor(fixed_inputs["packed"], D, w) == 0
    store("factor", w)
    leaves.solve(w, u, D, scratch, theta)
    store("solve", theta)
    store("log_det", leaves.log_det(w, D))

    for dtype in (np.float32, np.float64):
        for layout in "CF":
            a = np.asarray(fixed_inputs["actions"], dtype, order=layout)
            steps = [stride // a.itemsize for stride in a.strides]
            view = ctypes.byref(Actions(a.ctypes.data, a.itemsize == 8, *steps, K))
            space, scores, best = np.empty(leaves.score_scratch(D, K)), np.empty(K), np.empty(D)
            for gamma in (0.0, 0.2):
                leaves.scores(view, w, theta, 0.4, gamma, D, space, scores)
                chosen = leaves.select(view, w, theta, 0.4, gamma, D, space, best, None)
                assert chosen == np.argmax(scores)
                store(f"scores and select {a.dtype} {layout} {gamma}", scores, chosen, best)
                other = w, theta[::-1].copy(), 0.3
                chosen = leaves.select_max_min(view, w, theta, 0.4, gamma, *other, D, space, best)
                store(f"select least {a.dtype} {layout} {gamma}", chosen, best)

    ratio = leaves.observe(w, theta, x, y, D, scratch)
    store("observe", w, theta, ratio)
    statistic = fixed_inputs["statistic"].copy()
    leaves.accumulate(statistic[D:], statistic, x, y, D)
    store("accumulate", statistic)
    gram, bias = fixed_inputs["v"].copy(), u.copy()
    leaves.rank_one(gram, bias, x, y, D)
    store("rank_one", gram, bias)
    inverse = np.eye(D) * 0.5
    for row in fixed_inputs["actions"]:
        leaves.sherman_morrison(inverse, row, D, scratch)
    store("sherman_morrison", inverse)
    clipped = x.copy()
    leaves.clip_norm(clipped, D, 1.0)
    store("clip_norm", clipped)
    output = np.empty(S)
    leaves.prefix(fixed_inputs["nodes"], 0b11101, S, output)
    store("prefix", output)
    leaves.add_noise(statistic, fixed_inputs["normals"], np.array([1.1, 0.7, 1.3]), D, output)
    store("add_noise", output)
    shift = leaves.refresh(fixed_inputs["statistic"], 0.5, D, w, theta, scratch)
    assert shift > 0.0
    store("refresh", w, theta, shift)
    return results


@pytest.fixture(scope="module")
def baseline(tmp_path_factory) -> dict[str, bytes]:
    """Return the outputs of the kernels compiled for the base level."""
    return outputs(LeafLibrary(tmp_path_factory.mktemp("baseline"), "x86-64"))


# The extension is compiled for v3, v4 and the baseline; v2 is an additional check.
@pytest.mark.parametrize(
    "level", [pytest.param(n, marks=[pytest.mark.slow] * (n == "x86-64-v2")) for n in LEVELS]
)
def test_every_level_gives_the_bits_of_the_baseline(level, baseline, tmp_path):
    results = outputs(LeafLibrary(tmp_path, level))
    assert list(results) == list(baseline)
    assert not [name for name in results if results[name] != baseline[name]]


# clang's highest level is an ordinary test where clang is present. The other levels differ only in
# width.
@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        pytest.param(
            own_compiler,
            each_level,
            marks=[pytest.mark.slow] * ((own_compiler, each_level) != ("clang", "x86-64-v4")),
        )
        for own_compiler in ("clang", "gcc")
        for each_level in SHIPPED
    ],
)
def test_every_compiler_gives_the_bits_of_the_baseline(compiler, level, baseline, tmp_path):
    results = outputs(LeafLibrary(tmp_path, level, compiler))
    assert not [name for name in results if results[name] != baseline[name]]


@pytest.mark.parametrize("level", SHIPPED)
def test_every_level_of_the_extension_gives_the_bits_of_the_baseline(level, baseline):
    shipped = ExtensionLibrary(level)
    assert {"ff_screen_f32", "ff_scores", "ff_observe", "ff_gap_fill"} <= set(shipped._levelled)
    results = outputs(shipped)
    assert not [name for name in results if results[name] != baseline[name]]


def timed_calls(leaves: LeafLibrary) -> dict[str, Callable[[], object]]:
    """Return calls to be timed, large enough that ctypes takes little of the time."""
    d, k = 120, 128
    direction, w, theta = Gap(dimension=d, actions=k).theta(4, 1), np.eye(d) / 10.0, np.zeros(d)
    state = ctypes.byref(GapState(direction.ctypes.data, d, k, 0.5, 0.7, 0.1))
    features, means = np.empty(leaves.fill_capacity(k, d), np.float32), np.empty(k)
    view = ctypes.byref(Actions(features.ctypes.data, 0, 1, leaves.stride(k), k))
    score_scratch, screen_scratch = (
        np.empty(leaves.score_scratch(d, k)),
        np.empty(leaves.screen_f32_scratch(d, k)),
    )
    candidates, scratch = np.empty(k, np.int64), np.empty(4 * d)
    w_copy, estimate = w.copy(), theta.copy()
    leaves.gap_fill(state, 4, 1, 2, 3, features, means)
    return {
        "gap_fill": leaves.bound("gap_fill", state, 4, 1, 2, 3, features, means),
        "scores": leaves.bound("scores", view, w, theta, 9.0, 0.0, d, score_scratch, means),
        "screen_f32": leaves.bound(
            "screen_f32", view, w, theta, 9.0, 0.0, d, screen_scratch, candidates
        ),
        "observe": leaves.bound("observe", w_copy, estimate, direction, 0.5, d, scratch),
    }


def test_lower_levels_are_slower_only_by_their_width():
    levels = {level: timed_calls(ExtensionLibrary(level)) for level in SHIPPED}
    min_times = dict.fromkeys(
        ((level, name) for level in SHIPPED for name in levels[level]), np.inf
    )
    # Take the minimum of many calls in turn, so that a busy machine slows all levels equally.
    for _ in range(100):
        for level, name in min_times:
            start = time.perf_counter()
            levels[level][name]()
            min_times[level, name] = min(min_times[level, name], time.perf_counter() - start)
    times = {key: min_times[key] / min_times["x86-64-v4", key[1]] for key in min_times}
    assert not {key: ratio for key, ratio in times.items() if ratio > SHIPPED[key[0]]}


def test_the_extension_gives_the_bits_of_the_baseline(baseline):
    """Compare the level chosen for this processor with the baseline."""
    fixed_inputs = inputs()
    w = linalg.factor(fixed_inputs["packed"], D)
    assert w.tobytes() == baseline["factor"]
    assert linalg.solve(w, fixed_inputs["u"]).tobytes() == baseline["solve"]
    assert rng.normals_from_bits(*fixed_inputs["bits"]).tobytes() == baseline["normals_from_bits"]
    for name in ("ideal_normals", "ideal_laplace"):
        numbers, unsure = getattr(rng, name)(fixed_inputs["words"])
        assert numbers.tobytes() + np.asarray(unsure).tobytes() == baseline[name]
    numbers, doubtful = aggregation.round_noisy(*fixed_inputs["noise"], 1e-5)
    mask = np.isin(np.arange(S), doubtful).astype(np.uint8)
    rounded = numbers.tobytes() + mask.tobytes() + np.asarray(len(doubtful)).tobytes()
    assert rounded == baseline["round_noisy"]
    logs = [linalg.log(x) for x in fixed_inputs["positive"]]
    assert np.array(logs).tobytes() == baseline["log"]
    for d, actions in ((10, 100), (5000, 100)):
        features, means = Gap(dimension=d, actions=actions).open(4, 1, 3).round(2, 3)
        assert features.T.tobytes() + means.tobytes() == baseline[f"gap_fill {d}"]
    for d in (2, 8, 5000):
        opened_environment = HardInstance(d).open(4, 1, 3)
        rounds = [opened_environment.round(2, t) for t in range(1, 301)]
        features, means = (np.array(part) for part in zip(*rounds, strict=True))
        bits = features.transpose(0, 2, 1).tobytes() + means.tobytes()
        assert bits == baseline[f"hard_fill {d}"]
    theta = linalg.solve(w, fixed_inputs["u"])
    scores = linalg.scores(fixed_inputs["actions"], w, theta, 0.4, 0.0)
    chosen, best = linalg.select(fixed_inputs["actions"], w, theta, 0.4, 0.0)
    expected = baseline["scores and select float64 C 0.0"]
    assert scores.tobytes() + np.int64(chosen).tobytes() + best.tobytes() == expected


def import_at_level(level: str) -> subprocess.CompletedProcess:
    """Import the extension in a new process with this FASTFED_LEVEL."""
    code = (
        "from fastfed._kernels import _native as n, linalg;"
        "print(n.HAS_LEVELS, n.MOST, n.PROCESSOR, n.LEVEL, linalg.has_screen_i16())"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"FASTFED_LEVEL": level},
        capture_output=True,
        text=True,
    )


def test_fastfed_level_limits_the_level():
    if not _native.HAS_LEVELS:
        pytest.skip("this build is for one level")
    order = list(_native.LEVELS)
    for level in order:
        process = import_at_level(level)
        has_levels, highest, processor, chosen, has_i16 = process.stdout.split()
        assert (has_levels, highest, processor) == ("True", level, _native.PROCESSOR)
        assert chosen == order[min(order.index(level), order.index(processor))]
        assert has_i16 == str(chosen != "base")


def test_bounds_in_16_bits_hold_with_avx2():
    """Run the tests of bounds again with AVX2 on processors with AVX-512."""
    if not _native.HAS_LEVELS or _native.LEVEL != "v4":
        pytest.skip("AVX-512 is not chosen here: the other tests have run the narrower vectors")
    tests = Path(__file__).parents[1]
    files = (
        "kernels/test_bonus_cache.py",
        "environments/test_directions.py",
    )
    names = [str(tests / file) for file in files]
    selection = ["-k", "between_its_bounds or best_action"]
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            *names,
            *selection,
        ],
        env=os.environ | {"FASTFED_LEVEL": "v3"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout
    marks = [line.split()[0] for line in process.stdout.splitlines() if line.endswith("%]")]
    assert set("".join(marks)) == {"."}, process.stdout  # no test was skipped


def test_an_unknown_level_raises_a_readable_error():
    process = import_at_level("v5")
    assert process.returncode == 1
    assert "FASTFED_LEVEL must be one of base, v3, v4, got 'v5'" in process.stderr.splitlines()[-1]


def test_the_chosen_level_is_the_highest_of_the_processor():
    """Compare with the processor features that Linux lists."""
    features = processor_features()
    if not features or platform.machine() != "x86_64":
        pytest.skip("this system does not list the processor's features")
    available = [name for name in LEVELS if set(LEVELS[name]) <= features and name in SHIPPED]
    highest = max(available, key=list(SHIPPED).index, default="x86-64")
    assert list(_native.LEVELS)[list(SHIPPED).index(highest)] == _native.PROCESSOR
    assert ("avx512_vnni" in features) == _native.HAS_VNNI
