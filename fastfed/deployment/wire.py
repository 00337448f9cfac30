"""Messages between silos, hub and helper: signed msgpack envelopes.

An envelope says for which plan, from whom and for which release it is, and carries the body as
bytes. Version, plan, kind, sender, size and signature are checked before a number of the body is
decoded. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from fastfed._validate import InputError, show
from fastfed.deployment.seal import KEY, Identity, digest, verified

#: Version of the format; a message of another one is refused.
VERSION = 2
#: What is signed begins with this, so that no signature of ours means anything elsewhere.
_CONTEXT = b"fastfed deployment message 2\0"
#: Bytes of an envelope beside its body, at most, and of a name.
_AROUND, NAME = 512, 64


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A party is here, has all broadcasts up to the envelope's release, and agrees to the plan.

    nonce: 16 random bytes, which the answer repeats, so that no old answer can be passed off as
    new. agreed: the countersignature of the plan. time: what the sender's clock shows, in seconds
    since 1970; 0 if it does not say. after: the time in the last answer of the hub; 0 before it.
    """

    nonce: bytes
    agreed: bytes
    time: float = 0.0
    after: float = 0.0


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a silo sends of one release: its values, or its share of them for the hub.

    values: float64 or uint64, little endian, encrypted to the hub; inside a share for the helper
    they are not encrypted again. sealed: the share for the helper, encrypted to it; empty where
    there is none.
    """

    values: bytes
    sealed: bytes = b""


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a silo tells all others about a release, so that they need not trust the hub's word.

    report: SHA-256 of its report's envelope. last, head: the release and the SHA-256 of the last
    broadcast that it had; 0 and empty before the first.
    """

    report: bytes
    last: int
    head: bytes


class News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A broadcast envelope, and the `Seen` envelopes of the silos in its set in their order."""

    broadcast: bytes
    seen: tuple[bytes, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One silo's report in a set: who, and the SHA-256 of the envelope."""

    silo: int
    digest: bytes


class Opened(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The set of a release: whose reports count. There is one for each release.

    sealed: to the helper, the shares in the order of entries. total: from the helper, the sum of
    its shares. before: from the helper, the SHA-256 of its envelope of the release before; empty
    at the first.
    """

    entries: tuple[Entry, ...]
    sealed: tuple[bytes, ...] = ()
    total: bytes = b""
    before: bytes = b""


class Broadcast(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The synchronised statistics after a release.

    before: SHA-256 of the broadcast envelope of the release before; empty at the first. helper:
    the helper's envelope that opened the set, where there is a helper.
    """

    values: bytes
    entries: tuple[Entry, ...]
    before: bytes
    helper: bytes = b""


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All reports that the hub has from one silo: release, and the SHA-256 of the envelope.

    nonce: that of the join that it answers; empty where it answers a report. ended: why the plan
    has ended, if it has. time: what the hub's clock shows, with a nonce; 0 if it does not say.
    after: the time of the join that it answers.
    """

    silo: int
    reports: tuple[tuple[int, bytes], ...]
    nonce: bytes = b""
    ended: str = ""
    time: float = 0.0
    after: float = 0.0


class Sessions(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sessions that masks of a release are made of: a silo's own, or from the hub all silos'.

    values: 32 bytes each, in the order of silos.
    """

    values: tuple[bytes, ...]


class Leave(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo leaves: its reports are in no later set."""


Body = Join | Report | Seen | News | Opened | Broadcast | Receipt | Sessions | Leave
#: The kinds of messages by name.
KINDS: dict[str, type[Body]] = {
    "join": Join,
    "report": Report,
    "seen": Seen,
    "news": News,
    "set": Opened,
    "broadcast": Broadcast,
    "receipt": Receipt,
    "leave": Leave,
    "sessions": Sessions,
}
_KIND_OF = {body: kind for kind, body in KINDS.items()}
B = TypeVar("B", bound=Body)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message on the wire.

    Parameters
    ----------
    version : int
        `VERSION`.
    plan : bytes
        SHA-256 of the plan file.
    kind : str
        One of `KINDS`.
    sender : str
        The name of a party of the plan.
    release : int
        From 1; of a join the last broadcast that the sender has.
    body : bytes
        The body, as msgpack.
    signature : bytes
        Ed25519, over all of the above.
    """

    version: int
    plan: bytes
    kind: str
    sender: str
    release: int
    body: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        """What the signature is over."""
        return _CONTEXT + _ENCODER.encode(msgspec.structs.replace(self, signature=b""))

    def as_bytes(self) -> bytes:
        """The message as it is sent."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)


class Refused(InputError):
    """A message that was refused at the door; the receiver's state has not changed."""


class Wire:
    """Makes and reads the messages of one plan.

    Parameters
    ----------
    plan : bytes
        SHA-256 of the plan file.
    keys : mapping of str to bytes
        The Ed25519 key of every party, by name.
    size : int
        s, the numbers in one statistic; with the parties it bounds the size of a message.
    """

    def __init__(self, plan: bytes, keys: Mapping[str, bytes], size: int) -> None:
        self.plan, self._keys, self.size = plan, dict(keys), size
        # A share for the helper is an envelope itself, encrypted; a set holds one of each silo.
        share = 8 * size + 2 * _AROUND
        self.limits = {
            "join": _AROUND,
            "report": 8 * size + share + _AROUND,
            "seen": _AROUND,
            "news": 16 * size + len(self._keys) * (128 + _AROUND) + 4 * _AROUND,
            "set": len(self._keys) * (share + 64) + 8 * size + _AROUND,
            "broadcast": 16 * size + len(self._keys) * 128 + 3 * _AROUND,
            "receipt": 1 << 20,
            "leave": _AROUND,
            "sessions": len(self._keys) * 64 + _AROUND,
        }
        self.largest = max(self.limits.values())

    def made(self, identity: Identity, sender: str, release: int, body: Body) -> bytes:
        """The signed message of one party."""
        kind = _KIND_OF[type(body)]
        plain = Envelope(VERSION, self.plan, kind, sender, release, _ENCODER.encode(body))
        signature = identity.sign(plain.signed_part())
        return msgspec.structs.replace(plain, signature=signature).as_bytes()

    def read(self, data: bytes, kinds: tuple[str, ...] = tuple(KINDS)) -> Envelope:
        """The envelope of a message, checked but for its body.

        Raises
        ------
        Refused
            For another version, plan or kind, a sender that is no party, a size above the bound, or
            a signature that is not the sender's.
        """
        if len(data) > self.largest:
            raise Refused(f"message must be at most {self.largest} bytes, got {len(data)}")
        try:
            found = _ENVELOPE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"message is no envelope ({error})") from None
        if found.version != VERSION:
            raise Refused(f"message must be of version {VERSION}, got {found.version}")
        if found.plan != self.plan:
            raise Refused(f"message is for another plan, {show(found.plan[:8].hex())}")
        if found.kind not in kinds:
            raise Refused(f"message must be one of {', '.join(kinds)}, got {show(found.kind)}")
        if len(data) > self.limits[found.kind]:
            bound = self.limits[found.kind]
            raise Refused(f"a {found.kind} must be at most {bound} bytes, got {len(data)}")
        key = self._keys.get(found.sender)
        if key is None:
            raise Refused(f"message is from no party of the plan, {show(found.sender)}")
        if not 0 <= found.release < 2**31:
            raise Refused(f"message of {found.sender} has release {found.release}")
        if not verified(key, found.signature, found.signed_part()):
            raise Refused(f"the signature of the {found.kind} is not that of {found.sender}")
        if found.as_bytes() != data:
            # Another spelling of the same message would have another digest.
            raise Refused(f"the {found.kind} of {found.sender} is not in canonical form")
        return found

    def body(self, envelope: Envelope, kind: type[B]) -> B:
        """The body of a checked envelope."""
        try:
            made = msgspec.msgpack.decode(envelope.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(
                f"the {envelope.kind} of {envelope.sender} is malformed ({error})"
            ) from None
        if _ENCODER.encode(made) != envelope.body:
            raise Refused(f"the {envelope.kind} of {envelope.sender} is not in canonical form")
        return made

    def floats(self, data: bytes, who: str) -> np.ndarray:
        """A statistic (s,) of float64 from bytes; Refused for another size or NaN."""
        values = self._numbers(data, "<f8", who).astype(np.float64)
        if not np.isfinite(values).all():
            raise Refused(f"{who} must be finite, got NaN or infinity")
        return values

    def words(self, data: bytes, who: str) -> np.ndarray:
        """Words (s,) of 64 bits from bytes; Refused for another size."""
        return self._numbers(data, "<u8", who).astype(np.uint64)

    def _numbers(self, data: bytes, dtype: str, who: str) -> np.ndarray:
        if len(data) != 8 * self.size:
            raise Refused(f"{who} must have {8 * self.size} bytes of values, got {len(data)}")
        return np.frombuffer(data, dtype=dtype)


def entry_of(silo: int, envelope: bytes) -> Entry:
    """The entry of a silo's report in a set."""
    return Entry(silo, digest(envelope))


def packed(values: np.ndarray) -> bytes:
    """Numbers as they travel: 64 bits each, little endian. A 0 has no sign."""
    if values.dtype == np.float64:
        values = values + 0.0
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()


def check_entries(entries: tuple[Entry, ...], silos: int, who: str) -> None:
    """Refuse a set that is not of different silos in increasing order."""
    numbers = [entry.silo for entry in entries]
    if numbers != sorted(set(numbers)) or not all(0 <= i < silos for i in numbers):
        raise Refused(f"the set of {who} must be of different silos in order, got {show(numbers)}")
    if any(len(entry.digest) != KEY for entry in entries):
        raise Refused(f"the set of {who} must have digests of {KEY} bytes")


def sessions_of(data: bytes) -> tuple[bytes, ...]:
    """The sessions of a list that was kept."""
    return msgspec.msgpack.decode(data, type=Sessions).values


def encoded(value: Any) -> bytes:
    """Any struct of ours as msgpack."""
    return _ENCODER.encode(value)
