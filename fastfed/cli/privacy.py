"""`fastfed audit`, `fastfed calibrate` and `fastfed privacy`."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fastfed.cli.output import json_option, print_json, print_table, say

# ---- `fastfed audit` -----------------------------------------------------------------------------


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--trials", type=int, metavar="N",
    help="Runs on each of the two datasets; enough for a verdict by default.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Of the runs.")
@json_option
def audit(name: str, trials: int | None, seed: int, as_json: bool) -> None:
    """Audit a mechanism or a system: attack it, and bound the privacy it loses.

    NAME is a mechanism (gaussian-tree, vector-sum, ...), a system (private-fedlinucb), a planted
    fault (fault-...), or "all"; "list" names all audits and what each attacks. The implementation
    itself is run on two neighbouring datasets; the result is a lower bound on the true epsilon with
    95 % confidence. "caught" means that it is above the claim; "pass" that these runs did not
    refute the claim, which proves no privacy.
    """
    from fastfed.simulation.audit import catalogue

    if name == "list":
        _list_audits(as_json)
        return
    names = list(catalogue.AUDITS) if name == "all" else [name]
    found = []
    for each in names:
        if len(names) > 1:
            say(each)
        found.append(catalogue.run_audit(each, trials, seed))
    if as_json:
        print_json(found[0].to_builtins() if len(found) == 1 else [f.to_builtins() for f in found])
        return
    headings = ("audit", "claimed", "lower bound", "trials", "verdict")
    rows = []
    for result in found:
        expected = " (as it must be)" if result.name in catalogue.FAULTY else ""
        verdict = result.verdict + (expected if result.verdict == "caught" else "")
        rows.append(
            (
                result.name,
                f"({result.claimed_epsilon:g}, {result.delta:g})",
                f"{result.epsilon_lower_bound:.3f}",
                f"2 x {result.trials}",
                verdict,
            )
        )
    print_table(headings, rows, right=(2, 3))


def _list_audits(as_json: bool) -> None:
    """Print all audits, one line each."""
    import msgspec

    from fastfed.simulation.audit.catalogue import listed

    found = listed()
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
        return
    rows = [
        (each.name, each.attacks, each.unit, each.relation, "planted fault" if each.planted else "")
        for each in found
    ]
    print_table(("audit", "attacks", "unit", "relation", ""), rows)


# ---- `fastfed calibrate` -------------------------------------------------------------------------

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
    """Calibrate the noise of a mechanism for a privacy budget.

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
    from fastfed.privacy.mechanisms.catalogue import BUILTIN

    if mechanism == "list":
        _list_mechanisms(as_json)
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


def _list_mechanisms(as_json: bool) -> None:
    """Print all mechanisms, one line each."""
    import msgspec

    from fastfed.privacy.mechanisms.catalogue import listed

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


# ---- `fastfed privacy` ---------------------------------------------------------------------------


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@click.option("--curve", metavar="LABEL", help="Only the curve of this label.")
@json_option
def privacy(spec: Path, curve: str | None, as_json: bool) -> None:
    """Privacy certificates of a spec, without running it.

    For every curve: the claim, the exact guarantee, its conditions, and what it does not cover.
    """
    from fastfed._validate import choice
    from fastfed.experiments.specs import load_spec
    from fastfed.reporting.sections import certificates_text
    from fastfed.results.store import made_now
    from fastfed.simulation.run import about_records

    experiment = load_spec(spec)
    if curve is not None:
        choice("--curve", curve, [c.label for c in experiment.curves])
    made = made_now(experiment.identity())
    curves = [
        (c.label, {**c.system.certificate.to_builtins(), **made})
        for c in experiment.curves
        if curve in (None, c.label)
    ]
    about = list(dict.fromkeys(n for c in experiment.curves for n in about_records(c.problem)))
    if as_json:
        found = [{"label": k, "certificate": v} for k, v in curves]
        print_json({"about_records": about, "curves": found})
    else:
        click.echo(certificates_text(curves, about), nl=False)


COMMANDS = {"audit": audit, "calibrate": calibrate, "privacy": privacy}
