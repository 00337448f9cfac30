"""The results of an experiment in memory: curves over replicates, with their certificates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._face import Shown, notebook
from fastfed.results import columns
from fastfed.results.counts import means, whole_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class StoredCertificate(dict[str, Any], Shown):
    """A certificate as it is stored: plain data, shown as sentences in notebooks."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As text where IPython prints it in a terminal."""
        printer.text(notebook().as_text(self))


@dataclass(frozen=True, repr=False)
class CurveResult(Shown):
    """One curve: every replicate's regret and messages at the checkpoints, and its guarantee.

    What was sent is a mean over replicates: an int where all of them counted the same, a float
    otherwise and beyond 2^53.
    """

    label: str
    algorithm: str
    protocol: str
    silos: int
    dimension: int
    horizon: int
    rounds: np.ndarray  # (C,) int64
    group_regret: np.ndarray  # (R, C): cumulative, summed over silos
    replicates: tuple[int, ...]
    synchronisation_counts: np.ndarray  # (R, C) int64: so far
    bits_up_counts: np.ndarray  # (R, C): sent so far by all silos
    bits_down_counts: np.ndarray  # (R, C): sent so far to all silos
    certificate: dict[str, Any]
    #: Totals over replicates, by name: indefinite V, clipped features, switches of expert, ...
    events: dict[str, int]
    #: Of one thread; None where nothing was timed.
    agent_rounds_per_second: float | None = None
    #: By name, at the checkpoints (C,): of group regret, and where the name begins with
    #: "synchronisations" of how often a replicate synchronises. Infinite where nothing is promised.
    bounds: dict[str, list[float]] = field(default_factory=dict)
    #: Packages, with their versions, that algorithm, environment or score are from, by part: those
    #: that are not fastfed's own.
    packages: dict[str, str] = field(default_factory=dict)
    #: How the certificate was made: "version" of fastfed, "spec_digest" and "date"; of a store.
    made: dict[str, str] = field(default_factory=dict)
    #: What no certificate covers, where rounds are played on real records; nothing elsewhere.
    about_records: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "about_records", tuple(self.about_records))
        object.__setattr__(self, "certificate", StoredCertificate(self.certificate))

    def __repr__(self) -> str:
        end = self.final()
        return (
            f"<{self.label}: group regret {end['mean']:.6g} ± {end['stderr']:.2g} after "
            f"{self.horizon} rounds, {len(self.replicates)} replicates, "
            f"privacy {self.certificate['status']}>"
        )

    @property
    def synchronisations(self) -> float:
        """Synchronisations of a replicate."""
        return means(self.synchronisation_counts)[-1]

    @property
    def synchronisations_curve(self) -> list[float]:
        """Synchronisations by each checkpoint, (C,)."""
        return means(self.synchronisation_counts)

    @property
    def bits_up(self) -> float:
        """Bits all silos send in a replicate."""
        return means(self.bits_up_counts)[-1]

    @property
    def bits_down(self) -> float:
        """Bits sent to all silos in a replicate."""
        return means(self.bits_down_counts)[-1]

    @property
    def bytes_up(self) -> float:
        """``bits_up`` in bytes, whole ones in every replicate."""
        return means(whole_bytes(self.bits_up_counts))[-1]

    @property
    def bytes_down(self) -> float:
        """``bits_down`` in bytes, whole ones in every replicate."""
        return means(whole_bytes(self.bits_down_counts))[-1]

    @property
    def bytes_curve(self) -> list[float]:
        """Bytes sent up and down by each checkpoint, all silos together, (C,)."""
        return means(whole_bytes(self.bits_up_counts) + whole_bytes(self.bits_down_counts))

    @property
    def bytes_sent(self) -> float:
        """Bytes up and down in a replicate, all silos together."""
        return self.bytes_curve[-1]

    @property
    def mean(self) -> np.ndarray:
        """Mean group regret at the checkpoints, (C,)."""
        return self.group_regret.mean(axis=0)

    @property
    def stderr(self) -> np.ndarray:
        """Standard error of the mean, (C,); NaN for a single replicate, which tells nothing."""
        return standard_error(self.group_regret)

    @property
    def counts(self) -> dict[str, np.ndarray]:
        """What was counted by each checkpoint, by name, (R, C): synchronisations, and what all
        silos together sent and got, in bits and in whole bytes."""
        return {
            "synchronisations": self.synchronisation_counts,
            "bits_up": self.bits_up_counts,
            "bits_down": self.bits_down_counts,
            "bytes_up": whole_bytes(self.bits_up_counts),
            "bytes_down": whole_bytes(self.bits_down_counts),
        }

    def final(self, divisor: float = 1.0) -> dict[str, float]:
        """Mean and standard error at the last round, divided."""
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
        """Draw this curve alone; arguments, errors and what comes back as of `Results.plot`.

        On axes that have lines it takes the next colour.
        """
        drawn: Axes = notebook().plot(self._alone(), ax, metric=metric, bounds=bounds, log=log)
        return drawn

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """The rows of `Results.to_records` for this curve, without its experiment."""
        return columns.records(columns.columns([self], level))

    def to_frame(self, level: str = "summary") -> Any:
        """``to_records`` as a pandas DataFrame, see `Results.to_frame`."""
        return columns.frame(columns.columns([self], level))

    @property
    def dated_certificate(self) -> dict[str, Any]:
        """The certificate with the version, spec and date that it was made by, if they are known:
        as it is handed out."""
        return StoredCertificate({**self.certificate, **self.made})

    def _alone(self) -> Results:
        return Results(self.label, self.horizon, self.silos, (self,), {})

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of one curve."""
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
    """Of the mean over replicates of values (R, C), (C,); NaN for a single replicate."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1], math.nan)
    error: np.ndarray = values.std(axis=0, ddof=1) / math.sqrt(n)
    return error


def total_events(replicates: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counts of events, added up over replicates."""
    names = list(dict.fromkeys(name for events in replicates for name in events))
    return {name: sum(events.get(name, 0) for events in replicates) for name in names}


@dataclass(frozen=True, repr=False)
class Results(Shown):
    """All curves of one experiment; what ``simulate`` returns and ``load`` reads."""

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
        raise KeyError(f"no curve {label!r}; there are {[c.label for c in self.curves]}")

    def paired_difference(
        self, first: str, second: str, *, per_silo: bool = False
    ) -> tuple[float, float]:
        """Mean and standard error of first - second in final group regret, replicate by replicate.

        ``per_silo`` divides each curve's regret by its own number of silos first. Curves of one
        experiment see the same contexts and reward noise, so the difference is much less noisy
        than the curves.
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
        """Draw the curves as the report does, and return matplotlib's axes.

        Lines are means over replicates at the checkpoints, bands two standard errors to either
        side. Colours are those of the report, whichever ``curves`` (labels; default: all) are
        drawn; on axes that have such lines already they go on where those end.

        ``ax``: the axes to draw into; None makes a figure with pyplot.
        ``metric``: "group_regret", "per_silo_regret" (divided by the curve's own silos),
        "time_average_regret" (divided by the round); or what was counted so far, on average of a
        replicate, all silos together: "synchronisations", "bits", "bytes" (up and down), or one
        of both ways, "bits_up", "bits_down", "bytes_up", "bytes_down". None: what the figure of
        the spec asks for, else "group_regret".
        ``bounds``: also the bounds of regret that the figure asks for (``[[figure.line]]``), or
        all that are stored where it asks for none; up to three times the tallest curve.
        ``log``: which axes are logarithmic, "", "x", "y" or "xy".

        Raises InputError without matplotlib, for an unknown label or metric, for results without
        curves, and for bounds beside a metric that is not regret.
        """
        drawn: Axes = notebook().plot(
            self, ax, metric=metric, bounds=bounds, log=log, curves=curves
        )
        return drawn

    def to_records(self, level: str = "summary") -> list[dict[str, Any]]:
        """Tidy rows as plain dicts; needs no other package, and every data frame takes them.

        ``level``: "summary", one row per curve; "curves", one per (label, round), means and
        standard errors over replicates; "replicates", one per (label, replicate, round). Names
        are those of ``fastfed results --json``, as in ``group_regret_mean``; ``round`` is a
        checkpoint, and what is counted is counted up to it. A curve's bounds are columns
        ``bound_<name>`` of "curves". None where nothing is known: no proven epsilon, no
        standard error of a single replicate. Raises InputError for another level.
        """
        return columns.records(self._columns(level))

    def to_frame(self, level: str = "summary") -> Any:
        """``to_records`` as a pandas DataFrame, NaN for None; InputError without pandas."""
        return columns.frame(self._columns(level))

    def _columns(self, level: str) -> columns.Columns:
        found = columns.columns(self.curves, level)
        rows = len(found.get("label", []))
        whole: dict[str, Any] = {"experiment": self.experiment, "horizon": self.horizon}
        return {name: [value] * rows for name, value in whole.items()} | found

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of ``fastfed results``."""
        return {
            "experiment": self.experiment,
            "horizon": self.horizon,
            "silos": self.silos,
            "curves": [c.to_builtins() for c in self.curves],
        }
