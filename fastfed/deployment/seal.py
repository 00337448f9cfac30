"""What a party derives from its secret: signatures, encryption keys and *sealed* noise.

Sealed noise is a pseudorandom function of the secret, the plan, the party, the node (a partial sum
in the tree of releases) and the exact sums that the noise hides. So a party that is restarted,
restored from a backup or copied draws the same noise for the same sums, and independent noise for
different sums. Therefore two messages about one node are either equal, or a composition of two
mechanisms, which the ledger charges. Noise never cancels in the difference of two messages.

Needs the package `cryptography` (the extra ``deploy``).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource, entries
from fastfed._sampling import Laplaces, Normals, Uniforms, fair_binomials, quarter_binomial
from fastfed._validate import InputError
from fastfed.protocols.plan import Plan

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:  # pragma: no cover - only without the extra
    raise InputError(
        "deployments need the package cryptography: pip install 'fastfed[deploy]'"
    ) from error


# ---- keys ----------------------------------------------------------------------------------------

#: Number of bytes of a secret, a key or a digest.
KEY_BYTES = 32


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of data, 32 bytes."""
    return hashlib.sha256(data).digest()


def keyed_digest(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """Return the keyed BLAKE2b of a list of parts, 32 bytes; each use has its ``purpose``.

    The length of each part precedes the part, so different lists of parts give different inputs.
    """
    hasher = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=purpose)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()


def keystream(key: bytes, count: int) -> bytes:
    """Return the first ``count`` bytes of ChaCha20's keystream; use a key for one stream only."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(count))


class Identity:
    """The private keys of one party: Ed25519 for signing, X25519 for decryption.

    Parameters
    ----------
    seed : bytes
        32 random bytes, the party's secret, from which both keys are derived.
    """

    def __init__(self, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != KEY_BYTES:
            raise InputError(f"seed must be {KEY_BYTES} bytes, the secret of a party")
        self._sign = Ed25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed sign"))
        self._open = X25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed open"))

    @property
    def public(self) -> tuple[bytes, bytes]:
        """Public keys of this party: for its signatures (Ed25519) and for encryption (X25519)."""
        return (
            self._sign.public_key().public_bytes_raw(),
            self._open.public_key().public_bytes_raw(),
        )

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of data, 64 bytes."""
        return self._sign.sign(data)

    def decrypt(self, sealed: bytes, context: bytes) -> bytes:
        """Return the decrypted data that `encrypted_to` encrypted to this party.

        Raises
        ------
        InputError
            If the data were encrypted to a different party or in a different context, or were
            changed.
        """
        try:
            sender_key = X25519PublicKey.from_public_bytes(sealed[:KEY_BYTES])
            key = _shared(self._open.exchange(sender_key), sealed[:KEY_BYTES], self.public[1])
            return ChaCha20Poly1305(key).decrypt(bytes(12), sealed[KEY_BYTES:], context)
        except (InvalidTag, ValueError):
            raise InputError("the data encrypted to this party cannot be opened") from None

    def agreed_with(self, public: bytes, context: bytes) -> bytes:
        """Return a secret key that only this party and the owner of ``public`` can derive.

        Each of the two parties calls this method with the other party's X25519 public key, and gets
        the same key. A different ``context`` gives a different key.

        Raises
        ------
        InputError
            If the public key is not valid.
        """
        public_keys = b"".join(sorted((self.public[1], public)))
        try:
            secret = self._open.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise InputError("a public key of the plan is not a valid X25519 key") from None
        return _derived(secret, b"fastfed masks" + public_keys, context)


def is_encryption_key(public: bytes) -> bool:
    """Return True for a canonical X25519 public key to which data can be encrypted."""
    if len(public) != KEY_BYTES or public[-1] & 0x80:
        return False
    try:
        X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES))).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        return False
    return True


def encrypted_to(public: bytes, data: bytes, context: bytes, seed: bytes) -> bytes:
    """Return data encrypted to a party's X25519 public key, with an ephemeral key pair from a seed.

    The same seed and data give the same bytes, so a party can make the same message again. The seed
    must be secret, and must not be used for different data. ``context`` is authenticated:
    decryption needs the same bytes.
    """
    pair = X25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed pair"))
    ephemeral_key = pair.public_key().public_bytes_raw()
    key = _shared(pair.exchange(X25519PublicKey.from_public_bytes(public)), ephemeral_key, public)
    # The key is used only once, so the nonce may be constant.
    return ephemeral_key + ChaCha20Poly1305(key).encrypt(bytes(12), data, context)


def _shared(secret: bytes, first: bytes, second: bytes) -> bytes:
    """Return the encryption key for the secret of a key exchange and both public keys."""
    return _derived(secret, b"fastfed" + first + second)


def _derived(secret: bytes, info: bytes, salt: bytes | None = None) -> bytes:
    """Return a key derived from a secret by HKDF with SHA-256."""
    kdf: Any = HKDF(hashes.SHA256(), KEY_BYTES, salt=salt, info=info)
    key: bytes = kdf.derive(secret)
    return key


def verified(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return True if ``signature`` is a valid signature of the data for this public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def uniform_below(count: int, entropy: Callable[[int], bytes]) -> int:
    """Draw a uniform integer in [0, count) by rejection; ``entropy(n)`` returns n random bytes."""
    bits = count.bit_length()
    while True:
        candidate = int.from_bytes(entropy(8), "big") >> (64 - bits)
        if candidate < count:
            return candidate


# ---- noise ---------------------------------------------------------------------------------------

#: Purposes of `keyed_digest`: keys for different purposes are independent.
_NOISE, _MORE, _PAD = b"fastfed noise", b"fastfed more", b"fastfed share"
_ROUND, _SESSION = b"fastfed round", b"fastfed session"
_REPORT = b"fastfed report"
_PUBLIC, _SAMPLE = b"fastfed public", b"fastfed sample"


def make_secret(path: str | Path) -> bytes:
    """Write a new secret to a file of mode 0400, and return it.

    Raises
    ------
    InputError
        If the file exists: a secret is never replaced.
    """
    target = Path(path)
    secret = secrets.token_bytes(KEY_BYTES)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    except FileExistsError:
        raise InputError(f"{target} exists; a secret is never replaced") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    return secret


def read_secret(path: str | Path) -> bytes:
    """Read a secret; raise InputError if others can read the file, or if its length is wrong."""
    target = Path(path)
    if not target.exists():
        raise InputError(
            f"{target} does not exist: `fastfed deploy keys {target.parent}` makes the secret of a "
            "party"
        )
    with open(target, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        secret = file.read(KEY_BYTES + 1)
    if mode & 0o077:
        raise InputError(f"{target} can be read by others (mode {mode:o}); chmod 400 it")
    if len(secret) != KEY_BYTES:
        size = f"{len(secret)}" if len(secret) < KEY_BYTES else "more"
        raise InputError(
            f"{target} must hold {KEY_BYTES} bytes, got {size}: restore its backup; without it, "
            "make new keys and a new plan"
        )
    return secret


class _Stream:
    """The random bytes of one draw, as the exact samplers of `fastfed._sampling` read them.

    A call returns the next bytes. `further` returns more bits of one uniform number. An exact
    sampler requests them if the first bits do not decide a comparison.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._position, self._bytes = key, 0, b""

    def __call__(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        end = self._position + count
        if end > len(self._bytes):
            self._bytes = keystream(self._key, max(2 * end, 4096))
        next_bytes = self._bytes[self._position : end]
        self._position = end
        return next_bytes

    def further(self, index: int, start: int, count: int) -> bytes:
        """Return ``count`` more bytes of uniform number ``index``, after its first ``start`` bits.

        A uniform number has infinitely many bits, which are drawn when they are needed.
        """
        place = (part.to_bytes(8, "big") for part in (index, start))
        return keystream(keyed_digest(self._key, _MORE, *place), count)


class SealedNoise:
    """The noise of one party of a deployment: the same noise for the same sums.

    Draws are exact samples, without floating-point error (docs/exact.md). Call `set_hidden_sums`
    for a node before its noise is drawn.

    Parameters
    ----------
    secret : bytes
        32 bytes that only this party knows.
    plan : bytes
        SHA-256 of the plan file.
    owner : str
        The party's name.

    Notes
    -----
    Guarantee: without the secret, draws for different (node, sums) cannot be distinguished from
    independent exact samples, if BLAKE2b and ChaCha20 cannot be distinguished from random
    functions.
    """

    @property
    def exact(self) -> bool:
        """True: draws are exact samples."""
        return True

    def __init__(self, secret: bytes, plan: bytes, owner: str) -> None:
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise InputError(f"secret must be {KEY_BYTES} bytes")
        self._secret, self._plan, self._owner = secret, plan, owner.encode()
        #: Node -> the sums that its noise hides.
        self._hidden: dict[int, bytes] = {}

    @property
    def source(self) -> NoiseSource:
        """This object, typed as a `NoiseSource`: it has only the draws that deployments use."""
        return cast(NoiseSource, self)

    def set_hidden_sums(self, node: int, sums: bytes) -> None:
        """Set the exact sums, encoded as bytes, that the noise of a node hides."""
        self._hidden[node] = sums

    def key(self, purpose: bytes, silo: int, node: int) -> bytes:
        """Return the key of one draw, derived from everything that the noise depends on."""
        if node not in self._hidden:
            raise InputError(f"the noise of node {node} was requested before its sums were known")
        place = silo.to_bytes(8, "big"), node.to_bytes(8, "big")
        parts = self._plan, self._owner, *place, self._hidden[node]
        return keyed_digest(self._secret, purpose, *parts)

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        """Draw d + d (d + 1) / 2 standard normals for one node; the first d are for sums of x y."""
        size = dimension + dimension * (dimension + 1) // 2
        return Normals(size, _Stream(self.key(_NOISE, silo, node)))

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Return the normals of `ideal` rounded to float64, for display only."""
        return self.ideal(silo, node, dimension).values

    def coins(
        self, silo: int, node: int, dimension: int, trials: tuple[int, int, int]
    ) -> np.ndarray:
        """Draw exact binomial noise for each entry of one tree node, as uint64 modulo 2^64.

        The noise of an entry is Bin(n, 1/2) - n/2. ``trials`` holds the number n for entries of the
        sum of x y, then for off-diagonal and for diagonal entries of the sum of x x'.
        """
        stream = _Stream(self.key(_NOISE, silo, node))
        centred = fair_binomials(entries(dimension, trials), stream)
        return np.array([k % 2**64 for k in centred], dtype=np.uint64)

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 exactly for one node, (count,)."""
        stream = _Stream(self.key(_NOISE, silo, node))
        centred = [4 * quarter_binomial(trials, stream) - trials for _ in range(count)]
        return np.array(centred, dtype=np.int64) / 4.0

    def rounding(self, silo: int, node: int, number: int, count: int) -> np.ndarray:
        """Draw the uniform 32-bit integers (count,) that round one record for one node."""
        key = keyed_digest(self.key(_ROUND, silo, node), _MORE, number.to_bytes(8, "big"))
        return np.frombuffer(keystream(key, 4 * count), dtype="<u4").astype(np.uint32)

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1), (count,), for the random rotation of a release.

        They are a function of the secret, the plan, the party, ``purpose`` (the number of a kind of
        draws) and ``release`` (the number of the release). So they do not depend on the data, as
        the certificate assumes for the rotation.
        """
        place = purpose.to_bytes(8, "big"), release.to_bytes(8, "big")
        key = keyed_digest(self._secret, _PUBLIC, self._plan, self._owner, *place)
        words = np.frombuffer(keystream(key, 8 * count), dtype="<u8") >> np.uint64(12)
        uniforms: np.ndarray = (words.astype(np.float64) + 0.5) * 2.0**-52
        return uniforms

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        """Draw exact uniform numbers (count,) that choose the ranges of one private mean."""
        return Uniforms(count, _Stream(self.key(_NOISE, purpose, release)))

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        """Draw exact standard Laplace noise (count,) for one private mean."""
        return Laplaces(count, _Stream(self.key(_NOISE, purpose, release)))

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        """Draw exact standard Laplace noise (count,) for the experts' scores of one exchange."""
        return Laplaces(count, _Stream(self.key(_NOISE, silo, release)))

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """Draw a random order (count,) of a silo's losses in a phase, independent of the data."""
        place = silo.to_bytes(8, "big"), phase.to_bytes(8, "big")
        key = keyed_digest(self._secret, _SAMPLE, self._plan, self._owner, *place)
        return np.argsort(np.frombuffer(keystream(key, 8 * count), dtype="<u8"), kind="stable")

    def session(self, silo: int, node: int) -> bytes:
        """Return 32 bytes that depend on the sums of a node, but reveal nothing about the sums."""
        return self.key(_SESSION, silo, node)

    def pad(self, silo: int, node: int, size: int) -> tuple[np.ndarray, bytes]:
        """Draw the helper's share of a row, uniform words (size,), and a seed for encryption."""
        key = self.key(_PAD, silo, node)
        words = np.frombuffer(keystream(key, 8 * size), dtype="<u8").astype(np.uint64)
        return words, keyed_digest(key, b"fastfed sealing")

    def report_seed(self, silo: int, release: int, data: bytes) -> bytes:
        """Return the seed for encrypting a report; the same data give the same seed."""
        place = silo.to_bytes(8, "big"), release.to_bytes(8, "big")
        return keyed_digest(self._secret, _REPORT, self._plan, self._owner, *place, data)


def hidden_by(plan: Plan, release: int, leaves: np.ndarray) -> dict[int, bytes]:
    """Return, for each node whose noise a release draws, the encoded sums that this noise hides.

    For release types "tree" and "honaker", the noise of a tree node hides the sum of the leaves
    below the node. If a record moves from one of these leaves to another, this sum stays the same.
    Sealed noise is a function of the sums that it hides, so the noise stays the same, too. For
    other release types, and for a secure sum, the noise of release k hides the sums of all leaves
    1..k.

    Parameters
    ----------
    plan : Plan
        The plan, which defines the release type.
    release : int
        k >= 1, the number of the release.
    leaves : ndarray, shape (k, s)
        The exact sums of leaves 1..k.

    Returns
    -------
    dict of int to bytes
        Number of the node -> the encoded sums. Except for "honaker", the only number is k.
    """

    def node_sums(level: int) -> bytes:
        return _encoded_sums(leaves[release - (1 << level) : release].sum(axis=0))

    if plan.secure is None and plan.release == "tree":
        return {release: node_sums(aggregation.node_level(release))}
    if plan.secure is None and plan.release == "honaker":
        first_node = aggregation.honaker_number(release)
        levels = range(aggregation.node_level(release) + 1)
        return {first_node + level: node_sums(level) for level in levels}
    return {release: _encoded_sums(leaves[:release])}


def _encoded_sums(sums: np.ndarray) -> bytes:
    """Return exact sums encoded as little-endian float64; -0.0 becomes 0.0."""
    return (sums + 0.0).astype("<f8").tobytes()
