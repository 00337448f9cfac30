"""Four hospitals learn who has heart disease: alone, together, and together in private.

    python examples/applied/hospitals.py --data heart_disease_4sites.csv -o hospitals.png

The data are the UCI heart disease records of Cleveland, Hungary, Switzerland and Long Beach as one
CSV with a column ``site``. Each round every hospital sees one more patient, says "ill" or "well",
and learns whether that was right. docs/applied.md tells the story.
"""

from __future__ import annotations

import csv
from pathlib import Path

import click
import numpy as np

import fastfed
from fastfed.results.results import Results

DELTA, KAPPA, UNTIL = 1e-5, 2.0, 10
#: Rewards centred at 1/2. Of the actions that the sieve passes, the best estimate is chosen; the
#: default sieve of 0.3 explores too much for 123 patients.
NOW = {"reward_centre": 0.5, "sieve": 0.0}
#: For comparison: equal batches, rewards that are not centred, a tenth of the radius.
BEFORE = {"batch_size": 4, "radius_multiplier": 0.1, "release": "toeplitz"}
SERVERS = {"trusted server": "central", "secure sum": "secure-sum", "silo-level": "silo-ldp"}
#: Limits a cardiologist would name without seeing the data.
LIMITS = {"age": (20, 80), "sex": (0, 1), "thalach": (60, 200), "exang": (0, 1), "oldpeak": (0, 4)}


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, p), ill (n,) and hospital (n,) of every patient."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    missing = {*LIMITS, "cp", "num", "site"} - set(rows[0] if rows else ())
    if missing:
        raise click.ClickException(f"{path} has no column {', '.join(sorted(missing))}")
    site = np.array([row["site"] for row in rows])
    medical = [
        [_scaled(row[name], *limits) for name, limits in LIMITS.items()]
        + [1.0 if row["cp"] in ("4", "4.0") else -1.0]  # chest pain: 4 is "asymptomatic"
        for row in rows
    ]
    # A column for each hospital: they share what age or pain mean, not their share of the ill.
    hospital = (site[:, None] == np.unique(site)).astype(float)
    return np.hstack([medical, hospital]), np.array([float(r["num"]) > 0 for r in rows]), site


def _scaled(cell: str, low: float, high: float) -> float:
    """In [-1, 1]; the middle where it is missing."""
    if cell.strip() in ("", "?", "NA"):
        return 0.0
    return float(np.clip(2.0 * (float(cell) - low) / (high - low) - 1.0, -1.0, 1.0))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="The CSV file.")
@click.option("-o", "--plot", type=click.Path(path_type=Path), default=Path("hospitals.png"))
@click.option("--epsilon", multiple=True, type=float, default=(1.0, 3.0, 10.0), show_default=True)
@click.option("--until", default=UNTIL, show_default=True, help="Shared rounds, then own ones.")
@click.option("--replicates", default=20, show_default=True, help="Orders of patients simulated.")
def main(data: Path, plot: Path, epsilon: tuple[float, ...], until: int, replicates: int) -> None:
    """Wrong calls of four hospitals: alone, together, and together in private."""
    if not data.is_file():
        raise click.ClickException(f"no data at {data}: give the CSV of four hospitals as --data")
    features, ill, site = read(data)
    silos, counts = np.unique(site, return_counts=True)
    horizon = int(counts.min())
    private = {"algorithm": "private-fedlinucb", "epsilon": list(epsilon), "delta": DELTA}
    alone = {"label": "alone", "algorithm": "local-linucb"}
    free = {"label": "not private", "algorithm": "fedlinucb", "batch_size": "growing"}
    kept = {"share": {"until": until}}

    def simulate(curves: list[dict], intercept: float | None) -> Results:
        # norm=1: every record is shrunk to length 1, as much signal against noise as may be.
        environment = fastfed.environments.Classification.from_arrays(
            features, ill, site, norm=1.0, intercept=intercept
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

    patients = len(silos) * horizon
    majority = np.mean([min(ill[site == s].mean(), 1.0 - ill[site == s].mean()) for s in silos])
    print(f"{len(silos)} hospitals, {horizon} patients of each, {replicates} random orders")
    print(f"always each hospital's commoner answer, in hindsight: {majority:.1%} wrong")
    print(f"+ own: rounds from {until + 1} on are the hospital's own\n")
    print(f"{'curve':<38}{'wrong':>7}{'±':>7}  {'against alone':>17}  privacy")
    for part in (old, results):
        for curve in part.curves:
            if part is old and curve.label == "alone":
                continue
            end = curve.final(patients)
            difference = _against(part, curve.label, patients)
            exact = curve.certificate["exact"]
            privacy = f"({exact['epsilon']:.3g}, {exact['delta']:g})" if exact else "none"
            print(f"{curve.label:<38}{end['mean']:7.1%}{end['stderr']:7.1%}", end="  ")
            print(f"{difference:>17}  {privacy}")
    shown = results.curves[-1]
    print(f"\nWhat is guaranteed to a patient under {shown.label!r}:\n")
    print(fastfed.privacy.as_text(shown.certificate))
    draw(results, majority, plot)
    print(f"plot: {plot}")


def _against(results: Results, label: str, patients: int) -> str:
    """Paired over replicates: the same patients in the same order."""
    if label == "alone":
        return ""
    mean, error = results.paired_difference(label, "alone")
    return f"{mean / patients:+.1%} ± {error / patients:.1%}"


def draw(results: Results, majority: float, path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7.5, 4.5), layout="constrained")).subplots()
    colours: dict[float | str, str] = {}
    for curve in results.curves:
        if "secure" in curve.label or (curve.certificate["claimed"] and "own" not in curve.label):
            continue
        seen = curve.silos * curve.rounds
        claimed = curve.certificate["claimed"]
        style = "-" if claimed is None else "--" if "server" in curve.label else ":"
        colour = colours.setdefault(
            claimed["epsilon"] if claimed else curve.label, f"C{len(colours)}"
        )
        axes.plot(curve.rounds, curve.mean / seen, style, color=colour, label=curve.label)
    axes.axhline(majority, color="grey", lw=0.8, label="commoner answer, in hindsight")
    axes.set(
        xlabel="patients of each hospital", ylabel="share of wrong calls so far", ylim=(0, 0.7)
    )
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
