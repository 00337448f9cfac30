"""Mistakes in specs and at the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from mistakes import Mistake, command

SPEC = """
name = "small"
horizon = 60
silos = 4
replicates = 1
checkpoints = 6

[environment]
kind = "sphere"
dimension = 3
actions = 5

[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 10

[[curve]]
label = "LDP"
algorithm = "private-fedlinucb"
epsilon = 1.0
delta = 1e-5
batch_size = 10
"""
Make = Callable[[Path], None]


def spec(old: str = "", new: str = "", *arguments: object, text: str | None = None) -> Make:
    """Return a function that runs the spec with a part replaced."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        assert text is not None or old in SPEC, old
        (folder / "s.toml").write_text(SPEC.replace(old, new, 1) if text is None else text)
        command("run", folder / "s.toml", "-o", folder / "out", *arguments)

    return make


def private(keys: str) -> Make:
    """Return a function that runs the spec with other keys of the private curve."""
    return spec("epsilon = 1.0\ndelta = 1e-5\nbatch_size = 10\n", keys)


def curve(keys: str) -> Make:
    """Return a function that runs the spec with only one curve, which has these keys."""
    return spec(SPEC[SPEC.index("[[curve]]") :], "[[curve]]\n" + keys)


def run_in_environment(
    keys: str, curves: str = "", prepare: Callable[[Path], object] | None = None
) -> Make:
    """Return a function that calls ``prepare``, and runs the spec with a different environment."""
    old_environment = SPEC[SPEC.index("[environment]") : SPEC.index("[[curve]]")]

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        if prepare is not None:
            prepare(folder)
        changed = SPEC.replace(old_environment, "[environment]\n" + keys + "\n\n")
        if curves:
            changed = changed[: changed.index("[[curve]]")] + "[[curve]]\n" + curves
        spec(text=changed)(folder)

    return make


def call(*arguments: object) -> Make:
    """Return a function that calls a command in the folder."""
    return lambda folder: command(*arguments)


def stored(*arguments: object, damage: Callable[[Path], None] | None = None) -> Make:
    """Return a function that stores a run in kept/, may damage it, and calls a command."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        (folder / "s.toml").write_text(SPEC)
        fastfed.run(folder / "s.toml", folder / "kept")
        if damage is not None:
            damage(folder / "kept" / "results.sqlite")
        command(*arguments)

    return make


def sql(*lines: str) -> Callable[[Path], None]:
    """Return a function that damages a store by these lines of SQL."""

    def damage(path: Path) -> None:
        """Run the lines of SQL on the store."""
        with sqlite3.connect(path) as store:
            for line in lines:
                store.execute(line)
        store.close()

    return damage


BUDGET = "epsilon = 1.0\ndelta = 1e-5\n"
PRIVATE = 'algorithm = "private-fedlinucb"\n' + BUDGET

KEYS = [
    Mistake(
        "epsilon = 0", spec("epsilon = 1.0", "epsilon = 0"), ("epsilon", "> 0", "got 0", "LDP")
    ),
    Mistake(
        "epsilon = inf",
        spec("epsilon = 1.0", "epsilon = inf"),
        ("epsilon", "inf", "finite", "fedlinucb"),
    ),
    Mistake(
        'epsilon = "1"',
        spec("epsilon = 1.0", 'epsilon = "1"'),
        ("epsilon", "'1'", "number", "without quotes"),
    ),
    Mistake("delta = 0", spec("delta = 1e-5", "delta = 0"), ("delta", "> 0", "got 0")),
    Mistake(
        'delta = "1e-5"',
        spec("delta = 1e-5", 'delta = "1e-5"'),
        ("delta", "'1e-5'", "without quotes"),
    ),
    Mistake(
        "delta = 1,5: a decimal comma",
        spec("delta = 1e-5", "delta = 1,5"),
        ("TOML", "line 22", "decimal point"),
    ),
    Mistake(
        "horizon = 10,000",
        spec("horizon = 60", "horizon = 10,000"),
        ("TOML", "line 3", "10_000"),
    ),
    Mistake(
        "typographic quotes",
        spec('"sphere"', "\u201csphere\u201d"),
        ("TOML", "line 9", "straight quotes"),
    ),
    Mistake(
        "delta = 1/200", spec("delta = 1e-5", "delta = 1/200"), ("line 22", "1 and 200", "number")
    ),
    Mistake(
        "a table as a spec",
        spec(text="age,state\n1,ill\n2,well\n"),
        ("TOML", "looks like a table", "data"),
    ),
    Mistake("epsilon = []", spec("epsilon = 1.0", "epsilon = []"), ("epsilon", '"LDP"', "a list")),
    Mistake(
        "epsilon as a range",
        spec("epsilon = 1.0", "epsilon = { from = 0.1, to = 2.0 }"),
        ("epsilon", "from", "a list of numbers"),
    ),
    Mistake(
        "delay = 20",
        spec("batch_size = 10", "batch_size = 10\ndelay = 20"),
        ("delay", "got 20", "delay = { kind"),
    ),
    Mistake(
        'kind = "csv"',
        spec('"sphere"', '"csv"'),
        ("csv", 'mean "classification"'),
    ),
    Mistake(
        "epsilon in the environment",
        spec("actions = 5", "actions = 5\nepsilon = 1.0"),
        ("epsilon", "environment", "a key of [[curve]]"),
    ),
    Mistake(
        "horizon in a curve",
        spec("batch_size = 10", "batch_size = 10\nhorizon = 5"),
        ("horizon", "above [environment]"),
    ),
    Mistake("no curve", spec(SPEC[SPEC.index("[[curve]]") :], ""), ("curve", "[[curve]] above")),
    Mistake("epsilom", spec("epsilon = 1.0", "epsilom = 1.0"), ("epsilom", 'mean "epsilon"')),
    Mistake("Epsilon", spec("epsilon = 1.0", "Epsilon = 1.0"), ("Epsilon", 'mean "epsilon"')),
    Mistake(
        "[curve] for [[curve]]",
        spec(
            '[[curve]]\nlabel = "open"\nalgorithm = "fedlinucb"\nbatch_size = 10\n\n[[curve]]',
            "[curve]",
        ),
        ("curve", "[[curve]]"),
    ),
    Mistake(
        "[[curves]]", spec(text=SPEC.replace("[[curve]]", "[[curves]]")), ("curves", 'mean "curve"')
    ),
    Mistake("[env]", spec("[environment]", "[env]"), ("env", "environment")),
    Mistake(
        "no environment",
        spec('[environment]\nkind = "sphere"\ndimension = 3\nactions = 5\n', ""),
        ("environment", "required"),
    ),
    Mistake("no kind", spec('kind = "sphere"\n', ""), ("environment", "kind", "sphere")),
    Mistake('kind = "spheer"', spec('"sphere"', '"spheer"'), ("spheer", 'mean "sphere"')),
    Mistake(
        "no algorithm", spec('algorithm = "fedlinucb"\n', ""), ("open", "algorithm", "required")
    ),
    Mistake(
        "one agent's system for four silos",
        curve('algorithm = "linucb"\n'),
        ("linucb", "silos", "1", "got 4", "local-linucb"),
    ),
    Mistake(
        'protocol = "ldp"',
        private(BUDGET + 'batch_size = 10\nprotocol = "ldp"\n'),
        ("protocol", "'ldp'", "silo-ldp"),
    ),
    Mistake(
        "a protocol of a system without privacy",
        curve('algorithm = "fedlinucb"\nbatch_size = 10\nprotocol = "central"\n'),
        ("protocol", "fedlinucb", "private-fedlinucb"),
    ),
    Mistake(
        "a budget of each silo alone",
        curve('algorithm = "local-linucb"\nepsilon = 1.0\n'),
        ("epsilon", "local-linucb", "private-fedlinucb"),
    ),
    Mistake(
        "Toeplitz behind a shuffler",
        private(BUDGET + 'batch_size = 10\nprotocol = "shuffle-amplified"\nrelease = "toeplitz"\n'),
        ("release", "toeplitz", "shuffle-amplified"),
    ),
    Mistake(
        "B beyond the horizon", private(BUDGET + "batch_size = 61\n"), ("batch_size", "60", "61")
    ),
    Mistake(
        'batch_size = "auto"',
        private(BUDGET + 'batch_size = "auto"\n'),
        ("batch_size", "an integer", "'auto'", "theorem", "growing"),
    ),
    Mistake(
        "horizon = 1e3", spec("horizon = 60", "horizon = 1e3"), ("horizon", "1000.0", "write 1000")
    ),
    Mistake(
        'horizon = "1000"',
        spec("horizon = 60", 'horizon = "1000"'),
        ("horizon", "'1000'", "without quotes"),
    ),
    Mistake(
        "three epsilons for four silos",
        private("silo_epsilon = [1.0, 1.0, 2.0]\ndelta = 1e-5\nbatch_size = 10\n"),
        ("silo_epsilon", "4", "3"),
    ),
    Mistake(
        "one noise draw with a trusted server",
        private(BUDGET + 'batch_size = 10\nprotocol = "central"\nnoise_draws = "sum"\n'),
        ("noise_draws", "central", "silo-ldp"),
    ),
    Mistake(
        "as many colluders as silos",
        private(BUDGET + 'batch_size = 10\nprotocol = "secure-sum"\ncolluders = 4\n'),
        ("colluders", "below", "4"),
    ),
    Mistake(
        "centred rewards without an intercept",
        run_in_environment('kind = "gap"', PRIVATE + "batch_size = 10\nreward_centre = 0.5\n"),
        ("reward_centre", "intercept"),
    ),
    Mistake(
        "shared until after the end",
        private(BUDGET + "batch_size = 10\nshare = { until = 100 }\n"),
        ("until", "100", "60"),
    ),
    Mistake(
        "a delay without its mean",
        private(BUDGET + 'delay = { kind = "geometric", rounds = 5 }\n'),
        ("delay", "geometric", "rounds"),
    ),
    Mistake(
        "a delay as a number",
        private(BUDGET + "delay = 20\n"),
        ("delay", "20"),
    ),
    Mistake(
        "a delay behind the shuffler",
        private(
            BUDGET + 'protocol = "shuffle-vector"\ndelay = { kind = "constant", rounds = 5 }\n'
        ),
        ("delay", "shuffle-vector", "silo-ldp"),
    ),
    Mistake(
        "a silo that is faster than the ticks",
        private(BUDGET + "clock = { rates = [2.0] }\n"),
        ("clock.rates", "2.0"),
    ),
    Mistake(
        "a clock of a silo that does not exist",
        private(BUDGET + "clock = { asleep = [[50, 1]] }\n"),
        ("clock.asleep", "50"),
    ),
    Mistake(
        "a clock with a trusted server",
        private(BUDGET + 'protocol = "central"\nclock = { rates = [0.5] }\n'),
        ("clock", "central", "silo-ldp"),
    ),
    Mistake(
        'checkpoint_spacing = "logarithmic"',
        spec("checkpoints = 6", 'checkpoint_spacing = "logarithmic"'),
        ("checkpoint_spacing", "logarithmic", '"log"'),
    ),
    Mistake(
        'radius = "proven"',
        private(BUDGET + 'batch_size = 10\nradius = "proven"\n'),
        ("radius", "'proven'", '"direct"'),
    ),
    Mistake(
        "releases out of order",
        private(BUDGET + "release_rounds = [10, 5]\n"),
        ("release_rounds", "increas", "5"),
    ),
    Mistake(
        "batches and releases",
        private(BUDGET + "batch_size = 10\nrelease_rounds = [10, 50]\n"),
        ("batch_size", "release_rounds", "not both"),
    ),
    Mistake(
        'seed = "today"',
        spec("replicates = 1", 'replicates = 1\nseed = "today"'),
        ("seed", "'today'", "integer"),
    ),
    Mistake("the same label twice", spec('"LDP"', '"open"'), ("label", '"open"', "unique")),
    Mistake(
        "robin without diversity",
        curve('algorithm = "robin"\n' + BUDGET),
        ("robin", "diversity", "needs"),
    ),
    Mistake(
        "experts in a world of bandits",
        curve('algorithm = "fed-svt"\nepsilon = 1.0\n'),
        ("fed-svt", "sphere", "losses"),
    ),
    Mistake(
        "a bandit in a world of experts",
        run_in_environment(
            'kind = "stochastic-losses"\nexperts = 4', 'algorithm = "fedlinucb"\nbatch_size = 10\n'
        ),
        ("fedlinucb", "stochastic-losses"),
    ),
    Mistake(
        "batches of a schedule that data decide",
        curve('algorithm = "feducb"\nbatch_size = 10\n' + BUDGET),
        ("batch_size", "schedule", "fixed"),
    ),
    Mistake(
        "dimension = [5, 10] in the environment",
        spec("dimension = 3", "dimension = [5, 10]"),
        ("dimension", "[5, 10]", "one number", "[[curve]]"),
    ),
    Mistake(
        'reward = "gaussian"',
        spec("actions = 5", 'actions = 5\nreward = "gaussian"'),
        ("reward", "'gaussian'", "{ kind"),
    ),
    Mistake(
        "sigma for std",
        spec("actions = 5", 'actions = 5\nreward = { kind = "gaussian", sigma = 1.0 }'),
        ("reward", "sigma", "std"),
    ),
    Mistake(
        "a figure by an unknown key",
        spec("[[curve]]", '[figure]\nfacet = "epsilom"\n[[curve]]'),
        ("facet", "epsilom", "epsilon"),
    ),
    Mistake(
        "a claim about no curve",
        spec("[[curve]]", '[[figure.statement]]\nsays = "x"\nbelow = ["LDP", "opn"]\n[[curve]]'),
        ("statement", "opn", 'mean "open"'),
    ),
    Mistake(
        "a Windows path in double quotes",
        run_in_environment('kind = "classification"\ndata = "C:\\Users\\me\\x.csv"'),
        ("TOML", "line 10", "single quotes"),
    ),
    Mistake("a spec in JSON", spec(text='{"name": "x", "horizon": 5}'), ("TOML", "line 1")),
    Mistake("a spec in YAML", spec(text="name: x\nhorizon: 5\n"), ("TOML", "line 1")),
    Mistake(
        "a function that is not there",
        run_in_environment(
            'kind = "python"\nfunction = "nothing:here"\ndimension = 2\nactions = 2'
        ),
        ("function", "nothing:here"),
    ),
    Mistake(
        "a module with a syntax error",
        run_in_environment(
            'kind = "python"\nfunction = "mine:draw"\ndimension = 2\nactions = 2',
            prepare=lambda f: (f / "mine.py").write_text("def draw(:\n"),
        ),
        ("function", "mine", "invalid syntax", "line 1"),
    ),
    Mistake(
        "a policy without observe",
        run_in_environment(
            'kind = "sphere"',
            'algorithm = "policy"\npolicy = "mine:Mine"\n',
            prepare=lambda f: (f / "mine.py").write_text(
                "class Mine:\n    def select(self, actions):\n        return 0\n"
            ),
        ),
        ("policy", "mine:Mine", "observe"),
    ),
]

COMMANDS = [
    Mistake("run without -o", call("run", "s.toml"), ("--output",)),
    Mistake("run of a folder", call("run", ".", "-o", "out"), (".", "spec", "folder")),
    Mistake(
        "run of a figure's id",
        call("run", "zc24-fig3a", "-o", "out"),
        ("fastfed reproduce zc24-fig3a",),
    ),
    Mistake("run of no file", call("run", "none.toml", "-o", "out"), ("none.toml", "No such file")),
    Mistake(
        "an output folder that cannot be",
        lambda f: (
            (f / "s.toml").write_text(SPEC),
            command("run", f / "s.toml", "-o", "/proc/out"),
        ),
        ("/proc/out", "cannot write", "No such file"),
    ),
    Mistake(
        "a file as output folder",
        lambda f: (
            (f / "s.toml").write_text(SPEC),
            command("run", f / "s.toml", "-o", f / "s.toml"),
        ),
        ("s.toml", "folder"),
    ),
    Mistake(
        "--set without a value", spec("", "", "--set", "horizon"), ("--set", "horizon", "KEY=VALUE")
    ),
    Mistake(
        "--set of a text", spec("", "", "--set", "horizon=abc"), ("horizon", "'abc'", "integer")
    ),
    Mistake(
        "--set of an unknown label",
        spec("", "", "--set", "curve.LPD.epsilon=2.0"),
        ("LPD", 'mean "LDP"'),
    ),
    Mistake(
        "--memory 40 apples", spec("", "", "--memory", "40apples"), ("memory", "40apples", "GB")
    ),
    Mistake(
        "--scheduler without dask", spec("", "", "--scheduler", "tcp://x:1"), ("scheduler", "dask")
    ),
    Mistake("--replicates 0", spec("", "", "--replicates", "0"), ("replicates", "0", ">=1")),
    Mistake(
        "plan without silos",
        call("plan", "--horizon", 100, "--dimension", 3, "--epsilon", 1, "--delta", "1e-5"),
        ("silos", "required"),
    ),
    Mistake(
        "plan for epsilon = inf",
        call(
            "plan",
            "--silos",
            4,
            "--horizon",
            100,
            "--dimension",
            3,
            "--epsilon",
            "inf",
            "--delta",
            "1e-5",
        ),
        ("epsilon", "inf", "finite"),
    ),
    Mistake(
        "plan for delta = 1.5",
        call(
            "plan",
            "--silos",
            4,
            "--horizon",
            100,
            "--dimension",
            3,
            "--epsilon",
            1,
            "--delta",
            "1.5",
        ),
        ("delta", "1.5", "< 1"),
    ),
    Mistake(
        "plan --trust ldp",
        call(
            "plan",
            "--silos",
            4,
            "--horizon",
            100,
            "--dimension",
            3,
            "--epsilon",
            1,
            "--delta",
            "1e-5",
            "--trust",
            "ldp",
        ),
        ("trust", "ldp", "silo-ldp"),
    ),
    Mistake(
        "plan into a folder that is not there",
        call(
            "plan",
            "--silos",
            4,
            "--horizon",
            40,
            "--dimension",
            2,
            "--epsilon",
            1,
            "--delta",
            "1e-5",
            "--seconds",
            "0.1",
            "--write",
            "none/out.toml",
        ),
        ("none/out.toml", "folder"),
    ),
    Mistake("results of no folder", call("results", "nothing"), ("nothing", "folder")),
    Mistake("results as two formats", call("results", ".", "--json", "--csv"), ("--json", "--csv")),
    Mistake("report of an empty folder", call("report", "."), ("results", "fastfed run")),
    Mistake("report as gif", call("report", ".", "--format", "gif"), ("gif", "png", "svg", "pdf")),
    Mistake(
        "results of a damaged store",
        stored("results", "kept", damage=lambda p: p.write_bytes(b"no database")),
        ("results.sqlite", "damaged", "copy", "new folder"),
    ),
    Mistake(
        "results of a store of later versions",
        stored(
            "results", "kept", damage=sql("UPDATE meta SET value = '\"99\"' WHERE key = 'format'")
        ),
        ("results.sqlite", "another version"),
    ),
    Mistake(
        "another seed into the same folder",
        stored("run", "s.toml", "-o", "kept", "--seed", "7"),
        ("kept", "a different experiment", "seed", "another output folder"),
    ),
    Mistake("compare with no folder", stored("compare", "kept", "lost"), ("lost", "folder")),
    Mistake(
        "certificate of an unknown curve",
        lambda f: (
            (f / "s.toml").write_text(SPEC),
            command("privacy", f / "s.toml", "--curve", "LPD"),
        ),
        ("LPD", 'mean "LDP"'),
    ),
    Mistake(
        "an audit that is not there",
        call("audit", "private-fedlinuc"),
        ("private-fedlinuc", 'mean "private-fedlinucb"'),
    ),
    Mistake(
        "an audit of one run",
        call("audit", "gaussian-tree", "--trials", "1"),
        ("trials", ">= 2", "got 1"),
    ),
    Mistake("calibrate without delta", call("calibrate", "gaussian", "--epsilon", 1), ("--delta",)),
    Mistake(
        "calibrate by a protocol's name",
        call("calibrate", "silo-ldp", "--epsilon", 1, "--delta", "1e-5"),
        ("silo-ldp", "gaussian"),
    ),
    Mistake(
        "a figure that is not there",
        call("reproduce", "zc24-fig3", "-o", "out"),
        ("zc24-fig3", "fastfed list figures"),
    ),
    Mistake(
        "a figure's data that are not there",
        call("reproduce", "zc24-fig2c", "--data", "none.txt", "-o", "out"),
        ("none.txt",),
    ),
    Mistake("the spec of no figure", call("spec", "show", "fig3a"), ("fig3a", "zc24-fig3a")),
    Mistake(
        "completion of another shell", call("completion", "powershell"), ("powershell", "bash")
    ),
    Mistake("the bench of nothing", call("bench", "foo"), ('"foo"', "start with", "letor, pool")),
    Mistake(
        "calibrate --releases 0",
        call(
            *("calibrate", "gaussian-tree", "--epsilon", "1", "--delta", "1e-6"),
            *("--releases", "0"),
        ),
        ("releases", ">= 1", "got 0"),
    ),
    Mistake("a spec without silos", spec("silos = 4", ""), ("silos is required", "silos = 1")),
    Mistake("an unknown command", call("foo", "s.toml"), ("foo", "--help")),
    Mistake("a command of another name", call("simulate", "s.toml"), ("simulate", 'mean "run"')),
    Mistake("a spec for plan", call("plan", "s.toml", "--epsilon", 1), ("--environment s.toml",)),
    Mistake(
        "a decimal comma at the command line",
        call("calibrate", "gaussian", "--epsilon", "1,5", "--delta", "1e-5"),
        ("--epsilon", "'1,5'", "decimal point"),
    ),
    Mistake(
        "pure privacy without delta",
        call("calibrate", "laplace", "--epsilon", 1),
        ("--delta", "0 is pure"),
    ),
    Mistake(
        "the results of a database",
        stored("results", "kept/results.sqlite"),
        ("kept/results.sqlite", "its folder is kept"),
    ),
    Mistake(
        "reproduce a spec",
        call("reproduce", "s.toml", "-o", "out"),
        ("s.toml", "fastfed run s.toml -o DIR"),
    ),
    Mistake(
        "--set with a list without brackets",
        spec("", "", "--set", "curve.epsilon=1,2"),
        ("epsilon", "'1,2'", "[1,2]"),
    ),
    Mistake(
        "certificates with an unknown key changed",
        lambda f: (
            (f / "s.toml").write_text(SPEC),
            command("privacy", f / "s.toml", "--set", "epsilon=2"),
        ),
        ("--set", "curve.epsilon=2"),
    ),
    Mistake(
        "a value twice in a sweep",
        spec("epsilon = 1.0", "epsilon = [1.0, 1, 2.0]"),
        ("epsilon", "each value once", "[1.0, 1, 2.0]", "LDP"),
    ),
    Mistake(
        "a truth value in quotes",
        private(BUDGET + 'batch_size = 10\nlazy = "false"\n'),
        ("lazy", "'false'", "without quotes"),
    ),
    Mistake(
        "Gaussian noise with delta = 0",
        spec("delta = 1e-5", "delta = 0"),
        ("delta", "> 0", "got 0", "user-bit", "experts"),
    ),
    Mistake(
        "the parts of an algorithm's name in another order",
        spec('"private-fedlinucb"', '"LinUCB-private"'),
        ("LinUCB-private", 'mean "private-fedlinucb"'),
    ),
    Mistake(
        "an edge to a silo that is not there",
        curve('algorithm = "feducb-decentralized"\n' + BUDGET + "graph = [[0, 1], [1, 7]]\n"),
        ("graph", "a silo of edges", "<= 3", "got 7"),
    ),
    Mistake(
        "another epsilon in the same folder",
        stored("run", "s.toml", "-o", "kept", "--set", "curve.LDP.epsilon=2"),
        ("kept", '"LDP" in epsilon)', "another output folder"),
        never=("saturation",),
    ),
    Mistake(
        "--set of a label with a space, without quotes",
        spec("", "", "--set", "curve.my", "LDP.epsilon=2"),
        ("LDP.epsilon=2", "quote", "'curve.my label.epsilon=2'"),
    ),
    Mistake(
        "calibrate a tree without releases",
        call("calibrate", "gaussian-tree", "--epsilon", 1, "--delta", "1e-6"),
        ("gaussian-tree", "several releases", "--releases"),
        code=0,
    ),
]
MISTAKES = KEYS + COMMANDS
