"""A silo's last model as plain data, for other tools.

It is made of the last broadcast alone, and of nothing that the silo keeps to itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fastfed._validate import InputError
from fastfed.deployment.extension import summary
from fastfed.deployment.schema import Schema
from fastfed.deployment.silo import SiloParty


def model_of(party: SiloParty) -> dict[str, Any]:
    """The model that a silo acts on.

    Parameters
    ----------
    party : SiloParty

    Returns
    -------
    dict
        ``format``, ``federation``, ``plan`` (digest), ``release``, ``releases``, ``schema``
        (``norm`` and ``columns``; a row is held to the columns' ranges, then divided by the norm;
        of a plan of records also ``records``: how a row is made of one),
        ``theta`` (d,), ``V`` (d, d), regularised and shifted as it is played (None in phases, where
        only theta is, and of experts, where theta are their weights), and ``certificate``;
        of a plan that continues another also ``extends``, and the model is then that of both.

    Raises
    ------
    InputError
        Before the first release.

    Notes
    -----
    Guarantee: that of the certificate, since it is made of broadcasts alone.
    """
    if not party.model.release and party.model.start is None:
        raise InputError(f"silo {party.name} has no model yet: no release has reached it")
    document = party.deployed.document
    return {
        "format": 1,
        "federation": document.name,
        "plan": party.deployed.digest.hex(),
        "release": party.model.release,
        "releases": party.plan.releases,
        "schema": _schema(document.schema),
        "theta": party.model.theta.tolist(),
        "V": None if party.model.gram is None else party.model.gram.tolist(),
        "certificate": party.deployed.certificate.to_builtins(),
        **summary(party.deployed),
    }


def _schema(schema: Schema) -> dict[str, Any]:
    """A schema as plain data."""
    made: dict[str, Any] = {
        "norm": schema.norm,
        "columns": [msgspec.structs.asdict(column) for column in schema.columns],
    }
    if schema.records is not None:
        made["records"] = {
            "columns": [msgspec.structs.asdict(each) for each in schema.records.variables],
            "actions": msgspec.structs.asdict(schema.records.actions),
            "reward": msgspec.structs.asdict(schema.records.outcome),
        }
    plain: dict[str, Any] = msgspec.to_builtins(made)
    return plain
