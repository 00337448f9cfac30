"""The answer of `plan`: candidates, baselines, and a verdict in words for each trust model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import choice
from fastfed.reporting.text import plus_minus

if TYPE_CHECKING:
    from fastfed.advice.successive_halving import Size


#: Prefix of the note about a condition that fails for all candidates.
FAILS_FOR_ALL = "fails for all: "

#: Note for environments that hold real records.
REAL_RECORDS = (
    "these are simulations on the real records: choice, regrets and bounds are computed from them "
    "without noise, and no guarantee below covers this, nor its composition with a later run on "
    "the same records"
)


#: Note for environments with one action.
ONE_ACTION = "there is one action, so nothing to choose: every system has regret 0"


@dataclass(frozen=True)
class Regret:
    """Simulated regret of one silo over the whole horizon, and the size of the simulation.

    Attributes
    ----------
    mean, stderr : float
        Mean over replicates and its standard error, in rewards; NaN for one replicate.
    replicates : int
        R, the number of replicates.
    silos : int
        Number of simulated silos; they represent all silos.
    rounds : int
        Number of simulated rounds. If it is below the horizon, regret is extrapolated from its
        growth in the last of these rounds.
    stage : {"screened", "refined", "final"}
        The last stage that the system was simulated in.
    """

    mean: float
    stderr: float
    replicates: int
    silos: int
    rounds: int
    stage: str


@dataclass(frozen=True)
class Candidate:
    """One system that gives the guarantee.

    Attributes
    ----------
    label : str
        Name of the candidate: protocol, release, batches and variant.
    trust : str
        Its trust model, one of ``TRUST``.
    protocol, release : str
        Keys of a curve.
    batch_size : int
        Rounds of a batch; of the longest batch if batches grow.
    epsilon, delta : float
        The exact guarantee for every user, from the system's certificate.
    node_std : dict of str to float
        Standard deviation of one noise vector, by stream, as the certificate lists it.
    noise_std : float
        The largest standard deviation of the noise in an entry of a synchronised statistic.
    bound : float or None
        Proven bound on the regret of one silo; None if no bound is proven.
    vacuous : bool or None
        True if the bound is at least the largest possible regret; None without a bound.
    bytes_sent : int
        Bytes sent up and down by all silos over the whole horizon.
    regret : Regret or None
        Simulated regret; None if the candidate was not simulated, see ``remark``.
    remark : str
        Why the candidate was not simulated; empty if it was.
    keys : dict
        Keys of a curve, as in a spec.
    batches : str
        "B = 20", or "growing 3 x 1.2": a first batch of 3 rounds, each next one 1.2 times longer.
    releases : int
        Number of synchronisations over the whole horizon.
    bonus : float
        m' of the sieve: the factor on the exploration bonuses in the ranking of actions. ``bound``
        does not depend on it.
    centred : bool
        True if rewards are centred, which needs less noise.
    share_until : int or None
        The last shared round; later rounds are local. None if every round is shared.
    fallback_epsilon : float or None
        epsilon of a secure sum if all other silos collude; None for other protocols.
    """

    label: str
    trust: str
    protocol: str
    release: str
    batch_size: int
    epsilon: float
    delta: float
    node_std: dict[str, float]
    noise_std: float
    bound: float | None
    vacuous: bool | None
    bytes_sent: int
    regret: Regret | None
    remark: str
    keys: dict[str, Any]
    batches: str = ""
    releases: int = 0
    bonus: float = 1.0
    centred: bool = False
    share_until: int | None = None
    fallback_epsilon: float | None = None


@dataclass(frozen=True)
class Baseline:
    """A system to compare with, which sends nothing or has no privacy.

    Attributes
    ----------
    name : {"alone", "alone, explores less", "no privacy", "random"}
        Name of the baseline.
    label : str
        Name with the algorithm, for tables and curves.
    regret : Regret
        Simulated regret in the last stage.
    keys : dict
        Keys of a curve, as in a spec.
    privacy : str
        "sends nothing: epsilon 0" or "not private".
    """

    name: str
    label: str
    regret: Regret
    keys: dict[str, Any]
    privacy: str = ""


@dataclass(frozen=True)
class Verdict:
    """Recommendation under one trust model.

    Attributes
    ----------
    trust : str
        The trust model, one of ``TRUST``.
    trusted : str
        Who is trusted, in a sentence.
    best : str
        Label of the candidate of least regret in the last stage.
    level : tuple of str
        Labels of candidates that cannot be distinguished from the best: their paired difference is
        within two standard errors of 0.
    against_alone : (float, float)
        Regret of the best candidate minus the regret of the local baseline, for one silo: mean and
        standard error of the paired difference.
    helps : bool
        True if the best candidate has less regret than the local baseline, by more than two
        standard errors.
    pays_from_epsilon, pays_from_silos : float or None, int or None
        Approximate epsilon, or number of silos, from which sharing would help, all else equal. None
        if sharing helps already, or if the value is unknown.
    sentence : str
        The verdict in words.
    alone : str
        Name of the local baseline used: the better one.
    """

    trust: str
    trusted: str
    best: str
    level: tuple[str, ...]
    against_alone: tuple[float, float]
    helps: bool
    pays_from_epsilon: float | None
    pays_from_silos: int | None
    sentence: str
    alone: str = "alone"


@dataclass(frozen=True)
class Advice:
    """Answer of `fastfed.plan`; ``advice[label]`` is the candidate with that label.

    Attributes
    ----------
    silos, horizon, dimension : int
        M, T and d.
    epsilon, delta : float
        The requested guarantee.
    relation : {"replace", "zero-out"}
        The relation of neighbouring datasets.
    unit : {"user", "reward"}
        What is private: all data of a user, or a user's reward only.
    radius_multiplier : float
        Factor on all confidence radii.
    environment : dict
        Table of the simulated environment, as in a spec.
    seed : int
        Seed of all randomness.
    scaling : str
        A sentence on how the last stage was simulated.
    candidates : tuple of Candidate
        Sorted by trust, then by the last stage in which each was simulated, then by regret.
    baselines : tuple of Baseline
        Systems to compare with.
    verdicts : tuple of Verdict
        One verdict for each requested trust model.
    left_out : dict of str to str
        Reasons why systems are not candidates, by system.
    notes : tuple of str
        Notes on real records, on conditions that no candidate satisfies, and on unequal silos.
    colluders : int or None
        Number of silos of a secure sum whose noise is not counted; None if not requested.
    """

    silos: int
    horizon: int
    dimension: int
    epsilon: float
    delta: float
    relation: str
    unit: str
    radius_multiplier: float
    environment: dict[str, Any]
    seed: int
    scaling: str
    candidates: tuple[Candidate, ...]
    baselines: tuple[Baseline, ...]
    verdicts: tuple[Verdict, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...] = ()
    colluders: int | None = None

    @property
    def status(self) -> str:
        """Status of every candidate's guarantee.

        "proven", or "conditional" if the environment violates a condition.
        """
        return "conditional" if any(n.startswith(FAILS_FOR_ALL) for n in self.notes) else "proven"

    def __getitem__(self, label: str) -> Candidate:
        """Return the candidate with a label. Raise KeyError if there is none."""
        for candidate in self.candidates:
            if candidate.label == label:
                return candidate
        raise KeyError(f"no candidate {label!r}; there are {[c.label for c in self.candidates]}")

    def baseline(self, name: str) -> Baseline:
        """Return the baseline with a name; see `Baseline` for the names."""
        by_name = {b.name: b for b in self.baselines}
        return by_name[choice("name", name, list(by_name))]

    @property
    def heading(self) -> str:
        """Two lines of text: guarantee and sizes, then what was simulated."""
        return (
            f"every {self.unit} ({self.relation}): ({self.epsilon:g}, {self.delta:g}), "
            f"{self.status}; {self.silos} silos, {self.horizon} rounds, d = {self.dimension}, "
            f"{self.environment['kind']}\n{self.scaling}; regret and bound are of one silo"
        )

    def __str__(self) -> str:
        """Return the notes, verdicts and baselines as text."""
        notes = [f"note: {note}" for note in self.notes]
        verdicts = [f"{v.trust}: {v.sentence}" for v in self.verdicts]
        baseline_texts = [
            f"{b.label}: {regret_text(b.regret)} ({b.privacy})" for b in self.baselines
        ]
        return "\n".join([*notes, self.heading, "", *verdicts, "", *baseline_texts])

    def to_builtins(self) -> dict[str, Any]:
        """Convert to plain data, the JSON of ``fastfed plan``.

        Returns
        -------
        dict
            All fields by name, at every depth. Tuples become lists, non-finite numbers None.
        """
        builtins_dict: dict[str, Any] = plain(asdict(self))
        return builtins_dict

    def identity(self) -> dict[str, Any]:
        """Return a spec, as a dict, with the recommended systems and the baselines.

        The dict has the form of `fastfed.simulation.experiment.Experiment.identity`, so that
        `spec_text` can convert it to TOML.

        Returns
        -------
        dict
            Keys of a spec: name, horizon, silos, seed, environment, and one curve for each verdict
            and each baseline.
        """
        curves = [{"label": f"{v.trust}: {v.best}", **self[v.best].keys} for v in self.verdicts]
        curves += [{"label": b.label, **b.keys} for b in self.baselines]
        return {
            "name": "plan",
            "horizon": self.horizon,
            "silos": self.silos,
            "seed": self.seed,
            "environment": self.environment,
            "curves": curves,
        }

    def spec_text(self, replicates: int = 4) -> str:
        """Return the spec of `identity` as text, for ``fastfed run``.

        Parameters
        ----------
        replicates : int, default 4
            Number of replicates of every curve.

        Returns
        -------
        str
            TOML, with a figure of the regret per silo.
        """
        from fastfed.reporting.text import spec_text

        return spec_text(self.identity(), replicates, {"y": "per-silo"})


def plain(value: Any) -> Any:
    """Return the value with tuples as lists and non-finite floats as None, at every depth."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def mean_and_stderr(values: np.ndarray | Iterable[float]) -> tuple[float, float]:
    """Return the mean over replicates (R,) and its standard error, NaN for one replicate."""
    samples = np.asarray(list(values), dtype=np.float64)
    stderr = samples.std(ddof=1) / math.sqrt(len(samples)) if len(samples) > 1 else math.nan
    return float(samples.mean()), float(stderr)


def scaling_text(size: Size, silos: int, horizon: int, falling: bool) -> str:
    """Return a sentence on how the search's last stage was simulated, and how accurate it is.

    ``size`` holds the numbers of silos and rounds of this stage, while ``silos`` and ``horizon``
    are those of the problem. ``falling`` is True if the regret of local models was extrapolated
    with a falling slope.
    """
    if size.rounds < horizon:
        method = "extrapolated linearly, which tends to overestimate regret"
        if falling:
            method = (
                "extrapolated: linearly for one model, with a falling slope for silos that learn "
                "alone or locally; approximate, more seconds simulate more"
            )
        first = f"the first {size.rounds} of {horizon} rounds of all {silos} silos"
        return f"simulated: {first}, {method}"
    if size.silos < silos:
        return (
            f"simulated: {size.silos} silos that represent all {silos}, with noise and radius "
            "scaled; approximate, more seconds simulate all"
        )
    return f"simulated: all {silos} silos over all {horizon} rounds"


def unequal_text(records_per_silo: Sequence[int], horizon: int) -> str:
    """Return a note that silos hold unequal numbers of records, with the effect on the results."""
    return (
        f"silos hold from {min(records_per_silo)} to {max(records_per_silo)} records, and each is "
        f"simulated for {horizon} rounds: a silo with more records gains less by sharing than "
        "these regrets show, and the largest silo may do better alone"
    )


def regret_text(regret: Regret) -> str:
    """Return a regret with its standard error as text."""
    return plus_minus(regret.mean, regret.stderr)


def verdict_text(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    *,
    budget: tuple[float, float],
    searched: bool,
    differ: bool,
    fallback: float | None,
) -> str:
    """Return the verdict in words: whether to share, by which system, and at what price.

    ``regrets`` maps the name of a candidate or baseline to its regret in the search's last stage.
    ``budget`` is (epsilon, delta). ``searched`` is True if the break-even point was searched.
    ``differ`` is True if silos may differ; then one model for all may lose even without privacy.
    If the system is a secure sum, ``fallback`` is its epsilon if all other silos collude.
    """
    if verdict.helps:
        text = _sharing_text(verdict, regrets, differ)
    else:
        text = _no_sharing_text(verdict, regrets, budget, searched, differ)
    if fallback is not None:
        text += f"; if all other silos collude, its epsilon is {fallback:.3g}"
    return text + "."


def _local_baseline_text(verdict: Verdict, regrets: Mapping[str, Regret]) -> str:
    """Return the regret of the verdict's local baseline as text."""
    exploration_note = "" if verdict.alone == "alone" else " (which explores less)"
    return f"{regret_text(regrets[verdict.alone])}{exploration_note}"


def _sharing_text(verdict: Verdict, regrets: Mapping[str, Regret], differ: bool) -> str:
    """Return the text of a verdict that recommends sharing, with the regret due to privacy."""
    best, not_private = regrets[verdict.best], regrets["no privacy"]
    alone_text = _local_baseline_text(verdict, regrets)
    text = f"share by {verdict.best}: regret {regret_text(best)} per silo, alone {alone_text}; "
    if differ:
        text += f"one model for all, without privacy, would leave {regret_text(not_private)}"
    else:
        price = best.mean - not_private.mean
        text += (
            f"privacy costs {price:.3g} of this regret, sharing without privacy would leave "
            f"{regret_text(not_private)}"
        )
    if verdict.level:
        text += f"; no worse within error: {', '.join(verdict.level)}"
    return text


def _no_sharing_text(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    budget: tuple[float, float],
    searched: bool,
    differ: bool,
) -> str:
    """Return the text of a verdict against sharing; parameters as in `verdict_text`.

    The text also gives the epsilon and the number of silos from which sharing would help, if they
    are known.
    """
    best_regret, alone_regret = regrets[verdict.best], regrets[verdict.alone]
    not_private, random = regrets["no privacy"], regrets["random"]
    mean, stderr = verdict.against_alone
    comparison_alone = "no less than" if mean > 2.0 * stderr else "not clearly less than"
    reason = "privacy is too costly for sharing to help"
    if differ and not_private.mean >= alone_regret.mean:
        reason = "silos differ and privacy costs too much for sharing to help"
    text = (
        f"do not share under this trust model at ({budget[0]:g}, {budget[1]:g}): {reason}; "
        f"{verdict.best}, the best, has regret {regret_text(best_regret)} per silo, "
        f"{comparison_alone} each silo alone with {_local_baseline_text(verdict, regrets)}"
    )
    if best_regret.mean > random.mean - 2.0 * (random.stderr + best_regret.stderr):
        comparison_chance = (
            "no less than" if best_regret.mean >= random.mean else "not clearly less than"
        )
        text += f", and {comparison_chance} chance with {regret_text(random)}"
    if not_private.mean >= alone_regret.mean:
        shared_model = "one model for all" if differ else "sharing"
        text += f"; nor would {shared_model} without privacy help ({regret_text(not_private)})"
    if not searched:
        return text
    thresholds = []
    if verdict.pays_from_epsilon is not None:
        thresholds.append(f"epsilon {verdict.pays_from_epsilon:.2g}")
    if verdict.pays_from_silos is not None:
        thresholds.append(f"{float(verdict.pays_from_silos):.2g} silos".replace("e+0", "e"))
    if not thresholds:
        return text + "; no number of silos and no epsilon that were tried would change that"
    return f"{text}; it would pay from about {' or '.join(thresholds)}, all else equal"
