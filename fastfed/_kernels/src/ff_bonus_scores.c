#include "ff_bonus_scores.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_linalg.h"

/* Of so many a score for each is told sooner than the exact ones of a panel. */
#define ALONE 16
/* Most actions of a query that are bounded by R before that is done for all. */
#define MOST_REFINED(actions) (2 * TOGETHER + (actions) / 3)
/* How often more of the actions of the largest bounds are bounded by R, TOGETHER at a time. */
#define REFINEMENTS 2

/* A score by its mean and bonus. size: of theta, squared. */
FF_INLINE ff_told told_of(double mean, double bonus, double size, double beta, double gamma,
                          double frobenius, double length, int64_t d)
{
    const double most = sqrt(size) + (beta + 2.0 * gamma * frobenius) * frobenius;
    return (ff_told){mean + bonus, 8.0 * (double)(d + 16) * 0x1p-53 * most * length};
}

/* The score of x. back: d of scratch. */
static ff_told tell(const double *restrict x, const ff_whitened *known, const double *restrict w,
                    const double *restrict theta, double beta, double gamma, double frobenius,
                    int64_t d, double *restrict back)
{
    const double mean = f64_dot(theta, x, d), size = f64_dot(theta, theta, d);
    const double own = f64_dot(x, x, d), clipped = f64_dot(known->x, known->x, d);
    const double square = f64_dot(known->whitened, known->whitened, d);
    double second = 0.0;
    if (gamma != 0.0) {
        ff_bonus_factor_back(w, known->whitened, d, back);
        second = f64_dot(back, back, d);
    }
    const double length = sqrt(own), ratio = own > 0.0 ? length / sqrt(clipped) : 0.0;
    const double bonus = (beta * sqrt(square) + gamma * sqrt(second)) * ratio;
    return told_of(mean, bonus, size, beta, gamma, frobenius, length, d);
}

/* The same of an action whose W x is of no further use. Its features are in x then; room: d. */
static ff_told tell_once(const ff_asked *q, int64_t a, double *restrict x, double *restrict room)
{
    const int64_t d = q->d;
    ff_features(q->actions, a, d, x);
    const double mean = f64_dot(q->theta, x, d), own = f64_dot(x, x, d);
    const double size = f64_dot(q->theta, q->theta, d);
    const ff_squares square = ff_squares_of(q->w, x, q->gamma != 0.0, d, room);
    const double bonus = q->beta * sqrt(square.first) + q->gamma * sqrt(square.second);
    return told_of(mean, bonus, size, q->beta, q->gamma, q->frobenius, sqrt(own), d);
}

/* Features of an action into x and `known`, and its W x. */
static void take(ff_asked *q, int64_t a)
{
    if (q->taken == a)
        return;
    ff_features(q->actions, a, q->d, q->x);
    memcpy(q->known->x, q->x, (size_t)q->d * sizeof(double));
    if (q->feature_bound > 0.0)
        ff_clip_norm(q->known->x, q->d, q->feature_bound);
    ff_whiten(q->w, q->known->x, q->d, q->known->whitened);
    q->taken = a;
}

ff_told ff_tell(ff_asked *q, int64_t a)
{
    if (!q->learns && q->taken != a) {
        q->known->x[0] = NAN;
        q->taken = -1;
        return tell_once(q, a, q->x, q->back);
    }
    take(q, a);
    return tell(q->x, q->known, q->w, q->theta, q->beta, q->gamma, q->frobenius, q->d, q->back);
}

/* A float not above what the exact score is. */
FF_INLINE float least_of(ff_told one) { return ff_float_below(one.score - one.error); }

/* ||W x|| of the features in x, which are floats, by columns of W; `off` is what it is off by. */
static double norm_by_columns(const ff_asked *q, const float *columns, double length, double *off)
{
    float *x = (float *)q->back;
    for (int64_t j = 0; j < q->d; j++)
        x[j] = (float)q->x[j];
    *off = ff_norm_error(q->d) * q->frobenius * length + 0x1p-120;
    return ff_norm_by_columns(columns, x, q->d);
}

float ff_least_by_factor(ff_asked *q, const ff_bonus_bounds *k, const measured *restrict known,
                         int64_t a, float bound, double moved, double grown)
{
    if (k->columns && q->taken != a) {
        ff_features(q->actions, a, q->d, q->x);
        q->known->x[0] = NAN;
        q->taken = -1;
    } else {
        take(q, a);
    }
    const double mean = f64_dot(q->theta, q->x, q->d), size = f64_dot(q->theta, q->theta, q->d);
    const double length = sqrt(f64_dot(q->x, q->x, q->d)), frobenius = q->frobenius;
    double norm, off = 0.0;
    if (q->taken == a)
        norm = (tell(q->x, q->known, q->w, q->theta, q->beta, 0.0, frobenius, q->d, q->back).score -
                mean) / q->beta;
    else
        norm = norm_by_columns(q, k->columns, length, &off);
    /* Too large for float32. */
    if (!(norm < INFINITY))
        return -INFINITY;
    const double most = sqrt(size) + (q->beta + 2.0 * q->gamma * frobenius) * frobenius;
    const double error = 8.0 * (double)(q->d + 16) * 0x1p-53 * most * length + q->beta * off;
    return ff_score_at_least_with(k, known, a, bound, mean, norm, error, q->beta, q->gamma, moved,
                                  grown, q->d);
}

int64_t ff_best_told(const ff_asked *q, const int64_t *restrict which, int64_t n, int64_t first,
                     ff_told best, double *restrict room)
{
    const int64_t d = q->d;
    if (n > ALONE)
        return -1;
    int64_t chosen = first;
    double others = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (which[i] == first)
            continue;
        const ff_told one = tell_once(q, which[i], room, room + d);
        const int better = one.score > best.score;
        const ff_told lesser = better ? best : one;
        others = lesser.score + lesser.error > others ? lesser.score + lesser.error : others;
        if (better) {
            best = one;
            chosen = which[i];
        }
    }
    return best.score - best.error > others ? chosen : -1;
}

static int64_t first_of(const float *restrict upper, float top, int64_t count)
{
    for (int64_t first = 0; first < count; first += LANES) {
        const f32s u = f32_load(upper + first);
        const unsigned it = bits_of(count - first) & f32_at_least(u, f32_set(top));
        if (it)
            return first + __builtin_ctz(it);
    }
    return count - 1;
}

/* Of the actions that R bounds the one of the largest upper bound, if there are any. */
static int64_t first_bounded(const float *restrict upper, const float *restrict bound,
                             int64_t count)
{
    float top = -INFINITY;
    int64_t best = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const f32s one = f32_load_some(lanes_of(count - first), bound + first);
        unsigned in = f32_less(one, f32_set(0.0f)) &
                      ~f32_at_least(f32_set(top), f32_load(upper + first));
        /* Few are left after the first. */
        for (; in; in &= in - 1) {
            const int64_t a = first + __builtin_ctz(in);
            if (upper[a] > top) {
                top = upper[a];
                best = a;
            }
        }
    }
    return best;
}

/* Upper bounds on all scores, by those on means and bonuses. */
FF_INLINE void score(ff_bounded *b)
{
    b->top = ff_bound_scores(b->bounds, b->mean, b->bound, b->factor, b->count, b->d, b->upper);
}

FF_INLINE int64_t highest(const ff_bounded *b) { return first_of(b->upper, b->top, b->count); }

/* Whether R bounds an action, or the query. */
FF_INLINE int by_factor(const ff_bounded *b, int64_t a)
{
    return b->stage == BY_FACTOR || b->bound[a] < 0.0f;
}

FF_INLINE const measured *lengths_of(const ff_bounded *b)
{
    return (const measured *)b->view.quantised;
}

FF_INLINE int64_t not_below(const ff_bounded *b, float least)
{
    return ff_not_below(b->upper, least, b->count, b->which);
}

/* Of those among n actions that R does not bound: see ff_bound_open. */
FF_INLINE int64_t bound_open(const ff_bounded *b, int64_t n, int64_t most)
{
    return ff_bound_open(b->bounds, &b->view, b->which, n, most, b->d, b->room, b->bound);
}

FF_INLINE int64_t bound_largest(const ff_bounded *b)
{
    return ff_bound_largest(b->bounds, &b->view, b->upper, b->top, b->d, b->room, b->bound);
}

void ff_begin_bounds(ff_bounded *b, int64_t stage, int there, const double *restrict theta,
                     void *restrict own)
{
    if (!b->view.quantised) {
        ff_quantise_i16(&b->view, b->d, own);
        b->view.quantised = own;
    }
    if (!there) {
        b->stage = b->bounds->few.rest > 0.0 ? stage : BY_FACTOR;
        if (b->stage == SOONER)
            ff_bound_by_few(b->bounds, &b->view, b->d, b->bound);
        else
            ff_bound_all(b->bounds, &b->view, b->d, b->bound);
    }
    const quantised_row t = ff_quantise_row(theta, b->d, b->row);
    ff_bound_means(&b->view, b->row, t, b->factor, b->d, b->mean);
    score(b);
    if (b->stage == SOONER && bound_largest(b))
        score(b);
}

int64_t ff_likeliest(const ff_bounded *b, int bounded_by_factor)
{
    return bounded_by_factor ? first_bounded(b->upper, b->bound, b->count) : highest(b);
}

int ff_decided(ff_bounded *b, const double *restrict theta, double beta, double gamma,
               int64_t *restrict best)
{
    for (int again = 0; again < 2; again++) {
        /* Only what R has bounded tells what a score is at least. Where the best is still not among
         * them after REFINEMENTS more lots, sooner bounds tell too little here. */
        for (int i = 0; !by_factor(b, *best) && i < REFINEMENTS; i++) {
            bound_largest(b);
            score(b);
            *best = highest(b);
        }
        if (!by_factor(b, *best))
            return 0;
        const float least =
            ff_score_at_least(b->bounds, lengths_of(b), *best, b->mean[*best], b->bound[*best],
                              theta, beta, gamma, b->moved, b->grown, b->d);
        const int64_t n = not_below(b, least);
        if (b->stage != SOONER || n <= 1 || again)
            return n == 1 && b->which[0] == *best;
        const int64_t most = MOST_REFINED(b->count);
        if (bound_open(b, n, most) > most)
            return 0;
        score(b);
        *best = highest(b);
    }
    return 0;
}

/* A float that the score of an action is not below; its features are in x. */
static float least_score(const ff_bounded *b, ff_asked *q, int64_t a)
{
    return by_factor(b, a)
               ? ff_least_by_factor(q, b->bounds, lengths_of(b), a, b->bound[a], b->moved, b->grown)
               : least_of(ff_tell(q, a));
}

int64_t ff_not_below_score(const ff_bounded *b, ff_told score)
{
    return not_below(b, least_of(score));
}

int64_t ff_may_be_best(ff_bounded *b, ff_asked *q, int64_t *restrict best)
{
    float least = least_score(b, q, *best);
    const int64_t n = not_below(b, least), most = MOST_REFINED(b->count);
    const int64_t open = b->stage == SOONER ? bound_open(b, n, most) : 0;
    if (!open)
        return n;
    if (open > most) {
        b->stage = BY_FACTOR;
        ff_bound_all(b->bounds, &b->view, b->d, b->bound);
    }
    score(b);
    const int64_t likely = highest(b);
    if (likely != *best) {
        *best = likely;
        least = least_score(b, q, likely);
    }
    return not_below(b, least);
}

#endif
