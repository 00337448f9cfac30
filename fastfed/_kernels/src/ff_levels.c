/* Dispatch by instruction set. Files whose loops vectorise are compiled once for each level of
 * x86-64. setup.py reads the lists here and renames the functions of each level to name_v4, name_v3
 * and name_base. Callers use the plain name, which is one jump through a pointer that
 * ff_levels_choose sets. A linker's table would do the same, but this works with every compiler and
 * object format (target_clones and ifunc exist only in GNU tools, for ELF). */
#include "ff_processor.h"

#ifndef FF_LEVELS

/* Return -1: this build has only one level, so there is none to choose. */
int ff_levels_choose(int highest)
{
    (void)highest;
    return -1;
}

/* Return the highest level: this build has only one level, so no function is excluded. */
int ff_levels_chosen(void) { return FF_LEVEL_V4; }

#else

/* clang-format off */
#define EACH_OF(each) \
    each(ff_stream_open) each(ff_philox) each(ff_philox_blocks) each(ff_philox_indices) \
    each(ff_philox_listed) each(ff_coins_count) \
    each(ff_key) each(ff_normal_capacity_f32) \
    each(ff_normals_f32) each(ff_random_u32_capacity) each(ff_random_u32) \
    each(ff_normal_capacity_f64) each(ff_normals_from_bits) each(ff_normals_f64) \
    each(ff_laplace_capacity) each(ff_laplace_from_bits) each(ff_laplace) \
    each(ff_laplaces) \
    each(ff_ideal_normals) each(ff_ideal_laplace) each(ff_uniform) each(ff_uniforms) each(ff_normal) \
    each(ff_unit) each(ff_log) each(ff_logs) each(ff_uniform_int) each(ff_permutation) \
    each(ff_round_point) each(ff_touched_levels) each(ff_binomial_try) each(ff_binomials) \
    each(ff_encode_bits) each(ff_shuffle_bits) \
    each(ff_node_level) each(ff_add) each(ff_multiply) each(ff_scale) each(ff_psum) \
    each(ff_prefix) each(ff_add_noise) each(ff_noise_capacity) each(ff_node_normals) \
    each(ff_sum_normals) \
    each(ff_honaker) each(ff_honaker_number) each(ff_nested_draws) \
    each(ff_buffered) each(ff_buffered_column) \
    each(ff_add_weighted) each(ff_weighted_sums) \
    each(ff_round_noisy) \
    each(ff_coins_masks) each(ff_coins_make) each(ff_coins_row) each(ff_coins_add) \
    each(ff_coins_columns) each(ff_course_run) \
    each(ff_losses_row) each(ff_losses_sums) \
    each(ff_square_gradient) each(ff_losses_gradients) each(ff_losses_excess) \
    each(ff_losses_value) \
    each(ff_pairwise) each(ff_follow) each(ff_hedge) each(ff_hedge_exponents) each(ff_hedge_spread) each(ff_hedge_weights) \
    each(ff_to_weights) each(ff_sparse_run) \
    each(ff_regret_add) each(ff_walk_leaves) \
    each(ff_dot) each(ff_factor) each(ff_factor_diagonal) each(ff_solve) each(ff_log_det) \
    each(ff_inverse_norm) each(ff_refresh_small) \
    each(ff_observe) \
    each(ff_observe_whitened) each(ff_whiten) each(ff_whiten_back) each(ff_accumulate) \
    each(ff_accumulate_many) \
    each(ff_rank_one) each(ff_sherman_morrison) each(ff_clip_norm) \
    each(ff_score_scratch) each(ff_scores) each(ff_select_max_min) each(ff_best_of) \
    each(ff_select) each(ff_select_sieved) each(ff_best_sieved) each(ff_select_passing) each(ff_features) each(ff_scored_scratch) \
    each(ff_scored) \
    each(ff_all_finite) \
    each(ff_is_symmetric) \
    each(ff_is_inverse_factor) \
    each(ff_rank_one_rows) \
    each(ff_sherman_morrison_rows) \
    each(ff_factor_rows) \
    each(ff_inverse_factors) \
    each(ff_solve_rows) \
    each(ff_one_set) \
    each(ff_score_sets) \
    each(ff_argmax_sets) \
    each(ff_fixed_size) each(ff_fixed_make) each(ff_fixed_choose) each(ff_fixed_reaches) \
    each(ff_fixed_choose_passing) each(ff_fixed_observe) \
    each(ff_fixed_arms) each(ff_fixed_set_arm) each(ff_group_round) \
    each(ff_fixed_log_entry) each(ff_fixed_is_clipped) each(ff_fixed_inverse_norm) \
    each(ff_stride) each(ff_fill_capacity) each(ff_actions_of) each(ff_reward_of) \
    each(ff_mean_error) each(ff_sphere_mean) each(ff_sphere_fill) each(ff_gap_fill) \
    each(ff_gap_mean) each(ff_hard_fill) each(ff_pool_query) each(ff_pool_borrow) \
    each(ff_pool_ahead) \
    each(ff_screen_f32_scratch) each(ff_screen_f32) each(ff_screen_f32_sieve) \
    each(ff_screen_f32_small_fits) each(ff_screen_f32_small)                                   
/* clang-format on */

/* Functions of the files that use vector instructions directly (ff_wide.h), if other files call
 * them. Their v4 also uses AVX-512 VNNI. */
/* clang-format off */
#define EACH_WIDE(each) \
    each(ff_screen_i16_available) each(ff_screen_i16_fits) each(ff_quantised_bytes) \
    each(ff_quantised_block) each(ff_screen_i16_scratch) \
    each(ff_bonus_factor_make) \
    each(ff_bonus_cache_size) each(ff_bonus_cache_refresh) \
    each(ff_bonus_cache_rewind) \
    each(ff_bonus_cache_choose) each(ff_bonus_cache_test_bounds) each(ff_bonus_cache_observe)

/* Functions of the files that use ff_wide.h, if only these files call them. They have a name for
 * each level, but no entry in the tables below. */
#define EACH_WITHIN(each) \
    each(ff_quantise_i16) each(ff_quantise_row) \
    each(ff_quantise_factor) each(ff_quantised_factor_size) \
    each(ff_sum_rows) each(ff_gram_of_lower) each(ff_factor_from_below) \
    each(ff_bonus_factor_back) each(ff_bonus_factor_weight) each(ff_squares_of) \
    each(ff_bonus_few_make) \
    each(ff_bonus_bounds_size) each(ff_bonus_bounds_make) \
    each(ff_bound_all) \
    each(ff_bound_by_few) each(ff_bound_listed) \
    each(ff_bound_largest) each(ff_bound_missing) each(ff_bound_means) each(ff_bound_scores) \
    each(ff_not_below) each(ff_score_at_least) each(ff_score_at_least_with) \
    each(ff_compute_bounds) each(ff_most_promising) each(ff_bounds_decide) each(ff_bounded_at_least) \
    each(ff_list_candidates) \
    each(ff_not_below_score) each(ff_score_with_error) each(ff_least_by_factor) \
    each(ff_best_by_intervals)
/* clang-format on */

/* Stands for every function here: their true types are in headers that this file does not
 * include. */
typedef void function(void);

#if defined(__APPLE__)
#define SYMBOL(name) "_" #name
#define HIDE(name) ".private_extern " SYMBOL(name) "\n"
#elif defined(__ELF__)
#define SYMBOL(name) #name
#define HIDE(name) ".hidden " #name "\n.type " #name ", @function\n"
#else
#define SYMBOL(name) #name
#define HIDE(name)
#endif

/* The instruction that marks a valid target of indirect jumps, for processors that check targets
 * (CET). */
#ifdef __CET__
#define LANDING "endbr64\n"
#else
#define LANDING
#endif

#if defined(__ELF__) || defined(__APPLE__)
#define HIDDEN __attribute__((visibility("hidden")))
#else
#define HIDDEN
#endif

#define ENTRY(name)                                                                            \
    HIDDEN function name##_v4, name##_v3, name##_base;                                         \
    HIDDEN function *name##_at __attribute__((used)) = name##_base;                            \
    __asm__(".text\n.p2align 4\n.globl " SYMBOL(name) "\n" HIDE(name) SYMBOL(name) ":\n"       \
            LANDING "jmp *" SYMBOL(name##_at) "(%rip)\n");
EACH_OF(ENTRY)
EACH_WIDE(ENTRY)

    /* An entry of a table of functions; the last entry of a table has no name. Tests read
     * ff_levels. */
    typedef struct {
    const char *name; /* the function */
    function *of[FF_LEVEL_COUNT]; /* its versions, by level */
    function **at; /* the pointer that callers use */
} row;
#define ROW(name) {#name, {name##_base, name##_v3, name##_v4}, &name##_at},
#ifdef __ELF__
__attribute__((visibility("default")))
#endif
const row ff_levels[] = {EACH_OF(ROW){NULL, {NULL}, NULL}};
static const row wide[] = {EACH_WIDE(ROW){NULL, {NULL}, NULL}};

/* The level that runs now. */
static int chosen_level = FF_LEVEL_BASE;

/* Let callers of every function in a table use its version for one level. */
static void set_pointers(const row *table, int level)
{
    for (const row *each = table; each->name; each++)
        *each->at = each->of[level];
}

/* Choose the highest instruction level up to `highest` that this processor supports, and return it.
 * Functions that use vector instructions directly need AVX-512 VNNI at level v4; on a processor
 * without it they run at v3. */
int ff_levels_choose(int highest)
{
    const int supported = ff_processor_level();
    chosen_level = highest < supported ? highest : supported;
    set_pointers(ff_levels, chosen_level);
    set_pointers(wide,
                 chosen_level == FF_LEVEL_V4 && !ff_processor_vnni() ? FF_LEVEL_V3 : chosen_level);
    return chosen_level;
}

/* Return the level that runs now. */
int ff_levels_chosen(void) { return chosen_level; }

#endif
