"""The public names of ``import fastfed``. Submodules list all other public names.

Each name is loaded at its first use, so that ``import fastfed`` alone does not import NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from fastfed._validate import InputError as InputError
    from fastfed.advice.planner import plan as plan
    from fastfed.bandits.policy import LinUCB as LinUCB
    from fastfed.experiments.reproduction import reproduce as reproduce
    from fastfed.privacy.audit.bounds import AuditResult
    from fastfed.privacy.certificate import Certificate as Certificate
    from fastfed.privacy.mechanisms.catalogue import calibrate as calibrate
    from fastfed.privacy.sensitivity import Budget as Budget
    from fastfed.reporting.comparison import compare as compare
    from fastfed.reporting.page import report as report
    from fastfed.results.merging import merge as merge
    from fastfed.results.results import Results as Results
    from fastfed.simulation.dispatch import RunBatch
    from fastfed.simulation.experiment import Experiment
    from fastfed.simulation.run import load as load
    from fastfed.simulation.run import simulate as simulate
    from fastfed.simulation.systems import make_system as make_system

__all__ = [
    "Budget",
    "Certificate",
    "InputError",
    "LinUCB",
    "Results",
    "audit",
    "calibrate",
    "compare",
    "load",
    "make_system",
    "merge",
    "plan",
    "report",
    "reproduce",
    "run",
    "simulate",
]

#: The module that defines each public name, for names not defined here.
_MODULES = {
    "Budget": "fastfed.privacy.sensitivity",
    "Certificate": "fastfed.privacy.certificate",
    "InputError": "fastfed._validate",
    "LinUCB": "fastfed.bandits.policy",
    "Results": "fastfed.results.results",
    "calibrate": "fastfed.privacy.mechanisms.catalogue",
    "compare": "fastfed.reporting.comparison",
    "load": "fastfed.simulation.run",
    "make_system": "fastfed.simulation.systems",
    "merge": "fastfed.results.merging",
    "plan": "fastfed.advice.planner",
    "report": "fastfed.reporting.page",
    "reproduce": "fastfed.experiments.reproduction",
    "simulate": "fastfed.simulation.run",
}

# Hidden from type checkers, to which any attribute would otherwise exist with type Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


P = ParamSpec("P")
R = TypeVar("R")


def _with_example(example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function by `_validate.with_example`, which is imported at its first call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **keys: P.kwargs) -> R:
            from fastfed._validate import with_example

            return with_example(example)(function)(*arguments, **keys)

        return call

    return decorate


@_with_example('fastfed.run("spec.toml", "out")')
def run(
    experiment: Experiment | str | Path,
    folder: str | Path,
    *,
    replicates: int | tuple[int, int] | None = None,
    seed: int | None = None,
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    memory_limit: int | str | None = None,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Run an experiment, store its results in an output folder, and return the results.

    Each replicate of a curve is committed to the store as soon as it is simulated. Repeating the
    call simulates only missing replicates. `report` writes a report with figures and tables into
    the same folder.

    Parameters
    ----------
    experiment : str, Path or Experiment
        Spec file (TOML), or the result of `fastfed.simulation.load_experiment`.
    folder : str or Path
        Output folder for ``results.sqlite``. Only one process may write to it at a time.
    replicates : int or (int, int), optional
        Replaces the value in a spec file. A pair is a range: (5, 10) simulates replicates 5 to 9,
        one job of several, which `fastfed.merge` puts together.
    seed : int, optional
        Replaces the value in a spec file.
    quick : bool
        Run a short version of a spec file: two replicates and a tenth of the horizon.
    changes : mapping, optional
        Values that replace those in a spec file, by key, such as {"horizon": 500,
        "curve.LDP.epsilon": 2.0}.
    threads : int, optional
        Default: all processors. Results do not depend on it.
    engine : {"local", "processes", "dask"}
        Threads of this process, processes of this machine, or a dask cluster. Results do not
        depend on it.
    scheduler : str, optional
        Address of a dask cluster; by default one of this machine is started.
    memory_limit : int or str, optional
        Memory for the run, in bytes or as a text such as "40GB". Default: the available memory. If
        using all threads would exceed the limit, fewer runs or fewer curves are simulated at once.
    on_start : callable, optional
        Called with the remaining batches of runs and the number of threads (0 if a cluster has no
        workers yet).
    progress : callable, optional
        Called with the number of agent-rounds simulated since the last call, from any thread.

    Returns
    -------
    Results

    Raises
    ------
    InputError
        If the spec is invalid, the folder holds a different experiment, another process writes to
        the folder, or the run does not fit into memory. Nothing is written in these cases.
    EngineError
        If workers failed on some replicates. All other replicates are committed first.
    OutOfMemory
        If memory runs out during the run (a subclass of MemoryError). Replicates that were
        simulated stay in the store.
    """
    from fastfed._validate import InputError, show
    from fastfed._validate import folder as path_of
    from fastfed.experiments.specs import load_spec
    from fastfed.simulation.dispatch import Resources
    from fastfed.simulation.experiment import Experiment
    from fastfed.simulation.run import run as run_experiment

    folder = path_of(folder)
    if isinstance(experiment, (str, Path)):
        experiment = load_spec(
            experiment, replicates=replicates, seed=seed, quick=quick, changes=changes
        )
    elif quick or replicates is not None or seed is not None or changes:
        raise InputError(
            "replicates, seed, quick and changes are for a spec file, not for an Experiment"
        )
    if not isinstance(experiment, Experiment):
        raise InputError(
            f"experiment must be the name of a spec file (TOML), or an Experiment, got "
            f"{show(experiment)}: tables of Python are run by fastfed.simulate"
        )
    return run_experiment(
        experiment,
        folder,
        Resources(threads, engine, scheduler, memory_limit),
        on_start=on_start,
        progress=progress,
    )


class _Claim(TypedDict, total=False):
    """Further keyword arguments of `audit` for a function: the claim, and the test statistic."""

    epsilon: float
    delta: float
    statistic: Callable[[Any], float] | None
    confidence: float
    name: str | None


@overload
def audit(mechanism: str, *, trials: int | None = None, seed: int = 1) -> AuditResult: ...


@overload
def audit(
    mechanism: Callable[..., Any],
    data: Any,
    neighbour: Any,
    *,
    epsilon: float,
    delta: float,
    statistic: Callable[[Any], float] | None = None,
    trials: int | None = None,
    seed: int = 1,
    confidence: float = 0.95,
    name: str | None = None,
) -> AuditResult: ...


def audit(
    mechanism: str | Callable[..., Any],
    data: Any = None,
    neighbour: Any = None,
    *,
    trials: int | None = None,
    seed: int = 1,
    **claim: Unpack[_Claim],
) -> AuditResult:
    """Audit a privacy claim by running a mechanism on two neighbouring datasets.

    The mechanism runs ``trials`` times on each dataset. The result is a lower bound on the true
    epsilon that holds with the stated confidence. A mechanism is either the name of a built-in
    audit or a function. For a function, also pass datasets and the claim (epsilon and delta).

    Parameters
    ----------
    mechanism : str or callable
        Name of a built-in audit of a mechanism, a system, or a planted fault, as printed by
        `fastfed audit list`; its datasets and claim are built in. Or a function ``mechanism(data)``
        or ``mechanism(data, rng)``, with a NumPy generator ``rng``, that returns a number or an
        array of constant shape.
    data, neighbour : object
        For a function: two neighbouring datasets, passed to it unchanged. The bound is about this
        pair, so choose a worst-case pair.
    trials : int, optional
        Number of runs on each dataset, >= 2. Default: enough for a verdict; 10 000 for a function.
        The bound is at most about ln(trials / 8).
    seed : int
        Seed of all randomness. For a function, seed of the generator ``rng``.
    epsilon, delta : float
        For a function: the claim, epsilon >= 0 and delta in [0, 1).
    statistic : callable, optional
        For a function: maps one output to a number. The best choice is the log likelihood ratio of
        the two datasets. Default: a projection of the output, see
        `fastfed.privacy.audit.bounds.audit_function`.
    confidence : float
        For a function: confidence of the bound, in (0, 1). Default: 0.95.
    name : str, optional
        For a function: its name in the result.

    Returns
    -------
    AuditResult
        ``verdict`` is "caught" if the lower bound is above the claim; "pass" proves no privacy.

    Raises
    ------
    InputError
        If a name is unknown, a value is out of range, or an output is not finite.

    Notes
    -----
    Source: Jagielski et al. 2020, Section 4; Clopper and Pearson 1934.

    Examples
    --------
    >>> import numpy as np
    >>> import fastfed
    >>> fastfed.audit("fault-natural-log").verdict
    'caught'
    >>> def noisy_sum(data, rng):
    ...     return np.sum(data) + rng.laplace(scale=0.5)
    >>> fastfed.audit(noisy_sum, [0.0, 0.3], [1.0, 0.3], epsilon=1.0, delta=0.0).verdict
    'caught'
    """
    if isinstance(mechanism, str):
        from fastfed._validate import InputError
        from fastfed.simulation.audit import run_audit

        if data is not None or neighbour is not None or claim:
            raise InputError(
                f'audit "{mechanism}" has built-in datasets and claim: give trials and seed only'
            )
        return run_audit(mechanism, trials, seed)
    from fastfed._validate import InputError, unknown_argument
    from fastfed.privacy.audit.bounds import audit_function

    for key in claim:
        if key not in _Claim.__annotations__:
            raise InputError(unknown_argument(key, _Claim.__annotations__))
    for key in ("epsilon", "delta"):
        if key not in claim:
            raise InputError(
                f"{key} is required to audit a function: write fastfed.audit(f, data, neighbour, "
                "epsilon=1.0, delta=0.0)"
            )
    if trials is None:
        return audit_function(mechanism, data, neighbour, seed=seed, **claim)
    return audit_function(mechanism, data, neighbour, trials=trials, seed=seed, **claim)
