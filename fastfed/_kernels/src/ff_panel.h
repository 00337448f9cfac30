/* Products of rows of a matrix with a panel of actions: the inner loop of scores and screening. */
#ifndef FF_PANEL_H
#define FF_PANEL_H

#include <math.h>

#include "ff_vectors.h"

/* A panel holds feature j of so many actions side by side, so each action's arithmetic is its
 * own lane and depends neither on K nor on layout. */
#define PANEL 8
/* Rows taken together, so that every panel load serves that many products. */
#define ROWS 6

#if defined(__GNUC__)
#define VECTORS32 2
#else
#define VECTORS32 32
#endif
#define VECTORS (PANEL / WIDTH)
/* Screening: two vectors, so that with ROWS rows its sums fill twelve registers of sixteen. */
#define SCREEN_PANEL (VECTORS32 * WIDTH32)

/* sum[r] = rows r of W (ld apart) times the panel. The columns past a row's own diagonal are
 * zeros of W and add exactly nothing. One definition for every element type and row count. */
#define PRODUCT(name, element, vector, vectors, n)                                             \
    FF_INLINE void name(const element *restrict w, int64_t ld, int64_t columns,                \
                        const element *restrict panel, vector *restrict sum)                   \
    {                                                                                          \
        const vector *restrict p = (const vector *)panel;                                      \
        vector acc[n][vectors];                                                                \
        /* One by one: a memset of so many bytes can keep them from registers. */              \
        for (int r = 0; r < n; r++)                                                            \
            for (int v = 0; v < vectors; v++)                                                  \
                acc[r][v] = (vector){0};                                                       \
        for (int64_t j = 0; j < columns; j++)                                                  \
            for (int r = 0; r < n; r++)                                                        \
                for (int v = 0; v < vectors; v++)                                              \
                    acc[r][v] += w[r * ld + j] * p[j * vectors + v];                           \
        memcpy(sum, acc, sizeof acc);                                                          \
    }

FF_INLINE double *aligned(double *p)
{
    return (double *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

/* At least || |W| ||_2, of the sums of its squared entries and of those on the diagonal, and the
 * largest of these: the smaller of the Frobenius norm and, far below it while W is near a multiple
 * of I, the largest diagonal entry plus the Frobenius norm of the rest. */
FF_INLINE double norm_bound(double total, double diagonal, double largest, int64_t d)
{
    /* The sums have partial ones of about d^2 / 16 terms: cancellation can take rest d^2 2^-56 of
     * the total too low, and below zero. */
    const double rest = total > diagonal ? total - diagonal : 0.0, frobenius = sqrt(total);
    const double split = largest + sqrt(rest + (1e-12 + (double)(d * d) * 0x1p-56) * total);
    return split < frobenius ? split : frobenius;
}

#endif
