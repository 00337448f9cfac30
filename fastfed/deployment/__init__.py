"""Federations at real silos: parties with durable state, and their messages.

- Plans: `plans` (plan files), `kinds` (plans that can be deployed), `codec` (numbers of a plan).
- Parties, as state machines: `silo`, `hub`, `sums` (secure sums and the helper), `phases` and
  `experts` (parties of other plans), `model` (by which silos choose actions), `progress` (what
  parties wait for).
- Messages: `wire` (formats), `guard` (checks against false reports).
- Secrets and budgets: `seal` (keys and noise), `ledger` (budgets), `charges` (costs).
- Processes: `party` (steps and clocks), `store` (the log), `process`, `folder` (files of a party),
  `shell`, `calls`, `gate` and `flower` (networks), `observe` (metrics and logs), `status` and
  `status_page` (for operators), `demo`.
- A silo's records and application: `silo_records`, `application` (the server), `client`; `agent`
  for a single service without a federation.
- Data: `schema` and `declared` (how records become features and rewards), `data` (a silo's table),
  `replay` and `rehearse` (rehearsals with past records).

docs/deployment.md states the guarantees. Needs the extra ``deploy``.
"""

import importlib
from typing import Any

__all__ = ["AsyncClient", "Client", "PrivateLinUCB", "bit_to_send"]

#: Name -> the module that defines it.
_MODULES = {
    "AsyncClient": "fastfed.deployment.client",
    "Client": "fastfed.deployment.client",
    "PrivateLinUCB": "fastfed.deployment.agent",
    "bit_to_send": "fastfed.privacy.mechanisms.user_bit",
}


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, imported when it is first used.

    Most names need packages of the extra ``deploy``.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
