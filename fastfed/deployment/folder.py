"""The folder of a party: its secret, its plan, its state, and of a silo its ledger.

secret          32 bytes, mode 0400; keep it out of backups of the state
plan            the plan file that the party has countersigned
state.sqlite    what it has decided, sealed and heard
ledger.sqlite   of a silo: its budget, over all its plans
joined          of a silo: its dataset, its ledger's place and identity, and how far it was charged

`join` countersigns a plan and sets a silo's ceiling. A plan that goes on after another is one of
the same parties, on the same ledger: `extended` compiles it, `last_broadcast` finds what it starts
from, and `check_room` refuses it where a silo's ceiling does not hold both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fastfed._files import write_whole
from fastfed._validate import InputError, line
from fastfed.deployment.charges import charge_of
from fastfed.deployment.declared import tables_of_schema
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import ADDED_UP, hub_of, silo_of
from fastfed.deployment.ledger import (
    Ledger,
    MemoryStore,
    SqliteStore,
    damage_named,
    read_writes,
    together,
)
from fastfed.deployment.model import Extension, model_of, no_start
from fastfed.deployment.party import Party, Process, SiloProcess
from fastfed.deployment.plans import (
    DeployedPlan,
    checked,
    document_of,
    load,
    spelled,
    tables_of,
)
from fastfed.deployment.seal import Identity, make_secret, read_secret
from fastfed.deployment.shell import SiloClient
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sums import Helper

SECRET, PLAN, STATE, LEDGER, SOCKET = "secret", "plan", "state.sqlite", "ledger.sqlite", "silo.sock"
JOINED = "joined"


def make_keys(folder: str | Path) -> dict[str, str]:
    """Make a folder with a new secret; returns the public keys, as a spec wants them."""
    target = Path(folder)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_secret(target / SECRET)
    return public_keys(target)


def public_keys(folder: str | Path) -> dict[str, str]:
    """The public keys of a folder's secret, as a spec wants them."""
    sign, write = Identity(read_secret(Path(folder) / SECRET)).public
    return {"sign": sign.hex(), "open": write.hex()}


def party_of(plan: DeployedPlan, secret: bytes, folder: str | Path = "this folder") -> str:
    """The name of the party whose secret this is."""
    public = Identity(secret).public
    for party in plan.parties:
        if (party.sign, party.open) == public:
            return party.name
    raise InputError(
        f"the secret of {folder} is that of no party of the plan, whose parties are "
        f"{', '.join(party.name for party in plan.parties)}: take the folder whose public keys "
        "are in its spec"
    )


def is_silo(folder: str | Path, plan_file: str | Path) -> bool:
    """True if the party of a folder is a silo of a plan."""
    plan = load(plan_file)
    return party_of(plan, read_secret(Path(folder) / SECRET), folder) in plan.silos


def countersign(folder: str | Path, plan_file: str | Path) -> tuple[str, DeployedPlan]:
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
    name = party_of(plan, secret, folder)
    kept = target / PLAN
    if kept.exists() and load(kept).digest != plan.digest:
        raise InputError(f"{kept} is another plan; a folder belongs to one plan")
    signed = plan.countersigned(name, Identity(secret))
    signed.save(kept)
    return name, signed


class LedgerNote(NamedTuple):
    """What the folder of a silo knows of its ledger.

    ledger: its file. identity, head: the ledger's, when it was opened last; empty where an earlier
    version wrote none.
    """

    dataset: str
    ledger: Path
    identity: bytes = b""
    head: bytes = b""


def remember(folder: str | Path, dataset: str, ledger: Ledger) -> None:
    """Note which dataset of which ledger the silo of a folder charges.

    A ledger inside the folder is stored by its name alone, so that the folder may be moved.
    """
    file, home = Path(ledger.path).resolve(), Path(folder).resolve()
    content = {
        "dataset": dataset,
        "ledger": file.name if file.parent == home else str(file),
        "identity": ledger.identity.hex(),
        "head": ledger.head.hex(),
    }
    write_whole(home / JOINED, (json.dumps(content) + "\n").encode())


def remembered(folder: str | Path) -> LedgerNote | None:
    """What the folder of a silo knows of its ledger; None before it was opened or joined."""
    note = Path(folder) / JOINED
    if not note.exists():
        return None
    try:
        content = json.loads(note.read_text(encoding="utf-8"))
        hashes = [bytes.fromhex(content.get(key, "")) for key in ("identity", "head")]
        return LedgerNote(str(content["dataset"]), Path(folder) / content["ledger"], *hashes)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{note} is damaged ({type(error).__name__}); restore its backup"
        ) from None


def ledger_of(
    note: LedgerNote, dataset: str | None = None, ledger: str | Path | None = None
) -> tuple[str, Ledger]:
    """Open the ledger of a folder's note; returns the dataset, too.

    Parameters
    ----------
    note : LedgerNote
    dataset : str, optional
        Must be that of the note.
    ledger : str or Path, optional
        Where the ledger is now, if its file was moved.

    Raises
    ------
    InputError
        For another dataset, and for a file that is not there, is another ledger, or is older than
        what the folder knows.
    """
    file = Path(note.ledger if ledger is None else ledger)
    if dataset not in (None, note.dataset):
        raise InputError(
            f'dataset must be "{note.dataset}", to whose ledger these records are charged, got '
            f'"{dataset}"; leave it out'
        )
    if not file.is_file():
        raise InputError(
            f"there is no ledger at {file}, and a new one would forget what was spent: name where "
            "it is by --ledger"
        )
    if not note.identity and note.ledger.is_file() and not file.samefile(note.ledger):
        raise InputError(
            f"the ledger must be {note.ledger}, to which these records are charged, got {file}"
        )
    if note.identity:
        wrong = ""
        with closing(Ledger.read(file)) as copy:
            if copy.identity != note.identity:
                wrong = "is another ledger than the one to which these records are charged"
            elif not copy.had_head(note.head):
                wrong = "is older than what was charged to it"
        if wrong:
            raise InputError(
                f"{file} {wrong}: name the right file by --ledger, or restore its newest backup; "
                "if there is none, leave the federation (fastfed deploy leave)"
            )
    return note.dataset, Ledger(str(file))


def check_sealed(party: SiloParty, ledger: Ledger) -> None:
    """Refuse a ledger without the charges of what a silo has sealed."""
    for release in party.sealed:
        if ledger.charged(party.dataset, party.deployed.digest, release) is None:
            raise InputError(
                f"{ledger.path} has no charge for release {release}, which this silo has sealed: "
                "restore the newest backup of the ledger; if there is none, leave the federation "
                "(fastfed deploy leave)"
            )


def opened(
    folder: str | Path, dataset: str | None = None, ledger: str | Path | None = None
) -> Process:
    """The party of a folder, as a process on its files.

    Parameters
    ----------
    folder : str or Path
    dataset : str, optional
        Of a silo: the entry of its ledger; of one that has joined, that of its note.
    ledger : str or Path, optional
        Of a silo: where its ledger is now, if the file was moved after it joined.

    Raises
    ------
    InputError
        If there is no plan, another process has the folder, its state is broken, or the ledger is
        not the one that the folder knows.
    """
    target = Path(folder)
    name, plan, secret = _who(target)
    if name not in plan.silos:
        with damage_named(target / STATE):
            return Process(_other(name, plan, secret), SqliteStore(str(target / STATE)))
    note = remembered(target)
    if note is None:
        entry = line("dataset", dataset or "records")
        budget = Ledger(str(ledger or target / LEDGER))
    else:
        entry, budget = ledger_of(note, dataset, ledger)
    with damage_named(target / STATE), ExitStack() as files:
        files.callback(budget.close)
        store = SqliteStore(str(target / STATE))
        files.callback(store.close)
        process = SiloProcess(silo_of(plan, name, secret, budget, entry), store, budget)
        check_sealed(process.party, budget)
        # Nothing was wrong: they stay open.
        files.pop_all()
    remember(target, entry, budget)
    return process


def read_party(folder: str | Path) -> Process:
    """Read the party of a folder from a copy of its state in memory, whoever has the files.

    No file is opened for writing, created or changed. A silo has an empty ledger, so it cannot
    charge anything.

    Raises
    ------
    InputError
        If there is no plan, or its state is broken.
    """
    target = Path(folder)
    name, plan, secret = _who(target)
    store = MemoryStore(read_writes(target / STATE))
    if name not in plan.silos:
        return Process(_other(name, plan, secret), store)
    budget = Ledger(":memory:")
    return SiloProcess(silo_of(plan, name, secret, budget), store, budget)


def _who(folder: Path) -> tuple[str, DeployedPlan, bytes]:
    """Whose folder it is, its plan and its secret."""
    if not (folder / PLAN).exists():
        raise InputError(f"{folder} holds no plan; join one first: fastfed deploy join")
    secret, plan = read_secret(folder / SECRET), load(folder / PLAN)
    return party_of(plan, secret, folder), plan, secret


def _other(name: str, plan: DeployedPlan, secret: bytes) -> Party:
    """The party of a name that is no silo."""
    return hub_of(plan, secret) if name == plan.document.hub.name else Helper(plan, secret)


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
        If it is not the folder of a silo, and before the first release.
    """
    target = Path(folder)
    try:
        return SiloClient(target / SOCKET).call("export")
    except OSError:
        process = read_party(target)
    if not isinstance(process, SiloProcess):
        raise InputError(f"{target} is not the folder of a silo")
    return model_of(process.party)


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
        name, plan, secret = _who(target)
    if name not in plan.silos:
        raise InputError(f"{target} is not the folder of a silo")
    # Leaving spends nothing, and must be possible where the ledger is lost.
    store = SqliteStore(str(target / STATE))
    try:
        process = SiloProcess(silo_of(plan, name, secret, Ledger(":memory:")), store)
        process.leave()
        return process.party.status()
    finally:
        store.close()


# ---- plans that go on after another --------------------------------------------------------------

#: Tables of a spec that an extension takes from the earlier plan, and may not say.
PARTIES = ("silos", "hub")


def extended(
    spec: str | Mapping[str, Any],
    earlier: DeployedPlan,
    broadcast: bytes = b"",
    fresh: bool = False,
) -> DeployedPlan:
    """Compile a plan that continues another: the same parties and keys, other dates and numbers.

    Parameters
    ----------
    spec : str or mapping
        TOML text, or what it says: ``system`` and ``calendar``, and what else is to differ from the
        earlier spec (``federation``, ``columns``, ``norm``, ``helper``).
    earlier : DeployedPlan
    broadcast : bytes
        The earlier hub's last broadcast; empty if there is none.
    fresh : bool
        Begin without the earlier model.

    Returns
    -------
    DeployedPlan

    Raises
    ------
    InputError
        For what a spec may not say, and for a calendar that begins before the last release.

    Notes
    -----
    Guarantee: that of the new plan's certificate; for a person who is in both plans, the entry of
    `also` that names the earlier one. The start is made of a broadcast and adds nothing.
    """
    new = tables_of(spec)
    for key in PARTIES:
        if key in new:
            raise InputError(f"{key} come from the earlier plan; leave them out of the spec")
    for key in ("system", "calendar"):
        if key not in new:
            raise InputError(f"the spec must have a table {key}: it is what an extension changes")
    document = document_of(_fitting({**_before(earlier, new), **new}, new))
    # The plan alone first: whether the earlier model can be its start follows from it.
    why = no_start(document, checked(document, {}).plan, earlier)
    if not broadcast:
        why = why or "no-release"
    if fresh:
        why = "requested"
    extends = Extension(spelled(earlier.document), b"" if why else broadcast, why)
    return checked(msgspec.structs.replace(document, extends=extends), {})


def _before(earlier: DeployedPlan, new: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a spec that an earlier plan was compiled from, but for system and calendar."""
    old = earlier.document
    federation = {"name": old.name, "least": old.least, "explore": old.explore}
    federation |= {} if old.influence is None else {"influence": old.influence}
    federation |= {"sum": "masks"} if earlier.masked else {}
    schema = tables_of_schema(old.schema)
    if not {"columns", "actions", "reward"}.isdisjoint(new):
        # The largest row, unless the new spec has a norm.
        del schema["norm"]
    hub = {key: text for key, text in _table(old.hub).items() if key != "name"}
    tables = {"federation": federation, "silos": [_table(party) for party in old.silos], "hub": hub}
    if old.helper is not None:
        tables["helper"] = {k: text for k, text in _table(old.helper).items() if k != "name"}
    return tables | schema


def _fitting(tables: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Tables without what the earlier spec said and the new protocol has no use for."""
    protocol = tables["system"].get("protocol", "silo-ldp")
    federation = dict(tables.get("federation", {}))
    if "federation" not in new:
        idle = "influence" if protocol in (*ADDED_UP, "central") else None
        for key in (idle, None if protocol in ADDED_UP else "sum"):
            federation.pop(key, None)
    made = {**tables, "federation": federation}
    shares = protocol in ADDED_UP and federation.get("sum") != "masks"
    if "helper" not in new and not shares:
        made.pop("helper", None)
    return made


def _table(party: Any) -> dict[str, str]:
    return {"name": party.name, "sign": party.sign.hex(), "open": party.open.hex()}


def last_broadcast(folder: str | Path) -> tuple[DeployedPlan, bytes]:
    """The plan of a silo's or the hub's folder, and its last broadcast; empty before the first.

    Raises
    ------
    InputError
        For the folder of a helper.
    """
    target = Path(folder)
    if not (target / PLAN).exists():
        raise InputError(f"{target} holds no plan")
    try:
        said = SiloClient(target / SOCKET).call("broadcast")
        return load(target / PLAN), bytes.fromhex(said["broadcast"])
    except OSError:
        party = read_party(target).party
    if not isinstance(party, SiloParty | Hub):
        raise InputError(f"{target} is not the folder of a silo or of the hub")
    return party.deployed, party.broadcasts[max(party.broadcasts)] if party.broadcasts else b""


def check_room(
    ledger: Ledger, dataset: str, plan: DeployedPlan, ceiling: tuple[float, float] | None = None
) -> None:
    """Refuse a plan that would pass the ceiling of a dataset after all that was spent on it.

    Parameters
    ----------
    ledger : Ledger
    dataset : str
    plan : DeployedPlan
    ceiling : tuple, optional
        (epsilon, delta); by default the ledger's.

    Raises
    ------
    InputError
        If there is no ceiling, or the plan's whole charge is beyond it.
    """
    found = ceiling or ledger.ceiling(dataset)
    if found is None:
        raise InputError(f'no ceiling is set for dataset "{dataset}": --epsilon and --delta')
    epsilon, delta = found
    charges = [c for c in ledger.charges(dataset) if c.plan != plan.digest]
    # What this plan paid twice, after records were lost, comes on top of the whole.
    charges += [c for c in ledger.charges(dataset) if c.plan == plan.digest and c.release < 1]
    charges.append(charge_of(plan.executed, plan.digest, dataset, -1))
    spent = together(charges, delta)
    if spent > epsilon * (1.0 + 1e-9):
        raise InputError(
            f'with this plan dataset "{dataset}" would have spent epsilon {spent:.4g} at delta '
            f"{delta:g}, more than the ceiling {epsilon:g}; join with a larger --epsilon or make "
            "a plan that costs less"
        )


def prepare(folder: str | Path, plan: DeployedPlan, old: str | Path) -> None:
    """Make the folder of a plan that continues that of another folder, with the same secret.

    Raises
    ------
    InputError
        If the folder is of another plan than the one that is continued, or knows another broadcast
        than the one that the new plan starts from.
    """
    target, before = Path(folder), Path(old)
    earlier, extends = plan.earlier, plan.document.extends
    if earlier is None or extends is None:
        raise InputError("the plan continues no other; join it without --extends")
    if load(before / PLAN).digest != earlier.digest:
        raise InputError(f"{before} is of another plan than the one that this plan continues")
    if extends.start:
        name = party_of(earlier, read_secret(before / SECRET))
        if earlier.document.helper is None or name != earlier.document.helper.name:
            _check_start(extends.start, before, earlier)
    secret = target / SECRET
    if target == before:
        raise InputError("a folder belongs to one plan; name a new one")
    if not secret.exists():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(handle, "wb") as file:
            file.write(read_secret(before / SECRET))
            file.flush()
            os.fsync(file.fileno())


def _check_start(start: bytes, before: Path, earlier: DeployedPlan) -> None:
    """Refuse a start that contradicts the broadcast that a folder has of the same release."""
    release = earlier.wire.read(start).release
    known = last_broadcast(before)[1]
    if known and earlier.wire.read(known).release == release and known != start:
        raise InputError(
            f"the plan starts from another broadcast of release {release} than {before} has"
        )


def join(
    folder: str | Path,
    plan_file: str | Path,
    ceiling: tuple[float, float] | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    extends: str | Path | None = None,
    second_ledger: bool = False,
) -> tuple[str, DeployedPlan]:
    """Verify a plan file, countersign it for the party of a folder, and set a silo's ceiling.

    Parameters
    ----------
    folder : str or Path
    plan_file : str or Path
    ceiling : tuple, optional
        (epsilon, delta) of a silo's dataset; by default what its ledger has.
    dataset : str, optional
        The entry of the ledger; by default "records", or that of ``extends``.
    ledger : str or Path, optional
        A ledger that several folders share; by default the folder's own, or that of ``extends``.
    extends : str or Path, optional
        The folder of the plan that this one continues: its secret is taken over, and its ledger and
        dataset are those of the new folder.
    second_ledger : bool
        Charge another ledger or dataset than the earlier plan did, which the ledger notes.

    Returns
    -------
    tuple
        The party's name, and the plan with its countersignature.

    Raises
    ------
    InputError
        If the plan does not verify, a silo has no ceiling, its ledger is not the one that the
        folder or the earlier plan charges, or a plan that continues another would pass the ceiling;
        nothing was written then but the secret of the new folder.
    """
    target, plan = Path(folder), load(plan_file)
    if extends is not None:
        prepare(target, plan, extends)
    if not is_silo(target, plan_file):
        return countersign(target, plan_file)
    if plan.earlier is not None and extends is None and ledger is None:
        raise InputError(
            f"the plan continues {plan.earlier.digest.hex()[:16]}; name its folder by --extends, "
            "or its ledger by --ledger"
        )
    known = remembered(target)
    if known is None and extends is not None and not second_ledger:
        known = remembered(extends) or LedgerNote("records", Path(extends) / LEDGER)
    file = Path(ledger or target / LEDGER)
    if known is not None:
        entry, budget = ledger_of(known, dataset, ledger)
    elif ceiling is None and not file.exists():
        raise InputError("a silo needs a ceiling: --epsilon and --delta")
    else:
        entry, budget = line("dataset", dataset or "records"), Ledger(str(file))
    try:
        if ceiling is None and budget.ceiling(entry) is None:
            raise InputError("a silo needs a ceiling: --epsilon and --delta")
        if plan.earlier is not None:
            if known is None and not second_ledger:
                _check_charged(budget, entry, plan.earlier)
            check_room(budget, entry, plan, ceiling)
        made = countersign(target, plan_file)
        if ceiling is not None:
            budget.set_ceiling(entry, *ceiling)
        if second_ledger:
            budget.add_second(entry, plan.digest)
        remember(target, entry, budget)
    finally:
        budget.close()
    return made


def _check_charged(ledger: Ledger, dataset: str, earlier: DeployedPlan) -> None:
    """Refuse a ledger that an earlier plan has not charged."""
    if not any(charge.plan == earlier.digest for charge in ledger.charges(dataset)):
        raise InputError(
            f'dataset "{dataset}" of {ledger.path} has no charge of the plan that this one '
            "continues: name that plan's folder by --extends; if these are records of another "
            "ledger, say so by --second-ledger, which the ledger notes"
        )
