/* Actions in 16-bit integers, for screening (ff_screen_i16.h). What is read next is asked for
 * meanwhile (ask_ahead). */
#include "ff_screen_i16.h"

#ifdef FF_WIDE
#include "ff_screen_i16_parts.h"

/* Vectors of actions whose lengths are summed in registers: of the widest, of which there are twice as
 * many, and of these. */
#define ABREAST 12
#define ABREAST_HERE (FF_WIDE == 64 ? ABREAST : 6)
/* Features of more vectors that are added before sums go back to memory. */
#define FEATURES 4
/* A block is kept when its query is met for the second time: writing what may not be read again takes
 * a tenth of a round. Before the first it is 0. */
enum { MADE = FF_QUANTISED_MADE, BEING_MADE, MET };
/* Up to here what rounding adds to a length is below a hundredth of it. */
#define LARGEST_DIMENSION 65536

int64_t ff_screen_i16_available(void) { return 1; }

int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
{
    return d <= LARGEST_DIMENSION && !actions->is_double && actions->action_stride == 1;
}

int64_t ff_quantised_bytes(int64_t d, int64_t actions)
{
    /* The panels follow. */
    return vectors_of(actions) * ((int64_t)sizeof(measured) + FF_WIDE * pairs_of(d));
}

/* Features as whole numbers, in the last 16 bits; what rounding takes of them is added to lost,
 * squared. Past 2^23 floats are whole numbers, whose last bits these are: so one instruction scales
 * and rounds. */
FF_INLINE i32s whole(f32s x, f32s scale, f32s *restrict lost)
{
    const f32s far = f32_set(0x1.8p23f), q = f32_fma(x, scale, far);
    const f32s rest = f32_fms(x, scale, f32_sub(q, far));
    *lost = f32_fma(rest, rest, *lost);
    return i32_bits(q);
}

/* Which lanes of the last two vectors hold actions. */
typedef struct {
    mask32 before, last;
} last_two;

/* Vector v of `width`, the last two of which hold as many actions as `in` says. */
FF_INLINE f32s features(const float *at, int v, const int width, last_two in)
{
    return v < width - 2 ? f32_load(at + LANES * v)
                         : f32_load_some(v == width - 2 ? in.before : in.last, at + LANES * v);
}

/* Squares of the lengths of `width` vectors of actions into their `length`, their largest features
 * into `unit`. Feature by feature as they lie, for that is what memory is fast at. */
FF_INLINE void measure(const float *restrict x, int64_t stride, int64_t d, const int width,
                       last_two in, const ff_actions *actions, measured *restrict known)
{
    f32s square[ABREAST], largest[ABREAST];
    UNROLLED
    for (int v = 0; v < width; v++)
        square[v] = largest[v] = f32_set(0.0f);
    for (int64_t j = 0; j < d; j++) {
        ask_ahead(actions);
        UNROLLED
        for (int v = 0; v < width; v++) {
            const f32s f = features(x + j * stride, v, width, in);
            square[v] = f32_fma(f, f, square[v]);
            largest[v] = f32_max(f32_abs(f), largest[v]);
        }
    }
    UNROLLED
    for (int v = 0; v < width; v++) {
        f32_store(known[v].length, square[v]);
        f32_store(known[v].unit, largest[v]);
    }
}

/* `count` features of a vector of actions into what is known of it. */
FF_INLINE void measure_some(const float *restrict x, int64_t stride, const int count, int64_t left,
                            measured *restrict known)
{
    f32s square = f32_load(known->length), largest = f32_load(known->unit);
    for (int j = 0; j < count; j++) {
        const float *at = x + j * stride;
        const f32s f = left >= LANES ? f32_load(at) : f32_load_some(lanes_of(left), at);
        square = f32_fma(f, f, square);
        largest = f32_max(f32_abs(f), largest);
    }
    f32_store(known->length, square);
    f32_store(known->unit, largest);
}

/* The same of more vectors than registers hold. Still feature by feature: reading a part of each
 * takes twice the time. */
FF_INLINE void measure_many(const float *restrict x, int64_t stride, int64_t d,
                            const ff_actions *actions, measured *restrict known)
{
    const int64_t count = actions->actions;
    memset(known, 0, (size_t)vectors_of(count) * sizeof *known);
    int64_t j = 0;
    for (; j + FEATURES <= d; j += FEATURES)
        for (int64_t v = 0; LANES * v < count; v++) {
            if (v < FEATURES)
                ask_ahead(actions);
            measure_some(x + j * stride + LANES * v, stride, FEATURES, count - LANES * v,
                         known + v);
        }
    for (; j < d; j++)
        for (int64_t v = 0; LANES * v < count; v++)
            measure_some(x + j * stride + LANES * v, stride, 1, count - LANES * v, known + v);
}

/* A panel of `width` vectors of actions, and what rounding takes from their lengths. */
FF_INLINE void quantise_panel(const float *restrict x, int64_t stride, int64_t d, const int width,
                              last_two in, const ff_actions *actions,
                              measured *restrict known, i32s *restrict panel)
{
    f32s scale[PANEL_VECTORS], lost[PANEL_VECTORS];
    UNROLLED
    for (int v = 0; v < width; v++) {
        scale[v] = f32_div(f32_set(1.0f), f32_load(known[v].unit));
        lost[v] = f32_set(0.0f);
    }
    int64_t j = 0;
    for (; j + 2 <= d; j += 2) {
        ask_ahead(actions);
        UNROLLED
        for (int v = 0; v < width; v++) {
            const float *at = x + j * stride;
            const i32s low = whole(features(at, v, width, in), scale[v], lost + v);
            const i32s high = whole(features(at + stride, v, width, in), scale[v], lost + v);
            panel[j / 2 * width + v] = i32_pairs(low, high);
        }
    }
    UNROLLED
    for (int v = 0; j < d && v < width; v++) {
        const i32s low = whole(features(x + j * stride, v, width, in), scale[v], lost + v);
        panel[j / 2 * width + v] = i32_pairs(low, i32_set(0));
    }
    UNROLLED
    for (int v = 0; v < width; v++) {
        const f32s length = f32_load(known[v].length);
        const f32s unit = f32_load(known[v].unit);
        const f32s rounding = f32_mul(f32_sqrt(lost[v]), unit);
        f32_store(known[v].lost, f32_fma(length, f32_set(0x1p-21f), rounding));
    }
}

void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised)
{
    const float *restrict x = (const float *)actions->x;
    const int64_t stride = actions->feature_stride, count = actions->actions;
    const int64_t vectors = vectors_of(count), over = count - LANES * (vectors - 2);
    const last_two in = {lanes_of(over), lanes_of(over - LANES)},
                   all = {lanes_of(LANES), lanes_of(LANES)};
    measured *known = (measured *)quantised;
    i32s *panels = (i32s *)(known + vectors);
    switch (vectors <= ABREAST_HERE ? vectors : 0) {
    case 2: measure(x, stride, d, 2, in, actions, known); break;
    case 4: measure(x, stride, d, 4, in, actions, known); break;
    case 6: measure(x, stride, d, 6, in, actions, known); break;
    case 8: measure(x, stride, d, 8, in, actions, known); break;
    case 10: measure(x, stride, d, 10, in, actions, known); break;
    case 12: measure(x, stride, d, 12, in, actions, known); break;
    default: measure_many(x, stride, d, actions, known);
    }
    for (int64_t v = 0; v < vectors; v++) {
        const f32s root = f32_sqrt(f32_load(known[v].length));
        const f32s length = f32_add(root, f32_set(0x1p-60f));
        const f32s largest = f32_load(known[v].unit);
        const f32s unit = f32_max(f32_mul(length, f32_set((float)(1.0 / LENGTH_X))),
                                  f32_mul(largest, f32_set((float)(1.0 / LARGEST))));
        f32_store(known[v].length, length);
        f32_store(known[v].unit, unit);
    }
    for (int64_t v = 0; v < vectors; v += PANEL_VECTORS) {
        i32s *panel = panels + v * pairs_of(d);
        if (v + PANEL_VECTORS < vectors)
            quantise_panel(x + LANES * v, stride, d, PANEL_VECTORS, all, actions, known + v, panel);
        else if (v + PANEL_VECTORS == vectors)
            quantise_panel(x + LANES * v, stride, d, PANEL_VECTORS, in, actions, known + v, panel);
        else
            quantise_panel(x + LANES * v, stride, d, 2, in, actions, known + v, panel);
    }
}

/* A block that is read later, past the caches: they would fetch what is to be overwritten, and
 * drop for it what comes first. */
static void put_away(const char *restrict from, int64_t bytes, char *restrict to)
{
    for (int64_t i = 0; i < bytes; i += FF_WIDE)
        i32_store_past((i32s *)(to + i), *(const i32s *)(from + i));
    /* Such stores do not wait for those that follow. */
    _mm_sfence();
}

const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict room)
{
    if (!ff_screen_i16_fits(actions, d))
        return NULL;
    char *block = store->buffer + store->starts[q];
    uint8_t state = __atomic_load_n(store->made + q, __ATOMIC_ACQUIRE);
    if (state == MADE)
        return block;
    /* One thread makes it, the others meanwhile do without. */
    const uint8_t next = state == MET ? BEING_MADE : MET;
    if (state == BEING_MADE ||
        !__atomic_compare_exchange_n(store->made + q, &state, next, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return NULL;
    ff_quantise_i16(actions, d, room);
    if (next == MET)
        return room;
    put_away((const char *)room, store->starts[q + 1] - store->starts[q], block);
    __atomic_store_n(store->made + q, MADE, __ATOMIC_RELEASE);
    return room;
}

#else
/* Built without: nothing fits. */
int64_t ff_screen_i16_available(void) { return 0; }

int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
{
    (void)actions, (void)d;
    return 0;
}

int64_t ff_quantised_bytes(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict room)
{
    (void)store, (void)q, (void)actions, (void)d, (void)room;
    return NULL;
}
#endif
