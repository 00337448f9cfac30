/* Shared by all kernel files: integer types, restrict, inlining and alignment. */
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
/* For small arrays that loops run over: vectors then begin where the array does. */
#define FF_ALIGNED __attribute__((aligned(64)))
#else
#define FF_INLINE static inline
#define FF_ALIGNED
#endif

/* Functions that run only where `ff_screen_i16_available`. */
#ifdef FF_AVX512
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define INLINE AVX512 static inline __attribute__((always_inline))
#endif

#endif
