"""Generate the pages of the reference: Python names, commands, keys of a spec."""

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

#: Public modules except `fastfed`, each with a description.
MODULES = {
    "environments": "where contexts, rewards and losses come from",
    "privacy": "budgets, certificates, mechanisms, audits",
    "protocols": "messages between parties, and the statistics that they release",
    "parties": "silo, server, shuffler, user: the parties of a deployment",
    "results": "stored results of runs",
    "simulation": "experiments of specs",
    "experiments": "the papers' figures",
    "advice": "recommendation of a system, and whether to share",
    "kernels": "compiled kernels that check their arguments",
    "off_policy": "estimates of the value of a policy from a log",
    "counter_rng": "keyed random numbers for plug-ins",
}
#: Public names of modules without ``__all__``: (module, name).
UNLISTED = {
    "protocols": [("protocols", "make_randomizer"), ("protocols.plan", "Plan")],
    "results": [("results.results", "Results"), ("results.results", "CurveResult")],
}


def nav() -> list[Any]:
    """Return the entries of the reference in the navigation."""
    python = [{"fastfed": "reference/fastfed.md"}]
    python += [{f"fastfed.{name}": f"reference/{name}.md"} for name in MODULES]
    return [
        {"Overview": "reference/index.md"},
        {"Commands": "reference/cli.md"},
        {"Keys of a spec": "reference/keys.md"},
        {"Python": python},
    ]


def pages() -> Iterator[tuple[str, str]]:
    """Yield (path under docs/, Markdown) of each page of the reference."""
    yield "reference/index.md", _index()
    yield "reference/cli.md", _commands()
    yield "reference/keys.md", _keys()
    import fastfed

    listed = [("", name) for name in fastfed.__all__ if not name.startswith("_")]
    yield "reference/fastfed.md", _page("fastfed", listed, "the names of `import fastfed`")
    for name, summary in MODULES.items():
        module = importlib.import_module(f"fastfed.{name}")
        names = [(name, listed) for listed in getattr(module, "__all__", ())] or UNLISTED[name]
        yield f"reference/{name}.md", _page(f"fastfed.{name}", names, summary)


def _index() -> str:
    rows = [f"| [`fastfed.{name}`]({name}.md) | {what} |" for name, what in MODULES.items()]
    return "\n".join(
        [
            "# Reference",
            "",
            "These pages are generated from the package with which this site was built.",
            "",
            "- [Commands](cli.md): every command and option of `fastfed`.",
            "- [Keys of a spec](keys.md): every key of a TOML spec, its type and default.",
            "- [`fastfed`](fastfed.md): the names that most scripts need.",
            "",
            "| module | content |",
            "|---|---|",
            *rows,
            "",
        ]
    )


# ---- Python -------------------------------------------------------------------------------------


def _page(title: str, names: list[tuple[str, str]], summary: str) -> str:
    """Return a page that documents public names, each given as (module, name)."""
    lines = [f"# `{title}`", "", _sentence(summary), ""]
    names_of_fastfed = (
        set(importlib.import_module("fastfed.api").__all__) if title != "fastfed" else set()
    )
    constants = []
    for module, name in names:
        full = f"fastfed.{module}".rstrip(".")
        value = getattr(importlib.import_module(full), name)
        home = getattr(value, "__module__", None) or ""
        if name in names_of_fastfed:
            lines += [f"`{name}` is documented with [the names of fastfed](fastfed.md).", ""]
        elif (inspect.isclass(value) or inspect.isfunction(value)) and home.startswith("fastfed"):
            lines += [f"::: {home}.{value.__name__}", ""]
        elif hasattr(value, "py_func"):  # compiled by numba
            lines += [f"::: {full}.{name}", ""]
        else:
            constants.append((name, value))
    if constants:
        lines += ["## Constants", "", "| name | value |", "|---|---|"]
        lines += [f"| `{name}` | {_constant(value)} |" for name, value in constants]
    return "\n".join(lines) + "\n"


def _constant(value: Any) -> str:
    """Return the cell of a constant: the names that it lists, or its value."""
    try:
        names = list(value)
    except TypeError:
        return f"`{value!r}`"
    kind = "names" if all(isinstance(name, str) for name in names) else type(value).__name__
    return f"{kind}: " + ", ".join(f"`{name}`" for name in names)


# ---- commands -----------------------------------------------------------------------------------


def _commands() -> str:
    """Return the page of all commands."""
    from fastfed.cli import COMMANDS, cli

    lines = ["# Commands", "", "Exit codes: 0 done, 1 the run failed, 2 bad input.", ""]
    for name in COMMANDS:
        command = cli.commands[name].load()
        lines += _command(f"fastfed {name}", command, 2)
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command, level: int) -> list[str]:
    """Return the lines of a command and its subcommands, under a heading of this level."""
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    lines = ["#" * level + f" `{name}`", "", f"```text\n{name} {usage}\n```", ""]
    lines += [inspect.cleandoc(command.help or "").replace("\b", ""), ""]
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = "" if parameter.is_flag else _value_of(parameter)
            rows.append(f"| `{names}{value}` | {_cell(parameter.help or '')} |")
    if rows:
        lines += ["| option | effect |", "|---|---|", *rows, ""]
    if isinstance(command, click.Group):
        for subname, subcommand in command.commands.items():
            lines += _command(f"{name} {subname}", subcommand, level + 1)
    return lines


def _value_of(option: click.Option) -> str:
    """Return the text for the value of an option: its choices, or a placeholder."""
    if isinstance(option.type, click.Choice):
        return " " + "|".join(str(choice) for choice in option.type.choices)
    return f" {option.metavar or option.type.name.upper()}"


# ---- keys ---------------------------------------------------------------------------------------


def _keys() -> str:
    """Return the page of all keys of a spec, with types and defaults."""
    from fastfed.environments import ENVIRONMENTS
    from fastfed.simulation.systems import ALGORITHMS

    lines = [
        "# Keys of a spec",
        "",
        "Types and defaults of all keys. The page [spec](../spec.md) explains the keys, with an",
        "example.",
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
    """Return the lines of a table with a row (key, type, default) for each key."""
    lines = [f"| `{name}` | {_type(kind)} | {default} |" for name, kind, default in rows]
    return ["| key | type | default |", "|---|---|---|", *lines, ""]


def _type(kind: Any) -> str:
    """Return the text of the type of a key, without module names and with choices spelled out."""
    text = kind if isinstance(kind, str) else str(kind)
    if isinstance(kind, type):
        text = kind.__name__
    text = re.sub(r"\b(typing|builtins|fastfed(\.\w+)+)\.", "", text)
    literals = re.findall(r"Literal\[(.*?)\]", text)
    for literal in literals:
        choices = " or ".join(
            f'"{v}"' if isinstance(v, str) else str(v) for v in ast.literal_eval(f"[{literal}]")
        )
        text = text.replace(f"Literal[{literal}]", choices)
    return "`" + text.replace("|", "or").replace("NoneType", "None") + "`"


def _default(value: Any, factory: Any) -> str:
    """Return the text of a default value, or "required" if there is none."""
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
