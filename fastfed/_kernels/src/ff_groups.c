/* Symbols (ff_run.h): c is a curve, p the scratch of a thread, k counts releases; M silos,
 * d features; a statistic has s numbers. V is the regularised Gram matrix of a model, W its inverse
 * factor, and theta its estimate. */
#include "ff_groups.h"

#include <math.h>

#include "ff_policy.h"

/* Rounds whose random numbers are drawn together. */
#define BLOCK FF_PHILOX_LANES
/* Up to this number of silos, simulating each alone takes no longer than a round of a group. */
#define ONE_BY_ONE_MAX 3

/* The silos of a group, and the random numbers of a block of rounds. */
typedef struct {
    ff_group g;
    int64_t silos, first_silo; /* number of silos; the first one */
    double uniform[BLOCK][FF_GROUP] FF_ALIGNED;
    double learned[BLOCK][2][FF_GROUP] FF_ALIGNED; /* if users send bits, see ff_group_round */
    double cap[BLOCK];         /* C of each round, see ff_group_round */
} members;

/* Return the number of doubles of scratch: three arrays (d, FF_GROUP), and space to align them. */
int64_t ff_groups_scratch(int64_t d) { return 3 * FF_GROUP * d + 8; }

/* Return 1 if the silos of a curve may be simulated in groups. */
int ff_groups_suit(const ff_run *run, const ff_curve *c)
{
    const ff_environment *env = run->environment;
    const int is_plain = !c->trigger.kind && !c->sends && !c->serves && !c->share_until &&
                         !c->arrivals && !c->random && !c->score && !c->lazy;
    const int is_clipped = c->clip && (c->feature_bound < 1.0 || c->constant > 0.0 ||
                                       c->reward_low > 0.0 || c->reward_high < 1.0 ||
                                       c->reward_centre != 0.0);
    return run->silos > ONE_BY_ONE_MAX && c->fixed && c->radius.arms && c->radius.determinant &&
           is_plain && !is_clipped && c->randomizer != FF_SEND_BITS &&
           (!c->inverses || c->sieve_growth > 0.0) &&
           env->borrow && !env->mean && env->reward_kind == FF_REWARD_BERNOULLI &&
           run->stride == 1 && ff_learns(c);
}

/* Copy the model of silo l of a group into lane l; lanes past the last silo repeat the first silo.
 * Returns 0 if the environment fails, if the model is not one of arms (unit vectors as actions and
 * a diagonal V), or if the square of a width could overflow or underflow. */
static int read_silo(const ff_run *run, ff_curve *c, members *m, int64_t l, int64_t round,
                     const ff_parts *p)
{
    ff_group *g = &m->g;
    const int64_t d = run->dimension, silo = m->first_silo + (l < m->silos ? l : 0);
    ff_actions actions;
    if (ff_actions_of(run->environment, run->seed, run->replicate, ff_name_of(run, silo),
                      ff_time_of(run, round), NULL, NULL, p->x, p->mean, &actions) != FF_OK)
        return 0;
    double *fixed = ff_policy_fixed(run, c, silo, &actions, p);
    const double *mean, *width;
    if (!ff_fixed_arms(fixed, &mean, &width))
        return 0;
    for (int64_t a = 0; a < d; a++) {
        const int64_t i = a * FF_GROUP + l;
        g->mean[i] = mean[a];
        g->width[i] = width[a];
        g->root[i] = sqrt(width[a]);
        /* ||V^-1 x|| of an arm is its width. ff_fixed.h computes it as the root of width^2, which
         * is exactly the width unless width^2 overflows or underflows. */
        if (!(width[a] > 1e-150 && width[a] < 1e150))
            return 0;
    }
    g->expected[l] = actions.mean;
    g->best[l] = actions.best;
    g->log_det[l] = c->log_dets[silo];
    g->regret[l] = c->regret[silo];
    g->root_inverse[l] = c->inverses ? sqrt(ff_policy_inverse(c, silo, round)) : 0.0;
    return 1;
}

/* Copy lane l of a group back to the model of its silo. */
static void write_silo(const ff_run *run, ff_curve *c, const members *m, int64_t l)
{
    const int64_t silo = m->first_silo + l;
    double *fixed = c->fixed + silo * c->fixed_size;
    for (int64_t a = 0; a < run->dimension; a++)
        ff_fixed_set_arm(fixed, a, m->g.mean[a * FF_GROUP + l], m->g.width[a * FF_GROUP + l]);
    c->log_dets[silo] = m->g.log_det[l];
    c->regret[silo] = m->g.regret[l];
}

/* Draw the random numbers of rounds round..round + count - 1, count <= BLOCK, into m: the uniforms
 * that decide rewards and, if users send bits, what each silo learns from a reward of 0 and from a
 * reward of 1. If the silos have a sieve and never synchronise (c->inverses), also compute `cap`: C
 * of docs/radius.md in each round. Lanes past the last silo repeat the first silo. */
static void draw_block(const ff_run *run, const ff_curve *c, members *m, int64_t round,
                       int64_t count, const ff_parts *p)
{
    for (int64_t l = 0; l < FF_GROUP; l++) {
        const int64_t silo = m->first_silo + (l < m->silos ? l : 0);
        const ff_stream stream = ff_stream_of(run, FF_REWARD, silo, round);
        double drawn[BLOCK];
        ff_uniforms(&stream, drawn);
        for (int64_t i = 0; i < count; i++) {
            m->uniform[i][l] = drawn[i];
            if (!c->flips)
                continue;
            ff_policy_draw_bit(run, silo, round + i, p->random);
            m->learned[i][0][l] = ff_policy_bit(c, 0.0, p->random);
            m->learned[i][1][l] = ff_policy_bit(c, 1.0, p->random);
        }
    }
    for (int64_t i = 0; i < count && c->inverses; i++)
        m->cap[i] = ff_row_width(&c->radius, c->second_bonus, (double)(round + i - 1),
                                 run->dimension);
}

/* Copy all silos of a group to their models, and compute new bounds on the eigenvalues of
 * V^{-1}. */
static void update_inverses(const ff_run *run, ff_curve *c, members *m, int64_t round)
{
    for (int64_t l = 0; l < m->silos; l++) {
        const int64_t silo = m->first_silo + l;
        write_silo(run, c, m, l);
        const double *fixed = c->fixed + silo * c->fixed_size;
        c->inverses[silo] = ff_fixed_inverse_norm(fixed, NULL, NULL, run->dimension, NULL);
        m->g.root_inverse[l] = sqrt(ff_policy_inverse(c, silo, round));
    }
}

/* Record the actions and rewards of a round, and add its data points to the batches. learned: what
 * silos learn from a reward of 0 (FF_GROUP numbers), then from a reward of 1; NULL: the reward. */
static void keep_round(const ff_run *run, ff_curve *c, const members *m, int64_t round,
                       const double *learned)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    for (int64_t l = 0; l < m->silos; l++) {
        const int64_t silo = m->first_silo + l, arm = (int64_t)m->g.chosen[l];
        const double reward = m->g.reward[l];
        if (c->actions) {
            c->actions[silo * run->horizon + round - 1] = (int32_t)arm;
            c->rewards[silo * run->horizon + round - 1] = reward;
        }
        if (c->releases) {
            double *batch = c->batch + silo * s;
            batch[arm] += learned ? learned[(reward != 0.0 ? FF_GROUP : 0) + l] : reward;
            batch[d + arm * (arm + 1) / 2 + arm] += 1.0;
        }
    }
}

/* Simulate rounds first..last of a group of silos and return 1. If read_silo returns 0 for any
 * silo, simulate no round and return 0. */
int ff_groups_run(const ff_run *run, ff_curve *c, int64_t group, int64_t first, int64_t last,
                  double *scratch)
{
    const int64_t d = run->dimension, k = ff_entry(c);
    const ff_parts p = ff_cut(scratch, run);
    members m;
    m.first_silo = group * FF_GROUP;
    m.silos = run->silos - m.first_silo < FF_GROUP ? run->silos - m.first_silo : FF_GROUP;
    /* The last part of the scratch, aligned to vectors. */
    const uintptr_t part = (uintptr_t)(scratch + run->scratch_size - ff_groups_scratch(d));
    double *arrays = (double *)((part + 63) & ~(uintptr_t)63);
    m.g.arms = d;
    m.g.mean = arrays;
    m.g.root = arrays + FF_GROUP * d;
    m.g.width = arrays + 2 * FF_GROUP * d;
    m.g.radius = c->radius;
    m.g.offset = c->radius_offset[k];
    m.g.inflation = c->inflation;
    m.g.log_inflation = c->log_inflation;
    m.g.gamma = c->second_bonus;
    m.g.sieve = c->sieve;
    m.g.growth = c->inverses ? c->sieve_growth : 0.0;
    for (int64_t l = 0; l < FF_GROUP; l++)
        if (!read_silo(run, c, &m, l, first, &p))
            return 0;
    int64_t checkpoint = 0;
    while (checkpoint < run->checkpoint_count && run->checkpoints[checkpoint] < first)
        checkpoint++;
    for (int64_t round = first; round <= last; round++) {
        const int64_t i = (round - first) % BLOCK;
        if (i == 0)
            draw_block(run, c, &m, round, last - round < BLOCK ? last - round + 1 : BLOCK, &p);
        const double *learned = c->flips ? m.learned[i][0] : NULL;
        if (c->inverses && ff_policy_updates_inverse(round))
            update_inverses(run, c, &m, round);
        ff_group_round(&m.g, m.uniform[i], learned, m.cap[i]);
        keep_round(run, c, &m, round, learned);
        if (checkpoint < run->checkpoint_count && run->checkpoints[checkpoint] == round) {
            for (int64_t l = 0; l < m.silos; l++)
                c->curve[(m.first_silo + l) * run->checkpoint_count + checkpoint] = m.g.regret[l];
            checkpoint++;
        }
    }
    for (int64_t l = 0; l < m.silos; l++)
        write_silo(run, c, &m, l);
    return 1;
}
