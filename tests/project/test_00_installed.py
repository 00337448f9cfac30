"""Tests run against the installed package, not against the checkout. This file runs first."""

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


def test_an_unknown_name_raises_an_attribute_error():
    assert not hasattr(fastfed, "nonsense")


@pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() != "x86_64"
    or platform.libc_ver()[0] != "glibc"
    or not shutil.which("gcc")
    or os.environ.get("CC", "gcc") != "gcc",
    reason="instruction levels need gcc and glibc on x86-64",
)
def test_the_installation_has_kernels_for_all_instruction_levels():
    """Without these kernels, tests of levels are skipped and fastfed is several times slower."""
    assert _native.HAS_LEVELS
