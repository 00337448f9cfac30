"""Measure the peak speeds of one core: limits that no program on this machine can exceed.

``peaks.c`` is compiled for this processor into build/peaks/. Each peak is the best of some dozens
of short runs, in wall time: a disturbance makes wall time longer, never shorter. (Processor time
may be too short: a virtual machine subtracts the time that its host gave to other machines, up to
all of a short run.)
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastfed import kernels
from fastfed._kernels import _native
from fastfed.simulation.limits import MEMORY, Peaks

SOURCE = Path(__file__).with_name("peaks.c")
#: The flag of the level of instructions that runs, if it is below the processor's.
LEVELS = {"base": "-march=x86-64", "v3": "-march=x86-64-v3", "v4": "-march=x86-64-v4"}
#: Flags of the compiler. The peaks are those of the level that fastfed runs at (FASTFED_LEVEL).
FLAGS = (
    "-march=native" if _native.LEVEL == _native.PROCESSOR else LEVELS[_native.LEVEL],
    *("-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-std=gnu11"),
)
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
#: Sizes of caches in bytes, if the system does not report them.
USUAL = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
#: LEAST: least seconds of one run. RUNS: number of runs.
LEAST, RUNS = 0.002, 24
#: Normals per call: enough that the overhead is small, and few enough to stay in cache.
DRAWN = (4096, 16384)
#: Largest buffer for the speed of memory, in bytes.
LARGEST = 512 << 20


def library() -> ctypes.CDLL | None:
    """Return the compiled routines of ``peaks.c``; None if they cannot be compiled."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    info = Path("/proc/cpuinfo")
    # A library that was compiled on a different processor may use instructions that this processor
    # does not have, so the name of the library depends on the processor.
    first_processor = [part for part in info.read_text().split("\n\n")[:1]] if info.exists() else []
    processor_lines = [
        line
        for line in "\n".join(first_processor).splitlines()
        if line.startswith(("model", "flags"))
    ]
    digest_input = [SOURCE.read_text(), *FLAGS, *compiler, *platform.uname(), *processor_lines]
    name = hashlib.sha256("\0".join(digest_input).encode()).hexdigest()[:16] + ".so"
    target = SOURCE.parents[1] / "build" / "peaks" / name
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                compiled_file = Path(folder) / name
                command = [*compiler, *FLAGS, str(SOURCE), "-o", str(compiled_file)]
                subprocess.run(command, check=True, capture_output=True)
                compiled_file.replace(target)
        routines = ctypes.CDLL(str(target))
    except (OSError, subprocess.CalledProcessError):
        return None
    long, double = ctypes.c_int64, ctypes.c_double
    for function, result, *kinds in (
        (routines.fma_f32, double, long, ctypes.c_float, ctypes.c_float),
        (routines.fma_f64, double, long, double, double),
        (routines.root_f32, double, long, ctypes.c_float),
        (routines.dot_i16, long, long, ctypes.c_int),
        (routines.read_all, long, ctypes.c_void_p, long, long),
        (routines.fma_f32_operations, long),
        (routines.fma_f64_operations, long),
        (routines.root_f32_operations, long),
        (routines.dot_i16_operations, long),
    ):
        function.restype, function.argtypes = result, kinds
    return routines


def cache_sizes() -> dict[str, int]:
    """Return the sizes of one core's data caches in bytes, by level."""
    sizes = dict(USUAL)
    for folder in sorted(CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            size = (folder / "size").read_text().strip()
            name = "L" + (folder / "level").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and name in sizes and size[-1] in "KM":
            sizes[name] = int(size[:-1]) << (10 if size[-1] == "K" else 20)
    return sizes


def fastest(run: Callable[[int], object], runs: int = RUNS) -> float:
    """Return the least seconds of one pass; ``run(n)`` makes n passes."""

    def seconds(times: int) -> float:
        start = time.perf_counter()
        run(times)
        return time.perf_counter() - start

    times = 1
    # A disturbance during one short run must not end this search.
    while min(seconds(times) for _ in range(3)) < LEAST:
        times *= 2
    return min(seconds(times) for _ in range(runs)) / times


def memory_speeds(routines: ctypes.CDLL, runs: int = RUNS) -> dict[str, float]:
    """Return the bytes per second that one core reads from each memory level.

    Each level is measured with a buffer that fits this level, but not the faster levels.
    """
    sizes = cache_sizes()
    # Use half of the first two caches, since other data may occupy the rest. Other cores share the
    # third cache, so use an eighth of it, but at least three times the second cache.
    third = max(3 * sizes["L2"], sizes["L3"] // 8)
    buffers = (
        *(sizes["L1"] // 2, sizes["L2"] // 2, third),
        max(64 << 20, min(4 * sizes["L3"], LARGEST)),
    )
    memory = np.ones(buffers[-1] // 8 + 64)
    start = memory.ctypes.data
    start += -start % 64
    speeds = {}
    for level, size in zip(MEMORY, buffers, strict=True):
        size -= size % 512

        def run(times: int, size: int = size) -> None:
            routines.read_all(start, size, times)

        speeds[level] = size / fastest(run, runs if level != "DRAM" else max(3, runs // 4))
    return speeds


def measure(runs: int = RUNS) -> Peaks | None:
    """Measure the peaks of one core; return None if ``peaks.c`` cannot be compiled."""
    routines = library()
    if routines is None:
        return None
    rates = {
        "float32": routines.fma_f32_operations()
        / fastest(lambda times: routines.fma_f32(times, 0.5, 1.0), runs),
        "float64": routines.fma_f64_operations()
        / fastest(lambda times: routines.fma_f64(times, 0.5, 1.0), runs),
    }
    if routines.dot_i16_operations():
        rates["int16"] = routines.dot_i16_operations() / fastest(
            lambda times: routines.dot_i16(times, 3), runs
        )

    if routines.root_f32_operations():
        rates["roots"] = routines.root_f32_operations() / fastest(
            lambda times: routines.root_f32(times, 2.0), runs
        )

    # This limit is not a property of the machine: it is the speed of fastfed's generator with warm
    # caches.
    rates["normals"] = max(count / fastest(drawing(count), runs) for count in DRAWN)
    return Peaks(rates | memory_speeds(routines, runs), cache_sizes())


def drawing(count: int) -> Callable[[int], None]:
    """Return a function that makes passes; each pass draws ``count`` normals."""

    def draw(times: int) -> None:
        for _ in range(times):
            kernels.normals(0, count, dtype="float32")

    return draw
