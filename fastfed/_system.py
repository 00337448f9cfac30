"""A system to simulate or deploy, and the registry entry that builds it from a curve's keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import msgspec
import numpy as np

from fastfed._display import Displayed
from fastfed._validate import InputError, nearest, plain, show, unquoted
from fastfed.privacy.account import accounted, same, verify
from fastfed.privacy.certificate import Certificate, Condition, deployed

#: Fails for a plan whose kind fastfed cannot account for, or that carries no claim.
UNVERIFIED = Condition(
    "fastfed recomputes the guarantee from the plan (here it is its package's own word)", False
)


@singledispatch
def account(plan: Any, problem: Any) -> Certificate:
    """The certificate of a plan on a problem: the only maker of certificates.

    Every number in it is computed from those that drivers and parties execute, see
    `fastfed.privacy.account`. ``account.register`` adds a kind of plan.

    Parameters
    ----------
    plan : Plan, PeerPlan, PhasePlan, ExpertPlan or a registered kind
        Plain data that drivers and parties execute.
    problem : ProblemSpec
        Sizes, and guarantees about the data.

    Returns
    -------
    Certificate

    Raises
    ------
    InputError
        For a kind of plan that is not registered.
    """
    raise InputError(f"plan must be of a kind that fastfed accounts for, got {show(plan)}")


@dataclass(frozen=True, repr=False)
class System(Displayed):
    """One curve of an experiment: its plan and the certificate of that plan.

    Parameters
    ----------
    algorithm : str
        The id of the registry entry that built it.
    plan : Plan, PeerPlan, PhasePlan or ExpertPlan
        Plain data that parties and drivers execute. It has silos, horizon and protocol.
    certificate : Certificate
        The guarantee, for noise from seeded streams. It must agree with the plan's numbers. For a
        plan that fastfed cannot account for, the certificate's status becomes "conditional".
    bounds_at : callable, optional
        From rounds (C,) to the bound curves that a figure may draw, by name, each of length C.

    Raises
    ------
    InputError
        If the certificate states another epsilon, budget or relation than the plan.
    """

    algorithm: str
    plan: Any
    certificate: Certificate
    bounds_at: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    def __post_init__(self) -> None:
        """Compare the certificate with the plan's numbers."""
        object.__setattr__(self, "certificate", agreed(self.plan, self.certificate))

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"<{self.algorithm}, {plan.protocol.id}: {plan.silos} silos, {plan.horizon} rounds, "
            f"privacy {self.certificate.status}>"
        )

    @property
    def deployed_certificate(self) -> Certificate:
        """The certificate where the parties draw their noise from the operating system."""
        return deployed(self.certificate)


def agreed(plan: Any, certificate: Certificate) -> Certificate:
    """Return the certificate, if it states what the plan's numbers give.

    The certificate of an unknown kind of plan, or of one without a claim, becomes "conditional".
    """
    claim = getattr(plan, "privacy", None)
    found = None if claim is None else accounted(plan)
    if claim is None or found is None:
        if certificate.exact is None or UNVERIFIED in certificate.conditions:
            return certificate
        conditions = (*certificate.conditions, UNVERIFIED)
        return msgspec.structs.replace(certificate, status="conditional", conditions=conditions)
    verify(plan)
    stated, budget = certificate.exact, claim.budget
    if stated is not None and not same((stated.epsilon,), found[:1]):
        raise InputError(
            f"the plan's noise gives epsilon {found[0]:.6g}, its certificate says "
            f"{stated.epsilon:.6g}"
        )
    asked = None if budget is None else (budget.epsilon, budget.delta)
    said = certificate.claimed and (certificate.claimed.epsilon, certificate.claimed.delta)
    if asked != said:
        raise InputError(f"the plan claims {show(asked)}, its certificate {show(said)}")
    if budget is not None and certificate.relation != budget.relation:
        raise InputError(
            f'the plan claims relation "{budget.relation}", its certificate '
            f'"{certificate.relation}"'
        )
    return certificate


@dataclass(frozen=True)
class Algorithm:
    """A registry entry: one system of a paper.

    Parameters
    ----------
    id : str
        The name that a spec's ``algorithm`` key uses.
    paper : str
        The id of the paper, or "none".
    summary : str
        One line for listings.
    config : type of msgspec.Struct
        The keys of a curve with their types and defaults; its ``__post_init__`` checks values.
    build : callable
        From an instance of ``config`` and a ProblemSpec to a System.
    deployed : tuple of (str, value), optional
        Keys that a deployment sets unless told otherwise, where a simulation has a shortcut.
    """

    id: str
    paper: str
    summary: str
    config: type[msgspec.Struct]
    build: Callable[[Any, Any], Any]
    deployed: tuple[tuple[str, Any], ...] = ()

    def make(self, keys: dict[str, Any], problem: Any) -> Any:
        """Build the system of one curve.

        Parameters
        ----------
        keys : dict
            The curve's keys, as in a spec.
        problem : ProblemSpec
            Sizes, and guarantees about the data.

        Returns
        -------
        System

        Raises
        ------
        InputError
            For an unknown key or a bad value, which it names, or if ``build`` returns no System.
        """
        return self.make_checked(self.check(keys), problem)

    def make_checked(self, config: Any, problem: Any) -> Any:
        """Build the system for a config that `check` returned."""
        try:
            made = self.build(config, problem)
        except InputError:
            raise
        except (ArithmeticError, ValueError, MemoryError) as error:
            reason = "a number is too large" if isinstance(error, OverflowError) else error
            raise InputError(
                f"{self.id} cannot be planned with these numbers: {reason or 'no memory'}"
            ) from error
        if not isinstance(made, System):
            raise InputError(f'algorithm "{self.id}" must build a System, got {show(made)}')
        return made

    def settled(self, config: Any, problem: Any) -> Any:
        """Return a checked config with the defaults that depend on sizes filled in: none here."""
        return config

    def check(self, keys: dict[str, Any]) -> Any:
        """Convert a curve's keys to a ``config``, with defaults filled in.

        Raises
        ------
        InputError
            For an unknown key or a bad value, which it names.
        """
        known = self.config.__struct_fields__
        for key in keys:
            if key not in known and key == "discount":
                raise InputError(
                    f"discount is no key of {self.id}: a release's noise is made for plain sums, "
                    "in which no row fades; what forgets is fastfed.LinUCB, which is not private"
                )
            if key not in known:
                hint = nearest(key, known) or f"; it takes {', '.join(known)}"
                raise InputError(f'unknown key "{key[:60]}" for {self.id}{hint}')
        try:
            return msgspec.convert(plain(keys), self.config)
        except msgspec.ValidationError as error:
            # A check of ours keeps its own sentence; msgspec's type errors name the key.
            cause = error.__cause__
            if isinstance(cause, InputError):
                raise cause from None
            raise InputError(_type_error(error, keys)) from None


#: What msgspec calls the types of keys, and what a sentence does.
_TYPES = {
    "float": "a number",
    "int": "an integer",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}


def _type_error(error: msgspec.ValidationError, keys: dict[str, Any]) -> str:
    """msgspec's text with key and value: `epsilon must be a number, got 'one'`."""
    text = str(error)
    what, _, where = text.partition(" - at `$.")
    found = re.fullmatch(r"Expected `(.+)`(.*), got .+", what)
    key, value = where.rstrip("`"), keys
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            value = value[int(part)] if isinstance(value, (list, tuple)) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            found = None
            break
    if not key or found is None:
        return f"{key} {what.replace('Expected `', 'must be ').replace('`', '')}" if key else text
    types = [t for t in found[1].split(" | ") if t != "null"]
    wanted = " or ".join(_TYPES.get(t, t) for t in types)
    remedy = unquoted(value) if {"float", "int"} & set(types) else ""
    return f"{key} must be {wanted}{found[2]}, got {show(value)}{remedy}"
