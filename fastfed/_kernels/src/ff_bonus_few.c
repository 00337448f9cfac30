#include "ff_bonus_few.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_screen_i16_parts.h"
#include "ff_row_sums.h"

/* Steps of Lanczos, after which the largest eigenvalue is known to less than a hundredth; that is
 * added. */
#define STEPS 24
#define MARGIN 1.01
/* H is lengthened by this, and G shortened, and `rest` grows by that, so that rounding them to 16
 * bits leaves a bound. */
#define LONGER 1.002
#define SHORTER 0.9996
#define HIGHER 1.0002
/* Rows of H at most, and where there is a G at least. */
#define ALONE 18
#define BESIDE 4
/* Of eigenvalues up to so many times their mean all are alike. */
#define BULK 1.5

/* +-1, alike in every run. */
FF_INLINE double sign_of(int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z >> 63) ? 1.0 : -1.0;
}

/* out = M x of `count` rows x, M symmetric. */
FF_INLINE void times(const double *restrict m, const double *x, int64_t count, int64_t d,
                     double *restrict out)
{
    ff_sum_rows(m, d, x, d, 1, count, 0, d, d, NULL, 1.0, out);
}

/* M -= H'H, of `count` rows. */
FF_INLINE void take_off(double *restrict m, const double *restrict h, int64_t count, int64_t d)
{
    ff_sum_rows(h, d, h, 1, d, d, 0, count, d, m, -1.0, m);
}

static double dot(const double *restrict x, const double *restrict y, int64_t d)
{
    f64s sum = f64_set(0.0);
    for (int64_t j = 0; j < d; j += LANES64) {
        const mask64 in = lanes64_of(d - j);
        sum = f64_fma(f64_load_some(in, x + j), f64_load_some(in, y + j), sum);
    }
    return f64_sum(sum);
}

/* x += by y. */
FF_INLINE void add(double *restrict x, double by, const double *restrict y, int64_t d)
{
    for (int64_t j = 0; j < d; j++)
        x[j] += by * y[j];
}

/* About the largest eigenvalue of M, never above it by more than rounding: by Lanczos. room: 3 d. */
static double largest_eigenvalue(const double *restrict m, int64_t d, double *restrict room)
{
    double diagonal[STEPS], beside[STEPS], high = 0.0;
    double *before = room, *now = room + d, *next = now + d;
    const int64_t most = d < STEPS ? d : STEPS;
    int64_t steps = 0;
    for (int64_t j = 0; j < d; j++) {
        before[j] = 0.0;
        now[j] = sign_of(j) / sqrt((double)d);
    }
    double last = 0.0;
    while (steps < most) {
        times(m, now, 1, d, next);
        const double along = dot(next, now, d);
        add(next, -along, now, d);
        add(next, -last, before, d);
        const double rest = sqrt(dot(next, next, d));
        diagonal[steps] = along;
        beside[steps++] = rest;
        high = fabs(along) + rest + last > high ? fabs(along) + rest + last : high;
        if (!(rest > 1e-8 * high))
            break;
        double *spare = before;
        before = now;
        now = next;
        next = spare;
        for (int64_t j = 0; j < d; j++)
            now[j] *= 1.0 / rest;
        last = rest;
    }
    /* Bisection: with all pivots of T - t I below zero t is above every eigenvalue. */
    double low = 0.0;
    for (int i = 0; i < 30; i++) {
        const double t = 0.5 * (low + high);
        int above = 1;
        double pivot = diagonal[0] - t;
        for (int64_t j = 1; above && j < steps; j++) {
            above = pivot < 0.0;
            pivot = diagonal[j] - t - beside[j - 1] * beside[j - 1] / pivot;
        }
        if (above && pivot < 0.0)
            high = t;
        else
            low = t;
    }
    return high;
}

/* out = 2 M x / high - x of `count` rows x: within [-x, x] where an eigenvalue is in [0, high]. */
static void stretched(const double *restrict m, const double *restrict x, double high,
                      int64_t count, int64_t d, double *restrict out)
{
    times(m, x, count, d, out);
    const double scale = 2.0 / high;
    for (int64_t j = 0; j < count * d; j++)
        out[j] = scale * out[j] - x[j];
}

/* `count` rows that are mostly of eigenvectors of M above `high`: Chebyshev's polynomial of degree
 * three, which grows steeply outside of [0, high]. room: 2 count d. */
static void largest_directions(const double *restrict m, int64_t count, double high, int64_t d,
                               double *restrict rows, double *restrict room)
{
    for (int64_t r = 0; r < count; r++)
        for (int64_t j = 0; j < d; j++)
            rows[r * d + j] = sign_of((r + 1) * d + j);
    double *once = room, *twice = room + count * d;
    stretched(m, rows, high, count, d, once);
    stretched(m, once, high, count, d, twice);
    for (int64_t j = 0; j < count * d; j++)
        twice[j] = 2.0 * twice[j] - rows[j];
    stretched(m, twice, high, count, d, rows);
    for (int64_t j = 0; j < count * d; j++)
        rows[j] = 2.0 * rows[j] - once[j];
    for (int64_t r = 0; r < count; r++) {
        double *z = rows + r * d;
        const double scale = 1.0 / sqrt(dot(z, z, d));
        for (int64_t j = 0; j < d; j++)
            z[j] *= scale;
    }
}

/* Z -> H, of H'H = M Z (Z'M Z)^-1 Z'M <= M: of all that is known of M by M Z, the most. A row that
 * is of the others is zero. room: count d. */
static void largest_part(const double *restrict m, int64_t count, int64_t d, double *restrict rows,
                         double *restrict room)
{
    double c[FF_FEW_ROWS][FF_FEW_ROWS];
    times(m, rows, count, d, room);
    for (int64_t r = 0; r < count; r++)
        for (int64_t s = 0; s <= r; s++)
            c[r][s] = dot(rows + r * d, room + s * d, d);
    for (int64_t r = 0; r < count; r++) {
        const double whole = c[r][r];
        double *h = rows + r * d;
        memcpy(h, room + r * d, (size_t)d * sizeof(double));
        for (int64_t s = 0; s < r; s++) {
            double rest = c[r][s];
            for (int64_t t = 0; t < s; t++)
                rest -= c[r][t] * c[s][t];
            c[r][s] = c[s][s] > 0.0 ? rest / c[s][s] : 0.0;
            add(h, -c[r][s], rows + s * d, d);
            c[r][r] -= c[r][s] * c[r][s];
        }
        const int kept = c[r][r] > 1e-9 * whole;
        c[r][r] = kept ? sqrt(c[r][r]) : 0.0;
        for (int64_t j = 0; j < d; j++)
            h[j] = kept ? h[j] / c[r][r] : 0.0;
    }
}

/* Rows in so many groups, but at least one and at most `most`. */
FF_INLINE int64_t groups_up_to(int64_t groups, int64_t most)
{
    const int64_t rows = ROWS * (groups < 1 ? 1 : groups);
    return rows < most ? rows : most;
}

/* Rows times `by` in 16 bits, and as these say; they are those from `first` on. Returns the sum of
 * their squares. */
static double in_16_bits(double *restrict rows, double by, int64_t first, int64_t count, int64_t d,
                         double *restrict units, int16_t *restrict entries)
{
    double size = 0.0;
    for (int64_t k = first; k < first + count; k++) {
        double *row = rows + k * d;
        int16_t *to = entries + k * row_of(d);
        for (int64_t j = 0; j < d; j++)
            row[j] *= by;
        units[k] = ff_quantise_row(row, d, to).unit;
        for (int64_t j = 0; j < d; j++)
            row[j] = units[k] * (double)to[j];
        size += dot(row, row, d);
    }
    return size;
}

/* M -> rest I - M. */
static void complement(double *restrict m, double rest, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < d; j++)
            m[i * d + j] = -m[i * d + j];
        m[i * d + i] += rest;
    }
}

/* Rounding, u = 2^-53, n = d + rows + 16, T = trace R'R: M is off from R'R by n u T in norm, S =
 * rest I + H'H - G'G - M by n u (d rest + ||H||_F^2 + ||G||_F^2 + T), and a Cholesky factor that
 * is found has a square within 1.01 n u trace S of S (Higham 2002, Theorem 10.3), whose trace is
 * at most d rest + ||H||_F^2. All of that, and twice as much again, is added to what was shown to
 * be a bound. H and G are what their 16 bits say. */
ff_bonus_few ff_bonus_few_make(const double *restrict r, const ff_directions *pool, int64_t d,
                               double *restrict m, double *restrict rows,
                               int16_t *restrict entries)
{
    ff_bonus_few few = {0};
    /* About a tenth as many as d, or two ninths with a G: chosen at d = 57, 78 and 135. */
    const int64_t alone = groups_up_to((d + 22) / 67, ALONE);
    const int64_t told = pool ? pool->count : 0;
    const int64_t most = told + ROWS < FF_FEW_ROWS ? told + ROWS : FF_FEW_ROWS;
    const int64_t count = pool ? groups_up_to((d + 13) / 27, most) : alone;
    const int64_t along = told < count - BESIDE ? told : count - BESIDE;
    const int64_t beside = count - along;
    /* Rows and two products of theirs are to fit in d^2. */
    if (3 * count > d)
        return few;
    const double trace = ff_gram_of_lower(r, d, m);
    double *room = rows + count * d, units[FF_FEW_ROWS];
    largest_directions(m, beside, BULK * trace / (double)d, d, rows, room);
    largest_part(m, beside, d, rows, room);
    const double added = in_16_bits(rows, LONGER, 0, beside, d, units, entries);
    take_off(m, rows, beside, d);
    const double shown = HIGHER * MARGIN * largest_eigenvalue(m, d, room);
    if (!(shown > 0.0) || !(shown < INFINITY) || !(added < INFINITY))
        return few;
    complement(m, shown, d);
    double taken = 0.0;
    if (along) {
        double *g = rows + beside * d;
        memcpy(g, pool->rows, (size_t)(along * d) * sizeof(double));
        largest_part(m, along, d, g, room);
        taken = in_16_bits(rows, SHORTER, beside, along, d, units, entries);
        take_off(m, g, along, d);
    }
    if (!(taken < INFINITY) || !ff_factor_from_below(m, d))
        return few;
    for (int64_t k = 0; k < count; k++)
        few.unit = units[k] > few.unit ? units[k] : few.unit;
    for (int64_t k = 0; k < count; k++) {
        const float relative = (float)(units[k] / few.unit);
        few.squares[k] = k < beside ? relative * relative : -relative * relative;
    }
    const double n = (double)(d + count + 16);
    few.rest = shown + 8.0 * n * 0x1p-53 * ((double)d * shown + added + taken + trace);
    few.norm = 1.000001 * sqrt(few.rest + added);
    few.rows = count;
    return few;
}
#endif
