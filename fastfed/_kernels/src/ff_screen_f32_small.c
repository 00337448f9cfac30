#include "ff_screen_f32_small.h"

#include <math.h>

#include "ff_screen_f32_parts.h"

/* If d is a constant, a panel stays in registers and all loops are unrolled; short loops cost most
 * at their ends. Time relative to the general code, measured with K = 100: 0.43 at d = 5, 0.58 at
 * 10, 0.73 at 15, 1 at 20. Every dimension adds much code, so these are the two that most figures
 * use. */
#define LARGEST_D 10

#if defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 16")
/* Force w's memory to be read again: otherwise the compiler keeps it over a loop and fills the
 * stack with vectors. */
#define RELOAD(w) __asm__("" : "+r"(w))

/* Vectors of actions that are processed together. With 16 registers the features of one vector fill
 * them. */
#define VECTORS_AT_ONCE (FF_BYTES == 64 ? 2 : 1)

typedef int32_t masks32 __attribute__((vector_size(FF_BYTES)));
typedef float half32 __attribute__((vector_size(FF_BYTES / 2)));
typedef int32_t half_masks __attribute__((vector_size(FF_BYTES / 2)));

/* By lane, over the panels so far: the largest approximate score, and the largest squares of ||W
 * x|| and ||x||. */
typedef struct {
    lanes32 score, width, length;
} extremes;

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
 * the rows of W, then theta. */
FF_INLINE void score_vectors(const float *restrict panel, int64_t stride, const float *restrict w,
                             float beta, const int d, const int vectors, float *restrict score,
                             extremes *restrict so_far)
{
    lanes32 x[LARGEST_D][VECTORS_AT_ONCE], square[2][VECTORS_AT_ONCE], length[VECTORS_AT_ONCE],
        mean[VECTORS_AT_ONCE];
    /* Load the features; compute ||x||^2 and the mean. */
    UNROLLED for (int v = 0; v < vectors; v++)
    {
        square[0][v] = square[1][v] = length[v] = mean[v] = (lanes32){0};
        UNROLLED for (int j = 0; j < d; j++)
        {
            x[j][v] = *(const loose32 *)(panel + j * stride + v * WIDTH32);
            length[v] += x[j][v] * x[j][v];
            mean[v] += w[d * d + j] * x[j][v];
        }
    }
    /* Rows of W x, and the sum of their squares. */
    UNROLLED for (int i = 0; i < d; i++)
        UNROLLED for (int v = 0; v < vectors; v++)
        {
            lanes32 z = (lanes32){0};
            UNROLLED for (int j = 0; j <= i; j++)
                z += w[i * d + j] * x[j][v];
            square[i & 1][v] += z * z;
        }
    UNROLLED for (int v = 0; v < vectors; v++)
    {
        const lanes32 squares = square[0][v] + square[1][v];
        float root[WIDTH32] FF_ALIGNED;
        memcpy(root, &squares, sizeof root);
        for (int a = 0; a < WIDTH32; a++)
            root[a] = sqrtf(root[a]);
        lanes32 width;
        memcpy(&width, root, sizeof width);
        const lanes32 scores = mean[v] + beta * width;
        *(loose32 *)(score + v * WIDTH32) = scores;
        so_far->score = larger(scores, so_far->score);
        so_far->width = larger(squares, so_far->width);
        so_far->length = larger(length[v], so_far->length);
    }
}

/* Score all actions into `score`; return the extremes. */
FF_INLINE extremes score_all(const ff_actions *actions, const float *w, float beta,
                             const int d, float *restrict score)
{
    const float *x = (const float *)actions->x;
    const int64_t count = actions->actions, stride = actions->feature_stride;
    extremes so_far = {(lanes32){0} - INFINITY, (lanes32){0}, (lanes32){0}};
    int64_t first = 0;
    for (; first + VECTORS_AT_ONCE * WIDTH32 <= count; first += VECTORS_AT_ONCE * WIDTH32) {
        RELOAD(w);
        score_vectors(x + first, stride, w, beta, d, VECTORS_AT_ONCE, score + first, &so_far);
    }
    for (; first < count; first += WIDTH32) {
        /* The last vector overlaps the previous one instead of running past the end. */
        const int64_t position = first + WIDTH32 <= count ? first : count - WIDTH32;
        RELOAD(w);
        score_vectors(x + position, stride, w, beta, d, 1, score + position, &so_far);
    }
    return so_far;
}

int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d)
{
    return (d == 5 || d == LARGEST_D) && is_readable_in_place(actions);
}

/* List the actions that may have the largest score, with unrolled code for small dimensions. */
int64_t ff_screen_f32_small(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, int64_t d,
                            double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    const int64_t padded = (count + SCREEN_PANEL - 1) / SCREEN_PANEL * SCREEN_PANEL;
    float *score = (float *)aligned(scratch);
    float w32[LARGEST_D * (LARGEST_D + 1) + 8] FF_ALIGNED;
    double lane[8] FF_ALIGNED = {0};
    const double w_norm = factor_to_float32(w, d, w32);
    to_float32(theta, d, w32 + d * d, lane);
    const double theta_norm = sqrt(sum_of(lane)), slack = slack_of(d, theta_norm);
    const extremes so_far = d == 5 ? score_all(actions, w32, (float)beta, 5, score)
                                   : score_all(actions, w32, (float)beta, LARGEST_D, score);
    for (int64_t a = count; a < padded; a++)
        score[a] = -INFINITY;
    const double length = sqrt(largest_lane(so_far.length)) * (1.0 + slack) + 0x1p-60;
    const double width = sqrt(largest_lane(so_far.width));
    const double error =
        error_of(beta, 0.0, slack, theta_norm, w_norm, length, width, 0.0);
    return list_survivors(score, (float)(largest_lane(so_far.score) - 2.02 * error), count,
                          candidates);
}
#else
/* Return 1 if the actions have a dimension with unrolled code, and can be read in place. */
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d) { return 0; }

int64_t ff_screen_f32_small(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, int64_t d,
                            double *restrict scratch, int64_t *restrict candidates)
{
    return 0;
}
#endif
