"""Random schedules of faults over all protocols that are deployed; `scripts/schedules` runs them.

One seed is one schedule: which plan, which faults, and every drop, repeat, delay and kill. The
invariants are those of `federation.World`; what a schedule did is counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from federation import MASKED_BITS, MASKS, PATIENT, WORDS, Violation, World, deployed

FEWER = {"system": {"batch_size": 3, "honest_fraction": 0.6}, "federation": {"least": 2}}
#: Everything that is deployed: the protocol, and tables of its spec.
PLANS = {
    "silo-ldp": ("silo-ldp", {}),
    "silo-ldp, honaker": ("silo-ldp", {"system": {"batch_size": 3, "release": "honaker"}}),
    "silo-ldp, capped": ("silo-ldp", {"federation": {"least": 2, "influence": 1.0}}),
    "silo-ldp-prefix": ("silo-ldp-prefix", {}),
    "feducb": ("feducb", {}),
    "central": ("central", {}),
    "secure-sum": ("secure-sum", {}),
    "secure-sum, masks": (MASKS, {}),
    "shuffle-vector": ("shuffle-vector", {}),
    "shuffle-vector, fewer": ("shuffle-vector", FEWER),
    "shuffle-vector, masks": (MASKED_BITS, {}),
}
#: Where every silo must be in every set, lost records may hold a release up for ever.
NEEDS_ALL = {name for name, (p, tables) in PLANS.items() if p in WORDS and tables is not FEWER}
FAULTS = ("kills", "silos put back", "hub put back")


def chosen(seed: int) -> tuple[str, str, dict, dict]:
    """Plan, faults, tables of the spec and keys of the world of one schedule."""
    rng = Random(f"schedule {seed}")
    name, faults = rng.choice(list(PLANS)), rng.choice(FAULTS)
    tables = {"federation": {"name": "tests", "least": 2}, **PLANS[name][1]}
    tables["federation"] = {"name": "tests", **tables["federation"]}
    protocol = PLANS[name][0]
    if protocol in WORDS and tables["federation"]["least"] == 2 and name in NEEDS_ALL:
        del tables["federation"]
    # Mostly two releases, the least at which a second one can go wrong; now and then four.
    tables |= {"batches": 4 if rng.random() < 0.1 else 2, "batch": 3}
    keys = {"kill": rng.choice((0.01, 0.03, 0.1, 0.2)), "stride": 40.0}
    if faults != "hub put back" and rng.random() < 0.5:
        keys["skew"] = rng.choice((30.0, 300.0))
    if faults == "silos put back":
        keys["restore"] = 0.5
    if faults == "hub put back":
        keys |= {"hub_restore": 0.7, "kill": rng.choice((0.0, 0.03, 0.1))}
        tables["calendar"] = PATIENT
    return name, faults, tables, keys


def run(seed: int) -> tuple[Counter, str]:
    """One schedule: what it did, and what broke."""
    name, faults, tables, keys = chosen(seed)
    world = World(deployed(PLANS[name][0], **tables), seed, **keys)
    did: Counter = Counter({"schedules": 1, f"plan {name}": 1, f"with {faults}": 1})
    did["with wrong clocks"] = "skew" in keys
    broken = ""
    try:
        if faults == "hub put back":
            world.run_with_the_hub_put_back(stretches=4, moments=30, rounds=8)
        else:
            world.run(moments=150)
    except Violation as violation:
        broken = str(violation)
        if "come to its end" in broken and waits_for_lost_records(name, world):
            broken, did["wait for lost records"] = "", 1
    except Exception as error:  # A party must not fail in any other way, either.
        broken = f"{type(error).__name__}: {error}"
    did |= Counter(
        {
            "kills": world.kills,
            "silos put back": world.restores,
            "hubs put back": world.hub_restores,
            "hubs put back to before a broadcast": world.behind,
            "reports": len(world.reports),
            "releases": len(world.broadcasts),
            "sets with silos left out": sum(
                len(entries) < world.plan.plan.silos for entries in world.sets.values()
            ),
        }
    )
    if broken:
        found = re.match(r"invariant [0-9]", broken)
        did[f"violations of {found[0] if found else 'the end'}"] = 1
    return did, broken


def waits_for_lost_records(name: str, world: World) -> bool:
    """True where a silo lost records of a report that every set of the plan needs.

    It gave the report up, or told a session before that its records do not lead to any more
    (docs/deployment.md: such a plan waits).
    """
    silos = [world.parties[silo] for silo in world.plan.silos]
    gave_up = any(silo.without or silo.sessions.foreign for silo in silos)
    return name in NEEDS_ALL and world.restores > 0 and gave_up


def main() -> int:
    """Run as many schedules as asked for, on all cores; 1 after a violation."""
    parser = argparse.ArgumentParser(prog="scripts/schedules", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    total: Counter = Counter()
    started, broken = time.monotonic(), ""
    seeds = range(given.first, given.first + given.count)
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        for seed, (did, problem) in zip(seeds, pool.imap(run, seeds, chunksize=16), strict=False):
            total += did
            if problem:
                broken = f"seed {seed} ({chosen(seed)[0]}, {chosen(seed)[1]}): {problem}"
                break
            if time.monotonic() > started + given.seconds:
                break
        pool.terminate()
    seconds = time.monotonic() - started
    for what, count in sorted(total.items()):
        print(f"{count:10d}  {what}")
    rate = seconds / max(1, total["schedules"])
    print(f"{seconds:10.0f}  seconds, {1e3 * rate:.1f} ms a schedule, {given.processes} processes")
    if broken:
        print(f"\n{broken}\nagain: scripts/schedules 1 --first {broken.split()[1]}")
    else:
        print("no violation")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
