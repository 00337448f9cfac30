"""Tables that silos read as records of their plan, and replays of past records."""

import gzip
import json
import re
import sqlite3
import threading
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from click.testing import CliRunner
from records import AGE, PAIN, SCORE, SEX, deployed, silo, spec

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import plans
from fastfed.deployment.data import cases, load_source, source_of, surveyed
from fastfed.deployment.replay import Replay, survey, times
from fastfed.deployment.store import MemoryStore

# ---- tables --------------------------------------------------------------------------------------

PATIENTS = [
    {"age": 63.5, "pain": 1, "sex": "m", "num": 0},
    {"age": None, "pain": "none", "sex": "f", "num": 1},
    {"age": 40.0, "pain": 2, "sex": "m", "num": 1},
]
OPEN = deployed(columns=[AGE | {"fill": 50}, PAIN, SEX])


def write_table(path, delimiter=",", decimal=".", bom=False, rows=PATIENTS):
    """Write rows as a table in this format, and return the keys that name it in a source."""

    def cell(value):
        """Return a cell as text, with this decimal mark."""
        text = "" if value is None else str(value)
        return text.replace(".", ",") if decimal == "," and isinstance(value, float) else text

    lines = [delimiter.join(rows[0])] + [delimiter.join(map(cell, r.values())) for r in rows]
    data = (b"\xef\xbb\xbf" if bom else b"") + "\r\n".join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return {"file": path.name, "decimal": decimal}


def read(table, folder, plan=OPEN):
    """Return the cases of a table by the schema of a plan."""
    return cases(source_of(table, folder), plan.document.schema)


def features(found_cases, plan=OPEN):
    """Return the context of each case."""
    return [plan.document.schema.records.context(case.record) for case in found_cases]


def test_tables_of_all_kinds_hold_the_same_records(tmp_path):
    tables = {
        "comma": write_table(tmp_path / "a.csv"),
        "semicolon": write_table(tmp_path / "b.csv", ";", ",", bom=True),
        "tab": write_table(tmp_path / "c.tsv", "\t"),
        "packed": write_table(tmp_path / "d.csv.gz", "|"),
    }
    with closing(sqlite3.connect(tmp_path / "e.sqlite")) as base:
        base.execute("CREATE TABLE p (age, pain, sex, num)")
        base.executemany("INSERT INTO p VALUES (?, ?, ?, ?)", [[*p.values()] for p in PATIENTS])
        base.commit()
        tables["sqlite"] = {"database": "e.sqlite", "query": "SELECT * FROM p"}
        from_connection = cases(source_of({"query": "SELECT * FROM p"}), OPEN.document.schema, base)
        with pytest.raises(InputError, match="needs a database, or in Python a connection"):
            read({"query": "SELECT * FROM p"}, tmp_path)
    actual = {name: read(table, tmp_path) for name, table in tables.items()}
    wanted = [[0.45, 1, 0, 0, 1.0], [0.0, 0, 0, 1, -1.0], [-1 / 3, 0, 1, 0, 1.0]]
    for name, each in {**actual, "DB-API": from_connection}.items():
        np.testing.assert_allclose(features(each), wanted, atol=1e-12, err_msg=name)
        assert [float(case.outcome) for case in each] == [0.0, 1.0, 1.0], name
    assert actual["comma"][1].where == "a.csv, line 3"
    # A query can read, and nothing else.
    with pytest.raises(InputError, match="may only read"):
        read({"database": "e.sqlite", "query": "DELETE FROM p"}, tmp_path)


def test_a_parquet_file_holds_the_same_records(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [p | {"pain": str(p["pain"])} for p in PATIENTS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    actual = read({"file": "p.parquet"}, tmp_path)
    assert features(actual)[0] == pytest.approx([0.45, 1, 0, 0, 1.0])
    assert actual[2].where == "p.parquet, row 3"
    (tmp_path / "q.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match=r"q\.parquet is no Parquet file"):
        read({"file": "q.parquet"}, tmp_path)


def test_a_source_maps_the_names_codes_and_units_of_a_site(tmp_path):
    rows = [{"Alter": 762.0, "Schmerz": "-9", "w": "frau", "num": "4,0", "id": "p1"}]
    table = write_table(tmp_path / "a.csv", ";", ",", rows=rows)
    plan = deployed(
        columns=[AGE, PAIN | {"missing_flag": True}, SEX, AGE | {"name": "pulse", "fill": 50}],
        reward={"column": "num", "correct": {"0": "well", "4": "ill"}},
    )
    table |= {
        "columns": {"age": "Alter", "sex": "w", "pain": "Schmerz"},
        "codes": {"sex": {"frau": "f", "mann": "m"}},
        "factors": {"age": 1 / 12},
        "missing": ["-9"],
        "absent": ["pulse"],
        "subject": "id",
    }
    (case,) = read(table, tmp_path, plan)
    assert features([case], plan)[0] == pytest.approx([0.45, 0, 0, 0, 1, -1, 0])
    assert case.subject == "p1"
    fixed = table | {"fixed": {"sex": "m"}, "columns": {"age": "Alter", "pain": "Schmerz"}}
    assert features(read(fixed, tmp_path, plan), plan)[0][5] == 1.0


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("age,pain,sex,num\n63,1,m,0\n63,9,m,0\n1,9,m,0\n", {}, r"a.csv, line 3: column \"pain\" "
         r"must be one of 1, 2, none, got another value \(and 1 more rows do not fit\)"),
        ("age;pain;sex;num\n63,5;1;m;0\n", {}, r'line 2: column "age" has a comma.*decimal = ","'),
        ("age;pain;sex;num\n1.063,5;1;m;0\n", {"decimal": ","}, "separators of thousands"),
        ("age,pain,sex,num\n63,5,1,m,0\n", {}, "line 2: 5 cells, but the header has 4"),
        ("age,pain,sex,num\n63,1,m,2\n", {}, 'line 2: outcome "num" must be one of 0, 1'),
        ("age,pain,num\n63,1,0\n", {}, 'no column "sex".*list \'sex\' under absent'),
        ("age,pain,sex\n63,1,m\n", {}, r'no column "num"; rewards come from it: .* write columns = '
         r'\{ "num" = "its name in the table" \}'),
        ("Age,pain,sex,num\n63,1,m,0\n", {}, '"age"; of its 4 columns .* other names: 1;'),
        ("age,pain,sex,sex,num\n63,1,m,m,0\n", {}, 'two columns "sex"'),
        ("age,pain,sex,num\n", {}, "the table has no rows"),
        ("", {}, "a.csv is empty"),
        ("age,pain,sex,num\n63,\xff,m,0\n", {}, "a.csv is not text in utf-8: set encoding"),
        ("age,pain,sex,num\n63,1,m,0\n", {"factors": {"sex": 2.0}}, "'sex', which is no number"),
        ("age,pain,sex,num\n63,1,m,0\n", {"columns": {"agge": "age"}}, "no column of the plan"),
        ("age,pain,sex,num\n63,1,m,0\n", {"time": "age"}, "time, begin and until together"),
        ("age,pain,sex,num\n63,1,m,0\n", {"file": "b.csv"}, "there is no file"),
        ("age,pain,sex,num\n63,1,m,0\n", {"fil": "b.csv"}, "unknown key 'fil'.*did you mean"),
        ("age,pain,sex,num\n63,1,m,0\n", {"delay": "a"}, "delay must be a number, got 'a'"),
        ("age,pain,sex,num\n63,1,m,0\n", {"time": "pain", "begin": 3, "until": 2}, "before until"),
        ("age,pain,sex,num\n63,1,m,0\n", {"time": "pain", "begin": 3, "until": 9},
         'line 2: column "pain" must be from begin to until'),
        ("age,pain,sex,num\n63,1,m,0\n", {"time": "sex", "begin": 3, "until": 9},
         'column "sex" must be a date'),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_with_file_line_column_and_range(
    tmp_path, text, more, message
):
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message) as error:
        read({"file": "a.csv"} | more, tmp_path)
    assert "got '9'" not in str(error.value)


# ---- replay --------------------------------------------------------------------------------------


def table_of(tmp_path, count, **more):
    """Return the source of a table of random records with dates."""
    rng = np.random.default_rng(count)
    rows = [
        {
            "age": float(rng.integers(20, 80)),
            "pain": 1,
            "sex": "m",
            "num": int(rng.integers(2)),
            "came": f"2023-01-{1 + int(rng.integers(20)):02d}",
            "known": f"2023-01-{22 + int(rng.integers(4)):02d}T12:00",
        }
        for _ in range(count)
    ]
    table = write_table(tmp_path / f"{count}.csv", rows=rows) | more
    return source_of(table, tmp_path)


def test_silos_of_unequal_size_keep_all_their_patients(tmp_path):
    plan = OPEN
    deployment = federation.Federation(plan)
    sizes, replays = {"silo0": 15, "silo1": 4, "silo2": 1}, {}
    for name, count in sizes.items():
        source = table_of(tmp_path, count, delay=50.0)
        records = cases(source, plan.document.schema)
        counts = survey(plan, source, records)
        assert counts["learned"] == counts["rows"] == count
        assert counts["caps"] == [5, 5, 5, 5] and sum(counts["periods"]) == count
        replays[name] = Replay(deployment.processes[name], source, records)
    deployment.settle()
    for now in range(1000, 1401, 5):
        deployment.now = float(now)
        for replay in replays.values():
            replay.act(deployment.now)
        deployment.settle()
    for name, count in sizes.items():
        party = deployment.processes[name].party
        assert len(party.decisions) == count and not replays[name].remaining
        leaves = [each.leaf for each in party.ended.values()]
        assert all(leaves) and party.model.release == 4
        # Every silo reports every release, in as many bytes.
        assert [len(party.sealed[k]) for k in range(1, 5)] == [len(party.sealed[1])] * 4
    # An outcome is known 50 seconds later: the first period has fewer outcomes than decisions.
    leaves = [each.leaf for each in deployment.processes["silo0"].party.ended.values()]
    assert leaves.count(1) == 2 and len(set(leaves)) == 4


def test_rows_beyond_what_radii_assume_are_learned_from_and_reported(tmp_path):
    source = table_of(tmp_path, 30)
    counts = survey(OPEN, source, actual := cases(source, OPEN.document.schema))
    assert counts["learned"] == 30 and counts["beyond_cap"] == 10 and counts["dropped"] == 0
    now = [0.0]
    process = silo(OPEN, clock=lambda: now[0])
    replay = Replay(process, source, actual)
    while replay.remaining:
        now[0] = replay.due
        replay.act(now[0])
    assert sum(each.leaf > 0 for each in process.party.ended.values()) == 30
    assert len(process.party.decisions) == 30


def test_dates_of_a_file_are_mapped_to_the_calendar(tmp_path):
    dates = {"time": "came", "known": "known", "begin": "2023-01-01", "until": "2023-01-31"}
    source = table_of(tmp_path, 12, **dates)
    records = cases(source, OPEN.document.schema)
    for when, case in zip(times(OPEN, source, records), records, strict=True):
        day = (case.time - 1672531200.0) / 86400
        assert when.came == pytest.approx(1000 + 400 * day / 30)
        assert 1000 + 400 * 21 / 30 < when.known < 1400
    late = source_of({"file": "12.csv", "delay": 500.0}, tmp_path)
    with pytest.raises(InputError, match="delay must be below the 400 seconds"):
        times(OPEN, late, records)
    (tmp_path / "late.csv").write_text(
        "age,pain,sex,num,came,known\n63,1,m,0,2.1.2023,1.1.2023\n63,1,m,0,3.1.2023,\n"
    )
    table = dates | {"file": "late.csv", "time_format": "%d.%m.%Y"}
    found_cases, problems = surveyed(source_of(table, tmp_path), OPEN.document.schema)
    assert problems == ['late.csv, line 2: column "known" must not be before "came"']
    # An outcome that never becomes known is not counted.
    assert [case.outcome for case in found_cases] == [None]


def test_a_replay_that_was_killed_goes_on_where_it_was(tmp_path):
    source = table_of(tmp_path, 15, delay=120.0)
    records, now, store = cases(source, OPEN.document.schema), [1150.0], MemoryStore()
    first = silo(OPEN, store=store, clock=lambda: now[0])
    Replay(first, source, records).act(now[0])
    before = dict(first.party.decisions)
    assert 0 < len(first.party.ended) < len(before) < 15
    # The process is killed, and restarts after the times of some patients have passed.
    now[0] = 1250.0
    restarted = silo(OPEN, store=store, clock=lambda: now[0])
    replay = Replay(restarted, source, records)
    replay.act(now[0])
    now[0] = 1399.0
    replay.act(now[0])
    party = restarted.party
    assert list(party.decisions)[: len(before)] == list(before) and len(party.decisions) == 15
    assert len(party.ended) == 15 and not replay.remaining
    assert not Replay(restarted, source, records).remaining
    subjects = [each.subject for each in party.decisions.values()]
    assert len(set(subjects)) == 15 and all(each.learns for each in party.decisions.values())


def test_a_replay_waits_for_a_silo_that_refuses_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fastfed.deployment.replay.RETRY_SECONDS", 0.001)
    source = table_of(tmp_path, 15, delay=10.0)
    process, lines, now = silo(OPEN, clock=lambda: now[0]), [], [1200.0]
    replay = Replay(process, source, cases(source, OPEN.document.schema))
    process.party.lost[1] = b""  # as after a restored backup
    refusals, check = [], process.party.check_recovered

    def refusing():
        """Check as before; before the third check, the silo recovers."""
        refusals.append(None)
        if len(refusals) == 3:
            process.party.lost.clear()
        check()

    monkeypatch.setattr(process.party, "check_recovered", refusing)
    # Each reading moves the clock, until all rewards have come.
    monkeypatch.setattr(process, "clock", lambda: now.append(min(now[-1] + 5, 1399.0)) or now[-1])
    replay.run(threading.Event(), lines.append)
    assert len(lines) == 1 and lines[0].startswith("the replay waits: the hub has reports")
    assert not replay.remaining and len(process.party.ended) == 15
    assert all(each.learns for each in process.party.decisions.values())
    stopped = threading.Event()
    stopped.set()
    again = Replay(silo(OPEN), source, cases(source, OPEN.document.schema))
    again.run(stopped)
    assert again.remaining == 15


def test_a_decision_that_the_application_ended_is_not_ended_again(tmp_path):
    source = table_of(tmp_path, 15, delay=100.0)
    process = silo(OPEN)
    replay = Replay(process, source, cases(source, OPEN.document.schema))
    replay.act(1050.0)
    for name in process.party.decisions:
        process.cancel(name)
    replay.act(1399.0)
    assert len(process.party.ended) == 15 and not replay.remaining
    ended = [each.why for each in process.party.ended.values()]
    assert 0 < ended.count("cancelled") < 15


def test_an_outcome_of_another_action_is_not_learned_from(tmp_path):
    plan = deployed(reward=SCORE)
    header = "age,pain,sex,done,score,if_ill,if_well\n"
    (tmp_path / "a.csv").write_text(header + "63,1,m,ill,25,10,20\n40,2,f,well,5,30,40\n")
    with pytest.raises(InputError, match="the column of the action taken"):
        read({"file": "a.csv"}, tmp_path, plan)

    def rewards(**more):
        """Replay two rows; return the actions and the rewards that the silo learned."""
        source = source_of({"file": "a.csv", "delay": 1.0} | more, tmp_path)
        process = silo(plan)
        replay = Replay(process, source, cases(source, plan.document.schema))
        for row in (1, 0):
            replay._times[row] = replay._times[row]._replace(known=1390.0)
        replay.act(1400.0)
        actions = [each.action for each in process.party.decisions.values()]
        return actions, [each.reward for each in process.party.ended.values()]

    # Without a model the first action is played.
    assert rewards(action="done") == ([0, 0], [0.5, None])
    names = {"action": {"ill": "well", "well": "ill"}}
    assert rewards(action="done", codes=names) == ([0, 0], [None, 0.1])
    with pytest.raises(InputError, match="codes of the source has 'action', which is no column"):
        rewards(outcomes={"ill": "if_ill", "well": "if_well"}, codes=names)
    assert rewards(outcomes={"ill": "if_ill", "well": "if_well"}) == ([0, 0], [0.2, 0.6])


def test_the_command_says_whether_a_table_fits_before_anything_is_decided(tmp_path):
    OPEN.save(tmp_path / "plan")
    table_of(tmp_path, 15)
    source = tmp_path / "source.toml"
    source.write_text('file = "15.csv"\n')
    assert load_source(source).file == str(tmp_path / "15.csv")
    check = ["deploy", "check", str(tmp_path / "plan"), str(source)]
    result = CliRunner().invoke(cli, check)
    assert result.exit_code == 0 and json.loads(result.output)["learned"] == 15
    with (tmp_path / "15.csv").open("a") as file:
        file.write("\r\n63,9,m,0,,")
    result = CliRunner().invoke(cli, check)
    assert result.exit_code == 1 and '15.csv, line 17: column "pain"' in result.output
    # A silo refuses to start with this table.
    home = tmp_path / "north"
    keys = {name: folders.make_keys(tmp_path / name) for name in ("north", "hub")}
    silos = [{"name": "north", **keys["north"]}]
    federation_ = {"name": "one", "least": 1}
    table = spec(federation=federation_) | {"silos": silos, "hub": keys["hub"]}
    plan = plans.compile_plan(table)
    plan.save(tmp_path / "one")
    folders.countersign(home, tmp_path / "one")
    start = ["silo", str(home), "--hub", "http://localhost:9", "--replay", str(source)]
    result = CliRunner().invoke(cli, start)
    assert result.exit_code == 2 and "line 17" in result.output


def test_the_spec_and_the_source_of_the_page_are_read():
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    declared, source = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    tables = tomllib.loads(declared)
    plan = plans.compile_plan(spec(**tables))
    record = {"age": 50, "pain": "none", "smokes": "yes"}
    rows, _ = plan.document.schema.offer(None, record, ["B"])
    # Three blocks of age, three kinds of pain, their flag, smokes, and a constant.
    assert rows.shape == (1, 21) and not rows[0, :7].any() and not rows[0, 14:].any()
    parsed_source = source_of(tomllib.loads(source))
    assert parsed_source.decimal == "," and parsed_source.columns == {"age": "kor"}
