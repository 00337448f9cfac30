"""The stored ratios of the gate, by processor: `--write-baseline` stores what this run measures."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

BASELINE = Path(__file__).with_name("baseline.json")


def pytest_addoption(parser):
    parser.addoption("--write-baseline", action="store_true", help="store the ratios measured")


def processor() -> str:
    """The processor's own name, for a ratio is of one processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


class Baseline:
    """The ratios of this processor."""

    def __init__(self, writes: bool) -> None:
        self.writes = writes
        self.all = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        self.ratios = self.all.get(processor(), {})
        self.found: dict[str, float] = {}

    def least(self, name: str) -> float | None:
        """What a ratio may not fall below; None while baselines are written.

        On a processor without one it is a quarter of what was stored on any other: enough to see
        that a compiled path has been lost.
        """
        if self.writes:
            return None
        if name in self.ratios:
            return 0.75 * self.ratios[name]
        others = [ratios[name] for ratios in self.all.values() if name in ratios]
        return 0.25 * min(others) if others else None

    def close(self) -> None:
        if self.writes and self.found:
            self.all[processor()] = {**self.ratios, **self.found}
            BASELINE.write_text(json.dumps(self.all, indent=2) + "\n")


@pytest.fixture(scope="session")
def baseline(request):
    kept = Baseline(request.config.getoption("--write-baseline"))
    yield kept
    kept.close()
