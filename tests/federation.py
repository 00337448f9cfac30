"""A small federation for tests: keys, spec, parties in memory, and a seeded scheduler of faults."""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.deployment import party as party_module
from fastfed.deployment import plans, wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import hub_of, silo_of
from fastfed.deployment.ledger import Charge, Ledger, MemoryStore, Write
from fastfed.deployment.party import BELIEVED, Message, Process, SiloProcess, SteadyClock, Step
from fastfed.deployment.seal import Identity, SealedNoise, digest, keyed_digest, sealed_to
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sums import TO_HUB, Helper, share_context
from fastfed.deployment.wire import Broadcast, News, Opened, Refused

#: Ed25519 is a function of key and message. In tests one message is signed many times over, and
#: checked by every receiver: what was signed here is looked up, anything else is checked as ever.
_SIGNED = {}
_SIGN, _VERIFIED, _AGREED = Identity.sign, wire.verified, Identity.agreed_with
_READ, _RANGE = wire.Wire.read, party_module.Range
#: While schedules run: what was read, and the ranges of plans, once for each.
_QUICK = []
_KNOWN, _RANGES = {}, {}


@contextmanager
def quickly():
    """Sign by a hash of this process, and do what depends on a plan or message alone once.

    Nobody forges signatures in a schedule; whose a message is, and that a changed one is refused,
    stays as it is. Thousands of schedules spend a third of their time on Ed25519 and on reading
    again what was read.
    """
    _QUICK.append(True)
    try:
        yield
    finally:
        _QUICK.pop()


def _read(self, data, kinds=tuple(wire.KINDS)):
    found = _KNOWN.get((self, data)) if _QUICK else None
    # A kind that is not asked for is refused by the whole check.
    if found is None or found.kind not in kinds:
        found = _READ(self, data, kinds)
        if _QUICK:
            _forget()
            _KNOWN[self, data] = found
    return found


def _range(plan):
    if not _QUICK:
        return _RANGE(plan)
    if id(plan) not in _RANGES:
        # The plan is kept, so that no other one has its id.
        _RANGES[id(plan)] = plan, _RANGE(plan)
    return _RANGES[id(plan)][1]


def _drawn(draw):
    """A draw of sealed noise, which is a function of its key: once for each."""

    def drawn(self, silo, node, *sizes):
        if not _QUICK:
            return draw(self, silo, node, *sizes)
        key = self.key(b"schedule", silo, node), draw.__name__, *sizes
        if key not in _KNOWN:
            _forget()
            _KNOWN[key] = draw(self, silo, node, *sizes)
        return _KNOWN[key].copy()

    return drawn


def _agreed(self, public, context):
    if not _QUICK:
        return _AGREED(self, public, context)
    key = self.public, public, context
    if key not in _KNOWN:
        _forget()
        _KNOWN[key] = _AGREED(self, public, context)
    return _KNOWN[key]


def _forget():
    if len(_KNOWN) > 20_000:
        _KNOWN.clear()


def _hashed(public, data):
    return hashlib.blake2b(data, key=public, digest_size=64, person=b"schedule").digest()


def _sign(self, data):
    if _QUICK:
        return _hashed(self.public[0], data)
    key = self.public[0], data
    if key not in _SIGNED:
        if len(_SIGNED) > 20_000:
            _SIGNED.clear()
        _SIGNED[key] = _SIGN(self, data)
    return _SIGNED[key]


def _verified(public, signature, data):
    if _QUICK and signature == _hashed(public, data):
        return True
    return _SIGNED.get((public, data)) == signature or _VERIFIED(public, signature, data)


# Another signature than the one that was made here is checked by Ed25519 itself.
Identity.sign, wire.verified, plans.verified = _sign, _verified, _verified
wire.Wire.read, party_module.Range, Identity.agreed_with = _read, _range, _agreed
SealedNoise.coins, SealedNoise.binomials = map(_drawn, (SealedNoise.coins, SealedNoise.binomials))
Identity.public = cached_property(Identity.public.fget)
Identity.public.__set_name__(Identity, "public")
plans.Identity = lru_cache(maxsize=64)(Identity)

START, PERIOD, GRACE = 1000, 100, 50
#: A hub that was put back waits for silos: they are away for 200 seconds at most, messages late.
PATIENT = {"start": START, "period": PERIOD, "grace": 900, "reward_deadline": 250}
#: Secure sums under pairwise masks, and all protocols whose reports are words.
MASKS = "secure-sum by masks"
MASKED_BITS = "shuffle-vector by masks"
WORDS = ("secure-sum", MASKS, "shuffle-vector", MASKED_BITS)


#: Two actions of the small federation, by its columns.
ROWS = [[0.5, 0.1], [-0.3, 0.8]]


TREES = ("silo-ldp", "central", "shuffle-vector", MASKED_BITS)


def secret(name):
    return keyed_digest(b"s" * 32, b"tests", name.encode())


def party(name):
    sign, open_ = Identity(secret(name)).public
    return {"name": name, "sign": sign.hex(), "open": open_.hex()}


def spec(protocol="silo-ldp", silos=3, dimension=2, batches=4, batch=5, **more):
    """A spec as a mapping; keywords replace its tables."""
    system = {"horizon": batches * batch, "protocol": protocol, "epsilon": 1.0, "delta": 1e-6}
    if protocol == "feducb":
        system["algorithm"] = system.pop("protocol")
    # Most of these tests are about nodes of trees; the default release has tests of its own.
    tree = {"release": "tree"} if protocol in TREES else {}
    system |= more.pop("system", {"batch_size": batch, **tree})
    made = {
        "federation": {"name": "tests", "least": 2},
        "system": system,
        "calendar": {"start": START, "period": PERIOD, "grace": GRACE, "reward_deadline": 250},
        "columns": [{"name": f"x{i}", "low": -1.0, "high": 1.0} for i in range(dimension)],
        "norm": 1.0,
        "silos": [party(f"silo{i}") for i in range(silos)],
        "hub": {k: v for k, v in party("hub").items() if k != "name"},
    }
    if protocol in WORDS:
        made["federation"]["least"] = silos
    if protocol in (MASKS, MASKED_BITS):
        system["protocol"] = "secure-sum" if protocol == MASKS else "shuffle-vector"
        made["federation"]["sum"] = "masks"
    elif protocol in WORDS:
        made["helper"] = {k: v for k, v in party("helper").items() if k != "name"}
    return made | more


_PLANS = {}


def deployed(protocol="silo-ldp", **keys):
    """A compiled plan; made once for each spec."""
    text = repr((protocol, sorted(keys.items(), key=str)))
    if text not in _PLANS:
        _PLANS[text] = plans.compile_plan(spec(protocol, **keys))
    return _PLANS[text]


def sealed_report(plan, index, release, values, share=b"", identity=None, name=None):
    """A silo's report of these values, encrypted to the hub as its own reports are."""
    name = name or plan.silos[index]
    identity = identity or Identity(secret(name))
    context = share_context(plan, index, release, TO_HUB)
    values = values if isinstance(values, bytes) else wire.packed(values)
    body = wire.Report(sealed_to(plan.document.hub.open, values, context, bytes(32)), share)
    return plan.wire.made(identity, name, release, body)


def opened_report(plan, data):
    """What the hub reads in a report: bytes of values."""
    found = plan.wire.read(data)
    context = share_context(plan, plan.index(found.sender), found.release, TO_HUB)
    body = plan.wire.body(found, wire.Report)
    return Identity(secret("hub")).opened(body.values, context)


def seen(plan, index, report, last=0, head=b"", release=None):
    """What a silo tells all others about its report."""
    release = plan.wire.read(report).release if release is None else release
    body = wire.Seen(digest(report), last, head)
    return plan.wire.made(Identity(secret(plan.silos[index])), plan.silos[index], release, body)


def news(plan, broadcast, before=b""):
    """A broadcast as the hub sends it; before: the last one that its silos have seen."""
    found = plan.wire.read(broadcast)
    last = found.release - 1 if before else 0
    entries = plan.wire.body(found, Broadcast).entries
    told = []
    for entry in entries:
        if entry.silo >= len(plan.silos):
            continue
        body = wire.Seen(entry.digest, last, digest(before) if before else b"")
        name = plan.silos[entry.silo]
        told.append(plan.wire.made(Identity(secret(name)), name, found.release, body))
    hub = Identity(secret("hub"))
    return plan.wire.made(hub, "hub", found.release, wire.News(broadcast, tuple(told)))


class Federation:
    """Processes in memory whose messages all arrive at once."""

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
        self.processes[process.party.name] = process

    def settle(self):
        """Ticks and messages until nothing new is said."""
        for _ in range(6):
            mail = [m for process in self.processes.values() for m in process.tick()]
            while mail:
                to, data = mail.pop(0)
                if to not in self.processes:
                    continue
                with suppress(Refused):
                    mail += self.processes[to].handle(data)[1]


def served(made, release, names=None, reward=0.5):
    """One record at each silo in the period of a release, and then its close."""
    made.now = made.plan.document.calendar.closes[release - 1] - 10.0
    for name in names or made.plan.silos:
        process = made.processes[name]
        process.reward(process.decide(ROWS).id, reward)
    made.now += 10.0


def period(made, release, names=None, reward=0.5):
    """One record at each silo in the period of a release, its close, and all that is said then."""
    served(made, release, names, reward)
    made.settle()


class Violation(AssertionError):
    """An invariant that did not hold."""


class Forgetful(MemoryStore):
    """A store whose last writes are lost when its process is killed: no fsync."""

    def kept(self):
        return MemoryStore(self._writes[: max(1, len(self._writes) - 3)])


class World:
    """Parties, a network that loses and repeats, a clock, and a random number generator."""

    def __init__(
        self, plan, seed, *, kinds=None, kill=0.03, restore=0.0, hub_restore=0.0, reverse=False,
        forget=False, stride=20.0, skew=0.0, helper_restore=0.0, versions=0.0,
    ):  # fmt: skip
        self.plan, self.random = plan, random.Random(seed)
        self.kinds = {"silo": SiloParty, "hub": Hub, "helper": Helper} | (kinds or {})
        self.kill_chance, self.restore_chance = kill, restore
        self.reverse, self.forget, self.stride = reverse, forget, stride
        #: Clocks are wrong by so many seconds at most, and are set anew now and then.
        self.skew, self.wrong, self.clocks = skew, {}, {}
        self.hub_restore_chance, self.hub_restores, self.behind = hub_restore, 0, 0
        self.helper_restore_chance, self.helper_restores = helper_restore, 0
        #: How often a message comes as another version of the program would send it.
        self.version_chance, self.versions = versions, 0
        self.now, self.network, self.kills, self.restores = float(START), [], 0, 0
        self.stores = {p.name: (Forgetful if forget else MemoryStore)() for p in plan.parties}
        self.ledgers = {name: Ledger(":memory:") for name in plan.silos}
        for ledger in self.ledgers.values():
            ledger.set_ceiling("records", 20.0, 1e-5)
        self.backups = {each.name: [] for each in plan.parties}
        self.truth = {}  # (silo, decision) -> (leaf by the calendar)
        self.open = {name: [] for name in plan.silos}
        self.reports, self.sets, self.broadcasts, self.stolen = {}, {}, {}, []
        self.named = {}  # release -> the sets that the hub asked the helper to open
        self.told = {}  # (silo, release) -> the message with its session
        self.parties, self.down = {}, {}
        for each in plan.parties:
            self.start(each.name)

    def clock(self, name):
        """What a party takes the time to be; it learns how far its machine's clock is from it."""
        now = self.clocks[name]()
        self.parties[name].ahead = self.clocks[name].ahead
        return now

    def take(self, name, data):
        """A message arrives; a refused one says what time it is, too."""
        now, party = self.clock(name), self.parties[name]
        with suppress(InputError):
            self.perform(name, self.ask(name, lambda: party.handle(data, now)))
        said, party.clock_said = party.clock_said, None
        if said is not None:
            self.clocks[name].heard(said)

    # ---- processes -------------------------------------------------------------------------------

    def start(self, name):
        if name in self.plan.silos:
            made = self.kinds["silo"](
                self.plan, name, secret(name), self.ledgers[name], entropy=self.random.randbytes
            )
        elif name == "hub":
            made = self.kinds["hub"](self.plan, secret(name))
        else:
            made = self.kinds["helper"](self.plan, secret(name))
        self.parties[name] = made
        self.clocks[name] = SteadyClock(
            lambda: self.now + self.wrong.get(name, 0.0), lambda: self.now
        )
        for write in self.stores[name].writes():
            made.fold(write)

    def kill(self, name):
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
        if self.random.random() >= self.kill_chance:
            return False
        self.kill(name)
        return True

    def restore(self, name):
        """Put a silo's state, and not its ledger, back to an old backup."""
        if self.backups[name]:
            self.restores += 1
            self.stores[name] = MemoryStore(self.random.choice(self.backups[name]))
            self.start(name)
            # The application tells again what the silo does not know any more.
            ended = self.parties[name].ended
            self.open[name] = [each for each in self.parties[name].decisions if each not in ended]

    def restore_hub(self):
        """Put the hub back to an old backup, or take one."""
        if self.backups["hub"] and self.random.random() < self.hub_restore_chance:
            self.hub_restores += 1
            before = len(self.parties["hub"].broadcasts)
            self.stores["hub"] = MemoryStore(self.random.choice(self.backups["hub"]))
            self.start("hub")
            self.behind += before > len(self.parties["hub"].broadcasts)
        else:
            self.backups["hub"].append(list(self.stores["hub"].writes()))

    def restore_helper(self):
        """Put the helper back to an old backup, or take one."""
        if self.backups["helper"] and self.random.random() < self.helper_restore_chance:
            self.helper_restores += 1
            self.stores["helper"] = MemoryStore(self.random.choice(self.backups["helper"]))
            self.start("helper")
        else:
            self.backups["helper"].append(list(self.stores["helper"].writes()))

    def perform(self, name, step):
        """Writes one by one, then messages one by one; killed anywhere between two of them."""
        writes = step.writes[::-1] if self.reverse else step.writes
        for write in writes:
            if self.dies(name):
                return False
            if isinstance(write, Charge):
                self.ledgers[name].charge(write)
            elif self.stores[name].write(write):
                self.check_write(name, write)
                self.parties[name].fold(write)
        for message in step.messages:
            if self.dies(name):
                return False
            self.check_sent(name, message)
            self.network.append(message)
        return True

    def ask(self, name, question):
        """A step of a party, asked for twice: it must be the same."""
        if self.now < self.down.get(name, 0):
            return Step()
        first = question()
        if self.random.random() < 0.1 and question() != first:
            raise Violation(f"invariant 2: {name} answers the same question in two ways")
        return first

    # ---- invariants ------------------------------------------------------------------------------

    def check_write(self, name, write):
        if write.kind == "sealed":
            paid = {c.release for c in self.ledgers[name].charges("records")}
            if int(write.key) not in paid:
                raise Violation(f"invariant 5: {name} sealed release {write.key} uncharged")
        if write.kind in ("set", "answer"):
            self.check_set(name, self.plan.wire.read(write.value), Opened)
        if write.kind == "ended" and name != "hub":
            ended = self.parties[name]
            leaf = _ended(write).leaf
            # A leaf is closed once it was charged, and under masks once its session was told,
            # whatever the clock says next.
            paid = {c.release for c in self.ledgers[name].charges("records")}
            closed = max(ended.done, ended.sessions.last)
            while closed + 1 in paid:
                closed += 1
            wanted = max(self.plan.document.calendar.period(self.clock(name)), closed + 1)
            if leaf and leaf != wanted:
                raise Violation(
                    f"invariant 3: a record of {name} entered leaf {leaf}, not {wanted}"
                )

    def check_sent(self, name, message):
        found = self.plan.wire.read(message.data)
        if found.kind == "report":
            known = self.reports.setdefault((name, found.release), message.data)
            if known != message.data:
                raise Violation(f"invariant 1: two reports of {name} for release {found.release}")
        elif found.kind == "sessions" and name != "hub" and not self.restores:
            known = self.told.setdefault((name, found.release), message.data)
            if known != message.data:
                raise Violation(f"invariant 2: two sessions of {name} for release {found.release}")
        elif found.kind == "news":
            self.check_sent(name, Message(message.to, self.plan.wire.body(found, News).broadcast))
        elif found.kind in ("set", "broadcast"):
            self.check_set(name, found, Opened if found.kind == "set" else Broadcast)
            if found.kind == "broadcast":
                known = self.broadcasts.setdefault(found.release, message.data)
                if known != message.data:
                    raise Violation(f"invariant 6: two broadcasts of release {found.release}")

    def check_set(self, name, found, kind):
        """One opened set for each release, and none that is too small.

        A set is opened by whoever can: the hub, or the helper where shares are encrypted to it.
        Then a hub alone names sets. It may name another one after it was put back, if the helper
        has not opened the first: nothing was seen of it.
        """
        release, entries = found.release, self.plan.wire.body(found, kind).entries
        if not entries:  # a question which set there was
            return
        if len(entries) < self.plan.document.least:
            raise Violation(f"invariant 4: a set of {len(entries)} silos")
        if self.plan.shared and name == "hub" and kind is Opened:
            self.named.setdefault(release, set()).add(entries)
        elif self.sets.setdefault(release, entries) != entries:
            raise Violation(f"invariant 4: two sets of release {release}")

    # ---- one schedule ----------------------------------------------------------------------------

    def deliver(self, index):
        to, data = self.network.pop(index)
        fate = self.random.random()
        if fate < 0.1:
            return
        if fate < 0.25:
            self.network.append((to, data))
        if fate < 0.3:
            self.stolen.append((to, data))
        if self.version_chance and self.random.random() < self.version_chance:
            self.refuses_another_version(to, data)
        self.take(to, data)

    def refuses_another_version(self, to, data):
        """A message that its sender signs for another version of the format changes nothing."""
        self.versions += 1
        found = self.plan.wire.read(data)
        other = msgspec.structs.replace(found, version=self.random.choice((1, 3)), signature=b"")
        signature = Identity(secret(found.sender)).sign(other.signed_part())
        other = msgspec.structs.replace(other, signature=signature)
        try:
            self.parties[to].handle(other.as_bytes(), self.clock(to))
        except Refused as refused:
            if "must be of version" in str(refused):
                return
        raise Violation(f"{to} took in a {found.kind} of another version")

    def act(self, name):
        """The application of a silo: a decision, or a reward for an old one."""
        silo, rng = self.parties[name], self.random
        if self.now < self.down.get(name, 0):
            return
        try:
            if self.open[name] and rng.random() < 0.5:
                decision = self.open[name].pop(rng.randrange(len(self.open[name])))
                if rng.random() < 0.1:
                    self.perform(name, silo.cancel(decision, self.clock(name)))
                else:
                    y = rng.random() * 1.2 - 0.1
                    # An application that gets no answer asks again.
                    while not self.perform(
                        name, self.parties[name].reward(decision, y, self.clock(name))
                    ):
                        pass
            else:
                rows = [[rng.uniform(-1, 1) for _ in range(self.plan.plan.dimension)] for _ in "ab"]
                step, made = silo.decide(rows, self.clock(name))
                if self.perform(name, step):
                    self.open[name].append(made.id)
        except InputError:
            pass

    def moment(self):
        rng, names = self.random, list(self.parties)
        if self.skew and rng.random() < 0.03:
            self.wrong[rng.choice(names)] = rng.uniform(-self.skew, self.skew)
        if self.hub_restore_chance and rng.random() < 0.03:
            self.restore_hub()
            return
        if self.helper_restore_chance and rng.random() < 0.05:
            self.restore_helper()
            return
        choice = rng.random()
        if choice < 0.45 and self.network:
            self.deliver(rng.randrange(len(self.network)))
        elif choice < 0.65:
            self.act(rng.choice(self.plan.silos))
        elif choice < 0.9:
            name = rng.choice(names)
            self.perform(name, self.ask(name, lambda: self.parties[name].tick(self.clock(name))))
        elif choice < 0.97:
            self.now += rng.uniform(0, self.stride)
        elif choice < 0.98 and self.stolen:
            self.network.append(rng.choice(self.stolen))
        else:
            name = rng.choice(self.plan.silos)
            if rng.random() < self.restore_chance:
                self.restore(name)
                return
            self.backups[name].append(list(self.stores[name].writes()))

    def run(self, moments=350):
        for _ in range(moments):
            self.moment()
        return self.heal()

    def calm(self, rounds):
        """Every party has some turns, and all messages arrive."""
        for _ in range(rounds):
            self.now += 5.0
            for name in self.parties:
                for _ in range(4):
                    step = self.ask(name, lambda n=name: self.parties[n].tick(self.clock(n)))
                    self.perform(name, step)
                    if not step.writes:
                        break
            mail, self.network = self.network, []
            for to, data in mail:
                self.take(to, data)

    def run_with_the_hub_put_back(self, stretches=6, moments=40, rounds=10):
        """Unrest, a calm in which releases are made, and the hub put back to any of its states."""
        for _ in range(stretches):
            for _ in range(moments):
                self.moment()
            self.backups["hub"].append(list(self.stores["hub"].writes()))
            self.calm(rounds)
            self.restore_hub()
        return self.heal()

    def heal(self):
        """Calm: nothing is lost any more, silos are recovered, all leaves close."""
        self.kill_chance, self.down, self.wrong = 0.0, {}, {}
        calendar = self.plan.document.calendar
        # A clock that was just set right may take BELIEVED seconds to be believed.
        end = calendar.closes[-1] + 2 * max(GRACE, calendar.grace) + 2 * BELIEVED
        for _ in range(200):
            # Small steps while leaves close, then larger ones to the end of the grace period.
            over = self.now >= calendar.closes[-1] + PERIOD
            self.now = min(self.now + (min(max(20, (end - self.now) / 4), 60) if over else 20), end)
            for name in self.parties:
                if getattr(self.parties[name], "lost", None):
                    # Not yet, while the hub has not said under which masks it was.
                    with suppress(InputError):
                        self.perform(name, self.parties[name].recover())
                for _ in range(8):
                    step = self.parties[name].tick(self.clock(name))
                    self.perform(name, step)
                    if not step.writes:
                        break
            mail, self.network = self.network, []
            for to, data in mail:
                self.take(to, data)
            if (
                all(
                    self.parties[n].model.release == self.plan.plan.releases
                    for n in self.plan.silos
                )
                and len(self.parties["hub"].broadcasts) == self.plan.plan.releases
            ):
                if self.now == end:
                    break
                # Everything is released; what the rest of the time leads to is seen at its end.
                self.now = end
        else:
            raise Violation("the federation did not come to its end")
        return self.check_end()

    def check_end(self):
        """The log replays, and all silos act on the same model."""
        replayed = self.kinds["hub"](self.plan, secret("hub"))
        for write in self.stores["hub"].writes():
            replayed.fold(write)
        if replayed.broadcasts != self.parties["hub"].broadcasts:
            raise Violation("invariant 6: the log leads to other broadcasts")
        thetas = [self.parties[name].model.theta for name in self.plan.silos]
        if not all(np.array_equal(theta, thetas[0]) for theta in thetas):
            raise Violation("silos act on different models")
        for name in self.plan.silos:
            if self.parties[name].alarms or self.parties["hub"].alarms:
                raise Violation(f"alarm: {self.parties[name].alarms + self.parties['hub'].alarms}")
        return thetas[0]


def _ended(write: Write):
    from fastfed.deployment.model import Ended

    return msgspec.msgpack.decode(write.value, type=Ended)


__all__ = ["Federation", "World", "deployed", "digest", "party", "secret", "spec"]
