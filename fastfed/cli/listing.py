"""`fastfed list`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_table

KINDS = ("algorithms", "environments", "figures")


@click.command("list")
@click.argument("kind", required=False, metavar="[algorithms|environments|figures]")
@json_option
def list_(kind: str | None, as_json: bool) -> None:
    """Algorithms, environments and figures by name."""
    if kind is not None:
        from fastfed._validate import choice

        choice("what to list", kind, KINDS)
    found = {name: ENTRIES[name]() for name in KINDS if kind in (None, name)}
    if as_json:
        print_json(found)
        return
    for position, (name, entries) in enumerate(found.items()):
        if position:
            click.echo()
        headings = list(entries[0]) if entries else []
        click.secho(name, bold=True)
        print_table(headings, [[_cell(entry[key]) for key in headings] for entry in entries])


def algorithms() -> list[dict[str, Any]]:
    from fastfed.simulation.systems import ALGORITHMS

    return [{"id": a.id, "paper": a.paper, "summary": a.summary} for a in ALGORITHMS.values()]


def environments() -> list[dict[str, Any]]:
    from fastfed.environments import ENVIRONMENTS

    return [{"id": kind, "summary": summary} for kind, (_, summary) in ENVIRONMENTS.items()]


def figures() -> list[dict[str, Any]]:
    from fastfed import experiments

    return [
        {"id": f.id, "paper": f.paper, "title": f.title, "needs_data": f.needs_data}
        for f in experiments.figures()
    ]


def _cell(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


ENTRIES = {"algorithms": algorithms, "environments": environments, "figures": figures}

COMMANDS = {"list": list_}
