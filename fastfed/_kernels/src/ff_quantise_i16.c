/* Quantise actions to 16-bit integers, for screening (ff_screen_i16.h). Meanwhile memory that will
 * be read next is prefetched (prefetch_line). */
#include "ff_screen_i16.h"

#ifdef FF_WIDE
#include "ff_screen_i16_parts.h"

/* The largest number of vectors of actions whose squared lengths are summed in registers: with 32
 * registers, and with those of this level. */
#define VECTORS_MAX 12
#define VECTORS_IN_REGISTERS (FF_WIDE == 64 ? VECTORS_MAX : 6)
/* If there are more vectors, number of features that are added to the sums of a vector before these
 * return to memory. */
#define FEATURES 4
/* States of a block. It is stored when its query is offered for the second time: storing what may
 * not be read again would take a tenth of a round. The state is 0 before the first time. */
enum { MADE = FF_QUANTISED_MADE, BEING_MADE, OFFERED_ONCE };
/* Up to this dimension rounding changes a length by less than 1 percent. */
#define LARGEST_DIMENSION 65536

/* Return 1: this copy of the file is compiled for AVX2 or AVX-512 VNNI (FF_WIDE). */
int64_t ff_screen_i16_available(void) { return 1; }

/* Return the number of doubles of scratch for at most `actions` actions. */
int64_t ff_screen_i16_scratch(int64_t d, int64_t actions)
{
    /* A factor and theta in 16 bits; the actions; for every action a float each for upper bounds on
     * its score, bonus and mean, two floats in a double (ff_bonus_cache.c); 24 doubles for
     * alignment. */
    return ff_quantised_factor_size(d) + ff_quantised_bytes(d, actions) / 8 +
           3 * LANES / 2 * vectors_of(actions) + 24;
}

/* Return 1 if these actions can be quantised: float32, feature-major, and not too many features. */
int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
{
    return d <= LARGEST_DIMENSION && !actions->is_double && actions->action_stride == 1;
}

/* Return the size in bytes of `actions` actions in 16 bits: their norms, then their features in
 * panels. */
int64_t ff_quantised_bytes(int64_t d, int64_t actions)
{
    return vectors_of(actions) * ((int64_t)sizeof(action_norms) + FF_WIDE * pairs_of(d));
}

/* Return x times scale rounded to whole numbers, in the last 16 bits of each lane; add the squared
 * rounding errors to *lost. Adding 1.5 2^23 rounds, because floats from 2^23 to 2^24 are whole
 * numbers, and the last 16 bits of the sum are the rounded value in two's complement. So one fused
 * instruction scales and rounds. */
FF_INLINE i32s round_features(f32s x, f32s scale, f32s *restrict lost)
{
    const f32s shift = f32_set(0x1.8p23f), q = f32_fma(x, scale, shift);
    const f32s error = f32_fms(x, scale, f32_sub(q, shift));
    *lost = f32_fma(error, error, *lost);
    return i32_bits(q);
}

/* Masks of the lanes that hold actions in the last two vectors. */
typedef struct {
    mask32 before, last;
} last_two;

/* Return one feature of the actions of vector v of `width`. In the last two vectors, lanes without
 * an action are 0. */
FF_INLINE f32s features(const float *source, int v, const int width, last_two in)
{
    return v < width - 2 ? f32_load(source + LANES * v)
                         : f32_load_some(v == width - 2 ? in.before : in.last, source + LANES * v);
}

/* Compute the squared lengths of `width` vectors of actions into norms[.].length, and their largest
 * absolute features into norms[.].unit. Feature by feature, in the order of memory, which is
 * fastest. */
FF_INLINE void measure(const float *restrict x, int64_t stride, int64_t d, const int width,
                       last_two in, const ff_actions *actions, action_norms *restrict norms)
{
    f32s square[VECTORS_MAX], largest[VECTORS_MAX];
    UNROLLED
    for (int v = 0; v < width; v++)
        square[v] = largest[v] = f32_set(0.0f);
    for (int64_t j = 0; j < d; j++) {
        prefetch_line(actions);
        UNROLLED
        for (int v = 0; v < width; v++) {
            const f32s f = features(x + j * stride, v, width, in);
            square[v] = f32_fma(f, f, square[v]);
            largest[v] = f32_max(f32_abs(f), largest[v]);
        }
    }
    UNROLLED
    for (int v = 0; v < width; v++) {
        f32_store(norms[v].length, square[v]);
        f32_store(norms[v].unit, largest[v]);
    }
}

/* Update the squared lengths and largest absolute features of one vector of actions by `count`
 * features. remaining: number of actions from this vector on. */
FF_INLINE void measure_some(const float *restrict x, int64_t stride, const int count,
                            int64_t remaining, action_norms *restrict norms)
{
    f32s square = f32_load(norms->length), largest = f32_load(norms->unit);
    for (int j = 0; j < count; j++) {
        const float *source = x + j * stride;
        const f32s f =
            remaining >= LANES ? f32_load(source) : f32_load_some(lanes_of(remaining), source);
        square = f32_fma(f, f, square);
        largest = f32_max(f32_abs(f), largest);
    }
    f32_store(norms->length, square);
    f32_store(norms->unit, largest);
}

/* Do the same as `measure` for more vectors than the registers hold. It still reads feature by
 * feature, because reading a part of each feature takes twice as long. */
FF_INLINE void measure_many(const float *restrict x, int64_t stride, int64_t d,
                            const ff_actions *actions, action_norms *restrict norms)
{
    const int64_t count = actions->actions;
    memset(norms, 0, (size_t)vectors_of(count) * sizeof *norms);
    int64_t j = 0;
    for (; j + FEATURES <= d; j += FEATURES)
        for (int64_t v = 0; LANES * v < count; v++) {
            if (v < FEATURES)
                prefetch_line(actions);
            measure_some(x + j * stride + LANES * v, stride, FEATURES, count - LANES * v,
                         norms + v);
        }
    for (; j < d; j++)
        for (int64_t v = 0; LANES * v < count; v++)
            measure_some(x + j * stride + LANES * v, stride, 1, count - LANES * v, norms + v);
}

/* Quantise `width` vectors of actions into a panel (pairs of features, width), and store bounds on
 * the length of the rounding errors in norms[.].lost. */
FF_INLINE void quantise_panel(const float *restrict x, int64_t stride, int64_t d, const int width,
                              last_two in, const ff_actions *actions, action_norms *restrict norms,
                              i32s *restrict panel)
{
    f32s scale[PANEL_VECTORS], lost[PANEL_VECTORS];
    UNROLLED
    for (int v = 0; v < width; v++) {
        scale[v] = f32_div(f32_set(1.0f), f32_load(norms[v].unit));
        lost[v] = f32_set(0.0f);
    }
    int64_t j = 0;
    /* Two features at a time: they form the pairs of 16 bits that are multiplied together. */
    for (; j + 2 <= d; j += 2) {
        prefetch_line(actions);
        UNROLLED
        for (int v = 0; v < width; v++) {
            const float *source = x + j * stride;
            const i32s low = round_features(features(source, v, width, in), scale[v], lost + v);
            const i32s high =
                round_features(features(source + stride, v, width, in), scale[v], lost + v);
            panel[j / 2 * width + v] = i32_pairs(low, high);
        }
    }
    UNROLLED
    for (int v = 0; j < d && v < width; v++) {
        const i32s low = round_features(features(x + j * stride, v, width, in), scale[v], lost + v);
        panel[j / 2 * width + v] = i32_pairs(low, i32_set(0));
    }
    UNROLLED
    for (int v = 0; v < width; v++) {
        const f32s length = f32_load(norms[v].length);
        const f32s unit = f32_load(norms[v].unit);
        const f32s rounding = f32_mul(f32_sqrt(lost[v]), unit);
        f32_store(norms[v].lost, f32_fma(length, f32_set(0x1p-21f), rounding));
    }
}

/* Round the features of all actions to multiples of a unit, 16-bit integers. Each action has its
 * unit. `quantised` receives the norms of all actions, LANES actions (a vector) at a time, then the
 * panels of features. */
void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised)
{
    const float *restrict x = (const float *)actions->x;
    const int64_t stride = actions->feature_stride, count = actions->actions;
    const int64_t vectors = vectors_of(count), last_actions = count - LANES * (vectors - 2);
    const last_two in = {lanes_of(last_actions), lanes_of(last_actions - LANES)},
                   all = {lanes_of(LANES), lanes_of(LANES)};
    action_norms *norms = (action_norms *)quantised;
    i32s *panels = (i32s *)(norms + vectors);
    switch (vectors <= VECTORS_IN_REGISTERS ? vectors : 0) {
    case 2: measure(x, stride, d, 2, in, actions, norms); break;
    case 4: measure(x, stride, d, 4, in, actions, norms); break;
    case 6: measure(x, stride, d, 6, in, actions, norms); break;
    case 8: measure(x, stride, d, 8, in, actions, norms); break;
    case 10: measure(x, stride, d, 10, in, actions, norms); break;
    case 12: measure(x, stride, d, 12, in, actions, norms); break;
    default:
        measure_many(x, stride, d, actions, norms);
    }
    /* Until here norms[v].length holds squared lengths, and norms[v].unit the largest absolute
     * features. The unit is the smallest for which, in units, the length is at most LENGTH_X and
     * no feature is above LARGEST. */
    for (int64_t v = 0; v < vectors; v++) {
        const f32s root = f32_sqrt(f32_load(norms[v].length));
        const f32s length = f32_add(root, f32_set(0x1p-60f));
        const f32s largest = f32_load(norms[v].unit);
        const f32s unit = f32_max(f32_mul(length, f32_set((float)(1.0 / LENGTH_X))),
                                  f32_mul(largest, f32_set((float)(1.0 / LARGEST))));
        f32_store(norms[v].length, length);
        f32_store(norms[v].unit, unit);
    }
    for (int64_t v = 0; v < vectors; v += PANEL_VECTORS) {
        i32s *panel = panels + v * pairs_of(d);
        if (v + PANEL_VECTORS < vectors)
            quantise_panel(x + LANES * v, stride, d, PANEL_VECTORS, all, actions, norms + v, panel);
        else if (v + PANEL_VECTORS == vectors)
            quantise_panel(x + LANES * v, stride, d, PANEL_VECTORS, in, actions, norms + v, panel);
        else
            quantise_panel(x + LANES * v, stride, d, 2, in, actions, norms + v, panel);
    }
}

/* Copy a block to memory, bypassing the caches, because it will not be read soon. Stores through
 * the caches would first load the memory that is overwritten, and evict data that is needed
 * earlier. */
static void store_past_caches(const char *restrict from, int64_t bytes, char *restrict to)
{
    for (int64_t i = 0; i < bytes; i += FF_WIDE)
        i32_store_past((i32s *)(to + i), *(const i32s *)(from + i));
    /* Such stores are not ordered with later ones. */
    _mm_sfence();
}

/* Return the actions of query q in 16 bits. When the query is offered for the second time, store
 * them for later rounds. Returns NULL if they are unsuitable, or if another thread is storing
 * them. */
const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict buffer)
{
    if (!ff_screen_i16_fits(actions, d))
        return NULL;
    char *block = store->buffer + store->starts[q];
    uint8_t state = __atomic_load_n(store->made + q, __ATOMIC_ACQUIRE);
    if (state == MADE)
        return block;
    /* One thread stores the block; meanwhile the other threads do not use 16 bits for this
     * query. */
    const uint8_t next = state == OFFERED_ONCE ? BEING_MADE : OFFERED_ONCE;
    if (state == BEING_MADE ||
        !__atomic_compare_exchange_n(store->made + q, &state, next, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return NULL;
    ff_quantise_i16(actions, d, buffer);
    if (next == OFFERED_ONCE)
        return buffer;
    store_past_caches((const char *)buffer, store->starts[q + 1] - store->starts[q], block);
    __atomic_store_n(store->made + q, MADE, __ATOMIC_RELEASE);
    return buffer;
}

#else
/* Return 0: this copy of the file is compiled without AVX2 and AVX-512 VNNI (no FF_WIDE), so it has
 * only stubs. */
int64_t ff_screen_i16_available(void) { return 0; }

/* Stub without AVX2. Return 0: nothing is screened in 16 bits, which takes no scratch. */
int64_t ff_screen_i16_scratch(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

/* Stub without AVX2. Return 0: no actions can be screened in 16 bits. */
int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
{
    (void)actions, (void)d;
    return 0;
}

/* Stub without AVX2. Return 0: no actions are stored in 16 bits. */
int64_t ff_quantised_bytes(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

/* Stub without AVX2. Return NULL: there are no actions in 16 bits. */
const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict buffer)
{
    (void)store, (void)q, (void)actions, (void)d, (void)buffer;
    return NULL;
}
#endif
