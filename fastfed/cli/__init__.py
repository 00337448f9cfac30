"""The command line: thin commands that parse, call and print.

Nothing heavy is imported before a command runs: `fastfed --help` loads neither numpy nor scipy.
"""

from __future__ import annotations

import rich_click as click

from fastfed.cli.lazy import LazyGroup

#: name: (module, what `fastfed --help` says). A new command is one file and one line here.
COMMANDS = {
    "list": (
        "doctor",
        "Algorithms, environments, mechanisms, scores and figures by name.",
    ),
    "run": ("run", "Run the experiment of a spec, or what is missing of it."),
    "reproduce": ("run", "Reproduce figures of the papers, or all of them."),
    "results": ("run", "Results of an output folder: table, JSON or CSV."),
    "report": ("run", "Write page, pictures and tables of an output folder again."),
    "compare": ("run", "Compare two output folders, curve by curve."),
    "privacy": ("privacy", "Privacy certificates of a spec, without running it."),
    "calibrate": ("privacy", "Calibrate the noise of a mechanism for a privacy budget."),
    "plan": (
        "privacy",
        "Choose protocol, release and batches, or decide against sharing.",
    ),
    "audit": (
        "privacy",
        "Audit a mechanism or a system: attack it, and bound the privacy it loses.",
    ),
    "deploy": (
        "deploy",
        "Plan a federation of real silos, join it, and look at it.",
    ),
    "serve": ("deploy", "Run the hub of a federation from its FOLDER."),
    "silo": ("deploy", "Run a silo from its FOLDER; its application talks to silo.sock there."),
    "helper": ("deploy", "Run the helper, who holds the other shares of a sum, from its FOLDER."),
    "ledger": ("deploy", "Look at a silo's budget, or verify a party's log."),
    "bench": ("doctor", "Measure the compiled driver against a plain loop in NumPy."),
    "doctor": ("doctor", "Check this installation and its data."),
    "completion": ("completion", "Print the script that completes `fastfed` in bash, zsh or fish."),
}


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import fastfed

        click.echo(f"fastfed {fastfed.__version__}")
        context.exit()


@click.group(
    cls=LazyGroup,
    commands_by_module=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context) -> None:
    """Differentially private federated bandits at compiled speed.

    Exit codes: 0 done, 1 the run failed, 2 bad input.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """The console script."""
    cli.main(prog_name="fastfed")
