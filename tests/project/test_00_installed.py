"""First of all: what is tested is the installed package, not the files beside it."""

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest

import fastfed
from fastfed._kernels import _native


def test_fastfed_is_imported_from_an_installation():
    checkout = Path(__file__).resolve().parents[2] / "fastfed"
    assert Path(fastfed.__file__).resolve().parent != checkout, (
        "fastfed was imported from the checkout; run scripts/test, which installs it"
    )


def test_every_public_name_loads():
    for name in fastfed.__all__:
        assert getattr(fastfed, name) is not None
    assert set(fastfed.__all__) <= set(dir(fastfed))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(fastfed, "nonsense")


@pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() != "x86_64"
    or platform.libc_ver()[0] != "glibc"
    or not shutil.which("gcc")
    or os.environ.get("CC", "gcc") != "gcc",
    reason="levels are promised where gcc and glibc build for x86-64",
)
def test_the_installation_has_a_level_for_every_processor():
    """Without them tests of levels are skipped, and everything is several times slower."""
    assert _native.HAS_LEVELS
