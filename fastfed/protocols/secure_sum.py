"""Parties of a secure sum: silos send masked integers modulo 2^64, the server decodes their sum.

The mechanism and its privacy account are in `fastfed.privacy.mechanisms.secure_sum`. An `Encoder`
makes the messages of one silo from batch sums, a `SecureRandomizer` from records. A `Decoder` is
the server: it computes prefix sums from the messages of all silos. An `Aggregate` simulates all
silos at once: it draws the sum of their messages, in which the masks cancel and the noise is one
binomial. Proof: docs/secure-sum.md.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource, SeededNoise, SystemNoise, check_seed, is_exact
from fastfed._validate import InputError, Once, array, integer, once
from fastfed.privacy import exact
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import statistic_size

#: Number of bytes of a key that two silos share, and of a session.
KEY_BYTES = SESSION_BYTES = 32


@dataclass(frozen=True)
class Encoded:
    """Message of one silo at one synchronisation: masked integers modulo 2^64.

    Parameters
    ----------
    release : int
        Number of the synchronisation, from 1.
    dimension : int
        d.
    values : ndarray of uint64, shape (s,), s = d + d (d + 1) / 2
        Masked values in the order of a `Statistic`. To anyone who knows none of the masks, the
        values of one silo are uniformly distributed. The sum over all silos is the noisy sum of the
        release. Stored as a read-only copy.
    silo : int, default 0
        Index of the silo, from 0.

    Raises
    ------
    InputError
        If ``values`` is not a uint64 array of shape (s,).
    """

    release: int
    dimension: int
    values: np.ndarray
    silo: int = 0

    def __post_init__(self) -> None:
        """Check shape and type of ``values``, and store a read-only copy."""
        size = statistic_size(self.dimension)
        if not isinstance(self.values, np.ndarray) or self.values.dtype != np.uint64:
            kind = getattr(self.values, "dtype", type(self.values).__name__)
            raise InputError(f"values must be an array of uint64, got {kind}")
        if self.values.shape != (size,):
            raise InputError(f"values must have shape ({size},), got {self.values.shape}")
        copy = self.values.copy()
        copy.flags.writeable = False
        object.__setattr__(self, "values", copy)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of ``values``, 8 s."""
        return self.values.nbytes


# ---- masks ---------------------------------------------------------------------------------------


class Masks:
    """The masks of one silo. Each pair of silos has a mask: one adds it, the other subtracts it.

    A mask is the output of SHAKE-256 on the key of the pair, the release and the sessions of both
    silos, read as 64-bit words. Each Masks object has a new random session. So after `meet` its
    masks differ from the masks of every other object, even if keys are reused. Without `meet`, a
    mask depends on key and release only. Then each key must be used in one federation and one
    object only: the difference of two messages under the same key and release contains no mask.
    Silos must agree on keys by a method that hides the keys from the server, such as X25519.

    Parameters
    ----------
    silo : int
        Index of the silo that holds the object.
    keys : mapping of int to bytes
        For every other silo, a key of 32 bytes that only this silo and the other silo know.

    Attributes
    ----------
    session : bytes
        32 random bytes of this object; not secret.
    met : bool
        True after `meet`.

    Raises
    ------
    InputError
        If a key has a wrong length or index, or two keys are equal.

    Notes
    -----
    Guarantee: after `meet`, and if SHAKE-256 is indistinguishable from a random function, the masks
    of a pair are independent of all masks of other objects to anyone who does not know the key. If
    the server replaces a session, the masks do not cancel in the sum. But the masks are still new,
    because each mask of a silo depends on that silo's own session.
    """

    def __init__(self, silo: int, keys: Mapping[int, bytes]) -> None:
        """Check the keys, and draw a new session."""
        self.silo = integer("silo", silo, at_least=0)
        for other_silo, key in keys.items():
            if integer("silo", other_silo, at_least=0) == silo:
                raise InputError(f"keys must be of other silos, got a key of silo {silo}")
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise InputError(f"the key with silo {other_silo} must be {KEY_BYTES} bytes")
        if len(set(keys.values())) < len(keys):
            raise InputError("keys must differ, got one key for two silos")
        self._keys = dict(keys)
        self.session = secrets.token_bytes(SESSION_BYTES)
        self._sessions: dict[int, bytes] = {}

    @property
    def others(self) -> set[int]:
        """Return the indices of the silos that share a key with this silo."""
        return set(self._keys)

    @property
    def met(self) -> bool:
        """Return True if this object knows the sessions of all other silos."""
        return len(self._sessions) == len(self._keys)

    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """Store the sessions of all other silos. Passing the same sessions again changes nothing.

        Parameters
        ----------
        sessions : mapping of int to bytes
            For each silo's index, the attribute ``session`` of that silo's object: 32 random bytes.
            The session of this silo may be included.

        Raises
        ------
        InputError
            If a session of another silo is missing or does not have 32 bytes, or a session differs
            from the session stored before.
        """
        other_sessions = {
            other_silo: session
            for other_silo, session in sessions.items()
            if other_silo != self.silo
        }
        if set(other_sessions) != self.others:
            raise InputError(
                f"sessions must hold one for each of the {len(self._keys)} other silos, got silos "
                f"{sorted(other_sessions)}"
            )
        if sessions.get(self.silo, self.session) != self.session:
            raise InputError(
                f"the session of silo {self.silo} in sessions must be its own, got different bytes"
            )
        for other_silo, session in other_sessions.items():
            if not isinstance(session, bytes) or len(session) != SESSION_BYTES:
                raise InputError(f"the session of silo {other_silo} must be {SESSION_BYTES} bytes")
        if self._sessions and other_sessions != self._sessions:
            raise InputError(
                f"silo {self.silo} already has different sessions; start all silos again"
            )
        self._sessions = other_sessions

    def at(self, release: int, size: int) -> np.ndarray:
        """Return the sum of this silo's masks for one release, modulo 2^64, (size,) uint64."""
        total = np.zeros(size, dtype=np.uint64)
        label = release.to_bytes(8, "big")
        for other_silo, key in self._keys.items():
            pair_sessions = self._pair_sessions(other_silo) if self._sessions else b""
            # Key, release and sessions have fixed lengths, so different inputs never collide.
            stream = hashlib.shake_256(key + label + pair_sessions).digest(8 * size)
            mask = np.frombuffer(stream, dtype="<u8")
            if other_silo > self.silo:
                total += mask
            else:
                total -= mask
        return total

    def _pair_sessions(self, other_silo: int) -> bytes:
        """Return the sessions of this silo and another silo, joined in order of their indices."""
        pair = (self.session, self._sessions[other_silo])
        return b"".join(pair if self.silo < other_silo else pair[::-1])


def simulated_keys(seed: int, silo: int, silos: int, replicate: int = 0) -> dict[int, bytes]:
    """Return the keys that one silo shares with each other silo, for simulations.

    The keys are computed from the seed, so anyone who knows the seed knows all keys.
    """
    seed = check_seed(seed)
    silos = integer("silos", silos, at_least=1)
    silo = integer("silo", silo, at_least=0, at_most=silos - 1)
    keys = {}
    for other_silo in range(silos):
        if other_silo != silo:
            pair = seed, integer("replicate", replicate, at_least=0), *sorted((silo, other_silo))
            text = b"".join(number.to_bytes(8, "big") for number in pair)
            keys[other_silo] = hashlib.shake_256(b"simulated keys" + text).digest(KEY_BYTES)
    return keys


# ---- silos ---------------------------------------------------------------------------------------

_NO_SESSIONS_WARNING = (
    "the masks of silo {} depend on its keys only: never use these keys again, or exchange the "
    "silos' `session` and call `meet` before the first message"
)


class _Rows(Once):
    """State of a sender, which is one silo or all silos: its batch sums, and rows made from them.

    The row of release k is a linear combination of the sums of batches 1..k, with coefficients from
    the mechanism's factor. Silos send rows with noise; the server combines rows into prefix sums.
    """

    def __init__(self, mechanism: SecureSum, noise: NoiseSource | None, drawer: int) -> None:
        """Start without batches; ``drawer`` is the index of the noise stream, usually a silo's."""
        if not isinstance(mechanism, SecureSum):
            raise InputError(f"mechanism must be a SecureSum, got {type(mechanism).__name__}")
        self.mechanism = mechanism
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0
        self._drawer = drawer
        self._leaves = np.zeros((mechanism.releases, mechanism.size), dtype=np.uint64)
        #: The last drawn noise (s,), after the release for which it was drawn.
        self._drawn: tuple[int, np.ndarray] = (0, self._leaves[0])

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the statistic (s,) of a clipped data point, in fixed point."""
        statistic = np.zeros(self.mechanism.size)
        linalg.accumulate(statistic, x, y)
        return exact.quantise(statistic, self.mechanism.unit)

    def _row(self, values: object, silos: int) -> np.ndarray:
        """Return the next release's row plus the noise of ``silos`` silos, modulo 2^64, (s,).

        The class defines the row; the result of one silo is its message without masks. ``values``
        (s,) are the sums of the next batch. The noise is cached, so a second try after a failure
        uses the same noise.
        """
        mechanism, release = self.mechanism, self.release + 1
        if release > mechanism.releases:
            raise InputError(
                f"the mechanism has {mechanism.releases} releases, got a batch for one more"
            )
        sums = array("values", values, shape=(mechanism.size,))
        if is_exact(self.noise):
            exact.check_fixed(sums, mechanism.unit, "the sums of a batch")
        self._leaves[release - 1] = mechanism.encode(sums)
        if self._drawn[0] != release:
            bias, off_diagonal, diagonal = (silos * n for n in mechanism.trials)
            trials = bias, off_diagonal, diagonal
            drawn = np.array(self.noise.coins(self._drawer, release, mechanism.dimension, trials))
            if mechanism.centred is not None:
                drawn[-1] = 0  # the last entry is a public count, which gets no noise
            self._drawn = release, drawn
        result: np.ndarray = mechanism.row(self._leaves[:release]) + self._drawn[1]
        return result


class Encoder(_Rows):
    """One silo of a secure sum: turns the sums of each batch into a masked message.

    Before the first message, collect the ``session`` of every encoder and pass all sessions to the
    ``meet`` of each encoder. Then an encoder that restarts with the same keys has different masks.
    If `message` fails, the state is unchanged, and a second try uses the same noise.

    Parameters
    ----------
    mechanism : SecureSum
        The mechanism, the same at all parties.
    silo : int
        Index of the silo, from 0.
    keys : mapping of int to bytes
        A key shared with each other silo, see `Masks`; empty for a single silo.
    noise : NoiseSource, optional
        Source of the silo's share of the noise. Default: exact noise from the operating system;
        pass ``SeededNoise`` only to simulate.

    Raises
    ------
    InputError
        If ``silo`` is out of range, or ``keys`` does not hold one key for every other silo.

    Notes
    -----
    Guarantee: the guarantee of the mechanism, for the users of this silo.
    """

    def __init__(
        self,
        mechanism: SecureSum,
        silo: int,
        keys: Mapping[int, bytes],
        noise: NoiseSource | None = None,
    ) -> None:
        """Check that there is a key for each other silo; start without batches."""
        super().__init__(mechanism, noise, silo)
        self.silo = integer("silo", silo, at_least=0, at_most=mechanism.silos - 1)
        self._masks = Masks(silo, keys)
        other_silos = set(range(mechanism.silos)) - {silo}
        if self._masks.others != other_silos:
            raise InputError(
                f"keys must hold one for each of the {len(other_silos)} other silos, "
                f"got silos {sorted(self._masks.others)}"
            )

    @property
    def session(self) -> bytes:
        """Return this object's 32 random bytes, which the other silos need; they are not secret."""
        return self._masks.session

    @once
    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """Store the sessions (public random bytes) of the other silos, before the first message.

        Raises
        ------
        InputError
            As in `Masks.meet`. Also if a message was already made without sessions.
        """
        if self.release and not self._masks.met:
            raise InputError("sessions must be exchanged before the first message")
        self._masks.meet(sessions)

    @once
    def message(self, values: object) -> Encoded:
        """Return the masked message for the next batch, whose sums are ``values`` (s,).

        The sums must be in fixed point, as sums of results of `point` are. If the noise comes from
        the operating system, other sums are refused; if the noise is seeded, they are rounded.
        """
        encoded = self.encoded(values)
        self.release = encoded.release
        return encoded

    def encoded(self, values: object) -> Encoded:
        """Return the result of `message`, without advancing to the next release."""
        release = self.release + 1
        masked_row = self._row(values, 1) + self._masks.at(release, self.mechanism.size)
        if release == 1 and is_exact(self.noise) and not self._masks.met:
            warnings.warn(_NO_SESSIONS_WARNING.format(self.silo), UserWarning, stacklevel=2)
        return Encoded(release, self.mechanism.dimension, masked_row, self.silo)


class Sharer(_Rows):
    """One silo of a secure sum that splits its rows into secret shares instead of masking them.

    The result of `row` contains only this silo's share of the noise, so no other party may see the
    row. The caller must split it into shares at once, for example uniform shares for two parties.

    Parameters
    ----------
    mechanism : SecureSum
        The mechanism, the same at all parties.
    silo : int
        Index of the silo, from 0.
    noise : NoiseSource
        Source of the silo's share of the noise.
    """

    def __init__(self, mechanism: SecureSum, silo: int, noise: NoiseSource) -> None:
        """Start without batches."""
        super().__init__(mechanism, noise, silo)

    @once
    def row(self, leaves: object) -> np.ndarray:
        """Return the noisy row (s,) uint64 of release k, from the sums (k, s) of batches 1..k."""
        sums = array("leaves", leaves, shape=(None, self.mechanism.size))
        self.release = integer("leaves", len(sums), at_least=1) - 1
        self._leaves[: self.release] = self.mechanism.encode(sums[:-1])
        return self._row(sums[-1], 1)


class Aggregate(_Rows):
    """All silos of a secure sum at once, for simulations: draws the sum of their messages.

    The noise of all silos is one draw from the noise stream of index M. Silos have the streams of
    indices 0..M-1.
    """

    def __init__(self, mechanism: SecureSum, noise: NoiseSource) -> None:
        """Start without batches; use the noise stream of index M."""
        super().__init__(mechanism, noise, getattr(mechanism, "silos", 0))

    @once
    def total(self, values: object) -> np.ndarray:
        """Return the sum (s,) uint64 of all silos' messages for the next batch.

        ``values`` (s,) are the sums of the next batch over all silos.
        """
        row = self._row(values, self.mechanism.silos)
        self.release += 1
        return row


class SecureRandomizer:
    """The randomizer R of one silo of a secure sum: makes a masked message from each batch.

    If `report` fails, the state is unchanged and the call may be repeated.
    """

    def __init__(
        self, plan: Plan, silo: int, noise: NoiseSource, keys: Mapping[int, bytes]
    ) -> None:
        """Start with an empty batch; ``keys`` are the keys for the `Encoder`."""
        self._encoder = Encoder(secure_of(plan), silo, keys, noise)
        self._batch = np.zeros(plan.statistic_size)

    @property
    def release(self) -> int:
        """Return the number of messages made so far."""
        return self._encoder.release

    @property
    def encoder(self) -> Encoder:
        """Return the `Encoder` that makes the messages."""
        return self._encoder

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point, clipped features x (d,) and reward y, to the batch."""
        aggregation.add(self._batch, self._encoder.point(x, y))

    def report(self) -> Encoded:
        """Return the masked message for the data points since the last report; clear the batch."""
        encoded, batch = self._encoder.encoded(self._batch), np.zeros_like(self._batch)
        # All results are computed; the assignments below cannot fail.
        self._encoder.release, self._batch = encoded.release, batch
        return encoded


def secure_of(plan: Plan) -> SecureSum:
    """Return ``plan.secure``, the mechanism of a plan with a secure sum."""
    assert plan.secure is not None
    return plan.secure


def masked(plan: Plan, noise: NoiseSource) -> bool:
    """Return True if the silos of a plan send masked messages.

    Silos of a secure sum do so, except in simulations with "aggregate" messages: there silos send
    plain sums, and the simulated server adds the noise of all silos.
    """
    simulated = isinstance(noise, SeededNoise) and not plan.individual
    return plan.secure is not None and not simulated


# ---- the server ----------------------------------------------------------------------------------


class Decoder(Once):
    """The server of a secure sum: adds up the silos' messages and computes noisy prefix sums.

    From the messages of honest silos, the server learns only their sum in each release.
    """

    def __init__(self, mechanism: SecureSum) -> None:
        """Start before the first release."""
        if not isinstance(mechanism, SecureSum):
            raise InputError(f"mechanism must be a SecureSum, got {type(mechanism).__name__}")
        self.mechanism = mechanism
        self.release = 0
        self._weights = mechanism.prefix_weights
        self._sums = np.zeros((mechanism.releases, mechanism.size))

    @once
    def combine(self, messages: Sequence[Encoded]) -> np.ndarray:
        """Make the next release from the silos' messages, and return the noisy sums (s,).

        The sums are over all silos and over all batches up to this release.

        Raises InputError, and leaves the state unchanged, unless ``messages`` holds one message of
        each silo for that release.
        """
        return self.add(self.total(messages))

    def total(self, messages: Sequence[Encoded]) -> np.ndarray:
        """Return the sum (s,) uint64 of one message of each silo for the next release."""
        mechanism, release = self.mechanism, self.release + 1
        for message in messages:
            if not isinstance(message, Encoded):
                raise InputError(f"messages must be Encoded values, got {type(message).__name__}")
            if (message.release, message.dimension) != (release, mechanism.dimension):
                raise InputError(
                    f"message of silo {message.silo} must be of release {release} and dimension "
                    f"{mechanism.dimension}, got {message.release} and {message.dimension}"
                )
        silos = sorted(message.silo for message in messages)
        if silos != list(range(mechanism.silos)):
            raise InputError(
                f"messages must hold one of each of the {mechanism.silos} silos, got silos {silos}"
            )
        total = np.zeros(mechanism.size, dtype=np.uint64)
        for message in messages:
            total += message.values
        return total

    @once
    def add(self, total: object) -> np.ndarray:
        """Make the next release from ``total``, made by `total`; return the noisy sums (s,)."""
        prefix = self.prefix(total)
        self.release += 1
        return prefix

    def prefix(self, total: object) -> np.ndarray:
        """Return the noisy sums (s,) of the next release, as `add` does, without making it."""
        mechanism, release = self.mechanism, self.release + 1
        if release > mechanism.releases:
            raise InputError(f"the mechanism has {mechanism.releases} releases, got one more")
        if not isinstance(total, np.ndarray) or total.dtype != np.uint64:
            raise InputError("the sum of messages must be an array of uint64")
        if total.shape != (mechanism.size,):
            raise InputError(
                f"the sum of messages must have shape ({mechanism.size},), got {total.shape}"
            )
        self._sums[release - 1] = mechanism.value(total)
        prefix = np.zeros(mechanism.size)
        # A loop instead of a matrix product, because the loop fixes the order of additions and
        # therefore every bit of the result.
        for weight, row in zip(self._weights[release - 1], self._sums[:release], strict=False):
            prefix += weight * row
        return prefix
