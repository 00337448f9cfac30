"""Results of an experiment in memory: curves with all replicates, and tables of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from fastfed._display import Displayed, Located, renderer
from fastfed._validate import InputError, choice, listed, nearest_label, number, show
from fastfed.results.paired import LOCAL_SYSTEM, baseline_differences, baseline_of, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# ---- Counts over replicates ----------------------------------------------------------------------

#: float64 represents all integers up to this one exactly.
MAX_EXACT = 2.0**53


def whole_bytes(bits: np.ndarray) -> np.ndarray:
    """Convert numbers of bits to numbers of bytes, rounded up; elementwise."""
    return np.ceil(bits / 8.0)


def means(counts: np.ndarray) -> list[float]:
    """Return the means (C,) over replicates of ``counts`` (R, C): R replicates, C checkpoints.

    A mean is an int if all replicates have the same count, at most 2^53. Otherwise it is a float.
    """
    first, mean = counts[0], counts.mean(axis=0)
    all_equal = (counts == first).all(axis=0)
    # If all counts are equal, return the count: its floating-point mean may be rounded.
    return [
        (int(count) if count <= MAX_EXACT else float(count)) if equal else float(average)
        for count, average, equal in zip(first, mean, all_equal, strict=True)
    ]


# ---- Curves and results --------------------------------------------------------------------------


#: Names that other libraries use for tables of results -> what to write here.
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("df", "frame", "dataframe", "to_pandas", "to_df"), "results.to_frame()"),
    "summary": 'results.to_frame("summary")',
    "to_csv": "results.to_frame().to_csv(path)",
    "to_dict": "results.to_records()",
}


class UnknownKey(InputError, KeyError):
    """Raised if a certificate or results have no such key."""

    __str__ = Exception.__str__  # KeyError quotes its message


class StoredCertificate(dict[str, Any], Displayed, Located):
    """A stored certificate: a dict of plain data that prints as text."""

    def __str__(self) -> str:
        """Return the text of the certificate; ``dict(certificate)`` returns the data."""
        return str(renderer().as_text(self))

    def where_is(self, name: str) -> str:
        """Return the expression that reads a key of a certificate; empty for unknown keys."""
        if name in self:
            return f'certificate["{name}"]'
        if name == "to_builtins":
            return "dict(certificate), since a stored certificate is plain data"
        if name in ("to_dp_event", "epsilon_at", "delta_at"):
            return f"fastfed.privacy.Certificate.from_builtins(certificate).exact.{name}(...)"
        if name not in ("epsilon", "delta", "mu"):
            return ""
        return f'certificate["exact"]["{name}"] (what holds) or certificate["claimed"]["{name}"]'

    def __missing__(self, key: object) -> NoReturn:
        """Raise UnknownKey for a missing key, with where its value is, or a list of all keys."""
        where = self.where_is(str(key))
        hint = f": write {where}" if where else f"; it has {', '.join(self)}"
        raise UnknownKey(f"a certificate has no key {show(key)}{hint}")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text if IPython runs in a terminal."""
        printer.text(str(self))


@dataclass(frozen=True, repr=False)
class CurveResult(Displayed, Located):
    """One curve of an experiment: regret and messages at the checkpoints, and its certificate.

    R is the number of replicates, and C the number of checkpoints. Properties such as ``bits_up``
    are means over replicates: an int if all replicates have the same count of at most 2^53, else a
    float.

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
        Number of the replicate of each row.
    synchronisation_counts : ndarray of int64, shape (R, C)
        Synchronisations up to each checkpoint.
    bits_up_counts, bits_down_counts : ndarray, shape (R, C)
        Bits that all silos sent, and received, up to each checkpoint.
    certificate : dict
        The privacy certificate as plain data.
    events : dict
        Name of an event (such as indefinite V, clipped features, switches of expert) -> how often
        it happened in all replicates.
    agent_rounds_per_second : float, optional
        Speed of one thread; None if it was not measured.
    bounds : dict
        Name of a bound -> its C values. If the name begins with "synchronisations", it bounds the
        number of synchronisations, otherwise group regret. It is infinite where theory gives no
        bound.
    packages : dict
        Part of the curve that a plug-in provides ("algorithm", "environment", "score") -> package
        and version.
    provenance : dict
        "version", "spec_digest" and "date" of a stored certificate: which fastfed computed it, from
        which spec, and when.
    about_records : tuple of str
        If records are real: warnings about them that no certificate contains. Else empty.
    parameters : dict
        Keys of the curve in the spec, except label and algorithm; a swept key has its value for
        this curve. Keys at their defaults may be missing.
    cautions : tuple of str
        Sentences about an environment whose results do not show what a reader expects, such as
        silos that fastfed made by dividing records. Else empty.
    random_regret : (float, float), optional
        Group regret of uniformly random actions at the last round and its standard error, estimated
        from rounds drawn at random. None if it is unknown.
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
    provenance: dict[str, str] = field(default_factory=dict)
    about_records: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()
    random_regret: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Convert sequences to tuples, and the certificate to one that prints as text."""
        object.__setattr__(self, "cautions", tuple(self.cautions))
        if self.random_regret is not None:
            object.__setattr__(self, "random_regret", tuple(self.random_regret))
        object.__setattr__(self, "about_records", tuple(self.about_records))
        object.__setattr__(self, "certificate", StoredCertificate(self.certificate))

    def __repr__(self) -> str:
        """Return label, final group regret and privacy status."""
        end = self.final()
        single = len(self.replicates) == 1
        error = "" if single else f" ± {end['stderr']:.2g}"
        return (
            f"<{self.label}: group regret {end['mean']:.6g}{error} after {self.horizon} rounds, "
            f"{len(self.replicates)} replicate{'' if single else 's'}, "
            f"privacy {self.certificate['status']}>"
        )

    @property
    def synchronisations(self) -> float:
        """Return the number of synchronisations in a replicate, averaged over replicates."""
        return means(self.synchronisation_counts[:, -1:])[0]

    @property
    def synchronisations_curve(self) -> list[float]:
        """Return the number of synchronisations up to each checkpoint, (C,), on average."""
        return means(self.synchronisation_counts)

    @property
    def bits_up(self) -> float:
        """Return the bits that all silos send in a replicate, averaged over replicates."""
        return means(self.bits_up_counts[:, -1:])[0]

    @property
    def bits_down(self) -> float:
        """Return the bits that all silos receive in a replicate, averaged over replicates."""
        return means(self.bits_down_counts[:, -1:])[0]

    @property
    def bytes_up(self) -> float:
        """Return the bytes that all silos send in a replicate, rounded up and then averaged."""
        return means(whole_bytes(self.bits_up_counts[:, -1:]))[0]

    @property
    def bytes_down(self) -> float:
        """Return the bytes that all silos receive in a replicate, rounded up and then averaged."""
        return means(whole_bytes(self.bits_down_counts[:, -1:]))[0]

    @property
    def bytes_curve(self) -> list[float]:
        """Return the mean number of bytes sent and received up to each checkpoint, (C,)."""
        return means(whole_bytes(self.bits_up_counts) + whole_bytes(self.bits_down_counts))

    @property
    def bytes_sent(self) -> float:
        """Return the bytes that all silos send and receive in a replicate, on average."""
        bits_up, bits_down = self.bits_up_counts[:, -1:], self.bits_down_counts[:, -1:]
        return means(whole_bytes(bits_up) + whole_bytes(bits_down))[0]

    @property
    def mean(self) -> np.ndarray:
        """Return the mean group regret at the checkpoints, (C,)."""
        return self.group_regret.mean(axis=0)

    @property
    def stderr(self) -> np.ndarray:
        """Return the standard error of ``mean``, (C,); NaN for a single replicate."""
        return standard_error(self.group_regret)

    @property
    def counts(self) -> dict[str, np.ndarray]:
        """Return the counts up to each checkpoint by name, such as "bits_up", each (R, C)."""
        return {
            "synchronisations": self.synchronisation_counts,
            "bits_up": self.bits_up_counts,
            "bits_down": self.bits_down_counts,
            "bytes_up": whole_bytes(self.bits_up_counts),
            "bytes_down": whole_bytes(self.bits_down_counts),
        }

    def where_is(self, name: str) -> str:
        """Return the expression that reads ``name`` of a curve; empty for unknown names."""
        if name in ("regret", "final_regret"):
            return 'curve.final()["mean"] or, at all checkpoints, curve.mean'
        if name == "status":
            return 'curve.certificate["status"]'
        return f'curve.parameters["{name}"]' if name in vars(self).get("parameters", ()) else ""

    def final(self, divisor: float = 1.0) -> dict[str, float]:
        """Return the mean and standard error of the final group regret, divided by ``divisor``.

        Parameters
        ----------
        divisor : float
            For example the number of silos, for regret per silo; above 0.

        Returns
        -------
        dict
            "mean" and "stderr".

        Raises
        ------
        InputError
            If ``divisor`` is not above 0.
        """
        divisor = number("divisor", divisor, above=0.0)
        return {"mean": float(self.mean[-1]) / divisor, "stderr": float(self.stderr[-1]) / divisor}

    def plot(
        self,
        ax: Axes | None = None,
        *,
        metric: str = "group_regret",
        bounds: bool = False,
        log: str = "",
    ) -> Axes:
        """Draw only this curve; see `Results.plot` for arguments, errors and the result.

        On axes that already have lines, the curve takes the next colour.
        """
        axes: Axes = renderer().plot(self._as_results(), ax, metric=metric, bounds=bounds, log=log)
        return axes

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """Return this curve's rows of `Results.to_records`.

        They lack the keys "experiment" and "horizon".
        """
        return records(columns([self], level))

    def to_frame(self, level: str = "summary") -> DataFrame:
        """Return ``to_records`` as a pandas DataFrame; see `Results.to_frame`."""
        return frame(columns([self], level))

    @property
    def dated_certificate(self) -> dict[str, Any]:
        """Return the certificate, with version, spec digest and date if the store has them."""
        return StoredCertificate({**self.certificate, **self.provenance})

    def _as_results(self) -> Results:
        """Return results with this curve only."""
        return Results(self.label, self.horizon, self.silos, (self,), {})

    def to_builtins(self) -> dict[str, Any]:
        """Return the curve as plain data, as in the JSON of ``fastfed results``."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "parameters": self.parameters,
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
            "random_regret": self.random_regret
            and dict(zip(("mean", "stderr"), self.random_regret, strict=True)),
            "events": self.events,
            "agent_rounds_per_second": self.agent_rounds_per_second,
            "certificate": self.dated_certificate,
        }


def standard_error(values: np.ndarray) -> np.ndarray:
    """Return the standard error (C,) of the mean over replicates.

    ``values`` (R, C) are the values of R replicates at C checkpoints. The standard error is NaN for
    a single replicate.
    """
    n = len(values)
    if n < 2:
        return np.full(values.shape[1], math.nan)
    error: np.ndarray = values.std(axis=0, ddof=1) / math.sqrt(n)
    return error


def total_events(replicates: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return name of an event -> how often it happened in all replicates together."""
    names = list(dict.fromkeys(name for events in replicates for name in events))
    return {name: sum(events.get(name, 0) for events in replicates) for name in names}


class UnknownCurve(UnknownKey):
    """Raised if no curve has the requested label."""


@dataclass(frozen=True, repr=False)
class Results(Displayed, Located):
    """All curves of one experiment, as ``simulate`` returns and ``load`` reads them.

    ``results[label]`` returns the curve with this label. ``len(results)`` is the number of curves,
    and a loop over ``results`` gives the curves in the order of the spec.

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

    def where_is(self, name: str) -> str:
        """Return the expression that reads an attribute of a curve; empty for unknown ones."""
        if name in _NAMES_ELSEWHERE:
            return _NAMES_ELSEWHERE[name]
        is_of_curve = hasattr(CurveResult, name) or name in (f.name for f in fields(CurveResult))
        return f"results.curves[0].{name} or results[label].{name}" if is_of_curve else ""

    def __repr__(self) -> str:
        """Return a line about the experiment, and a line for each curve."""
        lines = [f"<Results of {self.experiment}: {self.silos} silos, {self.horizon} rounds>"]
        return "\n  ".join([*lines, *map(repr, self.curves)])

    def __getitem__(self, label: str) -> CurveResult:
        """Return the curve with this label."""
        for curve in self.curves:
            if curve.label == label:
                return curve
        labels = [c.label for c in self.curves]
        if isinstance(label, int):
            raise UnknownCurve(
                f"label must be the label of a curve, got {label}: for positions use results.curves"
            )
        raise UnknownCurve(f"no curve {show(label)}{nearest_label(label, labels)}")

    def __len__(self) -> int:
        """Return the number of curves."""
        return len(self.curves)

    def __iter__(self) -> Iterator[CurveResult]:
        """Iterate over the curves, in the order of the spec."""
        return iter(self.curves)

    def select(self, **keys: Any) -> Results:
        """Return the results of the curves with these values, such as ``select(epsilon=1.0)``.

        Parameters
        ----------
        **keys
            Keys of curves in the spec, or "label", "algorithm", "protocol", "silos" or
            "dimension". A list of values selects curves with any of them. 1 and 1.0 are equal.

        Returns
        -------
        Results
            The same experiment with the selected curves only.

        Raises
        ------
        InputError
            If no curve has one of the keys, or none of the curves is selected.
        """
        known_facts = dict.fromkeys(name for curve in self.curves for name in _facts(curve))
        for name in keys:
            if name not in known_facts:
                raise InputError(
                    f'no curve has the key "{name}"{listed(name, known_facts, "there are")}'
                )
        wanted_facts = {
            name: value if isinstance(value, (list, tuple, set)) else [value]
            for name, value in keys.items()
        }
        curves = tuple(
            curve
            for curve in self.curves
            if all(
                name in (facts := _facts(curve)) and any(facts[name] == value for value in values)
                for name, values in wanted_facts.items()
            )
        )
        if not curves:
            raise InputError(_nothing_selected(self.curves, wanted_facts))
        return replace(self, curves=curves)

    def paired_difference(
        self, first: str, second: str | None = None, *, per_silo: bool = False
    ) -> tuple[float, float]:
        """Compare the final group regret of two curves, replicate by replicate.

        All curves of an experiment have the same contexts and reward noise in a replicate. So the
        difference varies much less between replicates than the regret of each curve does.

        Parameters
        ----------
        first : str
            Label of a curve.
        second : str, optional
            Label of the curve to compare with. By default the baseline: the curve that
            ``figure.baseline`` of the spec names, or else the curve of silos that are alone
            (``local-linucb``).
        per_silo : bool
            True to divide the regret of each curve by that curve's number of silos.

        Returns
        -------
        mean, stderr : float
            Mean of (first - second) over the replicates that both curves have, and its standard
            error. The standard error is NaN for a single replicate.

        Raises
        ------
        UnknownCurve
            If no curve has one of the labels. It is a KeyError and an InputError.
        InputError
            If there is no ``second``, and the results have no baseline for the curve.
        """
        curve = self[first]
        second_curve = baseline_of(self, curve) if second is None else self[second]
        if second_curve is None:
            if curve.algorithm == LOCAL_SYSTEM and "baseline" not in self.figure:
                raise InputError(
                    f"{show(first)} is the baseline of the other curves: give a second label to "
                    "compare it with"
                )
            raise InputError(
                f"there is no baseline for {show(first)}: give a second label, or add a curve of "
                f'algorithm "{LOCAL_SYSTEM}" to the spec'
            )
        paired = difference(curve, second_curve, per_silo)
        return paired.mean, paired.stderr

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

        Lines are means over replicates at the checkpoints. Bands extend by two standard errors on
        each side. The colour of a curve does not depend on which curves are drawn, and is the same
        as in a report with one panel. On axes that already have curves, the new curves get the next
        colours. Panels and scales that the spec's figure defines appear only in the report.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            The axes to draw into. By default pyplot creates a figure.
        metric : str, optional
            "group_regret", "per_silo_regret" (divided by the number of silos of the curve) or
            "time_average_regret" (divided by the round). Or a count up to the checkpoint, summed
            over silos and averaged over replicates: "synchronisations", "bits", "bytes" (sent and
            received), "bits_up", "bits_down", "bytes_up", "bytes_down". The default is the metric
            of the spec's figure, or "group_regret" if it has none.
        bounds : bool
            True to also draw regret bounds: those that the spec's figure lists
            (``[[figure.line]]``) or, if it lists none, all stored bounds. Bounds are cut at three
            times the largest curve.
        log : {"", "x", "y", "xy"}
            Which axes are logarithmic.
        curves : iterable of str, optional
            Labels of the curves to draw; all curves by default.

        Returns
        -------
        matplotlib Axes
            The axes drawn into.

        Raises
        ------
        InputError
            If matplotlib is missing, for an unknown label or metric, for results without curves,
            and for ``bounds`` with a metric that is not regret.
        """
        axes: Axes = renderer().plot(self, ax, metric=metric, bounds=bounds, log=log, curves=curves)
        return axes

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """Return the results as a tidy table: a list of rows, each a dict of plain values.

        Keys are named as in ``fastfed results --json``, such as ``group_regret_mean``. ``round`` is
        a checkpoint, and counts are up to this checkpoint. An unknown value (such as an epsilon
        that is not proven, or the standard error of a single replicate) is None. After the key
        "protocol" come the keys of curves in the spec, such as ``epsilon``. The value of a key that
        a curve does not have is None. A value that is a table, such as a delay, is JSON text.

        Parameters
        ----------
        level : {"summary", "curves", "replicates"}
            "summary": one row per curve. "curves": one row per (label, round), with means and
            standard errors over replicates, and bounds as ``bound_<name>``. "replicates": one row
            per (label, replicate, round).

        Returns
        -------
        list of dict
            The rows.

        Raises
        ------
        InputError
            For an unknown level.
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
            One row per record, with one column per key. An unknown number is NaN.

        Raises
        ------
        InputError
            For an unknown level, and if pandas is missing.
        """
        return frame(self._columns(level))

    def _columns(self, level: str) -> Columns:
        """Return the columns of the table of a level, for `to_records` and `to_frame`.

        Name and horizon of the experiment come first, then the columns of the curves.
        """
        of_curves = columns(self.curves, level)
        rows = len(of_curves.get("label", []))
        constants: dict[str, Any] = {"experiment": self.experiment, "horizon": self.horizon}
        table = {name: [value] * rows for name, value in constants.items()} | of_curves
        return table | self.difference_columns() if level == "summary" else table

    def difference_columns(self) -> Columns:
        """Return the columns of a summary that compare every curve with its baseline.

        They are ``baseline`` (a label), ``difference_mean`` and ``difference_stderr``. Their values
        are None for a curve without a baseline. If no curve has a baseline, there are no columns.
        """
        differences = baseline_differences(self)
        if not any(differences):
            return {}
        return {
            "baseline": [difference and difference.second for difference in differences],
            "difference_mean": [difference and difference.mean for difference in differences],
            "difference_stderr": [difference and difference.stderr for difference in differences],
        }

    def to_builtins(self) -> dict[str, Any]:
        """Return all curves as plain data, which is the JSON of ``fastfed results``.

        Returns
        -------
        dict
            "experiment", "horizon", "silos", and "curves", a list with a dict for each curve: final
            regrets with standard errors, means at the checkpoints, messages, events, bounds, the
            certificate, and "difference": its regret minus that of its baseline, with the standard
            error, or None.
        """
        differences = baseline_differences(self)
        return {
            "experiment": self.experiment,
            "horizon": self.horizon,
            "silos": self.silos,
            "curves": [
                {
                    **curve.to_builtins(),
                    "difference": paired
                    and {"baseline": paired.second, "mean": paired.mean, "stderr": paired.stderr},
                }
                for curve, paired in zip(self.curves, differences, strict=True)
            ],
        }


# ---- Tidy tables ---------------------------------------------------------------------------------
# Columns are named as in the JSON of ``fastfed results``. An object with "mean" and "stderr", such
# as "group_regret", becomes the columns ``group_regret_mean`` and ``group_regret_stderr``.

LEVELS = ("summary", "curves", "replicates")
#: Largest number of values that an error of `Results.select` lists.
SHOWN = 12
#: Events that have a column. The value is None for a curve that does not count the event.
EVENTS = ("indefinite", "clipped_features", "clipped_rewards", "switches", "switches_spent")
REGRETS = ("group_regret", "per_silo_regret", "time_average_regret")
NO_PANDAS = (
    'to_frame needs pandas, which is not installed: pip install "fastfed[export]" '
    "(to_records needs nothing)"
)

#: Columns by name: a list of plain values, or an array of numbers with NaN for unknown numbers.
Columns = dict[str, list[Any] | np.ndarray]


def columns(curves: Iterable[CurveResult], level: str) -> Columns:
    """Return the columns of a table of curves, with all rows of the first curve first.

    ``level`` is one of `LEVELS`, see `Results.to_records`.
    """
    choice("level", level, LEVELS)
    curves = tuple(curves)
    parameters = parameter_names(curves)
    parts = [_with_parameters(_BY_LEVEL[level](curve), curve, parameters) for curve in curves]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _concatenated([_column(part, name) for part in parts]) for name in names}


def parameter_names(curves: Iterable[CurveResult]) -> list[str]:
    """Return the spec's keys of curves that become columns: those not named like other columns."""
    names = dict.fromkeys(name for curve in curves for name in curve.parameters)
    taken = {"experiment", "horizon", "label", "algorithm", "protocol", "silos", "dimension"}
    return [name for name in names if name not in taken | {"replicates", "replicate", "round"}]


def parameter(curve: CurveResult, name: str) -> Any:
    """Return a curve's value of a key of the spec, as JSON if it is a list or table.

    Return None if the curve does not have the key.
    """
    value = curve.parameters.get(name)
    is_plain = value is None or isinstance(value, (str, int, float))
    return value if is_plain else msgspec.json.encode(value).decode()


def _with_parameters(table: Columns, curve: CurveResult, names: Sequence[str]) -> Columns:
    """Return a curve's table with columns for these keys of the spec after "protocol"."""
    rows, with_parameters = len(table["label"]), {}
    for column, values in table.items():
        with_parameters[column] = values
        if column == "protocol":
            with_parameters |= {name: [parameter(curve, name)] * rows for name in names}
    return with_parameters


def _column(part: Columns, name: str) -> list[Any] | np.ndarray:
    """Return a column from the table of one curve; NaN in all rows if the table lacks it."""
    # Only columns of bounds can be missing. Bounds are numbers, so NaN is the unknown value.
    return part[name] if name in part else np.full(len(part["label"]), math.nan)


def _concatenated(parts: list[list[Any] | np.ndarray]) -> list[Any] | np.ndarray:
    """Return the concatenation of a column's parts, as an array if all parts are arrays."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def records(columns: Columns) -> list[dict[str, Any]]:
    """Convert columns to rows: dicts of plain values, with None for unknown values."""
    plain = [
        [_none_if_nan(v) for v in (values.tolist() if isinstance(values, np.ndarray) else values)]
        for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


def frame(columns: Columns) -> DataFrame:
    """Convert columns to a pandas DataFrame, with NaN for unknown numbers.

    Raises
    ------
    InputError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(NO_PANDAS) from None
    return pandas.DataFrame({name: _unknown_as_nan(values) for name, values in columns.items()})


def _unknown_as_nan(values: list[Any] | np.ndarray) -> list[Any] | np.ndarray:
    """Return a column of numbers and None as an array with NaN, and any other column as it is."""
    if isinstance(values, np.ndarray) or None not in values:
        return values
    are_numbers = all(value is None or isinstance(value, (int, float)) for value in values)
    return np.array(values, np.float64) if are_numbers else values


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
    """Return the columns of a curve for the level "summary", with one row."""
    return {name: [value] for name, value in summary(curve).items()}


def _curves(curve: CurveResult) -> Columns:
    """Return the columns of a curve for the level "curves": one row per checkpoint."""
    table = _name_columns(curve, len(curve.rounds))
    table["round"] = curve.rounds
    for name, divisor in _divisors(curve).items():
        table[f"{name}_mean"] = curve.mean / divisor
        table[f"{name}_stderr"] = curve.stderr / divisor
    table |= {name: np.array(means(counts)) for name, counts in curve.counts.items()}
    return table | {f"bound_{name}": np.array(values) for name, values in curve.bounds.items()}


def _replicates(curve: CurveResult) -> Columns:
    """Return a curve's columns for the level "replicates": a row per replicate and checkpoint."""
    n_replicates, n_checkpoints = curve.group_regret.shape
    table = _name_columns(curve, n_replicates * n_checkpoints)
    table["replicate"] = np.repeat(curve.replicates, n_checkpoints)
    table["round"] = np.tile(curve.rounds, n_replicates)
    for name, divisor in _divisors(curve).items():
        table[name] = (curve.group_regret / divisor).ravel()
    return table | {name: counts.ravel() for name, counts in curve.counts.items()}


_BY_LEVEL = {"summary": _summary, "curves": _curves, "replicates": _replicates}


def _facts(curve: CurveResult) -> dict[str, Any]:
    """Return the values by which `Results.select` selects a curve: spec keys, names and sizes."""
    names = ("label", "algorithm", "protocol", "silos", "dimension")
    return {**curve.parameters, **{name: getattr(curve, name) for name in names}}


def _nothing_selected(curves: Sequence[CurveResult], wanted_facts: dict[str, Any]) -> str:
    """Return the error message if `Results.select` selects no curve.

    ``wanted_facts`` maps each requested key to its requested values. If there are keys of which no
    curve has a requested value, the message lists the existing values of the first such key.
    """
    if not curves:
        return "there are no curves to select from: no replicate has run to its end yet"
    for name, values in wanted_facts.items():
        existing = [facts[name] for curve in curves if name in (facts := _facts(curve))]
        if not any(value in existing for value in values):
            distinct = [value for i, value in enumerate(existing) if value not in existing[:i]]
            shown = ["unset" if value is None else show(value) for value in distinct[:SHOWN]]
            others_text = f" and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
            return (
                f"no curve has {name} = {' or '.join(map(show, values)) or '(an empty list)'}; "
                f"there are {', '.join(shown)}{others_text}"
            )
    pairs = ", ".join(f"{name} = {' or '.join(map(show, v))}" for name, v in wanted_facts.items())
    return f"no curve has all of {pairs}; each of these values occurs in some curve"


def _name_columns(curve: CurveResult, rows: int) -> Columns:
    """Return the columns "label", "algorithm" and "protocol" of a curve, each ``rows`` long."""
    return {name: [getattr(curve, name)] * rows for name in ("label", "algorithm", "protocol")}


def _divisors(curve: CurveResult) -> dict[str, Any]:
    """Return the divisor of group regret for each kind of regret: 1, silos, or rounds (C,)."""
    return dict(zip(REGRETS, (1, curve.silos, curve.rounds), strict=True))


def _none_if_nan(value: Any) -> Any:
    """Return ``value``, or None if it is NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
