"""`fastfed plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from fastfed.advice import Advice, Candidate


@click.command()
@click.option("--silos", type=int, metavar="M", help="Silos; from the data where they say it.")
@click.option("--horizon", type=int, required=True, metavar="T", help="Rounds of each silo.")
@click.option("--dimension", type=int, metavar="D", help="Dimension of the features.")
@click.option("--epsilon", type=float, required=True, metavar="E", help="Above 0.")
@click.option("--delta", type=float, required=True, metavar="D", help="Between 0 and 1.")
@click.option("--relation", default="replace", show_default=True, metavar="R",
              help="Neighbours differ by: replace, or zero-out.")  # fmt: skip
@click.option("--trust", multiple=True, metavar="WHO",
              help="silo-ldp, shuffle or central; may be repeated (default: all).")  # fmt: skip
@click.option("--actions", type=int, metavar="K",
              help="Actions of the simulated sphere (default: 100).")  # fmt: skip
@click.option("--environment", "spec", type=click.Path(path_type=Path), metavar="SPEC.toml",
              help="Simulate the environment of this spec in place of the sphere.")  # fmt: skip
@click.option("--radius-multiplier", type=float, default=1.0, show_default=True, metavar="X",
              help="Factor of all confidence radii; below 1 no regret bound holds.")  # fmt: skip
@click.option("--seconds", type=float, default=20.0, show_default=True, metavar="S",
              help="Time to simulate, about, on one core.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N",
              help="Of all randomness.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Threads (default: all processors); the answer is the same.")  # fmt: skip
@click.option("--write", type=click.Path(path_type=Path), metavar="SPEC.toml",
              help="Write a spec of what is recommended, for `fastfed run`.")  # fmt: skip
@json_option
def plan(
    silos: int | None,
    horizon: int,
    dimension: int | None,
    epsilon: float,
    delta: float,
    relation: str,
    trust: tuple[str, ...],
    actions: int | None,
    spec: Path | None,
    radius_multiplier: float,
    seconds: float,
    seed: int,
    threads: int | None,
    write: Path | None,
    as_json: bool,
) -> None:
    """Choose protocol, release and batch size, or decide against sharing.

    All systems that give (E, D) to every user are compared, separately for each trust model: by
    noise and proven bounds, then by short simulations. The answer names the best system, the cost
    of privacy, and where that cost exceeds the gain of sharing.
    """
    from fastfed._validate import InputError
    from fastfed.advice import plan as find_plan

    if spec is not None and actions is not None:
        raise click.UsageError("--actions belongs to the sphere, --environment has its own")
    if write is not None and not os.path.isdir(write.parent):
        raise InputError(f"--write must be in an existing folder, got {str(write)!r}")
    if not as_json:
        say(f"about {seconds:g} s of simulation on one core")
    found = find_plan(
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        trust=trust or None,
        environment=spec,
        radius_multiplier=radius_multiplier,
        seconds=seconds,
        seed=seed,
        threads=threads,
        on_stage=None if as_json else say,
        **({} if actions is None else {"actions": actions}),
    )
    if write is not None:
        write.write_text(found.spec_text(), encoding="utf-8")
    if as_json:
        print_json(found.to_builtins())
    else:
        _print(found)
    if write is not None:
        say(f"{write}: play it with `fastfed run {write} -o DIR`")


def _print(found: Advice) -> None:
    for note in found.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"every {found.unit} ({found.relation}): ({found.epsilon:g}, {found.delta:g}), "
        f"{found.status}; {found.silos} silos, {found.horizon} rounds, d = {found.dimension}, "
        f"{found.environment['kind']}"
    )
    click.echo(f"{found.scaling}; regret and bound are of one silo")
    for verdict in found.verdicts:
        click.echo()
        click.secho(f"{verdict.trust}: {verdict.trusted}", bold=True)
        rows = [_row(c) for c in found.candidates if c.trust == verdict.trust and not c.remark]
        print_table(
            ("", "noise std", "exact epsilon", "bound", "regret", "sent", "stage"),
            rows,
            right=(1, 2, 3, 4, 5),
        )
        quieter = [c for c in found.candidates if c.trust == verdict.trust and c.remark]
        kinds = dict.fromkeys(c.label.rpartition(", B")[0] for c in quieter)
        if kinds:
            click.echo(f"noisier at the same batch size, so not played: {'; '.join(kinds)}")
        click.echo(f"=> {verdict.sentence}")
    click.echo()
    from fastfed.advice.planner import figure

    print_table(
        ("to compare with", "regret", "privacy"),
        [(b.label, figure(b.regret), b.privacy) for b in found.baselines],
        right=(1,),
    )
    click.echo("\nno candidates:")
    for name, reason in found.left_out.items():
        click.echo(f"  {name}: {reason}")


def _row(c: Candidate) -> tuple[str, ...]:
    from fastfed.advice.planner import figure
    from fastfed.privacy.certificate import rounded_up
    from fastfed.reporting.table import sent

    bound = "none" if c.bound is None else "vacuous" if c.vacuous else f"{c.bound:.3g}"
    regret = figure(c.regret) if c.regret else "not played"
    stage = c.regret.stage if c.regret else ""
    return (
        c.label,
        f"{c.noise_std:.4g}",
        rounded_up(c.epsilon),
        bound,
        regret,
        sent(c.bytes_sent),
        stage,
    )


COMMANDS = {"plan": plan}
