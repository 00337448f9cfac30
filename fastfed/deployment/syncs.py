"""Threads that sync files to disk without Python's lock."""

from __future__ import annotations

import os
import struct
import sys
import threading

from fastfed._kernels import _native

#: A sync that has ended, as ``ff_synced`` (src/ff_sync.h): descriptor, errno or 0, seconds.
_ENDED = struct.Struct("=iid")


class SyncThreads:
    """Threads that sync files and do not need Python's lock.

    Only one thread may use this object.

    Parameters
    ----------
    count : int
        Number of threads, which is the maximum number of syncs at a time.
    """

    def __init__(self, count: int) -> None:
        # The threads read file descriptors from one pipe, and write results to the other pipe.
        self._requests_read, self._requests = os.pipe()
        self._answers, self._answers_write = os.pipe()
        os.set_blocking(self._answers, False)
        pipes = self._requests_read, self._answers_write
        self._threads = [
            threading.Thread(target=_native.sync_files, args=pipes, daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, file: int) -> None:
        """Start to sync the content of the file with the descriptor ``file``."""
        os.write(self._requests, file.to_bytes(4, sys.byteorder))

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a sync has ended."""
        return self._answers

    def ended(self) -> list[tuple[int, int, float]]:
        """Return (descriptor, errno or 0, seconds) of the syncs that ended since the last call."""
        try:
            return list(_ENDED.iter_unpack(os.read(self._answers, 64 * _ENDED.size)))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Wait until all syncs have ended, and end the threads."""
        os.close(self._requests)
        for thread in self._threads:
            thread.join()
        for descriptor in (self._requests_read, self._answers, self._answers_write):
            os.close(descriptor)
