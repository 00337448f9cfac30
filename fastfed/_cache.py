"""Results of pure functions, cached in memory and in the user's cache folder.

`cached` is for functions whose result depends on their arguments alone, and takes longer to compute
than to read: accounts, calibrations and factors. A result that is read is the result that was
computed, bit for bit:

- A file holds the function's name, the version and all arguments in full. A file is ignored if one
  of these differs, or if the file is damaged or foreign; then the result is computed again. Floats
  are written in hexadecimal and arrays as their bytes. A checksum covers the whole content. Nothing
  in a file is executed.
- The version covers everything else that a result depends on: the source of the function's module,
  of `fastfed.privacy` and of the package's shared modules, the compiled kernels, NumPy, SciPy, the
  C library and the processor's instruction sets.
- A file is written under a temporary name and renamed, so processes do not disturb one another. A
  folder that cannot be written, or that another user could write, is not used.

The environment variable FASTFED_CACHE_ACCOUNTS = "off" turns the files off.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fastfed._validate import InputError

F = TypeVar("F", bound=Callable[..., Any])

#: A result is stored in a file if computing it takes at least this number of seconds. Reading it
#: takes 0.0001 seconds.
MIN_SECONDS = 1e-3
#: Number of results of one function in a process that `cached_early` reads from files or stores.
EARLY_RESULTS = 32
#: Limits of all files together and of one of them, in bytes, and the largest number of files.
MAX_TOTAL_BYTES, MAX_FILE_BYTES, MAX_FILES = 2**27, 20 * 2**20, 4096
#: The files are counted at the first write of a process, and again after each WRITES_PER_PRUNE
#: further writes.
WRITES_PER_PRUNE = 256
#: A temporary file that is older than this many seconds is deleted: its process was killed.
ABANDONED_SECONDS = 3600.0
#: Number of results of one function that are held in memory. Results with arrays are not held.
MAX_IN_MEMORY = 512

# ---- The user's cache folder ---------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder in which parsed files and computed accounts are cached.

    It is $FASTFED_CACHE if this is set, else fastfed/ in the cache folder of the user. For a user
    without a home folder it is fastfed/ in $XDG_CACHE_HOME if this is set, else a folder among the
    temporary files of the system.
    """
    chosen = os.environ.get("FASTFED_CACHE")
    if chosen:
        return Path(chosen)
    home = _home()
    linux_cache = os.environ.get("XDG_CACHE_HOME", "")
    if home is None:
        return Path(linux_cache) / "fastfed" if linux_cache else _temporary_cache()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(linux_cache or home / ".cache")
    return base / "fastfed"


def _home() -> Path | None:
    """Return the user's home folder, or None for a user who has none."""
    home = os.path.expanduser("~")
    if os.environ.get("HOME") != "" and os.path.isabs(home):
        return Path(home)
    try:
        import pwd

        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):
        return None


def _temporary_cache() -> Path:
    """Return a folder, among temporary files of the system, to which only this user can write."""
    folder = Path(tempfile.gettempdir()) / f"fastfed-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    except OSError:
        private = False
    if not private or status.st_uid != os.getuid():
        raise InputError(
            f"this user has no home folder, and {folder} is not theirs alone: set FASTFED_CACHE to "
            "a folder for parsed files"
        )
    return folder


def _accounts_folder() -> Path | None:
    """Return the folder of cached results, created if necessary; None if none can be used.

    The folder is used only if it belongs to this user, and nobody else can write into it. A person
    who can write results into it could make a certificate wrong.
    """
    if os.environ.get("FASTFED_CACHE_ACCOUNTS", "") == "off":
        return None
    try:
        folder = cache_folder() / "accounts"
        if not folder.is_dir():
            for missing_folder in (*reversed(folder.parents), folder):
                if not missing_folder.exists():
                    missing_folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except (InputError, OSError, ValueError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        return None
    return folder


# ---- Arguments and results as text ---------------------------------------------------------------


class _NotPlain(TypeError):
    """Raised for a value that has no exact text."""


def _as_json(value: Any, arrays: list[bytes] | None = None) -> Any:
    """Convert a value to JSON data from which `_restored` computes the same value.

    The value is the arguments of a function if ``arrays`` is None, else its result. Both may be
    None, booleans, integers, floats, texts and tuples of these. Arguments may also be frozen
    records (dataclasses, structs and named tuples) whose fields are such values. Results may also
    be arrays: the bytes of each array are appended to ``arrays``.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        return ["float", value.hex()]
    if kind is str:
        return ["text", value]
    if kind is tuple:
        return ["tuple", [_as_json(item, arrays) for item in value]]
    if kind is np.ndarray and arrays is not None and value.dtype in (np.float64, np.int64):
        arrays.append(np.ascontiguousarray(value).tobytes())
        return ["array", value.dtype.str, list(value.shape)]
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if names is None and issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
    if names is None or arrays is not None:
        raise _NotPlain(f"a {kind.__name__} cannot be cached")
    fields = [[name, _as_json(getattr(value, name))] for name in names]
    return ["record", f"{kind.__module__}.{kind.__qualname__}", fields]


def _restored(data: Any, content: memoryview) -> tuple[Any, memoryview]:
    """Return the value that `_as_json` has converted to ``data``, and the unread bytes.

    ``content`` has the bytes of the arrays in the value, one after the other.
    """
    if data is None or type(data) in (bool, int):
        return data, content
    kind, *fields = data
    if kind == "float":
        return float.fromhex(fields[0]), content
    if kind == "text":
        return fields[0], content
    if kind == "tuple":
        values = []
        for item in fields[0]:
            value, content = _restored(item, content)
            values.append(value)
        return tuple(values), content
    if kind == "array" and fields[0] in (np.dtype(np.float64).str, np.dtype(np.int64).str):
        size = 8 * int(np.prod(fields[1], dtype=np.int64))
        array = np.frombuffer(content[:size], dtype=fields[0]).reshape(fields[1]).copy()
        array.flags.writeable = False
        return array, content[size:]
    raise ValueError(f"unknown kind of value: {kind}")


# ---- The version ---------------------------------------------------------------------------------


@cache
def _digest_of_file(path: Path | str) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError if it cannot be read."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def _version() -> list[Any]:
    """Return digests and versions of all that results depend on besides their arguments.

    They cover shared code of the package, libraries, and the processor.

    Raises OSError if some of the code cannot be read.
    """
    package = Path(__file__).parent
    files = [*package.glob("_*.py"), *package.glob("privacy/**/*.py")]
    files += [file for file in (package / "_kernels").iterdir() if file.suffix in (".so", ".pyd")]
    digest = hashlib.sha256("".join(map(_digest_of_file, sorted(files))).encode()).hexdigest()
    # Importing SciPy to ask for its version would take longer than reading all results of a run.
    scipy_spec = find_spec("scipy")
    if scipy_spec is None or scipy_spec.origin is None:
        raise OSError("scipy has no files")
    umath = sys.modules.get("numpy._core._multiarray_umath")
    features = getattr(umath, "__cpu_features__", {})
    libc = ""
    with suppress(AttributeError, OSError, ValueError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return [
        digest,
        _digest_of_file(Path(scipy_spec.origin).with_name("version.py")),
        np.__version__,
        list(sys.version_info),
        sys.platform,
        libc,
        sorted(name for name, usable in features.items() if usable),
        os.environ.get("OPENBLAS_CORETYPE", ""),
    ]


# ---- Files ---------------------------------------------------------------------------------------


class _Files:
    """State of this process: the number of files that it wrote, and whether it can write files."""

    def __init__(self) -> None:
        """Start without files, and assume that they can be written."""
        self.written = 0
        self.usable = True


_files = _Files()


def _read(path: Path, key: str) -> tuple[bool, Any]:
    """Read a result from a file: (True, result), or (False, None) if the file has no such result.

    ``key`` is the text of function, version and arguments, which the file must contain.
    """
    try:
        content = path.read_bytes()
        checksum, _, body = content.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            return False, None
        stored_key, _, result_and_arrays = body.partition(b"\n")
        if stored_key != key.encode():
            return False, None
        result, _, arrays = result_and_arrays.partition(b"\n")
        value, _ = _restored(json.loads(result), memoryview(arrays))
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return False, None
    with suppress(OSError):  # files that were read lately are deleted last
        os.utime(path)
    return True, value


def _write(path: Path, key: str, result: Any) -> None:
    """Store a result and its key in a file, unless it is too large or not plain data.

    If the file cannot be written, this process stores no further results.
    """
    arrays: list[bytes] = []
    try:
        text = json.dumps(_as_json(result, arrays))
    except _NotPlain:
        return
    content = b"\n".join([key.encode(), text.encode(), b"".join(arrays)])
    if len(content) > MAX_FILE_BYTES:
        return
    temporary = path.with_name(f".{secrets.token_hex(16)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n")
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        _files.usable = False
        with suppress(OSError):
            temporary.unlink()
        return
    _files.written += 1
    if _files.written % WRITES_PER_PRUNE == 1:
        _prune(path.parent)


def _prune(folder: Path) -> None:
    """Delete the files that were not used for longest, if there are too many in a folder."""
    files, now = [], time.time()
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith(".") and now - status.st_mtime > ABANDONED_SECONDS:
                    os.unlink(entry.path)
                elif stat.S_ISREG(status.st_mode):
                    files.append((status.st_mtime, status.st_size, entry.path))
    total, count = sum(size for _, size, _ in files), len(files)
    if total <= MAX_TOTAL_BYTES and count <= MAX_FILES:
        return
    for _, size, path in sorted(files):
        if total <= 0.75 * MAX_TOTAL_BYTES and count <= 0.75 * MAX_FILES:
            break
        with suppress(OSError):
            os.unlink(path)
        total, count = total - size, count - 1


# ---- The decorator -------------------------------------------------------------------------------

_results_by_function: list[OrderedDict[str, Any]] = []
_lock = threading.Lock()


def cached(function: F, *, min_seconds: float | None = None) -> F:
    """Return ``function`` with a cache of its results, in memory and in files.

    A result is found by the exact values of the arguments.

    Parameters
    ----------
    function : callable
        A pure function. Its positional arguments are None, booleans, integers, floats, texts,
        tuples of these, and frozen records. Its result is of the same kinds, or arrays that nobody
        changes.
    min_seconds : float, optional
        A result is stored in a file if computing it takes at least this long. The default is
        `MIN_SECONDS`.

    Returns
    -------
    callable
        The function with a cache. Its attribute ``__wrapped__`` is the function without a cache. It
        also accepts other kinds of arguments, but does not cache the results for them.
    """
    memory: OrderedDict[str, Any] = OrderedDict()
    _results_by_function.append(memory)
    name = f"{function.__module__}.{function.__qualname__}"
    module_file = function.__code__.co_filename

    @wraps(function)
    def wrapper(*arguments: Any) -> Any:
        """Return the cached result for these arguments, or compute it and cache it."""
        try:
            text = json.dumps(_as_json(arguments))
        except _NotPlain:
            return function(*arguments)
        with _lock:
            if text in memory:
                memory.move_to_end(text)
                return memory[text]
        path, key = _place(name, module_file, text)
        is_stored, result = (False, None) if path is None else _read(path, key)
        if not is_stored:
            start = time.perf_counter()
            result = function(*arguments)
            least = MIN_SECONDS if min_seconds is None else min_seconds
            if path is not None and time.perf_counter() - start >= least:
                _write(path, key, result)
        parts = result if type(result) is tuple else (result,)
        if not any(type(part) is np.ndarray for part in parts):
            with _lock:
                memory[text] = result
                if len(memory) > MAX_IN_MEMORY:
                    memory.popitem(last=False)
        return result

    return wrapper  # type: ignore[return-value]


def cached_early(function: F) -> F:
    """Cache the first results of a process in files, and all results in memory.

    This is for fast functions that import SciPy. The import takes longer than the computation of
    dozens of results. So a process that needs only a few results should read them from files. The
    arguments are as in `cached`.
    """
    from_file = cached(function, min_seconds=0.0)

    @lru_cache(4096)
    @wraps(function)
    def wrapper(*arguments: Any) -> Any:
        """Return the result for these arguments, from a file if it is one of the first."""
        is_early = wrapper.cache_info().misses <= EARLY_RESULTS
        return (from_file if is_early else function)(*arguments)

    return wrapper  # type: ignore[return-value]


def _place(name: str, module_file: str, arguments: str) -> tuple[Path | None, str]:
    """Return the path of the file of a result, and the key that the file must contain.

    The path is None if results are not stored. ``name`` is the function's name, ``module_file`` its
    source file, and ``arguments`` the text of its arguments.
    """
    if not _files.usable or (folder := _accounts_folder()) is None:
        return None, ""
    try:
        version = [_digest_of_file(module_file), *_version()]
    except (ImportError, OSError, ValueError):  # a package without its files
        _files.usable = False
        return None, ""
    key = json.dumps([name, version]) + arguments
    return folder / hashlib.sha256(key.encode()).hexdigest(), key


def forget() -> None:
    """Remove all results from memory, and allow that files are written again; for tests."""
    _files.usable = True
    with _lock:
        for memory in _results_by_function:
            memory.clear()
