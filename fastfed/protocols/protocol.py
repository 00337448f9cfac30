"""The protocols by name: what a silo sends, what the server does with it, whom it trusts."""

from __future__ import annotations

from dataclasses import dataclass

# The same numbers stand in src/ff_play.h.
SEND_BATCH, SEND_NODE, SEND_NOISY_NODE, SEND_NOISY_PREFIX = range(4)
ADD, TREE, NOISY_TREE, REPLACE = range(4)


@dataclass(frozen=True)
class Protocol:
    """P = (R, S, A) of zhou-chowdhury-2024; the shuffler is the identity unless named."""

    id: str
    summary: str
    #: Who is protected against whom; stands in the certificate.
    model: str
    #: What a silo sends (R) and what the server makes of it (A).
    randomizer: int
    analyzer: int
    #: Independent noises that add up in one released node: "silos", "server" or "none".
    noise_by: str
    source: str

    @property
    def tree(self) -> bool:
        """Whether p-sums of the binary tree are kept."""
        return self.randomizer != SEND_BATCH


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
            "central",
            "a trusted server adds the noise once",
            "central: the server is trusted, silos and users are not",
            SEND_NODE,
            NOISY_TREE,
            "server",
            "zhou-chowdhury-2024, Table 1 (after Shariff and Sheffet 2018)",
        ),
    )
}
