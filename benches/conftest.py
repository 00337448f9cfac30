"""Stored ratios of `bench_ratios.py` by processor; `--write-baseline` stores new ratios."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

BASELINE = Path(__file__).with_name("baseline.json")


def pytest_addoption(parser):
    parser.addoption("--write-baseline", action="store_true", help="store the measured ratios")


def processor() -> str:
    """Return the model name of the processor; stored ratios are valid for one model only."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model_names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return model_names[0] if model_names else platform.processor() or platform.machine()


class Baseline:
    """The stored ratios of all processors, and the ratios measured in this run."""

    def __init__(self, writes: bool) -> None:
        self.writes = writes
        self.all = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        self.ratios = self.all.get(processor(), {})
        self.measured: dict[str, float] = {}

    def least(self, name: str) -> float | None:
        """Return the least allowed ratio of a case; None while a baseline is written.

        On a processor without stored ratios, this is a quarter of the least ratio of other
        processors, which is enough to detect that a compiled path is no longer used.
        """
        if self.writes:
            return None
        if name in self.ratios:
            return 0.75 * self.ratios[name]
        others = [ratios[name] for ratios in self.all.values() if name in ratios]
        return 0.25 * min(others) if others else None

    def close(self) -> None:
        """Write the measured ratios to the file, if this run writes a baseline."""
        if self.writes and self.measured:
            self.all[processor()] = {**self.ratios, **self.measured}
            BASELINE.write_text(json.dumps(self.all, indent=2) + "\n")


@pytest.fixture(scope="session")
def baseline(request):
    stored = Baseline(request.config.getoption("--write-baseline"))
    yield stored
    stored.close()
