/* Products of rows of a matrix with a panel of actions: the inner loop of scores and screening. */
#ifndef FF_PANEL_H
#define FF_PANEL_H

#include <math.h>

#include "ff_vectors.h"

/* Number of actions in a panel. A panel (d, PANEL) holds feature j of its actions side by side.
 * Each action has its own lane of arithmetic, so its result depends neither on K nor on the
 * layout. */
#define PANEL 8
/* Rows of the matrix that are multiplied together, so that every load of the panel serves ROWS
 * products. */
#define ROWS 6

#if defined(__GNUC__)
#define VECTORS32 2
#else
#define VECTORS32 32
#endif
#define VECTORS (PANEL / WIDTH)
/* Number of actions in a panel of screening: two vectors, so that with ROWS rows the sums fill
 * twelve of sixteen registers. */
#define SCREEN_PANEL (VECTORS32 * WIDTH32)

/* Define a function: sum[r] = row r of W (rows are ld apart) times the panel, over `columns`
 * columns. Columns past the diagonal of a row are zeros of W and do not change the sum. One
 * definition for every element type and number of rows. */
#define PRODUCT(name, element, vector, vectors, n)                                             \
    FF_INLINE void name(const element *restrict w, int64_t ld, int64_t columns,                \
                        const element *restrict panel, vector *restrict sum)                   \
    {                                                                                          \
        const vector *restrict p = (const vector *)panel;                                      \
        vector acc[n][vectors];                                                                \
        /* Element by element: a memset can keep the sums from registers. */                   \
        for (int r = 0; r < n; r++)                                                            \
            for (int v = 0; v < vectors; v++)                                                  \
                acc[r][v] = (vector){0};                                                       \
        for (int64_t j = 0; j < columns; j++)                                                  \
            for (int r = 0; r < n; r++)                                                        \
                for (int v = 0; v < vectors; v++)                                              \
                    acc[r][v] += w[r * ld + j] * p[j * vectors + v];                           \
        memcpy(sum, acc, sizeof acc);                                                          \
    }

/* Return p rounded up to a multiple of 64 bytes. */
FF_INLINE double *aligned(double *p)
{
    return (double *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

/* Return an upper bound on || |W| ||_2. total: sum of the squared entries; diagonal: sum of the
 * squared diagonal entries; largest: the largest diagonal entry. The bound is the smaller of the
 * Frobenius norm and the largest diagonal entry plus the Frobenius norm of the other entries. The
 * second is much smaller while W is close to a multiple of I. */
FF_INLINE double norm_bound(double total, double diagonal, double largest, int64_t d)
{
    /* The sums have partial sums of about d^2 / 16 terms. Cancellation can make `off_diagonal` too
     * small by d^2 2^-56 of the total, even negative. */
    const double off_diagonal = total > diagonal ? total - diagonal : 0.0, frobenius = sqrt(total);
    const double split = largest + sqrt(off_diagonal + (1e-12 + (double)(d * d) * 0x1p-56) * total);
    return split < frobenius ? split : frobenius;
}

/* The numbers within a margin of the largest: a lower bound on them, their number, and the sum of
 * their indices. */
typedef struct {
    double smallest;
    int64_t count, index_sum;
} near_top;

/* Return the largest of k numbers less a margin, how many numbers reach that value, and the sum of
 * their indices. If one number reaches it, the sum is its index. The margin is `absolute`, or
 * `relative` times the largest number if that is more. */
FF_INLINE near_top near_top_of(const double *restrict numbers, int64_t k, double absolute,
                               double relative)
{
    int64_t whole = 0;
    double largest = -INFINITY;
    near_top found = {0.0, 0, 0};
#if defined(__GNUC__)
    whole = k - k % PANEL;
    lanes top[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        top[v] = (lanes){0} - INFINITY;
    /* The largest number, in vectors. */
    for (int64_t a = 0; a < whole; a += PANEL)
        for (int v = 0; v < VECTORS; v++) {
            const lanes next = *(const loose *)(numbers + a + v * WIDTH);
            const masks above = next > top[v];
            top[v] = (lanes)(((masks)next & above) | ((masks)top[v] & ~above));
        }
    for (int l = 0; l < PANEL; l++)
        largest = top[l / WIDTH][l % WIDTH] > largest ? top[l / WIDTH][l % WIDTH] : largest;
#endif
    for (int64_t a = whole; a < k; a++)
        largest = numbers[a] > largest ? numbers[a] : largest;
    const double part = relative * fabs(largest);
    found.smallest = largest - (part > absolute ? part : absolute);
#if defined(__GNUC__)
    /* Count the numbers within the margin, and add up their indices. */
    masks counts = {0}, sums = {0}, index;
    for (int l = 0; l < WIDTH; l++)
        index[l] = l;
    for (int64_t a = 0; a < whole; a += WIDTH, index += WIDTH) {
        const masks within = *(const loose *)(numbers + a) >= found.smallest;
        counts -= within;
        sums += index & within;
    }
    for (int l = 0; l < WIDTH; l++) {
        found.count += counts[l];
        found.index_sum += sums[l];
    }
#endif
    for (int64_t a = whole; a < k; a++) {
        found.count += numbers[a] >= found.smallest;
        found.index_sum += numbers[a] >= found.smallest ? a : 0;
    }
    return found;
}

#endif
