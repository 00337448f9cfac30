"""Memory available to this process, and conversion of sizes to and from text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fastfed._validate import InputError, show

_PROC = Path("/proc")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def available(proc: Path = _PROC) -> int | None:
    """Return the bytes available to this process, or None if they are unknown.

    This is the smallest of these numbers, as far as they are known: the system's available memory
    (including pages that it can reclaim at once), what the limit of each control group of this
    process still allows (versions 1 and 2), and what the limit of the address space still allows.
    """
    limits = [_system(proc), *_groups(proc), _addresses(proc)]
    sizes = [max(0, size) for size in limits if size is not None]
    return min(sizes) if sizes else None


def _system(proc: Path) -> int | None:
    """Return the bytes of available memory of the system, or None if they are unknown.

    Without the file /proc/meminfo they may be the total memory.
    """
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return int(os.sysconf(pages)) * int(os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, ValueError, OSError):
            continue
    return None


def _groups(proc: Path) -> Iterator[int]:
    """Yield the remaining bytes of each control group of this process and of its ancestors."""
    root = proc.parent / "sys" / "fs" / "cgroup"
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # A line is number:controllers:path. Version 2 has the number 0 and no controllers.
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from _remaining(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _remaining(root / "memory", path, *names)


def _remaining(root: Path, path: str, limit: str, usage: str, cached: str) -> Iterator[int]:
    """Yield the remaining bytes of the control group at ``path`` and of each of its ancestors.

    ``limit`` and ``usage`` name the files with these numbers, and ``cached`` the entry of
    memory.stat that counts reclaimable pages. Groups without a limit are skipped.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = root.joinpath(*parts[:depth])
        try:
            limit_bytes = int((folder / limit).read_text())  # "max" is no number
            used_bytes = int((folder / usage).read_text())
        except (OSError, ValueError):
            continue
        # The system reclaims cached files when memory is needed.
        yield limit_bytes - max(0, used_bytes - _statistic(folder / "memory.stat", cached))


def _statistic(path: Path, name: str) -> int:
    """Return the number in the entry ``name`` of a memory.stat file; 0 if there is none."""
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _addresses(proc: Path) -> int | None:
    """Return the bytes that this process may still map under ``ulimit -v``; None if unlimited."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int((proc / "self" / "statm").read_text().split()[0])
        return limit - pages * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return None


def parse_size(name: str, value: object) -> int:
    """Return the bytes of a size such as "40GB", "1.5 GiB" or 4e9 (a number of bytes).

    Raises InputError, with the name of the argument, for anything else.
    """
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        unit = match[2].lower()
        size = float(match[1]) * {**_UNITS, **_BINARY}[unit]
        if 1.0 <= size < 2.0**63:
            return int(size)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 2**63:
        return int(value)
    raise InputError(f'{name} must be a size such as "40GB" or bytes >= 1, got {show(value)}')


def format_size(size: float) -> str:
    """Return bytes as text for a sentence, such as 31 GB."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= 0.9995 * scale:
            number = size / scale
            if number >= 9999.5:
                return f"{number:.1e} {unit}"
            return f"{number:.0f} {unit}" if number >= 99.5 else f"{number:.2g} {unit}"
    return f"{size / 1e3:.0f} kB" if size >= 999.5 else f"{size:.0f} bytes"
