#include "ff_bonus_cache.h"

#ifdef FF_AVX512
#include <math.h>

#include "ff_linalg.h"
#include "ff_screen_i16_parts.h"

/* Data points that may enter V before rounding could matter; see `scale_of`. */
#define MOST_POINTS 65536
/* Of so many actions that may be best the exact scores are taken at once. */
#define FEW(actions) (16 + (actions) / 8)
/* Of so many a score for each is told sooner than the exact ones of a panel. */
#define ALONE 5
/* Where factors are not made anew: what a query whose bounds do not decide counts against one whose
 * do, and how far that may go before a silo does without them. */
#define MISS 8
#define MOST_MISSES 32
/* How long a silo may go without a new factor, in times that making one takes. */
#define MOST_PATIENCE 32
/* Fewer dimensions than these are not worth bringing to 16 bits in every round. */
#define WIDE 32
/* Versions that a silo may have between two releases, and stages of bounds, as a power of two. */
#define VERSIONS 30

/* How bounds of a query's actions on ||R x|| were made: by few products (ff_bonus_few.h), or by R.
 * What few products leave in doubt is bounded by R: these bounds have a minus sign. Where that is
 * much, all are. */
enum { FEW_PRODUCTS = 0, BY_FACTOR = 1, STAGES = 2 };
/* Actions that are bounded by R at a time, and at most of a query before that is done for all. */
#define TOGETHER 8
#define FIRST (2 * TOGETHER)
#define MOST_REFINED(actions) (2 * TOGETHER + (actions) / 3)
/* Failures of few products after which queries are not begun by them; each is so many successes. */
#define FAILURE 4
#define MOST_FAILURES 16

/* R in 16 bits, and what bounds ||R x|| sooner. Their rows follow. */
typedef struct {
    quantised_factor factor;
    ff_bonus_few few;
    const int16_t *rows; /* of `few` */
} held_factor;

int64_t ff_bonus_cache_size(int64_t d)
{
    return (int64_t)(sizeof(held_factor) / sizeof(double)) + 1 + ff_quantised_factor_size(d) +
           FF_FEW_ROWS * row_of(d) / 4 + 8;
}

FF_INLINE const held_factor *held(const double *factor) { return (const held_factor *)factor; }
FF_INLINE const quantised_factor *quantised(const double *factor) { return &held(factor)->factor; }

/* R of W in 16 bits into `factor`; its c is NaN where there is none. few: whether what bounds it
 * sooner is worth making. */
static ff_bonus_factor make(const double *restrict w, double beta, double gamma,
                            const double *restrict sample, int64_t samples, int few, int64_t d,
                            double *restrict scratch, double *restrict factor)
{
    held_factor *own = (held_factor *)factor;
    quantised_factor *m = &own->factor;
    const double *r = w;
    ff_bonus_factor model = {0.0, 0.0, 0.0};
    if (gamma != 0.0) {
        const double c = ff_bonus_factor_weight(w, beta, gamma, sample, samples, d, scratch);
        if (c > 0.0 && c < INFINITY)
            model = ff_bonus_factor_make(w, c, d, scratch, scratch + d * d);
        if (model.c == 0.0) {
            model.c = NAN;
            return model;
        }
        r = scratch + d * d;
    }
    double *end = (double *)(own + 1);
    *m = ff_quantise_factor(r, NULL, d, end);
    if (gamma == 0.0)
        model.frobenius = m->frobenius;
    own->few.rest = 0.0;
    if (few) {
        int16_t *rows = (int16_t *)aligned(end + ff_quantised_factor_size(d));
        own->few = ff_bonus_few_make(r, d, scratch, scratch + 2 * d * d, rows);
        own->rows = rows;
    }
    return model;
}

/* What making R takes, in exact scores of an action; bounds have to be made anew with it. */
FF_INLINE int64_t cost_of(double gamma, int64_t actions, int64_t d)
{
    return (gamma != 0.0 ? d : 4) + actions / 8;
}

static void use_release(const ff_bonus_cache *k, ff_bonus_silo *own)
{
    own->version = k->version;
    own->model = k->model;
    own->factor = k->factor;
    own->from = own->work = 0;
    own->moved = own->moved_in_all;
}

/* Whether another bound on ||R x|| is worth making for the next batch. It takes about d^3
 * products; so do R's of 2 d actions, of which most can be spared, unless they were not in the last
 * batch of most silos. Then it is tried now and then. */
static int few_pay(const ff_bonus_cache *k, int64_t released, double choices, int64_t silos,
                   int64_t d)
{
    int64_t done = 0;
    for (int64_t i = 0; i < silos; i++)
        done += k->silo[i].begin == BY_FACTOR;
    return d >= WIDE && choices > 8.0 * (double)d && (2 * done <= silos || released % 32 == 0);
}

void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch)
{
    if (!k->silo || !ff_screen_i16_available())
        return;
    k->version = 0;
    /* Not for fewer actions than take as long to screen otherwise. */
    if (gamma == 0.0 || choices > 2.0 * (double)d) {
        k->model = make(w, beta, gamma, k->sample, silos < FF_SAMPLES ? silos : FF_SAMPLES,
                        few_pay(k, released, choices, silos, d), d, scratch, k->factor);
        if (!isnan(k->model.c))
            k->version = (released + 1) << VERSIONS;
    }
    for (int64_t i = 0; i < silos; i++) {
        ff_bonus_silo *own = k->silo + i;
        own->moved_in_all = 0.0;
        own->made = 0;
        own->patience = 1;
        /* Few products have one more chance. */
        own->begin = held(k->factor)->few.rest > 0.0 ? FEW_PRODUCTS : BY_FACTOR;
        if (own->failed > MOST_FAILURES - FAILURE)
            own->failed = MOST_FAILURES - FAILURE;
        use_release(k, own);
    }
}

void ff_bonus_cache_rewind(ff_bonus_cache *k, int64_t silo)
{
    if (k->silo)
        use_release(k, k->silo + silo);
}

/* A factor of the silo's own W, if another could do better. */
static void renew(ff_bonus_cache *k, int64_t silo, int64_t seen, const double *restrict w,
                  double beta, double gamma, int64_t d, double *restrict room)
{
    ff_bonus_silo *own = k->silo + silo;
    double *factor = k->own + silo * ff_bonus_cache_size(d);
    const int64_t lasted = seen - own->from;
    own->patience = lasted > 16 ? (own->patience + 1) / 2 : 2 * own->patience;
    if (own->patience > MOST_PATIENCE)
        own->patience = MOST_PATIENCE;
    own->model = make(w, beta, gamma, k->sample + silo * d, 1, 0, d, room, factor);
    own->factor = factor;
    own->version = isnan(own->model.c) ? 0 : k->version + STAGES * ++own->made;
    own->from = seen;
    own->moved = 0.0;
    own->work = 0;
}

/* A bonus beta a + gamma b of now is at most so much of the ||R x|| of the factor: a has not
 * grown, and b by at most moved a. */
FF_INLINE double bonus_of(const ff_bonus_silo *own, double beta, double gamma)
{
    if (gamma == 0.0)
        return beta;
    const double first = beta + gamma * own->moved;
    return sqrt(first * first + gamma * gamma / own->model.c);
}

/* With v = V^-1 x and r^2 = x'v = s - 1 a data point takes v v' / s from V^-1, so from V^-1 x_a at
 * most ||v|| |<x_a, v>| / s <= ||v|| r a / s, a = ||x_a||_{V^-1}. That holds for whatever W x was
 * rounded to, by which W was changed (see ff_candidates.c); v is that times W', good to (d + 8) u
 * ||W||_F r. s - 1 has lost what was below the last digit of s. The hundredth pays for rounding
 * here. */
void ff_bonus_cache_observe(ff_bonus_cache *k, int64_t silo, const double *restrict v, double s,
                            int64_t d)
{
    ff_bonus_silo *own = k->silo + silo;
    const double lost = (double)(d + 8) * 0x1p-52, r = sqrt(s - 1.0 + lost * s);
    double square = 0.0;
    for (int64_t j = 0; j < d; j++)
        square += v[j] * v[j];
    const double moved = 1.01 * (sqrt(square) + lost * k->model.frobenius * r) * r / s;
    own->moved += moved;
    own->moved_in_all += moved;
}

/* Errors of ||R x||, in units of the factor: per length of an action, and per length that rounding
 * took from it; as in `scoring` of ff_screen_i16.c.
 *
 * The W that is scored is the factor's, updated by ff_observe in float64, from data points
 * one by one. With u = 2^-53, row i of the next W is kept W_i - taken sum_k z_k W_k, kept <= 1 and
 * taken ||z_<i|| <= 1, each good to (d + 8) u: so it is off by at most 2 (d + 8) u (||W_i|| +
 * ||W||_F), and all rows by 4 (d + 8) sqrt(d) u ||W||_F, whatever z was. MOST_POINTS of that are
 * added: `drift` ||x|| to a, and so at most 2.01 ||W||_F drift ||x|| to b, which by the inequality
 * of ff_bonus_factor.h is what sqrt(1 + c (2.01 ||W||_F)^2) drift ||x|| is to ||R x||. What R
 * itself is off by is its `lost`. */
typedef struct {
    float slack, slope, slope_lost;
} scale;

FF_INLINE scale scale_of(const ff_bonus_silo *k, int64_t d)
{
    const quantised_factor *m = quantised(k->factor);
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double frobenius = k->model.frobenius;
    const double drift = MOST_POINTS * 8.0 * n * sqrt((double)d) * 0x1p-53 * frobenius;
    const double both = drift * sqrt(1.0 + 4.05 * k->model.c * frobenius * frobenius);
    const double slope = (m->lost + both + k->model.lost) / m->unit;
    return (scale){(float)(1.0 + 1.01 * g), (float)(1.01 * slope + 0x1p-20),
                   (float)(1.01 * (m->lost / m->unit + m->norm / m->unit))};
}

/* Bounds on ||R x|| of the actions of a query. */
AVX512 static void make_bounds(const ff_bonus_silo *k, const ff_actions *actions, int64_t d,
                              float *restrict bound)
{
    const quantised_factor *m = quantised(k->factor);
    const int64_t count = actions->actions, vectors = vectors_of(count), ld = row_of(d);
    const known16 *known = (const known16 *)actions->quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    const scale s = scale_of(k, d);
    for (int64_t first = 0; first < vectors; first += VECTORS16) {
        const __m512i *panel = panels + first * pairs_of(d);
        const int64_t width = vectors - first < VECTORS16 ? 2 : VECTORS16;
        __m512 square[VECTORS16];
        __m512i acc[ROWS][VECTORS16];
        for (int v = 0; v < VECTORS16; v++)
            square[v] = _mm512_setzero_ps();
        for (int64_t i = 0; i < d; i += ROWS) {
            const int64_t all = (i + ROWS + 1) / 2, pairs = all < pairs_of(d) ? all : pairs_of(d);
            if (width == VECTORS16)
                product_i16(m->rows + i * ld, ld, pairs, panel, VECTORS16, acc);
            else
                product_i16(m->rows + i * ld, ld, pairs, panel, 2, acc);
            const __m512 unit = _mm512_set1_ps(m->squares[i / ROWS]);
            for (int64_t v = 0; v < width; v++) {
                __m512 sum = _mm512_setzero_ps();
                for (int r = 0; r < ROWS; r++) {
                    const __m512 z = _mm512_cvtepi32_ps(acc[r][v]);
                    sum = _mm512_fmadd_ps(z, z, sum);
                }
                square[v] = _mm512_fmadd_ps(sum, unit, square[v]);
            }
        }
        for (int64_t v = first; v < first + width; v++) {
            const __m512 own = _mm512_mul_ps(_mm512_sqrt_ps(square[v - first]),
                                             _mm512_loadu_ps(known[v].unit));
            const __m512 error =
                _mm512_fmadd_ps(_mm512_loadu_ps(known[v].length), _mm512_set1_ps(s.slope),
                                _mm512_mul_ps(_mm512_loadu_ps(known[v].lost),
                                              _mm512_set1_ps(s.slope_lost)));
            _mm512_mask_storeu_ps(bound + 16 * v, lanes_of(count - 16 * v),
                                  _mm512_fmadd_ps(own, _mm512_set1_ps(s.slack), error));
        }
    }
}

/* Roundings of a score in float32, of mean and bonus alike. */
FF_INLINE float slack_of(int64_t d)
{
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    return (float)(1.01 * g);
}

/* The same by few products. Of those rounding takes as of `scoring` in ff_screen_i16.c: ||H x|| <=
 * ||H x^|| (1 + g) + ||H||_F ||e||; squares of lengths are off by 2 g, their sum by some u. */
AVX512 static void bound_by_few(const ff_bonus_silo *k, const ff_actions *actions, int64_t d,
                                float *restrict bound)
{
    const quantised_factor *m = quantised(k->factor);
    const ff_bonus_few *few = &held(k->factor)->few;
    const int16_t *entries = held(k->factor)->rows;
    const int64_t count = actions->actions, vectors = vectors_of(count), ld = row_of(d);
    const int64_t pairs = pairs_of(d);
    const known16 *known = (const known16 *)actions->quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    const scale s = scale_of(k, d);
    const double g = (double)slack_of(d), unit = 1.000001 / m->unit;
    const __m512 rest = _mm512_set1_ps((float)((1.0 + 8.0 * g) * few->rest * unit * unit));
    const __m512 kept = _mm512_set1_ps((float)((1.0 + 4.0 * g) * few->unit * unit));
    const __m512 lost = _mm512_set1_ps((float)(1.01 * few->frobenius * unit));
    const __m512 slope = _mm512_set1_ps(s.slope), slack = _mm512_set1_ps(s.slack);
    for (int64_t first = 0; first < vectors; first += VECTORS16) {
        const __m512i *panel = panels + first * pairs;
        const int64_t width = vectors - first < VECTORS16 ? 2 : VECTORS16;
        __m512 square[VECTORS16];
        __m512i acc[ROWS][VECTORS16];
        for (int v = 0; v < VECTORS16; v++)
            square[v] = _mm512_setzero_ps();
        for (int64_t i = 0; i < few->rows; i += ROWS) {
            if (width == VECTORS16)
                product_i16(entries + i * ld, ld, pairs, panel, VECTORS16, acc);
            else
                product_i16(entries + i * ld, ld, pairs, panel, 2, acc);
            for (int r = 0; r < ROWS; r++) {
                const __m512 relative = _mm512_set1_ps(few->squares[i + r]);
                for (int64_t v = 0; v < width; v++) {
                    const __m512 z = _mm512_cvtepi32_ps(acc[r][v]);
                    square[v] = _mm512_fmadd_ps(_mm512_mul_ps(z, z), relative, square[v]);
                }
            }
        }
        for (int64_t v = first; v < first + width; v++) {
            const __m512 length = _mm512_loadu_ps(known[v].length);
            const __m512 along =
                _mm512_mul_ps(_mm512_mul_ps(_mm512_sqrt_ps(square[v - first]), kept),
                              _mm512_loadu_ps(known[v].unit));
            const __m512 part = _mm512_fmadd_ps(_mm512_loadu_ps(known[v].lost), lost, along);
            const __m512 whole =
                _mm512_fmadd_ps(part, part, _mm512_mul_ps(_mm512_mul_ps(length, length), rest));
            const __m512 own = _mm512_mul_ps(_mm512_sqrt_ps(whole), slack);
            _mm512_mask_storeu_ps(bound + 16 * v, lanes_of(count - 16 * v),
                                  _mm512_fmadd_ps(length, slope, own));
        }
    }
}

/* Bounds by R of `n` <= TOGETHER actions, with a minus sign. room: 8 pairs_of(d) + 8 doubles. */
AVX512 static void refine(const ff_bonus_silo *k, const ff_actions *actions,
                          const int64_t *restrict which, int64_t n, int64_t d,
                          double *restrict room, float *restrict bound)
{
    const quantised_factor *m = quantised(k->factor);
    const int64_t vectors = vectors_of(actions->actions), pairs = pairs_of(d), ld = row_of(d);
    const int64_t groups = (d + ROWS - 1) / ROWS;
    const known16 *known = (const known16 *)actions->quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    int32_t *together = (int32_t *)aligned(room);
    memset(together, 0, (size_t)(TOGETHER * pairs) * sizeof(int32_t));
    for (int64_t a = 0; a < n; a++) {
        const int64_t v = which[a] / 16, first = v - v % VECTORS16;
        const int64_t width = vectors - first < VECTORS16 ? 2 : VECTORS16;
        const int32_t *from = (const int32_t *)(panels + first * pairs + v - first) + which[a] % 16;
        for (int64_t j = 0; j < pairs; j++)
            together[j * TOGETHER + a] = from[16 * j * width];
    }
    /* Two groups of rows at a time, for a sum would wait for itself. */
    __m256 square = _mm256_setzero_ps();
    for (int64_t g = 0; g < groups; g += 2) {
        const int16_t *rows = m->rows + g * ROWS * ld;
        const int both = g + 1 < groups;
        /* Of a row what is past its group's last column is not written. */
        const int64_t end = ((g + 1) * ROWS + 1) / 2, own = end < pairs ? end : pairs;
        const int64_t far = both ? ((g + 2) * ROWS + 1) / 2 : 0, last = far < pairs ? far : pairs;
        __m256i sum[ROWS], more[ROWS];
        for (int r = 0; r < ROWS; r++)
            sum[r] = more[r] = _mm256_setzero_si256();
        const int64_t next = both ? ROWS * ld : 0;
        for (int64_t j = 0; j < own; j++) {
            const __m256i x = _mm256_load_si256((const __m256i *)(together + j * TOGETHER));
            for (int r = 0; r < ROWS; r++) {
                int32_t low, high;
                memcpy(&low, rows + r * ld + 2 * j, sizeof low);
                memcpy(&high, rows + next + r * ld + 2 * j, sizeof high);
                MULTIPLY(sum[r], _mm256_set1_epi32(low), x);
                MULTIPLY(more[r], _mm256_set1_epi32(high), x);
            }
        }
        for (int64_t j = own; j < last; j++) {
            const __m256i x = _mm256_load_si256((const __m256i *)(together + j * TOGETHER));
            for (int r = 0; r < ROWS; r++) {
                int32_t high;
                memcpy(&high, rows + next + r * ld + 2 * j, sizeof high);
                MULTIPLY(more[r], _mm256_set1_epi32(high), x);
            }
        }
        __m256 part = _mm256_setzero_ps(), other = part;
        for (int r = 0; r < ROWS; r++) {
            const __m256 z = _mm256_cvtepi32_ps(sum[r]), y = _mm256_cvtepi32_ps(more[r]);
            part = _mm256_fmadd_ps(z, z, part);
            other = _mm256_fmadd_ps(y, y, other);
        }
        square = _mm256_fmadd_ps(part, _mm256_set1_ps(m->squares[g]), square);
        if (both)
            square = _mm256_fmadd_ps(other, _mm256_set1_ps(m->squares[g + 1]), square);
    }
    float width[TOGETHER];
    _mm256_storeu_ps(width, _mm256_sqrt_ps(square));
    const scale s = scale_of(k, d);
    for (int64_t i = 0; i < n; i++) {
        const known16 *its = known + which[i] / 16;
        const int64_t lane = which[i] % 16;
        const float own = width[i] * its->unit[lane];
        bound[which[i]] = -(own * s.slack + (its->length[lane] * s.slope + its->lost[lane] * s.slope_lost));
    }
}

/* The actions of the largest upper bounds, some FIRST of them, of which those that R has not
 * bounded are refined. Returns how many. */
AVX512 static int64_t refine_largest(const ff_bonus_silo *k, const ff_actions *actions,
                                     const float *restrict upper, float top, int64_t d,
                                     double *restrict room, float *restrict bound)
{
    int64_t which[FIRST];
    const int64_t count = actions->actions;
    __m512 least = _mm512_set1_ps(top);
    for (int64_t first = 0; first < count; first += 16)
        least = _mm512_mask_min_ps(least, lanes_of(count - first), least,
                                   _mm512_loadu_ps(upper + first));
    float low = _mm512_reduce_min_ps(least), high = top;
    /* Down to a bound that FIRST at most reach. */
    for (int i = 0; i < 10; i++) {
        const float middle = 0.5f * (low + high);
        const __m512 from = _mm512_set1_ps(middle);
        int64_t reach = 0;
        for (int64_t first = 0; first < count; first += 16)
            reach += __builtin_popcount(_mm512_mask_cmp_ps_mask(
                lanes_of(count - first), _mm512_loadu_ps(upper + first), from, _CMP_GE_OQ));
        if (reach > FIRST)
            low = middle;
        else
            high = middle;
        if (reach <= FIRST && reach >= FIRST / 2)
            break;
    }
    int64_t n = 0;
    const __m512 from = _mm512_set1_ps(high), none = _mm512_setzero_ps();
    for (int64_t first = 0; first < count && n < FIRST; first += 16) {
        const __mmask16 reach = _mm512_mask_cmp_ps_mask(
            lanes_of(count - first), _mm512_loadu_ps(upper + first), from, _CMP_GE_OQ);
        unsigned open = _mm512_mask_cmp_ps_mask(
            reach, _mm512_maskz_loadu_ps(reach, bound + first), none, _CMP_GE_OQ);
        for (; open && n < FIRST; open &= open - 1)
            which[n++] = first + __builtin_ctz(open);
    }
    for (int64_t i = 0; i < n; i += TOGETHER)
        refine(k, actions, which + i, n - i < TOGETHER ? n - i : TOGETHER, d, room, bound);
    return n;
}

/* Upper bounds on all means, and what a score whose bonus is `factor` ||R x|| may lose by rounding
 * but for `slack_of` that bonus. */
AVX512 static void bound_means(const ff_actions *actions, const double *restrict theta,
                               double factor, int64_t d, int16_t *restrict row,
                               float *restrict upper)
{
    const int64_t count = actions->actions, vectors = vectors_of(count), pairs = pairs_of(d);
    const known16 *known = (const known16 *)actions->quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    const quantised_row t = ff_quantise_row(theta, d, row);
    const __m512 slack = _mm512_set1_ps(slack_of(d));
    const __m512 mean = _mm512_set1_ps((float)t.unit), norm = _mm512_set1_ps((float)t.norm);
    const __m512 slope = _mm512_set1_ps((float)(1.01 * t.lost + (1.0 + factor) * 0x1p-80));
    const __m512 slope_lost = _mm512_set1_ps((float)(1.01 * (t.lost + t.norm)));
    for (int64_t first = 0; first < vectors; first += VECTORS16) {
        const __m512i *panel = panels + first * pairs;
        const int64_t width = vectors - first < VECTORS16 ? 2 : VECTORS16;
        /* Two sums of each: one would wait for itself. */
        __m512i even[VECTORS16], odd[VECTORS16];
        for (int v = 0; v < VECTORS16; v++)
            even[v] = odd[v] = _mm512_setzero_si512();
        int64_t j = 0;
        if (width == VECTORS16)
            for (; j + 2 <= pairs; j += 2) {
                int32_t entries[2];
                memcpy(entries, row + 2 * j, sizeof entries);
                const __m512i low = _mm512_set1_epi32(entries[0]);
                const __m512i high = _mm512_set1_epi32(entries[1]);
                for (int v = 0; v < VECTORS16; v++) {
                    MULTIPLY(even[v], low, panel[j * VECTORS16 + v]);
                    MULTIPLY(odd[v], high, panel[(j + 1) * VECTORS16 + v]);
                }
            }
        for (; j < pairs; j++) {
            int32_t entries;
            memcpy(&entries, row + 2 * j, sizeof entries);
            const __m512i both = _mm512_set1_epi32(entries);
            for (int64_t v = 0; v < width; v++)
                MULTIPLY(even[v], both, panel[j * width + v]);
        }
        for (int64_t l = 0; l < width; l++) {
            const int64_t v = first + l;
            const __m512 length = _mm512_loadu_ps(known[v].length);
            const __m512 lost = _mm512_loadu_ps(known[v].lost);
            const __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(even[l], odd[l]));
            const __m512 product = _mm512_mul_ps(whole, _mm512_loadu_ps(known[v].unit));
            const __m512 size = _mm512_mul_ps(norm, length);
            const __m512 own = _mm512_fmadd_ps(size, slack, _mm512_set1_ps(0x1p-60f));
            const __m512 error =
                _mm512_fmadd_ps(slope, length, _mm512_fmadd_ps(slope_lost, lost, own));
            _mm512_storeu_ps(upper + 16 * v, _mm512_add_ps(_mm512_mul_ps(product, mean), error));
        }
    }
}

/* Upper bounds on all scores of those on means and bonuses, -inf past the last one; returns the
 * largest. */
AVX512 static float add_bonuses(const quantised_factor *m, const float *restrict mean,
                                const float *restrict bound, double factor, int64_t count,
                                int64_t d, float *restrict upper)
{
    const __m512 slack = _mm512_set1_ps(slack_of(d));
    const __m512 bonus = _mm512_set1_ps((float)(factor * m->unit));
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int64_t first = 0; first < 16 * vectors_of(count); first += 16) {
        const __mmask16 in = lanes_of(count - first);
        const __m512 size = _mm512_abs_ps(_mm512_maskz_loadu_ps(in, bound + first));
        const __m512 wide = _mm512_mul_ps(size, bonus);
        const __m512 score = _mm512_add_ps(_mm512_fmadd_ps(wide, slack, wide),
                                           _mm512_loadu_ps(mean + first));
        const __m512 held = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), in, score);
        _mm512_storeu_ps(upper + first, held);
        top = _mm512_max_ps(top, held);
    }
    return _mm512_reduce_max_ps(top);
}

/* The actions whose upper bound is not below `least`, ascending; returns how many. */
AVX512 static int64_t not_below(const float *restrict upper, float least, int64_t count,
                               int64_t *restrict which)
{
    int64_t n = 0;
    for (int64_t first = 0; first < count; first += 16) {
        unsigned may = lanes_of(count - first) &
                       (unsigned)~_mm512_cmp_ps_mask(_mm512_loadu_ps(upper + first),
                                                     _mm512_set1_ps(least), _CMP_LT_OQ);
        for (; may; may &= may - 1)
            which[n++] = first + __builtin_ctz(may);
    }
    return n;
}

/* The score of x, and what the one that ff_best_of takes may differ from it by: z = W x (of x, or
 * of the x that it was clipped to) and W'z are summed in an order of their own here; all are off by
 * less than (d + 8) u of the largest that products and roots can be, twice that for the score
 * itself. back: d of scratch. */
typedef struct {
    double score, error;
} told;

FF_INLINE told tell(const double *restrict x, const ff_whitened *known, const double *restrict w,
                    const double *restrict theta, double beta, double gamma, double frobenius,
                    int64_t d, double *restrict back)
{
    double mean = 0.0, square = 0.0, own = 0.0, clipped = 0.0, size = 0.0, second = 0.0;
    for (int64_t j = 0; j < d; j++) {
        mean += theta[j] * x[j];
        size += theta[j] * theta[j];
        own += x[j] * x[j];
        clipped += known->x[j] * known->x[j];
        square += known->whitened[j] * known->whitened[j];
    }
    if (gamma != 0.0) {
        ff_bonus_factor_back(w, known->whitened, d, back);
        for (int64_t j = 0; j < d; j++)
            second += back[j] * back[j];
    }
    const double length = sqrt(own), ratio = own > 0.0 ? length / sqrt(clipped) : 0.0;
    const double bonus = (beta * sqrt(square) + gamma * sqrt(second)) * ratio;
    const double most = sqrt(size) + (beta + 2.0 * gamma * frobenius) * frobenius;
    return (told){mean + bonus, 8.0 * (double)(d + 16) * 0x1p-53 * most * length};
}

/* The same of an action, whose features go into x and `known`. */
static told tell_of(const ff_actions *actions, int64_t a, const double *restrict w,
                    const double *restrict theta, double beta, double gamma, double frobenius,
                    double feature_bound, int64_t d, double *restrict x, const ff_whitened *known,
                    double *restrict back)
{
    ff_features(actions, a, d, x);
    memcpy(known->x, x, (size_t)d * sizeof(double));
    if (feature_bound > 0.0)
        ff_clip_norm(known->x, d, feature_bound);
    ff_whiten(w, known->x, d, known->whitened);
    return tell(x, known, w, theta, beta, gamma, frobenius, d, back);
}

/* A float not above what the exact score is. */
FF_INLINE float least_of(told one)
{
    const double least = one.score - one.error;
    const float rounded = (float)least;
    return (double)rounded > least ? nextafterf(rounded, -INFINITY) : rounded;
}

/* The action of the largest score of n <= ALONE, of which `first` has been told, if rounding leaves
 * no doubt; else -1. room: 3 d. */
static int64_t best_told(const ff_actions *actions, const int64_t *restrict which, int64_t n,
                         int64_t first, told best, const double *restrict w,
                         const double *restrict theta, double beta, double gamma, double frobenius,
                         int64_t d, double *restrict room)
{
    const ff_whitened own = {room, room + d};
    int64_t chosen = first;
    double others = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (which[i] == first)
            continue;
        ff_features(actions, which[i], d, own.x);
        ff_whiten(w, own.x, d, own.whitened);
        const told one = tell(own.x, &own, w, theta, beta, gamma, frobenius, d, room + 2 * d);
        const int better = one.score > best.score;
        const told lesser = better ? best : one;
        others = lesser.score + lesser.error > others ? lesser.score + lesser.error : others;
        if (better) {
            best = one;
            chosen = which[i];
        }
    }
    return best.score - best.error > others ? chosen : -1;
}

/* Whether the bounds have left so much to do that a factor of the W of now is worth making; and
 * makes it. */
FF_INLINE void renew_where_due(ff_bonus_cache *k, int64_t silo, int64_t seen, int64_t actions,
                               const double *restrict w, double beta, double gamma, int64_t d,
                               double *restrict room)
{
    const ff_bonus_silo *own = k->silo + silo;
    if (k->own && seen > own->from &&
        (own->work > own->patience * cost_of(gamma, actions, d) || seen - own->from > MOST_POINTS))
        renew(k, silo, seen, w, beta, gamma, d, room);
}

/* Bounds by R of those among n actions that have none; returns how many there are, and where there
 * are more than `most` does nothing else. */
static int64_t refine_open(const ff_bonus_silo *own, const ff_actions *actions,
                           const int64_t *restrict which, int64_t n, int64_t most, int64_t d,
                           double *restrict room, float *restrict bound)
{
    int64_t open = 0, held_now = 0, together[TOGETHER];
    for (int64_t i = 0; i < n; i++)
        open += bound[which[i]] >= 0.0f;
    if (open > most)
        return open;
    for (int64_t i = 0; i < n; i++) {
        if (bound[which[i]] >= 0.0f)
            together[held_now++] = which[i];
        if (held_now && (held_now == TOGETHER || i == n - 1)) {
            refine(own, actions, together, held_now, d, room, bound);
            held_now = 0;
        }
    }
    return open;
}

/* A float that the exact score of an action is not below, by its bound on ||R x||: for a lazy silo,
 * whose W is the one that R was made of.
 *
 * With a = r cos p, sqrt(c) b = r sin p, r = ||R x||, the bonus is F r cos(p - p*), where F^2 = beta^2 +
 * gamma^2 / c and tan p* = gamma / (sqrt(c) beta). By Cauchy-Schwarz a^2 = x'V^-1 x <= ||x|| b, so
 * k cos^2 p <= sin p for k = sqrt(c) r / ||x||: p is between the one where these are equal and a right
 * angle, and the cosine is least at one of the ends. Without a second bonus it is 1.
 *
 * The bounds are above r and the mean by at most twice what was added to them, and the exact score is
 * off by what `tell` says. */
static float score_at_least(const ff_bonus_silo *own, const ff_actions *actions, int64_t a,
                            float upper_mean, float bound, const double *restrict theta, double beta,
                            double gamma, int64_t d)
{
    const known16 *its = (const known16 *)actions->quantised + a / 16;
    const scale s = scale_of(own, d);
    const double length = 1.0001 * (double)its->length[a % 16], lost = (double)its->lost[a % 16];
    const double g = (double)slack_of(d), frobenius = own->model.frobenius, c = own->model.c;
    const double unit = quantised(own->factor)->unit, size = fabs((double)bound);
    const double added = 1.01 * (size * ((double)s.slack - 1.0 + g) + length * (double)s.slope +
                                 lost * (double)s.slope_lost);
    const double r = unit * (size - 2.0 * added);
    double norm = 0.0;
    for (int64_t j = 0; j < d; j++)
        norm += theta[j] * theta[j];
    norm = 1.0001 * sqrt(norm);
    /* theta in 16 bits has lost as much as `bound_means` knows: at most this. */
    const double theta_lost = norm * sqrt((double)d) / LENGTH;
    const double error = 1.02 * (theta_lost * length + (theta_lost + norm) * lost +
                                 g * norm * length) + 0x1p-50;
    double turned = 1.0, most = beta;
    if (gamma != 0.0) {
        const double second = gamma / sqrt(c);
        most = sqrt(beta * beta + second * second);
        const double k = sqrt(c) * r / length, square = 2.0 * k * k;
        const double cosine = k > 0x1p-20 ? (sqrt(1.0 + 2.0 * square) - 1.0) / square : 1.0;
        const double sine = cosine < 1.0 ? sqrt(1.0 - cosine) : 0.0;
        const double low = (sqrt(cosine) * beta + sine * second) / most, high = second / most;
        turned = 0.999999 * (low < high ? low : high);
    }
    const double exact = 8.0 * (double)(d + 16) * 0x1p-53 *
                         (norm + (beta + 2.0 * gamma * frobenius) * frobenius) * length;
    const double mean = (double)upper_mean - 2.0 * (error + 0x1p-79 * (1.0 + most) * length);
    const double least = mean + turned * most * r - exact - 1e-6 * (fabs(mean) + most * fabs(r));
    return r > 0.0 && least < INFINITY ? (float)(least - 0x1p-22 * fabs(least)) : -INFINITY;
}

/* Asks for the features of an action, which lie far apart, before they are needed. */
FF_INLINE void fetch(const ff_actions *actions, int64_t a, int64_t d)
{
    const float *x = (const float *)actions->x + a * actions->action_stride;
    for (int64_t j = 0; j < d; j++)
        __builtin_prefetch(x + j * actions->feature_stride);
}

static int64_t first_of(const float *restrict upper, float top, int64_t count)
{
    int64_t best = 0;
    while (best < count - 1 && upper[best] != top)
        best++;
    return best;
}

int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              double feature_bound, int64_t d, double *restrict scratch,
                              double *restrict room, double *restrict x, const ff_whitened *known)
{
    ff_bonus_silo *own = k->silo ? k->silo + silo : NULL;
    if (!own || !own->version || (!k->own && own->work > MOST_MISSES))
        return -1;
    ff_actions view = *actions;
    const int64_t count = view.actions, vectors = vectors_of(count);
    if (!view.quantised && (d < WIDE || !ff_screen_i16_fits(actions, d)))
        return -1;
    renew_where_due(k, silo, seen, count, w, beta, gamma, d, room);
    if (!own->version || seen - own->from > MOST_POINTS)
        return -1;
    /* Exact panels come first, see ff_best_of. */
    int64_t *which = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    float *upper = (float *)aligned((double *)(which + count)), *mean = upper + 16 * vectors;
    float *bound = mean + 16 * vectors;
    int16_t *row = (int16_t *)(bound + 16 * vectors);
    double *back = (double *)(row + row_of(d));
    int64_t made = 0, *kept = NULL;
    if (!view.quantised) {
        void *own_block = aligned(back + d);
        ff_quantise_i16(actions, d, own_block);
        view.quantised = own_block;
    } else {
        bound = k->bound + view.first;
        kept = k->made + view.query;
        made = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
    }
    /* Two silos that share a query may both make its bounds: whichever stay are bounds. */
    int64_t stage = made - own->version;
    if (stage < 0 || stage >= STAGES) {
        stage = held(own->factor)->few.rest > 0.0 ? own->begin : BY_FACTOR;
        if (stage == FEW_PRODUCTS)
            bound_by_few(own, &view, d, bound);
        else
            make_bounds(own, &view, d, bound);
    }
    const double factor = bonus_of(own, beta, gamma), frobenius = own->model.frobenius;
    const quantised_factor *m = quantised(own->factor);
    bound_means(&view, theta, factor, d, row, mean);
    float top = add_bonuses(m, mean, bound, factor, count, d, upper);
    if (stage == FEW_PRODUCTS) {
        fetch(&view, first_of(upper, top, count), d);
        if (refine_largest(own, &view, upper, top, d, room, bound))
            top = add_bonuses(m, mean, bound, factor, count, d, upper);
    }
    int64_t best = first_of(upper, top, count), n;
    /* Who plays by released statistics needs no W x of what it takes: mostly bounds alone decide. */
    for (int again = 0; !k->own && again < 2; again++) {
        /* Only what R has bounded tells what a score is at least. */
        for (int i = 0; stage == FEW_PRODUCTS && !(bound[best] < 0.0f) && i < TOGETHER; i++) {
            refine(own, &view, &best, 1, d, room, bound);
            top = add_bonuses(m, mean, bound, factor, count, d, upper);
            best = first_of(upper, top, count);
        }
        if (stage == FEW_PRODUCTS && !(bound[best] < 0.0f))
            break;
        const float least = score_at_least(own, &view, best, mean[best], bound[best], theta, beta,
                                           gamma, d);
        n = not_below(upper, least, count, which);
        if (stage == FEW_PRODUCTS && n > 1 && !again) {
            const int64_t most = MOST_REFINED(count);
            if (refine_open(own, &view, which, n, most, d, room, bound) > most)
                break;
            top = add_bonuses(m, mean, bound, factor, count, d, upper);
            best = first_of(upper, top, count);
            continue;
        }
        if (n == 1 && which[0] == best) {
            if (kept && made != own->version + stage)
                __atomic_store_n(kept, own->version + stage, __ATOMIC_RELEASE);
            own->work -= own->work > 0;
            if (stage == FEW_PRODUCTS)
                own->failed -= own->failed > 0;
            ff_features(actions, best, d, x);
            if (gamma != 0.0 && silo < FF_SAMPLES)
                memcpy(k->sample + silo * d, x, (size_t)d * sizeof(double));
            return best;
        }
        break;
    }
    told first = tell_of(actions, best, w, theta, beta, gamma, frobenius, feature_bound, d, x, known,
                         back);
    n = not_below(upper, least_of(first), count, which);
    if (stage == FEW_PRODUCTS) {
        const int64_t most = MOST_REFINED(count);
        const int64_t open = refine_open(own, &view, which, n, most, d, room, bound);
        own->failed += open > most ? FAILURE : -(own->failed > 0);
        own->begin = own->failed > MOST_FAILURES ? BY_FACTOR : FEW_PRODUCTS;
        if (open > most) {
            stage = BY_FACTOR;
            make_bounds(own, &view, d, bound);
        }
        if (open) {
            top = add_bonuses(m, mean, bound, factor, count, d, upper);
            const int64_t likely = first_of(upper, top, count);
            if (likely != best) {
                best = likely;
                first = tell_of(actions, best, w, theta, beta, gamma, frobenius, feature_bound, d, x,
                                known, back);
            }
            n = not_below(upper, least_of(first), count, which);
        }
    }
    if (kept && made != own->version + stage)
        __atomic_store_n(kept, own->version + stage, __ATOMIC_RELEASE);
    if (n == 0 || n > FEW(count)) {
        known->x[0] = NAN;
        own->work += k->own ? count / 2 : MISS;
        return -1;
    }
    own->work += k->own ? n - 1 : -(own->work > 0);
    int64_t chosen = best;
    if (n > 1 || which[0] != best) {
        double score;
        chosen = n <= ALONE ? best_told(actions, which, n, best, first, w, theta, beta, gamma,
                                        frobenius, d, room)
                            : -1;
        if (chosen < 0)
            chosen = ff_best_of(actions, which, n, w, theta, beta, gamma, d, scratch, &score);
    }
    if (chosen != best) {
        known->x[0] = NAN;
        ff_features(actions, chosen, d, x);
    }
    if (gamma != 0.0 && (k->own || silo < FF_SAMPLES))
        memcpy(k->sample + silo * d, x, (size_t)d * sizeof(double));
    return chosen;
}

int64_t ff_bonus_cache_ends(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, double gamma, int64_t d,
                            double *restrict scratch, float *restrict ends)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!ff_screen_i16_fits(actions, d))
        return 0;
    double *factor = scratch, *room = factor + ff_bonus_cache_size(d);
    float *mean = (float *)aligned(room + 3 * d * d + d), *bound = mean + 16 * vectors;
    int16_t *row = (int16_t *)(bound + 16 * vectors);
    void *block = aligned((double *)(row + row_of(d)));
    memset(room, 0, (size_t)d * sizeof(double));
    ff_bonus_silo own = {.factor = factor};
    own.model = make(w, beta, gamma, room + 3 * d * d, 0, 1, d, room, factor);
    if (isnan(own.model.c) || held(factor)->few.rest == 0.0)
        return 0;
    ff_actions view = *actions;
    ff_quantise_i16(actions, d, block);
    view.quantised = block;
    const double by = bonus_of(&own, beta, gamma);
    bound_means(&view, theta, by, d, row, mean);
    bound_by_few(&own, &view, d, bound);
    add_bonuses(quantised(factor), mean, bound, by, count, d, (float *)room);
    memcpy(ends, room, (size_t)count * sizeof(float));
    make_bounds(&own, &view, d, bound);
    add_bonuses(quantised(factor), mean, bound, by, count, d, (float *)room);
    memcpy(ends + count, room, (size_t)count * sizeof(float));
    for (int64_t a = 0; a < count; a++)
        refine(&own, &view, &a, 1, d, room, bound);
    add_bonuses(quantised(factor), mean, bound, by, count, d, (float *)room);
    memcpy(ends + 2 * count, room, (size_t)count * sizeof(float));
    for (int64_t a = 0; a < count; a++)
        ends[3 * count + a] =
            score_at_least(&own, &view, a, mean[a], bound[a], theta, beta, gamma, d);
    return 1;
}

#else
int64_t ff_bonus_cache_ends(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, double gamma, int64_t d,
                            double *restrict scratch, float *restrict ends)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)gamma, (void)d, (void)scratch;
    (void)ends;
    return 0;
}

int64_t ff_bonus_cache_size(int64_t d)
{
    (void)d;
    return 0;
}

void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch)
{
    (void)k, (void)w, (void)released, (void)beta, (void)gamma, (void)choices, (void)silos;
    (void)d, (void)scratch;
}

int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              double feature_bound, int64_t d, double *restrict scratch,
                              double *restrict room, double *restrict x, const ff_whitened *known)
{
    (void)k, (void)silo, (void)seen, (void)actions, (void)w, (void)theta, (void)beta, (void)gamma;
    (void)feature_bound, (void)d, (void)scratch, (void)room, (void)x, (void)known;
    return -1;
}

void ff_bonus_cache_rewind(ff_bonus_cache *k, int64_t silo) { (void)k, (void)silo; }

void ff_bonus_cache_observe(ff_bonus_cache *k, int64_t silo, const double *restrict v, double s,
                            int64_t d)
{
    (void)k, (void)silo, (void)v, (void)s, (void)d;
}
#endif
