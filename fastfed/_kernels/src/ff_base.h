/* Shared by all files of the kernels: integer types, restrict, inlining and alignment. */
#ifndef FF_BASE_H
#define FF_BASE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#define restrict __restrict
#endif

#if defined(__GNUC__)
#define FF_INLINE static inline __attribute__((always_inline))
/* For small arrays in vectorised loops: aligns them to vectors. */
#define FF_ALIGNED __attribute__((aligned(64)))
/* Prefetch memory that will be read soon. */
#define FF_PREFETCH(at) __builtin_prefetch(at)
#else
#define FF_INLINE static inline
#define FF_ALIGNED
#define FF_PREFETCH(at) ((void)(at))
#endif

/* Bytes of the vectors of ff_wide.h, if this file is compiled for processors that have them. */
#if defined(__GNUC__) && defined(__AVX512BW__) && defined(__AVX512DQ__) &&                         \
    defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define FF_WIDE 64
#elif defined(__GNUC__) && defined(__AVX2__) && defined(__FMA__)
#define FF_WIDE 32
#endif

#endif
