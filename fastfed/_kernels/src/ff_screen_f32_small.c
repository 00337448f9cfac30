#include "ff_screen_f32_small.h"

#include <math.h>

#include "ff_screen_f32_parts.h"

/* With d known, a panel stays in registers and no loop is left: short ones cost most where they
 * end. Measured with K = 100, of the general code's time: 0.43 at d = 5, 0.58 at 10, 0.73 at 15,
 * none saved at 20. Every dimension is much code, so these are the two that most figures have. */
#define KNOWN 10

#if defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 16")
/* What w points at is read anew: kept over a loop it would fill the stack with whole vectors. */
#define AGAIN(w) __asm__("" : "+r"(w))

/* Vectors of actions side by side: where registers are sixteen, one vector's features fill them. */
#define SIDE (FF_BYTES == 64 ? 2 : 1)

typedef int32_t masks32 __attribute__((vector_size(FF_BYTES)));
typedef float half32 __attribute__((vector_size(FF_BYTES / 2)));
typedef int32_t half_masks __attribute__((vector_size(FF_BYTES / 2)));

/* Lane by lane over the panels so far: the largest approximate score, and the largest squares of
 * ||W x|| and ||x||. */
typedef struct {
    lanes32 score, width, length;
} extremes;

/* Lane by lane p where it is above q, else q: what is not a number never is. */
FF_INLINE lanes32 larger(lanes32 p, lanes32 q)
{
    const masks32 above = p > q;
    return (lanes32)(((masks32)p & above) | ((masks32)q & ~above));
}

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

/* The actions of `vectors` vectors from `panel` on, features `stride` floats apart; w: the rows of
 * W, theta. */
FF_INLINE void score_vectors(const float *restrict panel, int64_t stride, const float *restrict w,
                             float beta, const int d, const int vectors, float *restrict score,
                             extremes *restrict seen)
{
    lanes32 x[KNOWN][SIDE], square[2][SIDE], length[SIDE], mean[SIDE];
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
        const lanes32 q = square[0][v] + square[1][v];
        float root[WIDTH32] FF_ALIGNED;
        memcpy(root, &q, sizeof root);
        for (int a = 0; a < WIDTH32; a++)
            root[a] = sqrtf(root[a]);
        lanes32 width;
        memcpy(&width, root, sizeof width);
        const lanes32 made = mean[v] + beta * width;
        *(loose32 *)(score + v * WIDTH32) = made;
        seen->score = larger(made, seen->score);
        seen->width = larger(q, seen->width);
        seen->length = larger(length[v], seen->length);
    }
}

FF_INLINE extremes score_all(const ff_actions *actions, const float *w, float beta,
                             const int d, float *restrict score)
{
    const float *x = (const float *)actions->x;
    const int64_t count = actions->actions, stride = actions->feature_stride;
    extremes seen = {(lanes32){0} - INFINITY, (lanes32){0}, (lanes32){0}};
    int64_t first = 0;
    for (; first + SIDE * WIDTH32 <= count; first += SIDE * WIDTH32) {
        AGAIN(w);
        score_vectors(x + first, stride, w, beta, d, SIDE, score + first, &seen);
    }
    for (; first < count; first += WIDTH32) {
        /* The last ones are scored twice instead of running over. */
        const int64_t at = first + WIDTH32 <= count ? first : count - WIDTH32;
        AGAIN(w);
        score_vectors(x + at, stride, w, beta, d, 1, score + at, &seen);
    }
    return seen;
}

int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d)
{
    return (d == 5 || d == KNOWN) && lies_ready(actions);
}

int64_t ff_screen_f32_small(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, int64_t d,
                            double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    const int64_t padded = (count + SCREEN_PANEL - 1) / SCREEN_PANEL * SCREEN_PANEL;
    float *score = (float *)aligned(scratch);
    float w32[KNOWN * (KNOWN + 1) + 8] FF_ALIGNED;
    double lane[8] FF_ALIGNED = {0};
    const double w_norm = narrow_factor(w, d, w32);
    narrow(theta, d, w32 + d * d, lane);
    const double theta_norm = sqrt(sum_of(lane)), slack = slack_of(d, theta_norm);
    const extremes seen = d == 5 ? score_all(actions, w32, (float)beta, 5, score)
                                 : score_all(actions, w32, (float)beta, KNOWN, score);
    for (int64_t a = count; a < padded; a++)
        score[a] = -INFINITY;
    const double length = sqrt(largest_lane(seen.length)) * (1.0 + slack) + 0x1p-60;
    const double width = sqrt(largest_lane(seen.width));
    const double error =
        error_of(beta, 0.0, slack, theta_norm, w_norm, length, width, 0.0);
    return survivors(score, (float)(largest_lane(seen.score) - 2.02 * error), count, candidates);
}
#else
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d) { return 0; }

int64_t ff_screen_f32_small(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, int64_t d,
                            double *restrict scratch, int64_t *restrict candidates)
{
    return 0;
}
#endif
