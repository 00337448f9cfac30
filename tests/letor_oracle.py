"""LETOR text read in the plainest way: what the format says, line by line, in exact arithmetic."""

from __future__ import annotations

import gzip
import zlib
from fractions import Fraction

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
Rows = tuple[list[int], list[int], np.ndarray]


def oracle(data: bytes, name: str) -> Rows | None:
    """Return (relevance, qid of each row, features) of a file; None if it must be refused."""
    if name.endswith(".gz") or data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    relevance, qids, rows = [], [], []
    try:
        for line in data.split(b"\n"):
            words = [word.decode("ascii") for word in line.partition(b"#")[0].split()]
            if not words:
                continue
            relevance.append(whole(words[0], 2**31))
            if not words[1].startswith("qid:"):
                return None
            qids.append(whole(words[1][4:], 2**63))
            row: dict[int, np.float32] = {}
            for word in words[2:]:
                feature, number_text = word.split(":")
                if not feature.isdigit() or not 1 <= int(feature) <= 65_536 or int(feature) in row:
                    return None
                row[int(feature)] = value(number_text)
            rows.append(row)
    except (ValueError, IndexError, ArithmeticError):
        return None
    judged = [index for index, label in enumerate(relevance) if label >= 0]
    relevance, qids, rows = (
        [column[index] for index in judged] for column in (relevance, qids, rows)
    )
    if not rows:
        return None
    runs = [qid for qid, before in zip(qids, [None, *qids], strict=False) if qid != before]
    if len(set(runs)) < len(runs):  # the rows of a query are not together
        return None
    features = np.zeros((len(rows), max([1, *(j for row in rows for j in row)])), np.float32)
    for index, row in enumerate(rows):
        for j, number in row.items():
            features[index, j - 1] = number
    return relevance, qids, features


def whole(text: str, limit: int) -> int:
    """Return the integer of texts such as 2 and 2.0; refuse 2e0, 1_0 and numbers beyond limit."""
    if set(text) - set("+-.0123456789") or text.startswith(".") or len(text) > 40:
        raise ValueError(text)
    number = Fraction(text)
    if number.denominator != 1 or not -limit <= number < limit:
        raise ValueError(text)
    return int(number)


def value(text: str) -> np.float32:
    """Return a decimal rounded to float64, and then to float32."""
    if set(text) - set("+-.eE0123456789"):
        raise ValueError(text)
    number = float(text)
    if abs(number) > LARGEST:
        raise ValueError(text)
    return np.float32(number)
