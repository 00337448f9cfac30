#include "ff_bonus_principal.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_bonus_few.h"
#include "ff_row_sums.h"

/* Steps of Lanczos: so much more leaves them time. */
#define STEPS 8
/* L'L and `rest` grow by so much of `rest`, so that there is a Cholesky factor. */
#define MORE 1e-4
/* Vectors of coordinates of theta that are told together. */
#define TOLD 4

int64_t ff_bonus_principal_size(void) { return ff_quantised_factor_size(FF_PRINCIPAL_RANK); }

/* R'Z = B in place of B: n rows of `width` columns, R lower triangular, so from the last row up. */
static void solve(const double *restrict r, int64_t n, int64_t width, double *restrict b)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        double *row = b + i * width;
        ff_sum_rows(b, width, r + i, 0, n, 1, i + 1, n, width, row, -1.0, row);
        const double scale = 1.0 / r[i * n + i];
        for (int64_t j = 0; j < width; j++)
            row[j] *= scale;
    }
}

/* S += F'F, of `rank` rows of d, its lower triangle. */
static void add_square(double *restrict s, const double *restrict f, int64_t rank, int64_t d)
{
    const int64_t step = 6;
    for (int64_t i = 0; i < d; i += step) {
        const int64_t rows = d - i < step ? d - i : step;
        ff_sum_rows(f, d, f + i, 1, d, rows, 0, rank, i + rows, s + i * d, 1.0, s + i * d);
    }
}

/* S = rest I + by Q'Q - M, its lower triangle. */
static void complement(const ff_principal *k, const double *restrict m, double rest, double by,
                       int64_t d, double *restrict s)
{
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j <= i; j++)
            s[i * d + j] = by * k->projector[i * d + j] - m[i * d + j];
        s[i * d + i] += rest;
    }
}

/* Where A = rest I + t Q'Q - M is positive definite, (Q A^-1 Q')^-1 = (Q (rest I - M)^-1 Q')^-1 + t
 * I.
 *
 * Rounding, u = 2^-53, n = d + rank + 16, T = trace R'R: M, F = L Q and S are off by less than n u
 * times what the traces of their squares sum to, and a Cholesky factor takes 1.01 n u more of S
 * (Higham 2002, Theorem 10.3); the projector is Q'Q but for n u, and the rows of Q are orthonormal
 * but for as much. 64 rank times all that is taken off S before it is factored. */
ff_bonus_principal ff_bonus_principal_make(const ff_principal *k, const double *r, int64_t d,
                                           double *room, double *restrict rows)
{
    ff_bonus_principal made = {0};
    const int64_t rank = k->rank;
    /* R is read for M alone. */
    double *m = room, *s = room + d * d, *z = s + d * d;
    /* Three squares of rank have to fit beside d x rank. */
    if (!rank || 2 * rank > d)
        return made;
    double *gram = z + d * rank, *inverse = gram + rank * rank;
    const double trace = ff_gram_of_lower(r, d, m);
    const double largest = ff_largest_eigenvalue(m, d, k->projector, STEPS, s);
    const double rest = k->above * largest, t = trace;
    if (!(largest > 0.0) || !(trace < INFINITY))
        return made;
    complement(k, m, rest, t, d, s);
    if (!ff_factor_from_below(s, d))
        return made;
    memcpy(z, k->columns, (size_t)(d * rank) * sizeof(double));
    solve(s, d, rank, z);
    ff_sum_rows(z, rank, z, 1, rank, rank, 0, d, rank, NULL, 1.0, gram);
    if (!ff_factor_from_below(gram, rank))
        return made;
    memset(inverse, 0, (size_t)(rank * rank) * sizeof(double));
    for (int64_t i = 0; i < rank; i++)
        inverse[i * rank + i] = 1.0;
    solve(gram, rank, rank, inverse);
    ff_sum_rows(inverse, rank, inverse, 1, rank, rank, 0, rank, rank, NULL, -1.0, gram);
    for (int64_t i = 0; i < rank; i++)
        gram[i * rank + i] += (1.0 + MORE) * rest + t;
    if (!ff_factor_from_below(gram, rank))
        return made;
    double *f = z;
    ff_sum_rows(k->basis, d, gram, rank, 1, rank, 0, rank, d, NULL, 1.0, f);
    const double shown = (1.0 + MORE) * rest, n = (double)(d + rank + 16);
    double size = 0.0;
    for (int64_t i = 0; i < rank * d; i++)
        size += f[i] * f[i];
    const double lost = 64.0 * (double)rank * n * 0x1p-53 * ((double)d * shown + size + trace);
    complement(k, m, shown - lost, -shown, d, s);
    add_square(s, f, rank, d);
    if (!ff_factor_from_below(s, d) || !(size < INFINITY))
        return made;
    made.rest = shown;
    made.rank = rank;
    made.factor = ff_quantise_factor(gram, NULL, rank, rows);
    return made;
}

/* Roundings of float32 in a sum of squares over `rank` and what follows, as of itself. */
FF_INLINE double slack_of(int64_t rank) { return 1.01 * (double)(rank + 16) * 0x1p-24; }

/* Rounding as of `scoring` in ff_screen_i16.c: ||L z|| <= ||L^ z^|| (1 + g) + lost of L (||z|| +
 * ||e||) + ||L|| ||e||, e what z^ is off by; squares are off by 2 g, their sum by some u. */
void ff_principal_bounds(const ff_bonus_principal *p, const ff_actions *actions, const char *block,
                         double scale, double slope, double slack, float *restrict bound)
{
    const quantised_factor *m = &p->factor;
    const int64_t rank = p->rank, count = actions->actions, vectors = vectors_of(count);
    const double g = slack_of(rank), by = 1.000001 * scale * slack;
    const f32s own = f32_set((float)((1.0 + g) * by * m->unit));
    const f32s along = f32_set((float)(1.01 * by * m->lost));
    const f32s across = f32_set((float)(1.01 * by * (m->lost + m->norm)));
    const f32s left = f32_set((float)((1.0 + 8.0 * g) * sqrt(p->rest) * by));
    const f32s more = f32_set((float)(1.000001 * scale * slope + 0x1p-80));
    const f32s grow = f32_set((float)(1.0 + 8.0 * g));
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const int64_t width = lot_width(vectors, first);
        const principal_lot lot = lot_at(block, rank, width);
        f32s square[PANEL_VECTORS];
        squares_i16(m, rank, lot.panel, width, actions, square);
        for (int64_t v = 0; v < width; v++) {
            const f32s length = f32_load(lot.known[v].length);
            const f32s rest = f32_load(lot.rest + LANES * v);
            const f32s product = f32_mul(f32_sqrt(square[v]), f32_load(lot.known[v].unit));
            const f32s told = f32_fma(
                product, own, f32_fma(length, along, f32_mul(f32_load(lot.known[v].lost), across)));
            const f32s other = f32_mul(rest, left);
            const f32s whole = f32_sqrt(f32_fma(told, told, f32_mul(other, other)));
            const f32s size = f32_add(length, rest);
            const int64_t at = LANES * (first + v);
            f32_store_left(bound + at, count - at, f32_fma(size, more, f32_mul(whole, grow)));
        }
        block += lot_bytes(rank, width);
    }
}

/* A row times a panel, by two sums: one would wait for itself. */
FF_INLINE void dot_panel(const int16_t *restrict row, int64_t pairs, const i32s *restrict panel,
                         const int width, i32s *restrict even, i32s *restrict odd)
{
    i32s low[PANEL_VECTORS], high[PANEL_VECTORS];
    for (int v = 0; v < width; v++)
        low[v] = high[v] = i32_set(0);
    for (int64_t j = 0; j < pairs; j += 2) {
        int32_t entries[2];
        memcpy(entries, row + 2 * j, sizeof entries);
        const i32s first = i32_set(entries[0]);
        const i32s second = i32_set(j + 1 < pairs ? entries[1] : 0);
        const int64_t next = j + 1 < pairs ? j + 1 : j;
        for (int v = 0; v < width; v++) {
            MULTIPLY(low[v], first, panel[j * width + v]);
            MULTIPLY(high[v], second, panel[next * width + v]);
        }
    }
    for (int v = 0; v < width; v++) {
        even[v] = low[v];
        odd[v] = high[v];
    }
}

/* Vector v of `width`, of which the last may be short. */
FF_INLINE f32s part(const float *at, int v, const int width, mask32 last)
{
    return v == width - 1 ? f32_load_some(last, at) : f32_load(at);
}

/* Q times theta of `width` vectors of coordinates, by two sums each. */
FF_INLINE void along(const float *restrict columns, const double *restrict theta, int64_t rank,
                     int64_t d, const int width, mask32 last, float *restrict told)
{
    f32s even[TOLD], odd[TOLD];
    UNROLLED
    for (int v = 0; v < width; v++)
        even[v] = odd[v] = f32_set(0.0f);
    for (int64_t j = 0; j < d; j += 2) {
        const int both = j + 1 < d;
        const f32s first = f32_set((float)theta[j]);
        const f32s second = f32_set(both ? (float)theta[j + 1] : 0.0f);
        const float *at = columns + j * rank, *next = both ? at + rank : at;
        UNROLLED
        for (int v = 0; v < width; v++) {
            even[v] = f32_fma(first, part(at + LANES * v, v, width, last), even[v]);
            odd[v] = f32_fma(second, part(next + LANES * v, v, width, last), odd[v]);
        }
    }
    UNROLLED
    for (int v = 0; v < width; v++)
        f32_store(told + LANES * v, f32_add(even[v], odd[v]));
}

/* About Q theta, in float32: (d + 4) u of ||theta|| is what each of them may be off, u = 2^-24. */
static void along_columns(const float *restrict columns, const double *restrict theta, int64_t rank,
                          int64_t d, double *restrict told)
{
    float sum[64];
    for (int64_t first = 0; first < rank; first += LANES * TOLD) {
        const int64_t vectors = (rank - first + LANES - 1) / LANES;
        const int64_t now = vectors < TOLD ? vectors : TOLD;
        const mask32 last = lanes_of(rank - first - LANES * (now - 1));
        const float *at = columns + first;
        switch (now) {
        case 1: along(at, theta, rank, d, 1, last, sum + first); break;
        case 2: along(at, theta, rank, d, 2, last, sum + first); break;
        case 3: along(at, theta, rank, d, 3, last, sum + first); break;
        default: along(at, theta, rank, d, TOLD, last, sum + first);
        }
    }
    for (int64_t r = 0; r < rank; r++)
        told[r] = (double)sum[r];
}

/* With t near Q theta and orthonormal rows <x, theta> = <z, t> + <z, Q theta - t> + <x - Q'z, theta
 * - Q'Q theta>, and the last length squared is ||theta||^2 - ||Q theta||^2. What rows are short of
 * being orthonormal is 2^-40 at most (environments.pyx). `off` is what t may be off. */
void ff_principal_means(const ff_principal *k, const ff_actions *actions, const char *block,
                        const double *restrict theta, int64_t d, float *restrict upper)
{
    const int64_t rank = k->rank, count = actions->actions, vectors = vectors_of(count);
    const int64_t all = pairs_of(rank);
    double told[FF_PRINCIPAL_RANK], length = 0.0, whole = 0.0;
    int16_t row[(FF_PRINCIPAL_RANK + 33) / 32 * 32] FF_ALIGNED;
    memset(row, 0, sizeof row);
    for (int64_t j = 0; j < d; j++)
        whole += theta[j] * theta[j];
    along_columns(k->columns32, theta, rank, d, told);
    for (int64_t r = 0; r < rank; r++)
        length += told[r] * told[r];
    const double norm = sqrt(whole);
    const double off = 1.01 * sqrt((double)rank) * (double)(d + 4) * 0x1p-24 * norm;
    const double tiny = off + 0x1p-36 * norm, left = whole - length + 2.1 * off * norm;
    const double apart = sqrt(left > 0.0 ? left : 0.0) + 0x1p-18 * norm;
    const quantised_row t = ff_quantise_row(told, rank, row);
    const double g = slack_of(rank);
    const f32s mean = f32_set((float)t.unit);
    const f32s slope = f32_set((float)(1.01 * (t.lost + g * t.norm + tiny) + 0x1p-80));
    const f32s slope_lost = f32_set((float)(1.01 * (t.lost + t.norm)));
    const f32s across = f32_set((float)(1.000001 * (apart + tiny)));
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const int64_t width = lot_width(vectors, first);
        const principal_lot lot = lot_at(block, rank, width);
        i32s even[PANEL_VECTORS], odd[PANEL_VECTORS];
        if (width == PANEL_VECTORS)
            dot_panel(row, all, lot.panel, PANEL_VECTORS, even, odd);
        else
            dot_panel(row, all, lot.panel, 2, even, odd);
        for (int64_t v = 0; v < width; v++) {
            const f32s size = f32_load(lot.known[v].length);
            const f32s product =
                f32_mul(f32_of(i32_add(even[v], odd[v])), f32_load(lot.known[v].unit));
            const f32s error = f32_fma(
                size, slope, f32_fma(f32_load(lot.known[v].lost), slope_lost, f32_set(0x1p-60f)));
            const f32s most = f32_fma(f32_load(lot.rest + LANES * v), across, error);
            f32_store(upper + LANES * (first + v), f32_told(f32_fma(product, mean, most)));
        }
        block += lot_bytes(rank, width);
    }
}
#endif
