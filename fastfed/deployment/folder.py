"""The folder of a party: its secret, its plan, its state, and of a silo its ledger.

secret          32 bytes, mode 0400; keep it out of backups of the state
plan            the plan file that the party has countersigned
state.sqlite    what it has decided, sealed and heard
ledger.sqlite   of a silo: its budget, over all its plans
joined          of a silo: its dataset, and its ledger where that is another file
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastfed._validate import InputError
from fastfed.deployment._crypto import Identity
from fastfed.deployment.export import model_of
from fastfed.deployment.helper import Helper
from fastfed.deployment.kinds import hub_of, silo_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import DeployedPlan, load
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import make_secret, read_secret
from fastfed.deployment.shell import SiloClient
from fastfed.deployment.store import SqliteStore

SECRET, PLAN, STATE, LEDGER, SOCKET = "secret", "plan", "state.sqlite", "ledger.sqlite", "silo.sock"
JOINED = "joined"


def make_keys(folder: str | Path) -> dict[str, str]:
    """Make a folder with a new secret; returns the public keys, as a spec wants them."""
    target = Path(folder)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    sign, write = Identity(make_secret(target / SECRET)).public
    return {"sign": sign.hex(), "open": write.hex()}


def party_of(plan: DeployedPlan, secret: bytes) -> str:
    """The name of the party whose secret this is."""
    public = Identity(secret).public
    for party in plan.parties:
        if (party.sign, party.open) == public:
            return party.name
    raise InputError("the secret of this folder is that of no party of the plan")


def is_silo(folder: str | Path, plan_file: str | Path) -> bool:
    """True if the party of a folder is a silo of a plan."""
    plan = load(plan_file)
    return party_of(plan, read_secret(Path(folder) / SECRET)) in plan.silos


def join(folder: str | Path, plan_file: str | Path) -> tuple[str, DeployedPlan]:
    """Verify a plan file, countersign it, and keep it in the folder of a party.

    Returns
    -------
    tuple
        The party's name, and the plan with its countersignature.

    Raises
    ------
    InputError
        If the plan does not verify, or another one is in the folder.
    """
    target = Path(folder)
    secret, plan = read_secret(target / SECRET), load(plan_file)
    name = party_of(plan, secret)
    kept = target / PLAN
    if kept.exists() and load(kept).digest != plan.digest:
        raise InputError(f"{kept} is another plan; a folder belongs to one plan")
    signed = plan.countersigned(name, Identity(secret))
    signed.save(kept)
    return name, signed


def remember(folder: str | Path, dataset: str, ledger: str | Path) -> None:
    """Note which dataset of which ledger the silo of a folder charges."""
    said = {"dataset": dataset, "ledger": str(Path(ledger).resolve())}
    (Path(folder) / JOINED).write_text(json.dumps(said) + "\n", encoding="utf-8")


def remembered(folder: str | Path) -> tuple[str, Path]:
    """Dataset and ledger of the silo of a folder; its own ledger where nothing was noted."""
    note = Path(folder) / JOINED
    if not note.exists():
        return "records", Path(folder) / LEDGER
    said = json.loads(note.read_text(encoding="utf-8"))
    return said["dataset"], Path(said["ledger"])


def opened(
    folder: str | Path, dataset: str | None = None, ledger: str | Path | None = None
) -> Process:
    """The party of a folder, as a process on its files.

    Parameters
    ----------
    folder : str or Path
    dataset : str, optional
        Of a silo: the entry of its ledger; by default what was noted when it joined.
    ledger : str or Path, optional
        Of a silo: its ledger; by default what was noted when it joined.

    Raises
    ------
    InputError
        If there is no plan, another process has the folder, or its state is broken.
    """
    target = Path(folder)
    if not (target / PLAN).exists():
        raise InputError(f"{target} holds no plan; join one first: fastfed deploy join")
    secret, plan = read_secret(target / SECRET), load(target / PLAN)
    name = party_of(plan, secret)
    store = SqliteStore(str(target / STATE))
    if name == plan.document.hub.name:
        return Process(hub_of(plan, secret), store)
    if name not in plan.silos:
        return Process(Helper(plan, secret), store)
    noted = remembered(target)
    budget = Ledger(str(ledger or noted[1]))
    return SiloProcess(silo_of(plan, name, secret, budget, dataset or noted[0]), store, budget)


def export_model(folder: str | Path) -> dict[str, Any]:
    """The last model of the silo of a folder, running or not; see `model_of`.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If it is not the folder of a silo, before the first release, or if another process than
        the silo has its state.
    """
    target = Path(folder)
    try:
        return SiloClient(target / SOCKET).call("export")
    except OSError:
        # It does not run: its state is free to be read. Nothing is charged, so no ledger is opened.
        process = opened(target, ledger=":memory:")
    assert isinstance(process.store, SqliteStore)
    try:
        if not isinstance(process, SiloProcess):
            raise InputError(f"{target} is not the folder of a silo")
        return model_of(process.party)
    finally:
        process.store.close()


def recover(folder: str | Path) -> dict[str, Any]:
    """Make up for what the silo of a folder sent and has lost; see `SiloParty.recover`.

    Returns
    -------
    dict
        The silo's status.

    Raises
    ------
    InputError
        If it does not run: only the hub can tell it what was sent.
    """
    target = Path(folder)
    try:
        return SiloClient(target / SOCKET).call("recover")
    except OSError:
        raise InputError(
            f"the silo of {target} does not run; start it first, since the hub must tell it what "
            "it has sent"
        ) from None


def leave(folder: str | Path) -> dict[str, Any]:
    """Leave the federation as the silo of a folder; the hub hears of it when it runs.

    Returns
    -------
    dict
        The silo's status.

    Raises
    ------
    InputError
        If it is not the folder of a silo, or another process than the silo has its state.
    """
    target = Path(folder)
    try:
        return SiloClient(target / SOCKET).call("leave")
    except OSError:
        process = opened(target)
    assert isinstance(process.store, SqliteStore)
    try:
        if not isinstance(process, SiloProcess):
            raise InputError(f"{target} is not the folder of a silo")
        process.leave()
        return process.party.status()
    finally:
        process.store.close()
