/* Symbols: l is a silo, the lane of a vector; K arms; V_aa is the entry of arm a in the diagonal
 * V. */
#include "ff_group.h"

#include "ff_random.h"
#include "ff_reals.h"

/* Number of vectors of silos whose scores are compared together. */
#define TOGETHER 2
#define STEP (TOGETHER * WIDTH)

/* Numbers of all silos in one round: beta; the factor on bonuses in the test of the sieve; and
 * estimate (mean), 1 / sqrt(V_aa) (root), 1 / V_aa (width) and expected reward of the chosen
 * arm. */
typedef struct {
    double beta[FF_GROUP] FF_ALIGNED, factor[FF_GROUP] FF_ALIGNED;
    double mean[FF_GROUP] FF_ALIGNED, root[FF_GROUP] FF_ALIGNED, width[FF_GROUP] FF_ALIGNED;
    double expected[FF_GROUP] FF_ALIGNED;
} numbers;

/* Compute the radii (ff_determinant_radius) of WIDTH silos from l on, and the factors 2 slack - 1
 * (ff_slack). cap: C of the round, see ff_group_round. */
FF_INLINE void bound_silos(const ff_group *g, double cap, int64_t l, numbers *n)
{
    const loose grown = LOAD(g->log_det + l) + all(g->log_inflation);
    const loose volume = all(g->inflation) * (all(g->radius.base) + larger(grown, all(0.0)));
    const loose beta =
        all(g->radius.multiplier) * (all(g->offset) + all(g->radius.scale) * root_of(volume));
    loose slack = all(g->sieve.slack);
    if (g->growth != 0.0) {
        const loose bonus = beta + all(g->gamma) * LOAD(g->root_inverse + l);
        slack = all(g->growth) * larger(all(cap) / bonus * all(1.0 - 1e-9), all(1.0));
    }
    STORE(n->beta + l, beta);
    STORE(n->factor + l, slack + slack - all(1.0));
}

/* Return the bonuses of WIDTH silos for arms with 1 / sqrt(V_aa) at `root` and 1 / V_aa at
 * `width`. */
FF_INLINE loose bonus_of(const ff_group *g, loose beta, const double *root, const double *width)
{
    return beta * LOAD(root) + all(g->gamma) * LOAD(width);
}

/* Write the arms with the largest rankings of STEP silos from l on to g->chosen, the lowest index
 * if several tie. */
FF_INLINE void rank_arms(ff_group *g, int64_t l, const numbers *n)
{
    const loose ranking = all(g->sieve.ranking);
    loose beta[TOGETHER], top[TOGETHER], arm[TOGETHER];
    for (int v = 0; v < TOGETHER; v++) {
        beta[v] = LOAD(n->beta + l + v * WIDTH);
        top[v] = all(-INFINITY);
        arm[v] = all(0.0);
    }
    for (int64_t a = 0; a < g->arms; a++)
        for (int v = 0; v < TOGETHER; v++) {
            const int64_t i = a * FF_GROUP + l + v * WIDTH;
            const loose rank =
                LOAD(g->mean + i) + ranking * bonus_of(g, beta[v], g->root + i, g->width + i);
            arm[v] = where_larger(rank, top[v], all((double)a), arm[v]);
            top[v] = larger(rank, top[v]);
        }
    for (int v = 0; v < TOGETHER; v++)
        STORE(g->chosen + l + v * WIDTH, arm[v]);
}

/* Copy the numbers of silo l's chosen arm. */
FF_INLINE void read_chosen(const ff_group *g, int64_t l, numbers *n)
{
    const int64_t arm = (int64_t)g->chosen[l], i = arm * FF_GROUP + l;
    n->mean[l] = g->mean[i];
    n->root[l] = g->root[i];
    n->width[l] = g->width[i];
    n->expected[l] = g->expected[l][arm];
}

/* If the best arm by the ranking does not pass the sieve in one of the WIDTH silos from l on,
 * choose in all of them again among the arms that pass. */
FF_INLINE void test_sieve(ff_group *g, int64_t l, numbers *n)
{
    const unsigned every = (1u << WIDTH) - 1u;
    const loose beta = LOAD(n->beta + l), factor = LOAD(n->factor + l);
    const loose limit = all(g->sieve.limit), none = all(-INFINITY);
    const loose value =
        LOAD(n->mean + l) + factor * bonus_of(g, beta, n->root + l, n->width + l);
    /* Usually the limit decides, and the largest score is not needed. */
    if (reaches(value, limit) == every)
        return;
    loose largest = none, top = none, arm = all(0.0);
    for (int64_t i = l; i < g->arms * FF_GROUP; i += FF_GROUP)
        largest = larger(LOAD(g->mean + i) + bonus_of(g, beta, g->root + i, g->width + i), largest);
    const loose threshold = where_larger(limit, largest, largest, limit);
    if (reaches(value, threshold) == every)
        return;
    for (int64_t a = 0; a < g->arms; a++) {
        const int64_t i = a * FF_GROUP + l;
        const loose mean = LOAD(g->mean + i), bonus = bonus_of(g, beta, g->root + i, g->width + i);
        const loose rank = where_larger(threshold, mean + factor * bonus, none,
                                        mean + all(g->sieve.ranking) * bonus);
        arm = where_larger(rank, top, all((double)a), arm);
        top = larger(rank, top);
    }
    STORE(g->chosen + l, arm);
    for (int64_t i = l; i < l + WIDTH; i++)
        read_chosen(g, i, n);
}

/* Draw the rewards of WIDTH silos from l on and learn them. uniform, learned: see ff_group_round.
 * The entry v of V of a chosen arm becomes v + 1. */
FF_INLINE void learn_rewards(ff_group *g, const double *uniform, const double *learned, int64_t l,
                             numbers *n)
{
    const loose expected = LOAD(n->expected + l), width = LOAD(n->width + l);
    const loose drawn = LOAD(uniform + l), mean = LOAD(n->mean + l);
    const loose below = learned ? LOAD(learned + l) : all(0.0);
    const loose above = learned ? LOAD(learned + FF_GROUP + l) : all(1.0);
    STORE(g->reward + l, where_larger(expected, drawn, all(1.0), all(0.0)));
    STORE(g->regret + l, LOAD(g->regret + l) + (LOAD(g->best + l) - expected));
    const loose shrunk = width / (all(1.0) + width);
    const loose y = where_larger(expected, drawn, above, below);
    STORE(n->mean + l, mean + shrunk * (y - mean));
    STORE(n->width + l, shrunk);
    STORE(n->root + l, root_of(shrunk));
}

/* Simulate one round of all silos: choose arms, draw rewards, and learn. The arguments are
 * described in ff_group.h. */
void ff_group_round(ff_group *g, const double *uniform, const double *learned, double cap)
{
    numbers n;
    double logs[FF_GROUP] FF_ALIGNED;
    for (int64_t l = 0; l < FF_GROUP; l += WIDTH)
        bound_silos(g, cap, l, &n);
    for (int64_t l = 0; l < FF_GROUP; l += STEP)
        rank_arms(g, l, &n);
    for (int64_t l = 0; l < FF_GROUP; l++)
        read_chosen(g, l, &n);
    for (int64_t l = 0; l < FF_GROUP && g->sieve.ranking < 1.0; l += WIDTH)
        test_sieve(g, l, &n);
    for (int64_t l = 0; l < FF_GROUP; l += WIDTH)
        learn_rewards(g, uniform, learned, l, &n);
    for (int64_t l = 0; l < FF_GROUP; l++) {
        const int64_t i = (int64_t)g->chosen[l] * FF_GROUP + l;
        g->mean[i] = n.mean[l];
        g->root[i] = n.root[l];
        g->width[i] = n.width[l];
    }
    /* log_det is ln of the largest entry of V. Only the entry V_aa = 1 / width of the chosen arm
     * has grown, so compare -ln width with the log_det so far. */
    ff_logs(n.width, FF_GROUP, logs);
    for (int64_t l = 0; l < FF_GROUP; l += WIDTH)
        STORE(g->log_det + l, larger(-LOAD(logs + l), LOAD(g->log_det + l)));
}
