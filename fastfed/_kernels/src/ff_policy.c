/* Symbols (ff_run.h): c is a curve, p the scratch of a thread, k counts releases; M silos,
 * d features; a statistic has s numbers. V is the regularised Gram matrix of a model, W its inverse
 * factor, and theta its estimate. */
#include "ff_policy.h"

/* Return the confidence radius of a choice in a round. log_det: ln det V of the model that
 * chooses. */
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

/* Update the bound on the eigenvalues of V^-1 of a silo that learns alone, if that is due in this
 * round (ff_policy_updates_inverse). The slack of its sieve needs this bound. fixed: NULL, or the
 * silo's model of these actions, which is used instead of w. */
FF_INLINE void update_inverse(ff_curve *c, int64_t silo, int64_t round, const double *w,
                              const double *fixed, const ff_actions *actions, int64_t d,
                              double *scratch)
{
    if (c->inverses && ff_policy_updates_inverse(round))
        c->inverses[silo] = fixed ? ff_fixed_inverse_norm(fixed, actions, w, d, scratch)
                                  : ff_inverse_norm(w, d, scratch);
}

/* Return the sieve (ff_scores.h) that a silo uses in a round. beta: the radius of the round. If
 * each silo learns alone (c->inverses), the slack of its sieve is computed in every round;
 * otherwise the sieve is that of the last synchronisation. */
static ff_sieve sieve_of(const ff_curve *c, int64_t silo, int64_t round, double beta, int64_t d)
{
    ff_sieve sieve = {c->sieve.limit, 1.0, c->sieve.ranking};
    __atomic_load(&c->sieve.slack, &sieve.slack, __ATOMIC_RELAXED);
    if (c->inverses) {
        const double width = ff_row_width(&c->radius, c->second_bonus, (double)(round - 1), d);
        sieve.slack = c->sieve_growth *
                      ff_slack(width, beta, c->second_bonus, 1.0,
                               ff_policy_inverse(c, silo, round));
    }
    return sieve;
}

/* Return the slack of the sieve of silos that do not learn alone, by the last release's model. */
double ff_policy_slack(const ff_curve *c, double inverse, int64_t d)
{
    const int64_t k = ff_entry(c);
    const double beta = ff_determinant_radius(&c->radius, c->radius_offset[k], c->inflation,
                                              c->log_inflation, c->log_det, d);
    return c->sieve_growth *
           ff_slack(c->widths[k], beta, c->second_bonus, c->inflation, inverse);
}

/* Replace FF_SLACK_LATER by the slack, in `sieve` and, until the next release, in c. w: the W of
 * the last release. Threads that do this at the same time compute the same slack. */
static void compute_slack(ff_curve *c, ff_sieve *sieve, const double *w, int64_t d,
                          double *scratch)
{
    sieve->slack = ff_policy_slack(c, ff_inverse_norm(w, d, scratch), d);
    __atomic_store(&c->sieve.slack, &sieve->slack, __ATOMIC_RELAXED);
}

/* A silo's model and bonuses in one round. */
typedef struct {
    const double *w, *theta;
    double beta, gamma;
    ff_sieve sieve;
} model;

/* Return 1 if the action with features x (d) certainly passes the sieve: its mean plus
 * (2 slack - 1) times its bonus is above min(limit, the largest score). largest: an upper bound on
 * all scores, used instead of the largest score. scratch: 2 d doubles. */
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

/* Return the best action by the model's scores (or by its sieve), after screening all actions. */
FF_INLINE int64_t choose_screened(const model *m, const ff_actions *actions, int64_t d,
                                  const ff_parts *p)
{
    if (m->sieve.ranking < 1.0)
        return ff_select_sieved(actions, m->w, m->theta, m->beta, m->gamma, &m->sieve, d, p->score,
                                p->feature);
    return ff_select(actions, m->w, m->theta, m->beta, m->gamma, d, p->score, p->feature);
}

/* Return a silo's model of its fixed set of actions (ff_fixed.h). If the silos have synchronised
 * since the model was made, it is computed again first. */
double *ff_policy_fixed(const ff_run *run, ff_curve *c, int64_t silo, const ff_actions *actions,
                        const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *fixed = c->fixed + silo * c->fixed_size;
    /* If silos synchronise after every round, they do not learn between synchronisations. Then all
     * silos share one W and theta, those in slot 0. */
    const int64_t slot = ff_slot(c, silo);
    if (!ff_fixed_is_of(fixed, c->released))
        ff_fixed_make(fixed, actions, c->w + slot * d * d, c->theta + slot * d,
                      c->clip ? c->feature_bound : INFINITY, c->released, d, p->bound);
    return fixed;
}

/* Return the action that a silo chooses from its fixed set of actions, by its model of this set
 * (ff_fixed.h). */
static int64_t choose_fixed(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                            const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *fixed = ff_policy_fixed(run, c, silo, actions, p);
    const double *w = c->w + ff_slot(c, silo) * d * d;
    const double beta = ff_policy_radius(c, log_det_of(c, silo), round, d);
    int64_t action = ff_fixed_choose(fixed, beta, c->second_bonus, c->sieve.ranking);
    if (c->sieve.ranking < 1.0) {
        update_inverse(c, silo, round, w, fixed, actions, d, p->bound);
        /* Most choices pass the sieve even with the least slack that the silo may have. Only for
         * the other choices is the actual slack computed (sieve_of). */
        const double least = c->inverses ? c->sieve_growth : c->sieve.slack;
        if (!ff_fixed_reaches(fixed, least, c->sieve.limit)) {
            const ff_sieve sieve = sieve_of(c, silo, round, beta, d);
            action = ff_fixed_choose_passing(fixed, beta, c->second_bonus, &sieve);
        }
    }
    /* The features are needed only for the sums that are sent to a server. */
    if (c->releases)
        ff_features(actions, action, d, p->feature);
    return action;
}

/* Return the action that a silo chooses by cached bounds on bonuses or, if these do not decide, by
 * screening all actions. */
static int64_t choose_uncached(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                               const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    ff_choice *last = ff_policy_memory(run, c, silo);
    model m = {c->w + ff_slot(c, silo) * d * d, c->theta + ff_slot(c, silo) * d,
               ff_policy_radius(c, log_det_of(c, silo), round, d), c->second_bonus, c->sieve};
    const int sieved = c->sieve.ranking < 1.0;
    if (sieved) {
        update_inverse(c, silo, round, m.w, NULL, NULL, d, p->bound);
        m.sieve = sieve_of(c, silo, round, m.beta, d);
    }
    int64_t action = -1;
    int needs_slack = m.sieve.slack == FF_SLACK_LATER;
    /* V is still a multiple of I if it was one at the last synchronisation and has not changed
     * since. Then computing scores is cheaper than bounding them. */
    const int is_multiple = c->alike && (c->lazy || round - 1 == c->trigger.last);
    if (c->bonus_cache.silo && !is_multiple && m.sieve.ranking > 0.0) {
        double largest = 0.0;
        /* Many choices pass with the least possible slack. */
        if (needs_slack)
            m.sieve.slack = c->sieve_growth;
        action = ff_bonus_cache_choose(&c->bonus_cache, silo, round - 1 - c->trigger.last, actions,
                                       m.w, m.theta, m.beta, m.gamma, &m.sieve,
                                       c->clip ? c->feature_bound : 0.0, d, p->score, p->bound,
                                       p->feature, &p->known, &largest);
        needs_slack &= action < 0 || largest > -INFINITY;
        if (needs_slack)
            compute_slack(c, &m.sieve, m.w, d, p->bound);
        needs_slack = 0;
        /* The best action by the ranking nearly always passes the sieve. If that is not certain,
         * all actions are screened below. */
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
    if (needs_slack)
        compute_slack(c, &m.sieve, m.w, d, p->bound);
    action = choose_screened(&m, actions, d, p);
    if (last)
        *last = (ff_choice){actions->x, c->released, action};
    return action;
}

/* Choose the action with the largest score or, with a sieve, the best action by its ranking among
 * those that pass. The choice of a lazy policy depends only on the query and the release. So
 * c->chosen keeps it for each query, for later rounds and for all silos. */
int64_t ff_policy_choose_confident(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p)
{
    if (c->fixed)
        return choose_fixed(run, c, silo, round, actions, p);
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

/* Return the action that a user's score function scores highest, or -1 if the function failed. */
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
    if (sieved) {
        update_inverse(c, silo, round, w, NULL, NULL, d, p->bound);
        sieve = sieve_of(c, silo, round, beta, d);
    }
    /* The environment has declared that its actions are the d unit vectors. With another number
     * of actions an index could be out of range, so that is a failure. */
    if (c->score_diagonal && actions->actions != d)
        return -1;
    if (c->score_diagonal)
        return ff_arms_scored(c->score, ff_key(&stream), round, w, theta, beta, c->second_bonus,
                              sieved ? &sieve : NULL, d, scratch, p->feature);
    return ff_scored(c->score, c->score_state, c->score_state_size, ff_key(&stream), round, actions,
                     w, theta, beta, c->second_bonus, sieved ? &sieve : NULL, d, scratch,
                     p->feature);
}

/* Return a uniformly random action, or the best action by the scores of a user's function (-1 if it
 * failed). */
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
void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, double y, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->w + silo * d * d, *theta = c->theta + silo * d, s;
    if (c->fixed)
        s = ff_fixed_observe(c->fixed + silo * c->fixed_size, y);
    else if (c->radius.arms)
        s = ff_arms_observe(w, theta, p->feature, y, d);
    else if (memcmp(p->known.x, p->feature, (size_t)d * sizeof(double)) == 0)
        s = ff_observe_whitened(w, theta, p->feature, y, d, p->observe);
    else
        s = ff_observe(w, theta, p->feature, y, d, p->observe);
    /* Update log_dets. With arms it is the logarithm of the largest entry of the diagonal V, which
     * can only grow. Otherwise it is ln det V, and det(V + x x') = s det V. */
    if (c->radius.arms) {
        const double largest = c->fixed ? ff_fixed_log_entry(c->fixed + silo * c->fixed_size)
                                        : ff_log_volume(&c->radius, w, d);
        c->log_dets[silo] = largest > c->log_dets[silo] ? largest : c->log_dets[silo];
    } else if (c->radius.determinant)
        c->log_dets[silo] += ff_log(s);
    if (c->bonus_cache.version && c->second_bonus != 0.0)
        ff_bonus_cache_observe(&c->bonus_cache, silo, p->observe + d, s, d);
}

/* Choose the action of a local round, which may use the silo's raw data. There are three rules:
 * - own_least: each action has a score under the shared model and one under a model of the silo's
 *   raw data; choose the action for which the smaller of the two is largest (ff_select_max_min);
 * - own_sieve_width > 0: among the actions that pass the sieve of a model of the raw data, choose
 *   the one with the largest score under the silo's posterior;
 * - otherwise: choose the action with the largest score under the silo's posterior. */
int64_t ff_policy_choose_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p)
{
    const int64_t d = run->dimension;
    const double *w = c->own_w + silo * d * d, *theta = c->own_theta + silo * d;
    if (!c->own_least && c->own_sieve_width == 0.0)
        return ff_select(actions, w, theta, c->own_bonus, 0.0, d, p->score, p->feature);
    const double *local_w = c->own_least ? w : c->local_w + silo * d * d;
    const double own_beta =
        ff_determinant_radius(&c->own_radius, c->own_offset, 1.0,
                              ff_log_inflation(&c->own_radius, 1.0), ff_log_det(local_w, d), d);
    if (!c->own_least)
        return ff_select_passing(actions, w, theta, c->own_bonus, local_w,
                                 c->local_theta + silo * d, own_beta, c->sieve.limit,
                                 ff_slack(c->own_sieve_width, own_beta, 0.0, 1.0, 0.0), d,
                                 p->score, p->feature);
    return ff_select_max_min(actions, c->w, c->theta, ff_policy_radius(c, c->log_det, round, d),
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

/* Prepare the models that a silo uses in its local rounds, before the first round. */
int64_t ff_policy_begin(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p)
{
    const int64_t d = run->dimension;
    double *w = c->own_least ? c->own_w : c->own_sieve_width ? c->local_w : NULL;
    /* LinUCB's model of the silo's raw data starts from V = I (and theta = 0). It is own_w with
     * the rule own_least, and local_w if the posterior ranks only actions that pass its sieve. */
    for (int64_t i = 0; w && i < d; i++)
        w[silo * d * d + i * d + i] = 1.0;
    /* The rule own_least has no posterior. If local rounds come only after all shared rounds, the
     * posterior is computed after the last release (ff_driver.c). */
    return c->own_least || !ff_mixed(c) ? FF_OK : ff_policy_believe(run, c, silo, p);
}

/* Add the data point of a round to the silo's raw sums, and to the models that it uses in local
 * rounds. In rounds 1, 2, 4, 8, .. the posterior is recomputed from the sums; in other rounds the
 * point updates the W and theta of the posterior. Returns a status. */
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
    /* If local rounds come only after all shared rounds, there is no posterior before
     * the first of them. */
    if (!ff_mixed(c) && !is_local)
        return FF_OK;
    if ((round & (round - 1)) == 0)
        return ff_policy_believe(run, c, silo, p);
    ff_observe(w, theta, p->feature, y, d, p->observe);
    return FF_OK;
}
