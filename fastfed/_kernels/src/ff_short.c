#include "ff_short.h"

#ifdef FF_SHORT_SIEVE
#include <immintrin.h>
#include <math.h>

#include "ff_panel.h"

#define SHORT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define INLINE SHORT static inline __attribute__((always_inline))
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* Vectors of 16 actions in a panel, but for a last one of 2; panels are made two at a time. */
#define VECTORS16 4
#define BLOCK (2 * VECTORS16)
/* Rows of W are scaled to at most the one length, and actions to the other, before they are rounded:
 * by Cauchy-Schwarz every product then fits 32 bits. No entry is above LARGEST, to fit 16. */
#define LENGTH 32000.0
#define LENGTH_X 65000.0
#define LARGEST 32700.0
/* Up to here what rounding adds to a length is below a hundredth of it. */
#define LARGEST_DIMENSION 65536

/* Entries of a row of W, theta or zeros: whole vectors. */
FF_INLINE int64_t row_of(int64_t d) { return (d + 31) & ~(int64_t)31; }
/* Groups of rows: those of W, theta, and zeros. */
FF_INLINE int64_t groups_of(int64_t d) { return (d + ROWS) / ROWS; }
FF_INLINE int64_t pairs_of(int64_t d) { return (d + 1) / 2; }
/* Vectors of all panels. */
FF_INLINE int64_t vectors_of(int64_t actions)
{
    const int64_t vectors = (actions + 15) / 16, over = vectors % VECTORS16;
    return vectors - over + (over == 0 ? 0 : over <= 2 ? 2 : VECTORS16);
}

int64_t ff_short_fits(const ff_actions *actions, int64_t d)
{
    return __builtin_cpu_supports("avx512vnni") && d <= LARGEST_DIMENSION && !actions->is_double &&
           actions->action_stride == 1;
}

/* What is known of 16 actions: their lengths, never zero, their units, and what rounding has changed
 * at most, as a length. */
typedef struct {
    float length[16], unit[16], lost[16];
} about;

int64_t ff_short_bytes(int64_t d, int64_t actions)
{
    /* The panels follow. */
    return vectors_of(actions) * ((int64_t)sizeof(about) + 64 * pairs_of(d));
}

int64_t ff_short_scratch(int64_t d, int64_t actions)
{
    /* And upper bounds, rows of shorts, their units. */
    return ff_short_bytes(d, actions) / 8 + 8 * vectors_of(actions) +
           ROWS * groups_of(d) * row_of(d) / 4 + 2 * groups_of(d) + 32;
}

/* ---- actions ------------------------------------------------------------------------------ */

/* Which lanes of a vector hold actions, when so many are left. */
INLINE __mmask16 lanes_of(int64_t left)
{
    return left >= 16  ? (__mmask16)0xffff
           : left > 0 ? (__mmask16)((1u << left) - 1)
                      : (__mmask16)0;
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
INLINE void shorten_block(const ff_actions *actions, int64_t first, int64_t d,
                          about *restrict known, __m512i *restrict panels)
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
        _mm512_storeu_ps(known[v].lost, _mm512_fmadd_ps(length, _mm512_set1_ps(0x1p-21f),
                                                        _mm512_mul_ps(_mm512_sqrt_ps(largest[v]), unit)));
    }
}

SHORT void ff_shorten(const ff_actions *actions, int64_t d, void *restrict shorts)
{
    about *known = (about *)shorts;
    __m512i *panels = (__m512i *)(known + vectors_of(actions->actions));
    for (int64_t first = 0; first < actions->actions; first += 16 * BLOCK)
        shorten_block(actions, first, d, known + first / 16, panels + first / 16 * pairs_of(d));
}

const void *ff_short_kept(const ff_short_store *store, int64_t q, const ff_actions *actions,
                          int64_t d)
{
    if (!ff_short_fits(actions, d))
        return NULL;
    void *room = store->room + store->starts[q];
    /* Two threads may both make a block: of the same bits. */
    if (!__atomic_load_n(store->made + q, __ATOMIC_ACQUIRE)) {
        ff_shorten(actions, d, room);
        __atomic_store_n(store->made + q, 1, __ATOMIC_RELEASE);
    }
    return room;
}

/* ---- W and theta --------------------------------------------------------------------------- */

/* What the sieve knows of V and the bonus. */
typedef struct {
    const int16_t *rows;   /* [W; theta; zeros], every group of rows in a unit of its own */
    const float *square;   /* the squared units of the groups, the largest being 1 */
    float bonus, mean;     /* what makes scores of products with an action of unit 1 */
    float slack, theta_norm;
    float slope, slope_lost; /* what a score is off by: of a length, and of what it has lost */
} shortened;

/* The 8 entries of a row from the j-th; past the d-th they are zero. */
INLINE __m512d eight(const double *restrict row, int64_t j, int64_t d, int whole)
{
    const int64_t left = d - j;
    if (whole)
        return _mm512_loadu_pd(row + j);
    return _mm512_maskz_loadu_pd((__mmask8)lanes_of(left < 8 ? left : 8), row + j);
}

/* Whether the group of rows that ends with the n-th has all of them, and whole vectors in each. */
FF_INLINE int whole_rows(int64_t n, int64_t d)
{
    return n % ROWS == 0 && ((n + 7) & ~(int64_t)7) <= d;
}

/* The largest squared length among `count` <= ROWS rows of n entries, d apart; their sum too. All
 * rows side by side: loops so short cost most where they end. */
INLINE double longest(const double *restrict rows, const int count, int64_t n, int64_t d, int whole,
                      double *restrict sum)
{
    __m512d square[ROWS];
    double largest = 0.0;
    for (int r = 0; r < count; r++)
        square[r] = _mm512_setzero_pd();
    for (int64_t j = 0; j < n; j += 8)
        for (int r = 0; r < count; r++) {
            const __m512d x = eight(rows + r * d, j, d, whole);
            square[r] = _mm512_fmadd_pd(x, x, square[r]);
        }
    for (int r = 0; r < count; r++) {
        const double one = _mm512_reduce_add_pd(square[r]);
        /* What is not a number stays. */
        largest = one <= largest ? largest : one;
        *sum += one;
    }
    return largest;
}

/* Rows as above, times `scale`, in 16 bits; returns what rounding has changed, squared. */
INLINE double shorten_rows(const double *restrict rows, const int count, int64_t n, int64_t d,
                           int whole, double scale, int16_t *restrict to)
{
    /* Past 2^52 doubles are whole numbers, whose last bits these are: so one instruction scales
     * and rounds. */
    const __m512d by = _mm512_set1_pd(scale), far = _mm512_set1_pd(0x1.8p52);
    __m512d even = _mm512_setzero_pd(), odd = even;
    for (int64_t j = 0; j < n; j += 8)
        for (int r = 0; r < count; r++) {
            const __m512d x = eight(rows + r * d, j, d, whole);
            const __m512d q = _mm512_fmadd_pd(x, by, far);
            const __m512d rest = _mm512_fmsub_pd(x, by, _mm512_sub_pd(q, far));
            if (r & 1)
                odd = _mm512_fmadd_pd(rest, rest, odd);
            else
                even = _mm512_fmadd_pd(rest, rest, even);
            _mm_store_si128((__m128i *)(to + r * row_of(d) + j),
                            _mm512_cvtepi64_epi16(_mm512_castpd_si512(q)));
        }
    return _mm512_reduce_add_pd(_mm512_add_pd(even, odd));
}

/* [W; theta; zeros] into rows and square, see `shortened`; one: a double for every group. */
INLINE shortened shorten_factor(const double *restrict w, const double *restrict theta, double beta,
                                int64_t d, double *restrict one, int16_t *restrict rows,
                                float *restrict square)
{
    const int64_t ld = row_of(d), groups = groups_of(d);
    double total = 0.0, diagonal = 0.0, largest = 0.0, lost = 0.0, unit = 0.0, theta_square = 0.0;
    /* All lengths first: their roots then run as vectors, and no row waits for its own. */
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        one[i / ROWS] = whole_rows(n, d) ? longest(group, ROWS, n, d, 1, &total)
                                         : longest(group, count, n, d, 0, &total);
        for (int64_t r = i; r < n; r++) {
            const double entry = fabs(w[r * d + r]);
            diagonal += entry * entry;
            largest = entry > largest ? entry : largest;
        }
    }
    const int64_t used = (d + ROWS - 1) / ROWS;
    for (int64_t g = 0; g < used; g++)
        one[g] = (sqrt(one[g]) + 0x1p-500) * (1.0 / LENGTH);
    for (int64_t g = 0; g < used; g++)
        unit = one[g] > unit ? one[g] : unit;
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        const double length = one[i / ROWS], scale = 1.0 / length;
        lost += length * length *
                (whole_rows(n, d) ? shorten_rows(group, ROWS, n, d, 1, scale, rows + i * ld)
                                  : shorten_rows(group, count, n, d, 0, scale, rows + i * ld));
        const float relative = (float)(length / unit);
        square[i / ROWS] = relative * relative;
    }
    if (used < groups)
        square[used] = 0.0f;
    memset(rows + d * ld, 0, (size_t)((groups * ROWS - d) * ld) * sizeof *rows);
    longest(theta, 1, d, d, 0, &theta_square);
    const double theta_norm = sqrt(theta_square), theta_one = (theta_norm + 0x1p-500) / LENGTH;
    shorten_rows(theta, 1, d, d, 0, 1.0 / theta_one, rows + d * ld);
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double rest = total > diagonal ? total - diagonal : 0.0, frobenius = sqrt(total);
    const double split = largest + sqrt(rest + (1e-12 + (double)(d * d) * 0x1p-56) * total);
    const double w_norm = split < frobenius ? split : frobenius;
    const double slope = beta * sqrt(lost) + 0.5 * sqrt((double)d) * theta_one;
    return (shortened){rows,
                       square,
                       (float)(beta * unit),
                       (float)theta_one,
                       (float)(1.01 * g),
                       (float)theta_norm,
                       (float)(1.01 * slope + (1.0 + beta) * 0x1p-80),
                       (float)(1.01 * (slope + beta * w_norm + theta_norm))};
}

/* ---- bounds -------------------------------------------------------------------------------- */

/* acc = ROWS rows times the first `pairs` pairs of features of a panel. */
INLINE void product_short(const int16_t *restrict rows, int64_t ld, int64_t pairs,
                          const __m512i *restrict panel, const int width,
                          __m512i (*restrict acc)[VECTORS16])
{
    __m512i sum[ROWS][VECTORS16];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < width; v++)
            sum[r][v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < pairs; j++)
        for (int r = 0; r < ROWS; r++) {
            int32_t entries;
            memcpy(&entries, rows + r * ld + 2 * j, sizeof entries);
            const __m512i w = _mm512_set1_epi32(entries);
            /* By name: of the intrinsic gcc makes a copy of every sum at every turn. */
            for (int v = 0; v < width; v++)
                __asm__("vpdpwssd %2, %1, %0"
                        : "+v"(sum[r][v])
                        : "v"(w), "v"(panel[j * width + v]));
        }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < width; v++)
            acc[r][v] = sum[r][v];
}

/* Upper bounds on the exact scores of a panel into upper, the largest lower bounds so far into
 * floor. */
INLINE void bound_panel(const __m512i *restrict panel, const about *restrict known, const int width,
                        int64_t held, const shortened *s, int64_t d,
                        float *restrict upper, __m512 *restrict floor)
{
    const int64_t ld = row_of(d);
    __m512 square[VECTORS16], mean[VECTORS16];
    __m512i acc[ROWS][VECTORS16];
    for (int v = 0; v < width; v++)
        square[v] = mean[v] = _mm512_setzero_ps();
    for (int64_t i = 0; i <= d; i += ROWS) {
        const int last = i + ROWS > d;
        product_short(s->rows + i * ld, ld, last ? pairs_of(d) : (i + ROWS + 1) / 2, panel, width,
                      acc);
        const __m512 unit = _mm512_set1_ps(s->square[i / ROWS]);
        for (int v = 0; v < width; v++) {
            __m512 sum = _mm512_setzero_ps();
            for (int r = 0; r < ROWS; r++) {
                const __m512 z = _mm512_cvtepi32_ps(acc[r][v]);
                if (!last || i + r < d)
                    sum = _mm512_fmadd_ps(z, z, sum);
                else if (i + r == d)
                    mean[v] = z;
            }
            square[v] = _mm512_fmadd_ps(sum, unit, square[v]);
        }
    }
    for (int v = 0; v < width; v++) {
        const __m512 length = _mm512_loadu_ps(known[v].length);
        const __m512 unit = _mm512_loadu_ps(known[v].unit);
        const __m512 lost = _mm512_loadu_ps(known[v].lost);
        const __m512 bonus = _mm512_mul_ps(_mm512_mul_ps(_mm512_sqrt_ps(square[v]), unit),
                                           _mm512_set1_ps(s->bonus));
        const __m512 score =
            _mm512_fmadd_ps(_mm512_mul_ps(mean[v], unit), _mm512_set1_ps(s->mean), bonus);
        const __m512 size = _mm512_fmadd_ps(_mm512_set1_ps(s->theta_norm), length, bonus);
        const __m512 own = _mm512_fmadd_ps(size, _mm512_set1_ps(s->slack), _mm512_set1_ps(0x1p-60f));
        const __m512 error =
            _mm512_fmadd_ps(_mm512_set1_ps(s->slope), length,
                            _mm512_fmadd_ps(_mm512_set1_ps(s->slope_lost), lost, own));
        const __m512 low = _mm512_sub_ps(score, error);
        _mm512_storeu_ps(upper + 16 * v, _mm512_add_ps(score, error));
        /* What is not a number proves nothing. */
        const __mmask16 better =
            _mm512_mask_cmp_ps_mask(lanes_of(held - 16 * v), low, *floor, _CMP_GT_OQ);
        *floor = _mm512_mask_mov_ps(*floor, better, low);
    }
}

/* Whether the bounds of the first panel tell next to nothing, as while V is a multiple of I: then
 * those of the others will not either. */
INLINE int alike(const float *restrict upper, __m512 floors, int64_t count)
{
    const __m512 floor = _mm512_set1_ps(_mm512_reduce_max_ps(floors));
    const int64_t held = count < 16 * VECTORS16 ? count : 16 * VECTORS16;
    int64_t below = 0;
    for (int64_t first = 0; first < held; first += 16)
        below += __builtin_popcount(lanes_of(held - first) &
                                    _mm512_cmp_ps_mask(_mm512_loadu_ps(upper + first), floor, _CMP_LT_OQ));
    return 2 * below + 2 < held;
}

SHORT int64_t ff_short_sieve(const ff_actions *actions, const double *restrict w,
                             const double *restrict theta, double beta, int64_t d,
                             double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions, vectors = vectors_of(count), ld = row_of(d);
    int16_t *rows = (int16_t *)aligned(scratch);
    double *one = (double *)(rows + ROWS * groups_of(d) * ld);
    float *square = (float *)(one + groups_of(d)), *upper = square + groups_of(d);
    const shortened made = shorten_factor(w, theta, beta, d, one, rows, square);
    const void *shorts = actions->shorts;
    if (!shorts) {
        void *room = aligned((double *)(upper + 16 * vectors));
        ff_shorten(actions, d, room);
        shorts = room;
    }
    const about *known = (const about *)shorts;
    const __m512i *panels = (const __m512i *)(known + vectors);
    __m512 floors = _mm512_set1_ps(-INFINITY);
    for (int64_t v = 0; v < vectors; v += VECTORS16) {
        const __m512i *panel = panels + v * pairs_of(d);
        const int64_t held = count - 16 * v;
        if (v + VECTORS16 <= vectors)
            bound_panel(panel, known + v, VECTORS16, held, &made, d, upper + 16 * v, &floors);
        else
            bound_panel(panel, known + v, 2, held, &made, d, upper + 16 * v, &floors);
        if (v == 0 && alike(upper, floors, count))
            return -1;
    }
    const float floor = _mm512_reduce_max_ps(floors);
    const int sound = floor > -INFINITY && floor < INFINITY;
    int64_t kept = 0;
    for (int64_t first = 0; first < count; first += 16) {
        const __mmask16 below = _mm512_cmp_ps_mask(_mm512_loadu_ps(upper + first),
                                                   _mm512_set1_ps(floor), _CMP_LT_OQ);
        unsigned may = lanes_of(count - first) & ~(sound ? (unsigned)below : 0u);
        for (; may; may &= may - 1)
            candidates[kept++] = first + __builtin_ctz(may);
    }
    return kept;
}

#else
/* Built without: nothing fits. */
int64_t ff_short_fits(const ff_actions *actions, int64_t d)
{
    (void)actions, (void)d;
    return 0;
}

int64_t ff_short_bytes(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

const void *ff_short_kept(const ff_short_store *store, int64_t q, const ff_actions *actions,
                          int64_t d)
{
    (void)store, (void)q, (void)actions, (void)d;
    return NULL;
}

int64_t ff_short_scratch(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

int64_t ff_short_sieve(const ff_actions *actions, const double *restrict w,
                       const double *restrict theta, double beta, int64_t d,
                       double *restrict scratch, int64_t *restrict candidates)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)d, (void)scratch, (void)candidates;
    return -1;
}
#endif
