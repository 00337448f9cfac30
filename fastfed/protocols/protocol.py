"""The protocols by name: what a silo sends, what the server does with it, whom it trusts."""

from __future__ import annotations

from dataclasses import dataclass, replace

# The same numbers stand in src/ff_run.h.
SEND_BATCH, SEND_NODE, SEND_NOISY_NODE, SEND_NOISY_PREFIX, SEND_BITS, SEND_NOISY_SUM = range(6)
SEND_NOISY_BATCH = 6
ADD, TREE, NOISY_TREE, REPLACE, NOISY_ADD = range(5)


@dataclass(frozen=True)
class Protocol:
    """P = (R, S, A) of zhou-chowdhury-2024; S is the identity unless ``shuffled``."""

    id: str
    summary: str
    #: Who is protected against whom; stands in the certificate.
    model: str
    #: What a silo sends (R) and what the server makes of it (A).
    randomizer: int
    analyzer: int
    #: Whose noise adds up in one released node: "silos", "server", "users" or "none".
    noise_by: str
    source: str
    #: Whether the messages of all senders reach the server in random order, without senders.
    shuffled: bool = False
    #: Who sends: "silos", after each batch; "users", each their own data point in their round; or
    #: nobody, where the "agent" sees what its users do.
    senders: str = "silos"

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


def released_as(protocol: Protocol, release: str) -> Protocol:
    """The protocol under another release: prefix sums, their noise made of shared parts."""
    if release == "tree":
        return protocol
    paper, _, _ = protocol.source.partition(",")
    source = f"{paper}, Algorithm 1 with another continual release"
    if protocol.noise_by == "server":
        return replace(protocol, randomizer=SEND_BATCH, analyzer=NOISY_ADD, source=source)
    return replace(protocol, randomizer=SEND_NOISY_SUM, analyzer=REPLACE, source=source)
