"""Checks of user input. Each error names the argument, its value and what was expected.

Compiled kernels do not check arguments, so all user input is checked here first. `Once` is the base
of objects that release private data and must not be duplicated.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar
from unicodedata import category

import numpy as np


class InputError(ValueError):
    """Invalid input. The message is one sentence: argument, value and what was expected."""

    def __init__(self, message: str) -> None:
        """Store the message, on one line and without control characters."""
        super().__init__(message if message.isprintable() else _on_one_line(message))


def _on_one_line(message: str) -> str:
    """Join lines and escape control characters, so that the message is safe for a terminal."""
    line = re.sub(r"\s*[\r\n]\s*", " ", message)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def show(value: object, limit: int = 60) -> str:
    """Return value as a short text on one line, for a message."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of more than 4300 digits"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def frozen(values: object) -> np.ndarray:
    """Return a float64 copy that can never be made writeable, because its memory is `bytes`."""
    float_array = np.asarray(values, dtype=np.float64)
    return np.ndarray(float_array.shape, np.float64, float_array.tobytes())


def listed(word: str, options: Iterable[str], what: str = "it may have") -> str:
    """Return the hint of `nearest`, or a list of all options if no option is close."""
    options_list = list(options)
    return nearest(word, options_list) or f"; {what} {', '.join(options_list)}"


def nearest_label(label: object, labels: Iterable[str], max_shown: int = 6) -> str:
    """Return the hint of `nearest` for a label of a curve, or else the first labels in quotes."""
    names = list(labels)
    shown = ", ".join(f'"{name}"' for name in names[:max_shown])
    others_text = f" and {len(names) - max_shown} more" if len(names) > max_shown else ""
    return nearest(str(label), names) or f"; there are {shown}{others_text}"


def rising(name: str, value: object, *, equal: bool = False) -> tuple[float, float]:
    """Return the two numbers of value = [low, high]; raise InputError unless low < high.

    With ``equal``, low = high is valid too.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InputError(f"{name} must be two numbers, [low, high], got {show(value)}")
    low, high = number(name, value[0]), number(name, value[1])
    if high < low or (high == low and not equal):
        sign = "<=" if equal else "<"
        raise InputError(f"{name} must be [low, high] with low {sign} high, got {show(value)}")
    return low, high


#: Words of other libraries, and what they are called here.
OTHER_WORDS = {
    "random_state": "seed",
    "n_jobs": "threads",
    "n_threads": "threads",
    "num_threads": "threads",
    "n_rounds": "horizon",
    "n_iterations": "horizon",
    "n_steps": "horizon",
    "T": "horizon",
    "n_agents": "silos",
    "n_clients": "silos",
    "n_runs": "replicates",
    "n_features": "dimension",
    "context_dimension": "dimension",
    "d": "dimension",
    "alpha": "radius_multiplier",
    "l2": "regularizer",
    "lambda_": "regularizer",
    "reg": "regularizer",
    "gamma": "discount",
    "delta": "failure_probability",
}


def unknown_argument(word: str, options: Iterable[str]) -> str:
    """Return the error message for an unknown argument, with fastfed's name for it if known."""
    fastfed_name = OTHER_WORDS.get(word)
    names = list(options)
    hint = (
        f"; here it is called {fastfed_name}"
        if fastfed_name in names
        else listed(word, names, "there are")
    )
    return f'unknown argument "{word}"{hint}'


#: Keys of a spec by the place where they belong.
_KEYS_BY_PLACE = {
    "a key of the experiment, above [environment]": (
        *("horizon", "replicates", "seed", "silos", "checkpoints", "checkpoint_spacing"),
    ),
    "a key of [environment]": ("kind", "dimension", "actions", "intercept", "gap", "reward"),
    "a key of [[curve]]": (
        *("algorithm", "protocol", "epsilon", "delta", "batch_size", "radius", "sieve", "release"),
        *("lazy", "clip", "label"),
    ),
}


def misplaced(key: str) -> str:
    """Return where this key belongs in a spec, as the end of an error message; "" if nowhere."""
    return next((f": it is {place}" for place, keys in _KEYS_BY_PLACE.items() if key in keys), "")


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def with_example(example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function: errors of calls that do not fit its signature show an example.

    Python's TypeError is raised again, with the argument that an unknown keyword may mean, or else
    with ``example``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **keys: P.kwargs) -> R:
            try:
                return function(*arguments, **keys)
            except TypeError as error:
                if not str(error).startswith(f"{function.__qualname__}() "):
                    raise
                signature = inspect.signature(function)
                unknown = next((key for key in keys if key not in signature.parameters), "")
                hint = unknown and nearest(unknown, signature.parameters)
                raise TypeError(f"{error}{hint or f': write {example}'}") from None

        return call

    return decorate


def constructed(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class: errors of calls that do not fit its fields show an example."""

    def decorate(cls: type[T]) -> type[T]:
        """Return the class, with `with_example` applied to its constructor."""
        cls.__init__ = with_example(example)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


#: Words for parties, protocols and tables, and the values that each may mean. `nearest` suggests
#: the first value that is an option.
_VALUES_BY_WORD = {
    **dict.fromkeys(("server", "trusted", "trusted-server", "trusted-curator"), ("central",)),
    **dict.fromkeys(("local", "silo", "ldp"), ("silo-ldp",)),
    **dict.fromkeys(("shuffle", "shuffler"), ("shuffle-vector", "shuffle")),
    **dict.fromkeys(("csv", "table", "excel", "parquet", "dataframe"), ("classification",)),
    **dict.fromkeys(("mask", "masks", "masking", "secagg"), ("secure-sum",)),
}


def _in_order(name: str) -> str:
    """Return a name with its parts in alphabetical order: linucb-private for private-linucb."""
    return "-".join(sorted(re.split("[-_ ]", name)))


def nearest(word: str, options: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the option closest to word, or "" when none is close.

    An option that `_VALUES_BY_WORD` lists for the word comes before options with similar spelling.
    """
    option_by_name = {str(option).lower(): option for option in options}
    word = str(word).lower()

    def likeness(option: str) -> float:
        """Return the ratio of characters that option and word share.

        It is the larger ratio of two: of both names as they are, and of both names with their parts
        in alphabetical order.
        """
        pairs = (option, word), (_in_order(option), _in_order(word))
        return max(difflib.SequenceMatcher(None, a, b).ratio() for a, b in pairs)

    meant = [
        value
        for value in _VALUES_BY_WORD.get(re.sub("[ _]", "-", word), ())
        if value in option_by_name
    ]
    # A ratio below 0.7 is likely to be chance, as of "epsilom" and "silos". A smaller ratio is
    # enough if one word contains the other (0.5), or if their lengths differ by at most 1, as of
    # "two" and "too" (0.65).
    similar = [
        option
        for option in sorted(option_by_name, key=likeness, reverse=True)
        if likeness(option) >= (0.65 if abs(len(option) - len(word)) <= 1 else 0.7)
        or (likeness(option) >= 0.5 and (word in option or option in word))
    ]
    if not meant and not similar:
        return ""
    return f'; did you mean "{option_by_name[(meant + similar)[0]]}"?'


def choice(name: str, value: object, options: Sequence[str], also: str = "") -> str:
    """Return value if it is one of ``options``; raise InputError if not.

    ``also`` is a text for the message, such as "an integer or ". It names valid values that the
    caller has handled before the call.
    """
    if isinstance(value, str) and value in options:
        return value
    listed = ", ".join(f'"{o}"' for o in options)
    raise InputError(
        f"{name} must be {also}one of {listed}, got {show(value)}{nearest(str(value), options)}"
    )


def boolean(name: str, value: object) -> bool:
    """Return value as a bool if it is True or False; raise InputError for texts and numbers."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InputError(f"{name} must be true or false, got {show(value)}{unquoted_word(value)}")


def unquoted_word(value: object) -> str:
    """Return how to write true or false that was given as a text, else ""."""
    is_word = isinstance(value, str) and value.lower() in ("true", "false")
    return ": write it without quotes" if is_word else ""


def unquoted(value: object) -> str:
    """Return the advice that ends an error message about a value that must be a number.

    If the value is a text that contains a number, or several numbers with commas, the advice is how
    to write it. Otherwise it is "".
    """
    if isinstance(value, str) and re.fullmatch(r"[0-9.e+-]+(\s*,\s*[0-9.e+-]+)+", value):
        return f": a list has brackets, [{value}], and a number has a decimal point"
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return ": write it without quotes" if isinstance(value, str) else ""


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return value as a finite float; raise InputError if it is no number or out of bounds."""
    kinds = (int, float, np.integer, np.floating, Decimal, Fraction)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InputError(f"{name} must be a number, got {show(value)}{unquoted(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        result = math.nan
    if not (
        math.isfinite(result)
        and (above is None or result > above)
        and (at_least is None or result >= at_least)
        and (below is None or result < below)
        and (at_most is None or result <= at_most)
    ):
        limits = ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        tail = ": it must be finite" if math.isinf(result) and bounds else ""
        if tail and name == "epsilon" and result > 0:
            tail += "; without privacy there is no epsilon (fedlinucb)"
        if name == "delta" and result == 0.0:
            tail = ": it may be 0 only where users send single bits (user-bit), and for experts"
        raise InputError(f"{name} must be {bounds or 'finite'}, got {show(value)}{tail}")
    return result


# ---- Texts and plain data: specs, requests, labels -----------------------------------------------

#: Largest length of a text and of a label in characters; deepest nesting of lists and tables.
MAX_TEXT, MAX_LABEL, MAX_LEVELS = 4096, 200, 32


def is_line(text: str, at_most: int = MAX_TEXT) -> bool:
    """Return True for one line of at most ``at_most`` printable characters."""
    # Python regards spaces of other widths as not printable; they are allowed here.
    return len(text) <= at_most and (
        text.isprintable() or all(c.isprintable() or category(c) == "Zs" for c in text)
    )


def line(name: str, value: object, at_most: int = MAX_LABEL) -> str:
    """Return value if it is a text that fits in a line of a table; raise InputError if not."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name} must be a text, got {show(value)}")
    if not is_line(value, at_most):
        raise InputError(
            f"{name} must be at most {at_most} printable characters on one line, got {show(value)}"
        )
    return value


def parsed(read: Callable[[Any], Any], text: str | bytes) -> Any:
    """Return the text parsed by ``read``; convert the parser's errors to InputError."""
    try:
        return read(text)
    except RecursionError:
        raise InputError("lists or tables are nested too deep") from None
    except ValueError as error:  # a parser's own, or a number too long for Python to read
        raise InputError(str(error)) from None


def check_plain(name: str, value: object, keys: bool = True, level: int = 0) -> None:
    """Raise InputError for plain data that contain an unsuitable value.

    Unsuitable are integers beyond 64 bits, texts that `is_line` refuses, and lists or tables that
    are nested too deep. ``level`` is the depth at which ``value`` is nested.

    Messages contain names but never values. With ``keys``, the name in a message may be a key
    inside ``value``. Without ``keys``, it is always ``name``, because keys may be data about
    people.
    """
    if level > MAX_LEVELS:
        raise InputError(f"{name} must have at most {MAX_LEVELS} levels of lists and tables")
    if isinstance(value, dict):
        for key, inner in value.items():
            check_plain(name, key, keys, level + 1)
            check_plain(str(key) if keys else name, inner, keys, level + 1)
    elif isinstance(value, (list, tuple)):
        # Most lists are of numbers, which need no check each.
        if set(map(type, value)) != {float}:
            for inner in value:
                check_plain(name, inner, keys, level + 1)
    elif isinstance(value, str) and not is_line(value):
        raise InputError(
            f"{name} must be of texts of printable characters on one line, at most {MAX_TEXT}"
        )
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"integers in {name} must be below 2^63 in size")


def folder(value: object) -> Path:
    """Return value as the path of an output folder, whether it exists or not."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(
            f"folder must be the path of an output folder, as fastfed.run writes one, got "
            f"{show(value)}"
        )
    return Path(value)


def plain(value: Any) -> Any:
    """Return plain data with NumPy scalars in it converted to Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return tuple(plain(inner) for inner in value) if type(value) is tuple else value


def integer(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Return value as an int; raise InputError if it is no integer or out of bounds.

    2.0 and True are not integers.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        is_float = isinstance(value, (float, np.floating)) and math.isfinite(value)
        remedy = f": write {int(value)}" if is_float and int(value) == value else unquoted(value)  # type: ignore[call-overload]
        raise InputError(f"{name} must be an integer, got {show(value)}{remedy}")
    result = int(value)
    if (at_least is not None and result < at_least) or (at_most is not None and result > at_most):
        bounds = " and ".join(
            text
            for text in (
                f">= {at_least}" if at_least is not None else "",
                f"<= {at_most}" if at_most is not None else "",
            )
            if text
        )
        raise InputError(f"{name} must be an integer {bounds}, got {show(result)}")
    return result


def silo_index(index: object, silos: int) -> int:
    """Return the index of a silo, an integer from 0 to silos - 1.

    None means 0, and is allowed only if there is one silo. With several silos there is no default,
    because two silos with the same index would draw the same noise from a seed.
    """
    if index is None and silos > 1:
        raise InputError(f"index is required: the plan has the silos 0 to {silos - 1}")
    return integer("index", 0 if index is None else index, at_least=0, at_most=silos - 1)


def reward_number(name: str, value: object) -> float:
    """Return a reward as a finite float; a click, True or False, is 1 or 0."""
    return float(value) if isinstance(value, (bool, np.bool_)) else number(name, value)


def axes(name: str, value: Any) -> int:
    """Return the number of axes of an array; raise InputError for lists that form no array."""
    try:
        return np.ndim(value)
    except (TypeError, ValueError) as error:
        raise _no_array(name, value, error) from None


def unmasked(name: str, value: Any) -> Any:
    """Return value, or the data of a masked array; raise InputError if some values are masked."""
    if not isinstance(value, np.ma.MaskedArray):
        return value
    count = int(np.ma.count_masked(value))
    if count:
        raise InputError(
            f"{name} must have no masked values, got {count} of {value.size}: leave them out, or "
            "fill them"
        )
    return value.data


def is_list(value: object) -> bool:
    """Return True for a value with entries at positions 0, 1, ..., such as an array."""
    has_entries = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return has_entries and not isinstance(value, Mapping)


#: The error of an array of texts.
_TEXTS_ERROR = "texts"


def _no_array(name: str, value: object, error: Exception) -> InputError:
    """Return the InputError for argument ``name`` if NumPy raised ``error`` when converting it."""
    if "inhomogeneous" in str(error):
        return InputError(
            f"{name} must be an array of numbers, got lists of different lengths, {show(value)}"
        )
    advice = ": write numbers without quotes" if str(error) == _TEXTS_ERROR else ""
    if isinstance(value, Mapping):
        advice = ": make an array of its columns, such as numpy.column_stack(list(x.values()))"
    return InputError(f"{name} must be an array of numbers, got {show(value)}{advice}")


def _converted(name: str, value: Any, dtype: Any) -> np.ndarray:
    """Convert value to an aligned C-contiguous array of dtype; raise InputError if this fails."""
    value = unmasked(name, value)
    try:
        if type(value) is list and (result := np.asarray(value)).dtype == dtype == np.float64:
            # The common case: a list of real numbers, for which alone NumPy chooses float64. The
            # result needs no second conversion.
            return result
        kind = np.asarray(value).dtype.kind
        if kind in "SU":
            # Texts are always refused. If NumPy can convert them to numbers, `_TEXTS_ERROR` makes
            # the message advise to leave out the quotes; otherwise NumPy raises an error here.
            np.asarray(value, dtype=dtype)
            raise TypeError(_TEXTS_ERROR)
        if np.iscomplexobj(value) or kind in "mM":
            raise TypeError
        # The caller refuses infinity and NaN; signalling NaN must not warn here.
        floats = np.dtype(dtype).kind == "f"
        with np.errstate(over="ignore", invalid="ignore" if floats else "warn"):
            result = np.ascontiguousarray(value, dtype=dtype)
        if not result.flags.aligned:
            # Compiled code needs aligned numbers.
            result = result.copy()
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_array(name, value, error) from None
    return result.reshape(()) if np.ndim(value) == 0 else result


def array(
    name: str,
    value: Any,
    *,
    ndim: int | None = None,
    shape: tuple[int | None, ...] | None = None,
    dtype: Any = np.float64,
    finite: bool = True,
) -> np.ndarray:
    """Return value as an aligned C-contiguous array of dtype.

    Raises InputError if it has a different number of axes than ``ndim`` or a different ``shape``,
    or, with ``finite``, entries that are not finite. None in ``shape`` allows any length.
    """
    needs_no_conversion = (
        type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous
    )
    result = (
        value if needs_no_conversion and value.flags.aligned else _converted(name, value, dtype)
    )
    if ndim is not None and result.ndim != ndim:
        axes = f"{ndim} axes" if ndim != 1 else "1 axis"
        raise InputError(f"{name} must have {axes}, got shape {result.shape}")
    if shape is not None and result.shape != shape:
        fits = result.ndim == len(shape) and all(
            want is None or want == have for want, have in zip(shape, result.shape, strict=True)
        )
        if not fits:
            wanted_shape = ", ".join("any" if s is None else str(s) for s in shape)
            wanted_shape = f"({wanted_shape},)" if len(shape) == 1 else f"({wanted_shape})"
            one_row = result.ndim == 1 and len(shape) == 2 and shape[1] in (None, len(result))
            remedy = f": a single row is [{name}], in brackets" if one_row else ""
            raise InputError(f"{name} must have shape {wanted_shape}, got {result.shape}{remedy}")
    if finite and result.dtype.kind == "f" and not np.isfinite(result).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(result))[0])
        raise InputError(f"{name} must be finite, got {result[index]} at index {index}")
    return result


# ---- Objects that must not be duplicated ---------------------------------------------------------
#
# These objects hold private data or its noise. A copy, a pickle or a forked process could release
# the same data again with fresh noise, and averaging such releases reveals the data. So these
# objects cannot be copied or pickled, work only in the process that created them, and run one call
# at a time.

F = TypeVar("F", bound=Callable[..., Any])


class Once:
    """Base of classes that must not be duplicated.

    Methods that change the object or release data are decorated with ``once``.
    """

    def __new__(cls, *args: Any, **keys: Any) -> Any:
        """Create the object with a lock, and remember the process that created it."""
        instance: Any = super().__new__(cls)
        instance._process = os.getpid()
        instance._turn = threading.RLock()
        return instance

    def _refuse(self, what: str) -> NoReturn:
        """Raise InputError, because this object cannot be copied, pickled or shared."""
        raise InputError(
            f"a {type(self).__name__} cannot be {what}: two copies would release the same data "
            "with two different noises; keep one object in one process (only deployments can save "
            "and load their parties, since they record what was released)"
        )

    def __copy__(self) -> NoReturn:
        """Raise InputError: a copy would release the same data with a different noise."""
        self._refuse("copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Raise InputError: a copy would release the same data with a different noise."""
        self._refuse("copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise InputError: a copy would release the same data with a different noise."""
        self._refuse("pickled")


def once(method: F) -> F:
    """Decorate a method: calls run one at a time, and only in the process that made the object."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **keys: Any) -> Any:
        """Call the method under the object's lock; refuse the call in a forked process."""
        if os.getpid() != self._process:
            self._refuse("used in a forked process")
        with self._turn:
            return method(self, *args, **keys)

    return guarded  # type: ignore[return-value]
