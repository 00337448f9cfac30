/* Symbols: d experts, m clients (silos), n segments of rounds, T rounds. Losses are whole multiples
 * of a unit (ff_losses.h). */
#include "ff_course.h"

#include <math.h>

#include "ff_random.h"
#include "ff_reals.h"

#define ROUNDS FF_COIN_ROUNDS
/* Standard Laplace numbers from uniforms of 53 bits are at most 53 ln 2 = 36.74. */
#define MOST_LAPLACE 37.0

/* Losses of all experts in ROUNDS rounds, summed over all clients. */
typedef struct {
    int16_t in[FF_COLUMNS][ROUNDS];     /* in each round */
    int16_t before[FF_COLUMNS][ROUNDS]; /* before each round, once find_before has been called */
    int64_t total[FF_COLUMNS];          /* in all rounds */
} round_losses;

/* Set the losses in rounds from, .., ROUNDS - 1 to 0. */
static void clear_from(round_losses *g, int64_t from, int64_t d)
{
    for (int64_t k = 0; from < ROUNDS && k < d; k++)
        memset(g->in[k] + from, 0, (size_t)(ROUNDS - from) * sizeof g->in[k][0]);
}

/* Write the losses of the ROUNDS rounds after round `at` to g->in. Only the first n rounds are run:
 * later losses are 0. Losses are coins up to round l->last, and 0 after it. The exception is the
 * planned expert, if there is one: its losses are computed. s: the stream of the coins. */
static void draw_losses(const ff_course *c, const ff_stream *s, int64_t at, int64_t n,
                        round_losses *g)
{
    const ff_losses *l = c->losses;
    const int64_t random_rounds = l->last - at < n ? l->last - at : n;
    /* If all silos have common coins, those of silo 0 are drawn and count l->silos times. */
    if (random_rounds > 0)
        ff_coins_columns(&l->coins, s, l->common ? 1 : l->silos, at + 1, l->common ? l->silos : 1,
                         g->in);
    clear_from(g, random_rounds > 0 ? random_rounds : 0, l->experts);
    for (int64_t i = 0; l->planned >= 0 && i < n; i++)
        g->in[l->planned][i] = (int16_t)(l->silos * ff_planned_loses(l, at + i + 1));
}

/* Four numbers of 16 bits are added at once as one number of 64 bits. The product with ONES = 1 +
 * 2^16 + 2^32 + 2^48 replaces each of the four by the sum of those up to it, from the lowest bits
 * on; the highest 16 bits become the sum of all four. No sum reaches 2^16, so none carries over. */
#define ONES 0x0001000100010001ull

/* Return four entries of a row, packed into 64 bits. */
FF_INLINE uint64_t four(const int16_t *row)
{
    uint64_t parts;
    memcpy(&parts, row, sizeof parts);
    return parts;
}

/* Add up the losses of each expert over all rounds: total[k] is the sum of in[k], four entries at a
 * time (see ONES). */
static void find_totals(round_losses *g, int64_t d)
{
    for (int64_t k = 0; k < d; k++) {
        uint64_t parts = 0;
        for (int i = 0; i < ROUNDS; i += 4)
            parts += four(g->in[k] + i);
        g->total[k] = (int64_t)(parts * ONES >> 48);
    }
}

/* Add up the losses of each expert before each round: before[k][i] is the sum of in[k][0..i-1],
 * four entries at a time (see ONES). */
static void find_before(round_losses *g, int64_t d)
{
    for (int64_t k = 0; k < d; k++) {
        uint64_t sum = 0;
        for (int i = 0; i < ROUNDS; i += 4) {
            const uint64_t parts = four(g->in[k] + i), up_to = parts * ONES;
            /* For each of these four entries: the sum of the four up to this entry, minus the
             * entry, plus the sum of all entries before the four. */
            const uint64_t before = up_to - parts + sum * ONES;
            memcpy(g->before[k] + i, &before, sizeof before);
            sum += up_to >> 48;
        }
    }
}

/* Return the expert with the smallest loss, the first if several tie. *gap receives the second
 * smallest loss minus the smallest; INT64_MAX if there is one expert. */
static int64_t find_leader(const int64_t *lost, int64_t d, int64_t *gap)
{
    int64_t leader = 0, second = INT64_MAX;
    for (int64_t k = 1; k < d; k++) {
        const int64_t larger = lost[k] < lost[leader] ? lost[leader] : lost[k];
        leader = lost[k] < lost[leader] ? k : leader;
        second = larger < second ? larger : second;
    }
    *gap = second == INT64_MAX ? second : second - lost[leader];
    return leader;
}

/* numbers: a vector of numbers of 16 bits, one for each of several rounds. PARTS: the number of
 * these vectors. IS_LESS: all bits are 1 where p < q, else 0. */
#if defined(__GNUC__)
typedef int16_t numbers __attribute__((vector_size(FF_BYTES < 32 ? FF_BYTES : 32)));
#define IS_LESS(p, q) ((p) < (q))
#else
typedef int16_t numbers;
#define IS_LESS(p, q) (-((p) < (q)))
#endif
#define PARTS ((int)(sizeof(int16_t) * ROUNDS / sizeof(numbers)))

/* Compute g->before. For the time before each round, write the leader to `leader` (ROUNDS), and the
 * leader's loss minus c->lost[best] to `least` (ROUNDS). best: the leader before the first
 * round. */
static void find_leaders(const ff_course *c, round_losses *g, int64_t best, int16_t *leader,
                         int16_t *least)
{
    const int64_t d = c->losses->experts, most = ROUNDS * c->losses->silos + 1;
    find_before(g, d);
    for (int i = 0; i < PARTS; i++) {
        const size_t at = (size_t)i * sizeof(numbers);
        numbers leaders = {0}, smallest = (numbers){0} + INT16_MAX;
        for (int64_t k = 0; k < d; k++) {
            /* `best` loses less than `most` in these rounds, so an expert that has lost `most` more
             * cannot lead. Larger differences are cut to `most`, so that sums fit 16 bits. */
            const int64_t more = c->lost[k] - c->lost[best];
            const int16_t start = (int16_t)(more < most ? more : most), number = (int16_t)k;
            numbers before;
            memcpy(&before, (const char *)g->before[k] + at, sizeof before);
            const numbers loss = before + start;
            const numbers leads = IS_LESS(loss, smallest);
            leaders = (leaders & ~leads) | (number & leads);
            smallest = (smallest & ~leads) | (loss & leads);
        }
        memcpy((char *)leader + at, &leaders, sizeof leaders);
        memcpy((char *)least + at, &smallest, sizeof smallest);
    }
}

/* Compute sum[l], the sum of a[0][l], .., a[d - 1][l], for d <= 128. The order of the additions is
 * that of ff_pairwise. */
static void pairwise_columns(double (*restrict a)[ROUNDS], int64_t d, double *restrict sum)
{
    for (int l = 0; l < ROUNDS; l += WIDTH) {
        loose part[8], total = {0};
        int64_t k = 0;
        if (d >= 8) {
            for (int i = 0; i < 8; i++)
                part[i] = LOAD(a[i] + l);
            for (k = 8; k + 8 <= d; k += 8)
                for (int i = 0; i < 8; i++)
                    part[i] += LOAD(a[k + i] + l);
            total = ((part[0] + part[1]) + (part[2] + part[3])) +
                    ((part[4] + part[5]) + (part[6] + part[7]));
        }
        for (; k < d; k++)
            total += LOAD(a[k] + l);
        STORE(sum + l, total);
    }
}

/* Compute Hedge's loss in each round: loss[l] is the sum over experts k of g->in[k][l] times the
 * weight of k before round l. The weight is proportional to c->table[j] if expert k has lost j
 * units more than the leader before that round. best: the leader before the first round. */
static void weigh(const ff_course *c, round_losses *g, int64_t best, double *restrict loss)
{
    const int64_t d = c->losses->experts;
    int16_t leader[ROUNDS] FF_ALIGNED, least[ROUNDS] FF_ALIGNED;
    double e[FF_COLUMNS][ROUNDS] FF_ALIGNED, sums[ROUNDS] FF_ALIGNED;
    find_leaders(c, g, best, leader, least);
    for (int64_t k = 0; k < d; k++) {
        /* `before` is relative to c->lost[k], and `least` to c->lost[best]. */
        const double *restrict table = c->table + (c->lost[k] - c->lost[best]);
        const int16_t *restrict before = g->before[k];
        for (int l = 0; l < ROUNDS; l++) {
            e[k][l] = table[before[l] - least[l]];
            FF_ONE_BY_ONE;
        }
    }
    pairwise_columns(e, d, sums);
    for (int64_t k = 0; k < d; k++)
        for (int l = 0; l < ROUNDS; l++)
            e[k][l] = (double)g->in[k][l] * (e[k][l] / sums[l]);
    pairwise_columns(e, d, loss);
    /* If the leader's weight is 1, the loss is exactly the leader's loss. */
    for (int l = 0; l < ROUNDS; l++)
        if (sums[l] == 1.0)
            loss[l] = (double)g->in[leader[l]][l];
}

/* Each of the next n rounds begins with an exchange and its query, except the first round if
 * `unasked` is 1. Return the index (0..n-1) of the first round whose query exceeds the threshold,
 * or n if there is none. */
static int64_t first_above(const ff_course *c, const round_losses *g, int64_t n, int64_t unasked)
{
    const ff_sparse *s = c->sparse;
    const double start = (double)c->lost[s->expert], end = start + (double)g->total[s->expert];
    /* If all standard noise is below `least`, no query of these rounds exceeds the threshold:
     * losses grow, so the loss `end` is the largest. 1e-9 times `size`, the magnitude of all terms,
     * covers rounding error. */
    const double size = fabs(s->limit) + fabs(s->before) + end + s->query_scale;
    const double least = (s->limit - (end - s->before) - 1e-9 * size) / s->query_scale;
    if (least > MOST_LAPLACE)
        return n;
    const ff_stream stream = ff_stream_open(s->seed, FF_QUERY, (uint32_t)s->replicate, 0,
                                            (uint32_t)(s->release + 1));
    /* A cheap test by the first 32 bits of the uniform numbers. If `least` is about 0 or below, it
     * would decide nothing, because at least half of all noise is above `least`. */
    if (least > 1e-3) {
        /* Noise of at least `least` comes from a uniform number of at least 1 - exp(-least) / 2.
         * `from` is the least value of its first 32 bits, less 2 for rounding error. */
        const uint32_t from = (uint32_t)(0x1p32 * (1.0 - 0.5 * exp(-least)) - 2.0);
        uint32_t words[4][FF_PHILOX_LANES], any = 0;
        ff_philox_indices(&stream, 0, words);
        for (int l = 0; l < ROUNDS; l++)
            any |= words[0][l] >= from;
        if (!any)
            return n;
    }
    double noise[ROUNDS], lost = start;
    ff_laplaces(&stream, ROUNDS, noise);
    for (int64_t l = 0; l < n; l++) {
        if (l >= unasked && lost - s->before + s->query_scale * noise[l - unasked] > s->limit)
            return l;
        lost += (double)g->in[s->expert][l];
    }
    return n;
}

/* Add the losses of the decisions in rounds done + 1, .., done + n, loss (n), to c->regret. At each
 * checkpoint, store the sum of these losses so far minus the loss of the best expert so far. */
static void add_regret(const ff_course *c, const round_losses *g, int64_t done, int64_t n,
                       const double *loss)
{
    const int64_t d = c->losses->experts;
    ff_regret *r = c->regret;
    double total = r->lost;
    for (int64_t l = 0; l < n; l++) {
        total += loss[l];
        if (r->at == r->count || r->checkpoints[r->at] != done + l + 1)
            continue;
        int64_t best = INT64_MAX;
        for (int64_t k = 0; k < d; k++) {
            int64_t lost = c->lost[k];
            for (int64_t i = 0; i <= l; i++)
                lost += g->in[k][i];
            best = lost < best ? lost : best;
        }
        r->regret[r->at++] = total - (double)best;
    }
    r->lost = total;
}

/* Run rounds from + 1, .., to, up to ROUNDS at a time, and return the last round that was run.
 * asks: 1 if the exchange at the beginning of round from + 1 must be run here; 0 if there is none
 * or if it has been run. */
int64_t ff_course_run(ff_course *c, int64_t from, int64_t to, int64_t asks)
{
    const int64_t d = c->losses->experts, most = ROUNDS * c->losses->silos;
    const ff_stream coin = ff_stream_open(c->seed, FF_CONTEXT, (uint32_t)c->replicate, 0, 0);
    ff_sparse *s = c->sparse;
    round_losses g;
    int64_t at = from;
    while (at < to) {
        int64_t n = to - at < ROUNDS ? to - at : ROUNDS, gap = 0;
        /* 1 if the first of these n rounds begins without an exchange that must be run here. */
        const int64_t unasked = at == from && !asks;
        /* The expert that is followed in all n rounds; -1 if the leader changes or Hedge mixes
         * experts. */
        int64_t expert = s->expert;
        double loss[ROUNDS] FF_ALIGNED;
        draw_losses(c, &coin, at, n, &g);
        find_totals(&g, d);
        if (c->decides == FF_COURSE_SPARSE) {
            /* Run only the rounds before the exchange whose query exceeds the threshold. */
            const int64_t done = s->spent ? n : first_above(c, &g, n, unasked);
            if (done == 0)
                return at;
            if (done < n) {
                clear_from(&g, done, d);
                find_totals(&g, d);
                to = at + done;
                n = done;
            }
        } else {
            const int64_t best = find_leader(c->lost, d, &gap);
            if (c->decides == FF_COURSE_LEADER && (unasked || gap <= most)) {
                /* The leader may change within these rounds. */
                int16_t leader[ROUNDS] FF_ALIGNED, least[ROUNDS] FF_ALIGNED;
                find_leaders(c, &g, best, leader, least);
                if (unasked)
                    leader[0] = (int16_t)s->expert;
                for (int64_t l = 0; l < n; l++) {
                    c->switches += leader[l] != s->expert;
                    s->expert = leader[l];
                    loss[l] = (double)g.in[leader[l]][l];
                }
                expert = -1;
            } else if (c->decides == FF_COURSE_HEDGE && gap - most < c->alone) {
                /* Stop if in these rounds an expert's excess over the best expert's loss may reach
                 * the length of c->table. */
                int64_t largest = 0;
                for (int64_t k = 0; k < d; k++)
                    largest = c->lost[k] > largest ? c->lost[k] : largest;
                if (largest - c->lost[best] + most >= c->known)
                    return at;
                weigh(c, &g, best, loss);
                expert = -1;
            } else {
                /* One expert leads, or has weight 1, in all these rounds. */
                c->switches += best != s->expert;
                s->expert = expert = best;
            }
        }
        for (int l = 0; expert >= 0 && l < ROUNDS; l++)
            loss[l] = (double)g.in[expert][l];
        s->release += n - unasked;
        if (expert < 0 || g.total[expert] ||
            (c->regret->at < c->regret->count && c->regret->checkpoints[c->regret->at] <= at + n))
            add_regret(c, &g, at, n, loss);
        for (int64_t k = 0; k < d; k++) {
            c->lost[k] += g.total[k];
            c->latest[k] = g.in[k][n - 1];
        }
        at += n;
    }
    return at;
}
