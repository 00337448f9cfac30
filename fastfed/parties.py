"""The parties of a deployment, their messages and their noise sources.

Every party takes a plan, which `fastfed.make_system` creates. The README and the pages on the
systems show which parties belong together.
"""

from __future__ import annotations

from fastfed._random import SeededNoise, SystemNoise
from fastfed.bandits.peer import Peer
from fastfed.bandits.silo import Client, Silo
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.protocols.protocol import Broadcast, Report
from fastfed.protocols.randomizer import Shuffler, User
from fastfed.protocols.secure_sum import Encoded
from fastfed.protocols.server import Averager, Server
from fastfed.protocols.serverless import Graph, LocalEstimate, Model
from fastfed.protocols.vector_sum import VectorSum

__all__ = [
    "Averager",
    "Broadcast",
    "Client",
    "Encoded",
    "ExpertClient",
    "ExpertServer",
    "Graph",
    "LocalEstimate",
    "Model",
    "Peer",
    "Report",
    "SeededNoise",
    "Server",
    "Shuffler",
    "Silo",
    "SystemNoise",
    "User",
    "VectorSum",
]
