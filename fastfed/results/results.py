"""Results of an experiment in memory: curves over replicates, and tidy tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._display import Displayed, renderer
from fastfed._validate import InputError, choice, listed, number, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# ---- Counts over replicates ----------------------------------------------------------------------

#: Largest count that float64 holds exactly.
COUNTED = 2.0**53


def whole_bytes(bits: np.ndarray) -> np.ndarray:
    """Return the number of whole bytes that hold so many bits, elementwise."""
    return np.ceil(bits / 8.0)


def means(counts: np.ndarray) -> list[float]:
    """Return the mean over replicates of counts (R, C), one for each checkpoint.

    A mean is an int where all replicates counted the same, and a float otherwise and beyond 2^53.
    """
    first, mean = counts[0], counts.mean(axis=0)
    agree = (counts == first).all(axis=0)
    # The mean of equal counts may round.
    return [
        (int(count) if count <= COUNTED else float(count)) if same else float(average)
        for count, average, same in zip(first, mean, agree, strict=True)
    ]


# ---- Curves and results --------------------------------------------------------------------------


class StoredCertificate(dict[str, Any], Displayed):
    """A certificate as it is stored: plain data, printed and displayed as text."""

    def __str__(self) -> str:
        """Format as the certificate that was stored does; ``dict(certificate)`` is the data."""
        return str(renderer().as_text(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print text where IPython runs in a terminal."""
        printer.text(str(self))


@dataclass(frozen=True, repr=False)
class CurveResult(Displayed):
    """One curve: every replicate's regret and messages at the checkpoints, and its guarantee.

    R is the number of replicates and C that of checkpoints. Properties such as ``bits_up`` are
    means over replicates: an int where all of them counted the same, and a float otherwise and
    beyond 2^53.

    Parameters
    ----------
    label, algorithm, protocol : str
        As in the spec.
    silos, dimension, horizon : int
        M, d and T.
    rounds : ndarray of int64, shape (C,)
        The checkpoints.
    group_regret : ndarray, shape (R, C)
        Cumulative regret, summed over silos.
    replicates : tuple of int
        Numbers of the replicates, in the order of the rows.
    synchronisation_counts : ndarray of int64, shape (R, C)
        Synchronisations so far.
    bits_up_counts, bits_down_counts : ndarray, shape (R, C)
        Bits sent so far by all silos, and to all silos.
    certificate : dict
        The privacy certificate as plain data.
    events : dict
        Totals over replicates by name: indefinite V, clipped features, switches of expert, ...
    agent_rounds_per_second : float, optional
        Speed of one thread; None where nothing was timed.
    bounds : dict
        Bounds by name, each a list of C numbers: of group regret, or where the name begins with
        "synchronisations" of the number of synchronisations. Infinite where nothing is promised.
    packages : dict
        Packages with versions, by part (algorithm, environment, score), of parts that are not
        fastfed's own.
    made : dict
        Provenance of the certificate, if it is stored: "version", "spec_digest" and "date".
    about_records : tuple of str
        What no certificate covers where the records are real; empty elsewhere.
    """

    label: str
    algorithm: str
    protocol: str
    silos: int
    dimension: int
    horizon: int
    rounds: np.ndarray
    group_regret: np.ndarray
    replicates: tuple[int, ...]
    synchronisation_counts: np.ndarray
    bits_up_counts: np.ndarray
    bits_down_counts: np.ndarray
    certificate: dict[str, Any]
    events: dict[str, int]
    agent_rounds_per_second: float | None = None
    bounds: dict[str, list[float]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    about_records: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "about_records", tuple(self.about_records))
        object.__setattr__(self, "certificate", StoredCertificate(self.certificate))

    def __repr__(self) -> str:
        end = self.final()
        one = len(self.replicates) == 1
        error = "" if one else f" ± {end['stderr']:.2g}"
        return (
            f"<{self.label}: group regret {end['mean']:.6g}{error} after {self.horizon} rounds, "
            f"{len(self.replicates)} replicate{'' if one else 's'}, "
            f"privacy {self.certificate['status']}>"
        )

    @property
    def synchronisations(self) -> float:
        """Synchronisations of a replicate at the last round."""
        return means(self.synchronisation_counts[:, -1:])[0]

    @property
    def synchronisations_curve(self) -> list[float]:
        """Synchronisations by each checkpoint, (C,)."""
        return means(self.synchronisation_counts)

    @property
    def bits_up(self) -> float:
        """Bits that all silos send in a replicate."""
        return means(self.bits_up_counts[:, -1:])[0]

    @property
    def bits_down(self) -> float:
        """Bits sent to all silos in a replicate."""
        return means(self.bits_down_counts[:, -1:])[0]

    @property
    def bytes_up(self) -> float:
        """Bytes that all silos send in a replicate; rounded up in each replicate."""
        return means(whole_bytes(self.bits_up_counts[:, -1:]))[0]

    @property
    def bytes_down(self) -> float:
        """Bytes sent to all silos in a replicate; rounded up in each replicate."""
        return means(whole_bytes(self.bits_down_counts[:, -1:]))[0]

    @property
    def bytes_curve(self) -> list[float]:
        """Bytes sent up and down by each checkpoint, summed over silos, (C,)."""
        return means(whole_bytes(self.bits_up_counts) + whole_bytes(self.bits_down_counts))

    @property
    def bytes_sent(self) -> float:
        """Bytes up and down in a replicate, summed over silos."""
        up, down = self.bits_up_counts[:, -1:], self.bits_down_counts[:, -1:]
        return means(whole_bytes(up) + whole_bytes(down))[0]

    @property
    def mean(self) -> np.ndarray:
        """Mean group regret at the checkpoints, (C,)."""
        return self.group_regret.mean(axis=0)

    @property
    def stderr(self) -> np.ndarray:
        """Standard error of ``mean``, (C,); NaN for a single replicate."""
        return standard_error(self.group_regret)

    @property
    def counts(self) -> dict[str, np.ndarray]:
        """Counts so far by name, each (R, C): synchronisations, and bits and bytes of all silos."""
        return {
            "synchronisations": self.synchronisation_counts,
            "bits_up": self.bits_up_counts,
            "bits_down": self.bits_down_counts,
            "bytes_up": whole_bytes(self.bits_up_counts),
            "bytes_down": whole_bytes(self.bits_down_counts),
        }

    def final(self, divisor: float = 1.0) -> dict[str, float]:
        """Return mean and standard error of final group regret, each over divisor, > 0."""
        divisor = number("divisor", divisor, above=0.0)
        return {
            "mean": float(self.mean[-1]) / divisor,
            "stderr": float(self.stderr[-1]) / divisor,
        }

    def plot(
        self,
        ax: Axes | None = None,
        *,
        metric: str = "group_regret",
        bounds: bool = False,
        log: str = "",
    ) -> Axes:
        """Draw this curve alone; see `Results.plot` for arguments, errors and the result.

        On axes that have lines already it takes the next colour.
        """
        drawn: Axes = renderer().plot(self._alone(), ax, metric=metric, bounds=bounds, log=log)
        return drawn

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """Return the rows of `Results.to_records` for this curve, without its experiment."""
        return records(columns([self], level))

    def to_frame(self, level: str = "summary") -> DataFrame:
        """Return ``to_records`` as a pandas DataFrame; see `Results.to_frame`."""
        return frame(columns([self], level))

    @property
    def dated_certificate(self) -> dict[str, Any]:
        """The certificate with version, spec digest and date of its making, where known."""
        return StoredCertificate({**self.certificate, **self.made})

    def _alone(self) -> Results:
        return Results(self.label, self.horizon, self.silos, (self,), {})

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data of the curve, as in the JSON of ``fastfed results``."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "silos": self.silos,
            "dimension": self.dimension,
            "replicates": len(self.replicates),
            "group_regret": self.final(),
            "per_silo_regret": self.final(self.silos),
            "time_average_regret": self.final(self.horizon),
            "rounds": self.rounds.tolist(),
            "mean_curve": self.mean.tolist(),
            "stderr_curve": self.stderr.tolist(),
            "synchronisations": self.synchronisations,
            "synchronisations_curve": self.synchronisations_curve,
            "bits_up": self.bits_up,
            "bits_down": self.bits_down,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_curve": self.bytes_curve,
            "bounds": self.bounds,
            "packages": self.packages,
            "about_records": list(self.about_records),
            "events": self.events,
            "agent_rounds_per_second": self.agent_rounds_per_second,
            "certificate": self.dated_certificate,
        }


def standard_error(values: np.ndarray) -> np.ndarray:
    """Return the standard error, (C,), of the mean over replicates of values (R, C).

    NaN for a single replicate.
    """
    n = len(values)
    if n < 2:
        return np.full(values.shape[1], math.nan)
    error: np.ndarray = values.std(axis=0, ddof=1) / math.sqrt(n)
    return error


def total_events(replicates: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the counts of events by name, summed over replicates."""
    names = list(dict.fromkeys(name for events in replicates for name in events))
    return {name: sum(events.get(name, 0) for events in replicates) for name in names}


class UnknownCurve(InputError, KeyError):
    """There is no curve of this label."""

    __str__ = Exception.__str__  # KeyError quotes its message


@dataclass(frozen=True, repr=False)
class Results(Displayed):
    """All curves of one experiment, as ``simulate`` returns and ``load`` reads them.

    ``results[label]`` is the curve of that label.

    Parameters
    ----------
    experiment : str
        Name of the experiment.
    horizon, silos : int
        T and M.
    curves : tuple of CurveResult
        The curves, in the order of the spec.
    figure : dict
        Figure settings of the spec.
    """

    experiment: str
    horizon: int
    silos: int
    curves: tuple[CurveResult, ...]
    figure: dict[str, Any]

    def __repr__(self) -> str:
        lines = [f"<Results of {self.experiment}: {self.silos} silos, {self.horizon} rounds>"]
        return "\n  ".join([*lines, *map(repr, self.curves)])

    def __getitem__(self, label: str) -> CurveResult:
        for curve in self.curves:
            if curve.label == label:
                return curve
        labels = [c.label for c in self.curves]
        if isinstance(label, int):
            raise UnknownCurve(
                f"label must be that of a curve, got {label}: results.curves has them by position"
            )
        raise UnknownCurve(f"no curve {show(label)}{listed(str(label), labels, 'there are')}")

    def paired_difference(
        self, first: str, second: str, *, per_silo: bool = False
    ) -> tuple[float, float]:
        """Compare two curves by final group regret, replicate by replicate.

        Curves of one experiment see the same contexts and reward noise, so the difference is much
        less noisy than the curves.

        Parameters
        ----------
        first, second : str
            Labels of the curves.
        per_silo : bool
            Divide each curve's regret by its own number of silos first.

        Returns
        -------
        mean, stderr : float
            Mean of first - second over shared replicates, and its standard error; NaN for one.

        Raises
        ------
        UnknownCurve
            If there is no curve of a label; a KeyError, and an InputError.
        """
        a, b = self[first], self[second]
        shared = sorted(set(a.replicates) & set(b.replicates))
        finals = [
            np.array([c.group_regret[c.replicates.index(r), -1] for r in shared])
            / (c.silos if per_silo else 1)
            for c in (a, b)
        ]
        difference = finals[0] - finals[1]
        spread = difference.std(ddof=1) / math.sqrt(len(shared)) if len(shared) > 1 else math.nan
        return float(difference.mean()), float(spread)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        metric: str | None = None,
        bounds: bool = False,
        log: str = "",
        curves: Iterable[str] | None = None,
    ) -> Axes:
        """Draw the curves into one pair of axes.

        Lines are means over replicates at the checkpoints, bands two standard errors to either
        side. A curve keeps its colour, whichever curves are drawn, that of the report where it has
        one panel; on axes that have such lines already, colours continue after theirs. Panels and
        scales of the spec's figure are left to the report.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            The axes to draw into; None makes a figure with pyplot.
        metric : str, optional
            "group_regret", "per_silo_regret" (divided by the curve's own silos) or
            "time_average_regret" (divided by the round); or a count so far, the mean over
            replicates of the sum over silos: "synchronisations", "bits", "bytes" (up and down),
            "bits_up", "bits_down", "bytes_up", "bytes_down". None: the metric of the spec's
            figure, else "group_regret".
        bounds : bool
            Draw the regret bounds that the figure asks for (``[[figure.line]]``) too, or all that
            are stored where it asks for none, up to three times the tallest curve.
        log : {"", "x", "y", "xy"}
            Logarithmic axes.
        curves : iterable of str, optional
            Labels of the curves to draw; all by default.

        Returns
        -------
        matplotlib Axes
            The axes drawn into.

        Raises
        ------
        InputError
            Without matplotlib, for an unknown label or metric, for results without curves, and
            for bounds beside a metric that is not regret.
        """
        drawn: Axes = renderer().plot(
            self, ax, metric=metric, bounds=bounds, log=log, curves=curves
        )
        return drawn

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """Return tidy rows as plain dicts, which need no other package.

        Names are those of ``fastfed results --json``, as in ``group_regret_mean``; ``round`` is a
        checkpoint, and counts are up to it. A value is None where nothing is known, such as an
        epsilon that is not proven, or the standard error of a single replicate.

        Parameters
        ----------
        level : {"summary", "curves", "replicates"}
            "summary": one row per curve. "curves": one per (label, round), with means and
            standard errors over replicates, and bounds as ``bound_<name>``. "replicates": one per
            (label, replicate, round).

        Returns
        -------
        list of dict
            The rows.

        Raises
        ------
        InputError
            For another level.
        """
        return records(self._columns(level))

    def to_frame(self, level: str = "summary") -> DataFrame:
        """Return ``to_records`` as a pandas DataFrame.

        Parameters
        ----------
        level : {"summary", "curves", "replicates"}
            See ``to_records``.

        Returns
        -------
        pandas.DataFrame
            One row per record, with a column per key; a number that is not known is NaN.

        Raises
        ------
        InputError
            For another level, and without pandas.
        """
        return frame(self._columns(level))

    def _columns(self, level: str) -> Columns:
        found = columns(self.curves, level)
        rows = len(found.get("label", []))
        whole: dict[str, Any] = {"experiment": self.experiment, "horizon": self.horizon}
        return {name: [value] * rows for name, value in whole.items()} | found

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data of all curves, the JSON of ``fastfed results``.

        Returns
        -------
        dict
            "experiment", "horizon", "silos", and "curves", a dict for each curve: final regrets
            with standard errors, mean curves at the checkpoints, messages, events, bounds and
            certificate.
        """
        return {
            "experiment": self.experiment,
            "horizon": self.horizon,
            "silos": self.silos,
            "curves": [c.to_builtins() for c in self.curves],
        }


# ---- Tidy tables ---------------------------------------------------------------------------------
# Column names are those of the JSON of ``fastfed results``; a pair such as {"mean", "stderr"}
# becomes two columns, ``group_regret_mean`` and ``group_regret_stderr``.

LEVELS = ("summary", "curves", "replicates")
#: Events that have a column; None for a curve that does not count them.
EVENTS = ("indefinite", "clipped_features", "clipped_rewards", "switches", "switches_spent")
REGRETS = ("group_regret", "per_silo_regret", "time_average_regret")
NO_PANDAS = (
    'to_frame needs pandas, which is not installed: pip install "fastfed[export]" '
    "(to_records needs nothing)"
)

#: Columns by name: a list of plain values, or an array of numbers, NaN where nothing is known.
Columns = dict[str, list[Any] | np.ndarray]


def columns(curves: Iterable[CurveResult], level: str) -> Columns:
    """Return the columns of all curves, one curve below the other."""
    choice("level", level, LEVELS)
    parts = [_BY_LEVEL[level](curve) for curve in curves]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _concatenated([_column(part, name) for part in parts]) for name in names}


def _column(part: Columns, name: str) -> list[Any] | np.ndarray:
    # Only bounds, which are numbers, are missing in some curves.
    return part[name] if name in part else np.full(len(part["label"]), math.nan)


def _concatenated(parts: list[list[Any] | np.ndarray]) -> list[Any] | np.ndarray:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def records(columns: Columns) -> list[dict[str, Any]]:
    """Return the rows of columns as dicts of plain values, None where nothing is known."""
    plain = [
        [_known(v) for v in (values.tolist() if isinstance(values, np.ndarray) else values)]
        for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


def frame(columns: Columns) -> DataFrame:
    """Return columns as a pandas DataFrame, NaN for unknown; InputError without pandas."""
    try:
        import pandas
    except ImportError:
        raise InputError(NO_PANDAS) from None
    # Text is always known, so a list with None holds numbers.
    return pandas.DataFrame(
        {
            name: np.array(values, np.float64)
            if isinstance(values, list) and None in values
            else values
            for name, values in columns.items()
        }
    )


def summary(curve: CurveResult) -> dict[str, Any]:
    """Return the summary row of a curve: final values, messages and privacy."""
    certificate = curve.certificate
    claimed, exact = certificate["claimed"] or {}, certificate["exact"] or {}
    names = ("label", "algorithm", "protocol", "silos", "dimension")
    record: dict[str, Any] = {name: getattr(curve, name) for name in names}
    record["replicates"] = len(curve.replicates)
    for name, divisor in zip(REGRETS, (1.0, curve.silos, curve.horizon), strict=True):
        final = curve.final(divisor)
        record[f"{name}_mean"], record[f"{name}_stderr"] = final["mean"], final["stderr"]
    return {
        **record,
        "claimed_epsilon": claimed.get("epsilon"),
        "claimed_delta": claimed.get("delta"),
        "exact_epsilon": exact.get("epsilon"),
        "exact_delta": exact.get("delta"),
        "privacy_status": certificate["status"],
        "privacy_unit": certificate["unit"],
        "privacy_relation": certificate["relation"],
        "synchronisations": curve.synchronisations,
        "bits_up": curve.bits_up,
        "bits_down": curve.bits_down,
        "bytes_up": curve.bytes_up,
        "bytes_down": curve.bytes_down,
        **{event: curve.events.get(event) for event in EVENTS},
        "agent_rounds_per_second": curve.agent_rounds_per_second,
    }


def _summary(curve: CurveResult) -> Columns:
    return {name: [value] for name, value in summary(curve).items()}


def _curves(curve: CurveResult) -> Columns:
    """Return means and standard errors over replicates, at the checkpoints."""
    found = _names(curve, len(curve.rounds))
    found["round"] = curve.rounds
    for name, divisor in _divisors(curve).items():
        found[f"{name}_mean"] = curve.mean / divisor
        found[f"{name}_stderr"] = curve.stderr / divisor
    found |= {name: np.array(means(counts)) for name, counts in curve.counts.items()}
    return found | {f"bound_{name}": np.array(values) for name, values in curve.bounds.items()}


def _replicates(curve: CurveResult) -> Columns:
    """Return the values of every replicate at every checkpoint."""
    many, each = curve.group_regret.shape
    found = _names(curve, many * each)
    found["replicate"] = np.repeat(curve.replicates, each)
    found["round"] = np.tile(curve.rounds, many)
    for name, divisor in _divisors(curve).items():
        found[name] = (curve.group_regret / divisor).ravel()
    return found | {name: counts.ravel() for name, counts in curve.counts.items()}


_BY_LEVEL = {"summary": _summary, "curves": _curves, "replicates": _replicates}


def _names(curve: CurveResult, rows: int) -> Columns:
    return {name: [getattr(curve, name)] * rows for name in ("label", "algorithm", "protocol")}


def _divisors(curve: CurveResult) -> dict[str, Any]:
    """Return the divisors of group regret; the time average is over the rounds so far."""
    return dict(zip(REGRETS, (1, curve.silos, curve.rounds), strict=True))


def _known(value: Any) -> Any:
    """Return value, or None where it is NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
