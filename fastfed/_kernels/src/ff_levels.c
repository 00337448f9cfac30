/* Dispatch by instruction set. Functions of files that are compiled once for each level of x86-64
 * have the name that callers know here, and run at the highest level that this processor has,
 * chosen when the library loads. setup.py reads the list and renames each level's own functions to
 * name_v4, name_v3 and name_base. */
#include "ff_base.h"

#define EACH_OF(each)                                                                          \
    each(ff_factor) each(ff_solve) each(ff_log_det) each(ff_observe) each(ff_observe_whitened) \
    each(ff_whiten) each(ff_accumulate) each(ff_accumulate_many) each(ff_rank_one)             \
    each(ff_sherman_morrison) each(ff_clip_norm)                                               \
    each(ff_scores) each(ff_score_scratch) each(ff_best_of) each(ff_select) each(ff_features)  \
    each(ff_select_tied) each(ff_select_least) each(ff_scored) each(ff_scored_scratch)         \
    each(ff_screen_f32) each(ff_screen_f32_scratch)                                            \
    each(ff_screen_f32_small) each(ff_screen_f32_small_fits)                                   \
    each(ff_stride) each(ff_fill_capacity) each(ff_actions_of) each(ff_reward_of)              \
    each(ff_sphere_fill) each(ff_sphere_mean) each(ff_gap_fill) each(ff_gap_mean)              \
    each(ff_mean_error) each(ff_hard_fill) each(ff_pool_borrow) each(ff_pool_query)

typedef void function(void);

/* As target_clones chooses. */
static int levels_below(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v4") ? 0 : __builtin_cpu_supports("x86-64-v3") ? 1 : 2;
}

/* Hidden, for this runs before the addresses of what others could replace are known. The types are
 * those of the headers, which this file does without. */
#define HIDDEN __attribute__((visibility("hidden")))
#define CHOOSE(name)                                                                           \
    HIDDEN function name##_v4, name##_v3, name##_base;                                         \
    static function *choose_##name(void)                                                       \
    {                                                                                          \
        const int below = levels_below();                                                      \
        return below == 0 ? name##_v4 : below == 1 ? name##_v3 : name##_base;                  \
    }                                                                                          \
    void name(void) __attribute__((ifunc("choose_" #name)));
EACH_OF(CHOOSE)

/* All of them, for tests: the last has no name. */
#define ROW(name) {#name, {name##_v4, name##_v3, name##_base}},
const struct {
    const char *name;
    function *at[3];
} ff_levels[] = {EACH_OF(ROW){NULL, {NULL}}};
