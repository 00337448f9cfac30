#include "ff_principal.h"

#ifdef FF_AVX512
#include <math.h>

#include "ff_principal_parts.h"

/* Features whose products are summed before they are added to those before: few roundings. */
#define BLOCK 32
/* Vectors of actions that are brought to coordinates together. */
#define ABREAST 2
/* Making coordinates takes as long as they save in so many rounds: by then they are made, and never
 * cost more than twice what the better choice would have. */
#define OFTEN 3
/* Bounds take a release some 0.3 ms, which they spare in a few dozen rounds of queries that have
 * coordinates: one query in SHARE has to. */
#define SHARE 4
/* How often a query has been met, up to OFTEN, and what follows. */
enum { BEING_MADE = OFTEN + 1 };

int64_t ff_principal_bytes(int64_t rank, int64_t actions)
{
    return lot_bytes(rank, vectors_of(actions));
}

/* ROWS coordinates of two vectors of actions into z, rows of which are `ld` apart. */
INLINE void coordinates(const float *restrict x, int64_t stride, __mmask16 low, __mmask16 high,
                        const float *restrict basis, int64_t d, float *restrict z, int64_t ld)
{
    __m512 total[ROWS][ABREAST], sum[ROWS][ABREAST];
    for (int r = 0; r < ROWS; r++)
        total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < d; begin += BLOCK) {
        const int64_t end = begin + BLOCK < d ? begin + BLOCK : d;
        for (int r = 0; r < ROWS; r++)
            sum[r][0] = sum[r][1] = _mm512_setzero_ps();
        for (int64_t j = begin; j < end; j++) {
            const __m512 f = _mm512_maskz_loadu_ps(low, x + j * stride);
            const __m512 g = _mm512_maskz_loadu_ps(high, x + j * stride + 16);
            for (int r = 0; r < ROWS; r++) {
                const __m512 q = _mm512_set1_ps(basis[r * d + j]);
                sum[r][0] = _mm512_fmadd_ps(q, f, sum[r][0]);
                sum[r][1] = _mm512_fmadd_ps(q, g, sum[r][1]);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            total[r][0] = _mm512_add_ps(total[r][0], sum[r][0]);
            total[r][1] = _mm512_add_ps(total[r][1], sum[r][1]);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        _mm512_storeu_ps(z + r * ld, total[r][0]);
        _mm512_storeu_ps(z + r * ld + 16, total[r][1]);
    }
}

/* Squares of `n` numbers of a vector of actions, `stride` apart, summed in blocks too. */
INLINE __m512 squares(const float *restrict x, int64_t stride, __mmask16 in, int64_t n)
{
    __m512 total = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = begin + BLOCK < n ? begin + BLOCK : n;
        __m512 sum = _mm512_setzero_ps();
        for (int64_t j = begin; j < end; j++) {
            const __m512 f = _mm512_maskz_loadu_ps(in, x + j * stride);
            sum = _mm512_fmadd_ps(f, f, sum);
        }
        total = _mm512_add_ps(total, sum);
    }
    return total;
}

/* Rounding, u = 2^-24: a sum of d products in blocks is off by less than k u, k = BLOCK + d / BLOCK
 * + 3, of the sum of their sizes, so by Cauchy-Schwarz a coordinate by k u ||x||, for rows of Q
 * have unit length and float32 takes u of them; all of them by sqrt(rank) k u ||x||, `off` of
 * ||x||. ||x||^2 is good to k u of itself, the sum of the squares of what coordinates have become
 * likewise, and that of the exact ones is at least this less 2.01 off ||x||^2. What is left of
 * ||x||^2 is the square of the rest's length; what rows of Q are short of being orthonormal is far
 * below all this. */
AVX512 void ff_principal_make(const ff_principal *k, const ff_actions *actions, int64_t d,
                              char *block)
{
    const int64_t rank = k->rank, count = actions->actions, vectors = vectors_of(count);
    const int64_t stride = actions->feature_stride;
    const double n = 1.01 * (double)(BLOCK + d / BLOCK + 3) * 0x1p-24, off = sqrt((double)rank) * n;
    const __m512 slack = _mm512_set1_ps((float)(4.0 * n + 2.02 * off));
    const __m512 moved = _mm512_set1_ps((float)(1.01 * off));
    float z[FF_PRINCIPAL_RANK * 16 * VECTORS16] FF_ALIGNED;
    for (int64_t first = 0; first < vectors; first += VECTORS16) {
        const int64_t width = lot_width(vectors, first), held = count - 16 * first;
        const float *x = (const float *)actions->x + 16 * first;
        for (int64_t v = 0; v < width; v += ABREAST)
            for (int64_t r = 0; r < rank; r += ROWS)
                coordinates(x + 16 * v, stride, lanes_of(held - 16 * v),
                            lanes_of(held - 16 * v - 16), k->basis32 + r * d, d,
                            z + r * 16 * VECTORS16 + 16 * v, 16 * VECTORS16);
        ff_actions view = *actions;
        view.x = z;
        view.actions = held < 16 * width ? held : 16 * width;
        view.feature_stride = 16 * VECTORS16;
        ff_quantise_i16(&view, rank, block);
        known16 *known = (known16 *)block;
        float *rest = (float *)(block + width * ((int64_t)sizeof(known16) + 64 * pairs_of(rank)));
        for (int64_t v = 0; v < width; v++) {
            const __mmask16 in = lanes_of(held - 16 * v);
            const __m512 whole = squares(x + 16 * v, stride, in, d);
            const __m512 told = squares(z + 16 * v, 16 * VECTORS16, in, rank);
            const __m512 left = _mm512_fmadd_ps(whole, slack, _mm512_sub_ps(whole, told));
            const __m512 tiny = _mm512_set1_ps(0x1p-60f);
            const __m512 length = _mm512_add_ps(_mm512_sqrt_ps(whole), tiny);
            const __m512 error = _mm512_fmadd_ps(length, moved, tiny);
            /* What is not a number stays: the other way round it would not. */
            const __m512 own = _mm512_sqrt_ps(_mm512_max_ps(_mm512_setzero_ps(), left));
            _mm512_storeu_ps(rest + 16 * v, _mm512_fmadd_ps(own, _mm512_set1_ps(0x1p-20f),
                                                            _mm512_add_ps(own, tiny)));
            _mm512_storeu_ps(known[v].length,
                             _mm512_add_ps(_mm512_loadu_ps(known[v].length), error));
            _mm512_storeu_ps(known[v].lost, _mm512_add_ps(_mm512_loadu_ps(known[v].lost), error));
        }
        block += lot_bytes(rank, width);
    }
}

int ff_principal_serves(const ff_principal *k)
{
    return SHARE * __atomic_load_n(k->made, __ATOMIC_RELAXED) >= k->queries;
}

const char *ff_principal_block(const ff_principal *k, int64_t q, const ff_actions *actions,
                               int64_t d)
{
    if (!k->rank || !ff_screen_i16_fits(actions, d))
        return NULL;
    char *block = k->buffer + k->starts[q];
    uint8_t *met = k->met + q, state = __atomic_load_n(met, __ATOMIC_ACQUIRE);
    if (state == FF_PRINCIPAL_MADE)
        return block;
    if (state == BEING_MADE)
        return NULL;
    /* Whoever changes the state makes the block, and nobody reads it before. */
    const uint8_t next = (uint8_t)(state + 1);
    const int mine =
        __atomic_compare_exchange_n(met, &state, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!mine || next != BEING_MADE)
        return NULL;
    ff_principal_make(k, actions, d, block);
    __atomic_store_n(met, FF_PRINCIPAL_MADE, __ATOMIC_RELEASE);
    __atomic_add_fetch(k->made, 1, __ATOMIC_RELAXED);
    return block;
}

#else
/* Built without: nothing fits. */
int64_t ff_principal_bytes(int64_t rank, int64_t actions)
{
    (void)rank, (void)actions;
    return 0;
}

int ff_principal_serves(const ff_principal *k)
{
    (void)k;
    return 0;
}

const char *ff_principal_block(const ff_principal *k, int64_t q, const ff_actions *actions,
                               int64_t d)
{
    (void)k, (void)q, (void)actions, (void)d;
    return NULL;
}
#endif
