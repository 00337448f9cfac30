/* Actions in 16-bit integers, for screening (ff_screen_i16.h). */
#include "ff_processor.h"
#include "ff_screen_i16.h"

#ifdef FF_AVX512
#include "ff_screen_i16_parts.h"

#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* Vectors of actions whose lengths are summed in registers. */
#define ABREAST 12
/* A block that is not there yet is 0. */
enum { MADE = 1, BEING_MADE = 2 };
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

/* Which lanes of the last two vectors hold actions. */
typedef struct {
    __mmask16 before, last;
} last_two;

/* Vector v of `width`, the last two of which hold as many actions as `in` says. */
INLINE __m512 features(const float *at, int v, const int width, last_two in)
{
    return v < width - 2 ? _mm512_loadu_ps(at + 16 * v)
                         : _mm512_maskz_loadu_ps(v == width - 2 ? in.before : in.last, at + 16 * v);
}

/* Squares of the lengths of `width` vectors of actions into their `length`, their largest features
 * into `unit`. Feature by feature as they lie, for that is what memory is fast at. */
INLINE void measure(const float *restrict x, int64_t stride, int64_t d, const int width,
                    last_two in, known16 *restrict known)
{
    __m512 square[ABREAST], largest[ABREAST];
    UNROLLED
    for (int v = 0; v < width; v++)
        square[v] = largest[v] = _mm512_setzero_ps();
    for (int64_t j = 0; j < d; j++)
        UNROLLED
        for (int v = 0; v < width; v++) {
            const __m512 f = features(x + j * stride, v, width, in);
            square[v] = _mm512_fmadd_ps(f, f, square[v]);
            largest[v] = _mm512_max_ps(_mm512_abs_ps(f), largest[v]);
        }
    UNROLLED
    for (int v = 0; v < width; v++) {
        _mm512_storeu_ps(known[v].length, square[v]);
        _mm512_storeu_ps(known[v].unit, largest[v]);
    }
}

/* The same of more vectors than registers hold. Still feature by feature: reading a part of each
 * takes twice the time. */
INLINE void measure_many(const float *restrict x, int64_t stride, int64_t d, int64_t actions,
                         known16 *restrict known)
{
    memset(known, 0, (size_t)vectors_of(actions) * sizeof *known);
    for (int64_t j = 0; j < d; j++)
        for (int64_t v = 0; 16 * v < actions; v++) {
            const __m512 f =
                _mm512_maskz_loadu_ps(lanes_of(actions - 16 * v), x + j * stride + 16 * v);
            const __m512 square = _mm512_fmadd_ps(f, f, _mm512_loadu_ps(known[v].length));
            const __m512 largest = _mm512_max_ps(_mm512_abs_ps(f), _mm512_loadu_ps(known[v].unit));
            _mm512_storeu_ps(known[v].length, square);
            _mm512_storeu_ps(known[v].unit, largest);
        }
}

/* A panel of `width` vectors of actions, and what rounding takes from their lengths. */
INLINE void quantise_panel(const float *restrict x, int64_t stride, int64_t d, const int width,
                           last_two in, known16 *restrict known, __m512i *restrict panel)
{
    __m512 scale[VECTORS16], lost[VECTORS16];
    UNROLLED
    for (int v = 0; v < width; v++) {
        scale[v] = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_loadu_ps(known[v].unit));
        lost[v] = _mm512_setzero_ps();
    }
    int64_t j = 0;
    for (; j + 2 <= d; j += 2)
        UNROLLED
        for (int v = 0; v < width; v++) {
            const float *at = x + j * stride;
            const __m512i low = whole(features(at, v, width, in), scale[v], lost + v);
            const __m512i high = whole(features(at + stride, v, width, in), scale[v], lost + v);
            panel[j / 2 * width + v] =
                _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
        }
    UNROLLED
    for (int v = 0; j < d && v < width; v++) {
        const __m512i low = whole(features(x + j * stride, v, width, in), scale[v], lost + v);
        panel[j / 2 * width + v] = _mm512_maskz_mov_epi16(0x55555555, low);
    }
    UNROLLED
    for (int v = 0; v < width; v++) {
        const __m512 length = _mm512_loadu_ps(known[v].length);
        const __m512 unit = _mm512_loadu_ps(known[v].unit);
        const __m512 rounding = _mm512_mul_ps(_mm512_sqrt_ps(lost[v]), unit);
        _mm512_storeu_ps(known[v].lost,
                         _mm512_fmadd_ps(length, _mm512_set1_ps(0x1p-21f), rounding));
    }
}

AVX512 void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised)
{
    const float *restrict x = (const float *)actions->x;
    const int64_t stride = actions->feature_stride, count = actions->actions;
    const int64_t vectors = vectors_of(count), over = count - 16 * (vectors - 2);
    const last_two in = {lanes_of(over), lanes_of(over - 16)}, all = {0xffff, 0xffff};
    known16 *known = (known16 *)quantised;
    __m512i *panels = (__m512i *)(known + vectors);
    switch (vectors) {
    case 2: measure(x, stride, d, 2, in, known); break;
    case 4: measure(x, stride, d, 4, in, known); break;
    case 6: measure(x, stride, d, 6, in, known); break;
    case 8: measure(x, stride, d, 8, in, known); break;
    case 10: measure(x, stride, d, 10, in, known); break;
    case 12: measure(x, stride, d, 12, in, known); break;
    default: measure_many(x, stride, d, count, known);
    }
    for (int64_t v = 0; v < vectors; v++) {
        const __m512 root = _mm512_sqrt_ps(_mm512_loadu_ps(known[v].length));
        const __m512 length = _mm512_add_ps(root, _mm512_set1_ps(0x1p-60f));
        const __m512 largest = _mm512_loadu_ps(known[v].unit);
        const __m512 unit = _mm512_max_ps(
            _mm512_mul_ps(length, _mm512_set1_ps((float)(1.0 / LENGTH_X))),
            _mm512_mul_ps(largest, _mm512_set1_ps((float)(1.0 / LARGEST))));
        _mm512_storeu_ps(known[v].length, length);
        _mm512_storeu_ps(known[v].unit, unit);
    }
    for (int64_t v = 0; v < vectors; v += VECTORS16) {
        __m512i *panel = panels + v * pairs_of(d);
        if (v + VECTORS16 < vectors)
            quantise_panel(x + 16 * v, stride, d, VECTORS16, all, known + v, panel);
        else if (v + VECTORS16 == vectors)
            quantise_panel(x + 16 * v, stride, d, VECTORS16, in, known + v, panel);
        else
            quantise_panel(x + 16 * v, stride, d, 2, in, known + v, panel);
    }
}

/* Eight features as whole numbers, as `whole`. */
INLINE __m256i whole_eight(__m256 x, __m256 scale, __m256 *restrict lost)
{
    const __m256 scaled = _mm256_mul_ps(x, scale);
    const __m256i q = _mm256_cvtps_epi32(_mm256_round_ps(scaled, NEAREST));
    const __m256 rest = _mm256_fmsub_ps(x, scale, _mm256_cvtepi32_ps(q));
    *lost = _mm256_fmadd_ps(rest, rest, *lost);
    return q;
}

INLINE __m256 four(const __m256 *sum)
{
    return _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
}

AVX512 void ff_quantise_some(const ff_actions *actions, const int64_t *restrict which, int64_t n,
                             int64_t d, float *restrict room, int32_t *restrict together,
                             known16 *restrict known)
{
    const float *x = (const float *)actions->x;
    const int64_t stride = actions->feature_stride;
    int64_t from[TOGETHER];
    for (int64_t a = 0; a < TOGETHER; a++)
        from[a] = which[a < n ? a : 0];
    for (int64_t j = 0; j < d; j++) {
        const float *at = x + j * stride;
        float *to = room + TOGETHER * j;
        for (int64_t a = 0; a < TOGETHER; a++)
            to[a] = at[from[a]];
    }
    /* So many sums at a time: one would wait for itself. */
    __m256 sum[4], most[4];
    for (int s = 0; s < 4; s++)
        sum[s] = most[s] = _mm256_setzero_ps();
    for (int64_t j = 0; j < d; j += 4)
        for (int64_t s = 0; s < 4 && j + s < d; s++) {
            const __m256 f = _mm256_load_ps(room + TOGETHER * (j + s));
            sum[s] = _mm256_fmadd_ps(f, f, sum[s]);
            most[s] = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), f), most[s]);
        }
    const __m256 square = four(sum), largest = _mm256_max_ps(_mm256_max_ps(most[0], most[1]),
                                                             _mm256_max_ps(most[2], most[3]));
    const __m256 length = _mm256_add_ps(_mm256_sqrt_ps(square), _mm256_set1_ps(0x1p-60f));
    const __m256 unit =
        _mm256_max_ps(_mm256_mul_ps(length, _mm256_set1_ps((float)(1.0 / LENGTH_X))),
                      _mm256_mul_ps(largest, _mm256_set1_ps((float)(1.0 / LARGEST))));
    const __m256 scale = _mm256_div_ps(_mm256_set1_ps(1.0f), unit);
    for (int s = 0; s < 4; s++)
        sum[s] = _mm256_setzero_ps();
    for (int64_t j = 0; j < d; j += 4)
        for (int64_t s = 0; s < 4 && j + s < d; s += 2) {
            const float *at = room + TOGETHER * (j + s);
            const __m256i low = whole_eight(_mm256_load_ps(at), scale, sum + s);
            const __m256i high =
                j + s + 1 < d ? whole_eight(_mm256_load_ps(at + TOGETHER), scale, sum + s + 1)
                              : _mm256_setzero_si256();
            _mm256_store_si256((__m256i *)(together + TOGETHER / 2 * (j + s)),
                               _mm256_mask_blend_epi16(0xaaaa, low, _mm256_slli_epi32(high, 16)));
        }
    const __m256 lost = four(sum);
    const __m256 rounding = _mm256_mul_ps(_mm256_sqrt_ps(lost), unit);
    float lengths[TOGETHER], units[TOGETHER], losts[TOGETHER];
    _mm256_storeu_ps(lengths, length);
    _mm256_storeu_ps(units, unit);
    _mm256_storeu_ps(losts, _mm256_fmadd_ps(length, _mm256_set1_ps(0x1p-21f), rounding));
    for (int64_t a = 0; a < n; a++) {
        known16 *its = known + which[a] / 16;
        its->length[which[a] % 16] = lengths[a];
        its->unit[which[a] % 16] = units[a];
        its->lost[which[a] % 16] = losts[a];
    }
}

const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d)
{
    if (!ff_screen_i16_fits(actions, d))
        return NULL;
    void *block = store->buffer + store->starts[q];
    uint8_t state = __atomic_load_n(store->made + q, __ATOMIC_ACQUIRE);
    if (state == MADE)
        return block;
    /* One thread makes it, the others meanwhile do without. */
    if (state == BEING_MADE ||
        !__atomic_compare_exchange_n(store->made + q, &state, BEING_MADE, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return NULL;
    ff_quantise_i16(actions, d, block);
    __atomic_store_n(store->made + q, MADE, __ATOMIC_RELEASE);
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
