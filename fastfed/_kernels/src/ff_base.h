/* Shared by all kernel files: integer types, restrict, inlining, and instruction-set clones. */
#ifndef FF_BASE_H
#define FF_BASE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#define restrict __restrict
#endif

/* FF_TARGET_CLONES is defined by setup.py when the compiler and the C library can dispatch at
 * load time. Every clone runs the same additions and multiplications in the same order
 * (no contraction, no fast-math), so all levels give equal bits. Clones are for loops that the
 * compiler vectorises; files with vectors written out have levels of their own, see ff_levels.c. */
#ifdef FF_TARGET_CLONES
#define FF_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FF_CLONES
#endif

#if defined(__GNUC__)
#define FF_INLINE static inline __attribute__((always_inline))
/* For small arrays that loops run over: vectors then begin where the array does. */
#define FF_ALIGNED __attribute__((aligned(64)))
#else
#define FF_INLINE static inline
#define FF_ALIGNED
#endif

#endif
