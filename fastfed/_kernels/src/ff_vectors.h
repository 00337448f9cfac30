/* Vector types, as wide as the registers of the level that a file is compiled for. Wider types
 * would be correct, but the compiler would put them in memory, which is many times slower. */
#ifndef FF_VECTORS_H
#define FF_VECTORS_H

#include <math.h>

#include "ff_base.h"

#if defined(__AVX512F__)
#define FF_BYTES 64
#elif defined(__AVX2__)
#define FF_BYTES 32
#else
#define FF_BYTES 16
#endif

/* lanes, lanes32: vectors of doubles and floats. loose, loose32: the same at any address. masks:
 * the result of comparing doubles. WIDTH, WIDTH32: their number of entries. */
#if defined(__GNUC__)
typedef double lanes __attribute__((vector_size(FF_BYTES)));
typedef float lanes32 __attribute__((vector_size(FF_BYTES)));
typedef double loose __attribute__((vector_size(FF_BYTES), aligned(8)));
typedef float loose32 __attribute__((vector_size(FF_BYTES), aligned(4)));
typedef int64_t masks __attribute__((vector_size(FF_BYTES)));
#define WIDTH (FF_BYTES / 8)
#define WIDTH32 (FF_BYTES / 4)
#else
typedef double lanes, loose;
typedef float lanes32, loose32;
#define WIDTH 1
#define WIDTH32 1
#endif

/* Return the square roots of a vector. */
FF_INLINE lanes32 roots_of(lanes32 squares)
{
    float root[WIDTH32] FF_ALIGNED;
    memcpy(root, &squares, sizeof root);
    for (int l = 0; l < WIDTH32; l++)
        root[l] = sqrtf(root[l]);
    memcpy(&squares, root, sizeof root);
    return squares;
}

#endif
