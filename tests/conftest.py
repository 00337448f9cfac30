"""Fixtures shared by the tests."""

import functools
import gc
import inspect
import os
from pathlib import Path

# Before NumPy is loaded: at these sizes threads of BLAS only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fastfed._kernels import driver

# Before click 8.2 a runner joins the outputs, unless told not to.
if "mix_stderr" in inspect.signature(CliRunner).parameters:
    CliRunner.__init__ = functools.partialmethod(CliRunner.__init__, mix_stderr=False)
    Result.output = property(lambda result: result.stdout + result.stderr)

#: Files that take longest, which begin first: a worker that begins one last leaves the other idle.
LONGEST = (
    *("engines", "memory", "audit", "instruction_sets", "extending", "registry", "report_page"),
    *("plan_candidates", "plan", "statements", "readme", "cli", "store_safety", "trigger", "bench"),
    *("direct_radius", "deployment_network", "deployment_schedules", "deployment_hub_restore"),
    *("deployment_kills", "deployment_svt", "deployment_masks", "deployment_counts", "fuzz_letor"),
)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def pytest_collection_modifyitems(items):
    """The longest files first; the order within a file stays."""
    rank = {f"test_{name}": at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))
    # Ten thousand tests stay to the end: the collector need not look at them again and again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="session")
def shared_work():
    """Threads share all work, however small, so that tests with several see them."""
    before = driver.share_from(-1.0)
    yield
    driver.share_from(before)


@pytest.fixture
def mslr() -> Path:
    """Real MSLR rows where they lie beside the project."""
    path = SHARED / "data" / "mslr"
    if not path.exists():
        pytest.skip("../shared/data/mslr is not here: real MSLR rows are not shipped")
    return path


@pytest.fixture
def heart() -> Path:
    path = SHARED / "data" / "heart-disease" / "heart_disease_4sites.csv"
    if not path.exists():
        pytest.skip("../shared/data/heart-disease is not here: the rows are not shipped")
    return path


@pytest.fixture
def recorded():
    """A small replay: contexts (M, T, K, d) of norm <= 1 and rewards (M, T, K)."""
    draw = np.random.default_rng(5)
    contexts = draw.normal(size=(3, 24, 4, 5))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
    return contexts, draw.uniform(size=(3, 24, 4))
