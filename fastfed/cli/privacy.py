"""`fastfed privacy`."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fastfed.cli.options import json_option, load_spec
from fastfed.cli.output import print_json


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@json_option
def privacy(spec: Path, as_json: bool) -> None:
    """What a spec guarantees, without playing it.

    The certificate of every curve: what was asked for, what exactly holds, under which
    conditions, and what is not covered.
    """
    from fastfed.report.certificates import certificates_text

    experiment = load_spec(spec, {})
    curves = [(c.label, c.system.certificate.to_builtins()) for c in experiment.curves]
    if as_json:
        print_json({"curves": [{"label": k, "certificate": v} for k, v in curves]})
    else:
        click.echo(certificates_text(curves), nl=False)


COMMANDS = {"privacy": privacy}
