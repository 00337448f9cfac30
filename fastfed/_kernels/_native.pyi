"""The shared object of all kernels: how it was built, and which level of it runs here."""

HAS_THREADS: bool
COMPILER: str
LEVELS: dict[str, int]
PROCESSOR: str
HAS_VNNI: bool
MOST: str
HAS_LEVELS: bool
LEVEL: str
