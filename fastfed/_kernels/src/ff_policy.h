/* The policy of a silo: which action it takes, and what it learns from the reward at once. */
#ifndef FF_POLICY_H
#define FF_POLICY_H

#include "ff_run.h"

/* beta of a choice in a round, by ln det V of the model that chooses. */
double ff_policy_radius(const ff_curve *c, double log_det, int64_t round, int64_t d);

/* The choice that a silo's last one is remembered in, or NULL: of actions by released statistics
 * over rows that come again. */
FF_INLINE ff_choice *ff_policy_memory(const ff_run *run, const ff_curve *c, int64_t silo)
{
    return c->lazy && run->environment->borrow ? c->choice + silo : NULL;
}

/* The action of the largest upper confidence bound, its features into p->feature. */
int64_t ff_policy_choose_confident(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p);

/* A uniformly random action, or the one of the largest of a user's scores; -1 where a user's
 * function failed. */
int64_t ff_policy_choose_otherwise(const ff_run *run, const ff_curve *c, int64_t silo,
                                   int64_t round, const ff_actions *actions, const ff_parts *p);

/* 1 if a silo's round is its own, so that nothing of it is sent. */
FF_INLINE int ff_policy_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round)
{
    if (!c->share_until || round > c->share_until)
        return c->share_until != 0;
    if (c->share_rule)
        return !c->share_rule[round - 1];
    if (!c->share_coin)
        return 0;
    const ff_stream coin = ff_stream_of(run, FF_PARTICIPATION, silo, round);
    return ff_key(&coin) >= c->share_threshold;
}

/* The action of the largest score of the silo's own belief, or of the least of the public bound and
 * its own; its features into p->feature. */
int64_t ff_policy_choose_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p);

/* What a silo holds of its own before the first round, where own rounds may come then. Returns a
 * status. */
int64_t ff_policy_begin(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p);

/* Makes the silo's belief anew from its sums. Returns a status. */
int64_t ff_policy_believe(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p);

/* The data point (p->feature, y) of a round enters the silo's raw sums, and its belief or bound
 * where there is one. A belief is made anew in rounds 2^k: evidence then weighs deviations again.
 * own: whether the round is the silo's own. Returns a status. */
int64_t ff_policy_keep(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, int own,
                       double y, const ff_parts *p);

/* The action that a silo takes in a round, or -1; its features into p->feature. own: whether the
 * round is the silo's own. Inline, for the shortest rounds take 0.2 microseconds. */
FF_INLINE int64_t ff_policy_choose(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   int own, const ff_actions *actions, const ff_parts *p)
{
    if (c->random || c->score)
        return ff_policy_choose_otherwise(run, c, silo, round, actions, p);
    if (own)
        return ff_policy_choose_own(run, c, silo, round, actions, p);
    const ff_choice *last = ff_policy_memory(run, c, silo);
    if (last && last->x == actions->x && last->released == c->released) {
        ff_features(actions, last->action, run->dimension, p->feature);
        return last->action;
    }
    return ff_policy_choose_confident(run, c, silo, round, actions, p);
}

/* Eager policy: the data point (p->feature, y), of one of these actions, enters the silo's own V and
 * theta. */
void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, const ff_actions *actions,
                     double y, const ff_parts *p);

#endif
