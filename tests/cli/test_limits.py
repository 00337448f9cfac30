"""Closed or full standard streams, or too little address space, end in one sentence."""

import os
import subprocess
import sys

import pytest

from fastfed.cli import MIN_ADDRESS_SPACE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells as on POSIX")


def shell(text):
    """Run a line of bash in which `fastfed` is the command line."""
    return subprocess.run(
        ["bash", "-c", text.replace("fastfed", f"{sys.executable} -m fastfed")],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_closed_standard_output_gets_a_sentence(tmp_path):
    out = tmp_path / "out"
    for text in ("fastfed list >&-", f"fastfed run s.toml -o {out} >&-"):
        result = shell(text)
        assert result.returncode == 1
        sentence = "error: standard output is closed: send it to a file, or to /dev/null\n"
        assert result.stderr == sentence
    assert not out.exists()


def test_a_closed_standard_error_is_no_error():
    result = shell("fastfed list mechanisms --json 2>&-")
    assert result.returncode == 0 and result.stdout.startswith("{")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full")
def test_a_full_standard_output_gets_a_sentence():
    result = shell("fastfed --help > /dev/full")
    assert result.returncode == 1
    assert result.stderr == "error: output cannot be written: No space left on device\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v as on Linux")
def test_little_address_space_gets_a_sentence():
    result = shell("ulimit -v 200000; fastfed list")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: the limit of address space is 200000 kB (ulimit -v)")
    assert f"at least {MIN_ADDRESS_SPACE >> 10} kB" in result.stderr
    assert shell("ulimit -v 200000; fastfed --help").returncode == 0
