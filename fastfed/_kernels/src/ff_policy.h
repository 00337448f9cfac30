/* The policy of a silo: which action it chooses, and what it learns from the reward at once. */
#ifndef FF_POLICY_H
#define FF_POLICY_H

#include <math.h>

#include "ff_run.h"

/* Return beta for a choice in `round`. log_det: ln det V of the model that chooses. */
double ff_policy_radius(const ff_curve *c, double log_det, int64_t round, int64_t d);

/* Return 1 if the bounds on the eigenvalues of V^{-1} of silos that learn alone are computed in a
 * round: 16, 64, 256, ... V grows, so a bound holds until the next one. */
FF_INLINE int ff_policy_updates_inverse(int64_t round)
{
    return round >= 16 && (round & (round - 1)) == 0 && (round & 0x5555555555555555);
}

/* Return the bound on the eigenvalues of V^{-1} that is used in a round. It is 1 / anchor before
 * round 16 and if no other bound is known, because V is at least anchor I. */
FF_INLINE double ff_policy_inverse(const ff_curve *c, int64_t silo, int64_t round)
{
    return round < 16 || c->inverses[silo] == INFINITY ? 1.0 / c->radius.anchor : c->inverses[silo];
}

/* The slack of a sieve that has not been computed since the last release. */
#define FF_SLACK_LATER 0.0

/* Return the slack of the sieve of silos that do not learn alone. inverse: an upper bound on the
 * eigenvalues of V^{-1} at the last release. */
double ff_policy_slack(const ff_curve *c, double inverse, int64_t d);

/* Return a silo's model of its fixed set (ff_fixed.h), which is computed again after a
 * synchronisation. */
double *ff_policy_fixed(const ff_run *run, ff_curve *c, int64_t silo, const ff_actions *actions,
                        const ff_parts *p);

/* Draw the random words of the bit that a user sends. random: ff_random_u32_capacity(4) words. */
FF_INLINE void ff_policy_draw_bit(const ff_run *run, int64_t silo, int64_t round, uint32_t *random)
{
    const ff_stream stream = ff_stream_of(run, FF_ROUNDING, silo, round);
    ff_random_u32(&stream, 4, random);
}

/* Return the debiased bit that replaces the reward y in all sums if users send bits. The user
 * rounds y in [reward_low, reward_high] to a bit at random, and flips it with probability
 * flips / 2^53. Same bits as `user_bit` of protocols/randomizer.py. random: the drawn words. */
FF_INLINE double ff_policy_bit(const ff_curve *c, double y, const uint32_t *random)
{
    const uint64_t up = ((uint64_t)random[1] << 32 | random[0]) >> 11;
    const uint64_t flip = ((uint64_t)random[3] << 32 | random[2]) >> 11;
    const double share = (y - c->reward_low) / (c->reward_high - c->reward_low);
    const int bit = (double)up < share * 0x1p53;
    return c->bit_values[bit ^ (flip < c->flips)];
}

/* Return the address of a silo's last choice, or NULL if choices are not stored. They are stored if
 * the policy is lazy and the environment offers the same rows repeatedly. */
FF_INLINE ff_choice *ff_policy_memory(const ff_run *run, const ff_curve *c, int64_t silo)
{
    return c->lazy && run->environment->borrow ? c->choice + silo : NULL;
}

/* Return the action with the largest upper confidence bound, and write its features to
 * p->feature. */
int64_t ff_policy_choose_confident(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   const ff_actions *actions, const ff_parts *p);

/* Return a uniformly random action, or the action with the largest score of a user's function (-1
 * if that function failed). Writes the features of the action to p->feature. */
int64_t ff_policy_choose_otherwise(const ff_run *run, ff_curve *c, int64_t silo,
                                   int64_t round, const ff_actions *actions, const ff_parts *p);

/* Return 1 if the round is local for this silo, so nothing of it is sent. */
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

/* Return the action that a silo chooses in a local round: the largest score under its posterior, or
 * the largest minimum of the public bound and the silo's own bound (own_least). Writes the features
 * of the action to p->feature. */
int64_t ff_policy_choose_own(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const ff_parts *p);

/* Set up a silo's model of local rounds before the first round. Returns a status. */
int64_t ff_policy_begin(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p);

/* Recompute the silo's posterior from its sums. Returns a status. */
int64_t ff_policy_believe(const ff_run *run, ff_curve *c, int64_t silo, const ff_parts *p);

/* Add the data point (p->feature, y) of a round to the silo's raw sums and to its posterior or its
 * own bound. In rounds 2^k the posterior is recomputed, so the deviations are weighted by all the
 * evidence. is_local: 1 if the round is local. Returns a status. */
int64_t ff_policy_keep(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, int is_local,
                       double y, const ff_parts *p);

/* Return the action that a silo chooses in a round, or -1 if a user's function failed. Writes the
 * features of the action to p->feature. is_local: 1 if the round is local. Inline, because the
 * shortest rounds take 0.2 microseconds. */
FF_INLINE int64_t ff_policy_choose(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                   int is_local, const ff_actions *actions, const ff_parts *p)
{
    if (c->random || c->score)
        return ff_policy_choose_otherwise(run, c, silo, round, actions, p);
    if (is_local)
        return ff_policy_choose_own(run, c, silo, round, actions, p);
    const ff_choice *last = ff_policy_memory(run, c, silo);
    if (last && last->x == actions->x && last->released == c->released) {
        ff_features(actions, last->action, run->dimension, p->feature);
        return last->action;
    }
    return ff_policy_choose_confident(run, c, silo, round, actions, p);
}

/* Eager policy: update the silo's model by the data point (p->feature, y). */
void ff_policy_learn(const ff_run *run, ff_curve *c, int64_t silo, double y, const ff_parts *p);

#endif
