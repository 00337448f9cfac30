"""Trees of head and base with a compiled core each, kept in build/gate/ between runs.

The core is compiled from what a tree holds, by this Python and this compiler, and kept by a digest
of all that; so a base is compiled once, and not at all where it differs from head in Python alone.
A tree of the base is an archive of its commit: nothing is left in .git, as a `git worktree` would.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "gate"
#: What the compiled core is made of, besides fastfed/_kernels.
SOURCES = ("setup.py", "pyproject.toml")


class BuildError(Exception):
    """A tree that cannot be had, or does not compile."""


def git(*words: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def default_base(root: Path = ROOT) -> str:
    """Where head left main; the commit before head, where head is main's."""
    for name in ("origin/main", "main"):
        try:
            found = git("merge-base", "HEAD", name, root=root)
        except BuildError:
            continue
        if found != git("rev-parse", "HEAD", root=root):
            return found
    return git("rev-parse", "HEAD^", root=root)


def base_tree(revision: str, root: Path = ROOT, cache: Path = CACHE) -> Path:
    """The tree of a commit."""
    commit = git("rev-parse", "--verify", revision + "^{commit}", root=root)
    tree = cache / "trees" / commit
    if not tree.is_dir():
        part = tree.with_name(f"{commit}.{os.getpid()}")
        part.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit], cwd=root, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(part)], input=archive.stdout, check=True)
        settle(part, tree)
    return tree


def settle(part: Path, target: Path) -> None:
    """Give a finished folder its name, unless another run was first."""
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(part)


def head_tree(tree: Path, root: Path = ROOT) -> Path:
    """A copy of the checkout as it stands, with what has not been committed."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "-z", root=root)
    for path in filter(None, listed.split("\0")):
        source, target = root / path, tree / path
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return tree


def digest(tree: Path) -> str:
    """Digest of the core's sources and of what compiles them."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    version = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True)
    said = [sys.version, platform.machine(), compiler, version.stdout]
    said += [os.environ.get(name, "") for name in ("CFLAGS", "LDFLAGS", "FASTFED_BUILD")]
    whole = hashlib.sha256(repr(said).encode())
    kernels = tree / "fastfed" / "_kernels"
    files = [p for p in kernels.rglob("*") if p.suffix in (".pyx", ".pxd", ".h")]
    # The .c files beside the .pyx are made by Cython.
    files += [p for p in kernels.rglob("*.c") if p.parent != kernels]
    for path in sorted([*files, *(tree / name for name in SOURCES)]):
        whole.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:24]


def compiled(tree: Path, cache: Path = CACHE) -> tuple[Path, bool]:
    """The tree with its compiled core; whether it had to be compiled."""
    kept = cache / "cores" / digest(tree)
    fresh = not kept.is_dir()
    if fresh:
        done = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=tree, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")},
        )  # fmt: skip
        if done.returncode:
            raise BuildError(f"{tree} does not compile:\n{done.stdout[-4000:]}")
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        for path in tree.glob("fastfed/**/*.so"):
            target = part / path.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        settle(part, kept)
    for path in kept.glob("fastfed/**/*.so"):
        target = tree / path.relative_to(kept)
        # A file of its own: another run may have the one there loaded.
        own = target.with_name(f".{os.getpid()}.{target.name}")
        shutil.copy2(path, own)
        own.replace(target)
    return tree, fresh
