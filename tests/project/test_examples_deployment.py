"""The containers of examples/deployment and the pages beside them name commands that exist.

No container is started: files are read as text, their commands parsed as fastfed would.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

pytest.importorskip("cryptography")

import federation

from fastfed._kernels import _native
from fastfed.cli import LazyCommand, cli
from fastfed.deployment.plans import compile_plan

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "deployment"
COMPOSE = (HERE / "compose.yaml").read_text(encoding="utf-8")
IMAGE = (HERE / "Dockerfile").read_text(encoding="utf-8")
PAGES = [HERE / "README.md"] + [
    ROOT / "docs" / f"{name}.md"
    for name in ("deployment", "records", "run-it-for-real", "privacy-officer")
]


def understood(words):
    """The names of a command's parameters that are given, if fastfed has all of them."""
    command, words = cli, list(words)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, words
        if isinstance(command, LazyCommand):
            command = command.load()
    given, rest, _ = command.make_parser(click.Context(command)).parse_args(words)
    assert not rest, f"{command.name} has no use for {rest}"
    given = {name for name, value in given.items() if isinstance(value, str | bool)}
    missing = {p.name for p in command.params if p.required} - given
    assert not missing, f"{command.name} needs {missing}"
    return given


def services():
    """The text of each service."""
    _, text = COMPOSE.split("\nservices:\n")
    text, _ = text.split("\nvolumes:\n")
    parts = re.split(r"^  ([a-z]+):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(key, text):
    (found,) = re.findall(rf"^ +{key}: (\[.*\])$", text, re.MULTILINE)
    return json.loads(found)


def console(page):
    """The commands of fastfed in a page's console blocks."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if "fastfed" not in line and "docker compose run" not in line:
                continue
            for part in line.split(";"):
                words = shlex.split(part, comments=True)
                if words[:3] == ["docker", "compose", "run"]:
                    names = [words.index(name) for name in services() if name in words]
                    yield words[min(names) + 1 :]
                elif "fastfed" in words:
                    yield words[words.index("fastfed") + 1 :]


def test_a_command_that_fastfed_has_not_is_found():
    good = ["silo", "/data", "--hub", "https://hub:8443", "--ca", "/ca/ca.pem"]
    assert understood(good) == {"folder", "hub", "ca"}
    with pytest.raises(click.NoSuchOption):
        understood([*good, "--insecure"])
    with pytest.raises(AssertionError, match="needs"):
        understood(["silo"])
    with pytest.raises(AssertionError):
        understood(["deploy", "merge", "/data"])
    with pytest.raises(AssertionError, match="no use for"):
        understood([*good, "more"])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_show_commands_that_fastfed_has(page):
    found = [understood(words) for words in console(page)]
    assert len(found) >= 2


def test_services_are_a_hub_and_three_silos_apart():
    found = services()
    assert list(found) == ["hub", "north", "east", "south"]
    for name, text in found.items():
        command = listed("command", text)
        assert command[:2] == ["serve" if name == "hub" else "silo", "/data"]
        understood(command)
        kept, *others = listed("volumes", text)
        # A party sees its own volume; what it shares with others it cannot write.
        assert kept == f"{name}:/data" and all(other.endswith(":ro") for other in others)
        assert ("ports:" in text) == (name == "hub") == any("tls" in each for each in others)
        assert f"\n  {name}:\n" in COMPOSE.split("\nvolumes:")[1]
        assert "<<: *party" in text
    test = listed("test", found["hub"])
    assert test[:2] == ["CMD", "fastfed"]
    understood(test[2:])


def test_the_image_holds_no_secret_and_runs_as_nobody_special():
    copied = re.findall(r"^COPY (?!--from)(.*)$", IMAGE, re.MULTILINE)
    names = [word for line in copied for word in line.split()[:-1]]
    assert names and all((ROOT / name).exists() for name in names)
    assert "examples" not in names and "." not in names
    allowed = (HERE / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert allowed[0] == "*" and {f"!{name}" for name in names} <= set(allowed)
    user, entry = IMAGE.index("\nUSER 10001:10001"), IMAGE.index('\nENTRYPOINT ["fastfed"]')
    assert user < entry and "--mode 0700" in IMAGE
    for text in (IMAGE, COMPOSE):
        assert not re.search(
            r"^\s*(ENV|ARG|environment:|env_file:|privileged:)", text, re.MULTILINE
        )
    dockerfile = re.search(r"dockerfile: (.*)", COMPOSE)[1]
    context = re.search(r"context: (.*)", COMPOSE)[1]
    assert (HERE / context / dockerfile).samefile(HERE / "Dockerfile")


def test_the_image_has_the_libraries_that_the_kernels_need():
    """A slim image has few; which are needed, the extension itself says."""
    needed = set(re.findall(rb"lib(\w+)\.so\.[0-9]+", Path(_native.__file__).read_bytes()))
    last = IMAGE.rpartition("\nFROM ")[2]
    for name in needed - {b"c", b"m", b"pthread", b"dl", b"rt"}:
        assert f"lib{name.decode()}1" in last, name


def test_the_spec_compiles_once_it_has_keys():
    text = (HERE / "spec.toml").read_text(encoding="utf-8")
    spec = tomllib.loads(text)
    names = [silo["name"] for silo in spec["silos"]]
    assert names == list(services())[1:]
    spec["silos"] = [federation.party(name) for name in names]
    spec["hub"] = federation.party("hub")
    found = compile_plan(spec)
    assert (found.certificate.status, found.plan.releases) == ("proven", 10)
