"""Random schedules of faults over all protocols that are deployed; `scripts/schedules` runs them.

One seed is one schedule: which plan, which faults, and every drop, repeat, delay and kill. The
invariants are those of `federation.World`; what a schedule did is counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from federation import MASKED_BITS, MASKS, PATIENT, WORDS, Violation, World, deployed, quickly

from fastfed._random import SystemNoise
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Write
from fastfed.deployment.party import Message, Step
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sums import Helper
from fastfed.deployment.wire import Opened, entry_of

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
#: Seeds from here on have more moves; those before keep the schedules that have found something.
MORE = 1_000_000
YEARS = 10 * 365 * 86_400.0


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
    if seed >= MORE:
        if "skew" in keys:
            keys["skew"] = rng.choice((30.0, 300.0, 86_400.0, YEARS))
        # A helper may be put back while the hub is as it was, see docs/run-it-for-real.md.
        if faults != "hub put back" and protocol in ("secure-sum", "shuffle-vector"):
            keys["helper_restore"] = rng.choice((0.0, 0.7))
        keys["versions"] = 0.02
    return name, faults, tables, keys


def run(seed: int) -> tuple[Counter, str]:
    """One schedule: what it did, and what broke."""
    with quickly():
        return drawn(seed)


def drawn(seed: int) -> tuple[Counter, str]:
    """See `run`."""
    name, faults, tables, keys = chosen(seed)
    world = World(deployed(PLANS[name][0], **tables), seed, **keys)
    did: Counter = Counter({"schedules": 1, f"plan {name}": 1, f"with {faults}": 1})
    did["with wrong clocks"] = "skew" in keys
    did["with clocks wrong by years"] = keys.get("skew") == YEARS
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
            "helpers put back": world.helper_restores,
            "messages of another version": world.versions,
            "hubs put back to before a broadcast": world.behind,
            "reports": len(world.reports),
            "releases": len(world.broadcasts),
            "sets with silos left out": sum(
                len(entries) < world.plan.plan.silos for entries in world.sets.values()
            ),
            "releases of which two sets were named, and one opened": sum(
                len(sets) > 1 for sets in world.named.values()
            ),
        }
    )
    if broken:
        found = re.match(r"invariant [0-9]", broken)
        did[f"violations of {found[0] if found else 'the end'}"] = 1
    return did, broken


def waits_for_lost_records(name: str, world: World) -> bool:
    """True where too few silos have a report of the next release, as their records are lost.

    They gave the report up, or told a session before that their records do not lead to any more
    (docs/deployment.md: such a plan waits).
    """
    hub, silos = world.parties["hub"], [world.parties[silo] for silo in world.plan.silos]
    release = len(hub.broadcasts) + 1
    if name in NEEDS_ALL:
        gave_up = any(silo.without or silo.sessions.foreign for silo in silos)
    else:
        lost = sum("lost" in silo.without.get(release, "") for silo in silos)
        gave_up = len(silos) - lost < world.plan.document.least
    return world.restores > 0 and gave_up


# ---- planted faults ------------------------------------------------------------------------------


class Redrawn(SiloParty):
    """Noise of the operating system: drawn anew whenever a report is made."""

    def report(self, release):
        self._noise = SystemNoise()
        return super().report(release)


class Reopening(Hub):
    """Makes a set of whoever has reported by now, whatever the log says."""

    def _broadcast(self, release):
        came = [i for i in range(self.plan.silos) if (release, i) in self.reports]
        entries = tuple(entry_of(i, self.reports[release, i]) for i in came)
        self.sets[release] = Opened(entries)
        return super()._broadcast(release)


class ByCount(SiloParty):
    """A leaf ends when it has as many records as its batch."""

    def _leaf(self, now):
        return min(1 + sum(e.leaf > 0 for e in self.ended.values()) // 5, self.plan.releases)


class Opener(Hub):
    """Opens a release with one silo less than the plan allows."""

    def _opening(self, release, now):
        came = [i for i in range(self.plan.silos) if (release, i) in self.reports]
        if not came:
            return super()._opening(release, now)
        entries = (entry_of(came[0], self.reports[release, came[0]]),)
        return Step((Write("set", str(release), self.made(release, Opened(entries))),))


class Renaming(Hub):
    """Asks the helper for the set without its last silo, too."""

    def _questions(self):
        asked = super()._questions()
        for to, data in asked:
            body = self.wire.body(self.wire.read(data), Opened)
            if len(body.entries) > self.deployed.document.least:
                fewer = Opened(body.entries[:-1], body.sealed[:-1])
                asked += (Message(to, self.made(len(self.broadcasts) + 1, fewer)),)
        return asked


class Obliging(Helper):
    """Opens every set that it is asked for, and keeps the first: a store takes no second one."""

    def handle(self, data, now):
        release = self.wire.read(data).release
        kept = self.sets, self.answers
        self.sets, self.answers = {}, {k: a for k, a in self.answers.items() if k < release}
        step = super().handle(data, now)
        self.sets, self.answers = kept
        return step._replace(writes=()) if release in self.answers else step


FEWER_BITS = "shuffle-vector, fewer"
PLANTED = {
    "nothing": ({}, "invariant"),
    "no fsync": ({"forget": True, "kill": 0.1}, "invariant 1"),
    "redrawn noise": ({"kinds": {"silo": Redrawn}}, "invariant [12]"),
    "second set opened": ({"kinds": {"hub": Reopening}}, "invariant 4"),
    "second set opened by the helper": (
        {"kinds": {"hub": Renaming, "helper": Obliging}, "plan": FEWER_BITS},
        "invariant 4: two sets",
    ),
    "charge after seal": ({"reverse": True}, "invariant 5"),
    "leaf by count": ({"kinds": {"silo": ByCount}}, "invariant 3"),
    "a set that is too small": ({"kinds": {"hub": Opener}}, "invariant 4"),
}


def planted(fault: str, seeds: Iterable[int]) -> tuple[int | None, set[str]]:
    """The seed of the first schedule in which a fault broke its invariant, and what else broke."""
    keys, expected = PLANTED[fault]
    keys = dict(keys)
    protocol, tables = PLANS[keys.pop("plan", "silo-ldp")]
    sizes = {"batches": 2, "batch": 3} if tables else {}
    said = set()
    for seed in seeds:
        try:
            with quickly():
                World(deployed(protocol, **tables, **sizes), seed, **keys).run()
        except (ValueError, Violation) as error:
            # A party that stopped itself has caught it, too; go on to what the scheduler sees.
            said.add(str(error))
            if isinstance(error, Violation) and re.match(expected, str(error)):
                return seed, said
    return None, said


# ---- the script ----------------------------------------------------------------------------------


def caught(fault: str, seeds: range) -> int:
    """Say by which schedule a planted fault is caught; 1 if by none."""
    seed, said = planted(fault, seeds)
    if seed is None:
        print(f"{fault}: not caught in {len(seeds)} schedules; {len(said)} others broke")
        return 1
    (why,) = [text for text in said if re.match(PLANTED[fault][1], text)]
    print(f"{fault}: caught by seed {seed}, {why}")
    return 0


def main() -> int:
    """Run as many schedules as asked for, on all cores; 1 after a violation."""
    parser = argparse.ArgumentParser(prog="scripts/schedules", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--jobs", "--processes", dest="jobs", type=int, default=os.cpu_count())
    parser.add_argument("--plant", choices=PLANTED, help="a fault; 0 if a schedule breaks by it")
    given = parser.parse_args()
    if given.plant:
        return caught(given.plant, range(given.first, given.first + given.count))
    total: Counter = Counter()
    started, broken = time.monotonic(), ""
    seeds = range(given.first, given.first + given.count)
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
        for seed, (did, problem) in zip(seeds, pool.imap(run, seeds, chunksize=16), strict=False):
            total += did
            if problem:
                broken = f"seed {seed} ({chosen(seed)[0]}, {chosen(seed)[1]}): {problem}"
                break
            if time.monotonic() > started + given.seconds:
                break
        pool.terminate()
        pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = 1e3 * (used.ru_utime + used.ru_stime) / max(1, total["schedules"])
    seconds = time.monotonic() - started
    for what, count in sorted(total.items()):
        print(f"{count:10d}  {what}")
    rate = seconds / max(1, total["schedules"])
    print(f"{seconds:10.0f}  seconds with {given.jobs} processes: a schedule takes")
    print(f"{1e3 * rate:10.1f}  ms, and {cpu:.1f} ms of CPU")
    if broken:
        print(f"\n{broken}\nagain: scripts/schedules 1 --first {broken.split()[1]}")
    else:
        print("no violation")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
