"""Secure sums between silos and a server: masked integers modulo 2^64, and their decoding.

What is released, and what that costs, is `fastfed.privacy.mechanisms.secure_sum`; here are the
parties. `Encoder` makes one silo's messages (`SecureRandomizer`: of its records), `Decoder` the
prefix sums from the messages of all. `Aggregate` stands for all silos at once where nobody looks at
single messages: it draws the sum, whose noise is one binomial and whose masks have cancelled.
Proof: docs/secure-sum.md.
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

#: Bytes of a key that two silos share, and of a session.
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
        In the order of a `Statistic`. Alone they are uniform to whoever knows none of the masks;
        added up over all silos they are the noisy sum of the release. Kept as a read-only copy.
    silo : int, default 0
        Number of the silo, from 0.

    Raises
    ------
    InputError
        For values of another type or shape.
    """

    release: int
    dimension: int
    values: np.ndarray
    silo: int = 0

    def __post_init__(self) -> None:
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
        """Bytes on a wire: a word of 64 bits for each entry."""
        return self.values.nbytes


# ---- masks ---------------------------------------------------------------------------------------


class Masks:
    """One silo's masks: of every other silo one that the two share, added by one, subtracted by
    the other.

    A mask is SHAKE-256 of the shared key, the release, and the sessions of both silos, read as
    words of 64 bits. Every object has a session of its own, so after `meet` no object ever has the
    masks of another one, whatever its keys were used for before. Without `meet` a mask is of key
    and release alone: such keys are for one federation and one object only, since two sums under
    one key and release differ by their data and noise alone. Keys are agreed by means that the
    server does not see through, such as X25519.

    Parameters
    ----------
    silo : int
        The own index.
    keys : mapping of int to bytes
        A key of 32 bytes for every other silo, known to that silo alone.

    Attributes
    ----------
    session : bytes
        32 random bytes of this object; not secret.
    met : bool
        True after `meet`.

    Raises
    ------
    InputError
        For keys of another length or of the own silo.

    Notes
    -----
    Guarantee: to whoever does not know the key, the masks of a pair that has met are independent of
    all masks that other objects made of it, as far as SHAKE-256 cannot be told from a random
    function. A session that the server has replaced leads to masks that do not cancel, and to none
    that was used before, as the own session is in each.
    """

    def __init__(self, silo: int, keys: Mapping[int, bytes]) -> None:
        self.silo = integer("silo", silo, at_least=0)
        for other, key in keys.items():
            if integer("silo", other, at_least=0) == silo:
                raise InputError(f"keys must be of other silos, got one of silo {silo} itself")
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise InputError(f"the key with silo {other} must be {KEY_BYTES} bytes")
        if len(set(keys.values())) < len(keys):
            raise InputError("keys must differ from one another, got one key for two silos")
        self._keys = dict(keys)
        self.session = secrets.token_bytes(SESSION_BYTES)
        self._sessions: dict[int, bytes] = {}

    @property
    def others(self) -> set[int]:
        """The silos that share a key with this one."""
        return set(self._keys)

    @property
    def met(self) -> bool:
        """True once the sessions of all other silos are known."""
        return len(self._sessions) == len(self._keys)

    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """Take the sessions of all other silos; the same ones again change nothing.

        Parameters
        ----------
        sessions : mapping of int to bytes
            By silo; the own one may be among them.

        Raises
        ------
        InputError
            Unless there is one of 32 bytes for every other silo, and for others than before.
        """
        found = {other: session for other, session in sessions.items() if other != self.silo}
        if set(found) != self.others:
            raise InputError(
                f"sessions must hold one for each of the {len(self._keys)} other silos, got silos "
                f"{sorted(found)}"
            )
        if sessions.get(self.silo, self.session) != self.session:
            raise InputError(f"the session of silo {self.silo} itself is another one")
        for other, session in found.items():
            if not isinstance(session, bytes) or len(session) != SESSION_BYTES:
                raise InputError(f"the session of silo {other} must be {SESSION_BYTES} bytes")
        if self._sessions and found != self._sessions:
            raise InputError(f"silo {self.silo} has met other sessions; start all silos again")
        self._sessions = found

    def at(self, release: int, size: int) -> np.ndarray:
        """Sum of the masks of one release, modulo 2^64, (size,) of uint64."""
        total = np.zeros(size, dtype=np.uint64)
        label = release.to_bytes(8, "big")
        for other, key in self._keys.items():
            both = self._both(other) if self._sessions else b""
            # Key, release and sessions have one length each: no two inputs are spelled alike.
            stream = hashlib.shake_256(key + label + both).digest(8 * size)
            mask = np.frombuffer(stream, dtype="<u8")
            if other > self.silo:
                total += mask
            else:
                total -= mask
        return total

    def _both(self, other: int) -> bytes:
        """The sessions of a pair, that of the lower index first."""
        pair = (self.session, self._sessions[other])
        return b"".join(pair if self.silo < other else pair[::-1])


def simulated_keys(seed: int, silo: int, silos: int, replicate: int = 0) -> dict[int, bytes]:
    """Keys of one silo with every other, for simulations: who knows the seed knows them all."""
    seed = check_seed(seed)
    silos = integer("silos", silos, at_least=1)
    silo = integer("silo", silo, at_least=0, at_most=silos - 1)
    found = {}
    for other in range(silos):
        if other != silo:
            pair = seed, integer("replicate", replicate, at_least=0), *sorted((silo, other))
            text = b"".join(number.to_bytes(8, "big") for number in pair)
            found[other] = hashlib.shake_256(b"simulated keys" + text).digest(KEY_BYTES)
    return found


# ---- silos ---------------------------------------------------------------------------------------

_UNMET = (
    "the masks of silo {} are of its keys alone: never use these keys again, or exchange the "
    "silos' `session` and call `meet` before the first message"
)


class _Rows(Once):
    """Leaf sums of one silo, or of all, and the rows that they lead to; state of one sender."""

    def __init__(self, mechanism: SecureSum, noise: NoiseSource | None, drawer: int) -> None:
        if not isinstance(mechanism, SecureSum):
            raise InputError(f"mechanism must be a SecureSum, got {type(mechanism).__name__}")
        self.mechanism = mechanism
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0
        self._drawer = drawer
        self._leaves = np.zeros((mechanism.releases, mechanism.size), dtype=np.uint64)
        self._drawn: tuple[int, np.ndarray] = (0, self._leaves[0])

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point within the bounds, (s,), in fixed point."""
        made = np.zeros(self.mechanism.size)
        linalg.accumulate(made, x, y)
        return exact.quantise(made, self.mechanism.unit)

    def _row(self, values: object, silos: int) -> np.ndarray:
        """The next row plus the noise of so many shares, modulo 2^64, (s,); leaves no trace but
        the draw, which is kept for another try, and the leaf."""
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
            bias, off, on = (silos * n for n in mechanism.trials)
            trials = bias, off, on
            coins = np.array(self.noise.coins(self._drawer, release, mechanism.dimension, trials))
            if mechanism.centred is not None:
                coins[-1] = 0  # a public count: it needs no noise, and gets none
            self._drawn = release, coins
        result: np.ndarray = mechanism.row(self._leaves[:release]) + self._drawn[1]
        return result


class Encoder(_Rows):
    """One silo of a secure sum: turns batch sums into masked messages, one for each release.

    A bare ``Encoder(mechanism, silo, keys)`` draws its share of the noise from the operating
    system, exactly; pass ``SeededNoise`` only to simulate. A message that fails leaves all as it
    was, and is made again with the same noise. Exchange the encoders' ``session`` and give all of
    them to each ``meet`` before the first message: one that is started again with the same keys
    then has other masks.

    Parameters
    ----------
    mechanism : SecureSum
        What is executed, the same at all parties.
    silo : int
        The own index, from 0.
    keys : mapping of int to bytes
        A key shared with each other silo, see `Masks`; empty for a single silo.
    noise : NoiseSource, optional
        Where the share of the noise comes from.

    Raises
    ------
    InputError
        For a silo that the mechanism does not know, and unless every other silo has a key.

    Notes
    -----
    Guarantee: that of the mechanism, for the users of this silo.
    """

    def __init__(
        self,
        mechanism: SecureSum,
        silo: int,
        keys: Mapping[int, bytes],
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(mechanism, noise, silo)
        self.silo = integer("silo", silo, at_least=0, at_most=mechanism.silos - 1)
        self._masks = Masks(silo, keys)
        others = set(range(mechanism.silos)) - {silo}
        if self._masks.others != others:
            raise InputError(
                f"keys must hold one for each of the {len(others)} other silos, "
                f"got silos {sorted(self._masks.others)}"
            )

    @property
    def session(self) -> bytes:
        """32 random bytes of this object, which the other silos need; not secret."""
        return self._masks.session

    @once
    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """Take the sessions of the other silos before the first message, see `Masks.meet`.

        Raises
        ------
        InputError
            As `Masks.meet`, and after the first message.
        """
        if self.release and not self._masks.met:
            raise InputError("sessions must be exchanged before the first message")
        self._masks.meet(sessions)

    @once
    def message(self, values: object) -> Encoded:
        """The message after the next batch, of which ``values`` (s,) are the sums.

        In fixed point, as sums of `point` are: with noise of the operating system other sums are
        refused; with seeded noise they are rounded.
        """
        made = self.made(values)
        self.release = made.release
        return made

    def made(self, values: object) -> Encoded:
        """The message of `message`, without a step to the next release."""
        release = self.release + 1
        row = self._row(values, 1) + self._masks.at(release, self.mechanism.size)
        if release == 1 and is_exact(self.noise) and not self._masks.met:
            warnings.warn(_UNMET.format(self.silo), UserWarning, stacklevel=2)
        return Encoded(release, self.mechanism.dimension, row, self.silo)


class Sharer(_Rows):
    """One silo of a secure sum whose rows are split into shares, in place of masks.

    `row` is what no single party may see: the silo's sums with one share of the noise. Whoever
    calls it hides it at once, such as under a uniform share for each of two parties.

    Parameters
    ----------
    mechanism : SecureSum
        What is executed, the same at all parties.
    silo : int
        The own index, from 0.
    noise : NoiseSource
        Where the share of the noise comes from.
    """

    def __init__(self, mechanism: SecureSum, silo: int, noise: NoiseSource) -> None:
        super().__init__(mechanism, noise, silo)

    @once
    def row(self, leaves: object) -> np.ndarray:
        """The row of release k from the sums (k, s) of batches 1..k, (s,) of uint64."""
        sums = array("leaves", leaves, shape=(None, self.mechanism.size))
        self.release = integer("leaves", len(sums), at_least=1) - 1
        self._leaves[: self.release] = self.mechanism.encode(sums[:-1])
        return self._row(sums[-1], 1)


class Aggregate(_Rows):
    """All silos of a secure sum at once, for simulations: draws the sum of their messages.

    Its noise is that of one party of the index M, one past the last silo's.
    """

    def __init__(self, mechanism: SecureSum, noise: NoiseSource) -> None:
        super().__init__(mechanism, noise, getattr(mechanism, "silos", 0))

    @once
    def total(self, values: object) -> np.ndarray:
        """The sum of all messages after the next batch, (s,) of uint64.

        ``values`` (s,) are the sums of that batch over all silos.
        """
        row = self._row(values, self.mechanism.silos)
        self.release += 1
        return row


class SecureRandomizer:
    """The randomizer R of one silo: records in fixed point, one masked message of each batch.

    A report that fails leaves all as it was.
    """

    def __init__(
        self, plan: Plan, silo: int, noise: NoiseSource, keys: Mapping[int, bytes]
    ) -> None:
        self._encoder = Encoder(secure_of(plan), silo, keys, noise)
        self._batch = np.zeros(plan.statistic_size)

    @property
    def release(self) -> int:
        """Messages made so far."""
        return self._encoder.release

    @property
    def encoder(self) -> Encoder:
        """What makes its messages, and has its masks."""
        return self._encoder

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point to the batch."""
        aggregation.add(self._batch, self._encoder.point(x, y))

    def report(self) -> Encoded:
        """The batch since the last report as a masked message; the batch is then forgotten."""
        made, batch = self._encoder.made(self._batch), np.zeros_like(self._batch)
        # Everything is computed: from here on nothing can fail.
        self._encoder.release, self._batch = made.release, batch
        return made


def secure_of(plan: Plan) -> SecureSum:
    """The plan's secure sum, which must be there."""
    assert plan.secure is not None
    return plan.secure


def masked(plan: Plan, noise: NoiseSource) -> bool:
    """True if silos send masked messages: of a secure sum, whenever they are no simulation's.

    With "aggregate" messages a simulation's silos send plain sums, and its server adds the noise of
    all shares; to anyone else's server plain sums would tell everything.
    """
    simulated = isinstance(noise, SeededNoise) and not plan.individual
    return plan.secure is not None and not simulated


# ---- the server ----------------------------------------------------------------------------------


class Decoder(Once):
    """The server of a secure sum: adds up messages, and makes noisy prefix sums of them.

    All that it learns of the silos is the sum of the messages of each release.
    """

    def __init__(self, mechanism: SecureSum) -> None:
        if not isinstance(mechanism, SecureSum):
            raise InputError(f"mechanism must be a SecureSum, got {type(mechanism).__name__}")
        self.mechanism = mechanism
        self.release = 0
        self._weights = mechanism.prefix_weights
        self._sums = np.zeros((mechanism.releases, mechanism.size))

    @once
    def combine(self, messages: Sequence[Encoded]) -> np.ndarray:
        """The prefix sums (s,) over all silos after the next release, with their noise.

        Raises InputError unless ``messages`` holds one message of each silo for that release;
        nothing has changed then.
        """
        return self.add(self.total(messages))

    def total(self, messages: Sequence[Encoded]) -> np.ndarray:
        """The sum of one message of each silo for the next release, (s,) of uint64."""
        m, release = self.mechanism, self.release + 1
        for message in messages:
            if not isinstance(message, Encoded):
                raise InputError(f"messages must be Encoded values, got {type(message).__name__}")
            if (message.release, message.dimension) != (release, m.dimension):
                raise InputError(
                    f"message of silo {message.silo} must be of release {release} and dimension "
                    f"{m.dimension}, got {message.release} and {message.dimension}"
                )
        silos = sorted(message.silo for message in messages)
        if silos != list(range(m.silos)):
            raise InputError(
                f"messages must hold one of each of the {m.silos} silos, got silos {silos}"
            )
        total = np.zeros(m.size, dtype=np.uint64)
        for message in messages:
            total += message.values
        return total

    @once
    def add(self, total: object) -> np.ndarray:
        """The prefix sums (s,) after the next release, from the sum of its messages (s,)."""
        prefix = self.prefix(total)
        self.release += 1
        return prefix

    def prefix(self, total: object) -> np.ndarray:
        """The prefix sums of `add`, without a step to the next release."""
        m, release = self.mechanism, self.release + 1
        if release > m.releases:
            raise InputError(f"the mechanism has {m.releases} releases, got one more")
        if not isinstance(total, np.ndarray) or total.dtype != np.uint64:
            raise InputError("the sum of messages must be an array of uint64")
        if total.shape != (m.size,):
            raise InputError(f"the sum of messages must have shape ({m.size},), got {total.shape}")
        self._sums[release - 1] = m.value(total)
        prefix = np.zeros(m.size)
        # One after the other: the order of additions is the same everywhere.
        for weight, row in zip(self._weights[release - 1], self._sums[:release], strict=False):
            prefix += weight * row
        return prefix
