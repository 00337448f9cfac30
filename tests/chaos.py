"""Run federations of real processes under random faults for a given time.

    scripts/chaos --seconds 600 --seed 1 --folder /var/tmp/chaos

The seed draws plans among all that can be deployed. Their parties run as separate processes, made
by the commands of docs/run-it-for-real.md. Parties are killed, stopped and restored from old
backups, their disks are filled, and their clocks are set wrong; their network drops, delays and
cuts messages; strangers flood their ports. After every fault the script does what the pages tell a
person to do. The invariants are checked only from outside: from bytes on the wire, copies of
stores, statuses, standard errors, and answers to the applications.

``log.jsonl`` in the folder has a line for each action and finding. Folders of plans with a finding
are kept, others are deleted. Exit code 1 if anything was violated. Full disks need root (a tmpfs).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

YEAR = 365.25 * 86400
# Seconds in which a party must end after SIGTERM, and answer a member during a flood.
EXIT, ANSWER = 5.0, 10.0
SETTLE = 4.0  # seconds until a status must show a change: a few polls of the hub
GIVE_UP = 110.0  # seconds after the last fault and closing date; longer than a minute of `unheard`
LINEAR = 'protocol = "{}"\nhorizon = 100\nbatch_size = 20\nepsilon = 1.0\ndelta = 1e-6\n'
ROBIN = """algorithm = "robin"\nhorizon = 126\nepsilon = 2.0\ndelta = 1e-5\ninitial_phases = 2
diversity = 0.05\nconcentration_multiplier = 1e-3\n"""
SVT = """algorithm = "fed-svt"\nhorizon = 100\nphase_length = 20\nepsilon = 2.0\ndelta = 1e-5
optimal_loss = 1.0\n"""
SYSTEMS = {
    "silo-ldp": (LINEAR.format("silo-ldp"), ""),
    "central": (LINEAR.format("central"), ""),
    "sum-shares": (LINEAR.format("secure-sum"), "shares"),
    "sum-masks": (LINEAR.format("secure-sum"), "masks"),
    "shuffle-shares": (LINEAR.format("shuffle-vector"), "shares"),
    "shuffle-masks": (LINEAR.format("shuffle-vector"), "masks"),
    "robin": (ROBIN, ""),
    "fed-svt": (SVT, ""),
    "own-clocks": (LINEAR.format("silo-ldp"), ""),
}  # [system], and how sums are kept secret; with shares or masks every silo is in every set
PERIODS = 5  # periods of a plan; with clocks, of its fastest silo
CLOCK = '''"""Shift the wall clock of a party by the seconds in a file; monotonic clocks stay."""
import os
import time

_real, _real_ns, _file, _seen = time.time, time.time_ns, os.environ.get("CHAOS_CLOCK"), [0, 0.0]


def _shift():
    try:
        at = os.stat(_file).st_mtime_ns
        if at != _seen[0]:
            with open(_file) as file:
                _seen[:] = at, float(file.read())
    except (OSError, ValueError):
        pass
    return _seen[1]


if _file:
    time.time = lambda: _real() + _shift()
    time.time_ns = lambda: _real_ns() + int(_shift() * 1e9)
'''
CORNERS = {
    "records lost, all silos needed": "A secure sum needs every silo in every release ... a silo"
    " that leaves ends the plan. A silo that loses records before it has delivered their report"
    " ends the plan too. (deployment.md)",
    "too few reports left": "silos have lost the records of a report, and fewer than `least` still"
    " have one: a new plan (run-it-for-real.md)",
    "hub and silo restored": "If a silo ... was restored too ..., that report is lost, and a new"
    " plan is needed. (deployment.md)",
    "hub and helper restored": "So restore a helper only while you trust the hub, or begin a new"
    " plan. `has opened two sets of one release`: this plan is over (run-it-for-real.md)",
}


class Journal:
    """Write the log of actions and findings, and count them for the table at the end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.seed, self.stop = args, args.seed, threading.Event()
        self.until, self.lock = time.monotonic() + args.seconds, threading.Lock()
        self.file = (args.folder / "log.jsonl").open("a", encoding="utf-8")
        self.actions: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self.corners: Counter[str] = Counter()
        self.silence = self.slowest_exit = self.slowest_answer = 0.0

    def write(self, what: str, **more: Any) -> None:
        """Append one line to the journal."""
        line = {"time": datetime.now(UTC).isoformat(), "seed": self.seed, "what": what, **more}
        with self.lock:
            self.file.write(json.dumps(line, default=str) + "\n")
            self.file.flush()

    def action(self, kind: str, **more: Any) -> None:
        """Record a fault, or a person's action after a fault."""
        self.actions[kind] += 1
        self.write("action", kind=kind, **more)

    def check(self, kind: str, holds: bool, **more: Any) -> bool:
        """Count a check of an invariant, and record a violation."""
        self.checks[kind] += 1
        if not holds:
            self.violations[kind] += 1
            self.write("VIOLATION", kind=kind, **more)
            print(f"VIOLATION {kind}: {json.dumps(more, default=str)[:600]}", flush=True)
        return holds

    def table(self) -> None:
        """Print the summary."""
        print(f"\nseed {self.seed}\n{'plans':<44}{'number':>8}")
        for name, count in sorted(self.plans.items()):
            print(f"  {name:<42}{count:>8}")
        for name, count in self.corners.items():
            print(f"  documented end: {name}: {count}\n    {CORNERS[name]}")
        print(f"{'faults and answers to them':<44}{'number':>8}")
        for name, count in sorted(self.actions.items()):
            print(f"  {name:<42}{count:>8}")
        print(f"{'invariant':<44}{'checks':>8}{'violated':>10}")
        for name, count in sorted(self.checks.items()):
            print(f"  {name:<42}{count:>8}{self.violations[name]:>10}")
        print(f"longest silence {self.silence:.1f} s; slowest end after SIGTERM", end=" ")
        print(f"{self.slowest_exit:.1f} s; slowest answer under flood {self.slowest_answer:.1f} s")


# ---- network -------------------------------------------------------------------------------------


def certificates(folder: Path) -> None:
    """Create a certificate authority, and certificates for the hub and one member."""
    folder.mkdir()
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    new_key = "-newkey rsa:2048 -nodes -subj /CN={0} -keyout {0}.key"
    for name in ("ca", "hub", "member"):
        request = f"req {new_key.format(name)} "
        if name == "ca":
            commands = [request + "-x509 -days 9 -out ca.pem"
                        " -addext keyUsage=critical,keyCertSign,cRLSign"]  # fmt: skip
        else:
            signed = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9"
            commands = [f"{request} -out {name}.csr", f"{signed} -extfile ext -out {name}.pem"]
        for command in commands:
            words = ["openssl", *command.split()]
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
        (folder / f"{name}.key").chmod(0o400)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Proxy:
    """A proxy to the hub that disturbs connections by its ``mode`` and reads plaintext reports."""

    def __init__(self, port: int, seen: Callable[[bytes], None], seed: float) -> None:
        self.hub, self.seen, self.rng, self.mode = port, seen, random.Random(seed), ""
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _listen(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forward a connection to the hub under the current fault of the network."""
        mode = self.mode if self.rng.random() < 0.7 else ""
        limit = self.rng.randrange(900) if mode == "cut" else 1 << 40
        with client, suppress(OSError):
            if mode == "drop":
                return
            if mode == "delay":
                time.sleep(self.rng.uniform(0.2, 4.0))
            with socket.create_connection(("127.0.0.1", self.hub), 10) as hub:
                back = threading.Thread(
                    target=self._pump, args=(hub, client, limit, False, mode), daemon=True
                )
                back.start()
                self._pump(client, hub, limit, True, mode)
                back.join(125 if not mode else 8)

    def _pump(
        self, source: socket.socket, target: socket.socket, limit: int, to_hub: bool, mode: str
    ) -> None:
        """Forward bytes in one direction, until the fault of this connection."""
        unread, source_ended = b"", False
        source.settimeout(125 if not mode else 8)
        with suppress(OSError):
            while limit > 0:
                data = source.recv(65536)[:limit]
                if not data:
                    source_ended = True
                    break
                limit -= len(data)
                if to_hub:
                    unread = self._read(unread + data)
                if mode == "half" and not to_hub:
                    time.sleep(self.rng.uniform(1, 8))  # the answer never comes
                    break
                target.sendall(data)
        with suppress(OSError):
            if source_ended:
                target.shutdown(socket.SHUT_WR)
            else:
                target.shutdown(socket.SHUT_RDWR)
                source.shutdown(socket.SHUT_RDWR)

    def _read(self, unread: bytes) -> bytes:
        """Give each complete plaintext message to `seen`; return the incomplete rest."""
        while (header_end := unread.find(b"\r\n\r\n")) >= 0:
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", unread[: header_end + 2])
            message_end = header_end + 4 + (int(length[1]) if length else 0)
            if len(unread) < message_end:
                break
            self.seen(unread[header_end + 4 : message_end])
            unread = unread[message_end:]
        return unread[-(1 << 20) :]


class LocalConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket of a silo."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("silo", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    """Send one request; return code and answer, with code 0 if there was none."""
    try:
        with closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return 0, f"{type(problem).__name__}: {problem}"


def flood(
    connect: Callable[[], socket.socket], rng: random.Random, seconds: float, old: bytes
) -> None:
    """Open idle and unfinished connections, and send garbage, huge headers and old messages."""
    post = b"POST /v1/messages HTTP/1.1\r\nHost: hub\r\n"
    flipped = bytearray(old or b"\x97\x02")
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    kinds = [
        b"",
        rng.randbytes(2000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake that is not finished
        b"GET /status HTTP/1.1\r\n" + b"X-Long: " + b"a" * 300_000,
        b"GET /status HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(5000)) + b"\r\n",
        post + b"Content-Length: 100000\r\n\r\n" + b"\x97\x02",
        post + b"Content-Length: 99999999999\r\n\r\n",
        post + b"Content-Length: 600\r\n\r\n" + rng.randbytes(600),
        post + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        post + b"Content-Length: %d\r\n\r\n" % len(flipped) + bytes(flipped),
        post + b"Content-Length: %d\r\n\r\n" % len(old) + old,
        b"POST /decide HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n" + b"[" * 30000,
        b"POST /reward HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n" + b'{"id": 1e400}    ',
    ]
    deadline, opened = time.monotonic() + seconds, []
    try:
        while time.monotonic() < deadline:
            if len(opened) < 300:
                with suppress(OSError):
                    opened.append(connect())
                    opened[-1].settimeout(0.2)
                    opened[-1].sendall(rng.choice(kinds))
            with suppress(OSError, IndexError):
                rng.choice(opened).send(b"a")  # drip
            time.sleep(0.008)
    finally:
        for connection in opened:
            connection.close()


# ---- parties -------------------------------------------------------------------------------------


class Party:
    """One party: its folder, its process, and its current faults."""

    def __init__(self, plan: Plan, name: str, role: str) -> None:
        self.plan, self.name, self.role = plan, name, role
        self.folder, self.errors = plan.home / name, plan.home / f"{name}.err"
        self.clock, self.process, self.options = plan.home / f"{name}.clock", None, []
        self.fault = self.mounted = ""
        # Whether the party should run, ever got an old state, and has answered since its start.
        self.expected = self.restored = self.answered = False
        self.clock_moved, self.healed, self.backups = False, 0.0, []
        self.lock = threading.RLock()
        # The application's copy, to compare after restores: id -> [when decided, reward, when].
        self.acked: dict[str, list[Any]] = {}
        self.spent, self.recovering, self.started = 0.0, 0.0, 0.0

    def mount(self) -> None:
        """Put the folder on a small disk, so that it can be filled."""
        self.folder.mkdir(mode=0o700)
        if (
            os.geteuid() == 0
            and not subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "chaos", str(self.folder)],
                capture_output=True,
            ).returncode
        ):
            self.mounted = str(self.folder)

    def unmount(self) -> None:
        """Unmount the small disk; copy its files to the folder if the plan's folder is kept."""
        if self.mounted:
            saved = self.folder.with_name(f"{self.name}.kept")
            for path in self.folder.glob("*"):
                if path.is_file() and path.name != "filler":
                    saved.mkdir(exist_ok=True)
                    shutil.copy2(path, saved)
            subprocess.run(["umount", "-l", self.mounted], capture_output=True)
            self.mounted = ""

    def start(self) -> None:
        """Start the process; its standard error is appended to a file."""
        python_path = f"{self.plan.site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        env = os.environ | {"PYTHONPATH": python_path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1",
                            "CHAOS_CLOCK": str(self.clock)}  # fmt: skip
        command = [self.plan.fastfed, self.role, str(self.folder), *self.options]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdout=errors,
                stderr=errors,
                cwd=self.plan.home,
                start_new_session=True,
            )
        self.expected, self.answered, self.started = True, False, time.monotonic()

    @property
    def running(self) -> bool:
        """Return whether there is a process."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, if there is a process."""
        if self.running:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the process at once."""
        self.expected = False
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def terminate(self) -> None:
        """Send SIGTERM, which must end the process in time."""
        if not self.running:
            return
        self.expected = False
        self.signal(signal.SIGCONT)
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        took, journal = time.monotonic() - began, self.plan.journal
        journal.slowest_exit = max(journal.slowest_exit, took)
        code = self.process.poll()
        self.plan.check("ends within 5 s of SIGTERM", took <= EXIT, who=self.name, took=took)
        good = code == 0 or (not self.answered and code in (143, 130, -15)) or "disk" in self.fault
        self.plan.check(
            "exit code after SIGTERM",
            good,
            who=self.name,
            code=code,
            fault=self.fault,
            age=time.monotonic() - self.started,
        )
        self.kill()

    def shift(self, seconds: float) -> None:
        """Set the party's wall clock wrong by some seconds; 0 corrects it."""
        self.clock_moved = True
        spare = self.clock.with_suffix(".new")
        spare.write_text(repr(seconds))
        spare.replace(self.clock)

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def ask(self, call: str, timeout: float = 3.0, **body: Any) -> tuple[int, Any]:
        """Send one request; return code and answer, with code 0 if there was none."""
        return ask(LocalConnection(self.folder / "silo.sock", timeout), "POST", f"/{call}", body)

    def backup(self) -> None:
        """Copy the state at one moment, and note the reports in it."""
        copied_at, target = time.monotonic(), self.plan.home / "backups" / self.name
        target = target / str(len(self.backups))
        target.mkdir(parents=True)
        halted = self.running and not self.fault
        try:
            if halted:
                self.signal(signal.SIGSTOP)
                time.sleep(0.02)
            for name in ("state.sqlite", "state.sqlite-wal"):
                if (self.folder / name).exists():
                    shutil.copy2(self.folder / name, target)
        finally:
            if halted:
                self.signal(signal.SIGCONT)
        self.backups.append((copied_at, target))
        with suppress(sqlite3.Error), closing(sqlite3.connect(":memory:")) as memory:
            copy = target.with_name(f"{target.name}.read")
            shutil.copytree(target, copy)
            with closing(sqlite3.connect(copy / "state.sqlite")) as base:
                base.backup(memory)
            shutil.rmtree(copy)
            for (value,) in memory.execute("SELECT value FROM writes"):
                self.plan.note(bytes(value) if isinstance(value, bytes) else b"", self.name)

    def restore(self, rng: random.Random) -> str:
        """Restore an old state, but not the ledger; return the name of the backup."""
        copied_at, source = rng.choice(self.backups[-4:])
        with self.lock:
            self.kill()
            for path in self.folder.glob("state.sqlite*"):
                path.unlink()
            for path in source.iterdir():
                shutil.copy2(path, self.folder)
            self.restored = True
            for decision, (decided, _, rewarded) in list(self.acked.items()):
                if decided >= copied_at or (rewarded or 0.0) >= copied_at:
                    del self.acked[decision]
        return source.name


def releases_of(status: dict[str, Any]) -> int:
    """Return the number of releases, or of views, in a party's status."""
    return status.get("views", status.get("released", status.get("model")))


def broadcasts_of(folder: Path) -> dict[str, str]:
    """Return number -> digest of the broadcasts in a silo's state."""
    with closing(sqlite3.connect(f"{(folder / 'state.sqlite').as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT key, value FROM writes WHERE kind = 'broadcast'").fetchall()
    return {key: hashlib.sha256(value).hexdigest()[:16] for key, value in rows}


class Plan:
    """Run one federation from its keys to its last release."""

    def __init__(self, journal: Journal, number: int) -> None:
        args, self.rng = journal.args, random.Random(f"{journal.seed}/{number}")
        self.journal, self.fastfed = journal, args.fastfed
        self.home, self.site = args.folder / f"plan{number}", args.folder / "site"
        kinds = args.systems or list(SYSTEMS)
        random.Random(args.seed).shuffle(kinds)
        self.kind, self.tls = kinds[number % len(kinds)], self.rng.choice(["", "", "tls", "mutual"])
        self.system, self.sum_kind = SYSTEMS[self.kind]
        self.title = f"plan{number} {self.kind}{' ' + self.tls if self.tls else ''}"
        self.period, self.releases = self.rng.choice([10, 12, 15]), 0
        self.grace = self.period // 2
        self.silos = [Party(self, n, "silo") for n in "abcde"[: self.rng.choice([3, 3, 4, 5])]]
        self.clocks = self.kind == "own-clocks"
        if self.clocks:
            self.system, self.view_times = self.clocked()
        self.least_silos = (
            len(self.silos) if self.sum_kind else self.rng.choice([2, len(self.silos) - 1])
        )
        self.hub = Party(self, "hub", "serve")
        self.parties = [self.hub, *self.silos]
        if self.sum_kind == "shares":
            self.parties.append(Party(self, "third", "helper"))
        self.reports: dict[tuple[str, int], dict[str, str]] = {}
        self.messages: list[bytes] = []
        self.statuses: dict[str, Any] = {}
        self.released, self.silent_since, self.ended, self.dead = 0, 0.0, False, False
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.note_lock, self.failures = threading.Lock(), 0

    def clocked(self) -> tuple[str, list[int]]:
        """Draw clocks of silos: return [system], and the seconds from the start to each exchange.

        Silos differ in their rates. One of them may come late, pause or leave.
        """
        horizon, batch = PERIODS * self.period, self.period
        rates = [1.0, *(self.rng.choice([1.0, 0.7, 0.5, 0.3]) for _ in self.silos[1:])]
        asleep, last = [], len(self.silos) - 1
        kind = self.rng.choice(["late", "pause", "leave", ""])
        if kind:
            rates[last] = 1.0
            interval = {"late": [1, 2 * batch], "pause": [batch + 3, 3 * batch],
                        "leave": [3 * batch, horizon]}  # fmt: skip
            asleep = [[last, *interval[kind]]]
        closes = set()
        for silo, rate in enumerate(rates):
            served = 0
            for tick in range(1, horizon + 1):
                is_asleep = any(i == silo and a <= tick <= b for i, a, b in asleep)
                comes = int(tick * rate + 1e-9) - int((tick - 1) * rate + 1e-9)
                served += comes and not is_asleep
                if comes and not is_asleep and served % batch == 0:
                    closes.add(tick)
        system = self.system.replace("horizon = 100", f"horizon = {horizon}")
        system = system.replace("batch_size = 20", f"batch_size = {batch}")
        return f"{system}clock = {{ rates = {rates}, asleep = {asleep} }}\n", sorted(closes)

    def close_of(self, number: int) -> float:
        """Return when the period of a release, or the moment of a view, is over."""
        if not self.clocks:
            return self.start + number * self.period
        return self.start + self.view_times[min(number, len(self.view_times)) - 1]

    # ---- making the plan, as the pages describe ----

    def cli(self, *words: str) -> str:
        """Run a command as a person does, without a traceback; return its output if it succeeds."""
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            [self.fastfed, *words],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=env,
            start_new_session=True,
        )
        self.check("commands without traceback", "Traceback" not in result.stderr, words=words,
                   error=result.stderr[-2000:])  # fmt: skip
        if result.returncode:
            self.journal.write("command", plan=self.title, words=words, error=result.stderr[-600:])
        return result.stdout if not result.returncode else ""

    def check(self, kind: str, holds: bool, **more: Any) -> bool:
        """Call the journal's `check` with the name of this plan."""
        self.failures += not holds
        return self.journal.check(kind, holds, plan=self.title, **more)

    def make(self) -> None:
        """Create keys, spec, plan, countersignatures, certificates and ports."""
        self.home.mkdir()
        for party in self.parties:
            if self.rng.random() < 0.5:
                party.mount()
        keys = {party.name: self.cli("deploy", "keys", party.name) for party in self.parties}
        self.start = int(time.time()) + 14 + 3 * len(self.parties)
        lines = [f'norm = 1.5\n[federation]\nname = "{self.kind}"']
        lines += [] if self.clocks else [f"least = {self.least_silos}"]
        lines += ['sum = "masks"'] if self.sum_kind == "masks" else []
        lines += [f"[system]\n{self.system}[calendar]\nstart = {self.start}"]
        lines += ["round = 1" if self.clocks else f"period = {self.period}"]
        lines += [f"grace = {self.grace}\nreward_deadline = 600"]
        for name in ("age", "dose", "bmi"):
            lines.append(f'[[columns]]\nname = "{name}"\nlow = 0.0\nhigh = 1.0')
        lines += [f'[[silos]]\nname = "{each.name}"\n{keys[each.name]}' for each in self.silos]
        lines.append(f"[hub]\n{keys['hub']}")
        if self.sum_kind == "shares":
            lines.append(f"[helper]\n{keys['third']}")
        (self.home / "spec.toml").write_text("\n".join(lines))
        self.cli("deploy", "new", "spec.toml", "plan")
        joins = []
        for party in self.parties:
            ceiling = ("--epsilon", "5", "--delta", "1e-6") if party.role == "silo" else ()
            words = ("deploy", "join", party.name, "plan", *ceiling)
            joins.append(threading.Thread(target=self.cli, args=words))
            joins[-1].start()
        for each in joins:
            each.join()
        self.port = free_port()
        self.proxy = Proxy(self.port, lambda body: self.note(body, "wire"), self.rng.random())
        tls, dial = self.home / "tls", ["--hub", f"http://127.0.0.1:{self.proxy.port}"]
        self.hub.options, self.context = ["--port", str(self.port)], None
        if self.tls:
            certificates(tls)
            dial = ["--hub", f"https://127.0.0.1:{self.proxy.port}", "--ca", str(tls / "ca.pem")]
            self.hub.options += ["--cert", str(tls / "hub.pem"), "--key", str(tls / "hub.key")]
            self.context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        if self.tls == "mutual":
            self.hub.options += ["--client-ca", str(tls / "ca.pem")]
            member_files = tls / "member.pem", tls / "member.key"
            dial += ["--cert", str(member_files[0]), "--key", str(member_files[1])]
            self.context.load_cert_chain(*member_files)
        for party in self.parties[1:]:
            party.options = [*dial, "--every", "0.7"]

    def note(self, body: bytes, where: str) -> None:
        """Note a report seen on the wire or in a store; each silo must have one per release."""
        with suppress(msgspec.DecodeError, ValueError, TypeError):
            parts = msgspec.msgpack.decode(body)
            if not isinstance(parts, list) or len(parts) != 7:
                return
            if where == "wire" and len(self.messages) < 200:
                self.messages.append(body)
            if parts[2] != "report":
                return
            with self.note_lock:
                seen = self.reports.setdefault((parts[3], parts[4]), {})
                digest, seen_before = hashlib.sha256(body).hexdigest()[:16], bool(seen)
                new, seen[digest] = digest not in seen, seen.get(digest, where)
            self.check("one report a silo and release", not (seen_before and new), silo=parts[3],
                       release=parts[4], seen=seen)  # fmt: skip

    def hub_status(self, timeout: float = 3.0) -> tuple[int, Any]:
        """Return the hub's status."""
        if self.context:
            line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout,
                                               context=self.context)  # fmt: skip
        else:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return ask(line, "GET", "/status")

    # ---- what runs beside the faults ----

    def application(self, silo: Party) -> None:
        """Request decisions and report rewards, as a silo's application does."""
        rng = random.Random(f"{self.journal.seed}/{self.title}/{silo.name}")
        while not self.ended:
            time.sleep(rng.uniform(0.1, 0.8))
            with silo.lock:
                waiting = [i for i, each in silo.acked.items() if each[1] is None]
                if waiting and rng.random() < 0.5:
                    decision, reward = rng.choice(waiting), round(rng.random(), 3)
                    if self.reward(silo, decision, reward)[0] == 200:
                        silo.acked[decision][1:] = reward, time.monotonic()
                    else:
                        # The party may or may not have accepted the reward.
                        silo.acked.pop(decision)
                    continue
                body = {"subject": f"patient {rng.randrange(10**6)}"}
                if self.kind != "fed-svt":
                    body["actions"] = [[round(rng.random(), 3) for _ in range(3)] for _ in range(3)]
                code, reply = silo.ask("decide", **body)
                if code == 200:
                    silo.acked[reply["id"]] = [time.monotonic(), None, None]

    def reward(self, silo: Party, decision: str, reward: float) -> tuple[int, Any]:
        """Report the reward of a decision, or the losses of all experts."""
        if self.kind == "fed-svt":
            return silo.ask("losses", id=decision, losses=[reward] * 3)
        return silo.ask("reward", id=decision, reward=reward)

    def watch(self) -> None:
        """Query the status of all parties each second, and judge the statuses."""
        while not self.ended:
            began = time.monotonic()
            code, status = self.hub_status()
            now = {"hub": status if code == 200 else None}
            for silo in self.silos:
                code, status = silo.ask("status", 1.5)
                now[silo.name] = status if code == 200 else None
            for party in self.parties:
                # A helper has no status: assume that it has started after some seconds.
                slow = party.role == "helper" and time.monotonic() - party.started > 20
                party.answered |= slow or (bool(now.get(party.name)) and party.started < began)
            self.statuses = now
            self.judge(now)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def judge(self, now: dict[str, Any]) -> None:
        """Check whether a release is overdue, and how long no status has named the cause."""
        hub, clock = now["hub"], time.monotonic()
        models = [releases_of(status) for status in now.values() if status]
        self.releases = hub["releases"] if hub else self.releases
        if hub and self.clocks:
            self.check("as many views as moments", self.releases == len(self.view_times), hub=hub)
        if max([0, *models]) > self.released:
            self.released = max(models)
            self.journal.write("released", plan=self.title, release=self.released)
        seconds_late = time.time() - (self.close_of(self.released + 1) + self.grace)
        overdue = seconds_late > 0 and self.released < (self.releases or 1) and any(now.values())
        if overdue and not self.named(now):
            self.silent_since = self.silent_since or clock
            without_theta = {n: e and {k: e[k] for k in e if k != "theta"} for n, e in now.items()}
            self.silence = {
                "release": self.released + 1,
                "overdue": round(seconds_late, 1),
                "faults": {p.name: p.fault for p in self.parties if p.fault},
                "healed": {p.name: round(clock - p.healed, 1) for p in self.parties if p.healed},
                "said": without_theta,
            }
        elif self.silent_since:
            span, self.silent_since = clock - self.silent_since, 0.0
            self.journal.silence = max(self.journal.silence, span)
            self.check("cause named while overdue", span <= SETTLE, seconds=span, **self.silence)
        elif overdue:
            self.journal.checks["cause named while overdue"] += 1
            if any("clock" in p.fault for p in self.parties) and "clock" not in json.dumps(now):
                self.journal.actions["(overdue, a clock is wrong, no status says clock; s)"] += 1

    def named(self, now: dict[str, Any]) -> bool:
        """Return whether a running party's status names what the release waits for.

        If parties are at fault, some status must name one of them.
        """
        clock = time.monotonic()
        causes = {
            # The plan refers to the helper by its role.
            p.role if p.role == "helper" else p.name
            for p in self.parties
            # A party that was just repaired may still be starting, or has sent no message yet.
            if p.fault or not p.running or clock - max(p.healed, p.started) < 10.0
        }
        for name, status in now.items():
            waits = (status or {}).get("waits") or {}
            state, who = waits.get("state"), waits.get("who") or ()
            if state in ("over", "ended", "stopped", "recover", "ceiling", "alarm", "given-up"):
                return True
            if causes and self.proxy.mode == "" and not self.names_one_of(name, status, causes):
                continue
            if any((status or {}).get(key) for key in ("clock_off", "stopped", "lost", "problem")):
                return True
            if name == "hub" and state not in (None, "open") and (who or state == "helper"):
                return True  # the hub waits for messages of these parties
            away = not now["hub"] or self.hub.fault
            if name != "hub" and away and (state == "hub" or "hub" in who):
                return True
        return False

    def names_one_of(self, name: str, status: dict[str, Any] | None, causes: set[str]) -> bool:
        """Return whether a status names one of the parties at fault."""
        waits = (status or {}).get("waits") or {}
        if name in causes or causes & set(waits.get("who") or ()):
            return True
        # Any party that compares clocks may report a wrong clock.
        return bool((status or {}).get("clock_off"))

    # ---- faults ----

    def later(self, seconds: float, action: Callable[[], Any]) -> None:
        """Schedule a call after some seconds."""
        self.events.append((time.monotonic() + seconds, action))

    def fault(self) -> None:
        """Draw one fault, apply it, and schedule its repair."""
        rng, healthy = self.rng, [p for p in self.parties if not p.fault and p.running]
        if rng.random() < 0.12 and not self.proxy.mode:
            self.proxy.mode = rng.choice(["drop", "delay", "half", "cut"])
            self.journal.action(f"proxy {self.proxy.mode}", plan=self.title)
            self.later(rng.uniform(3, 10), lambda: setattr(self.proxy, "mode", ""))
            return
        if not healthy:
            return
        party, repair_after = rng.choice(healthy), rng.uniform(1, self.grace * 2)
        kinds = {"kill": 4, "term": 2, "stop": 3, "full disk": 3 * bool(party.mounted), "clock": 3,
                 "clock over restart": 2, "flood": 2 * (party.role != "helper"),
                 "restore": 1.5 * bool(party.backups) * (0.5 if self.sum_kind else 1)}  # fmt: skip
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        details: dict[str, Any] = {"seconds": round(repair_after, 1)}
        if kind == "flood":
            flooding = (party, random.Random(rng.random()), rng.uniform(2, 6))
            threading.Thread(target=self.flood, args=flooding, daemon=True).start()
            self.journal.action(f"flood {party.role}", plan=self.title, who=party.name)
            return
        party.fault = kind
        if kind in ("kill", "term"):
            party.kill() if kind == "kill" else party.terminate()
        elif kind == "stop":
            party.signal(signal.SIGSTOP)
        elif kind == "full disk":
            party.fill()
            choice = rng.random()
            if choice < 0.6:  # the process ends, or starts, while its disk is full
                self.later(repair_after / 3, party.terminate if choice < 0.3 else party.kill)
            if choice < 0.4:
                self.later(repair_after / 2, party.start)
        elif kind == "restore":
            details["backup"], repair_after = party.restore(rng), 0.2
        else:
            sizes = [3.0, 12.0, 25.0, 40.0, 3600.0, 86400.0, YEAR, 10 * YEAR]
            details["shift"] = rng.choice(sizes) * rng.choice([-1, 1])
            repair_after *= 3 if rng.random() < 0.3 else 1
            party.shift(details["shift"])
            if kind == "clock over restart":
                party.kill()
                party.start()
        self.later(max(repair_after, 1.5 * ("clock" in kind)), lambda: self.repair(party))
        self.journal.action(f"{kind} {party.role}", plan=self.title, who=party.name, **details)

    def repair(self, party: Party) -> None:
        """Repair a fault as the documentation says that a person repairs it."""
        party.signal(signal.SIGCONT)
        (party.folder / "filler").unlink(missing_ok=True)
        if "clock" in party.fault:
            party.shift(0.0)
        if party.fault == "clock over restart":
            # A running party would trust the corrected clock only after ten minutes.
            party.terminate()
        if not party.running:
            party.start()
        party.fault, party.healed = "", time.monotonic()

    def flood(self, party: Party, rng: random.Random, seconds: float) -> None:
        """Open idle and unfinished connections, and send garbage, huge headers and old messages."""

        def connect() -> socket.socket:
            """Return a connection to the hub or to the silo's Unix socket."""
            if party.role == "serve":
                return socket.create_connection(("127.0.0.1", self.port), 0.2)
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(0.2)
            connection.connect(str(party.folder / "silo.sock"))
            return connection

        old = rng.choice(self.messages) if self.messages else b""
        stranger = threading.Thread(target=flood, args=(connect, rng, seconds, old), daemon=True)
        stranger.start()
        while party.role == "serve" and stranger.is_alive() and not self.ended:
            began, code = time.monotonic(), 0
            while code != 200 and time.monotonic() - began < ANSWER and not party.fault:
                code = self.hub_status(ANSWER)[0]
            took = time.monotonic() - began
            if not party.fault and max(party.started, party.healed) < began - ANSWER:
                self.journal.slowest_answer = max(self.journal.slowest_answer, took)
                good = code == 200 and took <= ANSWER
                self.check("hub answers a member under flood", good, took=took, code=code)
            time.sleep(0.5)

    def care(self) -> None:
        """Restart and recover parties, as a service manager and people do."""
        for party in self.parties:
            if party.expected and not party.running:
                code = party.process.poll()
                last = party.errors.read_text(errors="replace")[-400:]
                # A party that is started on a full disk reports this and ends, as the page says.
                excused = "disk" in party.fault or "cannot be written" in last[-120:]
                self.check("no party ends by itself", excused, who=party.name, code=code, last=last,
                           fault=party.fault)  # fmt: skip
                if "disk" in party.fault:
                    party.expected = False
                else:
                    party.start()
            status = self.statuses.get(party.name) or {}
            state = (status.get("waits") or {}).get("state")
            if (
                party.role == "silo"
                and (status.get("lost") or state == "recover")
                and party.running
            ):
                party.recovering = party.recovering or time.monotonic() + self.rng.uniform(1, 4)
                if time.monotonic() > party.recovering and not party.fault:
                    self.journal.action("recover", plan=self.title, who=party.name)
                    if not self.cli(
                        "deploy", "recover", party.name
                    ):  # the ceiling may be the reason
                        more = ("--epsilon", "20", "--delta", "1e-6")
                        self.cli("deploy", "join", party.name, "plan", *more)
                    party.recovering = time.monotonic() + 6

    def ledger(self, silo: Party) -> None:
        """Check that the ledger never exceeds its ceiling and loses no charge."""
        text = self.cli("ledger", "show", f"{silo.name}/ledger.sqlite")
        if not text and "disk" in silo.fault:
            return
        if self.check("ledger can be read", bool(text), who=silo.name, fault=silo.fault):
            (line,) = json.loads(text)
            spent, ceiling = line["spent_epsilon"], line["ceiling_epsilon"]
            self.check("ledger below its ceiling", spent <= ceiling, who=silo.name, line=line)
            self.check("ledger never forgets", spent >= silo.spent, who=silo.name, line=line,
                       before=silo.spent)  # fmt: skip
            silo.spent = spent

    # ---- one run ----

    def run(self) -> None:
        """Run the whole plan."""
        threads: list[threading.Thread] = []
        try:
            self.make()
            self.journal.write("plan", plan=self.title, silos=len(self.silos),
                               least=self.least_silos, period=self.period, grace=self.grace,
                               start=self.start)  # fmt: skip
            for party in self.parties:
                party.start()
            threads = [threading.Thread(target=self.watch)]
            threads += [threading.Thread(target=self.application, args=(s,)) for s in self.silos]
            for each in threads:
                each.start()
            outcome = self.live()
            if outcome != "cut short by --seconds":
                self.finish(outcome == "completed")
            self.journal.plans[outcome] += 1
            self.journal.write("end", plan=self.title, outcome=outcome, said=self.statuses)
        except Exception as problem:  # an error of this script: report it, clean up, continue
            self.check("script", False, problem=repr(problem))
            raise
        finally:
            self.ended = True
            for party in self.parties:
                party.kill()
            for each in threads:
                each.join(15)
            self.scan()
            if hasattr(self, "proxy"):
                self.proxy.close()
            for party in self.parties:
                party.unmount()
            if not self.failures:
                shutil.rmtree(self.home, ignore_errors=True)

    def live(self) -> str:
        """Cause faults until the last closing date, then wait. Return how the plan ended."""
        faults_from, next_fault, backed = self.start - 4, 0.0, 0
        next_ledger, last = time.monotonic() + 10, time.monotonic()
        while not self.journal.stop.is_set() and time.monotonic() < self.journal.until - 12:
            now = time.monotonic()
            for event in sorted(self.events, key=lambda each: each[0]):
                if event[0] <= now:
                    self.events.remove(event)
                    event[1]()
            self.care()
            closing = self.close_of(self.releases or PERIODS)
            if faults_from < time.time() < closing - 2:
                if now > next_fault:
                    self.fault()
                    next_fault = now + self.rng.uniform(0.5, 4.0)
                last = now
            last = now if self.events else last
            if time.time() > self.start and (self.released > backed or not self.hub.backups):
                backed = self.released
                for party in self.parties:
                    if not party.fault and party.running:
                        party.backup()
            if now > next_ledger:
                self.ledger(self.rng.choice(self.silos))
                next_ledger = now + 8
            if self.releases and not self.events and self.done():
                return "completed"
            corner = self.corner() if not self.events and now - last > 20 else ""
            if corner and now - last > 75:
                self.journal.corners[corner] += 1
                return "documented end"
            if now - last > GIVE_UP and time.time() > closing + self.grace + GIVE_UP:
                self.check("plan completes", False, said=self.statuses,
                           restored=[p.name for p in self.parties if p.restored])  # fmt: skip
                return "stuck"
            time.sleep(0.2)
        return "cut short by --seconds"

    def done(self) -> bool:
        """Return whether all parties have all releases and no party still has to recover."""
        if not all(p.answered and p.running for p in self.parties if p.role != "helper"):
            return False  # a status may be older than the process
        for status in self.statuses.values() or [None]:
            if not status or releases_of(status) != self.releases:
                return False
            if status.get("lost") or status["waits"]["state"] == "recover":
                return False
        return True

    def corner(self) -> str:
        """Return which documented special case ends this plan, if one does."""
        hub = self.statuses.get("hub") or {}
        state = (hub.get("waits") or {}).get("state")
        without_record = any((self.statuses.get(s.name) or {}).get("without") for s in self.silos)
        silo_back = any(s.restored for s in self.silos)
        states = [
            ((self.statuses.get(s.name) or {}).get("waits") or {}).get("state") for s in self.silos
        ]
        # Silos on their own clocks wait for no report.
        if "given-up" in states and silo_back and not self.clocks:
            return "records lost, all silos needed" if self.sum_kind else "too few reports left"
        if self.hub.restored and any(p.restored for p in self.parties if p.role == "helper"):
            return "hub and helper restored"
        if state == "reports-again" and silo_back:
            return "hub and silo restored"
        if "masks differ" in str(hub.get("ended")) and silo_back and self.hub.restored:
            return "hub and silo restored"
        if (
            without_record
            and state in ("too-few", "reports", "sessions", "unheard")
            and not self.clocks
        ):
            ending = "records lost, all silos needed" if self.sum_kind else "too few reports left"
            return ending if not self.hub.restored else "hub and silo restored"
        return ""

    def finish(self, completed: bool) -> None:
        """Check what must hold at the end: equal broadcasts and models, and valid ledgers.

        Silos on their own clocks may use different views.
        """
        self.ended = True
        time.sleep(0.5)
        for silo in self.silos:
            with silo.lock:
                self.remembered(silo)
            self.ledger(silo)
        if completed:
            models = {}
            for silo in self.silos:
                with suppress(ValueError):
                    model = json.loads(self.cli("deploy", "export", silo.name))
                    model = json.dumps(model, sort_keys=True).encode()
                    models[silo.name] = hashlib.sha256(model).hexdigest()[:16]
            equal = len(models) == len(self.silos) and (
                self.clocks or len(set(models.values())) == 1
            )
            self.check("one model at all silos", equal, models=models)
            broadcasts = [broadcasts_of(silo.folder) for silo in self.silos]
            equal = (
                all(each == broadcasts[0] for each in broadcasts)
                and len(broadcasts[0]) == self.releases
            )
            self.check("the same broadcasts at all silos", equal, broadcasts=broadcasts)
        for party in self.parties:
            party.terminate()
            if not party.restored:
                text = self.cli("ledger", "verify", party.name)
                self.check("ledger verify", bool(text), who=party.name)
            party.backup()  # check the reports once more

    def remembered(self, silo: Party) -> None:
        """Check that the silo knows every acknowledged decision and reward."""
        for decision, (_, reward, _) in list(silo.acked.items())[:150]:
            code, answer = self.reward(silo, decision, 0.5 if reward is None else reward)
            self.check("acknowledged decisions and rewards", code == 200, who=silo.name,
                       id=decision, reward=reward, code=code, answer=str(answer)[:200])  # fmt: skip
            if reward is not None and not silo.clock_moved:
                different = 1.0 - reward if reward != 0.5 else 0.1
                code, answer = self.reward(silo, decision, different)
                self.check("acknowledged rewards stay", code not in (0, 200), who=silo.name,
                           id=decision, code=code)  # fmt: skip

    def scan(self) -> None:
        """Check that no party has reported an error of the program."""
        for party in self.parties:
            text = party.errors.read_text(errors="replace") if party.errors.exists() else ""
            error = re.search(r"Traceback|program error|Exception in", text)
            excerpt = text[max(0, error.start() - 200) : error.start() + 1500] if error else ""
            self.check("no program error", not error, who=party.name, near=excerpt)


def lane(journal: Journal, numbers: Iterator[int]) -> None:
    """Run plans one after the other until the time is over."""
    for i, number in enumerate(numbers):
        if journal.stop.is_set() or (i > 0 and journal.until - time.monotonic() < 110):
            return
        Plan(journal, number).run()


def main() -> int:
    """Run all lanes until the time is over; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(description="Federations of processes under random faults.")
    parser.add_argument("--seconds", type=float, default=300.0, help="total time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="new, for plans and the log")
    parser.add_argument("--fastfed", default="fastfed", help="path of the command")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, help="default: all")
    parser.add_argument("--lanes", type=int, default=2, help="plans at a time")
    args = parser.parse_args()
    args.folder = args.folder.absolute()
    args.fastfed = os.path.abspath(shutil.which(args.fastfed) or parser.error("no such command"))
    (args.folder / "site").mkdir(parents=True)
    (args.folder / "site" / "sitecustomize.py").write_text(CLOCK)
    journal = Journal(args)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: journal.stop.set())
    lanes = [
        # Each lane has separate plan numbers, so that plans depend only on the seed.
        threading.Thread(target=lane, args=(journal, itertools.count(first, args.lanes)))
        for first in range(args.lanes)
    ]
    for each in lanes:
        each.start()
    for each in lanes:
        while each.is_alive():
            each.join(0.5)
    journal.table()
    return int(sum(journal.violations.values()) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
