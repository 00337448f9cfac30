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
/* Versions that a silo may have between two releases, as a power of two. */
#define VERSIONS 30

int64_t ff_bonus_cache_size(int64_t d)
{
    return (int64_t)(sizeof(quantised_factor) / sizeof(double)) + 1 + ff_quantised_factor_size(d);
}

FF_INLINE const quantised_factor *quantised(const double *factor)
{
    return (const quantised_factor *)factor;
}

/* R of W in 16 bits into `factor`; its c is NaN where there is none. */
static ff_bonus_factor make(const double *restrict w, double beta, double gamma,
                            const double *restrict sample, int64_t samples, int64_t d,
                            double *restrict scratch, double *restrict factor)
{
    quantised_factor *m = (quantised_factor *)factor;
    const double *restrict r = w;
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
    *m = ff_quantise_factor(r, NULL, d, (double *)(m + 1));
    if (gamma == 0.0)
        model.frobenius = m->frobenius;
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

void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch)
{
    if (!k->silo || !ff_screen_i16_available())
        return;
    k->version = 0;
    /* Not for fewer actions than take as long to screen otherwise. */
    if (gamma == 0.0 || choices > 2.0 * (double)d) {
        k->model = make(w, beta, gamma, k->sample, silos < FF_SAMPLES ? silos : FF_SAMPLES, d,
                        scratch, k->factor);
        if (!isnan(k->model.c))
            k->version = (released + 1) << VERSIONS;
    }
    for (int64_t i = 0; i < silos; i++) {
        ff_bonus_silo *own = k->silo + i;
        own->moved_in_all = 0.0;
        own->made = 0;
        own->patience = 1;
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
    own->model = make(w, beta, gamma, k->sample + silo * d, 1, d, room, factor);
    own->factor = factor;
    own->version = isnan(own->model.c) ? 0 : k->version + ++own->made;
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

/* Upper bounds on all scores, whose bonus is at most `factor` ||R x||, into upper, -inf past the last one; returns the largest. */
AVX512 static float bound_scores(const quantised_factor *m, const float *restrict bound,
                                const ff_actions *actions, const double *restrict theta,
                                double factor, int64_t d, int16_t *restrict row,
                                float *restrict upper)
{
    const int64_t count = actions->actions, vectors = vectors_of(count), pairs = pairs_of(d);
    const known16 *known = (const known16 *)actions->quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    const quantised_row t = ff_quantise_row(theta, d, row);
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const __m512 slack = _mm512_set1_ps((float)(1.01 * g));
    const __m512 bonus = _mm512_set1_ps((float)(factor * m->unit));
    const __m512 mean = _mm512_set1_ps((float)t.unit), norm = _mm512_set1_ps((float)t.norm);
    const __m512 slope = _mm512_set1_ps((float)(1.01 * t.lost + (1.0 + factor) * 0x1p-80));
    const __m512 slope_lost = _mm512_set1_ps((float)(1.01 * (t.lost + t.norm)));
    __m512 top = _mm512_set1_ps(-INFINITY);
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
            const __mmask16 in = lanes_of(count - 16 * v);
            const __m512 length = _mm512_loadu_ps(known[v].length);
            const __m512 lost = _mm512_loadu_ps(known[v].lost);
            const __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(even[l], odd[l]));
            const __m512 product = _mm512_mul_ps(whole, _mm512_loadu_ps(known[v].unit));
            const __m512 wide = _mm512_mul_ps(_mm512_maskz_loadu_ps(in, bound + 16 * v), bonus);
            const __m512 size = _mm512_fmadd_ps(norm, length, wide);
            const __m512 own = _mm512_fmadd_ps(size, slack, _mm512_set1_ps(0x1p-60f));
            const __m512 error =
                _mm512_fmadd_ps(slope, length, _mm512_fmadd_ps(slope_lost, lost, own));
            const __m512 score = _mm512_add_ps(_mm512_fmadd_ps(product, mean, wide), error);
            const __m512 held = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), in, score);
            _mm512_storeu_ps(upper + 16 * v, held);
            top = _mm512_max_ps(top, held);
        }
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
    float *upper = (float *)aligned((double *)(which + count)), *bound = upper + 16 * vectors;
    int16_t *row = (int16_t *)(bound + 16 * vectors);
    double *back = (double *)(row + row_of(d));
    if (!view.quantised) {
        void *made = aligned(back + d);
        ff_quantise_i16(actions, d, made);
        view.quantised = made;
        make_bounds(own, &view, d, bound);
    } else {
        const int64_t q = view.query;
        bound = k->bound + view.first;
        /* Two silos that share a query may both make its bounds: the same. */
        if (__atomic_load_n(k->made + q, __ATOMIC_ACQUIRE) != own->version) {
            make_bounds(own, &view, d, bound);
            __atomic_store_n(k->made + q, own->version, __ATOMIC_RELEASE);
        }
    }
    const float top = bound_scores(quantised(own->factor), bound, &view, theta,
                                   bonus_of(own, beta, gamma), d, row, upper);
    int64_t best = 0;
    while (best < count - 1 && upper[best] != top)
        best++;
    ff_features(actions, best, d, x);
    memcpy(known->x, x, (size_t)d * sizeof(double));
    if (feature_bound > 0.0)
        ff_clip_norm(known->x, d, feature_bound);
    ff_whiten(w, known->x, d, known->whitened);
    const double frobenius = own->model.frobenius;
    const told first = tell(x, known, w, theta, beta, gamma, frobenius, d, back);
    const int64_t n = not_below(upper, least_of(first), count, which);
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

#else
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
