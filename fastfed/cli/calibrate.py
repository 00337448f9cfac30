"""`fastfed calibrate`."""

from __future__ import annotations

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_table

#: Mechanisms that take both --users and --dimension.
SIZED = ("vector-sum", "vector-batches")


@click.command()
@click.argument("mechanism", metavar="MECHANISM")
@click.option("--epsilon", type=float, metavar="E", help="Above 0.  [required]")
@click.option("--delta", type=float, metavar="D", help="Between 0 and 1.  [required]")
@click.option("--releases", type=int, default=1, show_default=True, metavar="K",
              help="Releases in all; of a single agent, those of one user.")  # fmt: skip
@click.option("--relation", default="replace", show_default=True, metavar="R",
              help="Neighbours differ by: replace, or zero-out.")  # fmt: skip
@click.option("--users", type=int, metavar="N",
              help="Users of all silos in one batch.")  # fmt: skip
@click.option("--dimension", type=int, metavar="D", help="Dimension of the features.")
@click.option("--sensitivity", type=float, metavar="S",
              help="The most that neighbours change one release; the mechanism's own by default.",
              )  # fmt: skip
@json_option
def calibrate(
    mechanism: str,
    epsilon: float | None,
    delta: float | None,
    releases: int,
    relation: str,
    users: int | None,
    dimension: int | None,
    sensitivity: float | None,
    as_json: bool,
) -> None:
    """Noise of a mechanism for a privacy budget.

    MECHANISM is gaussian (sums of unit vectors, a record in every release), gaussian-tree (both
    streams of a linear bandit through the binary tree), gaussian-tree-theorem or
    gaussian-tree-published-code (the same with the paper's or its code's constants), honaker or
    toeplitz (the same streams through releases of less noise), or vector-sum (the same through
    shuffled bits, with --users and --dimension); of a single agent's users noisy-points (each adds
    noise), shuffled-points (the same through a shuffler, with --users) or vector-batches (shuffled
    bits, with --users and --dimension); of experts noisy-argmin (noise on scores of which only the
    least is told); laplace (any statistic, L1 sensitivity) or exponential (a choice, as Gumbel
    noise on costs); or what an installed package adds. "list" names them all with their units and
    what noise_std is of. --sensitivity goes with gaussian, noisy-argmin, laplace and exponential.
    """
    import msgspec

    from fastfed.privacy import Budget
    from fastfed.privacy import calibrate as calibrated
    from fastfed.privacy.mechanisms import BUILTIN

    if mechanism == "list":
        _list(as_json)
        return
    for option, value in (("--epsilon", epsilon), ("--delta", delta)):
        if value is None:
            raise click.UsageError(f"Missing option '{option}'.")
    assert epsilon is not None and delta is not None
    ours = mechanism in BUILTIN
    if ours and dimension is not None and mechanism not in SIZED:
        raise click.UsageError(f"--dimension belongs to {' and '.join(SIZED)}")
    if ours and users is not None and mechanism not in (*SIZED, "shuffled-points"):
        raise click.UsageError(f"--users belongs to {', '.join(SIZED)} and shuffled-points")
    found = calibrated(
        mechanism,
        Budget(epsilon, delta, relation),
        releases,
        users=users,
        dimension=dimension,
        sensitivity=sensitivity,
    )
    values = msgspec.to_builtins(found)
    if as_json:
        print_json(values)
        return
    for name, value in values.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        click.echo(f"{name.replace('_', ' '):<10}  {text}")


def _list(as_json: bool) -> None:
    """All mechanisms, one line each."""
    import msgspec

    from fastfed.privacy.mechanisms import listed

    found = listed()
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
        return
    rows = [
        (
            each.name,
            each.unit,
            each.noise_std,
            " ".join(f"--{need}" for need in each.needs),
            each.default_sensitivity or "",
        )
        for each in found
    ]
    print_table(("mechanism", "unit", "noise std", "needs", "sensitivity"), rows)


COMMANDS = {"calibrate": calibrate}
