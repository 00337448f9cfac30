"""Containers of examples/deployment and pages about them use commands that fastfed has.

The tests start no container. They read the files as text and parse the commands as fastfed does.
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


def parsed(words):
    """Parse a fastfed command and return the names of its given parameters.

    Raise an error for unknown commands and options, and for missing or extra parameters.
    """
    command, words = cli, list(words)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, words
        if isinstance(command, LazyCommand):
            command = command.load()
    parameters, extra_words, _ = command.make_parser(click.Context(command)).parse_args(words)
    assert not extra_words, f"{command.name} has no use for {extra_words}"
    # Options that may be given several times have lists.
    given = {k: v for k, v in parameters.items() if isinstance(v, str | bool | list)}
    parameters = {name for name, value in given.items() if value != []}
    missing = {parameter.name for parameter in command.params if parameter.required} - parameters
    assert not missing, f"{command.name} needs {missing}"
    return parameters


def services():
    """Return the text of each service in compose.yaml, by name."""
    _, text = COMPOSE.split("\nservices:\n")
    text, _ = text.split("\nvolumes:\n")
    parts = re.split(r"^  ([a-z]+):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def list_of(key, text):
    """Return the list under this key in a service's text."""
    (json_list,) = re.findall(rf"^ +{key}: (\[.*\])$", text, re.MULTILINE)
    return json.loads(json_list)


def console(page):
    """Yield the fastfed commands in the console blocks of a page."""
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


def test_parsing_refuses_commands_and_options_that_do_not_exist():
    command = ["silo", "/data", "--hub", "https://hub:8443", "--ca", "/ca/ca.pem"]
    assert parsed(command) == {"folder", "hub", "ca"}
    with pytest.raises(click.NoSuchOption):
        parsed([*command, "--insecure"])
    with pytest.raises(AssertionError, match="needs"):
        parsed(["silo"])
    with pytest.raises(AssertionError):
        parsed(["deploy", "merge", "/data"])
    with pytest.raises(AssertionError, match="no use for"):
        parsed([*command, "more"])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_show_only_commands_that_exist(page):
    parsed_commands = [parsed(words) for words in console(page)]
    assert len(parsed_commands) >= 2


def test_services_are_a_hub_and_three_silos_with_separate_volumes():
    service_texts = services()
    assert list(service_texts) == ["hub", "north", "east", "south"]
    for name, text in service_texts.items():
        command = list_of("command", text)
        assert command[:2] == ["serve" if name == "hub" else "silo", "/data"]
        parsed(command)
        party_volume, *shared_volumes = list_of("volumes", text)
        # A party can write only to its volume; volumes shared with others are read-only.
        assert party_volume == f"{name}:/data" and all(
            volume.endswith(":ro") for volume in shared_volumes
        )
        assert (
            ("ports:" in text)
            == (name == "hub")
            == any("tls" in volume_name for volume_name in shared_volumes)
        )
        assert f"\n  {name}:\n" in COMPOSE.split("\nvolumes:")[1]
        assert "<<: *party" in text
    test = list_of("test", service_texts["hub"])
    assert test[:2] == ["CMD", "fastfed"]
    parsed(test[2:])


def test_the_image_holds_no_secret_and_runs_without_root():
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
    """A slim image has few libraries; the compiled extension names those that it needs."""
    needed = set(re.findall(rb"lib(\w+)\.so\.[0-9]+", Path(_native.__file__).read_bytes()))
    last = IMAGE.rpartition("\nFROM ")[2]
    for name in needed - {b"c", b"m", b"pthread", b"dl", b"rt"}:
        assert f"lib{name.decode()}1" in last, name


def test_the_spec_compiles_after_keys_are_added():
    text = (HERE / "spec.toml").read_text(encoding="utf-8")
    spec = tomllib.loads(text)
    names = [silo["name"] for silo in spec["silos"]]
    assert names == list(services())[1:]
    spec["silos"] = [federation.party(name) for name in names]
    spec["hub"] = federation.party("hub")
    plan = compile_plan(spec)
    assert (plan.certificate.status, plan.plan.releases) == ("proven", 10)
