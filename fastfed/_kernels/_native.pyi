"""The shared object of all kernels: how it was built, which level of instructions runs, watches,
and syncs."""

HAS_THREADS: bool
COMPILER: str
LEVELS: dict[str, int]
PROCESSOR: str
HAS_VNNI: bool
MOST: str
HAS_LEVELS: bool
LEVEL: str
HEARD: int

def watch_signals(pipe: int, grace: int, message: bytes) -> None: ...
def watch_owner(pipe: int) -> None: ...
def sync_files(requests: int, answers: int) -> None: ...
