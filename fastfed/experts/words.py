"""What certificates of experts say, wherever they say the same."""

from __future__ import annotations

#: What a user is where there are losses, and what is protected.
USER = "a user is one loss function of one client in one round"
PLAYED = f"{USER}; what is protected is what is played"
SENT = f"{USER}; what is protected is what the client sends"
#: Of a trusted server.
RAW_MESSAGES = "clients send the server raw numbers: it is trusted, and nobody else may see them"
NOT_MET = "the claimed budget is not met; the exact value is what holds"
