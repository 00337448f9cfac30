#include "ff_policy.h"

#include <math.h>

/* Return the confidence radius of a choice in a round. */
double ff_policy_radius(const ff_curve *c, double log_det, int64_t round, int64_t d)
{
    const int64_t k = ff_entry(c);
    /* The V of a lazy policy contains rounds up to the last release only. */
    const int64_t last_round = c->lazy ? ff_end_of(c, c->released) : round;
    if (c->radius.determinant)
        return ff_determinant_radius(&c->radius, c->radius_offset[k], c->inflation,
                                     c->log_inflation, log_det, d);
    return ff_radius_at(&c->radius, c->radius_offset[k], c->radius_lambda[k],
                        c->radius_count * (double)last_round, d);
}

/* Return ln det V of the model that a silo decides with. */
FF_INLINE double log_det_of(const ff_curve *c, int64_t silo)
{
    return ff_learns(c) ? c->log_dets[silo] : c->log_det;
}

/* Return the sieve of a round. The slack of a silo that learns alone changes in every round, and
 * its bound on V^{-1} is computed in rounds 16, 64, 256, .. only, because V grows. Before, V is at
 * least anchor I. */
static ff_sieve sieve_of(ff_curve *c, int64_t silo, int64_t round, const double *w, double beta,
                         int64_t d, double *scratch)
{
    ff_sieve sieve = c->sieve;
    if (c->inverses) {
        const int is_power_of_4 = (round & (round - 1)) == 0 && (round & 0x5555555555555555);
        if (is_power_of_4 && round >= 16)
            c->inverses[silo] = ff_inverse_norm(w, d, scratch);
        const double inverse = round < 16 ? 1.0 / c->radius.anchor : c->inverses[silo];
        const double width = ff_row_width(&c->radius, c->second_bonus, (double)(round - 1), d);
        sieve.slack = c->sieve_growth *
                      ff_slack(width, beta, c->second_bonus, 1.0, inverse);
    }
    return sieve;
}

/* A silo's model and bonuses in one round. */
typedef struct {
    const double *w, *theta;
    double beta, gamma;
    ff_sieve sieve;
} model;

/* Return 1 if the action with these features certainly passes the sieve. largest: an upper bound on
 * all scores. scratch: 2 d doubles. */
static int passes(const model *m, double largest, const double *x, int64_t d, double *scratch)
{
    double *z = scratch, *back = scratch + d;
    ff_whiten_back(m->w, x, d, z, back);
    const double mean = ff_dot(m->theta, x, d);
    const double bonus = m->beta * sqrt(ff_dot(z, z, d)) + m->gamma * sqrt(ff_dot(back, back, d));
    const double value = mean + (2.0 * m->sieve.slack - 1.0) * bonus;
    const double limit = m->sieve.limit < largest ? m->sieve.limit : largest;
    /* The margin covers rounding. */
    return value - 1e-9 * (fabs(mean) + fabs(value)) > limit;
}

/* Choose by screening all actions. Returns the action. */
FF_INLINE int64_t choose_screened(const model *m, const ff_actions *actions, int64_t d,
                                  const ff_parts *p, ff_bounds *bounds)
{
    if (m->sieve.ranking < 1.0)
        return ff_select_sieved(actions, m->w, m->theta, m->beta, m->gamma, &m->sieve, d, p->score,
                                p->feature);
    return ff_select(actions, m->w, m->theta, m->beta, m->gamma, d, p->score, p->feature, bounds);
}

/* Choose by tracked scores (ff_tracked.h), or by screening if the tracked scores cannot decide.
 * Returns the action. */
static int64_t choose_tracked(const ff_run *run, ff_curve *c, int64_t silo,
                              const ff_actions *actions, const model *m, const ff_parts *p)
{
    const int64_t d = run->dimension;
    ff_tracked *tracked = c->tracked + silo;
    double *values = c->tracked_values + silo * ff_tracked_size(run->environment->actions);
    if (tracked->rounds_left >= 0 &&
        (tracked->rounds_left == 0 || tracked->x != actions->x || tracked->released != c->released))
        ff_tracked_make(tracked, values, actions, m->w, m->theta, m->gamma, c->released, d,
                        p->score);
    int64_t action = -1;
    if (tracked->rounds_left <= 0)
        tracked->rounds_left++;
    else if (m->sieve.ranking < 1.0)
        action = ff_tracked_choose_sieved(tracked, values, actions, m->w, m->theta, m->beta,
                                          m->gamma, &m->sieve, d, p->score, p->feature);
    else
        action = ff_tracked_choose(tracked, values, actions, m->w, m->theta, m->beta, m->gamma, d,
                                   p->score, p->feature);
    if (tracked->rounds_left <= 0)
        tracked->x = NULL;
    return action >= 0 ? action : choose_screened(m, actions, d, p, NULL);
}

/* Choose by cached bounds on bonuses, from the candidate set, or by screening all actions. Returns
 * the action. */
static int64_t choose_uncached(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                               const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    ff_choice *last = ff_policy_memory(run, c, silo);
    model m = {c->w + ff_slot(c, silo) * d * d, c->theta + ff_slot(c, silo) * d,
               ff_policy_radius(c, log_det_of(c, silo), round, d), c->second_bonus, c->sieve};
    const int sieved = c->sieve.ranking < 1.0;
    if (sieved)
        m.sieve = sieve_of(c, silo, round, m.w, m.beta, d, p->bound);
    int64_t action = -1;
    /* If V is a multiple of I, computing scores is cheaper than bounding them. */
    const int identity = c->alike && (c->lazy || round - 1 == c->trigger.last);
    if (c->bonus_cache.silo && !identity && m.sieve.ranking > 0.0) {
        double largest = 0.0;
        action = ff_bonus_cache_choose(&c->bonus_cache, silo, round - 1 - c->trigger.last, actions,
                                       m.w, m.theta, m.beta, m.gamma, &m.sieve,
                                       c->clip ? c->feature_bound : 0.0, d, p->score, p->bound,
                                       p->feature, &p->known, &largest);
        /* The best action by the ranking nearly always passes. */
        if (action >= 0 && largest > -INFINITY && !passes(&m, largest, p->feature, d, p->bound)) {
            p->known.x[0] = NAN;
            action = -1;
        }
    }
    if (action >= 0) {
        if (last)
            *last = (ff_choice){actions->x, c->released, action};
        return action;
    }
    if (c->lazy || !run->environment->borrow) {
        action = choose_screened(&m, actions, d, p, NULL);
        if (last)
            *last = (ff_choice){actions->x, c->released, action};
        return action;
    }
    ff_candidates *set = c->candidates + silo;
    set->times = set->x == actions->x ? set->times + 1 : 0;
    set->x = actions->x;
    if (c->tracked && set->times > 3 && ff_tracked_fits(actions, d)) {
        set->count = 0;
        return choose_tracked(run, c, silo, actions, &m, p);
    }
    /* Candidate sets are for the largest score only. */
    if (sieved)
        return choose_screened(&m, actions, d, p, NULL);
    if (set->times && set->count && set->released == c->released)
        action = ff_candidates_choose(set, actions, m.w, m.theta, m.beta, m.gamma, d, p->score,
                                      p->feature);
    if (action < 0) {
        /* A candidate set pays only if the same rows are offered again and again. */
        const int repeated = set->times > 3;
        ff_bounds bounds;
        action = choose_screened(&m, actions, d, p, repeated ? &bounds : NULL);
        set->count = 0;
        if (repeated)
            ff_candidates_make(set, &bounds, actions->actions, m.w, m.beta, c->released, d);
    }
    return action;
}

/* Choose the action with the largest score or ranking. A lazy choice depends only on the query and
 * the release, so it is cached for other rounds and silos too. */
int64_t ff_policy_choose_confident(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p)
{
    int64_t *cached = c->chosen && actions->quantised ? c->chosen + actions->query : NULL;
    if (!cached)
        return choose_uncached(run, c, silo, round, actions, p);
    const int64_t entry = __atomic_load_n(cached, __ATOMIC_RELAXED);
    if (entry >> 32 == c->released + 1) {
        const int64_t action = entry & 0xffffffff;
        ff_features(actions, action, run->dimension, p->feature);
        return action;
    }
    const int64_t action = choose_uncached(run, c, silo, round, actions, p);
    __atomic_store_n(cached, (c->released + 1) << 32 | action, __ATOMIC_RELAXED);
    return action;
}

/* Return the action with the largest score by a user's function, or -1 if the function failed. */
static int64_t choose_scored(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    const double *w = c->w + ff_slot(c, silo) * d * d, *theta = c->theta + ff_slot(c, silo) * d;
    const ff_stream stream = ff_stream_of(run, FF_SCORE_KEY, silo, round);
    double *end = (double *)p->x + run->scratch_size;
    const int64_t actions_max = run->environment->actions;
    double *scratch = end - ff_scored_scratch(d, actions_max, c->score_state_size);
    const double beta = ff_policy_radius(c, log_det_of(c, silo), round, d);
    const int sieved = c->sieve.ranking < 1.0;
    ff_sieve sieve;
    if (sieved)
        sieve = sieve_of(c, silo, round, w, beta, d, p->bound);
    return ff_scored(c->score, c->score_state, c->score_state_size, ff_key(&stream), round, actions,
                     w, theta, beta, c->second_bonus, sieved ? &sieve : NULL, d, scratch,
                     p->feature);
}

/* Choose a uniformly random action, or the best action by the scores of a user's function. */
int64_t ff_policy_choose_otherwise(const ff_run *run, ff_curve *c, int64_t silo,
                                   int64_t round, const ff_actions *actions, const ff_parts *p)
{
    if (c->random) {
        const ff_stream stream = ff_stream_of(run, FF_POLICY, silo, round);
        const int64_t action = ff_uniform_int(&stream, actions->actions);
        ff_features(actions, action, run->dimension, p->feature);
        return action;
    }
    return choose_scored(run, c, silo, round, actions, p);
}

/* Update the silo's model by the data point of this round, and the bounds that are computed from
 * the model. */
void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, const ff_actions *actions,
                     double y, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->w + silo * d * d, *theta = c->theta + silo * d;
    /* The candidate set and the tracked scores, if they exist, are updated by the data point. */
    ff_candidates *set = c->candidates + silo;
    ff_tracked *tracked = c->tracked && c->tracked[silo].x ? c->tracked + silo : NULL;
    const int has_bounds = set->count || tracked;
    const double prediction = has_bounds ? ff_dot(theta, p->feature, d) : 0.0;
    const double square = has_bounds ? ff_dot(theta, theta, d) : 0.0;
    const int whitened = memcmp(p->known.x, p->feature, (size_t)d * sizeof(double)) == 0;
    const double s = whitened ? ff_observe_whitened(w, theta, p->feature, y, d, p->observe)
                              : ff_observe(w, theta, p->feature, y, d, p->observe);
    /* det(V + x x') = s det V. */
    if (c->radius.determinant)
        c->log_dets[silo] += ff_log(s);
    ff_candidates_observe(set, prediction, sqrt(square), y, s, c->second_bonus, d);
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

/* Choose the action of a local round, which may use the silo's raw data. */
int64_t ff_policy_choose_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    const double *w = c->own_w + silo * d * d, *theta = c->own_theta + silo * d;
    if (!c->own_least && c->own_sieve_width == 0.0)
        return ff_select(actions, w, theta, c->own_bonus, 0.0, d, p->score, p->feature, NULL);
    const double *local_w = c->own_least ? w : c->local_w + silo * d * d;
    const double own_beta =
        ff_determinant_radius(&c->own_radius, c->own_offset, 1.0,
                              ff_log_inflation(&c->own_radius, 1.0), ff_log_det(local_w, d), d);
    if (!c->own_least)
        return ff_select_passing(actions, w, theta, c->own_bonus, local_w,
                                 c->local_theta + silo * d, own_beta, c->sieve.limit,
                                 ff_slack(c->own_sieve_width, own_beta, 0.0, 1.0, 0.0), d,
                                 p->score, p->feature);
    return ff_select_least(actions, c->w, c->theta, ff_policy_radius(c, c->log_det, round, d),
                           c->second_bonus, w, theta, own_beta, d, p->score, p->feature);
}

/* Recompute the silo's posterior of theta from its raw sums and the released sums of the others. */
int64_t ff_policy_believe(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    return ff_belief(&c->belief, c->own_rest + silo * s, c->own_sums + silo * s, d,
                     c->own_w + silo * d * d, c->own_theta + silo * d, NULL, p->belief)
               ? FF_NOT_POSITIVE_DEFINITE
               : FF_OK;
}

/* Set up a silo's model of local rounds before the first round. */
int64_t ff_policy_begin(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->own_least ? c->own_w : c->own_sieve_width ? c->local_w : NULL;
    /* LinUCB's model starts from V = I (and theta = 0). */
    for (int64_t i = 0; w && i < d; i++)
        w[silo * d * d + i * d + i] = 1.0;
    return c->own_least || !ff_mixed(c) ? FF_OK : ff_policy_believe(run, c, silo, p);
}

/* Add the data point of a round to the silo's raw sums and local model. The posterior is recomputed
 * in rounds 2^k only, and updated by the point otherwise. */
int64_t ff_policy_keep(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, int is_local,
                       double y, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->own_w + silo * d * d, *theta = c->own_theta + silo * d;
    if (c->own_least) {
        ff_observe(w, theta, p->feature, y, d, p->observe);
        return FF_OK;
    }
    if (c->own_sieve_width)
        ff_observe(c->local_w + silo * d * d, c->local_theta + silo * d, p->feature, y, d,
                   p->observe);
    double *sums = c->own_sums + silo * ff_statistic(d);
    ff_accumulate(sums + d, sums, p->feature, y, d);
    if (ff_mixed(c) && !is_local) {
        double *shared = c->own_shared + silo * ff_statistic(d);
        ff_accumulate(shared + d, shared, p->feature, y, d);
    }
    if (!ff_mixed(c) && !is_local)
        return FF_OK;
    if ((round & (round - 1)) == 0)
        return ff_policy_believe(run, c, silo, p);
    ff_observe(w, theta, p->feature, y, d, p->observe);
    return FF_OK;
}
