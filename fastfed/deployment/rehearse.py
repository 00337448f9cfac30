"""Rehearse a federation on past records: all parties in one process, by the clock of the plan.

The parties run as in a deployment, with their files: each silo decides for the records of its
table, learns their outcomes, spends its budget and sends reports. Only time and network are
simulated, so a plan of a year takes seconds.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from fastfed._validate import InputError, number, show
from fastfed.deployment import folder as folders
from fastfed.deployment.data import Case, Source, cases, load_source, source_of
from fastfed.deployment.declared import schema_of
from fastfed.deployment.kinds import SECURE_SUM_PROTOCOLS
from fastfed.deployment.ledger import Ledger, spent_lines
from fastfed.deployment.model import Ended
from fastfed.deployment.plans import DeployedPlan, compile_plan, tables_of
from fastfed.deployment.process import Process, SiloProcess, settle
from fastfed.deployment.replay import Replay, survey

#: Defaults of a spec: the number of periods, and the seconds of a period.
PERIODS, PERIOD = 10, 86_400
#: Name of the dataset that the ledgers charge.
DATASET = "records"


class SiloResult(NamedTuple):
    """What a rehearsal did at one silo.

    Parameters
    ----------
    decisions, learned : int
        Number of decisions, and number of decisions whose reward entered a released sum.
    mean_reward, late_reward : float or None
        Mean reward of all decisions with a reward, and of the later half of them. None if no
        decision has a reward.
    best_single : float or None
        The largest mean reward over all records of the table if one action is chosen for all of
        them. None if the table does not have the outcome of every action.
    spent, ceiling : float
        Epsilon that the silo's ledger has spent, and the largest epsilon that it allows.
    """

    decisions: int
    learned: int
    mean_reward: float | None
    late_reward: float | None
    best_single: float | None
    spent: float
    ceiling: float


class Rehearsal(NamedTuple):
    """The plan of a rehearsal, its number of releases, and its results by silo."""

    plan: DeployedPlan
    releases: int
    silos: dict[str, SiloResult]


def table_of(path: str | Path) -> Source:
    """Return the source of a silo's table: where the file is, and how its columns are named.

    ``path`` is the table, or a TOML file that describes its source.
    """
    file = Path(path)
    return load_source(file) if file.suffix == ".toml" else source_of({"file": str(file)})


def rehearse(
    spec: str | Mapping[str, Any],
    tables: Mapping[str, str | Path],
    home: str | Path,
    say: Callable[[str], None] = print,
) -> Rehearsal:
    """Create all parties of a spec, replay each silo's table, and return the results.

    Parameters
    ----------
    spec : str or mapping
        As for `compile_plan`, for a plan of records: every column has a kind (docs/records.md). The
        keys of silos, hub and helper are created here. By default, `horizon` is the number of rows
        of the largest table, `batch_size` is a tenth of `horizon`, and the calendar has a day for
        each batch.
    tables : mapping of str to path
        Silo -> its table, or the source (a TOML file) that describes the table.
    home : str or Path
        A new or empty folder, in which each party gets its folder.
    say : callable
        Called with a line for each release, and with remarks on the tables.

    Returns
    -------
    Rehearsal
        The plan, the number of releases, and the results of each silo.

    Raises
    ------
    InputError
        If the spec or a table does not fit, or the folder is not empty.
    """
    folder = Path(home)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"folder must be new or empty, got {folder}")
    if not tables:
        raise InputError("name at least one silo and its table, such as north=north.csv")
    spec_tables = tables_of(spec)
    if "actions" not in spec_tables:
        raise InputError(
            "rehearse needs a plan of records: columns with a kind, actions, reward "
            "(docs/records.md)"
        )
    sources = {name: table_of(path) for name, path in tables.items()}
    schema = schema_of(spec_tables)
    records = {}
    for name, source in sources.items():
        try:
            records[name] = cases(source, schema)
        except InputError as error:
            raise InputError(f"the table of {name}: {error}") from None
    largest_table = max(map(len, records.values()))
    plan = _compile_and_join(spec_tables, largest_table, list(tables), folder)
    processes = {party.name: folders.opened(folder / party.name) for party in plan.parties}
    clock = _Clock(float(plan.document.calendar.start))
    for process in processes.values():
        process.clock = clock
    replays = {
        name: Replay(cast(SiloProcess, processes[name]), sources[name], records[name])
        for name in tables
    }
    try:
        _run(plan, processes, replays, clock, say)
        results = {
            name: _result(cast(SiloProcess, processes[name]), records[name]) for name in tables
        }
        releases = max(len(silo.party.broadcasts) for silo in _silos(processes.values()))
    finally:
        for process in processes.values():
            process.close()
    for name in tables:
        counts = survey(plan, sources[name], records[name], plan.index(name))
        for key, remark in _REMARKS.items():
            if counts[key]:
                say(f"{name}: {counts[key]} of {counts['rows']} rows are {remark}")
        for key, remark in _REMARKS_ON_COLUMNS.items():
            for column, count in counts[key].items():
                if 10 * count >= counts["rows"]:
                    say(f'{name}: column "{column}": {count} of {counts["rows"]} values {remark}')
    return Rehearsal(plan, releases, results)


#: Count of `survey` by column -> what a line says about values that are counted there.
_REMARKS_ON_COLUMNS = {
    "clipped": "are outside the range of the plan, and are clipped: compare the units",
    "missing": "are missing",
}
#: Count of `survey` -> what a line says about rows that are counted there.
_REMARKS = {
    "too_late": "not learned from, because their outcome is known too late",
    "repeated": "not learned from, because their person came before",
    "beyond_cap": "beyond batch_size of their period: confidence radii assume no more",
}


class _Clock:
    """The time of the rehearsal, in seconds since 1970."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def _silos(processes: Iterable[Process]) -> list[SiloProcess]:
    """Return the processes of silos."""
    return [process for process in processes if isinstance(process, SiloProcess)]


def _compile_and_join(
    spec_tables: Mapping[str, Any], rows: int, silos: Sequence[str], folder: Path
) -> DeployedPlan:
    """Create the folder of each party, let all parties join the plan, and return the plan.

    Parameters
    ----------
    spec_tables : mapping
        The tables of the spec.
    rows : int
        Number of rows of the largest table, the default of ``horizon``.
    silos : sequence of str
        Names of the silos.
    folder : Path
        The folder in which each party gets a folder. After an error it does not exist.
    """
    tables = _with_defaults(spec_tables, rows, silos)
    has_helper = "helper" in spec_tables or (
        tables["system"]["protocol"] in SECURE_SUM_PROTOCOLS
        and tables["federation"].get("sum") != "masks"
    )
    parties = [*silos, "hub", *(["helper"] if has_helper else [])]
    if len(set(parties)) != len(parties):
        raise InputError("a silo must not be named hub or helper")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-new-") as temporary:
        draft = Path(temporary) / "draft"
        draft.mkdir()
        plan = _create_folders(tables, silos, parties, draft)
        os.replace(draft, folder)
    return plan


def _with_defaults(
    spec_tables: Mapping[str, Any], rows: int, silos: Sequence[str]
) -> dict[str, Any]:
    """Return a spec's tables, with the defaults of a rehearsal for keys that are missing.

    The tables of the parties (silos, hub, helper) are left out. See `_compile_and_join` for the
    parameters.
    """
    system = {"protocol": "silo-ldp", **spec_tables.get("system", {})}
    for key in ("epsilon", "delta"):
        if key not in system:
            raise InputError(f"[system] needs {key}: the budget of one person")
    horizon = system.setdefault("horizon", rows)
    if not isinstance(horizon, int) or horizon < 1:
        raise InputError(f"horizon must be an integer of at least 1, got {show(horizon)}")
    if not {"batch_size", "batches"} & system.keys():
        system["batch_size"] = max(1, math.ceil(horizon / PERIODS))
    # `least` is the minimum number of silos in a release. In a plan with clocks it must be 1, which
    # is its default there, and the calendar has the length of a round instead of a period.
    clocked = system.get("clock") is not None
    least = {} if clocked else {"least": len(silos)}
    federation = {"name": "rehearsal", **least, **spec_tables.get("federation", {})}
    lengths = {"period": PERIOD, "grace": PERIOD // 2}
    if clocked:
        lengths = {"round": max(1, PERIODS * PERIOD // horizon)}
    calendar = spec_tables.get("calendar") or {
        "start": math.floor(time.time()),
        **lengths,
        "reward_deadline": PERIODS * PERIOD,
    }
    schema_keys = ("columns", "actions", "reward", "norm")
    return {
        **{key: spec_tables[key] for key in schema_keys if key in spec_tables},
        "federation": federation,
        "system": system,
        "calendar": calendar,
    }


def _create_folders(
    tables: Mapping[str, Any], silos: Sequence[str], parties: Sequence[str], folder: Path
) -> DeployedPlan:
    """Create the folder of each party, let all parties join the plan, and return the plan.

    A folder holds the party's keys and, for a silo, a ledger with a ceiling that just allows the
    plan.
    """
    keys = {name: folders.make_keys(folder / name) for name in parties}
    other_keys = {name: keys[name] for name in parties if name not in silos}
    plan = compile_plan(
        {**tables, "silos": [{"name": name, **keys[name]} for name in silos], **other_keys}
    )
    plan.save(folder / folders.PLAN)
    exact, system = plan.certificate.exact, tables["system"]
    for name in parties:
        folders.countersign(folder / name, folder / folders.PLAN)
    for name in silos:
        ledger = Ledger(str(folder / name / folders.LEDGER))
        epsilon = number("epsilon", system["epsilon"], above=0.0)
        ledger.set_ceiling(DATASET, max(epsilon, exact.epsilon if exact else 0.0), system["delta"])
        ledger.close()
    return plan


def _run(
    plan: DeployedPlan,
    processes: Mapping[str, Process],
    replays: Mapping[str, Replay],
    clock: _Clock,
    say: Callable[[str], None],
) -> None:
    """Run a rehearsal: process decisions, outcomes and ends of periods in the order of time.

    ``processes`` has the process of each party, and ``replays`` the replay of each silo's table.
    ``say`` is called with a line for each release.
    """
    settle(processes)
    closes = plan.document.calendar.closes
    for release, close_time in enumerate(closes, 1):
        while (due := min(replay.due for replay in replays.values())) < close_time:
            clock.now = max(clock.now, due)
            for replay in replays.values():
                replay.act(clock.now)
        clock.now = float(close_time)
        settle(processes)
        decided = sum(len(silo.party.decisions) for silo in _silos(processes.values()))
        say(f"release {release} of {len(closes)}: {decided} decisions so far")
    # Outcomes that become known after the last release are not learned from.
    while any(replay.remaining for replay in replays.values()):
        clock.now = max(clock.now, min(replay.due for replay in replays.values()))
        for replay in replays.values():
            replay.act(clock.now)


def _result(silo: SiloProcess, records: Sequence[Case]) -> SiloResult:
    """Return the result of a silo, whose table has the cases ``records``."""
    party = silo.party
    ends = [cast(Ended, party.ended[name]) for name in party.ended]
    rewards = [end.reward for end in ends if end.reward is not None]
    # The ledger has only the dataset of this rehearsal, so there is one line.
    (budget,) = spent_lines(cast(Ledger, silo.ledger))
    return SiloResult(
        decisions=len(party.decisions),
        learned=sum(1 <= end.leaf <= party.released_leaves for end in ends),
        mean_reward=_mean(rewards),
        late_reward=_mean(rewards[len(rewards) // 2 :]),
        best_single=_best_single(party.deployed, records),
        spent=budget["spent_epsilon"],
        ceiling=budget["ceiling_epsilon"],
    )


def _best_single(plan: DeployedPlan, records: Sequence[Case]) -> float | None:
    """Return the largest mean reward over all records, if one action is chosen for all of them.

    Return None if the outcome of some action is unknown for some record. It is unknown for all
    actions but the taken one if the table has a column of taken actions (`Case.taken`).
    """
    schema = plan.document.schema
    assert schema.records is not None
    means: list[float] = []
    for action, name in enumerate(schema.records.actions.names):
        rewards = []
        for case in records:
            by_action = case.outcome_by_action
            outcome = by_action.get(name) if by_action else case.outcome
            if outcome is None or case.taken is not None:
                return None
            rewards.append(schema.reward(outcome, action))
        means.append(math.fsum(rewards) / len(rewards))
    return max(means)


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of values; None if there are none."""
    return math.fsum(values) / len(values) if values else None


def rehearse_in(
    spec: str | Mapping[str, Any],
    tables: Mapping[str, str | Path],
    home: str | Path | None,
    say: Callable[[str], None],
) -> Rehearsal:
    """Call `rehearse` in the folder ``home``, or in a temporary folder if ``home`` is None."""
    if home is not None:
        return rehearse(spec, tables, home, say)
    with tempfile.TemporaryDirectory() as temporary:
        return rehearse(spec, tables, Path(temporary) / "rehearsal", say)
