"""Check that the functions of a module refuse bad arguments, and with which messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from fastfed._validate import InputError


def formulas(module: ModuleType) -> list[Callable[..., Any]]:
    """Return a module's public functions, except those that take a ProblemSpec.

    The values of a ProblemSpec are checked when it is created.
    """
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
    """Check that each function accepts good values and refuses each bad value.

    ``arguments`` maps an argument's name to a good value, bad values just outside the allowed
    range, and the start of the error message, up to the refused value.
    """
    for function in functions:
        good_values = {name: arguments[name][0] for name in inspect.signature(function).parameters}
        function(**good_values)
        for name in good_values:
            _, bad_values, message_start = arguments[name]
            for bad_value in bad_values:
                with pytest.raises(InputError) as error:
                    function(**good_values | {name: bad_value})
                message = str(error.value)
                assert message.startswith(message_start), function.__name__
                assert f", got {bad_value!r}" in message
