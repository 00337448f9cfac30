"""A private LinUCB agent for one service: a federation of one silo, with its hub in one process.

It uses the parts of a deployment. Decisions are durable before they are answered, releases are made
by the calendar, noise comes from the operating system, and a ledger counts the spent budget.

With the protocol `silo-ldp` the silo adds the noise. So the model that chooses actions and the
hub's files hold noisy sums only. The silo's files hold the raw records of the service. With
`user-bit` users' devices send random bits in place of rewards, and the service never has a reward.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from fastfed._files import write_whole
from fastfed._validate import InputError, array, choice, integer, number, plain, show, with_example
from fastfed.deployment import folder as folders
from fastfed.deployment.calls import failure
from fastfed.deployment.ledger import Ledger, spent_lines
from fastfed.deployment.model import Decision, id_of
from fastfed.deployment.plans import compile_plan
from fastfed.deployment.process import Process, SiloProcess, settle
from fastfed.privacy.certificate import Certificate

__all__ = ["PrivateLinUCB"]

SILO, HUB, SETTINGS = "silo", "hub", "agent.json"
#: The dataset of the ledger.
DATASET = "records"
#: Settings that a new agent must have.
REQUIRED = ("epsilon", "delta", "period", "releases", "batch_size")
#: Protocols of an agent, the default first.
PROTOCOLS = ("silo-ldp", "user-bit")
#: Delta of the ceiling of an agent with pure epsilon-DP, whose charges need no delta.
SMALLEST_DELTA = 1e-12
#: Settings that are parts of a plan file.
TABLES = ("columns", "actions", "reward", "norm")
#: Keys of a curve that ``system`` must not have: they follow from the other settings.
COMPUTED_KEYS = ("algorithm", "protocol", "horizon", "batch_size", "epsilon", "delta")
#: Seconds after which a release that failed is tried again.
RETRY_SECONDS = 1.0


class PrivateLinUCB:
    """A LinUCB agent with differential privacy, whose state is a folder.

    The first call with a folder creates the agent. Later calls open it, and may omit the settings.
    Only one process can open an agent at a time. Several threads may use it.

    People are protected from everybody who sees actions, the model or the hub's files: replacing
    one person's record changes the distribution of these by little (user-level differential
    privacy, relation "replace"). The certificate states who else must be trusted.

    Parameters
    ----------
    folder : str or Path
        The folder of the agent. It holds secrets and records.
    epsilon, delta : float
        The budget of one person over all releases. `user-bit` needs no delta.
    period : int
        Seconds between two releases. Each release contains the rewards that became known in its
        period. A release after a number of rewards is not possible: one more person would move all
        later people to other releases.
    releases : int
        Number of releases. After the last one, the agent continues to use its last model, and
        learns nothing more.
    batch_size : int
        The largest expected number of people whose reward becomes known in one period. More people
        cost no privacy, but the confidence radius is then not proven.
    dimension : int, optional
        d, if the service passes the features of each action, each in [-1, 1].
    columns, actions, reward : optional
        Instead of ``dimension``: the columns, the catalogue of actions and the reward, as in a plan
        file (docs/records.md).
    norm : float, optional
        Features x become x / norm, shrunk to length 1 if they are longer. By default 1, and with
        ``columns`` the largest norm that a row can have.
    start : int, optional
        Start of the first period, in seconds since 1970. By default now.
    reward_deadline : int, optional
        A reward that comes more than this many seconds after its decision is not learned from. By
        default one period.
    protocol : {"silo-ldp", "user-bit"}, optional
        By default "silo-ldp": the agent is trusted with records. With "user-bit" nobody is trusted
        with rewards, and contexts are public. Each device then sends ``bit_to_send(reward,
        agent.flips)``, and the service passes it to `bit` (docs/user-bit.md).
    system : mapping, optional
        Further keys of a curve of `private-fedlinucb`, such as ``{"sieve": 0.1}``.

    Raises
    ------
    InputError
        If a setting is missing or not valid, or differs from the setting of the agent in the
        folder; or if the folder holds something else, or another process uses it.

    Examples
    --------
    >>> agent = PrivateLinUCB("shop", epsilon=1.0, delta=1e-6, period=86_400, releases=30,
    ...                       batch_size=5_000, dimension=10)           # doctest: +SKIP
    >>> decision = agent.select(features, subject="user 17")            # doctest: +SKIP
    >>> agent.observe(decision.id, 1.0)                                 # doctest: +SKIP
    """

    @with_example(
        'PrivateLinUCB("shop", epsilon=1.0, delta=1e-6, period=86_400, releases=30, '
        "batch_size=5_000, dimension=10)"
    )
    def __init__(
        self,
        folder: str | Path,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        period: int | None = None,
        releases: int | None = None,
        batch_size: int | None = None,
        dimension: int | None = None,
        columns: Sequence[Mapping[str, Any]] | None = None,
        actions: Mapping[str, Any] | None = None,
        reward: Mapping[str, Any] | None = None,
        norm: float | None = None,
        start: int | None = None,
        reward_deadline: int | None = None,
        protocol: str | None = None,
        system: Mapping[str, Any] | None = None,
    ) -> None:
        settings = {
            "epsilon": epsilon,
            "delta": delta,
            "period": period,
            "releases": releases,
            "batch_size": batch_size,
            "dimension": dimension,
            "columns": columns,
            "actions": actions,
            "reward": reward,
            "norm": norm,
            "start": start,
            "reward_deadline": reward_deadline,
            "protocol": protocol,
            "system": system,
        }
        given = {key: _plain(key, value) for key, value in settings.items() if value is not None}
        self.folder = Path(folder)
        if (self.folder / SETTINGS).exists():
            _check_same(self.folder, given)
        else:
            _create(self.folder, given)
        self._silo = cast(SiloProcess, folders.opened(self.folder / SILO))
        try:
            self._hub = folders.opened(self.folder / HUB)
        except BaseException:
            self._silo.close()
            raise
        self._processes: dict[str, Process] = {SILO: self._silo, HUB: self._hub}
        self._release_lock = threading.Lock()
        self._closed = False
        #: Why the last release could not be made; empty if nothing failed.
        self._problem = ""
        #: Monotonic time before which a release that failed is not tried again.
        self._try_after = 0.0
        self._closes = self._silo.party.deployed.document.calendar.closes
        self._advance_if_due()

    # ---- decisions -------------------------------------------------------------------------------

    def select(
        self,
        actions: object = None,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> Decision:
        """Choose an action for one person; the decision is durable when this returns.

        Parameters
        ----------
        actions : array_like, shape (K, d), optional
            Features of each action, for an agent with ``dimension``.
        subject : str or int, optional
            Who the person is. The agent learns only from the first decision for a person, or with
            the protocol "user-bit" from the first ``returning`` decisions (a key of ``system``).
            If the service gives no subjects, it promises that nobody comes twice.
        record : mapping, optional
            The person's record, for an agent with ``columns``.
        among : sequence of str, optional
            Names of the actions of the catalogue that may be chosen. By default all.

        Returns
        -------
        Decision
            ``id`` identifies the decision, ``action`` is the chosen index.

        Raises
        ------
        InputError
            For invalid features or records.
        OSError
            If the disk is full: nothing was stored then.
        """
        self._advance_if_due()
        rows = None if actions is None else array("actions", actions, ndim=2).tolist()
        return self._silo.decide(rows, subject, record=record, among=among)

    def observe(self, decision: str | Decision, reward: float) -> None:
        """Store the reward of a decision. Decisions may be rewarded in any order.

        Parameters
        ----------
        decision : str or Decision
            A decision, or its ``id``.
        reward : float
            In [0, 1]; other rewards are clipped.

        Raises
        ------
        InputError
            If there is no such decision, or it has a different reward already.
        """
        self._advance_if_due()
        self._silo.reward(id_of(decision), reward)

    def outcome(self, decision: str | Decision, value: object) -> None:
        """Store the outcome of a decision, from which the plan's ``reward`` computes the reward."""
        self._advance_if_due()
        self._silo.outcome(id_of(decision), value)

    def bit(self, decision: str | Decision, bit: int) -> None:
        """Store the bit, 0 or 1, that a user's device sends instead of the reward ("user-bit")."""
        self._advance_if_due()
        self._silo.bit(id_of(decision), bit)

    def cancel(self, decision: str | Decision) -> None:
        """End a decision that will never have a reward."""
        self._check_open()
        self._silo.cancel(id_of(decision))

    # ---- releases --------------------------------------------------------------------------------

    def advance(self) -> int:
        """Make all releases whose periods are over; return the number of releases made so far.

        ``select`` and ``observe`` do this when a period is over. So a service needs to call
        ``advance`` only to release in time while it calls neither of them.

        Raises
        ------
        InputError
            If a release cannot be made, such as while the clock of the machine is wrong. Decisions
            continue with the last model.
        OSError
            If the disk is full.
        """
        with self._release_lock:
            try:
                settle(self._processes)
            except InputError as error:
                raise InputError(f"{self.folder}: {error}") from None
            self._problem = ""
            return self.releases

    def _check_open(self) -> None:
        """Raise InputError after `close`."""
        if self._closed:
            raise InputError(
                f"this agent is closed: open it again with PrivateLinUCB({str(self.folder)!r})"
            )

    def _advance_if_due(self) -> None:
        """Make the next release if its period is over.

        If the release fails, warn; the agent then continues to decide with its last model.
        """
        self._check_open()
        releases = self.releases
        if releases == len(self._closes) or self._silo.now() < self._closes[releases]:
            return
        if time.monotonic() < self._try_after:
            return
        try:
            self.advance()
        except Exception as error:
            self._try_after = time.monotonic() + RETRY_SECONDS
            text = failure(error)[1]
            # Warn only once about a problem that lasts.
            if text != self._problem:
                logging.getLogger("fastfed").warning(text)
            self._problem = text

    # ---- state and privacy -----------------------------------------------------------------------

    @property
    def releases(self) -> int:
        """Number of releases made so far."""
        return int(self._silo.party.model.release)

    @property
    def theta(self) -> np.ndarray:
        """theta_hat of the last release, shape (d,); zeros before the first."""
        with self._silo.turn():
            return np.array(self._silo.party.model.theta)

    @property
    def flips(self) -> int:
        """The flip probability of a device's bit, times 2^53; 0 unless "user-bit"."""
        return int(self._silo.party.plan.flips)

    @property
    def certificate(self) -> Certificate:
        """The privacy certificate of all releases."""
        return self._silo.party.deployed.certificate

    @property
    def spent(self) -> dict[str, Any]:
        """The agent's entry of the ledger: ``spent_epsilon`` of its releases, and the ceiling."""
        (entry,) = spent_lines(self._silo.ledger)  # type: ignore[arg-type]
        return entry

    def status(self) -> dict[str, Any]:
        """Return the silo's status: what is open, what it waits for, and whether it has stopped.

        If the last release could not be made, ``problem`` says why.
        """
        status = self._silo.status()
        waits = cast(dict[str, Any], status["waits"])
        if waits["state"] == "hub":  # the hub is in this process, and answers when a period ends
            status["waits"] = waits | {
                "state": "open",
                "for": "the end of the period",
                "who": [],
                "do": "nothing is due",
            }
        return status | ({"problem": self._problem} if self._problem else {})

    def close(self) -> None:
        """Close the agent's files. An agent that opens the folder again continues from them."""
        self._closed = True
        self._silo.close()
        self._hub.close()

    def __repr__(self) -> str:
        """Return the call that opens the agent, and its number of releases."""
        state = "closed" if self._closed else f"{self.releases} of {len(self._closes)} releases"
        return f"PrivateLinUCB({str(self.folder)!r})  # {state}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


# ---- the folder ----------------------------------------------------------------------------------


def _plain(key: str, value: Any) -> Any:
    """Return the value of an agent's setting as plain data that JSON can hold.

    Raises InputError if JSON cannot hold the value. ``key`` is the name of the setting, for the
    message.
    """
    value = plain(value)
    if key in ("period", "reward_deadline") and type(value) is not int:
        raise InputError(
            f"{key} must be a number of whole seconds, such as 86_400 for a day, got {show(value)}"
        )
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise InputError(
            f"{key} must be numbers, texts, lists and tables, got {show(value)}"
        ) from None


def _check_same(folder: Path, given: Mapping[str, Any]) -> None:
    """Raise InputError if a given setting differs from the setting of the agent in the folder."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    for key, value in given.items():
        stored = settings.get(key, PROTOCOLS[0] if key == "protocol" else None)
        if stored != value:
            raise InputError(
                f"{key} must be {show(stored)}, as when the agent in {folder} was created, got "
                f"{show(value)}: its privacy is for these settings; create another agent in "
                "another folder, for other people"
            )


def _create(folder: Path, settings: Mapping[str, Any]) -> None:
    """Create the folder of a new agent. After an error or a crash, there is no such folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"folder must be new, empty, or that of an agent, got {folder}")
    has_bits = choice("protocol", settings.get("protocol", PROTOCOLS[0]), PROTOCOLS) == "user-bit"
    required = [key for key in REQUIRED if not (has_bits and key == "delta")]
    if missing := [key for key in required if key not in settings]:
        if "dimension" not in settings and "columns" not in settings:
            missing.append("dimension or columns")
        raise InputError(f"{folder} has no agent, and a new one needs {', '.join(missing)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-new-"))
    try:
        _write(temporary, settings)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write keys, plan, ledger and settings of a new agent into an empty folder."""
    keys = {name: folders.make_keys(folder / name) for name in (SILO, HUB)}
    spec = _spec_of(settings, keys)
    plan = compile_plan(spec)
    plan.save(folder / folders.PLAN)
    for name in keys:
        folders.countersign(folder / name, folder / folders.PLAN)
    system = spec["system"]
    ledger = Ledger(str(folder / SILO / folders.LEDGER))
    ledger.set_ceiling(DATASET, system["epsilon"], system.get("delta", SMALLEST_DELTA))
    ledger.close()
    text = json.dumps(dict(settings), indent=1, sort_keys=True, allow_nan=False)
    write_whole(folder / SETTINGS, text.encode())


def _spec_of(settings: Mapping[str, Any], keys: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the spec of an agent's plan, given the public keys of its silo and its hub.

    Raises
    ------
    InputError
        If a setting is not valid.
    """
    for key in COMPUTED_KEYS:
        if key in settings.get("system", {}):
            raise InputError(f"system must not have {key}, which follows from the other settings")
    period = integer("period", settings["period"], at_least=1)
    releases = integer("releases", settings["releases"], at_least=1)
    batch_size = integer("batch_size", settings["batch_size"], at_least=1)
    protocol, budget = settings.get("protocol", PROTOCOLS[0]), {}
    budget["epsilon"] = number("epsilon", settings["epsilon"], above=0.0)
    if "delta" in settings:
        budget["delta"] = number("delta", settings["delta"], above=0.0, below=1.0)
    spec: dict[str, Any] = {
        "federation": {"name": "agent", "least": 1},
        "system": {
            **settings.get("system", {}),
            **({"protects": "reward"} if protocol == "user-bit" else {}),
            "protocol": protocol,
            "horizon": releases * batch_size,
            "batch_size": batch_size,
            **budget,
        },
        "calendar": {
            "start": settings.get("start", math.floor(time.time())),
            "period": period,
            "grace": 0,  # there is no other silo to wait for
            "reward_deadline": settings.get("reward_deadline", period),
        },
        "silos": [{"name": SILO, **keys[SILO]}],
        "hub": keys[HUB],
        **{key: settings[key] for key in TABLES if key in settings},
    }
    dimension = settings.get("dimension")
    if (dimension is None) == ("columns" not in settings):
        given = "neither" if dimension is None else "both"
        raise InputError(
            "a new agent needs either dimension (features of actions) or columns (of records), "
            f"got {given}"
        )
    if dimension is not None:
        names = [f"x{i}" for i in range(integer("dimension", dimension, at_least=1))]
        spec["columns"] = [{"name": name, "low": -1.0, "high": 1.0} for name in names]
        spec.setdefault("norm", 1.0)
    return spec
