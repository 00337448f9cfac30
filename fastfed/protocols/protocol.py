"""The protocols by name: what a silo sends, what the server does, whom it trusts; messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fastfed._validate import InputError, frozen

# The same numbers stand in src/ff_run.h.
SEND_BATCH, SEND_NODE, SEND_NOISY_NODE, SEND_NOISY_PREFIX, SEND_BITS, SEND_NOISY_SUM = range(6)
SEND_NOISY_BATCH = 6
ADD, TREE, NOISY_TREE, REPLACE, NOISY_ADD = range(5)


@dataclass(frozen=True)
class Protocol:
    """A protocol P = (R, S, A) (zhou-chowdhury-2024); S is the identity unless ``shuffled``.

    Parameters
    ----------
    id : str
        The name that a spec's ``protocol`` key uses.
    summary : str
        One line for listings.
    model : str
        Who is protected against whom; stands in the certificate.
    randomizer : int
        R, what a sender sends: SEND_BATCH, SEND_NODE, SEND_NOISY_NODE, SEND_NOISY_PREFIX,
        SEND_BITS, SEND_NOISY_SUM or SEND_NOISY_BATCH.
    analyzer : int
        A, what the server makes of it: ADD, TREE, NOISY_TREE, REPLACE or NOISY_ADD.
    noise_by : {"silos", "server", "users", "none"}
        Whose noise adds up in one released node.
    source : str
        Author-year and algorithm.
    shuffled : bool, default False
        The messages of all senders reach the server in random order, without senders.
    senders : {"silos", "users", "agent"}, default "silos"
        Who sends: silos, after each batch; users, each their own data point in their round; or
        nobody, where the agent sees what its users do.
    masked : bool, default False
        Silos hide their sums under masks, so that the server sees the sum over all alone.
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
        """True if batches are added up one by one, without a tree."""
        return self.analyzer == ADD

    @property
    def tree(self) -> bool:
        """True if p-sums of the binary tree are kept."""
        return self.randomizer != SEND_BATCH and not self.flat

    @property
    def bits(self) -> bool:
        """True if data points travel as bits."""
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
            # What a simulation of all messages together plays: the noise of all shares, once.
            SEND_BATCH,
            NOISY_ADD,
            "silos",
            "zhou-chowdhury-2024, Algorithm 1 with sums under masks (Bonawitz et al. 2017)",
            masked=True,
        ),
    )
}

_ALONE = "chowdhury-zhou-2022, Algorithm 1"

#: Those of a single agent, whose users send for themselves.
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
            _ALONE,
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


#: Release of a shuffle that has no tree: every batch once, added up by the server.
FLAT = "flat"


def released_as(protocol: Protocol, release: str) -> Protocol:
    """The protocol under another release: prefix sums, their noise made of shared parts."""
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
    """The protocol of a simulation that draws the Gaussian noise of all silos' sum once.

    Silos send what they would have added noise to, and the server adds noise to the sum. Raises
    InputError where silos add no such noise.
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


#: Protocols under which a silo may keep rounds to itself: it is trusted with its own data.
SHAREABLE = ("none", "silo-ldp", "silo-ldp-prefix", "central", "secure-sum")


def keeping_own_rounds(protocol: Protocol) -> Protocol:
    """The protocol where rounds are own: its model says that the own silo's users are trusted."""
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
    """The protocol of a secure sum of so many silos: its model says which are not trusted."""
    model = "secure sum: the server, honest but curious, is not trusted"
    if colluders:
        others = f"{colluders} of the {silos} silos"
        model = f"secure sum: the server and {others}, honest but curious, are not trusted"
    return replace(protocol, model=model)


# ---- Messages between silo, shuffler and server: immutable values with named arrays --------------


def statistic_size(dimension: int) -> int:
    """Numbers in one statistic: d of the bias sum, d (d + 1) / 2 of the packed covariance."""
    return dimension + dimension * (dimension + 1) // 2


def dimension_of(size: int) -> int:
    """d of a statistic of so many numbers."""
    return (math.isqrt(9 + 8 * size) - 3) // 2


@dataclass(frozen=True)
class Statistic:
    """Bias and covariance sums, raw or noisy, of one sender at one synchronisation.

    Parameters
    ----------
    release : int
        Number of the synchronisation, from 1.
    dimension : int
        d.
    values : ndarray, shape (s,), s = d + d (d + 1) / 2
        The bias sum (d,), then the packed lower triangle of the covariance sum, row by row: entry
        (i, j <= i) at d + i (i + 1) / 2 + j. Kept as a read-only copy in float64.

    Raises
    ------
    InputError
        For values that are no array or of another shape.
    """

    release: int
    dimension: int
    values: np.ndarray

    def __post_init__(self) -> None:
        size = statistic_size(self.dimension)
        if not isinstance(self.values, np.ndarray):
            raise InputError(f"values must be an array, got {type(self.values).__name__}")
        if self.values.shape != (size,):
            raise InputError(f"values must have shape ({size},), got {self.values.shape}")
        object.__setattr__(self, "values", frozen(self.values))

    @property
    def bias(self) -> np.ndarray:
        """Sum of x y, (d,)."""
        return self.values[: self.dimension]

    @property
    def covariance(self) -> np.ndarray:
        """Sum of x x', (d, d), symmetric."""
        d = self.dimension
        full = np.zeros((d, d))
        full[np.tril_indices(d)] = self.values[d:]
        return full + np.tril(full, -1).T

    @property
    def nbytes(self) -> int:
        """Bytes on a wire: float64, packed."""
        return self.values.nbytes


@dataclass(frozen=True)
class Report(Statistic):
    """Message of one silo, or user, at one synchronisation.

    Parameters
    ----------
    release, dimension, values
        See `Statistic`. ``values`` are sums of x y and x x' in the units of features and rewards,
        with the sender's noise where the protocol says so: of a batch, of a tree node, or of all
        batches so far.
    silo : int, default 0
        Number of the silo, from 0; of a user its place in the batch.

    Raises
    ------
    InputError
        For values that are no array or of another shape.
    """

    silo: int = 0


@dataclass(frozen=True)
class Counts(Report):
    """The ones among a silo's bits, by label and less their mean without data.

    What a silo sends in place of its bits where the shuffler may add up: its noise hides the data
    only once the counts of all silos are summed, so a server must never see it.
    """


@dataclass(frozen=True)
class Shuffled(Statistic):
    """Message that leaves the shuffler: a report that no longer says who sent it, or the sum of all
    silos' counts, which is what permuted bits tell."""


@dataclass(frozen=True)
class Bits:
    """The bits of one silo at one synchronisation, one row for each entry of the statistic.

    Parameters
    ----------
    release : int
        Number of the synchronisation, from 1.
    dimension : int
        d.
    bits : ndarray of uint8, shape (s, n (2 g + b)), s = d + d (d + 1) / 2
        Messages of the sender's n data points, 2 g + b bits each (zhou-chowdhury-2024, Algorithm
        7). The row is the label that a bit travels under. Kept as a read-only copy.
    silo : int, default 0
        Number of the silo, from 0; of a user its place in the batch.

    Raises
    ------
    InputError
        For bits of another type or number of rows, or not 0 or 1.
    """

    release: int
    dimension: int
    bits: np.ndarray
    silo: int = 0

    def __post_init__(self) -> None:
        rows = statistic_size(self.dimension)
        if not isinstance(self.bits, np.ndarray):
            raise InputError(f"bits must be a uint8 array, got {type(self.bits).__name__}")
        if self.bits.ndim != 2 or self.bits.shape[0] != rows or self.bits.dtype != np.uint8:
            raise InputError(
                f"bits must be a uint8 array of {rows} rows, "
                f"got {self.bits.dtype} of shape {self.bits.shape}"
            )
        if self.bits.size and self.bits.max() > 1:
            raise InputError(f"bits must be 0 or 1, got {self.bits.max()}")
        copy = self.bits.copy()
        copy.flags.writeable = False
        object.__setattr__(self, "bits", copy)


@dataclass(frozen=True)
class ShuffledBits(Bits):
    """The bits of all silos, permuted under each label; ``silo`` says nothing here."""


@dataclass(frozen=True)
class Broadcast(Statistic):
    """Message of the server to every silo: the synchronised statistics.

    Parameters
    ----------
    release, dimension, values
        See `Statistic`. ``values`` are sums of x y and x x' over all silos and all releases so far,
        with their noise, in the units of features and rewards.

    Raises
    ------
    InputError
        For values that are no array or of another shape.
    """
