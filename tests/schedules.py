"""Random schedules of faults for all deployed protocols; `scripts/schedules` runs them.

One seed determines one schedule: the plan, the faults, and every lost, repeated or late message and
every kill. The invariants are those of `federation.World`. The events of a schedule are counted.
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

from exchanges import ExpertWorld, small_plan
from federation import (
    BITS,
    MASKED_BITS,
    MASKS,
    PATIENT,
    TICK,
    WORDS,
    ClockedWorld,
    Violation,
    World,
    clocked,
    deployed,
    quickly,
)

from fastfed._random import SystemNoise
from fastfed.deployment.experts import ExpertHub, ExpertSilo, SparseHub, SparseSilo
from fastfed.deployment.hub import Hub
from fastfed.deployment.party import Message, Step
from fastfed.deployment.phases import PhaseHub, PhaseSilo
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import Write
from fastfed.deployment.sums import Helper
from fastfed.deployment.wire import Opened, entry_of

FEWER = {"system": {"batch_size": 3, "honest_fraction": 0.6}, "federation": {"least": 2}}
#: All deployed protocols, with tables of their specs.
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
    "user-bit": (BITS, {}),
}
#: Plans that send no batches, from seed `ALL` on: class of the world, and classes of silo and hub.
WITHOUT_BATCHES = {
    "robin": (World, PhaseSilo, PhaseHub),
    "fed-dp-ope-stoch": (ExpertWorld, ExpertSilo, ExpertHub),
    "fed-svt": (ExpertWorld, SparseSilo, SparseHub),
}
#: If every silo must be in every set, lost records may delay a release for ever.
NEEDS_ALL = {name for name, (p, tables) in PLANS.items() if p in WORDS and tables is not FEWER}
FAULTS = ("kills", "silos restored", "hub restored")
#: Seeds from here on have more kinds of faults; smaller seeds keep the schedules that have found
#: something.
MORE = 1_000_000
#: Seeds from here on also draw plans of bits, `WITHOUT_BATCHES`, and silos that erase old records.
ALL = 10_000_000
#: Seeds from here on draw only `CLOCKS`, plans whose silos report on their own clocks.
OWN_CLOCKS = 20_000_000
CLOCKS = {
    "clocks, equal": ({}, "silo-ldp", {}),
    "clocks, one is slow": ({"rates": [0.5]}, "silo-ldp", {}),
    "clocks, all differ": ({"rates": [1.0, 0.8, 0.4]}, "silo-ldp", {"release": "toeplitz"}),
    "clocks, one leaves, one is late": ({"asleep": [[0, 5], [2, 1, 4]]}, "silo-ldp-prefix", {}),
    "clocks, calendars": ({"by": "ticks", "asleep": [[1, 3, 6]]}, "silo-ldp", {}),
    "clocks, capped": ({"rates": [0.7]}, "silo-ldp", {"release": "honaker"}),
}
YEARS = 10 * 365 * 86_400.0


def chosen(seed: int) -> tuple[str, str, dict, dict]:
    """Return plan, faults, tables of the spec and keys of the world of one schedule."""
    rng = Random(f"schedule {seed}")
    if seed >= OWN_CLOCKS:
        return chosen_with_clocks(rng)
    names = [name for name in PLANS if seed >= ALL or PLANS[name][0] != BITS]
    name, faults = rng.choice(names + list(WITHOUT_BATCHES) * (seed >= ALL)), rng.choice(FAULTS)
    protocol, plan_tables = PLANS.get(name, (name, {}))
    tables = {"federation": {"name": "tests", "least": 2}, **plan_tables}
    tables["federation"] = {"name": "tests", **tables["federation"]}
    if protocol in WORDS and tables["federation"]["least"] == 2 and name in NEEDS_ALL:
        del tables["federation"]
    # Usually two releases, the smallest number at which a second one can fail; sometimes four.
    tables |= {"batches": 4 if rng.random() < 0.1 else 2, "batch": 3}
    keys = {"kill": rng.choice((0.01, 0.03, 0.1, 0.2)), "stride": 40.0}
    if faults != "hub restored" and rng.random() < 0.5:
        keys["skew"] = rng.choice((30.0, 300.0))
    if faults == "silos restored":
        keys["restore"] = 0.5
    if faults == "hub restored":
        keys |= {"hub_restore": 0.7, "kill": rng.choice((0.0, 0.03, 0.1))}
        tables["calendar"] = PATIENT
    if seed >= MORE:
        if "skew" in keys:
            keys["skew"] = rng.choice((30.0, 300.0, 86_400.0, YEARS))
        # A helper may be restored while the hub is unchanged, see docs/run-it-for-real.md.
        if faults != "hub restored" and protocol in ("secure-sum", "shuffle-vector"):
            keys["helper_restore"] = rng.choice((0.0, 0.7))
        keys["versions"] = 0.02
    if seed >= ALL:
        keys["erase"] = rng.choice((0.0, 0.1))
    return name, faults, tables, keys


def chosen_with_clocks(rng: Random) -> tuple[str, str, dict, dict]:
    """Return the same values as `chosen`, for plans with clocks."""
    name, faults = rng.choice(list(CLOCKS)), rng.choice(FAULTS)
    tables: dict = {"batches": rng.choice((3, 4))}
    keys = {
        "kill": rng.choice((0.0, 0.01, 0.03, 0.1, 0.2)),
        "stride": rng.choice((10.0, 40.0)),
        "versions": 0.02,
        "erase": rng.choice((0.0, 0.1)),
    }
    if name == "clocks, capped":
        tables["federation"] = {"name": "tests", "influence": 1.0}
    if faults != "hub restored" and rng.random() < 0.5:
        keys["skew"] = rng.choice((30.0, 300.0, 86_400.0, YEARS))
    if faults == "silos restored":
        keys["restore"] = 0.5
    if faults == "hub restored":
        keys |= {"hub_restore": 0.7, "kill": rng.choice((0.0, 0.03, 0.1))}
        calendar = {name: value for name, value in PATIENT.items() if name != "period"}
        tables["calendar"] = {**calendar, "round": TICK}
    return name, faults, tables, keys


def run(seed: int) -> tuple[Counter, str]:
    """Run one schedule; return counts of its events, and the violation or an empty text."""
    with quickly():
        return run_drawn(seed)


def run_drawn(seed: int) -> tuple[Counter, str]:
    """Return what `run` returns; the caller has entered `quickly`."""
    name, faults, tables, keys = chosen(seed)
    if name in WITHOUT_BATCHES:
        kind, silo, hub = WITHOUT_BATCHES[name]
        plan = small_plan(name, **{k: tables[k] for k in ("federation", "calendar") if k in tables})
        world = kind(plan, seed, kinds={"silo": silo, "hub": hub}, **keys)
    elif name in CLOCKS:
        clock, protocol, system = CLOCKS[name]
        world = ClockedWorld(clocked(clock, protocol, system=system, **tables), seed, **keys)
    else:
        world = World(deployed(PLANS[name][0], **tables), seed, **keys)
    counts: Counter = Counter({"schedules": 1, f"plan {name}": 1, f"with {faults}": 1})
    counts["with wrong clocks"] = "skew" in keys
    counts["with clocks wrong by years"] = keys.get("skew") == YEARS
    broken = ""
    try:
        if faults == "hub restored":
            world.run_with_the_hub_put_back(stretches=4, moments=30, rounds=8)
        else:
            world.run(moments=400 if keys.get("erase") else 150)
    except Violation as violation:
        broken = str(violation)
        if "come to its end" in broken and waits_for_lost_records(name, world):
            broken, counts["wait for lost records"] = "", 1
    except Exception as error:  # A party must not raise any other error either.
        broken = f"{type(error).__name__}: {error}"
    counts |= Counter(
        {
            "kills": world.kills,
            "silos restored": world.restores,
            "hubs restored": world.hub_restores,
            "helpers restored": world.helper_restores,
            "messages of another version": world.versions,
            "hubs restored to before a broadcast": world.behind,
            "snapshots": world.snapshots,
            "erased records": world.erased,
            "reports": len(world.reports),
            "releases": len(world.broadcasts),
            "views with late reports": getattr(world, "late", 0),
            "sets with silos left out": sum(
                len(entries) < world.plan.plan.silos for entries in world.sets.values()
            ),
            "releases of which two sets were named, and one opened": sum(
                len(sets) > 1 for sets in world.named.values()
            ),
        }
    )
    if broken:
        invariant = re.match(r"invariant [0-9]", broken)
        counts[f"violations of {invariant[0] if invariant else 'the end'}"] = 1
    return counts, broken


def waits_for_lost_records(name: str, world: World) -> bool:
    """Return true if too few silos have a report of the next release, since records are lost.

    These silos gave up the report, or the hub has a session derived from records that their
    restored state lacks. Such a plan waits; see docs/deployment.md.
    """
    hub, silos = world.parties["hub"], [world.parties[silo] for silo in world.plan.silos]
    release = len(hub.broadcasts) + 1
    if name in NEEDS_ALL:
        gave_up = any(silo.unreported or silo.sessions.foreign for silo in silos)
    else:
        lost = sum("lost" in silo.unreported.get(release, "") for silo in silos)
        gave_up = len(silos) - lost < world.plan.document.least
    return world.restores > 0 and gave_up


# ---- Deliberate faults ---------------------------------------------------------------------------


class Redrawn(SiloParty):
    """A faulty silo: it draws new noise of the operating system for each repeated report."""

    def report(self, release):
        """Return the report with new noise."""
        self._noise = SystemNoise()
        return super().report(release)


class Reopening(Hub):
    """A faulty hub: it makes a set of all silos that have reported by now, not that of its log."""

    def _broadcast(self, release):
        """Replace the set of the release by all silos that have reported, then broadcast."""
        reported_silos = [
            index for index in range(self.plan.silos) if (release, index) in self.reports
        ]
        entries = tuple(entry_of(index, self.reports[release, index]) for index in reported_silos)
        self.sets[release] = Opened(entries)
        return super()._broadcast(release)


class ByCount(SiloParty):
    """A faulty silo: its leaf ends after as many records as a batch has, not at its close."""

    def _open_leaf(self, now):
        """Return the leaf of the next record, by the number of records so far."""
        return min(1 + sum(e.leaf > 0 for e in self.ended.values()) // 5, self.plan.releases)


class Opener(Hub):
    """A faulty hub: it opens a release with fewer silos than the plan allows."""

    def _open_next_set(self, release, now):
        """Open a set of one silo, as soon as a silo has reported."""
        reported_silos = [
            index for index in range(self.plan.silos) if (release, index) in self.reports
        ]
        if not reported_silos:
            return super()._open_next_set(release, now)
        entries = (entry_of(reported_silos[0], self.reports[release, reported_silos[0]]),)
        return Step((Write("set", str(release), self.signed(release, Opened(entries))),))


class Renaming(Hub):
    """A faulty hub: it also requests the set without its last silo from the helper."""

    def _requests_to_helper(self):
        """Return the requests, and each once more without its last silo."""
        messages = super()._requests_to_helper()
        for receiver, data in messages:
            body = self.wire.body(self.wire.read(data), Opened)
            if len(body.entries) > self.deployed.document.least:
                fewer = Opened(body.entries[:-1], body.sealed[:-1])
                messages += (Message(receiver, self.signed(len(self.broadcasts) + 1, fewer)),)
        return messages


class Obliging(Helper):
    """A faulty helper: it opens every requested set, but stores only the first."""

    def handle(self, data, now):
        """Handle a request as if no set of this or a later release had been opened."""
        release = self.wire.read(data).release
        stored = self.sets, self.answers
        self.sets, self.answers = (
            {},
            {
                stored_release: answer
                for stored_release, answer in self.answers.items()
                if stored_release < release
            },
        )
        step = super().handle(data, now)
        self.sets, self.answers = stored
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
    """Return the seed of the first schedule in which a fault violated its invariant, and other
    errors."""
    keys, expected = PLANTED[fault]
    keys = dict(keys)
    protocol, tables = PLANS[keys.pop("plan", "silo-ldp")]
    sizes = {"batches": 2, "batch": 3} if tables else {}
    errors = set()
    for seed in seeds:
        try:
            with quickly():
                World(deployed(protocol, **tables, **sizes), seed, **keys).run()
        except (ValueError, Violation) as error:
            # A party that stopped itself has also detected the fault; go on to what the scheduler
            # detects.
            errors.add(str(error))
            if isinstance(error, Violation) and re.match(expected, str(error)):
                return seed, errors
    return None, errors


# ---- The script ----------------------------------------------------------------------------------


def caught(fault: str, seeds: range) -> int:
    """Print which schedule detects a deliberate fault; return 1 if none does."""
    seed, errors = planted(fault, seeds)
    if seed is None:
        print(f"{fault}: not caught in {len(seeds)} schedules; {len(errors)} others broke")
        return 1
    (reason,) = [text for text in errors if re.match(PLANTED[fault][1], text)]
    print(f"{fault}: caught by seed {seed}, {reason}")
    return 0


def main() -> int:
    """Run the requested number of schedules on all cores; return 1 after a violation."""
    parser = argparse.ArgumentParser(prog="scripts/schedules", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--jobs", "--processes", dest="jobs", type=int, default=os.cpu_count())
    parser.add_argument("--plant", choices=PLANTED, help="a fault; 0 if a schedule breaks by it")
    arguments = parser.parse_args()
    if arguments.plant:
        return caught(arguments.plant, range(arguments.first, arguments.first + arguments.count))
    total: Counter = Counter()
    started, broken = time.monotonic(), ""
    seeds = range(arguments.first, arguments.first + arguments.count)
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for seed, (events, problem) in zip(
            seeds, pool.imap(run, seeds, chunksize=16), strict=False
        ):
            total += events
            if problem:
                broken = f"seed {seed} ({chosen(seed)[0]}, {chosen(seed)[1]}): {problem}"
                break
            if time.monotonic() > started + arguments.seconds:
                break
        pool.terminate()
        pool.join()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = 1e3 * (usage.ru_utime + usage.ru_stime) / max(1, total["schedules"])
    seconds = time.monotonic() - started
    for what, count in sorted(total.items()):
        print(f"{count:10d}  {what}")
    rate = seconds / max(1, total["schedules"])
    print(f"{seconds:10.0f}  seconds with {arguments.jobs} processes: a schedule takes")
    print(f"{1e3 * rate:10.1f}  ms, and {cpu:.1f} ms of CPU")
    if broken:
        print(f"\n{broken}\nagain: scripts/schedules 1 --first {broken.split()[1]}")
    else:
        print("no violation")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
