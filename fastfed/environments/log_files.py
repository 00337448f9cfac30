"""Read logs in the text format of Vowpal Wabbit: labels ``action:cost:probability``.

Only the part of the format that contextual bandits need is read, and anything else is refused with
file and line. Two forms exist. In the first, a line is a decision:

    2:-1:0.25 | age:0.4 evening

In the second (cb_adf), a decision is a block of lines that ends with a blank line. An optional
first line has the features that all actions share, each further line is an action, and the line of
the chosen action has the label:

    shared | age:0.4 evening
    | sports
    0:-1:0.5 | politics short:0.2
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastfed._cells import NUMBER
from fastfed._containers import columnar, file_content, is_utf_16, other_kind
from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, show

#: Most bytes of the features of a log, which are stored as dense arrays.
MAX_FEATURE_BYTES = 4 * 2**30
_ACTION = re.compile(r"[0-9]{1,9}", re.ASCII)

#: Features by name, of a decision or of an action.
Features = dict[str, float]


@dataclass
class Decision:
    """One logged decision.

    Parameters
    ----------
    where : str
        File and line of its first line.
    shared : dict
        Features of the decision.
    actions : list of dict
        Features of each offered action; empty if actions have none.
    chosen : int
        The chosen action: its number as in the file, or its position among ``actions``.
    reward, propensity : float
        Minus the cost, and the probability of the chosen action.
    """

    where: str
    shared: Features = field(default_factory=dict)
    actions: list[Features] = field(default_factory=list)
    chosen: int = -1
    reward: float = math.nan
    propensity: float = math.nan


def read_vw(path: Path) -> list[Decision]:
    """Read the decisions of a file in the format of Vowpal Wabbit.

    Parameters
    ----------
    path : Path
        Text in UTF-8, also compressed by gzip, bzip2, xz or zstd.

    Returns
    -------
    list of Decision
        All decisions have ``actions``, or none has.

    Raises
    ------
    InputError
        For a file that cannot be read, and for lines that have neither of the two forms of this
        module.
    """
    data = file_content(path, str(path))
    kind = other_kind(data, path.name) or columnar(data)
    if kind is not None or is_utf_16(data):
        raise InputError(
            f"{path} must be text of Vowpal Wabbit in UTF-8, got {kind or 'text in UTF-16'}"
        )
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} must be UTF-8 text, got other bytes: save it in UTF-8") from None
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise InputError(f"{path} must hold a logged decision, got an empty file")
    has_blocks = any(line.split("|")[0].strip() in ("", "shared") for line in filled)
    if has_blocks:
        return [_parse_block(str(path), block) for block in _blocks(lines)]
    numbered = enumerate(lines, 1)
    return [_parse_line(f"{path}:{number}", line) for number, line in numbered if line.strip()]


def _blocks(lines: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines of each block; blank lines separate blocks."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _parse_line(where: str, line: str) -> Decision:
    """Return the decision of one line of the log. ``where`` names the file and the line."""
    label, shared = _label_and_features(where, line)
    decision = Decision(where, shared)
    _set_label(decision, where, label)
    if decision.chosen < 1:
        raise InputError(f"{where}: actions are numbered from 1, got {decision.chosen}")
    return decision


def _parse_block(path: str, block: list[tuple[int, str]]) -> Decision:
    """Return the decision that is logged in one block of numbered lines.

    The first line may hold features that all actions share. Each other line is an action, and the
    line of the chosen action has a label. ``path`` names the file, for error messages.
    """
    first = f"{path}:{block[0][0]}"
    decision = Decision(first)
    if block[0][1].split("|")[0].strip() == "shared":
        decision.shared = _label_and_features(first, block[0][1])[1]
        block = block[1:]
    for position, (number, line) in enumerate(block):
        where = f"{path}:{number}"
        label, features = _label_and_features(where, line)
        decision.actions.append(features)
        if label == "shared":
            raise InputError(f"{where}: shared must be the first line of a decision; a blank line "
                             "must come between two decisions")  # fmt: skip
        if not label:
            continue
        if decision.chosen >= 0:
            raise InputError(
                f"{where}: a decision must have one line with a label, got a second one; a blank "
                "line must come between two decisions"
            )
        _set_label(decision, where, label)
        decision.chosen = position
    if decision.chosen < 0:
        raise InputError(
            f"{first}: one action of a decision must have the label action:cost:probability, got "
            "none"
        )
    return decision


def _set_label(decision: Decision, where: str, label: str) -> None:
    """Set the chosen action, reward and propensity of a decision from a label.

    The label is action:cost:probability, and the reward is minus the cost. ``where`` names its file
    and line, for error messages.
    """
    parts = label.split(":")
    valid = len(parts) == 3 and _ACTION.fullmatch(parts[0])
    if not valid or not all(NUMBER.fullmatch(part) for part in parts[1:]):
        raise InputError(
            f"{where}: a label must be action:cost:probability, such as 2:-1:0.25, "
            f"got {show(label)}"
        )
    decision.chosen, decision.reward = int(parts[0]), -float(parts[1])
    decision.propensity = float(parts[2])


def _label_and_features(where: str, line: str) -> tuple[str, Features]:
    """Return the label and the features of a line in Vowpal Wabbit's format.

    A tag, which begins with an apostrophe, is left out of the label. ``where`` names the file and
    the line, for error messages.
    """
    label, bar, features_text = line.partition("|")
    if not bar:
        raise InputError(f"{where}: features must follow a bar (|), got {show(line.strip(), 60)}")
    tokens = label.split()
    if tokens and tokens[-1].startswith("'"):
        tokens.pop()
    features: Features = {}
    for namespace in features_text.split("|"):
        names = namespace.split()
        prefix, scale = "", 1.0
        # A namespace has a name if the name follows the bar without a blank.
        if names and not namespace[0].isspace():
            prefix, scale = _name_and_value(where, names.pop(0))
            prefix += "^"
        for token in names:
            name, value = _name_and_value(where, token)
            if prefix + name in features:
                raise InputError(
                    f"{where}: feature {show(prefix + name)} must come once in a line, got it twice"
                )
            features[prefix + name] = scale * value
    return " ".join(tokens), features


def _name_and_value(where: str, token: str) -> tuple[str, float]:
    """Return name and value of the text ``name:value`` or ``name``; the default value is 1.

    ``where`` names the file and the line, for error messages.
    """
    name, colon, text = token.partition(":")
    if not name or (colon and not NUMBER.fullmatch(text)) or not math.isfinite(float(text or 1)):
        raise InputError(
            f"{where}: a feature must be a name, or a name and a number such as age:0.4, "
            f"got {show(token)}"
        )
    return name, float(text) if colon else 1.0


def dense(rows: Sequence[Features], what: str) -> tuple[list[str], np.ndarray]:
    """Return the sorted names of all p features of n rows, and their values (n, p).

    A row is a dictionary from the names of its features to values. Features that a row lacks are 0.
    ``what`` names the kind of rows, such as "actions", for error messages.
    """
    names = sorted(set().union(*rows))
    if len(names) >= MAX_DIMENSION or 8 * len(names) * len(rows) > MAX_FEATURE_BYTES:
        raise InputError(
            f"features of {what} must be fewer: {len(names)} names in {len(rows)} lines, at most "
            f"{MAX_DIMENSION - 1} names and {MAX_FEATURE_BYTES // 2**30} GB"
        )
    position = {name: i for i, name in enumerate(names)}
    values = np.zeros((len(rows), len(names)))
    for row, features in enumerate(rows):
        for name, value in features.items():
            values[row, position[name]] = value
    return names, values
