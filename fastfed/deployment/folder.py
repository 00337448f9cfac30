"""The folder of a party: its secret, its plan, its state and, for a silo, its ledger.

secret          32 bytes, mode 0400; keep it out of backups of the state
plan            the plan file that the party has countersigned
state.sqlite    the log of the party's writes
ledger.sqlite   for a silo: the privacy budget of its datasets, over all its plans
joined          for a silo: its dataset, and the path, identity and last known head of its ledger

`join` countersigns a plan and sets the ceiling of a silo's budget. A plan can continue an earlier
one, with the same parties and the same ledger: `extended` compiles the new plan, `last_broadcast`
returns the broadcast from whose model the new plan starts, and `check_room` raises an error if a
silo's ceiling is too low for both plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fastfed._files import write_whole
from fastfed._validate import InputError, line
from fastfed.deployment.charges import charge_of
from fastfed.deployment.client import Client
from fastfed.deployment.declared import tables_of_schema
from fastfed.deployment.hub import Hub
from fastfed.deployment.kinds import SECURE_SUM_PROTOCOLS, hub_of, silo_of
from fastfed.deployment.ledger import Ledger, epsilon_of_charges
from fastfed.deployment.model import Extension, model_of, no_start
from fastfed.deployment.party import Party
from fastfed.deployment.plans import DeployedPlan, checked, document_of, load, spelled, tables_of
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity, make_secret, read_secret
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import SqliteStore, damage_named
from fastfed.deployment.sums import Helper

SECRET, PLAN, STATE, LEDGER, SOCKET = "secret", "plan", "state.sqlite", "ledger.sqlite", "silo.sock"
JOINED = "joined"


def make_keys(folder: str | Path) -> dict[str, str]:
    """Create a folder with a new secret; return the public keys as a spec needs them.

    Returns
    -------
    dict
        ``sign`` and ``open``, in hexadecimal.
    """
    target = Path(folder)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_secret(target / SECRET)
    return public_keys(target)


def public_keys(folder: str | Path) -> dict[str, str]:
    """Return the public keys of a folder's secret, ``sign`` and ``open``, in hexadecimal."""
    sign_key, encryption_key = Identity(read_secret(Path(folder) / SECRET)).public
    return {"sign": sign_key.hex(), "open": encryption_key.hex()}


def party_of(plan: DeployedPlan, secret: bytes, folder: str | Path = "this folder") -> str:
    """Return the name of the party of a plan to which a secret belongs.

    The error names ``folder``, the secret's folder.

    Raises
    ------
    InputError
        If the secret belongs to no party of the plan.
    """
    public = Identity(secret).public
    for party in plan.parties:
        if (party.sign, party.open) == public:
            return party.name
    raise InputError(
        f"the secret in {folder} belongs to no party of the plan, whose parties are "
        f"{', '.join(party.name for party in plan.parties)}: use the folder whose public keys "
        "are in the plan's spec"
    )


def is_silo(folder: str | Path, plan_file: str | Path) -> bool:
    """Return True if the party of a folder is a silo of a plan."""
    plan = load(plan_file)
    return party_of(plan, read_secret(Path(folder) / SECRET), folder) in plan.silos


def countersign(folder: str | Path, plan_file: str | Path) -> tuple[str, DeployedPlan]:
    """Verify a plan file, sign it with a party's key, and store it in the party's folder.

    Returns
    -------
    tuple of (str, DeployedPlan)
        The party's name, and the plan with its countersignature.

    Raises
    ------
    InputError
        If the plan does not verify, or the folder has a different plan.
    """
    target = Path(folder)
    secret, plan = read_secret(target / SECRET), load(plan_file)
    name = party_of(plan, secret, folder)
    plan_path = target / PLAN
    if plan_path.exists() and load(plan_path).digest != plan.digest:
        raise InputError(f"{plan_path} is another plan; a folder belongs to one plan")
    countersigned = plan.countersigned(name, Identity(secret))
    countersigned.save(plan_path)
    return name, countersigned


class LedgerNote(NamedTuple):
    """A silo's note, in its folder, of the ledger to which its records are charged.

    Parameters
    ----------
    dataset : str
        The dataset in the ledger.
    ledger : Path
        The ledger's file.
    identity, head : bytes
        The ledger's identity, and the hash of its last entry when it was last opened. Empty in a
        note of an earlier version of fastfed.
    """

    dataset: str
    ledger: Path
    identity: bytes = b""
    head: bytes = b""


def write_note(folder: str | Path, dataset: str, ledger: Ledger) -> None:
    """Write the `LedgerNote` of the silo of a folder.

    If the ledger is in this folder, only its file name is stored, so that the folder can be moved.
    """
    file, home = Path(ledger.path).resolve(), Path(folder).resolve()
    content = {
        "dataset": dataset,
        "ledger": file.name if file.parent == home else str(file),
        "identity": ledger.identity.hex(),
        "head": ledger.head.hex(),
    }
    note, text = home / JOINED, (json.dumps(content) + "\n").encode()
    if not note.exists() or note.read_bytes() != text:
        write_whole(note, text)


def read_note(folder: str | Path) -> LedgerNote | None:
    """Read the `LedgerNote` of a folder; None if it has none, because no silo has used it yet."""
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


def checked_copy(note: LedgerNote, file: Path) -> Ledger:
    """Return a copy in memory of a ledger's file, after checking the file against a note.

    Raises
    ------
    InputError
        If the file is missing, is a different ledger, or is older than the note.
    """
    if not file.is_file():
        raise InputError(
            f"there is no ledger at {file}, and a new one would forget what was spent: name where "
            "it is by --ledger"
        )
    copy, problem = Ledger.read(file), ""
    if note.identity and copy.identity != note.identity:
        problem = "is another ledger than the one to which these records are charged"
    elif note.identity and not copy.had_head(note.head):
        problem = "is older than what was charged to it"
    if problem:
        copy.close()
        raise InputError(
            f"{file} {problem}: name the right file by --ledger, or restore its newest backup; "
            "if there is none, leave the federation (fastfed deploy leave)"
        )
    return copy


def ledger_of(
    note: LedgerNote, dataset: str | None = None, ledger: str | Path | None = None
) -> tuple[str, Ledger]:
    """Open the ledger that a silo's note names, after checking that it is the right file.

    Parameters
    ----------
    note : LedgerNote
    dataset : str, optional
        If given, it must be the note's dataset.
    ledger : str or Path, optional
        The new path of the ledger's file, if the file was moved.

    Returns
    -------
    tuple of (str, Ledger)
        The dataset and the open ledger.

    Raises
    ------
    InputError
        If the dataset differs, or the file is missing, is a different ledger, or is a copy that is
        older than the note.
    """
    file = Path(note.ledger if ledger is None else ledger)
    if dataset not in (None, note.dataset):
        raise InputError(
            f'dataset must be "{note.dataset}", to whose ledger these records are charged, got '
            f'"{dataset}"; leave it out'
        )
    checked_copy(note, file).close()
    # A note of an earlier version lacks the ledger's identity, so compare only the two files.
    if not note.identity and note.ledger.is_file() and not file.samefile(note.ledger):
        raise InputError(
            f"the ledger must be {note.ledger}, to which these records are charged, got {file}"
        )
    return note.dataset, Ledger(str(file))


def check_sealed(party: SiloParty, ledger: Ledger) -> None:
    """Raise InputError if the ledger lacks the charge of a report that the silo has made."""
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
    """Open the files of a folder, and return its party as a process that uses them.

    Parameters
    ----------
    folder : str or Path
    dataset : str, optional
        For a silo: the dataset in its ledger. By default the dataset of the folder's `LedgerNote`
        or, without a note, "records".
    ledger : str or Path, optional
        For a silo: the new path of its ledger, if the file was moved after the silo joined.

    Returns
    -------
    Process
        For a silo a `SiloProcess`.

    Raises
    ------
    InputError
        If there is no plan, its party has not joined it, a different process uses the folder, its
        state is damaged, or the ledger is not the one that the folder's `LedgerNote` names.
    """
    target = Path(folder)
    name, plan, secret = _party_in(target)
    if name not in plan.signatures:
        signed = ", ".join(plan.signatures) or "nobody"
        raise InputError(
            f"the plan in {target} was joined by {signed}, but the secret is that of {name}: use "
            f"the right secret, or join (fastfed deploy join {target} PLAN)"
        )
    if name not in plan.silos:
        with damage_named(target / STATE):
            return Process(_hub_or_helper(name, plan, secret), SqliteStore(str(target / STATE)))
    note = read_note(target)
    if note is None:
        charged_dataset = line("dataset", dataset or "records")
        silo_ledger = Ledger(str(ledger or target / LEDGER))
    else:
        charged_dataset, silo_ledger = ledger_of(note, dataset, ledger)
    with damage_named(target / STATE), ExitStack() as files:
        files.callback(silo_ledger.close)
        store = SqliteStore(str(target / STATE))
        files.callback(store.close)
        silo = silo_of(plan, name, secret, silo_ledger, charged_dataset)
        process = SiloProcess(silo, store, silo_ledger)
        check_sealed(process.party, silo_ledger)
        # All checks have passed: leave the files open.
        files.pop_all()
    write_note(target, charged_dataset, silo_ledger)
    return process


def read_party(folder: str | Path) -> Process:
    """Read the party of a folder from a copy of its state, even while a process uses the folder.

    No file is created, changed or opened for writing. A silo gets an empty ledger in memory, so it
    cannot charge anything.

    Raises
    ------
    InputError
        If there is no plan, or the state is damaged.
    """
    target = Path(folder)
    name, plan, secret = _party_in(target)
    store = SqliteStore.read(target / STATE)
    if name not in plan.silos:
        return Process(_hub_or_helper(name, plan, secret), store)
    empty_ledger = Ledger(":memory:")
    return SiloProcess(silo_of(plan, name, secret, empty_ledger), store, empty_ledger)


def read_ledger(folder: str | Path) -> tuple[str, Ledger]:
    """Return the dataset of a folder's silo, and a copy in memory of its ledger.

    Raises
    ------
    InputError
        If the ledger is missing or damaged, or is not the one that the folder's `LedgerNote` names.
    """
    note = read_note(folder) or LedgerNote("records", Path(folder) / LEDGER)
    return note.dataset, checked_copy(note, note.ledger)


def in_use(folder: str | Path) -> bool | None:
    """Return True if a process of this machine uses a folder's state; None if it is not known.

    It reads the system's list of locks, and takes no lock. Processes of other containers are not
    in this list.
    """
    state, locks = Path(folder) / STATE, Path("/proc/locks")
    if not state.exists():
        return False
    try:
        # A line is such as "1: FLOCK ADVISORY WRITE 4711 fe:00:131 0 EOF", or has "->" as its
        # second word if a process waits for the lock. Not all file systems show the device of a
        # file ("fe:00"), so only the file's number is compared.
        lines = [text.split() for text in locks.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    inode = str(state.stat().st_ino)
    lock_lines = [words for words in lines if words[1] != "->"]
    return any(words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode for words in lock_lines)


def _party_in(folder: Path) -> tuple[str, DeployedPlan, bytes]:
    """Return (name of the party, plan, secret) of a party's folder."""
    inside = sorted(plan.parent.name for plan in folder.glob(f"*/{PLAN}"))
    hint = f" (folders of parties in it: {', '.join(inside[:6])})" if inside else ""
    if inside and not (folder / SECRET).exists():
        raise InputError(f"{folder} is not the folder of a party{hint}")
    if not (folder / PLAN).exists():
        raise InputError(
            f"{folder} holds no plan; join one first: fastfed deploy join {folder} PLAN{hint}"
        )
    secret, plan = read_secret(folder / SECRET), load(folder / PLAN)
    return party_of(plan, secret, folder), plan, secret


def _hub_or_helper(name: str, plan: DeployedPlan, secret: bytes) -> Party:
    """Create the hub or, for any other name, the helper of a plan."""
    return hub_of(plan, secret) if name == plan.document.hub.name else Helper(plan, secret)


def export_model(folder: str | Path) -> dict[str, Any]:
    """Export the last model of the silo in a folder, whether or not the silo is running.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    dict
        See `model_of`.

    Raises
    ------
    InputError
        If ``folder`` is not the folder of a silo, or there has been no release yet.
    """
    target = Path(folder)
    try:
        return Client(target / SOCKET, wait=0).call("export")
    except OSError:
        process = read_party(target)
    if not isinstance(process, SiloProcess):
        raise InputError(f"{target} is not the folder of a silo")
    return model_of(process.party)


def recover(folder: str | Path) -> dict[str, Any]:
    """Let the running silo of a folder recover from lost reports; see `SiloParty.recover`.

    Returns
    -------
    dict
        The silo's status.

    Raises
    ------
    InputError
        If the silo is not running. It must run to learn from the hub which reports it has sent.
    """
    target = Path(folder)
    try:
        return Client(target / SOCKET, wait=0).call("recover")
    except OSError:
        raise InputError(
            f"the silo of {target} does not run; start it first, since only the hub knows what it "
            "has sent"
        ) from None


def leave(folder: str | Path) -> dict[str, Any]:
    """Let the silo of a folder leave the federation. The hub learns this when the silo next runs.

    Returns
    -------
    dict
        The silo's status.

    Raises
    ------
    InputError
        If ``folder`` is not the folder of a silo, or a process other than the silo uses its files.
    """
    target = Path(folder)
    try:
        return Client(target / SOCKET, wait=0).call("leave")
    except OSError:
        name, plan, secret = _party_in(target)
    if name not in plan.silos:
        raise InputError(f"{target} is not the folder of a silo")
    # Leaving charges nothing, and must be possible even if the ledger is lost.
    store = SqliteStore(str(target / STATE))
    try:
        process = SiloProcess(silo_of(plan, name, secret, Ledger(":memory:")), store)
        process.leave()
        return process.party.status()
    finally:
        store.close()


# ---- plans that continue an earlier plan ---------------------------------------------------------

#: Tables that a plan takes from the plan it continues, so that its spec must not have them.
PARTIES = ("silos", "hub")


def extended(
    spec: str | Mapping[str, Any],
    earlier: DeployedPlan,
    broadcast: bytes = b"",
    fresh: bool = False,
) -> DeployedPlan:
    """Compile a plan that continues an earlier one, with the same parties and keys.

    Parameters
    ----------
    spec : str or mapping
        TOML text, or its tables: ``system``, ``calendar``, and those tables that differ from the
        earlier spec (``federation``, ``columns``, ``norm``, ``helper``).
    earlier : DeployedPlan
        The plan that is continued.
    broadcast : bytes
        The last broadcast of the earlier plan; empty if there is none.
    fresh : bool
        True to start without the earlier plan's model.

    Raises
    ------
    InputError
        If the spec is not valid, or its calendar begins before the earlier plan's last release.

    Notes
    -----
    Guarantee: as in the new plan's certificate. For a person who is in both plans, the certificate
    has an entry of `also` that names the earlier plan. The model from which silos start is computed
    from a broadcast, so its use costs no further privacy.
    """
    tables = tables_of(spec)
    for key in PARTIES:
        if key in tables:
            raise InputError(f"{key} come from the earlier plan; leave them out of the spec")
    for key in ("system", "calendar"):
        if key not in tables:
            raise InputError(f"the spec must have a table {key}: it is what an extension changes")
    document = document_of(
        _without_unused_keys({**_earlier_tables(earlier, tables), **tables}, tables)
    )
    # First derive the new plan as if it started without a model. Then check whether it can start
    # from the earlier plan's model.
    no_start_reason = no_start(document, checked(document, {}).plan, earlier)
    if not broadcast:
        no_start_reason = no_start_reason or "no-release"
    if fresh:
        no_start_reason = "requested"
    extends = Extension(
        spelled(earlier.document), b"" if no_start_reason else broadcast, no_start_reason
    )
    return checked(msgspec.structs.replace(document, extends=extends), {})


def _earlier_tables(earlier: DeployedPlan, new_tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an earlier plan's spec, except ``system`` and ``calendar``.

    They are computed from the plan. Keys that the tables of the new spec, ``new_tables``, make
    invalid are left out.
    """
    document = earlier.document
    federation = {"name": document.name, "least": document.least, "explore": document.explore}
    if earlier.clocks is not None or "clock" in new_tables.get("system", {}):
        # With and without clocks, `least` has different defaults.
        del federation["least"]
    federation |= {} if document.influence is None else {"influence": document.influence}
    federation |= {"sum": "masks"} if earlier.masked else {}
    schema = tables_of_schema(document.schema)
    if not {"columns", "actions", "reward"}.isdisjoint(new_tables):
        # With new columns the default norm is used: the norm of the largest row.
        del schema["norm"]
    hub = {key: text for key, text in _table(document.hub).items() if key != "name"}
    tables = {
        "federation": federation,
        "silos": [_table(party) for party in document.silos],
        "hub": hub,
    }
    if document.helper is not None:
        tables["helper"] = {k: text for k, text in _table(document.helper).items() if k != "name"}
    return tables | schema


def _without_unused_keys(tables: dict[str, Any], new_tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables without keys of the earlier spec that the new protocol does not use.

    ``new_tables`` are the tables of the new spec, which stay as they are.
    """
    protocol = tables["system"].get("protocol", "silo-ldp")
    federation = dict(tables.get("federation", {}))
    if "federation" not in new_tables:
        if protocol in (*SECURE_SUM_PROTOCOLS, "central"):
            federation.pop("influence", None)
        if protocol not in SECURE_SUM_PROTOCOLS:
            federation.pop("sum", None)
    used_tables = {**tables, "federation": federation}
    needs_helper = protocol in SECURE_SUM_PROTOCOLS and federation.get("sum") != "masks"
    if "helper" not in new_tables and not needs_helper:
        used_tables.pop("helper", None)
    return used_tables


def _table(party: Any) -> dict[str, str]:
    """Return a party's name and public keys as the table of a spec that defines it."""
    return {"name": party.name, "sign": party.sign.hex(), "open": party.open.hex()}


def last_broadcast(folder: str | Path) -> tuple[DeployedPlan, bytes]:
    """Return the plan and the last broadcast in the folder of a silo or of the hub.

    The broadcast is empty bytes before the first release.

    Raises
    ------
    InputError
        If ``folder`` is the folder of a helper, or has no plan.
    """
    target = Path(folder)
    if not (target / PLAN).exists():
        raise InputError(f"{target} holds no plan")
    try:
        answer = Client(target / SOCKET, wait=0).call("broadcast")
        return load(target / PLAN), bytes.fromhex(answer["broadcast"])
    except OSError:
        party = read_party(target).party
    if not isinstance(party, SiloParty | Hub):
        raise InputError(f"{target} is not the folder of a silo or of the hub")
    return party.deployed, party.broadcasts[max(party.broadcasts)] if party.broadcasts else b""


def check_room(
    ledger: Ledger, dataset: str, plan: DeployedPlan, ceiling: tuple[float, float] | None = None
) -> None:
    """Check that the ceiling of a dataset is high enough for a whole plan.

    The charges of other plans in the ledger are counted as well.

    Parameters
    ----------
    ledger : Ledger
    dataset : str
    plan : DeployedPlan
    ceiling : tuple of (float, float), optional
        (epsilon, delta). By default the ceiling in the ledger.

    Raises
    ------
    InputError
        If there is no ceiling, or all charges, including that of the whole plan, exceed it.
    """
    limits = ceiling or ledger.ceiling(dataset)
    if limits is None:
        raise InputError(f'no ceiling is set for dataset "{dataset}": give --epsilon and --delta')
    epsilon, delta = limits
    # The charge of the whole plan, added last, includes the charges of this plan's releases 1, 2,
    # ..., which are left out here. If records were lost, the ledger also has second charges of the
    # whole plan, with negative numbers of releases: count them in addition.
    charges = [c for c in ledger.charges(dataset) if c.plan != plan.digest]
    charges += [c for c in ledger.charges(dataset) if c.plan == plan.digest and c.release < 1]
    charges.append(charge_of(plan.executed, plan.digest, dataset, -1))
    spent = epsilon_of_charges(charges, delta)
    if spent > epsilon * (1.0 + 1e-9):
        raise InputError(
            f'with this plan dataset "{dataset}" would have spent epsilon {spent:.4g} at delta '
            f"{delta:g}, more than the ceiling {epsilon:g}; join with a larger --epsilon or make "
            "a plan that costs less"
        )


def prepare(folder: str | Path, plan: DeployedPlan, old_plan: str | Path) -> None:
    """Create a party's folder for a plan, with the secret from its folder of the earlier plan.

    Parameters
    ----------
    folder : str or Path
        The new folder.
    plan : DeployedPlan
        The plan that continues an earlier one.
    old_plan : str or Path
        The party's folder of the earlier plan.

    Raises
    ------
    InputError
        If ``plan`` continues no other plan, ``old_plan`` does not hold the plan that is continued,
        or both folders are the same. Also if the new plan starts from a broadcast of the earlier
        plan, and ``old_plan`` has a different broadcast of the same release.
    """
    target, old_folder = Path(folder), Path(old_plan)
    earlier, extends = plan.earlier, plan.document.extends
    if earlier is None or extends is None:
        raise InputError("the plan continues no other; join it without --extends")
    if load(old_folder / PLAN).digest != earlier.digest:
        raise InputError(f"{old_folder} is of another plan than the one that this plan continues")
    # A silo and the hub have the earlier broadcasts; the helper has none to compare with.
    if extends.start:
        name = party_of(earlier, read_secret(old_folder / SECRET))
        if earlier.document.helper is None or name != earlier.document.helper.name:
            _check_start(extends.start, old_folder, earlier)
    secret = target / SECRET
    if target == old_folder:
        raise InputError("a folder belongs to one plan; name a new one")
    if not secret.exists():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(read_secret(old_folder / SECRET))
            file.flush()
            os.fsync(file.fileno())


def _check_start(start: bytes, old_folder: Path, earlier: DeployedPlan) -> None:
    """Raise InputError if an old folder has a different broadcast of the start's release."""
    release = earlier.wire.read(start).release
    last = last_broadcast(old_folder)[1]
    if last and earlier.wire.read(last).release == release and last != start:
        raise InputError(
            f"the plan starts from another broadcast of release {release} than {old_folder} has"
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
    ceiling : tuple of (float, float), optional
        (epsilon, delta) of a silo's dataset. By default the ceiling that the ledger has.
    dataset : str, optional
        The dataset in the ledger. By default "records", or the dataset of ``extends``.
    ledger : str or Path, optional
        A ledger that several folders share. By default the ledger in the folder, or the ledger of
        ``extends``.
    extends : str or Path, optional
        The party's folder of the plan that this plan continues. The secret of that folder is copied
        to the new folder. A silo by default also keeps the ledger and the dataset of that folder.
    second_ledger : bool
        True to charge a different ledger or dataset than the earlier plan did. The ledger records
        this.

    Returns
    -------
    tuple of (str, DeployedPlan)
        The party's name, and the plan with its countersignature.

    Raises
    ------
    InputError
        If the plan does not verify; if a silo has no ceiling, or its ledger is not the ledger of
        the folder or of the earlier plan; or if a plan that continues another would exceed the
        ceiling. Nothing is written then, except the secret of a new folder.
    """
    target, plan = Path(folder), load(plan_file)
    if extends is not None:
        prepare(target, plan, extends)
    if not is_silo(target, plan_file):
        if ceiling is not None or dataset is not None or ledger is not None:
            raise InputError(
                "a ceiling, a dataset and a ledger belong to silos; the hub and a helper join "
                "without them"
            )
        return countersign(target, plan_file)
    if plan.earlier is not None and extends is None and ledger is None:
        raise InputError(
            f"the plan continues {plan.earlier.digest.hex()[:16]}; name its folder by --extends, "
            "or its ledger by --ledger"
        )
    # Use the ledger that this folder's note names, else the earlier folder's, else a new one.
    note = read_note(target)
    if note is None and extends is not None and not second_ledger:
        note = read_note(extends) or LedgerNote("records", Path(extends) / LEDGER)
    file = Path(ledger or target / LEDGER)
    if note is not None:
        charged_dataset, silo_ledger = ledger_of(note, dataset, ledger)
    elif ceiling is None and not file.exists():
        raise InputError("a silo needs a ceiling: give --epsilon and --delta")
    else:
        charged_dataset = line("dataset", dataset or "records")
        silo_ledger = Ledger(str(file))
    try:
        if ceiling is None and silo_ledger.ceiling(charged_dataset) is None:
            raise InputError("a silo needs a ceiling: give --epsilon and --delta")
        if plan.earlier is not None:
            if note is None and not second_ledger:
                _check_charged(silo_ledger, charged_dataset, plan.earlier)
            check_room(silo_ledger, charged_dataset, plan, ceiling)
        # All checks have passed: write to the folder and the ledger.
        joined = countersign(target, plan_file)
        if ceiling is not None:
            silo_ledger.set_ceiling(charged_dataset, *ceiling)
        if second_ledger:
            silo_ledger.add_second(charged_dataset, plan.digest)
        write_note(target, charged_dataset, silo_ledger)
    finally:
        silo_ledger.close()
    return joined


def _check_charged(ledger: Ledger, dataset: str, earlier: DeployedPlan) -> None:
    """Raise InputError if a dataset in a ledger has no charge of an earlier plan."""
    if not any(charge.plan == earlier.digest for charge in ledger.charges(dataset)):
        raise InputError(
            f'dataset "{dataset}" of {ledger.path} has no charge of the plan that this one '
            "continues: name that plan's folder by --extends; if these are records of another "
            "ledger, say so by --second-ledger, which the ledger notes"
        )
