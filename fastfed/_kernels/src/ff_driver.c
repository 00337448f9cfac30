/* Symbols (ff_run.h): c is a curve, p the scratch of a thread, k counts releases; M silos,
 * d features; a statistic has s numbers. V is the regularised Gram matrix of a model, W its inverse
 * factor, and theta its estimate. */
#include "ff_driver.h"

#include <math.h>
#include <string.h>

#include "ff_groups.h"
#include "ff_policy.h"
#include "ff_protocol.h"
#include "ff_rewind.h"
#include "ff_view.h"

/* The arguments of a task that threads perform for each silo. */
typedef struct {
    ff_run *run;      /* the run */
    ff_curve *curve;  /* the curve, if the task concerns only one */
    uint64_t grouped; /* bit i: curve i is simulated in groups, and not silo by silo */
    int64_t first, last, watch, release; /* rounds first..last; 1: stop when the trigger fires;
                                          * number of the release */
    int reports;     /* 1: silos report after the last round to the curves that synchronise then */
} ff_task;

/* Return the address of a thread's scratch (scratch_size doubles). */
static double *scratch_of(const ff_run *run, int64_t thread)
{
    return run->scratch + thread * run->scratch_size;
}

/* Return the status of the first silo (by index) that failed, or FF_OK. */
static int64_t status_of(const ff_run *run)
{
    for (int64_t i = 0; i < run->silos; i++)
        if (run->status[i] != FF_OK)
            return run->status[i];
    return FF_OK;
}

/* Learn the data point (p->feature, y): add it to the batch, and to the silo's model if silos learn
 * within batches. */
FF_INLINE void learn(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, double y,
                     const ff_parts *p, ff_pending *pending)
{
    /* The model of a fixed set needs no sums, if they are never sent. */
    if (!c->fixed || c->releases)
        ff_protocol_accumulate(run, c, silo, round, y, p, pending);
    if (ff_learns(c))
        ff_policy_learn(run, c, silo, y, p);
}

/* Draw the delay of the reward of a round, in rounds, by bisection in the distribution function
 * c->arrivals. Returns arrival_count if the reward never arrives. */
static int64_t delay_of(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round)
{
    const ff_stream stream = ff_stream_of(run, FF_DELAY, silo, round);
    /* 53 random bits, because the distribution function is in units of 2^-53. */
    const double draw = (double)(ff_key(&stream) >> 11);
    int64_t low = 0, high = c->arrival_count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (c->arrivals[middle] <= draw)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Put the data point (p->feature, y) of this round into the silo's queue, then learn all points
 * that arrive in this round, in the order of their rounds. Overwrites p->feature. */
static void learn_late(const ff_run *run, ff_curve *c, int64_t silo, int64_t round, double y,
                       const ff_parts *p, ff_pending *pending)
{
    const int64_t d = run->dimension, n = c->arrival_count;
    const int64_t delay = delay_of(run, c, silo, round);
    double *points = c->late + silo * n * (d + 1);
    int64_t *next = c->late_next + silo * n, *ends = c->late_ends + silo * n * 2;
    /* Append this round's slot to the list of the round in which the point arrives. Lists hold slot
     * numbers plus one; 0 ends a list. */
    if (delay < n) {
        const int64_t slot = round % n;
        memcpy(points + slot * (d + 1), p->feature, (size_t)d * sizeof(double));
        points[slot * (d + 1) + d] = y;
        next[slot] = 0;
        int64_t *list = ends + (round + delay) % n * 2;
        if (list[1])
            next[list[1] - 1] = slot + 1;
        else
            list[0] = slot + 1;
        list[1] = slot + 1;
    }
    int64_t *arriving = ends + round % n * 2;
    for (int64_t i = arriving[0]; i; i = next[i - 1]) {
        const double *point = points + (i - 1) * (d + 1);
        memcpy(p->feature, point, (size_t)d * sizeof(double));
        p->known.x[0] = NAN;
        learn(run, c, silo, round, point[d], p, pending);
    }
    arriving[0] = arriving[1] = 0;
}

/* Return the action that a silo with its own clock chooses by its view: the W, theta and radius
 * that it received in its last exchange (ff_view.h). Returns -1 if a user's function failed. */
static int64_t choose_from_view(const ff_run *run, const ff_curve *c, int64_t silo, int64_t round,
                                const ff_actions *actions, const ff_parts *p)
{
    ff_curve view = ff_view_of(run, c, silo);
    return ff_policy_choose(run, &view, silo, round, 0, actions, p);
}

/* Simulate one round of one silo and curve: choose an action, draw its reward, clip its features
 * and the reward, add them to the batch, and learn from them. A local round, in which the silo
 * shares nothing, adds nothing to the batch. Returns a status. */
static int64_t run_round(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                         const ff_actions *actions, const ff_parts *p, ff_pending *pending)
{
    const int64_t d = run->dimension;
    /* In this round a silo with its own clock may serve no user. */
    if (c->serves && !c->serves[silo * run->horizon + round - 1])
        return FF_OK;
    const int is_local = ff_policy_own(run, c, silo, round);
    p->known.x[0] = NAN; /* no W x is known yet in this round */
    const int64_t action =
        c->sends ? choose_from_view(run, c, silo, round, actions, p)
                 : ff_policy_choose(run, c, silo, round, is_local, actions, p);
    if (action < 0)
        return FF_SCORE_FAILED;
    /* Check rows that a function filled. Rows of a pool were checked when the pool was opened. */
    if (run->environment->fill && !isfinite(ff_dot(p->feature, p->feature, d)))
        return FF_NOT_FINITE;
    const double mean = ff_mean_of(run->environment, actions, action);
    double y = ff_reward_of(run->environment, run->seed, run->replicate, ff_name_of(run, silo),
                            ff_time_of(run, round), mean);
    c->regret[silo] += actions->best - mean;
    if (c->actions) {
        c->actions[silo * run->horizon + round - 1] = (int32_t)action;
        c->rewards[silo * run->horizon + round - 1] = y;
    }
    if (c->random)
        return FF_OK;
    if (c->clip) {
        const int64_t free_features = c->constant > 0.0 ? d - 1 : d;
        c->clipped[2 * silo] += c->fixed && !c->releases
                                    ? ff_fixed_is_clipped(c->fixed + silo * c->fixed_size)
                                    : ff_clip_norm(p->feature, free_features, c->feature_bound);
        if (free_features < d)
            p->feature[free_features] = c->constant;
        if (y < c->reward_low || y > c->reward_high) {
            y = y < c->reward_low ? c->reward_low : c->reward_high;
            c->clipped[2 * silo + 1]++;
        }
        y -= c->reward_centre;
    }
    /* If users send bits, silos learn from the debiased bit in place of the reward. */
    if (c->flips) {
        ff_policy_draw_bit(run, silo, round, p->random);
        y = ff_policy_bit(c, y, p->random);
    }
    /* Update the raw sums and the models that the silo uses in local rounds. A local round updates
     * nothing else. */
    if (c->share_until) {
        const int64_t status = ff_policy_keep(run, c, silo, round, is_local, y, p);
        if (status != FF_OK || is_local)
            return status;
    }
    if (c->arrivals)
        learn_late(run, c, silo, round, y, p, pending);
    else
        learn(run, c, silo, round, y, p, pending);
    return FF_OK;
}

/* Return the index of the first checkpoint that is not before `round`. */
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

/* Return 1 if the silo's trigger requests a synchronisation after this round. */
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

/* Simulate rounds first..last of one silo, for all curves whose bit in `skipped` is 0. With `watch`
 * (one curve, with a trigger) stop after the round in which the silo's trigger fires, and store
 * that round in trigger.fired. Returns a status. */
static int64_t run_silo(const ff_run *run, int64_t silo, int64_t first, int64_t last,
                        int64_t watch, uint64_t skipped, double *scratch)
{
    const ff_environment *env = run->environment;
    const int64_t curves = run->curve_count;
    const ff_parts p = ff_cut(scratch, run);
    ff_pending pending[FF_MAX_CURVES];
    for (int64_t i = 0; i < curves; i++)
        pending[i] = (ff_pending){p.pending + i * PENDING * (run->dimension + 1), 0};
    int64_t next_checkpoint = checkpoint_from(run, first), status = FF_OK;
    /* One entry of `ahead` describes the memory that this round reads, the other one that of the
     * next round; they swap roles after each round. */
    ff_ahead ahead[2];
    const ff_ahead *prefetched = NULL;
    for (int64_t round = first; round <= last; round++) {
        ff_actions actions;
        ff_ahead *next_ahead = NULL;
        if (env->ahead && round < last) {
            next_ahead = ahead + round % 2;
            *next_ahead = env->ahead(env->state, run->seed, run->replicate, ff_name_of(run, silo),
                                     ff_time_of(run, round + 1));
        }
        status =
            ff_actions_of(env, run->seed, run->replicate, ff_name_of(run, silo),
                          ff_time_of(run, round), prefetched, next_ahead, p.x, p.mean, &actions);
        prefetched = next_ahead;
        for (int64_t i = 0; status == FF_OK && i < curves; i++)
            if (!(skipped >> i & 1))
                status = run_round(run, &run->curves[i], silo, round, &actions, &p, &pending[i]);
        if (status != FF_OK) {
            /* With a trigger, a failure counts like a firing in this round (run_until_trigger). */
            if (watch)
                run->curves[0].trigger.fired[silo] = round;
            break;
        }
        if (next_checkpoint < run->checkpoint_count && run->checkpoints[next_checkpoint] == round) {
            for (int64_t i = 0; i < curves; i++)
                if (!(skipped >> i & 1))
                    run->curves[i].curve[silo * run->checkpoint_count + next_checkpoint] =
                        run->curves[i].regret[silo];
            next_checkpoint++;
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

/* Begin a silo's local rounds after a release. At first c->own_rest holds the silo's contribution
 * to the released total. Replace it by the total minus that contribution, which is the part of the
 * other silos, and compute the silo's posterior given that part. Returns a status. */
static int64_t begin_own(const ff_run *run, ff_curve *c, int64_t silo, double *scratch)
{
    const int64_t s = ff_statistic(run->dimension);
    double *rest = c->own_rest + silo * s;
    for (int64_t j = 0; j < s; j++)
        rest[j] = c->total[j] - rest[j];
    const ff_parts p = ff_cut(scratch, run);
    return ff_policy_believe(run, c, silo, &p);
}

/* Set the ridges of the posterior (ff_belief.h) to their values after release k. There is one ridge
 * for each deviation Delta on the grid of the posterior. */
static void set_ridges(ff_curve *c, int64_t k)
{
    for (int64_t g = 0; g < c->belief.count; g++)
        c->belief.ridge[g] = c->own_ridges[k * c->belief.count + g];
}

/* Task: add a silo's message of one curve to the sum of the messages of earlier silos. */
static void add_message(void *work, int64_t silo, int64_t thread)
{
    (void)thread;
    const ff_task *task = work;
    ff_protocol_add(task->run, task->curve, silo);
}

/* Task: for every curve that synchronises after round task->last, add a silo's message to the sum
 * of the messages of earlier silos. */
static void add_due_messages(void *work, int64_t silo, int64_t thread)
{
    (void)thread;
    const ff_task *task = work;
    for (int64_t i = 0; i < task->run->curve_count; i++)
        if (ff_next_end(&task->run->curves[i]) == task->last)
            ff_protocol_add(task->run, &task->run->curves[i], silo);
}

/* Compute the message that a silo sends at the k-th synchronisation, if it sends one. Messages are
 * numbered by synchronisation; those of a silo with its own clock by its own reports. */
static void report(const ff_run *run, ff_curve *c, int64_t silo, int64_t k, double *scratch)
{
    if (ff_sends(run, c, silo, k))
        ff_protocol_report(run, c, silo, c->sends ? ++c->reported[silo] : k, scratch);
}

/* Task: compute a silo's message of one curve. */
static void report_silo(void *work, int64_t silo, int64_t thread)
{
    const ff_task *task = work;
    report(task->run, task->curve, silo, task->release, scratch_of(task->run, thread));
}

/* Task: begin the local rounds of a silo. */
static void begin_own_of_silo(void *work, int64_t silo, int64_t thread)
{
    const ff_task *task = work;
    task->run->status[silo] =
        begin_own(task->run, task->curve, silo, scratch_of(task->run, thread));
}

/* Synchronise after `round`: silos report, the server combines the messages, and the same silos
 * adopt the new estimate. These are all silos or, if silos have their own clocks, only those of the
 * exchange. reported: 1 if the silos have already reported. Returns a status. */
static int64_t synchronise(ff_run *run, ff_curve *c, int64_t round, int reported)
{
    const int64_t k = c->released + 1;
    ff_task task = {.run = run, .curve = c, .release = k};
    if (!reported)
        ff_team_each(run->team, &run->reports, run->silos, 1.0, report_silo, add_message, &task);
    ff_protocol_combine(run, c, k, run->scratch);
    c->released = k;
    const int64_t next_checkpoint = checkpoint_from(run, round);
    if (next_checkpoint < run->checkpoint_count)
        c->synchronised[next_checkpoint]++;
    if (c->synchronised_rounds)
        c->synchronised_rounds[round - 1] = 1;
    c->trigger.last = round;
    c->trigger.due = 0;
    const int64_t status = ff_protocol_refresh(run, c, run->scratch);
    for (int64_t i = 0; status == FF_OK && c->sends && i < run->silos; i++)
        if (ff_sends(run, c, i, k))
            ff_view_store(run, c, i);
    /* Local rounds that choose by a posterior begin after every release if they come between shared
     * rounds, otherwise after the last release. */
    if (status != FF_OK || !c->share_until || c->own_least || (!ff_mixed(c) && k < c->releases))
        return status;
    set_ridges(c, k);
    ff_team_each(run->team, &run->own, run->silos, 1.0, begin_own_of_silo, NULL, &task);
    return status_of(run);
}

/* Compute W and theta of every curve, and each silo's local model, before the first round. */
int64_t ff_run_initialise(ff_run *run)
{
    for (int64_t i = 0; i < run->curve_count; i++) {
        ff_curve *c = &run->curves[i];
        int64_t status = ff_protocol_refresh(run, c, run->scratch);
        const ff_parts p = ff_cut(run->scratch, run);
        for (int64_t silo = 0; status == FF_OK && c->sends && silo < run->silos; silo++)
            ff_view_store(run, c, silo);
        for (int64_t silo = 0; status == FF_OK && c->share_until && silo < run->silos; silo++)
            status = ff_policy_begin(run, c, silo, &p);
        if (status != FF_OK)
            return status;
    }
    return FF_OK;
}

/* Task: simulate the rounds of a silo and let it report at once. If threads waited for each other
 * between rounds and reports, short batches would spend most of the time waiting. */
static void run_silo_and_report(void *work, int64_t silo, int64_t thread)
{
    const ff_task *task = work;
    double *scratch = scratch_of(task->run, thread);
    const int64_t status = run_silo(task->run, silo, task->first, task->last, task->watch,
                                    task->grouped, scratch);
    for (int64_t i = 0; task->reports && status == FF_OK && i < task->run->curve_count; i++) {
        ff_curve *c = &task->run->curves[i];
        if (ff_next_end(c) == task->last)
            report(task->run, c, silo, c->released + 1, scratch);
    }
    task->run->status[silo] = status;
}

/* Task: simulate the rounds of a group of silos, for one curve: all of them together, or silo by
 * silo if the environment does not offer unit vectors (ff_groups_run). */
static void run_group(void *work, int64_t group, int64_t thread)
{
    const ff_task *task = work;
    ff_run *run = task->run;
    double *scratch = scratch_of(run, thread);
    if (ff_groups_run(run, task->curve, group, task->first, task->last, scratch))
        return;
    const uint64_t all_but_this = ~((uint64_t)1 << (task->curve - run->curves));
    for (int64_t i = group * FF_GROUP; i < run->silos && i < (group + 1) * FF_GROUP; i++)
        run->status[i] = run_silo(run, i, task->first, task->last, 0, all_but_this, scratch);
}

/* Simulate rounds first..last of the curves that suit groups (ff_groups.h). Sets the bit of each of
 * them in *grouped. Returns a status. */
static int64_t run_groups(ff_run *run, int64_t first, int64_t last, uint64_t *grouped)
{
    const int64_t groups = (run->silos + FF_GROUP - 1) / FF_GROUP;
    *grouped = 0;
    for (int64_t i = 0; i < run->curve_count; i++) {
        if (!ff_groups_suit(run, &run->curves[i]))
            continue;
        ff_task task = {.run = run, .curve = &run->curves[i], .first = first, .last = last};
        *grouped |= (uint64_t)1 << i;
        ff_team_each(run->team, &run->groups, groups, (double)(last - first + 1), run_group, NULL,
                     &task);
    }
    return *grouped ? status_of(run) : FF_OK;
}

/* Simulate rounds first..last of all silos; no synchronisation comes before the end of round
 * `last`. watch, reports, grouped: see ff_task. Returns a status. */
static int64_t run_span(ff_run *run, int64_t first, int64_t last, int64_t watch, int reports,
                        uint64_t grouped)
{
    ff_task task = {.run = run, .first = first, .last = last, .watch = watch, .reports = reports,
                    .grouped = grouped};
    ff_team_each(run->team, &run->rounds, run->silos, (double)(last - first + 1),
                 run_silo_and_report, reports ? add_due_messages : NULL, &task);
    return status_of(run);
}

/* Rewind a silo and simulate rounds first..last again, unless its simulation ended with round
 * `last`, in which its trigger fired. */
static void rerun(const ff_run *run, ff_curve *c, int64_t silo, int64_t first, int64_t last,
                  double *scratch)
{
    if (c->trigger.fired[silo] == last)
        return;
    ff_rewind(run, c, silo);
    ff_bonus_cache_rewind(&c->bonus_cache, silo);
    run->status[silo] = run_silo(run, silo, first, last, 0, 0, scratch);
}

/* Task: rerun one silo. */
static void rerun_silo(void *work, int64_t silo, int64_t thread)
{
    const ff_task *task = work;
    rerun(task->run, task->curve, silo, task->first, task->last, scratch_of(task->run, thread));
}

/* Simulate rounds from `first` up to the first round in which any silo's trigger fires, or to
 * `last`. Every silo is simulated independently until its own trigger fires; silos that went beyond
 * the earliest firing are then rewound and rerun. trigger.fired receives for each silo the round in
 * which its trigger fired or its simulation failed; 0: neither. Returns the last simulated round,
 * or a status (below 0). */
static int64_t run_until_trigger(ff_run *run, ff_curve *c, int64_t first, int64_t last)
{
    const int64_t silos = run->silos;
    const int64_t *fired = c->trigger.fired;
    int64_t earliest = 0, failed = -1;
    for (int64_t i = 0; i < silos; i++) {
        ff_snapshot(run, c, i);
        c->trigger.fired[i] = 0;
    }
    run_span(run, first, last, 1, 0, 0);
    for (int64_t i = 0; i < silos; i++) {
        if (run->status[i] != FF_OK)
            failed = failed < 0 || fired[i] < fired[failed] ? i : failed;
        else if (fired[i] && (!earliest || fired[i] < earliest))
            earliest = fired[i];
    }
    /* A failure in a round after the earliest firing does not count: the silo is rerun only up to
     * that firing. */
    if (failed >= 0 && (!earliest || fired[failed] <= earliest))
        return run->status[failed];
    if (!earliest)
        return last;
    if (earliest < last) {
        ff_task task = {.run = run, .curve = c, .first = first, .last = earliest};
        ff_team_each(run->team, &run->rounds, silos, (double)(earliest - first + 1), rerun_silo,
                     NULL, &task);
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

/* Simulate rounds first..last of a curve with a trigger, which is the only curve of its run.
 * Returns a status. */
static int64_t run_by_trigger(ff_run *run, int64_t first, int64_t last)
{
    ff_curve *c = &run->curves[0];
    ff_trigger *trigger = &c->trigger;
    while (first <= last) {
        int64_t end, status = FF_OK;
        if (trigger->due) {
            /* The trigger has fired already; the synchronisation follows after round `due`. */
            end = trigger->due < last ? trigger->due : last;
            if (first <= end)
                status = run_span(run, first, end, 0, 0, 0);
        } else {
            /* Simulate a chunk of rounds up to the first firing in it. Rounds beyond it are wasted,
             * so chunks are short: an eighth of the rounds since the last synchronisation, but at
             * least 16. */
            const int64_t eighth = (first - trigger->last) / 8, chunk = eighth > 16 ? eighth : 16;
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

/* Return a mask with a 1 for each curve of the run. */
static uint64_t all_curves(const ff_run *run)
{
    return ~(uint64_t)0 >> (FF_MAX_CURVES - run->curve_count);
}

/* Simulate rounds first..last of curves with fixed schedules. Returns a status. */
static int64_t run_by_schedule(ff_run *run, int64_t first, int64_t last)
{
    while (first <= last) {
        /* Simulate up to the next synchronisation of any curve. */
        int64_t end = last;
        for (int64_t i = 0; i < run->curve_count; i++) {
            const int64_t due = ff_next_end(&run->curves[i]);
            end = due < end ? due : end;
        }
        uint64_t grouped;
        int64_t status = run_groups(run, first, end, &grouped);
        /* Curves that are not simulated in groups are simulated silo by silo. Then every silo
         * reports after its rounds, also to the curves that are simulated in groups. */
        const int has_ungrouped = grouped != all_curves(run);
        if (status == FF_OK && has_ungrouped)
            status = run_span(run, first, end, 0, 1, grouped);
        for (int64_t i = 0; status == FF_OK && i < run->curve_count; i++) {
            ff_curve *c = &run->curves[i];
            if (ff_next_end(c) == end)
                status = synchronise(run, c, end, has_ungrouped);
        }
        if (status != FF_OK)
            return status;
        first = end + 1;
    }
    return FF_OK;
}

/* Simulate rounds first..last with a team of threads. Return FF_OK, or the status of the first silo
 * that failed. */
int64_t ff_run_rounds(ff_run *run, int64_t first, int64_t last)
{
    run->team = ff_team_open(run->threads);
    const int64_t status = run->curves[0].trigger.kind ? run_by_trigger(run, first, last)
                                                       : run_by_schedule(run, first, last);
    ff_team_close(run->team);
    run->team = NULL;
    return status;
}
