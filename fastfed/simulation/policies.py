"""Plain policies: user classes with ``select(actions)`` and ``observe(reward)``, for comparison.

A policy is Python code that runs one silo and round at a time. It has no privacy certificate,
because fastfed does not know what it stores or reveals.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec
import numpy as np

from fastfed._kernels import environments, rng
from fastfed._system import System, account
from fastfed._validate import InputError, boolean, show
from fastfed.bandits import Algorithm, ProblemSpec
from fastfed.environments.python import import_function
from fastfed.privacy.certificate import Certificate, no_privacy
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.protocol import Protocol as Messages
from fastfed.simulation.driver import (
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Record,
    Term,
    run_rounds,
    spaced,
)

#: Values that are passed to a policy's class if it has parameters of these names.
OFFERED = ("dimension", "horizon", "silos", "silo", "seed")


@runtime_checkable
class Policy(Protocol):
    """Interface of plain policies. A policy need not inherit from this class."""

    def select(self, actions: np.ndarray, /) -> int:
        """Return the index of the action that the policy chooses.

        Parameters
        ----------
        actions : ndarray, shape (K, d)
            Features of the K actions in float64; a copy that the policy may store.

        Returns
        -------
        int
            Index of the chosen action, 0 to K - 1.
        """
        ...

    def observe(self, reward: float, /) -> object:
        """Receive the reward of the last selected action.

        Parameters
        ----------
        reward : float
            The reward.
        """
        ...


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a curve with a plain policy.

    Parameters
    ----------
    policy : str or class
        "module:name" of a class with `select` and `observe`, or of a function that returns such an
        object; in Python also the class itself. Each silo gets a new object. Parameters named
        dimension, horizon, silos, silo and seed receive the problem's sizes, the index of the silo,
        and a seed for this silo and replicate, from which all randomness must be drawn.
    parameters : table
        Further arguments of the class.
    shared : bool, default False
        If true, all silos share one object and act one after the other in each round.
    source : str, optional
        Digest of the class's source code, part of the experiment's identity. If it is missing, it
        is computed. A spec that contains it runs only with the source that has this digest.
    """

    policy: Any = None
    parameters: dict[str, Any] = {}
    shared: bool = False
    source: str | None = None

    def __post_init__(self) -> None:
        if self.policy is None:
            raise InputError("policy is required")
        boolean("shared", self.shared)
        name = name_of(self.policy)
        source_digest = digest(policy_class(name))
        if self.source not in (None, source_digest):
            raise InputError(
                f"policy {name} must have the source of the spec ({self.source}), got "
                f"{source_digest}: remove the key source to run the new source"
            )
        msgspec.structs.force_setattr(self, "policy", name)
        msgspec.structs.force_setattr(self, "source", source_digest)


def name_of(policy: Any) -> str:
    """Return the name "module:name" of a policy class or function, or the text itself.

    Raises InputError if the class or function cannot be imported by that name.
    """
    if isinstance(policy, str):
        return policy
    module, name = getattr(policy, "__module__", None), getattr(policy, "__qualname__", "")
    if not callable(policy) or not name:
        raise InputError(
            f'policy must be a class, or "module:name" of one, got {show(policy)}; an object would '
            "carry data from one replicate to the next"
        )
    text = f"{module}:{name}"
    if not name.isidentifier() or import_function(text) is not policy:
        raise InputError(
            f"policy must be a class that can be imported by its name, got {text}: define it at "
            "the top of a module"
        )
    return text


def policy_class(name: str) -> Callable[..., Any]:
    """Return the class or function "module:name", imported."""
    try:
        imported = import_function(name)
    except InputError as error:
        raise InputError(str(error).replace("function", "policy", 1)) from None
    if not callable(imported):
        raise InputError(
            f"policy must be a class, or a function that makes one, got {show(imported)}"
        )
    return imported


def digest(function: Any) -> str:
    """Return the digest of the source code of a function, or of a class and its base classes."""
    sources = []
    for class_or_function in inspect.getmro(function) if inspect.isclass(function) else (function,):
        try:
            sources.append(inspect.getsource(class_or_function))
        except (OSError, TypeError):  # compiled code, or typed into an interpreter
            sources.append(
                f"{class_or_function.__module__}:{getattr(class_or_function, '__qualname__', '')}"
            )
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """Plan of a plain policy: its class, its arguments and the problem's sizes."""

    silos: int
    horizon: int
    dimension: int
    policy: str
    parameters: dict[str, Any]
    shared: bool
    protocol: Messages = PROTOCOLS["none"]
    privacy: None = None

    driver: ClassVar[str] = "policies"

    def make(self, silo: int, seed: int, replicate: int) -> Policy:
        """Return a new policy for one silo, before the first round.

        The policy's class receives the plan's ``parameters``. It also receives the sizes of the
        problem, the index of the silo and a seed, each only if the class has a parameter of that
        name (see `OFFERED`). The seed that it receives is derived from ``seed``, ``replicate`` and
        the index of the silo.
        """
        policy_type = policy_class(self.policy)
        # The policy's seed has 63 random bits, so that it fits into a signed 64-bit integer.
        policy_seed = rng.key(seed, 0, replicate, silo, 2**32 - 1) >> 1
        available_arguments = dict(
            zip(OFFERED, (self.dimension, self.horizon, self.silos, silo, policy_seed), strict=True)
        )
        try:
            signature = inspect.signature(policy_type).parameters
        except (TypeError, ValueError):  # a compiled class may have no signature
            signature = {}  # type: ignore[assignment]
        arguments = {
            name: value for name, value in available_arguments.items() if name in signature
        }
        try:
            instance = policy_type(**{**arguments, **self.parameters})
        except (TypeError, ValueError) as error:
            raise InputError(
                f"policy {self.policy} cannot be made: {error}; write its arguments into the key "
                "parameters"
            ) from error
        if not isinstance(instance, Policy):
            raise InputError(
                f"policy {self.policy} must make objects with select(actions) and "
                f"observe(reward), got {_lacking(instance)}"
            )
        return instance


def _lacking(policy: object) -> str:
    """Return a phrase that names an object's type and the methods of a policy that it lacks."""
    missing = [name for name in ("select", "observe") if not hasattr(policy, name)]
    return f"a {type(policy).__name__} without {' and '.join(missing)}"


def build(config: PolicyConfig, problem: ProblemSpec) -> System:
    """Return the system of a plain policy; create one policy object, to check that this works."""
    plan = PolicyPlan(
        silos=problem.silos,
        horizon=problem.horizon,
        dimension=problem.dimension,
        policy=config.policy,
        parameters=config.parameters,
        shared=config.shared,
    )
    plan.make(0, 0, 0)
    return System("policy", plan, account(plan, problem))


@account.register
def _(plan: PolicyPlan, problem: ProblemSpec) -> Certificate:
    """Return a certificate without privacy: fastfed cannot know what a policy reveals."""
    text = "this policy may store and reveal anything: fastfed knows nothing about it"
    return no_privacy(plan.policy, caveats=(text,))


ALGORITHM = Algorithm(
    id="policy",
    paper="none",
    summary="your own class with select(actions) and observe(reward), not private",
    config=PolicyConfig,
    build=build,
)


# ---- The driver ----------------------------------------------------------------------------------


@dataclass
class _CheckedPolicy:
    """Wrapper that checks a policy's choices, and passes it copies of the actions."""

    name: str
    policy: Policy

    def select(self, actions: np.ndarray) -> int:
        """Return the policy's choice; raise InputError if it is not the index of an action."""
        index = self.policy.select(np.array(actions, np.float64))
        is_integer = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
        if not is_integer or not 0 <= index < len(actions):
            raise InputError(
                f"policy {self.name} must select an integer from 0 to {len(actions) - 1}, got "
                f"{show(index)}: the index of an action"
            )
        return int(index)

    def observe(self, reward: float) -> None:
        """Pass a reward to the policy, as a Python float."""
        self.policy.observe(float(reward))


def run_steps(
    environment: environments.Environment,
    plan: PolicyPlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (default: all), one silo and round at a time."""
    policies = [
        _CheckedPolicy(plan.policy, plan.make(i, environment.seed, environment.replicate))
        for i in range(1 if plan.shared else plan.silos)
    ]
    players = policies * plan.silos if plan.shared else policies
    record = Record(plan.silos, plan.horizon, checkpoints)
    run_rounds(environment, players, record, last or plan.horizon, lambda _: 0, progress)
    return Outcome(
        group_regret=record.group_regret(),
        synchronisations=record.releases,
        bits_up=np.zeros(len(checkpoints)),
        bits_down=np.zeros(len(checkpoints)),
        total=np.zeros(0),
        events={},
        actions=record.actions,
        rewards=record.rewards,
    )


def run(
    environment: environments.Environment,
    plan: PolicyPlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (default: all), step by step, because policies are Python code."""
    outcome = run_steps(environment, plan, checkpoints, last=last, progress=progress)
    return outcome if record else replace(outcome, actions=None, rewards=None)


def memory(
    plan: PolicyPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Return the memory terms of one curve, without the policies' state, whose size is unknown."""
    sizes = f"{spaced(plan.silos)} silos x {spaced(plan.horizon)} rounds"
    return [
        Term(
            "actions and rewards of plain policies", 12 * plan.silos * plan.horizon, sizes, "rounds"
        ),
        Term("policies as objects", 10 * OBJECT * plan.silos, f"{spaced(plan.silos)} silos"),
        Term("counts at checkpoints", 8 * (plan.silos + 4) * checkpoints, spaced(checkpoints)),
    ]


DRIVER = Driver(run, run_steps, memory)
