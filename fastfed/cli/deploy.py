"""Commands of deployments: `serve`, `silo`, `helper`, `deploy ...` and `ledger ...`."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, cast

import rich_click as click

from fastfed import _signals
from fastfed._validate import InputError, check_plain, number, parsed
from fastfed.cli import Group, RunFailed
from fastfed.cli.output import F, json_option, print_json, print_table, stoppable

FOLDER = click.Path(file_okay=False, path_type=Path)
#: Maximum number of bytes of a hub's status.
LONGEST_STATUS = 1 << 24
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PORT = click.IntRange(1, 65535)


class Days(click.FloatRange):
    """Type of an option: a number of days, at most a century. Error messages give an example."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number of days. Raise BadParameter with an example for any other text."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"must be a number of days from 0 to 36500, such as 30, got {value!r}", param, ctx
            )


#: Seconds that a party has after a signal: first to end its work, then to finish a write.
SECONDS_TO_END, SECONDS_TO_WRITE = 2.5, 1.0
#: Interval in seconds at which the main thread checks for signals that another thread received.
SIGNAL_INTERVAL = 0.25


def until_signal(process: Any, work: Callable[[threading.Event], None]) -> None:
    """Run the work of a party in a thread until a signal arrives; then exit with code 0.

    The main thread only waits, so that the work cannot delay the handling of a signal. A party
    stores its state on disk before it answers, so work that does not end in time can be abandoned.

    Parameters
    ----------
    process : Process
        The party's process, whose files are closed at the end.
    work : callable
        Called with an event that is set when a signal has arrived.
    """
    stop, work_result = threading.Event(), Future[None]()

    def run() -> None:
        """Do the work, and store its end or its error in ``work_result``."""
        try:
            work(stop)
            work_result.set_result(None)
        except BaseException as error:
            work_result.set_exception(error)

    # All objects that exist now are used until the end, so the garbage collector may skip them: a
    # full collection would delay all answers by 40 ms.
    gc.freeze()
    threading.Thread(target=run, daemon=True).start()
    with _signals.noted() as signals:
        while not (signals or work_result.done()):
            # Wait for short intervals: a signal that another thread receives does not end a wait.
            wait([work_result], SIGNAL_INTERVAL)
        if not signals:
            work_result.result()
            return
        _signals.announce_end()
        stop.set()
        wait([work_result], SECONDS_TO_END)
        # Everything is on disk already, so do not wait long for the party's lock or a slow disk.
        closing = threading.Thread(target=process.close, daemon=True)
        closing.start()
        closing.join(SECONDS_TO_WRITE)
        exit_now()


def exit_now() -> NoReturn:
    """Exit this process at once with code 0, even if threads are running."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def party(command: F) -> F:
    """Wrap a command of a party so that a signal ends it with exit code 0, even at start-up."""

    @stoppable
    @wraps(command)
    def run(*args: Any, **others: Any) -> None:
        """Run the command, and end the process if a signal interrupts it."""
        try:
            command(*args, **others)
        except BaseException as error:
            # If a signal arrives while a lock of `threading` is taken, its exception may be
            # replaced by a different error, with the exception as its context.
            if not any(isinstance(e, KeyboardInterrupt) for e in (error, error.__context__)):
                raise
            _signals.announce_end()
            exit_now()

    return cast(F, run)


# ---- parties -------------------------------------------------------------------------------------


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any other address needs --cert.",
)
@click.option("--port", default=8443, type=PORT, show_default=True, help="Port to listen on.")
@click.option("--cert", type=FILE, help="Certificate (PEM) for TLS 1.3.")
@click.option("--key", type=FILE, help="Private key of the certificate (PEM).")
@click.option("--client-ca", type=FILE, help="Authority (PEM) of client certificates: mutual TLS.")
@click.option("--page", type=PORT, help="Port on this machine for a status page and GET /metrics.")
@click.option("--log-json", is_flag=True, help="Log lines of JSON, without values of records.")
@party
def serve(
    folder: Path,
    host: str,
    port: int,
    cert: Path | None,
    key: Path | None,
    client_ca: Path | None,
    page: int | None,
    log_json: bool,
) -> None:
    """Run the hub of a federation from its FOLDER."""
    from fastfed.deployment import folder as folders
    from fastfed.deployment import shell

    cert_path, key_path, authority_path = (
        str(file) if file else None for file in (cert, key, client_ca)
    )
    process = folders.opened(folder)
    log = make_log(process, log_json)
    log.start(process, **start_status_page(process, page))

    def work(stop: threading.Event) -> None:
        threading.Thread(
            target=log.watch, args=(process, shell.TICK_SECONDS, stop), daemon=True
        ).start()
        shell.serve(process, host, port, cert_path, key_path, authority_path, log, stop)

    until_signal(process, work)


def make_log(process: Any, as_json: bool) -> Any:
    """Return the log of a party, which writes lines of text or JSON to standard error."""
    from fastfed.deployment.observe import JsonLog, PlainLog

    return (JsonLog if as_json else PlainLog)(sys.stderr, process.party.name)


def start_status_page(process: Any, port: int | None) -> dict[str, str]:
    """Start the status page of a party; return {"page": its address}, or {} without a port."""
    from fastfed.deployment.status_page import StatusPage

    if port is None:
        return {}
    StatusPage(process, port).start()
    return {"page": f"http://127.0.0.1:{port}/"}


def with_hub_options(command: Any) -> Any:
    """Add to a command the options with which a party connects to the hub.

    Instead of these options, the command gets one argument ``exchange``: a function that exchanges
    the messages of a party with the hub until a signal arrives.
    """

    @wraps(command)
    def with_exchange(
        hub: str | None,
        courier: Path | None,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        every: float,
        log_json: bool,
        **others: Any,
    ) -> None:
        """Check the options, and call the command with the function ``exchange`` in their place."""
        number("every", every, above=0, at_most=86400)
        if (hub is None) == (courier is None):
            raise InputError(
                "exactly one of --hub and --courier must be given, such as --hub "
                "https://hub.example.org:8443"
            )

        def exchange(process: Any, **addresses: str) -> None:
            """Exchange messages until a signal arrives; log the party's ``addresses``."""
            from fastfed.deployment.shell import Dialer

            log = make_log(process, log_json)
            if courier is not None:
                log.start(process, **addresses, courier=str(courier))
                serve_couriers(process, courier, every, log)
                return
            assert hub is not None
            dialer = Dialer(
                process, hub, *(str(file) if file else None for file in (ca, cert, key))
            )
            # An address may hold a password before its last @.
            scheme, _, host = hub.partition("://")
            log.start(process, **addresses, hub=f"{scheme}://{host.rpartition('@')[2]}")
            until_signal(process, lambda stop: dialer.run(stop, every, log, log.look))

        command(exchange=exchange, **others)

    with_options: Any = with_exchange
    for option in (
        click.option(
            "--log-json", is_flag=True, help="Log lines of JSON, without values of records."
        ),
        click.option(
            "--every", default=5.0, show_default=True, help="Seconds between two polls of the hub."
        ),
        click.option("--key", type=FILE, help="Private key of the certificate (PEM)."),
        click.option(
            "--cert", type=FILE, help="Certificate of this party (PEM), if the hub requires one."
        ),
        click.option("--ca", type=FILE, help="Certificate authority of the hub (PEM)."),
        click.option(
            "--courier",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Instead of --hub: socket to which a courier brings the hub's messages.",
        ),
        click.option("--hub", help="Address of the hub, https://..."),
    ):
        with_options = option(with_options)
    return with_options


def serve_couriers(process: Any, courier: Path, every: float, log: Any) -> None:
    """Exchange messages with couriers of a party on a Unix socket until a signal arrives."""
    from fastfed.deployment.flower import Courier

    with Courier(process, courier, log) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        until_signal(process, lambda stop: log.watch(process, every, stop))


@click.command()
@click.argument("folder", type=FOLDER)
@with_hub_options
@click.option("--dataset", help="Dataset that the ledger charges, as given to `deploy join`.")
@click.option("--ledger", type=click.Path(dir_okay=False), help="Path of the ledger, if it moved.")
@click.option("--replay", type=FILE, help="Source (TOML) of past records to replay.")
@click.option("--metrics", type=PORT, help="Port on this machine for GET /metrics.")
@click.option("--page", type=PORT, help="Port on this machine for a status page and GET /metrics.")
@click.option(
    "--keep",
    metavar="DAYS",
    type=Days(min=0.0, max=36500.0),
    help="Erase records this number of days after their release. By default none is erased.",
)
@party
def silo(
    folder: Path,
    exchange: Callable[..., None],
    dataset: str | None,
    ledger: str | None,
    replay: Path | None,
    metrics: int | None,
    page: int | None,
    keep: float | None,
) -> None:
    """Run a silo from its FOLDER; its application talks to silo.sock there."""
    from fastfed.deployment import folder as folders
    from fastfed.deployment.application import Application
    from fastfed.deployment.observe import Metrics
    from fastfed.deployment.process import SiloProcess

    process = folders.opened(folder, dataset, ledger)
    if not isinstance(process, SiloProcess):
        raise InputError(
            f"{folder} is not the folder of a silo: the hub runs by `fastfed serve`, the helper by "
            "`fastfed helper`"
        )
    replayer = make_replay(process, replay) if replay else None
    if metrics not in (None, page):
        Metrics(process, metrics).start()
    addresses = start_status_page(process, page)
    if keep is not None:
        threading.Thread(
            target=process.keep_erasing, args=(86_400.0 * keep, say), daemon=True
        ).start()
    with Application(process, folder / folders.SOCKET) as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        if replayer is not None:
            never_set = threading.Event()
            threading.Thread(target=replayer.run, args=(never_set, say), daemon=True).start()
        exchange(process, socket=str(folder / folders.SOCKET), **addresses)


def say(text: str) -> None:
    """Write a line to standard error."""
    click.echo(text, err=True)


def make_replay(process: Any, source: Path) -> Any:
    """Return the replay of past records as decisions; raise InputError for rows that do not fit.

    ``source`` is a TOML file that names a table. All its rows must fit the silo's plan.
    """
    from fastfed.deployment.data import cases, load_source
    from fastfed.deployment.replay import Replay

    loaded = load_source(source)
    return Replay(process, loaded, cases(loaded, process.party.deployed.document.schema))


@click.command()
@click.argument("folder", type=FOLDER)
@with_hub_options
@party
def helper(folder: Path, exchange: Callable[[Any], None]) -> None:
    """Run the helper, which holds the second shares of sums, from its FOLDER."""
    from fastfed.deployment import folder as folders
    from fastfed.deployment.sums import Helper

    process = folders.opened(folder)
    if not isinstance(process.party, Helper):
        raise InputError(f"{folder} is not the folder of a helper")
    exchange(process)


# ---- deploy ... ----------------------------------------------------------------------------------


@click.group(cls=Group)
def deploy() -> None:
    """Plan a federation of real silos, join it, and inspect it."""


@deploy.command()
@click.argument("folder", type=FOLDER)
def keys(folder: Path) -> None:
    """Make the secret of a party in FOLDER, and print its public keys for the spec.

    If FOLDER has a secret, it is not replaced, and its public keys are printed.
    """
    from fastfed.deployment import folder as folders

    exists = (folder / folders.SECRET).exists()
    public = folders.public_keys(folder) if exists else folders.make_keys(folder)
    if exists:
        say(f"note: {folder} has a secret, which is never replaced; these are its public keys")
    for name, value in public.items():
        click.echo(f'{name} = "{value}"')


def compile_file(spec: Path, compile_text: Callable[[str], Any]) -> Any:
    """Return the result of ``compile_text`` for the text of a spec file; errors name the file."""
    try:
        return compile_text(spec.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{spec}: not a text file in UTF-8: save it in UTF-8") from None
    except InputError as error:
        raise InputError(f"{spec}: {error}") from None


def warn_if_over(plan: Any) -> None:
    """Print a note if the last period of a plan has ended, because the plan then learns nothing."""
    last = plan.document.calendar.closes[-1]
    if time.time() >= last:
        end_text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last))
        say(
            f"note: the last period of the plan's calendar ended at {end_text}: the plan learns "
            "nothing; make a plan with a later start"
        )


@deploy.command()
@click.argument("spec", type=FILE)
@click.argument("plan", type=click.Path(dir_okay=False, path_type=Path))
def new(spec: Path, plan: Path) -> None:
    """Compile a SPEC (TOML) to the file PLAN, which all parties then verify.

    If the plan has the key clock, each silo's number of reports and their dates are printed.
    """
    from fastfed.deployment.observe import utc
    from fastfed.deployment.plans import compile_plan

    if plan.exists():
        raise InputError(f"{plan} exists; a plan file is never replaced: choose another name")
    compiled_plan = compile_file(spec, compile_plan)
    warn_if_over(compiled_plan)
    compiled_plan.save(plan)
    if compiled_plan.clocks is not None:
        for index, name in enumerate(compiled_plan.silos):
            closes = compiled_plan.calendar_of(index).closes
            say(f"{name}: {len(closes)} reports, from {utc(closes[0])} to {utc(closes[-1])}")
    click.echo(f"plan {compiled_plan.digest.hex()}")
    click.echo(str(compiled_plan.certificate), nl=False)


@deploy.command()
@click.argument("old", type=FOLDER)
@click.argument("spec", type=FILE)
@click.argument("plan", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--fresh", is_flag=True, help="Begin without the earlier model.")
def extend(old: Path, spec: Path, plan: Path, fresh: bool) -> None:
    """Compile a SPEC to the file PLAN that continues the plan of the folder OLD."""
    from fastfed.deployment import folder as folders
    from fastfed.deployment.model import NO_START_REASONS

    if plan.exists():
        raise InputError(f"{plan} exists; a plan file is never replaced: choose another name")
    earlier, broadcast = folders.last_broadcast(old)
    compiled_plan = compile_file(
        spec, lambda text: folders.extended(text, earlier, broadcast, fresh)
    )
    warn_if_over(compiled_plan)
    compiled_plan.save(plan)
    extends = compiled_plan.document.extends
    assert extends is not None
    click.echo(f"plan {compiled_plan.digest.hex()}")
    click.echo(f"continues {earlier.digest.hex()}")
    click.echo(f"start {NO_START_REASONS.get(extends.why, 'the earlier model')}")
    click.echo(str(compiled_plan.certificate), nl=False)


@deploy.command()
@click.argument("folder", type=FOLDER)
@click.argument("plan", type=FILE)
@click.option(
    "--epsilon", type=float, help="A silo's ceiling: the most that it may spend on the dataset."
)
@click.option("--delta", type=float, help="The delta of the ceiling.")
@click.option("--dataset", help='Dataset to charge; by default "records", or the one of --extends.')
@click.option(
    "--ledger", type=click.Path(dir_okay=False, path_type=Path), help="Ledger file to charge."
)
@click.option("--extends", type=FOLDER, help="Folder of the plan that this plan continues.")
@click.option(
    "--second-ledger",
    is_flag=True,
    help="Charge a different ledger than the earlier plan; the ledger records this.",
)
def join(
    folder: Path,
    plan: Path,
    epsilon: float | None,
    delta: float | None,
    dataset: str | None,
    ledger: Path | None,
    extends: Path | None,
    second_ledger: bool,
) -> None:
    """Verify a PLAN, countersign it for the party of FOLDER, and set a silo's ceiling.

    To join a plan that continues an earlier plan, pass --extends. The secret, the ledger and the
    dataset are then those of the earlier folder, and the plan is refused if the two plans together
    exceed the ceiling. A different ledger or dataset does not know what the earlier plan has spent,
    so it needs --second-ledger. The ledger records this, and `fastfed ledger show` prints it.
    """
    from fastfed.deployment import folder as folders

    if (epsilon is None) != (delta is None):
        raise InputError("a ceiling needs both --epsilon and --delta")
    ceiling = None if epsilon is None or delta is None else (epsilon, delta)
    name, joined = folders.join(folder, plan, ceiling, dataset, ledger, extends, second_ledger)
    exact = joined.certificate.exact
    if ceiling is not None and exact is not None and name in joined.silos:
        # Compare the plan's epsilon at the delta of the ceiling. A guarantee without mu holds only
        # at its own delta and at larger ones. Because of rounding, a ceiling equal to the requested
        # epsilon may be slightly below the plan's exact epsilon.
        below_delta = exact.mu is None and ceiling[1] < exact.delta
        plan_epsilon = exact.epsilon if below_delta else exact.epsilon_at(ceiling[1])
        if below_delta or ceiling[0] < plan_epsilon * (1.0 - 1e-6):
            delta_text = f" at delta {ceiling[1]:g}" if ceiling[1] != exact.delta else ""
            ceiling_text = (
                f"delta = {ceiling[1]:g}"
                if below_delta
                else f"epsilon = {ceiling[0]:g}{delta_text}"
            )
            plan_text = f"{exact.delta:g}" if below_delta else f"{plan_epsilon:.6g}"
            say(
                f"note: the ceiling {ceiling_text} is below the plan's {plan_text}: reports that "
                "would exceed the ceiling are not sent"
            )
    warn_if_over(joined)
    # Print notes first, because a program that reads this output may stop after its first line.
    click.echo(f"{name} agrees to plan {joined.digest.hex()}")
    click.echo(str(joined.certificate), nl=False)


@deploy.command()
@click.argument("plan", type=FILE)
@click.argument("source", type=FILE)
@click.option("--silo", help="Name of the silo, for plans with the key clock.")
def check(plan: Path, source: Path, silo: str | None) -> None:
    """Report whether the table of a SOURCE (TOML) fits PLAN, and how many rows would be used."""
    from fastfed.deployment.data import load_source, surveyed
    from fastfed.deployment.plans import load
    from fastfed.deployment.replay import survey

    loaded_plan, loaded_source = load(plan), load_source(source)
    fitting, problems = surveyed(loaded_source, loaded_plan.document.schema)
    index = None if silo is None else loaded_plan.index(silo)
    counts = survey(loaded_plan, loaded_source, fitting, index)
    click.echo(json.dumps(counts | {"refused": len(problems)}, indent=2))
    if problems:
        rows = "\n".join(problems[:5])
        raise RunFailed(f"{len(problems)} rows do not fit; the first are\n{rows}")


@deploy.command()
@click.argument("folder", type=FOLDER)
def recover(folder: Path) -> None:
    """Restore reports that the running silo of FOLDER has sent but that its state lacks."""
    from fastfed.deployment import folder as folders

    click.echo(json.dumps(folders.recover(folder), indent=2))


@deploy.command()
@click.argument("folder", type=FOLDER)
def leave(folder: Path) -> None:
    """Leave the federation as the silo of FOLDER, running or not. The silo cannot come back."""
    from fastfed.deployment import folder as folders

    click.echo(json.dumps(folders.leave(folder), indent=2))
    say("this silo has left for good: it cannot come back to this plan")


@deploy.command()
@click.argument("where", metavar="HUB|FOLDER")
@click.option("--ca", type=FILE, help="Certificate authority of the hub (PEM).")
@click.option("--cert", type=FILE, help="Your certificate (PEM), if the hub requires one.")
@click.option("--key", type=FILE, help="Private key of the certificate (PEM).")
@json_option
def status(where: str, ca: Path | None, cert: Path | None, key: Path | None, as_json: bool) -> None:
    """Print how a party is doing, and what it waits for.

    Give the address of a HUB (https://...), whose status is printed as JSON, or the FOLDER of a
    party on this machine, running or not. No file in the FOLDER is changed.
    """
    if "://" in where or not os.path.isdir(where):
        print_hub_status(where, ca, cert, key)
        return
    from fastfed.deployment.status import facts_in, text_of

    facts = facts_in(where)
    if as_json:
        print_json(facts)
    else:
        click.echo(text_of(facts))


def print_hub_status(hub: str, ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """Print the status of the hub at an address, as JSON."""
    import ssl

    from fastfed.deployment.calls import call
    from fastfed.deployment.shell import address_of, client_context

    if "://" not in hub:
        raise InputError(f"there is no folder {hub}, and the address of a hub is https://...")
    secured = address_of(hub).scheme == "https"
    context = client_context(*(str(file) if file else None for file in (ca, cert, key)))
    try:
        url = hub.rstrip("/") + "/status"
        code, text = call(url, LONGEST_STATUS, context=context if secured else None)
    except OSError as error:
        advice = "is it running, and the address right?"
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "--ca names the authority (PEM) that signed its certificate"
        raise RunFailed(f"the hub cannot be reached at {hub} ({error}): {advice}") from None
    if code != 200:
        raise RunFailed(f"{hub} answered {code}: is this the hub's address?")
    try:
        hub_status = parsed(json.loads, text)
        check_plain("it", hub_status, keys=False)
    except InputError as error:
        raise RunFailed(f"the answer of {hub} is not the status of a hub: {error}") from None
    click.echo(json.dumps(hub_status, indent=2))


@deploy.command()
@click.argument("folder", type=FOLDER)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="File to write (default: standard output).")  # fmt: skip
def export(folder: Path, output: Path | None) -> None:
    """Write the last model of the silo of FOLDER, running or not, as JSON."""
    from fastfed.deployment import folder as folders

    text = json.dumps(folders.export_model(folder), indent=2)
    if output is None:
        click.echo(text)
    else:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output} cannot be written: {error.strerror or error}") from None


@deploy.command()
@click.option("--folder", type=FOLDER, help="Folder to run in; by default a temporary folder.")
@click.option("--system", default="private-fedlinucb", help="System, such as feducb or robin.")
@click.option("--protocol", default="silo-ldp", help="Protocol of private-fedlinucb.")
@click.option("--sum", "hidden", help="Hide the sums: shares (with a helper) or masks.")
@click.option("--own-clocks", is_flag=True, help="One silo reports half as often; nobody waits.")
def demo(
    folder: Path | None, system: str, protocol: str, hidden: str | None, own_clocks: bool
) -> None:
    """Run a hub and three silos as processes, kill them, and compare with an undisturbed run.

    One silo is also restored from an old backup, and one of its reports is sent again. Each party
    writes a file named log in its folder.
    """
    from fastfed.deployment import demo as demonstration

    with tempfile.TemporaryDirectory() as temporary_folder:
        home = folder or Path(temporary_folder)
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise InputError(f"{home} is not empty: choose a new folder for the demo")
        result = demonstration.run(home, click.echo, protocol, hidden, system, own_clocks)
    click.echo(json.dumps(result, indent=2))
    if not result["same"]:
        raise RunFailed("the model differs from the model of the undisturbed run")
    if not result["verified"]:
        raise RunFailed("a party's log does not have every release")


@deploy.command()
@click.argument("spec", type=FILE)
@click.option(
    "--table",
    "tables",
    metavar="SILO=FILE",
    multiple=True,
    required=True,
    help="A silo and its table, or the source (TOML) of its table. Give one for each silo.",
)
@click.option("--folder", type=FOLDER, help="New folder for all parties; by default temporary.")
@json_option
def rehearse(spec: Path, tables: Sequence[str], folder: Path | None, as_json: bool) -> None:
    """Replay tables through all parties of a SPEC on this machine, in simulated time.

    The SPEC needs columns, actions, reward, system.epsilon and system.delta. This command makes the
    keys of the parties.
    """
    from fastfed.deployment.plans import tables_of
    from fastfed.deployment.rehearse import rehearse_in

    files: dict[str, str] = {}
    for text in tables:
        name, equals, file = text.partition("=")
        if name in files:
            raise InputError(
                f"--table names silo {name} twice, with {files[name]} and {file}: give one table "
                "for each silo"
            )
        if not (name and equals and file):
            raise InputError(
                f"--table must be SILO=FILE, one for each silo, such as north=north.csv, got {text}"
            )
        files[name] = file
    rehearsal_result = rehearse_in(compile_file(spec, tables_of), files, folder, say)
    if as_json:
        silos = {name: result._asdict() for name, result in rehearsal_result.silos.items()}
        answer = {"releases": rehearsal_result.releases, "silos": silos}
        answer["certificate"] = rehearsal_result.plan.certificate.to_builtins()
        print_json(answer)
        return
    headings = ("silo", "decisions", "learned", "mean reward", "later half", "best single action")
    print_table(
        (*headings, "epsilon spent"),
        [
            (
                name,
                str(result.decisions),
                str(result.learned),
                *(
                    "-" if value is None else f"{value:.3f}"
                    for value in (result.mean_reward, result.late_reward, result.best_single)
                ),
                f"{result.spent:.3g} of {result.ceiling:.3g}",
            )
            for name, result in rehearsal_result.silos.items()
        ],
        right=range(1, 7),
    )
    certificate = rehearsal_result.plan.certificate
    bound = "no proven epsilon"
    if certificate.exact is not None:
        bound = f"epsilon {certificate.exact.epsilon:.4g} at delta {certificate.exact.delta:.3g}"
    click.echo(f"{certificate.status}: {bound} for one {certificate.unit}; {certificate.model}")
    if folder is not None:
        click.echo(
            f"The parties' folders are in {folder}: see `fastfed deploy status {folder}/hub`."
        )


# ---- ledger ... ----------------------------------------------------------------------------------


@click.group(cls=Group)
def ledger() -> None:
    """Print a silo's spent budget, or verify a party's log."""


@ledger.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def show(path: Path) -> None:
    """Print the budget spent on each dataset. PATH is a ledger file or the folder of a silo."""
    import sqlite3
    from contextlib import closing

    from fastfed.deployment.folder import LEDGER
    from fastfed.deployment.ledger import Ledger, spent_lines

    path = path / LEDGER if path.is_dir() else path
    if not path.exists():
        raise InputError(f"there is no ledger at {path}: only silos have one")
    try:
        with closing(Ledger.read(path)) as copy:
            lines = spent_lines(copy)
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is damaged: {error}; restore the newest backup") from None
    click.echo(json.dumps(lines, indent=2))


@ledger.command()
@click.argument("folder", type=click.Path(path_type=Path))
def verify(folder: Path) -> None:
    """Check the chain of a party's log in FOLDER; for a hub, also compute all sums again."""
    from fastfed.deployment import folder as folders

    if folder.is_file() and folder.name != folders.STATE:
        raise InputError(
            f"FOLDER must be a party's folder, got the file {folder}; `fastfed ledger show` checks "
            "a ledger"
        )
    folder = folder.parent if folder.is_file() else folder
    process = folders.read_party(folder)
    if not (folder / folders.STATE).exists():
        click.echo(f"{process.party.name}: no state yet, so nothing to check")
        return
    # `read_party` has applied all entries of the log again, so a hub has computed all sums again.
    # `writes` raises an error if the chain is broken.
    entries = sum(1 for _ in process.store.writes())
    click.echo(f"{process.party.name}: {entries} entries, chain and sums as they should be")


COMMANDS = {"serve": serve, "silo": silo, "helper": helper, "deploy": deploy, "ledger": ledger}
