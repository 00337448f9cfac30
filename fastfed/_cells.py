"""What a cell of a table says: a missing value, a code, a truth value, a number or a time.

Tables of simulations and of silos follow the same rules. A code, category, subject, label or name
of a silo is text in one normal form: stripped, in NFC, and never converted to a float, so 17, 17.0
and "17" are one code and long codes keep all digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from numbers import Integral, Real
from typing import Any
from unicodedata import normalize

import numpy as np

from fastfed._validate import InputError, show

#: Texts that mean a missing value, as None and NaN do. Codes that are declared are never missing.
MISSING = frozenset(
    {"", "?", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "NaT"}
    | {"None", "NULL", "Null", "null"}
)
#: Markers that earlier versions read as values in simulations.
NEW_MARKERS = MISSING - {"", "?", "NA", "nan", "NaN", "NAN"}
#: Words of a truth value, in lower case.
TRUE, FALSE = frozenset({"true", "t", "yes", "y"}), frozenset({"false", "f", "no", "n"})
#: A number in a cell.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
#: A whole number with a fraction of 0, such as 17.0, as programs write codes taken for numbers.
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*", re.ASCII)
#: The form of numbers whose last digits are lost: spreadsheets write numbers of more than 11 digits
#: in this form, and Python floats of more than 16 digits.
_ROUNDED = re.compile(r"[+-]?[0-9](\.[0-9]+)?(E\+[0-9]+|e\+(1[6-9]|[2-9][0-9]|[1-9][0-9]{2}))")
#: Whole numbers of this size and more may share a float64.
_INEXACT = 2.0**53


def is_missing(value: object, codes: Collection[str] = ()) -> bool:
    """Return True for a cell that means a missing value.

    A text that is one of the declared ``codes`` is never missing.
    """
    if isinstance(value, str):
        text = value.strip()
        return text in MISSING and text not in codes
    if isinstance(value, Decimal):
        return value.is_nan()
    # Only NaN, and pandas' NaT, are not equal to themselves. pandas' NA is not comparable.
    if value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return True
    return isinstance(value, Real) and bool(value != value)


def as_number(value: object) -> float | None:
    """Convert a cell to a finite number; None if it is not one."""
    if isinstance(value, str):
        text = value.strip()
        parsed = float(text) if NUMBER.fullmatch(text) else math.nan
    elif isinstance(value, bool | np.bool_) or value is None:
        return None
    else:
        try:
            parsed = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
    return parsed if math.isfinite(parsed) else None


# ---- Codes ---------------------------------------------------------------------------------------


def code(value: object) -> str:
    """Return the normal form of a cell that holds a code, category, label or subject.

    A text is stripped, and in NFC. Other values become text: a whole number without a fraction
    ("17" for 17.0), a truth value as "true" or "false". Raises ValueError for an integer of
    thousands of digits.
    """
    if isinstance(value, str):
        text = value.strip()
        return text if text.isascii() else normalize("NFC", text).strip()
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        is_whole = math.isfinite(number) and number == int(number) and abs(number) < _INEXACT
        return str(int(number)) if is_whole else repr(number)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return str(int(value)) if value.adjusted() < 1000 else str(value)
    return normalize("NFC", str(value).strip())


def plain_name(name: str, value: Any) -> str:
    """Return the normal form of a text that identifies a person or a silo.

    17, "17 ", "17.0" and 17.0 have the same form, "17".

    Parameters
    ----------
    name : str
        The column or argument, for messages.
    value
        A text or a number.

    Raises
    ------
    InputError
        If the number was rounded, so that several persons may have it. The message never contains
        the value.
    """
    if isinstance(value, float | np.floating) and abs(float(value)) >= _INEXACT:
        raise InputError(
            f"{name} must tell persons or silos apart, but has numbers that were rounded: store it "
            "as text or as whole numbers"
        )
    try:
        text = code(value)
    except ValueError:
        raise InputError(f"{name} must have at most 4300 digits, got more") from None
    if _ROUNDED.fullmatch(text):
        raise InputError(
            f"{name} must tell persons or silos apart, but has numbers that were rounded, such as "
            "9E+17: export it as text"
        )
    whole_number = _WHOLE.fullmatch(text)
    return whole_number[1] if whole_number else text


def exact(value: Any) -> Decimal | None:
    """Return the number in a cell exactly; None if it is no finite number, or may be rounded."""
    if isinstance(value, float | np.floating) and abs(float(value)) >= _INEXACT:
        return None
    try:
        text = code(value)
        return Decimal(text) if NUMBER.fullmatch(text) else None
    except (InvalidOperation, ValueError):
        return None


def matched(value: object, codes: Sequence[str]) -> int | None:
    """Return the index of the code in ``codes`` that a cell has; None if it has none of them.

    A code matches if its text is the same, or its exact number ("4.0" matches "4"). If the codes
    have words for true and for false, any other word for the same truth value matches too ("True"
    and "Y" match "true").
    """
    by_text, by_number, by_word = _lookup(tuple(codes))
    try:
        text = code(value)
    except ValueError:  # an integer of thousands of digits
        return None
    if text in by_text:
        return by_text[text]
    if not isinstance(value, bool | np.bool_) and (exact_number := exact(value)) is not None:
        return by_number.get(exact_number)
    return by_word.get(text.lower())


@lru_cache(maxsize=4096)
def _lookup(codes: tuple[str, ...]) -> tuple[dict[str, int], dict[Decimal, int], dict[str, int]]:
    """Return three tables of the indices of codes: by text, by exact number, and by word.

    The table by word has words for true and false, if the codes have words for both; else it is
    empty.
    """
    by_text: dict[str, int] = {}
    by_number: dict[Decimal, int] = {}
    by_word: dict[str, int] = {}
    for i, normal_form in enumerate(map(code, codes)):
        by_text.setdefault(normal_form, i)
        number = exact(normal_form)
        if number is not None:
            by_number.setdefault(number, i)
        by_word.setdefault(normal_form.lower(), i)
    if TRUE.isdisjoint(by_word) or FALSE.isdisjoint(by_word):
        return by_text, by_number, {}
    words = {word: i for word, i in by_word.items() if word in TRUE | FALSE}
    for group in (TRUE, FALSE):
        first = min(i for word, i in words.items() if word in group)
        words |= {word: words.get(word, first) for word in group}
    return by_text, by_number, words


def unified(cells: list[str]) -> list[str]:
    """Return the cells of a column, with "17.0" as "17" if some number occurs in both forms."""
    short_forms = {cell: match[1] for cell in set(cells) if (match := _WHOLE.fullmatch(cell))}
    # If no number occurs in both forms, keep the texts: rewriting could reorder categories.
    if not short_forms or len({short_forms.get(c, c) for c in set(cells)}) == len(set(cells)):
        return cells
    return [short_forms.get(cell, cell) for cell in cells]


# ---- Times ---------------------------------------------------------------------------------------

#: 1899-12-30, day 0 of Excel, in days before 1970.
_EXCEL = 25569


def seconds(value: Any, pattern: str | None = None) -> float | None:
    """Convert a date (UTC if it has no zone) or a number to seconds since 1970; None if neither."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = datetime.strptime(text, pattern) if pattern else datetime.fromisoformat(text)
        except ValueError:
            value = as_number(text)
    try:
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return as_number(value)


def check_time_format(pattern: str) -> None:
    """Raise InputError unless a format of ``strptime`` gives dates with a year."""
    probe = datetime(2003, 4, 5, 16, 7, 8, tzinfo=UTC)
    try:
        has_year = datetime.strptime(probe.strftime(pattern), pattern).year == probe.year
    except ValueError:
        has_year = False
    if not has_year:
        raise InputError(
            'time_format must be a format of strptime with a year, such as "%d.%m.%Y" or '
            f'"%Y-%m-%d", got {show(pattern)}'
        )


def other_unit(moment: float, begin: float, until: float) -> str:
    """Return a hint for a time in a wrong unit, as the end of an error message; "" if unknown.

    ``moment`` is a number outside of [begin, until), which are seconds since 1970.
    """
    if begin <= (moment - _EXCEL) * 86400.0 < until:
        return "; its numbers look like days of Excel: export dates as text, YYYY-MM-DD"
    if begin <= moment / 1000.0 < until:
        return "; its numbers look like milliseconds since 1970: export seconds or dates"
    return ""
