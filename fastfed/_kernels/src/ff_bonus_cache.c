#include "ff_bonus_cache.h"

#ifdef FF_AVX512
#include <math.h>

#include "ff_bonus_bounds.h"
#include "ff_linalg.h"

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
/* How bounds of a query's actions on ||R x|| were made: sooner, by principal coordinates or few
 * products (ff_bonus_principal.h, ff_bonus_few.h), or by R. What is in doubt after that is bounded
 * by R: these bounds have a minus sign. Where that is much, all are. */
enum { SOONER = 0, BY_FACTOR = 1, STAGES = 2 };
/* Most actions of a query that are bounded by R before that is done for all. */
#define MOST_REFINED(actions) (2 * TOGETHER + (actions) / 3)
/* How often more of the actions of the largest bounds are bounded by R, TOGETHER at a time. */
#define REFINEMENTS 2
/* Failures of sooner bounds after which queries are not begun by them; each is so many
 * successes. */
#define FAILURE 2
#define MOST_FAILURES 32
/* A silo's own factor that is likely to last so many rounds is worth sooner bounds. */
#define LASTING 64

int64_t ff_bonus_cache_size(int64_t d) { return ff_bonus_bounds_size(d); }

FF_INLINE const ff_bonus_bounds *bounds_of(const double *factor)
{
    return (const ff_bonus_bounds *)factor;
}

/* Whether there is what bounds ||R x|| sooner. */
FF_INLINE int sooner_of(const ff_bonus_bounds *bounds)
{
    return bounds->few.rest > 0.0 || bounds->principal.rest > 0.0;
}

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

/* Whether another bound on ||R x|| is worth making for the next batch. It takes about d^3
 * products; so do R's of 2 d actions, of which most can be spared, unless they were not in the last
 * batch of most silos. Then it is tried now and then. */
static int sooner_pays(const ff_bonus_cache *k, int64_t released, double choices, int64_t silos,
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
    const int serves = k->principal && ff_principal_serves(k->principal);
    for (int64_t i = 0; serves && !k->serves && i < silos; i++) {
        k->silo[i].begin = SOONER;
        k->silo[i].failed = 0;
    }
    k->serves = serves;
    /* Not for fewer actions than take as long to screen otherwise. */
    if (gamma == 0.0 || choices > 2.0 * (double)d) {
        if (ff_bonus_bounds_make(w, beta, gamma, k->sample,
                                 silos < FF_SAMPLES ? silos : FF_SAMPLES,
                                 sooner_pays(k, released, choices, silos, d),
                                 serves ? k->principal : NULL, d, scratch,
                                 (ff_bonus_bounds *)k->factor))
            k->version = (released + 1) << VERSIONS;
    }
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
                                           k->serves ? k->principal : NULL, d, room,
                                           (ff_bonus_bounds *)factor);
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
    double square = 0.0;
    for (int64_t j = 0; j < d; j++)
        square += v[j] * v[j];
    const double moved = 1.01 * (sqrt(square) + lost * frobenius * r) * r / s;
    own->moved += moved;
    own->moved_in_all += moved;
    own->grown *= s;
    own->grown_in_all *= s;
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

/* What scores of single actions are told of. x, known: of the one that may be chosen. back: d. */
typedef struct {
    const ff_actions *actions;
    const double *w, *theta;
    double beta, gamma, frobenius, feature_bound;
    int64_t d;
    double *x, *back;
    const ff_whitened *known;
} asked;

/* Features of an action into x and `known`. */
static void take(const asked *q, int64_t a)
{
    ff_features(q->actions, a, q->d, q->x);
    memcpy(q->known->x, q->x, (size_t)q->d * sizeof(double));
    if (q->feature_bound > 0.0)
        ff_clip_norm(q->known->x, q->d, q->feature_bound);
    ff_whiten(q->w, q->known->x, q->d, q->known->whitened);
}

/* The score of the action that was taken. */
FF_INLINE told tell_taken(const asked *q)
{
    return tell(q->x, q->known, q->w, q->theta, q->beta, q->gamma, q->frobenius, q->d, q->back);
}

/* A float not above what the exact score is. */
FF_INLINE float least_of(told one) { return ff_float_below(one.score - one.error); }

/* The same of the action `a` that was taken, which R bounds: half the products. */
static float least_by_factor(const asked *q, const ff_bonus_bounds *k,
                             const known16 *restrict known, int64_t a, float bound,
                             const ff_bonus_silo *own)
{
    const told first =
        tell(q->x, q->known, q->w, q->theta, q->beta, 0.0, q->frobenius, q->d, q->back);
    double mean = 0.0, size = 0.0, length = 0.0;
    for (int64_t j = 0; j < q->d; j++) {
        mean += q->theta[j] * q->x[j];
        size += q->theta[j] * q->theta[j];
        length += q->x[j] * q->x[j];
    }
    const double frobenius = q->frobenius;
    const double most = sqrt(size) + (q->beta + 2.0 * q->gamma * frobenius) * frobenius;
    const double error = 8.0 * (double)(q->d + 16) * 0x1p-53 * most * sqrt(length);
    return ff_score_at_least_with(k, known, a, bound, mean, (first.score - mean) / q->beta, error,
                                  q->beta, q->gamma, own->moved, own->grown, q->d);
}

/* The action of the largest score of n <= ALONE, of which `first`, taken, has been told, if
 * rounding leaves no doubt; else -1. room: 3 d. */
static int64_t best_told(const asked *q, const int64_t *restrict which, int64_t n, int64_t first,
                         told best, double *restrict room)
{
    const int64_t d = q->d;
    const ff_whitened own = {room, room + d};
    int64_t chosen = first;
    double others = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (which[i] == first)
            continue;
        ff_features(q->actions, which[i], d, own.x);
        ff_whiten(q->w, own.x, d, own.whitened);
        const told one = tell(own.x, &own, q->w, q->theta, q->beta, q->gamma, q->frobenius, d,
                              room + 2 * d);
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
        (own->work > own->patience * cost_of(gamma, actions, d) || own->quiet ||
         seen - own->from > MOST_POINTS))
        renew(k, silo, seen, w, beta, gamma, d, room);
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

/* Of the actions that R bounds the one of the largest upper bound, if there are any. */
static int64_t first_bounded(const float *restrict upper, const float *restrict bound,
                             int64_t count)
{
    int64_t best = 0;
    for (int64_t a = 1; a < count; a++)
        if (bound[a] < 0.0f && (!(bound[best] < 0.0f) || upper[a] > upper[best]))
            best = a;
    return best;
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
    ff_actions view = *actions;
    const int64_t count = view.actions, vectors = vectors_of(count);
    if (!view.quantised && (d < WIDE || !ff_screen_i16_fits(actions, d)))
        return -1;
    renew_where_due(k, silo, seen, count, w, beta, gamma, d, room);
    if (!own->version || seen - own->from > MOST_POINTS)
        return -1;
    const ff_bonus_bounds *bounds = bounds_of(own->factor);
    /* Exact panels come first, see ff_best_of. */
    int64_t *which = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    float *upper = (float *)aligned((double *)(which + count)), *mean = upper + 16 * vectors;
    float *bound = mean + 16 * vectors;
    int16_t *row = (int16_t *)(bound + 16 * vectors);
    double *back = (double *)(row + row_of(d));
    int64_t made = 0, *kept = NULL;
    if (view.quantised) {
        bound = k->bound + view.first;
        kept = k->made + view.query;
        made = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
    }
    /* Two silos that share a query may both make its bounds: whichever stay are bounds. */
    int64_t stage = made - own->version;
    const int begun = stage >= 0 && stage < STAGES;
    const char *block = NULL;
    if (!begun && k->principal && (!k->serves || own->begin == SOONER))
        block = ff_principal_block(k->principal, view.query, &view, d);
    if (!(bounds->principal.rest > 0.0))
        block = NULL;
    void *own_block = aligned(back + d);
    ff_one_by_one some = {(known16 *)own_block, row, {0}, 0.0, mean}, *one = NULL;
    if (!view.quantised && block) {
        one = &some;
    } else if (!view.quantised) {
        ff_quantise_i16(actions, d, own_block);
        view.quantised = own_block;
    }
    if (!begun) {
        stage = block || bounds->few.rest > 0.0 ? own->begin : BY_FACTOR;
        if (stage == SOONER && block)
            ff_bound_by_principal(bounds, &view, block, d, bound);
        else if (stage == SOONER)
            ff_bound_by_few(bounds, &view, d, bound);
        else
            ff_bound_all(bounds, &view, d, bound);
    }
    const double factor = bonus_of(own, beta, gamma), frobenius = bounds->model.frobenius;
    const quantised_row t = ff_quantise_row(theta, d, row);
    if (one) {
        some.t = t;
        some.factor = factor;
        ff_principal_means(k->principal, &view, block, theta, d, mean);
    } else
        ff_bound_means(&view, row, t, factor, d, mean);
    const known16 *lengths = one ? one->known : (const known16 *)view.quantised;
    float top = ff_bound_scores(bounds, mean, bound, factor, count, d, upper);
    if (stage == SOONER) {
        fetch(&view, first_of(upper, top, count), d);
        if (ff_bound_largest(bounds, &view, one, upper, top, d, room, bound))
            top = ff_bound_scores(bounds, mean, bound, factor, count, d, upper);
    }
    /* Principal coordinates leave few actions beside the score of one, many beside what R says that
     * it is at least. */
    const int close = stage == SOONER && bounds->principal.rest > 0.0;
    int64_t n, best = close ? first_bounded(upper, bound, count) : first_of(upper, top, count);
    /* Mostly bounds alone decide; how much V has grown is not followed without a second bonus. */
    for (int again = 0; !close && (!k->own || gamma != 0.0) && again < 2; again++) {
        /* Only what R has bounded tells what a score is at least. Where the best is still not among
         * them after REFINEMENTS more lots, sooner bounds tell too little here. */
        for (int i = 0; stage == SOONER && !(bound[best] < 0.0f) && i < REFINEMENTS; i++) {
            ff_bound_largest(bounds, &view, one, upper, top, d, room, bound);
            top = ff_bound_scores(bounds, mean, bound, factor, count, d, upper);
            best = first_of(upper, top, count);
        }
        if (stage == SOONER && !(bound[best] < 0.0f))
            break;
        const float least = ff_score_at_least(bounds, lengths, best, mean[best], bound[best], theta,
                                              beta, gamma, own->moved, own->grown, d);
        n = ff_not_below(upper, least, count, which);
        if (stage == SOONER && n > 1 && !again) {
            const int64_t most = MOST_REFINED(count);
            if (ff_bound_open(bounds, &view, one, which, n, most, d, room, bound) > most)
                break;
            top = ff_bound_scores(bounds, mean, bound, factor, count, d, upper);
            best = first_of(upper, top, count);
            continue;
        }
        if (n == 1 && which[0] == best) {
            if (kept && made != own->version + stage)
                __atomic_store_n(kept, own->version + stage, __ATOMIC_RELEASE);
            own->work -= own->work > 0;
            if (stage == SOONER)
                own->failed -= own->failed > 0;
            ff_features(actions, best, d, x);
            if (gamma != 0.0 && (k->own || silo < FF_SAMPLES))
                memcpy(k->sample + silo * d, x, (size_t)d * sizeof(double));
            return best;
        }
        break;
    }
    const asked q = {&view, w, theta, beta, gamma, frobenius, feature_bound, d, x, back, known};
    take(&q, best);
    float least = stage == BY_FACTOR || bound[best] < 0.0f
                      ? least_by_factor(&q, bounds, lengths, best, bound[best], own)
                      : least_of(tell_taken(&q));
    n = ff_not_below(upper, least, count, which);
    if (stage == SOONER) {
        const int64_t most = MOST_REFINED(count);
        const int64_t open = ff_bound_open(bounds, &view, one, which, n, most, d, room, bound);
        own->failed += open > most ? FAILURE : -(own->failed > 0);
        own->begin = own->failed > MOST_FAILURES ? BY_FACTOR : SOONER;
        if (open > most) {
            stage = BY_FACTOR;
            if (one) {
                ff_quantise_i16(actions, d, own_block);
                view.quantised = own_block;
                ff_bound_means(&view, row, t, factor, d, mean);
            }
            ff_bound_all(bounds, &view, d, bound);
        }
        if (open) {
            top = ff_bound_scores(bounds, mean, bound, factor, count, d, upper);
            const int64_t likely = first_of(upper, top, count);
            if (likely != best) {
                best = likely;
                take(&q, best);
                least = stage == BY_FACTOR || bound[best] < 0.0f
                            ? least_by_factor(&q, bounds, lengths, best, bound[best], own)
                            : least_of(tell_taken(&q));
            }
            n = ff_not_below(upper, least, count, which);
        }
    }
    told first = {0.0, 0.0};
    if (n != 1 || which[0] != best) {
        first = tell_taken(&q);
        n = ff_not_below(upper, least_of(first), count, which);
    }
    if (kept && made != own->version + stage)
        __atomic_store_n(kept, own->version + stage, __ATOMIC_RELEASE);
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
    if (n > 1 || which[0] != best) {
        double score;
        chosen = n <= ALONE ? best_told(&q, which, n, best, first, room) : -1;
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

int64_t ff_bonus_cache_ends(const ff_actions *actions, const ff_principal *principal, char *block,
                            const double *restrict w,
                            const double *restrict theta, double beta, double gamma,
                            const double *restrict points, int64_t seen, double *restrict now,
                            int64_t d, double *restrict scratch, float *restrict ends)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!ff_screen_i16_fits(actions, d))
        return 0;
    ff_bonus_bounds *bounds = (ff_bonus_bounds *)scratch;
    double *room = scratch + ff_bonus_cache_size(d);
    float *mean = (float *)aligned(room + 3 * d * d + d), *bound = mean + 16 * vectors;
    int16_t *row = (int16_t *)(bound + 16 * vectors);
    known16 *quantised = (known16 *)aligned((double *)(row + row_of(d)));
    memset(room, 0, (size_t)d * sizeof(double));
    if (!ff_bonus_bounds_make(w, beta, gamma, room + 3 * d * d, 0, 1, principal, d, room,
                              bounds) ||
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
    if (principal) {
        ff_principal_make(principal, actions, d, block);
        ff_bound_by_principal(bounds, &view, block, d, bound);
        ff_principal_means(principal, &view, block, theta, d, mean);
    } else {
        ff_bound_by_few(bounds, &view, d, bound);
        ff_bound_means(&view, row, t, by, d, mean);
    }
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends, room, (size_t)count * sizeof(float));
    ff_bound_means(&view, row, t, by, d, mean);
    ff_bound_all(bounds, &view, d, bound);
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends + count, room, (size_t)count * sizeof(float));
    /* One by one, from what lies in memory or from 16 bits. */
    const ff_one_by_one one = {quantised, row, t, by, mean};
    for (int64_t a = 0; a < count; a++)
        ff_bound_some(bounds, &view, principal ? &one : NULL, &a, 1, d, room, bound);
    ff_bound_scores(bounds, mean, bound, by, count, d, (float *)room);
    memcpy(ends + 2 * count, room, (size_t)count * sizeof(float));
    double *x = (double *)(aligned(room + 3 * d)), *z = x + d, *back = z + d;
    const ff_whitened known = {back + d, z};
    const asked q = {&view, now, theta, beta, gamma, bounds->model.frobenius,
                     0.0,   d,   x,     back, &known};
    for (int64_t a = 0; a < count; a++) {
        ends[3 * count + a] = ff_score_at_least(bounds, quantised, a, mean[a], bound[a], theta,
                                                beta, gamma, own.moved, own.grown, d);
        take(&q, a);
        ends[4 * count + a] = least_by_factor(&q, bounds, quantised, a, bound[a], &own);
    }
    return 1;
}

#else
int64_t ff_bonus_cache_ends(const ff_actions *actions, const ff_principal *principal, char *block,
                            const double *restrict w,
                            const double *restrict theta, double beta, double gamma,
                            const double *restrict points, int64_t seen, double *restrict now,
                            int64_t d, double *restrict scratch, float *restrict ends)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)gamma, (void)d, (void)scratch;
    (void)points, (void)seen, (void)now, (void)ends, (void)principal, (void)block;
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
