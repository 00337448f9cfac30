"""Four hospitals as four processes with files of their own, for a year that takes a minute.

    python examples/deployment/hospitals.py heart-disease-folder

The folder has the UCI heart disease records of Cleveland, Hungary, Switzerland and Long Beach as
one CSV with a column ``site``. Each hospital gets its patients as a table of another kind, with
dates that are made up: a patient comes on a random day, and whether the call "ill" or "well" was
right is known one to 28 days later. Hub and hospitals then run as processes of their own, once
under `silo-ldp` and once under `central`, and one hospital leaves midway. docs/records.md reads
the table.
"""

from __future__ import annotations

import csv
import heapq
import math
import os
import signal
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastfed.deployment import folder as folders
from fastfed.deployment.client import Client
from fastfed.deployment.data import cases, load_source
from fastfed.deployment.demo import Child, free_port
from fastfed.deployment.ledger import Ledger, spent_lines
from fastfed.deployment.plans import DeployedPlan, compile_plan, load
from fastfed.deployment.replay import times
from fastfed.deployment.schema import as_number

SITES = {"cleveland": "cleveland", "hungary": "hungarian", "swiss": "switzerland", "beach": "va"}
LEAVES, AFTER = "hungary", 6  # who leaves, and after which release
RELEASES, ADMITTING, DELAY = 13, 308, 28  # months of four weeks, days of admissions, days
CAP = 36  # decisions of one hospital and month that are learned from, at most
BEGIN = datetime(2023, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=28 * RELEASES)
KEPT = ("age", "sex", "thalach", "exang", "oldpeak", "cp", "num")

#: Limits a cardiologist would name without seeing the data.
COLUMNS = """
[[columns]]
name = "age"
kind = "number"
low = 20
high = 80
unit = "years"
fill = 50

[[columns]]
name = "sex"
kind = "flag"
yes = ["male", "1"]
no = ["female", "0"]

[[columns]]
name = "thalach"
kind = "number"
low = 60
high = 200
unit = "beats a minute"
fill = 130

[[columns]]
name = "exang"
kind = "flag"
fill = "no"

[[columns]]
name = "oldpeak"
kind = "number"
low = 0
high = 4
unit = "mm"
fill = 1

[[columns]]
name = "cp"  # kind of chest pain; 4 is "asymptomatic"
kind = "flag"
yes = [4]
no = [1, 2, 3]

[[columns]]
name = "site"  # they share what age or pain mean, not their share of the ill
kind = "category"
codes = ["cleveland", "hungary", "swiss", "beach"]

[actions]
names = ["ill", "well"]
features = [[1], [-1]]  # what speaks for one speaks against the other
shared = 1.0

[reward]
column = "num"
correct = { 0 = "well", 1 = "ill", 2 = "ill", 3 = "ill", 4 = "ill" }
"""


# ---- files of the hospitals ----------------------------------------------------------------------


def patients(data: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of each hospital, in a random order, with made-up dates."""
    found = sorted(data.glob("*.csv")) if data.is_dir() else [data]
    if not found or not found[0].is_file():
        raise click.ClickException(f"no data at {data}: give the folder with the CSV file")
    with found[0].open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    missing = {*KEPT, "site"} - set(rows[0] if rows else ())
    if missing:
        raise click.ClickException(f"{found[0]} has no column {', '.join(sorted(missing))}")
    made = {}
    for i, (name, prefix) in enumerate(SITES.items()):
        mine = [row for row in rows if row["site"].startswith(prefix)]
        if not mine:
            raise click.ClickException(f"{found[0]} has no site {prefix}")
        rng = np.random.default_rng(i)
        came = BEGIN + np.sort(rng.uniform(0, ADMITTING, len(mine))) * timedelta(days=1)
        known = came + rng.uniform(1, DELAY, len(mine)) * timedelta(days=1)
        order = rng.permutation(len(mine))
        made[name] = [
            {key: mine[at][key] for key in KEPT}
            | {"came": came[j].isoformat(), "known": known[j].isoformat()}
            for j, at in enumerate(order)
        ]
    return made


def write_files(rows: dict[str, list[dict[str, str]]], home: Path) -> None:
    """Each hospital's table, every one of another kind, and the source that says how it is read."""
    dates = f"begin = {BEGIN.isoformat()}\nuntil = {(BEGIN + YEAR).isoformat()}\n"
    usual = 'time = "came"\nknown = "known"\n'

    def source(name: str, text: str, more: str = "") -> None:
        fixed = f'\n[fixed]\nsite = "{name}"\n'
        (home / name / "source.toml").write_text(text + dates + fixed + more, encoding="utf-8")

    _write_csv(home / "cleveland" / "patients.csv", rows["cleveland"], ",", "utf-8")
    source("cleveland", 'file = "patients.csv"\n' + usual)

    # A spreadsheet: semicolons, decimal commas, a byte order mark, names and codes of its own.
    names = {"age": "kor", "sex": "nem", "came": "felvetel", "known": "eredmeny"}
    sheet = [{names.get(k, k): _spelled(k, v) for k, v in row.items()} for row in rows["hungary"]]
    _write_csv(home / "hungary" / "betegek.csv", sheet, ";", "utf-8-sig")
    source(
        "hungary",
        'file = "betegek.csv"\ndelimiter = ";"\ndecimal = ","\n'
        'time = "felvetel"\nknown = "eredmeny"\ntime_format = "%d.%m.%Y %H:%M:%S"\n',
        '\n[columns]\nage = "kor"\nsex = "nem"\n\n[codes.sex]\nferfi = "male"\nno = "female"\n',
    )

    table = [{k: _typed(k, v) for k, v in row.items()} for row in rows["swiss"]]
    try:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(table), home / "swiss" / "patients.parquet")
        source("swiss", 'file = "patients.parquet"\n' + usual)
    except ImportError:
        _write_csv(home / "swiss" / "patients.tsv", rows["swiss"], "\t", "utf-8")
        source("swiss", 'file = "patients.tsv"\n' + usual)

    table = [{k: _typed(k, v) for k, v in row.items()} for row in rows["beach"]]
    with closing(sqlite3.connect(home / "beach" / "records.sqlite")) as base:
        base.execute(f"CREATE TABLE visits (id, {', '.join(KEPT[:-1])}, came)")
        base.execute("CREATE TABLE results (id, num, known)")
        for i, row in enumerate(table):
            base.execute(
                f"INSERT INTO visits VALUES ({', '.join('?' * 8)})",
                (i, *(row[key] for key in KEPT[:-1]), row["came"]),
            )
            base.execute("INSERT INTO results VALUES (?, ?, ?)", (i, row["num"], row["known"]))
        base.commit()
    query = "SELECT * FROM visits JOIN results USING (id)"
    source("beach", f'database = "records.sqlite"\nquery = "{query}"\nsubject = "id"\n' + usual)


def _write_csv(path: Path, rows: list[dict[str, str]], delimiter: str, encoding: str) -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def _spelled(key: str, text: str) -> str:
    if key in ("came", "known"):
        return datetime.fromisoformat(text).strftime("%d.%m.%Y %H:%M:%S")
    if key == "sex":
        return {1.0: "ferfi", 0.0: "no"}.get(as_number(text) or 0.0, "")
    return text.replace(".", ",")


def _typed(key: str, text: str) -> object:
    return text if key in ("came", "known") else as_number(text)


# ---- the federation ------------------------------------------------------------------------------


def make_plan(home: Path, protocol: str, budget: tuple[float, float], period: int) -> DeployedPlan:
    """Keys of all parties, and the plan that they countersign."""
    keys = {name: folders.make_keys(home / name) for name in (*SITES, "hub")}
    start = int(time.time()) + 15
    parties = "".join(
        f'\n[[silos]]\nname = "{n}"\nsign = "{keys[n]["sign"]}"\nopen = "{keys[n]["open"]}"\n'
        for n in SITES
    )
    plan = compile_plan(
        f"""
[federation]
name = "four hospitals, {protocol}"
least = 3

[system]
protocol = "{protocol}"
epsilon = {budget[0]}
delta = {budget[1]}
horizon = {RELEASES * CAP}
batch_size = {CAP}
release = "factorised"  # less noise than a tree
sieve = 0.0  # among actions that may be chosen, the best estimate is chosen

[calendar]
start = {start}
period = {period}
grace = 600
reward_deadline = {10 * period}
{COLUMNS}{parties}
[hub]
sign = "{keys["hub"]["sign"]}"
open = "{keys["hub"]["open"]}"
"""
    )
    plan.save(home / "plan")
    for name in (*SITES, "hub"):
        folders.countersign(home / name, home / "plan")
    for name in SITES:
        Ledger(str(home / name / folders.LEDGER)).set_ceiling("records", *budget)
    return load(home / "plan")


def run(home: Path, plan: DeployedPlan) -> None:
    """The processes: hub, and four hospitals that replay their files; one of them leaves."""
    port = free_port()
    children = [Child("hub", "serve", str(home / "hub"), "--port", str(port))]
    dial = ("--hub", f"http://127.0.0.1:{port}", "--every", "0.2", "--replay")
    children += [
        Child(n, "silo", str(home / n), *dial, str(home / n / "source.toml")) for n in SITES
    ]
    clients = {name: Client(home / name / folders.SOCKET) for name in SITES}
    until = plan.document.calendar.closes[-1] + 120.0

    def status(name: str) -> dict[str, Any]:
        """What a silo says, which may still be starting."""
        while True:
            for child in children:
                if child.process.poll() is not None:
                    raise click.ClickException(f"{child.name} has stopped: see above")
            if time.time() > until:
                raise click.ClickException("this machine is too busy: ask for a longer --period")
            with suppress(OSError):
                return clients[name].call("status")
            time.sleep(0.2)

    present, waiting = list(SITES), 0
    try:
        while waiting < RELEASES:
            released = min(int(status(name)["model"]) for name in present)
            if released > waiting:
                click.echo(f"  release {released} of {RELEASES}")
            if released >= AFTER and LEAVES in present:
                present.remove(LEAVES)
                clients[LEAVES].call("leave")
                click.echo(f"  {LEAVES} leaves")
            waiting = released
            time.sleep(0.2)
        while any(status(name)["open_decisions"] for name in SITES):
            time.sleep(0.2)
    finally:
        for child in children[1:]:
            child.process.send_signal(signal.SIGTERM)
        for child in children[1:]:
            child.process.wait(30)
        children[0].stop()


def results(home: Path) -> dict[str, tuple[int, int, float]]:
    """Decisions, learned records and wrong calls of each hospital, from its own folder."""
    made = {}
    for name in SITES:
        process = folders.opened(home / name)
        party, ended = process.party, process.party.ended.values()
        wrong = sum(1.0 - each.reward for each in ended if each.reward is not None)
        # What became known after it left, or after the last release, is in no report.
        learned = sum(each.leaf in party.sealed for each in ended)
        made[name] = (len(party.decisions), learned, wrong / max(1, len(ended)))
        process.store.close()
    return made


# ---- what it is compared with --------------------------------------------------------------------


def without_privacy(home: Path, plan: DeployedPlan, names: list[str]) -> dict[str, float]:
    """Wrong calls if these hospitals learned from one pool, at once and without noise.

    Ridge regression that is greedy, on the features of the plan, with outcomes as late as they are.
    """
    schema, d = plan.document.schema, plan.plan.dimension
    events, wrong = [], {name: [] for name in names}
    for name in names:
        source = load_source(home / name / "source.toml")
        found = cases(source, schema)
        for when, case in zip(times(plan, source, found), found, strict=True):
            events.append((when.came, len(events), name, case, when.known, None))
    heapq.heapify(events)
    gram, moments = np.eye(d), np.zeros(d)
    while events:
        _, at, name, case, known, played = heapq.heappop(events)
        if played is not None:
            x, reward = played
            gram += np.outer(x, x)
            moments += x * reward
            continue
        rows, _ = schema.offer(None, case.record, None)
        chosen = int(np.argmax(rows @ np.linalg.solve(gram, moments)))
        reward = schema.reward(case.outcome, chosen)
        wrong[name].append(1.0 - reward)
        heapq.heappush(events, (known, at, name, case, known, (rows[chosen], reward)))
    return {name: float(np.mean(values)) for name, values in wrong.items()}


def commoner(home: Path, plan: DeployedPlan, name: str) -> float:
    """Wrong calls of the answer that is right more often, which nobody knows before the end."""
    schema = plan.document.schema
    found = cases(load_source(home / name / "source.toml"), schema)
    return min(float(np.mean([1.0 - schema.reward(c.outcome, a) for c in found])) for a in (0, 1))


def show(home: Path, plan: DeployedPlan, seconds: float) -> None:
    """The table, the certificate and the ledgers."""
    found = results(home)
    pooled = without_privacy(home, plan, list(SITES))
    alone = {name: without_privacy(home, plan, [name])[name] for name in SITES}
    usual = {name: commoner(home, plan, name) for name in SITES}
    sizes = np.array([found[name][0] for name in SITES], dtype=float)

    def whole(values: list[float]) -> float:
        return float(np.average(values, weights=sizes))

    click.echo(f"\n{'hospital':<12}{'decisions':>10}{'learned':>9}", nl=False)
    click.echo(f"{'wrong':>8}{'alone':>8}{'pooled':>8}{'commoner':>10}{'spent':>8}")
    columns = []
    for name in SITES:
        decisions, learned, wrong = found[name]
        shares = (wrong, alone[name], pooled[name], usual[name])
        columns.append(shares)
        (spent,) = spent_lines(Ledger(str(home / name / folders.LEDGER)))
        click.echo(f"{name:<12}{decisions:>10}{learned:>9}", nl=False)
        click.echo("{:>8.1%}{:>8.1%}{:>8.1%}{:>10.1%}".format(*shares), nl=False)
        click.echo(f"{spent['spent_epsilon']:>8.3f}")
    means = [whole(list(each)) for each in zip(*columns, strict=True)]
    click.echo(f"{'all':<12}{int(sizes.sum()):>10}{sum(f[1] for f in found.values()):>9}", nl=False)
    click.echo("{:>8.1%}{:>8.1%}{:>8.1%}{:>10.1%}".format(*means))
    # Standard error of a share, if patients were drawn independently.
    error = math.sqrt(means[0] * (1 - means[0]) / sizes.sum())
    click.echo(f"wrong: ± {error:.1%}; against each hospital alone: {means[0] - means[1]:+.1%}")
    click.echo(f"wall time {seconds:.0f} s, {RELEASES} releases\n")
    for name in SITES:
        (line,) = spent_lines(Ledger(str(home / name / folders.LEDGER)))
        click.echo(f"ledger of {name}: {line}")
    click.echo()
    click.echo(str(plan.certificate))
    process = folders.opened(home / "hub")
    entries = sum(1 for _ in process.store.writes())
    process.store.close()
    click.echo(f"hub: {entries} entries, chain and sums as they should be")


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--epsilon", default=3.0, show_default=True)
@click.option("--delta", default=1e-5, show_default=True)
@click.option("--period", default=2, show_default=True, help="Seconds of four weeks.")
def main(data: Path, epsilon: float, delta: float, period: int) -> None:
    """Run a federation of four hospitals with the records of the folder DATA."""
    rows = patients(data)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for protocol in ("silo-ldp", "central"):
        began = time.monotonic()
        click.echo(f"{protocol}, epsilon = {epsilon:g}, delta = {delta:g}")
        with tempfile.TemporaryDirectory() as spare:
            home = Path(spare)
            plan = make_plan(home, protocol, (epsilon, delta), period)
            write_files(rows, home)
            run(home, plan)
            show(home, plan, time.monotonic() - began)


if __name__ == "__main__":
    main()
