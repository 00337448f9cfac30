/* Shared by the files of screening in 16 bits: sizes, layouts and products. */
#ifndef FF_SCREEN_I16_PARTS_H
#define FF_SCREEN_I16_PARTS_H

#include "ff_panel.h"
#include "ff_screen_i16.h"
#include "ff_wide.h"

/* Sums stay in registers only where all loops over them are unrolled. */
#ifdef __clang__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 12")
#endif
/* Vectors of LANES actions in a panel, but for a last one of 2: as many as leave sums of ROWS rows
 * in registers, of which there are 32 and 16. */
#define PANEL_VECTORS (FF_WIDE == 64 ? 4 : 2)
/* Actions that are bounded by R at a time. */
#define TOGETHER 8
/* Rows of W are scaled to at most the one length, and actions to the other, before they are
 * rounded: by Cauchy-Schwarz every product then fits 32 bits. No entry is above LARGEST, to fit
 * 16. */
#define LENGTH 32000.0
#define LENGTH_X 65000.0
#define LARGEST 32700.0

/* Entries of a row of W, theta or zeros: whole vectors. */
FF_INLINE int64_t row_of(int64_t d) { return (d + 31) & ~(int64_t)31; }
/* Groups of rows: those of W, theta, and zeros. */
FF_INLINE int64_t groups_of(int64_t d) { return (d + ROWS) / ROWS; }
FF_INLINE int64_t pairs_of(int64_t d) { return (d + 1) / 2; }
/* Four features of TOGETHER actions are side by side: a cache line. */
FF_INLINE int64_t quads_of(int64_t d) { return (d + 3) / 4; }
#define QUAD (2 * TOGETHER)
/* Vectors of all panels. */
FF_INLINE int64_t vectors_of(int64_t actions)
{
    const int64_t vectors = (actions + LANES - 1) / LANES, over = vectors % PANEL_VECTORS;
    return vectors - over + (over == 0 ? 0 : over <= 2 ? 2 : PANEL_VECTORS);
}

/* Lengths of a vector of actions, never zero, their units, and bounds on the length that rounding
 * took. */
typedef struct {
    float length[LANES], unit[LANES], lost[LANES];
} measured;

/* Length and unit of a single row, and the length that rounding took. */
typedef struct {
    double norm, unit, lost;
} quantised_row;

/* [W; theta; zeros] in 16 bits: the rows of W in units by the group, theta in its own; what
 * rounding has changed of them, as lengths. */
typedef struct {
    double unit;            /* the largest of the groups' units */
    double norm, frobenius; /* at least || |W| ||_2 and ||W||_F */
    double lost;            /* of W: ||.||_F */
    float *squares;         /* of the groups' units, the largest being 1 */
    int16_t *rows;
    quantised_row theta;
} quantised_factor;

/* The next `lines` lines of what is read soon, to be asked for; or, where there are none, of what
 * is read now, which costs nothing. */
FF_INLINE const char *lines_ahead(const ff_actions *actions, int64_t lines, const void *now)
{
    ff_ahead *ahead = actions->ahead;
    if (!ahead || ahead->at >= ahead->end)
        return (const char *)now;
    const char *at = ahead->at;
    ahead->at += 64 * lines;
    return at;
}

/* Asks for one more line of what is read soon. */
FF_INLINE void ask_ahead(const ff_actions *actions)
{
    ff_ahead *ahead = actions->ahead;
    if (ahead && ahead->at < ahead->end) {
        _mm_prefetch(ahead->at, _MM_HINT_T1);
        ahead->at += 64;
    }
}

/* acc = ROWS rows times the first `pairs` pairs of features of a panel. Meanwhile as many lines
 * from `ahead` on are asked for: one with each pair, for memory has no more of them under way at a
 * time than some 16, and whatever comes after these waits. */
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
            int32_t entries;
            memcpy(&entries, rows + r * ld + 2 * j, sizeof entries);
            const i32s w = i32_set(entries);
            for (int v = 0; v < width; v++)
                MULTIPLY(sum[r][v], w, panel[j * width + v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < width; v++)
            acc[r][v] = sum[r][v];
}

/* ||R x||^2 of the actions of a panel, in largest units of a lower triangular R, d x d, and units of
 * the actions. */
FF_INLINE void squares_i16(const quantised_factor *r, int64_t d, const i32s *panel, int64_t width,
                           const ff_actions *actions, f32s *restrict square)
{
    const int64_t ld = row_of(d), all = pairs_of(d);
    i32s acc[ROWS][PANEL_VECTORS];
    for (int v = 0; v < PANEL_VECTORS; v++)
        square[v] = f32_set(0.0f);
    for (int64_t i = 0; i < d; i += ROWS) {
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

/* W and theta (NULL: none) in 16 bits, into a buffer of ff_quantised_factor_size(). */
quantised_factor ff_quantise_factor(const double *restrict w, const double *restrict theta,
                                    int64_t d, double *restrict buffer);
int64_t ff_quantised_factor_size(int64_t d);

/* A row of d into `to` (16-byte aligned, row_of(d) entries). */
quantised_row ff_quantise_row(const double *restrict row, int64_t d, int16_t *restrict to);

#endif
