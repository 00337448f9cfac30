"""Messages between silos, hub and helper: signed msgpack envelopes.

An envelope names its plan, sender and release, and holds the message's body as bytes. The receiver
checks version, plan, kind, sender, size and signature before it decodes the body. Nothing is ever
unpickled.

In one release, each silo sends a `Seen` and its `Report` to the hub, which answers with a
`Receipt`. The hub fixes the set of reports to add up (`Opened`), and sends the sum to all silos
(`News`, which holds a `Broadcast`). `Join` starts or resumes a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from fastfed._validate import InputError, show
from fastfed.deployment.seal import KEY_BYTES, Identity, digest, verified

#: Version of the format; messages of a different version are refused.
VERSION = 2
#: First bytes of all signed data, so that a signature is valid only for these messages.
_CONTEXT = b"fastfed deployment message 2\0"
#: Maximum numbers of bytes: of an envelope without its body, and of a party's name.
_ENVELOPE_BYTES, NAME = 512, 64


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """States that a party is running and agrees to the plan, and asks for messages that it missed.

    The envelope's release is the last broadcast that a silo has. For the helper, it is the last
    release that the helper has answered.

    Parameters
    ----------
    nonce : bytes
        16 random bytes. The hub's receipt repeats them, so an old receipt cannot pass as new.
    agreed : bytes
        The sender's signature of the plan.
    time : float
        The sender's clock time, in seconds since 1970; 0 if it is not given.
    after : float
        The hub's clock time in the last receipt that the sender has; 0 before the first.
    """

    nonce: bytes
    agreed: bytes
    time: float = 0.0
    after: float = 0.0


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo's report of one release or, with a helper, one share of it.

    Parameters
    ----------
    values : bytes
        The values, or the share, as float64 or uint64, little endian. In a report, they are
        encrypted to the hub. A share for the helper is an envelope that is encrypted as a whole, so
        its values are not encrypted separately.
    sealed : bytes
        The helper's share, encrypted to the helper; empty without a helper.
    """

    values: bytes
    sealed: bytes = b""


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A silo's statement to all other silos: which report it sent, and which broadcast it has.

    The hub passes it on. The silo's signature shows the other silos if the hub has changed a
    report, or has sent different broadcasts to different silos.

    Parameters
    ----------
    report : bytes
        SHA-256 of the envelope of the silo's report of this release.
    last : int
        Release of the last broadcast that the silo had received; 0 before the first.
    head : bytes
        SHA-256 of the envelope of that broadcast; empty before the first.
    """

    report: bytes
    last: int
    head: bytes


class News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The hub's broadcast to a silo, with the `Seen` of every silo in its set, in order."""

    broadcast: bytes
    seen: tuple[bytes, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One report in a set: the silo's index, and the SHA-256 of the report's envelope."""

    silo: int
    digest: bytes


class Opened(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The set of reports that a release is computed from. There is one set for each release.

    The hub stores it in its log, and sends it to the helper, which answers with the same set and
    the sum of its shares.

    Parameters
    ----------
    entries : tuple of Entry
        The reports. Empty if the hub asks the helper which set the helper has answered.
    sealed : tuple of bytes
        Only to the helper: the encrypted shares, in the order of ``entries``.
    total : bytes
        Only from the helper: the sum of the shares.
    before : bytes
        Only from the helper: SHA-256 of its answer to the previous release; empty at the first.
    """

    entries: tuple[Entry, ...]
    sealed: tuple[bytes, ...] = ()
    total: bytes = b""
    before: bytes = b""


class Broadcast(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The released statistics of all silos, which the hub sends to every silo.

    Parameters
    ----------
    values : bytes
        The statistics (s,), float64, little endian.
    entries : tuple of Entry
        The set of reports that they are computed from.
    before : bytes
        SHA-256 of the previous broadcast's envelope; empty at the first.
    helper : bytes
        The envelope of the helper's answer to the set; empty without a helper.
    """

    values: bytes
    entries: tuple[Entry, ...]
    before: bytes
    helper: bytes = b""


class View(Broadcast, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The `Broadcast` of a plan whose silos have their own clocks: the sum of their last reports.

    ``entries`` are the reports that replace earlier ones, or are the first of their silos.

    Parameters
    ----------
    numbers : tuple of int
        For each silo, the number of its report in the sum; 0 for none.
    """

    numbers: tuple[int, ...] = ()


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The hub's list of the reports that it has from one silo.

    It lists no report that is in a release which both hub and silo have.

    Parameters
    ----------
    silo : int
        Index of the silo.
    reports : tuple of (int, bytes)
        Release, and SHA-256 of the report's envelope.
    nonce : bytes
        The nonce of the `Join` that is answered, or the hub's nonce for the silo to repeat; empty
        in an answer to a report.
    ended : str
        Why the hub takes no more reports of the silo; empty while it does.
    time : float
        The hub's clock time, in seconds since 1970; 0 if it is not given.
    after : float
        The silo's clock time in the `Join` that is answered.
    """

    silo: int
    reports: tuple[tuple[int, bytes], ...]
    nonce: bytes = b""
    ended: str = ""
    time: float = 0.0
    after: float = 0.0


class Sessions(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sessions: the bytes, derived from a silo's sums, on which the masks of a release depend.

    Parameters
    ----------
    values : tuple of bytes
        32 bytes each. From a silo: its session only. From the hub: all silos' sessions, in order.
    """

    values: tuple[bytes, ...]


class Leave(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """States that a silo leaves the federation; later sets of reports exclude it."""


Body = Join | Report | Seen | News | Opened | Broadcast | Receipt | Sessions | Leave
#: Kind of message, as in an envelope -> type of its body.
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
_KIND_OF = {body: kind for kind, body in KINDS.items()} | {View: "broadcast"}
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
        The release that the message is about, from 1. In a `Join`, the last release that the sender
        has, or 0.
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
        """Encode all fields except the signature: the bytes that are signed."""
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
        Name of each party -> its Ed25519 public key.
    size : int
        Count s of numbers in one statistic, which limits the size of messages.
    views : bool
        True if broadcasts are `View`.
    """

    def __init__(
        self, plan: bytes, keys: Mapping[str, bytes], size: int, views: bool = False
    ) -> None:
        self.plan, self._keys, self.size, self._views = plan, dict(keys), size, views
        # Maximum bytes of each kind of message, with a margin. A statistic has 8 * size bytes. An
        # `Entry` of a set, or a session, has fewer than 64 bytes. A share for the helper is an
        # encrypted envelope, and a set (`Opened`) holds one share of each silo.
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
            limit = self.limits[envelope.kind]
            raise Refused(f"a {envelope.kind} must be at most {limit} bytes, got {len(data)}")
        key = self._keys.get(envelope.sender)
        if key is None:
            raise Refused(f"message is from no party of the plan, {show(envelope.sender)}")
        if not 0 <= envelope.release < 2**31:
            raise Refused(f"message of {envelope.sender} has release {envelope.release}")
        if not verified(key, envelope.signature, envelope.signed_part()):
            raise Refused(f"the signature of the {envelope.kind} is not that of {envelope.sender}")
        if envelope.as_bytes() != data:
            # Messages are compared by digest, so each message must have one encoding only.
            raise Refused(f"the {envelope.kind} of {envelope.sender} is not in canonical form")
        return envelope

    def body(self, envelope: Envelope, body_type: type[B]) -> B:
        """Decode the body of an envelope that `read` has checked.

        Raises
        ------
        Refused
            If the body is not of this type, or not in canonical form.
        """
        # A plan whose silos have separate clocks sends a `View` as its `Broadcast`.
        sent_type: Any = View if self._views and body_type is Broadcast else body_type
        try:
            decoded: B = msgspec.msgpack.decode(envelope.body, type=sent_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(
                f"the {envelope.kind} of {envelope.sender} is malformed ({error})"
            ) from None
        if _ENCODER.encode(decoded) != envelope.body:
            raise Refused(f"the {envelope.kind} of {envelope.sender} is not in canonical form")
        return decoded

    def floats(self, data: bytes, label: str) -> np.ndarray:
        """Decode a statistic (s,) of float64; raise Refused for a wrong size, NaN or infinity."""
        values = self._numbers(data, "<f8", label).astype(np.float64)
        if not np.isfinite(values).all():
            raise Refused(f"{label} must be finite, got NaN or infinity")
        return values

    def words(self, data: bytes, label: str) -> np.ndarray:
        """Decode words (s,) of uint64; raise Refused if the size is wrong."""
        return self._numbers(data, "<u8", label).astype(np.uint64)

    def _numbers(self, data: bytes, dtype: str, label: str) -> np.ndarray:
        """Decode (s,) numbers of 64 bits; raise Refused if the size is wrong."""
        if len(data) != 8 * self.size:
            raise Refused(f"{label} must have {8 * self.size} bytes of values, got {len(data)}")
        return np.frombuffer(data, dtype=dtype)


def entry_of(silo: int, envelope: bytes) -> Entry:
    """Return a set's entry for a report: the silo, and the digest of the report's envelope."""
    return Entry(silo, digest(envelope))


def packed(values: np.ndarray) -> bytes:
    """Encode an array of 64-bit numbers as little-endian bytes; -0.0 becomes 0.0."""
    if values.dtype == np.float64:
        values = values + 0.0
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()


def check_entries(entries: tuple[Entry, ...], silos: int, label: str) -> None:
    """Raise Refused unless a set's silos are distinct and in order, with digests of 32 bytes."""
    members = [entry.silo for entry in entries]
    if members != sorted(set(members)) or not all(0 <= i < silos for i in members):
        raise Refused(
            f"the set of {label} must be of different silos in order, got {show(members)}"
        )
    if any(len(entry.digest) != KEY_BYTES for entry in entries):
        raise Refused(f"the set of {label} must have digests of {KEY_BYTES} bytes")


def sessions_of(data: bytes) -> tuple[bytes, ...]:
    """Decode a list of sessions that was stored by `encoded`."""
    return msgspec.msgpack.decode(data, type=Sessions).values


def encoded(value: Any) -> bytes:
    """Encode a struct of this package as msgpack."""
    return _ENCODER.encode(value)
