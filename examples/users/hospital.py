"""A hospital's data scientist: own CSV files, advice, a certificate, a private run and its page.

    python hospital.py [heart_disease_4sites.csv] [-o DIR]      about ten seconds

Each hospital has a file of its own, as many rows as it has patients, and `?` where nothing is
known. Without the file of the UCI heart disease data (columns age, sex, cp, ..., num, site)
patients are made up.
"""

import argparse
import csv
import random
from pathlib import Path

import fastfed

COLUMNS = ("age", "sex", "cp", "thalach", "exang", "oldpeak")
SPEC = """
name = "heart disease at four hospitals"
horizon = {horizon}
replicates = 4

[environment]
kind = "classification"
data = "hospitals"         # a folder with a file for each hospital
label = "ill"
silo = "silo"
coding = "blocks"

[environment.ranges]       # known from the clinic, not read from the rows
age = [20, 80]
sex = ["0", "1"]
cp = ["1", "2", "3", "4"]
thalach = [60, 220]
exang = ["0", "1"]
oldpeak = [-3, 7]

[[curve]]
label = "each hospital alone"
algorithm = "local-linucb"
sieve = 0.0

[[curve]]
label = "together, not private"
algorithm = "fedlinucb"
sieve = 0.0

[[curve]]
label = "trusted server"
algorithm = "private-fedlinucb"
protocol = "central"
epsilon = [1.0, 3.0]
delta = 1e-5
sieve = 0.0

[[curve]]
label = "trusted server, then alone"
algorithm = "private-fedlinucb"
protocol = "central"
epsilon = 1.0
delta = 1e-5
sieve = 0.0
share = {{ until = 10 }}
"""


def made_up():
    """Patients of four hospitals of unequal size, who do not exist."""
    draw = random.Random(0)
    for site, patients in {"north": 90, "east": 80, "south": 60, "west": 45}.items():
        for _ in range(patients):
            age, pain = draw.randint(30, 78), draw.randint(1, 4)
            risk = (age - 50) / 30 + (pain == 4) + draw.gauss(0, 0.6)
            yield {
                "age": age,
                "sex": draw.choice(["0.0", "1.0"]),
                "cp": f"{pain}.0",
                "thalach": draw.choice(["?", draw.randint(90, 190)]),
                "exang": draw.choice(["0.0", "1.0", ""]),
                "oldpeak": round(draw.uniform(0, 3), 1),
                "num": int(risk > 0.4),
                "site": site,
            }


def split(rows, folder):
    """Write a file for each hospital, and return how many patients each has."""
    folder.mkdir(parents=True)
    sites = {}
    for row in rows:
        sites.setdefault(row["site"], []).append(row)
    for site, patients in sites.items():
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS, "ill"])
            for row in patients:
                cells = [row[name] for name in COLUMNS]
                writer.writerow([*cells, "yes" if int(row["num"]) else "no"])
    return {site: len(patients) for site, patients in sites.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("hospital-out"))
    given = parser.parse_args()
    rows = made_up() if given.data is None else csv.DictReader(given.data.open())
    sizes = split(rows, given.output / "hospitals")
    print("patients:", sizes)

    # Every hospital meets one patient in each round: the smallest says how long it goes.
    spec = given.output / "spec.toml"
    spec.write_text(SPEC.format(horizon=min(sizes.values())))

    advice = fastfed.plan(
        environment=spec, horizon=min(sizes.values()), epsilon=1.0, delta=1e-5,
        trust=["central", "silo-ldp"], seconds=1.0,
    )  # fmt: skip
    for note in advice.notes:
        print("note:", note)
    for verdict in advice.verdicts:
        print(f"{verdict.trust}: {verdict.sentence}")

    results = fastfed.run(spec, given.output / "run")
    print(results)
    print(results["trusted server, epsilon = 1.0"].certificate)
    for curve in results.curves[1:]:
        mean, error = results.paired_difference(curve.label, "each hospital alone", per_silo=True)
        print(f"{curve.label}: {mean:+.1f} ± {error:.1f} wrong calls per hospital against alone")
    page = fastfed.report(given.output / "run")[-1]
    print("page:", page)


if __name__ == "__main__":
    main()
