"""`fastfed doctor`, `fastfed bench` and `fastfed list`: information about this installation."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fastfed.cli import RunFailed
from fastfed.cli.output import json_option, print_json, print_table, say, stoppable

if TYPE_CHECKING:
    from fastfed._registry import Registry


# ---- `fastfed doctor` ----------------------------------------------------------------------------

REQUIRED = ("numpy", "scipy", "numba", "msgspec", "click", "rich-click")
#: Optional packages, and the features that need each.
OPTIONAL = {
    "matplotlib": "figures",
    "scikit-learn": "learning-to-rank and classification data",
    "dp-accounting": "checks of the accounting",
    "distributed": "runs on a cluster: --engine dask",
    "cryptography": "deployments: fastfed deploy, serve, silo",
}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH",
              help="Check these files (default: all files in the cache).")  # fmt: skip
@json_option
@click.pass_context
def doctor(context: click.Context, data: Path | None, as_json: bool) -> None:
    """Check this installation and its data.

    Print versions, the build of the compiled core, the available memory and the cache of parsed
    files, and check whether these files still have the checksums that they had when they were
    parsed. The exit code is 1 if something is wrong.
    """
    report = examine(data)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report["problems"]:
        context.exit(1)


def examine(data: Path | None) -> dict[str, Any]:
    """Examine the installation, and return the report of `doctor` as plain data."""
    import fastfed
    from fastfed._memory import available

    packages = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    problems = [
        f"{name} is missing: pip install {name}" for name in REQUIRED if packages[name] is None
    ]
    build = _build(problems)
    return {
        "fastfed": fastfed.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "memory": available(),
        "build": build,
        "plugins": _plugins(problems) if build["compiled"] else {},
        **(_data(data, problems) if build["compiled"] else {"cache": None, "sources": []}),
        "problems": problems,
    }


def _version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _build(problems: list[str]) -> dict[str, Any]:
    """Return how the compiled core was built, and which processor features it uses.

    Append a text to ``problems`` if the core cannot be loaded.
    """
    try:
        from fastfed._kernels import _native, linalg
        from fastfed.simulation.dispatch import default_threads
    except ImportError as error:
        problems.append(
            f"the compiled core cannot be loaded ({error}): install fastfed again, with "
            "`pip install --force-reinstall --no-cache-dir fastfed`"
        )
        return {
            "compiled": False,
            "threaded": None,
            "compiler": None,
            "level": None,
            "level_reason": None,
            "target_clones": None,
            "short_sieve": None,
            "threads": None,
        }
    return {
        "compiled": True,
        "threaded": _native.HAS_THREADS,
        "compiler": _native.COMPILER,
        "level": _native.LEVEL,
        "level_reason": _level_reason(_native),
        "target_clones": _native.HAS_LEVELS,
        "short_sieve": linalg.has_screen_i16(),
        "threads": default_threads(),
    }


#: Instruction level of the compiled core -> the name that users know.
LEVELS = {"v4": "AVX-512", "v3": "AVX2", "base": "the least that processors of its kind have"}


def _level_reason(native: Any) -> str:
    """Return the reason why the compiled core uses its instruction level, as text."""
    if not native.HAS_LEVELS:
        if platform.machine() in ("x86_64", "AMD64"):
            return "this build has one level: rebuild with gcc or clang, it is several times faster"
        return "there is one level for this kind of processor"
    if native.LEVEL != native.PROCESSOR:
        return f"FASTFED_LEVEL={native.MOST} limits it; the processor has {native.PROCESSOR}"
    return "the highest that this processor has"


def _plugins(problems: list[str]) -> dict[str, dict[str, str]]:
    """Return the entries that plug-ins add: kind -> name of the entry -> package."""
    from fastfed.simulation.systems import registries

    plugins_by_kind = {}
    for kind, registry in registries().items():
        problems += registry.problems().values()
        plugins_by_kind[kind] = {name: registry.origin(name) or "" for name in registry.plugins}
    return {kind: added for kind, added in plugins_by_kind.items() if added}


def _data(data: Path | None, problems: list[str]) -> dict[str, Any]:
    """Return a description of the cache of parsed files, and check the source files.

    ``data`` is a file or folder to check instead of all files in the cache. Append a text to
    ``problems`` for each file that has changed.
    """
    from fastfed._validate import InputError
    from fastfed.environments.letor_files import cached_sources, verify
    from fastfed.environments.storage import cache_folder, damaged_arrays

    problems += [
        f"{path} is not what was written: delete {path.parent}, which the next run makes again"
        for path in damaged_arrays()
    ]
    entries = cached_sources()
    paths = [entry.path for entry in entries] if data is None else [str(data)]
    cached = {entry.path for entry in entries}
    if data is not None and not os.path.exists(data) and str(data.resolve()) not in cached:
        raise InputError(f"--data must be an existing file or folder, got {str(data)!r}")
    # Several entries may have the same source file, which is checked once.
    checked = {source: (ok, text) for path in paths for source, ok, text in verify(path)}
    problems += [f"{source}: {text}" for source, (ok, text) in checked.items() if not ok]
    return {
        "cache": {
            "folder": str(cache_folder()),
            "entries": [
                {"path": e.path, "queries": e.queries, "rows": e.rows, "bytes": e.bytes}
                for e in entries
            ],
        },
        "sources": [
            {"path": source, "ok": ok, "message": text} for source, (ok, text) in checked.items()
        ],
    }


def _print(report: dict[str, Any]) -> None:
    """Print the report of `examine` as text."""
    click.echo(f"fastfed {report['fastfed']}, Python {report['python']}, {report['platform']}")
    words = {True: "yes", False: "no", None: "-"}
    build = report["build"]
    click.echo(
        f"compiled core: {words[build['compiled']]}; "
        f"threads in a run: {words[build['threaded']]}; "
        f"screening in 16 bits: {words[build['short_sieve']]}; threads: {build['threads'] or '-'}"
    )
    if build["compiled"]:
        level = f"{build['level']} ({LEVELS[build['level']]})"
        click.echo(f"instructions: {level}, {build['level_reason']}; built by {build['compiler']}")
    if report["memory"] is not None:
        click.echo(f"memory available: {report['memory'] / 1e9:.3g} GB")
    rows = [
        (name, version or "missing", OPTIONAL.get(name, "required"))
        for name, version in report["packages"].items()
    ]
    print_table(("package", "version", "use"), rows)
    for kind, added in report["plugins"].items():
        for name, package in added.items():
            click.echo(f"{kind}: {name}, of {package}")
    if report["cache"] is not None:
        entries = report["cache"]["entries"]
        click.echo(f"cache: {report['cache']['folder']}, {len(entries)} parsed")
        for e in entries:
            size = f"{e['bytes'] / 1e6:.1f} MB"
            click.echo(f"  {e['path']}: {e['queries']} queries, {e['rows']} rows, {size}")
    for source in report["sources"]:
        click.echo(f"{'ok ' if source['ok'] else 'BAD'} {source['path']}: {source['message']}")
    problems = report["problems"]
    click.echo("everything is in order" if not problems else f"wrong: {'; '.join(problems)}")


# ---- `fastfed bench` -----------------------------------------------------------------------------

#: Keys of a row, and their headings in the table.
COLUMNS = {
    "name": "instance",
    "microseconds_per_agent_round": "us/agent-round",
    "limit_microseconds": "limit",
    "bound": "bound by",
    "share_of_limit": "share",
    "reference_microseconds_per_agent_round": "reference",
    "ratio": "ratio",
    "ratio_without_data": "ratio without data",
    "threads": "threads",
}


@click.command()
@click.argument("names", nargs=-1, metavar="[INSTANCE]...")
@json_option
@stoppable
def bench(names: tuple[str, ...], as_json: bool) -> None:
    """Compare the speed of the compiled driver with a plain loop in NumPy.

    Print microseconds of processor time per agent-round (one silo in one round), for all instances
    or for those whose names start with INSTANCE. "limit" is the least time that the work of a round
    can take at the peak rates of this core, which are measured before and after the instance.
    "bound by" names the operation that takes most of the limit, and "share" is the limit divided by
    the measured time. "reference" is a plain loop in NumPy, timed alternately with the driver, and
    "ratio" is its time divided by the driver's. "ratio without data" excludes the time in which the
    loop makes contexts. The peak rates and the reference need the repository's folder benches/:
    without a checkout their columns are empty.
    """
    from fastfed.simulation.bench import cases_of, run_bench

    cases_of(names)  # refuses unknown names before the message
    say("timing both drivers, one instance after the other")
    try:
        rows = run_bench(*names)
    except subprocess.CalledProcessError as error:
        raise RunFailed(
            f"the process that measures ended with status {error.returncode}; its output is above"
        ) from None
    if as_json:
        print_json(rows)
        return
    if all(row["ratio"] is None for row in rows):
        say("no ratios: the reference is in the repository's benches/, and this is not a checkout")
    for row in rows:
        limit_share = row["share_of_limit"]
        row["share_of_limit"] = (
            None if limit_share is None else f"{limit_share:.0%}".replace("%", " %")
        )
    cells = [[_cell(row[key]) for key in COLUMNS] for row in rows]
    print_table(list(COLUMNS.values()), cells, right=range(1, len(COLUMNS)))


def _cell(value: object) -> str:
    """Format a cell of the table of `bench`: three significant digits, and "-" for None."""
    if value is None:
        return "-"
    return f"{value:#.3g}".rstrip(".") if isinstance(value, float) else str(value)


# ---- `fastfed list` ------------------------------------------------------------------------------


KINDS = ("algorithms", "environments", "mechanisms", "scores", "figures")


@click.command("list")
@click.argument("kind", required=False, metavar=f"[{'|'.join(KINDS)}]")
@json_option
def list_(kind: str | None, as_json: bool) -> None:
    """List algorithms, environments, mechanisms, scores and figures by name.

    Entries of installed packages are listed with the package. If a package cannot be used, a
    warning on standard error names it.
    """
    if kind is not None:
        from fastfed._validate import choice

        choice("what to list", kind, KINDS)
    kinds = [name for name in KINDS if kind in (None, name)]
    entries_by_kind = {name: ENTRIES[name]() for name in kinds}
    if as_json:
        print_json(entries_by_kind)
    for position, (name, entries) in enumerate(entries_by_kind.items() if not as_json else ()):
        if position:
            click.echo()
        headings = list(entries[0]) if entries else []
        if not any(entry.get("package") for entry in entries):
            headings = [heading for heading in headings if heading != "package"]
        click.secho(name, bold=True)
        print_table(headings, [[_cell_text(entry[key]) for key in headings] for entry in entries])
    for name in kinds:
        for problem in _registry(name).problems().values() if name != "figures" else ():
            click.echo(f"warning: {problem}", err=True)


def _registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind of entries, such as "algorithms"."""
    from fastfed.simulation.systems import registries

    return registries()[kind]


def _usable(kind: str) -> Iterator[tuple[str, Any, str | None]]:
    """Yield (name, entry, package) of each entry of a kind that can be used."""
    registry = _registry(kind)
    refused = registry.problems()
    for name in registry:
        if name in registry.builtin or name not in refused:
            yield name, registry[name], registry.origin(name)


def algorithms() -> list[dict[str, Any]]:
    """Return one row for each algorithm."""
    return [
        {"id": name, "paper": a.paper, "summary": a.summary, "package": package}
        for name, a, package in _usable("algorithms")
    ]


def environments() -> list[dict[str, Any]]:
    """Return one row for each environment."""
    return [
        {"id": name, "summary": summary, "package": package}
        for name, (_, summary), package in _usable("environments")
    ]


def mechanisms() -> list[dict[str, Any]]:
    """Return one row for each mechanism."""
    from fastfed.privacy.mechanisms.catalogue import summary

    return [
        {"id": name, "summary": summary(name), "package": package}
        for name, _, package in _usable("mechanisms")
    ]


def scores() -> list[dict[str, Any]]:
    """Return one row for each score function."""
    return [
        {
            "id": name,
            "summary": score.summary if score else "the upper confidence bound, as in the papers",
            "package": package,
        }
        for name, score, package in _usable("scores")
    ]


def figures() -> list[dict[str, Any]]:
    """Return one row for each figure."""
    from fastfed import experiments

    return [
        {"id": f.id, "paper": f.paper, "title": f.title, "needs_data": f.needs_data}
        for f in experiments.figures()
    ]


def _cell_text(value: object) -> str:
    """Format a cell of a table of `list`: yes or no for booleans, "" for None."""
    if value is None:
        return ""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


ENTRIES = {
    "algorithms": algorithms,
    "environments": environments,
    "mechanisms": mechanisms,
    "scores": scores,
    "figures": figures,
}


COMMANDS = {"doctor": doctor, "bench": bench, "list": list_}
