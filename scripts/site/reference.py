"""Pages of the reference, generated: Python names, commands, keys of a spec."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec

#: Public modules after `fastfed` itself, with a line each.
MODULES = {
    "environments": "where contexts, rewards and losses come from",
    "privacy": "budgets, certificates, mechanisms, audits",
    "protocols": "what is sent to whom, and what it releases",
    "parties": "silo, server, shuffler, user: the parties of a deployment",
    "results": "what a run leaves behind",
    "simulation": "experiments of specs",
    "experiments": "the papers' figures",
    "advice": "which system to take, and whether to share",
    "kernels": "the compiled kernels, validated",
    "off_policy": "what another policy would have earned",
    "counter_rng": "keyed random numbers for plug-ins",
}
#: Modules that list nothing: what is public of them, by module.
UNLISTED = {
    "protocols": [("protocols", "make_randomizer"), ("protocols.plan", "Plan")],
    "results": [("results.results", "Results"), ("results.results", "CurveResult")],
}


def nav() -> list[Any]:
    python = [{"fastfed": "reference/fastfed.md"}]
    python += [{f"fastfed.{name}": f"reference/{name}.md"} for name in MODULES]
    return [
        {"Overview": "reference/index.md"},
        {"Commands": "reference/cli.md"},
        {"Keys of a spec": "reference/keys.md"},
        {"Python": python},
    ]


def pages() -> Iterator[tuple[str, str]]:
    """Paths under docs/ and their Markdown."""
    yield "reference/index.md", _index()
    yield "reference/cli.md", _commands()
    yield "reference/keys.md", _keys()
    import fastfed

    listed = [("", name) for name in fastfed.__all__ if not name.startswith("_")]
    yield "reference/fastfed.md", _page("fastfed", listed, "the names of `import fastfed`")
    for name, summary in MODULES.items():
        module = importlib.import_module(f"fastfed.{name}")
        found = [(name, listed) for listed in getattr(module, "__all__", ())] or UNLISTED[name]
        yield f"reference/{name}.md", _page(f"fastfed.{name}", found, summary)


def _index() -> str:
    rows = [f"| [`fastfed.{name}`]({name}.md) | {what} |" for name, what in MODULES.items()]
    return "\n".join(
        [
            "# Reference",
            "",
            "All of it is generated from the package that this site was built with.",
            "",
            "- [Commands](cli.md): every command and option of `fastfed`.",
            "- [Keys of a spec](keys.md): every key of a TOML spec, its type and default.",
            "- [`fastfed`](fastfed.md): the names that most scripts need.",
            "",
            "| module | what it has |",
            "|---|---|",
            *rows,
            "",
        ]
    )


# ---- Python -------------------------------------------------------------------------------------


def _page(title: str, names: list[tuple[str, str]], summary: str) -> str:
    """A page of public names, each by the place where it is defined."""
    lines = [f"# `{title}`", "", _sentence(summary), ""]
    above = set(importlib.import_module("fastfed.api").__all__) if title != "fastfed" else set()
    constants = []
    for module, name in names:
        full = f"fastfed.{module}".rstrip(".")
        found = getattr(importlib.import_module(full), name)
        home = getattr(found, "__module__", None) or ""
        if name in above:
            lines += [f"`{name}` stands among [the names of fastfed](fastfed.md).", ""]
        elif (inspect.isclass(found) or inspect.isfunction(found)) and home.startswith("fastfed"):
            lines += [f"::: {home}.{found.__name__}", ""]
        elif hasattr(found, "py_func"):  # compiled by numba
            lines += [f"::: {full}.{name}", ""]
        else:
            constants.append((name, found))
    if constants:
        lines += ["## Constants", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {_constant(value)} |" for name, value in constants]
    return "\n".join(lines) + "\n"


def _constant(value: Any) -> str:
    try:
        names = list(value)
    except TypeError:
        return f"`{value!r}`"
    kind = "names" if all(isinstance(name, str) for name in names) else type(value).__name__
    return f"{kind}: " + ", ".join(f"`{name}`" for name in names)


# ---- commands -----------------------------------------------------------------------------------


def _commands() -> str:
    from fastfed.cli import COMMANDS, cli

    lines = ["# Commands", "", "Exit codes: 0 done, 1 the run failed, 2 bad input.", ""]
    for name in COMMANDS:
        command = cli.commands[name].load()
        lines += _command(f"fastfed {name}", command, 2)
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command, level: int) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    lines = ["#" * level + f" `{name}`", "", f"```text\n{name} {usage}\n```", ""]
    lines += [inspect.cleandoc(command.help or "").replace("\b", ""), ""]
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            spelled = ", ".join([*parameter.opts, *parameter.secondary_opts])
            takes = "" if parameter.is_flag else _takes(parameter)
            rows.append(f"| `{spelled}{takes}` | {_cell(parameter.help or '')} |")
    if rows:
        lines += ["| option | what it does |", "|---|---|", *rows, ""]
    if isinstance(command, click.Group):
        for own, below in command.commands.items():
            lines += _command(f"{name} {own}", below, level + 1)
    return lines


def _takes(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return " " + "|".join(str(choice) for choice in option.type.choices)
    return f" {option.metavar or option.type.name.upper()}"


# ---- keys ---------------------------------------------------------------------------------------


def _keys() -> str:
    from fastfed.environments import ENVIRONMENTS
    from fastfed.simulation.systems import ALGORITHMS

    lines = [
        "# Keys of a spec",
        "",
        "Types and defaults of all keys, as the package reads them. What they mean stands on the",
        "page [spec](../spec.md), with an example.",
        "",
        "## Environments",
        "",
    ]
    for kind in ENVIRONMENTS:
        cls, summary = ENVIRONMENTS[kind]
        fields = [f for f in dataclasses.fields(cls) if f.init]
        rows = [(f.name, f.type, _default(f.default, f.default_factory)) for f in fields]
        lines += [
            f'### `kind = "{kind}"`',
            "",
            f"{summary[0].upper()}{summary[1:]}.",
            "",
            *_table(rows),
        ]
    lines += ["## Curves", ""]
    for name, entry in ALGORITHMS.items():
        fields = msgspec.structs.fields(entry.config)
        rows = [
            (
                f.encode_name,
                f.type,
                "required" if f.required else _default(f.default, f.default_factory),
            )
            for f in fields
        ]
        lines += [
            f'### `algorithm = "{name}"`',
            "",
            f"{entry.summary[0].upper()}{entry.summary[1:]}.",
            "",
            *_table(rows),
        ]
    return "\n".join(lines) + "\n"


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _table(rows: list[tuple[str, Any, str]]) -> list[str]:
    made = [f"| `{name}` | {_type(kind)} | {default} |" for name, kind, default in rows]
    return ["| key | type | default |", "|---|---|---|", *made, ""]


def _type(kind: Any) -> str:
    text = kind if isinstance(kind, str) else str(kind)
    if isinstance(kind, type):
        text = kind.__name__
    text = re.sub(r"\b(typing|builtins|fastfed(\.\w+)+)\.", "", text)
    literals = re.findall(r"Literal\[(.*?)\]", text)
    for found in literals:
        choices = " or ".join(
            f'"{v}"' if isinstance(v, str) else str(v) for v in ast.literal_eval(f"[{found}]")
        )
        text = text.replace(f"Literal[{found}]", choices)
    return "`" + text.replace("|", "or").replace("NoneType", "None") + "`"


def _default(value: Any, factory: Any) -> str:
    missing = (dataclasses.MISSING, msgspec.NODEFAULT, msgspec.UNSET)
    if any(value is m for m in missing):
        if any(factory is m for m in missing):
            return "required"
        value = factory()
    if dataclasses.is_dataclass(value):
        shown = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        pairs = [f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in shown.items()]
        return "`{ " + ", ".join(pairs) + " }`"
    return f"`{value!r}`" if not isinstance(value, str) else f'`"{value}"`'


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
