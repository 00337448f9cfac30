"""The kernels inside numba.njit and from Cython: the bits of the plain calls, found by name."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import numpy as np
import pytest

import fastfed
from fastfed import kernels
from fastfed._validate import InputError

ROOT = Path(fastfed.__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def registered():
    from fastfed.kernels.numba import register

    register()
    register()  # a second call does nothing


def problem(d=10, n=12):
    draw = np.random.default_rng(d)
    x = draw.normal(size=(n, d)) / np.sqrt(d)
    return x, draw.uniform(size=n), np.eye(d) + x.T @ x


def same(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape and one.tobytes() == other.tobytes()


# ---- numba --------------------------------------------------------------------------------------


def rounds(actions, rewards, factor, theta):
    chosen = np.zeros(len(actions), np.int64)
    for t in range(len(actions)):
        chosen[t] = kernels.ucb_argmax(actions[t], factor, theta, 0.5, trusted=True)
        kernels.factor_update(factor, theta, actions[t, chosen[t]], rewards[t], trusted=True)
    return chosen


def test_rows_inside_njit():
    x, y, _ = problem()
    one, other = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    numba.njit(lambda *given: kernels.rank_one_update(*given))(*one, x, y)
    kernels.rank_one_update(*other, x, y)
    same(one[0], other[0])
    same(one[1], other[1])


@pytest.mark.slow
def test_a_policy_inside_njit_has_the_bits_of_the_same_outside():
    draw = np.random.default_rng(0)
    actions, rewards = draw.normal(size=(30, 20, 10)), draw.uniform(size=30)
    plain, compiled = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    expected = rounds(actions, rewards, *plain)
    found = numba.njit(rounds)(actions, rewards, *compiled)
    same(found, expected)
    same(compiled[0], plain[0])
    same(compiled[1], plain[1])


def updates(gram, bias, inverse, factor, theta, x, y, strided, single):
    kernels.rank_one_update(gram, bias, x[0], 0.5)
    kernels.rank_one_update(gram, bias, x, y, trusted=True)
    kernels.rank_one_update(gram, bias, strided, single)
    kernels.rank_one_update(gram, bias, gram, bias)
    kernels.sherman_morrison(inverse, x[1])
    kernels.sherman_morrison(inverse, strided)
    kernels.factor_update(factor, theta, x[2], 1)
    kernels.factor_update(factor, theta, x, y)
    kernels.factor_update(factor, theta, factor[1], 0.3)
    return kernels.solve(factor, bias), kernels.solve(factor, x, trusted=True)


@pytest.mark.slow
def test_updates_inside_njit():
    x, y, _ = problem()
    strided, single = np.repeat(x, 2, axis=1)[:, ::2], y.astype(np.float32)
    made = []
    for run in (updates, numba.njit(updates)):
        held = np.eye(10), np.zeros(10), np.eye(10), np.eye(10), np.zeros(10)
        made.append([*run(*held, x, y, strided, single), *held])
    for one, other in zip(*made, strict=True):
        same(one, other)


def models(v, stack, actions, sets, single, theta, thetas):
    factor, factors = kernels.inverse_factor(v), kernels.inverse_factor(stack, trusted=True)
    return (
        factor,
        factors,
        kernels.ucb_scores(actions, factor, theta, 1.0),
        kernels.ucb_scores(actions.T.copy().T, factor, theta, 1, second_radius=0.3),
        kernels.ucb_scores(single, factor, theta, 0.7, trusted=True),
        kernels.ucb_scores(actions, factors, thetas, 0.7),
        kernels.ucb_scores(sets, factor, theta, 0.7),
        kernels.ucb_scores(sets, factors, thetas, 0.7),
        kernels.ucb_argmax(single, factor, theta, 0.7),
        kernels.ucb_argmax(sets, factor, theta, 0.7, second_radius=0.1),
        kernels.ucb_argmax(sets, factors, thetas, 0.7),
        kernels.normals(7, 9, silo=3),
        kernels.normals(7, 0),
    )


@pytest.mark.slow
def test_scores_and_normals_inside_njit():
    draw = np.random.default_rng(1)
    sets, (_, _, v) = draw.normal(size=(3, 15, 10)), problem()
    given = v, np.stack([v, v * 2, v + 1]), sets[0], sets, sets[1].astype(np.float32)
    thetas = draw.normal(size=(3, 10))
    for one, other in zip(
        models(*given, thetas[0], thetas),
        numba.njit(models)(*given, thetas[0], thetas),
        strict=True,
    ):
        same(one, other)


@pytest.mark.slow
def test_bad_arguments_inside_njit():
    @numba.njit
    def update(factor, theta, x, y):
        kernels.factor_update(factor, theta, x, y)

    @numba.njit
    def argmax(actions, factor, theta, radius):
        return kernels.ucb_argmax(actions, factor, theta, radius)

    eye, zeros, ones = np.eye(3), np.zeros(3), np.ones(3)
    for given, message in (
        ((eye, np.zeros(2), ones, 1.0), "factor must have shape"),
        ((eye, zeros, np.ones(2), 1.0), "x must have shape"),
        ((eye, eye[0], ones, 1.0), "must not share memory"),
        ((np.ones((3, 3)), zeros, ones, 1.0), "factor must be lower triangular"),
        ((eye, zeros, ones * np.nan, 1.0), "x and y must be finite"),
        ((eye, zeros, ones * 1e80, 1.0), "at most 1e75"),
        ((eye, zeros, ones, np.inf), "x and y must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            update(*given)
    assert np.array_equal(eye, np.eye(3)) and not zeros.any()
    for given, message in (
        ((np.ones((4, 2)), eye, zeros, 1.0), "factor must have shape"),
        ((np.ones((0, 3)), eye, zeros, 1.0), "at least one action"),
        ((np.ones((4, 3)), eye, zeros, -1.0), "radius and second_radius must be >= 0"),
        ((np.ones((4, 3)) * np.inf, eye, zeros, 1.0), "actions must be finite"),
        ((np.ones((4, 3)), -eye, zeros, 1.0), "factor must be lower triangular"),
    ):
        with pytest.raises(InputError, match=message):
            argmax(*given)
    with pytest.raises(numba.TypingError, match="updated in place, got array"):
        update(np.eye(3, dtype=np.float32), zeros, ones, 1.0)


CACHED = """
import sys
import numba, numpy as np
from fastfed import kernels

@numba.njit(cache=True)
def best(actions, factor, theta):
    return kernels.ucb_argmax(actions, factor, theta, 1.0)

actions = np.eye(3)[:2]
assert best(actions, np.diag([1.0, 2.0, 1.0]), np.zeros(3)) == 1
hits = sum(best.stats.cache_hits.values())
assert hits == int(sys.argv[1]), hits
"""


@pytest.mark.slow
def test_numba_finds_the_kernels_by_itself_and_cached_code_finds_them_again(tmp_path):
    """By the entry point of an installed package, in a process that never asked for it."""
    folder = tmp_path / "elsewhere-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 0\n")
    entry = "[numba_extensions]\ninit = fastfed.kernels.numba:register\n"
    (folder / "entry_points.txt").write_text(entry)
    (tmp_path / "cached.py").write_text(CACHED)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    for hits in ("0", "1"):
        command = [sys.executable, str(tmp_path / "cached.py"), hits]
        subprocess.run(command, env=environment, check=True, timeout=300)


def test_the_package_tells_numba():
    import tomllib

    project = ROOT / "pyproject.toml"
    if not project.exists():
        pytest.skip("runs without the source tree")
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]["numba_extensions"]
    module, _, name = entries["init"].partition(":")
    assert getattr(sys.modules[module], name)


def test_the_package_imports_no_numba():
    code = "import sys, fastfed, fastfed.kernels; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- Cython -------------------------------------------------------------------------------------


def test_the_declarations_for_cython_are_those_of_the_compiled_functions():
    """Cython names the capsule of a function by its signature, which numba's types come from."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    compiled = {name: name_of(c).decode() for name, c in kernels.__pyx_capi__.items()}
    text = Path(kernels.__file__).with_name("__init__.pxd").read_text()
    found = re.findall(r"^cdef (\w+) (\w+)\((.*?)\) noexcept nogil$", text, re.M | re.S)
    declared = {}
    for result, name, parameters in found:
        kinds = []
        for parameter in parameters.split(","):
            const, value, star = re.fullmatch(
                r"\s*(const )?(\w+) (\*?)\w+", parameter
            ).groups()  # fmt: skip
            kinds.append(value + " const" * bool(const) + f" {star}" * bool(star))
        declared[name] = f"{result} ({', '.join(kinds)})"
    assert declared == compiled and len(found) == len(compiled) == 10


EXTENSION = """
# cython: language_level=3, boundscheck=False, wraparound=False
from libc.stdint cimport int64_t
from fastfed cimport kernels

def rounds(double[:, :, ::1] actions, double[::1] rewards, double[:, ::1] factor,
           double[::1] theta, int64_t[::1] chosen):
    cdef int64_t t, K = actions.shape[1], d = actions.shape[2]
    cdef int status = 0
    with nogil:
        for t in range(actions.shape[0]):
            status |= kernels.ucb_argmax(&actions[t, 0, 0], 1, K, d, &factor[0, 0], &theta[0], 1,
                                         0.5, 0.0, &chosen[t], 1)
            status |= kernels.factor_update(&factor[0, 0], &theta[0], &actions[t, chosen[t], 0],
                                            &rewards[t], 1, d, 1)
    return status

def others(double[:, ::1] V, double[:, ::1] x, double[::1] y, float[:, ::1] single):
    cdef int64_t n = x.shape[0], d = x.shape[1], index
    import numpy as np
    cdef double[:, ::1] factor = np.empty((d, d)), inverse = np.eye(d), solved = np.empty((n, d))
    cdef double[:, ::1] gram = np.zeros((d, d)), scores = np.empty((1, single.shape[0]))
    cdef double[::1] bias = np.zeros(d), values = np.empty(5)
    status = (
        kernels.inverse_factor(&V[0, 0], 1, d, &factor[0, 0], 0),
        kernels.sherman_morrison(&inverse[0, 0], &x[0, 0], n, d, 0),
        kernels.rank_one_update(&gram[0, 0], &bias[0], &x[0, 0], &y[0], n, d, 0),
        kernels.solve(&factor[0, 0], &x[0, 0], n, d, &solved[0, 0], 0),
        kernels.ucb_scores_f32(&single[0, 0], 1, single.shape[0], d, &factor[0, 0], &bias[0], 1,
                               1.0, 0.2, &scores[0, 0], 0),
        kernels.ucb_argmax_f32(&single[0, 0], 1, single.shape[0], d, &factor[0, 0], &bias[0], 1,
                               1.0, 0.2, &index, 0),
        kernels.normals(3, 0, 1, 2, 0, 5, &values[0]),
        kernels.inverse_factor(&gram[0, 0] if n < d else &inverse[0, 0], 1, d, &factor[0, 0], 0),
    )
    made = [np.asarray(inverse), np.asarray(gram), np.asarray(bias), np.asarray(solved)]
    return status, index, [*made, np.asarray(scores[0]), np.asarray(values)]
"""


@pytest.mark.slow
def test_cython_code_cimports_the_kernels(tmp_path):
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    (tmp_path / "uses.pyx").write_text(EXTENSION)
    (tmp_path / "setup.py").write_text(
        textwrap.dedent("""
        from Cython.Build import cythonize
        from setuptools import setup
        setup(ext_modules=cythonize("uses.pyx"))
        """)
    )
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(ROOT)
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    sys.path.insert(0, str(tmp_path))
    try:
        import uses
    finally:
        sys.path.remove(str(tmp_path))
    draw = np.random.default_rng(0)
    actions, rewards = draw.normal(size=(30, 20, 10)), draw.uniform(size=30)
    plain, cython = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    chosen = np.empty(30, np.int64)
    assert uses.rounds(actions, rewards, *cython, chosen) == 0
    same(chosen, rounds(actions, rewards, *plain))
    same(cython[0], plain[0])
    same(cython[1], plain[1])

    x, y, v = problem(10, 6)
    single = draw.normal(size=(11, 10)).astype(np.float32)
    status, index, made = uses.others(v, x, y, single)
    assert status[:7] == (0,) * 7
    assert status[7] == 1  # the sums of fewer rows than features are not positive definite
    factor, (gram, bias) = kernels.inverse_factor(v), (np.zeros((10, 10)), np.zeros(10))
    inverse = kernels.sherman_morrison(np.eye(10), x)
    kernels.rank_one_update(gram, bias, x, y)
    scores = kernels.ucb_scores(single, factor, bias, 1.0, second_radius=0.2)
    assert index == int(np.argmax(scores))
    solved, values = kernels.solve(factor, x), kernels.normals(3, 5, replicate=1, silo=2)
    for one, other in zip(made, (inverse, gram, bias, solved, scores, values), strict=True):
        same(one, other)
