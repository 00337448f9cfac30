"""`fastfed list`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich_click as click

from fastfed.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from fastfed._registry import Registry

KINDS = ("algorithms", "environments", "mechanisms", "scores", "figures")


@click.command("list")
@click.argument("kind", required=False, metavar=f"[{'|'.join(KINDS)}]")
@json_option
def list_(kind: str | None, as_json: bool) -> None:
    """Algorithms, environments, mechanisms, scores and figures by name.

    Entries of installed packages are listed with their package. A package that cannot be used is
    named on standard error.
    """
    if kind is not None:
        from fastfed._validate import choice

        choice("what to list", kind, KINDS)
    wanted = [name for name in KINDS if kind in (None, name)]
    found = {name: ENTRIES[name]() for name in wanted}
    if as_json:
        print_json(found)
    for position, (name, entries) in enumerate(found.items() if not as_json else ()):
        if position:
            click.echo()
        headings = list(entries[0]) if entries else []
        if not any(entry.get("package") for entry in entries):
            headings = [heading for heading in headings if heading != "package"]
        click.secho(name, bold=True)
        print_table(headings, [[_cell(entry[key]) for key in headings] for entry in entries])
    for name in wanted:
        for problem in _registry(name).problems().values() if name != "figures" else ():
            click.echo(f"warning: {problem}", err=True)


def _registry(kind: str) -> Registry[Any]:
    from fastfed.simulation.systems import registries

    return registries()[kind]


def _usable(kind: str) -> Iterator[tuple[str, Any, str | None]]:
    """Yield name, entry and package of all that can be used."""
    registry = _registry(kind)
    refused = registry.problems()
    for name in registry:
        if name in registry.builtin or name not in refused:
            yield name, registry[name], registry.origin(name)


def algorithms() -> list[dict[str, Any]]:
    """Rows of the algorithms."""
    return [
        {"id": name, "paper": a.paper, "summary": a.summary, "package": package}
        for name, a, package in _usable("algorithms")
    ]


def environments() -> list[dict[str, Any]]:
    """Rows of the environments."""
    return [
        {"id": name, "summary": summary, "package": package}
        for name, (_, summary), package in _usable("environments")
    ]


def mechanisms() -> list[dict[str, Any]]:
    """Rows of the mechanisms."""
    from fastfed.privacy.mechanisms.catalogue import summary

    return [
        {"id": name, "summary": summary(name), "package": package}
        for name, _, package in _usable("mechanisms")
    ]


def scores() -> list[dict[str, Any]]:
    """Rows of the scores."""
    return [
        {
            "id": name,
            "summary": score.summary if score else "the upper confidence bound, as in the papers",
            "package": package,
        }
        for name, score, package in _usable("scores")
    ]


def figures() -> list[dict[str, Any]]:
    """Rows of the figures."""
    from fastfed import experiments

    return [
        {"id": f.id, "paper": f.paper, "title": f.title, "needs_data": f.needs_data}
        for f in experiments.figures()
    ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


ENTRIES = {
    "algorithms": algorithms,
    "environments": environments,
    "mechanisms": mechanisms,
    "scores": scores,
    "figures": figures,
}

COMMANDS = {"list": list_}
