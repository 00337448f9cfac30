#include "ff_policy.h"

#include <math.h>

double ff_policy_radius(const ff_curve *c, double log_det, int64_t round, int64_t d)
{
    const int64_t k = ff_entry(c);
    const int64_t counted = c->lazy ? ff_end_of(c, c->released) : round;
    if (c->radius.determinant)
        return c->bonus * ff_determinant_radius(&c->radius, c->radius_offset[k], c->inflation,
                                                c->log_inflation, log_det, d);
    return ff_radius_at(&c->radius, c->radius_offset[k], c->radius_lambda[k],
                        c->radius_count * (double)counted, d);
}

/* ln det V of what a silo decides with. */
FF_INLINE double log_det_of(const ff_curve *c, int64_t silo)
{
    return ff_learns(c) ? c->log_dets[silo] : c->log_det;
}

/* By tracked scores, or by screening where these do not tell. */
static int64_t choose_tracked(const ff_run *run, ff_curve *c, int64_t silo,
                              const ff_actions *actions, const double *w, const double *theta,
                              double beta, const ff_parts *p)
{
    const int64_t d = run->dimension;
    ff_tracked *k = c->tracked + silo;
    double *values = c->tracked_values + silo * ff_tracked_size(run->environment->actions);
    const double gamma = c->second_bonus;
    if (k->left >= 0 && (k->left == 0 || k->x != actions->x || k->released != c->released))
        ff_tracked_make(k, values, actions, w, theta, gamma, c->released, d, p->score);
    int64_t a = -1;
    if (k->left > 0)
        a = ff_tracked_choose(k, values, actions, w, theta, beta, gamma, d, p->score, p->feature);
    else
        k->left++;
    if (k->left <= 0)
        k->x = NULL;
    return a >= 0 ? a
                  : ff_select(actions, w, theta, beta, gamma, d, p->score, p->feature, NULL);
}

/* By the cached bounds, from the candidate set, or by screening all actions. */
static int64_t choose_anew(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    ff_choice *last = ff_policy_memory(run, c, silo);
    const double *w = c->w + ff_slot(c, silo) * d * d, *theta = c->theta + ff_slot(c, silo) * d;
    const double beta = ff_policy_radius(c, log_det_of(c, silo), round, d);
    int64_t a = -1;
    if (c->tie_bonus < 1.0 && c->bonus == 1.0) {
        a = ff_select_tied(actions, w, theta, beta, c->second_bonus, c->reward_limit, c->tie_bonus,
                           d, p->score, p->feature);
        if (last)
            *last = (ff_choice){actions->x, c->released, a};
        return a;
    }
    /* Of a V that is a multiple of I scores are simpler than bounds. */
    const int alike = c->alike && (c->lazy || round - 1 == c->trigger.last);
    if (c->bonus_cache.silo && !alike)
        a = ff_bonus_cache_choose(&c->bonus_cache, silo, round - 1 - c->trigger.last, actions, w,
                                  theta, beta, c->second_bonus, c->clip ? c->feature_bound : 0.0,
                                  d, p->score, p->bound, p->feature, &p->known);
    if (a >= 0) {
        if (last)
            *last = (ff_choice){actions->x, c->released, a};
        return a;
    }
    if (c->lazy || !run->environment->borrow) {
        a = ff_select(actions, w, theta, beta, c->second_bonus, d, p->score, p->feature, NULL);
        if (last)
            *last = (ff_choice){actions->x, c->released, a};
        return a;
    }
    ff_candidates *k = c->candidates + silo;
    k->times = k->x == actions->x ? k->times + 1 : 0;
    if (c->tracked && k->times > 3 && ff_tracked_fits(actions, d)) {
        k->count = 0;
        return choose_tracked(run, c, silo, actions, w, theta, beta, p);
    }
    if (k->times && k->count && k->released == c->released)
        a = ff_candidates_choose(k, actions, w, theta, beta, c->second_bonus, d, p->score,
                                 p->feature);
    if (a < 0) {
        /* A candidate set pays only for rows that are offered again and again. */
        const int repeated = k->times > 3;
        ff_bounds bounds;
        a = ff_select(actions, w, theta, beta, c->second_bonus, d, p->score, p->feature,
                      repeated ? &bounds : NULL);
        k->count = 0;
        if (repeated)
            ff_candidates_make(k, &bounds, actions->actions, w, beta, c->released, d);
        k->x = actions->x;
    }
    return a;
}

/* A lazy choice hangs on the query and the release alone: also on another round's, or silo's. */
int64_t ff_policy_choose_confident(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p)
{
    int64_t *kept = c->chosen && actions->quantised ? c->chosen + actions->query : NULL;
    if (!kept)
        return choose_anew(run, c, silo, round, actions, p);
    const int64_t found = __atomic_load_n(kept, __ATOMIC_RELAXED);
    if (found >> 32 == c->released + 1) {
        const int64_t a = found & 0xffffffff;
        ff_features(actions, a, run->dimension, p->feature);
        return a;
    }
    const int64_t a = choose_anew(run, c, silo, round, actions, p);
    __atomic_store_n(kept, (c->released + 1) << 32 | a, __ATOMIC_RELAXED);
    return a;
}

/* The action of the largest score of a user's function, or -1. */
static int64_t choose_scored(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    const double *w = c->w + ff_slot(c, silo) * d * d, *theta = c->theta + ff_slot(c, silo) * d;
    const ff_stream stream = ff_stream_of(run, FF_SCORE_KEY, silo, round);
    double *end = (double *)p->x + run->scratch_size;
    const int64_t most = run->environment->actions;
    double *own = end - ff_scored_scratch(d, most, c->score_state_size);
    return ff_scored(c->score, c->score_state, c->score_state_size, ff_key(&stream), round, actions,
                     w, theta, ff_policy_radius(c, log_det_of(c, silo), round, d), c->second_bonus,
                     d, own, p->feature);
}

int64_t ff_policy_choose_otherwise(const ff_run *run, const ff_curve *c, int64_t silo,
                                   int64_t round, const ff_actions *actions, const ff_parts *p)
{
    if (c->random) {
        const ff_stream stream = ff_stream_of(run, FF_POLICY, silo, round);
        const int64_t a = ff_uniform_int(&stream, actions->actions);
        ff_features(actions, a, run->dimension, p->feature);
        return a;
    }
    return choose_scored(run, c, silo, round, actions, p);
}

void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, const ff_actions *actions,
                     double y, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->w + silo * d * d, *theta = c->theta + silo * d;
    ff_candidates *k = c->candidates + silo;
    ff_tracked *tracked = c->tracked && c->tracked[silo].x ? c->tracked + silo : NULL;
    const int followed = k->count || tracked;
    const double prediction = followed ? ff_dot(theta, p->feature, d) : 0.0;
    const double square = followed ? ff_dot(theta, theta, d) : 0.0;
    const int known = memcmp(p->known.x, p->feature, (size_t)d * sizeof(double)) == 0;
    const double s = known ? ff_observe_whitened(w, theta, p->feature, y, d, p->observe)
                           : ff_observe(w, theta, p->feature, y, d, p->observe);
    /* V + x x' has s times V's determinant. */
    if (c->radius.determinant)
        c->log_dets[silo] += ff_log(s);
    ff_candidates_observe(k, prediction, sqrt(square), y, s, c->second_bonus, d);
    if (tracked && tracked->x == actions->x)
        ff_tracked_observe(tracked,
                           c->tracked_values + silo * ff_tracked_size(run->environment->actions),
                           actions, w, p->observe + d, prediction, sqrt(square), y, s,
                           c->second_bonus, d, p->bound);
    else if (tracked)
        tracked->x = NULL;
    if (c->bonus_cache.version && c->second_bonus != 0.0)
        ff_bonus_cache_observe(&c->bonus_cache, silo, p->observe + d, s, d);
}

int64_t ff_policy_choose_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    const double *w = c->own_w + silo * d * d, *theta = c->own_theta + silo * d;
    if (!c->own_least)
        return ff_select(actions, w, theta, c->own_bonus, 0.0, d, p->score, p->feature, NULL);
    const double own = ff_determinant_radius(&c->own_radius, c->own_offset, 1.0,
                                             ff_log_inflation(&c->own_radius, 1.0),
                                             ff_log_det(w, d), d);
    return ff_select_least(actions, c->w, c->theta, ff_policy_radius(c, c->log_det, round, d),
                           c->second_bonus, w, theta, own, d, p->score, p->feature);
}

int64_t ff_policy_believe(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    return ff_belief(&c->belief, c->own_rest + silo * s, c->own_sums + silo * s, d,
                     c->own_w + silo * d * d, c->own_theta + silo * d, NULL, p->belief)
               ? FF_NOT_POSITIVE_DEFINITE
               : FF_OK;
}

int64_t ff_policy_begin(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p)
{
    const int64_t d = run->dimension;
    if (!c->own_least)
        return ff_mixed(c) ? ff_policy_believe(run, c, silo, p) : FF_OK;
    /* V = I. */
    for (int64_t i = 0; i < d; i++)
        c->own_w[silo * d * d + i * d + i] = 1.0;
    return FF_OK;
}

int64_t ff_policy_keep(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, int own,
                       double y, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->own_w + silo * d * d, *theta = c->own_theta + silo * d;
    if (c->own_least) {
        ff_observe(w, theta, p->feature, y, d, p->observe);
        return FF_OK;
    }
    double *kept = c->own_sums + silo * ff_statistic(d);
    ff_accumulate(kept + d, kept, p->feature, y, d);
    if (ff_mixed(c) && !own) {
        double *shared = c->own_shared + silo * ff_statistic(d);
        ff_accumulate(shared + d, shared, p->feature, y, d);
    }
    if (!ff_mixed(c) && !own)
        return FF_OK;
    if ((round & (round - 1)) == 0)
        return ff_policy_believe(run, c, silo, p);
    ff_observe(w, theta, p->feature, y, d, p->observe);
    return FF_OK;
}
