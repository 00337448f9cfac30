#include "ff_play.h"

#include <math.h>

/* Runs `body` for every silo i, the threads taking them as `how` says. Neighbours have cache lines in
 * common, which two threads would tear at: so they come column by column of a table that has them
 * row by row, one column a thread. A team of one costs more to gather than a short round takes, so
 * one thread does without. */
#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#define PRAGMA(text) _Pragma(#text)
#define EACH_SILO(pass, how, body)                                                               \
    if ((pass)->threads > 1) {                                                                   \
        const int64_t columns = (pass)->threads, rows = ((pass)->silos + columns - 1) / columns; \
        PRAGMA(omp parallel for num_threads((int)(pass)->threads) schedule(how))                 \
        for (int64_t n = 0; n < rows * columns; n++) {                                           \
            const int64_t i = n % columns * rows + n / columns;                                  \
            if (i < (pass)->silos)                                                               \
                body;                                                                            \
        }                                                                                        \
    } else {                                                                                     \
        for (int64_t i = 0; i < (pass)->silos; i++)                                              \
            body;                                                                                \
    }
#else
#define THREAD 0
#define EACH_SILO(pass, how, body)                                                               \
    for (int64_t i = 0; i < (pass)->silos; i++)                                                  \
        body;
#endif

/* Where this thread works. */
#define SCRATCH(pass) ((pass)->scratch + THREAD * (pass)->scratch_size)

/* So many data points of a silo wait to enter its batch together. */
#define WAITING 16

/* One thread's scratch, cut into its parts. */
typedef struct {
    void *x;
    double *mean, *score, *feature, *observe, *normals, *packed, *clock, *point, *waiting;
    ff_imaged known; /* its image stands where ff_observe wants it */
    uint32_t *words;
} scratch_parts;

/* Of one curve: WAITING x (d + 1), features and reward. */
typedef struct {
    double *points;
    int64_t count;
} ff_waiting;

static scratch_parts cut(double *scratch, const ff_pass *pass)
{
    const int64_t actions = pass->environment->actions, d = pass->dimension;
    scratch_parts p;
    p.x = scratch;
    p.mean = scratch + ff_fill_capacity(actions, d);
    p.score = p.mean + actions;
    p.feature = p.score + ff_score_scratch(d, actions);
    p.observe = p.feature + d;
    p.known = (ff_imaged){p.observe + 4 * d, p.observe};
    p.normals = p.observe + 5 * d;
    p.packed = p.normals + ff_noise_capacity(d);
    p.clock = p.packed + ff_packed(d) + 2 * d;
    p.point = p.clock + ff_clock_scratch(d);
    p.waiting = p.point + ff_statistic(d);
    p.words = (uint32_t *)(p.waiting + pass->curve_count * WAITING * (d + 1) + 8);
    return p;
}

int64_t ff_play_scratch(int64_t actions, int64_t d, int64_t levels, int64_t curves)
{
    return ff_fill_capacity(actions, d) + actions + ff_score_scratch(d, actions) + 6 * d +
           ff_noise_capacity(d) + ff_packed(d) + 2 * d + ff_clock_scratch(d) + ff_statistic(d) +
           curves * WAITING * (d + 1) + 8 +
           ff_word_capacity(levels * ff_statistic(d)) / 2 + 16;
}

/* The factor a silo decides with: the shared one when lazy, its own otherwise. */
FF_INLINE int64_t slot(const ff_curve *c, int64_t silo) { return c->lazy ? 0 : silo; }

/* Where the arrays by release say what holds now. */
FF_INLINE int64_t entry(const ff_curve *c)
{
    return c->released < c->last_entry ? c->released : c->last_entry;
}

/* Silo, round and tree node as the streams know them. */
FF_INLINE int64_t name_of(const ff_pass *pass, int64_t silo)
{
    return pass->names ? pass->names[silo] : silo;
}
FF_INLINE int64_t time_of(const ff_pass *pass, int64_t round)
{
    return (pass->phase ? pass->phase : pass->stride) + (round - 1) * pass->stride;
}
FF_INLINE int64_t key_of(const ff_pass *pass, int64_t node)
{
    return (node - 1) * pass->stride + pass->phase + 1;
}

FF_INLINE ff_stream stream_of(const ff_pass *pass, uint64_t purpose, int64_t silo, int64_t round)
{
    return ff_stream_open(pass->seed, purpose, (uint32_t)pass->replicate,
                          (uint32_t)name_of(pass, silo), (uint32_t)time_of(pass, round));
}

/* Data points that wait enter the batch. */
static void settle(const ff_pass *pass, ff_curve *c, int64_t silo, ff_waiting *waiting)
{
    const int64_t d = pass->dimension;
    double *batch = c->batch + silo * ff_statistic(d);
    if (waiting->count == 1)
        ff_accumulate(batch + d, batch, waiting->points, waiting->points[d], d);
    else if (waiting->count)
        ff_accumulate_many(batch + d, batch, waiting->points, waiting->count, d);
    waiting->count = 0;
}

/* The data point of a round enters what the silo will send: its batch, or every tree node that
 * will hold it, rounded for each of them anew (Alg. 5 line 7). */
static void take_in(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t round, double y,
                    const scratch_parts *p, ff_waiting *waiting)
{
    const int64_t d = pass->dimension, s = ff_statistic(d);
    if (c->randomizer != FF_SEND_BITS) {
        double *point = waiting->points + waiting->count++ * (d + 1);
        memcpy(point, p->feature, (size_t)d * sizeof(double));
        point[d] = y;
        if (waiting->count == WAITING)
            settle(pass, c, silo, waiting);
        return;
    }
    int64_t levels[64] = {0}, leaf = (round - 1) / c->batch_size + 1;
    const int64_t releases = pass->horizon / c->batch_size;
    const int64_t nodes = c->analyzer == FF_ADD ? leaf <= releases
                                                : ff_touched_levels(leaf, releases, levels);
    const ff_stream stream = stream_of(pass, FF_ROUNDING, silo, round);
    ff_words(&stream, nodes * s, p->words);
    memset(p->point, 0, (size_t)s * sizeof(double));
    ff_accumulate(p->point + d, p->point, p->feature, y, d);
    for (int64_t i = 0; i < nodes; i++) {
        const int64_t *g = c->bit_levels + 2 * levels[i];
        double *sums = c->sums + (silo * c->levels + levels[i]) * s;
        const uint32_t *words = p->words + i * s;
        ff_round_point(p->point, d, (double)g[0], c->clip, words, sums);
        ff_round_point(p->point + d, s - d, (double)g[1], c->clip, words + d, sums + d);
    }
}

/* beta of the silo's next choice. */
static double radius_of(const ff_curve *c, const double *w, int64_t round, int64_t d)
{
    const int64_t k = entry(c);
    const int64_t counted = c->lazy ? c->released * c->batch_size : round;
    if (c->radius.determinant)
        return ff_determinant_radius(&c->radius, c->radius_offset[k], c->inflation,
                                     c->log_inflation, c->lazy ? c->log_det : ff_log_det(w, d), d);
    return ff_radius_at(&c->radius, c->radius_offset[k], c->radius_lambda[k],
                        c->radius_count * (double)counted, d);
}

/* The action of a silo: by upper confidence, or remembered. */
static int64_t choose(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t round,
                      const ff_actions *actions, const scratch_parts *p)
{
    const int64_t d = pass->dimension;
    ff_choice *last = c->lazy && pass->environment->borrow ? c->choice + silo : NULL;
    if (last && last->x == actions->x && last->released == c->released) {
        ff_features(actions, last->action, d, p->feature);
        return last->action;
    }
    const double *w = c->w + slot(c, silo) * d * d, *theta = c->theta + slot(c, silo) * d;
    const double beta = radius_of(c, w, round, d);
    int64_t a = -1;
    if (actions->shorts && c->second_bonus == 0.0)
        a = ff_widths_choose(&c->widths, silo, round - c->clock.last, actions, w, theta, beta,
                             c->clip ? c->feature_bound : 0.0, d, p->score, p->feature, &p->known);
    if (a >= 0) {
        if (last)
            *last = (ff_choice){actions->x, c->released, a};
        return a;
    }
    if (c->lazy || !pass->environment->borrow) {
        a = ff_select(actions, w, theta, beta, c->second_bonus, d, p->score, p->feature, NULL);
        if (last)
            *last = (ff_choice){actions->x, c->released, a};
        return a;
    }
    ff_contenders *k = c->contend + silo;
    k->times = k->x == actions->x ? k->times + 1 : 0;
    if (k->times && k->count && k->released == c->released)
        a = ff_contend_choose(k, actions, w, theta, beta, c->second_bonus, d, p->score,
                              p->feature);
    if (a < 0) {
        /* Rows that do not come again and again are not worth the making. */
        const int settled = k->times > 3;
        ff_reach reach;
        a = ff_select(actions, w, theta, beta, c->second_bonus, d, p->score, p->feature,
                      settled ? &reach : NULL);
        k->count = 0;
        if (settled)
            ff_contend_make(k, &reach, actions->actions, w, beta, c->released, d);
        k->x = actions->x;
    }
    return a;
}

/* The action of a silo by its user's scores, or -1. */
static int64_t choose_scored(const ff_pass *pass, const ff_curve *c, int64_t silo, int64_t round,
                             const ff_actions *actions, const scratch_parts *p)
{
    const int64_t d = pass->dimension;
    const double *w = c->w + slot(c, silo) * d * d, *theta = c->theta + slot(c, silo) * d;
    const ff_stream stream = stream_of(pass, FF_SCORE_KEY, silo, round);
    double *end = (double *)p->x + pass->scratch_size;
    const int64_t most = pass->environment->actions;
    double *own = end - ff_scored_scratch(d, most, c->score_state_size);
    return ff_scored(c->score, c->score_state, c->score_state_size, ff_key(&stream), round, actions,
                     w, theta, radius_of(c, w, round, d), c->second_bonus, d, own, p->feature);
}

/* A data point enters the silo's own V. */
static void learn(const ff_pass *pass, ff_curve *c, int64_t silo, double y,
                  const scratch_parts *p)
{
    const int64_t d = pass->dimension;
    double *w = c->w + silo * d * d, *theta = c->theta + silo * d;
    ff_contenders *k = c->contend + silo;
    double prediction = 0.0, square = 0.0;
    for (int64_t j = 0; k->count && j < d; j++) {
        prediction += theta[j] * p->feature[j];
        square += theta[j] * theta[j];
    }
    const int known = memcmp(p->known.x, p->feature, (size_t)d * sizeof(double)) == 0;
    const double s = known ? ff_observe_image(w, theta, p->feature, y, d, p->observe)
                           : ff_observe(w, theta, p->feature, y, d, p->observe);
    ff_contend_observe(k, prediction, sqrt(square), y, s, c->second_bonus, d);
}

static int64_t play_round(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t round,
                          const ff_actions *actions, const scratch_parts *p, ff_waiting *waiting)
{
    const int64_t d = pass->dimension;
    int64_t a;
    p->known.x[0] = NAN;
    if (c->random) {
        const ff_stream stream = stream_of(pass, FF_POLICY, silo, round);
        a = ff_below(&stream, actions->actions);
        ff_features(actions, a, d, p->feature);
    } else if (c->score) {
        a = choose_scored(pass, c, silo, round, actions, p);
        if (a < 0)
            return FF_SCORE_FAILED;
    } else {
        a = choose(pass, c, silo, round, actions, p);
    }
    /* What a function made is checked as it comes; the rows of a pool were when it was opened. */
    double square = 0.0;
    for (int64_t j = 0; pass->environment->fill && j < d; j++)
        square += p->feature[j] * p->feature[j];
    if (!isfinite(square))
        return FF_NOT_FINITE;
    const double mean = ff_mean_of(pass->environment, actions, a);
    double y = ff_reward_of(pass->environment, pass->seed, pass->replicate, name_of(pass, silo),
                            time_of(pass, round), mean);
    c->regret[silo] += actions->best - mean;
    if (c->actions) {
        c->actions[silo * pass->horizon + round - 1] = (int32_t)a;
        c->rewards[silo * pass->horizon + round - 1] = y;
    }
    if (c->random)
        return FF_OK;
    if (c->clip) {
        c->clipped[2 * silo] += ff_clip_norm(p->feature, d, c->feature_bound);
        if (y < c->reward_low || y > c->reward_high) {
            y = y < c->reward_low ? c->reward_low : c->reward_high;
            c->clipped[2 * silo + 1]++;
        }
    }
    take_in(pass, c, silo, round, y, p, waiting);
    if (!c->lazy)
        learn(pass, c, silo, y, p);
    return FF_OK;
}

/* Index of the first checkpoint that is not before a round. */
static int64_t checkpoint_from(const ff_pass *pass, int64_t round)
{
    int64_t low = 0, high = pass->checkpoint_count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (pass->checkpoints[middle] < round)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether the silo asks for a synchronisation after this round. */
static int fires(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t round,
                 const scratch_parts *p, ff_waiting *waiting)
{
    const int64_t d = pass->dimension, rounds = round - c->clock.last;
    if (ff_clock_rests(&c->clock, silo, rounds, p->feature, d))
        return 0;
    settle(pass, c, silo, waiting);
    const ff_stream noise = stream_of(pass, FF_TRIGGER_NOISE, silo, round);
    return ff_clock_fires(&c->clock, silo, rounds, p->feature, c->total,
                          c->batch + silo * ff_statistic(d), &noise, d, p->normals, p->clock);
}

/* Rounds first..last of one silo; with `watch` (one curve, with a clock) it stops after the round
 * in which its rule fires. */
static int64_t play_silo(const ff_pass *pass, int64_t silo, int64_t first, int64_t last,
                         int64_t watch, double *scratch)
{
    const ff_environment *env = pass->environment;
    const int64_t curves = pass->curve_count;
    const scratch_parts p = cut(scratch, pass);
    ff_waiting waiting[FF_MOST_CURVES];
    for (int64_t i = 0; i < curves; i++)
        waiting[i] = (ff_waiting){p.waiting + i * WAITING * (pass->dimension + 1), 0};
    int64_t next = checkpoint_from(pass, first), status = FF_OK;
    for (int64_t round = first; round <= last; round++) {
        ff_actions actions;
        status = ff_actions_of(env, pass->seed, pass->replicate, name_of(pass, silo),
                               time_of(pass, round), p.x, p.mean, &actions);
        for (int64_t i = 0; status == FF_OK && i < curves; i++)
            status = play_round(pass, &pass->curves[i], silo, round, &actions, &p, &waiting[i]);
        if (status != FF_OK) {
            if (watch)
                pass->curves[0].clock.fired[silo] = round;
            break;
        }
        if (next < pass->checkpoint_count && pass->checkpoints[next] == round) {
            for (int64_t i = 0; i < curves; i++)
                pass->curves[i].curve[silo * pass->checkpoint_count + next] =
                    pass->curves[i].regret[silo];
            next++;
        }
        if (!watch)
            continue;
        if (fires(pass, &pass->curves[0], silo, round, &p, &waiting[0])) {
            pass->curves[0].clock.fired[silo] = round;
            break;
        }
    }
    for (int64_t i = 0; i < curves; i++)
        settle(pass, &pass->curves[i], silo, &waiting[i]);
    return status;
}

/* Standard normals of the noise in prefix k, into p.normals; owner: a silo, or M for the server,
 * whose state stands in row `row`. */
static void release_noise(const ff_pass *pass, ff_curve *c, int64_t owner, int64_t row, int64_t k,
                          const scratch_parts *p)
{
    const int64_t d = pass->dimension, s = ff_statistic(d);
    if (c->release == FF_TOEPLITZ) {
        const int64_t releases = pass->horizon / c->batch_size;
        double *history = c->history + row * releases * s;
        ff_node_normals(pass->seed, pass->replicate, owner, key_of(pass, k), d, p->normals);
        memcpy(history + (k - 1) * s, p->normals, (size_t)s * sizeof(double));
        ff_toeplitz(history, c->coefficients, k, s, p->normals);
        return;
    }
    double *estimates = c->nodes + row * c->levels * s;
    if (c->release == FF_NESTED) {
        for (int64_t i = ff_nested_draws(k - 1) + 1; i <= ff_nested_draws(k); i++) {
            ff_node_normals(pass->seed, pass->replicate, owner, key_of(pass, i), d, p->normals);
            ff_add(estimates, p->normals, s);
        }
        memcpy(p->normals, estimates, (size_t)s * sizeof(double));
        return;
    }
    const int64_t level = ff_node_level(k), number = ff_honaker_number(k);
    ff_node_normals(pass->seed, pass->replicate, owner, key_of(pass, number), d, p->normals);
    memcpy(p->point, p->normals, (size_t)s * sizeof(double));
    for (int64_t j = 1; j <= level; j++) {
        ff_node_normals(pass->seed, pass->replicate, owner, key_of(pass, number + j), d,
                        p->normals);
        ff_honaker(p->point, p->normals, estimates + (j - 1) * s, j, s);
    }
    memcpy(estimates + level * s, p->point, (size_t)s * sizeof(double));
    ff_prefix(estimates, k, s, p->normals);
}

/* The tree level of what the k-th synchronisation completes. */
FF_INLINE int64_t level_of(const ff_curve *c, int64_t k)
{
    return c->analyzer == FF_ADD ? 0 : ff_node_level(k);
}

/* What the silo sends after its k-th batch, into its row of messages. */
static void report(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t k, double *scratch)
{
    const int64_t d = pass->dimension, s = ff_statistic(d), level = level_of(c, k);
    double *batch = c->batch + silo * s, *message = c->messages + silo * s;
    const double f = c->noise_scale[silo];
    const ff_noise_std std = {f * c->noise_std.bias, f * c->noise_std.off_diagonal,
                              f * c->noise_std.diagonal};
    if (c->randomizer == FF_SEND_BITS) {
        double *sum = c->sums + (silo * c->levels + level) * s;
        const ff_stream stream = ff_stream_open(pass->seed, FF_BIT_NOISE,
                                                (uint32_t)pass->replicate,
                                                (uint32_t)name_of(pass, silo),
                                                (uint32_t)key_of(pass, k));
        ff_binomials(&stream, (c->batch_size << level) * c->noise_bits[level], s, message);
        ff_add(message, sum, s);
        memset(sum, 0, (size_t)s * sizeof(double));
        return;
    }
    if (c->randomizer == FF_SEND_BATCH) {
        memcpy(message, batch, (size_t)s * sizeof(double));
    } else if (c->randomizer == FF_SEND_NOISY_BATCH) {
        const scratch_parts p = cut(scratch, pass);
        ff_node_normals(pass->seed, pass->replicate, name_of(pass, silo), key_of(pass, k), d,
                        p.normals);
        ff_add_noise(batch, p.normals, &std, d, message);
    } else if (c->randomizer == FF_SEND_NOISY_SUM) {
        const scratch_parts p = cut(scratch, pass);
        double *sum = c->sums + silo * c->levels * s;
        ff_add(sum, batch, s);
        release_noise(pass, c, name_of(pass, silo), silo, k, &p);
        ff_add_noise(sum, p.normals, &std, d, message);
    } else {
        double *sums = c->sums + silo * c->levels * s, *sum = sums + level * s;
        ff_psum(sums, batch, level, s);
        if (c->randomizer == FF_SEND_NODE) {
            memcpy(message, sum, (size_t)s * sizeof(double));
        } else {
            const scratch_parts p = cut(scratch, pass);
            ff_node_normals(pass->seed, pass->replicate, name_of(pass, silo), key_of(pass, k), d,
                            p.normals);
            if (c->randomizer == FF_SEND_NOISY_NODE) {
                ff_add_noise(sum, p.normals, &std, d, message);
            } else {
                double *nodes = c->nodes + silo * c->levels * s;
                ff_add_noise(sum, p.normals, &std, d, nodes + level * s);
                ff_prefix(nodes, k, s, message);
            }
        }
    }
    memset(batch, 0, (size_t)s * sizeof(double));
}

/* The server's part: total <- what the k-th messages say. Sums run over the messages as they
 * come: in the order of the silos, or as the shuffler has it. */
static void combine(const ff_pass *pass, ff_curve *c, int64_t k, double *scratch)
{
    const int64_t d = pass->dimension, s = ff_statistic(d), level = level_of(c, k);
    if (c->shuffled) {
        const ff_stream stream = ff_stream_open(pass->seed, FF_SHUFFLE, (uint32_t)pass->replicate,
                                                0, (uint32_t)key_of(pass, k));
        ff_permutation(&stream, pass->silos, c->order);
    }
    double *sum = c->messages + c->order[0] * s;
    for (int64_t i = 1; i < pass->silos; i++)
        ff_add(sum, c->messages + c->order[i] * s, s);
    if (c->randomizer == FF_SEND_BITS)
        ff_multiply(sum, c->unit + level * s, s);
    if (c->analyzer == FF_ADD) {
        ff_add(c->total, sum, s);
    } else if (c->analyzer == FF_REPLACE) {
        memcpy(c->total, sum, (size_t)s * sizeof(double));
    } else if (c->analyzer == FF_NOISY_ADD) {
        const scratch_parts p = cut(scratch, pass);
        ff_add(c->sums, sum, s);
        release_noise(pass, c, pass->silos, 0, k, &p);
        ff_add_noise(c->sums, p.normals, &c->noise_std, d, c->total);
    } else {
        double *node = c->nodes + level * s;
        if (c->analyzer == FF_NOISY_TREE) {
            const scratch_parts p = cut(scratch, pass);
            ff_node_normals(pass->seed, pass->replicate, pass->silos, k, d, p.normals);
            ff_add_noise(sum, p.normals, &c->noise_std, d, node);
        } else {
            memcpy(node, sum, (size_t)s * sizeof(double));
        }
        ff_prefix(c->nodes, k, s, c->total);
    }
}

static int64_t refresh(const ff_pass *pass, ff_curve *c, double *scratch)
{
    const int64_t d = pass->dimension, k = entry(c);
    const scratch_parts p = cut(scratch, pass);
    double lambda = c->regularizer[k];
    if (c->direct) {
        const double full = lambda;
        lambda = ff_choose_regularizer(c->total, full, c->floor[k], d, c->w, p.packed);
        c->inflation = lambda < full ? 1.0 + (full - lambda) / c->floor[k] : 1.0;
    }
    const double shift = ff_refresh(c->total, lambda, d, c->w, c->theta, p.packed);
    if (shift < 0.0)
        return FF_NOT_POSITIVE_DEFINITE;
    *c->indefinite += shift > 0.0;
    if (c->direct)
        c->second_bonus = c->radius.multiplier * (lambda + shift + c->error_bound[k]);
    if (c->radius.determinant) {
        c->log_det = ff_log_det(c->w, d);
        c->log_inflation = ff_log_inflation(&c->radius, c->inflation);
    }
    ff_widths_begin(&c->widths, c->w, c->released, d);
    if (c->clock.kind)
        ff_clock_restart(&c->clock, c->total, lambda + shift, c->w, pass->silos, d, p.clock);
    for (int64_t i = 1; !c->lazy && i < pass->silos; i++) {
        /* Above the diagonal all are zeros already. */
        for (int64_t j = 0; j < d; j++)
            memcpy(c->w + i * d * d + j * d, c->w + j * d, (size_t)(j + 1) * sizeof(double));
        memcpy(c->theta + i * d, c->theta, (size_t)d * sizeof(double));
    }
    return FF_OK;
}

/* All silos have played `round`: they report, the server answers. */
static int64_t synchronise(ff_pass *pass, ff_curve *c, int64_t round)
{
    const int64_t k = c->released + 1;
    EACH_SILO(pass, static, report(pass, c, i, k, SCRATCH(pass)))
    combine(pass, c, k, pass->scratch);
    c->released = k;
    const int64_t next = checkpoint_from(pass, round);
    if (next < pass->checkpoint_count)
        c->synchronised[next]++;
    if (c->met)
        c->met[round - 1] = 1;
    c->clock.last = round;
    c->clock.due = 0;
    return refresh(pass, c, pass->scratch);
}

int64_t ff_begin(ff_pass *pass)
{
    for (int64_t i = 0; i < pass->curve_count; i++) {
        const int64_t status = refresh(pass, &pass->curves[i], pass->scratch);
        if (status != FF_OK)
            return status;
    }
    return FF_OK;
}

/* Rounds first..last of all silos, which do not talk in between. */
static int64_t play_span(ff_pass *pass, int64_t first, int64_t last, int64_t watch)
{
    EACH_SILO(pass, dynamic, pass->status[i] = play_silo(pass, i, first, last, watch, SCRATCH(pass)))
    for (int64_t i = 0; i < pass->silos; i++)
        if (pass->status[i] != FF_OK)
            return pass->status[i];
    return FF_OK;
}

int64_t ff_play_saved(int64_t d) { return d * d + d + ff_statistic(d) + 3; }

/* Copies what a round changes of a silo, out of the curve or (back) into it; the clock's own state
 * begins anew at the synchronisation for which rounds are played again. */
static void keep(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t back)
{
    const int64_t d = pass->dimension, s = ff_statistic(d);
    struct {
        void *at;
        int64_t doubles;
    } parts[] = {
        {c->w + slot(c, silo) * d * d, c->lazy ? 0 : d * d},
        {c->theta + slot(c, silo) * d, c->lazy ? 0 : d},
        {c->batch + silo * s, s},
        {c->regret + silo, 1},
        {c->clipped + 2 * silo, 2},
    };
    double *saved = c->clock.saved + silo * ff_play_saved(d);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t bytes = (size_t)parts[i].doubles * sizeof(double);
        memcpy(back ? parts[i].at : saved, back ? saved : parts[i].at, bytes);
        saved += parts[i].doubles;
    }
}

/* Rounds first..last of a silo that went past the last of them, from where it was before. */
static void replay(const ff_pass *pass, ff_curve *c, int64_t silo, int64_t first, int64_t last,
                   double *scratch)
{
    if (c->clock.fired[silo] == last)
        return;
    keep(pass, c, silo, 1);
    c->contend[silo].x = NULL;
    pass->status[silo] = play_silo(pass, silo, first, last, 0, scratch);
}

/* Rounds first..last at most, up to the first in which a rule fires: played by every silo on its
 * own, and again, from where it was, by every silo that went past that round. Returns the last
 * round played, or a status. */
static int64_t play_chunk(ff_pass *pass, ff_curve *c, int64_t first, int64_t last)
{
    const int64_t silos = pass->silos;
    const int64_t *fired = c->clock.fired;
    int64_t earliest = 0, failed = -1;
    for (int64_t i = 0; i < silos; i++) {
        keep(pass, c, i, 0);
        c->clock.fired[i] = 0;
    }
    play_span(pass, first, last, 1);
    for (int64_t i = 0; i < silos; i++) {
        if (pass->status[i] != FF_OK)
            failed = failed < 0 || fired[i] < fired[failed] ? i : failed;
        else if (fired[i] && (!earliest || fired[i] < earliest))
            earliest = fired[i];
    }
    /* What fails beyond the first round in which a rule fires is not played at all. */
    if (failed >= 0 && (!earliest || fired[failed] <= earliest))
        return pass->status[failed];
    if (!earliest)
        return last;
    if (earliest < last) {
        EACH_SILO(pass, dynamic, replay(pass, c, i, first, earliest, SCRATCH(pass)))
    }
    for (int64_t i = 0; i < silos; i++) {
        if (pass->status[i] != FF_OK)
            return pass->status[i];
        if (c->asked && fired[i] == earliest)
            c->asked[(earliest - 1) * silos + i] = 1;
    }
    c->clock.due = earliest + c->clock.delay;
    return earliest;
}

/* A curve whose data decide when to synchronise; it is alone in its pass. */
static int64_t play_by_clock(ff_pass *pass, int64_t first, int64_t last)
{
    ff_curve *c = &pass->curves[0];
    ff_clock *clock = &c->clock;
    while (first <= last) {
        int64_t end, status = FF_OK;
        if (clock->due) {
            end = clock->due < last ? clock->due : last;
            if (first <= end)
                status = play_span(pass, first, end, 0);
        } else {
            /* Chunks grow with the time since the last synchronisation: little is played twice. */
            const int64_t grown = (first - clock->last) / 8, chunk = grown > 16 ? grown : 16;
            end = play_chunk(pass, c, first, last - first < chunk ? last : first + chunk - 1);
            status = end < 0 ? end : FF_OK;
        }
        if (status == FF_OK && clock->due == end)
            status = synchronise(pass, c, end);
        if (status != FF_OK)
            return status;
        first = end + 1;
    }
    return FF_OK;
}

int64_t ff_play(ff_pass *pass, int64_t first, int64_t last)
{
    if (pass->curves[0].clock.kind)
        return play_by_clock(pass, first, last);
    while (first <= last) {
        /* Between two synchronisations of any curve the silos do not talk. */
        int64_t end = last;
        for (int64_t i = 0; i < pass->curve_count; i++) {
            const int64_t b = pass->curves[i].batch_size;
            if (b && (first - 1) / b * b + b < end)
                end = (first - 1) / b * b + b;
        }
        int64_t status = play_span(pass, first, end, 0);
        for (int64_t i = 0; status == FF_OK && i < pass->curve_count; i++) {
            ff_curve *c = &pass->curves[i];
            if (c->batch_size && end % c->batch_size == 0)
                status = synchronise(pass, c, end);
        }
        if (status != FF_OK)
            return status;
        first = end + 1;
    }
    return FF_OK;
}
