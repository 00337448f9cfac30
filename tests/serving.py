"""Load a silo through its socket: decisions with rewards a second, latencies, CPU; a table.

    .venv/bin/python tests/serving.py --clients 1 4 16 --seconds 5 --sync-ms 0 3

Each client requests a decision, sends its reward, and repeats this over one connection. One program
in C (``load.c``) serves all clients, so that it leaves the processor to the silo. A slow disk is
simulated by a library that delays each fsync by ``--sync-ms``. With ``--alone`` it runs one sync at
a time, and all syncs that arrive meanwhile share the next one.
*Inside* is the time in the silo, from a request's bytes to its answer's bytes. *Sync* is the time
of one sync in a thread; a silo whose syncs are fast has none.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

D, K = 10, 10
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static long begun, done;
static void wait(void) { usleep((useconds_t)(1000.0 * atof(getenv("FASTFED_SYNC_MS")))); }
static void wait_alone(void) {
    pthread_mutex_lock(&turn);
    long mine = begun + 1;
    while (done < mine) {
        if (begun > done) {
            pthread_cond_wait(&ended, &turn);
            continue;
        }
        begun++;
        pthread_mutex_unlock(&turn);
        wait();
        pthread_mutex_lock(&turn);
        done++;
        pthread_cond_broadcast(&ended);
    }
    pthread_mutex_unlock(&turn);
}
static int later(const char *name, int fd) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (getenv("FASTFED_SYNC_ALONE")) wait_alone(); else wait();
    return sync(fd);
}
int fsync(int fd) { return later("fsync", fd); }
int fdatasync(int fd) { return later("fdatasync", fd); }
"""
#: Runs the command line, and writes times inside the silo to a file at its end.
INSIDE = """
import os, sys, time
from fastfed.cli import main
from fastfed.deployment import application
from fastfed.deployment.syncs import SyncThreads
connection = application._Connection
received, reply, ended = connection.data_received, connection.reply, SyncThreads.ended
inside, commits = [], []
def timed_received(self, data):
    self.since = time.perf_counter()
    received(self, data)
def timed_reply(self, *answer):
    reply(self, *answer)
    inside.append(time.perf_counter() - self.since)
def timed_ended(self):
    syncs = ended(self)
    commits.extend(seconds for _, _, seconds in syncs)
    return syncs
connection.data_received, connection.reply = timed_received, timed_reply
SyncThreads.ended = timed_ended
end = os._exit
def ending(code):
    with open(sys.argv[0], "w") as file:
        for times in (inside, commits):
            print(*times, file=file)
    end(code)
os._exit, sys.argv = ending, sys.argv[1:]
main()
"""


def made_silo(folder):
    """Make the folder of a silo whose model has d = 10; return it."""
    from fastfed.deployment.agent import PrivateLinUCB

    PrivateLinUCB(
        folder, epsilon=1.0, delta=1e-6, period=86_400, releases=30, batch_size=100_000, dimension=D
    ).close()
    return Path(folder) / "silo"


def compiled(folder, name, text, *options):
    """Compile a C program or, with the right options, a library; return its path."""
    source, target = Path(folder) / f"{name}.c", Path(folder) / name
    source.write_text(text)
    command = [os.environ.get("CC", "cc"), "-O2", *options, "-o", target, source]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return str(target)


def slow_sync(folder):
    """Compile the library that delays fsync; return its path."""
    return compiled(folder, "slow", SLOW, "-shared", "-fPIC")


def load_program(folder):
    """Compile the program that loads a silo; return its path."""
    return compiled(folder, "load", Path(__file__).with_name("load.c").read_text())


def loaded(program, path, clients, seconds):
    """Load a silo with clients for some seconds; return the times of all (decision, reward)."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((64, K, D))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    with tempfile.NamedTemporaryFile("w") as bodies:
        bodies.writelines(json.dumps({"actions": x.tolist()}) + "\n" for x in rows)
        bodies.flush()
        command = [program, path, clients, seconds, bodies.name]
        run = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return np.array([line.split() for line in run.stdout.splitlines()], float)


@contextlib.contextmanager
def running(folder, sync_ms, library, inside=None):
    """Run a silo of a folder as users do, with a hub that does not answer.

    With a file ``inside``, the silo writes its times to it.
    """
    environment = dict(os.environ)
    if sync_ms:
        environment |= {"LD_PRELOAD": library, "FASTFED_SYNC_MS": str(sync_ms)}
    run = ["-m", "fastfed"] if inside is None else ["-c", INSIDE, str(inside)]
    command = [sys.executable, *run, "silo", str(folder), "--hub", "http://127.0.0.1:9"]
    path = folder / "silo.sock"
    # A killed silo leaves its socket, which would look like that of the new process.
    path.unlink(missing_ok=True)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(
                f"the silo ended with {process.returncode}: run {command[1:]} to see why"
            )
        time.sleep(0.05)
    time.sleep(0.5)
    try:
        yield process, path
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid):
    """Return the seconds of CPU that a process has used, by /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    """Measure all combinations of clients and times of a sync, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sync-ms", type=float, nargs="+", default=[0.0, 3.0])
    parser.add_argument("--alone", action="store_true", help="a disk that has one sync at a time")
    parser.add_argument("--folder", help="where state is stored; by default a new temporary folder")
    arguments = parser.parse_args()
    if arguments.alone:
        os.environ["FASTFED_SYNC_ALONE"] = "1"
    print(
        "sync ms  clients  pairs/s  silo CPU us/pair  decide p50/p99 ms  reward p50/p99 ms  "
        "inside p50/p99 ms  sync p50/p99 ms"
    )
    for sync_ms in arguments.sync_ms:
        for clients in arguments.clients:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
                folder, library = made_silo(Path(temporary) / "agent"), slow_sync(temporary)
                file, program = Path(temporary) / "inside", load_program(temporary)
                with running(folder, sync_ms, library, file) as (process, path):
                    loaded(program, path, clients, 0.5)
                    before, start = cpu_seconds(process.pid), time.perf_counter()
                    times = loaded(program, path, clients, arguments.seconds)
                    rate = len(times) / (time.perf_counter() - start)
                    cpu = (cpu_seconds(process.pid) - before) / len(times) * 1e6
                rows = [np.array(row.split(), float) for row in file.read_text().splitlines()]
                # Without the first moments, in which the silo is not warm yet.
                times_after_start = [*times.T, *(row[len(row) // 5 :] for row in rows if len(row))]
            quantiles = [1e3 * np.quantile(row, [0.5, 0.99]) for row in times_after_start]
            print(
                f"{sync_ms:7g}  {clients:7}  {rate:7.0f}  {cpu:16.0f}  "
                + "  ".join(f"{p50:8.2f} / {p99:6.2f}" for p50, p99 in quantiles),
                flush=True,
            )


if __name__ == "__main__":
    main()
