"""An experiment: one environment, some curves, how long and how often; and how a spec says it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fastfed._kernels import environments
from fastfed._random import check_seed
from fastfed._system import System
from fastfed._validate import (
    InputError,
    check_plain,
    choice,
    integer,
    line,
    listed,
    nearest,
    parsed,
    plain,
    show,
)
from fastfed.environments import (
    ENVIRONMENTS,
    Adversary,
    Environment,
    EnvironmentSpec,
    LossSpec,
    environment_from_spec,
)
from fastfed.privacy.mechanisms.amplification import HIDING
from fastfed.protocols.score import SCORES, UCB
from fastfed.simulation.driver import EVEN, SPACINGS, check_before, checkpoint_rounds
from fastfed.simulation.systems import ALGORITHMS, algorithm, check_keys, check_kind, problem_spec

#: Raised whenever the same spec would run other rounds than before: old results then differ.
SEMANTICS = 3

#: Bytes of noise that the Toeplitz releases of one replicate may keep.
MOST_HISTORY = 4 * 2**30

#: Curves of one experiment: each is planned before the first is run, at some 10 ms.
MOST_CURVES = 1000

#: Keys whose value may be a list itself, and no sweep over values: always, or when it holds lists.
LISTS = ("silo_epsilon", "silo_delta", "release_rounds", "base_rates")
LISTS_OF_LISTS = ("graph",)

TOP_KEYS = (
    "name",
    "horizon",
    "silos",
    "replicates",
    "seed",
    "checkpoints",
    "checkpoint_spacing",
    "environment",
    "curve",
    "figure",
)


@dataclass(frozen=True)
class Problem:
    """Environment and sizes of a curve: curves of one problem see equal contexts and reward
    noise."""

    environment: Environment
    facts: EnvironmentSpec | LossSpec
    silos: int

    def open(self, seed: int, replicate: int) -> environments.Environment | Adversary:
        """The compiled environment of one replicate."""
        return self.environment.open(seed, replicate, self.silos)


@dataclass(frozen=True)
class Curve:
    """One line of a figure: a label and a system ready to run."""

    label: str
    algorithm: str
    keys: dict[str, Any]  # every key with its value, defaults filled in
    system: System
    problem: Problem
    sizes: dict[str, Any]  # what the curve changes of silos and environment

    @property
    def packages(self) -> dict[str, str]:
        """Packages, with their versions, that a part of it is from, where it is not fastfed's."""
        found = {
            "algorithm": ALGORITHMS.origin(self.algorithm),
            "environment": ENVIRONMENTS.origin(self.problem.environment.kind),
        }
        if getattr(self.system.plan, "score", None) is not None:
            found["score"] = SCORES.origin(self.keys.get("score", ""))
        return {part: package for part, package in found.items() if package is not None}

    @property
    def account(self) -> int:
        """2 where a tighter account of privacy than the first chooses less noise, else 1."""
        if self.keys.get("release") == "honaker":
            return 2
        conditions = getattr(self.system.certificate, "conditions", ())
        by_the_lemma = self.keys.get("protocol") == "shuffle-amplified" and HIDING in conditions
        return 2 if by_the_lemma and self.keys.get("calibration") == "exact" else 1


@dataclass(frozen=True)
class Experiment:
    """An experiment that `fastfed.run` runs; equal identities run equal rounds.

    Make one with `load_experiment` or `experiment_from_spec`, which check everything.

    Attributes
    ----------
    name : str
        Name of the experiment.
    problem : Problem
        Environment and number of silos, of every curve that does not say otherwise.
    horizon : int
        T, rounds of each silo.
    replicates : int
        R, independent repetitions of each curve.
    seed : int
        Of all randomness, in [0, 2^63).
    checkpoints : ndarray of int64, shape (C,)
        Rounds whose results are kept, ascending.
    curves : tuple of Curve
        What is compared.
    figure : dict
        The spec's figure table, for reports.
    checkpoint_spacing : {"even", "log"}
        How the checkpoints lie.
    """

    name: str
    problem: Problem
    horizon: int
    replicates: int
    seed: int
    checkpoints: np.ndarray
    curves: tuple[Curve, ...]
    figure: dict[str, Any]
    checkpoint_spacing: str = EVEN

    @property
    def environment(self) -> Environment:
        """Environment of the problem."""
        return self.problem.environment

    @property
    def facts(self) -> EnvironmentSpec | LossSpec:
        """What the environment promises for these silos and rounds."""
        return self.problem.facts

    @property
    def silos(self) -> int:
        """M, the number of silos of the problem."""
        return self.problem.silos

    @property
    def bound_names(self) -> dict[str, tuple[str, ...]]:
        """Names of the bounds that each curve's system can draw, by label."""
        last = self.checkpoints[-1:]
        systems = {curve.label: curve.system for curve in self.curves}
        return {
            label: tuple(system.bounds_at(last)) if system.bounds_at else ()
            for label, system in systems.items()
        }

    def agent_rounds(self, positions: Iterable[int]) -> int:
        """Count the silo-rounds of one replicate of the curves at these positions."""
        return sum(self.curves[i].problem.silos for i in positions) * self.horizon

    def identity(self) -> dict[str, Any]:
        """Return all that decides the results, but for the number of replicates, as plain data."""
        packages = {c.label: c.packages for c in self.curves if c.packages}
        accounts = {c.label: c.account for c in self.curves if c.account > 1}
        return {
            **({"packages": packages} if packages else {}),
            **({"accounts": accounts} if accounts else {}),
            "semantics": SEMANTICS,
            "name": self.name,
            "environment": self.environment.describe(),
            "silos": self.silos,
            "horizon": self.horizon,
            "seed": self.seed,
            "checkpoints": len(self.checkpoints),
            **(
                {"checkpoint_spacing": self.checkpoint_spacing}
                if self.checkpoint_spacing != EVEN
                else {}
            ),
            "curves": [
                {
                    "label": c.label,
                    "algorithm": c.algorithm,
                    **since(c.keys, c.algorithm),
                    **c.sizes,
                }
                for c in self.curves
            ],
        }

    def digest(self) -> str:
        """Return 16 hexadecimal digits of the SHA-256 of the identity."""
        return hashlib.sha256(msgspec.json.encode(self.identity(), order="sorted")).hexdigest()[:16]

    def with_options(self, replicates: int | None = None) -> Experiment:
        """Return the same experiment with another number of replicates.

        Parameters
        ----------
        replicates : int, optional
            At least 1; None changes nothing.

        Returns
        -------
        Experiment

        Raises
        ------
        InputError
            For anything but an integer >= 1.
        """
        if replicates is None:
            return self
        return replace(self, replicates=integer("replicates", replicates, at_least=1))


def batch_of(curve: dict[str, Any]) -> int | None:
    """Rounds between two releases of a curve, if its table or its system says so in a number."""
    if "batch_size" in curve:
        batch = curve["batch_size"]
    else:
        try:
            fields = msgspec.structs.fields(algorithm(curve.get("algorithm")).config)
        except InputError:  # said later, with the curve's label
            return None
        batch = next((f.default for f in fields if f.name == "batch_size"), None)
    whole = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    return int(batch) if whole else None


def since(keys: dict[str, Any], algorithm: str = "") -> dict[str, Any]:
    """Config of a curve but for those that came later and say nothing: older stores stay valid."""
    later = LATER | LATER_OF.get(algorithm, {})
    kept = {k: v for k, v in keys.items() if k not in later or v != later[k]}
    for name, usual in LATER_INSIDE.items():
        key, inner = name.split(".")
        if isinstance(kept.get(key), dict) and kept[key].get(inner) == usual:
            kept[key] = {k: v for k, v in kept[key].items() if k != inner}
    return kept


def sweeps(key: str, values: list[Any]) -> bool:
    """True if a list-valued key stands for one curve per value: edges of a graph do not."""
    edges = key in LISTS_OF_LISTS and all(isinstance(v, (list, tuple)) for v in values)
    return key not in LISTS and not (edges and values)


def expand(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """One curve for every combination of its list-valued keys, the values in the label."""
    lists = {k: v for k, v in curve.items() if isinstance(v, list) and sweeps(k, v)}
    for key, values in lists.items():
        if not values:
            raise InputError(f"{key} must not be an empty list")
    if (many := math.prod(map(len, lists.values()))) > MOST_CURVES:
        raise InputError(
            f"{', '.join(lists)} must give at most {MOST_CURVES} combinations, got {show(many)} "
            f'(curve "{curve["label"]}")'
        )
    expanded = []
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        label = ", ".join([str(curve["label"]), *(f"{k} = {v}" for k, v in chosen.items())])
        expanded.append({**curve, **chosen, "label": label})
    return expanded


def build_curve(spec: dict[str, Any], base: Problem, horizon: int) -> Curve:
    """The curve of one expanded table; errors name curve and key.

    Keys that are none of the algorithm's but of the environment, or ``silos``, change the problem.
    """
    label = spec["label"]
    try:
        entry = algorithm(spec.get("algorithm"))
        own = {"label", "algorithm", *entry.config.__struct_fields__}
        sizes = {k: v for k, v in spec.items() if k not in own and k in size_keys(base)}
        keys = {k: v for k, v in spec.items() if k not in ("label", "algorithm", *sizes)}
        problem = changed(base, sizes, horizon)
        check_kind(entry, problem.environment.kind, problem.facts)
        with ALGORITHMS.guard(entry.id):
            check_keys(entry, keys)
            checked, asked = entry.check(keys), problem_spec(problem.facts, problem.silos, horizon)
            system = entry.make_checked(checked, asked)
            settled = entry.settled(checked, asked)
    except InputError as error:
        raise InputError(f'{error} (curve "{label}")') from None
    return Curve(label, entry.id, complete(settled), system, problem, sizes)


def size_keys(problem: Problem) -> set[str]:
    """Keys of a problem that a curve may change: the number of silos, and the environment's
    numbers, but for those whose name is a key of some system: they would mean two things."""
    fields = dataclasses.fields(problem.environment)  # type: ignore[arg-type]
    # What a spec may say does not depend on the packages that happen to be installed.
    keys = {key for e in ALGORITHMS.builtin.values() for key in e.config.__struct_fields__}
    numbers = (f.name for f in fields if f.init and f.type in ("int", "float", int, float))
    return {"silos", *(name for name in numbers if name not in keys)}


def changed(base: Problem, sizes: dict[str, Any], horizon: int) -> Problem:
    """The problem with these sizes; the base itself when nothing changes."""
    if not sizes:
        return base
    environment = base.environment
    changes = {k: v for k, v in sizes.items() if k != "silos"}
    if changes:
        environment = dataclasses.replace(environment, **changes)  # type: ignore[type-var]
    return make_problem(environment, sizes.get("silos", base.silos), horizon)


def make_problem(environment: Environment, silos: int | None, horizon: int) -> Problem:
    """A problem whose number of silos agrees with its data."""
    natural = environment.natural_silos()
    if silos is None:
        silos = natural
    if silos is None:
        raise InputError("silos is required: how many silos share the learning")
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    if natural is not None and silos != natural:
        raise InputError(f"silos must be {natural}, as the data say, got {silos}")
    with ENVIRONMENTS.guard(environment.kind):
        facts = environment.facts(silos, horizon)
    return Problem(environment, facts, silos)


def complete(keys: msgspec.Struct) -> dict[str, Any]:
    """Every key with its value, as plain data."""
    built: dict[str, Any] = msgspec.to_builtins(keys)
    return built


def make_experiment(
    *,
    name: str,
    environment: Environment,
    curves: list[dict[str, Any]],
    horizon: int,
    silos: int | None = None,
    replicates: int = 1,
    seed: int = 0,
    checkpoints: int = 200,
    checkpoint_spacing: str = EVEN,
    figure: dict[str, Any] | None = None,
) -> Experiment:
    """A checked experiment; every curve a table with label, algorithm and the algorithm's keys."""
    check_plain("curve", curves)
    check_plain("figure", figure)
    horizon = integer("horizon", horizon, at_least=1, at_most=2**32 - 2)
    base = make_problem(environment, silos, horizon)
    if not curves:
        raise InputError("curve is required: at least one [[curve]] table, or one of curves")
    tables: list[dict[str, Any]] = []
    for position, table in enumerate(curves):
        if not isinstance(table, dict):
            raise InputError(
                f"curve {position + 1} of curves must be a table such as "
                f'{{"algorithm": "fedlinucb"}}, got {show(table)}'
            )
        if table.get("algorithm") is None:
            meant = [key for key in table if nearest(str(key), ["algorithm"])]
            misspelt = f'; is "{meant[0]}" meant?' if meant else ""
            raise InputError(
                "algorithm is required, such as fedlinucb (`fastfed list algorithms` names all; "
                f"curve {show(table.get('label', position + 1))}){misspelt}"
            )
        label = table.get("label", str(table.get("algorithm")))
        tables.append(plain({**table, "label": line("label", label)}))
    marks = integer("checkpoints", checkpoints, at_least=1)
    choice("checkpoint_spacing", checkpoint_spacing, SPACINGS)
    expanded = [c for table in tables for c in expand(table)]
    if len(expanded) > MOST_CURVES:
        raise InputError(f"curve must give at most {MOST_CURVES} curves, got {len(expanded)}")
    check_before(horizon, marks, [b for c in expanded if (b := batch_of(c)) is not None])
    built = tuple(build_curve(c, base, horizon) for c in expanded)
    seen: set[str] = set()
    for curve in built:
        if curve.label in seen:
            raise InputError(f'label must be unique, got "{curve.label}" twice')
        seen.add(curve.label)
    check_history(built)
    check_experts(built)
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"name must be a text, got {show(name)}")
    return Experiment(
        name=name,
        problem=base,
        horizon=horizon,
        replicates=integer("replicates", replicates, at_least=1, at_most=2**31),
        seed=check_seed(seed),
        checkpoints=checkpoint_rounds(horizon, marks, checkpoint_spacing),
        curves=built,
        figure=figure or {},
        checkpoint_spacing=checkpoint_spacing,
    )


def check_history(curves: Iterable[Curve]) -> None:
    """InputError where the noises that Toeplitz releases keep would not fit into memory.

    A simulation holds those of all silos at once; a deployed silo holds its own only.
    """
    needed = 8 * sum(getattr(c.system.plan, "history_numbers", 0) for c in curves)
    if needed > MOST_HISTORY:
        raise InputError(
            f'release "toeplitz" would keep {needed / 1e9:.3g} GB of noise in every replicate, at '
            f"most {MOST_HISTORY / 1e9:.3g} GB; fewer such curves at once or a larger batch_size "
            'need less, and "buffered", of all but the same noise, or "honaker" next to nothing; '
            'noise_draws = "sum" keeps it once for all silos'
        )


#: Keys that came after the first version, with the value that says nothing.
LATER: dict[str, Any] = {
    "score": UCB,
    "protects": "user",
    "bonus": 1.0,
    "tie_bonus": 1.0,
    "ledger": 1.0,
    "noise_draws": "silo",
    **dict.fromkeys(
        (
            *("batch_first", "batch_ratio", "release_rounds", "reward_centre", "base_rates"),
            *("colluders", "share"),
        )
    ),
}

#: The same of keys that other algorithms have had before.
LATER_OF: dict[str, dict[str, Any]] = {
    name: {"silo_epsilon": None, "silo_delta": None, "returning": 1}
    for name in ("feducb", "feducb-decentralized")
}

#: The same of keys of tables.
LATER_INSIDE: dict[str, Any] = {"share.coin": "none"}

#: Bytes of gradients that one replicate of experts may keep, and exchanges that it may take.
MOST_GRADIENTS, MOST_EXCHANGES = 4 * 2**30, 2**28


def check_experts(curves: Iterable[Curve]) -> None:
    """InputError where a curve of experts would not fit into memory, or not end in days."""
    for curve in curves:
        plan = curve.system.plan
        if plan.driver != "experts":
            continue
        if plan.exchanges > MOST_EXCHANGES:
            raise InputError(
                f"{plan.exchanges:.3g} exchanges are too many to simulate, at most "
                f'{MOST_EXCHANGES:.3g}; a larger phase_length needs fewer (curve "{curve.label}")'
            )
        needed = plan.gradient_memory()
        if needed > MOST_GRADIENTS:
            raise InputError(
                f"gradients of all clients would take {needed / 1e9:.3g} GB, at most "
                f"{MOST_GRADIENTS / 1e9:.3g} GB; fewer silos or experts need less "
                f'(curve "{curve.label}")'
            )


def experiment_from_spec(spec: dict[str, Any]) -> Experiment:
    """Make the experiment of a spec's tables.

    Parameters
    ----------
    spec : dict
        Tables as a TOML file has them: "name", "horizon", "environment" (a table with a kind) and
        "curve" (a list of tables), and optional top-level keys. Left as it is.

    Returns
    -------
    Experiment

    Raises
    ------
    InputError
        For a missing or unknown key, a value out of range, and curves that do not fit the
        environment; it names key and curve.
    """
    for key in spec:
        if key not in TOP_KEYS:
            raise InputError(f'unknown key "{key}"{listed(key, TOP_KEYS, "a spec may have")}')
    for key in ("name", "horizon", "environment", "curve"):
        if key not in spec:
            raise InputError(f"{key} is required")
    check_plain("spec", spec)
    curves = spec["curve"]
    if not isinstance(curves, list):
        raise InputError("curve must be a list of tables: write [[curve]], not [curve]")
    keys = {k: v for k, v in spec.items() if k not in ("environment", "curve")}
    return make_experiment(
        environment=environment_from_spec(spec["environment"]),
        curves=[dict(c) if isinstance(c, dict) else c for c in curves],
        **keys,
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; InputError with line and column when it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        if os.path.isdir(path):
            raise InputError(f"{path}: a folder, where a spec file (TOML) is needed") from None
        if "\n" in str(path):
            raise InputError(
                f"a spec file is given by its name, got a text of {len(str(path))} characters: "
                "save it as a .toml file"
            ) from None
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file in UTF-8: save it in UTF-8") from None
    except ValueError as error:  # a path that no system has
        raise InputError(f"{path}: cannot be read ({error})") from None
    try:
        tables: dict[str, Any] = parsed(tomllib.loads, text)
        return tables
    except InputError as error:
        raise InputError(f"{path}: not TOML: {error}{_remedy(text, str(error))}") from None


def _remedy(text: str, error: str) -> str:
    """What to write instead, for the usual slips."""
    found = re.search(r"at line ([0-9]+)", error)
    lines = text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    if re.search(r'"[^"]*\\[^"]*"', line):
        return ": write a path with \\ in single quotes"
    if re.search(r"=\s*[+-]?[0-9]+,[0-9]", line):
        return ": write a number with a decimal point"
    if text.lstrip().startswith("{") or re.match(r"\s*[A-Za-z_]+:\s", text):
        return ": a spec says key = value, as `fastfed spec show zc24-fig3a` prints one"
    return ""


#: Config of an environment that name files; a spec may give them relative to itself.
PATH_KEYS = ("path", "data", "losses")


def find_beside(environment: Any, path: Path) -> None:
    """Make the files that an environment's table names relative to the spec at ``path``."""
    if not isinstance(environment, dict):
        return
    for key in PATH_KEYS:
        value = environment.get(key)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            environment[key] = [str(path.parent / one) for one in value]
        if isinstance(value, str) and value != "digits" and not Path(value).is_absolute():
            beside = path.parent / value
            environment[key] = str(beside if os.path.exists(beside) else Path(value))


def load_experiment(path: str | Path, **overrides: Any) -> Experiment:
    """Make the experiment of a spec file.

    Parameters
    ----------
    path : str or Path
        TOML file; the data files that it names may lie beside it.
    **overrides
        Top-level keys, such as ``replicates`` or ``seed``, in place of the file's; None keeps them.

    Returns
    -------
    Experiment

    Raises
    ------
    InputError
        For a file that cannot be read or is no TOML, and as `experiment_from_spec`; it names the
        file.
    """
    path = Path(path)
    spec = read_toml(path)
    spec.update({k: v for k, v in overrides.items() if v is not None})
    find_beside(spec.get("environment"), path)
    try:
        return experiment_from_spec(spec)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
