"""Mistakes in deployments: specs of plans, folders, files, ledgers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from mistakes import Mistake, command

Make = Callable[[Path], Any]
DEPLOY = ("cryptography",)
HEAD = """
norm = 1.5

[federation]
name = "trial"
least = 2

[system]
horizon = 200
batch_size = 20
protocol = "silo-ldp"
epsilon = 1.0
delta = 1e-6

[calendar]
start = 2027-01-04T00:00:00Z
period = 86400
grace = 43200
reward_deadline = 172800

[[columns]]
name = "age"
low = 0.0
high = 1.0

[[columns]]
name = "dose"
low = 0.0
high = 1.0
"""


def spec(folder: Path) -> str:
    """Create the folders of three parties, and return a spec with the keys of these parties."""
    from fastfed.deployment.folder import make_keys

    text = HEAD
    for name in ("north", "east", "hub"):
        table = "[hub]" if name == "hub" else f'[[silos]]\nname = "{name}"'
        keys = "".join(f'{key} = "{value}"\n' for key, value in make_keys(folder / name).items())
        text += f"\n{table}\n{keys}"
    return text


def compile_changed(old: str = "", new: str = "", text: str | None = None) -> Make:
    """Return a function that compiles a spec with a part replaced."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        spec_text = spec(folder) if text is None else text
        assert old in spec_text, old
        (folder / "s.toml").write_text(spec_text.replace(old, new, 1))
        command("deploy", "new", folder / "s.toml", folder / "plan")

    return make


def planned(use: Callable[[Path], object]) -> Make:
    """Return a function that calls ``use`` beside agreed.plan and the folders of its parties."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed.deployment.plans import compile_plan

        compile_plan(spec(folder)).save(folder / "agreed.plan")
        use(folder)

    return make


def call(*arguments: object, files: dict[str, bytes] | None = None) -> Make:
    """Return a function that calls a command beside these files."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        command(*arguments)

    return make


def flipped(folder: Path) -> None:
    """Flip one bit of a plan and join it."""
    path = folder / "agreed.plan"
    content = bytearray(path.read_bytes())
    # The exponent of a number of the plan; its last bits may differ by linear algebra.
    content[content.index(b"noise_std.bias") + len("noise_std.bias") + 1] ^= 1
    path.write_bytes(bytes(content))
    command("deploy", "join", "north", "agreed.plan", "--epsilon", 1, "--delta", "1e-6")


def joined(*arguments: object) -> Make:
    """Return the mistake of joining a plan with these arguments."""
    return planned(lambda folder: command("deploy", "join", *arguments))


def agent(**settings: Any) -> Make:
    """Return a function that makes an agent in the folder "shop"."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed.deployment import PrivateLinUCB

        budget = {"epsilon": 1.0, "delta": 1e-6, "releases": 3, "batch_size": 9}
        PrivateLinUCB("shop", **{**budget, **settings})

    return make


def source(text: str) -> Make:
    """Return a function that reads the source of a table with a further line."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed.deployment.data import load_source

        (folder / "north.toml").write_text(f'file = "north.csv"\n{text}\n')
        load_source(folder / "north.toml")

    return make


def declared(**changes: Any) -> Make:
    """Return a function that reads the columns, actions and reward of a spec."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        from fastfed.deployment.declared import schema_of

        tables = {
            "columns": [{"name": "sex", "kind": "flag"}],
            "actions": {"names": ["A", "B"]},
            "reward": {"column": "days", "low": 0, "high": 9},
        }
        schema_of({**tables, **changes})

    return make


CALENDAR = HEAD[HEAD.index("[calendar]") : HEAD.index("[[columns]]")]
UNTIL_PERIOD = HEAD[HEAD.index("epsilon") : HEAD.index("grace")]
PLANS = [
    Mistake(
        "join a spec",
        lambda folder: (
            (folder / "s.toml").write_text(spec(folder)),
            command("deploy", "join", "north", "s.toml", "--epsilon", 1, "--delta", "1e-6"),
        ),
        ("s.toml", "fastfed deploy new SPEC.toml PLAN"),
        DEPLOY,
    ),
    Mistake(
        "an agent with a period of a day",
        agent(period="1 day"),
        ("period", "seconds", "86_400", "'1 day'"),
        DEPLOY,
    ),
    Mistake(
        "an agent with a timedelta",
        agent(period=timedelta(days=1)),
        ("period", "seconds", "86_400", "timedelta"),
        DEPLOY,
    ),
    Mistake(
        "an agent of no dimension",
        agent(),
        ("period", "dimension or columns"),
        DEPLOY,
    ),
    Mistake(
        "a protocol that is not deployed",
        compile_changed('"silo-ldp"', '"shuffle-amplified"'),
        ("shuffle-amplified", "deployed"),
        DEPLOY,
    ),
    Mistake(
        "an unknown key of [system]",
        compile_changed("epsilon = 1.0", "epsilom = 1.0"),
        ("epsilom", 'mean "epsilon"'),
        DEPLOY,
    ),
    Mistake(
        "simulated delays of a plan that is deployed",
        compile_changed(
            "epsilon = 1.0", 'epsilon = 1.0\ndelay = { kind = "constant", rounds = 3 }'
        ),
        ("delay", "simulations"),
        DEPLOY,
    ),
    Mistake(
        "clocks and silos that wait",
        compile_changed("epsilon = 1.0", "epsilon = 1.0\nclock = { wait = true }"),
        ("clock.wait", "false", "without"),
        DEPLOY,
    ),
    Mistake(
        "clocks of silos that wait for a second silo",
        compile_changed(UNTIL_PERIOD, "clock = {}\n" + UNTIL_PERIOD.replace("period", "round")),
        ("least", "must be 1", "got 2"),
        DEPLOY,
    ),
    Mistake(
        "clocks with equal periods of all silos",
        compile_changed("epsilon = 1.0", "epsilon = 1.0\nclock = {}"),
        ("calendar.period", "calendar.round", "clock"),
        DEPLOY,
    ),
    Mistake(
        "clocks with a trusted server",
        compile_changed('"silo-ldp"', '"central"\nclock = { rates = [0.5] }'),
        ("clock", "central", "silo-ldp"),
        DEPLOY,
    ),
    Mistake(
        "a clock by which a silo never reports",
        compile_changed("epsilon = 1.0", "epsilon = 1.0\nclock = { rates = [0.01] }"),
        ("clock", "silo 0", "no batch"),
        DEPLOY,
    ),
    Mistake(
        "a period of days as text",
        compile_changed("period = 86400", 'period = "1 day"'),
        ("period", "'1 day'", "seconds"),
        DEPLOY,
    ),
    Mistake(
        "start as text",
        compile_changed("start = 2027-01-04T00:00:00Z", 'start = "4 January 2027"'),
        ("start", "'4 January 2027'", "date"),
        DEPLOY,
    ),
    Mistake(
        "start without a time zone",
        compile_changed("00:00:00Z", "00:00:00"),
        ("start", "UTC", "Z"),
        DEPLOY,
    ),
    Mistake(
        "negative grace",
        compile_changed("grace = 43200", "grace = -1"),
        ("grace", ">= 0", "-1"),
        DEPLOY,
    ),
    Mistake("no calendar", compile_changed(CALENDAR, ""), ("calendar", "required"), DEPLOY),
    Mistake(
        "more silos needed than there are",
        compile_changed("least = 2", "least = 3"),
        ("least", "2", "got 3"),
        DEPLOY,
    ),
    Mistake(
        "a key left as ...",
        lambda f: compile_changed(
            text=HEAD
            + '\n[[silos]]\nname = "north"\nsign = "..."\nopen = "..."\n'
            + '[hub]\nsign = "..."\nopen = "..."\n'
        )(f),
        ("north", "sign", "fastfed deploy keys"),
        DEPLOY,
    ),
    Mistake(
        "a silo's name twice", compile_changed('"east"', '"north"'), ("north", "twice"), DEPLOY
    ),
    Mistake(
        "no columns",
        compile_changed(HEAD[HEAD.index("[[columns]]") :], ""),
        ("columns", "required"),
        DEPLOY,
    ),
    Mistake(
        "a spec of simulations",
        call("deploy", "new", "s.toml", "plan", files={"s.toml": b'name = "x"\nhorizon = 5\n'}),
        ("name", "s.toml", "federation"),
        DEPLOY,
    ),
    Mistake(
        "a plan file that exists",
        planned(
            lambda f: (
                f.joinpath("s.toml").write_text(HEAD),
                command("deploy", "new", "s.toml", "agreed.plan"),
            )
        ),
        ("agreed.plan", "exists", "never replaced"),
        DEPLOY,
    ),
    Mistake(
        "a spec that is no text",
        call("deploy", "new", "s.toml", "plan", files={"s.toml": b"\xff\xfe\x00"}),
        ("s.toml", "UTF-8"),
        DEPLOY,
    ),
]
FOLDERS = [
    Mistake(
        "join of a plan that was changed", planned(flipped), ("agreed.plan", "plan file"), DEPLOY
    ),
    Mistake(
        "join with a spec in place of a plan",
        planned(
            lambda f: (
                f.joinpath("s.toml").write_text(HEAD),
                command("deploy", "join", "north", "s.toml"),
            )
        ),
        ("s.toml", "plan file", "fastfed deploy new"),
        DEPLOY,
    ),
    Mistake(
        "join without a ceiling", joined("north", "agreed.plan"), ("--epsilon", "--delta"), DEPLOY
    ),
    Mistake(
        "half a ceiling",
        joined("north", "agreed.plan", "--epsilon", 1),
        ("--epsilon", "--delta"),
        DEPLOY,
    ),
    Mistake(
        "join of somebody who is not in the plan",
        planned(
            lambda f: (
                __import__("fastfed.deployment.folder", fromlist=["x"]).make_keys(f / "west"),
                command("deploy", "join", "west", "agreed.plan"),
            )
        ),
        ("west", "plan", "keys"),
        DEPLOY,
    ),
    Mistake(
        "join without keys",
        joined("west", "agreed.plan", "--epsilon", 1, "--delta", "1e-6"),
        ("west", "fastfed deploy keys"),
        DEPLOY,
    ),
    Mistake(
        "serve of an empty folder", call("serve", "hub"), ("hub", "fastfed deploy join"), DEPLOY
    ),
    Mistake(
        "a silo without a hub",
        planned(lambda f: command("silo", "north")),
        ("--hub", "--courier"),
        DEPLOY,
    ),
    Mistake(
        "a silo that has not joined",
        planned(lambda f: command("silo", "north", "--hub", "https://x")),
        ("north", "fastfed deploy join"),
        DEPLOY,
    ),
    Mistake(
        "status of an address without https",
        call("deploy", "status", "hub.example.org"),
        ("https://", "hub.example.org"),
        DEPLOY,
    ),
    Mistake(
        "status of a hub that does not answer",
        call("deploy", "status", "http://127.0.0.1:9"),
        ("127.0.0.1:9", "reached"),
        DEPLOY,
        code=1,
    ),
    Mistake(
        "a certificate that is none",
        call("deploy", "status", "https://127.0.0.1:9", "--ca", "ca.pem", files={"ca.pem": b"x"}),
        ("ca.pem", "PEM"),
        DEPLOY,
    ),
    Mistake(
        "a ledger that is none",
        call("ledger", "show", "ledger.sqlite", files={"ledger.sqlite": b"no database at all"}),
        ("ledger.sqlite", "ledger"),
        DEPLOY,
    ),
    Mistake(
        "a ledger that is not there",
        call("ledger", "show", "ledger.sqlite"),
        ("ledger.sqlite", "exist"),
        DEPLOY,
    ),
    Mistake(
        "export of a folder that has not joined",
        call("deploy", "export", "north", "-o", "out"),
        ("north", "fastfed deploy join"),
        DEPLOY,
    ),
    Mistake(
        "check against a source without its file",
        planned(
            lambda f: (
                f.joinpath("source.toml").write_text('file = "none.csv"\n'),
                command("deploy", "check", "agreed.plan", "source.toml"),
            )
        ),
        ("records", "tables"),
        DEPLOY,
    ),
    Mistake(
        "demo of a system that is not deployed",
        call("deploy", "demo", "--system", "linucb"),
        ("linucb", "private-fedlinucb"),
        DEPLOY,
    ),
    Mistake(
        "demo with a protocol that is not deployed",
        call("deploy", "demo", "--protocol", "ldp"),
        ("ldp", "silo-ldp"),
        DEPLOY,
    ),
    Mistake(
        "an agent with an unknown setting",
        agent(period=60, relases=3),
        ("relases", 'mean "releases"'),
        DEPLOY,
        error=TypeError,
    ),
    Mistake(
        "an agent with dimension and columns",
        agent(period=60, dimension=3, columns=[{"name": "a"}]),
        ("dimension", "columns", "either", "got both"),
        DEPLOY,
    ),
    *(
        Mistake(what, source(text), ("north.toml", *words))
        for what, text, words in [
            ("a misspelled key of a source", 'acton = "a"', ("'acton'", 'mean "action"')),
            ("a delimiter of two characters", 'delimiter = ";;"', ("delimiter", "';;'")),
            ("a file and a database", 'database = "x.sqlite"', ("file", "database")),
            ("a missing value as a number", "missing = [-9]", ("missing", "a text", "-9")),
            ("a factor of 0", "factors = { dose = 0 }", ("factors.dose", "0", "fixed")),
            ("times without their span", 'time = "day"', ("time", "begin", "until")),
        ]
    ),
    Mistake(
        "a category without its codes",
        declared(columns=[{"name": "sex", "kind": "category"}]),
        ("columns[0].codes", "required", "'sex'"),
    ),
    Mistake(
        "a choice of one action",
        declared(actions={"names": ["A"]}),
        ("actions.names", "at least two", "['A']"),
    ),
]
MISTAKES = PLANS + FOLDERS
