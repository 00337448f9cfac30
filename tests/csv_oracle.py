"""Read the records of a CSV in the plainest way: cells by the csv module, numbers by fractions."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from fractions import Fraction
from unicodedata import normalize

import numpy as np

MISSING = frozenset(
    {"", "?", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "NaT"}
    | {"None", "NULL", "Null", "null"}
)
SIGNS = ("++", "+-", "-+", "--")
Records = tuple[np.ndarray, list[int], list[int] | None]


def is_infinite(present: list[str]) -> bool:
    """Return True if all cells are numbers, but some are infinite."""
    not_decimal = [cell for cell in present if decimal(cell) is None]
    infinite = {"inf", "infinity"}
    return bool(not_decimal) and all(
        cell.lstrip("+-").lower() in infinite and cell[:2] not in SIGNS for cell in not_decimal
    )


def oracle(data: bytes, name: str, label: str, silo: str | None) -> Records | None:
    """Return (features, class and silo of each record); None if the table must be refused."""
    try:
        data = gzip.decompress(data) if name.endswith(".gz") else data
        if data.startswith(
            (b"PK\x03\x04", b"PAR1")
        ):  # also text, but of a ZIP archive or a Parquet file
            return None
        text = normalize("NFC", data.decode("utf-8-sig"))
        mark = separator(text)
        reader = csv.reader(io.StringIO(text, ""), delimiter=mark, strict=True)
        rows = [[c.strip() for c in row] for row in reader]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error):
        return None
    rows = [row for row in rows if any(row)]
    if len(rows) < 2 or "\0" in text or any(len(row) != len(rows[0]) for row in rows):
        return None
    names = [n for n in rows[0] if n]
    if len(set(names)) != len(names) or label not in names or (silo and silo not in names):
        return None
    columns = {n: [row[i] for row in rows[1:]] for i, n in enumerate(rows[0]) if n}
    if mark != ",":
        for cells in columns.values():
            present = [c for c in cells if c not in MISSING]
            swapped = [c.replace(",", ".") for c in present]
            whole = all(decimal(c) is not None and "." not in c for c in present if "," not in c)
            some = [s for c, s in zip(present, swapped, strict=True) if "," in c]
            if some and whole and all(decimal(s) is not None and s.count(".") == 1 for s in some):
                cells[:] = [c.replace(",", ".") for c in cells]
    labels = columns.pop(label)
    if is_infinite(labels):
        return None
    numeric = all(decimal(cell) is not None for cell in labels)
    values = [decimal(cell) for cell in labels] if numeric else one_form(labels)
    classes = sorted(set(values))
    if set(labels) & set(MISSING) or not 2 <= len(classes) <= 1000:
        return None
    if len(classes) == len(labels) > 2:
        return None
    owners = None
    if silo:
        cells = columns.pop(silo)
        if set(cells) & set(MISSING):
            return None
        for cell in cells:
            number, e, power = cell.lower().partition("e+")
            if e and decimal(number) is not None and power.isdigit() and len(number) > 0:
                whole = number.lstrip("+-").partition(".")
                short = len(number) - len(number.lstrip("+-")) < 2 and len(whole[0]) == 1
                long = "E" in cell or (len(power) in (2, 3) and power[0] != "0" and int(power) > 15)
                if short and long and (whole[2] or not whole[1]) and power.isascii():
                    return None  # a spreadsheet or a float has lost digits
        cells = [without_fraction(cell) for cell in cells]
        owners = [list(dict.fromkeys(cells)).index(cell) for cell in cells]
    parts: list[list[float]] = []
    for cells in columns.values():
        present = [cell for cell in cells if cell not in MISSING]
        numbers = [decimal(cell) for cell in present]
        if not present:
            continue
        if is_infinite(present):
            return None
        if None not in numbers:
            if any(abs(float(cell)) == float("inf") for cell in present):
                return None
            low, high = min(numbers), max(numbers)
            if high - low > Fraction(np.finfo(float).max):
                return None
            span = high - low or 1
            parts.append([0.0 if c in MISSING else float((decimal(c) - low) / span) for c in cells])
        else:
            present = one_form(present)
            if len(present) < len(cells):
                shown = iter(present)
                cells = [c if c in MISSING else next(shown) for c in cells]
            else:
                cells = present
            if len(set(present)) > 50:
                return None
            parts += [[float(c == v) for c in cells] for v in sorted(set(present))]
        if len(present) < len(cells):
            parts.append([float(c in MISSING) for c in cells])
    if not parts:
        return None
    return np.array(parts).T, [classes.index(value) for value in values], owners


def without_fraction(cell: str) -> str:
    """Return "17" for "17.0", and any other text unchanged."""
    integer_part, point, zeros = cell.partition(".")
    digits = integer_part[1:] if integer_part[:1] in ("+", "-") else integer_part
    plain = digits.isascii() and digits.isdigit() and not zeros.strip("0")
    return integer_part if point and plain else cell


def one_form(cells: list[str]) -> list[str]:
    """Return texts without empty fractions, if this makes two of them equal."""
    short = [without_fraction(cell) for cell in cells]
    return short if len(set(short)) < len(set(cells)) else cells


def separator(text: str) -> str:
    """Return the most frequent mark of the header that gives it and 49 records equal lengths."""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.strip(' \t,;|"'):
            break
    else:
        return ","
    start = text.index(line)
    unquoted, quoted = "", False
    for letter in text[start:]:
        if letter in "\r\n" and not quoted:
            break
        quoted ^= letter == '"'
        unquoted += "" if quoted or letter == '"' else letter
    counts = {mark: unquoted.count(mark) for mark in ",;\t|" if mark in unquoted}
    order = sorted(counts, key=counts.__getitem__, reverse=True)
    for mark in order:
        reader = csv.reader(io.StringIO(text, ""), delimiter=mark)
        try:
            rows = (row for row in reader if any(cell.strip() for cell in row))
            if len({len(row) for row, _ in zip(rows, range(50), strict=False)}) == 1:
                return mark
        except csv.Error:
            pass
    return order[0] if order else ","


def decimal(cell: str) -> Fraction | None:
    """Return the exact value of a decimal in ASCII; None for any other text."""
    if not cell or set(cell) - set("+-.0123456789eE") or cell[0] in "eE":
        return None
    mantissa, e, power = cell.replace("E", "e").partition("e")
    if e and not power.lstrip("+-"):
        return None
    try:
        # Beyond these exponents all is zero or infinite, and a fraction would fill the memory.
        return Fraction(f"{mantissa}e{min(max(int(power or 0), -9999), 9999)}")
    except ValueError:
        return None
