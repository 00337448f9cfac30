"""Peaks of one core, measured in the run that uses them: what no program here can be faster than.

``peaks.c`` is compiled by the C compiler of this machine, for its processor, into build/peaks/.
Each peak is the best of some dozens of short runs by the clock on the wall, by which what disturbs
a run makes it slower, never faster. (Processor time does not: a virtual machine's system takes off
what the host has given to others, if need be all of a short run.)
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
from fastfed.simulation.limits import MEMORY, Peaks

SOURCE = Path(__file__).with_name("peaks.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-std=gnu11")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
#: Bytes where the system does not tell.
USUAL = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
#: Seconds of one run, and how many.
LEAST, RUNS = 0.002, 24
#: Normals drawn at once: long enough for a call to cost little, short enough to stay in cache.
DRAWN = (4096, 16384)
#: Read for the speed of memory at most.
LARGEST = 512 << 20


def library() -> ctypes.CDLL | None:
    """The compiled routines; None where there is no compiler for them."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    info = Path("/proc/cpuinfo")
    # A library compiled on another processor may hold instructions that this one lacks.
    here = [part for part in info.read_text().split("\n\n")[:1]] if info.exists() else []
    names = [line for line in "\n".join(here).splitlines() if line.startswith(("model", "flags"))]
    said = [SOURCE.read_text(), *FLAGS, *compiler, *platform.uname(), *names]
    name = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16] + ".so"
    target = SOURCE.parents[1] / "build" / "peaks" / name
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / name
                command = [*compiler, *FLAGS, str(SOURCE), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True)
                made.replace(target)
        found = ctypes.CDLL(str(target))
    except (OSError, subprocess.CalledProcessError):
        return None
    long, double = ctypes.c_int64, ctypes.c_double
    for function, result, *kinds in (
        (found.fma_f32, double, long, ctypes.c_float, ctypes.c_float),
        (found.fma_f64, double, long, double, double),
        (found.dot_i16, long, long, ctypes.c_int),
        (found.read_all, long, ctypes.c_void_p, long, long),
        (found.fma_f32_operations, long),
        (found.fma_f64_operations, long),
        (found.dot_i16_operations, long),
    ):
        function.restype, function.argtypes = result, kinds
    return found


def cache_sizes() -> dict[str, int]:
    """Bytes of the caches for data that one core reads through."""
    found = dict(USUAL)
    for folder in sorted(CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            size = (folder / "size").read_text().strip()
            name = "L" + (folder / "level").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and name in found and size[-1] in "KM":
            found[name] = int(size[:-1]) << (10 if size[-1] == "K" else 20)
    return found


def fastest(run: Callable[[int], object], runs: int = RUNS) -> float:
    """Seconds of one pass; ``run`` makes as many as it is told."""

    def seconds(times: int) -> float:
        start = time.perf_counter()
        run(times)
        return time.perf_counter() - start

    times = 1
    while seconds(times) < LEAST:
        times *= 2
    return min(seconds(times) for _ in range(runs)) / times


def memory_speeds(found: ctypes.CDLL, runs: int = RUNS) -> dict[str, float]:
    """Bytes a second that one core reads from each level, by buffers that lie in it alone."""
    sizes = cache_sizes()
    # Half a cache, for the other half may hold something else; of a third level, which others
    # share, what the second cannot hold.
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
            found.read_all(start, size, times)

        speeds[level] = size / fastest(run, runs if level != "DRAM" else max(3, runs // 4))
    return speeds


def measure(runs: int = RUNS) -> Peaks | None:
    """The peaks of one core now; None where they cannot be compiled."""
    found = library()
    if found is None:
        return None
    rates = {
        "float32": found.fma_f32_operations()
        / fastest(lambda times: found.fma_f32(times, 0.5, 1.0), runs),
        "float64": found.fma_f64_operations()
        / fastest(lambda times: found.fma_f64(times, 0.5, 1.0), runs),
    }
    if found.dot_i16_operations():
        rates["int16"] = found.dot_i16_operations() / fastest(
            lambda times: found.dot_i16(times, 3), runs
        )

    # Not of the machine but of our generator, alone and warm.
    rates["normals"] = max(count / fastest(drawing(count), runs) for count in DRAWN)
    return Peaks(rates | memory_speeds(found, runs), cache_sizes())


def drawing(count: int) -> Callable[[int], None]:
    """Passes of so many normals each."""

    def draw(times: int) -> None:
        for _ in range(times):
            kernels.normals(0, count, dtype="float32")

    return draw
