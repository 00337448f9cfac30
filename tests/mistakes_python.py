"""Mistakes in the functions of `import fastfed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mistakes import Mistake
from mistakes_specs import SPEC

from fastfed import Budget, environments
from fastfed.privacy import Certificate, winsorized_mean

Make = Callable[[Path], Any]
WORLD = {"kind": "sphere", "dimension": 3, "actions": 5}
BUDGET = Budget(1.0, 1e-5)
PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5, "batch_size": 10}


def simulate(world: Any = None, *arguments: Any, **keys: Any) -> Make:
    """Return a function that simulates; keys that are not given have valid values."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        if not arguments and "curves" not in keys:
            keys.setdefault("algorithm", "local-linucb")
        fastfed.simulate(
            WORLD if world is None else world, *arguments, **{"silos": 2, "horizon": 20, **keys}
        )

    return make


def private(**changes: Any) -> Make:
    """Return a function that simulates the private system with keys changed."""
    return simulate(**{**PRIVATE, **changes})


def fastfed(name: str, *arguments: Any, **keys: Any) -> Make:
    """Return a function that calls this function of fastfed."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed as package

        getattr(package, name)(*arguments, **keys)

    return make


def results(use: Callable[[Any], object]) -> Make:
    """Return a function that calls ``use`` with results, in a wrong way."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        curves = [{"label": "alone", "algorithm": "local-linucb"}, {"label": "LDP", **PRIVATE}]
        use(fastfed.simulate(WORLD, curves=curves, silos=2, horizon=20))

    return make


def written(use: Callable[[Any, Path], object]) -> Make:
    """Return a function that calls ``use`` with a spec file, in a wrong way."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        (folder / "s.toml").write_text(SPEC)
        use(fastfed, folder / "s.toml")

    return make


def class_as_environment(name: str) -> Make:
    """Return the mistake of giving an environment class in place of an environment."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        fastfed.simulate(getattr(fastfed.environments, name), "local-linucb", silos=2, horizon=20)

    return make


def make_environment(name: str, **keys: Any) -> Make:
    """Return a function that makes an environment with these wrong keys."""

    def make(folder: Path) -> None:
        """Make the mistake in this empty folder."""
        import fastfed

        getattr(fastfed.environments, name)(**keys)

    return make


class First:
    """A policy that always chooses action 0."""

    def select(self, actions: Any) -> Any:
        """Return action 0."""
        return 0

    def observe(self, reward: float) -> None:
        """Ignore the reward."""
        pass


class Beyond(First):
    """A policy that chooses an action beyond the last one."""

    def select(self, actions: Any) -> Any:
        """Return the index after the last action."""
        return len(actions)


class Half(First):
    """A policy that returns the features of an action in place of its index."""

    def select(self, actions: Any) -> Any:
        """Return the features of action 0 instead of its index."""
        return actions[0]


class Needs(First):
    """A policy whose constructor needs an argument."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


def system() -> Any:
    """Make a private system."""
    import fastfed

    return fastfed.make_system(**PRIVATE, silos=2, horizon=20, dimension=3)


def system_of(**keys: Any) -> Any:
    """Make a private system with further keys."""
    import fastfed

    return fastfed.make_system(**PRIVATE, silos=2, horizon=20, dimension=3, **keys)


def policy(given: Any, **keys: Any) -> Make:
    """Return the mistake of a curve with this policy."""
    return simulate(curves=[{"algorithm": "policy", "policy": given, **keys}])


def sized(**keys: Any) -> Make:
    """Return a function that requests a plan; keys that are not given have valid values."""
    valid_keys = {
        "silos": 4,
        "horizon": 100,
        "dimension": 3,
        "epsilon": 1.0,
        "delta": 1e-5,
        "seconds": 0.1,
    }
    return fastfed("plan", **{**valid_keys, **keys})


def claiming(certificate: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Return a certificate with a different exact epsilon and the same mu."""
    return {**certificate, "exact": {**certificate["exact"], "epsilon": epsilon}}


RUNS = [
    Mistake(
        "changes as a text",
        written(lambda ff, s: ff.run(s, s.parent / "out", changes="horizon=50")),
        ("changes", '{"horizon": 500}', "'horizon=50'"),
    ),
    Mistake(
        "a range of replicates as a list",
        written(lambda ff, s: ff.run(s, s.parent / "out", replicates=[0, 1])),
        ("replicates", "[0, 1]", "write (0, 1)"),
    ),
    Mistake(
        "load a database",
        written(lambda ff, s: (ff.run(s, "kept"), ff.load("kept/results.sqlite"))),
        ("results.sqlite", "output folder", "kept"),
    ),
    Mistake(
        "a dict in place of a spec file",
        fastfed("run", {"name": "x"}, "out"),
        ("experiment", "spec file", "simulate"),
    ),
    Mistake(
        "a folder in place of a spec file",
        lambda f: fastfed("run", f, f / "out")(f),
        ("spec file", "folder"),
    ),
    Mistake("a spec as text", fastfed("run", SPEC, "out"), ("spec", "name")),
    Mistake(
        "run without a folder to write", written(lambda ff, s: ff.run(s, None)), ("folder", "None")
    ),
    Mistake(
        "an unknown change",
        written(lambda ff, s: ff.run(s, s.parent / "out", changes={"horizont": 5})),
        ("horizont", 'mean "horizon"'),
    ),
    Mistake(
        "load of a spec file",
        written(lambda ff, s: ff.load(s)),
        ("s.toml", "folder", "fastfed.run"),
    ),
    Mistake(
        "load of a folder without results",
        lambda f: fastfed("load", f)(f),
        ("results", "fastfed run"),
    ),
    Mistake(
        "report on results",
        results(lambda r: __import__("fastfed").report(r)),
        ("folder", "Results", "fastfed.run"),
    ),
    Mistake("compare with a spec", written(lambda ff, s: ff.compare(s, s)), ("s.toml", "folder")),
]
SIMULATIONS = [
    Mistake(
        "a class in place of an environment",
        class_as_environment("Sphere"),
        ("environment", "Sphere", "Sphere(...)"),
    ),
    Mistake(
        "a kind in place of an environment",
        simulate("sphere"),
        ("environment", "'sphere'", '{"kind": "sphere"}'),
    ),
    Mistake(
        "a spec file in place of an environment",
        simulate("spec.toml"),
        ("environment", "spec.toml", "fastfed.run"),
    ),
    Mistake(
        "a frame in place of an environment",
        lambda f: simulate(__import__("pandas").DataFrame({"a": [1]}))(f),
        ("environment", "Classification"),
        ("pandas",),
    ),
    Mistake(
        "horizont for horizon",
        lambda f: __import__("fastfed").simulate(WORLD, "local-linucb", horizont=20),
        ('"horizont"', 'mean "horizon"'),
    ),
    Mistake(
        "no horizon",
        lambda f: __import__("fastfed").simulate(WORLD, "local-linucb"),
        ("horizon is required", "rounds"),
    ),
    Mistake(
        "T for horizon",
        lambda f: __import__("fastfed").simulate(WORLD, "local-linucb", T=20),
        ('"T"', "called horizon"),
    ),
    Mistake(
        "a list of algorithms",
        simulate(WORLD, ["fedlinucb", "local-linucb"]),
        ("label must be a text", "['fedlinucb', 'local-linucb']"),
    ),
    Mistake(
        "curves, an unknown algorithm and a misspelt argument",
        simulate(WORLD, "linUCB", curves=[{"algorithm": "random"}], replicate=2),
        ("algorithm", "curves"),
    ),
    Mistake("replicate for replicates", simulate(replicate=5), ('mean "replicates"',)),
    Mistake(
        "replicate for replicates, with curves",
        simulate(curves=[{"algorithm": "random"}], replicate=5),
        ('mean "replicates"',),
    ),
    Mistake("rounds for horizon", simulate(rounds=5), ("rounds", "release_rounds")),
    Mistake(
        "neither algorithm nor curves",
        simulate(curves=None, algorithm=None),
        ("algorithm", "curves"),
    ),
    Mistake(
        "curves and an algorithm",
        simulate(WORLD, "local-linucb", curves=[{"algorithm": "random"}]),
        ("curves", "algorithm"),
    ),
    Mistake(
        "one curve that is not in a list",
        simulate(curves={"algorithm": "random"}),
        ("curves", "list"),
    ),
    Mistake(
        "names in place of curves",
        simulate(curves=["random"]),
        ("curves", "'random'", '{"algorithm": "fedlinucb"}'),
    ),
    Mistake("no curve at all", simulate(curves=[]), ("curves", "at least one")),
    Mistake("horizon=1e3 of simulate", simulate(horizon=1e3), ("horizon", "1000.0", "write 1000")),
    Mistake("silos = 0", simulate(silos=0), ("silos", ">= 1", "got 0")),
    Mistake("epsilon=0 of simulate", private(epsilon=0), ("epsilon", "> 0", "got 0")),
    Mistake(
        "epsilon = float('inf')",
        private(epsilon=float("inf")),
        ("epsilon", "inf", "finite", "fedlinucb"),
    ),
    Mistake("epsilon = None", private(epsilon=None), ("epsilon", "required")),
    Mistake("epsilon='1' of simulate", private(epsilon="1"), ("epsilon", "'1'", "without quotes")),
    Mistake("epsilon = np.float32(-1)", private(epsilon=np.float32(-1)), ("epsilon", "> 0", "-1")),
    Mistake(
        "epsilon as an array of two rows", private(epsilon=np.ones((2, 2))), ("epsilon", "number")
    ),
    Mistake(
        "epsilon as a function", private(epsilon=lambda t: 1.0), ("epsilon", "number", "function")
    ),
    Mistake("delta = 1", private(delta=1), ("delta", "< 1", "got 1")),
    Mistake("eps for epsilon", private(eps=1.0), ("eps", 'mean "epsilon"')),
    Mistake("threads = 0", simulate(threads=0), ("threads", ">= 1", "got 0")),
    Mistake('driver = "numba"', simulate(driver="numba"), ("driver", "'numba'", "compiled")),
    Mistake(
        'memory_limit = "lots"', simulate(memory_limit="lots"), ("memory_limit", "'lots'", "GB")
    ),
    Mistake(
        "Sphere(dim=3)", make_environment("Sphere", dim=3), ("Sphere", "'dim'"), error=TypeError
    ),
    Mistake(
        "Sphere(dimension=0)",
        make_environment("Sphere", dimension=0),
        ("dimension", ">= 1", "got 0"),
    ),
    Mistake(
        "Classification without data",
        make_environment("Classification"),
        ("Classification", "'data'"),
        error=TypeError,
    ),
]
USES = [
    Mistake("an unknown label", results(lambda r: r["ldp"]), ("'ldp'", 'mean "LDP"')),
    Mistake(
        "a position in place of a label", results(lambda r: r[0]), ("0", "label", "results.curves")
    ),
    Mistake(
        "an unknown metric",
        results(lambda r: r.plot(metric="regret")),
        ("metric", "'regret'", "group_regret"),
    ),
    Mistake(
        "an unknown level",
        results(lambda r: r.to_frame("curve")),
        ("level", "'curve'", 'mean "curves"'),
    ),
    Mistake(
        "the difference to no curve",
        results(lambda r: r.paired_difference("LDP", "none")),
        ("'none'", "alone"),
    ),
    Mistake(
        "select by a key that no curve resembles",
        results(lambda r: r.select(gamma=1.0)),
        ("gamma", "there are", "epsilon"),
        never=("did you mean",),
    ),
    Mistake(
        "epsilon of a certificate",
        lambda f: system().certificate.epsilon,
        ("Certificate", "'epsilon'", "certificate.exact.epsilon", "certificate.claimed.epsilon"),
        error=AttributeError,
    ),
    Mistake(
        "status of a stored certificate as an attribute",
        results(lambda r: r["LDP"].certificate.status),
        ("'status'", 'certificate["status"]'),
        error=AttributeError,
    ),
    Mistake(
        "epsilon as a key of a stored certificate",
        results(lambda r: r["LDP"].certificate["epsilon"]),
        ("'epsilon'", 'certificate["exact"]["epsilon"]', 'certificate["claimed"]["epsilon"]'),
        error=KeyError,
    ),
    Mistake(
        "a key that no certificate has",
        results(lambda r: r["LDP"].certificate["guarantee"]),
        ("'guarantee'", "status", "exact", "caveats"),
        error=KeyError,
    ),
    Mistake(
        "certificate of results",
        results(lambda r: r.certificate),
        ("Results", "'certificate'", "results.curves[0].certificate", "results[label]"),
        error=AttributeError,
    ),
    Mistake("log = True", results(lambda r: r.plot(log=True)), ("log", "True", '"xy"')),
]
POLICIES = [
    Mistake(
        "a policy's object in place of its class", policy(First()), ("policy", "class", "First")
    ),
    Mistake(
        "a policy by name without a module", policy("First"), ("policy", '"First"', "module:name")
    ),
    Mistake(
        "a policy with an argument that is not given",
        policy(Needs),
        ("Needs", "rate", "parameters"),
    ),
    Mistake(
        "a policy that chooses beyond the last action",
        policy(Beyond),
        ("Beyond", "select", "5", "0 to 4"),
    ),
    Mistake("a policy that returns features", policy(Half), ("Half", "select", "index")),
    Mistake("a budget of a policy", policy(First, epsilon=1.0), ("epsilon", "policy")),
]
PRIVACY = [
    Mistake("Budget(0, 1e-5)", fastfed("Budget", 0, 1e-5), ("epsilon", "> 0", "got 0")),
    Mistake(
        'Budget(1, 1e-5, "add-remove")',
        fastfed("Budget", 1, 1e-5, "add-remove"),
        ("relation", "'add-remove'", "replace", "zero-out"),
    ),
    Mistake(
        "calibrate to a pair",
        fastfed("calibrate", "gaussian-tree", (1.0, 1e-6)),
        ("budget", "Budget(epsilon, delta)", "(1.0, 1e-06)"),
    ),
    Mistake(
        "calibrate by numbers in place of a budget",
        fastfed("calibrate", "gaussian-tree", 1.0, 400),
        ("budget", "1.0", "fastfed.Budget(1.0, 1e-6)"),
    ),
    Mistake(
        "calibrate for no release",
        fastfed("calibrate", "gaussian-tree", BUDGET, 0),
        ("releases", ">= 1", "got 0"),
    ),
    Mistake(
        "calibrate an unknown mechanism",
        fastfed("calibrate", "gauss", BUDGET),
        ("gauss", 'mean "gaussian"'),
    ),
    Mistake(
        "calibrate by epsilon and delta",
        fastfed("calibrate", "gaussian", epsilon=1.0, delta=1e-5),
        ("'epsilon'", "fastfed.Budget(1.0, 1e-6)"),
        error=TypeError,
    ),
    Mistake(
        "calibrate by two numbers and releases",
        fastfed("calibrate", "gaussian-tree", 1.0, 1e-6, releases=400),
        ("'releases'", "fastfed.Budget(1.0, 1e-6)"),
        error=TypeError,
    ),
    Mistake(
        "calibrate for release=",
        fastfed("calibrate", "gaussian-tree", BUDGET, release=4),
        ("'release'", 'mean "releases"'),
        error=TypeError,
    ),
    Mistake(
        "an environment's key for make_system",
        lambda folder: system_of(actions=10),
        ("actions", "a key of [environment]"),
    ),
    Mistake(
        "records by position",
        lambda folder: environments.Classification(np.zeros((4, 2)), np.zeros(4)),
        ("positional", "Classification.from_arrays("),
        error=TypeError,
    ),
    Mistake(
        "an environment without its function",
        lambda folder: environments.Python(dimension=3, actions=2),
        ("'function'", "Python(function=draw"),
        error=TypeError,
    ),
    Mistake(
        "a certificate by the name of its file",
        lambda folder: Certificate.from_builtins("certificate.json"),
        ("'certificate.json'", "read the file first"),
    ),
    Mistake(
        "plan(10, 500, 5)",
        fastfed("plan", 10, 500, 5),
        ("positional", "fastfed.plan(silos=50"),
        error=TypeError,
    ),
    Mistake(
        "make_system of a table",
        fastfed("make_system", {"algorithm": "fedlinucb"}),
        ("'horizon'", 'fastfed.make_system("private-fedlinucb"'),
        error=TypeError,
    ),
    Mistake(
        "a winsorized mean by position",
        lambda folder: winsorized_mean(np.zeros((9, 3)), 1.0),
        ("positional", "epsilon=1.0, delta=1e-6, radius="),
        error=TypeError,
    ),
    Mistake(
        "an epsilon as a key of a system's certificate",
        lambda folder: system().certificate["epsilon"],
        ("'epsilon'", "certificate.exact.epsilon"),
        error=TypeError,
    ),
    Mistake(
        "an epsilon as a key of a guarantee",
        lambda folder: system().certificate.exact["epsilon"],
        ("'epsilon'", "write .epsilon"),
        error=TypeError,
    ),
    Mistake(
        "the epsilon of a system",
        lambda folder: system().epsilon,
        ("'epsilon'", "system.certificate.exact.epsilon"),
        error=AttributeError,
    ),
    Mistake(
        "an event of a certificate",
        lambda folder: system().certificate.to_dp_event(),
        ("'to_dp_event'", "certificate.exact.to_dp_event()"),
        error=AttributeError,
    ),
    Mistake(
        "an event of a stored certificate",
        results(lambda r: r["LDP"].certificate.to_dp_event()),
        ("'to_dp_event'", "Certificate.from_builtins(certificate).exact"),
        error=AttributeError,
    ),
    Mistake(
        "results.df",
        results(lambda r: r.df),
        ("'df'", "results.to_frame()"),
        error=AttributeError,
    ),
    Mistake(
        "the regret of a curve",
        results(lambda r: r["LDP"].regret),
        ("'regret'", 'curve.final()["mean"]'),
        error=AttributeError,
    ),
    Mistake(
        "the epsilon of a curve",
        results(lambda r: r["LDP"].epsilon),
        ("'epsilon'", 'curve.parameters["epsilon"]'),
        error=AttributeError,
    ),
    Mistake(
        "select a batch size where none is set",
        results(lambda r: r.select(label="alone").select(batch_size=9)),
        ("batch_size = 9", "there are unset"),
    ),
    Mistake(
        "calibrate a shuffle without users",
        fastfed("calibrate", "shuffled-points", BUDGET),
        ("users", "shuffled-points", "needs"),
    ),
    Mistake(
        "make_system without sizes",
        fastfed("make_system", "private-fedlinucb", epsilon=1.0, delta=1e-5, batch_size=10),
        ("horizon", "dimension"),
        error=TypeError,
    ),
    Mistake(
        "make_system of an unknown name",
        fastfed("make_system", "fed-linucb", silos=2, horizon=20, dimension=3, batch_size=5),
        ("fed-linucb", 'mean "fedlinucb"'),
    ),
    Mistake(
        "audit without a claim",
        fastfed("audit", lambda data: 1.0, [0.0], [1.0]),
        ("epsilon", "required", "fastfed.audit(f, data, neighbour"),
    ),
    Mistake(
        "audit of a function of texts",
        fastfed("audit", lambda data: "x", [0.0], [1.0], epsilon=1.0, delta=0.0, trials=10),
        ("number", "'x'"),
    ),
    Mistake(
        "a claim for an audit that has one",
        fastfed("audit", "gaussian-tree", epsilon=1.0),
        ("gaussian-tree", "built-in", "trials"),
    ),
    Mistake("plan for one silo", sized(silos=1), ("silos", ">= 2", "got 1")),
    Mistake("plan(epsilon=inf)", sized(epsilon=float("inf")), ("epsilon", "inf", "finite")),
    Mistake(
        'plan for trust = "server"', sized(trust="server"), ("trust", "server", 'mean "central"')
    ),
    *(
        Mistake(
            f"protocol={word} of simulate", private(protocol=word), ("protocol", f'mean "{meant}"')
        )
        for word, meant in {
            "server": "central",
            "trusted server": "central",
            "local": "silo-ldp",
            "shuffle": "shuffle-vector",
            "Shuffler": "shuffle-vector",
            "mask": "secure-sum",
        }.items()
    ),
    Mistake(
        "plan for an environment by its kind",
        sized(environment="sphere"),
        ("environment", "sphere", "spec"),
    ),
    Mistake("plan with no time", sized(seconds=0), ("seconds", "> 0", "got 0")),
    Mistake(
        "epsilon as a tuple", private(epsilon=(1.0, 2.0)), ("epsilon", "write a list", "[1.0, 2.0]")
    ),
    Mistake(
        "epsilon as an array",
        private(epsilon=np.array([1.0, 2.0])),
        ("epsilon", "write a list", "[1.0, 2.0]"),
    ),
    Mistake(
        "batch_size as a range",
        private(batch_size=range(5, 7)),
        ("batch_size", "write a list", "[5, 6]"),
    ),
    Mistake(
        "run without a folder argument",
        fastfed("run", "s.toml"),
        ("'folder'", 'fastfed.run("spec.toml", "out")'),
        error=TypeError,
    ),
    *(
        Mistake(f"{name} without its folders", fastfed(name), ("missing", example), error=TypeError)
        for name, example in {
            "load": 'fastfed.load("out")',
            "merge": 'fastfed.merge(["out-0", "out-1"], "out")',
            "compare": 'fastfed.compare("before", "after")',
        }.items()
    ),
    Mistake(
        "simulate nothing",
        fastfed("simulate"),
        ("'environment'", "fastfed.simulate({"),
        error=TypeError,
    ),
    Mistake(
        "simulate with a folder and curves",
        simulate(curves=[PRIVATE], output="out"),
        ("output", "fastfed.run(spec, folder)"),
    ),
    Mistake(
        "an audit with a misspelled claim",
        fastfed("audit", lambda data: 1.0, [0.0], [1.0], epsilom=1.0, delta=0.0),
        ("epsilom", 'mean "epsilon"'),
    ),
    Mistake(
        "a plain function with the arguments of a compiled one",
        make_environment(
            "Python",
            function=lambda state, seed, replicate, silo, round, x, mean: 2,
            dimension=3,
            actions=2,
        ),
        ("function", "(seed, replicate, silo, round)", "(state, seed,", "environment_signature()"),
    ),
    Mistake(
        "losses as a function of the round only",
        make_environment("ObliviousLosses", function=lambda round: [0.0, 1.0], experts=2),
        ("function", "(seed, replicate, silo, round)", "(round)"),
    ),
    Mistake(
        "a certificate with a smaller epsilon",
        results(lambda r: Certificate.from_builtins(claiming(dict(r["LDP"].certificate), 0.1))),
        ("exact.epsilon", "mu", "got 0.1", "was changed"),
    ),
]
MISTAKES = RUNS + SIMULATIONS + USES + POLICIES + PRIVACY
