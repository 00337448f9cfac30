# Types of the shared object of all kernels: how it was built.

HAS_TARGET_CLONES: bool
HAS_THREADS: bool
