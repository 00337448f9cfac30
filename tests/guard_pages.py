"""A pytest plugin of scripts/sanitize: NumPy's new arrays end where a page of memory ends, and
access to the next page is forbidden.

AddressSanitizer does not check what masked vector instructions read and write. The processor does:
it stops a kernel that reads or writes past the end of an array, also of a scratch array.
"""

import ctypes
import functools
import mmap
import weakref

import numpy as np

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
#: Largest number of guarded arrays at a time: each takes two of the 65 530 mappings of a process.
MOST = 20_000
# Functions that make the arrays of the kernels; Cython's wrappers look them up in numpy, too.
MAKERS = ("empty", "zeros", "ones", "full", "array", "ascontiguousarray", "asfortranarray")
MAKERS += ("empty_like", "zeros_like", "concatenate", "stack", "arange", "eye")

protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
living: set[weakref.ref[mmap.mmap]] = set()


def at_the_end(array: np.ndarray) -> np.ndarray:
    """Return a copy that ends at the last byte of a page, before a page without access."""
    open_bytes = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, open_bytes + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if protect(start + open_bytes, PAGE, NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    living.add(weakref.ref(memory, living.discard))
    offset = open_bytes - array.nbytes
    guarded_copy = np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
    guarded_copy[...] = array
    return guarded_copy


def guarded(make):
    """Return a function of NumPy whose new arrays end where a page of memory ends."""

    @functools.wraps(make)
    def making(*args, **keys):
        """Return the new array at the end of a page, or the unchanged result."""
        built = make(*args, **keys)
        is_new_array = type(built) is np.ndarray and built.flags.owndata and built.flags.forc
        if not is_new_array or built.dtype.kind not in "biuf" or not built.nbytes:
            return built
        # An argument that is returned unchanged belongs to the caller.
        is_argument = any(built is argument for argument in args)
        return built if is_argument or len(living) >= MOST else at_the_end(built)

    return making


for name in MAKERS:
    setattr(np, name, guarded(getattr(np, name)))
