"""Fixtures shared by the tests."""

import functools
import gc
import inspect
import os
from pathlib import Path

# Set before NumPy is loaded: on matrices this small, BLAS threads only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fastfed import _cache
from fastfed._kernels import driver

# Before click 8.2, CliRunner mixes stderr into stdout by default.
if "mix_stderr" in inspect.signature(CliRunner).parameters:
    CliRunner.__init__ = functools.partialmethod(CliRunner.__init__, mix_stderr=False)
    Result.output = property(lambda result: result.stdout + result.stderr)

#: The slowest test files. They start first, so that no worker is left alone with one at the end.
LONGEST = (
    *("engines", "memory", "audit", "instruction_sets", "extending", "registry", "report_page"),
    *("plan_candidates", "plan", "statements", "readme", "cli", "store_safety", "trigger", "bench"),
    *("direct_radius", "deployment_network", "deployment_schedules", "deployment_hub_restore"),
    *("deployment_kills", "deployment_svt", "deployment_masks", "deployment_counts", "fuzz_letor"),
)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def pytest_collection_modifyitems(items):
    """Move the slowest files to the front; keep the order of tests within each file."""
    rank = {f"test_{name}": position for position, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))
    # All collected tests live until the end of the session: exclude them from garbage collection.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Use a temporary cache, so that no test reads or writes the user's cache."""
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    # Tests compute everything again, since some of them change the functions.
    monkeypatch.setenv("FASTFED_CACHE_ACCOUNTS", "off")
    _cache.forget()


@pytest.fixture(autouse=True, scope="session")
def shared_work():
    """Split even the smallest work among threads, so that tests with several threads use them."""
    old_threshold = driver.share_from(-1.0)
    yield
    driver.share_from(old_threshold)


@pytest.fixture
def mslr() -> Path:
    """Return the folder of real MSLR rows; skip the test where ../shared does not have them."""
    path = SHARED / "data" / "mslr"
    if not path.exists():
        pytest.skip("../shared/data/mslr is not here: real MSLR rows are not shipped")
    return path


@pytest.fixture
def heart() -> Path:
    """Return the heart-disease CSV file; skip the test where ../shared does not have it."""
    path = SHARED / "data" / "heart-disease" / "heart_disease_4sites.csv"
    if not path.exists():
        pytest.skip("../shared/data/heart-disease is not here: the rows are not shipped")
    return path


@pytest.fixture
def recorded():
    """Return recorded contexts (M, T, K, d), each of norm <= 1, and rewards (M, T, K)."""
    rng = np.random.default_rng(5)
    contexts = rng.normal(size=(3, 24, 4, 5))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
    return contexts, rng.uniform(size=(3, 24, 4))
