"""The answer of `plan`: candidates, baselines, a verdict for each trust model, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import choice
from fastfed.advice.systems import LESS
from fastfed.reporting.table import plus_minus

if TYPE_CHECKING:
    from fastfed.advice.successive_halving import Size


#: Prefix of a note on a condition that fails for all candidates.
BROKEN = "fails for all: "

#: Of environments that hold real records.
READ = (
    "these are simulations on the real records: choice, regrets and bounds were read from them "
    "without noise and are not covered by any guarantee below; what is then run on the same "
    "records composes with it"
)


@dataclass(frozen=True)
class Regret:
    """Simulated regret of one silo over the whole horizon, and the size of the simulation.

    Attributes
    ----------
    mean, stderr : float
        Mean over replicates and its standard error, in rewards; NaN for one replicate.
    replicates : int
        R.
    silos : int
        Silos that were simulated, to stand for all.
    rounds : int
        Rounds that were simulated; where fewer than the horizon, regret is extended at its last
        pace.
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
        Name of the system: protocol, release, batches, variant of exploration.
    trust : str
        Its trust model, one of ``TRUST``.
    protocol, release : str
        Keys of a curve.
    batch_size : int
        Rounds of a batch, of the longest one where batches grow.
    epsilon, delta : float
        The exact guarantee of every user, from the system's certificate.
    node_std : dict of str to float
        Standard deviation of one noise vector, by stream, as the certificate lists it.
    noise_std : float
        The largest standard deviation of the noise in an entry of what is synchronised.
    bound : float or None
        Proven bound on the regret of one silo; None: nothing is proven.
    vacuous : bool or None
        True if the bound is no less than the most that can be lost; None without a bound.
    bytes_sent : int
        Bytes up and down, of all silos, over the whole horizon.
    regret : Regret or None
        None where it was not simulated, see ``remark``.
    remark : str
        Why it was not simulated; empty where it was.
    keys : dict
        Keys of a curve, as in a spec.
    batches : str
        "B = 20", or "growing 3 x 1.2": from 3 rounds, each 1.2 times as long.
    releases : int
        Synchronisations over the whole horizon.
    bonus : float
        Factor on the exploration bonuses. Below 1 the system explores less, and ``bound`` holds
        what the ledger allows.
    centred : bool
        True if rewards are centred, which needs less noise.
    share_until : int or None
        The last shared round, later ones being a silo's own; None: every round is shared.
    fallback_epsilon : float or None
        epsilon of a secure sum if all other silos collude; None elsewhere.
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
    """A system to compare with: it sends nothing, or has no privacy.

    Attributes
    ----------
    name : {"alone", "alone, explores less", "no privacy", "random"}
        What it is.
    label : str
        The same with its algorithm, for tables and curves.
    regret : Regret
        Of the last stage.
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
        Labels of those that cannot be told from the best: within two standard errors of the paired
        difference.
    against_alone : (float, float)
        Best minus each silo alone, regret of one silo: mean of the paired difference, and its
        standard error.
    helps : bool
        True if sharing by the best has less regret than each silo alone, by more than two standard
        errors.
    pays_from_epsilon, pays_from_silos : float or None, int or None
        Roughly, from which epsilon, or number of silos, sharing would help, all else equal; None
        where it does, or where that is not known.
    sentence : str
        All of this in a sentence.
    alone : str
        Name of the baseline that is alone: the one that explores less where it is better, and the
        best has no proven bound either.
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
    """Answer of `fastfed.plan`; ``advice[label]`` is the candidate of that label.

    Attributes
    ----------
    silos, horizon, dimension : int
        M, T and d.
    epsilon, delta : float
        The guarantee that was asked for.
    relation : {"replace", "zero-out"}
        Neighbouring datasets.
    unit : str
        "user", the unit that is protected.
    radius_multiplier : float
        Factor of all confidence radii.
    environment : dict
        Table of the environment that was simulated, as in a spec.
    seed : int
        Of all randomness.
    scaling : str
        How the last stage was simulated, in a sentence.
    candidates : tuple of Candidate
        Sorted by trust, then by the last stage that each was simulated in, then by regret.
    baselines : tuple of Baseline
        Systems to compare with.
    verdicts : tuple of Verdict
        One for each trust model that was asked for.
    left_out : dict of str to str
        Systems that are no candidates, with the reason.
    notes : tuple of str
        That real records were read, conditions that no candidate meets, unequal silos.
    colluders : int or None
        Silos of a secure sum whose noise is not counted; None where that trust was not asked for.
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

        "proven", or "conditional" where the environment itself breaks a condition.
        """
        return "conditional" if any(n.startswith(BROKEN) for n in self.notes) else "proven"

    def __getitem__(self, label: str) -> Candidate:
        """Return the candidate of a label; KeyError if there is none."""
        for candidate in self.candidates:
            if candidate.label == label:
                return candidate
        raise KeyError(f"no candidate {label!r}; there are {[c.label for c in self.candidates]}")

    def baseline(self, name: str) -> Baseline:
        """The baseline named "alone", "alone, explores less", "no privacy" or "random"."""
        found = {b.name: b for b in self.baselines}
        return found[choice("name", name, list(found))]

    @property
    def heading(self) -> str:
        """Two lines: the guarantee and the sizes, and what was simulated."""
        return (
            f"every {self.unit} ({self.relation}): ({self.epsilon:g}, {self.delta:g}), "
            f"{self.status}; {self.silos} silos, {self.horizon} rounds, d = {self.dimension}, "
            f"{self.environment['kind']}\n{self.scaling}; regret and bound are of one silo"
        )

    def __str__(self) -> str:
        """Return the verdicts and baselines; ``candidates`` has what else was considered."""
        notes = [f"note: {note}" for note in self.notes]
        verdicts = [f"{v.trust}: {v.sentence}" for v in self.verdicts]
        others = [f"{b.label}: {figure(b.regret)} ({b.privacy})" for b in self.baselines]
        return "\n".join([*notes, self.heading, "", *verdicts, "", *others])

    def to_builtins(self) -> dict[str, Any]:
        """Convert to plain data, the JSON of ``fastfed plan``.

        Returns
        -------
        dict
            All fields by name, at every depth: tuples are lists, numbers that are not finite None.
        """
        found: dict[str, Any] = plain(asdict(self))
        return found

    def identity(self) -> dict[str, Any]:
        """Make the tables of a spec of what is recommended, and its baselines.

        Returns
        -------
        dict
            Keys of a spec: name, horizon, silos, seed, environment, and a curve for each verdict
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
        """Write the spec of `identity` as a text, for ``fastfed run``.

        Parameters
        ----------
        replicates : int, default 4
            Replicates of every curve.

        Returns
        -------
        str
            TOML, with a figure of the regret per silo.
        """
        from fastfed.reporting.text import spec_text

        return spec_text(self.identity(), replicates, {"y": "per-silo"})


def plain(value: Any) -> Any:
    """Turn tuples into lists and NaN into None, at every depth."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def mean_and_stderr(values: np.ndarray | Iterable[float]) -> tuple[float, float]:
    """Mean over replicates (R,) and its standard error, NaN for one."""
    found = np.asarray(list(values), dtype=np.float64)
    spread = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return float(found.mean()), float(spread)


def scaling_text(size: Size, silos: int, horizon: int, falling: bool) -> str:
    """Say how the last stage was simulated; ``falling``: with a pace that falls."""
    if size.rounds < horizon:
        pace = "extended at their last pace: rather too much regret than too little"
        if falling:
            pace = (
                "extended: one model at its last pace, silos that learn for themselves at a pace "
                "that goes on falling; approximate, more seconds simulate more"
            )
        first = f"the first {size.rounds} of {horizon} rounds of all {silos} silos"
        return f"simulated are {first}, {pace}"
    if size.silos < silos:
        return (
            f"simulated are {size.silos} silos that stand for all {silos}, noise and radius "
            "scaled: approximate; more seconds play all"
        )
    return f"simulated are all {silos} silos over all {horizon} rounds"


def unequal_text(held: Sequence[int], horizon: int) -> str:
    """Say that silos hold unequal numbers of records, and what that means for the figures."""
    return (
        f"silos hold from {min(held)} to {max(held)} records, and each is simulated for {horizon} "
        "rounds: a silo with more of them gains less by sharing than the figures say, and the "
        "largest may do better alone"
    )


def figure(regret: Regret) -> str:
    """Format a regret with its standard error."""
    return plus_minus(regret.mean, regret.stderr)


def verdict_text(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    *,
    budget: tuple[float, float],
    looked: bool,
    differ: bool,
    fallback: float | None,
) -> str:
    """Say whether to share under a trust model, by which system, and at what price.

    ``regrets`` are those of the last stage, by name; ``differ``: silos may differ, so that one
    model for all may lose by itself; ``fallback``: epsilon of a secure sum if all others collude.
    """
    if verdict.helps:
        text = _shared(verdict, regrets, differ)
    else:
        text = _apart(verdict, regrets, budget, looked, differ)
    if fallback is not None:
        text += f"; if all other silos collude, its epsilon is {fallback:.3g}"
    return text + "."


def _alone(verdict: Verdict, regrets: Mapping[str, Regret]) -> str:
    """The regret of each silo alone, and how it explores."""
    less = "" if verdict.alone == "alone" else " (which explores less)"
    return f"{figure(regrets[verdict.alone])}{less}"


def _shared(verdict: Verdict, regrets: Mapping[str, Regret], differ: bool) -> str:
    """Say by which system to share, and what privacy costs."""
    best, open_ = regrets[verdict.best], regrets["no privacy"]
    less = regrets.get(LESS)
    text = f"share by {verdict.best}"
    if verdict.alone != LESS and less is not None and less.mean < best.mean + 2.0 * best.stderr:
        text += (
            " if regret must have a proven bound; if not, keep apart and explore less "
            f"({figure(less)})"
        )
    text += f": regret {figure(best)} per silo, alone {_alone(verdict, regrets)}; "
    if differ:
        text += f"one model for all, without privacy, would leave {figure(open_)}"
    else:
        price = best.mean - open_.mean
        text += f"privacy costs {price:.3g} of it, sharing without would leave {figure(open_)}"
    if verdict.level:
        text += f"; no worse within error: {', '.join(verdict.level)}"
    return text


def _apart(
    verdict: Verdict,
    regrets: Mapping[str, Regret],
    budget: tuple[float, float],
    looked: bool,
    differ: bool,
) -> str:
    """Say that sharing does not pay, and from where it would."""
    best, alone = regrets[verdict.best], regrets[verdict.alone]
    open_, chance = regrets["no privacy"], regrets["random"]
    mean, stderr = verdict.against_alone
    much = "no less than" if mean > 2.0 * stderr else "not clearly less than"
    why = "privacy is too costly for sharing to help"
    if differ and open_.mean >= alone.mean:
        why = "silos differ and privacy costs too much for sharing to help"
    text = (
        f"do not share under this trust model at ({budget[0]:g}, {budget[1]:g}): {why}; "
        f"{verdict.best}, the best, has regret {figure(best)} per silo, {much} each silo alone "
        f"with {_alone(verdict, regrets)}"
    )
    if best.mean > chance.mean - 2.0 * (chance.stderr + best.stderr):
        less = "no less than" if best.mean >= chance.mean else "not clearly less than"
        text += f", and {less} chance with {figure(chance)}"
    if open_.mean >= alone.mean:
        what = "one model for all" if differ else "sharing"
        text += f"; nor would {what} without privacy help ({figure(open_)})"
    if not looked:
        return text
    ways = []
    if verdict.pays_from_epsilon is not None:
        ways.append(f"epsilon {verdict.pays_from_epsilon:.2g}")
    if verdict.pays_from_silos is not None:
        ways.append(f"{float(verdict.pays_from_silos):.2g} silos".replace("e+0", "e"))
    if not ways:
        return text + "; neither more silos nor a larger epsilon was found to change that"
    return f"{text}; it would pay from about {' or '.join(ways)}, all else equal"
