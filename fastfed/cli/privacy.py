"""`fastfed privacy`."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fastfed.cli.options import json_option, load_spec
from fastfed.cli.output import print_json


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@click.option("--curve", metavar="LABEL", help="Only the curve of this label.")
@json_option
def privacy(spec: Path, curve: str | None, as_json: bool) -> None:
    """What a spec guarantees, without playing it.

    The certificate of every curve: what was asked for, what exactly holds, under which
    conditions, and what is not covered.
    """
    from fastfed._validate import choice
    from fastfed.report.certificates import certificates_text
    from fastfed.results.store import made_now
    from fastfed.simulation.run import about_records

    experiment = load_spec(spec, {})
    if curve is not None:
        choice("--curve", curve, [c.label for c in experiment.curves])
    made = made_now(experiment.identity())
    curves = [
        (c.label, {**c.system.certificate.to_builtins(), **made})
        for c in experiment.curves
        if curve in (None, c.label)
    ]
    about = list(dict.fromkeys(n for c in experiment.curves for n in about_records(c.world)))
    if as_json:
        found = [{"label": k, "certificate": v} for k, v in curves]
        print_json({"about_records": about, "curves": found})
    else:
        click.echo(certificates_text(curves, about), nl=False)


COMMANDS = {"privacy": privacy}
