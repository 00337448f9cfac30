"""Threads that sync files by a Python function that a test can replace."""

import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from fastfed.deployment import store as store_module
from fastfed.deployment.syncs import SyncThreads


class PythonSyncThreads(SyncThreads):
    """Sync files by ``store._sync_content``, as calls without shared threads do."""

    def __init__(self, count):
        self._answers, self._answers_write = os.pipe()
        os.set_blocking(self._answers, False)
        self._pool = ThreadPoolExecutor(count)

    def begin(self, file):
        """Begin the sync of a file."""
        self._pool.submit(self._sync, file)

    def _sync(self, file):
        """Sync a file, and write (file, errno, seconds) to the pipe."""
        start, error = time.perf_counter(), 0
        try:
            store_module._sync_content(file)
        except OSError as failure:
            error = failure.errno
        ended = struct.pack("=iid", file, error, time.perf_counter() - start)
        os.write(self._answers_write, ended)

    def close(self):
        """End the threads, and close the pipe."""
        self._pool.shutdown()
        os.close(self._answers)
        os.close(self._answers_write)
