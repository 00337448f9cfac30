"""Check the cache of accounts: exact results, and files that must not be used."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastfed import _cache
from fastfed.bandits import noise_distributions
from fastfed.privacy import Budget
from fastfed.privacy.accounting import binomial
from fastfed.privacy.mechanisms import binomial_tree, vector_batches
from fastfed.privacy.releases import prefix_sums

BUDGET = Budget(1.0, 1e-6)
#: A cached function of the package, and arguments.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "factor": (prefix_sums._factor_and_encoder, ((3, 9, 30, 77), 100, 12.5)),
    "batches": (vector_batches._least_noise, (BUDGET, 2000, 90, 5, 1, 0.7, None)),
    "epsilon": (
        binomial._least_epsilon,
        ((binomial.Node(300_000, 410.25), binomial.Node(600_000, 99.5, 2.0, 3)), 20, False, 1e-6),
    ),
    "tree": (
        binomial_tree._least_noise,
        (BUDGET, (500, 1000), (50, 70), 3, 1.0, ((1, 1, 1), (1, 1, 1))),
    ),
    "coupling": (noise_distributions.coupling, (70_000, 1e-4)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Turn on the files, in an empty folder; every result is worth a file."""
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTFED_CACHE_ACCOUNTS")
    monkeypatch.setattr(_cache, "MIN_SECONDS", 0.0)
    return tmp_path / "cache" / "accounts"


class Counted:
    """A cached function that counts how often it computes."""

    def __init__(self, result: Callable[..., Any] = lambda *arguments: arguments) -> None:
        self.calls = 0

        def compute(*arguments: Any) -> Any:
            """Count and compute."""
            self.calls += 1
            return result(*arguments)

        self.cached = _cache.cached(compute)

    def call_as_new_process(self, *arguments: Any) -> Any:
        """Return the result as a new process would."""
        _cache.forget()
        return self.cached(*arguments)


def bits(value: Any) -> Any:
    """Return a value that is equal for two values only if they have equal bits and types."""
    if isinstance(value, tuple):
        return [bits(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value), value.hex() if isinstance(value, float) else value


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_read_from_files_equal_computed_ones(folder: Path, name: str) -> None:
    function, arguments = FUNCTIONS[name]
    expected = function.__wrapped__(*arguments)
    assert bits(function(*arguments)) == bits(expected)
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    _cache.forget()
    path, key = _cache._place(
        f"{function.__module__}.{function.__qualname__}",
        function.__wrapped__.__code__.co_filename,
        _cache.json.dumps(_cache._as_json(arguments)),
    )
    assert path is not None
    found, result = _cache._read(path, key)
    assert found
    assert bits(result) == bits(expected)
    assert bits(function(*arguments)) == bits(expected)


def test_factors_and_encoders_from_files_are_the_same(folder: Path) -> None:
    arguments = tuple(range(2, 120, 2)), 130, 7.0
    computed = prefix_sums.optimal_factor(*arguments)
    prefix_sums._cached_optimal_factor.cache_clear()
    _cache.forget()
    from_file = prefix_sums.optimal_factor(*arguments)
    assert from_file is not computed
    assert from_file.matrix.tobytes() == computed.matrix.tobytes()
    assert from_file.encoder.tobytes() == computed.encoder.tobytes()
    # The encoder belongs to the matrix: another object computes it from the matrix alone.
    assert prefix_sums.Factor(from_file.matrix).encoder.tobytes() == from_file.encoder.tobytes()
    assert not from_file.encoder.flags.writeable


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**80, 0.0, -0.0, 1.0, 0.1, math.inf, 5e-324, "", "1", "a\nb"),
    *((), (1,), (1.0,), ((1,),), (1, 2), (True, 2), "é", -math.inf),
]


def test_arguments_and_results_of_any_kind_are_exact(folder: Path) -> None:
    counted = Counted()
    for value in VALUES:
        assert bits(counted.call_as_new_process(value)) == bits((value,))
    assert counted.calls == len(VALUES)
    for value in VALUES:
        assert bits(counted.call_as_new_process(value)) == bits((value,))
    assert counted.calls == len(VALUES)
    assert math.isnan(counted.call_as_new_process(math.nan)[0])
    array = np.arange(6, dtype=np.float64).reshape(2, 3) / 7.0
    of_arrays = Counted(lambda n: (array, 0.5, np.arange(n), np.zeros((0, 2))))
    assert (
        bits(of_arrays.call_as_new_process(3))
        == bits(of_arrays.call_as_new_process(3))
        == bits(of_arrays.cached(3))
    )
    assert of_arrays.calls == 1


def test_records_of_different_kinds_differ(folder: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class First:
        """A record with one field."""

        x: float

    class Second(NamedTuple):
        """A record of a different kind with the same field."""

        x: float

    counted = Counted(lambda one: 1)
    for one in (First(1.0), First(2.0), Second(1.0), (1.0,), Budget(1.0, 1e-6), Budget(1.0, 1e-7)):
        counted.call_as_new_process(one)
        counted.call_as_new_process(one)
    assert counted.calls == 6


def test_arguments_and_results_that_cannot_be_stored_exactly_are_computed_again(
    folder: Path,
) -> None:
    counted = Counted(lambda one: 1)
    for one in (np.ones(2), [1], {"a": 1}, np.float64(1.0), object()):
        counted.cached(one)
        counted.cached(one)
    assert counted.calls == 10
    of_lists = Counted(lambda: [1, 2])
    assert of_lists.call_as_new_process() == of_lists.call_as_new_process() == [1, 2]
    assert of_lists.calls == 2
    assert not folder.exists() or not list(folder.iterdir())


def test_memory_is_bounded_and_used_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cache, "MAX_IN_MEMORY", 2)
    counted = Counted()
    for n in (1, 1, 2, 1, 3, 1, 2):
        counted.cached(n)
    assert counted.calls == 4  # 2 was used less lately than 1 when 3 came
    of_arrays = Counted(lambda: (1.0, np.zeros(3)))
    of_arrays.cached()
    of_arrays.cached()
    assert of_arrays.calls == 2, "arrays may be large, and their callers have caches"


def only(folder: Path) -> Path:
    """Return the only file."""
    (path,) = folder.iterdir()
    return path


def test_a_damaged_file_is_computed_again(folder: Path) -> None:
    counted = Counted(lambda n: (n / 7.0, np.full(3, 0.1)))
    expected = bits(counted.call_as_new_process(5))
    content = only(folder).read_bytes()
    damaged = [
        bytes([*content[:i], content[i] ^ 1, *content[i + 1 :]]) for i in range(len(content))
    ]
    damaged += [content[:i] for i in range(0, len(content), 7)] + [content + b"x", b""]
    damaged += [b"\n\n\n", pickle.dumps((1.0,)), b"\x93NUMPY"]
    for other in damaged:
        only(folder).write_bytes(other)
        assert bits(counted.call_as_new_process(5)) == expected
        assert only(folder).read_bytes() == content
    assert counted.calls == 1 + len(damaged)


def test_a_file_of_other_arguments_is_not_used(folder: Path) -> None:
    counted = Counted()
    counted.call_as_new_process(1)
    path = only(folder)
    counted.call_as_new_process(2)
    (other,) = set(folder.iterdir()) - {path}
    other.replace(path)
    assert counted.call_as_new_process(1) == (1,)
    assert counted.calls == 3


def test_another_version_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    counted.call_as_new_process(1)
    version = _cache._version()
    for part in range(len(version)):
        changed = [*version]
        changed[part] = "different"
        monkeypatch.setattr(_cache, "_version", lambda changed=changed: changed)
        calls = counted.calls
        counted.call_as_new_process(1)
        assert counted.calls == calls + 1
    monkeypatch.setattr(_cache, "_version", lambda: version)
    counted.call_as_new_process(1)
    assert counted.calls == 1 + len(version)


def test_the_version_covers_code_kernels_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    digested_files: list[str] = []

    def digest_of(path: Path | str) -> str:
        """Record the file, and return a constant digest."""
        digested_files.append(str(path))
        return "0"

    monkeypatch.setattr(_cache, "_digest_of_file", digest_of)
    version = _cache._version.__wrapped__()
    package = Path(_cache.__file__).parent
    for name in ("_cache.py", "_roots.py", "privacy/accounting/gdp.py", "privacy/sensitivity.py"):
        assert str(package / name) in digested_files
    assert any("_native" in name for name in digested_files)
    assert any(name.endswith("scipy/version.py") for name in digested_files)
    assert np.__version__ in version
    assert list(sys.version_info) in version


def test_the_variable_turns_files_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTFED_CACHE_ACCOUNTS", "off")
    counted = Counted()
    counted.call_as_new_process(1)
    counted.call_as_new_process(1)
    assert counted.calls == 2
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="needs the owner and mode of a folder")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, mode: int) -> None:
    counted = Counted()
    counted.call_as_new_process(1)
    folder.chmod(mode)
    counted.call_as_new_process(1)
    assert counted.calls == 2
    folder.chmod(0o700)
    counted.call_as_new_process(1)
    assert counted.calls == 2


@pytest.mark.skipif(os.name != "posix", reason="needs the owner of a folder")
def test_a_folder_of_another_user_or_a_link_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted()
    counted.call_as_new_process(1)
    with monkeypatch.context() as context:
        context.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        counted.call_as_new_process(1)
    assert counted.calls == 2
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    counted.call_as_new_process(1)
    assert counted.calls == 3


def test_a_cache_folder_that_cannot_be_created_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTFED_CACHE_ACCOUNTS")
    monkeypatch.setattr(_cache, "MIN_SECONDS", 0.0)
    (tmp_path / "file").write_text("")
    places = [str(tmp_path / "file"), str(tmp_path / "file" / "below"), "/proc/none", "a\0b"]
    counted = Counted()
    for cache_path in places:
        with monkeypatch.context() as context:
            context.setattr(_cache, "cache_folder", lambda cache_path=cache_path: Path(cache_path))
            assert counted.call_as_new_process(1) == (1,)
    monkeypatch.delenv("FASTFED_CACHE")
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    counted.call_as_new_process(1)
    assert counted.calls == len(places) + 1


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("step", ["open", "write", "replace"])
def test_a_read_only_or_full_disk_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str
) -> None:
    counted = Counted()
    counted.call_as_new_process(0)

    def fails(*arguments: Any, **named: Any) -> Any:
        """Fail as a disk does."""
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as context:
        if step == "write":
            context.setattr(_cache, "open", partial(_Full, code), raising=False)
        else:
            context.setattr(os, step, fails)
        assert counted.call_as_new_process(1) == (1,)
        assert counted.cached(2) == (2,)  # not even tried
    assert counted.calls == 3
    assert len(list(folder.iterdir())) == 1, "no temporary file is left"
    assert counted.call_as_new_process(1) == (1,)
    counted.call_as_new_process(1)
    assert counted.calls == 4


class _Full:
    """A file on a full disk."""

    def __init__(self, code: int, *opened: Any) -> None:
        self.file, self.code = open(*opened), code  # noqa: SIM115

    def __enter__(self) -> _Full:
        """Return the file."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.file.close()

    def write(self, content: bytes) -> None:
        """Write a part, then fail."""
        self.file.write(content[:10])
        raise OSError(self.code, os.strerror(self.code))


def test_files_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cache, "MAX_FILES", 8)
    monkeypatch.setattr(_cache, "WRITES_PER_PRUNE", 2)
    counted = Counted()
    monkeypatch.setattr(_cache._files, "written", 0)
    old = time.time() - 1000.0
    for n in range(40):
        counted.call_as_new_process(n)
        # A file that was written or used in this step gets the time old + n, so that the order of
        # use is certain.
        for path in folder.iterdir():
            if path.stat().st_mtime > old + 500.0:
                os.utime(path, (old + n, old + n))
        counted.call_as_new_process(0)  # used lately, so kept
    assert len(list(folder.iterdir())) <= 10
    calls = counted.calls
    counted.call_as_new_process(0)
    counted.call_as_new_process(39)
    assert counted.calls == calls
    monkeypatch.setattr(_cache, "MAX_FILE_BYTES", 1000)
    large = Counted(lambda n: np.zeros(n))
    large.call_as_new_process(1000)
    large.call_as_new_process(1000)
    assert large.calls == 2
    monkeypatch.setattr(_cache, "MAX_TOTAL_BYTES", 0)
    abandoned = folder / ".left"
    abandoned.write_text("")
    os.utime(abandoned, (old - _cache.ABANDONED_SECONDS, old - _cache.ABANDONED_SECONDS))
    _cache._prune(folder)
    assert not list(folder.iterdir())


def test_processes_at_once_agree(folder: Path) -> None:
    """Start processes that compute, write and read the same results."""
    code = (
        "import sys; from fastfed import _cache; _cache.MIN_SECONDS = 0.0\n"
        "from fastfed.privacy.releases.prefix_sums import _factor_and_encoder as f\n"
        "import hashlib\n"
        "for k in range(2, 40):\n"
        "    _cache.forget()\n"
        "    b, c = f(tuple(range(1, k)), 50, 0.0)\n"
        "    print(hashlib.sha256(b.tobytes() + c.tobytes()).hexdigest())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FASTFED_CACHE_ACCOUNTS"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    outputs = {process.communicate(timeout=120)[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 38
    names = [path.name for path in folder.iterdir()]
    assert len(names) == 38
    assert not any(name.startswith(".") for name in names)


def test_a_result_that_is_quickly_computed_is_not_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache, "MIN_SECONDS", 10.0)
    Counted().call_as_new_process(1)
    assert not list(folder.iterdir())


def test_the_first_results_of_a_fast_function_are_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later results are neither stored nor read from files, which takes longer than they do."""
    monkeypatch.setattr(_cache, "MIN_SECONDS", 10.0)
    monkeypatch.setattr(_cache, "EARLY_RESULTS", 3)
    computed: list[float] = []

    def double(x: float) -> float:
        computed.append(x)
        return 2.0 * x

    for expected in ([0.0, 1.0, 2.0, 3.0, 4.0], [3.0, 4.0]):
        computed.clear()
        early = _cache.cached_early(double)  # as in a new process
        assert [early(float(x)) for x in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]
        assert early(4.0) == 8.0
        assert computed == expected
        assert len(list(folder.iterdir())) == 3


def test_stored_accounts_of_gaussian_noise_need_no_scipy(folder: Path) -> None:
    """A second process with the same budgets prints the same bits, without importing SciPy."""
    code = (
        "import sys\n"
        "from fastfed.bandits.noise_distributions import norm_quantile\n"
        "from fastfed.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu\n"
        "mu = gaussian_mu(0.7, 1e-6)\n"
        "epsilon, quantile = gaussian_epsilon(mu, 1e-7), norm_quantile(5, 1.5, 0.3, 1e-3)\n"
        "print(mu.hex(), epsilon.hex(), quantile.hex())\n"
        "print('scipy.special' in sys.modules)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FASTFED_CACHE_ACCOUNTS"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs[0][:3] == outputs[1][:3]
    assert [output[3] for output in outputs] == ["True", "False"]
