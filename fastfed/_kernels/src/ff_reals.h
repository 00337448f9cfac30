/* Operations on vectors of doubles, for files with levels (ff_vectors.h). */
#ifndef FF_REALS_H
#define FF_REALS_H

#include <math.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "ff_vectors.h"

/* Read or write WIDTH doubles at any address. */
#define LOAD(p) (*(const loose *)(p))
#define STORE(p, value) (*(loose *)(p) = (value))

/* widened(p): the WIDTH floats at p as doubles. all(x): WIDTH times x. fused(a, b, c): a b + c, and
 * fused_less(a, b, c): c - a b, rounded once. larger(a, b): b where a is not larger.
 * where_larger(a, b, x, y): x where a is larger than b, else y. root_of(x): square roots.
 * reaches(a, b): a bit for each entry of a that is at least that of b. Compilers need more
 * instructions for these. Other processors compute the same bits, the fused ones slowly. */
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#if defined(__AVX512F__)
#define OF(operation) _mm512_##operation
typedef __m512d reals;
#define FLOATS(p) _mm256_loadu_ps(p)
#define BITS_NOT_BELOW(a, b) _mm512_cmp_pd_mask(a, b, _CMP_GE_OQ)
#define CHOSEN_BY(a, b, x, y) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_GT_OQ), y, x)
#else
#define OF(operation) _mm256_##operation
typedef __m256d reals;
#define FLOATS(p) _mm_loadu_ps(p)
#define BITS_NOT_BELOW(a, b) (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GE_OQ))
#define CHOSEN_BY(a, b, x, y) _mm256_blendv_pd(y, x, _mm256_cmp_pd(a, b, _CMP_GT_OQ))
#endif
FF_INLINE loose widened(const float *p) { return (loose)OF(cvtps_pd)(FLOATS(p)); }
FF_INLINE loose all(double x) { return (loose)OF(set1_pd)(x); }
FF_INLINE loose fused(loose a, loose b, loose c)
{
    return (loose)OF(fmadd_pd)((reals)a, (reals)b, (reals)c);
}
FF_INLINE loose fused_less(loose a, loose b, loose c)
{
    return (loose)OF(fnmadd_pd)((reals)a, (reals)b, (reals)c);
}
FF_INLINE loose larger(loose a, loose b) { return (loose)OF(max_pd)((reals)a, (reals)b); }
FF_INLINE loose where_larger(loose a, loose b, loose x, loose y)
{
    return (loose)CHOSEN_BY((reals)a, (reals)b, (reals)x, (reals)y);
}
FF_INLINE loose root_of(loose x) { return (loose)OF(sqrt_pd)((reals)x); }
FF_INLINE unsigned reaches(loose a, loose b) { return BITS_NOT_BELOW((reals)a, (reals)b); }
#else
#if defined(__GNUC__)
#define ENTRY(x, i) ((x)[i])
#else
#define ENTRY(x, i) (x)
#endif
/* Define a function of vectors by an expression for entry i. */
#define BY_ENTRIES(name, parameters, expression)                                                   \
    FF_INLINE loose name parameters                                                                \
    {                                                                                              \
        loose result;                                                                              \
        for (int i = 0; i < WIDTH; i++)                                                            \
            ENTRY(result, i) = (expression);                                                       \
        return result;                                                                             \
    }
BY_ENTRIES(widened, (const float *p), (double)p[i])
BY_ENTRIES(all, (double x), x)
BY_ENTRIES(fused, (loose a, loose b, loose c), fma(ENTRY(a, i), ENTRY(b, i), ENTRY(c, i)))
BY_ENTRIES(fused_less, (loose a, loose b, loose c), fma(-ENTRY(a, i), ENTRY(b, i), ENTRY(c, i)))
BY_ENTRIES(larger, (loose a, loose b), ENTRY(a, i) > ENTRY(b, i) ? ENTRY(a, i) : ENTRY(b, i))
BY_ENTRIES(where_larger, (loose a, loose b, loose x, loose y),
           ENTRY(a, i) > ENTRY(b, i) ? ENTRY(x, i) : ENTRY(y, i))
BY_ENTRIES(root_of, (loose x), sqrt(ENTRY(x, i)))
FF_INLINE unsigned reaches(loose a, loose b)
{
    unsigned bits = 0;
    for (int i = 0; i < WIDTH; i++)
        bits |= (unsigned)(ENTRY(a, i) >= ENTRY(b, i)) << i;
    return bits;
}
#endif

#endif
