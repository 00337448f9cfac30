"""The names that ``import fastfed`` offers; all others are in submodules that list them.

Each name is loaded when it is first used: ``import fastfed`` alone imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

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
    "plan",
    "report",
    "reproduce",
    "run",
    "simulate",
]

#: Modules of the names that are not defined here.
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
    "plan": "fastfed.advice.planner",
    "report": "fastfed.reporting.page",
    "reproduce": "fastfed.experiments.reproduction",
    "simulate": "fastfed.simulation.run",
}

# Type checkers must not see it: to them every name would be there, with type Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(
    experiment: Experiment | str | Path,
    folder: str | Path,
    *,
    replicates: int | None = None,
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
    """Run an experiment into an output folder, and read its results.

    Every replicate of a curve is committed when it is simulated. The same call again simulates
    what is missing and repeats nothing. `report` writes page, pictures and tables beside the
    results.

    Parameters
    ----------
    experiment : str, Path or Experiment
        Spec file (TOML), or what `fastfed.simulation.load_experiment` makes of one.
    folder : str or Path
        Output folder; it gets ``results.sqlite``, which only this process writes.
    replicates, seed : int, optional
        Replace those of a spec file.
    quick : bool
        A first look at a spec file: two replicates, a tenth of the horizon.
    changes : mapping, optional
        Values by key in place of a spec file's, such as {"horizon": 500, "curve.LDP.epsilon": 2.0}.
    threads : int, optional
        Default: all processors. Results do not depend on it.
    engine : {"local", "processes", "dask"}
        Threads of this process, processes of this machine, or a dask cluster. Results do not
        depend on it.
    scheduler : str, optional
        Address of a dask cluster; by default one of this machine is started.
    memory_limit : int or str, optional
        Bytes, or a text such as "40GB", that the run may take; by default what is available. If
        all threads would take more, fewer runs are simulated at once, or fewer curves together.
    on_start : callable, optional
        Called with what is left and the number of threads (0: a cluster has no workers yet).
    progress : callable, optional
        Called from any thread with the number of agent-rounds simulated since the last call.

    Returns
    -------
    Results

    Raises
    ------
    InputError
        Where the spec is wrong, where the folder holds another experiment or another process
        writes into it, and where the run does not fit into memory. Nothing is written then.
    EngineError
        Where workers failed on some curve replicates, after the others were committed.
    OutOfMemory
        A MemoryError, where memory ends all the same. What was simulated is kept.
    """
    from fastfed._validate import InputError, show
    from fastfed._validate import folder as path_of
    from fastfed.experiments.specs import load_spec
    from fastfed.simulation.experiment import Experiment
    from fastfed.simulation.run import run as run_experiment

    folder = path_of(folder)
    if isinstance(experiment, (str, Path)):
        experiment = load_spec(
            experiment, replicates=replicates, seed=seed, quick=quick, changes=changes
        )
    elif quick or replicates is not None or seed is not None or changes:
        raise InputError(
            "replicates, seed, quick and changes go with a spec file, not with an Experiment"
        )
    if not isinstance(experiment, Experiment):
        raise InputError(
            f"experiment must be the name of a spec file (TOML), or an Experiment, got "
            f"{show(experiment)}: tables of Python are run by fastfed.simulate"
        )
    return run_experiment(
        experiment,
        folder,
        threads=threads,
        engine=engine,
        scheduler=scheduler,
        memory_limit=memory_limit,
        on_start=on_start,
        progress=progress,
    )


class _Claim(TypedDict, total=False):
    """Further arguments of `audit` for a function: the claim, and how to look at outputs."""

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
    """Audit a privacy claim by runs on two neighbouring datasets.

    The implementation is run ``trials`` times on each dataset. The result is a lower bound on the
    true epsilon, which holds with the stated confidence. A mechanism is either one of fastfed's
    own audits, by name, or a function with the claim to audit.

    Parameters
    ----------
    mechanism : str or callable
        Name of an audit, as `fastfed audit list` prints them: a mechanism, a system, or a planted
        fault; it brings datasets and claim. Or ``mechanism(data)``, or ``mechanism(data, rng)``
        with a NumPy generator, which returns a number or an array of one shape.
    data, neighbour : object
        Of a function: two neighbouring datasets, handed to it as they are. The bound is about
        this pair, so take the worst one.
    trials : int, optional
        Runs on each dataset, >= 2. Default: enough for a verdict, or 10 000 of a function. The
        bound is at most about ln(trials / 8).
    seed : int
        Of all randomness: of a function, of the generator that it gets.
    epsilon, delta : float
        Of a function: the claim, epsilon >= 0 and delta in [0, 1).
    statistic : callable, optional
        Of a function: from one output to a number; the best is the log likelihood ratio of the two
        datasets. Default: a projection of the output, see
        `fastfed.privacy.audit.bounds.audit_function`.
    confidence : float
        Of a function: in (0, 1), by default 0.95.
    name : str, optional
        Of a function: the name in the result.

    Returns
    -------
    AuditResult
        ``verdict`` is "caught" if the lower bound is above the claim; "pass" proves no privacy.

    Raises
    ------
    InputError
        For an unknown name, values out of range, and outputs that are not finite numbers.

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
                f'audit "{mechanism}" brings its own datasets and claim: give trials and seed alone'
            )
        return run_audit(mechanism, trials, seed)
    from fastfed.privacy.audit.bounds import audit_function

    if trials is None:
        return audit_function(mechanism, data, neighbour, seed=seed, **claim)
    return audit_function(mechanism, data, neighbour, trials=trials, seed=seed, **claim)
