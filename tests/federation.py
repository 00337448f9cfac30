"""A small federation for tests: keys, spec, parties in memory, and seeded schedules of faults."""

from __future__ import annotations

import copy
import hashlib
import random
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.deployment import party as party_module
from fastfed.deployment import plans, wire
from fastfed.deployment.clocked import ClockedHub, ClockedSilo
from fastfed.deployment.guard import sum_of
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import hub_of, silo_of
from fastfed.deployment.ledger import Charge, Ledger
from fastfed.deployment.model import ClockedModel
from fastfed.deployment.party import (
    BELIEVED,
    UNCOVERED,
    Covered,
    Message,
    SteadyClock,
    Step,
)
from fastfed.deployment.process import Process, SiloProcess, restored
from fastfed.deployment.seal import Identity, SealedNoise, digest, encrypted_to, keyed_digest
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore, Write, chained
from fastfed.deployment.sums import HUB_CONTEXT, Helper, share_context
from fastfed.deployment.wire import Broadcast, News, Opened, Refused

#: Cached Ed25519 signatures. Tests sign a message many times, and every receiver verifies it. A
#: signature is deterministic, so it is looked up here; Ed25519 verifies all other signatures.
_SIGNED = {}
_SIGN, _VERIFIED, _AGREED = Identity.sign, wire.verified, Identity.agreed_with
_READ, _RANGE = wire.Wire.read, party_module.Range
#: Not empty while schedules run. Then results of pure functions, and ranges of plans, are cached.
_QUICK = []
_CACHED, _RANGES = {}, {}


@contextmanager
def quickly():
    """Sign by a hash instead of Ed25519, and cache what depends on a plan or a message only.

    Nobody forges signatures in a schedule. The hash still names the sender, and a changed message
    is still refused. Without this, thousands of schedules spend a third of their time on Ed25519
    and on parsing messages again.
    """
    _QUICK.append(True)
    try:
        yield
    finally:
        _QUICK.pop()


def _read(self, data, kinds=tuple(wire.KINDS)):
    """Read a message as `Wire.read`. During random schedules, each message is read once."""
    message = _CACHED.get((self, data)) if _QUICK else None
    # The uncached function refuses a message of a kind that is not in ``kinds``.
    if message is None or message.kind not in kinds:
        message = _READ(self, data, kinds)
        if _QUICK:
            _forget()
            _CACHED[self, data] = message
    return message


def _range(plan):
    """Return the range of a plan as `party.Range`; while schedules run, compute it once."""
    if not _QUICK:
        return _RANGE(plan)
    if id(plan) not in _RANGES:
        # The plan is stored too, so that no other plan can get its id.
        _RANGES[id(plan)] = plan, _RANGE(plan)
    return _RANGES[id(plan)][1]


def _drawn(draw):
    """Cache a method that draws sealed noise: the noise is a function of the key."""

    def drawn(self, silo, node, *sizes):
        """Return the cached draw of this key while schedules run."""
        if not _QUICK:
            return draw(self, silo, node, *sizes)
        key = self.key(b"schedule", silo, node), draw.__name__, *sizes
        if key not in _CACHED:
            _forget()
            _CACHED[key] = draw(self, silo, node, *sizes)
        return _CACHED[key].copy()

    return drawn


def _agreed(self, public, context):
    """Return an agreed key as `Identity.agreed_with`; while schedules run, compute it once."""
    if not _QUICK:
        return _AGREED(self, public, context)
    key = self.public, public, context
    if key not in _CACHED:
        _forget()
        _CACHED[key] = _AGREED(self, public, context)
    return _CACHED[key]


def _forget():
    """Empty the cache of results when it is large."""
    if len(_CACHED) > 20_000:
        _CACHED.clear()


def _hashed(public, data):
    """Return the hash that stands for a signature while schedules run."""
    return hashlib.blake2b(data, key=public, digest_size=64, person=b"schedule").digest()


def _sign(self, data):
    """Sign as `Identity.sign`: by a hash while schedules run, otherwise by a cached signature."""
    if _QUICK:
        return _hashed(self.public[0], data)
    key = self.public[0], data
    if key not in _SIGNED:
        if len(_SIGNED) > 20_000:
            _SIGNED.clear()
        _SIGNED[key] = _SIGN(self, data)
    return _SIGNED[key]


def _verified(public, signature, data):
    """Return whether a signature is valid, as `wire.verified`; see `_sign`."""
    if _QUICK and signature == _hashed(public, data):
        return True
    return _SIGNED.get((public, data)) == signature or _VERIFIED(public, signature, data)


# A signature that is not in the cache is verified by Ed25519.
Identity.sign, wire.verified, plans.verified = _sign, _verified, _verified
wire.Wire.read, party_module.Range, Identity.agreed_with = _read, _range, _agreed
SealedNoise.coins, SealedNoise.binomials = map(_drawn, (SealedNoise.coins, SealedNoise.binomials))
Identity.public = cached_property(Identity.public.fget)
Identity.public.__set_name__(Identity, "public")
plans.Identity = lru_cache(maxsize=64)(Identity)

START, PERIOD, GRACE = 1000, 100, 50
#: Seconds of a tick of plans with clocks.
TICK = 50
#: A restored hub waits for silos, which are away for at most 200 seconds and send late messages.
PATIENT = {"start": START, "period": PERIOD, "grace": 900, "reward_deadline": 250}
#: Protocols with sums under pairwise masks, and all protocols whose reports are integer words.
MASKS = "secure-sum by masks"
MASKED_BITS = "shuffle-vector by masks"
#: Users' devices send bits in place of rewards.
BITS = "user-bit"
WORDS = ("secure-sum", MASKS, "shuffle-vector", MASKED_BITS)


#: Context vectors of two actions; the small federation has two columns.
ROWS = [[0.5, 0.1], [-0.3, 0.8]]


#: Protocols whose release is set to "tree" in tests.
TREES = ("silo-ldp", "central", "shuffle-vector", MASKED_BITS)


def secret(name):
    """Return the secret key of a party, a function of its name."""
    return keyed_digest(b"s" * 32, b"tests", name.encode())


def party(name):
    """Return a party's table of public keys, as a spec lists it."""
    sign, open_ = Identity(secret(name)).public
    return {"name": name, "sign": sign.hex(), "open": open_.hex()}


def spec(protocol="silo-ldp", silos=3, dimension=2, batches=4, batch=5, **more):
    """Return a spec as a mapping; keywords replace its tables."""
    system = {"horizon": batches * batch, "protocol": protocol, "epsilon": 1.0, "delta": 1e-6}
    if protocol == "feducb":
        system["algorithm"] = system.pop("protocol")
    # Most deployment tests are about nodes of trees. Other tests check the default release.
    tree_keys = {"release": "tree"} if protocol in TREES else {}
    if protocol == BITS:
        system |= {"protects": "reward"}
        del system["delta"]
    system |= more.pop("system", {"batch_size": batch, **tree_keys})
    spec_table = {
        "federation": {"name": "tests", "least": 2},
        "system": system,
        "calendar": {"start": START, "period": PERIOD, "grace": GRACE, "reward_deadline": 250},
        "columns": [{"name": f"x{i}", "low": -1.0, "high": 1.0} for i in range(dimension)],
        "norm": 1.0,
        "silos": [party(f"silo{i}") for i in range(silos)],
        "hub": {k: v for k, v in party("hub").items() if k != "name"},
    }
    if protocol in WORDS:
        spec_table["federation"]["least"] = silos
    if protocol in (MASKS, MASKED_BITS):
        system["protocol"] = "secure-sum" if protocol == MASKS else "shuffle-vector"
        spec_table["federation"]["sum"] = "masks"
    elif protocol in WORDS:
        spec_table["helper"] = {k: v for k, v in party("helper").items() if k != "name"}
    return spec_table | more


_PLANS = {}


def deployed(protocol="silo-ldp", **keys):
    """Return the compiled plan of a spec; compile each spec once."""
    text = repr((protocol, sorted(keys.items(), key=str)))
    if text not in _PLANS:
        _PLANS[text] = plans.compile_plan(spec(protocol, **keys))
    return _PLANS[text]


def sealed_report(plan, index, release, values, share=b"", identity=None, name=None):
    """Return a silo's report of these values, signed by the silo and encrypted to the hub."""
    name = name or plan.silos[index]
    identity = identity or Identity(secret(name))
    context = share_context(plan, index, release, HUB_CONTEXT)
    values = values if isinstance(values, bytes) else wire.packed(values)
    body = wire.Report(encrypted_to(plan.document.hub.open, values, context, bytes(32)), share)
    return plan.wire.signed(identity, name, release, body)


def opened_report(plan, data):
    """Return the bytes of values that the hub decrypts from a report."""
    message = plan.wire.read(data)
    context = share_context(plan, plan.index(message.sender), message.release, HUB_CONTEXT)
    body = plan.wire.body(message, wire.Report)
    return Identity(secret("hub")).decrypt(body.values, context)


def seen(plan, index, report, last=0, head=b"", release=None):
    """Return the message in which a silo gives all parties the digest of its report."""
    release = plan.wire.read(report).release if release is None else release
    body = wire.Seen(digest(report), last, head)
    return plan.wire.signed(Identity(secret(plan.silos[index])), plan.silos[index], release, body)


def news(plan, broadcast, before=b""):
    """Return the hub's message with a broadcast; ``before`` is the last broadcast silos saw."""
    message = plan.wire.read(broadcast)
    last_release = message.release - 1 if before else 0
    entries = plan.wire.body(message, Broadcast).entries
    digests = []
    for entry in entries:
        if entry.silo >= len(plan.silos):
            continue
        body = wire.Seen(entry.digest, last_release, digest(before) if before else b"")
        name = plan.silos[entry.silo]
        digests.append(plan.wire.signed(Identity(secret(name)), name, message.release, body))
    hub = Identity(secret("hub"))
    return plan.wire.signed(hub, "hub", message.release, wire.News(broadcast, tuple(digests)))


class Federation:
    """All parties of a plan as processes in memory; messages arrive at once."""

    def __init__(self, plan, noise=None):
        self.plan, self.now = plan, float(START)
        self.processes, self.ledgers = {}, {}
        for name in plan.silos:
            self.ledgers[name] = ledger = Ledger(":memory:")
            ledger.set_ceiling("records", 1.0, 1e-6)
            party = silo_of(plan, name, secret(name), ledger, noise=noise)
            self.add(SiloProcess(party, MemoryStore(), ledger, lambda: self.now))
        self.add(
            Process(
                hub_of(plan, secret("hub"), noise=noise),
                MemoryStore(),
                None,
                lambda: self.now,
            )
        )
        if plan.shared:
            self.add(Process(Helper(plan, secret("helper")), MemoryStore(), None, lambda: self.now))

    def add(self, process):
        """Add a process, which replaces an earlier one of its party."""
        self.processes[process.party.name] = process

    def settle(self):
        """Tick all processes and deliver messages until no party sends anything new."""
        for _ in range(6):
            mail = [m for process in self.processes.values() for m in process.tick()]
            while mail:
                receiver, data = mail.pop(0)
                if receiver not in self.processes:
                    continue
                with suppress(Refused):
                    mail += self.processes[receiver].handle(data)[1]


def rewarded(process, name, reward):
    """Pass on a reward or, in a plan of bits, a bit in place of it."""
    if process.party.plan.flips:
        process.bit(name, int(reward > 0.4))
    else:
        process.reward(name, reward)


def served(federation, release, names=None, reward=0.5):
    """Add a record at each silo in the period of a release, and move the clock to its close."""
    federation.now = federation.plan.document.calendar.closes[release - 1] - 10.0
    for name in names or federation.plan.silos:
        process = federation.processes[name]
        rewarded(process, process.decide(ROWS).id, reward)
    federation.now += 10.0


def period(federation, release, names=None, reward=0.5):
    """Add a record at each silo, close the period of the release and deliver all messages."""
    served(federation, release, names, reward)
    federation.settle()


class Violation(AssertionError):
    """Raised when an invariant of the protocol does not hold."""


class Forgetful(MemoryStore):
    """A store without fsync: its last three writes are lost when its process is killed."""

    def kept(self):
        """Return the store without its last three writes, which a crash has lost."""
        return MemoryStore(self._writes[: max(1, len(self._writes) - 3)])

    def save_snapshot(self, parts, erase=()):
        """Save none: without fsync it could be newer than the writes."""


class Remembering(MemoryStore):
    """A store that also remembers the writes that were erased."""

    def __init__(self, writes=()):
        super().__init__(writes)
        self.everything = list(writes)

    def write(self, write):
        """Write, and remember the write if it is new."""
        is_new = super().write(write)
        self.everything += [write] * is_new
        return is_new

    def copy(self):
        """Return a store with the same content, as a backup of a file has it."""
        twin = Remembering()
        twin.__dict__ |= {name: copy.copy(value) for name, value in vars(self).items()}
        return twin


def learned(party):
    """Return the part of a silo's state that its records determine."""
    names = ("_learning_count", "clipped_features", "clipped_rewards", "_has_subjects",
             "_record_count", "_learning_by_period", "_old_places")  # fmt: skip
    state = {name: copy.copy(getattr(party, name, None)) for name in names}
    state["counts"] = party.decisions.count, party.ended.count
    state["leaves"], state["theta"] = party._leaf_sums.tobytes(), party.model.theta.tobytes()
    return state


class World:
    """Parties, a network that loses and repeats messages, a clock and a seeded random generator.

    The world checks the invariants of the protocol at every write and every message.
    """

    def __init__(
        self, plan, seed, *, kinds=None, kill=0.03, restore=0.0, hub_restore=0.0, reverse=False,
        forget=False, stride=20.0, skew=0.0, helper_restore=0.0, versions=0.0, erase=0.0,
    ):  # fmt: skip
        self.plan, self.random = plan, random.Random(seed)
        self.kinds = {"silo": SiloParty, "hub": Hub, "helper": Helper} | (kinds or {})
        self.kill_chance, self.restore_chance = kill, restore
        self.reverse, self.forget, self.stride = reverse, forget, stride
        #: Machine clocks are wrong by at most ``skew`` seconds; their errors change now and then.
        self.skew, self.wrong, self.clocks = skew, {}, {}
        self.hub_restore_chance, self.hub_restores, self.behind = hub_restore, 0, 0
        self.helper_restore_chance, self.helper_restores = helper_restore, 0
        #: Probability that a message first arrives in another version of the format.
        self.version_chance, self.versions = versions, 0
        #: Probability that a silo erases old records in a moment.
        self.erase_chance, self.erased = erase, 0
        self.now, self.network, self.kills, self.restores = float(START), [], 0, 0
        self.stores = {p.name: (Forgetful if forget else Remembering)() for p in plan.parties}
        self.ledgers = {name: Ledger(":memory:") for name in plan.silos}
        for ledger in self.ledgers.values():
            ledger.set_ceiling("records", 20.0, 1e-5)
        self.backups = {each.name: [] for each in plan.parties}
        self.truth = {}  # (silo, decision) -> leaf by the calendar
        self.open = {name: [] for name in plan.silos}
        self.reports, self.sets, self.broadcasts, self.stolen = {}, {}, {}, []
        self.sent_sets = set()  # releases of which a party has sent a set, or the sum of one
        self.named = {}  # release -> sets that the hub asked the helper to open
        self.first_sessions = {}  # (silo, release) -> message with the silo's session
        self.parties, self.down = {}, {}
        #: Hash of the writes of each party that snapshots do not cover; see `process.restored`.
        self.others, self.snapshots, self.random_snapshots = {}, 0, random.Random(seed)
        for each in plan.parties:
            self.start(each.name)

    def clock(self, name):
        """Return the time by a party's clock; tell the party how far its machine's clock is off."""
        now = self.clocks[name]()
        self.parties[name].ahead = self.clocks[name].ahead
        return now

    def take(self, name, data):
        """Let a party handle a message; even a refused message corrects the party's clock."""
        now, party = self.clock(name), self.parties[name]
        with suppress(InputError):
            self.perform(name, self.ask(name, lambda: party.handle(data, now)))
        clock_reading, party.clock_reading = party.clock_reading, None
        if clock_reading is not None:
            self.clocks[name].add_reading(clock_reading)

    # ---- processes -------------------------------------------------------------------------------

    def start(self, name):
        """Start a party from its store, and check what it restores."""
        if name in self.plan.silos:
            new_party = self.kinds["silo"](
                self.plan, name, secret(name), self.ledgers[name], entropy=self.random.randbytes
            )
        elif name == "hub":
            new_party = self.kinds["hub"](self.plan, secret(name))
        else:
            new_party = self.kinds["helper"](self.plan, secret(name))
        self.parties[name] = new_party
        self.clocks[name] = SteadyClock(
            lambda: self.now + self.wrong.get(name, 0.0), lambda: self.now
        )
        store = self.stores[name]
        covered = restored(new_party, store)
        self.others[name] = covered.others
        for write in store.writes(after=covered.position):
            self.fold(name, write)
        for write in new_party.upgrade():
            store.write(write)
            self.fold(name, write)
        if covered != UNCOVERED:
            self.check_restored(name)

    def check_restored(self, name):
        """Check that a silo's state from a snapshot is the state from all writes, erased or not."""
        party, everything = self.parties[name], MemoryStore(self.stores[name].everything)
        full = self.kinds["silo"](self.plan, name, secret(name), self.ledgers[name])
        full.attach(everything)
        for write in everything.writes():
            full.fold(write)
        if learned(full) != learned(party):
            raise Violation(f"the snapshot of {name} leads to another state than its log")

    def fold(self, name, write):
        """Apply a stored write, as a process does; now and then save a snapshot of the state."""
        party = self.parties[name]
        if write.kind not in party.summarised:
            self.others[name] = chained(self.others[name], write)
        party.fold(write)
        if self.random_snapshots.random() < 0.05:
            store = self.stores[name]
            # Only when all that is stored has been applied.
            if list(store.writes())[-1] == write and (
                parts := party.snapshot(Covered(store.position, self.others[name]))
            ):
                store.save_snapshot(parts)
                party.snapshot_saved()
                self.snapshots += 1

    def kill(self, name):
        """Kill a party and start it again, perhaps after some time and without its last writes."""
        self.kills += 1
        if self.random.random() < 0.3:
            self.down[name] = self.now + self.random.uniform(0, 2 * PERIOD)
        if self.forget:
            self.stores[name] = Forgetful(list(self.stores[name].kept().writes()))
        self.start(name)
        for (silo, release), data in self.reports.items():
            if (
                silo == name
                and not self.restores
                and self.parties[name].sealed.get(release) != data
            ):
                raise Violation(f"invariant 1: {name} sent release {release}, and has forgotten it")

    def dies(self, name):
        """Kill a party with the probability of the schedule; return whether it was killed."""
        if self.random.random() >= self.kill_chance:
            return False
        self.kill(name)
        return True

    def restore(self, name):
        """Restore a silo's state, but not its ledger, from an old backup."""
        if self.backups[name]:
            self.restores += 1
            self.stores[name] = self.random.choice(self.backups[name]).copy()
            self.start(name)
            # The application repeats outcomes that the restored silo no longer knows.
            ended = self.parties[name].ended
            self.open[name] = [
                decision for decision in self.parties[name].decisions if decision not in ended
            ]

    def erase(self, name):
        """Erase a silo's records that are old enough, as `SiloProcess.erase` does."""
        before = self.clock(name) - self.random.choice((0.0, 100.0))
        if not self.perform(name, Step(self.parties[name].expire(before, 100))):
            return
        party, store = self.parties[name], self.stores[name]
        ids = party.erasable(before, 100)
        if ids and not self.dies(name):
            store.save_snapshot(party.snapshot(Covered(store.position, self.others[name])), ids)
            party.snapshot_saved()
            self.erased += len(ids)
            self.dies(name)

    def restore_hub(self):
        """Restore the hub from an old backup, or make a backup."""
        if self.backups["hub"] and self.random.random() < self.hub_restore_chance:
            self.hub_restores += 1
            broadcasts_before = len(self.parties["hub"].broadcasts)
            self.stores["hub"] = MemoryStore(self.random.choice(self.backups["hub"]))
            self.start("hub")
            # A set that was only in the lost log has not been seen by anybody.
            self.sets = {k: entries for k, entries in self.sets.items() if k in self.sent_sets}
            self.behind += broadcasts_before > len(self.parties["hub"].broadcasts)
        else:
            self.backups["hub"].append(list(self.stores["hub"].writes()))

    def restore_helper(self):
        """Restore the helper from an old backup, or make a backup."""
        if self.backups["helper"] and self.random.random() < self.helper_restore_chance:
            self.helper_restores += 1
            self.stores["helper"] = MemoryStore(self.random.choice(self.backups["helper"]))
            self.start("helper")
        else:
            self.backups["helper"].append(list(self.stores["helper"].writes()))

    def perform(self, name, step):
        """Apply a step's writes, then send its messages; before each the party may be killed.

        Return whether the party survived.
        """
        writes = step.writes[::-1] if self.reverse else step.writes
        for write in writes:
            if self.dies(name):
                return False
            if isinstance(write, Charge):
                self.ledgers[name].charge(write)
            elif self.stores[name].write(write):
                self.check_write(name, write)
                self.fold(name, write)
        for message in step.messages:
            if self.dies(name):
                return False
            self.check_sent(name, message)
            self.network.append(message)
        return True

    def ask(self, name, question):
        """Return the step that ``question`` computes; check at times that it repeats exactly."""
        if self.now < self.down.get(name, 0):
            return Step()
        first = question()
        if self.random.random() < 0.1 and question() != first:
            raise Violation(f"invariant 2: {name} answers the same question in two ways")
        return first

    # ---- invariants ------------------------------------------------------------------------------

    def check_write(self, name, write):
        """Raise Violation if a write breaks an invariant."""
        if write.kind == "sealed":
            charged_releases = {charge.release for charge in self.ledgers[name].charges("records")}
            if int(write.key) not in charged_releases:
                raise Violation(f"invariant 5: {name} sealed release {write.key} uncharged")
        if write.kind == "answer":
            # The helper keeps its log, whatever happens to the hub's.
            self.sent_sets.add(int(write.key))
        if write.kind in ("set", "answer"):
            self.check_set(name, self.plan.wire.read(write.value), Opened)
        if write.kind == "ended" and name != "hub":
            silo = self.parties[name]
            leaf = _ended(write).leaf
            # A leaf is closed after it was charged and, under masks, after its session was sent,
            # even if the clock goes back.
            charged_releases = {charge.release for charge in self.ledgers[name].charges("records")}
            closed = max(silo.closed_leaves, silo.sessions.last)
            while closed + 1 in charged_releases:
                closed += 1
            open_leaf = max(silo.calendar.period(self.clock(name)), closed + 1)
            if leaf and leaf != open_leaf:
                raise Violation(
                    f"invariant 3: a record of {name} entered leaf {leaf}, not {open_leaf}"
                )

    def check_sent(self, name, message):
        """Raise Violation if a message breaks an invariant."""
        envelope = self.plan.wire.read(message.data)
        if envelope.kind == "report":
            first_data = self.reports.setdefault((name, envelope.release), message.data)
            if first_data != message.data:
                raise Violation(
                    f"invariant 1: two reports of {name} for release {envelope.release}"
                )
        elif envelope.kind == "sessions" and name != "hub" and not self.restores:
            first_data = self.first_sessions.setdefault((name, envelope.release), message.data)
            if first_data != message.data:
                raise Violation(
                    f"invariant 2: two sessions of {name} for release {envelope.release}"
                )
        elif envelope.kind == "news":
            self.check_sent(
                name, Message(message.to, self.plan.wire.body(envelope, News).broadcast)
            )
        elif envelope.kind in ("set", "broadcast"):
            self.sent_sets.add(envelope.release)
            self.check_set(name, envelope, Opened if envelope.kind == "set" else Broadcast)
            if envelope.kind == "broadcast":
                first_data = self.broadcasts.setdefault(envelope.release, message.data)
                if first_data != message.data:
                    raise Violation(f"invariant 6: two broadcasts of release {envelope.release}")

    def check_set(self, name, envelope, kind):
        """Check that each release has only one opened set of silos, and that no set is too small.

        The hub opens sets, except where shares are encrypted to the helper: then the hub only
        names a set and the helper opens it. A restored hub may name a second set if the helper
        has not opened the first set, because nobody has seen anything of the first set.
        """
        release, entries = envelope.release, self.plan.wire.body(envelope, kind).entries
        if not entries:  # a query for the set
            return
        if len(entries) < self.plan.document.least:
            raise Violation(f"invariant 4: a set of {len(entries)} silos")
        if self.plan.shared and name == "hub" and kind is Opened:
            self.named.setdefault(release, set()).add(entries)
        elif self.sets.setdefault(release, entries) != entries:
            raise Violation(f"invariant 4: two sets of release {release}")

    # ---- one schedule ----------------------------------------------------------------------------

    def deliver(self, index):
        """Deliver a message of the network, unless it is lost; it may be repeated or stolen."""
        receiver, data = self.network.pop(index)
        fate = self.random.random()
        if fate < 0.1:
            return
        if fate < 0.25:
            self.network.append((receiver, data))
        if fate < 0.3:
            self.stolen.append((receiver, data))
        if self.version_chance and self.random.random() < self.version_chance:
            self.refuses_another_version(receiver, data)
        self.take(receiver, data)

    def refuses_another_version(self, receiver, data):
        """Check that a party refuses a message signed in another version of the format."""
        self.versions += 1
        envelope = self.plan.wire.read(data)
        foreign = msgspec.structs.replace(
            envelope, version=self.random.choice((1, 3)), signature=b""
        )
        signature = Identity(secret(envelope.sender)).sign(foreign.signed_part())
        foreign = msgspec.structs.replace(foreign, signature=signature)
        try:
            self.parties[receiver].handle(foreign.as_bytes(), self.clock(receiver))
        except Refused as refusal:
            if "must be of version" in str(refusal):
                return
        raise Violation(f"{receiver} took in a {envelope.kind} of another version")

    def act(self, name):
        """Let a silo's application request a decision, or report a reward for an open decision."""
        silo, rng = self.parties[name], self.random
        if self.now < self.down.get(name, 0):
            return
        try:
            if self.open[name] and rng.random() < 0.5:
                decision = self.open[name].pop(rng.randrange(len(self.open[name])))
                if rng.random() < 0.1:
                    self.perform(name, silo.cancel(decision, self.clock(name)))
                else:
                    reward = rng.random() * 1.2 - 0.1
                    # The application repeats a report while the silo does not answer.
                    while not self.perform(name, self.end(name, decision, reward)):
                        pass
            else:
                contexts = [
                    [rng.uniform(-1, 1) for _ in range(self.plan.plan.dimension)] for _ in "ab"
                ]
                step, new_decision = silo.decide(contexts, self.clock(name))
                if self.perform(name, step):
                    self.open[name].append(new_decision.id)
        except InputError:
            pass

    def end(self, name, decision, reward):
        """Return a silo's step for a reward, or for the bit that is sent in place of it."""
        silo, now = self.parties[name], self.clock(name)
        if self.plan.plan.flips:
            return silo.bit(decision, int(reward > 0.5), now)
        return silo.reward(decision, reward, now)

    def moment(self):
        """Do one random thing: deliver, act, tick, move the clock, replay, back up or restore."""
        rng, names = self.random, list(self.parties)
        if self.skew and rng.random() < 0.03:
            self.wrong[rng.choice(names)] = rng.uniform(-self.skew, self.skew)
        if self.hub_restore_chance and rng.random() < 0.03:
            self.restore_hub()
            return
        if self.helper_restore_chance and rng.random() < 0.05:
            self.restore_helper()
            return
        if self.erase_chance and rng.random() < self.erase_chance:
            self.erase(rng.choice(self.plan.silos))
            return
        draw = rng.random()
        if draw < 0.45 and self.network:
            self.deliver(rng.randrange(len(self.network)))
        elif draw < 0.65:
            self.act(rng.choice(self.plan.silos))
        elif draw < 0.9:
            name = rng.choice(names)
            self.perform(name, self.ask(name, lambda: self.parties[name].tick(self.clock(name))))
        elif draw < 0.97:
            self.now += rng.uniform(0, self.stride)
        elif draw < 0.98 and self.stolen:
            self.network.append(rng.choice(self.stolen))
        else:
            name = rng.choice(self.plan.silos)
            if rng.random() < self.restore_chance:
                self.restore(name)
                return
            if self.restore_chance:
                self.backups[name].append(self.stores[name].copy())

    def run(self, moments=350):
        """Run a schedule with faults, then heal the federation and return the last model."""
        for _ in range(moments):
            self.moment()
        return self.heal()

    def run_without_faults(self, rounds):
        """Give every party some turns without faults of the network: all messages arrive."""
        for _ in range(rounds):
            self.now += 5.0
            for name in self.parties:
                for _ in range(4):
                    step = self.ask(name, lambda n=name: self.parties[n].tick(self.clock(n)))
                    self.perform(name, step)
                    if not step.writes:
                        break
            mail, self.network = self.network, []
            for receiver, data in mail:
                self.take(receiver, data)

    def run_with_the_hub_put_back(self, stretches=6, moments=40, rounds=10):
        """Alternate faults and calm stretches; after each stretch restore the hub from a backup."""
        for _ in range(stretches):
            for _ in range(moments):
                self.moment()
            self.backups["hub"].append(list(self.stores["hub"].writes()))
            self.run_without_faults(rounds)
            self.restore_hub()
        return self.heal()

    def heal(self):
        """Stop all faults, recover the silos and let all leaves close."""
        self.kill_chance, self.down, self.wrong = 0.0, {}, {}
        calendar = self.plan.document.calendar
        # A corrected clock may need BELIEVED seconds until its party trusts it.
        grace = 2 * max(GRACE, calendar.grace)
        end_of_grace = max(calendar.closes[-1] + BELIEVED, self.now + PERIOD) + grace + BELIEVED
        for _ in range(200):
            # Small steps while leaves close, then larger ones to the end of the grace period.
            calendar_closed = self.now >= calendar.closes[-1] + PERIOD
            self.now = min(
                self.now
                + (min(max(20, (end_of_grace - self.now) / 4), 60) if calendar_closed else 20),
                end_of_grace,
            )
            for name in self.parties:
                if getattr(self.parties[name], "lost", None):
                    # A silo cannot recover before the hub has sent the lost release's sessions.
                    with suppress(InputError):
                        self.perform(name, self.parties[name].recover())
                for _ in range(8):
                    step = self.parties[name].tick(self.clock(name))
                    self.perform(name, step)
                    if not step.writes:
                        break
            mail, self.network = self.network, []
            for receiver, data in mail:
                self.take(receiver, data)
            if (
                all(self.parties[n].released == self.plan.exchanges for n in self.plan.silos)
                and len(self.parties["hub"].broadcasts) == self.plan.exchanges
            ):
                if self.now == end_of_grace:
                    break
                # All releases are done: jump to the end and check what happens there.
                self.now = end_of_grace
        else:
            raise Violation("the federation did not come to its end")
        return self.check_end()

    def check_end(self):
        """Check that the hub's log replays and all silos have one model; return its theta."""
        replayed = self.kinds["hub"](self.plan, secret("hub"))
        for write in self.stores["hub"].writes():
            replayed.fold(write)
        if replayed.broadcasts != self.parties["hub"].broadcasts:
            raise Violation("invariant 6: the log leads to other broadcasts")
        for name in self.plan.silos:
            if self.parties[name].alarms or self.parties["hub"].alarms:
                raise Violation(f"alarm: {self.parties[name].alarms + self.parties['hub'].alarms}")
        return self.check_models()

    def check_models(self):
        """Check that all silos have one model; return its theta."""
        thetas = [self.parties[name].model.theta for name in self.plan.silos]
        if not all(np.array_equal(theta, thetas[0]) for theta in thetas):
            raise Violation("silos act on different models")
        return thetas[0]


class ClockedWorld(World):
    """A world of silos on their own clocks, which also checks views, models and ledgers."""

    def __init__(self, plan, seed, *, kinds=None, **keys):
        kinds = {"silo": ClockedSilo, "hub": ClockedHub} | (kinds or {})
        #: Number of views without a report that was due.
        self.late = 0
        super().__init__(plan, seed, kinds=kinds, **keys)

    def check_models(self):
        """Check that views are sums of reports, and that each silo has the model of its view.

        Return the last view.
        """
        plan, hub = self.plan, self.parties["hub"]
        models = {name: ClockedModel(plan.plan) for name in plan.silos}
        before = [0] * len(plan.silos)
        for view in range(1, plan.exchanges + 1):
            body = plan.wire.body(plan.wire.read(hub.broadcasts[view]), Broadcast)
            planned = plan.clocks.reports[view].tolist()
            if any(
                k > planned_number for k, planned_number in zip(body.numbers, planned, strict=True)
            ):
                raise Violation(f"view {view} has a report of a later moment")
            changed = [i for i, k in enumerate(body.numbers) if k > before[i]]
            if [entry.silo for entry in body.entries] != changed or any(
                k < k_before for k, k_before in zip(body.numbers, before, strict=True)
            ):
                raise Violation(f"the numbers of view {view} do not follow from its set")
            rows = [
                np.frombuffer(opened_report(plan, self.reports[plan.silos[i], k]))
                for i, k in enumerate(body.numbers)
                if k
            ]
            values = np.frombuffer(body.values)
            total = sum_of(rows) if rows else np.zeros(len(values))
            if plan.document.influence is None and not np.array_equal(values, total):
                raise Violation(f"view {view} is not the sum of the silos' latest reports")
            for i in changed:
                models[plan.silos[i]].adopt_view(values, view, body.numbers)
            before, self.late = body.numbers, self.late + (list(body.numbers) != planned)
        for name, model in models.items():
            silo, charges = self.parties[name], self.ledgers[name].charges("records")
            if not np.array_equal(silo.model.theta, model.theta):
                raise Violation(f"{name} acts on another view than the last one it took part in")
            charged = {charge.release for charge in charges if charge.release > 0}
            # A silo may be killed after a charge, and the plan may end before it seals the report.
            sealed = set(silo.sealed)
            if not (sealed <= charged and len(charged - sealed) <= 1) and not self.restores:
                raise Violation(f"invariant 5: {name} has charges {charged}")
        return values


def clocked_tables(clock, **more):
    """Return the keywords of `spec` for silos on their own clocks, whose ticks last `TICK` s."""
    system = {"batch_size": 2, "clock": clock} | more.pop("system", {})
    calendar = {"start": START, "round": TICK, "grace": GRACE, "reward_deadline": 250}
    tables = {"federation": {"name": "tests"}, "calendar": calendar, "batch": 2, "system": system}
    return tables | more


def clocked_spec(clock, protocol="silo-ldp", **more):
    """Return the spec of three silos on their own clocks."""
    return spec(protocol, **clocked_tables(clock, **more))


def clocked(clock, protocol="silo-ldp", **more):
    """Return the compiled plan of `clocked_spec`; compile each spec once."""
    return deployed(protocol, **clocked_tables(clock, **more))


def _ended(write: Write):
    """Return the end of a record that a write stores."""
    from fastfed.deployment.model import Ended

    return msgspec.msgpack.decode(write.value, type=Ended)


__all__ = ["Federation", "World", "deployed", "digest", "party", "secret", "spec"]
