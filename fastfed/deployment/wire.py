"""Messages between silos, hub and helper: signed msgpack envelopes.

An envelope names its plan, sender and release, and holds the body as bytes. Version, plan, kind,
sender, size and signature are checked before any number of the body is decoded. Nothing is ever
unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from fastfed._validate import InputError, show
from fastfed.deployment.seal import KEY, Identity, digest, verified

#: Version of the format; messages of a different version are refused.
VERSION = 2
#: First bytes of all signed data, so that these signatures are valid nowhere else.
_CONTEXT = b"fastfed deployment message 2\0"
#: Maximum number of bytes of an envelope without its body, and of a name.
_ENVELOPE_BYTES, NAME = 512, 64


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A party is running, has all broadcasts up to the envelope's release, and agrees to the plan.

    Parameters
    ----------
    nonce : bytes
        16 random bytes. The answer repeats them, so an old answer cannot pass as new.
    agreed : bytes
        The sender's countersignature of the plan.
    time : float
        The sender's clock, in seconds since 1970; 0 if it is not given.
    after : float
        The hub's time in its last answer; 0 before the first.
    """

    nonce: bytes
    agreed: bytes
    time: float = 0.0
    after: float = 0.0


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo's report of one release: its values, or the hub's share of them.

    Parameters
    ----------
    values : bytes
        float64 or uint64, little endian, encrypted to the hub. In a share for the helper, which is
        encrypted as a whole, they are not encrypted a second time.
    sealed : bytes
        The helper's share, encrypted to the helper; empty without a helper.
    """

    values: bytes
    sealed: bytes = b""


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo's signed message to all others about a release, so that they need not trust the hub.

    Parameters
    ----------
    report : bytes
        SHA-256 of the envelope of the silo's report.
    last : int
        Release of the last broadcast that the silo had; 0 before the first.
    head : bytes
        SHA-256 of that broadcast; empty before the first.
    """

    report: bytes
    last: int
    head: bytes


class News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A broadcast envelope, with the `Seen` envelopes of the silos in its set, in their order."""

    broadcast: bytes
    seen: tuple[bytes, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One report in a set: the silo's index, and the SHA-256 of the report's envelope."""

    silo: int
    digest: bytes


class Opened(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The set of reports that a release is computed from. There is one for each release.

    Parameters
    ----------
    entries : tuple of Entry
    sealed : tuple of bytes
        To the helper: its shares, in the order of ``entries``.
    total : bytes
        From the helper: the sum of its shares.
    before : bytes
        From the helper: SHA-256 of its answer to the previous release; empty at the first.
    """

    entries: tuple[Entry, ...]
    sealed: tuple[bytes, ...] = ()
    total: bytes = b""
    before: bytes = b""


class Broadcast(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The released statistics.

    Parameters
    ----------
    values : bytes
        float64, little endian.
    entries : tuple of Entry
        The set of reports.
    before : bytes
        SHA-256 of the previous broadcast's envelope; empty at the first.
    helper : bytes
        The envelope of the helper's answer to the set; empty without a helper.
    """

    values: bytes
    entries: tuple[Entry, ...]
    before: bytes
    helper: bytes = b""


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The list of all reports that the hub has from one silo.

    Parameters
    ----------
    silo : int
    reports : tuple of (int, bytes)
        Release, and SHA-256 of the report's envelope.
    nonce : bytes
        The nonce of the `Join` that is answered; empty in an answer to a report.
    ended : str
        Why the hub takes no more reports of the silo; empty while it does.
    time : float
        The hub's clock, in seconds since 1970; 0 if it is not given.
    after : float
        The silo's time in the `Join` that is answered.
    """

    silo: int
    reports: tuple[tuple[int, bytes], ...]
    nonce: bytes = b""
    ended: str = ""
    time: float = 0.0
    after: float = 0.0


class Sessions(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sessions that the masks of a release depend on.

    Parameters
    ----------
    values : tuple of bytes
        32 bytes each: from a silo its session, from the hub the sessions of all silos in order.
    """

    values: tuple[bytes, ...]


class Leave(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo leaves the federation: later sets exclude it."""


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
        From 1; in a `Join` the last broadcast that the sender has, or 0.
    body : bytes
        The body, as msgpack.
    signature : bytes
        Ed25519 signature of all fields above.
    """

    version: int
    plan: bytes
    kind: str
    sender: str
    release: int
    body: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        """Encode the fields that are signed."""
        return _CONTEXT + _ENCODER.encode(msgspec.structs.replace(self, signature=b""))

    def as_bytes(self) -> bytes:
        """Encode the message as it is sent."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)


class Refused(InputError):
    """Raised for a message that is not accepted; the receiver's state has not changed."""


class Wire:
    """Encode, sign, verify and decode the messages of one plan.

    Parameters
    ----------
    plan : bytes
        SHA-256 of the plan file.
    keys : mapping of str to bytes
        Each party's name -> its Ed25519 public key.
    size : int
        s, the count of numbers in one statistic. With the number of parties it bounds the size of
        messages.
    """

    def __init__(self, plan: bytes, keys: Mapping[str, bytes], size: int) -> None:
        self.plan, self._keys, self.size = plan, dict(keys), size
        # A share for the helper is an encrypted envelope; a set holds one of each silo.
        share = 8 * size + 2 * _ENVELOPE_BYTES
        self.limits = {
            "join": _ENVELOPE_BYTES,
            "report": 8 * size + share + _ENVELOPE_BYTES,
            "seen": _ENVELOPE_BYTES,
            "news": 16 * size + len(self._keys) * (128 + _ENVELOPE_BYTES) + 4 * _ENVELOPE_BYTES,
            "set": len(self._keys) * (share + 64) + 8 * size + _ENVELOPE_BYTES,
            "broadcast": 16 * size + len(self._keys) * 128 + 3 * _ENVELOPE_BYTES,
            "receipt": 1 << 20,
            "leave": _ENVELOPE_BYTES,
            "sessions": len(self._keys) * 64 + _ENVELOPE_BYTES,
        }
        self.largest = max(self.limits.values())

    def signed(self, identity: Identity, sender: str, release: int, body: Body) -> bytes:
        """Encode and sign a message of one party."""
        kind = _KIND_OF[type(body)]
        unsigned = Envelope(VERSION, self.plan, kind, sender, release, _ENCODER.encode(body))
        signature = identity.sign(unsigned.signed_part())
        return msgspec.structs.replace(unsigned, signature=signature).as_bytes()

    def read(self, data: bytes, kinds: tuple[str, ...] = tuple(KINDS)) -> Envelope:
        """Decode the envelope of a message, and check everything but its body.

        Raises
        ------
        Refused
            If version, plan or kind differ, the sender is not a party of the plan, the message is
            too large, or the signature is not the sender's.
        """
        if len(data) > self.largest:
            raise Refused(f"message must be at most {self.largest} bytes, got {len(data)}")
        try:
            envelope = _ENVELOPE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"message is no envelope ({error})") from None
        if envelope.version != VERSION:
            raise Refused(f"message must be of version {VERSION}, got {envelope.version}")
        if envelope.plan != self.plan:
            raise Refused(f"message is for another plan, {show(envelope.plan[:8].hex())}")
        if envelope.kind not in kinds:
            raise Refused(f"message must be one of {', '.join(kinds)}, got {show(envelope.kind)}")
        if len(data) > self.limits[envelope.kind]:
            bound = self.limits[envelope.kind]
            raise Refused(f"a {envelope.kind} must be at most {bound} bytes, got {len(data)}")
        key = self._keys.get(envelope.sender)
        if key is None:
            raise Refused(f"message is from no party of the plan, {show(envelope.sender)}")
        if not 0 <= envelope.release < 2**31:
            raise Refused(f"message of {envelope.sender} has release {envelope.release}")
        if not verified(key, envelope.signature, envelope.signed_part()):
            raise Refused(f"the signature of the {envelope.kind} is not that of {envelope.sender}")
        if envelope.as_bytes() != data:
            # A different encoding of the same message would have a different digest.
            raise Refused(f"the {envelope.kind} of {envelope.sender} is not in canonical form")
        return envelope

    def body(self, envelope: Envelope, kind: type[B]) -> B:
        """Decode the body of a checked envelope; Refused if it is malformed."""
        try:
            decoded = msgspec.msgpack.decode(envelope.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(
                f"the {envelope.kind} of {envelope.sender} is malformed ({error})"
            ) from None
        if _ENCODER.encode(decoded) != envelope.body:
            raise Refused(f"the {envelope.kind} of {envelope.sender} is not in canonical form")
        return decoded

    def floats(self, data: bytes, who: str) -> np.ndarray:
        """Decode a statistic (s,) of float64; Refused if its size is wrong or it is not finite."""
        values = self._numbers(data, "<f8", who).astype(np.float64)
        if not np.isfinite(values).all():
            raise Refused(f"{who} must be finite, got NaN or infinity")
        return values

    def words(self, data: bytes, who: str) -> np.ndarray:
        """Decode words (s,) of uint64; Refused if the size is wrong."""
        return self._numbers(data, "<u8", who).astype(np.uint64)

    def _numbers(self, data: bytes, dtype: str, who: str) -> np.ndarray:
        """Decode (s,) numbers of 64 bits; Refused if the size is wrong."""
        if len(data) != 8 * self.size:
            raise Refused(f"{who} must have {8 * self.size} bytes of values, got {len(data)}")
        return np.frombuffer(data, dtype=dtype)


def entry_of(silo: int, envelope: bytes) -> Entry:
    """Create the entry of a silo's report in a set."""
    return Entry(silo, digest(envelope))


def packed(values: np.ndarray) -> bytes:
    """Encode numbers for messages: 64 bits each, little endian; -0.0 becomes 0.0."""
    if values.dtype == np.float64:
        values = values + 0.0
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()


def check_entries(entries: tuple[Entry, ...], silos: int, who: str) -> None:
    """Refuse a set whose silos are not distinct and in increasing order."""
    numbers = [entry.silo for entry in entries]
    if numbers != sorted(set(numbers)) or not all(0 <= i < silos for i in numbers):
        raise Refused(f"the set of {who} must be of different silos in order, got {show(numbers)}")
    if any(len(entry.digest) != KEY for entry in entries):
        raise Refused(f"the set of {who} must have digests of {KEY} bytes")


def sessions_of(data: bytes) -> tuple[bytes, ...]:
    """Decode a stored list of sessions."""
    return msgspec.msgpack.decode(data, type=Sessions).values


def encoded(value: Any) -> bytes:
    """Encode a struct of this package as msgpack."""
    return _ENCODER.encode(value)
