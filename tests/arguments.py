"""Formulas whose arguments are all checked: what a module of bounds refuses, and in which words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from fastfed._validate import InputError


def formulas(module: ModuleType) -> list[Callable[..., Any]]:
    """Public functions of a module; those that read a ProblemSpec get checked values."""
    return [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and "problem" not in inspect.signature(function).parameters
    ]


def check_refusals(
    functions: list[Callable[..., Any]], arguments: Mapping[str, tuple[Any, tuple[Any, ...], str]]
) -> None:
    """Check that each function takes good values and refuses each bad one.

    ``arguments`` are, by name: a good value, bad ones just outside, and the sentence up to the
    value.
    """
    for function in functions:
        good = {name: arguments[name][0] for name in inspect.signature(function).parameters}
        function(**good)
        for name in good:
            _, wrong, sentence = arguments[name]
            for bad in wrong:
                with pytest.raises(InputError) as refused:
                    function(**good | {name: bad})
                said = str(refused.value)
                assert said.startswith(sentence), function.__name__
                assert f", got {bad!r}" in said
