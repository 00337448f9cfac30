/* The policy of a silo: which action it takes, and what it learns from the reward at once. */
#ifndef FF_POLICY_H
#define FF_POLICY_H

#include "ff_run.h"

/* The action that a silo takes in a round, its features into p->feature: uniformly random, the
 * largest of a user's scores, or the largest upper confidence bound. -1 where a user's score
 * function failed. */
int64_t ff_policy_choose(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                         const ff_actions *actions, const ff_parts *p);

/* Eager policy: the data point (p->feature, y) enters the silo's own V and theta. */
void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, double y, const ff_parts *p);

#endif
