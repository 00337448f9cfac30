/* Shared by the files of screening in 16 bits: sizes, layouts and products. */
#ifndef FF_SCREEN_I16_PARTS_H
#define FF_SCREEN_I16_PARTS_H

#include "ff_panel.h"
#include "ff_screen_i16.h"
#include "ff_wide.h"

/* Sums stay in registers only if all loops over them are unrolled. */
#ifdef __clang__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 12")
#endif
/* Number of vectors of LANES actions in a panel; the last panel may have 2. With more, the sums of
 * ROWS rows would not fit into the registers (32 or 16). */
#define PANEL_VECTORS (FF_WIDE == 64 ? 4 : 2)
/* Number of listed actions that are bounded by R together (ff_bound_listed). */
#define GATHERED 8
/* Before rounding, rows of W are scaled to at most length LENGTH, and actions to LENGTH_X. So every
 * product of a row with an action fits into 32 bits by Cauchy-Schwarz: LENGTH LENGTH_X is 3 percent
 * below 2^31. No entry is above LARGEST, so it fits into 16 bits. */
#define LENGTH 32000.0
#define LENGTH_X 65000.0
#define LARGEST 32700.0

/* Return the number of entries of a row of W, theta or zeros: d rounded up to whole vectors. */
FF_INLINE int64_t row_of(int64_t d) { return (d + 31) & ~(int64_t)31; }
/* Return the number of groups of ROWS rows that hold the rows of W, theta, and zeros. */
FF_INLINE int64_t groups_of(int64_t d) { return (d + ROWS) / ROWS; }
/* Return the number of pairs of features. */
FF_INLINE int64_t pairs_of(int64_t d) { return (d + 1) / 2; }
/* Return the number of groups of four features; four features of GATHERED actions fill a cache
 * line. */
FF_INLINE int64_t quads_of(int64_t d) { return (d + 3) / 4; }
#define QUAD (2 * GATHERED)
/* Return the number of vectors in all panels. */
FF_INLINE int64_t vectors_of(int64_t actions)
{
    const int64_t vectors = (actions + LANES - 1) / LANES, extra = vectors % PANEL_VECTORS;
    return vectors - extra + (extra == 0 ? 0 : extra <= 2 ? 2 : PANEL_VECTORS);
}

/* Norms of a vector of actions: lengths (never zero), units (the value of 1 in 16 bits), and bounds
 * on the lengths of the rounding errors. */
typedef struct {
    float length[LANES], unit[LANES], lost[LANES];
} action_norms;

/* Length of a single row, its unit (the value of 1 in 16 bits), and the length of its rounding
 * errors. */
typedef struct {
    double norm, unit, lost;
} quantised_row;

/* [W; theta; zeros] in 16 bits. The rows of W have one unit for each group, and theta has a
 * separate one. */
typedef struct {
    double unit;            /* the largest unit of the groups */
    double norm, frobenius; /* upper bounds on || |W| ||_2 and ||W||_F */
    double lost;            /* ||.||_F of the rounding errors of W */
    float *squares;         /* (groups): squared units of the groups, relative to the largest */
    int16_t *rows;          /* (ROWS groups, row_of(d)) */
    quantised_row theta;    /* norms of theta */
} quantised_factor;

/* Return the address of the next `lines` cache lines to prefetch, and advance. If there is nothing
 * to prefetch, return `now`, memory that is being read anyway, which costs nothing. */
FF_INLINE const char *lines_ahead(const ff_actions *actions, int64_t lines, const void *now)
{
    ff_ahead *ahead = actions->ahead;
    if (!ahead || ahead->at >= ahead->end)
        return (const char *)now;
    const char *address = ahead->at;
    ahead->at += 64 * lines;
    return address;
}

/* Prefetch one more line of what will be read soon. */
FF_INLINE void prefetch_line(const ff_actions *actions)
{
    ff_ahead *ahead = actions->ahead;
    if (ahead && ahead->at < ahead->end) {
        _mm_prefetch(ahead->at, _MM_HINT_T1);
        ahead->at += 64;
    }
}

/* Compute acc: ROWS rows times the first `pairs` pairs of features of a panel of `width` vectors.
 * An instruction multiplies pairs of 16-bit numbers and adds both products to 32 bits. Meanwhile
 * prefetch `pairs` cache lines from `ahead` on, one with each pair of features. Memory handles only
 * some 16 requests at a time, so prefetching all lines at once would make other loads wait. */
FF_INLINE void product_i16(const int16_t *restrict rows, int64_t ld, int64_t pairs,
                           const i32s *restrict panel, const int width, const char *ahead,
                           i32s (*restrict acc)[PANEL_VECTORS])
{
    i32s sum[ROWS][PANEL_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < width; v++)
            sum[r][v] = i32_set(0);
    for (int64_t j = 0; j < pairs; j++) {
        _mm_prefetch(ahead + 64 * j, _MM_HINT_T1);
        for (int r = 0; r < ROWS; r++) {
            int32_t pair_w;
            memcpy(&pair_w, rows + r * ld + 2 * j, sizeof pair_w);
            const i32s w = i32_set(pair_w);
            for (int v = 0; v < width; v++)
                MULTIPLY(sum[r][v], w, panel[j * width + v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < width; v++)
            acc[r][v] = sum[r][v];
}

/* Compute ||R x||^2 of the actions of a panel of `width` vectors into square (PANEL_VECTORS), in
 * squared units of the factor and of the actions; R is d x d, lower triangular. */
FF_INLINE void squares_i16(const quantised_factor *r, int64_t d, const i32s *panel, int64_t width,
                           const ff_actions *actions, f32s *restrict square)
{
    const int64_t ld = row_of(d), all = pairs_of(d);
    i32s acc[ROWS][PANEL_VECTORS];
    for (int v = 0; v < PANEL_VECTORS; v++)
        square[v] = f32_set(0.0f);
    for (int64_t i = 0; i < d; i += ROWS) {
        /* These rows end before column i + ROWS. */
        const int64_t reach = (i + ROWS + 1) / 2, pairs = reach < all ? reach : all;
        const char *ahead = lines_ahead(actions, pairs, panel);
        if (width == PANEL_VECTORS)
            product_i16(r->rows + i * ld, ld, pairs, panel, PANEL_VECTORS, ahead, acc);
        else
            product_i16(r->rows + i * ld, ld, pairs, panel, 2, ahead, acc);
        const f32s unit = f32_set(r->squares[i / ROWS]);
        for (int64_t v = 0; v < width; v++) {
            f32s sum = f32_set(0.0f);
            for (int row = 0; row < ROWS; row++) {
                const f32s z = f32_of(acc[row][v]);
                sum = f32_fma(z, z, sum);
            }
            square[v] = f32_fma(sum, unit, square[v]);
        }
    }
}

/* Quantise W and theta (NULL: none) to 16 bits, into a buffer of ff_quantised_factor_size()
 * doubles. */
quantised_factor ff_quantise_factor(const double *restrict w, const double *restrict theta,
                                    int64_t d, double *restrict buffer);
int64_t ff_quantised_factor_size(int64_t d);

/* Quantise a row (d) into `to` (row_of(d) entries, 16-byte aligned). */
quantised_row ff_quantise_row(const double *restrict row, int64_t d, int16_t *restrict to);

#endif
