"""A system ready to play, and the registry's entry that makes it from the keys of a curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import msgspec
import numpy as np

from fastfed._display import Displayed
from fastfed._validate import InputError, nearest, show
from fastfed.privacy.account import accounted, same, verify
from fastfed.privacy.certificate import Certificate, Condition, deployed

#: Of a plan whose kind fastfed knows no account of, or that carries no claim.
ON_WORD = Condition(
    "fastfed recomputes the guarantee from the plan (here it is its package's own word)", False
)


@singledispatch
def account(plan: Any, problem: Any) -> Certificate:
    """The certificate of a plan that is put to a problem: the only maker of certificates.

    Every number in it is computed from those that drivers and parties execute, see
    `fastfed.privacy.account`. ``problem`` is the ProblemSpec, what is guaranteed of the data.
    InputError for a kind of plan that is not registered (``account.register``).
    """
    raise InputError(f"plan must be of a kind that fastfed accounts for, got {show(plan)}")


@dataclass(frozen=True, repr=False)
class System(Displayed):
    """One curve of an experiment: what it plays, and what it promises."""

    algorithm: str
    #: Plain data: what parties and drivers execute. It has silos, horizon and protocol.
    plan: Any
    certificate: Certificate
    #: What can be drawn beside the curve, by name, at rounds (C,).
    bounds_at: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    def __post_init__(self) -> None:
        """The certificate must say what the plan's numbers give; InputError where it does not.

        Of a plan that fastfed cannot account for, the certificate says that it has not.
        """
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
    """The certificate, if it says what the plan's numbers give.

    That of an unknown kind of plan, or of one without a claim, becomes "conditional".
    """
    claim = getattr(plan, "privacy", None)
    found = None if claim is None else accounted(plan)
    if claim is None or found is None:
        if certificate.exact is None or ON_WORD in certificate.conditions:
            return certificate
        conditions = (*certificate.conditions, ON_WORD)
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
    """An entry of a registry: one system of a paper."""

    id: str
    paper: str
    summary: str
    keys: type[msgspec.Struct]
    build: Callable[[Any, Any], Any]
    #: Config that a deployment takes unless it says otherwise, where the simulation has a shortcut.
    deployed: tuple[tuple[str, Any], ...] = ()

    def make(self, keys: dict[str, Any], problem: Any) -> Any:
        """Build the system for the keys of one curve; InputError names a bad key."""
        return self.make_checked(self.check(keys), problem)

    def make_checked(self, config: Any, problem: Any) -> Any:
        """Build the system for a config that `check` returned."""
        try:
            made = self.build(config, problem)
        except OverflowError as error:
            raise InputError(f"{self.id} cannot be planned: a number is too large") from error
        if not isinstance(made, System):
            raise InputError(f'algorithm "{self.id}" must build a System, got {show(made)}')
        return made

    def check(self, keys: dict[str, Any]) -> Any:
        """The keys as a struct, defaults filled in; InputError names a bad one."""
        known = self.keys.__struct_fields__
        for key in keys:
            if key not in known:
                raise InputError(f'unknown key "{key}" for {self.id}{nearest(key, known)}')
        try:
            return msgspec.convert(keys, self.keys)
        except msgspec.ValidationError as error:
            # A check of ours keeps its own sentence; msgspec's type errors name the key.
            cause = error.__cause__
            if isinstance(cause, InputError):
                raise cause from None
            raise InputError(_type_error(error)) from None


def _type_error(error: msgspec.ValidationError) -> str:
    """msgspec's words, with the key in front: `epsilon must be float, got str`."""
    text = str(error)
    what, _, where = text.partition(" - at `$.")
    key = where.rstrip("`")
    what = what.replace("Expected `", "must be ").replace("`", "").replace(" | null", "")
    return f"{key} {what}" if key else text
