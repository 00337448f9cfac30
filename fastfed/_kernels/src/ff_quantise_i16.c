/* Actions in 16-bit integers, for screening (ff_screen_i16.h). */
#include "ff_processor.h"
#include "ff_screen_i16.h"

#ifdef FF_AVX512
#include "ff_screen_i16_parts.h"

#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* Panels are made two at a time. */
#define BLOCK (2 * VECTORS16)
/* Up to here what rounding adds to a length is below a hundredth of it. */
#define LARGEST_DIMENSION 65536

int64_t ff_screen_i16_available(void)
{
    /* Asked for every choice of an action: the answer is kept. */
    static int kept = -1;
    int vnni = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    if (vnni < 0) {
        vnni = ff_processor_vnni();
        __atomic_store_n(&kept, vnni, __ATOMIC_RELAXED);
    }
    return vnni && ff_levels_chosen() == FF_LEVEL_V4;
}

int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
{
    return ff_screen_i16_available() && d <= LARGEST_DIMENSION && !actions->is_double &&
           actions->action_stride == 1;
}

int64_t ff_quantised_bytes(int64_t d, int64_t actions)
{
    /* The panels follow. */
    return vectors_of(actions) * ((int64_t)sizeof(known16) + 64 * pairs_of(d));
}

/* 16 features as whole numbers; what rounding takes of them is added to lost, squared. */
INLINE __m512i whole(__m512 x, __m512 scale, __m512 *restrict lost)
{
    const __m512i q = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, scale), NEAREST);
    const __m512 rest = _mm512_fmsub_ps(x, scale, _mm512_cvtepi32_ps(q));
    *lost = _mm512_fmadd_ps(rest, rest, *lost);
    return q;
}

/* Actions `first` on, at most BLOCK vectors of them, into their panels. Feature by feature as they
 * lie, for that is what memory is fast at. */
INLINE void quantise_block(const ff_actions *actions, int64_t first, int64_t d,
                           known16 *restrict known, __m512i *restrict panels)
{
    const float *restrict x = (const float *)actions->x + first;
    const int64_t stride = actions->feature_stride, pairs = pairs_of(d);
    const int64_t left = vectors_of(actions->actions) - first / 16;
    const int64_t vectors = left < BLOCK ? left : BLOCK;
    const __m512 none = _mm512_setzero_ps();
    __mmask16 in[BLOCK];
    __m512 square[BLOCK], largest[BLOCK];
    for (int v = 0; v < BLOCK; v++) {
        in[v] = lanes_of(actions->actions - first - 16 * v);
        square[v] = largest[v] = none;
    }
    for (int64_t j = 0; j < d; j++)
        for (int v = 0; v < BLOCK; v++) {
            const __m512 f = _mm512_maskz_loadu_ps(in[v], x + j * stride + 16 * v);
            square[v] = _mm512_fmadd_ps(f, f, square[v]);
            largest[v] = _mm512_max_ps(_mm512_abs_ps(f), largest[v]);
        }
    for (int v = 0; v < vectors; v++) {
        const __m512 length = _mm512_add_ps(_mm512_sqrt_ps(square[v]), _mm512_set1_ps(0x1p-60f));
        const __m512 unit =
            _mm512_max_ps(_mm512_mul_ps(length, _mm512_set1_ps((float)(1.0 / LENGTH_X))),
                          _mm512_mul_ps(largest[v], _mm512_set1_ps((float)(1.0 / LARGEST))));
        _mm512_storeu_ps(known[v].length, length);
        _mm512_storeu_ps(known[v].unit, unit);
        square[v] = _mm512_div_ps(_mm512_set1_ps(1.0f), unit);
        largest[v] = none;
    }
    for (int v = 0; v < vectors; v += VECTORS16) {
        const int64_t width = vectors - v < VECTORS16 ? vectors - v : VECTORS16;
        __m512i *restrict panel = panels + v * pairs;
        for (int64_t j = 0; j < d; j += 2)
            for (int64_t l = 0; l < width; l++) {
                const float *at = x + j * stride + 16 * (v + l);
                const __m512 a = _mm512_maskz_loadu_ps(in[v + l], at);
                const __m512 b = j + 1 < d ? _mm512_maskz_loadu_ps(in[v + l], at + stride) : none;
                const __m512i low = whole(a, square[v + l], &largest[v + l]);
                const __m512i high = whole(b, square[v + l], &largest[v + l]);
                panel[j / 2 * width + l] =
                    _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
            }
    }
    for (int v = 0; v < vectors; v++) {
        const __m512 length = _mm512_loadu_ps(known[v].length);
        const __m512 unit = _mm512_loadu_ps(known[v].unit);
        const __m512 rounding = _mm512_mul_ps(_mm512_sqrt_ps(largest[v]), unit);
        _mm512_storeu_ps(known[v].lost,
                         _mm512_fmadd_ps(length, _mm512_set1_ps(0x1p-21f), rounding));
    }
}

AVX512 void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised)
{
    known16 *known = (known16 *)quantised;
    __m512i *panels = (__m512i *)(known + vectors_of(actions->actions));
    for (int64_t first = 0; first < actions->actions; first += 16 * BLOCK)
        quantise_block(actions, first, d, known + first / 16, panels + first / 16 * pairs_of(d));
}

const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d)
{
    if (!ff_screen_i16_fits(actions, d))
        return NULL;
    void *block = store->buffer + store->starts[q];
    /* Two threads may both make a block: of the same bits. */
    if (!__atomic_load_n(store->made + q, __ATOMIC_ACQUIRE)) {
        ff_quantise_i16(actions, d, block);
        __atomic_store_n(store->made + q, 1, __ATOMIC_RELEASE);
    }
    return block;
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
                               const ff_actions *actions, int64_t d)
{
    (void)store, (void)q, (void)actions, (void)d;
    return NULL;
}
#endif
