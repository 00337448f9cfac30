"""Systems to simulate or deploy, and the registry entries that build them from a curve's keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np

from fastfed._display import Displayed, Located
from fastfed._validate import InputError, listed, misplaced, plain, show, unquoted, unquoted_word
from fastfed.privacy.account import accounted, same, verify
from fastfed.privacy.certificate import Certificate, Condition, deployed

#: A condition that fails for plans without a claim, and for plans that fastfed has no account for.
UNVERIFIED = Condition(
    "fastfed recomputes the guarantee from the plan (here only the plan's package states it)", False
)


@singledispatch
def account(plan: Any, problem: Any) -> Certificate:
    """Return the certificate of a plan on a problem. Every certificate comes from this function.

    Each kind of plan registers a function (``account.register``) that computes the certificate from
    the same data that drivers and parties use when they run (see `fastfed.privacy.account`). This
    body runs for objects of other kinds only.

    Parameters
    ----------
    plan : Plan, PeerPlan, PhasePlan, ExpertPlan or a registered kind
        Plain data that drivers and parties execute.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.

    Raises
    ------
    InputError
        If the kind of plan is not registered.
    """
    raise InputError(f"plan must be of a kind that fastfed accounts for, got {show(plan)}")


@dataclass(frozen=True, repr=False)
class System(Displayed, Located):
    """One curve of an experiment: its plan and the certificate of that plan.

    Parameters
    ----------
    algorithm : str
        The id of the registry entry that built the system.
    plan : Plan, PeerPlan, PhasePlan or ExpertPlan
        Plain data that parties and drivers execute, with fields silos, horizon and protocol.
    certificate : Certificate
        The guarantee of a simulation, whose noise comes from seeded streams. It must agree with the
        plan's numbers. If fastfed cannot account for the plan, the certificate's status becomes
        "conditional".
    bounds_at : callable, optional
        Function from rounds (C,) to bound curves by name, each of length C, for figures.

    Raises
    ------
    InputError
        If epsilon, budget or relation differ between the certificate and the plan.
    """

    algorithm: str
    plan: Any
    certificate: Certificate
    bounds_at: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    def __post_init__(self) -> None:
        """Check that the certificate agrees with the plan's numbers."""
        object.__setattr__(self, "certificate", agreed(self.plan, self.certificate))

    def where_is(self, name: str) -> str:
        """Return the expression that reads ``name`` from the certificate; "" if it has none."""
        if name in Certificate.__struct_fields__ or hasattr(Certificate, name):
            return f"system.certificate.{name}"
        return self.certificate.where_is(name).replace("certificate.", "system.certificate.")

    def __repr__(self) -> str:
        """Return algorithm, protocol, sizes and privacy status."""
        plan = self.plan
        return (
            f"<{self.algorithm}, {plan.protocol.id}: {plan.silos} silos, {plan.horizon} rounds, "
            f"privacy {self.certificate.status}>"
        )

    @property
    def deployed_certificate(self) -> Certificate:
        """Return the certificate of a deployment, whose noise comes from the operating system."""
        return deployed(self.certificate)


def agreed(plan: Any, certificate: Certificate) -> Certificate:
    """Return the certificate after checking that it agrees with the plan's numbers.

    If the plan has no claim, or fastfed cannot account for its kind, there is nothing to compare.
    Then a certificate with an exact guarantee becomes "conditional", with the condition
    `UNVERIFIED`, and a certificate without one is returned as it is. Raises InputError if plan and
    certificate disagree.
    """
    claim = getattr(plan, "privacy", None)
    epsilons = None if claim is None else accounted(plan)
    if claim is None or epsilons is None:
        if certificate.exact is None or UNVERIFIED in certificate.conditions:
            return certificate
        conditions = (*certificate.conditions, UNVERIFIED)
        return msgspec.structs.replace(certificate, status="conditional", conditions=conditions)
    verify(plan, epsilons)
    # The claim of a certificate is about the first privacy event of its plan (`released`).
    exact_guarantee, budget = certificate.exact, claim.budget
    if exact_guarantee is not None and not same((exact_guarantee.epsilon,), epsilons[:1]):
        raise InputError(
            f"the plan's noise gives epsilon {epsilons[0]:.6g}, its certificate says "
            f"{exact_guarantee.epsilon:.6g}"
        )
    plan_budget = None if budget is None else (budget.epsilon, budget.delta)
    certificate_budget = certificate.claimed and (
        certificate.claimed.epsilon,
        certificate.claimed.delta,
    )
    if plan_budget != certificate_budget:
        raise InputError(
            f"the plan claims {show(plan_budget)}, its certificate {show(certificate_budget)}"
        )
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
        Function from an instance of ``config`` and a ProblemSpec to a System.
    deployed : tuple of (str, value), optional
        Default values of keys in a deployment, for keys with a different default in a simulation.
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
            Keys of the curve (one system in an experiment), as in a spec.
        problem : ProblemSpec
            Sizes (silos M, rounds T, dimension d), and guarantees about the data.

        Raises
        ------
        InputError
            If a key is unknown or a value is invalid (the message names the key), or if ``build``
            does not return a System.
        """
        return self.make_checked(self.check(keys), problem)

    def make_checked(self, config: Any, problem: Any) -> Any:
        """Build the system for a config that `check` returned."""
        try:
            system = self.build(self.settled(config, problem), problem)
        except InputError:
            raise
        except (ArithmeticError, ValueError, MemoryError) as error:
            reason = "a number is too large" if isinstance(error, OverflowError) else error
            raise InputError(
                f"{self.id} cannot be planned with these numbers: {reason or 'no memory'}"
            ) from error
        if not isinstance(system, System):
            raise InputError(f'algorithm "{self.id}" must build a System, got {show(system)}')
        return system

    def settled(self, config: Any, problem: Any) -> Any:
        """Return a checked config with defaults that depend on the problem filled in.

        This class has no such defaults and returns the config unchanged.
        """
        return config

    def check(self, keys: dict[str, Any]) -> Any:
        """Convert a curve's keys to a ``config``, with defaults filled in.

        Raises
        ------
        InputError
            If a key is unknown or a value is invalid. The message names the key.
        """
        known_keys = self.config.__struct_fields__
        for key in keys:
            if key not in known_keys and key == "discount":
                raise InputError(
                    f"discount is no key of {self.id}: the noise is calibrated for sums without "
                    "discounting; fastfed.LinUCB has discounting, but is not private"
                )
            if key not in known_keys:
                hint = misplaced(key) or listed(key, known_keys, "it takes")
                raise InputError(f'unknown key "{key[:60]}" for {self.id}{hint}')
        try:
            return msgspec.convert(plain(keys), self.config)
        except msgspec.ValidationError as error:
            # Messages of fastfed's own checks stay unchanged; msgspec's type errors are reworded.
            cause = error.__cause__
            if isinstance(cause, InputError):
                raise cause from None
            raise InputError(type_error(error, keys, self.config)) from None


#: Examples of keys whose values are tables.
_TABLE_EXAMPLES = {
    "delay": '{ kind = "constant", rounds = 10 }',
    "clock": "{ rates = [0.05] }",
    "share": "{ until = 100 }",
}

#: The words that error messages use for msgspec's names of types.
_TYPES = {
    "float": "a number",
    "int": "an integer",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}


def _keys_of_table(config: type[msgspec.Struct], key: str) -> tuple[str, ...]:
    """Return the keys of the table that is the value of ``key``, such as "clock", in a config.

    Return () if the value is not a table, or one of several kinds of tables.
    """
    if key not in config.__struct_fields__:
        return ()
    kind = get_type_hints(config)[key]
    tables = [t for t in (kind, *get_args(kind)) if hasattr(t, "__struct_encode_fields__")]
    return tables[0].__struct_encode_fields__ if len(tables) == 1 else ()


def type_error(
    error: msgspec.ValidationError, keys: dict[str, Any], config: type[msgspec.Struct]
) -> str:
    """Return msgspec's message in fastfed's words, such as "epsilon must be a number, got 'one'".

    ``keys`` are the curve's keys in the spec, and ``config`` declares their types.
    """
    # A message reads: Expected `float`, got `str` - at `$.clock.rate`
    text = str(error)
    problem_text, _, path_text = text.partition(" - at `$.")
    field = re.fullmatch(r"Object (contains unknown|missing required) field `(.+)`", problem_text)
    if field and (known_keys := _keys_of_table(config, key := path_text.rstrip("`"))):
        if field[1] == "missing required":
            return f"{key}.{field[2]} is required: the table {key} takes {', '.join(known_keys)}"
        return f'unknown key "{field[2][:60]}" in {key}{listed(field[2], known_keys, "it takes")}'
    type_match = re.fullmatch(r"Expected `(.+)`(.*), got .+", problem_text)
    # Follow the path, such as clock.rate or weights[2], to the value.
    key, value = path_text.rstrip("`"), keys
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            value = value[int(part)] if isinstance(value, (list, tuple)) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            type_match = None
            break
    if not key or type_match is None:
        return (
            f"{key} {problem_text.replace('Expected `', 'must be ').replace('`', '')}"
            if key
            else text
        )
    types = [t for t in type_match[1].split(" | ") if t != "null"]
    expected = " or ".join(_TYPES.get(t, t) for t in types)
    is_number = bool({"float", "int"} & set(types))
    remedy = unquoted(value) if is_number else ""
    if is_number and isinstance(value, dict):
        remedy = ": a list of numbers, [1.0, 2.0], makes one curve for each"
    elif "bool" in types:
        remedy = unquoted_word(value)
    elif "object" in types and key in _TABLE_EXAMPLES:
        remedy = f": write {key} = {_TABLE_EXAMPLES[key]}"
    return f"{key} must be {expected}{type_match[2]}, got {show(value)}{remedy}"
