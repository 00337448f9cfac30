"""Clinics learn to dose warfarin: low, medium or high, rewarded for the right class.

    python examples/applied/warfarin.py --data warfarin.csv.gz -o warfarin.png

The data are the IWPC cohort (5 700 patients, PharmGKB), as CSV or CSV.gz. The contextual bandit
with three doses is that of Bastani and Bayati (2020); the regression of the square root of the dose
is the consortium's (IWPC 2009). docs/applied.md tells the story.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import click
import numpy as np

import fastfed
from fastfed.results.results import Results

DELTA, KAPPA, UNTIL = 1e-5, 2.0, 20
#: Rewards centred at 1/2. The rule of local rounds, "min-of-bounds", has no sieve: with the full
#: radius it is wrong for 45 to 48 % of patients, so a tenth of the radius is kept.
NOW = {"reward_centre": 0.5, "radius_multiplier": 0.1}
#: For comparison: equal batches, rewards that are not centred.
BEFORE = {"batch_size": 10, "radius_multiplier": 0.1, "release": "toeplitz"}
SERVERS = {"trusted server": "central", "secure sum": "secure-sum", "silo-level": "silo-ldp"}
DOSE, RACE, AGE = "Therapeutic Dose of Warfarin", "Race", "Age"
HEIGHT, WEIGHT = "Height (cm)", "Weight (kg)"
VKORC1, CYP2C9 = "VKORC1 -1639 consensus", "CYP2C9 consensus"
AMIODARONE = "Amiodarone (Cordarone)"
INDUCERS = ("Carbamazepine (Tegretol)", "Phenytoin (Dilantin)", "Rifampin or Rifampicin")
NEEDED = (DOSE, RACE, AGE, HEIGHT, WEIGHT, VKORC1, CYP2C9, AMIODARONE, *INDUCERS)
MISSING = ("", "NA", "?")
LOW, MEDIUM, HIGH = 0, 1, 2


def read(path: Path) -> list[dict[str, str]]:
    """Patients whose stable dose, age and race are known."""
    packed = path.read_bytes()
    raw = gzip.decompress(packed) if path.suffix == ".gz" else packed
    rows = list(csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline="")))
    missing = [name for name in NEEDED if not rows or name not in rows[0]]
    if missing:
        raise click.ClickException(f"{path} has no column {', '.join(missing)}")
    return [r for r in rows if not {r[DOSE], r[AGE], r[RACE]} & set(MISSING)]


def dose_class(mg_a_week: np.ndarray) -> np.ndarray:
    """Below 21, from 21 to 49, above 49 mg a week."""
    return np.where(mg_a_week < 21.0, LOW, np.where(mg_a_week <= 49.0, MEDIUM, HIGH))


def features(row: dict[str, str]) -> list[float]:
    """What the dosing algorithm of the consortium uses, on limits known without the data."""
    vkorc1, cyp2c9 = row[VKORC1], row[CYP2C9]
    return [
        _scaled(row[AGE][0], 1, 9),  # decade, "60 - 69" or "90+"
        _scaled(row[HEIGHT], 140, 200),
        _scaled(row[WEIGHT], 40, 140),
        float(vkorc1 == "A/A"),
        float(vkorc1 == "A/G"),
        float(vkorc1 in MISSING),
        cyp2c9.count("*2") / 2.0,
        cyp2c9.count("*3") / 2.0,
        float(cyp2c9 in MISSING),
        float(row[AMIODARONE] == "1"),
        float(any(row[name] == "1" for name in INDUCERS)),
    ]


def _scaled(cell: str, low: float, high: float) -> float:
    """In [-1, 1]; the middle where it is missing."""
    if cell in MISSING:
        return 0.0
    return float(np.clip(2.0 * (float(cell) - low) / (high - low) - 1.0, -1.0, 1.0))


def hindsight(x: np.ndarray, dose: np.ndarray) -> np.ndarray:
    """Classes by a linear model of sqrt(dose), fitted to the doses of all patients."""
    z = np.hstack([x, np.ones((len(x), 1))])
    return dose_class((z @ np.linalg.lstsq(z, np.sqrt(dose), rcond=None)[0]) ** 2)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="CSV or CSV.gz.")
@click.option("-o", "--plot", type=click.Path(path_type=Path), default=Path("warfarin.png"))
@click.option(
    "--blocks", type=int, help="So many silos of equal size in the file's order, not by race."
)
@click.option("--epsilon", multiple=True, type=float, default=(1.0, 3.0, 10.0), show_default=True)
@click.option("--until", default=UNTIL, show_default=True, help="Shared rounds, then own ones.")
@click.option("--replicates", default=10, show_default=True, help="Orders of patients simulated.")
def main(
    data: Path,
    plot: Path,
    blocks: int | None,
    epsilon: tuple[float, ...],
    until: int,
    replicates: int,
) -> None:
    """Wrong doses of warfarin: fixed, each silo alone, together, together in private."""
    if not data.is_file():
        raise click.ClickException(f"no data at {data}: give the IWPC table as --data")
    patients = read(data)
    dose = np.array([float(row[DOSE]) for row in patients])
    right, x = dose_class(dose), np.array([features(row) for row in patients])
    race = np.array([row[RACE] for row in patients])
    if blocks is None:
        silo = race
    else:  # race is then a feature, not the silo
        x = np.hstack([x, race[:, None] == np.unique(race)])
        silo = np.arange(len(x)) * blocks // len(x)
    names, counts = np.unique(silo, return_counts=True)
    horizon = int(counts.min())
    private = {"algorithm": "private-fedlinucb", "epsilon": list(epsilon), "delta": DELTA}
    alone = {"label": "alone", "algorithm": "local-linucb"}
    free = {"label": "not private", "algorithm": "fedlinucb", "batch_size": "growing"}
    kept = {"share": {"until": until, "rule": "min-of-bounds"}}

    def simulate(curves: list[dict], intercept: float | None) -> Results:
        environment = fastfed.environments.Classification.from_arrays(
            x, right, silo, norm=1.0, intercept=intercept
        )
        return fastfed.simulate(environment, horizon=horizon, replicates=replicates, curves=curves)

    old = simulate(
        [
            {**alone, "radius_multiplier": 0.1},
            {"label": "trusted server, before", "protocol": "central", **private, **BEFORE},
            {"label": "silo-level, before", "protocol": "silo-ldp", **private, **BEFORE},
        ],
        None,
    )
    factor = {**private, "release": "factorised"}  # as in the tables of docs/applied.md
    federations = [{"label": k, "protocol": v, **factor} for k, v in SERVERS.items()]
    results = simulate(
        [
            {**curve, **more, **NOW, "label": curve["label"] + suffix}
            for curves, suffix, more in (
                ([alone], "", {}),
                ([free, *federations], "", {}),
                ([free, *federations], " + own", kept),
            )
            for curve in curves
        ],
        KAPPA,
    )

    # A round is one patient of each silo, so references count silos alike, too.
    def share(wrong: np.ndarray) -> float:
        return float(np.mean([wrong[silo == name].mean() for name in names]))

    references = {
        "medium for everybody": share(right != MEDIUM),
        "linear model of all doses": share(hindsight(x, dose) != right),
    }
    total = len(names) * horizon
    kind = "race" if blocks is None else "the file's order"
    print(f"{len(x)} patients with a known dose; {len(names)} silos by {kind}:", end=" ")
    print(", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True)))
    print(f"{horizon} patients of each silo, {replicates} random orders")
    print(f"+ own: rounds from {until + 1} on are the silo's own\n")
    head = f"{'policy':<38}{'wrong':>7}{'±':>7}{'last half':>11}  {'against alone':>15}"
    print(f"{head}  privacy")
    for label, wrong in references.items():
        print(f"{label:<38}{wrong:7.1%}")
    for part in (old, results):
        for curve in part.curves:
            if part is old and curve.label == "alone":
                continue
            end, exact = curve.final(total), curve.certificate["exact"]
            privacy = f"({exact['epsilon']:.3g}, {exact['delta']:g})" if exact else "none"
            half = int(np.searchsorted(curve.rounds, horizon // 2))
            rest = len(names) * (horizon - curve.rounds[half])
            late = (curve.mean[-1] - curve.mean[half]) / rest
            print(f"{curve.label:<38}{end['mean']:7.1%}{end['stderr']:7.1%}{late:11.1%}", end="  ")
            print(f"{_against(part, curve.label, total):>15}  {privacy}")
    shown = results.curves[-1]
    print(f"\nWhat is guaranteed to a patient under {shown.label!r}:\n")
    print(fastfed.privacy.as_text(shown.certificate))
    draw(results, references, plot)
    print(f"plot: {plot}")


def _against(results: Results, label: str, patients: int) -> str:
    """Paired over replicates: the same patients in the same order."""
    if label == "alone":
        return ""
    mean, error = results.paired_difference(label, "alone")
    return f"{mean / patients:+.1%} ± {error / patients:.1%}"


def draw(results: Results, references: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7.5, 4.5), layout="constrained")).subplots()
    colours: dict[float | str, str] = {}
    for curve in results.curves:
        claimed = curve.certificate["claimed"]
        if "secure" in curve.label or (claimed and "own" not in curve.label):
            continue
        style = "-" if claimed is None else "--" if "server" in curve.label else ":"
        colour = colours.setdefault(
            claimed["epsilon"] if claimed else curve.label, f"C{len(colours)}"
        )
        axes.plot(
            curve.rounds,
            curve.mean / (curve.silos * curve.rounds),
            style,
            color=colour,
            label=curve.label,
        )
    for (label, wrong), grey in zip(references.items(), ("0.3", "0.7"), strict=True):
        axes.axhline(wrong, color=grey, lw=0.8, label=label)
    axes.set(xlabel="patients of each silo", ylabel="share of wrong doses so far", ylim=(0.25, 0.8))
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
