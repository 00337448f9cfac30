"""Commands for runs and results: `fastfed run`, `reproduce`, `results`, `report`, `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fastfed.cli import Group
from fastfed.cli.output import json_option, print_json, print_results, print_table, run_options, say

if TYPE_CHECKING:
    from fastfed.reporting.comparison import Comparison
    from fastfed.simulation.dispatch import Resources


def format_option(text: str) -> Any:
    """Return the option --format, for formats of figure files; its help begins with ``text``."""
    # `fastfed.reporting.plot_files` has the same formats; --help must not import it.
    return click.option(
        "--format", "formats", multiple=True, type=click.Choice(("png", "svg", "pdf", "pgf")),
        help=f"{text}; may be repeated. pdf and pgf are for papers, one column wide; pgf needs "
        "LaTeX.",
    )  # fmt: skip


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@run_options
@format_option("Also write the figures as files in this format")
def run(
    spec: Path,
    folder: Path,
    replicates: int | tuple[int, int] | None,
    resources: Resources,
    seed: int | None,
    quick: bool,
    changes: dict[str, Any],
    formats: tuple[str, ...],
) -> None:
    """Simulate the experiment of a spec, or the missing part of it.

    Every replicate of a curve is stored in DIR/results.sqlite as soon as it is simulated. If you
    repeat the command, it simulates only the missing replicates. DIR also gets report.html (one
    page with everything, including charts of regret against rounds and against bytes sent), the
    table (table.txt, table.csv) and the privacy certificates (certificates.txt).

    A log of decisions (kind = "log") has no regret. Systems are trained on its earlier rows, and
    the command prints the value of the learned policies, estimated from the later rows. DIR gets
    values.json and certificates.txt.
    """
    from fastfed.experiments.specs import load_spec

    experiment = load_spec(spec, replicates=replicates, seed=seed, quick=quick, changes=changes)
    if experiment.environment.kind == "log":
        if formats:
            raise click.UsageError(
                "--format draws regret, and a log of decisions has no regret: omit --format"
            )
        from fastfed.cli.logs import run_log

        run_log(experiment, folder)
        return
    from fastfed.cli.execution import simulate

    simulate(experiment, folder, resources, formats)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="FIGURE...")
@run_options
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH",
    help="Learning-to-rank file or folder, for figures that need one.",
)  # fmt: skip
@click.option(
    "--full",
    is_flag=True,
    help="Simulate the sizes of the papers, also if the default sizes are smaller.",
)
@click.option(
    "--dry-run", is_flag=True,
    help="Only print the remaining work, the predicted time and memory; simulate nothing.",
)  # fmt: skip
def reproduce(
    names: tuple[str, ...],
    folder: Path,
    replicates: int | tuple[int, int] | None,
    resources: Resources,
    seed: int | None,
    quick: bool,
    changes: dict[str, Any],
    data: Path | None,
    full: bool,
    dry_run: bool,
) -> None:
    """Reproduce figures of the papers, or all of them.

    FIGURE is an id of `fastfed list figures`, or "all". Each figure, and each of its other panels,
    gets a folder in DIR, and DIR/report.html is one page about all figures. With "all", the command
    first prints the predicted time of each figure, and simulates long figures at smaller sizes. At
    the end it prints a table of the papers' claims: whether each holds, fails or is unproven, and
    why.
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    from fastfed.cli.execution import predict, simulate_each, simulate_several
    from fastfed.experiments.reproduction import ALL, select, size_of_call
    from fastfed.experiments.specs import sized_experiment

    everything = ALL in names
    size = size_of_call(names, quick=quick, full=full)
    selected, left_out = select(names, data, size)
    for name, rows in left_out.items():
        say(f"skipped {name}: {rows[0].statement.why}")
    if not everything and data is not None and not any(f.needs_data for f in selected):
        say(f"{', '.join(names)}: --data is not used, the data are synthetic")
    # Check all figures before the first is simulated, so that bad input costs no time.
    figures_to_run = [
        (f, sized_experiment(f, data, size, replicates, seed, changes)) for f in selected
    ]
    if everything or dry_run:
        plan = predict(figures_to_run, folder, resources)
        if not dry_run:
            simulate_several(
                plan,
                folder,
                resources,
                [row for rows_of_figure in left_out.values() for row in rows_of_figure],
            )
    else:
        simulate_each(figures_to_run, folder, resources)


# ---- `fastfed results` and `fastfed report` ------------------------------------------------------

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


@click.command()
@folder_argument
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="CSV on standard output, one row per curve.")
@click.option(
    "--curves", is_flag=True,
    help="CSV on standard output, one row per curve and checkpoint: the data of the charts.",
)  # fmt: skip
def results(folder: Path, as_json: bool, as_csv: bool, curves: bool) -> None:
    """Print the results of an output folder as a table, JSON or CSV.

    If the run is not finished, only the finished replicates are used.
    """
    if as_json + as_csv + curves > 1:
        raise click.UsageError("--json, --csv and --curves exclude each other")
    from fastfed.reporting import table
    from fastfed.reporting.figure import read_source
    from fastfed.reporting.sharing import notes_on_curves

    source = read_source(folder)
    if as_json:
        statements = [s.to_builtins() for s in source.claims]
        notes = notes_on_curves(source.results)
        print_json({**source.results.to_builtins(), "notes": notes, "statements": statements})
    elif as_csv:
        click.echo(table.as_csv(source), nl=False)
    elif curves:
        click.echo(table.curves_csv(source), nl=False)
    else:
        print_results(source)


@click.command()
@folder_argument
@format_option("Format of the figure files; default: png and svg")
def report(folder: Path, formats: tuple[str, ...]) -> None:
    """Write the report, figure files and tables of an output folder again.

    Nothing is simulated: everything is computed from DIR/results.sqlite. If DIR holds several
    experiments in subfolders, as `reproduce` writes them, each experiment gets its report, and
    DIR/report.html is one page about all experiments.
    """
    from fastfed.cli.execution import NO_MATPLOTLIB
    from fastfed.reporting import page, plot_files

    chosen_formats = formats or plot_files.FORMATS
    written_paths = page.report(
        folder, formats=chosen_formats, on_left_out=lambda reason: say(f"left out: {reason}")
    )
    for path in written_paths:
        click.echo(path)
    if not plot_files.has_plots(written_paths) and not plot_files.has_matplotlib():
        say(NO_MATPLOTLIB)


# ---- `fastfed compare` ---------------------------------------------------------------------------

folder_type = click.Path(path_type=Path)


@click.command()
@click.argument("a", type=folder_type, metavar="DIR_A")
@click.argument("b", type=folder_type, metavar="DIR_B")
@json_option
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Compare two output folders, curve by curve.

    Curves are matched by label. For each curve the command prints the final group regret in A and
    B, and the difference B - A with its standard error. It also prints differences in the privacy,
    the number of synchronisations, the bytes sent and the curve's keys. Runs over the same rounds
    are compared replicate by replicate. In folders with several experiments, experiments of the
    same name are compared.
    """
    from fastfed.reporting import comparison

    folders = comparison.compare(a, b)
    if as_json:
        print_json(folders.to_builtins())
        return
    click.echo(f"A: {a}\nB: {b}")
    for comparison_of_experiment in folders.comparisons:
        click.echo()
        _print(comparison_of_experiment)
    for side, names in (("A", folders.only_in_a), ("B", folders.only_in_b)):
        if names:
            click.echo(f"\nonly in {side}: {', '.join(names)}")


def _print(comparison: Comparison) -> None:
    """Print the comparison of one experiment in two folders, as tables."""
    from fastfed.reporting.comparison import shown
    from fastfed.reporting.table import sent, times
    from fastfed.reporting.text import plus_minus, privacy_text

    a, b = comparison.a, comparison.b
    click.secho(comparison.name, bold=True)
    click.echo(f"A: {a.setting}, {a.replicates}\nB: {b.setting}, {b.replicates}")
    click.echo(_pairing_text(comparison))
    if comparison.curves:
        click.echo()
        print_table(
            ("curve", "A", "B", "B - A", "B's regret is"),
            [
                (
                    pair.label,
                    plus_minus(*pair.a.final().values()),
                    plus_minus(*pair.b.final().values()),
                    plus_minus(pair.mean, pair.stderr),
                    pair.verdict,
                )
                for pair in comparison.curves
            ],
            right=(1, 2, 3),
        )
    _print_if_any(
        ("privacy", "A", "B"),
        [
            (p.label, privacy_text(p.a.certificate).short, privacy_text(p.b.certificate).short)
            for p in comparison.curves
            if not p.same_privacy
        ],
    )
    _print_if_any(
        ("synchronised", "A", "B"),
        [
            (p.label, times(p.a.synchronisations), times(p.b.synchronisations))
            for p in comparison.curves
            if p.a.synchronisations != p.b.synchronisations
        ],
    )
    _print_if_any(
        ("sent", "A", "B"),
        [
            (p.label, sent(p.a.bytes_sent), sent(p.b.bytes_sent))
            for p in comparison.curves
            if p.a.bytes_sent != p.b.bytes_sent
        ],
    )
    _print_if_any(("key", "A", "B"), [(d.key, shown(d.a), shown(d.b)) for d in comparison.spec])
    for side, labels in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if labels:
            click.echo(f"\nonly in {side}: {'; '.join(labels)}")


def _pairing_text(comparison: Comparison) -> str:
    """Return a text that says whether differences are paired by replicate and, if not, why."""
    if comparison.paired:
        return "paired, replicate by replicate: same environment, seed, silos and horizon"
    return f"not paired, because A and B differ in {', '.join(comparison.unequal)}"


def _print_if_any(headings: tuple[str, ...], rows: list[tuple[str, str, str]]) -> None:
    """Print an empty line and a table; print nothing if there are no rows."""
    if rows:
        click.echo()
        print_table(headings, rows)


# ---- `fastfed merge` -----------------------------------------------------------------------------


@click.command()
@click.argument(
    "parts", type=click.Path(path_type=Path), metavar="PART...", nargs=-1, required=True
)
@click.option(
    "-o", "--output", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path),
    help="Output folder for all replicates; it may already hold some.",
)  # fmt: skip
def merge(parts: tuple[Path, ...], folder: Path) -> None:
    """Put together the results of jobs that simulated parts of one experiment.

    Each PART is an output folder, such as part3 of `fastfed run spec.toml -o part3 --replicates
    15:20`. The replicates of all parts are copied into DIR, which also gets the report. The parts
    are not changed. The results are the same as if all replicates had been simulated in DIR.
    """
    from fastfed.reporting import page
    from fastfed.reporting.figure import read_source
    from fastfed.results.merging import merge as merge_stores
    from fastfed.results.merging import missing_replicates

    missing = missing_replicates(merge_stores(parts, folder))
    if missing:
        say(f"{folder}: {missing}")
    source = read_source(folder)
    page.write_report(source, folder)
    print_results(source)


# ---- `fastfed spec` ------------------------------------------------------------------------------


class _Spec(Group):
    hint = "; `fastfed spec show FIGURE` prints the spec of a figure"


@click.group(cls=_Spec)
def spec() -> None:
    """Print the spec of a figure."""


@spec.command()
@click.argument("name", metavar="FIGURE")
def show(name: str) -> None:
    """Print the spec of a figure: the TOML that `fastfed reproduce FIGURE` runs.

    Save it, change it, and run it with `fastfed run`.
    """
    from fastfed.experiments import figure_text

    click.echo(figure_text(name), nl=False)


COMMANDS = {
    "spec": spec,
    "run": run,
    "reproduce": reproduce,
    "results": results,
    "report": report,
    "compare": compare,
    "merge": merge,
}
