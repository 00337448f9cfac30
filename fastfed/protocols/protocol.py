"""Privacy protocols by name, and the messages that their parties send.

A protocol says what silos or users send, what the server does with it, and who is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fastfed._validate import InputError, frozen

# Numbers of the randomizers and analyzers; src/ff_run.h has the same.
SEND_BATCH, SEND_NODE, SEND_NOISY_NODE, SEND_NOISY_PREFIX, SEND_BITS, SEND_NOISY_SUM = range(6)
SEND_NOISY_BATCH = 6
ADD, TREE, NOISY_TREE, REPLACE, NOISY_ADD = range(5)


@dataclass(frozen=True)
class Protocol:
    """A protocol P = (R, S, A) of randomizer, shuffler and analyzer (zhou-chowdhury-2024).

    The shuffler S is the identity unless ``shuffled`` is true.

    Parameters
    ----------
    id : str
        Value of the key ``protocol`` in specs.
    summary : str
        One line for listings.
    model : str
        Who is protected against whom, as the certificate states it.
    randomizer : int
        R, what a sender sends: SEND_BATCH (the raw sums of a batch), SEND_NODE (the raw sums of a
        tree node), SEND_NOISY_NODE (a node with noise), SEND_NOISY_PREFIX (a prefix sum of noisy
        nodes), SEND_BITS (data points as noisy bits), SEND_NOISY_SUM (a noisy prefix sum without a
        tree) or SEND_NOISY_BATCH (the sums of a batch with noise).
    analyzer : int
        A, what the server does with the sum of the messages: ADD (add it to the total), TREE (take
        it as a tree node), NOISY_TREE (add noise and take it as a tree node), REPLACE (replace the
        total by it) or NOISY_ADD (add it to the total, and release the total with noise).
    noise_by : {"silos", "server", "users", "none"}
        Who adds the noise.
    source : str
        The paper (authors and year) and its algorithm.
    shuffled : bool, default False
        True if the server receives the messages in random order, without the senders' names, or
        only their total.
    senders : {"silos", "users", "agent"}, default "silos"
        "silos": each silo sends after each batch. "users": each user sends one message about one
        data point. "agent": nothing is sent, because the single agent sees its users' data.
    masked : bool, default False
        True if silos mask their sums, so that the server learns only the sum over all silos.
    """

    id: str
    summary: str
    model: str
    randomizer: int
    analyzer: int
    noise_by: str
    source: str
    shuffled: bool = False
    senders: str = "silos"
    masked: bool = False

    @property
    def flat(self) -> bool:
        """True if the server adds up the batches one by one, without a tree."""
        return self.analyzer == ADD

    @property
    def tree(self) -> bool:
        """True if p-sums (sums under the nodes of a binary tree) are stored."""
        return self.randomizer != SEND_BATCH and not self.flat

    @property
    def bits(self) -> bool:
        """True if data points are sent as bits, that is, in a vector sum."""
        return self.randomizer == SEND_BITS


PROTOCOLS = {
    p.id: p
    for p in (
        Protocol(
            "none",
            "plain sums, no privacy",
            "none",
            SEND_BATCH,
            ADD,
            "none",
            "zhou-chowdhury-2024, Algorithm 1 with an exact sum",
        ),
        Protocol(
            "silo-ldp",
            "each silo adds noise to the p-sums it sends",
            "silo-level local: server and other silos are not trusted",
            SEND_NOISY_NODE,
            TREE,
            "silos",
            "zhou-chowdhury-2024, Algorithm 2 and Theorem 5.1",
        ),
        Protocol(
            "silo-ldp-prefix",
            "each silo sends noisy prefix sums, node noise reused",
            "silo-level local: server and other silos are not trusted",
            SEND_NOISY_PREFIX,
            REPLACE,
            "silos",
            "zhou-chowdhury-2024, Algorithm 4",
        ),
        Protocol(
            "shuffle-amplified",
            "silos add noise to their p-sums, a shuffler mixes the messages of all silos",
            "shuffle: the shuffler is trusted, the server is not",
            SEND_NOISY_NODE,
            TREE,
            "silos",
            "zhou-chowdhury-2024, Algorithm 2 and Theorem 5.3",
            shuffled=True,
        ),
        Protocol(
            "shuffle-vector",
            "data points travel as noisy bits, a shuffler mixes the bits of all silos",
            "shuffle: the shuffler and the counted users' noise bits are trusted, "
            "the server is not",
            SEND_BITS,
            TREE,
            "users",
            "zhou-chowdhury-2024, Algorithms 5-7 and Theorem 5.5",
            shuffled=True,
        ),
        Protocol(
            "central",
            "a trusted server adds the noise once",
            "central: the server is trusted, other silos and users are not",
            SEND_NODE,
            NOISY_TREE,
            "server",
            "zhou-chowdhury-2024, Table 1 (after Shariff and Sheffet 2018)",
        ),
        Protocol(
            "secure-sum",
            "each silo adds a share of the noise, masks hide all but the sum over silos",
            "secure sum: the server and the silos counted as colluders, honest but curious, are "
            "not trusted",
            # How a simulation runs it: plain sums, and the noise of all shares drawn once.
            SEND_BATCH,
            NOISY_ADD,
            "silos",
            "zhou-chowdhury-2024, Algorithm 1 with sums under masks (Bonawitz et al. 2017)",
            masked=True,
        ),
        Protocol(
            "user-bit",
            "each user sends one flipped bit of the reward, contexts are public",
            "local: nobody is trusted",
            # Silos add up the features times the bits' values, without noise.
            SEND_BATCH,
            ADD,
            "users",
            "zhou-chowdhury-2024, Algorithm 1 on bits (Warner 1965)",
        ),
    )
}

_AGENT_SOURCE = "chowdhury-zhou-2022, Algorithm 1"

#: Protocols of systems with a single agent instead of silos.
AGENT_PROTOCOLS = {
    p.id: p
    for p in (
        Protocol(
            "agent",
            "the agent sees everything, no privacy",
            "none",
            SEND_BATCH,
            ADD,
            "none",
            _AGENT_SOURCE,
            senders="agent",
        ),
        Protocol(
            "agent-central",
            "a trusted agent adds noise to its sums",
            "joint: the agent is trusted, other users together are not",
            SEND_NODE,
            NOISY_TREE,
            "server",
            "chowdhury-zhou-2022, Appendix F (after Shariff and Sheffet 2018)",
            senders="agent",
        ),
        Protocol(
            "user-ldp",
            "each user adds noise to their data point",
            "local: nobody is trusted",
            SEND_NOISY_BATCH,
            ADD,
            "users",
            "chowdhury-zhou-2022, Proposition F.1 (after Zheng et al. 2020)",
            senders="users",
        ),
        Protocol(
            "user-ldp-vector",
            "each user sends their data point as noisy bits",
            "local: nobody is trusted",
            SEND_BITS,
            ADD,
            "users",
            "chowdhury-zhou-2022, Corollary C.3",
            senders="users",
        ),
        Protocol(
            "user-shuffle-amplified",
            "each user adds noise to their data point, a shuffler mixes the users of a batch",
            "shuffle: the shuffler is trusted, the agent is not",
            SEND_NOISY_BATCH,
            ADD,
            "users",
            "chowdhury-zhou-2022, Algorithms 2-4",
            shuffled=True,
            senders="users",
        ),
        Protocol(
            "user-shuffle-vector",
            "each user sends their data point as noisy bits, a shuffler mixes those of a batch",
            "shuffle: the shuffler and the counted users' noise bits are trusted, the agent is not",
            SEND_BITS,
            ADD,
            "users",
            "chowdhury-zhou-2022, Algorithms 5-7",
            shuffled=True,
            senders="users",
        ),
    )
}


def counting_ones(protocol: Protocol) -> Protocol:
    """Return the protocol "user-bit" with a shuffler that forwards only numbers of ones.

    The shuffler counts the ones among the bits of each batch.
    """
    return replace(
        protocol,
        summary="each user sends one flipped bit of the reward, a shuffler counts the ones",
        model="shuffle: the shuffler is trusted, the server and the silos are not",
        source="zhou-chowdhury-2024, Algorithm 1 on counts of bits (Warner 1965)",
        shuffled=True,
    )


#: The release type of a shuffle protocol without a tree: each batch is released once, and the
#: server adds the batches up.
FLAT = "flat"


def released_as(protocol: Protocol, release: str) -> Protocol:
    """Return the protocol for a release type, such as "toeplitz" or `FLAT`.

    For types other than "tree" and `FLAT`, silos or the server release noisy prefix sums instead of
    noisy tree nodes.
    """
    if release == "tree" or protocol.masked:
        return protocol
    if release == FLAT:
        source = "chowdhury-zhou-2022, Algorithms 5-7, over all silos"
        return replace(protocol, analyzer=ADD, source=source)
    paper, _, _ = protocol.source.partition(",")
    source = f"{paper}, Algorithm 1 with another continual release"
    if protocol.noise_by == "server":
        return replace(protocol, randomizer=SEND_BATCH, analyzer=NOISY_ADD, source=source)
    return replace(protocol, randomizer=SEND_NOISY_SUM, analyzer=REPLACE, source=source)


def drawn_once(protocol: Protocol) -> Protocol:
    """Return the protocol of a simulation that draws the Gaussian noise of all silos at once.

    In such a simulation silos send their sums without noise, and the server adds noise to the
    total. Raises InputError if the silos of ``protocol`` do not add Gaussian noise to their sums.
    """
    if protocol.noise_by == "silos" and not protocol.masked:
        if protocol.randomizer == SEND_NOISY_SUM:
            return replace(protocol, randomizer=SEND_BATCH, analyzer=NOISY_ADD, noise_by="server")
        if protocol.randomizer in (SEND_NOISY_NODE, SEND_NOISY_PREFIX):
            return replace(protocol, randomizer=SEND_NODE, analyzer=NOISY_TREE, noise_by="server")
    raise InputError(
        "drawn_once needs a protocol whose silos add Gaussian noise to their own sums, got "
        f'"{protocol.id}"'
    )


#: Protocols that allow local rounds: under them a silo is trusted with its users' data.
SHAREABLE = ("none", "silo-ldp", "silo-ldp-prefix", "central", "secure-sum")


def keeping_own_rounds(protocol: Protocol) -> Protocol:
    """Return the protocol for plans with local rounds, whose data never leave a silo.

    Its trust model says in addition that a user trusts their own silo and its users. Raises
    InputError for a protocol under which a silo is not trusted with its users' data.
    """
    if protocol.noise_by == "none":
        return protocol
    if protocol.id not in SHAREABLE:
        raise InputError(
            f"share needs protocol {', '.join(SHAREABLE[1:-1])} or {SHAREABLE[-1]}, where a silo "
            f'is trusted with its own data, got "{protocol.id}"'
        )
    model = protocol.model.replace(
        "other silos and users are not", "other silos and their users are not"
    )
    return replace(protocol, model=f"{model}; the own silo and its users are")


def under_masks(protocol: Protocol, silos: int, colluders: int) -> Protocol:
    """Return the secure-sum protocol with a trust model that states the number of colluders."""
    model = "secure sum: the server, honest but curious, is not trusted"
    if colluders:
        colluders_text = f"{colluders} of the {silos} silos"
        model = f"secure sum: the server and {colluders_text}, honest but curious, are not trusted"
    return replace(protocol, model=model)


# ---- Messages between silo, shuffler and server: immutable dataclasses ---------------------------


def statistic_size(dimension: int) -> int:
    """Return s = d + d (d + 1) / 2, the number of entries in one statistic.

    The bias sum has d entries, the packed triangle of the covariance sum d (d + 1) / 2.
    """
    return dimension + dimension * (dimension + 1) // 2


def dimension_of(size: int) -> int:
    """Return the dimension d of a statistic with ``size`` entries."""
    return (math.isqrt(9 + 8 * size) - 3) // 2


@dataclass(frozen=True)
class Statistic:
    """Bias and covariance sums of one sender at one synchronisation, with or without noise.

    Parameters
    ----------
    release : int
        Number of the synchronisation, from 1.
    dimension : int
        d, the length of a feature vector.
    values : ndarray, shape (s,), s = d + d (d + 1) / 2
        The bias sum (d,), then the packed lower triangle of the covariance sum, row by row: entry
        (i, j <= i) at d + i (i + 1) / 2 + j. Stored as a read-only copy in float64.

    Raises
    ------
    InputError
        If ``values`` is not an array of shape (s,).
    """

    release: int
    dimension: int
    values: np.ndarray

    def __post_init__(self) -> None:
        """Check the shape of ``values``, and store a read-only copy."""
        size = statistic_size(self.dimension)
        if not isinstance(self.values, np.ndarray):
            raise InputError(f"values must be an array, got {type(self.values).__name__}")
        if self.values.shape != (size,):
            raise InputError(f"values must have shape ({size},), got {self.values.shape}")
        object.__setattr__(self, "values", frozen(self.values))

    @property
    def bias(self) -> np.ndarray:
        """The sum of x y, (d,)."""
        return self.values[: self.dimension]

    @property
    def covariance(self) -> np.ndarray:
        """The sum of x x', (d, d), symmetric."""
        d = self.dimension
        matrix = np.zeros((d, d))
        matrix[np.tril_indices(d)] = self.values[d:]
        return matrix + np.tril(matrix, -1).T

    @property
    def nbytes(self) -> int:
        """The number of bytes of ``values``: 8 for each of its s entries."""
        return self.values.nbytes


@dataclass(frozen=True)
class Report(Statistic):
    """Message of one silo or user at one synchronisation: sums of x y and x x'.

    Parameters
    ----------
    release, dimension, values
        See `Statistic`. ``values`` are sums of x y and x x' in the units of features and rewards.
        The protocol decides whether they cover a batch, a tree node or all batches so far, and
        whether they contain the sender's noise.
    silo : int, default 0
        Index of the silo, from 0. For a user, the index within the batch.

    Raises
    ------
    InputError
        If ``values`` is not an array of shape (s,).
    """

    silo: int = 0


@dataclass(frozen=True)
class Counts(Report):
    """Message with the number of ones among a silo's bits in each entry, in a vector sum.

    The mean number of ones for data points of zero is subtracted. A silo sends these counts instead
    of bits if the shuffler adds up counts. The noise of one silo does not suffice to protect its
    users, so the server must see only the sum of all silos' counts.
    """


@dataclass(frozen=True)
class Shuffled(Statistic):
    """Message from the shuffler to the server.

    It is one report without its sender, or the sum of all silos' counts. That sum has the same
    information as the permuted bits.
    """


@dataclass(frozen=True)
class Bits:
    """The bits of one silo at one synchronisation, one row for each entry of the statistic.

    Parameters
    ----------
    release : int
        Number of the synchronisation, from 1.
    dimension : int
        d, the length of a feature vector.
    bits : ndarray of uint8, shape (s, n (2 g + b)), s = d + d (d + 1) / 2
        Messages of the sender's n data points, 2 g + b bits each (zhou-chowdhury-2024, Algorithm
        7). The row index is the label that each bit is sent with. Stored as a read-only copy.
    silo : int, default 0
        Index of the silo, from 0. For a user, the index within the batch.

    Raises
    ------
    InputError
        If ``bits`` is not a uint8 array with s rows whose entries are 0 or 1.
    """

    release: int
    dimension: int
    bits: np.ndarray
    silo: int = 0

    def __post_init__(self) -> None:
        """Check shape, type and values of ``bits``, and store a read-only copy."""
        row_count = statistic_size(self.dimension)
        if not isinstance(self.bits, np.ndarray):
            raise InputError(f"bits must be a uint8 array, got {type(self.bits).__name__}")
        if self.bits.ndim != 2 or self.bits.shape[0] != row_count or self.bits.dtype != np.uint8:
            raise InputError(
                f"bits must be a uint8 array of {row_count} rows, "
                f"got {self.bits.dtype} of shape {self.bits.shape}"
            )
        if self.bits.size and self.bits.max() > 1:
            raise InputError(f"bits must be 0 or 1, got {self.bits.max()}")
        copy = self.bits.copy()
        copy.flags.writeable = False
        object.__setattr__(self, "bits", copy)


@dataclass(frozen=True)
class ShuffledBits(Bits):
    """The bits of all silos, permuted within each entry of the statistic (label).

    The field ``silo`` is not used.
    """


@dataclass(frozen=True)
class Broadcast(Statistic):
    """Message of the server to every silo: the synchronised statistics.

    Parameters
    ----------
    release, dimension, values
        See `Statistic`. ``values`` are noisy sums of x y and x x' over all silos and all releases
        so far, in the units of features and rewards.

    Raises
    ------
    InputError
        If ``values`` is not an array of shape (s,).
    """
