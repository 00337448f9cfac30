"""The command line: commands parse arguments, call functions of the package, and print results.

No large package is imported before a command runs: `fastfed --help` loads neither NumPy nor SciPy.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from typing import Any, ClassVar

try:
    import rich_click as click
except KeyboardInterrupt:  # the import takes a tenth of a second, in which Ctrl-C may arrive
    sys.stderr.write("error: interrupted\n")
    sys.exit(130)

# ---- A group that imports a command when it is called, and prints every error in one line --------

#: File descriptor of standard output.
STDOUT = 1

#: Bytes of address space. Below MIN_ADDRESS_SPACE, NumPy's BLAS waits for memory for ever. Below
#: SMALL_ADDRESS_SPACE, too little address space is the most likely cause of a failed import.
MIN_ADDRESS_SPACE, SMALL_ADDRESS_SPACE = 400_000 << 10, 4_000_000 << 10

#: Error numbers of errors that the user fixes by a different path or other permissions.
PATH_ERRORS = (
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EROFS,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST,
)  # fmt: skip


def _address_space_limit() -> int | None:
    """Return the limit on address space (`ulimit -v`) in bytes; None if there is no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _check_address_space() -> None:
    """Raise RunFailed if the limit on address space is too small to load NumPy.

    If the limit is small but large enough, let OpenBLAS use one thread, unless the user has set a
    number.
    """
    limit = _address_space_limit()
    if limit is None:
        return
    if limit < MIN_ADDRESS_SPACE:
        raise RunFailed(
            f"the limit of address space is {limit >> 10} kB (ulimit -v), too little to load "
            f"NumPy: at least {MIN_ADDRESS_SPACE >> 10} kB, and the memory of the run"
        )
    if limit < SMALL_ADDRESS_SPACE:
        # OpenBLAS allocates a buffer for each thread, and no result needs its threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _check_standard_streams() -> None:
    """Exit if standard output is closed; if standard error is closed, discard its output.

    Without this, a file that is opened later would get the descriptor of the closed stream. Text
    for the stream would then be written into that file.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        code = _print_error("standard output is closed: send it to a file, or to /dev/null", 1)
        sys.stderr.flush()
        os._exit(code)


class RunFailed(click.ClickException):
    """Raised if a run could not be finished. The message is one sentence with the reason."""

    exit_code = 1


class Stopped(RunFailed):
    """Raised if a signal stopped a run, which is not an error. ``code`` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LazyCommand(click.RichCommand):
    """A command whose module is imported when it is called; until then it has one line of help."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary)
        self.module = module

    def load(self) -> click.Command:
        """Import the module, and return the command that its COMMANDS lists under this name."""
        _check_address_space()
        module = importlib.import_module(f"fastfed.cli.{self.module}")
        command: click.Command = module.COMMANDS[self.name]
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Load the command, and let it parse its arguments."""
        return self.load().make_context(info_name, args, parent, **extra)


class Group(click.RichGroup):
    """A group that suggests the nearest command if there is none of the given name."""

    #: Text that is added to the error message about an unknown command.
    hint = ""
    #: Words that a user may know from other programs -> the command or option of this program.
    meant: ClassVar[dict[str, str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with a suggestion for an unknown name."""
        unknown = args and not args[0].startswith("-") and args[0] not in self.commands
        if unknown and not ctx.resilient_parsing:
            from fastfed._validate import nearest

            if args[0] in self.meant:
                raise click.UsageError(
                    f'unknown command "{args[0]}"; did you mean "{self.meant[args[0]]}"?'
                )
            raise click.UsageError(
                f'unknown command "{args[0]}"{nearest(args[0], self.commands)} '
                f"(`{ctx.command_path} --help` names all{self.hint})"
            )
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group of lazy commands. Its ``main`` prints errors in one line and sets the exit code."""

    meant: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("simulate", "experiment", "start", "train"), "run"),
        **dict.fromkeys(("version", "-V"), "--version"),
        **dict.fromkeys(("show", "table", "view"), "results"),
        "help": "--help",
    }

    def __init__(self, *args: Any, commands_by_module: dict[str, tuple[str, str]], **kwargs: Any):
        super().__init__(*args, **kwargs)
        for name, (module, summary) in commands_by_module.items():
            self.add_command(LazyCommand(name, module, summary))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command and exit with its exit code."""

        def run() -> Any:
            return super(LazyGroup, self).main(args, prog_name, complete_var, False, **extra)

        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run))


def _exit_code(run: Any) -> int:
    """Run a command, print its error in one line, and return its exit code.

    0: done; 1: the run failed; 2: bad input; 128 + n: signal n ended the command. Unexpected errors
    are raised, with their traceback.
    """
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # The process that reads the output has ended, as `head` does.
        _discard_output()
        return 1
    except Stopped as error:
        click.echo(error.format_message(), err=True)
        return error.code
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except click.Abort as error:
        from fastfed import _signals

        return _print_error("interrupted", _signals.exit_code(error.__cause__ or error.__context__))
    except ValueError as error:
        from fastfed._validate import InputError

        if not isinstance(error, InputError):
            raise
        return _print_error(str(error), 2)
    except MemoryError as error:
        return _print_error(str(error) or "out of memory", 1)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _print_error(f"out of memory: {error.strerror}", 1)
        if error.errno in PATH_ERRORS and error.filename is not None:
            reason = (error.strerror or "cannot be opened").lower()
            return _print_error(
                f"{error.filename}: {reason}: check the path, and who may write there", 2
            )
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return _print_error(f"{error.filename or 'output'} cannot be written: {error.strerror}", 1)
    except (ImportError, SystemError, RuntimeError) as error:
        if isinstance(error, ImportError) and error.name == "fastfed._kernels._native":
            return _print_error(str(error), 1)
        limit = _address_space_limit()
        if limit is None or limit >= SMALL_ADDRESS_SPACE:
            raise
        return _print_error(
            f"out of memory: the limit of address space is {limit >> 10} kB (ulimit -v); what "
            f"failed is {type(error).__name__}: {error}", 1,
        )  # fmt: skip


def _discard_output() -> None:
    """Discard buffered output, because writing it at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)


def _print_error(message: str, code: int) -> int:
    """Print an error message as one line on standard error, and return ``code``."""
    line = " ".join(message.split())
    # click's messages are whole sentences; in this package they begin in lower case after "error:".
    if line[:1].isupper() and line[1:2].islower():
        line = line[0].lower() + line[1:].rstrip(".")
    if re.search(r"unexpected extra arguments? \(= ", line):
        line += ": write KEY=VALUE without spaces"
    elif re.search(r"unexpected extra arguments? \(.*=", line):
        line += ": quote a KEY=VALUE with spaces, such as 'curve.my label.epsilon=2'"
    elif re.search(r"unexpected extra arguments? \(", line):
        line += ": `fastfed COMMAND --help` shows what the command takes"
    if re.search(r"'[0-9]+,[0-9]+' is not a valid", line):
        line += ": write it with a decimal point, and without commas"
    click.echo(f"error: {line}", err=True)
    return code


# ---- The commands --------------------------------------------------------------------------------

#: Module and help line of each command. A new command needs one file, and a line here.
COMMANDS = {
    "list": ("doctor", "List algorithms, environments, mechanisms, scores and figures by name."),
    "run": ("run", "Simulate the experiment of a spec, or the missing part of it."),
    "reproduce": ("run", "Reproduce figures of the papers, or all of them."),
    "spec": ("run", "Print the spec of a figure."),
    "results": ("run", "Print the results of an output folder as a table, JSON or CSV."),
    "report": ("run", "Write the report, figure files and tables of an output folder again."),
    "merge": ("run", "Put together the results of jobs that simulated parts of one experiment."),
    "compare": ("run", "Compare two output folders, curve by curve."),
    "privacy": ("privacy", "Print the privacy certificates of a spec, without running it."),
    "calibrate": ("privacy", "Calibrate the noise of a mechanism for a privacy budget."),
    "plan": ("privacy", "Recommend a protocol, release and batches, or advise against sharing."),
    "audit": (
        "privacy",
        "Audit a mechanism or a system: attack it, and print a lower bound on its epsilon.",
    ),
    "deploy": ("deploy", "Plan a federation of real silos, join it, and inspect it."),
    "serve": ("deploy", "Run the hub of a federation from its FOLDER."),
    "silo": ("deploy", "Run a silo from its FOLDER; its application talks to silo.sock there."),
    "helper": ("deploy", "Run the helper, which holds the second shares of sums, from its FOLDER."),
    "ledger": ("deploy", "Print a silo's spent budget, or verify a party's log."),
    "bench": ("doctor", "Compare the speed of the compiled driver with a plain loop in NumPy."),
    "doctor": ("doctor", "Check this installation and its data."),
    "completion": ("completion", "Print the script that completes `fastfed` in bash, zsh or fish."),
}


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version and exit, if ``wanted``; this is the callback of --version."""
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

    Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _show_warnings_plainly() -> None:
    """Print warnings of fastfed as one sentence, without file and line.

    Warnings of other packages are not changed.
    """
    import warnings

    show_by_default = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, *rest: Any, **keywords: Any
    ) -> None:
        """Print a warning of fastfed as one line, and warnings of other packages as usual."""
        if category is UserWarning and filename.startswith(os.path.dirname(__path__[0]) + os.sep):
            click.echo(f"warning: {message}", err=True)
        else:
            show_by_default(message, category, filename, *rest, **keywords)

    warnings.showwarning = show


def main() -> None:
    """Run the command line; the entry point of the script `fastfed`."""
    _check_standard_streams()
    _show_warnings_plainly()
    try:
        cli.main(prog_name="fastfed")
    except SystemExit as ended:
        engine = sys.modules.get("fastfed.simulation.engines.local")
        if engine is not None and engine.left_behind():
            # A thread is still running. Python's normal exit would wait for it.
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        raise
