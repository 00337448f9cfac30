#include "ff_principal.h"

#ifdef FF_WIDE
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
FF_INLINE void coordinates(const float *restrict x, int64_t stride, mask32 low, mask32 high,
                           const float *restrict basis, int64_t d, float *restrict z, int64_t ld)
{
    f32s total[ROWS][ABREAST], sum[ROWS][ABREAST];
    for (int r = 0; r < ROWS; r++)
        total[r][0] = total[r][1] = f32_set(0.0f);
    for (int64_t begin = 0; begin < d; begin += BLOCK) {
        const int64_t end = begin + BLOCK < d ? begin + BLOCK : d;
        for (int r = 0; r < ROWS; r++)
            sum[r][0] = sum[r][1] = f32_set(0.0f);
        for (int64_t j = begin; j < end; j++) {
            const f32s f = f32_load_some(low, x + j * stride);
            const f32s g = f32_load_some(high, x + j * stride + LANES);
            for (int r = 0; r < ROWS; r++) {
                const f32s q = f32_set(basis[r * d + j]);
                sum[r][0] = f32_fma(q, f, sum[r][0]);
                sum[r][1] = f32_fma(q, g, sum[r][1]);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            total[r][0] = f32_add(total[r][0], sum[r][0]);
            total[r][1] = f32_add(total[r][1], sum[r][1]);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        f32_store(z + r * ld, total[r][0]);
        f32_store(z + r * ld + LANES, total[r][1]);
    }
}

/* Squares of `n` numbers of a vector of actions, `stride` apart, summed in blocks too. */
FF_INLINE f32s squares(const float *restrict x, int64_t stride, mask32 in, int64_t n)
{
    f32s total = f32_set(0.0f);
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = begin + BLOCK < n ? begin + BLOCK : n;
        f32s sum = f32_set(0.0f);
        for (int64_t j = begin; j < end; j++) {
            const f32s f = f32_load_some(in, x + j * stride);
            sum = f32_fma(f, f, sum);
        }
        total = f32_add(total, sum);
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
void ff_principal_make(const ff_principal *k, const ff_actions *actions, int64_t d, char *block)
{
    const int64_t rank = k->rank, count = actions->actions, vectors = vectors_of(count);
    const int64_t stride = actions->feature_stride;
    const double n = 1.01 * (double)(BLOCK + d / BLOCK + 3) * 0x1p-24, off = sqrt((double)rank) * n;
    const f32s slack = f32_set((float)(4.0 * n + 2.02 * off));
    const f32s moved = f32_set((float)(1.01 * off));
    float z[FF_PRINCIPAL_RANK * LANES * PANEL_VECTORS] FF_ALIGNED;
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const int64_t width = lot_width(vectors, first), held = count - LANES * first;
        const float *x = (const float *)actions->x + LANES * first;
        for (int64_t v = 0; v < width; v += ABREAST)
            for (int64_t r = 0; r < rank; r += ROWS)
                coordinates(x + LANES * v, stride, lanes_of(held - LANES * v),
                            lanes_of(held - LANES * v - LANES), k->basis32 + r * d, d,
                            z + r * LANES * PANEL_VECTORS + LANES * v, LANES * PANEL_VECTORS);
        ff_actions view = *actions;
        view.x = z;
        view.actions = held < LANES * width ? held : LANES * width;
        view.feature_stride = LANES * PANEL_VECTORS;
        ff_quantise_i16(&view, rank, block);
        measured *known = (measured *)block;
        float *rest =
            (float *)(block + width * ((int64_t)sizeof(measured) + FF_WIDE * pairs_of(rank)));
        for (int64_t v = 0; v < width; v++) {
            const mask32 in = lanes_of(held - LANES * v);
            const f32s whole = squares(x + LANES * v, stride, in, d);
            const f32s told = squares(z + LANES * v, LANES * PANEL_VECTORS, in, rank);
            const f32s left = f32_fma(whole, slack, f32_sub(whole, told));
            const f32s tiny = f32_set(0x1p-60f);
            const f32s length = f32_add(f32_sqrt(whole), tiny);
            const f32s error = f32_fma(length, moved, tiny);
            /* What is not a number stays: the other way round it would not. */
            const f32s own = f32_sqrt(f32_max(f32_set(0.0f), left));
            f32_store(rest + LANES * v, f32_fma(own, f32_set(0x1p-20f), f32_add(own, tiny)));
            f32_store(known[v].length, f32_add(f32_load(known[v].length), error));
            f32_store(known[v].lost, f32_add(f32_load(known[v].lost), error));
        }
        block += lot_bytes(rank, width);
    }
}

int ff_principal_serves(const ff_principal *k)
{
    return k->starts && SHARE * __atomic_load_n(k->made, __ATOMIC_RELAXED) >= k->queries;
}

int ff_principal_complete(const ff_principal *k)
{
    return __atomic_load_n(k->made, __ATOMIC_RELAXED) == k->queries;
}

const char *ff_principal_block(const ff_principal *k, int64_t q, const ff_actions *actions,
                               int64_t d)
{
    if (!k->starts || !ff_screen_i16_fits(actions, d))
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
#endif
