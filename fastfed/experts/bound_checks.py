"""Checks of the arguments that most bounds share; what they mean stands in `bounds`."""

from __future__ import annotations

from fastfed._validate import integer, number


def horizon(t: int) -> int:
    return integer("horizon", t, at_least=1)


def clients(m: int) -> int:
    return integer("clients", m, at_least=1)


def experts(d: int) -> int:
    return integer("experts", d, at_least=1, at_most=2**53)


def epsilon(value: float) -> float:
    return number("epsilon", value, above=0)


def failure(rho: float) -> float:
    return number("failure_probability", rho, above=0, below=1)


def constant(value: float) -> float:
    return number("constant", value, above=0)
