/* Symbols (ff_linalg.h, ff_scores.h): K actions x of d features. V is the regularised Gram matrix,
 * W its inverse factor, theta the estimate. beta and gamma are the factors of ||W x|| and of
 * ||V^-1 x|| in a score. */
#include "ff_screen_f32_small.h"

#include <math.h>

#include "ff_screen_f32_parts.h"

/* If d is a constant, a panel stays in registers and all loops are unrolled; short loops cost most
 * at their ends. Time relative to the general code, measured with K = 100: 0.43 at d = 5, 0.58 at
 * 10, 0.73 at 15, 1 at 20. Every dimension adds much code, so only the two that most figures use
 * are unrolled. */
#define LARGEST_D 10

#if defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 16")
/* Make the compiler forget the value of pointer w, so that it reads the memory again. Otherwise it
 * loads entries before a loop and fills the stack with vectors. */
#define RELOAD(w) __asm__("" : "+r"(w))

/* Number of vectors of actions, and of rows of W, that are multiplied together: few enough that the
 * sums stay in registers. AVX-512 reads an entry of W for all lanes as part of a product; elsewhere
 * the entry is loaded first, and two vectors share this load. */
#define VECTORS_AT_ONCE (FF_BYTES == 64 ? 1 : 2)
#define BLOCK 3

typedef float half32 __attribute__((vector_size(FF_BYTES / 2)));
typedef int32_t half_masks __attribute__((vector_size(FF_BYTES / 2)));

/* For each lane, the largest values so far; see ff_extremes_f32. */
typedef struct {
    lanes32 score, rank, width, second, length;
} extremes;

/* Factors beta and gamma of the bonuses, and the factor on the bonus in a ranking. */
typedef struct {
    float beta, gamma, ranking;
} factors;

/* Return p where p > q, else q, lane by lane; NaN is never larger. */
FF_INLINE lanes32 larger(lanes32 p, lanes32 q)
{
    const masks32 above = p > q;
    return (lanes32)(((masks32)p & above) | ((masks32)q & ~above));
}

/* Return the largest lane. */
FF_INLINE double largest_lane(lanes32 lane)
{
    half32 half[2];
    memcpy(half, &lane, sizeof half);
    const half_masks above = half[0] > half[1];
    half[0] = (half32)(((half_masks)half[0] & above) | ((half_masks)half[1] & ~above));
    float top[WIDTH32 / 2];
    memcpy(top, half, sizeof top);
    for (int n = WIDTH32 / 4; n > 0; n /= 2)
        for (int a = 0; a < n; a++)
            top[a] = top[a + n] > top[a] ? top[a + n] : top[a];
    return (double)top[0];
}

/* Score the actions of `vectors` vectors from `panel` on; features are `stride` floats apart. w:
 * the rows of W, then theta. bonus: NULL, or see ff_screen_f32_small. Products have BLOCK rows at a
 * time, so that each entry of W and each feature that is loaded serves several products. */
FF_INLINE void score_vectors(const float *restrict panel, int64_t stride, const float *restrict w,
                             factors f, const int d, const int vectors, const int has_second,
                             float *restrict score, float *restrict bonus,
                             extremes *restrict so_far)
{
    lanes32 z[LARGEST_D][VECTORS_AT_ONCE], sum[BLOCK][VECTORS_AT_ONCE],
        square[2][VECTORS_AT_ONCE], second[2][VECTORS_AT_ONCE], length[VECTORS_AT_ONCE],
        mean[VECTORS_AT_ONCE];
    UNROLLED for (int v = 0; v < vectors; v++)
    {
        square[0][v] = square[1][v] = second[0][v] = second[1][v] = (lanes32){0};
        length[v] = mean[v] = (lanes32){0};
    }
    /* Rows of W x, and the sum of their squares; after the last row the mean. */
    UNROLLED for (int first = 0; first <= d; first += BLOCK)
    {
        const float *x = panel;
        RELOAD(w);
        RELOAD(x);
        UNROLLED for (int j = 0; j < (first + BLOCK < d ? first + BLOCK : d); j++)
        {
            UNROLLED for (int r = 0; r < BLOCK; r++)
                UNROLLED for (int v = 0; v < vectors; v++)
                    if (first + r <= d && j <= first + r) {
                        const lanes32 term =
                            w[(first + r) * d + j] * *(const loose32 *)(x + v * WIDTH32);
                        sum[r][v] = j == 0 ? term : sum[r][v] + term;
                    }
            if (first + BLOCK > d)
                UNROLLED for (int v = 0; v < vectors; v++)
                {
                    const lanes32 feature = *(const loose32 *)(x + v * WIDTH32);
                    length[v] += feature * feature;
                }
            x += stride;
            RELOAD(x);
        }
        UNROLLED for (int r = 0; r < BLOCK; r++)
            UNROLLED for (int v = 0; v < vectors; v++)
            {
                if (first + r < d) {
                    z[first + r][v] = sum[r][v];
                    square[r & 1][v] += sum[r][v] * sum[r][v];
                } else if (first + r == d)
                    mean[v] = sum[r][v];
            }
    }
    /* Rows of W'W x. */
    UNROLLED for (int first = 0; has_second && first < d; first += BLOCK)
    {
        RELOAD(w);
        UNROLLED for (int i = first; i < d; i++)
            UNROLLED for (int r = 0; r < BLOCK; r++)
                UNROLLED for (int v = 0; v < vectors; v++)
                    if (first + r <= i) {
                        const lanes32 term = w[i * d + first + r] * z[i][v];
                        sum[r][v] = i == first + r ? term : sum[r][v] + term;
                    }
        UNROLLED for (int r = 0; r < BLOCK; r++)
            UNROLLED for (int v = 0; v < vectors; v++)
                if (first + r < d)
                    second[r & 1][v] += sum[r][v] * sum[r][v];
    }
    UNROLLED for (int v = 0; v < vectors; v++)
    {
        const lanes32 squares = square[0][v] + square[1][v];
        lanes32 bonuses = f.beta * roots_of(squares);
        if (has_second) {
            const lanes32 seconds = second[0][v] + second[1][v];
            bonuses += f.gamma * roots_of(seconds);
            so_far->second = larger(seconds, so_far->second);
        }
        lanes32 scores = mean[v] + bonuses;
        so_far->score = larger(scores, so_far->score);
        so_far->width = larger(squares, so_far->width);
        so_far->length = larger(length[v], so_far->length);
        if (bonus) {
            *(loose32 *)(bonus + v * WIDTH32) = bonuses;
            scores = mean[v] + f.ranking * bonuses;
            so_far->rank = larger(scores, so_far->rank);
        }
        *(loose32 *)(score + v * WIDTH32) = scores;
    }
}

/* Compute the scores (or rankings and bonuses) of all actions. Returns the largest values of each
 * lane. */
FF_INLINE extremes score_all(const ff_actions *actions, const float *w, factors f, const int d,
                             const int has_second, float *restrict score, float *restrict bonus)
{
    const float *x = (const float *)actions->x;
    const int64_t count = actions->actions, stride = actions->feature_stride;
    const int vectors = VECTORS_AT_ONCE;
    extremes so_far = {(lanes32){0} - INFINITY, (lanes32){0} - INFINITY, (lanes32){0},
                       (lanes32){0}, (lanes32){0}};
    int64_t first = 0;
    for (; first + vectors * WIDTH32 <= count; first += vectors * WIDTH32) {
        RELOAD(w);
        score_vectors(x + first, stride, w, f, d, vectors, has_second, score + first,
                      bonus ? bonus + first : NULL, &so_far);
    }
    for (; first < count; first += WIDTH32) {
        /* The last vector overlaps the previous one instead of running past the end. */
        const int64_t position = first + WIDTH32 <= count ? first : count - WIDTH32;
        RELOAD(w);
        score_vectors(x + position, stride, w, f, d, 1, has_second, score + position,
                      bonus ? bonus + position : NULL, &so_far);
    }
    return so_far;
}

/* Return 1 if the actions have a dimension with unrolled code, and can be read in place. */
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d)
{
    return (d == 5 || d == LARGEST_D) && is_readable_in_place(actions);
}

/* Compute the approximate scores <x, theta> + b of all actions into score (K), where b is the
 * bonus. If bonus (K) is not NULL, compute the rankings <x, theta> + ranking b into score instead,
 * and b into bonus. Returns the largest score, ranking and squared norms of all actions. Every call
 * of score_all has constants for d and has_second, so that its loops are unrolled. */
ff_extremes_f32 ff_screen_f32_small(const ff_actions *actions, const float *w, float beta,
                                    float gamma, float ranking, int64_t d, float *restrict score,
                                    float *restrict bonus)
{
    const factors f = {beta, gamma, ranking};
    extremes all;
    if (d == 5)
        all = gamma != 0.0f ? score_all(actions, w, f, 5, 1, score, bonus)
                            : score_all(actions, w, f, 5, 0, score, bonus);
    else
        all = gamma != 0.0f ? score_all(actions, w, f, LARGEST_D, 1, score, bonus)
                            : score_all(actions, w, f, LARGEST_D, 0, score, bonus);
    return (ff_extremes_f32){largest_lane(all.score), largest_lane(all.rank),
                             largest_lane(all.width), largest_lane(all.second),
                             largest_lane(all.length)};
}
#else
/* Return 0: without vector types there is no unrolled code. */
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d) { return 0; }

/* Return zeros. It is not called, because no actions fit. */
ff_extremes_f32 ff_screen_f32_small(const ff_actions *actions, const float *w, float beta,
                                    float gamma, float ranking, int64_t d, float *restrict score,
                                    float *restrict bonus)
{
    return (ff_extremes_f32){0.0, 0.0, 0.0, 0.0, 0.0};
}
#endif
