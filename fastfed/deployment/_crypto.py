"""Signatures, key exchange and ciphers of the package `cryptography` (the extra ``deploy``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from fastfed._validate import InputError

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

#: Bytes of a secret, a key, a digest.
KEY = 32


def digest(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def keyed_digest(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """BLAKE2b of parts, each with its length in front, under a key and for one purpose; 32 bytes.

    Two lists of parts never give one input, however bytes are spread over them.
    """
    made = hashlib.blake2b(key=key, digest_size=KEY, person=purpose)
    for part in parts:
        made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()


def keystream(key: bytes, count: int) -> bytes:
    """The first bytes of ChaCha20 under a key that is used for nothing else."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(count))


class Identity:
    """The keys of one party: Ed25519 to sign with, X25519 to be written to.

    Parameters
    ----------
    seed : bytes
        32 random bytes, the party's secret; both keys are made of it.
    """

    def __init__(self, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != KEY:
            raise InputError(f"seed must be {KEY} bytes, the secret of a party")
        self._sign = Ed25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed sign"))
        self._open = X25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed open"))

    @property
    def public(self) -> tuple[bytes, bytes]:
        """The public keys: of signatures, and of what is encrypted to this party."""
        return (
            self._sign.public_key().public_bytes_raw(),
            self._open.public_key().public_bytes_raw(),
        )

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self._sign.sign(data)

    def opened(self, sealed: bytes, context: bytes) -> bytes:
        """What `sealed_to` encrypted to this party in this context; else InputError."""
        try:
            theirs = X25519PublicKey.from_public_bytes(sealed[:KEY])
            key = _shared(self._open.exchange(theirs), sealed[:KEY], self.public[1])
            return ChaCha20Poly1305(key).decrypt(bytes(12), sealed[KEY:], context)
        except (InvalidTag, ValueError):
            raise InputError("what was encrypted to this party cannot be opened") from None

    def agreed_with(self, public: bytes, context: bytes) -> bytes:
        """The key that this party and the owner of an X25519 key share in one context.

        Both find the same one. InputError for a key with which none can be agreed.
        """
        both = b"".join(sorted((self.public[1], public)))
        try:
            secret = self._open.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise InputError("a public key of the plan is none of X25519") from None
        return _derived(secret, b"fastfed masks" + both, context)


def sealed_to(public: bytes, data: bytes, context: bytes, seed: bytes) -> bytes:
    """Encrypt data to a party's X25519 key, by a key pair that ``seed`` alone decides.

    The same seed and data give the same bytes, so that a message can be made again. A seed must
    be secret, and must belong to these data only.
    """
    pair = X25519PrivateKey.from_private_bytes(keyed_digest(seed, b"fastfed pair"))
    own = pair.public_key().public_bytes_raw()
    key = _shared(pair.exchange(X25519PublicKey.from_public_bytes(public)), own, public)
    # The key is used once, so the nonce may be a constant.
    return own + ChaCha20Poly1305(key).encrypt(bytes(12), data, context)


def _shared(secret: bytes, first: bytes, second: bytes) -> bytes:
    """Key of an exchange, bound to both public keys."""
    return _derived(secret, b"fastfed" + first + second)


def _derived(secret: bytes, info: bytes, salt: bytes | None = None) -> bytes:
    """Key of a secret, by HKDF with SHA-256."""
    kdf: Any = HKDF(hashes.SHA256(), KEY, salt=salt, info=info)
    made: bytes = kdf.derive(secret)
    return made


def verified(public: bytes, signature: bytes, data: bytes) -> bool:
    """True if the signature is that of the data under this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def uniform_below(count: int, entropy: Callable[[int], bytes]) -> int:
    """A uniform index below ``count``."""
    bits = count.bit_length()
    while True:
        found = int.from_bytes(entropy(8), "big") >> (64 - bits)
        if found < count:
            return found
