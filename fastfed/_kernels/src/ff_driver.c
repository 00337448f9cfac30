#include "ff_driver.h"

#include <math.h>

#include "ff_policy.h"
#include "ff_protocol.h"
#include "ff_rewind.h"

/* What threads do for each silo. */
typedef struct {
    ff_run *run;
    ff_curve *curve; /* where it is of one curve */
    int64_t first, last, watch, release;
    int reports; /* silos report after the last round to the curves that synchronise then */
} ff_segment;

/* The scratch of a thread. */
static double *scratch_of(const ff_run *run, int64_t thread)
{
    return run->scratch + thread * run->scratch_size;
}

/* The first silo's status that is a failure, or FF_OK. */
static int64_t status_of(const ff_run *run)
{
    for (int64_t i = 0; i < run->silos; i++)
        if (run->status[i] != FF_OK)
            return run->status[i];
    return FF_OK;
}

/* One round of one silo and curve: choose, draw the reward, clip, accumulate, learn. */
static int64_t run_round(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                         const ff_actions *actions, const ff_parts *p, ff_pending *pending)
{
    const int64_t d = run->dimension;
    const int own = ff_policy_own(run, c, silo, round);
    p->known.x[0] = NAN;
    const int64_t a = ff_policy_choose(run, c, silo, round, own, actions, p);
    if (a < 0)
        return FF_SCORE_FAILED;
    /* Rows that a function made are checked here; those of a pool were when it was opened. */
    if (run->environment->fill && !isfinite(ff_dot(p->feature, p->feature, d)))
        return FF_NOT_FINITE;
    const double mean = ff_mean_of(run->environment, actions, a);
    double y = ff_reward_of(run->environment, run->seed, run->replicate, ff_name_of(run, silo),
                            ff_time_of(run, round), mean);
    c->regret[silo] += actions->best - mean;
    if (c->actions) {
        c->actions[silo * run->horizon + round - 1] = (int32_t)a;
        c->rewards[silo * run->horizon + round - 1] = y;
    }
    if (c->random)
        return FF_OK;
    if (c->clip) {
        const int64_t free = c->constant > 0.0 ? d - 1 : d;
        c->clipped[2 * silo] += ff_clip_norm(p->feature, free, c->feature_bound);
        if (free < d)
            p->feature[free] = c->constant;
        if (y < c->reward_low || y > c->reward_high) {
            y = y < c->reward_low ? c->reward_low : c->reward_high;
            c->clipped[2 * silo + 1]++;
        }
        y -= c->reward_centre;
    }
    if (c->share_until) {
        const int64_t status = ff_policy_keep(run, c, silo, round, own, y, p);
        if (status != FF_OK || own)
            return status;
    }
    ff_protocol_accumulate(run, c, silo, round, y, p, pending);
    if (ff_learns(c))
        ff_policy_learn(run, c, silo, actions, y, p);
    return FF_OK;
}

/* Index of the first checkpoint that is not before a round. */
static int64_t checkpoint_from(const ff_run *run, int64_t round)
{
    int64_t low = 0, high = run->checkpoint_count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (run->checkpoints[middle] < round)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* 1 if the silo requests a synchronisation after this round. */
static int fires(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, const ff_parts *p,
                 ff_pending *pending)
{
    const int64_t d = run->dimension, rounds = round - c->trigger.last;
    if (ff_trigger_skips(&c->trigger, silo, rounds, p->feature, d))
        return 0;
    ff_protocol_flush(run, c, silo, pending);
    const ff_stream noise = ff_stream_of(run, FF_TRIGGER_NOISE, silo, round);
    return ff_trigger_fires(&c->trigger, silo, rounds, p->feature, c->total,
                            c->batch + silo * ff_statistic(d), &noise, run->stride, d, p->normals,
                            p->trigger);
}

/* Rounds first..last of one silo. With `watch` (one curve, with a trigger) it stops after the round
 * in which its trigger fires. */
static int64_t run_silo(const ff_run *run, int64_t silo, int64_t first, int64_t last,
                        int64_t watch, double *scratch)
{
    const ff_environment *env = run->environment;
    const int64_t curves = run->curve_count;
    const ff_parts p = ff_cut(scratch, run);
    ff_pending pending[FF_MAX_CURVES];
    for (int64_t i = 0; i < curves; i++)
        pending[i] = (ff_pending){p.pending + i * PENDING * (run->dimension + 1), 0};
    int64_t next = checkpoint_from(run, first), status = FF_OK;
    ff_ahead ahead[2];
    const ff_ahead *known = NULL;
    for (int64_t round = first; round <= last; round++) {
        ff_actions actions;
        ff_ahead *coming = NULL;
        if (env->ahead && round < last) {
            coming = ahead + round % 2;
            *coming = env->ahead(env->state, run->seed, run->replicate, ff_name_of(run, silo),
                               ff_time_of(run, round + 1));
        }
        status = ff_actions_of(env, run->seed, run->replicate, ff_name_of(run, silo),
                               ff_time_of(run, round), known, coming, p.x, p.mean, &actions);
        known = coming;
        for (int64_t i = 0; status == FF_OK && i < curves; i++)
            status = run_round(run, &run->curves[i], silo, round, &actions, &p, &pending[i]);
        if (status != FF_OK) {
            if (watch)
                run->curves[0].trigger.fired[silo] = round;
            break;
        }
        if (next < run->checkpoint_count && run->checkpoints[next] == round) {
            for (int64_t i = 0; i < curves; i++)
                run->curves[i].curve[silo * run->checkpoint_count + next] =
                    run->curves[i].regret[silo];
            next++;
        }
        if (!watch)
            continue;
        if (fires(run, &run->curves[0], silo, round, &p, &pending[0])) {
            run->curves[0].trigger.fired[silo] = round;
            break;
        }
    }
    for (int64_t i = 0; i < curves; i++)
        ff_protocol_flush(run, &run->curves[i], silo, &pending[i]);
    return status;
}

/* After a release that own rounds follow a silo takes its own part off the total, and believes the rest. */
static int64_t begin_own(const ff_run *run, ff_curve *c, int64_t silo, double *scratch)
{
    const int64_t s = ff_statistic(run->dimension);
    double *rest = c->own_rest + silo * s;
    for (int64_t j = 0; j < s; j++)
        rest[j] = c->total[j] - rest[j];
    const ff_parts p = ff_cut(scratch, run);
    return ff_policy_believe(run, c, silo, &p);
}

/* The noise of release k as beliefs count it. */
static void set_ridges(ff_curve *c, int64_t k)
{
    for (int64_t g = 0; g < c->belief.count; g++)
        c->belief.ridge[g] = c->own_ridges[k * c->belief.count + g];
}

/* Adds a silo's message to the sum of those before it. */
static void add_one(void *work, int64_t silo, int64_t thread)
{
    (void)thread;
    const ff_segment *s = work;
    ff_protocol_add(s->run, s->curve, silo);
}

/* The same of every curve that synchronises after the last round. */
static void add_due(void *work, int64_t silo, int64_t thread)
{
    (void)thread;
    const ff_segment *s = work;
    for (int64_t i = 0; i < s->run->curve_count; i++)
        if (ff_next_end(&s->run->curves[i]) == s->last)
            ff_protocol_add(s->run, &s->run->curves[i], silo);
}

static void report_one(void *work, int64_t silo, int64_t thread)
{
    const ff_segment *s = work;
    ff_protocol_report(s->run, s->curve, silo, s->release, scratch_of(s->run, thread));
}

static void begin_own_one(void *work, int64_t silo, int64_t thread)
{
    const ff_segment *s = work;
    s->run->status[silo] = begin_own(s->run, s->curve, silo, scratch_of(s->run, thread));
}

/* After `round` all silos report, if they have not; the server combines, all adopt the new estimate. */
static int64_t synchronise(ff_run *run, ff_curve *c, int64_t round, int reported)
{
    const int64_t k = c->released + 1;
    ff_segment segment = {.run = run, .curve = c, .release = k};
    if (!reported)
        ff_team_each(run->team, &run->reports, run->silos, 1.0, report_one, add_one,
                     &segment);
    ff_protocol_combine(run, c, k, run->scratch);
    c->released = k;
    const int64_t next = checkpoint_from(run, round);
    if (next < run->checkpoint_count)
        c->synchronised[next]++;
    if (c->synchronised_rounds)
        c->synchronised_rounds[round - 1] = 1;
    c->trigger.last = round;
    c->trigger.due = 0;
    const int64_t status = ff_protocol_refresh(run, c, run->scratch);
    if (status != FF_OK || !c->share_until || c->own_least || (!ff_mixed(c) && k < c->releases))
        return status;
    set_ridges(c, k);
    ff_team_each(run->team, &run->own, run->silos, 1.0, begin_own_one, NULL, &segment);
    return status_of(run);
}

int64_t ff_run_initialise(ff_run *run)
{
    for (int64_t i = 0; i < run->curve_count; i++) {
        ff_curve *c = &run->curves[i];
        int64_t status = ff_protocol_refresh(run, c, run->scratch);
        const ff_parts p = ff_cut(run->scratch, run);
        for (int64_t silo = 0; status == FF_OK && c->share_until && silo < run->silos; silo++)
            status = ff_policy_begin(run, c, silo, &p);
        if (status != FF_OK)
            return status;
    }
    return FF_OK;
}

/* A silo's report follows its rounds at once: where a batch is a round, threads that waited for one
 * another between the two would wait as long as they work. */
static void run_one(void *work, int64_t silo, int64_t thread)
{
    const ff_segment *s = work;
    double *scratch = scratch_of(s->run, thread);
    const int64_t status = run_silo(s->run, silo, s->first, s->last, s->watch, scratch);
    for (int64_t i = 0; s->reports && status == FF_OK && i < s->run->curve_count; i++) {
        ff_curve *c = &s->run->curves[i];
        if (ff_next_end(c) == s->last)
            ff_protocol_report(s->run, c, silo, c->released + 1, scratch);
    }
    s->run->status[silo] = status;
}

/* Rounds first..last of all silos, without a synchronisation in between. */
static int64_t run_span(ff_run *run, int64_t first, int64_t last, int64_t watch, int reports)
{
    ff_segment segment = {
        .run = run, .first = first, .last = last, .watch = watch, .reports = reports};
    ff_team_each(run->team, &run->rounds, run->silos, (double)(last - first + 1), run_one,
                 reports ? add_due : NULL, &segment);
    return status_of(run);
}

/* Rewinds a silo that went past round `last` and runs rounds first..last again. */
static void rerun(const ff_run *run, ff_curve *c, int64_t silo, int64_t first, int64_t last,
                  double *scratch)
{
    if (c->trigger.fired[silo] == last)
        return;
    ff_rewind(run, c, silo);
    c->candidates[silo].x = NULL;
    ff_bonus_cache_rewind(&c->bonus_cache, silo);
    if (c->tracked)
        c->tracked[silo].x = NULL;
    run->status[silo] = run_silo(run, silo, first, last, 0, scratch);
}

static void rerun_one(void *work, int64_t silo, int64_t thread)
{
    const ff_segment *s = work;
    rerun(s->run, s->curve, silo, s->first, s->last, scratch_of(s->run, thread));
}

/* Rounds first..last at most, up to the first in which any trigger fires: every silo runs on its
 * own, and those that went past that round are rewound and rerun. Returns the last round simulated,
 * or a status. */
static int64_t run_until_trigger(ff_run *run, ff_curve *c, int64_t first, int64_t last)
{
    const int64_t silos = run->silos;
    const int64_t *fired = c->trigger.fired;
    int64_t earliest = 0, failed = -1;
    for (int64_t i = 0; i < silos; i++) {
        ff_snapshot(run, c, i);
        c->trigger.fired[i] = 0;
    }
    run_span(run, first, last, 1, 0);
    for (int64_t i = 0; i < silos; i++) {
        if (run->status[i] != FF_OK)
            failed = failed < 0 || fired[i] < fired[failed] ? i : failed;
        else if (fired[i] && (!earliest || fired[i] < earliest))
            earliest = fired[i];
    }
    /* A failure after the first round in which a trigger fires never happened. */
    if (failed >= 0 && (!earliest || fired[failed] <= earliest))
        return run->status[failed];
    if (!earliest)
        return last;
    if (earliest < last) {
        ff_segment segment = {.run = run, .curve = c, .first = first, .last = earliest};
        ff_team_each(run->team, &run->rounds, silos, (double)(earliest - first + 1), rerun_one,
                     NULL, &segment);
    }
    for (int64_t i = 0; i < silos; i++) {
        if (run->status[i] != FF_OK)
            return run->status[i];
        if (c->requested && fired[i] == earliest)
            c->requested[(earliest - 1) * silos + i] = 1;
    }
    c->trigger.due = earliest + c->trigger.delay;
    return earliest;
}

/* Rounds first..last of a curve whose data decide when to synchronise; it is alone in its run. */
static int64_t run_by_trigger(ff_run *run, int64_t first, int64_t last)
{
    ff_curve *c = &run->curves[0];
    ff_trigger *trigger = &c->trigger;
    while (first <= last) {
        int64_t end, status = FF_OK;
        if (trigger->due) {
            end = trigger->due < last ? trigger->due : last;
            if (first <= end)
                status = run_span(run, first, end, 0, 0);
        } else {
            /* Chunks grow with the time since the last synchronisation, so few rounds are rerun. */
            const int64_t grown = (first - trigger->last) / 8, chunk = grown > 16 ? grown : 16;
            end = run_until_trigger(run, c, first, last - first < chunk ? last : first + chunk - 1);
            status = end < 0 ? end : FF_OK;
        }
        if (status == FF_OK && trigger->due == end)
            status = synchronise(run, c, end, 0);
        if (status != FF_OK)
            return status;
        first = end + 1;
    }
    return FF_OK;
}

/* The same by a schedule that is fixed. */
static int64_t run_by_schedule(ff_run *run, int64_t first, int64_t last)
{
    while (first <= last) {
        /* Up to the next synchronisation of any curve. */
        int64_t end = last;
        for (int64_t i = 0; i < run->curve_count; i++) {
            const int64_t due = ff_next_end(&run->curves[i]);
            end = due < end ? due : end;
        }
        int64_t status = run_span(run, first, end, 0, 1);
        for (int64_t i = 0; status == FF_OK && i < run->curve_count; i++) {
            ff_curve *c = &run->curves[i];
            if (ff_next_end(c) == end)
                status = synchronise(run, c, end, 1);
        }
        if (status != FF_OK)
            return status;
        first = end + 1;
    }
    return FF_OK;
}

int64_t ff_run_rounds(ff_run *run, int64_t first, int64_t last)
{
    run->team = ff_team_open(run->threads);
    const int64_t status = run->curves[0].trigger.kind ? run_by_trigger(run, first, last)
                                                       : run_by_schedule(run, first, last);
    ff_team_close(run->team);
    run->team = NULL;
    return status;
}
