"""Plain policies: any class with ``select(actions)`` and ``observe(reward)``, beside our systems.

Such a policy is Python, runs a silo and a round at a time, and has no certificate: nothing is known
of what it keeps or tells.
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

#: What a policy's class may ask for by the names of its parameters.
OFFERED = ("dimension", "horizon", "silos", "silo", "seed")


@runtime_checkable
class Policy(Protocol):
    """What a plain policy has; it need not inherit from this."""

    def select(self, actions: np.ndarray, /) -> int:
        """Choose an action.

        Parameters
        ----------
        actions : ndarray, shape (K, d)
            Features in float64, the policy's own to keep.

        Returns
        -------
        int
            Index of the action to play, 0 to K - 1.
        """
        ...

    def observe(self, reward: float, /) -> object:
        """Learn the reward of the action last selected.

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
        "module:name" of a class with `select` and `observe`, or of a function that makes one;
        from Python the class itself. Each silo has an object of its own. Parameters named
        dimension, horizon, silos, silo and seed get the problem's sizes, the silo's number and a
        seed of each silo and replicate, from which all its randomness must come.
    parameters : table
        Further arguments of the class.
    shared : bool, default False
        One object for all silos, which act one after the other in every round.
    source : str, optional
        Digest of the class's source, which results are kept by. It is computed; a spec that has it
        runs with that source only.
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
        found = digest(policy_class(name))
        if self.source not in (None, found):
            raise InputError(
                f"policy {name} has another source than the spec asks for ({self.source}), "
                f"got {found}: take the key source out to run the new one"
            )
        msgspec.structs.force_setattr(self, "policy", name)
        msgspec.structs.force_setattr(self, "source", found)


def name_of(policy: Any) -> str:
    """ "module:name" of a class or function; InputError where it cannot be imported again."""
    if isinstance(policy, str):
        return policy
    module, name = getattr(policy, "__module__", None), getattr(policy, "__qualname__", "")
    if not callable(policy) or not name:
        raise InputError(
            f'policy must be a class, or "module:name" of one, got {show(policy)}; an object would '
            "carry what it learned from one replicate to the next"
        )
    text = f"{module}:{name}"
    if not name.isidentifier() or import_function(text) is not policy:
        raise InputError(
            f"policy must be a class that can be imported by its name, got {text}: define it at "
            "the top of a module"
        )
    return text


def policy_class(name: str) -> Callable[..., Any]:
    """The class or function that "module:name" names."""
    try:
        found = import_function(name)
    except InputError as error:
        raise InputError(str(error).replace("function", "policy", 1)) from None
    if not callable(found):
        raise InputError(f"policy must be a class, or a function that makes one, got {show(found)}")
    return found


def digest(made_by: Any) -> str:
    """Digest of the source of a function, or of a class and those that it inherits from."""
    text = []
    for part in inspect.getmro(made_by) if inspect.isclass(made_by) else (made_by,):
        try:
            text.append(inspect.getsource(part))
        except (OSError, TypeError):  # compiled, or typed into an interpreter
            text.append(f"{part.__module__}:{getattr(part, '__qualname__', '')}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """Plan of a plain policy: what is made for each silo, and how often it acts."""

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
        """The policy of one silo, as it is before the first round."""
        found = policy_class(self.policy)
        key = rng.key(seed, 0, replicate, silo, 2**32 - 1) >> 1
        offered = dict(
            zip(OFFERED, (self.dimension, self.horizon, self.silos, silo, key), strict=True)
        )
        try:
            wanted = inspect.signature(found).parameters
        except (TypeError, ValueError):  # a compiled class may have none
            wanted = {}  # type: ignore[assignment]
        given = {name: value for name, value in offered.items() if name in wanted}
        try:
            made = found(**{**given, **self.parameters})
        except (TypeError, ValueError) as error:
            raise InputError(
                f"policy {self.policy} cannot be made: {error}; its arguments stand in the key "
                "parameters"
            ) from error
        if not isinstance(made, Policy):
            raise InputError(
                f"policy {self.policy} must make objects with select(actions) and "
                f"observe(reward), got {_lacking(made)}"
            )
        return made


def _lacking(made: object) -> str:
    """What an object is, and which of the two methods it has not."""
    lacks = [name for name in ("select", "observe") if not hasattr(made, name)]
    return f"a {type(made).__name__} without {' and '.join(lacks)}"


def build(config: PolicyConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of a plain policy; one is made, to see that it can be."""
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
    """Unknown privacy is never a number."""
    text = "what this policy keeps and tells is its own: fastfed knows nothing about it"
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
    """A policy whose choices are checked. It gets copies of the actions, which it may keep."""

    name: str
    policy: Policy

    def select(self, actions: np.ndarray) -> int:
        index = self.policy.select(np.array(actions, np.float64))
        whole = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
        if not whole or not 0 <= index < len(actions):
            raise InputError(
                f"policy {self.name} must select an integer from 0 to {len(actions) - 1}, got "
                f"{show(index)}: the index of an action"
            )
        return int(index)

    def observe(self, reward: float) -> None:
        self.policy.observe(float(reward))


def run_steps(
    environment: environments.Environment,
    plan: PolicyPlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default), one silo and round at a time."""
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
    """Run rounds 1..last (all by default); there is no faster way than step by step."""
    made = run_steps(environment, plan, checkpoints, last=last, progress=progress)
    return made if record else replace(made, actions=None, rewards=None)


def memory(
    plan: PolicyPlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Terms of one curve: what is noted of every round. What policies keep is not known."""
    of = f"{spaced(plan.silos)} silos x {spaced(plan.horizon)} rounds"
    return [
        Term("actions and rewards of plain policies", 12 * plan.silos * plan.horizon, of, "rounds"),
        Term("policies as objects", 10 * OBJECT * plan.silos, f"{spaced(plan.silos)} silos"),
        Term("counts at checkpoints", 8 * (plan.silos + 4) * checkpoints, spaced(checkpoints)),
    ]


DRIVER = Driver(run, run_steps, memory)
