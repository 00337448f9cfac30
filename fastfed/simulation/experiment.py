"""Experiments (an environment, curves, horizon and replicates), and their specs in TOML."""

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
    FixedSet,
    LossSpec,
    LowerBoundLosses,
    RealizableLosses,
    StochasticLosses,
    environment_from_spec,
)
from fastfed.privacy.mechanisms.amplification import HIDING
from fastfed.protocols.score import SCORES, UCB
from fastfed.simulation.driver import EVEN, SPACINGS, check_array_memory, checkpoint_rounds
from fastfed.simulation.systems import ALGORITHMS, algorithm, check_keys, check_kind, problem_spec

#: Version of the results. Raise it when an unchanged spec would give different results.
SEMANTICS = 3

#: Most bytes of noise that one replicate may cache for the releases in `plan.KEEPING`.
MAX_HISTORY = 4 * 2**30

#: Most curves of one experiment. Each is planned before the first is run, in about 10 ms.
MAX_CURVES = 1000

#: Keys of curves whose single value is a list, or a list of lists. For other keys, a list is a
#: sweep: one curve for each value.
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
    """An environment with its number of silos.

    All curves of a problem see equal contexts and reward noise. ``facts`` are the properties of the
    environment for this number of silos, such as bounds on rewards.
    """

    environment: Environment
    facts: EnvironmentSpec | LossSpec
    silos: int

    def open(self, seed: int, replicate: int) -> environments.Environment | Adversary:
        """Return the compiled environment of one replicate (for experts, the adversary)."""
        return self.environment.open(seed, replicate, self.silos)


@dataclass(frozen=True)
class Curve:
    """One line of a figure: a label, and a system with the problem that it learns."""

    label: str
    algorithm: str
    keys: dict[str, Any]  # every key with its value, defaults filled in
    system: System
    problem: Problem
    sizes: dict[str, Any]  # number of silos and environment keys that differ from the experiment's

    @property
    def packages(self) -> dict[str, str]:
        """Other packages that supply a part of the curve, each with its version.

        Maps "algorithm", "environment" or "score" to the package. Parts of fastfed are left out.
        """
        origins = {
            "algorithm": ALGORITHMS.origin(self.algorithm),
            "environment": ENVIRONMENTS.origin(self.problem.environment.kind),
        }
        if getattr(self.system.plan, "score", None) is not None:
            origins["score"] = SCORES.origin(self.keys.get("score", ""))
        return {key: package for key, package in origins.items() if package is not None}

    @property
    def account(self) -> int:
        """Version of the privacy account that determines how much noise the curve gets.

        It is 2 if a tighter account replaced the first one, so that the noise became less, else 1.
        This happened for release "honaker", and for the exact calibration of "shuffle-amplified"
        if its noise comes from Lemma F.2 of zhou-chowdhury-2024 (`mechanisms.amplification`).
        """
        if self.keys.get("release") == "honaker":
            return 2
        # The certificate has the condition HIDING only if the lemma proves its epsilon.
        conditions = getattr(self.system.certificate, "conditions", ())
        uses_lemma = self.keys.get("protocol") == "shuffle-amplified" and HIDING in conditions
        return 2 if uses_lemma and self.keys.get("calibration") == "exact" else 1

    @property
    def revision(self) -> int:
        """Version of the curve's results: 2 if a change of fastfed has changed them, else 1.

        Three changes of fastfed have changed results:

        - The direct radius became smaller for plans with noise (docs/radius.md).
        - The slack of a sieve became smaller for silos that never synchronise, if there are fewer
          fixed actions than features (docs/radius.md).
        - Losses that are 0 or 1 at random are drawn in a different way (ff_coins.h).
        """
        plan, environment = self.system.plan, self.problem.environment
        if isinstance(environment, StochasticLosses | RealizableLosses):
            return 2
        # The losses of Theorem 2.7 of gao-2024 follow from the best expert, which is drawn at
        # random. They are not 0 or 1 at random.
        if isinstance(environment, LowerBoundLosses) and environment.theorem != "2.7":
            return 2
        radius = getattr(plan, "radius", None)
        if radius is not None and radius.direct and radius.floor.any():
            return 2
        is_small_set = isinstance(environment, FixedSet) and (
            environment.actions < environment.dimension
        )
        return 2 if is_small_set and getattr(plan, "slack_by_round", False) else 1


@dataclass(frozen=True)
class Experiment:
    """An experiment that `fastfed.run` runs. Experiments with equal identities give equal results.

    Create one with `load_experiment` or `experiment_from_spec`, which check all values.

    Attributes
    ----------
    name : str
        Name of the experiment.
    problem : Problem
        Environment and number of silos. A curve may override single values.
    horizon : int
        T, the number of rounds of each silo.
    replicates : int
        R, the number of independent repetitions of each curve.
    seed : int
        Seed of all randomness, in [0, 2^63).
    checkpoints : ndarray of int64, shape (C,)
        Rounds whose results are recorded, ascending.
    curves : tuple of Curve
        The systems to compare.
    figure : dict
        The spec's figure table, for reports.
    checkpoint_spacing : {"even", "log"}
        Whether checkpoints are spaced evenly or geometrically.
    first_replicate : int
        Replicates from this one to ``replicates`` - 1 are simulated. It can be above 0 if several
        jobs share an experiment.
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
    first_replicate: int = 0

    @property
    def replicate_numbers(self) -> range:
        """Numbers of the replicates that this experiment simulates."""
        return range(self.first_replicate, self.replicates)

    @property
    def environment(self) -> Environment:
        """The environment of the problem."""
        return self.problem.environment

    @property
    def facts(self) -> EnvironmentSpec | LossSpec:
        """Properties of the environment for this number of silos and rounds."""
        return self.problem.facts

    @property
    def silos(self) -> int:
        """M, the number of silos of the problem."""
        return self.problem.silos

    @property
    def bound_names(self) -> dict[str, tuple[str, ...]]:
        """Names of the theoretical bounds that each curve's system can compute, by label."""
        last = self.checkpoints[-1:]
        systems = {curve.label: curve.system for curve in self.curves}
        return {
            label: tuple(system.bounds_at(last)) if system.bounds_at else ()
            for label, system in systems.items()
        }

    def agent_rounds(self, positions: Iterable[int]) -> int:
        """Return the number of agent-rounds in one replicate of the curves at these positions.

        An agent-round is one round of one silo.
        """
        return sum(self.curves[i].problem.silos for i in positions) * self.horizon

    def identity(self) -> dict[str, Any]:
        """Return as plain data all values that determine the results of a replicate."""
        # Leave out keys that earlier versions of fastfed did not have, if their value is the one
        # that these versions implied. So the identities of old stores do not change.
        packages = {c.label: c.packages for c in self.curves if c.packages}
        accounts = {c.label: c.account for c in self.curves if c.account > 1}
        revisions = {c.label: c.revision for c in self.curves if c.revision > 1}
        return {
            **({"packages": packages} if packages else {}),
            **({"accounts": accounts} if accounts else {}),
            **({"revisions": revisions} if revisions else {}),
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
                    **without_new_defaults(c.keys, c.algorithm),
                    **c.sizes,
                }
                for c in self.curves
            ],
        }

    def digest(self) -> str:
        """Return the first 16 hexadecimal digits of the SHA-256 of the identity."""
        return hashlib.sha256(msgspec.json.encode(self.identity(), order="sorted")).hexdigest()[:16]

    def with_options(self, replicates: int | None = None) -> Experiment:
        """Return the same experiment with replicates 0 to ``replicates`` - 1.

        Parameters
        ----------
        replicates : int, optional
            Number of replicates, >= 1. None changes nothing.

        Returns
        -------
        Experiment
            A copy whose first replicate is 0, or this experiment for None.

        Raises
        ------
        InputError
            If ``replicates`` is not an integer >= 1.
        """
        if replicates is None:
            return self
        number = integer("replicates", replicates, at_least=1)
        return replace(self, replicates=number, first_replicate=0)


def replicate_range(value: Any) -> tuple[int, int | None]:
    """Return the numbers (first, end) of a range of replicates; ``end`` is after the last one.

    ``end`` is None if the spec decides it.

    Parameters
    ----------
    value : int, tuple of int or None
        The number of replicates, or the range (first, end), such as (5, 10) for 5 to 9.

    Raises
    ------
    InputError
        If the value is neither, or the range is empty.
    """
    if value is None:
        return 0, None
    if isinstance(value, str) and (ends := re.fullmatch(r"([0-9]+):([0-9]+)", value)):
        raise InputError(
            f"replicates must be a number or a range (first, end), got {show(value)}: write "
            f"({ends[1]}, {ends[2]})"
        )
    if isinstance(value, list) and len(value) == 2:
        raise InputError(
            f"replicates must be a number or a range (first, end), got {show(value)}: write "
            f"({show(value[0])}, {show(value[1])})"
        )
    if not isinstance(value, tuple):
        return 0, integer("replicates", value, at_least=1, at_most=2**31)
    if len(value) != 2:
        raise InputError(f"replicates must be a number or a range (first, end), got {show(value)}")
    first = integer("the first replicate", value[0], at_least=0)
    end = integer("the end of replicates", value[1], at_least=first + 1, at_most=2**31)
    return first, end


def fixed_batch_size(curve: dict[str, Any]) -> int | None:
    """Return the batch size in a curve's table, or else its algorithm's default batch size.

    Return None if the batches of the curve do not have one fixed size.
    """
    if "batch_size" in curve:
        batch = curve["batch_size"]
    else:
        try:
            fields = msgspec.structs.fields(algorithm(curve.get("algorithm")).config)
        except InputError:  # reported later, with the curve's label
            return None
        batch = next((f.default for f in fields if f.name == "batch_size"), None)
    is_count = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    return int(batch) if is_count else None


def without_new_defaults(keys: dict[str, Any], algorithm: str = "") -> dict[str, Any]:
    """Return a curve's keys, leaving out keys that are new and have their default value.

    A key is new if the first version of fastfed, or of the algorithm, did not have it. Old stores
    have identities without new keys. So today's identity of the same curve must leave them out too,
    or it would differ from the store's identity.
    """
    later_keys = LATER | LATER_OF.get(algorithm, {})
    relevant = {k: v for k, v in keys.items() if k not in later_keys or v != later_keys[k]}
    for name, default in LATER_INSIDE.items():
        key, inner_key = name.split(".")
        if isinstance(relevant.get(key), dict) and relevant[key].get(inner_key) == default:
            relevant[key] = {k: v for k, v in relevant[key].items() if k != inner_key}
    return relevant


def sweeps(key: str, values: list[Any]) -> bool:
    """Return whether a list of values of this key stands for one curve per value.

    It does not if the whole list is one value of the key, for example the edges of a graph. An
    empty list is no such value for `LISTS_OF_LISTS`; `expand` refuses it.
    """
    is_one_value = key in LISTS_OF_LISTS and all(isinstance(v, (list, tuple)) for v in values)
    return key not in LISTS and not (is_one_value and values)


def expand(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a list of curve tables: one for each combination of the values of list-valued keys.

    The label of each table states its combination.
    """
    lists = {k: v for k, v in curve.items() if isinstance(v, list) and sweeps(k, v)}
    for key, values in lists.items():
        if not values:
            raise InputError(
                f"{key} must not be an empty list: write a value, or a list of values, which makes "
                f'one curve for each (curve "{curve["label"]}")'
            )
        # Python takes True and 1 for equal, but they are different values of a key. So compare
        # texts, except for numbers.
        if len({value if _is_number(value) else repr(value) for value in values}) < len(values):
            raise InputError(
                f"{key} must hold each value once, as each makes a curve, got {show(values)} "
                f'(curve "{curve["label"]}")'
            )
    if (combinations := math.prod(map(len, lists.values()))) > MAX_CURVES:
        raise InputError(
            f"{', '.join(lists)} must give at most {MAX_CURVES} combinations, got "
            f'{show(combinations)} (curve "{curve["label"]}")'
        )
    expanded = []
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        label = ", ".join(
            [str(curve["label"]), *(f"{k} = {_in_label(v)}" for k, v in chosen.items())]
        )
        expanded.append({**curve, **chosen, "label": label})
    return expanded


def _is_number(value: Any) -> bool:
    """Return True for an integer or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _hint_to_write_a_list(error: InputError, keys: dict[str, Any]) -> str:
    """Return a hint that ends an error message: how to write a sweep as a list.

    The hint is for errors about a key whose value is a tuple, a set, a range or an array. For other
    errors, it is an empty text.
    """
    for key, value in keys.items():
        is_sweep = isinstance(value, (tuple, set, frozenset, range, np.ndarray))
        if is_sweep and str(error).startswith(f"{key} must be "):
            values = value.tolist() if isinstance(value, np.ndarray) else list(value)
            return f": write a list for a curve of each value, {show(values)}"
    return ""


def _in_label(value: Any) -> str:
    """Format a swept value for a label: a table as "key value; key value", a scalar by str."""
    if not isinstance(value, dict):
        return str(value)
    return "; ".join(f"{key} {_in_label(inner)}" for key, inner in value.items())


def build_curve(spec: dict[str, Any], base: Problem, horizon: int) -> Curve:
    """Build the curve of one curve table, in which every key has a single value.

    If the table has ``silos`` or a number of the environment, such as its dimension, the curve's
    problem is ``base`` with this value. If the algorithm has a key of the same name, the value is
    for the algorithm instead. Messages of InputError name the curve and the key.
    """
    label = spec["label"]
    try:
        entry = algorithm(spec.get("algorithm"))
        algorithm_keys = {"label", "algorithm", *entry.config.__struct_fields__}
        sizes = {k: v for k, v in spec.items() if k not in algorithm_keys and k in size_keys(base)}
        keys = {k: v for k, v in spec.items() if k not in ("label", "algorithm", *sizes)}
        problem = with_sizes(base, sizes, horizon)
        check_kind(entry, problem.environment.kind, problem.facts)
        with ALGORITHMS.guard(entry.id):
            check_keys(entry, keys)
            checked, spec_of_problem = (
                entry.check(keys),
                problem_spec(problem.facts, problem.silos, horizon),
            )
            system = entry.make_checked(checked, spec_of_problem)
            settled = entry.settled(checked, spec_of_problem)
    except InputError as error:
        raise InputError(f'{error}{_hint_to_write_a_list(error, spec)} (curve "{label}")') from None
    return Curve(label, entry.id, key_values(settled), system, problem, sizes)


def size_keys(problem: Problem) -> set[str]:
    """Return the keys of a problem that a curve may change: "silos" and numbers of the environment.

    A number is left out if a built-in system has a key of the same name, which would be ambiguous.
    """
    fields = dataclasses.fields(problem.environment)  # type: ignore[arg-type]
    # Look at built-in systems only: a spec's meaning must not depend on the installed packages.
    keys = {key for e in ALGORITHMS.builtin.values() for key in e.config.__struct_fields__}
    numbers = (f.name for f in fields if f.init and f.type in ("int", "float", int, float))
    return {"silos", *(name for name in numbers if name not in keys)}


def with_sizes(base: Problem, sizes: dict[str, Any], horizon: int) -> Problem:
    """Return the base problem, changed by ``sizes``: new values of some keys of `size_keys`."""
    if not sizes:
        return base
    environment = base.environment
    changes = {k: v for k, v in sizes.items() if k != "silos"}
    if changes:
        environment = dataclasses.replace(environment, **changes)  # type: ignore[type-var]
    return make_problem(environment, sizes.get("silos", base.silos), horizon)


def make_problem(environment: Environment, silos: int | None, horizon: int) -> Problem:
    """Build a problem, and check its number of silos against the environment's data.

    ``silos`` may be None if the data determine the number of silos.
    """
    silos_of_data = environment.natural_silos()
    if silos is None:
        silos = silos_of_data
    if silos is None:
        raise InputError(
            "silos is required: how many silos share the learning (silos = 1 for a single agent)"
        )
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    if silos_of_data is not None and silos != silos_of_data:
        raise InputError(f"silos must be {silos_of_data} for these data, got {silos}")
    with ENVIRONMENTS.guard(environment.kind):
        facts = environment.facts(silos, horizon)
    return Problem(environment, facts, silos)


def key_values(keys: msgspec.Struct) -> dict[str, Any]:
    """Return every key of an algorithm's config with its value, as plain data."""
    values: dict[str, Any] = msgspec.to_builtins(keys)
    return values


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
    """Build and check an experiment.

    Each entry of ``curves`` is a table with a label, an algorithm and its keys. The other arguments
    are those of `simulate`.
    """
    check_plain("curve", curves)
    check_plain("figure", figure)
    horizon = integer("horizon", horizon, at_least=1, at_most=2**32 - 2)
    base = make_problem(environment, silos, horizon)
    if not curves:
        raise InputError("curve is required: at least one [[curve]] table, or one entry of curves")
    # Check every table and its label before curves are built, which takes longer.
    tables: list[dict[str, Any]] = []
    for position, table in enumerate(curves):
        if not isinstance(table, dict):
            raise InputError(
                f"curve {position + 1} of curves must be a table such as "
                f'{{"algorithm": "fedlinucb"}}, got {show(table)}'
            )
        if table.get("algorithm") is None:
            similar_keys = [key for key in table if nearest(str(key), ["algorithm"])]
            suggestion = f'; is "{similar_keys[0]}" meant?' if similar_keys else ""
            raise InputError(
                "algorithm is required, such as fedlinucb (`fastfed list algorithms` names all; "
                f"curve {show(table.get('label', position + 1))}){suggestion}"
            )
        label = table.get("label", str(table.get("algorithm")))
        tables.append(plain({**table, "label": line("label", label)}))
    checkpoint_count = integer("checkpoints", checkpoints, at_least=1)
    choice("checkpoint_spacing", checkpoint_spacing, SPACINGS)
    expanded = [c for table in tables for c in expand(table)]
    if len(expanded) > MAX_CURVES:
        raise InputError(f"curve must give at most {MAX_CURVES} curves, got {len(expanded)}")
    fixed_batches = [b for c in expanded if (b := fixed_batch_size(c)) is not None]
    check_array_memory(horizon, checkpoint_count, fixed_batches)
    built = tuple(build_curve(c, base, horizon) for c in expanded)
    labels: set[str] = set()
    for curve in built:
        if curve.label in labels:
            raise InputError(f'label must be unique, got "{curve.label}" twice')
        labels.add(curve.label)
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
        checkpoints=checkpoint_rounds(horizon, checkpoint_count, checkpoint_spacing),
        curves=built,
        figure=figure or {},
        checkpoint_spacing=checkpoint_spacing,
    )


def check_history(curves: Iterable[Curve]) -> None:
    """Raise InputError if the noise that "toeplitz" and similar releases cache exceeds 4 GiB.

    A simulation caches the noise of all silos; a deployed silo caches only its own noise.
    """
    needed_bytes = 8 * sum(getattr(c.system.plan, "history_numbers", 0) for c in curves)
    if needed_bytes > MAX_HISTORY:
        raise InputError(
            f'release "toeplitz" would cache {needed_bytes / 1e9:.3g} GB of noise in every '
            f"replicate, more than {MAX_HISTORY / 1e9:.3g} GB; use fewer such curves or a larger "
            'batch_size, release "buffered", which has nearly the same noise, or "honaker", or set '
            'noise_draws = "sum", which caches one noise for all silos'
        )


#: Keys that were added after the first version of fastfed, with their defaults. A key with this
#: default is left out of identities (`without_new_defaults`).
LATER: dict[str, Any] = {
    "score": UCB,
    "protects": "user",
    "sieve": 1.0,
    "saturation": 0.0,
    "bonus": 1.0,
    "tie_bonus": 1.0,
    "ledger": 1.0,
    "noise_draws": "silo",
    "shuffled": False,
    **dict.fromkeys(
        (
            *("batch_first", "batch_ratio", "release_rounds", "reward_centre", "base_rates"),
            *("colluders", "share", "delay", "clock"),
        )
    ),
}

#: Algorithm -> keys that were added to this algorithm later, with their defaults.
LATER_OF: dict[str, dict[str, Any]] = {
    name: {"silo_epsilon": None, "silo_delta": None, "returning": 1}
    for name in ("feducb", "feducb-decentralized")
}

#: Keys inside a table that were added later, as "table.key", with their defaults.
LATER_INSIDE: dict[str, Any] = {"share.coin": "none"}

#: Most bytes of gradients, and most exchanges, of one replicate of a curve with experts.
MAX_GRADIENTS, MAX_EXCHANGES = 4 * 2**30, 2**28


def check_experts(curves: Iterable[Curve]) -> None:
    """Raise InputError if a curve with experts would not fit into memory, or take days."""
    for curve in curves:
        plan = curve.system.plan
        if plan.driver != "experts":
            continue
        if plan.exchanges > MAX_EXCHANGES:
            raise InputError(
                f"{plan.exchanges:.3g} exchanges are too many to simulate, at most "
                f'{MAX_EXCHANGES:.3g}; a larger phase_length needs fewer (curve "{curve.label}")'
            )
        needed_bytes = plan.gradient_memory()
        if needed_bytes > MAX_GRADIENTS:
            raise InputError(
                f"gradients of all clients would take {needed_bytes / 1e9:.3g} GB, at most "
                f"{MAX_GRADIENTS / 1e9:.3g} GB; fewer silos or experts need less "
                f'(curve "{curve.label}")'
            )


def experiment_from_spec(spec: dict[str, Any]) -> Experiment:
    """Build the experiment that a spec describes.

    Parameters
    ----------
    spec : dict
        The tables of a TOML file: "name", "horizon", "environment" (a table with a kind), "curve"
        (a list of tables), and optional top-level keys. It is not modified.

    Returns
    -------
    Experiment
        The checked experiment.

    Raises
    ------
    InputError
        If a key is missing or unknown, a value is out of range, or a curve does not fit the
        environment. The message names key and curve.
    """
    for key in spec:
        if key not in TOP_KEYS and key in ("federation", "system"):
            raise InputError(
                f'unknown key "{key}": this is the spec of a deployment, for `fastfed deploy '
                "rehearse` and `fastfed deploy new`"
            )
        if key not in TOP_KEYS:
            raise InputError(f'unknown key "{key}"{listed(key, TOP_KEYS, "a spec may have")}')
    for key in ("name", "horizon", "environment", "curve"):
        if key not in spec:
            example = {
                "environment": ': write a table [environment], such as kind = "sphere"',
                "curve": ": write [[curve]] above the keys of each system",
            }.get(key, "")
            raise InputError(f"{key} is required{example}")
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
    """Return the tables of a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read or is not TOML. The message names line and column.
    """
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
    except ValueError as error:  # an invalid path, such as one with a null character
        raise InputError(f"{path}: cannot be read ({error})") from None
    try:
        tables: dict[str, Any] = parsed(tomllib.loads, text)
        return tables
    except InputError as error:
        raise InputError(f"{path}: not TOML: {error}{_remedy(text, str(error))}") from None


def _remedy(text: str, error: str) -> str:
    """Return advice for a spec ``text`` that the TOML parser refused with the message ``error``.

    Return an empty text if the mistake is not a common one.
    """
    line_number = re.search(r"at line ([0-9]+)", error)
    lines = text.splitlines()
    line = (
        lines[int(line_number[1]) - 1] if line_number and int(line_number[1]) <= len(lines) else ""
    )
    if re.search(r'"[^"]*\\[^"]*"', line):
        return ": write a path with \\ in single quotes"
    if re.search(r"=\s*[+-]?[0-9]+,[0-9]", line):
        return ": numbers have a decimal point and no commas (1.5, 10_000); a list has brackets"
    if re.search("[\u2018-\u201f\u00ab\u00bb]", line):
        return ': write straight quotes, "..."'
    if fraction := re.search(r"=\s*([0-9.]+)\s*/\s*([0-9.]+)\s*(#.*)?$", line):
        return (
            f": write the quotient of {fraction[1]} and {fraction[2]} as one number, such as 1e-3"
        )
    if re.search(r"Cannot declare \('curve',\)", error) or (
        "Cannot mutate" in error and re.match(r"\s*\[\[?curve\]", line)
    ):
        return ": write [[curve]], with two brackets, above each curve"
    if "Illegal character" in error and line.count('"') % 2:
        return ": close the text with a quote"
    if "Cannot overwrite a value" in error and "=" in line:
        return f": {line.partition('=')[0].strip()} may be given once only"
    if re.search(r"[0-9]\s*(\^|\*\*)\s*-?[0-9]", line):
        return ": write a power of ten as 1e-6"
    if word := re.search(r"=\s*(True|False|None)\b", line):
        other = "leave the key out" if word[1] == "None" else f"write {word[1].lower()}"
        return f": {other} instead of {word[1]}"
    if word := re.search(r"=\s*([A-Za-z][\w-]*)\s*(#.*)?$", line):
        return f': write a text in quotes, "{word[1]}"'
    if len(lines) > 1 and re.match(r"[\w \"]+[,;\t]", lines[0]) and "=" not in lines[0]:
        return (
            ": it looks like a table; a spec names it by key data of its environment (docs/spec.md)"
        )
    if text.lstrip().startswith("{") or re.match(r"\s*[A-Za-z_]+:\s", text):
        return ": write key = value, as in the output of `fastfed spec show zc24-fig3a`"
    return ""


#: Environment keys that name files. Relative names in a spec refer to the folder of the spec.
PATH_KEYS = ("path", "data", "losses")


def find_beside(environment: Any, path: Path) -> None:
    """Resolve file names in an environment's table, in place.

    ``path`` is the spec file. A relative name becomes the path of the file in the folder of the
    spec, if such a file exists there. Relative names in a list always become paths in this folder.
    """
    if not isinstance(environment, dict):
        return
    for key in PATH_KEYS:
        value = environment.get(key)
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            environment[key] = [str(path.parent / name) for name in value]
        if isinstance(value, str) and value != "digits" and not Path(value).is_absolute():
            file = path.parent / value
            environment[key] = str(file if os.path.exists(file) else Path(value))


def load_experiment(path: str | Path, **overrides: Any) -> Experiment:
    """Build the experiment that a spec file describes.

    Parameters
    ----------
    path : str or Path
        TOML file. Data files that it names may be given relative to its folder.
    **overrides
        Values that replace top-level keys of the file, such as ``replicates`` or ``seed``. A value
        of None leaves the key of the file unchanged.

    Returns
    -------
    Experiment
        The checked experiment.

    Raises
    ------
    InputError
        If the file cannot be read or is not TOML, and as in `experiment_from_spec`. The message
        names the file.
    """
    path = Path(path)
    spec = read_toml(path)
    spec.update({k: v for k, v in overrides.items() if v is not None})
    find_beside(spec.get("environment"), path)
    try:
        return experiment_from_spec(spec)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
