#include "ff_bonus_cache.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_bonus_scores.h"
#include "ff_linalg.h"

/* Of so many actions that may be best the exact scores are taken at once. */
#define FEW(actions) (16 + (actions) / 8)
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
/* Failures of sooner bounds after which queries are not begun by them; each is so many
 * successes. */
#define FAILURE 2
#define MOST_FAILURES 32
/* Where eager silos meet a query more often than that until the next release, R bounds all of it at
 * once: what R has bounded stays bounded. Narrow vectors make its products dearer. */
#define AGAIN (FF_WIDE == 64 ? 0.5 : 1.0)
/* A silo's own factor that is likely to last so many rounds is worth sooner bounds. */
#define LASTING 64

int64_t ff_bonus_cache_size(int64_t d) { return ff_bonus_bounds_size(d); }

int64_t ff_bonus_cache_lazy_size(int64_t d)
{
    return ff_bonus_bounds_size(d) + ff_bonus_bounds_kept(d);
}

FF_INLINE const ff_bonus_bounds *bounds_of(const double *factor)
{
    return (const ff_bonus_bounds *)factor;
}

/* Whether few products bound ||R x|| sooner. */
FF_INLINE int sooner_of(const ff_bonus_bounds *bounds) { return bounds->few.rest > 0.0; }

/* What making R takes, in exact scores of an action; bounds have to be made anew with it. */
FF_INLINE int64_t cost_of(double gamma, int64_t actions, int64_t d)
{
    return (gamma != 0.0 ? d : 4) + actions / 8;
}

static void use_release(const ff_bonus_cache *k, ff_bonus_silo *own)
{
    own->version = k->version;
    own->factor = k->factor;
    own->from = own->work = own->quiet = 0;
    own->moved = own->moved_in_all;
    own->grown = own->grown_in_all;
}

/* Whether few products are worth making for the next batch. That takes about d^3
 * products; so do R's of 2 d actions, of which most can be spared, unless they were not in the last
 * batch of most silos. Then it is tried now and then. Lazy silos choose once of a query. */
static int sooner_pays(const ff_bonus_cache *k, int64_t released, double choices, int64_t silos,
                   int64_t d)
{
    int64_t done = 0;
    if (k->own && k->choices && choices > AGAIN * (double)k->choices)
        return 0;
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
        if (ff_bonus_bounds_make(w, beta, gamma, k->sample,
                                 silos < FF_SAMPLES ? silos : FF_SAMPLES,
                                 sooner_pays(k, released, choices, silos, d), k->directions, d,
                                 scratch, (ff_bonus_bounds *)k->factor))
            k->version = (released + 1) << VERSIONS;
    }
    if (k->version && !k->own)
        ff_bonus_bounds_keep(w, d, (ff_bonus_bounds *)k->factor);
    for (int64_t i = 0; i < silos; i++) {
        ff_bonus_silo *own = k->silo + i;
        own->moved_in_all = 0.0;
        own->grown_in_all = 1.0;
        own->made = 0;
        own->patience = 1;
        /* They have one more chance. */
        own->begin = sooner_of(bounds_of(k->factor)) ? SOONER : BY_FACTOR;
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
    const int sooner = lasted > LASTING && own->begin == SOONER && sooner_of(bounds_of(k->factor));
    const int there = ff_bonus_bounds_make(w, beta, gamma, k->sample + silo * d, 1, sooner,
                                           k->directions, d, room, (ff_bonus_bounds *)factor);
    own->factor = factor;
    own->version = there ? k->version + STAGES * ++own->made : 0;
    own->from = seen;
    own->moved = 0.0;
    own->grown = 1.0;
    own->work = own->quiet = 0;
}

/* A bonus beta a + gamma b of now is at most so much of the ||R x|| of the factor: a has not
 * grown, and b by at most moved a. */
FF_INLINE double bonus_of(const ff_bonus_silo *own, double beta, double gamma)
{
    if (gamma == 0.0)
        return beta;
    const double first = beta + gamma * own->moved;
    return hypot(first, gamma / sqrt(bounds_of(own->factor)->model.c));
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
    const double frobenius = bounds_of(k->factor)->model.frobenius;
    const double square = f64_dot(v, v, d);
    const double moved = 1.01 * (sqrt(square) + lost * frobenius * r) * r / s;
    own->moved += moved;
    own->moved_in_all += moved;
    own->grown *= s;
    own->grown_in_all *= s;
}

/* Whether the bounds have left so much to do that a factor of the W of now is worth making; and
 * makes it. */
FF_INLINE void renew_where_due(ff_bonus_cache *k, int64_t silo, int64_t seen, int64_t actions,
                               const double *restrict w, double beta, double gamma, int64_t d,
                               double *restrict room)
{
    const ff_bonus_silo *own = k->silo + silo;
    if (k->own && seen > own->from &&
        (own->work > own->patience * cost_of(gamma, actions, d) || own->quiet ||
         seen - own->from > MOST_POINTS))
        renew(k, silo, seen, w, beta, gamma, d, room);
}

/* That there are bounds of a query, and how they were made. */
FF_INLINE void keep_bounds(int64_t *kept, int64_t made, int64_t version)
{
    if (kept && made != version)
        __atomic_store_n(kept, version, __ATOMIC_RELEASE);
}

int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              double feature_bound, int64_t d, double *restrict scratch,
                              double *restrict room, double *restrict x, const ff_whitened *known)
{
    ff_bonus_silo *own = k->silo ? k->silo + silo : NULL;
    if (!own || !own->version || (!k->own && own->work > MOST_MISSES) || seen < own->quiet)
        return -1;
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!actions->quantised && (d < WIDE || !ff_screen_i16_fits(actions, d)))
        return -1;
    renew_where_due(k, silo, seen, count, w, beta, gamma, d, room);
    if (!own->version || seen - own->from > MOST_POINTS)
        return -1;
    /* Exact panels come first, see ff_best_of. */
    ff_bounded b = {.bounds = bounds_of(own->factor), .moved = own->moved, .grown = own->grown,
                    .view = *actions, .count = count, .d = d};
    b.which = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    b.upper = (float *)aligned((double *)(b.which + count));
    b.mean = b.upper + LANES * vectors;
    b.bound = b.mean + LANES * vectors;
    b.row = (int16_t *)(b.bound + LANES * vectors);
    double *back = (double *)(b.row + row_of(d));
    b.room = room;
    b.factor = bonus_of(own, beta, gamma);
    int64_t made = 0, *kept = NULL;
    if (actions->quantised) {
        b.bound = k->bound + actions->first;
        kept = k->made + actions->query;
        if (actions->ahead)
            FF_PREFETCH(k->made + actions->ahead->query);
        made = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
    }
    /* Two silos that share a query may both make its bounds: whichever stay are bounds. */
    b.stage = made - own->version;
    const int begun = b.stage >= 0 && b.stage < STAGES;
    ff_begin_bounds(&b, own->begin, begun, theta, aligned(back + d));
    /* Along a pool's directions few products leave few actions beside the score of one, many beside
     * what R says that it is at least. */
    const int close = b.stage == SOONER && k->directions;
    int64_t best = ff_likeliest(&b, close);
    /* Its mean reward is read after all that follows, from where nothing else is read. */
    if (actions->mean)
        FF_PREFETCH(actions->mean + best);
    /* Mostly bounds alone decide; how much V has grown is not followed without a second bonus. */
    if (!close && (!k->own || gamma != 0.0) && ff_decided(&b, theta, beta, gamma, &best)) {
        keep_bounds(kept, made, own->version + b.stage);
        own->work -= own->work > 0;
        if (b.stage == SOONER)
            own->failed -= own->failed > 0;
        ff_features(actions, best, d, x);
        if (gamma != 0.0 && (k->own || silo < FF_SAMPLES))
            memcpy(k->sample + silo * d, x, (size_t)d * sizeof(double));
        return best;
    }
    ff_asked q = {&b.view, w, theta, beta, gamma, b.bounds->model.frobenius,
                  feature_bound, d, x, back, known, -1, k->own != NULL};
    const int sooner = b.stage == SOONER;
    int64_t n = ff_may_be_best(&b, &q, &best);
    if (sooner) {
        own->failed += b.stage == BY_FACTOR ? FAILURE : -(own->failed > 0);
        own->begin = own->failed > MOST_FAILURES ? BY_FACTOR : SOONER;
    }
    ff_told first = {0.0, 0.0};
    if (n != 1 || b.which[0] != best) {
        first = ff_tell(&q, best);
        n = ff_not_below_score(&b, first);
    }
    keep_bounds(kept, made, own->version + b.stage);
    if (n == 0 || n > FEW(count)) {
        known->x[0] = NAN;
        own->work += k->own ? count / 2 : MISS;
        /* As in the first batch, where V is a multiple of I but for a silo's own points: until
         * there are twice as many. */
        if (k->own && seen == own->from)
            own->quiet = seen + (seen < MOST_PATIENCE ? seen : MOST_PATIENCE);
        return -1;
    }
    own->work += k->own ? n - 1 : -(own->work > 0);
    int64_t chosen = best;
    if (n > 1 || b.which[0] != best) {
        double score;
        chosen = ff_best_told(&q, b.which, n, best, first, room);
        if (chosen < 0)
            chosen = ff_best_of(actions, b.which, n, w, theta, beta, gamma, d, scratch, &score);
    }
    if (chosen != best) {
        known->x[0] = NAN;
        ff_features(actions, chosen, d, x);
    }
    if (gamma != 0.0 && (k->own || silo < FF_SAMPLES))
        memcpy(k->sample + silo * d, x, (size_t)d * sizeof(double));
    return chosen;
}

int64_t ff_bonus_cache_ends(const ff_actions *actions, const ff_directions *directions,
                            const double *restrict w, const double *restrict theta, double beta,
                            double gamma, const double *restrict points, int64_t seen,
                            double *restrict now, int64_t d, double *restrict scratch,
                            float *restrict ends)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!ff_screen_i16_fits(actions, d))
        return 0;
    ff_bonus_bounds *bounds = (ff_bonus_bounds *)scratch;
    double *room = scratch + ff_bonus_cache_lazy_size(d);
    float *mean = (float *)aligned(room + 3 * d * d + d), *bound = mean + LANES * vectors;
    int16_t *row = (int16_t *)(bound + LANES * vectors);
    measured *quantised = (measured *)aligned((double *)(row + row_of(d)));
    memset(room, 0, (size_t)d * sizeof(double));
    if (!ff_bonus_bounds_make(w, beta, gamma, room + 3 * d * d, 0, 1, directions, d, room, bounds) ||
        !sooner_of(bounds))
        return 0;
    ff_bonus_silo own = {.factor = scratch, .grown = 1.0};
    ff_bonus_cache cache = {.silo = &own, .factor = scratch};
    memcpy(now, w, (size_t)(d * d) * sizeof(double));
    for (int64_t i = 0; i < seen; i++) {
        const double s = ff_observe(now, NULL, points + i * d, 0.0, d, room);
        ff_bonus_cache_observe(&cache, 0, room + d, s, d);
    }
    ff_actions view = *actions;
    ff_quantise_i16(actions, d, quantised);
    view.quantised = quantised;
    const double by = bonus_of(&own, beta, gamma);
    const quantised_row t = ff_quantise_row(theta, d, row);
    ff_bound_by_few(bounds, &view, d, bound);
    ff_bound_means(&view, row, t, by, d, mean);
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends, room, (size_t)count * sizeof(float));
    ff_bound_all(bounds, &view, d, bound);
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends + count, room, (size_t)count * sizeof(float));
    for (int64_t a = 0; a < count; a++)
        ff_bound_some(bounds, &view, &a, 1, d, room, bound);
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends + 2 * count, room, (size_t)count * sizeof(float));
    double *x = (double *)(aligned(room + 3 * d)), *z = x + d, *back = z + d;
    const ff_whitened known = {back + d, z};
    ff_asked q = {&view, now, theta, beta, gamma, bounds->model.frobenius,
                  0.0, d, x, back, &known, -1, 1};
    for (int64_t a = 0; a < count; a++) {
        ends[3 * count + a] = ff_score_at_least(bounds, quantised, a, mean[a], bound[a], theta,
                                                beta, gamma, own.moved, own.grown, d);
        q.taken = -1;
        ends[4 * count + a] =
            ff_least_by_factor(&q, bounds, quantised, a, bound[a], own.moved, own.grown);
    }
    if (!seen)
        ff_bonus_bounds_keep(w, d, bounds);
    for (int64_t a = 0; a < count; a++) {
        q.taken = -1;
        ends[5 * count + a] =
            ff_least_by_factor(&q, bounds, quantised, a, bound[a], own.moved, own.grown);
    }
    return 1;
}

#else
int64_t ff_bonus_cache_ends(const ff_actions *actions, const ff_directions *directions,
                            const double *restrict w, const double *restrict theta, double beta,
                            double gamma, const double *restrict points, int64_t seen,
                            double *restrict now, int64_t d, double *restrict scratch,
                            float *restrict ends)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)gamma, (void)d, (void)scratch;
    (void)points, (void)seen, (void)now, (void)ends, (void)directions;
    return 0;
}

int64_t ff_bonus_cache_size(int64_t d)
{
    (void)d;
    return 0;
}

int64_t ff_bonus_cache_lazy_size(int64_t d)
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
