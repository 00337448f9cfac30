"""Options that several commands have, printing to the terminal, and progress."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import rich_click as click

if TYPE_CHECKING:
    from fastfed.reporting.figure import Source

# ---- Printing: JSON and tables to standard output, messages to standard error --------------------


def print_json(value: Any) -> None:
    """Print JSON on standard output; a number that is not finite becomes null."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say(message: str) -> None:
    """Print a message on standard error."""
    click.echo(message, err=True)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
    wrapped: Sequence[int] | None = None,
) -> None:
    """Print a table, with rules on a terminal and as plain columns elsewhere.

    ``right`` holds the indices of the columns that are aligned to the right, ``wrapped`` those that
    may be wrapped on a terminal (by default all others).
    """
    rows = [tuple(row) for row in rows]
    right = tuple(right)
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            cells = [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            click.echo("  ".join(cells).rstrip())
        return
    from rich.console import Console

    from fastfed.reporting.text import ruled

    # The caller chose columns that fit this width; rich would assume a width of 80 on terminals
    # that it does not know.
    console = Console(width=shutil.get_terminal_size().columns, height=25)
    console.print(ruled(headings, rows, right, wrapped=wrapped))


def print_results(source: Source) -> None:
    """Print the table of results of an experiment, with its title and remarks."""
    from fastfed.reporting import table
    from fastfed.reporting.sharing import sharing_sentence
    from fastfed.reporting.text import wrapped

    if not sys.stdout.isatty():
        click.echo(table.as_text(source), nl=False)
        return
    click.secho(source.title, bold=True)
    click.echo(f"{source.setting}, {source.replicates}")
    for note in source.about_records:
        click.echo(note)
    width = shutil.get_terminal_size().columns
    for line in wrapped([sharing_sentence(source.results)], width):
        click.echo(line)
    rows = table.table_rows(source)
    columns = table.fitting_columns(rows, width)
    print_table(
        [table.HEADINGS[i] for i in columns],
        [[row[i] for i in columns] for row in rows],
        [position for position, i in enumerate(columns) if i in table.RIGHT],
        wrapped=[0],
    )
    missing = [table.HEADINGS[i] for i in table.used_columns(rows) if i not in columns]
    if missing:
        click.echo(f"not shown at this width: {', '.join(missing)}")
    for line in [*table.remarks(source), *table.claim_lines(source)]:
        click.echo(line)


# ---- Progress on standard error: a bar on a terminal, lines elsewhere ----------------------------

#: Seconds between two progress lines if standard error is not a terminal.
PROGRESS_SECONDS = 5.0

OnProgress = Callable[[int], None]


def duration(seconds: float) -> str:
    """Format a number of seconds as text, such as "2 min 5 s"."""
    from fastfed.reporting.text import span

    return span(max(1, round(seconds)))


@contextmanager
def progress(total: int) -> Iterator[OnProgress]:
    """Show the progress of ``total`` agent-rounds during a block.

    Yield a function to call, from any thread, with the number of agent-rounds just simulated.
    """
    if sys.stderr.isatty():
        with _bar(total) as on_progress:
            yield on_progress
    else:
        yield Lines(total)


class Lines:
    """Show progress if standard error is not a terminal: a line every few seconds at most."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.clock = total, clock
        self.done = 0
        self.start = self.last = clock()
        self.lock = threading.Lock()

    def __call__(self, agent_rounds: int) -> None:
        """Add finished agent-rounds; every few seconds print the share done and the time left."""
        with self.lock:
            self.done += agent_rounds
            now = self.clock()
            if now - self.last < PROGRESS_SECONDS:
                return
            self.last = now
            speed = self.done / (now - self.start)
            seconds_left = (self.total - self.done) / speed if speed else 0.0
            line = f"{100 * self.done // self.total} %, {speed:.3g} agent-rounds/s"
            say(f"{line}, {duration(seconds_left)} left" if seconds_left else line)


@contextmanager
def _bar(total: int) -> Iterator[OnProgress]:
    """Show a progress bar on a terminal during a block; see `progress`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.finished_speed or task.speed or 0.0:.3g} agent-rounds/s")

    time_left = (TimeRemainingColumn(), TextColumn("left"))
    columns = (TaskProgressColumn(), BarColumn(), Speed(), *time_left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task("", total=total)
        yield lambda agent_rounds: progress_bar.advance(task, agent_rounds)


# ---- Options that several commands share ---------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

#: Names of `fastfed.simulation.engines`, which is not loaded to print help.
ENGINES = ("local", "processes", "dask")

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


#: End of messages about a run that stopped: what it has stored, and how to continue.
RESUMABLE_TEXT = "finished replicates are stored, and the same command continues"


def stoppable(command: F, note: str = "") -> F:
    """Wrap a command so that Ctrl-C and SIGTERM end it, even inside a function that the user wrote.

    ``note`` is added to the message about the stop; it states what is stored.
    """

    @wraps(command)
    def watched(*args: Any, **others: Any) -> Any:
        """Run the command so that signals stop it cleanly."""
        from fastfed import _signals

        with _signals.stoppable(note):
            return command(*args, **others)

    return cast(F, watched)


class Replicates(click.ParamType):
    """Type of an option: a number of replicates, or a range such as 5:10."""

    name = "replicates"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | tuple[int, int]:
        """Return a number, or a range (first, end). Raise BadParameter for any other text."""
        texts = str(value).split(":")
        if len(texts) > 2 or not all(text.isdecimal() for text in texts):
            self.fail(f"{value!r} must be a number >=1, or a range such as 5:10", param, ctx)
        numbers = [int(text) for text in texts]
        if len(numbers) == 2 and numbers[0] < numbers[1] <= 2**31:
            return numbers[0], numbers[1]
        if len(numbers) == 1 and 1 <= numbers[0] <= 2**31:
            return numbers[0]
        problem = "has no replicates" if len(numbers) == 2 else "is not in the range >=1"
        return self.fail(f"{value!r} {problem}: write 10, or a range such as 5:10", param, ctx)


set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Change a key: horizon=500, environment.dimension=5, curve.epsilon=2.0 "
    "(every curve with this key), curve.LABEL.epsilon=2.0. May be repeated.",
)  # fmt: skip


def run_options(command: F) -> F:
    """Add to a command the options that every command that simulates has.

    The options --threads, --engine, --scheduler and --memory, which do not affect results, are
    passed to the command as one object ``resources``. The values of --set are passed as a dict
    ``changes``. Each other option is passed as an argument.
    """

    @wraps(command)
    def packed(
        threads: int | None,
        engine: str,
        scheduler: str | None,
        memory: str | None,
        settings: tuple[str, ...],
        **others: Any,
    ) -> Any:
        """Run the command with ``resources`` and ``changes`` in place of the options."""
        if memory is not None:
            from fastfed._memory import parse_size

            parse_size("--memory", memory)
        from fastfed.simulation.dispatch import Resources

        changes: dict[str, Any] = {}
        if settings:
            from fastfed.experiments.specs import parse_changes

            changes = parse_changes(settings)
        resources = Resources(threads, engine, scheduler, memory)
        return command(resources=resources, changes=changes, **others)

    with_options = stoppable(cast(F, packed), f"; {RESUMABLE_TEXT}")
    for option in reversed(
        [
            click.option(
                "-o", "--output", "folder", required=True, metavar="DIR",
                type=click.Path(path_type=Path),
                help="Output folder; the same command again resumes the run in it.",
            ),
            click.option(
                "--replicates", type=Replicates(), metavar="N",
                help="Number of independent replicates, instead of the spec's. 5:10 simulates "
                "replicates 5 to 9: one job of several, which fastfed merge puts together.",
            ),
            click.option(
                "--threads", type=click.IntRange(min=1), metavar="N",
                help="Number of threads (default: all processors). Results do not depend on it.",
            ),
            click.option(
                "--engine", type=click.Choice(ENGINES), default="local",
                help="Where to simulate: threads of this process, processes of this machine, or a "
                "dask cluster. Results do not depend on it.",
            ),
            click.option(
                "--scheduler", metavar="ADDR",
                help="With --engine dask: address of a running cluster (default: start a cluster "
                "on this machine). Whoever can connect to its port can run any code on all its "
                "machines: use tls://.",
            ),
            click.option(
                "--memory", metavar="SIZE",
                help="Memory that the run may take, such as 40GB (default: the available memory). "
                "A run that needs more is refused before anything is written.",
            ),
            click.option(
                "--seed", type=int, metavar="N",
                help="Seed, instead of the spec's.",
            ),
            set_option,
            click.option(
                "--quick", is_flag=True,
                help="A first look: two replicates, a tenth of the horizon.",
            ),
        ]
    ):  # fmt: skip
        with_options = option(with_options)
    return with_options
