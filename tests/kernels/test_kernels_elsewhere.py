"""Compare kernels inside numba.njit and in Cython with plain calls: the same bits, found by
name."""

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
def register_kernels():
    """Let numba find the kernels."""
    from fastfed.kernels.numba import register

    register()
    register()  # a second call does nothing


def make_problem(d=10, n=12):
    """Return rows (n, d), rewards (n) and V = I + X'X of these rows."""
    rng = np.random.default_rng(d)
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    return x, rng.uniform(size=n), np.eye(d) + x.T @ x


def check_equal(actual, expected):
    """Check that two arrays have the same shape and bits."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


# ---- numba --------------------------------------------------------------------------------------


def choose_and_update(actions, rewards, factor, theta):
    """Choose an action in each round and learn its reward; return the choices."""
    chosen = np.zeros(len(actions), np.int64)
    for t in range(len(actions)):
        chosen[t] = kernels.ucb_argmax(actions[t], factor, theta, 0.5, trusted=True)
        kernels.factor_update(factor, theta, actions[t, chosen[t]], rewards[t], trusted=True)
    return chosen


def test_row_updates_agree_inside_njit():
    x, y, _ = make_problem()
    compiled, plain = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    numba.njit(lambda *arguments: kernels.rank_one_update(*arguments))(*compiled, x, y)
    kernels.rank_one_update(*plain, x, y)
    check_equal(compiled[0], plain[0])
    check_equal(compiled[1], plain[1])


@pytest.mark.slow
def test_a_policy_agrees_inside_njit():
    rng = np.random.default_rng(0)
    actions, rewards = rng.normal(size=(30, 20, 10)), rng.uniform(size=30)
    plain, compiled = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    expected = choose_and_update(actions, rewards, *plain)
    compiled_choices = numba.njit(choose_and_update)(actions, rewards, *compiled)
    check_equal(compiled_choices, expected)
    check_equal(compiled[0], plain[0])
    check_equal(compiled[1], plain[1])


def run_updates(gram, bias, inverse, factor, theta, x, y, strided, single):
    """Call every kernel that updates its arguments; return two solutions."""
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
def test_all_updates_agree_inside_njit():
    x, y, _ = make_problem()
    strided, single = np.repeat(x, 2, axis=1)[:, ::2], y.astype(np.float32)
    outcomes = []
    for function in (run_updates, numba.njit(run_updates)):
        matrices = np.eye(10), np.zeros(10), np.eye(10), np.eye(10), np.zeros(10)
        outcomes.append([*function(*matrices, x, y, strided, single), *matrices])
    for plain, compiled in zip(*outcomes, strict=True):
        check_equal(plain, compiled)


def run_models(v, stack, actions, sets, single, theta, thetas):
    """Call the kernels that return new arrays, and return their results."""
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
def test_scores_and_normals_agree_inside_njit():
    rng = np.random.default_rng(1)
    sets, (_, _, v) = rng.normal(size=(3, 15, 10)), make_problem()
    arguments = v, np.stack([v, v * 2, v + 1]), sets[0], sets, sets[1].astype(np.float32)
    thetas = rng.normal(size=(3, 10))
    for plain, compiled in zip(
        run_models(*arguments, thetas[0], thetas),
        numba.njit(run_models)(*arguments, thetas[0], thetas),
        strict=True,
    ):
        check_equal(plain, compiled)


@pytest.mark.slow
def test_errors_inside_njit_name_the_bad_argument():
    @numba.njit
    def update(factor, theta, x, y):
        """Call `factor_update` from compiled code."""
        kernels.factor_update(factor, theta, x, y)

    @numba.njit
    def argmax(actions, factor, theta, radius):
        """Call `ucb_argmax` from compiled code."""
        return kernels.ucb_argmax(actions, factor, theta, radius)

    eye, zeros, ones = np.eye(3), np.zeros(3), np.ones(3)
    for arguments, message in (
        ((eye, np.zeros(2), ones, 1.0), "factor must have shape"),
        ((eye, zeros, np.ones(2), 1.0), "x must have shape"),
        ((eye, eye[0], ones, 1.0), "must not share memory"),
        ((np.ones((3, 3)), zeros, ones, 1.0), "factor must be lower triangular"),
        ((eye, zeros, ones * np.nan, 1.0), "x and y must be finite"),
        ((eye, zeros, ones * 1e80, 1.0), "at most 1e75"),
        ((eye, zeros, ones, np.inf), "x and y must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            update(*arguments)
    assert np.array_equal(eye, np.eye(3)) and not zeros.any()
    for arguments, message in (
        ((np.ones((4, 2)), eye, zeros, 1.0), "factor must have shape"),
        ((np.ones((0, 3)), eye, zeros, 1.0), "at least one action"),
        ((np.ones((4, 3)), eye, zeros, -1.0), "radius and second_radius must be >= 0"),
        ((np.ones((4, 3)) * np.inf, eye, zeros, 1.0), "actions must be finite"),
        ((np.ones((4, 3)), -eye, zeros, 1.0), "factor must be lower triangular"),
    ):
        with pytest.raises(InputError, match=message):
            argmax(*arguments)
    with pytest.raises(numba.TypingError, match="updated in place, got array"):
        update(np.eye(3, dtype=np.float32), zeros, ones, 1.0)


CACHED_PROGRAM = """
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
def test_numba_finds_the_kernels_without_registration_also_from_cached_code(tmp_path):
    """Check the entry point of an installed package, in a process that does not register the
    kernels."""
    folder = tmp_path / "elsewhere-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 0\n")
    entry = "[numba_extensions]\ninit = fastfed.kernels.numba:register\n"
    (folder / "entry_points.txt").write_text(entry)
    (tmp_path / "cached.py").write_text(CACHED_PROGRAM)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    for hits in ("0", "1"):
        command = [sys.executable, str(tmp_path / "cached.py"), hits]
        subprocess.run(command, env=environment, check=True, timeout=300)


def test_package_registers_its_kernels_with_numba():
    import tomllib

    project = ROOT / "pyproject.toml"
    if not project.exists():
        pytest.skip("runs without the source tree")
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]["numba_extensions"]
    module, _, name = entries["init"].partition(":")
    assert getattr(sys.modules[module], name)


def test_package_does_not_import_numba():
    code = "import sys, fastfed, fastfed.kernels; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- Cython -------------------------------------------------------------------------------------


def test_cython_declarations_equal_the_compiled_functions():
    """Compare signatures, by which Cython names the capsules and numba finds its types."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    compiled = {name: name_of(capsule).decode() for name, capsule in kernels.__pyx_capi__.items()}
    text = Path(kernels.__file__).with_name("__init__.pxd").read_text()
    declarations = re.findall(r"^cdef (\w+) (\w+)\((.*?)\) noexcept nogil$", text, re.M | re.S)
    declared = {}
    for result, name, parameters in declarations:
        kinds = []
        for parameter in parameters.split(","):
            const, value, star = re.fullmatch(
                r"\s*(const )?(\w+) (\*?)\w+", parameter
            ).groups()  # fmt: skip
            kinds.append(value + " const" * bool(const) + f" {star}" * bool(star))
        declared[name] = f"{result} ({', '.join(kinds)})"
    assert declared == compiled and len(declarations) == len(compiled) == 10


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
def test_kernels_called_from_cython_agree(tmp_path):
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
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
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
    rng = np.random.default_rng(0)
    actions, rewards = rng.normal(size=(30, 20, 10)), rng.uniform(size=30)
    plain, cython = (np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10))
    chosen = np.empty(30, np.int64)
    assert uses.rounds(actions, rewards, *cython, chosen) == 0
    check_equal(chosen, choose_and_update(actions, rewards, *plain))
    check_equal(cython[0], plain[0])
    check_equal(cython[1], plain[1])

    x, y, value = make_problem(10, 6)
    single = rng.normal(size=(11, 10)).astype(np.float32)
    status, index, results = uses.others(value, x, y, single)
    assert status[:7] == (0,) * 7
    assert status[7] == 1  # the sums of fewer rows than features are not positive definite
    factor, (gram, bias) = kernels.inverse_factor(value), (np.zeros((10, 10)), np.zeros(10))
    inverse = kernels.sherman_morrison(np.eye(10), x)
    kernels.rank_one_update(gram, bias, x, y)
    scores = kernels.ucb_scores(single, factor, bias, 1.0, second_radius=0.2)
    assert index == int(np.argmax(scores))
    solved, values = kernels.solve(factor, x), kernels.normals(3, 5, replicate=1, silo=2)
    for actual, expected in zip(
        results, (inverse, gram, bias, solved, scores, values), strict=True
    ):
        check_equal(actual, expected)
