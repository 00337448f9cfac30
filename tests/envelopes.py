"""Hostile envelopes against hub, silos and helper; `scripts/envelopes` sends millions.

Each must be refused or get no answer, must not change the receiver, and must not take long or much
memory. The envelopes are mutations of real messages, made-up msgpack, messages of other plans and
of other senders, and malformed bodies that a member signed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import struct
import sys
import time
import tracemalloc
from collections import Counter
from functools import cache
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec
import numpy as np
from federation import BITS, MASKS, Federation, clocked, deployed, rewarded, secret

from fastfed import InputError
from fastfed.deployment import wire
from fastfed.deployment.seal import Identity, encrypted_to
from fastfed.deployment.sums import HUB_CONTEXT, share_context

#: Silos report on their own clocks; the hub sends views.
CLOCKS = "silo-ldp on own clocks"
PROTOCOLS = ("silo-ldp", "central", "secure-sum", MASKS, BITS, CLOCKS)
#: Largest CPU time in seconds of one message, and memory in bytes besides the message.
SECONDS, BYTES = 0.05, 1 << 20
ROWS = [[0.5, 0.1], [-0.3, 0.8]]


class Harmful(AssertionError):
    """A message that was accepted, changed something, or used too much time or memory."""


class Target:
    """One federation in the middle of its second release, and all messages that it has sent."""

    def __init__(self, protocol: str) -> None:
        self.protocol, self.plan = protocol, plan_of(protocol)
        self.others = federation_with_messages(plan_of(protocol, batch=6))[1]
        self.deployment, self.sent = federation_with_messages(self.plan)
        self.known = set(self.sent)
        self.keys = {p.name: Identity(secret(p.name)) for p in self.plan.parties}
        self.names = [name for name in self.deployment.processes if name != "silo0"]
        self.before = {name: self.state(name) for name in self.names}

    def party(self, name: str) -> Any:
        """Return a party by name."""
        return self.deployment.processes[name].party

    def state(self, name: str) -> dict[str, str]:
        """Return the state of a party as text, by attribute."""
        attributes = vars(self.party(name)) | vars(self.party(name).__dict__.get("model", object))
        sessions = attributes.get("sessions")
        plain = dict | set | list | tuple | bytes | str | int | float | np.ndarray | None
        texts = {key: repr(value) for key, value in attributes.items() if isinstance(value, plain)}
        if hasattr(sessions, "sent"):
            texts["sessions"] = repr({k: v for k, v in vars(sessions).items() if k != "deployed"})
        for key in ("decisions", "ended"):
            if hasattr(attributes.get(key), "count"):
                texts[key] = repr(attributes[key].count)
        # Times of the last messages are only shown to operators; no decision depends on them.
        texts.pop("contacts", None)
        return texts


def plan_of(protocol: str, **keys: Any) -> Any:
    """Return the compiled plan of one of `PROTOCOLS`; keywords replace tables of its spec."""
    return clocked({}, **keys) if protocol == CLOCKS else deployed(protocol, **keys)


def federation_with_messages(plan) -> tuple[Federation, list[bytes]]:
    """Return a federation and its messages after release 1 and one silo's report of release 2."""
    deployment, sent = Federation(plan), []
    for process in deployment.processes.values():
        original_handle = process.handle

        def handle(data, original_handle=original_handle):
            """Record the message, and handle it."""
            sent.append(data)
            return original_handle(data)

        process.handle = handle
    deployment.settle()
    first, second = plan.document.calendar.closes[:2]
    for close, names in [(first, plan.silos), (second, plan.silos[:1])]:
        deployment.now = close - 10.0
        absent_silos = {n: deployment.processes.pop(n) for n in plan.silos if n not in names}
        for name in names:
            silo = deployment.processes[name]
            rewarded(silo, silo.decide(ROWS).id, 0.5)
        deployment.now = close
        deployment.settle()
        deployment.processes |= absent_silos
    assert len(deployment.processes["hub"].party.broadcasts) == 1
    return deployment, sorted(set(sent))


@cache
def target(protocol: str) -> Target:
    """Return the federation of one protocol; make it once per process."""
    return Target(protocol)


# ---- Messages that are sent ----------------------------------------------------------------------

_HEADERS = [
    *(tag + b"\xff\xff\xff\xff" for tag in (b"\xdd", b"\xdf", b"\xc6", b"\xc9", b"\xdb")),
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xc0", b"\xc1", b"\x80", b"\xc4\x00", b"\x90",
    b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xca\xff\xc0\x00\x00",
]  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 4, 5, -1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**64 - 1, -(2**63))
#: Times that no clock can have.
_TIMES = (float("nan"), float("inf"), -1.0, 2.0**40, 1e300)
_DOUBLES = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e30, 5e-324)


def mutated(t: Target, rng: Random) -> bytes:
    """Return a real message after random changes."""
    data = bytearray(rng.choice(t.sent))
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        position, kind_of_change = rng.randrange(len(data) or 1), rng.randrange(8)
        if kind_of_change < 3 and data:
            data[position] ^= 1 << rng.randrange(8)
        elif kind_of_change == 3:
            del data[position:]
        elif kind_of_change == 4:
            data += rng.randbytes(rng.randrange(1, 40))
        elif kind_of_change == 5:
            other = rng.choice(t.sent)
            data[position:] = other[rng.randrange(len(other)) :]
        elif kind_of_change == 6:
            header = rng.choice(_HEADERS)
            data[position : position + rng.choice((0, 1, len(header)))] = header
        else:
            data[position : position + rng.randrange(20)] = rng.randbytes(rng.randrange(20))
    return bytes(data)


def value(rng: Random, depth: int = 0) -> Any:
    """Return any value that msgpack can encode."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return rng.choice(_NUMBERS)
    if kind == 1:
        return rng.choice(_DOUBLES)
    if kind == 2:
        return rng.randbytes(rng.choice((0, 1, 16, 32, 40, 64, 500)))
    if kind == 3:
        return rng.choice(("", "report", "join", "hub", "silo1", "\0", "x" * 300, "\u20ac"))
    if kind < 6:
        return rng.choice((None, True, False))
    if kind < 8:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {str(i): value(rng, depth + 1) for i in range(rng.randrange(3))}


def invented(t: Target, rng: Random) -> bytes:
    """Return bytes that no party sent: random bytes, nested lists, and envelopes of wrong parts."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(300))
    if kind == 1:
        return rng.choice((b"\x91", b"\x97", b"\x81\xa1x")) * rng.randrange(1, 4000)
    if kind == 2:
        return rng.choice(_HEADERS) + bytes(rng.choice((0, 10, t.plan.wire.largest)))
    if kind == 3:
        return msgspec.msgpack.encode(value(rng))
    fields: list[Any] = msgspec.msgpack.decode(rng.choice(t.sent))
    for _ in range(rng.randrange(1, 3)):
        fields[rng.randrange(len(fields))] = value(rng)
    if rng.random() < 0.1:
        fields.append(value(rng))
    return msgspec.msgpack.encode(fields)


def foreign(t: Target, rng: Random) -> bytes:
    """Return a message of another plan with the same parties, or with another party's signature."""
    if rng.random() < 0.3:
        return rng.choice(t.others)
    one, other = (msgspec.msgpack.decode(rng.choice(t.sent), type=wire.Envelope) for _ in range(2))
    changes: dict[str, Any] = {"signature": other.signature}
    part = rng.choice(("sender", "release", "kind", "body", "plan"))
    if part == "plan":
        changes["plan"] = rng.randbytes(32)
    elif part == "release":
        changes["release"] = rng.choice(_NUMBERS[:8])
    else:
        changes[part] = getattr(other, part)
    envelope = msgspec.structs.replace(one, **changes)
    if rng.random() < 0.1:
        # Signed by a member in another member's name.
        names = [name for name in t.keys if name != envelope.sender]
        envelope = msgspec.structs.replace(envelope, signature=b"")
        signature = t.keys[rng.choice(names)].sign(envelope.signed_part())
        envelope = msgspec.structs.replace(envelope, signature=signature)
    return envelope.as_bytes()


def numbers(t: Target, rng: Random) -> bytes:
    """Return values that are no report: of a wrong size, or not all finite and possible."""
    size = t.plan.plan.statistic_size
    if t.plan.words or rng.random() < 0.5:
        wrong = rng.choice((0, 1, 8 * size - 1, 8 * size + 1, 8 * size + 8, 8 * size - 8))
        return rng.randbytes(wrong)
    values = [rng.uniform(-1, 1) for _ in range(size)]
    values[rng.randrange(size)] = rng.choice(_DOUBLES[:6])
    return struct.pack(f"<{size}d", *values)


def malformed(t: Target, rng: Random) -> tuple[str, bytes]:
    """Return the receiver and a body that a member signed.

    It has wrong sizes, numbers, lists or releases.
    """
    name = rng.choice(t.names)
    sender = rng.choice(("silo1", "silo2")) if name == "hub" else "hub"
    release = rng.choice((0, 2, 3, 4, 5, 2**31 - 1))
    entries = tuple(
        wire.Entry(rng.choice((0, 1, 2, 3, -1, 2**40)), rng.randbytes(rng.choice((0, 31, 33))))
        for _ in range(rng.randrange(1, 6))
    )
    sealed = tuple(rng.randbytes(rng.choice((0, 31, 32, 48, 200))) for _ in entries)
    zeros, short = bytes(8 * t.plan.plan.statistic_size), rng.randbytes(rng.choice((0, 31, 33)))
    kind, body = rng.choice(
        [
            ("report", wire.Report(encrypted(t, rng, sender, release), b"x" * t.plan.shared)),
            ("report", wire.Report(numbers(t, rng), b"x" * t.plan.shared)),
            ("seen", wire.Seen(short, release, rng.randbytes(rng.choice((0, 31))))),
            ("news", wire.News(rng.randbytes(50), (short,) * rng.randrange(3))),
            ("seen", None), ("news", None),
            ("report", wire.Report(zeros, bytes(not t.plan.shared))),
            ("join", wire.Join(rng.randbytes(rng.choice((0, 15, 17, 200))), rng.randbytes(64))),
            ("join", wire.Join(bytes(16), t.plan.countersignature(t.keys["silo1"]),
                               rng.choice(_TIMES))),
            ("join", [bytes(16), t.plan.countersignature(t.keys["silo1"])]),
            ("receipt", wire.Receipt(1, (), t.party("silo1")._nonce, "", rng.choice(_TIMES))),
            ("receipt", [1, [], t.party("silo1")._nonce, ""]),
            ("set", wire.Opened(entries, sealed, numbers(t, rng))),
            ("broadcast", wire.Broadcast(numbers(t, rng), entries, rng.randbytes(32))),
            ("sessions", wire.Sessions((short,) * rng.randrange(5))),
            ("receipt", wire.Receipt(rng.choice((-1, 0, 7)), ((release, bytes(31)),), bytes(16))),
            ("receipt", wire.Receipt(t.plan.index("silo1"), ((0, bytes(32)), (9, b"")))),
            ("receipt", None), ("set", None), ("broadcast", None), ("sessions", None),
            ("report", None), ("join", None), ("leave", value(rng, 3) or 1),
        ]
    )  # fmt: skip
    encoded = msgspec.msgpack.encode(value(rng) if body is None else body)
    if isinstance(body, wire.Broadcast):
        # This broadcast follows the last one, so that no alarm is due; only its values are wrong.
        entries = tuple(wire.Entry(i, rng.randbytes(32)) for i in range(3))
        head = wire.digest(t.party("silo1").broadcasts[1])
        broadcast = wire.Broadcast(numbers(t, rng), entries, head)
        kind, release = "news", 2
        seen = tuple(
            t.plan.wire.signed(t.keys[who], who, 2, wire.Seen(entry.digest, 1, head))
            for who, entry in zip(t.plan.silos, entries, strict=True)
        )
        inner = t.plan.wire.signed(t.keys["hub"], "hub", 2, broadcast)
        encoded = msgspec.msgpack.encode(wire.News(inner, seen))
    version = wire.VERSION if rng.random() < 0.9 else rng.choice((0, 1, 3, 2**40))
    plain = wire.Envelope(version, t.plan.digest, kind, sender, release, encoded)
    signature = t.keys[sender].sign(plain.signed_part())
    return name, msgspec.structs.replace(plain, signature=signature).as_bytes()


def encrypted(t: Target, rng: Random, sender: str, release: int) -> bytes:
    """Return wrong numbers, encrypted to the hub like those of a silo."""
    index = t.plan.silos.index(sender) if sender in t.plan.silos else 0
    context = share_context(t.plan, index, release, HUB_CONTEXT)
    return encrypted_to(t.plan.document.hub.open, numbers(t, rng), context, bytes(32))


# ---- Results -------------------------------------------------------------------------------------


def send(t: Target, name: str, data: bytes, watched: bool) -> str:
    """Send one message to one party and return how the party refused it."""
    party, message = t.party(name), ""
    if watched:
        tracemalloc.start()
    started = time.thread_time()
    try:
        step = party.handle(data, t.deployment.now)
    except InputError as error:
        message = str(error)
        step = None
    except BaseException as error:
        raise Harmful(f"{name} failed with {type(error).__name__}: {error}") from error
    seconds = time.thread_time() - started
    if watched:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > BYTES + 20 * len(data):
            raise Harmful(f"{name} took {peak} bytes for {len(data)}")
    if seconds > SECONDS:
        raise Harmful(f"{name} took {seconds:.3f} s")
    if len(message) > 1000:
        raise Harmful(f"{name} answered {len(data)} bytes with {len(message)}")
    if step is None:
        return "refused"
    if step.writes or step.messages:
        raise Harmful(f"{name} accepted it: {step}")
    return "not answered"


def attack(job: tuple[int, int]) -> tuple[Counter, str]:
    """Send many messages of one seed; return counts and a description of harm."""
    seed, count = job
    rng = Random(f"envelopes {seed}")
    t = target(PROTOCOLS[seed % len(PROTOCOLS)])
    total: Counter = Counter()
    for number in range(count):
        chance, name = rng.random(), rng.choice(t.names)
        if chance < 0.5:
            kind, data = "mutated", mutated(t, rng)
        elif chance < 0.75:
            kind, data = "invented", invented(t, rng)
        elif chance < 0.93:
            kind, data = "foreign", foreign(t, rng)
        else:
            kind, (name, data) = "malformed, signed by a member", malformed(t, rng)
        if data in t.known:
            continue
        try:
            reaction = send(t, name, data, watched=number % 256 == 0)
            if reaction != "refused" or number % 64 == 63:
                for party_name in t.names if reaction == "refused" else [name]:
                    if t.state(party_name) != t.before[party_name]:
                        raise Harmful(f"the state of {party_name} has changed")
        except Harmful as harm:
            where = f"seed {seed}, message {number} ({t.protocol}, {kind}, to {name})"
            return total, f"{where}: {harm}\n{data.hex()}"
        total.update((kind, f"to {name.rstrip('0123456789')}", reaction, "messages"))
    return total, ""


def main() -> int:
    """Send the requested number of messages on all cores; return 1 if one did harm."""
    parser = argparse.ArgumentParser(prog="scripts/envelopes", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    total: Counter = Counter()
    started, broken, per_job = time.monotonic(), "", 2000
    jobs = [(arguments.first + i, per_job) for i in range(-(-arguments.count // per_job))]
    with multiprocessing.get_context("fork").Pool() as pool:
        for counts, problem in pool.imap(attack, jobs):
            total += counts
            if problem:
                broken = problem
                break
        pool.terminate()
    for what, count in sorted(total.items()):
        print(f"{count:10d}  {what}")
    print(f"{time.monotonic() - started:10.0f}  seconds")
    print(broken or "every one was refused, or answered with nothing, and changed nothing")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
